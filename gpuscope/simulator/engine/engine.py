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

Blocks that start together advance as one counted *wave*, which shares memory, cache and power.

Each step begins with a checkpoint for interrupts; none strikes inside one.
"""

from __future__ import annotations

import heapq
import weakref
from bisect import insort
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from gpuscope import _interrupts
from gpuscope.device.api import Activity
from gpuscope.errors import StreamError
from gpuscope.simulator.engine.activities import activity_of, releases_of
from gpuscope.simulator.engine.energy import Energy
from gpuscope.simulator.engine.failure import Failure
from gpuscope.simulator.engine.ops import (
    ORDERED_BY_EVENTS,
    CopyOp,
    GraphOp,
    HostOp,
    KernelOp,
    Op,
    SimStream,
    StreamWait,
)
from gpuscope.simulator.engine.room import Room
from gpuscope.simulator.engine.waves import Sharing, Wave, waves_of
from gpuscope.simulator.models.memory_model import LoadedMemory

_R = TypeVar("_R")
_T = TypeVar("_T")


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
    memory
        That everything shares; ``None`` for no limit.
    """

    def __init__(
        self,
        sms: int,
        *,
        launch_latency_ns: int,
        kernel_gap_ns: int,
        memory: LoadedMemory | None = None,
    ) -> None:
        self.room = Room(sms)
        self.now_ns = 0
        self.sink: Callable[[Activity], None] | None = None
        self.legacy = SimStream(0, sms, 0)
        self.blocking: weakref.WeakKeyDictionary[SimStream, None] = weakref.WeakKeyDictionary()
        self.failures: list[Failure] = []
        self.function_ns: int | None = None  # the clock of the host function that runs
        self._launch_latency_ns = launch_latency_ns
        self._kernel_gap_ns = kernel_gap_ns
        self._heap: list[tuple[int, int, Callable[..., None], object]] = []  # when, a number, what
        self._sequence = 0
        self._ends: dict[Wave, int] = {}  # to be queued, each with a number
        self._ready: list[tuple[int, int, int, int, KernelOp]] = []  # sorted
        self._copies: dict[str, list[tuple[int, int, int, CopyOp]]] = {}
        self._copying: set[str] = set()
        self._copies_wait = False
        self._sharing = Sharing(memory, sms.bit_count())
        self._sms = sms
        self._energy: Energy | None = None  # until anybody asks
        self._released: list[tuple[int, KernelOp]] = []  # SMs, and who released them, at an instant
        self._released_ns = -1

    # -- queueing ---------------------------------------------------------------------
    def submit(self, op: Op) -> None:
        """Queue ``op`` at its stream's tail."""
        stream, legacy = op.stream, self.legacy
        before = [stream.last, op.after]
        if stream.blocking:
            before.append(legacy.last)
        elif stream is legacy:
            before += [other.last for other in self.blocking]
        op.behind = tuple([other for other in before if other is not None])
        op.number = stream.last.number + 1 if stream.last is not None else 1
        stream.last = op
        if isinstance(op, GraphOp):
            op.graph.last = op
        self._wake(op)

    def _wake(self, op: Op) -> None:
        """Take up work if all that it must follow is done; else look again when more is."""
        for before in op.behind:
            done_ns = before.done_ns
            if done_ns is None:
                if before.followers is None:
                    before.followers = []
                before.followers.append(op)
                return
            op.free_ns = done_ns if done_ns > op.free_ns else op.free_ns
            op.fail_like(before)
        self._start(op)

    def _at(self, time_ns: int, action: Callable[[_T], None], subject: _T) -> None:
        self._sequence += 1
        due_ns = time_ns if time_ns > self.now_ns else self.now_ns
        heapq.heappush(self._heap, (due_ns, self._sequence, action, subject))

    def _queue_ends(self) -> None:
        """Queue the ends of waves that began at this instant, and of those whose end moves.

        Of ends at one time, those that move come behind those of waves that have begun.
        """
        for wave in self._sharing.share(self.now_ns) if self._sharing.changed else ():
            self._sequence += 1
            self._ends[wave] = self._sequence
        for wave, number in self._ends.items():
            heapq.heappush(self._heap, (wave.end_ns, number, self._end, wave))
        self._ends.clear()

    # -- running ----------------------------------------------------------------------
    def run_until(self, time_ns: int) -> None:
        """Let everything happen that happens up to ``time_ns``."""
        heap = self._heap
        while heap and heap[0][0] <= time_ns:
            self._step()
        self.now_ns = max(time_ns, self.now_ns)

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

    def joules(self, now_ns: int) -> float:
        """Return what the GPU drew until a time, since the first that was asked for."""
        self._energy = self._energy or Energy(now_ns)
        return self._energy.follow(now_ns, self._sms & ~self.room.free, self._sharing)

    def _step(self) -> None:
        """Let everything happen that happens at the next instant, then hand out what is free."""
        if _interrupts.pending:
            _interrupts.deliver()
        heap = self._heap
        now_ns = self.now_ns = heap[0][0]
        while heap and heap[0][0] == now_ns:
            _, _, action, subject = heapq.heappop(heap)
            action(subject)
        if self._ready:
            self._dispatch()
        if self._copies_wait:
            self._dispatch_copies()
        if self._ends or self._sharing.changed:
            self._queue_ends()
        if self._energy is not None:
            self._energy.follow(now_ns, self._sms & ~self.room.free, self._sharing)

    def _start(self, op: Op) -> None:
        """Let work begin as soon as it can, now that all it must follow is done."""
        if isinstance(op, KernelOp):
            op.ready_ns = self._ready_ns(op)
            self._at(op.ready_ns, self._enter, op)
        elif isinstance(op, GraphOp) and op.graph.nodes:
            self._at(self._ready_ns(op), self._expand, op)
        else:
            gap_ns = op.cost.gap_ns or 0 if isinstance(op, CopyOp) else 0
            self._at(max(op.queued_ns, op.free_ns + gap_ns), self._begin, op)

    def _ready_ns(self, op: Op) -> int:
        launched_ns = op.queued_ns + self._launch_latency_ns
        gap_ns = op.cost.gap_ns if isinstance(op, KernelOp) else None
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
            self.function_ns = op.start_ns
            try:
                self._call(op, op.function)
            finally:  # though it be interrupted
                end_ns = max(self.function_ns, op.start_ns + op.duration_ns)
                self.function_ns = None
                self._at(end_ns, self._finish, op)
            return
        if isinstance(op, StreamWait):  # remember a record that held the stream back
            before_ns = (op.before and op.before.done_ns) or 0
            held_back = ((op.after and op.after.done_ns) or 0) > max(op.queued_ns, before_ns)
            if held_back and op.correlation not in op.stream.waited:
                op.stream.waited += (op.correlation,)
        self._finish(op)

    def _expand(self, op: GraphOp) -> None:
        """Start a graph: make its nodes, and let those run that follow none."""
        for number, (captured, after) in enumerate(op.graph.nodes):
            node = replace(captured, queued_ns=op.queued_ns, correlation=op.correlation)
            node.owner, node.node = op, number
            node.free_ns = self.now_ns - self._kernel_gap_ns
            node.behind = [op.nodes[before] for before in after]
            op.nodes.append(node)
        for node in op.nodes:
            self._wake(node)

    # -- SMs and copy engines ---------------------------------------------------------
    def _enter(self, op: KernelOp) -> None:
        self._sequence += 1  # decides between equals: operations have no order of their own
        op.turn = self._sequence
        insort(self._ready, (op.stream.priority, op.ready_ns, op.correlation, op.turn, op))

    def _dispatch(self) -> None:
        """Give free SMs to ready kernels, in order; a kernel short of SMs stays in front."""
        ready, room, index = self._ready, self.room, 0
        while index < len(ready) and (room.free or room.partial):
            op = ready[index][-1]
            while op.left or op.start_ns is None:
                if not (usable := room.usable(op.needed) & op.stream.sms):
                    index += 1
                    break
                self._place(op, usable)
            else:
                del ready[index]

    def _place(self, op: KernelOp, usable: int) -> None:
        count = min(op.left, usable.bit_count())
        taken = self.room.take(usable, count, op.needed)
        if op.start_ns is None and op.ready_ns < self.now_ns == self._released_ns:
            op.released_by = releases_of(op, taken, self._released)
        waves, op.left = waves_of(op, taken, self.now_ns), op.left - count
        if op.spare:
            waves[0].take_tiles(op, alone=op.all_here(taken) and not op.running)
        for wave in waves:
            self._run(wave)

    def _dispatch_copies(self) -> None:
        """Give free copy engines to copies, in the order in which they became ready."""
        for engine, waiting in self._copies.items():
            if waiting and engine not in self._copying:
                self._run(Wave(heapq.heappop(waiting)[-1], 0, 1, self.now_ns))
        self._copies_wait = False

    def _run(self, wave: Wave) -> None:
        """Let a wave run, which has what it needs."""
        op = wave.op
        if op.start_ns is None:
            if isinstance(op, KernelOp) and op.together is not None:
                op.commit = self._call(op, partial(op.together.begin, self.now_ns))
            elif op.effect is not None:
                op.commit = self._call(op, op.effect)
            op.start_ns = self.now_ns
            self._sharing.begin(op, self.now_ns)
        self._sharing.add(wave)
        if isinstance(op, KernelOp):
            if op.running is None:
                op.running = {}
            op.running[wave] = None
        elif isinstance(op, CopyOp):
            self._copying.add(op.engine)
        self._sequence += 1
        self._ends[wave] = self._sequence

    def _end(self, wave: Wave) -> None:
        """End a wave, unless its end was put off or is past; its blocks may go on."""
        if wave.end_ns != self.now_ns:
            return
        op = wave.op
        if isinstance(op, KernelOp):
            if op.together is not None and self._lasts(op, wave):
                return
            running, released = op.running or {}, wave.sms
            if op.spare:
                following = wave.follow(op, self.now_ns)
                released &= ~following.sms
                self._run(following)
            del running[wave]
            self._release(op, wave.since_ns, released)
            is_over = not (op.left or running)
        else:
            assert isinstance(op, CopyOp)  # noqa: S101 - the other kind that has waves
            self._copying.discard(op.engine)
            is_over = self._copies_wait = True
        if op.shares:
            self._sharing.drop(wave)
        if is_over:
            self._sharing.end(op, self.now_ns)
            if op.commit is not None:
                self._call(op, op.commit)
            op.commit = op.effect = None
            self._finish(op)
        wave.end_ns = -1

    def _release(self, op: KernelOp, since_ns: int, sms: int) -> None:
        """Free SMs that an operation's blocks held, and note who held them."""
        if self._released_ns != self.now_ns:
            self._released.clear()
            self._released_ns = self.now_ns
        if sms:
            self._released.append((sms, op))
            if self.sink is not None:
                op.sm_intervals = op.sm_intervals or []
                op.sm_intervals.append((sms, since_ns, self.now_ns))
        self.room.give(sms, op.needed)

    def _lasts(self, op: KernelOp, wave: Wave) -> bool:
        """Put off the end of a collective's last blocks for as long as other ranks need."""
        together, start_ns = op.together, op.start_ns
        if op.left or len(op.running or ()) > 1 or op.commit is None:
            return False
        assert together is not None  # noqa: S101 - or nobody asks
        assert start_ns is not None  # noqa: S101 - it is about to end
        end_ns = self._call(op, partial(together.end_ns, start_ns, self.now_ns))
        if end_ns is None:
            op.commit = None
        if end_ns is None or end_ns <= self.now_ns:
            return False
        self._sharing.drop(wave)  # it waits, and moves nothing
        wave.end_ns = end_ns
        self._at(end_ns, self._end, wave)
        return True

    # -- ends -------------------------------------------------------------------------
    def _call(self, op: Op, function: Callable[[], _R]) -> _R | None:
        """Call what a piece of work does; what it raises is kept for who waits for that work."""
        try:
            return function()
        except Exception as error:  # noqa: BLE001 - who waits for it is told
            op.failure = Failure(error, op.failure)
            untold = [failure for failure in self.failures if not failure.reported]
            self.failures = [*untold, op.failure]
            return None

    def _finish(self, op: Op) -> None:
        op.done_ns = self.now_ns
        stream, owner = op.stream, op.owner
        if self.sink is not None and op.kind != "wait":
            self.sink(activity_of(op))
        if owner is None:
            stream.done = op.number
            if stream.waited and op.kind in ORDERED_BY_EVENTS:
                stream.waited = ()
        for follower in op.followers or ():
            self._wake(follower)
        if owner is not None:
            if owner.start_ns is None or (op.start_ns or 0) < owner.start_ns:
                owner.start_ns = op.start_ns
            owner.fail_like(op)
            owner.done += 1
            if owner.done == len(owner.nodes):
                owner.last = op.node
                self._finish(owner)
        op.forget()
