"""When the host of a forecast sees calls of handles done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from gpuscope.simulator.forecast.program import Program, ReplayedWork
from gpuscope.simulator.forecast.replay import Replayed

_RETURNS_NS = 20_000
"""From the end of a wait until who called it goes on, at most."""


def ends_seen(
    program: Program, done: Replayed
) -> Callable[[int, Sequence[ReplayedWork], int, int], int]:
    """Return what says when the host of a replay sees a handle's call done.

    It takes the handle's number and its works, and when the call ended in the recording and by how
    host rows around it moved, ns: the call ends when the host looks, returns from a wait, or as
    late as it did.
    """
    calls, calls_ns = program.calls, done.calls_ns
    looks: dict[int, int] = {}
    waits: dict[ReplayedWork, list[int]] = defaultdict(list)
    for number, call in enumerate(calls):
        if call.launches or number not in calls_ns:
            continue
        if call.handle is not None:
            looks[call.handle] = number
        for work in call.waits_for:
            waits[work].append(number)

    def end_ns(handle: int, works: Sequence[ReplayedWork], recorded_ns: int, warped_ns: int) -> int:
        if handle in looks:
            return calls_ns[looks[handle]][1]
        waited = [
            number
            for work in works
            for number in waits[work]
            if calls[number].start_ns <= recorded_ns <= calls[number].end_ns + _RETURNS_NS
        ]
        if waited:
            return calls_ns[waited[-1]][1] + recorded_ns - calls[waited[-1]].end_ns
        late_ns = recorded_ns - max(work.end_ns for work in works)
        if late_ns < 0:
            return warped_ns
        return max(done.times_ns[work][1] for work in works) + late_ns

    return end_ns
