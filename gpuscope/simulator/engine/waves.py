"""Waves of blocks, and the memory, the cache and the power that they share.

All who run meet one latency of the memory, and are as much slower as they wait for it
(:mod:`gpuscope.simulator.models.memory_model`). What work left in the cache is replaced by what
others bring in before it runs again. What computes goes slower while all together would draw more
power than the GPU may for long. A wave has ``work_ns * FULL`` units of work left, and does
``speed`` of them a nanosecond.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from gpuscope.simulator.engine.ops import FULL, KernelOp, WaveOp
from gpuscope.simulator.engine.room import lowest
from gpuscope.simulator.models.assumed import IDLE_POWER, POWER_FOLLOWS_NS
from gpuscope.simulator.models.memory_model import LoadedMemory, moved, slowdowns


class Wave:
    """Blocks of one kernel that started together, at one or several tiles, or a copy.

    Attributes
    ----------
    sms
        Bit mask of the SMs they hold.
    since_ns
        When they started, on these SMs.
    pace
        What was left to do at a time, that time in ns, and the speed since: of FULL, that much
        is done a ns at full speed.
    end_ns
        When it will end; -1 when it has.
    """

    __slots__ = ("count", "end_ns", "op", "pace", "since_ns", "sms")

    def __init__(self, op: WaveOp, sms: int, count: int, now_ns: int, share: float = 1.0) -> None:
        work_ns = op.cost.block_ns or 1
        if share != 1:
            work_ns = max(1, round(work_ns * share))
        self.op = op
        self.sms = sms
        self.count = count
        self.since_ns = now_ns
        self.pace = (work_ns * FULL, now_ns, FULL)
        self.end_ns = now_ns + work_ns

    def take_tiles(self, op: KernelOp, *, alone: bool) -> None:
        """Let every block do one spare tile more for each while it is certain.

        Alone, no block can come between that would take some of them.
        """
        rounds = op.spare // self.count if alone else 0
        op.spare -= rounds * self.count
        work, now_ns, speed = self.pace
        self.pace = (work + rounds * op.cost.block_ns * FULL, now_ns, speed)
        self.end_ns += rounds * op.cost.block_ns

    def follow(self, op: KernelOp, now_ns: int) -> Wave:
        """Return those of the blocks that go on, at tiles that are left."""
        count = min(self.count, op.spare)
        wave = Wave(op, lowest(self.sms, count), count, now_ns)
        wave.since_ns = self.since_ns
        left, since_ns, speed = self.pace  # what they did beyond their last tile counts
        beyond = left - (now_ns - since_ns) * speed
        wave.pace = (op.cost.block_ns * FULL + beyond, now_ns, FULL)
        op.spare -= count
        wave.take_tiles(op, alone=len(op.running or ()) == 1 and op.all_here(wave.sms))
        return wave


def waves_of(op: KernelOp, sms: int, now_ns: int) -> list[Wave]:
    """Return waves of blocks that start together: one, or some that end before the others."""
    count = sms.bit_count()
    if not op.cost.early or count < _PARTS:
        return [Wave(op, sms, count, now_ns)]
    waves = []
    for part in range(_PARTS, 0, -1):  # of those that are left, an equal share each
        some = lowest(sms, sms.bit_count() // part)
        sms &= ~some
        share = 1 - op.cost.early * (part - 1) / (_PARTS - 1)
        waves.append(Wave(op, some, some.bit_count(), now_ns, share))
    return waves


_PARTS = 4


_KNOWN = 4096
"""Solutions of the memory's law that are kept: most instants are like an earlier one."""


def _at_once(op: WaveOp) -> int:
    """Return how many blocks run alone at once."""
    return min(op.cost.blocks, op.stream.sms.bit_count())


def _is_whole(op: WaveOp, count: int) -> bool:
    """Whether as many blocks run as do alone: then it is never faster than that.

    The time alone of work in several waves knows of those that do not fill the SMs.
    """
    at_once = _at_once(op)
    return count >= at_once or op.pieces > at_once


