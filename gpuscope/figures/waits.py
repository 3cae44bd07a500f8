"""Event waits between the rows of a trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gpuscope._types import Array
from gpuscope.trace.columns import codes


@dataclass(frozen=True)
class Waits:
    """Which rows waited for an event that others recorded.

    Attributes
    ----------
    cause, effect
        Rows: the one that had to end, and the one that waited.
    """

    cause: Array
    effect: Array
    _pending: Array
    _sorted: tuple[tuple[Array, Array], ...]
    _count: int

    @classmethod
    def none(cls) -> Waits:
        """Return those of no rows."""
        nothing = np.zeros(0, np.int64)
        return cls(nothing, nothing, np.zeros((2, 0), np.int64), (), 0)

    def extended(self, ids: Array, edges: pa.Table) -> Waits:
        """Return them with those of more edges.

        Parameters
        ----------
        ids
            Row → id, of all rows that there are by now. Edges to others wait for these.
        """
        kind, kinds = codes(edges.column("kind"))
        waits = np.flatnonzero(np.array([name == "event wait" for name in kinds])[kind])
        new = [np.asarray(edges.column(name).take(waits).to_numpy()) for name in ("from", "to")]
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
        found = np.full(pending.shape, -1)
        for held, row in parts:
            place = np.minimum(np.searchsorted(held, pending), len(held) - 1)
            found = np.where(held[place] == pending, row[place], found)
        known = (found >= 0).all(axis=0)
        return Waits(
            np.concatenate([self.cause, found[0, known]]),
            np.concatenate([self.effect, found[1, known]]),
            pending[:, ~known],
            tuple(parts),
            len(ids),
        )
