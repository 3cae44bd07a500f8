"""Interference: worked out by hand on made traces, measured on the simulated GPU, drawn."""

from __future__ import annotations

import gc
import json
import math
import statistics
import threading
import warnings
from pathlib import Path

import pytest

import gpuscope as gs
from gpuscope import figures
from gpuscope.analysis.interference_analysis import Interference, InterferenceResult, interference
from gpuscope.record import ranges
from gpuscope.trace.model import Trace

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
EVIL = "<script>alert(1)</script>$\\href{y}{z}$ \u202eg"


def trace(rows, partition="p"):
    """Kernels: (workload, start, end) or with a partition of their own."""
    return Trace.from_columns(
        {
            "id": list(range(len(rows))),
            "kind": ["kernel"] * len(rows),
            "name": ["k"] * len(rows),
            "category": [row[0] for row in rows],
            "start_ns": [100 + row[1] for row in rows],
            "end_ns": [None if row[2] is None else 100 + row[2] for row in rows],
            "partition": [row[3] if row[3:] else partition for row in rows],
            "source": ["simulated"] * len(rows),
        }
    )


def judged(together, alone, **more):
    return interference(together, alone, of="a", given="b", **more)


# -- the definition -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("together", "n", "median_ns"),
    [
        # b is busy 0–100; a's 10–30 and 40–70 lie inside: median of 20 and 30.
        ([("b", 0, 100), ("a", 10, 30), ("a", 40, 70)], 2, 25),
        # 90–120 reaches beyond busy(b), −5–10 begins before: only 20–50 counts.
        ([("b", 0, 100), ("a", -5, 10), ("a", 20, 50), ("a", 90, 120)], 1, 30),
        # busy(b) is a union: two kernels that touch at 50 are one stretch, 40–60 is inside.
        ([("b", 0, 50), ("b", 50, 100), ("a", 40, 60)], 1, 20),
        # Overlapping kernels of b (two streams) are one stretch, too.
        ([("b", 0, 60), ("b", 40, 100), ("a", 30, 90)], 1, 60),
        # The edges belong to it: 0–100 lies wholly inside 0–100.
        ([("b", 0, 100), ("a", 0, 100)], 1, 100),
        # A gap of 1: 40–60 is not wholly inside, 10–20 is.
        ([("b", 0, 50), ("b", 51, 100), ("a", 40, 60), ("a", 10, 20)], 1, 10),
        # Kernels without an end and kernels of others do not count.
        ([("b", 0, 100), ("b", 200, None), ("a", 210, 220), ("c", 0, 9), ("a", 1, 2)], 1, 1),
    ],
)
def test_interference_counts_kernels_wholly_inside(together, n, median_ns):
    # Alone 8, 10 and 12: median 10.
    result = judged(trace(together), trace([("a", 0, 8), ("a", 20, 30), ("a", 40, 52)]))
    assert (result.n, result.median_ns) == (n, median_ns)
    assert (result.alone_n, result.alone_ns) == (3, 10)
    assert result.value == pytest.approx(median_ns / 10 - 1)
    assert result.low == result.high == pytest.approx(result.value)
    assert result.reason is None


def test_interference_pools_rounds_and_its_spread_is_theirs():
    # Round 1: 10 and 12 inside, alone 10: 11/10 − 1 = 0.1. Round 2: 14 and 15 and 16, alone 12:
    # 15/12 − 1 = 0.25. Together: median of 10, 12, 14, 15, 16 over the median of 10 and 12.
    one = trace([("b", 0, 100), ("a", 0, 10), ("a", 20, 32)])
    two = trace([("b", 0, 100), ("a", 0, 14), ("a", 20, 35), ("a", 40, 56)])
    result = judged([one, two], [trace([("a", 0, 10)]), trace([("a", 0, 12)])])
    assert result.value == pytest.approx(14 / 11 - 1)
    assert (result.low, result.high) == (pytest.approx(0.1), pytest.approx(0.25))
    assert (result.n, result.alone_n) == (5, 2)


def test_interference_at_unix_times_is_exact():
    start = 1_700_000_000_000_000_001
    both = [("b", start, start + 10), ("b", start + 11, start + 20)]
    result = judged(trace([*both, ("a", start + 9, start + 12)]), trace([("a", start, start + 3)]))
    assert result.n == 0, "1 ns of it is in the gap"


