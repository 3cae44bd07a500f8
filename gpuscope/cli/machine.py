"""``devices``, ``doctor`` and ``lab``: what this machine has."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gpuscope import _nsys
from gpuscope._libcupti import NVTX_INJECTION, arrange_nvtx, arranged
from gpuscope._optional import how_to_install, require
from gpuscope.cli import FAILED
from gpuscope.cli.app import Json, app, say, say_json, show_check
from gpuscope.device.device import Device
from gpuscope.device.diagnose import Check, check_cupti, check_gpu, check_launches
from gpuscope.device.families import FAMILIES
from gpuscope.device.select import open_device, why_not
from gpuscope.errors import GpuscopeError
from gpuscope.record import nvtx
from gpuscope.record.cupti.library import Library, Refused

_DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")


@app.command("devices")
def devices_command(as_json: Json = False) -> None:  # noqa: FBT002 - typer's form of a flag
    """List the devices that open_device() can open here, and why not the others.

    Example: gpuscope devices --json
    """
    devices: list[dict[str, object]] = []
    for index in itertools.count():
        try:
            device = open_device(f"cuda:{index}", quiet=True)
        except GpuscopeError as error:
            if index == 0:
                devices.append({"device": "cuda:0", "available": False, "what": why_not(error)})
            break
        devices.append(_facts(device))
    devices += [
        _facts(open_device(f"{family}:{name}", quiet=True))
        for family, registered in FAMILIES.usable().items()
        for name in registered.names()
    ]
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
        say_json([asdict(check) for check in checks])
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
    try:
        path.stat()
    except (OSError, ValueError) as error:
        raise GpuscopeError(f"there is no {path.name!r}: name a folder or a notebook") from error
    require("jupyterlab", feature="gpuscope lab")
    command = [sys.executable, "-m", "jupyterlab", str(path)]
    if os.geteuid() == 0:
        command.append("--allow-root")
    raise typer.Exit(subprocess.run(command, check=False).returncode)  # noqa: S603 - our own


# -- what doctor looks at ------------------------------------------------------------------
def check_machine() -> tuple[list[Check], list[Check]]:
    """Look at what running the quickstart on the GPU needs, and at all else that is used."""
    cupti = check_cupti()
    others = [
        cupti,
        *([_check_holder()] if cupti.ok else []),
        check_launches(),
        _check_nvtx(),
        _check_injection(),
        _check_counters(),
        _check_tool("nsys"),
        _check_tool("ncu"),
        *_check_jupyter(),
    ]
    return check_gpu(), others


def _check_holder() -> Check:
    """Check that nobody else holds CUPTI's one subscription of this process."""
    name = "CUPTI's subscription"
    try:
        library = Library()
        library.unsubscribe(library.subscribe())
    except Refused as error:
        return Check(
            name,
            ok=False,
            found=f"held by {error or 'a client that gives no name'}",
            todo="run outside that tool: CUPTI serves one of them in a process",
        )
    except GpuscopeError as error:
        return Check(name, ok=False, found=str(error), todo="profile(source='events') works")
    return Check(name, ok=True, found="free")


def _check_nvtx() -> Check:
    """Check that tools see the ranges of annotate."""
    missing, _, todo = nvtx.missing().partition(". Run: ")
    return Check("nvtx", ok=not missing, found=missing or "installed", todo=todo)


def _check_injection() -> Check:
    """Check that NVTX ranges would reach our recordings, or the tool that runs us."""
    name = "NVTX injection"
    given = os.environ.get(NVTX_INJECTION)
    if given is None:
        arrange_nvtx()
        state = "gpuscope sets it" if arranged() else "not set: there is no CUPTI to receive it"
        todo = "" if arranged() else "mend CUPTI (above); ranges of gs.annotate are recorded anyway"
        return Check(name, ok=arranged(), found=state, todo=todo)
    if not Path(given).is_file():
        return Check(name, ok=False, found=f"{NVTX_INJECTION} names no file", todo="unset it")
    state = f"{NVTX_INJECTION} is set to {Path(given).name}"
    todo = f"unset {NVTX_INJECTION} unless a tool needs it: ranges go there, not to gpuscope"
    ours = "cupti" in Path(given).name.lower()
    return Check(name, ok=ours, found=state, todo="" if ours else todo)


def _check_counters() -> Check:
    """Check that this user may read the GPU's performance counters, which ncu needs."""
    name = "performance counters"
    try:
        text = _DRIVER_PARAMETERS.read_text("utf-8")
    except OSError:
        todo = "install the NVIDIA driver"
        return Check(name, ok=False, found="no driver tells who may read them", todo=todo)
    restricted = re.search(r"RmProfilingAdminOnly:\s*1", text) is not None
    if not restricted or os.geteuid() == 0:
        who = "administrators, as you are" if restricted else "everybody"
        return Check(name, ok=True, found=f"open to {who}")
    return Check(
        name,
        ok=False,
        found="open to administrators only",
        todo="for ncu alone: load the driver with NVreg_RestrictProfilingToAdminUsers=0, or use "
        "sudo; timelines need no counters",
    )


def _check_tool(name: str) -> Check:
    """Check that nsys or ncu is there, and what nsys needs to read its own reports."""
    try:
        path = _nsys.find(name)
    except GpuscopeError as error:
        return Check(name, ok=False, found="not found", todo=str(error))
    missing = _nsys.missing_libraries(path) if name == "nsys" else []
    if missing:
        todo = f"install {', '.join(missing)}: without them reports cannot be imported"
        return Check(name, ok=False, found=str(path), todo=todo)
    return Check(name, ok=True, found=str(path))


def _check_jupyter() -> list[Check]:
    """Check that JupyterLab and the extensions that draw widgets are installed."""
    checks = []
    for package, what, extra in (
        ("jupyterlab", "JupyterLab", "lab"),
        ("jupyterlab_widgets", "widgets in JupyterLab", "notebook"),
        ("anywidget", "Plotly figures as widgets", "notebook"),
    ):
        there = importlib.util.find_spec(package) is not None
        todo = "" if there else how_to_install(extra)
        state = "installed" if there else "missing"
        checks.append(Check(what, ok=there, found=state, todo=todo))
    command = shutil.which("jupyter-lab", path=str(Path(sys.executable).parent)) is not None
    todo = "" if command else "use the environment that gpuscope is installed in"
    checks.append(Check("jupyter lab command", ok=command, found=str(command).lower(), todo=todo))
    return checks
