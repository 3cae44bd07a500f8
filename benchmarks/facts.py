"""What a benchmark saw: its rows, their spread, and a file with all that says where and when."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from gpuscope.record.sampler import ClockSampler

BESIDE = "(beside it)"
"""Goal of a row that is there for comparison."""


def row(what: str, goal: str, value: float, unit: str, *, met: bool, **detail: Any) -> dict:
    return {"what": what, "goal": goal, "value": value, "unit": unit, "met": met, **detail}


def spread(values: list[float]) -> dict[str, float]:
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


@contextlib.contextmanager
def clocks(gpu: Any) -> Iterator[dict[str, Any]]:
    """Read a GPU's clock and power inside; what it yields is filled when that ends."""
    sampler, found = ClockSampler(lambda: {gpu.info.index: gpu.info.uuid}, time.time_ns), {}
    sampler.start()
    try:
        yield found
    finally:
        sampler.close()
        for state in sampler.facts():
            found.update(to_builtins(state), throttled=[*state.throttled])


def command() -> str:
    """Return what was run, without where its result went."""
    arguments = iter(sys.argv[1:])
    kept = []
    for argument in arguments:
        if argument == "--out":
            next(arguments, None)
        elif not argument.startswith("--out="):
            kept.append(argument)
    return " ".join([f"python benchmarks/{Path(sys.argv[0]).name}", *kept])


def write(out: Path, command: str, machine: str, rows: Any, **more: Any) -> None:
    """Write rows to a file of results.

    Parameters
    ----------
    machine
        What of the machine was used, after its architecture.
    more
        Further facts of the run.
    """
    found = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "command": command,
        "machine": f"{platform.machine()}, {machine}",
        "python": platform.python_version(),
        **more,
        "rows": rows,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
