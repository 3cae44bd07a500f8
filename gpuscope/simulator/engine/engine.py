"""The discrete-event engine: streams, events, SM slots, copy engines, memory bandwidth.

Work enters at the virtual time at which the host queued it, so the engine can run late:
nothing that the host does later can change what happened before. A piece of work starts
when what it must follow is done: the work before it in its stream, the record that a wait
names, across the legacy default stream's barrier, or inside a graph. A kernel is a number
of equal blocks; each holds one SM of the stream's partition. Blocks take free SMs in the
order in which their kernels became ready, higher priority first, and nothing is
pre-empted; so an unpartitioned kernel queues behind one that fills the GPU, and a tail
lets the next one in. A block of a persistent kernel holds its SM for several tiles: its own
first, then whichever is left.

Blocks that start together advance together, as one counted *wave*. Waves share the memory
bandwidth max-min fairly: where all of them ask for more than there is, every block gets
what it asks for up to one common level. What stalls on memory under load goes slower by what
others move (``stall``), and what computes goes slower while all together would draw more power
than the GPU may for long. A wave has
``work_ns * FULL`` units of work left, and does ``speed`` of them a nanosecond.

Each step begins with a checkpoint for interrupts; none strikes inside one.
"""

from __future__ import annotations

import heapq
import weakref
from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from gpuscope import _interrupts
from gpuscope.device.api import Activity, Release
from gpuscope.errors import StreamError
from gpuscope.simulator.engine.ops import (
    FULL,
    CopyOp,
    Failure,
    GraphOp,
    HostOp,
    KernelOp,
    Op,
    SimStream,
    Wait,
    Wave,
    WaveOp,
    lowest,
)
from gpuscope.simulator.models.assumed import IDLE_POWER, POWER_FOLLOWS_NS

_T = TypeVar("_T")
_ORDERED_BY_EVENTS = ("kernel", "memcpy")


