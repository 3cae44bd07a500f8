"""Tables of foreign text, for a terminal and for a notebook."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from gpuscope._text import clean, format_value, shortened, shown

Rows: TypeAlias = Sequence[Mapping[str, object]]
"""Rows of a table: column → value."""


class Printer(Protocol):
    """IPython's, which shows results in a terminal by their ``_repr_pretty_``."""

    def text(self, text: str) -> None:
        """Write text."""


_NARROWEST = 20
"""Characters of a terminal; in a narrower one, lines are longer than it is wide."""
_BETWEEN = 2
"""Blanks between columns."""
_NAMES = 5
"""Fewer leading columns than this tell rows apart; if they do not, the first is the name."""
_SHARES = 5
"""Texts longer than such a share of the terminal's width may be broken."""
_LINES = 2
"""Lines of the terminal that a text of a cell would fill, at most."""


class Html(str):
    """A number in a cell, written as HTML already."""

    __slots__ = ()


def is_text(rows: Rows, column: str) -> bool:
    """Whether a column stands left: texts do, numbers stand right."""
    return any(isinstance(row[column], str) and not isinstance(row[column], Html) for row in rows)


def html_table(rows: Rows, *, limit: int | None = None, style: str = "") -> str:
    """Return rows as a table for HTML; texts stand left, numbers right; empty without rows.

    Parameters
    ----------
    rows
        All have the first one's columns.
    limit
        Characters of a cell; a longer text loses its middle.
    style
        CSS of each cell besides.
    """
    columns = list(rows[0]) if rows else []
    left = {name for name in columns if is_text(rows, name)}

    def line(tag: str, cells: Mapping[str, object]) -> str:
        inside = ""
        for name in columns:
            value = cells[name]
            text = value if isinstance(value, Html) else shown(format_value(value), limit)
            css, side = (' class="text"', "left") if name in left else ("", "right")
            look = f' style="{style}text-align:{side}"' if css or style else ""
            inside += f"<{tag}{css}{look}>{text}</{tag}>"
        return f"<tr>{inside}</tr>"

    head = line("th", dict(zip(columns, columns, strict=True)))
    body = "".join(line("td", row) for row in rows)
    table = f'<table style="border-collapse:collapse;--columns:{len(columns)}">'
    return f"{table}<thead>{head}</thead><tbody>{body}</tbody></table>" if rows else ""


def wide_table(rows: Rows) -> str:
    """Return a table that may be wider than the page: it is moved by keys, too."""
    return f'<div tabindex="0" style="overflow-x:auto">{html_table(rows)}</div>'


def paragraph(text: object, width: int) -> str:
    """Return foreign text broken between words, indented from its second line on.

    So that no part of it looks like a line of ours.
    """
    return textwrap.fill(clean(text), width, subsequent_indent="  ", break_on_hyphens=False)


def terminal_width() -> int:
    """Return how many characters a line of the terminal has; 80 where there is none."""
    return max(_NARROWEST, shutil.get_terminal_size().columns)


def text_table(columns: Sequence[str], rows: Rows, notes: Sequence[str] = ()) -> str:
    """Return rows as text as wide as the terminal, a line each: see :func:`table_lines`.

    Parameters
    ----------
    notes
        Paragraphs below the table, and below the names of columns that do not fit.
    """
    width = terminal_width()
    lines, shown_columns = table_lines(columns, rows)
    left_out = [name for name in filled(columns, rows) if name not in shown_columns]
    narrow = f"left out, as the terminal is {width} wide: {', '.join(left_out)}"
    words = [paragraph(note, width) for note in (narrow * bool(left_out), *notes) if note]
    return "\n".join([*lines, *[""] * bool(lines and words), *words])


