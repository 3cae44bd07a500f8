"""``devices``, ``doctor`` and ``lab``: what this machine has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from gpuscope._optional import require
from gpuscope.cli import FAILED
from gpuscope.cli.app import Json, app, say, say_json, show_check
from gpuscope.cli.doctor import check_machine
from gpuscope.device.device import Device
from gpuscope.device.select import open_device, why_not
from gpuscope.errors import GpuscopeError


@app.command("devices")
def devices_command(as_json: Json = False) -> None:  # noqa: FBT002 - typer's form of a flag
    """List the devices that open_device() can open here, and why not the others.

    Example: gpuscope devices --json
    """
    devices: list[dict[str, object]] = []
    index = 0
    while True:
        try:
            device = open_device(f"cuda:{index}", quiet=True)
        except GpuscopeError as error:
            if index == 0:
                devices.append({"device": "cuda:0", "available": False, "what": why_not(error)})
            break
        devices.append(_facts(device))
        index += 1
    devices.append(_facts(open_device("sim:h200", quiet=True)))
    if as_json:
        say_json(devices)
        return
    for facts in devices:
        say(f"{facts['device']}: {facts['what']}")


def _facts(device: Device) -> dict[str, object]:
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
def doctor_command(as_json: Json = False) -> None:  # noqa: FBT002 - typer's form of a flag
    """Say what of this machine gpuscope can use, and what to do about the rest.

    The exit code is 0 if the quickstart would run on the GPU.

    Example: gpuscope doctor --json
    """
    needed, others = check_machine()
    checks, on_gpu = [*needed, *others], all(check.ok for check in needed)
    if as_json:
        lines = [{"name": c.name, "ok": c.ok, "found": c.found, "todo": c.todo} for c in checks]
        say_json(lines)
    else:
        for check in checks:
            show_check(f"{check.name}: {check.found}", check.todo, ok=check.ok)
        where = "this GPU" if on_gpu else "the simulated H200"
        say(f"The quickstart would run on {where}.")
    if not on_gpu:
        raise typer.Exit(FAILED)


@app.command("lab")
def lab_command(
    path: Annotated[Path, typer.Argument(help="A folder or a notebook.")] = Path(),
) -> None:
    """Open JupyterLab with this Python, where the widgets and %load_ext gpuscope work.

    Example: gpuscope lab notebooks
    """
    if not path.exists():
        raise GpuscopeError(f"there is no {path.name!r}: name a folder or a notebook")
    require("jupyterlab", feature="gpuscope lab")
    command = [sys.executable, "-m", "jupyterlab", str(path)]
    if os.geteuid() == 0:
        command.append("--allow-root")
    raise typer.Exit(subprocess.run(command, check=False).returncode)  # noqa: S603 - our own
