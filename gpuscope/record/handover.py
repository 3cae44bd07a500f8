"""What Python's threads wait for from each other, and who starts them, while a recording asks.

Methods of the standard library are replaced meanwhile, by ones that do the same and note what
blocked: who gets from a queue, or waits for an event or a future, waits in ``Condition.wait``.
"""

from __future__ import annotations

import concurrent.futures
import functools
import multiprocessing.queues
import os
import queue
import sys
import threading
from collections.abc import Callable
from time import time_ns
from typing import Any

from gpuscope._fork import free_in_children
from gpuscope._sites import site_here
from gpuscope._threads import thread_number
from gpuscope.record.ranges import RangeLog, RangeMoment

Method = Callable[..., Any]
_SHORT_NS = 10_000
"""A call that took less waited for nobody."""
_CALLERS = (queue.Queue.get, threading.Event.wait, concurrent.futures.Future.result)
_FILES = {function.__code__.co_filename for function in _CALLERS}
_START = threading.Thread.start.__code__
_lock = free_in_children(threading.Lock())
_logs: tuple[RangeLog, ...] = ()
"""Of the recordings that ask."""
_woken: dict[int, RangeMoment | None] = {}
"""A condition that a thread waits for → what woke one last."""
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


def _now(name: str) -> RangeMoment:
    # A thread that has just woken up runs this with the interpreter's lock, for which others wait:
    # a NamedTuple's own __new__ takes thrice as long.
    return tuple.__new__(RangeMoment, (name, thread_number(), time_ns(), site_here()))


def _caller(otherwise: str) -> str:
    """Return what of the standard library calls a condition, such as "queue get"."""
    frame = sys._getframe(2)  # behind the replacement
    if frame.f_code.co_name in ("notify_all", "wait_for"):
        frame = frame.f_back or frame
    code, caller = frame.f_code, frame.f_back
    if code.co_filename not in _FILES:
        return otherwise
    is_starting = caller is not None and _START in (
        caller.f_code,
        getattr(caller.f_back, "f_code", None),
    )
    return "" if is_starting else code.co_qualname.lower().replace(".", " ")


def _note(name: str, since_ns: int, by: RangeMoment | None = None) -> None:
    if name:
        entry = "hand-over", by, _now(name), since_ns
        for log in _logs:
            log.moments.append(entry)


def _waiting(wait: Method) -> Method:
    def ours(self: Any, timeout: float | None = None) -> Any:
        since_ns, is_woken = time_ns(), False
        _woken.setdefault(id(self))
        try:
            is_woken = wait(self, timeout)
        finally:
            by = _woken.get(id(self)) if is_woken else None
            if not self._waiters:
                _woken.pop(id(self), None)
            if time_ns() - since_ns >= _SHORT_NS:
                _note(_caller("condition wait"), since_ns, by)
        return is_woken

    return ours


def _notifying(notify: Method) -> Method:
    def ours(self: Any, n: int = 1) -> None:
        if id(self) in _woken:
            _woken[id(self)] = _now(_caller("condition notify"))
        notify(self, n)

    return ours


def _starting(start: Method) -> Method:
    def ours(self: threading.Thread) -> None:
        by = _now("thread start")
        start(self)
        begun = RangeMoment(
            "thread begins", self.native_id or 0, by.at_ns, 0
        )  # or later: it is before all
        for log in _logs:
            log.thread_names[begun.thread] = self.name
            log.moments.append(("thread start", by, begun, None))

    return ours


def _blocking(name: str) -> Callable[[Method], Method]:
    def replaced(call: Method) -> Method:
        def ours(*args: Any, **named: Any) -> Any:
            since_ns = time_ns()
            try:
                return call(*args, **named)
            finally:
                if time_ns() - since_ns >= _SHORT_NS:
                    _note(name, since_ns)

        return ours

    return replaced


_METHODS: tuple[tuple[type, str, Callable[[Method], Method]], ...] = (
    (threading.Condition, "wait", _waiting),
    (threading.Condition, "notify", _notifying),
    (threading.Thread, "start", _starting),
    (threading.Thread, "join", _blocking("thread join")),
    (multiprocessing.queues.Queue, "get", _blocking("queue get")),
    (multiprocessing.queues.SimpleQueue, "get", _blocking("queue get")),
)
"""Whose method of which name is replaced, and what makes of the method the one that notes."""
