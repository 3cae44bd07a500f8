"""Requests: time to the first token, time between tokens, and how many meet their SLO."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np

from gpuscope._checks import MappingOf, door
from gpuscope._types import Array, Ints
from gpuscope.analysis.result import P99_NEEDS, Result, Row, about, named, row_of
from gpuscope.errors import InvalidArgument, MissingEvidence
from gpuscope.trace.columns import is_open
from gpuscope.trace.facts import RequestFacts
from gpuscope.trace.model import Trace

SLO = ("ttft_ms", "tbt_ms")
"""What an SLO may state."""


@dataclass(frozen=True)
class Served:
    """The requests of one workload, ns; p99 is ``None`` below 1,000 samples.

    Attributes
    ----------
    n
        Requests that have their last token.
    ttft_p50_ns
        Of the time to first token: from the arrival to when the first token was seen.
    tbt_n, tbt_p50_ns
        Of the time between tokens: of successive tokens of one request. ``None`` where every
        request has one token.
    requests_per_s
        n over the time from the first arrival to the last token, summed over the rounds.
    goodput_per_s
        The same of the requests that meet the SLO; ``None`` without one.
    met
        Share of the requests that meet it.
    rounds
        Of each round, what counts: requests a second that meet the SLO, or without one, all.
    """

    workload: Annotated[str, "workload"]
    n: Annotated[int, "requests"]
    ttft_p50_ns: Annotated[float | None, "TTFT p50 (ms)"]
    ttft_p90_ns: Annotated[float | None, "TTFT p90 (ms)"]
    ttft_p99_ns: Annotated[float | None, "TTFT p99 (ms)"]
    tbt_n: Annotated[int, "TBT n"]
    tbt_p50_ns: Annotated[float | None, "TBT p50 (ms)"]
    tbt_p90_ns: Annotated[float | None, "TBT p90 (ms)"]
    tbt_p99_ns: Annotated[float | None, "TBT p99 (ms)"]
    requests_per_s: Annotated[float, "requests/s"]
    goodput_per_s: Annotated[float | None, "goodput/s"]
    met: Annotated[float | None, "met the SLO"]
    rounds: tuple[float, ...]


@dataclass(frozen=True)
class RequestsResult(Result):
    """Requests by workload."""

    workloads: tuple[Served, ...]

    def __getitem__(self, name: str) -> Served:
        return named(self.workloads, name, "workload of requests", "workload")

    def _rows(self) -> list[Row]:
        """One row per workload."""
        return [
            row_of(workload)
            | {"least of a round": min(workload.rounds), "most": max(workload.rounds)}
            for workload in self.workloads
        ]

    @property
    def definition(self) -> str:
        """What the times and the goodput are."""
        return (
            "TTFT: arrival to first token; TBT: between successive tokens of a request; goodput: "
            f"requests/s that meet the SLO; p99 needs n ≥ {P99_NEEDS}"
        )


@door(trace=Trace, slo=(MappingOf(float), None))
def requests(trace: Trace, slo: Mapping[str, float] | None = None) -> RequestsResult:
    """Return how requests were served: latencies, their rate, and the rate that meets an SLO.

    Parameters
    ----------
    slo
        ``ttft_ms``, ``tbt_ms``, or both: a request meets them if its time to first token, and
        the mean of its times between tokens, are no longer. Default: those of the experiment.

    Raises
    ------
    MissingEvidence
        The trace holds no finished request.
    InvalidArgument
        ``slo`` states something else.

    Examples
    --------
    >>> import gpuscope as gs
    >>> run = gs.experiments.predict({
    ...     "name": "serving", "alone_repeats": 0, "streams": {"a": {}, "b": {}},
    ...     "workloads": {
    ...         "prefill": {"kind": "spin", "duration_us": 900, "stream": "a"},
    ...         "decode": {"kind": "spin", "duration_us": 100, "stream": "b"},
    ...         "chat": {
    ...             "kind": "requests", "prefill": "prefill", "decode": "decode", "repeats": 20,
    ...             "arrival": "poisson", "rate_hz": 500, "output_tokens": 5,
    ...             "slo": {"ttft_ms": 3},
    ...         },
    ...     },
    ... })
    >>> seen = gs.analysis.requests(run["default"])["chat"]
    >>> seen.n, seen.tbt_n, seen.goodput_per_s <= seen.requests_per_s
    (20, 80, True)
    """
    if unknown := set(slo or ()).difference(SLO):
        raise InvalidArgument(f"slo states {min(unknown)!r}; it may state {' and '.join(SLO)}")
    served = by_workload(trace)
    if not served:
        raise MissingEvidence(
            "the trace holds no finished request: run an experiment with a workload of kind "
            "'requests'"
        )
    windows = np.array([low for low, _ in trace.metadata.windows_ns], np.int64)
    slos = {name: slo_of(trace, name) if slo is None else slo for name in served}
    every_served = (_served(name, windows, served[name], slos[name]) for name in served)
    return RequestsResult(tuple(every_served), **about(trace))


class ServedRequest(NamedTuple):
    """A request that was served: its row's id, and when it arrived and had its tokens after that.

    Attributes
    ----------
    arrival_ns, tokens_ns
        On the trace's clock, and since the arrival.
    """

    span: int
    arrival_ns: int
    tokens_ns: Ints

    def met(self, slo: Mapping[str, float]) -> bool:
        """Whether it meets an SLO."""
        between = np.diff(self.tokens_ns)
        return bool(
            self.tokens_ns[0] <= 1e6 * slo.get("ttft_ms", math.inf)
            and (not len(between) or between.mean() <= 1e6 * slo.get("tbt_ms", math.inf))
        )


def by_workload(trace: Trace) -> dict[str, list[ServedRequest]]:
    """Return the requests of each workload that have their last token, in the trace's order."""
    every = trace.where(kind="range")
    served: dict[str, list[ServedRequest]] = {}
    rows = every.where(~is_open(every)).spans.select(("id", "category", "start_ns", "payload"))
    for row in rows.to_pylist():
        facts = RequestFacts.of(row["payload"])
        if facts is not None and facts.tokens_ns:
            request = ServedRequest(row["id"], row["start_ns"], np.array(facts.tokens_ns, np.int64))
            served.setdefault(row["category"] or "", []).append(request)
    return served


