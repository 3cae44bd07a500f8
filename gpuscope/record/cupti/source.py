"""What one recording makes of CUPTI's records: rows, linked to our calls, guards and partitions."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from gpuscope.device.calls import Call
from gpuscope.device.device import Device
from gpuscope.device.partition import Partition
from gpuscope.device.stream import Stream
from gpuscope.errors import GpuscopeError, RecorderBusy
from gpuscope.record import nvtx
from gpuscope.record.clock import ClockFit, ClockWatch
from gpuscope.record.cupti import layout, tables
from gpuscope.record.cupti.canary import NAME as CANARY
from gpuscope.record.cupti.canary import Canaries, Flights
from gpuscope.record.cupti.collector import Collector, get_collector
from gpuscope.record.cupti.library import (
    DRIVER_API,
    RUNTIME_API,
    is_launch,
    kernel_name,
)
from gpuscope.record.cupti.ranges import Ranges
from gpuscope.record.cupti.tables import Columns
from gpuscope.record.facts import stream_facts
from gpuscope.record.guards import UNSURE, SelectionLog
from gpuscope.record.rows import (
    Batch,
    Rows,
    call_row,
    freeze,
    keep,
    outside_row,
    together,
    work_row,
)
from gpuscope.trace import arrow, joins, schema
from gpuscope.trace.arrow import NONE, Array
from gpuscope.trace.metadata import StreamFacts

FOREIGN_STREAM = 1_000_000_000
"""Streams that are none of ours are numbered from here, by context and CUPTI's number."""
_STREAMS = 1_000_000
PER_THREAD_DEFAULT = 2
"""CUDA's handle of the per-thread default stream, another stream on each thread."""
_OPEN = np.iinfo(np.int64).max
_RECENT = 10_000
"""Calls that may yet have another API record."""
_GRAPHS_S = 3.0
"""How long the end of a recording waits for what graphs did."""
_NAP_S = 0.01
_tags = itertools.count()
_TAGS = 400


