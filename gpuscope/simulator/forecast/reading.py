"""Reads a recorded trace as a program."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Mapping

import numpy as np

from gpuscope.errors import MissingEvidence
from gpuscope.simulator.forecast.held import note_holders
from gpuscope.simulator.forecast.program import Chain, Host, HostCall, Program, ReplayedWork
from gpuscope.simulator.profiles.profile import GpuProfile
from gpuscope.simulator.recorded import WORK, Recorded, Row, finished_rows
from gpuscope.trace.columns import ORDERING, linked_rows
from gpuscope.trace.model import Trace

_HOSTS, _USUAL_SPREAD = 0.05, 0.15
"""How far apart the usual speeds of a host are in two runs; the same where launches tell nothing.
"""
_COLD = 3.0
"""Calls that take longer than so many usual ones, as first ones do, do not say how others vary."""
_NINE_OF_TEN = 1.645
"""Standard deviations within which nine of ten values of a normal distribution lie."""
_SEEN_NS = 50_000
"""An event's wait that the trace does not explain was for work that ended that long before."""


def read_program(
    trace: Trace,
    profile: GpuProfile,
    sm_counts: Mapping[str, int],
    second: Trace | None = None,
) -> Program:
    """Read a recording as a program.

    Parameters
    ----------
    sm_counts
        SMs of the partitions whose size the trace does not hold.
    second
        The same work on other SMs: what each kernel took there.

    Raises
    ------
    MissingEvidence
        The trace holds no finished work of one GPU.
    InvalidArgument
        It was recorded on another GPU than the profile's.
    """
    rows, recorded = finished_rows(trace), Recorded(trace, profile, second, sm_counts)
    works = [ReplayedWork(row) for row in rows if row["kind"] in WORK and row["stream"] is not None]
    if not works:
        raise MissingEvidence("the trace holds no finished GPU work: there is nothing to replay")
    devices = {work.row["device"] for work in works}
    if len(devices) > 1:
        raise MissingEvidence(
            f"the trace is of {len(devices)} GPUs: give the work of one, trace.where(device=…)"
        )
    works.sort(key=lambda work: (work.start_ns, work.id))
    program = Program(works, [], profile, is_measured=not trace.is_simulated)
    _choose_lanes(works)
    by_id = {work.id: work for work in works}
    ids = trace.array("id")
    for source, target in zip(*linked_rows(trace.edges, ids, *ORDERING), strict=True):
        before, after = by_id.get(ids[source]), by_id.get(ids[target])
        if before and after and before.lane != after.lane and before.end_ns <= after.start_ns:
            after.after.append(before)
    program.calls = _calls(trace, rows, by_id)
    program.handles = _handles(rows, program.calls)
    described = (trace.metadata.experiment or {}).get("workloads", {})
    paced = {name for name, plan in described.items() if plan.get("rate_hz") is not None}
    _note_polls(program, rows, paced)
    program.calls.sort(key=lambda call: (call.start_ns, call.end_ns))
    for number, call in enumerate(program.calls):
        for work in call.launches:
            work.call = number
    _note_lags(program, trace.metadata.windows_ns)
    threads: dict[Chain, list[HostCall]] = defaultdict(list)
    for call in program.calls:
        threads[call.thread].append(call)
    program.host_spread = {thread: _host_spread(calls) for thread, calls in threads.items()}
    for work in works:
        work.sm_count = recorded.sm_count(work.row)
        work.alone_ns = float(max(1, work.end_ns - work.start_ns))
    note_holders(program, trace)
    for work in works:
        if work.row["kind"] in ("kernel", "graph"):
            work.kernel = recorded.kernel(work.row, work.alone_ns)
    return program


def _choose_lanes(works: Iterable[ReplayedWork]) -> None:
    """Give each piece of work a lane of its stream in which it follows the work before it."""
    ends: dict[int, list[int]] = defaultdict(list)
    for work in works:
        lanes = ends[work.row["stream"]]
        free = [number for number, end_ns in enumerate(lanes) if end_ns <= work.start_ns]
        number = max(free, key=lanes.__getitem__) if free else len(lanes)
        if number == len(lanes):
            lanes.append(0)
        lanes[number] = work.end_ns
        work.lane = (work.row["stream"], number)


def _calls(trace: Trace, rows: Iterable[Row], by_id: Mapping[int, ReplayedWork]) -> list[HostCall]:
    """Return the calls that launched or waited, in their order, each with its work."""
    of_row = {row["id"]: row for row in rows if row["kind"] in ("api", "sync")}
    launched, waited = defaultdict(list), defaultdict(list)
    for edge in trace.edges.to_pylist():
        if edge["kind"] == "launch" and edge["to"] in by_id:
            launched[edge["from"]].append(by_id[edge["to"]])
        elif edge["kind"] == "host wait" and edge["from"] in by_id:
            waited[edge["to"]].append(by_id[edge["from"]])
    lanes: dict[tuple[int, int], list[ReplayedWork]] = defaultdict(list)
    for work in by_id.values():
        lanes[work.lane].append(work)
    calls: list[HostCall] = []
    for number, row in of_row.items():
        thread = (row["process"] or 0, row["thread"] or 0, "")
        start_ns, end_ns = row["start_ns"], row["end_ns"]
        took_ns = end_ns - start_ns
        if number in launched:
            call = HostCall(thread, start_ns, end_ns, took_ns, launched[number], row=number)
            last_ns = max(work.end_ns for work in call.launches)
            copies = all(work.row["kind"] == "memcpy" for work in call.launches)
            if copies and row["kind"] == "api" and end_ns >= last_ns:  # it waits for them
                call.waits_for, call.own_ns = list(call.launches), end_ns - last_ns
            calls.append(call)
        elif row["kind"] == "sync":
            calls.append(HostCall(thread, start_ns, end_ns, took_ns))
            is_told = number in waited or "host wait" in trace.metadata.edges
            calls[-1].waits_for = waited[number] if is_told else _awaited(row, lanes)
    for call in calls:
        if call.waits_for and not call.launches:
            done_ns = max(work.end_ns for work in call.waits_for)
            call.own_ns = call.end_ns - max(done_ns, call.start_ns)
    return calls


