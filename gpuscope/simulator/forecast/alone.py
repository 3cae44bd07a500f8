"""What recorded work would have taken alone: so much that together it takes what it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpuscope.simulator.engine.ops import SimStream
from gpuscope.simulator.forecast.held import ALIKE, same
from gpuscope.simulator.forecast.program import Program, ReplayedWork, StreamPlace
from gpuscope.simulator.forecast.replay import Replay

_ROUNDS = 6
_CLOSE = 1e-4
"""Rounds of the fit end where each piece of work takes so closely what it took."""


def fit_alone(program: Program, places: Mapping[int, StreamPlace]) -> dict[ReplayedWork, float]:
    """Set the times alone of a recording's kernels.

    Returns
    -------
    dict
        Work that no kernel is known of → what its time is multiplied with.
    """
    factors: dict[ReplayedWork, float] = {}
    _start_undisturbed(program.works)
    for _ in range(_ROUNDS):
        worst = 0.0
        for work, spent_ns in _pinned(Replay(program, places, frozenset(places), factors)).items():
            ratio = max(1, work.took_ns) / max(1, spent_ns)
            worst = max(worst, abs(ratio - 1))
            if work.kernel is None or work.beside:
                factors[work] = factors.get(work, 1.0) * ratio
            else:
                work.kernel = work.kernel.taking(ratio, work.sm_count)
        if worst <= _CLOSE:
            break
    # Of work beside other on its SMs, the time alone is known by itself.
    return {work: factor for work, factor in factors.items() if not work.beside}


def _start_undisturbed(works: list[ReplayedWork]) -> None:
    """Begin with what the least disturbed of the same work took.

    Work that waits for memory may take what it took because it is slow, or because others are
    beside it: what began slow would stay so.
    """
    modelled = [work for work in works if work.kernel is not None and not work.beside]
    least: dict[tuple[object, ...], int] = {}
    for work in modelled:
        least[same(work)] = min(least.get(same(work), work.took_ns), work.took_ns)
    for work in modelled:
        ratio = max(1, least[same(work)]) / max(1, work.took_ns)
        if work.kernel is not None and (work.row["category"] or ratio > 1 / ALIKE):
            work.kernel = work.kernel.taking(ratio, work.sm_count)


def _pinned(replay: Replay) -> dict[ReplayedWork, int]:
    """Let each piece of work begin when it did, whatever it followed; returns what it takes, ns."""
    for work, op in replay.ops.items():
        lane = op.stream
        op.stream = SimStream(lane.handle, lane.sms, lane.priority, brought=lane.brought)
        op.cost, op.queued_ns = replace(op.cost, gap_ns=0), work.start_ns
        replay.engine.submit(op)
    while replay.engine.step(None):
        pass
    return {work: end_ns - start_ns for work, (start_ns, end_ns) in replay.times_ns().items()}
