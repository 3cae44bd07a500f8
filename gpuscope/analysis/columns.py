"""Columns of a trace as arrays: codes instead of texts, as a trace may have 10⁶ rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuscope.trace.columns import codes, combined
from gpuscope.trace.model import Trace

Array = np.ndarray[Any, Any]
__all__ = ["Array", "codes", "combined", "is_open", "rows_of", "us"]


def rows_of(trace: Trace, *kinds: str) -> Array:
    """Positions of the rows of these kinds."""
    code, names = codes(trace.spans.column("kind"))
    return np.flatnonzero(np.array([name in kinds for name in names])[code])


def is_open(trace: Trace) -> Array:
    """Row → whether its end is unknown."""
    return np.asarray(trace.spans.column("end_ns").is_null(), dtype=bool)


def us(ns: float | None) -> float | None:
    """Return µs of ns, nothing of nothing."""
    return None if ns is None else ns / 1e3
