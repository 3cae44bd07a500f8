"""Work that was recorded: its kernels' times elsewhere, and a handle that launches them again."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeAlias

from gpuscope._checks import door
from gpuscope.device.api import KernelModel
from gpuscope.device.caller import get_caller_stream
from gpuscope.device.device import Device
from gpuscope.device.handles import AnyStream
from gpuscope.device.partition import Partition
from gpuscope.device.stream import Stream
from gpuscope.errors import CapabilityError, InvalidArgument, MissingEvidence
from gpuscope.simulator.models.kernel_model import RecordedKernel
from gpuscope.simulator.models.known import Known, known_of
from gpuscope.simulator.models.launch import Launch
from gpuscope.simulator.profiles.profile import GpuProfile
from gpuscope.trace.columns import is_open
from gpuscope.trace.model import Trace
from gpuscope.workloads.context import Passed
from gpuscope.workloads.handle import Handle

Row: TypeAlias = Mapping[str, Any]
"""One row of a trace."""

WORK = ("kernel", "memcpy", "memset", "graph")
"""Kinds of rows that a GPU works at."""

_COLUMNS = (
    "id",
    "kind",
    "name",
    "start_ns",
    "end_ns",
    "process",
    "thread",
    "stream",
    "partition",
    "correlation",
    "device",
    "graph",
    "nbytes",
    "flop_count",
    "copy_kind",
    "launch_config",
    "category",
    "parent",
    "end_thread",
)


def finished_rows(trace: Trace) -> list[Row]:
    """Return the rows whose end is known in the order of their starts, as far as replays read."""
    table = trace.spans.select(_COLUMNS).filter(~is_open(trace))
    return sorted(table.to_pylist(), key=lambda row: (row["start_ns"], row["id"]))


def check_gpu(trace: Trace, profile: GpuProfile) -> None:
    """Refuse a trace of another GPU than a profile's.

    Raises
    ------
    InvalidArgument
        Their SM counts differ.
    """
    for facts in trace.metadata.devices.values():
        if facts.sm_count not in (None, profile.layout.sm_count):
            raise InvalidArgument(
                f"the trace was recorded on {facts.name or 'a GPU'} with {facts.sm_count} SMs, the "
                f"profile {profile.key!r} has {profile.layout.sm_count}: use the profile of that "
                "GPU, which gpuscope calibrate makes"
            )


class Recorded:
    """What is known of a recording's kernels.

    Parameters
    ----------
    second
        The same work recorded on fewer SMs, if at all: at least one round of what repeats.
    sm_counts
        SMs of partitions whose size the traces do not hold.
    """

    def __init__(
        self,
        trace: Trace,
        profile: GpuProfile,
        second: Trace | None = None,
        sm_counts: Mapping[str, int] | None = None,
    ) -> None:
        check_gpu(trace, profile)
        self.trace = trace
        self.profile = profile
        self._sm_counts = sm_counts or {}
        self._known_of_row = _known(trace)
        self._few: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
        self._taken: Counter[Hashable] = Counter()
        if second is None:
            return
        known_of_row = _known(second)
        for row in finished_rows(second):
            if row["kind"] == "kernel":
                took_ns = max(1, row["end_ns"] - row["start_ns"])
                self._few[_alike(row, known_of_row(row))].append((self._sms(second, row), took_ns))

    def sm_count(self, row: Row) -> int:
        """Return how many SMs a row's partition has, or the GPU."""
        return self._sms(self.trace, row)

    def _sms(self, trace: Trace, row: Row) -> int:
        name = row["partition"]
        sm_count = self._sm_counts.get(name) or trace.metadata.partition(name).sm_count
        return int(sm_count or self.profile.layout.sm_count)

    def kernel(self, row: Row, alone_ns: float) -> RecordedKernel:
        """Return a kernel's time on any number of SMs, given that alone where it was recorded.

        To be called in the order of the starts: the n-th kernel of a name and a launch
        configuration, or of what it is known to compute, is the n-th such kernel of the second
        recording, which may be shorter.
        """
        sm_count, traits = self.sm_count(row), self._known_of_row(row)
        key = _alike(row, traits)
        times_ns = {sm_count: max(1.0, alone_ns)}
        second_times = self._few.get(key)
        if second_times:
            count, took_ns = second_times[self._taken[key] % len(second_times)]
            self._taken[key] += 1
            if count < sm_count:
                times_ns[count] = took_ns
        launch = Launch.parse(row["launch_config"])
        return RecordedKernel(row["name"], launch, times_ns, self.profile, traits)


def _alike(row: Row, traits: Known | None) -> Hashable:
    """Return what kernels of the same work share: a known one's grid hangs on its SMs."""
    return (traits,) if traits is not None else (row["name"], row["launch_config"])


