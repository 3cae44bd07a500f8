"""What tracks and bars of a timeline are called, and their order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuscope.figures.style import KIND_STYLES
from gpuscope.figures.text import clean
from gpuscope.trace.model import Trace

RANGES, HANDLES, CALLS, SYNC, STREAM = range(5)
GROUPS = {
    "range": RANGES, "mark": RANGES, "handle": HANDLES, "api": CALLS, "sync": SYNC,
    "kernel": STREAM, "memcpy": STREAM, "memset": STREAM, "host function": STREAM,
    "event": STREAM, "graph": STREAM,
}  # fmt: skip
_HOST_LABELS = {RANGES: "ranges", CALLS: "API calls", SYNC: "synchronisation"}
KEYS = ("process", "thread", "device", "partition", "stream", "category", "name")
"""Columns that, with the group, tell tracks apart; those that do not matter are ``None``."""

Key = tuple[Any, ...]
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
    group: int
    partition: str | None
    process: str | None

    @property
    def is_host(self) -> bool:
        """Whether it shows what the host did."""
        return self.group != STREAM

    @property
    def has_texts(self) -> bool:
        """Whether its bars bear their names."""
        return self.group == RANGES


def in_order(classes: Iterable[Class], partitions: Iterable[str]) -> tuple[Class, ...]:
    """Return classes in the order of a legend: host, whole GPU, then partitions as given."""
    found = set(classes)
    kinds = list(KIND_STYLES)
    names = dict.fromkeys(["", *partitions, *sorted({one[1] or "" for one in found})])
    place = {name: index for index, name in enumerate(names)}
    return tuple(
        sorted(
            found,
            key=lambda one: (
                -1 if one[1] is None else place[one[1]], kinds.index(one[0]), one[2]
            ),
        )
    )  # fmt: skip


def labelled(names: Trace, numbers: Mapping[Key, int], sole_process: Any) -> tuple[Track, ...]:
    """Return the tracks in the order in which they are drawn."""
    metadata = names.metadata
    places = {name: index for index, name in enumerate(metadata.partitions)}
    keys = sorted(numbers, key=lambda key: _sort_key(places, key))
    processes = {key[1] for key in keys}
    threads = {key[2] for key in keys if key[0] != STREAM}
    devices = {key[3] for key in keys if key[0] == STREAM}
    tracks: list[Track] = []
    seen: set[tuple[str | None, str]] = set()
    for key in keys:
        group, process, thread, device, partition, stream, category, name = key
        owner = None
        if len(processes) > 1:
            number = sole_process if process is None else process
            owner = _named(metadata.process_names, number, "process")
        if group == STREAM:
            label = f"{partition_label(names, partition)} · {clean(names.stream_name(stream), 18)}"
            if len(devices) > 1:
                label = f"GPU {'?' if device is None else device} · {label}"
            if (owner, label) in seen:
                label = f"{label} #{stream}"
        else:
            what = _HOST_LABELS.get(group) or f"handle {clean(category or name, 18)}"
            where = _named(metadata.thread_names, thread, "thread")
            label = f"{what} · {where}" if len(threads) > 1 else what
        seen.add((owner, label))
        tracks.append(Track(numbers[key], label, group, partition, owner))
    return tuple(tracks)


def _sort_key(places: Mapping[str, int], key: Key) -> tuple[Any, ...]:
    group, process, thread, device, partition, stream, category, name = key
    place = places.get(partition, len(places))
    number = [-1 if value is None else value for value in (process, thread, device, stream)]
    block = 0 if group == RANGES else 2 if group == STREAM else 1
    return (
        number[0], block, number[1], group, category or name or "",
        number[2], partition is not None, place, partition or "", number[3],
    )  # fmt: skip


def _named(names: Any, number: int | None, what: str) -> str:
    if number is None:
        return f"unknown {what}"
    return clean(names.get(str(number), f"{what} {number}"), 22)


def partition_label(trace: Trace, partition: str | None) -> str:
    """Return a partition's name and its SM count, where known, in plain text."""
    if partition is None:
        return "whole GPU"
    facts = trace.metadata.partitions.get(partition, {})
    count = facts.get("granted", facts.get("sm_count"))
    name = clean(partition, 18)
    return name if count is None else f"{name} ({clean(count, 8)} SMs)"
