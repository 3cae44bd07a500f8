"""What a check measures: numbers of settings by round or process, of whatever it is given."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpuscope._columns import COMPARED, TOGETHER
from gpuscope._text import clean
from gpuscope.analysis.idle_analysis import idle_causes
from gpuscope.analysis.settings import of_slowest_rank, settings_table
from gpuscope.comparing.rounds import (
    MeasuredTrace,
    Number,
    Values,
    measured,
    values_of_program,
    windows_of,
)
from gpuscope.device.device import Device
from gpuscope.errors import InvalidArgument
from gpuscope.experiments.execution import run
from gpuscope.experiments.experiment import Experiment
from gpuscope.judging.budget import Limit
from gpuscope.judging.machine import Machine, machine_of
from gpuscope.judging.programs import Command, ProgramSide, recorded_runs
from gpuscope.judging.sides import device_of
from gpuscope.judging.targets import target_of
from gpuscope.trace.columns import rows_of
from gpuscope.trace.model import Trace
from gpuscope.trace.schema import GPU_WORK

ROUNDS, PROCESSES = 5, 5
"""Rounds, or processes, that tell how sure a number is."""


@dataclass(frozen=True)
class Seen:
    """What was measured.

    Attributes
    ----------
    traces
        Setting → trace.
    numbers
        Setting → what it gave, all columns, and each round or process.
    searched
        Setting → a trace in which hazards were looked for.
    """

    traces: Mapping[str, Trace]
    numbers: Mapping[str, MeasuredTrace]
    searched: Mapping[str, Trace]
    unit: str
    rounds: int
    machine: Machine

    @classmethod
    def of(
        cls,
        target: object,
        limits: Sequence[Limit],
        device: Device | str | None,
        rounds: int | None,
        needs_processes: bool,  # noqa: FBT001 - what it is of
        stop: threading.Event,
    ) -> Seen:
        """Measure a target."""
        match target_of("target", target):
            case Command() as command if device is None:
                return cls._of_program(command, rounds or PROCESSES)
            case Command():
                raise InvalidArgument("device is for experiments: a program opens its own")
            case Trace() as trace:
                return cls._of_traces({trace.metadata.setting or "": trace})
            case Experiment() as experiment:
                pass
            case saved:
                return cls._of_traces(saved)
        _check_names(experiment, limits)
        wanted = any(limit.column == "hazards" for limit in limits)
        return cls._of_experiment(
            experiment, device_of(device), rounds, needs_processes, wanted, stop
        )

    @classmethod
    def _of_experiment(
        cls,
        experiment: Experiment,
        device: Device,
        rounds: int | None,
        needs_processes: bool,  # noqa: FBT001 - as above
        wants_hazards: bool,  # noqa: FBT001 - as above
        stop: threading.Event,
    ) -> Seen:
        searched = {}
        if wants_hazards:
            looking = experiment.model_copy(
                update={"hazards": True, "rounds": 1, "alone_repeats": 0}
            )
            searched = dict(run(looking, device, stop=stop))
        if needs_processes and not device.is_simulated:
            runs = recorded_runs(experiment, device.info.key, rounds or PROCESSES)
            traces = {
                name: Trace.concat([by_setting[name] for by_setting in runs]) for name in runs[0]
            }
            numbers = {
                name: _joined([_values_of(by_setting[name]) for by_setting in runs])
                for name in runs[0]
            }
            each_run = [trace for by_setting in runs for trace in by_setting.values()]
            unit, several = "process", len(runs)
        else:
            least = max(experiment.rounds, rounds or ROUNDS)
            experiment = experiment.model_copy(update={"rounds": least})
            traces = dict(run(experiment, device, stop=stop))
            numbers, several = _by_rounds(traces)
            unit, each_run = "round", [*traces.values()]
        return cls(traces, numbers, searched, unit, several, machine_of([*each_run]))

    @classmethod
    def _of_traces(cls, traces: Mapping[str, Trace]) -> Seen:
        """Take what was saved."""
        numbers, several = _by_rounds(traces)
        machine = machine_of([*traces.values()])
        return cls(traces, numbers, traces, "saved round", several, machine)

    @classmethod
    def _of_program(cls, command: Command, rounds: int) -> Seen:
        side = ProgramSide("the program", command)
        measured = [side.measure(number) for number in range(rounds)]
        first = measured[0].trace
        numbers = _joined([_of_program(process.trace) for process in measured])
        machine = machine_of([process.trace for process in measured])
        return cls({"": first}, {"": numbers}, {}, "process", rounds, machine)

    @property
    def is_simulated(self) -> bool:
        """Whether a simulated GPU gave all numbers."""
        return all(trace.is_simulated for trace in self.traces.values())

    def measured(self, setting: str) -> MeasuredTrace:
        """Return the numbers of a setting as they are compared with others."""
        if self.unit != "process":
            gave = measured(self.traces[setting])
            if gave.unit == "part":  # of which the numbers of rounds are not all
                whole = {**self.numbers[setting].whole, **gave.whole}
                return MeasuredTrace(whole, gave.samples, gave.unit)
        return self.numbers[setting]

    def judged(self, setting: str) -> int:
        """Return how many numbers a comparison of the setting with another judges together."""
        return len(measured(self.traces[setting]).samples)

    def settings_of(self, limit: Limit) -> list[str]:
        """Return the settings that a limit is of."""
        if limit.setting is not None and limit.setting not in self.numbers:
            raise InvalidArgument(
                f"there is no setting {clean(limit.setting)!r}; there are "
                f"{', '.join(map(repr, self.numbers))}"
            )
        if limit.setting is not None:
            return [limit.setting]
        if not limit.workload:
            return [*self.numbers]
        has = [
            name
            for name, gave in self.numbers.items()
            if any(workload == limit.workload for workload, _ in gave.whole)
        ]
        return has or [*self.numbers][:1]


def _check_names(experiment: Experiment, limits: Sequence[Limit]) -> None:
    """Refuse limits on what the experiment does not have, before it runs."""
    settings = [setting.name for setting in experiment.resolve()]
    for limit in limits:
        if limit.workload and limit.workload not in experiment.workloads:
            raise InvalidArgument(
                f"{limit.name}: the experiment has no workload {clean(limit.workload)!r}; there "
                f"are {', '.join(map(repr, experiment.workloads))}"
            )
        if limit.setting is not None and limit.setting not in settings:
            raise InvalidArgument(
                f"the experiment has no setting {clean(limit.setting)!r}; there are "
                f"{', '.join(map(repr, settings))}"
            )


def _by_rounds(traces: Mapping[str, Trace]) -> tuple[dict[str, MeasuredTrace], int]:
    """Return what the settings of a run and their rounds gave, and how many rounds there are."""
    numbers, several = {}, 0
    for name, trace in traces.items():
        whole = _values_of(trace)
        rounds = [_values_of(part) for part in windows_of(trace)]
        samples = {key: [values[key] for values in rounds if key in values] for key in whole}
        numbers[name] = MeasuredTrace(whole, samples, "round")
        several = max(several, len(rounds))
    return numbers, several


def _joined(processes: Sequence[Values]) -> MeasuredTrace:
    """Return the means of processes, and the number of each."""
    keys = [key for key in processes[0] if all(key in values for values in processes)]
    samples = {key: [values[key] for values in processes] for key in keys}
    whole = {key: float(np.mean(values)) for key, values in samples.items()}
    return MeasuredTrace(whole, samples, "process")


def _values_of(trace: Trace) -> dict[Number, float]:
    """Return the numbers of a trace of an experiment; of any other, as those of a program."""
    if not (trace.metadata.experiment or {}).get("workloads"):
        return _of_program(trace)
    values: dict[Number, float] = {}
    for row in of_slowest_rank(settings_table({"": trace}).to_pylist()):
        for key, column in COMPARED.items():
            if column.kind == "number" and row[key] is not None:
                values["" if key in TOGETHER else row["workload"], key] = float(row[key])
    windows = trace.metadata.windows_ns
    if windows and len(rows_of(trace, *GPU_WORK)):
        idle = idle_causes(trace, (windows[0][0], windows[-1][1]))
        lasted_ns = sum(high - low for low, high in windows) * max(idle.devices, 1)
        values["", "idle_share"] = idle.idle_ns / max(lasted_ns, 1)
    return values


def _of_program(trace: Trace) -> dict[Number, float]:
    return {("", column): value for (_, column), value in values_of_program(trace).items()}
