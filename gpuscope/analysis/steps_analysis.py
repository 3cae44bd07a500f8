"""Steps: what a program does again and again, and what of its time is start-up and warm-up."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from gpuscope._checks import door
from gpuscope._text import duration
from gpuscope._types import Ints
from gpuscope.analysis.intervals import Groups
from gpuscope.analysis.result import Result, Row, about
from gpuscope.trace.columns import codes, combined, linked_rows, once, rows_of
from gpuscope.trace.joins import numbered
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import REPEATED, kernel_name, range_labels, ranges_in
from gpuscope.trace.schema import CALLS, COLLECTION, GPU_WORK, LATEST_NS, SAMPLED
from gpuscope.trace.sites import lines_of

HAND_OVER = re.compile(
    "queue |future result|thread join|(event|condition|barrier|semaphore) (wait|acquire)"
    f"|{COLLECTION}"
)
"""What waits for other threads or processes are called, and for Python's collector."""
_SAMPLE = 50_000
_MOST_TOKENS = 64
"""Launches from the middle of a run, and kinds of launches, by which a period is looked for."""
_REGULAR = 0.9
_WHOLE = 0.7
"""Share of launches in steps of usual length, and of their kinds in most steps, at least."""
_NOISE = 3.0
_TOLERANCE = 0.1
"""Deviations of the steps, and share of their median, that are no warm-up."""
_SET_UPS = 5
"""Pauses of a first step that are said to set libraries up, at most."""


