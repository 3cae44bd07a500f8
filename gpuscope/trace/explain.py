"""Why a span started when it did, told from a trace's edges and times only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuscope._text import clean, shown
from gpuscope.errors import MissingEvidence

if TYPE_CHECKING:
    from gpuscope.trace.model import Trace

Array = np.ndarray[Any, Any]

_WORK = ("kernel", "memcpy", "memset", "host function", "graph")
_HOST = ("api", "sync", "event", "handle", "range", "mark")
_OPEN = np.iinfo(np.int64).max
_USUAL = 0.9
"""Quantile of the launch latencies seen on an idle device that still counts as usual."""


@dataclass(frozen=True)
class Reason:
    """What held a span back for a while.

    Attributes
    ----------
    kind
        ``"launch"``: the host had not launched it yet. ``"event wait"``, ``"graph order"``,
        ``"stream order"``, ``"legacy default stream"``: other work had to end first.
        ``"launch latency"``: a launch takes that long to reach SMs that are free. ``"SMs held"``,
        ``"copy engine"``: others had what it needed; ``"priority"``: SMs, which only its higher
        priority had let the other take first. ``"running"``: the work of a call ran.
        ``"host"``: what the host did. ``"unexplained"``: nothing in the trace tells.
    since_ns, until_ns
        On the trace's clock. Reasons follow one another; the first may begin before the rest.
    span
        Id of the row that was waited for, where there is one; of several that ran on the SMs, one
        of those that released them.
    text
        What was waited for, in words.
    """

    kind: str
    since_ns: int
    until_ns: int
    span: int | None
    text: str


@dataclass(frozen=True)
class Explanation:
    """Why a span started when it did; of a host wait and a handle's call, why it ended then.

    Attributes
    ----------
    span, kind, name
        The row that is explained; the name says its stream, too.
    ended
        Whether its end is explained.
    at_ns
        Its start or end on the trace's clock, as the trace has it.
    zero_ns
        Where the times in the text count from: the trace's beginning.
    reasons
        In order of time, up to ``at_ns``.
    doubts
        What is uncertain, and what evidence the trace lacks.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> kernel = gs.learn.spin_kernel(gpu)
    >>> with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
    ...     stream.launch(kernel, 50_000, grid=1, block=32)
    ...     stream.launch(kernel, 50_000, grid=1, block=32)
    >>> second = gs.learn.find(recording.trace, "spin", 1)
    >>> [reason.kind for reason in recording.trace.explain(second).reasons]
    ['launch', 'stream order', 'launch latency']
    """

    span: int
    kind: str
    name: str
    ended: bool
    at_ns: int
    zero_ns: int
    reasons: tuple[Reason, ...]
    doubts: tuple[str, ...]
    provenance: str

    @property
    def unexplained_ns(self) -> int:
        """How long nothing in the trace tells what it waited for."""
        return sum(one.until_ns - one.since_ns for one in self.reasons if one.kind == "unexplained")

    def __str__(self) -> str:
        first, *rest = self.reasons
        told = ""
        if first.kind == "launch":
            told = f"launched at {self._time(first.until_ns)}, "
        else:
            rest = [first, *rest]
        waits = ", then ".join(f"for {one.text} until {self._time(one.until_ns)}" for one in rest)
        what = "returned" if self.kind == "sync" else "seen done" if self.ended else "started"
        told += f"waited {waits}, " if waits else ""
        lines = [f"{self.name}: {told}{what} at {self._time(self.at_ns)}.", *self.doubts]
        return "\n".join(map(clean, lines))

    def _time(self, ns: int) -> str:
        micros = (ns - self.zero_ns) / 1e3
        return f"{micros:,.1f} µs" if micros < 1e5 else f"{micros / 1e3:,.3f} ms"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{shown(one.kind)}</td><td>{shown(one.text)}</td>"
            f"<td>{self._time(one.until_ns)}</td>"
            f"<td>{(one.until_ns - one.since_ns) / 1e3:,.1f} µs</td>"
            f"<td>{'–' if one.span is None else one.span}</td></tr>"
            for one in self.reasons
        )
        notes = "".join(f"<p>{shown(text)}</p>" for text in (*self.doubts, self.provenance))
        return (
            f"<p>{shown(str(self).splitlines()[0])}</p><table><thead><tr><th>why</th>"
            "<th>waited for</th><th>until</th><th>for</th><th>span</th></tr></thead>"
            f"<tbody>{rows}</tbody></table>{notes}"
        )


def explain(trace: Trace, span: int) -> Explanation:
    """Say why a span started when it did.

    Raises
    ------
    MissingEvidence
        There is no such row, it is no call and no work, or the trace says neither when it
        was launched nor what came before it.
    """
    rows = _Rows(trace)
    row = rows.position(span)
    kind = rows.text("kind", row)
    if kind == "block" and rows.value("parent", row) is not None:
        row = rows.position(rows.value("parent", row))
        kind = rows.text("kind", row)
    if kind in _WORK:
        return _work(rows, row)
    if kind == "sync":
        return _sync(rows, row)
    if kind == "handle":
        return _handle(rows, row)
    if kind in _HOST:
        return _host(rows, row)
    raise MissingEvidence(f"row {span} is a {kind}: it waits for nothing, so nothing explains it")


class _Rows:
    """The columns of a trace that explanations look at, as arrays."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.ids = trace.array("id")
        self.starts = trace.array("start_ns")
        self.ends = trace.array("end_ns", fill=_OPEN)
        self.queued = trace.array("queued_ns", fill=-1)
        self.streams = trace.array("stream", fill=-1)
        self.devices = trace.array("device", fill=-1)
        self.graphs = trace.array("graph", fill=-1)
        self.correlations = trace.array("correlation", fill=-1)
        self._edges: dict[int, list[tuple[int, int, str]]] = {}
        self.is_work = self.having("kind", _WORK)
        facts = trace.metadata.streams
        self.legacy_streams = [int(key) for key, one in facts.items() if one.legacy_default]
        self.blocking_streams = [int(key) for key, one in facts.items() if one.blocking]
        # However often it was wrapped, it is one stream.
        if len(self.legacy_streams) > 1:
            several = np.isin(self.streams, self.legacy_streams)
            self.streams = np.where(several, self.legacy_streams[0], self.streams)
        windows = trace.metadata.windows_ns
        self.zero_ns = int(windows[0][0] if windows else self.starts.min(initial=0))

    def position(self, span: int) -> int:
        found = np.flatnonzero(self.ids == span)
        if not len(found):
            raise MissingEvidence(f"the trace has no row {span}: rows are named by their id")
        return int(found[0])

    def having(self, name: str, values: Sequence[str | None]) -> Array:
        """Row → whether a text column has one of these values."""
        column = self.trace.spans.column(name)
        if pa.types.is_null(column.type):
            return np.full(len(column), None in values)
        return np.asarray(
            pc.is_in(column.cast(pa.string()), value_set=pa.array(values, pa.string()))
        )

    def value(self, name: str, row: int) -> Any:
        return self.trace.spans.column(name)[row].as_py()

    def text(self, name: str, row: int) -> str:
        return str(self.value(name, row))

    def stream(self, row: int) -> str:
        """Return which stream a row is of, for people."""
        name = self.place(row)
        return name if "stream" in name else f"stream {name}"

    def place(self, row: int) -> str:
        """Return the name of a row's stream."""
        number = int(self.streams[row])
        return self.trace.stream_name(number if number >= 0 else None)

    def label(self, row: int) -> str:
        """Return a row's name for people: its workload's where it has one."""
        name = self.value("category", row) or self.text("name", row)
        return f"host function {name}" if self.value("kind", row) == "host function" else str(name)

    def linked(self, row: int, kind: str) -> list[int]:
        """Return the rows that edges of a kind say come before a row."""
        return [one for one, to, what in self._edges_to(row) if to == row and what == kind]

    def followed(self, row: int, kind: str) -> list[int]:
        """Return the work that edges of a kind say must end before a row starts.

        What is linked to any node of a graph's launch holds for all of it: the launch waited, and
        was waited for until its last node had ended.
        """
        mine = self._launch_of(row)
        found = [one for one, _, what in self._edges_to(row) if what == kind and not mine[one]]
        return [self._last_of(one) for one in found]

    def _edges_to(self, row: int) -> list[tuple[int, int, str]]:
        """Return the edges to a row and the rest of its launch: row before, row, kind."""
        if row not in self._edges:
            edges, mine = self.trace.edges, np.flatnonzero(self._launch_of(row))
            places = np.flatnonzero(np.isin(np.asarray(edges.column("to")), self.ids[mine]))
            few = edges.take(places).to_pydict()
            there = np.flatnonzero(np.isin(self.ids, np.asarray(few["from"], np.int64)))
            by_id = {int(self.ids[one]): int(one) for one in (*mine, *there)}
            self._edges[row] = [
                (by_id[before], by_id[after], kind)
                for before, after, kind in zip(few["from"], few["to"], few["kind"], strict=True)
                if before in by_id
            ]
        return self._edges[row]

    def _launch_of(self, row: int) -> Array:
        """Row → whether it is of the same launch of a graph; of other work, whether it is it."""
        if self.graphs[row] < 0 or self.correlations[row] < 0:
            found = np.zeros(len(self.ids), bool)
            found[row] = True
            return found
        same: Array = self.is_work & (self.graphs == self.graphs[row])
        same &= self.correlations == self.correlations[row]
        return same

    def _last_of(self, row: int) -> int:
        """Return the last of what a call queued to end: of a graph's nodes, of several kernels."""
        mine = self._launch_of(row)
        call = self.value("external_correlation", row)
        if call is not None and self.is_work[row]:
            same = self.trace.array("external_correlation", fill=-1) == call
            mine |= same & self.is_work & (self.streams == self.streams[row])
        found = np.flatnonzero(mine)
        return int(found[np.argmax(self.ends[found])])

    def constants(self, row: int) -> tuple[int, int] | None:
        """Return how long launches take, where that is known: a simulated device tells.

        From the call until the GPU has it, and from the end of what it follows. Copies and host
        functions take no time; a graph takes it as a whole.
        """
        devices = self.trace.metadata.devices.values()
        facts = [one for one in devices if one.index == self.value("device", row)]
        if len(facts) != 1 or self.value("source", row) != "simulated":
            return None
        latency, gap = facts[0].launch_latency_ns, facts[0].kernel_gap_ns
        if latency is None or gap is None:
            return None
        of_graph = self.graphs[row] >= 0
        if of_graph and not self.inside(row):
            return latency, gap
        if self.text("kind", row) != "kernel":
            return 0, 0
        return 0 if of_graph else int(latency), int(gap)

    def inside(self, row: int) -> list[int]:
        """Return the nodes of its own launch that a graph's node follows."""
        mine = self._launch_of(row)
        return [one for one in self.linked(row, "graph") if mine[one]]

    def in_order(self, row: int) -> list[int]:
        """Return the last work before a row in its stream, if there is any."""
        stream = self.streams[row]
        if stream < 0:
            return []
        mine = self.is_work & (self.streams == stream) & (self.devices == self.devices[row])
        start = self.starts[row]
        before = (self.starts < start) | ((self.starts == start) & (self.ids < self.ids[row]))
        facts = self.trace.metadata.stream(stream)
        if facts is not None and facts.per_thread:  # one number, but another stream on each thread
            mine &= self.trace.array("thread", fill=-1) == self.value("thread", row)
        found = np.flatnonzero(mine & before & ~self._launch_of(row))
        return [int(found[np.argmax(self.ends[found])])] if len(found) else []

    def legacy(self, row: int) -> list[int]:
        """Return the last work that the legacy default stream put before a row, if any.

        Its work follows that of blocking streams, and theirs follows its.
        """
        stream = int(self.streams[row])
        others: list[int] = []
        if stream in self.legacy_streams:
            others = self.blocking_streams
        elif stream in self.blocking_streams:
            others = self.legacy_streams
        mine = self.is_work & np.isin(self.streams, others)
        mine &= (self.devices == self.devices[row]) & (self.ends <= self.starts[row])
        mine &= (self.queued >= 0) & (self.queued <= self.queued[row])
        found = np.flatnonzero(mine)
        return [int(found[np.argmax(self.ends[found])])] if len(found) else []

    def holders(self, row: int) -> Array:
        """Return the rows that may have had what a row needs: its SMs or its copy engine."""
        kind = self.text("kind", row)
        mine = self.is_work & (self.devices == self.devices[row])
        mine &= (self.ids != self.ids[row]) & (self.starts < self.starts[row])
        if kind == "kernel":
            return np.flatnonzero(mine & self.having("kind", ("kernel",)) & self._sharing(row))
        if kind == "memcpy":
            mine &= self.having("kind", ("memcpy",)) & (self.ends <= self.starts[row])
            direction = self.value("copy_kind", row)
            if direction is not None:
                mine &= self.having("copy_kind", (direction, None))
            return np.flatnonzero(mine)
        return np.zeros(0, np.int64)

    def _sharing(self, row: int) -> Array:
        """Row → whether it ran on SMs that this row's partition has too."""
        partition = self.value("partition", row)
        if partition is None:
            return np.ones(len(self.ids), bool)
        metadata = self.trace.metadata
        own = set(metadata.partition(partition).sm_ids)
        sharing: list[str | None] = [partition, None]
        for name, facts in metadata.partitions.items():
            if own & set(facts.sm_ids):
                sharing.append(name)
        return self.having("partition", sharing)

    def ready_ns(self, row: int, since: int) -> int:
        """Return when a row's work was ready to run: its launch had reached the GPU.

        ``since`` is when the last work that it had to follow had ended, and it was launched.

        As soon as launches of its kind did elsewhere in the trace, after their call or after what
        they had to follow: the least of them on a simulated device, whose latency is a constant;
        on others what 9 of 10 took while nothing else ran.
        """
        mine = self.having("kind", (self.text("kind", row),))
        mine &= self.devices == self.devices[row]
        free = self._free()
        free[row] = since
        behind = free > self.queued
        chosen = mine
        if not self.trace.is_simulated:
            chosen = mine & (self._busy_until() <= np.maximum(free, self.queued))
        after_call = self._latency(chosen & ~behind, mine & ~behind, self.queued)
        ready = int(self.queued[row]) + after_call
        if behind[row]:
            after_work = self._latency(chosen & behind, mine & behind, free)
            if after_call:  # a launch that is there already takes no longer than a fresh one
                after_work = min(after_work, after_call)
            ready = max(ready if self.queued[row] >= 0 else 0, since + after_work)
        return min(ready, int(self.starts[row]))

    def _latency(self, chosen: Array, fallback: Array, since: Array) -> int:
        took = self.starts - since
        known = (since >= 0) & (took >= 0)
        rows = chosen & known if (chosen & known).any() else fallback & known
        if not rows.any():
            return 0
        share = 0.0 if self.trace.is_simulated else _USUAL
        return int(np.quantile(took[rows], share, method="higher"))

    def _busy_until(self) -> Array:
        """Row → when the last of all the work that began before it ended."""
        order = np.argsort(self.starts, kind="stable")
        latest = np.maximum.accumulate(np.where(self.is_work, self.ends, 0)[order])
        place = np.searchsorted(self.starts[order], self.starts, "left")
        found: Array = np.r_[0, latest][place]
        return found

    def _free(self) -> Array:
        """Row → when the last work that it had to follow ended; −1 where there is none."""
        free = np.full(len(self.ids), -1, np.int64)
        work = np.flatnonzero(self.is_work & (self.streams >= 0))
        order = work[np.lexsort((self.ids[work], self.starts[work], self.streams[work],
                                 self.devices[work]))]  # fmt: skip
        first, then = order[:-1], order[1:]
        same = (self.streams[first] == self.streams[then]) & (
            self.devices[first] == self.devices[then]
        )
        same &= self.ends[first] <= self.starts[then]
        free[then[same]] = self.ends[first[same]]
        edges = self.trace.edges
        if edges.num_rows:
            waits = edges.filter(
                pc.is_in(edges.column("kind").cast(pa.string()),
                         value_set=pa.array(["event wait", "graph", "legacy default stream"]))
            )  # fmt: skip
            by_id = np.argsort(self.ids, kind="stable")
            ids = [np.asarray(waits.column(name)) for name in ("from", "to")]
            before, after = (
                by_id[np.minimum(np.searchsorted(self.ids[by_id], one), len(by_id) - 1)]
                for one in ids
            )
            known = (self.ids[before] == ids[0]) & (self.ids[after] == ids[1])
            known &= self.ends[before] <= self.starts[after]
            np.maximum.at(free, after[known], self.ends[before[known]])
        return free


