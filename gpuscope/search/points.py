"""What was measured at the points of a grid: rows, in memory and as parts in a folder."""

from __future__ import annotations

import json
import secrets
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpuscope._checks import given
from gpuscope._files import make_folder
from gpuscope._text import clean
from gpuscope.analysis.result import Row
from gpuscope.analysis.settings import COLUMNS
from gpuscope.device.api import DeviceInfo
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.experiments.experiment import Experiment
from gpuscope.search.grid import Point, Value
from gpuscope.search.journals import Journal, damaged, journaled, of_the_dead, seal
from gpuscope.trace.run import Run

Rows: TypeAlias = list[Row]
"""What was measured at one point: a row for each setting and workload."""

STOPPED = "stopped early: fewer calls than planned"
"""The error of a point whose run was."""
_KEY = b"gpuscope.sweep"
_PART = 1000
"""Points of a part: a journal that holds so many becomes a Parquet file."""
OWN = ("number", "provenance")
"""Columns that results do not show."""
_ATTEMPTS = 3
"""To list a folder in which another process works."""


class _Device(TypedDict):
    name: str
    sm_count: int
    driver: str | None


class Facts(TypedDict):
    """What was measured, where: the same for all points of a folder.

    ``device`` is ``None`` where GPUs may differ, as ``reference`` is measured on each.
    """

    experiment: dict[str, Any]
    parameters: dict[str, Annotated[list[Value], msgspec.Meta(min_length=1)]]
    order: list[str]
    device: _Device | None
    reference: dict[str, Any] | None


def rows_of(number: int, point: Point, made: Run | GpuscopeError, gpu: str | None = None) -> Rows:
    """Return the rows of one point, or the one that says why there are none.

    Parameters
    ----------
    gpu
        The UUID of that which it ran on.
    """
    rows: Rows = [{}]
    error, provenance = None, None
    if isinstance(made, GpuscopeError):
        error = str(made)
    else:
        rows = made.comparison.to_pylist() or rows
        error = STOPPED if made.stopped else None
        provenance = "\n".join(dict.fromkeys(trace.provenance for trace in made.values()))
    own = {"number": number, "gpu": gpu, "error": error, "provenance": provenance}
    return [{**point, **row, **own} for row in rows]


def is_whole(rows: Rows) -> bool:
    """Whether a measurement ended without an error."""
    return not any(row["error"] for row in rows)


