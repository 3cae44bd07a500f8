"""The recorder: watches devices, collects rows, hands out batches, ends as a Trace."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import os
import platform
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from gpuscope._fork import free_in_children
from gpuscope._libcupti import NVTX_INJECTION
from gpuscope.device.calls import Activity, Call
from gpuscope.device.device import Device
from gpuscope.device.stream import Stream
from gpuscope.errors import CapabilityError, GpuscopeError, MissingDependency
from gpuscope.record import nvtx
from gpuscope.record.activity import ActivitySource
from gpuscope.record.blocks import BlockSource, globaltimer_fit
from gpuscope.record.clock import ClockFit, step_notes
from gpuscope.record.cupti.source import CuptiSource
from gpuscope.record.events import EventSource
from gpuscope.record.facts import partition_facts, stream_facts
from gpuscope.record.order import Order
from gpuscope.record.rows import (
    Batch,
    Rows,
    call_row,
    keep,
    move,
    range_row,
    together,
    work_columns,
    work_row,
)
from gpuscope.trace import schema, valid
from gpuscope.trace.metadata import (
    ClockFacts,
    DeviceFacts,
    PartitionFacts,
    StreamFacts,
    TraceMetadata,
)
from gpuscope.trace.model import Trace

_PACKAGES = ("gpuscope", "numpy", "pyarrow", "cupy-cuda12x", "cupy-cuda13x", "cuda-core",
             "cuda-bindings", "nvmath-python", "nvtx", "cupti-python")  # fmt: skip

MEMORY_LIMIT = 2 << 30
"""Bytes of buffers that CUPTI may fill between two readings, unless asked otherwise."""

_Source = ActivitySource | EventSource | CuptiSource

_TIMED = ("launch", "copy", "setup")
"""Calls whose work every source times; a simulated device tells of host functions, too."""
_CALL_KINDS = {"handle": "handle", "record": "event", "sync": "sync"}
"""Kinds of calls whose rows are not of kind ``"api"``."""

_DEFAULT_STREAMS = (0, 1, 2)
"""CUDA's handles of the default streams, for which a wait for the device waits."""

running: tuple[Recording, ...] = ()
"""Recordings that are on; :func:`~gpuscope.record.annotate.annotate` tells them of ranges."""
_running_lock = free_in_children(threading.Lock())


def _forget_running() -> None:
    """In a forked child: it records nothing, and its ranges are not its parent's."""
    global running  # noqa: PLW0603 - the one place that knows what is on
    running = ()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_running)


