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

BEYOND_SMS = 0.5
"""Samples of known grids were that near to them: more is more than was granted."""
MEETING_SMS = 0.1
"""Bounds of a share that are no further apart than this tell it."""
CLOCKS_NS = 1000
"""By so much the times of samples and of kernel records may differ: medians of edges differ by 0.0
and −0.5 µs on an H200 (``benchmarks/counters.py``)."""
_MOST_OF = 0.5
"""Share of a sample in which a kernel has to run for the sample to tell its level."""
_POWERS, _HALVINGS = 30.0, 60
"""Of 2: the factor that brings estimates to the sum lies between; how often that is halved."""


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

    def beside(self) -> Floats:
        """Return for which share of each row another partition ran, too."""
        share = np.zeros(len(self.rows))
        for number in range(len(self.firsts)):
            is_here = self.partition == number
            of_this = np.flatnonzero(is_here)
            intervals = union(self.starts[~is_here], self.ends[~is_here])
            begun, ended = self.starts[of_this], self.ends[of_this]
            shared_ns = covered(intervals, begun, ended)
            share[of_this] = shared_ns / np.maximum(ended - begun, 1)
        return share


@dataclass(frozen=True)
class Shares:
    """What each partition had of the busy SMs of a GPU: arrays of samples × partitions.

    Attributes
    ----------
    partitions
        Their names; ``None``: work on the whole GPU.
    granted
        Partition → how many SMs it has; 0 where that is unknown, or carvings of one name differ.
    ran
        Share of the sample in which it ran.
    low, high
        Bounds of its busy SMs.
    busy
        Its busy SMs, told or estimated; NaN where there is nothing but the bounds.
    is_told
        Whether they are told directly.
    is_beyond
        Sample → whether more SMs were busy than all that ran had: something escaped, or was not
        recorded. Of several partitions nothing is known then.
    has_copies
        Sample → whether copies from or to the host moved memory.
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
    is_beyond: Bools
    has_copies: Bools
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
    partitions, granted = _partitions(trace, samples, work)
    count = len(partitions)
    slack_ns = 0 if trace.is_simulated else CLOCKS_NS
    ran = _ran(work, samples, count, 0)
    reach = _ran(work, samples, count, slack_ns)
    sole = _the_only(reach > 0)
    room = _room(trace, work, samples, count, slack_ns)
    sms = np.where(granted > 0, granted, samples.sms)
    most = np.minimum(sms * reach, room)
    total = samples.values[BUSY]
    is_beyond = total > most.sum(axis=1) + BEYOND_SMS
    is_beyond &= (reach > 0).any(axis=1)
    low, high = _bounds(most, sole, total, is_beyond)
    is_told = (reach > 0) & (high - low <= MEETING_SMS)
    busy = np.where(is_told, (low + high) / 2, np.nan)
    busy[reach == 0] = 0.0
    divided = Shares(
        samples=samples,
        partitions=partitions,
        granted=granted,
        ran=ran,
        low=low,
        high=high,
        busy=busy,
        is_told=is_told,
        is_beyond=is_beyond,
        has_copies=_has_copies(trace, samples),
        sole=sole,
        sole_key=_sole_keys(work, samples),
        work=work,
    )
    _estimate(divided)
    return divided


def _partitions(
    trace: Trace,
    samples: Samples,
    work: BusyWork,
) -> tuple[tuple[str | None, ...], Floats]:
    """Return the names of the partitions that worked, and how many SMs each has."""
    code, names = codes(trace.spans.column("partition"))
    of_first = code[work.rows[work.firsts]]
    partitions = tuple(names[number] for number in of_first.tolist())
    granted = np.full(len(partitions), float(samples.sms))
    context = trace.array("green_context", fill=-1)
    for number, name in enumerate(partitions):
        if name is None:
            continue
        facts = trace.metadata.partition(name)
        contexts = context[work.rows[work.partition == number]]
        is_of_one = len(np.unique(contexts[contexts >= 0])) <= 1
        sms = facts.sm_count or len(facts.sm_ids)
        granted[number] = sms if is_of_one else 0
    return partitions, granted


def _bounds(
    most: Floats,
    sole: Ints,
    total: Floats,
    is_beyond: Bools,
) -> tuple[Floats, Floats]:
    """Return between what the busy SMs of each partition lie.

    Parameters
    ----------
    most
        Sample × partition → SMs that it can have kept busy.
    sole
        Sample → the only partition that ran, which all of its busy SMs are of.
    total
        Sample → busy SMs.
    is_beyond
        Sample → whether these are more than all can have: then no grant bounds anything.
    """
    of_all = total[:, None]
    of_others = most.sum(axis=1, keepdims=True) - most
    low = np.clip(of_all - of_others, 0.0, most)
    high = np.minimum(most, of_all)
    is_free = is_beyond[:, None] & (most > 0)
    low = np.where(is_free, 0.0, low)
    high = np.where(is_free, of_all, high)
    numbers = np.arange(most.shape[1])
    is_sole = sole[:, None] == numbers
    low = np.where(is_sole, of_all, low)
    high = np.where(is_sole, of_all, high)
    return low, high


def _the_only(is_there: Bools) -> Ints:
    """Return in which column each row is true, −1 where it is in none or several."""
    count = is_there.sum(axis=1)
    which = is_there.argmax(axis=1)
    return np.where(count == 1, which, -1)


def _sole_keys(work: BusyWork, samples: Samples) -> Ints:
    """Return the number of the only kernel that ran in each sample, −1 for none or several."""
    count = np.bincount(work.pair_sample, minlength=len(samples))
    sole_key = np.full(len(samples), -1, np.int64)
    sole_key[work.pair_sample] = work.pair_key
    sole_key[count != 1] = -1
    return sole_key


def _work(trace: Trace, samples: Samples) -> BusyWork | None:
    """Return what kept SMs of a GPU busy; ``None``: nothing, or there is no sample."""
    rows = _workers(trace, samples.device)
    if not len(rows) or not len(samples):
        return None
    starts = trace.array("start_ns")[rows]
    ends = trace.array("end_ns", fill=int(samples.ends[-1]))[rows]

    def coded(column: str) -> Ints:
        return codes(trace.spans.column(column))[0][rows]

    firsts, partition = combined(coded("partition"))
    keys, key = combined(
        partition,
        coded("name"),
        coded("launch_config"),
    )
    row, sample = _meetings(samples, starts, ends)
    from_ns = np.maximum(starts[row], samples.starts[sample])
    until_ns = np.minimum(ends[row], samples.ends[sample])
    at, pair = combined(sample, key[row])
    lasted_ns = np.bincount(pair, until_ns - from_ns, len(at))
    groups = Groups(partition, [*range(len(firsts))])
    return BusyWork(
        rows=rows,
        starts=starts,
        ends=ends,
        partition=partition,
        firsts=firsts,
        key=key,
        keys=keys,
        pair_sample=sample[at],
        pair_key=key[row][at],
        pair_share=lasted_ns / samples.lengths[sample[at]],
        times=Busy.of(groups, starts, ends),
    )


def _meetings(samples: Samples, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return each pair of an interval and a sample that it meets: the numbers of both."""
    first = np.searchsorted(samples.ends, starts, "right")
    behind = np.searchsorted(samples.starts, ends, "left")
    counts = np.maximum(0, behind - first)
    interval = np.repeat(np.arange(len(starts), dtype=np.int64), counts)
    before = np.cumsum(counts) - counts
    sample = np.arange(len(interval), dtype=np.int64)
    sample += np.repeat(first - before, counts)
    return interval, sample


