"""Forecasting interference of pairs that were not measured, from those that were."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from gpuscope._types import Bools, Floats
from gpuscope.analysis.interference_analysis import FORECAST_CONFIDENCE, Interference

RIDGE = 0.1
"""Weight of the mean of all cells, as a share of a measured cell's weight."""
_STEPS = 200
"""Of alternating least squares; it has settled long before."""


def forecast_cells(
    cells: Sequence[Interference], wanted: Collection[tuple[str, str]]
) -> tuple[Interference, ...]:
    """Return the cells, those wanted with a forecast from the values of the others.

    log(1 + interference(A | B)) is taken to be sensitivity(A) × pressure(B), which are fitted by
    alternating least squares with a ridge to the mean. The interval is that of leave-one-pair-out
    errors: each measured value is forecast from the other pairs, as a cell that was not measured
    is, and its error counts in proportion to the size of that forecast plus the mean size of all
    values. Their quantile is that of hierarchical conformal prediction (Lee, Barber, Willett 2023),
    with a pair's two cells as a group: both directions of a pair err alike.

    Parameters
    ----------
    wanted
        (of, given) of the cells to forecast. There is none, and the reason says so, where the
        measured pairs do not relate the two workloads, or are too few for an interval.
    """
    names = [*dict.fromkeys(cell.of for cell in cells)]
    logs = np.full((len(names), len(names)), np.nan)
    for cell in cells:
        if cell.value is not None:
            logs[names.index(cell.of), names.index(cell.given)] = math.log1p(cell.value)
    is_measured = ~np.isnan(logs)
    pairs = (is_measured | is_measured.T).sum() / 2
    needed = FORECAST_CONFIDENCE * (pairs + 1)
    related = _related(is_measured) if needed <= pairs else np.zeros_like(is_measured)
    fitted, margins = _with_margins(logs, is_measured, needed) if related.any() else (logs, logs)
    forecast = []
    for cell in cells:
        at = names.index(cell.of), names.index(cell.given)
        if (cell.of, cell.given) not in wanted:
            forecast.append(cell)
        elif not related[at]:
            reason = "not measured, and too few others are to forecast it: measure more pairs"
            forecast.append(replace(cell, reason=reason))
        else:
            # No forecast is below everything that was measured, nor speeds up what nothing did.
            least = min(0.0, np.nanmin(logs))
            ends = (fitted[at], fitted[at] - margins[at], fitted[at] + margins[at])
            value, low, high = (math.expm1(max(least, end)) for end in ends)
            forecast.append(
                replace(
                    cell,
                    forecast=value,
                    forecast_low=low,
                    forecast_high=high,
                    reason="not measured: forecast from the pairs that were",
                )
            )
    return tuple(forecast)


def _related(is_measured: Bools) -> Bools:
    """Return which cells' sensitivity and pressure measured cells put on one scale.

    The scale of a sensitivity and that of a pressure are related by the cells that both have, and
    by those that others share with them: by a path from cell to cell in a row or a column.
    """
    related = is_measured
    for _ in is_measured:
        related = is_measured @ is_measured.T @ related
    return related


def _with_margins(logs: Floats, is_measured: Bools, needed: float) -> tuple[Floats, Floats]:
    """Return the fitted matrix, and for each cell the margin that so many pairs keep within."""
    typical = np.abs(logs[is_measured]).mean()
    fitted, both, errors = _fitted(logs, is_measured), is_measured.astype(int) + is_measured.T, []
    for cell in np.argwhere(is_measured):
        training = is_measured.copy()
        training[tuple(cell)] = training[tuple(cell[::-1])] = False
        without = _fitted(logs, training)[tuple(cell)]
        error = abs(without - logs[tuple(cell)])
        errors.append((error / (abs(without) + typical) if error else 0.0, 1 / both[tuple(cell)]))
    sizes, weights = zip(*sorted(errors), strict=True)
    enough = np.searchsorted(np.cumsum(weights), needed - 1e-9)
    return fitted, sizes[enough] * (np.abs(fitted) + typical)


def _fitted(logs: Floats, is_measured: Bools) -> Floats:
    """Return sensitivity × pressure for every cell, fitted to the known ones."""
    values = np.where(is_measured, logs, 0.0)
    mean, square = values.sum() / is_measured.sum(), (values**2).sum() / is_measured.sum()
    sensitivity, pressure = np.ones(len(logs)), np.full(len(logs), mean)
    if not square:
        return np.zeros_like(logs)
    for _ in range(_STEPS):
        weight = is_measured @ pressure**2 + RIDGE * square
        sensitivity = np.maximum((values @ pressure + RIDGE * square) / weight, 0.0)
        weight = sensitivity**2 @ is_measured + RIDGE
        pressure = (sensitivity @ values + RIDGE * mean) / weight
    return np.outer(sensitivity, pressure)
