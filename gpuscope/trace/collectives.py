"""Collectives in traces: each rank's part, and which parts are of the same collective."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from gpuscope._text import clean
from gpuscope._types import Bools
from gpuscope.errors import AlignmentError
from gpuscope.trace.columns import codes, linked_rows, rows_of
from gpuscope.trace.facts import CollectiveFacts, CollectiveKind
from gpuscope.trace.model import Trace
from gpuscope.trace.shifts import KernelSequence, shift_between

_KINDS: Mapping[str, CollectiveKind] = {
    "AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter",
}  # fmt: skip
_NCCL = re.compile(r"nccl(?:Dev)?Kernel_?([A-Za-z]*)")
"""A kernel of NCCL, and what it does: ``ncclDevKernel_AllReduce_Sum_f32_RING_LL(…)``."""
_TIMES = ("start_ns", "end_ns")

_BY_ORDER = (
    "kernels of NCCL that no handle launched are matched by their order on their streams, as "
    "collectives of all ranks, shifted so that none ends on a rank before it began on all"
)
_WHAT_TO_DO = (
    "record all ranks from before their first collective, or launch collectives by gpuscope's "
    "handles, which number them"
)


class RankPart(NamedTuple):
    """What one rank did of a collective.

    Attributes
    ----------
    process
        Which process's it is, where rows tell.
    facts
        Which collective it is. Without a handle, the sequence counts those of one stream, and the
        group is empty.
    kernel
        Id of its kernel's row; of several, the first one's.
    start_ns, end_ns
        Outer bounds of when its kernels ran.
    stream
        Its stream where no handle told the facts, else ``None``.
    name
        Of the kernel, without arguments.
    what
        Its name, its launch configuration and its bytes, as far as the row has them.
    """

    process: int | None
    facts: CollectiveFacts
    kernel: int
    start_ns: int
    end_ns: int
    stream: tuple[int, int] | None
    name: str
    what: str


Parts: TypeAlias = "dict[int, RankPart]"
"""Rank → its part in one collective."""


@dataclass(frozen=True)
class Matching:
    """Which parts of ranks are of the same collective.

    Attributes
    ----------
    sets
        Those of two ranks or more.
    unmatched
        How many parts are in none.
    notes
        Why, and what was taken for granted.
    """

    sets: list[Parts]
    unmatched: int
    notes: tuple[str, ...]


def is_nccl(names: Sequence[str | None]) -> Bools:
    """Return which kernel names are of NCCL's collectives and transfers."""
    return np.array([_NCCL.match(name or "") is not None for name in names], bool)


def parts(trace: Trace) -> tuple[list[RankPart], int]:
    """Return the parts that ranks took in collectives, and how many kernels of NCCL are in none.

    A handle's call says which collective it is; its work is what its launches lead to. Kernels of
    NCCL that no such call launched are told by their names and numbered on their stream. Transfers
    (``SendRecv``) and collectives that end on one rank before all have begun (broadcasts) are
    none. Nor is what has no end.
    """
    spans = trace.spans
    name, names = codes(spans.column("name"))
    is_kernel = np.zeros(len(trace), bool)
    is_kernel[rows_of(trace, "kernel")] = True
    nccl = is_kernel & is_nccl(names)[name]
    ids, starts = trace.array("id"), trace.array("start_ns")
    ends = trace.array("end_ns", fill=-1)
    process, nbytes = trace.array("process", fill=-1), trace.array("nbytes", fill=0)
    config, configs = codes(spans.column("launch_config"))

    def part(rows: Collection[int], facts: CollectiveFacts, *, stream: bool) -> RankPart:
        first = min(rows, key=lambda row: int(starts[row]))
        return RankPart(
            int(process[first]) if process[first] >= 0 else None, facts, int(ids[first]),
            int(starts[first]), max(int(ends[row]) for row in rows),
            (int(devices[first]), int(streams[first])) if stream else None,
            str(names[name[first]]).split("(")[0],
            f"{names[name[first]]} {configs[config[first]]} {int(nbytes[first])}",
        )  # fmt: skip

    streams, devices = trace.array("stream", fill=-1), trace.array("device", fill=-1)
    in_sets: list[RankPart] = []
    taken = np.zeros(len(trace), bool)
    for facts, rows in _of_handles(trace):
        work = [row for row in rows if is_kernel[row]]
        of_collective = [row for row in work if nccl[row]] or work
        taken[of_collective] = True
        if of_collective and all(ends[row] >= 0 for row in of_collective):
            in_sets.append(part(of_collective, facts, stream=False))
    rest = np.flatnonzero(nccl & ~taken & (ends >= 0))
    numbers: Counter[tuple[int, int, int]] = Counter()
    unassigned = int(np.count_nonzero(nccl & ~taken)) - len(rest)
    for row in rest[np.lexsort((ids[rest], starts[rest]))].tolist():
        match = _NCCL.match(str(names[name[row]]))
        what = _KINDS.get(match[1]) if match else None
        if what is None:
            unassigned += 1
            continue
        at = int(process[row]), int(devices[row]), int(streams[row])
        in_sets.append(part([row], CollectiveFacts(what, numbers[at]), stream=True))
        numbers[at] += 1
    return in_sets, unassigned


