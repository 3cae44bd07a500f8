"""Lanes of hardware counters: SMs busy of those granted, by partition, and DRAM, by GPU.

A lane is a stack of layers. A column of it is the mean of its samples, weighted by time, and of
what is narrower than a sample a part of a flat step; where samples are missing it is blank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from gpuscope._text import percent
from gpuscope._types import Array, Bools, Floats, Ints
from gpuscope.analysis.sm_shares import BEYOND_SMS, Shares, shares
from gpuscope.timeline.columns import edges_of, resampled, step_of
from gpuscope.timeline.text import duration
from gpuscope.trace.counters import BUSY, MOVED, READ, WRITTEN, Samples, samples_of
from gpuscope.trace.model import Trace

Layer: TypeAlias = Literal[
    "told", "estimated", "between", "unused", "read", "written", "read and written"
]
"""What a layer shows: SMs that were busy, as told, as estimated or at least, and what more there
may have been; what was granted and not used while work ran; traffic of the memory."""
OF_SMS: tuple[Layer, ...] = ("told", "estimated", "between", "unused")
LEAST_PX, USUAL_PX, MOST_PX = 24, 48, 144
"""Height of the lowest of lanes on one scale at least, of the highest at least and at most."""
MEMORY_PX = 36
OVER_PX = 2
"""By so much what is more than granted may reach above a lane."""
_OVER_PEAK = 1 + OVER_PX / MEMORY_PX
"""Single samples may have that times what copies moved on the whole, and yet be drawn."""
_UNSURE = 0.01
"""Share of the SMs granted from which on it is said that they are estimated, or unknown."""
_FEW = 100.0
"""GB/s: lanes that reach to less do not count in TB/s."""


@dataclass(frozen=True)
class LaneFacts:
    """What is known of a lane without its samples.

    Attributes
    ----------
    device
        Index of the GPU.
    partition
        Its name, ``None`` for work on the whole GPU; memory has none.
    layers
        From the bottom.
    reach
        What the lane's full height stands for: SMs granted, or GB/s.
    px
        Its height.
    one_scale
        Whether lanes of all partitions have one scale, so that areas compare.
    by_model
        Whether the samples are simulated.
    is_to_peak
        Whether a memory's lane reaches to what copies on such a GPU were measured to move.
    """

    device: int
    partition: str | None
    layers: tuple[Layer, ...]
    reach: float
    px: int
    one_scale: bool
    by_model: bool
    is_to_peak: bool = False

    @property
    def is_memory(self) -> bool:
        """Whether it shows the traffic of the GPU's memory."""
        return self.layers != OF_SMS

    @property
    def label(self) -> str:
        """What stands at its left."""
        what = "DRAM read + written" if self.is_memory else f"SMs busy of {self.reach:.0f}"
        return what + ", by model" * self.by_model

    @property
    def unit(self) -> tuple[str, float]:
        """What its values are stated in, and how many SMs or GB/s that is."""
        if not self.is_memory:
            return "SMs", 1.0
        return ("TB/s", 1e3) if self.reach >= _FEW else ("GB/s", 1.0)

    @property
    def top(self) -> str:
        """What its full height stands for, in words."""
        unit, size = self.unit
        return f"{self.reach / size:.3g} {unit}"

    @property
    def scale(self) -> str:
        """Whether it has the scale of other lanes, in words; of memory nothing."""
        if self.is_memory:
            return ""
        return "one scale: areas compare" if self.one_scale else "each lane to its own grant"


@dataclass(frozen=True)
class LaneColumns:
    """Columns of a lane.

    Attributes
    ----------
    sums
        Quantity × column: ns for which there are samples; of each layer its value times these ns;
        of SMs then bounds of the busy ones, low and high, likewise.
    column_ns
        How long the columns are.
    """

    facts: LaneFacts
    sums: Floats
    column_ns: Array

    @property
    def is_there(self) -> Bools:
        """Column → whether there are samples."""
        return np.asarray(self.sums[0] > 0)

    @cached_property
    def means(self) -> Floats:
        """Quantity but the first × column: its mean where there are samples, else 0."""
        means: Floats = self.sums[1:] / np.where(self.is_there, self.sums[0], 1.0)
        return means

    @property
    def tops(self) -> Floats:
        """Layer × column: where it ends, px from the bottom of the lane; that may be above it."""
        facts = self.facts
        tops: Floats = np.cumsum(self.means[: len(facts.layers)], axis=0) * facts.px / facts.reach
        return np.minimum(tops, facts.px + OVER_PX)

    @property
    def is_drawn(self) -> list[bool]:
        """Layer → whether there is anything of it."""
        return _drawn(self.facts, self.sums)

    def resampled(self, count: int) -> LaneColumns:
        """Return so many columns of the same window instead."""
        lengths = np.full(count, self.column_ns.sum() / count)
        return LaneColumns(self.facts, resampled(self.sums, count), lengths)

    @property
    def used(self) -> str:
        """How many SMs were used while work ran, or of memory what its top is; may be empty."""
        return _used_words(self.facts, self.sums[1:].sum(axis=1).tolist())

    def words(self) -> list[str]:
        """Return what is said of each column; nothing of those without samples."""
        texts = [""] * len(self.column_ns)
        for at in np.flatnonzero(self.is_there).tolist():
            sampled_ns, column_ns = float(self.sums[0, at]), int(self.column_ns[at])
            parts = [_value_words(self.facts, self.means[:, at].tolist())]
            if sampled_ns < column_ns - 1:
                parts.append(f"of {duration(round(sampled_ns))} sampled")
            parts += [self.facts.scale] if self.facts.scale else []
            texts[at] = "<br>".join(parts)
        return texts


