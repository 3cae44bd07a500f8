"""What a profile of a GPU takes over from the H100's: cache and memory that nobody measured."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any


def carried_over(tables: dict[str, Any]) -> dict[str, Any]:
    """Return a profile's tables ``copy``, ``rows`` and ``memory``.

    The cache and the SMs are the H100's, behind this GPU's memory. The share of tiles' loads that
    counts as moved grows with the memory's bandwidth: what it stands for, the cache, does not.
    """
    h100 = resources.files("gpuscope.simulator.profiles") / "h100.json"
    other = json.loads(h100.read_bytes())
    cached = {"cached_bytes_per_us": other["copy"]["cached_bytes_per_us"]}
    bandwidth, measured = (
        profile["constants"]["device_copy_bytes_per_us"] for profile in (tables, other)
    )
    misses = {
        dtype: round(min(1.0, share * bandwidth / measured), 5)
        for dtype, share in other["memory"]["misses"].items()
    }
    memory = {**other["memory"], "misses": misses}
    return {"copy": {**tables["copy"], **cached}, "rows": other["rows"], "memory": memory}


def upgraded(tables: Any) -> object:
    """Return a profile of schema 5 as one of schema 6; whatever else it is, as it is."""
    try:
        if tables["schema"] != 5:
            return tables
        constants = dict(tables["constants"])
        returns = constants.pop("return_call_ns")
        constants |= {"launch_return_ns": returns, "gemm_return_ns": returns}
        source = tables["measured"]["source"]
        source += "; its cache and how memory slows kernels: as in sim:h100"
        measured = {**tables["measured"], "source": source}
        changed = {"constants": constants, "measured": measured, "schema": 6}
        return {**tables, **carried_over(tables), **changed}
    except (ValueError, TypeError, KeyError, AttributeError):  # whoever reads it says what is wrong
        return tables
