"""What held each piece of a recording's work until it started: its launch, its stream, its SMs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np

from gpuscope.simulator.forecast.program import Program, ReplayedWork, waits
from gpuscope.simulator.models.launch import Launch
from gpuscope.simulator.recorded import Row
from gpuscope.trace.model import Trace

_Where: TypeAlias = frozenset[int] | str | None
ALIKE = 1.5
"""Kernels of one name and launch whose times alone differ by less are taken for the same work."""


def note_holders(program: Program, trace: Trace) -> None:
    """Say for each piece of work who ran beside it, and what held it until it started."""
    where = {work: _where(trace, work.row) for work in program.works}
    _note_beside(program.works, where)
    _note_gaps(program, where)


def _note_beside(works: list[ReplayedWork], where: Mapping[ReplayedWork, _Where]) -> None:
    """Note who ran beside others on the same SMs, and its time without them."""
    kernels = [work for work in works if work.row["kind"] != "memcpy"]
    running: list[ReplayedWork] = []
    shared: dict[ReplayedWork, list[ReplayedWork]] = defaultdict(list)
    for work in kernels:
        running = [other for other in running if other.end_ns > work.start_ns]
        for other in running:
            if _meet(where[work], where[other]):
                shared[work].append(other)
                shared[other].append(work)
        running.append(work)
    usual: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for work in kernels:
        if work not in shared:
            usual[same(work)].append(work.alone_ns)
    least: dict[tuple[object, ...], ReplayedWork] = {}
    for work, neighbours in shared.items():
        work.beside = True
        work.alone_ns = _without(work, neighbours)
        other = least.setdefault(same(work), work)
        if work.alone_ns * other.took_ns > other.alone_ns * work.took_ns:
            least[same(work)] = work
    disturbed_least = {key: [work.alone_ns] for key, work in least.items()}
    for work in shared:
        alone = usual.get(same(work)) or disturbed_least[same(work)]
        nearest_ns = min(alone, key=lambda took_ns: abs(took_ns - work.alone_ns))
        # Where nothing says what it computes, several shapes may share a name and a grid.
        if work.row["category"] or 1 / ALIKE < nearest_ns / work.alone_ns < ALIKE:
            work.alone_ns = nearest_ns


def same(work: ReplayedWork) -> tuple[object, ...]:
    """Return what tells work from other work: name, launch, workload and SMs."""
    return work.row["name"], work.row["launch_config"], work.row["category"], work.sm_count


def _where(trace: Trace, row: Row) -> _Where:
    """Return the SMs of a row's partition, or its name; ``None`` for all."""
    if row["partition"] is None:
        return None
    return frozenset(trace.metadata.partition(row["partition"]).sm_ids) or str(row["partition"])


def _meet(a: _Where, b: _Where) -> bool:
    if a is None or b is None or a == b:
        return True
    return isinstance(a, frozenset) and isinstance(b, frozenset) and bool(a & b)


def _taken(work: ReplayedWork) -> float:
    """Return the share of its SMs that a kernel fills."""
    launch = Launch.parse(work.row["launch_config"])
    if launch is None:
        return 1.0
    return min(1.0, launch.blocks / (launch.occupancy * work.sm_count))


def _without(work: ReplayedWork, neighbours: Iterable[ReplayedWork]) -> float:
    """Return how long it would have taken alone: who began earlier had the SMs it could fill."""
    earlier = [
        other for other in neighbours if (other.start_ns, other.id) < (work.start_ns, work.id)
    ]
    cuts = sorted(
        {work.start_ns, work.end_ns}
        | {other.end_ns for other in earlier if other.end_ns < work.end_ns}
    )
    fills = _taken(work)
    taken = {other: _taken(other) * min(1.0, other.sm_count / work.sm_count) for other in earlier}
    alone_ns = 0.0
    for low, high in pairwise(cuts):
        left = 1.0 - sum(share for other, share in taken.items() if other.end_ns > low)
        alone_ns += (high - low) * min(1.0, max(0.0, left) / fills)
    return max(1.0, 0.05 * (work.end_ns - work.start_ns), alone_ns)


def _note_gaps(program: Program, where: Mapping[ReplayedWork, _Where]) -> None:
    """Say for each piece of work what held it until it started."""
    last: dict[tuple[int, int], ReplayedWork] = {}
    free: dict[ReplayedWork, int | None] = {}
    delays, gaps = [], []
    awaited = waits(program.works)
    for work in program.works:
        ends = [other.end_ns for other in awaited.get(work, ())]
        if work.lane in last:
            ends.append(last[work.lane].end_ns)
        last[work.lane] = work
        free[work] = max(ends, default=None)
        if work.call is not None:
            delays.append(work.start_ns - program.calls[work.call].start_ns)
        if ends and work.start_ns > max(ends):
            gaps.append(work.start_ns - max(ends))
    usual_ns = program.profile.constants["kernel_gap_ns"]
    program.gap_ns = min(usual_ns, int(np.quantile(gaps, 0.1))) if gaps else usual_ns
    if delays:
        program.latency_ns = max(0, int(np.quantile(delays, 0.05)))
    ready: dict[ReplayedWork, int] = {}
    for work in program.works:
        free_ns = free[work]
        if work.call is None:
            program.unexplained += 1
            ready_ns = work.start_ns if free_ns is None else free_ns
            work.gap_ns = min(program.gap_ns, work.start_ns - ready_ns)
            ready_ns += work.gap_ns
        else:
            called_ns = program.calls[work.call].start_ns
            work.latency_ns = min(program.latency_ns, work.start_ns - called_ns)
            ready_ns, work.gap_ns = called_ns + work.latency_ns, program.gap_ns
            work.by_stream = False
            if free_ns is not None:
                work.gap_ns = min(program.gap_ns, work.start_ns - free_ns)
                work.by_stream = free_ns + work.gap_ns > ready_ns
                ready_ns = max(ready_ns, free_ns + work.gap_ns)
        work.late_ns = work.start_ns - ready_ns
        ready[work] = ready_ns
    _note_waits_for_sms(program.works, ready, where, program.gap_ns)


def _note_waits_for_sms(
    works: list[ReplayedWork],
    ready: Mapping[ReplayedWork, int],
    where: Mapping[ReplayedWork, _Where],
    gap_ns: int,
) -> None:
    """Note who was late while work of other streams held its SMs."""
    latest_ns = list(accumulate((work.end_ns for work in works), max))
    for number, work in enumerate(works):
        if work.start_ns - ready[work] <= gap_ns:
            continue
        for at in range(number - 1, -1, -1):
            if latest_ns[at] <= ready[work]:
                break  # all before ended
            other = works[at]
            holds_sms = other.end_ns > ready[work] and other.row["kind"] != "memcpy"
            if holds_sms and other.lane != work.lane and _meet(where[work], where[other]):
                work.waited_for_sms = True
                break
