"""Overlap and gain: what ran at the same time, and what that was worth."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope.analysis.intervals import (
    Intervals,
    grouped,
    intersection_ns,
    kernels,
    length,
    makespan_ns,
    union,
)
from gpuscope.analysis.result import Result
from gpuscope.trace.model import Trace


@dataclass(frozen=True)
class PairOverlap:
    """How much two groups' kernels ran at the same time.

    Attributes
    ----------
    tight_fraction
        ``fraction`` with every span as short as the uncertainty it states allows; ``None`` where
        the source states none. Bracketing events count waiting for SMs as running.
    """

    a: str
    b: str
    busy_a_ns: int
    busy_b_ns: int
    overlap_ns: int
    tight_fraction: float | None = None

    @property
    def fraction(self) -> float:
        """``|busy(a) ∩ busy(b)| / min(|busy(a)|, |busy(b)|)``."""
        shorter = min(self.busy_a_ns, self.busy_b_ns)
        return self.overlap_ns / shorter if shorter else 0.0


@dataclass(frozen=True)
class OverlapResult(Result):
    """Overlap of each pair of groups, and the gain where solo times are known.

    Attributes
    ----------
    by
        What the groups are.
    gain
        Sum of the solo busy times / makespan, or ``None`` where a solo time is unknown.
    makespan_ns
        First kernel start to last kernel end, in the recording windows.
    """

    by: str
    pairs: tuple[PairOverlap, ...]
    gain: float | None
    makespan_ns: int
    provenance: str

    def __getitem__(self, names: tuple[str, str]) -> float:
        for pair in self.pairs:
            if {pair.a, pair.b} == set(names):
                return pair.fraction
        raise KeyError(f"no pair {names}; there are {[(pair.a, pair.b) for pair in self.pairs]}")

    def _rows(self) -> list[dict[str, Any]]:
        """One row per pair."""
        return [
            {
                "a": pair.a,
                "b": pair.b,
                "busy a (ms)": pair.busy_a_ns / 1e6,
                "busy b (ms)": pair.busy_b_ns / 1e6,
                "overlap (ms)": pair.overlap_ns / 1e6,
                "overlap": pair.fraction,
                "overlap (tight)": pair.tight_fraction,
                "gain": self.gain,
            }
            for pair in self.pairs
        ]

    @property
    def note(self) -> str:
        """Definition and provenance in one line."""
        gain = "unknown: no solo times" if self.gain is None else f"{self.gain:.3f}"
        return f"overlap by {self.by}; gain {gain}. {self.provenance}"


def overlap(trace: Trace, *, by: str = "stream") -> OverlapResult:
    """Say which groups of kernels ran at the same time.

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
    >>> trace = gs.Trace.from_columns({
    ...     "id": [1, 2], "kind": ["kernel", "kernel"], "name": ["k", "k"], "stream": [7, 8],
    ...     "start_ns": [0, 60], "end_ns": [100, 160], "source": ["cupti", "cupti"],
    ... })
    >>> gs.analysis.overlap(trace)["stream 7", "stream 8"]
    0.4
    """
    found = kernels(trace)
    starts, ends = found.array("start_ns"), found.array("end_ns")
    groups = grouped(found, by)
    busy = {label: union(starts[mask], ends[mask]) for label, mask in groups.items()}
    tight = _shrunk(found, starts, ends, groups)
    pairs = tuple(
        PairOverlap(
            a,
            b,
            length(busy[a]),
            length(busy[b]),
            intersection_ns(busy[a], busy[b]),
            _fraction(tight[a], tight[b]) if tight else None,
        )
        for a, b in itertools.combinations(sorted(busy), 2)
    )
    makespan = makespan_ns(found, starts, ends)
    return OverlapResult(
        by, pairs, _gain(found, makespan), makespan, trace.provenance,
        incomplete=trace.metadata.incomplete,
    )  # fmt: skip


def _gain(found: Trace, makespan: int) -> float | None:
    solo_ns = 0.0
    for label, mask in grouped(found, "workload").items():
        alone = found.metadata.solo.get(label)
        if alone is None or "kernel_ns" not in alone:
            return None
        solo_ns += float(alone["kernel_ns"]) * int(np.count_nonzero(mask))
    return solo_ns / makespan if makespan else None


def _shrunk(
    found: Trace, starts: Intervals, ends: Intervals, groups: dict[str, np.ndarray[Any, Any]]
) -> dict[str, Intervals] | None:
    """Busy time of each group with spans shrunk by their uncertainties; None without any."""
    late = found.array("start_uncertainty_ns", fill=0)
    early = found.array("end_uncertainty_ns", fill=0)
    if not late.any() and not early.any():
        return None
    first, last = starts + late, np.maximum(starts + late, ends - early)
    return {label: union(first[mask], last[mask]) for label, mask in groups.items()}


def _fraction(one: Intervals, other: Intervals) -> float:
    shorter = min(length(one), length(other))
    return intersection_ns(one, other) / shorter if shorter else 0.0