def _drawn(facts: LaneFacts, quantities: Floats) -> list[bool]:
    return [bool((values > 0).any()) for values in quantities[1 : 1 + len(facts.layers)]]


def _value_words(facts: LaneFacts, means: Sequence[float]) -> str:
    """Say what the means of a column are: as ``counterWords`` of tiles.js."""
    model = ", by model" * facts.by_model
    unit, size = facts.unit
    if facts.is_memory:
        parts = [
            f"{layer} {mean / size:.2f}" for layer, mean in zip(facts.layers, means, strict=True)
        ]
        share = f", {percent(sum(means) / facts.reach)} of the peak" if facts.is_to_peak else ""
        return f"{' + '.join(parts)} {unit}{share}{model}"
    certain, estimated, between, unused, low, high = means
    of = f"of {facts.reach:.0f}"
    if between > 0:
        return f"between {_sms(low)} and {_sms(high)} {of} {unit}{model}"
    if estimated > 0:
        busy = _sms(certain + estimated)
        return f"≈ {busy} {of} {unit}, between {_sms(low)} and {_sms(high)}{model}"
    if certain + unused <= 0:
        return f"0 {of} {unit}: nothing ran"
    more = ", more than granted" * (certain > facts.reach + BEYOND_SMS)
    return f"{_sms(certain)} {of} {unit}{model or ', told'}{more}"


def _used_words(facts: LaneFacts, sums: Sequence[float]) -> str:
    """Say how many SMs were used while work ran, of sums: as ``usedWords`` of tiles.js."""
    if facts.is_memory:
        return "the peak" * facts.is_to_peak
    ran = sum(sums[: len(OF_SMS)])
    if ran <= 0:
        return ""
    certain, estimated, between = (facts.reach * layer / ran for layer in sums[:3])
    least = certain + estimated
    if between > _UNSURE * facts.reach:
        return f"{least:.0f}–{least + between:.0f} used"
    return f"{'≈' * (estimated > _UNSURE * facts.reach)}{_sms(least)} used"


def _sms(count: float) -> str:
    return f"{count:.1f}".removesuffix(".0")


@dataclass(frozen=True)
class CounterLane:
    """A lane with its samples: steps in time, ascending and apart.

    Attributes
    ----------
    starts, ends
        Step → ns.
    values
        Quantity × step, as :class:`LaneColumns` has them, per ns: the first is 1, or of steps that
        stand for several samples the share of their time for which there are any.
    """

    facts: LaneFacts
    starts: Ints
    ends: Ints
    values: Floats

    @property
    def is_drawn(self) -> list[bool]:
        """Layer → whether there is anything of it."""
        return _drawn(self.facts, self.values)

    @cached_property
    def _sums(self) -> Floats:
        """Quantity × step: its sum over the steps before; and over all."""
        lasted = self.ends - self.starts
        of_steps = self.values * lasted
        before_all = np.zeros((len(self.values), 1))
        return np.hstack([before_all, of_steps.cumsum(axis=1)])

    def columns(self, edges: Array) -> LaneColumns:
        """Return the columns between edges, in time that does not depend on how many steps."""
        step = np.searchsorted(self.starts, edges, "right") - 1
        at = np.maximum(step, 0)
        until = np.minimum(edges, self.ends[at])
        into = np.where(step < 0, 0, until - self.starts[at])
        sums = self._sums[:, at] + self.values[:, at] * into
        return LaneColumns(self.facts, np.diff(sums, axis=1), np.diff(edges))

    def within(self, most: int) -> CounterLane:
        """Return it with so many steps at most: of more, even columns of all time."""
        if len(self.starts) <= most:
            return self
        edges = edges_of((int(self.starts[0]), int(self.ends[-1])), most)
        columns = self.columns(edges)
        return CounterLane(self.facts, edges[:-1], edges[1:], columns.sums / columns.column_ns)


