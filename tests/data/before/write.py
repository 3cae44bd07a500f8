"""Write what users have on their disks, with the code of a former commit, for tests/data/before.

    git archive COMMIT | tar x -C FOLDER
    cd FOLDER && PYTHONPATH=FOLDER python /path/to/write.py OUT [PART ...]

tests/unit/project/test_before.py opens it with today's code. Names are those of commit 4787fcf.
Plotly's own script, 5 MB, is left out of the notebook: the test puts in that of the Plotly that is
installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import nbformat
import numpy as np
from nbclient import NotebookClient

import gpuscope as gs
from gpuscope.trace.merging import merge
from tests import ranked

EXPERIMENT = """\
name = "before"
alone_repeats = 2

[streams.s]
[streams.l]

[workloads.fast]
kind = "spin"
duration_us = 20
stream = "s"
repeats = 6

[workloads.load]
kind = "gemm"
m = 2048
n = 2048
k = 2048
stream = "l"
background = true
max_queued = 3

[settings.plain]

[settings.split]
partitions = { small = 16, load = "rest" }
streams = { s = { partition = "small" }, l = { partition = "load" } }
"""
PROGRAM = """\
import gpuscope as gs

gpu = gs.open_device("sim:h200", quiet=True)
with gpu.carve({"small": 16, "load": "rest"}) as parts:
    stream = parts["small"].create_stream(name="s")
    with gs.annotate("step"):
        gs.Gemm(gpu, m=512, n=512, k=512, name="small").execute(stream=stream)
    gpu.synchronize()
"""
CELLS = [
    """\
import gpuscope as gs

gpu = gs.open_device("sim:h200", quiet=True)
with gpu.carve({"small": 16, "load": "rest"}) as parts:
    s = parts["small"].create_stream(name="s")
    small = gs.Gemm(gpu, m=512, n=512, k=512, name="small")
    with gs.profile(gpu) as recording:
        for step in range(5):
            with gs.annotate(f"step {step}"):
                small.execute(stream=s)
        small.wait()
timeline = gs.Timeline(recording.trace)
timeline""",
    """\
dashboard = gs.Dashboard(gpu)
dashboard.start()
dashboard.wait()
dashboard""",
]
SIZES = {"partitions.small": [8, 16, 24]}


def run_folder(out: Path) -> None:
    """Write what ``gpuscope run`` does."""
    subprocess.run(
        [sys.executable, "-m", "gpuscope.cli", "run", str(out / "experiment.toml"),
         "--device", "sim:h200", "--out", str(out / "run")],
        check=True,
    )  # fmt: skip
    (out / "run" / "report.html").unlink()  # a page is not opened by gpuscope


def recorded_folder(out: Path) -> None:
    """Write what ``gpuscope record`` does."""
    program = out / "program.py"
    program.write_text(PROGRAM)
    subprocess.run(
        [sys.executable, "-m", "gpuscope.cli", "record", "--no-report", "--out",
         str(out / "recorded"), str(program)],
        check=True,
    )  # fmt: skip


def trace_file(out: Path) -> None:
    """Write a trace that has hazards, ranges and partitions."""
    gpu = gs.open_device("sim:h200", quiet=True)
    with gpu.carve({"small": 16, "load": "rest"}) as parts:
        s, t = (parts[name].create_stream(name=name) for name in ("small", "load"))
        a, b, c = (gpu.asarray(np.ones((512, 512), "float16")) for _ in range(3))
        with gs.profile(gpu, hazards=True) as recording:
            with gs.annotate("step"):
                gs.workloads.mm_out(b, a, a, stream=s)
                gs.workloads.mm_out(c, b, b, stream=t)
            gpu.synchronize()
    gs.export(recording.trace, out / "trace.parquet")


def merged_ranks(out: Path) -> None:
    """Write the merged trace of two simulated ranks."""

    def rank(gpu: gs.device.Device, ranks: object) -> gs.trace.Trace:
        with gpu.create_stream(name="c") as stream, gs.profile(gpu) as recording:
            reduce = gs.workloads.Collective(gpu, "all_reduce", nbytes=1 << 20, ranks=ranks)
            for _ in range(4):
                reduce.execute(stream=stream)
            reduce.wait()
        return recording.trace

    gs.export(merge(ranked.as_ranks(2, rank)), out / "merged.parquet")


def killed_sweep(out: Path) -> None:
    """Write a sweep that was killed in its second point: its journal is left."""
    if os.fork() == 0:

        def view(progress: object) -> None:
            if "24" in str(progress):
                os._exit(0)

        gs.runs.sweep(out / "experiment.toml", SIZES, "sim:h200", path=out / "sweep", viewer=view)
        os._exit(1)
    if os.wait()[1]:
        raise RuntimeError("the sweep ended before it was killed")


def stopped_tuning(out: Path) -> None:
    """Write a tuning that was stopped."""
    stop = threading.Event()

    def view(_progress: object) -> None:
        if list((out / "tune").glob("turn-*")):
            stop.set()

    gs.tune(
        out / "experiment.toml", SIZES, "load.tflop_per_s", {"fast.latency_p50_us": "<= 500"},
        "sim:h200", repeats=3, path=out / "tune", viewer=view, stop=stop,
    )  # fmt: skip


def profile_json(out: Path) -> None:
    """Write a profile as its own test does, which calibrates a simulated GPU."""
    (test,) = Path("tests/unit").rglob("test_calibrate.py")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", str(test), "-k", "measures_fits_and_writes",
             "--basetemp", f"{folder}/t", "-o", "tmp_path_retention_policy=all"],
            check=True,
        )  # fmt: skip
        (found,) = Path(folder).rglob("mine.json")
        (out / "profile.json").write_text(found.read_text())


def notebook(out: Path) -> None:
    """Write a notebook with a timeline and a dashboard, saved with the state of its widgets."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    for number, cell in enumerate(book.cells):
        cell.id = f"cell-{number}"
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            book, timeout=600, kernel_name="python3", resources={"metadata": {"path": folder}}
        ).execute()
    states = book.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    for state in states.values():
        for name in ("_plotly_script", "_esm"):  # Plotly's is in one of them
            if len(state["state"].get(name, "")) > 1_000_000:
                state["state"][name] = "Plotly's"
    (out / "notebook.ipynb").write_text(json.dumps(book, indent=1) + "\n")


def main() -> None:
    """Write all of it, or the parts that are named, to the folder."""
    out = Path(sys.argv[1]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    (out / "experiment.toml").write_text(EXPERIMENT)
    only = sys.argv[2:]
    for write in (
        run_folder, recorded_folder, trace_file, merged_ranks, killed_sweep, stopped_tuning,
        profile_json, notebook,
    ):  # fmt: skip
        if not only or write.__name__ in only:
            write(out)


if __name__ == "__main__":
    main()
