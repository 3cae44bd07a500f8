"""What the programs share: a choice of the mended twin, and the time of their loop on stdout."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

MENDED = "--mended" in sys.argv


def _of_torch() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


@contextlib.contextmanager
def timed(synchronise: Callable[[], object] = _of_torch) -> Iterator[None]:
    """Print what the loop inside takes, what it left to the GPU included."""
    synchronise()
    began_s = time.perf_counter()
    yield
    synchronise()
    print(f"\nloop_s {time.perf_counter() - began_s:.6f}", flush=True)
