"""What a GPU waited for: every idle ns by cause, thread, range and line of the program."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeAlias

import numpy as np

from gpuscope._checks import door
from gpuscope._text import duration
from gpuscope._types import Ints
from gpuscope.analysis.intervals import Groups, merged
from gpuscope.analysis.native_threads import followed_calls, latest_followed
from gpuscope.analysis.result import Result, about
from gpuscope.analysis.samples_analysis import SeenFunction, Stretches, functions_in, seen_from
from gpuscope.analysis.steps_analysis import HAND_OVER, steps
from gpuscope.errors import InvalidArgument, MissingEvidence
from gpuscope.trace.columns import (
    codes,
    combined,
    is_open,
    launch_calls,
    linked_rows,
    once,
    rows_of,
)
from gpuscope.trace.joins import distinct, innermost, numbered, union
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import kernel_name, range_labels, ranges_around, ranges_in, thread_names
from gpuscope.trace.schema import CALLS, COLLECTION, GPU_WORK, HOLDS_LOCK, LATEST_NS, WAITS_FOR_LOCK
from gpuscope.trace.sites import lines_of

LAUNCH = "in the launch call"
COPY = "in a copy call"
OTHER = "in another call"
ON_ITS_WAY = "launch on its way to the GPU"
EVENT = "waiting for an event"
NEXT = "between two works on the GPU"
BETWEEN = "between two CUDA calls"
OUTSIDE = "outside CUDA and any range"
START = "start of program"
AFTER = "after the last work"
UNKNOWN = "launch call unknown"
HOST_WAIT = "in a host wait"
DATA = "waiting for data"
MEMORY = "memory allocation"
THREAD = "waiting for another thread"
COLLECTING = "in Python's garbage collector"
FUNCTION = "in a host function"
_FIXED = [BETWEEN, OUTSIDE, START, LAUNCH, COPY, ON_ITS_WAY, EVENT, NEXT, AFTER, UNKNOWN]
MEMORY_CALL = re.compile("(?i)malloc|cudafree|cumemfree|hostalloc|memalloc|memfree|hostregister")
"""Name of a call that allocates or frees memory."""
_CALLS = (
    (re.compile(COLLECTION), COLLECTING),
    (re.compile("queue get"), DATA),
    (HAND_OVER, THREAD),
    (MEMORY_CALL, MEMORY),
    (re.compile("(?i)memcpy|^copy"), COPY),
    (re.compile("(?i)synchroni[sz]e|query|^(?!.*stream.?wait).*wait"), HOST_WAIT),
)
"""What the time in a call is by its name, where it launched nothing."""
_Texts: TypeAlias = tuple[list[str], list[str], list[str]]
_SHOWN = 4
"""Spans that show one cause, at most."""


@dataclass(frozen=True)
class IdleCause:
    """Idle time of GPUs of one cause, thread, range and line.

    Attributes
    ----------
    cause
        In words; a host wait, another call or a host function with its name.
    thread
        What the thread is called that launched the work which ended the gaps; ``None`` where no
        launch is known.
    range
        The innermost range that the thread was in, without a number at its end.
    line
        The line that launched this work, or that waits, copies or allocates.
    gaps
        How many gaps it is part of.
    spans
        Ids of the work that ended the longest parts.
    meanwhile
        What the thread was seen doing most, or what another did that held Python's lock while this
        one waited for it, and its share of the idle time; ``None`` where no stacks were sampled.
    functions
        Those that took most of that time.
    """

    cause: Annotated[str, "cause"]
    thread: Annotated[str | None, "thread"]
    range: Annotated[str | None, "range"]
    line: Annotated[str | None, "line"]
    idle_ns: Annotated[int, "idle (ms)"]
    gaps: Annotated[int, "gaps"]
    meanwhile: Annotated[str | None, "meanwhile"] = None
    spans: tuple[int, ...] = field(repr=False, default=())
    functions: tuple[SeenFunction, ...] = field(repr=False, default=())

    @property
    def busiest(self) -> SeenFunction | None:
        """What ``meanwhile`` tells of."""
        if not self.functions:
            return None
        most = self.functions[0]
        if most.state != WAITS_FOR_LOCK:
            return most
        return next(
            (of for of in self.functions if of.state == HOLDS_LOCK and of.thread != most.thread),
            most,
        )


@dataclass(frozen=True)
class IdleResult(Result):
    """What GPUs waited for; the idle time of several GPUs is added up.

    Attributes
    ----------
    window_ns
        Begin and end of the time that was looked at.
    idle_ns
        How long no kernel, copy or memset ran on a GPU, of all GPUs: the sum of the causes.
    devices
        How many GPUs these are.
    """

    window_ns: tuple[int, int]
    idle_ns: int
    devices: int
    causes: tuple[IdleCause, ...]
    entries = "causes"
    weight = "idle (ms)"

    @property
    def definition(self) -> str:
        """To whom a gap belongs, and where it is cut."""
        several = f" of {self.devices} GPUs" if self.devices > 1 else ""
        return (
            f"idle time{several}: {duration(self.idle_ns)} of "
            f"{duration(self.window_ns[1] - self.window_ns[0])}, without start-up and warm-up "
            "unless a window was given; a gap belongs to the thread that launched the work which "
            "ended it, or handed it to one without Python, and is cut where that thread entered or "
            "left a call or a range"
        )


@door(trace=Trace, window_ns=(tuple, None))
def idle_causes(trace: Trace, window_ns: tuple[int, int] | None = None) -> IdleResult:
    """Say of every ns in which a GPU did nothing what it waited for.

    A gap of a GPU belongs to the thread that launched the work which ended it; where that thread
    runs no Python, until it began, to the Python thread whose call it followed. Until that launch
    began, the thread was in another call, or between calls, in a range or in none; then in the
    launch call; then the launch was on its way, unless an event held it. Work that was
    launched before the gap began just followed other work. Where a host function held its stream
    then, or the thread waited for one, that is the cause. Time before all rows of the thread and
    all launches is the start of the program.

    Parameters
    ----------
    window_ns
        Begin and end; the steady time of :func:`steps` if not given. Only what was recorded of it
        counts.

    Raises
    ------
    MissingEvidence
        The trace holds no kernel, copy or memset.
    InvalidArgument
        The window is not two times in order.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> kernel = gs.workloads.spin_kernel(gpu)
    >>> with gpu.create_stream() as stream, gs.profile(gpu) as recording:
    ...     for _ in range(4):
    ...         stream.launch(kernel, 50_000, grid=1, block=32)
    ...         stream.synchronize()
    >>> idle = gs.analysis.idle_causes(recording.trace)
    >>> idle.idle_ns == sum(cause.idle_ns for cause in idle.causes)
    True
    """
    return _steady(trace) if window_ns is None else _between(trace, *window_of(trace, window_ns))


@once
def _steady(trace: Trace) -> IdleResult:
    return _between(trace, *window_of(trace, None))


def _between(trace: Trace, low: int, high: int) -> IdleResult:
    begins, ends, work, devices = gaps_of_gpus(trace, low, high)
    causes = _causes(trace, begins, ends, work)
    return IdleResult((low, high), int((ends - begins).sum()), devices, causes, **about(trace))


def window_of(trace: Trace, window_ns: tuple[int, int] | None) -> tuple[int, int]:
    """Return begin and end of the time that counts: that which was given, or the steady time.

    Raises
    ------
    MissingEvidence, InvalidArgument
        As :func:`idle_causes`.
    """
    if not len(rows_of(trace, *GPU_WORK)):
        raise MissingEvidence(
            "the trace holds no kernel, copy or memset: record with profile() while the GPU works"
        )
    window = steps(trace).steady_ns if window_ns is None else window_ns
    if [*map(type, window)] != [int, int] or window[0] > window[1]:
        raise InvalidArgument(f"window_ns is a begin and an end in ns, not {window!r}")
    return window


def gaps_of_gpus(
    trace: Trace, low: int, high: int, kinds: Sequence[str] = GPU_WORK
) -> tuple[Ints, Ints, Ints, int]:
    """Return begin and end of each GPU's gaps, the row that ended each or −1, and how many GPUs.

    Parameters
    ----------
    kinds
        Of rows between which nothing is a gap.
    """
    rows = rows_of(trace, *kinds)
    starts = trace.array("start_ns")[rows]
    ends = np.where(is_open(trace)[rows], LATEST_NS, trace.array("end_ns", fill=0)[rows])
    first, device = combined(trace.array("device", fill=-1)[rows] + 1)
    windows = np.array(trace.metadata.windows_ns or ((low, high),), np.int64)
    windows = union(windows[:, 0], windows[:, 1])
    # What was not recorded is as busy, the window's edges too.
    off = np.clip(np.stack([np.r_[low, windows[:, 1]], np.r_[windows[:, 0], high]]), low, high)
    inside = (ends >= low) & (starts <= high)
    code = np.r_[device[inside], np.repeat(np.arange(len(first)), len(off[0]))]
    begins = np.r_[np.clip(starts[inside], low, high), np.tile(off[0], len(first))]
    finish = np.r_[np.clip(ends[inside], low, high), np.tile(off[1], len(first))]
    work = np.r_[rows[inside], np.full(len(code) - int(inside.sum()), -1)]
    opened, closed = merged(Groups(code, list(range(len(first)))), begins, finish)
    gap = code[opened][1:] == code[opened][:-1]
    opened = opened[1:][gap]
    closed = closed[:-1][gap]
    order = np.lexsort((starts, device))
    bounds = np.searchsorted(device[order], np.arange(len(first) + 1))
    ordered = starts[order]
    for at in opened[work[opened] < 0].tolist():  # cut by an edge: it belongs to what came then
        since = bounds[code[at]]
        until = bounds[code[at] + 1]
        later = since + np.searchsorted(ordered[since:until], begins[at])
        work[at] = rows[order[later]] if later < until else -1
    return finish[closed], begins[opened], work[opened], len(first)


def _cut(trace: Trace, calls: Ints, thread: Ints, low: Ints, high: Ints) -> tuple[Ints, ...]:
    """Cut stretches of time of threads where these enter or leave a call or a range.

    Returns
    -------
    tuple
        Of each part its stretch, begin, end, call and range, −1 for none; whether it comes before
        all rows of its thread.
    """
    owners = trace.array("thread", fill=-1)
    starts = trace.array("start_ns")
    ends = np.where(is_open(trace), LATEST_NS, trace.array("end_ns", fill=0))
    calls = calls[(owners[calls] > 0) & (ends[calls] > starts[calls])]
    _, owner, begin, end = ranges_in(trace)
    who = np.r_[owners[calls], owners[calls], owner, owner]
    when = np.r_[starts[calls], ends[calls], begin, end]
    number = numbered(np.r_[who, thread])[1]
    times, rank = np.unique(np.r_[when, low, high], return_inverse=True)
    edges = np.sort(number[: len(who)] * len(times) + rank[: len(who)])
    of_thread = number[len(who) :] * len(times)
    since, till = of_thread + rank[len(who) :].reshape(2, -1)
    after = np.searchsorted(edges, since, "right")
    until = np.searchsorted(edges, till)
    count = np.maximum(until - after, 0) + 1
    stretch = np.repeat(np.arange(len(low)), count)
    step = np.arange(len(stretch)) - np.repeat(np.cumsum(count) - count, count)
    edge = np.r_[times[edges % len(times)], 0][after[stretch] + step]  # what ends the part
    end = np.where(step < count[stretch] - 1, edge, high[stretch])
    begin = np.where(step > 0, np.r_[0, end[:-1]], low[stretch])
    inside = innermost(thread[stretch], begin, owners[calls], starts[calls], ends[calls] - 1)
    inside = np.where(inside >= 0, np.r_[calls, -1][inside], -1)
    around = ranges_around(trace, thread[stretch], begin)
    unborn = (step == 0) & (after == np.searchsorted(edges, of_thread))[stretch]
    return stretch, begin, end, inside, around, unborn


def _cause_of_calls(trace: Trace, launches: Ints) -> tuple[list[str], Ints, Ints]:
    """Return causes in words; row → which of them the time in that call is; and the calls."""
    every = distinct(np.r_[rows_of(trace, *CALLS), launches])
    is_sync = np.isin(every, rows_of(trace, "sync"))
    name, names = codes(trace.spans.column("name"))
    first, code = combined(name[every], is_sync.astype(np.int64))
    number = {text: at for at, text in enumerate(_FIXED)}
    of_code = []
    for row in first.tolist():
        text = str(names[name[every[row]]])
        cause = next((cause for pattern, cause in _CALLS if pattern.search(text)), OTHER)
        cause = HOST_WAIT if is_sync[row] and cause == OTHER else cause
        cause += f" ({kernel_name(text)})" if cause in (HOST_WAIT, OTHER) else ""
        of_code.append(number.setdefault(cause, len(number)))
    of_row = np.zeros(len(trace), np.int64)
    of_row[every] = np.array(of_code, np.int64)[code]
    of_row[launches[of_row[launches] != number[COPY]]] = number[LAUNCH]
    return list(number), of_row, every


def _parts(trace: Trace, low: Ints, high: Ints, work: Ints) -> tuple[tuple[Ints, ...], _Texts]:
    """Cut gaps by what the thread did that launched the work which ended each.

    Returns
    -------
    tuple
        Gap and length of each part, the numbers of its cause, thread, range and line, begin and
        end, and whether the launch was still to come; the texts of causes, ranges and lines.
    """
    starts = trace.array("start_ns")
    returned = np.where(is_open(trace), LATEST_NS, trace.array("end_ns", fill=0))
    launches, _ = linked_rows(trace.edges, trace.array("id"), "launch")
    event_ns = np.zeros(len(trace), np.int64)
    source, target = linked_rows(trace.edges, trace.array("id"), "event wait")
    np.maximum.at(event_ns, target, returned[source])
    call = np.where(work >= 0, launch_calls(trace)[work], -1)
    has_launch = call >= 0
    back = np.where(has_launch, np.clip(returned[call], low, high), low)
    texts, of_call, every = _cause_of_calls(trace, launches)
    of_gap, whose, told_by, *bounds = _handed_over(trace, call, low, back)
    thread = whose[: len(low)]
    stretch, since, until, inside, around, unborn = _cut(trace, every, whose, *bounds)
    gap = of_gap[stretch]
    number = {text: at for at, text in enumerate(_FIXED)}
    has_ranges = np.isin(whose, ranges_in(trace)[1])[stretch] & (around < 0)
    during = np.where(has_ranges, number[OUTSIDE], number[BETWEEN])
    during[unborn & (until <= starts[launches].min(initial=LATEST_NS))] = number[START]
    during = np.where(inside >= 0, of_call[inside], during)
    after = np.where(returned[call] > low, number[ON_ITS_WAY], number[NEXT])
    after[event_ns[work] > np.maximum(returned[call], low)] = number[EVENT]
    after = np.where(has_launch, after, np.where(work < 0, number[AFTER], number[UNKNOWN]))

    site, sites = codes(trace.spans.column("site"))
    texts_of = [str((lines_of(text) or ("",))[0]) for text in sites]
    number_of = {text: at for at, text in enumerate(dict.fromkeys(["", *texts_of]))}
    line = np.array([number_of[text] for text in texts_of])
    launched_at = np.where(has_launch, site[call], np.where(work >= 0, site[work], 0))
    at_line = np.where(inside >= 0, site[inside], 0)
    at_line = np.where(at_line > 0, at_line, np.r_[launched_at, site[told_by]][stretch])
    label, labels = range_labels(trace)
    rows = np.r_[around, ranges_around(trace, thread, np.where(has_launch, starts[call], 0))]
    begin = np.r_[since, back]
    end = np.r_[until, high]
    waits = np.r_[inside, np.full(len(low), -1)]
    works = np.r_[np.full(len(gap), -1), work]
    part, function, held_ns = _in_functions(trace, begin, end, waits, works)
    name, names = codes(trace.spans.column("name"))
    first, code = combined(name[function])
    lasted_ns = end - begin
    np.subtract.at(lasted_ns, part, held_ns)
    of_part = np.r_[np.arange(len(begin)), part]
    columns = (
        np.r_[gap, np.arange(len(low))][of_part],
        np.r_[lasted_ns, held_ns],
        np.r_[during, after, len(texts) + code],
        np.r_[whose[stretch], thread][of_part],
        np.where(rows >= 0, label[rows], 0)[of_part],
        line[np.r_[at_line, launched_at, site[function]]],
        begin[of_part],
        end[of_part],
        np.r_[np.ones(len(gap), bool), np.zeros(len(low) + len(part), bool)],
    )
    texts += [f"{FUNCTION} ({names[name[row]]})" for row in function[first].tolist()]
    has_length = columns[1] > 0
    return tuple(column[has_length] for column in columns), (texts, labels, list(number_of))


def _handed_over(trace: Trace, call: Ints, low: Ints, back: Ints) -> tuple[Ints, ...]:
    """Say whose time the gaps are until their launch calls return.

    Returns
    -------
    tuple
        Of each stretch its gap, thread, begin and end: first of each gap that of the thread that
        launched, then of some what came before, of the Python thread that handed it over; between
        thread and begin the calls whose lines tell where the Python was, of the latter only.
    """
    owner = trace.array("thread", fill=-1)
    starts = trace.array("start_ns")
    burst = np.where(call >= 0, latest_followed(trace)[call], -1)
    handed = np.flatnonzero((burst >= 0) & (starts[burst] > low))
    until = np.minimum(starts[burst[handed]], back[handed])
    followed, nearer = (calls[burst[handed]] for calls in followed_calls(trace))
    begin = low.copy()
    begin[handed] = until
    return (
        np.r_[np.arange(len(low)), handed],
        np.r_[np.where(call >= 0, owner[call], -1), owner[followed]],
        nearer,
        np.r_[begin, low[handed]],
        np.r_[back, until],
    )


def _in_functions(
    trace: Trace, begin: Ints, end: Ints, waits: Ints, works: Ints
) -> tuple[Ints, Ints, Ints]:
    """Say in which parts of gaps a host function held up the work that ended the gap.

    Parameters
    ----------
    begin, end
        Of each part.
    waits, works
        The call that the thread was in, and the work that was launched already; −1 for none.

    Returns
    -------
    tuple
        Part, row of the host function, and for how long of the part it ran; of the functions of a
        part, those that ran one after the other.
    """
    functions = rows_of(trace, "host function")
    if not len(functions):
        return (np.zeros(0, np.int64),) * 3
    starts = trace.array("start_ns").copy()
    stream = trace.array("stream", fill=-1)
    ends = np.where(is_open(trace), LATEST_NS, trace.array("end_ns", fill=0))
    parts = [np.zeros(0, np.int64)]
    rows = [np.zeros(0, np.int64)]
    for number in np.unique(stream[functions]).tolist():
        of_stream = functions[stream[functions] == number]
        of_stream = of_stream[np.argsort(starts[of_stream], kind="stable")]
        over = np.maximum.accumulate(ends[of_stream])
        # Default streams of several threads may have one number: what ran at once counts once.
        starts[of_stream] = np.maximum(starts[of_stream], np.r_[0, over[:-1]])
        here = np.flatnonzero((works >= 0) & (stream[works] == number))
        first = over.searchsorted(begin[here], "right")
        count = np.maximum(starts[of_stream].searchsorted(end[here]) - first, 0)
        at = np.arange(count.sum()) + np.repeat(first - np.cumsum(count) + count, count)
        parts.append(np.repeat(here, count))
        rows.append(of_stream[at])
    last = np.full(len(trace) + 1, -1)  # row → the last host function that an edge says it awaited
    source, target = linked_rows(trace.edges, trace.array("id"), "event wait", "host wait")
    of_function = np.isin(source, functions)
    source = source[of_function]
    target = target[of_function]
    order = np.argsort(ends[source], kind="stable")
    last[target[order]] = source[order]
    awaited = np.where(works >= 0, last[works], last[waits])
    awaited[np.concatenate(parts)] = -1
    parts.append(np.flatnonzero(awaited >= 0))
    rows.append(awaited[awaited >= 0])
    part = np.concatenate(parts)
    function = np.concatenate(rows)
    ran_ns = np.minimum(end[part], ends[function]) - np.maximum(begin[part], starts[function])
    return part[ran_ns > 0], function[ran_ns > 0], ran_ns[ran_ns > 0]


def _causes(trace: Trace, low: Ints, high: Ints, work: Ints) -> tuple[IdleCause, ...]:
    """Sum the parts of gaps by cause, thread, range and line."""
    parts, (texts, labels, lines) = _parts(trace, low, high, work)
    gap, ns, cause, thread, label, line, begin, end, is_of_host = parts
    number = numbered(thread)[1]
    first, group = combined(cause, number, label, line)
    groups = Groups(group, list(range(len(first))))
    idle_ns = groups.sums(ns)
    gaps = np.bincount(group[combined(group, gap)[0]], minlength=len(first))
    longest = np.lexsort((-ns, group))
    ids = trace.array("id")
    called = thread_names(trace)
    of_host = Stretches(*(column[is_of_host] for column in (thread, begin, end, group)))
    functions = functions_in(trace, of_host, len(first))
    causes = []
    for at in np.argsort(-idle_ns, kind="stable").tolist():
        ended_by = work[gap[longest[groups.first[at] : groups.first[at + 1]][:_SHOWN]]]
        spans = tuple(dict.fromkeys(ids[ended_by[ended_by >= 0]].tolist()))
        part = first[at]
        where = labels[label[part]] or None, lines[line[part]] or None
        who = called.get(int(thread[part]))
        sums = int(idle_ns[at]), int(gaps[at])
        idle_cause = IdleCause(texts[cause[part]], who, *where, *sums, None, spans, functions[at])
        seen = seen_from(who, idle_cause.busiest) if idle_cause.busiest else None
        causes.append(replace(idle_cause, meanwhile=seen))
    return tuple(causes)
