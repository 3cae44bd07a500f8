"""Changes that might help a program, each as edges that would last less long or be gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from gpuscope._types import Bools, Ints
from gpuscope.analysis.causes import Causes
from gpuscope.analysis.path_columns import CALLS, around, next_call, spans_of
from gpuscope.trace.columns import combined
from gpuscope.trace.model import Trace
from gpuscope.trace.sites import lines_of

_MOST = 4
"""Changes of each sort that are tried: those about what takes most of the path."""
_ALIKE = 20
"""Gaps between calls, beside another thread and without it, that a comparison needs."""
_SLOWER = 1.05
"""How many times as long they are beside it, at least, for that to be told."""
_CALL_NS = 10_000
"""What a call of CUDA takes about that launches a graph, queues a copy or finds work done."""
_BETWEEN_NS, _NODE_NS = 200_000, 500
"""Between launches that may be of one graph at most; what a node costs half of, the host."""
_PINNED_BYTES_PER_US = 50_000
"""About what a copy from pinned memory reaches over PCIe 5."""
Basis = Literal["bound", "recording", "forecast"]
Words = tuple[str, str, Basis, str, str]
"""What to change, what that is about, what its figure rests on, why, and how to try it."""


@dataclass(frozen=True)
class Case:
    """A change: edges that last less long, and edges that are gone.

    Attributes
    ----------
    lag
        Edge → how long it would last, ns.
    """

    change: str
    about: str
    basis: Basis
    why: str
    code: str
    lag: Ints
    gone: Bools


@dataclass(frozen=True)
class View:
    """The edges of a window, as cases look at them.

    Attributes
    ----------
    kept, on_path
        Edge → whether it is in the window; whether it is on the critical path, too.
    row, before
        Edge → row of its target and of its source.
    call
        Edge between two times of a thread → the call that it lies in, or −1.
    ranges
        The same → its innermost range, or −1; of other edges that of their target's launch.
    """

    trace: Trace
    causes: Causes
    kept: Bools
    on_path: Bools
    row: Ints
    before: Ints
    call: Ints
    ranges: Ints

    @classmethod
    def of(cls, trace: Trace, causes: Causes, node: int, low_ns: int, high_ns: int) -> View:
        """Look at the edges that end in a window, and at the path to a node."""
        rows, times = causes.rows, causes.times
        kept = (times[causes.target] > low_ns) & (times[causes.target] <= high_ns)
        on_path = np.zeros(len(kept), bool)
        on_path[np.fromiter(causes.back_from(node), np.int64)] = True
        row, before = (
            np.minimum(nodes // 2, len(rows.ids) - 1) for nodes in (causes.target, causes.source)
        )
        is_host = causes.of("host", "turn", "host wait")
        whose = np.where(is_host, row, causes.launches.call[row])
        since = np.where(is_host, times[causes.source], rows.starts[np.maximum(whose, 0)])
        call = around(causes, spans_of(causes, *CALLS), np.where(causes.of("host") & kept, row, -1), since)
        ranges = around(causes, spans_of(causes, "range"), np.where(kept, whose, -1), since)
        return cls(trace, causes, kept, on_path & kept, row, before, call, ranges)

    @cached_property
    def lasts(self) -> Ints:
        """Edge → how long it lasted."""
        return self.causes.times[self.causes.target] - self.causes.times[self.causes.source]

    @cached_property
    def is_host(self) -> Bools:
        """Edge → whether it is the host's own time between or in calls."""
        return self.kept & self.causes.of("host", "turn")

    @cached_property
    def is_code(self) -> Bools:
        """Edge → whether it is the host's own time between calls."""
        return self.is_host & (self.call < 0)

    @cached_property
    def line(self) -> Ints:
        """Edge → number of its line in :attr:`lines`, of the call that it is in or comes before.

        Where no line is known: of the name of that call.
        """
        rows = self.causes.rows
        host = np.flatnonzero(self.is_host)
        order = host[np.lexsort((host, self.causes.threads[self.causes.target[host]]))]
        call = np.where(self.is_host, -1, self.row)
        call[order] = next_call(self.row[order], rows.having("kind", CALLS))
        call = np.where(self.call >= 0, self.call, call)
        site, name = rows.coded("site")[0], rows.coded("name")[0]
        known = np.where(site > 0, site, len(rows.coded("site")[1]) + name)
        lines = np.array(self._line_numbers)[known]
        return np.where(call >= 0, lines[call], -1)

    @cached_property
    def lines(self) -> list[str]:
        """What lines of sites and names of calls are called, each once."""
        return list(dict.fromkeys(self._line_words))

    @cached_property
    def _line_words(self) -> list[str]:
        rows = self.causes.rows
        sites = [str((*lines_of(text), "")[0]) for text in rows.coded("site")[1]]
        return [*sites, *map(str, rows.coded("name")[1])]

    @cached_property
    def _line_numbers(self) -> list[int]:
        number = {line: at for at, line in enumerate(self.lines)}
        return [number[line] for line in self._line_words]

    def having(self, name: str, *values: str) -> Bools:
        """Edge → whether the row of its target has one of these values of a text column."""
        return self.causes.rows.having(name, values)[self.row]

    def most(self, which: Bools, keys: Ints) -> list[int]:
        """Return the keys of edges that take most of the path, then any others that take most."""
        which = which & self.kept & (keys >= 0)
        known, code = np.unique(keys[which], return_inverse=True)
        lasts = self.lasts[which]
        on_path, every = (
            np.bincount(code, weights=ns, minlength=len(known))
            for ns in (lasts * self.on_path[which], lasts)
        )
        most: list[int] = known[np.lexsort((-every, -on_path))][:_MOST].tolist()
        return most

    def case(
        self,
        words: Words,
        *,
        shorter: Bools | None = None,
        lag: Ints | int = 0,
        gone: Bools | None = None,
    ) -> Case:
        """Return a change that makes edges last no longer than ``lag``, or lets them go."""
        none = np.zeros(len(self.kept), bool)
        which = self.kept & (none if shorter is None else shorter)
        lags = np.where(which, np.minimum(lag, self.causes.lag), self.causes.lag)
        return Case(*words, lags, none if gone is None else gone & self.kept)


