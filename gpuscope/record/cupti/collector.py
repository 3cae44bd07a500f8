"""CUPTI is one per process: who collects, the buffers it fills, and handing them on.

While work is launched, the only Python that runs here hands CUPTI a prepared buffer now
and then, and keeps the address of one that is full.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gpuscope._fork import free_in_children
from gpuscope._libcupti import NVTX_INJECTION, arranged
from gpuscope._types import Array
from gpuscope.errors import CapabilityError, GpuscopeError, RecorderBusy
from gpuscope.record.cupti import layout, order
from gpuscope.record.cupti.library import (
    COMPLETED,
    DRIVER_API,
    REQUESTED,
    RUNTIME_API,
    Library,
    Refused,
)

BUFFER_BYTES = 32 << 20
"""Few and large: each costs the launching thread a call into Python."""
_PREPARED = 3
"""Buffers whose pages are there before CUPTI asks, so that no launch waits for the kernel."""

_WORK_KINDS = (layout.KERNEL, layout.MEMCPY, layout.MEMSET, layout.PEER_COPY)
KINDS = (*_WORK_KINDS, layout.CONTEXT, layout.STREAM, layout.MARKER, layout.MARKER_DATA)
"""Recorded always."""
BY_NODE = -1
"""Instead of a period: no graph is recorded whole."""
_API_KINDS: Mapping[str, tuple[int, ...]] = {
    "none": (),
    "runtime": (layout.RUNTIME,),
    "launches": (layout.RUNTIME, layout.DRIVER),
    "all": (layout.RUNTIME, layout.DRIVER),
}
"""What API calls to record → kinds, from little to much."""
_DOMAINS = {layout.RUNTIME: RUNTIME_API, layout.DRIVER: DRIVER_API}
"""Kind of records of API calls → whose these are."""

Sink = Callable[[int, Array], None]
"""Takes the number of a buffer and its bytes, which it must not change. A number that comes again
is the same buffer."""


class _Owner(NamedTuple):
    """A recording, and what it asked for: see :meth:`Collector.begin`."""

    sink: Sink
    limit: int
    apis: str
    graph_period_ns: int


class Collector:
    """Shares CUPTI among the recordings of a process.

    Parameters
    ----------
    library
        The calls of libcupti.
    """

    def __init__(self, library: Library) -> None:
        self.library = library
        self.sizes = layout.record_sizes(library.version)
        self.refused = 0
        """Buffers that were refused because of the memory limit, ever."""
        self._dropped = 0
        self.flights = free_in_children(threading.Lock())
        """Held while a recording sends canaries: none begins amid another's."""
        self._lock = free_in_children(threading.RLock())
        self._owners: dict[int, _Owner] = {}
        self._undo = contextlib.ExitStack()
        self._arrays: dict[int, Array] = {}
        self._ready: list[Array] = []
        self._numbers: dict[int, int] = {}
        """Address of a buffer → its number, a new one each time that CUPTI asks for one."""
        self._full: list[tuple[int, int]] = []
        self._given: set[int] = set()
        """Numbers of buffers that every recording was given, whose arrays are still here."""
        self._next_number = itertools.count(1).__next__
        self._launches: list[tuple[int, bytes]] = []
        """Launches that were noted, with a number each time that they are taken."""
        self.notes_launches = False
        """Whether launches are noted, so that CUPTI records API calls only where all are wanted."""
        self._subscription: Any = None
        self._noted = "none"
        self._steps: list[Callable[[], object]] = []
        """What is left to do of an end that was interrupted."""
        self._limit = 0
        self._apis = "none"
        self._graph_period_ns = BY_NODE
        self._get_nodes: set[int] = set()
        """Owners that want graphs whole and get their nodes, as another owner does."""
        self._registered = False
        self._process = os.getpid()
        # C keeps their addresses, also when nothing is recorded.
        self._requested = REQUESTED(self._request)
        self._completed = COMPLETED(self._complete)
        self.note: str | None = None
        """What is worth knowing about who else uses CUPTI."""
        atexit.register(self._at_exit)

    # -- what CUPTI calls, on any thread ----------------------------------------------
    def _request(self, buffer: Any, size: Any, most: Any) -> None:
        most[0] = 0
        if (len(self._arrays) + 1) * BUFFER_BYTES > self._limit:
            self.refused += 1
            buffer[0], size[0] = None, 0
            return
        array = self._ready.pop() if self._ready else np.zeros(BUFFER_BYTES, np.uint8)
        address = array.ctypes.data
        self._numbers[address] = self._next_number()
        self._arrays[address] = array
        buffer[0], size[0] = address, BUFFER_BYTES

    def _complete(self, _context: Any, _stream: int, buffer: int, _size: int, used: int) -> None:
        if buffer in self._arrays:  # else it belongs to a client that was there before us
            self._full.append((buffer, used))

    # -- owners -----------------------------------------------------------------------
    def begin(
        self, owner: int, sink: Sink, *, apis: str, limit: int, graph_period_ns: int = BY_NODE
    ) -> None:
        """Collect for one more recording.

        Parameters
        ----------
        apis
            ``"none"``, ``"runtime"`` (launches by the CUDA runtime), ``"launches"`` (by the
            driver's calls, too) or ``"all"``: which API calls to record.
        limit
            Bytes of buffers at most while several record, the largest counts.
        graph_period_ns
            Each graph is recorded whole, but for the first launch in so many ns, whose nodes are;
            0: whole always; :data:`BY_NODE`: all nodes always. Of several the least period counts;
            once one wants all nodes, all get them until they end.

        Raises
        ------
        RecorderBusy
            Another client of CUPTI is recording in this process.
        GpuscopeError
            This process was forked from one that used CUPTI.
        """
        with self._lock:
            if os.getpid() != self._process:
                raise GpuscopeError(
                    "this process was forked from one that uses CUDA and CUPTI, and neither "
                    "works in a forked child: start it with multiprocessing's 'spawn' method"
                )
            first = not self._owners
            self._owners[owner] = _Owner(sink, limit, apis, graph_period_ns)
            self._limit = max(recording.limit for recording in self._owners.values())
            self.library.limit_launches(self._limit)
            try:
                if first:
                    self._open()
                self._choose_apis()
                self._choose_graphs()
            except BaseException:
                with contextlib.suppress(Exception):  # the first error tells more
                    self.end(owner, taken_over=False)
                raise

    def _open(self) -> None:
        library = self.library
        self.note = None
        try:
            self._subscription = library.subscribe()
            self._undo.callback(library.unsubscribe, self._subscription)
            self.notes_launches = library.notes_launches
        except Refused as error:
            self.note = _tolerate(str(error))
        self._undo.callback(library.use_system_thread_ids())
        library.promise_zeroed_buffers(promised=True)
        self._undo.callback(library.promise_zeroed_buffers, promised=False)
        self._prepare()
        with contextlib.suppress(CapabilityError):  # nobody has registered before
            library.flush(forced=True)  # a buffer of another client's goes back to it
        self._registered = True
        library.register(self._requested, self._completed)
        for kind in KINDS:
            library.enable(kind)

    def _choose_apis(self) -> None:
        rank = list(_API_KINDS)
        wanted = [recording.apis for recording in self._owners.values()]
        if self.notes_launches:
            launches = (detail for detail in wanted if detail != "all")
            noted = max(launches, key=rank.index, default="none")
            if noted != self._noted:
                self._noted = "unknown"  # should it fail half-way
                domains = map(_DOMAINS.__getitem__, _API_KINDS[noted])
                self.library.note_launches(self._subscription, *domains)
                self._noted = noted
            wanted = [detail for detail in wanted if detail == "all"]
        apis = max(wanted, key=rank.index, default="none")
        if apis == self._apis:
            return
        before, self._apis = self._apis, "all"  # should it fail half-way
        for kind in _API_KINDS["all"]:
            if kind in _API_KINDS[apis]:
                self.library.enable(kind)
                if apis != "all":
                    self.library.only_launches(kind)
            elif kind in _API_KINDS[before]:
                self.library.disable(kind)
        self._apis = apis

    def pause(self, *, paused: bool) -> None:
        """Have CUPTI record nothing, and tell of nothing; or all again that is asked for."""
        with self._lock:
            if paused:
                for kind in (*_API_KINDS[self._apis], *KINDS):
                    self.library.disable(kind)
                if self.notes_launches:
                    self.library.note_launches(self._subscription)
                self._apis = self._noted = "none"
            else:
                for kind in KINDS:
                    self.library.enable(kind)
                self._choose_apis()

    @property
    def is_recording(self) -> bool:
        """Whether it collects for a recording."""
        return bool(self._owners)

    def _choose_graphs(self) -> None:
        """Record graphs whole as far as all owners want that, and launches are noted."""
        periods_ns = {owner: asked.graph_period_ns for owner, asked in self._owners.items()}
        if BY_NODE in periods_ns.values():
            self._get_nodes |= {owner for owner, period in periods_ns.items() if period != BY_NODE}
        self._get_nodes &= periods_ns.keys()
        period_ns = BY_NODE
        if self._noted == "launches" and periods_ns and not self._get_nodes:
            period_ns = min(filter(None, periods_ns.values()), default=0)
        if period_ns != self._graph_period_ns:
            self._graph_period_ns = BY_NODE  # should it fail
            self.library.record_graphs(period_ns)
            self._graph_period_ns = period_ns

    def why_by_node(self, owner: int) -> str:
        """Return why an owner that wants graphs whole gets nodes; ``""``: it does not."""
        if owner in self._get_nodes:
            return "another recording at the same time wants them"
        if self._graph_period_ns == BY_NODE:
            return "gpuscope cannot note who launches them"
        if self.library.met_unknown_graph:
            return (
                "one was launched that had been instantiated before the recording, and CUPTI "
                "crashes where it records such a graph whole. Instantiate graphs in the recording, "
                "or run the program with: gpuscope record --graphs launch"
            )
        return ""

    def _prepare(self) -> None:
        """Have buffers ready whose pages exist."""
        while len(self._ready) < _PREPARED:
            self._ready.append(np.full(BUFFER_BYTES, 0, np.uint8))

    def end(self, owner: int, *, taken_over: bool) -> None:
        """Stop collecting for a recording; what CUPTI keeps of us goes with the last one.

        Parameters
        ----------
        taken_over
            Another client registered its own callbacks: what it enabled stays enabled.
        """
        with self._lock:
            if owner not in self._owners:
                return
            if len(self._owners) > 1:
                del self._owners[owner]
                self._choose_apis()
                self._choose_graphs()
                return
            self._steps = self._steps or self._last_steps(taken_over=taken_over)
            first: BaseException | None = None
            while self._steps:
                try:
                    self._steps[0]()
                except BaseException as error:  # noqa: BLE001 - all the same what is left is done
                    first = first or error
                del self._steps[0]
            if first is not None:
                raise first

    def _last_steps(self, *, taken_over: bool) -> list[Callable[[], object]]:
        """Return what ends the last recording, in order."""
        steps: list[Callable[[], object]] = []
        if self._registered:  # nothing guards launches of graphs when the subscription is gone
            steps += [partial(self.library.record_graphs, BY_NODE)]
        if self._registered and not taken_over:
            kinds = (*order.KINDS, *reversed(KINDS), *_API_KINDS["all"])
            steps += [partial(self.library.disable, kind) for kind in kinds]
            steps += [partial(self.library.flush, forced=True), self._hand_over_rest]
        return [*steps, self._forget, self._undo.close, self._owners.clear]

    def _forget(self) -> None:
        """Let go of all buffers but those that CUPTI has not given back: it may write to them."""
        given = (address for address in self._arrays if self._numbers[address] in self._given)
        for address in [*given, *(address for address, _ in self._full)]:
            self._arrays.pop(address, None)
        self._full.clear()
        self._given.clear()
        self._ready.clear()
        self._registered = self.notes_launches = False
        self._apis = self._noted = "none"
        self._graph_period_ns = BY_NODE
        self._get_nodes.clear()
        self._launches.clear()

    @property
    def is_shared(self) -> bool:
        """Whether several recordings collect."""
        return len(self._owners) > 1

    def collect(self, *, forced: bool) -> None:
        """Have CUPTI hand over what it has, and give it to every recording.

        Parameters
        ----------
        forced
            Also what is not complete: work that is running gets no end then, in any recording.
        """
        with self._lock:
            if os.getpid() != self._process or not self._owners:
                return
            self.library.flush(forced=forced)
            self._hand_over()
            if not forced:
                self._prepare()

    def _hand_over(self) -> None:
        """Give full buffers to every recording; one that was not given to all stays full."""
        if self.notes_launches:
            dropped = self.library.take_launches(self._launches, self._next_number)
            self._dropped += dropped
            self.refused += bool(dropped)
        while self._launches:
            number, noted = self._launches[0]
            for recording in self._owners.values():
                recording.sink(number, np.frombuffer(noted, np.uint8))
            del self._launches[0]
        while self._full:
            address, used = self._full[0]
            array, number = self._arrays[address], self._numbers[address]
            records = array[:used]
            small = used < BUFFER_BYTES // 2
            if small:
                records = records.copy()
            for recording in self._owners.values():
                recording.sink(number, records)
            self._given.add(number)  # an interrupt may leave its array here
            del self._full[0]
            self._arrays.pop(address, None)
            self._given.discard(number)
            if small and len(self._ready) < _PREPARED:
                array[:used] = 0
                self._ready.append(array)

    def _hand_over_rest(self) -> None:
        """Give on the buffers that CUPTI gave back without our knowing, when all is disabled.

        An interrupt (Ctrl-C) that Python raises inside a C callback is printed and forgotten,
        and the callback with it. What nobody wrote to is zero, and so is what was given on: CUPTI
        may think that it has them, so they stay, and no later recording is to be given them.
        """
        for address in self._arrays.keys() - {address for address, _ in self._full}:
            number, array = self._numbers[address], self._arrays[address]
            if number not in self._given and array.any():
                records = array.copy()
                array[:] = 0
                for recording in self._owners.values():
                    recording.sink(number, records)

    @property
    def dropped(self) -> int:
        """Records that CUPTI dropped, ever."""
        with self._lock:
            self._dropped += self.library.dropped()
            return self._dropped

    def _at_exit(self) -> None:
        """Have CUPTI call nothing of ours once the interpreter is gone."""
        if os.getpid() == self._process and self._owners:
            with contextlib.suppress(Exception):
                self.collect(forced=True)
                for owner in list(self._owners):
                    self.end(owner, taken_over=False)


