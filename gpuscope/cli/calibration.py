"""``calibrate``: the profile of the GPU at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from gpuscope._files import make_folder
from gpuscope.calibration.calibrator import Calibration, calibrate
from gpuscope.cli.app import Json, app, say, say_json, show, stderr
from gpuscope.device.select import open_device


@app.command("calibrate")
def calibrate_command(
    out: Annotated[Path, typer.Option(help="The profile to write, a .json file.")] = Path(
        "gpu.json"
    ),
    device: Annotated[str, typer.Option(help="The GPU: cuda:N.")] = "cuda:0",
    as_json: Json = False,  # noqa: FBT002 - typer's form of a flag
) -> None:
    """Measure this GPU, in under 3 minutes, and write the profile that it is simulated by.

    Example: gpuscope calibrate --out gpu.json, then gpuscope predict FILE --gpu-profile gpu.json
    """
    target = open_device(device, quiet=as_json)
    make_folder(out.parent)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True) as bar:
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
        say_json(facts)
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
    show(table)
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
        say(line)
