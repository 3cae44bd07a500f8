"""The speed of a simulated host: how much longer or shorter a call takes than a busy host's."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeAlias

Speeds: TypeAlias = Sequence[tuple[float, Sequence[tuple[float, float]]]]
"""After how much sleep, in µs, rising from 0: share of all launches, from 0 to 1 → the time of a
launch that so many do not exceed, over the median of a host that did not sleep."""

_MEDIAN = 0.5


class Jitter:
    """Draws how fast the host goes, from quantiles that were measured.

    A host is slow for a while, not for a call: each launch draws anew, and what the host does
    until the next goes as fast. A host that slept is slower: its core has slowed down, and its
    caches hold less.

    Parameters
    ----------
    speeds
        As measured; between two times of sleep, and between two shares, is interpolated. Empty:
        every call takes its median.
    noise
        Without it every launch draws the median after as much sleep.
    """

    def __init__(self, speeds: Speeds, *, noise: bool = True) -> None:
        self._noise = noise
        self._slept_us = [slept_us for slept_us, _ in speeds]
        self._quantiles = [[*zip(*quantiles, strict=True)] for _, quantiles in speeds]
        self.seed(0)

    def seed(self, seed: int) -> None:
        """Begin anew."""
        self._share = random.Random(seed).random  # noqa: S311 - noise, no secret
        self._ratio, self._slept_ns = 1.0, 0

    def __call__(self, median_ns: int) -> int:
        """Return how long a call takes now."""
        return median_ns if self._ratio == 1 else round(median_ns * self._ratio)

    def sleep(self, time_ns: int) -> None:
        """Note that the host slept."""
        self._slept_ns += time_ns

    def draw(self) -> None:
        """Go on at another speed."""
        slept_us, self._slept_ns = self._slept_ns / 1e3, 0
        if self._slept_us:
            share = self._share() if self._noise else _MEDIAN
            high = bisect_right(self._slept_us, slept_us)
            around = slice(high - 1, high + 1)  # the first is 0
            ratios = [_interpolated(share, *times) for times in self._quantiles[around]]
            self._ratio = _interpolated(slept_us, self._slept_us[around], ratios)


def _interpolated(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """Do what ``np.interp`` does, which takes longer for one number."""
    high = bisect_right(xs, x)
    if high == len(xs):
        return ys[-1]
    slope = (ys[high] - ys[high - 1]) / (xs[high] - xs[high - 1])
    return slope * (x - xs[high - 1]) + ys[high - 1]
