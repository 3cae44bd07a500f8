"""What the programs share: a choice of the mended twin, and the time of their loop on stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

MENDED = "--mended" in sys.argv


def timed(step: Callable[[int], object], steps: int, warm_up: int = 5) -> None:
    """Run steps, some of them before the time counts, and print what the others took."""
    for number in range(warm_up):
        step(number)
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    for number in range(steps):
        step(number)
    torch.cuda.synchronize()
    print(f"loop_s {time.perf_counter() - began_s:.6f}")  # noqa: T201
