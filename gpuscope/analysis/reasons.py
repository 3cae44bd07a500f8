"""Why a span started when it did: the rules by which a trace's edges and times tell.

Long because the rules stand together: which holds depends on what the others found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuscope._checks import door
from gpuscope._tables import html_table
from gpuscope._text import clean, duration, shown
from gpuscope.analysis.span_rows import OPEN, WORK, SpanRows
from gpuscope.errors import MissingEvidence
from gpuscope.trace.model import Trace

_HOST = ("api", "sync", "event", "handle", "range", "mark")


@dataclass(frozen=True)
class Reason:
    """One cause that delayed a span.

    Attributes
    ----------
    kind
        ``"launch"``: the host had not launched it yet. ``"event wait"``, ``"graph order"``,
        ``"stream order"``, ``"legacy default stream"``: other work had to end first.
        ``"launch latency"``: the launch had not reached the GPU yet, or the GPU took its time from
        one work to the next. ``"SMs held"``, ``"copy engine"``: other work held the SMs or the copy
        engine. ``"priority"``: other work held the SMs only because of its higher priority.
        ``"running"``: the work of a call ran. ``"host"``: the host delayed it.
        ``"unexplained"``: the trace shows no cause.
    since_ns, until_ns
        Times on the trace's clock. Each reason begins where the previous one ends, except that
        the first may begin earlier.
    span
        Id of the row waited for, if there is one. Of several rows that ran on the SMs, one of
        those that released them.
    text
        What was waited for, in words.
    """

    kind: str
    since_ns: int
    until_ns: int
    span: int | None
    text: str

    @property
    def lasted(self) -> str:
        """How long it delayed the span, with a unit."""
        return duration(self.until_ns - self.since_ns)


@dataclass(frozen=True)
class Explanation:
    """Why a span started when it did; for a host wait or a handle's call, why it ended.

    Attributes
    ----------
    span, kind, name
        The row that is explained; the name includes its stream.
    ended
        Whether its end is explained.
    at_ns
        Its start or end on the trace's clock, as the trace has it.
    zero_ns
        The origin of the times in the text: the beginning of the trace.
    reasons
        In order of time, up to ``at_ns``.
    doubts
        What is uncertain, what evidence the trace lacks, and whom it waited for once it ran.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> kernel = gs.learn.spin_kernel(gpu)
    >>> with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
    ...     stream.launch(kernel, 50_000, grid=1, block=32)
    ...     stream.launch(kernel, 50_000, grid=1, block=32)
    >>> second = gs.learn.find(recording.trace, "spin", 1)
    >>> [reason.kind for reason in gs.analysis.explain(recording.trace, second).reasons]
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
        unexplained = (reason for reason in self.reasons if reason.kind == "unexplained")
        return sum(reason.until_ns - reason.since_ns for reason in unexplained)

    def __str__(self) -> str:
        first, *rest = self.reasons
        history = ""
        if first.kind == "launch":
            history = f"launched at {self._time(first.until_ns)}, "
        else:
            rest = [first, *rest]
        waits = ", then ".join(
            f"for {reason.text} until {self._time(reason.until_ns)}"
            + (f" ({reason.lasted})" if reason.until_ns > reason.since_ns else "")
            for reason in rest
        )
        what = "returned" if self.kind == "sync" else "seen done" if self.ended else "started"
        history += f"waited {waits}, " if waits else ""
        lines = [f"{self.name}: {history}{what} at {self._time(self.at_ns)}.", *self.doubts]
        return "\n".join(map(clean, lines))

    def _time(self, ns: int) -> str:
        micros = (ns - self.zero_ns) / 1e3
        return f"{micros:,.1f} µs" if micros < 1e5 else f"{micros / 1e3:,.3f} ms"

    def _repr_html_(self) -> str:
        rows = [
            {
                "why": reason.kind,
                "waited for": reason.text,
                "until": self._time(reason.until_ns),
                "for": reason.lasted,
                "span": reason.span,
            }
            for reason in self.reasons
        ]
        table = html_table(["why", "waited for", "until", "for", "span"], rows)
        notes = "".join(f"<p>{shown(text)}</p>" for text in (*self.doubts, self.provenance))
        return f"<p>{shown(str(self).splitlines()[0])}</p>{table}{notes}"


@door(trace=Trace, span=int)
def explain(trace: Trace, span: int) -> Explanation:
    """Explain why a span started when it did: what it waited for, and until when.

    For a host wait or a handle's call, explain why it ended when it did.

    Parameters
    ----------
    span
        The row's ``id``.

    Returns
    -------
    Explanation
        ``str()`` gives a sentence; ``reasons`` lists each reason with its end and the row waited
        for.

    Raises
    ------
    MissingEvidence
        There is no such row, it is neither a call nor work, or the trace holds neither its launch
        nor its predecessors.

    Examples
    --------
    >>> import gpuscope as gs
    >>> trace = gs.learn.case("A").trace
    >>> gs.analysis.explain(trace, gs.learn.find(trace, "norm")).kind
    'kernel'
    """
    rows = SpanRows(trace)
    row = rows.position(span)
    kind = rows.kind(row)
    parent = rows.number("parent", row) if kind == "block" else None
    if parent is not None:
        row = rows.position(parent)
        kind = rows.kind(row)
    if kind in WORK:
        found = _work(rows, row)
        then = [
            f"Then it waited {reason.lasted} for {reason.text}."
            for reason in _joint(rows, row, found.at_ns)
        ]
        return replace(found, doubts=(*then, *found.doubts))
    if kind == "sync":
        return _sync(rows, row)
    if kind == "handle":
        return _handle(rows, row)
    if kind in _HOST:
        return _host(rows, row)
    raise MissingEvidence(f"row {span} is a {kind}: it waits for nothing, so nothing explains it")


