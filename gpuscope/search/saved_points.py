"""What a folder holds of the points of a sweep, by several processes in several files."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpuscope import _foreign
from gpuscope._checks import given
from gpuscope._text import clean
from gpuscope.analysis.settings import COLUMNS
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.search.grid import Value
from gpuscope.search.journals import damaged, journaled, of_the_dead

_KEY = b"gpuscope.sweep"
_HIDDEN = {
    "number": pa.int64(),
    "provenance": pa.string(),
    "unit": pa.string(),
    "samples": pa.map_(pa.string(), pa.list_(pa.float64())),
}
"""Columns that results do not show. ``samples``: column of the workload → what each round, or part
of its calls (``unit``), gave, as a share of the row's number."""
_MADE_NULL = {**COLUMNS, "unit": _HIDDEN["unit"], "samples": _HIDDEN["samples"]}
"""Columns that older files may lack."""
_MALFORMED = ValueError, TypeError, KeyError, OverflowError, RecursionError
_ATTEMPTS = 3
"""To list a folder in which another process works."""


class MeasuredDevice(TypedDict):
    """What tells GPUs apart whose measurements do not go together."""

    name: str
    sm_count: int
    driver: str | None


class SweepFacts(TypedDict):
    """What was measured, where: the same for all points of a folder.

    ``device`` is ``None`` where GPUs may differ, as ``reference`` is measured on each.
    """

    experiment: dict[str, Any]
    parameters: dict[str, Annotated[list[Value], msgspec.Meta(min_length=1)]]
    order: list[str]
    device: MeasuredDevice | None
    reference: dict[str, Any] | None


def schema_of(facts: SweepFacts) -> pa.Schema:
    """Return the columns of all points; the facts stand in the metadata."""
    types = {name: _type(facts["parameters"][name]) for name in facts["order"]}
    texts = {"gpu": pa.string(), "error": pa.string()}
    columns = {**types, **COLUMNS, **texts, **_HIDDEN}
    return pa.schema(columns.items(), {_KEY: json.dumps(facts)})


def _type(values: Sequence[Value]) -> pa.DataType:
    """Return a type for the values; text where they have none in common."""
    try:
        return pa.array(values).type
    except (pa.ArrowException, OverflowError):
        return pa.string()


class SavedPoints:
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

    def __init__(self, facts: SweepFacts, parts: Iterable[pa.Table | Path]) -> None:
        self.facts = facts
        self.parts: list[pa.Table | Path] = []
        self.numbers: set[int] = set()
        self.column_names = [name for name in schema_of(facts).names if name not in _HIDDEN]
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
            names = [name for name in pq.read_schema(part).names if name in wanted.names]
            how = {"partitioning": None, "page_checksum_verification": True}
            return _as_now(pq.read_table(part, columns=names, filters=chosen, **how), wanted)


def _as_now(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Return a part's columns as this version makes them: older ones know fewer figures."""
    table.validate(full=True)
    for name in wanted.names:
        if name in _MADE_NULL and name not in table.column_names:
            table = table.append_column(name, pa.nulls(len(table), _MADE_NULL[name]))
    converted = table.select(wanted.names).cast(wanted).replace_schema_metadata()
    if "number" in wanted.names and converted.column("number").null_count:
        raise ValueError("rows have no number")
    return converted


def saved(folder: Path, prefix: str) -> SavedPoints | None:
    """Return what :class:`Points` of this prefix have kept in a folder, if there is any.

    Raises
    ------
    GpuscopeError
        A file in it is damaged, or they are of several sweeps.
    """
    for attempt in range(_ATTEMPTS):
        parts: dict[Path, pa.Table | Path] = {}
        facts: list[SweepFacts] = []
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
            if any(other != facts[0] for other in facts):
                raise GpuscopeError(
                    f"{folder.name!r} holds points of several sweeps: move those of the others away"
                )
            return SavedPoints(facts[0], parts.values()) if parts else None
        except FileNotFoundError as error:  # a journal has just become a Parquet file
            if attempt == _ATTEMPTS - 1:
                raise GpuscopeError(
                    f"{folder.name!r} holds a link to a file that is gone ({error}): mend or "
                    "remove it"
                ) from error
        except OSError as error:
            raise GpuscopeError(f"cannot read the folder {folder.name!r}: {error}") from error
    return None


def _facts(schema: pa.Schema) -> SweepFacts:
    facts = msgspec.convert(_foreign.loads(schema.metadata[_KEY]), SweepFacts)
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
    except (pa.ArrowException, OSError, *_MALFORMED) as error:
        raise GpuscopeError(
            f"{path.name!r} in {path.parent.name!r} holds no readable points of a sweep ({error}): "
            "move it away, and its points are measured again"
        ) from error
