"""HolisticTraceAnalysis reads our Chrome JSON as it reads Kineto's."""

from __future__ import annotations

from collections import Counter, defaultdict

import made
import numpy as np
import pytest

import gpuscope as gs
from gpuscope.analysis import intervals
from gpuscope.formats.chrome import write as chrome


def test_what_it_reads_and_what_it_makes_of_it(tmp_path, hta):
    trace = made.steps()
    found = hta(gs.export(trace, tmp_path / "run.json"))
    base = int(trace.array("start_ns").min())
    rows = trace.spans.to_pylist()

    expected = Counter(
        (row["name"], chrome.CATEGORIES[row["kind"]], row["start_ns"] - base,
         row["end_ns"] - row["start_ns"], row["stream"] if row["kind"] == "kernel" else -1,
         -1 if row["correlation"] is None else row["correlation"])
        for row in rows
    )  # fmt: skip
    events = Counter(
        (name, cat, round(ts * 1000), round(dur * 1000), stream, correlation)
        for name, cat, ts, dur, stream, correlation in found["events"]
    )
    assert events == expected

    total = defaultdict(int)
    for row in rows:
        if row["kind"] == "kernel":
            total[row["name"]] += row["end_ns"] - row["start_ns"]
    assert found["kernels"] == pytest.approx({name: ns / 1e3 for name, ns in total.items()})

    by_id = {row["id"]: row for row in rows}
    launches = Counter()
    for edge in trace.edges.to_pylist():
        call, kernel = by_id[edge["from"]], by_id[edge["to"]]
        if call["name"] == "cudaLaunchKernel":  # the only name of a launch that it looks for
            launches[call["correlation"], call["end_ns"] - call["start_ns"],
                     kernel["end_ns"] - kernel["start_ns"],
                     max(0, kernel["start_ns"] - call["end_ns"])] += 1  # fmt: skip
    told = Counter(
        (int(number), *(round(one * 1000) for one in times)) for number, *times in found["launches"]
    )
    assert told == launches

    kernels = trace.where(kind="kernel")
    busy = intervals.union(kernels.array("start_ns"), kernels.array("end_ns"))
    assert found["busy_us"] == pytest.approx(np.diff(busy).sum() / 1e3)


def test_a_simulated_program(tmp_path, hta):
    trace = made.program()
    found = hta(gs.export(trace, tmp_path / "run.json.gz"))
    kinds = Counter(cat for _, cat, *_ in found["events"])
    finished = trace.where(~trace.spans.column("end_ns").is_null().to_numpy())
    known = {chrome.CATEGORIES.get(kind, kind): n for kind, n in finished.kind_counts().items()}
    assert {cat: kinds[cat] for cat in known} == known
