"""Arrows of a Chrome trace, as edges between spans."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa

from gpuscope._types import Array
from gpuscope.importers.chrome_spans import NEVER, Identity, Spans, identity
from gpuscope.trace import arrow, joins, schema
from gpuscope.trace.arrow import NONE

_LAUNCHES = ("ac2g", "async_cpu_to_gpu")
"""Kineto's categories of arrows from calls to what they launched."""


def flows(spans: Spans, ids: Array) -> list[tuple[Array, Array, str]]:
    """Return the edges that arrows tell: (from, to, kind) by category."""
    rows = np.flatnonzero(spans.of("s", "t", "f"))
    if not len(rows):
        return []
    events = spans.events
    bound = _bind(spans, rows, ids)
    by_key: dict[Identity, list[tuple[int, int, int]]] = {}
    for place, row in enumerate(rows.tolist()):
        key = identity(events[row], NONE)
        order = "stf".index(events[row].ph)
        by_key.setdefault(key, []).append((int(spans.starts[row]), order, place))
    found: dict[str, list[tuple[int, int]]] = {}
    for key, ends in by_key.items():
        ends.sort()
        category = key[0] or ""
        edge = "launch" if category in _LAUNCHES else category
        for (_, _, one), (_, order, other) in itertools.pairwise(ends):
            if order == 0 or bound[one] == NONE or bound[other] == NONE:
                spans.left["arrows that lead to no span"] += order != 0
            elif edge in schema.EDGE_KINDS:
                found.setdefault(edge, []).append((int(bound[one]), int(bound[other])))
            else:
                spans.left[f"arrows of category {category[:40]!r}"] += 1
    return [
        (np.array([one for one, _ in ends]), np.array([other for _, other in ends]), edge)
        for edge, ends in found.items()
    ]


def _bind(spans: Spans, rows: Array, ids: Array) -> Array:
    """Return the id of the span that each end of an arrow is at, or NONE.

    A step or an end without ``bp: "e"`` is at the next span that begins on its thread.
    """
    slices = np.flatnonzero(spans.of("X", "B")[spans.rows])
    event = spans.rows[slices]
    key = arrow.coded_rows(
        np.r_[spans.process[event], spans.process[rows]],
        np.r_[spans.thread[event], spans.thread[rows]],
    )[0].astype(np.int64)
    owner, wanted = key[: len(event)], key[len(event) :]
    starts = spans.starts[event]
    ends = np.where(spans.open[event], NEVER, spans.ends[event])
    around = joins.innermost(wanted, spans.starts[rows], owner, starts, ends)
    follows = np.array([spans.events[row].bp != "e" for row in rows.tolist()])
    follows &= ~spans.of("s")[rows]
    order = np.lexsort((starts, owner))
    times = np.unique(np.r_[starts, spans.starts[rows]], return_inverse=True)[1]
    scale = int(times.max(initial=0)) + 1
    sorted_keys = (owner * scale + times[: len(event)])[order]
    at = np.searchsorted(sorted_keys, wanted * scale + times[len(event) :])
    inside = np.minimum(at, max(len(order) - 1, 0))
    if len(order):
        after = np.where((at < len(order)) & (owner[order][inside] == wanted), order[inside],
                         NONE)  # fmt: skip
        around = np.where(follows & (after >= 0), after, around)
    return np.where(around >= 0, ids[slices[around]], NONE) if len(slices) else around


def edges(parts: list[tuple[Array, Array, str]]) -> pa.Table:
    """Return a table of edges from (from, to, kind)."""
    codes = np.repeat(np.arange(len(parts)), [len(source) for source, _, _ in parts])
    source, target = (
        np.concatenate([np.zeros(0, np.int64), *(part[side] for part in parts)]) for side in (0, 1)
    )
    return arrow.edges(source, target, arrow.text_column(codes, [kind for _, _, kind in parts]))
