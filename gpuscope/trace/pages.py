"""What a Parquet file unpacks to, by the headers of its pages: read before anything is unpacked.

A footer may claim anything, and Arrow trusts it: it reserves what a list says that it holds, and
unpacks what a page says that it holds. Headers are Thrift's compact protocol.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from gpuscope.errors import TraceFormatError

Fields: TypeAlias = dict[int, Any]
"""Number of a field → its type and its value."""
_MAGIC = b"PAR1"
_HEADER = 1 << 16
"""Bytes of a page's header that are looked at; it holds numbers and two statistics."""
_BOOLS, _BYTE, _WHOLES, _DOUBLE, _TEXT, _LISTS, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12
_I32, _I64 = 5, 6
_DEEPEST = 10
_BYTE_ARRAY = 6
_ENCODINGS = frozenset({0, 2, 3, 4, 5, 8})
"""PLAIN, PLAIN_DICTIONARY, RLE, BIT_PACKED, DELTA_BINARY_PACKED, RLE_DICTIONARY: of these a text
takes as many bytes in its page as in memory."""
_ENTRY = 32
"""Bytes that an entry of a dictionary takes beside its text."""
_DATA, _DICTIONARY, _DATA_V2 = 5, 7, 8
"""Fields of a page's header that say which kind of page it is."""


@dataclass(frozen=True)
class Survey:
    """What a file unpacks to.

    Attributes
    ----------
    rows
        As the footer says, of all row groups.
    nbytes
        Of all pages of the columns that were asked for, unpacked, and what Arrow remembers of
        the entries of dictionaries.
    texts
        Those of the columns that are texts.
    """

    rows: int
    nbytes: int
    texts: frozenset[str]


def survey(
    file: pa.NativeFile, columns: frozenset[str], most_values: int, most_bytes: int
) -> Survey:
    """Read the headers of a file's pages.

    Parameters
    ----------
    columns
        Names of the columns that are going to be read.
    most_values
        How many numbers, texts and lists the footer may hold.
    most_bytes
        How long it may be.

    Raises
    ------
    TraceFormatError
        The file is no Parquet, its footer and its pages do not agree, or a page is of a kind
        that is not read.
    """
    size = file.size()
    file.seek(max(size - 8, 0))
    tail = file.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or length + 12 > size:
        raise TraceFormatError("truncated, or not Parquet: it has no footer")
    file.seek(size - 8 - length)
    if length > most_bytes:
        raise TraceFormatError(f"its footer has {length:,} bytes, as that of no trace has")
    footer = _Reader(file.read(length), most_values).struct()
    rows = nbytes = 0
    texts = set()
    for group in _structs(_of(footer, 4, 9)):
        count = _of(group, 3, _I64)
        rows += count
        for chunk in _structs(_of(group, 1, 9)):
            if 1 in chunk:
                raise TraceFormatError("a column of it lies in another file")
            facts = _of(chunk, 3, _STRUCT)
            path = b".".join(_texts(_of(facts, 3, 9))).decode("utf-8", "replace")
            if path not in columns:
                continue
            if _of(facts, 1, _I32) == _BYTE_ARRAY:
                texts.add(path)
            if _of(facts, 5, _I64) != count:
                raise TraceFormatError("its columns differ in length")
            if count:  # else none is read, and where they begin is not said
                nbytes += _pages(file, size, facts)
    if rows != _of(footer, 3, _I64):
        raise TraceFormatError("its row groups do not hold as many rows as it says")
    return Survey(rows, nbytes, frozenset(texts))


def _structs(values: list[Any]) -> list[Fields]:
    if not all(isinstance(value, dict) for value in values):
        raise TraceFormatError("its footer lists what is no part of a table")
    return values


def _texts(values: list[Any]) -> list[bytes]:
    if not all(isinstance(value, bytes) for value in values):
        raise TraceFormatError("a column of it has no name")
    return values


