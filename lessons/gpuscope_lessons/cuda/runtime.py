"""What CUDA's runtime does for a learner's program: its calls, on a device's objects."""

# ruff: noqa: D102, N802 - methods have the names and meanings of CUDA's calls
from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TypeAlias

import numpy as np

from gpuscope.device import Device, Event, Graph, Kernel, Stream
from gpuscope.device import address as address_of
from gpuscope.errors import (
    CapabilityError,
    GpuscopeError,
    InvalidOperand,
    StreamError,
)
from gpuscope.extending import Untyped
from gpuscope.workloads import Handle
from gpuscope_lessons.cuda.codes import NOT_READY
from gpuscope_lessons.cuda.compiling import Signature
from gpuscope_lessons.cuda.inside import PinnedMemory
from gpuscope_lessons.cuda.shared import SharedMemory
from gpuscope_lessons.cuda.sizes import SIZES, require_sizes

KernelOf: TypeAlias = Handle | Kernel
"""What a kernel is here: a handle to execute, or what :meth:`Device.compile` returns."""
Calling: TypeAlias = Callable[[int, int], None]
"""Has the program run a function of its own with a pointer, both by address."""
Answer: TypeAlias = tuple[int, bytes]

_TO_HOST, _TO_DEVICE = 2, 1
_DISABLE_TIMING, _NON_BLOCKING = 2, 1
_STREAM_FLAGS, _EVENT_FLAGS, _HOST_FLAGS = 1, 3, 7
"""All that there are here."""
_RELAXED = 2
_UNCONFIGURED, _UNKNOWN = 2**64 - 1, 2**64 - 2
"""What the header says instead of the number of a kernel."""
_FLOAT = np.dtype("float32")
_TYPES = {"float": np.float32, "double": np.float64, "int": np.int32, "unsigned": np.uint32}
_PAGE = 4096
_FIRST_ADDRESS, _ALIGNMENT = 0x2100_0000_0000, 512
"""Where a program has memory of the GPU: behind the page-locked memory, where nothing else lies.
The header knows, too."""


