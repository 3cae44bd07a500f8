"""Colours of a plot in light and dark themes; the background is the page's."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.figures import style
from gpuscope.figures.style import Properties


@dataclass(frozen=True)
class Theme:
    """Colours that have to differ from the paper."""

    ink: str
    muted: str
    grid: str
    paper: str

    def layout(self) -> Properties:
        """Return them as properties of a layout."""
        axis = {"gridcolor": self.grid, "linecolor": self.muted, "tickcolor": self.muted}
        return {
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font.color": self.ink,
            "title.subtitle.font.color": self.muted,
            "hoverlabel.bgcolor": self.paper,
            "hoverlabel.font.color": self.ink,
            "modebar.color": self.muted,
            "modebar.activecolor": self.ink,
            "modebar.bgcolor": "rgba(0,0,0,0)",
            **{f"xaxis.{name}": colour for name, colour in axis.items()},
        }


STRIPE = "rgba(128,128,128,0.09)"
"""Behind every second track, on either paper."""
LIGHT = Theme(style.INK, style.MUTED, "rgba(27,31,36,0.1)", "#FFFFFF")
DARK = Theme("#E6EAEE", "#A9B3BD", "rgba(230,234,238,0.14)", "#1C2128")
