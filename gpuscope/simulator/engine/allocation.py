"""Memory of the simulated GPU: who has which buffer, and what copies move."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt

from gpuscope._checks import given
from gpuscope._types import Array, DType
from gpuscope.device.api import KernelCost, Shape
from gpuscope.device.arrays import fitted
from gpuscope.device.calls import Call
from gpuscope.device.memory import Block, Pinned, Pool, Tag, no_host_memory, pinned_block
from gpuscope.device.raw import Memory, Places
from gpuscope.device.views import StreamView
from gpuscope.errors import GpuscopeError, InvalidOperand
from gpuscope.simulator.engine.host import Pace, SimHost
from gpuscope.simulator.engine.memory import (
    Buffer,
    SimArray,
    UniformValues,
    Version,
    Write,
    c_steps,
)
from gpuscope.simulator.engine.ops import CopyOp, Effect, SimStream
from gpuscope.simulator.models.assumed import PAGEABLE_BYTES_PER_US, STAGED_AT_ONCE_BYTES

Assigning: TypeAlias = Callable[
    [SimArray, tuple[SimArray, ...]], AbstractContextManager[Call | None]
]
"""Tells of a write to an array, and of what it reads, if anybody looks for hazards."""


class SimMemory(SimHost):
    """Its memory: arrays, scratch and page-locked memory, and the copies between them."""

    def __init__(self, profile: str = "h200", *, pace: Pace = "none", jitter: bool = False) -> None:
        super().__init__(profile, pace=pace, jitter=jitter)
        self._scratch: dict[tuple[int, int], list[Memory]] = {}
        self._reserved = 0
        marks = self.mark, self._passed, self._wait_for_mark
        self._memory = Pool(self._take, self._give, *marks)
        self._pinned = Pool(self._take_pinned, self._give_pinned, *marks)
        self._free: dict[tuple[int, DType], list[Buffer]] = {}
        self._free_pinned: dict[int, list[Array]] = {}
        self._buffers: weakref.WeakSet[Buffer] = weakref.WeakSet()
        self._taken_bytes = 0  # as if nothing had been freed since they were last counted
        self.home: object = self
        self.array_type: type = SimArray
        self.assigning: Assigning = lambda *_: nullcontext()

    # -- arrays -----------------------------------------------------------------------
    def _take(self, need: tuple[int, DType]) -> Buffer:
        """Take a buffer of so many elements: what was last given first."""
        if free := self._free.get(need):
            return free.pop()
        with self._lock:
            buffer = Buffer(*need)
            self._require_room(buffer.nbytes)
            self._buffers.add(buffer)
        return buffer

    def _take_pinned(self, nbytes: int) -> Array:
        if free := self._free_pinned.get(nbytes):
            return free.pop()
        try:
            return np.empty(nbytes, np.uint8)
        except (MemoryError, ValueError) as error:
            raise no_host_memory(nbytes, error) from error

    def _require_room(self, nbytes: int) -> None:
        """Raise unless the GPU has room for more; counts what is held only where it must."""
        most = self.info.memory_bytes
        if self._taken_bytes + nbytes > most:
            self._free.clear()
            gc.collect()
            self._taken_bytes = sum(buffer.nbytes for buffer in self._buffers)
        if self._taken_bytes + nbytes > most:
            raise GpuscopeError(
                f"device memory cannot be taken: {nbytes} bytes are asked for, and "
                f"{most - self._taken_bytes} of the {most} bytes of {self.info.key} are free. "
                "Ask for less, or let go of arrays and wait for the work that uses them"
            )
        self._taken_bytes += nbytes

    def _give(self, memory: Buffer) -> None:
        memory.clear()
        self._free.setdefault((memory.size, memory.dtype), []).append(memory)

    def _give_pinned(self, memory: Array) -> None:
        self._free_pinned.setdefault(memory.size, []).append(memory)

    def use(self, stream: StreamView[SimStream], values: Sequence[object]) -> None:
        """Tag memory of ours; a stream that is not ours is marked now, as it may be gone later."""
        self._tag(stream.tag or Tag(None, self.mark(stream.raw)), values)

    def _tag(self, tag: Tag, values: Sequence[object]) -> None:
        for value in values:
            block = value.block if isinstance(value, SimArray) else pinned_block(value)
            if block is not None and tag not in block.tags:
                block.use(tag)

    def empty(self, shape: Shape, dtype: DType) -> SimArray:
        """Return an array of unspecified values (they are zeros here)."""
        block = self._memory.take((math.prod(shape), dtype))
        return SimArray(self, block.raw, shape, c_steps(shape), dtype, block=block)

    def asarray(self, values: Array) -> SimArray:
        """Copy host values; the values are copied now."""
        copied = values.copy().reshape(-1)
        array = self.empty(values.shape, values.dtype)
        array.buffer.version = Version(lambda: copied)
        with self._lock:
            cost_ns = self.profile.transfer_ns("pageable_host_to_device", copied.nbytes)
            self._advance(self._host_ns + cost_ns)
        return array

    def fill_random(self, array: SimArray, seed: int) -> None:
        """Give the array a version that draws its values when read."""
        drawn, array = (
            UniformValues(seed, array.size, array.dtype),
            array.bare,
        )  # which holds no buffer
        array.buffer.version = Version(lambda: array.flat(drawn.values()), recipe=drawn)

    def assign(self, array: SimArray, value: npt.ArrayLike | SimArray) -> None:
        """Queue a kernel that writes ``value``, on the legacy default stream as CuPy does."""
        legacy = self.engine.legacy
        cost = self.profile.copy_cost(array.nbytes, legacy.sms.bit_count())
        shape, dtype = array.shape, array.dtype
        sources: tuple[SimArray, ...] = (value,) if isinstance(value, SimArray) else ()
        try:
            copied = np.array(() if sources else value, dtype)
            fits = (
                np.broadcast_shapes(sources[0].shape if sources else copied.shape, shape) == shape
            )
        except (TypeError, ValueError):  # no numbers, or another shape
            fits = False
        if not fits:
            raise InvalidOperand(
                f"{given(value)} cannot be assigned to {array!r}: give numbers of a shape that "
                f"broadcasts to {shape}"
            )
        effect = Write(
            array, sources, lambda *values: np.broadcast_to(values[0] if values else copied, shape)
        )
        with self.assigning(array, sources) as call, self._lock:
            number = 0 if call is None else call.correlation
            self._queue_kernel(legacy, number, "assign", effect, cost, "launch")
            self._tag(Tag(None, self.mark(legacy)), (array, *sources))

    def to_host(self, array: SimArray) -> Array:
        """Compute and return an array's values as of now."""
        with self._lock:
            cost_ns = self.profile.transfer_ns("pageable_device_to_host", array.nbytes)
            self._advance(self._host_ns + cost_ns)
            return array.view_of(array.buffer.version.value()).copy()

    def home_of(self, array: SimArray) -> object:
        """Return the backend that made an array."""
        return array.owner

    def adopt(self, value: object, *, write: bool = False) -> SimArray | None:
        """Take a simulated array as it is."""
        return value if isinstance(value, SimArray) else None

    def place(self, out: SimArray, a: SimArray, b: SimArray) -> Places:
        """Return the backends that made the arrays, simulated addresses, and the arrays."""
        return (out.owner, a.owner, b.owner), (out.address, a.address, b.address), (out, a, b)

    # -- scratch and page-locked memory -----------------------------------------------
    def allocate(self, nbytes: int, stream: StreamView[SimStream] | None) -> Memory:
        """Take bytes; memory given back on a stream is taken again by that stream first."""
        with self._lock:
            if stream is None:
                self._wait_for_all()
                freed = None
            else:
                freed = self._scratch.get((stream.handle, nbytes))
            if freed:
                return freed.pop()
            self._reserved += nbytes
        return Memory(self.empty((nbytes,), np.dtype(np.uint8)), None, nbytes)

    def free(
        self, memory: Memory, stream: StreamView[SimStream] | None, *, idle: bool = False
    ) -> None:
        """Give bytes back; without a stream the device finishes first."""
        with self._lock:
            if stream is None:
                if not idle:
                    self._wait_for_all()
                self._reserved -= memory.nbytes
            else:
                self._scratch.setdefault((stream.handle, memory.nbytes), []).append(memory)

    def reserved_bytes(self) -> int:
        """Return what is taken, or kept for its stream."""
        return self._reserved

    def empty_pinned(self, shape: Shape, dtype: DType) -> Array:
        """Return host memory that counts as page-locked."""
        nbytes = max(1, math.prod(shape) * dtype.itemsize)
        block = self._pinned.take(nbytes)
        return Pinned(block, block.raw.ctypes.data, nbytes).array(shape, dtype)

    # -- copies -----------------------------------------------------------------------
    def copy(
        self,
        stream: SimStream,
        destination: SimArray | Array,
        source: SimArray | Array,
        correlation: int,
    ) -> None:
        """Queue a copy; the engine of its direction carries it, and the host one in host memory.

        Pageable memory is staged on the way, and the host waits as CUDA lets it: for small
        memory on its way up not at all, else until the copy is done.
        """
        memory = _memory_of(source), _memory_of(destination)
        from_device, to_device = (kind == "device" for kind in memory)
        pinned = "pageable" not in memory
        nbytes = moved = int(source.nbytes)
        staging_ns = -(-nbytes * 1000 // PAGEABLE_BYTES_PER_US)
        staged_at_once = to_device and nbytes <= STAGED_AT_ONCE_BYTES
        if to_device and from_device:
            engine, duration_ns = "device", self.profile.transfer_ns("device_to_device", nbytes)
            # Small copies stay in the cache: alone, none takes longer than was measured.
            moved = min(2 * nbytes, self._cost["device_copy_bytes_per_us"] * duration_ns // 1000)
        elif to_device or from_device:
            engine = "host to device" if to_device else "device to host"
            way = f"{'pinned' if pinned else 'pageable'}_{engine.replace(' ', '_')}"
            duration_ns = self.profile.transfer_ns(way, nbytes)
        else:
            engine, duration_ns, moved = "host", staging_ns, 0
        staged = not pinned and stream.capture is None
        if staged and staged_at_once:
            source = np.array(source)
        effect = computed(destination, (source,), lambda values: values)
        cost = KernelCost(1, duration_ns, moved)
        op = CopyOp(
            stream, 0, correlation, f"copy {engine}", effect, cost, engine=engine, memory=memory,
            awaited=staged and not staged_at_once,
        )  # fmt: skip
        with self._lock:
            self._queue(op, self._cost["launch_call_ns"])
            if op.awaited:
                self._wait_for(op)
            elif staged:
                self._advance(self._host_ns + staging_ns)


def _memory_of(array: SimArray | Array) -> str:
    """Return the kind of memory that an array is in, as traces say it."""
    if isinstance(array, SimArray):
        return "device"
    return "pageable" if pinned_block(array) is None else "pinned"


def _unheld(array: SimArray | Array) -> SimArray | Array:
    """Return an array as work sees it: it keeps no memory from being given out."""
    if isinstance(array, SimArray):
        return array.bare
    block = cast("Block[Array] | None", pinned_block(array))
    if block is None:
        return array
    offset = array.ctypes.data - block.raw.ctypes.data
    return np.ndarray(array.shape, array.dtype, block.raw, offset, array.strides)


def computed(
    destination: SimArray | Array,
    sources: Sequence[SimArray | Array],
    compute: Callable[..., Array],
) -> Effect:
    """Return an effect that writes what is computed of the values of when the work starts.

    Any of the arrays may be in host memory.
    """
    destination, sources = _unheld(destination), tuple(map(_unheld, sources))
    on_device = tuple(source for source in sources if isinstance(source, SimArray))
    if isinstance(destination, SimArray) and len(on_device) == len(sources):
        return Write(destination, on_device, compute)

    def start() -> Callable[[], None]:
        host_values = [
            None if isinstance(source, SimArray) else np.array(source) for source in sources
        ]

        def values(*arrays: Array) -> Array:
            rest = iter(arrays)
            return compute(*(next(rest) if value is None else value for value in host_values))

        if isinstance(destination, SimArray):
            return Write(destination, on_device, values)()
        bound = [(source, source.buffer.version) for source in on_device]

        def commit() -> None:
            result = values(*(source.view_of(version.value()) for source, version in bound))
            np.copyto(destination, fitted(result, destination.shape, destination.dtype))

        return commit

    return start
