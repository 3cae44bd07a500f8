"""Chrome traces of Triton's Proton: scopes inside kernels, by thread block and warp, on their SMs.

Proton writes a kernel's name, its SM and its thread block as the process of an event, the warp as
its thread. A block's times begin at what ``%globaltimer`` said when it began; within a block they
count cycles of its SM, written as if it ran at 1 GHz.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa

from gpuscope._types import Array, Ints
from gpuscope.errors import TraceFormatError
from gpuscope.formats.chrome import events as raw
from gpuscope.formats.limits import Limits
from gpuscope.formats.private import LEFT_OUT, scrub
from gpuscope.trace import arrow, schema, valid
from gpuscope.trace.arrow import NONE
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace

_PROCESS = re.compile(r"(.+) Core(\d{1,9}) CTA(\d{1,9})", re.DOTALL)
_THREAD = re.compile(r"warp (\d{1,9})(?: \(line \d{1,9}\))?")
_CALL_PATH = "Kernel Call Path"
"""The process of bars of the host's scopes, as long as what they launched: no times of the host."""
_BEGIN, _END = "Init Time (ns)", "Post Final Time (ns)"
_WRITING, _CLOCK = "Finalization Time (ns)", "Frequency (MHz)"
_ARGUMENTS = (_BEGIN, _END, _WRITING, _CLOCK)
_ASSUMED_MHZ = 1000
_HIGHEST_MHZ = 3200
"""No SM runs faster."""
_LONGEST_NAME = 1 << 16
_COARSEST_NS = 1 << 20


def recognise(events: list[raw.ChromeEvent]) -> bool:
    """Whether the first span of a Chrome trace is one of a thread block, as Proton writes it."""
    for event in events:
        if event.ph == "X" and event.pid != _CALL_PATH:
            return _block(event.pid) is not None and _warp(event.tid) is not None
    return False


def _block(process: object) -> tuple[str, int, int] | None:
    """Return kernel, SM and thread block that the process of an event names, if it does."""
    if not isinstance(process, str):
        return None
    if len(process) > _LONGEST_NAME:
        raise TraceFormatError(f"a kernel's name has more than {_LONGEST_NAME:,} letters")
    match = _PROCESS.fullmatch(process)
    return match and (match[1], int(match[2]), int(match[3]))


def _warp(thread: object) -> int | None:
    match = _THREAD.fullmatch(thread) if isinstance(thread, str) else None
    return match and int(match[1])


@dataclass(frozen=True)
class _Blocks:
    """The thread blocks of a file, in its order.

    Attributes
    ----------
    of_scope
        Scope → its block.
    kernel, sm, block, launch
        Block → number of its kernel's name, SM, number in its grid, and number of its launch.
    begin_ns, end_ns
        Block → what the GPU's clock said before its first scope and after its last, NONE where
        the file does not tell.
    first_ns, last_ns
        Block → start of its first scope and end of its last, as written.
    """

    of_scope: Ints
    kernel: Ints
    sm: Ints
    block: Ints
    launch: Ints
    begin_ns: Ints
    end_ns: Ints
    first_ns: Ints
    last_ns: Ints


def trace(
    events: list[raw.ChromeEvent],
    top: dict[str, msgspec.Raw],
    limits: Limits,
    *,
    keep_private: bool,
) -> Trace:
    """Return kernels, their thread blocks and the scopes in these as a trace.

    A kernel lasts from the beginning of its first block to the end of its last, as far as blocks
    had scopes; which GPU and stream ran it, Proton does not tell.
    """
    left = raw.Tally()
    scopes, names, (kernel, sm, block, warp) = _scopes(events, left)
    starts, timed = raw.nanoseconds([event.ts for event in scopes])
    lasts, lasting = raw.nanoseconds([event.dur for event in scopes])
    usable = timed & lasting & (starts >= 0) & (lasts >= 0)
    usable &= starts + lasts < schema.LATEST_NS
    left["events without readable times"] += int(np.count_nonzero(~usable))
    rows = np.flatnonzero(usable)
    scopes = [scopes[row] for row in rows.tolist()]
    values, unread = raw.arguments([event.args for event in scopes], _ARGUMENTS, as_written=())
    for name, count in unread.items():
        left[f"arguments {name[:40]!r} of scopes"] += count
    begin, end, writing = (_numbers(values[name]) for name in (_BEGIN, _END, _WRITING))
    blocks = _blocks(
        (kernel[rows], sm[rows], block[rows], warp[rows]),
        (starts[rows], (starts + lasts)[rows]),
        (begin, np.where((end >= 0) & (writing >= 0), end - writing, NONE)),
        writing,
    )
    for key in top:
        if key != "displayTimeUnit":
            left[f"{key[:40]!r} beside the events"] = 1
    return _put_together(
        scopes, warp[rows], starts[rows], lasts[rows], blocks, names, _clock(values[_CLOCK]),
        left, limits, keep_private=keep_private,
    )  # fmt: skip


