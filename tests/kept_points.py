"""What a sweep or a tuning has kept in a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq


def kept_points(folder: Path, table: str = "point") -> list[int]:
    """Return the numbers of the finished points of a table, in files of former versions, too."""
    former = sorted(folder.glob(f"{table}-*.parquet"))
    numbers = [
        n for path in former for n in dict.fromkeys(pq.read_table(path)["number"].to_pylist())
    ]
    file = folder / "points.jsonl"
    lines = (
        [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []
    )
    points = [line["point"] for line in lines if line["table"] == table and "point" in line]
    return numbers + [
        point["number"] for point in points if point["state"] in ("measured", "refused")
    ]
