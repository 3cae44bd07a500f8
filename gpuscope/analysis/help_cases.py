"""Changes that might help a program, each as edges that would last less long or be gone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from gpuscope._plugins import Plugins
from gpuscope._text import clean
from gpuscope._types import Bools, Floats, Ints
from gpuscope.analysis.help_view import PAUSE_NS, HelpView
from gpuscope.analysis.idle_analysis import MEMORY_CALL
from gpuscope.analysis.path_columns import around
from gpuscope.analysis.span_rows import OPEN
from gpuscope.analysis.standstill import Standstills
from gpuscope.trace.columns import combined
from gpuscope.trace.naming import COPIES, kernel_name, range_labels, ranges_in, stream_names
from gpuscope.trace.sites import lines_of

Basis: TypeAlias = Literal["bound", "recording"]
TWICE = "make the kernel twice as fast"
"""What nobody knows how to do, if at all."""
REORDERS = (
    "use another stream",
    "give it priority or a partition",
    "drop the wait between streams",
)
"""Changes that take an order of work away without another in its place."""
_ALIKE = 20
"""Gaps between calls, beside another thread and without it, that a comparison needs."""
_SLOWER = 1.05
"""How many times as long they are beside it, at least, for that to be told."""
_CALL_NS = 10_000
_NODE_NS = 1_000
"""About what a call takes that launches a graph, queues a copy or finds work done; and what a node
of a graph costs the host."""
_SELECTS = re.compile("(?i)DeviceSelect|DeviceCompact|nonzero")
"""Kernels that write as much as a mask selects: the host has to know how much that is before."""
_WIDE = re.compile("GEMM.* float32$")
_NARROWER = 15
"""Matrix products in float32, and how many times as fast tensor cores make them at most: bfloat16's
989 TFLOP/s of an H100 over 67 (NVIDIA H100 datasheet, SXM, dense)."""
_CUT = 0.1
"""Share of ranges with a wait between launches, up to which their launches are a graph."""
_RUN = 16
"""Launches of a graph at least, without a pause or a wait for the GPU between them."""
_LONG_NS = 20_000
"""Kernels that are shorter gain less from another stream than it costs."""
_PINNED_BYTES_PER_US = 50_000
"""About what copies of pinned memory reach over PCIe 5."""


_CODE = {
    TWICE: "gs.what_if(trace, faster={{{0!r}: 2}})",
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
    "compile it once": "pass what changes at run time: no tl.constexpr, no specialised argument",
    "do not block with a lock held": "wait for an event of one stream, outside the lock",
    "keep off the legacy default stream": "launch on the stream that made the data",
    "multiply in a narrower type": 'torch.set_float32_matmul_precision("high"), or bfloat16',
    "keep the mask on the GPU": "torch.where(mask, …), whose size does not depend on values",
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
    instead
        Edges, gone or not, and nodes that come before their targets as well.
    how
        How to try it, of a change that another package adds.
    """

    change: str
    about: str
    shorter: Bools | bool = False
    lag: Ints | Floats | int = 0
    gone: Bools | bool = False
    basis: Basis = "bound"
    beside: Bools | bool = False
    name: str = ""
    instead: tuple[Ints, Ints] | None = None
    how: str = ""

    @property
    def code(self) -> str:
        """How to try it."""
        return self.how or _CODE.get(self.change, "").format(self.name or self.about)


def saved_ns(case: HelpCase, view: HelpView, edges: Ints | None = None) -> Ints:
    """Return how much less long some edges would last, or all; gone ones more than they did."""

    def of(values: Any) -> Any:
        is_scalar = edges is None or np.ndim(values) == 0
        return values if is_scalar else values[edges]

    left_ns = of(view.causes.lag) - of(case.lag)
    shorter = np.where(of(case.shorter), np.maximum(left_ns, 0), 0).astype(np.int64)
    return np.where(of(view.kept), np.where(of(case.gone), of(view.lasts) + 1, shorter), 0)


