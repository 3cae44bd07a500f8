"""A recorded trace as a program.

The program is what the recording shows: each thread's launches and waits with the host's own
time between them, each stream's order, the waits between streams, and for each piece of work the
gap before it. How long a wait would have lasted otherwise, a replay says.

It is long because what held a piece of work is known only from all calls, waits and SMs together.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np

from gpuscope.errors import MissingEvidence
from gpuscope.simulator.models.kernel_model import Launch, RecordedKernel
from gpuscope.simulator.profiles.profile import Profile
from gpuscope.simulator.recorded import WORK, Recorded, Row, finished_rows
from gpuscope.trace.columns import ORDERING, linked_rows
from gpuscope.trace.model import Trace

_WAITS = -1
Host: TypeAlias = tuple[int, int]
"""Process and thread."""
Chain: TypeAlias = tuple[int, int, str]
"""Process, thread, and the handle whose calls follow each other, if any."""
_Where: TypeAlias = frozenset[int] | str | None
_HOSTS, _USUAL_SPREAD = 0.05, 0.15
"""How far apart the usual speeds of a host are in two runs; the same where launches tell nothing.
"""
_COLD = 3.0
"""Calls that take longer than so many usual ones, as first ones do, do not say how others vary."""
_NINE_OF_TEN = 1.645
"""Standard deviations within which nine of ten values of a normal distribution lie."""
_ALIKE = 1.5
"""Kernels of one name and launch whose times alone differ by less are taken for the same work."""
_SEEN_NS = 50_000
"""An event's wait that the trace does not explain was for work that ended that long before."""


@dataclass(eq=False)
class Work:
    """A piece of GPU work of the recording, and where it goes in the replay.

    Attributes
    ----------
    row
        Its row in the trace.
    lane
        Stream and number: what of a stream ran beside each other is in several lanes.
    call
        Place of the call that launched it; ``None`` where the trace has none.
    latency_ns, gap_ns
        From its call's start, and from the end of what it follows, to its start at the earliest.
    late_ns, by_stream
        How much later it started, and whether what it follows held it rather than its call.
    after
        What it must follow besides its lane.
    waited_for_sms
        Whether work of other streams held its SMs while it was ready.
    beside
        Whether it ran beside other work on its SMs.
    sm_count
        SMs that it was recorded on.
    kernel
        Its time on other SM counts, where it is a kernel.
    alone_ns
        Its time when nothing else held its SMs.
    """

    row: Row
    lane: tuple[int, int] = (0, 0)
    call: int | None = None
    latency_ns: int = 0
    gap_ns: int = 0
    late_ns: int = 0
    by_stream: bool = True
    after: list[Work] = field(default_factory=list)
    waited_for_sms: bool = False
    beside: bool = False
    sm_count: int = 0
    kernel: RecordedKernel | None = None
    alone_ns: float = 0.0

    @property
    def id(self) -> int:
        """Of its row."""
        return int(self.row["id"])

    @property
    def start_ns(self) -> int:
        """Recorded."""
        return int(self.row["start_ns"])

    @property
    def end_ns(self) -> int:
        """Recorded."""
        return int(self.row["end_ns"])

    @property
    def took_ns(self) -> int:
        """Recorded."""
        return self.end_ns - self.start_ns


@dataclass(eq=False)
class Call:
    """A launch or a wait of a host thread.

    Attributes
    ----------
    own_ns
        Host time of its own: of a launch its duration, of a wait from the end of the work to its
        return.
    launches, waits_for
        Work.
    row, handle
        Ids of its row, and of the handle's call that it is part of.
    paced
        Whether it begins a call that arrives at a given time.
    lags_ns
        How long the host takes to begin it, or to see that its work is done, from when it can:
        one more for each launch of other calls' on its thread that came first.
    round
        Number of its recording window.
    """

    thread: Chain
    start_ns: int
    end_ns: int
    own_ns: int
    launches: list[Work] = field(default_factory=list)
    waits_for: list[Work] = field(default_factory=list)
    row: int | None = None
    handle: int | None = None
    paced: bool = False
    lags_ns: tuple[int, ...] = (0,)
    round: int = 0

    @property
    def looks(self) -> bool:
        """Whether the host does not wait, but looks again and again whether work is done."""
        return bool(self.thread[2]) and not self.launches

    @property
    def host(self) -> Host:
        """The thread that makes it."""
        return self.thread[:2]


