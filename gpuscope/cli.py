"""The command line: parse, call the session, render."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from gpuscope._files import replacing
from gpuscope.analysis.prediction import PredictionResult, prediction
from gpuscope.analysis.result import format_value
from gpuscope.calibration.calibrate import Calibration, calibrate
from gpuscope.device.device import Device
from gpuscope.device.diagnose import Check, check_cupti, check_gpu
from gpuscope.device.select import open_device
from gpuscope.errors import GpuscopeError, InvalidExperiment
from gpuscope.experiment import Experiment
from gpuscope.report import html_report, prediction_report
from gpuscope.session import Progress as RunProgress
from gpuscope.session import run as run_experiment
from gpuscope.trace.model import Run, Trace
from gpuscope.trace.store import read_parquet, save_trace

FAILED, BAD_USAGE = 1, 2

app = typer.Typer(
    help="Carve a GPU's SMs, assign streams, launch, and see what overlapped.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
_out = Console(soft_wrap=True)
_err = Console(stderr=True, soft_wrap=True)

_Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@app.command("run")
def run_command(
    file: Annotated[Path, typer.Argument(help="The experiment: a .toml or .json file.")],
    device: Annotated[str, typer.Option(help="auto, cuda:N or sim:h200.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder for the report and the traces.")] = Path("out"),
    as_json: _Json = False,  # noqa: FBT002 - typer's form of a flag
) -> None:
    """Run an experiment and write an HTML report and one trace per setting.

    Example: gpuscope run examples/quickstart.toml --out out/quickstart
    """
    experiment = Experiment.from_file(file)
    target = open_device(device, quiet=as_json)
    _make_folder(out)  # before the run: what it records must not be lost for want of a folder
    result = _run_with_bar(experiment, target)
    written = write_run(result, out)
    if as_json:
        facts = {**_facts_of(result), "files": [str(path) for path in written]}
        sys.stdout.write(json.dumps(facts, indent=1) + "\n")
    else:
        _show(result, written)
    if result.stopped:
        raise typer.Exit(FAILED)


@app.command("predict")
def predict_command(
    file: Annotated[Path, typer.Argument(help="The experiment: a .toml or .json file.")],
    gpu_profile: Annotated[str, typer.Option(help="The simulated GPU's profile.")] = "h200",
    against: Annotated[
        Path | None, typer.Option(help="Folder of a run of it, to compare with.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for reports and traces.")] = Path("out/predict"),
    as_json: _Json = False,  # noqa: FBT002 - typer's form of a flag
) -> None:
    """Run an experiment on a simulated GPU; compare it with what was measured.

    Example: gpuscope predict examples/quickstart.toml --against out/quickstart
    """
    experiment = Experiment.from_file(file)
    measured = None if against is None else _load_run(against)
    target = open_device(f"sim:{gpu_profile}", quiet=as_json)
    _make_folder(out)
    result = _run_with_bar(experiment, target)
    written = write_run(result, out)
    found = None
    if measured is not None:
        found = prediction(result, measured)
        written.insert(0, prediction_report(result, measured, out / "compare.html"))
    if as_json:
        facts = {**_facts_of(result), "files": [str(path) for path in written]}
        if found is not None:
            facts["errors"] = found.rows()
        sys.stdout.write(json.dumps(facts, indent=1) + "\n")
    elif found is None:
        _show(result, written)
    else:
        _show_errors(found, written)
    if result.stopped:
        raise typer.Exit(FAILED)


@app.command("calibrate")
def calibrate_command(
    out: Annotated[Path, typer.Option(help="The profile to write, a .json file.")] = Path(
        "gpu.json"
    ),
    device: Annotated[str, typer.Option(help="The GPU: cuda:N.")] = "cuda:0",
    as_json: _Json = False,  # noqa: FBT002 - typer's form of a flag
) -> None:
    """Measure this GPU, in under 3 minutes, and write the profile that it is simulated by.

    Example: gpuscope calibrate --out gpu.json, then gpuscope predict FILE --gpu-profile gpu.json
    """
    target = open_device(device, quiet=as_json)
    _make_folder(out.parent)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=_err, transient=True) as bar:
        task = bar.add_task("calibrating", total=1)
        found = calibrate(
            target, out,
            progress=lambda done, what: bar.update(task, completed=done, description=what),
        )  # fmt: skip
    if as_json:
        facts = {
            "file": str(found.path), "errors": found.errors, "held_out": found.held_out,
            "told_errors": found.told_errors, "unreadable": found.unreadable,
            "skipped": found.skipped, "notes": found.notes, "measured_s": found.measured_s,
            "fitted_s": found.fitted_s,
        }  # fmt: skip
        sys.stdout.write(json.dumps(facts, indent=1) + "\n")
    else:
        _show_calibration(found)


def _show_calibration(found: Calibration) -> None:
    table = Table(title="error of predicted GEMM times: median, 90th percentile")
    titles = ("dtype", "rows", "in the fit", "shapes left out", "whole-GPU rate × SM share")
    for title in titles:
        table.add_column(title, overflow="fold")
    for dtype, one in found.errors.items():
        other = found.held_out.get(dtype)
        table.add_row(
            dtype, str(one["rows"]), f"{one['median']:.1%}, {one['p90']:.1%}",
            f"{other['median']:.1%}, {other['p90']:.1%}" if other else "–",
            f"{one['share_median']:.1%}, {one['share_p90']:.1%}",
        )  # fmt: skip
    _out.print(table)
    lines = [f"{found.profile.measured.shapes} shapes; {found.profile.measured.source}"]
    if told := found.told_errors:
        lines.append(f"told the SM count: {told['median']:.1%}, {told['p90']:.1%}, in no fit")
    if found.unreadable:
        lines.append("kernels whose tile cannot be told: " + ", ".join(found.unreadable))
    if found.skipped:
        lines.append(f"{found.skipped} timings left out: each call would have taken too long")
    lines.append(f"{found.measured_s:.0f} s of measuring, {found.fitted_s:.0f} s of fitting")
    lines.append(f'wrote {found.path}: open_device("sim:{found.path}")')
    for line in lines:
        _out.print(line, markup=False, highlight=False)


def _load_run(folder: Path) -> dict[str, Trace]:
    """Return the traces that :func:`write_run` wrote, by setting."""
    traces = [read_parquet(path) for path in sorted(folder.glob("trace-*.parquet"))]
    if not traces:
        raise GpuscopeError(
            f"there are no traces of a run in {folder.name!r}: name the --out folder of a "
            "gpuscope run"
        )
    return {str(trace.metadata.setting): trace for trace in traces}


def _show_errors(found: PredictionResult, written: list[Path]) -> None:
    table = Table(title="predicted and measured kernel time of a call, median")
    for title in ("setting", "of", "predicted µs", "measured µs", "error"):
        table.add_column(title, overflow="fold", no_wrap=title == "of")
    for one in found.times:
        cells = (
            one.setting, one.of, format_value(one.predicted_ns / 1e3),
            format_value(one.measured_ns / 1e3), f"{one.error:+.1%}",
        )  # fmt: skip
        table.add_row(*map(Text, cells))
    _out.print(table)
    _out.print(found.note, markup=False, highlight=False)
    for path in written:
        _out.print(f"wrote {path}", markup=False, highlight=False)


def _run_with_bar(experiment: Experiment, target: Device) -> Run:
    # Names are foreign text: no markup.
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=_err, transient=True) as bar:
        task = bar.add_task(experiment.name)

        def view(progress: RunProgress) -> None:
            bar.update(
                task, total=progress.total, completed=progress.done,
                description=f"{progress.setting}, round {progress.round + 1}, {progress.phase}",
            )  # fmt: skip

        return run_experiment(experiment, target, viewer=view)


def write_run(result: Run, folder: Path) -> list[Path]:
    """Write the report, the comparison and the traces of a run; returns their paths."""
    _make_folder(folder)
    paths: list[Path] = []
    for setting, trace in result.items():
        slug = re.sub(r"[^A-Za-z0-9]+", "-", setting).strip("-")[:80] or "setting"
        path = folder / f"trace-{slug}.parquet"
        if path in paths:
            path = folder / f"trace-{slug}-{len(paths)}.parquet"
        paths.append(save_trace(trace, path))
    comparison = folder / "comparison.json"
    with replacing(comparison) as temporary:
        temporary.write_text(json.dumps(_facts_of(result), indent=1), "utf-8")
    return [html_report(result, folder / "report.html"), comparison, *paths]


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GpuscopeError(
            f"cannot make the folder {folder.name!r}: {error.strerror}. Choose another with --out"
        ) from error


def _facts_of(result: Run) -> dict[str, Any]:
    """Return the comparison with what it rests on."""
    first = next(iter(result.values())).metadata
    return {
        "experiment": result.experiment["name"],
        "devices": {key: dict(facts) for key, facts in first.devices.items()},
        "simulated": first.simulated,
        "stopped": result.stopped,
        "versions": dict(first.versions),
        "comparison": result.comparison.to_pylist(),
    }


def _show(result: Run, written: list[Path]) -> None:
    table = Table(title="what each workload got, by setting")
    shown = {
        "setting": "setting",
        "workload": "workload",
        "latency_p50_us": "p50 µs",
        "latency_p99_us": "p99 µs",
        "tflop_per_s": "TFLOP/s",
        "share_of_alone_on_whole_gpu": "of alone",
    }
    for title in shown.values():
        table.add_column(title, overflow="fold", no_wrap=title in ("setting", "workload"))
    for row in result.comparison.to_pylist():
        table.add_row(*(Text(format_value(row[name])) for name in shown))
    _out.print(table)
    for setting in result:
        row = next(one for one in result.comparison.to_pylist() if one["setting"] == setting)
        overlap, gain = format_value(row["overlap"]), format_value(row["gain"])
        _out.print(f"{setting}: overlap {overlap}, gain {gain}", markup=False, highlight=False)
    _out.print("of alone: the rate over the rate alone on the whole GPU")
    _out.print(next(iter(result.values())).provenance, markup=False)
    if result.stopped:
        _out.print("stopped early: this is what was recorded until then")
    for path in written:
        _out.print(f"wrote {path}", markup=False, highlight=False)


@app.command("devices")
def devices_command(as_json: _Json = False) -> None:  # noqa: FBT002 - typer's form of a flag
    """List the devices that open_device() can open here, and why not the others."""
    found: list[dict[str, Any]] = []
    index = 0
    while True:
        try:
            device = open_device(f"cuda:{index}", quiet=True)
        except GpuscopeError as error:
            if index == 0:
                found.append({"device": "cuda:0", "available": False, "what": str(error)})
            break
        found.append(_facts(device))
        index += 1
    found.append(_facts(open_device("sim:h200", quiet=True)))
    if as_json:
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
        return
    for facts in found:
        _out.print(f"{facts['device']}: {facts['what']}", markup=False, highlight=False)


def _facts(device: Any) -> dict[str, Any]:
    info = device.info
    return {
        "device": info.key,
        "available": True,
        "what": f"{info.name}, {info.sm_count} SMs, {info.driver}",
        "sm_count": info.sm_count,
        "simulated": device.is_simulated,
        "partitions": device.capabilities.partition_path,
    }


@app.command("doctor")
def doctor_command(as_json: _Json = False) -> None:  # noqa: FBT002 - typer's form of a flag
    """Say what of this machine gpuscope can use, and what to do about the rest.

    The exit code is 0 if the quickstart would run on the GPU.
    """
    gpu = check_gpu()
    checks = [*gpu, check_cupti(), *_check_jupyter()]
    if as_json:
        lines = [{"name": c.name, "ok": c.ok, "found": c.found, "todo": c.todo} for c in checks]
        sys.stdout.write(json.dumps(lines, indent=1) + "\n")
    else:
        for check in checks:
            mark = "[green]ok [/green]" if check.ok else "[red]no [/red]"
            _out.print(mark, end=" ")
            text = f"{check.name}: {check.found}"
            _out.print(text if check.ok else f"{text}\n     → {check.todo}", markup=False)
        if not all(check.ok for check in gpu):
            _out.print("The quickstart would run on the simulated H200.")
    if not all(check.ok for check in gpu):
        raise typer.Exit(FAILED)


def _check_jupyter() -> list[Check]:
    """Check that JupyterLab and the extensions that draw widgets are installed."""
    checks = []
    for package, what in (
        ("jupyterlab", "JupyterLab"),
        ("jupyterlab_widgets", "widgets in JupyterLab"),
        ("anywidget", "Plotly figures as widgets"),
    ):
        there = importlib.util.find_spec(package) is not None
        todo = "" if there else f"pip install {package}"
        found = "installed" if there else "missing"
        checks.append(Check(what, ok=there, found=found, todo=todo))
    command = shutil.which("jupyter-lab", path=str(Path(sys.executable).parent)) is not None
    todo = "" if command else "use the environment that gpuscope is installed in"
    checks.append(Check("jupyter lab command", ok=command, found=str(command).lower(), todo=todo))
    return checks


def main() -> None:
    """Run the command line; errors of ours become exit codes here and nowhere else."""
    try:
        app()
    except InvalidExperiment as error:
        _err.print(f"gpuscope: {error}", markup=False, highlight=False)
        raise SystemExit(BAD_USAGE) from None
    except GpuscopeError as error:
        _err.print(f"gpuscope: {error}", markup=False, highlight=False)
        raise SystemExit(FAILED) from None


if __name__ == "__main__":
    main()
