"""Findings of calls that waited for SMs: of which workload, how long, and who held the SMs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuscope.analysis.calls_analysis import SmWaits, waits_of
from gpuscope.analysis.latency_analysis import durations_ns
from gpuscope.analysis.queue_analysis import described_workloads
from gpuscope.telling.finding import Finding, Quantity, Severity, counts
from gpuscope.telling.of_trace import shown
from gpuscope.telling.rules import names_listed
from gpuscope.trace.model import Trace

WAITS = 0.05
"""Share of the time of calls that they wait for SMs from which on something is to be done."""
_LEAST_WAITS = 0.001
"""Below that nothing is told."""
_WORKLOADS = 8
"""Workloads whose calls are taken apart, those first whose calls took longest in all."""
_NAMED = 3
"""Holders of SMs that a sentence names."""


def of_waits(trace: Trace) -> Iterator[Finding]:
    """Find workloads whose calls waited for SMs that others held, those first that waited longest.

    Calls of a background are not judged: nobody waits for each of these.
    """
    calls, took_ns, _ = durations_ns(trace)
    _, background = described_workloads(trace)
    total_ns = dict(zip(calls.labels, calls.sums(took_ns).tolist(), strict=True))
    timed = sorted(total_ns.keys() - set(background), key=lambda name: (-total_ns[name], name))
    taken = [*filter(None, (waits_of(trace, name) for name in timed[:_WORKLOADS]))]
    for waits in sorted(taken, key=lambda waits: -waits.for_others):
        if waits.for_others >= _LEAST_WAITS:
            yield _of_waits(trace, waits)


def _of_waits(trace: Trace, waits: SmWaits) -> Finding:
    values = (
        Quantity("each", waits.waited_ns / waits.judged, "ns"),
        Quantity("share", waits.waited_ns / waits.judged_ns, "%"),
        *counts(waited=waits.waited, judged=waits.judged),
        *(counts(n=waits.n) if waits.judged < waits.n else ()),
    )
    subject = {"workload": waits.workload, **holding(waits.holders)}
    severity: Severity = "warning" if waits.for_others >= WAITS else "note"
    return Finding("waits", severity, subject, values, shown(trace, waits.spans))


def holding(holders: Iterable[str]) -> dict[str, str]:
    """Return who holds what a sentence is about: one ``holder``, or several ``holders``.

    An empty name stands for who is not known; of more than a few the others are counted.
    """
    several = [*holders]
    names = [name for name in several if name]
    if len(names) > _NAMED:
        names = [*names[:_NAMED], f"{len(names) - _NAMED} more"]
    if names and "" in several:
        names.append("others")
    if len(names) < 2:
        return {"holder": names[0]} if names and names[0] != "others" else {}
    return {"holders": names_listed("holders", names)}
