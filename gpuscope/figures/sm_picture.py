"""The SMs under a timeline, on its time axis: which were held when, and by whose blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuscope.figures import style
from gpuscope.figures.coverage import SHADES, layout_image, png
from gpuscope.figures.sm_blocks import Cells, HeldIndex
from gpuscope.figures.style import Properties
from gpuscope.figures.view import PIXELS

HEIGHT = 264
_GAP = 24
_TICKS = 8
_ROWS = 2
"""Rows of the picture an SM."""


@dataclass(frozen=True)
class Below:
    """What a figure of tracks gets under it.

    Attributes
    ----------
    image, trace, axis, note
        The picture; a trace without points, as Plotly leaves out axes that have none; the
        vertical axis ``y2``; how to read it.
    above
        Domain of the tracks' vertical axis.
    height
        Px of both.
    """

    image: Properties
    trace: Properties
    axis: Properties
    note: str
    above: tuple[float, float]
    height: float


def sms_below(
    held: HeldIndex,
    window_ns: tuple[int, int],
    colours: dict[str, str],
    height: float,
    *,
    zero_ns: int,
    unit_ns: float,
) -> Below:
    """Return what goes under tracks of a certain height."""
    owners = [
        style.WHOLE_GPU_COLOUR if name is None else colours[name] for name in held.blocks.partitions
    ]
    whole = height + _GAP + HEIGHT
    return Below(
        sm_image(held.cells(window_ns, PIXELS), owners, zero_ns, unit_ns),
        {
            "type": "scatter", "x": [None], "y": [None], "yaxis": "y2", "showlegend": False,
            "hoverinfo": "skip",
        },
        {**sm_axis(held.blocks.height), "domain": (0, HEIGHT / whole)},
        "SMs: the colour of the partition whose thread blocks held one longest, the stronger "
        "the longer any did",
        (1 - height / whole, 1),
        whole,
    )  # fmt: skip


def sm_image(cells: Cells, colours: list[str], zero_ns: int, unit_ns: float) -> Properties:
    """Return cells as a layout image on the axis of :func:`sm_axis`.

    Parameters
    ----------
    colours
        Of each partition of the blocks.
    """
    palette = list(dict.fromkeys(colours))
    first = np.array([*(palette.index(name) * SHADES for name in colours), 0])[cells.owner]
    shade = np.clip(np.ceil(cells.share * SHADES), 1, SHADES)
    pixels = np.where(cells.owner >= 0, first + shade, 0).astype(np.uint8)
    return layout_image(
        png(np.repeat(pixels, _ROWS, axis=0), palette),
        x=(cells.origin_ns - zero_ns) / unit_ns,
        length=pixels.shape[1] * cells.column_ns / unit_ns,
        height=len(pixels),
        axis="2",
    )


def sm_axis(count: int) -> Properties:
    """Return a vertical axis for SMs, the first on top, each 1 high."""
    ids = list(range(0, count, max(1, count // _TICKS)))
    return {
        "range": [count, 0],
        "title": style.titled("SM id"),
        "tickmode": "array",
        "tickvals": [sm + 0.5 for sm in ids],
        "ticktext": [str(sm) for sm in ids],
        "tickfont": {"size": 12},
        "showgrid": False,
        "zeroline": False,
        "automargin": True,
        "fixedrange": True,
        "anchor": "x",
    }
