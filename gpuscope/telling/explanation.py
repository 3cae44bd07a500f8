"""Why a span took as long as it did: the parts of its time in words, the largest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuscope._checks import door
from gpuscope._tables import html_table
from gpuscope._text import clean, duration, percent, shown, stream_label
from gpuscope.analysis.call_parts import HOST
from gpuscope.analysis.counters_analysis import span_use
from gpuscope.analysis.part import ORDER, Part, PartKind, lasted_ns
from gpuscope.analysis.samples_analysis import SeenFunction, Stretches, functions_in, seen_from
from gpuscope.analysis.span_rows import OPEN, WORK, SpanRows
from gpuscope.analysis.trace_parts import trace_parts
from gpuscope.telling.rules import fill
from gpuscope.trace.model import Trace
from gpuscope.trace.sites import site_words

_MOST = 6
"""Parts that a sentence names."""
_FUNCTIONS = 2
"""Functions that it names."""
_IN_WORDS = {
    "launch call": "in the launch call",
    "on the way": "on the way to the GPU",
    "stream order": "behind[ {label} in {stream}]",
    "event wait": "waiting for an event[ behind {label} in {stream}]",
    "graph order": "behind[ {label} of] its graph",
    "legacy default stream": "behind[ {label} in {stream}] (the legacy default stream's order)",
    "SMs held": "waiting for SMs[ held by {label} on {place}]{others}",
    "priority": "waiting for SMs[ held by {label} on {place}]{others} by priority",
    "copy engine": "waiting for the copy engine[, taken by {label} on {place}]{others}",
    "request queue": "in the queue of requests",
    "collective": "waiting for[ {rank} to begin] {label}",
    "running": "running",
    "not looking": "done but not seen by the host",
    "host": "in the host's program",
    "unexplained": "waiting for something that this trace does not show",
}
_WITHOUT_CAUSE: dict[PartKind, str] = {
    "stream order": "queued behind its stream",
    "graph order": "queued behind its graph",
    "legacy default stream": "behind the legacy default stream",
    "collective": "waiting for another rank",
}
"""Words of parts where those above need a cause."""
_SHORT: dict[PartKind, str] = {
    "launch call": "launch call",
    "on the way": "on its way",
    "not looking": "host not looking",
}
_INTERVALS = {
    "handle": "from execute() until seen done",
    "sync": "from its call until it returned",
    "request": "from its arrival to its last token",
}


@dataclass(frozen=True)
class Explanation:
    """Why a span took as long as it did, from the call that launched it on.

    Attributes
    ----------
    span, kind, name
        The row that is explained; the name includes its stream.
    at_ns
        When it started; of a host wait, a handle's call and a request, when it was over. On the
        trace's clock, as the trace has it.
    parts
        What :func:`gpuscope.analysis.parts` returns.
    words
        Each part in words.
    interval
        From when to when the parts are, in words.
    doubts
        What is uncertain, and what evidence the trace lacks.
    site
        The lines of Python that made the call, in words; empty where they are not known.
    functions
        What its thread was seen doing in the host's program, where stacks were sampled; or another
        that held Python's lock meanwhile.
    used
        What it used of its SMs and the memory, in words, where counters were sampled while it ran.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", jitter=False, quiet=True)
    >>> kernel = gs.workloads.spin_kernel(gpu)
    >>> with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
    ...     stream.launch(kernel, 50_000, grid=1, block=32)
    >>> found = gs.telling.explain(recording.trace, gs.telling.find(recording.trace, "spin"))
    >>> str(found).partition(": ")[2]  # doctest: +ELLIPSIS
    '... from its launch call to its end: 50 µs running, ... µs in the launch call, ...'
    """

    span: int
    kind: str
    name: str
    at_ns: int
    parts: tuple[Part, ...]
    words: tuple[str, ...]
    interval: str
    doubts: tuple[str, ...]
    provenance: str
    site: str = ""
    functions: tuple[SeenFunction, ...] = ()
    used: str = ""

    @property
    def unexplained_ns(self) -> int:
        """How long nothing in the trace tells what it waited for."""
        return lasted_ns(part for part in self.parts if part.kind == "unexplained")

    def _sums(self) -> list[tuple[str, list[Part]]]:
        """Return the parts by their words, those that took longest first."""
        alike: dict[str, list[Part]] = {}
        for text, part in zip(self.words, self.parts, strict=True):
            alike.setdefault(text, []).append(part)
        return sorted(alike.items(), key=lambda entry: -lasted_ns(entry[1]))

    def __str__(self) -> str:
        sums = self._sums()
        clauses = [
            f"{duration(lasted_ns(parts))} {text}"
            + (f" ({len(parts)} times)" if len(parts) > 1 else "")
            for text, parts in sums[:_MOST]
        ]
        if rest := [part for _, parts in sums[_MOST:] for part in parts]:
            clauses.append(f"{duration(lasted_ns(rest))} in {len(rest)} other parts")
        line = f"{self.name}: {duration(lasted_ns(self.parts))} {self.interval}"
        lines = [f"{line}: {', '.join(clauses)}." if clauses else f"{line}."]
        if self.site:
            lines.append(f"{'Launched' if self.kind in WORK else 'Called'} at {self.site}.")
        if seen := [seen_from(None, function) for function in self.functions[:_FUNCTIONS]]:
            lines.append(f"Of the host's program {', '.join(seen)}.")
        lines += filter(None, [self.used])
        lines += self.doubts
        return "\n".join(map(clean, lines))

    def _repr_html_(self) -> str:
        total = lasted_ns(self.parts)
        rows = [
            {
                "part": text,
                "for": duration(lasted_ns(parts)),
                "share": percent(lasted_ns(parts) / total),
                "times": len(parts),
                "first after": duration(parts[0].start_ns - self.parts[0].start_ns),
                "span": parts[0].span,
            }
            for text, parts in self._sums()
        ]
        table = html_table(rows)
        line, *notes = str(self).splitlines()
        below = "".join(f"<p>{shown(text)}</p>" for text in (*notes, self.provenance))
        return f"<p>{shown(line)}</p>{table}{below}"


@door(trace=Trace, span=int)
def explain(trace: Trace, span: int) -> Explanation:
    """Explain why a span took as long as it did: what it waited for, what it did, and how long.

    Parameters
    ----------
    span
        The row's ``id``.

    Returns
    -------
    Explanation
        ``str()`` gives a sentence, the largest part first; ``parts`` has them in order of time.

    Raises
    ------
    MissingEvidence
        As :func:`gpuscope.analysis.parts` does.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> kernel = gs.workloads.spin_kernel(gpu)
    >>> with gpu.create_stream() as stream, gs.profile(gpu) as recording:
    ...     stream.launch(kernel, 5_000, grid=1, block=32)
    >>> gs.telling.explain(recording.trace, gs.telling.find(recording.trace, "spin")).kind
    'kernel'
    """
    breakdown = trace_parts(trace)
    rows, row = breakdown.rows, breakdown.explained(span)
    parts = breakdown.parts(row)
    kind = rows.kind(row)
    if kind == "range" and row in breakdown.requests:
        kind = "request"
    doubts = []
    works = [
        rows.position(part.span)
        for part in parts
        if part.kind == "running" and part.span is not None
    ]
    if kind in WORK or (kind == "handle" and works):
        work = row if kind in WORK else works[-1]
        is_timed = bool(breakdown.work.times.is_known[work])
        doubts += _doubts(rows, work, parts, is_timed=is_timed)
    if kind == "sync" and not rows.linked(row, "host wait"):
        doubts.append("What it waited for is not in the trace, or was nothing.")
    if rows.metadata.incomplete:
        doubts.append(f"What is missing may be the reason; {rows.metadata.incomplete}.")
    return Explanation(
        span=int(rows.ids[row]),
        kind=rows.kind(row),
        name=_name(rows, row, kind),
        at_ns=int(rows.ends[row] if kind in _INTERVALS else rows.starts[row]),
        parts=parts,
        words=tuple(_in_words(rows, row, part) for part in parts),
        interval=_interval(rows, row, kind, parts),
        doubts=tuple(doubts),
        provenance=rows.provenance,
        site=site_words(rows.text("site", row)),
        functions=_functions(trace, int(rows.threads[row]), parts),
        used=_used(trace, int(rows.ids[row])),
    )


def _used(trace: Trace, span: int) -> str:
    """Say what a span used by hardware counters; nothing where no sample lies in it."""
    use = span_use(trace, span)
    if use is None:
        return ""
    between = f"{use.low:.3g} to {use.high:.3g}"
    if use.busy is None:
        busy = f"between {between}"
    elif use.directly < 1:
        busy = f"about {use.busy:.3g} ({between})"
    else:
        busy = f"{use.busy:.3g}"
    clauses = [f"it kept {busy} of its {use.granted} SMs busy"]
    if use.tensor is not None:
        clauses.append(f"their tensor pipes {percent(use.tensor)}")
    if use.rate is not None:
        clauses.append(f"while the GPU's memory moved {use.rate:.4g} GB/s")
    source = "its model" if trace.is_simulated else "counters"
    return f"By {source} {', '.join(clauses)}."


def _functions(trace: Trace, thread: int, parts: Sequence[Part]) -> tuple[SeenFunction, ...]:
    """Return what a thread was seen doing in the parts that are the host's program."""
    of_host = [part for part in parts if part.kind == "host"]
    begins = np.array([part.start_ns for part in of_host], np.int64)
    ends = np.array([part.end_ns for part in of_host], np.int64)
    alike = np.zeros(len(of_host), np.int64)
    (functions,) = functions_in(trace, Stretches(alike + thread, begins, ends, alike), 1)
    return functions


