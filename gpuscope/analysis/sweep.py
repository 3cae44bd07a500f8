"""What a sweep found: one row per point, setting and workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from gpuscope._text import clean
from gpuscope.analysis.result import Result, Row
from gpuscope.trace.metadata import Description


@dataclass(frozen=True)
class SweepResult(Result):
    """An experiment run at every point of a grid of parameters.

    Attributes
    ----------
    table
        One row per point, setting and workload: a column for each parameter, named by its
        path, then the columns of :data:`gpuscope.analysis.settings.COLUMNS`, then ``error``. A
        point that could not be run, or only in part, says why there; of one that could not be
        run, only that row is left.
    experiment
        The description that was varied.
    parameters
        Path → values.
    stopped
        Whether it was stopped before every point was finished.
    provenance
        Device, source, simulated or measured, uncertainty.
    """

    table: pa.Table = field(repr=False)
    experiment: Description
    parameters: Mapping[str, tuple[Any, ...]]
    stopped: bool
    provenance: str

    def _rows(self) -> list[Row]:
        """One row per point, setting and workload."""
        return list(self.table.to_pylist())

    @property
    def note(self) -> str:
        """What was varied, and provenance, in one line."""
        varied = ", ".join(f"{path} = {list(values)}" for path, values in self.parameters.items())
        stopped = "stopped early. " if self.stopped else ""
        return clean(f"{stopped}{self.experiment.get('name')} at {varied}. {self.provenance}")
