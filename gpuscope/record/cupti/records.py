"""CUPTI's records of one recording, from the bytes of a buffer until a row tells of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuscope._types import Array
from gpuscope.record.cupti import layout, tables
from gpuscope.record.cupti.canary import NAME as CANARY
from gpuscope.record.cupti.canary import Canaries, Flights
from gpuscope.record.cupti.library import DRIVER_API, RUNTIME_API, Library, is_launch, kernel_name
from gpuscope.record.cupti.ranges import Ranges
from gpuscope.record.cupti.tables import Columns
from gpuscope.record.rows import keep, together
from gpuscope.record.source import Completeness
from gpuscope.trace import arrow


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

    Attributes
    ----------
    work, apis, syncs
        What was read and is not rows yet, a part of each buffer.
    canaries
        The recording's own, of each device.
    count, left_out
        Records of work, calls and synchronisations: how many were read, and how many of these
        were not the recording's own.
    first
        Correlation of the last call before the recording.
    """

    def __init__(self, library: Library, which: str, found: Completeness) -> None:
        self._library = library
        self._sizes = layout.record_sizes(library.version)
        self._which = which
        self._found = found
        self.work: list[Columns] = []
        self.apis: list[Columns] = []
        self.syncs: list[Columns] = []
        self.ranges = Ranges()
        self.canaries: list[Canaries] = []
        self._flights = Flights()
        self._names: dict[int, str] = {}
        self.count = self.left_out = self.first = 0

    def keep(self) -> Callable[[], None]:
        """Return what undoes all that reading changes next."""
        own = keep(self, "work", "apis", "syncs", "count", "left_out")
        of_canaries = (canaries.keep() for canaries in self.canaries)
        return together(own, self.ranges.keep(), self._flights.keep(), *of_canaries)

    # -- from bytes -------------------------------------------------------------------
    def read(self, raw: Array) -> set[int]:
        """Take the records of a buffer; returns the green contexts that they tell of."""
        found = layout.find_records(raw, self._sizes)
        self._found.add("received", sum(len(offsets) for offsets in found.offsets.values()))
        if found.unread and (found.unread_kind or raw[-found.unread :].any()):
            known = "cut-short" if found.unread_kind in self._sizes else "unknown"
            self._found.add("unread_bytes", found.unread)
            self._found.lost(
                f"{found.unread} bytes from a record of {known} kind {found.unread_kind} on "
                f"were not read (CUPTI API version {self._library.version})"
            )
        records = layout.read_records(raw, found)
        work, apis = tables.work_of(records), tables.apis_of(records)
        if work is not None:
            self._add(self.work, self._without_canaries(work))
        if apis is not None:
            self._add(self.apis, self._wanted(apis))
        if self._which == "all" and layout.SYNCHRONIZATION in records:
            self._add(self.syncs, records[layout.SYNCHRONIZATION])
        self.ranges.take(records)
        contexts = records.get(layout.CONTEXT)
        return set(contexts["context"][contexts["is_green"] != 0].tolist()) if contexts else set()

    def _add(self, parts: list[Columns], columns: Columns) -> None:
        parts.append(columns)
        self.count += len(columns["start"])

    def names_of(self, apis: Columns) -> tuple[Array, list[tuple[bool, str]]]:
        """Return row → code and code → whether a call is the runtime's, and its name."""
        numbers = apis["callback"].astype(np.int64) * 2 + apis["runtime"]
        codes, distinct = arrow.coded(numbers)
        name_of = self._library.callback_name
        return codes, [
            (bool(number % 2), name_of(RUNTIME_API if number % 2 else DRIVER_API, number // 2)
             or f"call {number // 2}")
            for number in distinct
        ]  # fmt: skip

    def kernel_name(self, address: int) -> str:
        """Return a kernel's name from the address in its record."""
        name = self._names.get(address)
        if name is None:
            name = self._names[address] = kernel_name(address)
        return name

    def _wanted(self, apis: Columns) -> Columns:
        """Leave out API calls that another recording asked for."""
        if self._which == "all":
            return apis
        codes, names = self.names_of(apis)
        wanted = [
            is_launch(name)
            and (self._which == "launches" or (self._which == "runtime" and runtime))
            for runtime, name in names
        ]
        chosen = np.array(wanted, bool)[codes]
        return apis if chosen.all() else tables.select(apis, chosen)

    def _without_canaries(self, work: Columns) -> Columns:
        """Leave canaries of all recordings out; learn from those of this one."""
        codes, addresses = arrow.coded(work["name"])
        named = np.array([self.kernel_name(int(at)) == CANARY for at in addresses], bool)
        canaries = named[codes] if len(codes) else np.zeros(0, bool)
        if not canaries.any():
            return work
        self._flights.note(work, canaries)
        for own in self.canaries:
            mine = canaries & (work["config"][:, 0] == own.tag) & (work["device"] == own.device)
            for row in np.flatnonzero(mine).tolist():
                own.arrive(int(work["start"][row]), int(work["end"][row]))
        return tables.select(work, ~canaries)

    # -- what is the recording's own --------------------------------------------------
    def begin_here(self) -> None:
        """Forget what came before now: the recording begins behind its canaries."""
        self.first = max(map(self._flights.latest, self.canaries), default=0)
        if not self.canaries:  # without a device the latest number tells what was before
            numbers = [part["correlation"] for part in (*self.work, *self.apis)]
            self.first = max((int(part.max()) for part in numbers if len(part)), default=0)
        self.ranges.arrive = self.ranges.drop_canaries()
        for parts in (self.work, self.apis, self.syncs):
            parts.clear()
        self.count = 0
        self._found.counts["received"] = 0

    def graphs_without_work(self) -> bool:
        """Whether a graph was launched of which no work was delivered yet."""
        done = {int(number) for part in self.work for number in part["correlation"]}
        for part in self.apis:
            codes, names = self.names_of(part)
            graphs = np.array(["GraphLaunch" in name for _, name in names], bool)[codes]
            launched = part["correlation"][graphs & (part["returned"] == 0)].tolist()
            if any(number > self.first and number not in done for number in launched):
                return True
        return False

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
        own = tables.select(columns, columns["correlation"] > self.first)
        own = self._flights.without(own, apis)
        self.left_out += len(columns["start"]) - len(own["start"])
        return own
