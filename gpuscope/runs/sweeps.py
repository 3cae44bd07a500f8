"""Sweeps: one experiment at every point of a grid of parameters."""

from __future__ import annotations

import itertools
import json
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypedDict

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpuscope._checks import door
from gpuscope._files import make_folder, replacing
from gpuscope._text import clean
from gpuscope.analysis.settings import COLUMNS, SweepResult
from gpuscope.device.device import Device
from gpuscope.errors import GpuscopeError, InvalidExperiment, InvalidPartition, NothingRecorded
from gpuscope.runs.execution import Series, as_far_as_measured, opened
from gpuscope.runs.experiment import Description, Experiment, as_experiment
from gpuscope.runs.refusals import listed
from gpuscope.runs.runner import Viewer
from gpuscope.trace.run import Run

Value = bool | int | float | str
"""What a parameter takes."""
Point = Mapping[str, Value]
"""Path into the description → the value there."""
_Table: TypeAlias = dict[str, Any]
"""A table of a description, as JSON holds it."""

_KEY = b"gpuscope.sweep"
_STOPPED = "stopped early: fewer calls than planned"


@door(
    device=(Device, str, None),
    path=(str, Path, None),
    viewer=(Callable, None),
    stop=(threading.Event, None),
)
def sweep(
    experiment: Description,
    parameters: Mapping[str, Sequence[Value]],
    device: Device | str | None = None,
    *,
    path: str | Path | None = None,
    viewer: Viewer | None = None,
    stop: threading.Event | None = None,
) -> SweepResult:
    """Run an experiment at every point of a grid of parameters.

    Parameters
    ----------
    experiment
        The experiment: an ``Experiment``, the path of a TOML or JSON file, or a dict.
    parameters
        Dotted path into the experiment → values to try. ``partitions.NAME`` is that partition in
        every setting that has one; any other path is one field, such as ``workloads.load.m``.
        Several parameters form a grid; the last one varies fastest.
    device
        An open device or a name for :func:`gpuscope.open_device`; ``"auto"`` if not given.
    path
        A folder in which each finished point is saved. A second call with the same experiment,
        parameters and device skips these points.
    viewer
        Called repeatedly from this thread with the progress of the whole sweep.
    stop
        Set it to end early.

    Returns
    -------
    SweepResult
        Its ``table`` has one row per point, setting and workload. A point that the GPU cannot
        carve is a row with its error. After Ctrl-C or ``stop``, the table holds what was measured
        until then. The interrupted point is marked, and a second call measures it again.

    Raises
    ------
    InvalidExperiment
        The experiment is invalid at one of the points, or a path does not exist. Raised before
        anything runs.
    GpuscopeError
        The folder holds another sweep or cannot be used, or the sweep was stopped before
        anything was recorded.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "partitions": {"a": 8}, "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2}},
    ... }
    >>> gs.runs.sweep(one, {"partitions.a": [8, 16]}, gpu).table.column("kernels").to_pylist()
    [2, 2]
    """
    experiment = as_experiment(experiment)
    values = _checked(parameters)
    points = [
        dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())
    ]
    plans = [_at(experiment, point) for point in points]
    target = opened(device)
    info = target.info
    facts: _Facts = {
        "experiment": experiment.to_dict(),
        "parameters": {name: list(taken) for name, taken in values.items()},
        "order": list(values),
        "device": {  # what must not change within a sweep
            "name": info.name, "uuid": info.uuid, "sm_count": info.sm_count, "driver": info.driver,
        },
    }  # fmt: skip
    folder = None if path is None else Path(path)
    tables = {} if folder is None else _kept(folder, facts)
    todo = [
        number
        for number in range(len(points))
        if number not in tables or tables[number].column("error").null_count < len(tables[number])
    ]
    series = Series((plans[number] for number in todo), target, viewer, stop)
    refused: dict[int, InvalidPartition] = {}

    def keep(number: int) -> None:
        """Turn what was found at a point into rows; again where that was interrupted."""
        made = series.runs.get(number) or refused.get(number)
        if made is None:
            return
        tables[number] = _table(number, points[number], made, facts)
        if folder is not None and not (isinstance(made, Run) and made.stopped):
            _save(tables[number], _file(folder, number))
        series.runs.pop(number, None)  # its traces are large
        refused.pop(number, None)

    def measure() -> None:
        for number in todo:
            label = ", ".join(f"{name} = {value}" for name, value in points[number].items())
            try:
                series.run(plans[number], label, number)
            except InvalidPartition as error:
                refused[number] = error
            keep(number)
            if series.stopped:
                break

    def result() -> SweepResult:
        for number in todo:
            keep(number)
        if not tables:
            raise NothingRecorded(
                "the sweep was stopped before anything was recorded: run it again"
            )
        return _result([tables[number] for number in sorted(tables)])

    return as_far_as_measured(measure, result)


