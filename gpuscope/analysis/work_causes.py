"""What work had to follow, for all rows of a trace at once: edges between times.

The rules are those of :mod:`gpuscope.analysis.work_parts` and
:mod:`gpuscope.analysis.launch_times`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gpuscope._types import Bools, Ints
from gpuscope.analysis.span_rows import SpanRows
from gpuscope.analysis.work_parts import WorkParts
from gpuscope.trace.columns import combined

KINDS = (
    *("start-up", "host", "turn", "thread start", "hand-over", "launch", "running", "collective"),
    *("legacy default stream", "stream order", "graph order", "event wait"),
    *("SMs held", "priority", "copy engine", "host wait"),
)
"""Kinds of edges. Of two that bind as late, the later in this order is the cause."""
NUMBER = {kind: number for number, kind in enumerate(KINDS)}
NEVER, ALWAYS = -1, 1 << 62
"""Keys of edges that do not bind if another does, and that do."""
_STEPS = 256
"""Rows that are passed over in search of one that held what a row needs."""
_Pairs = tuple[Ints, Ints]


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
        lags, keys = (np.broadcast_to(np.asarray(each, np.int64), shape) for each in (lag, key))
        self.columns.append((np.full(shape, NUMBER[kind]), source, target, lags, keys))


@dataclass(frozen=True)
class Launches:
    """How work came to the GPU, row by row.

    Attributes
    ----------
    call
        The row of the innermost call that launched it, or −1.
    ready_ns
        When it could have begun, as far as its launch and the order of work go.
    last
        The row that ended last of what was queued with it: of a graph, by one call of a library.
    """

    call: Ints
    ready_ns: Ints
    last: Ints


def add_work(work: WorkParts, ends: Ints, edges: Edges) -> Launches:
    """Add what the start and the end of each piece of work had to follow.

    Parameters
    ----------
    ends
        Row → when it ended.
    """
    rows = work.rows
    starts, queued, works = rows.starts, rows.queued, np.flatnonzero(rows.is_work)
    orders, last, is_first = _orders(rows, works)
    free_ns = np.full(len(starts), -1, np.int64)
    for before, after in orders.values():
        np.maximum.at(free_ns, after, np.minimum(ends[before], starts[after]))
    latency, gap, is_known = _latencies(work, works, is_first)
    waits = (free_ns > queued) & (~is_known | (free_ns + gap >= queued + latency))
    by_launch = np.where((queued >= 0) & ~(waits & is_known), queued + latency, 0)
    ready_ns = np.maximum(by_launch, np.where(waits, free_ns + gap, 0))
    ready_ns = np.where(ready_ns > 0, np.minimum(ready_ns, starts), starts)
    for kind, (before, after) in orders.items():
        key = np.where(waits[after], ends[before], NEVER)
        edges.add(kind, 2 * before + 1, 2 * after, gap[after], key)
    untold = works[(queued[works] < 0) & (free_ns[works] < 0)]
    begin = np.full(len(untold), 2 * len(starts))
    edges.add("start-up", begin, 2 * untold, starts[untold] - rows.zero_ns, 0)
    call = _calls(rows)
    works_launched = works[queued[works] >= 0]
    caller = call[works_launched]
    since_ns = np.where(caller >= 0, starts[caller], rows.zero_ns)
    lag = np.maximum(queued[works_launched] - since_ns, 0) + latency[works_launched]
    key = np.where(waits[works_launched], NEVER, 0)
    source = np.where(caller >= 0, 2 * caller, 2 * len(starts))
    edges.add("launch", source, 2 * works_launched, lag, key)
    edges.add("running", 2 * works, 2 * works + 1, ends[works] - starts[works], starts[works])
    before, after = rows.edges_of("collective")
    key = np.where(starts[before] > starts[after], starts[before], NEVER)
    edges.add("collective", 2 * before, 2 * after + 1, ends[after] - starts[before], key)
    late = works[ready_ns[works] < starts[works]]
    _add_holders(rows, late[is_known[late]], ends, edges)
    known_kernels = is_known[late] & rows.having("kind", ("kernel",))[late]
    _add_rivals(work, late[~known_kernels], ready_ns, ends, edges)
    return Launches(call, ready_ns, last)


# -- order ------------------------------------------------------------------------------------
def _orders(rows: SpanRows, works: Ints) -> tuple[dict[str, _Pairs], Ints, Bools]:
    """Return kind of order → rows that had to end and rows that followed; row → which of those
    queued with it ended last; and whether it is one of the first of its launch.

    What is linked to any node of a graph's launch holds for all of it.
    """
    correlations, callers = rows.numbers["correlation"], rows.numbers["external_correlation"]
    nodes = works[(rows.graphs[works] >= 0) & (correlations[works] >= 0)]
    launch = _last_of(rows, nodes, correlations, rows.graphs)
    last = _last_of(rows, works[callers[works] >= 0], callers, rows.streams)
    last = np.where(rows.ends[launch] > rows.ends[last], launch, last)
    is_first = np.ones(len(rows.ids), bool)
    orders: dict[str, _Pairs] = {}
    for kind, name in (("graph order", "graph"), *((name, name) for name in _LINKED)):
        before, after = rows.edges_of(name)
        inside = launch[before] == launch[after]
        if name == "graph":
            is_first[after[inside]] = False
        outside = last[before[~inside]], launch[after[~inside]]
        orders[kind] = before[inside], after[inside]
        orders[kind] = _joined(orders[kind], _spread(outside, launch, works[is_first[works]]))
    orders["stream order"] = _in_order(rows, launch, nodes)
    legacy = "legacy default stream"
    orders[legacy] = _joined(orders[legacy], _behind_legacy(rows, works))
    return orders, last, is_first


_LINKED = ("event wait", "legacy default stream")


def _joined(a: _Pairs, b: _Pairs) -> _Pairs:
    return np.r_[a[0], b[0]], np.r_[a[1], b[1]]


def _last_of(rows: SpanRows, members: Ints, *keys: Ints) -> Ints:
    """Return row → the member that ended last of those with the same keys; of others, itself."""
    last = np.arange(len(rows.ids))
    if len(members):
        numbers = (np.unique(key[members], return_inverse=True)[1] for key in keys)
        _, code = combined(*numbers)
        order = np.lexsort((-members, rows.ends[members], code))
        is_last = np.r_[code[order][1:] != code[order][:-1], True]
        last[members] = members[order[is_last][code]]
    return last


def _spread(pairs: _Pairs, launch: Ints, firsts: Ints) -> _Pairs:
    """Let each first row of a launch follow what its launch follows."""
    firsts = firsts[np.argsort(launch[firsts], kind="stable")]
    low, high = (launch[firsts].searchsorted(pairs[1], side) for side in ("left", "right"))
    count = high - low
    at = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(pairs[0], count), firsts[np.repeat(low, count) + at]


def _in_order(rows: SpanRows, launch: Ints, nodes: Ints) -> _Pairs:
    """Return the last work before each in its stream: before all of its launch."""
    (order, first), (places, latest) = rows.queues, rows.latest
    begin = np.arange(len(order))
    nodes = nodes[places[nodes] >= 0]
    if len(nodes):
        _, code = combined(first[places[nodes]], np.unique(launch[nodes], return_inverse=True)[1])
        least = np.full(int(code.max()) + 1, len(order))
        np.minimum.at(least, code, places[nodes])
        begin[places[nodes]] = least[code]
    follows = np.flatnonzero(begin > first)
    return order[latest[begin[follows] - 1]], order[follows]


def _behind_legacy(rows: SpanRows, works: Ints) -> _Pairs:
    """Return the last work that the legacy default stream put before each, if any."""
    pairs = np.zeros(0, np.int64), np.zeros(0, np.int64)
    legacy, blocking = (
        works[np.isin(rows.streams[works], streams)]
        for streams in (rows.legacy_streams, rows.blocking_streams)
    )
    for others, targets in ((blocking, legacy), (legacy, blocking)):
        for device in np.unique(rows.devices[targets]).tolist():
            after = targets[rows.devices[targets] == device]
            before = others[(rows.devices[others] == device) & (rows.queued[others] >= 0)]
            before = before[np.lexsort((-before, rows.ends[before]))]
            at = rows.ends[before].searchsorted(rows.starts[after], "right") - 1
            queued = np.r_[rows.queued[before], -1]  # the last is of those that follow none
            while (later := queued[at] > rows.queued[after]).any():
                at[later] -= 1
            pairs = _joined(pairs, (before[at[at >= 0]], after[at >= 0]))
    return pairs


def _calls(rows: SpanRows) -> Ints:
    call = np.full(len(rows.ids), -1)
    calls, works = rows.edges_of("launch")
    order = np.argsort(rows.starts[calls], kind="stable")
    call[works[order]] = calls[order]
    return call


def _latencies(
    work: WorkParts, works: Ints, is_first: Bools
) -> tuple[Ints, Ints, Bools]:
    """Return row → least ns from its launch and from other work to its start; if both are known."""
    rows = work.rows
    latency, gap = np.zeros((2, len(rows.ids)), np.int64)
    is_known = np.zeros(len(rows.ids), bool)
    features = (rows.coded("kind")[0], rows.coded("source")[0], rows.devices + 1, rows.graphs >= 0)
    _, code = combined(*(each[works].astype(np.int64) for each in (*features, is_first)))
    for number in range(int(code.max(initial=-1)) + 1):
        alike = works[code == number]
        constants = work.times.constants(int(alike[0]))
        is_known[alike] = constants is not None
        if constants is None:
            after_call, after_work = work.times.usual_of(int(alike[0]))
            constants = after_call, min(after_work, after_call or after_work)
        latency[alike], gap[alike] = constants
    return latency, gap, is_known


# -- SMs and copy engines ---------------------------------------------------------------------
def _add_holders(rows: SpanRows, late: Ints, ends: Ints, edges: Edges) -> None:
    """Add who released the SMs that kernels waited for, as edges tell: the first to have begun."""
    is_late = np.zeros(len(rows.ids), bool)
    is_late[late] = True
    for kind, name in (("SMs held", "SMs"), ("priority", "priority")):
        before, after = rows.edges_of(name)
        before, after = before[is_late[after]], after[is_late[after]]
        _add_held(rows, kind, (before, after), ends, edges, ALWAYS - rows.starts[before])


def _add_held(
    rows: SpanRows, kind: str, pairs: _Pairs, ends: Ints, edges: Edges, key: Ints | int
) -> None:
    """Let rows start when others had ended, or so long after their start if they went on."""
    before, after = pairs
    over = ends[before] <= rows.starts[after]
    source = 2 * before + over
    since = np.where(over, ends[before], rows.starts[before])
    edges.add(kind, source, 2 * after, rows.starts[after] - since, key)


def _add_rivals(work: WorkParts, late: Ints, ready_ns: Ints, ends: Ints, edges: Edges) -> None:
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
        for _ in range(_STEPS):
            there = np.flatnonzero(at < len(rivals))
            before, since = rivals[at[there]], rows.starts[after[there]]
            good = (rows.starts[before] < since) & rows.may_fill(before, after[there])
            if is_copy:
                good &= ends[before] == since
            if good.all():
                break
            at[there[~good]] += 1
        else:
            at[there[~good]] = len(rivals)
        at = np.where(at < len(rivals), at, first - 1)  # nobody then: who had it last
        before = rivals[at]
        held = (at >= 0) & (ends[before] > ready_ns[after]) & (before != after)
        held &= (rows.starts[before] < rows.starts[after]) & rows.may_fill(before, after)
        kind = "copy engine" if is_copy else "SMs held"
        _add_held(rows, kind, (before[held], after[held]), ends, edges, ALWAYS)
        if not rows.is_simulated and held.any():
            edges.inferred.add(kind)