def _tolerate(holder: str) -> str:
    """Return a note where the holder of the subscription is known to be idle; or refuse.

    PyTorch's profiler keeps the subscription when it has finished, without a name. So does
    Nsight Systems, which has set NVTX's variable.
    """
    torch = sys.modules.get("torch")
    unnamed = not holder or "<not provided>" in holder
    tool = os.environ.get(NVTX_INJECTION)
    if unnamed and tool and not arranged():
        holder, unnamed = f"the tool that {NVTX_INJECTION} names ({tool})", False
    if torch is not None and unnamed and not _torch_records(torch):
        return "PyTorch's profiler was used before and keeps CUPTI's subscription"
    who = holder if not unnamed else "another tool" if torch is None else "PyTorch's profiler"
    raise RecorderBusy(
        f"another CUPTI client is recording in this process: {who}. CUPTI serves one at a time. "
        "End it first (leave its with block, or start the program without the tool), or record "
        "with profile(source='events')"
    )


def _torch_records(torch: Any) -> bool:
    """Whether PyTorch's profiler is on; yes where it cannot be told."""
    try:
        return bool(torch.autograd._profiler_enabled())
    except AttributeError:
        return True


_collector: Collector | None = None
_making = free_in_children(threading.Lock())


def get_collector() -> Collector:
    """Return the process's collector; loads libcupti at first use.

    Raises
    ------
    MissingDependency, CapabilityError
        cupti-python or libcupti is absent or too old.
    """
    global _collector  # noqa: PLW0603 - CUPTI is one per process
    with _making:
        if _collector is None:
            _collector = Collector(Library())
        return _collector
