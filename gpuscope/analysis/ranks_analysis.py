"""Ranks beside each other: their steps, who waited for whom in collectives, and the straggler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from gpuscope._checks import door
from gpuscope._types import Ints
from gpuscope.analysis.collectives_analysis import Collective, collectives
from gpuscope.analysis.intervals import Busy, Groups
from gpuscope.analysis.result import Result, about
from gpuscope.analysis.steps_analysis import Step, steps
from gpuscope.trace.collectives import is_nccl, parts
from gpuscope.trace.columns import codes, is_open, once, rows_of
from gpuscope.trace.model import Trace
from gpuscope.trace.schema import GPU_WORK
from gpuscope.trace.sites import lines_of


@dataclass(frozen=True)
class RankTimes:
    """What one rank did beside the others, in the steady time.

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
class RanksResult(Result):
    """Ranks beside each other.

    Attributes
    ----------
    aligned
        Rank → its step, of each step that all ranks have, counted from the last one back.
    collectives
        How many count.
    error_ns
        How far times of different ranks can be off against each other.
    """

    ranks: tuple[RankTimes, ...]
    aligned: tuple[Mapping[int, Step], ...]
    collectives: int
    error_ns: int | None
    entries = "ranks"

    @property
    def straggler(self) -> RankTimes:
        """The rank that the others waited for longest."""
        return max(self.ranks, key=lambda rank: rank.held_up_ns)


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
    all_steps = steps(trace)
    low, high = all_steps.steady_ns
    steps_of = {
        rank: [step for step in all_steps.steady if step.process == process]
        for rank, process in sorted(process_of.items())
    }
    counted = [collective for collective in matched.each if low <= collective.last_ns < high]
    waited, held_up, last = _waits(counted)
    exposed = _exposed_ns(trace, process_of, low, high)
    slower = _slower(trace, process_of, low, high)
    every = []
    for rank, of_rank in steps_of.items():
        lengths = [step.length_ns for step in of_rank]
        median = float(np.median(lengths)) if lengths else None
        sums = waited[rank], held_up[rank], last[rank], exposed[rank]
        every.append(RankTimes(rank, len(lengths), median, *sums, *slower[rank]))
    facts = tuple(every), _aligned(steps_of), len(counted), matched.error_ns
    return RanksResult(*facts, **about(trace))


def _waits(every: list[Collective]) -> tuple[Counter[int], Counter[int], Counter[int]]:
    """Return rank → how long it waited, how long others waited for it, how often it was last."""
    waited, held_up, last = Counter[int](), Counter[int](), Counter[int]()
    for collective in every:
        waited.update(collective.waits_ns)
        latest = min(collective.waits_ns, key=collective.waits_ns.__getitem__)
        held_up[latest] += sum(collective.waits_ns.values())
        last[latest] += 1
    return waited, held_up, last


def _aligned(steps_of: Mapping[int, Sequence[Step]]) -> tuple[Mapping[int, Step], ...]:
    together = zip(*map(reversed, steps_of.values()), strict=False)
    return tuple(dict(zip(steps_of, same, strict=True)) for same in together)[::-1]


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
    lines = [str(frames[0]) if (frames := lines_of(text)) else "" for text in texts]
    groups = Groups.of(site[calls], lines)
    sums = np.stack(
        [groups.sums(np.where(process == number, gap_ns, 0)) for number in process_of.values()]
    )
    sums[:, [label == "" for label in groups.labels]] = 0
    slower = {}
    for at, rank in enumerate(process_of):
        more = np.r_[0, sums[at] - np.median(np.delete(sums, at, axis=0), axis=0)]
        best = int(np.argmax(more))
        slower[rank] = ["", *groups.labels][best], int(more[best])
    return slower