def _scopes(
    events: list[raw.ChromeEvent], left: raw.Tally
) -> tuple[list[raw.ChromeEvent], list[str], tuple[Ints, Ints, Ints, Ints]]:
    """Return the scopes of thread blocks, the kernels' names, and where each scope was.

    That is the number of its kernel's name, its SM, thread block and warp.
    """
    process, processes = _coded([event.pid for event in events])
    thread, threads = _coded([event.tid for event in events])
    blocks = [_block(text) for text in processes]
    warps = np.array([_or_none(_warp(text)) for text in threads], np.int64)[thread]
    names = [*dict.fromkeys(block[0] for block in blocks if block)]
    number = {name: code for code, name in enumerate(names)}
    places = np.array(
        [(number[block[0]], *block[1:]) if block else (NONE,) * 3 for block in blocks], np.int64
    )[process]
    spans = np.array([event.ph == "X" for event in events], bool)
    taken = spans & (places[:, 0] >= 0) & (warps >= 0)
    bars = process == processes.index(_CALL_PATH) if _CALL_PATH in processes else taken & False
    left["bars of the host's scopes"] += int(np.count_nonzero(bars))
    left["events that are no scope of a thread block"] += int(np.count_nonzero(~taken & ~bars))
    rows = np.flatnonzero(taken)
    columns = (*places[rows].T, warps[rows])
    return [events[row] for row in rows.tolist()], names, columns


def _coded(values: list[int | str | float | None]) -> tuple[Ints, list[str]]:
    """Return numbers and the texts they stand for; what is no text is an empty one."""
    codes, texts = arrow.coded(
        pa.array([value if isinstance(value, str) else "" for value in values], pa.string())
    )
    return codes.astype(np.int64), texts


def _or_none(number: int | None) -> int:
    return NONE if number is None else number


def _numbers(values: list[object]) -> Ints:
    """Return times as the file tells them, NONE where there is none that can be."""
    column = raw.whole(values)
    if pa.types.is_null(column.type):
        return np.full(len(column), NONE, np.int64)
    numbers = np.asarray(column.fill_null(NONE), np.int64)
    return np.where((numbers >= 0) & (numbers < schema.LATEST_NS), numbers, NONE)


def _clock(values: list[object]) -> float:
    """Return the clock in MHz at which the writer took cycles for time."""
    for value in values:
        if isinstance(value, int | float) and 1 <= value <= _HIGHEST_MHZ:
            return float(value)
    return float(_ASSUMED_MHZ)


def _blocks(
    places: tuple[Ints, Ints, Ints, Ints],
    times: tuple[Ints, Ints],
    clock: tuple[Ints, Ints],
    writing: Ints,
) -> _Blocks:
    """Part scopes into thread blocks, which stand one behind the other in the file, by launch.

    Where no block tells when it began, two launches of one block on one SM by one warp are told
    apart by how long the block took to write its scopes, and are one if that is the same.
    """
    kernel, sm, block, warp = places
    begin, end = clock
    new = np.ones(len(kernel), bool)
    if len(kernel):
        changed = (kernel[1:] != kernel[:-1]) | (sm[1:] != sm[:-1]) | (block[1:] != block[:-1])
        if (begin >= 0).any():  # of an event between two warps, only its block's other scopes know
            changed |= (begin[1:] != begin[:-1]) & (begin[1:] >= 0) & (begin[:-1] >= 0)
        else:
            changed |= (warp[1:] < warp[:-1]) | (writing[1:] != writing[:-1])
        new[1:] = changed
    first = np.flatnonzero(new)
    of_scope = np.cumsum(new) - 1
    if not len(first):
        empty = np.zeros(0, np.int64)
        return _Blocks(*[empty] * 9)
    columns = kernel[first], sm[first], block[first]
    return _Blocks(
        of_scope,
        *columns,
        np.fromiter(_launches(*columns), np.int64, len(first)),
        np.maximum.reduceat(begin, first),
        np.maximum.reduceat(end, first),
        np.minimum.reduceat(times[0], first),
        np.maximum.reduceat(times[1], first),
    )


def _launches(kernel: Ints, sm: Ints, block: Ints) -> Iterator[int]:
    """Yield for each block the number of its launch: blocks stand by SM, each once a launch."""
    launch, before, seen_blocks = -1, (NONE, NONE), set[int]()
    for name, core, number in zip(kernel.tolist(), sm.tolist(), block.tolist(), strict=True):
        if name != before[0] or core < before[1] or number in seen_blocks:
            launch, seen_blocks = launch + 1, set()
        seen_blocks.add(number)
        before = name, core
        yield launch


