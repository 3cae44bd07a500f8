"""The edges of causes in a window, as changes and standstills of a program look at them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np

from gpuscope._types import Bools, Ints
from gpuscope.analysis.causes import Causes
from gpuscope.analysis.native_threads import followed_calls
from gpuscope.analysis.path_columns import around, next_call
from gpuscope.trace.columns import combined, rows_of
from gpuscope.trace.joins import distinct
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import kernel_name, ranges_in
from gpuscope.trace.schema import CALLS
from gpuscope.trace.sites import lines_of

_MOST = 4
"""Groups that are looked at: those that take most of the path."""
PAUSE_NS = 50_000
_LONGER = 10
"""Between two calls: what takes longer is the program, not the libraries that it calls; of threads
that mostly call at once, what takes so many times as long as usual."""


class HelpView:
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
        self.trace = trace
        self.causes = causes
        self.rows = causes.rows
        self.low_ns = low_ns
        source = causes.source
        target = causes.target
        times = causes.times
        self.kept = (times[target] > low_ns) & (times[target] <= high_ns)
        self.on_path = np.zeros(len(target), bool)
        self.on_path[causes.back_from(node)] = True
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
    def coming(self) -> Ints:
        """Edge of a thread → the call that it is in or comes before, −1 for none; else its row."""
        host = np.flatnonzero(self.is_host)
        thread = self.causes.threads[self.causes.target[host]]
        by_thread = np.lexsort((host, thread))
        order = host[by_thread]
        following = next_call(self.row[order], self.rows.having("kind", CALLS))
        is_same = self.causes.threads[2 * following] == thread[by_thread]
        call = np.array(self.row)
        call[order] = np.where(is_same, following, -1)
        _, nearer = followed_calls(self.trace)
        call = np.where(self.causes.of("turn") & (nearer[self.row] >= 0), nearer[self.row], call)
        return np.where(self.call >= 0, self.call, call)

    @cached_property
    def line(self) -> Ints:
        """Edge → number in :attr:`lines` of the call that it is in, comes before or launches."""
        rows = self.rows
        call = self.coming
        site, sites = rows.coded("site")
        code = np.where(site > 0, site, len(sites) + rows.coded("name")[0])
        number = {line: at for at, line in enumerate(self.lines)}
        numbers = np.array([number[line] for line in self._words])
        return np.where(call >= 0, numbers[code[call]], -1)

    @cached_property
    def _words(self) -> list[str]:
        sites, names = (self.rows.coded(name)[1] for name in ("site", "name"))
        called = (kernel_name(str(name)) for name in names)
        return [*(str((*lines_of(text), "")[0]) for text in sites), *called]

    @cached_property
    def lines(self) -> list[str]:
        """Lines of the program, and names of calls whose lines are not known."""
        return list(dict.fromkeys(self._words))

    @cached_property
    def pauses(self) -> Bools:
        """Edge → whether it is a thread's time between two calls that is the program's own."""
        least_ns = np.full(int(self.causes.threads.max(initial=0)) + 1, PAUSE_NS)
        thread = self.causes.threads[self.causes.target]
        gaps = np.flatnonzero(self.is_code & (self.coming >= 0))
        gaps = gaps[np.lexsort((self.causes.lag[gaps], thread[gaps]))]
        first, code = combined(thread[gaps])
        middle = first + (np.bincount(code) - 1) // 2
        usual_ns = self.causes.lag[gaps[middle]]
        in_runs = usual_ns < PAUSE_NS
        of_thread = thread[gaps[first]][in_runs]
        least_ns[of_thread] = np.maximum(PAUSE_NS, _LONGER * usual_ns[in_runs])
        return self.is_code & (self.causes.lag > least_ns[thread])

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

    def inside(self, rows: Ints) -> Bools:
        """Edge → whether it is in one of these calls."""
        calls = np.zeros(len(self.rows.ids) + 1, bool)
        calls[rows] = True
        return self.is_host & (self.call >= 0) & calls[self.call]

    def leading_to(self, launches: Ints) -> Bools:
        """Edge → whether it is of a thread from the launch before one of these calls to its end."""
        wanted = np.zeros(len(self.rows.ids) + 1, bool)
        wanted[launches] = True
        return wanted[self._next_launch]

    @cached_property
    def _next_launch(self) -> Ints:
        """Edge → the call that launches work which its thread comes to next, −1 for none."""
        causes = self.causes
        calls = distinct(self.rows.calls[self.rows.calls >= 0])
        host = np.flatnonzero(self.is_host)
        ends = np.r_[causes.target[host], 2 * calls + 1]  # at one time, edges come first
        order = np.lexsort((causes.rank[ends], causes.threads[ends]))
        following = np.empty(len(ends), np.int64)
        following[order] = next_call(order, np.arange(len(ends)) >= len(host))
        following = following[: len(host)]
        is_same = causes.threads[ends[following]] == causes.threads[causes.target[host]]
        launch = np.full(len(self.kept), -1)
        launch[host] = np.where(is_same & (following >= 0), ends[following] // 2, -1)
        return launch
