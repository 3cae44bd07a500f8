"""Benchmarks of the timeline up to what goes to the browser: index, queries, frames.

python benchmarks/timeline.py --out benchmarks/results/timeline.json

CPU time of one core, so that what else runs on the machine does not count. The data are
those that ways of drawing were compared on: 64 tracks, log-normal durations (median 10 µs),
tracks busy for 0.7 of the time. In "nested" data a fifth of the spans last twenty times as long
and reach over those that follow.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import facts
import numpy as np
import pyarrow as pa

from gpuscope import figures
from gpuscope.timeline.canvas import tiles
from gpuscope.timeline.canvas.state import TimelineState
from gpuscope.timeline.columns import edges_of
from gpuscope.timeline.index import Index
from gpuscope.timeline.raster import png
from gpuscope.timeline.tracks import Tracks
from gpuscope.trace import schema
from gpuscope.trace.metadata import DeviceFacts, PartitionFacts, TraceMetadata
from gpuscope.trace.model import Trace

Array = np.ndarray[Any, Any]

TRACKS, PARTITIONS = 64, 8
PIXELS = 1000
EPOCH_NS = 1_700_000_000_000_000_000
OWN_BYTES = 8 + 8 + 4
"""Start, end and track of a span."""


def spans(count: int, *, nested: bool = False) -> tuple[Array, Array, Array]:
    """Return starts, ends and tracks, by start."""
    rng = np.random.default_rng(6)
    track = np.sort(rng.integers(0, TRACKS, count)).astype(np.int32)
    width = np.maximum(1, rng.lognormal(np.log(10_000), 1.2, count)).astype(np.int64)
    gap = np.maximum(1, rng.lognormal(np.log(10_000 * 0.3 / 0.7), 1.2, count)).astype(np.int64)
    after = np.cumsum(width + gap)
    before = np.r_[0, after][np.searchsorted(track, np.arange(TRACKS))]
    start = EPOCH_NS + after - width - gap - before[track]
    end = start + np.where(nested & (rng.random(count) < 0.2), 20 * width, width)
    order = np.argsort(start, kind="stable")
    return start[order], end[order], track[order]


def trace_of(count: int) -> Trace:
    """Return the same spans as kernels, with long names and some event waits."""
    start, end, track = spans(count)
    rng = np.random.default_rng(7)
    names = [
        f"void cutlass::Kernel<cutlass_80_tensorop_f16_s16816gemm_f16_{number}x128_32x5_nn_align8>"
        for number in range(50)
    ]
    columns: dict[str, Any] = {name: pa.nulls(count) for name in schema.SPAN_TYPES}
    columns.update(
        id=pa.array(np.arange(count)),
        kind=_coded(np.zeros(count), ["kernel"]),
        name=_coded(rng.integers(0, len(names), count), names),
        start_ns=pa.array(start),
        end_ns=pa.array(end),
        source=_coded(np.zeros(count), ["cupti"]),
        stream=pa.array(track.astype(np.int64)),
        partition=_coded(track % PARTITIONS, [f"part {one}" for one in range(PARTITIONS)]),
        device=pa.array(np.zeros(count, np.int16)),
    )
    cause = np.sort(rng.integers(0, count - 200, count // 50))
    edges = {
        "from": pa.array(cause),
        "to": pa.array(cause + rng.integers(1, 200, len(cause))),
        "kind": _coded(np.zeros(len(cause)), ["event wait"]),
    }
    metadata = TraceMetadata(
        devices={"cuda:0": DeviceFacts(0, name="NVIDIA H200")},
        partitions={f"part {one}": PartitionFacts(sm_count=16) for one in range(PARTITIONS)},
    )
    return Trace(pa.table(columns), pa.table(edges), metadata)


def _coded(numbers: Array, values: list[str]) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int32)), pa.array(values))


def windows(low: int, high: int, count: int) -> list[tuple[int, int]]:
    """Return windows anywhere, from the whole trace to a 100,000th of it."""
    rng = np.random.default_rng(8)
    found = []
    for _ in range(count):
        length = int((high - low) * 10 ** -rng.uniform(0, 5))
        at = low + int(rng.random() * (high - low - length))
        found.append((at, at + max(length, 1)))
    return found


def columns_of(index: Index, window: tuple[int, int]) -> tuple[Array, Array]:
    """Return what the columns of a view are made of, for all tracks."""
    return index.columns(edges_of(window, PIXELS), range(TRACKS))


def timed(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def quantiles_ms(seconds: list[float]) -> dict[str, float]:
    p50, p99 = np.quantile(seconds, [0.5, 0.99]) * 1e3
    return {"n": len(seconds), "p50_ms": p50, "p99_ms": p99, "max_ms": max(seconds) * 1e3}


def index_and_queries(count: int, *, nested: bool = False, queries: int = 500) -> dict[str, Any]:
    """Time and memory of an index, and of random windows at random zooms."""
    columns = spans(count, nested=nested)
    seconds = sorted(timed(lambda: Index(*columns)) for _ in range(5 if count <= 10**6 else 2))
    tracemalloc.start()
    index = Index(*columns)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    low, high = int(columns[0].min()), int(columns[1].max())
    taken = [timed(partial(columns_of, index, window)) for window in windows(low, high, queries)]
    whole = [timed(lambda: columns_of(index, (low, high))) for _ in range(50)]
    return {
        "what": f"index of {count:.0e} spans" + (", nested" if nested else ""),
        "seconds": seconds[len(seconds) // 2],
        "bytes": held,
        "of_the_spans_own_memory": held / (OWN_BYTES * count),
        "peak_bytes_while_built": peak,
        "query": quantiles_ms(taken),
        "query_of_all": quantiles_ms(whole),
    }


def growing(count: int = 10**6, batch: int = 20_000) -> dict[str, Any]:
    """Extending an index batch by batch, as live recordings do, and asking it each time."""
    start, end, track = spans(count)
    index = Index(start[:0], end[:0], track[:0])
    added, asked = [], []
    for low in range(0, count, batch):
        part = slice(low, low + batch)
        begin = time.process_time()
        index = index.extended(start[part], end[part], track[part], track[part])
        added.append(time.process_time() - begin)
        head = int(end[part].max())
        window = (head - 20_000_000, head)
        asked.append(timed(partial(columns_of, index, window)))
    everything = (int(start.min()), int(end.max()))
    return {
        "what": f"index that grows to {count:.0e} spans by batches of {batch:,}",
        "extend": quantiles_ms(added),
        "query_of_the_last_20_ms": quantiles_ms(asked),
        "query_of_all_ms": timed(partial(columns_of, index, everything)) * 1e3,
    }


def frames(count: int = 10**6) -> dict[str, Any]:
    """What a tile costs, and what of it goes to a widget in the browser."""
    state = TimelineState(trace_of(count), None)
    snapshot = state.snapshot(state.extent_ns, following=False)
    top = tiles.top_level(state.extent_ns[1] - snapshot.zero_ns)
    rng = np.random.default_rng(9)
    made, sizes = [], []
    for level in rng.integers(6, top + 1, 100).tolist():
        window = tiles.window_of(snapshot, level, int(rng.integers(0, 2 ** (top - level))))
        begin = time.process_time()
        tile = tiles.tile(snapshot, window)
        made.append(time.process_time() - begin)
        data = tile.pop("data")
        sizes.append(len(data) + len(json.dumps(tile, ensure_ascii=False).encode()))
    return {
        "what": f"tiles of {count:.0e} spans",
        "tile": quantiles_ms(made),
        "bytes": {"median": int(np.median(sizes)), "max": max(sizes)},
    }


def static_figure(count: int = 10**6) -> dict[str, Any]:
    """From a trace to a figure, and its PNG."""
    trace = trace_of(count)
    figures.timeline(trace_of(1000))
    tracks = [timed(lambda: Tracks.of(trace)) for _ in range(3)]
    seconds = [timed(lambda: figures.timeline(trace)) for _ in range(3)]
    figure = figures.timeline(trace)
    return {
        "what": f"static figure of {count:.0e} spans",
        "tracks_seconds": sorted(tracks)[1],
        "seconds": sorted(seconds)[1],
        "json_bytes": len(figure.to_json()),
        "png_seconds": timed(lambda: png(figure)),
        "png_bytes": len(png(figure)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/timeline.json"))
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rows = []
    for benchmark in (
        lambda: index_and_queries(10**6),
        lambda: index_and_queries(10**6, nested=True),
        lambda: index_and_queries(10**7, queries=200),
        growing,
        frames,
        static_figure,
    ):
        rows.append(benchmark())
        print(json.dumps(rows[-1], indent=1), flush=True)
    facts.write(arguments.out, "python benchmarks/timeline.py", "CPU time of one core", rows)


if __name__ == "__main__":
    main()