def _of_handles(trace: Trace) -> list[tuple[CollectiveFacts, list[int]]]:
    """Return the facts of each handle's call of a collective, and the rows of its work."""
    handles = rows_of(trace, "handle")
    payload, texts = codes(trace.spans.column("payload"))
    facts_of = [CollectiveFacts.of(text) for text in texts]
    handles = handles[np.array([facts is not None for facts in facts_of])[payload[handles]]]
    if not len(handles):
        return []
    ids, parent = trace.array("id"), trace.array("parent", fill=-1)
    calls, launched = linked_rows(trace.edges, ids, "launch")
    inside = np.isin(parent[calls], ids[handles])
    work: dict[int, list[int]] = defaultdict(list)
    for call, row in zip(parent[calls[inside]].tolist(), launched[inside].tolist(), strict=True):
        work[call].append(row)
    of_calls = ((facts_of[payload[row]], int(ids[row])) for row in handles.tolist())
    return [(facts, work[number]) for facts, number in of_calls if facts is not None]


def matched(
    ranks: Mapping[int, Sequence[RankPart]],
    complete: Mapping[int, bool],
    clocks: Mapping[int, tuple[int, int]],
) -> Matching:
    """Find which parts of ranks are of the same collective; guess none.

    Parameters
    ----------
    complete
        Rank → whether its trace is known to hold all.
    clocks
        Rank → a number of its clock, and how far its times can be off from it, ns.

    Raises
    ------
    AlignmentError
        Ranks disagree on what a collective is, or a complete trace lacks one.
    """
    by_facts: dict[tuple[str, int], Parts] = {}
    by_stream: dict[int, dict[tuple[int, int], list[RankPart]]] = {}
    for rank, own_parts in sorted(ranks.items()):
        streams: dict[tuple[int, int], list[RankPart]] = defaultdict(list)
        for part in own_parts:
            if part.stream is not None:
                streams[part.stream].append(part)
                continue
            by_rank = by_facts.setdefault((part.facts.group, part.facts.sequence), {})
            if rank in by_rank:
                raise AlignmentError(
                    f"rank {rank} has {_named(part.facts)} twice: groups need different names"
                )
            by_rank[rank] = part
        by_stream[rank] = streams
    _check(by_facts, complete)
    ordered, notes = _of_streams(by_stream, clocks)
    sets = [taking_part for taking_part in [*by_facts.values(), *ordered] if len(taking_part) > 1]
    return Matching(sets, sum(map(len, ranks.values())) - sum(map(len, sets)), notes)


