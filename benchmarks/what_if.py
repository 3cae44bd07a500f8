"""How far forecasts of recorded work are from what was measured.

Four parts, each judged on what it was not fitted to:

- *steps*: PyTorch models recorded alone on each SM count (``data/models.json``); a step on few SMs
  from the recording on 132, and from those on 132 and 24. Constants are fitted to the other models.
- *pairs*: two of these models at a time, on partitions and without, by ``kind = "trace"``.
- *planted*: on a GPU, programs of gpuscope's own workloads: one recording is replayed with a
  change, and the program is run with that change (``--planted``).

- *bands*: on the simulated GPU, random programs (``tests/forecast_programs.py``) and planted
  changes: how many come back as they were, and in how many bands the truth lies.

Run ``python benchmarks/what_if.py`` for the first two, ``python benchmarks/what_if.py --planted``
on a GPU for the third, ``--bands`` for the last; each writes its part of ``results/what_if.json``.
``--recordings`` writes two of the models as the recordings that come with the package.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import gpuscope as gs
from gpuscope.simulator.models.kernel_model import SCALING, RecordedKernel, Scaling
from gpuscope.simulator.models.launch import Launch
from gpuscope.simulator.profiles.profile import GpuProfile
from gpuscope.trace import Trace
from gpuscope.trace.metadata import DeviceFacts, PartitionFacts, StreamFacts, TraceMetadata
from gpuscope.workloads.builtin import RECORDINGS
from gpuscope.workloads.copy import Copy
from gpuscope.workloads.softmax import Softmax

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))
import forecast_programs  # noqa: E402

DATA = HERE / "data" / "models.json"
RESULTS = HERE / "results" / "what_if.json"
WHOLE, FEW = 132, 24
FLIGHT = 16
"""Calls of a handle that overlap at most: more than any program has of large ones."""

REPEATS = 12
"""Calls of a model beside another one."""

SHIPPED = (
    ("decode_h200", "decode 4096 b16",
     "a decode step of two PyTorch decoder layers, hidden size 4096, batch 16"),
    ("prefill_h200", "prefill 4096",
     "prefill of 2,048 tokens by two PyTorch decoder layers, hidden size 4096"),
)  # fmt: skip
"""Name, model and what it is, of the recordings that come with gpuscope."""

Row = dict[str, Any]


# -- models alone --------------------------------------------------------------------------
def trace_of(model: Row, sms: int, measured: Row | None = None) -> Trace:
    """Return a model's step on so many SMs as a recording of it.

    Parameters
    ----------
    measured
        When and where, to be said in its metadata.
    """
    seen = measured or {}
    place = model["sms"].index(sms)
    columns: dict[str, list[Any]] = {
        name: []
        for name in (
            "id", "kind", "name", "start_ns", "end_ns", "stream", "partition", "device",
            "launch_config", "source",
        )
    }  # fmt: skip
    now_ns, partition = 0, None if sms == WHOLE else "part"
    gaps = [*model["gaps_ns"], 0]
    for number, (name, config, times_ns) in enumerate(model["kernels"]):
        end_ns = now_ns + times_ns[place]
        row = (
            number, "kernel", name, now_ns, end_ns, 1, partition, 0, json.dumps(config), "cupti",
        )  # fmt: skip
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
        now_ns = end_ns + gaps[number]
    parts = {} if partition is None else {partition: PartitionFacts(sm_count=sms)}
    metadata = TraceMetadata(
        time_base="relative",
        devices={
            "cuda:0": DeviceFacts(
                index=0, name="NVIDIA H200", sm_count=WHOLE, driver=seen.get("driver")
            )
        },
        driver=seen.get("driver"),
        versions={"torch": seen["torch"]} if seen else {},
        notes=(f"recorded on {seen['device']}, {seen['date']}: {seen['what']}",) if seen else (),
        partitions=parts,
        streams={"1": StreamFacts(name="model", partition=partition)},
    )
    return Trace.from_columns(columns, metadata=metadata)


def write_recordings(data: Row) -> None:
    """Write the recordings that come with gpuscope."""
    for name, model, what in SHIPPED:
        for sms, suffix in ((WHOLE, ""), (FEW, f"_{FEW}")):
            seen = {**data["measured"], "what": f"{what}, alone on {sms} SMs"}
            trace = trace_of(data["models"][model], sms, seen)
            path = gs.export(trace, RECORDINGS / f"{name}{suffix}.parquet")
            print(path.name, path.stat().st_size, "bytes")


def kernels(model: Row, scaling: Scaling, *, two: bool) -> list[RecordedKernel]:
    """Return a model's kernels as recorded on the whole GPU, and on few SMs."""
    profile = GpuProfile.load("h200")
    places = {sms: model["sms"].index(sms) for sms in ((WHOLE, FEW) if two else (WHOLE,))}
    return [
        RecordedKernel(
            name, Launch.parse(json.dumps(config)),
            {sms: times_ns[place] for sms, place in places.items()}, profile, None, scaling,
        )
        for name, config, times_ns in model["kernels"]
    ]  # fmt: skip