def _handles(rows: Iterable[Row], calls: list[HostCall]) -> dict[int, list[ReplayedWork]]:
    """Return what each handle's call launched, by the row of it."""
    above = {row["id"]: row["parent"] for row in rows}
    handles = {row["id"] for row in rows if row["kind"] == "handle"}
    launched: dict[int, list[ReplayedWork]] = {}
    for call in calls:
        number = call.row if call.launches else None
        while number is not None and number not in handles:
            number = above.get(number)
        if number is not None:
            call.handle = number
            launched.setdefault(number, []).extend(call.launches)
    return launched


def _note_polls(program: Program, rows: Iterable[Row], paced: Container[str]) -> None:
    """Add what threads do that never wait but look whether handles' calls are done.

    Each handle then goes on when its own calls are done, as in an experiment's loop; calls of those
    that are paced, not before they arrive.
    """
    of_row = {row["id"]: row for row in rows if row["kind"] == "handle"}
    waiting = {call.host for call in program.calls if call.waits_for}
    for call in program.calls:
        if call.handle is not None and call.host not in waiting:
            name = of_row[call.handle]["name"]
            call.paced = name in paced and call.launches[0] is program.handles[call.handle][0]
            call.thread = (*call.host, name)
    for number, works in program.handles.items():
        row = of_row[number]
        thread = row["process"] or 0, row["end_thread"] or row["thread"] or 0
        done_ns = max(work.end_ns for work in works)
        if thread not in waiting and done_ns <= row["end_ns"]:
            chain, end_ns = (*thread, row["name"]), row["end_ns"]
            program.calls.append(HostCall(chain, end_ns, end_ns, 0, waits_for=works, handle=number))


def _note_lags(program: Program, windows_ns: Iterable[tuple[int, int]]) -> None:
    """Say how long the host took to begin each call, and to see what it looks for."""
    lows = sorted(low for low, _ in windows_ns)
    program.launches_ns = launches = defaultdict(list)
    last: dict[Chain, HostCall] = {}
    over_ns: dict[tuple[Host, int], int] = defaultdict(int)
    rounds: dict[Host, int] = defaultdict(int)  # calls of a foreign trace may overlap
    for call in program.calls:
        call.round = rounds[call.host] = max(rounds[call.host], bisect_right(lows, call.end_ns))
        before, begins_ns = last.get(call.thread), call.start_ns
        if call.looks:
            done_ns = max(work.end_ns for work in call.waits_for)
            call.start_ns = before.end_ns if before else call.start_ns
            ready_ns, begins_ns = max(done_ns, call.start_ns), call.end_ns
        elif before is None or call.paced:
            ready_ns = call.start_ns
        else:  # the next round begins when all of the thread's calls are over
            same = before.round == call.round
            ready_ns = before.end_ns if same else over_ns[call.host, before.round]
        call.lags_ns = program.lags_ns(call.host, ready_ns, begins_ns)
        last[call.thread] = call
        over_ns[call.host, call.round] = max(over_ns[call.host, call.round], call.end_ns)
        if call.launches:
            launches[call.host].append((call.start_ns, call.end_ns))


def _host_spread(calls: Iterable[HostCall]) -> float:
    """Return how far apart the host's median times of two runs are, as launches of one kind vary.

    The times of single launches vary independently of each other, and so their median half as much
    for four times as many; a host's usual speed varies as well.
    """
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for call in calls:
        if call.launches:
            alike[call.launches[0].row["name"], len(call.launches)].append(max(1, call.own_ns))
    varied = [
        np.minimum(np.array(took_ns) / np.median(took_ns), _COLD)
        for took_ns in alike.values()
        if len(took_ns) > 2
    ]
    if not varied:
        return _USUAL_SPREAD
    ratios = np.concatenate(varied)
    single = float(ratios.std() / ratios.mean())
    of_median = math.sqrt(math.pi / len(ratios))  # in each of two runs: π / 2 of a mean's variance
    return float(np.hypot(_HOSTS, _NINE_OF_TEN * of_median * single))


def _awaited(row: Row, lanes: Mapping[tuple[int, int], list[ReplayedWork]]) -> list[ReplayedWork]:
    """Return the work that a wait of a host thread was for, where no edge says it."""
    last: list[ReplayedWork] = []
    name = row["name"].lower()
    everything = row["stream"] is None or "device" in name or "context" in name
    for (stream, _), works in lanes.items():
        if everything or row["stream"] == stream:
            count = bisect_right(works, row["end_ns"], key=lambda work: work.end_ns)
            last += works[max(0, count - 1) : count]
    if last and row["stream"] is None and "event" in name:
        latest = max(last, key=lambda work: work.end_ns)
        return [latest] if latest.end_ns >= row["end_ns"] - _SEEN_NS else []
    return last