def _check(by_facts: Mapping[tuple[str, int], Parts], complete: Mapping[int, bool]) -> None:
    """Refuse collectives that ranks tell differently, and gaps."""
    sequences: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for (group, sequence), by_rank in by_facts.items():
        first = min(by_rank)
        for rank, part in by_rank.items():
            sequences[group][rank].add(sequence)
            if part.facts != by_rank[first].facts:
                raise AlignmentError(
                    f"{_named(part.facts)} is of {by_rank[first].facts.nbytes:,} bytes, "
                    f"{by_rank[first].facts.kind}, {by_rank[first].facts.world_size} ranks on rank "
                    f"{first} but {part.facts.nbytes:,} bytes, {part.facts.kind}, "
                    f"{part.facts.world_size} ranks on rank {rank}: these are not traces of one run"
                )
    for group, members in sequences.items():
        low, high = max(map(min, members.values())), min(map(max, members.values()))
        every = {number for number in set().union(*members.values()) if low <= number <= high}
        for rank, numbers in sorted(members.items()):
            missing = sorted(every - numbers)
            if missing and complete[rank]:
                more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
                raise AlignmentError(
                    f"rank {rank} lacks collective {missing[0]} of group {clean(group, 60)!r}"
                    f"{more}, which other ranks have: these are not traces of one run, or rows "
                    "were taken out of one"
                )


def _of_streams(
    ranks: Mapping[int, Mapping[tuple[int, int], Sequence[RankPart]]],
    clocks: Mapping[int, tuple[int, int]],
) -> tuple[list[Parts], tuple[str, ...]]:
    """Match kernels of streams by their order, where only one shift of it is possible."""
    with_any = [rank for rank, streams in ranks.items() if streams]
    if not with_any:
        return [], ()
    if lacking := [rank for rank in ranks if rank not in with_any]:
        return [], (
            f"NCCL's collectives were not matched: rank {lacking[0]} has none, others have",
        )
    base, *other_ranks = with_any
    notes: dict[str, None] = {}
    sets: dict[tuple[tuple[int, int], int], Parts] = {}
    for rank in other_ranks:
        is_same = clocks[base][0] == clocks[rank][0]
        apart_ns = clocks[base][1] + clocks[rank][1] if is_same else None
        shifts = {
            (stream, other): shift_between(_sequence(kernels), _sequence(others_kernels), apart_ns)
            for stream, kernels in ranks[base].items()
            for other, others_kernels in ranks[rank].items()
        }
        possible = {pair: shift for pair, (shift, count) in shifts.items() if count}
        claims = Counter(other for _, other in possible)
        for stream, kernels in ranks[base].items():
            pairs = [pair for pair in possible if pair[0] == stream]
            if len(pairs) != 1 or claims[pairs[0][1]] > 1 or possible[pairs[0]] is None:
                count = sum(shifts[pair][1] for pair in pairs)
                notes[_why_not(base, rank, kernels, count)] = None
                continue
            shift = possible[pairs[0]] or 0
            for number, part in enumerate(ranks[rank][pairs[0][1]], shift):
                if 0 <= number < len(kernels):
                    sets.setdefault((stream, number), {base: kernels[number]})[rank] = part
    if sets:
        notes[_BY_ORDER] = None
    return list(sets.values()), tuple(notes)


def _sequence(kernels: Sequence[RankPart]) -> KernelSequence:
    starts, ends = (np.array([getattr(part, name) for part in kernels]) for name in _TIMES)
    return KernelSequence([part.what for part in kernels], starts, ends)


def _why_not(base: int, rank: int, kernels: Sequence[RankPart], count: int) -> str:
    """Say why kernels of a stream of the first rank were not matched with another rank's."""
    about = (
        f"NCCL's collectives on a stream ({len(kernels):,} × {clean(kernels[0].name, 60)}) of "
        f"rank {base}"
    )
    if not count:
        return (
            f"{about} were not matched with rank {rank}'s: however they are shifted, kernels "
            "differ or their times contradict each other. If the recordings overlap, "
            f"{_WHAT_TO_DO}"
        )
    return (
        f"{about} were not matched with rank {rank}'s: which are the same is ambiguous, as "
        f"{count:,} ways to shift them are possible. To tell, {_WHAT_TO_DO}"
    )


def _named(facts: CollectiveFacts) -> str:
    return f"collective {facts.sequence} of group {clean(facts.group, 60)!r}"
