"""Why programs are slow: each mechanism with its evidence, what it changes, and in what words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from gpuscope._types import Bools, Ints
from gpuscope.analysis.causes import POLL
from gpuscope.analysis.help_view import PAUSE_NS, HelpView
from gpuscope.analysis.idle_analysis import MEMORY_CALL
from gpuscope.analysis.kernel_trials import measured_kernels
from gpuscope.analysis.mechanisms import MECHANISMS, HelpCase, mechanism
from gpuscope.analysis.native_threads import followed_calls, latest_followed
from gpuscope.analysis.path_columns import around
from gpuscope.analysis.ranks_analysis import ranks
from gpuscope.analysis.span_rows import OPEN
from gpuscope.analysis.standstill import ProgramView, Standstill
from gpuscope.errors import MissingEvidence
from gpuscope.trace.collectives import is_nccl
from gpuscope.trace.columns import combined
from gpuscope.trace.joins import distinct, numbered, union
from gpuscope.trace.naming import (
    COPIES,
    kernel_name,
    range_labels,
    ranges_in,
    stream_names,
    thread_names,
)
from gpuscope.trace.schema import COLLECTION
from gpuscope.trace.sites import lines_of

TWICE = "make the kernel twice as fast"
"""What nobody knows how to do, if at all."""
_GENERAL, _WHAT_IF = 0.2, 0.1
"""What gains count of whose causes most programs have some, and of what might not be possible."""
KEEP_UP = "let the rank keep up"
_CALL_NS = 10_000
_NODE_NS = 1_000
"""About what a call takes that launches a graph, queues a copy or finds work done; and what a node
of a graph costs the host."""
_SELECTS = re.compile("(?i)DeviceSelect|DeviceCompact|nonzero")
"""Kernels that write as much as a mask selects: the host has to know how much that is before."""
_REDUCES = re.compile("(?i)nccl.*all_?reduce")
_OPTIMIZES = re.compile("(?i)multi_tensor|adam|sgd|lamb(?!da)|adagrad|rmsprop|momentum")
"""Kernels that reduce gradients over all ranks, and that update parameters by them."""
_WIDE = re.compile(r"(GEMM|attention).* \(?float32\)?$|^gemm_float32_")
_FLOAT = re.compile(r" \(?float32\)?$")
_NARROWER = 15
"""Products in float32, all kernels in it, and how many times as fast tensor cores make products at
most: bfloat16's 989 TFLOP/s of an H100 over 67 (NVIDIA H100 datasheet, SXM, dense)."""
_DOUBLE = re.compile(r"float64\)?$")
_MOVES = {
    re.compile("^copy( |$)"): "copies and conversions",
    re.compile("^memory layout|AddPadding"): "changes of memory layout",
    re.compile("^concatenate"): "concatenations",
}
_ELEMENTWISE = re.compile("elementwise_kernel|softmax|SoftMax|dropout|^cupy_")
"""What kernels are called that compute in float64, that only move data, and what that is; parts of
names of those whose results a compiler hands on in registers."""
_TYPICAL = 0.1
"""Share of the time that kernels take in most programs which are found in most programs."""
_MUCH_LATER = 2
"""How many times as long others wait for a rank that is late as for any other, and a stream for SMs
of others as they for its."""
_MOSTLY = 0.5
"""Share of what is at a line that is said to be mostly there."""
_CUT = 0.1
"""Share of ranges with a wait between launches, up to which their launches are a graph."""
_ANEW = 5
"""Graphs of the same kernels at least, of which each is launched once."""
_RUN = 16
"""Launches of a graph at least, without a pause or a wait for the GPU between them."""
_LONG_NS = 20_000
"""Kernels that are shorter gain less from another stream than it costs."""
_ELSEWHERE = 0.01
"""Share of the time of kernels of partitions that others take at most, which have all SMs."""
_STAGED_BYTES = 64 << 10
"""So many bytes of pageable memory are copied to the GPU without waiting (CUDA Runtime API, "API
synchronization behavior")."""
_PINNED_BYTES_PER_US = 50_000
"""About what copies of pinned memory reach over PCIe 5."""


# -- waits of a thread --------------------------------------------------------------------------
def _standstills(pauses: Iterable[Standstill], view: ProgramView) -> Iterator[HelpCase]:
    """Yield pauses of a thread that would be the usual ones."""
    for of_cause in pauses:
        which = of_cause.edges & view.kept
        lag = of_cause.usual_ns
        yield HelpCase(of_cause.about, which, lag, basis="recording")


@mechanism(
    "compile it once",
    "{} is compiled anew",
    "pass what changes at run time: no tl.constexpr, no specialised argument",
)
def _compiled_anew(view: ProgramView) -> Iterator[HelpCase]:
    """Yield pauses before kernels whose launch configuration is new, and before no others."""
    return _standstills(view.compiled, view)


