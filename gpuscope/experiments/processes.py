"""The recordings of a program that ``gpuscope record`` runs, in each of its processes.

A process begins them when it opens a device or is about to use CUDA, and writes their traces into
one folder when it ends. What its program finds is what it would have found without.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from gpuscope._files import make_folder, write_text
from gpuscope._fork import free_in_children
from gpuscope._imports import EarlyImports
from gpuscope._optional import is_installed
from gpuscope._resource_limits import raised_limits
from gpuscope.device import select as devices
from gpuscope.errors import GpuscopeError
from gpuscope.experiments.recorded import (
    JOURNAL,
    VARIABLE,
    ProcessFacts,
    RecordingOrder,
    process_name,
)

if TYPE_CHECKING:
    from gpuscope.device.device import Device
    from gpuscope.record.recorder import Recording
    from gpuscope.record.source import NoteJournal
    from gpuscope.trace.model import Trace

_CUDA_INJECTION = "CUDA_INJECTION64_PATH"
"""Names the library that the CUDA driver loads and calls when a process initialises it."""
INJECTION = Path(__file__).parents[1] / "_injection.so"
BOOTSTRAP = Path(__file__).with_name("bootstrap")
"""A folder for PYTHONPATH: whoever starts Python with it runs :func:`begin`."""
_FIRST_S = 1.0
_SHARE, _LIVE_SHARE = 0.02, 0.1
"""How much of its time a process may write down what it has so far, where that takes its
interpreter: simulated devices, and where only the latest rows are kept."""
_PATIENCE_S = 20.0
"""How long a process that is told to terminate may take to write what it has."""

_recorders: list[_Recorder] = []
"""This process's one, where it is to record CUDA."""


def begin() -> None:
    """Record this process, and those forked from it, as the environment says.

    CUPTI is loaded when the driver says that the process begins to use CUDA: a process that does
    not pays nothing, and one that is forked before has a CUPTI of its own.
    """
    recorder = _Recorder(RecordingOrder(**json.loads(os.environ[VARIABLE])))
    devices.opened[recorder.opened] = None
    devices.holders.append(recorder.let_go)
    recorder.arrange()
    if recorder.order.device in ("auto", "cuda") and is_installed("cupti"):
        _recorders.append(recorder)
        if INJECTION.exists():
            os.environ.setdefault(_CUDA_INJECTION, str(INJECTION))
        if os.environ.get(_CUDA_INJECTION) != str(INJECTION):
            begin_cuda()  # another tool is told of CUDA, or nobody


def begin_cuda() -> None:
    """Record what CUPTI sees, if that is wanted: called inside the process's first call of CUDA."""
    for recorder in _recorders:
        recorder.begin_cuda()


