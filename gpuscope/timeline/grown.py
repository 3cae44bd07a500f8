"""Columns that rows are added to while a recording goes on."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from gpuscope._types import Array
from gpuscope.trace.columns import narrow_codes


class Grown:
    """An array with more to come. What was read from it stays as it was.

    Parameters
    ----------
    buffer
        Taken as it is, not copied.
    """

    def __init__(self, buffer: Array, count: int | None = None) -> None:
        self._buffer = buffer
        self._count = len(buffer) if count is None else count

    @property
    def values(self) -> Array:
        """The array."""
        return self._buffer[: self._count]

    def extended(self, more: Array) -> Grown:
        """Return it with more behind; only the newest may be extended, as they share memory."""
        count = self._count + len(more)
        buffer = self._buffer
        if not len(more):
            return self
        if not len(buffer):
            return Grown(np.asarray(more, buffer.dtype))
        if count > len(buffer):
            buffer = np.empty(max(count, 2 * len(buffer)), buffer.dtype)
            buffer[: self._count] = self.values
        buffer[self._count : count] = more
        return Grown(buffer, count)


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
        self._buffer = held

    @classmethod
    def empty(cls) -> Coded:
        """Return one without rows."""
        return cls([None], {None: 0}, Grown(np.zeros(0, np.int32)))

    @property
    def codes(self) -> Array:
        """Row → number."""
        return self._buffer.values

    def extended(self, column: Any) -> Coded:
        """Return it with the rows of an Arrow column behind."""
        if pa.types.is_null(column.type):
            no_codes = np.zeros(len(column), np.int32)
            return Coded(self.values, self._numbers, self._buffer.extended(no_codes))
        row, values = narrow_codes(column)
        number = self.numbers(values)
        if not np.array_equal(number, np.arange(len(number))):
            row = number[row]
        return Coded(self.values, self._numbers, self._buffer.extended(row))

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
