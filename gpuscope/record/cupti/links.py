"""Links what CUPTI saw to our calls, and makes batches of rows of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from gpuscope._types import Ints
from gpuscope.device.calls import Call
from gpuscope.record.cupti import tables
from gpuscope.record.cupti.library import is_apart
from gpuscope.record.cupti.places import Known
from gpuscope.record.cupti.records import NO_NUMBER, Records
from gpuscope.record.cupti.tables import Column, Columns
from gpuscope.record.cupti.waits import in_ours
from gpuscope.record.guards import UNSURE, SelectionLog
from gpuscope.record.rows import (
    GRACE_NS,
    Batch,
    Row,
    Rows,
    call_row,
    freeze,
    keep,
    outside_row,
    partition_name,
    together,
    work_row,
)
from gpuscope.record.source import Completeness
from gpuscope.trace import arrow, joins, schema
from gpuscope.trace.arrow import NONE

_RECENT = 10_000
"""Calls that may yet have another API record."""
_ADDED = ("selected", "awaited", "site", "role")
_KNOWN = ("correlation", "row", "call", "thread", "process", "start", "end", *_ADDED)
"""Columns of API calls that later work may need."""
LATE = 1 << 15
"""Where only the latest rows are kept, so many of each kind wait for their other half: the newest
API calls, the newest of those before that have no work yet, and our calls without a record. What a
GPU has queued is much less."""
_Held = tuple[Call, Row]


class Links:
    """Joins work to API calls by their number, and API calls to ours by thread and time.

    Parameters
    ----------
    records
        What was read.
    places
        Tell where work ran.
    selections
        Tell which stream a guard had selected.
    found
        Told of what has no partner.
    all_calls
        Whether every launch of ours has an API record.
    """

    def __init__(
        self,
        records: Records,
        places: Known,
        selections: SelectionLog,
        completeness: Completeness,
        *,
        all_calls: bool,
    ) -> None:
        self._records = records
        self._places = places
        self._selections = selections
        self._completeness = completeness
        self._all_calls = all_calls
        self.pending: list[_Held] = []
        """Launches and their rows until CUPTI's records of the calls are there."""
        self._prior: list[Columns] = []
        """API calls that are rows."""
        self._linked: dict[int, Call] = {}
        """Our calls that CUPTI's records were found for, by number, in order."""
        self._next_linked = 0
        self._recent: list[int] = []
        self._begun: dict[int, None] = {}
        """Calls, by number, the first piece of whose work is a row already; in order."""
        self._next = 1
        self._since_ns = 0
        """What ended before is left out."""
        self.row_count = 0
        """Records that are rows."""
        self.waited = True
        """Whether the recording's end waited for all work."""
        self.unfinished = 0
        """Pieces of work without an end."""

    def keep(self) -> Callable[[], None]:
        """Return what undoes all that reading changes next."""
        linked, begun = len(self._linked), len(self._begun)

        def shorten() -> None:
            while len(self._linked) > linked:
                self._linked.popitem()
            while len(self._begun) > begun:
                self._begun.popitem()

        names = ("pending", "_prior", "_recent", "_next", "_next_linked", "row_count", "unfinished")
        return together(keep(self, *names), shorten)

    def forget(self) -> None:
        """Let go of calls that no work is expected of, between readings; goes on if interrupted."""
        if sum(len(part["row"]) for part in self._prior) > 3 * LATE:
            prior = tables.join_columns(self._prior)
            count = len(prior["row"])
            awaited = np.flatnonzero(prior["awaited"][: count - LATE])[-LATE:]
            places = np.concatenate([awaited, np.arange(count - LATE, count)])
            self._prior = [tables.select(prior, places)]
        if len(self._linked) > 4 * LATE:
            used = {*self._recent}.union(*(part["call"].tolist() for part in self._prior))
            self._linked = {number: call for number, call in self._linked.items() if number in used}
        if len(self._begun) > len(self._linked):
            self._begun = dict.fromkeys(filter(self._linked.__contains__, self._begun))

    def drain(self, rows: Rows) -> None:
        """Add what is complete; at the end everything, also what has no partner."""
        ranges = self._records.ranges.rows(over=rows.over)
        self._name_parents(rows.spans)
        ended = rows.spans
        rows.freeze()
        if ranges is not None:
            rows.batches.append(Batch(ranges))
        self._since_ns = rows.since_ns
        pending, self.pending = self.pending, []
        work, apis = self._records.take_out(over=rows.over)
        if self._records.which == "none":  # nothing can be linked
            rows.spans += [row for _, row in pending]
            rows.freeze()
            if work is not None and len(work["start"]):
                rows.batches.append(self._work_batch(work))
        else:
            apis = self._records.without_late(tables.no_apis() if apis is None else apis, rows)
            self.row_count += len(apis["start"])
            apart = is_apart(apis)
            self._add_waits(rows, tables.select(apis, apart), ended, pending)
            self._drain_linked(rows, pending, work, tables.select(apis, ~apart))
        if self._records.tells_waits and (rows.batches or rows.over):
            self._add_edges(rows)

    def _add_waits(
        self, rows: Rows, calls: Columns, ended: list[Row], pending: list[_Held]
    ) -> None:
        """Add rows of API calls that order work, and of waits: of those outside calls of ours."""
        inside, ids = in_ours(calls, ended, [call for call, _ in pending], rows.ending)
        calls["own"] = inside != NONE
        calls["row"] = np.where(calls["own"], arrow.picked(ids, inside), self._fresh(len(inside)))
        if not calls["own"].all():
            rows.batches.append(self._api_batch(tables.select(calls, ~calls["own"])))
        if self._records.tells_waits:
            self._records.waits.add_calls(calls)

    def _add_edges(self, rows: Rows) -> None:
        """Add the edges of waits to the last batch."""
        latest_ns = max((int(part["start"].max(initial=0)) for part in self._prior), default=0)
        late = [part["correlation"] for part in self._records.apis]
        for part in self._prior:
            waits = part["awaited"] & (part["start"] + GRACE_NS > latest_ns)
            late.append(part["correlation"][waits])
        until = min((part.min(initial=NO_NUMBER) for part in late), default=NO_NUMBER)
        edges = self._records.waits.edges(int(until), self._places.green, over=rows.over)
        last = rows.batches.pop() if rows.batches else freeze([], [])
        every = schema.concat([last.edges, arrow.edges(edges)], schema.EDGE_TYPES)
        rows.batches.append(replace(last, edges=every))

    def _drain_linked(
        self, rows: Rows, pending: list[_Held], work: Columns | None, apis: Columns
    ) -> None:
        linked = self._link(apis, pending)
        apis["row"] = self._rows_of_apis(apis["call"])
        apis["selected"] = self._selections.selected(apis["thread"], apis["start"].astype(np.int64))
        apis["awaited"] = self._records.launches(apis)
        ready = [row for number, (_, row) in enumerate(pending) if rows.over or number in linked]
        rest = [entry for number, entry in enumerate(pending) if number not in linked]
        if not rows.over:
            ready += self._too_old(rest, rows.wait_since_ns)
        self._name_parents(ready)
        if ready:
            rows.batches.append(freeze(ready, []))
        outside = apis["call"] == NONE
        if outside.any():
            rows.batches.append(self._api_batch(tables.select(apis, outside)))
        if work is not None and len(work["start"]):
            rows.batches += self._with_launches(work, apis, rows)
        if len(apis["row"]):
            self._prior.append({name: apis[name] for name in _KNOWN})
        if rows.over:
            self._count_unmatched([call for call, _ in rest] + self._without_work())
        else:
            self.pending = rest  # their records come later

    def _too_old(self, rest: list[_Held], since_ns: int) -> list[Row]:
        """Take out of ``rest`` what is to be left out, but for the newest; returns the rows."""
        old = [entry for entry in rest if (entry[0].end_ns or since_ns) < since_ns][:-LATE]
        self._count_unmatched([call for call, _ in old])
        gone = {id(call) for call, _ in old}
        rest[:] = [entry for entry in rest if id(entry[0]) not in gone]
        return [row for _, row in old]

    def _name_parents(self, rows: list[Row]) -> None:
        """Give host rows without a parent the NVTX range around them."""
        ranges = self._records.ranges
        alone = [row for row in rows if row["parent"] is None and row["kind"] != "range"]
        if not alone or not ranges.arrive:
            return
        moments = np.array([(row["thread"], row["start_ns"]) for row in alone], np.int64)
        for row, parent in zip(alone, ranges.around(*moments.T).tolist(), strict=True):
            row["parent"] = None if parent == NONE else parent

    def _without_work(self) -> list[Call]:
        """Return our calls whose launches were noted, but whose work left no record."""
        records = self._records  # CUPTI's own records of a launch and of its work come together
        if not records.noted or records.captures or not self.waited:
            return []
        waiting = {number for part in self._prior for number in part["call"][part["awaited"]]}
        calls = (self._linked.get(number) for number in sorted(waiting - self._begun.keys()))
        return [call for call in calls if call and call.graph is None and not call.superseded]

    def _count_unmatched(self, calls: list[Call]) -> None:
        if not self._all_calls:
            return  # launches through the driver's calls have no record
        lost = [call for call in calls if call.kind == "launch" and not call.is_around]
        self._completeness.add("unmatched", len(lost))
        if lost:
            self._completeness.lost(
                f"{len(lost)} of our launches have no record (the first: {lost[0].name!r})"
            )

    def _link(self, apis: Columns, pending: list[_Held]) -> set[int]:
        """Find the call of ours that each API call was made in: a number of ``_linked``.

        Calls of earlier batches count, too: the records of one call may come in two. Gives the
        rows of ``pending`` the times that CUPTI saw, and returns the numbers of those found.
        """
        recent = self._recent
        candidates = [self._linked[number] for number in recent] + [call for call, _ in pending]
        apis["call"] = np.full(len(apis["start"]), NONE, np.int64)
        if not candidates:
            return set()
        middle = tables.middle(apis)
        lasting = [
            (call.thread, call.start_ns, call.end_ns or call.start_ns) for call in candidates
        ]
        innermost = joins.innermost(apis["thread"], middle, *np.array(lasting, np.int64).T)
        number_of = np.array([*recent, *[NONE] * len(pending)], np.int64)
        inside = np.flatnonzero(innermost >= len(recent))
        inside = inside[np.argsort(apis["start"][inside], kind="stable")]
        new, first = np.unique(innermost[inside], return_index=True)
        times = (apis[name][inside[first]].tolist() for name in ("start", "end", "correlation"))
        for at, start, end, correlation in zip(new.tolist(), *times, strict=True):
            call, row = pending[at - len(recent)]
            row.update(start_ns=start, end_ns=end, correlation=correlation, source="cupti")
            number_of[at] = self._next_linked
            self._linked[self._next_linked] = call
            self._next_linked += 1
        apis["call"] = np.where(innermost >= 0, number_of[np.maximum(innermost, 0)], NONE)
        self._recent = number_of[number_of >= 0].tolist()[-_RECENT:]
        return {at - len(recent) for at in new.tolist()}

    def _rows_of_apis(self, call_of: Ints) -> Ints:
        """Return the row of each API call: our call's, where it was made in one."""
        rows = self._fresh(len(call_of))
        linked = call_of >= 0
        used, where = np.unique(call_of[linked], return_inverse=True)
        numbers = [self._linked[number].correlation for number in used.tolist()]
        rows[linked] = call_row(np.array(numbers, np.int64))[where]
        return rows

    def _fresh(self, count: int) -> Ints:
        first, self._next = self._next, self._next + count
        return outside_row(np.arange(first, first + count, dtype=np.int64))

    def _api_batch(self, apis: Columns) -> Batch:
        codes, names = self._records.names_of(apis)
        columns = tables.api_columns(apis, codes, [name for _, name in names])
        parents = self._records.ranges.around(apis["thread"], apis["start"].astype(np.int64))
        columns["parent"] = arrow.nullable(parents, parents == NONE)
        columns["site"] = tables.site_column(apis["site"], self._records.site_text)
        return Batch(arrow.table(columns, len(apis["start"])))

    def _with_launches(self, work: Columns, apis: Columns, rows: Rows) -> list[Batch]:
        """Return batches of work with the calls that launched it; what has none waits."""
        batches = []
        for calls in self._launching(apis):
            at = joins.match(work["correlation"], calls["correlation"])
            matched = at >= 0
            if matched.any():
                of_launches = work if matched.all() else tables.select(work, matched)
                batches.append(self._work_batch(of_launches, calls, at[matched]))
                calls["awaited"][at[matched]] = False
                work = tables.select(work, ~matched)
            if not len(work["start"]):
                return batches
        waits = (work["end"].astype(np.int64) >= rows.wait_since_ns) & (not rows.over)
        if not waits.all():
            batches.append(self._work_batch(tables.select(work, ~waits)))
        if waits.any():
            self._records.work.append(tables.select(work, waits))
        return batches

    def _launching(self, apis: Columns) -> Iterator[Columns]:
        """Give the new API calls, and those of before only to who needs them."""
        yield apis
        if self._prior:
            prior = tables.join_columns(self._prior)
            prior = {**prior, "awaited": prior["awaited"].copy()}  # so that reading can be undone
            self._prior = [prior]
            yield prior

    def _work_batch(
        self, work: Columns, apis: Columns | None = None, places: Ints | None = None
    ) -> Batch:
        """Return rows of work.

        Parameters
        ----------
        apis, places
            API calls, and which of them launched each; ``None`` where that is not known.
        """
        count = len(work["start"])
        self.row_count += count
        self.unfinished += int((work["end"] == 0).sum())
        launch_start = start = work["start"].astype(np.int64)
        columns = tables.work_columns(work, self._records.kernel_name)
        rows = self._fresh(count)
        edges: list[tuple[Ints, Ints, str]] = []
        if apis is not None and places is not None:
            launch_start = apis["start"][places].astype(np.int64)
            for name, field in (("process", "process"), ("thread", "thread"), ("queued_ns", "end")):
                columns[name] = apis[field][places].astype(np.int64)
            columns["site"] = tables.site_column(apis["site"][places], self._records.site_text)
            calls, selected = apis["call"][places], apis["selected"][places]
            columns.update(self._from_calls(work, rows, calls, selected))
            edges.append((apis["row"][places], rows, "launch"))
            blocked = tables.blocking(work, tables.select(apis, places))
            edges.append((rows[blocked], apis["row"][places[blocked]], "host wait"))
        if self._records.tells_waits:
            self._records.waits.add_work(work, rows)
        columns["id"] = rows
        # What CUPTI could not time began at its launch or later.
        columns["start_ns"] = np.where(start == 0, launch_start, start)
        columns.update(self._places.columns(work, launch_start))
        return Batch(arrow.table(columns, count), arrow.edges(edges))

    def _from_calls(
        self, work: Columns, rows: Ints, call_of: Ints, selected: Ints
    ) -> dict[str, Column]:
        """Return what our calls know of their work, and who it was given to.

        One piece of a call's work has the row that follows from the call's number, and its
        amounts: the kernel that was launched first; where there is none, what was queued
        first. (cuBLAS clears a few bytes before some GEMMs.) ``rows`` is changed.
        """
        linked = call_of >= 0
        used, where = np.unique(call_of[linked], return_inverse=True)
        calls = [self._linked[number] for number in used.tolist()]
        which = np.full(len(call_of), NONE, np.int64)
        which[linked] = where
        firsts = tables.first_pieces(work, which)
        new = np.array([number not in self._begun for number in used.tolist()], bool)
        self._begun.update(dict.fromkeys(used.tolist()))
        correlations = np.array([call.correlation for call in calls], np.int64)
        firsts = firsts[new] if len(new) else firsts
        rows[firsts] = work_row(correlations[which[firsts]])
        recent = work["end"] >= self._since_ns  # of the others nobody asks
        if unsure := int(((selected == UNSURE) & (which == NONE) & recent).sum()):
            self._completeness.add("in_shared_tasks", unsure)
        columns: dict[str, Column] = {"intended_partition": self._intended(which, calls, selected)}
        if not calls:
            return columns
        workloads = arrow.texts([call.workload for call in calls])
        columns["category"] = workloads.take(pa.array(which, mask=~linked))
        columns["external_correlation"] = arrow.nullable(correlations[which], ~linked)
        is_first = np.zeros(len(call_of), bool)
        is_first[firsts] = True
        flop_count = tables.stated([call.flop_count for call in calls], which, is_first)
        nbytes = tables.stated([call.nbytes for call in calls], which, is_first)
        is_moved = (work["work"] == tables.COPY) | (work["work"] == tables.SET)
        nbytes = np.where(is_moved, work["bytes"].astype(np.int64), nbytes)
        for name, amounts in (("flop_count", flop_count), ("nbytes", nbytes)):
            if (amounts >= 0).any():
                columns[name] = arrow.nullable(amounts, amounts < 0)
        return columns

    def _intended(self, which: Ints, calls: list[Call], selected: Ints) -> pa.Array:
        """Return the partition that each launch was given to: our call's, else the guard's."""
        of_streams = [self._places.partition_of(stream) for stream in self._selections.streams]
        texts = [*of_streams, *(partition_name(call.intended) for call in calls)]
        codes = np.where(which >= 0, len(of_streams) + which, np.maximum(selected, NONE))
        return arrow.texts(texts).take(pa.array(codes, mask=codes == NONE))
