"""What the base install does, with nothing else installed: run by `make test-wheel`.

Opens traces of ours and of other tools, analyses, draws, reports and exports them, runs an
experiment on the simulated GPU, and names the extra of what is missing. It uses no test
framework, as none is installed here.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import gpuscope as gs
from gpuscope import figures, report
from gpuscope.trace import Trace, save_trace

MOST_DISTRIBUTIONS = 15
INSTALLERS = {"pip", "setuptools", "wheel"}
EXPERIMENT = {
    "name": "base", "alone_repeats": 2, "partitions": {"small": 16, "large": "rest"},
    "streams": {"a": {"partition": "small"}, "b": {"partition": "large"}},
    "workloads": {
        "gemm": {"kind": "gemm", "m": 256, "n": 256, "k": 256, "stream": "a", "repeats": 5},
        "spin": {"kind": "spin", "duration_us": 20, "stream": "b", "repeats": 5},
    },
}  # fmt: skip
CHROME = {
    "traceEvents": [
        {"ph": "X", "name": "kernel", "cat": "kernel", "pid": 0, "tid": 7, "ts": 10, "dur": 5,
         "args": {"device": 0, "stream": 7, "correlation": 1}},
    ]
}  # fmt: skip


def refused(call: Callable[[], object]) -> str:
    """Return what is said of a missing package."""
    try:
        call()
    except gs.errors.MissingDependency as error:
        return str(error)
    raise AssertionError("nothing was refused")


def record() -> Trace:
    device = gs.open_device("sim:h200", quiet=True)
    gemm = gs.Gemm(device, m=64, n=64, k=64)
    with device.create_stream() as stream, gs.profile(device) as recording, gs.annotate("step"):
        gemm.execute(stream=stream)
    return recording.trace


def check_distributions() -> None:
    names = {found.metadata["Name"] for found in importlib.metadata.distributions()} - INSTALLERS
    print(f"{len(names)} distributions: {', '.join(sorted(names))}")
    assert len(names) <= MOST_DISTRIBUTIONS, f"more than {MOST_DISTRIBUTIONS}"


def check_annotate() -> None:
    trace = record()
    assert [row["name"] for row in trace.where(kind="range").spans.to_pylist()] == ["step"]
    notes = "; ".join(trace.metadata.notes)
    assert "Nsight sees no ranges" in notes, notes
    assert "'gpuscope[nvtx]'" in notes, notes


def check_run(folder: Path) -> None:
    run = gs.run(EXPERIMENT, gs.open_device("sim:h200", quiet=True))
    assert report.html_report(run, folder / "run.html").stat().st_size > 100_000
    assert gs.analysis.confinement(run["default"]).rows()


def check_traces(folder: Path) -> None:
    trace = record()
    (folder / "chrome.json").write_text(json.dumps(CHROME))
    save_trace(trace, folder / "trace.parquet")
    for path in (folder / "trace.parquet", folder / "chrome.json"):
        opened = gs.load_trace(path)
        assert opened.kind_counts()["kernel"] == 1
        assert gs.analysis.summary(opened).rows()
        assert "plotly" in figures.timeline(opened).to_html(include_plotlyjs="cdn")
        assert report.trace_report(opened, folder / "trace.html").stat().st_size > 100_000
        for name in ("out.parquet", "out.json", "out.json.gz", "out.sqlite", "out.html"):
            assert gs.export(opened, folder / name).stat().st_size
        for name in ("out.parquet", "out.json", "out.json.gz", "out.sqlite"):
            assert gs.load_trace(folder / name).kind_counts()["kernel"] == 1


def check_refusals() -> None:
    for room, name in ((gs, "Timeline"), (gs, "Dashboard")):
        words = refused(lambda room=room, name=name: getattr(room, name))
        assert f"{room.__name__}.{name} needs the package" in words, words
        assert "'gpuscope[notebook]'" in words, words
    assert "'gpuscope[lessons]'" in refused(lambda: gs.learn.Lesson)
    experiment = gs.experiments.Experiment.from_dict(EXPERIMENT)
    assert "'gpuscope[cli]'" in refused(experiment.to_toml)
    words = refused(lambda: gs.export(record(), "out.pftrace"))
    assert "a Perfetto trace needs the package perfetto" in words, words
    assert "'gpuscope[perfetto]'" in words, words
    live = gs.profile(gs.open_device("sim:h200", quiet=True), live=True)
    words = refused(live.__enter__)
    assert "profile(live=True) needs the package" in words, words
    assert "'gpuscope[notebook]'" in words, words
    command = [sys.executable, "-m", "gpuscope.cli", "devices"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done
    assert "the gpuscope command needs the package typer" in done.stderr, done.stderr
    assert "'gpuscope[cli]'" in done.stderr, done.stderr


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_distributions()
        check_annotate()
        check_run(Path(folder))
        check_traces(Path(folder))
        check_refusals()
    print("the base install opens, analyses, draws, reports and exports traces")


if __name__ == "__main__":
    main()
