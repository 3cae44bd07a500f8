"""An experiment on several GPUs at once: a process for each, a rank, and one merged result."""

from __future__ import annotations

import hashlib
import json
import os
import queue
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Listener
from typing import cast

import pyarrow as pa

from gpuscope.analysis.collectives_analysis import collectives
from gpuscope.analysis.result import Row
from gpuscope.analysis.settings import COLUMNS
from gpuscope.device.ranks import Elsewhere, Meeting, NoMeeting, Ranks, take_part
from gpuscope.device.select import open_device
from gpuscope.errors import GpuscopeError, MissingEvidence, NothingRecorded, WorkerLost
from gpuscope.experiments.experiment import Experiment
from gpuscope.experiments.pool import Processes
from gpuscope.experiments.runner import Progress, Runner, Viewer
from gpuscope.trace.merging import merge
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run
from gpuscope.workloads.builtin import CollectiveSpec

_LOOK_S = 0.05
_OTHERS_S = 2.0
"""How long others may take to fail after the first rank has, so that the cause is told."""
_PARENT_S = 1.0
_STOP_S = 0.2
_ASKS = 50
"""How often in a round a collective asks the other ranks whether to stop."""


class _Host(Meeting):
    """The meeting of ranks that this process has started.

    Attributes
    ----------
    stop
        Set it to let all ranks stop.
    progress
        What rank 0 tells.
    """

    def __init__(self, world_size: int, stop: threading.Event) -> None:
        super().__init__(world_size)
        self.stop = stop
        self._ends: dict[tuple[int, str, int], bool] = {}
        self.progress: queue.SimpleQueue[Progress] = queue.SimpleQueue()

    def next_round(self, rank: int, now_ns: int) -> tuple[bool, int]:
        """Return whether the ranks stop now, and the latest of their clocks: the same to all."""
        ours = self.stop.is_set(), now_ns
        answers = cast("list[tuple[bool, int]]", self.gather("the next round", rank, ours))
        return any(stops for stops, _ in answers), max(now_ns for _, now_ns in answers)

    def is_stopping(self) -> bool:
        """Whether the ranks are to stop."""
        return self.stop.is_set()

    def ends_at(self, stage: int, workload: str, left: int) -> bool:
        """Return whether a workload makes none of the calls left: the same to all ranks.

        Parameters
        ----------
        stage
            How often the rank has asked for its next round.
        """
        with self._changed:
            return self._ends.setdefault((stage, workload, left), self.stop.is_set())

    def tell(self, progress: Progress) -> None:
        """Take the progress of rank 0."""
        self.progress.put(progress)


@dataclass(frozen=True)
class _Place:
    """Where a rank finds the others."""

    address: str
    key: bytes
    parent: int
    port: int


def run_on_ranks(
    experiment: Experiment,
    devices: Sequence[str],
    *,
    viewer: Viewer | None,
    stop: threading.Event | None,
    jitter: bool = True,
) -> Run:
    """Run an experiment as several ranks, each with a device of its own, and merge their traces.

    Every rank is a process that does the whole experiment, with the variables that torchrun sets.
    When one dies or fails, the others are ended.

    Parameters
    ----------
    devices
        Name of each rank's device, as :func:`gpuscope.open_device` takes it.
    stop
        Ends the run at once. Workloads that are collectives end where all ranks have made the same
        calls: at the latest after a fiftieth of them.

    Raises
    ------
    WorkerLost
        The process of a rank has died.
    GpuscopeError
        What a rank raised.
    """
    host = _Host(len(devices), stop or threading.Event())
    with tempfile.TemporaryDirectory(prefix="gpuscope-") as folder, Processes(len(devices)) as pool:
        key = secrets.token_bytes(32)
        with closing(Listener(f"{folder}/ranks", "AF_UNIX", authkey=key)) as listener:
            host.serve(listener)
            meeting = _Place(f"{folder}/ranks", key, os.getpid(), _free_port())
            given = tuple(devices), experiment.to_dict()
            ranks = {
                pool.submit(_take_part, meeting, rank, *given, jitter=jitter): rank
                for rank in range(len(devices))
            }
            while True:
                try:
                    runs = _outcomes(ranks, devices, host, viewer)
                    break
                except KeyboardInterrupt:
                    if host.stop.is_set():
                        raise
                    host.stop.set()  # a second Ctrl-C aborts
    return _joined([runs[rank] for rank in range(len(devices))])


def _outcomes(
    ranks: Mapping[Future[Run | GpuscopeError], int],
    devices: Sequence[str],
    host: _Host,
    viewer: Viewer | None,
) -> dict[int, Run]:
    """Wait for all ranks; raises what made the first of them fail."""
    runs: dict[int, Run] = {}
    failed: dict[int, GpuscopeError] = {}
    patient_until_s = float("inf")
    left = set(ranks)
    while left and time.monotonic() < patient_until_s:
        done, left = wait(left, _LOOK_S, FIRST_COMPLETED)
        for future in done:
            rank = ranks[future]
            outcome = _outcome(future)
            if isinstance(outcome, Run):
                runs[rank] = outcome
                continue
            failed[rank] = outcome
            patient_until_s = min(patient_until_s, time.monotonic() + _OTHERS_S)
        while viewer is not None and not host.progress.empty():
            viewer(host.progress.get())
    if not failed:
        return runs
    # Those that waited for one that failed say less than that one.
    rank = min(failed, key=lambda rank: (isinstance(failed[rank], NoMeeting), rank))
    error = failed[rank]
    if len({str(failure) for failure in failed.values()}) == 1 and len(failed) == len(ranks):
        raise error  # of none in particular
    raise type(error)(f"rank {rank} of {len(ranks)} ({devices[rank]}): {error}") from error


