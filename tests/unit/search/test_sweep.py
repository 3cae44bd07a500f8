"""Sweeps: which points are run, what is kept, what is refused, and the picture to choose from."""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from kept_points import kept_points

import gpuscope as gs
from gpuscope import _locks, figures
from gpuscope.analysis.settings import COLUMNS, SweepResult
from gpuscope.comparing.choice import choices
from gpuscope.comparing.choice import swept as told
from gpuscope.comparing.noise import repeats
from gpuscope.experiments.experiment import as_experiment
from gpuscope.record import ranges
from gpuscope.search.point_table import POINTS, PointTable, holds_points
from gpuscope.search.points import MeasuredPoint, SavedPoints
from gpuscope.search.sweeps import load_sweep

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
EVIL = "<script>alert(1)</script>$\\href{y}{z}$ \u202eg"


@pytest.fixture
def gpu():
    device = gs.open_device("sim:h200", quiet=True)
    yield device
    assert device.registry.held_parts() == {}
    assert device.calls.observers == ()
    assert not device.registry.streams
    assert ranges.running == ()
    assert gc.isenabled()


def described(**facts):
    """Describe a small one: a spin of one SM beside a load, plain and carved."""
    return {
        "name": "described",
        "alone_repeats": 2,
        "streams": {"s": {}, "l": {}},
        "workloads": {
            "fast": {"kind": "spin", "duration_us": 20, "stream": "s", "repeats": 4},
            "load": {
                "kind": "gemm", "m": 4096, "n": 4096, "k": 4096, "stream": "l",
                "background": True, "max_queued": 3,
            },
        },
        "settings": {
            "plain": {},
            "v1.0": {
                "partitions": {"small": 16, "load": "rest"},
                "streams": {"s": {"partition": "small"}, "l": {"partition": "load"}},
            },
        },
        **facts,
    }  # fmt: skip


def points(result):
    """Return the points that rows are of; a setting that is the same at several is of none."""
    every = dict.fromkeys(tuple(row[p] for p in result.parameters) for row in result.rows())
    return [point for point in every if None not in point]


def row(result, workload="load", setting="v1.0", **at):
    names = {"workload": workload, "setting": setting, **at}
    (found,) = (r for r in result.rows() if all(r[k] == v for k, v in names.items()))
    return found


# -- parameters and the table -------------------------------------------------------------


def test_a_partition_is_varied_in_every_setting_that_carves_it(gpu):
    experiment = described()
    experiment["settings"]["other"] = experiment["settings"]["v1.0"]
    result = gs.search.sweep(experiment, {"partitions.small": [8, 64]}, gpu)
    assert result.table.column_names == ["partitions.small", *COLUMNS, "gpu", "error"]
    assert result.table.schema.field("partitions.small").type == pa.int64()
    assert len(result.rows()) == 2 + 2 * 2 * 2
    assert points(result) == [(8,), (64,)]
    for setting in ("v1.0", "other"):
        rates = [
            row(result, setting=setting, **{"partitions.small": size})["tflop_per_s"]
            for size in (8, 64)
        ]
        assert rates[0] > 1.3 * rates[1], "the load got the rest"
    assert not result.stopped
    assert set(result.table.column("error").to_pylist()) == {None}
    assert set(result.table.column("gpu").to_pylist()) == {gpu.info.uuid}
    assert "SIMULATED" in result.note


def test_a_setting_that_nothing_varies_is_measured_once(gpu):
    experiment = described(alone_repeats=0)
    varied = {"partitions.small": [200, 8, 16], "workloads.load.m": [1024, 2048]}
    told_of = []
    result = gs.search.sweep(experiment, varied, gpu, viewer=told_of.append)
    plain = [row for row in result.rows() if row["setting"] == "plain"]
    assert [(row["partitions.small"], row["workloads.load.m"]) for row in plain] == [
        *[(None, 1024)] * 2,
        *[(None, 2048)] * 2,
    ]
    carved = {
        (row["partitions.small"], row["workloads.load.m"])
        for row in result.rows()
        if row["setting"] == "v1.0"
    }
    assert carved == {(8, 1024), (8, 2048), (16, 1024), (16, 2048)}
    refused = [row["partitions.small"] for row in result.rows() if row["error"]]
    assert refused == [200, 200], "no point that cannot be carved measures for others"
    assert not result.stopped
    runs = {one.setting for one in told_of if one.setting.endswith(": plain")}
    assert len(runs) == 2
    seeds = gs.search.sweep(experiment, {"seed": [1, 2]}, gpu)
    assert points(seeds) == [(1,), (2,)], "what stands outside settings varies all of them"
    assert len(seeds.rows()) == 8


def test_parameters_of_different_settings_measure_each_once_and_every_point_one(gpu):
    experiment = described(alone_repeats=0)
    experiment["settings"]["other"] = {
        **experiment["settings"]["v1.0"],
        "partitions": {"o": 16, "p": "rest"},
        "streams": {"s": {"partition": "o"}, "l": {"partition": "p"}},
    }
    result = gs.search.sweep(
        experiment, {"partitions.small": [8, 16], "partitions.o": [8, 24]}, gpu
    )
    at = [
        (row["setting"], row["partitions.small"], row["partitions.o"])
        for row in result.rows()
        if row["workload"] == "fast"
    ]
    assert at == [
        ("plain", None, None),
        ("v1.0", 8, None),
        ("other", None, 8),
        ("other", None, 24),
        ("v1.0", 16, None),
        ("other", 16, 24),
    ]
    assert not result.stopped


def test_a_point_is_what_a_run_of_it_gives(gpu):
    result = gs.search.sweep(described(), {"partitions.small": [24]}, gpu)
    experiment = described()
    experiment["settings"]["v1.0"]["partitions"]["small"] = 24
    expected = gs.run(experiment, gs.open_device("sim:h200", quiet=True)).comparison
    assert result.table.select(list(COLUMNS)).equals(expected)


