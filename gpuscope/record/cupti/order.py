"""What orders work by calls that only CUPTI tells of: waits of libraries that nobody asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gpuscope._types import Array, Ints
from gpuscope.record.cupti import layout, tables
from gpuscope.record.cupti.tables import Columns
from gpuscope.record.source import Ordered
from gpuscope.trace.waits import CONTEXT_SYNC, EVENT_SYNC, RECORD, STREAM_SYNC, STREAM_WAIT

KINDS = (layout.SYNCHRONIZATION, layout.CUDA_EVENT)
"""Kinds of records that it needs."""
_NEVER = 0
"""What a wait names as its record if there was none since CUPTI tells of them."""


def waits_of(records: Mapping[int, Columns]) -> list[Columns]:
    """Return what a buffer tells of events and waits, ``what`` each record is of beside it."""
    parts = []
    for kind in KINDS:
        columns = records.get(kind)
        if columns is not None:
            what = columns.get("type", np.full(len(columns["sync"]), RECORD, np.uint32))
            names = ("correlation", "context", "stream", "sync")
            parts.append({"what": what, **{name: columns[name] for name in names}})
    return parts


class EventOrder:
    """Records of events, and of waits for them, in the order of their calls.

    Each call of CUDA has a number, its correlation, which grows; each record of an event has one
    that a wait for it names.
    """

    def __init__(self) -> None:
        self._parts: list[Columns] = []

    def take(self, records: Mapping[int, Columns]) -> None:
        """Take what a buffer holds of them."""
        self._parts += waits_of(records)

    def between(self, streams_of: Callable[[Columns], Ints]) -> Ordered:
        """Return what says whether a wait orders two pieces of work, by correlation and stream.

        It answers ``None`` where it may: a wait is for a record of an event that was not told.

        Parameters
        ----------
        streams_of
            Returns the trace's number of each stream.
        """
        calls: Array = np.zeros((0, 4), np.int64)
        if self._parts:
            columns = tables.join_columns(self._parts)
            named = (columns["correlation"], columns["what"], streams_of(columns), columns["sync"])
            calls = np.stack([column.astype(np.int64) for column in named], axis=1)
            calls = calls[np.argsort(calls[:, 0], kind="stable")]
        recorded = {_NEVER, *calls[calls[:, 1] == RECORD, 3].tolist()}

        def unknown(event: int) -> bool:
            return event not in recorded

        def ordered(first: tuple[int, int], second: tuple[int, int]) -> bool | None:
            low, high = np.searchsorted(calls[:, 0], (first[0], second[0]), "right").tolist()
            between = calls[low:high, 1:].tolist()
            if _reached(first[1], second[1], between, lambda _: False):
                return True
            return None if _reached(first[1], second[1], between, unknown) else False

        return ordered


def _reached(
    first: int, second: int, calls: Sequence[list[int]], unknown: Callable[[int], bool]
) -> bool:
    """Whether records and waits lead from a stream's work to another's.

    Parameters
    ----------
    unknown
        Which records of events may have been made behind the first's work.
    """
    behind, events = {first}, set()  # what comes after it
    for what, stream, event in calls:
        if what == RECORD:
            if stream in behind:
                events.add(event)
        elif what == CONTEXT_SYNC or (what == STREAM_SYNC and stream in behind):
            return True
        elif what in (EVENT_SYNC, STREAM_WAIT) and (event in events or unknown(event)):
            if what == EVENT_SYNC:
                return True
            behind.add(stream)
    return second in behind
