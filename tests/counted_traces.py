"""Traces with samples of a GPU's counters, made by hand and at random."""

from __future__ import annotations

import json

import numpy as np

from gpuscope.trace import Trace
from gpuscope.trace.counters import BUSY, LOST, READ, WRITTEN
from gpuscope.trace.facts import DeviceFacts, PartitionFacts
from gpuscope.trace.metadata import TraceMetadata

ZERO_NS = 10**18
STEP_NS = 50_000
GRANTED = {"a": 16, "b": 32, "c": 84}


def traced(kernels, samples, granted=GRANTED, **metadata) -> Trace:
    """Return a trace of kernels (partition, name, start, end) and samples (name, start, end, value)."""
    rows = [
        ("kernel", name, low, high, partition, None, json.dumps({"grid": [512, 1, 1]}))
        for partition, name, low, high in kernels
    ]
    rows += [("counter", name, low, high, None, value, None) for name, low, high, value in samples]
    names = ("kind", "name", "start_ns", "end_ns", "partition", "value", "launch_config")
    columns = {
        name: list(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)
    }
    columns |= {
        "id": list(range(len(rows))),
        "device": [0] * len(rows),
        "source": ["cupti"] * len(rows),
    }
    columns["start_ns"] = [ZERO_NS + time for time in columns["start_ns"]]
    columns["end_ns"] = [ZERO_NS + time for time in columns["end_ns"]]
    facts = TraceMetadata(
        devices={"cuda:0": DeviceFacts(index=0, sm_count=132, name="NVIDIA H200")},
        partitions={name: PartitionFacts(sm_count=count) for name, count in granted.items()},
        **metadata,
    )
    return Trace.from_columns(columns, metadata=facts)


def random_trace(seed: int = 0, steps: int = 400) -> Trace:
    """Samples of uneven lengths, some lost; kernels alone and beside each other, some unknown."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(STEP_NS - 50, STEP_NS + 50, steps)
    edges = np.r_[0, np.cumsum(lengths)]
    is_lost = (rng.random(steps) < 0.02) | (np.abs(np.arange(steps) - steps // 2) < 6)
    kernels, busy = [], np.zeros(steps)
    for at in range(0, steps - 20, 20):
        for name in rng.choice([*"abc"], rng.integers(0, 3), replace=False).tolist():
            low, high = at + int(rng.integers(0, 5)), at + int(rng.integers(6, 18))
            kernels.append((name, f"{name}{rng.integers(0, 3)}", int(edges[low]), int(edges[high])))
            busy[low:high] += rng.integers(0, GRANTED[name] + 1, high - low)
    samples = []
    for at in np.flatnonzero(~is_lost).tolist():
        where = (int(edges[at]), int(edges[at + 1]))
        samples.append((BUSY, *where, float(busy[at])))
        samples.append((READ, *where, float(rng.integers(0, 2000))))
        samples.append((WRITTEN, *where, float(rng.integers(0, 2000))))
    lost = np.flatnonzero(is_lost).tolist()
    samples += [(LOST, int(edges[at]), int(edges[at + 1]), None) for at in lost]
    return traced(kernels, samples)
