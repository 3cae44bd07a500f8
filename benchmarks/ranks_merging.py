"""Traces of ranks whose clocks are apart by known amounts: how well and how fast they merge."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa
from facts import BESIDE, row

import gpuscope as gs
from gpuscope.trace import Trace, schema
from gpuscope.trace.metadata import TraceMetadata

_SPACING_NS, _VARIES_NS = 10_000, 1_000
"""From kernel to kernel: with no variation, many ranks could be shifted by any number of them."""
_COLLECTIVE_EVERY, _FLAG_EVERY = 100, 50
_ARRIVE_NS, _TOGETHER_NS = 60_000, 12_000
"""Ranks come to a collective within the first, and it ends so long after the last one came."""
_FLAG_NS = 3_000
"""From when a flag is written until who waits for it ends: what two H200s showed at least."""
_OFFSET_NS, _DRIFT = 5_000_000, 30e-6
_NAMES = ["gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "write_flag", "read_flag", "launch"]
_GEMM, _REDUCE, _WRITE, _READ, _LAUNCH = range(5)


def judged(ranks: int, rows: int) -> list[dict[str, Any]]:
    """Merge ranks of one clock and of clocks of their own; say how long it took and how far off."""
    chance = np.random.default_rng(7)
    kernels = rows // 2
    numbers = np.arange(kernels)
    spacing = _SPACING_NS + np.random.default_rng(8).integers(-_VARIES_NS, _VARIES_NS, kernels)
    base = 1_600_000_000_000_000_000 + np.cumsum(spacing)
    is_reduce = numbers % _COLLECTIVE_EVERY == 0
    arrived = base + chance.integers(0, _ARRIVE_NS, (ranks, kernels))
    lines = [(0, 0.0)] + [
        (int(chance.integers(-_OFFSET_NS, _OFFSET_NS)), float(chance.uniform(-_DRIFT, _DRIFT)))
        for _ in range(ranks - 1)
    ]
    ended = arrived.max(axis=0) + _TOGETHER_NS
    true, name = [], []
    for rank in range(ranks):
        kind = np.where(is_reduce, _REDUCE, _GEMM)
        turn = (numbers // _FLAG_EVERY - 1) % ranks
        is_flag = numbers % _FLAG_EVERY == _FLAG_EVERY // 2
        writes, reads = is_flag & (turn == rank), is_flag & ((turn + 1) % ranks == rank)
        kind[writes], kind[reads] = _WRITE, _READ
        start = np.where(is_reduce, arrived[rank], base)
        end = np.where(is_reduce, ended + chance.integers(0, 3_000, kernels), base + 8_000)
        start[reads] -= 4_000
        end[reads] = base[reads] + _FLAG_NS
        true.append((start, end))
        name.append(kind)
    found = []
    for own_clocks in (False, True):
        shifts = lines if own_clocks else [(0, 0.0)] * ranks
        traces = []
        for rank, ((start, end), (offset, drift)) in enumerate(zip(true, shifts, strict=True)):
            times = [_on_clock(when, int(base[0]), offset, drift) for when in (start, end)]
            clock = f"of {rank}" if own_clocks else "one"
            traces.append(_trace(rank, ranks, clock, name[rank], *times))
        began_s, used_s = time.perf_counter(), time.process_time()
        merged = gs.merge(traces)
        took_s, used_s = time.perf_counter() - began_s, time.process_time() - used_s
        del traces
        what = "clocks of their own" if own_clocks else "one clock"
        goal = rows >= 1_000_000
        found.append(
            row(f"CPU time of merging a rank of {rows:,} rows, {what}",
                "≤ 1 s" if goal else BESIDE, round(used_s / ranks, 3), "s",
                met=used_s <= ranks or not goal, wall_s=round(took_s / ranks, 3))
        )  # fmt: skip
    # The last ones are on clocks of their own.
    every = merged.metadata.ranks
    stated = max(each.error_ns or 0 for each in every)
    process = merged.array("process")
    off, slacks = 0, []
    starts, ends = merged.array("start_ns"), merged.array("end_ns")
    first_row = np.flatnonzero(np.r_[True, process[1:] != process[:-1]])
    times_of = {}
    for each, begin in zip(every, first_row.tolist(), strict=True):
        # A rank's kernels come first, in their order.
        times_of[each.rank] = starts[begin : begin + kernels], ends[begin : begin + kernels]
    for rank, (start, _) in times_of.items():
        off = max(off, int(np.abs(start - true[rank][0]).max()))
    for rank in range(ranks):
        writes = np.flatnonzero(name[rank] == _WRITE)
        after = (rank + 1) % ranks
        slacks.append(times_of[after][1][writes] - times_of[rank][0][writes])
    slack = np.concatenate(slacks)
    violated = max(0, -int(slack.min()))
    return [
        *found,
        row("stated error, clocks of their own", BESIDE, stated / 1e3, "µs", met=True,
            offsets_ns=[line[0] for line in lines], drifts=[line[1] for line in lines]),
        row("what times are off", "≤ the stated error", off / 1e3, "µs", met=off <= stated),
        row("largest violation by a flag", "≤ the stated error", violated / 1e3, "µs",
            met=violated <= stated, flags=len(slack), least_slack_us=int(slack.min()) / 1e3),
    ]  # fmt: skip


def _on_clock(true: np.ndarray, since: int, offset: int, drift: float) -> np.ndarray:
    return true + offset + np.round((true - since) * drift).astype(np.int64)


def _trace(
    rank: int, ranks: int, clock: str, name: np.ndarray, start: np.ndarray, end: np.ndarray
) -> Trace:
    """Return kernels, and a launch call of each."""
    count = len(name)
    columns: dict[str, Any] = {
        "id": pa.array(np.arange(2 * count)),
        "kind": _coded(np.repeat([0, 1], count), ["kernel", "api"]),
        "name": _coded(np.r_[name, np.full(count, _LAUNCH)], _NAMES),
        "start_ns": pa.array(np.r_[start, start - 6_000]),
        "end_ns": pa.array(np.r_[end, start - 3_000]),
        "stream": pa.array(np.repeat([7, 0], count), mask=np.repeat([False, True], count)),
        "device": pa.array(np.zeros(2 * count, np.int16)),
        "thread": pa.array(np.ones(2 * count, np.int64), mask=np.repeat([True, False], count)),
        "process": pa.array(np.full(2 * count, 100 + rank)),
        "correlation": pa.array(np.tile(np.arange(count), 2)),
        "source": _coded(np.zeros(2 * count, np.int64), ["cupti"]),
    }
    spans = pa.table({key: columns.get(key, pa.nulls(2 * count)) for key in schema.SPAN_TYPES})
    edges = pa.table({
        "from": pa.array(np.arange(count, 2 * count)), "to": pa.array(np.arange(count)),
        "kind": _coded(np.zeros(count, np.int64), ["launch"]),
    })  # fmt: skip
    facts = {"rank": rank, "world_size": ranks, "process": 100 + rank}
    device: Any = {"index": 0, "sm_count": 132, "uuid": f"GPU-{rank}"}
    return Trace(
        spans, edges, TraceMetadata(clock=clock, ranks=(facts,), devices={"cuda:0": device})
    )


def _coded(codes: np.ndarray, texts: list[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(texts))
