"""Scratch: device memory for the length of one call, tagged by the stream it runs on.

Memory tagged by a stream is taken and given back in that stream's order, so nobody waits
for it. Where no stream is known to order it, or the device has no stream-ordered memory,
it is untagged: handed out and taken back only after the device has finished everything.
Origin: contract C, ONNX Runtime #29244.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Self

from gpuscope import _interrupts
from gpuscope._types import Untyped
from gpuscope.device.api import NativeArray
from gpuscope.device.arena import Arena, allocate, checked_size, give_back, note_freed
from gpuscope.device.arrays import as_dtype, as_shape
from gpuscope.device.handles import AnyStream, raw_handle
from gpuscope.device.owner import Owner
from gpuscope.device.raw import Memory
from gpuscope.device.registry import borrowing
from gpuscope.device.stream import Stream
from gpuscope.device.unique import Closing, Unique, call_all, warn_unclosed
from gpuscope.device.views import StreamView
from gpuscope.errors import ClosedError, GpuscopeError, InvalidOperand, StreamError

if TYPE_CHECKING:
    import numpy.typing as npt


def take_scratch(device: Owner, nbytes: int) -> Scratch:
    """Take scratch from this thread's innermost call on ``device``; outside any, untagged."""
    for context in reversed(borrowing.open):
        if isinstance(context, WorkloadContext) and context.device is device:
            return context.scratch(nbytes)
    size = checked_size(device, nbytes)
    memory = allocate(device, size, None) if size else None
    return Scratch(device, size, None, memory, partial(give_back, device, stream=None))


class Scratch(Closing):
    """Device memory that is freed when its call ends or when it is closed.

    Attributes
    ----------
    nbytes
        Its size.
    stream
        The stream that orders its use (its tag); ``None`` for untagged memory.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> with gpu.scratch(1024) as scratch:
    ...     scratch.view((16, 16), "float32").shape
    (16, 16)
    >>> scratch.closed
    True
    """

    __slots__ = ("_array", "_device", "_give_back", "_memory", "nbytes", "stream")

    def __init__(
        self,
        device: Owner,
        nbytes: int,
        stream: StreamView[object] | None,
        memory: Memory | None,
        give_back: Callable[[Memory], None],
    ) -> None:
        self._device = device
        self._memory = memory
        self._give_back = give_back
        self._array: NativeArray | None
        self._array = device.empty(0, "uint8") if memory is None else memory.array
        self.nbytes = nbytes
        self.stream = stream

    @property
    def array(self) -> NativeArray:
        """The memory as a device array of uint8, shape (nbytes,).

        Raises
        ------
        ClosedError
            It was given back.
        """
        if self._array is None:
            raise ClosedError(
                "this scratch memory was given back when its call ended, or was closed: take new "
                "scratch in each call, and return arrays made with the device's empty()"
            )
        return self._array

    def view(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = "float32") -> NativeArray:
        """Return the beginning of the memory as an array.

        Parameters
        ----------
        shape
            In elements.
        dtype
            A NumPy dtype or its name; ``"bfloat16"`` is known too.

        Raises
        ------
        InvalidOperand
            It is too small.
        """
        array: Untyped = self.array
        sizes, kind = as_shape(shape), as_dtype(dtype)
        need = math.prod(sizes) * kind.itemsize
        if need > self.nbytes:
            raise InvalidOperand(
                f"an array of shape {sizes} and dtype {kind.name} needs {need} bytes, but this "
                f"scratch has {self.nbytes}: take more"
            )
        if not need:
            return self._device.empty(sizes, kind)
        part: NativeArray = array[:need].view(kind).reshape(sizes)
        return part

    @property
    def closed(self) -> bool:
        """Whether it was given back."""
        return self._array is None

    def close(self) -> None:
        """Free the memory in the order of its stream. Idempotent."""
        memory, self._memory, self._array = self._memory, None, None
        if memory is not None:
            self._give_back(memory)

    def require_open(self) -> None:
        """Raise :class:`ClosedError` if it was given back."""
        self.array  # noqa: B018 - raises

    def __del__(self) -> None:
        if getattr(self, "_memory", None) is None:
            return
        warn_unclosed(self, f"{self.nbytes} bytes of scratch were never given back: hold them")
        with _interrupts.no_interrupt(), contextlib.suppress(GpuscopeError):
            self.close()  # the device may be gone: there is nobody to tell

    def __repr__(self) -> str:
        tag = "untagged" if self.stream is None else f"stream={self.stream.name!r}"
        return f"Scratch({self.nbytes} bytes, {tag}{', closed' if self.closed else ''})"


