"""A recorded program on the simulated GPU: the host's threads before the engine."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise, repeat

from gpuscope.device.api import KernelCost
from gpuscope.errors import InvalidArgument
from gpuscope.experiments.serving import Feed, Request
from gpuscope.simulator.engine.engine import Engine
from gpuscope.simulator.engine.ops import CopyOp, KernelOp, SimStream, StreamWait, WaveOp
from gpuscope.simulator.forecast.program import (
    Chain,
    Host,
    HostCall,
    Program,
    ReplayedWork,
    StreamPlace,
    waits,
)
from gpuscope.simulator.forecast.served_anew import ServedRound
from gpuscope.simulator.models.assumed import GRAPH_LAUNCH_CALL_NS

_GRAPH_GAP_NS, _GRAPH_NODE_NS, _GRAPH_STARTS_NS, _GRAPH_FOLLOWS_NS = 280, 1_000, 1_500, 7_500
_GRAPH_TAKES = 0.94
"""Measured on an H200: the gap between nodes; what a node costs the host while CUPTI records; how
long after its call, and after the work before it, a graph starts; and what a kernel takes as a node
of what it takes as a launch, which finds the GPU idle."""
_REPEATS = 0.05
"""Nine of ten kernel times repeat as closely when they are measured again."""
_PAUSE_NS = 1_000_000
"""A host that does not call for longer than this does something else."""
_WAITS = -1
"""What a thread yields while it waits for work."""


@dataclass(frozen=True)
class Replayed:
    """What a replay gave.

    Attributes
    ----------
    times_ns
        Work → start and end.
    calls_ns
        Place of a call → start and end; calls that requests did not need have none.
    requests
        Id of its row → a request that has its tokens.
    """

    times_ns: Mapping[ReplayedWork, tuple[int, int]]
    calls_ns: Mapping[int, tuple[int, int]]
    requests: Mapping[int, Request]


@dataclass(eq=False)
class Replay:
    """One run of a program on the simulated GPU: the host's threads before the engine.

    Attributes
    ----------
    places
        Stream → its SMs and priority.
    as_recorded
        Streams whose work shares its SMs as it did.
    factors
        Work → how many times as long as modelled it takes.
    streams
        Work → its stream, where it is not the recorded one.
    graphs
        Place of a call → place of the first call of the graph that it became part of.
    is_as_it_was
        Whether nothing was changed: work takes what it took.
    lean
        -1: every modelled time, and the host's, at the lower end of its range; 0: as modelled;
        1: at the upper.
    requests
        Requests whose calls are made as they need them.
    """

    program: Program
    places: Mapping[int, StreamPlace]
    as_recorded: frozenset[int]
    factors: Mapping[ReplayedWork, float]
    streams: Mapping[ReplayedWork, int] = field(default_factory=dict)
    graphs: Mapping[int, int] = field(default_factory=dict)
    lean: int = 0
    requests: Sequence[ServedRound] = ()
    is_as_it_was: bool = False

    def __post_init__(self) -> None:
        turns = [turn for request in self.requests for turn in request.turns]
        self.served = set(chain.from_iterable(turns))
        self.answered: dict[int, Request] = {}
        self.servings = {
            request: request.make(partial(self._note, request)) for request in self.requests
        }
        self.begun: set[ServedRound] = set()
        program, profile = self.program, self.program.profile
        self.host = {
            thread: 1 + self.lean * spread for thread, spread in program.host_spread.items()
        }
        self.engine = Engine(
            (1 << profile.layout.sm_count) - 1,
            launch_latency_ns=0,
            kernel_gap_ns=program.gap_ns,
            memory=profile.memory,
        )
        starts_ns = [work.start_ns for work in program.works[:1]]
        self.first_ns = min(starts_ns + [call.start_ns for call in program.calls[:1]])
        self.lanes: dict[tuple[int, int], SimStream] = {}
        self.ops: dict[ReplayedWork, WaveOp] = {
            work: self._op(number, work)
            for number, work in enumerate([*program.works, *program.copies])
        }
        self.calls_ns: dict[int, tuple[int, int]] = {}
        self.busy_ns: dict[Host, tuple[int, int]] = defaultdict(lambda: (0, 0))
        """Start and end of a thread's latest launch: it makes one at a time."""
        self.over_ns: dict[tuple[Host, int], int] = defaultdict(int)
        """When a thread's latest call in a round was over, so far."""
        self.left = Counter(
            (call.host, call.round)
            for number, call in enumerate(program.calls)
            if number not in self.served
        )
        self.before: dict[ReplayedWork, ReplayedWork] = {}
        self.then: dict[ReplayedWork, ReplayedWork] = {}
        self.queued: set[ReplayedWork] = set()
        self.ready_ns: dict[ReplayedWork, int] = {}
        self.waits = waits([*program.works, *program.copies])
        queues: dict[SimStream, list[ReplayedWork]] = defaultdict(list)
        for work, op in self.ops.items():
            if work.call not in self.served:  # those are queued as they are launched
                queues[op.stream].append(work)
        for queue in queues.values():
            if any(work in self.streams for work in queue):  # in the order of their launches
                queue.sort(key=lambda work: (work.call is not None, work.call or 0))
            for before, work in pairwise(queue):
                self.before[work], self.then[before] = before, work

    def _lane(self, work: ReplayedWork) -> SimStream:
        stream = self.streams.get(work, work.lane[0])
        key = (stream, work.lane[1] if stream == work.lane[0] else 0)
        if key not in self.lanes:
            home = self.places[stream]
            self.lanes[key] = SimStream(len(self.lanes) + 1, home.sms, home.priority)
        return self.lanes[key]

    def _op(self, number: int, work: ReplayedWork) -> WaveOp:
        stream = self._lane(work)
        is_as_recorded = work.row["stream"] in self.as_recorded
        gap_ns = work.gap_ns + (self._late_ns(work) if work.by_stream else 0)
        in_graph = work.call in self.graphs
        if in_graph and self.program.is_measured:
            gap_ns = _GRAPH_FOLLOWS_NS if self._begins_graph(work) else _GRAPH_GAP_NS
        elif in_graph:
            gap_ns = min(gap_ns, self.program.gap_ns)
        factor = self.factors.get(work, 1.0)
        if work.kernel is None or (is_as_recorded and work.beside) or self.is_as_it_was:
            took_ns = float(work.took_ns)
            if work.kernel is not None:
                took_ns *= 1 + self.lean * _REPEATS
            if work.kernel is not None and work.kernel.scale != 1.0:
                took_ns *= work.kernel.duration_ns(work.sm_count) / work.alone_ns
            engine = f"lane {stream.handle}"
            if work.row["kind"] == "memcpy" and not is_as_recorded:
                engine = str(work.row["copy_kind"])
            cost = KernelCost(1, max(1, round(took_ns * factor)), gap_ns=gap_ns)
            return CopyOp(stream, 0, number, work.row["name"], None, cost, engine=engine)
        count = stream.sms.bit_count()
        cost = work.kernel.cost(count, gap_ns=gap_ns)
        took_ns, (low, high) = work.kernel.duration_ns(count), work.kernel.range_ns(count)
        low, high = min(low, took_ns * (1 - _REPEATS)), max(high, took_ns * (1 + _REPEATS))
        factor *= (low, took_ns, high)[self.lean + 1] / took_ns
        if in_graph and self.program.is_measured:
            factor *= _GRAPH_TAKES
        # Work that is made faster takes fewer bytes: what it takes is what is asked about.
        share = min(1.0, self.factors.get(work, 1.0))
        nbytes = round(cost.nbytes * share)
        cost = replace(
            cost,
            block_ns=max(1, round(cost.block_ns * factor)),
            nbytes=nbytes,
            traffic=round(cost.traffic * share),
            exposure=cost.exposure * (1 + 0.5 * self.lean),
            cold_nbytes=max(nbytes, cost.cold_nbytes),
            power=0.0,
            share=1.0,
        )
        return KernelOp(stream, 0, number, work.row["name"], None, cost)

    def _begins_graph(self, work: ReplayedWork) -> bool:
        """Return whether it is the first work of a graph's first call."""
        first = work.call == self.graphs.get(work.call or 0)
        return first and work is self.program.calls[work.call or 0].launches[0]

    def _late_ns(self, work: ReplayedWork) -> int:
        """Return how late work starts for no known reason: SMs that were taken are the engine's."""
        is_as_recorded = work.row["stream"] in self.as_recorded
        return 0 if work.waited_for_sms and not is_as_recorded else work.late_ns

    def play(self) -> Replayed:
        """Let the threads call, and the engine run, in the order of their virtual times."""
        places: dict[Chain, list[int]] = defaultdict(list)
        for position, call in enumerate(self.program.calls):
            if position not in self.served:
                places[call.thread].append(position)
        threads = [self._thread(calls) for calls in places.values()]
        for request in self.requests:
            serving = self.servings[request]
            serving.keep(request.rows)
            threads.append(self._serve(request, serving.prefill, request.prefill))
            threads.append(self._serve(request, serving.decode, request.decode))
        begun = [(next(thread, None), number) for number, thread in enumerate(threads)]
        due = [(at_ns, number) for at_ns, number in begun if at_ns is not None and at_ns >= 0]
        heapq.heapify(due)
        waiting = {number for at_ns, number in begun if at_ns == _WAITS}
        for work in self.program.works:
            if work.call is None and work not in self.before:
                self._submit(work, self.first_ns)
        while True:
            ready = sorted(waiting)
            if not self.engine.step(due[0][0] if due else None):
                if not due:
                    break
                at_ns, number = heapq.heappop(due)
                self.engine.run_until(at_ns)
                ready = [number, *ready]
            for number in ready:
                then_ns = next(threads[number], None)
                waiting.discard(number)
                if then_ns == _WAITS:
                    waiting.add(number)
                elif then_ns is not None:
                    heapq.heappush(due, (then_ns, number))
        return Replayed(self.times_ns(), self.calls_ns, self.answered)

    def times_ns(self) -> Mapping[ReplayedWork, tuple[int, int]]:
        """Return when work ran, that of calls that requests did not need left out."""
        times_ns = {}
        for work, op in self.ops.items():
            if work.call in self.served and work.call not in self.calls_ns:
                continue
            if op.start_ns is None or op.done_ns is None:
                raise InvalidArgument(
                    f"{op.name!r} can never start: the waits form a circle, or are for work that "
                    "is launched later. Drop a wait, or add another one"
                )
            times_ns[work] = op.start_ns, op.done_ns
        return times_ns

    def _note(self, served: ServedRound, request: Request) -> None:
        self.answered[served.rows[request.number]] = request

    def _thread(self, places: list[int]) -> Iterator[int]:
        """Make a thread's calls; yields when it goes on, or ``_WAITS`` until the engine moved."""
        now_ns = yield from self._begun(places[0], self.program.calls[places[0]].start_ns)
        yield from self._make(places, now_ns)

    def _host_ns(self, call: HostCall, time_ns: int) -> int:
        """Return how long the host takes for what it took so long for; a pause stays as it is."""
        return time_ns if time_ns > _PAUSE_NS else round(time_ns * self.host[call.thread])

    def _begun(
        self, index: int, ready_ns: int, lags_ns: tuple[int, ...] | None = None
    ) -> Generator[int, None, int]:
        """Wait until the host begins a call; returns when.

        It launches one thing at a time: who waits for it lets go first what came first in the
        recording, unless that is later now.
        """
        call = self.program.calls[index]
        *others_ns, last_ns = call.lags_ns if lags_ns is None else lags_ns
        if self.busy_ns[call.host][0] >= ready_ns:  # one has just gone first
            others_ns = others_ns[1:]
        for lag_ns in chain(others_ns, repeat(last_ns)):
            busy = self.busy_ns[call.host]
            now_ns = max(ready_ns, busy[1]) + self._host_ns(call, lag_ns)
            yield now_ns
            later = self.busy_ns[call.host]
            if later == busy or (call.looks and later[0] == now_ns):
                break
        return now_ns

    def _serve(self, served: ServedRound, feed: Feed, turns: Sequence[list[int]]) -> Iterator[int]:
        """Make a workload's calls as requests need them."""
        while served.follows is not None and not self.servings[served.follows].decode.over:
            yield _WAITS
        now_ns = max(served.begin_ns, self.engine.now_ns)
        if served not in self.begun:
            self.begun.add(served)
            self.servings[served].begin(now_ns)
        for turn in turns:
            while (due_ns := feed.due_ns) is None and not feed.over:
                yield _WAITS
            if due_ns is None:
                return
            now_ns = max(now_ns, due_ns, self.engine.now_ns)
            lags_ns = served.lags_ns.get(turn[0])
            now_ns = yield from self._begun(turn[0], now_ns, lags_ns)
            feed.take()
            now_ns = yield from self._make(turn, now_ns)
            yield now_ns
            feed.ended(now_ns)

    def _make(self, places: list[int], now_ns: int) -> Generator[int, None, int]:
        """Make calls, from a time on; returns when the last is over."""
        before: HostCall | None = None
        latest = {self.graphs[position]: position for position in places if position in self.graphs}
        nodes: dict[int, list[ReplayedWork]] = defaultdict(list)
        for position in places:
            call = self.program.calls[position]
            leader = self.graphs.get(position)
            inside = leader is not None and leader != position
            began_ns = now_ns
            if before is not None and not inside:
                now_ns = yield from self._reached(position, before, now_ns)
                began_ns = began_ns if call.looks else now_ns
            if leader is not None:
                took_ns = 0 if inside else GRAPH_LAUNCH_CALL_NS
                took_ns += _GRAPH_NODE_NS * len(call.launches) * self.program.is_measured
                now_ns += self._host_ns(call, took_ns)
                nodes[leader] += call.launches
            elif not call.waits_for:
                now_ns += self._host_ns(call, call.own_ns)
            if leader is None:
                for work in call.launches:
                    self._submit(work, began_ns)
            elif latest[leader] == position:  # all nodes are launched when the call is over
                for work in nodes.pop(leader):
                    self._submit(work, now_ns)
            for work in call.waits_for:
                now_ns = yield from self._done(work, now_ns)
            if call.waits_for:
                now_ns += self._host_ns(call, call.own_ns)
            self.calls_ns[position] = (began_ns, now_ns)
            if call.launches:
                self.busy_ns[call.host] = began_ns, now_ns
            number = call.host, call.round
            self.over_ns[number] = max(self.over_ns[number], now_ns)
            self.left[number] -= 1
            before = call
        return now_ns

    def _reached(self, index: int, before: HostCall, now_ns: int) -> Generator[int, None, int]:
        """Wait until the host begins the call after one, or sees done what it looks for."""
        call = self.program.calls[index]
        if before.round < call.round:
            number = call.host, before.round
            while self.left[number]:
                yield _WAITS
            now_ns = max(now_ns, self.over_ns[number])
        for work in call.waits_for if call.looks else ():
            now_ns = yield from self._done(work, now_ns)
        ready_ns = max(now_ns, call.start_ns) if call.paced else now_ns
        return (yield from self._begun(index, ready_ns))

    def _done(self, work: ReplayedWork, now_ns: int) -> Generator[int, None, int]:
        """Wait until work is done."""
        op = self.ops[work]
        while op.done_ns is None:
            yield _WAITS
        return max(now_ns, op.done_ns)

    def _submit(self, work: ReplayedWork, now_ns: int) -> None:
        """Queue work once what is before it in its lane is queued, and what was held for it."""
        if work in self.before and self.before[work] not in self.queued:
            self.ready_ns[work] = now_ns
            return
        at: ReplayedWork | None = work
        while at is not None:
            op = self.ops[at]
            now_ns = self.ready_ns.pop(at, now_ns)
            for other in self.waits.get(at, ()):
                self.engine.submit(StreamWait(op.stream, now_ns, 0, self.ops[other]))
            if at.call in self.graphs:
                op.queued_ns = now_ns + _GRAPH_STARTS_NS
            elif at.call is not None:
                latency_ns = self._host_ns(self.program.calls[at.call], at.latency_ns)
                op.queued_ns = now_ns + latency_ns + (0 if at.by_stream else self._late_ns(at))
            else:
                op.queued_ns = now_ns if at in self.before or at in self.waits else at.start_ns
            self.engine.submit(op)
            self.queued.add(at)
            then = self.then.get(at)
            at = then if then is not None and (then.call is None or then in self.ready_ns) else None
