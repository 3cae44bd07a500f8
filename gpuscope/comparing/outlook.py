"""Which settings may still be the best: forecasts, corrected by what was measured beside them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from gpuscope._types import Floats
from gpuscope.comparing.noise import Estimate, least_of
from gpuscope.comparing.race import CLOSE, Goal, Race, Values

Place: TypeAlias = tuple[str, tuple[int, ...]]
"""Setting of the experiment, and the place of each parameter's value in its list."""


@dataclass(frozen=True)
class Outlook:
    """What forecasts say of the settings that were not measured, and how sure that is.

    A forecast is corrected by the ratios of measurement to forecast of the settings that were
    measured: between them by ordinary kriging with a linear variogram (G. Matheron, Economic
    Geology 58 (1963), 1246). So the logarithm of the ratio is taken to change from step to step of
    the grid like a random walk, whose variance a step is that between measured settings; along one
    parameter that is linear interpolation. Without forecasts the same holds of the measurements
    themselves. Beyond the measured settings the error is not known: there nothing is ruled out.

    Attributes
    ----------
    forecast
        Setting → what was forecast; empty where there are no forecasts.
    places
        Setting → where in the grid it is, of all that can run and that ``vary`` changes.
    """

    race: Race
    forecast: Mapping[int, Values]
    places: Mapping[int, Place]

    def start(self, width: int) -> list[int]:
        """Return whom to measure first: the best by their forecasts, or some of all, and the ends.

        Parameters
        ----------
        width
            How many are compared at a time.
        """
        chosen = [*self.places][:: math.ceil(len(self.places) / (2 * width - 1)) or 1]
        ends = ends_of(self.places)
        if self.forecast:
            forecasts = {number: {0: values} for number, values in self.forecast.items()}
            race = replace(self.race, samples=forecasts)
            chosen = race.ranked()[:width]
            leader = chosen[0]
            if race.objective.is_of_sms and not race.off(leader):  # its edge, and who is beside
                fewer = [n for n in self.places if race.costs[n] < race.costs[leader]]
                fewer.sort(key=lambda number: -race.costs[number])
                chosen = [leader, *fewer[: width - 2]]
                ends = [number for number in ends if not race.has_too_many(number, leader)]
        return [*chosen, *ends]

    def fresh(self) -> list[int]:
        """Return the settings to measure that were not yet, the most promising first.

        Those beside the best are, whatever their forecasts, and those that may be better than it;
        but of those beyond the measured ones only the ends.
        """
        race = self.race
        leader = (race.inside or race.ranked())[0]
        unseen = [number for number in self.places if number not in race.samples]
        unseen = [number for number in unseen if not race.has_too_many(number, leader)]
        beside = [number for number in unseen if self._steps([number], [leader])[0, 0] == 1]
        ends = ends_of(self.places)
        inside = [n for n in unseen if n not in beside and (n in ends or self._is_between(n))]
        promising = [number for number in inside if not self._is_out(number, leader)]
        return [*beside, *sorted(promising, key=self._promise)]

    def rules_out(self, number: int) -> bool:
        """Whether a setting that was not measured surely misses the SLO, or is surely worse."""
        sure = (leader for leader in self.race.inside if self.race.meets(leader))
        return self._is_out(number, next(sure, None))

    def _is_out(self, number: int, leader: int | None) -> bool:
        race = self.race
        if leader is not None and race.has_too_many(number, leader):
            return True
        if not self._is_between(number):
            return False
        if any(max(map(goal.margin, self.bounds(number, goal))) < 0 for goal in race.slo):
            return True
        if leader is None or race.off(leader):
            return False
        goal = race.objective
        estimate, best = self._corrected(number, goal), race.level(leader, goal)
        gain = Estimate(
            estimate.value - best.value if goal.is_rate else best.value - estimate.value,
            math.hypot(estimate.error, best.error),
            min(estimate.freedom, best.freedom),
        )
        enough = math.log1p(CLOSE) * (1 if race.costs[number] >= race.costs[leader] else -1)
        return gain.bounds((1 - race.confidence) / 2)[1] < enough

    def _promise(self, number: int) -> tuple[float, float]:
        race = self.race
        values = {goal: math.exp(self._corrected(number, goal).value) for goal in self._goals}
        off = max([0.0, *(-goal.margin(values[goal]) for goal in race.slo)])
        return off, -race.objective.gain(values[race.objective], 0)

    def all_bounds(self) -> dict[int, dict[str, tuple[float, float]]]:
        """Return between which values columns are, where measurements or forecasts tell that.

        Of a setting that was measured, those of the SLO.
        """
        race = self.race
        bounds = {n: {goal.name: race.bounds(n, goal) for goal in race.slo} for n in race.samples}
        goals = [goal for goal in self._goals if not goal.is_of_sms]
        unseen = [n for n in self.places if n not in race.samples and self._is_between(n)]
        bounds.update((n, {goal.name: self.bounds(n, goal) for goal in goals}) for n in unseen)
        return bounds

    # -- corrections --------------------------------------------------------------------
    def bounds(self, number: int, goal: Goal) -> tuple[float, float]:
        """Return the least and the greatest value that a column of a setting may have."""
        low, high = self._corrected(number, goal).bounds((1 - self.race.confidence) / 2)
        return math.exp(low), math.exp(min(high, 700.0))

    def _corrected(self, number: int, goal: Goal) -> Estimate:
        """Return the logarithm of a column as its forecast and the measurements have it."""
        if goal.is_of_sms:
            return self.race.level(number, goal)
        base = self._forecast_of(number, goal)
        if not self._seen:
            return Estimate(base, math.inf, 1)
        ratios, variance = self._ratios[goal]
        reach = np.append(self._steps(self._seen, [number])[:, 0] / 2, 1)
        weights = self._solve @ reach
        value = base + float(weights[:-1] @ ratios)
        share = float(weights @ reach)
        return Estimate(value, math.sqrt(variance * max(share, 0.0)), max(1, len(ratios) - 1))

    @cached_property
    def _solve(self) -> Floats:
        """The inverse of the kriging system of the measured settings."""
        count = len(self._seen)
        system = np.ones((count + 1, count + 1))
        system[:count, :count] = self._steps(self._seen, self._seen) / 2
        system[count, count] = 0
        return np.asarray(np.linalg.pinv(system), dtype=np.float64)

    @cached_property
    def _ratios(self) -> dict[Goal, tuple[Floats, float]]:
        """Column → logarithms of measurement over forecast, and their variance a step."""
        ratios_of = {}
        for goal in self._goals:
            measured = [max(self.race.mean(n, goal), self._least[goal]) for n in self._seen]
            ratios = np.log(measured) - [self._forecast_of(n, goal) for n in self._seen]
            freedom = len(ratios) - 1
            squares = -float(ratios @ self._solve[:-1, :-1] @ ratios)
            ratios_of[goal] = ratios, max(squares, 0.0) / freedom if freedom else math.inf
        return ratios_of

    @property
    def _goals(self) -> Iterable[Goal]:
        return dict.fromkeys((self.race.objective, *self.race.slo))

    @cached_property
    def _least(self) -> dict[Goal, float]:
        """Column → what values are at least, for their logarithms."""
        race = self.race
        least = {}
        for goal in self._goals:
            measured = [race.mean(number, goal) for number in race.samples]
            forecast = [values[goal.name] for values in self.forecast.values()]
            least[goal] = least_of([*measured, *forecast], goal.limit)
        return least

    def _forecast_of(self, number: int, goal: Goal) -> float:
        """Return the logarithm of a forecast; 0 where there are none."""
        if not self.forecast:
            return 0.0
        return math.log(max(self.forecast[number][goal.name], self._least[goal]))

    # -- the grid -----------------------------------------------------------------------
    @cached_property
    def _seen(self) -> list[int]:
        return [number for number in self.race.samples if number in self.places]

    def _is_between(self, number: int) -> bool:
        """Whether a setting is in the box of grid places that measured ones span."""
        if number not in self.places:
            return False
        name, coordinates = self.places[number]
        seen = np.array([self.places[n][1] for n in self._seen if self.places[n][0] == name])
        return bool(
            len(seen) and (seen.min(0) <= coordinates).all() and (coordinates <= seen.max(0)).all()
        )

    def _steps(self, numbers: list[int], other_numbers: list[int]) -> Floats:
        """Return how many steps of one parameter, or to another setting, are between settings."""
        if any(number not in self.places for number in other_numbers):
            return np.full((len(numbers), len(other_numbers)), np.inf)
        (names, places), (other_names, other_places) = (
            zip(*(self.places[number] for number in every), strict=True)
            for every in (numbers, other_numbers)
        )
        apart = np.abs(np.array(places)[:, None, :] - np.array(other_places)[None, :, :]).sum(2)
        steps: Floats = apart + (np.array(names)[:, None] != np.array(other_names)[None, :])
        return steps


def ends_of(places: Mapping[int, Place]) -> list[int]:
    """Return for each setting of the experiment places that span its part of the grid."""
    ends: dict[int, None] = {}
    for name in dict.fromkeys(name for name, _ in places.values()):
        grid = {
            number: coordinates for number, (other, coordinates) in places.items() if other == name
        }
        ends[min(grid, key=lambda number: sum(grid[number]))] = None
        ends[max(grid, key=lambda number: sum(grid[number]))] = None
        for axis, end in itertools.product(range(len(next(iter(grid.values())))), (min, max)):
            edge = end(coordinates[axis] for coordinates in grid.values())
            on_edge = [number for number, coordinates in grid.items() if coordinates[axis] == edge]
            if not any(number in ends for number in on_edge):
                ends[on_edge[0]] = None
    return [*ends]
