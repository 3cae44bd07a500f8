"""Errors of fitted GEMM times: in the fit, on shapes left out of it, and of the share of SMs."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gpuscope.device.carve import SmLayout
from gpuscope.simulator.calibration.fit import fit_gemm, predict
from gpuscope.simulator.calibration.kernels import Key, MeasuredShape, MeasuredShapes, kind
from gpuscope.simulator.models.gemm_model import ITEM_BYTES, GemmLibrary
from gpuscope.simulator.profiles.schema import GemmKernels

FOLDS = 5

Errors = dict[str, list[float]]
"""Dtype → relative errors."""

Table = dict[str, dict[str, float]]
"""Dtype, and ``all`` → rows, median, p90, share_median, share_p90."""


def fold_of(shapes: Iterable[tuple[int, ...]]) -> dict[tuple[int, ...], int]:
    """Deal shapes to folds, the same at every run."""
    ordered = sorted(shapes)
    order = np.random.default_rng(0).permutation(len(ordered)).tolist()
    return {ordered[at]: index % FOLDS for index, at in enumerate(order)}


def errors_of(
    fitted: Mapping[Key, GemmKernels], rows: Sequence[MeasuredShape], *, layout: SmLayout
) -> Errors:
    """Return relative errors of predicted times, by dtype."""
    errors: Errors = defaultdict(list)
    for key in sorted({kind(row) for row in rows}):
        rows_of_key = MeasuredShapes.of([row for row in rows if kind(row) == key])
        us = predict(fitted[key], ITEM_BYTES[key[0]], rows_of_key, layout)
        errors[key[0]].extend(np.abs(us / rows_of_key.us - 1).tolist())
    return errors


def share_errors(rows: Iterable[MeasuredShape], *, layout: SmLayout) -> Errors:
    """Return relative errors of the time on all SMs, scaled by the share of SMs, by dtype."""
    errors: Errors = defaultdict(list)
    for row in rows:
        whole = row["us"][str(layout.sm_count)] * layout.sm_count
        errors[row["dtype"]].extend(abs(whole / int(sms) / us - 1) for sms, us in row["us"].items())
    return errors


def spread(errors: Sequence[float]) -> dict[str, float]:
    """Return how many errors there are, their median and their 90th percentile."""
    return {
        "rows": len(errors),
        "median": float(np.median(errors)),
        "p90": float(np.quantile(errors, 0.9)),
    }


def table(errors: Errors, by_share: Errors) -> Table:
    """Return median and 90th percentile of errors, by dtype and of all."""
    rows = {}
    for dtype in [*sorted(errors), "all"]:
        ours, theirs = (
            spread(list(itertools.chain(*of.values())) if dtype == "all" else of[dtype])
            for of in (errors, by_share)
        )
        rows[dtype] = ours | {"share_median": theirs["median"], "share_p90": theirs["p90"]}
    return rows


def judged(
    fitted: Mapping[Key, GemmKernels], rows: Sequence[MeasuredShape], *, layout: SmLayout
) -> Table:
    """Return the table of errors of rows."""
    return table(errors_of(fitted, rows, layout=layout), share_errors(rows, layout=layout))


def errors_told(
    fitted: Mapping[Key, GemmKernels], told: Iterable[MeasuredShape], *, layout: SmLayout
) -> list[float]:
    """Return relative errors of predicted times where the library was told the SM count."""
    errors = []
    for row in told:
        library = GemmLibrary(fitted[kind(row)], ITEM_BYTES[row["dtype"]], layout)
        m, n, k = row["shape"]
        for sms, us in row["us"].items():
            believed = min(row["told"][sms], layout.sm_count)
            ran = library.choose((m, n, k), believed)
            (guess_us,) = library.durations(ran, (m, n, k), int(sms), believed)
            errors.append(abs(float(guess_us) / us - 1))
    return errors


def without_fold(
    rows: Sequence[MeasuredShape],
    index: int,
    told: Sequence[MeasuredShape] = (),
    *,
    layout: SmLayout,
) -> tuple[dict[Key, GemmKernels], list[MeasuredShape], list[MeasuredShape]]:
    """Fit to all shapes but those of one fold; return with the rows of these, and those told."""
    fold = fold_of({tuple(row["shape"]) for row in rows})
    rest, rest_told = (
        [row for row in some if fold[tuple(row["shape"])] != index] for some in (rows, told)
    )
    fitted = fit_gemm(rest, layout, rest_told)
    out, out_told = (
        [row for row in some if fold[tuple(row["shape"])] == index and kind(row) in fitted]
        for some in (rows, told)
    )
    return fitted, out, out_told
