"""A timeline's tracks and bars: their names, order and places."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gpuscope._types import Array
from gpuscope.timeline import style
from gpuscope.timeline.counter_lanes import LaneFacts
from gpuscope.timeline.readings import CLOCK, DOWNLOAD, STACK, STATES, THROTTLED, UPLOAD
from gpuscope.timeline.style import KIND_STYLES
from gpuscope.timeline.text import clean
from gpuscope.trace.model import Trace
from gpuscope.trace.tracks import ON_PATH, Group, TrackKey, TrackLayout

MAX_TRACKS = 100
"""Tracks that a page can show legibly; the busiest stay."""
_ON_HOST = ("process", "thread")
LAYOUT = TrackLayout(
    {
        "range": Group.RANGES,
        "mark": Group.RANGES,
        "handle": Group.HANDLES,
        "api": Group.CALLS,
        "sync": Group.SYNC,
        "kernel": Group.STREAM,
        UPLOAD: Group.STREAM,
        DOWNLOAD: Group.STREAM,
        "memcpy": Group.STREAM,
        "memset": Group.STREAM,
        "host function": Group.STREAM,
        "event": Group.STREAM,
        "graph": Group.STREAM,
        "scope": Group.SM,
        CLOCK: Group.COUNTER,
        THROTTLED: Group.COUNTER,
        **dict.fromkeys((*STATES, STACK), Group.STACKS),
    },
    {
        Group.RANGES: _ON_HOST,
        Group.HANDLES: (*_ON_HOST, "category", "name"),
        Group.CALLS: _ON_HOST,
        Group.SYNC: _ON_HOST,
        Group.STREAM: ("process", "device", "partition", "stream"),
        Group.SM: ("process", "device", "sm"),
        Group.COUNTER: ("process", "device"),
        Group.PATH: (),
        Group.STACKS: _ON_HOST,
    },
)
"""The tracks of a timeline; other kinds, such as thread blocks, have none."""
_OF_DEVICE = (Group.STREAM, Group.SM, Group.COUNTER)
_ON_GPU = (*_OF_DEVICE, Group.PATH)
_HOST_LABELS = {
    Group.RANGES: "ranges",
    Group.CALLS: "API calls",
    Group.SYNC: "synchronisation",
    Group.PATH: ON_PATH,
    Group.STACKS: "sampled stacks",
}


class Class(NamedTuple):
    """What bars of one look have in common.

    Attributes
    ----------
    partition
        ``""`` where a stream has none, ``None`` on the host.
    is_open
        Whether the end was not seen.
    escaped
        Whether it is a kernel that ran outside the partition it was intended for.
    stream
        Its stream's name in a trace without partitions, ``""`` otherwise.
    """

    kind: str
    partition: str | None
    is_open: bool
    escaped: bool = False
    stream: str = ""

    @property
    def owner(self) -> str | None:
        """Whose colour it has: that of a partition, of a stream, of the whole GPU, of the host."""
        return self.partition or self.stream or self.partition


@dataclass(frozen=True)
class Track:
    """One row of a timeline.

    Attributes
    ----------
    number
        Its number in the index.
    label
        Plain text, not escaped.
    process
        What its process is called, such as ``"rank 1 · node7"``, or ``None`` where the trace has
        only one.
    folded
        Numbers of the tracks that it stands for; nothing: only for itself.
    """

    number: int
    label: str
    group: Group
    partition: str | None
    process: str | None
    folded: tuple[int, ...] = ()

    @property
    def numbers(self) -> tuple[int, ...]:
        """The tracks whose spans it shows."""
        return self.folded or (self.number,)

    @property
    def is_host(self) -> bool:
        """Whether it shows what the host did."""
        return not self.is_work and self.group not in (Group.SM, Group.COUNTER)

    @property
    def is_work(self) -> bool:
        """Whether it shows what kept a GPU busy."""
        return self.group in (Group.STREAM, Group.PATH)


def in_order(classes: Iterable[Class], partitions: Iterable[str]) -> tuple[Class, ...]:
    """Return classes in the order of drawing: host, whole GPU, partitions as given, escapes."""
    unordered = set(classes)
    kinds = list(KIND_STYLES)
    names = dict.fromkeys(
        ["", *partitions, *sorted({bar_class.owner or "" for bar_class in unordered})]
    )
    rank = {name: index for index, name in enumerate(names)}
    return tuple(
        sorted(
            unordered,
            key=lambda item: (
                item.escaped,
                -1 if item.owner is None else rank[item.owner],
                kinds.index(item.kind),
                item.is_open,
            ),
        )
    )


def labelled(
    names: Trace, numbers: Mapping[TrackKey, int], sole_process: int | None
) -> tuple[Track, ...]:
    """Return the tracks in the order in which they are drawn."""
    metadata = names.metadata
    places = {name: index for index, name in enumerate(metadata.partitions)}
    ranks = {rank.process: at for at, rank in enumerate(metadata.ranks)}
    keys = sorted(numbers, key=lambda key: (ranks.get(key.process, -1), _sort_key(places, key)))
    processes = {key.process for key in keys}
    threads = {key.thread for key in keys if key.group not in _ON_GPU}
    devices = {key.device for key in keys if key.group in _OF_DEVICE}
    tracks: list[Track] = []
    seen: set[tuple[str | None, str]] = set()
    for key in keys:
        owner = None
        if len(processes) > 1 and key.group != Group.PATH:
            number = sole_process if key.process is None else key.process
            owner = owner_label(names, number)
        if key.group == Group.STREAM:
            label = partition_label(names, key.partition, ranked=owner is None)
            if (stream := clean(names.stream_name(key.stream), 24)) != key.partition:
                label = f"{label} · {stream}"
            if len(devices) > 1:
                label = f"GPU {'?' if key.device is None else key.device} · {label}"
            if (owner, label) in seen:
                label = f"{label} #{key.stream}"
        elif key.group in (Group.SM, Group.COUNTER):
            gpu = f"GPU {'?' if key.device is None else key.device} · "
            what = "SM clock, power" if key.group == Group.COUNTER else f"inside SM {key.sm}"
            label = f"{gpu * (len(devices) > 1)}{what}"
        else:
            handle = key.category or key.name
            what = _HOST_LABELS.get(key.group) or f"handle {clean(handle, 18)}"
            where = _named(metadata.thread_names, key.thread, "thread")
            is_one = len(threads) < 2 or key.group == Group.PATH
            label = what if is_one else f"{what} · {where}"
        seen.add((owner, label))
        tracks.append(Track(numbers[key], label, key.group, key.partition, owner))
    return tuple(tracks)


def busiest(
    tracks: Iterable[Track], busy_ns: Array, most: int = MAX_TRACKS
) -> tuple[list[Track], int]:
    """Return as many of the tracks as a page can show, and how many are left out.

    Parameters
    ----------
    busy_ns
        Track number → how busy it is.
    """
    all_tracks = list(tracks)
    if len(all_tracks) <= most:
        return all_tracks, 0
    shown = sorted(all_tracks, key=lambda track: -busy_ns[track.number])[:most]
    numbers = {track.number for track in shown}
    return [track for track in all_tracks if track.number in numbers], len(all_tracks) - len(shown)


def folded(tracks: Sequence[Track]) -> list[Track]:
    """Return tracks with those of the host as one, below the GPU's of the same process."""
    rows: list[Track] = []
    for process in dict.fromkeys(track.process for track in tracks):
        of_process = [track for track in tracks if track.process == process]
        host = [track for track in of_process if track.is_host]
        rows += [track for track in of_process if not track.is_host] or host
        if host and len(host) < len(of_process):
            label = f"▸ host, {len(host)} row{'s' * (len(host) > 1)}"
            numbers = tuple(track.number for track in host)
            rows.append(replace(host[0], number=-1 - host[0].number, label=label, folded=numbers))
    return rows


