"""Our own Parquet."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from gpuscope._files import replacing
from gpuscope.errors import ExportError
from gpuscope.exporters.steps import Step, silent
from gpuscope.trace.model import Trace
from gpuscope.trace.store import save_trace


def write(trace: Trace, path: str | Path, step: Step = silent) -> Path:
    """Write a trace as Parquet, whole.

    Raises
    ------
    ExportError
        What stands in the file is not what the trace holds.
    GpuscopeError
        The file cannot be written.
    """
    target = Path(path)
    with replacing(target) as temporary:
        save_trace(trace, temporary)
        found = pq.read_metadata(temporary).num_rows
        if found != len(trace):
            raise ExportError(
                f"{target.name!r} holds {found:,} rows where {len(trace):,} were written: it was "
                "thrown away. Check the disk and export again"
            )
        step(len(trace))
    return target