@dataclass(eq=False)
class Program:
    """What a recording did.

    Attributes
    ----------
    works
        In the order in which they started.
    calls
        In the order in which they started.
    copies
        Works of calls that are made more often than they were recorded.
    handles
        Id of a handle's call → what it launched.
    gap_ns
        The usual gap between two kernels of a stream.
    latency_ns
        The least time from a launch to its start.
    unexplained
        Works whose launch is unknown.
    is_measured
        Whether a GPU ran it.
    launches_ns
        Start and end of the launches of each thread.
    host_spread
        Thread of calls → how much longer or shorter the host takes in nine of ten other runs.
    """

    works: list[Work]
    calls: list[Call]
    profile: Profile
    copies: list[Work] = field(default_factory=list)
    handles: dict[int, list[Work]] = field(default_factory=dict)
    gap_ns: int = 0
    latency_ns: int = 0
    unexplained: int = 0
    is_measured: bool = False
    launches_ns: Mapping[Host, list[tuple[int, int]]] = field(default_factory=dict)
    host_spread: Mapping[Chain, float] = field(default_factory=dict)

    def lags_ns(self, host: Host, ready_ns: int, begins_ns: int) -> tuple[int, ...]:
        """Return a call's lags: see :class:`Call`."""
        launches = self.launches_ns[host]
        number = bisect_left(launches, (ready_ns,))
        free_ns = max(ready_ns, launches[number - 1][1] if number else 0)
        lags: list[int] = []
        while number < len(launches) and launches[number][0] < begins_ns:
            lags.append(max(0, launches[number][0] - free_ns) + 1)  # that one went first
            free_ns = max(free_ns, launches[number][1])
            number += 1
        return (*lags, max(0, begins_ns - free_ns))


