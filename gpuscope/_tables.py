"""Tables of foreign text, for a terminal and for a notebook."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from gpuscope._text import clean, format_value, shown

if TYPE_CHECKING:  # a few ten ms that only who prints a table waits for
    from rich.table import Table

Rows: TypeAlias = Sequence[Mapping[str, object]]
"""Rows of a table: column → value."""


class Printer(Protocol):
    """IPython's, which shows results in a terminal by their ``_repr_pretty_``."""

    def text(self, text: str) -> None:
        """Write text."""


_BETWEEN = 2
"""Blanks between columns."""


def is_text(rows: Rows, column: str) -> bool:
    """Whether a column stands left: texts do, numbers stand right."""
    return any(isinstance(row[column], str) for row in rows)


def html_table(columns: Sequence[str], rows: Rows) -> str:
    """Return rows as a table for HTML in a notebook."""
    left = {name for name in columns if is_text(rows, name)}

    def cell(tag: str, name: str, value: object) -> str:
        style = ' style="text-align:left"' if name in left else ""
        return f"<{tag}{style}>{shown(format_value(value))}</{tag}>"

    head = "".join(cell("th", name, name) for name in columns)
    body = "".join(
        "<tr>" + "".join(cell("td", name, row[name]) for name in columns) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def terminal_table(
    columns: Sequence[str],
    rows: Rows,
    width: int,
    *,
    title: str = "",
    unbroken: Container[str] = (),
) -> Table:
    """Return rows as a table for a terminal: a line each, or a block each if that is too narrow.

    Words and numbers are not broken, unless a single one is longer than a third of the terminal.

    Parameters
    ----------
    width
        Of the terminal, in characters.
    unbroken
        Columns of text whose cells are not broken at spaces either.
    """
    from rich import box  # noqa: PLC0415 - see the top
    from rich.table import Table  # noqa: PLC0415 - see the top
    from rich.text import Text  # noqa: PLC0415 - see the top

    table = Table(
        title=title or None, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False,
        pad_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    heads = [clean(name) for name in columns]
    cells = [[clean(format_value(row[name])) for row in rows] for name in columns]
    left = [is_text(rows, name) for name in columns]
    whole = [name in unbroken or not text for name, text in zip(columns, left, strict=True)]
    widths = _widths(heads, cells, whole, width - _BETWEEN * (len(columns) - 1))
    if widths is None:
        table.show_header = False
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for values in zip(*cells, strict=True):
            for head, value in zip(heads, values, strict=True):
                table.add_row(Text(head), Text(value))
            table.add_section()
        return table
    for head, text, size in zip(heads, left, widths, strict=True):
        justify: Literal["left", "right"] = "left" if text else "right"
        table.add_column(Text(head), justify=justify, overflow="fold", width=size)
    for values in zip(*cells, strict=True):
        table.add_row(*map(Text, values))
    return table


def _widths(
    heads: Sequence[str], cells: Sequence[Sequence[str]], whole: Sequence[bool], width: int
) -> list[int] | None:
    """Return how wide columns are to be, ``None`` if they do not fit with their words whole."""
    want, least = [], []
    for head, values, unbroken in zip(heads, cells, whole, strict=True):
        parts = values if unbroken else [word for value in values for word in value.split()]
        longest = max(map(len, [*head.split(), *parts]), default=1)
        least.append(longest if unbroken else min(longest, max(8, width // 3)))
        want.append(max(map(len, [head, *values])))
    if sum(want) <= width:
        return want
    room, more = width - sum(least), sum(want) - sum(least)
    if room < 0:
        return None
    return [low + room * (high - low) // more for low, high in zip(least, want, strict=True)]


def paragraph(text: object, width: int) -> str:
    """Return foreign text broken between words, indented from its second line on.

    So that no part of it looks like a line of ours.
    """
    return textwrap.fill(clean(text), width, subsequent_indent="  ", break_on_hyphens=False)


def text_table(columns: Sequence[str], rows: Rows, notes: Sequence[str] = ()) -> str:
    """Return rows as text as wide as the terminal, with notes below; without colours."""
    from rich.console import Console  # noqa: PLC0415 - see the top
    from rich.text import Text  # noqa: PLC0415 - see the top

    written = io.StringIO()
    # Not what shows itself in a notebook, as Rich would there.
    out = Console(
        file=written, force_jupyter=False, color_system=None, markup=False, highlight=False,
        emoji=False,
    )  # fmt: skip
    if rows:
        out.print(terminal_table(columns, rows, out.width))
        out.print()
    for note in filter(None, notes):
        out.print(Text(paragraph(note, out.width)))
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines()).strip("\n")
