"""Sweeps: one experiment at every point of a grid of parameters."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa

from gpuscope._checks import door, given
from gpuscope.analysis.settings import SweepResult
from gpuscope.device.device import Device
from gpuscope.errors import GpuscopeError, InvalidArgument, NothingRecorded, WorkerLost
from gpuscope.runs.execution import Series, as_far_as_measured, opened
from gpuscope.runs.experiment import Description, Experiment, as_experiment
from gpuscope.runs.grid import (
    STOPPED,
    Point,
    Points,
    Varied,
    at,
    checked,
    labelled,
    load_all,
    origin_of,
    point_table,
    points_of,
)
from gpuscope.runs.runner import Viewer
from gpuscope.runs.scale_out import Team, team_of

_PREFIX = "point"


@door(
    device=(Device, str, None),
    path=(str, Path, None),
    executor=(Executor, str, None),
    shard=(str, None),
    viewer=(Callable, None),
    stop=(threading.Event, None),
)
def sweep(
    experiment: Description,
    parameters: Varied,
    device: Device | str | None = None,
    *,
    path: str | Path | None = None,
    executor: Executor | str | None = None,
    shard: str | None = None,
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
        Several parameters form a grid; the last one varies fastest. ``"all"`` instead of the
        values of a partition: every number of whole quanta that leaves something.
    device
        An open device or a name for :func:`gpuscope.open_device`; ``"auto"`` if not given.
    path
        A folder in which each finished point is saved. A second call with the same experiment,
        parameters and kind of GPU skips these points.
    executor
        Runs the points on several GPUs or hosts: ``"processes:N"``, ``"dask://HOST:PORT"``, or any
        executor, such as ``Client.get_executor()`` of Dask. ``device`` is the name of what each
        worker opens then; ``"auto"`` and ``"cuda"`` are any GPU that is free.
    shard
        ``"i/n"``: run only the ``i``-th of ``n`` parts of the points, as one of ``n`` batch jobs
        with the same ``path``.
    viewer
        Called repeatedly from this thread with the progress of the whole sweep.
    stop
        Set it to end early.

    Returns
    -------
    SweepResult
        Its ``table`` has one row per point, setting and workload. A point that the GPU cannot
        carve is a row with its error. ``gpu`` is the UUID of the GPU that a point ran on. After
        Ctrl-C or ``stop``, the table holds what was measured until then. The interrupted point
        is marked, and a second call measures it again.

    Raises
    ------
    InvalidExperiment
        The experiment is invalid at one of the points, or a path does not exist. Raised before
        anything runs.
    GpuscopeError
        The folder holds another sweep or cannot be used, workers have GPUs that differ, or the
        sweep was stopped before anything was recorded.

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
    part, stop = _part(shard, path), stop or threading.Event()
    with nullcontext() if executor is None else team_of(executor, device) as team:
        gpu = opened(device) if team is None else team.kind()
        values = checked(parameters, gpu.layout)
        points = points_of(values)
        described = as_experiment(experiment)
        plans = [at(described, point) for point in points]
        measured = Points(_PREFIX, described, values, gpu.info, path)
        mine = range(len(points))[part]
        todo = [number for number in mine if not measured.is_finished(number)]
        series = None
        if isinstance(gpu, Device):
            series = Series((plans[number] for number in todo), gpu, viewer, stop)

        def measure() -> None:
            if team is not None:
                _measure(team, measured, {n: (points[n], plans[n]) for n in todo}, viewer, stop)
            for number in todo:
                if series is None or series.stopped:
                    break
                measured.run(series, number, points[number], plans[number])

        def result() -> SweepResult:
            for number in todo:
                if series is not None:
                    measured.keep(series, number, points[number])
            if path is not None and shard is not None:  # others may have come
                measured.tables |= load_all(Path(path), _PREFIX)
            if not measured.tables:
                raise NothingRecorded(
                    "the sweep was stopped before anything was recorded: run it again"
                )
            return _result(measured.tables, mine)

        return as_far_as_measured(measure, result)


def _part(shard: str | None, path: str | Path | None) -> slice:
    """Read ``i/n``: every n-th point, from the i-th on."""
    if shard is None:
        return slice(None)
    number, _, of = shard.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise InvalidArgument(f"shard is {given(shard)}; 'i/n' with i from 1 to n is needed")
    if path is None:
        raise InvalidArgument("shard needs path: the folder in which the parts meet")
    return slice(int(number) - 1, None, int(of))


def _measure(
    team: Team,
    measured: Points,
    todo: Mapping[int, tuple[Point, Experiment]],
    viewer: Viewer | None,
    stop: threading.Event,
) -> None:
    """Measure points on workers; one whose worker is lost as often as it is tried is an error."""
    jobs = {number: measured.job({number: planned}) for number, planned in todo.items()}
    for number, made in team.done(jobs, stop, viewer, lambda number: labelled(todo[number][0])):
        table = made if isinstance(made, GpuscopeError) else made[number]
        if isinstance(table, WorkerLost):
            table = point_table(number, todo[number][0], table, measured.facts, None)
        if isinstance(table, GpuscopeError):
            raise table
        measured.add(number, table)


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
    tables = load_all(Path(path), _PREFIX)
    if not tables:
        raise GpuscopeError(
            f"there is no point of a sweep in {name!r}: name the folder that sweep() was given as "
            "path"
        )
    first, *others = (origin_of(table).facts for table in tables.values())
    if any(facts != first for facts in others):
        raise GpuscopeError(
            f"{name!r} holds points of several sweeps: move those of the others away"
        )
    planned = math.prod(len(values) for values in first["parameters"].values())
    return _result(tables, range(planned))


def _result(found: Mapping[int, pa.Table], wanted: Iterable[int]) -> SweepResult:
    tables = [found[number] for number in sorted(found)]
    facts = origin_of(tables[0]).facts
    seen = dict.fromkeys(line for table in tables for line in origin_of(table).provenance)
    plain = [table.replace_schema_metadata() for table in tables]
    whole = pa.concat_tables(plain, promote_options="default")
    missing = dict.fromkeys(filter(None, whole.column("incomplete").to_pylist()))
    is_whole = all(number in found for number in wanted)
    return SweepResult(
        table=whole,
        experiment=facts["experiment"],
        parameters={name: tuple(values) for name, values in facts["parameters"].items()},
        stopped=not is_whole or STOPPED in whole.column("error").to_pylist(),
        provenance="; ".join(seen) or f"nothing was run on {facts['device']['name']}",
        incomplete="; ".join(missing),
    )