def _work(rows: _Rows, row: int) -> Explanation:
    """Explain the start of something that ran in a stream."""
    start, queued = int(rows.starts[row]), int(rows.queued[row])
    doubts = _doubts(rows, row)
    waits = _waits(rows, row)
    reasons: list[Reason] = []
    if queued >= 0:
        calls = rows.linked(row, "launch")
        call = max(calls, key=lambda one: int(rows.starts[one])) if calls else None
        since = int(rows.starts[call]) if call is not None else min(queued, start)
        by = None if call is None else int(rows.ids[call])
        reasons.append(Reason("launch", since, min(queued, start), by, "the host to launch it"))
        if start < queued:
            doubts.append("It started before its launch call returned.")
    elif waits:
        doubts.append(
            "When it was launched is not in the trace (record with profile(launch_ids=True)): "
            "that may be why it did not start earlier."
        )
    else:
        raise MissingEvidence(
            f"nothing in the trace tells when row {rows.ids[row]} was launched or what came before "
            "it: record with launch ids, profile(launch_ids=True), which is the default"
        )
    at = reasons[-1].until_ns if reasons else min(int(rows.ends[one]) for one, _, _ in waits)
    at = min(at, start)
    constants = rows.constants(row)
    if constants is not None and queued >= 0:
        latency, gap = constants
        free = max((int(rows.ends[one]) for one, _, _ in waits), default=start - gap)
        if queued + latency > free + gap:
            waits = []  # all of that was over before the launch had reached the GPU
    for one, kind, text in sorted(waits, key=lambda wait: int(rows.ends[wait[0]])):
        end = int(rows.ends[one])
        if end > start:
            doubts.append(f"{rows.label(one)} seems to end later than this started, by an error.")
        end = min(end, start)
        if end > at or not reasons:
            reasons.append(Reason(kind, at, end, int(rows.ids[one]), text))
            at = end
    reasons += _rest(rows, row, at)
    return _explanation(rows, row, start, reasons, doubts)


