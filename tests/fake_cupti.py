"""CUPTI and a GPU that it watches, made of Python: real records in real buffers, no driver.

:class:`FakeCupti` is what libcupti keeps for a process: one subscription, one pair of C
callbacks, the kinds that are enabled. :class:`FakeLibrary` has the methods of
``record.cupti.library.Library`` and is one client of it. :class:`FakeGpu` is a backend whose
launches leave records, as those of other libraries do (:meth:`FakeGpu.foreign`).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import threading
import time
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from gpuscope.device.api import Capabilities, DeviceInfo, Kernel
from gpuscope.device.carve import SmLayout
from gpuscope.device.device import Device
from gpuscope.device.raw import GrantedPartition
from gpuscope.errors import CapabilityError
from gpuscope.record import annotate, nvtx
from gpuscope.record.cupti import collector, layout, source
from gpuscope.record.cupti.library import (
    DRIVER_API,
    RUNTIME_API,
    Refused,
    _is_noted,
    _is_other,
)
from gpuscope.record.recorder import Recording
from gpuscope.record.source import Options

VERSION = 130001
UNNAMED = "<not provided>"
"""What CUPTI says of a holder that gave no name."""

NAMES = {
    RUNTIME_API: {
        211: "cudaLaunchKernel_v7000", 41: "cudaMemcpyAsync_v3020", 51: "cudaMemsetAsync_v3020",
        311: "cudaGraphLaunch_v10000", 16: "cudaGetDevice_v3020",
        317: "cudaStreamBeginCapture_v10000", 31: "cudaMemcpy_v3020",
        131: "cudaStreamSynchronize_v3020", 132: "cudaStreamQuery_v3020",
        135: "cudaEventRecord_v3020", 136: "cudaEventDestroy_v3020",
        137: "cudaEventSynchronize_v3020", 138: "cudaEventQuery_v3020",
        147: "cudaStreamWaitEvent_v3020", 165: "cudaDeviceSynchronize_v3020",
    },
    DRIVER_API: {307: "cuLaunchKernel", 279: "cuMemcpyDtoH_v2", 126: "cuStreamSynchronize"},
}  # fmt: skip
LAUNCH, COPY, SET, GRAPH, OTHER, CAPTURE = 211, 41, 51, 311, 16, 317
STREAM_SYNC, STREAM_POLL, RECORD, EVENT_SYNC = 131, 132, 135, 137
EVENT_END, EVENT_POLL, STREAM_WAIT, DEVICE_SYNC, BLOCKING_COPY = 136, 138, 147, 165, 31
"""Numbers of the runtime's calls above."""
DRIVER_LAUNCH, DRIVER_COPY, DRIVER_SYNC = 307, 279, 126
DEFAULT_STREAM = 7

BUFFER_BYTES = 1 << 14
"""Small, so that tests fill a few."""


# -- bytes -----------------------------------------------------------------------------------
def record(kind, sizes, **fields):
    """Return the bytes of one record; what is not given is 0."""
    data = np.zeros(sizes[kind], np.uint8)
    data[:4].view("u4")[0] = kind
    for name, value in fields.items():
        at, code = layout.FIELDS[kind][name]
        data[at : at + int(code[1])].view(code)[0] = value
    return data


def buffer(records, version=VERSION):
    """Return a buffer of records, each a pair of kind and fields."""
    sizes = layout.record_sizes(version)
    parts = [record(kind, sizes, **fields) for kind, fields in records]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint8)


_texts: dict[str, ctypes.Array] = {}


def address(text):
    """Return where a C string with this text is; it stays there."""
    if text not in _texts:
        _texts[text] = ctypes.create_string_buffer(text.encode())
    return ctypes.addressof(_texts[text])


@cache
def recorded():
    """Return the bytes that a real libcupti wrote, its version, and the texts by address."""
    with np.load(Path(__file__).parent / "data" / "cupti.npz") as kept:
        facts = json.loads(str(kept["facts"]))
        raw = [kept[name] for name in sorted(kept.files) if name != "facts"]
    texts = {int(at): text for at, text in facts["texts"].items()}
    return SimpleNamespace(raw=raw, version=facts["version"], texts=texts)


