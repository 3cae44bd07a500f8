"""What each partition used of its SMs and of the memory: from sampled hardware counters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from gpuscope._checks import door
from gpuscope._text import percent
from gpuscope._types import Array, Bools, Floats, Ints
from gpuscope.analysis.intervals import Groups, union
from gpuscope.analysis.result import Result, about, sentences
from gpuscope.analysis.sm_shares import Shares, covered, shares
from gpuscope.analysis.span_rows import launched_blocks
from gpuscope.errors import MissingEvidence
from gpuscope.trace.columns import codes, once
from gpuscope.trace.counters import BUSY, MOVED, READ, TENSOR, WRITTEN
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import plain_names

WHOLE = 0.999
"""Share of a sample in which a partition has to run for the sample to tell its highest values."""


@dataclass(frozen=True)
class PartitionUse:
    """What one partition used, over the samples in which it ran.

    Attributes
    ----------
    partition
        ``None``: work on the whole GPU.
    granted
        SMs that it has; ``None`` where that is unknown, or carvings of its name differ.
    ran_ns
        For how long of the samples it ran.
    busy, busy_p95, busy_most
        Its busy SMs while it ran, as told or estimated: their mean by time, and the 95th percentile
        and highest of samples in which it ran all the time. ``None`` where nothing supports more
        than the bounds.
    low, high
        Bounds of the mean.
    directly
        Share of the time in which it ran that tells its busy SMs directly.
    tensor
        Share of the cycles of its busy SMs' tensor pipes, where it ran alone.
    read, written
        Mean GB/s where it ran alone, and the host copied nothing; of a simulated GPU ``moved`` has
        both as one.
    alone_most
        The highest of samples in which it alone ran all the time, whatever was granted.
    of_peak
        :attr:`rate` over that of copies, which ``gpuscope calibrate`` measured of such a GPU.
    """

    device: Annotated[int, "GPU"]
    partition: Annotated[str | None, "partition"]
    granted: Annotated[int | None, "SMs granted"]
    ran_ns: Annotated[float, "ran (ms)"]
    busy: Annotated[float | None, "busy SMs"]
    busy_p95: Annotated[float | None, "busy SMs p95"]
    busy_most: Annotated[float | None, "busy SMs at most"]
    low: Annotated[float, "at least"]
    high: Annotated[float, "no more than"]
    directly: Annotated[float, "told directly"]
    tensor: Annotated[float | None, "tensor pipes"]
    read: Annotated[float | None, "read (GB/s)"]
    written: Annotated[float | None, "written (GB/s)"]
    moved: Annotated[float | None, "read and written (GB/s)"]
    alone_most: float | None
    of_peak: Annotated[float | None, "of the memory's peak"]

    @property
    def rate(self) -> float | None:
        """GB/s read and written where it ran alone; ``None`` where unknown."""
        return _rate(self.read, self.written, self.moved)


@dataclass(frozen=True)
class KernelUse:
    """What one kernel used in the samples in which nothing else ran.

    Attributes
    ----------
    workload
        What it belongs to, if anything says so.
    blocks
        Thread blocks of a launch; ``None`` where unknown.
    busy, busy_most
        SMs while it ran: mean, and the highest of samples in which it ran all the time.
    ran_ns
        How long these samples are.
    alone_ns, beside_ns
        Medians of the launches beside which no other partition ran, and of those beside which one
        did, for most of their time; ``None`` for fewer than three.
    beside_rate
        GB/s of the whole GPU in the samples of the latter; ``None`` unless both are known.
    peak
        GB/s of copies, as ``gpuscope calibrate`` measured such a GPU; ``None``: it did not.
    spans
        Ids of a few launches, the longest first.
    """

    device: int
    kernel: str
    workload: str | None
    partition: str | None
    granted: int | None
    blocks: int | None
    launches: int
    busy: float
    busy_most: float | None
    ran_ns: float
    tensor: float | None
    read: float | None
    written: float | None
    moved: float | None
    alone_ns: float | None
    beside_ns: float | None
    beside_rate: float | None
    peak: float | None
    spans: tuple[int, ...]

    @property
    def rate(self) -> float | None:
        """GB/s read and written where it ran alone; ``None`` where unknown."""
        return _rate(self.read, self.written, self.moved)


def _rate(read: float | None, written: float | None, moved: float | None) -> float | None:
    """Return the sum of what was read and written, which a simulated GPU tells as one."""
    if moved is not None:
        return moved
    return None if read is None or written is None else read + written


@dataclass(frozen=True)
class PartitionUseResult(Result):
    """What each partition used, and each kernel where it ran alone.

    Attributes
    ----------
    partitions
        By GPU; of each those with most time first.
    kernels
        Those with most time in samples of their own first.
    lost_ns
        How long no samples are there though they were taken.
    beyond_ns
        How long more SMs were busy than all that ran had.
    sampled
        Share of the time in which anything ran for which there are samples.
    """

    partitions: tuple[PartitionUse, ...]
    kernels: tuple[KernelUse, ...]
    lost_ns: int = 0
    beyond_ns: int = 0
    sampled: float = 1.0
    entries = "partitions"

    @property
    def directly(self) -> float:
        """Share of the partitions' time that tells their busy SMs directly."""
        total = sum(use.ran_ns for use in self.partitions)
        return sum(use.directly * use.ran_ns for use in self.partitions) / total if total else 0.0

    @property
    def definition(self) -> str:
        """What the rows mean."""
        of_model = "busy SMs are the model's" if self.is_simulated else ""
        lost = f"no samples of {self.lost_ns / 1e6:.3g} ms" if self.lost_ns else ""
        beyond = (
            f"more SMs were busy than all that ran had for {self.beyond_ns / 1e6:.3g} ms"
            if self.beyond_ns
            else ""
        )
        return sentences(
            "busy SMs while the partition ran; tensor pipes and memory where it ran alone",
            of_model,
            "" if self.sampled > WHOLE else f"samples are of {percent(self.sampled)} of that time",
            lost,
            beyond,
        )


