"""Which bytes accesses have in common, by arithmetic on their rows: no byte is looked at."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter

import numpy as np

from gpuscope._types import Array
from gpuscope.device.accesses import Access

Shared = tuple[Access, Access, int, int]
"""Two accesses, and the addresses between which their common bytes count."""
_ROWS = 1 << 20
"""So many rows are looked at together."""


def common(one: Access, other: Access, start: int, stop: int) -> bool:
    """Whether two accesses have a byte in common between two addresses."""
    low, high = max(one.start, other.start, start), min(one.stop, other.stop, stop)
    if low >= high or not (one.step or other.step):
        return low < high
    if one.step == other.step <= high - low and not (one.inner or other.inner):
        apart = (other.start - one.start) % one.step
        return apart < one.width or one.step - apart < other.width
    return shared_bytes([(one, other, low, high)])[1] > 0


def shared_bytes(shared: Iterable[Shared]) -> tuple[int, int]:
    """Return the first of the bytes that any of these pairs have in common, and how many there are.

    Returns
    -------
    tuple
        An address, 0 where there is none, and a number of bytes.
    """
    clipped = [
        (access, other, max(access.start, other.start, low), min(access.stop, other.stop, high))
        for access, other, low, high in shared
    ]
    first, total = 0, 0
    for together in _together([pair for pair in clipped if pair[2] < pair[3]]):
        edges = sorted({edge for pair in together for edge in pair[2:]})
        for low, high in pairwise(edges):
            pairs = [pair[:2] for pair in together if pair[2] <= low and high <= pair[3]]
            at, nbytes = _between(pairs, low, high)
            first = first or at
            total += nbytes
    return first, total


def _together(shared: list[Shared]) -> Iterator[list[Shared]]:
    """Yield the pairs between whose addresses there is no gap."""
    group: list[Shared] = []
    end = 0
    for pair in sorted(shared, key=itemgetter(2)):
        if pair[2] >= end and group:
            yield group
            group = []
        group.append(pair)
        end = max(end, pair[3])
    if group:
        yield group


def _between(pairs: Sequence[tuple[Access, Access]], low: int, high: int) -> tuple[int, int]:
    """Return the first and the number of common bytes of a range over which all rows go on."""
    if any(not (access.step or other.step) for access, other in pairs):
        return low, high - low
    # What they share comes back after so many bytes.
    period = math.lcm(*[access.step or 1 for pair in pairs for access in pair])
    times, rest = divmod(high - low, period)
    first, total = _counted(pairs, low, low + period) if times else (0, 0)
    later, more = _counted(pairs, low, low + rest)
    return first or later, times * total + more


def _counted(pairs: Sequence[tuple[Access, Access]], low: int, high: int) -> tuple[int, int]:
    """Return the same by the rows of the range, some at a time."""
    strided = {access for pair in pairs for access in pair if access.step}
    length = min(max(access.step, access.step * _ROWS // _rows_in(access)) for access in strided)
    first, total = 0, 0
    for start in range(low, high, length):
        stop = min(high, start + length)
        edges = [_edges(access, start, stop) for access in strided]
        cuts = np.unique(np.concatenate([np.array([start, stop]), *edges]))
        inside = {access: _inside(access, cuts[:-1]) for access in strided}
        is_shared = np.zeros(len(cuts) - 1, bool)
        for pair in pairs:
            is_shared |= np.logical_and.reduce([inside[access] for access in pair if access.step])
        if not first and is_shared.any():
            first = int(cuts[is_shared.argmax()])
        total += int(np.diff(cuts)[is_shared].sum())
    return first, total


def _rows_in(access: Access) -> int:
    """Return of how many of the innermost rows each of an access's rows consists."""
    length, rows = access.width, 1
    for step, width in access.inner:
        rows *= (length - width) // step + 1
        length = width
    return rows


def _edges(access: Access, start: int, stop: int) -> Array:
    """Return where the innermost rows begin and end that reach into a range, as addresses in it."""
    first = access.start + (start - access.start) // access.step * access.step
    rows = np.arange(first, stop, access.step)
    length = access.width
    for step, width in access.inner:
        rows = (rows[:, None] + np.arange(0, length - width + 1, step)).ravel()
        length = width
    edges: Array = np.clip(np.concatenate([rows, rows + length]), start, stop)
    return edges


def _inside(access: Access, at: Array) -> Array:
    """Return which addresses, none of them before its first, are in a row."""
    offset, inside = at - access.start, np.ones(len(at), bool)
    for step, width in ((access.step, access.width), *access.inner):
        offset = offset % step
        inside &= offset < width
    return inside
