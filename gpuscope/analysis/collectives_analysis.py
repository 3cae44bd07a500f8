"""Collectives of several ranks: their time, the skew of the ranks, and the bandwidth reached."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import numpy as np

from gpuscope._checks import door
from gpuscope.analysis.result import Result, about, named
from gpuscope.errors import MissingEvidence
from gpuscope.trace.collectives import Parts, RankPart, matched, parts
from gpuscope.trace.facts import CollectiveFacts, CollectiveKind
from gpuscope.trace.model import Trace

_Key: TypeAlias = "tuple[str, CollectiveKind, int, int, int]"
"""Group, kind, bytes, ranks and SMs."""


@dataclass(frozen=True)
class Collective:
    """One collective, as all ranks took part in it.

    Attributes
    ----------
    last_ns
        When the last rank's kernel began.
    time_ns
        The least of the ranks' kernel durations: the last to arrive waits for nobody.
    skew_ns
        From the first rank's arrival to the last one's.
    waits_ns
        Rank → how long its kernel ran before the last rank's began.
    """

    group: str
    sequence: int
    last_ns: int
    time_ns: int
    skew_ns: int
    waits_ns: Mapping[int, int]


@dataclass(frozen=True)
class CollectiveGroup:
    """The collectives of one group, kind, size and number of SMs. Times are medians over them.

    Attributes
    ----------
    nbytes
        The size as nccl-tests states it; ``None`` where no handle told it.
    sm_count
        SMs of the partition, or of the GPU: the fewest of a rank; ``None`` where that is unknown.
    n
        How many collectives.
    time_ns
        Of each, the least of the ranks' kernel durations.
    skew_ns
        From the first rank's arrival to the last one's.
    algorithm_gb_per_s, bus_gb_per_s
        ``nbytes`` over ``time_ns``, in GB/s; and that times the bytes that cross a rank's link
        for each: 2(n − 1)/n of an all-reduce, (n − 1)/n of the others, n ranks.
    most_waited
        The rank that waited longest for the others, on average; and how long it did. Where ranks
        wait in turn, the median wait of each would be near 0.
    """

    group: Annotated[str, "group"]
    kind: Annotated[CollectiveKind, "kind"]
    nbytes: Annotated[int | None, "bytes"]
    ranks: Annotated[int, "ranks"]
    sm_count: Annotated[int | None, "SMs"]
    n: Annotated[int, "n"]
    time_ns: Annotated[float, "time p50 (µs)"]
    skew_ns: Annotated[float, "skew p50 (µs)"]
    skew_max_ns: Annotated[float, "skew max (µs)"]
    algorithm_gb_per_s: Annotated[float | None, "algorithm GB/s"]
    bus_gb_per_s: Annotated[float | None, "bus GB/s"]
    most_waited: Annotated[int, "rank that waited most"]
    waited_ns: Annotated[float, "its mean wait (µs)"]


@dataclass(frozen=True)
class CollectivesResult(Result):
    """Collectives by group, kind, size and number of SMs.

    Attributes
    ----------
    each
        Every collective.
    unmatched
        Kernels of collectives that were found on too few ranks.
    error_ns
        How far times of different ranks can be off against each other: so far can the skew.
    """

    groups: tuple[CollectiveGroup, ...]
    each: tuple[Collective, ...]
    unmatched: int
    error_ns: int | None
    entries = "groups"

    def __getitem__(self, group: str) -> CollectiveGroup:
        return named(self.groups, group, "group of collectives", "group")

    @property
    def definition(self) -> str:
        """What time, skew and bandwidth are, and how sure the skew is."""
        lost = f"; {self.unmatched:,} kernels are on too few ranks" if self.unmatched else ""
        error = "" if self.error_ns is None else f" ± {self.error_ns / 1e3:.3g} µs"
        return (
            "time: the least of the ranks' kernel durations; skew: first to last arrival"
            f"{error}; bus: bytes that cross a rank's link, as nccl-tests counts them{lost}"
        )


@door(trace=Trace)
def collectives(trace: Trace) -> CollectivesResult:
    """Return how long collectives took, how far apart ranks arrived, and the bandwidth reached.

    Raises
    ------
    MissingEvidence
        The trace holds no collective of two ranks or more.

    Notes
    -----
    Bandwidths are those of nccl-tests (`doc/PERFORMANCE.md
    <https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md>`_), but of the least
    duration over the ranks: a rank that arrives early only waits.

    Examples
    --------
    >>> import gpuscope as gs
    >>> run = gs.run({
    ...     "name": "two ranks", "devices": ["sim:h200", "sim:h200"], "alone_repeats": 0,
    ...     "streams": {"s": {}}, "workloads": {
    ...         "reduce": {"kind": "all_reduce", "nbytes": "128 MiB", "stream": "s", "repeats": 5},
    ...     },
    ... })
    >>> found = gs.analysis.collectives(run["default"])["reduce"]
    >>> found.ranks, found.n, round(found.bus_gb_per_s)
    (2, 5, 276)
    """
    rank_of = {facts.process: facts.rank for facts in trace.metadata.ranks}
    every_part, _ = parts(trace) if len(rank_of) > 1 else ([], 0)
    by_rank: dict[int, list[RankPart]] = defaultdict(list)
    for part in every_part:
        if part.process in rank_of:
            by_rank[rank_of[part.process]].append(part)
    clocks = {facts.rank: (0, -(-(facts.error_ns or 0) // 2)) for facts in trace.metadata.ranks}
    matching = matched(by_rank, dict.fromkeys(by_rank, False), clocks)
    if not matching.sets:
        raise MissingEvidence(
            "the trace holds no collective of two ranks or more: run an experiment with several "
            "devices and a workload of kind 'all_reduce', or merge the traces of all ranks"
        )
    sms = _sms(
        trace, [part.kernel for ranks_parts in matching.sets for part in ranks_parts.values()]
    )
    groups: dict[_Key, list[Collective]] = defaultdict(list)
    for ranks_parts in matching.sets:
        first = ranks_parts[min(ranks_parts)]
        facts, fewest = first.facts, min(sms[part.kernel] for part in ranks_parts.values())
        group = facts.group or first.name
        key = (group, facts.kind, facts.nbytes, len(ranks_parts), fewest)
        groups[key].append(_collective(group, ranks_parts))
    errors = [facts.error_ns for facts in trace.metadata.ranks if facts.error_ns is not None]
    return CollectivesResult(
        tuple(_group(key, members) for key, members in groups.items()),
        tuple(ranks_parts for members in groups.values() for ranks_parts in members),
        matching.unmatched,
        max(errors, default=None),
        **about(trace),
    )


def _sms(trace: Trace, kernels: Sequence[int]) -> dict[int, int]:
    """Return how many SMs each of these rows had; 0 where that is unknown."""
    wanted = {*kernels}
    rows = [row for row, number in enumerate(trace.array("id").tolist()) if number in wanted]
    columns = trace.spans.select(("id", "partition", "device")).take(rows).to_pylist()
    metadata, sm_counts = trace.metadata, {}
    for row in columns:
        home = metadata.partition(row["partition"]) if row["partition"] else None
        count = metadata.device(row["device"]).sm_count if home is None else home.sm_count
        sm_counts[row["id"]] = count or 0
    return sm_counts


def _collective(group: str, ranks_parts: Parts) -> Collective:
    last_ns = max(part.start_ns for part in ranks_parts.values())
    return Collective(
        group,
        ranks_parts[min(ranks_parts)].facts.sequence,
        last_ns,
        min(part.end_ns - part.start_ns for part in ranks_parts.values()),
        last_ns - min(part.start_ns for part in ranks_parts.values()),
        {rank: last_ns - part.start_ns for rank, part in sorted(ranks_parts.items())},
    )


def _group(key: _Key, members: Sequence[Collective]) -> CollectiveGroup:
    group, kind, nbytes, ranks, sm_count = key
    time_ns = float(np.median([member.time_ns for member in members]))
    skews = [member.skew_ns for member in members]
    waits: dict[int, float] = {
        rank: float(
            np.mean([member.waits_ns[rank] for member in members if rank in member.waits_ns])
        )
        for rank in {rank for member in members for rank in member.waits_ns}
    }
    most = max(sorted(waits), key=lambda rank: waits[rank])
    bus_bytes = CollectiveFacts(kind, 0, group, ranks, nbytes).bus_bytes
    of = group, kind, nbytes or None, ranks, sm_count or None, len(members)
    times = time_ns, float(np.median(skews)), float(max(skews))
    rates: tuple[float | None, float | None] = None, None
    if nbytes > 0 and time_ns > 0:
        rates = nbytes / time_ns, bus_bytes / time_ns
    return CollectiveGroup(*of, *times, *rates, most, waits[most])
