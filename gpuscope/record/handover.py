"""What Python's threads wait for: each other, and the collector; and who starts them.

While a recording asks, methods of the standard library are replaced by ones that do the same and
note what blocked: who gets from a queue, or waits for an event or a future, waits in
``Condition.wait``.
"""

from __future__ import annotations

import concurrent.futures
import functools
import gc
import multiprocessing.queues
import os
import queue
import sys
import threading
from collections.abc import Callable
from time import time_ns
from types import FrameType
from typing import Any

from gpuscope._compiled import fastpath
from gpuscope._fork import free_in_children
from gpuscope._sites import site_here
from gpuscope._threads import thread_number
from gpuscope.record.ranges import MOMENT, NOT_WAITED, RangeLog, moment_name
from gpuscope.trace.schema import COLLECTION

Method = Callable[..., Any]
_SHORT_NS = 10_000
"""A call that took less waited for nobody."""
_CALLERS = (queue.Queue.get, threading.Event.wait, concurrent.futures.Future.result)
_FILES = {function.__code__.co_filename for function in _CALLERS}
_START, _WAIT = threading.Thread.start.__code__, threading.Event.wait.__code__
_IN_BETWEEN = {
    method.__code__ for method in (threading.Condition.notify_all, threading.Condition.wait_for)
}
_NO_NAME, _CONDITION_WAIT, _CONDITION_NOTIFY, _THREAD_START, _THREAD_BEGINS = map(
    moment_name, ("", "condition wait", "condition notify", "thread start", "thread begins")
)
_UNKNOWN = 0, 0, 0
"""Thread, site and name of what is not known."""
_COLLECTION = moment_name(COLLECTION)
_lock = free_in_children(threading.Lock())
_collection_ns = 0
"""When the collector began that runs; 0: none does, or it began before anybody asked."""
_logs: tuple[RangeLog, ...] = ()
"""Of the recordings that ask."""
_wake_ups: dict[int, tuple[int, int, int, int]] = {}
"""A condition that a thread waits for → when which thread woke one last, at which site, as what."""
_replaced: list[tuple[type, str, Method, Method]] = []
"""Whose method of which name was what, and is what now."""


def watch(log: RangeLog, *, on: bool) -> None:
    """Note in a log what threads wait for, or no more."""
    with _lock:
        log.thread_names.update({t.native_id or 0: t.name for t in threading.enumerate() if on})
        other_logs = tuple(other for other in _logs if other is not log)
        _set((*other_logs, log) if on else other_logs)


def _set(logs: tuple[RangeLog, ...]) -> None:
    global _logs  # noqa: PLW0603 - the one place that knows who asks
    _logs = logs
    if not logs:
        _wake_ups.clear()
    if bool(logs) != (_collecting in gc.callbacks):
        (gc.callbacks.append if logs else gc.callbacks.remove)(_collecting)
    for owner, name, by in _METHODS if logs and not _replaced else ():
        method = vars(owner)[name]
        ours = by(method)
        functools.update_wrapper(ours, method)
        _replaced.append((owner, name, method, ours))
        setattr(owner, name, ours)
    while _replaced and not logs:
        owner, name, method, ours = _replaced.pop()
        if vars(owner)[name] is ours:  # else somebody wrapped it, and it notes nothing
            setattr(owner, name, method)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _set(()))


def _caller(otherwise: int) -> int:
    """Return the name of what of the standard library calls a condition, such as "queue get"."""
    frame: FrameType = sys._getframe(2)  # behind the replacement
    if frame.f_code in _IN_BETWEEN:
        frame = frame.f_back or frame
    code = frame.f_code
    if code.co_filename not in _FILES:
        return otherwise
    if code is _WAIT and _is_starting(frame.f_back):
        return _NO_NAME
    return _name_of(code.co_qualname)


def _is_starting(caller: FrameType | None) -> bool:
    """Whether a thread is started there, or by what was wrapped around that."""
    codes = (caller and caller.f_code, caller and caller.f_back and caller.f_back.f_code)
    return _START in codes