@door(trace=Trace)
@once
def partition_use(trace: Trace) -> PartitionUseResult:
    """Say what each partition used of its SMs and the memory, by hardware counters.

    There are no counters by partition: a sample in which one partition ran tells its share, others
    bound it by what was granted, and it is estimated from what its kernels use alone.

    Raises
    ------
    MissingEvidence
        The trace has no samples of counters during which anything ran.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> with gpu.carve({"decode": 16}) as parts, gs.profile(gpu, counters=True) as recording:
    ...     gemm = gs.Gemm(gpu, m=1024, n=1024, k=1024)
    ...     _ = gemm.execute(stream=parts["decode"].create_stream())
    ...     gpu.synchronize()
    >>> (decode,) = gs.analysis.partition_use(recording.trace).partitions
    >>> decode.granted, round(decode.busy), decode.directly
    (16, 16, 1.0)
    """
    every = shares(trace)
    partitions = tuple(use for of_device in every for use in _partitions(of_device))
    if not partitions:
        raise MissingEvidence(
            "the trace has no samples of hardware counters while work ran: record with "
            "profile(counters=True) or gpuscope record --counters 100us"
        )
    return PartitionUseResult(
        partitions,
        tuple(
            sorted(
                (use for of_device in every for use in _kernels(trace, of_device)),
                key=lambda use: -use.ran_ns,
            )
        ),
        sum(int(np.diff(of.samples.lost).sum()) for of in every),
        sum(int(of.samples.lengths[of.is_beyond].sum()) for of in every),
        _sampled(every),
        **about(trace),
    )


def _sampled(every: Sequence[Shares]) -> float:
    """Return which share of the time in which anything ran has samples."""
    ran_ns = sampled_ns = 0
    for of in every:
        intervals = union(of.work.starts, of.work.ends)
        ran_ns += int(np.diff(intervals).sum())
        sampled_ns += int(covered(intervals, of.samples.starts, of.samples.ends).sum())
    return sampled_ns / max(ran_ns, 1)


@dataclass(frozen=True)
class SpanUse:
    """What was used in the samples that lie wholly in one span's time.

    Attributes
    ----------
    granted
        SMs of its partition.
    busy, low, high
        Mean of the partition's busy SMs, as told or estimated, and its bounds; ``None`` where
        there is nothing but these.
    directly
        Share of the samples that tell them directly.
    tensor
        Share of the busy SMs' tensor pipes; ``None`` unless its partition alone ran.
    rate
        GB/s of the whole GPU.
    """

    granted: int
    busy: float | None
    low: float
    high: float
    directly: float
    tensor: float | None
    rate: float | None


