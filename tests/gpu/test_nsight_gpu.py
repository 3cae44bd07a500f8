"""Nsight's own tools on a real GPU: nsys reads our SQLite, and we read what nsys records."""

from __future__ import annotations

import csv
import io
import json
import statistics
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import gpuscope as gs
from gpuscope import _nsys
from gpuscope.errors import MissingDependency
from gpuscope.experiments.experiment import Experiment

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
ROUNDS, REPEATS = 2, 200


@pytest.fixture(scope="module")
def nsys():
    """Return nsys; Nsight Compute's will do."""
    try:
        return _nsys.find("nsys")
    except MissingDependency as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def recorded():
    """Return a recording of ours: ranges, copies, two partitions, a graph."""
    gpu = gs.open_device("cuda:0", quiet=True)
    with gpu.carve({"decode": 16, "prefill": "rest"}) as parts:
        few, many = (parts[name].create_stream(name=name) for name in ("decode", "prefill"))
        small = gs.Gemm(gpu, m=512, n=512, k=512, name="small")
        big = gs.Gemm(gpu, m=2048, n=2048, k=2048, name="big")
        big.operands()
        source, target = gpu.empty((1 << 20,), "float32"), gpu.empty((1 << 20,), "float32")
        with many.capture() as graph:
            big.execute(stream=many)
            big.execute(stream=many)
        for handle, stream in ((small, few), (big, many)):
            handle.execute(stream=stream)
            handle.wait()
        with gs.profile(gpu) as recording:
            for number in range(50):
                with gs.annotate(f"step {number % 3}"):
                    big.execute(stream=many)
                    small.execute(stream=few)
                    few.copy(target, source)
                    if number % 10 == 0:
                        graph.launch(stream=many)
            few.synchronize()
            many.synchronize()
    trace = recording.trace
    assert trace.metadata.counts["dropped"] == 0
    return trace


@pytest.fixture(scope="module")
def tables(recorded, nsys, tmp_path_factory):
    """Return a function: report → rows of nsys's table of our SQLite."""
    path = gs.export(recorded, tmp_path_factory.mktemp("nsys") / "run.sqlite")

    def stats(report):
        done = subprocess.run(
            [nsys, "stats", "--report", report, "--format", "csv", "--quiet", path],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "SKIPPED" not in done.stdout, done.stdout
        return list(csv.DictReader(io.StringIO(done.stdout.strip("\n"))))

    return stats


def rows_of(trace, *kinds):
    return [row for row in trace.spans.to_pylist() if row["kind"] in kinds]


def lengths_by(rows, key):
    found = defaultdict(list)
    for row in rows:
        found[key(row)].append(row["end_ns"] - row["start_ns"])
    return {name: (sum(times), len(times), min(times), max(times)) for name, times in found.items()}


def told(row, count):
    return tuple(int(row[name]) for name in ("Total Time (ns)", count, "Min (ns)", "Max (ns)"))


def test_kernels(recorded, tables):
    expected = lengths_by(rows_of(recorded, "kernel"), lambda row: row["name"])
    assert {row["Name"]: told(row, "Instances") for row in tables("cuda_gpu_kern_sum")} == expected


def test_ranges(recorded, tables):
    expected = lengths_by(rows_of(recorded, "range"), lambda row: f"gpuscope:{row['name']}")
    assert {row["Range"]: told(row, "Instances") for row in tables("nvtx_sum")} == expected


def test_api_calls(recorded, tables):
    calls = [row for row in rows_of(recorded, "api", "sync", "event")
             if row["kind"] != "event" or row["thread"] is not None]  # fmt: skip

    def name(row):  # nsys leaves out a version at the end
        return row["name"][:-6] if row["name"][-6:-4] == "_v" else row["name"]

    found = {row["Name"]: told(row, "Num Calls") for row in tables("cuda_api_sum")}
    assert found == lengths_by(calls, name)
    assert len(tables("cuda_api_trace")) == len(calls)


def test_gpu_trace_with_green_contexts(recorded, tables):
    base = int(recorded.array("start_ns").min())
    expected = Counter(
        (row["start_ns"] - base, row["end_ns"] - row["start_ns"], str(row["green_context"] or ""),
         str(row["stream"]))
        for row in rows_of(recorded, "kernel", "memcpy", "memset")
    )  # fmt: skip
    found = Counter(
        (int(row["Start (ns)"]), int(row["Duration (ns)"]), row["GreenCtx"], row["Strm"])
        for row in tables("cuda_gpu_trace")
    )
    assert found == expected
    assert len({key[2] for key in expected} - {""}) == 2


def test_launches(recorded, tables):
    rows = {row["id"]: row for row in recorded.spans.to_pylist()}
    expected = Counter(
        rows[edge["to"]]["name"] for edge in recorded.edges.to_pylist()
        if edge["kind"] == "launch" and rows[edge["to"]]["kind"] == "kernel"
    )  # fmt: skip
    found = Counter()
    for row in tables("cuda_kern_exec_sum"):
        found[row["Kernel Name"]] += int(row["Count"])
    assert found == expected


def test_projection(recorded, tables):
    ours = gs.analysis.range_projection(recorded)
    expected = {f"gpuscope:{one.name}": (one.projected_ns, one.launched) for one in ours.names}
    found = {
        row["Range"]: (int(row["Total Proj Time (ns)"]), int(row["Range Instances"]))
        for row in tables("nvtx_gpu_proj_sum")
    }
    assert found == expected


@pytest.mark.gpu_alone("compares times to 15 %")
def test_the_quickstart_under_nsys_and_by_ourselves(nsys, tmp_path):
    """The same program, recorded by nsys and imported, and recorded by us."""
    plain = Experiment.from_file(ROOT / "examples" / "quickstart.toml").to_dict()
    plain["workloads"]["small"]["repeats"] = REPEATS
    experiment = Experiment.from_dict(plain | {"rounds": ROUNDS, "alone_repeats": 0})
    found = gs.experiments.nsight.profile(
        experiment, tmp_path / "quickstart.nsys-rep", program=nsys
    )
    assert found.report.stat().st_size > 10_000
    trace = found.trace
    assert trace is not None
    text = json.dumps(trace.metadata.process_names) + "".join(trace.metadata.notes)
    assert str(ROOT) not in text

    names = Counter(row["name"] for row in rows_of(trace, "range") if row["domain"] == "gpuscope")
    assert {name: names[name] for name in experiment.settings} == dict.fromkeys(
        experiment.settings, ROUNDS
    )
    assert {names[f"round {number}"] for number in range(ROUNDS)} == {len(experiment.settings)}

    own = gs.run(experiment, "cuda:0")
    kernels = rows_of(trace, "kernel")
    for setting in ("16 | rest", "16 | rest, no target"):
        small = [row for row in rows_of(own[setting], "kernel") if row["category"] == "small"]
        (name,) = {row["name"] for row in small}
        inside = [row for row in rows_of(trace, "range") if row["name"] == setting]
        theirs = [
            row for row in kernels
            if row["name"] == name and row["green_context"]
            and any(one["start_ns"] <= row["start_ns"] <= one["end_ns"] for one in inside)
        ]  # fmt: skip
        warm_up = plain["workloads"]["small"].get("warmup", 3) * ROUNDS
        assert len(small) == REPEATS
        assert len(theirs) == REPEATS + warm_up
        times = [
            statistics.median(row["end_ns"] - row["start_ns"] for row in rows)
            for rows in (small, theirs)
        ]
        assert times[1] == pytest.approx(times[0], rel=0.15)
