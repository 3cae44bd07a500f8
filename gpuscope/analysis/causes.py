"""Causes: for each start and end of the rows of a trace what it had to follow, and what bound it.

A graph of times. Each row has two nodes, its start and its end; one more is the beginning of the
trace. An edge says that its target comes at least so long after its source. The edge that bound a
node lasts as long as it did; the others, as long as such things take at least. So a pass over the
edges gives every recorded time again, and with other edges what would have been (the critical path
method of J. E. Kelley and M. R. Walker, 1959).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from gpuscope._compiled import fastpath
from gpuscope._types import Bools, Ints
from gpuscope.analysis.call_parts import HOST, handles_of, last_of_handles
from gpuscope.analysis.launch_times import LaunchTimes
from gpuscope.analysis.native_threads import followed_calls
from gpuscope.analysis.span_rows import OPEN, SpanRows
from gpuscope.analysis.trace_parts import trace_parts
from gpuscope.analysis.work_causes import ALWAYS, NEVER, NUMBER, Edges, add_work
from gpuscope.analysis.work_parts import WorkParts
from gpuscope.trace.columns import combined, once
from gpuscope.trace.joins import numbered
from gpuscope.trace.model import Trace
from gpuscope.trace.schema import CALLS

NEVER_NS = 1 << 62
"""Slack of what leads nowhere."""
_WAIT = re.compile("synchronize|synchronise", re.IGNORECASE)
_OF_STREAM = re.compile("(stream|event).?synchroni", re.IGNORECASE)
POLL = re.compile("query|is_done", re.IGNORECASE)
_QUEUES = re.compile("event.?record|stream.?wait", re.IGNORECASE)
_CALLS_A_TURN = 10
"""Starts and ends of calls that threads which take turns make in each, on average."""
_SEEN_NS = 5_892
_DONE_NS = 3_630
"""How long after its work a wait returns, and what waits for a stream or an event take that find it
done, where no wait of a trace tells: medians on an H200."""
_QUEUE = 500
"""Pieces of work below which no stream's queue is full; CUDA's are seen to hold 1,024."""
_ROUNDS = 1000
"""Rows of no length at one instant that follow each other are ordered, up to so many."""


@dataclass(frozen=True, eq=False)
class Causes:
    """What bound each start and each end.

    Attributes
    ----------
    rows
        The columns of the trace.
    times
        Node → ns. Node 2 r is the start of row r, 2 r + 1 its end, the last one the beginning.
        Ends that were not seen are that of the trace.
    source, target, kind, lag
        Of each edge: nodes, number of its kind, ns. Each comes after all that lead to its source.
    cause
        Node → the edge that bound it, or −1.
    ready
        When work was ready to run.
    threads
        Node → number of its thread, −1 of work.
    inferred
        Kinds of edges that are worked out of times and names, as the trace does not tell them.
    rank
        Node → its place in the order of time.
    elastic
        Row → whether it is work that was launched because a query found other work done: when that
        comes, it begins, and nobody waits.
    """

    rows: SpanRows
    times: Ints
    source: Ints
    target: Ints
    kind: Ints
    lag: Ints
    cause: Ints
    ready: LaunchTimes
    threads: Ints
    inferred: tuple[str, ...]
    rank: Ints
    elastic: Bools

    def of(self, *kinds: str) -> Bools:
        """Edge → whether it is of one of these kinds."""
        return np.array([kind in kinds for kind in NUMBER])[self.kind]

    @cached_property
    def owners(self) -> Ints:
        """Row → number of its process and thread."""
        both = (self.rows.processes, self.rows.threads)
        return combined(*(numbered(column)[1] for column in both))[1]

    def forward(self, lag: Ints, kept: Bools, instead: tuple[Ints, Ints] | None = None) -> Ints:
        """Return node → when it would be if edges lasted so long, and only some were there.

        Parameters
        ----------
        instead
            Edges, and nodes that come before their targets as well: with the same lag, and before
            their sources in the order of time.
        """
        source = self.source[kept]
        target = self.target[kept]
        lasts = lag[kept].astype(np.int64, copy=False)
        if instead is not None:
            edges, before = instead
            at: Ints = np.cumsum(kept)[edges] - kept[edges]
            source = np.insert(source, at, before)
            target = np.insert(target, at, self.target[edges])
            lasts = np.insert(lasts, at, self.lag[edges])
        times = np.array(self.times)
        times[target] = NEVER
        _longest(source, target, lasts, times)
        return times

    def slack(self, node: int | None = None) -> Ints:
        """Return node → how much later it can be without moving another, ns.

        Without a node, without moving the end of the trace. What never moves it has ``NEVER_NS``.
        """
        latest = np.full(len(self.times), NEVER_NS if node is not None else self.times.max())
        if node is not None:
            latest[node] = self.times[node]
        earliest: Ints = -latest  # the same pass, from the end
        source = self.target[::-1].copy()
        target = self.source[::-1].copy()
        _longest(source, target, self.lag[::-1].copy(), earliest)
        latest = -earliest
        return np.where(latest > NEVER_NS >> 1, NEVER_NS, latest - self.times)

    def back_from(self, node: int) -> Ints:
        """Return the edges that bound a node, from it back to the beginning."""
        path = np.empty(len(self.cause), np.int64)
        if fastpath is not None:
            return path[: fastpath.leading_to(self.cause, self.source, node, path)]
        length = 0
        while (edge := int(self.cause[node])) >= 0:
            path[length] = edge
            node = int(self.source[edge])
            length = length + 1
        return path[:length]


def _longest(source: Ints, target: Ints, lag: Ints, times: Ints) -> None:
    """Let no target of an edge come earlier than so long after its source, edge by edge."""
    if fastpath is not None:
        fastpath.longest(source, target, lag, times)
        return
    then_ns: list[int] = times.tolist()
    for before, after, lasts in zip(source.tolist(), target.tolist(), lag.tolist(), strict=True):
        at_ns = then_ns[before] + lasts
        if at_ns > then_ns[after]:  # noqa: PLR1730 - max() takes three times as long
            then_ns[after] = at_ns
    times[:] = then_ns


@once
def find_causes(trace: Trace) -> Causes:
    """Return what bound the rows of a trace, kept as long as the trace is."""
    work = trace_parts(trace).work
    rows = work.rows
    edges = Edges()
    seen = rows.ends[rows.ends != OPEN]
    last_ns = max(int(seen.max(initial=0)), int(rows.starts.max(initial=0)))
    ends = np.where(rows.ends == OPEN, last_ns, rows.ends)
    begin_ns = min(rows.zero_ns, int(rows.starts.min(initial=OPEN)))
    times = np.r_[np.stack([rows.starts, ends], axis=1).ravel(), begin_ns]
    add_work(work, ends, edges)
    threads, elastic = _add_hosts(trace, work, times, edges)
    kind, source, target, lag, key = (
        np.concatenate(columns) for columns in zip(*edges.columns, strict=True)
    )
    took = times[target] - times[source]
    at_once = (took == 0) & (source != target)
    rank = _ranks(times, source[at_once], target[at_once])
    order = np.lexsort((kind, key, rank[target]))
    order = order[rank[source[order]] < rank[target[order]]]
    source, target, kind, took = (column[order] for column in (source, target, kind, took))
    lag = np.minimum(lag[order], took)
    last = np.flatnonzero(np.r_[target[1:] != target[:-1], True][: len(target)])
    lag[last] = took[last]
    cause = np.full(len(times), -1, np.int64)
    cause[target[last]] = last
    inferred = tuple(sorted(edges.inferred))
    return Causes(
        rows, times, source, target, kind, lag, cause, work.times, threads, inferred, rank, elastic
    )


def _ranks(times: Ints, source: Ints, target: Ints) -> Ints:
    """Return node → its place in an order of time in which edges at one instant go up."""
    level = np.zeros(len(times), np.int64)
    for _ in range(_ROUNDS):
        before = level[target]
        np.maximum.at(level, target, level[source] + 1)
        if (level[target] == before).all():
            break
    rank = np.empty(len(times), np.int64)
    rank[np.lexsort((level, times))] = np.arange(len(times))
    return rank


# -- the host ---------------------------------------------------------------------------------
def _add_hosts(trace: Trace, work: WorkParts, times: Ints, edges: Edges) -> tuple[Ints, Bools]:
    """Add what starts and ends of the host's rows had to follow.

    Returns node → thread, and row → whether it is elastic.
    """
    rows = work.rows
    threads, nodes = _threads(trace, rows, times)
    begin = len(times) - 1
    previous = np.r_[begin, nodes[:-1]][: len(nodes)]
    is_first = np.r_[-1, threads[nodes][:-1]][: len(nodes)] != threads[nodes]
    previous[is_first] = begin
    before = np.full(len(times), begin)
    before[nodes] = previous
    is_wait, at_least, elastic = _add_waits(trace, work, before, threads, times, edges)
    blocked, least_ns = _add_full_queues(rows, times, edges)
    is_wait[blocked], at_least[blocked] = True, least_ns
    if trace.metadata.time_base != "virtual":
        is_wait[_add_turns(rows, threads, nodes, times, edges)] = True
        followed, _ = followed_calls(trace)
        native = np.flatnonzero(followed >= 0)
        if len(native):
            edges.inferred.add("turn")
        edges.add("turn", 2 * followed[native] + 1, 2 * native, 0, ALWAYS)
        is_wait[2 * native] = True
    for kind in ("thread start", "hand-over"):
        giver, taker = rows.edges_of(kind)
        source = 2 * giver + (times[2 * giver + 1] <= times[2 * taker + 1])
        target = 2 * taker + (kind == "hand-over")
        # Of a thread that was started, the first row was there because of it.
        since = times[before[target]] if kind == "thread start" else times[2 * taker]
        binds = times[source] > since
        is_wait[target[binds]] = True
        edges.add(kind, source, target, 0, np.where(binds, ALWAYS, NEVER))
    took = times[nodes] - times[previous]
    least = np.where(is_wait[nodes], np.minimum(took, at_least[nodes]), took)
    for kind, which in (("start-up", is_first), ("host", ~is_first)):
        edges.add(kind, previous[which], nodes[which], least[which], times[previous[which]])
    return threads, elastic


def _threads(trace: Trace, rows: SpanRows, times: Ints) -> tuple[Ints, Ints]:
    """Return node → number of its thread, −1 of work, and the nodes of threads in their order.

    At one instant: what ends, the innermost first; then what begins, the outermost first.
    """
    host = np.flatnonzero(rows.having("kind", HOST))
    end_threads = trace.array("end_thread", fill=-1)
    end_threads = np.where(end_threads < 0, rows.threads, end_threads)
    who = np.r_[rows.threads[host], end_threads[host]]
    if trace.metadata.time_base == "virtual":
        who[:] = 0  # one virtual clock, which all threads move
    nodes = np.r_[2 * host, 2 * host + 1]
    _, thread = combined(*(numbered(key)[1] for key in (np.tile(rows.processes[host], 2), who)))
    length = times[2 * host + 1] - times[2 * host]
    is_end = np.r_[np.zeros(len(host), np.int64), np.where(length > 0, -1, 1)]
    depth = np.r_[-length, np.where(length > 0, length, 0)]
    order = np.lexsort((depth, is_end, times[nodes], thread))
    threads = np.full(len(times), -1)
    threads[nodes] = thread
    return threads, nodes[order]


def _add_turns(rows: SpanRows, threads: Ints, nodes: Ints, times: Ints, edges: Edges) -> Ints:
    """Let threads that take turns go on when the other's calls were over; returns whose turn began.

    Two threads of a process take turns if they seldom call between two calls of the other: one
    waits for the other, such as PyTorch's main thread for autograd's, or both for the interpreter.
    Nobody waits for a thread that only looks, such as NCCL's watchdog.
    """
    name, names = rows.coded("name")
    looks = np.array([bool(POLL.search(text or "")) for text in names])[name[nodes // 2]]
    nodes = nodes[~np.isin(threads[nodes], np.setdiff1d(threads[nodes], threads[nodes[~looks]]))]
    process = rows.processes[nodes // 2]
    order = np.lexsort((times[nodes], process))
    nodes = nodes[order]
    process = process[order]
    after = np.flatnonzero(
        (process[1:] == process[:-1]) & (threads[nodes[1:]] != threads[nodes[:-1]])
    )
    pair = np.sort(np.stack([threads[nodes[after]], threads[nodes[after + 1]]]), axis=0)
    count = int(threads.max(initial=0)) + 1
    calls = np.bincount(threads[nodes], minlength=count)
    distinct_pairs, code, turns = np.unique(
        pair[0] * count + pair[1], return_inverse=True, return_counts=True
    )
    seldom = turns * _CALLS_A_TURN <= np.minimum(
        calls[distinct_pairs // count], calls[distinct_pairs % count]
    )
    source = nodes[after]
    target = nodes[after + 1]
    given = seldom[code] & (source % 2 == 1) & (target % 2 == 0)
    if given.any():
        edges.inferred.add("turn")
    edges.add("turn", source[given], target[given], 0, ALWAYS)
    begun: Ints = target[given]
    return begun


def _add_full_queues(rows: SpanRows, times: Ints, edges: Edges) -> tuple[Ints, Ints]:
    """Let launches return when a full queue had room again.

    A stream holds so much work at most; who launches more returns when work of it ends. Returns
    the ends of such calls, and what each takes at least.
    """
    (order, first), blocked = rows.queues, [np.zeros((2, 0), np.int64)]
    for low, high in pairwise([*np.unique(first).tolist(), len(order)]):
        works = order[low:high]
        call = rows.calls[works]
        ends = np.maximum.accumulate(rows.ends[works])
        returned = times[2 * call + 1]
        over = ends.searchsorted(returned, "right")
        pending = np.where(call >= 0, np.arange(len(works)) - over, -1)
        full = (pending >= max(_QUEUE, pending.max() - 1)) & (over > 0)
        full[full] &= ends[over[full] - 1] > times[2 * call[full]]
        work = works[over[full] - 1]
        call = call[full]
        edges.add("full queue", 2 * work + 1, 2 * call + 1, 0, ALWAYS)
        took = (times[1:-1:2] - times[:-1:2])[rows.calls[works[pending >= 0]]]
        blocked.append(np.stack([2 * call + 1, np.full(len(call), took.min(initial=NEVER_NS))]))
    nodes, least_ns = np.concatenate(blocked, axis=1)
    return nodes, least_ns


def _add_waits(
    trace: Trace, works: WorkParts, before: Ints, threads: Ints, times: Ints, edges: Edges
) -> tuple[Bools, Ints, Bools]:
    """Add which work the host's calls waited for.

    Returns node → whether work bound it, and how long it takes without work to wait for: as long
    as the shortest call of its name, and no longer than it takes to see work done; where a record
    or a wait was queued right before, until that is seen done. And row → whether it is elastic.

    Parameters
    ----------
    before, threads
        Node → the one before it on its thread; its thread.
    """
    rows = works.rows
    last = works.orders.last
    work, call = rows.edges_of("host wait")
    work = last[work]  # who waits for a node, waits for its graph
    in_time = times[2 * work + 1] <= times[2 * call + 1]
    pairs = [(work[in_time], call[in_time])]
    if trace.metadata.time_base != "virtual" and "host wait" not in trace.metadata.edges:
        waited = np.isin(np.arange(len(rows.ids)), call)
        pairs += _inferred_waits(rows, waited, times)
        if any(len(calls) for _, calls in pairs[1:]):
            edges.inferred.add("host wait")
    pairs.append(_done_handles(rows, times))
    work, call = (np.concatenate(chunks) for chunks in zip(*pairs, strict=True))
    code, names = rows.coded("name")
    polls = np.array([bool(POLL.search(name or "")) for name in names])
    looks = _only_looks(rows, call, polls[code], before)
    elastic = _behind_looks(rows, threads, times, call[looks])
    waits = ~looks & ~elastic[work]
    work = work[waits]
    call = call[waits]
    polls = polls[code[call]]
    of_handles = rows.having("kind", ("handle",))[call]
    since = np.where(of_handles, before[2 * call + 1], 2 * call)
    since[polls] = before[2 * call[polls]]
    done_ns = times[2 * work + 1]
    binds = done_ns > times[since]
    seen_ns = times[2 * call + 1] - done_ns
    least = np.full(len(names), seen_ns[binds].min(initial=_SEEN_NS))
    named = code[call[binds]]
    least[named] = NEVER_NS
    np.minimum.at(least, named, seen_ns[binds])
    is_quick = np.array([bool(_OF_STREAM.search(name or "")) for name in names])
    took_ns = times[2 * call + 1] - times[2 * call]
    shortest = least.copy()
    shortest[is_quick] = np.minimum(least[is_quick], _DONE_NS)
    np.minimum.at(shortest, code[call], took_ns)
    binds |= (seen_ns <= least[code[call]]) & (took_ns > shortest[code[call]])
    lag = np.minimum(least[code[call]], seen_ns)
    key = ALWAYS + done_ns - times.max()
    edges.add("host wait", 2 * work + 1, 2 * call + 1, lag, np.where(binds, key, NEVER))
    bound = np.zeros(len(times), bool)
    at_least = np.zeros(len(times), np.int64)
    bound[2 * call[binds] + 1] = bound[2 * call[binds & polls]] = True
    call = call[binds & ~of_handles]
    last = np.minimum(before[2 * call] // 2, len(code) - 1)
    queues = np.array([bool(_QUEUES.search(name or "")) for name in names])[code[last]]
    queues &= (rows.streams[last] == rows.streams[call]) & (before[2 * call] % 2 == 1)
    seen_ns = least[code[call]] - (times[2 * call] - times[2 * last + 1])
    at_least[2 * call + 1] = np.maximum(shortest[code[call]], np.where(queues, seen_ns, 0))
    return bound, at_least, elastic


def _only_looks(rows: SpanRows, call: Ints, is_poll: Bools, before: Ints) -> Bools:
    """Return which calls do not wait for work, but look whether it is done and go on if not.

    A query that follows another is of a loop of them, which waits.

    Parameters
    ----------
    is_poll
        Row → whether it is a query.
    before
        Node → the one before it on its thread.
    """
    earlier = np.minimum(before[2 * call] // 2, len(is_poll))
    looks: Bools = is_poll[call] & ~np.r_[is_poll, False][earlier]
    return looks & ~rows.having("kind", ("handle",))[call]


def _behind_looks(rows: SpanRows, threads: Ints, times: Ints, looked: Ints) -> Bools:
    """Return which copies were launched by the next call after one that only looked.

    Of streams that do nothing but copy: allocators of page-locked memory look before other copies.
    """
    is_elastic = np.zeros(len(rows.ids), bool)
    if not len(looked):
        return is_elastic
    calls = np.flatnonzero(rows.having("kind", CALLS))
    calls = calls[np.lexsort((times[2 * calls], threads[2 * calls]))]
    after = np.isin(calls[:-1], looked) & (threads[2 * calls[1:]] == threads[2 * calls[:-1]])
    behind = np.zeros(len(rows.ids) + 1, bool)
    behind[calls[1:][after]] = True
    is_copy = rows.having("kind", ("memcpy",))
    computes = np.unique(rows.streams[rows.is_work & ~is_copy])
    return is_copy & behind[rows.calls] & ~np.isin(rows.streams, computes)


def _done_handles(rows: SpanRows, times: Ints) -> tuple[Ints, Ints]:
    """Return the last work to end of each handle's call, and that."""
    handle = handles_of(rows, innermost=True)
    seen = (handle >= 0) & (times[1:-1:2] <= times[2 * handle + 1])
    return last_of_handles(rows, np.where(seen, handle, -1))


