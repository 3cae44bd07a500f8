"""SMs in columns of time as Plotly draws them: a map, and a picture below timelines."""

from __future__ import annotations

import base64
import io

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from gpuscope._checks import SeveralOf, door
from gpuscope._types import Array
from gpuscope.analysis.escapes import partitions_by_sm
from gpuscope.analysis.intervals import by_workload
from gpuscope.errors import InvalidArgument
from gpuscope.timeline import style
from gpuscope.timeline.labels import partition_label
from gpuscope.timeline.plotly_parts import mark_look
from gpuscope.timeline.sms import Blocks, Cells, HeldIndex
from gpuscope.timeline.style import Properties
from gpuscope.timeline.text import axis_unit, duration, escape, notes_of, stated
from gpuscope.timeline.themed import ThemedFigure
from gpuscope.timeline.words import OUTSIDE
from gpuscope.trace.model import Trace

_SHADES, _PALEST, _STRONGEST = 10, 0.2, 0.85
_TICK_PX = 17
"""So far apart are ticks at least."""
_ROWS = 2
"""Rows of the picture an SM."""
ON_SM_AXIS: Properties = {
    "type": "scatter",
    "x": [None],
    "y": [None],
    "yaxis": "y2",
    "showlegend": False,
    "hoverinfo": "skip",
}
"""A trace for :func:`sm_axis`: without one, Plotly leaves out the axis, and with one it stays."""


def sm_image(cells: Cells, colours: list[str], zero_ns: int, unit_ns: float) -> Properties:
    """Return cells as a layout image on the axis of :func:`sm_axis`, under what else is there.

    Parameters
    ----------
    colours
        Of each owner, as of :meth:`~gpuscope.timeline.sms.Blocks.colours`.
    """
    palette = list(dict.fromkeys(colours))
    # 0 is empty, else a colour's first number and the shade, from 1 on.
    first = np.array([*(palette.index(name) * _SHADES for name in colours), 0])[cells.owner]
    shade = np.where(cells.escaped, _SHADES, np.clip(np.ceil(cells.share * _SHADES), 1, _SHADES))
    pixels = np.where(cells.owner >= 0, first + shade, 0).astype(np.uint8)
    image = Image.fromarray(np.repeat(pixels, _ROWS, axis=0))
    image.putpalette(b"\0\0\0" + b"".join(bytes.fromhex(name[1:]) * _SHADES for name in palette))
    alphas = np.linspace(255 * _PALEST, 255 * _STRONGEST, _SHADES).astype(np.uint8).tobytes()
    file = io.BytesIO()
    # More compression takes eight times as long and saves a fifth.
    image.save(file, "PNG", transparency=b"\0" + alphas * len(palette), compress_level=1)
    low, high = cells.window_ns
    return {
        "source": "data:image/png;base64," + base64.b64encode(file.getvalue()).decode(),
        "xref": "x",
        "x": (low - zero_ns) / unit_ns,
        "sizex": (high - low) / unit_ns,
        "xanchor": "left",
        "yref": "y2",
        "y": 0,
        "sizey": len(pixels),
        "yanchor": "top",
        "sizing": "stretch",
        "layer": "below",
    }


def sm_axis(count: int, height_px: float) -> Properties:
    """Return a vertical axis for SMs, the first on top, each 1 high."""
    step = 1
    while step * height_px < _TICK_PX * count:
        step *= 2
    ids = list(range(0, count, step))
    return style.label_axis(
        [sm + 0.5 for sm in ids],
        [str(sm) for sm in ids],
        range=[count, 0],
        title=style.titled("SM id"),
        tickfont={"size": 12},
        ticklabelstandoff=None,
        anchor="x",
    )


_NAMED = 3
_FAINTEST = 0.25


