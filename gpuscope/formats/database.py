"""A foreign SQLite file, read without letting it do anything."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

import numpy as np

from gpuscope._types import Array
from gpuscope.errors import TraceFormatError
from gpuscope.formats.limits import Limits, reserve
from gpuscope.trace.arrow import NONE

Value: TypeAlias = int | float | str | bytes | None
"""What SQLite has in a field."""
_LONGEST_TEXT = 1 << 20
_CHUNK = 256
"""Rows with texts that are held before their size is looked at."""
_MOST_TABLES = 2000
_OPERATIONS = 20_000
"""Steps of SQLite's machine between two looks at the clock."""
_FUNCTIONS = ("ifnull", "coalesce", "count")
_LEAST_ROW_BYTES = 4
"""A row of a table takes more than that: a cell's pointer, its size, its number, its header."""


@contextmanager
def opened(path: Path, limits: Limits) -> Iterator[Database]:
    """Open a database read-only.

    No journal is looked for (``immutable``), no schema is trusted, and only plain tables can
    be read: an authorizer refuses ATTACH, views, virtual tables and every function but those
    that count and fill in. Loading extensions stays off, as it is by default.
    """
    address = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    connection = sqlite3.connect(address, uri=True, isolation_level=None)
    try:
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_TEXT)
        for pragma in ("trusted_schema=OFF", "query_only=ON", "mmap_size=0", "temp_store=MEMORY"):
            connection.execute(f"PRAGMA {pragma}")
        plain = {"sqlite_master"}
        connection.set_authorizer(partial(_authorize, plain))
        yield Database(connection, path.stat().st_size, limits, plain)
    finally:
        connection.close()


def _authorize(
    plain: set[str], action: int, first: str | None, second: str | None, *_: str | None
) -> int:
    """Let plain tables be read and their columns be listed, and nothing else."""
    allowed = (
        action == sqlite3.SQLITE_SELECT
        or (action == sqlite3.SQLITE_READ and first in plain)
        or (action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS)
        or (action == sqlite3.SQLITE_PRAGMA and first == "table_xinfo")
    )
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