def _sort_key(
    places: Mapping[str, int], key: TrackKey
) -> tuple[int, int, int, int, str, int, bool, int, str, int]:
    process, thread, device, lane = (
        -1 if value is None else value
        for value in (
            key.process, key.thread, key.device, key.sm if key.group == Group.SM else key.stream
        )
    )  # fmt: skip
    block = {Group.RANGES: 1}.get(key.group, 0 if key.group in _OF_DEVICE else 2)
    partition, name = key.partition or "", key.category or key.name or ""
    where = (device, key.partition is None, places.get(partition, len(places)), partition)
    return (process, block, thread, key.group, name, *where, lane)


def _named(names: Mapping[str, str], number: int | None, what: str) -> str:
    if number is None:
        return f"unknown {what}"
    return clean(names.get(str(number), f"{what} {number}"), 22)


def owner_label(trace: Trace, process: int | None) -> str:
    """Return what a process is called: its rank, on its machine if there are several."""
    rank = trace.metadata.rank(process)
    if rank is None:
        return f"process {_named(trace.metadata.process_names, process, '').strip()}"
    several = len({rank.host for rank in trace.metadata.ranks}) > 1
    return f"rank {rank.rank}" + (f" · {clean(rank.host, 22)}" if several and rank.host else "")


def partition_label(trace: Trace, partition: str | None, *, ranked: bool = True) -> str:
    """Return a partition's name and its SM count, where known, in plain text.

    Parameters
    ----------
    ranked
        Whether it says a rank where partitions of several ranks have the same name.
    """
    if partition is None:
        return "whole GPU"
    count = trace.metadata.partition(partition).sm_count
    name = clean(partition if ranked else style.without_rank(partition), 18)
    return name if count is None else f"{name} ({clean(count, 8)} SMs)"


MARKS_PX = 14
"""Height of a lane for marks."""
WAITS_PX, LANE_MARGIN = 36, 3
"""Height of a lane for what calls waited for, and how much of any lane is free above and below."""
_GPU_PX, _ESCAPED_PX, _FOLDED_PX = 34, 20, (6, 14)
"""Height of a row of the GPU at least, of one with work that escaped, of the folded host."""
_FOLDED_SHARE = 0.1
"""Of the plot that folded hosts take at most."""
_PROCESS = 24
_GAP = 4


