"""What noise leaves of measurements, in turns and of calls: levels, differences, intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from gpuscope._types import Floats
from gpuscope.analysis.certainty import student_t

PRIOR = 4
"""Degrees of freedom that the noise of all settings counts for in that of each."""
_LEAST = 0.01
"""Share of the greatest value below which values count as that: the logarithm of 0 is none."""
_ZERO = 1e-300
"""A column that is all zeros is this."""
_NONE = 1e-9
"""Of weights and degrees of freedom: less is rounding."""
_REPEATS = {"_p50_": (1.0, 0.07), "_p90_": (1.2, 0.23), "_p99_": (2.5, 0.23), "goodput": (0.1, 0.1)}
"""Part of a column's name → the share by which measurements of the same differ, which two traces
cannot tell: on a GPU, and simulated. On a GPU: more than two settings of one run that were the same
differed by in 24 runs on an H100 (``benchmarks/results/same_settings_fitted.json``): a p50 by up to
86 %, a p90 by 102 %, a p99 by 229 %, rates by 2.7 %. In 24 later runs (``same_settings.json``) it
was 47, 129, 330 and 3.9 %, and one was told as a change. Simulated: by at most 6.4 % (p50) and
22.2 % (p99), as an H200's host differed within minutes (docs/simulator.md, "Known differences from
hardware"). Goodput's is chosen, not measured."""
_REPEATS_OF_RATES = 0.06
"""The same of rates: the load of ``examples/quickstart.toml`` does 105 % of its rate alone on the
simulated GPU: alone it is measured afterwards, when the power cap has begun to slow the GPU."""


def least_of(values: Iterable[float], below: float | None = None) -> float:
    """Return what values of a column are taken for at least, as the logarithm of 0 is none."""
    least = _LEAST * max(map(abs, values), default=0.0)
    return (least if below is None else min(least, below / 2)) or _ZERO


@dataclass(frozen=True)
class Estimate:
    """A value that was estimated.

    Attributes
    ----------
    error
        Its standard error; infinite where nothing tells how large it is.
    freedom
        Degrees of freedom of the error.
    """

    value: float
    error: float
    freedom: int

    def bounds(self, tail: float) -> tuple[float, float]:
        """Return the interval that leaves out ``tail`` at each end."""
        wide = student_t(self.freedom, tail) * self.error if 0 < self.error < math.inf else 0.0
        wide = math.inf if math.isinf(self.error) else wide
        return self.value - wide, self.value + wide


UNKNOWN = Estimate(0.0, math.inf, 1)


class Levels:
    """The level of each setting, and how far noise hides it: a linear model of logarithms.

    log(value) = setting + turn + noise, by least squares: what a turn has in common, such as
    drift, is taken out, also where not all settings were measured in all turns (a block design
    with incomplete blocks). In logarithms, as noise and drift are shares. The variance of a
    setting's noise is pooled with that of all settings, which counts for four degrees of freedom
    (the moderated t-statistic of G. K. Smyth, Statistical Applications in Genetics and Molecular
    Biology 3 (2004), 3, there with an estimated prior).

    Parameters
    ----------
    samples
        Setting → turn → value.
    by_turn
        Whether turns have something in common. Without, a level includes their drift.
    below
        A limit, from which values that are too small for a logarithm have to be told.

    Attributes
    ----------
    freedom
        Degrees of freedom of the noise of all settings.
    """

    def __init__(
        self,
        samples: Mapping[int, Mapping[int, float]],
        *,
        by_turn: bool,
        below: float | None = None,
    ) -> None:
        self._place = {setting: position for position, setting in enumerate(samples)}
        seen = [(setting, turn) for setting, turns in samples.items() for turn in turns]
        values = np.array([samples[setting][turn] for setting, turn in seen], dtype=float)
        logarithms = np.log(np.maximum(values, least_of(values, below)))
        of = np.array([self._place[setting] for setting, _ in seen], dtype=int)
        turns = sorted({turn for _, turn in seen}) if by_turn else []
        model = np.zeros((len(seen), len(samples) + len(turns)))
        model[np.arange(len(seen)), of] = 1
        if by_turn:
            columns = np.searchsorted(turns, [turn for _, turn in seen])
            model[np.arange(len(seen)), len(samples) + columns] = 1
        self._model, self._solve = model, np.linalg.pinv(model)
        self._values = logarithms
        rest = (logarithms - model @ (self._solve @ logarithms)) ** 2
        free = 1 - np.einsum("ij,ji->i", model, self._solve)
        squares, freedom = (
            np.bincount(of, weights=weights, minlength=len(samples)) for weights in (rest, free)
        )
        self.freedom = float(freedom.sum())
        self._known = self.freedom > 1 - _NONE
        prior = min(PRIOR, self.freedom)
        pooled = squares.sum() / self.freedom if self._known else math.inf
        self._free = prior + freedom
        variance = np.full(len(freedom), np.inf)
        if self._known:
            variance = (prior * pooled + squares) / self._free
        self._variance = variance[of]

    def value(self, setting: int) -> float:
        """Return the logarithm of a setting's level, to be compared with those of others."""
        return float(self._solve[self._place[setting]] @ self._values)

    def level(self, setting: int) -> Estimate:
        """Return the logarithm of a setting's level."""
        return self._estimate({setting: 1.0})

    def difference(self, setting: int, other: int) -> Estimate:
        """Return the logarithm of the ratio of two settings' levels."""
        if setting == other:
            return Estimate(0.0, 0.0, 1)
        return self._estimate({setting: 1.0, other: -1.0})

    def _estimate(self, signs: Mapping[int, float]) -> Estimate:
        wanted = np.zeros(self._model.shape[1])
        for setting, sign in signs.items():
            wanted[self._place[setting]] = sign
        weights: Floats = wanted @ self._solve
        if not self._known or np.abs(weights @ self._model - wanted).max() > _NONE**0.5:
            return UNKNOWN  # no turn joins them
        own_freedom = sum(self._free[self._place[setting]] for setting in signs)
        own_freedom -= (len(signs) - 1) * min(PRIOR, self.freedom)  # which counts once
        freedom = max(1, math.floor(min(own_freedom, self.freedom) + _NONE))
        error = math.sqrt(float(weights**2 @ self._variance))
        return Estimate(float(weights @ self._values), error, freedom)


def repeats(column: str, is_simulated: bool) -> float:  # noqa: FBT001 - what it is of
    """Return the share by which repeated measurements of a column of a comparison differ."""
    found_in = (shares for part, shares in _REPEATS.items() if part in column)
    return next(found_in, (_REPEATS_OF_RATES, _REPEATS_OF_RATES))[is_simulated]
