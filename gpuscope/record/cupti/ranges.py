"""NVTX markers as ranges and marks of a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np
import pyarrow as pa

from gpuscope._types import Array
from gpuscope.record import nvtx
from gpuscope.record.cupti import layout, tables
from gpuscope.record.cupti.library import text_at
from gpuscope.record.cupti.tables import Column, Columns
from gpuscope.record.rows import keep, range_row
from gpuscope.trace import arrow, joins
from gpuscope.trace.arrow import NONE

_OPEN = np.iinfo(np.int64).max
_MARK, _BEGIN, _END = 1, 2, 4


_LATE = 1 << 15
"""Where only the latest rows are kept, so many records wait for their other half."""


class Ranges:
    """NVTX ranges and marks, as their records come in.

    Parameters
    ----------
    text
        Address in a record → text.
    """

    def __init__(self, text: Callable[[int], str] = text_at) -> None:
        self.arrive = False
        self._fresh: list[Columns] = []
        self._data: list[Columns] = []
        self._early_ends: list[Columns] = []
        self._open: Columns | None = None
        self._done: list[tuple[int, Columns]] = []
        """What is a row already: the last end of each piece, and its ranges."""
        self._text = lru_cache(_LATE)(text)
        self._numbers = 1

    def keep(self) -> Callable[[], None]:
        """Return what undoes all that is done here next."""
        return keep(self, "_fresh", "_data", "_early_ends", "_open", "_done", "_numbers")

    def take(self, records: Mapping[int, Columns]) -> None:
        """Take the markers of a buffer."""
        for kind, parts in ((layout.MARKER, self._fresh), (layout.MARKER_DATA, self._data)):
            if kind in records:
                parts.append(dict(records[kind]))

    def drop_canaries(self) -> bool:
        """Forget everything so far; returns whether a canary was among it."""
        addresses = {
            address for part in self._fresh for address in np.unique(part["name"]).tolist()
        }
        names = {self._text(address) for address in addresses}
        self._fresh.clear()
        self._data.clear()
        return nvtx.CANARY in names

    def _update(self) -> None:
        """Join ends to begins."""
        if not self._fresh:
            return
        markers = tables.join_columns([*self._early_ends, *self._fresh])
        self._fresh = []
        ends = np.flatnonzero(markers["flags"] & _END)
        new = tables.select(markers, (markers["flags"] & (_MARK | _BEGIN)) != 0)
        count = len(new["time"])
        new["first"] = new.pop("time").astype(np.int64)
        new["is_mark"] = (new["flags"] & _MARK) != 0
        new["last"] = np.where(new["is_mark"], new["first"], _OPEN)
        new["row"] = range_row(np.arange(self._numbers, self._numbers + count, dtype=np.int64))
        new["end_thread"] = new["thread"].copy()
        self._numbers += count
        every = new if self._open is None else tables.join_columns([self._open, new])
        at = joins.match(markers["marker"][ends], every["marker"])
        matched = at >= 0
        every["last"][at[matched]] = markers["time"][ends][matched].astype(np.int64)
        every["end_thread"][at[matched]] = markers["thread"][ends][matched]
        # Records of two threads come in two buffers, the later one first perhaps.
        self._early_ends = [tables.select(markers, ends[~matched])]
        self._open = every

    def around(self, threads: Array, times: Array) -> Array:
        """Return the row of the innermost range around each moment of a thread, or NONE."""
        self._update()
        # Ranges that were over before are around nothing; else a long recording read often
        # would look at all of them each time.
        since = times.min(initial=_OPEN)
        parts = [part for last, part in self._done if last >= since]
        parts += [self._open] if self._open is not None else []
        if not parts:
            return np.full(len(times), NONE, np.int64)
        every = tables.join_columns(parts)
        every = tables.select(every, ~every["is_mark"] & (every["thread"] == every["end_thread"]))
        at = joins.innermost(
            threads, times, every["thread"].astype(np.int64), every["first"], every["last"]
        )
        return np.where(at >= 0, every["row"][np.maximum(at, 0)], NONE) if len(every["row"]) else at

    def forget(self, since_ns: int) -> None:
        """Let go of what only rows need that ended before; only between readings."""
        self._done = [(last, part) for last, part in self._done if last >= since_ns]
        ends = [{name: part[name][-_LATE:] for name in part} for part in self._early_ends]
        self._early_ends = ends
        if sum(len(part["marker"]) for part in self._data) > 2 * _LATE:
            data = tables.join_columns(self._data)
            awaited = np.zeros(len(data["marker"]), bool)
            awaited[-_LATE:] = True
            if self._open is not None:
                awaited |= np.isin(data["marker"], self._open["marker"])
            self._data = [tables.select(data, awaited)]

    def rows(self, *, over: bool) -> pa.Table | None:
        """Return a table of the ranges that ended, at the end of those still open, too."""
        self._update()
        if self._open is None:
            return None
        codes, addresses = arrow.coded(self._open["name"])
        is_canary = [self._text(address) == nvtx.CANARY for address in addresses]
        canary = np.array(is_canary, bool)[codes]
        ended = (self._open["last"] != _OPEN) | over
        now = tables.select(self._open, ended & ~canary)
        parents = self.around(now["thread"], now["first"] - 1)
        if len(now["row"]):
            self._done.append((int(now["last"].max()), now))
        self._open = tables.select(self._open, ~ended & ~canary)
        count = len(now["row"])
        if not count:
            return None
        last = now["last"]
        columns: dict[str, Column] = {
            "id": now["row"],
            "parent": arrow.nullable(parents, parents == NONE),
            "kind": arrow.text_column(now["is_mark"].astype(np.int64), ["range", "mark"]),
            "name": self._text_column(now["name"], "(no message)"),
            "start_ns": now["first"],
            "end_ns": arrow.nullable(last, last == _OPEN),
            "process": now["process"].astype(np.int64),
            "thread": now["thread"].astype(np.int64),
            "end_thread": arrow.nullable(now["end_thread"], now["end_thread"] == now["thread"]),
            "domain": self._text_column(now["domain"], None),
            "source": arrow.constant("nvtx", count),
            **self._styles(now),
        }
        return arrow.table(columns, count)

    def _text_column(self, addresses: Array, empty: str | None) -> pa.Array:
        """Return the texts at addresses, and ``empty`` where there is none."""
        codes, distinct = arrow.coded(addresses)
        return arrow.text_column(codes, [self._text(address) or empty for address in distinct])

    def _styles(self, now: Columns) -> dict[str, Column]:
        """Return colours, categories and payloads."""
        if not self._data:
            return {}
        data = tables.join_columns(self._data)
        at = joins.match(now["marker"], data["marker"])
        valid = at >= 0
        picked = tables.select(data, np.maximum(at, 0))
        colored = valid & (picked["color"] != 0)
        columns: dict[str, Column] = {}
        if colored.any():
            opaque = np.where(picked["color"] >> 24, picked["color"], picked["color"] | 0xFF000000)
            columns["color"] = pa.array(opaque.astype(np.uint32), mask=~colored)
        numbered = valid & (picked["category"] != 0)
        if numbered.any():
            numbers = zip(numbered, picked["category"], now["domain"], strict=True)
            categories = [
                nvtx.category_name(self._text(int(domain)), int(number)) if is_numbered else None
                for is_numbered, number, domain in numbers
            ]
            columns["category"] = arrow.texts(categories)
        has_payload = valid & ((picked["payload"] != 0) | (picked["payload_kind"] == tables.SIGNED))
        if has_payload.any():
            payloads = zip(has_payload, picked["payload_kind"], picked["payload"], strict=True)
            texts = [
                tables.payload_text(int(kind), int(raw)) if is_present else None
                for is_present, kind, raw in payloads
            ]
            columns["payload"] = arrow.texts(texts)
        return columns
