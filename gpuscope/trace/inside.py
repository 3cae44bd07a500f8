"""Thread blocks and scopes that were recorded inside kernels, put into those of a recording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from gpuscope._checks import door, given
from gpuscope._types import Floats, Ints
from gpuscope.errors import AlignmentError, InvalidArgument, MissingEvidence
from gpuscope.trace import schema
from gpuscope.trace.columns import codes, is_open, rows_of
from gpuscope.trace.facts import ClockFacts
from gpuscope.trace.gpu_states import typical
from gpuscope.trace.joins import match
from gpuscope.trace.model import Trace

_RESOLUTION_NS = 1_000
"""What a block may be outside its kernel: clocks have steps, and are compared no better."""
_NEAR_NS = 100_000
"""How far from what clocks say of each other kernels are looked for."""
_HIGHEST_MHZ = 3_200
"""No SM runs faster."""
_UNIX_NS = 1 << 59
"""Times of the GPU's clock are after it: it counts Unix time, more or less."""
_OF_KERNEL = (
    "host", "process", "device", "device_uuid", "context", "green_context", "partition",
    "intended_partition", "stream", "category",
)  # fmt: skip


@door("clock_mhz", trace=Trace, inside=Trace)
def put_inside(trace: Trace, inside: Trace, *, clock_mhz: float | None = None) -> Trace:
    """Put the thread blocks and scopes of Proton's trace into the kernels of a recording.

    Launches are those of the same name, in their order. One offset between the two clocks puts
    all of them inside their kernels within 1 µs; that bounds it from both sides. Where the
    recording compared the GPU's timer with its own clock, and Proton's trace tells the GPU's times,
    the offset is what that says, as far as it is within the bounds; the middle of the bounds
    otherwise. Scopes count cycles of an SM: they are as long as these take at ``clock_mhz``.

    Parameters
    ----------
    trace
        What was recorded while Proton looked into kernels, such as by :func:`gpuscope.profile`.
    inside
        What :func:`gpuscope.load_trace` read of Proton's file.
    clock_mhz
        SM clock while kernels ran. Default: that of the recording, if the blocks fit into their
        kernels at it; the lowest at which they do otherwise.

    Returns
    -------
    Trace
        The recording with a row for each block and scope, on its SM, in the stream and partition
        of its kernel. ``metadata.clocks["proton"]`` states the offset and how far it can be off.

    Raises
    ------
    AlignmentError
        No offset puts the launches into kernels of the recording, or several do.
    InvalidArgument
        ``inside`` holds no thread blocks of kernels, or ``clock_mhz`` is no clock.
    MissingEvidence
        The recording has no kernel of these names.

    Examples
    --------
    >>> import gpuscope as gs
    >>> from gpuscope.trace import Trace, put_inside
    >>> recorded = Trace.from_columns({
    ...     "id": [1], "kind": ["kernel"], "name": ["add"], "start_ns": [5_000], "end_ns": [9_000],
    ...     "stream": [7], "partition": ["decode"], "source": ["cupti"],
    ... })
    >>> proton = Trace.from_columns({
    ...     "id": [1, 2, 3], "parent": [None, 1, 2], "kind": ["kernel", "block", "scope"],
    ...     "name": ["add", "add", "load"], "start_ns": [0, 0, 0], "end_ns": [3_000, 3_000, 900],
    ...     "sm": [None, 4, 4], "value": [None, 3_000, 900], "source": ["proton"] * 3,
    ... })
    >>> both = put_inside(recorded, proton)
    >>> both.kind_counts(), both.where(kind="scope").texts("partition")
    ({'kernel': 1, 'block': 1, 'scope': 1}, ['decode'])
    """
    if clock_mhz is not None and not 1 <= clock_mhz <= _HIGHEST_MHZ:
        raise InvalidArgument(
            f"clock_mhz is {given(clock_mhz)}; MHz from 1 to {_HIGHEST_MHZ:,} are needed"
        )
    blocks = _Blocks.of(inside)
    kernels = _kernels(trace, set(blocks.names))
    if not kernels:
        names = ", ".join(repr(name) for name in blocks.names[:5])
        raise MissingEvidence(
            f"the recording has no finished kernel called {names}: record the same launches"
        )
    clocks = _Clocks.of(trace, blocks)
    launches = np.flatnonzero([name in kernels for name in blocks.names])
    elapsed = np.rint((blocks.start_ns - clocks.first_ns) / clocks.rate).astype(np.int64)
    starts = clocks.first_ns + elapsed
    begin, end = blocks.spans(starts, starts + blocks.lasting(_HIGHEST_MHZ))
    rows = _matched([(blocks.names[at], begin[at], end[at]) for at in launches], kernels, clocks)
    of_launch = np.full(len(blocks.names), -1, np.int64)
    of_launch[launches] = rows
    matched_blocks = np.flatnonzero(of_launch[blocks.launch] >= 0)
    return _joined(trace, inside, blocks, of_launch, matched_blocks, starts, clocks, clock_mhz)