@mechanism(
    "compile less often",
    "code is compiled {}",
    "keep shapes, types and static arguments as they are from call to call, or cache what is "
    "compiled",
)
def _compiles(view: ProgramView) -> Iterator[HelpCase]:
    """Yield the time of threads in compilers, by samples; what else is then may go with it."""
    which = view.compilation >= 0
    if not which.any():
        return
    causes = view.causes
    begins = causes.times[causes.source]
    compilations, of = np.unique(view.compilation[which], return_inverse=True)
    since = np.full(len(compilations), OPEN)
    until = np.zeros(len(compilations), np.int64)
    np.minimum.at(since, of, begins[which])
    np.maximum.at(until, of, causes.times[causes.target[which]])
    since, until = union(since, until).T
    middle = begins + view.lasts // 2
    at = since.searchsorted(middle, "right") - 1
    beside = (at >= 0) & (middle < until[at])
    took_ns = np.bincount(of, view.lasts[which])
    line = view.compiling_lines[compilations[took_ns.argmax()]]
    about = f"mostly at {line}" if line else "by libraries"
    yield HelpCase(about, which, beside=beside, times=len(compilations))


@mechanism(
    "try kernels out less often",
    "a library measures which kernel is the fastest, in {}",
    "torch.backends.cudnn.benchmark = False, or fewer shapes; for Triton, fewer keys of "
    "@triton.autotune",
)
def _tries(view: ProgramView) -> Iterator[HelpCase]:
    """Yield the time of threads that measure one kernel after another by events.

    What the line takes otherwise may go as well.
    """
    measured = np.r_[measured_kernels(view), -1]
    number = np.where(view.is_host, measured[view.coming], -1)
    which = number >= 0
    if which.any():
        about = _mostly(view, which, "calls")
        beside = _at_its_line(view, which)
        times = len(distinct(number[which]))
        yield HelpCase(about, which, beside=beside, times=times)


@mechanism(
    "do not block with a lock held",
    "a thread stands still until {} returns",
    "wait for an event of one stream, outside the lock",
)
def _lock_held(view: ProgramView) -> Iterator[HelpCase]:
    """Yield pauses that end as a call of another thread does, far more often than by chance."""
    return _standstills(view.blocked, view)


@mechanism(
    "give it a process of its own",
    "a thread stands still while {}",
    "multiprocessing, or a queue between two programs",
)
def _interpreter_held(view: ProgramView) -> Iterator[HelpCase]:
    """Yield pauses of whole switch intervals of the interpreter beside another's Python."""
    return _standstills(view.switched, view)


@mechanism(
    "collect garbage less often",
    "Python's garbage collector holds a thread up, mostly in {}",
    "gc.freeze() behind the set-up, and gc.collect() where the GPU has work",
)
def _collector(view: ProgramView) -> Iterator[HelpCase]:
    """Yield collections that threads were held up by."""
    calls = np.flatnonzero(view.rows.having("name", (COLLECTION,)))
    if (which := view.inside(calls)).any():
        thread = int(view.rows.threads[view.row[which]][0])
        about = thread_names(view.trace).get(thread, f"thread {thread}")
        yield HelpCase(about, which, basis="recording", rows=view.call[which])


@mechanism(
    "have input ready",
    "a thread waits at {} for what another thread or process makes",
    "more workers; or more ahead, where waits are few",
)
def _input_late(view: ProgramView) -> Iterator[HelpCase]:
    """Yield where a thread gets what another one puts only then."""
    for about, which in view.each(view.causes.of("hand-over"), view.line, view.lines.__getitem__):
        yield _no_wait(about, which, view)


def _no_wait(about: str, which: Bools, view: HelpView, *, beside: Bools | bool = False) -> HelpCase:
    """Return a wait that finds all done."""
    calls = view.row[which]
    name, names = view.rows.coded("name")
    looks = np.array([POLL.search(str(text)) is not None for text in names])
    waits = calls[~looks[name[calls]]]
    return HelpCase(
        about,
        view.inside(calls),
        _CALL_NS,
        which,
        beside=beside,
        rows=waits if len(waits) else calls,
    )


@mechanism(
    "do not wait for the GPU",
    "a thread waits for the GPU at {}",
    "wait less often, or look at results a step later",
)
def _waits(view: ProgramView) -> Iterator[HelpCase]:
    """Yield lines at which a thread waits until work is done; a query waits for nothing."""
    for about, which in _host_waits(view):
        if not _is_of_masks(view, view.before[which]):
            yield _no_wait(about, which, view)


@mechanism(
    "keep the mask on the GPU",
    "a thread waits for how much a mask selects, at {}",
    "torch.where(mask, …), whose size does not depend on values",
)
def _masks(view: ProgramView) -> Iterator[HelpCase]:
    """Yield lines at which a count is waited for, behind which a kernel selects.

    What the line takes otherwise may go as well.
    """
    for about, which in _host_waits(view):
        if _is_of_masks(view, view.before[which]):
            beside = view.is_host & (view.line == view.line[which][0])
            yield _no_wait(about, which, view, beside=beside)


def _host_waits(view: HelpView) -> Iterator[tuple[str, Bools]]:
    waits = view.causes.of("host wait") & ~view.rows.having("kind", ("handle",))[view.row]
    return view.each(waits, view.line, view.lines.__getitem__)


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


