"""Methods of other libraries' classes that tell of their calls while somebody listens."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager

from gpuscope._types import Untyped

FAILED = object()
"""The result of a call that raised an error."""

Args = tuple[object, ...]
Kwargs = Mapping[str, object]
Instead = Callable[[Untyped, Untyped, Args, Kwargs], object]
"""Runs instead of a method, which it is given with its object and arguments."""
After = Callable[[Untyped, object, int], object]
"""Is told of a call's object, its result and when it began, ns; returns another result or None."""


_IMMUTABLE = 1 << 8
"""``Py_TPFLAGS_IMMUTABLETYPE``: Cython's classes have it, and so refuse to be changed."""
_FLAGS_AT = object.__basicsize__ + 19 * ctypes.sizeof(ctypes.c_void_p)
"""Where CPython's ``PyTypeObject`` has ``tp_flags``: behind ``ob_size`` and 18 slots."""


@contextlib.contextmanager
def _mutable(owner: Untyped) -> Iterator[None]:
    """Let a class be changed in the block: one of Cython's, too, if its flags are where we look."""
    flags = owner.__flags__ if isinstance(owner, type) else 0
    word = ctypes.c_ulong.from_address(id(owner) + _FLAGS_AT) if flags & _IMMUTABLE else None
    if word is None or word.value != flags:
        yield
        return
    word.value &= ~_IMMUTABLE
    try:
        yield
    finally:
        word.value |= _IMMUTABLE  # and nothing else: to be changed has changed others


@contextlib.contextmanager
def replaced(owner: Untyped, name: str, instead: Instead) -> Iterator[None]:
    """Have something run in a method's place; a class that refuses to be changed goes on."""
    method = getattr(owner, name)
    former = vars(owner).get(name)
    is_on = True

    def told(self: Untyped, *args: object, **kwargs: object) -> object:
        if is_on:
            return instead(method, self, args, kwargs)
        return method(self, *args, **kwargs)

    try:
        with contextlib.suppress(TypeError), _mutable(owner):
            setattr(owner, name, told)
        yield
    finally:
        is_on = False
        if vars(owner).get(name) is told:  # else others wrapped it since: it stays, and is off
            with _mutable(owner):
                delattr(owner, name) if former is None else setattr(owner, name, former)


def wrapped(
    owner: Untyped, name: str, after: After, before: Callable[[Untyped], object] = id
) -> AbstractContextManager[None]:
    """Have a method of a class tell of each call's beginning, and of its result or failure."""

    def told(method: Untyped, self: Untyped, args: Args, kwargs: Kwargs) -> object:
        start_ns, result = time.time_ns(), FAILED
        before(self)
        try:
            result = method(self, *args, **kwargs)
        finally:
            other = after(self, result, start_ns)
        return result if other is None else other

    return replaced(owner, name, told)
