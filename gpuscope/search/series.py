"""Experiments one after the other, for one viewer: in this process, or on workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeVar

from gpuscope.device.device import Device
from gpuscope.errors import GpuscopeError, InvalidArgument, NothingRecorded
from gpuscope.experiments.execution import devices_of, opened, run
from gpuscope.experiments.experiment import Experiment
from gpuscope.experiments.runner import Progress, Viewer, foreground_calls
from gpuscope.search.scale_out import Team, all_locked, team_of
from gpuscope.trace.run import Run

_Key = TypeVar("_Key", bound=Hashable)
_Result = TypeVar("_Result")
_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


@contextmanager
def place_of(
    executor: Executor | str | None, device: Device | str | None, *, mixed: bool = False
) -> Iterator[Device | Team]:
    """Yield where experiments run: on workers, or without an executor on a device, here."""
    if executor is None:
        yield opened(device)
    else:
        with team_of(executor, device, mixed=mixed) as team:
            yield team


def as_far_as_measured(measure: Callable[[], None], result: Callable[[], _Result]) -> _Result:
    """Measure, and return the result; after an interrupt of either, that of what there is."""
    with suppress(KeyboardInterrupt):
        measure()
        return result()
    return result()


@dataclass(frozen=True)
class Plan(Generic[_T_co]):
    """An experiment to run, and what is made of it where it ran.

    Attributes
    ----------
    label
        Which one it is, for the viewer: stands before the setting where there are several.
    make
        Takes the run and the UUID of the GPU; can be pickled.
    number
        The round to tell the viewer, where each of several runs is but one.
    once
        Names what each process runs but once on each GPU; later plans of this name are left out.
    """

    experiment: Experiment
    label: str
    make: Callable[[Run, str], _T_co]
    number: int | None = None
    once: str = ""

    @property
    def calls(self) -> int:
        """Foreground calls, as the progress counts them."""
        return foreground_calls(self.experiment) * max(1, len(self.experiment.settings))


_run_once: set[tuple[str, str]] = set()
"""What this process has run once, and the UUID of the GPU."""


@dataclass
class Series(Generic[_Key, _T]):
    """Runs experiments for one viewer, which sees one progress over all of them.

    Attributes
    ----------
    runs_on
        A device of this process, or workers.
    keep
        Told once of each key what was made of its run, or why nothing was.
    total
        Foreground calls of all that is to be run here.
    stopped
        Whether Ctrl-C or ``stop`` ended it early.
    """

    runs_on: Device | Team
    keep: Callable[[_Key, _T | GpuscopeError], None]
    total: int
    viewer: Viewer | None
    stop: threading.Event
    stopped: bool = field(default=False, init=False)
    _done: int = field(default=0, init=False)
    _plans: dict[_Key, Plan[_T]] = field(default_factory=dict, init=False)
    _runs: dict[_Key, Run] = field(default_factory=dict, init=False)

    def run(self, jobs: Iterable[tuple[str, Mapping[_Key, Plan[_T]]]]) -> None:
        """Run jobs, each with its name: experiments that one GPU runs one after the other.

        Raises
        ------
        InvalidArgument
            On workers, an experiment names GPUs: each worker holds one of its own.
        """
        if isinstance(self.runs_on, Team):
            named = [*jobs]
            for plan in (plan for _, plans in named for plan in plans.values()):
                _check_no_gpu_named(plan.experiment, self.runs_on.name)
            parts = {number: partial(_all, plans) for number, (_, plans) in enumerate(named)}
            names = [name for name, _ in named].__getitem__
            for number, made in self.runs_on.done(parts, self.stop, self.viewer, names):
                for key in named[number][1] if isinstance(made, GpuscopeError) else made:
                    self.keep(key, made if isinstance(made, GpuscopeError) else made[key])
            self.stopped = self.stop.is_set()
            return
        for _, plans in jobs:
            for key, plan in _due(plans, self.runs_on).items():
                self._run_on(self.runs_on, key, plan)

    def settle(self) -> None:
        """Keep what was recorded here; again where an interrupt struck."""
        for key, recorded in [*self._runs.items()]:
            assert isinstance(self.runs_on, Device)  # noqa: S101 - or there are no runs
            self.keep(key, self._plans[key].make(recorded, self.runs_on.info.uuid))
            self._runs.pop(key)  # its traces are large

    def _run_on(self, device: Device, key: _Key, plan: Plan[_T]) -> None:
        before = self._done
        self._done += plan.calls
        self.stopped = self.stopped or self.stop.is_set()
        if self.stopped:
            return

        def view(progress: Progress) -> None:
            assert self.viewer is not None  # noqa: S101 - or nobody calls this
            # Alone on the whole GPU it names no setting.
            several = plan.experiment.settings and progress.setting
            setting = f"{plan.label}: {progress.setting}" if several else plan.label
            number = progress.round if plan.number is None else plan.number
            done, total = before + progress.done, self.total
            self.viewer(replace(progress, setting=setting, done=done, total=total, round=number))

        viewer = None if self.viewer is None else view
        self._plans[key] = plan
        try:
            with all_locked(device, devices_of(plan.experiment, device)):
                self._runs[key] = run(plan.experiment, device, viewer=viewer, stop=self.stop)
            self.stopped = self._runs[key].stopped
        except (KeyboardInterrupt, NothingRecorded):  # after Ctrl-C the event tells nothing
            self.stopped = True
        except (GpuscopeError, RuntimeError) as error:  # of a library's, too
            self.keep(key, _ours(error))
        self.settle()


def _check_no_gpu_named(experiment: Experiment, device: str) -> None:
    """Refuse an experiment that would use other GPUs than that which its worker holds."""
    if any(name.startswith("cuda:") for name in devices_of(experiment, device)):
        raise InvalidArgument(
            f"experiment {experiment.name!r} runs on {', '.join(experiment.devices)}, but a worker "
            "runs it on the one GPU that it holds: leave out the executor or --workers (jobs of "
            "--shard may share a host), or take devices out of the experiment"
        )


def _all(plans: Mapping[_Key, Plan[_T]], device: Device) -> dict[_Key, _T | GpuscopeError]:
    """Run experiments on a worker, one after the other."""
    made: dict[_Key, _T | GpuscopeError] = {}
    for key, plan in _due(plans, device).items():
        try:
            made[key] = plan.make(run(plan.experiment, device), device.info.uuid)
        except (GpuscopeError, RuntimeError) as error:
            made[key] = _ours(error)
    return made


def _due(plans: Mapping[_Key, Plan[_T]], device: Device) -> dict[_Key, Plan[_T]]:
    """Return the plans without those that were to be run but once here, and have been."""
    due = {
        key: plan for key, plan in plans.items() if (plan.once, device.info.uuid) not in _run_once
    }
    _run_once.update((plan.once, device.info.uuid) for plan in due.values() if plan.once)
    return due


def _ours(error: GpuscopeError | RuntimeError) -> GpuscopeError:
    if isinstance(error, GpuscopeError):
        return error
    ours = GpuscopeError(f"{type(error).__name__}: {error}")
    ours.__cause__ = error
    return ours
