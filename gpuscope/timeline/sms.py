"""Which SMs were held when, and by whose thread blocks, in columns of time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuscope._types import Array, Bools
from gpuscope.errors import MissingEvidence
from gpuscope.timeline import style
from gpuscope.timeline.columns import edges_of
from gpuscope.timeline.index import Index
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
        device_codes, devices = codes(trace.spans.column("device"))
        if device is None and len(rows):
            device = devices[int(np.bincount(device_codes[rows]).argmax())]
        self.device = device
        here = device_codes[rows] == (devices.index(device) if device in devices else -1)
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
        sm_counts = [
            facts.sm_count
            for facts in trace.metadata.devices.values()
            if facts.index == device and facts.sm_count
        ]
        self.height = max(int(self.sm.max()) + 1, *sm_counts, 1)

    def colours(self, of_partitions: dict[str, str]) -> list[str]:
        """Return the colour of each owner."""
        whole = style.WHOLE_GPU_COLOUR
        return [
            style.ESCAPED if escaped else of_partitions[name] if name is not None else whole
            for name, escaped in zip(self.partitions, self.escaped, strict=True)
        ]

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
        SM × column: for which share of it any block held the SM.
    owner, escaped
        SM × column: as of :meth:`Blocks.most`, and whether its blocks had escaped.
    window_ns
        Where the first column starts, and the last one ends.
    """

    share: Array
    owner: Array
    escaped: Bools
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
        return Cells(share, owner, np.r_[self.blocks.escaped, False][owner], window_ns)