def cases(view: View) -> Iterator[Case]:
    """Yield what might help."""
    for sort in (
        *(_faster, _without_waits, _without_events, _graphs, _graph_of_thread, _host_code, _copies, _streams),
        *(_more_sms, _own_process, _straggler, _inputs),
    ):
        yield from sort(view)


def _ms(ns: float) -> str:
    return f"{ns / 1e6:,.3g} ms"


def _faster(view: View) -> Iterator[Case]:
    """Each kernel twice as fast."""
    name, names = view.causes.rows.coded("name")
    runs = view.causes.of("running") & view.having("kind", "kernel", "graph")
    held = view.causes.of("SMs held", "priority") & (view.causes.source % 2 == 0)
    for number in view.most(runs, name[view.row]):
        which = (runs & (name[view.row] == number)) | (held & (name[view.before] == number))
        runs_of = runs & (name[view.row] == number)
        why = (
            f"it runs {_ms(view.lasts[runs_of & view.kept].sum())}, "
            f"{_ms(view.lasts[runs_of & view.on_path].sum())} of it on the critical path"
        )
        code = f"gs.what_if(trace, faster={{{names[number]!r}: 2}})"
        words: Words = ("make the kernel twice as fast", str(names[number]), "recording", why, code)
        yield view.case(words, shorter=which, lag=view.causes.lag // 2)


def _without_waits(view: View) -> Iterator[Case]:
    """Each line's waits for the GPU gone."""
    waits = view.causes.of("host wait") & ~view.having("kind", "handle")
    for number in view.most(waits, view.line):
        which = waits & (view.line == number)
        calls = np.zeros(len(view.causes.rows.ids), bool)
        calls[view.row[which]] = True
        inside = view.is_host & (view.call >= 0) & calls[view.call]
        waited = np.unique(view.row[which & view.kept])
        why = f"{len(waited)} calls wait for the GPU; without them the host runs ahead"
        code = "wait less often, or look at results a step later"
        words: Words = ("do not wait", view.lines[number], "bound", why, code)
        yield view.case(words, shorter=inside, lag=_CALL_NS, gone=which)


def _without_events(view: View) -> Iterator[Case]:
    """The waits of each stream for another gone."""
    rows = view.causes.rows
    waits = view.causes.of("event wait")
    before, after = rows.streams[view.before], rows.streams[view.row]
    _, key = combined(*(np.unique(each, return_inverse=True)[1] for each in (before, after)))
    for number in view.most(waits, key):
        which = waits & (key == number)
        edge = np.flatnonzero(which)[0]
        names = " for ".join(view.trace.stream_name(int(each[edge])) for each in (after, before))
        why = f"{int((which & view.on_path).sum())} of its waits are on the critical path"
        code = 'gs.what_if(trace, drop_waits="all")'
        words: Words = ("drop the wait between streams", names, "bound", why, code)
        yield view.case(words, gone=which)


def _graphs(view: View) -> Iterator[Case]:
    """The launches of each range, or of each thread without any, as one graph."""
    causes, rows = view.causes, view.causes.rows
    name, names = rows.coded("name")
    launches = causes.of("launch")
    of_range = np.where(view.ranges >= 0, name[view.ranges], -1)
    ends = causes.times[1::2]
    for number in view.most(view.is_host | launches, of_range):
        spans = spans_of(causes, "range")
        spans = spans[name[spans] == number]
        moments = causes.times[causes.source]
        inside = around(causes, spans, np.where(view.is_host, view.row, -1), moments)
        which = view.is_host & (inside >= 0)
        which &= causes.times[causes.target] <= np.r_[ends, 0][inside]
        total = np.zeros(len(rows.ids), np.int64)
        np.add.at(total, inside[which], causes.lag[which])
        count = int((launches & view.kept & (of_range == number)).sum())
        calls = len(np.unique(inside[which]))
        if count < 2 * calls or not calls:
            continue
        lag = (causes.lag * (_CALL_NS / np.maximum(total[inside], _CALL_NS))).astype(np.int64)
        why = (
            f"{count / calls:.3g} launches a call, and {_ms(total.sum() / calls)} of the host's time"
        )
        code = f"gs.what_if(trace, graphs=[{names[number]!r}])"
        words: Words = ("record as one graph", str(names[number]), "bound", why, code)
        yield view.case(words, shorter=which, lag=lag)


def _graph_of_thread(view: View) -> Iterator[Case]:
    """The launches of a thread without ranges as graphs, with the host's time between them."""
    causes, threads = view.causes, view.causes.threads[view.causes.target]
    launching = np.zeros(len(causes.rows.ids), bool)
    launching[causes.launches.call[causes.launches.call >= 0]] = True
    short = view.is_host & (view.ranges < 0) & (causes.lag <= _BETWEEN_NS)
    short &= launching[np.where(view.call >= 0, view.call, view.row)]
    for number in view.most(short, threads):
        which = short & (threads == number)
        count = len(np.unique(view.row[which & (causes.target % 2 == 0)]))
        if count >= _ALIKE:
            thread = int(causes.rows.threads[view.row[which][0]])
            why = f"{count:,} launches, {_ms(view.lasts[which].sum())} of the host's time"
            code = "torch.cuda.graph(…), or torch.compile(mode='reduce-overhead')"
            words: Words = ("record as graphs", f"thread {thread}", "bound", why, code)
            yield view.case(words, shorter=which, lag=_NODE_NS)


def _host_code(view: View) -> Iterator[Case]:
    """The host's own time before each line's calls gone, and that outside of ranges."""
    code = "profile the Python there, or move it to another process"
    for number in view.most(view.is_code, view.line):
        which = view.is_code & (view.line == number)
        why = f"{_ms(view.lasts[which & view.on_path].sum())} on the critical path before its calls"
        words: Words = ("shorten the Python before", view.lines[number], "bound", why, code)
        yield view.case(words, shorter=which)
    outside = view.is_code & (view.ranges < 0)
    if (view.ranges[view.is_host] >= 0).any():
        why = f"{_ms(view.lasts[outside & view.on_path].sum())} on the critical path"
        words = ("do not pause", "outside any range", "bound", why, code)
        yield view.case(words, shorter=outside)


def _copies(view: View) -> Iterator[Case]:
    """Copies from and to pinned memory; copies beside other work."""
    causes, rows = view.causes, view.causes.rows
    copies = causes.of("running") & view.having("kind", "memcpy")
    if not (copies & view.kept).any():
        return
    pageable = rows.having("src_kind", ("pageable",)) | rows.having("dst_kind", ("pageable",))
    which = copies & pageable[view.row]
    if (which & view.kept).any():
        nbytes = view.trace.array("nbytes", fill=0)[view.row]
        callers = np.zeros(len(rows.ids), bool)
        callers[causes.launches.call[view.row[which]]] = True
        calls = view.is_host & (view.call >= 0) & callers[view.call]
        blocked = causes.of("host wait") & pageable[view.before]
        lag = np.where(which, nbytes * 1000 // _PINNED_BYTES_PER_US, _CALL_NS)
        why = f"{int((which & view.kept).sum())} copies of pageable memory, which block their thread"
        words: Words = ("pin the memory", "copies", "bound", why, "tensor.pin_memory()")
        yield view.case(words, shorter=which | calls, lag=lag, gone=blocked)
    why = f"{_ms(view.lasts[copies & view.on_path].sum())} of copies on the critical path"
    words = ("copy beside kernels", "copies", "bound", why, "copy ahead, on a stream of its own")
    yield view.case(words, shorter=copies)


def _streams(view: View) -> Iterator[Case]:
    """Work of other ranges or threads on streams of their own."""
    causes, rows = view.causes, view.causes.rows
    calls = causes.launches.call
    order = causes.of("stream order")
    name, category = rows.coded("name")[0], rows.coded("category")[0]
    of = np.full(len(rows.ids), -1)
    launched = causes.of("launch")
    of[view.row[launched]] = np.where(view.ranges >= 0, name[view.ranges], -1)[launched]
    apart = np.zeros(len(order), bool)
    for column in (of, category, np.where(calls >= 0, rows.threads[calls], -1)):
        apart |= column[view.before] != column[view.row]
    for stream in view.most(order & apart, rows.streams[view.row]):
        which = order & apart & (rows.streams[view.row] == stream)
        why = f"{int((which & view.on_path).sum())} times it waits for work of another range or thread"
        code = "launch them on streams of their own, if no data passes between them"
        words: Words = ("use another stream", view.trace.stream_name(stream), "bound", why, code)
        yield view.case(words, gone=which)


def _more_sms(view: View) -> Iterator[Case]:
    """No waits for SMs, of each stream."""
    held = view.causes.of("SMs held", "priority")
    for stream in view.most(held, view.causes.rows.streams[view.row]):
        which = held & (view.causes.rows.streams[view.row] == stream)
        why = f"{int((which & view.on_path).sum())} waits for SMs on the critical path"
        name = view.trace.stream_name(stream)
        code = f'gs.what_if(trace, streams={{{name!r}: {{"priority": -1}}}})'
        words: Words = ("give it priority or a partition", name, "bound", why, code)
        yield view.case(words, gone=which)


def _own_process(view: View) -> Iterator[Case]:
    """Each thread without what it takes longer between calls beside another."""
    causes, rows = view.causes, view.causes.rows
    who = rows.threads[view.row]
    threads = np.unique(who[view.is_host]).tolist()
    busy = {thread: causes.times[causes.target[view.is_host & (who == thread)]] for thread in threads}
    for thread in threads:
        own = view.is_code & (who == thread)
        for other in threads:
            ends = busy[other]
            if other == thread or len(ends) < _ALIKE:
                continue
            times = causes.times[causes.target]
            beside = own & (times >= ends.min()) & (times <= ends.max())
            ratio = _ratio(view, beside, own & ~beside)
            if ratio > _SLOWER:
                why = f"beside thread {other} its times between calls are {ratio:.3g} times as long"
                lag = (causes.lag / ratio).astype(np.int64)
                about = f"thread {thread}"
                words: Words = ("give it a process of its own", about, "recording", why, "multiprocessing")
                yield view.case(words, shorter=beside, lag=lag)


def _ratio(view: View, beside: Bools, alone: Bools) -> float:
    """Return how many times as long gaps before the same lines are; 1 where too few tell."""
    ratios, weights = [1.0], [0.0]
    for line in view.most(beside, view.line):
        both = [view.lasts[which & (view.line == line)] for which in (beside, alone)]
        if min(map(len, both)) >= _ALIKE:
            ratios.append(float(np.median(both[0]) / max(1.0, float(np.median(both[1])))))
            weights.append(float(both[0].sum()))
    return float(np.average(ratios, weights=weights)) if sum(weights) else 1.0


def _straggler(view: View) -> Iterator[Case]:
    """No rank waits for the one that began a collective last."""
    process = view.causes.rows.processes[view.before]
    late = view.causes.of("collective")
    for number in view.most(late, process):
        which = late & (process == number)
        facts = view.trace.metadata.rank(number)
        rank = f"process {number}" if facts is None else f"rank {facts.rank}"
        why = f"{int((which & view.on_path).sum())} collectives on the critical path wait for it"
        words: Words = ("let the rank keep up", rank, "bound", why, "gs.analysis.collectives(trace)")
        yield view.case(words, gone=which)


def _inputs(view: View) -> Iterator[Case]:
    """No call waits for what another thread hands over."""
    given = view.causes.of("hand-over")
    for number in view.most(given, view.line):
        which = given & (view.line == number)
        takers = np.zeros(len(view.causes.rows.ids), bool)
        takers[view.row[which]] = True
        inside = view.is_host & (view.call >= 0) & takers[view.call]
        why = f"{int((which & view.on_path).sum())} times the critical path waits for a queue"
        words: Words = ("have input ready", view.lines[number], "bound", why, "more workers, or larger batches ahead")
        yield view.case(words, shorter=inside, lag=_CALL_NS, gone=which)
