"""The jitter of a simulated host: how much longer or shorter a call takes than its median."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence


class Jitter:
    """Draws how fast the host goes, from quantiles that were measured.

    A host is slow for a while, not for a call: each launch draws anew, and what the host does
    until the next goes as fast.

    Parameters
    ----------
    quantiles
        Share of all launches → time of a launch that so many do not exceed, over the median, from
        the share 0 to 1; between two of them a time is interpolated. Empty: every call takes its
        median.
    """

    def __init__(self, quantiles: Sequence[tuple[float, float]]) -> None:
        self._shares = [share for share, _ in quantiles]
        self._ratios = [ratio for _, ratio in quantiles]
        self.seed(0)

    def seed(self, seed: int) -> None:
        """Begin anew."""
        self._share = random.Random(seed).random  # noqa: S311 - noise, no secret
        self._ratio = 1.0

    def __call__(self, median_ns: int) -> int:
        """Return how long a call takes now."""
        return median_ns if self._ratio == 1 else round(median_ns * self._ratio)

    def draw(self) -> None:
        """Go on at another speed."""
        if not self._shares:
            return
        share = self._share()
        after = min(bisect_right(self._shares, share), len(self._shares) - 1)
        low, high = self._shares[after - 1], self._shares[after]
        weight = (share - low) / (high - low)
        first, second = self._ratios[after - 1], self._ratios[after]
        self._ratio = first + weight * (second - first)
