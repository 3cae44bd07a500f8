"""The recorder: watches devices, collects rows, hands out batches, ends as a Trace."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from gpuscope import _interrupts, _sites
from gpuscope._threads import thread_number
from gpuscope.device.device import Device
from gpuscope.errors import GpuscopeError
from gpuscope.record import nvtx, ranges
from gpuscope.record.calls import CallRecorder
from gpuscope.record.counters import CounterSampler
from gpuscope.record.facts import (
    clock_name,
    info_facts,
    one_clock,
    partition_facts,
    process_name,
    rank_facts,
    system_threads,
    thread_names,
    versions,
    with_memory_rate,
)
from gpuscope.record.observers import Happened, observers_for, to_all
from gpuscope.record.ranges import RangeLog
from gpuscope.record.reading import Reading
from gpuscope.record.rows import Batch
from gpuscope.record.source import Calibration, NoteJournal, Options, Source
from gpuscope.record.sources import start_sources
from gpuscope.record.stacks import StackSampler
from gpuscope.record.window import FULL, OVERFULL, KeptBatches, Span, WindowReader, inside, note_of
from gpuscope.trace import schema, valid
from gpuscope.trace.combining import in_all
from gpuscope.trace.facts import ClockFacts, KeptFacts, RankFacts, StreamFacts
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace

_OTHER_TIME = "a simulated GPU's time is not that of Python's threads"
_DEFAULT_STREAMS = (0, 1, 2)
"""CUDA's handles of the default streams, for which a wait for the device waits."""


