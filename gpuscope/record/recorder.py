"""The recorder: watches devices, collects rows, hands out batches, ends as a Trace."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import itertools
import os
import platform
import threading
import time
import warnings
from collections import deque
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from gpuscope._libcupti import NVTX_INJECTION
from gpuscope.device.api import Activity, Call
from gpuscope.device.device import Device
from gpuscope.device.partition import Partition
from gpuscope.device.stream import Stream
from gpuscope.errors import CapabilityError, GpuscopeError, MissingDependency
from gpuscope.record.activity import ActivitySource
from gpuscope.record.blocks import BlockSource, globaltimer_fit
from gpuscope.record.cupti.source import CuptiSource
from gpuscope.record.events import EventSource
from gpuscope.record.order import Order
from gpuscope.record.rows import Batch, Rows, call_row, freeze, range_row, work_row
from gpuscope.trace import schema, valid
from gpuscope.trace.model import Trace, TraceMetadata

_PACKAGES = ("gpuscope", "numpy", "pyarrow", "cupy-cuda12x", "cupy-cuda13x", "cuda-core",
             "cuda-bindings", "nvmath-python", "nvtx", "cupti-python")  # fmt: skip

MEMORY_LIMIT = 2 << 30
"""Bytes of buffers that CUPTI may fill between two readings, unless asked otherwise."""

_Source = ActivitySource | EventSource | CuptiSource

_TIMED = ("launch", "copy", "setup")
"""Calls whose work every source times; a simulated device tells of host functions, too."""

running: tuple[Recording, ...] = ()
"""Recordings that are on; :func:`~gpuscope.record.annotate.annotate` tells them of ranges."""
_running_lock = threading.Lock()


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
        self._asked = source
        self._options: dict[str, Any] = {
            "detail": detail, "launch_ids": launch_ids, "memory_limit": memory_limit,
        }  # fmt: skip
        self._clock = devices[0].now_ns if devices else time.time_ns
        self._sources: dict[str, _Source] = {}
        self._cupti: CuptiSource | None = None
        self._blocks = BlockSource()
        # Entered again by the same thread where a destructor runs inside it.
        self._lock = threading.RLock()
        self._freezing = threading.Lock()
        self._rows = Rows()
        self._batches: list[Batch] = []
        self._open: dict[int, tuple[Call, int | None]] = {}
        self._ended: deque[Call] = deque()
        self._range_numbers = itertools.count(1)
        self._ranges = threading.local()
        self._open_ranges: dict[int, dict[str, Any]] = {}
        self._order = Order()
        self._streams: dict[int, dict[str, Any]] = {}
        self._partitions: dict[str, dict[str, Any]] = {}
        self._thread_names: dict[int, str] = {}
        self._window: list[int] = []
        self._trace: Trace | None = None
        self._received = 0
        self._notes: list[str] = []
        self._process_of = os.getpid()
        self._stopping = False
        self._block_batches: list[Batch] = []

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
        cuda = [device for device in self.devices if device.info.kind == "cuda"]
        if cuda or (not self.devices and self._asked != "events"):
            self._cupti = self._open_cupti()
        for device in self.devices:
            self._sources[device.info.key] = (
                ActivitySource(device) if device not in cuda else self._cupti or EventSource(device)
            )
        for device in self.devices:
            device.observe(self)
            for partition in device.partitions:
                self._partitions[partition.name] = _partition_facts(partition)
        self._window = [self._clock()]
        if self._cupti is None or not self._cupti.sees_ranges:
            with _running_lock:
                running = (*running, self)
        if self._cupti is not None and not self._cupti.sees_ranges:
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
                for device in self.devices:
                    device.backend.synchronize()
        finally:
            for device in self.devices:
                device.unobserve(self)
            if self._cupti is not None and not self._stopping:
                self._stopping = True
                with self._freezing:  # nobody reads batches meanwhile
                    self._cupti.finish(wait=wait)
        self._window.append(self._clock())
        with self._lock:
            self._close_open_rows()
        clocks = self._read_blocks(wait=wait)
        batches = self._collect(over=True)
        for key, source in self._sources.items():
            if not isinstance(source, CuptiSource):
                clocks[key] = source.close()
        if self._cupti is not None:
            clocks.update(self._cupti.close())
            if not self._cupti.complete:
                warnings.warn(
                    f"the recording is incomplete: {'; '.join(self._cupti.notes)}", stacklevel=2
                )
        self._trace = self._join(batches, clocks)
        return self._trace

    def _read_blocks(self, *, wait: bool) -> dict[str, dict[str, float]]:
        """Turn the records of traced kernels into rows; returns how their clocks stood."""
        if not self._blocks.devices:
            return {}
        if not wait:
            self._notes.append("stopped without waiting: thread blocks were not read")
            return {}
        by_key = {device.info.key: device for device in self.devices}
        facts, fits = {}, {}
        for key in self._blocks.devices:
            if self._cupti is not None:
                fits[key] = self._cupti.globaltimer(by_key[key].info.index)
            else:
                fits[key] = globaltimer_fit(by_key[key])
                facts[f"globaltimer {key}"] = fits[key].facts()
        self._block_batches = self._blocks.read(by_key, fits)
        return facts

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
            metadata = dataclasses.replace(metadata, complete=False, counts=counts)
        return Trace(spans, edges, metadata)

    def known(self) -> TraceMetadata:
        """Return what is known by now of devices, streams and partitions, at little cost."""
        return self._metadata({}, health=False)

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
        with self._freezing:  # keeps batches in order; launches do not wait for it
            now_ns = time.time_ns()
            rows = Rows()
            for source in self._sources.values():
                if not isinstance(source, CuptiSource):
                    source.drain(rows)
            with self._lock:
                self._add_ended()
                fresh, self._rows = self._rows, Rows()
                open_since = [
                    call.start_ns for call, _ in self._open.values() if call.kind in _TIMED
                ]
            rows.spans += fresh.spans
            rows.edges += fresh.edges
            more: list[Batch] = []
            if self._cupti is not None:
                more = self._cupti.drain(
                    over=over, open_since_ns=min([now_ns, *open_since]), host_rows=rows
                )
            if rows.spans or rows.edges:
                self._batches.append(freeze(rows))
            self._batches += more
            if over:
                self._batches += self._block_batches
            return list(self._batches)

    # -- what devices say -------------------------------------------------------------
    # What is launched waits for these two, so they only take note: rows are made when read.
    def call_begins(self, call: Call) -> None:
        """Note a call that is about to reach the device."""
        if call.kind == "setup" and self._cupti is None:
            return  # only CUPTI sees what it does
        parent = call_row(call.parent) if call.parent is not None else self._current_range()
        if call.thread not in self._thread_names:
            self._thread_names[call.thread] = threading.current_thread().name
        self._open[call.correlation] = (call, parent)
        if self._is_timed(call):
            self._sources[call.device_key].before(call)

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
                with self._lock:
                    self._note_stream(stream)
        self._ended.append(call)

    def _add_ended(self) -> None:
        """Turn the calls that returned into rows, in the order in which they did."""
        while self._ended:
            call = self._ended.popleft()  # others append meanwhile
            entry = self._open.pop(call.correlation, None)
            # Else it began before this recording did; or launches inside it tell better.
            if entry is not None:
                self._received += 1
                if not call.superseded:
                    self._add_call(call, entry[1])

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
        kinds = {"handle": "handle", "record": "event", "sync": "sync"}
        stream, intended = call.stream, call.intended
        partition = stream.partition if stream is not None else None
        meant = intended.partition if intended is not None else None
        device = next(one for one in self.devices if one.info.key == call.device_key)
        return {
            "id": row,
            "parent": parent,
            "kind": kinds.get(call.kind, "api"),
            "name": call.name,
            "start_ns": call.start_ns,
            "end_ns": call.end_ns,
            "process": self._process(),
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
        self._streams[stream.id] = {
            "name": stream.name,
            "priority": stream.priority,
            "partition": partition.name if partition is not None else None,
            "device": stream.device.info.key,
            **({"legacy_default": True} if stream.kind == "legacy default" else {}),
            **({"blocking": True} if stream.blocking else {}),
            **({"per_thread": True} if stream.kind == "per-thread default" else {}),
        }
        if partition is not None:
            self._partitions[partition.name] = _partition_facts(partition)

    def _process(self) -> int:
        return self.devices[0].backend.process_and_thread()[0] if self.devices else os.getpid()

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
            "process": self._process(),
            "thread": thread,
            "domain": "gpuscope",
            "range_style": "push/pop",
            "source": "nvtx",
        }
        stack.append(number)
        with self._lock:
            self._thread_names.setdefault(thread, threading.current_thread().name)
            self._open_ranges[number] = columns
        return number

    def range_ends(self, number: int) -> None:
        """Close a range; one of a recording that has ended is ignored."""
        end_ns = self._clock()
        stack = self._stack()
        if number in stack:
            stack.remove(number)
        with self._lock:
            columns = self._open_ranges.pop(number, None)
            if columns is not None:
                columns["end_ns"] = end_ns
                self._rows.spans.append(columns)

    def _close_open_rows(self) -> None:
        """Keep what is still open as open rows: nothing that was seen vanishes."""
        self._add_ended()
        for columns in self._open_ranges.values():
            self._rows.spans.append(columns)
        self._open_ranges.clear()
        for call, parent in self._open.values():
            self._rows.spans.append(
                {**self._call_columns(call, parent, call_row(call.correlation)), "end_ns": None,
                 "status": "completion not seen" if call.kind == "handle" else "not returned"}
            )  # fmt: skip
        self._received += len(self._open)
        self._open.clear()

    # -- metadata ---------------------------------------------------------------------
    def _metadata(
        self, clocks: Mapping[str, Mapping[str, float]], *, health: bool = True
    ) -> TraceMetadata:
        simulated = any(device.is_simulated for device in self.devices)
        process = str(self._process())
        cupti = self._cupti
        streams = {str(key): facts for key, facts in self._streams.items()}
        partitions = dict(self._partitions)
        counts = {"received": self._received + len(self._open), "dropped": 0, "unmatched": 0}
        notes = list(self._notes)
        if cupti is not None:
            streams = {**{str(key): facts for key, facts in cupti.streams.items()}, **streams}
            for partition in cupti.partitions:
                partitions.setdefault(partition.name, _partition_facts(partition))
            for name, context in cupti.partition_contexts.items():
                if name in partitions:
                    partitions[name] = {**partitions[name], "context": context}
            for name, count in cupti.counts.items():
                counts[name] = counts.get(name, 0) + count
            notes += cupti.notes
        return TraceMetadata(
            time_base="virtual" if simulated else "unix",
            simulated=simulated,
            devices={
                device.info.key: {
                    "index": device.info.index,
                    "uuid": device.info.uuid,
                    "name": device.info.name,
                    "sm_count": device.info.sm_count,
                    "driver": device.info.driver,
                    **_constants(device),
                    **(device.backend.health() if health else {}),
                }
                for device in self.devices
            },
            driver=self.devices[0].info.driver if self.devices else None,
            process_names={process: "python"},
            thread_names=self._threads(simulated=simulated),
            partitions=partitions,
            streams=streams,
            windows_ns=[[*self._window, self._clock()][:2]],
            clocks=clocks,
            device_max_connections=os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS"),
            versions=dict(_versions()),
            counts=counts,
            complete=cupti is None or cupti.complete,
            notes=tuple(dict.fromkeys(notes)),
        )

    def _threads(self, *, simulated: bool) -> dict[str, str]:
        """Return the names of threads: those that called us, and Python's that are alive."""
        alive = {} if simulated else {str(t.native_id): t.name for t in threading.enumerate()}
        return {**alive, **{str(key): name for key, name in self._thread_names.items()}}


def _constants(device: Device) -> dict[str, int]:
    """Return what a simulated device tells of its launches."""
    facts = {name: getattr(device.info, name) for name in ("launch_latency_ns", "kernel_gap_ns")}
    return {name: value for name, value in facts.items() if value is not None}


def _partition_facts(partition: Partition) -> dict[str, Any]:
    return {
        "asked": partition.asked,
        "sm_count": partition.sm_count,
        "sm_ids": list(partition.sm_ids),
        "sm_count_target": partition.sm_count_target,
        "context": partition.context,
        "shares_with": list(partition.shares_with),
        **({"color": partition.color} if partition.color else {}),
    }


@cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