def _has_copies(trace: Trace, samples: Samples) -> Bools:
    """Return sample → whether copies from or to the host moved memory."""
    every = _of_device(trace, samples.device, "memcpy")
    rows = np.setdiff1d(every, _workers(trace, samples.device))
    starts = trace.array("start_ns")[rows]
    ends = trace.array("end_ns", fill=int(samples.ends[-1]))[rows]
    copied_ns = covered(union(starts, ends), samples.starts, samples.ends)
    return np.asarray(copied_ns > 0, bool)


def _of_device(trace: Trace, device: int, *kinds: str) -> Ints:
    rows = rows_of(trace, *kinds)
    of_device: Ints = rows[trace.array("device", fill=-1)[rows] == device]
    return of_device


def _workers(trace: Trace, device: int) -> Ints:
    """Return the rows of a GPU that keep its SMs busy."""
    rows = _of_device(trace, device, "kernel", "memset", "graph", "memcpy")
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
    before_all = np.iinfo(np.int64).min
    stop_of_last = np.r_[before_all, stops]

    def until(times: Ints) -> Ints:
        begun = np.searchsorted(begins, times, "right")
        ahead = np.maximum(0, stop_of_last[begun] - times)
        ahead[begun == 0] = 0
        return np.asarray(total[begun] - ahead, np.int64)

    return np.asarray(until(ends) - until(starts), np.int64)


def levels(shares: Shares) -> Floats:
    """Return for each kernel the SMs that it kept busy where it ran alone; NaN where unknown."""
    samples = shares.samples
    share = shares.ran.max(axis=1)
    alone = (shares.sole_key >= 0) & (share >= _MOST_OF)
    key = shares.sole_key[alone]
    lasted = samples.lengths[alone].astype(np.float64)
    busy_ns = samples.values[BUSY][alone] * lasted
    ran_ns = share[alone] * lasted
    kernels = len(shares.work.keys)
    busy = np.bincount(key, busy_ns, kernels)
    ran = np.bincount(key, ran_ns, kernels)
    return np.where(ran > 0, busy / np.maximum(ran, 1.0), np.nan)


def _estimate(shares: Shares) -> None:
    """Fill in what is not told but lies between bounds, where all that ran has a known level."""
    is_open = (shares.ran > 0) & ~shares.is_told
    expected = _expected(shares)
    is_known = ~np.isnan(expected).any(axis=1) & ~shares.is_beyond
    samples = np.flatnonzero(is_open.any(axis=1) & is_known)
    if not len(samples):
        return
    low, high = shares.low[samples], shares.high[samples]
    total = shares.samples.values[BUSY][samples]
    estimate = _scaled(expected[samples], low, high, total)
    shares.busy[samples] = np.where(
        is_open[samples],
        estimate,
        shares.busy[samples],
    )


def _expected(shares: Shares) -> Floats:
    """Return the SMs that the kernels in each sample keep busy alone, by partition."""
    work = shares.work
    level = levels(shares)[work.pair_key] * work.pair_share
    partition = work.partition[work.keys][work.pair_key]
    expected = np.zeros_like(shares.ran)
    np.add.at(expected, (work.pair_sample, partition), level)
    return np.minimum(expected, shares.high)


def _scaled(expected: Floats, low: Floats, high: Floats, total: Floats) -> Floats:
    """Scale the shares of each sample by one factor, inside their bounds, up to its sum."""
    reachable = np.minimum(total, high.sum(axis=1))

    def at(power: Floats) -> Floats:
        factor = np.exp2(power)[:, None]
        return np.clip(expected * factor, low, high)

    least = np.full(len(total), -_POWERS)
    most = np.full(len(total), _POWERS)
    for _ in range(_HALVINGS):
        middle = (least + most) / 2
        is_less = at(middle).sum(axis=1) < reachable
        least = np.where(is_less, middle, least)
        most = np.where(is_less, most, middle)
    return at(most)
