"""Tables of foreign text, for a terminal and for a notebook."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Container, Mapping, Sequence
from typing import Protocol, TypeAlias

from gpuscope._text import clean, format_value, shown

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


def paragraph(text: object, width: int) -> str:
    """Return foreign text broken between words, indented from its second line on.

    So that no part of it looks like a line of ours.
    """
    return textwrap.fill(clean(text), width, subsequent_indent="  ", break_on_hyphens=False)


def text_table(
    columns: Sequence[str], rows: Rows, notes: Sequence[str] = (), *, unbroken: Container[str] = ()
) -> str:
    """Return rows as text as wide as the terminal: a line each, or a block each if it is narrow.

    Words and numbers are not broken, unless a single one is longer than a third of the terminal.

    Parameters
    ----------
    notes
        Paragraphs below the table.
    unbroken
        Columns of text whose cells are not broken at spaces either.
    """
    width = max(_NARROWEST, shutil.get_terminal_size().columns)
    heads = [clean(name) for name in columns]
    cells = [[clean(format_value(row[name])) for row in rows] for name in columns]
    left = [is_text(rows, name) for name in columns]
    whole = [name in unbroken or not text for name, text in zip(columns, left, strict=True)]
    widths = _widths(heads, cells, whole, width - _BETWEEN * (len(columns) - 1))
    lines: list[str] = []
    if widths is None:
        names = min(max(map(len, heads)), width // 2)
        for values in zip(*cells, strict=True):
            for head, value in zip(heads, values, strict=True):
                lines += _line([head, value], [names, width - names - _BETWEEN], [True, True])
            lines.append("")
    elif rows:
        lines = _line(heads, widths, left, at_bottom=True)
        lines.append("─" * (sum(widths) + _BETWEEN * (len(widths) - 1)))
        for values in zip(*cells, strict=True):
            lines += _line(values, widths, left)
        lines.append("")
    lines += [paragraph(note, width) for note in notes if note]
    return "\n".join(lines).rstrip("\n")


def _line(
    values: Sequence[str], widths: Sequence[int], left: Sequence[bool], *, at_bottom: bool = False
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
        for part, size, is_left in zip(parts, widths, left, strict=True):
            at = number - (height - len(part)) if at_bottom else number
            text = part[at] if 0 <= at < len(part) else ""
            row.append(text.ljust(size) if is_left else text.rjust(size))
        lines.append((" " * _BETWEEN).join(row).rstrip())
    return lines


def _widths(
    heads: Sequence[str], cells: Sequence[Sequence[str]], whole: Sequence[bool], width: int
) -> list[int] | None:
    """Return how wide columns are to be, ``None`` if they do not fit with their words whole."""
    want, least = [], []
    for head, values, unbroken in zip(heads, cells, whole, strict=True):
        parts = values if unbroken else [word for value in values for word in value.split()]
        longest = max([1, *map(len, [*head.split(), *parts])])
        least.append(longest if unbroken else min(longest, max(8, width // 3)))
        want.append(max([1, *map(len, [head, *values])]))
    if sum(want) <= width:
        return want
    room, more = width - sum(least), sum(want) - sum(least)
    if room < 0:
        return None
    return [low + room * (high - low) // more for low, high in zip(least, want, strict=True)]
