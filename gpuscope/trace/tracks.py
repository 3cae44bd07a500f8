"""On which track each span stands: rows grouped by what tells tracks apart.

Figures draw these tracks and exporters number them; each states by a :class:`TrackLayout` which
kinds of spans share a track. How tracks are drawn, named or numbered is not decided here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gpuscope._types import Array, Ints
from gpuscope.trace.columns import chosen, codes, combined
from gpuscope.trace.model import Trace

Columns: TypeAlias = Mapping[str, tuple[Array, Sequence[Any]]]
"""Column → row → code, and code → value, a text, a whole number or ``None``; code 0 is null."""


class Group(IntEnum):
    """What the spans of a track have to do with, in the order in which tracks are numbered."""

    THREAD = 0
    """All that a host thread did but the calls of handles, which may overlap."""
    RANGES = 1
    HANDLES = 2
    CALLS = 3
    SYNC = 4
    STREAM = 5
    """Work of a stream of a GPU."""
    SM = 6
    """Thread blocks."""
    COUNTER = 7
    PATH = 8
    """The parts of a critical path."""
    STACKS = 9
    """What samples say that a thread did."""


ON_PATH = "critical path"
"""The category of ranges that are parts of a critical path."""


class TrackKey(NamedTuple):
    """What the spans of a track have in common; ``None`` is unknown or does not apply.

    ``process`` and ``thread`` are the system's ids.
    """

    group: Group
    process: int | None
    thread: int | None
    device: int | None
    partition: str | None
    stream: int | None
    category: str | None
    name: str | None
    sm: int | None

    @property
    def is_device(self) -> bool:
        """Whether a GPU did it."""
        return self.group in (Group.STREAM, Group.SM) or (
            self.group == Group.COUNTER and self.device is not None
        )


KEY_COLUMNS = TrackKey._fields[1:]


@dataclass(frozen=True)
class TrackLayout:
    """Which spans share a track.

    Attributes
    ----------
    groups
        Kind → group.
    columns
        Group → the columns that tell its tracks apart; ``name`` does only where a row has no
        ``category``.
    default_group
        Group of all other kinds; ``None``: they are on no track.
    """

    groups: Mapping[str | None, Group]
    columns: Mapping[Group, Collection[str]]
    default_group: Group | None = None

    def grouped(self, columns: Columns) -> Ints:
        """Return each row's group, −1 for those on no track."""
        kind, kinds = columns["kind"]
        default_group = -1 if self.default_group is None else self.default_group
        group = np.array([self.groups.get(name, default_group) for name in kinds], np.int64)[kind]
        # An event that a thread recorded is a call.
        is_event = np.array([name == "event" for name in kinds])[kind]
        group = np.where(is_event & (columns["thread"][0] > 0), self.groups["api"], group)
        category, categories = columns["category"]
        if Group.PATH not in self.columns or ON_PATH not in categories:
            return group
        is_range = np.array([name == "range" for name in kinds])[kind]
        return np.where(is_range & (category == categories.index(ON_PATH)), Group.PATH, group)

    def assigned(
        self, group: Ints, columns: Columns, numbers: dict[TrackKey, int], sole_process: int | None
    ) -> Array:
        """Return each row's track number, −1 for those on no track.

        Parameters
        ----------
        group
            What :meth:`grouped` returned.
        numbers
            Track → number; new tracks are added with the next number.
        sole_process
            The process whose rows need not name it: its tracks have ``None``.
        """
        track = np.full(len(group), -1, np.int32)
        rows = chosen(group >= 0)
        group = group[rows]
        parts: dict[str, Array] = {}
        for name in KEY_COLUMNS:
            if not any(name in used for used in self.columns.values()):
                continue
            code = columns[name][0][rows]
            if name == "process":
                named = [value != sole_process for value in columns[name][1]]
                code = np.where(np.array(named)[code], code, 0)
            elif name == "name":
                code = np.where(parts["category"] == 0, code, 0)
            matters = np.array([name in self.columns.get(member, ()) for member in Group])
            parts[name] = np.where(matters[group], code, 0)
        first, combination = combined(group, *parts.values())
        track_of = np.empty(len(first), np.int32)
        for number, row in enumerate(first.tolist()):
            values = {name: columns[name][1][code[row]] for name, code in parts.items()}
            key = TrackKey._make([Group(group[row]), *map(values.get, KEY_COLUMNS)])
            track_of[number] = numbers.setdefault(key, len(numbers))
        track[rows] = track_of[combination]
        return track

    def of(self, trace: Trace) -> tuple[list[TrackKey], Array]:
        """Return the tracks of a trace, and each row's position among them or −1.

        Rows that name no process belong to the trace's only one.
        """
        columns: Columns = {
            name: codes(trace.spans.column(name)) for name in ("kind", *KEY_COLUMNS)
        }
        processes = columns["process"][1][1:]
        sole = processes[0] if len(processes) == 1 else None
        numbers: dict[TrackKey, int] = {}
        track = self.assigned(self.grouped(columns), columns, numbers, sole)
        if sole is None:
            return list(numbers), track
        return [
            key._replace(process=sole) if "process" in self.columns[key.group] else key
            for key in numbers
        ], track
