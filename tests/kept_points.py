"""What a sweep or a tuning has kept in a folder."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq


def kept_points(folder: Path, prefix: str = "point") -> list[int]:
    """Return the numbers of the points in its Parquet files, which are all that may be there."""
    assert not list(folder.glob("*.arrows"))
    parts = sorted(folder.glob(f"{prefix}-*.parquet"))
    return [n for part in parts for n in dict.fromkeys(pq.read_table(part)["number"].to_pylist())]
