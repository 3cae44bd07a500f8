"""Protocol buffers by columns: the message of each row as bytes, by Arrow's kernels."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuscope._optional import require
from gpuscope._types import Array, Bools, Ints, Untyped
from gpuscope.errors import ExportError

Pieces: TypeAlias = pa.BinaryArray
"""Row → bytes; null: the row has none."""

VARINT, FIXED64, BYTES = range(3)
"""How a field's value is encoded."""
_WIRE = {1: FIXED64, 6: FIXED64, 16: FIXED64, 9: BYTES, 11: BYTES, 12: BYTES}
"""Type of a field in its descriptor → how it is encoded; the others are varints."""
_BLOCK = 1 << 22
_HEADER = 6
"""Bytes of the longest begin of a packet, of less than 32 GiB; what is read at a time."""
_EMPTY = pa.scalar(b"", pa.binary())


def protos() -> Untyped:
    """Return the module of Perfetto's messages.

    Raises
    ------
    MissingDependency
        The package perfetto is absent. The message says which extra brings it.
    """
    return require("perfetto.protos.perfetto.trace.perfetto_trace_pb2", feature="a Perfetto trace")


def varint(number: int) -> bytes:
    """Return one whole number, not negative, as it is encoded."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def key(kind: Untyped, name: str) -> bytes:
    """Return what a field begins with, by its message's class and its name."""
    field = kind.DESCRIPTOR.fields_by_name[name]
    return extension(field.number, _WIRE.get(field.type, VARINT))


def extension(number: int, wire: int = BYTES) -> bytes:
    """Return what a field begins with, by its number: for one that the package does not have."""
    return varint(number << 3 | wire)


def field(begin: bytes, value: bytes) -> bytes:
    """Return a field of one message, text or bytes."""
    return begin + varint(len(value)) + value


def varints(values: Array, known: Bools | None = None) -> Pieces:
    """Return whole numbers as they are encoded, null where they are not known."""
    whole = values.astype(np.int64, copy=False).view(np.uint64)
    length = np.ones(len(whole), np.int32)
    for bits in range(7, 64, 7):
        length += whole >= np.uint64(1 << bits)
    width = int(length.max(initial=1))
    table = np.empty((len(whole), width), np.uint8)
    for byte in range(width):
        low = (whole >> np.uint64(7 * byte) & np.uint64(127)).astype(np.uint8)
        table[:, byte] = np.where(length > byte + 1, low | 128, low)
    data = table[np.arange(width) < length[:, None]]
    return _pieces(data, np.cumsum(length, dtype=np.int32), known)


def fixed(values: Array, known: Bools | None = None) -> Pieces:
    """Return numbers of 64 bits, whole or not, in eight bytes each."""
    data = np.ascontiguousarray(values).view(np.uint8)
    return _pieces(data, np.arange(8, 8 * len(values) + 8, 8, dtype=np.int32), known)


def _pieces(data: Array, ends: Array, known: Bools | None) -> Pieces:
    offsets = np.r_[np.int32(0), ends].astype(np.int32)
    valid = None if known is None else pa.array(known).buffers()[1]
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(ends), buffers)


def joined(*parts: Pieces | bytes) -> Pieces:
    """Return the parts of each row one after another; null is nothing."""
    return pc.binary_join_element_wise(
        *_scalars(parts), _EMPTY, null_handling="replace", null_replacement=b""
    )


def part(*parts: Pieces | bytes) -> Pieces:
    """Return the parts of each row one after another; null where one of them is."""
    return pc.binary_join_element_wise(*_scalars(parts), _EMPTY)


def message(begin: bytes, *parts: Pieces | bytes) -> Pieces:
    """Return each row's parts as a field; null where one of them is."""
    inside = part(*parts)
    length = np.asarray(pc.binary_length(inside).fill_null(0))
    return part(begin, varints(length), inside)


def _scalars(parts: tuple[Pieces | bytes, ...]) -> list[pa.BinaryArray | pa.BinaryScalar]:
    return [pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part for part in parts]


class Attached:
    """Whole numbers that rows have, any number each.

    Parameters
    ----------
    rows, values
        Which row has which number.
    count
        How many rows there are.
    """

    def __init__(self, rows: Ints, values: Ints, count: int) -> None:
        order = np.argsort(rows, kind="stable")
        self._values = values[order]
        self._bounds = np.r_[0, np.cumsum(np.bincount(rows, minlength=count))]

    def of(self, rows: Ints) -> tuple[Ints, pa.Int32Array, Bools]:
        """Return the numbers of some rows, where those of each begin, and which have any."""
        first, last = self._bounds[rows], self._bounds[rows + 1]
        count = last - first
        ends = np.cumsum(count)
        at = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - ends + count, count)
        return self._values[at], pa.array(np.r_[0, ends], pa.int32()), count > 0

    def fields(self, begin: bytes, rows: Ints, wire: int = VARINT) -> Pieces:
        """Return the numbers of some rows as a repeated field."""
        values, offsets, _ = self.of(rows)
        each = joined(begin, varints(values) if wire == VARINT else fixed(values))
        return pc.binary_join(pa.ListArray.from_arrays(offsets, each), _EMPTY)


def bytes_of(pieces: Pieces) -> memoryview:
    """Return the bytes of all rows one after another, without a copy."""
    _, offsets, data = pieces.buffers()
    if not len(pieces):
        return memoryview(b"")
    bounds = np.frombuffer(offsets, np.int32)
    return memoryview(data)[bounds[pieces.offset] : bounds[pieces.offset + len(pieces)]]


def count_packets(path: Path) -> int:
    """Return how many packets a file holds.

    Raises
    ------
    ExportError
        It ends within one.
    """
    begin = 1 << 3 | BYTES
    count = at = start = 0  # of the next packet; of the bytes at hand
    data = b""
    with path.open("rb") as file:
        blocks = iter(partial(file.read, _BLOCK), b"")
        for block in itertools.chain(blocks, (bytes(_HEADER),)):
            done = min(at - start, len(data))
            data, start = data[done:] + block, start + done
            while (here := at - start) + _HEADER <= len(data) and data[here] == begin:
                length = shift = 0
                byte = 128
                while byte > 127:
                    here += 1
                    byte = data[here]
                    length |= (byte & 127) << shift
                    shift += 7
                at = start + here + 1 + length
                count += 1
    if at != path.stat().st_size:
        raise ExportError(
            f"{path.name!r} does not end with a packet: it was thrown away. Check the disk and "
            "export again"
        )
    return count