# -- libcupti --------------------------------------------------------------------------------
class FakeCupti:
    """The state of libcupti in a process."""

    def __init__(self, version=VERSION, *, notes=True):
        self.version = version
        self.notes = notes
        """Whether launches can be noted in its place."""
        self.noting = ()
        """Whose launches are."""
        self.noting_ns = []
        """How long noting a call took, as it is asked for."""
        self.noted, self.untold = [], 0
        """Records of launches that were noted, and how many could not be."""
        self.room = 1 << 40
        self.sizes = layout.record_sizes(version)
        self.holder = None
        """Name of whoever holds the subscription."""
        self.callbacks = None
        self.enabled = {}
        """Kind → "all" or "launches"."""
        self.zeroed = False
        self.thread_ids = 0
        self.lost = 0
        self.graph_period_ns = None
        self.met_unknown_graph = False
        self.asked = 0
        """How often a buffer was asked for."""
        self.contexts = []
        """What enabling context records tells of: fields."""
        self.wrote_to_freed_memory = False
        """Whether a client gave a buffer and freed it while it was out: a real one crashes."""
        self.mute = False
        """Whether records get lost without a trace, as when somebody else takes the buffers."""
        self.next_correlation = itertools.count(1).__next__
        self.memory = []
        """What tells, of each client, the addresses of the buffers that it keeps alive."""
        self._last_ns = 0
        self._at, self._size, self._used = None, 0, 0
        self._running = set()
        """Where the ends of running work go."""
        self._lock = threading.RLock()

    def now_ns(self):
        """Unix time; no two readings are the same."""
        with self._lock:
            self._last_ns = max(time.time_ns(), self._last_ns + 1)
            return self._last_ns

    def write(self, kind, **fields):
        """Record something, if its kind is enabled."""
        with self._lock:
            self._note(kind, fields)
            for name in ("handle", "event"):  # CUPTI does not tell
                fields.pop(name, None)
            level = self.enabled.get(kind)
            if level is None or self.mute or self.callbacks is None:
                return
            if level == "launches" and _is_other(_name(kind, fields["callback"])):
                return
            data = record(kind, self.sizes, **fields)
            if self._at is None or self._used + len(data) > self._size:
                self._hand_over()
                self._ask()
            if self._at is None:
                self.lost += 1
                return
            if not self.buffer_is_alive:
                self.wrote_to_freed_memory = True
                return
            ctypes.memmove(self._at + self._used, data.ctypes.data, len(data))
            self._used += len(data)

    def _note(self, kind, fields):
        domain = {layout.RUNTIME: RUNTIME_API, layout.DRIVER: DRIVER_API}.get(kind)
        if domain in self.noting and _is_noted(_name(kind, fields["callback"])):
            data = record(0x1000 + kind, self.sizes, **fields)
            if sum(map(len, self.noted)) + len(data) > self.room:
                self.untold += 1
            else:
                self.noted.append(data.tobytes())

    @property
    def collects(self):
        """What arrives of each kind: "all" or "launches"."""
        kinds = {RUNTIME_API: layout.RUNTIME, DRIVER_API: layout.DRIVER}
        return {kinds[domain]: "launches" for domain in self.noting} | self.enabled

    def _ask(self):
        at, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(9)
        self.callbacks[0](ctypes.byref(at), ctypes.byref(size), ctypes.byref(most))
        assert at.value is None or most.value == 0, "no limit of records"
        self._at, self._size, self._used = at.value, size.value, 0
        self.asked += 1
        if self._at is not None and self.zeroed:
            assert not any(ctypes.string_at(self._at, self._size)), "it was promised zeroed"

    def _hand_over(self):
        self._running.clear()
        if self._at is not None:
            at, self._at = self._at, None
            self.callbacks[1](None, 0, at, self._size, self._used)

    def run(self, kind, **fields):
        """Record work that is running; returns what ends it."""
        with self._lock:
            self.write(kind, **fields | {"end": 0})
            at, length = self._at, len(record(kind, self.sizes))
            end = at + self._used - length + layout.FIELDS[kind]["end"][0]
            self._running.add(end)

        def finish():
            with self._lock:
                if end in self._running:  # else its record was handed over without an end
                    self._running.remove(end)
                    ctypes.c_uint64.from_address(end).value = self.now_ns()

        return finish

    def flush(self, *, forced=True):
        """Hand over what is there; unless forced, no buffer with a record of running work."""
        with self._lock:
            if forced or not self._running:
                self._hand_over()

    @property
    def buffer_is_alive(self):
        """Whether somebody keeps the memory that is being written to, if any is."""
        return self._at is None or any(self._at in addresses() for addresses in self.memory)

    @property
    def at_rest(self):
        """Whether nothing of a client is left."""
        return (self.holder, self.collects, self.zeroed, self.thread_ids) == (None, {}, False, 0)