# -- memory and copies ----------------------------------------------------------------------------
@mechanism(
    "keep the memory",
    "memory is allocated and freed in {}",
    "reuse buffers; no torch.cuda.empty_cache() in a loop",
)
def _memory(view: ProgramView) -> Iterator[HelpCase]:
    """Yield calls that allocate and free; what waits for them may go with them."""
    rows = np.flatnonzero(_gets_memory(view))
    which = view.inside(rows)
    causes = view.causes
    if which.any():
        beside = np.isin(causes.source, 2 * rows + 1) | np.isin(causes.target, 2 * rows)
        about = _mostly(view, which, "calls")
        yield HelpCase(about, which, basis="recording", beside=beside, rows=view.call[which])


def _gets_memory(view: HelpView) -> Bools:
    """Row → whether it is a call that allocates or frees memory."""
    name, names = view.rows.coded("name")
    gets = np.array([MEMORY_CALL.search(str(text)) is not None for text in names])[name]
    return gets & view.rows.having("kind", ("api",))


@mechanism(
    "pin the memory",
    "{} hold their thread up",
    "copy less, or less often; or to the GPU, tensor.pin_memory() and non_blocking=True, "
    "cupyx.empty_pinned, numba.cuda.pinned_array; to the host, into pinned memory, with an event "
    "that is waited for later",
)
def _pageable(view: ProgramView) -> Iterator[HelpCase]:
    """Yield copies of pageable memory, which are slower than the link; to the GPU, they block.

    What their line takes otherwise may go as well.
    Those to the host have to be waited for in any case.
    """
    causes = view.causes
    rows = view.rows
    nbytes = view.trace.array("nbytes", fill=0)
    is_pageable = _is_pageable(view) & (nbytes > _STAGED_BYTES)
    if (which := _copies(view) & is_pageable[view.row]).any():
        copied = view.row[which]
        kind, kinds = rows.coded("copy_kind")
        took_ns = np.bincount(kind[copied], view.lasts[which], len(kinds))
        most = kinds[took_ns.argmax()]
        copies = COPIES.get(str(most), "copies")
        is_upload = rows.having("src_kind", ("pageable",))
        nbytes = nbytes[view.row]
        lag = np.where(which, nbytes * 1000 // _PINNED_BYTES_PER_US, _CALL_NS)
        which = which | view.inside(causes.rows.calls[view.row[which]])
        blocked = causes.of("host wait") & (is_pageable & is_upload)[view.before]
        about = _mostly(view, which, f"{copies} of pageable memory")
        beside = _at_its_line(view, which)
        yield HelpCase(about, which, lag, blocked, beside=beside, rows=copied)


def _copies(view: HelpView) -> Bools:
    """Edge → whether a copy runs."""
    runs = view.kept & view.causes.of("running")
    return runs & view.rows.having("kind", ("memcpy",))[view.row]


def _is_pageable(view: HelpView) -> Bools:
    """Row → whether it copies from or to pageable memory."""
    rows = view.rows
    return rows.having("src_kind", ("pageable",)) | rows.having("dst_kind", ("pageable",))


@mechanism(
    "copy beside kernels",
    "{} and kernels alternate in one stream",
    "copy ahead, into a second buffer, on a stream of its own, with events both ways",
)
def _copies_alone(view: ProgramView) -> Iterator[HelpCase]:
    """Yield copies of pinned memory in the stream of the kernels that use it, with two buffers.

    Of copies whose kind of memory is not known, only how long they take is.
    """
    is_pageable = _is_pageable(view)[view.row]
    for direction in ("HtoD", "DtoH"):
        which = _copies(view) & view.rows.having("copy_kind", (direction,))[view.row] & ~is_pageable
        if which.any():
            gone, instead = _in_two_buffers(view, view.row[which], is_upload=direction == "HtoD")
            yield HelpCase(
                COPIES[direction],
                gone=gone,
                basis="recording",
                beside=which,
                instead=instead,
                rows=view.row[which],
            )
    which = _copies(view) & view.rows.having("copy_kind", (None,))[view.row]
    if which.any():
        yield HelpCase("copies", which)


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


# -- streams and partitions -----------------------------------------------------------------------
@mechanism(
    "keep off the legacy default stream",
    "work on a legacy default stream ({}) and that of other streams hold each other up",
    "launch on the stream that made the data",
)
def _legacy(view: ProgramView) -> Iterator[HelpCase]:
    """Yield what begins as work of the legacy default stream ends, or waits for it."""
    if (which := view.causes.of("legacy default stream") & view.kept).any():
        name_of = stream_names(view.trace)
        legacy = [stream for stream in view.rows.legacy_streams if stream in name_of]
        works = view.causes.of("running") & np.isin(view.rows.streams[view.row], legacy)
        about = _mostly(view, works & view.kept, ", ".join(name_of[stream] for stream in legacy))
        yield HelpCase(about, gone=which)


@mechanism(
    "give it a larger partition",
    "the kernels of a partition have too few SMs: {}",
    "gpu.carve({{{0!r}: …}})",
)
def _small_partition(view: ProgramView) -> Iterator[HelpCase]:
    """Yield the busiest partition, where the SMs of others have less to do.

    Each gets SMs as its work needs, SMs times how long they are busy, and its kernels take so many
    times as long as they have SMs less.
    """
    rows = view.rows
    facts = view.trace.metadata
    code, names = rows.coded("partition")
    running = view.kept & view.causes.of("running") & rows.having("kind", ("kernel",))[view.row]
    of_edge = np.where(running, code[view.row], -1)
    granted = {
        number: sms
        for number in np.unique(of_edge[running]).tolist()
        if names[number] and (sms := facts.partition(names[number]).sm_count)
    }
    devices = np.unique(rows.devices[view.row[running]])
    inside = running & np.isin(of_edge, list(granted))
    elsewhere_ns = view.lasts[running & ~inside].sum()
    whole = facts.device(int(devices[0])).sm_count if len(devices) == 1 else None
    if not whole or elsewhere_ns >= _ELSEWHERE * view.lasts[inside].sum():
        return
    lag = view.causes.lag.astype(float)
    needs = {
        number: sms * int(view.lasts[of_edge == number].sum()) for number, sms in granted.items()
    }
    if not all(needs.values()):
        return
    wanted = {number: whole * of_it / sum(needs.values()) for number, of_it in needs.items()}
    for number, sms in granted.items():
        lag[of_edge == number] *= sms / wanted[number]
    on_path = inside & view.on_path
    most = int(np.bincount(of_edge[on_path], view.lasts[on_path], len(names)).argmax())
    if most in granted and granted[most] < wanted[most]:
        about = f"{names[most]}, {granted[most]} of {whole} SMs"
        about += f", of which about {wanted[most]:.0f} would suit it" * (len(granted) > 1)
        yield HelpCase(about, inside, lag, name=str(names[most]), is_exact=True)


@mechanism(
    "use another stream",
    "work of {} waits for work before it",
    "launch what needs no data of the others on another stream",
    is_mend=False,
    weight=_WHAT_IF,
)
def _one_stream(view: ProgramView) -> Iterator[HelpCase]:
    """Yield work of one stream that others launch, or that leaves SMs free.

    Long kernels that fill all SMs would not run beside each other, whoever launches them. What a
    thread without Python launches is the thread's that handed it over.
    """
    causes = view.causes
    rows = view.rows
    caller = causes.rows.calls
    followed, _ = followed_calls(view.trace)
    follows = latest_followed(view.trace)[caller]
    is_native = (caller >= 0) & (follows >= 0)
    lead = np.where(is_native, followed[follows], caller)
    owner = np.full(len(rows.ids), -1)
    launched = causes.of("launch") & (view.range >= 0)
    owner[view.row[launched]] = range_labels(view.trace)[0][view.range[launched]]
    apart = np.zeros(len(view.kept), bool)
    thread = np.where(lead < 0, -1, rows.threads[lead])
    category, _ = rows.coded("category")
    for of in (owner, category, thread):
        apart |= of[view.before] != of[view.row]
    is_long = rows.having("kind", ("kernel",)) & (rows.ends - rows.starts > _LONG_NS)
    are_long = is_long[view.before]
    are_long &= is_long[view.row]
    fills = rows.may_fill(view.before, view.row)
    apart = np.where(are_long, ~fills, apart)
    stream = rows.streams[view.row]
    for about, which in view.each(causes.of("stream order") & apart, stream, _named(view)):
        yield HelpCase(about, gone=which)


def _named(view: HelpView) -> Callable[[int], str]:
    """Return what gives the name of a stream."""
    return {-1: "no stream", **stream_names(view.trace)}.__getitem__


@mechanism(
    "give it priority or a partition",
    "kernels of {} wait for SMs that others hold",
    "gs.what_if(trace, streams={{{0!r}: {{'priority': -1}}}})",
    is_mend=False,
)
def _sms_held(view: ProgramView) -> Iterator[HelpCase]:
    """Yield streams whose kernels wait for SMs that others hold, much longer than others for it."""
    rows = view.rows
    stream = rows.streams[view.row]
    holder = rows.streams[view.before]
    waiting = view.causes.of("SMs held", "priority")
    waiting &= stream != holder
    waiting &= view.kept
    waited_ns = rows.starts - view.causes.ready.ready_ns
    waited_ns = waited_ns[view.row]
    for about, which in view.each(waiting, stream, _named(view)):
        holds = holder == stream[which][0]
        holds &= waiting
        if waited_ns[which].sum() >= _MUCH_LATER * waited_ns[holds].sum():
            yield HelpCase(about, gone=which)


@mechanism(
    "drop the wait between streams",
    "one stream waits for another: {}",
    'launch what needs not wait before that; gs.what_if(trace, drop_waits="all") forecasts it',
    is_mend=False,
    weight=_WHAT_IF,
)
def _event_waits(view: ProgramView) -> Iterator[HelpCase]:
    """Yield pairs of streams, of which one waits for an event of the other."""
    streams = view.rows.streams[view.row], view.rows.streams[view.before]
    first, pair = combined(*(numbered(numbers)[1] for numbers in streams))
    name = _named(view)
    names = [" for ".join(name(int(numbers[at])) for numbers in streams) for at in first]
    for about, which in view.each(view.causes.of("event wait"), pair, names.__getitem__):
        yield HelpCase(about, gone=which)


@mechanism(
    KEEP_UP,
    "other ranks wait in collectives for {}",
    "less work for it there, or work that is shared evenly; gs.analysis.ranks(trace) compares both",
)
def _late_rank(view: ProgramView) -> Iterator[HelpCase]:
    """Yield the rank that the others wait for much longer than for any other.

    It would take as long as they: at the line at which it spends more time between calls than they
    do, or else in all that it does but collectives.
    """
    try:
        late, *rest = sorted(ranks(view.trace).ranks, key=lambda rank: -rank.held_up_ns)
    except MissingEvidence:
        return
    if late.held_up_ns < _MUCH_LATER * max(other.held_up_ns for other in rest):
        return
    processes = {facts.rank: facts.process for facts in view.trace.metadata.ranks}
    causes, process = view.causes, processes[late.rank]
    about = f"rank {late.rank}" + f", {late.line}" * bool(late.line)
    is_late = view.rows.processes[view.row] == process
    is_late &= view.kept
    if late.line and late.line in view.lines:
        slower = is_late & view.is_code
        slower &= view.line == view.lines.index(late.line)
        slower_ns = float(late.slower_ns)
    else:
        slower = is_late & view.on_path
        slower &= ~_is_collective(view)
        slower_ns = late.held_up_ns / len(rest)
    took_ns = max(int(causes.lag[slower].sum()), 1)
    share = np.float64(max(0, 1 - slower_ns / took_ns))
    yield HelpCase(about, slower, causes.lag * share, times=late.last)


@mechanism(
    "reduce gradients once a step",
    "gradients are all-reduced more often than the optimizer uses them: {}",
    "with model.no_sync(): all backward passes of a step but the last",
)
def _repeated_reductions(view: ProgramView) -> Iterator[HelpCase]:
    """Yield all-reduces that others follow before the optimizer runs.

    Those of a backward pass have one thread, and another one launches the next forward pass.
    """
    rows = view.rows
    name, names = rows.coded("name")
    reduces, optimizes = (
        np.array([pattern.search(str(text)) is not None for text in names])[name]
        for pattern in (_REDUCES, _OPTIMIZES)
    )
    running = np.flatnonzero(view.causes.of("running") & view.kept)
    work = view.row[running]
    launched = (rows.calls[work] >= 0) & rows.having("kind", ("kernel",))[work]
    running, work = running[launched], work[launched]
    call = rows.calls[work]
    order = np.lexsort((rows.starts[call], rows.processes[work]))
    running, work, call = running[order], work[order], call[order]
    again = np.zeros(len(view.kept), bool)
    passes = []
    for process in np.unique(rows.processes[work[reduces[work]]]).tolist():
        here = rows.processes[work] == process
        edges, calls = running[here], call[here]
        is_reduce, is_update = reduces[work[here]], optimizes[work[here]]
        reducers, count = np.unique(rows.threads[calls[is_reduce]], return_counts=True)
        by_reducer = rows.threads[calls] == reducers[count.argmax()]
        step = np.cumsum(np.r_[False, is_update[:-1] & ~is_update[1:]])
        backward = np.cumsum(np.r_[False, ~by_reducer[1:] & by_reducer[:-1]])
        last = np.zeros(step[-1] + 1, np.int64)
        np.maximum.at(last, step[is_reduce], backward[is_reduce])
        ends = np.unique(step[is_update])  # steps that end with an update
        counted = is_reduce & np.isin(step, ends)
        pairs, _ = combined(step[counted], backward[counted])
        passes += np.bincount(step[counted][pairs], minlength=step[-1] + 1)[ends].tolist()
        again[edges[counted & (backward < last[step])]] = True
    times = int(np.median(passes)) if passes else 0
    if times > 1:
        reduced = view.row[again]
        again |= view.causes.of("collective") & np.isin(view.row, reduced)
        again |= view.leading_to(rows.calls[reduced])
        waiting = view.causes.of("SMs held", "priority") & np.isin(view.before, reduced)
        yield HelpCase(f"{times} times a step", again, gone=waiting, rows=reduced)


# -- launches -------------------------------------------------------------------------------------
@mechanism(
    "record as one graph",
    "the work of {} is launched piece by piece",
    "torch.compile(mode='reduce-overhead'); gs.what_if(trace, graphs=[{0!r}]) forecasts it",
    weight=_GENERAL,
)
def _ranges_of_launches(view: ProgramView) -> Iterator[HelpCase]:
    """Yield ranges that launch much, and nothing behind a wait."""
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
            yield HelpCase(about, inside, causes.lag * share)


@mechanism(
    "record as graphs",
    "kernels are launched one by one: {}",
    'torch.compile(mode="reduce-overhead"), torch.cuda.graph(); or more in each launch, as by a '
    "larger batch",
    weight=_GENERAL,
)
def _runs_of_launches(view: ProgramView) -> Iterator[HelpCase]:
    """Yield launches outside ranges, close together, without a wait between them."""
    causes = view.causes
    launching = np.zeros(len(causes.rows.ids) + 1, bool)
    launching[causes.rows.calls] = True
    short = view.is_host & (view.range < 0) & (causes.lag <= PAUSE_NS) & _in_runs(view)
    short &= launching[np.where(view.call >= 0, view.call, view.row)]
    process = view.rows.processes[view.row]
    quick = view.is_host & ~view.pauses
    is_one = len(np.unique(process[short])) == 1
    words = "launches" if is_one else "launches of process {}"
    for launches, which in view.each(short, process, words.format):
        about = _mostly(view, which, launches)
        beside = quick & (process == process[which][0])
        yield HelpCase(about, which, _NODE_NS // 2, beside=beside)


def _cut_by_waits(view: HelpView, within: Ints, launching: Bools) -> int:
    """Return in how many ranges something is launched behind a wait, or a call for memory.

    Parameters
    ----------
    within
        Edge → the range, −1 for none.
    launching
        Row → whether it launches work.
    """
    causes = view.causes
    rows = view.rows
    waiting = np.r_[rows.having("kind", ("sync",)) | _gets_memory(view), False]
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
    """Edge of a thread → whether it lies in a run of launches that nothing interrupts."""
    causes = view.causes
    waits = np.zeros(len(causes.times), bool)
    waits[causes.target[causes.of("host wait")]] = True
    waits[2 * np.flatnonzero(_gets_memory(view))] = True
    host = np.flatnonzero(view.is_host)
    thread = view.rows.threads[view.row[host]]
    in_order = np.lexsort((causes.times[causes.target[host]], thread))
    host = host[in_order]
    thread = thread[in_order]
    row = view.row[host]
    breaks = waits[causes.target[host]] | view.pauses[host]
    breaks |= np.r_[True, thread[1:] != thread[:-1]][: len(host)]
    run = np.cumsum(breaks)
    launching = np.isin(row, causes.rows.calls) & (view.call[host] >= 0)
    inside = np.zeros(len(view.kept), bool)
    inside[host] = np.bincount(run, launching)[run] >= _RUN
    return inside


@mechanism(
    "copy it in one piece",
    "small {} follow each other",
    "pack what belongs together into one buffer, as torch.stack() and numpy.stack() do, and copy "
    "that; of the host's memory, pinned",
)
def _small_copies(view: ProgramView) -> Iterator[HelpCase]:
    """Yield copies right behind one of the same direction, of which each takes less than its call.

    They would be in that one, and their thread would not call for each. Nothing waits for that one
    by itself, and they wait for no other stream.
    """
    rows = view.rows
    direction, directions = rows.coded("copy_kind")
    nbytes = view.trace.array("nbytes", fill=0)
    lasts_ns = nbytes * 1000 // _PINNED_BYTES_PER_US
    order, first = rows.queues
    is_small = rows.having("kind", ("memcpy",)) & (rows.calls >= 0)
    is_small &= lasts_ns < _CALL_NS
    before = order[:-1]
    behind = order[1:]
    follows = is_small[behind] & is_small[before]
    follows &= direction[behind] == direction[before]
    follows &= first[1:] == first[:-1]
    causes = view.causes
    follows &= ~np.isin(before, view.before[causes.of("host wait")])
    follows &= ~np.isin(behind, view.row[causes.of("event wait")])
    behind = behind[follows]
    for way in ("HtoD", "DtoH"):
        if way not in directions:
            continue
        copied = behind[direction[behind] == directions.index(way)]
        which = _copies(view) & np.isin(view.row, copied)
        if not which.any():
            continue
        about = _mostly(view, which, COPIES[way])
        lag = np.where(which, lasts_ns[view.row], 0)
        between = view.leading_to(rows.calls[copied])
        between &= ~view.pauses
        yield HelpCase(about, which | between, lag, times=len(copied))


@mechanism(
    "launch the same graph again",
    "a graph is made for each launch: {}",
    "capture and instantiate it once; cudaGraphExecUpdate() where arguments change",
)
def _graphs_made_anew(view: ProgramView) -> Iterator[HelpCase]:
    """Yield launches of graphs of the same kernels, each of which is launched once."""
    rows = view.rows
    graph = view.trace.array("graph", fill=-1)
    order, _ = rows.queues
    nodes = order[(graph[order] >= 0) & (rows.calls[order] >= 0)]
    if not len(nodes):
        return
    _, number = numbered(graph[nodes])
    first, launch = combined(number, rows.calls[nodes])
    by_launch = np.argsort(launch, kind="stable")
    name = rows.coded("name")[0][nodes[by_launch]]
    ends = np.cumsum(np.bincount(launch))
    kernels = [names.tobytes() for names in np.split(name, ends[:-1])]
    number_of = {names: at for at, names in enumerate(dict.fromkeys(kernels))}
    shape = np.array([number_of[names] for names in kernels])
    launched = number[first]
    is_single = np.bincount(launched)[launched] == 1
    call = rows.calls[nodes[first]]
    for alike in np.unique(shape[is_single]).tolist():
        is_alike = shape == alike
        calls = call[is_single & is_alike]
        if len(calls) < max(_ANEW, _MOSTLY * is_alike.sum()):
            continue
        which = view.leading_to(calls)
        which &= ~view.inside(calls)
        about = _mostly(view, which, "launches")
        yield HelpCase(about, which, times=len(calls))


# -- the host's own work --------------------------------------------------------------------------
@mechanism(
    "shorten the Python before",
    "",
    "less of it; more in each call, as by a larger batch; or ahead, in other threads or processes, "
    "such as a loader's workers",
    weight=_GENERAL,
)
def _python(view: ProgramView) -> Iterator[HelpCase]:
    """Yield time between calls that nothing else explains; no line made the call: no Python's."""
    pauses = view.pauses & view.unexplained
    site, sites = view.rows.coded("site")
    if site.any():
        python_lines = {str(lines[0]) for text in sites if (lines := lines_of(text))}
        pauses &= np.array([line in python_lines for line in view.lines])[view.line]
    for about, which in view.each(pauses, view.line, view.lines.__getitem__):
        beside = view.is_code & (view.line == view.line[which][0])
        yield HelpCase(about, which, beside=beside)


@mechanism(
    "shorten the host function",
    "the host function {} holds its stream up",
    "hand its work to another thread; a stream waits until it is over",
)
def _host_functions(view: ProgramView) -> Iterator[HelpCase]:
    """Yield functions of the host that run in a stream."""
    rows = view.rows
    name, names = rows.coded("name")
    runs = view.kept & view.causes.of("running")
    functions = runs & rows.having("kind", ("host function",))[view.row]
    site, sites = rows.coded("site")
    for about, which in view.each(functions, name[view.row], lambda key: str(names[key])):
        where = [f" at {line}" for line in lines_of(sites[site[view.row[which][0]]])[:1]]
        yield HelpCase("".join([about, *where]), which)


# -- kernels --------------------------------------------------------------------------------------
@mechanism(
    "multiply in a narrower type",
    "{} use no tensor cores",
    'torch.set_float32_matmul_precision("high"), or bfloat16',
)
def _wide_products(view: ProgramView) -> Iterator[HelpCase]:
    """Yield products in float32 on no tensor cores; other kernels in it move half of the bytes."""
    rows = view.rows
    name, names = rows.coded("name")
    is_wide = np.array([_is_wide(str(text)) for text in names])
    if (which := _running_kernels(view) & is_wide[name[view.row]]).any():
        about = _mostly(view, which, "float32 products")
        lag = view.causes.lag // np.where(which, _NARROWER, 2)
        narrowed = which | _named_kernels(view, _FLOAT)
        yield HelpCase(about, narrowed, lag, rows=view.row[which])


def _is_wide(kernel: str) -> bool:
    """Whether a kernel multiplies in float32 on no tensor cores, which all of nvjet's use."""
    return "nvjet" not in kernel and _WIDE.search(kernel_name(kernel)) is not None


@mechanism(
    "compute in float32",
    "{} compute in float64",
    "dtype=torch.float32, or numpy.float32: NumPy's arrays are of float64",
)
def _doubles(view: ProgramView) -> Iterator[HelpCase]:
    """Yield kernels in float64: of twice the bytes, and products on slower units."""
    named = _kernel_names(view)
    which = _named_kernels(view, _DOUBLE)
    if _is_much(view, which):
        is_product = np.array([name.startswith("GEMM") for name in named])
        code = view.rows.coded("name")[0][view.row]
        lag = view.causes.lag // np.where(is_product[code], _NARROWER, 2)
        yield HelpCase(_mostly(view, which, "kernels"), which, lag)


@mechanism(
    "move tensors less",
    "kernels only move data: {}",
    "convert once, not in each step; memory_format=torch.channels_last for convolutions; write "
    "into one buffer instead of torch.cat()",
)
def _moves(view: ProgramView) -> Iterator[HelpCase]:
    """Yield kernels that only copy, convert or rearrange tensors."""
    for pattern, words in _MOVES.items():
        which = _named_kernels(view, pattern)
        if _is_much(view, which):
            yield HelpCase(_mostly(view, which, words), which)


@mechanism(
    "fuse kernels",
    "element-wise kernels follow each other, each through memory: {}",
    "torch.compile(model); torch.nn.functional.scaled_dot_product_attention(); cupy.fuse()",
    weight=_GENERAL,
)
def _chains(view: ProgramView) -> Iterator[HelpCase]:
    """Yield element-wise kernels whose input the one before them in their stream wrote."""
    rows = view.rows
    code, names = rows.coded("name")
    is_elementwise = np.array([_ELEMENTWISE.search(str(name)) is not None for name in names])[code]
    is_elementwise &= rows.having("kind", ("kernel",))
    order, first = rows.queues
    follows = np.zeros(len(rows.ids), bool)
    in_order = is_elementwise[order]
    in_chain = in_order[1:] & in_order[:-1]
    in_chain &= first[1:] == first[:-1]
    follows[order[1:][in_chain]] = True
    which = _running_kernels(view) & follows[view.row]
    if _is_much(view, which):
        yield HelpCase(_mostly(view, which, "kernels"), which)


@mechanism(
    "overlap collectives",
    "{} hold the program up",
    "async_op=True and a late wait(); DDP's bucket_cap_mb; FSDP's prefetching",
)
def _exposed_collectives(view: ProgramView) -> Iterator[HelpCase]:
    """Yield collectives of several recorded ranks that hold the program up while they run."""
    if len(view.trace.metadata.ranks) > 1:
        which = _running_kernels(view) & _is_collective(view) & view.on_path
        if _is_much(view, which):
            yield HelpCase(_mostly(view, which, "collectives"), which)


def _kernel_names(view: HelpView) -> list[str]:
    """Return number of a name → what a person calls the kernel."""
    return [kernel_name(str(name)) for name in view.rows.coded("name")[1]]


def _named_kernels(view: HelpView, pattern: re.Pattern[str]) -> Bools:
    """Edge → whether it is a kernel that runs, of such a name."""
    meant = np.array([pattern.search(name) is not None for name in _kernel_names(view)])
    of_name: Bools = meant[view.rows.coded("name")[0][view.row]]
    return _running_kernels(view) & of_name


def _running_kernels(view: HelpView) -> Bools:
    """Edge → whether it is a kernel that runs, or a graph recorded whole."""
    running = view.kept & view.causes.of("running")
    return running & view.rows.having("kind", ("kernel", "graph"))[view.row]


def _is_collective(view: HelpView) -> Bools:
    """Edge → whether its row is NCCL's."""
    code, names = view.rows.coded("name")
    of_nccl: Bools = is_nccl(names)[code][view.row]
    return of_nccl


def _is_much(view: HelpView, which: Bools) -> bool:
    """Whether edges take more of the critical path than in most programs."""
    lasts = view.lasts
    return bool(lasts[which & view.on_path].sum() > _TYPICAL * lasts[view.on_path].sum())


def _mostly(view: HelpView, which: Bools, words: str) -> str:
    """Add the line that takes most of some edges, if any, and whether it takes half of them."""
    line, share = _line_of_most(view, which)
    mostly = "mostly at" if share >= _MOSTLY else "such as at"
    return f"{words} {mostly} {line}" if line else words


def _at_its_line(view: HelpView, which: Bools) -> Bools:
    """Edge → whether it is a thread's time at the line that takes most of some edges."""
    line, _ = _line_of_most(view, which)
    number = view.lines.index(line) if line in view.lines else OPEN
    at_it: Bools = view.is_host & (view.line == number)
    return at_it


def _line_of_most(view: HelpView, which: Bools) -> tuple[str, float]:
    """Return the line of calls or launches that takes most of some edges, if any, and its share."""
    site, sites = view.rows.coded("site")
    call = np.r_[view.rows.calls, -1][view.row]
    row = np.where(view.is_host, view.coming, call)[which]
    at_site = np.where(row >= 0, site[row], 0)
    total = np.bincount(at_site, view.lasts[which], len(sites))
    total[0] = 0
    made_by = lines_of(sites[int(total.argmax())]) if total.any() else ()
    share = float(total.max() / max(view.lasts[which].sum(), 1))
    return str(made_by[0]) if made_by else "", share


@mechanism(
    "use more thread blocks",
    "a kernel leaves SMs without a block: {}",
    "a grid of at least as many blocks as the GPU has SMs, each with less work",
    weight=_WHAT_IF,
)
def _few_blocks(view: ProgramView) -> Iterator[HelpCase]:
    """Yield long kernels with blocks for half of the SMs at most, as if all SMs had one."""
    rows = view.rows
    blocks, sms = rows.blocks_and_sms
    is_small = (2 * blocks <= sms) & rows.having("kind", ("kernel",))
    is_small &= rows.ends - rows.starts > _LONG_NS
    which = _running_kernels(view) & ~_is_collective(view) & is_small[view.row]
    lag = view.causes.lag * blocks[view.row] // np.maximum(sms[view.row], 1)
    name, names = rows.coded("name")
    for text, kernels in view.each(which, name[view.row], lambda key: str(names[key])):
        row = int(view.row[kernels][0])
        where = _mostly(view, kernels, kernel_name(text))
        about = f"{where}, {blocks[row]} blocks on {sms[row]} SMs"
        yield HelpCase(about, kernels, lag)


@mechanism(TWICE, "", "gs.what_if(trace, faster={{{0!r}: 2}})", is_mend=False, weight=_WHAT_IF / 2)
def _kernels(view: ProgramView) -> Iterator[HelpCase]:
    """Yield the kernels that take most; how to make them faster, nobody knows."""
    causes = view.causes
    rows = view.rows
    name, names = rows.coded("name")
    kernels = _running_kernels(view)
    half = causes.lag // 2
    holds = causes.of("SMs held", "priority") & (causes.source % 2 == 0)
    for about, which in view.each(kernels, name[view.row], lambda key: str(names[key])):
        waiting = holds & rows.having("name", (about,))[view.before]
        called = kernel_name(about)
        pattern = f"*{called}*" if called in about else about
        yield HelpCase(called, which | waiting, half, basis="recording", name=pattern)


def cases(view: ProgramView) -> Iterator[HelpCase]:
    """Yield what might help."""
    for declared in MECHANISMS.values():
        for case in declared.cases(view):
            yield replace(case, change=declared.change)
