"""What a command prints: findings first, then tables, on one screen; with ``--all`` the rest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuscope._columns import MEANINGS
from gpuscope._tables import filled, paragraph, table_lines, terminal_width
from gpuscope._text import clean, shortened
from gpuscope.analysis.result import Result, Row
from gpuscope.cli.app import say_lines
from gpuscope.telling.finding import Finding
from gpuscope.telling.media import to_text

LINES = 40
"""Lines of a screen."""
_ROWS = (32, 24, 16, 12, 8, 5, 3, 2, 1)
"""Rows of each table, as many of these as there is room for."""
_FINDINGS, _TALLEST = 14, 6
"""Lines of all findings, and of one paragraph."""
_FILES = 6
"""Files that are named."""
STYLES = {"error": "bold red", "warning": "yellow", "note": ""}


@dataclass
class _Table:
    """A table, drawn with as many rows as asked for.

    Attributes
    ----------
    every
        How many rows there are with those of zeros.
    columns
        What it shows.
    left_out
        What it does not show, in words.
    """

    title: str
    rows: Sequence[Row]
    weight: str
    every: int
    lines: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    left_out: str = ""

    def draw(self, most: int | None) -> None:
        """Draw at most so many rows, those of most weight; or everything."""
        rows = self.rows
        if most is not None and len(rows) > most:
            heaviest = list(range(len(rows)))
            if self.weight:
                heaviest.sort(key=lambda at: rows[at][self.weight], reverse=True)
            rows = [rows[at] for at in sorted(heaviest[:most])]
        columns = filled(self.rows[0], self.rows)
        self.lines, self.columns = table_lines(columns, rows, title=self.title, every=most is None)
        missing = self.every - len(rows)
        words = [f"{missing:,} row{'s' * (missing > 1)}"] * bool(missing)
        words += [_title(name) for name in columns if name not in self.columns]
        self.left_out = f"{', '.join(words)} of {self.title}" if words else ""


class Screen:
    """What one command prints, when all of it is known.

    Parameters
    ----------
    every
        Whether to print all; else at most :data:`LINES` lines: no row of zeros, of each table as
        many rows and columns as there is room for, and last what is left out.
    """

    def __init__(self, *, every: bool) -> None:
        self.every, self._width = every, terminal_width()
        self._found: list[tuple[list[str], str]] = []
        self._tables: list[_Table] = []
        self._notes: list[str] = []
        self._left_out: list[str] = []

    def find(self, text: str, *advice: str, style: str = "") -> None:
        """Add what was found, and what to do about it."""
        lines = self._paragraph(text)
        more = [part for line in advice for part in self._paragraph(line)]
        room = _FINDINGS - sum(len(lines) for lines, _ in self._found)
        fits = room >= len(lines) + len(more) and not self._left_out
        if self.every or not self._found or fits:
            self._found += [(lines, style), (more, "")]
        else:
            self._left_out.append("finding")

    def findings(self, findings: Iterable[tuple[str, Finding]]) -> None:
        """Add findings in their order, each with what it is about."""
        for about, finding in findings:
            self.find(*to_text(finding, about).splitlines(), style=STYLES[finding.severity])

    def table(self, title: str, rows: Sequence[Row], weight: str = "") -> None:
        """Add a table.

        Parameters
        ----------
        weight
            The column by which rows are chosen; a row that has 0 there is one of zeros.
        """
        shown_rows = rows if self.every else [row for row in rows if not _is_zero(row, weight)]
        if shown_rows:
            self._tables.append(_Table(title, shown_rows, weight, len(rows)))
        elif rows:
            where = f"each of {len(rows):,} rows" if len(rows) > 1 else "its one row"
            self.note(f"{title}: {weight or 'every number'} is 0 in {where}")

    def result(self, title: str, result: Result) -> None:
        """Add the rows of a result that can be read."""
        rows, left_out = result.readable()
        if result.incomplete and self.every:  # else the finding says so, once
            self.note(f"{title}: {result.incomplete}")
        self.detail(title, left_out and f"{title}: {left_out}")
        self.table(title, rows, result.weight if rows and result.weight in rows[0] else "")

    def note(self, text: str) -> None:
        """Add what stands below the tables, once; texts may be empty."""
        self._notes += [text] * bool(text and text not in self._notes)

    def detail(self, what: str, text: str) -> None:
        """Add what stands there if all is printed; else only that there is more about it."""
        if self.every:
            self.note(text)
        elif text:
            self._left_out.append(f"more about {what}")

    def show(self, origin: str, written: Sequence[Path] = ()) -> None:
        """Print it, then where the numbers come from and which files were written."""
        for most in (None,) if self.every else _ROWS:
            foot = self._drawn(most, origin, written)
            if self._height(foot) <= LINES:
                break
        while not self.every and self._height(foot) > LINES and (self._tables or self._notes):
            least = f"the table {self._tables.pop().title}" if self._tables else self._notes.pop()
            self._left_out.append(_title(least.partition(": ")[0]))
            foot = self._drawn(_ROWS[-1], origin, written)
        for lines, style in self._found:
            say_lines(lines, style)
        for lines in (*(table.lines for table in self._tables), [""] * bool(self._tables), *foot):
            say_lines(lines)

    def _drawn(self, most: int | None, origin: str, written: Sequence[Path]) -> list[list[str]]:
        """Draw tables, and return what stands below them."""
        for table in self._tables:
            table.draw(most)
        shown_texts = [line for lines, _ in self._found for line in lines]
        shown_texts += [name for table in self._tables for name in table.columns]
        words = [
            f"{name}: {meaning}"
            for name, meaning in MEANINGS.items()
            if re.search(rf"\b{name}\b", " ".join(shown_texts), re.IGNORECASE)
        ]
        left_out = [table.left_out for table in self._tables if table.left_out]
        findings = self._left_out.count("finding")
        left_out += [f"{findings} finding{'s' * (findings > 1)}"] * bool(findings)
        left_out += dict.fromkeys(what for what in self._left_out if what != "finding")
        texts = ["; ".join(words), *self._notes, origin]
        foot = [self._paragraph(text) for text in texts if text]
        foot += [[f"wrote {clean(path)}"] for path in written[:1]]  # unbroken, to be copied
        if beside := [path.name for path in written[1:]]:
            most = len(beside) if self.every else _FILES
            more = [f"and {len(beside) - most} more"] * (len(beside) > most)
            foot.append(self._paragraph(f"beside it: {', '.join([*beside[:most], *more])}"))
        if left_out:
            foot.append(paragraph(f"--all adds {'; '.join(left_out)}", self._width).split("\n"))
        return foot

    def _height(self, foot: Iterable[Sequence[str]]) -> int:
        above = [*(lines for lines, _ in self._found), *(table.lines for table in self._tables)]
        return sum(map(len, (*above, *foot))) + bool(self._tables)

    def _paragraph(self, text: str) -> list[str]:
        """Return foreign text as lines; of a long one the middle is lost unless all is printed."""
        limit = _TALLEST * self._width
        brief = text if self.every else shortened(text, 2 * self._width, limit)
        lines = paragraph(brief, self._width).split("\n")
        while len(lines) > _TALLEST and not self.every:
            limit -= self._width // 4
            lines = paragraph(shortened(text, self._width, limit), self._width).split("\n")
        return lines


def _is_zero(row: Row, weight: str) -> bool:
    """Whether a row has 0 for its weight; or else only zeros for numbers, and one at least."""
    if weight:
        return not row[weight]
    numbers = [value for value in row.values() if isinstance(value, int | float)]
    return bool(numbers) and not any(numbers)


def _title(column: str) -> str:
    """Return a heading without its unit."""
    return column.partition(" (")[0]
