"""Arguments checked at the door: an error names the argument, what was given and what is needed."""

from __future__ import annotations

import functools
import inspect
import math
import operator
import re
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, ParamSpec, TypeAlias, TypeVar

from gpuscope._text import UNITS_NS, clean
from gpuscope.errors import GpuscopeError, InvalidArgument

_LIMIT = 60
_P = ParamSpec("_P")
_R = TypeVar("_R")
Kind: TypeAlias = object
"""A type, a type's full name where to import it would take long, ``None``, ``Callable``, or one
of the kinds below; see :func:`door`."""
_WORDS: dict[object, str] = {
    None: "None",
    str: "text",
    int: "a whole number",
    float: "a finite number",
    bool: "a bool",
    Callable: "a callable",
}


def given(value: object) -> str:
    """Say what an argument was: its value where that is plain, else its type.

    Examples
    --------
    >>> from gpuscope.extending import given
    >>> given(3), given([3])
    ('3', 'list')
    """
    if value is None or isinstance(value, bool | int | float | str):
        try:
            return clean(repr(value), _LIMIT)
        except ValueError:  # Python writes no number of more than 4,300 digits
            return f"a number of {value.bit_length()} bits"  # type: ignore[union-attr]
    return clean(type(value).__name__, _LIMIT)


def count(
    name: str,
    value: Any,
    *,
    least: int = 0,
    most: int | None = None,
    error: Callable[[str], GpuscopeError] = InvalidArgument,
) -> int:
    """Return a whole number from ``least`` to ``most``; no bool, and no float that is one.

    Parameters
    ----------
    name, value
        Of the argument.
    least, most
        What it may be; ``None``: there is no most.
    error
        What is raised otherwise, made of a text.

    Examples
    --------
    >>> from gpuscope.extending import count
    >>> count("repeats", 0, least=1)
    Traceback (most recent call last):
        ...
    gpuscope.errors.InvalidArgument: repeats is 0; a whole number of at least 1 is needed
    """
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or (most is not None and number > most):
        span = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise error(f"{name} is {given(value)}; a whole number {span} is needed")
    return number


_UNITS_NS = {**UNITS_NS, "us": 10**3, "min": 60 * 10**9, "h": 3600 * 10**9}
_LENGTH = re.compile(rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS_NS)})\s*", re.ASCII)


def length_ns(name: str, value: str | float) -> int:
    """Return a length of time, seconds or a text such as ``"10 min"``, in ns; at least 1."""
    amount, unit = value, "s"
    if isinstance(value, str):
        match = _LENGTH.fullmatch(value)
        amount, unit = (float(match[1]), match[2]) if match else (0.0, "s")
    length = float(amount) * _UNITS_NS[unit]
    if not 0.5 < length < 1 << 62:
        raise InvalidArgument(
            f"{name} is {given(value)}; a number of seconds from 1e-9 to about 4.6e9, or a text "
            f"with a unit ({', '.join(_UNITS_NS)}) such as '500 ms', '60 s' or '10 min', is needed"
        )
    return round(length)


@dataclass(frozen=True)
class MappingOf:
    """A kind of argument: a mapping of text to values of one kind.

    Examples
    --------
    >>> from gpuscope.extending import MappingOf, require_kind
    >>> require_kind("sizes", {"a": 1}, MappingOf(int))
    """

    value: Kind


IN_ANY_ORDER = (list, tuple, set, frozenset)


@dataclass(frozen=True)
class SeveralOf:
    """A kind of argument: a list or tuple of values of one kind, and of one length if stated.

    Attributes
    ----------
    of
        What may hold them: :data:`IN_ANY_ORDER` where their order means nothing.

    Examples
    --------
    >>> from gpuscope.extending import SeveralOf, require_kind
    >>> require_kind("names", ["a", "b"], SeveralOf(str))
    """

    value: Kind
    length: int | None = None
    of: tuple[type[Collection[object]], ...] = (list, tuple)


