"""Runs side by side: what was changed between them, and how far their numbers differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from gpuscope._text import format_value
from gpuscope.analysis.headline import Change, noise_of
from gpuscope.widgets import html
from gpuscope.widgets.results import Summary

_NONE = 0.0005
"""Changes by less than this share are not told."""
_MEASURES = {
    "latency_p50_us": ("latency p50", "µs", -1),
    "latency_p99_us": ("latency p99", "µs", -1),
    "kernel_median_us": ("median kernel time", "µs", -1),
    "calls_per_s": ("calls", "1/s", 1),
    "tflop_per_s": ("throughput", "TFLOP/s", 1),
    "gb_per_s": ("bytes", "GB/s", 1),
    "ttft_p50_ms": ("TTFT p50", "ms", -1),
    "tbt_p50_ms": ("TBT p50", "ms", -1),
    "requests_per_s": ("requests", "1/s", 1),
    "goodput_per_s": ("goodput", "1/s", 1),
}
"""Column of a comparison → what it is, its unit, and whether more is better."""
_TOGETHER = ("overlap", "gain")


def side_by_side(runs: Mapping[str, Summary]) -> str:
    """Return two or more runs side by side as HTML, each against the first.

    Parameters
    ----------
    runs
        What to call each → its summary.
    """
    (first, base), *others = runs.items()
    lines = []
    for label, run in others:
        changed = list(_changes(base.experiment, run.experiment))
        more = f"; and {len(changed) - 8} more" if len(changed) > 8 else ""
        words = f"changed: {'; '.join(changed[:8])}{more}" if changed else "the same experiment"
        if base.provenance != run.provenance:
            words += f"; {run.provenance}, not {base.provenance}"
        lines.append(html.text(f"{label} against {first}: {words}.", 2000))
    stopped = [label for label, run in runs.items() if run.stopped]
    if stopped:
        lines.append(html.text(f"Not run to the end: {', '.join(stopped)}."))
    columns = [("of", "left"), ("what", "left")]
    columns += [(html.text(label, 60), "right") for label in runs]
    return (
        '<div class="gpuscope-differences" style="line-height:1.5;overflow-x:auto">'
        f"<b>Side by side</b><br>{'<br>'.join(lines)}"
        f"{html.table(columns, _rows(list(runs.values())))}</div>"
    )


def _changes(before: object, now: object, path: str = "") -> Iterator[str]:
    """Say field by field what differs between two descriptions."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*before, *now]):
            if path or key != "settings":  # their names are made of the partitions
                inside = f"{path}.{key}" if path else str(key)
                yield from _changes(before.get(key), now.get(key), inside)
    elif before is None and isinstance(now, Mapping):
        yield f"{path}: added"
    elif now is None and isinstance(before, Mapping):
        yield f"{path}: removed"
    elif before != now:
        yield f"{path}: {_told(before, now)} → {_told(now, before)}"


def _told(value: object, other: object) -> str:
    """Write a value; descriptions leave out some that say nothing, as a guard that is on."""
    if value is None and isinstance(other, bool):
        value = not other
    if isinstance(value, bool):
        return str(value).lower()
    if not value and isinstance(other, list):
        return "none"
    return "–" if value is None or isinstance(value, Mapping) else str(value)


_Measured: TypeAlias = tuple[float, int, str, float]
"""A number, whether more of it is better, its column (empty where none), and half its interval."""


def _measured(run: Summary) -> dict[tuple[str, str], _Measured]:
    """Return of what and what → the number."""
    parts = run.confinement.partitions if run.confinement is not None else ()
    every = [
        (
            row["workload"],
            f"{what} ({unit})",
            row[column],
            better,
            column,
            row["spreads"].get(column),
        )
        for row in run.rows
        for column, (what, unit, better) in _MEASURES.items()
        if not (row["workload"] in run.background and column.startswith("latency"))
    ]
    every += [("all", name, row[name], 0, "", 0.0) for row in run.rows[:1] for name in _TOGETHER]
    every += [(part.partition, "confinement", part.fraction, 1, "", 0.0) for part in parts]
    return {
        (of, what): (value, better, column, spread or 0.0)
        for of, what, value, better, column, spread in every
        if value is not None
    }


def _rows(runs: list[Summary]) -> Iterator[list[str]]:
    """Return of each number its value in every run, and how far that is from the first's."""
    measured = [_measured(run) for run in runs]
    for key in dict.fromkeys(key for one in measured for key in one):
        base = measured[0].get(key)
        cells = []
        for index, one in enumerate(measured):
            now = one.get(key)
            cell = "–" if now is None else f"<b>{format_value(float(now[0]))}</b>"
            if index and now is not None and base is not None:
                cell += f" <small>{_judged(base, now)}</small>"
            cells.append(cell)
        yield [html.text(key[0], 40), html.text(key[1]), *cells]


def _judged(base: _Measured, now: _Measured) -> str:
    (before, _, _, spread), (after, better, column, own_spread) = base, now
    if not before:
        return "–"
    share = (after - before) / before
    if abs(share) < _NONE:
        return "the same"
    noise = noise_of(column, spread, own_spread) if column else 0.0
    if Change("", column, "", "", before, after, noise).within_noise:
        return f"{share:+.1%}, within noise"
    word = "" if not better else " better" if share * better > 0 else " worse"
    return f"{share:+.1%}{word}"