@pytest.mark.parametrize(("inside", "n"), [(1.0, 0), (0.96, 0), (0.95, 1), (0.5, 2)])
def test_inside_is_a_share_of_the_kernels_time(inside, n):
    # busy(b): 0–50 and 55–200. 0–100 is in it for 95 of 100, −40–60 for 55 of 100.
    both = trace([("b", 0, 50), ("b", 55, 200), ("a", 0, 100), ("a", -40, 60)])
    assert judged(both, trace([("a", 0, 100)]), inside=inside).n == n


@pytest.mark.parametrize(
    ("together", "alone", "text"),
    [
        ([("b", 0, 10), ("b", 12, 22), ("a", 0, 22)], [("a", 0, 9)], "0 of 1 kernels wholly"),
        ([("b", 0, 10), ("a", 50, 55)], [("a", 0, 9)], "the median one for 0.0%"),
        ([("b", 0, 10)], [("a", 0, 9)], "no finished kernel of A"),
        ([("a", 0, 10)], [("a", 0, 9)], "no finished kernel of B"),
        ([], [("a", 0, 9)], "no finished kernel of A"),
        ([("b", 0, 10), ("a", 2, 3)], [], "no kernel of A was seen alone"),
        ([("b", 0, 10), ("a", 2, 3)], [("a", 0, 9, "q")], "alone A ran on q, together on p"),
        ([("b", 0, 10), ("a", 2, 3)], [("a", 0, 9, None)], "alone A ran on the whole GPU"),
        ([("b", 0, 10), ("a", 5, 5)], [("a", 0, 9)], "0 of 1 kernels"),
    ],
)
def test_without_such_kernels_there_is_a_reason_and_no_value(together, alone, text):
    result = judged(trace(together), trace(alone))
    assert result.value is result.low is result.high is None
    assert text in result.reason
    assert result.rows()[0]["interference"] is None


def test_nothing_measured():
    assert judged([], []).reason == "not measured"
    assert judged([], trace([("a", 0, 9)])).alone_ns == 9


@pytest.mark.parametrize("inside", [0, -1, 1.01, float("nan")])
def test_inside_is_checked(inside):
    with pytest.raises(ValueError, match=r"share in \(0, 1\]|inside is nan"):
        judged([], [], inside=inside)
    with pytest.raises(ValueError, match="not of 'a' twice"):
        interference([], [], of="a", given="a")


# -- measured -----------------------------------------------------------------------------


@pytest.fixture
def gpu():
    device = gs.open_device("sim:h200", quiet=True)
    yield device
    assert device.registry.held_parts() == {}
    assert device.calls.observers == ()
    assert not device.registry.streams
    assert ranges.running == ()
    assert gc.isenabled()


def gemm(size, partition=None, **facts):
    home = {} if partition is None else {"partition": partition}
    return {"kind": "gemm", "m": size, "n": size, "k": size, **home, **facts}


SIZES = {"a": 64, "b": "rest"}
THREE = {"small": gemm(512, "a"), "large": gemm(4096, "b"), "other": gemm(3072, "b")}


def measure(gpu, workloads=None, sizes=SIZES, **more):
    options = {"repeats": 6, "rounds": 2, **more}
    return gs.search.measure_interference(gpu, sizes, workloads or THREE, **options)


def test_partitions_keep_simulated_workloads_apart_and_sharing_does_not(gpu):
    result = measure(gpu, inside=0.9)
    assert 0 <= result["small", "large"] < 0.4, "other SMs, but one memory"
    assert 0 <= result["small", "other"] < 0.4
    assert result["large", "other"] > 0.05, "the same SMs: its tail is shared"
    assert result["other", "large"] > 0.2
    assert {(cell.of, cell.given) for cell in result.cells} == {
        (a, b) for a in THREE for b in THREE if a != b
    }
    assert dict(result.partitions) == {
        "small": "a (64 SMs)", "large": "b (68 SMs)", "other": "b (68 SMs)",
    }  # fmt: skip
    cell = result.cell("small", "large")
    assert cell.alone_n == 12
    assert 10 <= cell.n <= 12
    assert cell.low <= cell.value <= cell.high < 0.4
    assert not result.stopped
    assert "SIMULATED" in result.note
    assert "exact on the simulated clock" in result.provenance
    assert {row["a on"] for row in result.rows()} == {"a (64 SMs)", "b (68 SMs)"}


