"""The dock below a timeline: everything known about the selected span or stretch of time."""

from __future__ import annotations

import linecache
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypedDict

import anywidget
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import traitlets

from gpuscope._sites import path_of
from gpuscope._text import percent, stream_label
from gpuscope._threads import start
from gpuscope._types import Array
from gpuscope.analysis.result import Row
from gpuscope.analysis.trace_parts import trace_parts
from gpuscope.errors import MissingEvidence
from gpuscope.telling.explanation import explain
from gpuscope.timeline.labels import Track, partition_label
from gpuscope.timeline.look import part_look
from gpuscope.timeline.stretch import PAIRED, stretch_of
from gpuscope.timeline.style import Properties
from gpuscope.timeline.text import clean, duration
from gpuscope.timeline.tracks import Tracks
from gpuscope.timeline.waiting import PartClass, classed
from gpuscope.trace.joins import match
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import named, plain_names
from gpuscope.trace.sites import SiteLine, lines_of
from gpuscope.widgets.base import script, static

_RELATED = 12
_NESTED = 8
_AROUND = 2
"""Lines of source that are shown before and behind that of a call."""


class SpanDetails(TypedDict):
    """What the dock shows of a span: plain text, to be shown as text.

    ``parts`` has words, time in µs, share, colour and pattern of each part of its time, which add
    up to ``total``; ``of`` says of which calls they are, where not of all. ``related`` has
    relation, label and id of its launch call, of the ranges around it and of what it waited for or
    made wait; ``columns`` name and value of every column that says something; ``tables`` heading
    and rows of name and value.
    """

    title: str
    subtitle: str
    why: str
    parts: list[tuple[str, str, float, str, str]]
    total: str
    of: str
    related: list[list[str]]
    columns: list[list[str]]
    tables: list[tuple[str, list[tuple[str, str]]]]


Tell: TypeAlias = Callable[[], dict[str, object]]
"""Returns facts that take a while to find."""


class Details(anywidget.AnyWidget):
    """The dock that shows one span or a stretch; empty while nothing is selected."""

    _esm = script("details.js")
    _css = static("details.css")

    facts = traitlets.Dict(None, allow_none=True, read_only=True).tag(sync=True)
    """What :func:`describe` says of the selected span; ``None`` shows nothing."""

    def show(self, facts: SpanDetails, tell: Tell) -> None:
        """Show facts; what ``tell`` returns follows, as that may take a while."""
        self.set_trait("facts", facts)
        telling = threading.Thread(
            target=self._tell, args=(facts, tell), name="gpuscope-explain", daemon=True
        )
        if not start(telling):
            telling.run()

    def _tell(self, facts: SpanDetails, tell: Tell) -> None:
        more = tell()
        if self.facts is facts:  # else another is shown by now
            self.set_trait("facts", {**facts, **more})

    def clear(self) -> None:
        """Show nothing."""
        self.set_trait("facts", None)


def describe(trace: Trace, row: int) -> SpanDetails:
    """Collect what a trace knows of one span, without what its time consists of.

    Parameters
    ----------
    row
        Its position in the trace.
    """
    span = trace.spans.slice(row, 1).to_pylist()[0]
    first_ns = int(trace.array("start_ns").min())
    zero = min([first_ns, *(low for low, _ in trace.metadata.windows_ns[:1])])
    heads = [
        str(span["kind"]),
        _length(span),
        f"starts at {(span['start_ns'] - zero) / 1e3:,.1f} µs",
    ]
    if span["stream"] is not None or span["partition"] is not None:
        where = [f"partition {partition_label(trace, span['partition'])}"]
        if span["intended_partition"] not in (None, span["partition"]):
            where.append(f"intended for {clean(span['intended_partition'], 40)}")
        if span["stream"] is not None:
            where.append(stream_label(named(trace).stream_name(span["stream"]), 60))
        heads.append(", ".join(where))
    is_stack = span["kind"] == "stack"
    if is_stack:
        heads += [clean(span["status"] or "", 60), _samples(span["value"])]
    in_tables = ("site", "payload") if is_stack else ("site",)
    values = {
        name: _text(name, value)
        for name, value in span.items()
        if value is not None and name not in in_tables
    }
    return {
        "title": clean(plain_names(trace.spans.slice(row, 1))[0].as_py(), 200),
        "subtitle": " · ".join(filter(None, heads)),
        "why": "",
        "parts": [],
        "total": "",
        "of": "",
        "related": _related(trace, span),
        "columns": [[name, clean(text, 2000)] for name, text in values.items()],
        "tables": _stack_tables(span) if is_stack else [*map(_source_of, lines_of(span["site"]))],
    }


