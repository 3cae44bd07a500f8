"""What users have still opens: files of a former commit, written by write.py beside them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import nbformat
import pytest
from kept_points import kept_points
from typer.testing import CliRunner

import gpuscope as gs
from gpuscope.cli.commands import app
from gpuscope.comparing.choice import swept
from gpuscope.search.sweeps import load_sweep
from gpuscope.trace.merging import split

BEFORE = Path(__file__).resolve().parents[2] / "data" / "before"
EXPERIMENT = BEFORE / "experiment.toml"
SIZES = {"partitions.small": [8, 16, 24]}
TRACES = sorted(
    path for path in BEFORE.rglob("*.parquet") if path.parent.name not in ("sweep", "tune")
)


def run(*arguments: object) -> str:
    """Run a command of gpuscope's; returns what it printed."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def folder(tmp_path):
    """Return a copy of all of it."""
    return Path(shutil.copytree(BEFORE, tmp_path / "before"))


def test_there_is_one_of_each():
    assert len(TRACES) == 5
    assert len(kept_points(BEFORE / "tune", "turn")) > 0
    assert list((BEFORE / "sweep").glob("*.arrows")), "of a sweep that was killed"
    assert sum(path.stat().st_size for path in BEFORE.rglob("*")) < 1_500_000


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_a_trace_is_read_analysed_drawn_and_written(path, tmp_path):
    trace = gs.load_trace(path)
    assert trace.is_simulated
    assert trace.metadata.complete
    assert trace.kind_counts()["kernel"] >= 1
    assert json.loads(run("summary", path, "--json"))
    run("view", path, "--out", tmp_path / "report.html")
    assert "<svg" in (tmp_path / "report.html").read_text() or (
        "plotly" in (tmp_path / "report.html").read_text().lower()
    )
    assert gs.figures.timeline(trace).data
    gs.export(trace, tmp_path / "again.parquet")
    again = gs.load_trace(tmp_path / "again.parquet")
    assert again.spans.equals(trace.spans)
    assert again.edges.equals(trace.edges)
    assert again.metadata == trace.metadata


def test_a_trace_has_what_its_recording_found():
    trace = gs.load_trace(BEFORE / "trace.parquet")
    (hazard,) = trace.metadata.hazards.found
    assert (hazard.kind, hazard.first_stream, hazard.second_stream) == (
        "read after write", "small", "load",
    )  # fmt: skip
    assert trace.metadata.partition("small").sm_count == 16
    assert gs.analysis.confinement(trace).rows()


def test_a_merged_trace_has_its_ranks_and_they_are_merged_again():
    trace = gs.load_trace(BEFORE / "merged.parquet")
    assert [rank.rank for rank in trace.metadata.ranks] == [0, 1]
    assert gs.analysis.collectives(trace).rows()
    parts = split(trace)
    assert [len(part) for part in parts] == [13, 13]
    again = gs.merge(parts)
    assert again.array("start_ns").tolist() == trace.array("start_ns").tolist()


def test_a_run_is_compared_with_what_is_predicted_today(tmp_path):
    out = tmp_path / "predict"
    run("predict", EXPERIMENT, "--against", BEFORE / "run", "--out", out)
    assert (out / "compare.html").is_file()
    kept, today = (
        json.loads((folder / "comparison.json").read_text())["comparison"]
        for folder in (BEFORE / "run", out)
    )
    names = [[(row["setting"], row["workload"]) for row in rows] for rows in (kept, today)]
    assert names[0] == names[1]
    assert set(kept[0]) <= set(today[0]), "no column that a program reads is gone"


def test_a_sweep_that_was_killed_goes_on(folder):
    kept = load_sweep(folder / "sweep")
    assert kept.stopped
    assert [finding.rule for finding in swept(kept)] == ["swept.unmeasured", "swept"]
    before = {row["partitions.small"]: row for row in kept.rows() if row["workload"] == "fast"}
    assert before
    assert set(before) < set(SIZES["partitions.small"])
    result = gs.search.sweep(
        folder / "experiment.toml", SIZES,
        gs.open_device("sim:h200", quiet=True), path=folder / "sweep",
    )  # fmt: skip
    assert not result.stopped
    assert kept_points(folder / "sweep") == [1, 2], "the first is where it was"
    after = {row["partitions.small"]: row for row in result.rows() if row["workload"] == "fast"}
    assert set(after) == set(SIZES["partitions.small"])
    assert all(after[size] == row for size, row in before.items()), "not measured anew"


def test_of_a_former_sweep_what_can_be_read_counts(folder):
    sweep = folder / "sweep"
    (stream,) = sweep.iterdir()
    (sweep / "point-00000000.arrows").touch()
    stream.write_bytes(stream.read_bytes()[:-9])  # it died while it wrote its only point
    gpu = gs.open_device("sim:h200", quiet=True)
    gs.search.sweep(folder / "experiment.toml", SIZES, gpu, path=sweep)
    assert kept_points(sweep) == [0, 1, 2]
    (sweep / "point-1.parquet").write_bytes(b"PAR1")
    with pytest.raises(gs.errors.GpuscopeError, match=r"point-1\.parquet"):
        load_sweep(sweep)


def test_a_tuning_that_was_stopped_goes_on(folder):
    there = {path: path.read_bytes() for path in (folder / "tune").glob("*.parquet")}
    turns = kept_points(folder / "tune", "turn")
    result = gs.tune(
        folder / "experiment.toml", SIZES, "load.tflop_per_s", {"fast.latency_p50_us": "<= 500"},
        gs.open_device("sim:h200", quiet=True), repeats=3, path=folder / "tune",
    )  # fmt: skip
    assert not result.stopped
    measured = [len(setting.values["load.tflop_per_s"]) for setting in result.settings]
    assert len(measured) == 4
    assert min(measured) >= 1
    assert all(path.read_bytes() == content for path, content in there.items())
    assert {path.name for path in (folder / "tune").iterdir()} >= {"points.jsonl"}
    every = kept_points(folder / "tune", "turn")
    assert len(set(every)) == len(every) > len(turns)


def test_a_profile_simulates_a_gpu(tmp_path):
    profile = BEFORE / "profile.json"
    run("predict", EXPERIMENT, "--gpu-profile", profile, "--out", tmp_path / "predict")
    gpu = gs.open_device(f"sim:{profile}", quiet=True)
    assert gpu.info.sm_count == 132


# -- the notebook -------------------------------------------------------------------------
@pytest.fixture(scope="module")
def notebook():
    book = nbformat.read(BEFORE / "notebook.ipynb", as_version=4)
    nbformat.validate(book)
    return book


def test_the_widgets_of_a_saved_notebook_need_what_is_installed(notebook):
    states = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    assert {(state["model_module"], state["model_name"]) for state in states.values()} == {
        ("anywidget", "AnyModel"),
        ("@jupyter-widgets/base", "LayoutModel"),
        *(
            ("@jupyter-widgets/controls", f"{name}Model")
            for name in ("Box", "VBox", "HTML", "HTMLStyle")
        ),
    }
    scripts = [
        state["state"]["_esm"] for state in states.values() if state["model_module"] == "anywidget"
    ]
    assert all(scripts), "each brings the script that shows it"


def test_the_cells_of_a_saved_notebook_run(notebook):
    names: dict[str, object] = {}
    for cell in notebook.cells:
        exec(cell.source, names)  # noqa: S102 - our own file
    assert len(names["recording"].trace) > 0
    assert names["dashboard"].wait()
