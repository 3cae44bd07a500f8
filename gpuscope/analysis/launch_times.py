"""How long launches take to reach the GPU: known of a simulated one, else judged by the others."""

from __future__ import annotations

import numpy as np

from gpuscope._types import Bools, Ints
from gpuscope.analysis.span_rows import SpanRows
from gpuscope.analysis.work_orders import WorkOrders
from gpuscope.trace.columns import combined

_USUAL = 0.9
"""Quantile of the launch latencies seen on an idle device that still counts as usual."""


class LaunchTimes:
    """When the work of a trace was ready to run.

    Attributes
    ----------
    latency_ns, gap_ns
        Row → how long launches of its kind take from their call until the GPU has them, and from
        the end of what they follow: what a simulated device tells, where copies and host functions
        take no time and a graph takes it as a whole. Else what others took elsewhere in the trace:
        the least of them on a simulated device, whose latency is a constant, and what 9 of 10 took
        while nothing else ran on others.
    is_known
        Row → whether a simulated device told them.
    free_ns
        Row → when the last work that it had to follow ended; −1 where there is none.
    waits
        Row → whether that was after its launch would have reached the GPU.
    ready_ns
        Row → when it could have begun, as far as its launch and the order of work go: its launch
        had reached the GPU, and what it follows had ended.
    """

    def __init__(self, rows: SpanRows, orders: WorkOrders) -> None:
        self._rows, works = rows, np.flatnonzero(rows.is_work)
        count = len(rows.ids)
        self.latency_ns, self.gap_ns = np.zeros((2, count), np.int64)
        self.is_known, self.free_ns = np.zeros(count, bool), np.full(count, -1, np.int64)
        for before, after in orders.pairs.values():
            over = rows.ends[before] <= rows.starts[after]
            np.maximum.at(self.free_ns, after[over], rows.ends[before[over]])
        features = (rows.coded("kind")[0], rows.coded("source")[0], rows.devices + 1)
        graphs = rows.graphs >= 0, orders.is_first
        _, code = combined(*(feature[works].astype(np.int64) for feature in (*features, *graphs)))
        for number in range(int(code.max(initial=-1)) + 1):
            alike = works[code == number]
            of_graph, is_first = (bool(flag[alike[0]]) for flag in graphs)
            constants = self._constants(int(alike[0]), of_graph=of_graph, is_first=is_first)
            self.is_known[alike] = constants is not None
            constants = constants or self._usual(int(alike[0]))
            self.latency_ns[alike], self.gap_ns[alike] = constants
        free_ns, launched_ns = self.free_ns + self.gap_ns, rows.queued + self.latency_ns
        is_launched = rows.queued >= 0
        is_late = ~(self.is_known & is_launched) | (free_ns >= launched_ns)
        self.waits = (self.free_ns > rows.queued) & is_late
        by_launch = np.where(is_launched & ~(self.waits & self.is_known), launched_ns, 0)
        ready_ns = np.maximum(by_launch, np.where(self.waits, free_ns, 0))
        is_told = is_launched | self.waits
        self.ready_ns = np.where(is_told, np.minimum(ready_ns, rows.starts), rows.starts)

    def _constants(self, row: int, *, of_graph: bool, is_first: bool) -> tuple[int, int] | None:
        rows = self._rows
        index = rows.number("device", row)
        devices = [facts for facts in rows.metadata.devices.values() if facts.index == index]
        if len(devices) != 1 or rows.text("source", row) != "simulated":
            return None
        latency, gap = devices[0].launch_latency_ns, devices[0].kernel_gap_ns
        if latency is None or gap is None:
            return None
        if of_graph and is_first:
            return latency, gap
        if rows.kind(row) != "kernel":
            return 0, 0
        return 0 if of_graph else latency, gap

    def _usual(self, row: int) -> tuple[int, int]:
        """Return what launches of a row's kind take, after their call and after other work."""
        rows, free = self._rows, self.free_ns
        alike = rows.having("kind", (rows.kind(row),)) & (rows.devices == rows.devices[row])
        behind = free > rows.queued
        chosen = alike
        if not rows.is_simulated:
            order = np.argsort(rows.starts, kind="stable")
            latest = np.maximum.accumulate(np.where(rows.is_work, rows.ends, 0)[order])
            earlier = np.searchsorted(rows.starts[order], rows.starts, "left")
            chosen = alike & (np.r_[0, latest][earlier] <= np.maximum(free, rows.queued))
        after_call = self._least_ns(chosen & ~behind, alike & ~behind, rows.queued)
        after_work = self._least_ns(chosen & behind, alike & behind, free)
        # A launch that is there already takes no longer than a fresh one.
        return after_call, min(after_work, after_call or after_work)

    def _least_ns(self, chosen: Bools, fallback: Bools, since: Ints) -> int:
        took = self._rows.starts - since
        is_timed = (since >= 0) & (took >= 0)
        rows = chosen & is_timed if (chosen & is_timed).any() else fallback & is_timed
        if not rows.any():
            return 0
        share = 0.0 if self._rows.is_simulated else _USUAL
        return int(np.quantile(took[rows], share, method="higher"))
