"""Our own Parquet."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from gpuscope.exporters.progress import Step, check_count, silent
from gpuscope.trace.model import Trace
from gpuscope.trace.store import save_trace


def write(trace: Trace, path: Path, step: Step = silent) -> None:
    """Write a trace as Parquet, whole.

    Raises
    ------
    ExportError
        What stands in the file is not what the trace holds.
    """
    save_trace(trace, path)
    check_count(path, "rows", len(trace), pq.read_metadata(path).num_rows)
    step(len(trace))
