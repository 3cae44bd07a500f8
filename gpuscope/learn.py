"""Former names of the lessons, a package of their own now: each still works, and warns."""

from __future__ import annotations

import warnings

from gpuscope import device, telling, workloads
from gpuscope._optional import needed_for

_HOMES = {"Step": workloads, "address": device, "find": telling, "spin_kernel": workloads}
"""Names of what is no lesson's → where it is; all others are in `gpuscope_lessons`."""


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    home = _HOMES.get(name)
    if home is None:
        with needed_for(f"{__name__}.{name}"):
            import gpuscope_lessons  # noqa: PLC0415 - it may not be installed
        home = gpuscope_lessons
    value: object = getattr(home, name)
    moved = f"{__name__}.{name} has moved: use {home.__name__}.{name}"
    warnings.warn(moved, DeprecationWarning, stacklevel=2)
    return value
