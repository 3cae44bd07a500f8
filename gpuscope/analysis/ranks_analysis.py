"""Ranks beside each other: their steps, who waited for whom in collectives, and the straggler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from gpuscope._checks import door
from gpuscope._types import Ints
from gpuscope.analysis.collectives_analysis import Collective, collectives
from gpuscope.analysis.intervals import Busy, Groups
from gpuscope.analysis.result import Result, about, named
from gpuscope.analysis.steps_analysis import StepsResult, steps
from gpuscope.trace.collectives import is_nccl, parts
from gpuscope.trace.columns import codes, is_open, once, rows_of
from gpuscope.trace.model import Trace
from gpuscope.trace.schema import GPU_WORK
from gpuscope.trace.sites import lines_of


@dataclass(frozen=True)
class RankTimes:
    """What one rank did beside the others, in its steps.

    Attributes
    ----------
    step_ns
        Median length of its steps; ``None`` where none is known.
    waited_ns
        How long its kernels of collectives ran before the last rank's began.
    held_up_ns
        How long all other ranks together waited so for this one, which came last.
    last
        How many collectives it came to last.
    exposed_ns
        How long collectives ran on its GPU and nothing else did.
    line
        Where its program spends more time between two calls than the other ranks' does, the most
        of all lines; and ``slower_ns``, how much more than the median of them.
    """

    rank: Annotated[int, "rank"]
    steps: Annotated[int, "steps"]
    step_ns: Annotated[float | None, "step median (ms)"]
    waited_ns: Annotated[int, "waited for others (ms)"]
    held_up_ns: Annotated[int, "others waited for it (ms)"]
    last: Annotated[int, "came last"]
    exposed_ns: Annotated[int, "exposed communication (ms)"]
    line: Annotated[str, "line"]
    slower_ns: Annotated[int, "slower there (ms)"]


@dataclass(frozen=True)
class AlignedStep:
    """One step, as all ranks did it.

    Attributes
    ----------
    starts_ns, ends_ns
        Rank → when it began and ended there, on the trace's clock.
    """

    starts_ns: Mapping[int, int]
    ends_ns: Mapping[int, int]

    @property
    def last(self) -> int:
        """The rank that ended last."""
        return max(self.ends_ns, key=self.ends_ns.__getitem__)


@dataclass(frozen=True)
class RanksResult(Result):
    """Ranks beside each other.

    Attributes
    ----------
    aligned
        Their steps, number by number from the last one back, as far as all ranks have them.
    collectives
        How many count.
    error_ns
        How far times of different ranks can be off against each other.
    """

    ranks: tuple[RankTimes, ...]
    aligned: tuple[AlignedStep, ...]
    collectives: int
    error_ns: int | None
    entries = "ranks"

    def __getitem__(self, rank: int) -> RankTimes:
        return named(self.ranks, rank, "rank", "rank")  # type: ignore[arg-type]

    @property
    def straggler(self) -> RankTimes:
        """The rank that the others waited for longest."""
        return max(self.ranks, key=lambda each: each.held_up_ns)


@door(trace=Trace)
@once
def ranks(trace: Trace) -> RanksResult:
    """Say what each rank did, in its steps, and which one the others waited for.

    Raises
    ------
    MissingEvidence
        The trace holds no collective of two ranks or more.

    Examples
    --------
    >>> import gpuscope as gs
    >>> run = gs.run({
    ...     "name": "two ranks", "devices": ["sim:h200", "sim:h200"], "alone_repeats": 0,
    ...     "streams": {"s": {}}, "workloads": {
    ...         "reduce": {"kind": "all_reduce", "nbytes": "128 MiB", "stream": "s", "repeats": 5},
    ...     },
    ... })
    >>> [each.rank for each in gs.analysis.ranks(run["default"]).ranks]
    [0, 1]
    """
    matched = collectives(trace)
    process_of = {facts.rank: facts.process for facts in trace.metadata.ranks}
    steps_of = {
        rank: steps(trace.where(process=process)) for rank, process in sorted(process_of.items())
    }
    lows, highs = zip(*(known.steady_ns for known in steps_of.values()), strict=True)
    low, high = min(lows), max(highs)
    counted = [each for each in matched.each if low <= each.last_ns < high]
    waited, held_up, last = _waits(counted)
    exposed = _exposed_ns(trace, process_of, low, high)
    slower = _slower(trace, process_of, low, high)
    every = []
    for rank, known in steps_of.items():
        lengths = [step.end_ns - step.start_ns for step in known.steps]
        median = float(np.median(lengths)) if lengths else None
        sums = waited[rank], held_up[rank], last[rank], exposed[rank]
        every.append(RankTimes(rank, len(lengths), median, *sums, *slower[rank]))
    aligned = _aligned(steps_of)
    return RanksResult(tuple(every), aligned, len(counted), matched.error_ns, **about(trace))


def _waits(every: list[Collective]) -> tuple[Counter[int], Counter[int], Counter[int]]:
    """Return rank → how long it waited, how long others waited for it, how often it was last."""
    waited, held_up, last = Counter[int](), Counter[int](), Counter[int]()
    for each in every:
        waited.update(each.waits_ns)
        latest = min(each.waits_ns, key=each.waits_ns.__getitem__)
        held_up[latest] += sum(each.waits_ns.values())
        last[latest] += 1
    return waited, held_up, last


def _aligned(steps_of: Mapping[int, StepsResult]) -> tuple[AlignedStep, ...]:
    count = min(len(known.steps) for known in steps_of.values())
    return tuple(
        AlignedStep(
            {rank: known.steps[at].start_ns for rank, known in steps_of.items()},
            {rank: known.steps[at].end_ns for rank, known in steps_of.items()},
        )
        for at in range(-count, 0)
    )


def _exposed_ns(
    trace: Trace, process_of: Mapping[int, int | None], low: int, high: int
) -> Mapping[int, int]:
    """Return rank → how long collectives ran on its GPU and nothing else."""
    shared, _ = parts(trace)
    rows = rows_of(trace, *GPU_WORK)
    name, names = codes(trace.spans.column("name"))
    of_collectives = np.isin(trace.array("id")[rows], [part.kernel for part in shared])
    rows = rows[~is_open(trace)[rows] & ~of_collectives & ~is_nccl(names)[name[rows]]]
    of_shared = [-1 if part.process is None else part.process for part in shared]
    process = np.r_[trace.array("process", fill=-1)[rows], of_shared]
    starts = np.r_[trace.array("start_ns")[rows], [part.start_ns for part in shared]]
    ends = np.r_[trace.array("end_ns", fill=0)[rows], [part.end_ns for part in shared]]
    is_shared = np.arange(len(starts)) >= len(rows)
    exposed = {}
    for rank, number in process_of.items():
        on_rank = process == (-1 if number is None else number)
        groups = Groups(is_shared[on_rank].astype(np.int64), [False, True])
        begin_ns, end_ns = (np.clip(times[on_rank], low, high) for times in (starts, ends))
        busy = Busy.of(groups, begin_ns, end_ns)
        exposed[rank] = int(busy.ns[1] - busy.shared_ns(np.arange(2))[0, 1])
    return exposed


def _slower(
    trace: Trace, process_of: Mapping[int, int | None], low: int, high: int
) -> Mapping[int, tuple[str, int]]:
    """Return rank → the line before which its program lost most against the others, and how much.

    The time between two calls of a thread belongs to the line of the second.
    """
    calls = rows_of(trace, "api", "sync")
    starts, ends = trace.array("start_ns"), trace.array("end_ns", fill=0)
    calls = calls[(starts[calls] >= low) & (starts[calls] < high)]
    process, thread = (trace.array(name, fill=-1)[calls] for name in ("process", "thread"))
    order = np.lexsort((starts[calls], thread, process))
    calls, process, thread = calls[order], process[order], thread[order]
    gap_ns: Ints = np.zeros(len(calls), np.int64)
    is_next = (process[1:] == process[:-1]) & (thread[1:] == thread[:-1])
    gap_ns[1:] = np.where(is_next, np.maximum(starts[calls[1:]] - ends[calls[:-1]], 0), 0)
    site, texts = codes(trace.spans.column("site"))
    lines = [str(known[0]) if (known := lines_of(text)) else "" for text in texts]
    groups = Groups.of(site[calls], lines)
    sums = np.stack(
        [groups.sums(np.where(process == number, gap_ns, 0)) for number in process_of.values()]
    )
    slower = {}
    for at, rank in enumerate(process_of):
        others = np.delete(sums, at, axis=0)
        more = sums[at] - np.median(others, axis=0).astype(np.int64)
        more[[label == "" for label in groups.labels]] = 0
        best = int(np.argmax(more)) if len(more) else -1
        is_slower = best >= 0 and more[best] > 0
        slower[rank] = (groups.labels[best], int(more[best])) if is_slower else ("", 0)
    return slower