class Recording:
    """A recording made by :func:`gpuscope.profile`: rows while it runs, then a trace.

    Parameters
    ----------
    devices
        Devices that share one clock; without any, ranges and what CUPTI sees of this process.
    options
        What CUPTI records, and whether it is used.

    Attributes
    ----------
    ranges
        Takes ranges that no CUPTI reports.
    observers
        What else follows the calls, such as what looks for hazards.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> kernel = gs.workloads.spin_kernel(gpu)
    >>> with gpu.create_stream() as stream, gs.profile(gpu) as recording:
    ...     stream.launch(kernel, 5_000, grid=1, block=32)
    ...     stream.synchronize()
    ...     recording.is_over, recording.snapshot().kind_counts()["kernel"]
    (False, 1)
    >>> recording.is_over, len(recording.trace) == len(recording.snapshot())
    (True, True)
    """

    def __init__(self, devices: tuple[Device, ...], options: Options | None = None) -> None:
        self._simulated = one_clock(devices) == "virtual"
        self._on_gpu = any(device.info.kind == "cuda" for device in devices) or not devices
        self.devices = devices
        clock = devices[0].now_ns if devices else time.time_ns
        self._process = self._made_in = os.getpid()
        thread: Callable[[], int] = thread_number
        if devices:  # a simulated device's numbers are not the system's
            numbers = devices[0].backend.process_and_thread
            self._process, thread = numbers()[0], lambda: numbers()[1]
        self._options = options or Options()
        self.sources: list[Source] = []
        self._source_of: dict[str, Source] = {}  # by the keys of the devices that they time
        self.ranges = RangeLog(clock, thread, self._process)
        self.observers, self._notes = observers_for(self._options)
        note = to_all(self.observers)
        self._calls = CallRecorder(self._source_of, self.ranges, self._process, note)
        self._libraries = contextlib.ExitStack()
        self._span = Span(clock, None if self._simulated else time.monotonic_ns)
        by_key = {device.info.key: device for device in devices}
        read = (self._calls, self.ranges, self.observers, self.sources)
        stacks = StackSampler(self._options.sample, self._process)
        counters = CounterSampler(self._options.counters_ns if self._on_gpu else 0)
        keep_ns, notes = self._options.keep_ns, self._notes
        self._reading = Reading(*read, by_key, self._span, stacks, counters, keep_ns, notes)
        self._reader: WindowReader | None = None  # where only the latest rows are kept
        self._asks_for_sites = False
        self._trace: Trace | None = None
        self._system_threads: dict[str, str] = {}
        self._rank: RankFacts | None = None  # kept: its process group may be gone at the end
        self._clocks: dict[int, Mapping[str, Calibration]] = {}  # of the sources that are closed

    def start(self, *, threads: bool = False) -> None:
        """Begin to watch.

        Parameters
        ----------
        threads
            Whether to note what Python's threads wait for from each other.

        Raises
        ------
        RecorderBusy
            Another client of CUPTI records in this process.
        MissingDependency, CapabilityError
            CUPTI was asked for and is not there.
        """
        _interrupts.install()
        self._span.begin()  # first: from now on there is something to stop
        self._reading.counters.begin(self._reading.opened(), wait=True)
        self._ask_for_sites(asks=self._options.stacks)
        self._notes += start_sources(self.devices, self._options, self.sources, self._source_of)
        for device in self.devices:
            self._calls.watch(device)
        for observer in self.observers if self._on_gpu else ():
            self._libraries.enter_context(observer.watching())
        self._span.begin()
        if self._on_gpu:
            self._reading.sampler.start()
        if self._options.sample:
            why_not = _OTHER_TIME if self._simulated else self._reading.stacks.start()
            if why_not:
                self._notes.append(f"stacks are not sampled: {why_not}")
        if threads and not self._simulated:
            from gpuscope.record import handover  # noqa: PLC0415 - not every Python has all of it

            self._libraries.callback(handover.watch, self.ranges, on=False)
            handover.watch(self.ranges, on=True)
        if not any(source.sees_ranges for source in self.sources):
            ranges.hear(self.ranges, on=True)
        if without_nvtx := nvtx.missing():
            self._notes.append(without_nvtx)
        if (keep_ns := self._options.keep_ns) is None:
            return
        # On a GPU a thread reads; elsewhere who makes calls, so a simulated program at the same.
        full = OVERFULL if self._on_gpu else FULL
        for log in (self._calls, self.ranges):
            log.relieve_at(full, self._reading.relieve)
        for observer in self.observers:
            observer.relieve_at(full, self._reading.relieve)
        if self._on_gpu:
            self._reader = WindowReader(self.batches, keep_ns, self._notes)
            self._reader.start()

    def add(self, device: Device) -> None:
        """Watch one more GPU, opened while a recording of what CUPTI sees was on."""
        with self._reading.lock:
            for source in self.sources:
                source.add(device)
                self._source_of[device.info.key] = source
            self.devices = (*self.devices, device)
            self._reading.devices[device.info.key] = device
            self._calls.watch(device)

    def stop(self, *, wait: bool = True) -> Trace:
        """Stop watching, and return the trace.

        Parameters
        ----------
        wait
            Whether to wait for the work launched. Otherwise work that is still running has no end
            in the trace.
        """
        if self._trace is not None:
            return self._trace
        if os.getpid() != self._made_in:
            raise GpuscopeError(
                "a recording ends in the process that began it: this one was forked from it"
            )
        ranges.hear(self.ranges, on=False)
        try:
            if wait:
                self.ends_now()
                self._wait()
        except BaseException:
            self._end(waited=False)
            raise
        self._end(waited=wait)
        return self.trace

    def ends_now(self) -> None:
        """Take what this thread waits for from now on for the recording's own."""
        self._reading.ending = self._reading.ending or (thread_number(), self._span.clock())

    def _wait(self) -> None:
        """Wait for what anybody launched on streams of ours, or that guards selected."""
        foreign = {handle for source in self.sources for handle in source.foreign_streams}
        for device in self.devices:
            # Held meanwhile: the driver may crash at the handle of a stream that was destroyed.
            streams = [stream for stream in device.streams if not stream.capturing]
            ours = {stream.handle for stream in streams}
            device.backend.wait_for_all([*(ours | foreign).difference(_DEFAULT_STREAMS)])

    def _end(self, *, waited: bool) -> None:
        """Record no more, and make the trace; where that failed, again does what is left."""
        if self._reader is not None:
            self._reader.close()
        self._reading.stacks.close()  # before the others, whose threads it leaves out
        self._reading.sampler.close()
        self._reading.counters.close()
        self._ask_for_sites(asks=False)
        self._libraries.close()
        for device in self.devices:
            device.calls.unobserve(self._calls)
        with self._reading.lock:  # nobody reads batches meanwhile
            for source in self.sources:
                source.finish(wait=waited)
        if not self._span.is_over:
            self._span.end()
            if not any(source.compares_clocks for source in self.sources):
                self._notes += self._span.step_notes()
        self._reading.waited = waited
        self._reading.compare_globaltimers(self._source_of)
        kept_batches = self._reading.collect(over=True)
        self._reading.account()
        with self._reading.lock:
            self._reading.journal = self._reading.stacks.journal = None
        for index, source in enumerate(self.sources):
            if index not in self._clocks:
                self._clocks[index] = source.close()
        clocks = {name: facts for part in self._clocks.values() for name, facts in part.items()}
        for key, fit in self._reading.globaltimers.items():
            clocks.setdefault(f"globaltimer {key}", fit.facts())
        self._trace = self._join(kept_batches, clocks)
        if not self._trace.metadata.complete:
            notes = "; ".join(self._trace.metadata.notes)
            warnings.warn(f"the recording is incomplete: {notes}", stacklevel=3)

    def _ask_for_sites(self, *, asks: bool) -> None:
        if asks and _sites.missing:
            self._notes.append(f"launch sites are not recorded: {_sites.missing}")
        _sites.ask_for_sites(asks - self._asks_for_sites)
        self._asks_for_sites = asks

    def happened(self) -> list[Happened]:
        """Return what observers follow, in the order of the host's calls, from a first mark on.

        Nothing without ``hazards=True``, or a mark: :func:`gpuscope.races.watch` makes one.
        """
        return [piece for observer in self.observers for piece in observer.happened()]

    def snapshot(self) -> Trace:
        """Return a trace of what was recorded so far. The recording continues."""
        return self._trace if self._trace is not None else self._join(self._reading.collect(), {})

    def _join(self, kept_batches: KeptBatches, clocks: Mapping[str, Calibration]) -> Trace:
        spans = schema.concat([batch.spans for batch in kept_batches.batches], schema.SPAN_TYPES)
        if not self._options.stacks:  # another recording may ask for sites
            spans = schema.with_column(spans, "site", pa.nulls(spans.num_rows))
        edges = schema.concat([batch.edges for batch in kept_batches.batches], schema.EDGE_TYPES)
        facts = None
        if self._options.keep_ns is not None:
            spans, edges, kept_batches = inside(spans, edges, kept_batches)
            more = self._calls.forgotten + self._calls.blocks.left_out
            facts = kept_batches.facts(self._options.keep_ns, self._span.begin_ns, more)
        if any(source.may_lack_work for source in self.sources) and edges.num_rows:
            launches = pc.equal(edges.column("kind").cast(pa.string()), "launch")
            waits = valid.between(edges.filter(pc.invert(launches)), spans.column("id"))
            edges = schema.concat([edges.filter(launches), waits], schema.EDGE_TYPES)
        metadata = self._metadata(clocks, facts)
        spans, edges, left = valid.sifted(spans, edges)  # a clock that was set loses no recording
        if left:
            counts = {**metadata.counts, **{f"{what} left out": n for what, n in left.items()}}
            metadata = replace(metadata, complete=False, counts=counts)
        trace = Trace(spans, edges, metadata)
        orders = [order for source in self.sources if (order := source.order())]
        for observer in self.observers if self._on_gpu else ():
            trace = observer.placed(trace, *orders)
        return trace

    def known(self) -> TraceMetadata:
        """Return what is known by now of devices, streams and partitions, at little cost."""
        return replace(self._metadata({}), gpu_states=())

    @property
    def has_begun(self) -> bool:
        """Whether it was started, so that there is something to stop."""
        return self._span.has_begun

    @property
    def is_sampling(self) -> bool:
        """Whether it samples stacks, or has."""
        return self._reading.stacks.facts() is not None

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
            The recording is still running: leave its ``with`` block first.
        """
        if self._trace is None:
            raise GpuscopeError(
                "the recording is still on: leave the with block first, or read batches()"
            )
        return self._trace

    def batches(self, since: int = 0) -> list[Batch]:
        """Return the batches from number ``since`` on; new rows become one more batch.

        Batches never change, and the trace is their concatenation: remember the number of the last
        that you have read, and continue behind it. Where only the latest rows are kept, old
        batches are dropped; the first one's number tells how many of them you came too late for.
        """
        return self._reading.collect().from_number(since)

    def journal(self, path: Path | None = None) -> NoteJournal | None:
        """Let what comes wait where another process can read it, too: :meth:`advance` tells it.

        Parameters
        ----------
        path
            Of a new file, which :meth:`batches` reads part by part; ``None``: in memory, or where
            it waits already.

        Returns
        -------
        NoteJournal or None
            ``None`` where nothing needs that, some of it was read, or only the latest is kept.

        Raises
        ------
        OSError
            The file cannot be made.
        """
        with self._reading.lock:
            if self._reading.journal is None and self._is_untouched:
                self._reading.journal = self.sources[0].journal(path)
                self._reading.stacks.journal = self._reading.journal
        return self._reading.journal

    @property
    def sees_ranges(self) -> bool:
        """Whether what waits in the journal tells all ranges."""
        return all(source.sees_ranges for source in self.sources)

    def advance(self) -> None:
        """Let the journal take in what is new.

        Raises
        ------
        OSError
            Something could not be written: it is in memory instead.
        """
        metadata = self.known()
        with self._reading.lock:
            if (journal := self._reading.journal) is not None:
                journal.advance(metadata)
                self._reading.stacks.take()
                self._calls.note_ended(journal)

    @property
    def _is_untouched(self) -> bool:
        """Whether one source records, everything is kept, and none of it was read."""
        touched = self._reading.kept_batches.next or self._options.keep_ns
        return len(self.sources) == 1 and not touched and not self.is_over

    @property
    def parts_waiting(self) -> int:
        """How often :meth:`batches` has to be called for all that has come."""
        return max((source.parts_waiting for source in self.sources), default=0)

    def _metadata(
        self, clocks: Mapping[str, Calibration], kept_facts: KeptFacts | None = None
    ) -> TraceMetadata:
        # Those who launch add to these meanwhile: a copy is made at once, a loop is not.
        partitions = self._calls.partitions.copy()
        received = self._calls.received + self._calls.forgotten + self._calls.open_count
        counts = Counter({"received": received, **self._reading.lost})
        notes, begin_ns = [*self._notes, *self._reading.counters.notes], self._span.begin_ns
        if kept_facts is not None and kept_facts.since_ns > begin_ns:
            begin_ns = kept_facts.since_ns
            notes.append(note_of(kept_facts))
        complete = not any(self._reading.lost.values())
        every = [source.facts() for source in self.sources]
        devices = {key: facts for of_source in every for key, facts in of_source.devices.items()}
        streams: dict[int, StreamFacts] = {}
        for facts in every:
            streams.update(facts.streams)
            for name, partition in facts.partitions.items():
                partitions.setdefault(name, partition_facts(partition))
            for name, context in facts.contexts.items():
                if name in partitions:
                    partitions[name] = replace(partitions[name], context=context)
            counts.update(facts.completeness.counts.copy())
            notes += facts.completeness.notes
            complete &= facts.completeness.complete
        streams.update(self._calls.streams.copy())
        for key, device in self._reading.devices.items():
            devices[key] = info_facts(device.info)
        if self._options.counters_ns:
            devices = {key: with_memory_rate(facts) for key, facts in devices.items()}
        self._rank = rank_facts(self._process, [*devices]) or self._rank
        if not self._simulated:  # at the end anew: some take a name later
            self._system_threads = system_threads(
                {} if self._span.is_over else self._system_threads
            )
        metadata = TraceMetadata(
            time_base="virtual" if self._simulated else "unix",
            clock=clock_name(simulated=self._simulated),
            simulated=self._simulated,
            devices=devices,
            driver=next((facts.driver for facts in devices.values()), None),
            process_names={str(self._process): process_name()},
            thread_names=thread_names(
                self.ranges.thread_names.copy(), self._system_threads, alive=not self._simulated
            ),
            partitions=partitions,
            streams={str(number): facts for number, facts in streams.items()},
            windows_ns=((begin_ns, self._span.end_ns),),
            gpu_states=self._reading.sampler.facts(),
            sampling=self._reading.stacks.facts(),
            kept=kept_facts,
            ranks=() if self._rank is None else (self._rank,),
            edges=in_all([source.edges for source in self.sources]),
            clocks={name: ClockFacts(**facts) for name, facts in clocks.items()},
            device_max_connections=os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS"),
            versions=dict(versions()),
            counts=dict(counts),
            complete=complete,
            notes=tuple(dict.fromkeys(notes)),
        )
        for observer in self.observers:
            metadata = observer.described(metadata)
        return metadata
