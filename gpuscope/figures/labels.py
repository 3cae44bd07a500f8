"""Labels and order of a timeline's tracks and bars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuscope.figures.style import KIND_STYLES
from gpuscope.figures.text import clean
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
Class = tuple[str, str | None, bool]
"""Kind, partition (``""`` where a stream has none, ``None`` on the host), and whether open."""


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
        The process's name, or ``None`` where the trace has only one.
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

    @property
    def has_texts(self) -> bool:
        """Whether its bars bear their names."""
        return self.group == Group.RANGES


def in_order(classes: Iterable[Class], partitions: Iterable[str]) -> tuple[Class, ...]:
    """Return classes in the order of a legend: host, whole GPU, then partitions as given."""
    found = set(classes)
    kinds = list(KIND_STYLES)
    names = dict.fromkeys(["", *partitions, *sorted({bar_class[1] or "" for bar_class in found})])
    place = {name: index for index, name in enumerate(names)}
    return tuple(
        sorted(
            found,
            key=lambda item: (
                -1 if item[1] is None else place[item[1]],
                kinds.index(item[0]),
                item[2],
            ),
        )
    )


def labelled(
    names: Trace, numbers: Mapping[TrackKey, int], sole_process: int | None
) -> tuple[Track, ...]:
    """Return the tracks in the order in which they are drawn."""
    metadata = names.metadata
    places = {name: index for index, name in enumerate(metadata.partitions)}
    keys = sorted(numbers, key=lambda key: _sort_key(places, key))
    processes = {key.process for key in keys}
    threads = {key.thread for key in keys if key.group != Group.STREAM}
    devices = {key.device for key in keys if key.group == Group.STREAM}
    tracks: list[Track] = []
    seen: set[tuple[str | None, str]] = set()
    for key in keys:
        owner = None
        if len(processes) > 1:
            number = sole_process if key.process is None else key.process
            owner = _named(metadata.process_names, number, "process")
        if key.group == Group.STREAM:
            stream = clean(names.stream_name(key.stream), 18)
            label = f"{partition_label(names, key.partition)} · {stream}"
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


def partition_label(trace: Trace, partition: str | None) -> str:
    """Return a partition's name and its SM count, where known, in plain text."""
    if partition is None:
        return "whole GPU"
    count = trace.metadata.partition(partition).sm_count
    name = clean(partition, 18)
    return name if count is None else f"{name} ({clean(count, 8)} SMs)"
