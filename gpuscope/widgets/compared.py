"""Runs side by side: what was changed between them, and how far their numbers differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuscope._columns import COMPARED, TOGETHER, Column
from gpuscope._tables import Html
from gpuscope._text import format_value
from gpuscope.analysis.result import Row
from gpuscope.telling.comparison import difference
from gpuscope.telling.finding import Finding
from gpuscope.widgets import html
from gpuscope.widgets.results import Summary

CONFINEMENT = Column("confinement", "confinement", better=1)
_OF_ALL = ("overlap", "gain")
"""Columns of all workloads together."""


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
    return (
        '<div class="gpuscope-differences" style="line-height:1.5;overflow-x:auto">'
        f"<b>Side by side</b><br>{'<br>'.join(lines)}{html.table([*_rows(runs)])}</div>"
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


_Numbers = dict[tuple[str, str], tuple[float, float]]
"""What a number is of, and its column → the number, and half its interval as a share of it."""


def _numbers(run: Summary) -> _Numbers:
    """Return the numbers of a run."""
    parts = () if isinstance(run.confinement, Finding) else run.confinement.partitions
    numbers = {
        (row["workload"], key): (row[key], row["spreads"].get(key) or 0.0)
        for row in run.rows
        for key, column in COMPARED.items()
        if column.better and column.is_brief and key not in TOGETHER
    }
    numbers |= {("all", key): (row[key], 0.0) for row in run.rows[:1] for key in _OF_ALL}
    numbers |= {(part.partition, CONFINEMENT.key): (part.fraction, 0.0) for part in parts}
    return {key: number for key, number in numbers.items() if number[0] is not None}


def _rows(runs: Mapping[str, Summary]) -> Iterator[Row]:
    """Yield of each number its value in every run, and how far that is from the first's."""
    first, *others = {label: _numbers(run) for label, run in runs.items()}.items()
    for key in dict.fromkeys(key for _, numbers in (first, *others) for key in numbers):
        column = COMPARED.get(key[1], CONFINEMENT)
        base = first[1].get(key)
        row: Row = {"of": key[0], "what": column.heading, first[0]: _cell(column, base)}
        for label, numbers in others:
            number, compared = numbers.get(key), ""
            if base and number:
                words = difference(column, base[0], number[0], base[1], number[1])
                compared = f" <small>{words}</small>"
            row[label] = Html(_cell(column, number) + compared)
        yield row


def _cell(column: Column, number: tuple[float, float] | None) -> Html:
    return Html("–" if number is None else f"<b>{format_value(column.scaled(number[0]))}</b>")
