"""PyTorch's operators as they are called: which memory each reads and writes, by its schema."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple, Protocol

from gpuscope._types import Untyped

Dispatch = Callable[[Untyped, Sequence[object], Mapping[str, object]], object]
"""Runs an operator with its arguments; returns its result."""

_OVERWRITING = {
    "copy_",
    "zero_",
    "fill_",
    "normal_",
    "uniform_",
    "random_",
    "bernoulli_",
    "exponential_",
    "_foreach_zero_",
    "_foreach_copy_",
}
"""Operators in place that do not read what they write first."""
_COPIES = {"copy_", "_to_copy", "_copy_from", "_foreach_copy_"}
_UNSEEN = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem"}
"""Namespaces of collectives: they run on streams of their own, and no schema tells."""
_IGNORED = {
    "record_stream",
    "is_pinned",
    "resize_",
    "set_",
    "_pin_memory",
    "_unsafe_view",
    "is_set_to",
    "is_same_size",
    "_assert_tensor_metadata",
    "_fused_sdp_choice",
}
"""Operators that touch no memory, or none that a stream orders."""


class TensorLike(Protocol):
    """What is asked of a tensor."""

    @property
    def device(self) -> Untyped:
        """Where it is."""

    @property
    def shape(self) -> Sequence[int]:
        """Its sizes, in elements."""

    def stride(self) -> Sequence[int]:
        """Return its steps, in elements."""

    def element_size(self) -> int:
        """Return the bytes of an element."""

    def data_ptr(self) -> int:
        """Return the address of the first element."""

    def untyped_storage(self) -> Untyped:
        """Return the memory that it and its views share."""


class Use(NamedTuple):
    """A tensor that an operator reads or writes."""

    tensor: TensorLike
    reads: bool
    writes: bool


class Operator(NamedTuple):
    """What the schema of an operator says.

    Attributes
    ----------
    name
        As ``aten::add``.
    arguments
        Place, name, and whether it is read and written, of each that can hold tensors' memory.
    makes
        Whether it writes memory that its result owns.
    copies
        Whether it only copies, perhaps between host and device.
    waits_place
        Place of the argument ``non_blocking``, if it has one.
    seen
        Whether its schema tells what it does.
    """

    name: str
    arguments: tuple[tuple[int, str, bool, bool], ...] = ()
    makes: bool = False
    copies: bool = False
    waits_place: int | None = None
    seen: bool = True

    def uses(
        self, args: Sequence[object], kwargs: Mapping[str, object], result: object
    ) -> list[Use]:
        """Return what a call used; a result that shares an argument's memory is no use."""
        uses: list[Use] = []
        for position, name, reads, writes in self.arguments:
            value = args[position] if position < len(args) else kwargs.get(name)
            uses += [Use(tensor, reads, writes) for tensor in tensors_in(value)]
        if self.makes:
            taken = {storage_of(use.tensor) for use in uses}
            uses += [
                Use(tensor, reads=False, writes=True)
                for tensor in tensors_in(result)
                if storage_of(tensor) not in taken
            ]
        return uses

    def returns_at_once(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
        """Whether a copy was asked not to wait for its end."""
        position = self.waits_place
        if position is None:
            return False
        return bool(args[position] if position < len(args) else kwargs.get("non_blocking"))


def tensors_in(value: object) -> Iterator[TensorLike]:
    """Yield the tensors of an argument or a result."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif hasattr(value, "untyped_storage"):
        yield value  # type: ignore[misc]  # a tensor, as far as anybody asks


def storage_of(tensor: TensorLike) -> int:
    """Return the address of a tensor's memory; something below 0 where it has none of its own."""
    try:
        address: int = tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # it stands for others, or has no memory
        return -id(tensor)
    return address or -id(tensor)


@cache
def operator_of(function: Untyped) -> Operator | None:
    """Return what an operator does; ``None`` if it touches no memory, as a view."""
    schema: Untyped = getattr(function, "__dict__", {}).get("_schema")
    if schema is None:
        return Operator(str(function), seen=False)
    space, _, name = schema.name.rpartition("::")
    if space in _UNSEEN:
        return Operator(schema.name, seen=False)
    name = name if space == "aten" else ""  # of others, the schema tells all that is known
    if name in _IGNORED:
        return None
    allocates = name.startswith(("empty", "new_empty")) and not name.endswith("_")
    reads_shape = allocates or name.startswith("new_") or name.endswith("_like")
    arguments = []
    waits_place = None
    for position, argument in enumerate(schema.arguments):
        if argument.name == "non_blocking":
            waits_place = position
        alias = argument.alias_info
        writes = alias is not None and alias.is_write
        if "Tensor" not in str(argument.type) or (alias is not None and not writes):
            continue
        reads = not (argument.is_out or (writes and name in _OVERWRITING))
        if writes or not reads_shape:
            arguments.append((position, argument.name, reads, writes))
    makes = not allocates and any(
        output.alias_info is None and "Tensor" in str(output.type) for output in schema.returns
    )
    if not arguments and not makes:
        return None
    return Operator(schema.name, tuple(arguments), makes, name in _COPIES, waits_place)


def gpu_of(tensor: TensorLike) -> int | None:
    """Return the ordinal of the GPU that holds a tensor; ``None``: the host does."""
    device = tensor.device
    return (device.index or 0) if device.type == "cuda" else None


def is_pinned(storage: Untyped) -> bool:
    """Whether copies use memory of the host directly."""
    return bool(storage.is_pinned())


def pytorch() -> Untyped | None:
    """Return PyTorch where it is imported and can use a GPU."""
    torch: Untyped | None = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return torch if cuda is not None and cuda.is_available() else None


@contextlib.contextmanager
def watching(torch: Untyped, dispatch: Dispatch) -> Iterator[None]:
    """Have ``dispatch`` run each operator that this thread calls, and backward passes of it.

    What PyTorch compiles is compiled as without it. Modes are of a thread, and the last entered
    ends first: one that cannot be left now stays, and does nothing.
    """
    modes = torch.utils._python_dispatch
    is_on = True

    def run(
        _mode: object,
        function: Untyped,
        _types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if not is_on:
            return function(*args, **(kwargs or {}))
        return dispatch(function, args, kwargs or {})

    methods = {
        "__torch_dispatch__": run,
        "ignore_compile_internals": classmethod(lambda _mode: True),
    }
    mode = type("Watching", (modes.TorchDispatchMode,), methods)()
    try:
        mode.__enter__()
        torch.empty(0)  # what PyTorch imports at the first operator takes seconds
        yield
    finally:
        is_on = False
        if modes._get_current_dispatch_mode() is mode:
            mode.__exit__(None, None, None)


def current_stream(torch: Untyped, device: int) -> int:
    """Return the handle of PyTorch's current stream on a device."""
    handle: int = torch._C._cuda_getCurrentRawStream(device)
    return handle


def is_capturing(torch: Untyped) -> bool:
    """Whether what PyTorch does in its current stream becomes part of a graph."""
    return bool(torch._C._cuda_isCurrentStreamCapturing())
