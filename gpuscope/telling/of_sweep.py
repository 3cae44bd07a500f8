"""What a sweep comes to: where its clearest figure is best, and where it is worst."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope._checks import door
from gpuscope._columns import COMPARED, heading
from gpuscope._text import format_value
from gpuscope.analysis.result import Row
from gpuscope.analysis.settings import SweepResult
from gpuscope.telling.finding import Finding, Quantity
from gpuscope.telling.of_setting import unit_of

_COLUMNS = ("goodput_per_s", "latency_p99_us", "latency_p50_us", "bus_gb_per_s", "calls_per_s")
"""What is told of a sweep: the first that any two points have."""


@door(result=SweepResult)
def swept(result: SweepResult) -> Iterator[Finding]:
    """Yield where a figure is best and worst, of the first workload that has it.

    Each point was measured once, so nothing is known of its noise; the finding says so.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2}},
    ... }
    >>> from gpuscope.telling.of_sweep import swept
    >>> result = gs.search.sweep(one, {"workloads.w.duration_us": [10, 90]}, gpu)
    >>> [(finding.rule, finding.subject["best"]) for finding in swept(result)]
    [('swept', 'w.duration_us = 10')]
    """
    rows = result.table.to_pylist()
    for key in _COLUMNS:
        known = [row for row in rows if row.get(key) is not None]
        several = [row for row in known if row["workload"] == known[0]["workload"]]
        if len(several) < 2:
            continue
        column = COMPARED[key]
        several.sort(key=lambda row: -column.better * row[key])
        best, worst = several[0], several[-1]
        subject = {
            "workload": best["workload"],
            "quantity": column.title.removeprefix("latency ").removesuffix("/s"),
            "best": _point(result, best),
            "worst": _point(result, worst),
        }
        values = (
            Quantity("good", best[key], unit_of(column)),
            Quantity("bad", worst[key], unit_of(column)),
        )
        yield Finding("swept", "note", subject, values)
        return


def _point(result: SweepResult, row: Row) -> str:
    """Name a point, and the setting where the experiment has several."""
    words = [f"{heading(path)} = {format_value(row[path])}" for path in result.parameters]
    if len(result.experiment.get("settings") or ()) > 1:
        words.append(f"“{row['setting']}”")
    return ", ".join(words)