def door(*annotated: str, **kinds: Kind) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Check a function's arguments by name before it runs.

    A kind is a type, ``None``, a :class:`MappingOf`, or a tuple of these of which one must
    hold. No bool is a whole number here, and neither NaN nor an infinity a number.

    Parameters
    ----------
    annotated
        Arguments whose kind is what their annotation says.
    kinds
        Argument → its kind, or a tuple of kinds.

    Examples
    --------
    >>> from gpuscope.extending import door
    >>> @door("name", repeats=int)
    ... def greet(name: str, repeats=1):
    ...     print("hello", name)
    >>> greet("Ada", repeats="two")
    Traceback (most recent call last):
        ...
    gpuscope.errors.InvalidArgument: repeats is 'two'; a whole number is needed
    """
    wanted = {name: kind if isinstance(kind, tuple) else (kind,) for name, kind in kinds.items()}

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        signature = inspect.signature(function)

        @functools.cache  # annotations may name what is defined below
        def all_wanted() -> dict[str, tuple[Kind, ...]]:
            hints = typing.get_type_hints(function) if annotated else {}
            return {**{name: _kinds_of(hints[name]) for name in annotated}, **wanted}

        @functools.wraps(function)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            kinds = all_wanted()
            for name, value in signature.bind(*args, **kwargs).arguments.items():
                if name in kinds:
                    require_kind(name, value, *kinds[name])
            return function(*args, **kwargs)

        return checked

    return decorate


def _kinds_of(hint: Kind) -> tuple[Kind, ...]:
    """Return the kinds that an annotation stands for; a literal's is its type."""
    origin: Kind = typing.get_origin(hint)
    inside = typing.get_args(hint)
    if origin in (typing.Union, UnionType):
        return tuple(dict.fromkeys(kind for part in inside for kind in _kinds_of(part)))
    if origin is typing.Literal:
        return tuple(dict.fromkeys(map(type, inside)))
    if origin is Mapping and inside[1] is not object:
        return (MappingOf(inside[1]),)
    return (None if hint is NoneType else origin or hint,)


def require_kind(name: str, value: object, *kinds: Kind) -> None:
    """Raise :class:`InvalidArgument` unless ``value`` is of one of the kinds that a door takes.

    Parameters
    ----------
    name, value
        Of the argument.
    kinds
        As :func:`door` takes them.

    Examples
    --------
    >>> from gpuscope.extending import require_kind
    >>> require_kind("name", 3, str, None)
    Traceback (most recent call last):
        ...
    gpuscope.errors.InvalidArgument: name is 3; text or None is needed
    """
    exact = type(value)
    if exact in kinds and exact is not int and exact is not float:  # the common case, quickly
        return
    if any(_is(value, kind) for kind in kinds):
        return
    for kind in kinds:
        if isinstance(kind, MappingOf) and isinstance(value, Mapping):
            for key, item in value.items():
                require_kind(f"a key of {name}", key, str)
                require_kind(f"{name}[{given(key)}]", item, kind.value)
        if isinstance(kind, SeveralOf) and isinstance(value, kind.of):
            for index, item in enumerate(value):
                require_kind(f"{name}[{index}]", item, kind.value)
    needed = " or ".join(_word(kind) for kind in kinds)
    length = f" of length {len(value)}" if isinstance(value, list | tuple) else ""
    raise InvalidArgument(f"{name} is {given(value)}{length}; {needed} is needed")


def _is(value: object, kind: Kind) -> bool:
    if isinstance(kind, MappingOf):
        return isinstance(value, Mapping) and all(
            isinstance(key, str) and _is(item, kind.value) for key, item in value.items()
        )
    if isinstance(kind, SeveralOf):
        return (
            isinstance(value, kind.of)
            and kind.length in (None, len(value))
            and all(_is(item, kind.value) for item in value)
        )
    if kind is None:
        return value is None
    if isinstance(kind, str):
        bases = type(value).__mro__
        kind = tuple(each for each in bases if f"{each.__module__}.{each.__qualname__}" == kind)
    if kind in (int, float):
        if isinstance(value, Integral):  # NumPy's too
            return not isinstance(value, bool) and -(2**63) <= int(value) < 2**63
        return kind is float and isinstance(value, Real) and math.isfinite(value)
    assert isinstance(kind, type | tuple)  # noqa: S101 - what else a kind is
    return isinstance(value, kind) and (kind in (bool, object) or not isinstance(value, bool))


def _word(kind: Kind) -> str:
    if isinstance(kind, MappingOf | SeveralOf):
        inner = getattr(kind.value, "__name__", None) or _word(kind.value)
        if isinstance(kind, MappingOf):
            return f"a mapping of text to {inner}"
        return f"a list of {'' if kind.length is None else f'{kind.length} '}{inner}"
    name = kind if isinstance(kind, str) else getattr(kind, "__name__", "")
    return _WORDS.get(kind) or f"a {name.rpartition('.')[2]}"


def closest(name: object, known: Iterable[str]) -> str:
    """Suggest which of ``known`` a ``name`` may have been meant to be, in brackets; or nothing.

    Examples
    --------
    >>> from gpuscope.extending import closest
    >>> closest("strem", ["stream", "event"])
    " (did you mean 'stream'?)"
    """
    near = get_close_matches(name, list(known), 1) if isinstance(name, str) else []
    return f" (did you mean {clean(near[0], _LIMIT)!r}?)" if near else ""
