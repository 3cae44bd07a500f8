"""Forecasters, which are registered: what a tuning asks how settings may do, before it measures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol, TypeAlias

from gpuscope._plugins import Plugins
from gpuscope.device.device import Device
from gpuscope.errors import MissingDependency, MissingEvidence
from gpuscope.experiments.experiment import Experiment
from gpuscope.workloads.spec import WorkloadSpec


class Forecaster(Protocol):
    """Forecasts the settings of one experiment, by running them on a device of its own.

    Attributes
    ----------
    device
        Where runs take as long as they would on the device that is tuned.
    words
        How it forecasts: ``"forecasts: SIMULATED with the GPU profile h200"``.
    """

    device: Device
    words: str

    def prepare(self, folder: Path | None, stop: threading.Event) -> Mapping[str, WorkloadSpec]:
        """Return, by name, what runs in place of workloads that its device cannot run.

        Parameters
        ----------
        folder
            The tuning's, where what this has to measure is kept, if it has one.
        stop
            Ends it, by :class:`KeyboardInterrupt`.

        Raises
        ------
        GpuscopeError
            There will be no forecasts; says why.
        """


MakeForecaster: TypeAlias = Callable[[Experiment, Device, Collection[str], str], Forecaster]
"""What an entry point of the group ``gpuscope.forecasters`` names: the experiment, the device that
is tuned, paths that are varied, and the ``gpu_profile`` that was asked for → the forecaster.
:class:`MissingEvidence` says why there is none."""


FORECASTERS: Plugins[MakeForecaster] = Plugins("gpuscope.forecasters", "forecaster")


def forecaster_for(
    experiment: Experiment, device: Device, parameters: Collection[str], gpu_profile: str
) -> tuple[Forecaster | None, str]:
    """Return who forecasts, and how; without one, the words say why.

    Those of other packages are asked first: who installs one wants it.
    """
    why = "nothing that forecasts is installed"
    for name in reversed(FORECASTERS.names()):
        try:
            make = FORECASTERS.find(name)
            if make is not None:
                forecaster = make(experiment, device, parameters, gpu_profile)
                return forecaster, "; ".join([forecaster.words, *FORECASTERS.problems()])
        except (MissingDependency, MissingEvidence) as error:
            why = str(error)
    return None, no_forecasts(why)


def no_forecasts(why: str) -> str:
    """Say why there are no forecasts, and what is done instead."""
    return f"no forecasts: {why}; settings all over the grid were measured first"