def test_partitions_of_the_experiment_itself_are_varied(gpu):
    experiment = described(partitions={"small": 8, "load": "rest"}, settings={})
    experiment["streams"] = {"s": {"partition": "small"}, "l": {"partition": "load"}}
    result = gs.search.sweep(experiment, {"partitions.small": [8, 100]}, gpu)
    assert len(result.rows()) == 4


def test_several_parameters_are_a_grid(gpu):
    varied = {"workloads.load.m": (1024, 2048), "settings.v1.0.streams.s.priority": [0, -2]}
    result = gs.search.sweep(described(), varied, gpu)
    assert points(result) == [(1024, 0), (1024, -2), (2048, 0), (2048, -2)]
    kernels = {
        m: row(result, **{"workloads.load.m": m, "settings.v1.0.streams.s.priority": 0})[
            "kernel_median_us"
        ]
        for m in (1024, 2048)
    }
    assert kernels[1024] < kernels[2048]


@pytest.mark.parametrize(
    ("values", "kept", "kind"),
    [
        (np.array([16, 24]), [16, 24], pa.int64()),
        (range(16, 33, 16), [16, 32], pa.int64()),
        ([16, "rest"], ["16", "rest"], pa.string()),
    ],
)
def test_values_can_be_of_many_kinds(gpu, values, kept, kind):
    result = gs.search.sweep(described(), {"partitions.small": values}, gpu)
    assert result.table.schema.field(0).type == kind
    assert points(result) == [(one,) for one in kept]


def test_a_float_parameter(gpu):
    result = gs.search.sweep(described(), {"workloads.fast.duration_us": [1, 2.5]}, gpu)
    assert points(result) == [(1.0,), (2.5,)]


def test_a_count_that_cannot_be_granted_is_a_row_with_its_error(gpu):
    result = gs.search.sweep(described(), {"partitions.small": [8, 7, 132, 16]}, gpu)
    assert points(result) == [(8,), (7,), (132,), (16,)]
    bad = [one for one in result.rows() if one["error"]]
    assert [one["partitions.small"] for one in bad] == [7, 132]
    assert "8 above" in bad[0]["error"]
    assert "nothing is left" in bad[1]["error"]
    assert {one[name] for one in bad for name in COLUMNS} == {None}
    assert not result.stopped


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"partitions.x": [8]}, r"partitions\.x: no setting carves .* 'small', 'load'"),
        ({"workloads.load.q": [8]}, r"workloads\.load\.q: workloads\.load has no 'q'; .*'m', 'n'"),
        ({"workloads.q.m": [8]}, r"workloads has no 'q\.m'; there are: 'fast', 'load'"),
        ({"bogus": [8]}, r"bogus: the experiment has no 'bogus'; there are: 'name', 'seed'"),
        ({"rounds.x": [8]}, r"the experiment has no 'rounds\.x'"),
        ({"workloads.load": [8]}, r"workloads\.load: this is a table; name a field in it: 'str"),
        ({"workloads.load.m": [8, 0]}, r"at workloads\.load\.m = 0: .*\n.*greater than 0"),
        ({"workloads.fast.stream": ["q"]}, "'q' is no stream"),
        ({"workloads.load.m": []}, "found none"),
        ({"workloads.load.m": "12"}, "a list, not '12'"),
        ({"workloads.load.m": 12}, "a list, not 12"),
        ({"workloads.load.m": [None]}, "found None"),
        ({"settings.v1.0.partitions": [{"small": 8}]}, "numbers or texts"),
        ({}, "name at least one"),
        ([8], "name at least one"),
    ],
)
def test_parameters_that_cannot_be_are_refused_before_anything_runs(gpu, parameters, text):
    before_ns = gpu.now_ns()
    with pytest.raises(gs.errors.InvalidExperiment, match=text):
        gs.search.sweep(described(), parameters, gpu)
    assert gpu.now_ns() == before_ns


def test_a_python_workloads_arguments_can_be_varied():
    experiment = gs.experiments.Experiment.from_dict(
        {
            "name": "n",
            "streams": {"s": {}},
            "workloads": {"w": {"kind": "python:a.b:c", "args": {"x": 1}, "stream": "s"}},
        }
    )
    with pytest.raises(gs.errors.InvalidExperiment, match=r"w\.args has no 'y'; there are: 'x'"):
        gs.search.sweep(experiment, {"workloads.w.args.y": [1]}, "sim:h200")


def test_the_function_is_there_whatever_was_imported():
    module = importlib.import_module("gpuscope.search.sweeps")
    assert gs.search.sweep is module.sweep
    assert callable(gs.search.sweep)


# -- progress and ending early ------------------------------------------------------------


def test_the_viewer_sees_one_progress_over_the_sweep(gpu):
    seen = []
    gs.search.sweep(described(), {"partitions.small": [8, 16]}, gpu, viewer=seen.append)
    together = [one for one in seen if one.phase == "together"]
    assert [one.done for one in together] == list(range(1, 13))
    assert {one.total for one in seen} == {12}
    assert list(dict.fromkeys(one.setting for one in together)) == [
        "partitions.small = 8: plain", "partitions.small = 8: v1.0",
        "partitions.small = 16: v1.0",
    ]  # fmt: skip