@functools.cache
def _name_of(qualname: str) -> int:
    return moment_name(qualname.lower().replace(".", " "))


def _hands_over_in_python(condition: object, name: int) -> None:
    _wake_ups[id(condition)] = (time_ns(), thread_number(), site_here(), name)


def _handed_over_in_python(
    condition: object,
    since_ns: int,
    is_woken: bool,  # noqa: FBT001 - as in C
    name: int,
    shortest_ns: int,
) -> bytes | None:
    by = _wake_ups.get(id(condition))
    at_ns = time_ns()
    if at_ns - since_ns < shortest_ns:
        return None
    if by is None or not is_woken or by[0] < since_ns:
        by = (0, *_UNKNOWN)
    after = thread_number(), site_here(), name
    return MOMENT.pack(since_ns, at_ns, by[0], *after, *by[1:])


_hands_over = _hands_over_in_python if fastpath is None else fastpath.hands_over
_handed_over = _handed_over_in_python if fastpath is None else fastpath.handed_over


def _note(moment: bytes) -> None:
    for log in _logs:
        log.moments.append(moment)


def _collecting(phase: str, _info: dict[str, int]) -> None:
    """Note how long the collector held up whose turn it was to run it."""
    global _collection_ns  # noqa: PLW0603 - one collection runs at a time
    at_ns = time_ns()
    if phase == "start":
        _collection_ns = at_ns
        return
    since_ns, _collection_ns = _collection_ns, 0
    if since_ns and at_ns - since_ns >= _SHORT_NS:
        after = thread_number(), site_here(), _COLLECTION
        _note(MOMENT.pack(since_ns, at_ns, 0, *after, *_UNKNOWN))


def _waiting(wait: Method) -> Method:
    def ours(self: Any, timeout: float | None = None) -> Any:
        since_ns, is_woken = time_ns(), False
        try:
            is_woken = wait(self, timeout)
        finally:
            # A thread that has just woken up runs this with the interpreter's lock, for which
            # others wait.
            name = _caller(_CONDITION_WAIT)
            moment = _handed_over(self, since_ns, is_woken, name, _SHORT_NS)
            if moment is not None and name != _NO_NAME:
                _note(moment)
        return is_woken

    return ours


def _notifying(notify: Method) -> Method:
    def ours(self: Any, n: int = 1) -> None:
        if self._waiters:
            _hands_over(self, _caller(_CONDITION_NOTIFY))
        notify(self, n)

    return ours


def _starting(start: Method) -> Method:
    def ours(self: threading.Thread) -> None:
        at_ns, by = time_ns(), (thread_number(), site_here(), _THREAD_START)
        start(self)
        number = self.native_id or 0
        for log in _logs:
            log.thread_names[number] = self.name
        # The thread has begun then or later: this is before all that it does.
        _note(MOMENT.pack(NOT_WAITED, at_ns, at_ns, number, 0, _THREAD_BEGINS, *by))

    return ours


def _blocking(name: int) -> Callable[[Method], Method]:
    def replaced(call: Method) -> Method:
        def ours(*args: Any, **named: Any) -> Any:
            since_ns = time_ns()
            try:
                return call(*args, **named)
            finally:
                at_ns = time_ns()
                if at_ns - since_ns >= _SHORT_NS:
                    after = thread_number(), site_here(), name
                    _note(MOMENT.pack(since_ns, at_ns, 0, *after, *_UNKNOWN))

        return ours

    return replaced


_QUEUE_GET = moment_name("queue get")
_METHODS: tuple[tuple[type, str, Callable[[Method], Method]], ...] = (
    (threading.Condition, "wait", _waiting),
    (threading.Condition, "notify", _notifying),
    (threading.Thread, "start", _starting),
    (threading.Thread, "join", _blocking(moment_name("thread join"))),
    (multiprocessing.queues.Queue, "get", _blocking(_QUEUE_GET)),
    (multiprocessing.queues.SimpleQueue, "get", _blocking(_QUEUE_GET)),
)
"""Whose method of which name is replaced, and what makes of the method the one that notes."""
