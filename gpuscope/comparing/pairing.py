"""Which calls and requests of two traces stand together: those of one rank, round and index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from gpuscope._types import Ints
from gpuscope.analysis.intervals import by_workload
from gpuscope.analysis.requests_analysis import ServedRequest
from gpuscope.analysis.requests_analysis import by_workload as requests_of
from gpuscope.analysis.result import P99_NEEDS
from gpuscope.trace.columns import is_open
from gpuscope.trace.model import Trace

Both: TypeAlias = tuple[Trace, Trace]


class Pairs(NamedTuple):
    """Calls or requests of one workload in two traces: those of one place stand together.

    Attributes
    ----------
    first, second
        Ids of the rows in either trace.
    first_ns, second_ns
        How long each took.
    unpaired
        Calls without another, or whose end was not seen.
    """

    first: Ints
    second: Ints
    first_ns: Ints
    second_ns: Ints
    unpaired: int

    @property
    def slow(self) -> tuple[str, tuple[int, int]]:
        """The highest percentile that is stated, and which call of either took about that.

        Not of one pair: what is slow in one run is as a rule faster in another of the same.
        """
        mark, share = ("p99", 0.99) if len(self.first) >= P99_NEEDS else ("p90", 0.9)
        first, second = (
            int(np.abs(took_ns - np.quantile(took_ns, share)).argmin())
            for took_ns in (self.first_ns, self.second_ns)
        )
        return mark, (first, second)


def _places(trace: Trace) -> Ints:
    """Row → a number of its rank, round and index among these, the same in another trace."""
    starts, process = trace.array("start_ns"), trace.array("process", fill=-1)
    windows = np.array([low for low, _ in trace.metadata.windows_ns], np.int64)
    _, rank = np.unique(process, return_inverse=True)
    turn = rank * (len(windows) + 1) + np.searchsorted(windows, starts, "right")
    order = np.lexsort((starts, turn))
    first = np.searchsorted(turn[order], turn[order], "left")
    places = np.empty(len(trace), np.int64)
    places[order] = (turn[order] << 40) + np.arange(len(trace)) - first
    return places


def paired(first: Trace, second: Trace) -> Pairs:
    """Pair the rows of two traces that hold those of one workload only."""
    _, left, right = np.intersect1d(_places(first), _places(second), return_indices=True)
    ended = ~(is_open(first)[left] | is_open(second)[right])
    left, right = left[ended], right[ended]
    ids, took_ns = list[Ints](), list[Ints]()
    for trace, rows in ((first, left), (second, right)):
        ids.append(trace.array("id")[rows])
        took_ns.append((trace.array("end_ns", fill=0) - trace.array("start_ns"))[rows])
    unpaired = len(first) + len(second) - 2 * len(left)
    return Pairs(ids[0], ids[1], took_ns[0], took_ns[1], unpaired)


def paired_calls(both: Both) -> dict[str, Pairs]:
    """Return the calls of each workload that two traces have, in pairs by rank, round and index."""
    of = []
    for trace in both:
        calls = trace.where(kind="handle")
        groups = by_workload(calls)
        of.append({name: calls.where(groups.of_label(name)) for name in groups.labels})
    pairs_of = {name: paired(of[0][name], of[1][name]) for name in of[0] if name in of[1]}
    return {name: pairs for name, pairs in pairs_of.items() if len(pairs.first)}


def paired_requests(both: Both) -> dict[str, Pairs]:
    """Return the requests of each workload that two traces have, in pairs as calls are."""
    served = [requests_of(trace) for trace in both]
    pairs_of = {
        name: paired(
            *(rows_of_requests(trace, of[name]) for trace, of in zip(both, served, strict=True))
        )
        for name in served[0]
        if name in served[1]
    }
    return {name: pairs for name, pairs in pairs_of.items() if len(pairs.first)}


def rows_of_requests(trace: Trace, requests: Sequence[ServedRequest]) -> Trace:
    """Return the rows of requests."""
    return trace.where(np.isin(trace.array("id"), [request.span for request in requests]))
