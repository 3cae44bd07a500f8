"""Experiments under Nsight Systems or Nsight Compute, in a separate process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpuscope import _child, _nsys
from gpuscope._checks import count, door, given
from gpuscope._files import replacing
from gpuscope.errors import (
    Cancelled,
    ExportError,
    GpuscopeError,
    InvalidArgument,
    MissingDependency,
)
from gpuscope.experiments.execution import perform
from gpuscope.experiments.experiment import Description, Experiment, as_experiment
from gpuscope.formats.reading import load_trace
from gpuscope.trace.model import Trace

_SUFFIXES = {"nsys": ".nsys-rep", "ncu": ".ncu-rep"}
_OPTIONS = {
    "nsys": "profile --trace=cuda,nvtx --sample=none --cpuctxsw=none --cuda-graph-trace={graphs} "
    "--force-overwrite=true --output={made}",
    "ncu": "--clock-control=none --nvtx --launch-count={launches} --force-overwrite "
    "--export={made}",
}
_VARIABLES = """
    PATH HOME LANG LANGUAGE LC_ALL LC_CTYPE LC_NUMERIC TMPDIR LD_LIBRARY_PATH LD_PRELOAD
    VIRTUAL_ENV CONDA_PREFIX XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME XDG_RUNTIME_DIR
    OMP_NUM_THREADS MKL_NUM_THREADS PYTHONHOME PYTHONHASHSEED PYTHONNOUSERSITE
    PYTHONUNBUFFERED PYTHONUTF8 PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX PYTHONIOENCODING
    CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_DEVICE_MAX_CONNECTIONS CUDA_HOME CUDA_PATH
    CUDA_MODULE_LOADING CUDA_CACHE_PATH CUDA_CACHE_DISABLE CUDA_CACHE_MAXSIZE
    CUDA_LAUNCH_BLOCKING CUDA_FORCE_PTX_JIT CUDA_DISABLE_PTX_JIT CUDA_MPS_PIPE_DIRECTORY
    CUDA_MPS_LOG_DIRECTORY CUDA_MPS_ACTIVE_THREAD_PERCENTAGE CUBLAS_WORKSPACE_CONFIG
    NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES NVIDIA_TF32_OVERRIDE
    NSYS_NVTX_PROFILER_REGISTER_ONLY CUPY_ACCELERATORS CUPY_CACHE_DIR CUPY_CACHE_IN_MEMORY
    CUPY_COMPILE_WITH_PTX CUPY_TF32 TORCH_HOME TORCH_CUDA_ARCH_LIST TORCHINDUCTOR_CACHE_DIR
    TRITON_CACHE_DIR PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF PYTORCH_NVML_BASED_CUDA_CHECK
