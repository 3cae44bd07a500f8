"""Random programs to forecast: what did not change comes back, and the truth lies in the bands.

Program n is drawn from the seed n. Its truth is the program with the change, run on the simulated
GPU with another host: each of a host's calls takes as long as it was measured to, drawn anew.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gpuscope as gs
from gpuscope.trace import Trace
from gpuscope.workloads.copy import Copy

Row = dict[str, Any]
OTHER_HOST = 1_000_000
"""Added to a program's seed: the jitter of the host that runs its truth."""
SPLIT = {"prefill": {"partition": "prefill"}, "decode": {"partition": "decode"}}
_TOGETHER = ("share_of_alone_on_whole_gpu", "gain")
"""Columns that compare with what was measured alone: a forecast has none."""


@dataclass(frozen=True)
class Figure:
    """A figure of a program with a change: forecast, with its band, and seen."""

    what: str
    forecast: float
    low: float
    high: float
    truth: float

    @property
    def is_inside(self) -> bool:
        """Whether the truth lies in the band."""
        return self.low <= self.truth <= self.high

    @property
    def error(self) -> float:
        """Of the forecast, relative to the truth."""
        return self.forecast / self.truth - 1 if self.truth else 0.0

    @property
    def half_width(self) -> float:
        """Of the band, relative to the forecast."""
        return (self.high - self.low) / 2 / self.forecast if self.forecast else 0.0


# -- nothing changed -----------------------------------------------------------------------
def experiment(seed: int) -> Row:
    """Draw an experiment of up to four workloads on up to three streams, driven by one thread."""
    rng = random.Random(seed)  # noqa: S311 - to repeat, not to hide
    one = rng.choice
    names = "abc"[: rng.randint(1, 3)]
    carved = [name for name in names if rng.random() < 0.6]
    workloads: dict[str, Row] = {}
    for number in range(rng.randint(1, 4)):
        workload: Row = {
            **_work(rng), "stream": one(names), "repeats": rng.randint(3, 25),
            "max_queued": one([1, 1, 3]),
        }  # fmt: skip
        if rng.random() < 0.3:
            workload |= {"arrival": one(["poisson", "fixed"]), "rate_hz": one([500, 3000, 20000])}
        elif number and rng.random() < 0.2:
            workload["background"] = True
            del workload["repeats"]
        if number and rng.random() < 0.3:
            workload["waits_on"] = [one(list(workloads))]
        workloads[f"w{number}"] = workload
    return {
        "name": "random", "seed": seed, "alone_repeats": 0, "rounds": rng.randint(1, 3),
        "streams": {
            name: {"partition": name} if name in carved else {"priority": one([0, 0, -1])}
            for name in names
        },
        "partitions": {name: 8 * rng.randint(1, 5) for name in carved},
        "workloads": workloads,
    }  # fmt: skip


def serving(seed: int) -> Row:
    """Draw an experiment with requests."""
    rng = random.Random(seed)  # noqa: S311 - to repeat, not to hide
    one = rng.choice
    chat = {
        "kind": "requests", "prefill": "prefill", "decode": "decode", "batch": one([1, 4, 16]),
        "repeats": rng.randint(10, 40), "arrival": one(["poisson", "fixed"]),
        "rate_hz": one([200, 400, 1000, 3000]), "prompt_chunks": one([1, 2, "uniform 1 3"]),
        "output_tokens": one(["geometric 16", "uniform 2 20", 8]),
        "slo": {"ttft_ms": one([1, 4, 8]), "tbt_ms": one([0.1, 0.2, 0.4])},
    }  # fmt: skip
    streams: Row = one([SPLIT, SPLIT, {"prefill": {}, "decode": {"priority": one([0, -1])}}])
    shared = streams is not SPLIT and rng.random() < 0.3
    return {
        "name": "serving", "seed": seed, "alone_repeats": 0, "rounds": rng.randint(1, 3),
        "streams": {"prefill": {}} if shared else streams,
        "partitions": {"prefill": "rest", "decode": 8 * rng.randint(1, 15)}
        if streams is SPLIT else {},
        "workloads": {
            "prefill": {**_work(rng), "stream": "prefill"},
            "decode": {**_work(rng), "stream": "prefill" if shared else "decode"},
            "chat": chat,
        },
    }  # fmt: skip


def _work(rng: random.Random) -> Row:
    one = rng.choice
    return one([
        {"kind": "gemm", "m": one([16, 512, 2048]), "n": one([512, 2048, 4096]),
         "k": one([512, 2048]), "dtype": one(["float16", "float32"])},
        {"kind": "copy", "nbytes": one([1, 16, 64]) << 20},
        {"kind": "softmax", "rows": one([512, 4096]), "columns": one([1024, 4096])},
        {"kind": "spin", "duration_us": one([5, 50, 200])},
    ])  # fmt: skip


def furthest(recorded: Trace, forecast: Trace) -> tuple[float, str]:
    """Return how far apart the columns of two traces' comparison are at most, and in which."""
    was, now = (
        gs.analysis.settings_table({"": trace}).to_pylist() for trace in (recorded, forecast)
    )
    found = (0.0, "")
    for before, after in zip(was, now, strict=True):
        for name, value in before.items():
            if name in _TOGETHER or not isinstance(value, int | float):
                continue
            off = abs((after[name] or 0) - value) / max(abs(value), 1e-9)
            found = max(found, (off, f"{before['workload']}, {name}: {value}, {after[name]}"))
    return found