@dataclass(frozen=True)
class _Blocks:
    """Thread blocks of a trace of Proton.

    Attributes
    ----------
    names
        Launch → its kernel's name, in the order of their starts.
    rows, launch, start_ns, told_ns, cycles
        Block → its row, launch, start, time if the file told it (−1 otherwise: it ends with its
        last scope), cycles from its first scope to its last.
    mhz
        The clock at which the trace has scopes.
    """

    names: list[str]
    rows: Ints
    launch: Ints
    start_ns: Ints
    told_ns: Ints
    cycles: Floats
    mhz: float

    @classmethod
    def of(cls, inside: Trace) -> _Blocks:
        every, parent = inside.array("start_ns"), inside.array("parent", fill=-1)
        ends, values = inside.array("end_ns", fill=-1), _values(inside)
        kernels = rows_of(inside, "kernel")
        kernels = kernels[np.argsort(every[kernels], kind="stable")]
        rows, scopes = rows_of(inside, "block"), rows_of(inside, "scope")
        launch = match(parent[rows], inside.array("id")[kernels])
        usable = (launch >= 0) & (ends[rows] >= 0) & (values[rows] >= 0)
        rows, launch = rows[usable], launch[usable]
        if not len(rows):
            raise InvalidArgument(
                "inside holds no thread blocks of kernels with their cycles: give what "
                "load_trace() read of a file that Proton wrote with data='trace' and "
                "backend='instrumentation'"
            )
        last = np.full(len(rows), -1, np.int64)
        of_scope = match(parent[scopes], inside.array("id")[rows])
        np.maximum.at(last, of_scope[of_scope >= 0], ends[scopes[of_scope >= 0]])
        is_told = bool((ends[rows] > last).any() or every[rows].min() >= _UNIX_NS)
        took = (ends - every)[scopes].sum()
        names = [str(inside.texts("name")[row]) for row in kernels.tolist()]
        return cls(
            names,
            rows,
            launch,
            every[rows],
            ends[rows] - every[rows] if is_told else np.full(len(rows), -1, np.int64),
            values[rows],
            float(values[scopes].sum() / took * 1e3) if took else 1e3,
        )

    def lasting(self, mhz: float) -> Ints:
        """Block → how long it lasts at a clock, ns."""
        return np.where(self.told_ns >= 0, self.told_ns, np.rint(self.cycles * 1e3 / mhz)).astype(
            np.int64
        )

    def spans(self, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
        """Launch → start of its first block and end of its last."""
        begin = np.full(len(self.names), schema.LATEST_NS, np.int64)
        end = np.full(len(self.names), -schema.LATEST_NS, np.int64)
        np.minimum.at(begin, self.launch, starts)
        np.maximum.at(end, self.launch, ends)
        return begin, end


def _values(trace: Trace) -> Floats:
    return np.asarray(trace.spans.column("value").cast(pa.float64()).fill_null(-1.0), np.float64)


@dataclass(frozen=True)
class _Clocks:
    """How the GPU's timer stands to the clock of a recording.

    Attributes
    ----------
    first_ns
        The first time of Proton's.
    rate
        Ns of the timer in a ns of the recording.
    offset_ns
        What to add at ``first_ns``, where it is known.
    residual_ns
        How far that can be off.
    """

    first_ns: int
    rate: float
    offset_ns: int | None = None
    residual_ns: int = 0

    @classmethod
    def of(cls, trace: Trace, blocks: _Blocks) -> _Clocks:
        first = int(blocks.start_ns.min())
        clocks, windows = trace.metadata.clocks, trace.metadata.windows_ns
        timers = [facts for name, facts in clocks.items() if name.startswith("globaltimer")]
        if len(timers) != 1 or timers[0].offset_ns is None:
            return cls(first, 1.0)
        facts = timers[0]
        drift = (facts.drift_ns or 0) / facts.over_ns if facts.over_ns else 0.0
        if first < _UNIX_NS:
            return cls(first, 1 + drift)
        offset = -round(timers[0].offset_ns)
        since = first + offset - windows[0][0] if windows else 0
        return cls(first, 1 + drift, offset - round(drift * since), round(facts.residual_ns or 0))

    def within(self, low: int, high: int) -> tuple[int, int]:
        """Return the offset between bounds that the clocks say, and how far it can be off."""
        if self.offset_ns is None:
            return (low + high) // 2, abs(high - low + 1) // 2
        offset = min(max(self.offset_ns, min(low, high)), max(low, high))
        return offset, max(self.residual_ns, abs(offset - self.offset_ns))


class _Kernels(NamedTuple):
    """The finished kernels of one name, by start; ``latest_ns``: of those so far, the last end."""

    rows: Ints
    start_ns: Ints
    end_ns: Ints
    latest_ns: Ints


def _kernels(trace: Trace, names: set[str]) -> dict[str, _Kernels]:
    code, recorded_names = codes(trace.spans.column("name"))
    rows = rows_of(trace, "kernel")
    rows = rows[~is_open(trace)[rows]]
    starts, ends = trace.array("start_ns"), trace.array("end_ns", fill=0)
    rows = rows[np.argsort(starts[rows], kind="stable")]
    kernels_of_name: dict[str, _Kernels] = {}
    for number_of_name, name in enumerate(recorded_names):
        if name in names:
            of_name = rows[code[rows] == number_of_name]
            if len(of_name):
                last = ends[of_name]
                kernels_of_name[name] = _Kernels(
                    of_name, starts[of_name], last, np.maximum.accumulate(last)
                )
    return kernels_of_name


def _matched(
    launches: list[tuple[str, int, int]], kernels: Mapping[str, _Kernels], clocks: _Clocks
) -> Ints:
    """Return the kernel of each launch, by the offsets at which all lie inside theirs.

    Each kernel of the first launch's name is tried as that launch; offsets are bounded by what
    is inside what, launch by launch.
    """
    name, start, end = launches[0]
    of_name = kernels[name]
    slack = _RESOLUTION_NS
    low, high = of_name.start_ns - start - slack, of_name.end_ns - end + slack
    if clocks.offset_ns is not None:
        near = _NEAR_NS + clocks.residual_ns
        low = np.maximum(low, clocks.offset_ns - near)
        high = np.minimum(high, clocks.offset_ns + near)
    candidates = np.flatnonzero(low <= high)
    low, high = low[candidates], high[candidates]
    at = [candidates]  # launch → candidate → position among the kernels of its name
    previous = {name: candidates}
    for name, start, end in launches[1:]:
        of_name = kernels[name]
        first = np.searchsorted(of_name.latest_ns, end + low - slack)
        if name in previous:
            first = np.maximum(first, previous[name] + 1)
        last = np.searchsorted(of_name.start_ns, start + high + slack, "right") - 1
        middle = np.searchsorted(of_name.start_ns, start + (low + high) // 2 + slack, "right") - 1
        chosen = np.minimum(np.maximum(middle, first), last)
        fits = first <= last
        chosen = np.where(fits, chosen, 0)
        low = np.maximum(low, of_name.start_ns[chosen] - start - slack)
        high = np.minimum(high, of_name.end_ns[chosen] - end + slack)
        fits &= low <= high
        low, high, chosen = low[fits], high[fits], chosen[fits]
        at = [*(positions[fits] for positions in at), chosen]
        previous = {key: positions[fits] for key, positions in previous.items()} | {name: chosen}
    if not len(low):
        raise AlignmentError(
            f"no offset between the clocks puts Proton's {len(launches):,} launches into kernels "
            "of the recording: record the launches that Proton saw, all of them"
        )
    best = 0
    if len(low) > 1:
        if clocks.offset_ns is None:
            raise AlignmentError(
                f"Proton's {len(launches):,} launches fit into kernels of the recording in "
                f"{len(low):,} ways: record these launches and no others of their names, or use a "
                "Triton whose traces tell the GPU's times ('Init Time (ns)')"
            )
        best = int(np.abs((low + high) // 2 - clocks.offset_ns).argmin())
    rows = (
        kernels[name].rows[int(positions[best])]
        for (name, *_), positions in zip(launches, at, strict=True)
    )
    return np.fromiter(rows, np.int64, len(launches))


def _joined(
    trace: Trace,
    inside: Trace,
    blocks: _Blocks,
    of_launch: Ints,
    matched_blocks: Ints,
    starts: Ints,
    clocks: _Clocks,
    clock_mhz: float | None,
) -> Trace:
    """Return the recording with the blocks that are kept, and their scopes."""
    kernel = of_launch[blocks.launch]
    low = int((trace.array("start_ns")[kernel] - starts)[matched_blocks].max())
    after = (trace.array("end_ns", fill=0)[kernel] - starts)[matched_blocks]
    derived = blocks.told_ns[matched_blocks] < 0

    def latest(mhz: float) -> int:
        return int((after - blocks.lasting(mhz)[matched_blocks]).min())

    recorded = typical(trace.metadata.gpu_states)[0]
    if clock_mhz is None and recorded and latest(recorded) >= low:
        clock_mhz = max(recorded, blocks.mhz)
    offset, residual = clocks.within(low, latest(clock_mhz or _HIGHEST_MHZ))
    if clock_mhz is None and derived.any():
        # Blocks begin soon after their kernel: the bound by their ends is that of any clock.
        offset, residual = low, max(latest(_HIGHEST_MHZ) - low, 0)
    fitting = (blocks.cycles[matched_blocks] * 1e3 / np.maximum(after - offset, 1))[derived]
    mhz = clock_mhz or min(max(blocks.mhz, float(fitting.max(initial=0))), _HIGHEST_MHZ)
    block_start = starts + offset
    parent = inside.array("parent", fill=-1)
    scopes = rows_of(inside, "scope")
    of_scope = match(parent[scopes], inside.array("id")[blocks.rows])
    is_kept = np.zeros(len(blocks.rows) + 1, bool)  # the last is that of no block
    is_kept[matched_blocks] = True
    chosen = is_kept[of_scope]
    scopes, of_scope = scopes[chosen], of_scope[chosen]
    scale = blocks.mhz / mhz
    inner = [
        np.rint((inside.array(name, fill=0)[scopes] - blocks.start_ns[of_scope]) * scale).astype(
            int
        )
        for name in ("start_ns", "end_ns")
    ]
    rows = np.r_[blocks.rows[matched_blocks], scopes]
    of_row = np.r_[kernel[matched_blocks], kernel[of_scope]]
    lasting = blocks.lasting(mhz)
    times = {
        "start_ns": np.r_[block_start[matched_blocks], block_start[of_scope] + inner[0]],
        "end_ns": np.r_[(block_start + lasting)[matched_blocks], block_start[of_scope] + inner[1]],
    }
    first_id = int(trace.array("id").max()) + 1
    ids = np.arange(first_id, first_id + len(rows), dtype=np.int64)
    id_of_block = np.zeros(len(blocks.rows), np.int64)
    id_of_block[matched_blocks] = ids[: len(matched_blocks)]
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        name: pa.array(values.astype(np.int64)) for name, values in times.items()
    }
    columns |= {
        "id": pa.array(ids),
        "parent": pa.array(np.r_[trace.array("id")[kernel[matched_blocks]], id_of_block[of_scope]]),
        **{name: trace.spans.column(name).take(pa.array(of_row)) for name in _OF_KERNEL},
    }
    more = inside.spans.take(pa.array(rows))
    for name, column in columns.items():
        more = schema.with_column(more, name, column)
    lost = int(np.count_nonzero(of_launch < 0))
    counts = {"launches that Proton saw alone": lost} if lost else {}
    facts = ClockFacts(offset_ns=offset, residual_ns=residual)
    note = (
        f"Proton's scopes are inside {len(of_launch) - lost:,} kernels: as long as their cycles "
        f"take at {mhz:.0f} MHz, and off by {residual / 1e3:.1f} µs at most"
    )
    metadata = replace(
        trace.metadata,
        clocks={**trace.metadata.clocks, "proton": facts},
        counts={**trace.metadata.counts, **counts},
        notes=(*trace.metadata.notes, note),
    )
    return Trace(schema.concat([trace.spans, more], schema.SPAN_TYPES), trace.edges, metadata)