def _known(trace: Trace) -> Callable[[Row], Known | None]:
    """Return what says of a kernel's row what it computes."""
    calls = trace.where(kind=("api", "handle")).spans
    rows = calls.select(("id", "name", "parent", "payload")).to_pylist()
    of_row = {row["id"]: row for row in rows}
    launched_by = {
        edge["to"]: of_row[edge["from"]]
        for edge in trace.edges.to_pylist()
        if edge["kind"] == "launch" and edge["from"] in of_row
    }

    def known(row: Row) -> Known | None:
        call = launched_by.get(row["id"], {})
        target = _target(of_row.get(call.get("parent"), {}).get("payload"))
        launch = Launch.parse(row["launch_config"])
        blocks, stated = launch.blocks if launch else 0, (row["nbytes"], row["flop_count"])
        return known_of(row["name"], call.get("name") or "", blocks, *stated, target)

    return known


def _target(payload: str | None) -> int | None:
    """Return the SM count that a product's handle tells the library; 0 for none."""
    try:
        target = json.loads(payload or "null")["sm_count_target"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return target if type(target) is int and target > 0 else 0


class RecordedWork(Handle):
    """Launch a trace's kernels one after the other, on a simulated GPU.

    Parameters
    ----------
    owner
        The device, or a partition that closes the handle with itself.
    trace
        The recording. Its kernels run in the order of their starts, with the gaps that were
        between them, all in one stream.
    second
        The same work recorded on fewer SMs.
    of_stream
        Name or number of a stream: only its kernels.
    graph
        Launch all of them at once, as a captured step is launched.
    name, max_in_flight
        As for other handles.

    Raises
    ------
    CapabilityError
        The device is not simulated: a recording holds no code.
    MissingEvidence
        There is no finished kernel in it.
    InvalidArgument
        It was recorded on another GPU.

    Examples
    --------
    >>> import gpuscope as gs
    >>> from gpuscope.simulator.recorded import RecordedWork
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> with gpu.create_stream() as stream:
    ...     with gs.profile(gpu) as recording:
    ...         _ = gs.Gemm(gpu, m=512, n=512, k=512).execute(stream=stream)
    ...     with gs.profile(gpu) as again:
    ...         RecordedWork(gpu, recording.trace).execute(stream=stream)
    >>> again.trace.where(kind="kernel").texts("name")
    ['gemm_float16_512x512x512']
    """

    @door("trace", "second", "of_stream", "graph")
    def __init__(
        self,
        owner: Device | Partition,
        trace: Trace,
        *,
        second: Trace | None = None,
        of_stream: str | None = None,
        graph: bool = False,
        name: str = "recorded work",
        max_in_flight: int = 1,
    ) -> None:
        super().__init__(owner, name=name, max_in_flight=max_in_flight)
        if self.device.info.kind != "sim":
            raise CapabilityError(
                f"{self.device.info.key} cannot run a recording, which holds no code: open a "
                "simulated GPU, such as sim:h200"
            )
        profile = GpuProfile.load(self.device.info.key.removeprefix("sim:"))
        recorded = Recorded(trace, profile, second)
        rows = [
            row
            for row in finished_rows(trace)
            if row["kind"] == "kernel"
            and of_stream in (None, str(row["stream"]), trace.stream_name(row["stream"]))
        ]
        if not rows:
            where = "" if of_stream is None else f" in stream {of_stream!r}"
            raise MissingEvidence(f"the trace holds no finished kernel{where}: there is no work")
        self._kernels = []
        end_ns: int | None = None
        for row in rows:
            kernel = recorded.kernel(row, row["end_ns"] - row["start_ns"])
            gap_ns: int | None = None if end_ns is None else max(0, row["start_ns"] - end_ns)
            end_ns = max(end_ns or 0, row["end_ns"])
            model = _model_of(kernel, gap_ns, row["launch_config"])
            facts = {"flop_count": row["flop_count"], "nbytes": row["nbytes"]}
            self._kernels.append((self.device.compile("", row["name"], model=model), facts))
        if graph:
            self.use_graph()

    def execute(self, *, stream: AnyStream = None) -> None:
        """Queue one call; as a graph it takes its stream from a guard, too.

        In another partition it captures anew.
        """
        self._execute(get_caller_stream() if stream is None else stream)

    def _launch(self, stream: Stream, operands: Passed) -> None:
        del operands
        for kernel, facts in self._kernels:
            stream.launch(kernel, grid=1, block=1, **facts)


def _model_of(kernel: RecordedKernel, gap_ns: int | None, launch_config: str | None) -> KernelModel:
    """Return a kernel's model: its time elsewhere."""
    return KernelModel(
        lambda _profile, _grid, _args, sm_count: kernel.cost(sm_count, gap_ns=gap_ns),
        launch_config=launch_config or "",
    )
