"""The points of a grid of parameters: what they are, and the tables measured there, in a folder."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypedDict

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpuscope._files import make_folder, replacing
from gpuscope._text import clean
from gpuscope.analysis.settings import COLUMNS
from gpuscope.device.api import DeviceInfo
from gpuscope.device.carve import SmLayout
from gpuscope.device.device import Device
from gpuscope.errors import GpuscopeError, InvalidExperiment, InvalidPartition
from gpuscope.runs.execution import Series, run
from gpuscope.runs.experiment import Experiment
from gpuscope.runs.refusals import listed
from gpuscope.runs.scale_out import Job
from gpuscope.trace.run import Run

Value = bool | int | float | str
"""What a parameter takes."""
Point = Mapping[str, Value]
"""Path into the description → the value there."""
ALL = "all"
Varied: TypeAlias = Mapping[str, Sequence[Value] | Literal["all"]]
"""Path → values to try; of a partition ``"all"``: every number of whole quanta."""
_Table: TypeAlias = dict[str, Any]
"""A table of a description, as JSON holds it."""

Tables: TypeAlias = dict[int, pa.Table | GpuscopeError]
"""Number of a measurement → its rows, or why there are none."""

_KEY = b"gpuscope.sweep"
STOPPED = "stopped early: fewer calls than planned"
"""The error of a point whose run was."""


class Points:
    """Tables of what was measured at points, in memory and, as each is finished, in a folder.

    Attributes
    ----------
    tables
        Number of a measurement → its rows.

    Parameters
    ----------
    prefix
        Of the names of its files, so that a folder can hold several of these.
    parameters
        As :func:`checked` returns them.
    info
        The GPU, or one like those of all workers.
    path
        ``None`` keeps them in memory alone.

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
        info: DeviceInfo,
        path: str | Path | None,
    ) -> None:
        self.facts: Facts = {
            "experiment": experiment.to_dict(),
            "parameters": {name: list(values) for name, values in parameters.items()},
            "order": list(parameters),
            "device": {  # what must not change between measurements
                "name": info.name, "sm_count": info.sm_count, "driver": info.driver,
            },
        }  # fmt: skip
        self._gpu = info.uuid
        self._prefix = prefix
        self._folder = None if path is None else Path(path)
        self.tables = {} if self._folder is None else self._kept(self._folder)
        self._refused: dict[int, InvalidPartition] = {}

    def is_finished(self, number: int) -> bool:
        """Whether a measurement need not be made, or not again."""
        table = self.tables.get(number)
        return table is not None and table.column("error").null_count == len(table)

    def run(
        self, series: Series, number: int, point: Point, plan: Experiment, label: str = ""
    ) -> None:
        """Run what a measurement is, and keep its rows.

        Parameters
        ----------
        label
            For the viewer; the point's values if not given.
        """
        try:
            series.run(plan, label or labelled(point), number)
        except InvalidPartition as error:
            self._refused[number] = error
        self.keep(series, number, point)

    def keep(self, series: Series, number: int, point: Point) -> None:
        """Turn what a series found into rows; again where that was interrupted."""
        made = series.runs.get(number) or self._refused.get(number)
        if made is None:
            return
        self.add(number, point_table(number, point, made, self.facts, self._gpu))
        series.runs.pop(number, None)  # its traces are large
        self._refused.pop(number, None)

    def job(self, todo: Mapping[int, tuple[Point, Experiment]]) -> Job[Tables]:
        """Return the job that makes measurements one after the other on one GPU."""
        return partial(_tables, todo, self.facts)

    def add(self, number: int, table: pa.Table) -> None:
        """Keep the rows of a measurement."""
        self.tables[number] = table
        if self._folder is not None and STOPPED not in table.column("error").to_pylist():
            file = self._folder / f"{self._prefix}-{number:04}.parquet"
            _save(table, file)

    def _kept(self, folder: Path) -> dict[int, pa.Table]:
        """Return the tables in a folder, which is made if it is not there."""
        make_folder(folder)
        tables = load_all(folder, self._prefix)
        wanted = json.loads(json.dumps(self.facts))
        for table in tables.values():
            differs = list(_differences(origin_of(table).facts, wanted))
            if differs:
                more = f" and {len(differs) - 3} more" if len(differs) > 3 else ""
                raise GpuscopeError(
                    f"{folder.name!r} holds another sweep, which stays as it is: "
                    f"{'; '.join(differs[:3])}{more}. Choose another path, or run the same sweep"
                )
        return tables


