"""A timeline's tracks and bars: their names, order and places."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpuscope.timeline import style
from gpuscope.timeline.style import KIND_STYLES, Properties
from gpuscope.timeline.text import clean, escape
from gpuscope.trace.model import Trace
from gpuscope.trace.tracks import Group, Layout, TrackKey

_ON_HOST = ("process", "thread")
LAYOUT = Layout(
    {
        "range": Group.RANGES, "mark": Group.RANGES, "handle": Group.HANDLES, "api": Group.CALLS,
        "sync": Group.SYNC, "kernel": Group.STREAM, "memcpy": Group.STREAM,
        "memset": Group.STREAM, "host function": Group.STREAM, "event": Group.STREAM,
        "graph": Group.STREAM,
    },
    {
        Group.RANGES: _ON_HOST,
        Group.HANDLES: (*_ON_HOST, "category", "name"),
        Group.CALLS: _ON_HOST,
        Group.SYNC: _ON_HOST,
        Group.STREAM: ("process", "device", "partition", "stream"),
    },
)  # fmt: skip
"""The tracks of a timeline; other kinds, such as thread blocks, have none."""
_HOST_LABELS = {
    Group.RANGES: "ranges", Group.CALLS: "API calls", Group.SYNC: "synchronisation",
}  # fmt: skip


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
    """

    kind: str
    partition: str | None
    is_open: bool
    escaped: bool = False


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
    """

    number: int
    label: str
    group: Group
    partition: str | None
    process: str | None

    @property
    def is_host(self) -> bool:
        """Whether it shows what the host did."""
        return self.group != Group.STREAM


def in_order(classes: Iterable[Class], partitions: Iterable[str]) -> tuple[Class, ...]:
    """Return classes in the order of drawing: host, whole GPU, partitions as given, escapes."""
    found = set(classes)
    kinds = list(KIND_STYLES)
    names = dict.fromkeys(
        ["", *partitions, *sorted({bar_class.partition or "" for bar_class in found})]
    )
    place = {name: index for index, name in enumerate(names)}
    return tuple(
        sorted(
            found,
            key=lambda item: (
                item.escaped,
                -1 if item.partition is None else place[item.partition],
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
    ranks = {rank.process: place for place, rank in enumerate(metadata.ranks)}
    keys = sorted(numbers, key=lambda key: (ranks.get(key.process, -1), _sort_key(places, key)))
    processes = {key.process for key in keys}
    threads = {key.thread for key in keys if key.group != Group.STREAM}
    devices = {key.device for key in keys if key.group == Group.STREAM}
    tracks: list[Track] = []
    seen: set[tuple[str | None, str]] = set()
    for key in keys:
        owner = None
        if len(processes) > 1:
            number = sole_process if key.process is None else key.process
            owner = owner_label(names, number)
        if key.group == Group.STREAM:
            stream = clean(names.stream_name(key.stream), 18)
            label = f"{partition_label(names, key.partition, ranked=owner is None)} · {stream}"
            if len(devices) > 1:
                label = f"GPU {'?' if key.device is None else key.device} · {label}"
            if (owner, label) in seen:
                label = f"{label} #{key.stream}"
        else:
            handle = key.category or key.name
            what = _HOST_LABELS.get(key.group) or f"handle {clean(handle, 18)}"
            where = _named(metadata.thread_names, key.thread, "thread")
            label = f"{what} · {where}" if len(threads) > 1 else what
        seen.add((owner, label))
        tracks.append(Track(numbers[key], label, key.group, key.partition, owner))
    return tuple(tracks)


def _sort_key(
    places: Mapping[str, int], key: TrackKey
) -> tuple[int, int, int, int, str, int, bool, int, str, int]:
    process, thread, device, stream = (
        -1 if value is None else value
        for value in (key.process, key.thread, key.device, key.stream)
    )
    block = {Group.RANGES: 0, Group.STREAM: 2}.get(key.group, 1)
    partition = key.partition or ""
    place = places.get(partition, len(places))
    return (
        process, block, thread, key.group, key.category or key.name or "",
        device, key.partition is not None, place, partition, stream,
    )  # fmt: skip


def _named(names: Mapping[str, str], number: int | None, what: str) -> str:
    if number is None:
        return f"unknown {what}"
    return clean(names.get(str(number), f"{what} {number}"), 22)


def owner_label(trace: Trace, process: int | None) -> str:
    """Return what a process is called: its rank, on its machine if there are several."""
    rank = trace.metadata.rank(process)
    if rank is None:
        return f"process {_named(trace.metadata.process_names, process, '').strip()}"
    several = len({one.host for one in trace.metadata.ranks}) > 1
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
_PROCESS = 24
_GAP = 4


@dataclass(frozen=True)
class Places:
    """Tracks one under the other, px from the top of the plotting area, all even numbers.

    Attributes
    ----------
    tops, heights, lines
        One a track; a lane for marks lies above the top.
    bottom
        Where the last track ends.
    marks
        Annotations and shapes for Plotly: processes, stripes, what parts host and GPU.
    """

    tracks: tuple[Track, ...]
    tops: list[int]
    heights: list[int]
    lines: list[int]
    bottom: int
    annotations: list[Properties]
    shapes: list[Properties]

    @classmethod
    def of(
        cls,
        tracks: Sequence[Track],
        lines: Sequence[int],
        marked: Collection[int] = (),
        top: int = 4,
    ) -> Places:
        """Place tracks that have these numbers of lines for spans that overlap.

        Parameters
        ----------
        marked
            Numbers of the tracks with a lane for marks above what they show.
        """
        y = top
        tops, heights = [], []
        annotations: list[Properties] = []
        shapes: list[Properties] = []
        process, was_host = None, True
        for index, (track, count) in enumerate(zip(tracks, lines, strict=True)):
            if track.process is not None and track.process != process:
                annotations.append(heading(escape(track.process), y + _PROCESS / 2))
                y += _PROCESS
            elif was_host and not track.is_host and index:
                shapes.append(_line(y + _GAP / 2))
                y += _GAP
            process, was_host = track.process, track.is_host
            height = 8 + count * 18  # in which a bar's name fits
            lane = MARKS_PX if track.number in marked else 0
            if index % 2 == 0:
                shapes.append(stripe(y, y + lane + height, style.STRIPE))
            tops.append(y + lane)
            heights.append(height)
            y += lane + height
        return cls(tuple(tracks), tops, heights, list(lines), y, annotations, shapes)

    def bar(self, place: int, line: int) -> tuple[float, float]:
        """Return centre and height of a bar on a line of a track, px."""
        size = (self.heights[place] - 6) / self.lines[place]
        return self.tops[place] + 3 + size * (min(line, self.lines[place] - 1) + 0.5), size - 1

    def ticks(self) -> tuple[list[float], list[str]]:
        """Return centres and labels of the tracks."""
        centres = [top + height / 2 for top, height in zip(self.tops, self.heights, strict=True)]
        return centres, [escape(track.label) for track in self.tracks]


def y_axis(places: Sequence[Places], height: float, **more: object) -> Properties:
    """Return the vertical axis: px from the top, the tracks' labels as ticks."""
    ticks = [place.ticks() for place in places]
    return style.label_axis(
        [centre for centres, _ in ticks for centre in centres],
        [label for _, labels in ticks for label in labels],
        range=[height, 0],
        tickfont={"size": 12},
        **more,
    )


def heading(text: str, y: float, **more: object) -> Properties:
    """Return a text at the left, safe for Plotly already."""
    return {
        "text": text, "x": 0, "xref": "paper", "xanchor": "left", "y": y, "yref": "y",
        "yanchor": "middle", "showarrow": False, "font": {"size": 13}, "align": "left", **more,
    }  # fmt: skip


def nothing(y: float) -> Properties:
    """Return what stands where there is no track."""
    return {
        "text": "no spans to draw here", "x": 0.5, "xref": "paper", "y": y, "yref": "y",
        "showarrow": False, "font": {"size": 15, "color": style.MUTED},
    }  # fmt: skip


def stripe(top: float, bottom: float, colour: str) -> Properties:
    """Return a band of colour behind a track."""
    return {
        "type": "rect", "xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": top, "y1": bottom,
        "fillcolor": colour, "line": {"width": 0}, "layer": "below",
    }  # fmt: skip


def _line(y: float) -> Properties:
    return {
        "type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": y, "y1": y,
        "line": {"width": 1, "color": style.HOST_COLOUR}, "layer": "below",
    }  # fmt: skip