def slo_of(trace: Trace, workload: str) -> dict[str, float]:
    """Return the SLO of a workload as a trace describes it, which may be anybody's."""
    described = (trace.metadata.experiment or {}).get("workloads", {})
    stated = described.get(workload, {}).get("slo")
    stated = stated if isinstance(stated, dict) else {}
    return {what: stated[what] for what in SLO if isinstance(stated.get(what), int | float)}


def _served(
    workload: str, windows: Array, every: Sequence[ServedRequest], slo: Mapping[str, float]
) -> Served:
    arrival = np.array([request.arrival_ns for request in every], np.int64)
    ttft = np.array([request.tokens_ns[0] for request in every])
    tbt = np.concatenate([np.diff(request.tokens_ns) for request in every])
    met = np.array([request.met(slo) for request in every])
    last = arrival + np.array([request.tokens_ns[-1] for request in every])
    number = np.searchsorted(windows, arrival, "right")
    rounds = [number == round_number for round_number in np.unique(number)]
    seconds = [
        max(1, int(last[in_round].max() - arrival[in_round].min())) / 1e9 for in_round in rounds
    ]
    return Served(
        workload,
        len(every),
        *_quantiles(ttft),
        len(tbt),
        *_quantiles(tbt),
        requests_per_s=len(every) / sum(seconds),
        goodput_per_s=float(met.sum()) / sum(seconds) if slo else None,
        met=float(met.mean()) if slo else None,
        rounds=tuple(
            float(met[in_round].sum()) / took
            for in_round, took in zip(rounds, seconds, strict=True)
        ),
    )


def _quantiles(times: Array) -> tuple[float | None, float | None, float | None]:
    if not len(times):
        return None, None, None
    p50, p90, p99 = np.quantile(times, (0.5, 0.9, 0.99)).tolist()
    return p50, p90, p99 if len(times) >= P99_NEEDS else None