def _name(kind, callback):
    return NAMES[RUNTIME_API if kind == layout.RUNTIME else DRIVER_API].get(callback, "")


class FakeLibrary:
    """One client of CUPTI, with the methods of ``record.cupti.library.Library``."""

    def __init__(self, cupti, name="gpuscope"):
        self.cupti = cupti
        self.name = name
        self.version = cupti.version
        self.refusing = set()
        """Names of methods that fail, or pairs of name and kind."""
        self.done = []
        """Names of methods that were called, with their kinds."""

    def _does(self, *what):
        self.done.append(what)
        if what in self.refusing or what[0] in self.refusing:
            raise CapabilityError(f"{what[0]} failed: CUPTI_ERROR_UNKNOWN (999)")

    def subscribe(self):
        self._does("subscribe")
        if self.cupti.holder is not None:
            raise Refused(self.cupti.holder)
        self.cupti.holder = self.name
        return SimpleNamespace(owner=self.name)

    def unsubscribe(self, handle):
        self._does("unsubscribe")
        assert handle.owner == self.cupti.holder == self.name
        self.cupti.holder, self.cupti.noting = None, ()

    @property
    def notes_launches(self):
        return self.cupti.notes

    def note_launches(self, handle, *domains):
        self._does("note_launches")
        assert handle.owner == self.cupti.holder == self.name
        self.cupti.noting = domains

    def record_graphs(self, period_ns):
        self._does("record_graphs", period_ns)
        assert period_ns < 0 or self.cupti.noting, "a graph from before would crash it"
        if period_ns < 0:
            self.cupti.enabled.pop(layout.GRAPH, None)
        else:
            self.cupti.enabled[layout.GRAPH] = "all"
            self.cupti.graph_period_ns = period_ns

    @property
    def met_unknown_graph(self):
        return self.cupti.met_unknown_graph

    def time_of_noting(self):
        return self.cupti.noting_ns.pop(0) if self.cupti.noting_ns else None

    def limit_launches(self, nbytes):
        self.cupti.room = nbytes

    def take_launches(self, into, next_number):
        self._does("take_launches")
        with self.cupti._lock:
            if self.cupti.noted:
                into.append((next_number(), b"".join(self.cupti.noted)))
                self.cupti.noted.clear()
            untold, self.cupti.untold = self.cupti.untold, 0
        return untold

    def register(self, requested, completed):
        self._does("register")
        self.cupti.callbacks = requested, completed

    def promise_zeroed_buffers(self, *, promised):
        self._does("promise_zeroed_buffers", promised)
        self.cupti.zeroed = promised

    def flush(self, *, forced):
        self._does("flush", forced)
        self.cupti.flush(forced=forced)

    def dropped(self):
        self._does("dropped")
        lost, self.cupti.lost = self.cupti.lost, 0
        return lost

    def enable(self, kind):
        self._does("enable", kind)
        self.cupti.enabled[kind] = "all"
        if kind == layout.CONTEXT:
            for fields in self.cupti.contexts:
                self.cupti.write(layout.CONTEXT, **fields)

    def disable(self, kind):
        self._does("disable", kind)
        self.cupti.enabled.pop(kind, None)

    def only_launches(self, kind):
        self._does("only_launches", kind)
        assert kind in self.cupti.enabled, "single calls without their kind collect nothing"
        self.cupti.enabled[kind] = "launches"

    def callback_name(self, domain, number):
        return NAMES[domain].get(number, "")

    def use_system_thread_ids(self):
        self._does("use_system_thread_ids")
        before, self.cupti.thread_ids = self.cupti.thread_ids, 1

        def restore():
            self.cupti.thread_ids = before

        return restore

    def now_ns(self):
        return self.cupti.now_ns()

    def context_id(self, handle):
        return handle - 0xC000

    def device_info(self, index):
        self._does("device_info", index)
        return DeviceInfo(
            f"cuda:{index}", "cuda", index, "Fake GPU", f"GPU-{index}", 132, (9, 0), 1 << 37, "fake"
        )

    def stream_id(self, context, stream, *, per_thread=False):
        return 0x800 + threading.get_native_id() % 0x400 if per_thread else stream & 0xFFF


