"""The CUPTI source: records everything that this process does on its GPUs."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from gpuscope._libcupti import NVTX_INJECTION
from gpuscope._types import Array
from gpuscope.device.calls import Call
from gpuscope.device.device import Device
from gpuscope.device.handles import raw_handle
from gpuscope.device.stream import Stream
from gpuscope.device.views import StreamView
from gpuscope.errors import GpuscopeError, RecorderBusy
from gpuscope.record import nvtx
from gpuscope.record.clock import ClockFit, ClockWatch
from gpuscope.record.cupti import order
from gpuscope.record.cupti.afar import BufferFacts
from gpuscope.record.cupti.collector import BY_NODE, get_collector
from gpuscope.record.cupti.journal import Journal, Stored
from gpuscope.record.cupti.links import Links
from gpuscope.record.cupti.order import EventOrder
from gpuscope.record.cupti.places import PlaceNumbers
from gpuscope.record.cupti.records import Canaries, Records
from gpuscope.record.guards import SelectionLog
from gpuscope.record.rows import Edge, Row, Rows, together
from gpuscope.record.source import Calibration, Completeness, Options, Ordered, Source, SourceFacts

_PATIENCE_S = 3.0
"""How long a recording waits for records that CUPTI does not hand over yet."""
_NAP_S = 0.01
_PART = 16
"""Of what waits in a file, so many buffers are read at a time: it may not fit into memory."""
_tags = itertools.count()
_TAGS = 400
_API_CALLS: Mapping[bool | str, str] = {False: "none", True: "launches", "runtime": "runtime"}
_GRAPH_PERIODS_NS = {"nodes": BY_NODE, "launch": 0, "sampled": 1_000_000_000}


class CuptiSource(Source):
    """The life of a recording with CUPTI: from buffers to :class:`Records` to rows.

    Parameters
    ----------
    devices
        Open devices, whose partitions and streams have names; may be none.
    options
        Which API calls to record (``detail="full"``: all of them, and synchronisations), and in
        how much memory: what does not fit is dropped and counted.
    """

    name = "cupti"
    timed_kinds = frozenset({"launch", "copy", "setup"})
    rows_at_once = sys.maxsize  # all of them get the NVTX range around them
    compares_clocks = numbers_calls = may_lack_work = True
    edges = ()

    def __init__(self, devices: tuple[Device, ...], options: Options) -> None:
        self._cuda = [device for device in devices if device.info.kind == "cuda"]
        self._which = "all" if options.detail == "full" else _API_CALLS[options.launch_ids]
        self._limit = options.memory_limit
        self._graphs = options.graphs
        self._collector = get_collector()
        library = self._collector.library
        counts = dict.fromkeys(("received", "dropped", "unmatched", "unread_bytes"), 0)
        self._completeness = Completeness(counts)
        self._raw: dict[int, Array | Stored] = {}
        """Number of a buffer → its bytes, or where they are in the journal."""
        self._read_out: set[int] = set()
        """Numbers of the buffers that were read."""
        self._places = PlaceNumbers(devices, library)
        self._selections = SelectionLog(self._places.learn)
        self._order = EventOrder() if options.hazards else None
        self._records = Records(library, self._which, self._completeness, order=self._order)
        link_inputs = (self._records, self._places, self._selections, self._completeness)
        self._links = Links(*link_inputs, all_calls=self._which != "runtime")
        self._tag = 1 + next(_tags) % _TAGS
        self._journal: Journal | None = None
        self._watch: ClockWatch | None = None
        self._before = (0, 0)
        self._waited = True
        self._since_ns = 0
        """What ended before is left out."""
        self._listens = self._records_now = False
        """Whether it hears NVTX, and whether the collector collects for it."""

    # -- life -------------------------------------------------------------------------
    def start(self) -> None:
        """Begin to record, and see that records arrive.

        Raises
        ------
        RecorderBusy
            Another client of CUPTI records in this process.
        """
        with self._collector.flights:
            try:
                self._records_now = True
                self._begin()
            except BaseException as error:
                self._selections.close()
                self._collector.end(id(self), taken_over=isinstance(error, RecorderBusy))
                self._records_now = False
                raise

    def _begin(self) -> None:
        self._collector.begin(
            id(self),
            self._receive,
            apis=self._which,
            limit=self._limit,
            graph_period_ns=_GRAPH_PERIODS_NS[self._graphs],
        )
        self._records.noted = self._collector.notes_launches and self._which != "all"
        if self._records.tells_waits:
            polls = ("host wait",) if self._records.noted else ()
            self.edges = ("launch", "event wait", *polls)
        self._before = (self._collector.dropped, self._collector.refused)
        if self._collector.note:
            self._completeness.notes.append(self._collector.note)
        self._records.canaries = [Canaries(device, self._tag) for device in self._cuda]
        self._places.learn_all()
        self._collector.collect(forced=not self._collector.is_shared)
        nvtx.send_canary()
        self._send_canaries()
        if not all(self._arrived()):
            raise RecorderBusy(
                "CUPTI accepted the recording, but the records of a first kernel did not arrive: "
                "another tool has taken its buffers. End that tool first, or record with "
                "profile(source='events')"
            )
        for kind in self._kinds_of_order():
            self._collector.library.enable(kind)
        self._records.begin_here()
        self._selections.open()
        self._watch = ClockWatch({"cupti": self._collector.library.now_ns})
        if self.sees_ranges:
            self._listens = True
            nvtx.listen(1)
        elif not nvtx.missing():
            self._completeness.notes.append(
                f"NVTX ranges of other libraries are not recorded: {NVTX_INJECTION} has to name "
                "libcupti before the first NVTX call. Call gpuscope.open_device() before "
                "anything uses NVTX, or set it when starting Python"
            )

    def _kinds_of_order(self) -> tuple[int, ...]:
        """Return the kinds of CUPTI's records of waits, where notes of calls do not suffice.

        They make every call dearer until the process ends: disabling them does not take that back
        (libcupti 13.0).
        """
        is_told_by_them = self._records.tells_waits and not self._records.noted
        return order.KINDS if is_told_by_them or self._order is not None else ()

    def add(self, device: Device) -> None:
        """Watch a device too that was opened since; from now on its canaries tell what is lost."""
        canaries = Canaries(device, self._tag)
        with self._collector.flights:
            self._places.add(device)
            self._records.canaries.append(canaries)
            canaries.send()  # read later: to force that now would cut off work that is running

    @property
    def sees_ranges(self) -> bool:
        """Whether NVTX ranges reach CUPTI."""
        return self._records.ranges.arrive

    @property
    def parts_waiting(self) -> int:
        """How many more readings what waits in a file takes."""
        return -(-len(self._raw) // _PART) if self._waits_on_disk else 0

    @property
    def _waits_on_disk(self) -> bool:
        return self._journal is not None and self._journal.has_name

    @property
    def foreign_streams(self) -> list[int]:
        """Handles of other libraries' streams that guards selected, as far as they are held."""
        handles = []
        for stream in self._selections.streams.copy():
            if not isinstance(stream, Stream | int):  # a bare number may be a stream that is gone
                with contextlib.suppress(Exception):
                    handles.append(raw_handle(stream))
        return handles

    def finish(self, *, wait: bool) -> None:
        """Send the last canaries and take what is there; no more is recorded for us."""
        if not self._records_now:
            return
        self._selections.close()
        if self._listens:
            self._listens = False
            nvtx.listen(-1)
        taken_over = False
        try:
            self._places.learn_all()
            self._waited = self._links.waited = wait
            if wait:
                self._take_until(lambda: not self._records.graphs_without_work())
                before = self._arrived()
                with self._collector.flights:
                    self._send_canaries()
                lost = bool(before) and before == self._arrived()
                taken_over = lost and self._collector.refused == self._before[1]
            else:
                self._take(forced=not self._collector.is_shared)
            self._account(wait=wait, taken_over=taken_over)
        except BaseException as error:
            self._completeness.lost(
                f"ending the recording failed ({type(error).__name__}): whether every record "
                "arrived was not verified"
            )
            with contextlib.suppress(GpuscopeError):  # the first error is the one to tell
                self._collector.collect(forced=not self._collector.is_shared)
            raise
        finally:
            self._collector.end(id(self), taken_over=taken_over)
            self._records_now = False

    def _send_canaries(self) -> None:
        """Launch canaries and take their records.

        CUPTI hands over no buffer that holds a record of running work, unless forced, and then
        that work has no end. So where others record too, it is forced only after some time.
        """
        for canaries in self._records.canaries:
            canaries.send()
        sent = [canaries.launched for canaries in self._records.canaries]
        if not self._collector.is_shared or not self._take_until(lambda: self._arrived() == sent):
            self._take(forced=True)

    def _arrived(self) -> list[int]:
        return [canaries.arrived for canaries in self._records.canaries]

    def _take_until(self, condition: Callable[[], bool]) -> bool:
        """Take what is complete until a condition holds, or for some time; tell if it holds."""
        until_s = time.monotonic() + _PATIENCE_S
        self._take(forced=False)
        while not condition() and time.monotonic() < until_s:
            time.sleep(_NAP_S)
            self._take(forced=False)
        return condition()

    def _account(self, *, wait: bool, taken_over: bool) -> None:
        completeness = self._completeness
        refused = self._collector.refused - self._before[1]
        completeness.add("dropped", self._collector.dropped - self._before[0])
        dropped = completeness.counts["dropped"]
        if taken_over:
            completeness.lost(
                "another CUPTI client took the recording over while it ran: the last canary "
                "kernels left no record, and what ran since then may be missing"
            )
        if self._graphs != "nodes":
            completeness.notes.append(self._graph_note())
        if refused:
            completeness.lost(
                f"the memory limit of {self._limit} bytes was reached {refused} times: "
                f"{dropped} records were dropped; raise memory_limit, or read "
                "batches() while recording"
            )
        elif dropped:
            completeness.lost(f"CUPTI dropped {dropped} records")
        if not wait and self._records.canaries:
            completeness.notes.append(
                "stopped without waiting: whether every record arrived was not verified"
            )

    def _graph_note(self) -> str:
        if reason := self._collector.why_by_node(id(self)):
            return f"of graphs nodes are recorded, not all launches as a whole: {reason}"
        if self._graphs == "launch":
            return "launches of graphs are recorded as a whole"
        return (
            "launches of graphs are recorded as a whole; of each graph the first launch of a "
            "second has rows of its nodes instead"
        )

    def close(self) -> dict[str, Calibration]:
        """Return each clock's calibration; all was read."""
        if self._journal is not None and not self._journal.has_name:
            self._journal.close(remove=True)
        clocks: dict[str, Calibration] = {}
        if self._watch is not None:
            self._completeness.notes += self._watch.close()
            clocks["cupti"] = self._watch.fits["cupti"].facts()
        for canaries in self._records.canaries:
            if canaries.globaltimer.samples:
                clocks[f"globaltimer cuda:{canaries.device}"] = canaries.globaltimer.facts()
        return clocks

    def globaltimer(self, device: Device) -> ClockFit:
        """Return how %globaltimer of a device stands to the recording's clock."""
        every = self._records.canaries
        fits = (canaries.globaltimer for canaries in every if canaries.device == device.info.index)
        return next(fits, ClockFit())

    def facts(self) -> SourceFacts:
        """Return the streams, partitions and contexts that it learned, and what it counted."""
        places, devices = self._places, self._places.devices.copy()
        streams, partitions = places.streams.copy(), places.partitions.copy()
        return SourceFacts(streams, partitions, places.contexts.copy(), self._completeness, devices)

    def order(self) -> Ordered | None:
        """Return whether waits that CUPTI saw order two pieces of work."""
        return self._order.between(self._places.streams_of) if self._order is not None else None

    # -- what is told while it runs ---------------------------------------------------
    def meet(self, call: Call, stream: StreamView[object]) -> None:
        """Find CUPTI's numbers for the stream."""
        self._places.meet(call, stream)

    def hold(self, call: Call, row: Row, _rows: Rows, /) -> None:
        """Keep a launch's row until CUPTI's record of the call is there."""
        self._links.pending.append((call, row))

    def hold_edges(self, edges: list[Edge], rows: Rows, /) -> None:
        """Keep edges from graphs' launches until CUPTI's records of all nodes are there."""
        if self._records.tells_waits:
            self._records.waits.hold(edges)
        else:
            rows.edges += edges

    # -- reading ----------------------------------------------------------------------
    def _receive(self, number: int, records: Array) -> None:
        """Keep a buffer until it is read; the collector may give one again."""
        if number in self._read_out:
            return
        if number not in self._raw:
            journal = self._journal
            self._raw[number] = records if journal is None else journal.store(number, records)

    def journal(self, path: Path | None) -> Journal:
        """Let buffers wait in a new file until they are read."""
        first, noted = self._records.first, self._records.noted
        facts = BufferFacts(self._collector.library.version, self._which, first, noted)
        self._journal = journal = Journal(path, self._collector, facts, self._places)
        for number, records in sorted(self._raw.copy().items()):
            if not isinstance(records, Stored):  # it came meanwhile
                self._raw[number] = journal.store(number, records)
        return journal

    def _there(self, records: Array | Stored) -> Array:
        """Return a buffer that waits, from where it does."""
        if isinstance(records, Stored):
            assert self._journal is not None  # noqa: S101 - it stored it
            return self._journal.fetch(records)
        return records

    def _take(self, *, forced: bool) -> None:
        """Have the collector hand over, and read what it handed."""
        self._collector.collect(forced=forced)
        self._read_buffers()

    def _read_buffers(self, most: int | None = None) -> None:
        """Read the buffers that are there, or so many, in order: each once, whatever fails."""
        for number in sorted(self._raw.copy())[:most]:
            if number in self._read_out:  # it was interrupted before it was let go
                self._raw.pop(number, None)
                continue
            undo = self._keep()
            try:
                self._places.take(self._records.read(self._there(self._raw[number])))
                self._read_out.add(number)
            except BaseException:
                if number not in self._read_out:
                    undo()
                raise
            self._raw.pop(number, None)

    def _keep(self) -> Callable[[], None]:
        """Return what undoes all that reading changes next."""
        return together(self._records.keep(), self._links.keep(), self._completeness.keep())

    def begin_reading(self) -> Callable[[], None]:
        """Take in what has come; returns what undoes all that :meth:`drain` does next."""
        if self._records_now:
            self._places.learn_all()
            self._collector.collect(forced=False)
        self._read_buffers(_PART if self._records_now and self._waits_on_disk else None)
        return self._keep()

    def drain(self, rows: Rows) -> None:
        """Add what is complete; at the end everything, also what has no partner."""
        self._links.drain(rows)
        if rows.over:
            self._check()
        self._since_ns = rows.since_ns

    def settle(self) -> None:
        """Let go of what only rows need that are left out."""
        if self._since_ns:
            self._links.forget()
            self._records.ranges.forget(self._since_ns)
            self._selections.forget(self._since_ns)

    def _check(self) -> None:
        """See that every record that was read is told, and that work has an end."""
        completeness, unfinished = self._completeness, self._links.unfinished
        if unfinished:
            completeness.counts["unfinished"] = unfinished
            if self._waited:
                completeness.lost(f"{unfinished} pieces of work have no end")
        count, left_out, linked = self._records.count, self._records.left_out, self._links.row_count
        lost = count - linked - left_out
        if lost:
            completeness.add("dropped", abs(lost))
            completeness.lost(
                f"{count} records were read, {left_out} of them not the "
                f"recording's own, but {linked} are told"
            )