class CuptiSource:
    """Records everything that this process does on its GPUs.

    Parameters
    ----------
    devices
        Open devices, whose partitions and streams have names; may be none.
    detail
        ``"launches"``: of API calls those that launch, copy or set. ``"full"``: all of them,
        and synchronisations.
    launch_ids
        Whether API calls are recorded at all; ``"runtime"``: the CUDA runtime's alone.
    memory_limit
        Bytes of buffers at most; what does not fit is dropped and counted.
    """

    name = "cupti"

    def __init__(
        self,
        devices: tuple[Device, ...],
        *,
        detail: str,
        launch_ids: bool | Literal["runtime"],
        memory_limit: int,
        collector: Collector | None = None,
    ) -> None:
        self._devices = devices
        self._full = detail == "full"
        kinds: dict[Any, str] = {False: "none", True: "launches", "runtime": "runtime"}
        self._which = "all" if self._full else kinds[launch_ids]
        self.links = self._which != "none"
        """Whether work can be traced to the calls that launched it."""
        self._limit = memory_limit
        self._collector = collector or get_collector()
        self._sizes = self._collector.sizes
        self._raw: dict[int, Any] = {}  # number of a buffer → its bytes
        self._read_out: set[int] = set()
        """Numbers of the buffers that were read."""
        self._selections = SelectionLog(self._learn)
        self._canaries: list[Canaries] = []
        self._watch: ClockWatch | None = None
        self._calls: list[tuple[Call, dict[str, Any]]] = []
        self._work: list[Columns] = []
        self._apis: list[Columns] = []
        self._known: list[Columns] = []
        self._linked: list[Call] = []
        """Our calls that CUPTI's records were found for, in the order in which they were."""
        self._recent: list[int] = []
        self._begun: dict[int, None] = {}
        """Calls, by number, the first piece of whose work is a row already; in order."""
        self._ranges = Ranges()
        self._syncs: list[Columns] = []
        self._streams: dict[tuple[int, int], int] = {}
        self._handles: dict[int, str | None] = {}
        self._contexts: dict[int, list[tuple[int, str]]] = {}
        self._green: set[int] = set()
        self._seen_streams: set[tuple[str, int, int]] = set()
        self._seen_partitions: dict[int, Partition] = {}
        self.partition_contexts: dict[str, int] = {}
        """Partition → CUPTI's number of its context."""
        self.streams: dict[int, StreamFacts] = {}
        """Stream of the trace → facts, for every stream that work ran on."""
        self._stream_facts: dict[int, StreamFacts] = {}
        self._next = 1
        self._names: dict[int, str] = {}
        self._first = 0
        self._before = (0, 0)
        self._flights = Flights()
        self._records = self._told = self._left_out = 0
        """Records of work, calls and synchronisations: read, told, and not ours."""
        self._unfinished, self._waited = 0, True
        self._listens = self.finished = False
        """Whether it hears NVTX, and whether it records no more."""
        self.counts = {"received": 0, "dropped": 0, "unmatched": 0, "unread_bytes": 0}
        self.notes: list[str] = []
        self.complete = True

    # -- life -------------------------------------------------------------------------
    def start(self) -> None:
        """Begin to record, and see that records arrive.

        Raises
        ------
        RecorderBusy
            Another client of CUPTI records in this process.
        """
        with self._collector.flights:
            self._start()

    def _start(self) -> None:
        self._collector.begin(id(self), self._receive, apis=self._which, limit=self._limit)
        try:
            self._before = (self._collector.dropped, self._collector.refused)
            if self._full:
                self._collector.library.enable(layout.SYNCHRONIZATION)
            if self._collector.note:
                self.notes.append(self._collector.note)
            tag = 1 + next(_tags) % _TAGS
            cuda = [device for device in self._devices if device.info.kind == "cuda"]
            self._canaries = [Canaries(device, tag) for device in cuda]
            self._learn_all()
            self._collector.collect(forced=True)  # another recording's may fill all memory
            for one in self._canaries:
                one.send()
            nvtx.send_canary()
            self._take(forced=True)
            self._begin_behind_canaries()
            self._selections.open()
            self._watch = ClockWatch({"cupti": self._collector.library.now_ns})
            if self.sees_ranges:
                self._listens = True
                nvtx.listen(1)
        except BaseException as error:
            self._selections.close()
            self._collector.end(id(self), taken_over=isinstance(error, RecorderBusy))
            raise

    def _begin_behind_canaries(self) -> None:
        """Forget what came before now; refuse to start if the canaries did not arrive."""
        if any(not one.arrived for one in self._canaries):
            raise RecorderBusy(
                "CUPTI accepted the recording, but the records of a first kernel did not arrive: "
                "another tool has taken its buffers. End that tool first, or record with "
                "profile(source='events')"
            )
        self._first = max(map(self._flights.latest, self._canaries), default=0)
        if (
            not self._canaries
        ):  # no device of ours: what was launched until now is told by its number
            parts = [part["correlation"] for part in (*self._work, *self._apis)]
            self._first = max((int(part.max()) for part in parts if len(part)), default=0)
        self._ranges.arrive = self._ranges.drop_canaries()
        self._work.clear()
        self._apis.clear()
        self._syncs.clear()
        self._records = 0
        self.counts["received"] = 0

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Partitions that were alive at some time while it recorded."""
        return tuple(self._seen_partitions.values())

    @property
    def foreign_streams(self) -> list[int]:
        """Handles of other libraries' streams that guards selected, as far as they are held."""
        handles = []
        for stream in self._selections.streams.copy():
            if not isinstance(stream, Stream | int):  # a bare number may be a stream that is gone
                with contextlib.suppress(Exception):
                    handles.append(int(stream.__cuda_stream__()[1]))
        return handles

    @property
    def sees_ranges(self) -> bool:
        """Whether NVTX ranges reach CUPTI."""
        return self._ranges.arrive

    def finish(self, *, wait: bool) -> None:
        """Send the last canaries and take what is there; no more is recorded for us."""
        self._selections.close()
        if self._listens:
            self._listens = False
            nvtx.listen(-1)
        taken_over = False
        try:
            self._learn_all()
            self._waited = wait
            if wait:
                self._await_graphs()
                before = [one.arrived for one in self._canaries]
                with self._collector.flights:
                    for one in self._canaries:
                        one.send()
                    self._take(forced=True)
                after = [one.arrived for one in self._canaries]
                lost = bool(before) and before == after
                taken_over = lost and self._collector.refused == self._before[1]
            else:
                self._take(forced=True)
            self._account(wait=wait, taken_over=taken_over)
        except BaseException as error:
            self.complete = False
            self.notes.append(
                f"ending the recording failed ({type(error).__name__}): whether every record "
                "arrived was not verified"
            )
            with contextlib.suppress(GpuscopeError):  # the first error is the one to tell
                self._collector.collect(forced=True)
            raise
        finally:
            self._collector.end(id(self), taken_over=taken_over)
            self.finished = True

    def _await_graphs(self) -> None:
        """Wait until CUPTI delivered work of every launch of a graph, but not for ever."""
        until_s = time.monotonic() + _GRAPHS_S
        self._take(forced=False)
        while self._graphs_without_work() and time.monotonic() < until_s:
            time.sleep(_NAP_S)
            self._take(forced=False)

    def _graphs_without_work(self) -> bool:
        done = {int(one) for part in self._work for one in part["correlation"]}
        for part in self._apis:
            codes, names = self._names_of(part)
            graphs = np.array(["GraphLaunch" in name for _, name in names], bool)[codes]
            launched = part["correlation"][graphs & (part["returned"] == 0)].tolist()
            if any(number > self._first and number not in done for number in launched):
                return True
        return False

    def _account(self, *, wait: bool, taken_over: bool) -> None:
        refused = self._collector.refused - self._before[1]
        self.counts["dropped"] += self._collector.dropped - self._before[0]
        if taken_over:
            self.complete = False
            self.notes.append(
                "another CUPTI client took the recording over while it ran: the last canary "
                "kernels left no record, and what ran since then may be missing"
            )
        if refused:
            self.complete = False
            self.notes.append(
                f"the memory limit of {self._limit} bytes was reached {refused} times: "
                f"{self.counts['dropped']} records were dropped; raise memory_limit, or read "
                "batches() while recording"
            )
        elif self.counts["dropped"]:
            self.complete = False
            self.notes.append(f"CUPTI dropped {self.counts['dropped']} records")
        if not wait and self._canaries:
            self.notes.append(
                "stopped without waiting: whether every record arrived was not verified"
            )

    def close(self) -> dict[str, dict[str, float]]:
        """Return each clock's calibration."""
        facts: dict[str, dict[str, float]] = {}
        if self._watch is not None:
            self.notes += self._watch.close()
            facts["cupti"] = self._watch.fits["cupti"].facts()
        for one in self._canaries:
            if one.globaltimer.samples:
                facts[f"globaltimer cuda:{one.device}"] = one.globaltimer.facts()
        return facts

    def globaltimer(self, device: int) -> ClockFit:
        """Return how %globaltimer of a device stands to the recording's clock."""
        found = (one.globaltimer for one in self._canaries if one.device == device)
        return next(found, ClockFit())

    # -- what is told while it runs ---------------------------------------------------
    def before(self, call: Call) -> None:
        """Look at the stream while it is alive."""
        for stream in (call.stream, call.intended):
            if stream is not None and not stream.closed:
                thread = call.thread if stream.handle == PER_THREAD_DEFAULT else 0
                key = (call.device_key, stream.id, thread)
                if key not in self._seen_streams:
                    self._learn(stream)
                    self._seen_streams.add(key)

    def after(self, call: Call) -> None:
        """Nothing: CUPTI times it."""

    def hold(self, call: Call, columns: dict[str, Any]) -> None:
        """Keep a launch's row until CUPTI's record of the call is there."""
        self._calls.append((call, columns))

    def _learn(self, stream: Any) -> None:
        """Find CUPTI's numbers for a stream of ours, and for its partition's context."""
        if not isinstance(stream, Stream) or stream.closed or stream.device.info.kind != "cuda":
            return
        partition = stream.partition
        raw = partition.raw if partition is not None else None
        context = stream.device.backend.context_handle(raw)
        library = self._collector.library
        try:
            number = library.context_id(context)
            per_thread = stream.handle == PER_THREAD_DEFAULT
            handle = 0 if per_thread else stream.handle
            self._streams[number, library.stream_id(context, handle, per_thread=per_thread)] = (
                stream.id
            )
        except Exception:  # noqa: BLE001 - closed meanwhile: its work has CUPTI's numbers only
            return
        name = partition.name if partition is not None else None
        self._handles[stream.handle] = name
        self._stream_facts[stream.id] = stream_facts(stream)
        if partition is not None:
            self._learn_partition(partition)

    def _learn_partition(self, partition: Partition) -> None:
        if id(partition) in self._seen_partitions or partition.closed:
            return
        handle = partition.device.backend.context_handle(partition.raw)
        number = self._collector.library.context_id(handle)
        entries = self._contexts.setdefault(number, [])
        entries.append((time.time_ns() if entries else 0, partition.name))
        self._green.add(number)
        self.partition_contexts[partition.name] = number
        self._seen_partitions[id(partition)] = partition  # held, so that its id stays its own

    def _learn_all(self) -> None:
        """Look at what is alive: other libraries launch there without telling us."""
        for device in self._devices:
            if device.info.kind != "cuda":
                continue
            for partition in device.partitions:
                self._learn_partition(partition)
            for stream in device.streams:
                key = (device.info.key, stream.id, 0)
                if key not in self._seen_streams and stream.handle != PER_THREAD_DEFAULT:
                    self._learn(stream)
                    self._seen_streams.add(key)

    # -- from bytes to arrays ---------------------------------------------------------
    def _receive(self, number: int, records: Any) -> None:
        """Keep a buffer until it is read; the collector may give one again."""
        if number not in self._read_out:
            self._raw[number] = records

    def _take(self, *, forced: bool) -> None:
        """Have the collector hand over, and read what it handed."""
        self._collector.collect(forced=forced)
        self._read_buffers()

    def _read_buffers(self) -> None:
        """Read the buffers that are there, in order: each once, whatever fails."""
        for number in sorted(self._raw.copy()):
            if number in self._read_out:  # it was interrupted before it was let go
                self._raw.pop(number, None)
                continue
            undo = self._keep()
            try:
                self._read_buffer(self._raw[number])
                self._read_out.add(number)
            except BaseException:
                if number not in self._read_out:
                    undo()
                raise
            self._raw.pop(number, None)

    def _read_buffer(self, raw: Any) -> None:
        found = layout.find_records(raw, self._sizes)
        self.counts["received"] += sum(len(offsets) for offsets in found.offsets.values())
        if found.unread and (found.unread_kind or raw[-found.unread :].any()):
            known = "cut-short" if found.unread_kind in self._sizes else "unknown"
            self.counts["unread_bytes"] += found.unread
            self.complete = False
            self.notes.append(
                f"{found.unread} bytes from a record of {known} kind {found.unread_kind} on "
                f"were not read (CUPTI API version {self._collector.library.version})"
            )
        records = layout.read_records(raw, found)
        work, apis = tables.work_of(records), tables.apis_of(records)
        taken: list[Columns] = []
        if work is not None:
            self._work.append(self._without_canaries(work))
            taken.append(self._work[-1])
        if apis is not None:
            self._apis.append(self._wanted(apis))
            taken.append(self._apis[-1])
        self._ranges.take(records)
        if self._full and layout.SYNCHRONIZATION in records:
            self._syncs.append(records[layout.SYNCHRONIZATION])
            taken.append(self._syncs[-1])
        self._records += sum(len(one["start"]) for one in taken)
        if layout.CONTEXT in records:
            contexts = records[layout.CONTEXT]
            self._green.update(contexts["context"][contexts["is_green"] != 0].tolist())

    def _keep(self) -> Callable[[], None]:
        """Return what undoes all that reading changes next."""
        linked, begun = len(self._linked), len(self._begun)

        def shorten() -> None:
            del self._linked[linked:]
            while len(self._begun) > begun:
                self._begun.popitem()

        return together(
            keep(
                self, "_calls", "_work", "_apis", "_known", "_recent", "_syncs", "_next",
                "_records", "_told", "_left_out", "_unfinished",
                "counts", "notes", "complete",
            ),
            self._ranges.keep(), self._flights.keep(), *(one.keep() for one in self._canaries),
            shorten,
        )  # fmt: skip

    def begin_reading(self) -> Callable[[], None]:
        """Take in what has come; returns what undoes all that :meth:`drain` does next."""
        if not self.finished:
            self._learn_all()
            self._collector.collect(forced=False)
        self._read_buffers()
        return self._keep()

    def settle(self) -> None:
        """Nothing: what was handed out is forgotten already."""

    def _names_of(self, apis: Columns) -> tuple[Array, list[tuple[bool, str]]]:
        """Return row → code and code → whether a call is the runtime's, and its name."""
        numbers = apis["callback"].astype(np.int64) * 2 + apis["runtime"]
        codes, distinct = arrow.coded(numbers)
        name_of = self._collector.library.callback_name
        return codes, [
            (bool(one % 2), name_of(RUNTIME_API if one % 2 else DRIVER_API, one // 2)
             or f"call {one // 2}")
            for one in distinct
        ]  # fmt: skip

    def _wanted(self, apis: Columns) -> Columns:
        """Leave out API calls that another recording asked for."""
        if self._full:
            return apis
        codes, names = self._names_of(apis)
        wanted = [
            is_launch(name)
            and (self._which == "launches" or (self._which == "runtime" and runtime))
            for runtime, name in names
        ]
        keep = np.array(wanted, bool)[codes]
        return apis if keep.all() else tables.select(apis, keep)

    def _without_canaries(self, work: Columns) -> Columns:
        """Leave canaries of all recordings out; learn from those of this one."""
        codes, addresses = arrow.coded(work["name"])
        named = np.array([self._name(int(one)) == CANARY for one in addresses], bool)
        canaries = named[codes] if len(codes) else np.zeros(0, bool)
        if not canaries.any():
            return work
        self._flights.note(work, canaries)
        for one in self._canaries:
            mine = canaries & (work["config"][:, 0] == one.tag) & (work["device"] == one.device)
            for row in np.flatnonzero(mine).tolist():
                one.arrive(int(work["start"][row]), int(work["end"][row]))
        return tables.select(work, ~canaries)

    def _until(
        self, first: int, apis: Columns | None, work: Columns | None
    ) -> tuple[Columns | None, Columns | None]:
        """Leave for later what came from a correlation on."""
        if apis is not None:
            later = apis["correlation"] >= first
            self._apis.append(tables.select(apis, later))
            apis = tables.select(apis, ~later)
        if work is not None:
            later = work["correlation"] >= first
            self._work.append(tables.select(work, later))
            work = tables.select(work, ~later)
        return apis, work

    def _name(self, address: int) -> str:
        name = self._names.get(address)
        if name is None:
            name = self._names[address] = kernel_name(address)
        return name

    # -- from arrays to rows ----------------------------------------------------------
    def drain(self, *, over: bool, open_since_ns: int, host_rows: Rows) -> list[Batch]:
        """Return what is complete as batches.

        Parameters
        ----------
        over
            The recording has ended: return everything, also what has no partner.
        open_since_ns
            Host calls that began since then may not have returned: what they launched waits.
        host_rows
            The recorder's own rows of this batch: those without a parent get the NVTX range
            around them.
        """
        calls, self._calls = self._calls, []
        apis = tables.join_columns(self._apis) if self._apis else None
        work = tables.join_columns(self._work) if self._work else None
        self._apis, self._work = [], []
        if not over and (first := self._flights.under_way) is not None:
            apis, work = self._until(first, apis, work)
        every = apis
        if apis is not None:
            apis = self._own(apis, every)
        if work is not None:
            work = self._own(work, every)
        batches = []
        range_rows = self._ranges.rows(over=over)
        if range_rows is not None:
            batches.append(Batch(range_rows, schema.table({}, schema.EDGE_TYPES)))
        self._name_parents(host_rows.spans)
        batches += self._joined(work, apis, calls, over=over, open_since_ns=open_since_ns)
        if over and self._syncs:
            batches.append(self._sync_batch(tables.join_columns(self._syncs)))
            self._syncs = []
        if over:
            self._check()
        return batches

    def _own(self, columns: Columns, apis: Columns | None) -> Columns:
        """Leave out what was launched before the recording, and what recordings did."""
        own = tables.select(columns, columns["correlation"] > self._first)
        own = self._flights.without(own, apis)
        self._left_out += len(columns["start"]) - len(own["start"])
        return own

    def _check(self) -> None:
        """See that every record that was read is told, and that work has an end."""
        if self._unfinished:
            self.counts["unfinished"] = self._unfinished
            if self._waited:
                self.complete = False
                self.notes.append(f"{self._unfinished} pieces of work have no end")
        lost = self._records - self._told - self._left_out
        if lost:
            self.counts["dropped"] += abs(lost)
            self.complete = False
            self.notes.append(
                f"{self._records} records were read, {self._left_out} of them not the "
                f"recording's own, but {self._told} are told"
            )

    def _joined(
        self,
        work: Columns | None,
        apis: Columns | None,
        calls: list[tuple[Call, dict[str, Any]]],
        *,
        over: bool,
        open_since_ns: int,
    ) -> list[Batch]:
        if not self.links:
            held = [columns for _, columns in calls]
            batches = [freeze(Rows(held, []))] if held else []
            if work is not None and len(work["start"]):
                batches.append(self._work_batch(work, None, None))
            return batches
        if apis is None:
            apis = _no_apis()
        if not over:
            late = apis["start"].astype(np.int64) >= open_since_ns
            if late.any():
                self._apis.append(tables.select(apis, late))
                apis = tables.select(apis, ~late)
        self._told += len(apis["start"])
        found = self._link(apis, calls)
        apis["row"], apis["call"] = self._rows_of_apis(apis["call"]), apis["call"]
        held = [columns for number, (_, columns) in enumerate(calls) if over or number in found]
        rest = [pair for number, pair in enumerate(calls) if number not in found]
        if not over:  # their records come later
            self._calls = rest
        self._name_parents(held)
        batches = [freeze(Rows(held, []))] if held else []
        outside = apis["call"] == NONE
        if outside.any():
            batches.append(self._api_batch(tables.select(apis, outside)))
        if work is not None and len(work["start"]):
            batches += self._with_launches(work, apis, over=over)
        keep = ("correlation", "row", "call", "thread", "process", "start", "end")
        if len(apis["row"]):
            self._known.append({name: apis[name] for name in keep})
        if over:
            self._count_unmatched([call for call, _ in rest])
        return batches

    def _count_unmatched(self, calls: list[Call]) -> None:
        if self._which == "runtime":
            return  # launches through the driver's calls have no record
        lost = [call for call in calls if call.kind == "launch"]
        self.counts["unmatched"] += len(lost)
        if lost:
            self.complete = False
            self.notes.append(
                f"{len(lost)} of our launches have no record (the first: {lost[0].name!r})"
            )

    def _link(self, apis: Columns, calls: list[tuple[Call, dict[str, Any]]]) -> set[int]:
        """Find the call of ours that each API call was made in: a number of ``_linked``.

        Calls of earlier batches count, too: the records of one call may come in two. Gives the
        rows of ``calls`` the times that CUPTI saw, and returns the numbers of those found.
        """
        recent = self._recent
        candidates = [self._linked[number] for number in recent] + [call for call, _ in calls]
        apis["call"] = np.full(len(apis["start"]), NONE, np.int64)
        if not candidates:
            return set()
        middle = (apis["start"].astype(np.int64) + apis["end"].astype(np.int64)) // 2
        place = joins.innermost(
            apis["thread"],
            middle,
            np.array([call.thread for call in candidates], np.int64),
            np.array([call.start_ns for call in candidates], np.int64),
            np.array([call.end_ns or call.start_ns for call in candidates], np.int64),
        )
        number_of = np.array([*recent, *[NONE] * len(calls)], np.int64)
        inside = np.flatnonzero(place >= len(recent))
        inside = inside[np.argsort(apis["start"][inside], kind="stable")]
        new, first = np.unique(place[inside], return_index=True)
        times = (apis[name][inside[first]].tolist() for name in ("start", "end", "correlation"))
        for at, start, end, correlation in zip(new.tolist(), *times, strict=True):
            call, columns = calls[at - len(recent)]
            columns.update(start_ns=start, end_ns=end, correlation=correlation, source="cupti")
            number_of[at] = len(self._linked)
            self._linked.append(call)
        apis["call"] = np.where(place >= 0, number_of[np.maximum(place, 0)], NONE)
        self._recent = number_of[number_of >= 0].tolist()[-_RECENT:]
        return {at - len(recent) for at in new.tolist()}

    def _rows_of_apis(self, call_of: Array) -> Array:
        """Return the row of each API call: our call's, where it was made in one."""
        rows = self._fresh(len(call_of))
        linked = call_of >= 0
        if linked.any():
            used, where = np.unique(call_of[linked], return_inverse=True)
            numbers = [self._linked[number].correlation for number in used.tolist()]
            rows[linked] = call_row(np.array(numbers, np.int64))[where]
        return rows

    def _fresh(self, count: int) -> Array:
        first, self._next = self._next, self._next + count
        return outside_row(np.arange(first, first + count, dtype=np.int64))

    def _api_batch(self, apis: Columns) -> Batch:
        count = len(apis["start"])
        codes, names = self._names_of(apis)
        start = apis["start"].astype(np.int64)
        failed = apis["returned"] != 0
        parents = self._ranges.around(apis["thread"], start)
        columns = {
            "id": apis["row"],
            "parent": arrow.nullable(parents, parents == NONE),
            "kind": arrow.constant("api", count),
            "name": arrow.text_column(codes, [name for _, name in names]),
            "start_ns": start,
            "end_ns": apis["end"].astype(np.int64),
            "process": apis["process"].astype(np.int64),
            "thread": apis["thread"].astype(np.int64),
            "correlation": apis["correlation"].astype(np.int64),
            "status": arrow.text_column(
                np.where(failed, 0, NONE), ["failed"]) if failed.any() else None,
            "source": arrow.constant("cupti", count),
        }  # fmt: skip
        return Batch(arrow.table(columns, count), schema.table({}, schema.EDGE_TYPES))

    def _with_launches(self, work: Columns, apis: Columns, *, over: bool) -> list[Batch]:
        """Return batches of work with the calls that launched it; what has none waits."""
        batches = []
        for calls in (apis, *([tables.join_columns(self._known)] if self._known else [])):
            at = joins.match(work["correlation"], calls["correlation"])
            found = at >= 0
            if found.any():
                mine = work if found.all() else tables.select(work, found)
                batches.append(self._work_batch(mine, calls, at[found]))
                work = tables.select(work, ~found)
            if not len(work["start"]):
                return batches
        if over:
            batches.append(self._work_batch(work, None, None))
        else:
            self._work.append(work)
        return batches

    def _work_batch(self, work: Columns, apis: Columns | None, places: Array | None) -> Batch:
        """Return rows of work.

        Parameters
        ----------
        apis, places
            API calls, and which of them launched each; ``None`` where that is not known.
        """
        count = len(work["start"])
        self._told += count
        self._unfinished += int((work["end"] == 0).sum())
        start = work["start"].astype(np.int64)
        launch_start = start
        columns = tables.work_columns(work, self._name)
        rows = self._fresh(count)
        edges = schema.table({}, schema.EDGE_TYPES)
        if apis is not None and places is not None:
            launch_start = apis["start"][places].astype(np.int64)
            columns["process"] = apis["process"][places].astype(np.int64)
            columns["thread"] = apis["thread"][places].astype(np.int64)
            columns["queued_ns"] = apis["end"][places].astype(np.int64)
            selected = self._selections.selected(
                apis["thread"], apis["start"].astype(np.int64)
            )[places]  # fmt: skip
            columns.update(self._from_calls(work, rows, apis["call"][places], selected))
            edges = pa.table({
                "from": pa.array(apis["row"][places]), "to": pa.array(rows),
                "kind": arrow.constant("launch", count),
            }).cast(pa.schema(list(schema.EDGE_TYPES.items())))  # fmt: skip
        unknown = start == 0  # CUPTI could not time it: it began at its launch or later
        columns["id"] = rows
        columns["start_ns"] = np.where(unknown, launch_start, start)
        columns["device_uuid"] = self._uuids(work["device"])
        columns["stream"] = self._stream_column(work)
        columns.update(self._where(work, launch_start))
        return Batch(arrow.table(columns, count), edges)

    def _from_calls(
        self, work: Columns, rows: Array, call_of: Array, selected: Array
    ) -> dict[str, Any]:
        """Return what our calls know of their work, and who it was given to.

        One piece of a call's work has the row that follows from the call's number, and its
        amounts: the kernel that was launched first; where there is none, what was queued
        first. (cuBLAS clears a few bytes before some GEMMs.) ``rows`` is changed.
        """
        linked = call_of >= 0
        used, where = np.unique(call_of[linked], return_inverse=True)
        calls = [self._linked[number] for number in used.tolist()]
        which = np.full(len(call_of), NONE, np.int64)
        which[linked] = where
        inside = np.flatnonzero(linked)
        other = work["work"][inside] != tables.KERNEL
        inside = inside[np.lexsort((work["correlation"][inside], other))]
        _, first = np.unique(which[inside], return_index=True)
        firsts = inside[first]
        new = np.array([number not in self._begun for number in used.tolist()], bool)
        self._begun.update(dict.fromkeys(used.tolist()))
        correlations = np.array([call.correlation for call in calls], np.int64)
        firsts = firsts[new] if len(new) else firsts
        rows[firsts] = work_row(correlations[which[firsts]])
        columns: dict[str, Any] = {"intended_partition": self._intended(which, calls, selected)}
        if not calls:
            return columns
        names: list[str | None] = list(dict.fromkeys(call.workload for call in calls))
        codes = np.array([names.index(call.workload) for call in calls], np.int64)
        columns["category"] = arrow.text_column(np.where(linked, codes[which], NONE), names)
        columns["external_correlation"] = arrow.nullable(
            np.where(linked, correlations[which], NONE), ~linked
        )
        is_first = np.zeros(len(call_of), bool)
        is_first[firsts] = True
        moved = work["work"] != tables.KERNEL
        for name in ("flop_count", "nbytes"):
            amounts = [getattr(call, name) for call in calls]
            stated = np.array([NONE if one is None else one for one in amounts], np.int64)
            mine = np.where(linked, stated[which], NONE)
            mine = np.where(is_first | (mine == NONE), mine, 0)  # of several pieces, one
            if name == "nbytes":
                mine = np.where(moved, work["bytes"].astype(np.int64), mine)
            if (mine >= 0).any():
                columns[name] = arrow.nullable(mine, mine < 0)
        return columns

    def _uuids(self, devices: Array) -> Any:
        known = {device.info.index: device.info.uuid for device in self._devices}
        codes, numbers = arrow.coded(devices)
        return arrow.text_column(codes, [known.get(int(number)) for number in numbers])

    def _stream_column(self, work: Columns) -> Array:
        """Return our number of each stream; one that is none of ours has CUPTI's, moved up."""
        both = work["context"].astype(np.int64) << 32 | work["stream"].astype(np.int64)
        codes, distinct = arrow.coded(both)
        numbers = []
        for one in distinct:
            context, stream = one >> 32, one & 0xFFFFFFFF
            number = self._streams.get((context, stream))
            if number is None:
                number = FOREIGN_STREAM + context * _STREAMS + stream
                self.streams[number] = StreamFacts(
                    name=f"stream {stream} of context {context}",
                    partition=self._partition_at(context, _OPEN),
                )
            else:
                self.streams[number] = self._stream_facts[number]
            numbers.append(number)
        return np.array(numbers, np.int64)[codes]

    def _partition_at(self, context: int, time_ns: int) -> str | None:
        name = None
        for since, partition in self._contexts.get(context, ()):
            if since <= time_ns:
                name = partition
        return name

    def _where(self, work: Columns, launched: Array) -> dict[str, Any]:
        """Return partition and green context of each piece of work."""
        contexts = work["context"].astype(np.int64)
        codes, distinct = arrow.coded(contexts)
        names = [self._partition_at(context, _OPEN) for context in distinct]
        texts, text_codes = list(names), codes.astype(np.int64)
        for number, context in enumerate(distinct):  # a context that was carved again
            entries = self._contexts.get(context, [])
            for position, (since, name) in enumerate(entries[:-1]):
                until = entries[position + 1][0]
                text_codes[(codes == number) & (launched >= since) & (launched < until)] = len(
                    texts
                )
                texts.append(name)
        green = np.array([context in self._green for context in distinct], bool)[codes]
        columns: dict[str, Any] = {"partition": arrow.text_column(text_codes, texts)}
        if green.any():
            columns["green_context"] = arrow.nullable(contexts, ~green)
        return columns

    def _intended(self, which: Array, calls: list[Call], selected: Array) -> Any:
        """Return the partition that each launch was given to: our call's, else the guard's."""
        of_streams = [self._partition_of(stream) for stream in self._selections.streams]
        meant = [call.intended.partition if call.intended is not None else None for call in calls]
        texts = [*of_streams, *(one.name if one is not None else None for one in meant)]
        codes = np.where(selected >= 0, selected, NONE)
        codes = np.where(which >= 0, len(of_streams) + which, codes)
        unsure = int(((selected == UNSURE) & (which == NONE)).sum())
        if unsure:
            self.counts["in_shared_tasks"] = self.counts.get("in_shared_tasks", 0) + unsure
        return arrow.text_column(*_distinct(codes, texts))

    def _partition_of(self, stream: Any) -> str | None:
        if isinstance(stream, Stream):
            return stream.partition.name if stream.partition is not None else None
        try:
            handle = stream if isinstance(stream, int) else int(stream.__cuda_stream__()[1])
        except Exception:  # noqa: BLE001 - a foreign stream that is gone
            return None
        return self._handles.get(handle)

    def _name_parents(self, rows: list[dict[str, Any]]) -> None:
        """Give host rows without a parent the NVTX range around them."""
        alone = [row for row in rows if row["parent"] is None and row["kind"] != "range"]
        if not alone or not self.sees_ranges:
            return
        around = self._ranges.around(
            np.array([row["thread"] for row in alone], np.int64),
            np.array([row["start_ns"] for row in alone], np.int64),
        )
        for row, parent in zip(alone, around.tolist(), strict=True):
            row["parent"] = None if parent == NONE else parent

    def _sync_batch(self, syncs: Columns) -> Batch:
        """Return rows of synchronisations; only ``detail="full"`` records them."""
        known = tables.join_columns(self._known) if self._known else None
        count = len(syncs["start"])
        self._told += count
        columns: dict[str, Any] = {
            "id": self._fresh(count),
            "kind": arrow.constant("sync", count),
            "name": tables.sync_names(syncs["type"]),
            "start_ns": syncs["start"].astype(np.int64),
            "end_ns": syncs["end"].astype(np.int64),
            "correlation": syncs["correlation"].astype(np.int64),
            "source": arrow.constant("cupti", count),
        }
        if known is not None:
            at = joins.match(syncs["correlation"], known["correlation"])
            for name in ("process", "thread"):
                columns[name] = arrow.nullable(known[name][np.maximum(at, 0)], at < 0)
        return Batch(arrow.table(columns, count), schema.table({}, schema.EDGE_TYPES))


def _no_apis() -> Columns:
    empty = np.zeros(0, np.int64)
    names = ("callback", "start", "end", "process", "thread", "correlation", "returned", "runtime")
    return {name: empty.copy() for name in names}


def _distinct(codes: Array, texts: list[str | None]) -> tuple[Array, list[str | None]]:
    """Return the same with each text once."""
    unique = list(dict.fromkeys(texts))
    place = {text: number for number, text in enumerate(unique)}
    new = np.array([place[text] for text in texts] or [NONE], np.int64)
    return np.where(codes >= 0, new[np.maximum(codes, 0)], NONE), unique
