"""Names that a person gives to partitions of other libraries: PyTorch's, cuda.core's."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast, runtime_checkable

from gpuscope._checks import given
from gpuscope.device.handles import HasCudaStream, raw_handle
from gpuscope.device.partition import Partition
from gpuscope.device.sizes import check_name
from gpuscope.device.stream import Stream
from gpuscope.errors import InvalidArgument, InvalidPartition

if TYPE_CHECKING:
    from gpuscope._types import Untyped


@runtime_checkable
class TorchGreenContext(Protocol):
    """A green context of PyTorch's, as far as it is asked."""

    def Stream(self) -> HasCudaStream:  # noqa: N802 - PyTorch's name
        """Return a stream of it."""


ForeignPartition: TypeAlias = "TorchGreenContext | HasCudaStream | int | Untyped"
"""``torch.cuda.green_contexts.GreenContext``, ``cuda.core.Context``, or a stream of either."""


@dataclass(frozen=True)
class NamedPartition:
    """A partition of another library that has a name.

    Attributes
    ----------
    context
        The ``CUcontext`` of its green context.
    stream
        The handle of the stream that it was named by; 0: it was named itself.
    """

    name: str
    sm_count: int
    context: int
    stream: int = 0
    color: str = ""


NAMED: dict[int, NamedPartition] = {}
"""Context → what it is called; the latest name counts."""


def name_partition(partition: ForeignPartition, name: str) -> None:
    """Call a partition of PyTorch's or of cuda.core's by a name, in what is recorded from now on.

    Its work then has the name as its partition: in timelines, confinement and all that sorts by
    partition, with its SM count. Work under a guard with a stream that was named counts as given to
    it. Which SMs it has is not looked at, so confinement is judged by green contexts.

    Parameters
    ----------
    partition
        A ``GreenContext`` of PyTorch that has ``Stream()``, a green ``cuda.core.Context``, or a
        stream of either: an object with ``__cuda_stream__`` or ``cuda_stream``, or a handle. While
        an older ``GreenContext.set_context()`` is in force, ``torch.cuda.current_stream()``.
    name
        What to call it. Another call changes it.

    Raises
    ------
    InvalidArgument
        That is no green context and no stream of one, or no name.
    MissingDependency
        cuda-bindings is not installed.
    GpuscopeError
        The driver refuses to tell.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gs.device.name_partition("stream of decode", "decode")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gpuscope.errors.InvalidArgument: partition is 'stream of decode': give a GreenContext of ...
    >>> from torch.cuda.green_contexts import GreenContext  # doctest: +SKIP
    >>> decode = GreenContext(num_sms=16)  # doctest: +SKIP
    >>> gs.device.name_partition(decode, "decode")  # doctest: +SKIP
    >>> with gs.profile() as recording, torch.cuda.stream(decode.Stream()):  # doctest: +SKIP
    ...     model(x)
    """
    try:
        check_name(name)
    except InvalidPartition as error:
        raise InvalidArgument(str(error)) from None
    context, sm_count, stream = _context_of(partition)
    NAMED[context] = NamedPartition(name, sm_count, context, stream)


def _context_of(partition: ForeignPartition) -> tuple[int, int, int]:
    """Return context, SM count and, if that was given, the handle of the stream."""
    from gpuscope.device.cuda import foreign  # noqa: PLC0415 - only there are CUDA libraries

    if isinstance(partition, Partition | Stream):
        raise InvalidArgument("partition is gpuscope's own: carve({name: …}) names it")
    if hasattr(partition, "is_green") and hasattr(partition, "handle"):
        if not partition.is_green:
            raise InvalidArgument("partition is the device's own context: give a green one")
        return (*foreign.of_context(int(partition.handle)), 0)
    is_context = isinstance(partition, TorchGreenContext)
    handle = _handle(cast("TorchGreenContext", partition).Stream() if is_context else partition)
    green_context = foreign.of_stream(handle)
    if green_context is None:
        raise InvalidArgument(
            "partition is a stream of no green context: give a GreenContext, or a stream of one"
        )
    return (*green_context, 0 if is_context else handle)


def _handle(stream: HasCudaStream | int | Untyped) -> int:
    handle = getattr(stream, "cuda_stream", None)  # PyTorch's streams of any version
    if isinstance(handle, int):
        return handle
    with contextlib.suppress(Exception):
        if not isinstance(stream, bool):
            return raw_handle(cast("HasCudaStream | int", stream))
    raise InvalidArgument(
        f"partition is {given(stream)}: give a GreenContext of PyTorch that has Stream(), a green "
        "cuda.core.Context, or a stream of one"
    )
