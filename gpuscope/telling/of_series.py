"""What several runs come to: where a sweep is best and worst, and who makes whose kernels long."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope._checks import door
from gpuscope._columns import COMPARED, heading
from gpuscope._text import format_value
from gpuscope.analysis.interference_analysis import InterferenceResult
from gpuscope.analysis.result import Row
from gpuscope.analysis.settings import SweepResult
from gpuscope.telling.finding import Finding, Quantity, counts
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
    >>> from gpuscope.telling.of_series import swept
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
            "quantity": column.quantity,
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


@door(result=InterferenceResult)
def interfered(result: InterferenceResult) -> Finding:
    """Return the pair of workloads whose value is the greatest, or that none is known.

    Examples
    --------
    >>> import gpuscope as gs
    >>> from gpuscope.telling.of_series import interfered
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> small = {"kind": "gemm", "m": 512, "n": 512, "k": 512, "partition": "a"}
    >>> large = {"kind": "gemm", "m": 4096, "n": 4096, "k": 4096, "partition": "b"}
    >>> result = gs.search.measure_interference(
    ...     gpu, {"a": 16, "b": "rest"}, {"small": small, "large": large}, repeats=5, rounds=2)
    >>> interfered(result).rule
    'interferes'
    """
    known = {cell: cell.value for cell in result.cells if cell.value is not None}
    values = counts(told=len(known), untold=len(result.cells) - len(known))
    if not known:
        return Finding("interferes.unknown", "warning", {}, values)
    most = max(known, key=known.__getitem__)
    subject = {"workload": most.of, "given": most.given}
    longer = Quantity("longer", known[most], "%")
    return Finding(
        "interferes", "note", subject, (longer, *(each for each in values if each.value))
    )