def steps(model: Row, scaling: Scaling, *, two: bool) -> list[tuple[int, float]]:
    """Return SMs and relative error of a model's step, for every count it was not recorded on."""
    found = []
    recorded = kernels(model, scaling, two=two)
    between = model["step_ns"][model["sms"].index(WHOLE)] - sum(
        times_ns[model["sms"].index(WHOLE)] for _, _, times_ns in model["kernels"]
    )
    for place, sms in enumerate(model["sms"]):
        if sms != WHOLE and not (two and sms == FEW):
            step_ns = between + sum(kernel.duration_ns(sms) for kernel in recorded)
            found.append((sms, step_ns / model["step_ns"][place] - 1))
    return found


def fit(models: list[Row]) -> Scaling:
    """Fit the constants to models: coordinate search of kernel times from one recording."""
    best, least = SCALING, _misfit(models, SCALING)
    tries: list[Callable[[Scaling, float], Scaling]] = [
        *(
            lambda one, by, kind=kind: replace(
                one, waves={**one.waves, kind: min(1.0, one.waves[kind] * by)}
            )
            for kind in SCALING.waves
        ),
        lambda one, by: replace(one, floor_ns=one.floor_ns * by),
        lambda one, by: replace(one, block_loads=one.block_loads * by),
        lambda one, by: replace(one, saturating_warps=round(one.saturating_warps * by)),
        lambda one, by: replace(one, cool=min(1.0, one.cool * by)),
    ]
    for step in (0.2, 0.1, 0.05):
        for change in tries:
            for by in (1 + step, 1 / (1 + step)):
                other = change(best, by)
                misfit = _misfit(models, other)
                if misfit < least:
                    best, least = other, misfit
    return best


def _misfit(models: list[Row], scaling: Scaling) -> float:
    total = 0.0
    for model in models:
        share = model["step_ns"][model["sms"].index(WHOLE)]
        for kernel, (_, _, times_ns) in zip(
            kernels(model, scaling, two=False), model["kernels"], strict=True
        ):
            weight = kernel.times_ns[WHOLE] / share
            for place, sms in enumerate(model["sms"]):
                total += weight * abs(np.log(kernel.duration_ns(sms) / times_ns[place]))
    return total


def judge_steps(models: dict[str, Row]) -> list[Row]:
    """Judge each model by constants fitted to the others."""
    rows = []
    for name, model in models.items():
        scaling = fit([other for key, other in models.items() if key != name])
        for two in (False, True):
            for sms, error in steps(model, scaling, two=two):
                rows.append({"model": name, "sms": sms, "recordings": 1 + two, "error": error})
        print(name, [f"{row['error']:+.1%}" for row in rows if row["model"] == name])
    return rows


