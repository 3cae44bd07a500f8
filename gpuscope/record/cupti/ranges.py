"""NVTX markers as ranges and marks of a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa

from gpuscope._types import Array
from gpuscope.record import nvtx
from gpuscope.record.cupti import tables
from gpuscope.record.cupti.library import text_at
from gpuscope.record.cupti.tables import Column, Columns
from gpuscope.record.rows import keep, range_row
from gpuscope.trace import arrow, joins
from gpuscope.trace.arrow import NONE

_OPEN = np.iinfo(np.int64).max


class Ranges:
    """NVTX ranges and marks, as their records come in."""

    def __init__(self) -> None:
        self.arrive = False
        self._fresh: list[Columns] = []
        self._data: list[Columns] = []
        self._early_ends: list[Columns] = []
        self._open: Columns | None = None
        self._done: list[tuple[int, Columns]] = []
        """What is a row already: the last end of each piece, and its ranges."""
        self._texts: dict[int, str] = {}
        self._numbers = 1

    def keep(self) -> Callable[[], None]:
        """Return what undoes all that is done here next."""
        return keep(self, "_fresh", "_data", "_early_ends", "_open", "_done", "_numbers")

    def take(self, records: Mapping[int, Columns]) -> None:
        """Take the markers of a buffer."""
        markers, data = tables.markers_of(records)
        if markers is not None:
            self._fresh.append(dict(markers))
        if data is not None:
            self._data.append(dict(data))

    def _text(self, address: int) -> str:
        text = self._texts.get(address)
        if text is None:
            text = self._texts[address] = text_at(address)
        return text

    def drop_canaries(self) -> bool:
        """Forget everything so far; returns whether a canary was among it."""
        names = {
            self._text(int(address))
            for part in self._fresh
            for address in np.unique(part["name"]).tolist()
        }
        self._fresh.clear()
        self._data.clear()
        return nvtx.CANARY in names

    def _update(self) -> None:
        """Join ends to begins."""
        if not self._fresh:
            return
        markers = tables.join_columns([*self._early_ends, *self._fresh])
        self._fresh = []
        marks, begins, ends = tables.split_markers(markers)
        both = np.sort(np.concatenate([marks, begins]))
        new = tables.select(markers, both)
        new["first"] = new.pop("time").astype(np.int64)
        is_mark = (new["flags"] & 1) != 0
        new["last"] = np.where(is_mark, new["first"], _OPEN)
        new["is_mark"] = is_mark
        new["row"] = range_row(np.arange(self._numbers, self._numbers + len(both), dtype=np.int64))
        new["end_thread"] = new["thread"].copy()
        self._numbers += len(both)
        every = new if self._open is None else tables.join_columns([self._open, new])
        at = joins.match(markers["marker"][ends], every["marker"])
        found = at >= 0
        every["last"][at[found]] = markers["time"][ends][found].astype(np.int64)
        every["end_thread"][at[found]] = markers["thread"][ends][found]
        # Records of two threads come in two buffers, the later one first perhaps.
        self._early_ends = [tables.select(markers, ends[~found])]
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

    def rows(self, *, over: bool) -> pa.Table | None:
        """Return a table of the ranges that ended, at the end of those still open, too."""
        self._update()
        if self._open is None:
            return None
        names = {
            int(address): self._text(int(address)) for address in np.unique(self._open["name"])
        }
        canary = np.array([names[int(one)] == nvtx.CANARY for one in self._open["name"]], bool)
        ended = (self._open["last"] != _OPEN) | over
        now = tables.select(self._open, ended & ~canary)
        parents = self.around(now["thread"], now["first"] - 1)
        if len(now["row"]):
            self._done.append((int(now["last"].max()), now))
        self._open = tables.select(self._open, ~ended & ~canary)
        count = len(now["row"])
        if not count:
            return None
        domains = {int(address): self._text(int(address)) for address in np.unique(now["domain"])}
        name_codes, name_at = arrow.coded(now["name"])
        domain_codes, domain_at = arrow.coded(now["domain"])
        last = now["last"]
        columns: dict[str, Column] = {
            "id": now["row"],
            "parent": arrow.nullable(parents, parents == NONE),
            "kind": arrow.text_column(now["is_mark"].astype(np.int64), ["range", "mark"]),
            "name": arrow.text_column(name_codes, [names[int(one)] or "(no message)"
                                                    for one in name_at]),
            "start_ns": now["first"],
            "end_ns": arrow.nullable(last, last == _OPEN),
            "process": now["process"].astype(np.int64),
            "thread": now["thread"].astype(np.int64),
            "end_thread": arrow.nullable(now["end_thread"], now["end_thread"] == now["thread"]),
            "domain": arrow.text_column(domain_codes, [domains[int(one)] or None
                                                        for one in domain_at]),
            "source": arrow.constant("nvtx", count),
            **self._styles(now, domains),
        }  # fmt: skip
        return arrow.table(columns, count)

    def _styles(self, now: Columns, domains: dict[int, str]) -> dict[str, Column]:
        """Return colours, categories and payloads."""
        if not self._data:
            return {}
        data = tables.join_columns(self._data)
        at = joins.match(now["marker"], data["marker"])
        there = at >= 0
        picked = tables.select(data, np.maximum(at, 0))
        colored = there & (picked["color"] != 0)
        columns: dict[str, Column] = {}
        if colored.any():
            opaque = np.where(picked["color"] >> 24, picked["color"], picked["color"] | 0xFF000000)
            columns["color"] = pa.array(opaque.astype(np.uint32), mask=~colored)
        categories = [
            nvtx.category_name(domains[int(domain)], int(number)) if ok and number else None
            for ok, number, domain in zip(there, picked["category"], now["domain"], strict=True)
        ] if (there & (picked["category"] != 0)).any() else []  # fmt: skip
        if categories:
            columns["category"] = pa.array(categories).dictionary_encode()
        told = there & ((picked["payload"] != 0) | (picked["payload_kind"] == tables.SIGNED))
        payloads = [
            tables.payload_text(int(kind), int(raw)) if ok else None
            for ok, kind, raw in zip(told, picked["payload_kind"], picked["payload"], strict=True)
        ] if told.any() else []  # fmt: skip
        if payloads:
            columns["payload"] = pa.array(payloads, pa.string()).dictionary_encode()
        return columns