def counter_lanes(trace: Trace, *, is_whole: bool = True) -> tuple[CounterLane, ...]:
    """Return the lanes of a trace: of each GPU those of its partitions, and that of its memory.

    Parameters
    ----------
    is_whole
        Whether all records of work are there; else lanes of partitions are blank in samples that
        they do not explain.
    """
    divided = {of.samples.device: of for of in shares(trace)}
    lanes: list[CounterLane] = []
    for samples in samples_of(trace):
        of = divided.get(samples.device)
        if of is not None:
            is_shown = np.ones(len(samples), bool) if is_whole else explained(samples, of)
            lanes += _of_partitions(of, is_shown, by_model=trace.is_simulated)
        lanes += _of_memory(samples, by_model=trace.is_simulated)
    return scaled(lanes)


def explained(samples: Samples, of: Shares | None) -> Bools:
    """Return sample → whether records of work say who kept SMs busy, if any were."""
    is_idle = samples.values[BUSY] <= BEYOND_SMS
    if of is None:
        return np.asarray(is_idle)
    return np.asarray(~of.is_beyond & (is_idle | (of.ran > 0).any(axis=1)))


def scaled(lanes: Sequence[CounterLane]) -> tuple[CounterLane, ...]:
    """Return lanes with those of SMs on one scale, if they are not too different for it."""
    granted = [lane.facts.reach for lane in lanes if not lane.facts.is_memory]
    tall, one_scale = _heights(granted)
    return tuple(
        lane
        if lane.facts.is_memory
        else replace(
            lane, facts=replace(lane.facts, px=tall[lane.facts.reach], one_scale=one_scale)
        )
        for lane in lanes
    )


def _heights(granted: Sequence[float]) -> tuple[dict[float, int], bool]:
    """Return SMs granted → px, and whether these have one scale; all heights are even."""
    if not granted:
        return {}, True
    smallest, largest = min(granted), max(granted)
    px = max(LEAST_PX / smallest, USUAL_PX / largest)
    if px * largest > MOST_PX:
        return dict.fromkeys(granted, USUAL_PX), False
    return {count: 2 * round(px * count / 2) for count in granted}, True


def _of_partitions(of: Shares, is_shown: Bools, *, by_model: bool) -> Iterator[CounterLane]:
    certain = np.where(of.is_told, of.busy, 0.0)
    is_bounds = np.isnan(of.busy)
    estimated = np.where(is_bounds, of.low, of.busy)
    estimated[of.is_told] = 0.0
    between = np.where(is_bounds, of.high - of.low, 0.0)
    unused = np.maximum(0.0, of.granted * of.ran - certain - estimated - between)
    low = np.where(of.is_told, of.busy, of.low)
    high = np.where(of.is_told, of.busy, of.high)
    sampled = np.where(is_shown[:, None], np.ones_like(certain), np.nan)
    layers = (certain, estimated, between, unused)
    quantities = np.stack([sampled, *layers, low, high])
    for number, (partition, granted) in enumerate(
        zip(of.partitions, of.granted.tolist(), strict=True)
    ):
        if granted <= 0:
            continue
        facts = LaneFacts(
            of.samples.device,
            partition,
            OF_SMS,
            granted,
            USUAL_PX,
            one_scale=True,
            by_model=by_model,
        )
        lane = _lane(facts, of.samples, quantities[:, :, number])
        if lane is not None:
            yield lane


def _of_memory(samples: Samples, *, by_model: bool) -> Iterator[CounterLane]:
    layers: tuple[Layer, ...] = ("read", "written")
    sides = [samples.values[READ], samples.values[WRITTEN]]
    if np.isnan(sides[0] + sides[1]).all():
        layers = ("read and written",)
        sides = [samples.values[MOVED]]
    total = np.sum(sides, axis=0)
    most = float(np.nanmax(total, initial=0.0)) if len(total) else 0.0
    if most <= 0 or not np.isfinite(most):
        return
    is_to_peak = samples.peak is not None and most <= _OVER_PEAK * samples.peak
    facts = LaneFacts(
        samples.device,
        None,
        layers,
        samples.peak if samples.peak is not None and is_to_peak else step_of(most, 1),
        MEMORY_PX,
        one_scale=False,
        by_model=by_model,
        is_to_peak=is_to_peak,
    )
    lane = _lane(facts, samples, np.stack([np.ones_like(total), *sides]))
    if lane is not None:
        yield lane


def _lane(facts: LaneFacts, samples: Samples, quantities: Floats) -> CounterLane | None:
    """Return a lane of the samples in which all quantities were had; ``None``: there is none."""
    had = np.isfinite(quantities).all(axis=0)
    if not had.any():
        return None
    return CounterLane(facts, samples.starts[had], samples.ends[had], quantities[:, had])
