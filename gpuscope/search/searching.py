"""One tuning under way: what is forecast, what is measured next, and what came of it."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpuscope._columns import OF_ENERGY
from gpuscope.comparing.effects import FEWEST
from gpuscope.comparing.outlook import Outlook
from gpuscope.comparing.race import Goal, Race, Samples, Values
from gpuscope.comparing.tunings import TunedSetting
from gpuscope.device.device import Device
from gpuscope.errors import (
    GpuscopeError,
    InvalidPartition,
    MissingEvidence,
    NothingRecorded,
    WorkerLost,
)
from gpuscope.experiments.experiment import Experiment
from gpuscope.experiments.runner import Viewer
from gpuscope.record.facts import versions
from gpuscope.search.candidates import candidates_of
from gpuscope.search.forecasters import forecaster_for, no_forecasts
from gpuscope.search.grid import Value
from gpuscope.search.point_table import PointTable
from gpuscope.search.points import MeasuredPoint, point_of
from gpuscope.search.scale_out import Team
from gpuscope.search.series import Plan, Series
from gpuscope.search.tune_result import TuneResult
from gpuscope.workloads.spec import WorkloadSpec

_FORECAST_CALLS = 100
"""Calls of a workload that a forecast runs, unless a p99 is asked for."""
_OF_ALONE = ("share_of_alone_on_whole_gpu", "gain")
"""Columns for which workloads are measured alone, too."""


@dataclass
class Search:
    """One tuning: its candidates, what was forecast and what was measured."""

    experiment: Experiment
    parameters: Mapping[str, tuple[Value, ...]]
    device: Device
    objective: Goal
    slo: tuple[Goal, ...]
    costs: tuple[Goal, ...]
    confidence: float
    repeats: int
    gpu_profile: str
    path: str | Path | None
    team: Team | None
    viewer: Viewer | None
    stop: threading.Event

    def __post_init__(self) -> None:
        device, viewer, stop = self.device, self.viewer, self.stop
        goals = (self.objective, *self.slo, *self.costs)
        update = {"rounds": 1}
        if any(goal.column in OF_ENERGY for goal in goals):
            update["energy"] = True
        if not any(goal.column in _OF_ALONE for goal in goals):
            update["alone_repeats"] = 0
        self.experiment = self.experiment.model_copy(update=update)
        self.folder = None if self.path is None else Path(self.path)
        self.stand_ins: Mapping[str, WorkloadSpec] = {}
        self.candidates, self.reference = candidates_of(self.experiment, self.parameters, device)
        self.able = [n for n, candidate in enumerate(self.candidates) if not candidate.error]
        self.places = {
            n: (candidate.setting, candidate.indices)
            for n, candidate in enumerate(self.candidates)
            if candidate.indices is not None
        }
        decisive = {goal.workload for goal in self.slo or (self.objective,)}
        self.sms = {
            n: self.candidates[n].sms_for(decisive, device.info.sm_count) for n in self.able
        }
        if not self.able:
            raise InvalidPartition(self.candidates[0].error)
        self.width = max(FEWEST, math.ceil(len(self.able) / 5))
        self.most = max(FEWEST * self.repeats, len(self.able) * self.repeats // 3)
        points = partial(PointTable, experiment=self.experiment, parameters=self.parameters)
        self.measured = points("turn", info=device.info, path=self.folder)
        self.points = self.measured.all().by_number
        self.forecaster, self.forecasts = forecaster_for(
            self.experiment, device, self.parameters, self.gpu_profile
        )
        simulated = None if self.forecaster is None else self.forecaster.device
        self.forecast: PointTable | None = None
        self.forecast_points: dict[int, MeasuredPoint] = {}
        if simulated is not None:
            self.forecast = points("forecast", info=simulated.info, path=self.folder)
            self.forecast_points = self.forecast.all().by_number
        calls = [self._planned(number, 0).calls for number in self.able]
        self.series = Series(self.team or device, self._keep, self.most * calls[0], viewer, stop)
        self.first = Series(simulated or device, self._keep_forecast, sum(calls), viewer, stop)
        self.failed: dict[int, Exception] = {}  # what a setting cannot run with, and why
        self.decided = False
        self.at_once = 1 if self.team is None else FEWEST

    # -- what is run ------------------------------------------------------------------
    def plan(self, number: int, turn: int) -> Experiment:
        """Return the experiment of one measurement."""
        candidate = self.candidates[number]
        settings = candidate.experiment.settings
        update = {
            "seed": self.experiment.seed + turn,
            "settings": {candidate.setting: settings[candidate.setting]} if settings else {},
        }
        return candidate.experiment.model_copy(update=update)

    def _short(self, number: int) -> Experiment:
        """Return the experiment of a forecast."""
        plan = self.plan(number, 0)
        workloads = {**plan.workloads, **self.stand_ins}
        if not any("_p99_" in goal.column for goal in (self.objective, *self.slo)):
            for name, spec in workloads.items():
                repeats = min(spec.repeats, _FORECAST_CALLS)
                workloads[name] = spec.model_copy(update={"repeats": repeats})
        return plan.model_copy(update={"workloads": workloads})

    def measure(self) -> None:
        """Forecast all, then measure in turns until it is decided."""
        try:
            self._forecast_all()
        except GpuscopeError as error:
            if isinstance(error, NothingRecorded):
                raise  # it was stopped
            self.forecast, self.forecasts = None, no_forecasts(str(error))
            self.forecast_points.clear()
        turn = 0
        while not self.first.stopped:
            samples = self.samples(turn)
            chosen = self._next(samples)
            done = max((len(samples.get(number, ())) for number in chosen), default=0)
            turns = range(turn, turn + min(self.at_once, self.repeats - done))
            chosen = chosen[: (self.most - sum(map(len, samples.values()))) // len(turns)]
            if not chosen:
                self.decided = True
                return
            self.series.run(self._turn(chosen, turn_number) for turn_number in turns)
            if self.series.stopped:
                return
            turn += len(turns)

    def _planned(self, number: int, turn: int) -> Plan[MeasuredPoint]:
        candidate, row_number = self.candidates[number], turn * len(self.candidates) + number
        return Plan(
            self.plan(number, turn), candidate.label, partial(point_of, row_number, candidate.point)
        )

    def _turn(self, chosen: Iterable[int], turn: int) -> tuple[str, dict[int, Plan[MeasuredPoint]]]:
        """Return the measurements of a turn that are still to be made, in an order of its own."""
        order = [*chosen]
        random.Random(f"{self.experiment.seed} {turn}").shuffle(order)  # noqa: S311
        numbers = {turn * len(self.candidates) + number: number for number in order}
        return f"turn {turn}", {
            row_number: self._planned(number, turn)
            for row_number, number in numbers.items()
            if not _is_finished(row_number, self.points)
        }

    def _keep(self, row_number: int, made: MeasuredPoint | GpuscopeError) -> None:
        number = row_number % len(self.candidates)
        if isinstance(made, WorkerLost):
            goes_on = "" if self.folder is None else ". The same call goes on from what is there"
            raise WorkerLost(f"{made}{goes_on}") from made
        if not isinstance(made, GpuscopeError):
            self.points[row_number] = made
            self.measured.add(made)
        elif number not in self.failed:
            self.failed[number] = made.with_traceback(None)
            self.able.remove(number)

    def _keep_forecast(self, number: int, made: MeasuredPoint | GpuscopeError) -> None:
        if isinstance(made, GpuscopeError):
            raise made
        self.forecast_points[number] = made
        if self.forecast is not None:
            self.forecast.add(made)

    def _forecast_all(self) -> None:
        """Forecast every setting; first record what the simulated GPU cannot run."""
        if self.forecast is None or self.forecaster is None:
            return
        self.stand_ins = self.forecaster.prepare(self.folder, self.stop)
        todo = [number for number in self.able if not _is_finished(number, self.forecast_points)]
        for number in todo:
            candidate = self.candidates[number]
            make = partial(point_of, number, candidate.point)
            plan = Plan(self._short(number), f"forecast of {candidate.label}", make)
            self.first.run([(candidate.label, {number: plan})])

    def _next(self, samples: Samples) -> list[int]:
        """Return whom to measure next."""
        outlook = self._outlook(self._race(samples))
        if not samples:
            unvaried = [number for number in self.able if number not in self.places]
            start = dict.fromkeys([*outlook.start(self.width), *unvaried, *self.reference])
            return [number for number in start if number in self.able]
        reference = [number for number in self.reference if number in samples]
        return outlook.race.turn(outlook.fresh(), self.width, reference)

    def _outlook(self, race: Race) -> Outlook:
        forecast = self._forecast()
        usable_forecast = forecast if all(number in forecast for number in self.able) else {}
        places = {n: indices for n, indices in self.places.items() if n in self.able}
        return Outlook(race, usable_forecast, places)

    def _race(self, samples: Samples) -> Race:
        return Race(samples, self.objective, self.slo, self.confidence, self.repeats, self.sms)

    # -- what was found ---------------------------------------------------------------
    def samples(self, before: int | None = None) -> dict[int, dict[int, Values]]:
        """Return what was measured in the turns before one, or in all."""
        samples: dict[int, dict[int, Values]] = {}
        for row_number, point in sorted(self.points.items()):
            turn, number = divmod(row_number, len(self.candidates))
            is_done = point.is_finished and number not in self.failed
            if is_done and (before is None or turn < before):
                samples.setdefault(number, {})[turn] = self._values(number, point)
        return samples

    def _forecast(self) -> dict[int, Values]:
        return {
            number: self._values(number, point)
            for number, point in self.forecast_points.items()
            if point.is_finished
        }

    def _values(self, number: int, point: MeasuredPoint) -> Values:
        """Return the columns that were asked for."""
        rows = {row["workload"]: row for row in point.rows}
        values = {}
        needed = (self.objective, *self.slo)
        for goal in dict.fromkeys((*needed, *self.costs)):
            value = rows.get(goal.workload, {}).get(goal.column)
            if goal.is_of_sms:
                value = self.sms[number]
            if isinstance(value, int | float):
                values[goal.name] = float(value)
            elif goal in needed:
                raise MissingEvidence(
                    f"{self.candidates[number].label} gives no {goal.name}{_why(goal)}"
                )
        return values

    def result(self) -> TuneResult:
        """Return the result of what there is."""
        self.series.settle()
        samples, forecast = self.samples(), self._forecast()
        if self.failed and not samples:
            raise next(iter(self.failed.values()))
        if not samples and not forecast:
            raise NothingRecorded("it was stopped before anything was recorded: tune again")
        race = self._race(samples)
        verdicts = race.verdicts(is_over=self.decided)
        outlook = self._outlook(race)
        unseen = [number for number in self.able if samples and number not in samples]
        verdicts.update((n, "unlikely") for n in unseen if outlook.rules_out(n))
        sure = next(filter(race.meets, race.inside), None)
        if sure is not None:
            verdicts.update((n, "worse") for n in unseen if race.has_too_many(n, sure))
        inside = [n for n, verdict in verdicts.items() if verdict in ("best", "equal", "undecided")]
        rows = [row for point in self.points.values() for row in point.rows]
        missing = dict.fromkeys(str(row["incomplete"]) for row in rows if row.get("incomplete"))
        origins = dict.fromkeys(
            line for point in self.points.values() for line in (point.provenance or "").splitlines()
        )
        costs = tuple(
            goal
            for goal in self.costs
            if all(goal.name in values for turns in samples.values() for values in turns.values())
        )
        bounds = outlook.all_bounds()
        settings = []
        for number, candidate in enumerate(self.candidates):
            turns = samples.get(number, {})
            error = candidate.error or str(self.failed.get(number, ""))
            settings.append(
                TunedSetting(
                    label=candidate.label,
                    point=candidate.point,
                    setting=candidate.setting,
                    sizes=candidate.sizes,
                    values={
                        goal.name: tuple(values[goal.name] for values in turns.values())
                        for goal in dict.fromkeys((self.objective, *self.slo, *costs))
                        if turns
                    },
                    forecast={
                        name: value
                        for name, value in forecast.get(number, {}).items()
                        if not self.objective.is_of_sms or name != self.objective.name
                    },
                    error=error,
                    verdict="refused" if error else verdicts.get(number, "not measured"),
                    behind=race.behind(number, inside),
                    sms=self.sms.get(number, 0),
                    bounds=bounds.get(number, {}),
                )
            )
        info = self.device.info
        return TuneResult(
            settings=tuple(settings),
            objective=self.objective,
            slo=self.slo,
            costs=costs,
            confidence=self.confidence,
            repeats=self.repeats,
            experiment=self.experiment.to_dict(),
            is_simulated=self.device.is_simulated,
            parameters=self.parameters,
            device={
                "name": info.name,
                "uuid": info.uuid,
                "sm_count": info.sm_count,
                "quantum": self.device.layout.quantum_sm_count,
                "compute_capability": info.compute_capability,
                "driver": info.driver,
            },
            versions=dict(versions()),
            forecasts=self.forecasts,
            stopped=not self.decided,
            reference=next((settings[n].label for n in self.reference if n in samples), None),
            provenance="; ".join(origins),
            incomplete="; ".join(missing),
        )


def _is_finished(number: int, points: Mapping[int, MeasuredPoint]) -> bool:
    return number in points and points[number].is_finished


def _why(goal: Goal) -> str:
    """Say why a column may be missing."""
    if "_p99_" in goal.column:
        return ": a p99 needs 1,000 calls in each measurement; raise the workload's repeats"
    if goal.column in _OF_ALONE:
        return ": it needs alone_repeats of at least 1, and workloads without rate_hz"
    return ": no call of it ended, or its kind does not state it"
