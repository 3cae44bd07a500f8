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
import time
from collections.abc import Callable
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
        ours = _bound(functools.partial(by, method), method)
        _replaced.append((owner, name, method, ours))
        setattr(owner, name, ours)
    while _replaced and not logs:
        owner, name, method, ours = _replaced.pop()
        if vars(owner)[name] is ours:  # else somebody wrapped it, and it notes nothing
            setattr(owner, name, method)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _set(()))


def _bound(function: Method, like: Method) -> Method:
    """Return a method, as a partial function is none."""

    def ours(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    functools.update_wrapper(ours, like)
    return ours


def _now(name: str) -> RangeMoment:
    return RangeMoment(name, thread_number(), time.time_ns(), site_here())


def _caller(otherwise: str) -> str:
    """Return what of the standard library calls a condition, such as "queue get"."""
    frame = sys._getframe(3)  # behind the replacement and what it calls
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
    thread = vars(threading)["_active"].get(threading.get_ident())  # current_thread() adds others
    if name and not (thread and thread.name.startswith("gpuscope")):
        now = _now(name)
        for log in _logs:
            log.moments.append(("hand-over", by, now, since_ns))


def _wait(wait: Method, self: Any, timeout: float | None = None) -> Any:
    since_ns, is_woken = time.time_ns(), False
    _woken.setdefault(id(self))
    try:
        is_woken = wait(self, timeout)
    finally:
        by = _woken.get(id(self)) if is_woken else None
        if not self._waiters:
            _woken.pop(id(self), None)
        if time.time_ns() - since_ns >= _SHORT_NS:
            _note(_caller("condition wait"), since_ns, by)
    return is_woken


def _notify(notify: Method, self: Any, n: int = 1) -> None:
    if id(self) in _woken:
        _woken[id(self)] = _now(_caller("condition notify"))
    notify(self, n)


def _start(start: Method, self: threading.Thread) -> None:
    by = _now("thread start")
    start(self)
    begun = RangeMoment(
        "thread begins", self.native_id or 0, by.at_ns, 0
    )  # or later: it is before all
    for log in _logs:
        log.thread_names[begun.thread] = self.name
        log.moments.append(("thread start", by, begun, None))


def _block(name: str, call: Method, *args: Any, **named: Any) -> Any:
    since_ns = time.time_ns()
    try:
        return call(*args, **named)
    finally:
        if time.time_ns() - since_ns >= _SHORT_NS:
            _note(name, since_ns)


_get = functools.partial(_block, "queue get")
_METHODS: tuple[tuple[type, str, Method], ...] = (
    (threading.Condition, "wait", _wait),
    (threading.Condition, "notify", _notify),
    (threading.Thread, "start", _start),
    (threading.Thread, "join", functools.partial(_block, "thread join")),
    (multiprocessing.queues.Queue, "get", _get),
    (multiprocessing.queues.SimpleQueue, "get", _get),
)
"""Whose method of which name is replaced, and what does it with the method before its arguments."""
