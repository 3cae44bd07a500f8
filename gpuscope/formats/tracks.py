"""The tracks of a trace as other tools show them, and lanes on which their spans nest.

Readers drop spans that do not nest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

import numpy as np

from gpuscope._types import Array
from gpuscope.trace.columns import is_open
from gpuscope.trace.facts import RankFacts
from gpuscope.trace.model import Trace
from gpuscope.trace.tracks import Group, TrackKey, TrackLayout

OPEN = np.iinfo(np.int64).max
"""End of a span whose end is unknown."""
_LAYOUT = TrackLayout(
    {
        **dict.fromkeys(("api", "sync", "range", "mark"), Group.THREAD),
        "handle": Group.HANDLES,
        **dict.fromkeys(("block", "scope"), Group.SM),
        "counter": Group.COUNTER,
        "stack": Group.STACKS,
    },
    {
        Group.THREAD: ("process", "thread"),
        Group.HANDLES: ("process", "thread", "category"),
        Group.STREAM: ("device", "partition", "stream"),
        Group.SM: ("device", "sm"),
        Group.COUNTER: ("process", "device"),
        Group.STACKS: ("process", "thread"),
    },
    default_group=Group.STREAM,
)


_OF_RANKS = replace(
    _LAYOUT, columns={group: {*columns, "process"} for group, columns in _LAYOUT.columns.items()}
)


def layout(trace: Trace) -> TrackLayout:
    """Return which spans share a track: of several ranks, those of a process only."""
    return _OF_RANKS if len(trace.metadata.ranks) > 1 else _LAYOUT


def rank_of(track: TrackKey, trace: Trace) -> RankFacts | None:
    """Return which of several ranks a track is of, if it is of one."""
    facts = trace.metadata
    return facts.rank(track.process) if len(facts.ranks) > 1 else None


def names(track: TrackKey, trace: Trace) -> tuple[str, str]:
    """Return what to call a track: the process, rank or GPU, then the row in it."""
    owner, row = _names(track, trace)
    rank = rank_of(track, trace)
    if rank is None:
        return owner, row
    return f"rank {rank.rank}", f"{owner} · {row}" if track.is_device else row


def _names(track: TrackKey, trace: Trace) -> tuple[str, str]:
    facts = trace.metadata
    if not track.is_device:
        where = facts.process_names.get(str(track.process))
        owner = where or ("host" if track.process is None else f"process {track.process}")
        row = facts.thread_names.get(str(track.thread))
        row = row or ("thread" if track.thread is None else f"thread {track.thread}")
        if track.group == Group.HANDLES:
            row = f"handle {track.category or 'without a name'} · {row}"
        return owner, f"{row} · sampled stacks" if track.group == Group.STACKS else row
    number = 0 if track.device is None else track.device
    name = facts.device(number).name
    owner = f"GPU {number}" + (f" {name}" if name is not None else "")
    if track.group == Group.COUNTER:
        return owner, "counters"
    if track.group == Group.SM:
        return f"{owner} · SMs", f"SM {track.sm}"
    if track.partition is not None:
        owner += f" · {partition_name(track.partition, trace)}"
    return owner, trace.stream_name(track.stream)


def partition_name(partition: str, trace: Trace) -> str:
    """Return what to call a partition: its name and its size, where that is known."""
    count = trace.metadata.partition(partition).sm_count
    return partition + (f" ({count} SMs)" if count is not None else "")


def fits(number: int | None) -> TypeGuard[int]:
    """Whether Perfetto takes a number as a process's or thread's; 0 is the idle thread there."""
    return number is not None and 0 < number < 1 << 31


def times(trace: Trace, base_ns: int) -> tuple[Array, Array]:
    """Return starts and ends from a base, ``OPEN`` where the end is unknown."""
    ends = trace.array("end_ns", fill=0) - base_ns
    return trace.array("start_ns") - base_ns, np.where(is_open(trace), OPEN, ends)


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
        lanes: list[int] = []
        group = (times[low:high].tolist() for times in (starts, ends, tied))
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
            lanes.append(number)
            if is_tied or end == OPEN:
                taken[number] = start
        lane[rows[low:high]] = lanes
