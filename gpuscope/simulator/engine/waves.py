"""Waves of blocks, and the memory bandwidth and the power that they share.

Waves share the bandwidth max-min fairly: where all of them ask for more than there is, every
block gets what it asks for up to one common level. What stalls on memory under load goes slower by
what others move (``stall``), and what computes goes slower while all together would draw more power
than the GPU may for long. A wave has ``work_ns * FULL`` units of work left, and does ``speed`` of
them a nanosecond.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from gpuscope.simulator.engine.ops import FULL, KernelOp, WaveOp
from gpuscope.simulator.models.assumed import IDLE_POWER, POWER_FOLLOWS_NS


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

    def __init__(self, op: WaveOp, sms: int, count: int, now_ns: int) -> None:
        self.op = op
        self.sms = sms
        self.count = count
        self.since_ns = now_ns
        self.pace = (op.work_ns * FULL, now_ns, FULL)
        self.end_ns = now_ns + op.work_ns

    def take_tiles(self, op: KernelOp, *, alone: bool) -> None:
        """Let every block do one spare tile more for each while it is certain.

        Alone, no block can come between that would take some of them.
        """
        rounds = op.spare // self.count if alone else 0
        op.spare -= rounds * self.count
        work, now_ns, speed = self.pace
        self.pace = (work + rounds * op.work_ns * FULL, now_ns, speed)
        self.end_ns += rounds * op.work_ns

    def follow(self, op: KernelOp, now_ns: int) -> Wave:
        """Return those of the blocks that go on, at tiles that are left."""
        count = min(self.count, op.spare)
        wave = Wave(op, lowest(self.sms, count), count, now_ns)
        wave.since_ns = self.since_ns
        left, since_ns, speed = self.pace  # what they did beyond their last tile counts
        beyond = left - (now_ns - since_ns) * speed
        wave.pace = (op.work_ns * FULL + beyond, now_ns, FULL)
        op.spare -= count
        alone = len(op.running or ()) == 1 and (not op.left or wave.sms == op.stream.sms)
        wave.take_tiles(op, alone=alone)
        return wave


@functools.lru_cache(1024)
def lowest(mask: int, count: int) -> int:
    """Return the ``count`` lowest set bits of ``mask``, which has as many."""
    below, above = -1, mask.bit_length()  # that many bits have too few, that many have enough
    while above - below > 1:
        middle = (below + above) // 2
        if (mask & ((1 << middle) - 1)).bit_count() < count:
            below = middle
        else:
            above = middle
    return mask & ((1 << above) - 1)


class Sharing:
    """Lets waves that share something advance as fast as all of them can.

    Attributes
    ----------
    waves
        Each, and what it asks of the bandwidth.
    bandwidth
        In units of 1/FULL bytes a ns; ``None`` for no limit.
    changed
        Whether waves came or went since their speeds were set.
    memory, gemms
        The share of the bandwidth that is asked for, and what GEMMs draw, of what may be drawn for
        long, at their speed.
    """

    def __init__(self, bytes_per_us: int | None) -> None:
        self.waves: dict[Wave, int] = {}
        self.bandwidth = None if bytes_per_us is None else bytes_per_us * FULL // 1000
        self.changed = False
        self.memory = self.gemms = 0.0
        self._slowed = False  # whether anything runs slower than it could
        self._drawn = (IDLE_POWER, 0, IDLE_POWER)  # power, of FULL: drawn at a time, and asked for

    def add(self, wave: Wave) -> None:
        """Count a wave in, if what else runs matters to it, or it to that."""
        op = wave.op
        if op.shares:
            self.waves[wave] = op.rate * wave.count
            self.changed = True

    def drop(self, wave: Wave) -> None:
        """Leave out a wave that moves nothing any more."""
        self.waves.pop(wave, None)
        self.changed = True

    def share(self, now_ns: int) -> list[Wave]:
        """Set the speeds by bandwidth, load on memory, and power; returns waves whose end moved."""
        self.changed, moved = False, list[Wave]()
        asked, clock = sum(self.waves.values()), self._clock(now_ns)
        self.memory = asked / self.bandwidth if self.bandwidth else 0.0
        self.gemms = (self._drawn[2] - IDLE_POWER) * clock / FULL / FULL
        several = len(self.waves) > 1
        if self.bandwidth is None or not (
            self._slowed or several or clock < FULL or asked > self.bandwidth
        ):
            return moved
        level = None
        if asked > self.bandwidth:
            level = fair_level(self.bandwidth, ((w.op.rate, w.count) for w in self.waves))
        pressures: dict[WaveOp, int] = {}
        for wave in self.waves:
            pressures[wave.op] = pressures.get(wave.op, 0) + wave.op.pressure * wave.count
        pressure, self._slowed = sum(pressures.values()), False
        for wave in self.waves:
            op = wave.op
            speed = clock if op.power else FULL
            if op.stall:
                others = min(1.0, (pressure - pressures[op]) / self.bandwidth)
                speed = int(speed / (1 + op.stall * others))
            speed = min(speed, speed_at(level, op.rate))
            self._slowed |= speed < FULL
            left, since_ns, before = wave.pace
            if speed != before:
                left -= (now_ns - since_ns) * before
                wave.end_ns = now_ns - (-left // speed)
                wave.pace = (left, now_ns, speed)
                moved.append(wave)
        return moved

    def _clock(self, now_ns: int) -> int:
        """Return how fast SMs may go: power drawn, which follows the demand slowly, has a cap."""
        drawn, since_ns, demand = self._drawn
        gone_ns = now_ns - since_ns
        drawn += (demand - drawn) * gone_ns // (POWER_FOLLOWS_NS + gone_ns)
        demand = IDLE_POWER + sum(wave.op.power * wave.count for wave in self.waves)
        self._drawn = (drawn, now_ns, demand)
        return FULL if drawn <= FULL else FULL * FULL // drawn


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
