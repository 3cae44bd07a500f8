"""Traces for the readers: a program's, and random ones with everything that a trace may hold."""

from __future__ import annotations

import functools
import json
import random

import numpy as np

import gpuscope as gs
from gpuscope.trace import Trace, schema
from gpuscope.trace.metadata import TraceMetadata

NASTY = (
    "plain", "<script>alert(1)</script>", "a \"quoted\" \\ name", "tab\tand\nbreak", "übung ° µs",
    "\u202egnp.exe", "emoji 🚀", "</td><img src=x onerror=alert(1)>", "nul \x01 control", " ",
    "javascript:alert(1)", "%s %d", "a,b;c", "'; DROP TABLE slice; --",
)  # fmt: skip


STATUSES = ("holds Python's lock", "waits for Python's lock", "in system call read")


@functools.cache
def program():
    """Two partitions, waits, copies, host functions, a graph, ranges and marks."""
    gpu = gs.open_device("sim:h200", quiet=True)
    with gpu.carve({"decode": 16, "prefill": "rest"}) as parts:
        few, many = parts["decode"].create_stream(name="d0"), parts["prefill"].create_stream()
        small = gs.Gemm(gpu, m=512, n=512, k=512, name="small")
        big = gs.Gemm(gpu, m=2048, n=2048, k=2048, name="big")
        source, target = gpu.asarray(np.ones((64, 64), "float32")), gpu.empty((64, 64), "float32")
        big.operands()
        with many.capture() as graph:
            big.execute(stream=many)
            big.execute(stream=many)
        with gs.profile(gpu) as recording:
            for number in range(30):
                with gs.annotate(f"step {number % 3}"), gs.annotate("inner"):
                    with gs.CallerStreamGuard(many):
                        big.execute()
                    with gs.CallerStreamGuard(few):
                        small.execute()
                    event = many.record()
                    few.wait(event)
                    few.copy(target, source)
                    few.host_call(lambda: None)
                    if number % 5 == 0:
                        graph.launch(stream=many)
                        event.synchronize()
            few.synchronize()
            many.synchronize()
    return recording.trace


@functools.cache
def random_program(seed):
    """Return a recording of random work on partitions: waits, copies, graphs, the host's waits."""
    rng = random.Random(seed)  # noqa: S311 - no secrets
    gpu = gs.open_device("sim:h200", quiet=True)
    with gpu.carve({"decode": rng.choice([8, 16, 32]), "prefill": "rest"}) as parts:
        owners = [*parts.values(), gpu]
        streams = [owner.create_stream() for owner in owners for _ in range(rng.randint(1, 2))]
        gemms = [gs.Gemm(gpu, m=size, n=size, k=size) for size in (256, 1024)]
        for gemm in gemms:
            gemm.operands()
        source, target = gpu.asarray(np.ones((64, 64), "float32")), gpu.empty((64, 64), "float32")
        with streams[0].capture() as graph:
            for _ in range(rng.randint(1, 3)):
                rng.choice(gemms).execute(stream=streams[0])
        with gs.profile(gpu, hazards=seed % 2 == 0) as recording:
            for number in range(60):
                stream, other = rng.sample(streams, 2)
                match rng.randrange(7):
                    case 0 | 1:
                        with gs.annotate(f"step {number % 4}"), gs.CallerStreamGuard(stream):
                            rng.choice(gemms).execute()
                    case 2:
                        stream.wait(other.record())
                    case 3:
                        stream.copy(target, source)
                    case 4:
                        stream.host_call(lambda: None)
                    case 5:
                        graph.launch(stream=streams[0])
                    case 6:
                        rng.choice([stream.synchronize, stream.record().synchronize])()
            for stream in streams:
                stream.synchronize()
        for stream in streams:
            stream.close()
    return recording.trace


