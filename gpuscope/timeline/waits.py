"""Which rows of a trace that grows waited for which, by events and in collectives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gpuscope._types import Array
from gpuscope.trace.columns import codes

_WAITS = ("event wait", "collective")


@dataclass(frozen=True)
class WaitColumns:
    """Which rows waited for others.

    Attributes
    ----------
    cause, effect
        Rows: the one that was waited for, and the one that waited.
    joint
        Whether they are of one collective: its end waited for the other's start. Otherwise its
        start waited for the other's end, by an event.
    """

    cause: Array
    effect: Array
    joint: Array
    _pending: Array
    _sorted: tuple[tuple[Array, Array], ...]
    _count: int

    @classmethod
    def none(cls) -> WaitColumns:
        """Return those of no rows."""
        nothing = np.zeros(0, np.int64)
        return cls(nothing, nothing, nothing.astype(bool), np.zeros((3, 0), np.int64), (), 0)

    def extended(self, ids: Array, edges: pa.Table) -> WaitColumns:
        """Return them with those of more edges.

        Parameters
        ----------
        ids
            Row → id, of all rows that there are by now. Edges to others wait for these.
        """
        kind, kinds = codes(edges.column("kind"))
        waits = np.flatnonzero(np.array([name in _WAITS for name in kinds])[kind])
        new = [np.asarray(edges.column(name).take(waits).to_numpy()) for name in ("from", "to")]
        new.append(np.array([name == "collective" for name in kinds])[kind[waits]])
        pending = np.concatenate([self._pending, new], axis=1) if len(waits) else self._pending
        if not pending.size:
            return self
        parts = list(self._sorted)
        rows = np.arange(self._count, len(ids))
        while parts and len(parts[-1][1]) <= 2 * len(rows):
            rows = np.concatenate([parts.pop()[1], rows])
        if len(rows):
            rows = rows[np.argsort(ids[rows], kind="stable")]
            parts.append((ids[rows], rows))
        ends = pending[:2]
        rows_of = np.full(ends.shape, -1)
        for sorted_ids, row in parts:
            at = np.minimum(np.searchsorted(sorted_ids, ends), len(sorted_ids) - 1)
            rows_of = np.where(sorted_ids[at] == ends, row[at], rows_of)
        is_resolved = (rows_of >= 0).all(axis=0)
        return WaitColumns(
            np.concatenate([self.cause, rows_of[0, is_resolved]]),
            np.concatenate([self.effect, rows_of[1, is_resolved]]),
            np.concatenate([self.joint, pending[2, is_resolved] > 0]),
            pending[:, ~is_resolved],
            tuple(parts),
            len(ids),
        )