def program(
    trace: Trace,
    profile: Profile,
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
    rows, known = finished_rows(trace), Recorded(trace, profile, second, sm_counts)
    works = [Work(row) for row in rows if row["kind"] in WORK and row["stream"] is not None]
    if not works:
        raise MissingEvidence("the trace holds no finished GPU work: there is nothing to replay")
    devices = {work.row["device"] for work in works}
    if len(devices) > 1:
        raise MissingEvidence(
            f"the trace is of {len(devices)} GPUs: give the work of one, trace.where(device=…)"
        )
    works.sort(key=lambda work: (work.start_ns, work.id))
    found = Program(works, [], profile, is_measured=not trace.is_simulated)
    _choose_lanes(works)
    by_id = {work.id: work for work in works}
    ids = trace.array("id")
    for source, target in zip(*linked_rows(trace.edges, ids, *ORDERING), strict=True):
        before, after = by_id.get(ids[source]), by_id.get(ids[target])
        if before and after and before.lane != after.lane and before.end_ns <= after.start_ns:
            after.after.append(before)
    found.calls = _calls(trace, rows, by_id)
    found.handles = _handles(rows, found.calls)
    described = (trace.metadata.experiment or {}).get("workloads", {})
    paced = {name for name, plan in described.items() if plan.get("rate_hz") is not None}
    _note_polls(found, rows, paced)
    found.calls.sort(key=lambda call: (call.start_ns, call.end_ns))
    for place, call in enumerate(found.calls):
        for work in call.launches:
            work.call = place
    _note_lags(found, trace.metadata.windows_ns)
    threads: dict[Chain, list[Call]] = defaultdict(list)
    for call in found.calls:
        threads[call.thread].append(call)
    found.host_spread = {thread: _host_spread(calls) for thread, calls in threads.items()}
    for work in works:
        work.sm_count = known.sm_count(work.row)
        work.alone_ns = float(max(1, work.end_ns - work.start_ns))
    where = {work: _where(trace, work.row) for work in works}
    _note_beside(works, where)
    _note_gaps(found, where)
    for work in works:
        if work.row["kind"] in ("kernel", "graph"):
            work.kernel = known.kernel(work.row, work.alone_ns)
    return found


def waits(works: Iterable[Work]) -> dict[Work, list[Work]]:
    """Return what each piece of work waits for; a call's first in its lane, for all of the call.

    A product may clear its output first: a wait that the trace notes at the kernel holds that.
    """
    first: dict[tuple[int | None, tuple[int, int]], Work] = {}
    held: dict[Work, list[Work]] = defaultdict(list)
    for work in works:
        begins = work if work.call is None else first.setdefault((work.call, work.lane), work)
        for other in work.after:
            holder = work if begins.start_ns < other.end_ns <= work.start_ns else begins
            held[holder].append(other)
    return held


def _choose_lanes(works: Iterable[Work]) -> None:
    """Give each piece of work a lane of its stream in which it follows the work before it."""
    ends: dict[int, list[int]] = defaultdict(list)
    for work in works:
        lanes = ends[work.row["stream"]]
        free = [number for number, end_ns in enumerate(lanes) if end_ns <= work.start_ns]
        number = max(free, key=lambda one: lanes[one]) if free else len(lanes)
        if number == len(lanes):
            lanes.append(0)
        lanes[number] = work.end_ns
        work.lane = (work.row["stream"], number)


def _calls(trace: Trace, rows: Iterable[Row], by_id: Mapping[int, Work]) -> list[Call]:
    """Return the calls that launched or waited, in their order, each with its work."""
    of_row = {row["id"]: row for row in rows if row["kind"] in ("api", "sync")}
    launched, waited = defaultdict(list), defaultdict(list)
    for edge in trace.edges.to_pylist():
        if edge["kind"] == "launch" and edge["to"] in by_id:
            launched[edge["from"]].append(by_id[edge["to"]])
        elif edge["kind"] == "host wait" and edge["from"] in by_id:
            waited[edge["to"]].append(by_id[edge["from"]])
    lanes: dict[tuple[int, int], list[Work]] = defaultdict(list)
    for work in by_id.values():
        lanes[work.lane].append(work)
    calls: list[Call] = []
    for number, row in of_row.items():
        thread = (row["process"] or 0, row["thread"] or 0, "")
        took_ns = row["end_ns"] - row["start_ns"]
        if number in launched:
            call = Call(
                thread, row["start_ns"], row["end_ns"], took_ns, launched[number], row=number
            )
            last_ns = max(work.end_ns for work in call.launches)
            copies = row["kind"] == "api" and {work.row["kind"] for work in call.launches}
            if copies == {"memcpy"} and row["end_ns"] >= last_ns:  # it waits for them
                call.waits_for, call.own_ns = list(call.launches), row["end_ns"] - last_ns
            calls.append(call)
        elif row["kind"] == "sync":
            calls.append(Call(thread, row["start_ns"], row["end_ns"], took_ns))
            calls[-1].waits_for = waited[number] or _awaited(row, lanes)
    for call in calls:
        if call.waits_for and not call.launches:
            done_ns = max(work.end_ns for work in call.waits_for)
            call.own_ns = call.end_ns - max(done_ns, call.start_ns)
    return calls


def _handles(rows: Iterable[Row], calls: list[Call]) -> dict[int, list[Work]]:
    """Return what each handle's call launched, by the row of it."""
    above = {row["id"]: row["parent"] for row in rows}
    handles = {row["id"] for row in rows if row["kind"] == "handle"}
    found: dict[int, list[Work]] = {}
    for call in calls:
        number = call.row if call.launches else None
        while number is not None and number not in handles:
            number = above.get(number)
        if number is not None:
            call.handle = number
            found.setdefault(number, []).extend(call.launches)
    return found


def _note_polls(found: Program, rows: Iterable[Row], paced: Container[str]) -> None:
    """Add what threads do that never wait but look whether handles' calls are done.

    Each handle then goes on when its own calls are done, as in an experiment's loop; calls of those
    that are paced, not before they arrive.
    """
    of_row = {row["id"]: row for row in rows if row["kind"] == "handle"}
    waiting = {call.thread[:2] for call in found.calls if call.waits_for}
    for call in found.calls:
        if call.handle is not None and call.thread[:2] not in waiting:
            name = of_row[call.handle]["name"]
            call.paced = name in paced and call.launches[0] is found.handles[call.handle][0]
            call.thread = (*call.thread[:2], name)
    for number, works in found.handles.items():
        row = of_row[number]
        thread = row["process"] or 0, row["end_thread"] or row["thread"] or 0
        done_ns = max(work.end_ns for work in works)
        if thread not in waiting and done_ns <= row["end_ns"]:
            ended_ns, mine = row["end_ns"], (*thread, row["name"])
            found.calls.append(Call(mine, ended_ns, ended_ns, 0, waits_for=works, handle=number))


def _note_lags(found: Program, windows_ns: Iterable[tuple[int, int]]) -> None:
    """Say how long the host took to begin each call, and to see what it looks for."""
    lows = sorted(low for low, _ in windows_ns)
    found.launches_ns = launches = defaultdict(list)
    last: dict[Chain, Call] = {}
    over_ns: dict[tuple[Host, int], int] = defaultdict(int)
    rounds: dict[Host, int] = defaultdict(int)  # calls of a foreign trace may overlap
    for call in found.calls:
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
        call.lags_ns = found.lags_ns(call.host, ready_ns, begins_ns)
        last[call.thread] = call
        over_ns[call.host, call.round] = max(over_ns[call.host, call.round], call.end_ns)
        if call.launches:
            launches[call.host].append((call.start_ns, call.end_ns))


def _host_spread(calls: Iterable[Call]) -> float:
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


def _awaited(row: Row, lanes: Mapping[tuple[int, int], list[Work]]) -> list[Work]:
    """Return the work that a wait of a host thread was for, where no edge says it."""
    last: list[Work] = []
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


def _note_beside(works: list[Work], where: Mapping[Work, _Where]) -> None:
    """Note who ran beside others on the same SMs, and its time without them."""
    kernels = [work for work in works if work.row["kind"] != "memcpy"]
    running: list[Work] = []
    shared: dict[Work, list[Work]] = defaultdict(list)
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
            usual[_same(work)].append(work.alone_ns)
    least: dict[tuple[object, ...], Work] = {}
    for work, others in shared.items():
        work.beside = True
        work.alone_ns = _without(work, others)
        other = least.setdefault(_same(work), work)
        if work.alone_ns * other.took_ns > other.alone_ns * work.took_ns:
            least[_same(work)] = work
    disturbed_least = {key: [work.alone_ns] for key, work in least.items()}
    for work in shared:
        alone = usual.get(_same(work)) or disturbed_least[_same(work)]
        nearest_ns = min(alone, key=lambda took_ns: abs(took_ns - work.alone_ns))
        # Where nothing says what it computes, several shapes may share a name and a grid.
        if work.row["category"] or 1 / _ALIKE < nearest_ns / work.alone_ns < _ALIKE:
            work.alone_ns = nearest_ns


def _same(work: Work) -> tuple[object, ...]:
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


def _taken(work: Work) -> float:
    """Return the share of its SMs that a kernel fills."""
    launch = Launch.parse(work.row["launch_config"])
    if launch is None:
        return 1.0
    return min(1.0, launch.blocks / (launch.occupancy * work.sm_count))


def _without(work: Work, others: Iterable[Work]) -> float:
    """Return how long it would have taken alone: who began earlier had the SMs it could fill."""
    earlier = [other for other in others if (other.start_ns, other.id) < (work.start_ns, work.id)]
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


def _note_gaps(found: Program, where: Mapping[Work, _Where]) -> None:
    """Say for each piece of work what held it until it started."""
    last: dict[tuple[int, int], Work] = {}
    free: dict[Work, int | None] = {}
    delays, gaps = [], []
    held = waits(found.works)
    for work in found.works:
        ends = [other.end_ns for other in held.get(work, ())]
        if work.lane in last:
            ends.append(last[work.lane].end_ns)
        last[work.lane] = work
        free[work] = max(ends, default=None)
        if work.call is not None:
            delays.append(work.start_ns - found.calls[work.call].start_ns)
        if ends and work.start_ns > max(ends):
            gaps.append(work.start_ns - max(ends))
    usual_ns = found.profile.constants["kernel_gap_ns"]
    found.gap_ns = min(usual_ns, int(np.quantile(gaps, 0.1))) if gaps else usual_ns
    if delays:
        found.latency_ns = max(0, int(np.quantile(delays, 0.05)))
    ready: dict[Work, int] = {}
    for work in found.works:
        free_ns = free[work]
        if work.call is None:
            found.unexplained += 1
            ready_ns = work.start_ns if free_ns is None else free_ns
            work.gap_ns = min(found.gap_ns, work.start_ns - ready_ns)
            ready_ns += work.gap_ns
            work.late_ns = work.start_ns - ready_ns
        else:
            called_ns = found.calls[work.call].start_ns
            launched_ns = called_ns + min(found.latency_ns, work.start_ns - called_ns)
            gap_ns = found.gap_ns if free_ns is None else min(
                found.gap_ns, work.start_ns - free_ns
            )  # fmt: skip
            ready_ns = max(launched_ns, launched_ns if free_ns is None else free_ns + gap_ns)
            work.by_stream = free_ns is not None and free_ns + gap_ns > launched_ns
            work.gap_ns, work.latency_ns = gap_ns, launched_ns - called_ns
            work.late_ns = work.start_ns - ready_ns
        ready[work] = ready_ns
    _note_waits_for_sms(found.works, ready, where, found.gap_ns)


def _note_waits_for_sms(
    works: list[Work], ready: Mapping[Work, int], where: Mapping[Work, _Where], gap_ns: int
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
            held = other.end_ns > ready[work] and other.row["kind"] != "memcpy"
            if held and other.lane != work.lane and _meet(where[work], where[other]):
                work.waited_for_sms = True
                break