def _waits(rows: _Rows, row: int) -> list[tuple[int, str, str]]:
    """Return the work that had to end before, by which rule, and that in words."""
    found = [
        *((one, "event wait", f"an event of {rows.stream(one)}, behind {rows.label(one)}")
          for one in rows.followed(row, "event wait")),
        *((one, "graph order", f"{rows.label(one)}, which it follows in its graph")
          for one in rows.inside(row)),
        *((one, "graph order", f"{rows.label(one)} of the same graph's launch before")
          for one in rows.followed(row, "graph")),
        *((one, "stream order", f"{rows.label(one)} before it in {rows.stream(one)}")
          for one in rows.in_order(row)),
        *((one, "legacy default stream",
           f"{rows.label(one)} in {rows.stream(one)} (the legacy default stream's order)")
          for one in (*rows.followed(row, "legacy default stream"), *rows.legacy(row))),
    ]  # fmt: skip
    first: dict[int, tuple[int, str, str]] = {}
    for wait in found:
        first.setdefault(wait[0], wait)
    return list(first.values())


def _rest(rows: _Rows, row: int, since: int) -> list[Reason]:
    """Say what held work back once all that it had to follow had ended."""
    start = int(rows.starts[row])
    if since >= start:
        return []
    constants = rows.constants(row)
    if constants is None:
        ready = rows.ready_ns(row, since)
    else:
        latency, gap = constants
        queued = int(rows.queued[row])
        ready = max(queued + latency, since + gap if since > queued else 0)
    ready = min(max(since, ready), start)
    if constants is not None and rows.text("kind", row) == "kernel":
        held = _released(rows, row, ready, start)
    else:
        held = _held(rows, row, ready, start)
    latency_reason = Reason("launch latency", since, ready, None, "the launch to reach the GPU")
    return [latency_reason, *held] if ready > since else held