# -- two models ----------------------------------------------------------------------------
def judge_pairs(models: dict[str, Row], pairs: list[Row]) -> list[Row]:
    """Forecast the cycle times of two models at a time from their recordings alone."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        paths = {
            (name, sms): str(
                gs.export(trace_of(model, sms), Path(folder, f"{number}-{sms}.parquet"))
            )
            for number, (name, model) in enumerate(models.items())
            for sms in (WHOLE, FEW)
        }
        for pair in pairs:
            for recordings in (1, 2):
                for which, other in ("ab", "ba"):
                    cycle_ns = _cycle_ns(pair, paths, which, other, recordings)
                    measured_ns = pair[f"{which}_cycle_ns"]
                    rows.append(
                        {
                            "a": pair["a"], "b": pair["b"], "sms": pair["sms"], "of": which,
                            "recordings": recordings, "measured_us": measured_ns / 1e3,
                            "forecast_us": cycle_ns / 1e3, "error": cycle_ns / measured_ns - 1,
                        }
                    )  # fmt: skip
    return rows


def _cycle_ns(
    pair: Row, paths: dict[tuple[str, int], str], which: str, other: str, recordings: int
) -> float:
    """Return the mean time from step to step of one model while the other one runs."""
    workloads: dict[str, Row] = {}
    for name in (which, other):
        model = pair[name]
        workloads[name] = {
            "kind": "trace", "path": paths[model, WHOLE], "graph": True, "stream": name,
            "max_queued": 2, "warmup": 0,
        }  # fmt: skip
        if recordings == 2:
            workloads[name]["second"] = paths[model, FEW]
    workloads[which]["repeats"] = REPEATS
    workloads[other]["background"] = True
    streams: dict[str, Row] = {name: {} for name in "ab"}
    experiment: Row = {"name": "pair", "alone_repeats": 0, "workloads": workloads}
    if pair["sms"]:
        experiment["partitions"] = dict(zip("ab", pair["sms"], strict=True))
        streams = {name: {"partition": name} for name in "ab"}
    (trace,) = gs.experiments.predict({**experiment, "streams": streams}).traces.values()
    mine = trace.where(kind="kernel", category=which)
    starts = np.sort(mine.array("start_ns"))[:: len(mine) // REPEATS]
    return float(np.mean(np.diff(starts[2:])))


# -- planted changes -----------------------------------------------------------------------
class Planted:
    """Programs of up to three streams on a device, and what a change does to them.

    A program runs ``steps`` steps. In each, it launches the ``work`` of one stream after the
    other, the first of a stream after what its ``waits`` name. ``homes`` says how many SMs a
    stream's partition has; ``None`` is the whole GPU.
    """

    def __init__(self, device: Any) -> None:
        self.device = device
        self.made: dict[tuple[object, ...], Any] = {}
        self.graph: Any = None

    def handle(self, kind: str, *sizes: Any) -> Any:
        """Make a handle once."""
        key = (kind, *sizes)
        if key not in self.made:
            in_flight = FLIGHT
            if kind == "gemm":
                m, n, k, dtype = sizes
                in_flight *= 4 if m * n * k <= _LARGE else 1
                made: Any = gs.Gemm(
                    self.device, m=m, n=n, k=k, dtype=dtype, max_in_flight=in_flight
                )
            elif kind == "copy":
                made = Copy(self.device, nbytes=sizes[0], max_in_flight=in_flight)
            else:
                made = Softmax(
                    self.device, rows=sizes[0], columns=sizes[1], max_in_flight=in_flight
                )
            with self.device.create_stream() as stream:
                for _ in range(in_flight):  # each call in flight has operands of its own
                    made.execute(stream=stream)
                stream.synchronize()
            self.made[key] = made
        return self.made[key]

    def forget(self) -> None:
        """Free the operands of all handles."""
        for made in self.made.values():
            made.close()
        self.made.clear()

    def record(self, program: Row) -> Trace:
        """Record a program once it has run unrecorded."""
        with ExitStack() as stack:
            self.graph = None
            streams = self._streams(program, stack)
            self._run(program, streams)
            with gs.profile(self.device) as recording:
                self._run({**program, "steps": 1}, streams)  # its host is slow: CUPTI begins
                self._run(program, streams)
            if self.graph is not None:
                self.graph.close()
        return recording.trace

    def _streams(self, program: Row, stack: ExitStack) -> dict[str, Any]:
        sizes = _partitions(program)
        homes: dict[str, Any] = dict.fromkeys(program["work"], self.device)
        if sizes:
            parts = stack.enter_context(self.device.carve(sizes))
            homes |= {name: parts[name] for name in sizes}
        return {
            name: stack.enter_context(
                home.create_stream(name=name, priority=program.get("priority", {}).get(name, 0))
            )
            for name, home in homes.items()
        }

    def _run(self, program: Row, streams: dict[str, Any]) -> None:
        for _ in range(program["steps"]):
            with gs.annotate("step"):
                for name in program["work"]:
                    for first, then in program.get("waits", ()):
                        if then == name:
                            streams[then].wait(streams[first].record())
                    with gs.annotate(f"{name} of a step"):
                        self._launch(program, streams, name)
        self.device.synchronize()

    def _launch(self, program: Row, streams: dict[str, Any], name: str) -> None:
        stream = streams[program.get("moved", {}).get(name, name)]
        if program.get("graph") != name:
            for spec in program["work"][name]:
                self.handle(*spec).execute(stream=stream)
            return
        if self.graph is None:
            for spec in program["work"][name]:
                self.handle(*spec)
            with stream.capture() as self.graph:
                for spec in program["work"][name]:
                    self.handle(*spec).execute(stream=stream)
        self.graph.launch(stream=stream)


def end_ns(trace: Trace) -> int:
    """Return the time from the first kernel's start to the last one's end, but for one step."""
    warm_ns = trace.where(kind="sync").array("end_ns").min()
    mine = trace.where(kind="kernel")
    starts, ends = mine.array("start_ns"), mine.array("end_ns")
    return int(ends.max() - starts[starts >= warm_ns].min())


Change = Callable[[Trace], Row]
Plan = tuple[str, Row, Row, Change]
"""The kind of a change, a program before and after it, and the change itself."""
_LARGE = 1 << 32
"""Multiplications of a product that is no longer small."""
_TALL = ("gemm", 1024, 4096, 512, "float16")
_SMALL = ("gemm", 512, 512, 512, "float16")
_BIG, _FLAT = ("gemm", 4096, 4096, 4096, "float16"), ("gemm", 4096, 4096, 1024, "float16")
_HUGE = ("gemm", 8192, 4096, 4096, "float16")
_COPY, _SOFTMAX = ("copy", 1 << 29), ("softmax", 16384, 8192)
"""Long enough for the GPU to hold the host up, whose own time differs from run to run."""
MIXES = (([_BIG, _BIG], [_COPY]), ([_FLAT, _BIG], [_SOFTMAX, _SOFTMAX]), ([_HUGE], [_BIG, _FLAT]))
SPLITS = ([16, 116], [32, 100], [48, 84], [96, 36])
SEED = 190_411
"""Of the programs that judge. Whoever changes a rule after seeing them takes another one."""


def fitted() -> Iterator[Plan]:
    """Yield changes that rules and constants were corrected on."""
    for first, second in MIXES:
        base: Row = {"work": {"a": first, "b": second}, "steps": 5}
        whole, even = {**base, "homes": {}}, _split(base, 64, 68)
        for split in SPLITS:
            yield _carved(even, _split(base, *split))
        yield _carved(whole, _split(base, 32, 100))
        for split in ([64, 68], [32, 100]):
            free = _split(base, *split)
            yield _untied(free, "a", "b")
            yield _tied(free, "a", "b")
        for factor in (2, 4):
            yield _scaled(even, "a", factor)
    for specs in ([_SMALL] * 12, [_SMALL, _TALL] * 5, [_TALL] * 12):
        yield _graphed({"work": {"a": specs}, "steps": 3, "homes": {}}, "a")


def fresh(seed: int) -> Iterator[Plan]:
    """Yield changes that judge: kinds and streams as listed, work and sizes drawn from a seed."""
    rng = random.Random(seed)  # noqa: S311 - to repeat, not to hide

    def program(streams: int, steps: int = 4) -> Row:
        each = {name: rng.choice((1, 1, 2)) for name in "abc"[:streams]}
        specs: set[tuple[Any, ...]] = set()
        while len(specs) < sum(each.values()):
            specs.add(_drawn(rng))
        left = rng.sample(sorted(specs, key=str), len(specs))
        work = {name: [left.pop() for _ in range(count)] for name, count in each.items()}
        return {"work": work, "steps": steps, "homes": {}}

    def split(base: Row, left: int = 0) -> Row:
        """Draw partitions for all streams but the last ``left``."""
        names = list(base["work"])[: len(base["work"]) - left]
        others = [8 * rng.randint(2, 16 // len(names) - 1) for _ in names[1:]]
        last = 8 * rng.randint(3, 6) if left or rng.random() < 0.3 else 132 - sum(others)
        sizes = [*others, last]
        rng.shuffle(sizes)
        return _split(base, *sizes)

    for streams, left in ((2, 0), (2, 0), (3, 0), (3, 0), (2, 1), (3, 1)):
        base = program(streams)
        yield _carved(split(base, left), split(base, left))
    for streams in (2, 2, 3):
        base = program(streams)
        yield _carved(base, split(base))
        yield _carved(split(base), base)
    for streams in (2, 3):
        base = program(streams)
        for free in (base, split(base)):
            yield _tied(free, "a", "b")
            yield _untied(free, *("bc" if streams == 3 else "ab"))
    for streams in (2, 2, 3, 3):
        base = program(streams)
        yield (
            "priority",
            base,
            {**base, "priority": {"b": -1}},
            _given({"streams": {"b": {"priority": -1}}}),
        )
    for streams in (2, 3):
        base = program(streams)
        yield (
            "moved",
            base,
            {**base, "moved": {"b": "a"}},
            _given({"move": {_category(spec): "a" for spec in base["work"]["b"]}}),
        )
    for streams, carved in ((1, False), (2, False), (2, True), (2, True), (3, True), (3, False)):
        base = program(streams)
        base["work"]["a"] = [_drawn(rng)]
        free = split(base) if carved and streams > 1 else base
        yield _scaled(free, "a", rng.choice((2, 3)))
    for streams in (1, 1, 1, 1, 2, 2):
        base = program(streams, 8)
        base["work"]["a"] = [_small(rng) for _ in range(rng.randint(4, 12))]
        yield _graphed(split(base) if streams > 1 else base, "a")


def _drawn(rng: random.Random) -> tuple[Any, ...]:
    """Draw work long enough for the GPU to hold the host up."""
    kind = rng.choice(("gemm", "gemm", "sgemm", "copy", "softmax"))
    if kind == "gemm":
        sizes = [rng.choice((2048, 3072, 4096, 5120, 6144)) for _ in range(3)]
        return "gemm", *sizes, rng.choice(("float16", "bfloat16"))
    if kind == "sgemm":
        return "gemm", *(rng.choice((1024, 1536, 2048)) for _ in range(3)), "float32"
    if kind == "copy":
        return "copy", rng.randint(2, 6) << 26
    return "softmax", rng.choice((8192, 12288, 16384)), rng.choice((2048, 4096, 6144))


def _small(rng: random.Random) -> tuple[Any, ...]:
    kind = rng.choice(("gemm", "gemm", "copy", "softmax"))
    if kind == "gemm":
        sizes = [rng.choice((256, 384, 768, 1024, 2048)) for _ in range(3)]
        return "gemm", *sizes, rng.choice(("float16", "float32"))
    if kind == "copy":
        return "copy", rng.randint(1, 32) << 20
    return "softmax", rng.choice((512, 1024, 2048)), rng.choice((512, 1024, 3072))


def _split(base: Row, *sizes: int) -> Row:
    return {**base, "homes": dict(zip(base["work"], sizes, strict=False))}


def _partitions(program: Row) -> dict[str, int]:
    return dict(program["homes"])


def _given(change: Row) -> Change:
    return lambda _: change


def _carved(before: Row, after: Row) -> Plan:
    change: Row = {"partitions": _partitions(after) or None}
    if set(_partitions(before)) != set(_partitions(after)):
        homes = {name: name if name in after["homes"] else None for name in after["work"]}
        change["streams"] = {name: {"partition": home} for name, home in homes.items()}
    return "split", before, after, _given(change)


def _tied(free: Row, first: str, then: str) -> Plan:
    tied = {**free, "waits": [[first, then]]}
    return "wait added", free, tied, lambda trace: {"add_waits": _waits(trace, first, then)}


def _untied(free: Row, first: str, then: str) -> Plan:
    return "wait dropped", {**free, "waits": [[first, then]]}, free, _given({"drop_waits": "all"})


def _scaled(before: Row, name: str, factor: int) -> Plan:
    specs = before["work"][name]
    work = {**before["work"], name: [(spec[0], spec[1] * factor, *spec[2:]) for spec in specs]}
    scale = {_category(spec): factor for spec in specs}
    return "shape scaled", before, {**before, "work": work}, _given({"scale": scale})


def _graphed(before: Row, name: str) -> Plan:
    change = {"graphs": [f"{name} of a step"]}
    return "graph", before, {**before, "graph": name}, _given(change)


def _category(spec: tuple[Any, ...]) -> str:
    """Return the name of a handle's calls."""
    kind, *sizes = spec
    if kind == "copy":
        return f"copy {sizes[0]} B"
    dtype = f" {sizes.pop()}" if kind == "gemm" else ""
    return f"{kind} {'x'.join(map(str, sizes))}{dtype}"