def test_a_kernel_longer_than_the_others_busy_stretches_has_no_value(gpu):
    result = measure(gpu)
    assert result["large", "small"] is None
    assert "0 of 12 kernels wholly inside busy(B)" in result.cell("large", "small").reason
    with pytest.raises(KeyError, match="no pair"):
        result["small", "small"]


def test_the_value_follows_from_the_definition(gpu, monkeypatch):
    """Recorded runs, judged again by the definition, written out."""
    from gpuscope.search import series

    runs, measured = [], gs.run

    def run(experiment, *args, **more):
        runs.append((list(experiment.workloads), measured(experiment, *args, **more)["default"]))
        return gs.experiments.Run({"default": runs[-1][1]}, None, {})

    monkeypatch.setattr(series, "run", run)
    result = measure(gpu, {"x": gemm(3072, "b"), "y": gemm(4096, "b")}, inside=0.9)
    assert [names for names, _ in runs] == [["x"], ["x", "y"], ["y"], ["y", "x"]] * 2

    def spans(seen, name):
        rows = seen.where(kind="kernel", category=name).spans.to_pylist()
        return [(row["start_ns"], row["end_ns"]) for row in rows]

    for of, given, least in (("x", "y", 0), ("y", "x", 10)):
        alone = [
            end - start for names, seen in runs if names == [of] for start, end in spans(seen, of)
        ]
        met = [
            end - start
            for names, seen in runs
            if names == [of, given]
            for start, end in spans(seen, of)
            # kernels of one stream never overlap each other: their sum is their union
            if sum(max(0, min(end, e) - max(start, s)) for s, e in spans(seen, given))
            >= 0.9 * (end - start)
        ]
        cell = result.cell(of, given)
        assert (cell.n, cell.alone_n) == (len(met), 12)
        assert cell.n >= least
        if met:
            expected = statistics.median(met) / statistics.median(alone) - 1
            assert cell.value == pytest.approx(expected)


def test_without_partitions_the_whole_gpu_is_shared(gpu):
    result = measure(gpu, {"x": gemm(2048), "y": gemm(4096)}, None, inside=0.9)
    assert set(result.partitions.values()) == {"whole GPU"}
    assert result["x", "y"] > 0.2


def test_the_one_behind_runs_back_to_back(gpu):
    """Though it is described as arriving now and then, and in the background or not."""
    slow = gemm(4096, "b", arrival="fixed", rate_hz=10)
    result = measure(gpu, {"small": gemm(512, "a", repeats=3, background=True), "large": slow})
    assert result.cell("small", "large").n >= 10
    assert result.cell("small", "large").alone_n == 12


def test_specs_of_an_experiment_can_be_given(gpu):
    plan = gs.experiments.Experiment.from_dict(
        {
            "name": "n",
            "streams": {"a": {}, "b": {}},
            "workloads": {"x": gemm(512, stream="a"), "y": gemm(4096, stream="b")},
        }
    )
    assert measure(gpu, plan.workloads)["x", "y"] < 0.4
    both = {name: {**spec.model_dump(), "partition": "b"} for name, spec in plan.workloads.items()}
    assert set(measure(gpu, both).partitions.values()) == {"b (68 SMs)"}


def test_sizes_can_be_a_list(gpu):
    result = measure(gpu, {"x": gemm(512, "p0"), "y": gemm(4096, "p1")}, [16, "rest"])
    assert set(result.partitions.values()) == {"p0 (16 SMs)", "p1 (116 SMs)"}


def test_the_viewer_sees_one_progress_over_everything(gpu):
    seen = []
    measure(gpu, viewer=lambda p: seen.append((p.setting, p.round, p.done, p.total)))
    assert [one[2] for one in seen] == list(range(1, 2 * 9 * 6 + 1))
    assert {one[3] for one in seen} == {108}
    order = list(dict.fromkeys(one[:2] for one in seen))
    assert order[:4] == [
        ("small alone", 0), ("small with large", 0), ("small with other", 0), ("large alone", 0),
    ]  # fmt: skip
    assert len(order) == 18
    assert [one[1] for one in order] == [0] * 9 + [1] * 9, "alone and together by turns"


