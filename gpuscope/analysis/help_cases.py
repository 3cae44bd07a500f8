"""Changes that might help a program, each as edges that would last less long or be gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from gpuscope._types import Bools, Floats, Ints
from gpuscope.analysis.causes import Causes
from gpuscope.analysis.idle_analysis import MEMORY_CALL
from gpuscope.analysis.path_columns import CALLS, around, next_call
from gpuscope.trace.columns import combined, rows_of
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import kernel_name, range_labels, ranges_in, stream_names
from gpuscope.trace.sites import lines_of

Basis: TypeAlias = Literal["bound", "recording"]
_MOST = 4
"""Changes of each sort that are tried: those about what takes most of the path."""
_ALIKE = 20
"""Gaps between calls, beside another thread and without it, that a comparison needs."""
_SLOWER = 1.05
"""How many times as long they are beside it, at least, for that to be told."""
_CALL_NS, _NODE_NS = 10_000, 1_000
"""About what a call takes that launches a graph, queues a copy or finds work done; and what a node
of a graph costs the host."""
_PAUSE_NS = 50_000
"""Between two calls: what takes longer is the program, not the libraries that it calls."""
_SWITCH_NS, _SWITCHES = 5_000_000, 0.1
"""``sys.getswitchinterval()``, after which a thread gets the interpreter that another one computes
in; and how much later it has it, as a share."""
_RUN = 16
"""Launches of a graph at least, without a pause or a wait for the GPU between them."""
_LONG_NS = 20_000
"""Kernels that are shorter gain less from another stream than it costs."""
_PINNED_BYTES_PER_US = 50_000
"""About what copies of pinned memory reach over PCIe 5."""


_CODE = {
    "make the kernel twice as fast": "gs.what_if(trace, faster={{{0!r}: 2}})",
    "give it a larger partition": "gpu.carve({{{0!r}: …}})",
    "pin the memory": "tensor.pin_memory(), then copy with non_blocking=True",
    "copy beside kernels": "copy ahead, on a stream of its own",
    "shorten the host function": "hand its work to another thread; a stream waits until it is over",
    "use another stream": "launch what needs no data of the others on another stream",
    "give it priority or a partition": "gs.what_if(trace, streams={{{0!r}: {{'priority': -1}}}})",
    "drop the wait between streams": "gs.what_if(trace, drop_waits=…)",
    "let the rank keep up": "gs.analysis.collectives(trace)",
    "do not wait for the GPU": "wait less often, or look at results a step later",
    "have input ready": "more workers, or more batches ahead",
    "keep the memory": "reuse buffers; no torch.cuda.empty_cache() in a loop",
    "record as one graph": "gs.what_if(trace, graphs=[{0!r}])",
    "record as graphs": 'torch.compile(mode="reduce-overhead"), or torch.cuda.graph()',
    "shorten the Python before": "profile the Python there",
    "do not pause": "profile the Python there",
    "give it a process of its own": "multiprocessing, or a queue between two programs",
}
"""Change → how to try it; the braces stand for what it is about."""


@dataclass(frozen=True)
class HelpCase:
    """A change: edges that last no longer than ``lag``, and edges that are gone.

    Attributes
    ----------
    beside
        Edges that a mend may shorten besides, which only bounds its gain.
    name
        What code calls that which it is about, where people call it otherwise.
    """

    change: str
    about: str
    shorter: Bools | bool = False
    lag: Ints | Floats | int = 0
    gone: Bools | bool = False
    basis: Basis = "bound"
    beside: Bools | bool = False
    name: str = ""

    @property
    def code(self) -> str:
        """How to try it."""
        return _CODE[self.change].format(self.name or self.about)


class View:
    """The edges of a window, as cases look at them.

    Attributes
    ----------
    kept, on_path
        Edge → whether it ends in the window; whether it is on the critical path, too.
    row, before
        Edge → row of its target and of its source.
    lasts
        Edge → how long it lasted, ns.
    is_host, is_code
        Edge → whether it is a thread's own time; whether between calls.
    call, range
        Edge of a thread → the call that it lies in, and the innermost range, −1 for none; of a
        launch, the range of its call.
    """

    def __init__(self, trace: Trace, causes: Causes, node: int, low_ns: int, high_ns: int) -> None:
        self.trace, self.causes, self.rows, self.low_ns = trace, causes, causes.rows, low_ns
        source, target, times = causes.source, causes.target, causes.times
        self.kept = (times[target] > low_ns) & (times[target] <= high_ns)
        self.on_path = np.zeros(len(target), bool)
        self.on_path[np.fromiter(causes.back_from(node), np.int64)] = True
        self.on_path &= self.kept
        last = len(self.rows.ids) - 1
        self.row, self.before = (np.minimum(nodes // 2, last) for nodes in (target, source))
        self.lasts = times[target] - times[source]
        self.is_host = self.kept & causes.of("host", "turn")
        whose = np.where(self.is_host, self.row, -1)
        since = times[source]
        self.call = around(causes, rows_of(trace, *CALLS), whose, since)
        self.call[causes.of("turn")] = -1
        self.is_code = self.is_host & (self.call < 0)
        launched = causes.of("launch") & (source < 2 * last + 2)
        whose = np.where(launched, self.before, whose)
        self.range = around(causes, ranges_in(trace)[0], whose, since)

    @cached_property
    def line(self) -> Ints:
        """Edge → number in :attr:`lines` of the call that it is in, comes before or launches."""
        rows, host = self.rows, np.flatnonzero(self.is_host)
        order = host[np.lexsort((host, self.causes.threads[self.causes.target[host]]))]
        call = np.array(self.row)
        call[order] = next_call(self.row[order], rows.having("kind", CALLS))
        call = np.where(self.call >= 0, self.call, call)
        site, sites = rows.coded("site")
        code = np.where(site > 0, site, len(sites) + rows.coded("name")[0])
        number = {line: at for at, line in enumerate(self.lines)}
        numbers = np.array([number[line] for line in self._words])
        return np.where(call >= 0, numbers[code[call]], -1)

    @cached_property
    def _words(self) -> list[str]:
        sites, names = (self.rows.coded(name)[1] for name in ("site", "name"))
        return [*(str((*lines_of(text), "")[0]) for text in sites), *map(str, names)]

    @cached_property
    def lines(self) -> list[str]:
        """Lines of the program, and names of calls whose lines are not known."""
        return list(dict.fromkeys(self._words))

    @cached_property
    def pauses(self) -> Bools:
        """Edge → whether it is a thread's time between two calls that is the program's own."""
        return self.is_code & (self.causes.lag > _PAUSE_NS)

    @cached_property
    def switches(self) -> Bools:
        """Edge → whether its thread waited for the interpreter, if most of its pauses are such."""
        lag = self.causes.lag
        count = np.round(lag / _SWITCH_NS)
        late_ns = lag - count * _SWITCH_NS
        switched: Bools = self.pauses & (late_ns >= 0) & (late_ns <= _SWITCHES * count * _SWITCH_NS)
        is_most = switched.sum() >= _ALIKE and 2 * lag[switched].sum() > lag[self.pauses].sum()
        return switched if is_most else np.zeros(len(lag), bool)

    def each(
        self, which: Bools, keys: Ints, label: Callable[[int], str]
    ) -> Iterator[tuple[str, Bools]]:
        """Yield some edges by key, with what that is called: those that take most of the path."""
        which = which & self.kept & (keys >= 0)
        first, code = combined(keys[which])
        distinct = keys[which][first]
        lasts = self.lasts[which]
        on_path, every = (
            np.bincount(code, weights=ns, minlength=len(distinct))
            for ns in (lasts * self.on_path[which], lasts)
        )
        for key in distinct[np.lexsort((-every, -on_path))][:_MOST].tolist():
            yield label(key), which & (keys == key)

    def saved_ns(self, case: HelpCase) -> Ints:
        """Return edge → how much less long it would last; more than it did if it were gone."""
        lag = self.causes.lag
        shorter = np.where(case.shorter, np.maximum(lag - case.lag, 0), 0).astype(np.int64)
        return np.where(self.kept, np.where(case.gone, self.lasts + 1, shorter), 0)

    def inside(self, rows: Ints) -> Bools:
        """Edge → whether it is in one of these calls."""
        calls = np.zeros(len(self.rows.ids) + 1, bool)
        calls[rows] = True
        return self.is_host & (self.call >= 0) & calls[self.call]


def cases(view: View) -> Iterator[HelpCase]:
    """Yield what might help."""
    sorts = (_of_work, _larger_partitions, _of_orders, _of_waits, _memory, _graphs, _of_hosts)
    for sort in (*sorts, _own_process):
        yield from sort(view)


def _of_work(view: View) -> Iterator[HelpCase]:
    """Faster kernels and host functions; copies of pinned memory, and beside kernels."""
    causes, rows = view.causes, view.rows
    name, names = rows.coded("name")
    runs, half = view.kept & causes.of("running"), causes.lag // 2
    holds = causes.of("SMs held", "priority") & (causes.source % 2 == 0)
    kernels = runs & rows.having("kind", ("kernel", "graph"))[view.row]
    for about, which in view.each(kernels, name[view.row], lambda key: str(names[key])):
        waiting = holds & rows.having("name", (about,))[view.before]
        words = "make the kernel twice as fast", kernel_name(about), which | waiting, half
        yield HelpCase(*words, basis="recording", name=about)
    functions = runs & rows.having("kind", ("host function",))[view.row]
    site, sites = rows.coded("site")
    for about, which in view.each(functions, name[view.row], lambda key: str(names[key])):
        where = [f" at {line}" for line in lines_of(sites[site[view.row[which][0]]])[:1]]
        yield HelpCase("shorten the host function", "".join([about, *where]), which)
    copies = runs & rows.having("kind", ("memcpy",))[view.row]
    pageable = rows.having("src_kind", ("pageable",)) | rows.having("dst_kind", ("pageable",))
    if (which := copies & pageable[view.row]).any():
        nbytes = view.trace.array("nbytes", fill=0)[view.row]
        lag = np.where(which, nbytes * 1000 // _PINNED_BYTES_PER_US, _CALL_NS)
        which = which | view.inside(causes.rows.calls[view.row[which]])
        blocked = causes.of("host wait") & pageable[view.before]
        yield HelpCase("pin the memory", "copies of pageable memory", which, lag, blocked)
    if copies.any():
        yield HelpCase("copy beside kernels", "copies", copies)


def _larger_partitions(view: View) -> Iterator[HelpCase]:
    """More SMs for the kernels of a partition, where what is outside it does nothing."""
    rows, facts = view.rows, view.trace.metadata
    code, names = rows.coded("partition")
    which = view.kept & view.causes.of("running") & rows.having("kind", ("kernel",))[view.row]
    used = {names[number] for number in np.unique(code[view.row[which]]).tolist()}
    if len(used) != 1 or used == {None}:
        return
    (name,) = used
    device = int(rows.devices[view.row[which]][0])
    granted, whole = facts.partition(name).sm_count, facts.device(device).sm_count
    if name and granted and whole and granted < whole:
        about, lag = f"{name}, {granted} of {whole} SMs", view.causes.lag * granted // whole
        yield HelpCase("give it a larger partition", about, which, lag, name=name)


def _of_orders(view: View) -> Iterator[HelpCase]:
    """Other streams, more SMs, no waits between streams, no rank that is late."""
    causes, rows = view.causes, view.rows
    caller, owner = causes.rows.calls, np.full(len(rows.ids), -1)
    launched = causes.of("launch") & (view.range >= 0)
    owner[view.row[launched]] = range_labels(view.trace)[0][view.range[launched]]
    apart = np.zeros(len(view.kept), bool)
    for of in (owner, rows.coded("category")[0], np.where(caller < 0, -1, rows.threads[caller])):
        apart |= of[view.before] != of[view.row]
    is_long = rows.having("kind", ("kernel",)) & (rows.ends - rows.starts > _LONG_NS)
    apart |= is_long[view.before] & is_long[view.row] & ~rows.may_fill(view.before, view.row)
    name = {-1: "no stream", **stream_names(view.trace)}.__getitem__
    both = rows.streams[view.row], rows.streams[view.before]
    for about, which in view.each(causes.of("stream order") & apart, both[0], name):
        yield HelpCase("use another stream", about, gone=which)
    for about, which in view.each(causes.of("SMs held", "priority"), both[0], name):
        yield HelpCase("give it priority or a partition", about, gone=which)
    first, pair = combined(*(np.unique(streams, return_inverse=True)[1] for streams in both))
    names = [" for ".join(name(int(streams[at])) for streams in both) for at in first]
    for about, which in view.each(causes.of("event wait"), pair, names.__getitem__):
        yield HelpCase("drop the wait between streams", about, gone=which)
    ranks = {facts.process: f"rank {facts.rank}" for facts in view.trace.metadata.ranks}
    late = causes.of("collective"), rows.processes[view.before]
    for about, which in view.each(*late, lambda key: ranks.get(key, f"process {key}")):
        yield HelpCase("let the rank keep up", about, gone=which)


def _of_waits(view: View) -> Iterator[HelpCase]:
    """No waits for the GPU, no waits for another thread."""
    waits = view.causes.of("host wait") & ~view.rows.having("kind", ("handle",))[view.row]
    given = view.causes.of("hand-over")
    for change, of in (("do not wait for the GPU", waits), ("have input ready", given)):
        for about, which in view.each(of, view.line, view.lines.__getitem__):
            beside = view.is_host & (view.line == view.line[which][0])
            inside = view.inside(view.row[which])
            yield HelpCase(change, about, inside, _CALL_NS, which, beside=beside)


def _memory(view: View) -> Iterator[HelpCase]:
    """No memory that is allocated or freed, but what is kept and used again."""
    name, names = view.rows.coded("name")
    gets = np.array([MEMORY_CALL.search(str(text)) is not None for text in names])[name]
    rows = np.flatnonzero(gets & view.rows.having("kind", ("api",)))
    which, causes = view.inside(rows), view.causes
    if which.any():
        beside = np.isin(causes.source, 2 * rows + 1) | np.isin(causes.target, 2 * rows)
        about = f"{len(np.unique(view.call[which])):,} calls"
        yield HelpCase("keep the memory", about, which, beside=beside)


def _graphs(view: View) -> Iterator[HelpCase]:
    """Record the launches of each range as one graph; without ranges, those close together."""
    causes, (label, labels) = view.causes, range_labels(view.trace)
    launches, since = causes.of("launch"), causes.times[causes.source]
    ends, ranges = np.r_[causes.times[1::2], 0], ranges_in(view.trace)[0]
    of_range = np.where(view.range >= 0, label[view.range], -1)
    host = np.where(view.is_host, view.row, -1)
    for about, which in view.each(view.is_host | launches, of_range, labels.__getitem__):
        spans = ranges[label[ranges] == labels.index(about)]
        within = around(causes, spans, host, since)
        inside = view.is_host & (within >= 0) & (causes.times[causes.target] <= ends[within])
        total = np.bincount(within[inside], causes.lag[inside], len(ends))
        calls = np.count_nonzero(np.bincount(within[inside]))
        if np.count_nonzero(which & launches) >= 2 * calls:
            share = _CALL_NS / np.maximum(total[within], _CALL_NS)
            yield HelpCase("record as one graph", about, inside, causes.lag * share)
    launching = np.zeros(len(ends), bool)
    launching[causes.rows.calls] = True
    short = view.is_host & (view.range < 0) & (causes.lag <= _PAUSE_NS) & _in_runs(view)
    short &= launching[np.where(view.call >= 0, view.call, view.row)]
    process, quick = view.rows.processes[view.row], view.is_host & ~view.pauses
    for about, which in view.each(short, process, "launches of process {}".format):
        beside = quick & (process == process[which][0])
        yield HelpCase("record as graphs", about, which, _NODE_NS // 2, beside=beside)


def _in_runs(view: View) -> Bools:
    """Edge of a thread → whether it lies in a run of launches without a pause or a wait."""
    causes = view.causes
    waits = np.zeros(len(causes.times), bool)
    waits[causes.target[causes.of("host wait")]] = True
    host = np.flatnonzero(view.is_host)
    host = host[np.lexsort((causes.times[causes.target[host]], view.rows.threads[view.row[host]]))]
    thread, row = view.rows.threads[view.row[host]], view.row[host]
    breaks = waits[causes.target[host]] | view.pauses[host]
    breaks |= np.r_[True, thread[1:] != thread[:-1]][: len(host)]
    run = np.cumsum(breaks)
    launching = np.isin(row, causes.rows.calls) & (view.call[host] >= 0)
    inside = np.zeros(len(view.kept), bool)
    inside[host] = np.bincount(run, launching)[run] >= _RUN
    return inside


def _of_hosts(view: View) -> Iterator[HelpCase]:
    """Less Python before the calls of a line, and outside of all ranges.

    Where lines are known at all, what no line launched is no Python's, such as autograd's.
    """
    pauses = view.pauses & ~view.switches
    site, sites = view.rows.coded("site")
    if site.any():
        python_lines = {str(lines[0]) for text in sites if (lines := lines_of(text))}
        pauses &= np.array([line in python_lines for line in view.lines])[view.line]
    for about, which in view.each(pauses, view.line, view.lines.__getitem__):
        beside = view.is_code & (view.line == view.line[which][0])
        yield HelpCase("shorten the Python before", about, which, beside=beside)
    if (view.range[view.is_host] >= 0).any():
        yield HelpCase("do not pause", "outside any range", pauses & (view.range < 0))


def _own_process(view: View) -> Iterator[HelpCase]:
    """Each thread without what it takes longer between calls while another is there.

    Where the other one never calls CUDA it shows by when the interpreter goes from one to the
    other: a pause lasts one switch interval, or a few.
    """
    causes, who = view.causes, view.rows.threads[view.row]
    process = view.rows.processes[view.row]
    if view.switches.any():
        about = "another thread computes in Python and holds the interpreter lock"
        beside = view.is_host & np.isin(who, who[view.switches])
        yield HelpCase("give it a process of its own", about, view.switches, beside=beside)
    at = causes.times[causes.target]
    for thread in np.unique(who[view.is_host]).tolist():
        code = view.is_code & (who == thread)
        alike = view.is_host & (process == process[who == thread][0])
        for other in np.unique(who[alike & (who != thread)]).tolist():
            other_times = at[view.is_host & (who == other)]
            beside = code & (at >= other_times.min()) & (at <= other_times.max())
            ratio = _slower(view, beside, code & ~beside)
            if len(other_times) >= _ALIKE and ratio >= _SLOWER:
                about = f"thread {thread}, {ratio:.3g} times as slow beside thread {other}"
                lag = causes.lag / ratio
                yield HelpCase(
                    "give it a process of its own", about, beside, lag, basis="recording"
                )


def _slower(view: View, beside: Bools, alone: Bools) -> float:
    """Return how many times as long gaps before the same lines are; 1 where too few tell."""
    ratios, weights = [1.0], [1.0]
    for _, which in view.each(beside, view.line, str):
        number = view.line[which][0]
        gaps = view.lasts[which], view.lasts[alone & (view.line == number)]
        if min(map(len, gaps)) >= _ALIKE:
            ratios.append(float(np.median(gaps[0]) / max(1.0, float(np.median(gaps[1])))))
            weights.append(float(gaps[0].sum()))
    return float(np.average(ratios, weights=weights))
