"""Analyses, figures and reports of traces with many spans, streams and names.

python benchmarks/scale.py
    [--spans 1000000] [--streams 3000] [--names 200000] [--tracks 300000] [--out FILE]

Builds a trace in memory, then times each step; prints a table: step, seconds, seconds of
CPU, peak memory of the process so far (MB). Those that the goals are about, overlap and gain,
summary and report, are added up. Needs no GPU.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import facts  # beside this file
import numpy as np
import pyarrow as pa

import gpuscope as gs
from gpuscope import analysis, figures
from gpuscope.report import trace_report
from gpuscope.trace import Trace, schema
from gpuscope.trace.metadata import StreamFacts, TraceMetadata
from gpuscope.trace.store import save_trace

Array = np.ndarray[Any, Any]


def many(spans: int, streams: int, names: int, *, calls: float = 0.2) -> Trace:
    """Kernels on streams that are busy now and then, some of them launched by calls of handles.

    Parameters
    ----------
    calls
        Which share of the rows are calls of handles; as many are launch calls.
    """
    rng = np.random.default_rng(1)
    called = int(spans * calls / 2)
    kernels = spans - 2 * called
    kind = np.repeat([0, 1, 2], [kernels, called, called])
    name = np.r_[np.arange(kernels) % names, np.arange(called) % max(1, names // 10),
                 np.arange(called) % 3]  # fmt: skip
    stream = np.r_[np.arange(kernels) % streams, np.zeros(2 * called, np.int64)]
    start = rng.integers(0, 10 * spans, spans) * 1000
    lasts = rng.integers(1, 50_000, spans)
    ids = np.random.default_rng(2).permutation(spans)  # a recording has them in batches
    texts = pa.array([f"kernel_{number}<float, {number % 7}>" for number in range(names)])
    columns: dict[str, Any] = {
        "id": pa.array(ids),
        "kind": pa.DictionaryArray.from_arrays(
            pa.array(kind.astype(np.int32)), pa.array(["kernel", "handle", "api"])
        ),
        "name": pa.DictionaryArray.from_arrays(pa.array(name.astype(np.int32)), texts),
        "start_ns": pa.array(start),
        "end_ns": pa.array(start + lasts),
        "stream": pa.array(stream, mask=kind != 0),
        "device": pa.array(np.zeros(spans, np.int16)),
        "thread": pa.array(np.ones(spans, np.int64), mask=kind == 0),
        "process": pa.array(np.ones(spans, np.int64)),
        "source": pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(spans, np.int32)), pa.array(["cupti"])
        ),
    }
    table = pa.table({key: columns.get(key, pa.nulls(spans)) for key in schema.SPAN_TYPES})
    edges = pa.table({
        "from": pa.array(ids[kernels + called :]),
        "to": pa.array(ids[:called]),
        "kind": pa.array(["launch"] * called, pa.string()).dictionary_encode(),
    })  # fmt: skip
    named = {str(number): StreamFacts(f"stream {number}") for number in range(streams)}
    return Trace(table, edges, TraceMetadata(streams=named))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spans", type=int, default=1_000_000)
    parser.add_argument("--streams", type=int, default=3_000)
    parser.add_argument("--names", type=int, default=200_000)
    parser.add_argument("--tracks", type=int, default=300_000)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/scale.json"))
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    load = os.getloadavg()[0]

    def timed(step: str, act: Callable[[], Any], *, in_sum: bool = False) -> Any:
        began, used = time.perf_counter(), time.process_time()
        found = act()
        took, used = time.perf_counter() - began, time.process_time() - used
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rows.append(
            {"what": step, "seconds": took, "cpu_seconds": used, "peak_mb": peak, "in_sum": in_sum}
        )
        print(f"{step}: {took:.2f} s, {peak:,.0f} MB", flush=True)
        return found

    trace = timed("make the trace", lambda: many(asked.spans, asked.streams, asked.names))
    for by in ("stream", "workload", "partition"):
        timed(f"overlap and gain by {by}", partial(analysis.overlap, trace, by=by), in_sum=True)
        timed(f"concurrency by {by}", partial(analysis.concurrency, trace, by=by))
    timed("summary", lambda: analysis.summary(trace), in_sum=True)
    timed("latency", lambda: analysis.latency(trace))
    timed("launch latency", lambda: analysis.launch_latency(trace))
    timed("gaps", lambda: analysis.gaps(trace))
    timed("compare", lambda: analysis.settings_table({"": trace}))
    timed("timeline", lambda: figures.timeline(trace))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        timed("report", lambda: trace_report(trace, path), in_sum=True)
        timed(
            "notebook tables",
            lambda: [analysis.summary(trace)._repr_html_(), analysis.overlap(trace)._repr_html_()],
        )
        size = path.stat().st_size / 1e6
        file = timed("save", lambda: save_trace(trace, Path(folder) / "trace.parquet"))
        gs.load_trace(file)  # imports what reads
        timed("load", lambda: gs.load_trace(file))
        few = many(800, 800, 1, calls=0)
        timed("800 kernels on 800 streams: overlap", lambda: analysis.overlap(few))
        timed("800 kernels on 800 streams: report", lambda: trace_report(few, path))
        size_of_few = path.stat().st_size / 1e6
    wide = many(asked.tracks, asked.tracks, 1, calls=0)
    timed(f"{asked.tracks:,} tracks: timeline", lambda: figures.timeline(wide))
    print(
        f"\n{asked.spans:,} spans, {asked.streams:,} streams, {asked.names:,} names; "
        f"gpuscope {gs.__version__}"
    )
    print(f"reports: {size:.1f} MB, {size_of_few:.1f} MB\n")
    print(f"{'step':42} {'s':>7} {'CPU s':>7} {'peak MB':>8}")
    for row in rows:
        print(
            f"{row['what']:42} {row['seconds']:7.2f} {row['cpu_seconds']:7.2f} "
            f"{row['peak_mb']:8,.0f}"
        )
    chosen = [row for row in rows if row["in_sum"]]
    seconds, cpu_seconds = (sum(row[key] for row in chosen) for key in ("seconds", "cpu_seconds"))
    print(f"{'overlap and gain, summary, report':42} {seconds:7.2f} {cpu_seconds:7.2f}")
    facts.write(
        asked.out, "python benchmarks/scale.py",
        f"CPU time; {os.cpu_count()} cores, load {load:.1f} before", rows,
        spans=asked.spans, streams=asked.streams, names=asked.names, tracks=asked.tracks,
        seconds=seconds, cpu_seconds=cpu_seconds, peak_mb=chosen[-1]["peak_mb"],
        report_mb=size,
    )  # fmt: skip


if __name__ == "__main__":
    main()
