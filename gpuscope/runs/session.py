"""Running things: ``profile`` for any code, ``run`` for an experiment."""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import random
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from gpuscope._checks import door, require_kind
from gpuscope._optional import needed_for
from gpuscope.analysis.compare import compare
from gpuscope.device.caller import CallerStreamGuard, innermost_guard
from gpuscope.device.device import Device
from gpuscope.device.partition import Partition, Partitions
from gpuscope.device.select import open_device, open_devices
from gpuscope.device.stream import Stream, close_all
from gpuscope.errors import InvalidPartition, NothingRecorded
from gpuscope.record.annotate import annotate
from gpuscope.record.recorder import MEMORY_LIMIT, Recording
from gpuscope.runs.experiment import Experiment, ResolvedSetting
from gpuscope.trace.model import Run, Trace, incomplete
from gpuscope.workloads.handle import Completion, Handle
from gpuscope.workloads.spec import WorkloadSpec

QUEUED_NS = 100_000_000
"""Estimated work kept queued at most, by all workloads together: CUDA cannot cancel it, so Stop
means this soon."""

LOOK_NS = 50_000_000
"""How long the host waits at most without looking whether to stop, or telling how far it is."""

_LEGACY_STREAM = 1  # cudaStreamLegacy

NAP_NS = 20_000
"""How long the host looks away when nothing is due but a background is to be kept busy."""


@contextlib.contextmanager
def profile(
    device: Device | None = None,
    *,
    source: Literal["auto", "cupti", "events"] = "auto",
    detail: Literal["launches", "full"] = "launches",
    launch_ids: bool | Literal["runtime"] = True,
    memory_limit: int = MEMORY_LIMIT,
    wait: bool = True,
    live: bool = False,
) -> Iterator[Recording]:
    """Record everything that happens on a device inside the ``with`` block.

    On a GPU, CUPTI records what every library of the process does; where it is not
    installed, bracketing events time what gpuscope launches.

    Parameters
    ----------
    device
        Which one; without it, every open device, which must share one clock.
    source
        ``"cupti"``, ``"events"``, or ``"auto"``: CUPTI where it is installed.
    detail
        ``"launches"``: of API calls those that launch, copy or set. ``"full"``: all API
        calls, and synchronisations.
    launch_ids
        Whether API calls are recorded. Without them a launch costs less, but work cannot be
        traced to the call and the partition it was given to. ``"runtime"``: those of the CUDA
        runtime alone, as PyTorch and cuBLAS make them; CuPy, Triton, cuda.core and gpuscope's
        own kernels launch by the driver's calls.
    memory_limit
        Bytes of buffers that CUPTI may fill between two readings; what does not fit is
        dropped and counted.
    wait
        Wait at the end for what was launched; else what still runs stays open.
    live
        Show a timeline that grows while the block runs and stays when it ended. Reading the
        records meanwhile takes turns with the host code that is recorded.

    Yields
    ------
    Recording
        ``batches(since)`` while it runs, ``trace`` afterwards, also after an exception.

    Raises
    ------
    GpuscopeError
        Devices with different clocks are open and none was named.
    RecorderBusy
        Another client of CUPTI, such as PyTorch's profiler or Nsight Systems, records in
        this process.
    MissingDependency, CapabilityError
        CUPTI was asked for and is not there.

    Notes
    -----
    ``live=True`` calls every viewer in :data:`live_viewers`; without one, that of
    ``gpuscope.widgets``, a :class:`~gpuscope.Timeline`.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> with gpu.create_stream() as stream, gs.profile(gpu) as recording:
    ...     _ = gs.Gemm(gpu, m=64, n=64, k=64).execute(stream=stream)
    >>> recording.trace.kind_counts()["kernel"]
    1
    """
    require_kind("device", device, Device, None)
    for name, value in (("source", source), ("detail", detail)):
        require_kind(name, value, str)
    require_kind("launch_ids", launch_ids, bool, str)
    require_kind("wait", wait, bool)
    require_kind("live", live, bool)
    recording = Recording(
        (device,) if device is not None else _one_clock(),
        source=source,
        detail=detail,
        launch_ids=launch_ids,
        memory_limit=memory_limit,
    )
    views = _open_views() if live else []
    watching: list[LiveView] = []
    started = False
    try:
        recording.start()
        started = True
        for view in views:
            watching.append(view)
            view.watch(recording)
        yield recording
    finally:
        try:
            _stop(recording, wait=wait and started)
        finally:
            try:
                _stop(recording, wait=False)  # what is left where that was interrupted
            finally:
                for view in watching:
                    view.finish()