def _inferred_waits(rows: SpanRows, waited: Bools, times: Ints) -> list[tuple[Ints, Ints]]:
    """Return which work calls waited for where no edge tells: by their names and times.

    A call that synchronises: the last work that ended before it returned, of its stream if it has
    one. A call that copies: its copies, if it did not return before they had ended.
    """
    code, names = rows.coded("name")
    is_wait = np.array([bool(_WAIT.search(name or "")) for name in names])[code]
    is_wait &= rows.having("kind", ("api", "sync")) & ~waited & (rows.ends != OPEN)
    works = np.flatnonzero(rows.is_work & (rows.ends != OPEN))
    pairs = []
    of_stream = rows.streams >= 0
    for owner, which in ((rows.streams, of_stream), (rows.processes, ~of_stream)):
        for number in np.unique(owner[is_wait & which]).tolist():
            calls = np.flatnonzero(is_wait & which & (owner == number))
            before = works[np.isin(owner[works], (number, -1))]
            before = before[np.argsort(rows.ends[before], kind="stable")]
            at = rows.ends[before].searchsorted(rows.ends[calls], "right") - 1
            pairs.append((before[at[at >= 0]], calls[at >= 0]))
    copies = np.flatnonzero(rows.having("kind", ("memcpy",)) & (rows.calls >= 0))
    caller = rows.calls[copies]
    blocked = (times[2 * caller + 1] >= times[2 * copies + 1]) & ~waited[caller]
    pairs.append((copies[blocked], caller[blocked]))
    return pairs
