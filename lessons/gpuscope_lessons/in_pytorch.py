"""PyTorch for exercises: the real one on a GPU; a small part of it on the simulated one."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Never, Self, TypeVar

import numpy as np

from gpuscope.device import Device, Graph, NativeArray
from gpuscope.errors import CapabilityError, StreamError
from gpuscope.extending import Untyped, door, given, require_kind

_T = TypeVar("_T")


@door(device=Device)
def pytorch(device: Device) -> Untyped:
    """Return PyTorch for a learner's program: its module on a GPU, a part on a simulated one.

    The part has the streams, events, graphs and copies that the lessons' exercises use, with
    PyTorch's names and meanings; they are those of ``device``, so they are recorded and judged as
    its own are. What it lacks is an ``AttributeError`` that says what there is.

    On a GPU, ``device`` becomes PyTorch's current device in this thread.

    Raises
    ------
    CapabilityError
        ``device`` is a GPU and PyTorch is not installed, or cannot use a GPU; or it is neither a
        GPU nor simulated.

    Examples
    --------
    >>> import gpuscope as gs
    >>> import gpuscope_lessons as learn
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> torch = learn.pytorch(gpu)
    >>> s, t = torch.cuda.Stream(), torch.cuda.Stream()
    >>> with torch.cuda.stream(s):
    ...     torch.cuda.current_stream() == s
    True
    >>> t.wait_stream(s)
    """
    if device.is_simulated:
        return PartOfTorch(device)
    try:
        torch = importlib.import_module("torch") if device.info.kind == "cuda" else None
    except ImportError:
        torch = None
    if torch is None or not torch.cuda.is_available():
        raise CapabilityError(
            f"PyTorch cannot be tried on {device.info.key}: PyTorch with CUDA is needed, and a "
            "GPU. Install it with 'pip install torch', or open a simulated GPU with "
            "gs.open_device('sim:h200'), which needs no PyTorch"
        )
    torch.cuda.set_device(device.info.index)
    torch.cuda.Stream()  # the first one makes PyTorch's pool of streams, which takes ms
    return torch


def _require_here(cuda: Cuda, device: object) -> None:
    """Refuse another device than the one that there is: ``None``, its index, or ``"cuda:0"``."""
    index = getattr(device, "index", device)
    name = str(getattr(device, "type", device))
    if isinstance(index, bool) or not (
        index is None or index == cuda._index or name in ("cuda", f"cuda:{cuda._index}")
    ):
        raise CapabilityError(
            f"device is {given(device)}: on a simulated GPU there is 'cuda:{cuda._index}' alone; "
            "leave it out"
        )


def _require_usual(**arguments: object) -> None:
    """Refuse arguments of PyTorch's that have another value here than the one that does nothing."""
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise CapabilityError(
                f"{name} is {given(value)}: PyTorch takes that, the part of it that there is on a "
                "simulated GPU does not; leave it out"
            )


class _Part:
    """Says what there is, where somebody asks for what there is not."""

    def __getattr__(self, name: str) -> Never:
        names = ", ".join(attribute for attribute in dir(self) if not attribute.startswith("_"))
        raise AttributeError(
            f"{type(self).__name__} has no {name!r}: on a simulated GPU there is only a part of "
            f"PyTorch, here {names}"
        )


class Tensor(_Part):
    """Memory of the GPU or the host."""

    def __init__(self, cuda: Cuda, array: NativeArray) -> None:
        self._cuda, self._array = cuda, array

    def copy_(self, src: Tensor, non_blocking: bool = False) -> Tensor:  # noqa: FBT001, FBT002 - as PyTorch's
        """Copy in the current stream; from or to the host, wait for it unless told not to."""
        require_kind("src", src, Tensor)
        on_host = [isinstance(array, np.ndarray) for array in (self._array, src._array)]
        if all(on_host):
            np.copyto(self._array, src._array)  # type: ignore[arg-type]  # both are NumPy's
            return self
        stream = self._cuda.current_stream()
        stream._stream.copy(self._array, src._array)
        if any(on_host) and not non_blocking:
            stream.synchronize()
        return self

    def record_stream(self, stream: Stream) -> None:
        """Do nothing: only memory that PyTorch has taken is given out again."""
        require_kind("stream", stream, Stream)


class Stream(_Part):
    """A non-blocking stream; as PyTorch's own, it stays when nobody holds it any more.

    In a ``with`` block of its own it is this thread's current stream.
    """

    _cuda: Cuda

    def __init__(self, device: object = None, priority: int = 0, **others: object) -> None:
        _require_here(self._cuda, device)
        _require_usual(**others)
        self._stream = self._cuda._device.create_stream(priority=priority)
        self._cuda._streams.callback(self._stream.close)

    def __enter__(self) -> Self:
        self._cuda._of_thread.streams.append(self)
        return self

    def __exit__(self, *_raised: object) -> None:
        self._cuda._of_thread.streams.pop()

    @property
    def cuda_stream(self) -> int:
        """CUDA's handle."""
        return self._stream.handle

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.cuda_stream == other.cuda_stream

    def __hash__(self) -> int:
        return hash(self.cuda_stream)

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event, or a new one; returns it."""
        event = self._cuda.Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Have what is queued from now on wait for the latest record of an event."""
        require_kind("event", event, Event)
        self._stream.wait(event._event)

    def wait_stream(self, stream: Stream) -> None:
        """Have what is queued from now on wait for what is queued in another stream now."""
        require_kind("stream", stream, Stream)
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        """Wait on the host for all that is queued."""
        self._stream.synchronize()

    def query(self) -> bool:
        """Whether all that was queued is done."""
        return self._stream.is_done


