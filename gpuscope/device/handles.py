"""Raw stream handles: of ours, of other libraries' streams, and of whole numbers."""

from __future__ import annotations

from typing import Any, TypeAlias

from gpuscope._checks import given
from gpuscope.errors import StreamError

AnyStream: TypeAlias = Any
"""A stream of whatever library: ours, an object with ``__cuda_stream__``, or a raw handle."""


def raw_handle(stream: AnyStream) -> int:
    """Return the integer handle of anything that a guard accepts."""
    return stream if isinstance(stream, int) else int(stream.__cuda_stream__()[1])


def checked_handle(stream: AnyStream) -> int:
    """Return the integer handle of what a call was given as its stream.

    Raises
    ------
    StreamError
        It is none of what a guard accepts, or its handle is none that CUDA has.
    """
    if isinstance(stream, bool) or not (
        isinstance(stream, int) or hasattr(stream, "__cuda_stream__")
    ):
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


class Handle:
    """A raw handle as an object with ``__cuda_stream__``."""

    __slots__ = ("_handle",)

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self._handle)
