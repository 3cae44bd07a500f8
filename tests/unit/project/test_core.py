"""The core is whole where simulator and races are missing, and lessons not installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gpuscope._plugins import ROOMS
from gpuscope.cli.commands import LESSONS

ROOT = Path(__file__).resolve().parents[3]
GONE = ("simulator", "races")
TESTS = (
    "tests/contract/test_cpu.py",
    "tests/unit/comparing/test_race.py",
    "tests/unit/figures/test_figures.py",
    "tests/unit/formats/test_csv.py",
    "tests/unit/formats/test_importers.py",
    "tests/unit/record/test_cupti_tables.py",
    "tests/unit/trace/test_files.py",
    "tests/unit/trace/test_joins.py",
)
"""Tests of the core that need stored traces and the CPU device alone."""
STORED = "tests/data/recordings/pytorch_h100.parquet"


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """A copy of the project without the rooms."""
    folder = tmp_path_factory.mktemp("core")
    left_out = shutil.ignore_patterns("__pycache__", *GONE)
    shutil.copytree(ROOT / "gpuscope", folder / "gpuscope", ignore=left_out)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "conftest.py"):
        shutil.copy(ROOT / name, folder)
    return folder


def python(core: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(core), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=core, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_rooms_are_those_that_register_themselves():
    above = {value.split(".")[1] for value in ROOMS["gpuscope.queries"].values()}
    assert above == {"analyses"}, "which a trace, far below, asks"
    homes = {value.split(".")[1] for group in ROOMS.values() for value in group.values()}
    assert homes - above == set(GONE)


def test_its_own_tests_pass(core):
    chosen = ("-q", "-p", "no:cacheprovider", "-k", "not simulated", "-m", "not gpu and not ui")
    done = python(core, "-m", "pytest", *chosen, *TESTS)
    assert done.returncode == 0, done.stdout[-4000:]


def test_a_recording_of_the_cpu_becomes_a_report(core, tmp_path):
    program = """
import gpuscope as gs, sys
assert gs.__file__.startswith(sys.argv[1])
cpu = gs.open_device("cpu")
with cpu.create_stream() as stream, gs.profile(cpu) as recording:
    gs.Gemm(cpu, m=64, n=64, k=64, dtype="float32").execute(stream=stream)
assert gs.analysis.summary(recording.trace).rows()
gs.export(recording.trace, sys.argv[2])
print(*recording.trace.where(kind="kernel").texts("name"))
"""
    done = python(core, "-c", program, str(core), str(tmp_path / "cpu.html"))
    assert done.returncode == 0, done.stderr
    assert "gemm_float32_64x64x64" in done.stdout
    assert (tmp_path / "cpu.html").read_text("utf-8").endswith("</html>\n")


def test_the_command_line_reads_a_stored_trace(core):
    done = python(core, "-m", "gpuscope.cli", "summary", STORED)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    devices = python(core, "-m", "gpuscope.cli", "devices", "--json")
    assert devices.returncode == 0
    assert "sim:" not in devices.stdout


@pytest.mark.parametrize(
    ("expression", "room"),
    [
        ("gs.open_device('sim:h200')", "simulator"),
        ("gs.what_if", "simulator"),
        ("gs.workloads.RecordedWork", "simulator"),
        ("gs.profile(gs.open_device('cpu'), hazards=True).__enter__()", "races"),
        ("gs.confirm", "races"),
    ],
)
def test_what_needs_a_room_says_which_is_missing(core, expression, room):
    program = f"""
import gpuscope as gs
try:
    {expression}
except gs.errors.MissingDependency as error:
    print(error)
"""
    done = python(core, "-c", program)
    assert f"needs gpuscope.{room}, a part of gpuscope that is missing here" in done.stdout, done


def test_a_command_of_a_room_says_that_it_is_missing(core):
    done = python(core, "-m", "gpuscope.cli", "calibrate", "--anything")
    assert done.returncode == 2
    assert "the command 'calibrate' needs gpuscope.simulator" in done.stderr
    assert "calibrate" in python(core, "-m", "gpuscope.cli", "--help").stdout


def lessons_commands() -> set[str]:
    project = tomllib.loads((ROOT / "lessons" / "pyproject.toml").read_text())["project"]
    return {*project["entry-points"]["gpuscope.commands"]}


def test_the_commands_of_the_lessons_are_those_that_they_declare():
    assert set(LESSONS) == lessons_commands()


@pytest.mark.parametrize("name", sorted(lessons_commands()))
def test_a_command_of_the_lessons_says_how_to_install_them(core, name):
    program = """
import sys
from importlib import metadata
sys.modules["gpuscope_lessons"] = None
metadata.entry_points = lambda **_: ()
from gpuscope.cli import main
main()
"""
    done = python(core, "-c", program, name, "folder", "--out", "grades.csv")
    assert done.returncode == 2, done
    assert "gpuscope-lessons" in done.stderr
    assert "pip install 'gpuscope[lessons]'" in done.stderr
    shown = python(core, "-c", program, "--help").stdout
    assert f"{name!r} needs the package gpuscope-lessons" in shown
    assert "gpuscope[lessons]" in shown


def test_what_the_lessons_had_says_how_to_install_them(core):
    program = """
import sys
sys.modules["gpuscope_lessons"] = None
import gpuscope as gs
try:
    gs.learn.Lesson
except gs.errors.MissingDependency as error:
    print(error)
"""
    done = python(core, "-c", program)
    assert "pip install 'gpuscope[lessons]'" in done.stdout, done


def test_a_tuning_measures_without_forecasts(core):
    program = """
from gpuscope.search.forecasters import forecaster_for
print(forecaster_for(None, None, (), "h200")[1])
"""
    done = python(core, "-c", program)
    assert "no forecasts: the forecaster 'simulator' needs gpuscope.simulator" in done.stdout
