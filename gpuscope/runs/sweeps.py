"""Sweeps: one experiment at every point of a grid of parameters."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from gpuscope._checks import door
from gpuscope.analysis.settings import SweepResult
from gpuscope.device.device import Device
from gpuscope.errors import GpuscopeError, NothingRecorded
from gpuscope.runs.execution import Series, as_far_as_measured, opened
from gpuscope.runs.experiment import Description, as_experiment
from gpuscope.runs.grid import (
    STOPPED,
    Points,
    Varied,
    at,
    checked,
    load_all,
    origin_of,
    points_of,
)
from gpuscope.runs.runner import Viewer

_PREFIX = "point"


@door(
    device=(Device, str, None),
    path=(str, Path, None),
    viewer=(Callable, None),
    stop=(threading.Event, None),
)
def sweep(
    experiment: Description,
    parameters: Varied,
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
        Several parameters form a grid; the last one varies fastest. ``"all"`` instead of the
        values of a partition: every number of whole quanta that leaves something.
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
    experiment, target = as_experiment(experiment), opened(device)
    values = checked(parameters, target)
    points = points_of(values)
    plans = [at(experiment, point) for point in points]
    measured = Points(_PREFIX, experiment, values, target, path)
    todo = [number for number in range(len(points)) if not measured.is_finished(number)]
    series = Series((plans[number] for number in todo), target, viewer, stop)

    def measure() -> None:
        for number in todo:
            measured.run(series, number, points[number], plans[number])
            if series.stopped:
                break

    def result() -> SweepResult:
        for number in todo:
            measured.keep(series, number, points[number])
        if not measured.tables:
            raise NothingRecorded(
                "the sweep was stopped before anything was recorded: run it again"
            )
        return _result([measured.tables[number] for number in sorted(measured.tables)])

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
    return _result([tables[number] for number in sorted(tables)])


def _result(tables: Sequence[pa.Table]) -> SweepResult:
    facts = origin_of(tables[0]).facts
    seen = dict.fromkeys(line for table in tables for line in origin_of(table).provenance)
    plain = [table.replace_schema_metadata() for table in tables]
    whole = pa.concat_tables(plain, promote_options="default")
    missing = dict.fromkeys(filter(None, whole.column("incomplete").to_pylist()))
    planned = math.prod(len(values) for values in facts["parameters"].values())
    return SweepResult(
        table=whole,
        experiment=facts["experiment"],
        parameters={name: tuple(values) for name, values in facts["parameters"].items()},
        stopped=len(tables) < planned or STOPPED in whole.column("error").to_pylist(),
        provenance="; ".join(seen) or f"nothing was run on {facts['device']['name']}",
        incomplete="; ".join(missing),
    )