def _name(rows: SpanRows, row: int, kind: str) -> str:
    if kind == "request":
        return f"{rows.text('name', row)} of {rows.text('category', row)}"
    if kind == "sync":
        return f"host wait {rows.text('name', row)}"
    where = f", {stream_label(rows.place(row))}" if kind in WORK else ""
    return f"{kind} {rows.called(row)}{where}"


def _interval(rows: SpanRows, row: int, kind: str, parts: Sequence[Part]) -> str:
    if kind in _INTERVALS:
        return _INTERVALS[kind]
    until = "its start" if rows.ends[row] == OPEN else "its end"
    if kind in WORK:
        since = "its launch call" if rows.queued[row] >= 0 else "the end of what it followed"
    elif not parts or parts[0].kind != "host":
        since = "its start"
    else:
        since = "the beginning of the trace" if parts[0].span is None else "the call before"
    return f"from {since} to {until}"


def in_words(kind: PartKind) -> str:
    """Return what is done in a part of a kind, whatever caused it: of a sentence and a legend."""
    return _WITHOUT_CAUSE.get(kind) or fill(_IN_WORDS[kind], {})


def in_short(kind: PartKind) -> str:
    """Return the same where there is little room."""
    return _SHORT.get(kind) or in_words(kind)


def _in_words(rows: SpanRows, row: int, part: Part) -> str:
    cause = None if part.span is None else rows.position(part.span)
    if cause == row and part.kind == "running" and rows.kind(row) in HOST:
        return "in the range" if rows.kind(row) == "range" else "in the call"
    if cause is None or cause == row:
        return in_words(part.kind)
    label = _label(rows, cause)
    if part.kind == "running":
        return f"{label} running"
    if part.kind == "host":
        return f"in the host's program, after {label} returned"
    more = f" and {part.others} more" if part.others else ""
    names = {"label": label, "stream": stream_label(rows.place(cause)), "place": rows.place(cause)}
    names |= {"others": more, "rank": _rank(rows, cause)}
    return fill(_IN_WORDS[part.kind], names)


