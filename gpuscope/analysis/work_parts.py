"""Parts of the time of work that ran in a stream: from its launch call to its end."""

from __future__ import annotations

import numpy as np

from gpuscope._types import Bools, Ints
from gpuscope.analysis.launch_times import LaunchTimes
from gpuscope.analysis.part import ORDER, Part, PartKind, cut
from gpuscope.analysis.span_rows import OPEN, SpanRows
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
        self.times = LaunchTimes(self.rows)

    def parts(self, row: int) -> list[Part]:
        """Return the parts of the time of a piece of work, in order."""
        rows = self.rows
        start, end = int(rows.starts[row]), int(rows.ends[row])
        found = self._until_start(row)
        if end == OPEN:
            return found
        at = start
        for last in sorted(rows.linked(row, "collective"), key=lambda last: int(rows.starts[last])):
            begun = min(int(rows.starts[last]), end)
            if begun > at:
                found.append(Part("collective", at, begun, int(rows.ids[last])))
                at = begun
        if end > at:
            found.append(Part("running", at, end, int(rows.ids[row])))
        return found

    def is_told(self, row: int) -> bool:
        """Whether the trace tells when work was launched or what came before it."""
        return bool(self.rows.queued[row] >= 0 or self._waits(row))

    def _until_start(self, row: int) -> list[Part]:
        rows = self.rows
        start, queued = int(rows.starts[row]), int(rows.queued[row])
        waits = self._waits(row)
        found: list[Part] = []
        cause = None
        if queued >= 0:
            call = rows.call(row)
            since = min(start, queued if call is None else int(rows.starts[call]))
            at = max(min(queued, start), since)
            cause = None if call is None else int(rows.ids[call])
            if at > since:
                found.append(Part("launch call", since, at, cause))
        elif waits:
            last = max(waits, key=lambda work: int(rows.ends[work]))
            at, cause = min(int(rows.ends[last]), start), int(rows.ids[last])
        else:
            return []
        constants = self.times.constants(row)
        if constants is not None and queued >= 0:
            latency, gap = constants
            free = max((int(rows.ends[work]) for work in waits), default=start - gap)
            if queued + latency > free + gap:
                waits = {}  # all of that was over before the launch had reached the GPU
        for work, kind in sorted(waits.items(), key=lambda wait: int(rows.ends[wait[0]])):
            end = min(int(rows.ends[work]), start)
            if end > at:
                cause = int(rows.ids[work])
                found.append(Part(kind, at, end, cause))
                at = end
        return found + self._from_ready(row, at, cause, constants)

    def _waits(self, row: int) -> dict[int, PartKind]:
        """Return the work that had to end before, and by which rule."""
        rows = self.rows
        legacy: PartKind = "legacy default stream"
        found: dict[int, PartKind] = {}
        rules: tuple[tuple[PartKind, list[int]], ...] = (
            ("event wait", rows.followed(row, "event wait")),
            ("graph order", rows.inside(row) + rows.followed(row, "graph")),
            ("stream order", rows.in_order(row)),
            (legacy, rows.followed(row, legacy) + rows.legacy(row)),
        )
        for kind, works in rules:
            for work in works:
                found.setdefault(work, kind)
        return found

    def _from_ready(
        self, row: int, since: int, cause: int | None, constants: tuple[int, int] | None
    ) -> list[Part]:
        """Say what held work back once all that it had to follow had ended."""
        rows = self.rows
        start, queued = int(rows.starts[row]), int(rows.queued[row])
        if since >= start:
            return []
        if constants is None:
            ready = self.times.ready_ns(row, since)
        else:
            latency, gap = constants
            ready = max(queued + latency, since + gap if since > queued else 0)
        ready = min(max(since, ready), start)
        way = [Part("on the way", since, ready, cause)] if ready > since else []
        if constants is not None and rows.kind(row) == "kernel":
            return way + self._released(row, ready, start)
        return way + self._held(row, ready, start)

    def _released(self, row: int, since: int, start: int) -> list[Part]:
        """Say who released the SMs that a kernel got at its start, as edges tell."""
        if since >= start:
            return []
        held, ahead = self.rows.linked(row, "SMs"), self.rows.linked(row, "priority")
        if not held and not ahead:
            return [Part("unexplained", since, start)]
        holder = min([*held, *ahead], key=lambda holder: int(self.rows.starts[holder]))
        kind: PartKind = "SMs held" if holder in held else "priority"
        others = len(held) + len(ahead) - 1
        return [Part(kind, since, start, int(self.rows.ids[holder]), others)]

    def _held(self, row: int, since: int, start: int) -> list[Part]:
        """Cover [since, start) with others that had what this needs, from its end backwards."""
        if since >= start:
            return []
        rows = self.rows
        holders = self._holders(row)
        starts, ends = rows.starts[holders], np.minimum(rows.ends[holders], start)
        kind: PartKind = "copy engine" if rows.kind(row) == "memcpy" else "SMs held"
        found: list[Part] = []
        at = start
        while at > since:
            there = (starts < at) & (ends >= at)
            if not there.any():
                before = max(int(ends[ends < at].max(initial=since)), since)
                found.append(Part("unexplained", before, at))
                at = before
                continue
            released = there & (ends == at) & (rows.ends[holders] == at)
            best = np.flatnonzero(released if released.any() else there)
            # Else one of those whose blocks were ending: rather who was nearer its end.
            place = int(best[np.lexsort((starts[best], rows.ends[holders[best]]))[0]])
            begin = max(int(starts[place]), since)
            others = int(np.count_nonzero((starts < at) & (ends > begin))) - 1
            found.append(Part(kind, begin, at, int(rows.ids[holders[place]]), others))
            at = begin
        return found[::-1]

    def _holders(self, row: int) -> Ints:
        """Return the rows that may have had what a row needs: its SMs or its copy engine."""
        rows = self.rows
        kind = rows.kind(row)
        mine = rows.is_work & (rows.devices == rows.devices[row])
        mine &= (rows.ids != rows.ids[row]) & (rows.starts < rows.starts[row])
        if kind == "kernel":
            return np.flatnonzero(mine & rows.having("kind", ("kernel",)) & self._sharing(row))
        if kind == "memcpy":
            mine &= rows.having("kind", ("memcpy",)) & (rows.ends <= rows.starts[row])
            direction = rows.text("copy_kind", row)
            if direction is not None:
                mine &= rows.having("copy_kind", (direction, None))
            return np.flatnonzero(mine)
        return np.zeros(0, np.int64)

    def _sharing(self, row: int) -> Bools:
        """Row → whether it ran on SMs that this row's partition has too."""
        partition = self.rows.text("partition", row)
        if partition is None:
            return np.ones(len(self.rows.ids), bool)
        metadata = self.rows.metadata
        own = set(metadata.partition(partition).sm_ids)
        sharing: list[str | None] = [partition, None]
        for name, facts in metadata.partitions.items():
            if own & set(facts.sm_ids):
                sharing.append(name)
        return self.rows.having("partition", sharing)

    def path(self, row: int, own: set[int]) -> list[Part]:
        """Return the parts of work, where it waited for work of ``own``, by id, those of that."""
        found: list[Part] = []
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
                found.append(part)
        return found[::-1]
