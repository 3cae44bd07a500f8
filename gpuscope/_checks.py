"""Arguments checked at the door: an error names the argument, what was given and what is needed."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

from gpuscope._text import clean
from gpuscope.errors import GpuscopeError

_LIMIT = 60


def given(value: Any) -> str:
    """Say what an argument was: its value where that is plain, else its type."""
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
    error: Callable[[str], GpuscopeError] = GpuscopeError,
) -> int:
    """Return a whole number from ``least`` to ``most``; no bool, and no float that is one."""
    try:
        found = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = least - 1
    if found < least or (most is not None and found > most):
        span = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise error(f"{name} is {given(value)}; a whole number {span} is needed")
    return found


def closest(name: str, known: Iterable[str]) -> str:
    """Suggest what ``name`` may have been meant to be, as the end of a message; or nothing."""
    near = get_close_matches(name, list(known), 1)
    return f"; did you mean {clean(near[0], _LIMIT)!r}?" if near else ""