def test_the_same_seed_gives_the_same_result(gpu):
    again = gs.open_device("sim:h200", quiet=True)
    assert measure(gpu, seed=3) == measure(again, seed=3)


def test_stop_keeps_what_was_measured(gpu):
    stop = threading.Event()

    def viewer(progress):
        if progress.setting == "small with other":
            stop.set()

    result = measure(gpu, viewer=viewer, stop=stop)
    assert result.stopped
    assert result["small", "large"] < 0.4
    assert result["other", "large"] is None
    assert result.cell("other", "large").reason == "not measured"
    assert "stopped early" in result.note
    assert "not measured" in words(figures.interference(result))


def test_ctrl_c_keeps_what_was_measured(gpu):
    def viewer(progress):
        if progress.setting == "large with small":
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="interrupted"):
        result = measure(gpu, viewer=viewer)
    assert result.stopped
    assert result["small", "large"] < 0.4
    assert result["large", "other"] is None


@pytest.mark.parametrize("method", ["make_partitions", "make_stream", "matmul", "close_stream"])
def test_ctrl_c_while_nothing_is_recorded_keeps_what_was_measured(gpu, monkeypatch, method):
    """In the last of the runs: at its carving, its last stream, kernel or closing."""
    real = getattr(gpu.backend, method)
    calls = []

    def maybe(*args, **kwargs):
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(gpu.backend, method, maybe)
    at = -1
    pair = {"small": gemm(512, "a"), "large": gemm(4096, "b")}
    measure(gpu, pair, rounds=1)
    at, calls[:] = len(calls), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        result = measure(gpu, pair, rounds=1)
    assert result.stopped
    assert result["small", "large"] < 0.4


def test_stopped_before_anything_is_an_error(gpu):
    stop = threading.Event()
    stop.set()
    with pytest.raises(gs.errors.GpuscopeError, match="stopped before anything"):
        measure(gpu, stop=stop)