class OtherClient:
    """Somebody else's profiler, which registers callbacks of its own."""

    def __init__(self, cupti):
        self.cupti = cupti
        self.buffers = {}
        cupti.memory.append(lambda: self.buffers)
        self.got = []
        self._requested = collector.REQUESTED(self._request)
        self._completed = collector.COMPLETED(self._complete)

    def _request(self, at, size, most):
        array = np.zeros(BUFFER_BYTES, np.uint8)
        self.buffers[array.ctypes.data] = array
        at[0], size[0], most[0] = array.ctypes.data, BUFFER_BYTES, 0

    def _complete(self, _context, _stream, at, _size, used):
        self.got.append((at, used))

    def take_over(self, kinds=collector.KINDS):
        """Register; a buffer that is being filled comes back to this client, too."""
        self.cupti.callbacks = self._requested, self._completed
        for kind in kinds:
            self.cupti.enabled[kind] = "all"


# -- a GPU -----------------------------------------------------------------------------------
class FakeGpu:
    """A backend whose work takes a microsecond, and that CUPTI watches."""

    array_type = np.ndarray

    def __init__(self, cupti, index=0):
        self.cupti = cupti
        self.info = DeviceInfo(
            f"cuda:{index}", "cuda", index, "Fake GPU", f"GPU-{index}", 132, (9, 0), 1 << 37, "fake"
        )
        self.capabilities = Capabilities(
            streams=True, partitions=True, partition_path="composed quanta", arbitrary_split=False,
            stream_ordered_memory=True, compile_source=True, graphs=False,
        )  # fmt: skip
        self.layout = SmLayout(8, 16, 4)
        self.context = 1 + 100 * index
        """CUPTI's number of the device's own context."""
        self.globaltimer_ahead_ns = 0
        self.now_ns = cupti.now_ns
        self.canaries_arrive = True
        self._numbers = itertools.count(16).__next__
        self._contexts = itertools.count(self.context + 1).__next__
        self._spare = {}
        self._late = None
        self.open_streams = 0
        cupti.contexts.append({"context": self.context, "device": index})

    # work
    def is_inside(self):
        return False

    def hold(self):
        """Let what is launched from now on go on running: it leaves no record yet."""
        self._late = []

    def release(self):
        """Let it end."""
        late, self._late = self._late, None
        for kind, fields in late:
            self.cupti.write(kind, **fields)

    def _work(self, kind, **fields):
        start = fields.setdefault("start", self.now_ns())
        fields.setdefault("end", start + 1000)
        if self._late is not None:
            self._late.append((kind, fields))
        else:
            self.cupti.write(kind, **fields)
        return fields

    def call(self, callback, *, driver=False, thread=None, correlation=None, returned=0, **about):
        """Make an API call; returns its correlation."""
        number = correlation or self.cupti.next_correlation()
        start = self.now_ns()
        self.cupti.write(
            layout.DRIVER if driver else layout.RUNTIME,
            callback=callback, start=start, end=self.now_ns(), process=os.getpid(),
            thread=thread or threading.get_native_id(), correlation=number, returned=returned,
            **about,
        )  # fmt: skip
        return number

    def key_of(self, stream):
        """Return what is noted of a stream: a created one may be of another context."""
        is_created = stream not in (DEFAULT_STREAM, 0xFFFFFFFF)
        return is_created << 62 | self.context << 32 | stream

    def record(self, event, stream=DEFAULT_STREAM, *, handle=0, sync=None):
        """Record an event in a stream; ``sync`` is what a wait names."""
        number = self.call(RECORD, event=handle or event, handle=self.key_of(stream))
        self.cupti.write(
            layout.CUDA_EVENT, correlation=number,
            context=self.context, stream=stream, sync=sync or event,
        )  # fmt: skip

    def wait(self, callback, *, stream=0xFFFFFFFF, sync=0, context=None, handle=0):
        """Wait for a stream, an event, or all; or let a stream wait for an event."""
        kinds = {EVENT_SYNC: 1, STREAM_WAIT: 2, STREAM_SYNC: 3, DEVICE_SYNC: 4}
        about = {}
        if callback in (EVENT_SYNC, STREAM_WAIT):
            about["event"] = handle or sync
        if callback != EVENT_SYNC:
            about["handle"] = self.key_of(stream)
        number, start = self.call(callback, **about), self.now_ns()
        self.cupti.write(
            layout.SYNCHRONIZATION, type=kinds[callback], start=start, end=self.now_ns(),
            correlation=number, context=context or self.context, stream=stream, sync=sync,
        )  # fmt: skip

    def kernel(self, name, correlation, *, context=None, stream=DEFAULT_STREAM, grid=1, **fields):
        """Run a kernel that a call launched."""
        return self._work(
            layout.KERNEL, name=address(name), correlation=correlation, stream=stream,
            context=context or self.context, device=self.info.index, grid_x=grid, grid_y=1,
            grid_z=1, block_x=32, block_y=1, block_z=1, **fields,
        )  # fmt: skip

    def running(self, name):
        """Let another library launch a kernel that goes on; returns what ends it."""
        return self.cupti.run(
            layout.KERNEL, name=address(name), correlation=self.call(LAUNCH), stream=DEFAULT_STREAM,
            context=self.context, device=self.info.index, grid_x=1, grid_y=1, grid_z=1, block_x=32,
            block_y=1, block_z=1, start=self.now_ns(),
        )  # fmt: skip

    def foreign(self, name, *, on=None, thread=None, **fields):
        """Let another library launch a kernel, on a stream of ours or its own."""
        if on is not None:
            fields |= {"context": on.raw.context, "stream": on.raw.number}
        return self.kernel(name, self.call(LAUNCH, thread=thread), **fields)

    def foreign_graph(self, graph, *, nodes=3):
        """Let another library launch a graph, which is recorded whole if that is on."""
        correlation = self.call(GRAPH)
        common = {"context": self.context, "device": self.info.index, "stream": DEFAULT_STREAM}
        if layout.GRAPH in self.cupti.enabled:
            self._work(layout.GRAPH, correlation=correlation, graph=graph, **common)
        else:
            for node in range(nodes):
                self.kernel(f"node {node}", correlation, graph=graph, graph_node=node + 1)

    def foreign_copy(self, nbytes, *, kind=1, **fields):
        """Let another library copy, host to device unless said."""
        return self._work(
            layout.MEMCPY, correlation=self.call(COPY), bytes=nbytes, copy_kind=kind, src_kind=1,
            dst_kind=3, context=self.context, device=self.info.index, stream=DEFAULT_STREAM,
            **fields,
        )  # fmt: skip

    # what Device, Stream and Canaries need of a backend
    def process_and_thread(self):
        return os.getpid(), threading.get_native_id()

    def set_activity_sink(self, sink):
        pass

    def check_plan(self, plan):
        pass

    def make_partitions(self, planned):
        granted = []
        for one in planned:
            raw = self._spare.pop(one.parts, None)
            if raw is None:
                raw = SimpleNamespace(number=self._contexts(), parts=one.parts)
                self.cupti.contexts.append({
                    "context": raw.number, "device": self.info.index, "is_green": 1,
                    "parent": self.context, "sm_count": one.sm_count,
                })  # fmt: skip
            sms = tuple(8 * (part % 32) + sm for part in one.parts for sm in range(8))
            granted.append(GrantedPartition(raw, one.sm_count, sms, raw.number, one.sm_count))
        return granted

    def close_partition(self, raw):
        """Keep it: carving the same parts again gives the same context, as on a real GPU."""
        self._spare[raw.parts] = raw

    def context_handle(self, raw):
        return 0xC000 + (self.context if raw is None else raw.number)

    def make_stream(self, partition, priority, *, blocking=False):
        number = self._numbers()
        self.open_streams += 1
        context = self.context if partition is None else partition.number
        return SimpleNamespace(context=context, number=number), 0x70000 + number

    def stream_kind(self, raw):
        return "non-blocking"

    def close_stream(self, raw, handle):
        self.open_streams -= 1

    def sync_stream(self, raw):
        self.call(DRIVER_SYNC, driver=True)

    def synchronize(self):
        pass

    def wait_for_all(self, handles):
        self.waited_for = set(handles)

    def close(self):
        pass

    def empty(self, shape, dtype):
        return np.zeros(shape, dtype)

    def asarray(self, values):
        self.foreign_copy(values.nbytes)
        return values

    def to_host(self, array):
        self._work(
            layout.MEMCPY, correlation=self.call(DRIVER_COPY, driver=True), bytes=array.nbytes,
            copy_kind=2, context=self.context, device=self.info.index, stream=DEFAULT_STREAM,
        )  # fmt: skip
        return array

    def compile(self, source, name, model):
        return Kernel(name, source, model)

    def launch(self, stream, kernel, grid, block, args, correlation):
        canary = kernel.name == "gpuscope_canary"
        if canary and not self.canaries_arrive:
            return
        number = self.call(DRIVER_LAUNCH, driver=True)
        done = self.kernel(
            kernel.name, number, context=stream.context, stream=stream.number, grid=grid
        )
        if kernel.name == "gpuscope_globaltimer":
            args[0][0] = done["start"] + self.globaltimer_ahead_ns
        elif canary:
            args[0][:] = (
                done["start"] + self.globaltimer_ahead_ns + 300,
                done["end"] + self.globaltimer_ahead_ns - 300,
            )

    def use(self, stream, values):
        """Nothing: its arrays are host memory that nobody gives out again."""

    def copy(self, stream, destination, source, correlation):
        self._work(
            layout.MEMCPY, correlation=self.call(DRIVER_COPY, driver=True), bytes=source.nbytes,
            copy_kind=8, src_kind=3, dst_kind=3, context=stream.context, stream=stream.number,
            device=self.info.index,
        )  # fmt: skip


