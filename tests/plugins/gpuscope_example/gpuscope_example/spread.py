"""An analysis: how unequal the kernels of one name are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np

from gpuscope.analyses import Analysis
from gpuscope.analysis.intervals import by_workload, kernels
from gpuscope.analysis.result import Result, about
from gpuscope.telling import RULES, Finding, Quantity, Rule
from gpuscope.telling.finding import Severity
from gpuscope.trace import Trace

if TYPE_CHECKING:
    import plotly.graph_objects as go

UNEQUAL = 2.0
RULES["spread"] = Rule("Kernels of {workload} differ {ratio}-fold")


@dataclass(frozen=True)
class Spread:
    """The kernels of one workload: how many, and the longest over the shortest."""

    workload: Annotated[str, "workload"]
    kernels: Annotated[int, "kernels"]
    ratio: Annotated[float, "longest / shortest"]


@dataclass(frozen=True)
class SpreadResult(Result):
    """The spread of each workload's kernels."""

    workloads: tuple[Spread, ...]
    entries = "workloads"

    @property
    def definition(self) -> str:
        """What the rows are."""
        return "spread: the longest kernel of a workload over its shortest"


def spread(trace: Trace) -> SpreadResult:
    """Compare the kernels of each workload."""
    finished = kernels(trace)
    groups = by_workload(finished)
    took = np.maximum(finished.array("end_ns") - finished.array("start_ns"), 1)
    ratios = [
        float(took[groups.code == index].max() / took[groups.code == index].min())
        for index in range(len(groups))
    ]
    rows = zip(groups.labels, groups.counts.tolist(), ratios, strict=True)
    return SpreadResult(tuple(Spread(*row) for row in rows), **about(trace))


def findings(trace: Trace) -> Iterator[Finding]:
    """Tell of workloads whose kernels are unequal."""
    for row in spread(trace).workloads:
        if row.ratio >= UNEQUAL:
            yield _finding(row, "warning")


def card(result: SpreadResult) -> Iterator[Finding]:
    """Show the spread of each workload."""
    for row in result.workloads:
        yield _finding(row, "note")


def _finding(row: Spread, severity: Severity) -> Finding:
    return Finding("spread", severity, {"workload": row.workload}, (Quantity("ratio", row.ratio),))


def figures(traces: Mapping[str, Trace]) -> Iterator[go.Figure]:
    """Draw the spread of each trace's workloads."""
    import plotly.graph_objects as go

    for trace in traces.values():
        rows = spread(trace).workloads
        layout = {"title": {"text": "Spread"}, "height": 300, "margin": {"t": 40}}
        yield go.Figure(
            go.Bar(x=[row.workload for row in rows], y=[row.ratio for row in rows]), layout
        )


SPREAD = Analysis(
    name="spread",
    title="How unequal kernels are",
    judge=spread,
    figures=figures,
    findings=findings,
    card=card,
)
