"""Calls of one workload: how many waited for SMs, who held these, and what slow ones consist of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import numpy as np

from gpuscope._types import Array
from gpuscope.analysis.part import Part, PartKind
from gpuscope.analysis.span_rows import OPEN
from gpuscope.analysis.trace_parts import TraceParts, trace_parts
from gpuscope.errors import MissingEvidence
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import kernel_name

FOR_SMS: tuple[PartKind, ...] = ("SMs held", "priority")
"""Parts that are waiting for SMs."""
_MOST = 4_000
"""Calls that are taken apart, at most: of more, every second, or third, and so on."""
_SLOW = 0.99
_SPANS = 8
"""Calls that show how long a workload waited, at most."""


@dataclass(frozen=True)
class SmWaits:
    """How the finished calls of one workload waited for SMs.

    Attributes
    ----------
    n, judged
        How many there are, and how many of them were taken apart.
    judged_ns
        The time of the latter.
    waited
        How many of ``judged`` waited for SMs.
    holders
        Workload → how long it held SMs that these waited for, in ns; the longest first.
    spans
        The rows of those that waited longest, the longest first.
    """

    workload: str
    n: int
    judged: int
    judged_ns: int
    waited: int
    holders: Mapping[str, int]
    spans: tuple[int, ...]

    @property
    def waited_ns(self) -> int:
        """How long the calls taken apart waited."""
        return sum(self.holders.values())

    @property
    def for_others(self) -> float:
        """Which share of their time they waited for SMs that other workloads held."""
        return (self.waited_ns - self.holders.get(self.workload, 0)) / self.judged_ns


@dataclass(frozen=True)
class Calls(SmWaits):
    """What the finished calls of one workload consist of.

    Attributes
    ----------
    typical, slow
        The parts of the calls at the median and at the 99th percentile.
    slow_span
        The latter's row.
    slowest
        How many calls are from the 99th percentile on, all of which were taken apart, too.
    slowest_ns
        Kind of part → its time in these.
    """

    typical: tuple[Part, ...]
    slow: tuple[Part, ...]
    slow_span: int
    slowest: int
    slowest_ns: Mapping[PartKind, int]


def waits_of(trace: Trace, workload: str) -> SmWaits | None:
    """Sum how calls of a workload waited for SMs; ``None`` where the trace does not tell."""
    breakdown = trace_parts(trace)
    rows = breakdown.rows
    calls = _finished(breakdown, workload)
    if not len(calls):
        return None
    chosen = calls[:: ceil(len(calls) / _MOST)]
    holders = Counter[str]()
    waited_ns: dict[int, int] = {}
    try:
        for call in chosen.tolist():
            waits = [part for part in breakdown.parts(call) if part.kind in FOR_SMS]
            for part in waits:
                holders[_holder(breakdown, part)] += part.duration_ns
            if waits:
                waited_ns[call] = sum(part.duration_ns for part in waits)
    except MissingEvidence:
        return None
    longest = sorted(waited_ns, key=lambda call: -waited_ns[call])[:_SPANS]
    return SmWaits(
        workload,
        n=len(calls),
        judged=len(chosen),
        judged_ns=int((rows.ends[chosen] - rows.starts[chosen]).sum()),
        waited=len(waited_ns),
        holders=dict(holders.most_common()),
        spans=tuple(rows.ids[longest].tolist()),
    )


def calls_of(trace: Trace, workload: str) -> Calls | None:
    """Take the finished calls of a workload apart; ``None`` where the trace does not tell."""
    waits = waits_of(trace, workload)
    if waits is None:
        return None
    breakdown = trace_parts(trace)
    rows = breakdown.rows
    calls = _finished(breakdown, workload)
    took = rows.ends[calls] - rows.starts[calls]
    by_time = calls[np.argsort(took, kind="stable")]
    median, slow_at = (int(share * (len(calls) - 1)) for share in (0.5, _SLOW))
    marks = by_time[[median, slow_at]].tolist()
    slowest_calls = by_time[slow_at:].tolist()
    slowest = Counter[PartKind]()
    try:
        typical, slow = (breakdown.parts(mark) for mark in marks)
        for call in slowest_calls:
            for part in breakdown.parts(call):
                slowest[part.kind] += part.duration_ns
    except MissingEvidence:
        return None
    return Calls(
        **vars(waits),
        typical=typical,
        slow=slow,
        slow_span=int(rows.ids[marks[1]]),
        slowest=len(slowest_calls),
        slowest_ns=slowest,
    )


def _finished(breakdown: TraceParts, workload: str) -> Array:
    """Return the positions of the calls of a workload whose end was seen."""
    rows = breakdown.rows
    is_call = rows.having("kind", ("handle",)) & rows.having("category", (workload,))
    return np.flatnonzero(is_call & (rows.ends > rows.starts) & (rows.ends != OPEN))


def _holder(breakdown: TraceParts, part: Part) -> str:
    """Return the workload that held SMs; of none the kernel, by its plain name."""
    if part.span is None:
        return ""
    row = breakdown.rows.position(part.span)
    return breakdown.rows.text("category", row) or kernel_name(
        breakdown.rows.text("name", row) or ""
    )
