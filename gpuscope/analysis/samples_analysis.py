"""Sampled stacks: which functions threads were in, and which had Python's lock meanwhile."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuscope._text import percent
from gpuscope._types import Bools, Floats, Ints
from gpuscope.trace.columns import codes, combined, rows_of
from gpuscope.trace.joins import distinct, union
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import thread_names
from gpuscope.trace.schema import HOLDS_LOCK, WAITS_FOR_LOCK
from gpuscope.trace.sites import SiteLine, lines_of

_CALLERS = 2
"""Callers that are named."""
_SHOWN = 5
"""Functions of a group of stretches, at most."""
_APART_NS = 100_000_000
"""Compilers of a thread that are nearer to each other are at one compilation."""
_COMPILES = re.compile("(^|_)compile(?!_wrapper|_bytecode)(_|$)")
_NO_COMPILER = re.compile("^re/|^<frozen")
"""What functions are called that compile for a GPU, in PyTorch, Triton, JAX, Numba and CuPy; and
files of those that do not."""


@dataclass(frozen=True)
class SeenFunction:
    """A function that a thread of Python's was in, by samples.

    Attributes
    ----------
    share
        Of the time that was asked for.
    state
        What the thread did, such as ``"holds Python's lock"``.
    function
        The innermost one of the program's own, and the line that took most; where there is none,
        a function of a package.
    callers
        Functions of the program's own that called it, the innermost first.
    samples
        How many samples saw that; one that lies half in the time counts half.
    inner, inner_share
        The innermost function of a package that it was in for a third of that time or more, if
        any; for which share of it.
    """

    share: Annotated[float, "share"]
    thread: Annotated[str | None, "thread"]
    state: Annotated[str, "state"]
    function: Annotated[str, "function"]
    samples: Annotated[float, "samples"]
    callers: tuple[str, ...] = field(default=())
    inner: Annotated[str | None, "inner"] = None
    inner_share: float = 0.0

    @property
    def where(self) -> tuple[str | None, str, tuple[str, ...]]:
        """Its thread, function and callers, whatever the line and the state."""
        _, _, function = self.function.rpartition(" in ")
        return self.thread, function, self.callers

    def __str__(self) -> str:
        within = f" ({percent(self.inner_share)} in {self.inner})" if self.inner else ""
        return " ← ".join((f"{self.function}{within}", *self.callers))


def seen_from(thread: str | None, function: SeenFunction) -> str:
    """Say how much of the time and by how many samples, and whose where it is another thread's."""
    who = f"{function.thread} " if function.thread and function.thread != thread else ""
    seen = f"{percent(function.share)} by {function.samples:,.0f} samples"
    return f"{seen}: {who}{function.state}, {function}"


class Stretches(NamedTuple):
    """Stretches of time of threads, in groups that are numbered from 0."""

    thread: Ints
    begin: Ints
    end: Ints
    group: Ints


def functions_in(trace: Trace, stretches: Stretches, groups: int) -> list[tuple[SeenFunction, ...]]:
    """Say of groups of stretches of time which functions their threads were in.

    Where a thread waited for Python's lock, those are told, too, in which another thread held it.

    Returns
    -------
    list
        Of each group its functions, the one that took most time first; none where no stacks were
        sampled.
    """
    samples = _Samples(trace)
    if not len(samples.rows):
        return [()] * groups
    parts = [samples.within(stretches), *samples.holders(stretches).values()]
    every = _Seen(*map(np.concatenate, zip(*parts, strict=True)))
    whole_ns = np.bincount(
        stretches.group, weights=stretches.end - stretches.begin, minlength=groups
    )
    return samples.told(every, whole_ns)


def lock_holders(trace: Trace, stretches: Stretches) -> dict[int, float] | None:
    """Return thread → share of some time in which it held Python's lock and theirs waited for it.

    ``None`` where no stacks of their threads were sampled.
    """
    samples = _Samples(trace)
    if not np.isin(stretches.thread, samples.owner).any():
        return None
    whole_ns = max(int((stretches.end - stretches.begin).sum()), 1)
    holders = samples.holders(stretches)
    return {
        thread: int((seen.end - seen.begin).sum()) / whole_ns for thread, seen in holders.items()
    }


