"""Points as former versions kept them: Parquet files, and Arrow streams of killed processes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from gpuscope import _foreign
from gpuscope.analysis.result import Row
from gpuscope.search.points import MeasuredPoint, SweepFacts

_KEY = b"gpuscope.sweep"


def former_files(folder: Path, name: str) -> list[Path]:
    """Return the files that hold points of a table."""
    streams = [path for path in folder.glob(f"{name}-*.arrows") if path.stat().st_size]
    return sorted([*folder.glob(f"{name}-*.parquet"), *streams])


def former_points(path: Path) -> tuple[SweepFacts, list[MeasuredPoint]]:
    """Read a file: what was asked for, and the points, all of which were finished.

    Raises
    ------
    OSError, ValueError, KeyError, pyarrow.ArrowException
        It is damaged. What a killed process wrote in part is left out.
    """
    how = {"partitioning": None, "page_checksum_verification": True}
    table = _streamed(path) if path.suffix == ".arrows" else pq.read_table(path, **how)
    table.validate(full=True)
    facts = msgspec.convert(_foreign.loads(table.schema.metadata[_KEY]), SweepFacts)
    by_number: dict[int, list[Row]] = {}
    for row in table.to_pylist():
        by_number.setdefault(row["number"], []).append(row)
    if None in by_number:
        raise ValueError("rows have no number")
    points = [
        MeasuredPoint(
            number,
            "refused" if rows[0]["error"] else "measured",
            rows,
            rows[0]["gpu"],
            rows[0]["error"],
            rows[0]["provenance"],
        )
        for number, rows in by_number.items()
    ]
    return facts, points


def _streamed(path: Path) -> pa.Table:
    """Read a stream as far as it can be read."""
    batches: list[pa.RecordBatch] = []
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
        with suppress(StopIteration, pa.ArrowInvalid, OSError, KeyError, IndexError):
            while True:
                batches.append(reader.read_next_batch())
        return pa.Table.from_batches(batches, reader.schema)
