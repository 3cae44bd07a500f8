"""What parts of time read of a trace: its rows by number, stream, launch and edge."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from gpuscope._checks import given
from gpuscope._types import Array, Bools, Ints
from gpuscope.errors import MissingEvidence
from gpuscope.trace.columns import launch_calls, linked_rows, narrow_codes
from gpuscope.trace.joins import latest
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import kernel_name, named

WORK = ("kernel", "memcpy", "memset", "host function", "graph")
OPEN = np.iinfo(np.int64).max
"""End of a row whose end was not seen."""


_GRID = re.compile(r'"grid": ?\[(\d{1,10}), ?(\d{1,10}), ?(\d{1,10})')
_MANY = 1 << 40


def launched_blocks(launch_configs: Sequence[str | None]) -> Ints:
    """Return how many thread blocks launches have; many where that is unknown."""
    grids = [_GRID.search(text or "") for text in launch_configs]
    blocks = [
        min(math.prod(map(int, grid.groups())), _MANY) if grid else _MANY  # a file may say any
        for grid in grids
    ]
    return np.array(blocks, np.int64)


class _Sorted:
    """Rows by the value of a column."""

    def __init__(self, values: Ints) -> None:
        self._order = np.argsort(values, kind="stable")
        self._values = values[self._order]

    def of(self, value: int) -> Ints:
        """Return the rows that have a value, in the trace's order."""
        low = self._values.searchsorted(value)
        return self._order[low : self._values.searchsorted(value, "right")]