class Points:
    """Rows of what was measured at points: in memory or, as each is finished, in a folder.

    Parameters
    ----------
    prefix
        Of the names of its files, so that a folder can hold several of these.
    parameters
        As :func:`gpuscope.search.grid.checked` returns them.
    info
        The GPU, or one like those of all workers; ``None`` where they may differ.
    path
        ``None`` keeps them in memory alone.
    reference
        What is measured on each GPU, if that is so.

    Raises
    ------
    GpuscopeError
        The folder holds measurements of another experiment, of other parameters or another
        device, or cannot be used.
    """

    def __init__(
        self,
        prefix: str,
        experiment: Experiment,
        parameters: Mapping[str, Sequence[Value]],
        info: DeviceInfo | None,
        path: str | Path | None,
        *,
        reference: Experiment | None = None,
    ) -> None:
        self.facts: Facts = {
            "experiment": experiment.to_dict(),
            "parameters": {name: list(values) for name, values in parameters.items()},
            "order": list(parameters),
            "device": None if info is None else {  # what must not change between measurements
                "name": info.name, "sm_count": info.sm_count, "driver": info.driver,
            },
            "reference": None if reference is None else reference.to_dict(),
        }  # fmt: skip
        self._schema = schema_of(self.facts)
        self._prefix = prefix
        self._folder = None if path is None else Path(path)
        if self._folder is not None:
            make_folder(self._folder)
        self._unsaved: dict[int, Rows] = {}
        self._journal: Journal | None = None
        self.finished = self._there().numbers
        """Numbers of the measurements that need not be made, or not again."""

    def is_finished(self, number: int) -> bool:
        """Whether a measurement need not be made, or not again."""
        return number in self.finished

    def add(self, number: int, rows: Rows, *, whole: bool = True) -> None:
        """Keep the rows of a measurement; in the folder, if it need not be made again."""
        self._unsaved[number] = rows
        if not whole:
            return
        if self._folder is not None:
            try:
                if self._journal is None:
                    path = self._folder / f"{self._prefix}-{secrets.token_hex(4)}.arrows"
                    self._journal = Journal(path, self._schema)
                self._journal.write(self._table(rows))
            except OSError as error:
                if self._journal is not None:
                    self._journal.close()
                    self._journal = None
                raise GpuscopeError(
                    f"cannot save point {number} in {self._folder.name!r}: {error}. The same call "
                    "goes on from what is there"
                ) from error
            del self._unsaved[number]
        self.finished.add(number)
        if self._journal is not None and self._journal.length >= _PART:
            self.seal()

    def seal(self) -> None:
        """Turn journals into Parquet files: one's own, and those that killed processes left."""
        if self._journal is not None:
            mine, self._journal = self._journal, None
            mine.close()
        if self._folder is not None:
            for path in self._folder.glob(f"{self._prefix}-*.arrows"):
                seal(path)

    def all(self) -> Saved:
        """Return all rows, in memory: those of this process, and what is in the folder by now."""
        self.seal()
        there = self._there().select(self._schema.names)
        mine = [self._table(rows) for rows in self._unsaved.values()]
        return Saved(self.facts, [pa.concat_tables([there, *mine])])

    def rows(self) -> dict[int, Rows]:
        """Return all rows by the number of the measurement."""
        found: dict[int, Rows] = {}
        for row in self.all().select(self._schema.names).to_pylist():
            found.setdefault(row["number"], []).append(row)
        return found

    def _table(self, rows: Rows) -> pa.Table:
        texts = [name for name in self.facts["order"] if self._schema.field(name).type == "string"]
        plain = [{**row, **{name: str(row[name]) for name in texts}} for row in rows]
        return pa.Table.from_pylist(plain, schema=self._schema)

    def _there(self) -> Saved:
        """Return what is in the folder; it has to be of the same sweep."""
        if self._folder is None:
            return Saved(self.facts, [])
        there, wanted = saved(self._folder, self._prefix), json.loads(json.dumps(self.facts))
        differs = [] if there is None else list(_differences(there.facts, wanted))
        if differs:
            more = f" and {len(differs) - 3} more" if len(differs) > 3 else ""
            raise GpuscopeError(
                f"{str(self._folder)!r} holds another sweep, which stays as it is: "
                f"{'; '.join(differs[:3])}{more}. Choose another folder (--out, "
                "path=), or run the same sweep"
            )
        return there or Saved(self.facts, [])


def schema_of(facts: Facts) -> pa.Schema:
    """Return the columns of all points; the facts stand in the metadata."""
    types = {name: _type(facts["parameters"][name]) for name in facts["order"]}
    own = ("number", pa.int64()), ("provenance", pa.string())
    columns = [*types.items(), *COLUMNS.items(), ("gpu", pa.string()), ("error", pa.string()), *own]
    return pa.schema(columns, {_KEY: json.dumps(facts)})


def _type(values: Sequence[Value]) -> pa.DataType:
    """Return a type for the values; text where they have none in common."""
    try:
        return pa.array(values).type
    except (pa.ArrowException, OverflowError):
        return pa.string()


def _differences(there: object, now: object, path: str = "") -> Iterator[str]:
    """Say field by field what differs."""
    if isinstance(there, dict) and isinstance(now, dict):
        for key in [*there, *(key for key in now if key not in there)]:
            inside = f"{path}.{key}" if path else key
            yield from _differences(there.get(key), now.get(key), inside)
    elif there != now:
        yield f"{clean(path)} is {there!r} there, {now!r} now"


