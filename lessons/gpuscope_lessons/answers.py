"""What can be asked: the fields of a form, how they are read, and when they are right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypedDict, cast, runtime_checkable

from gpuscope.errors import InvalidArgument
from gpuscope.extending import given, require_kind

Answer: TypeAlias = object
"""What a kind of answer reads: a text, a number, or a tuple of these."""


class FormField(TypedDict, total=False):
    """A field of a form, as the page takes it."""

    kind: str
    label: str
    options: list[str]
    unit: str


@runtime_checkable
class Kind(Protocol):
    """A kind of answer."""

    def fields(self) -> list[FormField]:
        """Return the form's fields, for the page: kind, label, options, unit."""

    def read(self, values: Sequence[object]) -> Answer:
        """Return the answer that the fields' values are.

        Raises
        ------
        ValueError
            They are none; the text is for the learner.
        """

    def is_right(self, answer: Answer, measured: Answer) -> bool:
        """Whether an answer fits what was measured."""

    def show(self, answer: Answer) -> str:
        """Return an answer, or what was measured, as text."""


@dataclass(frozen=True)
class Choice:
    """One of several options.

    Attributes
    ----------
    options
        Texts, each once.

    Examples
    --------
    >>> import gpuscope_lessons as learn
    >>> kind = learn.Choice(["in order", "at once"])
    >>> kind.is_right(kind.read(["at once"]), measured="in order")
    False
    """

    options: Sequence[str]

    def __post_init__(self) -> None:
        _check_different("options", self.options)

    def fields(self) -> list[FormField]:
        """Return one group of radio buttons."""
        return [{"kind": "radio", "options": list(self.options)}]

    def read(self, values: Sequence[object]) -> str:
        """Return the option."""
        (value,) = values
        if value not in self.options:
            raise InvalidArgument("Choose one of the options first.")
        return str(value)

    def is_right(self, answer: str, measured: str) -> bool:
        """Whether it is the same option."""
        if measured not in self.options:
            raise InvalidArgument(
                f"{measured!r} was measured, which is none of {list(self.options)}"
            )
        return answer == measured

    def show(self, answer: str) -> str:
        """Return the option."""
        return answer


@dataclass(frozen=True)
class Order:
    """An order of things, the first one first.

    Attributes
    ----------
    items
        Texts, each once.

    Examples
    --------
    >>> import gpuscope_lessons as learn
    >>> kind = learn.Order(["load", "compute"])
    >>> kind.show(kind.read(["compute", "load"]))
    'compute → load'
    """

    items: Sequence[str]

    def __post_init__(self) -> None:
        _check_different("items", self.items)

    def fields(self) -> list[FormField]:
        """Return a list to choose from for each place."""
        return [
            {"kind": "select", "label": f"{rank}.", "options": list(self.items)}
            for rank in range(1, len(self.items) + 1)
        ]

    def read(self, values: Sequence[object]) -> tuple[str, ...]:
        """Return the items in their order."""
        if any(not value for value in values):
            raise InvalidArgument("Choose one for each place first.")
        if sorted(map(str, values)) != sorted(self.items):
            raise InvalidArgument("Each comes once: one of them is there twice.")
        return tuple(map(str, values))

    def is_right(self, answer: Sequence[str], measured: Sequence[str]) -> bool:
        """Whether the order is the same."""
        if sorted(measured) != sorted(self.items):
            raise InvalidArgument(f"{list(measured)} was measured, which orders other things")
        return tuple(answer) == tuple(measured)

    def show(self, answer: Sequence[str]) -> str:
        """Return the items with arrows between them."""
        return " → ".join(answer)


@dataclass(frozen=True)
class Value:
    """A number.

    Attributes
    ----------
    unit
        Of the number.
    within
        How far off it may be, as a share of what was measured; 0 asks for the very number.

    Examples
    --------
    >>> import gpuscope_lessons as learn
    >>> kind = learn.Value("µs", within=0.1)
    >>> kind.is_right(95.0, measured=100.0), kind.is_right(80.0, measured=100.0)
    (True, False)
    """

    unit: str = ""
    within: float = 0.0

    def __post_init__(self) -> None:
        require_kind("unit", self.unit, str)
        require_kind("within", self.within, float)

    def fields(self) -> list[FormField]:
        """Return one field for a number."""
        return [{"kind": "number", "label": "Your answer", "unit": self.unit}]

    def read(self, values: Sequence[object]) -> float:
        """Return the number."""
        (value,) = values
        return _number(value)

    def is_right(self, answer: float, measured: float) -> bool:
        """Whether it is near enough."""
        return abs(answer - measured) <= self.within * abs(measured)

    def show(self, answer: float) -> str:
        """Return the number with its unit."""
        return f"{answer:.4g} {self.unit}".rstrip()


@dataclass(frozen=True)
class Interval:
    """A range that a measured number will lie in.

    Attributes
    ----------
    unit
        Of both ends.
    factor
        The upper end is at most this many times the lower one: a range that says
        everything predicts nothing.

    Examples
    --------
    >>> import gpuscope_lessons as learn
    >>> kind = learn.Interval("µs", factor=4)
    >>> kind.is_right(kind.read(["50", "200"]), measured=120.0)
    True
    >>> kind.read(["1", "1000"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gpuscope.errors.InvalidArgument: Be bolder: let the range end at 4 times its beginning ...
    """

    unit: str
    factor: float = 4.0

    def __post_init__(self) -> None:
        require_kind("unit", self.unit, str)
        require_kind("factor", self.factor, float)

    def fields(self) -> list[FormField]:
        """Return two fields for numbers."""
        return [{"kind": "number", "label": name, "unit": self.unit} for name in ("from", "to")]

    def read(self, values: Sequence[object]) -> tuple[float, float]:
        """Return both ends."""
        low, high = (_number(value) for value in values)
        if not 0 < low <= high:
            raise InvalidArgument("The range begins above zero, and does not end before it begins.")
        if high > self.factor * low:
            raise InvalidArgument(
                f"Be bolder: let the range end at {self.factor:g} times its beginning or before."
            )
        return low, high

    def is_right(self, answer: tuple[float, float], measured: float) -> bool:
        """Whether what was measured lies in the range."""
        return answer[0] <= measured <= answer[1]

    def show(self, answer: tuple[float, float] | float) -> str:
        """Return the range, or the number, with its unit."""
        if isinstance(answer, tuple):
            return f"{answer[0]:.4g} to {answer[1]:.4g} {self.unit}"
        return f"{answer:.4g} {self.unit}"


def _number(value: Answer) -> float:
    try:
        number = float(cast("str | float", value))
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InvalidArgument("Write a number first.")
    return number


def _check_different(what: str, texts: Sequence[str]) -> None:
    is_several = isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts)
    if not is_several or len(set(texts)) < max(2, len(texts)):
        raise InvalidArgument(f"{what} are at least two different texts, not {given(texts)}")