@door(path=(str, Path))
def load_sweep(path: str | Path) -> SweepResult:
    """Read the points that a sweep has saved in a folder so far.

    Parameters
    ----------
    path
        The folder that :func:`sweep` was given.

    Raises
    ------
    GpuscopeError
        There is no finished point in it, or a file in it is damaged.
    """
    name = Path(path).name
    tables = _load_all(Path(path))
    if not tables:
        raise GpuscopeError(
            f"there is no point of a sweep in {name!r}: name the folder that sweep() was given as "
            "path"
        )
    first, *others = (_origin(table).facts for table in tables.values())
    if any(facts != first for facts in others):
        raise GpuscopeError(
            f"{name!r} holds points of several sweeps: move those of the others away"
        )
    return _result([tables[number] for number in sorted(tables)])


# -- parameters ---------------------------------------------------------------------------
def _checked(parameters: Mapping[str, Sequence[object]]) -> dict[str, tuple[Value, ...]]:
    """Return path → plain values."""
    if not isinstance(parameters, Mapping) or not parameters:
        raise InvalidExperiment(
            "parameters: name at least one, as a dict of path → values, such as "
            "{'partitions.small': [8, 16]}"
        )
    checked = {}
    for path, values in parameters.items():
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise InvalidExperiment(f"{clean(path)}: its values are a list, not {values!r}")
        plain = [value.item() if isinstance(value, np.generic) else value for value in values]
        taken = tuple(value for value in plain if isinstance(value, Value))
        if not taken or len(taken) < len(plain):
            odd = [repr(value) for value in plain if not isinstance(value, Value)] or ["none"]
            raise InvalidExperiment(
                f"{clean(path)}: its values are numbers or texts, but found {odd[0]}"
            )
        checked[str(path)] = taken
    return checked


def _at(experiment: Experiment, point: Point) -> Experiment:
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
def _table(number: int, point: Point, made: Run | InvalidPartition, facts: _Facts) -> pa.Table:
    """Return the rows of one point; what they rest on stands in the schema's metadata."""
    rows: list[dict[str, object]] = [{}]
    error, provenance = None, []
    if isinstance(made, InvalidPartition):
        error = str(made)
    else:
        rows = made.comparison.to_pylist() or rows
        error = _STOPPED if made.stopped else None
        provenance = list(dict.fromkeys(trace.provenance for trace in made.values()))
    schema = _schema(facts)
    own = {
        name: str(value) if schema.field(name).type == pa.string() else value
        for name, value in point.items()
    }
    table = pa.Table.from_pylist([{**own, **row, "error": error} for row in rows], schema=schema)
    origin = {"facts": facts, "number": number, "provenance": provenance}
    return table.replace_schema_metadata({_KEY: json.dumps(origin).encode()})


def _schema(facts: _Facts) -> pa.Schema:
    types = {name: _type(values) for name, values in facts["parameters"].items()}
    return pa.schema([*types.items(), *COLUMNS.items(), ("error", pa.string())])


def _type(values: Sequence[Value]) -> pa.DataType:
    """Return a type for the values; text where they have none in common."""
    try:
        return pa.array(values).type
    except (pa.ArrowException, OverflowError):
        return pa.string()


