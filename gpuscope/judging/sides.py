"""What is compared: an experiment, a program, or saved rounds; and measuring one round."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Protocol

from gpuscope._text import clean
from gpuscope.comparing.rounds import values_of
from gpuscope.comparing.turns import Round, conditions_of
from gpuscope.device.cuda.health import processes_by_uuid
from gpuscope.device.device import Device
from gpuscope.device.select import open_device
from gpuscope.errors import InvalidArgument, NothingRecorded
from gpuscope.experiments.execution import devices_of, run
from gpuscope.experiments.experiment import Experiment
from gpuscope.experiments.runner import Runner
from gpuscope.experiments.setting import ResolvedSetting
from gpuscope.trace.model import Trace

_APART_NS = 10**12
"""Between the clocks of simulated rounds, so that they follow each other in one trace."""


class Side(Protocol):
    """One of two that are compared."""

    name: str
    is_process: bool
    """Whether each of its rounds is a process of its own."""

    def measure(self, number: int) -> Round:
        """Measure one round; those of one number draw the same arrivals."""


def device_of(device: Device | str | None) -> Device:
    """Return a device: itself, or the one of that name; what is judged tells which it was."""
    return device if isinstance(device, Device) else open_device(device or "auto", quiet=True)


# -- experiments --------------------------------------------------------------------------
def setting_of(experiment: Experiment, name: str | None) -> ResolvedSetting:
    """Return a setting by its name, or the only one.

    Raises
    ------
    InvalidArgument
        There is no such setting, or there are several and none is named.
    """
    settings = {setting.name: setting for setting in experiment.resolve()}
    names = ", ".join(map(repr, settings))
    if name is None and len(settings) > 1:
        raise InvalidArgument(
            f"experiment {experiment.name!r} has {len(settings)} settings ({names}): say which"
        )
    if name is not None and name not in settings:
        raise InvalidArgument(
            f"experiment {experiment.name!r} has no setting {clean(name)!r}; there are {names}"
        )
    return settings[name or next(iter(settings))]


class ExperimentSide:
    """A setting of an experiment; a round runs all of its repeats, in this process.

    Each round makes its handles anew and gives them back, so that both sides get the same memory.
    A simulated GPU is new in each round: rounds of one number are then equal to the ns where what
    they run is.
    """

    is_process = False

    def __init__(
        self, name: str, experiment: Experiment, setting: str | None, device: Device
    ) -> None:
        self.name, self._device = name, device
        self._setting = setting_of(experiment, setting)
        changed = {"rounds": 1, "alone_repeats": 0}
        self.experiment = experiment.model_copy(update=changed)

    def lengthen(self, factor: int) -> None:
        """Let a round run its repeats so often."""
        specs = {
            name: spec
            if spec.background or name in self.experiment.driven
            else spec.model_copy(update={"repeats": spec.repeats * factor})
            for name, spec in self._setting.workloads.items()
        }
        self._setting = self._setting.model_copy(update={"workloads": specs})

    def measure(self, number: int) -> Round:
        """Run it once."""
        device, before = self._device, processes_by_uuid()
        if device.is_simulated:
            device = open_device(device.info.key, quiet=True)
            device.backend.wait_until_ns(device.now_ns() + number * _APART_NS)
        runner = Runner(self.experiment, device, None, threading.Event())
        with runner.ready():
            trace = runner.one_round(self._setting, number)
        if trace is None:
            raise NothingRecorded(f"{self.name}: no kernel and no call ended: nothing to compare")
        processes = before, processes_by_uuid()
        return Round(values_of(trace), trace, conditions_of(trace, processes, is_here=True))


class RankedSide:
    """A setting of an experiment on several devices: each round starts its ranks anew."""

    is_process = True

    def __init__(
        self, name: str, experiment: Experiment, setting: str | None, device: Device | str | None
    ) -> None:
        self.name, self._device = name, device
        self._setting = setting_of(experiment, setting).name
        named = {key: plan for key, plan in experiment.settings.items() if key == self._setting}
        self.experiment = experiment.model_copy(
            update={"rounds": 1, "alone_repeats": 0, "settings": named}
        )

    def measure(self, number: int) -> Round:
        """Run it once."""
        seeded = self.experiment.model_copy(update={"seed": self.experiment.seed + number})
        before = processes_by_uuid()
        trace = run(seeded, self._device)[self._setting]
        return Round(values_of(trace), trace, conditions_of(trace, [before]))


def side_of_experiment(
    name: str, experiment: Experiment, setting: str | None, device: Device
) -> Side:
    """Return what measures an experiment on the devices that it names, or on one."""
    if len(devices_of(experiment, device)) > 1:
        return RankedSide(name, experiment, setting, device)
    return ExperimentSide(name, experiment, setting, device)


# -- what was saved -----------------------------------------------------------------------
def saved_trace(which: str, traces: Mapping[str, Trace], setting: str | None) -> Trace:
    """Return the trace of a setting of a run, or of its only one.

    Raises
    ------
    InvalidArgument
        There are several settings and none is named, or there is none of that name.
    """
    names = ", ".join(map(repr, traces))
    if setting is None and len(traces) > 1:
        raise InvalidArgument(f"{which} has {len(traces)} settings ({names}): say which")
    if setting is not None and setting not in traces:
        raise InvalidArgument(f"{which} has no setting {clean(setting)!r}; there are {names}")
    return traces[setting] if setting is not None else next(iter(traces.values()))