@functools.cache
def steps(count=200):
    """Return launches as CUPTI tells them: CUDA's names, launch configurations, two streams."""
    rows, edges = [], {"from": [], "to": [], "kind": []}
    rng = random.Random(7)  # noqa: S311 - no secrets
    free = [0, 0]
    base = 1_795_000_000_000_000_000
    for number in range(count):
        begin, stream = base + 20_000 * number, number % 2
        call = begin + 1_000 + rng.randrange(500)
        start = max(call + 4_000 + rng.randrange(-1_000, 3_000), free[stream])
        free[stream] = start + 5_000 + rng.randrange(20_000)
        host = {"process": 4711, "thread": 4712, "source": "cupti"}
        rows += [
            {"id": 3 * number, "kind": "range", "name": f"step {number % 5}", "start_ns": begin,
             "end_ns": begin + 15_000, "domain": "gpuscope", "range_style": "push/pop", **host},
            {"id": 3 * number + 1, "kind": "api", "name": ("cudaLaunchKernel", "cuLaunchKernelEx")
             [number % 2], "start_ns": call, "end_ns": call + 4_000, "correlation": number + 1,
             "parent": 3 * number, **host},
            {"id": 3 * number + 2, "kind": "kernel", "name": f"kernel_{number % 4}<float>",
             "start_ns": start, "end_ns": free[stream], "device": 0, "context": 1,
             "green_context": None if stream else 2, "partition": None if stream else "decode",
             "stream": 7 + stream, "correlation": number + 1, "source": "cupti",
             "launch_config": json.dumps({"grid": [number % 4 + 1, 2, 1], "block": [128, 1, 1],
                                          "registers": 40, "shared_memory": 0})},
        ]  # fmt: skip
        edges["from"].append(3 * number + 1)
        edges["to"].append(3 * number + 2)
        edges["kind"].append("launch")
    names = list(dict.fromkeys(name for row in rows for name in row))
    spans = {name: [row.get(name) for row in rows] for name in names}
    metadata = TraceMetadata(
        devices={"cuda:0": {"index": 0, "name": "NVIDIA H200", "sm_count": 132}},
        partitions={"decode": {"sm_count": 16, "context": 2}},
        process_names={"4711": "python"}, thread_names={"4712": "MainThread"},
    )  # fmt: skip
    return Trace.from_columns(spans, edges, metadata)


def stacks(process=4711):
    """Return steps with what samples say of two threads: the one that launches, and a loader."""
    steps_trace, rng = steps(), random.Random(11)  # noqa: S311 - no secrets
    begin, end = steps_trace.array("start_ns").min(), steps_trace.array("end_ns").max()
    rows = []
    for thread, functions in ((4712, ("step", "launch", "sort")), (4713, ("load", "decode"))):
        at = int(begin)
        while at < end:
            lasts = rng.randrange(50_000, 400_000)
            depth = rng.randrange(1, 5)
            lines = [[f"{rng.choice('ab')}.py", line, f"{functions[0]}{line}"]
                     for line in range(depth)] + [["train.py", 80, "main"]]  # fmt: skip
            rows.append({
                "id": 100_000 + len(rows), "kind": "stack", "name": rng.choice(functions),
                "start_ns": at, "end_ns": at + lasts, "start_uncertainty_ns": 20_000,
                "end_uncertainty_ns": 20_000, "process": process, "thread": thread,
                "status": rng.choice(STATUSES), "site": json.dumps(lines[-1:]),
                "payload": json.dumps(lines), "value": float(rng.randrange(1, 9)),
                "category": rng.choice([None, "torn", "torn, cut"]), "source": "host",
            })  # fmt: skip
            at += lasts
    spans = schema.table(
        {name: [row.get(name) for row in rows] for name in schema.SPAN_TYPES}, schema.SPAN_TYPES
    )
    both = schema.concat([steps_trace.spans, spans], schema.SPAN_TYPES)
    return Trace(both, steps_trace.edges, steps_trace.metadata)