@door(trace=Trace, bins=int, window_ns=(SeveralOf(int, 2), None), device=(int, None))
def sm_map(
    trace: Trace,
    *,
    bins: int = 300,
    window_ns: tuple[int, int] | None = None,
    device: int | None = None,
) -> go.Figure:
    """Draw the SMs of a GPU over time: which were busy, and with blocks of which partition.

    A cell is one SM in one time bin. Its colour is the partition whose blocks held the SM
    longest, its intensity the share of the bin in which any block held the SM. The strip on the
    left shows the partition that owns each SM. The size of the figure depends on bins, SMs and
    partitions, not on the number of blocks.

    Parameters
    ----------
    bins
        Bins of time, at least 1.
    window_ns
        Start and end on the trace's clock. Default: first start to last end of the blocks.
    device
        Index of the device. Default: the one with the most blocks.

    Raises
    ------
    MissingEvidence
        The trace holds no finished thread block whose SM is known, on that device.
    ValueError
        The window is empty or ``bins`` is below 1.

    Examples
    --------
    >>> import gpuscope as gs
    >>> from gpuscope.trace import Trace
    >>> trace = Trace.from_columns({
    ...     "id": [1, 2], "kind": ["block", "block"], "name": ["k", "k"], "sm": [0, 3],
    ...     "start_ns": [0, 50], "end_ns": [100, 150], "source": ["blocks", "blocks"],
    ... })
    >>> figure = gs.figures.sm_map(trace, bins=3)
    >>> figure.data[0].z[0].tolist()  # SM 0 is held in the first two of three bins
    [1.0, 1.0, nan]
    """
    if bins < 1:
        raise InvalidArgument(f"bins is at least 1, not {bins}")
    blocks = Blocks(trace, device)
    low, high = window_ns or (int(blocks.starts.min()), int(blocks.ends.max()))
    high = max(high, low + 1) if window_ns is None else high
    if low >= high:
        raise InvalidArgument(f"the window ends at {high} ns, not after its start at {low} ns")
    cells = HeldIndex(blocks).cells((low, high), bins)
    bins = cells.share.shape[1]
    share = cells.share.astype(np.float32)
    unit, unit_ns = axis_unit(high - low)
    colours = style.partition_colours(
        [trace], [partition for partition in blocks.partitions if partition is not None]
    )
    maps = [
        _cells(trace, blocks, index, np.where(cells.owner == index, share, np.nan), colours)
        for index in range(len(blocks.partitions))
        if (cells.owner == index).any()
    ]
    step = (high - low) / bins / unit_ns
    escaped = np.asarray(cells.escaped.any(axis=0))
    first = np.flatnonzero(escaped & ~np.r_[False, escaped[:-1]])
    at = {"x": (first + 0.5) * step, "y": [-0.5] * len(first)}
    marks = [go.Scatter(**at, **mark_look("escape"))] if len(first) else []
    for cell in maps:
        cell.update(
            x0=step / 2,
            dx=step,
            hovertemplate=f"<b>SM %{{y}}</b>, at %{{x:,.4~r}} {unit}<br>busy for %{{z:.1%}} of a "
            f"bin of {duration((high - low) / bins)}<br>most of it: %{{meta}}<extra></extra>",
        )
    strip = _strip(trace, blocks, colours)
    suffix, notes = stated({"": trace})
    notes += notes_of(_statement(blocks, bins, low, high))
    layout = style.base_layout(
        f"Thread blocks by SM{suffix}",
        notes,
        min(max(blocks.height * 4, 240), 900),
        legend_rows=1,
        xaxis=style.x_axis(
            f"time since the window's start ({unit})",
            range=[0, (high - low) / unit_ns],
            domain=[0.03, 1] if strip else [0, 1],
            showgrid=False,
        ),
        yaxis=style.y_axis(
            "SM id",
            range=[blocks.height - 0.5, -0.5],
            anchor="x2" if strip else "x",
            nticks=18,
            showgrid=False,
            ticks="outside",
            tickcolor=style.MUTED,
        ),
        xaxis2={"domain": [0, 0.022], "visible": False, "fixedrange": True},
    )
    return ThemedFigure(data=[*strip, *maps, *marks], layout=layout)


def _cells(
    trace: Trace, blocks: Blocks, index: int, share: Array, colours: dict[str, str]
) -> go.Heatmap:
    """Return the cells of one partition; SMs between those that it held are one empty row."""
    partition = blocks.partitions[index]
    colour = blocks.colours(colours)[index]
    used_sms = np.flatnonzero(~np.isnan(share).all(axis=1))
    edges = np.unique(np.r_[used_sms, used_sms + 1])
    rows = np.where(np.isin(edges[:-1], used_sms)[:, None], share[edges[:-1]], np.nan)
    label, faintest = escape(partition_label(trace, partition)), _FAINTEST
    if blocks.escaped[index]:
        label, faintest = f"<b>{OUTSIDE}</b> to {label}", 1
    return go.Heatmap(
        z=rows,
        y=edges - 0.5,
        zmin=0,
        zmax=1,
        colorscale=[[0, style.tinted(colour, faintest)], [1, colour]],
        showscale=False,
        showlegend=True,
        name=label,
        meta=f"{label}<br>its blocks: {_workloads(trace, blocks, index)}",
        hoverongaps=False,
    )


def _workloads(trace: Trace, blocks: Blocks, index: int) -> str:
    """Name what kept a partition busy, the longest first."""
    ours = blocks.owner == index
    groups = by_workload(trace)
    workload = groups.code[blocks.rows[ours]]
    lasted = np.bincount(workload, (blocks.ends - blocks.starts)[ours] + 1, len(groups))
    longest = np.argsort(-lasted, kind="stable")[: np.count_nonzero(lasted)]
    names = [escape(groups.labels[number], 40) for number in longest]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _strip(trace: Trace, blocks: Blocks, colours: dict[str, str]) -> list[go.Heatmap]:
    """Return the strip that says who owns each SM; nothing where no SM ids are known."""
    by_sm = partitions_by_sm(trace, blocks.device)
    owners = [by_sm.get(sm, []) for sm in range(blocks.height)]
    if not any(owners):
        return []
    names = list(colours)
    steps = [
        [edge / len(names), colour]
        for index, colour in enumerate(colours.values())
        for edge in (index, index + 1)
    ]
    return [
        go.Heatmap(
            z=[[names.index(of_sm[0]) + 0.5 if of_sm else None] for of_sm in owners],
            zmin=0,
            zmax=len(names),
            colorscale=steps,
            showscale=False,
            xaxis="x2",
            hovertext=[
                [f"SM {sm} belongs to {' and '.join(escape(name, 40) for name in of_sm)}"]
                for sm, of_sm in enumerate(owners)
            ],
            hoverinfo="text",
            hoverongaps=False,
        )
    ]


def _statement(blocks: Blocks, bins: int, low: int, high: int) -> str:
    """Say in plain text what is drawn and how to read it."""
    inside = int(np.count_nonzero((blocks.ends > low) & (blocks.starts < high)))
    left = {**blocks.left_out, "outside the window": len(blocks.rows) - inside}
    parts = [
        f"{inside:,} blocks in {bins:,} bins of {duration((high - low) / bins)}",
        "colour: the partition whose blocks held the SM longest in a cell",
        "paler: held for less of it",
        *([f"{OUTSIDE}: any block outside its partition"] if blocks.escaped.any() else []),
        "strip on the left: whose SM it is",
        *(f"{count:,} blocks {why} not drawn" for why, count in left.items() if count),
    ]
    return "; ".join(parts)