def _stop(recording: Recording, *, wait: bool) -> None:
    """Stop what has begun; at the interpreter's end it goes with the process."""
    if recording.has_begun and not sys.is_finalizing():
        recording.stop(wait=wait)


class LiveView(Protocol):
    """What shows a recording while it goes on."""

    def watch(self, recording: Recording) -> None:
        """Show what there is of ``recording``, again and again; returns at once."""

    def finish(self) -> None:
        """Show the whole recording, which has ended, and read it no more."""


live_viewers: list[Callable[[], LiveView]] = []
"""Called by ``profile(live=True)`` before the recording begins; each shows a view."""
_ROOM_OF_VIEWERS = "gpuscope.widgets.viewer"
"""Imported when a view is wanted and nobody subscribed: importing it subscribes."""


def _open_views() -> list[LiveView]:
    if not live_viewers:
        with needed_for("profile(live=True)"):
            importlib.import_module(_ROOM_OF_VIEWERS)
    return [viewer() for viewer in live_viewers]


def _one_clock() -> tuple[Device, ...]:
    devices = open_devices()
    if (
        len({device.info.kind for device in devices}) > 1
        or sum(device.is_simulated for device in devices) > 1
    ):
        del devices  # a device that nobody holds any more must not count
        gc.collect()
        devices = open_devices()
    return tuple(devices)


@dataclass(frozen=True)
class Progress:
    """How far a run is; given to viewers.

    Attributes
    ----------
    done, total
        Foreground calls completed and planned, over all settings and rounds.
    recording
        The recording that is on now, for its batches; ``None`` between recordings.
    phase
        ``"together"``, or which workload is measured alone.
    """

    setting: str
    round: int
    done: int
    total: int
    recording: Recording | None
    phase: str = "together"


Viewer = Callable[[Progress], None]


def run(
    experiment: Experiment | Mapping[str, Any] | str | Path,
    device: Device | str | None = None,
    *,
    viewer: Viewer | None = None,
    stop: threading.Event | None = None,
) -> Run:
    """Run an experiment: each of its settings, in turns.

    Parameters
    ----------
    experiment
        The description, or a TOML or JSON file, or a dict.
    device
        An open device or a name for :func:`open_device`; ``"auto"`` if not given.
    viewer
        Called from this thread with the progress, many times.
    stop
        Set it to end early; what was recorded is kept.

    Returns
    -------
    Run
        Setting → Trace, with the comparison. After Ctrl-C or ``stop`` it holds what was
        recorded until then, and ``stopped`` is true. A second Ctrl-C, while that is put together,
        leaves at once, without it.

    Raises
    ------
    InvalidExperiment, InvalidPartition, GpuscopeError
        Before anything is launched where that can be told.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2}},
    ... }
    >>> run = gs.run(one, gpu)
    >>> run["default"].kind_counts()["kernel"]
    2
    """
    described, target = _prepared(experiment, device, viewer, stop)
    return _Session(described, target, viewer, stop or threading.Event()).run()