class LanePlace(NamedTuple):
    """Where a lane of counters is: its number, what is known of it, and px of its top."""

    number: int
    facts: LaneFacts
    top: int

    @property
    def bottom(self) -> int:
        """Where it ends, px."""
        return self.top + self.facts.px


@dataclass(frozen=True)
class Places:
    """Tracks one under the other, px from the top of the plotting area, all even numbers.

    Attributes
    ----------
    tops, heights, lines
        One a track; a lane for marks lies above the top.
    lanes
        Where a track's lane of waits begins, below it; 0: it has none.
    counters
        Lanes of counters, below tracks and their lanes of waits.
    bottom
        Where the last track ends.
    processes
        Name and centre of the heading of each process, if there are several.
    stripes
        Top and bottom of what lies behind every second track.
    rules
        Where the host's tracks begin below the GPU's.
    """

    tracks: tuple[Track, ...]
    tops: list[int]
    heights: list[int]
    lines: list[int]
    lanes: list[int]
    counters: list[LanePlace]
    bottom: int
    processes: list[tuple[str, float]]
    stripes: list[tuple[float, float]]
    rules: list[float]

    @classmethod
    def of(
        cls,
        tracks: Sequence[Track],
        lines: Sequence[int],
        marked: Collection[int] = (),
        top: int = 4,
        *,
        escaped: Collection[int] = (),
        waiting: Collection[int] = (),
        counted: Mapping[int, Sequence[tuple[int, LaneFacts]]] | None = None,
    ) -> Places:
        """Place tracks that have these numbers of lines for spans that overlap.

        Parameters
        ----------
        marked
            Numbers of the tracks with a lane for marks above what they show.
        escaped, waiting
            Numbers of the tracks with work that escaped, and of those with a lane of waits.
        counted
            Number of a track → lanes of counters below it, by number.
        """
        below = counted or {}
        y = top
        places = cls(tuple(tracks), [], [], list(lines), [], [], top, [], [], [])
        lanes_px = WAITS_PX * len(waiting) + sum(
            facts.px + 2 * LANE_MARGIN for lanes in below.values() for _, facts in lanes
        )
        heights = _heights(tracks, lines, escaped, lanes_px)
        process, was_host = None, False
        for index, (track, height) in enumerate(zip(tracks, heights, strict=True)):
            if track.process is not None and track.process != process:
                places.processes.append((track.process, y + _PROCESS / 2))
                y += _PROCESS
            elif track.is_host and not was_host and index:
                places.rules.append(y + _GAP / 2)
                y += _GAP
            process, was_host = track.process, track.is_host
            begin, y = y, y + (MARKS_PX if track.number in marked else 0)
            places.tops.append(y)
            places.heights.append(height)
            y += height
            places.lanes.append(y if track.number in waiting else 0)
            y += WAITS_PX if track.number in waiting else 0
            for number, facts in below.get(track.number, ()):
                places.counters.append(LanePlace(number, facts, y + LANE_MARGIN))
                y += facts.px + 2 * LANE_MARGIN
            if index % 2 == 0:
                places.stripes.append((begin, y))
        return replace(places, bottom=y)

    def bars(self, track: Array | int, line: Array | int) -> tuple[Array, Array]:
        """Return centres and heights of bars on lines of tracks, by position here; px."""
        lines, height = np.array(self.lines)[track], np.array(self.heights)[track]
        room = np.maximum(height - 6, height / 2)
        size = room / lines
        middle = (height - room) / 2 + size * (np.minimum(line, lines - 1) + 0.5)
        return np.array(self.tops)[track] + middle, size - 1

    @property
    def centres(self) -> list[float]:
        """Track → its middle."""
        return [top + height / 2 for top, height in zip(self.tops, self.heights, strict=True)]


def _heights(
    tracks: Sequence[Track],
    lines: Sequence[int],
    escaped: Collection[int],
    lanes_px: int,
) -> list[int]:
    """Return heights of tracks: a name fits into each line, and a folded host stays small.

    ``lanes_px`` is the height of all lanes below them.
    """
    heights = []
    for track, count in zip(tracks, lines, strict=True):
        least = _ESCAPED_PX if track.number in escaped else _GPU_PX if track.is_work else 0
        heights.append(max(8 + 18 * count, least))
    hosts = [at for at, track in enumerate(tracks) if track.folded]
    if hosts:
        rest_px = sum(heights) - sum(heights[at] for at in hosts) + lanes_px
        least, most = _FOLDED_PX
        needed = round(least * len(hosts) / _FOLDED_SHARE) - least * len(hosts)
        heights[0] += max(0, needed - rest_px)  # the GPU's first, where there is little else
        room = int(max(needed, rest_px) * _FOLDED_SHARE / (1 - _FOLDED_SHARE) / len(hosts)) // 2 * 2
        for at in hosts:
            heights[at] = max(least, min(most, room))
    return heights