def _work(rows: SpanRows, row: int) -> Explanation:
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


def _joint(rows: SpanRows, row: int, since: int) -> list[Reason]:
    """Say which rank began a collective last, if it kept this part of it waiting."""
    found = []
    for last in rows.linked(row, "collective"):
        begun = int(rows.starts[last])
        if begun > since:
            metadata = rows.trace.metadata
            rank = metadata.rank(rows.number("process", last))
            who = "another rank" if rank is None else f"rank {rank.rank}"
            error = 0 if rank is None else rank.error_ns or 0
            sure = f" (their clocks agree within {duration(error)})" if error else ""
            text = f"{who} to begin {rows.label(last)}{sure}"
            found.append(Reason("collective", since, begun, int(rows.ids[last]), text))
    return found


def _waits(rows: SpanRows, row: int) -> list[tuple[int, str, str]]:
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


def _rest(rows: SpanRows, row: int, since: int) -> list[Reason]:
    """Say what held work back once all that it had to follow had ended."""
    start, queued = int(rows.starts[row]), int(rows.queued[row])
    if since >= start:
        return []
    constants = rows.constants(row)
    if constants is None:
        ready = rows.ready_ns(row, since)
    else:
        latency, gap = constants
        ready = max(queued + latency, since + gap if since > queued else 0)
    ready = min(max(since, ready), start)
    if constants is not None and rows.kind(row) == "kernel":
        held = _released(rows, row, ready, start)
    else:
        held = _held(rows, row, ready, start)
    text = "the GPU to begin it" if since > queued else "the launch to reach the GPU"
    return [Reason("launch latency", since, ready, None, text), *held] if ready > since else held


def _released(rows: SpanRows, row: int, since: int, start: int) -> list[Reason]:
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


def _held(rows: SpanRows, row: int, since: int, start: int) -> list[Reason]:
    """Cover [since, start) with others that had what this needs, told from the end backwards."""
    holders = rows.holders(row)
    starts, ends = rows.starts[holders], np.minimum(rows.ends[holders], start)
    is_copy = rows.kind(row) == "memcpy"
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


def _sync(rows: SpanRows, row: int) -> Explanation:
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
        for reason in _joint(rows, one, max(at, int(rows.starts[one]))):
            if reason.until_ns <= until:
                reasons.append(replace(reason, since_ns=at))
                at = reason.until_ns
        if until > at:
            text = f"{rows.label(one)} on {rows.place(one)}"
            reasons.append(Reason("running", at, until, int(rows.ids[one]), text))
            at = until
    reasons.append(Reason("host", at, end, None, "the host to return from the call"))
    return _explanation(rows, row, end, reasons, doubts, ended=True)


def _handle(rows: SpanRows, row: int) -> Explanation:
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
        *_joint(rows, last, int(rows.starts[last])),
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


def _host(rows: SpanRows, row: int) -> Explanation:
    """Explain when a call, range or mark began: what the host did before."""
    start = int(rows.starts[row])
    mine = rows.having("kind", _HOST) & (rows.ends <= start) & (rows.ids != rows.ids[row])
    thread = rows.number("thread", row)
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


def _end(rows: SpanRows, row: int) -> int:
    if rows.ends[row] == OPEN:
        raise MissingEvidence(
            f"the end of row {rows.ids[row]} was not seen: wait for it while recording"
        )
    return int(rows.ends[row])


def _doubts(rows: SpanRows, row: int) -> list[str]:
    """Say what the row's source leaves open."""
    source, is_kernel = rows.text("source", row), rows.kind(row) == "kernel"
    if source == "simulated" and (not is_kernel or rows.constants(row) is not None):
        return []
    said = []
    late = rows.number("start_uncertainty_ns", row)
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
    rows: SpanRows,
    row: int,
    at_ns: int,
    reasons: Sequence[Reason],
    doubts: Sequence[str],
    *,
    ended: bool = False,
) -> Explanation:
    kind = rows.kind(row)
    where = f", {rows.stream(row)}" if kind in WORK else ""
    name = f"{kind} {rows.text('category', row) or rows.text('name', row)}{where}"
    if kind == "sync":
        name = f"host wait {rows.text('name', row)}"
    lost = rows.trace.metadata.incomplete
    missing = [f"What is missing may be the reason; {lost}."] if lost else []
    return Explanation(
        int(rows.ids[row]), kind, name, ended, at_ns, rows.zero_ns, tuple(reasons),
        (*doubts, *missing), rows.trace.provenance,
    )  # fmt: skip
