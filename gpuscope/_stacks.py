"""Stacks of Python's threads, sampled without Python's lock.

``_stacks.c`` reads them, where it was compiled, knows the frames of this Python and may read this
process: it is asked for lines that are known before, and left alone should it tell others.
"""

from __future__ import annotations

import errno
import os
import sys
from functools import cache
from itertools import starmap
from typing import NamedTuple

import numpy as np

from gpuscope import _sites
from gpuscope._compiled import fastpath, why_not
from gpuscope._threads import thread_number
from gpuscope.errors import CapabilityError

HOLDS, WAITS, ON_CPU, TORN, CUT = 1, 2, 4, 8, 16
"""Bits of a state: the thread holds Python's lock, or waits for it, or is in no system call; its
frames moved while they were read; some are left out."""
_PROBE = """
def outer(ask): return middle(ask)
def middle(ask):
    return [inner(ask) for _ in range(1)][0]
def inner(ask):
    return (ask(), frames(1))
"""


class StackRun(NamedTuple):
    """Samples in turn of one thread that tell the same.

    Attributes
    ----------
    first_ns, last_ns
        When the first and the last of them were taken, Unix time.
    thread
        The system's number of the thread.
    stack
        Number of the stack, for :func:`lines`; 0: it had no lines.
    samples
        How many samples these are.
    call
        Number of the system call that it was in; −1: none.
    state
        Bits, as named above.
    """

    first_ns: int
    last_ns: int
    thread: int
    stack: int
    samples: int
    call: int
    state: int


RUN = np.dtype({"names": StackRun._fields, "formats": ["u8", "u8", "u4", "u4", "u4", "i2", "u2"]})
"""Of a run as C tells it."""


class Counts(NamedTuple):
    """What sampling came to in this process.

    Attributes
    ----------
    ticks, samples
        How often it looked, and stacks of how many threads in all.
    steady
        Samples whose thread cannot have run since the last.
    torn, cut
        Samples in which frames moved, or are left out.
    unread
        Threads that were gone when they were read.
    late
        Looks that came more than a period late.
    lost
        Samples for which there was no room, as nobody took them.
    cpu_ns
        CPU time of the threads that sampled and have ended.
    """

    ticks: int
    samples: int
    steady: int
    torn: int
    cut: int
    unread: int
    late: int
    lost: int
    cpu_ns: int


class StackLine(NamedTuple):
    """One line of a stack."""

    file: str
    line: int
    function: str


def begin(period_ns: int) -> None:
    """Look every so often, in a thread of C; with 0 ns without a pause.

    Raises
    ------
    CapabilityError
        It is not possible here, or somebody samples already.
    """
    if why := missing():
        raise CapabilityError(why)
    assert fastpath is not None  # noqa: S101 - else it is missing
    if error := fastpath.sample_stacks(period_ns):
        raise CapabilityError(
            "another recording of this process samples them"
            if error == errno.EBUSY
            else os.strerror(error)
        )


def end() -> None:
    """Look no more; again does nothing."""
    if fastpath is not None:
        fastpath.end_stacks()


def take() -> bytes:
    """Return what was seen since this was asked last, for :func:`runs`; where it can be sampled.

    What goes on is told when it changes, or sampling ends.
    """
    return b"" if fastpath is None else fastpath.take_runs()


def runs(taken: bytes) -> list[StackRun]:
    """Return what was taken, in the order of its ends."""
    return list(starmap(StackRun, np.frombuffer(taken, RUN).tolist()))


@cache
def lines(stack: int) -> tuple[tuple[StackLine, ...], int]:
    """Return the lines of a stack, the innermost first, and how many come before a gap, or all."""
    if fastpath is None:
        return (), 0
    parts, inner = fastpath.stack_lines(stack)
    return tuple(starmap(StackLine, map(_sites.line_of, parts))), inner


def counts() -> Counts:
    """Return what sampling came to so far; where it can be sampled."""
    return Counts(*(() if fastpath is None else fastpath.stack_counts()))


@cache
def missing() -> str:
    """Return why there are no samples here; empty if there can be."""
    if fastpath is None or _sites.missing:
        return why_not or _sites.missing
    version = ".".join(map(str, sys.version_info[:2]))
    if not hasattr(fastpath, "look_once"):
        return f"the threads of this Python {version} are not known"
    fastpath.take_runs()
    names: dict[str, object] = {"frames": _sites.frames}
    exec(compile(_PROBE, "<gpuscope probe>", "exec"), names)  # noqa: S102 - a text of ours
    error, expected = names["outer"](fastpath.look_once)  # type: ignore[operator]
    if error:
        return (
            "this process may not read itself (process_vm_readv: "
            f"{errno.errorcode.get(error, error)})"
        )
    seen_here = [run for run in runs(fastpath.take_runs()) if run.thread == thread_number()]
    seen = lines(seen_here[0].stack)[0][: len(expected)] if seen_here else ()
    if list(seen) != expected:
        return f"the threads of Python {version} are not as expected"
    return ""