def _put_together(
    scopes: list[raw.ChromeEvent],
    warp: Ints,
    starts: Ints,
    lasts: Ints,
    blocks: _Blocks,
    names: list[str],
    assumed_mhz: float,
    left: raw.Tally,
    limits: Limits,
    *,
    keep_private: bool,
) -> Trace:
    base_ns = _base(blocks)
    clock_mhz = _fitting(blocks, assumed_mhz)
    launches, count = int(blocks.launch.max(initial=-1)) + 1, len(blocks.kernel)
    limits.check_rows("kernels, thread blocks and scopes", launches + count + len(scopes))
    scale = assumed_mhz / clock_mhz
    first, last = blocks.first_ns, blocks.last_ns
    begin = base_ns + first
    end = np.where(blocks.end_ns >= begin, blocks.end_ns, begin + _scaled(last - first, scale))
    inner = starts - first[blocks.of_scope]
    # Where the block's end was told, by a step of the GPU's clock later than that.
    scope_start, scope_end = (
        np.minimum(begin[blocks.of_scope] + _scaled(offset, scale), end[blocks.of_scope])
        for offset in (inner, inner + lasts)
    )
    kernel_start = np.full(launches, schema.LATEST_NS, np.int64)
    kernel_end = np.zeros(launches, np.int64)
    np.minimum.at(kernel_start, blocks.launch, begin)
    np.maximum.at(kernel_end, blocks.launch, end)
    of_launch = np.zeros(launches, np.int64)
    of_launch[blocks.launch] = blocks.kernel
    total = launches + count + len(scopes)
    ids = np.arange(1, total + 1, dtype=np.int64)
    kind = np.repeat([0, 1, 2], [launches, count, len(scopes)])
    kernels = arrow.text_column(np.r_[of_launch, blocks.kernel], names).cast(pa.string())
    texts = raw.texts([event.name for event in scopes], "(unnamed)").cast(pa.string())
    cycles = np.r_[np.zeros(launches), last - first, lasts] * assumed_mhz / 1000
    core = np.r_[np.full(launches, NONE), blocks.sm, blocks.sm[blocks.of_scope]]
    table = arrow.table(
        {
            "id": ids,
            "parent": arrow.nullable(
                np.r_[np.full(launches, NONE), ids[blocks.launch], ids[launches + blocks.of_scope]]
            ),
            "kind": arrow.text_column(kind, ["kernel", "block", "scope"]),
            "name": pa.concat_arrays([kernels, texts]).dictionary_encode(),
            "start_ns": np.r_[kernel_start, begin, scope_start],
            "end_ns": np.r_[kernel_end, end, scope_end],
            "sm": arrow.nullable(core, (core < 0) | (core >= 1 << 15)),
            "payload": _payloads(launches, blocks, warp),
            "value": pa.array(cycles, pa.float64(), mask=kind == 0),
            "source": arrow.constant("proton", total),
        },
        total,
    )
    table, edges, lost = valid.sifted(table, schema.table({}, schema.EDGE_TYPES))
    left.update(lost)
    base = "are those of the GPU's clock" if base_ns else "begin with its first thread block"
    scopes_last = f"scopes last as long as their cycles take at {clock_mhz:.0f} MHz"
    notes = [f"imported from a trace of Proton: times {base}, and {scopes_last}"]
    return Trace(
        table if keep_private else scrub(table),
        edges,
        TraceMetadata(
            time_base="relative",
            counts={
                "received": total,
                **{f"{what} not taken": count for what, count in (+left).items()},
            },
            notes=tuple(notes if keep_private else [*notes, LEFT_OUT]),
        ),
    )


def _scaled(cycles: Ints, scale: float) -> Ints:
    return np.asarray(np.rint(cycles * scale), np.int64)


def _base(blocks: _Blocks) -> int:
    """Return what to add to written times: by the GPU's clock, when the first block began.

    A block's begin is that of its first scope, unless that was lost.
    """
    return int((blocks.begin_ns - blocks.first_ns)[blocks.begin_ns >= 0].max(initial=0))


def _fitting(blocks: _Blocks, assumed_mhz: float) -> float:
    """Return the lowest clock in MHz at which the cycles of each block fit into its time.

    No lower than what the writer assumed: a block whose scopes cover little of it tells nothing.
    """
    has_times = (blocks.begin_ns >= 0) & (blocks.end_ns > blocks.begin_ns)
    if not has_times.any():
        return assumed_mhz
    times = np.unique(np.r_[blocks.begin_ns[has_times], blocks.end_ns[has_times]])
    step = min(int(np.gcd.reduce(np.diff(times))), _COARSEST_NS)
    took = (blocks.end_ns - blocks.begin_ns)[has_times] + step
    cycles = (blocks.last_ns - blocks.first_ns)[has_times] * assumed_mhz
    return float(np.clip((cycles / took).max(), assumed_mhz, _HIGHEST_MHZ))


def _payloads(launches: int, blocks: _Blocks, warp: Array) -> pa.Array:
    """Return as JSON which block of its grid a row is, and which warp of it."""
    number = np.r_[blocks.block, blocks.block[blocks.of_scope]]
    warps = np.r_[np.full(len(blocks.block), NONE), warp]
    codes, distinct = arrow.coded_rows(number, warps)
    texts = (
        f'{{"block": {block}}}' if of_warp < 0 else f'{{"block": {block}, "warp": {of_warp}}}'
        for block, of_warp in distinct
    )
    return arrow.text_column(np.r_[np.full(launches, NONE), codes], texts)
