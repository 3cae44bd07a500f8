"""The simulated device: a virtual host clock in front of the engine."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import numpy as np

from gpuscope.device.api import (
    Activity,
    Capabilities,
    DeviceInfo,
    GrantedPartition,
    Kernel,
    KernelModel,
    MatmulPlan,
    Memory,
    Places,
    Shape,
)
from gpuscope.device.carve import REMAINDER, CarvePlan, PlannedPartition
from gpuscope.device.sim.engine import (
    CopyOp,
    Engine,
    HostOp,
    KernelOp,
    Op,
    Record,
    SimEvent,
    SimStream,
    Wait,
)
from gpuscope.device.sim.memory import Buffer, SimArray, Version, c_steps, write_effect
from gpuscope.device.sim.profile import Profile
from gpuscope.device.stream import Stream
from gpuscope.errors import CapabilityError, StreamError

EPOCH_NS = 1_600_000_000_000_000_000
"""Where every virtual clock starts: fixed, so that a trace is the same byte for byte."""

Pace = Literal["none", "real"]
_PACE_SLACK_NS = 2_000_000


class SimBackend:
    """A GPU that exists in memory only.

    Parameters
    ----------
    profile
        Name of the GPU profile.
    pace
        ``"none"``: a wait ends at once. ``"real"``: the virtual clock never runs ahead of
        the wall clock, so that live views and Stop mean something.
    """

    def __init__(self, profile: str = "h200", *, pace: Pace = "none") -> None:
        self.profile = Profile.load(profile)
        self.layout = self.profile.layout
        self.array_type: type = SimArray
        self._all_sms = (1 << self.layout.sm_count) - 1
        constants = self.profile.constants
        self._cost = constants
        self.engine = Engine(
            self._all_sms,
            launch_latency_ns=constants["launch_latency_ns"],
            kernel_gap_ns=constants["kernel_gap_ns"],
        )
        self.engine.now_ns = self._host_ns = EPOCH_NS
        self._pace = pace
        self._started_wall_ns = time.monotonic_ns()
        self._lock = threading.RLock()
        self._handles = itertools.count(0x1000, 0x10)
        self._contexts = itertools.count(2)
        self._streams: dict[int, SimStream] = {}
        self._threads: dict[int, int] = {}
        self._scratch: dict[tuple[int, int], list[Memory]] = {}
        self._reserved = 0
        self._defaults: dict[int, SimStream] = {}
        self.info = DeviceInfo(
            key=f"sim:{profile}",
            kind="sim",
            index=0,
            name=f"{self.profile.device_name} (simulated)",
            uuid=f"SIM-{profile}",
            sm_count=self.layout.sm_count,
            compute_capability=self.profile.compute_capability,
            memory_bytes=self.profile.memory_bytes,
            driver=f"simulated from measurements with driver {self.profile.measured['driver']}",
        )
        self.capabilities = Capabilities(
            streams=True,
            partitions=True,
            partition_path="simulated",
            arbitrary_split=False,
            stream_ordered_memory=True,
            compile_source=False,
            graphs=False,
            reasons={
                "arbitrary_split": "the simulated driver splits as 12.4 to 13.0 do; 13.1 or newer "
                "would be required",
                "graphs": "the simulated GPU has no graphs yet: open a CUDA device",
                "compile_source": "a simulated GPU runs no CUDA source: give the kernel a model",
            },
        )

    # -- clock ------------------------------------------------------------------------
    def now_ns(self) -> int:
        """Return the virtual host clock."""
        return self._host_ns

    def wait_until_ns(self, time_ns: int) -> None:
        """Let the virtual host sleep."""
        with self._lock:
            self._advance(max(self._host_ns, time_ns))

    def _advance(self, time_ns: int) -> None:
        self._host_ns = time_ns
        self.engine.run_until(time_ns)
        if self._pace == "real":
            ahead = (time_ns - EPOCH_NS) - (time.monotonic_ns() - self._started_wall_ns)
            if ahead > _PACE_SLACK_NS:
                time.sleep(ahead / 1e9)
            elif ahead < -_PACE_SLACK_NS:  # it idled: what comes now is paced again
                self._started_wall_ns -= ahead

    def _pay(self, cost: str) -> None:
        self._advance(self._host_ns + self._cost[cost])

    def _returned(self, done_ns: int) -> None:
        """Let the host return from a wait for something that was done at ``done_ns``."""
        visible = done_ns + self._cost["synchronize_return_ns"]
        self._advance(max(self._host_ns + self._cost["query_call_ns"], visible))

    def process_and_thread(self) -> tuple[int, int]:
        """Return logical ids: process 1, threads in order of their first call."""
        thread = threading.get_ident()
        return 1, self._threads.setdefault(thread, len(self._threads) + 1)

    def health(self) -> dict[str, Any]:
        """Return nothing: a simulated GPU neither heats nor throttles."""
        return {}

    def set_activity_sink(self, sink: Callable[[Activity], None] | None) -> None:
        """Report finished work to ``sink``."""
        self.engine.sink = sink

    # -- partitions -------------------------------------------------------------------
    def check_plan(self, plan: CarvePlan) -> None:
        """Grant every plan that adds up: there is no driver to ask."""

    def _mask(self, parts: Sequence[int]) -> int:
        mask = 0
        width = self.layout.quantum_sm_count
        for part in parts:
            if part == REMAINDER:
                mask |= ((1 << self.layout.remainder_sm_count) - 1) << (self.layout.quanta * width)
            else:
                mask |= ((1 << width) - 1) << (part * width)
        return mask

    def make_partitions(self, planned: Sequence[PlannedPartition]) -> list[GrantedPartition]:
        """Make partitions; their SM ids are those of the virtual SMs."""
        with self._lock:
            made = []
            for partition in planned:
                self._pay("create_partition_call_ns")
                mask = self._mask(partition.parts)
                ids = tuple(sm for sm in range(self.layout.sm_count) if mask >> sm & 1)
                count = len(ids)
                if REMAINDER in partition.parts and len(partition.parts) > 1:
                    count -= self.layout.remainder_sm_count  # clusters do not fit there
                made.append(GrantedPartition(mask, len(ids), ids, next(self._contexts), count))
            return made

    def context_handle(self, partition: Any) -> int:
        """Return 0: no driver knows of contexts here."""
        del partition
        return 0

    def close_partition(self, raw: Any) -> None:
        """Do nothing: a mask needs no closing."""

    # -- streams ----------------------------------------------------------------------
    def make_stream(self, partition: Any, priority: int) -> tuple[SimStream, int]:
        """Make a stream on a partition's SMs, or on all."""
        with self._lock:
            self._pay("create_stream_call_ns")
            handle = next(self._handles)
            stream = SimStream(handle, self._all_sms if partition is None else partition, priority)
            self._streams[handle] = stream
            return stream, handle

    def borrow_stream(self, handle: int) -> SimStream:
        """Find a simulated stream by its handle."""
        stream = self._streams.get(handle)
        if stream is None:
            raise StreamError(
                f"{handle:#x} is no stream of this simulated GPU: make one with create_stream()"
            )
        return stream

    def default_stream(self) -> tuple[SimStream, int]:
        """Return the per-thread default stream."""
        with self._lock:
            thread = self.process_and_thread()[1]
            stream = self._defaults.get(thread)
            if stream is None:
                stream = SimStream(next(self._handles), self._all_sms, 0)
                self._defaults[thread] = self._streams[stream.handle] = stream
            return stream, stream.handle

    def close_stream(self, raw: SimStream, handle: int) -> None:
        """Forget a stream."""
        del raw
        self._streams.pop(handle, None)
        for key in [key for key in self._scratch if key[0] == handle]:
            self._reserved -= sum(memory.nbytes for memory in self._scratch.pop(key))

    def sync_stream(self, raw: SimStream) -> None:
        """Advance the virtual host to the end of the stream's work."""
        with self._lock:
            self._returned(self.engine.run_until_done(raw.last))

    def stream_done(self, raw: SimStream) -> bool:
        """Whether the stream's work is done by now."""
        with self._lock:
            self._pay("query_call_ns")
            return raw.last is None or raw.last.done_ns is not None

    def synchronize(self) -> None:
        """Advance the virtual host to the end of all work."""
        with self._lock:
            self._returned(self.engine.run_all())
            stuck = [stream for stream in self._streams.values() if stream.queue]
            if stuck:
                raise StreamError(
                    f"{len(stuck)} streams wait for work that is not queued: they can never finish"
                )

    def close(self) -> None:
        """Do nothing: nothing is kept."""

    def current(self) -> AbstractContextManager[None]:
        """Do nothing: no library has a current simulated device."""
        return contextlib.nullcontext()

    # -- events -----------------------------------------------------------------------
    def make_event(self, *, timing: bool) -> SimEvent:  # noqa: ARG002 - free of cost here
        """Make an event."""
        return SimEvent()

    def record(self, event: SimEvent, stream: SimStream, correlation: int) -> None:
        """Queue an event's record."""
        with self._lock:
            self._pay("event_record_call_ns")
            event.record = Record(stream, self._host_ns, correlation, event)
            self.engine.submit(event.record)

    def wait(self, stream: SimStream, event: SimEvent) -> None:
        """Queue a wait for the record that is the latest now; none is a no-op."""
        with self._lock:
            self._pay("stream_wait_call_ns")
            if event.record is not None:
                correlation = event.record.correlation
                self.engine.submit(Wait(stream, self._host_ns, correlation, event.record))

    def sync_event(self, event: SimEvent) -> None:
        """Advance the virtual host to the event's latest record."""
        with self._lock:
            self._returned(self.engine.run_until_done(event.record))

    def event_done(self, event: SimEvent) -> bool:
        """Whether the latest record is done by now."""
        with self._lock:
            self._pay("query_call_ns")
            return event.record is None or event.record.done_ns is not None

    def elapsed_ns(self, start: SimEvent, end: SimEvent) -> int:
        """Virtual ns between two records."""
        with self._lock:
            for event in (start, end):
                if event.record is None or event.record.done_ns is None:
                    raise StreamError(
                        "elapsed_ns needs two events that are recorded and done: synchronize first"
                    )
            return _done_ns(end) - _done_ns(start)

    def close_event(self, raw: SimEvent) -> None:
        """Do nothing: memory is freed with the object."""

    # -- memory -----------------------------------------------------------------------
    def empty(self, shape: Shape, dtype: np.dtype[Any]) -> SimArray:
        """Return an array of unspecified values (they are zeros here)."""
        size = int(np.prod(shape, dtype=np.int64))
        buffer = Buffer(size, dtype, Version(lambda: np.zeros(size, dtype)))
        return SimArray(self, buffer, shape, c_steps(shape))

    def asarray(self, values: np.ndarray[Any, Any]) -> SimArray:
        """Copy host values; the values are copied now."""
        kept = values.copy().reshape(-1)
        buffer = Buffer(kept.size, kept.dtype, Version(lambda: kept))
        with self._lock:
            self._advance(self._host_ns + self._transfer_ns(kept.nbytes))
        return SimArray(self, buffer, values.shape, c_steps(values.shape))

    def fill_random(self, array: SimArray, seed: int) -> None:
        """Give the array a version that draws its values when read."""
        size, dtype = array.size, array.dtype

        def draw() -> np.ndarray[Any, Any]:
            values = np.random.default_rng(seed).random(size, dtype=np.float32)
            return array.flat((values - np.float32(0.5)).astype(dtype))

        array.buffer.version = Version(draw)

    def to_host(self, array: SimArray) -> np.ndarray[Any, Any]:
        """Compute and return an array's values as of now."""
        with self._lock:
            self._advance(self._host_ns + self._transfer_ns(array.nbytes))
            return array.view_of(array.buffer.version.value()).copy()

    def allocate(self, nbytes: int, stream: Stream | None) -> Memory:
        """Take bytes; memory given back on a stream is taken again by that stream first."""
        with self._lock:
            if stream is None:
                self.synchronize()
                kept = None
            else:
                kept = self._scratch.get((stream.handle, nbytes))
            if kept:
                return kept.pop()
            self._reserved += nbytes
            array = self.empty((nbytes,), np.dtype(np.uint8))
            return Memory(array, None, nbytes)

    def free(self, memory: Memory, stream: Stream | None) -> None:
        """Give bytes back; without a stream the device finishes first."""
        with self._lock:
            if stream is None:
                self.synchronize()
                self._reserved -= memory.nbytes
            else:
                self._scratch.setdefault((stream.handle, memory.nbytes), []).append(memory)

    def reserved_bytes(self) -> int:
        """Return what is taken, or kept for its stream."""
        return self._reserved

    def begin_capture(self, stream: Stream) -> None:
        """Refuse: no graphs here."""
        del stream
        self.capabilities.require("graphs", feature="capturing a stream")

    def end_capture(self, stream: Stream) -> Any:
        """Refuse: no graphs here."""
        del stream
        self.capabilities.require("graphs", feature="capturing a stream")

    def launch_graph(self, graph: Any, stream: Any, correlation: int) -> None:
        """Refuse: no graphs here."""
        del graph, stream, correlation
        self.capabilities.require("graphs", feature="launching a graph")

    def close_graph(self, graph: Any) -> None:
        """Do nothing: there is none."""

    def _transfer_ns(self, nbytes: int) -> int:
        return nbytes * 1000 // self._cost["pinned_copy_bytes_per_us"]

    def copy(self, stream: SimStream, destination: Any, source: Any, correlation: int) -> None:
        """Queue a copy; the engine of its direction carries it."""
        with self._lock:
            self._pay("launch_call_ns")
            queued = self._host_ns
            if isinstance(destination, SimArray) and isinstance(source, SimArray):
                rate = self._cost["device_copy_bytes_per_us"]
                duration = 2 * source.nbytes * 1000 // rate
                effect = write_effect(destination, [source], lambda values: values)
                engine = "device"
            elif isinstance(destination, SimArray):
                kept = np.array(source)
                duration = self._transfer_ns(kept.nbytes)
                effect = write_effect(destination, [], lambda: kept)
                engine = "host to device"
            else:
                duration = self._transfer_ns(source.nbytes)
                engine = "device to host"

                def effect() -> Callable[[], None]:
                    version = source.buffer.version

                    def end() -> None:
                        destination[...] = source.view_of(version.value())

                    return end

            op = CopyOp(stream, queued, correlation, f"copy {engine}", effect, engine, duration)
            self.engine.submit(op)

    def host_call(self, stream: SimStream, function: Callable[[], None], correlation: int) -> None:
        """Queue a host function; it runs at its place in the stream's virtual time."""
        with self._lock:
            self._pay("launch_call_ns")
            name = getattr(function, "__name__", "host function")
            self.engine.submit(HostOp(stream, self._host_ns, correlation, name, function, 2000))

    # -- kernels ----------------------------------------------------------------------
    def compile(self, source: str, name: str, model: KernelModel | None) -> Kernel:
        """Take the kernel's model; its source is not looked at."""
        del source
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
        args: Sequence[Any],
        correlation: int,
    ) -> None:
        """Queue what the kernel's model says it does."""
        del block
        model = kernel.model
        if model is None:
            raise CapabilityError(f"kernel {kernel.name!r} has no model to simulate it by")
        with self._lock:
            self._pay("launch_call_ns")
            cost = model.cost(self.profile, grid, args, stream.sms.bit_count())
            target = model.writes(args)
            effect = None
            if target is not None and model.compute is not None:
                effect = write_effect(target, list(model.reads(args)), model.compute)
            self._submit_kernel(
                stream, correlation, kernel.name, effect, cost.blocks, cost.block_ns
            )

    def _submit_kernel(
        self,
        stream: SimStream,
        correlation: int,
        name: str,
        effect: Any,
        blocks: int,
        block_ns: int,
    ) -> Op:
        op = KernelOp(stream, self._host_ns, correlation, name, effect, blocks, block_ns)
        self.engine.submit(op)
        return op

    def matmul(
        self, stream: Stream, plan: MatmulPlan, operands: Any, sm_count: int, correlation: int
    ) -> None:
        """Queue a GEMM; its value is computed in float32 (float64 for float64) when read."""
        out, a, b = operands
        with self._lock:
            self._pay("gemm_call_ns")
            raw = stream.raw
            if not plan.m or not plan.n:
                return
            cost = self.profile.gemm_cost(
                plan.m, plan.n, plan.k, plan.dtype, raw.sms.bit_count(), sm_count
            )
            work = np.float64 if out.dtype == np.float64 else np.float32

            def product(
                left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]
            ) -> np.ndarray[Any, Any]:
                values = left.astype(work) @ right.astype(work)
                return np.asarray(values.astype(out.dtype))

            effect = write_effect(out, [a, b], product)
            self._submit_kernel(raw, correlation, plan.name, effect, cost.blocks, cost.block_ns)

    def adopt(self, value: Any) -> Any:
        """Take a simulated array as it is."""
        return value if isinstance(value, SimArray) else None

    def place(self, out: SimArray, a: SimArray, b: SimArray) -> Places:
        """Return the backends that made the arrays, simulated addresses, and the arrays."""
        arrays = (out, a, b)
        first, second, third = (
            array.buffer.address + array.offset * array.dtype.itemsize for array in arrays
        )
        return (out.owner, a.owner, b.owner), (first, second, third), arrays

    def contiguous(self, stream: Stream, array: SimArray) -> SimArray:
        """Queue a copy into C order."""
        copy = self.empty(array.shape, array.dtype)
        with self._lock:
            cost = self.profile.copy_cost(array.nbytes, stream.raw.sms.bit_count())
            effect = write_effect(copy, [array], lambda values: values)
            self._submit_kernel(stream.raw, 0, "copy", effect, cost.blocks, cost.block_ns)
        return copy


def _done_ns(event: SimEvent) -> int:
    assert event.record is not None  # noqa: S101 - the caller checked
    assert event.record.done_ns is not None  # noqa: S101 - the caller checked
    return event.record.done_ns
