"""What Python's threads wait for from each other, and who starts them, while a recording asks.

Methods of the standard library are replaced meanwhile, by ones that do the same and note what
blocked: who gets from a queue, or waits for an event or a future, waits in ``Condition.wait``.
"""

from __future__ import annotations

import concurrent.futures._base
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
from gpuscope.record.ranges import Moment, RangeLog

_SHORT_NS = 10_000
"""A call that took less waited for nobody."""
_FILES = {module.__file__ for module in (queue, threading, concurrent.futures._base)}
_START = threading.Thread.start.__code__
_lock = free_in_children(threading.Lock())
_logs: tuple[RangeLog, ...] = ()
"""Of the recordings that ask."""
_woken: dict[int, Moment | None] = {}
"""A condition that a thread waits for → what woke one last."""
_starting: dict[int, Moment] = {}
"""A thread that starts → what started it."""
_replaced: list[tuple[type, str, Any, Any]] = []
"""Whose method of which name was what, and is what now."""


def watch(log: RangeLog) -> Callable[[], None]:
    """Note in a log what threads wait for; returns what ends that."""
    with _lock:
        log.thread_names.update({t.native_id or 0: t.name for t in threading.enumerate()})
        _set((*_logs, log))

    def end() -> None:
        with _lock:
            _set(tuple(other for other in _logs if other is not log))

    return end


def _set(logs: tuple[RangeLog, ...]) -> None:
    global _logs  # noqa: PLW0603 - the one place that knows who asks
    _logs = logs
    for owner, name, replacing in _METHODS if logs and not _replaced else ():
        method = vars(owner)[name]
        _replaced.append((owner, name, method, functools.wraps(method)(replacing(method))))
        setattr(*_replaced[-1][:2], _replaced[-1][3])
    while _replaced and not logs:
        owner, name, method, ours = _replaced.pop()
        if vars(owner)[name] is ours:  # else somebody wrapped it, and it notes nothing
            setattr(owner, name, method)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _set(()))


def _now(name: str) -> Moment:
    return Moment(name, thread_number(), time.time_ns(), site_here())


def _called(depth: int, otherwise: str) -> str:
    """Return what of the standard library's calls a condition, such as "queue get"."""
    frame = sys._getframe(depth + 1)
    if frame.f_code.co_name in ("notify_all", "wait_for"):
        frame = frame.f_back or frame
    code, caller = frame.f_code, frame.f_back
    if code.co_filename not in _FILES:
        return otherwise
    is_starting = caller is not None and caller.f_code is _START
    return "" if is_starting else code.co_qualname.lower().replace(".", " ")


def _note(name: str, since_ns: int, by: Moment | None = None) -> None:
    now = _now(name)
    if now.at_ns - since_ns < _SHORT_NS or not name:
        return
    if not threading.current_thread().name.startswith("gpuscope"):
        for log in _logs:
            log.moments.append(("hand-over", by, now, since_ns))


def _waits(wait: Callable[..., bool]) -> Callable[..., bool]:
    def replacement(self: Any, timeout: float | None = None) -> bool:
        since_ns, is_woken = time.time_ns(), False
        _woken.setdefault(id(self))
        try:
            is_woken = wait(self, timeout)
        finally:
            by = _woken.get(id(self)) if is_woken else None
            if not self._waiters:
                _woken.pop(id(self), None)
            _note(_called(1, "condition wait"), since_ns, by)
        return is_woken

    return replacement


def _wakes(notify: Callable[..., None]) -> Callable[..., None]:
    def replacement(self: Any, n: int = 1) -> None:
        if id(self) in _woken:
            _woken[id(self)] = _now(_called(1, "condition notify"))
        notify(self, n)

    return replacement


def _blocks(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def replacement(*given: Any, **named: Any) -> Any:
        since_ns = time.time_ns()
        try:
            return call(*given, **named)
        finally:
            _note(name, since_ns)

    return replacement


def _starts(start: Callable[[Any], None]) -> Callable[[Any], None]:
    def replacement(self: Any) -> None:
        _starting[id(self)] = _now("thread start")
        try:
            start(self)
        finally:
            _starting.pop(id(self), None)

    return replacement


def _begins(begin: Callable[[Any], None]) -> Callable[[Any], None]:
    def replacement(self: Any) -> None:
        by = _starting.pop(id(self), None)
        for log in _logs if by else ():
            log.thread_names[thread_number()] = self.name
            log.moments.append(("thread start", by, _now("thread begins"), None))
        begin(self)

    return replacement


_METHODS: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (threading.Condition, "wait", _waits),
    (threading.Condition, "notify", _wakes),
    (threading.Thread, "start", _starts),
    (threading.Thread, "_bootstrap_inner", _begins),
    (threading.Thread, "join", functools.partial(_blocks, "thread join")),
    (multiprocessing.queues.Queue, "get", functools.partial(_blocks, "queue get")),
    (multiprocessing.queues.SimpleQueue, "get", functools.partial(_blocks, "queue get")),
)
"""Whose method of which name is replaced, and what makes of it the one that notes."""
