"""Fitting copies, row-wise kernels, the cache, and what loaded memory does to kernels."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpuscope._types import Floats
from gpuscope.device.api import KernelCost
from gpuscope.simulator.calibration.fit import descend, digits
from gpuscope.simulator.models.gemm_model import ITEM_BYTES
from gpuscope.simulator.models.memory_model import moved, slowdowns
from gpuscope.simulator.models.row_model import row_time
from gpuscope.simulator.profiles.profile import GpuProfile
from gpuscope.simulator.profiles.schema import CopyTimes, MemoryTimes, ProfileFile, RowTimes

_MIB = 1 << 20
_FAR, _WARINESS = 3.0, 3e-3
"""How many times as much or as little a constant may be as where its fit starts, and the weight of
its distance from there, in the logarithm."""
_CLOSE = 0.2
"""Errors far above this count hardly more than it: they are not of the law that is fitted."""


class Pair(NamedTuple):
    """A kernel alone, and beside another.

    Attributes
    ----------
    victim, aggressor
        Descriptions of workloads.
    sms, rest
        SMs of each.
    alone_us, beside_us
        Medians of the victim's kernel, where its calls are waited for.
    period_us
        Time from call to call.
    """

    victim: Mapping[str, Any]
    aggressor: Mapping[str, Any]
    sms: int
    rest: int
    alone_us: float
    beside_us: float
    period_us: float


def fit_copy(
    rows: Sequence[Mapping[str, float]],
) -> tuple[dict[str, float], tuple[int, int]]:
    """Fit the copy kernel: launch + bytes / (soft minimum of the SMs' and memory's rate).

    Parameters
    ----------
    rows
        ``mb`` (MiB read, and as many written), ``sms`` and ``us`` of each.

    Returns
    -------
    dict
        Fields of :class:`~gpuscope.simulator.profiles.schema.CopyTimes`.
    tuple
        Footprints in bytes up to which the cache holds all, and from which on nothing.
    """
    touched = np.array([2 * row["mb"] * _MIB for row in rows])
    sms, us = (np.array([row[name] for row in rows]) for name in ("sms", "us"))
    names = ("launch_us", "sm_bytes_per_us", "bytes_per_us", "cached_bytes_per_us", "sharpness")

    def errors(x: Floats) -> Floats:
        launch, of_sm, of_memory, of_cache, p, most, more = np.exp(x)
        cached = np.clip((most + more - touched) / more, 0, 1)
        bounds = (1 / (sms * of_sm), cached / of_cache + (1 - cached) / of_memory)
        body = touched * (bounds[0] ** p + bounds[1] ** p) ** (1 / p)
        return np.asarray(np.log((launch + body) / us))

    best = np.exp(descend(np.log([1.5, 1e5, 2.8e6, 6e6, 4.0, 3e7, 2e7]), errors, 1e-3))
    most, more = best[5:]
    cached_bytes = round(float(most)), round(float(most + more))
    return dict(zip(names, map(digits, best[:5]), strict=True)), cached_bytes


def fit_vector(rows: Sequence[Mapping[str, float]]) -> dict[str, float] | None:
    """Fit a matrix × vector: bytes / (soft minimum of the SMs' and memory's rate).

    Parameters
    ----------
    rows
        ``sms``, ``nbytes`` and ``us`` of each; None is returned for fewer than it has constants.
    """
    if len(rows) < len(_VECTOR):
        return None
    sms, nbytes, us = (np.array([row[name] for row in rows]) for name in ("sms", "nbytes", "us"))

    def errors(x: Floats) -> Floats:
        of_sm, of_memory, p = np.exp(x)
        body = nbytes * ((sms * of_sm) ** -p + of_memory**-p) ** (1 / p)
        return np.asarray(np.log(body / us))

    best = np.exp(descend(np.log([*_VECTOR.values()]), errors, _WARINESS))
    return dict(zip(_VECTOR, map(digits, best), strict=True))


_VECTOR = {"sm_bytes_per_us": 1.1e5, "bytes_per_us": 4e6, "sharpness": 3.0}
"""Where the fit starts."""

_ROWS = {
    "launch_us": 1.3,
    "block_us": 0.4,
    "column_us": 1.1e-3,
    "sm_block_us": 0.25,
    "sm_column_us": 2e-4,
    "sm_bytes_per_us": 5e4,
    "sharpness": 1.7,
}
_RANGES = {"sm_cached_bytes": (1e5, 1.3e5), "reread_bytes": (2e7, 1.5e7)}
"""Where the fit starts: see :class:`~gpuscope.simulator.profiles.schema.RowTimes`."""


def fit_rows(
    rows: Sequence[Mapping[str, float]], cached: tuple[int, int], copy: CopyTimes
) -> dict[str, Any]:
    """Fit the softmax kernel.

    Parameters
    ----------
    rows
        ``rows``, ``columns``, ``sm_count`` and ``us`` of each.
    cached, copy
        What :func:`fit_copy` found.
    """
    cases = [(int(row["rows"]), int(row["columns"]), int(row["sm_count"])) for row in rows]

    def times(x: Floats) -> RowTimes:
        values = np.exp(x).tolist()
        constants: dict[str, Any] = dict(zip(_ROWS, map(digits, values), strict=False))
        constants["sharpness"] = max(1.0, constants["sharpness"])
        pairs = zip(values[len(_ROWS) :: 2], values[len(_ROWS) + 1 :: 2], strict=True)
        ranges = [(round(most), round(most + more)) for most, more in pairs]
        return RowTimes.model_validate({**constants, **dict(zip(_RANGES, ranges, strict=True))})

    def errors(x: Floats) -> Floats:
        candidate = times(x)
        guesses = [row_time(candidate, *case, cached_bytes=cached, copy=copy).us for case in cases]
        return np.asarray(np.log(np.array(guesses) / [row["us"] for row in rows]))

    best = descend(
        np.log([*_ROWS.values(), *itertools.chain(*_RANGES.values())]), errors, _WARINESS
    )
    return times(best).model_dump(mode="json")


def _cost(profile: GpuProfile, spec: Mapping[str, Any], sms: int) -> KernelCost:
    """Return what a described workload costs on so many SMs."""
    if spec["kind"] == "copy":
        return profile.copy_cost(spec["nbytes"], sms)
    if spec["kind"] == "softmax":
        return profile.softmax_cost(spec["rows"], spec["columns"], sms)
    target = sms if sms % profile.layout.quantum_sm_count == 0 else 0
    return profile.gemm_cost(spec["m"], spec["n"], spec["k"], spec["dtype"], sms, target)


def slowdown(profile: GpuProfile, pair: Pair) -> float:
    """Return how many times as long a kernel takes beside the other, which always runs."""
    memory, total = profile.memory, profile.layout.sm_count
    victim = _cost(profile, pair.victim, pair.sms)
    other = _cost(profile, pair.aggressor, pair.rest)
    other_us = other.alone_ns(pair.rest) / 1000
    calls = pair.period_us / other_us
    victim_kept = memory.kept(moved(other, 1.0) * calls)
    other_kept = memory.kept(moved(victim, 0.0) / calls)
    demands = [
        memory.demand(work, share, min(work.blocks, sms), sms / total)
        for work, share, sms in ((victim, victim_kept, pair.sms), (other, other_kept, pair.rest))
    ]
    return max(1.0, slowdowns(demands)[0])


_MEMORY = {
    "cache_bytes": 3.2e7,
    "smallest_share": 0.53,
    "tail_us": 0.6,
    "cold_rows": 0.33,
    "cold_products": 0.12,
    "rereads": 3.0,
    "misses": 0.14,
    "copies": 1.0,
    "rows": 1.0,
    "vector": 1.0,
    "float16": 1.0,
    "float32": 0.5,
    "float64": 0.45,
}
"""Where the fit starts."""
_ALONE = {"cached_bytes", "sm_bytes_per_us", "vector", "vector_told"}


def memory_times(values: Mapping[str, float], alone: Mapping[str, Any]) -> MemoryTimes:
    """Return the constants of memory: bfloat16 waits as float16 does.

    Parameters
    ----------
    values
        Those of :data:`_MEMORY`.
    alone
        The others, which kernels alone tell.
    """
    exposure = {name: values[name] for name in ("copies", "rows", "vector")}
    products = {dtype: values["float16" if dtype == "bfloat16" else dtype] for dtype in ITEM_BYTES}
    alike = ("tail_us", "cold_rows", "cold_products", "rereads")
    return MemoryTimes.model_validate(
        {
            **alone,
            "cache_bytes": round(values["cache_bytes"]),
            "smallest_share": min(1.0, values["smallest_share"]),
            "exposure": {**exposure, "products": products},
            "misses": dict.fromkeys(ITEM_BYTES, min(1.0, values["misses"])),
            **{name: values[name] for name in alike},
        }
    )


def fit_memory(profile: GpuProfile, pairs: Sequence[Pair]) -> MemoryTimes:
    """Fit how kernels wait for memory beside others.

    Parameters
    ----------
    profile
        With all times of kernels alone.
    """
    memory = profile.file.memory
    alone = memory.model_dump(include=_ALONE)
    seen = np.array([pair.beside_us / pair.alone_us for pair in pairs])
    start, most = np.log([*_MEMORY.values()]), math.log(_FAR)

    def values(x: Floats) -> dict[str, float]:
        inside = np.exp(np.clip(x, start - most, start + most)).tolist()
        return dict(zip(_MEMORY, inside, strict=True))

    def errors(x: Floats) -> Floats:
        candidate = profile.with_memory(memory_times(values(x), alone))
        guesses = np.array([slowdown(candidate, pair) for pair in pairs])
        return np.asarray(_CLOSE * np.arctan(np.log(guesses / seen) / _CLOSE))

    best = values(descend(start, errors, _WARINESS))
    return memory_times({name: digits(value) for name, value in best.items()}, alone)


def fitted(
    profile: Mapping[str, Any],
    copies: Sequence[Mapping[str, float]],
    rows: Sequence[Mapping[str, float]],
    vectors: Sequence[Mapping[str, float]],
    pairs: Sequence[Pair],
) -> dict[str, Any]:
    """Return a profile with its tables ``copy``, ``rows`` and ``memory``.

    Parameters
    ----------
    profile
        All others of its tables.
    copies, rows, vectors, pairs
        What :mod:`gpuscope.simulator.calibration.contention` measured. Without pairs, how kernels
        wait for memory is what the fit would start from.
    """
    copy, cached = fit_copy(copies)
    times = CopyTimes.model_validate(copy)
    vector = {
        name: fit_vector([row for row in vectors if row["told"] == is_told])
        for name, is_told in (("vector", False), ("vector_told", True))
    }
    of_sm = digits(1.1 * copy["sm_bytes_per_us"])
    alone = {"cached_bytes": cached, "sm_bytes_per_us": of_sm, **vector}
    memory = memory_times(_MEMORY, alone)
    tables = {
        **profile,
        "copy": copy,
        "rows": fit_rows(rows, cached, times),
        "memory": memory.model_dump(mode="json"),
    }
    if not pairs:
        return tables
    simulated = GpuProfile(ProfileFile.parse(json.dumps(tables), "the fit"), "fit")
    return {**tables, "memory": fit_memory(simulated, pairs).model_dump(mode="json")}
