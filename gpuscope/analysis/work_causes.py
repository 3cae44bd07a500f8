"""What work had to follow, for all rows of a trace at once: edges between times.

The rules are those of :mod:`gpuscope.analysis.work_parts` and
:mod:`gpuscope.analysis.launch_times`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gpuscope._types import Ints
from gpuscope.analysis.span_rows import SpanRows
from gpuscope.analysis.work_orders import Pairs
from gpuscope.analysis.work_parts import WorkParts
from gpuscope.trace.columns import combined

KINDS = (
    *("start-up", "host", "turn", "thread start", "hand-over", "launch", "running", "collective"),
    *("legacy default stream", "stream order", "graph order", "event wait"),
    *("SMs held", "priority", "copy engine", "full queue", "host wait"),
)
"""Kinds of edges. Of two that bind as late, the later in this order is the cause."""
NUMBER = {kind: number for number, kind in enumerate(KINDS)}
NEVER = -1
ALWAYS = 1 << 62
"""Keys of edges that do not bind if another does, and that do."""
_STEPS = 256
"""Rows that are passed over in search of one that held what a row needs."""


@dataclass(frozen=True)
class Edges:
    """Edges that were added so far.

    Attributes
    ----------
    columns
        Kind, source, target, least lag in ns, and the key: of the edges to a node that with the
        greatest bound it.
    inferred
        Kinds of edges that were worked out of times and names.
    """

    columns: list[tuple[Ints, Ints, Ints, Ints, Ints]] = field(default_factory=list)
    inferred: set[str] = field(default_factory=set)

    def add(self, kind: str, source: Ints, target: Ints, lag: Ints | int, key: Ints | int) -> None:
        """Add edges of a kind."""
        shape = source.shape
        lags, keys = (np.broadcast_to(np.asarray(values, np.int64), shape) for values in (lag, key))
        self.columns.append((np.full(shape, NUMBER[kind]), source, target, lags, keys))


def add_work(work: WorkParts, ends: Ints, edges: Edges) -> None:
    """Add what the start and the end of each piece of work had to follow.

    Parameters
    ----------
    ends
        Row → when it ended.
    """
    rows = work.rows
    starts = rows.starts
    queued = rows.queued
    works = np.flatnonzero(rows.is_work)
    times = work.times
    waits = times.waits
    ready_ns = times.ready_ns
    is_known = times.is_known
    for kind, pairs in work.orders.pairs.items():
        before, after = (rows_of[::-1] for rows_of in pairs)  # of equal ones the first binds
        key = np.where(waits[after], ends[before], NEVER)
        edges.add(kind, 2 * before + 1, 2 * after, times.gap_ns[after], key)
    untold = works[(queued[works] < 0) & (times.free_ns[works] < 0)]
    begin = np.full(len(untold), 2 * len(starts))
    edges.add("start-up", begin, 2 * untold, starts[untold] - rows.zero_ns, 0)
    works_launched = works[queued[works] >= 0]
    caller = rows.calls[works_launched]
    since_ns = np.where(caller >= 0, starts[caller], rows.zero_ns)
    lag = np.maximum(queued[works_launched] - since_ns, 0) + times.latency_ns[works_launched]
    key = np.where(waits[works_launched], NEVER, 0)
    source = np.where(caller >= 0, 2 * caller, 2 * len(starts))
    edges.add("launch", source, 2 * works_launched, lag, key)
    lasts_ns = ends - starts
    last, waiting = rows.edges_of("collective")
    waits_for = starts[last] > starts[waiting]
    since_last_ns = np.maximum(ends[waiting] - starts[last], 0)
    # Once the last has begun, it takes so long on each; whoever comes last then.
    np.minimum.at(lasts_ns, waiting[waits_for], since_last_ns[waits_for])
    edges.add("running", 2 * works, 2 * works + 1, lasts_ns[works], starts[works])
    key = np.where(waits_for, starts[last], NEVER)
    edges.add("collective", 2 * last, 2 * waiting + 1, since_last_ns, key)
    edges.add("collective", 2 * waiting, 2 * last + 1, lasts_ns[last], NEVER)
    late = works[ready_ns[works] < starts[works]]
    _add_holders(rows, late[is_known[late]], ends, edges)
    known_kernels = is_known[late] & rows.having("kind", ("kernel",))[late]
    _add_rivals(work, late[~known_kernels], ends, edges)


# -- SMs and copy engines ---------------------------------------------------------------------
def _add_holders(rows: SpanRows, late: Ints, ends: Ints, edges: Edges) -> None:
    """Add who released the SMs that kernels waited for, as edges tell: the first to have begun."""
    is_late = np.zeros(len(rows.ids), bool)
    is_late[late] = True
    for kind, name in (("SMs held", "SMs"), ("priority", "priority")):
        before, after = rows.edges_of(name)
        before = before[is_late[after]]
        after = after[is_late[after]]
        _add_held(rows, kind, (before, after), ends, edges, ALWAYS - rows.starts[before])


def _add_held(
    rows: SpanRows, kind: str, pairs: Pairs, ends: Ints, edges: Edges, key: Ints | int
) -> None:
    """Let rows start when others had ended, or so long after their start if they went on."""
    before, after = pairs
    over = ends[before] <= rows.starts[after]
    source = 2 * before + over
    since = np.where(over, ends[before], rows.starts[before])
    edges.add(kind, source, 2 * after, rows.starts[after] - since, key)


def _add_rivals(work: WorkParts, late: Ints, ends: Ints, edges: Edges) -> None:
    """Add who may have had what rows that started late needed, judged by times."""
    rows = work.rows
    kinds = rows.having("kind", ("kernel", "memcpy"))
    late = late[kinds[late]]
    names = (rows.coded(name)[0][late] for name in ("kind", "partition", "copy_kind"))
    _, code = combined(*names, rows.devices[late] + 1)
    for number in range(int(code.max(initial=-1)) + 1):
        after = late[code == number]
        is_copy = rows.kind(int(after[0])) == "memcpy"
        rivals = np.flatnonzero(work.may_rival(int(after[0])))
        rivals = rivals[np.lexsort((rows.starts[rivals], ends[rivals]))]
        first = ends[rivals].searchsorted(rows.starts[after])
        at = first.copy()
        pending = np.flatnonzero(first < len(rivals))
        for _ in range(_STEPS):
            before = rivals[at[pending]]
            since = rows.starts[after[pending]]
            good = (rows.starts[before] < since) & rows.may_fill(before, after[pending])
            if is_copy:
                good &= ends[before] == since
            pending = pending[~good]
            at[pending] += 1
            pending = pending[at[pending] < len(rivals)]
            if not len(pending):
                break
        at[pending] = len(rivals)
        at = np.where(at < len(rivals), at, first - 1)  # nobody then: who had it last
        before = rivals[at]
        is_held = (at >= 0) & (ends[before] > work.times.ready_ns[after]) & (before != after)
        is_held &= (rows.starts[before] < rows.starts[after]) & rows.may_fill(before, after)
        kind = "copy engine" if is_copy else "SMs held"
        _add_held(rows, kind, (before[is_held], after[is_held]), ends, edges, ALWAYS)
        if not rows.is_simulated and is_held.any():
            edges.inferred.add(kind)
