"""Runs side by side: what was changed between them, and how far their numbers differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpuscope._columns import COMPARED, TOGETHER, Column
from gpuscope._text import format_value
from gpuscope.analysis.headline import Change, noise_of
from gpuscope.telling.finding import Finding
from gpuscope.widgets import html
from gpuscope.widgets.results import Summary

_NONE = 0.0005
"""Changes by less than this share are not told."""
CONFINEMENT = Column("confinement", "confinement", better=1)
_EXACT = ("overlap", "gain", "confinement")
"""Numbers of which no noise is known."""


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


@dataclass(frozen=True)
class Number:
    """A number of one run, what it is of, and half its interval as a share of it."""

    of: str
    column: Column
    value: float
    spread: float = 0.0


def _numbers(run: Summary) -> dict[tuple[str, str], Number]:
    """Return the numbers of a run by what they are of, and by their column."""
    parts = () if isinstance(run.confinement, Finding) else run.confinement.partitions
    numbers = [
        Number(row["workload"], column, row[key], row["spreads"].get(key) or 0.0)
        for row in run.rows
        for key, column in COMPARED.items()
        if column.better and column.is_brief and key not in TOGETHER and row[key] is not None
    ]
    numbers += [
        Number("all", COMPARED[key], row[key])
        for row in run.rows[:1]
        for key in ("overlap", "gain")
        if row[key] is not None
    ]
    numbers += [
        Number(part.partition, CONFINEMENT, part.fraction)
        for part in parts
        if part.fraction is not None
    ]
    return {(number.of, number.column.key): number for number in numbers}


def _rows(runs: list[Summary]) -> Iterator[list[str]]:
    """Return of each number its value in every run, and how far that is from the first's."""
    first, *others = [_numbers(run) for run in runs]
    for key in dict.fromkeys(key for numbers in (first, *others) for key in numbers):
        base = first.get(key)
        cells = [_value(base)]
        for numbers in others:
            number = numbers.get(key)
            compared = f" <small>{judged(base, number)}</small>" if base and number else ""
            cells.append(_value(number) + compared)
        column = COMPARED.get(key[1], CONFINEMENT)
        yield [html.text(key[0], 40), html.text(column.heading), *cells]


def _value(number: Number | None) -> str:
    value = None if number is None else number.column.scaled(number.value)
    return "–" if value is None else f"<b>{format_value(value)}</b>"


def judged(base: Number, number: Number) -> str:
    """Say how far a number is from another run's, and whether noise may be why."""
    column = base.column
    if not base.value:
        return "–"
    share = number.value / base.value - 1
    if abs(share) < _NONE:
        return "the same"
    noise = 0.0 if column.key in _EXACT else noise_of(column.key, base.spread, number.spread)
    if Change("", column.key, "", "", base.value, number.value, noise).within_noise:
        return f"{share:+.1%}, within noise"
    word = "" if not column.better else " better" if column.better * share > 0 else " worse"
    return f"{share:+.1%}{word}"