@door(gpu_profile=(str, Path))
def predict(
    experiment: Experiment | Mapping[str, Any] | str | Path,
    gpu_profile: str | Path = "h200",
    *,
    viewer: Viewer | None = None,
    stop: threading.Event | None = None,
) -> Run:
    """Run an experiment on the simulated GPU of a profile: what a real one may be expected to do.

    Parameters
    ----------
    experiment
        The description, or a TOML or JSON file, or a dict, such as a measured run's
        ``experiment``.
    gpu_profile
        A profile's name: what stands behind ``sim:`` in :func:`open_device`.
    viewer, stop
        As in :func:`run`.

    Returns
    -------
    Run
        Its traces are marked as simulated; how good their times are: `docs/simulator.md`.
        :func:`gpuscope.figures.prediction` sets it beside a measured run.

    Raises
    ------
    DeviceUnavailable
        There is no such profile.
    InvalidExperiment, InvalidPartition, GpuscopeError
        As in :func:`run`.

    Examples
    --------
    >>> import gpuscope as gs
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2}},
    ... }
    >>> gs.runs.predict(one).comparison.column("kernel_median_us").to_pylist()
    [10.0]
    """
    device = open_device(f"sim:{gpu_profile}", quiet=True)
    return run(experiment, device, viewer=viewer, stop=stop)


