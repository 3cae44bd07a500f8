"""Splitting tracks into lanes on which spans nest, since readers drop spans that do not."""

from __future__ import annotations

import numpy as np

from gpuscope._types import Array

OPEN = np.iinfo(np.int64).max
"""End of a span whose end is unknown."""


def nested(
    track: Array, starts: Array, ends: Array, ends_of_arrows: Array | None = None
) -> tuple[Array, Array]:
    """Return an order of the rows by time, and each row's lane in its track.

    Parameters
    ----------
    track
        Row → number of its track.
    ends
        ``OPEN`` where the end is unknown.
    ends_of_arrows
        Row → whether an arrow ends at its start. Perfetto binds it to the innermost span of the
        lane that is open then, so that none inside may start at the same ns; nor may it in an
        open one, which Perfetto opens last.

    Returns
    -------
    order
        By start, the longer first: outer spans come before what they hold.
    lane
        Row → 0, 1, …: two spans of one lane are apart or one holds the other.
    """
    lane = np.zeros(len(starts), np.int64)
    # ~ends is −ends − 1: it sorts as −ends does and cannot overflow.
    order = np.lexsort((~ends, starts))
    by_track = order[np.argsort(track[order], kind="stable")]
    bounds = np.flatnonzero(np.diff(track[by_track])) + 1
    tied = np.zeros(len(starts), bool) if ends_of_arrows is None else ends_of_arrows
    for rows in np.split(by_track, bounds):
        _split(rows, starts[rows], ends[rows], tied[rows], lane)
    return order, lane


def _split(rows: Array, starts: Array, ends: Array, tied: Array, lane: Array) -> None:
    """Give the rows of one track their lanes, group by group of spans that touch each other."""
    if len(rows) < 2:
        return
    latest = np.maximum.accumulate(ends)
    apart = (starts[1:] >= latest[:-1]) & (starts[1:] != starts[:-1])
    bounds = np.flatnonzero(apart) + 1
    first = np.r_[0, bounds]
    last = np.r_[bounds, len(rows)]
    several = last - first > 1
    for low, high in zip(first[several].tolist(), last[several].tolist(), strict=True):
        # On each lane, the ends of the spans that are open, the innermost last; and the start
        # that belongs to an arrow.
        open_ends: list[list[int]] = []
        taken: list[int | None] = []
        found: list[int] = []
        group = (one[low:high].tolist() for one in (starts, ends, tied))
        for start, end, is_tied in zip(*group, strict=True):
            for number, stack in enumerate(open_ends):
                while stack and stack[-1] <= start:
                    stack.pop()
                if (not stack or end <= stack[-1]) and taken[number] != start:
                    break
            else:
                number = len(open_ends)
                open_ends.append([])
                taken.append(None)
            open_ends[number].append(end)
            found.append(number)
            if is_tied or end == OPEN:
                taken[number] = start
        lane[rows[low:high]] = found
