"""The speed of a simulated host: how much longer or shorter a call takes than a busy host's."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeAlias

Speeds: TypeAlias = Sequence[tuple[float, Sequence[tuple[float, float]]]]
"""How long after the launch before of its kind, in µs, rising from 0: share of all launches, from 0
to 1 → the time of a launch that so many do not exceed, over the median of those that follow at
once."""

_MEDIAN = 0.5


class Jitter:
    """Draws how fast the host goes, from quantiles that were measured.

    A host is slow for a while, not for a call: each launch draws anew, and what the host does
    until the next goes as fast. The longer ago the launch before of its kind, the slower: caches
    hold less of what it needs, and a core that slept has slowed down.

    Parameters
    ----------
    speeds
        As measured; between two times, and between two shares, is interpolated. Empty: every call
        takes its median.
    noise
        Without it every launch draws the median of those that come as late.
    """

    def __init__(self, speeds: Speeds, *, noise: bool = True) -> None:
        self._noise = noise
        self._since_us = [since_us for since_us, _ in speeds]
        self._quantiles = [[*zip(*quantiles, strict=True)] for _, quantiles in speeds]
        self._medians = [_interpolated(_MEDIAN, *quantiles) for quantiles in self._quantiles]
        self.seed(0)

    def seed(self, seed: int) -> None:
        """Begin anew."""
        self._share = random.Random(seed).random  # noqa: S311 - noise, no secret
        self._ratio = 1.0

    def __call__(self, median_ns: int) -> int:
        """Return how long a call takes now."""
        return median_ns if self._ratio == 1 else round(median_ns * self._ratio)

    def draw(self, since_us: float) -> None:
        """Go on at another speed, so long after the launch before of the same kind."""
        times = self._since_us
        if not times:
            return
        share = self._share() if self._noise else None
        high = bisect_right(times, since_us)  # the first is 0
        ratio = self._at(high - 1, share)
        if high < len(times):
            low_us = times[high - 1]
            slope = (self._at(high, share) - ratio) / (times[high] - low_us)
            ratio += slope * (since_us - low_us)
        self._ratio = ratio

    def _at(self, index: int, share: float | None) -> float:
        """Return the ratio that a share of launches does not exceed; of the median without one."""
        if share is None:
            return self._medians[index]
        return _interpolated(share, *self._quantiles[index])


def _interpolated(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """Do what ``np.interp`` does, which takes longer for one number."""
    high = bisect_right(xs, x)
    if high == len(xs):
        return ys[-1]
    low_x, low_y = xs[high - 1], ys[high - 1]
    return (ys[high] - low_y) / (xs[high] - low_x) * (x - low_x) + low_y
