"""What was measured at the points of a grid: rows, in memory and as parts in a folder."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from gpuscope._files import make_folder
from gpuscope._text import clean
from gpuscope.analysis.result import Row
from gpuscope.device.api import DeviceInfo
from gpuscope.errors import GpuscopeError
from gpuscope.experiments.experiment import Experiment
from gpuscope.search.grid import Point, Value
from gpuscope.search.journals import PointJournal, seal
from gpuscope.search.saved_points import MeasuredDevice, SavedPoints, SweepFacts, saved, schema_of
from gpuscope.trace.run import Run

Rows: TypeAlias = list[Row]
"""What was measured at one point: a row for each setting and workload."""

STOPPED = "stopped early: fewer calls than planned"
"""The error of a point whose run was."""
_PART = 1000
"""Points of a part: a journal that holds so many becomes a Parquet file."""


def rows_of(
    number: int,
    point: Point,
    made: Run | GpuscopeError,
    gpu: str | None = None,
    *,
    of: Mapping[str, Mapping[str, Value | None]] | None = None,
) -> Rows:
    """Return the rows of one point, or the one that says why there are none.

    Parameters
    ----------
    gpu
        The UUID of that which it ran on.
    of
        Setting → the point that its rows are of, where it is not this one.
    """
    more = {"number": number, "gpu": gpu, "error": None, "provenance": None}
    rows: Rows = []
    if isinstance(made, GpuscopeError):
        more["error"] = str(made)
    else:
        rows, more["error"] = made.comparison.to_pylist(), STOPPED if made.stopped else None
        more["provenance"] = "\n".join(dict.fromkeys(trace.provenance for trace in made.values()))
    of = of or {}
    return [{**of.get(row.get("setting", ""), point), **row, **more} for row in rows or [{}]]


def is_whole(rows: Rows) -> bool:
    """Whether a measurement ended without an error."""
    return not any(row["error"] for row in rows)


class PointTable:
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
        device: MeasuredDevice | None = None
        if info is not None:  # what must not change between measurements
            device = {"name": info.name, "sm_count": info.sm_count, "driver": info.driver}
        self.facts: SweepFacts = {
            "experiment": experiment.to_dict(),
            "parameters": {name: list(values) for name, values in parameters.items()},
            "order": list(parameters),
            "device": device,
            "reference": None if reference is None else reference.to_dict(),
        }
        self._schema = schema_of(self.facts)
        self._prefix = prefix
        self._folder = None if path is None else Path(path)
        if self._folder is not None:
            make_folder(self._folder)
        self._unsaved: dict[int, Rows] = {}
        self._journal: PointJournal | None = None
        self.finished = self._there().numbers
        """Numbers of the measurements that need not be made, or not again."""

    def add(self, number: int, rows: Rows, *, whole: bool = True) -> None:
        """Keep the rows of a measurement; in the folder, if it need not be made again."""
        self._unsaved[number] = rows
        if not whole:
            return
        if self._folder is not None:
            try:
                if self._journal is None:
                    path = self._folder / f"{self._prefix}-{secrets.token_hex(4)}.arrows"
                    self._journal = PointJournal(path, self._schema)
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
            journal, self._journal = self._journal, None
            journal.close()
        if self._folder is not None:
            for path in self._folder.glob(f"{self._prefix}-*.arrows"):
                seal(path)

    def all(self) -> SavedPoints:
        """Return all rows, in memory: those of this process, and what is in the folder by now."""
        self.seal()
        saved_points = self._there().select(self._schema.names)
        unsaved = [self._table(rows) for rows in self._unsaved.values()]
        return SavedPoints(self.facts, [pa.concat_tables([saved_points, *unsaved])])

    def rows(self) -> dict[int, Rows]:
        """Return all rows by the number of the measurement."""
        by_number: dict[int, Rows] = {}
        for row in self.all().select(self._schema.names).to_pylist():
            by_number.setdefault(row["number"], []).append(row)
        return by_number

    def _table(self, rows: Rows) -> pa.Table:
        texts = [name for name in self.facts["order"] if self._schema.field(name).type == "string"]
        plain = [
            {**row, **{name: str(row[name]) for name in texts if row[name] is not None}}
            for row in rows
        ]
        return pa.Table.from_pylist(plain, schema=self._schema)

    def _there(self) -> SavedPoints:
        """Return what is in the folder; it has to be of the same sweep."""
        if self._folder is None:
            return SavedPoints(self.facts, [])
        saved_points, wanted = saved(self._folder, self._prefix), json.loads(json.dumps(self.facts))
        differs = [] if saved_points is None else list(_differences(saved_points.facts, wanted))
        if differs:
            more = f" and {len(differs) - 3} more" if len(differs) > 3 else ""
            raise GpuscopeError(
                f"{str(self._folder)!r} holds another sweep, which stays as it is: "
                f"{'; '.join(differs[:3])}{more}. Choose another folder (--out, "
                "path=), or run the same sweep"
            )
        return saved_points or SavedPoints(self.facts, [])


def _differences(there: object, now: object, path: str = "") -> Iterator[str]:
    """Say field by field what differs."""
    if isinstance(there, dict) and isinstance(now, dict):
        for key in [*there, *(key for key in now if key not in there)]:
            inside = f"{path}.{key}" if path else key
            yield from _differences(there.get(key), now.get(key), inside)
    elif there != now:
        yield f"{clean(path)} is {there!r} there, {now!r} now"
