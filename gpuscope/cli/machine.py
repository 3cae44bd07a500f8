"""``devices``, ``doctor`` and ``lab``: what this machine has."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gpuscope import _nsys
from gpuscope._libcupti import NVTX_INJECTION, arrange_nvtx, arranged
from gpuscope._optional import how_to_install, is_installed, require
from gpuscope.cli import FAILED
from gpuscope.cli.app import Json, app, say, say_json, show_check
from gpuscope.device.device import Device
from gpuscope.device.diagnose import Check, check_cupti, check_gpu, check_launches
from gpuscope.device.families import FAMILIES
from gpuscope.device.select import open_device, why_not
from gpuscope.errors import GpuscopeError
from gpuscope.record import nvtx
from gpuscope.record.counters import EVERY_NS, READY_S, CounterProcess
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
    needed, optional = check_machine()
    checks, on_gpu = [*needed, *optional], all(check.ok for check in needed)
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
    command = [sys.executable, "-P", "-m", "jupyterlab", str(path)]
    if os.geteuid() == 0:
        command.append("--allow-root")
    raise typer.Exit(subprocess.run(command, check=False).returncode)  # noqa: S603 - our own


# -- what doctor looks at ------------------------------------------------------------------
_Seen = tuple[str, str]
"""What is there, and what to do; that is empty where all is well."""


def check_machine() -> tuple[list[Check], list[Check]]:
    """Look at what running the quickstart on the GPU needs, and at all else that is used."""
    cupti = check_cupti()
    looks: dict[str, Callable[[], _Seen]] = {
        "nvtx": _nvtx,
        "NVTX injection": _injection,
        "performance counters": _counters,
        "nsys": lambda: _tool("nsys"),
        "ncu": lambda: _tool("ncu"),
        "JupyterLab": lambda: _package("jupyterlab", "lab"),
        "widgets in JupyterLab": lambda: _package("jupyterlab_widgets", "notebook"),
        "Plotly figures as widgets": lambda: _package("anywidget", "notebook"),
        "jupyter lab command": _command,
    }
    if cupti.ok:
        looks = {"CUPTI's subscription": _holder, **looks}
    checks = [_checked(name, *look()) for name, look in looks.items()]
    return check_gpu(), [cupti, check_launches(), *checks]


def _checked(name: str, state: str, todo: str) -> Check:
    return Check(name, ok=not todo, found=state, todo=todo)


def _holder() -> _Seen:
    """Look who holds CUPTI's one subscription of this process."""
    try:
        library = Library()
        library.unsubscribe(library.subscribe())
    except Refused as error:
        who = error or "a client that gives no name"
        return f"held by {who}", "run outside that tool: CUPTI serves one of them in a process"
    except GpuscopeError as error:
        return str(error), "profile(source='events') works"
    return "free", ""


def _nvtx() -> _Seen:
    """Look whether tools see the ranges of annotate."""
    missing = "the package nvtx is not installed: Nsight sees no ranges of gs.annotate"
    return (missing, how_to_install("nvtx")) if nvtx.missing() else ("installed", "")


def _injection() -> _Seen:
    """Look whether NVTX ranges would reach our recordings, or the tool that runs us."""
    given = os.environ.get(NVTX_INJECTION)
    if given is None:
        arrange_nvtx()
        if arranged():
            return "gpuscope sets it", ""
        todo = "mend CUPTI (above); ranges of gs.annotate are recorded anyway"
        return "not set: there is no CUPTI to receive it", todo
    path = Path(given)
    if not path.is_file():
        return f"{NVTX_INJECTION} names no file", "unset it"
    todo = f"unset {NVTX_INJECTION} unless a tool needs it: ranges go there, not to gpuscope"
    return f"{NVTX_INJECTION} is set to {path.name}", "" if "cupti" in path.name.lower() else todo


def _counters() -> _Seen:
    """Look whether this user may read the GPU's performance counters, and which there are."""
    try:
        text = _DRIVER_PARAMETERS.read_text("utf-8")
    except OSError:
        return "no driver tells who may read them", "install the NVIDIA driver"
    restricted = re.search(r"RmProfilingAdminOnly:\s*1", text) is not None
    if not restricted or os.geteuid() == 0:
        who = "administrators, as you are" if restricted else "everybody"
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
        sampler = CounterProcess(0, first or "0", EVERY_NS)
        sampler.wait(time.monotonic() + READY_S)
        sampler.end()
        if sampler.refusal:
            todo = "profile(counters=True) samples nothing; timelines need no counters"
            return f"open to {who}, but not sampled: {sampler.refusal}", todo
        without = f" without {', '.join(sampler.without)}" if sampler.without else ""
        return f"open to {who}, and sampled{without}", ""
    todo = "load the driver with NVreg_RestrictProfilingToAdminUsers=0, or use sudo"
    return "open to administrators only", f"for ncu and profile(counters=True): {todo}"


def _tool(name: str) -> _Seen:
    """Look whether nsys or ncu is there, and what nsys needs to read its own reports."""
    try:
        path = _nsys.find(name)
    except GpuscopeError as error:
        return "not found", str(error)
    missing = ", ".join(_nsys.missing_libraries(path) if name == "nsys" else [])
    todo = f"install {missing}: without them reports cannot be imported" if missing else ""
    return str(path), todo


def _package(package: str, extra: str) -> _Seen:
    """Look whether a package is installed."""
    if not is_installed(package):
        return "missing", how_to_install(extra)
    return "installed", ""


def _command() -> _Seen:
    """Look whether jupyter lab is the one of this Python."""
    if shutil.which("jupyter-lab", path=str(Path(sys.executable).parent)) is None:
        return "false", "use the environment that gpuscope is installed in"
    return "true", ""