def points_of(parameters: Mapping[str, Sequence[Value]]) -> list[dict[str, Value]]:
    """Return the points of a grid; the last parameter varies fastest."""
    chosen = itertools.product(*parameters.values())
    return [dict(zip(parameters, values, strict=True)) for values in chosen]


def labelled(point: Point) -> str:
    """Return a point in words."""
    return ", ".join(f"{name} = {value}" for name, value in point.items())


# -- parameters ---------------------------------------------------------------------------
def checked(
    parameters: Mapping[str, Sequence[object] | str], layout: SmLayout
) -> dict[str, tuple[Value, ...]]:
    """Return path → plain values.

    Parameters
    ----------
    layout
        That of the GPU whose quanta ``"all"`` means.

    Raises
    ------
    InvalidExperiment
        They are no paths with values.
    """
    if not isinstance(parameters, Mapping) or not parameters:
        raise InvalidExperiment(
            "parameters: name at least one, as a dict of path → values, such as "
            "{'partitions.small': [8, 16]}"
        )
    found = {}
    for path, given in parameters.items():
        values: object = given
        if isinstance(given, str) and given == ALL and str(path).startswith("partitions."):
            values = [n * layout.quantum_sm_count for n in range(1, layout.quanta + 1)]
            if not layout.remainder_sm_count:
                values.pop()  # nothing would be left
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise InvalidExperiment(
                f"{clean(path)}: its values are a list, not {given!r}; of a partition, also 'all'"
            )
        plain = [value.item() if isinstance(value, np.generic) else value for value in values]
        taken = tuple(value for value in plain if isinstance(value, Value))
        if not taken or len(taken) < len(plain):
            odd = [repr(value) for value in plain if not isinstance(value, Value)] or ["none"]
            raise InvalidExperiment(
                f"{clean(path)}: its values are numbers or texts, but found {odd[0]}"
            )
        found[str(path)] = taken
    return found


def at(experiment: Experiment, point: Point) -> Experiment:
    """Return the experiment with a point's values in it."""
    data = experiment.to_dict()
    for path, value in point.items():
        for table, key in _places(data, path):
            table[key] = value
    try:
        return Experiment.from_dict(data)
    except InvalidExperiment as error:
        where = ", ".join(f"{clean(path)} = {value!r}" for path, value in point.items())
        raise InvalidExperiment(f"at {where}: {error}") from error


def _places(data: _Table, path: str) -> list[tuple[_Table, str]]:
    """Return every table that the path means, with the key in it."""
    top, _, name = path.partition(".")
    if top != "partitions":
        return [_place(data, path, path)]
    carved = [data["partitions"], *(setting["partitions"] for setting in data["settings"].values())]
    places = [(sizes, name) for sizes in carved if sizes and name in sizes]
    if not places:
        known = dict.fromkeys(key for sizes in carved for key in sizes or ())
        raise InvalidExperiment(
            f"{clean(path)}: no setting carves a partition {name!r}; there are: {listed(known)}"
        )
    return places


def _place(table: _Table, rest: str, path: str) -> tuple[_Table, str]:
    """Follow a path; names may have dots in them."""
    for key in sorted(table, key=len, reverse=True):
        inside = table[key]
        if rest == key and not isinstance(inside, dict):
            return table, key
        if rest == key:
            raise InvalidExperiment(
                f"{clean(path)}: this is a table; name a field in it: {listed(inside)}"
            )
        if rest.startswith(f"{key}.") and isinstance(inside, dict):
            return _place(inside, rest[len(key) + 1 :], path)
    where = path.removesuffix(rest).rstrip(".") or "the experiment"
    raise InvalidExperiment(f"{clean(path)}: {where} has no {rest!r}; there are: {listed(table)}")