class Sharing:
    """Lets waves that share something advance as fast as all of them can.

    Attributes
    ----------
    waves
        Those that matter to others, or to which others matter.
    changed
        Whether waves came or went since their speeds were set.
    memory
        The share of the bandwidth that all would use alone.
    """

    def __init__(self, memory: LoadedMemory | None, sm_count: int) -> None:
        self.waves: dict[Wave, None] = {}
        self.changed = False
        self._memory = memory
        self._sm_count = sm_count
        self.memory = 0.0
        self._running: dict[WaveOp, tuple[int, int]] = {}  # what it asks, its blocks in waves
        self._crowding: dict[Wave, float] = {}  # of blocks that leave room on their SMs
        self._demand = IDLE_POWER
        self._clock = FULL
        self._slowed = False  # whether anything runs slower than it could
        self._drawn = (IDLE_POWER, 0, IDLE_POWER)  # power, of FULL: drawn at a time, and asked for
        self._kinds: dict[tuple[object, ...], int] = {}
        self._numbers = itertools.count()
        self._solutions: dict[object, tuple[float, tuple[float, ...]]] = {}
        self._brought = 0.0  # bytes that work which is over brought into the cache

    @property
    def gemms(self) -> float:
        """What GEMMs draw, of what may be drawn for long, at their speed."""
        return (self._demand - IDLE_POWER) * self._clock / FULL / FULL

    def add(self, wave: Wave) -> None:
        """Count a wave in, if what else runs matters to it, or it to that."""
        op = wave.op
        if op.shares:
            self.waves[wave] = None
            _, count = self._running.get(op, (0, 0))
            self._running[op] = op.asks, count + wave.count
            self._demand += op.power * wave.count
            if op.crowding:
                self._crowding[wave] = op.crowding
            self.changed = True

    def drop(self, wave: Wave) -> None:
        """Leave out a wave that moves nothing any more."""
        if wave not in self.waves:
            return
        op = wave.op
        del self.waves[wave]
        asks, count = self._running[op]
        if count > wave.count:
            self._running[op] = asks, count - wave.count
        else:
            del self._running[op]
        self._demand -= op.power * wave.count
        if op.crowding:
            del self._crowding[wave]
        self.changed = True

    def begin(self, op: WaveOp, now_ns: int) -> None:
        """Look what the cache still holds of what an operation of this name left there."""
        if self._memory is None:
            return
        cost = op.cost
        if cost.cold_nbytes or cost.cold:
            brought = self._brought_by(now_ns)
            op.cached_share = self._memory.kept(brought - op.stream.brought.get(op.name, brought))
        asking = cost, op.cached_share, op.kind, _at_once(op)
        op.asks = self._kinds.get(asking, -1)
        if op.asks < 0:
            if len(self._kinds) > _KNOWN:
                self._kinds.clear()
            op.asks = self._kinds[asking] = next(self._numbers)

    def end(self, op: WaveOp, now_ns: int) -> None:
        """Note that an operation is over."""
        self._brought += moved(op.cost, op.cached_share)
        if op.cost.cold_nbytes or op.cost.cold:
            op.stream.brought[op.name] = self._brought_by(now_ns)

    def _brought_by(self, now_ns: int) -> float:
        """Return how many bytes were brought into the cache so far."""
        brought = self._brought
        if not self.waves:
            return brought
        left = dict[WaveOp, float]()
        for wave in self.waves:
            op = wave.op
            work, since_ns, speed = wave.pace
            share = (work - (now_ns - since_ns) * speed) / (op.cost.block_ns * FULL)
            left[op] = left.get(op, op.left + op.spare) + wave.count * share
        for op, pieces in left.items():
            brought += moved(op.cost, op.cached_share) * (1 - pieces / op.pieces)
        return brought

    def share(self, now_ns: int) -> Sequence[Wave]:
        """Set the speeds by memory and power; returns waves whose end moved."""
        self.changed = False
        clock = self._clock = self._clock_at(now_ns)
        if not self.waves:
            self.memory, self._slowed = 0.0, False
            return ()
        alike = tuple(self._running.values())
        solution = self._solutions.get(alike)
        if solution is None:
            if len(self._solutions) > _KNOWN:
                self._solutions.clear()
            solution = self._solutions[alike] = self._solved()
        self.memory, paces = solution
        crowded = _crowded(self._crowding) if len(self._crowding) > 1 else {}
        if not (paces or self._slowed or crowded or clock < FULL):
            return ()
        return self._set_speeds(now_ns, paces, crowded)

    def _set_speeds(
        self, now_ns: int, paces: Sequence[float], crowded: Mapping[Wave, float]
    ) -> list[Wave]:
        """Let waves go on at other speeds; returns those whose end moved.

        Parameters
        ----------
        paces
            Of each operation that runs, where memory slows any.
        crowded
            By how much a wave's blocks slow each other, where they do.
        """
        shifted, clock, self._slowed = list[Wave](), self._clock, False
        pace_of = dict(zip(self._running, paces, strict=True)) if paces else {}
        for wave in self.waves:
            op = wave.op
            speed = clock if op.power else FULL
            if pace_of:
                speed = int(speed * pace_of[op]) or 1
            if crowded and (busy := crowded.get(wave)) is not None:
                speed = int(speed / busy) or 1
            if speed != FULL:
                self._slowed = True
            left, since_ns, before = wave.pace
            if speed != before:
                left -= (now_ns - since_ns) * before
                wave.end_ns = now_ns - (-left // speed)
                wave.pace = (left, now_ns, speed)
                shifted.append(wave)
        return shifted

    def _solved(self) -> tuple[float, tuple[float, ...]]:
        """Return the share of the bandwidth that all would use alone, and the pace of each.

        No pace if memory slows none.
        """
        memory, running = self._memory, self._running
        if memory is None:
            return 0.0, ()
        demands = [
            memory.demand(op.cost, op.cached_share, count, self._sm_share(op, count))
            for op, (_, count) in running.items()
        ]
        asked = math.fsum(demand.rate for demand in demands)  # in whatever order
        if len(running) <= 1 and all(op.cached_share == 1.0 for op in running):
            return asked, (1 / asked,) if asked > 1 else ()  # as alone, if the memory can do that
        return asked, tuple(
            [
                1 / (max(1.0, slower) if _is_whole(op, count) else slower)
                for slower, (op, (_, count)) in zip(
                    slowdowns(demands), running.items(), strict=True
                )
            ]
        )

    def _sm_share(self, op: WaveOp, count: int) -> float:
        """Return which share of the SMs blocks hold; a copy engine is as far from memory as all."""
        return count / self._sm_count if isinstance(op, KernelOp) else 1.0

    def _clock_at(self, now_ns: int) -> int:
        """Return how fast SMs may go: power drawn, which follows the demand slowly, has a cap."""
        drawn, since_ns, demand = self._drawn
        gone_ns = now_ns - since_ns
        drawn += (demand - drawn) * gone_ns // (POWER_FOLLOWS_NS + gone_ns)
        self._drawn = (drawn, now_ns, self._demand)
        return FULL if drawn <= FULL else FULL * FULL // drawn


def _crowded(crowding: Mapping[Wave, float]) -> dict[Wave, float]:
    """Return by how much blocks slow each other that compute on one SM, where they do.

    A wave's blocks are as slow as they are on average over its SMs.
    """
    crowded = dict[Wave, float]()
    for wave in crowding:
        met = sum(of * (wave.sms & other.sms).bit_count() for other, of in crowding.items())
        if (busy := met / wave.count) > 1:
            crowded[wave] = busy
    return crowded
