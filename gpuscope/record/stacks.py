"""Stacks of Python's threads, sampled while a recording goes on, as rows: what the host did."""

from __future__ import annotations

import contextlib
import platform
import threading
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import TypeVar

import numpy as np

from gpuscope import _sites, _stacks
from gpuscope._fork import free_in_children
from gpuscope._threads import start
from gpuscope._types import Array, Ints
from gpuscope.errors import CapabilityError
from gpuscope.record.rows import Batch, Rows, keep, move, stack_row, together
from gpuscope.record.source import NewStacks, NoteJournal, StackTexts
from gpuscope.trace import schema
from gpuscope.trace.facts import SamplingFacts

_EVERY_S = 1.0
"""Between two times that what C has seen is taken: it has room for 65,536 runs."""
_REACH = 2
"""A sample stands for the time to its neighbours, and for so many periods at most."""
_CALLS = {
    "x86_64": "0 read 1 write 7 poll 16 ioctl 23 select 35 nanosleep 45 recvfrom 61 wait4 "
    "202 futex 230 clock_nanosleep 232 epoll_wait 270 pselect6 271 ppoll 281 epoll_pwait",
    "aarch64": "22 epoll_pwait 29 ioctl 63 read 64 write 72 pselect6 73 ppoll 98 futex "
    "101 nanosleep 115 clock_nanosleep 207 recvfrom 242 accept4 260 wait4",
}
"""Machine → numbers and names of Linux's calls in which threads wait."""


_Made = TypeVar("_Made")


@cache
def texts_of(stack: int) -> StackTexts:
    """Return the texts of a stack of this process."""
    lines, _ = _stacks.lines(stack)
    of_program = [line for line in lines if _sites.is_of_program(line.file)]
    function = lines[0].function if lines else schema.NO_PYTHON
    return StackTexts(function, _sites.text_of(of_program), _sites.text_of(lines))


