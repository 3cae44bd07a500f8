"""Which SMs were busy when, and with whose thread blocks: a map, and a picture for timelines."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from gpuscope._checks import SeveralOf, door
from gpuscope._types import Array
from gpuscope.analysis.escapes import partitions_by_sm
from gpuscope.analysis.intervals import by_workload
from gpuscope.errors import InvalidArgument, MissingEvidence
from gpuscope.timeline import style
from gpuscope.timeline.frame import OUTSIDE, mark_look
from gpuscope.timeline.index import Index
from gpuscope.timeline.labels import partition_label
from gpuscope.timeline.scene import edges_of
from gpuscope.timeline.style import Properties
from gpuscope.timeline.text import (
    axis_unit,
    duration,
    escape,
    provenance_lines,
    title_suffix,
    wrapped,
)
from gpuscope.timeline.themed import ThemedFigure
from gpuscope.trace.columns import codes, is_open, outside, rows_of
from gpuscope.trace.model import Trace


class Blocks:
    """The finished blocks of one device whose SM is known.

    Attributes
    ----------
    device
        Its index.
    rows
        Positions in the trace; ``sm``, ``owner``, ``starts`` and ``ends`` are parallel.
    partitions, escaped
        Of each number in ``owner``: the partition, ``None`` for the whole GPU; whether the blocks
        were intended for another.
    height
        SMs of the device.
    left_out
        What is not drawn, in words → how many blocks.
    """

    def __init__(self, trace: Trace, device: int | None) -> None:
        every = rows_of(trace, "block")
        sm = trace.array("sm", fill=-1)
        usable = (sm[every] >= 0) & ~is_open(trace)[every]
        rows = every[usable]
        there, devices = codes(trace.spans.column("device"))
        if device is None and len(rows):
            device = devices[int(np.bincount(there[rows]).argmax())]
        self.device = device
        here = there[rows] == (devices.index(device) if device in devices else -1)
        if not here.any():
            where = "" if device is None else f" on device {device}"
            raise MissingEvidence(
                f"none of {len(every):,} thread blocks{where} is finished and has its SM: record "
                "with profile(detail='full') on a simulated GPU, or a workload that tells its "
                "blocks, such as TracedGemm, on a CUDA device"
            )
        self.left_out = {
            "without an end or an SM": len(every) - len(rows),
            "on other devices": len(rows) - int(here.sum()),
        }
        self.rows = rows = rows[here]
        self.sm = sm[rows].astype(np.int64)
        self.starts, self.ends = trace.array("start_ns")[rows], trace.array("end_ns", fill=0)[rows]
        columns = (codes(trace.spans.column(name)) for name in ("intended_partition", "partition"))
        intended, (partition, names) = ((code[rows], values) for code, values in columns)
        escaped = outside(intended, (partition, names))
        used, self.owner = np.unique(2 * partition + escaped, return_inverse=True)
        self.partitions: list[str | None] = [names[code // 2] for code in used]
        self.escaped = used % 2 == 1
        known = [
            facts.sm_count
            for facts in trace.metadata.devices.values()
            if facts.index == device and facts.sm_count
        ]
        self.height = max(int(self.sm.max()) + 1, *known, 1)

    def colours(self, of_partitions: dict[str, str]) -> list[str]:
        """Return the colour of each owner."""
        return [
            style.ESCAPED if escaped
            else style.WHOLE_GPU_COLOUR if name is None
            else of_partitions[name]
            for name, escaped in zip(self.partitions, self.escaped, strict=True)
        ]  # fmt: skip

    def most(self, held: Array) -> Array:
        """Return SM × column → the owner that ``held`` it longest, escaped blocks first; −1: none.

        Parameters
        ----------
        held
            Owner × SM × column.
        """
        weight = np.where(self.escaped, 1e9, 1)[:, None, None]
        return np.where(held.any(axis=0), (held * weight).argmax(axis=0), -1)


@dataclass(frozen=True)
class Cells:
    """SMs in columns of time.

    Attributes
    ----------
    share
        SM × column: for which share of it any block held the SM; 1 where an escaped one did.
    owner
        SM × column: as of :meth:`Blocks.most`.
    window_ns
        Where the first column starts, and the last one ends.
    """

    share: Array
    owner: Array
    window_ns: tuple[int, int]


class HeldIndex:
    """When each SM was held, and by whose blocks, ready to be asked for any window.

    Parameters
    ----------
    blocks
        They may overlap; what an index of tracks holds is their union by SM, and by SM and
        owner.
    """

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self._groups = (len(blocks.partitions) + 1) * blocks.height
        owner = np.r_[blocks.owner, np.full(len(blocks.sm), len(blocks.partitions))]
        group = owner * blocks.height + np.tile(blocks.sm, 2)
        self._index = Index(np.tile(blocks.starts, 2), np.tile(blocks.ends, 2), group)

    def held_ns(self, edges: Array) -> Array:
        """Owner × SM × bin → how long its blocks held the SM, ns; of any blocks at the end."""
        busy, _ = self._index.columns(edges, range(self._groups))
        return busy.reshape(-1, self.blocks.height, busy.shape[1])

    def cells(self, window_ns: tuple[int, int], pixels: int) -> Cells:
        """Return what is to be drawn of a window, one column a pixel."""
        edges = edges_of(window_ns, pixels)
        *by_owner, any_ns = self.held_ns(edges)
        share = any_ns / np.diff(edges)
        owner = np.where(share > 0, self.blocks.most(np.array(by_owner)), -1)
        share = np.where(np.r_[self.blocks.escaped, False][owner], 1, share)
        return Cells(share, owner, window_ns)


_SHADES, _PALEST, _STRONGEST = 10, 0.2, 0.85


def _layout_image(picture: bytes, *, x: float, length: float, height: float) -> Properties:
    """Return a picture as a layout image that lies under the traces and moves with the axes."""
    return {
        "source": "data:image/png;base64," + base64.b64encode(picture).decode(),
        "xref": "x", "x": x, "sizex": length, "xanchor": "left",
        "yref": "y2", "y": 0, "sizey": height, "yanchor": "top",
        "sizing": "stretch", "layer": "below",
    }  # fmt: skip


def _png(pixels: Array, colours: Sequence[str]) -> bytes:
    """Encode rows of pixels: 0 is empty, else colour · ``_SHADES`` + shade, shades from 1 on."""
    alphas = np.linspace(255 * _PALEST, 255 * _STRONGEST, _SHADES).astype(np.uint8).tobytes()
    image = Image.fromarray(pixels)
    image.putpalette(
        b"\0\0\0" + b"".join(bytes.fromhex(colour[1:]) * _SHADES for colour in colours)
    )
    file = io.BytesIO()
    # More compression takes eight times as long and saves a fifth.
    image.save(file, "PNG", transparency=b"\0" + alphas * len(colours), compress_level=1)
    return file.getvalue()


_TICK_PX = 17
"""So far apart are ticks at least."""
_ROWS = 2
"""Rows of the picture an SM."""


def sm_image(cells: Cells, colours: list[str], zero_ns: int, unit_ns: float) -> Properties:
    """Return cells as a layout image on the axis of :func:`sm_axis`.

    Parameters
    ----------
    colours
        Of each owner, as of :meth:`Blocks.colours`.
    """
    palette = list(dict.fromkeys(colours))
    first = np.array([*(palette.index(name) * _SHADES for name in colours), 0])[cells.owner]
    shade = np.clip(np.ceil(cells.share * _SHADES), 1, _SHADES)
    pixels = np.where(cells.owner >= 0, first + shade, 0).astype(np.uint8)
    return _layout_image(
        _png(np.repeat(pixels, _ROWS, axis=0), palette),
        x=(cells.window_ns[0] - zero_ns) / unit_ns,
        length=(cells.window_ns[1] - cells.window_ns[0]) / unit_ns,
        height=len(pixels),
    )


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
    bins = min(bins, high - low)
    edges = low + (high - low) * np.arange(bins + 1, dtype=np.int64) // bins
    *by_owner, busy_ns = HeldIndex(blocks).held_ns(edges)
    most = blocks.most(np.array(by_owner))
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
    escaped = (blocks.escaped[most] & (most >= 0)).any(axis=0)
    first = np.flatnonzero(escaped & ~np.r_[False, escaped[:-1]])
    at = {"x": (first + 0.5) * step, "y": [-0.5] * len(first)}
    marks = [go.Scatter(**at, **mark_look(style.INK))] if len(first) else []
    for cell in cells:
        cell.update(
            x0=step / 2,
            dx=step,
            hovertemplate=f"<b>SM %{{y}}</b>, at %{{x:,.4~r}} {unit}<br>busy for %{{z:.1%}} of a "
            f"bin of {duration((high - low) / bins)}<br>most of it: %{{meta}}<extra></extra>",
        )
    strip = _strip(trace, blocks, colours)
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
    return ThemedFigure(data=[*strip, *cells, *marks], layout=layout)


def _cells(
    trace: Trace, blocks: Blocks, index: int, share: Array, colours: dict[str, str]
) -> go.Heatmap:
    """Return the cells of one partition; SMs between those that it held are one empty row."""
    partition = blocks.partitions[index]
    colour = blocks.colours(colours)[index]
    held = np.flatnonzero(~np.isnan(share).all(axis=1))
    edges = np.unique(np.r_[held, held + 1])
    rows = np.where(np.isin(edges[:-1], held)[:, None], share[edges[:-1]], np.nan)
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
    mine = blocks.owner == index
    groups = by_workload(trace)
    own = groups.code[blocks.rows[mine]]
    lasted = np.bincount(own, (blocks.ends - blocks.starts)[mine] + 1, len(groups))
    longest = np.argsort(-lasted, kind="stable")[: np.count_nonzero(lasted)]
    said = [escape(groups.labels[number], 40) for number in longest]
    more = f" and {len(said) - _NAMED} more" if len(said) > _NAMED else ""
    return ", ".join(said[:_NAMED]) + more


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
        *([f"{OUTSIDE}: any block outside its partition"] if blocks.escaped.any() else []),
        "strip on the left: whose SM it is",
        *(f"{count:,} blocks {why} not drawn" for why, count in left.items() if count),
    ]
    return "; ".join(said)