def compilations(trace: Trace, threads: Ints, times: Ints) -> tuple[Ints, list[str]]:
    """Say which compilation threads were in at some times, by samples.

    Returns
    -------
    tuple
        The number of the compilation of each, −1 for none; number → the line of the program, or
        nothing.
    """
    samples = _Samples(trace)
    compiling = np.flatnonzero(samples.in_compilers)
    if not len(compiling):
        return np.full(len(threads), -1), []
    owner = samples.owner[compiling]
    apart_ns = samples.starts[compiling[1:]] - samples.ends[compiling[:-1]]
    is_other = (owner[1:] != owner[:-1]) | (apart_ns > _APART_NS)
    begins = np.r_[True, is_other]
    of_sample = np.full(len(samples.rows) + 1, -1)
    of_sample[compiling] = np.cumsum(begins) - 1
    first_rows = samples.rows[compiling[begins]]
    sites = trace.spans.column("site").take(first_rows).to_pylist()
    lines = [str((*lines_of(site), "")[0]) for site in sites]
    return of_sample[samples.at(threads, times)], lines


def compiled_ns(trace: Trace, end_ns: int) -> int:
    """Return for how long any thread was in a compiler until then, by samples."""
    samples = _Samples(trace)
    inside = samples.in_compilers
    begins, ends = union(samples.starts[inside], samples.ends[inside]).T
    ends = np.minimum(ends, end_ns)
    lasted_ns = np.maximum(ends - begins, 0)
    return int(lasted_ns.sum())


def _is_compiler(frame: SiteLine) -> bool:
    is_called_so = _COMPILES.search(frame.function.rpartition(".")[2])
    return is_called_so is not None and _NO_COMPILER.search(frame.file) is None


def samples_in(trace: Trace, rows: Ints, lasted_ns: Ints) -> Floats:
    """Return how many samples pieces of stacks rest on: of half a stack half of its samples."""
    whole_ns = trace.array("end_ns", fill=0)[rows] - trace.array("start_ns")[rows]
    values = pc.fill_null(trace.spans.column("value").cast(pa.float64()), 0.0)
    samples: Floats = np.asarray(values)[rows] * lasted_ns / np.maximum(whole_ns, 1)
    return samples


class _Seen(NamedTuple):
    """Pieces of stretches: the group, the row among the samples, begin and end."""

    group: Ints
    at: Ints
    begin: Ints
    end: Ints


