"""How far forecasts of recorded work are from what was measured.

Three parts, each judged on what it was not fitted to:

- *steps*: PyTorch models recorded alone on each SM count (``data/models.json``); a step on few SMs
  from the recording on 132, and from those on 132 and 24. Constants are fitted to the other models.
- *pairs*: two of these models at a time, on partitions and without, by ``kind = "trace"``.
- *planted*: on a GPU, programs of gpuscope's own workloads: one recording is replayed with a
  change, and the program is run with that change (``--planted``).

Run ``python benchmarks/what_if.py`` for the first two, ``python benchmarks/what_if.py --planted``
on a GPU for the third; both write their part of ``results/what_if.json``. ``--recordings`` writes
two of the models as the recordings that come with the package.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import gpuscope as gs
from gpuscope.device.sim.kernel_model import SCALING, Launch, RecordedKernel, Scaling
from gpuscope.device.sim.profile import Profile
from gpuscope.trace import Trace
from gpuscope.trace.metadata import DeviceFacts, PartitionFacts, StreamFacts, TraceMetadata
from gpuscope.workloads.builtin import RECORDINGS
from gpuscope.workloads.copy import Copy
from gpuscope.workloads.softmax import Softmax

HERE = Path(__file__).resolve().parent
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
    profile = Profile.load("h200")
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
            "kind": "trace", "path": paths[model, WHOLE], "stream": name, "max_queued": 2,
            "warmup": 0,
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
    (trace,) = gs.runs.predict({**experiment, "streams": streams}).traces.values()
    mine = trace.where(kind="kernel", category=which)
    starts = np.sort(mine.array("start_ns"))[:: len(mine) // REPEATS]
    return float(np.mean(np.diff(starts[2:])))


# -- planted changes -----------------------------------------------------------------------
class Planted:
    """Programs of two streams on a device, and what a change does to them.

    A program runs ``steps`` steps: kernels of a, then of b; where ``waits`` is set, b's first
    kernel of a step waits for a's last.
    """

    def __init__(self, device: Any) -> None:
        self.device = device
        self.made: dict[tuple[object, ...], Any] = {}
        self.graph: Any = None

    def handle(self, kind: str, *sizes: int) -> Any:
        """Make a handle once."""
        key = (kind, *sizes)
        if key not in self.made:
            if kind == "gemm":
                m, n, k = sizes
                made: Any = gs.Gemm(self.device, m=m, n=n, k=k, max_in_flight=4 * FLIGHT)
            elif kind == "copy":
                made = Copy(self.device, nbytes=sizes[0], max_in_flight=FLIGHT)
            else:
                made = Softmax(self.device, rows=sizes[0], columns=sizes[1], max_in_flight=FLIGHT)
            with self.device.create_stream() as stream:
                for _ in range(4 * FLIGHT):  # each call in flight has operands of its own
                    made.execute(stream=stream)
                stream.synchronize()
            self.made[key] = made
        return self.made[key]

    def record(self, program: Row) -> Trace:
        """Record a program once it has run unrecorded."""
        with ExitStack() as stack:
            self.graph = None
            streams = self._streams(program, stack)
            self._run(program, streams)
            with gs.profile(self.device) as recording:
                self._run(program, streams)
        return recording.trace

    def _streams(self, program: Row, stack: ExitStack) -> dict[str, Any]:
        homes: dict[str, Any] = dict.fromkeys("ab", self.device)
        if program["split"]:
            homes = stack.enter_context(
                self.device.carve(dict(zip("ab", program["split"], strict=True)))
            )
        return {name: stack.enter_context(homes[name].create_stream(name=name)) for name in "ab"}

    def _run(self, program: Row, streams: dict[str, Any]) -> None:
        for _ in range(program["steps"]):
            with gs.annotate("step"):
                if program.get("graph"):
                    self._graph(program, streams)
                else:
                    self._launch(program, streams)
        self.device.synchronize()

    def _launch(self, program: Row, streams: dict[str, Any]) -> None:
        for name in "ab":
            if name == "b" and program["waits"]:
                streams["b"].wait(streams["a"].record())
            for spec in program[name]:
                self.handle(*spec).execute(stream=streams[name])

    def _graph(self, program: Row, streams: dict[str, Any]) -> None:
        if self.graph is None:
            with streams["a"].capture() as self.graph:
                for spec in program["a"]:
                    self.handle(*spec).execute(stream=streams["a"])
        self.graph.launch(stream=streams["a"])


def end_ns(trace: Trace) -> int:
    """Return the time from the first kernel's start to the last one's end."""
    mine = trace.where(kind="kernel")
    return int(mine.array("end_ns").max() - mine.array("start_ns").min())


_TALL = ("gemm", 1024, 4096, 512)
_SMALL = ("gemm", 512, 512, 512)
_BIG, _FLAT = ("gemm", 4096, 4096, 4096), ("gemm", 4096, 4096, 1024)
_HUGE = ("gemm", 8192, 4096, 4096)
_COPY, _SOFTMAX = ("copy", 1 << 29), ("softmax", 16384, 8192)
"""Long enough for the GPU to hold the host up, whose own time differs from run to run."""
MIXES = {
    "gemm | copy": ([_BIG, _BIG], [_COPY]),
    "gemm | softmax": ([_FLAT, _BIG], [_SOFTMAX, _SOFTMAX]),
    "gemm | gemm": ([_HUGE], [_BIG, _FLAT]),
}
SPLITS = ([16, 116], [32, 100], [48, 84], [96, 36])


def plans() -> Iterator[tuple[str, Row, Row, Callable[[Trace], Row]]]:
    """Yield the kind of each change, its program before and after, and the change itself."""
    for first, second in MIXES.values():
        base: Row = {"a": first, "b": second, "steps": 5, "split": [64, 68], "waits": False}
        for split in SPLITS:
            yield "split", base, {**base, "split": split}, partial(_given, _partitions(split))
        whole = {**base, "split": None}
        homes = {"streams": {name: {"partition": name} for name in "ab"}}
        carved = {**_partitions([32, 100]), **homes}
        yield "split", whole, {**base, "split": [32, 100]}, partial(_given, carved)
        for split in ([64, 68], [32, 100]):
            free = {**base, "split": split}
            tied = {**free, "waits": True}
            yield "wait dropped", tied, free, partial(_given, {"drop_waits": "all"})
            yield "wait added", free, tied, _waits
        for factor in (2, 4):
            scaled = [("gemm", spec[1] * factor, *spec[2:]) for spec in first]
            scale = {"scale": {_category(spec): factor for spec in first}}
            yield "shape scaled", base, {**base, "a": scaled}, partial(_given, scale)
    for specs in ([_SMALL] * 12, [_SMALL, _TALL] * 5, [_TALL] * 12):
        base = {"a": specs, "b": [], "steps": 3, "split": None, "waits": False}
        yield "graph", base, {**base, "graph": True}, partial(_given, {"graphs": ["step"]})


def _given(change: Row, _: Trace) -> Row:
    return change


def _partitions(split: list[int]) -> Row:
    return {"partitions": dict(zip("ab", split, strict=True))}


def _category(spec: tuple[Any, ...]) -> str:
    return f"gemm {'x'.join(map(str, spec[1:]))} float16"


def _waits(trace: Trace) -> Row:
    """Return the waits of each step's b for its a."""
    calls = {
        name: [
            row["id"]
            for row in sorted(
                trace.where(kind="kernel").spans.to_pylist(), key=lambda row: row["start_ns"]
            )
            if trace.stream_name(row["stream"]) == name
        ]
        for name in "ab"
    }
    steps = len(trace.where(kind="range", name="step"))
    each = {name: len(ids) // steps for name, ids in calls.items()}
    return {
        "add_waits": [
            (calls["a"][(step + 1) * each["a"] - 1], calls["b"][step * each["b"]])
            for step in range(steps)
        ]
    }


def judge_planted(device: Any) -> list[Row]:
    """Forecast each planted change, and run it."""
    planted, recorded, rows = Planted(device), {}, []
    profile = device.info.key.removeprefix("sim:") if device.info.kind == "sim" else "h200"
    for kind, before, after, change in plans():
        key = json.dumps(before)
        if key not in recorded:
            tries = [planted.record(before) for _ in range(3)]
            recorded[key] = sorted(tries, key=end_ns)[1]
        trace = recorded[key]
        run = gs.what_if(trace, gpu_profile=profile, **change(trace))
        was = gs.what_if(trace, gpu_profile=profile)["forecast"]
        measured = int(statistics.median(end_ns(planted.record(after)) for _ in range(3)))
        rows.append(
            {
                "kind": kind, "before": _said(before), "after": _said(after),
                "recorded_us": end_ns(trace) / 1e3, "measured_us": measured / 1e3,
                "forecast_us": end_ns(run["forecast"]) / 1e3,
                "low_us": end_ns(run["forecast, low"]) / 1e3,
                "high_us": end_ns(run["forecast, high"]) / 1e3,
                "error": end_ns(run["forecast"]) / measured - 1,
                "as_it_was": _worst_start(trace, was),
            }
        )  # fmt: skip
    return rows


def _said(program: Row) -> str:
    work = [
        " ".join(f"{spec[0]} {'x'.join(map(str, spec[1:]))}" for spec in program[name])
        for name in "ab"
    ]
    where = "whole GPU" if program["split"] is None else " | ".join(map(str, program["split"]))
    more = "".join(f", {name}" for name in ("waits", "graph") if program.get(name))
    return f"{' | '.join(filter(None, work))} on {where}{more}"


def _worst_start(trace: Trace, again: Trace) -> float:
    """Return the largest error of a kernel's start, as a share of the makespan."""
    starts = [
        dict(zip(mine.array("id").tolist(), mine.array("start_ns").tolist(), strict=True))
        for mine in (trace.where(kind="kernel"), again.where(kind="kernel"))
    ]
    return max(abs(starts[1][key] - start) for key, start in starts[0].items()) / end_ns(trace)


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
    parser.add_argument("--recordings", action="store_true", help="write those of the package")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    if chosen.recordings:
        write_recordings(json.loads(DATA.read_text()))
        return
    results = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
    today = dt.datetime.now(dt.UTC).date().isoformat()
    if chosen.planted:
        device = gs.open_device(chosen.device, quiet=True)
        rows = judge_planted(device)
        for row in rows:
            print(f"{row['error']:+7.1%} {row['kind']:13} {row['after']}")
        results["planted"] = {
            "date": today, "device": device.info.name, "summary": summary(rows),
            "rows": _rounded(rows),
        }  # fmt: skip
        print(results["planted"]["summary"])
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