class Recording:
    """What :func:`gpuscope.profile` gives: rows while it runs, a trace when it ended.

    Parameters
    ----------
    devices
        Devices of one clock; with none, what CUPTI sees of this process, and ranges.
    source
        ``"cupti"``, ``"events"``, or ``"auto"``: CUPTI where it is installed.
    detail
        ``"launches"``, or ``"full"``: all API calls and synchronisations, too.
    launch_ids
        Whether CUPTI records the API calls that launch work.
    memory_limit
        Bytes of buffers that CUPTI may fill between two readings.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> kernel = gs.learn.spin_kernel(gpu)
    >>> with gpu.create_stream() as stream, gs.profile(gpu) as recording:
    ...     stream.launch(kernel, 5_000, grid=1, block=32)
    ...     stream.synchronize()
    ...     recording.is_over, recording.snapshot().kind_counts()["kernel"]
    (False, 1)
    >>> recording.is_over, len(recording.trace) == len(recording.snapshot())
    (True, True)
    """

    def __init__(
        self,
        devices: tuple[Device, ...],
        *,
        source: Literal["auto", "cupti", "events"] = "auto",
        detail: Literal["launches", "full"] = "launches",
        launch_ids: bool | Literal["runtime"] = True,
        memory_limit: int = MEMORY_LIMIT,
    ) -> None:
        simulated = sum(device.is_simulated for device in devices)
        if simulated > 1 or (simulated and simulated < len(devices)):
            raise GpuscopeError(
                f"one recording cannot mix the clocks of {[d.info.key for d in devices]}: say "
                "which with profile(device)"
            )
        for name, value, allowed in (
            ("source", source, ("auto", "cupti", "events")),
            ("detail", detail, ("launches", "full")),
            ("launch_ids", launch_ids, (True, False, "runtime")),
        ):
            if value not in allowed:
                raise GpuscopeError(
                    f"{name} is {value!r}; it can be {' or '.join(map(str, allowed))}"
                )
        self.devices = devices
        self._device_by_key = {device.info.key: device for device in devices}
        self._asked = source
        self._options: dict[str, Any] = {
            "detail": detail, "launch_ids": launch_ids, "memory_limit": memory_limit,
        }  # fmt: skip
        self._clock = devices[0].now_ns if devices else time.time_ns
        self._sources: dict[str, _Source] = {}
        self._cupti: CuptiSource | None = None
        self._blocks = BlockSource()
        self._open: dict[int, tuple[Call, int | None]] = {}
        self._open_handles: dict[int, tuple[Call, int | None]] = {}
        """Apart from the others: whose completion nobody looks for stays."""
        self._ended: deque[Call] = deque()
        self._range_numbers = itertools.count(1)
        self._ranges = threading.local()
        self._open_ranges: dict[int, dict[str, Any]] = {}
        self._ended_ranges: deque[dict[str, Any]] = deque()
        self._freezing = free_in_children(threading.Lock())
        """Held by who reads; what follows is the reader's alone."""
        self._batches: list[Batch] = []
        self._rows = Rows()
        self._taken: list[Call] = []
        self._taken_ranges: list[dict[str, Any]] = []
        self._told: list[Call] = []  # what is rows, and may still be among the open
        self._told_ranges: list[int] = []
        self._order = Order()
        self._streams: dict[int, StreamFacts] = {}
        self._partitions: dict[str, PartitionFacts] = {}
        self._thread_names: dict[int, str] = {}
        self._window: list[int] = []
        self._began_at = (0, 0)
        self._trace: Trace | None = None
        self._received = 0
        self._drained = 0
        self._lost = {"dropped": 0, "unmatched": 0}
        self._notes: list[str] = []
        self._clocks: dict[str, Mapping[str, float]] = {}
        self._process_of = os.getpid()
        self._process = (  # as rows say it: a simulated device's is no number of the system's
            devices[0].backend.process_and_thread()[0] if devices else self._process_of
        )
        self._globaltimers: dict[str, ClockFit] = {}
        self._waited = True
        self._all_read = False

    # -- life -------------------------------------------------------------------------
    def start(self) -> None:
        """Begin to watch.

        Raises
        ------
        RecorderBusy
            Another client of CUPTI records in this process.
        MissingDependency, CapabilityError
            CUPTI was asked for and is not there.
        """
        global running  # noqa: PLW0603 - the one place that knows what is on
        self._began_at = self._both_clocks()
        self._window = [self._began_at[0]]  # first: from now on there is something to stop
        cuda = [device for device in self.devices if device.info.kind == "cuda"]
        if cuda or (not self.devices and self._asked != "events"):
            self._cupti = self._open_cupti()
        for device in self.devices:
            self._sources[device.info.key] = (
                ActivitySource(device) if device not in cuda else self._cupti or EventSource(device)
            )
        for device in self.devices:
            device.calls.observe(self)
            for partition in device.partitions:
                self._partitions[partition.name] = partition_facts(partition)
        self._began_at = self._both_clocks()
        self._window = [self._began_at[0]]
        if self._cupti is None or not self._cupti.sees_ranges:
            with _running_lock:
                running = (*running, self)
        if without_nvtx := nvtx.missing():
            self._notes.append(without_nvtx)
        elif self._cupti is not None and not self._cupti.sees_ranges:
            self._notes.append(
                f"NVTX ranges of other libraries are not recorded: {NVTX_INJECTION} has to name "
                "libcupti before the first NVTX call. Call gpuscope.open_device() before "
                "anything uses NVTX, or set it when starting Python"
            )

    def _open_cupti(self) -> CuptiSource | None:
        """Return the started source, or, where nothing insists on it, ``None``."""
        if self._asked == "events":
            return None
        if self._asked == "auto" and importlib.util.find_spec("cupti") is None:
            return None
        try:
            cupti = CuptiSource(self.devices, **self._options)
            cupti.start()
        except (MissingDependency, CapabilityError) as error:
            if self._asked == "cupti":
                raise
            self._notes.append(f"CUPTI is not used: {error}")
            return None
        return cupti

    def stop(self, *, wait: bool = True) -> Trace:
        """Stop watching, and return the trace.

        Parameters
        ----------
        wait
            Wait for what was launched; else what still runs stays open in the trace.
        """
        global running  # noqa: PLW0603 - the one place that knows what is on
        if self._trace is not None:
            return self._trace
        if os.getpid() != self._process_of:
            raise GpuscopeError(
                "a recording ends in the process that began it: this one was forked from it"
            )
        with _running_lock:
            running = tuple(other for other in running if other is not self)
        try:
            if wait:
                self._wait()
        except BaseException:
            self._end(waited=False)
            raise
        self._end(waited=wait)
        return self.trace

    def _wait(self) -> None:
        """Wait for what anybody launched on streams of ours, or that guards selected."""
        foreign = self._cupti.foreign_streams if self._cupti is not None else []
        for device in self.devices:
            ours = [stream.handle for stream in device.streams if not stream.capturing]
            device.backend.wait_for_all(
                [handle for handle in {*ours, *foreign} if handle not in _DEFAULT_STREAMS]
            )

    def _end(self, *, waited: bool) -> None:
        """Record no more, and make the trace; where that failed, again does what is left."""
        for device in self.devices:
            device.calls.unobserve(self)
        if self._cupti is not None and not self._cupti.finished:
            with self._freezing:  # nobody reads batches meanwhile
                self._cupti.finish(wait=waited)
        if len(self._window) == 1:
            self._window.append(self._window_end())
            if self._cupti is None:  # which compares them all the time
                self._notes += step_notes([self._began_at, self._both_clocks()])
        self._waited = waited
        self._compare_globaltimers()
        batches = self._collect(over=True)
        self._account(batches)
        for key, source in self._sources.items():
            if not isinstance(source, CuptiSource) and key not in self._clocks:
                self._clocks[key] = source.close()
        clocks = {**self._clocks, **(self._cupti.close() if self._cupti is not None else {})}
        self._trace = self._join(batches, clocks)
        facts = self._trace.metadata
        if not facts.complete:
            warnings.warn(f"the recording is incomplete: {'; '.join(facts.notes)}", stacklevel=3)

    def _account(self, batches: list[Batch]) -> None:
        """Count what is missing: every row that was read is kept, every launch has one."""
        kept = sum(batch.spans.num_rows for batch in batches)
        missing = [call for _, call in self._unfinished() if not self._stays_open(call)]
        self._lost = {"dropped": abs(self._drained - kept), "unmatched": len(missing)}
        if self._drained != kept:
            self._notes.append(f"{self._drained} rows were read, but {kept} were kept")
        if missing:
            self._notes.append(
                f"{len(missing)} of our launches have no record of their end (the first: "
                f"{missing[0].name!r})"
            )

    def _unfinished(self) -> list[tuple[_Source, Call]]:
        """Return the launches whose work no source has seen the end of; CUPTI counts its own."""
        return [
            (source, call)
            for source in self._sources.values()
            if not isinstance(source, CuptiSource)
            for call in source.unfinished
        ]

    def _stays_open(self, call: Call) -> bool:
        """Whether a launch has an open row: who does not wait has asked for that."""
        return not self._waited and call.graph is None

    def _compare_globaltimers(self) -> None:
        """Find how the clocks stand by which traced kernels told of their thread blocks."""
        if not self._blocks.devices:
            return
        if not self._waited:
            self._notes.append("stopped without waiting: thread blocks were not read")
            self._blocks = BlockSource()
            return
        for device in self.devices:
            key = device.info.key
            if key in self._blocks.devices and key not in self._globaltimers:
                if self._cupti is not None:
                    self._globaltimers[key] = self._cupti.globaltimer(device.info.index)
                else:
                    self._globaltimers[key] = globaltimer_fit(device)
                    self._clocks[f"globaltimer {key}"] = self._globaltimers[key].facts()

    def snapshot(self) -> Trace:
        """Return what was recorded so far, as a trace; the recording goes on."""
        return self._trace if self._trace is not None else self._join(self.batches(), {})

    def _join(self, batches: list[Batch], clocks: Mapping[str, Mapping[str, float]]) -> Trace:
        spans = schema.concat([batch.spans for batch in batches], schema.SPAN_TYPES)
        edges = schema.concat([batch.edges for batch in batches], schema.EDGE_TYPES)
        if self._cupti is not None and edges.num_rows:  # what was to come may have no record
            launches = pc.equal(edges.column("kind").cast(pa.string()), "launch")
            waits = edges.filter(pc.invert(launches))
            if waits.num_rows:
                ids = spans.column("id")
                there = (pc.is_in(waits.column(end), value_set=ids) for end in ("from", "to"))
                waits = waits.filter(pc.and_(*there))
                edges = schema.concat([edges.filter(launches), waits], schema.EDGE_TYPES)
        metadata = self._metadata(clocks)
        spans, edges, left = valid.sifted(spans, edges)  # a clock that was set loses no recording
        if left:
            counts = {**metadata.counts, **{f"{what} left out": n for what, n in left.items()}}
            metadata = replace(metadata, complete=False, counts=counts)
        return Trace(spans, edges, metadata)

    def known(self) -> TraceMetadata:
        """Return what is known by now of devices, streams and partitions, at little cost."""
        return self._metadata({}, health=False)

    @property
    def has_begun(self) -> bool:
        """Whether it was started, so that there is something to stop."""
        return bool(self._window)

    @property
    def is_over(self) -> bool:
        """Whether the recording has ended, so that there is a ``trace``."""
        return self._trace is not None

    @property
    def trace(self) -> Trace:
        """The trace.

        Raises
        ------
        GpuscopeError
            The recording is still on: leave its ``with`` block first.
        """
        if self._trace is None:
            raise GpuscopeError(
                "the recording is still on: leave the with block first, or read batches()"
            )
        return self._trace

    def batches(self, since: int = 0) -> list[Batch]:
        """Return the batches from number ``since`` on; what is new becomes one more.

        Batches never change, and the trace is their concatenation: remember how many you
        have seen and ask from there.
        """
        return self._collect(over=False)[since:]

    def _collect(self, *, over: bool) -> list[Batch]:
        """Make batches of what is new; all of it, or where that fails none.

        What is read is handed out at one moment, by one assignment. Before it everything that
        reading changed can be undone, so that the next reading finds what this one found.
        """
        with self._freezing:  # keeps batches in order; launches do not wait for it
            if self._all_read:
                return self._batches
            before = self._batches
            undo = self._begin_reading()
            try:
                self._batches = [*before, *self._read(over=over)]
            except BaseException:
                if self._batches is before:
                    undo()
                raise
            self._settle()
            return self._batches

    def _every_source(self) -> list[_Source]:
        sources = list(self._sources.values())
        if self._cupti is not None:
            sources = [source for source in sources if source is not self._cupti]
            sources.append(self._cupti)
        return sources

    def _begin_reading(self) -> Callable[[], None]:
        """Take in what has come; returns what undoes all that reading changes next."""
        self._settle()
        move(self._ended, self._taken)
        move(self._ended_ranges, self._taken_ranges)
        return together(
            *(source.begin_reading() for source in self._every_source()),
            keep(
                self, "_taken", "_taken_ranges", "_told", "_told_ranges", "_received", "_drained",
                "_blocks", "_all_read",
            ),
            self._order.keep(),
        )  # fmt: skip

    def _settle(self) -> None:
        """Forget what was handed out; done again where it was interrupted."""
        for source in self._every_source():
            source.settle()
        while self._told:
            self._calls_like(self._told[-1]).pop(self._told[-1].correlation, None)
            self._told.pop()
        while self._told_ranges:
            self._open_ranges.pop(self._told_ranges[-1], None)
            self._told_ranges.pop()

    def _read(self, *, over: bool) -> list[Batch]:
        """Return batches of what was taken in, at the end also of what is open."""
        now_ns = self._clock()
        self._all_read = over
        self._rows = rows = Rows()
        if self._cupti is not None:  # which gives rows without a parent the range around them
            rows.at_once = sys.maxsize
        for source in self._sources.values():
            if not isinstance(source, CuptiSource):
                source.drain(rows)
        self._add_ended()
        still_open = self._still_open(handles=over)
        if over:
            self._add_open(still_open)
        more: list[Batch] = []
        if self._cupti is not None:
            open_since = [call.start_ns for call, _ in still_open if call.kind in _TIMED]
            more = self._cupti.drain(
                over=over, open_since_ns=min([now_ns, *open_since]), host_rows=rows
            )
        if over and self._blocks.devices:
            more += self._blocks.read(self._device_by_key, self._globaltimers)
            self._blocks = BlockSource()
        self._drained += rows.count + sum(batch.spans.num_rows for batch in more)
        return [*rows.all_batches(), *more]

    # -- what devices say -------------------------------------------------------------
    # What is launched waits for these two, so they only take note: rows are made when read.
    def call_begins(self, call: Call) -> None:
        """Note a call that is about to reach the device."""
        if call.kind == "setup" and self._cupti is None:
            return  # only CUPTI sees what it does
        parent = call_row(call.parent) if call.parent is not None else self._current_range()
        if call.thread not in self._thread_names:
            self._thread_names[call.thread] = threading.current_thread().name
        self._calls_like(call)[call.correlation] = (call, parent)
        if self._is_timed(call):
            self._sources[call.device_key].before(call)

    def _calls_like(self, call: Call) -> dict[int, tuple[Call, int | None]]:
        return self._open_handles if call.kind == "handle" else self._open

    def call_ends(self, call: Call) -> None:
        """Note a call that returned."""
        if call.kind == "setup" and self._cupti is None:
            return
        if self._is_timed(call):
            self._sources[call.device_key].after(call)
            if call.blocks is not None:
                self._blocks.take(call)
        for stream in (call.stream, call.intended):
            if stream is not None and stream.id not in self._streams:
                self._note_stream(stream)
        self._ended.append(call)

    def _add_ended(self) -> None:
        """Turn the ranges and calls that ended into rows, in the order in which they did."""
        ranges, self._taken_ranges = self._taken_ranges, []
        for columns in ranges:
            self._rows.cut()
            self._rows.spans.append(columns)
            self._told_ranges.append(columns["id"])
        calls, self._taken = self._taken, []
        for call in calls:
            entry = self._calls_like(call).get(call.correlation)
            if entry is not None:  # else it began before this recording did
                self._add_returned(*entry)

    def _add_returned(self, call: Call, parent: int | None) -> None:
        self._rows.cut()
        self._received += 1
        self._told.append(call)
        if not call.superseded:  # else launches inside it tell better
            self._add_call(call, parent)

    def _still_open(self, *, handles: bool) -> list[tuple[Call, int | None]]:
        """Return the calls that no row tells of, with their parents."""
        told = {call.correlation for call in self._told}
        every = {**self._open_handles.copy(), **self._open.copy()} if handles else self._open.copy()
        return [entry for number, entry in every.items() if number not in told]

    def _add_open(self, calls: list[tuple[Call, int | None]]) -> None:
        """Keep what is still open as open rows: nothing that was seen vanishes."""
        told = set(self._told_ranges)
        for number, columns in self._open_ranges.copy().items():
            if number not in told:
                self._rows.spans.append(columns)
                self._told_ranges.append(number)
        for call, parent in calls:
            if call.end_ns is not None:  # who made it was interrupted before telling us
                self._add_returned(call, parent)
                continue
            self._received += 1
            self._told.append(call)
            self._rows.spans.append(
                {**self._call_columns(call, parent, call_row(call.correlation)), "end_ns": None,
                 "status": "completion not seen" if call.kind == "handle" else "not returned"}
            )  # fmt: skip
        for source, call in self._unfinished():
            if self._stays_open(call):
                device = self._device_by_key[call.device_key]
                self._rows.spans.append({
                    **work_columns(call, device.info.index, device.info.uuid),
                    "start_ns": call.end_ns, "status": "not finished", "source": source.name,
                })  # fmt: skip

    def _is_timed(self, call: Call) -> bool:
        if call.kind == "host_call":
            return self._sources[call.device_key].name == "simulated"
        return call.kind in _TIMED

    def activity(self, activity: Activity) -> None:
        """Pass on work that a device says it did."""
        for source in self._sources.values():
            if isinstance(source, ActivitySource):
                source.activity(activity)

    def _add_call(self, call: Call, parent: int | None) -> None:
        row = call_row(call.correlation)
        if self._is_timed(call):
            work = work_row(call.correlation)
            for before, rule in self._order.work(call, work):
                self._rows.edges.append((before, work, rule))
        elif call.kind == "record":
            self._order.record(call)
            if call.workload is not None:
                return  # a handle's completion event is its own business
        elif call.kind == "wait":
            self._order.wait(call)
        elif call.kind == "sync":
            for before in self._order.behind(call):
                self._rows.edges.append((before, row, "host wait"))
        self._keep(call, self._call_columns(call, parent, row))

    def _keep(self, call: Call, columns: dict[str, Any]) -> None:
        """Keep a call's row; a launch's waits for CUPTI's record of the same call."""
        if self._is_timed(call):
            if self._cupti is not None and self._sources[call.device_key] is self._cupti:
                self._cupti.hold(call, columns)
                return
            if call.stream is not None:
                self._rows.edges.append((columns["id"], work_row(call.correlation), "launch"))
        self._rows.spans.append(columns)

    def _call_columns(self, call: Call, parent: int | None, row: int) -> dict[str, Any]:
        stream, intended = call.stream, call.intended
        partition = stream.partition if stream is not None else None
        meant = intended.partition if intended is not None else None
        device = self._device_by_key[call.device_key]
        return {
            "id": row,
            "parent": parent,
            "kind": _CALL_KINDS.get(call.kind, "api"),
            "name": call.name,
            "start_ns": call.start_ns,
            "end_ns": call.end_ns,
            "process": self._process,
            "thread": call.thread,
            "device": device.info.index,
            "device_uuid": device.info.uuid,
            "partition": partition.name if partition is not None else None,
            "intended_partition": meant.name if meant is not None else None,
            "stream": stream.id if stream is not None else None,
            # In a trace from CUPTI, correlation is CUPTI's number, and ours is outside it.
            "correlation": call.correlation if self._cupti is None else None,
            "external_correlation": call.correlation if self._cupti is not None else None,
            "category": call.name if call.kind == "handle" else call.workload,
            "source": "simulated" if device.is_simulated else "host",
        }

    def _note_stream(self, stream: Stream) -> None:
        partition = stream.partition
        if partition is not None:
            self._partitions[partition.name] = partition_facts(partition)
        self._streams[stream.id] = stream_facts(stream)

    # -- ranges -----------------------------------------------------------------------
    def _stack(self) -> list[int]:
        try:
            stack: list[int] = self._ranges.stack
        except AttributeError:
            stack = self._ranges.stack = []
        return stack

    def _current_range(self) -> int | None:
        stack = self._stack()
        return stack[-1] if stack else None

    def range_begins(self, name: str) -> int:
        """Open a range on this thread; returns its row's id."""
        stack = self._stack()
        number = range_row(next(self._range_numbers))
        thread = (
            self.devices[0].backend.process_and_thread()[1]
            if self.devices
            else threading.get_native_id()
        )
        columns = {
            "id": number,
            "parent": stack[-1] if stack else None,
            "kind": "range",
            "name": name,
            "start_ns": self._clock(),
            "process": self._process,
            "thread": thread,
            "domain": "gpuscope",
            "range_style": "push/pop",
            "source": "nvtx",
        }
        self._thread_names.setdefault(thread, threading.current_thread().name)
        self._open_ranges[number] = columns
        stack.append(number)
        return number

    def range_ends(self, number: int) -> None:
        """Close a range; one of a recording that has ended is ignored."""
        end_ns = self._clock()
        stack = self._stack()
        if number in stack:
            stack.remove(number)
        columns = self._open_ranges.get(number)
        if columns is not None:
            columns["end_ns"] = end_ns
            self._ended_ranges.append(columns)

    # -- metadata ---------------------------------------------------------------------
    def _metadata(
        self, clocks: Mapping[str, Mapping[str, float]], *, health: bool = True
    ) -> TraceMetadata:
        simulated = any(device.is_simulated for device in self.devices)
        process = str(self._process)
        cupti = self._cupti
        # Those who launch add to these meanwhile: a copy is made at once, a loop is not.
        streams = {str(key): facts for key, facts in self._streams.copy().items()}
        partitions = self._partitions.copy()
        counts = {"received": self._received + self._open_count, **self._lost}
        notes = list(self._notes)
        if cupti is not None:
            seen = cupti.streams.copy()
            streams = {**{str(key): facts for key, facts in seen.items()}, **streams}
            for partition in cupti.partitions:
                partitions.setdefault(partition.name, partition_facts(partition))
            for name, context in cupti.partition_contexts.copy().items():
                if name in partitions:
                    partitions[name] = replace(partitions[name], context=context)
            for name, count in cupti.counts.copy().items():
                counts[name] = counts.get(name, 0) + count
            notes += cupti.notes
        return TraceMetadata(
            time_base="virtual" if simulated else "unix",
            simulated=simulated,
            devices={
                device.info.key: DeviceFacts(
                    index=device.info.index,
                    uuid=device.info.uuid,
                    name=device.info.name,
                    sm_count=device.info.sm_count,
                    driver=device.info.driver,
                    launch_latency_ns=device.info.launch_latency_ns,
                    kernel_gap_ns=device.info.kernel_gap_ns,
                    **(device.backend.health() if health else {}),
                )
                for device in self.devices
            },
            driver=self.devices[0].info.driver if self.devices else None,
            process_names={process: "python"},
            thread_names=self._threads(simulated=simulated),
            partitions=partitions,
            streams=streams,
            windows_ns=((self._window[0], [*self._window, self._window_end()][1]),),
            clocks={name: ClockFacts(**facts) for name, facts in clocks.items()},
            device_max_connections=os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS"),
            versions=dict(_versions()),
            counts=counts,
            complete=not any(self._lost.values()) and (cupti is None or cupti.complete),
            notes=tuple(dict.fromkeys(notes)),
        )

    def _both_clocks(self) -> tuple[int, int]:
        """Return the recording's clock, and one that nobody sets."""
        now_ns = self._clock()
        simulated = any(device.is_simulated for device in self.devices)
        return now_ns, now_ns if simulated else time.monotonic_ns()

    def _window_end(self) -> int:
        """Return when the recording ends as of now: its beginning and the time that passed."""
        begun_ns, steady_ns = self._began_at
        return begun_ns + self._both_clocks()[1] - steady_ns

    @property
    def _open_count(self) -> int:
        return max(0, len(self._open) + len(self._open_handles) - len(self._told))

    def _threads(self, *, simulated: bool) -> dict[str, str]:
        """Return the names of threads: those that called us, and Python's that are alive."""
        alive = {} if simulated else {str(t.native_id): t.name for t in threading.enumerate()}
        return {**alive, **{str(key): name for key, name in self._thread_names.copy().items()}}


@cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
