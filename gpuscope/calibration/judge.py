"""How good a fit is: errors on measured shapes, in the fit and left out of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gpuscope.calibration.fit import Fitted, fit_gemm, predict
from gpuscope.calibration.kernels import Key, Row, Rows, kind
from gpuscope.device.carve import SmLayout
from gpuscope.device.sim.gemm_model import ITEM_BYTES

FOLDS = 5

Shape = tuple[int, ...]
Errors = dict[str, list[float]]
"""Dtype → relative errors."""

Table = dict[str, dict[str, float]]
"""Dtype, and ``all`` → rows, median, p90, share_median, share_p90."""


def fold_of(shapes: Iterable[Shape]) -> dict[Shape, int]:
    """Deal shapes to folds, the same at every run."""
    ordered = sorted(shapes)
    order = np.random.default_rng(0).permutation(len(ordered)).tolist()
    return {ordered[at]: index % FOLDS for index, at in enumerate(order)}


def errors_of(fitted: Mapping[Key, Fitted], rows: Sequence[Row], *, layout: SmLayout) -> Errors:
    """Return relative errors of predicted times, by dtype."""
    errors: Errors = {}
    for key in sorted({kind(row) for row in rows}):
        mine = Rows.of([row for row in rows if kind(row) == key])
        us = predict(fitted[key], ITEM_BYTES[key[0]], mine, layout)
        errors.setdefault(key[0], []).extend(np.abs(us / mine.us - 1).tolist())
    return errors


def share_errors(rows: Iterable[Row], *, layout: SmLayout) -> Errors:
    """Return relative errors of the time on all SMs, scaled by the share of SMs, by dtype."""
    errors: Errors = {}
    for row in rows:
        whole = row["us"][str(layout.sm_count)] * layout.sm_count
        errors.setdefault(row["dtype"], []).extend(
            abs(whole / int(sms) / us - 1) for sms, us in row["us"].items()
        )
    return errors


def table(errors: Errors, by_share: Errors) -> Table:
    """Return median and 90th percentile of errors, by dtype and of all."""
    rows = {}
    for dtype in [*sorted(errors), "all"]:
        ours, theirs = (
            np.concatenate([of[name] for name in (sorted(of) if dtype == "all" else [dtype])])
            for of in (errors, by_share)
        )
        rows[dtype] = {
            "rows": len(ours), "median": float(np.median(ours)),
            "p90": float(np.quantile(ours, 0.9)), "share_median": float(np.median(theirs)),
            "share_p90": float(np.quantile(theirs, 0.9)),
        }  # fmt: skip
    return rows


def cross_validate(
    rows: Sequence[Row], folds: Iterable[int] = range(FOLDS), *, layout: SmLayout
) -> Table:
    """Return the table of errors, each fold predicted by what the others taught.

    Every dtype and SM count of a shape is in one fold. What only shapes of one fold show, kernels
    for some alignment, is not judged.
    """
    fold = fold_of({tuple(row["shape"]) for row in rows})
    errors: Errors = {}
    held: list[Row] = []
    for index in folds:
        rest = [row for row in rows if fold[tuple(row["shape"])] != index]
        kinds = {kind(row) for row in rest}
        out = [row for row in rows if fold[tuple(row["shape"])] == index and kind(row) in kinds]
        for dtype, of_dtype in errors_of(fit_gemm(rest, layout), out, layout=layout).items():
            errors.setdefault(dtype, []).extend(of_dtype)
        held += out
    return table(errors, share_errors(held, layout=layout))