# -- what is there --------------------------------------------------------------------------
class Saved:
    """The points of one sweep, each once: their rows are read when they are asked for.

    Attributes
    ----------
    numbers
        Of the points that are there.

    Parameters
    ----------
    parts
        Rows in memory, or Parquet files of them. Of a point that is in several, the first counts.

    Raises
    ------
    GpuscopeError
        A file is damaged.
    """

    def __init__(self, facts: Facts, parts: Iterable[pa.Table | Path]) -> None:
        self.facts = facts
        self.parts: list[pa.Table | Path] = []
        self.numbers: set[int] = set()
        self.column_names = [name for name in schema_of(facts).names if name not in OWN]
        self._twice: list[set[int]] = []
        for part in parts:
            numbers = set(self._read(part, ["number"], None).column(0).to_pylist())
            self.parts.append(part)
            self._twice.append(numbers & self.numbers)
            self.numbers |= numbers

    def select(
        self, columns: Sequence[str], where: Mapping[str, Value | Sequence[Value]] | None = None
    ) -> pa.Table:
        """Return columns of all points in order, or of those that have such values."""
        schema = schema_of(self.facts)
        chosen = pc.scalar(True)  # noqa: FBT003 - holds of every row
        for name, values in (where or {}).items():
            column = schema.field(name).type
            try:
                several = [values] if isinstance(values, Value) else [*values]
                texts = map(str, several) if column == pa.string() else several
                chosen &= pc.field(name).isin(pa.array(texts, column))
            except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
                raise InvalidArgument(
                    f"where[{name!r}] is {given(values)}; a value of it, or a list of them, is "
                    f"needed ({clean(error, 200)})"
                ) from error
        names = dict.fromkeys([*columns, "number"])
        read = [
            self._read(part, names, chosen & ~pc.field("number").isin(pa.array(twice, pa.int64())))
            for part, twice in zip(self.parts, self._twice, strict=True)
        ]
        whole = pa.concat_tables([pa.schema(map(schema.field, names)).empty_table(), *read])
        return whole.take(pc.sort_indices(whole, [("number", "ascending")])).select(columns)

    def _read(
        self, part: pa.Table | Path, columns: Iterable[str], chosen: pc.Expression | None
    ) -> pa.Table:
        wanted = pa.schema(map(schema_of(self.facts).field, dict.fromkeys(columns)))
        if isinstance(part, pa.Table):
            return _as_now(part if chosen is None else part.filter(chosen), wanted)
        with _readable(part):
            return _as_now(pq.read_table(
                part, columns=[name for name in pq.read_schema(part).names if name in wanted.names],
                filters=chosen, partitioning=None, page_checksum_verification=True,
            ), wanted)  # fmt: skip


def _as_now(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Return a part's columns as this version makes them: older ones know fewer figures."""
    table.validate(full=True)
    for name in wanted.names:
        if name in COLUMNS and name not in table.column_names:
            table = table.append_column(name, pa.nulls(len(table), COLUMNS[name]))
    found = table.select(wanted.names).cast(wanted).replace_schema_metadata()
    if "number" in wanted.names and found.column("number").null_count:
        raise ValueError("rows have no number")
    return found


def saved(folder: Path, prefix: str) -> Saved | None:
    """Return what :class:`Points` of this prefix have kept in a folder, if there is any.

    Raises
    ------
    GpuscopeError
        A file in it is damaged, or they are of several sweeps.
    """
    for attempt in range(_ATTEMPTS):
        parts: dict[Path, pa.Table | Path] = {}
        facts: list[Facts] = []
        try:
            for journal in sorted(folder.glob(f"{prefix}-*.arrows")):
                with _readable(journal):
                    table, is_whole = journaled(journal)
                    if not is_whole:
                        with of_the_dead(journal) as is_dead:  # else it is being written
                            if is_dead:
                                warnings.warn(damaged(journal, table), stacklevel=4)
                    if table is None or not len(table):
                        continue
                    facts.append(_facts(table.schema))
                    parts[journal.with_suffix(".parquet")] = _as_now(table, schema_of(facts[-1]))
            for path in sorted(folder.glob(f"{prefix}-*.parquet")):
                parts[path] = path
                with _readable(path):
                    facts.append(_facts(pq.read_schema(path)))
            if any(one != facts[0] for one in facts):
                raise GpuscopeError(
                    f"{folder.name!r} holds points of several sweeps: move those of the others away"
                )
            return Saved(facts[0], parts.values()) if parts else None
        except FileNotFoundError as error:  # a journal has just become a Parquet file
            if attempt == _ATTEMPTS - 1:
                raise GpuscopeError(
                    f"{folder.name!r} holds a link to a file that is gone ({error}): mend or "
                    "remove it"
                ) from error
        except OSError as error:
            raise GpuscopeError(f"cannot read the folder {folder.name!r}: {error}") from error
    return None


def _facts(schema: pa.Schema) -> Facts:
    facts = msgspec.convert(json.loads(schema.metadata[_KEY]), Facts)
    if set(facts["order"]) != set(facts["parameters"]):
        raise ValueError("its parameters are in no order")
    return facts


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Say of a file that it is damaged, if reading it fails."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (
        pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError
    ) as error:  # fmt: skip
        raise GpuscopeError(
            f"{path.name!r} in {path.parent.name!r} holds no readable points of a sweep ({error}): "
            "move it away, and its points are measured again"
        ) from error