def _released(rows: _Rows, row: int, since: int, start: int) -> list[Reason]:
    """Say who released the SMs that a kernel got at its start, as edges tell."""
    if since >= start:
        return []
    held, ahead = rows.linked(row, "SMs"), rows.linked(row, "priority")
    if not held and not ahead:
        text = "something that this trace does not show"
        return [Reason("unexplained", since, start, None, text)]
    one = min([*held, *ahead], key=lambda holder: int(rows.starts[holder]))
    others = len(held) + len(ahead) - 1
    text = f"SMs held by {rows.label(one)} on {rows.place(one)}"
    text += f" and {others} more" if others else ""
    if one in held:
        return [Reason("SMs held", since, start, int(rows.ids[one]), text)]
    text += ", which its priority let go first"
    return [Reason("priority", since, start, int(rows.ids[one]), text)]


def _held(rows: _Rows, row: int, since: int, start: int) -> list[Reason]:
    """Cover [since, start) with others that had what this needs, told from the end backwards."""
    holders = rows.holders(row)
    starts, ends = rows.starts[holders], np.minimum(rows.ends[holders], start)
    is_copy = rows.value("kind", row) == "memcpy"
    found: list[Reason] = []
    at = start
    while at > since:
        there = (starts < at) & (ends >= at)
        if not there.any():
            before = int(ends[ends < at].max(initial=since))
            before = max(before, since)
            text = "something that this trace does not show"
            found.append(Reason("unexplained", before, at, None, text))
            at = before
            continue
        released = there & (ends == at) & (rows.ends[holders] == at)
        best = np.flatnonzero(released if released.any() else there)
        # Else one of those whose blocks were ending: rather who was nearer its end.
        place = int(best[np.lexsort((starts[best], rows.ends[holders[best]]))[0]])
        one, begin = int(holders[place]), max(int(starts[place]), since)
        others = int(np.count_nonzero((starts < at) & (ends > begin))) - 1
        more = f" and {others} more" if others else ""
        what = "the copy engine, taken by" if is_copy else "SMs held by"
        text = f"{what} {rows.label(one)} on {rows.place(one)}{more}"
        kind = "copy engine" if is_copy else "SMs held"
        found.append(Reason(kind, begin, at, int(rows.ids[one]), text))
        at = begin
    return found[::-1]