class Runtime:
    """Streams, events, graphs and memory of one run of a program.

    Calls have CUDA's names. Each takes the numbers and bytes of its message, and returns a number
    and bytes; what CUDA refuses is an error of gpuscope's.
    """

    def __init__(
        self,
        device: Device,
        memory: SharedMemory | PinnedMemory,
        kernels: Sequence[tuple[Signature, KernelOf]],
        calling: Calling,
    ) -> None:
        self._device = device
        self._memory = memory
        self._kernels = kernels
        self._calling = calling
        self.streams: dict[int, Stream] = {}
        self._arrays: dict[int, Untyped] = {}
        self._next_address = _FIRST_ADDRESS
        self._events: dict[int, Event] = {}
        self._graphs: dict[int, Graph] = {}
        self._executables: dict[int, Graph] = {}
        self._captures: dict[int, tuple[AbstractContextManager[Graph], Graph]] = {}
        self._strict: dict[int, bool] = {}
        self._page_locked: set[int] = set()
        self._left: list[Stream | Event | Graph] = []

    def end_captures(self) -> int:
        """End the captures that the program did not end; returns how many there are."""
        left = [capture for capture, _ in self._captures.values()]
        self._captures.clear()
        self._strict.clear()
        for capture in left:
            with suppress(GpuscopeError):
                capture.__exit__(None, None, None)
        return len(left)

    def close(self) -> None:
        """End captures, and close what the program made and did not return."""
        self.end_captures()
        for item in self._left:
            with suppress(GpuscopeError):
                item.close()
        self._left.clear()

    # -- streams and events -----------------------------------------------------------
    def _stream(self, handle: int) -> Stream:
        if handle <= 2:
            return self._device.wrap_stream(handle)
        if handle not in self.streams:
            raise StreamError("there is no such stream: create it first, and destroy it last")
        return self.streams[handle]

    def _event(self, handle: int) -> Event:
        if handle not in self._events:
            raise StreamError("there is no such event: create it first, and destroy it last")
        return self._events[handle]

    def cudaStreamCreateWithPriority(self, flags: int, priority: int) -> Answer:
        _require_flags(flags, _STREAM_FLAGS)
        blocking = not flags & _NON_BLOCKING
        signed = priority - (1 << 64) * (priority >> 63)
        stream = self._device.create_stream(blocking=blocking, priority=signed)
        self.streams[stream.handle] = stream
        self._left.append(stream)
        return stream.handle, b""

    def cudaStreamDestroy(self, handle: int) -> Answer:
        self._stream(handle)
        if handle not in self.streams:
            raise StreamError("a default stream is not destroyed")
        del self.streams[handle]
        return 0, b""

    def cudaStreamSynchronize(self, handle: int) -> Answer:
        self._stream(handle).synchronize()
        return 0, b""

    def cudaStreamQuery(self, handle: int) -> Answer:
        return (0 if self._stream(handle).is_done else NOT_READY), b""

    def cudaStreamWaitEvent(self, stream: int, event: int, flags: int) -> Answer:
        _require_flags(flags, 0)
        self._stream(stream).wait(self._event(event))
        return 0, b""

    def cudaEventCreateWithFlags(self, flags: int) -> Answer:
        _require_flags(flags, _EVENT_FLAGS)
        event = self._device.create_event(timing=not flags & _DISABLE_TIMING)
        self._left.append(event)
        self._events[id(event)] = event
        return id(event), b""

    def cudaEventRecord(self, event: int, stream: int) -> Answer:
        self._stream(stream).record(self._event(event))
        return 0, b""

    def cudaEventSynchronize(self, event: int) -> Answer:
        self._event(event).synchronize()
        return 0, b""

    def cudaEventQuery(self, event: int) -> Answer:
        return (0 if self._event(event).is_done else NOT_READY), b""

    def cudaEventDestroy(self, event: int) -> Answer:
        self._event(event)
        del self._events[event]
        return 0, b""

    def cudaEventElapsedTime(self, begin: int, end: int) -> Answer:
        first, last = self._event(begin), self._event(end)
        try:
            return last.elapsed_ns(since=first) % (1 << 64), b""
        except StreamError as error:
            if not (first.timing and last.timing) or (first.is_done and last.is_done):
                raise
            raise StreamError(f"cudaErrorNotReady: {error}") from error

    def cudaDeviceSynchronize(self) -> Answer:
        self._device.synchronize()
        return 0, b""

    # -- memory -----------------------------------------------------------------------
    def cudaMalloc(self, nbytes: int) -> Answer:
        self._require_no_capture("cudaMalloc")
        if nbytes == 0:
            return 0, b""
        if nbytes > (self._device.info.memory_bytes or nbytes):
            raise _out_of_memory(nbytes)
        try:
            array = self._device.empty(-(-nbytes // 4))
        except MemoryError as error:
            raise _out_of_memory(nbytes) from error
        return self.know(array), b""

    def cudaFree(self, address: int) -> Answer:
        self._require_no_capture("cudaFree")
        if address:
            if address not in self._arrays:
                raise InvalidOperand("cudaFree needs what cudaMalloc returned, once")
            self._device.synchronize()
            del self._arrays[address]
        return 0, b""

    def cudaHostAlloc(self, nbytes: int, flags: int) -> Answer:
        self._require_no_capture("cudaHostAlloc")
        _require_flags(flags, _HOST_FLAGS)
        if nbytes == 0:
            return 0, b""
        try:
            array = self._memory.take(-(-nbytes // 4))
        except (GpuscopeError, MemoryError) as error:
            raise _out_of_memory(nbytes) from error
        address = self._memory.address_of(array)
        self._page_locked.add(address)
        return address, b""

    def cudaMallocHost(self, nbytes: int, flags: int) -> Answer:
        return self.cudaHostAlloc(nbytes, flags)

    def cudaFreeHost(self, address: int) -> Answer:
        self._require_no_capture("cudaFreeHost")
        if address:
            if address not in self._page_locked:
                raise InvalidOperand(
                    "cudaFreeHost needs what cudaMallocHost or cudaHostAlloc returned, once"
                )
            self._device.synchronize()
            self._page_locked.remove(address)
        return 0, b""

    def know(self, array: Untyped) -> int:
        """Let a program use an array of the device; returns its address there."""
        for address, known_array in self._arrays.items():
            if known_array is array:
                return address
        address = self._next_address
        if self._device.is_simulated:
            self._next_address += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        else:
            address = address_of(array)
        self._arrays[address] = array
        return address

    def part(self, address: int, nbytes: int | None = None) -> Untyped:
        """Return an array from an address on: so many bytes, or to its end."""
        pinned = self._memory.part(address, nbytes)
        if pinned is not None:
            return pinned
        for start, array in self._arrays.items():
            if start <= address < start + array.nbytes:
                first = (address - start) // 4
                last = array.size if nbytes is None else first + nbytes // 4
                if last <= array.size:
                    return array[first:last]
        raise InvalidOperand(
            f"{address:#x} is no memory of the GPU, or there are not {nbytes or 4} bytes of it"
        )

    def cudaMemcpyAsync(
        self, source: int, target: int, nbytes: int, kind: int, stream: int, payload: bytes = b""
    ) -> Answer:
        if nbytes % 4:
            raise CapabilityError(
                f"{nbytes} bytes are no whole number of floats: copy those only here "
                "(cudaErrorNotSupported)"
            )
        if nbytes == 0:
            return 0, b""
        chosen = self._stream(stream)
        if isinstance(self._memory, PinnedMemory):  # of one process: ordinary memory has addresses
            payload, target = self._pageable(source, target, nbytes, kind)
        pageable = payload or not target
        if pageable and chosen.capturing:
            raise StreamError(
                "a copy of ordinary memory is not captured here (cudaErrorStreamCaptureUnsupported)"
                ": use memory of cudaMallocHost"
            )
        read = np.frombuffer(payload, _FLOAT) if payload else self.part(source, nbytes)
        written = np.empty(nbytes // 4, _FLOAT) if not target else self.part(target, nbytes)
        on_host = isinstance(read, np.ndarray), isinstance(written, np.ndarray)
        if on_host != (kind == _TO_DEVICE, kind == _TO_HOST):
            raise InvalidOperand("cudaMemcpyKind is not what the pointers say")
        chosen.copy(written, read)
        return 0, b"" if target else written.tobytes()

    def _pageable(self, source: int, target: int, nbytes: int, kind: int) -> tuple[bytes, int]:
        """Return the bytes of ordinary memory to copy from; and where to, or 0 for such memory."""
        up = kind == _TO_DEVICE and self._memory.part(source, nbytes) is None
        down = kind == _TO_HOST and self._memory.part(target, nbytes) is None
        return ctypes.string_at(source, nbytes) if up else b"", 0 if down else target

    def cudaMemcpy(
        self, source: int, target: int, nbytes: int, kind: int, stream: int, payload: bytes = b""
    ) -> Answer:
        answer = self.cudaMemcpyAsync(source, target, nbytes, kind, stream, payload)
        if kind in (_TO_HOST, _TO_DEVICE):
            self._stream(stream).synchronize()
        return answer

    def touched(self, page: int, writes: int) -> Answer:
        """Tell that the program reads or writes a page of page-locked memory."""
        array = self._memory.part(page, _PAGE)
        if array is not None:
            name = "the program's write" if writes else "the program's read"
            array.note_access(name, writes=bool(writes))
        return 0, b""

    # -- work -------------------------------------------------------------------------
    def launch(self, stream: int, number: int, payload: bytes = b"") -> Answer:
        """Launch a kernel of the exercise: sizes of its grid come first, then its arguments."""
        if number == _UNCONFIGURED:
            raise StreamError(
                "cudaErrorMissingConfiguration: a kernel was called as a function: launch it with "
                "<<<blocks, threads, shared memory, stream>>>"
            )
        if number == _UNKNOWN:
            raise StreamError(
                "cudaErrorInvalidDeviceFunction: a host function call cannot be configured: only "
                "kernels are launched"
            )
        grid, block = require_sizes(*SIZES.unpack_from(payload))
        signature, kernel = self._kernels[number]
        chosen = self._stream(stream)
        if isinstance(kernel, Handle):
            kernel.execute(stream=chosen)
            return 0, b""
        words = [payload[at : at + 8] for at in range(SIZES.size, len(payload), 8)]
        values = [self._value(*pair) for pair in zip(signature.types, words, strict=True)]
        chosen.launch(kernel, *values, grid=grid, block=block)
        return 0, b""

    def _value(self, kind: str, word: bytes) -> object:
        if kind.endswith("*"):
            return self.part(int.from_bytes(word, "little"))
        return np.frombuffer(word, _TYPES.get(kind, np.int64))[0]

    def cudaLaunchHostFunc(self, stream: int, function: int, data: int) -> Answer:
        if not function:
            raise InvalidOperand("a host function is needed, not a null pointer")

        def host_function() -> None:
            self._calling(function, data)

        self._stream(stream).host_call(host_function)
        return 0, b""

    # -- graphs -----------------------------------------------------------------------
    def cudaStreamBeginCapture(self, handle: int, mode: int) -> Answer:
        if handle in self._captures:
            raise StreamError("cudaErrorIllegalState: this stream is being captured already")
        capture = self._stream(handle).capture()
        self._captures[handle] = capture, capture.__enter__()
        if mode != _RELAXED:
            self._strict[handle] = True
        return 0, b""

    def _require_no_capture(self, name: str) -> None:
        """Refuse what captures forbid that are not relaxed; it makes them invalid, too."""
        if self._strict:
            self._strict = dict.fromkeys(self._strict, False)
            raise StreamError(
                f"cudaErrorStreamCaptureUnsupported: {name} is not permitted while a stream is "
                "captured: call it before"
            )

    def cudaStreamEndCapture(self, handle: int) -> Answer:
        if handle not in self._captures:
            raise StreamError("cudaErrorIllegalState: this stream is not being captured")
        capture, graph = self._captures.pop(handle)
        is_valid = self._strict.pop(handle, True)
        capture.__exit__(None, None, None)
        self._left.append(graph)
        if not is_valid:
            raise StreamError(
                "cudaErrorStreamCaptureInvalidated: a call that is not permitted while a stream is "
                "captured made the capture invalid"
            )
        self._graphs[id(graph)] = graph
        return id(graph), b""

    def _graph(self, handle: int) -> Graph:
        if handle not in self._graphs:
            raise InvalidOperand(
                "there is no such graph: capture it first, and destroy it last, once"
            )
        return self._graphs[handle]

    def cudaGraphInstantiate(self, handle: int, flags: int) -> Answer:
        _require_flags(flags, 0)
        graph = self._graph(handle)
        if handle + 1 in self._executables:
            raise CapabilityError(
                "a graph is instantiated once only here: capture it again (cudaErrorNotSupported)"
            )
        self._executables[handle + 1] = graph
        return handle + 1, b""

    def executable(self, handle: int) -> Graph:
        """Return an executable graph by its handle."""
        if handle not in self._executables:
            raise InvalidOperand("there is no such executable graph: instantiate it first")
        return self._executables[handle]

    def cudaGraphLaunch(self, handle: int, stream: int) -> Answer:
        self.executable(handle).launch(stream=self._stream(stream))
        return 0, b""

    def cudaGraphExecDestroy(self, handle: int) -> Answer:
        self.executable(handle)
        del self._executables[handle]
        return 0, b""

    def cudaGraphDestroy(self, handle: int) -> Answer:
        self._graph(handle)
        del self._graphs[handle]  # an executable graph made of it stays
        return 0, b""


def _out_of_memory(nbytes: int) -> CapabilityError:
    return CapabilityError(f"cudaErrorMemoryAllocation: there are not {nbytes:,} bytes")


def _require_flags(flags: int, possible: int) -> None:
    """Refuse flags that there are not."""
    if flags & ~possible:
        raise InvalidOperand(f"there is no flag {flags & ~possible:#x} for this call here")
