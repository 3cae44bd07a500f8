"""What a GPU waited for: every idle ns by cause, thread, range and line of the program."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from gpuscope._checks import door
from gpuscope._text import duration
from gpuscope._types import Ints
from gpuscope.analysis.intervals import Groups, merged
from gpuscope.analysis.latency_analysis import launch_calls
from gpuscope.analysis.result import Result, about, sentences
from gpuscope.analysis.steps_analysis import steps
from gpuscope.errors import InvalidArgument, MissingEvidence
from gpuscope.trace.columns import codes, combined, is_open, linked_rows, rows_of
from gpuscope.trace.joins import innermost, union
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import kernel_name, range_label, ranges_around, ranges_in, thread_names
from gpuscope.trace.schema import GPU_WORK, LATEST_NS
from gpuscope.trace.sites import lines_of

LAUNCH, COPY, OTHER = "in the launch call", "in a copy call", "in another call"
ON_ITS_WAY, EVENT = "launch on its way to the GPU", "waiting for an event"
NEXT = "between two works on the GPU"
BETWEEN, OUTSIDE = "between two CUDA calls", "outside CUDA and any range"
START, AFTER, UNKNOWN = "start of program", "after the last work", "launch call unknown"
HOST_WAIT, DATA, MEMORY = "in a host wait", "waiting for data", "memory allocation"
THREAD = "waiting for another thread"
_FIXED = [BETWEEN, OUTSIDE, START, LAUNCH, COPY, ON_ITS_WAY, EVENT, NEXT, AFTER, UNKNOWN]
_CALLS = (
    (re.compile("queue get"), DATA),
    (
        re.compile("(event|condition|barrier|semaphore) (wait|acquire)|future result|thread join"),
        THREAD,
    ),
    (re.compile("(?i)malloc|cudafree|cumemfree|hostalloc|memalloc|memfree|hostregister"), MEMORY),
    (re.compile("(?i)memcpy|^copy"), COPY),
    (re.compile("(?i)synchroni[sz]e|query|^(?!.*stream.?wait).*wait"), HOST_WAIT),
)
"""What the time in a call is by its name, where it launched nothing."""
_SHOWN = 4
"""Spans that show one cause, at most."""


@dataclass(frozen=True)
class IdleCause:
    """Idle time of GPUs of one cause, thread, range and line.

    Attributes
    ----------
    cause
        In words; a host wait or another call with the call's name.
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
    """

    cause: Annotated[str, "cause"]
    thread: Annotated[str | None, "thread"]
    range: Annotated[str | None, "range"]
    line: Annotated[str | None, "line"]
    idle_ns: Annotated[int, "idle (ms)"]
    gaps: Annotated[int, "gaps"]
    spans: tuple[int, ...] = field(repr=False, default=())


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
        return sentences(
            f"idle for {duration(self.idle_ns)}{several} of the steady "
            f"{duration(self.window_ns[1] - self.window_ns[0])}",
            "a gap belongs to the thread that launched the work which ended it; it is cut where "
            "that thread entered or left a call or a range; the parts add up",
        )


@door(trace=Trace, window_ns=(tuple, None))
def idle_causes(trace: Trace, window_ns: tuple[int, int] | None = None) -> IdleResult:
    """Say of every ns in which a GPU did nothing what it waited for.

    A gap of a GPU belongs to the thread that launched the work which ended it. Until that launch
    began, the thread was in another call, or between calls, in a range or in none; then in the
    launch call; then the launch was on its way, unless an event held it. A launch that was there
    before the gap is :data:`NEXT`. Time before the first row of the thread, if its process had
    launched nothing, is the start of the program.

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
    >>> kernel = gs.learn.spin_kernel(gpu)
    >>> with gpu.create_stream() as stream, gs.profile(gpu) as recording:
    ...     for _ in range(4):
    ...         stream.launch(kernel, 50_000, grid=1, block=32)
    ...         stream.synchronize()
    >>> idle = gs.analysis.idle_causes(recording.trace)
    >>> idle.idle_ns == sum(cause.idle_ns for cause in idle.causes)
    True
    """
    if not len(rows_of(trace, *GPU_WORK)):
        raise MissingEvidence(
            "the trace holds no kernel, copy or memset: record with profile() while the GPU works"
        )
    window = steps(trace).steady_ns if window_ns is None else window_ns
    if [*map(type, window)] != [int, int] or window[0] > window[1]:
        raise InvalidArgument(f"window_ns is a begin and an end in ns, not {window!r}")
    low, high = window
    begins, ends, work, devices = _gaps(trace, low, high)
    causes = _causes(trace, _cut(trace, begins, ends, work), work)
    return IdleResult((low, high), int((ends - begins).sum()), devices, causes, **about(trace))


def _gaps(trace: Trace, low: int, high: int) -> tuple[Ints, Ints, Ints, int]:
    """Return begin and end of each GPU's gaps, the row that ended each or −1, and how many GPUs."""
    rows = rows_of(trace, *GPU_WORK)
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
    opened, closed = opened[1:][gap], closed[:-1][gap]
    order = np.lexsort((starts, device))
    for at in np.flatnonzero(work[opened] < 0):  # cut by an edge: it belongs to what came then
        on = order[device[order] == code[opened[at]]]
        later = on[np.searchsorted(starts[on], begins[opened[at]]) :]
        work[opened[at]] = rows[later[0]] if len(later) else -1
    return finish[closed], begins[opened], work[opened], len(first)