class _Session:
    """One run: its handles, its traces so far, its way to stop."""

    def __init__(
        self, experiment: Experiment, device: Device, viewer: Viewer | None, stop: threading.Event
    ) -> None:
        self.experiment = experiment
        self.device = device
        self.viewer = viewer
        self.stop = stop
        self.settings = experiment.resolve()
        foreground = [w for w in experiment.workloads.values() if not w.background]
        self.total = sum(w.repeats for w in foreground) * len(self.settings)
        self.done = 0
        self.recordings: dict[str, list[Recording]] = {one.name: [] for one in self.settings}
        self.alone: dict[tuple[str, str], list[Recording]] = {}
        self.handles: dict[Any, Handle] = {}
        self.stream_ids: dict[tuple[str, str], int] = {}
        self.recording: Recording | None = None
        self.round = 0
        self._legacy: Stream | None = None
        self._open: list[Stream] = []  # of this round, to be closed
        self._carved: list[Partitions] = []
        self._guard = innermost_guard()
        self._collects = gc.isenabled()

    def run(self) -> Run:
        """Perform, and return what was recorded; after an interrupt, wherever that struck, too."""
        try:
            self.perform()
            return self._result(stopped=self.stop.is_set())
        except KeyboardInterrupt:
            pass  # what it left is looked after when nothing holds on to it any more
        self.settle()
        run = self._result(stopped=True)
        warnings.warn(
            "the run was interrupted: it returns what was recorded until then", stacklevel=3
        )
        return run

    def _result(self, *, stopped: bool) -> Run:
        kept = {name: _traces(recordings) for name, recordings in self.recordings.items()}
        traces = {
            name: self._whole(name, Trace.concat(parts)) for name, parts in kept.items() if parts
        }
        if not traces:
            raise NothingRecorded("the run was stopped before anything was recorded: run it again")
        return Run(traces, compare(traces), self.experiment.to_dict(), stopped)

    def _whole(self, setting: str, trace: Trace) -> Trace:
        """Return a setting's trace with what was seen of each workload alone."""
        trace = trace.with_metadata(
            solo=self._solo(setting), experiment=self.experiment.to_dict(), setting=setting
        )
        alone = {
            f"{workload} alone{'' if where else ' on the whole GPU'}, round {number}": part
            for (where, workload), recordings in self.alone.items()
            for number, part in enumerate(_traces(recordings), 1)
            if where in (setting, "")
        }
        missing = incomplete(alone)
        if not missing:
            return trace
        notes = (*trace.metadata.notes, f"what ran alone is {missing}")
        return trace.with_metadata(complete=False, notes=notes)

    def perform(self) -> None:
        """Do every round of every setting; closes all that was made, also on an error."""
        for setting in self.settings:
            if setting.partitions:
                try:
                    self.device.plan_carve(setting.partitions, rounding=self.experiment.rounding)
                except InvalidPartition as error:
                    raise InvalidPartition(
                        f"setting {setting.name!r}: {error} (in an experiment: rounding, at the "
                        "top)"
                    ) from error
        try:
            for number in range(self.experiment.rounds):
                for setting in self.settings:
                    if self.stop.is_set():
                        break
                    self._round(setting, number)
        except Exception:
            self._end()
            raise
        self._close()

    def settle(self) -> None:
        """Put in order what an interrupt left undone, wherever it struck.

        What it kept from being closed or left is noted here, or garbage. So nobody may hold the
        interrupt any more, whose traceback holds that.
        """
        while (guard := innermost_guard()) is not None and guard is not self._guard:
            guard.__exit__(None, None, None)
        self.device.calls.enter_handle(None)
        if self._collects:
            gc.enable()
        gc.collect()
        self._end()

    def _end(self) -> None:
        """Stop what records, and close all that was made."""
        try:
            for recording in itertools.chain(*self.recordings.values(), *self.alone.values()):
                if recording.has_begun:
                    recording.stop()
        finally:
            self._close()

    def _close(self) -> None:
        try:
            self._close_made()
        finally:
            close_all(list(self.handles.values()))

    def _close_made(self) -> None:
        """Close what a round made; again closes what an interrupt left."""
        parts = [part for carving in self._carved for part in carving.values()]
        close_all([*self._open, *parts, *self._carved])
        self._open.clear()
        self._carved.clear()

    # -- one round of one setting -----------------------------------------------------
    def _round(self, setting: ResolvedSetting, number: int) -> None:
        repeats = {
            name: _share(spec.repeats, self.experiment.rounds, number)
            for name, spec in setting.workloads.items()
        }
        self.round = number
        with self._streams(setting) as streams:
            workers = self._workers(setting, streams, repeats, number)
            for worker in workers:
                worker.warm_up(self.device.now_ns, self.stop)
            if self.stop.is_set():
                return
            began_ns = self.device.now_ns()
            recorded = self._recorded(self.recordings[setting.name])
            with recorded, annotate(f"round {number}"), _no_collection():
                self._drive(setting.name, number, workers)
            if self.experiment.alone_repeats and not self.stop.is_set():
                took_ns = self.device.now_ns() - began_ns
                self._measure_alone(setting, workers, number, took_ns)

    @contextlib.contextmanager
    def _streams(self, setting: ResolvedSetting) -> Iterator[dict[str, Stream]]:
        yield self._make_streams(setting)
        self._close_made()

    def _make_streams(self, setting: ResolvedSetting) -> dict[str, Stream]:
        partitions: Mapping[str, Partition] = {}
        if setting.partitions:
            self._carved.append(
                self.device.carve(setting.partitions, rounding=self.experiment.rounding)
            )
            partitions = self._carved[-1]
        for name, color in self.experiment.colors.items():
            if name in partitions:
                partitions[name].color = color
        streams: dict[str, Stream] = {}
        for name, spec in setting.streams.items():
            if spec.partition is not None and partitions:
                home = partitions[spec.partition]
                self._open.append(home.create_stream(name=name, priority=spec.priority))
            else:
                self._open.append(
                    self.device.create_stream(
                        name=name, priority=spec.priority, blocking=spec.blocking
                    )
                )
            stream = streams[name] = self._open[-1]
            # The same stream in every round, as far as the trace is concerned.
            stream.take_number(self.stream_ids.setdefault((setting.name, name), stream.id))
        return streams

    def _workers(
        self,
        setting: ResolvedSetting,
        streams: Mapping[str, Stream],
        repeats: Mapping[str, int],
        number: int,
    ) -> list[_Worker]:
        handles = {name: self._handle(name, spec) for name, spec in setting.workloads.items()}
        return [
            _Worker(
                handles[name],
                streams[spec.stream],
                spec,
                repeats[name],
                random.Random(f"{self.experiment.seed} {name} {number}"),  # noqa: S311 - arrivals
                queued_ns=QUEUED_NS // len(handles),
                waits_on=[handles[other] for other in spec.waits_on],
                unguarded=None if spec.guard else self._legacy_stream(),
            )
            for name, spec in setting.workloads.items()
        ]

    def _legacy_stream(self) -> Stream:
        """Return CUDA's legacy default stream, where work goes that nobody guards."""
        if self._legacy is None:
            self._legacy = self.device.wrap_stream(_LEGACY_STREAM, name="legacy default")
        return self._legacy

    def _handle(self, name: str, spec: WorkloadSpec) -> Handle:
        key = (name, getattr(spec, "sm_count_target", None))  # what a setting may change of it
        if key not in self.handles:
            self.handles[key] = spec.make(self.device, name=name, seed=self.experiment.seed)
        return self.handles[key]

    @contextlib.contextmanager
    def _recorded(self, kept: list[Recording]) -> Iterator[None]:
        """Record; what is kept before it begins is there whatever happens."""
        self.recording = Recording((self.device,))
        kept.append(self.recording)
        self.recording.start()
        yield
        kept[-1].stop()
        self.recording = None

    def _drive(self, setting: str, number: int, workers: list[_Worker]) -> None:
        """Issue and poll until the foreground is done: one host thread, nothing blocks."""
        clock = self.device.now_ns
        foreground = [worker for worker in workers if not worker.background]
        background = [worker for worker in workers if worker.background]
        for worker in workers:
            worker.begin(clock())
        finished = 0
        while not self.stop.is_set():
            for worker in foreground:
                worker.poll(clock)
            waiting = any(worker.queued for worker in foreground)
            for worker in background:
                # While a latency is being measured, look away as long as enough is queued.
                if not waiting or worker.runs_low(clock()):
                    worker.poll(clock)
                    worker.top_up()
            for worker in foreground:
                if worker.due(clock()):
                    for load in background:
                        load.poll(clock)
                        load.top_up()
                    worker.issue()
                    worker.left -= 1
                    waiting = True
            now_finished = sum(worker.finished for worker in foreground)
            if now_finished != finished:
                self.done += now_finished - finished
                finished = now_finished
                self._tell(setting, number)
            if all(worker.over for worker in foreground):
                break
            if not waiting:
                due_ns = min(worker.due_ns for worker in foreground if worker.left)
                nap_ns = clock() + (NAP_NS if background else LOOK_NS)
                self.device.backend.wait_until_ns(min(due_ns, nap_ns))
        for worker in workers:
            worker.finish()

    def _tell(self, setting: str, number: int, phase: str = "together") -> None:
        if self.viewer is not None:
            self.viewer(Progress(setting, number, self.done, self.total, self.recording, phase))

    # -- alone ------------------------------------------------------------------------
    def _measure_alone(
        self, setting: ResolvedSetting, workers: list[_Worker], number: int, took_ns: int
    ) -> None:
        """Record each workload alone: in its place, and once a round on the whole GPU."""
        for worker in workers:
            self._alone(setting.name, worker, took_ns)
        if setting is not self.settings[0]:
            return
        self._open.append(self.device.create_stream(name="alone"))
        with self._open[-1] as stream:
            for name, spec in self.experiment.workloads.items():
                rng = random.Random(number)  # noqa: S311 - arrivals, not secrets
                worker = _Worker(self._handle(name, spec), stream, spec, 0, rng)
                worker.warm_up(self.device.now_ns, self.stop)
                self._alone("", worker, took_ns)

    def _alone(self, setting: str, worker: _Worker, took_ns: int) -> None:
        """Record one workload alone; a background for as long as it ran with the others.

        A GPU under a power cap slows down when it is busy for long: a burst would be a
        flattering reference.
        """
        if self.stop.is_set():
            return
        told_ns = self.device.now_ns()
        until_ns = told_ns + (took_ns if worker.background else 0)
        phase = f"{worker.handle.name} alone"
        self._tell(setting, self.round, phase)
        done = 0
        with self._recorded(self.alone.setdefault((setting, worker.handle.name), [])):
            while done < self.experiment.alone_repeats or self.device.now_ns() < until_ns:
                if self.stop.is_set():
                    break
                worker.top_up()
                worker.wait_one()
                done += 1
                now_ns = self.device.now_ns()
                if now_ns - told_ns > LOOK_NS:
                    told_ns = now_ns
                    self._tell(setting, self.round, phase)
            worker.finish()

    def _solo(self, setting: str) -> dict[str, dict[str, Any]]:
        """Median kernel time and rate of each workload alone: in its place, on the whole GPU."""
        solo = {}
        for name in self.experiment.workloads:
            here = _traces(self.alone.get((setting, name), []))
            times = _kernel_times(here)
            if not len(times):  # stopped before it ran
                continue
            whole = _traces(self.alone.get(("", name), []))
            whole_times = _kernel_times(whole)
            # The rate of arrivals at given times says nothing about what the GPU could do.
            paced = self.experiment.workloads[name].rate_hz is not None
            solo[name] = {
                "kernel_ns": _typical(here, times),
                "n": len(times),
                "whole_gpu_kernel_ns": float(np.median(whole_times)) if len(whole_times) else None,
                "whole_gpu_tflop_per_s": None if paced else _tflop_per_s(whole),
            }
        return solo


