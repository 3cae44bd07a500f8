"""Times of Python's functions while a GPU waited, and while all worked, by sampled stacks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from gpuscope._checks import door
from gpuscope._text import duration
from gpuscope._types import Array, Floats, Ints
from gpuscope.analysis.idle_analysis import gaps_of_gpus, window_of
from gpuscope.analysis.result import Result, about
from gpuscope.analysis.samples_analysis import samples_in
from gpuscope.errors import MissingEvidence
from gpuscope.trace.columns import codes, combined, rows_of
from gpuscope.trace.joins import union
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import thread_names
from gpuscope.trace.schema import IN_CALL
from gpuscope.trace.sites import SiteLine, lines_of


@dataclass(frozen=True)
class StackTime:
    """How long a thread had a stack.

    Attributes
    ----------
    lines
        The outermost first, those of packages among them.
    waited_ns, worked_ns
        While a GPU did nothing, and while all worked.
    """

    thread: str
    lines: tuple[SiteLine, ...]
    waited_ns: float
    worked_ns: float


@dataclass(frozen=True)
class HostTime:
    """How long a thread was in a function of the program's own, by samples.

    Attributes
    ----------
    function
        The innermost of the program's own; where there is none, that of a package.
    waited_ns, worked_ns
        While a GPU did nothing, and while all worked.
    """

    function: Annotated[str, "function"]
    thread: Annotated[str, "thread"]
    waited_ns: Annotated[float, "while a GPU waited (ms)"]
    worked_ns: Annotated[float, "while all worked (ms)"]


@dataclass(frozen=True)
class HostTimesResult(Result):
    """Where threads of Python's were while GPUs waited; threads at the same time are added up.

    Attributes
    ----------
    window_ns
        Begin and end of the time that was looked at.
    waited_ns
        How long of it a GPU did nothing.
    samples
        How many samples of stacks that rests on; one that lies half in the time counts half.
    stacks
        Whole stacks, for a flame graph.
    """

    window_ns: tuple[int, int]
    waited_ns: int
    samples: int
    times: tuple[HostTime, ...]
    stacks: tuple[StackTime, ...] = field(repr=False, default=())
    entries = "times"
    weight = "while a GPU waited (ms)"

    @property
    def definition(self) -> str:
        """What stands for what."""
        return (
            f"by {self.samples:,} samples of stacks; a GPU did nothing for "
            f"{duration(self.waited_ns)} of {duration(self.window_ns[1] - self.window_ns[0])}"
        )


@door(trace=Trace, window_ns=(tuple, None))
def host_times(trace: Trace, window_ns: tuple[int, int] | None = None) -> HostTimesResult:
    """Say in which functions Python's threads were while a GPU did nothing, and while all worked.

    A sample stands for the time to its neighbours. Threads that wait in a system call with no line
    of the program's own, as those of pools do, are left out.

    Parameters
    ----------
    window_ns
        Begin and end; the steady time of :func:`steps` if not given.

    Raises
    ------
    MissingEvidence
        No stacks were sampled, or the trace holds no kernel, copy or memset.
    InvalidArgument
        The window is not two times in order.

    Examples
    --------
    >>> import gpuscope as gs
    >>> from gpuscope.trace import Trace
    >>> trace = Trace.from_columns({
    ...     "id": [1, 2, 3], "kind": ["kernel", "stack", "kernel"], "name": ["k", "f", "k"],
    ...     "start_ns": [0, 0, 90], "end_ns": [10, 100, 100], "thread": [None, 7, None],
    ...     "value": [None, 10, None], "source": ["cupti", "host", "cupti"]})
    >>> [(time.function, time.waited_ns) for time in gs.analysis.host_times(trace, (0, 100)).times]
    [('f', 80.0)]
    """
    rows = _of_the_program(trace)
    if not len(rows):
        raise MissingEvidence(
            "no stacks were sampled: record with profile(sample=200) or `gpuscope record`"
        )
    low, high = window_of(trace, window_ns)
    begins, ends, *_ = gaps_of_gpus(trace, low, high)
    gaps = union(begins, ends)
    start, end = (
        np.clip(times[rows], low, high)
        for times in (trace.array("start_ns"), trace.array("end_ns", fill=0))
    )
    waited = _within(gaps, start, end)
    worked = end - start - waited
    owner = trace.array("thread", fill=-1)[rows]
    called = thread_names(trace)
    stacks, times = (
        _summed(trace, rows, owner, waited, worked, column) for column in ("payload", "site")
    )
    functions: defaultdict[tuple[str, str], Floats] = defaultdict(lambda: np.zeros(2))
    for thread, lines, name, *lasted_ns in times:
        words = f"{lines[0].function} ({lines[0].file})" if lines else name
        functions[words, called.get(thread, "a thread")] += lasted_ns
    ordered = sorted(functions.items(), key=lambda item: item[1].tolist(), reverse=True)
    return HostTimesResult(
        (low, high),
        int(np.diff(gaps).sum()),
        round(samples_in(trace, rows, end - start).sum()),
        tuple(HostTime(*key, *sums.tolist()) for key, sums in ordered if sums.any()),
        tuple(
            StackTime(called.get(thread, "a thread"), lines[::-1], waited_ns, worked_ns)
            for thread, lines, _, waited_ns, worked_ns in stacks
            if waited_ns or worked_ns
        ),
        **about(trace),
    )


def _of_the_program(trace: Trace) -> Ints:
    """Return the rows of stacks but those of threads that wait for work."""
    rows = rows_of(trace, "stack")
    status, states = codes(trace.spans.column("status"))
    waits = np.array([str(state).startswith(IN_CALL) for state in states])[status[rows]]
    has_lines = codes(trace.spans.column("site"))[0][rows] > 0
    of_the_program: Ints = rows[has_lines | ~waits]
    return of_the_program


def _within(intervals: Ints, start: Ints, end: Ints) -> Ints:
    """Return how much of each stretch lies in intervals that are apart."""
    before: Ints = np.r_[0, np.cumsum(np.diff(intervals))]

    def until(times: Ints) -> Ints:
        at = intervals[:, 0].searchsorted(times, "right")
        still_to_come = np.where(at > 0, np.r_[0, intervals[:, 1]][at] - times, 0)
        return np.asarray(before[at] - np.maximum(still_to_come, 0), np.int64)

    lasted: Ints = until(end) - until(start)
    return lasted


def _summed(
    trace: Trace, rows: Ints, owner: Ints, waited: Ints, worked: Ints, column: str
) -> list[tuple[int, tuple[SiteLine, ...], str, float, float]]:
    """Return thread, lines, innermost function, and times of each stack."""
    text, texts = codes(trace.spans.column(column))
    name, names = codes(trace.spans.column("name"))
    first, code = combined(owner, text[rows], name[rows])
    sums: list[Array] = [
        np.bincount(code, weights=lasted, minlength=len(first)) for lasted in (waited, worked)
    ]
    return [
        (
            int(owner[at]),
            lines_of(texts[text[rows[at]]]),
            str(names[name[rows[at]]]),
            float(sums[0][number]),
            float(sums[1][number]),
        )
        for number, at in enumerate(first.tolist())
    ]
