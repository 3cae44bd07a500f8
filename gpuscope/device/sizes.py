"""Sizes of partitions: a count of SMs, a percentage of the GPU's, or the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from numbers import Integral
from typing import Literal, TypeAlias

from gpuscope._checks import given
from gpuscope.errors import InvalidPartition

Rounding = Literal["exact", "up", "down", "nearest"]
"""What to do with a size that a GPU cannot give exactly; ``"exact"`` refuses it."""
REST = "rest"
EXPECTED = (
    "should be a whole number of SMs from 1, a percentage such as '25%' (above 0%, at most 100%), "
    "or 'rest'"
)
_MOST = 10**300
"""Python does not write numbers of more than 4,300 digits."""
_PERCENTAGE = re.compile(r"(\d{1,3}(?:\.\d{1,6})?) ?%", re.ASCII)


@dataclass(frozen=True)
class Size:
    """A size requested for a partition.

    Attributes
    ----------
    plain
        The form used in experiments: ``16``, ``"25%"`` or ``"rest"``.

    Examples
    --------
    >>> from gpuscope.device import Size
    >>> Size.parse("25 %").plain, int(Size.parse("25%").sm_count(132))
    ('25%', 33)
    """

    plain: int | str

    @classmethod
    def parse(cls, value: object) -> Size:
        """Return the size that a value describes.

        Raises
        ------
        InvalidPartition
            It describes none; says what is expected, and what was found.
        """
        if isinstance(value, Size):
            return value
        if isinstance(value, str):
            if value == REST:
                return cls(value)
            percentage = _PERCENTAGE.fullmatch(value)
            if percentage and 0 < (share := Decimal(percentage[1])) <= 100:
                return cls(f"{share.normalize():f}%")
        elif isinstance(value, Integral) and not isinstance(value, bool):  # NumPy's too
            number = int(value)
            if 0 < number < _MOST:
                return cls(number)
        raise InvalidPartition(f"{EXPECTED}, but found {given(value)}")

    @property
    def is_rest(self) -> bool:
        """Whether it is what the other partitions leave."""
        return self.plain == REST

    def sm_count(self, total: int) -> Fraction:
        """Return how many of a GPU's SMs it asks for; of a percentage maybe no whole number.

        Raises
        ------
        ValueError
            The size is the rest.
        """
        if isinstance(self.plain, int):
            return Fraction(self.plain)
        if self.is_rest:
            raise ValueError("the rest has no count of its own")
        return Fraction(self.plain.removesuffix("%")) * total / 100

    def describe(self, total: int) -> str:
        """Say how many SMs of a GPU that has ``total`` it asks for: ``"16"``, ``"25% (33)"``."""
        if not isinstance(self.plain, str) or self.is_rest:
            return str(self.plain)
        return f"{self.plain} ({shown(self.sm_count(total))})"


def shown(count: Fraction) -> str:
    """Return a count of SMs for messages."""
    return str(count) if count.denominator == 1 else f"{float(count):.4g}"


def check_name(name: object) -> str:
    """Return what a partition is to be called, if it may be.

    Raises
    ------
    InvalidPartition
        It is no text, or an empty one.
    """
    if not isinstance(name, str) or not name:
        raise InvalidPartition(f"a partition's name is a non-empty text, not {given(name)}")
    return name


AnySize: TypeAlias = int | str | Size
Sizes: TypeAlias = Mapping[str, AnySize] | Sequence[AnySize]
"""What ``carve`` takes: name → size, or a list of sizes."""


def named_sizes(sizes: Sizes) -> dict[str, Size]:
    """Check a request for partitions; entries of a list are named p0, p1 and so on.

    Raises
    ------
    InvalidPartition
        It is empty, or neither a mapping nor a list, or a name or a size cannot be one, or more
        than one is ``"rest"``.
    """
    if isinstance(sizes, Mapping):
        entries: Mapping[str, AnySize] = sizes
    elif isinstance(sizes, Sequence) and not isinstance(sizes, str | bytes):
        entries = {f"p{position}": size for position, size in enumerate(sizes)}
    else:
        raise InvalidPartition(
            f"partitions are a dict of name → SM count or a list of counts, not "
            f"{type(sizes).__name__} ({given(sizes)}): write carve({{'a': 16, 'b': 'rest'}})"
        )
    if not entries:
        raise InvalidPartition(
            "no partition was asked for (an empty collection): name at least one, such as "
            "{'small': 16, 'load': 'rest'}"
        )
    named: dict[str, Size] = {}
    for name, value in entries.items():
        check_name(name)
        try:
            named[name] = Size.parse(value)
        except InvalidPartition as error:
            raise InvalidPartition(f"partition {name!r}: its size {error}") from None
    rest = [name for name, size in named.items() if size.is_rest]
    if len(rest) > 1:
        raise InvalidPartition(
            f"only one partition can have 'rest', but {', '.join(map(repr, rest))} all ask for it: "
            "give the others counts"
        )
    return named
