"""Running experiments: single runs, sweeps, tuning, interference, predictions, and under Nsight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuscope._lazy import public

if TYPE_CHECKING:
    from gpuscope.exporters.tuned import manual_divisions as manual_divisions
    from gpuscope.runs import nsight as nsight
    from gpuscope.runs.execution import predict as predict
    from gpuscope.runs.execution import run as run
    from gpuscope.runs.experiment import Experiment as Experiment
    from gpuscope.runs.interference import measure_interference as measure_interference
    from gpuscope.runs.profiling import profile as profile
    from gpuscope.runs.sweeps import load_sweep as load_sweep
    from gpuscope.runs.sweeps import sweep as sweep
    from gpuscope.runs.tune_result import TuneResult as TuneResult
    from gpuscope.runs.tuning import tune as tune
    from gpuscope.runs.what_if import what_if as what_if
    from gpuscope.trace.run import Run as Run

_HOMES = {
    "Experiment": "gpuscope.runs.experiment",
    "profile": "gpuscope.runs.profiling",
    "run": "gpuscope.runs.execution",
    "predict": "gpuscope.runs.execution",
    "sweep": "gpuscope.runs.sweeps",
    "load_sweep": "gpuscope.runs.sweeps",
    "measure_interference": "gpuscope.runs.interference",
    "tune": "gpuscope.runs.tuning",
    "TuneResult": "gpuscope.runs.tune_result",
    "manual_divisions": "gpuscope.exporters.tuned",
    "what_if": "gpuscope.runs.what_if",
    "Run": "gpuscope.trace.run",
    "nsight": "gpuscope.runs.nsight",
}
__all__ = [*_HOMES]  # noqa: PLE0604 - every key is a string
__getattr__, __dir__ = public(__name__, _HOMES)
