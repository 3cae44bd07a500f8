"""The simulated device: partitions, streams, events, graphs and kernels."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, cast

import numpy as np

from gpuscope._types import Array
from gpuscope.device.api import Kernel, KernelArgs, KernelCost, KernelModel, launch_config
from gpuscope.device.carve import REMAINDER, PlannedPartition, sm_count_to_tell
from gpuscope.device.dtypes import DTYPES
from gpuscope.device.matmul import MatmulPlan
from gpuscope.device.raw import GrantedPartition
from gpuscope.device.views import EventView, GraphView, StreamKind, StreamView
from gpuscope.errors import CapabilityError, InvalidOperand, StreamError
from gpuscope.simulator.engine.allocation import SimMemory, computed
from gpuscope.simulator.engine.capture import Capture, refusal
from gpuscope.simulator.engine.host import Pace
from gpuscope.simulator.engine.memory import SimArray, Write
from gpuscope.simulator.engine.ops import (
    GraphOp,
    HostOp,
    RecordOp,
    SimEvent,
    SimGraph,
    SimStream,
    StreamWait,
)
from gpuscope.simulator.engine.together import Latest, Together
from gpuscope.simulator.models.assumed import GRAPH_LAUNCH_CALL_NS, HOST_FUNCTION_NS

_handles = itertools.count(0x1000, 0x10)  # no two simulated GPUs of a process share one
_LEGACY, _PER_THREAD = 1, 2  # cudaStreamLegacy and cudaStreamPerThread; 0 is the legacy one too


class SimPartition(NamedTuple):
    """A partition: a bit mask of SMs, and the number of its context."""

    sms: int
    context: int


class SimBackend(SimMemory):
    """A GPU that exists in memory only.

    Parameters
    ----------
    profile
        Name of the GPU profile, or path of its file.
    pace
        ``"none"``: a wait ends at once. ``"real"``: the virtual clock never runs ahead of
        the wall clock, so that live views and Stop mean something.
    """

    def __init__(self, profile: str = "h200", *, pace: Pace = "none", jitter: bool = False) -> None:
        super().__init__(profile, pace=pace, jitter=jitter)
        self._latest: Latest = {}

    # -- partitions -------------------------------------------------------------------
    def make_partitions(self, planned: Sequence[PlannedPartition]) -> list[GrantedPartition]:
        """Make partitions; their SM ids are those of the virtual SMs."""
        with self._lock:
            granted = []
            for partition in planned:
                self._pay(self._cost["create_partition_call_ns"])
                mask, context = self.layout.sm_mask(partition.parts), next(self._contexts)
                ids = tuple(sm for sm in range(self.layout.sm_count) if mask >> sm & 1)
                outside = self.layout.remainder_sm_count * (REMAINDER in partition.parts)
                target = sm_count_to_tell(len(ids), len(ids) - outside)
                raw = SimPartition(mask, context)
                granted.append(GrantedPartition(raw, len(ids), ids, context, target))
            return granted

    # -- streams ----------------------------------------------------------------------
    def make_stream(
        self, partition: object, priority: int, *, blocking: bool = False
    ) -> tuple[SimStream, int]:
        """Make a stream on a partition's SMs, or on all."""
        with self._lock:
            self._pay(self._cost["create_stream_call_ns"])
            handle = next(_handles)
            sms, context = cast("SimPartition | None", partition) or (self._all_sms, None)
            stream = SimStream(handle, sms, priority, context=context, blocking=blocking)
            self._streams[handle] = stream
            if blocking:
                self.engine.blocking[stream] = None
            return stream, handle

    def borrow_stream(self, handle: int) -> SimStream:
        """Find a simulated stream by its handle, or by CUDA's numbers of the default ones."""
        if handle in (0, _LEGACY):
            return self.engine.legacy
        if handle == _PER_THREAD:
            return self.default_stream()[0]
        stream = self._streams.get(handle) or self._defaults.get(handle)
        if stream is None:
            raise StreamError(
                f"{handle:#x} is no stream of this simulated GPU: make one with create_stream()"
            )
        return stream

    def stream_kind(self, raw: SimStream) -> StreamKind:
        """Return it; each thread's default stream is one of its own here."""
        if raw is self.engine.legacy:
            return "legacy default"
        return "blocking" if raw.blocking else "non-blocking"

    def default_stream(self) -> tuple[SimStream, int]:
        """Return this thread's default stream, which the legacy one's barrier holds.

        It goes with the thread, or later with the last work in it.
        """
        with self._lock:
            if not hasattr(self._of_thread, "stream"):
                stream = SimStream(next(_handles), self._all_sms, 0, blocking=True)
                self._defaults[stream.handle] = self._of_thread.stream = stream
                self.engine.blocking[stream] = None
            stream = self._of_thread.stream
            return stream, stream.handle

    def close_stream(self, raw: SimStream, handle: int) -> None:
        """Forget a stream."""
        with self._lock:
            self.engine.blocking.pop(raw, None)
            self._streams.pop(handle, None)
            for key in [key for key in self._scratch if key[0] == handle]:
                self._reserved -= sum(memory.nbytes for memory in self._scratch.pop(key))

    def sync_stream(self, raw: SimStream) -> None:
        """Advance the virtual host to the end of the stream's work.

        For the legacy default stream, also to that of every stream that knows its barrier.
        """
        with self._lock:
            self._require_uncaptured(raw, "waiting for a stream failed")
            *earlier, last = self.awaited(raw)
            for op in filter(None, earlier):
                self._wait_for(op)
            self._wait_for(last)

    def stream_done(self, raw: SimStream) -> bool:
        """Whether the stream's work is done by now."""
        with self._lock:
            self._require_uncaptured(raw, "the stream cannot be asked")
            self._pay(self._cost["query_call_ns"])
            return not raw.depth and self._sees_unfailed(raw.last)

    def _require_uncaptured(self, stream: SimStream, what: str) -> None:
        if stream is self.engine.legacy:
            self._require_no_blocking_capture()
        if stream.capture is not None:
            raise stream.capture.refuse(what)

    def synchronize(self) -> None:
        """Advance the virtual host to the end of all work."""
        with self._lock:
            self._wait_for_all()
            for failure in self.engine.failures:
                failure.tell()

    # -- events -----------------------------------------------------------------------
    def make_event(self, *, timing: bool) -> SimEvent:
        """Make an event."""
        return SimEvent()

    def record(self, event: SimEvent, stream: SimStream, correlation: int) -> None:
        """Queue an event's record, or note its place in a capture."""
        with self._lock:
            if stream.capture is not None:
                self._pay(self._cost["event_record_call_ns"])
                stream.capture.record(event, stream)
                return
            record = RecordOp(stream, 0, correlation)
            self._queue(record, self._cost["event_record_call_ns"])
            event.record, event.captured = record, None

    def wait(self, stream: SimStream, event: SimEvent) -> None:
        """Queue a wait for the record that is the latest now; none is a no-op."""
        with self._lock:
            cost_ns = self._cost["stream_wait_call_ns"]
            if event.captured is not None:
                self._pay(cost_ns)
                capture, tail = event.captured
                capture.join(stream, tail)
            elif event.record is None:
                self._pay(cost_ns)
            elif stream.capture is not None:
                raise stream.capture.refuse("the stream cannot wait", "StreamCaptureIsolation")
            else:
                record = event.record
                self._queue(StreamWait(stream, 0, record.correlation, record), cost_ns)

    def sync_event(self, event: SimEvent) -> None:
        """Advance the virtual host to the event's latest record."""
        with self._lock:
            self._require_not_captured(event, "waiting for an event failed")
            self._wait_for(event.record)

    def event_done(self, event: SimEvent) -> bool:
        """Whether the latest record is done by now."""
        with self._lock:
            self._require_not_captured(event, "the event cannot be asked")
            self._pay(self._cost["query_call_ns"])
            return self._sees_unfailed(event.record)

    def _require_not_captured(self, event: SimEvent, what: str) -> None:
        if event.captured is not None:
            event.captured[0].invalidate()
            raise refusal(what, "CapturedEvent")

    def elapsed_ns(self, start: SimEvent, end: SimEvent) -> int:
        """Virtual ns between two records; to be refused takes time."""
        times_ns: list[int] = []
        with self._lock:
            for event in (start, end):
                self._require_not_captured(event, "the time between two events cannot be read")
                record = event.record
                if record is not None and record.done_ns is None:
                    self._pay(self._cost["query_call_ns"])
                if record is None or record.done_ns is None:
                    raise StreamError(
                        "elapsed_ns needs two events that are recorded and done: synchronize first"
                    )
                times_ns.append(record.done_ns)
            return times_ns[1] - times_ns[0]

    # -- graphs -----------------------------------------------------------------------
    def begin_capture(self, stream: StreamView[SimStream]) -> None:
        """Let what is queued on ``stream`` from now on become a graph."""
        with self._lock:
            raw = stream.raw
            if raw is self.engine.legacy or raw.capture is not None:
                raise refusal("the stream cannot be captured", "StreamCaptureUnsupported")
            capture = Capture(raw, self.process_and_thread()[1])
            self._captures = [*(other for other in self._captures if other.is_on), capture]
            raw.capture = capture

    def end_capture(self, stream: StreamView[SimStream]) -> SimGraph:
        """End it; returns the graph."""
        with self._lock:
            capture = stream.raw.capture
            if capture is None:
                raise refusal("the capture failed", "IllegalState")
            return capture.end(stream.raw)

    def launch_graph(self, graph: object, stream: SimStream, correlation: int) -> None:
        """Queue a graph: it follows its own launch before, wherever that was."""
        with self._lock:
            if stream.capture is not None:
                raise stream.capture.refuse("the graph cannot be launched")
            op = GraphOp(stream, 0, correlation, cast("SimGraph", graph))
            self._queue(op, GRAPH_LAUNCH_CALL_NS)

    def graph_is_empty(self, graph: object) -> bool:
        """Whether nothing was captured."""
        return not cast("SimGraph", graph).nodes

    def close_graph(self, graph: object) -> None:
        """Wait for its latest launch."""
        last = cast("SimGraph", graph).last
        if last is not None:
            self._wait_for_mark((last,))

    # -- kernels and host functions -----------------------------------------------------
    def compile(self, source: str, name: str, model: KernelModel | None) -> Kernel:
        """Take the kernel's model; its source is not looked at."""
        if model is None:
            raise CapabilityError(
                f"kernel {name!r} cannot run here: {self.capabilities.reasons['compile_source']} "
                "(compile(…, model=KernelModel(…))), or open a CUDA device"
            )
        return Kernel(name, None, model)

    def launch(
        self,
        stream: SimStream,
        kernel: Kernel,
        grid: int,
        block: int,
        args: KernelArgs,
        correlation: int,
    ) -> None:
        """Queue what the kernel's model says it does."""
        model = kernel.model
        if model is None:
            raise CapabilityError(f"kernel {kernel.name!r} has no model to simulate it by")
        for arg in args:
            if type(arg) is SimArray and arg.owner is not self:
                raise InvalidOperand(
                    f"an array given to kernel {kernel.name!r} is on another device: copy it to "
                    f"{self.info.key} first"
                )
        with self._lock:
            cost = model.cost(self.profile, grid, args, stream.sms.bit_count())
            target = cast("SimArray | None", model.writes(args))
            effect = together = None
            if target is not None and model.compute is not None and model.joint is not None:
                joint = model.joint(args)
                assert joint.ranks.meeting is not None  # noqa: S101 - who makes such a model looks
                (source,) = cast("Sequence[SimArray]", model.reads(args))
                arrays, how = (target.bare, source.bare), (model.compute, cost.block_ns)
                together = Together(joint, joint.ranks.meeting, *arrays, *how, self._latest)
            elif target is not None and model.compute is not None:
                sources = cast("Sequence[SimArray | Array]", model.reads(args))
                effect = computed(target, sources, model.compute)
            work = correlation, kernel.name, effect, cost
            config = model.launch_config
            config = launch_config(grid, block) if config is None else config
            self._queue_kernel(stream, *work, "launch", together, config)

    def matmul(
        self,
        stream: StreamView[SimStream],
        plan: MatmulPlan,
        operands: object,
        sm_count: int,
        correlation: int,
        event: EventView[SimEvent] | None = None,
    ) -> None:
        """Queue a GEMM; its value is computed in float32 (float64 for float64) when read."""
        out, a, b = cast("tuple[SimArray, SimArray, SimArray]", operands)
        with self._lock:
            raw = stream.raw
            sms = raw.sms.bit_count()
            if plan.k:
                cost = self.profile.gemm_cost(plan.m, plan.n, plan.k, plan.dtype, sms, sm_count)
            else:  # the sum of nothing: the result is cleared
                cost = KernelCost(1, self.profile.transfer_ns("memset", out.nbytes))
            effect = Write(out, (a, b), _PRODUCTS[plan.dtype])
            self._queue_kernel(raw, correlation, plan.name, effect, cost, "gemm")
        if event is not None:
            self.record(event.raw, raw, 0)

    def rearrange(
        self, stream: StreamView[SimStream], into: SimArray, array: SimArray, correlation: int
    ) -> None:
        """Queue a copy into C order."""
        with self._lock:
            cost = self.profile.copy_cost(array.nbytes, stream.raw.sms.bit_count())
            effect = Write(into, (array,), lambda values: values)
            self._queue_kernel(stream.raw, correlation, "rearrange", effect, cost, "")

    def host_call(
        self,
        stream: SimStream,
        function: Callable[[], None],
        correlation: int,
        graph: GraphView | None,
    ) -> None:
        """Queue a host function; it runs at its place in the stream's virtual time."""
        name = getattr(function, "__name__", "host function")
        with self._lock:
            op = HostOp(stream, 0, correlation, name, function, HOST_FUNCTION_NS)
            self._queue(op, self._cost["launch_call_ns"])


def _product(accumulator: str, left: Array, right: Array) -> Array:
    """Multiply matrices; who writes the product rounds it."""
    return np.asarray(left.astype(accumulator) @ right.astype(accumulator))


_PRODUCTS = {name: partial(_product, dtype.accumulator) for name, dtype in DTYPES.items()}
