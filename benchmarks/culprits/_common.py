"""What the programs share: a choice of the mended twin, and the time of their loop on stdout."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import torch

MENDED = "--mended" in sys.argv
PROFILED = os.environ.get("CULPRIT_PROFILE")
"""Where torch.profiler writes a trace of a few steps."""
_STEPS = 20


def timed(step: Callable[[int], object], steps: int, warm_up: int = 5) -> None:
    """Run steps, some of them before the time counts, and print what the others took."""
    for number in range(warm_up):
        step(number)
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    if PROFILED:
        with torch.profiler.profile() as profiler:
            for number in range(_STEPS):
                step(number)
            torch.cuda.synchronize()
        profiler.export_chrome_trace(PROFILED)
        return
    for number in range(steps):
        step(number)
    torch.cuda.synchronize()
    print(f"loop_s {time.perf_counter() - began_s:.6f}")
