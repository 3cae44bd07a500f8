"""What the site for browsers offers works without threads, processes, native ids and timers."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from lesson_answers import KEYS
from playing import NOTEBOOKS, cells, play

ROOT = Path(__file__).resolve().parents[3]
_spec = importlib.util.spec_from_file_location("lite", ROOT / "scripts" / "lite.py")
lite = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(lite)

PATHS = [str(ROOT / folder) for folder in (".", "tests", "lessons", "lessons/tests")]
LESSONS = sorted(set(KEYS) - lite.LACKING)
PLAY = """
import json, sys
from lesson_answers import KEYS
from playing import play

name, changed = json.load(sys.stdin)
key = KEYS[name]
results = play(name, answers=key.right, changed={**changed, **key.solved}).results
print(json.dumps({one.name: one.verdict for one in results.values()}))
"""
QUICKSTART = """
from playing import play

played = play("00_quickstart.ipynb")
timeline = played.values["timeline"]
assert "SIMULATED" in timeline.layout.title.text
assert timeline.data
"""
WIDGETS = """
import gpuscope as gs

gpu = gs.open_device("sim:h200", quiet=True)
gemm = gs.Gemm(gpu, m=64, n=64, k=64, name="mine")
with gs.profile(gpu, live=True, hazards=True) as recording, gpu.create_stream(name="s") as stream:
    for _ in range(5):
        gemm.execute(stream=stream)
trace = recording.trace
assert trace.kind_counts()["kernel"] == 5

timeline = gs.Timeline(trace)
assert timeline.find("mine")
span = timeline.next()
assert timeline.details.facts["why"]
first = timeline.drawn
timeline.zoom(0.5)
assert timeline.wait(0)
assert timeline.drawn != first

with gs.profile(gpu, keep="1 min") as recording, gpu.create_stream() as stream:
    gemm.execute(stream=stream)
assert recording.trace.kind_counts()["kernel"] == 1

dashboard = gs.Dashboard(gpu)
dashboard.start()
assert dashboard.wait(0)
assert "kernel" in next(iter(dashboard.run.traces.values())).kind_counts()
dashboard.close()
"""
FILES = """
import gpuscope as gs
from gpuscope import report

experiment = {
    "name": "files", "alone_repeats": 2, "detail": "full",
    "partitions": {"small": 16, "large": "rest"},
    "streams": {"a": {"partition": "small"}, "b": {"partition": "large"}},
    "workloads": {
        "gemm": {"kind": "gemm", "m": 256, "n": 256, "k": 256, "stream": "a", "repeats": 5},
        "spin": {"kind": "spin", "duration_us": 20, "stream": "b", "repeats": 5},
    },
}
run = gs.run(experiment, gs.open_device("sim:h200", quiet=True))
report.html_report(run, "run.html")
trace = run["default"]
assert gs.analysis.latency(trace).rows() and gs.analysis.confinement(trace).rows()
gs.telling.findings(trace)
gs.figures.sm_map(trace)
for name in ("a.parquet", "a.json", "a.sqlite", "a.csv", "a.html"):
    gs.export(trace, name)
for name in ("a.parquet", "a.json", "a.sqlite"):
    assert len(gs.load_trace(name).where(kind="kernel")) == len(trace.where(kind="kernel"))
"""


def run(program: str, folder: Path, given: object = None) -> str:
    """Run a program as Python in a browser would, and return what it printed last."""
    paths = f"import sys; sys.path[:0] = {PATHS!r}\nimport browser_python\n"
    done = subprocess.run(
        [sys.executable, "-c", paths + program], cwd=folder, input=json.dumps(given),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return (done.stdout.splitlines() or [""])[-1]


def in_browser(name: str) -> dict[str, str]:
    """Return a notebook's cells as the site has them: id → source."""
    book = json.loads((NOTEBOOKS / name).read_text("utf-8"))
    return {cell["id"]: cell["source"] for cell in lite.for_browser(name, book)["cells"]}


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_is_solved(name, tmp_path):
    changed = {cell: in_browser(name)[cell] for cell in lite.CHANGES.get(name, {})}
    verdicts = json.loads(run(PLAY, tmp_path, [name, changed]))
    in_cuda = {asked for asked in verdicts if asked.endswith("_in_cuda")}
    assert {verdicts.pop(asked) for asked in in_cuda} <= {"not available"}
    assert set(verdicts.values()) <= {"right", "solved"}
    assert len(verdicts) > 5


def test_what_lacks_a_thread_says_so(tmp_path):
    """Else it could be in the site."""
    for name in sorted(lite.LACKING):
        with pytest.raises(AssertionError, match="can't start new thread"):
            run(PLAY, tmp_path, [name, {}])


@pytest.mark.parametrize(
    "program", [QUICKSTART, WIDGETS, FILES], ids=["quickstart", "widgets", "files"]
)
def test_a_program_runs(program, tmp_path):
    run(program, tmp_path)


def test_the_first_cell_installs():
    cells_there = in_browser("01_launch_and_wait.ipynb")
    assert next(iter(cells_there.values())).startswith("%pip install")
    assert list(cells_there)[1:] == [cell["id"] for cell in cells("01_launch_and_wait.ipynb")]


def test_changed_notebooks_judge_alike():
    """A text that stands in for another teaches the same."""
    for name, changes in lite.CHANGES.items():
        there = in_browser(name)
        played = play(
            name, answers=KEYS[name].right, changed={cell: there[cell] for cell in changes}
        )
        predictions = [one for one in played.results.values() if one.kind == "prediction"]
        assert {one.verdict for one in predictions} == {"right"}


def test_a_text_that_is_gone_is_told():
    book = {"cells": [{"id": "run-legacy", "source": "nothing"}], "metadata": {}}
    with pytest.raises(SystemExit, match="is not once in the cell run-legacy"):
        lite.for_browser("02_streams.ipynb", book)
