"""Joining rows of traces by number and by time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuscope._types import Array, Ints
from gpuscope.trace.arrow import NONE


def distinct(values: Ints) -> Ints:
    """Return the different values, ascending.

    ``np.unique`` hashes them, which takes longer than to sort them where most differ.
    """
    ordered = np.sort(values)
    different: Ints = ordered[np.r_[True, ordered[1:] != ordered[:-1]][: len(ordered)]]
    return different


def numbered(values: Ints) -> tuple[Ints, Ints]:
    """Return the different values, ascending, and for each value the number of its own.

    As ``np.unique`` with ``return_inverse``, which sorts all values where few differ.
    """
    coded = pc.dictionary_encode(pa.array(values))
    different = coded.dictionary.to_numpy()
    order = np.argsort(different)
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return different[order], number[coded.indices.to_numpy()]


def match(wanted: Array, keys: Array) -> Array:
    """Return for each of ``wanted`` the position of its last occurrence in ``keys``, or NONE."""
    if not len(keys) or not len(wanted):
        return np.full(len(wanted), NONE, np.int64)
    ascending = bool((keys[1:] >= keys[:-1]).all())
    order = None if ascending else np.argsort(keys, kind="stable")
    ordered = keys if order is None else keys[order]
    at = np.searchsorted(ordered, wanted, "right") - 1
    good = (at >= 0) & (ordered[np.maximum(at, 0)] == wanted)
    position = at if order is None else order[np.maximum(at, 0)]
    return np.where(good, position, NONE)


def innermost(threads: Array, times: Array, owner: Array, starts: Array, ends: Array) -> Array:
    """Return for each moment the latest-begun interval of its thread that holds it, or NONE.

    Parameters
    ----------
    threads, times
        The moments.
    owner, starts, ends
        Thread, first and last ns of the intervals; on one thread they nest, no deeper than
        :data:`DEEPEST` between a moment and what holds it.
    """
    holders = np.full(len(times), NONE, np.int64)
    if not len(owner) or not len(times):
        return holders
    threads, times, owner, starts, ends = (
        values.astype(np.int64) for values in (threads, times, owner, starts, ends)
    )
    order = np.lexsort((-ends, starts, owner))
    owner, first, last = owner[order], starts[order], ends[order]
    owners, begins = distinct(owner), distinct(first)
    thread, moment_thread = (np.searchsorted(owners, numbers) for numbers in (owner, threads))
    begin, moment = np.searchsorted(begins, first), np.searchsorted(begins, times, "right") - 1
    key, moment_key = thread * len(begins) + begin, moment_thread * len(begins) + moment
    at = np.searchsorted(key, moment_key, "right") - 1
    at = np.where((at >= 0) & (owner[at] == threads), at, NONE)
    above = parents(owner, first, last)
    missing = np.flatnonzero(at >= 0)
    for _ in range(DEEPEST):
        missing = missing[last[at[missing]] < times[missing]]
        if not len(missing):
            break
        at[missing] = above[at[missing]]
        missing = missing[at[missing] >= 0]
    at[missing] = NONE
    holders[at >= 0] = order[at[at >= 0]]
    return holders


DEEPEST = 1000
"""Levels that :func:`innermost` climbs: a bound on its time, whatever a file holds."""


def enclosing(owner: Array, starts: Array, ends: Array) -> Array:
    """Return for each interval the innermost one of its owner that holds it whole, or NONE.

    An interval is open at its end: one that begins where another ends is not in it.
    """
    order = np.lexsort((-ends, starts, owner))
    first, last = starts[order], ends[order]
    above = parents(owner[order], first, np.maximum(first, last - 1))
    is_enclosed = (above >= 0) & (last <= last[above]) if len(order) else above >= 0
    holders = np.full(len(starts), NONE, np.int64)
    holders[order[is_enclosed]] = order[above[is_enclosed]]
    return holders


def parents(owner: Array, starts: Array, ends: Array) -> Array:
    """Return the enclosing interval of each; they are sorted by owner, then by start."""
    nests = (owner[1:] == owner[:-1]) & (starts[1:] <= ends[:-1])
    if not nests.any():
        return np.full(len(starts), NONE, np.int64)
    above: list[int] = []
    stack: list[int] = []
    finish = ends.tolist()
    on = None
    for number, (start, thread) in enumerate(zip(starts.tolist(), owner.tolist(), strict=True)):
        if thread != on:
            stack, on = [], thread
        while stack and finish[stack[-1]] < start:
            stack.pop()
        above.append(stack[-1] if stack else NONE)
        stack.append(number)
    return np.array(above, np.int64)


def union(starts: Ints, ends: Ints) -> Ints:
    """Merge spans that touch or overlap: sorted, disjoint, ``(n, 2)``."""
    if len(starts) == 0:
        return np.zeros((0, 2), np.int64)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    first = np.r_[True, starts[1:] > ends[:-1]]
    last = np.r_[first[1:], True]
    return np.stack([starts[first], ends[last]], axis=1)


def latest(group: Array, ends: Array) -> Array:
    """Row → the row that ended last of its group's so far, of two the later; rows by group."""
    by_end = np.argsort(ends, kind="stable")
    rank = np.empty(len(ends), np.int64)
    rank[by_end] = np.arange(len(ends))
    # A running maximum that begins anew in each group: of ranks, since times would overflow.
    offset = group.astype(np.int64) * len(ends)
    return np.asarray(by_end[np.maximum.accumulate(offset + rank) - offset])
