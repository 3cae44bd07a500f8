"""The patterns and marks of a timeline as data: Plotly, the PNG and the canvas draw these."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict, dataclass
from typing import TypeAlias

import numpy as np

from gpuscope._types import Array
from gpuscope.timeline import style
from gpuscope.timeline.style import Properties

_Point: TypeAlias = tuple[float, float]

CELL = 6
"""Px of the square that a pattern repeats."""
TINT = 0.18
"""How much of the colour is between the strokes of a part of a call."""


@dataclass(frozen=True)
class Hatch:
    """A pattern.

    Attributes
    ----------
    strokes
        Lines through points in the square, in px; y points down.
    width
        Of the strokes, px.
    shape
        The one of Plotly's that is closest.
    size, solidity
        Plotly's.
    """

    strokes: tuple[tuple[_Point, ...], ...]
    width: float
    shape: str
    size: int = CELL
    solidity: float = 0.35

    def mask(self, tint: float) -> Array:
        """Return how much of the colour each pixel of the square has: ``tint`` to 1."""
        y, x = np.mgrid[0:CELL, 0:CELL] + 0.5
        covered = np.full((CELL, CELL), float(tint))
        for stroke in self.strokes:
            for (x0, y0), (x1, y1) in itertools.pairwise(stroke):
                dx, dy = x1 - x0, y1 - y0
                along = ((x - x0) * dx + (y - y0) * dy) / (dx * dx + dy * dy)
                along = np.clip(along, 0, 1)
                away = np.hypot(x - x0 - along * dx, y - y0 - along * dy)
                np.maximum(covered, np.clip((self.width + 1) / 2 - away, 0, 1), out=covered)
        return covered

    def plotly(self) -> Properties:
        """Return it as Plotly takes it."""
        return {"shape": self.shape, "size": self.size, "solidity": self.solidity}


_UP, _DOWN = ((-1.0, 7.0), (7.0, -1.0)), ((-1.0, -1.0), (7.0, 7.0))
_ACROSS, _UPRIGHT = ((0.0, 3.0), (6.0, 3.0)), ((3.0, 0.0), (3.0, 6.0))
_CIRCLE = tuple(
    (round(3 + 1.8 * math.cos(turn), 2), round(3 + 1.8 * math.sin(turn), 2))
    for turn in np.linspace(0, 2 * math.pi, 17).tolist()
)

HATCHES = {
    "-": Hatch((_ACROSS,), 2, "-"),
    ".": Hatch((((2.0, 3.0), (4.0, 3.0)),), 2, "."),
    "/": Hatch((_UP,), 2, "/"),
    "\\": Hatch((_DOWN,), 2, "\\"),
    "x": Hatch((_UP, _DOWN), 2, "x"),
    "o": Hatch((_CIRCLE,), 1, ".", size=9, solidity=0.5),
    "+": Hatch((_ACROSS, _UPRIGHT), 2, "+"),
    "|": Hatch((_UPRIGHT,), 2, "|"),
}
"""Patterns in the order of a legend."""
ESCAPED = Hatch((_UP, _DOWN), 1.2, "x", solidity=0.2)
"""Of what ran outside its partition: its strokes are in the colour of text."""


@dataclass(frozen=True)
class MarkLook:
    """A mark above a row.

    Attributes
    ----------
    symbol
        Plotly's.
    corners
        Around its centre, from -1 to 1; y points down.
    """

    symbol: str
    corners: tuple[_Point, ...]


MARKS = {
    "escape": MarkLook("triangle-down", ((-1, -1), (1, -1), (0, 1))),
    "hazard": MarkLook("diamond", ((-1, 0), (0, -1), (1, 0), (0, 1))),
}


def for_pages() -> Properties:
    """Return what the canvas draws by."""
    return {
        "cell": CELL,
        "tint": TINT,
        "ink": style.INK,
        "hatches": {name: asdict(hatch) for name, hatch in HATCHES.items()},
        "escaped": asdict(ESCAPED),
        "marks": {name: mark.corners for name, mark in MARKS.items()},
    }