def _sync(rows: _Rows, row: int) -> Explanation:
    """Explain when a host wait returned."""
    since, end = int(rows.starts[row]), _end(rows, row)
    doubts = []
    waits = rows.linked(row, "host wait")
    if not waits:
        doubts.append("What it waited for is not in the trace, or was nothing.")
    reasons: list[Reason] = []
    at = since
    for one in sorted(waits, key=lambda wait: int(rows.ends[wait])):
        until = min(int(rows.ends[one]), end)
        if until > at:
            text = f"{rows.label(one)} on {rows.place(one)}"
            reasons.append(Reason("running", at, until, int(rows.ids[one]), text))
            at = until
    reasons.append(Reason("host", at, end, None, "the host to return from the call"))
    return _explanation(rows, row, end, reasons, doubts, ended=True)


def _handle(rows: _Rows, row: int) -> Explanation:
    """Explain when a handle's call was seen done."""
    since, end = int(rows.starts[row]), _end(rows, row)
    calls = np.flatnonzero(rows.trace.array("parent", fill=-1) == rows.ids[row])
    edges = rows.trace.edges
    kinds = np.asarray(edges.column("kind").to_pylist(), dtype=object)
    launched = (kinds == "launch") & np.isin(np.asarray(edges.column("from")), rows.ids[calls])
    work = np.flatnonzero(np.isin(rows.ids, np.asarray(edges.column("to"))[launched]))
    if not len(work):
        raise MissingEvidence(
            f"no work in the trace is linked to the launch calls of handle call {rows.ids[row]}: "
            "record with launch ids, profile(launch_ids=True), which is the default"
        )
    last = int(work[np.argmax(rows.ends[work])])
    inner = _work(rows, last)
    reasons: list[Reason] = []
    at = since
    for one in (
        *(reason for reason in inner.reasons if reason.kind != "launch"),
        Reason(
            "running", 0, int(rows.ends[last]), int(rows.ids[last]), f"{rows.label(last)} to run"
        ),
        Reason("host", 0, end, None, "the host to look"),
    ):
        if not reasons:
            queued = min(max(int(rows.queued[last]), since), end)
            text = "execute() to queue its work"
            reasons.append(Reason("launch", since, queued, None, text))
            at = queued
        until = min(one.until_ns, end)
        if until > at:
            reasons.append(Reason(one.kind, at, until, one.span, one.text))
            at = until
    return _explanation(rows, row, end, reasons, list(inner.doubts), ended=True)