@dataclass(frozen=True)
class Step:
    """One step: when the host was in it, or its work ran where the host runs ahead.

    Attributes
    ----------
    name
        Of its range, without a number at the end; ``"step"`` where launches tell the steps.
    """

    name: str
    start_ns: int
    end_ns: int
    process: int
    thread: int

    @property
    def length_ns(self) -> int:
        """How long it took, ns."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class StepsResult(Result):
    """Steps of each process, in the order of their starts.

    Attributes
    ----------
    basis
        What tells the steps, in words; that there are none.
    start_up_ns
        From the beginning of the trace to the first launch.
    warm_up_ns
        From there to the first steady step: setting up, and the first steps.
    steady_ns
        Begin and end of what rates and idle shares count.
    """

    basis: str
    start_up_ns: int
    warm_up_ns: int
    steady_ns: tuple[int, int]
    steps: tuple[Step, ...] = field(repr=False)

    @property
    def steady(self) -> tuple[Step, ...]:
        """The steps behind warm-up."""
        return tuple(step for step in self.steps if step.start_ns >= self.steady_ns[0])

    @property
    def typical(self) -> Step | None:
        """The steady step of median length; ``None`` without steps."""
        ordered = sorted(self.steady or self.steps, key=lambda step: step.length_ns)
        return ordered[(len(ordered) - 1) // 2] if ordered else None

    def _rows(self) -> list[Row]:
        """One row per process."""
        rows = []
        for process in dict.fromkeys(step.process for step in self.steps):
            of_process = [step for step in self.steps if step.process == process]
            steady = [step.length_ns for step in self.steady if step.process == process]
            median, p90, longest = (np.quantile(steady or [0], (0.5, 0.9, 1)) / 1e6).tolist()
            row: Row = {"step": of_process[0].name, "process": process, "steady": len(steady)}
            row |= {"median (ms)": median, "p90 (ms)": p90, "longest (ms)": longest}
            rows.append({**row, "warm-up": len(of_process) - len(steady)})
        return rows

    @property
    def definition(self) -> str:
        """By what steps are told, and what is start-up and warm-up."""
        steady = duration(self.steady_ns[1] - self.steady_ns[0])
        return (
            f"{'steps by ' if self.steps else ''}{self.basis}; start-up of "
            f"{duration(self.start_up_ns)} and set-up with warm-up of {duration(self.warm_up_ns)} "
            f"count in no rate and no idle share, the steady {steady} do"
        )


@door(trace=Trace)
def steps(trace: Trace) -> StepsResult:
    """Find what a program repeats, and tell start-up and warm-up from its steady time.

    Steps of a process are its ranges of one name (but for a number at its end), at least three on
    one thread: those that hold most launches, of these the longest. Without such ranges, they
    begin where the thread that launches most comes to the same launch again: at the line of the
    program, or of the kernel's name, that splits its launches most finely into stretches of like
    length that hold most kinds of its launches. Stretches of less than half or more than twice
    the median number of launches are no steps.

    Where work begins later after its launch than a step of the host's lasts, the host runs ahead,
    and steps are from when their first work began to when that of the next did.

    Warm-up ends before the first two steps in a row that are no longer than usual: than the median
    of all steps and three of their standard deviations, by the median deviation, or a tenth of the
    median if that is more. It ends before steps that take more than a tenth of the time longer than
    usual, unless half of that is calls that are new or never come again, or in the first step few
    pauses that take longer than any later one. The steady time ends with the last step and the work
    that it launched; before it, if it is longer than all other steady ones by a tenth or more, as
    what a program does in the end may be in it.
    Without steps, it is from the first launch to the end of the last GPU work.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> kernel = gs.workloads.spin_kernel(gpu)
    >>> with gpu.create_stream() as stream, gs.profile(gpu) as recording:
    ...     for number in range(4):
    ...         with gs.annotate(f"step {number}"):
    ...             stream.launch(kernel, 50_000, grid=1, block=32)
    >>> steps = gs.analysis.steps(recording.trace)
    >>> len(steps.steps), steps.typical.name
    (4, 'step')
    """
    return _steps(trace)


@once
def _steps(trace: Trace) -> StepsResult:
    starts = trace.array("start_ns")
    ends = trace.array("end_ns", fill=0)
    begins = [low for low, _ in trace.metadata.windows_ns[:1]]
    of_program = np.delete(starts, rows_of(trace, *SAMPLED))
    begin = min([int(of_program.min(initial=LATEST_NS)), *begins])
    work = rows_of(trace, *GPU_WORK)
    calls, launched = linked_rows(trace.edges, trace.array("id"), "launch")
    calls, at, works = np.unique(calls, return_index=True, return_counts=True)
    launched = launched[at]
    process = trace.array("process", fill=-1)[calls]
    several: list[Step] = []
    bases = []
    low = []
    high = []
    for number in np.unique(process).tolist():
        chosen = process == number
        basis, name, thread, bounds = _of_process(
            trace, calls[chosen], launched[chosen], works[chosen]
        )
        if len(bounds):
            on_thread = chosen & (trace.array("thread", fill=-1)[calls] == thread)
            on_gpu = _on_gpu(starts[calls[on_thread]], starts[launched[on_thread]], bounds)
            if on_gpu is not None:
                bounds = on_gpu
                basis = f"{basis}, as their work ran: the host runs ahead"
            bases.append(basis)
            several += [Step(name, first, last, number, thread) for first, last in bounds.tolist()]
            lengths = bounds[:, 1] - bounds[:, 0]
            warm = _told_by_news(trace, number, thread, bounds, _warm_up(lengths))
            low.append(int(bounds[warm, 0]))
            longest_ns = lengths[warm:-1].max(initial=0)
            end = int(bounds[-1, 1])
            if 0 < (1 + _TOLERANCE) * longest_ns < lengths[-1]:
                end = int(bounds[-1, 0])  # what a program does in the end
            before = launched[chosen & (starts[calls] < end)]
            high.append(max(end, int(ends[before].max(initial=0))))
    several.sort(key=lambda step: step.start_ns)
    begun = starts[np.r_[work, calls]]
    first_ns = int(begun.min()) if len(begun) else begin
    steady = max(low, default=first_ns), max(high, default=int(ends[work].max(initial=first_ns)))
    basis = " and ".join(dict.fromkeys(bases)) or "nothing is repeated: no steps"
    times = first_ns - begin, steady[0] - first_ns
    return StepsResult(basis, *times, steady, tuple(several), **about(trace))


def steady_part(trace: Trace) -> Trace:
    """Return what began in the steady time of a recorded program; of any other trace, all."""
    if trace.metadata.experiment is not None or not steps(trace).steps:
        return trace
    low, high = steps(trace).steady_ns
    starts = trace.array("start_ns")
    return trace.where((starts >= low) & (starts < high))


def _on_gpu(calls: Ints, works: Ints, bounds: Ints) -> Ints | None:
    """Return when the work of steps ran, where the host is ahead by more than one.

    Parameters
    ----------
    calls, works
        When launches of their thread, and the work of these, began.
    """
    order = np.argsort(calls, kind="stable")
    calls = calls[order]
    works = np.maximum.accumulate(works[order])
    first, after = (np.searchsorted(calls, bounds[:, at]) for at in (0, 1))
    first = np.minimum(first, len(calls) - 1)
    if np.median(works[first] - calls[first]) <= np.median(bounds[:, 1] - bounds[:, 0]):
        return None
    return np.stack([works[first], np.r_[works, works[-1:]][after]], axis=1)


_Found: TypeAlias = tuple[str, str, int, Ints]
"""By what steps are told, their name and thread, and where they begin and end."""


def _of_process(trace: Trace, calls: Ints, launched: Ints, works: Ints) -> _Found:
    """Find the steps of one process by its ranges, else by its launches and their first works."""
    thread, starts = (trace.array(name, fill=-1)[calls] for name in ("thread", "start_ns"))
    times_of = {number: np.sort(starts[thread == number]) for number in np.unique(thread).tolist()}
    rows, owner, low, high = ranges_in(trace)
    inside = np.isin(owner, thread)
    rows, owner, low, high = (values[inside] for values in (rows, owner, low, high))
    label, labels = range_labels(trace)
    first, code = combined(label[rows], numbered(owner)[1])
    groups = Groups(code, [(labels[label[rows[at]]], int(owner[at])) for at in first])
    most = (len(calls) // 2, 0)
    steps_of = None
    for index, (text, number) in enumerate(groups.labels):
        some = groups.rows(index)
        some = some[np.argsort(low[some], kind="stable")]
        some = some[low[some] >= np.r_[0, np.maximum.accumulate(high[some])][:-1]]
        if len(some) < REPEATED:
            continue
        times = times_of[number]
        launches = np.searchsorted(times, high[some]) - np.searchsorted(times, low[some])
        if (key := (int(launches.sum()), int((high[some] - low[some]).sum()))) > most:
            bounds = np.stack([low[some], high[some]], axis=1)
            most = key
            steps_of = (f"ranges {text!r}", text, number, bounds)
    return steps_of or _of_launches(trace, calls, launched, works)


def _of_launches(trace: Trace, calls: Ints, launched: Ints, works: Ints) -> _Found:
    """Find the steps of one process by the launches of the thread of the program with most."""
    thread = trace.array("thread", fill=-1)[calls]
    line, sites = codes(trace.spans.column("site"))
    lines = [str((lines_of(text) or [""])[-1]) for text in sites]
    has_line = np.array([bool(text) for text in lines])[line[calls]]
    threads, count = np.unique(thread[has_line | ~has_line.any()], return_counts=True)
    number = int(threads[count.argmax()])
    order = np.flatnonzero(thread == number)
    order = order[np.argsort(trace.array("start_ns")[calls[order]], kind="stable")]
    calls = calls[order]
    launched = launched[order]
    works = works[order]
    name, names = codes(trace.spans.column("name"))
    what = _what_is_launched(trace, launched, name, len(names))
    kind = combined(what)[1]
    starts = trace.array("start_ns")[calls]
    ends = trace.array("end_ns", fill=0)[calls]
    waits = rows_of(trace, *CALLS)
    of_cuda = ~np.array([bool(HAND_OVER.search(str(text))) for text in names])[name[waits]]
    waits = waits[of_cuda & (trace.array("thread", fill=-1)[waits] == number)]
    left = np.sort(np.r_[starts[0], trace.array("end_ns", fill=0)[waits]])
    pause = starts - left[np.searchsorted(left, starts, "right") - 1]  # since it left a call
    low = max(len(calls) // 4, len(calls) // 2 - _SAMPLE // 2)  # not how it was set up
    sample = slice(low, low + _SAMPLE)
    periods = []
    is_graph = what >= len(names)
    at_line = combined(what, line[calls])[1]
    most = np.bincount(at_line[sample]).argmax()
    is_most = at_line == most
    is_sole = np.mean(is_most[sample]) >= _REGULAR  # a loop of one launch
    for token in (kind, at_line):
        begins = np.r_[True, token[1:] != token[:-1]] | (works > 1) | is_graph
        begins |= is_most & is_sole
        for value in _tokens(token[sample][begins[sample]], pause[sample][begins[sample]]):
            at = np.flatnonzero(begins & (token == value))
            if period := _period(at[(at >= low) & (at < low + _SAMPLE)] - low, kind[sample]):
                periods.append((period, at))
    if not periods:
        return "", "", number, np.zeros((0, 2), np.int64)
    least = min(period for period, _ in periods) * (1 + _TOLERANCE)
    fine = [(period, at) for period, at in periods if period <= least]
    period, at = max(fine, key=lambda fit: (len(fit[1]), np.median(pause[fit[1]])))
    until = np.r_[at[1:], min(at[-1] + period, len(calls))]
    like = (2 * (until - at) >= period) & (until - at <= 2 * period)
    after = np.r_[starts, max(ends[-1], starts[-1])]
    bounds = np.stack([after[at], after[until]], axis=1)[like]
    first = kernel_name(str(names[name[launched[at[0]]]]))
    made_by = lines_of(sites[line[calls[at[0]]]])
    where = f" at {made_by[0]}" if made_by else ""
    return f"launches that begin anew with {first}{where}", "step", number, bounds


def _what_is_launched(trace: Trace, launched: Ints, name: Ints, first: int) -> Ints:
    """Return a number for what each call launched: its name's.

    Where launches of graphs were recorded as a whole, those of one graph have a number from
    ``first`` on, also where its nodes were recorded instead.
    """
    what = name[launched]
    if not len(rows_of(trace, "graph")):
        return what
    graph = trace.array("graph", fill=-1)[launched]
    return np.where(graph >= 0, first + graph, what)


def _tokens(token: Ints, pause: Ints) -> list[int]:
    """Return of each number of occurrences the launch that the host makes after most delay."""
    groups = Groups.of(token, range(int(token.max(initial=0)) + 1))
    best: dict[int, int] = {}
    delay = groups.quantiles(pause, (0.5,))[:, 0]
    for index in np.lexsort((-np.arange(len(delay)), delay)).tolist():  # of equal ones the first
        best[int(groups.counts[index])] = groups.labels[index]
    return [best[count] for count in sorted(best, reverse=True)[:_MOST_TOKENS] if count >= REPEATED]


def _period(at: Ints, kind: Ints) -> int:
    """Return how many launches come between two of some, if these split them evenly; else 0."""
    gaps = np.diff(at)
    period = int(np.median(gaps))
    regular = gaps[np.abs(gaps - period) <= period / 4].sum()
    inside = kind[at[0] : at[-1]]
    segment = np.repeat(np.arange(len(gaps)), gaps)
    total = np.bincount(inside)
    gaps_with = np.bincount(inside[combined(segment, inside)[0]], minlength=len(total))
    often = total >= REPEATED
    is_whole = (gaps_with >= len(gaps) / 2)[often].sum() >= _WHOLE * often.sum()
    return period if is_whole and regular + period >= _REGULAR * len(kind) else 0


def _warm_up(lengths: Ints) -> int:
    """Return how many of the first steps are warm-up.

    The factor makes of the median absolute deviation the standard deviation of normal noise.
    """
    median = np.sort(lengths)[(len(lengths) - 1) // 2]
    noise = 1.4826 * np.median(np.abs(lengths - median))
    usual = lengths <= median + max(_NOISE * noise, _TOLERANCE * median)
    settled = np.flatnonzero(usual[:-1] & usual[1:])
    return int(settled[0]) if len(settled) else 0


def _told_by_news(trace: Trace, process: int, thread: int, bounds: Ints, warm: int) -> int:
    """Return how many of the first steps are warm-up, by what they do that later steps do not.

    What long first steps take is explained if half of it is calls that are new at their line or
    never come again, of any thread: backward passes have one of their own. In the first step also
    few pauses that took longer than any later step but the last: libraries are set up there. If
    more than a tenth of the time is not, the program does something there that is no warm-up.

    Parameters
    ----------
    warm
        How many of them are longer than usual.
    """
    lengths = bounds[:, 1] - bounds[:, 0]
    if not warm:
        return 0
    more_ns = np.maximum(lengths[:warm] - int(np.median(lengths[warm:])), 0)
    most_ns = _TOLERANCE * lengths.sum()
    if more_ns.sum() <= most_ns:
        return warm
    starts = trace.array("start_ns")
    ends = trace.array("end_ns", fill=0)
    threads = trace.array("thread", fill=-1)
    calls = rows_of(trace, *CALLS)
    calls = calls[trace.array("process", fill=-1)[calls] == process]
    calls = calls[np.argsort(starts[calls], kind="stable")]
    name = codes(trace.spans.column("name"))[0]
    line = codes(trace.spans.column("site"))[0]
    launched = np.full(len(trace), -1)
    by, work = linked_rows(trace.edges, trace.array("id"), "launch")
    launched[by] = work
    what = np.where(launched[calls] >= 0, name[launched[calls]] + 1, 0)
    whose = numbered(threads[calls])[1]
    first, code = combined(name[calls], what, line[calls], whose)
    settled = bounds[warm, 0]
    last_ns = np.zeros(len(first), np.int64)
    np.maximum.at(last_ns, code, starts[calls])
    begin_ns = bounds[0, 0]
    left_ns = np.maximum.accumulate(np.r_[begin_ns, ends[calls]])[:-1]
    by_it = threads[calls] == thread
    left_ns[by_it] = np.r_[begin_ns, ends[calls[by_it]]][:-1]
    paused_ns = np.maximum(starts[calls] - left_ns, 0)
    step = np.searchsorted(bounds[:warm, 0], starts[calls], "right") - 1
    is_news = np.isin(np.arange(len(calls)), first) | (last_ns[code] < settled)
    longest_ns = lengths[warm:-1].max(initial=0)
    set_up = np.flatnonzero((step == 0) & (paused_ns > longest_ns))
    by_length = np.argsort(-paused_ns[set_up])
    is_news[set_up[by_length[:_SET_UPS]]] = True
    took_ns = np.where(is_news, paused_ns + ends[calls] - starts[calls], 0)
    inside = (step >= 0) & (starts[calls] < settled)
    news_ns = np.bincount(step[inside], took_ns[inside], warm)
    unexplained_ns = np.cumsum(np.where(2 * news_ns >= more_ns, 0, more_ns))
    return int(np.searchsorted(unexplained_ns, most_ns, "right"))
