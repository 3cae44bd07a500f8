"""Parts of the time of work that ran in a stream: from its launch call to its end."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from gpuscope._types import Bools, Ints
from gpuscope.analysis.launch_times import LaunchTimes
from gpuscope.analysis.part import ORDER, Part, PartKind, cut
from gpuscope.analysis.span_rows import OPEN, SpanRows
from gpuscope.analysis.work_orders import WorkOrders
from gpuscope.trace.model import Trace


class WorkParts:
    """What a trace tells of the time of its work.

    The interval begins where the innermost call that launched the work was entered; without its
    row, when it returned; and where nothing tells of a launch, when the last work that it had to
    follow had ended. It begins no later than the work itself. It ends with the work, or where its
    end was not seen, at its start.
    """

    def __init__(self, trace: Trace) -> None:
        self.rows = SpanRows(trace)
        self._rivals: dict[tuple[str | int | None, ...], tuple[Ints, Ints, Ints]] = {}

    @cached_property
    def orders(self) -> WorkOrders:
        """What had to end before each: who asks for rows alone does not wait for it."""
        return WorkOrders(self.rows)

    @cached_property
    def times(self) -> LaunchTimes:
        """When each was ready to run."""
        return LaunchTimes(self.rows, self.orders)

    def parts(self, row: int) -> list[Part]:
        """Return the parts of the time of a piece of work, in order."""
        rows = self.rows
        start, end = int(rows.starts[row]), int(rows.ends[row])
        parts = self._until_start(row)
        if end == OPEN:
            return parts
        at = start
        for last in sorted(rows.linked(row, "collective"), key=lambda last: int(rows.starts[last])):
            begun = min(int(rows.starts[last]), end)
            if begun > at:
                parts.append(Part("collective", at, begun, int(rows.ids[last])))
                at = begun
        if end > at:
            parts.append(Part("running", at, end, int(rows.ids[row])))
        return parts

    def is_told(self, row: int) -> bool:
        """Whether the trace tells when work was launched or what came before it."""
        return bool(self.rows.queued[row] >= 0 or self.orders.before(row))

    def _until_start(self, row: int) -> list[Part]:
        rows = self.rows
        start, queued = int(rows.starts[row]), int(rows.queued[row])
        waits = self.orders.before(row)
        parts: list[Part] = []
        cause = None
        if queued >= 0:
            call = int(rows.calls[row])
            since = min(start, queued if call < 0 else int(rows.starts[call]))
            at = max(min(queued, start), since)
            cause = None if call < 0 else int(rows.ids[call])
            if at > since:
                parts.append(Part("launch call", since, at, cause))
        elif waits:
            last = max(waits, key=lambda work: int(rows.ends[work]))
            at, cause = min(int(rows.ends[last]), start), int(rows.ids[last])
        else:
            return []
        if self.times.is_known[row] and not self.times.waits[row]:
            waits = {}  # all of that was over before the launch had reached the GPU
        for work, kind in sorted(waits.items(), key=lambda wait: int(rows.ends[wait[0]])):
            end = min(int(rows.ends[work]), start)
            if end > at:
                cause = int(rows.ids[work])
                parts.append(Part(kind, at, end, cause))
                at = end
        return parts + self._from_ready(row, at, cause)

    def _from_ready(self, row: int, since: int, cause: int | None) -> list[Part]:
        """Say what held work back once all that it had to follow had ended."""
        rows = self.rows
        start = int(rows.starts[row])
        if since >= start:
            return []
        ready = max(since, int(self.times.ready_ns[row]))
        way = [Part("on the way", since, ready, cause)] if ready > since else []
        if self.times.is_known[row] and rows.kind(row) == "kernel":
            return way + self._released(row, ready, start)
        return way + self._held(row, ready, start)

    def _released(self, row: int, since: int, start: int) -> list[Part]:
        """Say who released the SMs that a kernel got at its start, as edges tell."""
        if since >= start:
            return []
        holders, ahead = self.rows.linked(row, "SMs"), self.rows.linked(row, "priority")
        if not holders and not ahead:
            return [Part("unexplained", since, start)]
        holder = min([*holders, *ahead], key=lambda holder: int(self.rows.starts[holder]))
        kind: PartKind = "SMs held" if holder in holders else "priority"
        other_count = len(holders) + len(ahead) - 1
        return [Part(kind, since, start, int(self.rows.ids[holder]), other_count)]

    def _held(self, row: int, since: int, start: int) -> list[Part]:
        """Cover [since, start) with others that had what this needs, from its end backwards."""
        if since >= start:
            return []
        rows = self.rows
        holders = self._holders(row, since)
        starts, ends = rows.starts[holders], np.minimum(rows.ends[holders], start)
        kind: PartKind = "copy engine" if rows.kind(row) == "memcpy" else "SMs held"
        parts: list[Part] = []
        at = start
        while at > since:
            is_holding = (starts < at) & (ends >= at)
            if not is_holding.any():
                before = max(int(ends[ends < at].max(initial=since)), since)
                parts.append(Part("unexplained", before, at))
                at = before
                continue
            released = is_holding & (ends == at) & (rows.ends[holders] == at)
            best = np.flatnonzero(released if released.any() else is_holding)
            # Else one of those whose blocks were ending: rather who was nearer its end.
            holder = int(best[np.lexsort((starts[best], rows.ends[holders[best]]))[0]])
            begin = max(int(starts[holder]), since)
            other_count = int(np.count_nonzero((starts < at) & (ends > begin))) - 1
            parts.append(Part(kind, begin, at, int(rows.ids[holders[holder]]), other_count))
            at = begin
        return parts[::-1]

    def _holders(self, row: int, since: int) -> Ints:
        """Return the rows that may have had, after ``since``, the SMs or the engine of a row."""
        rows, start = self.rows, self.rows.starts[row]
        if rows.kind(row) not in ("kernel", "memcpy"):
            return np.zeros(0, np.int64)
        needed = tuple(rows.text(name, row) for name in ("kind", "partition", "copy_kind"))
        key = (*needed, int(rows.devices[row]))
        if key not in self._rivals:
            places = np.flatnonzero(self.may_rival(row))
            places = places[np.argsort(rows.starts[places], kind="stable")]
            latest_end = np.maximum.accumulate(rows.ends[places])
            self._rivals[key] = places, rows.starts[places], latest_end
        places, starts, latest_end = self._rivals[key]
        begun = places[latest_end.searchsorted(since) : starts.searchsorted(start)]
        if needed[0] == "memcpy":
            begun = begun[rows.ends[begun] <= start]
        rivals: Ints = begun[begun != row]
        return rivals[rows.may_fill(rivals, np.array([row]))]

    def may_rival(self, row: int) -> Bools:
        """Row → whether it needs a copy engine, or SMs, that a row needs too."""
        rows, kind = self.rows, self.rows.kind(row)
        alike: Bools = rows.having("kind", (kind,)) & (rows.devices == rows.devices[row])
        if kind == "memcpy":
            direction = rows.text("copy_kind", row)
            if direction is not None:
                alike &= rows.having("copy_kind", (direction, None))
            return alike
        partition = rows.text("partition", row)
        if partition is None:
            return alike
        sm_ids = set(rows.metadata.partition(partition).sm_ids)
        partitions = rows.metadata.partitions.items()
        sharing = [name for name, facts in partitions if sm_ids & set(facts.sm_ids)]
        alike &= rows.having("partition", (*sharing, partition, None))
        return alike

    def path(self, row: int, own: set[int]) -> list[Part]:
        """Return the parts of work, where it waited for work of ``own``, by id, those of that."""
        parts: list[Part] = []
        pending, left = self.parts(row), own - {int(self.rows.ids[row])}
        while pending:
            part = pending.pop()
            inner: list[Part] = []
            if part.kind in ORDER and part.span in left:
                left.discard(part.span)
                before = self.parts(self.rows.position(part.span))
                inner = list(cut(before, part.start_ns, part.end_ns))
            if inner and inner[0].start_ns == part.start_ns and inner[-1].end_ns == part.end_ns:
                pending += inner
            else:
                parts.append(part)
        return parts[::-1]
