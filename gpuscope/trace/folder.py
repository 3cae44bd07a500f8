"""The folder of a run: which traces it holds, and reading them."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from gpuscope import _foreign
from gpuscope.errors import GpuscopeError
from gpuscope.trace.model import Trace
from gpuscope.trace.store import read_parquet

COMPARISON = "comparison.json"
"""The file that names the traces, written after them."""
_TRACE = re.compile(r"trace-[A-Za-z0-9-]+\.parquet")


def is_folder(path: Path) -> bool:
    """Whether a path is that of a folder; no folder can have some texts as its name."""
    with contextlib.suppress(OSError, ValueError):
        return path.is_dir()
    return False


def load_run(folder: Path) -> dict[str, Trace]:
    """Return the traces of a run that was written to a folder, by setting.

    Raises
    ------
    GpuscopeError
        There is no run in it, or not all of one.
    """
    names = trace_names(folder)
    if not names:
        raise GpuscopeError(
            f"there are no traces of a run in {str(folder)!r}, or it was not written to its end: "
            "name the --out folder of a gpuscope run"
        )
    traces = [read_parquet(folder / name) for name in names]
    return {str(trace.metadata.setting): trace for trace in traces}


def trace_names(folder: Path) -> list[str]:
    """Return the names of the traces that the folder's comparison is of; none without it."""
    try:
        facts = _foreign.load(folder / COMPARISON)
    except (OSError, ValueError):
        return []
    if not isinstance(facts, dict):
        return []
    # Before there was such a list, all traces were taken for the run's.
    names = facts.get("traces", sorted(path.name for path in folder.glob("trace-*.parquet")))
    return [
        name
        for name in (names if isinstance(names, list) else ())
        if isinstance(name, str) and _TRACE.fullmatch(name)
    ]