def _waits(trace: Trace, first: str, then: str) -> list[tuple[int, int]]:
    """Return the waits of each step's ``then`` for its ``first``: ids of kernels."""
    rows = sorted(trace.where(kind="kernel").spans.to_pylist(), key=lambda row: row["start_ns"])
    ids: dict[str, list[int]] = {first: [], then: []}
    for row in rows:
        ids.setdefault(str(trace.stream_name(row["stream"])), []).append(row["id"])
    steps = len(trace.where(kind="range", name="step"))
    each = {name: len(mine) // steps for name, mine in ids.items()}
    return [
        (ids[first][(step + 1) * each[first] - 1], ids[then][step * each[then]])
        for step in range(steps)
    ]


def judge_planted(
    device: Any, seed: int, keep: Path | None, *, only_fresh: bool = False
) -> list[Row]:
    """Forecast each planted change, and run it; ``keep`` takes the recordings."""
    planted, rows = Planted(device), []
    profile = device.info.key.removeprefix("sim:") if device.info.kind == "sim" else "h200"
    recorded: dict[str, Trace] = {}
    plans = [(True, plan) for plan in fresh(seed)]
    plans += [] if only_fresh else [(False, plan) for plan in fitted()]
    for judges, (kind, before, after, change) in plans:
        key = json.dumps(before)
        if key not in recorded:
            planted.forget()
            tries = [planted.record(before) for _ in range(3)]
            recorded = {**recorded, key: sorted(tries, key=end_ns)[1]}
        trace = recorded[key]
        run = gs.what_if(trace, gpu_profile=profile, **change(trace))
        was = gs.what_if(trace, gpu_profile=profile)["forecast"]
        measured = sorted((planted.record(after) for _ in range(3)), key=end_ns)[1]
        if keep is not None:
            for name, one in (("before", trace), ("after", measured)):
                gs.export(one, keep / f"{len(rows)}-{name}.parquet")
        rows.append(
            {
                "judges": judges, "kind": kind, "before": _said(before), "after": _said(after),
                "recorded_us": end_ns(trace) / 1e3, "measured_us": end_ns(measured) / 1e3,
                "forecast_us": end_ns(run["forecast"]) / 1e3,
                "low_us": end_ns(run["forecast, low"]) / 1e3,
                "high_us": end_ns(run["forecast, high"]) / 1e3,
                "error": end_ns(run["forecast"]) / end_ns(measured) - 1,
                "as_it_was": _worst_start(trace, was),
            }
        )  # fmt: skip
        print(f"{rows[-1]['error']:+7.1%} {kind:13} {'' if judges else 'fitted '}{_said(after)}")
    return rows


def _said(program: Row) -> str:
    streams = []
    for name, specs in program["work"].items():
        home = program["homes"].get(name)
        where = "" if home is None else f" on {home}"
        streams.append(f"{' + '.join(map(_category, specs))}{where}")
    more = [f"{first} → {then}" for first, then in program.get("waits", ())]
    more += [f"{name} {to}" for name, to in program.get("priority", {}).items()]
    more += [f"{name} in {to}" for name, to in program.get("moved", {}).items()]
    more += [f"{program['graph']} a graph"] if "graph" in program else []
    return "; ".join([" | ".join(streams), *more])


def _worst_start(trace: Trace, again: Trace) -> float:
    """Return the largest error of a kernel's start, as a share of the makespan."""
    starts = [
        dict(zip(mine.array("id").tolist(), mine.array("start_ns").tolist(), strict=True))
        for mine in (trace.where(kind="kernel"), again.where(kind="kernel"))
    ]
    return max(abs(starts[1][key] - start) for key, start in starts[0].items()) / end_ns(trace)


# -- bands ---------------------------------------------------------------------------------
PROMISED = 0.9
BANDS_SEED, UNCHANGED, CHANGED, PLANTED = 20_000, 60, 60, 3
"""The first seed, on which nothing was chosen; how many programs of each kind are judged, and
seeds of planted changes."""
_LEAST_OFF = 0.01


def judge_unchanged() -> list[Row]:
    """Say how far the columns of random experiments are off where nothing was changed."""
    rows = []
    for kind in (forecast_programs.experiment, forecast_programs.serving):
        for seed in range(BANDS_SEED, BANDS_SEED + UNCHANGED):
            (trace,) = gs.experiments.predict(kind(seed)).traces.values()
            off, where = forecast_programs.furthest(trace, gs.what_if(trace)["forecast"])
            rows.append({"kind": kind.__name__, "seed": seed, "off": off, "where": where})
    return rows


def judge_bands() -> list[Row]:
    """Forecast random programs with a change, and run them with it on another host."""
    figures = []
    for kind in (forecast_programs.waits_dropped, forecast_programs.requests_split):
        for seed in range(BANDS_SEED, BANDS_SEED + CHANGED):
            figures += kind(seed)
    device = gs.open_device("sim:h200", quiet=True)
    for seed in range(BANDS_SEED, BANDS_SEED + PLANTED):
        for row in judge_planted(device, seed, None, only_fresh=True):
            figures.append(
                forecast_programs.Figure(
                    f"end, {row['kind']}", row["forecast_us"], row["low_us"], row["high_us"],
                    row["measured_us"],
                )
            )  # fmt: skip
    for model, sms, two, figure in _bands_of_steps():
        del model, sms
        figures.append(replace(figure, what=f"step of a model, {1 + two} recordings"))
    return [_of_kind(what, figures) for what in dict.fromkeys(one.what for one in figures)]


def _of_kind(what: str, figures: list[forecast_programs.Figure]) -> Row:
    mine = [one for one in figures if one.what == what]
    return {
        "what": what, "n": len(mine), "inside": sum(one.is_inside for one in mine),
        "half_width": float(np.median([one.half_width for one in mine])),
        "error": float(np.median([abs(one.error) for one in mine])),
    }  # fmt: skip


def _bands_of_steps() -> Iterator[tuple[str, int, bool, forecast_programs.Figure]]:
    """Yield the steps of recorded models, with the bands of their kernels' ranges."""
    for name, model in json.loads(DATA.read_text())["models"].items():
        whole = model["sms"].index(WHOLE)
        gaps_ns = model["step_ns"][whole] - sum(took[whole] for _, _, took in model["kernels"])
        for two in (False, True):
            recorded = kernels(model, SCALING, two=two)
            for place, sms in enumerate(model["sms"]):
                if sms == WHOLE or (two and sms == FEW):
                    continue
                low, high = (
                    gaps_ns + sum(kernel.range_ns(sms)[end] for kernel in recorded)
                    for end in (0, 1)
                )
                middle = gaps_ns + sum(kernel.duration_ns(sms) for kernel in recorded)
                truth = float(model["step_ns"][place])
                yield name, sms, two, forecast_programs.Figure("", middle, low, high, truth)


# -- all of it -----------------------------------------------------------------------------
def summary(rows: list[Row]) -> Row:
    """Return how many errors there are, their median without sign, p90 and largest."""
    errors = np.abs([row["error"] for row in rows])
    return {
        "n": len(rows), "median": float(np.median(errors)),
        "p90": float(np.quantile(errors, 0.9)), "worst": float(errors.max()),
    }  # fmt: skip


def _rounded(rows: list[Row]) -> list[Row]:
    return [
        {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in row.items()
        }
        for row in rows
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--planted", action="store_true", help="planted changes, on this GPU")
    parser.add_argument("--bands", action="store_true", help="bands, on the simulated GPU")
    parser.add_argument("--recordings", action="store_true", help="write those of the package")
    parser.add_argument("--seed", type=int, default=SEED, help="of the planted changes that judge")
    parser.add_argument("--keep", type=Path, help="folder for what --planted records")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    if chosen.recordings:
        write_recordings(json.loads(DATA.read_text()))
        return
    results = json.loads((chosen.out if chosen.out.exists() else RESULTS).read_text())
    today = dt.datetime.now(dt.UTC).date().isoformat()
    if chosen.planted:
        device = gs.open_device(chosen.device, quiet=True)
        rows = judge_planted(device, chosen.seed, chosen.keep)
        last = results["planted"]
        before = list(last.get("before", ()))
        if last["seed"] != chosen.seed:
            before.append({name: last[name] for name in ("seed", "date", "summary")})
        results["planted"] = {
            "date": today, "device": device.info.name, "seed": chosen.seed, "before": before,
            "summary": summary([row for row in rows if row["judges"]]),
            "fitted": summary([row for row in rows if not row["judges"]]),
            "rows": _rounded(rows),
        }  # fmt: skip
        print("fresh", results["planted"]["summary"], "fitted", results["planted"]["fitted"])
    elif chosen.bands:
        unchanged, rows = judge_unchanged(), judge_bands()
        results["bands"] = {
            "date": today, "promised": PROMISED, "seed": BANDS_SEED,
            "unchanged": len(unchanged),
            "as_they_were": sum(row["off"] <= _LEAST_OFF for row in unchanged),
            "furthest": max(row["off"] for row in unchanged),
            "rows": _rounded(rows),
        }  # fmt: skip
        for row in results["bands"]["rows"]:
            print(row)
        print({name: value for name, value in results["bands"].items() if name != "rows"})
    else:
        data = json.loads(DATA.read_text())
        alone = judge_steps(data["models"])
        pairs = judge_pairs(data["models"], data["pairs"])
        results["date"] = today
        for name, rows in (("steps", alone), ("pairs", pairs)):
            for number in (1, 2):
                mine = [row for row in rows if row["recordings"] == number]
                results[f"{name}_{number}"] = {"summary": summary(mine), "rows": _rounded(mine)}
                print(name, number, results[f"{name}_{number}"]["summary"])
    chosen.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