def span_use(trace: Trace, span: int) -> SpanUse | None:
    """Return what a span of a GPU's work used; ``None`` where no sample lies in it."""
    for of in shares(trace):
        work = of.work
        which = np.flatnonzero(trace.array("id")[work.rows] == span)
        if not len(which):
            continue
        start_ns, end_ns = work.starts[which[0]], work.ends[which[0]]
        inside = (of.samples.starts >= start_ns) & (of.samples.ends <= end_ns)
        rows = np.flatnonzero(inside)
        if not len(rows):
            return None
        number = int(work.partition[which[0]])
        busy = of.busy[rows, number]
        lengths = of.samples.lengths[rows]

        def mean(values: Array, lengths: Ints = lengths) -> float:
            return float(np.average(values, weights=lengths))

        is_alone = bool((of.sole[rows] == number).all())
        return SpanUse(
            granted=int(of.granted[number]) or of.samples.sms,
            busy=None if np.isnan(busy).any() else mean(busy),
            low=mean(of.low[rows, number]),
            high=mean(of.high[rows, number]),
            directly=mean(of.is_told[rows, number]),
            tensor=_Means(of, rows, np.ones(len(rows))).tensor if is_alone else None,
            rate=_rate_during(of, which[:1]),
        )
    return None


@dataclass(frozen=True)
class _Means:
    """Means over some samples, by time, while something ran there for some share of each."""

    of: Shares
    rows: Bools | Ints
    ran: Floats

    def rate(self, name: str) -> float | None:
        """Return the mean of a quantity while it ran; ``None`` where it was not had."""
        values = self.of.samples.values[name][self.rows]
        lasted = self.of.samples.lengths[self.rows].astype(np.float64)
        is_had = ~np.isnan(values)
        if name in (READ, WRITTEN, MOVED):
            is_had &= ~self.of.has_copies[self.rows]
        ran_ns = float((self.ran * lasted)[is_had].sum())
        amount = float((values * lasted)[is_had].sum())
        return amount / ran_ns if ran_ns else None

    @property
    def tensor(self) -> float | None:
        """The share of the busy SMs' tensor pipes."""
        tensor, busy = self.rate(TENSOR), self.rate(BUSY)
        return None if tensor is None or not busy else tensor / busy


def _partitions(of: Shares) -> Iterator[PartitionUse]:
    lengths = of.samples.lengths.astype(np.float64)
    total_ns = (of.ran * lengths[:, None]).sum(axis=0)
    order = np.argsort(-total_ns, kind="stable")
    for number in order[total_ns[order] > 0].tolist():
        yield _of_partition(of, number, lengths)


def _of_partition(of: Shares, number: int, lengths: Floats) -> PartitionUse:
    """Say what one partition used, over samples of these lengths, ns."""
    ran, busy = of.ran[:, number], of.busy[:, number]
    ran_ns = ran * lengths
    total_ns = float(ran_ns.sum())
    alone = np.flatnonzero((of.sole == number) & (ran > 0))
    means = _Means(of, alone, ran[alone])
    is_known = ~np.isnan(busy) & (ran > 0)
    known_ns = float(ran_ns[is_known].sum())
    is_whole = is_known & (ran >= WHOLE)
    whole = busy[is_whole]
    whole_alone = busy[is_whole & (of.sole == number)]
    is_told = of.is_told[:, number]
    read, written, moved = (means.rate(name) for name in (READ, WRITTEN, MOVED))
    rate, peak = _rate(read, written, moved), of.samples.peak

    def mean(values: Floats, which: Bools, over_ns: float) -> float:
        sm_ns = (values * lengths)[which]
        return float(sm_ns.sum()) / over_ns

    return PartitionUse(
        device=of.samples.device,
        partition=of.partitions[number],
        granted=int(of.granted[number]) or None,
        ran_ns=total_ns,
        busy=mean(busy, is_known, known_ns) if known_ns else None,
        busy_p95=_p95(whole, lengths[is_whole]),
        busy_most=float(whole.max()) if len(whole) else None,
        low=mean(of.low[:, number], ran > 0, total_ns),
        high=mean(of.high[:, number], ran > 0, total_ns),
        directly=float(ran_ns[is_told].sum()) / total_ns,
        tensor=means.tensor,
        read=read,
        written=written,
        moved=moved,
        alone_most=float(whole_alone.max()) if len(whole_alone) else None,
        of_peak=None if rate is None or not peak else rate / peak,
    )


