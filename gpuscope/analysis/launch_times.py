"""How long launches take to reach the GPU: known of a simulated one, else judged by the others."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from gpuscope._types import Bools, Ints
from gpuscope.analysis.span_rows import SpanRows
from gpuscope.trace.columns import ORDERING

_USUAL = 0.9
"""Quantile of the launch latencies seen on an idle device that still counts as usual."""


class LaunchTimes:
    """When the work of a trace was ready to run."""

    def __init__(self, rows: SpanRows) -> None:
        self._rows = rows
        self._usual: dict[tuple[str, int], tuple[int, int]] = {}

    def constants(self, row: int) -> tuple[int, int] | None:
        """Return how long launches take, where that is known: a simulated device tells.

        From the call until the GPU has it, and from the end of what it follows. Copies and host
        functions take no time; a graph takes it as a whole.
        """
        rows = self._rows
        index = rows.number("device", row)
        devices = [facts for facts in rows.metadata.devices.values() if facts.index == index]
        if len(devices) != 1 or rows.text("source", row) != "simulated":
            return None
        latency, gap = devices[0].launch_latency_ns, devices[0].kernel_gap_ns
        if latency is None or gap is None:
            return None
        of_graph = rows.graphs[row] >= 0
        if of_graph and not rows.inside(row):
            return latency, gap
        if rows.kind(row) != "kernel":
            return 0, 0
        return 0 if of_graph else latency, gap

    def ready_ns(self, row: int, since: int) -> int:
        """Return when a row's work was ready to run: its launch had reached the GPU.

        ``since`` is when the last work that it had to follow had ended, and it was launched.

        As soon as launches of its kind did elsewhere in the trace, after their call or after what
        they had to follow: the least of them on a simulated device, whose latency is a constant;
        on others what 9 of 10 took while nothing else ran.
        """
        queued = int(self._rows.queued[row])
        after_call, after_work = self.usual_of(row)
        ready = queued + after_call
        if since > queued:
            if after_call:  # a launch that is there already takes no longer than a fresh one
                after_work = min(after_work, after_call)
            ready = max(ready if queued >= 0 else 0, since + after_work)
        return min(ready, int(self._rows.starts[row]))

    def usual_of(self, row: int) -> tuple[int, int]:
        """Return what launches of a row's kind take, after their call and after other work."""
        rows = self._rows
        key = rows.kind(row), int(rows.devices[row])
        if key not in self._usual:
            alike = rows.having("kind", key[:1]) & (rows.devices == key[1])
            free = self._free_ns
            behind = free > rows.queued
            chosen = alike
            if not rows.is_simulated:
                chosen = alike & (self._busy_until_ns <= np.maximum(free, rows.queued))
            self._usual[key] = (
                self._latency_ns(chosen & ~behind, alike & ~behind, rows.queued),
                self._latency_ns(chosen & behind, alike & behind, free),
            )
        return self._usual[key]

    def _latency_ns(self, chosen: Bools, fallback: Bools, since: Ints) -> int:
        took = self._rows.starts - since
        known = (since >= 0) & (took >= 0)
        rows = chosen & known if (chosen & known).any() else fallback & known
        if not rows.any():
            return 0
        share = 0.0 if self._rows.is_simulated else _USUAL
        return int(np.quantile(took[rows], share, method="higher"))

    @cached_property
    def _busy_until_ns(self) -> Ints:
        """Row → when the last of all the work that began before it ended."""
        rows = self._rows
        order = np.argsort(rows.starts, kind="stable")
        latest = np.maximum.accumulate(np.where(rows.is_work, rows.ends, 0)[order])
        earlier = np.searchsorted(rows.starts[order], rows.starts, "left")
        until: Ints = np.r_[0, latest][earlier]
        return until

    @cached_property
    def _free_ns(self) -> Ints:
        """Row → when the last work that it had to follow ended; −1 where there is none."""
        rows = self._rows
        free = np.full(len(rows.ids), -1, np.int64)
        order, first = rows.queues
        places = np.flatnonzero(first != np.arange(len(order)))
        before, after = order[places - 1], order[places]
        over = rows.ends[before] <= rows.starts[after]
        free[after[over]] = rows.ends[before[over]]
        before, after = rows.edges_of(*ORDERING)
        over = rows.ends[before] <= rows.starts[after]
        np.maximum.at(free, after[over], rows.ends[before[over]])
        return free