def _states(trace: Trace, thread: Ints, low: Ints, high: Ints) -> tuple[Ints, ...]:
    """Cut stretches of time of threads where these enter or leave a call or a range.

    Returns
    -------
    tuple
        Of each part its stretch, begin, end, call and range, −1 for none; whether it comes before
        all rows of its thread.
    """
    calls = rows_of(trace, "api", "sync", "event")
    owners, starts = trace.array("thread", fill=-1), trace.array("start_ns")
    ends = trace.array("end_ns", fill=0)
    calls = calls[(owners[calls] > 0) & (ends[calls] > starts[calls])]
    _, owner, begin, end = ranges_in(trace)
    who = np.r_[owners[calls], owners[calls], owner, owner]
    when = np.r_[starts[calls], ends[calls], begin, end]
    order = np.lexsort((when, who))
    who, when = who[order], when[order]
    call = innermost(who, when, owners[calls], starts[calls], ends[calls] - 1)
    call = np.where(call >= 0, calls[call], -1) if len(calls) else call
    inside = ranges_around(trace, who, when)
    number = np.unique(np.r_[who, thread], return_inverse=True)[1]
    rank = np.unique(np.r_[when, low, high], return_inverse=True)[1]
    width = int(rank.max(initial=0)) + 1
    edges = number[: len(who)] * width + rank[: len(who)]
    owner_key = number[len(who) :] * width
    after = np.searchsorted(edges, owner_key + rank[len(who) : len(who) + len(low)], "right")
    until = np.searchsorted(edges, owner_key + rank[len(who) + len(low) :], "left")
    count = np.maximum(until - after, 0) + 1
    stretch = np.repeat(np.arange(len(low)), count)
    step = np.arange(len(stretch)) - np.repeat(np.cumsum(count) - count, count)
    edge = after[stretch] + step  # the edge that ends the part
    padded = np.r_[when, 0]
    begin = np.where(step > 0, padded[edge - 1], low[stretch])
    end = np.where(step < count[stretch] - 1, padded[edge], high[stretch])
    none = (edge == 0) | (np.r_[who, -1][edge - 1] != thread[stretch])
    call, inside = (np.where(none, -1, np.r_[values, -1][edge - 1]) for values in (call, inside))
    return stretch, begin, end, call, inside, none


def _cause_of_calls(trace: Trace) -> tuple[list[str], Ints]:
    """Return causes in words, and row → which of them the time in that call is."""
    calls, work = linked_rows(trace.edges, trace.array("id"), "launch")
    every = rows_of(trace, "api", "sync", "event")
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
    of_row[calls] = _FIXED.index(LAUNCH)
    of_row[calls[np.isin(work, rows_of(trace, "memcpy"))]] = _FIXED.index(COPY)
    return list(number), of_row


@dataclass(frozen=True)
class _Parts:
    """Parts of gaps: the gap of each, its length, and the numbers of what it is told by.

    Attributes
    ----------
    texts, labels, lines
        Causes, ranges and lines by number.
    """

    gap: Ints
    ns: Ints
    cause: Ints
    thread: Ints
    range: Ints
    line: Ints
    texts: list[str]
    labels: list[str]
    lines: list[str]


