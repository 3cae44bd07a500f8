"""A recording's buffers in a file as CUPTI filled them, and their rows in another process.

To decode, link and write records while a program runs takes Python's lock from the threads that
launch. So they wait in a file: the recording reads them when it has ended; whoever looks before, or
after a crash, reads the file. A frame of it counts once its header is there, which is written last.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec
import numpy as np

from gpuscope._sites import site_text
from gpuscope.errors import GpuscopeError, TraceFormatError
from gpuscope.record.cupti import layout
from gpuscope.record.cupti.afar import BufferFacts, RecordTexts, RemoteReader
from gpuscope.record.cupti.library import DRIVER_API, LAST_CALLBACK, RUNTIME_API, text_at
from gpuscope.record.cupti.places import Known, PlaceNumbers
from gpuscope.record.rows import Batch
from gpuscope.record.source import Ended, NewStacks, StackTexts
from gpuscope.record.stacks import StackRows
from gpuscope.trace import schema, valid
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace

if TYPE_CHECKING:
    from gpuscope._types import Array
    from gpuscope.record.cupti.collector import Collector

_HEADER = struct.Struct("<qqq")
"""Kind of a frame, number, bytes that follow. A buffer's number; the head's counts the buffers
that are missing: it is overwritten in place, which needs no room."""
_HEAD, _BUFFER, _TEXTS, _PLACES, _CALLS, _METADATA, _SITES, _STACKS = range(1, 9)
_AT_ONCE = 128 << 20
"""Bytes that are read before rows are made of them."""


class _Head(msgspec.Struct, frozen=True):
    facts: BufferFacts
    calls: dict[int, dict[int, str]]
    """Domain of an API call → its number → its name."""


@dataclass(frozen=True)
class Stored:
    """Where a buffer is in the file."""

    offset: int
    nbytes: int


class Journal:
    """The file of one recording, in the process that records.

    Parameters
    ----------
    path
        Of a new file; ``None``: in memory, for as long as this process has it open.

    Attributes
    ----------
    has_name
        Whether it is a file that stays.

    Raises
    ------
    OSError
        It cannot be made or written.
    """

    def __init__(
        self, path: Path | None, collector: Collector, facts: BufferFacts, places: PlaceNumbers
    ) -> None:
        self.has_name = path is not None
        self._collector = collector
        self._places = places
        self._lock = threading.RLock()
        self._end = 0
        self._failure: OSError | None = None
        self._missing = 0
        """Buffers that could not be written."""
        self._texts: set[int] = set()
        """Addresses whose texts are in the file."""
        self._sites: set[int] = set()
        """Numbers of the sites that are in the file."""
        self._devices: set[int] = set()
        """Numbers of the GPUs that records name."""
        self._learned = -1
        self._metadata = b""
        name = collector.library.callback_name
        domains = {
            domain: {
                number: text for number in range(1, LAST_CALLBACK) if (text := name(domain, number))
            }
            for domain in (DRIVER_API, RUNTIME_API)
        }
        if path is None:
            self._file = os.memfd_create("gpuscope journal")
            self.path = Path(f"/proc/{os.getpid()}/fd/{self._file}")
        else:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            self.path = path
        try:
            self._head = self._put(_HEAD, msgspec.json.encode(_Head(facts, domains)))
        except OSError:
            os.close(self._file)
            raise

    def _put(self, kind: int, payload: bytes | memoryview, number: int = 0) -> Stored:
        """Append a frame."""
        with self._lock:
            first = at = self._end + _HEADER.size
            os.ftruncate(self._file, self._end)  # what an interrupted call may have left
            left = memoryview(payload)
            while left:
                written = os.pwrite(self._file, left, at)
                at, left = at + written, left[written:]
            os.pwrite(self._file, _HEADER.pack(kind, number, len(payload)), self._end)
            self._end = at
        return Stored(first, len(payload))

    def store(self, number: int, records: Array) -> Array | Stored:
        """Put a buffer into the file, the texts that it names before it.

        Returns
        -------
        Array or Stored
            Where it is; the buffer itself if the file cannot take it.
        """
        try:
            text_addresses, devices = layout.texts_and_devices(records, self._collector.sizes)
            self._devices |= devices
            if addresses := text_addresses - self._texts:
                texts = {str(address): text_at(address) for address in addresses}
                self._put(_TEXTS, msgspec.json.encode(texts))
                self._texts |= addresses
            if sites := layout.sites(records) - self._sites:
                texts = {str(number): site_text(number) for number in sites}
                self._put(_SITES, msgspec.json.encode(texts))
                self._sites |= sites
            return self._put(_BUFFER, records.data, number)
        except OSError as error:
            self._failure = error
            self._missing += 1
            with contextlib.suppress(OSError):
                head = _HEADER.pack(_HEAD, self._missing, self._head.nbytes)
                os.pwrite(self._file, head, 0)
            return records

    def fetch(self, stored: Stored) -> Array:
        """Return a buffer, also when the file was removed meanwhile."""
        raw = np.empty(stored.nbytes, np.uint8)
        left, at = raw.data, stored.offset
        while left:
            count = os.preadv(self._file, [left], at)
            if not count:
                raise GpuscopeError(f"{self.path.name!r} was cut short: its records are lost")
            left, at = left[count:], at + count
        return raw

    def advance(self, metadata: TraceMetadata) -> None:
        """Put into the file what is new; of buffers, what CUPTI hands over by now.

        Parameters
        ----------
        metadata
            What is known of the recording by now.

        Raises
        ------
        OSError
            Something could not be written: what CUPTI handed over is in memory instead.
        """
        try:
            self._put_new(metadata)
        finally:  # it is told once, whichever of them is
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def note(self, calls: Ended) -> None:
        """Put calls of our own into the file."""
        if calls.executions or calls.host_calls:
            self._put(_CALLS, msgspec.msgpack.encode(calls))

    def note_stacks(self, stacks: NewStacks) -> None:
        """Put sampled stacks into the file."""
        self._put(_STACKS, msgspec.msgpack.encode(stacks))

    def _put_new(self, metadata: TraceMetadata) -> None:
        self._places.learn_all()
        self._put_places()
        self._collector.collect(forced=False)
        for number in self._devices.copy():  # another recording may collect meanwhile
            self._places.uuid(number)
        self._put_places()
        began_ns = metadata.windows_ns[0][0]
        facts = msgspec.structs.replace(metadata, windows_ns=((began_ns, began_ns),))
        if (packed := facts.to_json().encode()) != self._metadata:
            self._put(_METADATA, packed)
            self._metadata = packed

    def _put_places(self) -> None:
        if self._learned != (learned := self._places.learned):
            self._put(_PLACES, msgspec.msgpack.encode(self._places.copy()))
            self._learned = learned

    def close(self, *, remove: bool) -> None:
        """Let go of the file: nobody asks for what is in it any more.

        Parameters
        ----------
        remove
            Whether the recording's trace was written, so that nobody needs it.
        """
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if remove and self.has_name:
            self.path.unlink(missing_ok=True)


class JournalReader:
    """Makes a trace of a journal, in another process, also while it is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = 0
        self._reader: RemoteReader | None = None
        self._texts = RecordTexts(0, {})
        self._numbers: set[int] = set()
        self._stack_texts: dict[int, StackTexts] = {}
        self._stack_rows: StackRows | None = None
        self._metadata = TraceMetadata()
        self._batches: list[Batch] = []
        """All that were read, where all are asked for."""
        self._missing = 0
        self.written_ns = 0
        """When the file was last written, Unix ns, as of the last reading."""

    def read(self, *, over: bool) -> Trace:
        """Return a trace of all that is there by now.

        Parameters
        ----------
        over
            Nothing more comes: also what waits for more becomes rows.

        Raises
        ------
        TraceFormatError
            It cannot be read.
        """
        self._batches += self._read_on(over=over)
        return self._joined(self._batches)

    def read_new(self) -> Trace:
        """Return a trace of what came since the last time; raises what :meth:`read` does."""
        return self._joined(self._read_on(over=False))

    def _read_on(self, *, over: bool) -> list[Batch]:
        """Return batches of what is new."""
        batches: list[Batch] = []
        try:
            with self.path.open("rb") as file:
                self.written_ns = os.fstat(file.fileno()).st_mtime_ns
                while self._read_some(file, batches, over=over):
                    pass
                if self._at:
                    file.seek(0)
                    _, self._missing, _ = _HEADER.unpack(file.read(_HEADER.size))
        except (OSError, ValueError, KeyError, RecursionError, msgspec.MsgspecError) as error:
            raise TraceFormatError(
                f"the journal {self.path.name!r} cannot be read: {error}"
            ) from error
        return batches

    def _joined(self, batches: list[Batch]) -> Trace:
        spans = schema.concat([batch.spans for batch in batches], schema.SPAN_TYPES)
        edges = schema.concat([batch.edges for batch in batches], schema.EDGE_TYPES)
        spans, edges, left = valid.sifted(spans, edges)
        return Trace(spans, edges, self._facts(left))

    def _read_some(self, file: BinaryIO, batches: list[Batch], *, over: bool) -> bool:
        """Add a batch of some frames; returns whether there are more."""
        size = os.fstat(file.fileno()).st_size
        buffers: list[Array] = []
        runs: list[bytes] = []
        executions, host_calls, process = [], [], 0
        taken = 0
        while taken < _AT_ONCE and (frame := self._next_frame(file, size)) is not None:
            kind, number, payload = frame
            taken += len(payload)
            if kind == _HEAD:
                head = msgspec.json.decode(payload, type=_Head)
                self._texts = RecordTexts(head.facts.version, head.calls)
                self._reader = RemoteReader(head.facts, self._texts)
            elif kind == _BUFFER and number not in self._numbers:
                self._numbers.add(number)
                buffers.append(np.frombuffer(payload, np.uint8))
            elif kind == _TEXTS:
                texts = msgspec.json.decode(payload, type=dict[int, str])
                self._texts.at_address.update(texts)
            elif kind == _SITES:
                self._texts.sites.update(msgspec.json.decode(payload, type=dict[int, str]))
            elif kind == _PLACES and self._reader is not None:
                self._reader.learn(msgspec.msgpack.decode(payload, type=Known))
            elif kind == _CALLS:
                calls = msgspec.msgpack.decode(payload, type=Ended)
                process = calls.process
                executions += calls.executions
                host_calls += calls.host_calls
            elif kind == _STACKS:
                stacks = msgspec.msgpack.decode(payload, type=NewStacks)
                self._stack_texts.update(stacks.texts)
                runs.append(stacks.runs)
                if self._stack_rows is None:
                    texts_of = self._stack_texts.__getitem__
                    self._stack_rows = StackRows(stacks.period_ns, stacks.process, texts_of)
            elif kind == _METADATA:
                self._metadata = TraceMetadata.from_json(payload.decode())
        more = taken >= _AT_ONCE
        if self._reader is not None:
            streams = self._metadata.streams.items()
            partitions = {int(number): facts.partition for number, facts in streams}
            calls = Ended(process, executions, host_calls)
            batches.append(self._reader.rows(buffers, calls, partitions, over=over and not more))
        if self._stack_rows is not None:
            stacks_batch = self._stack_rows.batch(b"".join(runs), over=over and not more)
            batches += [] if stacks_batch is None else [stacks_batch]
        return more

    def _next_frame(self, file: BinaryIO, size: int) -> tuple[int, int, bytes] | None:
        """Return kind, number and payload of a frame that is complete."""
        file.seek(self._at)
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return None
        kind, number, nbytes = _HEADER.unpack(header)
        behind = self._at + _HEADER.size + nbytes
        if kind == 0 or (_HEAD <= kind <= _STACKS and nbytes >= 0 and behind > size):
            return None  # it is being written
        if not _HEAD <= kind <= _STACKS or nbytes < 0 or (kind == _HEAD) != (self._at == 0):
            raise ValueError(f"at byte {self._at} there is no frame")
        self._at = behind
        return kind, number, file.read(nbytes)

    def _facts(self, left: Mapping[str, int]) -> TraceMetadata:
        """Return what the recording told of itself, and what reading found and left out."""
        metadata, reader = self._metadata, self._reader
        if reader is None:
            return metadata
        counts = Counter(
            {**metadata.counts, **{f"{what} left out": count for what, count in left.items()}}
        )
        counts.update(reader.found.counts)
        met = {str(number): facts for number, facts in reader.places.streams.items()}
        notes = [*metadata.notes, *reader.found.notes]
        if self._missing:
            notes.append(
                f"{self._missing} buffers of records could not be written to "
                f"{self.path.name!r} and are missing"
            )
        windows = ((began, max(began, self.written_ns)) for began, _ in metadata.windows_ns)
        return msgspec.structs.replace(
            metadata,
            counts=dict(counts),
            streams={**met, **metadata.streams},
            notes=tuple(notes),
            complete=metadata.complete and reader.found.complete and not (left or self._missing),
            windows_ns=tuple(windows),
        )