class SpanRows:
    """The columns of a trace as arrays, and rows found by them. Keeps no trace alive."""

    def __init__(self, trace: Trace) -> None:
        self.spans = trace.spans
        self.edges = trace.edges
        self.metadata = named(trace).metadata
        self.is_simulated = trace.is_simulated
        self.provenance = trace.provenance
        self.ids = trace.array("id")
        self.starts = trace.array("start_ns")
        self.ends = trace.array("end_ns", fill=OPEN)
        self.queued = trace.array("queued_ns", fill=-1)
        self.streams = trace.array("stream", fill=-1)
        self.devices = trace.array("device", fill=-1)
        self.graphs = trace.array("graph", fill=-1)
        self.threads = trace.array("thread", fill=-1)
        self.processes = trace.array("process", fill=-1)
        self.numbers = {
            name: trace.array(name, fill=-1)
            for name in ("parent", "correlation", "external_correlation")
        }
        self._coded: dict[str, tuple[Array, list[str | None]]] = {}
        self._sorted: dict[str, _Sorted] = {}
        self._linked: dict[str, tuple[_Sorted, Ints, _Sorted, Ints]] = {}
        self.is_work = self.having("kind", WORK)
        self.calls = launch_calls(trace)
        if not self.is_simulated:
            self._queue_blocking_copies()
        facts = self.metadata.streams
        self.legacy_streams = [int(key) for key, stream in facts.items() if stream.legacy_default]
        self.blocking_streams = [int(key) for key, stream in facts.items() if stream.blocking]
        self._per_thread = [int(key) for key, stream in facts.items() if stream.per_thread]
        # However often it was wrapped, it is one stream.
        if len(self.legacy_streams) > 1:
            several = np.isin(self.streams, self.legacy_streams)
            self.streams = np.where(several, self.legacy_streams[0], self.streams)
        windows = self.metadata.windows_ns
        self.zero_ns = int(windows[0][0] if windows else self.starts.min(initial=OPEN))

    def _queue_blocking_copies(self) -> None:
        """Let copies be queued as their call began, if that returned when they had ended."""
        copies = np.flatnonzero(self.having("kind", ("memcpy",)) & (self.calls >= 0))
        copies = copies[(self.ends[copies] <= self.queued[copies])]
        self.queued = self.queued.copy()
        self.queued[copies] = self.starts[self.calls[copies]]

    # -- values -------------------------------------------------------------------------------
    def position(self, span: int) -> int:
        """Return the place of the row with an id."""
        places = self.same("id", span)
        if not len(places):
            raise MissingEvidence(f"the trace has no row {given(span)}: rows are named by their id")
        return int(places[0])

    def same(self, name: str, value: int) -> Ints:
        """Return the rows with a value of a column of numbers."""
        if name not in self._sorted:
            self._sorted[name] = _Sorted(self.ids if name == "id" else self.numbers[name])
        return self._sorted[name].of(value)

    @property
    def parents(self) -> Ints:
        """Row → id of its parent, −1 for none."""
        return self.numbers["parent"]

    def having(self, name: str, values: Sequence[str | None]) -> Bools:
        """Row → whether a text column has one of these values."""
        code, texts = self.coded(name)
        return np.array([value in values for value in texts])[code]

    def text(self, name: str, row: int) -> str | None:
        """Return a row's value in a text column."""
        code, texts = self.coded(name)
        return texts[int(code[row])]

    def number(self, name: str, row: int) -> int | None:
        """Return a row's value in a column of whole numbers."""
        value: int | None = self.spans.column(name)[row].as_py()
        return value

    def coded(self, name: str) -> tuple[Array, list[str | None]]:
        """Return row → code and code → value of a text column."""
        if name not in self._coded:
            self._coded[name] = narrow_codes(self.spans.column(name))
        return self._coded[name]

    @cached_property
    def blocks_and_sms(self) -> tuple[Ints, Ints]:
        """Row → thread blocks of its launch, and SMs that it may use: many and 0 where unknown."""
        code, texts = self.coded("launch_config")
        blocks = launched_blocks(texts)
        devices, device = np.unique(self.devices, return_inverse=True)
        sms = [self.metadata.device(index).sm_count or 0 for index in devices.tolist()]
        partition, names = self.coded("partition")
        granted = [self.metadata.partition(name).sm_count or 0 for name in names]
        of_device = np.array(sms, np.int64)[device]
        may_use = np.where(partition == 0, of_device, np.array(granted, np.int64)[partition])
        return blocks[code], may_use

    def may_fill(self, rows: Ints, others: Ints) -> Bools:
        """Return whether rows may have held SMs that others needed: both have blocks for all."""
        blocks, sms = self.blocks_and_sms
        fills: Bools = blocks[rows] + blocks[others] > np.minimum(sms[rows], sms[others])
        return fills

    def kind(self, row: int) -> str:
        """Return a row's kind, such as ``"kernel"``."""
        return str(self.text("kind", row))

    def called(self, row: int) -> str:
        """Return a row's name for people: its workload's where it has one."""
        name = self.text("category", row)
        if name or self.kind(row) == "range":
            return name or str(self.text("name", row))
        return kernel_name(str(self.text("name", row)))

    def place(self, row: int) -> str:
        """Return the name of a row's stream."""
        number = int(self.streams[row])
        if number < 0:
            return "no stream"
        facts = self.metadata.stream(number)
        return f"stream {number}" if facts is None else facts.name

    def end_ns(self, row: int) -> int:
        """Return when a row ended."""
        if self.ends[row] == OPEN:
            raise MissingEvidence(
                f"the end of row {self.ids[row]} was not seen: wait for it while recording"
            )
        return int(self.ends[row])

    # -- edges --------------------------------------------------------------------------------
    def edges_of(self, *kinds: str) -> tuple[Ints, Ints]:
        """Return the rows that edges of some kinds lead from and to."""
        return linked_rows(self.edges, self.ids, *kinds)

    def _ends(self, kind: str) -> tuple[_Sorted, Ints, _Sorted, Ints]:
        """Return edges of a kind by what they lead to, with whence; and from, with whither."""
        if kind not in self._linked:
            before, after = self.edges_of(kind)
            self._linked[kind] = _Sorted(after), before, _Sorted(before), after
        return self._linked[kind]

    def linked(self, row: int, kind: str) -> list[int]:
        """Return the rows that edges of a kind say come before a row."""
        by_end, before, _, _ = self._ends(kind)
        rows: list[int] = before[by_end.of(row)].tolist()
        return rows

    def launched(self, call: int) -> list[int]:
        """Return the work that a call launched."""
        _, _, by_start, after = self._ends("launch")
        rows: list[int] = after[by_start.of(call)].tolist()
        return rows

    # -- order --------------------------------------------------------------------------------
    @cached_property
    def queues(self) -> tuple[Ints, Ints]:
        """Work by stream in order of its start, and of each place where its stream begins.

        The default stream of each thread has one number, and is another on each.
        """
        work = np.flatnonzero(self.is_work & (self.streams >= 0))
        stream = self.streams[work]
        device = self.devices[work]
        thread = np.where(np.isin(stream, self._per_thread), self.threads[work], -1)
        order = np.lexsort((self.ids[work], self.starts[work], thread, device, stream))
        begins = np.zeros(len(work), bool)
        for key in (stream[order], device[order], thread[order]):
            begins[1:] |= key[1:] != key[:-1]
        first = np.maximum.accumulate(np.where(begins, np.arange(len(work)), 0))
        return work[order], first

    @cached_property
    def latest(self) -> tuple[Ints, Ints]:
        """Row → its place in the queues; place → row that ended last of those up to it."""
        order, first = self.queues
        positions = np.full(len(self.ids), -1)
        positions[order] = np.arange(len(order))
        return positions, latest(first, self.ends[order])
