"""Concurrency: how many tracks are busy at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuscope._checks import door
from gpuscope.analysis.intervals import Busy, Groups, grouped, kernels
from gpuscope.analysis.result import Result, Row
from gpuscope.trace.model import Trace


@dataclass(frozen=True)
class ConcurrencyResult(Result):
    """How many groups were busy, over time.

    Attributes
    ----------
    mean
        Time average of the number of busy groups, over the time when any is.
    time_ns
        Number of busy groups → ns.
    """

    by: str
    mean: float
    time_ns: dict[int, int]
    provenance: str
    weight = "ms"

    def _rows(self) -> list[Row]:
        """One row per number of busy groups."""
        total = sum(self.time_ns.values())
        return [
            {f"busy {self.by}s": count, "ms": ns / 1e6, "share of busy time": ns / total}
            for count, ns in sorted(self.time_ns.items())
        ]

    @property
    def note(self) -> str:
        """Definition and provenance in one line."""
        return f"on average {self.mean:.3f} {self.by}s busy while any is. {self.provenance}"


@door(trace=Trace, by=str)
def concurrency(trace: Trace, *, by: str = "stream") -> ConcurrencyResult:
    """Count how many groups of kernels are busy at once.

    Parameters
    ----------
    by
        ``"partition"``, ``"stream"`` or ``"workload"``.

    Raises
    ------
    MissingEvidence
        The trace holds no finished kernel.

    Examples
    --------
    >>> import gpuscope as gs
    >>> from gpuscope.trace import Trace
    >>> trace = Trace.from_columns({
    ...     "id": [1, 2], "kind": ["kernel", "kernel"], "name": ["k", "k"], "stream": [7, 8],
    ...     "start_ns": [0, 60], "end_ns": [100, 160], "source": ["cupti", "cupti"],
    ... })
    >>> gs.analysis.concurrency(trace).time_ns
    {1: 120, 2: 40}
    """
    found = kernels(trace)
    busy = Busy.of(grouped(found, by), found.array("start_ns"), found.array("end_ns"))
    times = np.r_[busy.start, busy.end]
    order = np.argsort(times, kind="stable")
    level = np.cumsum(np.where(order < len(busy.start), 1, -1))[:-1]
    used, code = np.unique(level, return_inverse=True)
    totals = Groups(code, used.tolist()).sums(np.diff(times[order]))
    time_ns = {
        count: ns
        for count, ns in zip(used.tolist(), totals.tolist(), strict=True)
        if count > 0 and ns > 0
    }
    busy_ns = sum(time_ns.values())
    mean = sum(count * ns for count, ns in time_ns.items()) / busy_ns if busy_ns else 0.0
    return ConcurrencyResult(
        by, mean, time_ns, trace.provenance, incomplete=trace.metadata.incomplete
    )
