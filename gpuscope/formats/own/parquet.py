"""Our own Parquet, within limits."""

from __future__ import annotations

from pathlib import Path

from gpuscope.formats.limits import Limits, reading
from gpuscope.trace.model import Trace
from gpuscope.trace.store import read_parquet


def read(path: Path, limits: Limits, *, keep_private: bool = False) -> Trace:
    """Read a trace that :func:`gpuscope.export` or :func:`gpuscope.trace.save_trace` wrote.

    Raises
    ------
    TraceFormatError
        It is damaged, no trace of ours, or holds more than ``limits``.
    """
    del keep_private  # ours is read as it is
    with reading(path.name, "gpuscope trace"):
        return read_parquet(path, most_rows=limits.rows_in_room, most_bytes=2 * limits.room)
