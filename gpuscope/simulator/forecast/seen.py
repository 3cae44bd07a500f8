"""When the host of a forecast sees calls of handles done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gpuscope.simulator.forecast.program import Program, Work
from gpuscope.simulator.forecast.replay import Replayed

_RETURNS_NS = 20_000
"""From the end of a wait until who called it goes on, at most."""


class Seen:
    """When the host sees calls of handles done, in a replay."""

    def __init__(self, program: Program, done: Replayed) -> None:
        self._found, self._done = program, done
        self._looks: dict[int, int] = {}
        self._waits: dict[Work, list[int]] = defaultdict(list)
        for number, call in enumerate(program.calls):
            if call.launches or number not in done.calls_ns:
                continue
            if call.handle is not None:
                self._looks[call.handle] = number
            for work in call.waits_for:
                self._waits[work].append(number)

    def end_ns(self, handle: int, works: Sequence[Work], recorded_ns: int, warped_ns: int) -> int:
        """Return when a handle's call ends: when the host looks, returns from a wait, or as late.

        Parameters
        ----------
        recorded_ns, warped_ns
            When it ended in the recording, and by how host rows around it moved.
        """
        calls, calls_ns = self._found.calls, self._done.calls_ns
        if (look := self._looks.get(handle)) is not None:
            return calls_ns[look][1]
        waits = [
            number
            for work in works
            for number in self._waits[work]
            if calls[number].start_ns <= recorded_ns <= calls[number].end_ns + _RETURNS_NS
        ]
        if waits:
            return calls_ns[waits[-1]][1] + recorded_ns - calls[waits[-1]].end_ns
        late_ns = recorded_ns - max(work.end_ns for work in works)
        if late_ns < 0:
            return warped_ns
        return max(self._done.times_ns[work][1] for work in works) + late_ns
