"""What recording costs a program: measured in its process when it is over, so nothing is missing.

Where a program waits for the host that launches, it is that much slower; where the host waits for
the GPU, less. What CUPTI adds on the GPU, such as between the nodes of a graph, is not in it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from gpuscope import _sites
from gpuscope.device.device import Device
from gpuscope.record.cupti.collector import get_collector
from gpuscope.record.cupti.records import CANARY, CANARY_SOURCE
from gpuscope.trace.facts import RecordingCost
from gpuscope.trace.model import Trace

_PAIRS, _LAUNCHES = 24, 200
_LOW, _HIGH = 6, 17
"""Of so many pairs in order, counted from 0: between these is the median in 95 % of all cases
(H. A. David and H. N. Nagaraja, *Order Statistics*, 2003, section 7.1)."""
_LIMIT = 256 << 20
"""Bytes of buffers meanwhile."""


class TimeAdded(NamedTuple):
    """What recording adds to a call: median, and half its 95 % interval, ns."""

    ns: float
    within_ns: float


def paired(pause: Callable[[bool], None], launch_ns: Callable[[], float]) -> TimeAdded:
    """Return how much longer a launch takes where recording is not paused.

    Parameters
    ----------
    launch_ns
        Returns the time of a launch now, ns.
    """
    added = []
    for number in range(_PAIRS):
        took_ns = {}
        for paused in (number % 2 == 0, number % 2 == 1):
            pause(paused)
            took_ns[paused] = launch_ns()
        added.append(took_ns[False] - took_ns[True])
    ordered = sorted(added)
    return TimeAdded(statistics.median(added), (ordered[_HIGH] - ordered[_LOW]) / 2)


def time_added(
    device: Device, detail: Literal["launches", "full"], *, stacks: bool
) -> TimeAdded | None:
    """Return what recording adds to a call of this process; ``None`` while something is recorded.

    Launches of a kernel that does nothing are timed with recording and without, in turns. What
    noting a call takes is that of the program's calls instead: they are made deeper in it, and
    what noting touches has left the caches by then.

    Parameters
    ----------
    detail, stacks
        As of :class:`Options`.

    Raises
    ------
    GpuscopeError
        CUPTI or the GPU refuses.
    """
    collector, backend = get_collector(), device.backend
    if collector.is_recording:
        return None
    noting = collector.library.time_of_noting()
    kernel = backend.compile(CANARY_SOURCE, CANARY, None)
    out = backend.empty((2,), np.dtype(np.uint64))
    stream, handle = backend.make_stream(None, 0)

    def launch_ns() -> float:
        took_ns = []
        for _ in range(_LAUNCHES):
            began_ns = time.perf_counter_ns()
            backend.launch(stream, kernel, 1, 32, (out,), 0)
            took_ns.append(time.perf_counter_ns() - began_ns)
        backend.sync_stream(stream)
        return statistics.median(took_ns)

    owner = id(launch_ns)
    try:
        _sites.ask_for_sites(stacks)
        apis = "all" if detail == "full" else "launches"
        collector.begin(owner, lambda _number, _records: None, apis=apis, limit=_LIMIT)
        try:
            added = paired(lambda paused: collector.pause(paused=paused), launch_ns)
        finally:
            collector.end(owner, taken_over=False)
    finally:
        _sites.ask_for_sites(-stacks)
        backend.close_stream(stream, handle)
    of_these = collector.library.time_of_noting()
    if noting is None or of_these is None:
        return added
    return added._replace(ns=added.ns + noting - of_these)


def recording_cost(trace: Trace, added: TimeAdded) -> RecordingCost | None:
    """Return what recording cost a program, by the calls of the thread that made most."""
    calls = trace.where(kind="api")
    if not len(calls):
        return None
    starts = calls.array("start_ns")
    _, of_thread = np.unique(calls.array("thread", fill=-1), return_inverse=True)
    counts = np.bincount(of_thread)
    busiest_ns = starts[of_thread == counts.argmax()]
    lasted_ns = int(busiest_ns.max() - busiest_ns.min())
    if not lasted_ns:
        return None
    per_ns = float(counts.max()) / lasted_ns
    shares = per_ns * added.ns, per_ns * added.within_ns
    return RecordingCost(added.ns, added.within_ns, *shares)
