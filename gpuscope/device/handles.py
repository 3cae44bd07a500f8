"""Streams as other libraries know them: raw handles, and CuPy's and PyTorch's current streams."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

from gpuscope._checks import given
from gpuscope.errors import StreamError

if TYPE_CHECKING:  # which loads NumPy
    from gpuscope._types import Untyped


class HasCudaStream(Protocol):
    """A stream of whatever library, ours included."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the protocol's version and the raw handle."""


AnyStream: TypeAlias = HasCudaStream | int | None
"""A stream, as an object or as a raw handle; ``None``: none is named."""


def raw_handle(stream: HasCudaStream | int) -> int:
    """Return the integer handle of anything that a guard accepts."""
    return stream if isinstance(stream, int) else int(stream.__cuda_stream__()[1])


def checked_handle(stream: AnyStream) -> int:
    """Return the integer handle of what a call was given as its stream.

    Raises
    ------
    StreamError
        It is none of what a guard accepts, or its handle is none that CUDA has.
    """
    is_number = isinstance(stream, int) and not isinstance(stream, bool)
    if stream is None or not (is_number or hasattr(stream, "__cuda_stream__")):
        raise StreamError(
            f"stream is {given(stream)}: give a stream made with create_stream(), an object "
            "with __cuda_stream__ or an integer handle"
        )
    try:
        handle = raw_handle(stream)
    except StreamError:
        raise
    except Exception as error:
        raise StreamError(
            f"{type(stream).__name__} has a __cuda_stream__ that gives no handle "
            f"({type(error).__name__}: {error}): give a stream made with create_stream()"
        ) from error
    if not 0 <= handle < 1 << 64:
        raise StreamError(
            f"stream is {given(handle)}, which is no handle: those are addresses of 64 bits"
        )
    return handle


class RawHandle:
    """A raw handle as an object with ``__cuda_stream__``."""

    __slots__ = ("_handle",)

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self._handle)


class BoundLibrary(NamedTuple):
    """A library that was given a stream: how to ask it, what it was given, and its own back."""

    library: str
    current: Callable[[], object]
    given: object
    restore: Callable[[], object]


def bind(stream: AnyStream) -> list[BoundLibrary]:
    """Make ``stream`` current for CuPy and PyTorch where they are imported."""
    bound: list[BoundLibrary] = []
    try:
        for name, bind_one in (("cupy", _bind_cupy), ("torch", _bind_torch)):
            library = sys.modules.get(name)
            if library is not None and (given := bind_one(stream, library)) is not None:
                bound.append(given)
    except BaseException:
        unbind(bound)
        raise
    return bound


def check_bound(bound: list[BoundLibrary]) -> None:
    """Refuse to restore what another library's own selection has replaced."""
    for library in bound:
        now = library.current()
        if now is not library.given and now != library.given:
            raise StreamError(
                "a bound CallerStreamGuard is left while CuPy or PyTorch have another current "
                "stream than it gave them: leave guards innermost first, and do not await inside "
                "a bound one. Nothing was changed"
            )


def unbind(bound: list[BoundLibrary]) -> None:
    """Restore what the libraries had, the second also if the first refuses."""
    if bound:
        try:
            bound[0].restore()
        finally:
            unbind(bound[1:])


def hand_over(
    left: list[BoundLibrary], inside: list[BoundLibrary] | Literal[False]
) -> list[BoundLibrary]:
    """Return what the guard inside one that was left restores from now on, in its place."""
    bound = {outer.library: outer for outer in left}
    for inner in inside or ():
        outer = bound.get(inner.library, inner)
        bound[inner.library] = inner._replace(restore=outer.restore)
    return list(bound.values())


def _cuda_index(stream: Untyped) -> int | None:
    """Ordinal of one of our streams' device: -1 if that is no GPU, None for a foreign stream."""
    info = getattr(getattr(stream, "device", None), "info", None)
    if info is None:
        return None
    return int(info.index) if info.kind == "cuda" else -1


def _bind_cupy(stream: Untyped, cupy: Untyped) -> BoundLibrary | None:
    try:
        module = cupy.cuda.stream
    except AttributeError:  # it is being imported right now
        return None
    current = module.get_current_stream
    before = current()
    ours = getattr(stream, "cupy_stream", None)
    if ours is None:
        index = _cuda_index(stream)
        if index == -1:
            return None
        ours = module.Stream.from_external(RawHandle(raw_handle(stream)))
        if index is not None:  # a stream of ours: made once
            ours.device_id = index
            stream.cupy_stream = ours
    try:
        ours.use()
    except RuntimeError as error:
        raise StreamError(
            f"CuPy cannot make the stream current ({error}): make the stream's device current "
            "first, as in `with cupy.cuda.Device(…)`. Nothing was changed"
        ) from error
    return BoundLibrary("CuPy", current, ours, before.use)


def _bind_torch(stream: Untyped, torch: Untyped) -> BoundLibrary | None:
    selection = getattr(stream, "torch_stream", None) or _know_to_torch(stream, torch)
    if selection is None:
        return None
    ours, index = selection
    device, current, select, _ = _torch_calls(torch)
    home = device()
    before = current(home)
    replaced = before if index is None or index == home else current(index)
    select(*ours)  # makes the stream's device current, too

    def restore() -> None:
        if replaced is not before:
            select(*replaced)
        select(*before)

    return BoundLibrary("PyTorch", lambda: current(device()), ours, restore)


def _know_to_torch(stream: Untyped, torch: Untyped) -> tuple[_Key, int | None] | None:
    """Return what selects a stream in PyTorch, and its device's ordinal; ``None``: it cannot be."""
    cuda = getattr(torch, "cuda", None)
    if cuda is None:
        return None
    if not cuda.is_initialized():
        if not cuda.is_available():
            return None
        cuda.init()
    index = _cuda_index(stream)
    if index == -1:
        return None
    selection = _torch_calls(torch)[3](cuda.ExternalStream(raw_handle(stream), device=index)), index
    if index is not None:  # a stream of ours: made once
        stream.torch_stream = selection
    return selection


_Key: TypeAlias = tuple[object, ...]
"""What selects a stream in PyTorch."""


@lru_cache(maxsize=1)
def _torch_calls(
    torch: Untyped,
) -> tuple[Callable[[], int], Callable[[int], _Key], Callable[..., object], Callable[..., _Key]]:
    """Return what asks for PyTorch's device and stream, selects a stream, and gives its key.

    PyTorch's public functions make an object at each call, which takes longer than the rest of a
    guard; where the functions that they call are there (PyTorch 2), those are taken.
    """
    inner: Untyped = getattr(torch, "_C", None)
    if hasattr(inner, "_cuda_setStream"):
        return (
            inner._cuda_getDevice,
            inner._cuda_getCurrentStream,
            inner._cuda_setStream,
            lambda stream: (stream.stream_id, stream.device_index, stream.device_type),
        )
    cuda = torch.cuda
    return (
        cuda.current_device,
        lambda device: (cuda.current_stream(device),),
        cuda.set_stream,
        lambda stream: (stream,),
    )
