"""Lanes of counters while rows still come: samples are divided once their records are there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuscope._types import Array, Ints
from gpuscope.analysis.sm_shares import CLOCKS_NS, shares
from gpuscope.timeline.counter_lanes import CounterLane, counter_lanes, explained, scaled
from gpuscope.trace import schema
from gpuscope.trace.counters import samples_of
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace

LATE_NS = 1_000_000_000
"""So much later than a sample the records of its work come at most, else it stays blank: a kernel
is recorded when it has ended."""
_AT_ONCE_NS = 250_000_000
"""Of a GPU so much time is divided at once, and of a simulated one all that has come."""
_MOST = 50_000
"""Of twice as many steps of a lane that many are made: a long recording stays quick."""
_SAMPLE = "counter"
_KINDS = [*schema.GPU_WORK, _SAMPLE]


@dataclass(frozen=True)
class LiveLanes:
    """The lanes of a recording that goes on.

    Attributes
    ----------
    lanes
        Of the samples that are divided.
    divided_ns
        Until when these are; ``None``: no sample has come yet.
    waiting
        Rows of work and samples that end later; before any sample the work that came last.
    """

    lanes: tuple[CounterLane, ...] = ()
    divided_ns: int | None = None
    waiting: pa.Table = field(default_factory=lambda: schema.table({}, schema.SPAN_TYPES))

    def extended(self, spans: pa.Table, metadata: TraceMetadata) -> LiveLanes:
        """Return them with more rows."""
        new = spans.filter(pc.is_in(spans.column("kind"), pa.array(_KINDS)))
        if self.divided_ns is None and not _is_sample(new).any():
            return replace(self, waiting=new) if len(new) else self
        waiting = self.waiting
        if len(new):
            waiting = schema.concat([waiting, new], schema.SPAN_TYPES)
        is_sample, ends = _is_sample(waiting), _times(waiting, "end_ns")
        if self.divided_ns is None:  # more work of a GPU's first samples may have come before
            since_ns = 0 if metadata.simulated else int(ends.max())
            return replace(self, divided_ns=since_ns).extended(new, metadata)
        newest_ns = int(ends[is_sample].max(initial=0))
        until_ns = newest_ns if metadata.simulated else newest_ns - LATE_NS
        if until_ns - self.divided_ns < (1 if metadata.simulated else _AT_ONCE_NS):
            return replace(self, waiting=waiting)
        is_due = ~is_sample | ((ends > self.divided_ns) & (ends <= until_ns))
        due = Trace(waiting.filter(pa.array(is_due)), schema.table({}, schema.EDGE_TYPES), metadata)
        is_later = is_sample & (ends > until_ns)
        since_ns = int(_times(waiting, "start_ns")[is_later].min(initial=until_ns)) - CLOCKS_NS
        stays = is_later | (~is_sample & (ends > since_ns))
        return LiveLanes(_with(self.lanes, due), until_ns, waiting.filter(pa.array(stays)))


def _is_sample(spans: pa.Table) -> Array:
    return np.asarray(pc.equal(spans.column("kind"), _SAMPLE).to_numpy(), bool)


def _times(spans: pa.Table, name: str) -> Ints:
    times: Ints = pc.fill_null(spans.column(name).cast(pa.int64()), 0).to_numpy()
    return times


def _key(lane: CounterLane) -> tuple[int, bool, str | None]:
    return lane.facts.device, lane.facts.is_memory, lane.facts.partition


def _with(lanes: Sequence[CounterLane], trace: Trace) -> tuple[CounterLane, ...]:
    """Return lanes with what samples of a trace tell behind."""
    before = {_key(lane): lane for lane in lanes}
    after = {_key(lane): lane for lane in counter_lanes(trace, is_whole=False)}
    for lane in _idle(lanes, trace):
        after.setdefault(_key(lane), lane)
    keys = sorted({**before, **after}, key=lambda key: key[:2])
    return scaled([_joined(before.get(key), after.get(key)) for key in keys])


def _idle(lanes: Iterable[CounterLane], trace: Trace) -> Iterator[CounterLane]:
    """Yield for each lane of SMs that it had none busy, where the records say who did."""
    divided = {of.samples.device: of for of in shares(trace)}
    for samples in samples_of(trace):
        is_known = explained(samples, divided.get(samples.device))
        starts, ends = samples.starts[is_known], samples.ends[is_known]
        for lane in lanes:
            if lane.facts.device == samples.device and not lane.facts.is_memory:
                values = np.zeros((len(lane.values), len(starts)))
                values[0] = 1.0
                yield CounterLane(lane.facts, starts, ends, values)


def _joined(before: CounterLane | None, after: CounterLane | None) -> CounterLane:
    """Return a lane with later steps, those that overlap left out; one of both is there."""
    if before is None or after is None:
        lane = before or after
        assert lane is not None  # noqa: S101 - its key is of either
        return lane
    is_later = after.starts >= before.ends[-1:].max(initial=0)
    higher = max(after, before, key=lambda lane: lane.facts.reach)
    lane = CounterLane(
        higher.facts,
        np.r_[before.starts, after.starts[is_later]],
        np.r_[before.ends, after.ends[is_later]],
        np.hstack([before.values, after.values[:, is_later]]),
    )
    return lane if len(lane.starts) <= 2 * _MOST else lane.within(_MOST)
