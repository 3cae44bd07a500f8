"""How results show themselves: rows for machines, a table for notebooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuscope._text import shown


def format_value(value: Any) -> str:
    """Write one value for people: a dash for nothing, four digits for a float."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


@dataclass(frozen=True, kw_only=True)
class Result:
    """Base of results: subclasses say their rows and a line about them.

    Attributes
    ----------
    incomplete
        How many rows of the trace are missing and why
        (:attr:`gpuscope.trace.model.TraceMetadata.incomplete`); empty if none is.
    """

    incomplete: str = ""

    def rows(self) -> list[dict[str, Any]]:
        """Return one dict per row, with units in the names; each says what is incomplete."""
        if not self.incomplete:
            return self._rows()
        return [
            {**row, "incomplete": row.get("incomplete", self.incomplete)} for row in self._rows()
        ]

    def _rows(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    @property
    def note(self) -> str:
        """What the rows rest on, in one line; empty if there is nothing to say."""
        return self.incomplete

    def _repr_html_(self) -> str:
        rows = self._rows()
        note = f"<p>{shown(self.note)}</p>" if self.note else ""
        if not rows:
            return f"{note}<p>no rows</p>"
        head = "".join(f"<th>{shown(name)}</th>" for name in rows[0])
        body = "".join(
            "<tr>" + "".join(f"<td>{shown(format_value(v))}</td>" for v in row.values()) + "</tr>"
            for row in rows
        )
        return f"{note}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