def _samples(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f} sample{'s' * (value != 1)}"


def _stack_tables(span: Row) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the innermost line of the program with its source, and all lines of a stack."""
    lines = lines_of(span["payload"]) or lines_of(span["site"])
    rows = [(clean(line.function, 80), clean(f"{line.file}:{line.line}", 120)) for line in lines]
    program = [_source_of(line, "At") for line in lines_of(span["site"])[:1]]
    return [*program, ("Stack, the innermost first", rows)] if rows else []


def _source_of(line: SiteLine, what: str = "Called at") -> tuple[str, list[tuple[str, str]]]:
    """Return where a call was made, and the source around it where this machine has the file."""
    source = [text.rstrip() for text in linecache.getlines(str(path_of(line.file)))]
    first = max(0, line.line - 1 - _AROUND)
    around = source[first : line.line + _AROUND] if line.line <= len(source) else []
    numbered = [
        (f"{number} →" if number == line.line else str(number), clean(text, 160))
        for number, text in enumerate(around, first + 1)
    ]
    return f"{what} {clean(str(line), 120)}", numbered


def told_of_span(trace: Trace, span: int, tracks: Tracks, colours: dict[str, str]) -> Properties:
    """Return what a span's time consists of, in words and as parts."""
    all_parts = trace_parts(trace)
    try:
        parts, words = all_parts.parts(all_parts.explained(span)), str(explain(trace, span))
    except MissingEvidence as error:
        return {"why": str(error)}
    cause = match(
        np.array([-1 if at.span is None else at.span for at in parts]), all_parts.rows.ids
    )
    ran = [row for row, part in zip(cause, parts, strict=True) if part.kind == "running"]
    work = np.full(len(parts), ran[-1] if ran else all_parts.explained(span))
    classes, look = classed(tracks, [part.kind for part in parts], cause, work)
    lengths = [(classes[at], part.duration_ns) for at, part in zip(look, parts, strict=True)]
    return {"why": words, **_shares(lengths, tracks, colours)}


def _shares(
    lengths: Sequence[tuple[PartClass, int]], tracks: Tracks, colours: dict[str, str]
) -> Properties:
    """Return parts and their sum, in words."""
    total = sum(length for _, length in lengths)
    looks = [part_look(tracks, part, colours) for part, _ in lengths]
    parts = [
        (how.name, f"{length / 1e3:,.3f}", length / max(total, 1), how.fill, how.pattern)
        for how, (_, length) in zip(looks, lengths, strict=True)
    ]
    return {"parts": parts, "total": f"{total / 1e3:,.3f}"}


def of_stretch(window_ns: tuple[int, int], zero_ns: int) -> SpanDetails:
    """Return what is known at once of a stretch of time."""
    low, high = ((edge - zero_ns) / 1e3 for edge in window_ns)
    return {
        "title": f"Range of {duration(window_ns[1] - window_ns[0])}",
        "subtitle": f"from {low:,.1f} to {high:,.1f} µs",
        "why": "",
        "parts": [],
        "total": "",
        "of": "",
        "related": [],
        "columns": [],
        "tables": [],
    }


def told_of_stretch(
    window_ns: tuple[int, int], tracks: Tracks, shown: Sequence[Track], colours: dict[str, str]
) -> Properties:
    """Return busy shares, overlap, confinement, and the calls wholly inside a stretch of time."""
    stretch = stretch_of(tracks, shown, window_ns)
    seen_ns = tracks.seen_ns(window_ns)
    is_whole = seen_ns == window_ns[1] - window_ns[0]
    of_it = "" if is_whole else f" of the {duration(seen_ns)} that the trace has all rows of"
    busy = [
        (row, f"{percent(ns / seen_ns)}{of_it}, {duration(ns)}" if seen_ns else "–")
        for row, ns in stretch.busy_ns.items()
    ]
    both = [(f"{a} and {b}", duration(ns)) for (a, b), ns in stretch.overlap_ns.items()]
    confinement = [
        (clean(name, 40), f"{out:,} of {count:,} kernels escaped")
        for name, (count, out) in stretch.escapes.items()
    ]
    calls = [
        (f"{clean(name, 40)}, {len(lengths):,} calls", _latency(lengths))
        for name, lengths in stretch.latency_ns.items()
    ]
    paired = min(len(busy), PAIRED)
    together = "Busy together"
    if len(both) < paired * (paired - 1) // 2:
        together += f": the {len(both)} longest"
    if len(busy) > PAIRED:
        together += f" of the {PAIRED} busiest rows"
    headings = ("Busy", together, "Confinement", "Calls wholly inside: p50, p99, longest")
    tables = zip(headings, (busy, both, confinement, calls), strict=True)
    shares = _shares(list(stretch.parts.items()), tracks, colours)
    count = sum(map(len, stretch.latency_ns.values()))
    of = f"{stretch.sampled:,} of {count:,} calls, evenly spaced" if stretch.sampled else ""
    return {"tables": [pair for pair in tables if pair[1]], **shares, "of": of}


