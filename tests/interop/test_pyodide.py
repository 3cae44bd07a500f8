"""gpuscope in Pyodide under Node.js, as far as its packages can be had, and the site around it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYODIDE = ROOT / ".cache" / "readers" / "pyodide"
CORE = """
import threading, tomllib
from pathlib import Path

import gpuscope as gs
from gpuscope import _threads
from gpuscope.device import carve
from gpuscope.experiments.experiment import Experiment
from gpuscope.timeline.canvas.scheduler import RedrawScheduler

assert not hasattr(threading, "get_native_id"), "Pyodide has what it is known to lack"
assert not _threads.start(threading.Thread(target=print))
assert _threads.number_of(threading.current_thread()) == _threads.thread_number()

drawn = []
scheduler = RedrawScheduler(lambda: drawn.append(1), failed=print)
scheduler.ask()
assert drawn and scheduler.wait(0)

with gs.CallerStreamGuard(7):
    assert gs.get_caller_stream() == 7
assert gs.get_caller_stream() is None

experiment = Experiment.from_dict(tomllib.loads(Path("/gpuscope/examples/quickstart.toml").read_text()))
assert experiment.workloads["small"].repeats == 1000
try:
    Experiment.from_dict({"name": "none"})
except gs.errors.InvalidExperiment as error:
    assert "workloads" in str(error)
else:
    raise AssertionError("an experiment without workloads was taken")
"""
WHOLE = """
from playing import play

played = play("00_quickstart.ipynb", changed={"dashboard": ""})  # widgets need JupyterLab
assert "SIMULATED" in played.values["timeline"].layout.title.text
assert played.values["latency"].rows()
"""


@pytest.fixture(scope="module")
def lacking():
    """Run CORE and, if Pyodide's packages can be had, WHOLE; return those that cannot."""
    node = shutil.which("node")
    if node is None or not PYODIDE.exists():
        pytest.skip("scripts/readers.sh could not get Node.js with npm, or pyodide of npm")
    done = subprocess.run(
        [node, Path(__file__).with_name("in_pyodide.mjs"), PYODIDE / "node_modules" / "pyodide",
         PYODIDE / "site", ROOT, CORE, WHOLE],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_what_needs_no_numpy_runs_in_pyodide(lacking):
    assert set(lacking) <= {"numpy", "pyarrow", "ml-dtypes", "Pillow"}


def test_the_quickstart_runs_in_pyodide(lacking):
    if lacking:
        pytest.skip(
            f"Pyodide's CDN is out of reach, and with it {', '.join(lacking)}: run this test again "
            "where it is not, or `make lite`"
        )


def test_the_site_builds(tmp_path):
    site = tmp_path / "site"
    command = [sys.executable, ROOT / "scripts" / "lite.py", "--out", site]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    wheels = json.loads((site / "pypi" / "all.json").read_text())
    assert {"gpuscope", "gpuscope-lessons", "plotly", "ipywidgets", "anywidget"} <= set(wheels)
    (gpuscope,) = (site / "pypi").glob("gpuscope-*.whl")
    assert gpuscope.name.endswith("-py3-none-any.whl")
    (lessons,) = (site / "pypi").glob("gpuscope_lessons-*.whl")
    assert "gpuscope_lessons/cuda/cuda_runtime.h" in zipfile.ZipFile(lessons).namelist()
    shown = json.loads((site / "api" / "contents" / "notebooks" / "all.json").read_text())
    names = {entry["name"] for entry in shown["content"]}
    assert {"00_quickstart.ipynb", "01_launch_and_wait.ipynb", "dashboard.ipynb"} <= names
    assert "04_caller_stream.ipynb" not in names
    for name in names:
        book = json.loads((site / "files" / "notebooks" / name).read_text())
        assert book["metadata"]["kernelspec"]["name"] == "python"
        assert book["cells"][0]["source"].startswith("%pip install")
    config = json.loads((site / "jupyter-lite.json").read_text())["jupyter-config-data"]
    extensions = {one["name"] for one in config["federated_extensions"]}
    assert {"jupyterlab-plotly", "anywidget", "@jupyterlite/pyodide-kernel-extension"} <= extensions
