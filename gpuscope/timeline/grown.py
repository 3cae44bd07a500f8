"""Columns that rows are added to while a recording goes on."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from gpuscope._types import Array
from gpuscope.trace.columns import codes


class Grown:
    """An array with more to come. What was read from it stays as it was.

    Parameters
    ----------
    held
        Taken as it is, not copied.
    """

    def __init__(self, held: Array, count: int | None = None) -> None:
        self._held = held
        self._count = len(held) if count is None else count

    @property
    def values(self) -> Array:
        """The array."""
        return self._held[: self._count]

    def extended(self, more: Array) -> Grown:
        """Return it with more behind; only the newest may be extended, as they share memory."""
        count = self._count + len(more)
        held = self._held
        if count > len(held):
            held = np.empty(max(count, 2 * len(held)), held.dtype)
            held[: self._count] = self.values
        held[self._count : count] = more
        return Grown(held, count)


class Coded:
    """A column as numbers of its values, for texts above all.

    Attributes
    ----------
    values
        Number → value; the first is ``None``, for null.
    """

    def __init__(self, values: list[Any], numbers: dict[Any, int], held: Grown) -> None:
        self.values = values
        self._numbers = numbers
        self._held = held

    @classmethod
    def empty(cls) -> Coded:
        """Return one without rows."""
        return cls([None], {None: 0}, Grown(np.zeros(0, np.int32)))

    @property
    def codes(self) -> Array:
        """Row → number."""
        return self._held.values

    def extended(self, column: Any) -> Coded:
        """Return it with the rows of an Arrow column behind."""
        if pa.types.is_null(column.type):
            return Coded(
                self.values, self._numbers, self._held.extended(np.zeros(len(column), int))
            )
        row, values = codes(column)
        number = self.numbers(values)
        if not np.array_equal(number, np.arange(len(number))):
            row = number[row]
        return Coded(self.values, self._numbers, self._held.extended(row))

    def chosen(self, rows: Array) -> Coded:
        """Return some of the rows alone, with the values that they have."""
        used, row = np.unique(self.codes[rows], return_inverse=True)
        return Coded([self.values[number] for number in used.tolist()], {}, Grown(row))

    def numbers(self, values: Iterable[Hashable]) -> Array:
        """Return the numbers of values; new ones get the next."""
        numbers = []
        for value in values:
            number = self._numbers.setdefault(value, len(self.values))
            if number == len(self.values):
                self.values.append(value)
            numbers.append(number)
        return np.array(numbers, np.int32)
