"""Fitting a profile's constants, tiles and habits to measured kernel durations; errors of the fit.

Constants are fitted for the kernels that ran, by least absolute error of the logarithm
(Levenberg-Marquardt on reweighted squares), then the library's habits of choice by search, on
the times of whatever kernels they choose.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from gpuscope._types import Floats
from gpuscope.device.carve import SmLayout
from gpuscope.errors import GpuscopeError
from gpuscope.simulator.calibration.kernels import (
    Key,
    MeasuredShape,
    MeasuredShapes,
    Tile,
    is_vector,
    kind,
    shares_constants,
)
from gpuscope.simulator.models.gemm_model import ITEM_BYTES, GemmLibrary, Kernels, durations, traits
from gpuscope.simulator.profiles.schema import GemmKernels, KernelChoice, KernelTimes

NOISE = 0.03
"""Errors below this are not worth a constant: repeated measurements differ as much."""

_WARINESS = 0.02
"""Weight of a constant's distance from where it started, in the logarithm."""

_NEAR = 1.0
"""The same for one kind of kernels, from the constants of those it is fitted together with."""

_START = {
    "launch_us": 1.5,
    "block_us": 0.7,
    "latency_us": 1.5e-3,
    "multiply_us": 3e-7,
    "load_us": 2e-5,
    "store_us": 5e-5,
    "misaligned": 1.3,
    "sharpness": 1.5,
    "sm_bytes_per_us": 55e3,
    "bytes_per_us": 3.6e6,
    "wave_rounding": 0.8,
    "held_rounding": 0.5,
    "late_rounds": 1.0,
    "reduce_us": 2.5,
}
_BY_KIND = {
    ("float16", 2): {"multiply_us": 9e-7, "load_us": 6e-5},
    ("bfloat16", 2): {"multiply_us": 9e-7, "load_us": 6e-5},
    ("float32", 16): {"multiply_us": 4e-6, "load_us": 4e-5, "latency_us": 1e-2},
    ("float64", 16): {"multiply_us": 4e-6, "load_us": 4e-5, "latency_us": 5e-3},
}
_BOUNDS = {
    "sharpness": (1.0, 8.0),
    "wave_rounding": (0.05, 1.0),
    "held_rounding": (0.05, 1.0),
    "late_rounds": (0.0, 4.0),
    "misaligned": (1.0, 4.0),
}
_CERTAINTY, _FAR, _STEPS = 10.0, 1.5, 300
"""Of preferences: how much more likely faster tiles are, the error from which on all are alike, and
steps of the descent."""
_HABITS: dict[str, list[float]] = {
    "split_k_at_least": [32, 64, 128, 256, 512, 1024],
    "split_below_blocks": [0, 0.12, 0.18, 0.24, 0.27, 1 / 3],
    "blocks_at_most": [1, 2, 3],
    "split_side_at_least": [8, 32],
    "crowded_from": [0.7, 0.8, 0.85],
    "crowding": [0, 0.1, 0.2, 0.3, 0.5],
}
"""What is tried; numbers of blocks as shares of the SMs."""


def digits(value: float) -> float:
    """Round to five digits."""
    return float(f"{value:.5g}")


def descend(
    start: Floats, errors: Callable[[Floats], Floats], wariness: float = _WARINESS
) -> Floats:
    """Least absolute error, by Levenberg-Marquardt on reweighted squares."""

    def loss(x: Floats, residuals: Floats) -> float:
        away = wariness * float(np.sum((x - start) ** 2))
        return float(np.sum(np.sqrt(residuals**2 + NOISE**2))) + away

    x, residuals, damping = start.copy(), errors(start), 1e-2
    best = loss(x, residuals)
    step = 1e-4
    for _ in range(60):
        axes = np.eye(len(x))
        slopes = np.array([(errors(x + step * axis) - residuals) / step for axis in axes]).T
        weights = 1 / np.sqrt(residuals**2 + NOISE**2)
        curve = slopes.T @ (slopes * weights[:, None]) + 2 * wariness * np.eye(len(x))
        slope = slopes.T @ (weights * residuals) + 2 * wariness * (x - start)
        before = best
        for _ in range(8):
            damped = curve + damping * np.diag(np.diag(curve) + 1e-3)
            candidate = x - np.clip(np.linalg.solve(damped, slope), -1, 1)
            candidate_residuals = errors(candidate)
            candidate_loss = loss(candidate, candidate_residuals)
            if candidate_loss < best:
                x, residuals, best = candidate, candidate_residuals, candidate_loss
                damping = max(damping / 3, 1e-6)
                break
            damping *= 4
        if before - best < 1e-5 * before:
            break
    return x


