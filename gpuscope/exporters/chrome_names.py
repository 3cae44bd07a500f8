"""Processes and threads of Chrome's traces: their numbers, and the events that name them."""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import TypeGuard

from gpuscope.exporters.tracks import names
from gpuscope.trace.model import Trace
from gpuscope.trace.tracks import Group, TrackKey


class Names:
    """Numbers of processes and threads for tracks, and the events that name them."""

    def __init__(self, trace: Trace, places: list[tuple[TrackKey, int]]) -> None:
        self._used = {one.process for one, _ in places} | {one.thread for one, _ in places}
        self._used |= {one.stream for one, _ in places}
        self._next = 1
        self.lines: list[str] = []
        self.ids: dict[int, tuple[int, int]] = {}
        processes: dict[tuple[bool, Hashable], int] = {}
        taken: set[tuple[int, int]] = set()
        # Lane 0 before the others: it gets the number that people know.
        by_lane = sorted(range(len(places)), key=lambda number: places[number][1])
        for number in by_lane:
            track, lane = places[number]
            owner, row = names(track, trace)
            key = (track.is_device, owner if track.is_device else track.process)
            if key not in processes:
                pid = track.process if not track.is_device else None
                processes[key] = pid if fits(pid) else self._number()
                self._tell("process_name", processes[key], 0, name=owner)
                if trace.metadata.incomplete:
                    self._tell("process_labels", processes[key], 0,
                               labels=trace.metadata.incomplete)  # fmt: skip
                self._tell("process_sort_index", processes[key], 0,
                           sort_index=len(processes) + 1000 * track.is_device)  # fmt: skip
            pid = processes[key]
            tid = {Group.STREAM: track.stream, Group.THREAD: track.thread}.get(track.group)
            if lane or not fits(tid) or (pid, tid) in taken:
                tid = self._number()
            taken.add((pid, tid))
            self.ids[number] = (pid, tid)
            self._tell("thread_name", pid, tid, name=f"{row} ({lane + 1})" if lane else row)
        if not places:
            self._tell("process_name", self._number(), 0, name="nothing was recorded")

    def _number(self) -> int:
        """Return a number that nothing has."""
        while self._next in self._used:
            self._next += 1
        self._next += 1
        return self._next - 1

    def _tell(self, what: str, pid: int, tid: int, **facts: str | int) -> None:
        event = {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": facts}
        self.lines.append(json.dumps(event, separators=(",", ":"), ensure_ascii=False))


def fits(number: int | None) -> TypeGuard[int]:
    """Whether readers take a number as a process's or thread's; 0 is the idle thread there."""
    return number is not None and 0 < number < 1 << 31