"""
_KEPT = frozenset(_VARIABLES.split())
"""Variables of the environment that the experiment gets: nsys keeps all that it sees, so they are
named one by one."""
_LOOK_S = 0.2


@dataclass(frozen=True)
class Profile:
    """What a tool recorded of an experiment.

    Attributes
    ----------
    report
        The tool's file, for its own windows.
    trace
        The same, imported; ``None`` of Nsight Compute, which records counters.
    command
        What was run.
    """

    report: Path
    trace: Trace | None
    command: tuple[str, ...]


@door("report", "tool", "device", "graph_nodes", "launches", "program", "keep_private", "cancel")
def profile(
    experiment: Description,
    report: str | Path | None = None,
    *,
    tool: Literal["nsys", "ncu"] = "nsys",
    device: str = "cuda:0",
    graph_nodes: bool = False,
    launches: int = 100,
    program: str | Path | None = None,
    keep_private: bool = False,
    cancel: threading.Event | None = None,
) -> Profile:
    """Run an experiment under ``nsys profile`` or ``ncu`` in a process of its own.

    gpuscope records nothing meanwhile, and runs no workload alone. Ranges in the domain
    ``gpuscope`` name the settings and the rounds.

    Parameters
    ----------
    experiment
        The experiment: an ``Experiment``, the path of a TOML or JSON file, or a dict.
    report
        Where to; without it the experiment's name in the working folder. Its suffix is the
        tool's.
    tool
        ``"nsys"``: a timeline of CUDA calls, GPU work and NVTX ranges, without sampling.
        ``"ncu"``: hardware counters of the first launches, which it runs again and again,
        without locking clocks.
    device
        As for :func:`gpuscope.open_device`.
    graph_nodes
        For nsys: record the work of graphs node by node, not launch by launch. It costs more.
    launches
        For ncu: how many kernels.
    program
        The tool's path; without it PATH, CUDA's toolkit and the usual folders are searched,
        Nsight Compute's among them, which brings an nsys.
    keep_private
        Give the process this one's whole environment, which nsys writes into its report.
        Without it only variables that are known to matter to CUDA, Python and their libraries,
        and to hold no secret.
    cancel
        Set it, from another thread, to stop; nothing is left.

    Returns
    -------
    Profile
        The report's path and, from nsys, the trace.

    Raises
    ------
    MissingDependency
        The tool is not here, or cannot make a report for want of a library; says which.
    InvalidExperiment
        Before anything is run.
    Cancelled
        ``cancel`` was set.
    GpuscopeError
        The experiment failed; quotes its output.

    Notes
    -----
    Workloads of one's own (``python:module:function``) are imported anew in that process.

    Examples
    --------
    >>> import gpuscope as gs
    >>> done = gs.experiments.nsight.profile("experiment.toml", "seen.nsys-rep")  # doctest: +SKIP
    >>> done.trace.kind_counts()["kernel"]  # doctest: +SKIP
    200
    """
    if tool not in _SUFFIXES:
        raise InvalidArgument(f"tool is {given(tool)}; 'nsys' or 'ncu' is needed")
    launches = count("launches", launches, least=1)
    described = as_experiment(experiment)
    executable = _nsys.find(tool, program)
    target = _target(report, described, tool)
    with replacing(target) as temporary:
        folder = temporary.with_name("work")
        folder.mkdir()
        description = folder / "experiment.json"
        description.write_text(json.dumps(described.to_dict()), "utf-8")
        made = folder / f"report{_SUFFIXES[tool]}"
        run = _child.python_command(f"{__name__}:_perform_described", str(description), device)
        graphs, to = "node" if graph_nodes else "graph", made.with_suffix("")
        values = {"made": to, "launches": launches, "graphs": graphs}
        options = (option.format_map(values) for option in _OPTIONS[tool].split())
        command = (str(executable), *options, *run)
        status, output = _run(command, _environment(keep_private=keep_private), cancel)
        if status or not made.exists():
            raise _failure(tool, executable, folder, status, output)
        trace = _imported(made, folder, executable) if tool == "nsys" else None
        made.replace(temporary)
    return Profile(target, trace, command)


def _perform_described() -> None:
    """Do the work of the experiment, on the device, that this process's arguments name."""
    try:
        perform(sys.argv[1], sys.argv[2])
    except GpuscopeError as error:
        sys.exit(str(error))


def _target(report: str | Path | None, experiment: Experiment, tool: str) -> Path:
    suffix = _SUFFIXES[tool]
    if report is None:
        slug = re.sub(r"[^\w-]+", "-", experiment.name).strip("-")[:80] or "experiment"
        return Path(f"{slug}{suffix}")
    target = Path(report)
    if target.suffix != suffix:
        raise ExportError(f"a report of {tool} ends in {suffix}, {target.name!r} does not")
    return target


def _environment(*, keep_private: bool) -> dict[str, str]:
    """Return the process's environment."""
    return {name: value for name, value in os.environ.items() if keep_private or name in _KEPT}


def _run(
    command: tuple[str, ...], environment: Mapping[str, str], cancel: threading.Event | None
) -> tuple[int, bytes]:
    """Run to the end or until cancelled; returns the exit status and the output."""
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(  # noqa: S603 - the program that was found or named
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # such as a NUL in the device's name
            raise GpuscopeError(
                f"{Path(command[0]).name!r} cannot be started ({error}): check the program and "
                "the device's name"
            ) from error
        try:
            while (status := process.poll()) is None and not (cancel and cancel.is_set()):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK_S)
        finally:
            if process.returncode is None:
                _end(process)
        if status is None:
            raise Cancelled("profiling was cancelled: no report was left")
        output.seek(0)
        return status, output.read()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process group; kill what does not end."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
            return


def _failure(tool: str, program: Path, folder: Path, status: int, output: bytes) -> GpuscopeError:
    """Return what to raise where there is no report."""
    if tool == "nsys" and any(folder.glob("*.qdstrm")):
        missing = _nsys.missing_libraries(program)
        if missing:
            return MissingDependency(
                f"nsys recorded the experiment but cannot make a report of it: its importer needs "
                f"{', '.join(missing)}. Install that, or use an nsys that is installed whole"
            )
    text = _nsys.tail(output).replace(str(folder), "…")
    if status:
        return GpuscopeError(f"the experiment failed under {tool} (status {status}): {text}")
    return GpuscopeError(f"{tool} made no report: {text}")


def _imported(made: Path, folder: Path, nsys: Path) -> Trace | None:
    """Import a report by the nsys that made it; the report counts more than the import."""
    try:
        return load_trace(_nsys.export_sqlite(made, folder / "report.sqlite", nsys))
    except GpuscopeError as error:
        warnings.warn(f"the report is there but could not be imported: {error}", stacklevel=3)
        return None
