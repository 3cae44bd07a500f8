"""What explanations read of a trace: rows by stream, launch and edge; when they were ready."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from gpuscope._types import Bools, Ints
from gpuscope.errors import MissingEvidence
from gpuscope.trace.columns import codes, edge_rows
from gpuscope.trace.model import Trace

WORK = ("kernel", "memcpy", "memset", "host function", "graph")
OPEN = np.iinfo(np.int64).max
"""End of a row whose end was not seen."""
_ORDER = ("event wait", "graph", "legacy default stream")
"""Edges from what must end to what waits for it, besides the order of a stream."""
_USUAL = 0.9
"""Quantile of the launch latencies seen on an idle device that still counts as usual."""


class SpanRows:
    """The columns of a trace that explanations look at, as arrays."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.ids = trace.array("id")
        self.starts = trace.array("start_ns")
        self.ends = trace.array("end_ns", fill=OPEN)
        self.queued = trace.array("queued_ns", fill=-1)
        self.streams = trace.array("stream", fill=-1)
        self.devices = trace.array("device", fill=-1)
        self.graphs = trace.array("graph", fill=-1)
        self.correlations = trace.array("correlation", fill=-1)
        self._edges: dict[int, list[tuple[int, int, str]]] = {}
        self.is_work = self.having("kind", WORK)
        facts = trace.metadata.streams
        self.legacy_streams = [int(key) for key, stream in facts.items() if stream.legacy_default]
        self.blocking_streams = [int(key) for key, stream in facts.items() if stream.blocking]
        # However often it was wrapped, it is one stream.
        if len(self.legacy_streams) > 1:
            several = np.isin(self.streams, self.legacy_streams)
            self.streams = np.where(several, self.legacy_streams[0], self.streams)
        windows = trace.metadata.windows_ns
        self.zero_ns = int(windows[0][0] if windows else self.starts.min(initial=0))

    def position(self, span: int) -> int:
        """Return the place of the row with an id."""
        found = np.flatnonzero(self.ids == span)
        if not len(found):
            raise MissingEvidence(f"the trace has no row {span}: rows are named by their id")
        return int(found[0])

    def having(self, name: str, values: Sequence[str | None]) -> Bools:
        """Row → whether a text column has one of these values."""
        code, known = codes(self.trace.spans.column(name))
        return np.array([value in values for value in known])[code]

    def text(self, name: str, row: int) -> str | None:
        """Return a row's value in a text column."""
        value: str | None = self.trace.spans.column(name)[row].as_py()
        return value

    def number(self, name: str, row: int) -> int | None:
        """Return a row's value in a column of whole numbers."""
        value: int | None = self.trace.spans.column(name)[row].as_py()
        return value

    def kind(self, row: int) -> str:
        """Return a row's kind, such as ``"kernel"``."""
        return str(self.text("kind", row))

    def stream(self, row: int) -> str:
        """Return which stream a row is of, for people."""
        name = self.place(row)
        return name if "stream" in name else f"stream {name}"

    def place(self, row: int) -> str:
        """Return the name of a row's stream."""
        number = int(self.streams[row])
        return self.trace.stream_name(number if number >= 0 else None)

    def label(self, row: int) -> str:
        """Return a row's name for people: its workload's where it has one."""
        name = self.text("category", row) or self.text("name", row)
        return f"host function {name}" if self.kind(row) == "host function" else str(name)

    def linked(self, row: int, kind: str) -> list[int]:
        """Return the rows that edges of a kind say come before a row."""
        return [
            before for before, after, what in self._edges_to(row) if after == row and what == kind
        ]

    def followed(self, row: int, kind: str) -> list[int]:
        """Return the work that edges of a kind say must end before a row starts.

        What is linked to any node of a graph's launch holds for all of it: the launch waited, and
        was waited for until its last node had ended.
        """
        mine = self._launch_of(row)
        return [
            self._last_of(before)
            for before, _, what in self._edges_to(row)
            if what == kind and not mine[before]
        ]

    def _edges_to(self, row: int) -> list[tuple[int, int, str]]:
        """Return the edges to a row and the rest of its launch: row before, row, kind."""
        if row not in self._edges:
            edges, mine = self.trace.edges, np.flatnonzero(self._launch_of(row))
            places = np.flatnonzero(np.isin(np.asarray(edges.column("to")), self.ids[mine]))
            few = edges.take(places).to_pydict()
            there = np.flatnonzero(np.isin(self.ids, np.asarray(few["from"], np.int64)))
            by_id = {int(self.ids[place]): int(place) for place in (*mine, *there)}
            self._edges[row] = [
                (by_id[before], by_id[after], kind)
                for before, after, kind in zip(few["from"], few["to"], few["kind"], strict=True)
                if before in by_id
            ]
        return self._edges[row]

    def _launch_of(self, row: int) -> Bools:
        """Row → whether it is of the same launch of a graph; of other work, whether it is it."""
        if self.graphs[row] < 0 or self.correlations[row] < 0:
            found = np.zeros(len(self.ids), bool)
            found[row] = True
            return found
        same: Bools = self.is_work & (self.graphs == self.graphs[row])
        same &= self.correlations == self.correlations[row]
        return same

    def _last_of(self, row: int) -> int:
        """Return the last of what a call queued to end: of a graph's nodes, of several kernels."""
        mine = self._launch_of(row)
        call = self.number("external_correlation", row)
        if call is not None and self.is_work[row]:
            same = self.trace.array("external_correlation", fill=-1) == call
            mine |= same & self.is_work & (self.streams == self.streams[row])
        found = np.flatnonzero(mine)
        return int(found[np.argmax(self.ends[found])])

    def constants(self, row: int) -> tuple[int, int] | None:
        """Return how long launches take, where that is known: a simulated device tells.

        From the call until the GPU has it, and from the end of what it follows. Copies and host
        functions take no time; a graph takes it as a whole.
        """
        index = self.number("device", row)
        devices = [facts for facts in self.trace.metadata.devices.values() if facts.index == index]
        if len(devices) != 1 or self.text("source", row) != "simulated":
            return None
        latency, gap = devices[0].launch_latency_ns, devices[0].kernel_gap_ns
        if latency is None or gap is None:
            return None
        of_graph = self.graphs[row] >= 0
        if of_graph and not self.inside(row):
            return latency, gap
        if self.kind(row) != "kernel":
            return 0, 0
        return 0 if of_graph else latency, gap

    def inside(self, row: int) -> list[int]:
        """Return the nodes of its own launch that a graph's node follows."""
        mine = self._launch_of(row)
        return [node for node in self.linked(row, "graph") if mine[node]]

    def in_order(self, row: int) -> list[int]:
        """Return the last work before a row in its stream, if there is any."""
        stream = self.streams[row]
        if stream < 0:
            return []
        mine = self.is_work & (self.streams == stream) & (self.devices == self.devices[row])
        start = self.starts[row]
        before = (self.starts < start) | ((self.starts == start) & (self.ids < self.ids[row]))
        facts = self.trace.metadata.stream(stream)
        if facts is not None and facts.per_thread:  # one number, but another stream on each thread
            mine &= self.trace.array("thread", fill=-1) == self.number("thread", row)
        found = np.flatnonzero(mine & before & ~self._launch_of(row))
        return [int(found[np.argmax(self.ends[found])])] if len(found) else []

    def legacy(self, row: int) -> list[int]:
        """Return the last work that the legacy default stream put before a row, if any.

        Its work follows that of blocking streams, and theirs follows its.
        """
        stream = int(self.streams[row])
        others: list[int] = []
        if stream in self.legacy_streams:
            others = self.blocking_streams
        elif stream in self.blocking_streams:
            others = self.legacy_streams
        mine = self.is_work & np.isin(self.streams, others)
        mine &= (self.devices == self.devices[row]) & (self.ends <= self.starts[row])
        mine &= (self.queued >= 0) & (self.queued <= self.queued[row])
        found = np.flatnonzero(mine)
        return [int(found[np.argmax(self.ends[found])])] if len(found) else []

    def holders(self, row: int) -> Ints:
        """Return the rows that may have had what a row needs: its SMs or its copy engine."""
        kind = self.kind(row)
        mine = self.is_work & (self.devices == self.devices[row])
        mine &= (self.ids != self.ids[row]) & (self.starts < self.starts[row])
        if kind == "kernel":
            return np.flatnonzero(mine & self.having("kind", ("kernel",)) & self._sharing(row))
        if kind == "memcpy":
            mine &= self.having("kind", ("memcpy",)) & (self.ends <= self.starts[row])
            direction = self.text("copy_kind", row)
            if direction is not None:
                mine &= self.having("copy_kind", (direction, None))
            return np.flatnonzero(mine)
        return np.zeros(0, np.int64)

    def _sharing(self, row: int) -> Bools:
        """Row → whether it ran on SMs that this row's partition has too."""
        partition = self.text("partition", row)
        if partition is None:
            return np.ones(len(self.ids), bool)
        metadata = self.trace.metadata
        own = set(metadata.partition(partition).sm_ids)
        sharing: list[str | None] = [partition, None]
        for name, facts in metadata.partitions.items():
            if own & set(facts.sm_ids):
                sharing.append(name)
        return self.having("partition", sharing)

    def ready_ns(self, row: int, since: int) -> int:
        """Return when a row's work was ready to run: its launch had reached the GPU.

        ``since`` is when the last work that it had to follow had ended, and it was launched.

        As soon as launches of its kind did elsewhere in the trace, after their call or after what
        they had to follow: the least of them on a simulated device, whose latency is a constant;
        on others what 9 of 10 took while nothing else ran.
        """
        mine = self.having("kind", (self.kind(row),))
        mine &= self.devices == self.devices[row]
        free = self._free()
        free[row] = since
        behind = free > self.queued
        chosen = mine
        if not self.trace.is_simulated:
            chosen = mine & (self._busy_until() <= np.maximum(free, self.queued))
        after_call = self._latency(chosen & ~behind, mine & ~behind, self.queued)
        ready = int(self.queued[row]) + after_call
        if behind[row]:
            after_work = self._latency(chosen & behind, mine & behind, free)
            if after_call:  # a launch that is there already takes no longer than a fresh one
                after_work = min(after_work, after_call)
            ready = max(ready if self.queued[row] >= 0 else 0, since + after_work)
        return min(ready, int(self.starts[row]))

    def _latency(self, chosen: Bools, fallback: Bools, since: Ints) -> int:
        took = self.starts - since
        known = (since >= 0) & (took >= 0)
        rows = chosen & known if (chosen & known).any() else fallback & known
        if not rows.any():
            return 0
        share = 0.0 if self.trace.is_simulated else _USUAL
        return int(np.quantile(took[rows], share, method="higher"))

    def _busy_until(self) -> Ints:
        """Row → when the last of all the work that began before it ended."""
        order = np.argsort(self.starts, kind="stable")
        latest = np.maximum.accumulate(np.where(self.is_work, self.ends, 0)[order])
        place = np.searchsorted(self.starts[order], self.starts, "left")
        found: Ints = np.r_[0, latest][place]
        return found

    def _free(self) -> Ints:
        """Row → when the last work that it had to follow ended; −1 where there is none."""
        free = np.full(len(self.ids), -1, np.int64)
        work = np.flatnonzero(self.is_work & (self.streams >= 0))
        order = work[np.lexsort((self.ids[work], self.starts[work], self.streams[work],
                                 self.devices[work]))]  # fmt: skip
        first, then = order[:-1], order[1:]
        same = (self.streams[first] == self.streams[then]) & (
            self.devices[first] == self.devices[then]
        )
        same &= self.ends[first] <= self.starts[then]
        free[then[same]] = self.ends[first[same]]
        edges = self.trace.edges
        if edges.num_rows:
            code, kinds = codes(edges.column("kind"))
            waits = edges.filter(pa.array(np.array([kind in _ORDER for kind in kinds])[code]))
            before, after = edge_rows(self.trace, waits)
            known = (before >= 0) & (after >= 0)
            known &= self.ends[before] <= self.starts[after]
            np.maximum.at(free, after[known], self.ends[before[known]])
        return free