class WorkloadContext(Unique):
    """The context passed to a workload function: the stream to launch on, and scratch memory.

    Parameters
    ----------
    device
        Where the call runs.
    stream
        The stream it runs on.
    arena
        Holds the memory of the latest call on that stream for reuse.

    Notes
    -----
    Valid inside its ``with`` block, on the thread that entered it; contexts nest.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> @gs.workloads.workload
    ... def cube(ctx, a):
    ...     square = ctx.scratch(a.nbytes).view(a.shape, a.dtype)
    ...     gs.mm_out(square, a, a)
    ...     return gs.mm_out(ctx.device.empty(a.shape, a.dtype), square, a)
    >>> with cube(gpu) as handle, gpu.create_stream() as stream:
    ...     out = handle.execute(gpu.asarray([[2]], "float32"), stream=stream)
    ...     gpu.to_host(out).tolist()
    [[8.0]]
    """

    __slots__ = ("_arena", "_known", "_spare", "_state", "_stream", "_taken", "_used", "device")

    def __init__(self, device: Owner, stream: Stream, arena: Arena | None = None) -> None:
        self.device = device
        self._stream = stream
        self._arena = arena
        # Raw handle → stream, of handles that this call named: never its own, never None.
        self._known: dict[int, StreamView[object]] = {}
        self._taken: list[Scratch] = []
        self._spare: list[Memory] = []
        self._used: list[Memory] = []
        self._state = "new"

    @property
    def stream(self) -> Stream:
        """The stream to launch on. Valid only for this call: do not close or keep it.

        Raises
        ------
        ClosedError
            The call is over.
        """
        self._require_open()
        return self._stream

    def _require_open(self) -> None:
        if self._state != "open":
            raise ClosedError(
                "this WorkloadContext is used outside its call: its stream and its scratch are "
                "borrowed for that call only. Use the context that each call is given"
            )

    def scratch(self, nbytes: int, stream: AnyStream = None) -> Scratch:
        """Allocate device memory that is freed in stream order when the call ends.

        Parameters
        ----------
        nbytes
            How many bytes; 0 gives an empty buffer and allocates nothing.
        stream
            The stream that uses the memory: ``None`` or the call's stream, as an object or raw
            handle; or another stream of the device, which then orders the memory. An unknown raw
            handle gives untagged memory, for which the device is synchronised now and when the
            memory is freed.

        Raises
        ------
        InvalidOperand
            ``nbytes`` is negative, overflows, or is more than the device has.
        StreamError
            The call's stream is under capture, and no run before the capture used this size:
            scratch must be allocated before a capture begins.
        ClosedError
            The call is over.
        """
        self._require_open()
        device = self.device
        size = checked_size(device, nbytes)
        tag = self._tag(stream)
        ordered = tag if device.capabilities.stream_ordered_memory else None
        if not size:
            return Scratch(device, 0, ordered, None, self._return)
        if tag is self._stream:
            memory, back = self._take(size), self._return
        else:
            if self._stream.capturing or (tag is not None and tag.capturing):
                raise StreamError(
                    "a stream is being captured, so scratch for another stream cannot be taken "
                    "now: take it before the capture begins, with the device's scratch()"
                )
            memory, back = allocate(device, size, tag), partial(give_back, device, stream=tag)
        scratch = Scratch(device, size, ordered, memory, back)
        self._taken.append(scratch)
        return scratch

    def _tag(self, stream: AnyStream) -> StreamView[object] | None:
        """Return the stream that ``stream`` names; ``None`` if this device knows none such."""
        of_call = self._stream
        if stream is None or stream is of_call:
            return of_call
        if isinstance(stream, Stream):
            stream = self.device.wrap_stream(stream)
            stream.require_open()
            return of_call if stream.handle == of_call.handle else stream
        if isinstance(stream, bool) or not (
            isinstance(stream, int) or hasattr(stream, "__cuda_stream__")
        ):
            raise InvalidOperand(
                f"stream is {type(stream).__name__}; a stream or its raw handle is needed"
            )
        handle = raw_handle(stream)
        if handle == of_call.handle:
            return of_call
        stream_of_handle = self._known.get(handle)
        if stream_of_handle is None or stream_of_handle.closed:
            self._known.pop(handle, None)
            if (stream_of_handle := self.device.find_stream(handle)) is not None:
                self._known[handle] = stream_of_handle
        return stream_of_handle

    def _take(self, size: int) -> Memory:
        """Take memory of the call's own stream: what is spare, else from the device."""
        memory = next((spare for spare in self._spare if spare.nbytes == size), None)
        if memory is not None:
            self._spare.remove(memory)
        else:
            if self._stream.capturing:
                raise StreamError(
                    f"stream {self._stream.name!r} is being captured, and no run before the "
                    f"capture took {size} bytes of scratch on it: run the workload once on this "
                    "stream, one made with create_stream(), then capture it"
                )
            memory = allocate(self.device, size, self._stream)
        if memory not in self._used:
            self._used.append(memory)
        return memory

    def _return(self, memory: Memory) -> None:
        """Take back memory of the call's own stream: stream order makes it free at once."""
        note_freed(self.device, memory, self._stream)
        self._spare.append(memory)

    def __enter__(self) -> Self:
        if self._state != "new":
            raise StreamError("a WorkloadContext is for one call: make a new one")
        self._stream.require_open()
        if self._arena is not None:
            self._spare = self._arena.begin(self._stream)
        self._state = "open"
        borrowing.open = (*borrowing.open, self)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        contexts = borrowing.open
        if self._state != "open" or not contexts or contexts[-1] is not self:
            raise StreamError(
                "a WorkloadContext must be left once, on the thread that entered it, innermost "
                "first: nothing was changed"
            )
        borrowing.open = contexts[:-1]
        self._state = "over"
        self._known.clear()

        def give_unused() -> None:
            used = self._used
            unused = [memory for memory in self._spare if memory not in used]
            if self._arena is not None and (error is None or self._stream.capturing):
                unused = self._arena.end(self._stream, used, unused)
            else:
                unused += used
            self._used, self._spare = [], []
            call_all(partial(give_back, self.device, memory, self._stream) for memory in unused)

        # The block's own error is the one to tell.
        with contextlib.nullcontext() if error is None else contextlib.suppress(GpuscopeError):
            taken, self._taken = self._taken, []
            call_all([*(scratch.close for scratch in taken), give_unused])
