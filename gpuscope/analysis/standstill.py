"""Why a thread of the host stands still between two calls: told by what such pauses come with.

A pause has one cause, that with the most special evidence; how often it comes with that is held
against chance.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpuscope._types import Bools, Ints
from gpuscope.analysis.causes import Causes
from gpuscope.analysis.help_view import HelpView
from gpuscope.analysis.samples_analysis import Stretches, compilations, lock_holders
from gpuscope.trace.columns import combined
from gpuscope.trace.joins import union
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import kernel_name, thread_names
from gpuscope.trace.schema import NO_PYTHON
from gpuscope.trace.sites import lines_of

_STILL_NS = 1_000_000
_TIMES = 10
_ALIKE = 5
_ALIKE_AFTER = 20
"""A thread stands still if it pauses so long, so many times as long as it usually does before such
a call, or after such a one, of which there are at least so many."""
_COMPILES_NS = 50_000_000
"""What takes less before the first launch of a kernel may be its loading."""
_FEWEST = 5
_DEVIATIONS = 5.0
"""How often pauses come at least with what is said to be their cause, and by how many standard
deviations of a binomial distribution more often than by chance: p is about 10⁻⁶."""
_SWITCH_NS = 5_000_000
_LATE = 0.12
_MOST_SWITCHES = 3
"""``sys.getswitchinterval()``, after which a thread gets the interpreter that another one computes
in; how much later it has it, as a share; and up to how many of them chance can be told from it."""
_BLOCKS = re.compile("(?i)synchroni[sz]e|memcpy|malloc|free|module|library")
_BLOCKS_NS = 200_000
_WAKES_NS = 1_000_000
_COVERED = 0.7
"""How long a call takes that holds others up, within what time after it they go on, and which share
of their pause it covers, at least."""
_HOLDS = 0.1
"""Share of pauses in which a thread holds the lock, by samples where there are any, at least."""
_ASLEEP = 0.5
"""Share of its life in calls from which on a thread does not compute."""


@dataclass(frozen=True, eq=False)
class Standstill:
    """Pauses of one cause.

    Attributes
    ----------
    about
        The kernel or the thread that is the cause, and its line.
    edges
        Edge of a :class:`HelpView` → whether it is such a pause.
    usual_ns
        Edge → what its thread takes there otherwise.
    """

    about: str
    edges: Bools
    usual_ns: Ints


class ProgramView(HelpView):
    """The edges of a window, and its pauses whose cause is known.

    Attributes
    ----------
    compiled, blocked, switched
        Pauses before a kernel that is compiled anew; while another thread holds a lock in a call;
        while another thread computes in Python.
    compilation, compiling_lines
        Edge → number of the compilation that its thread is in, by samples, −1 for none; that
        → the line of the program that it lies in, or nothing.
    """

    def __init__(self, trace: Trace, causes: Causes, node: int, low_ns: int, high_ns: int) -> None:
        super().__init__(trace, causes, node, low_ns, high_ns)
        self._free = self.is_code.copy()
        self._names = thread_names(trace)
        self.compiled = [*self._claimed(self._compiled())]
        host = np.flatnonzero(self.is_host & (self._free | ~self.is_code))
        middle = causes.times[causes.source[host]] + self.lasts[host] // 2
        threads = self.rows.threads[self.row[host]]
        self.compilation = np.full(len(self.row), -1)
        self.compilation[host], self.compiling_lines = compilations(trace, threads, middle)
        self._free &= self.compilation < 0
        self.blocked = [*self._claimed(self._blocked())]
        self.switched = [*self._claimed(self._switched())]

    def _claimed(self, found: Iterator[Standstill]) -> Iterator[Standstill]:
        for standstill in found:
            self._free &= ~standstill.edges
            yield standstill

    @property
    def unexplained(self) -> Bools:
        """Edge → whether it is a thread's time between calls that has no other cause."""
        return self._free

    @cached_property
    def _usual(self) -> tuple[Ints, Ints]:
        """Edge → median time before such a call, ns, and how many there are.

        Before the same call at its line, of what it launches; or after the same call at its line,
        if that is less: of some calls only those have rows before which something happened.
        """
        rows = self.rows
        usual_ns, count = np.zeros((2, len(self.row)), np.int64)
        edges = np.flatnonzero(self.is_code & (self.coming >= 0))
        (name, _), (site, _) = rows.coded("name"), rows.coded("site")
        call = self.coming[edges]
        before = self.before[edges]
        lag = self.causes.lag[edges]
        launched = np.r_[self.launched, -1][call]
        what = np.where(launched >= 0, name[launched] + 1, 0)
        median_ns, alike = _medians(lag, self.line[edges], name[call], what)
        after_ns, alike_after = _medians(
            lag, site[before], name[before], self.causes.source[edges] % 2
        )
        is_less = (after_ns < median_ns) & (alike_after >= _ALIKE_AFTER)
        usual_ns[edges] = np.where(is_less, after_ns, median_ns)
        count[edges] = np.where(is_less, alike_after, alike)
        return usual_ns, count

    @cached_property
    def launched(self) -> Ints:
        """Row of a call → the work that it launched last, −1 for none."""
        rows = self.rows
        launched = np.full(len(rows.ids), -1)
        work = np.flatnonzero(rows.is_work & (rows.calls >= 0))
        launched[rows.calls[work]] = work
        return launched

    def _still(self, edges: Bools) -> Ints:
        """Return which edges are pauses far longer than usual."""
        usual_ns, count = self._usual
        lag = self.causes.lag
        is_still = (lag > _STILL_NS) & (lag > _TIMES * usual_ns) & (count >= _ALIKE)
        return np.flatnonzero(edges & self._free & is_still)

    # -- kernels that are compiled anew -----------------------------------------------------------
    def _compiled(self) -> Iterator[Standstill]:
        """Yield kernels before which a thread pauses where their launch configuration is new.

        What changes then is a constant of the kernel, such as ``tl.constexpr``.
        """
        rows = self.rows
        times = self.causes.times
        kernel = np.r_[self.launched, -1][self.coming]
        is_kernel = rows.having("kind", ("kernel",))
        edges = np.flatnonzero(self.is_code & (self.coming >= 0) & (kernel >= 0))
        edges = edges[is_kernel[kernel[edges]]]
        # Of each call the longest time before it, in the order of calls.
        edges = edges[np.lexsort((-self.causes.lag[edges], times[2 * self.coming[edges]]))]
        edges = edges[np.sort(combined(self.coming[edges])[0])]
        kernel = kernel[edges]
        name, names = rows.coded("name")
        first, _ = combined(name[kernel], rows.coded("launch_config")[0][kernel])
        is_new = np.zeros(len(edges), bool)
        is_new[first] = True
        is_paused = self.causes.lag[edges] > _COMPILES_NS
        for number in np.unique(name[kernel[is_paused & is_new]]).tolist():
            alike = name[kernel] == number
            paused = is_paused & alike
            new = is_new & alike
            hits = int((paused & new).sum())
            share = new.sum() / alike.sum()
            if 2 * hits < new.sum() or not _is_evidence(hits, int(paused.sum()), share):
                continue
            usual_ns = (
                np.median(self.causes.lag[edges[alike & ~new]]) if (alike & ~new).any() else 0
            )
            which = np.zeros(len(self.row), bool)
            which[edges[paused & new]] = True
            calls = rows.calls[is_kernel & (name == number) & (rows.calls >= 0)]
            which &= self.coming != calls[times[2 * calls].argmin()]  # once it has to be
            line = self.lines[self.line[edges[paused & new][0]]]
            about = f"{kernel_name(str(names[number]))} at {line}"
            yield Standstill(about, which, np.full(len(self.row), int(usual_ns)))

    # -- locks --------------------------------------------------------------------------------
    def _blocked(self) -> Iterator[Standstill]:
        """Yield calls of other threads during which a thread stands still until they return.

        Such a thread holds a lock in its call, or the interpreter.
        """
        rows = self.rows
        times = self.causes.times
        name, names = rows.coded("name")
        blocks = np.array([bool(_BLOCKS.search(str(text))) for text in names])[name]
        blocks &= rows.having("kind", ("api", "sync"))
        took_ns = times[1:-1:2] - times[:-1:2]
        blocks &= took_ns > _BLOCKS_NS
        span_ns = max(int(times.max()) - self.low_ns, 1)
        for thread in self._python_threads:
            edges = self._still(rows.threads[self.row] == thread)
            if len(edges) < _FEWEST:
                continue
            begin = times[self.causes.source[edges]]
            end = times[self.causes.target[edges]]
            for other in self._beside(thread):
                calls = np.flatnonzero(blocks & (rows.threads == other))
                if len(calls) < _FEWEST:
                    continue
                since, until = union(times[2 * calls], times[2 * calls + 1]).T
                at = until.searchsorted(end, "right") - 1
                low = since[at]
                high = until[at]
                covers = np.minimum(end, high) - np.maximum(begin, low) > _COVERED * (end - begin)
                is_hit = (at >= 0) & covers & (end - high < _WAKES_NS)
                chance = min(0.99, len(until) * _WAKES_NS / span_ns)
                if not _is_evidence(int(is_hit.sum()), len(edges), chance):
                    continue
                which = np.zeros(len(self.row), bool)
                which[edges[is_hit]] = True
                longest = calls[took_ns[calls].argmax()]
                line = lines_of(rows.text("site", int(longest)))[:1]
                where = "".join(f" at {text}" for text in line)
                about = f"{self._called(other)} in {kernel_name(str(names[name[longest]]))}{where}"
                yield Standstill(about, which, self._usual[0])

    # -- the interpreter ----------------------------------------------------------------------
    def _switched(self) -> Iterator[Standstill]:
        """Yield threads that compute in Python while others wait for the interpreter.

        Where stacks were sampled, those held the lock meanwhile. Of pauses that last up to a few
        switch intervals, many more end right after a whole number of them than by chance; then
        those are meant that last longer, too.
        """
        usual_ns, count = self._usual
        lag = self.causes.lag
        begin = self.causes.times[self.causes.source]
        shortest_ns = (1 - _LATE) * _SWITCH_NS
        is_usual = usual_ns > shortest_ns  # it always waits there
        usual_ns = np.where(is_usual, 0, usual_ns)
        is_still = (lag > shortest_ns) & (lag > _TIMES * usual_ns) & (count >= _ALIKE)
        chance = _LATE * sum(range(_MOST_SWITCHES + 1)) / (_MOST_SWITCHES + _LATE)
        for thread in self._python_threads:
            is_here = self.rows.threads[self.row] == thread
            pauses = np.flatnonzero(self._free & is_still & is_here)
            if len(pauses) < _FEWEST:
                continue
            whose = np.full(len(pauses), thread)
            time = Stretches(whose, begin[pauses], begin[pauses] + lag[pauses], whose * 0)
            holders = lock_holders(self.trace, time)
            beside = [*self._beside(thread)]
            if holders is not None:
                beside = [other for other in beside if holders.get(other, 0) >= _HOLDS]
            for other in beside:
                begun_ns = self._begun_ns(other)
                if begun_ns is None:
                    continue
                edges = pauses[begin[pauses] >= begun_ns]
                intervals = lag[edges] / _SWITCH_NS
                intervals = intervals[intervals < _MOST_SWITCHES + 1]
                whole = np.floor(intervals)
                hits = (whole >= 1) & (intervals - whole <= _LATE * whole)
                if not _is_evidence(int(hits.sum()), len(hits), chance):
                    continue
                which = np.zeros(len(self.row), bool)
                which[edges] = True
                about = f"{self._called(other)} computes in Python and holds the interpreter lock"
                if holders is not None and len(beside) > 1:
                    about = f"{self._called(other)} and {len(beside) - 1} more compute in "
                    about += "Python and hold the interpreter lock"
                yield Standstill(about, which, usual_ns)
                break

    # -- threads ------------------------------------------------------------------------------
    @cached_property
    def _python_threads(self) -> list[int]:
        """Threads that run Python, as their lines, their begin or their stacks tell; not ours."""
        rows = self.rows
        is_python = rows.coded("site")[0] > 0
        is_python |= rows.having("kind", ("stack",)) & ~rows.having("name", (NO_PYTHON,))
        is_python |= rows.having("kind", ("mark",)) & rows.having("name", ("thread begins",))
        numbers = {*np.unique(rows.threads[is_python & ~rows.is_work]).tolist()} - {-1}
        ours = {number for number, name in self._names.items() if name.startswith("gpuscope")}
        return sorted(numbers - ours)

    @cached_property
    def _process_of(self) -> dict[int, int]:
        threads, first = np.unique(self.rows.threads, return_index=True)
        processes = self.rows.processes[first]
        return dict(zip(threads.tolist(), processes.tolist(), strict=True))

    def _beside(self, thread: int) -> Iterator[int]:
        """Yield the other Python threads of its process."""
        process = self._process_of[thread]
        for other in self._python_threads:
            if other != thread and self._process_of[other] == process:
                yield other

    def _begun_ns(self, thread: int) -> int | None:
        """Return when a thread was first seen; ``None``: it is in calls most of the time."""
        rows = self.rows
        times = self.causes.times
        at = np.flatnonzero((rows.threads == thread) & ~rows.is_work)
        begun_ns = int(times[2 * at].min())
        in_calls = at[rows.having("kind", ("api", "sync"))[at]]
        in_calls_ns = np.diff(union(times[2 * in_calls], times[2 * in_calls + 1])).sum()
        return None if in_calls_ns > _ASLEEP * (times.max() - begun_ns) else begun_ns

    def _called(self, thread: int) -> str:
        return self._names.get(thread, f"thread {thread}")


def _medians(values: Ints, *keys: Ints) -> tuple[Ints, Ints]:
    """Return of each value the lower median of those with its keys, and how many these are."""
    _, code = combined(*keys)
    order = np.lexsort((values, code))
    counts = np.bincount(code)
    middle = np.cumsum(counts) - counts + (counts - 1) // 2
    return values[order][middle][code], counts[code]


def _is_evidence(hits: int, of: int, chance: float) -> bool:
    """Whether so many hits are more than chance would give, by far."""
    deviation = np.sqrt(of * chance * (1 - chance))
    return hits >= _FEWEST and hits > of * chance + _DEVIATIONS * deviation
