"""Memory of a CUDA device: CuPy arrays in pools of our own, scratch in stream order."""

from __future__ import annotations

import contextlib
import importlib
import math
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from gpuscope._types import Array, DType
from gpuscope.device.cuda import driver as versions
from gpuscope.device.cuda.driver import CudaObject
from gpuscope.device.cuda.errors import check, translated
from gpuscope.device.cuda.streams import CudaStreams
from gpuscope.device.memory import Pinned, Pool, Tag
from gpuscope.device.raw import Memory, NativeArray, RawStream, Shape
from gpuscope.device.stream import Stream
from gpuscope.errors import GpuscopeError


class CudaMemory(CudaStreams):
    """Its memory: arrays, page-locked memory and scratch."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._memory = Pool(
            self._allocate, lambda _: None, self.mark, self.event_done, lambda mark: mark.sync()
        )
        self._pinned = Pool(
            self._cupy.cuda.alloc_pinned_memory, lambda _: None, self.mark, self.event_done,
            lambda mark: mark.sync(),
        )  # fmt: skip
        self._device_pool = self._cupy.cuda.MemoryPool()
        self._scratch_pool: CudaObject = None
        self._own: CudaObject = None
        self._once = threading.Lock()
        self._plain_bytes = 0

    @contextlib.contextmanager
    def _apart(self) -> Iterator[None]:
        """Let CuPy work in a stream of our own, and wait for that stream alone.

        The legacy default stream, CuPy's unless another is current, would wait for every blocking
        stream, the per-thread ones among them, and cannot be waited for during a capture.
        """
        with self._current(), versions.relaxed_capture():
            own = self._own_stream()
            try:
                with self._cupy.cuda.Stream.from_external(own):
                    yield
            finally:
                own.sync()

    def _take(self, nbytes: int) -> CudaObject:
        """Take device memory that no queued work uses, also while a stream is captured."""
        with versions.relaxed_capture():
            return self._arrays.DeviceMemory(self._memory.take(nbytes), nbytes, self._index)

    def _allocate(self, nbytes: int) -> CudaObject:
        """Take memory of a pool of our own: what CuPy's has taken back may still be in use."""
        with self._cupy.cuda.Stream.null:  # its arena, whatever stream is current for CuPy
            try:
                return self._device_pool.malloc(nbytes)
            except MemoryError:
                self._cupy.get_default_memory_pool().free_all_blocks()
                return self._device_pool.malloc(nbytes)

    def use(self, stream: Stream, values: Sequence[object]) -> None:
        """Tag memory of ours; a stream that is not ours is marked now, as it may be gone later."""
        tag = stream.tag
        block_of = self._arrays.block_of
        for value in values:
            block = block_of(value)
            if block is None:
                continue
            if tag is None:
                tag = self._tag_of_borrowed(stream)
            if tag not in block.tags:
                block.use(tag)

    def _tag_of_borrowed(self, stream: Stream) -> Tag:
        try:
            return Tag(None, self.mark(stream.raw))
        except GpuscopeError:  # captured: nobody tells when that graph is gone, so it is for good
            tag = Tag(stream.raw)
            tag.capturing = True
            return tag

    def empty(self, shape: Shape, dtype: DType) -> NativeArray:
        """Return an uninitialised CuPy array."""
        nbytes = math.prod(shape) * dtype.itemsize
        with self._current(), translated("device memory cannot be taken"):
            if not nbytes:
                return self._cupy.empty(shape, dtype)
            return self._take(nbytes).array(shape, dtype)

    def empty_pinned(self, shape: Shape, dtype: DType) -> Array:
        """Return page-locked host memory from CuPy's pool."""
        nbytes = max(1, math.prod(shape) * dtype.itemsize)
        with (
            self._current(),
            versions.relaxed_capture(),
            translated("page-locked host memory cannot be taken"),
        ):
            block = self._pinned.take(nbytes)
            return Pinned(block, block.raw.ptr, nbytes).array(shape, dtype)

    def asarray(self, values: Array) -> NativeArray:
        """Copy host values; done when it returns."""
        with self._current(), translated("the values cannot be copied"):
            array = self.empty(values.shape, values.dtype)
            with self._apart():
                array.set(values)
            return array

    def fill_random(self, array: NativeArray, seed: int) -> None:
        """Fill with uniform values in [-0.5, 0.5)."""
        with self._apart():
            generator = self._cupy.random.default_rng(seed)
            values = generator.random(array.shape, dtype=np.float32)
            values -= np.float32(0.5)
            array[...] = values.astype(array.dtype)

    def to_host(self, array: NativeArray) -> Array:
        """Copy an array's values to the host."""
        with self._apart():
            found: Array = self._cupy.asnumpy(array)
            return found

    def allocate(self, nbytes: int, stream: Stream | None) -> Memory:
        """Take scratch from a pool of our own, in stream order; untagged memory is plain."""
        with (
            self._current(),
            versions.relaxed_capture(),
            translated(f"{nbytes} bytes of scratch cannot be taken"),
        ):
            if stream is None or not self.capabilities.stream_ordered_memory:
                self._runtime.deviceSynchronize()
                raw: CudaObject = self._cupy.cuda.alloc(nbytes)
                pointer = raw.ptr
                self._plain_bytes += nbytes
            else:
                raw = self._pool().allocate(nbytes, stream=stream.raw)
                pointer = int(raw.handle)
            memory = self._cupy.cuda.UnownedMemory(pointer, nbytes, raw, self._index)
            bytes_at = self._cupy.cuda.MemoryPointer(memory, 0)
            array = self._cupy.ndarray((nbytes,), self._cupy.uint8, memptr=bytes_at)
            return Memory(array, raw, nbytes)

    def free(self, memory: Memory, stream: Stream | None, *, idle: bool = False) -> None:
        """Give scratch back, in stream order; plain memory after the device has finished."""
        with (
            self._current(),
            versions.relaxed_capture(),
            translated("scratch cannot be given back"),
        ):
            plain = isinstance(memory.raw, self._cupy.cuda.MemoryPointer)
            if not idle and (plain or stream is None):
                self._runtime.deviceSynchronize()
            if plain:
                self._plain_bytes -= memory.nbytes
                return
            memory.raw.close(self._own_stream() if stream is None else stream.raw)

    def _own_stream(self) -> RawStream:
        """Return a stream of our own: nobody's barrier, and nobody waits for it but us.

        Memory goes back in it that no stream is waiting for. Not in a default stream: with driver
        580 a wait for the device never returned, once memory had gone back there and a thread had
        ended before the work in its own was done.
        """
        with self._once:
            if self._own is None:
                self._own = self.make_stream(None, 0)[0]
            return self._own

    def reserved_bytes(self) -> int:
        """Return what the pool holds, and plain scratch."""
        pool = self._scratch_pool
        held = int(pool.attributes.reserved_mem_current) if pool is not None else 0
        return held + self._plain_bytes

    def _pool(self) -> CudaObject:
        with self._once:
            if self._scratch_pool is None:
                self._scratch_pool = scratch_pool(self._core, self._device)
            return self._scratch_pool


def scratch_pool(core: CudaObject, device: CudaObject) -> CudaObject:
    """Make a stream-ordered pool that never couples streams behind the caller's back.

    CUDA's own pools reuse memory opportunistically and insert dependencies between
    streams; this one follows the dependencies that events make, and nothing else, and
    gives no memory back to the system.
    """
    driver = importlib.import_module("cuda.bindings.driver")
    attribute = driver.CUmemPool_attribute
    pool = core.DeviceMemoryResource(device, core.DeviceMemoryResourceOptions())
    for name, value in (
        (attribute.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 1),
        (attribute.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0),
        (attribute.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0),
    ):
        check(driver.cuMemPoolSetAttribute(pool.handle, name, value), "set up a memory pool")
    most = driver.cuuint64_t(2**64 - 1)
    name = attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    check(driver.cuMemPoolSetAttribute(pool.handle, name, most), "set up a memory pool")
    return pool
