"""Which thread blocks held which SM when: the rows of the maps of SMs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuscope._types import Array
from gpuscope.errors import MissingEvidence
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
        self._owners = len(blocks.partitions)
        start, end = blocks.starts, np.maximum(blocks.ends, blocks.starts)
        every = [
            union_by(start, end, group)
            for group in (
                blocks.partition * blocks.height + blocks.sm,
                self._owners * blocks.height + blocks.sm,
            )
        ]
        self._start, self._end, self._track = (
            np.concatenate(both) for both in zip(*every, strict=True)
        )
        self._index = Index(self._start, self._end, self._track)

    def cells(self, window_ns: tuple[int, int], pixels: int) -> Cells:
        """Return what is to be drawn of a window, about one column a pixel.

        Raises
        ------
        ValueError
            The window is empty, or ``pixels`` is below 1.
        """
        height = self.blocks.height
        tracks = np.arange((self._owners + 1) * height)
        found = self._index.query(window_ns, pixels=pixels, k=1, tracks=tracks)
        held = found.coverage.astype(np.float64)
        edges = found.origin_ns + found.column_ns * np.arange(held.shape[1] + 1)
        for row in found.rows.tolist():
            inside = np.minimum(self._end[row], edges[1:]) - np.maximum(
                self._start[row], edges[:-1]
            )
            held[self._track[row]] += np.maximum(inside, 0) / found.column_ns
        by_owner = held[:-height].reshape(self._owners, height, -1)
        share = np.clip(held[-height:], 0, 1)
        owner = np.where(share > 0, by_owner.argmax(axis=0), -1)
        return Cells(share, owner, found.origin_ns, found.column_ns)


def union_by(start: Array, end: Array, group: Array) -> tuple[Array, Array, Array]:
    """Merge the spans of each group that touch or overlap; return starts, ends and groups."""
    if not len(start):
        return start, end, group
    order = np.lexsort((start, group))
    start, end, group = start[order], end[order], group[order]
    low = int(start.min())
    # One after the other on one axis, the groups are told apart by their times.
    shift = group * (int(end.max()) - low + 2)
    reach = np.maximum.accumulate(end - low + shift)
    first = np.r_[True, (start - low + shift)[1:] > reach[:-1]]
    last = np.r_[first[1:], True]
    return start[first], (reach - shift)[last] + low, group[first]