class _Samples:
    """The rows of stacks of a trace, by thread and time; those of a thread are apart."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        rows = rows_of(trace, "stack")
        owner, starts = trace.array("thread", fill=-1)[rows], trace.array("start_ns")[rows]
        order = np.lexsort((starts, owner))
        self.rows, self.owner, self.starts = rows[order], owner[order], starts[order]
        self.ends = trace.array("end_ns", fill=0)[self.rows]

    def is_in(self, state: str) -> Ints:
        """Return sample → whether its thread was in this state."""
        code, states = codes(self._trace.spans.column("status"))
        return np.array([text == state for text in states])[code[self.rows]]

    @property
    def in_compilers(self) -> Bools:
        """Sample → whether its thread was in a function that compiles."""
        stack, stacks = codes(self._trace.spans.column("payload"))
        compiles = np.array([any(map(_is_compiler, lines_of(text))) for text in stacks])
        of_sample: Bools = compiles[stack[self.rows]]
        return of_sample

    def at(self, threads: Ints, times: Ints) -> Ints:
        """Return which sample a thread was in then, −1 for none."""
        at = np.full(len(threads), -1)
        for thread in distinct(threads).tolist():
            first, behind = np.searchsorted(self.owner, [thread, thread + 1]).tolist()
            asked = np.flatnonzero(threads == thread)
            latest = first - 1 + self.starts[first:behind].searchsorted(times[asked], "right")
            inside = (latest >= first) & (times[asked] < self.ends[latest])
            at[asked] = np.where(inside, latest, -1)
        return at

    def within(self, stretches: Stretches) -> _Seen:
        """Cut the samples of the stretches' threads to the stretches."""
        pieces = [_Seen(*[np.zeros(0, np.int64)] * 4)]
        for thread in distinct(stretches.thread).tolist():
            first, behind = np.searchsorted(self.owner, [thread, thread + 1]).tolist()
            of_thread = np.flatnonzero(stretches.thread == thread)
            begin, end = stretches.begin[of_thread], stretches.end[of_thread]
            low = self.ends[first:behind].searchsorted(begin, "right")
            high = self.starts[first:behind].searchsorted(end)
            count = np.maximum(high - low, 0)
            which = np.repeat(np.arange(len(of_thread)), count)
            within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
            at = first + low[which] + within
            since = np.maximum(self.starts[at], begin[which])
            until = np.minimum(self.ends[at], end[which])
            piece = _Seen(stretches.group[of_thread][which], at, since, until)
            pieces.append(_Seen(*(values[until > since] for values in piece)))
        return _Seen(*map(np.concatenate, zip(*pieces, strict=True)))

    def holders(self, stretches: Stretches) -> dict[int, _Seen]:
        """Return thread → its samples in which it held the lock that the stretches' waited for."""
        seen = self.within(stretches)
        waiting = self.is_in(WAITS_FOR_LOCK)[seen.at]
        holding = self.is_in(HOLDS_LOCK)
        holders = {}
        for thread in distinct(self.owner[holding]).tolist():
            held_up = waiting & (self.owner[seen.at] != thread)
            owner = np.full(int(held_up.sum()), thread)
            by_others = Stretches(
                owner, *(values[held_up] for values in (seen.begin, seen.end, seen.group))
            )
            pieces = self.within(by_others)
            holders[thread] = _Seen(*(values[holding[pieces.at]] for values in pieces))
        return holders

    def told(self, seen: _Seen, whole_ns: Ints) -> list[tuple[SeenFunction, ...]]:
        """Return the functions of each group, whose stretches last ``whole_ns`` in all."""
        trace, row = self._trace, self.rows[seen.at]
        site, sites = codes(trace.spans.column("site"))
        name, names = codes(trace.spans.column("name"))
        status, states = codes(trace.spans.column("status"))
        stack, stacks = codes(trace.spans.column("payload"))
        of_samples = (column[row] for column in (status, site, name, stack))
        columns = seen.group, self.owner[seen.at], *of_samples
        first, code = combined(*columns)
        lasted_ns = seen.end - seen.begin
        took_ns = np.bincount(code, weights=lasted_ns, minlength=len(first))
        weight = samples_in(trace, row, lasted_ns)
        samples = np.bincount(code, weights=weight, minlength=len(first))
        totals: list[dict[_Key, _Total]] = [{} for _ in whole_ns]
        for number in np.argsort(-took_ns, kind="stable").tolist():
            group, thread, state, of_site, of_name, of_stack = (
                int(column[first[number]]) for column in columns
            )
            lines = lines_of(sites[of_site])
            function = lines[0][::2] if lines else (str(names[of_name]),)
            callers = tuple(line.function for line in lines[1 : 1 + _CALLERS])
            key = _Key(thread, str(states[state]), function, callers)
            text = str(lines[0]) if lines else function[0]  # the line that took most comes first
            total = totals[group].setdefault(key, _Total(text))
            total.ns += took_ns[number]
            total.samples += samples[number]
            for depth, called in enumerate(_called_by(lines[:1], stacks[of_stack])):
                total.inner[called] += took_ns[number]
                total.depth[called] += depth * took_ns[number]
        name_of = thread_names(trace)
        return [
            tuple(
                SeenFunction(
                    share=float(total.ns / max(whole_ns[group], 1)),
                    thread=name_of.get(key.thread),
                    state=key.state,
                    function=total.text,
                    samples=float(total.samples),
                    callers=key.callers,
                    inner=(inner := total.innermost()),
                    inner_share=total.inner[inner] / total.ns if inner else 0.0,
                )
                for key, total in sorted(of.items(), key=lambda item: -item[1].ns)[:_SHOWN]
            )
            for group, of in enumerate(totals)
        ]


class _Key(NamedTuple):
    """What functions are told apart by; ``function`` has its file where that is known."""

    thread: int
    state: str
    function: tuple[str, ...]
    callers: tuple[str, ...]


@dataclass
class _Total:
    """What a function comes to."""

    text: str
    ns: float = 0.0
    samples: float = 0.0
    inner: Counter[str] = field(default_factory=Counter)
    depth: Counter[str] = field(default_factory=Counter)

    def innermost(self) -> str | None:
        """Return the deepest of the functions that it was in for a third of the time or more."""
        much = [name for name, ns in self.inner.items() if 3 * ns >= self.ns]
        return max(much, key=lambda name: self.depth[name] / self.inner[name], default=None)


def _called_by(line: tuple[SiteLine, ...], stack: str | None) -> list[str]:
    """Return the functions that a line of the program called, each once, the outermost first."""
    inside: list[str] = []
    for frame in lines_of(stack):
        if (frame,) == line:
            return list(dict.fromkeys(reversed(inside)))
        inside.append(frame.function)
    return []
