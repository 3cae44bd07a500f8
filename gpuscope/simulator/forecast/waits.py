"""Waits between streams, added to a recorded program and dropped, with the host's time for them."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar

import numpy as np

from gpuscope._checks import given
from gpuscope.errors import InvalidArgument
from gpuscope.simulator.forecast.program import Host, HostCall, Program, ReplayedWork
from gpuscope.simulator.recorded import Row, finished_rows
from gpuscope.trace.model import Trace

Waits: TypeAlias = Sequence[tuple[int, int]]
"""Pairs of span ids."""

_Timed = TypeVar("_Timed", Row, HostCall)
_RECORD = ("event.record", "cudaEventRecord", "cuEventRecord")
_WAIT = ("stream.wait", "cudaStreamWaitEvent", "cuStreamWaitEvent")
"""How the names of calls begin that record an event, and that let a stream wait for one."""


def change_waits(program: Program, trace: Trace, add: Waits, drop: Waits | Literal["all"]) -> None:
    """Add and drop waits between streams, and the host's time for them.

    Raises
    ------
    InvalidArgument
        A pair names what is not there.
    """
    if not add and not drop:
        return
    by_id = {work.id: work for work in program.works}

    def pair(name: str, ids: tuple[int, int]) -> tuple[ReplayedWork, ReplayedWork]:
        for number in ids:
            if number not in by_id:
                raise InvalidArgument(
                    f"{name}: span {given(number)} is no finished GPU work of the trace: give the "
                    "ids of two kernels, copies or memsets, trace.array('id')"
                )
        return by_id[ids[0]], by_id[ids[1]]

    if isinstance(drop, str) and drop != "all":
        raise InvalidArgument(f"drop_waits is {given(drop)}: 'all', or pairs of span ids")
    calls = [row for row in finished_rows(trace) if row["kind"] in ("api", "event")]
    host = _Host(program, [row for row in calls if row["name"].startswith((*_RECORD, *_WAIT))])
    if drop == "all":
        for work in program.works:
            work.after.clear()
        host.drop_all()
    else:
        dropped = defaultdict[ReplayedWork, list[ReplayedWork]](list)
        for ids in drop:
            first, then = pair("drop_waits", ids)
            if first not in then.after:
                waits = [
                    (edge["from"], edge["to"])
                    for edge in trace.edges.to_pylist()
                    if edge["to"] == ids[1] and edge["kind"] != "launch"
                ]
                raise InvalidArgument(
                    f"drop_waits: span {ids[1]} does not wait for {ids[0]} in another stream; its "
                    f"waits are {waits}"
                )
            then.after.remove(first)
            dropped[then].append(first)
        host.drop(dropped)
    for ids in add:
        first, then = pair("add_waits", ids)
        if first is not then and first not in then.after:
            then.after.append(first)
            if then.call is not None:
                _lag(program.calls[then.call], host.added_ns)


class _Host:
    """The host's time for events that are recorded and waited for.

    Parameters
    ----------
    rows
        The calls that record events and wait for them, in the order of their starts.
    """

    def __init__(self, program: Program, rows: Sequence[Row]) -> None:
        self.program, self.rows = program, rows
        self.records: dict[int, list[Row]] = defaultdict(list)
        self.waits: dict[int, list[Row]] = defaultdict(list)
        took_ns: list[list[int]] = [[], []]
        for row in rows:
            is_wait = not row["name"].startswith(_RECORD)
            (self.waits if is_wait else self.records)[row["stream"]].append(row)
            took_ns[is_wait].append(row["end_ns"] - row["start_ns"])
        self.launches: dict[int, list[int]] = defaultdict(list)
        self.calls: dict[Host, list[HostCall]] = defaultdict(list)
        for call in program.calls:
            if not call.looks:  # the others are in the order of their starts
                self.calls[call.host].append(call)
            for stream in {work.row["stream"] for work in call.launches}:
                self.launches[stream].append(call.start_ns)
        constants = program.profile.constants
        usual_ns = constants["event_record_call_ns"], constants["stream_wait_call_ns"]
        medians_ns = (
            float(np.median(times)) if times else usual
            for times, usual in zip(took_ns, usual_ns, strict=True)
        )
        self.added_ns = round(sum(medians_ns))

    def drop_all(self) -> None:
        """Take off all calls that made streams wait, and what recorded events right before."""
        record: dict[Host, Row] = {}
        for row in self.rows:
            host = row["process"] or 0, row["thread"] or 0
            if row["name"].startswith(_RECORD):
                record[host] = row
                continue
            self._shift(row)
            before = record.pop(host, None)
            if before is not None and not _between(
                self.calls[host], before["start_ns"], row["start_ns"]
            ):
                self._shift(before)

    def drop(self, dropped: Mapping[ReplayedWork, Iterable[ReplayedWork]]) -> None:
        """Take off the calls that made work wait for others, as far as nothing else needs them."""
        gone: dict[int, Row] = {}
        needed = {other for work in self.program.works for other in work.after}
        for then, before in dropped.items():
            if then.call is None:
                continue
            launched_ns = self.program.calls[then.call].start_ns
            stream = then.row["stream"]
            number = bisect_left(self.launches[stream], launched_ns)
            since_ns = self.launches[stream][number - 1] if number else 0
            waits = _between(self.waits[stream], since_ns, launched_ns)[len(then.after) :]
            gone |= {row["id"]: row for row in waits}
            until_ns = max((row["start_ns"] for row in waits), default=launched_ns)
            for first in before:
                if first not in needed and first.call is not None:
                    called_ns = self.program.calls[first.call].start_ns
                    records = _between(self.records[first.row["stream"]], called_ns, until_ns)
                    gone |= {row["id"]: row for row in records[-1:]}
        for row in gone.values():
            self._shift(row)

    def _shift(self, row: Row) -> None:
        """Let the next call of a row's thread begin earlier by what the row took."""
        host = row["process"] or 0, row["thread"] or 0
        for call in _between(self.calls[host], row["start_ns"], sys.maxsize)[:1]:
            _lag(call, row["start_ns"] - row["end_ns"])


def _lag(call: HostCall, time_ns: int) -> None:
    """Let the host begin a call later, or earlier as far as it can."""
    *others_ns, last_ns = call.lags_ns
    call.lags_ns = (*others_ns, max(0, last_ns + time_ns))


def _between(rows: list[_Timed], low_ns: int, high_ns: int) -> list[_Timed]:
    """Return the rows or calls that start between two times."""

    def start_ns(timed: Row | HostCall) -> int:
        return timed.start_ns if isinstance(timed, HostCall) else int(timed["start_ns"])

    low, high = (bisect_left(rows, at_ns, key=start_ns) for at_ns in (low_ns, high_ns))
    return rows[low:high]