def _label(rows: SpanRows, row: int) -> str:
    """Return a row's name for people: its workload's where it has one."""
    name = rows.called(row)
    return f"host function {name}" if rows.kind(row) == "host function" else name


def _rank(rows: SpanRows, row: int) -> str:
    """Say which rank a row is of, and how well its clock agrees with the others'."""
    rank = rows.metadata.rank(rows.number("process", row))
    if rank is None:
        return "another rank"
    error = f" (clocks agree within {duration(rank.error_ns)})" if rank.error_ns else ""
    return f"rank {rank.rank}{error}"


def _doubts(rows: SpanRows, row: int, parts: Sequence[Part], *, is_timed: bool) -> list[str]:
    """Say what the source of work leaves open; ``is_timed``: how long launches take is known."""
    doubts = []
    start, queued = int(rows.starts[row]), int(rows.queued[row])
    if queued < 0:
        doubts.append(
            "When it was launched is not in the trace (record with profile(launch_ids=True)): "
            "that may be why it did not start earlier."
        )
    elif start < queued:
        doubts.append("It started before its launch call returned.")
    for part in parts:
        if part.kind in ORDER and part.end_ns == start and part.span is not None:
            before = rows.position(part.span)
            if rows.ends[before] > start:
                label = _label(rows, before)
                doubts.append(f"{label} seems to end later than this started, by an error.")
    source, is_kernel = rows.text("source", row), rows.kind(row) == "kernel"
    if source == "simulated" and (not is_kernel or is_timed):
        return doubts
    if late := rows.number("start_uncertainty_ns", row):
        doubts.append(f"Its true start lies up to {duration(late)} later.")
    if source == "events":
        doubts.append(
            "Bracketing events count waiting for SMs as running: who held SMs shows in longer "
            "spans, not in later starts. Other libraries' work is not in the trace."
        )
    elif is_kernel:
        doubts.append(
            "How many SMs each kernel held is not in the trace, nor are event waits of other "
            "libraries: who ran on these SMs at that time is a candidate, not proof."
        )
    return doubts
