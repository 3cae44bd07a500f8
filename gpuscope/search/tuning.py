"""Tuning: forecast a grid of settings, and measure the promising ones in a race."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from gpuscope._checks import MappingOf, door, given
from gpuscope.analysis.outlook import Outlook
from gpuscope.analysis.race import FEWEST, Goal, Race, Samples, Values
from gpuscope.analysis.tuning_analysis import TunedSetting
from gpuscope.device.device import Device
from gpuscope.errors import (
    GpuscopeError,
    InvalidArgument,
    InvalidPartition,
    MissingEvidence,
    NothingRecorded,
    WorkerLost,
)
from gpuscope.experiments.execution import opened
from gpuscope.experiments.experiment import Description, Experiment, as_experiment
from gpuscope.experiments.runner import Viewer
from gpuscope.record.facts import versions
from gpuscope.search.candidates import candidates_of
from gpuscope.search.forecasters import forecaster_for, no_forecasts
from gpuscope.search.grid import Value, Varied, checked
from gpuscope.search.points import Points, Rows, is_whole, rows_of
from gpuscope.search.scale_out import Team, team_of
from gpuscope.search.series import Plan, Series, as_far_as_measured
from gpuscope.search.tune_result import TuneResult
from gpuscope.workloads.spec import WorkloadSpec

_FORECAST_CALLS = 100
"""Calls of a workload that a forecast runs, unless a p99 is asked for."""
_OF_ALONE = ("share_of_alone_on_whole_gpu", "gain")
"""Columns for which workloads are measured alone, too."""


@door(
    objective=str,
    slo=(MappingOf(str), None),
    device=(Device, str, None),
    confidence=float,
    repeats=int,
    gpu_profile=(str, Path),
    path=(str, Path, None),
    executor=(Executor, str, None),
    viewer=(Callable, None),
    stop=(threading.Event, None),
)
def tune(
    experiment: Description,
    vary: Varied,
    objective: str,
    slo: Mapping[str, str] | None = None,
    device: Device | str | None = None,
    *,
    confidence: float = 0.95,
    repeats: int = 7,
    gpu_profile: str | Path = "h200",
    path: str | Path | None = None,
    executor: Executor | str | None = None,
    viewer: Viewer | None = None,
    stop: threading.Event | None = None,
) -> TuneResult:
    """Find the best setting of a grid: forecast all, measure the promising ones in turns, stop.

    The simulated GPU forecasts every setting. The most promising are measured in turns, with the
    ends of the grid and those beside the best one, until all others are ruled out, by measurements
    or by forecasts whose error is known from measurements around them; until each was measured
    ``repeats`` times; or until a third of what measuring all that often takes is spent, or what
    three settings take. Of equals, which noise does not tell apart or which differ by less than
    1 %, the one with the fewest SMs for the workloads of ``slo`` (without it, of ``objective``) is
    taken. A measurement is one round, in which all of a workload's ``repeats`` are run.

    Parameters
    ----------
    experiment
        The experiment: an ``Experiment``, the path of a TOML or JSON file, or a dict. A setting
        that nothing of ``vary`` touches takes part, too, and is the reference.
    vary
        As in :func:`gpuscope.search.sweep`: ``{"partitions.decode": "all"}`` is every split that
        the GPU can make while another partition is ``"rest"``.
    objective
        ``"workload.column"`` of the comparison, as ``"decode.calls_per_s"``: a rate is to be as
        great as possible, a time as small.
    slo
        ``"workload.column"`` → limit: ``{"small.latency_p99_us": "<= 100"}``.
    device
        An open device or a name for :func:`gpuscope.open_device`; ``"auto"`` if not given.
    confidence
        Of all comparisons of settings together, and of each limit by itself.
    repeats
        Measurements of one setting, at most; at least 3.
    gpu_profile
        Of the simulated GPU that forecasts for a real one: the part after ``sim:``.
    path
        A folder in which each measurement is saved. The same call goes on from there.
    executor
        Measures three turns at a time on several GPUs, as in :func:`gpuscope.search.sweep`: each
        turn on one, so that settings are compared on the same GPU. ``device`` is opened here, too.
    viewer, stop
        As in :func:`gpuscope.run`.

    Returns
    -------
    TuneResult
        After Ctrl-C or ``stop``, it holds what was measured until then. A setting that cannot
        run is out, and says why.

    Raises
    ------
    InvalidExperiment, InvalidArgument
        One of the points is invalid, or an argument.
    MissingEvidence
        A measurement does not give the column asked for, such as a p99 of fewer than 1,000 calls.
    GpuscopeError
        The folder holds something else, or it was stopped before anything was recorded.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> gemm = {"kind": "gemm", "m": 1024, "n": 1024, "k": 1024, "repeats": 20}
    >>> both = {
    ...     "name": "both", "partitions": {"a": 16, "b": "rest"},
    ...     "streams": {"s": {"partition": "a"}, "t": {"partition": "b"}},
    ...     "workloads": {"small": {**gemm, "stream": "s"},
    ...                   "load": {**gemm, "m": 4096, "n": 4096, "stream": "t",
    ...                            "background": True, "max_queued": 4}},
    ... }
    >>> limit = {"small.kernel_median_us": "<= 15"}
    >>> result = gs.tune(both, {"partitions.a": [8, 32, 64, 96]}, "load.tflop_per_s", limit, gpu)
    >>> result.best.label
    'a = 64'
    """
    if not 0 < confidence < 1:
        raise InvalidArgument(f"confidence is {given(confidence)}; a share in (0, 1) is needed")
    if repeats < FEWEST:
        raise InvalidArgument(f"repeats is {given(repeats)}; at least {FEWEST} are needed")
    described = as_experiment(experiment)
    names = described.workloads
    goal = Goal.parse(objective, names)
    limits = tuple(Goal.parse(name, names, limit) for name, limit in (slo or {}).items())
    serving = described.driven | {goal.workload}  # which have no rate that a setting could cost
    others = [key for key in names if names[key].launches and key not in serving]
    target = opened(device)
    with nullcontext() if executor is None else team_of(executor, device, target.info) as team:
        search = _Search(
            described, checked(vary, target.layout), target, goal, limits,
            costs=limits or tuple(Goal(key, "calls_per_s") for key in others),
            confidence=confidence, repeats=repeats, gpu_profile=str(gpu_profile), path=path,
            team=team, viewer=viewer, stop=stop or threading.Event(),
        )  # fmt: skip
        try:
            return as_far_as_measured(search.measure, search.result)
        except Exception:
            search.seal()
            raise


class _Search:
    """One tuning: its candidates, what was forecast and what was measured."""

    def __init__(
        self,
        experiment: Experiment,
        parameters: Mapping[str, tuple[Value, ...]],
        device: Device,
        objective: Goal,
        slo: tuple[Goal, ...],
        *,
        costs: tuple[Goal, ...],
        confidence: float,
        repeats: int,
        gpu_profile: str,
        path: str | Path | None,
        team: Team | None,
        viewer: Viewer | None,
        stop: threading.Event,
    ) -> None:
        goals = (objective, *slo, *costs)
        if not any(goal.column in _OF_ALONE for goal in goals):
            experiment = experiment.model_copy(update={"alone_repeats": 0})
        self.experiment = experiment.model_copy(update={"rounds": 1})
        self.parameters = parameters
        self.device = device
        self.objective, self.slo, self.costs = objective, slo, costs
        self.confidence, self.repeats = confidence, repeats
        self.stop = stop
        self.folder = None if path is None else Path(path)
        self.stand_ins: Mapping[str, WorkloadSpec] = {}
        self.candidates, self.reference = candidates_of(self.experiment, parameters, device)
        self.able = [n for n, one in enumerate(self.candidates) if not one.error]
        every = enumerate(self.candidates)
        self.places = {n: (one.setting, one.place) for n, one in every if one.place is not None}
        decisive = {goal.workload for goal in slo or (objective,)}
        self.sms = {
            n: self.candidates[n].sms_for(decisive, device.info.sm_count) for n in self.able
        }
        if not self.able:
            raise InvalidPartition(self.candidates[0].error)
        self.width = max(FEWEST, math.ceil(len(self.able) / 5))
        self.most = max(FEWEST * repeats, len(self.able) * repeats // 3)
        self.measured = Points("turn", self.experiment, parameters, device.info, path)
        self.rows = self.measured.rows()
        self.forecaster, self.forecasts = forecaster_for(
            self.experiment, device, parameters, gpu_profile
        )
        simulated = None if self.forecaster is None else self.forecaster.device
        self.forecast: Points | None = None
        self.forecast_rows: dict[int, Rows] = {}
        if simulated is not None:
            self.forecast = Points("forecast", self.experiment, parameters, simulated.info, path)
            self.forecast_rows = self.forecast.rows()
        calls = [self._planned(number, 0).calls for number in self.able]
        self.series = Series(team or device, self._keep, self.most * calls[0], viewer, stop)
        self.first = Series(simulated or device, self._keep_forecast, sum(calls), viewer, stop)
        self.failed: dict[int, Exception] = {}  # what a setting cannot run with, and why
        self.decided = False
        self.at_once = 1 if team is None else FEWEST

    def seal(self) -> None:
        """Leave a folder that other tools read."""
        self.measured.seal()
        if self.forecast is not None:
            self.forecast.seal()

    # -- what is run ------------------------------------------------------------------
    def plan(self, number: int, turn: int) -> Experiment:
        """Return the experiment of one measurement."""
        one = self.candidates[number]
        settings = one.experiment.settings
        update = {
            "seed": self.experiment.seed + turn,
            "settings": {one.setting: settings[one.setting]} if settings else {},
        }
        return one.experiment.model_copy(update=update)

    def _short(self, number: int) -> Experiment:
        """Return the experiment of a forecast."""
        plan = self.plan(number, 0)
        if any("_p99_" in goal.column for goal in (self.objective, *self.slo)):
            return plan.model_copy(update={"workloads": {**plan.workloads, **self.stand_ins}})
        workloads = {
            name: spec.model_copy(update={"repeats": min(spec.repeats, _FORECAST_CALLS)})
            for name, spec in {**plan.workloads, **self.stand_ins}.items()
        }
        return plan.model_copy(update={"workloads": workloads})

    def measure(self) -> None:
        """Forecast all, then measure in turns until it is decided."""
        try:
            self._forecast_all()
        except GpuscopeError as error:
            if isinstance(error, NothingRecorded):
                raise  # it was stopped
            self.forecast, self.forecasts = None, no_forecasts(str(error))
            self.forecast_rows.clear()
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
            self.series.run(
                (f"turn {one}", {
                    place: self._planned(number, one)
                    for number, place in self._shuffled(chosen, one)
                })
                for one in turns
            )  # fmt: skip
            if self.series.stopped:
                return
            turn += len(turns)

    def _planned(self, number: int, turn: int) -> Plan[Rows]:
        one, place = self.candidates[number], turn * len(self.candidates) + number
        return Plan(self.plan(number, turn), one.label, partial(rows_of, place, one.point))

    def _shuffled(self, chosen: Iterable[int], turn: int) -> list[tuple[int, int]]:
        """Return which settings a turn measures, in which order, and the places of their rows."""
        order = [*chosen]
        random.Random(f"{self.experiment.seed} {turn}").shuffle(order)  # noqa: S311
        places = [(number, turn * len(self.candidates) + number) for number in order]
        return [one for one in places if not self.measured.is_finished(one[1])]

    def _keep(self, place: int, made: Rows | GpuscopeError) -> None:
        number = place % len(self.candidates)
        if isinstance(made, WorkerLost):
            raise made
        if not isinstance(made, GpuscopeError):
            self.rows[place] = made
            self.measured.add(place, made, whole=is_whole(made))
        elif number not in self.failed:
            self.failed[number] = made.with_traceback(None)
            self.able.remove(number)

    def _keep_forecast(self, number: int, made: Rows | GpuscopeError) -> None:
        if isinstance(made, GpuscopeError):
            raise made
        self.forecast_rows[number] = made
        if self.forecast is not None:
            self.forecast.add(number, made, whole=is_whole(made))

    def _forecast_all(self) -> None:
        """Forecast every setting; first record what the simulated GPU cannot run."""
        if self.forecast is None or self.forecaster is None:
            return
        self.stand_ins = self.forecaster.prepare(self.folder, self.stop)
        todo = [number for number in self.able if not self.forecast.is_finished(number)]
        for number in todo:
            one = self.candidates[number]
            make = partial(rows_of, number, one.point)
            plan = Plan(self._short(number), f"forecast of {one.label}", make)
            self.first.run([(one.label, {number: plan})])

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
        known = forecast if all(number in forecast for number in self.able) else {}
        places = {n: place for n, place in self.places.items() if n in self.able}
        return Outlook(race, known, places)

    def _race(self, samples: Samples) -> Race:
        return Race(samples, self.objective, self.slo, self.confidence, self.repeats, self.sms)

    # -- what was found ---------------------------------------------------------------
    def samples(self, before: int | None = None) -> dict[int, dict[int, Values]]:
        """Return what was measured in the turns before one, or in all."""
        found: dict[int, dict[int, Values]] = {}
        for place, rows in sorted(self.rows.items()):
            turn, number = divmod(place, len(self.candidates))
            is_done = is_whole(rows) and number not in self.failed
            if is_done and (before is None or turn < before):
                found.setdefault(number, {})[turn] = self._values(number, rows)
        return found

    def _forecast(self) -> dict[int, Values]:
        return {
            number: self._values(number, rows)
            for number, rows in self.forecast_rows.items()
            if is_whole(rows)
        }

    def _values(self, number: int, of_all: Rows) -> Values:
        """Return the columns that were asked for."""
        rows = {row["workload"]: row for row in of_all}
        values = {}
        needed = (self.objective, *self.slo)
        for goal in dict.fromkeys((*needed, *self.costs)):
            value = rows.get(goal.workload, {}).get(goal.column)
            if value is not None:
                values[goal.name] = float(value)
            elif goal in needed:
                raise MissingEvidence(
                    f"{self.candidates[number].label} gives no {goal.name}{_why(goal)}"
                )
        return values

    def result(self) -> TuneResult:
        """Return the result of what there is."""
        self.series.settle()
        self.seal()
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
        inside = [n for n, verdict in verdicts.items() if verdict in ("best", "equal", "undecided")]
        measured = [row for rows in self.rows.values() for row in rows]
        missing = dict.fromkeys(row["incomplete"] for row in measured if row.get("incomplete"))
        origins = dict.fromkeys(
            line for row in measured for line in (row["provenance"] or "").splitlines()
        )
        costs = tuple(
            goal for goal in self.costs
            if all(goal.name in values for turns in samples.values() for values in turns.values())
        )  # fmt: skip
        bounds = outlook.all_bounds()
        front, settings = race.front(costs), []
        for number, one in enumerate(self.candidates):
            turns = samples.get(number, {})
            error = one.error or str(self.failed.get(number, ""))
            settings.append(
                TunedSetting(
                    label=one.label, point=one.point, setting=one.setting, sizes=one.sizes,
                    values={
                        goal.name: tuple(values[goal.name] for values in turns.values())
                        for goal in dict.fromkeys((self.objective, *self.slo, *costs)) if turns
                    },
                    forecast=forecast.get(number, {}), error=error,
                    verdict="refused" if error else verdicts.get(number, "not measured"),
                    on_front=number in front, behind=race.behind(number, inside),
                    sms=self.sms.get(number, 0), bounds=bounds.get(number, {}),
                )
            )  # fmt: skip
        info = self.device.info
        return TuneResult(
            settings=tuple(settings), objective=self.objective, slo=self.slo, costs=costs,
            confidence=self.confidence, repeats=self.repeats,
            experiment=self.experiment.to_dict(), parameters=self.parameters,
            device={
                "name": info.name, "uuid": info.uuid, "sm_count": info.sm_count,
                "quantum": self.device.layout.quantum_sm_count,
                "compute_capability": info.compute_capability, "driver": info.driver,
            },
            versions=dict(versions()), forecasts=self.forecasts, stopped=not self.decided,
            reference=next((settings[n].label for n in self.reference if n in samples), None),
            provenance="; ".join(origins), incomplete="; ".join(missing),
            is_simulated=self.device.is_simulated,
        )  # fmt: skip


def _why(goal: Goal) -> str:
    """Say why a column may be missing."""
    if "_p99_" in goal.column:
        return ": a p99 needs 1,000 calls in each measurement; raise the workload's repeats"
    if goal.column in _OF_ALONE:
        return ": it needs alone_repeats of at least 1, and workloads without rate_hz"
    return ": no call of it ended, or its kind does not state it"