def _fit_times(
    key: Key, rows: MeasuredShapes, layout: SmLayout, near: KernelTimes | None = None
) -> KernelTimes:
    """Fit the constants of one kind's times to the kernels that ran, near others if given."""
    item = ITEM_BYTES[key[0]]
    start = _START | _BY_KIND.get(key, {})
    if near is not None:
        start = {name: getattr(near, name) for name in _START}
    idle = {"misaligned", "held_rounding"} if rows.persistent else {"late_rounds"}
    names = [name for name in start if name not in idle]
    flop = 2 * np.prod(rows.shape.astype(float), axis=0)
    rates = {
        "tflop_per_s": digits(np.max(flop / rows.us * (rows.sms == layout.sm_count)) / 1e6),
        "sm_tflop_per_s": digits(np.max(flop / rows.us / rows.sms) / 1e6),
    }
    read = rows.readable
    kernels, shape = rows.kernels.where(read), tuple(rows.shape[:, read])
    sms, us = rows.sms[read], rows.us[read]

    def times(x: Floats) -> KernelTimes:
        values = dict.fromkeys(idle, 1.0)
        values |= {name: float(np.exp(value)) for name, value in zip(names, x, strict=True)}
        for name, (low, high) in _BOUNDS.items():
            values[name] = min(max(values[name], low), high)
        if final:
            values = {name: digits(value) for name, value in values.items()}
        kinds = {"persistent": rows.persistent, "vector": item > 2 or rows.vector}
        return KernelTimes.model_construct(None, **kinds, power=0.0, **rates, **values)

    def errors(x: Floats) -> Floats:
        predicted_us = durations(
            times(x), kernels, shape, item, sms, believed=layout.sm_count, layout=layout
        )
        return np.asarray(np.log(predicted_us / us))

    final = False
    wariness = _WARINESS if near is None else _NEAR
    best = descend(np.log([max(start[name], 1e-9) for name in names]), errors, wariness)
    final = True
    return times(best)


def _tiles_of(rows: MeasuredShapes) -> list[Tile]:
    """Return the tiles that ran, each with its most frequent depth."""
    tiles: dict[tuple[int, int], Tile] = {}
    for tile, _ in sorted(rows.tiles.items(), key=lambda item: (-item[1], item[0])):
        tiles.setdefault(tile[:2], tile)
    return sorted(tiles.values())


def predict(kernels: GemmKernels, item: int, rows: MeasuredShapes, layout: SmLayout) -> Floats:
    """Return times of rows in µs, each by the kernel that the library is thought to choose."""
    library, sms = GemmLibrary(kernels, item, layout), layout.sm_count
    _, first, back = np.unique(rows.shape, axis=1, return_index=True, return_inverse=True)
    chosen = [library.choose((m, n, k), sms) for m, n, k in rows.shape[:, first].T.tolist()]
    ran = Kernels.joined(chosen).where(back)
    return library.durations(ran, tuple(rows.shape), rows.sms, sms)


def _with_choice(
    kernels: GemmKernels, item: int, rows: MeasuredShapes, layout: SmLayout
) -> GemmKernels:
    """Search the habits under which the chosen kernels' times are nearest to the measured."""
    sms, persistent = layout.sm_count, kernels.times.persistent
    in_blocks = ("split_below_blocks", "blocks_at_most")
    tried = {
        name: [round(sms * value) for value in values] if name in in_blocks else values
        for name, values in _HABITS.items()
    }
    habits: dict[str, float] = {
        "split_k_at_least": 1024 if persistent else 64,
        "split_side_at_least": 8,
        "split_below_blocks": 0,
        "blocks_at_most": (1 if persistent else 3) * sms,
        "crowding": 0,
        "crowded_from": 0.8,
    }

    def loss(values: dict[str, float]) -> float:
        tried = kernels.model_copy(update={"choice": KernelChoice.model_construct(None, **values)})
        errors = np.log(predict(tried, item, rows, layout) / rows.us)
        return float(np.mean(np.sqrt(errors**2 + NOISE**2)))

    best = loss(habits)
    for _ in range(2):
        before = best
        for name, values in tried.items():
            if name == "crowded_from" and habits["crowding"] == 0:
                continue
            for value in values:
                if value == habits[name]:
                    continue
                tried_loss = loss(habits | {name: value})
                if tried_loss < best - 1e-6:
                    best, habits = tried_loss, habits | {name: value}
        if best == before:
            break
    return kernels.model_copy(update={"choice": KernelChoice.model_validate(habits)})