def _result(tables: Sequence[pa.Table]) -> SweepResult:
    facts = _origin(tables[0]).facts
    seen = dict.fromkeys(line for table in tables for line in _origin(table).provenance)
    plain = [table.replace_schema_metadata() for table in tables]
    whole = pa.concat_tables(plain, promote_options="default")
    missing = dict.fromkeys(filter(None, whole.column("incomplete").to_pylist()))
    planned = math.prod(len(values) for values in facts["parameters"].values())
    return SweepResult(
        table=whole,
        experiment=facts["experiment"],
        parameters={name: tuple(values) for name, values in facts["parameters"].items()},
        stopped=len(tables) < planned or _STOPPED in whole.column("error").to_pylist(),
        provenance="; ".join(seen) or f"nothing was run on {facts['device']['name']}",
        incomplete="; ".join(missing),
    )


# -- the folder ---------------------------------------------------------------------------
def _file(folder: Path, number: int) -> Path:
    return folder / f"point-{number:04}.parquet"


def _kept(folder: Path, facts: _Facts) -> dict[int, pa.Table]:
    """Return the points in a folder, which is made if it is not there.

    Raises
    ------
    GpuscopeError
        They are of another experiment, other parameters or another device.
    """
    make_folder(folder)
    tables = _load_all(folder)
    wanted = json.loads(json.dumps(facts))
    for table in tables.values():
        differs = list(_differences(_origin(table).facts, wanted))
        if differs:
            more = f" and {len(differs) - 3} more" if len(differs) > 3 else ""
            raise GpuscopeError(
                f"{folder.name!r} holds another sweep, which stays as it is: "
                f"{'; '.join(differs[:3])}{more}. Choose another path, or run the same sweep"
            )
    return tables


def _differences(there: object, now: object, path: str = "") -> Iterator[str]:
    """Say field by field what differs."""
    if isinstance(there, dict) and isinstance(now, dict):
        for key in [*there, *(key for key in now if key not in there)]:
            inside = f"{path}.{key}" if path else key
            yield from _differences(there.get(key), now.get(key), inside)
    elif there != now:
        yield f"{clean(path)} is {there!r} there, {now!r} now"


def _load_all(folder: Path) -> dict[int, pa.Table]:
    tables = [_load(file) for file in sorted(folder.glob("point-*.parquet"))]
    return {_origin(table).number: table for table in tables}


def _with_all_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a point's table as this version makes it: older ones know fewer figures.

    Raises
    ------
    ValueError
        It has other columns, or values of other types.
    """
    facts = table.schema.metadata
    for name in COLUMNS:
        if name not in table.column_names:
            table = table.append_column(schema.field(name), pa.nulls(len(table), COLUMNS[name]))
    return table.select(schema.names).cast(schema).replace_schema_metadata(facts)


def _save(table: pa.Table, path: Path) -> None:
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)


class _Device(TypedDict):
    name: str
    uuid: str | None
    sm_count: int
    driver: str | None


class _Facts(TypedDict):
    experiment: _Table
    parameters: dict[str, Annotated[list[Value], msgspec.Meta(min_length=1)]]
    order: list[str]
    device: _Device


class _Origin(msgspec.Struct, forbid_unknown_fields=True):
    """What a point's rows rest on: the metadata of its file, which may come from anywhere."""

    facts: _Facts
    number: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
    provenance: list[str]


def _origin(table: pa.Table) -> _Origin:
    return msgspec.convert(json.loads(table.schema.metadata[_KEY]), _Origin)


def _load(path: Path) -> pa.Table:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read()
        table.validate(full=True)
        return _with_all_columns(table, _schema(_origin(table).facts))
    except (
        pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError
    ) as error:  # fmt: skip
        raise GpuscopeError(
            f"{path.name!r} in {path.parent.name!r} is no readable point of a sweep ({error}): "
            "move it away, and that point is measured again"
        ) from error
