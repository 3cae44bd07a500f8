"""Checks the parts of every span of a trace against its rows and edges alone."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from typing import get_args

import gpuscope as gs
from gpuscope.analysis.part import PartKind
from gpuscope.errors import MissingEvidence

WORK = ("kernel", "memcpy", "memset", "host function", "graph")
HOST = ("api", "sync", "event", "handle", "range", "mark")
UNCAUSED = ("host", "not looking", "request queue", "unexplained")
"""Kinds of parts that may have no row as their cause."""
OF_CALL = ("launch call", "on the way")
"""Kinds of parts whose cause is a launch call, whose row a trace may lack."""


class Expected:
    """What the rows and edges of a trace say of the interval of each span's parts."""

    def __init__(self, trace):
        self.rows = {row["id"]: row for row in trace.spans.to_pylist()}
        self.callers = defaultdict(list)
        self.launched = defaultdict(list)
        for edge in trace.edges.to_pylist():
            if edge["kind"] == "launch" and {edge["from"], edge["to"]} <= self.rows.keys():
                self.callers[edge["to"]].append(self.rows[edge["from"]])
                self.launched[edge["from"]].append(edge["to"])
        self.workloads = (trace.metadata.experiment or {}).get("workloads", {})
        self.inside = defaultdict(list)
        self.host_ends = defaultdict(list)
        for row in self.rows.values():
            self.inside[row["parent"]].append(row["id"])
            if row["kind"] in HOST and row["end_ns"] is not None:
                for thread in {row["thread"], None}:
                    self.host_ends[thread].append((row["end_ns"], row["id"]))
        windows = trace.metadata.windows_ns
        first_ns = min((row["start_ns"] for row in self.rows.values()), default=0)
        self.zero_ns = windows[0][0] if windows else first_ns

    def interval(self, row):
        """Return when the parts begin and end; ``None`` for a begin that rows do not tell."""
        start, end, kind = row["start_ns"], row["end_ns"], row["kind"]
        if kind == "block" and row["parent"] is not None:
            return self.interval(self.rows[row["parent"]])
        if kind in ("handle", "sync") or is_request(row):
            return start, end
        if kind in WORK:
            begin = None
            if row["queued_ns"] is not None:
                calls = [call["start_ns"] for call in self.callers[row["id"]]]
                begin = min(start, max(calls) if calls else row["queued_ns"])
            return begin, start if end is None else end
        before = [
            end_ns for end_ns, span in self.host_ends[row["thread"]]
            if end_ns <= start and span != row["id"]
        ]  # fmt: skip
        begin = max(before) if before else min(self.zero_ns, start)
        return begin, start if end is None else end

    def may_lack_evidence(self, row):
        """Whether the trace need not tell what a span's time consists of."""
        if row["kind"] in WORK:
            return row["queued_ns"] is None
        if row["kind"] == "handle":
            return row["end_ns"] is None or not self.work_of(row["id"])
        if row["kind"] == "block":
            around = self.rows.get(row["parent"])
            return around is None or around["kind"] == "block" or self.may_lack_evidence(around)
        if is_request(row):
            handles = [one for one in self.rows.values() if one["kind"] == "handle"]
            unlinked = any(one["end_ns"] is not None and not self.work_of(one["id"])
                           for one in handles)  # fmt: skip
            return unlinked or row["category"] not in self.workloads
        return row["kind"] not in HOST or (row["kind"] == "sync" and row["end_ns"] is None)

    def work_of(self, span):
        """Return the work that the calls inside a row launched."""
        inside, seen, work = [span], {span}, []
        while inside:
            work += self.launched[call := inside.pop()]
            below = set(self.inside[call]) - seen
            seen |= below
            inside += below
        return work


def is_request(row):
    if row["kind"] != "range" or row["end_ns"] is None:
        return False
    try:
        payload = json.loads(row["payload"] or "")
    except ValueError:
        return False
    return isinstance(payload, dict) and bool(payload.get("tokens_ns"))


def check_every_span(trace):
    """Check the parts of all spans; returns the parts of those that have some, by their ids.

    They begin and end where rows and edges say, follow one another, last at least 1 ns each, and
    so add up to the span to the ns. Their causes are rows of the trace.
    """
    expected, told = Expected(trace), {}
    for span, row in expected.rows.items():
        try:
            parts = gs.analysis.parts(trace, span)
        except MissingEvidence:
            assert expected.may_lack_evidence(row), row
            continue
        told[span] = parts
        begin, end = expected.interval(row)
        if not parts:
            assert begin in (end, None), row
            continue
        assert parts[-1].end_ns == end, row
        assert parts[0].start_ns == begin or (begin is None and parts[0].start_ns <= end), row
        assert sum(part.duration_ns for part in parts) == end - parts[0].start_ns
        assert all(part.duration_ns > 0 for part in parts), parts
        assert all(one.end_ns == then.start_ns for one, then in itertools.pairwise(parts)), parts
        for part in parts:
            assert part.kind in get_args(PartKind)
            is_uncaused = part.kind in UNCAUSED or (
                part.kind in OF_CALL and not trace.metadata.complete
            )
            assert part.span in expected.rows or (part.span is None and is_uncaused), part
        if row["kind"] in WORK and row["end_ns"] is not None and row["end_ns"] > row["start_ns"]:
            ran = [part for part in parts if part.kind in ("collective", "running")]
            assert ran[0].start_ns == row["start_ns"], parts
    return told


def kinds_told(trace, told):
    """Return how many spans of each kind have parts, and how many parts of each kind there are."""
    kind = dict(zip(trace.array("id").tolist(), trace.texts("kind"), strict=True))
    spans = Counter(kind[span] for span in told)
    return spans, Counter(part.kind for parts in told.values() for part in parts)


def calls_of_requests(trace, told):
    """Return of each request, in their order, how many calls of each workload ran for it."""
    rows = {row["id"]: row for row in trace.spans.to_pylist()}
    requests = sorted(
        (row for row in rows.values() if is_request(row)),
        key=lambda row: int(row["name"].split()[1]),
    )
    calls = []
    for row in requests:
        ran = {part.span for part in told[row["id"]] if part.kind == "running"}
        calls.append(Counter(rows[span]["category"] for span in ran))
    return calls
