"""The speed of a simulated host: how much longer or shorter a call takes than a busy host's."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

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
        self._quantiles = [np.array(quantiles).T for _, quantiles in speeds]
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
            ratios = [float(np.interp(share, shares, times)) for shares, times in self._quantiles]
            self._ratio = float(np.interp(slept_us, self._slept_us, ratios))