class ExternalStream(Stream):
    """A stream that somebody else made, by its handle."""

    def __init__(self, stream_ptr: int, device: object = None, **others: object) -> None:
        _require_here(self._cuda, device)
        _require_usual(**others)
        self._stream = self._cuda._device.wrap_stream(stream_ptr)


class Event(_Part):
    """A point in a stream's work."""

    _cuda: Cuda

    def __init__(
        self,
        enable_timing: bool = False,  # noqa: FBT001, FBT002 - as PyTorch's
        blocking: bool = False,  # noqa: ARG002, FBT001, FBT002
        interprocess: bool = False,  # noqa: FBT001, FBT002
        external: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        _require_usual(interprocess=interprocess, external=external)
        self._event = self._cuda._device.create_event(timing=enable_timing)

    def record(self, stream: Stream | None = None) -> None:
        """Record it in a stream, or in the current one."""
        require_kind("stream", stream, Stream, None)
        (stream or self._cuda.current_stream())._stream.record(self._event)

    def wait(self, stream: Stream | None = None) -> None:
        """Have a stream, or the current one, wait for it."""
        require_kind("stream", stream, Stream, None)
        (stream or self._cuda.current_stream()).wait_event(self)

    def synchronize(self) -> None:
        """Wait on the host for its latest record."""
        self._event.synchronize()

    def query(self) -> bool:
        """Whether its latest record is done."""
        return self._event.is_done


class CUDAGraph(_Part):
    """Work that :meth:`Cuda.graph` captures, to be replayed."""

    _cuda: Cuda
    _graph: Graph | None = None

    def __init__(self, keep_graph: bool = False) -> None:  # noqa: FBT001, FBT002 - as PyTorch's
        _require_usual(keep_graph=keep_graph)

    def pool(self) -> tuple[int, int]:
        """Return a number for the memory of its work, for :meth:`Cuda.graph`."""
        return 0, id(self)

    def replay(self) -> None:
        """Launch it in the current stream."""
        if self._graph is None:
            raise StreamError(
                "this CUDAGraph captured nothing: capture work with torch.cuda.graph() first"
            )
        self._graph.launch(stream=self._cuda.current_stream()._stream)


class _OfThread(threading.local):
    """The current streams of a thread: the innermost block's is the last."""

    def __init__(self) -> None:
        self.streams = list[Stream]()


class Cuda(_Part):
    """The part of ``torch.cuda``."""

    def __init__(self, device: Device) -> None:
        self._device, self._of_thread = device, _OfThread()
        self._index = device.info.index
        self._streams = contextlib.ExitStack()  # closes all, also when one fails
        self._pools = itertools.count(1)
        weakref.finalize(self, self._streams.close).atexit = False
        self.Stream, self.Event = self._of(Stream), self._of(Event)
        self.ExternalStream = self._of(ExternalStream, self.Stream)
        self.CUDAGraph = self._of(CUDAGraph)

    def _of(self, kind: type[_T], *bases: type) -> type[_T]:
        """Return a class whose objects are of this device."""
        return type(kind.__name__, (kind, *bases), {"_cuda": self})

    def current_stream(self, device: object = None) -> Stream:
        """Return this thread's current stream."""
        _require_here(self, device)
        return (self._of_thread.streams or [self.default_stream()])[-1]

    def default_stream(self, device: object = None) -> Stream:
        """Return the legacy default stream."""
        _require_here(self, device)
        return self.ExternalStream(0)

    def stream(self, stream: Stream | None) -> AbstractContextManager[Stream | None]:
        """Make a stream the current one of this thread until the block ends; not ``None``."""
        require_kind("stream", stream, Stream, None)
        return contextlib.nullcontext() if stream is None else stream

    def graph_pool_handle(self) -> tuple[int, int]:
        """Return a number for memory that graphs share."""
        return 0, next(self._pools)

    @contextlib.contextmanager
    def graph(
        self,
        cuda_graph: CUDAGraph,
        pool: tuple[int, int] | None = None,  # noqa: ARG002 - it has memory only that is made before
        stream: Stream | None = None,
        capture_error_mode: str = "global",
    ) -> Iterator[None]:
        """Capture a stream, or one of its own, which is the current one until the block ends.

        What other threads call is never an error, even where the mode is ``"global"``.
        """
        require_kind("cuda_graph", cuda_graph, CUDAGraph)
        require_kind("stream", stream, Stream, None)
        if capture_error_mode not in ("global", "thread_local"):
            raise CapabilityError(
                f"capture_error_mode is {given(capture_error_mode)}: on a simulated GPU there is "
                "'thread_local', and 'global', which is the same there"
            )
        captured = stream or self.Stream()
        self.synchronize()
        with self.stream(captured), captured._stream.capture() as made:
            yield
        cuda_graph._graph = made

    def synchronize(self, device: object = None) -> None:
        """Wait on the host for the device."""
        _require_here(self, device)
        self._device.synchronize()


class PartOfTorch(_Part):
    """The part of ``torch``."""

    def __init__(self, device: Device) -> None:
        self.cuda = Cuda(device)

    def from_dlpack(
        self,
        ext_tensor: NativeArray,
        *,
        device: object = None,
        copy: bool | None = None,
    ) -> Tensor:
        """Return an array of the device or of NumPy as a tensor, without copying."""
        _require_usual(device=device, copy=copy)
        return Tensor(self.cuda, ext_tensor)
