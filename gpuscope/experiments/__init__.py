"""One run: experiments and what runs them, ranks, recorded programs, predictions, Nsight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuscope._lazy import public

if TYPE_CHECKING:
    from gpuscope.experiments import nsight as nsight
    from gpuscope.experiments.execution import predict as predict
    from gpuscope.experiments.execution import run as run
    from gpuscope.experiments.experiment import Experiment as Experiment
    from gpuscope.experiments.profiling import profile as profile
    from gpuscope.experiments.trying import DelayResult as DelayResult
    from gpuscope.experiments.trying import try_delay as try_delay
    from gpuscope.trace.run import Run as Run

__getattr__, __dir__, __all__ = public(__name__)
