"""How results show themselves: rows for machines, a table for notebooks."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import (
    Annotated,
    Any,
    ClassVar,
    TypeAlias,
    TypedDict,
    TypeVar,
    get_origin,
    get_type_hints,
)

from gpuscope._checks import door, given
from gpuscope._tables import Printer, text_table, wide_table
from gpuscope._text import shown
from gpuscope.errors import NotFound
from gpuscope.trace.model import Trace

Row: TypeAlias = dict[str, Any]
"""A row of a result: column → text, number or ``None``."""
_Item = TypeVar("_Item")
_NAMED = 20
_UNITS = {"(µs)": 1e3, "(ms)": 1e6}
P99_NEEDS = 1000
"""Samples below which no p99 is stated."""
SHOWN = 100
"""Rows of a result that a page, a notebook or a terminal shows."""


@cache
def _columns(kind: type) -> dict[str, tuple[str, float | None]]:
    """Return field → column and how many ns its unit has, of fields annotated with a column."""
    return {
        name: (hint.__metadata__[0], _UNITS.get(hint.__metadata__[0][-4:]))
        for name, hint in get_type_hints(kind, include_extras=True).items()
        if get_origin(hint) is Annotated
    }


def row_of(item: object) -> Row:
    """Return the row of an item: a column for each field that is ``Annotated[type, column]``.

    Such fields hold ns where the column's name ends with another unit of time.
    """
    row = {}
    kind: type = type(item)
    for name, (column, unit_ns) in _columns(kind).items():
        value = getattr(item, name)
        row[column] = value if unit_ns is None or value is None else value / unit_ns
    return row


def named(items: Sequence[_Item], name: str, what: str, attribute: str = "name") -> _Item:
    """Return the item of a name; :class:`NotFound` says which there are."""
    names = [getattr(item, attribute) for item in items]
    if name in names:
        return items[names.index(name)]
    raise NotFound(f"no {what} {given(name)}; there are {names[:_NAMED]}")


def sentences(*parts: str) -> str:
    """Return what is said of a result in one line; parts may be empty, and end without a stop."""
    return ". ".join(filter(None, parts))


class About(TypedDict):
    """What every result says of the trace that it was worked out from."""

    incomplete: str
    provenance: str
    is_simulated: bool


def about(trace: Trace) -> About:
    """Return what a result says of the trace that it was worked out from."""
    return {
        "incomplete": trace.metadata.incomplete,
        "provenance": trace.provenance,
        "is_simulated": trace.is_simulated,
    }


def about_several(traces: Iterable[Trace]) -> About:
    """Return the same of a result that was worked out from several."""
    every = [about(trace) for trace in traces]
    texts = [[facts[name] for facts in every] for name in ("incomplete", "provenance")]
    incomplete, provenance = ("; ".join(dict.fromkeys(filter(None, text))) for text in texts)
    is_simulated = any(facts["is_simulated"] for facts in every)
    return {"incomplete": incomplete, "provenance": provenance, "is_simulated": is_simulated}


@dataclass(frozen=True, kw_only=True)
class Result:
    """Base of results: rows of the fields that are ``Annotated`` with a column, and a definition.

    Attributes
    ----------
    incomplete
        How many rows of the trace are missing and why
        (:attr:`gpuscope.trace.metadata.TraceMetadata.incomplete`); empty if none is.
    provenance
        Where the times come from.
    is_simulated
        Whether a model of a GPU computed any of them.
    """

    incomplete: str = ""
    provenance: str = ""
    is_simulated: bool = False
    entries: ClassVar[str] = ""
    """The attribute that has an item a row; empty where the result is its own only row."""
    weight: ClassVar[str] = ""
    """The column by which rows are chosen where there are too many to be read."""
    __iter__ = None
    """Items have names: Python would otherwise ask for item 0. Iterate over :meth:`rows`."""

    def __init_subclass__(cls) -> None:
        # IPython prefers the __repr__ that a dataclass has of its own to what it inherits.
        cls._repr_pretty_ = Result._repr_pretty_  # type: ignore[method-assign]

    def rows(self) -> list[Row]:
        """Return one dict per row, with units in the names; each says what is incomplete."""
        if not self.incomplete:
            return self._rows()
        return [
            {**row, "incomplete": row.get("incomplete", self.incomplete)} for row in self._rows()
        ]

    @property
    def is_empty(self) -> bool:
        """Whether there is no row."""
        return not self.rows()

    def _rows(self) -> list[Row]:
        """One row per entry."""
        return [
            row_of(entry) for entry in (getattr(self, self.entries) if self.entries else [self])
        ]

    @door(number=int)
    def most(self, number: int = SHOWN) -> tuple[list[Row], str]:
        """Return as many rows as can be read, in their order, and in words what is left out.

        Of more rows those with the greatest :attr:`weight`, or the first where there is none.
        The words are empty where nothing is left out.
        """
        return self._most(self.rows(), number)

    def _most(self, rows: list[Row], number: int = SHOWN) -> tuple[list[Row], str]:
        if len(rows) <= number:
            return rows, self._left_out
        which, taken = "the first", list(range(number))
        if self.weight:
            which = f"those with most {self.weight}"
            # Nothing is less than any number.
            keys = [(row[self.weight] is not None, row[self.weight] or 0) for row in rows]
            taken = sorted(heapq.nlargest(number, range(len(rows)), key=keys.__getitem__))
        shown_of = f"{number:,} of {len(rows):,} rows, {which}; rows() of the result has all"
        return [rows[index] for index in taken], "; ".join(filter(None, [shown_of, self._left_out]))

    @property
    def _left_out(self) -> str:
        """What not even the rows have."""
        return ""

    @property
    def definition(self) -> str:
        """What the rows mean, and what to know before trusting them; empty if that is plain."""
        return ""

    @property
    def note(self) -> str:
        """Definition and provenance in one line; empty if there is nothing to say."""
        return sentences(self.definition, self.provenance) or self.incomplete

    def readable(self) -> tuple[list[Row], str]:
        """Return the rows that a table shows, and what is left out of it in words."""
        return self._most(self._rows())

    def __str__(self) -> str:
        rows, left_out = self.readable()
        return text_table(list(rows[0]) if rows else (), rows, [left_out, self.note or "no rows"])

    def _repr_pretty_(self, printer: Printer, _cycle: object) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        rows, left_out = self.readable()
        note = f"<p>{shown(self.note)}</p>" if self.note else ""
        if not rows:
            return f"{note}<p>no rows</p>"
        note += f"<p>{shown(left_out)}</p>" if left_out else ""
        return note + wide_table(rows)