def _outcome(future: Future[Run | GpuscopeError]) -> Run | GpuscopeError:
    try:
        return future.result()
    except BrokenExecutor as error:
        return WorkerLost(f"its process died ({error}); the other ranks were ended")


def _joined(runs: Sequence[Run]) -> Run:
    """Return the run of all ranks: merged traces, and a comparison that names ranks."""
    settings = [name for name in runs[0] if all(name in run for run in runs)]
    if not settings:
        raise NothingRecorded("the run was stopped before anything was recorded: run it again")
    traces: dict[str, Trace] = {}
    rows: list[Row] = []
    for name in settings:
        parts = [run[name] for run in runs]
        if parts[0].metadata.simulated:  # their clocks were put on one time at the beginning
            parts = [trace.with_metadata(clock=_virtual_clock(runs)) for trace in parts]
        traces[name] = merge(parts)
        together = _collective_columns(traces[name])
        for rank, run in enumerate(runs):
            own_rows = [row for row in run.comparison.to_pylist() if row["setting"] == name]
            rows += [{**row, "rank": rank, **together.get(row["workload"], {})} for row in own_rows]
    comparison = pa.Table.from_pylist(rows, schema=pa.schema(list(COLUMNS.items())))
    return Run(traces, comparison, runs[0].experiment, any(run.stopped for run in runs))


def _virtual_clock(runs: Sequence[Run]) -> str:
    """Return what names the clock of one simulation, and of no other."""
    devices = [sorted(next(iter(run.values())).metadata.devices) for run in runs]
    facts = json.dumps([runs[0].experiment, devices], sort_keys=True)
    return hashlib.sha256(facts.encode()).hexdigest()[:32]


def _collective_columns(trace: Trace) -> dict[str, Row]:
    """Return workload → its columns in a comparison, of those that are collectives."""
    try:
        groups = collectives(trace).groups
    except MissingEvidence:
        return {}
    return {
        group.group: {
            "collective_us": group.time_ns / 1e3,
            "collective_skew_us": group.skew_ns / 1e3,
            "bus_gb_per_s": group.bus_gb_per_s,
        }
        for group in groups
    }


# -- in the process of a rank --------------------------------------------------------------
def _take_part(
    meeting: _Place, rank: int, devices: tuple[str, ...], fields: dict[str, object], *, jitter: bool
) -> Run | GpuscopeError:
    """Run the experiment as one rank; an error is an outcome, too."""
    threading.Thread(target=_end_with, args=(meeting.parent,), daemon=True).start()
    # What torchrun sets.
    os.environ |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
    os.environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(len(devices)))
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(meeting.port)}
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # multicast: no partition holds what it uses
    try:
        host = Elsewhere(meeting.address, meeting.key, rank)
        take_part(Ranks(rank, len(devices), host))
        device = open_device(devices[rank], jitter=jitter, quiet=True)
        experiment, stop = Experiment(**fields), threading.Event()
        ends = _Ends(host, experiment)
        if not ends.every:
            threading.Thread(target=_stop_with, args=(host, stop), daemon=True).start()

        def next_round() -> None:
            ends.stage += 1
            answer = cast("tuple[bool, int]", host.ask("next_round", rank, device.now_ns()))
            stops, latest_ns = answer
            if device.is_simulated:
                device.backend.wait_until_ns(latest_ns)
            if stops:
                stop.set()

        def view(progress: Progress) -> None:
            host.ask("tell", replace(progress, recording=None))

        viewer, asked = view if rank == 0 else None, ends if ends.every else None
        runner = Runner(experiment, device, viewer, stop, before_round=next_round, ends=asked)
        return runner.run()
    except GpuscopeError as error:
        return error
    except Exception as error:  # noqa: BLE001 - of a library, which may not unpickle elsewhere
        return GpuscopeError(f"{type(error).__name__}: {error}")


class _Ends:
    """Whether a workload makes no more calls: of a collective every rank makes equally many.

    Attributes
    ----------
    every
        Collective → it asks the other ranks before each of so many calls.
    stage
        How often this rank has asked for its next round.
    """

    def __init__(self, host: Elsewhere, experiment: Experiment) -> None:
        workloads = experiment.workloads.items()
        specs = {name: spec for name, spec in workloads if isinstance(spec, CollectiveSpec)}
        self.every = {name: max(1, spec.repeats // _ASKS) for name, spec in specs.items()}
        self.stage = 0
        self._host = host
        self._stop = threading.Event()
        if self.every:
            threading.Thread(target=_stop_with, args=(host, self._stop), daemon=True).start()

    def __call__(self, workload: str, left: int) -> bool:
        if workload not in self.every:
            return self._stop.is_set()
        if left % self.every[workload]:
            return False
        return bool(self._host.ask("ends_at", self.stage, workload, left))


def _stop_with(host: Elsewhere, stop: threading.Event) -> None:
    """Set an event when the ranks are to stop."""
    with suppress(GpuscopeError):  # the process in which the ranks meet is gone
        while not host.ask("is_stopping"):
            time.sleep(_STOP_S)
        stop.set()


def _end_with(parent: int) -> None:
    """End this process when its parent has: it may be waiting for others that are gone."""
    while os.getppid() == parent:
        time.sleep(_PARENT_S)
    os._exit(1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