# -- with a change -------------------------------------------------------------------------
def waits_dropped(seed: int) -> list[Figure]:
    """Forecast a program of two or three streams without its waits."""
    recorded, truth = tied(seed, seed, waits=True), tied(seed, seed + OTHER_HOST, waits=False)
    if not any(edge["kind"] == "event wait" for edge in recorded.edges.to_pylist()):
        return []
    run = gs.what_if(recorded, drop_waits="all")
    return [_figure("end, all waits dropped", run, truth, end_ns)]


def tied(seed: int, host: int, *, waits: bool) -> Trace:
    """Record a program of two or three streams, with waits between them or without."""
    rng = random.Random(seed)  # noqa: S311 - to repeat, not to hide
    one = rng.choice
    gpu = gs.open_device("sim:h200", quiet=True)
    gpu.backend.seed(host)
    names = "abc"[: rng.randint(2, 3)]
    sizes = {name: 8 * rng.randint(1, 5) for name in names} if rng.random() < 0.6 else {}
    homes: Mapping[str, Any] = gpu.carve(sizes) if sizes else dict.fromkeys(names, gpu)
    streams = {name: homes[name].create_stream(name=name) for name in names}
    handles: list[tuple[Any, str]] = []
    for number in range(rng.randint(2, 4)):
        shared: Row = {"max_in_flight": 64, "name": f"h{number}"}
        if rng.random() < 0.7:
            shape = {"m": one([16, 512, 2048]), "n": one([512, 4096]), "k": one([512, 2048])}
            made: Any = gs.Gemm(gpu, **shape, **shared)
            made.operands()
        else:
            made = Copy(gpu, nbytes=one([1, 16, 64]) << 20, **shared)
        handles.append((made, one(names)))
    ties = [rng.sample(names, 2) for _ in range(rng.randint(1, 2))]
    steps, waits_each_step = rng.randint(3, 12), rng.random() < 0.5
    for made, name in handles:
        made.execute(stream=streams[name])
    gpu.synchronize()
    with gs.profile(gpu) as recording:
        for _ in range(steps):
            for made, name in handles:
                for first, then in ties if waits else ():
                    if then == name:
                        streams[then].wait(streams[first].record())
                made.execute(stream=streams[name])
            if waits_each_step:
                gpu.synchronize()
        gpu.synchronize()
    for stream in streams.values():
        stream.close()
    return recording.trace


def requests_split(seed: int) -> list[Figure]:
    """Forecast requests on other SMs, from a split or from the whole GPU."""
    rng = random.Random(seed)  # noqa: S311 - to repeat, not to hide
    one = rng.choice
    count, now_ms, times_ms = rng.randint(20, 60), 0.0, []
    rate_per_ms = one([0.2, 0.4, 1.0])
    for _ in range(count):
        now_ms += rng.expovariate(rate_per_ms)
        times_ms.append(round(now_ms, 4))
    workloads: Row = {
        "prefill": {**_work(rng), "stream": "prefill"},
        "decode": {**_work(rng), "stream": "decode"},
        "chat": {
            "kind": "requests", "prefill": "prefill", "decode": "decode", "repeats": count,
            "times_ms": times_ms, "output_tokens": [rng.randint(2, 24) for _ in range(count)],
            "batch": one([4, 16]),
            "slo": {"ttft_ms": one([1, 4, 8]), "tbt_ms": one([0.1, 0.2, 0.4])},
        },
    }  # fmt: skip
    before, after = rng.sample([None, *range(8, 128, 8)], 2)
    recorded, truth = _served(workloads, before, seed), _served(workloads, after, seed + OTHER_HOST)
    changes: Row = {"streams": {name: {"partition": None} for name in SPLIT}}
    if after:
        changes = {"partitions": {"prefill": "rest", "decode": after}, "streams": SPLIT}
    run = gs.what_if(recorded, **changes)
    more = 1 / count
    figures = [
        _figure(what, run, truth, lambda trace, name=name: _of_chat(trace, name))
        for what, name in (("TTFT p50", "ttft_p50_ns"), ("TBT p50", "tbt_p50_ns"))
    ]
    goodput = _figure("goodput", run, truth, lambda trace: _of_chat(trace, "goodput_per_s"))
    low, high = goodput.low * (1 - more), goodput.high * (1 + more)
    return [*figures, Figure("goodput", goodput.forecast, low, high, goodput.truth)]


def _served(workloads: Row, decode: int | None, seed: int) -> Trace:
    (trace,) = gs.experiments.predict({
        "name": "serving", "seed": seed, "alone_repeats": 0, "workloads": workloads,
        "streams": SPLIT if decode else {"prefill": {}, "decode": {}},
        "partitions": {"prefill": "rest", "decode": decode} if decode else {},
    }).traces.values()  # fmt: skip
    return trace


def _of_chat(trace: Trace, name: str) -> float:
    return float(getattr(gs.analysis.requests(trace)["chat"], name) or 0)


def end_ns(trace: Trace) -> float:
    """Return the time from the first kernel's start to the last one's end."""
    kernels = trace.where(kind="kernel")
    return float(kernels.array("end_ns").max() - kernels.array("start_ns").min())


def _figure(what: str, run: Any, truth: Trace, of: Any) -> Figure:
    middle, *ends = (of(run[name]) for name in ("forecast", "forecast, low", "forecast, high"))
    return Figure(what, middle, min(middle, *ends), max(middle, *ends), of(truth))