class Engine:
    """Runs work on virtual SMs.

    Parameters
    ----------
    sms
        Bit mask of all SMs.
    launch_latency_ns
        From a kernel being queued on an idle stream to its first block.
    kernel_gap_ns
        Between one kernel's end and the next one's start on one stream.
    bytes_per_us
        Memory bandwidth that everything shares; ``None`` for no limit.
    """

    def __init__(
        self,
        sms: int,
        *,
        launch_latency_ns: int,
        kernel_gap_ns: int,
        bytes_per_us: int | None = None,
    ) -> None:
        self.free = sms
        self.now_ns = 0
        self.sink: Callable[[Activity], None] | None = None
        self.legacy = SimStream(0, sms, 0)
        self.blocking: weakref.WeakKeyDictionary[SimStream, None] = weakref.WeakKeyDictionary()
        self.failures: list[Failure] = []
        self._launch_latency_ns = launch_latency_ns
        self._kernel_gap_ns = kernel_gap_ns
        self._heap: list[tuple[int, int, partial[None]]] = []  # when, a number, what
        self._sequence = 0
        self._ready: list[tuple[int, int, int, int, KernelOp]] = []  # sorted
        self._copies: dict[str, list[tuple[int, int, int, CopyOp]]] = {}
        self._copying: set[str] = set()
        self._copies_wait = False
        self._bandwidth = None if bytes_per_us is None else bytes_per_us * FULL // 1000
        self._sharing: dict[Wave, int] = {}  # each wave, and what it asks for
        self._shared = False  # whether anything runs slower than it could
        self._demand_changed = False
        self._drawn = (IDLE_POWER, 0, IDLE_POWER)  # power, of FULL: drawn at a time, and asked for
        self._released: list[tuple[int, KernelOp]] = []  # SMs, and who released them, at an instant
        self._released_ns = -1

    # -- queueing ---------------------------------------------------------------------
    def submit(self, op: Op) -> None:
        """Queue ``op`` at its stream's tail."""
        stream = op.stream
        last = stream.last
        behind: list[Op] = []
        if last is not None:
            self._follow(op, last, behind)
        if op.after is not None:
            self._follow(op, op.after, behind)
        if stream.blocking:
            if self.legacy.last is not None:
                self._follow(op, self.legacy.last, behind)
        elif stream is self.legacy:
            for other in self.blocking:
                if other.last is not None:
                    self._follow(op, other.last, behind)
        op.behind = tuple(behind)
        op.number = 1 if last is None else last.number + 1
        stream.last = op
        if isinstance(op, GraphOp):
            op.graph.last = op
        self._wake(op)

    def _follow(self, op: Op, before: Op, behind: list[Op]) -> None:
        """Let ``op`` start no earlier than ``before`` is done; what is not goes to ``behind``."""
        if before.done_ns is None:
            behind.append(before)
        else:
            _note_done(op, before, before.done_ns)

    def _wake(self, op: Op) -> None:
        """Take up work if all that it must follow is done; else look again when more is."""
        for before in op.behind:
            if before.done_ns is None:
                if before.followers is None:
                    before.followers = [op]
                else:
                    before.followers.append(op)
                return
            _note_done(op, before, before.done_ns)
        self._start(op)

    def _at(self, time_ns: int, action: Callable[[_T], None], subject: _T) -> None:
        self._sequence += 1
        due_ns = time_ns if time_ns > self.now_ns else self.now_ns
        heapq.heappush(self._heap, (due_ns, self._sequence, partial(action, subject)))

    # -- running ----------------------------------------------------------------------
    def run_until(self, time_ns: int) -> None:
        """Let everything happen that happens up to ``time_ns``."""
        heap = self._heap
        while heap and heap[0][0] <= time_ns:
            self._step()
        self.now_ns = time_ns if time_ns > self.now_ns else self.now_ns

    def step(self, time_ns: int | None) -> bool:
        """Let the next instant happen if it comes before ``time_ns``; says whether it did."""
        if not self._heap or (time_ns is not None and self._heap[0][0] >= time_ns):
            return False
        self._step()
        return True

    def run_until_done(self, op: Op | None) -> int:
        """Run until ``op`` is done; returns when that was."""
        if op is None:
            return self.now_ns
        while op.done_ns is None:
            self._step_for(op.name)
        return op.done_ns

    def run_until_room(self, stream: SimStream, depth: int) -> int:
        """Run until fewer than ``depth`` pieces of work wait in ``stream``; returns when."""
        while stream.depth >= depth:
            self._step_for("the next launch")
        return self.now_ns

    def _step_for(self, name: str) -> None:
        if not self._heap:
            raise StreamError(
                f"{name!r} can never finish: its stream waits for work that is not queued"
            )
        self._step()

    def run_all(self) -> int:
        """Run until nothing is left; returns when the last thing ended."""
        while self._heap:
            self._step()
        return self.now_ns

    def _step(self) -> None:
        """Let everything happen that happens at the next instant, then hand out what is free."""
        if _interrupts.pending:
            _interrupts.deliver()
        heap = self._heap
        self.now_ns = heap[0][0]
        while heap and heap[0][0] == self.now_ns:
            heapq.heappop(heap)[2]()
        if self._ready and self.free:
            self._dispatch()
        if self._copies_wait:
            self._dispatch_copies()
        if self._demand_changed:
            self._share()

    def _start(self, op: Op) -> None:
        """Let work begin as soon as it can, now that all it must follow is done."""
        if isinstance(op, KernelOp):
            op.ready_ns = self._ready_ns(op)
            self._at(op.ready_ns, self._enter, op)
        elif isinstance(op, GraphOp) and op.graph.nodes:
            self._at(self._ready_ns(op), self._expand, op)
        else:
            gap_ns = op.gap_ns or 0 if isinstance(op, CopyOp) else 0
            self._at(max(op.queued_ns, op.free_ns + gap_ns), self._begin, op)

    def _ready_ns(self, op: Op) -> int:
        launched_ns = op.queued_ns + self._launch_latency_ns
        gap_ns = op.gap_ns if isinstance(op, KernelOp) else None
        free_ns = op.free_ns + (self._kernel_gap_ns if gap_ns is None else gap_ns)
        return launched_ns if launched_ns > free_ns else free_ns

    def _begin(self, op: Op) -> None:
        """Start what needs no SM."""
        if isinstance(op, CopyOp):
            self._sequence += 1
            entry = (self.now_ns, op.correlation, self._sequence, op)
            heapq.heappush(self._copies.setdefault(op.engine, []), entry)
            self._copies_wait = True
            return
        op.start_ns = self.now_ns
        if isinstance(op, HostOp):
            try:
                op.function()
            except Exception as error:  # noqa: BLE001 - who waits for it is told
                self._fail(op, error)
            self._at(op.start_ns + op.duration_ns, self._finish, op)
            return
        if isinstance(op, Wait):
            self._note_wait(op)
        self._finish(op)

    def _note_wait(self, op: Wait) -> None:
        """Remember a record that held the stream back."""
        before_ns = op.before.done_ns if op.before is not None else None
        target_ns = op.after.done_ns if op.after is not None else None
        held = (target_ns or 0) > max(op.queued_ns, before_ns or 0)
        if held and op.correlation not in op.stream.waited:
            op.stream.waited += (op.correlation,)

    def _expand(self, op: GraphOp) -> None:
        """Start a graph: make its nodes, and let those run that follow none."""
        for number, (captured, after) in enumerate(op.graph.nodes):
            node = captured.again(op.queued_ns, op.correlation)
            node.owner, node.node = op, number
            node.free_ns = self.now_ns - self._kernel_gap_ns
            node.behind = [op.nodes[before] for before in after]
            op.nodes.append(node)
        for node in op.nodes:
            self._wake(node)

    def _look_at(self, op: GraphOp) -> None:
        """Finish a graph if all of its nodes are done."""
        nodes = op.nodes
        while op.done < len(nodes) and nodes[op.done].done_ns is not None:
            op.done += 1
        if op.done == len(nodes):
            self._finish(op)

    # -- SMs and copy engines ---------------------------------------------------------
    def _enter(self, op: KernelOp) -> None:
        self._sequence += 1  # decides between equals: operations have no order of their own
        op.turn = self._sequence
        insort(self._ready, (op.stream.priority, op.ready_ns, op.correlation, op.turn, op))

    def _dispatch(self) -> None:
        """Give free SMs to ready kernels, in order; a kernel short of SMs stays in front."""
        ready, index = self._ready, 0
        while index < len(ready) and self.free:
            op = ready[index][-1]
            usable = self.free & op.stream.sms
            if usable and (op.left or op.start_ns is None):
                self._place(op, usable)
            if op.left or op.start_ns is None:
                index += 1
            else:
                del ready[index]

    def _place(self, op: KernelOp, usable: int) -> None:
        available = usable.bit_count()
        count = op.left
        taken = usable
        if count < available:
            taken = lowest(usable, count)
        else:
            count = available
        if op.start_ns is None and op.ready_ns < self.now_ns == self._released_ns:
            op.released_by = _releases(op, taken, self._released)
        wave = Wave(op, taken, count, op.left - count, self.now_ns)
        if op.spare:
            held = not wave.left or taken == op.stream.sms
            wave.take_tiles(op, op.spare, alone=held and not op.running)
        self._run(wave)

    def _dispatch_copies(self) -> None:
        """Give free copy engines to copies, in the order in which they became ready."""
        for engine, waiting in self._copies.items():
            if waiting and engine not in self._copying:
                self._run(Wave(heapq.heappop(waiting)[-1], 0, 1, 0, self.now_ns))
        self._copies_wait = False

    def _run(self, wave: Wave) -> None:
        """Let a wave run, which has what it needs."""
        op = wave.op
        if op.start_ns is None:
            try:
                if isinstance(op, KernelOp) and op.together is not None:
                    op.commit = op.together.begin(self.now_ns)
                else:
                    op.commit = op.effect() if op.effect else None
            except Exception as error:  # noqa: BLE001 - who waits for it is told
                self._fail(op, error)
            op.start_ns = self.now_ns
        if op.shares:
            self._sharing[wave] = op.rate * wave.count
            self._demand_changed = True
        if isinstance(op, KernelOp):
            self.free &= ~wave.sms
            if op.running is None:
                op.running = {}
            op.running[wave] = None
            op.left, op.spare = wave.left, wave.spare
        elif isinstance(op, CopyOp):
            self._copying.add(op.engine)
        self._at(wave.end_ns, self._end, wave)

    def _release(self, op: KernelOp, wave: Wave, sms: int) -> None:
        """Free SMs that a wave's blocks held, and note who held them."""
        if self._released_ns != self.now_ns:
            self._released.clear()
            self._released_ns = self.now_ns
        if sms:
            self._released.append((sms, op))
            if self.sink is not None:
                op.held = op.held or []
                op.held.append((sms, wave.since_ns, self.now_ns))
        self.free |= sms
        if op.running is not None:
            op.running.pop(wave, None)

    def _end(self, wave: Wave) -> None:
        """End a wave, unless its end was put off or is past; its blocks may go on."""
        if wave.end_ns != self.now_ns:
            return
        op = wave.op
        if isinstance(op, KernelOp) and op.together is not None and self._lasts(op, wave):
            return
        released = wave.sms
        if isinstance(op, KernelOp) and op.spare:
            following = wave.follow(op, self.now_ns)
            released &= ~following.sms
            self._run(following)
        if op.shares:
            self._sharing.pop(wave, None)
            self._demand_changed = True
        if isinstance(op, KernelOp):
            self._release(op, wave, released)
            is_over = not (op.left or op.running)
        else:
            assert isinstance(op, CopyOp)  # noqa: S101 - the other kind that has waves
            self._copying.discard(op.engine)
            is_over = self._copies_wait = True
        if is_over:
            if op.commit is not None:
                try:
                    op.commit()
                except Exception as error:  # noqa: BLE001 - who waits for it is told
                    self._fail(op, error)
                op.commit = None
            op.effect = None
            self._finish(op)
        wave.end_ns = -1

    def _lasts(self, op: KernelOp, wave: Wave) -> bool:
        """Put off the end of a collective's last blocks for as long as other ranks need."""
        if op.left or len(op.running or ()) > 1 or op.commit is None:
            return False
        assert op.together is not None  # noqa: S101 - or nobody asks
        assert op.start_ns is not None  # noqa: S101 - it is about to end
        try:
            end_ns = op.together.end_ns(op.start_ns, self.now_ns)
        except Exception as error:  # noqa: BLE001 - who waits for it is told
            self._fail(op, error)
            op.commit = None
            return False
        if end_ns <= self.now_ns:
            return False
        self._sharing.pop(wave, None)  # it waits, and moves nothing
        self._demand_changed = True
        wave.end_ns = end_ns
        self._at(end_ns, self._end, wave)
        return True

    # -- what is shared ---------------------------------------------------------------
    def _share(self) -> None:
        """Let waves advance as fast as bandwidth, the load on memory, and power allow."""
        asked, clock = sum(self._sharing.values()), self._clock()
        several = len(self._sharing) > 1
        if self._bandwidth is not None and (
            self._shared or several or clock < FULL or asked > self._bandwidth
        ):
            level = None
            if asked > self._bandwidth:
                level = fair_level(self._bandwidth, ((w.op.rate, w.count) for w in self._sharing))
            pressures: dict[WaveOp, int] = {}
            for wave in self._sharing:
                pressures[wave.op] = pressures.get(wave.op, 0) + wave.op.pressure * wave.count
            pressure, shared = sum(pressures.values()), False
            for wave in self._sharing:
                op = wave.op
                speed = clock if op.power else FULL
                if op.stall:
                    others = min(1.0, (pressure - pressures[op]) / self._bandwidth)
                    speed = int(speed / (1 + op.stall * others))
                speed = min(speed, speed_at(level, op.rate))
                shared |= speed < FULL
                left, since_ns, before = wave.pace
                if speed != before:
                    left -= (self.now_ns - since_ns) * before
                    end_ns = self.now_ns - (-left // speed)
                    self._at(end_ns, self._end, wave)
                    wave.end_ns = end_ns
                    wave.pace = (left, self.now_ns, speed)
            self._shared = shared
        self._demand_changed = False

    def _clock(self) -> int:
        """Return how fast SMs may go: power drawn, which follows the demand slowly, has a cap."""
        drawn, since_ns, demand = self._drawn
        gone_ns = self.now_ns - since_ns
        drawn += (demand - drawn) * gone_ns // (POWER_FOLLOWS_NS + gone_ns)
        demand = IDLE_POWER + sum(wave.op.power * wave.count for wave in self._sharing)
        self._drawn = (drawn, self.now_ns, demand)
        return FULL if drawn <= FULL else FULL * FULL // drawn

    # -- ends -------------------------------------------------------------------------
    def _fail(self, op: Op, error: Exception) -> None:
        """Keep what a piece of work raised for who waits for it; what follows it goes on."""
        op.failure = Failure(error, op.failure)
        self.failures = [failure for failure in self.failures if not failure.told] + [op.failure]

    def _finish(self, op: Op) -> None:
        op.done_ns = self.now_ns
        stream, owner = op.stream, op.owner
        if self.sink is not None and op.kind != "wait":
            self._report(self.sink, op)
        if owner is None:
            stream.done = op.number
            if stream.waited and op.kind in _ORDERED_BY_EVENTS:
                stream.waited = ()
        for follower in op.followers or ():
            self._wake(follower)
        if owner is not None:
            if owner.start_ns is None or (op.start_ns or 0) < owner.start_ns:
                owner.start_ns = op.start_ns
            _note_failure(owner, op)
            self._look_at(owner)
        op.forget()

    def _report(self, sink: Callable[[Activity], None], op: Op) -> None:
        assert op.start_ns is not None  # noqa: S101 - it is done, so it started
        held = op.owner is None and op.kind in _ORDERED_BY_EVENTS
        after: Sequence[int] = ()
        if op.owner is not None and op.node is not None:
            after = op.owner.graph.nodes[op.node][1]
        sink(
            Activity(
                op.kind,
                op.name,
                op.correlation,
                op.queued_ns,
                op.start_ns,
                self.now_ns,
                op.stream.waited if held else (),
                op.node,
                op.stream.context,
                tuple(after),
                op.released_by if isinstance(op, KernelOp) else (),
                tuple(op.held or ()) if isinstance(op, KernelOp) else (),
                op.engine if isinstance(op, CopyOp) else None,
                op.nbytes if isinstance(op, CopyOp) else None,
                op.launch_config if isinstance(op, KernelOp) else None,
            )
        )


def _note_done(op: Op, before: Op, done_ns: int) -> None:
    """Let ``op`` know of work that it follows and that was done at ``done_ns``."""
    op.free_ns = done_ns if done_ns > op.free_ns else op.free_ns
    if before.failure is not None:
        _note_failure(op, before)


def _note_failure(op: Op, before: Op) -> None:
    failure = before.failure
    if failure is not None and failure is not op.failure and failure.first() is not None:
        op.failure = failure


def _turn(op: KernelOp) -> tuple[int, int, int]:
    """Return the order in which kernels of one priority get SMs."""
    return op.ready_ns, op.correlation, op.turn


def _releases(
    op: KernelOp, taken: int, released: Iterable[tuple[int, KernelOp]]
) -> tuple[Release, ...]:
    """Return who released the SMs that ``op`` took at an instant, each once."""
    releases: dict[Release, None] = {}
    for sms, other in released:
        if sms & taken:
            later = _turn(other) > _turn(op)
            ahead = later and other.stream.priority < op.stream.priority
            releases[Release(other.correlation, other.node, ahead)] = None
    return tuple(releases)


def fair_level(bandwidth: int, asked: Iterable[tuple[int, int]]) -> int | None:
    """Return what a block may have at most, for all to have no more than ``bandwidth``.

    Parameters
    ----------
    asked
        What each block of a wave asks for, and how many blocks the wave has.

    Returns
    -------
    int or None
        The max-min fair level; ``None`` where everybody can have what they ask for.
    """
    left, waves = bandwidth, sorted(asked)
    blocks = sum(count for _, count in waves)
    for rate, count in waves:
        if rate * blocks > left:
            return left // blocks
        left -= rate * count
        blocks -= count
    return None


def speed_at(level: int | None, rate: int) -> int:
    """Return how fast a block goes that asks for ``rate`` and may have ``level``."""
    if level is None or rate <= level:
        return FULL
    return max(1, FULL * level // rate)
