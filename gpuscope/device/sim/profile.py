"""A GPU profile: what was measured on a real GPU, and the times that follow from it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from typing import Any

import numpy as np

from gpuscope.device.api import KernelCost
from gpuscope.device.carve import SmLayout
from gpuscope.errors import DeviceUnavailable

_NEIGHBOURS = 6
_LAUNCH_FLOOR_US = 2.0
_PEAK_TFLOPS = {"float16": 800.0, "bfloat16": 800.0, "float32": 52.0, "float64": 60.0}
_BANDWIDTH_TB_S = 3.9
_ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class Profile:
    """A simulated GPU's layout, host costs and measured kernel times.

    Attributes
    ----------
    constants
        Host costs and overheads: ns where the name ends in ``_ns``.
    gemm
        Rows of dtype, m, n, k and ``[SMs, µs, blocks]``, as measured.
    sm_count_target
        Rows of n, SMs, µs by default and µs with the SM-count target, float16 n³.
    copy
        Rows of MB, SMs, µs of an element-wise copy kernel.
    """

    name: str
    device_name: str
    layout: SmLayout
    compute_capability: tuple[int, int]
    memory_bytes: int
    measured: dict[str, str]
    constants: dict[str, int]
    gemm: list[list[Any]]
    sm_count_target: list[list[float]]
    copy: list[list[float]]
    _costs: dict[Any, KernelCost] = field(default_factory=dict, compare=False)

    @classmethod
    def load(cls, name: str) -> Profile:
        """Load a profile that ships with the package.

        Raises
        ------
        DeviceUnavailable
            There is none of that name; names those there are.
        """
        folder = resources.files("gpuscope.device.sim") / "profiles"
        known = sorted(item.name.removesuffix(".json") for item in folder.iterdir())
        if name not in known:
            raise DeviceUnavailable(
                f"there is no simulated GPU {name!r}; there is: "
                + ", ".join(f"sim:{one}" for one in known)
            )
        data = json.loads((folder / f"{name}.json").read_text("utf-8"))
        device = data["device"]
        return cls(
            name=data["name"],
            device_name=device["name"],
            layout=SmLayout(
                device["quantum_sm_count"], device["quanta"], device["remainder_sm_count"]
            ),
            compute_capability=tuple(device["compute_capability"]),
            memory_bytes=device["memory_bytes"],
            measured=data["measured"],
            constants=data["constants"],
            gemm=data["gemm"],
            sm_count_target=data["sm_count_target"],
            copy=data["copy"],
        )

    # -- GEMM -------------------------------------------------------------------------
    def gemm_cost(self, m: int, n: int, k: int, dtype: str, sm_count: int, told: int) -> KernelCost:
        """Cost of an m × n × k GEMM.

        Parameters
        ----------
        sm_count
            SMs of the stream it runs on.
        told
            SMs that the library was told to tune for; 0 for all.

        Notes
        -----
        Interpolated, not modelled: the measured shapes nearest in log space, weighted by
        inverse squared distance, each relative to a roofline. `docs/simulator.md` states
        the error of leaving a shape out.
        """
        if 0 < told < sm_count:
            sm_count = told  # the library leaves the others idle
        key = (m, n, k, dtype, sm_count, told)
        cost = self._costs.get(key)
        if cost is None:
            cost = self._costs[key] = self._interpolate(*key)
        return cost

    @cached_property
    def _measured(self) -> dict[str, tuple[np.ndarray[Any, Any], list[list[Any]]]]:
        by_dtype: dict[str, list[list[Any]]] = {}
        for row in self.gemm:
            by_dtype.setdefault(row[0], []).append(row)
        return {
            dtype: (np.log2(np.array([row[1:4] for row in rows], dtype=float)), rows)
            for dtype, rows in by_dtype.items()
        }

    def _interpolate(
        self, m: int, n: int, k: int, dtype: str, sm_count: int, told: int
    ) -> KernelCost:
        points, rows = self._measured[dtype]
        distances = np.sum((points - np.log2([max(m, 1), max(n, 1), max(k, 1)])) ** 2, axis=1)
        nearest = np.argsort(distances, kind="stable")[:_NEIGHBOURS]
        weights = 1.0 / (distances[nearest] + 1e-6)
        weights /= weights.sum()
        residual = 0.0
        blocks = 1.0
        for weight, index in zip(weights, nearest, strict=True):
            _, m_i, n_i, k_i, timings = rows[index]
            sms, micros, grids = (
                np.array(column, dtype=float) for column in zip(*timings, strict=True)
            )
            micros_here = np.exp(np.interp(np.log(sm_count), np.log(sms), np.log(micros)))
            residual += weight * np.log(micros_here / _roofline_us(m_i, n_i, k_i, dtype, sm_count))
            blocks *= float(grids[-1]) ** weight
        micros_told = float(np.exp(residual)) * _roofline_us(m, n, k, dtype, sm_count)
        grid = max(1, round(blocks))
        if told:
            micros_told *= self._target_effect(m, n, k, dtype, sm_count)
            grid = min(grid, told)
        waves = -(-grid // sm_count)
        return KernelCost(grid, max(1, round(micros_told * 1000 / waves)))

    def _target_effect(self, m: int, n: int, k: int, dtype: str, sm_count: int) -> float:
        """Time with the SM-count target over time without, from float16 squares.

        16-bit types only: for the others nothing was measured, so nothing is claimed.
        """
        if dtype not in ("float16", "bfloat16"):
            return 1.0
        size = np.log2(max(m * n * k, 1)) / 3
        table: dict[float, list[tuple[float, float]]] = {}
        for n_i, sms, default_us, target_us in self.sm_count_target:
            table.setdefault(float(np.log2(n_i)), []).append((sms, target_us / default_us))
        sizes = sorted(table)
        columns = [np.array(table[one]).T for one in sizes]
        ratios = [float(np.interp(sm_count, sms, effect)) for sms, effect in columns]
        # Below the smallest measured square the effect fades: such a grid fits into one wave.
        return float(np.interp(size, [sizes[0] - 2, *sizes], [1.0, *ratios]))

    # -- other kernels ----------------------------------------------------------------
    def copy_cost(self, nbytes: int, sm_count: int) -> KernelCost:
        """Cost of an element-wise copy kernel over ``nbytes``, read and written."""
        rows = [row for row in self.copy if row[0] == max(row[0] for row in self.copy)]
        sms = [row[1] for row in rows]
        tb_per_s = [2 * row[0] * 2**20 / row[2] / 1e6 for row in rows]
        rate = float(np.interp(sm_count, sms, tb_per_s))
        return KernelCost(sm_count, max(2000, round(2 * nbytes / rate / 1e3)))


def _roofline_us(m: int, n: int, k: int, dtype: str, sm_count: int) -> float:
    """Floor of a GEMM's time: arithmetic or memory, whichever is longer, plus a launch."""
    share = sm_count / 132
    flops_us = 2 * m * n * k / (_PEAK_TFLOPS[dtype] * share * 1e6)
    moved = (m * k + k * n + m * n) * _ITEM_BYTES[dtype]
    memory_us = moved / (_BANDWIDTH_TB_S * min(1.0, share * 1.5) * 1e6)
    return _LAUNCH_FLOOR_US + max(flops_us, memory_us)