def _with_preferences(
    kernels: GemmKernels,
    item: int,
    rows: Sequence[MeasuredShape],
    targeted_rows: Sequence[MeasuredShape],
    layout: SmLayout,
) -> GemmKernels:
    """Learn which tiles the library prefers, from the times that it was measured with.

    Each tile gets a share of a GEMM, larger the faster the library seems to think it; the shares'
    mean error, of times in the logarithm, is brought down by gradient descent (Adam).
    """
    library, tiles = GemmLibrary(kernels, item, layout), len(kernels.tiles)
    all_of_them, traits_of, thought, errors = layout.sm_count, [], [], []
    cases = [((*row["shape"], all_of_them), row["us"]) for row in rows] + [
        ((*row["shape"], min(row["told"][sms], all_of_them)), {sms: us})
        for row in targeted_rows
        for sms, us in row["us"].items()
    ]
    for (m, n, k, believed), us in cases:
        shape = (m, n, k)
        weighed = library.weighed(shape, believed)
        splits = weighed.reshape(tiles, -1).argmin(axis=1)
        ran = library.every.where(splits + np.arange(tiles) * (len(weighed) // tiles))
        times = [library.durations(ran, shape, int(sms), believed) for sms in us]
        off = np.abs(np.log(np.array(times) / np.array(list(us.values()))[:, None]))
        errors.append(np.minimum(off, _FAR).mean(axis=0))
        thought.append(np.log(np.minimum(weighed.reshape(tiles, -1).min(axis=1), 1e20)))
        traits_of.append(traits(shape, believed, layout))
    x, log_us, error = map(np.array, (traits_of, thought, errors))
    liked = np.zeros((tiles, x.shape[1]))
    first, second = np.zeros_like(liked), np.zeros_like(liked)
    for step in range(1, _STEPS + 1):
        score = x @ liked.T - _CERTAINTY * (log_us - log_us.min(axis=1, keepdims=True))
        share = np.exp(score - score.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        beyond = error - (share * error).sum(axis=1, keepdims=True)
        slope = (share * beyond).T @ x / len(x) + 1e-4 * liked
        first, second = 0.9 * first + 0.1 * slope, 0.99 * second + 0.01 * slope**2
        root = np.sqrt(second / (1 - 0.99**step)) + 1e-8
        liked = liked - 0.1 * first / (1 - 0.9**step) / root
    preferences = [[digits(value) for value in row] for row in (liked / _CERTAINTY).tolist()]
    choice = kernels.choice.model_copy(update={"preferences": preferences})
    return kernels.model_copy(update={"choice": choice})


def fit_gemm(
    rows: Sequence[MeasuredShape], layout: SmLayout, told: Sequence[MeasuredShape] = ()
) -> dict[Key, GemmKernels]:
    """Fit every kind of kernels that there is.

    Parameters
    ----------
    told
        Rows of a library that was told the SM count, by which its preferences are learned. Without
        them it has none, nor has it any among persistent kernels, where the model chooses well.

    Raises
    ------
    GpuscopeError
        Of no kernel of a kind, nor of its kin, the tile can be told.
    """
    fitted: dict[Key, GemmKernels] = {}
    by_shared: dict[Key, list[MeasuredShape]] = defaultdict(list)
    keys = sorted({kind(row) for row in rows})
    by_key = {key: [row for row in rows if kind(row) == key] for key in keys}
    for key, of_kind in by_key.items():
        by_shared[shares_constants(key)] += of_kind
    times = {key: _fit_times(key, MeasuredShapes.of(kin), layout) for key, kin in by_shared.items()}
    for key in keys:
        dtype, width = key
        item = ITEM_BYTES[dtype]
        rows_of_key = MeasuredShapes.of(by_key[key])
        # The kernels of float16 and bfloat16 for aligned rows have the same tiles; rows of
        # 4-byte alignment can take whatever those of 2 bytes take.
        twins = [key]
        if item == 2 and width == 16:
            twins = [("bfloat16", 16), ("float16", 16)]
        elif item == 2 and width == 4:
            twins = [key, (dtype, 2)]
        tiles = _tiles_of(
            MeasuredShapes.of([row for twin in twins for row in by_key.get(twin, [])])
        )
        if not tiles:
            raise GpuscopeError(
                f"of no {dtype} kernel for rows aligned to {width} bytes the tile can be told: "
                + ", ".join(sorted({row["kernels"][0][0] for row in by_key[key]}))
            )
        near = _fit_times(key, rows_of_key, layout, times[shares_constants(key)])
        kernels = GemmKernels.model_construct(None, alignment=width, tiles=tiles, times=near)
        fitted[key] = _with_choice(kernels, item, rows_of_key, layout)
        heard = [row for row in told if kind(row) == key and not is_vector(row)]
        if heard and not rows_of_key.persistent:
            tiled = [row for row in by_key[key] if not is_vector(row)]
            fitted[key] = _with_preferences(fitted[key], item, tiled, heard, layout)
    return fitted
