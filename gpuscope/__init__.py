"""gpuscope: carve a GPU's SMs, assign streams, launch, and see what overlapped.

Public names resolve at first use (PEP 562), so that ``import gpuscope`` stays fast
and loads no CUDA library, notebook or plotting package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gpuscope import analysis as analysis
    from gpuscope import figures as figures
    from gpuscope import learn as learn
    from gpuscope import nsight as nsight
    from gpuscope.calibration.calibrate import calibrate as calibrate
    from gpuscope.device.caller import CallerStreamGuard as CallerStreamGuard
    from gpuscope.device.caller import get_caller_stream as get_caller_stream
    from gpuscope.device.select import open_device as open_device
    from gpuscope.errors import Cancelled as Cancelled
    from gpuscope.errors import CapabilityError as CapabilityError
    from gpuscope.errors import ClosedError as ClosedError
    from gpuscope.errors import DeviceUnavailable as DeviceUnavailable
    from gpuscope.errors import ExportError as ExportError
    from gpuscope.errors import GpuscopeError as GpuscopeError
    from gpuscope.errors import InvalidArgument as InvalidArgument
    from gpuscope.errors import InvalidExperiment as InvalidExperiment
    from gpuscope.errors import InvalidOperand as InvalidOperand
    from gpuscope.errors import InvalidPartition as InvalidPartition
    from gpuscope.errors import InvalidProfile as InvalidProfile
    from gpuscope.errors import MissingDependency as MissingDependency
    from gpuscope.errors import MissingEvidence as MissingEvidence
    from gpuscope.errors import NothingRecorded as NothingRecorded
    from gpuscope.errors import RecorderBusy as RecorderBusy
    from gpuscope.errors import StreamError as StreamError
    from gpuscope.errors import TraceFormatError as TraceFormatError
    from gpuscope.experiment import Experiment as Experiment
    from gpuscope.exporters import export as export
    from gpuscope.importers.limits import Limits as Limits
    from gpuscope.importers.load import load_trace as load_trace
    from gpuscope.interference import measure_interference as measure_interference
    from gpuscope.record.annotate import annotate as annotate
    from gpuscope.session import predict as predict
    from gpuscope.session import profile as profile
    from gpuscope.session import run as run
    from gpuscope.sweeps import sweep as sweep
    from gpuscope.trace.model import Run as Run
    from gpuscope.trace.model import Trace as Trace
    from gpuscope.trace.store import save_trace as save_trace
    from gpuscope.widgets.carver import PartitionCarver as PartitionCarver
    from gpuscope.widgets.dashboard import Dashboard as Dashboard
    from gpuscope.widgets.streams import StreamTable as StreamTable
    from gpuscope.widgets.timeline import Timeline as Timeline
    from gpuscope.widgets.workloads import WorkloadTable as WorkloadTable
    from gpuscope.workloads.function import workload as workload
    from gpuscope.workloads.gemm import Gemm as Gemm
    from gpuscope.workloads.gemm import mm_out as mm_out

_HOMES = {
    "calibrate": "gpuscope.calibration.calibrate",
    "CallerStreamGuard": "gpuscope.device.caller",
    "get_caller_stream": "gpuscope.device.caller",
    "open_device": "gpuscope.device.select",
    "Cancelled": "gpuscope.errors",
    "CapabilityError": "gpuscope.errors",
    "ClosedError": "gpuscope.errors",
    "DeviceUnavailable": "gpuscope.errors",
    "ExportError": "gpuscope.errors",
    "GpuscopeError": "gpuscope.errors",
    "InvalidArgument": "gpuscope.errors",
    "InvalidExperiment": "gpuscope.errors",
    "InvalidOperand": "gpuscope.errors",
    "InvalidPartition": "gpuscope.errors",
    "InvalidProfile": "gpuscope.errors",
    "MissingDependency": "gpuscope.errors",
    "MissingEvidence": "gpuscope.errors",
    "NothingRecorded": "gpuscope.errors",
    "RecorderBusy": "gpuscope.errors",
    "StreamError": "gpuscope.errors",
    "TraceFormatError": "gpuscope.errors",
    "Experiment": "gpuscope.experiment",
    "export": "gpuscope.exporters",
    "Limits": "gpuscope.importers.limits",
    "load_trace": "gpuscope.importers.load",
    "measure_interference": "gpuscope.interference",
    "annotate": "gpuscope.record.annotate",
    "predict": "gpuscope.session",
    "profile": "gpuscope.session",
    "run": "gpuscope.session",
    "sweep": "gpuscope.sweeps",
    "Run": "gpuscope.trace.model",
    "Trace": "gpuscope.trace.model",
    "save_trace": "gpuscope.trace.store",
    "PartitionCarver": "gpuscope.widgets.carver",
    "Dashboard": "gpuscope.widgets.dashboard",
    "StreamTable": "gpuscope.widgets.streams",
    "WorkloadTable": "gpuscope.widgets.workloads",
    "Timeline": "gpuscope.widgets.timeline",
    "workload": "gpuscope.workloads.function",
    "Gemm": "gpuscope.workloads.gemm",
    "mm_out": "gpuscope.workloads.gemm",
}
_MODULES = ("analysis", "figures", "learn", "nsight")

__all__ = [*_HOMES, *_MODULES]  # noqa: PLE0604 - every key is a string


def __getattr__(name: str) -> object:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"gpuscope.{name}")
    else:
        raise AttributeError(f"module 'gpuscope' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def load_ipython_extension(shell: object) -> None:
    """``%load_ext gpuscope``: the magics."""
    importlib.import_module("gpuscope.magics").load(shell)
