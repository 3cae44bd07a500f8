"""Calls of one workload: how many waited for SMs, who held these, and what slow ones consist of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import numpy as np

from gpuscope.analysis.part import Part, PartKind
from gpuscope.analysis.span_rows import OPEN
from gpuscope.analysis.trace_parts import TraceParts, trace_parts
from gpuscope.errors import MissingEvidence
from gpuscope.trace.model import Trace

FOR_SMS: tuple[PartKind, ...] = ("SMs held", "priority")
"""Parts that are waiting for SMs."""
_MOST = 4_000
"""Calls that are taken apart, at most: of more, every second, or third, and so on."""
_SLOW = 0.99


@dataclass(frozen=True)
class Calls:
    """What the finished calls of one workload consist of.

    Attributes
    ----------
    n, judged
        How many there are, and how many of them were taken apart.
    typical, slow
        The parts of the calls at the median and at the 99th percentile.
    slow_span
        The latter's row.
    waited
        How many of ``judged`` waited for SMs.
    holders
        Workload → how long it held SMs that these waited for, in ns; the longest first.
    slowest
        How many calls are from the 99th percentile on, all of which were taken apart, too.
    slowest_ns
        Kind of part → its time in these.
    """

    workload: str
    n: int
    judged: int
    typical: tuple[Part, ...]
    slow: tuple[Part, ...]
    slow_span: int
    waited: int
    holders: Mapping[str, int]
    slowest: int
    slowest_ns: Mapping[PartKind, int]


def calls_of(trace: Trace, workload: str) -> Calls | None:
    """Take the finished calls of a workload apart; ``None`` where the trace does not tell."""
    known = trace_parts(trace)
    rows = known.rows
    is_call = rows.having("kind", ("handle",)) & rows.having("category", (workload,))
    calls = np.flatnonzero(is_call & (rows.ends > rows.starts) & (rows.ends != OPEN))
    if not len(calls):
        return None
    took = rows.ends[calls] - rows.starts[calls]
    by_time = calls[np.argsort(took, kind="stable")]
    median, slow_at = (int(share * (len(calls) - 1)) for share in (0.5, _SLOW))
    marks = by_time[[median, slow_at]].tolist()
    slowest_calls = by_time[slow_at:].tolist()
    slowest, holders = Counter[PartKind](), Counter[str]()
    waited = 0
    try:
        typical, slow = (known.parts(mark) for mark in marks)
        chosen = calls[:: ceil(len(calls) / _MOST)].tolist()
        for call in chosen:
            parts = known.parts(call)
            held = [part for part in parts if part.kind in FOR_SMS]
            waited += bool(held)
            for part in held:
                holders[_holder(known, part)] += part.duration_ns
        for call in slowest_calls:
            for part in known.parts(call):
                slowest[part.kind] += part.duration_ns
    except MissingEvidence:
        return None
    ordered = dict(holders.most_common())
    return Calls(
        workload,
        n=len(calls),
        judged=len(chosen),
        typical=typical,
        slow=slow,
        slow_span=int(rows.ids[marks[1]]),
        waited=waited,
        holders=ordered,
        slowest=len(slowest_calls),
        slowest_ns=slowest,
    )


def _holder(known: TraceParts, part: Part) -> str:
    """Return the workload that held SMs."""
    if part.span is None:
        return ""
    row = known.rows.position(part.span)
    return known.rows.text("category", row) or known.rows.text("name", row) or ""