class Database:
    """Tables and columns of an open file, discovered; see :func:`opened`.

    A damaged file may repeat a page for ever. So no more rows are read than its size can hold,
    and not for longer than reading that size takes.

    Attributes
    ----------
    tables
        Name → its columns that can be read, in order, and whether each may be empty; plain
        tables only.
    asked
        Name → columns that were asked for.
    limits
        How much may be read.
    """

    def __init__(
        self, connection: sqlite3.Connection, nbytes: int, limits: Limits, plain: set[str]
    ) -> None:
        self._execute = connection.execute
        self.limits = limits
        self._rows = 0
        self._most_rows = nbytes // _LEAST_ROW_BYTES
        self._text_left = min(max(1 << 20, 4 * nbytes), limits.room)
        self.tables: dict[str, dict[str, bool]] = {}
        self.asked: dict[str, set[str]] = {}
        until_s = time.monotonic() + 3 + 2 * nbytes / 1e6
        connection.set_progress_handler(lambda: time.monotonic() > until_s, _OPERATIONS)
        schema = "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
        with self._damaged_sizes_told():
            for name, sql in self._execute(schema):
                if not isinstance(name, str) or not isinstance(sql, str) or "\0" in name:
                    continue
                if not sql.upper().startswith("CREATE VIRTUAL"):
                    self.tables[name] = self._columns(name)
                    plain.add(name)
                if len(self.tables) > _MOST_TABLES:
                    raise TraceFormatError(f"more than {_MOST_TABLES:,} tables: that is no report")

    def _columns(self, table: str) -> dict[str, bool]:
        """Return the stored columns: one that is computed would run what the file says."""
        columns = self._execute(f"PRAGMA table_xinfo({_quoted(table)})").fetchall()
        return {row[1]: not row[3] for row in columns if row[6] == 0 and "\0" not in row[1]}

    def __contains__(self, table: str) -> bool:
        return table in self.tables

    def has(self, table: str, *columns: str) -> bool:
        """Whether a table is there with all these columns."""
        return set(columns) <= set(self.tables.get(table, ())) and table in self.tables

    def count(self, table: str) -> int:
        """Return the number of rows of a table that is there."""
        sql = f"SELECT count(*) FROM {_quoted(table)}"  # noqa: S608 - quoted
        (count,) = self._execute(sql).fetchone()
        return int(count)

    def filled(self, table: str, columns: Sequence[str]) -> list[str]:
        """Return those of the columns that have a value in some row."""
        present = self._there(table, columns)
        if not present:
            return []
        listed = ", ".join(f"count({_quoted(name)})" for name in present)
        sql = f"SELECT {listed} FROM {_quoted(table)}"  # noqa: S608 - quoted
        with self._damaged_sizes_told():
            counts = self._execute(sql).fetchone()
        return [name for name, count in zip(present, counts, strict=True) if count]

    def integers(self, table: str, columns: Sequence[str]) -> dict[str, Array]:
        """Return integer columns; null and what the table lacks is NONE.

        Rows come in the table's order, so that columns of two calls belong together.
        """
        present = self._there(table, columns)
        if not present:
            return dict.fromkeys(columns, np.zeros(0, np.int64))
        may_lack = self.tables[table]
        listed = ", ".join(
            f"ifnull({_quoted(name)}, {NONE})" if may_lack[name] else _quoted(name)
            for name in present
        )
        try:
            with self._damaged_sizes_told():
                flat = np.fromiter(chain.from_iterable(self._select(listed, table)), np.int64)
        except (TypeError, ValueError, OverflowError) as error:
            raise TraceFormatError(f"table {table} holds no number where one is due") from error
        values = np.ascontiguousarray(flat.reshape(-1, len(present)).T)
        self._took(values.shape[1])
        missing = np.broadcast_to(np.int64(NONE), values.shape[1])
        column_of = dict(zip(present, values, strict=True))
        return {name: column_of.get(name, missing) for name in columns}

    def rows(self, table: str, columns: Sequence[str]) -> list[tuple[Value, ...]]:
        """Return columns of any type as rows; what the table lacks is ``None``."""
        present = self._there(table, columns)
        if not present:
            return []
        rows: list[tuple[Value, ...]] = []
        with self._damaged_sizes_told():
            cursor = self._select(", ".join(_quoted(name) for name in present), table)
            while chunk := cursor.fetchmany(_CHUNK):
                values = chain.from_iterable(chunk)
                texts = (value for value in values if isinstance(value, str | bytes))
                self._text_left -= sum(map(len, texts))
                if self._text_left < 0:
                    raise TraceFormatError(
                        f"table {table} holds more text than the file has bytes, or than the "
                        "limits let"
                    )
                rows += chunk
        self._took(len(rows))
        if len(present) == len(columns):
            return rows
        positions = [present.index(name) if name in present else len(present) for name in columns]
        return [tuple((*row, None)[index] for index in positions) for row in rows]

    def mapping(self, table: str, key: str, value: str) -> Mapping[Value, Value]:
        """Return one column by another."""
        return {row[0]: row[1] for row in self.rows(table, (key, value))}

    @contextmanager
    def _damaged_sizes_told(self) -> Iterator[None]:
        """Say of a record's damaged size what it is: SQLite finds no memory for so large a record.

        It allocates the list of a record's pages by the size that the file claims
        (``accessPayload`` in its ``btree.c``), before it compares that size with any limit.
        """
        try:
            yield
        except MemoryError:
            reserve(self.limits.room)  # all that may be read finds room, or there is no memory
            raise TraceFormatError("a record claims more bytes than SQLite can allocate") from None

    def _there(self, table: str, columns: Sequence[str]) -> list[str]:
        self.asked.setdefault(table, set()).update(columns)
        table_columns = self.tables.get(table, ())
        return [name for name in columns if name in table_columns]

    def _select(self, listed: str, table: str) -> sqlite3.Cursor:
        room = min(self.limits.rows_in_room, self._most_rows) - self._rows
        return self._execute(
            f"SELECT {listed} FROM {_quoted(table)} NOT INDEXED LIMIT {max(room, 0) + 1}"  # noqa: S608 - quoted
        )

    def _took(self, count: int) -> None:
        self._rows += count
        if self._rows > self._most_rows:
            raise TraceFormatError("the tables claim more rows than a file of this size can hold")
        self.limits.check_rows("rows", self._rows)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