def _pages(file: pa.NativeFile, size: int, facts: Fields) -> int:
    """Return the bytes that the pages of a column unpack to."""
    at = _of(facts, 9, _I64)
    if 11 in facts and 0 < _of(facts, 11, _I64) < at:
        at = _of(facts, 11, _I64)
    end = at + _of(facts, 7, _I64)
    if not 0 <= at <= end <= size:
        raise TraceFormatError("a column lies outside of the file")
    nbytes = 0
    while at < end:
        file.seek(at)
        reader = _Reader(file.read(min(_HEADER, end - at)), _HEADER)
        header = reader.struct()
        unpacked, packed = _of(header, 2, _I32), _of(header, 3, _I32)
        if unpacked < 0 or packed < 0:
            raise TraceFormatError("a page has a negative size")
        nbytes += unpacked
        at += reader.at + packed
        kind = next(filter(header.__contains__, (_DATA, _DATA_V2, _DICTIONARY)), None)
        if kind is None:
            continue
        page = _of(header, kind, _STRUCT)
        if _of(page, 4 if kind == _DATA_V2 else 2, _I32) not in _ENCODINGS:
            raise TraceFormatError("a page is encoded as those of no trace are")
        if kind == _DICTIONARY:
            nbytes += _ENTRY * max(_of(page, 1, _I32), 0)
    if at > end:
        raise TraceFormatError("a page reaches beyond its column")
    return nbytes


def _of(fields: Fields, number: int, kind: int) -> Any:
    """Return the value of a field that must be there, and of that type: a reader skips others."""
    field_kind, value = fields.get(number, (None, None))
    if field_kind != kind:
        raise TraceFormatError("its footer or the header of a page lacks what it must say")
    return value


class _Reader:
    """Thrift's compact protocol: a structure as field → (type, value).

    Attributes
    ----------
    at
        How many bytes were read.
    """

    def __init__(self, data: bytes, most_values: int) -> None:
        self._data = data
        self._left = most_values
        self.at = 0

    def struct(self, depth: int = 0) -> Fields:
        """Read a structure.

        Raises
        ------
        TraceFormatError
            It is cut off, too deep, holds too much, or has a field twice.
        """
        if depth > _DEEPEST:
            raise TraceFormatError("its footer nests deeper than any")
        fields: Fields = {}
        last = 0
        while head := self._byte():
            kind = head & 15
            last = last + (head >> 4) if head >> 4 else self._signed()
            if last in fields:
                raise TraceFormatError("its footer says something twice")
            fields[last] = kind, self._value(kind, depth, in_list=False)
        return fields

    def _byte(self) -> int:
        if self.at >= len(self._data):
            raise TraceFormatError("its footer or the header of a page is cut off")
        self.at += 1
        return self._data[self.at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise TraceFormatError("its footer holds a number of more than 64 bits")

    def _signed(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def _bytes(self, length: int) -> bytes:
        taken = self._data[self.at : self.at + length]
        if len(taken) < length:
            raise TraceFormatError("its footer or the header of a page is cut off")
        self.at += length
        return taken

    def _value(self, kind: int, depth: int, *, in_list: bool) -> object:
        self._left -= 1
        if self._left < 0:
            raise TraceFormatError("its footer holds more than that of any trace")
        if kind in _BOOLS:
            return self._byte() == 1 if in_list else kind == 1
        if kind in _WHOLES:
            return self._signed()
        if kind in (_BYTE, _DOUBLE, _TEXT):
            return self._bytes({_BYTE: 1, _DOUBLE: 8}.get(kind) or self._varint())
        if kind in _LISTS:
            return self._list(depth)
        if kind == _STRUCT:
            return self.struct(depth + 1)
        raise TraceFormatError("its footer holds what none does")

    def _list(self, depth: int) -> list[object]:
        head = self._byte()
        length = head >> 4 if head >> 4 < 15 else self._varint()
        if length > len(self._data) - self.at:
            raise TraceFormatError("its footer claims more than it holds")
        if depth > _DEEPEST:
            raise TraceFormatError("its footer nests deeper than any")
        return [self._value(head & 15, depth + 1, in_list=True) for _ in range(length)]
