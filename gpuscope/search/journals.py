"""Points of a sweep as they are appended to a file: what a process wrote that may be killed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gpuscope import _locks
from gpuscope._files import replacing


class PointJournal:
    """A stream of Arrow's to which each point is appended; locked while its writer lives."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        hidden = path.with_name(f".{path.name}")
        self._lock = hidden.open("xb")
        _locks.lock(self._lock)
        self._file = pa.OSFile(str(hidden), "wb")
        self._stream = pa.ipc.new_stream(self._file, schema)
        hidden.rename(path)
        self._path = path
        self._nbytes: int | None = None  # of whole points, once one could not be written
        self.length = 0

    def write(self, table: pa.Table) -> None:
        """Append the rows of one point; where that fails, the file stays as it was."""
        nbytes = self._file.tell()
        try:
            self._stream.write_table(table)
        except OSError:
            self._nbytes = nbytes
            os.truncate(self._path, nbytes)
            raise
        self.length += 1

    def close(self) -> None:
        """End it, which frees the lock. All points are in the file, also where this fails."""
        for stream in (self._stream, self._file, self._lock):
            with suppress(OSError):  # a full disk
                stream.close()
        if self._nbytes is not None:  # the stream's end stands behind what could not be written
            os.truncate(self._path, self._nbytes)


def journaled(path: Path) -> tuple[pa.Table | None, bool]:
    """Return the points of a journal, each once, and whether all of it could be read.

    What a killed process wrote in part cannot be read, as little as what was damaged later.
    """
    batches: dict[int, pa.RecordBatch] = {}
    with pa.OSFile(str(path)) as file:
        try:
            reader = pa.ipc.open_stream(file)
        except (pa.ArrowInvalid, OSError, StopIteration):
            return None, not file.size()
        try:
            while True:
                batch = reader.read_next_batch()
                batches.setdefault(batch.column("number")[0].as_py(), batch)
        except StopIteration:
            is_whole = file.tell() == file.size()
        except (pa.ArrowInvalid, OSError, KeyError, IndexError):
            is_whole = False
        return pa.Table.from_batches(batches.values(), reader.schema), is_whole


@contextmanager
def of_the_dead(journal: Path) -> Iterator[bool]:
    """Hold the lock of a journal, unless its writer lives; yields whether it is held."""
    with ExitStack() as until_done:
        is_held = False
        with suppress(OSError):  # not ours to write, or a file system without locks
            is_held = _locks.try_lock(until_done.enter_context(journal.open("r+b")))
        yield is_held


def seal(journal: Path) -> None:
    """Turn a journal into a Parquet file, unless its writer lives; set it aside if damaged."""
    with of_the_dead(journal) as is_held:
        if not is_held:
            return
        table, is_whole = journaled(journal)
        if table is not None and len(table):
            with replacing(journal.with_suffix(".parquet")) as temporary:
                pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
        if is_whole:
            journal.unlink()
        else:
            warnings.warn(damaged(journal, table), stacklevel=4)
            journal.rename(journal.with_name(f"{journal.name}.damaged"))


def damaged(journal: Path, table: pa.Table | None) -> str:
    """Say how much of a journal can be read, and what becomes of it."""
    points = 0 if table is None else len(set(table.column("number").to_pylist()))
    return (
        f"of {journal.name!r} in {journal.parent.name!r} {points} points can be read: what follows "
        "is damaged, or a killed process wrote it in part. The same call measures again what is "
        "missing; the file is set aside then, as one that ends in .damaged"
    )