def stop_at(setting, then):
    def viewer(progress):
        if progress.setting == setting and progress.phase == "together":
            then()

    return viewer


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("how", ["stop", "ctrl-c"])
def test_ending_early_keeps_what_was_measured_and_says_what_is_partial(gpu, how, tmp_path):
    stop = threading.Event()
    end = stop.set if how == "stop" else interrupt
    viewer = stop_at("partitions.small = 16: v1.0", end)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        result = gs.search.sweep(
            described(), {"partitions.small": [8, 16, 24]}, gpu,
            path=tmp_path, viewer=viewer, stop=stop,
        )  # fmt: skip
    assert result.stopped
    assert points(result) == [(8,), (16,)]
    errors = {one["partitions.small"]: one["error"] for one in result.rows()}
    assert errors[8] is None
    assert errors[16].startswith("stopped early")
    assert row(result, "fast", "plain")["kernels"] == 4
    assert kept_points(tmp_path) == [0], "what is partial is measured again"
    assert load_sweep(tmp_path).table.equals(result.table)


@pytest.mark.parametrize("method", ["make_partitions", "make_stream", "matmul", "close_stream"])
def test_ctrl_c_anywhere_in_the_second_point_keeps_the_first(gpu, monkeypatch, method):
    real = getattr(gpu.backend, method)
    calls = [0]

    def maybe(*args, **kwargs):
        calls[0] += 1
        if calls[0] == at:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(gpu.backend, method, maybe)
    at = -1
    experiment = described(alone_repeats=0)
    del experiment["settings"]["plain"]
    gs.search.sweep(experiment, {"partitions.small": [8]}, gpu)
    first = calls[0]
    gs.search.sweep(experiment, {"partitions.small": [8]}, gpu)
    each = calls[0] - first
    for offset in sorted({1, each // 2, each}):
        calls[0], at = 0, each + max(1, offset)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            result = gs.search.sweep(experiment, {"partitions.small": [8, 16]}, gpu)
        assert (8,) in points(result)
        assert row(result, **{"partitions.small": 8})["error"] is None
        assert result.stopped


def test_stopped_before_anything_is_an_error(gpu):
    stop = threading.Event()
    stop.set()
    with pytest.raises(gs.errors.GpuscopeError, match="stopped before anything"):
        gs.search.sweep(described(), {"partitions.small": [8]}, gpu, stop=stop)


# -- the folder ---------------------------------------------------------------------------

SIZES = {"partitions.small": [8, 7, 24]}


def kept(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def lines_of(folder):
    """Return the lines of its table."""
    return (folder / POINTS).read_bytes().splitlines(keepends=True)


def number_of(line):
    """Return the number of the point that a line is of, if it is of any."""
    return json.loads(line).get("point", {}).get("number")


def forget(folder, number):
    """Take a point away."""
    left = [line for line in lines_of(folder) if number_of(line) != number]
    (folder / POINTS).write_bytes(b"".join(left))


def test_a_second_call_skips_what_is_finished(gpu, tmp_path):
    folder = tmp_path / "new" / "sweep"
    whole = gs.search.sweep(described(), SIZES, gpu, path=folder)
    assert kept_points(folder) == [0, 1, 2]
    told = []
    again = gs.search.sweep(described(), SIZES, gpu, path=folder, viewer=told.append)
    assert told == [], "nothing was run again"
    assert again.table.equals(whole.table)
    assert (again.parameters, again.provenance) == (whole.parameters, whole.provenance)
    forget(folder, 2)
    some = gs.search.sweep(described(), SIZES, gpu, path=folder, viewer=told.append)
    assert {one.setting for one in told if one.phase == "together"} == {
        "partitions.small = 24: v1.0",
    }
    assert points(some) == points(whole)


def test_an_interrupted_sweep_is_finished_by_the_same_call(gpu, tmp_path):
    stop = threading.Event()
    viewer = stop_at("partitions.small = 24: plain", stop.set)
    gs.search.sweep(described(), SIZES, gpu, path=tmp_path, viewer=viewer, stop=stop)
    other = gs.open_device("sim:h200", quiet=True)
    result = gs.search.sweep(described(), SIZES, other, path=tmp_path)
    expected = gs.search.sweep(described(), SIZES, gs.open_device("sim:h200", quiet=True))
    assert result.table.equals(expected.table)
    assert not result.stopped


def test_a_sweep_is_read_back(gpu, tmp_path):
    made = gs.search.sweep(described(), SIZES, gpu, path=tmp_path)
    read = load_sweep(tmp_path)
    assert read.table.equals(made.table)
    assert (read.experiment, read.parameters) == (made.experiment, made.parameters)
    assert (read.stopped, read.provenance) == (made.stopped, made.provenance)
    forget(tmp_path, 0)
    assert load_sweep(tmp_path).stopped


def test_a_line_says_what_was_asked_and_one_of_each_point_what_came_of_it(gpu, tmp_path):
    made = gs.search.sweep(described(), SIZES, gpu, path=tmp_path)
    (first, *points) = map(json.loads, lines_of(tmp_path))
    assert first["asked"]["experiment"] == made.experiment
    assert {line["table"] for line in (first, *points)} == {"point"}
    numbered = [line["point"] for line in points]
    assert [point["state"] for point in numbered] == ["measured", "refused", "measured"]
    assert [row["kernels"] for point in numbered for row in point["rows"] if "kernels" in row] == [
        kernels for kernels in made.table["kernels"].to_pylist() if kernels is not None
    ]
    assert "SIMULATED" in numbered[0]["provenance"]
    assert [point.get("gpu") for point in numbered] == ["SIM-h200", None, "SIM-h200"]
    assert "8 above" in numbered[1]["error"]


def test_a_column_that_an_older_version_did_not_know_is_null(gpu, tmp_path):
    made = gs.search.sweep(described(), SIZES, gpu, path=tmp_path)
    lines = [json.loads(line) for line in lines_of(tmp_path)]
    for row in (row for line in lines for row in line.get("point", {}).get("rows", [])):
        row.pop("gain", None)
        row["of a newer version"] = 1
    (tmp_path / POINTS).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    told = []
    again = gs.search.sweep(described(), SIZES, gpu, path=tmp_path, viewer=told.append)
    assert told == [], "nothing was run again"
    without = [name for name in made.table.column_names if name != "gain"]
    assert again.table.select(without).equals(made.table.select(without))
    assert again.table["gain"].null_count == len(made.table)


def test_columns_and_points_are_selected(gpu, tmp_path):
    made = gs.search.sweep(described(), SIZES, gpu, path=tmp_path)
    read = load_sweep(tmp_path)
    rates = read.select(["tflop_per_s", "setting"])
    assert rates.equals(made.table.select(["tflop_per_s", "setting"]))
    some = read.select(["kernels"], {"partitions.small": [24, 8]})
    assert some.num_rows == 4
    assert read.select(["kernels"], {"partitions.small": 24}).num_rows == 2
    assert read.table.equals(made.table)
    with pytest.raises(gs.errors.NotFound, match=r"no column 'x'; there are: partitions\.small"):
        read.select(["x"])
    with pytest.raises(gs.errors.NotFound, match="'gpu' was not varied"):
        read.select(["gpu"], {"gpu": "x"})


def test_a_point_that_is_there_twice_counts_once(gpu, tmp_path):
    made = gs.search.sweep(described(), SIZES, gpu, path=tmp_path)
    (tmp_path / POINTS).write_bytes(b"".join(lines_of(tmp_path) * 2))
    assert load_sweep(tmp_path).table.equals(made.table)
    assert gs.search.sweep(described(), SIZES, gpu, path=tmp_path).table.equals(made.table)


def test_of_points_of_a_number_the_first_that_is_finished_counts(gpu):
    facts = PointTable("point", as_experiment(described()), SIZES, gpu.info, None).facts
    states = ["stopped", "lost", "measured", "stopped", "measured"]
    points = [MeasuredPoint(0, state, [{"kernels": n}]) for n, state in enumerate(states)]
    counted = [SavedPoints(facts, points[:n]).by_number[0].rows[0]["kernels"] for n in (1, 2, 3, 5)]
    assert counted == [0, 1, 2, 2]


def test_points_are_there_at_once_and_a_killed_process_loses_at_most_the_last(tmp_path):
    code = """
import os, sys, gpuscope as gs
from test_sweep import SIZES, described
def kill(progress):
    if progress.setting.startswith("partitions.small = 24"):
        os.kill(os.getpid(), 9)
gs.search.sweep(described(), SIZES, "sim:h200", path=sys.argv[1], viewer=kill)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=env, check=False)
    assert ended.returncode == -9
    (file,) = tmp_path.iterdir()
    assert points(load_sweep(tmp_path)) == [(8,), (7,)]
    file.write_bytes(file.read_bytes()[:-9])  # it died while it wrote
    assert points(load_sweep(tmp_path)) == [(8,)]
    gpu = gs.open_device("sim:h200", quiet=True)
    whole = gs.search.sweep(described(), SIZES, gpu, path=tmp_path)
    assert kept_points(tmp_path) == [0, 1, 2]
    assert whole.table.equals(gs.search.sweep(described(), SIZES, "sim:h200").table)


def test_who_writes_at_once_writes_whole_lines(gpu, tmp_path):
    rows = [{"kernels": n, "workload": "w" * 5000} for n in range(4)]

    def write(first):
        table = PointTable("point", as_experiment(described()), SIZES, gpu.info, tmp_path)
        for number in range(first, first + 50):
            table.add(MeasuredPoint(number, "measured", rows))

    writers = [threading.Thread(target=write, args=(50 * n,)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(kept_points(tmp_path)) == [*range(200)]


def test_another_sweep_that_began_meanwhile_is_refused(gpu, tmp_path):
    ours = PointTable("point", as_experiment(described()), SIZES, gpu.info, tmp_path)
    theirs = PointTable(
        "point", as_experiment(described()), {**SIZES, "seed": [1]}, gpu.info, tmp_path
    )
    ours.add(MeasuredPoint(0, "measured", [{"kernels": 1}]))
    with pytest.raises(gs.errors.GpuscopeError, match="holds another sweep"):
        theirs.add(MeasuredPoint(0, "measured", [{"kernels": 2}]))
    ours.add(MeasuredPoint(1, "measured", [{"kernels": 1}]))
    assert kept_points(tmp_path) == [0, 1]


def test_without_locks_nothing_of_another_process_is_taken_away(gpu, tmp_path, monkeypatch):
    measured = gs.search.sweep(described(), SIZES, gpu, path=tmp_path)
    asked, first, second, *_ = lines_of(tmp_path)
    (tmp_path / POINTS).write_bytes(asked + first + second[:50])  # another process writes
    monkeypatch.setattr(_locks, "lock", lambda _: False)
    with pytest.warns(UserWarning, match="1 of 6 lines"):
        again = gs.search.sweep(described(), SIZES, gpu, path=tmp_path)
    assert (tmp_path / POINTS).read_bytes().startswith(asked + first + second[:50] + b"\n")
    assert again.table.equals(measured.table)


def test_a_last_line_without_an_end_counts_and_stays(gpu, tmp_path):
    gs.search.sweep(described(), SIZES, gpu, path=tmp_path)
    *lines, _ = lines_of(tmp_path)
    (tmp_path / POINTS).write_bytes(b"".join(lines).removesuffix(b"\n"))
    assert load_sweep(tmp_path).unmeasured == 1
    gs.search.sweep(described(), SIZES, gpu, path=tmp_path)
    assert lines_of(tmp_path)[:-1][: len(lines)] == lines
    assert kept_points(tmp_path) == [0, 1, 2]


def test_a_folder_holds_points_of_the_table_that_is_named(gpu, tmp_path):
    gs.search.sweep(described(), SIZES, gpu, path=tmp_path)
    assert holds_points(tmp_path, "point")
    assert not holds_points(tmp_path, "turn")


def test_a_point_of_another_process_counts(gpu, tmp_path):
    measured = gs.search.sweep(described(), SIZES, gpu, path=tmp_path / "one")
    plan = as_experiment(described())
    other = PointTable("point", plan, SIZES, gpu.info, tmp_path / "two")
    rows = [row for row in measured.rows() if row["partitions.small"] == 8]
    other.add(MeasuredPoint(0, "measured", rows))
    told = []
    shard = gs.search.sweep(described(), SIZES, gpu, path=tmp_path / "two", viewer=told.append)
    assert {one.setting.split(":")[0] for one in told} == {"partitions.small = 24"}
    assert points(shard) == [(8,), (7,), (24,)]
    other.add(MeasuredPoint(1, "measured", rows))
    assert kept_points(tmp_path / "two") == [0, 1, 2, 1]


@pytest.mark.parametrize(
    ("changed", "parameters", "text"),
    [
        ({"rounds": 2}, SIZES, r"experiment\.rounds is 1 there, 2 now"),
        ({"alone_repeats": 3, "seed": 4, "rounds": 2, "name": "x"}, SIZES, "and 1 more"),
        ({}, {"partitions.small": [8]}, r"parameters\.partitions\.small is \[8, 7, 24\] there"),
        ({}, {"seed": [1]}, r"parameters\.seed is None there, \[1\] now"),
    ],
)
def test_a_folder_of_another_sweep_is_refused_and_stays(gpu, tmp_path, changed, parameters, text):
    gs.search.sweep(described(), SIZES, gpu, path=tmp_path)
    before = kept(tmp_path)
    with pytest.raises(gs.errors.GpuscopeError, match=text):
        gs.search.sweep(described(**changed), parameters, gpu, path=tmp_path)
    assert kept(tmp_path) == before


def test_the_order_of_parameters_is_part_of_a_sweep(gpu, tmp_path):
    varied = {"seed": [1, 2], "partitions.small": [8, 16]}
    gs.search.sweep(described(), varied, gpu, path=tmp_path)
    with pytest.raises(gs.errors.GpuscopeError, match="order is"):
        gs.search.sweep(described(), dict(reversed(varied.items())), gpu, path=tmp_path)


def test_another_device_is_refused(gpu, tmp_path, monkeypatch):
    gs.search.sweep(described(), SIZES, gpu, path=tmp_path)
    other = gs.open_device("sim:h200", quiet=True)
    monkeypatch.setattr(other, "info", type(other.info)(**{**vars(other.info), "name": "Other"}))
    with pytest.raises(
        gs.errors.GpuscopeError, match=r"device\.name is 'NVIDIA .*' there, 'Other' now"
    ):
        gs.search.sweep(described(), SIZES, other, path=tmp_path)


@pytest.mark.parametrize("damage", ["no JSON", "a point of no kind", "no UTF-8"])
def test_a_damaged_line_is_said_and_its_point_measured_again(gpu, tmp_path, damage):
    measured = gs.search.sweep(described(), SIZES, gpu, path=tmp_path)
    asked, first, *rest = lines_of(tmp_path)
    bad = {
        "no JSON": first[:20] + first[30:],
        "a point of no kind": b'{"table": "point", "point": {"number": "x"}}\n',
        "no UTF-8": b"\xff" + first,
    }[damage]
    (tmp_path / POINTS).write_bytes(b"".join([asked, bad, *rest]))
    with pytest.warns(UserWarning, match=r"1 of 4 lines of 'points\.jsonl' .* cannot be read"):
        whole = gs.search.sweep(described(), SIZES, gpu, path=tmp_path)
    assert points(whole) == [(8,), (7,), (24,)]
    assert lines_of(tmp_path)[1] == bad, "it stays"
    assert len(measured.table) == len(whole.table)


def test_points_outside_the_grid_are_refused(gpu, tmp_path):
    gs.search.sweep(described(), SIZES, gpu, path=tmp_path)
    text = (tmp_path / POINTS).read_text().replace('"number":2', '"number":7')
    (tmp_path / POINTS).write_text(text)
    for use in (
        lambda: load_sweep(tmp_path),
        lambda: gs.search.sweep(described(), SIZES, gpu, path=tmp_path),
    ):
        with pytest.raises(gs.errors.GpuscopeError, match="point 7, but the grid"):
            use()


def test_a_disk_that_fills_up_keeps_what_is_there_and_says_so(gpu, tmp_path):
    whole = gs.search.sweep(described(), SIZES, gpu, path=tmp_path / "whole")
    asked, first, *_ = lines_of(tmp_path / "whole")
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    room = len(asked) + len(first) + 50
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, unlimited[1]))
        with pytest.raises(gs.errors.GpuscopeError, match=r"cannot save point 1 .*No space left"):
            gs.search.sweep(described(), SIZES, gpu, path=tmp_path / "full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert [number_of(line) for line in lines_of(tmp_path / "full")] == [None, 0]
    assert points(load_sweep(tmp_path / "full")) == [(8,)]
    again = gs.search.sweep(described(), SIZES, gpu, path=tmp_path / "full")
    assert points(again) == points(whole)


def test_a_file_that_is_no_table_is_named(gpu, tmp_path):
    one = {"partitions.small": [8]}
    gs.search.sweep(described(), one, gpu, path=tmp_path)
    asked, point = lines_of(tmp_path)
    text = json.loads(point)
    text["point"]["rows"][0]["kernels"] = "many"
    for bad in (b"x\n", point, asked * 2 + json.dumps(text).encode() + b"\n"):
        (tmp_path / POINTS).write_bytes(bad)
        with pytest.raises(gs.errors.GpuscopeError, match=POINTS):
            gs.search.sweep(described(), one, gpu, path=tmp_path)
        with pytest.raises(gs.errors.GpuscopeError, match=POINTS):
            load_sweep(tmp_path)
        assert (tmp_path / POINTS).read_bytes() == bad


def test_folders_that_cannot_be(gpu, tmp_path):
    with pytest.raises(gs.errors.GpuscopeError, match="no point of a sweep in 'nowhere'"):
        load_sweep(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(gs.errors.GpuscopeError, match="cannot make the folder 'file'"):
        gs.search.sweep(described(), SIZES, gpu, path=tmp_path / "file")


def test_a_point_that_cannot_be_saved_is_an_error(gpu, tmp_path):
    (tmp_path / POINTS).mkdir()
    with pytest.raises(gs.errors.GpuscopeError, match=POINTS):
        gs.search.sweep(described(), SIZES, gpu, path=tmp_path)
    (tmp_path / POINTS).rmdir()
    (tmp_path / POINTS).symlink_to(tmp_path / "no" / "folder")
    with pytest.raises(gs.errors.GpuscopeError, match=r"cannot save point 0"):
        gs.search.sweep(described(), SIZES, gpu, path=tmp_path)


# -- drawn --------------------------------------------------------------------------------


def made(rows, parameters=("partitions.small",), interval_of="latency_p50_us", **facts):
    """Build a result: (values, setting, SMs, p99, low, high, share, error).

    Its rounds differ by about half of the interval.
    """
    table, samples = [], []
    noise = np.random.default_rng(1)
    for values, setting, sms, p99, low, high, share, error in rows:
        point = dict(zip(parameters, values, strict=True))
        common = {"setting": setting, "partition": sms and "p", "sms": sms, "error": error}
        fast = {"latency_p50_us": p99, "latency_p99_us": p99, "latency_n": 1000}
        fast |= {"low": low, "high": high, "interval_of": interval_of}
        table.append({**point, **common, "workload": "load", "share_of_alone_on_whole_gpu": share})
        table.append({**point, **common, "workload": "fast", **fast})
        shares = [] if high is None else np.exp(high / 2 * noise.normal(size=5)).tolist()
        columns = ("latency_p50_us", "latency_p99_us", "goodput_per_s") if shares else ()
        samples += [{"samples": None}, {"samples": [(column, shares) for column in columns]}]
    schema = pa.schema(
        [*((name, pa.int64()) for name in parameters), *COLUMNS.items(), ("error", pa.string())]
    )
    values = {name: tuple({row[0][i] for row in rows}) for i, name in enumerate(parameters)}
    described = {"name": "e", "workloads": {"load": {"background": True}, "fast": {}}}
    facts = {"stopped": False, "provenance": "measured on GPU", "experiment": described, **facts}
    table = pa.Table.from_pylist(table, schema=schema)
    hidden = pa.Table.from_pylist([{"unit": "round", **row} for row in samples], SAMPLES)
    for name in SAMPLES.names:
        table = table.append_column(name, hidden[name])
    return SweepResult(points=table, parameters=values, **facts)


SAMPLES = pa.schema({"unit": pa.string(), "samples": pa.map_(pa.string(), pa.list_(pa.float64()))})
ROWS = [
    ((None,), "plain", None, 900.0, -0.05, 0.05, 0.99, None),
    *(
        ((sms,), "carved", sms, p99, -0.1, 0.1, kept, None)
        for sms, p99, kept in ((8, 400.0, 0.9), (48, 102, 0.7), (56, 100, 0.6), (64, 101, 0.5))
    ),
    ((7,), None, None, None, None, None, None, "cannot give 7. Ask for 8"),
]
RESULT = made(ROWS, is_simulated=True)


def marks_of(figure, panel):
    """Look of each mark of a panel, its place and its value."""
    (at,) = (
        at for at, each in enumerate(figure.layout.annotations) if each.text == f"<b>{panel}</b>"
    )
    axis = f"y{at + 1 if at else ''}"
    return {
        x: (one.name, y)
        for one in figure.data
        if one.yaxis == axis
        for x, y in zip(one.x, one.y, strict=True)
    }


def test_of_equals_the_fewest_sms_for_the_workload_are_taken():
    (choice,) = choices(RESULT)
    assert (choice.workload, choice.column) == ("fast", "latency_p50_us")
    assert choice.taken.label == "small = 48"
    assert [option.label for option in choice.ties] == ["small = 48", "small = 56", "small = 64"]
    assert choice.reference.label == "plain"
    assert choice.kept(choice.taken) == {"load": 0.7}
    take, ties = told(RESULT)
    assert (take.rule, take.subject["choice"]) == ("take", "small = 48")
    assert take.subject["reference"] == "'plain'"
    assert take.subject["cost"] == "load keeps 70 % of its rate alone"
    assert (take["mean"].value, take["by"].value) == (102, 102 / 900 - 1)
    assert str(take["by"]) in take.text
    assert (ties.rule, ties.subject["equals"]) == ("take.ties", ["small = 56", "small = 64"])


def test_rows_that_do_not_say_what_their_interval_is_of_have_none():
    (choice,) = choices(made(ROWS, interval_of=None, is_simulated=True))
    assert (choice.column, choice.taken.label) == ("latency_p50_us", "small = 48")
    assert choice.value(choice.taken) == (102, -np.inf, np.inf)


def test_what_noise_hides_is_not_recommended():
    rows = [
        ((None,), "plain", None, 120.0, -0.3, 0.3, 0.99, None),
        ((8,), "carved", 8, 100.0, -0.3, 0.3, 0.95, None),
        ((16,), "carved", 16, 110.0, -0.3, 0.3, 0.9, None),
    ]
    for several in (rows, rows[1:]):
        result = made(several, is_simulated=True)
        (choice,) = choices(result)
        assert (choice.taken, choice.best.label) == (None, "small = 8")
        (finding,) = told(result)
        assert (finding.rule, finding.subject["best"]) == ("take.none", "small = 8")
        assert finding["rounds"].value == 4
        assert not figures.swept(result).layout.shapes


def test_points_that_cannot_be_run_are_said_first(gpu):
    one = {
        "name": "one", "alone_repeats": 0, "partitions": {"a": 8},
        "streams": {"s": {"partition": "a"}},
        "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2}},
    }  # fmt: skip
    result = gs.search.sweep(one, {"partitions.a": [8, 131, 16, 129]}, gpu)
    assert (result.refused, result.unmeasured, result.stopped) == (2, 0, False)
    first, *_ = told(result)
    assert (first.rule, first["refused"].value) == ("swept.refused", 2)
    assert first.subject["reason"] == result.why_refused
    assert "131" in result.why_refused


def test_what_a_point_makes_worse_stands_in_its_headline():
    result = made(ROWS, is_simulated=True)
    rows = result.table.to_pylist()
    for row in rows:
        if row["workload"] == "fast" and row["partitions.small"] is not None:
            row["latency_p99_us"] = 2000.0
    vars(result)["table"] = pa.Table.from_pylist(rows, schema=result.table.schema)
    (choice,) = choices(result)
    (lost,) = choice.lost(choice.taken)
    assert (lost.column, lost.before, lost.after) == ("latency_p99_us", 900, 2000)
    take, _ = told(result)
    assert "worse: fast's p99" in take.subject["cost"]
    assert "load keeps 70 %" in take.subject["cost"]


def test_an_interval_is_wider_by_how_much_repeats_differ():
    (choice,) = choices(RESULT)
    more = 1 + repeats("latency_p50_us", is_simulated=True)
    value, least, most = choice.value(choice.taken)
    assert (least, value, most) == pytest.approx((102 * 0.9 / more, 102, 102 * 1.1 * more))


def test_the_choice_is_drawn_with_its_intervals_and_what_it_costs():
    figure = figures.swept(RESULT)
    (choice,) = choices(RESULT)
    looks = {"plain": "worse", "8": "worse"} | dict.fromkeys(
        ("48", "56", "64"), "not told from the best"
    )
    told_us = marks_of(figure, "fast: latency p50 (µs)")
    names = ["plain", "8", "48", "56", "64"]
    expected = zip(names, choice.options, strict=True)
    assert told_us == {name: (looks[name], choice.value(o)[0]) for name, o in expected}
    kept = marks_of(figure, "load keeps of its rate alone (%)")
    shares = dict(zip(names, (99, 90, 70, 60, 50), strict=True))
    assert {name: y for name, (_, y) in kept.items()} == pytest.approx(shares)
    assert list(figure.layout.xaxis.categoryarray) == names
    (band,) = figure.layout.shapes
    assert (band.x0 + band.x1) / 2 == names.index("48")
    tied = next(one for one in figure.data if one.name == "not told from the best")
    _, low, high = choice.value(choice.taken)
    assert tied.y[0] - tied.error_y.arrayminus[0] == pytest.approx(low)
    assert tied.y[0] + tied.error_y.array[0] == pytest.approx(high)
    said = f"{figure.layout.title.text} {figure.layout.title.subtitle.text}"
    assert "not drawn: partitions.small = 7, cannot give 7" in said
    assert "(SIMULATED)" in said


def test_settings_of_one_point_have_names_of_their_own():
    rows = [((8,), name, 8, 100.0, -0.1, 0.1, 0.9, None) for name in ("one", "two")]
    (choice,) = choices(made(rows, is_simulated=True))
    assert [option.label for option in choice.options] == ["small = 8, one", "small = 8, two"]
    assert list(marks_of(figures.swept(made(rows)), "fast: latency p50 (µs)")) == [
        "8, one",
        "8, two",
    ]


def test_nothing_is_surely_less_than_something():
    result = made(ROWS)
    rows = result.table.to_pylist()
    for row in rows:
        if row["workload"] == "fast" and row["error"] is None:
            of = {"latency_p50_us": None, "latency_p99_us": None, "latency_n": None}
            none = row["partitions.small"] in (None, 8)
            known = {"goodput_per_s": 0.0, "low": None, "high": None}
            row["interval_of"] = "goodput_per_s"
            row |= {**of, **(known if none else {"goodput_per_s": 9.0, "requests_n": 10})}
    vars(result)["table"] = pa.Table.from_pylist(rows, schema=result.table.schema)
    (choice,) = choices(result)
    assert (choice.column, choice.taken.label) == ("goodput_per_s", "small = 48")
    assert [option.label for option in choice.ties] == ["small = 48", "small = 56", "small = 64"]
    assert "reference" not in next(iter(told(result))).subject


def test_requests_whose_tokens_are_nearly_all_of_one_are_swept(gpu, tmp_path):
    spin = {"kind": "spin", "duration_us": 10, "stream": "s"}
    served = {
        "kind": "requests", "prefill": "p", "decode": "d", "repeats": 8, "batch": 1,
        "arrival": "fixed", "rate_hz": 500, "output_tokens": [1, 1, 1, 1, 1, 1, 1, 6],
        "slo": {"ttft_ms": 2.5, "tbt_ms": 1.0},
    }  # fmt: skip
    plan = {"name": "e", "alone_repeats": 0, "streams": {"s": {}},
            "workloads": {"p": spin, "d": spin, "chat": served}}  # fmt: skip
    result = gs.search.sweep(plan, {"workloads.p.duration_us": [10, 20]}, gpu, path=tmp_path)
    assert load_sweep(tmp_path).table.equals(result.table)
    samples = result.points["samples"].to_pylist()
    assert {column for of_row in samples for column, _ in of_row or ()} >= {"ttft_p50_ms"}
    assert not any("tbt" in column for of_row in samples for column, _ in of_row or ())


def test_a_column_whose_rounds_are_known_decides(gpu):
    with_rates = RESULT.points
    at = with_rates.schema.get_field_index("bus_gb_per_s")
    rates = pa.array([float(n) for n in range(len(with_rates))])
    points = with_rates.set_column(at, "bus_gb_per_s", rates)
    rows = {"points": points, "parameters": RESULT.parameters, "experiment": RESULT.experiment}
    (choice,) = choices(SweepResult(stopped=False, provenance="p", **rows))
    assert choice.column == "latency_p50_us"
    assert choice.taken is not None


def test_what_rounds_gave_is_kept_in_the_folder(gpu, tmp_path):
    one = {
        "name": "one", "alone_repeats": 0, "rounds": 3, "partitions": {"a": 8},
        "streams": {"s": {"partition": "a"}},
        "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 9}},
    }  # fmt: skip
    (now,) = choices(gs.search.sweep(one, {"partitions.a": [8, 16]}, gpu, path=tmp_path))
    (loaded,) = choices(gs.search.load_sweep(tmp_path))
    measured = [option.measured for option in now.options]
    assert measured == [option.measured for option in loaded.options]
    assert {gave.unit for gave in measured} == {"round"}
    assert all(len(gave.samples["w", "latency_p50_us"]) == 3 for gave in measured)


def test_points_with_other_work_do_not_compete():
    result = made(
        [
            ((8, 1024), "carved", 8, 10.0, -0.1, 0.1, 0.9, None),
            ((8, 4096), "carved", 8, 900.0, -0.1, 0.1, 0.8, None),
            ((16, 4096), "carved", 16, 400.0, -0.1, 0.1, 0.7, None),
            ((None, 4096), "plain", None, 990.0, -0.1, 0.1, 1.0, None),
        ],
        ("partitions.small", "workloads.load.m"),
        is_simulated=True,
    )
    alone, several = choices(result)
    assert (len(alone.options), alone.taken) == (1, None)
    assert several.taken.label == "small = 16, load.m = 4,096"
    assert [finding.rule for finding in told(result)] == ["take"]


def test_without_an_interval_the_best_and_the_worst_are_told():
    result = made([(*row[:4], None, None, *row[6:]) for row in ROWS])
    (finding,) = told(result)
    assert finding.rule == "swept"
    assert (finding.subject["best"], finding.subject["worst"]) == ("small = 56", "plain")
    assert {one.name for one in figures.swept(result).data} == {"measured"}


def test_what_was_stopped_is_said_and_partial_points_are_left_out():
    rows = [
        *ROWS[:2],
        ((16,), "carved", 16, 30.0, -0.1, 0.1, 0.8, "stopped early: fewer calls than planned"),
    ]
    figure = figures.swept(made(rows, stopped=True))
    assert set(marks_of(figure, "fast: latency p50 (µs)")) == {"plain", "8"}
    assert "stopped early: not every point is here" in figure.layout.title.subtitle.text


def test_without_a_number_nothing_is_drawn():
    with pytest.raises(gs.errors.MissingEvidence, match="cannot give 7"):
        figures.swept(made(ROWS[-1:]))
    with pytest.raises(gs.errors.MissingEvidence, match="no point has a number"):
        figures.swept(RESULT, "absent")


def test_foreign_names_are_harmless():
    rows = [((8,), EVIL, 8, 40.0, -0.1, 0.1, 0.9, None), ((9,), EVIL, 9, 1.0, 0, 0, 0.9, EVIL)]
    text = figures.swept(made(rows, (EVIL,), provenance=EVIL)).to_json()
    for raw in ("<script", "\u202e", "\\u202e", "$"):
        assert raw not in text
    assert json.loads(text)


# -- the example --------------------------------------------------------------------------


@pytest.mark.no_cover
def test_the_example_can_be_swept_and_drawn(gpu):
    plan = gs.experiments.Experiment.from_file(EXAMPLES / "choose_a_partition.toml").to_dict()
    assert sum(w["repeats"] for w in plan["workloads"].values() if not w["background"]) >= 1000
    plan["workloads"]["small"]["repeats"] = 60
    plan["rounds"] = 1
    result = gs.search.sweep(plan, {"partitions.small": [8, 16, 64]}, gpu)
    assert {one["setting"] for one in result.rows()} == {"no partition", "carved"}
    figure = figures.swept(result)
    p50 = marks_of(figure, "small: latency p50 (µs)")
    assert list(figure.layout.xaxis.categoryarray) == ["no partition", "8", "16", "64"]
    assert p50["64"][1] < 1.05 * p50["8"][1], "more SMs, no more latency: the host takes most"
    kept = marks_of(figure, "load keeps of its rate alone (%)")
    assert kept["64"][1] < min(kept["8"][1], kept["16"][1]), "and less left for the load"
    assert p50["no partition"][1] > max(p50[sms][1] for sms in ("8", "16", "64"))


@pytest.mark.no_cover
def test_the_example_as_it_is_takes_less_than_30_simulated_seconds(gpu):
    before_ns = gpu.now_ns()
    result = gs.search.sweep(EXAMPLES / "choose_a_partition.toml", {"partitions.small": [16]}, gpu)
    assert (gpu.now_ns() - before_ns) * 6 < 30e9, "the six points that its header names"
    assert row(result, "small", "carved")["latency_p99_us"] is not None
