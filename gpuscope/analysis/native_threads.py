"""Threads that run no Python, such as a library's own: which call of the program they follow."""

from __future__ import annotations

import numpy as np

from gpuscope._types import Array, Ints
from gpuscope.trace.columns import codes, is_open, launch_calls, once, rows_of
from gpuscope.trace.model import Trace
from gpuscope.trace.schema import CALLS, LATEST_NS


@once
def followed_calls(trace: Trace) -> tuple[Ints, Ints]:
    """Return row → the call of a Python thread that a native thread's call follows; else −1.

    A native thread launches nothing by itself: it was handed work by the Python thread whose call
    ended last before, and that ran Python since. One that never launches was handed none. It is
    not told where several threads of Python called since the native thread's own last call, or one
    was in a call.

    Returns
    -------
    tuple
        Row → the call that ended last; row → that, or the next one of its thread if that is
        nearer: its line tells where the Python was.
    """
    starts = trace.array("start_ns")
    ends = np.where(is_open(trace), LATEST_NS, trace.array("end_ns", fill=0))
    threads = trace.array("thread", fill=-1)
    processes = trace.array("process", fill=-1)
    has_line = codes(trace.spans.column("site"))[0] > 0
    calls = rows_of(trace, *CALLS)
    calls = calls[threads[calls] >= 0]
    launches = launch_calls(trace)
    launching = threads[launches[launches >= 0]]
    followed, nearer = np.full((2, len(trace)), -1)
    for process in np.unique(processes[calls]).tolist():
        here = calls[processes[calls] == process]
        runs_python = np.isin(threads[here], threads[here[has_line[here]]])
        native = here[~runs_python & np.isin(threads[here], launching)]
        python = here[runs_python]
        if not (len(native) and len(python)):
            continue
        python = python[np.argsort(ends[python], kind="stable")]
        over = ends[python].searchsorted(starts[native], "right")
        by_start = python[np.argsort(starts[python], kind="stable")]
        began = starts[by_start].searchsorted(starts[native])
        since = ends[python].searchsorted(_own_before(starts, ends, threads, native), "right")
        whose = threads[python]
        changes = np.flatnonzero(np.r_[True, whose[1:] != whose[:-1]])
        run = changes[np.searchsorted(changes, np.maximum(over - 1, 0), "right") - 1]
        is_told = (over > since) & (began == over) & (run <= since)
        last = python[over[is_told] - 1]
        following = np.r_[by_start, -1][began[is_told]]
        native = native[is_told]
        is_nearer = starts[following] - starts[native] < starts[native] - ends[last]
        is_nearer &= (following >= 0) & (threads[following] == threads[last])
        followed[native] = last
        nearer[native] = np.where(is_nearer, following, last)
    return followed, nearer


def _own_before(starts: Array, ends: Array, threads: Array, calls: Ints) -> Ints:
    """Return of each call when the calls of its thread before it had ended; −1 without any."""
    order = np.lexsort((starts[calls], threads[calls]))
    thread = threads[calls][order]
    ended = np.empty(len(calls), np.int64)
    for number in np.unique(thread).tolist():
        of_thread = order[thread == number]
        ended[of_thread] = np.r_[-1, np.maximum.accumulate(ends[calls[of_thread]])[:-1]]
    return ended


@once
def latest_followed(trace: Trace) -> Ints:
    """Return row → the last call of its thread, up to it, that follows one of Python; else −1."""
    starts = trace.array("start_ns")
    threads = trace.array("thread", fill=-1)
    followed, _ = followed_calls(trace)
    latest = np.full(len(trace), -1)
    calls = rows_of(trace, *CALLS)
    for number in np.unique(threads[followed >= 0]).tolist():
        of_thread = calls[threads[calls] == number]
        of_thread = of_thread[np.argsort(starts[of_thread], kind="stable")]
        at = np.where(followed[of_thread] >= 0, np.arange(len(of_thread)), -1)
        at = np.maximum.accumulate(at)
        latest[of_thread] = np.where(at >= 0, of_thread[at], -1)
    return latest