class _Performance(_Session):
    """A run that a tool outside records: nothing is recorded here, and nothing is run alone."""

    def _round(self, setting: ResolvedSetting, number: int) -> None:
        with annotate(setting.name):
            super()._round(setting, number)

    @contextlib.contextmanager
    def _recorded(self, kept: list[Recording]) -> Iterator[None]:
        del kept
        yield

    def _measure_alone(self, *_: Any) -> None:
        pass


def perform(
    experiment: Experiment | Mapping[str, Any] | str | Path,
    device: Device | str | None = None,
    *,
    stop: threading.Event | None = None,
) -> None:
    """Do an experiment's work and record nothing: for a tool that records from outside.

    Ranges name settings and rounds; workloads are not run alone.

    Parameters
    ----------
    experiment, device, stop
        As in :func:`run`.

    Raises
    ------
    InvalidExperiment, InvalidPartition, GpuscopeError
        As in :func:`run`.
    """
    described, target = _prepared(experiment, device, None, stop)
    performance = _Performance(described, target, None, stop or threading.Event())
    interrupted = False
    try:
        performance.perform()
    except KeyboardInterrupt:
        interrupted = True
    if interrupted:
        performance.settle()
        raise KeyboardInterrupt


def _prepared(
    experiment: Experiment | Mapping[str, Any] | str | Path,
    device: Device | str | None,
    viewer: Viewer | None,
    stop: threading.Event | None,
) -> tuple[Experiment, Device]:
    require_kind("device", device, Device, str, None)
    require_kind("viewer", viewer, Callable, None)
    require_kind("stop", stop, threading.Event, None)
    if isinstance(experiment, str | Path):
        experiment = Experiment.from_file(experiment)
    elif not isinstance(experiment, Experiment):
        experiment = Experiment.from_dict(experiment)
    return experiment, opened(device)