def _latency(lengths_ns: Array) -> str:
    ordered = np.sort(lengths_ns)
    at = [-(-len(ordered) * share // 100) - 1 for share in (50, 99, 100)]
    return ", ".join(duration(int(ordered[index])) for index in at)


def neighbours(trace: Trace, span: int) -> list[tuple[int, int, str]]:
    """Return the edges at a span: from and to as ids, and what kind, in the trace's order."""
    edges = trace.edges
    if not edges.num_rows:
        return []
    touching = pc.or_(pc.equal(edges.column("from"), span), pc.equal(edges.column("to"), span))
    return [(edge["from"], edge["to"], edge["kind"]) for edge in edges.filter(touching).to_pylist()]


def links(trace: Trace, span: int) -> list[tuple[int, int]]:
    """Return which rows had to come before which, of a span and those next to it."""
    edges = neighbours(trace, span)
    rows = rows_of_ids(trace, [span_id for pair in edges for span_id in pair[:2]])
    return [(rows[a], rows[b]) for a, b, _ in edges if a in rows and b in rows]


def rows_of_ids(trace: Trace, ids: list[int]) -> dict[int, int]:
    """Return id → position in the trace, of those that are there."""
    rows = np.flatnonzero(
        np.asarray(pc.is_in(trace.spans.column("id"), value_set=pa.array(ids, pa.int64())))
    )
    return dict(zip(trace.array("id")[rows].tolist(), rows.tolist(), strict=True))


def _text(name: str, value: Any) -> str:
    if name.endswith("_uncertainty_ns"):
        return duration(value)
    return f"#{value:08X}" if name == "color" else str(value)


def _related(trace: Trace, span: Row) -> list[list[str]]:
    """Return relation, label and id of the spans that this one is linked to."""
    linked: list[tuple[str, int]] = []
    around = span["parent"]
    edges = neighbours(trace, span["id"])
    for before, after, kind in edges:
        if kind == "launch":
            linked.append(("launched by", before) if after == span["id"] else ("launched", after))
        elif after == span["id"]:
            linked.append((f"follows ({kind})", before))
        else:
            linked.append((f"comes before ({kind})", after))
    row_of_id = _columns_of(trace, [span_id for _, span_id in linked])
    callers = [before for before, after, kind in edges if kind == "launch" and after == span["id"]]
    if around is None and callers and callers[0] in row_of_id:
        around = row_of_id[callers[0]]["parent"]
    for _ in range(_NESTED):
        parent = None if around is None else _columns_of(trace, [around]).get(around)
        if parent is None:
            break
        row_of_id[around] = parent
        linked.append(("in", around))
        around = parent["parent"]
    resolved = [(relation, span_id) for relation, span_id in linked if span_id in row_of_id]
    related = [
        [relation, _label(row_of_id[span_id]), str(span_id)] for relation, span_id in resolved
    ]
    more = len(related) - _RELATED
    return related[:_RELATED] + ([["and", f"{more} more", str(span["id"])]] if more > 0 else [])


def _columns_of(trace: Trace, ids: list[int]) -> dict[int, Row]:
    rows = rows_of_ids(trace, ids[: 4 * _RELATED]) if ids else {}
    names = ["id", "kind", "name", "parent", "start_ns", "end_ns"]
    spans = trace.spans.select(names).take(list(rows.values())).to_pylist() if rows else []
    return {row["id"]: row for row in spans}


def _label(span: Row) -> str:
    return f"{span['kind']} {clean(span['name'], 60)}, {_length(span)}"


def _length(span: Row) -> str:
    return "open" if span["end_ns"] is None else duration(span["end_ns"] - span["start_ns"])