CHANGES: Plugins[Callable[[HelpView], Iterable[HelpCase]]] = Plugins("gpuscope.changes", "change")
"""Functions of other packages, which return changes of a program by the edges of its causes."""


def cases_of_others(view: HelpView) -> tuple[list[HelpCase], list[str]]:
    """Return what other packages say might help, and what is wrong with some of these."""
    added: list[HelpCase] = []
    failed = []
    for name, make in CHANGES.usable().items():
        try:
            added += make(view)
        except Exception as error:  # noqa: BLE001 - it is somebody else's code
            package = CHANGES.package(name)
            failed.append(
                f"the change {name!r} of the package {package!r} failed: "
                f"{type(error).__name__}: {error}. Mend or uninstall the package"
            )
    return added, [*CHANGES.problems(), *map(clean, failed)]


def cases(view: HelpView) -> Iterator[HelpCase]:
    """Yield what might help."""
    sorts = (_of_work, _larger_partitions, _of_orders, _of_waits, _memory, _graphs, _own_process)
    for sort in sorts:
        yield from sort(view)
    standstills = Standstills(view)
    yield from _of_standstills(view, standstills)
    yield from _of_hosts(view, view.pauses & standstills.unexplained)


def _of_work(view: HelpView) -> Iterator[HelpCase]:
    """Faster kernels and host functions; copies of pinned memory, and beside kernels."""
    causes = view.causes
    rows = view.rows
    name, names = rows.coded("name")
    runs = view.kept & causes.of("running")
    half = causes.lag // 2
    holds = causes.of("SMs held", "priority") & (causes.source % 2 == 0)
    kernels = runs & rows.having("kind", ("kernel", "graph"))[view.row]
    for about, which in view.each(kernels, name[view.row], lambda key: str(names[key])):
        waiting = holds & rows.having("name", (about,))[view.before]
        words = TWICE, kernel_name(about), which | waiting, half
        yield HelpCase(*words, basis="recording", name=about)
    is_wide = np.array([_is_wide(str(text)) for text in names])
    if (which := kernels & is_wide[name[view.row]]).any():
        line = _most_of(view, which)
        about = "float32 products" + f" at {line}" * bool(line)
        yield HelpCase("multiply in a narrower type", about, which, causes.lag // _NARROWER)
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
    for direction in ("HtoD", "DtoH"):
        which = copies & rows.having("copy_kind", (direction,))[view.row] & ~pageable[view.row]
        if which.any():
            gone, instead = _in_two_buffers(view, view.row[which], is_upload=direction == "HtoD")
            yield HelpCase(
                "copy beside kernels",
                COPIES[direction],
                gone=gone,
                basis="recording",
                beside=which,
                instead=instead,
            )
    which = copies & rows.having("copy_kind", (None,))[view.row]
    if which.any():
        yield HelpCase("copy beside kernels", "copies", which)


def _is_wide(kernel: str) -> bool:
    """Whether a kernel multiplies in float32 on no tensor cores, which all of nvjet's use."""
    return "nvjet" not in kernel and _WIDE.search(kernel_name(kernel)) is not None


def _most_of(view: HelpView, which: Bools) -> str:
    """Return the line at which work was launched that takes most of some edges; none: empty."""
    site, sites = view.rows.coded("site")
    calls = np.r_[view.rows.calls, -1][view.row[which]]
    total = np.bincount(np.where(calls >= 0, site[calls], 0), view.lasts[which])
    made_by = lines_of(sites[int(total.argmax())])
    return str(made_by[0]) if made_by else ""


def _in_two_buffers(
    view: HelpView, copies: Ints, *, is_upload: bool
) -> tuple[Bools, tuple[Ints, Ints]]:
    """Return how copies would be ordered in a stream of their own.

    Each of two buffers is used by turns. An upload follows the one before it, and the work that
    used its buffer last, which is that before the last upload; what uses it still follows the work
    before it. Work behind a copy to the host follows that before it, and the copy before it, whose
    buffer it fills; copies follow each other.

    Returns
    -------
    tuple
        Edge → whether it is gone; edges, and nodes that come before their targets as well.
    """
    causes, (order, first) = view.causes, view.rows.queues
    copied = np.isin(order, copies)
    begins = first == np.arange(len(order))
    starts = np.flatnonzero(copied & (begins | ~np.r_[False, copied[:-1]]))
    ends = np.flatnonzero(copied & np.r_[begins[1:] | ~copied[1:], True][: len(order)])
    of_stream = first[starts]
    has_last = np.r_[False, of_stream[1:] == of_stream[:-1]][: len(starts)]
    none = np.full(len(starts), -1)
    before = np.where(starts > of_stream, starts - 1, none)
    behind = np.where(np.r_[first, -1][ends + 1] == of_stream, ends + 1, none)
    last_copy = np.where(has_last, np.r_[none[:1], ends[:-1]], none)
    before_last = np.where(has_last, np.r_[none[:1], before[:-1]], none)
    edge_to = np.full(len(view.rows.ids) + 1, -1)
    ordering = np.flatnonzero(causes.of("stream order") & view.kept)
    edge_to[view.row[ordering]] = ordering
    at_copy, at_work = (edge_to[np.r_[order, -1][at]] for at in (starts, behind))
    if is_upload:
        moved = at_copy
        pairs = (at_copy, last_copy), (at_copy, before_last), (at_work, before)
    else:
        moved = at_work
        pairs = (at_work, before), (at_work, last_copy), (at_copy, last_copy)
    edges, positions = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    is_known = (edges >= 0) & (positions >= 0)
    gone = np.zeros(len(view.kept), bool)
    gone[moved[moved >= 0]] = True
    return gone, (edges[is_known], 2 * order[positions[is_known]] + 1)


def _larger_partitions(view: HelpView) -> Iterator[HelpCase]:
    """More SMs for the kernels of a partition, where what is outside it does nothing."""
    rows = view.rows
    facts = view.trace.metadata
    code, names = rows.coded("partition")
    which = view.kept & view.causes.of("running") & rows.having("kind", ("kernel",))[view.row]
    used = {names[number] for number in np.unique(code[view.row[which]]).tolist()}
    if len(used) != 1 or used == {None}:
        return
    (name,) = used
    device = int(rows.devices[view.row[which]][0])
    granted = facts.partition(name).sm_count
    whole = facts.device(device).sm_count
    if name and granted and whole and granted < whole:
        about = f"{name}, {granted} of {whole} SMs"
        lag = view.causes.lag * granted // whole
        yield HelpCase("give it a larger partition", about, which, lag, name=name)


def _of_orders(view: HelpView) -> Iterator[HelpCase]:
    """Other streams, more SMs, no waits between streams, no rank that is late."""
    causes = view.causes
    rows = view.rows
    caller = causes.rows.calls
    owner = np.full(len(rows.ids), -1)
    launched = causes.of("launch") & (view.range >= 0)
    owner[view.row[launched]] = range_labels(view.trace)[0][view.range[launched]]
    apart = np.zeros(len(view.kept), bool)
    for of in (owner, rows.coded("category")[0], np.where(caller < 0, -1, rows.threads[caller])):
        apart |= of[view.before] != of[view.row]
    is_long = rows.having("kind", ("kernel",)) & (rows.ends - rows.starts > _LONG_NS)
    apart |= is_long[view.before] & is_long[view.row] & ~rows.may_fill(view.before, view.row)
    name_of = {-1: "no stream", **stream_names(view.trace)}
    name = name_of.__getitem__
    both = rows.streams[view.row], rows.streams[view.before]
    for about, which in view.each(causes.of("stream order") & apart, both[0], name):
        yield HelpCase("use another stream", about, gone=which)
    if (which := causes.of("legacy default stream") & view.kept).any():
        about = ", ".join(name_of[stream] for stream in rows.legacy_streams if stream in name_of)
        yield HelpCase("keep off the legacy default stream", about, gone=which)
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


def _of_waits(view: HelpView) -> Iterator[HelpCase]:
    """No waits for the GPU, no waits for another thread."""
    waits = view.causes.of("host wait") & ~view.rows.having("kind", ("handle",))[view.row]
    given = view.causes.of("hand-over")
    for change, of in (("do not wait for the GPU", waits), ("have input ready", given)):
        for about, which in view.each(of, view.line, view.lines.__getitem__):
            beside = view.is_host & (view.line == view.line[which][0])
            inside = view.inside(view.row[which])
            is_mask = of is waits and _is_of_masks(view, view.before[which])
            words = "keep the mask on the GPU" if is_mask else change
            yield HelpCase(words, about, inside, _CALL_NS, which, beside=beside)


def _is_of_masks(view: HelpView, copies: Ints) -> bool:
    """Whether most of what a host waited for are counts of what a mask selects."""
    rows = view.rows
    (order, _), (places, _) = rows.queues, rows.latest
    selects = np.array([bool(_SELECTS.search(str(text))) for text in rows.coded("name")[1]])
    at = np.where(places[copies] >= 0, places[copies] + 1, len(order))
    following = np.r_[order, -1][np.minimum(at, len(order))]
    is_count = rows.having("kind", ("memcpy",))[copies] & (following >= 0)
    is_count &= selects[rows.coded("name")[0][following]]
    is_count &= rows.streams[following] == rows.streams[copies]
    return bool(2 * is_count.sum() > len(copies))


def _memory(view: HelpView) -> Iterator[HelpCase]:
    """No memory that is allocated or freed, but what is kept and used again."""
    name, names = view.rows.coded("name")
    gets = np.array([MEMORY_CALL.search(str(text)) is not None for text in names])[name]
    rows = np.flatnonzero(gets & view.rows.having("kind", ("api",)))
    which = view.inside(rows)
    causes = view.causes
    if which.any():
        beside = np.isin(causes.source, 2 * rows + 1) | np.isin(causes.target, 2 * rows)
        about = f"{len(np.unique(view.call[which])):,} calls"
        yield HelpCase("keep the memory", about, which, beside=beside)


def _graphs(view: HelpView) -> Iterator[HelpCase]:
    """Record the launches of each range as one graph; without ranges, those close together."""
    causes, (label, labels) = view.causes, range_labels(view.trace)
    launches = causes.of("launch")
    since = causes.times[causes.source]
    ends = np.r_[causes.times[1::2], 0]
    ranges = ranges_in(view.trace)[0]
    of_range = np.where(view.range >= 0, label[view.range], -1)
    host = np.where(view.is_host, view.row, -1)
    launching = np.zeros(len(ends), bool)
    launching[causes.rows.calls] = True
    for about, which in view.each(view.is_host | launches, of_range, labels.__getitem__):
        spans = ranges[label[ranges] == labels.index(about)]
        within = around(causes, spans, host, since)
        inside = view.is_host & (within >= 0) & (causes.times[causes.target] <= ends[within])
        total = np.bincount(within[inside], causes.lag[inside], len(ends))
        calls = np.count_nonzero(np.bincount(within[inside]))
        cut = _cut_by_waits(view, np.where(inside, within, -1), launching)
        if np.count_nonzero(which & launches) >= 2 * calls and cut <= _CUT * calls:
            share = _CALL_NS / np.maximum(total[within], _CALL_NS)
            yield HelpCase("record as one graph", about, inside, causes.lag * share)
    short = view.is_host & (view.range < 0) & (causes.lag <= PAUSE_NS) & _in_runs(view)
    short &= launching[np.where(view.call >= 0, view.call, view.row)]
    process = view.rows.processes[view.row]
    quick = view.is_host & ~view.pauses
    for about, which in view.each(short, process, "launches of process {}".format):
        beside = quick & (process == process[which][0])
        yield HelpCase("record as graphs", about, which, _NODE_NS // 2, beside=beside)


def _cut_by_waits(view: HelpView, within: Ints, launching: Bools) -> int:
    """Return in how many ranges something is launched behind a wait: no graph has both.

    Parameters
    ----------
    within
        Edge → the range, −1 for none.
    launching
        Row → whether it launches work.
    """
    causes = view.causes
    rows = view.rows
    waiting = np.r_[rows.having("kind", ("sync",)), False]
    waiting[view.row[causes.of("host wait")]] = True
    waiting[:-1] &= ~rows.having("kind", ("handle",))
    since = causes.times[causes.source]
    waited_ns = np.full(len(launching), OPEN)
    launched_ns = np.full(len(launching), -1)
    waits, launches = (
        (within >= 0) & (view.call >= 0) & does[view.call] for does in (waiting, launching)
    )
    np.minimum.at(waited_ns, within[waits], since[waits])
    np.maximum.at(launched_ns, within[launches], since[launches])
    return int(np.count_nonzero(launched_ns > waited_ns))


def _in_runs(view: HelpView) -> Bools:
    """Edge of a thread → whether it lies in a run of launches without a pause or a wait."""
    causes = view.causes
    waits = np.zeros(len(causes.times), bool)
    waits[causes.target[causes.of("host wait")]] = True
    host = np.flatnonzero(view.is_host)
    host = host[np.lexsort((causes.times[causes.target[host]], view.rows.threads[view.row[host]]))]
    thread = view.rows.threads[view.row[host]]
    row = view.row[host]
    breaks = waits[causes.target[host]] | view.pauses[host]
    breaks |= np.r_[True, thread[1:] != thread[:-1]][: len(host)]
    run = np.cumsum(breaks)
    launching = np.isin(row, causes.rows.calls) & (view.call[host] >= 0)
    inside = np.zeros(len(view.kept), bool)
    inside[host] = np.bincount(run, launching)[run] >= _RUN
    return inside


def _of_standstills(view: HelpView, standstills: Standstills) -> Iterator[HelpCase]:
    """No pauses of a thread but the usual ones, where it is known why it stands still."""
    for change, causes_of in (
        ("compile it once", standstills.compiled),
        ("do not block with a lock held", standstills.blocked),
        ("give it a process of its own", standstills.switched),
    ):
        for pauses in causes_of:
            which = pauses.edges & view.kept
            yield HelpCase(change, pauses.about, which, pauses.usual_ns, basis="recording")


def _of_hosts(view: HelpView, pauses: Bools) -> Iterator[HelpCase]:
    """Less Python before the calls of a line, and outside of all ranges.

    Where lines are known at all, what no line launched is no Python's, such as autograd's.
    """
    site, sites = view.rows.coded("site")
    if site.any():
        python_lines = {str(lines[0]) for text in sites if (lines := lines_of(text))}
        pauses &= np.array([line in python_lines for line in view.lines])[view.line]
    for about, which in view.each(pauses, view.line, view.lines.__getitem__):
        beside = view.is_code & (view.line == view.line[which][0])
        yield HelpCase("shorten the Python before", about, which, beside=beside)
    if (view.range[view.is_host] >= 0).any():
        yield HelpCase("do not pause", "outside any range", pauses & (view.range < 0))


def _own_process(view: HelpView) -> Iterator[HelpCase]:
    """Each thread without what it takes longer between calls while another is there."""
    causes = view.causes
    who = view.rows.threads[view.row]
    process = view.rows.processes[view.row]
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


def _slower(view: HelpView, beside: Bools, alone: Bools) -> float:
    """Return how many times as long gaps before the same lines are; 1 where too few tell."""
    ratios = [1.0]
    weights = [1.0]
    for _, which in view.each(beside, view.line, str):
        number = view.line[which][0]
        gaps = view.lasts[which], view.lasts[alone & (view.line == number)]
        if min(map(len, gaps)) >= _ALIKE:
            ratios.append(float(np.median(gaps[0]) / max(1.0, float(np.median(gaps[1])))))
            weights.append(float(gaps[0].sum()))
    return float(np.average(ratios, weights=weights))