def whole(seed, rows=400):
    """Return a random trace: overlaps, nests, instants, open rows, odd names, all kinds."""
    rng = random.Random(seed)  # noqa: S311 - no secrets
    base = rng.choice([0, 5, 1_795_000_000_123_456_789])
    kinds = ["kernel", "memcpy", "memset", "sync", "api", "range", "mark", "event", "block",
             "counter", "handle", "host function", "stack"]  # fmt: skip
    made = []
    for number in range(rows):
        kind = rng.choice(kinds)
        start = base + rng.randrange(0, 20_000)
        length = rng.choice([0, 1, 7, 999, 1000, 1001, rng.randrange(3000)])
        on_gpu = kind in ("kernel", "memcpy", "memset", "block", "host function")
        is_open = rng.random() < 0.05 or kind in ("mark", "counter")
        partition = rng.choice([None, "decode", "prefill"]) if on_gpu else None
        made.append({
            "id": 10 * number + 3, "kind": kind, "name": f"{rng.choice(NASTY)} {number % 7}",
            "start_ns": start, "end_ns": None if is_open else start + length,
            "process": None if on_gpu else rng.choice([100, 100, 200, None]),
            "thread": None if on_gpu else rng.choice([101, 102]),
            "device": rng.choice([0, 1]) if on_gpu else None,
            "partition": partition,
            "context": None if partition is None else 5,
            "green_context": {"decode": 8, "prefill": 9}.get(partition),
            "stream": rng.choice([None, 7, 8, 8]) if on_gpu or kind == "api" else None,
            "sm": rng.randrange(3) if kind == "block" else None,
            "correlation": number + 1 if kind in ("kernel", "api", "memcpy") else None,
            "nbytes": 4096 if kind in ("memcpy", "memset") else None,
            "copy_kind": rng.choice(["HtoD", "DtoH", None]) if kind == "memcpy" else None,
            "value": rng.choice([1.5, float("nan"), -2e300, None]) if kind == "counter"
            else 3.0 if kind == "stack" else None,
            "status": rng.choice(STATUSES) if kind == "stack" else None,
            "site": json.dumps([["a.py", number, "f"]]) if kind == "stack" else None,
            "category": rng.choice([None, "w", "<b>"]) if kind in ("handle", "range") else None,
            "domain": rng.choice([None, "d"]) if kind in ("range", "mark") else None,
            "range_style": rng.choice(["push/pop", "start/end"]) if kind == "range" else None,
            "color": rng.choice([None, 0xFF00FF00]) if kind == "range" else None,
            "payload": rng.choice([None, "3", "2.5", '{"a": [1, "\\n"]}', "no json"])
            if kind in ("range", "mark") else '[["b.py",1,"g"]]' if kind == "stack" else None,
            "queued_ns": start - 5 if kind == "kernel" else None,
            "launch_config": json.dumps({"grid": [2, 3, 4], "block": [32, 1, 1], "registers": 40,
                                         "shared_memory": 1024})
            if kind == "kernel" and rng.random() < 0.5 else None,
            "source": "cupti",
        })  # fmt: skip
    spans = {name: [row[name] for row in made] for name in made[0]}
    pairs = [rng.sample(made, 2) for _ in range(rows // 2)]
    edges = {
        "from": [one["id"] for one, _ in pairs],
        "to": [other["id"] for _, other in pairs],
        "kind": [rng.choice(["launch", "event wait", "host wait", "graph"]) for _ in pairs],
    }
    metadata = TraceMetadata(
        devices={"cuda:0": {"index": 0, "name": "GPU <one>", "sm_count": 132}},
        partitions={"decode": {"sm_count": 16, "context": 8}},
        streams={"8": {"name": "</script>", "partition": "decode", "priority": 0}},
        process_names={"100": "python"}, thread_names={"101": "Main & <b>"},
    )  # fmt: skip
    return Trace.from_columns(spans, edges, metadata)
