"""Which thread blocks held which SM when, and the picture of it under a timeline."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpuscope._types import Array
from gpuscope.analysis.intervals import Busy, Groups
from gpuscope.errors import MissingEvidence
from gpuscope.figures import style
from gpuscope.figures.frame import SHADES, layout_image, png
from gpuscope.figures.style import Properties
from gpuscope.trace.columns import codes, is_open, rows_of
from gpuscope.trace.model import Trace
from gpuscope.trace.query import Index


class Blocks:
    """The finished blocks of one device whose SM is known.

    Attributes
    ----------
    rows
        Positions in the trace; ``sm``, ``partition``, ``starts`` and ``ends`` are parallel.
    partitions
        Name of each number in ``partition``; ``None`` is the whole GPU.
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
        here = there[rows] == (devices.index(device) if device in devices else -1)
        if not here.any():
            where = "" if device is None else f" on device {device}"
            raise MissingEvidence(
                f"none of {len(every):,} thread blocks{where} is finished and has its SM: record "
                "a workload that tells its blocks, such as TracedGemm, on a CUDA device"
            )
        self.left_out = {
            "without an end or an SM": len(every) - len(rows),
            "on other devices": len(rows) - int(here.sum()),
        }
        self.rows = rows = rows[here]
        self.sm = sm[rows].astype(np.int64)
        self.starts, self.ends = trace.array("start_ns")[rows], trace.array("end_ns", fill=0)[rows]
        partition, names = codes(trace.spans.column("partition"))
        used, self.partition = np.unique(partition[rows], return_inverse=True)
        self.partitions: list[str | None] = [names[code] for code in used]
        known = [
            facts.sm_count
            for facts in trace.metadata.devices.values()
            if facts.index == device and facts.sm_count
        ]
        self.height = max(int(self.sm.max()) + 1, *known, 1)


@dataclass(frozen=True)
class Cells:
    """SMs in columns of time.

    Attributes
    ----------
    share
        SM × column: for which share of it any block held the SM.
    owner
        SM × column: the position in ``Blocks.partitions`` of the partition whose blocks held
        the SM longest; −1 where none did.
    origin_ns, column_ns
        Where the first column starts, and how long each is.
    """

    share: Array
    owner: Array
    origin_ns: int
    column_ns: int


class HeldIndex:
    """When each SM was held, and by whose blocks, ready to be asked for any window.

    Parameters
    ----------
    blocks
        They may overlap; what an index of tracks holds is their union by SM, and by SM and
        partition.
    """

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        owners = len(blocks.partitions)
        track = np.r_[blocks.partition, np.full(len(blocks.sm), owners)] * blocks.height
        groups = Groups(track + np.tile(blocks.sm, 2), [*range((owners + 1) * blocks.height)])
        ends = np.maximum(blocks.ends, blocks.starts)
        self._busy = Busy.of(groups, np.tile(blocks.starts, 2), np.tile(ends, 2))

    @cached_property
    def _index(self) -> Index:
        return Index(self._busy.start, self._busy.end, self._busy.group)

    def held_ns(self, edges: Array) -> Array:
        """Partition × SM × bin → how long its blocks held the SM, ns; of any blocks at the end."""
        held = np.zeros((len(self._busy.ns), len(edges) - 1), np.int64)
        for track in np.flatnonzero(self._busy.ns).tolist():
            start, end = self._busy.intervals(track).T
            before = np.r_[0, np.cumsum(end - start)]
            begun = np.searchsorted(start, edges, "right")
            rest = np.where(begun > 0, np.maximum(end[begun - 1] - edges, 0), 0)
            held[track] = np.diff(before[begun] - rest)
        return held.reshape(-1, self.blocks.height, held.shape[1])

    def cells(self, window_ns: tuple[int, int], pixels: int) -> Cells:
        """Return what is to be drawn of a window, about one column a pixel.

        Raises
        ------
        ValueError
            The window is empty, or ``pixels`` is below 1.
        """
        busy, height = self._busy, self.blocks.height
        found = self._index.query(window_ns, pixels=pixels, k=1, tracks=np.arange(len(busy.ns)))
        held = found.coverage.astype(np.float64)
        edges = found.origin_ns + found.column_ns * np.arange(held.shape[1] + 1)
        for row in found.rows.tolist():
            inside = np.minimum(busy.end[row], edges[1:]) - np.maximum(busy.start[row], edges[:-1])
            held[busy.group[row]] += np.maximum(inside, 0) / found.column_ns
        held = held.reshape(-1, height, held.shape[1])
        share = np.clip(held[-1], 0, 1)
        owner = np.where(share > 0, held[:-1].argmax(axis=0), -1)
        return Cells(share, owner, found.origin_ns, found.column_ns)


_TICKS = 8
_ROWS = 2
"""Rows of the picture an SM."""


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
    return style.label_axis(
        [sm + 0.5 for sm in ids],
        [str(sm) for sm in ids],
        range=[count, 0],
        title=style.titled("SM id"),
        tickfont={"size": 12},
        ticklabelstandoff=None,
        anchor="x",
    )