def table_lines(
    columns: Sequence[str], rows: Rows, *, title: str = "", every: bool = False
) -> tuple[list[str], list[str]]:
    """Return a table as lines, and the columns that it shows.

    Columns stand in their order as far as they fit: the last go first, and never the leading ones
    that tell rows apart. One in which no row has a value is left out. Numbers are whole; texts are
    broken between words, and long ones lose C++ template arguments and their middle.

    Parameters
    ----------
    title
        Stands in a rule above the headings; else there is a rule below them.
    every
        Leave out nothing: what does not fit goes on in a table below, under the same names.
    """
    width = terminal_width()
    columns = filled(columns, rows)
    if not columns:
        return [], []
    names = next((n for n in range(1, _NAMES) if _tells_apart(columns[:n], rows)), 1)
    longest_word = (width - _BETWEEN * names) // (names + 1)
    table = [_column(name, rows, width, longest_word) for name in columns]
    key, rest = table[:names], table[names:]
    parts: list[list[_Column]] = []
    while not parts or (every and rest):
        fitting = 1
        while fitting < len(rest) and _least([*key, *rest[: fitting + 1]]) <= width:
            fitting += 1
        parts.append([*key, *rest[:fitting]])
        rest = rest[fitting:]
    lines: list[str] = []
    for part in parts:
        widths = _widths(part, width)
        rule = f"── {clean(title)} " * bool(title)
        head = _line([column.head for column in part], widths, part, at_bottom=True)
        head.insert(0 if title else len(head), rule.ljust(_total(widths), "─"))
        lines += [*[""] * bool(lines and not title), *head]
        for number in range(len(rows)):
            lines += _line([column.cells[number] for column in part], widths, part)
    return lines, columns[: len(columns) - len(rest)]


def filled(columns: Iterable[str], rows: Rows) -> list[str]:
    """Return the columns in which any row has a value."""
    return [name for name in columns if any(row[name] not in (None, "") for row in rows)]


@dataclass(frozen=True)
class _Column:
    """A column as text, how wide it is at least, and how wide where nothing is broken."""

    head: str
    cells: list[str]
    is_left: bool
    least: int
    most: int


def _column(name: str, rows: Rows, width: int, longest_word: int) -> _Column:
    is_left, head = is_text(rows, name), clean(name)
    cells = [clean(format_value(row[name])) for row in rows]
    if is_left:
        whole = (shortened(cell, longest_word, _LINES * width) for cell in cells)
        cells = [" ".join(shortened(word, longest_word) for word in cell.split()) for cell in whole]
    longest = max(map(len, cells))
    words = [word for cell in cells for word in cell.split()] if is_left else cells
    least = max(longest if not is_left else min(longest, width // _SHARES), *map(len, words), 1)
    least = max(least, min(longest_word, max(map(len, head.split() or [""]))))
    return _Column(head, cells, is_left, least, max(least, longest, len(head)))


def _tells_apart(names: Sequence[str], rows: Rows) -> bool:
    return len({tuple(str(row[name]) for name in names) for row in rows}) == len(rows)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _BETWEEN * (len(widths) - 1)


def _least(columns: Sequence[_Column]) -> int:
    return _total([column.least for column in columns])


def _widths(columns: Sequence[_Column], width: int) -> list[int]:
    """Share the room between columns that could be wider."""
    more = sum(column.most - column.least for column in columns)
    room = min(max(0, width - _least(columns)), more)
    return [
        column.least + room * (column.most - column.least) // max(more, 1) for column in columns
    ]


def _line(
    values: Sequence[str],
    widths: Sequence[int],
    columns: Sequence[_Column],
    *,
    at_bottom: bool = False,
) -> list[str]:
    """Return the lines of one row; cells that are too long go on in the next line.

    At the left, where a line begins, they go on indented, as in a paragraph.
    """
    parts = [
        textwrap.wrap(value, size, break_on_hyphens=False, subsequent_indent="" if column else "  ")
        for column, (value, size) in enumerate(zip(values, widths, strict=True))
    ]
    height = max(map(len, parts))
    lines = []
    for number in range(height):
        row = []
        for part, size, column in zip(parts, widths, columns, strict=True):
            at = number - (height - len(part)) if at_bottom else number
            text = part[at] if 0 <= at < len(part) else ""
            row.append(text.ljust(size) if column.is_left else text.rjust(size))
        lines.append((" " * _BETWEEN).join(row).rstrip())
    return lines