class _Recorder:
    """The recordings of one process."""

    def __init__(self, order: RecordingOrder) -> None:
        self.order = order
        self._folder = Path(order.folder)
        self._imports = EarlyImports()
        self._lock = free_in_children(threading.RLock())
        self._journals: dict[int, NoteJournal] = {}
        """Of those that need none of this interpreter's time to be kept: what holds their rows."""
        self._forget()

    def _forget(self) -> None:
        """In a forked child: what was recorded is its parent's."""
        self._facts = ProcessFacts(os.getpid())
        self._key = f"{time.time_ns()}-{self._facts.pid}"
        self._recordings: dict[int, Recording] = {}
        """By the numbers of their traces."""
        while self._journals:
            self._journals.popitem()[1].close(remove=False)
        self._next = 1
        self._cuda: Recording | None = None
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._done = False
        self._depth = 0
        """In how many things that are to stay whole the main thread is."""
        self._put_off: int | None = None
        """The signal that came meanwhile."""
        self._is_terminated = False

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Let SIGTERM wait: it would wait for what the main thread holds here."""
        outer, is_main = self._depth, threading.current_thread() is threading.main_thread()
        try:
            if is_main:
                self._depth = outer + 1
            with self._imports.block():
                yield
        finally:
            if is_main:
                self._depth = outer
            if self._put_off is not None and not self._depth:
                os.kill(os.getpid(), self._put_off)

    def arrange(self) -> None:
        """Be there when the process ends, however it does."""
        os.register_at_fork(after_in_child=self._forget)
        sys.meta_path.insert(0, self._imports)
        self._finish_at_exit()
        os._exit = self._before(os._exit)  # type: ignore[assignment]
        os.execv = self._before_image(os.execv)
        os.execve = self._before_image(os.execve)
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminate)

    def _before(self, leave: Callable[[int], NoReturn]) -> Callable[[int], NoReturn]:
        def finish_and_leave(status: int) -> NoReturn:
            try:
                self.finish()
            finally:
                leave(status)

        return finish_and_leave

    def _before_image(self, become: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        """Write the traces of this process before another program takes its place."""

        def write_and_become(*given: Any, **named: Any) -> NoReturn:
            path = given[0] if given else named.get("path", "")
            if self._over.is_set() or not os.path.exists(path):  # noqa: PTH110 - takes all that exec does
                become(*given, **named)
            with self._whole(), self._lock, raised_limits():
                devices, cuda = self._end_all(), self._cuda is not None
                self._facts.ended = True
                if self._facts.name:
                    self._tell()
            try:
                become(*given, **named)
            finally:  # it was not possible: this program goes on
                self._facts.ended, self._cuda = False, None
                if self._facts.name:
                    self._tell()
                if cuda:
                    self.begin_cuda()
                for device in devices:
                    self.opened(device)

        return write_and_become

    def _end_all(self) -> list[Device]:
        """End every recording; returns the devices that were recorded."""
        recordings = [*self._recordings.items()]
        for number, _ in recordings:
            self._end(number)
        return [device for _, recording in recordings for device in recording.devices]

    def _terminate(self, number: int, _frame: FrameType | None) -> None:
        """End as a signal would have it; this thread may hold what finishing needs."""
        self._is_terminated = True
        if self._depth:  # such as where a process that ends is terminated
            if self._put_off is None:
                self._put_off = number
                killing = threading.Timer(_PATIENCE_S, os.kill, (os.getpid(), signal.SIGKILL))
                killing.daemon = True
                killing.start()
            return
        finishing = threading.Thread(target=self.finish, daemon=True)
        finishing.start()
        finishing.join(_PATIENCE_S)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    # -- beginning --------------------------------------------------------------------
    def opened(self, device: Device) -> None:
        """Record a device that the program opens."""
        kind = device.info.kind
        if self.order.device not in ("auto", kind) or self._over.is_set():
            return
        key = device.info.key
        with self._whole(), self._lock, self._noting(f"{key} is not recorded", lost=key):
            if kind == "cuda" and self._cuda is not None:
                self._cuda.add(device)
            else:
                self._begin((device,), "auto")
        self._finish_at_exit()

    def _finish_at_exit(self) -> None:
        """Finish before those that registered by now: who closes devices, and CUPTI's collector."""
        atexit.unregister(self.finish)
        atexit.register(self.finish)

    def begin_cuda(self) -> None:
        """Record what CUPTI sees of this process."""
        what = "what it does with CUDA is not recorded"
        with self._whole(), self._lock, self._noting(what, lost="CUDA"):
            if self._cuda is None and not self._over.is_set():
                self._cuda = self._begin((), "cupti")
        self._finish_at_exit()

    def _begin(self, devices: tuple[Device, ...], source: Literal["auto", "cupti"]) -> Recording:
        # Some of what ending needs cannot be imported at the interpreter's end.
        import concurrent.futures.thread  # noqa: F401, PLC0415

        from gpuscope.record.recorder import Recording  # noqa: PLC0415 - only where it is needed
        from gpuscope.record.source import Options  # noqa: PLC0415 - as above

        order = self.order
        is_simulated = any(device.is_simulated for device in devices)  # and its time another
        is_sampled = any(other.is_sampling for other in self._recordings.values())
        options = Options(
            source,
            order.detail,
            keep_ns=order.keep_ns,
            stacks=order.stacks,
            graphs=order.graphs,
            sample=0 if is_simulated or is_sampled else order.sample,
            counters_ns=order.counters_ns,
        )
        recording = Recording(devices, options)
        number = self._next
        self._next, self._recordings[number] = number + 1, recording
        try:
            recording.start(threads=True)
            path = self._folder / f"{self._key}-{number}{JOURNAL}"  # where others find what comes
            with self._noting("what there is so far is only in memory"):
                if journal := recording.journal(path):
                    self._journals[number] = journal
            recording.snapshot()
        except Exception:
            del self._recordings[number]
            if number in self._journals:
                self._journals.pop(number).close(remove=True)
            raise
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._write_regularly, name="gpuscope record", daemon=True
            )
            self._thread.start()
            self._tell()
        return recording

    @contextlib.contextmanager
    def _noting(self, what: str, *, lost: str = "") -> Iterator[None]:
        """Note what fails, and what of the program is lost by that: it goes on all the same."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - as said
            note = f"{what}: {error}"
            if note not in self._facts.notes:
                self._facts.notes.append(note)
            if lost and lost not in self._facts.lost:
                self._facts.lost.append(lost)
            self._tell()

    # -- writing ----------------------------------------------------------------------
    def _write_regularly(self) -> None:
        """Write what there is so far, now and then, for who looks and in case of a crash."""
        share = _LIVE_SHARE if self.order.live else _SHARE
        rest_s = 0.0
        while not self._over.wait(_FIRST_S):
            rest_s -= _FIRST_S
            what = "what there was so far was not written"
            with self._imports.block(), self._lock, self._noting(what):
                for number in self._journals:
                    with self._noting(what):
                        self._recordings[number].advance()
                unjournalled = self._recordings.keys() - self._journals.keys()
                if rest_s <= 0 and unjournalled:
                    began_s = time.monotonic()
                    for number in unjournalled:
                        self._write(number, self._recordings[number].snapshot())
                    self._tell()
                    rest_s = (time.monotonic() - began_s) / share

    def _meet_gpus(self) -> None:
        """Open the GPUs on which other libraries worked, to wait for them."""
        recording = self._cuda
        if recording is None or recording.devices or self._over.is_set():
            return
        from gpuscope.device.select import open_device  # noqa: PLC0415 - only where it is needed

        with self._noting("its GPU was not waited for"):
            for number in self._read_up(recording):
                open_device(f"cuda:{number}", quiet=True)

    def _read_up(self, recording: Recording) -> set[int]:
        """Make rows of what waits, part by part; returns the numbers of the GPUs that worked."""
        batches = recording.batches()
        for _ in range(recording.parts_waiting):  # what comes meanwhile is not waited for
            batches = recording.batches()
        devices = [batch.spans.column("device").drop_null().unique() for batch in batches]
        return {number for column in devices for number in column.to_pylist()}

    def finish(self) -> None:
        """End every recording and write its trace; what comes later is not recorded."""
        while not self._done:  # Ctrl-C ends waiting for the GPU and takes nothing away
            with contextlib.suppress(KeyboardInterrupt), self._whole(), raised_limits():
                self._finish()

    def _finish(self) -> None:
        for recording in self._recordings.values():
            recording.ends_now()
        self._meet_gpus()
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._end_all()
            if not self._done and self._facts.name:  # it told of itself before
                self._facts.ended = True
                self._tell()
            self._done = True
        if getattr(sys, "last_type", None) is KeyboardInterrupt:
            # Python ends by that signal, unless it has run text since, as some imports do.
            with contextlib.suppress(KeyboardInterrupt):
                exec("raise KeyboardInterrupt")  # noqa: S102 - as said

    def let_go(self) -> None:
        """Hold no simulated device that the program let go, for who counts those that are open."""
        with self._whole(), self._lock:
            references = {
                number: weakref.ref(device)
                for number, recording in self._recordings.items()
                for device in recording.devices
                if device.is_simulated
            }
            for number in references:
                self._end(number)
            gc.collect()
            for reference in references.values():
                if (device := reference()) is not None:
                    self.opened(device)

    def _end(self, number: int) -> None:
        """End a recording and write its trace; again does what is left."""
        recording = self._recordings[number]
        if number in self._journals and recording.has_begun and not recording.is_over:
            with self._noting("what waited was not read at once"):
                self._read_up(recording)
        trace = self._stopped(recording)
        if trace is not None and recording is self._cuda:
            trace = self._with_cost(trace, recording.devices)
        lost = recording.has_begun
        if trace is not None:
            with self._noting("a trace was not written"):
                self._write(number, trace)
                lost = False
        if lost:
            self._facts.lost.append(self._file(number))
        if number in self._journals:
            self._journals[number].close(remove=not lost)
            del self._journals[number]
        del self._recordings[number]

    def _stopped(self, recording: Recording) -> Trace | None:
        """Return the trace; where the GPU cannot be waited for, without that."""
        for wait in (True, False) if recording.has_begun else ():
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # the trace says what it lacks
                    if wait and recording is self._cuda:  # it knows no device to wait for
                        from gpuscope.device.cuda import driver  # noqa: PLC0415 - CUDA is there

                        driver.wait_for_current_context()
                    return recording.stop(wait=wait)
            except BaseException as error:  # noqa: BLE001 - the process ends anyway
                self._facts.notes.append(f"the recording did not end well: {error!r}")
        return None

    def _with_cost(self, trace: Trace, gpus: tuple[Device, ...]) -> Trace:
        """Return a trace that says what the recording cost, where that can be measured."""
        from gpuscope.record.cupti.cost import recording_cost, time_added  # noqa: PLC0415 - CUPTI is there

        if not gpus or self._is_terminated:
            return trace
        try:
            added = time_added(gpus[0], self.order.detail, stacks=self.order.stacks)
            cost = None if added is None else recording_cost(trace, added)
        except BaseException as error:  # noqa: BLE001 - the trace goes first
            self._facts.notes.append(f"what recording cost was not measured: {error!r}")
            return trace
        return trace.with_metadata(recording_cost=cost)

    def _write(self, number: int, trace: Trace) -> None:
        from gpuscope.trace.store import save_trace  # noqa: PLC0415 - only where it is needed

        if {*trace.spans.column("source").unique().to_pylist()} - {"host"}:  # not only threads
            file = self._file(number)
            make_folder(self._folder)  # the program may have taken it away
            save_trace(trace, self._folder / file)
            self._facts.traces[file] = trace.kind_counts()

    def _file(self, number: int) -> str:
        return f"{self._key}-{number}.parquet"

    def _tell(self) -> None:
        facts = self._facts
        facts.name, facts.at_ns = process_name(), time.time_ns()
        with contextlib.suppress(GpuscopeError):  # there is no room
            make_folder(self._folder)
            write_text(self._folder / f"{self._key}.json", json.dumps(asdict(facts)))
