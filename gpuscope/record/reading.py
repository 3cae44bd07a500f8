"""Reading a recording: batches of what its calls, ranges and sources hold; all of it, or none."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuscope._fork import free_in_children
from gpuscope.device.device import Device
from gpuscope.record.blocks import BlockSource
from gpuscope.record.calls import CallRecorder
from gpuscope.record.clock import ClockFit
from gpuscope.record.counters import CounterSampler
from gpuscope.record.observers import RecordingObserver
from gpuscope.record.ranges import RangeLog
from gpuscope.record.rows import ROWS_AT_ONCE, Batch, Rows, keep, together
from gpuscope.record.sampler import ClockSampler
from gpuscope.record.source import NoteJournal, Source
from gpuscope.record.stacks import StackSampler
from gpuscope.record.window import PATIENCE_S, KeptBatches, Span


@dataclass(eq=False)
class Reading:
    """Reads what one recording holds, for one reader at a time.

    Attributes
    ----------
    devices, globaltimers
        Key of a device → the device, and how its %globaltimer stands to the recording's clock.
    sampler
        Reads clocks and power of GPUs.
    stacks
        Samples what Python's threads do.
    counters
        Samples the hardware counters of GPUs.
    keep_ns
        How long what ended is kept; ``None``: all the time.
    notes
        Gets what is missing.
    kept_batches
        The batches.
    journal
        Where what comes waits, if it does in a file.
    ending
        The thread that ends the recording, and since when; ``None`` before.
    waited
        Whether the recording's end waited for all work.
    lost
        Counts of what is missing: set by :meth:`account`.
    """

    calls: CallRecorder
    ranges: RangeLog
    observers: tuple[RecordingObserver, ...]
    sources: list[Source]
    devices: dict[str, Device]
    span: Span
    stacks: StackSampler
    counters: CounterSampler
    keep_ns: int | None
    notes: list[str]
    globaltimers: dict[str, ClockFit] = field(default_factory=dict)
    sampler: ClockSampler = field(init=False)
    lock: threading.Lock = field(default_factory=lambda: free_in_children(threading.Lock()))
    kept_batches: KeptBatches = field(default_factory=KeptBatches)
    journal: NoteJournal | None = None
    ending: tuple[int, int] | None = None
    waited: bool = True
    lost: dict[str, int] = field(default_factory=lambda: {"dropped": 0, "unmatched": 0})
    _drained: int = 0
    _all_read: bool = False

    def __post_init__(self) -> None:
        self.sampler = ClockSampler(self.opened, self.span.clock, self.counters.begin)

    def opened(self) -> dict[int, str]:
        """Return the GPUs that are open: index → UUID."""
        infos = [device.info for device in self.devices.copy().values()]
        return {info.index: info.uuid for info in infos if info.kind == "cuda"}

    def collect(self, *, over: bool = False) -> KeptBatches:
        """Make batches of what is new; all of it, or where that fails none."""
        with self.lock:  # keeps batches in order; launches do not wait for it
            return self._collect(over=over)

    def relieve(self) -> None:
        """Read, on the launch path, unless somebody else does."""
        if self.lock.acquire(timeout=PATIENCE_S):
            try:
                self._collect(over=False)
            finally:
                self.lock.release()

    def _collect(self, *, over: bool) -> KeptBatches:
        """Read, as the only one who does.

        What is read is handed out at one moment, by one assignment, and what is too old goes by
        it. Before it everything that reading changed can be undone, so that the next reading
        finds what this one found.
        """
        if self._all_read:
            return self.kept_batches
        if self.journal is not None and not over:
            with contextlib.suppress(OSError):  # a full disk hides them from who looks before
                self.calls.note_ended(self.journal)
        before = self.kept_batches
        self._settle()
        undo = together(
            self.calls.begin_reading(),
            self.ranges.begin_reading(),
            self.sampler.begin_reading(),
            self.stacks.begin_reading(),
            self.counters.begin_reading(),
            *(source.begin_reading() for source in self.sources),
            keep(self, "_drained", "_all_read"),
        )
        try:
            since_ns = self.span.since_ns(self.keep_ns)
            every = before.with_more(self._read(over=over, since_ns=since_ns))
            recent = every.since(since_ns)
            self.calls.blocks.forget(every.batches[: len(every.batches) - len(recent.batches)])
            self.kept_batches = recent
        except BaseException:
            if self.kept_batches is before:
                undo()
            raise
        self._settle()
        return self.kept_batches

    def _settle(self) -> None:
        """Forget what was handed out; done again where it was interrupted."""
        for source in self.sources:
            source.settle()
        self.calls.settle()
        self.ranges.settle()

    def _read(self, *, over: bool, since_ns: int) -> list[Batch]:
        """Return batches of what was taken in, at the end also of what is open."""
        at_once = max((source.rows_at_once for source in self.sources), default=ROWS_AT_ONCE)
        now_ns = self.span.clock()
        rows = Rows([], [], [], at_once, over, now_ns, since_ns=since_ns, ending=self.ending)
        self._all_read = over
        self.ranges.drain(rows)
        self.calls.drain(rows)
        for observer in self.observers:
            observer.read(over=over)
        for source in self.sources:
            source.drain(rows)
        self.sampler.drain(rows)
        self.stacks.drain(rows)
        self.counters.drain(rows, self.span.begin_ns)
        if over and not self.waited:
            for source in self.sources:
                for call in source.unfinished:
                    if call.graph is None:
                        self.calls.add_unfinished(call, source.name, rows)
        rows.freeze()
        if over and self.calls.blocks.devices:
            rows.batches += self.calls.blocks.read(self.devices, self.globaltimers)
            self.calls.blocks = BlockSource(self.calls.blocks.left_out)
        self._drained += rows.count
        return rows.batches

    def compare_globaltimers(self, source_of: Mapping[str, Source]) -> None:
        """Find how the clocks stand by which traced kernels told of their thread blocks."""
        traced = self.calls.blocks.devices
        if traced and not self.waited:
            self.notes.append("stopped without waiting: thread blocks were not read")
            self.calls.blocks = BlockSource()
            return
        for key in sorted(traced - self.globaltimers.keys()):
            self.globaltimers[key] = source_of[key].globaltimer(self.devices[key])

    def account(self) -> None:
        """Count what is missing: every row that was read is kept, every launch has one."""
        rows = self.kept_batches.rows_left_out + sum(
            batch.spans.num_rows for batch in self.kept_batches.batches
        )
        unfinished = [call for source in self.sources for call in source.unfinished]
        missing = [call for call in unfinished if self.waited or call.graph is not None]
        self.lost = {"dropped": abs(self._drained - rows), "unmatched": len(missing)}
        if self._drained != rows:
            self.notes.append(f"{self._drained} rows were read, but {rows} were kept")
        if missing:
            self.notes.append(
                f"{len(missing)} of our launches have no record of their end (the first: "
                f"{missing[0].name!r})"
            )