class FakeNvtx:
    """Our NVTX domain, of which CUPTI may be told."""

    def __init__(self, cupti, *, reaches=True):
        self.cupti = cupti
        self.reaches = reaches
        self.depth = 0
        self.pushed = []
        self._numbers = itertools.count(1).__next__
        self._open = threading.local()

    def get_event_attributes(self, message):
        return message

    def _mark(self, flags, marker, name):
        if self.reaches:
            self.cupti.write(
                layout.MARKER, flags=flags, time=self.cupti.now_ns(), marker=marker,
                process=os.getpid(), thread=threading.get_native_id(),
                name=address(name) if name else 0, domain=address("gpuscope"),
            )  # fmt: skip

    def push_range(self, name):
        vars(self._open).setdefault("stack", []).append(self._numbers())
        self.depth += 1
        self.pushed.append(name)
        self._mark(2, self._open.stack[-1], name)

    def pop_range(self):
        assert self._open.stack, "popped what was not pushed"
        self.depth -= 1
        self._mark(4, self._open.stack.pop(), None)


class World:
    """A process with a GPU, NVTX and CUPTI, in which recordings can be made.

    Parameters
    ----------
    monkeypatch
        Puts everything back.
    """

    def __init__(self, monkeypatch, *, gpus=1, ranges=True, version=VERSION, notes=True):
        monkeypatch.setattr(collector, "BUFFER_BYTES", BUFFER_BYTES)
        self.cupti = FakeCupti(version, notes=notes)
        self.library = FakeLibrary(self.cupti)
        self.collector = collector.Collector(self.library)
        self.cupti.memory.append(self._kept)
        monkeypatch.setattr(source, "get_collector", lambda: self.collector)
        self.nvtx = FakeNvtx(self.cupti, reaches=ranges)
        monkeypatch.setattr(nvtx, "domain", lambda: self.nvtx)
        monkeypatch.setattr(nvtx, "heard", 0)
        annotate.range_of.cache_clear()
        monkeypatch.setattr(annotate, "range_of", annotate.range_of.__wrapped__)
        numbers = itertools.count(1)
        self.gpus = [FakeGpu(self.cupti, index) for index in range(gpus)]
        self.devices = tuple(Device(gpu, correlations=numbers) for gpu in self.gpus)
        self.gpu, self.device = self.gpus[0], self.devices[0]

    def _kept(self):
        return set(self.collector._arrays)

    def recording(self, **options):
        """Return a recording of all devices that has not begun."""
        return Recording(options.pop("devices", self.devices), Options("cupti", **options))

    @contextlib.contextmanager
    def profile(self, **options):
        """Record what is done inside."""
        recording = self.recording(**options)
        recording.start()
        try:
            yield recording
        finally:
            recording.stop()

    def launch(self, stream, name="ours", **facts):
        """Launch a kernel of our own."""
        stream.launch(self.device.compile("", name), grid=1, block=32, **facts)


def rows(trace, kind, **equal):
    """Return rows of a trace as dicts."""
    return trace.where(kind=kind, **equal).spans.to_pylist()
