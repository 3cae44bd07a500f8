"""A race of settings: measured in turns until noise tells them apart (successive elimination)."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias

import numpy as np

from gpuscope._checks import closest, given
from gpuscope.analysis.settings import COLUMNS
from gpuscope.errors import InvalidArgument

Values: TypeAlias = Mapping[str, float]
"""``workload.column`` → what one measurement gave."""
Samples: TypeAlias = Mapping[int, Mapping[int, Values]]
"""Setting → turn → what was measured in it."""
Verdict = Literal["best", "equal", "worse", "misses SLO", "undecided", "not measured", "refused"]
"""What is known of a setting. ``"equal"``: noise does not tell it from the best; ``"undecided"``:
more measurements might tell, or whether it meets the SLO is open."""

FEWEST = 3
"""Measurements below which nothing is concluded."""
CLOSE = 0.01
"""A setting that is better by less than this share need not be told apart."""
_RATES = ("_per_s",)
_TIMES = ("_us", "_ms", "_ns")
_SHARES = ("share_of_alone_on_whole_gpu", "gain")
_LIMIT = re.compile(r"\s*(<=|>=)\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*")


# -- what is sought ------------------------------------------------------------------------
@dataclass(frozen=True)
class Goal:
    """A column of one workload: what is sought, a limit, or what it costs.

    Attributes
    ----------
    limit
        The SLO; ``None`` where there is none.
    """

    workload: str
    column: str
    limit: float | None = None

    @classmethod
    def parse(cls, text: object, workloads: Collection[str], limit: object = None) -> Goal:
        """Read ``workload.column``, and a limit such as ``"<= 100"``.

        Raises
        ------
        InvalidArgument
            There is no such workload or column, or it has no better end; or the limit is none.
        """
        what = "objective" if limit is None else "slo"
        workload, _, column = str(text).rpartition(".") if isinstance(text, str) else ("", "", "")
        if workload not in workloads:
            raise InvalidArgument(
                f"{what} is {given(text)}: it takes workload.column; the workloads are "
                f"{', '.join(map(repr, workloads))}"
            )
        better = [name for name in COLUMNS if name.endswith(_RATES + _TIMES) or name in _SHARES]
        if column not in better:
            raise InvalidArgument(
                f"{what} is {given(text)}: {column!r} is no column that can be better or worse"
                f"{closest(column, better)}; these are: {', '.join(better)}"
            )
        goal = cls(workload, column)
        if limit is None:
            return goal
        found = _LIMIT.fullmatch(limit) if isinstance(limit, str) else None
        if found is None or (found[1] == ">=") != goal.is_rate:
            kind, sign = ("rate", ">=") if goal.is_rate else ("time", "<=")
            raise InvalidArgument(
                f"slo of {given(text)}: its limit is {given(limit)}; a {kind} takes '{sign} number'"
            )
        return cls(workload, column, float(found[2]))

    @property
    def name(self) -> str:
        """Workload and column."""
        return f"{self.workload}.{self.column}"

    @property
    def is_rate(self) -> bool:
        """Whether more is better; of a time, less is."""
        return not self.column.endswith(_TIMES)

    def gain(self, better: float, than: float) -> float:
        """Return by how much one value is better than another."""
        return better - than if self.is_rate else than - better

    def margin(self, value: float) -> float:
        """Return by which share of the limit a value is inside it."""
        return self.gain(value, self.limit or 0.0) / (self.limit or 1.0)

    def __str__(self) -> str:
        if self.limit is None:
            return f"{'greatest' if self.is_rate else 'least'} {self.name}"
        return f"{self.name} {'>=' if self.is_rate else '<='} {self.limit:g}"


# -- statistics ----------------------------------------------------------------------------
@cache
def student_t(freedom: int, tail: float) -> float:
    """Return what a t-distributed variable exceeds with probability ``tail``."""
    # With t = √freedom · tan θ, the density is in proportion to cos(θ)^(freedom − 1).
    angles = np.linspace(0, math.pi / 2, 100_001)
    density = np.cos(angles) ** (freedom - 1)
    mass = np.r_[0, np.cumsum((density[1:] + density[:-1]) / 2)]
    angle = float(np.interp(1 - 2 * tail, mass / mass[-1], angles))
    return math.sqrt(freedom) * math.tan(angle)


def interval(values: Sequence[float], tail: float) -> tuple[float, float]:
    """Return the t-interval of a mean that leaves out ``tail`` at each end; two values at least."""
    mean = float(np.mean(values))
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    wide = student_t(len(values) - 1, tail) * error if error else 0.0
    return mean - wide, mean + wide


def _is_positive(values: Sequence[float], tail: float) -> bool:
    """Whether a mean is, but for an error as rare as ``tail``."""
    return len(values) >= FEWEST and interval(values, tail)[0] > 0


@dataclass(frozen=True)
class Race:
    """What measurements in turns say: successive elimination by paired t-intervals.

    In each turn settings are measured one after the other, so that drift meets them alike:
    two settings are compared by the differences of the turns in which both were measured. A
    setting is out if it is surely worse than one that surely meets the SLO, or surely misses that.
    Surely worse means: with the confidence asked for in all comparisons together (Bonferroni: over
    settings and the turns at which one looks). Whether a limit is met is told of each by itself.

    Attributes
    ----------
    repeats
        Measurements of a setting, at most.
    """

    samples: Samples
    objective: Goal
    slo: Sequence[Goal]
    confidence: float
    repeats: int

    @property
    def tail(self) -> float:
        """How often one comparison of two settings may be wrong."""
        looks = max(1, self.repeats - FEWEST + 1)
        return (1 - self.confidence) / (max(1, len(self.samples) - 1) * looks)

    def values(self, number: int, goal: Goal) -> list[float]:
        """Return what was measured of a setting."""
        return [values[goal.name] for values in self.samples[number].values()]

    def mean(self, number: int, goal: Goal) -> float:
        """Return the mean of what was measured of a setting."""
        return float(np.mean(self.values(number, goal)))

    def ranked(self) -> list[int]:
        """Return the settings, the best first: by how far off the SLO, then by the objective."""
        sign = -1 if self.objective.is_rate else 1
        return sorted(
            self.samples,
            key=lambda number: (self._off(number), sign * self.mean(number, self.objective)),
        )

    def _off(self, number: int) -> float:
        """Return by which share a setting is off its limits, at most; 0 if it meets them."""
        return max([0.0, *(-goal.margin(self.mean(number, goal)) for goal in self.slo)])

    def meets(self, number: int) -> bool:
        """Whether a setting surely meets the SLO."""
        return all(self._is_inside(number, goal, 1) for goal in self.slo)

    def misses(self, number: int) -> bool:
        """Whether it surely does not."""
        return any(self._is_inside(number, goal, -1) for goal in self.slo)

    def _is_inside(self, number: int, goal: Goal, sign: int) -> bool:
        margins = [sign * goal.margin(value) for value in self.values(number, goal)]
        return _is_positive(margins, 1 - self.confidence)

    def is_worse(self, number: int) -> bool:
        """Whether another one is surely better, and surely meets the SLO."""
        return any(
            self._surely(self._gains(other, number)) and self.meets(other)
            for other in self.samples
            if other != number
        )

    def is_same(self, number: int, other: int) -> bool:
        """Whether they surely differ by less than :data:`CLOSE`."""
        enough = CLOSE * abs(self.mean(other, self.objective))
        gains = self._gains(number, other)
        return self._surely([enough + gain for gain in gains]) and self._surely(
            [enough - gain for gain in gains]
        )

    def behind(self, number: int, others: Collection[int]) -> float | None:
        """Return by how much others are better at most; ``None`` if that is not known.

        It is not known of what may miss the SLO, or was measured with others in too few turns.

        Parameters
        ----------
        others
            Those that are not out.
        """
        if number not in others or not self.meets(number):
            return None
        every = [self._gains(other, number) for other in others]  # of itself, too
        if min(map(len, every)) < FEWEST:
            return None
        return max(interval(gains, self.tail)[1] for gains in every)

    def _gains(self, number: int, other: int) -> list[float]:
        """Return by how much a setting was better than another, turn by turn."""
        mine, theirs, name = self.samples[number], self.samples[other], self.objective.name
        return [
            self.objective.gain(mine[turn][name], theirs[turn][name])
            for turn in mine
            if turn in theirs
        ]

    def _surely(self, gains: Sequence[float]) -> bool:
        return _is_positive(gains, self.tail)

    def turn(self, neighbours: Mapping[int, Collection[int]], width: int) -> list[int]:
        """Return whom to measure next, the most promising first; nobody once it is decided.

        Parameters
        ----------
        neighbours
            Setting → those beside it in the grid: of the leader's, all are measured.
        width
            How many are compared at a time.
        """
        ranked = self.ranked()
        inside = [number for number in ranked if not (self.misses(number) or self.is_worse(number))]
        leader = (inside or ranked)[0]
        # As long as nothing meets the SLO, it is looked for in all directions.
        around = inside if inside and self._off(leader) else [leader]
        beside = dict.fromkeys(other for number in around for other in neighbours.get(number, ()))
        fresh = [number for number in beside if number not in self.samples]
        if not inside:
            return fresh
        rivals = [number for number in inside[1:] if self._is_open(number, leader)][: width - 1]
        if rivals or self._is_open(leader, leader):
            return [leader, *fresh, *rivals]
        return [leader, *fresh] if fresh else []

    def _is_open(self, number: int, leader: int) -> bool:
        """Whether more measurements may still tell something of a setting that is not out."""
        n = len(self.samples[number])
        if n < FEWEST:
            return True
        is_decided = self.meets(number) and (number == leader or self.is_same(number, leader))
        return n < self.repeats and not is_decided

    def verdicts(self) -> dict[int, Verdict]:
        """Return what is known of each setting that was measured."""
        found: dict[int, Verdict] = {}
        for number in self.samples:
            if self.misses(number):
                found[number] = "misses SLO"
            elif self.is_worse(number):
                found[number] = "worse"
        inside = [number for number in self.ranked() if number not in found]
        for number in inside:
            is_open = self._is_open(number, inside[0]) or not self.meets(number)
            found[number] = "undecided" if is_open else "equal"
        if list(found.values()).count("equal") == 1 and "undecided" not in found.values():
            found[inside[0]] = "best"
        return found

    def front(self, costs: Iterable[Goal]) -> set[int]:
        """Return the settings that no other beats in the objective and all costs (Pareto)."""
        goals = (self.objective, *costs)
        table = np.array(
            [[goal.gain(self.mean(number, goal), 0) for goal in goals] for number in self.samples]
        )
        return {
            number
            for number, mine in zip(self.samples, table, strict=True)
            if not any((other >= mine).all() and (other > mine).any() for other in table)
        }