@pytest.mark.parametrize(
    ("workloads", "sizes", "error", "text"),
    [
        ({"x": gemm(512, "a")}, SIZES, gs.errors.InvalidExperiment, "at least two"),
        ([gemm(512, "a")] * 2, SIZES, gs.errors.InvalidExperiment, "at least two"),
        ({"x": gemm(5, "a"), "y": gemm(5)}, SIZES, gs.errors.InvalidExperiment,
         "workloads.y.partition: None is no partition; allowed: 'a', 'b'"),
        ({"x": gemm(5, "a"), "y": gemm(5, "q")}, SIZES, gs.errors.InvalidExperiment, "'q' is no part"),
        ({"x": gemm(5, "a"), "y": gemm(0, "a")}, SIZES, gs.errors.InvalidExperiment, "workloads.y.m"),
        ({"x": gemm(5, "a"), "y": 3}, SIZES, gs.errors.InvalidExperiment, "workloads.y.partition"),
        (None, {"a": 7, "b": "rest"}, gs.errors.InvalidPartition, "8 above"),
        (None, {}, gs.errors.InvalidPartition, "no partition was asked for"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused(gpu, workloads, sizes, error, text):
    before_ns = gpu.now_ns()
    with pytest.raises(error, match=text):
        measure(gpu, workloads, sizes)
    assert gpu.now_ns() == before_ns, "the device was not touched"


@pytest.mark.parametrize("bad", [{"repeats": 0}, {"rounds": 0}])
def test_counts_are_checked(gpu, bad):
    with pytest.raises(gs.errors.InvalidExperiment, match=next(iter(bad))):
        measure(gpu, **bad)
    with pytest.raises(ValueError, match="share"):
        measure(gpu, inside=2)


# -- drawn --------------------------------------------------------------------------------


def words(figure):
    title = figure.layout.title
    return " ".join(
        [title.text, title.subtitle.text, *(one.text for one in figure.layout.annotations)]
    )


def cell(of, given, value=0.123, **more):
    facts = {
        "low": None if value is None else value - 0.01,
        "high": None if value is None else value + 0.02,
        "n": 1234, "alone_n": 2345, "median_ns": 11_230.0, "alone_ns": 10_000.0, "inside": 1.0,
        "reason": "0 of 9 kernels: for a reason" if value is None else None, "provenance": "",
    }  # fmt: skip
    return Interference(of, given, value, **{**facts, **more})


def made(*cells, partitions=None, **more):
    names = dict.fromkeys(name for one in cells for name in (one.of, one.given))
    facts = {"stopped": False, "provenance": "measured on GPU; kernel times from: cupti"}
    return InterferenceResult(cells, partitions or dict.fromkeys(names, "p"), **{**facts, **more})


def test_each_pair_has_a_mark_with_the_spread_of_its_rounds():
    figure = figures.interference(made(cell("x", "y"), cell("y", "x", None, n=0)))
    (marks,) = figure.data
    assert list(marks.x) == ["x beside y", "y beside x"]
    assert marks.y[0] == pytest.approx(12.3)
    assert marks.error_y.array[0] == pytest.approx(14.3 - 12.3)
    assert marks.error_y.arrayminus[0] == pytest.approx(12.3 - 11.3)
    assert math.isnan(marks.y[1])
    assert marks.error_y.array[1] is None
    assert "n = 1,234; alone 10 µs, n = 2,345" in marks.hovertext[0]
    assert "y beside x: 0 of 9 kernels: for a reason" in words(figure)
    assert "x on p, y on p" in words(figure)
    assert "measured on GPU" in words(figure)
    assert "wholly inside busy(B)" in words(figure)
    assert "SIMULATED" not in words(figure)


def test_that_it_was_simulated_or_stopped_is_said():
    simulated = made(
        cell("x", "y"),
        cell("y", "x"),
        provenance="SIMULATED on H200",
        is_simulated=True,
        stopped=True,
    )
    said = words(figures.interference(simulated))
    assert "(SIMULATED)" in said
    assert "SIMULATED, not measured" in said
    assert "stopped early" in said


def test_foreign_names_are_harmless():
    drawn = figures.interference(
        made(
            cell(EVIL, "y"), cell("y", EVIL, None, reason=EVIL),
            partitions={EVIL: EVIL, "y": EVIL}, provenance=EVIL,
        )
    )  # fmt: skip
    text = drawn.to_json()
    for raw in ("<script", "\u202e", "\\u202e", "$"):
        assert raw not in text
    assert json.loads(text)


def test_a_result_without_pairs_cannot_be_drawn():
    with pytest.raises(gs.errors.MissingEvidence, match="no pair"):
        figures.interference(InterferenceResult((), {}, stopped=False, provenance=""))


# -- examples -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["confinement", "interference"])
def test_the_examples_run(gpu, name):
    plan = gs.experiments.Experiment.from_file(EXAMPLES / f"{name}.toml").to_dict()
    for spec in plan["workloads"].values():
        spec["repeats"] = 10
    run = gs.run({**plan, "rounds": 1, "alone_repeats": 3}, gpu)
    carved, plain = run.values()
    assert "no partition" in run
    for trace_ in run.values():
        names = set(trace_.where(kind="kernel").texts("category"))
        assert names == set(plan["workloads"]), "every workload ran"
    given = carved.where(kind="kernel")
    assert given.texts("partition") == given.texts("intended_partition")
    assert None not in given.texts("partition")
    assert set(plain.where(kind="kernel").texts("partition")) == {None}
    if name == "confinement":
        counts = sorted(facts.sm_count for facts in carved.metadata.partitions.values())
        assert counts == [8, 12, 16, 32, 64]


def test_the_interference_example_can_be_measured_in_pairs(gpu):
    """As its header says."""
    header = (EXAMPLES / "interference.toml").read_text("utf-8").partition("\nname")[0]
    lines = [line.removeprefix("#   ") for line in header.splitlines() if line.startswith("#   ")]
    code = "\n".join(lines[lines.index("import gpuscope as gs") :])
    assert "gs.search.measure_interference(" in code
    code = code.replace("inside=0.9", "inside=0.9, repeats=4, rounds=1")
    code = code.replace('"auto"', '"sim:h200"').replace(".show()", "")
    code = code.replace('"examples/', f'"{EXAMPLES.as_posix()}/')
    names: dict[str, object] = {}
    exec(code, names)  # noqa: S102 - our own example
    result = names["result"]
    assert result["decode", "prefill"] < 0.4
    assert result["copy", "prefill"] > 0.2
