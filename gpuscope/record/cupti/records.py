"""CUPTI's records of one recording, from the bytes of a buffer until a row tells of them.

Canaries are tiny kernels around a recording whose records must arrive, or somebody else took the
recording over. They also tell which records are its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Protocol

import numpy as np

from gpuscope._sites import site_text
from gpuscope._types import Array, Bools
from gpuscope.device.device import Device
from gpuscope.record.clock import ClockFit, Sample
from gpuscope.record.cupti import layout, tables
from gpuscope.record.cupti.library import (
    BLOCKING,
    DRIVER_API,
    ENDS,
    OTHER,
    RUNTIME_API,
    demangled,
    is_apart,
    is_capture,
    is_wait,
    role_of,
    text_at,
)
from gpuscope.record.cupti.order import EventOrder
from gpuscope.record.cupti.ranges import Ranges
from gpuscope.record.cupti.tables import Columns
from gpuscope.record.cupti.waits import Waits
from gpuscope.record.rows import Rows, keep, together
from gpuscope.record.source import Completeness
from gpuscope.trace import arrow, joins
from gpuscope.trace.arrow import NONE

NO_NUMBER = (1 << 32) - 1
"""No call of CUDA has it."""
CANARY = "gpuscope_canary"
CANARY_SOURCE = r"""
extern "C" __global__ void gpuscope_canary(unsigned long long* out) {
  unsigned long long begin, end;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(end));
  if (blockIdx.x == 0 && threadIdx.x == 0) { out[0] = begin; out[1] = end; }
}
"""
FLIGHT = 7
"""Canaries at a time. All but the last are read: the tightest tells how %globaltimer stands
to CUPTI's time. What this thread does from the first to the last is the recording's own."""


class Canaries:
    """Canaries of one recording on one device.

    Parameters
    ----------
    tag
        Blocks of each canary, from 1: recordings that run at the same time tell theirs by it.
    """

    def __init__(self, device: Device, tag: int) -> None:
        self._backend = device.backend
        self.device = device.info.index
        self.tag = tag
        self.launched = self.arrived = 0
        """How many were launched, and how many have left a record."""
        self.globaltimer = ClockFit()
        """How %globaltimer stands to CUPTI's time."""
        self._sent: list[tuple[int, int]] = []  # what each read of it, at its beginning and end
        self._kernel = self._backend.compile(CANARY_SOURCE, CANARY, None)
        self._out = self._backend.empty((2,), np.dtype(np.uint64))

    def send(self) -> None:
        """Launch a flight, on a stream of its own, and wait for it."""
        stream, handle = self._backend.make_stream(None, 0)
        try:
            for number in range(FLIGHT):
                self._backend.launch(stream, self._kernel, self.tag, 32, (self._out,), 0)
                self.launched += 1
                self._backend.sync_stream(stream)
                if number < FLIGHT - 1:
                    begin, end = self._backend.to_host(self._out).tolist()
                    self._sent.append((begin, end))
        finally:
            self._backend.close_stream(stream, handle)

    def keep(self) -> Callable[[], None]:
        """Return what undoes what :meth:`arrive` does next."""
        return together(keep(self, "arrived"), keep(self.globaltimer, "samples"))

    def arrive(self, start: int, stop: int) -> None:
        """Take the record of the next one, from start to stop in ns; it ran inside that."""
        number, self.arrived = self.arrived, self.arrived + 1
        flight, index = divmod(number, FLIGHT)
        sent = flight * (FLIGHT - 1) + index
        if index == FLIGHT - 1 or sent >= len(self._sent):
            return
        begin, end = self._sent[sent]
        half = max(0, (stop - start) - (end - begin)) // 2
        middle = (begin - start + end - stop) // 2
        self.globaltimer.add(Sample((start + stop) // 2, middle, half))


class Flights:
    """The flights that CUPTI's records tell of, of all recordings of the process."""

    def __init__(self) -> None:
        self._correlations: dict[tuple[int, int], list[int]] = {}

    def keep(self) -> Callable[[], None]:
        """Return what undoes what :meth:`note` does next."""
        correlations = {flight: list(numbers) for flight, numbers in self._correlations.items()}
        return lambda: vars(self).update(_correlations=correlations)

    def note(self, work: Columns, canaries: Array) -> None:
        """Take the records of canaries, a mask of ``work``."""
        numbers = (work["config"][:, 0], work["device"], work["correlation"])
        for tag, device, correlation in zip(
            *(column[canaries].tolist() for column in numbers), strict=True
        ):
            self._correlations.setdefault((tag, device), []).append(correlation)

    def latest(self, canaries: Canaries) -> int:
        """Return the correlation of the latest canary of a recording."""
        return max(self._correlations[canaries.tag, canaries.device])

    @property
    def under_way(self) -> int | None:
        """Correlation of the first canary of the flights that are not over, if there are any."""
        begun = [flight for flight in self._correlations.values() if len(flight) % FLIGHT]
        return min((sorted(flight)[-(len(flight) % FLIGHT)] for flight in begun), default=None)

    def without(self, columns: Columns, apis: Columns | None) -> Columns:
        """Leave out what recordings did: from a flight's first canary to the wait for its last.

        Parameters
        ----------
        apis
            API calls, which tell the thread; ``None`` where they are not recorded.
        """
        numbers = columns["correlation"]
        drop = np.zeros(len(numbers), bool)
        for correlations in self._correlations.values():
            ordered = sorted(correlations)
            for first in range(0, len(ordered), FLIGHT):
                flight = ordered[first : first + FLIGHT]
                within = (numbers >= flight[0]) & (numbers <= flight[-1])
                if apis is not None and len(apis["correlation"]):
                    at = joins.match(np.array([flight[0]], np.uint32), apis["correlation"])
                    if at[0] != NONE:
                        threads = joins.match(numbers, apis["correlation"])
                        same = apis["thread"] == apis["thread"][at[0]]
                        within &= same[np.maximum(threads, 0)] | (threads == NONE)
                        waits = same & is_wait(apis) & (apis["correlation"] > flight[-1])
                        within |= numbers == apis["correlation"][waits].min(initial=NO_NUMBER)
                drop |= within
        return tables.select(columns, ~drop) if drop.any() else columns


class Names(Protocol):
    """What :class:`Records` needs of libcupti."""

    version: int

    def callback_name(self, domain: int, number: int, /) -> str:
        """Return the name of an API call; empty if none."""


class Records:
    """Reads buffers, and leaves out what is not the recording's own.

    Parameters
    ----------
    library
        Names API calls.
    which
        Which API calls to keep: ``"none"``, ``"runtime"``, ``"launches"`` or ``"all"``.
    found
        Told of what could not be read.
    text
        Address in a record → text.

    Attributes
    ----------
    work, apis
        What was read and is not rows yet, a part of each buffer.
    canaries
        The recording's own, of each device.
    count, left_out
        Records of work and calls: how many were read, and how many of these
        were not the recording's own.
    kernel_name
        Address in a record → kernel's name.
    site_text
        Number of a site → its text.
    waits
        Of the host, and of streams.
    first
        Correlation of the last call before the recording.
    noted
        Whether API calls are those that were noted, and CUPTI's are another recording's.
    captures
        Whether a stream began to be captured: what is launched there runs later, or never.
    """

    def __init__(
        self,
        library: Names,
        which: str,
        completeness: Completeness,
        text: Callable[[int], str] = text_at,
        order: EventOrder | None = None,
    ) -> None:
        self._library = library
        self._sizes = layout.record_sizes(library.version)
        self.which = which
        self._completeness = completeness
        self.work: list[Columns] = []
        self.apis: list[Columns] = []
        self.order = order
        self.waits = Waits()
        self.tells_waits = which in ("launches", "all")
        """Whether there are calls enough to tell of what waits were for."""
        self.ranges = Ranges(text)
        self.canaries: list[Canaries] = []
        self._flights = Flights()
        self.noted = self.captures = False
        self.site_text: Callable[[int], str] = site_text
        self.kernel_name = cache(lambda address: demangled(text(address)))
        self.count = self.left_out = self.first = 0

    def keep(self) -> Callable[[], None]:
        """Return what undoes all that reading changes next."""
        restore = keep(self, "work", "apis", "count", "left_out")
        of_canaries = (canaries.keep() for canaries in self.canaries)
        parts = (self.ranges.keep(), self.waits.keep(), self._flights.keep())
        return together(restore, *parts, *of_canaries)

    # -- from bytes -------------------------------------------------------------------
    def read(self, raw: Array) -> dict[int, Columns]:
        """Take the records of a buffer; returns those of contexts and streams, by their kind."""
        scan = layout.find_records(raw, self._sizes)
        self._completeness.add("received", sum(len(offsets) for offsets in scan.offsets.values()))
        if scan.unread and (scan.unread_kind or raw[-scan.unread :].any()):
            condition = "cut-short" if scan.unread_kind in self._sizes else "unknown"
            self._completeness.add("unread_bytes", scan.unread)
            self._completeness.lost(
                f"{scan.unread} bytes from a record of {condition} kind {scan.unread_kind} on "
                f"were not read (CUPTI API version {self._library.version})"
            )
        records = layout.read_records(raw, scan)
        work, apis = tables.work_of(records), tables.apis_of(records, noted=self.noted)
        if work is not None:
            self._add(self.work, self._without_canaries(work))
        if apis is not None:
            self._add(self.apis, self._wanted(apis))
        if self.order is not None:
            self.order.take(records)
        if self.tells_waits and not self.noted:
            self.waits.take(records)
        self.ranges.take(records)
        return {kind: records[kind] for kind in (layout.CONTEXT, layout.STREAM) if kind in records}

    def _add(self, parts: list[Columns], columns: Columns) -> None:
        parts.append(columns)
        self.count += len(columns["start"])

    def names_of(self, apis: Columns) -> tuple[Array, list[tuple[bool, str]]]:
        """Return row → code and code → whether a call is the runtime's, and its name."""
        numbers = apis["callback"].astype(np.int64) * 2 + apis["runtime"]
        codes, distinct = arrow.coded(numbers)
        names = []
        for number, runtime in (divmod(packed, 2) for packed in distinct):
            name = self._library.callback_name(RUNTIME_API if runtime else DRIVER_API, number)
            names.append((bool(runtime), name or f"call {number}"))
        return codes, names

    def launches(self, apis: Columns) -> Bools:
        """Whether each API call queued work, as far as its name tells."""
        launch: Bools = (apis["role"] <= BLOCKING) & (apis["returned"] == 0)
        return launch

    def _named(self, apis: Columns, wanted: Callable[[str], bool]) -> Bools:
        codes, names = self.names_of(apis)
        named: Bools = np.array([wanted(name) for _, name in names], bool)[codes]
        return named

    def _wanted(self, apis: Columns) -> Columns:
        """Leave out API calls that another recording asked for; tell what each does."""
        codes, names = self.names_of(apis)
        roles = np.array([role_of(name) for _, name in names], np.int64)
        apis["role"] = roles[codes]
        if self.which == "all":
            return apis
        if self.tells_waits:
            self.waits.end_events(tables.select(apis, apis["role"] == ENDS))
        self.captures |= any(is_capture(name) for _, name in names)
        domains = {"launches": (True, False), "runtime": (True,)}.get(self.which, ())
        wanted = [
            runtime in domains and role < OTHER and (self.noted or "Query" not in name)
            for role, (runtime, name) in zip(roles.tolist(), names, strict=True)
        ]
        chosen = np.array(wanted, bool)[codes]
        return apis if chosen.all() else tables.select(apis, chosen)

    def _without_canaries(self, work: Columns) -> Columns:
        """Leave canaries of all recordings out; learn from those of this one."""
        codes, addresses = arrow.coded(work["name"])
        named = np.array([self.kernel_name(address) == CANARY for address in addresses], bool)
        canaries = named[codes] if len(codes) else np.zeros(0, bool)
        if not canaries.any():
            return work
        self._flights.note(work, canaries)
        for canary in self.canaries:
            of_canary = (
                canaries & (work["config"][:, 0] == canary.tag) & (work["device"] == canary.device)
            )
            for row in np.flatnonzero(of_canary).tolist():
                canary.arrive(int(work["start"][row]), int(work["end"][row]))
        return tables.select(work, ~canaries)

    # -- what is the recording's own --------------------------------------------------
    def begin_here(self) -> None:
        """Forget what came before now: the recording begins behind its canaries."""
        self.first = max(map(self._flights.latest, self.canaries), default=0)
        if not self.canaries:  # without a device the latest number tells what was before
            numbers = [part["correlation"] for part in (*self.work, *self.apis)]
            self.first = max((int(part.max()) for part in numbers if len(part)), default=0)
        self.ranges.arrive = self.ranges.drop_canaries()
        for parts in (self.work, self.apis):
            parts.clear()
        self.waits.forget()
        self.count = 0
        self._completeness.counts["received"] = 0

    def graphs_without_work(self) -> bool:
        """Whether a graph was launched of which no work was delivered yet."""
        graphs = [
            part["correlation"][
                self._named(part, lambda name: "GraphLaunch" in name) & (part["returned"] == 0)
            ]
            for part in self.apis
        ]
        launched = np.concatenate([np.zeros(0, np.int64), *graphs])
        launched = launched[launched > self.first]
        if not len(launched):
            return False
        done = np.concatenate([np.zeros(0, np.int64), *(part["correlation"] for part in self.work)])
        return not np.isin(launched, done).all()

    def take_out(self, *, over: bool) -> tuple[Columns | None, Columns | None]:
        """Return the own work and API calls, but for those that wait for canaries under way."""
        work = tables.join_columns(self.work) if self.work else None
        apis = tables.join_columns(self.apis) if self.apis else None
        self.work, self.apis = [], []
        until = None if over else self._flights.under_way
        if until is not None:
            apis = self._until(until, apis, self.apis)
            work = self._until(until, work, self.work)
        return self._own(work, apis), self._own(apis, apis)

    def without_late(self, apis: Columns, rows: Rows) -> Columns:
        """Leave for later the API calls of which a call of ours may have no row yet."""
        since_ns = np.where(is_apart(apis), rows.own_since_ns, rows.open_since_ns)
        since_ns = np.maximum(np.minimum(since_ns, rows.open_since_ns), rows.wait_since_ns)
        late = (apis["start"].astype(np.int64) >= since_ns) & (not rows.over)
        if late.any():
            self.apis.append(tables.select(apis, late))
        return tables.select(apis, ~late) if late.any() else apis

    def _until(self, first: int, columns: Columns | None, later: list[Columns]) -> Columns | None:
        """Leave for later what came from a correlation on."""
        if columns is None:
            return None
        waits = columns["correlation"] >= first
        later.append(tables.select(columns, waits))
        return tables.select(columns, ~waits)

    def _own(self, columns: Columns | None, apis: Columns | None) -> Columns | None:
        """Leave out what was launched before the recording, and what recordings did."""
        if columns is None:
            return None
        new = tables.select(columns, columns["correlation"] > self.first)
        new = self._flights.without(new, apis)
        self.left_out += len(columns["start"]) - len(new["start"])
        return new
