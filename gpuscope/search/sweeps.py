"""Sweeps: one experiment at every point of a grid of parameters."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

from msgspec import structs

from gpuscope._checks import door, given
from gpuscope.analysis.settings import Speed, SweepResult
from gpuscope.comparing.rounds import measured
from gpuscope.device.device import Device
from gpuscope.errors import (
    GpuscopeError,
    InvalidArgument,
    InvalidPartition,
    NothingRecorded,
    WorkerLost,
)
from gpuscope.experiments.experiment import Description, Experiment, as_experiment
from gpuscope.experiments.runner import Viewer
from gpuscope.search.candidates import due
from gpuscope.search.grid import Point, Value, Varied, checked, labelled, points_of
from gpuscope.search.point_table import PointTable, saved
from gpuscope.search.points import MeasuredPoint, SavedPoints, point_of
from gpuscope.search.series import Plan, Series, as_far_as_measured, place_of
from gpuscope.trace.run import Run

_PREFIX, _REFERENCE = "point", "reference"
_ATTEMPTS = 3
"""To have each GPU measure the reference again: any free worker takes a job."""
GEMM: Description = {
    "name": "reference",
    "alone_repeats": 0,
    "streams": {"s": {}},
    "workloads": {
        "gemm": {"kind": "gemm", "m": 4096, "n": 4096, "k": 4096, "stream": "s", "repeats": 50},
    },
}
"""The reference of that name."""


@door("device", "path", "executor", "shard", "reference", "viewer", "stop")
def sweep(
    experiment: Description,
    parameters: Varied,
    device: Device | str | None = None,
    *,
    path: str | Path | None = None,
    executor: Executor | str | None = None,
    shard: str | None = None,
    reference: Description | None = None,
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
    reference
        What is measured on each GPU, before its first point and after the last one, so that GPUs
        may differ: ``"gemm"``, 4096³ in float16 on the whole GPU, or an experiment, whose first
        workload's calls a second count. Times of the table are multiplied by the GPU's speed
        relative to the first GPU, rates are divided by it; its column ``speed`` says which.
    viewer
        Called repeatedly from this thread with the progress of the whole sweep.
    stop
        Set it to end early.

    Returns
    -------
    SweepResult
        Its ``table`` has one row per point, setting and workload. A setting that is the same at
        several points is measured once, at the first; of what differs between these its rows have
        no value. A point that the GPU cannot carve is a row with its error. ``gpu`` is the UUID of
        the GPU that a point ran on. After Ctrl-C or ``stop``, the table holds what was measured
        until then. The interrupted point is marked, and a second call measures it again.

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
    >>> gs.search.sweep(one, {"partitions.a": [8, 16]}, gpu).table.column("kernels").to_pylist()
    [2, 2]
    """
    part, stop = _part(shard, path), stop or threading.Event()
    measured_on = (
        None if reference is None else as_experiment(GEMM if reference == "gemm" else reference)
    )
    with place_of(executor, device, mixed=measured_on is not None) as runs_on:
        values = checked(parameters, runs_on.layout)
        points = points_of(values)
        described = as_experiment(experiment)
        plans = {
            number: Plan(
                planned, labelled(points[number]), partial(_point_of, number, points[number], of=of)
            )
            for number, (planned, of) in enumerate(due(described, points, runs_on.layout))
        }
        same = runs_on.info if measured_on is None else None
        table = PointTable(_PREFIX, described, values, same, path, reference=measured_on)
        references = _References(measured_on, path)
        finished = table.all().finished
        _check_inside(finished, len(points), path)
        wanted = range(len(points))[part]
        todo = [number for number in wanted if number not in finished]

        def keep(number: int, made: MeasuredPoint | GpuscopeError) -> None:
            if number < 0:
                references.add(made)
            elif isinstance(made, MeasuredPoint):
                references.counts[made.gpu] += 0
                table.add(made)
            elif isinstance(made, InvalidPartition | WorkerLost):
                table.add(point_of(number, points[number], made))
            else:
                raise made

        calls = sum(plans[number].calls for number in todo)
        calls += 2 * sum(plan.calls for plan in references.plan("").values())
        series = Series(runs_on, keep, calls, viewer, stop)

        def measure() -> None:
            before = references.plan("before")
            series.run((plans[n].label, {**before, n: plans[n]}) for n in todo)
            for attempt in range(_ATTEMPTS):
                again = 0 if series.stopped else references.unsettled
                series.run([("reference", references.plan(f"after {attempt}"))] * again)

        def result() -> SweepResult:
            series.settle()
            saved_points = table.all()
            if not saved_points.by_number:
                raise NothingRecorded(
                    "the sweep was stopped before anything was recorded: run it again"
                )
            return _result(saved_points, wanted, references.speeds())

        return as_far_as_measured(measure, result)


def _point_of(
    number: int,
    point: Point,
    made: Run,
    gpu: str,
    *,
    of: Mapping[str, Mapping[str, Value | None]],
) -> MeasuredPoint:
    """Return what came of a point, each row with what its rounds, or parts of its calls, gave."""
    gave = {setting: measured(trace) for setting, trace in made.items()}
    measured_point = point_of(number, point, made, gpu, of=of)
    for row in measured_point.rows if len(made.comparison) else ():
        of_setting = gave[str(row["setting"])]
        row["unit"] = of_setting.unit
        row["samples"] = {
            column: [
                float(sample) / (of_setting.whole[workload, column] or 1.0) for sample in of_number
            ]
            for (workload, column), of_number in of_setting.samples.items()
            if workload == row["workload"] and all(map(math.isfinite, of_number))
        }
    return measured_point


