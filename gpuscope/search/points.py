"""What came of the points of a grid: each by itself, and all of them as one table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pyarrow as pa

from gpuscope.analysis.settings import COLUMNS, HIDDEN
from gpuscope.errors import GpuscopeError, WorkerLost
from gpuscope.search.grid import Point, Value
from gpuscope.trace.run import Run

STOPPED = "stopped early: fewer calls than planned"
"""The error of a point whose run was."""
_OF_POINTS = "gpu", "error", "number", "provenance"
"""Columns that all rows of a point have alike."""


class MeasuredDevice(TypedDict):
    """What tells GPUs apart whose measurements do not go together."""

    name: str
    sm_count: int
    driver: str | None


class SweepFacts(TypedDict):
    """What was asked for: the same for all points of a table.

    ``device`` is ``None`` where GPUs may differ, as ``reference`` is measured on each.
    """

    experiment: dict[str, Any]
    parameters: dict[str, Annotated[list[Value], msgspec.Meta(min_length=1)]]
    order: list[str]
    device: MeasuredDevice | None
    reference: dict[str, Any] | None


class MeasuredPoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of one point.

    Attributes
    ----------
    number
        In its grid.
    state
        A point that was stopped or lost is measured again; one that is refused cannot be.
    rows
        One for each setting and workload: the point's values and the columns that have any.
    gpu
        The UUID of that which it ran on.
    """

    number: int
    state: Literal["measured", "refused", "stopped", "lost"]
    rows: Annotated[
        list[dict[str, Value | dict[str, list[float]] | None]], msgspec.Meta(min_length=1)
    ]
    gpu: str | None = None
    error: str | None = None
    provenance: str | None = None

    @property
    def is_finished(self) -> bool:
        """Whether it need not be measured again."""
        return self.state in ("measured", "refused")


def point_of(
    number: int,
    point: Point,
    made: Run | GpuscopeError,
    gpu: str | None = None,
    *,
    of: Mapping[str, Mapping[str, Value | None]] | None = None,
) -> MeasuredPoint:
    """Return what came of a point: its run's comparison, or why there is none.

    Parameters
    ----------
    gpu
        The UUID of that which it ran on.
    of
        Setting → the point that its rows are of, where it is not this one.
    """
    if isinstance(made, GpuscopeError):
        state: Literal["refused", "lost"] = "lost" if isinstance(made, WorkerLost) else "refused"
        return MeasuredPoint(number, state, [{**point}], gpu, str(made))
    whose = of or {}
    rows = [{**whose.get(row["setting"], point), **row} for row in made.comparison.to_pylist()]
    given = [{name: value for name, value in row.items() if value is not None} for row in rows]
    return MeasuredPoint(
        number,
        state="stopped" if made.stopped else "measured",
        rows=given or [{**point}],
        gpu=gpu,
        error=STOPPED if made.stopped else None,
        provenance="\n".join(dict.fromkeys(trace.provenance for trace in made.values())),
    )


def schema_of(facts: SweepFacts) -> pa.Schema:
    """Return the columns of all points."""
    types = {name: _type(facts["parameters"][name]) for name in facts["order"]}
    texts = {"gpu": pa.string(), "error": pa.string()}
    return pa.schema({**types, **COLUMNS, **texts, **HIDDEN}.items())


def _type(values: Sequence[Value]) -> pa.DataType:
    """Return a type for the values; text where they have none in common."""
    try:
        return pa.array(values).type
    except (pa.ArrowException, OverflowError):
        return pa.string()


class SavedPoints:
    """The points of one sweep, each once.

    Attributes
    ----------
    by_number
        Number → what came of the point.
    finished
        Numbers of those that need not be measured again.
    table
        All rows, in the order of the numbers.

    Parameters
    ----------
    points
        Of those of a number the first that is finished counts, else the last.
    """

    def __init__(self, facts: SweepFacts, points: Iterable[MeasuredPoint]) -> None:
        self.facts = facts
        self.by_number: dict[int, MeasuredPoint] = {}
        for point in points:
            before = self.by_number.get(point.number)
            if before is None or not before.is_finished:
                self.by_number[point.number] = point
        self.finished = {n for n, point in self.by_number.items() if point.is_finished}
        ordered = [point for _, point in sorted(self.by_number.items())]
        whose = [point for point in ordered for _ in point.rows]
        columns = schema_of(facts)
        of_rows = [column for column in columns if column.name not in _OF_POINTS]
        rows = pa.array([row for point in ordered for row in point.rows], pa.struct(of_rows))
        arrays = dict(zip((column.name for column in of_rows), rows.flatten(), strict=True))
        for name in _OF_POINTS:
            values = [getattr(point, name) for point in whose]
            arrays[name] = pa.array(values, columns.field(name).type)
        self.table = pa.table(arrays).select(columns.names)