def _cut(trace: Trace, begins: Ints, ends: Ints, work: Ints) -> _Parts:
    """Cut gaps by what the thread did that launched the work which ended each."""
    starts, owner = trace.array("start_ns"), trace.array("thread", fill=-1)
    returned = np.where(is_open(trace), LATEST_NS, trace.array("end_ns", fill=0))
    every, _ = linked_rows(trace.edges, trace.array("id"), "launch")
    processes, process = np.unique(trace.array("process", fill=-1), return_inverse=True)
    first_ns = np.full(len(processes), LATEST_NS)
    np.minimum.at(first_ns, process[every], starts[every])
    held_ns = np.zeros(len(trace), np.int64)
    source, target = linked_rows(trace.edges, trace.array("id"), "event wait")
    np.maximum.at(held_ns, target, returned[source])

    call = np.where(work >= 0, launch_calls(trace)[work], -1)
    gap = np.flatnonzero(call >= 0)
    lost = np.flatnonzero(call < 0)
    call, low, high = call[gap], begins[gap], ends[gap]
    launched = np.clip(starts[call], low, high)
    back = np.clip(returned[call], launched, high)
    stretch, since, until, inside, around, none = _states(trace, owner[call], low, launched)
    texts, of_call = _cause_of_calls(trace)
    number = {text: at for at, text in enumerate(_FIXED)}
    in_none = np.where(np.isin(owner[call], ranges_in(trace)[1]), number[OUTSIDE], number[BETWEEN])
    before = np.where(around >= 0, number[BETWEEN], in_none[stretch])
    before[none & (until <= first_ns[process[call]][stretch])] = number[START]
    before = np.where(inside >= 0, of_call[inside], before)
    after = np.where(returned[call] > low, number[ON_ITS_WAY], number[NEXT])
    after[held_ns[work[gap]] > np.maximum(returned[call], low)] = number[EVENT]
    cause = np.r_[
        before, of_call[call], after, np.where(work[lost] < 0, number[AFTER], number[UNKNOWN])
    ]
    ns = np.r_[until - since, back - launched, high - back, ends[lost] - begins[lost]]
    of_gap = np.r_[gap[stretch], gap, gap, lost]

    site, sites = codes(trace.spans.column("site"))
    line, lines = _numbered([str((lines_of(text) or ("",))[0]) for text in sites])
    own = np.where(inside >= 0, site[inside], 0)
    at_line = np.where(own > 0, own, site[call][stretch])
    place = line[
        np.r_[at_line, site[call], site[call], np.where(work[lost] < 0, 0, site[work[lost]])]
    ]
    name, names = codes(trace.spans.column("name"))
    label, labels = _numbered([range_label(str(text or "")) for text in names])
    held = ranges_around(trace, owner[call], starts[call])
    rows = np.r_[around, held, held, np.full(len(lost), -1)]
    range_of = np.where(rows >= 0, label[name[rows]], 0)
    thread = np.r_[owner[call][stretch], owner[call], owner[call], np.full(len(lost), -1)]

    return _Parts(of_gap, ns, cause, thread, range_of, place, texts, labels, lines)


def _causes(trace: Trace, parts: _Parts, work: Ints) -> tuple[IdleCause, ...]:
    """Sum the parts of gaps by cause, thread, range and line."""
    kept = np.flatnonzero(parts.ns > 0)
    ns, gap = parts.ns[kept], parts.gap[kept]
    threads = np.unique(parts.thread, return_inverse=True)[1]
    keys = parts.cause, threads, parts.range, parts.line
    first, group = combined(*(key[kept] for key in keys))
    idle_ns = Groups(group, list(range(len(first)))).sums(ns)
    gaps = np.bincount(group[combined(group, gap)[0]], minlength=len(first))
    order = np.lexsort((-ns, group))
    bounds = np.searchsorted(group[order], np.arange(len(first) + 1))
    ids, called = trace.array("id"), thread_names(trace)
    causes = []
    for index in np.argsort(-idle_ns, kind="stable").tolist():
        at = kept[first[index]]
        longest = work[gap[order[bounds[index] : bounds[index + 1]][:_SHOWN]]]
        causes.append(
            IdleCause(
                parts.texts[parts.cause[at]],
                called.get(int(parts.thread[at])),
                parts.labels[parts.range[at]] or None,
                parts.lines[parts.line[at]] or None,
                int(idle_ns[index]),
                int(gaps[index]),
                tuple(dict.fromkeys(ids[longest[longest >= 0]].tolist())),
            )
        )
    return tuple(causes)


def _numbered(texts: list[str]) -> tuple[Ints, list[str]]:
    """Return text → number among the different ones, of which the first is empty; and these."""
    number = {text: at for at, text in enumerate(dict.fromkeys(["", *texts]))}
    return np.array([number[text] for text in texts], np.int64), list(number)