def opened(device: Device | str | None) -> Device:
    """Return a device: itself, or the one of that name; ``"auto"`` without one."""
    if isinstance(device, Device):
        return device
    return open_device("auto" if device is None else device)


class _Worker:
    """One workload being driven: what is queued, what is left, when the next is due."""

    def __init__(
        self,
        handle: Handle,
        stream: Stream,
        spec: WorkloadSpec,
        repeats: int,
        rng: random.Random,
        *,
        queued_ns: int = QUEUED_NS,
        waits_on: Sequence[Handle] = (),
        unguarded: Stream | None = None,
    ) -> None:
        self.handle = handle
        self.stream = stream
        self.background = spec.background
        self.limit = 1  # until it is known how long a call takes
        self.left = repeats
        self.finished = 0
        self.due_ns = 0
        self._spec = spec
        self._rng = rng
        self._queued_ns = queued_ns
        self._waits_on = waits_on
        self._unguarded = unguarded
        self._queue: deque[Completion] = deque()
        self._last_done_ns = 0
        self._pace_ns = 0

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def over(self) -> bool:
        return not self.left and not self._queue

    def begin(self, now_ns: int) -> None:
        self.due_ns = self._last_done_ns = now_ns

    def warm_up(self, clock: Callable[[], int], stop: threading.Event) -> None:
        """Run it, one call at a time so that Stop means soon, and learn how long a call takes."""
        for _ in range(self._spec.warmup):
            if stop.is_set():
                return
            began_ns = clock()
            self._launch()
            self.handle.wait()
            self._learn(clock() - began_ns)

    def _learn(self, pace_ns: int) -> None:
        """Queue as many calls as may be, for calls that take so long."""
        self._pace_ns = pace_ns
        self.limit = max(1, min(self._spec.max_queued, self._queued_ns // max(1, pace_ns)))

    def _launch(self) -> None:
        stream = self._unguarded or self.stream
        for other in self._waits_on:
            if (completion := other.completion) is not None:
                stream.wait(completion.event)
        if self._unguarded is not None:
            with self.handle.device.calls.meant_for(self.stream):
                self.handle.execute(stream=self._unguarded)
            return
        with CallerStreamGuard(self.stream):
            self.handle.execute()

    def issue(self) -> None:
        self._launch()
        completion = self.handle.completion
        assert completion is not None  # noqa: S101 - execute() made one
        self._queue.append(completion)
        rate = self._spec.rate_hz
        if rate is not None:
            poisson = self._spec.arrival == "poisson"
            self.due_ns += round(1e9 * (self._rng.expovariate(rate) if poisson else 1 / rate))

    def top_up(self) -> None:
        """Queue up to the limit."""
        while len(self._queue) < self.limit:
            self.issue()

    def runs_low(self, now_ns: int) -> bool:
        """Whether fewer than two of what was queued can still be running, by its pace."""
        return now_ns - self._last_done_ns > max(0, self.limit - 2) * self._pace_ns

    def due(self, now_ns: int) -> bool:
        return bool(self.left) and len(self._queue) < self.limit and now_ns >= self.due_ns

    def poll(self, clock: Callable[[], int]) -> None:
        """See what is done; learn from its pace how much may be queued."""
        before = self.finished
        while self._queue and self._queue[0].is_done:
            self._queue.popleft()
            self.finished += 1
        if self.finished > before:
            now_ns = clock()
            self._learn((now_ns - self._last_done_ns) // (self.finished - before))
            self._last_done_ns = now_ns

    def wait_one(self) -> None:
        self._queue.popleft().wait()

    def finish(self) -> None:
        while self._queue:
            self.wait_one()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python's garbage collector out of what is being timed."""
    was_on = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if was_on:
            gc.enable()


def _share(total: int, rounds: int, number: int) -> int:
    """Split ``total`` over rounds as evenly as whole numbers allow."""
    return total * (number + 1) // rounds - total * number // rounds


def _traces(recordings: Iterable[Recording]) -> list[Trace]:
    """Return the traces of those that recorded anything; they have ended."""
    traces = [recording.trace for recording in recordings if recording.has_begun]
    return [trace for trace in traces if len(trace)]


def _kernel_times(traces: list[Trace]) -> np.ndarray[Any, Any]:
    found = [_ended_kernels(trace) for trace in traces]
    times = [one.array("end_ns") - one.array("start_ns") for one in found]
    return np.concatenate([np.zeros(0, np.int64), *times])


def _ended_kernels(trace: Trace) -> Trace:
    """Leave out what still ran when the recording was stopped without waiting."""
    kernels = trace.where(kind="kernel").spans
    return Trace(kernels.filter(kernels.column("end_ns").is_valid()), trace.edges, trace.metadata)


def _typical(traces: list[Trace], times: np.ndarray[Any, Any]) -> float:
    """Return the median kernel time; the mean of a workload that launches different kernels."""
    names = {name for trace in traces for name in trace.where(kind="kernel").texts("name")}
    return float(np.median(times) if len(names) == 1 else np.mean(times))


def _tflop_per_s(traces: list[Trace]) -> float | None:
    """Operations over first start to last end, summed over traces."""
    flops = span_ns = 0.0
    for trace in traces:
        found = _ended_kernels(trace)
        if not len(found):
            continue
        flops += float(found.array("flop_count", fill=0).sum())
        span_ns += float(found.array("end_ns").max() - found.array("start_ns").min())
    return flops / span_ns / 1e3 if flops and span_ns else None