class StackRows:
    """Makes rows of runs, part by part.

    Parameters
    ----------
    period_ns
        Between two samples, on average.
    texts
        Returns the texts of a stack by its number.
    """

    def __init__(self, period_ns: int, process: int, texts: Callable[[int], StackTexts]) -> None:
        self._period_ns, self._process, self._texts = period_ns, process, texts
        self._held = np.zeros(0, _stacks.RUN)
        """The last run of each thread: its end is known when its next one comes."""
        self._begins = np.zeros(0, np.int64)
        """When the rows of these begin."""
        self._count = 0

    def keep(self) -> Callable[[], None]:
        """Return what undoes all that is done here next."""
        return keep(self, "_held", "_begins", "_count")

    def batch(self, taken: bytes, *, over: bool) -> Batch | None:
        """Return rows of these runs; with ``over`` also of those that nothing follows."""
        runs = np.r_[self._held, np.frombuffer(taken, _stacks.RUN)]
        order = np.argsort(runs["thread"], kind="stable")
        runs = runs[order]
        if not len(runs):
            return None
        first, last = runs["first_ns"].astype(np.int64), runs["last_ns"].astype(np.int64)
        follows = np.r_[runs["thread"][1:] == runs["thread"][:-1], False]
        apart = np.where(follows, np.r_[first[1:], 0] - last, 0)
        is_near = follows & (apart <= 2 * _REACH * self._period_ns)
        # Before a thread's first sample, and behind its last, the recording may not have been on.
        ends = last + np.where(is_near, apart // 2, np.where(follows, self._period_ns // 2, 0))
        begins = first.copy()
        begins[1:] -= np.where(follows[:-1], self._period_ns // 2, 0)
        begins[1:] = np.where(is_near[:-1], ends[:-1], begins[1:])
        was_held = order < len(self._held)
        begins[was_held] = self._begins[order[was_held]]
        is_told = follows | over
        self._held, self._begins = runs[~is_told], begins[~is_told]
        return self._rows(runs[is_told], begins[is_told], ends[is_told])

    def _rows(self, runs: Array, begins: Ints, ends: Ints) -> Batch | None:
        count = len(runs)
        if not count:
            return None
        texts = _by_number(runs["stack"], self._texts)
        numbers = np.arange(self._count, self._count + count)
        self._count += count
        states = runs["state"].astype(np.int64) << 16 | runs["call"].astype(np.uint16)
        columns = {
            "id": stack_row(numbers).tolist(),
            "kind": ["stack"] * count,
            "name": [text.function for text in texts],
            "start_ns": begins.tolist(),
            "end_ns": np.maximum(begins, ends).tolist(),
            "process": [self._process] * count,
            "thread": runs["thread"].tolist(),
            "site": [text.site or None for text in texts],
            "payload": [text.lines or None for text in texts],
            "value": runs["samples"].tolist(),
            "status": _by_number(states, _status),
            "category": _by_number(runs["state"], _marked),
            "source": ["host"] * count,
        }
        return Batch(schema.table(columns, schema.SPAN_TYPES))


def _by_number(numbers: Array, make: Callable[[int], _Made]) -> list[_Made]:
    """Return what is made of each number, which is made once."""
    unique, which = np.unique(numbers, return_inverse=True)
    made = [make(int(number)) for number in unique]
    return [made[at] for at in which.tolist()]


def _status(state_and_call: int) -> str:
    state, call = state_and_call >> 16, state_and_call & 0xFFFF
    if state & _stacks.HOLDS:
        return schema.HOLDS_LOCK
    if state & _stacks.WAITS:
        return schema.WAITS_FOR_LOCK
    if call == 0xFFFF:
        return schema.RUNS if state & _stacks.ON_CPU else schema.WITHOUT_LOCK
    words = _CALLS.get(platform.machine(), "").split()
    names = dict(zip(words[::2], words[1::2], strict=True))
    return schema.IN_CALL + names.get(str(call), str(call))


def _marked(state: int) -> str | None:
    marks = [word for bit, word in ((_stacks.TORN, "torn"), (_stacks.CUT, "cut")) if state & bit]
    return ", ".join(marks) or None


class StackSampler:
    """Samples the stacks of this process's threads of Python for a recording.

    Threads of gpuscope's own are left out.

    Parameters
    ----------
    hertz
        How often a second; 0: not at all.
    """

    def __init__(self, hertz: int, process: int) -> None:
        self._period_ns = round(1e9 / hertz) if hertz else 0
        self._process = process
        self._rows = StackRows(self._period_ns, process, texts_of)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="gpuscope samples", daemon=True)
        self._lock = free_in_children(threading.Lock())
        self._before: _stacks.Counts | None = None
        """What was counted when it began."""
        self._counts: _stacks.Counts | None = None
        self._own: set[int] = set()
        self._new: deque[bytes] = deque()
        self._taken: list[bytes] = []
        self.journal: NoteJournal | None = None
        """Gets what is taken from now on, too."""
        self._journalled: set[int] = set()

    def start(self) -> str:
        """Begin; returns why there are no samples, or nothing."""
        if not self._period_ns:
            return ""
        try:
            _stacks.begin(self._period_ns)
        except CapabilityError as error:
            return str(error)
        self._before = self._counts = _stacks.counts()
        start(self._thread)
        return ""

    def close(self) -> None:
        """Sample no more; what was seen can still be read."""
        if self._counts is None or self._over.is_set():
            return
        _stacks.end()
        self.take()
        self._over.set()

    def _loop(self) -> None:
        while not self._over.wait(_EVERY_S):
            self.take()

    def take(self) -> None:
        """Take what C has seen, into the journal, too."""
        if self._counts is None or self._over.is_set():
            return
        threads = [t.native_id for t in threading.enumerate() if t.name.startswith("gpuscope ")]
        with self._lock:
            self._own.update(filter(None, threads))
            runs = np.frombuffer(_stacks.take(), _stacks.RUN)
            runs = runs[~np.isin(runs["thread"], [*self._own])]
            self._counts = _stacks.counts()
            self._new.append(taken := runs.tobytes())
            journal = self.journal
            if journal is not None and taken:
                stacks = {*np.unique(runs["stack"]).tolist()} - self._journalled
                texts = {stack: texts_of(stack) for stack in stacks}
                with contextlib.suppress(OSError):  # the recording has them, too
                    journal.note_stacks(NewStacks(self._period_ns, self._process, taken, texts))
                    self._journalled |= stacks

    def facts(self) -> SamplingFacts | None:
        """Return what sampling came to by now; ``None`` where there is none."""
        if self._counts is None or self._before is None:
            return None
        new = [now - then for now, then in zip(self._counts, self._before, strict=True)]
        counts = _stacks.Counts(*new)
        return SamplingFacts(
            period_ns=self._period_ns,
            looks=counts.ticks,
            samples=counts.samples,
            torn=counts.torn,
            cut=counts.cut,
            unread=counts.unread,
            late=counts.late,
            lost=counts.lost,
        )

    def begin_reading(self) -> Callable[[], None]:
        """Take in what was seen; returns what undoes all that draining it does next."""
        self.take()
        move(self._new, self._taken)
        return together(keep(self, "_taken"), self._rows.keep())

    def drain(self, rows: Rows) -> None:
        """Add rows of what was seen."""
        taken, self._taken = b"".join(self._taken), []
        batch = self._rows.batch(taken, over=rows.over)
        if batch is not None:
            rows.freeze()
            rows.batches.append(batch)