def _p95(values: Floats, lasted: Floats) -> float | None:
    """Return the value that is not exceeded for 95 % of the time."""
    if not len(values):
        return None
    order = np.argsort(values, kind="stable")
    until = np.cumsum(lasted[order])
    at = np.searchsorted(until, 0.95 * until[-1])
    return float(values[order[at]])


MOST = 0.5
"""Share of a launch's time, or of a sample's, that counts as most of it."""
_SPANS = 4
_LAUNCHES = 3


def _median(lasted_ns: Ints) -> float | None:
    return float(np.median(lasted_ns)) if len(lasted_ns) >= _LAUNCHES else None


def _rate_during(of: Shares, rows: Ints) -> float | None:
    """Return the GB/s of the whole GPU in the samples that are mostly of some rows."""
    samples, work = of.samples, of.work
    intervals = union(work.starts[rows], work.ends[rows])
    during_ns = covered(intervals, samples.starts, samples.ends)
    which = (during_ns >= MOST * samples.lengths) & ~of.has_copies
    lengths = samples.lengths[which]
    read, written, moved = (samples.values[name][which] for name in (READ, WRITTEN, MOVED))
    rate = np.where(np.isnan(moved), read + written, moved)
    if not len(rate) or np.isnan(rate).any():
        return None
    return float((rate * lengths).sum() / lengths.sum())


def _kernels(trace: Trace, of: Shares) -> Iterator[KernelUse]:
    plain, names = codes(plain_names(trace.spans))
    category, workloads = codes(trace.spans.column("category"))
    config, texts = codes(trace.spans.column("launch_config"))
    blocks = launched_blocks(texts)
    ids, work = trace.array("id"), of.work
    lasted = work.ends - work.starts
    share = of.ran.max(axis=1)
    lone = np.flatnonzero((of.sole_key >= 0) & (share > 0))
    samples_by_key = Groups.of(of.sole_key[lone], range(len(work.keys)))
    launches_by_key = Groups(work.key, [*range(len(work.keys))])
    is_beside = work.beside() >= MOST
    for key in samples_by_key.labels:
        samples = lone[samples_by_key.rows_of(key)]
        ran = share[samples]
        means = _Means(of, samples, ran)
        whole = of.samples.values[BUSY][samples[ran >= WHOLE]]
        first = work.rows[work.keys[key]]
        number = int(work.partition[work.keys[key]])
        launches = launches_by_key.rows(key)
        order = np.argsort(-lasted[launches], kind="stable")
        longest = launches[order[:_SPANS]]
        beside = launches[is_beside[launches]]
        alone_ns = _median(lasted[launches[~is_beside[launches]]])
        beside_ns = _median(lasted[beside])
        is_compared = alone_ns is not None and beside_ns is not None
        is_stated = texts[config[first]] is not None
        yield KernelUse(
            device=of.samples.device,
            kernel=str(names[plain[first]]),
            workload=workloads[category[first]],
            partition=of.partitions[number],
            granted=int(of.granted[number]) or None,
            blocks=int(blocks[config[first]]) if is_stated else None,
            launches=len(launches),
            busy=means.rate(BUSY) or 0.0,
            busy_most=float(whole.max()) if len(whole) else None,
            ran_ns=float((ran * of.samples.lengths[samples]).sum()),
            tensor=means.tensor,
            read=means.rate(READ),
            written=means.rate(WRITTEN),
            moved=means.rate(MOVED),
            alone_ns=alone_ns,
            beside_ns=beside_ns,
            beside_rate=_rate_during(of, beside) if is_compared else None,
            peak=of.samples.peak,
            spans=tuple(ids[work.rows[longest]].tolist()),
        )