# -- tables -------------------------------------------------------------------------------
def point_table(
    number: int, point: Point, made: Run | GpuscopeError, facts: Facts, gpu: str | None
) -> pa.Table:
    """Return the rows of one point; what they rest on stands in the schema's metadata.

    Parameters
    ----------
    gpu
        The UUID of that which it ran on.
    """
    rows: list[dict[str, object]] = [{}]
    error, provenance = None, []
    if isinstance(made, GpuscopeError):
        error = str(made)
    else:
        rows = made.comparison.to_pylist() or rows
        error = STOPPED if made.stopped else None
        provenance = list(dict.fromkeys(trace.provenance for trace in made.values()))
    schema = _schema(facts)
    own = {
        name: str(value) if schema.field(name).type == pa.string() else value
        for name, value in point.items()
    }
    table = pa.Table.from_pylist(
        [{**own, **row, "gpu": gpu, "error": error} for row in rows], schema=schema
    )
    origin = {"facts": facts, "number": number, "provenance": provenance}
    return table.replace_schema_metadata({_KEY: json.dumps(origin).encode()})


def _tables(todo: Mapping[int, tuple[Point, Experiment]], facts: Facts, device: Device) -> Tables:
    found: Tables = {}
    for number, (point, plan) in todo.items():
        try:
            try:
                made: Run | InvalidPartition = run(plan, device)
            except InvalidPartition as error:
                made = error
            found[number] = point_table(number, point, made, facts, device.info.uuid)
        except GpuscopeError as error:
            found[number] = error
        except RuntimeError as error:  # of a library's
            found[number] = GpuscopeError(f"{type(error).__name__}: {error}")
    return found


def _schema(facts: Facts) -> pa.Schema:
    types = {name: _type(values) for name, values in facts["parameters"].items()}
    return pa.schema(
        [*types.items(), *COLUMNS.items(), ("gpu", pa.string()), ("error", pa.string())]
    )


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


def load_all(folder: Path, prefix: str) -> dict[int, pa.Table]:
    """Return what :class:`Points` of this prefix have kept in a folder.

    Raises
    ------
    GpuscopeError
        A file in it is damaged.
    """
    tables = [_load(file) for file in sorted(folder.glob(f"{prefix}-*.parquet"))]
    return {origin_of(table).number: table for table in tables}


def _with_all_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a point's table as this version makes it: older ones know fewer figures.

    Raises
    ------
    ValueError
        It has other columns, or values of other types.
    """
    facts = table.schema.metadata
    for name in [*COLUMNS, "gpu"]:
        if name not in table.column_names:
            kind = schema.field(name).type
            table = table.append_column(name, pa.nulls(len(table), kind))
    return table.select(schema.names).cast(schema).replace_schema_metadata(facts)


def _save(table: pa.Table, path: Path) -> None:
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)


class _Device(TypedDict):
    name: str
    sm_count: int
    driver: str | None


class Facts(TypedDict):
    """What was measured, where: the same for all points of a folder."""

    experiment: _Table
    parameters: dict[str, Annotated[list[Value], msgspec.Meta(min_length=1)]]
    order: list[str]
    device: _Device


class Origin(msgspec.Struct, forbid_unknown_fields=True):
    """What a point's rows rest on: the metadata of its file, which may come from anywhere."""

    facts: Facts
    number: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
    provenance: list[str]


def origin_of(table: pa.Table) -> Origin:
    """Return what a point's rows rest on."""
    return msgspec.convert(json.loads(table.schema.metadata[_KEY]), Origin)


def _load(path: Path) -> pa.Table:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read()
        table.validate(full=True)
        return _with_all_columns(table, _schema(origin_of(table).facts))
    except (
        pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError
    ) as error:  # fmt: skip
        raise GpuscopeError(
            f"{path.name!r} in {path.parent.name!r} is no readable point of a sweep ({error}): "
            "move it away, and that point is measured again"
        ) from error
