"""Which partition kept how many SMs busy: counters of a whole GPU, divided by kernel records.

There is no counter by partition. In a sample in which the records have one partition at work, all
busy SMs are its own. Where several were, a partition had at most its SMs for as long as it ran, and
at least what the others, at their most, leave of the sum. Between these bounds a share is estimated
from what its kernels kept busy in samples of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuscope._types import Bools, Floats, Ints
from gpuscope.analysis.intervals import Busy, Groups, Intervals, union
from gpuscope.analysis.span_rows import launched_blocks
from gpuscope.trace.columns import codes, combined, once, rows_of
from gpuscope.trace.counters import BUSY, Samples, samples_of
from gpuscope.trace.model import Trace

MEETING_SMS = 0.1
"""Bounds of a share that are no further apart than this tell it."""
CLOCKS_NS = 1000
"""By so much the times of samples and of kernel records may differ: on an H200 edges of samples of
10 µs were 0.8 µs before to 0.3 µs behind those of the records."""
_MOST_OF = 0.5
"""Share of a sample in which a kernel has to run for the sample to tell its level."""
_HALVINGS = 60


@dataclass(frozen=True)
class BusyWork:
    """Rows of a GPU that keep SMs busy, and the samples in which they ran.

    Attributes
    ----------
    rows
        Positions in the trace: kernels, copies on the device, memsets, graphs as a whole.
    starts, ends
        Of each, ns; what is open ends with the samples.
    partition, firsts
        Of each, its number in :attr:`Shares.partitions`; and which is the first of each partition.
    key, keys
        Of each, the number of its kernel: of its name, partition and launch configuration; and
        which is the first of each kernel.
    pair_sample, pair_key, pair_share
        Sample, kernel and how long its rows ran there, summed, over the sample's length.
    times
        When each partition had any rows.
    """

    rows: Ints
    starts: Ints
    ends: Ints
    partition: Ints
    firsts: Ints
    key: Ints
    keys: Ints
    pair_sample: Ints
    pair_key: Ints
    pair_share: Floats
    times: Busy

    def beside(self, rows: Ints) -> Floats:
        """Return for which share of some rows another partition ran, too."""
        share = np.zeros(len(rows))
        starts, ends = self.starts[rows], self.ends[rows]
        for number in range(len(self.firsts)):
            shared_ns = covered(self.times.intervals(number), starts, ends)
            of_other = self.partition[rows] != number
            share = np.maximum(share, of_other * shared_ns / np.maximum(ends - starts, 1))
        return share


@dataclass(frozen=True)
class Shares:
    """What each partition had of the busy SMs of a GPU: arrays of samples × partitions.

    Attributes
    ----------
    partitions
        Their names; ``None``: work on the whole GPU.
    granted
        Partition → how many SMs it has.
    ran
        Share of the sample in which it ran.
    low, high
        Bounds of its busy SMs.
    busy
        Its busy SMs, told or estimated; NaN where there is nothing but the bounds.
    is_told
        Whether they are told directly.
    sole
        Sample → number of the only partition that ran, −1 where none or several did.
    sole_key
        Sample → number of the only kernel that ran, −1 likewise.
    """

    samples: Samples
    partitions: tuple[str | None, ...]
    granted: Floats
    ran: Floats
    low: Floats
    high: Floats
    busy: Floats
    is_told: Bools
    sole: Ints
    sole_key: Ints
    work: BusyWork


@once
def shares(trace: Trace) -> tuple[Shares, ...]:
    """Divide the samples of each GPU whose counters a trace has, and on which anything ran."""
    return tuple(divided for of in samples_of(trace) if (divided := _divided(trace, of)))


def _divided(trace: Trace, samples: Samples) -> Shares | None:
    work = _work(trace, samples)
    if work is None:
        return None
    code, names = codes(trace.spans.column("partition"))
    partitions = tuple(names[number] for number in code[work.rows[work.firsts]].tolist())
    facts = [trace.metadata.partition(name) for name in partitions]
    granted = np.array(
        [
            float(samples.sms if name is None else fact.sm_count or len(fact.sm_ids) or samples.sms)
            for name, fact in zip(partitions, facts, strict=True)
        ]
    )
    slack_ns = 0 if trace.is_simulated else CLOCKS_NS
    ran, reach = (_ran(work, samples, len(partitions), slack) for slack in (0, slack_ns))
    total = samples.values[BUSY]
    high = np.minimum(granted * reach, _room(trace, work, samples, len(partitions), slack_ns))
    low = np.maximum(0.0, total[:, None] - (high.sum(axis=1, keepdims=True) - high))
    low = np.minimum(low, high)
    high = np.minimum(high, total[:, None])
    sole = np.where((reach > 0).sum(axis=1) == 1, reach.argmax(axis=1), -1)
    is_sole = sole[:, None] == np.arange(len(partitions))
    low, high = (np.where(is_sole, total[:, None], bound) for bound in (low, high))
    is_told = (reach > 0) & (high - low <= MEETING_SMS)
    key_count = np.bincount(work.pair_sample, minlength=len(samples))
    sole_key = np.full(len(samples), -1, np.int64)
    sole_key[work.pair_sample] = work.pair_key
    sole_key[key_count != 1] = -1
    busy = np.where(is_told, (low + high) / 2, np.nan)
    busy[reach == 0] = 0.0
    divided = Shares(
        samples, partitions, granted, ran, low, high, busy, is_told, sole, sole_key, work
    )
    _estimate(divided)
    return divided


def _work(trace: Trace, samples: Samples) -> BusyWork | None:
    """Return what kept SMs of a GPU busy; ``None``: nothing, or there is no sample."""
    rows = _workers(trace, samples.device)
    if not len(rows) or not len(samples):
        return None
    starts = trace.array("start_ns")[rows]
    ends = trace.array("end_ns", fill=int(samples.ends[-1]))[rows]
    columns = ("partition", "name", "launch_config")
    partition, name, config = (codes(trace.spans.column(column))[0][rows] for column in columns)
    firsts, partition = combined(partition)
    keys, key = combined(partition, name, config)
    first = np.searchsorted(samples.ends, starts, "right")
    counts = np.maximum(0, np.searchsorted(samples.starts, ends, "left") - first)
    row = np.repeat(np.arange(len(rows)), counts)
    sample = np.repeat(first - np.r_[0, np.cumsum(counts)[:-1]], counts) + np.arange(len(row))
    ran_ns = np.minimum(ends[row], samples.ends[sample])
    ran_ns -= np.maximum(starts[row], samples.starts[sample])
    at, pair = combined(sample, key[row])
    share = np.bincount(pair, ran_ns, len(at)) / samples.lengths[sample[at]]
    pairs = sample[at], key[row][at], share
    times = Busy.of(Groups(partition, [*range(len(firsts))]), starts, ends)
    return BusyWork(rows, starts, ends, partition, firsts, key, keys, *pairs, times)


def _workers(trace: Trace, device: int) -> Ints:
    """Return the rows of a GPU that keep its SMs busy."""
    rows = rows_of(trace, "kernel", "memset", "graph", "memcpy")
    rows = rows[trace.array("device", fill=-1)[rows] == device]
    kind, kinds = codes(trace.spans.column("kind"))
    copy, directions = codes(trace.spans.column("copy_kind"))
    is_copy = np.array([text == "memcpy" for text in kinds], bool)[kind[rows]]
    on_device = np.array([text == "DtoD" for text in directions], bool)[copy[rows]]
    workers: Ints = rows[~is_copy | on_device]
    return workers


def _ran(work: BusyWork, samples: Samples, partitions: int, slack_ns: int) -> Floats:
    """Return for which share of each sample each partition ran, each row longer by a slack."""
    ran_ns = []
    for number in range(partitions):
        begins, stops = work.times.intervals(number).T
        longer = union(begins - slack_ns, stops + slack_ns)
        ran_ns.append(covered(longer, samples.starts, samples.ends))
    ran: Floats = np.stack(ran_ns, axis=1) / samples.lengths[:, None]
    return ran


def _room(trace: Trace, work: BusyWork, samples: Samples, partitions: int, slack_ns: int) -> Floats:
    """Return the SMs that the thread blocks of each partition can be on: one for each block."""
    config, texts = codes(trace.spans.column("launch_config"))
    blocks = launched_blocks(texts)[config[work.rows[work.keys]]].astype(np.float64)
    slack = work.pair_share + 2 * slack_ns / samples.lengths[work.pair_sample]
    room = np.zeros((len(samples), partitions))
    of_pair = work.partition[work.keys][work.pair_key]
    np.add.at(room, (work.pair_sample, of_pair), blocks[work.pair_key] * slack)
    return np.where(room > 0, room, np.inf)


def covered(intervals: Intervals, starts: Ints, ends: Ints) -> Ints:
    """Return for how many ns from each start to its end any of some intervals lasted.

    They are apart, and ascending.
    """
    begins, stops = intervals.T
    total = np.r_[0, np.cumsum(stops - begins)]

    def until(times: Ints) -> Ints:
        begun = np.searchsorted(begins, times, "right")
        ahead = np.maximum(0, np.r_[np.iinfo(np.int64).min, stops][begun] - times)
        return np.asarray(total[begun] - np.where(begun > 0, ahead, 0), np.int64)

    return np.asarray(until(ends) - until(starts), np.int64)


def levels(shares: Shares) -> Floats:
    """Return for each kernel the SMs that it kept busy where it ran alone; NaN where unknown."""
    samples, work = shares.samples, shares.work
    lone = np.flatnonzero(shares.sole_key >= 0)
    lone = lone[shares.ran[lone].max(axis=1) >= _MOST_OF]
    key, lasted = shares.sole_key[lone], samples.lengths[lone].astype(np.float64)
    busy = np.bincount(key, samples.values[BUSY][lone] * lasted, len(work.keys))
    ran = np.bincount(key, shares.ran[lone].max(axis=1) * lasted, len(work.keys))
    return np.where(ran > 0, busy / np.maximum(ran, 1.0), np.nan)


def _estimate(shares: Shares) -> None:
    """Fill in what is not told but lies between bounds, where all that ran has a known level."""
    work, ran = shares.work, shares.ran
    of_key = work.partition[work.keys]
    expected = np.zeros_like(ran)
    level = levels(shares)[work.pair_key] * work.pair_share
    np.add.at(expected, (work.pair_sample, of_key[work.pair_key]), level)
    expected = np.minimum(expected, shares.granted * ran)
    open_rows = np.flatnonzero(
        ((ran > 0) & ~shares.is_told).any(axis=1) & ~np.isnan(expected).any(axis=1)
    )
    if not len(open_rows):
        return
    low, high, expected = (part[open_rows] for part in (shares.low, shares.high, expected))
    total = np.minimum(shares.samples.values[BUSY][open_rows], high.sum(axis=1))
    least, most = np.full(len(open_rows), -30.0), np.full(len(open_rows), 30.0)
    for _ in range(_HALVINGS):  # for the power of two with which the shares add up to the sum
        middle = (least + most) / 2
        scaled = np.clip(expected * np.exp2(middle)[:, None], low, high).sum(axis=1)
        least, most = (
            np.where(scaled < total, middle, least),
            np.where(scaled < total, most, middle),
        )
    estimate = np.clip(expected * np.exp2(most)[:, None], low, high)
    is_open_share = (ran[open_rows] > 0) & ~shares.is_told[open_rows]
    shares.busy[open_rows] = np.where(is_open_share, estimate, shares.busy[open_rows])
