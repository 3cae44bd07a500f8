"""Which kernels were given to which partition: by the trace's word or the caller's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from gpuscope._types import Array
from gpuscope.analysis.launch import launch_calls
from gpuscope.analysis.projection import launched_inside, pairs
from gpuscope.errors import MissingEvidence
from gpuscope.trace.columns import codes, rows_of
from gpuscope.trace.model import Trace

Intended: TypeAlias = Mapping[Any, str | int]
"""Name of a range or id of a stream → name of a partition or id of a green context."""


class GivenWork:
    """The finished kernels and to which partition each was given.

    Attributes
    ----------
    rows
        Positions in the trace; the other arrays are parallel to it.
    names
        Partitions that may have been given work.
    target
        Position in ``names``, −1 for work given to none.
    place
        Name → position in ``names``.
    contexts
        Name → green context.
    """

    def __init__(self, trace: Trace, rows: Array) -> None:
        intended, values = codes(trace.spans.column("intended_partition"))
        self.rows = rows
        self.names: list[str] = values[1:]
        self.target = intended[rows] - 1
        self.place = {name: index for index, name in enumerate(self.names)}
        self.contexts: dict[str, int] = {
            name: facts.context
            for name, facts in trace.metadata.partitions.items()
            if facts.context is not None
        }
        self._by_context = {context: name for name, context in self.contexts.items()}

    def number(self, home: str | int) -> int:
        """Position in ``names`` of a partition or green context that the caller named."""
        if isinstance(home, int):
            name = self._by_context.setdefault(home, f"green context {home}")
            self.contexts[name] = home
        else:
            name = home
        if name not in self.place:
            self.place[name] = len(self.names)
            self.names.append(name)
        return self.place[name]


def give(trace: Trace, work: GivenWork, intended: Intended) -> list[str]:
    """Give kernels to partitions as the caller says; return what there is to note."""
    if not intended:
        return []
    stream, streams = codes(trace.spans.column("stream"))
    there = {*streams, *codes(trace.spans.column("name"))[1]}
    absent = [repr(key) for key in intended if key not in there]
    notes = [f"the trace has no {', '.join(absent)}, which intended= names"] if absent else []
    home = np.full(len(streams), -1, np.int64)
    number_of = {value: index for index, value in enumerate(streams)}
    for key, target in intended.items():
        if not isinstance(key, str) and key in number_of:
            home[number_of[key]] = work.number(target)
    given = home[stream[work.rows]]
    ranges, homes = _mapped_ranges(trace, work, intended)
    if len(ranges):
        calls = launch_calls(trace)[work.rows]
        lost = int(np.count_nonzero(calls < 0))
        if lost:
            notes.append(f"{lost:,} kernels have no known launch call: in no range")
        known = np.flatnonzero(calls >= 0)
        order, low, high = launched_inside(trace, ranges, calls[known])
        for number, place in pairs(low, high):
            # Of equal places the last assignment stays: the range that began last.
            given[known[order[place]]] = homes[number]
    if not (given >= 0).any():
        raise MissingEvidence(
            f"intended={dict(intended)!r} applies to none of {len(work.rows):,} finished kernels: "
            "streams are matched by id, ranges by name and by the thread of the launch calls, "
            "which must be in the trace (profile(launch_ids=True), the default)"
        )
    _require_places(trace, work.rows[given >= 0])
    work.target = np.where(given >= 0, given, work.target)
    notes.append("what was given to whom is the caller's word")
    return notes


def _mapped_ranges(trace: Trace, work: GivenWork, intended: Intended) -> tuple[Array, Array]:
    """Ranges whose names the caller maps, in the order of their starts, and their targets."""
    ranges = rows_of(trace, "range")
    name, names = codes(trace.spans.column("name"))
    home = np.full(len(names), -1, np.int64)
    for index, label in enumerate(names):
        if isinstance(label, str) and label in intended:
            home[index] = work.number(intended[label])
    ranges = ranges[home[name[ranges]] >= 0]
    ranges = ranges[np.argsort(trace.array("start_ns")[ranges], kind="stable")]
    return ranges, home[name[ranges]]


def _require_places(trace: Trace, rows: Array) -> None:
    """Refuse to judge where a trace from elsewhere does not say what ran where."""
    for column in ("partition", "green_context"):
        if codes(trace.spans.column(column))[0][rows].any():
            return
    parents = trace.array("parent", fill=-1)[rows_of(trace, "block")]
    if not np.isin(trace.array("id")[rows], parents).any():
        raise MissingEvidence(
            "the trace does not say in which green context any of these kernels ran: record with "
            "profile() or with a tool that writes the green context of each kernel"
        )
