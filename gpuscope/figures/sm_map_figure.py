"""Which SMs were busy when, and with whose thread blocks."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from gpuscope._checks import door
from gpuscope._types import Array
from gpuscope.analysis.escapes import partitions_by_sm
from gpuscope.analysis.intervals import by_workload
from gpuscope.errors import InvalidArgument
from gpuscope.figures import style
from gpuscope.figures.labels import partition_label
from gpuscope.figures.sm_blocks import Blocks, HeldIndex
from gpuscope.figures.text import (
    axis_unit,
    duration,
    escape,
    provenance_lines,
    title_suffix,
    wrapped,
)
from gpuscope.trace.model import Trace

_NAMED = 3
_FAINTEST = 0.25


@door(trace=Trace, bins=int, window_ns=(tuple, None), device=(int, None))
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
    bins = min(bins, high - low)
    edges = low + (high - low) * np.arange(bins + 1) // bins
    *by_owner, busy_ns = HeldIndex(blocks).held_ns(edges)
    most = np.where(busy_ns > 0, np.argmax(by_owner, axis=0), -1)
    share = (busy_ns / np.diff(edges)).astype(np.float32)
    unit, unit_ns = axis_unit(high - low)
    colours = style.partition_colours(
        [trace], [partition for partition in blocks.partitions if partition is not None]
    )
    cells = [
        _cells(trace, blocks, index, np.where(most == index, share, np.nan), colours)
        for index in range(len(blocks.partitions))
        if (most == index).any()
    ]
    step = (high - low) / bins / unit_ns
    for cell in cells:
        cell.update(
            x0=step / 2,
            dx=step,
            hovertemplate=f"<b>SM %{{y}}</b>, at %{{x:,.4~r}} {unit}<br>busy for %{{z:.1%}} of a "
            f"bin of {duration((high - low) / bins)}<br>most of it: %{{meta}}<extra></extra>",
        )
    strip = _strip(trace, blocks.height, colours)
    notes = provenance_lines({"": trace})
    notes += [escape(line) for line in wrapped(_statement(blocks, edges, low, high))]
    layout = style.base_layout(
        f"Thread blocks by SM{title_suffix([trace])}",
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
    return go.Figure(data=[*strip, *cells], layout=layout)


def _cells(
    trace: Trace, blocks: Blocks, index: int, share: Array, colours: dict[str, str]
) -> go.Heatmap:
    """Return the cells of one partition; SMs between those that it held are one empty row."""
    partition = blocks.partitions[index]
    colour = style.WHOLE_GPU_COLOUR if partition is None else colours[partition]
    held = np.flatnonzero(~np.isnan(share).all(axis=1))
    edges = np.unique(np.r_[held, held + 1])
    rows = np.where(np.isin(edges[:-1], held)[:, None], share[edges[:-1]], np.nan)
    label = partition_label(trace, partition)
    return go.Heatmap(
        z=rows,
        y=edges - 0.5,
        zmin=0,
        zmax=1,
        colorscale=[[0, style.tinted(colour, _FAINTEST)], [1, colour]],
        showscale=False,
        showlegend=True,
        name=escape(label),
        meta=f"{escape(label)}<br>its blocks: {_workloads(trace, blocks, index)}",
        hoverongaps=False,
    )


def _workloads(trace: Trace, blocks: Blocks, index: int) -> str:
    """Name what kept a partition busy, the longest first."""
    mine = blocks.partition == index
    groups = by_workload(trace)
    own = groups.code[blocks.rows[mine]]
    lasted = np.bincount(own, (blocks.ends - blocks.starts)[mine] + 1, len(groups))
    longest = np.argsort(-lasted, kind="stable")[: np.count_nonzero(lasted)]
    said = [escape(groups.labels[number], 40) for number in longest]
    more = f" and {len(said) - _NAMED} more" if len(said) > _NAMED else ""
    return ", ".join(said[:_NAMED]) + more


def _strip(trace: Trace, height: int, colours: dict[str, str]) -> list[go.Heatmap]:
    """Return the strip that says who owns each SM; nothing where no SM ids are known."""
    by_sm = partitions_by_sm(trace)
    owners = [by_sm.get(sm, []) for sm in range(height)]
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
            z=[[names.index(mine[0]) + 0.5 if mine else None] for mine in owners],
            zmin=0,
            zmax=len(names),
            colorscale=steps,
            showscale=False,
            xaxis="x2",
            hovertext=[
                [f"SM {sm} belongs to {' and '.join(escape(name, 40) for name in mine)}"]
                for sm, mine in enumerate(owners)
            ],
            hoverinfo="text",
            hoverongaps=False,
        )
    ]


def _statement(blocks: Blocks, edges: Array, low: int, high: int) -> str:
    """Say in plain text what is drawn and how to read it."""
    inside = int(np.count_nonzero((blocks.ends > low) & (blocks.starts < high)))
    bins = len(edges) - 1
    left = {**blocks.left_out, "outside the window": len(blocks.rows) - inside}
    said = [
        f"{inside:,} blocks in {bins:,} bins of {duration((high - low) / bins)}",
        "colour: the partition whose blocks held the SM longest in a cell",
        "paler: held for less of it",
        "strip on the left: whose SM it is",
        *(f"{count:,} blocks {why} not drawn" for why, count in left.items() if count),
    ]
    return "; ".join(said)