def _part(shard: str | None, path: str | Path | None) -> slice:
    """Read ``i/n``: every n-th point, from the i-th on."""
    if shard is None:
        return slice(None)
    number, _, of = shard.partition("/")
    is_short = len(shard) < 40  # Python reads no number of more than 4,300 digits
    if not (is_short and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise InvalidArgument(f"shard is {given(shard)}; 'i/n' with i from 1 to n is needed")
    if path is None:
        raise InvalidArgument("shard needs path: the folder in which the parts meet")
    return slice(int(number) - 1, None, int(of))


@door("path")
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
    points = saved(Path(path), _PREFIX)
    if points is None:
        raise GpuscopeError(
            f"there is no point of a sweep in {Path(path).name!r}: name the folder that sweep() "
            "was given as path"
        )
    planned = range(math.prod(map(len, points.facts["parameters"].values())))
    _check_inside(points.by_number, len(planned), path)
    references = saved(Path(path), _REFERENCE) if points.facts["reference"] else None
    speeds = () if references is None else _speeds(references)
    return _result(points, planned, speeds)


def _check_inside(numbers: Iterable[int], length: int, path: str | Path | None) -> None:
    """Refuse points that the grid does not have."""
    if outside := sorted(number for number in numbers if not 0 <= number < length):
        raise GpuscopeError(
            f"{Path(path or '').name!r} holds point {outside[0]}, but the grid of its sweep has "
            f"points 0 to {length - 1}: take it out, or go on in a folder of your own"
        )


def _result(points: SavedPoints, wanted: range, speeds: tuple[Speed, ...]) -> SweepResult:
    """Return what there is of the points that were wanted."""
    facts = points.facts
    columns = points.table.select(["provenance", "incomplete", "gpu"])
    origins, missing, gpus = (
        [text for text in column.unique().to_pylist() if text] for column in columns.columns
    )
    seen = dict.fromkeys(line for text in origins for line in text.splitlines())
    where = facts["device"] or {"name": "any GPU"}
    if facts["reference"] is not None:
        missing += [
            f"no reference was measured on {gpu}: its times and rates are left out"
            for gpu in gpus
            if gpu not in {speed.gpu for speed in speeds}
        ]
    unmeasured = {number for number in wanted if number not in points.finished}
    unfinished = [point for n, point in points.by_number.items() if n in unmeasured]
    refused = [point for point in points.by_number.values() if point.state == "refused"]
    return SweepResult(
        points=points.table,
        experiment=facts["experiment"],
        parameters={name: tuple(facts["parameters"][name]) for name in facts["order"]},
        stopped=bool(unmeasured),
        unmeasured=len(unmeasured),
        why_unmeasured=_why(unfinished),
        refused=len(refused),
        why_refused=_why(refused),
        provenance="; ".join(seen) or f"nothing was run on {where['name']}",
        incomplete="; ".join(missing),
        is_simulated=any("SIMULATED on" in line for line in seen),  # as files say it
        speeds=speeds,
    )


def _why(points: Sequence[MeasuredPoint]) -> str:
    """Return the error of the first point."""
    return next((point.error or "" for point in points), "")


# -- GPUs that differ ---------------------------------------------------------------------
class _References:
    """Measurements of a reference on each GPU, in memory or in the folder of a sweep."""

    def __init__(self, experiment: Experiment | None, path: str | Path | None) -> None:
        self._experiment = experiment
        self._token = secrets.token_hex(4)
        self.counts: Counter[str | None] = Counter()
        self._points: PointTable | None = None
        if experiment is not None:
            self._points = PointTable(_REFERENCE, experiment, {}, None, path)
            self._points.all()  # refuses another reference before anything runs

    def plan(self, when: str) -> dict[int, Plan[MeasuredPoint]]:
        """Return what each process measures once on each GPU; nothing without a reference."""
        if self._experiment is None:
            return {}
        make = partial(point_of, -1, {})
        return {-1: Plan(self._experiment, "reference", make, once=f"{when} {self._token}")}

    def add(self, made: MeasuredPoint | GpuscopeError) -> None:
        """Keep a measurement; one whose worker was lost is made by who replaces it."""
        if isinstance(made, WorkerLost) or self._points is None:
            return
        if isinstance(made, GpuscopeError):
            raise made
        if made.is_finished:
            self.counts[made.gpu] += 1
            # No two jobs of an array draw the same number.
            self._points.add(structs.replace(made, number=time.time_ns()))

    @property
    def unsettled(self) -> int:
        """How many GPUs ran points whose drift is not known."""
        return 0 if self._points is None else sum(count < 2 for count in self.counts.values())

    def speeds(self) -> tuple[Speed, ...]:
        return () if self._points is None else _speeds(self._points.all())


def _speeds(points: SavedPoints) -> tuple[Speed, ...]:
    rates: dict[str, list[float]] = {}
    wanted = next(iter(points.facts["experiment"]["workloads"]))
    for row in points.table.select(["workload", "gpu", "calls_per_s"]).to_pylist():
        if row["workload"] == wanted and row["calls_per_s"]:
            rates.setdefault(row["gpu"], []).append(row["calls_per_s"])
    return Speed.of(rates)
