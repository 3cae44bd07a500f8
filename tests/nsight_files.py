"""Nsight Systems files for tests: genuine captures, and small ones of any schema."""

# ruff: noqa: S608 - the tables' names are ours
from __future__ import annotations

import csv
import lzma
import sqlite3
from pathlib import Path

DATA = Path(__file__).resolve().parent / "data" / "nsight"
PID = 458
VM = 1 << 48


def capture(name: str, folder: Path) -> Path:
    """Unpack a genuine capture: a run with two green contexts on an H200, nsys 2025.3.2."""
    target = folder / f"{name}.sqlite"
    if not target.exists():
        target.write_bytes(lzma.decompress((DATA / f"{name}.sqlite.xz").read_bytes()))
    return target


def table(name: str, report: str) -> list[dict[str, str]]:
    """Return what ``nsys stats`` said of a capture."""
    with (DATA / f"{name}.{report}.csv").open(newline="") as file:
        return list(csv.DictReader(line for line in file if line.strip()))


def tid(thread: int, pid: int = PID) -> int:
    return VM | pid << 24 | thread


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def build(path: Path, tables: dict[str, list[dict]], strings: tuple[str, ...] = ()) -> Path:
    """Write tables with just the columns that their rows have; ``strings`` are numbered from 0."""
    connection = sqlite3.connect(path)
    every = {"StringIds": [{"id": n, "value": text} for n, text in enumerate(strings)], **tables}
    for name, rows in every.items():
        columns = list(dict.fromkeys(key for row in rows for key in row)) or ["id"]
        listed = ", ".join(map(quoted, columns))
        connection.execute(f"CREATE TABLE {quoted(name)} ({listed})")
        places = ", ".join("?" * len(columns))
        connection.executemany(
            f"INSERT INTO {quoted(name)} VALUES ({places})",
            [[row.get(one) for one in columns] for row in rows],
        )
    connection.commit()
    connection.close()
    return path
