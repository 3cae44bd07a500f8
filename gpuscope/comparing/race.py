"""A race of settings: measured in turns until noise tells them apart (successive elimination)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from gpuscope._checks import closest, given
from gpuscope._columns import COMPARED
from gpuscope._limits import limit_of
from gpuscope.comparing.effects import FEWEST
from gpuscope.comparing.noise import PRIOR, Estimate, Levels
from gpuscope.errors import InvalidArgument

Values: TypeAlias = Mapping[str, float]
"""``workload.column`` → what one measurement gave."""
Samples: TypeAlias = Mapping[int, Mapping[int, Values]]
"""Setting → turn → what was measured in it."""
Standing = Literal[
    "best",
    "equal",
    "no better",
    "worse",
    "misses SLO",
    "undecided",
    "unlikely",
    "not measured",
    "refused",
]
"""What is known of a setting. ``"equal"``: noise does not tell it from the best, or they differ by
less than :data:`CLOSE`; ``"no better"``: surely not by as much, with as many SMs or more;
``"undecided"``: more measurements might tell, or whether it meets the SLO is open; ``"unlikely"``:
not measured, and ruled out by its corrected forecast. Where the fewest SMs are sought, what has
more of them than the best is ``"worse"``, measured or not."""

CLOSE = 0.01
"""Settings that differ by less than this share are equal."""
FEWEST_SMS = "fewest SMs"
"""The objective that no column measures."""


# -- what is sought ------------------------------------------------------------------------
@dataclass(frozen=True)
class Goal:
    """A column of one workload: what is sought, a limit, or what it costs.

    Attributes
    ----------
    workload
        Empty of the fewest SMs, which are those of the workloads of the SLO.
    limit
        The SLO; ``None`` where there is none.
    """

    workload: str
    column: str
    limit: float | None = None

    @classmethod
    def parse(cls, text: object, workloads: Collection[str], limit: object = None) -> Goal:
        """Read ``workload.column`` or :data:`FEWEST_SMS`, and a limit such as ``"<= 100"``.

        Raises
        ------
        InvalidArgument
            There is no such workload or column, or it has no better end; or the limit is none.
        """
        what = "objective" if limit is None else "slo"
        if text == FEWEST_SMS and limit is None:
            return cls("", "sms")
        workload, _, column = str(text).rpartition(".") if isinstance(text, str) else ("", "", "")
        if workload not in workloads:
            raise InvalidArgument(
                f"{what} is {given(text)}: it takes workload.column; the workloads are "
                f"{', '.join(map(repr, workloads))}"
            )
        better = [key for key, about in COMPARED.items() if about.better]
        if column not in better:
            raise InvalidArgument(
                f"{what} is {given(text)}: {column!r} is no column that can be better or worse"
                f"{closest(column, better)}; these are: {', '.join(better)}"
            )
        goal = cls(workload, column)
        if limit is None:
            return goal
        _, value = limit_of(f"slo of {given(text)}: its limit", COMPARED[column], limit)
        return cls(workload, column, value)

    @property
    def name(self) -> str:
        """Workload and column."""
        return "SMs" if self.is_of_sms else f"{self.workload}.{self.column}"

    @property
    def is_of_sms(self) -> bool:
        """Whether it is the fewest SMs: known of each setting, and free of noise."""
        return not self.workload

    @property
    def asked(self) -> str:
        """What :meth:`parse` reads."""
        return FEWEST_SMS if self.is_of_sms else self.name

    @property
    def is_rate(self) -> bool:
        """Whether more is better; of a time, less is."""
        return COMPARED[self.column].better > 0

    @property
    def sign(self) -> str:
        """Of a limit: at least, or at most."""
        return ">=" if self.is_rate else "<="

    def gain(self, better: float, than: float) -> float:
        """Return by how much one value is better than another."""
        return better - than if self.is_rate else than - better

    def margin(self, value: float) -> float:
        """Return by which share of the limit a value is inside it."""
        return self.gain(value, self.limit or 0.0) / (self.limit or 1.0)

    def __str__(self) -> str:
        if self.is_of_sms:
            return FEWEST_SMS
        if self.limit is None:
            return f"{'greatest' if self.is_rate else 'least'} {self.name}"
        return f"{self.name} {self.sign} {self.limit:g}"


# -- the race ------------------------------------------------------------------------------
@dataclass(frozen=True)
class Race:
    """What measurements in turns say: successive elimination.

    In each turn settings are measured one after the other, so that drift meets them alike:
    differences of settings are those within turns (:class:`~gpuscope.comparing.noise.Levels`). A
    setting is out if it is surely worse than one that surely meets the SLO, or surely misses that.
    Surely worse means: with the confidence asked for in all comparisons together (Bonferroni: over
    the settings that are not out and the turns in which one is measured, at most ``repeats``).
    Whether a limit is met is told of each by itself, from all its measurements.

    Attributes
    ----------
    repeats
        Measurements of a setting, at most.
    costs
        Setting → SMs that decide between equals, or are sought themselves: fewer are better.
    """

    samples: Samples
    objective: Goal
    slo: Sequence[Goal]
    confidence: float
    repeats: int
    costs: Mapping[int, int]

    def values(self, number: int, goal: Goal) -> list[float]:
        """Return what was measured of a setting."""
        return [values[goal.name] for values in self.samples[number].values()]

    def mean(self, number: int, goal: Goal) -> float:
        """Return the mean of what was measured of a setting."""
        return float(np.mean(self.values(number, goal)))

    def _levels(self, goal: Goal, numbers: Collection[int], *, by_turn: bool) -> Levels:
        column = {
            number: {turn: values[goal.name] for turn, values in turns.items()}
            for number, turns in self.samples.items()
            if number in numbers
        }
        return Levels(column, by_turn=by_turn, below=goal.limit)

    @cached_property
    def _alone(self) -> dict[Goal, Levels]:
        goals = dict.fromkeys((self.objective, *self.slo))
        return {goal: self._levels(goal, self.samples, by_turn=False) for goal in goals}

    @cached_property
    def _standing(self) -> tuple[frozenset[int], Levels, float]:
        """The settings that are not out, their objectives, and how often a comparison may be wrong.

        Who is out is compared no more, and its noise does not count, as soon as that of the others
        is known by itself: that tells more of them apart (step-down).
        """
        inside = frozenset(number for number in self.samples if not self.misses(number))
        levels = self._all_levels
        while True:
            tail = (1 - self.confidence) / (max(1, len(inside) - 1) * self.repeats)
            worse = {
                number
                for number in inside
                for other in self._meeting & inside
                if other != number and self._is_better(levels, other, number, tail)
            }
            if not worse:
                return inside, levels, tail
            inside -= worse
            alone = self._levels(self.objective, inside, by_turn=True)
            levels = alone if alone.freedom >= PRIOR else levels

    @property
    def tail(self) -> float:
        """How often one comparison of two settings may be wrong."""
        return self._standing[2]

    @cached_property
    def _all_levels(self) -> Levels:
        return self._levels(self.objective, self.samples, by_turn=True)

    def _worth(self, number: int) -> float:
        """Return a setting's objective as a logarithm that is greater for the better one."""
        if self.objective.is_of_sms:
            return -math.log(self.costs[number])
        value = self._all_levels.value(number)
        return value if self.objective.is_rate else -value

    def ranked(self) -> list[int]:
        """Return the settings, the best first: by how far off the SLO, then by the objective.

        Of those that are as good as the first, the one with the fewest SMs is first.
        """
        order = sorted(self.samples, key=lambda number: (self.off(number), -self._worth(number)))
        least = max(map(self._worth, order[:1]), default=0.0) - math.log1p(CLOSE)
        equal = [n for n in order if not self.off(n) and self._worth(n) >= least]
        if equal and equal[0] == order[0]:
            order = sorted(equal, key=lambda number: self.costs[number]) + order[len(equal) :]
        return order

    def off(self, number: int) -> float:
        """Return by which share a setting is off its limits, at most; 0 if it meets them."""
        return max([0.0, *(-goal.margin(self.mean(number, goal)) for goal in self.slo)])

    def level(self, number: int, goal: Goal) -> Estimate:
        """Return the logarithm of a setting's column, from all its measurements by themselves."""
        if goal.is_of_sms:
            return Estimate(math.log(self.costs[number]), 0.0, 1)
        return self._alone[goal].level(number)

    def bounds(self, number: int, goal: Goal) -> tuple[float, float]:
        """Return the interval of a setting's column, as its limit is told by."""
        low, high = self.level(number, goal).bounds((1 - self.confidence) / 2)
        return math.exp(low), math.exp(min(high, 700.0))

    @cached_property
    def _meeting(self) -> frozenset[int]:
        return frozenset(
            number
            for number, turns in self.samples.items()
            if len(turns) >= FEWEST
            and all(min(map(goal.margin, self.bounds(number, goal))) >= 0 for goal in self.slo)
        )

    def meets(self, number: int) -> bool:
        """Whether a setting surely meets the SLO."""
        return number in self._meeting

    def misses(self, number: int) -> bool:
        """Whether it surely does not."""
        return any(max(map(goal.margin, self.bounds(number, goal))) < 0 for goal in self.slo)

    def _gain(self, number: int, other: int, levels: Levels | None = None) -> Estimate:
        """Return by which share a setting is better than another, as a logarithm."""
        if self.objective.is_of_sms:
            return Estimate(self._worth(number) - self._worth(other), 0.0, 1)
        levels = levels or self._standing[1]
        if self.objective.is_rate:
            return levels.difference(number, other)
        return levels.difference(other, number)

    def _is_better(self, levels: Levels, number: int, other: int, tail: float) -> bool:
        """Whether a setting is surely better than another, and they are not the same."""
        low, high = self._gain(number, other, levels).bounds(tail)
        return low > 0 and high > math.log1p(CLOSE)

    def is_same(self, number: int, other: int) -> bool:
        """Whether they surely differ by less than :data:`CLOSE`."""
        low, high = self._gain(number, other).bounds(self.tail)
        return -math.log1p(CLOSE) < low and high < math.log1p(CLOSE)

    def behind(self, number: int, others: Collection[int]) -> float | None:
        """Return by how much others are better at most; ``None`` if that is not known.

        It is not known of what may miss the SLO, or where too little was measured.

        Parameters
        ----------
        others
            Those that are not out.
        """
        few = min((len(self.samples[other]) for other in others), default=0) < FEWEST
        if number not in others or few or not self.meets(number):
            return None
        most = max(self._gain(other, number).bounds(self.tail)[1] for other in others)
        if math.isinf(most):
            return None
        factor = math.expm1(most) if self.objective.is_rate else -math.expm1(-most)
        return factor * self.mean(number, self.objective)

    @property
    def inside(self) -> list[int]:
        """The settings that are not out, the best first."""
        return [number for number in self.ranked() if number in self._standing[0]]

    def turn(self, fresh: Sequence[int], width: int, reference: Collection[int] = ()) -> list[int]:
        """Return whom to measure next, the most promising first; nobody once it is decided.

        Parameters
        ----------
        fresh
            Settings that were not measured and may be the best, the most promising first.
        width
            How many are compared at a time.
        reference
            What the best is compared with: it is measured :data:`FEWEST` times.
        """
        inside = self.inside
        if not inside:  # who is nearest to the SLO is told from few measurements, too
            leader = self.ranked()[0]
            again = [leader] if len(self.samples[leader]) < FEWEST else []
            return [*again, *fresh[:width]]
        leader = inside[0]
        rivals = [number for number in inside[1:] if self._is_open(number, leader)]
        if len(self.samples[leader]) < FEWEST:
            # Whom the leader will put out, if it meets the SLO, can wait.
            _, levels, tail = self._standing
            rivals = [number for number in rivals if not self.off(number)]
            rivals = [n for n in rivals if not self._is_better(levels, leader, n, tail)]
        rivals.sort(key=lambda number: (len(self.samples[number]) >= FEWEST, -self._worth(number)))
        chosen = [*fresh[:width], *rivals[: width - 1]]
        if not chosen and self.meets(leader):
            chosen = [number for number in reference if len(self.samples[number]) < FEWEST]
        if not chosen and not self._is_open(leader, leader):
            return []
        # What is measured alone in a turn is compared with nothing.
        joins = [leader, *inside[1:], *self.ranked()]
        anchor = next((n for n in joins if len(self.samples[n]) < self.repeats), None)
        return [*dict.fromkeys([*([] if anchor is None else [anchor]), *chosen])]

    def _is_open(self, number: int, leader: int) -> bool:
        """Whether more measurements may still tell something of a setting that is not out."""
        is_done = self.meets(number) and (number == leader or self.is_same(number, leader))
        n = len(self.samples[number])
        return n < self.repeats and not is_done and self._may_win(number, leader)

    def has_too_many(self, number: int, leader: int) -> bool:
        """Whether a setting has as many SMs as one that meets the SLO, and the fewest are sought.

        That is known without a measurement. Of one that was measured less than :data:`FEWEST` times
        it is enough that it seems to meet it.
        """
        if not self.objective.is_of_sms or number == leader or self.off(leader):
            return False
        is_enough = self.meets(leader) or len(self.samples[leader]) < FEWEST
        return is_enough and self.costs[number] >= self.costs[leader]

    def _may_win(self, number: int, leader: int) -> bool:
        """Whether a setting may be better by more than :data:`CLOSE`, or equal with fewer SMs."""
        _, high = self._gain(number, leader).bounds(self.tail)
        fewer = self.costs[number] < self.costs[leader]
        is_sure = self.meets(leader) and number != leader
        return not is_sure or fewer or high > math.log1p(CLOSE)

    def verdicts(self, *, is_over: bool) -> dict[int, Standing]:
        """Return what is known of each setting that was measured.

        Parameters
        ----------
        is_over
            No more will be measured: then noise does not tell apart what is not yet.
        """
        verdicts: dict[int, Standing] = {}
        inside = self.inside
        for number in self.samples:
            if number not in inside:
                verdicts[number] = "misses SLO" if self.misses(number) else "worse"
        leader = next((number for number in inside if self.meets(number)), None)
        for number in inside:
            may_win = leader is None or self._may_win(number, leader)
            is_same = leader is not None and self.is_same(number, leader)
            if leader is not None and self.meets(number) and (may_win or is_same):
                is_open = self._is_open(number, leader) and not is_over
                verdicts[number] = "undecided" if is_open else "equal"
            else:
                verdicts[number] = "undecided" if may_win else "no better"
        if list(verdicts.values()).count("equal") == 1 and "undecided" not in verdicts.values():
            verdicts = {
                n: "best" if verdict == "equal" else verdict for n, verdict in verdicts.items()
            }
        return verdicts
