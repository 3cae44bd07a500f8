"""``calibrate``: the profile of the GPU at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import TimeElapsedColumn

from gpuscope._files import check_new, make_folder
from gpuscope.cli.app import Force, Json, progress_bar, say, say_json, show_table
from gpuscope.device.select import open_device
from gpuscope.simulator.calibration.calibrator import Calibration, calibrate
from gpuscope.simulator.calibration.this_host import calibrate_host


def calibrate_command(
    out: Annotated[Path, typer.Option(help="The profile to write, a .json file.")] = Path(
        "gpu.json"
    ),
    device: Annotated[str, typer.Option(help="The GPU: cuda:N.")] = "cuda:0",
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="processes:N|dask://HOST:PORT",
            help="Measure GEMMs on several GPUs of one model, with --device cuda.",
        ),
    ] = None,
    host_of: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE", help="Measure this host alone, in 20 s; the GPU is this profile's."
        ),
    ] = None,
    force: Force = False,  # noqa: FBT002 - typer's form of a flag
    as_json: Json = False,  # noqa: FBT002 - as above
) -> None:
    """Measure this GPU, in some 3 minutes, and write the profile that it is simulated by.

    Example: gpuscope calibrate --out gpu.json, then gpuscope predict FILE --gpu-profile gpu.json
    """
    target = open_device(device, quiet=as_json) if workers is None else device
    make_folder(out.parent)
    check_new(out, replace=force)
    with progress_bar(TimeElapsedColumn()) as bar:
        task = bar.add_task("calibrating", total=1)

        def tell(done: float, what: str) -> None:
            bar.update(task, completed=done, description=what)

        if host_of is not None:
            written = calibrate_host(target, out, profile=host_of, progress=tell)
            _say_host(written, as_json=as_json)
            return
        result = calibrate(
            target,
            out,
            executor=workers,
            progress=tell,
        )
    if as_json:
        facts = {field.name: getattr(result, field.name) for field in fields(result)}
        del facts["profile"]
        say_json({"file": str(facts.pop("path")), **facts})
    else:
        _show_calibration(result)


def _say_host(path: Path, *, as_json: bool) -> None:
    if as_json:
        say_json({"file": str(path)})
    else:
        say(f'wrote {path}: open_device("sim:{path}")')


def _show_calibration(result: Calibration) -> None:
    rows = [
        {
            "dtype": dtype,
            "rows": errors["rows"],
            "in the fit": _median_p90(errors),
            "shapes left out": _median_p90(result.held_out.get(dtype)),
            "whole-GPU rate × SM share": _median_p90(errors, "share_"),
        }
        for dtype, errors in result.errors.items()
    ]
    show_table("error of predicted GEMM times: median, 90th percentile", rows)
    say(f"{result.profile.measured.shapes} shapes; {result.profile.measured.source}")
    if result.told_errors:
        say(f"told the SM count: {_median_p90(result.told_errors)} on shapes left out")
    if result.unreadable:
        say("kernels whose tile cannot be told: " + ", ".join(result.unreadable))
    if result.skipped:
        say(f"{result.skipped} timings left out: each call would have taken too long")
    say(f"{result.measured_s:.0f} s of measuring, {result.fitted_s:.0f} s of fitting")
    say(f'wrote {result.path}: open_device("sim:{result.path}")')


def _median_p90(errors: Mapping[str, float] | None, prefix: str = "") -> str:
    return f"{errors[f'{prefix}median']:.1%}, {errors[f'{prefix}p90']:.1%}" if errors else "–"