def _host(rows: _Rows, row: int) -> Explanation:
    """Explain when a call, range or mark began: what the host did before."""
    start = int(rows.starts[row])
    mine = rows.having("kind", _HOST) & (rows.ends <= start) & (rows.ids != rows.ids[row])
    thread = rows.value("thread", row)
    if thread is not None:
        mine &= rows.trace.array("thread", fill=-1) == thread
    before = np.flatnonzero(mine)
    reasons = []
    at = min(rows.zero_ns, start)
    if len(before):
        one = int(before[np.argmax(rows.ends[before])])
        at = int(rows.ends[one])
        text = f"{rows.label(one)} on its thread to return"
        reasons.append(Reason("host", int(rows.starts[one]), at, int(rows.ids[one]), text))
    reasons.append(Reason("host", at, start, None, "the host's program to get there"))
    return _explanation(rows, row, start, reasons, [])


def _end(rows: _Rows, row: int) -> int:
    if rows.ends[row] == _OPEN:
        raise MissingEvidence(
            f"the end of row {rows.ids[row]} was not seen: wait for it while recording"
        )
    return int(rows.ends[row])


def _doubts(rows: _Rows, row: int) -> list[str]:
    """Say what the row's source leaves open."""
    source, is_kernel = rows.text("source", row), rows.text("kind", row) == "kernel"
    if source == "simulated" and (not is_kernel or rows.constants(row) is not None):
        return []
    said = []
    late = rows.value("start_uncertainty_ns", row)
    if late:
        said.append(f"Its true start lies up to {late / 1e3:,.1f} µs later.")
    if source == "events":
        said.append(
            "Bracketing events count waiting for SMs as running: who held SMs shows in longer "
            "spans, not in later starts. Other libraries' work is not in the trace."
        )
    elif is_kernel:
        said.append(
            "How many SMs each kernel held is not in the trace, nor are event waits of other "
            "libraries: who ran on these SMs at that time is a candidate, not proof."
        )
    return said


def _explanation(
    rows: _Rows,
    row: int,
    at_ns: int,
    reasons: Sequence[Reason],
    doubts: Sequence[str],
    *,
    ended: bool = False,
) -> Explanation:
    kind = rows.text("kind", row)
    where = f", {rows.stream(row)}" if kind in _WORK else ""
    name = f"{kind} {rows.value('category', row) or rows.text('name', row)}{where}"
    if kind == "sync":
        name = f"host wait {rows.text('name', row)}"
    lost = rows.trace.metadata.incomplete
    missing = [f"What is missing may be the reason; {lost}."] if lost else []
    return Explanation(
        int(rows.ids[row]), kind, name, ended, at_ns, rows.zero_ns, tuple(reasons),
        (*doubts, *missing), rows.trace.provenance,
    )  # fmt: skip
