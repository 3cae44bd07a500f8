"""Hazards: accesses to common bytes, one of them a write, that nothing orders.

The detector takes notes in the order of the host's calls. It follows what happens before what by
vector clocks: of streams, events, graphs and the host, which counts as one thread.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from gpuscope.device.accesses import Access
from gpuscope.device.captured import Node
from gpuscope.device.overlap import Shared, common, shared_bytes
from gpuscope.races.hazard_notes import (
    FreedMemory,
    HostAccess,
    HostMark,
    HostWait,
    Note,
    Queue,
    Record,
    Returned,
    Wait,
    Work,
)
from gpuscope.races.mends import Missing, mend_of, missing_between
from gpuscope.races.pieces import START, Moment, Piece
from gpuscope.record.observers import Happened
from gpuscope.trace.facts import HazardFact, HazardFacts, HazardKind

_GROUPS = 1000
_UNSEEN_NAMES = 8
_FEW_CELLS = 4096
_MOST_KEPT = 1000


class _Entry(NamedTuple):
    """What memory remembers of an access.

    Attributes
    ----------
    freed
        The moment in a queue where the memory was freed since.
    """

    piece: Piece
    access: Access
    freed: Moment | None = None


class _Kept(NamedTuple):
    """A piece, and what the host knew to be done when it made the call."""

    piece: Piece
    accesses: tuple[Access, ...]
    host: Moment
    is_mark: bool


_Group: TypeAlias = tuple[str, str, str, str, str, Missing]


@dataclass(slots=True, eq=False)
class _Memory:
    """Who accessed which bytes last: ranges that do not overlap, in order."""

    starts: list[int] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)
    entries: list[tuple[_Entry, ...]] = field(default_factory=list)

    def _cut(self, at: int) -> int:
        """Let a range begin at an address if one reaches over it; returns the first from there."""
        cell = bisect_left(self.starts, at)
        if cell and self.stops[cell - 1] > at:
            self._insert(cell, at, self.stops[cell - 1], self.entries[cell - 1])
            self.stops[cell - 1] = at
        return cell

    def _insert(self, cell: int, start: int, stop: int, entries: tuple[_Entry, ...]) -> None:
        self.starts.insert(cell, start)
        self.stops.insert(cell, stop)
        self.entries.insert(cell, entries)

    def cover(self, start: int, stop: int) -> Iterable[int]:
        """Return the numbers of the ranges that make up one, new ones where there was none."""
        first = cell = self._cut(start)
        self._cut(stop)
        at = start
        while at < stop:
            if cell == len(self.starts) or self.starts[cell] > at:
                end = min(stop, self.starts[cell]) if cell < len(self.starts) else stop
                self._insert(cell, at, end, ())
            at = self.stops[cell]
            cell += 1
        return range(first, cell)

    def touched(self, start: int, stop: int) -> Iterable[int]:
        """Return the numbers of the ranges that reach into one."""
        first = bisect_right(self.stops, start)
        return range(first, bisect_left(self.starts, stop, lo=first))

    def keep(self, of: Iterable[int], entries: Iterable[tuple[_Entry, ...]]) -> None:
        """Put other entries into ranges; those without any go."""
        empty = []
        for cell, remaining in zip(of, entries, strict=True):
            self.entries[cell] = remaining
            if not remaining:
                empty.append(cell)
        for columns in (self.starts, self.stops, self.entries) if empty else ():
            for cell in reversed(empty):
                del columns[cell]


class Detector:
    """Finds hazards in notes that come in the order of the host's calls."""

    def __init__(self) -> None:
        self._moments: dict[Queue, Moment] = {}
        self._host = START
        self._events: weakref.WeakKeyDictionary[object, Moment] = weakref.WeakKeyDictionary()
        self._graphs: weakref.WeakKeyDictionary[object, Moment] = weakref.WeakKeyDictionary()
        self._waits: dict[int, Moment] = {}
        self._memory = _Memory()
        self._most_cells = _FEW_CELLS
        self._found: dict[_Group, HazardFact] = {}
        self._left_out = 0
        self._accesses = 0
        self._unseen: dict[str, int] = {}
        self._kept: list[_Kept] | None = None
        """All pieces from the first mark on."""

    def facts(self) -> HazardFacts:
        """Return what was found by now."""
        return HazardFacts(
            accesses=self._accesses,
            unseen=sum(self._unseen.values()),
            unseen_names=tuple(list(self._unseen)[:_UNSEEN_NAMES]),
            found=tuple(self._found.values()),
            left_out=self._left_out,
        )

    def happened(self) -> list[Happened]:
        """Return all pieces from the first mark on."""
        earlier: list[Piece] = []
        pieces = []
        for piece, accesses, host, is_mark in self._kept or ():
            after, known_to_host = (
                frozenset(
                    number
                    for number, other in enumerate(earlier)
                    if other.moment.queue is None or then.follows(other)
                )
                for then in (piece, Piece(host, "", None))
            )
            pieces.append(Happened(piece.name, piece.span, accesses, after, known_to_host, is_mark))
            earlier.append(piece)
        return pieces

    def _keep(self, piece: Piece, accesses: tuple[Access, ...], *, is_mark: bool = False) -> None:
        if self._kept is not None and len(self._kept) < _MOST_KEPT:
            self._kept.append(_Kept(piece, accesses, self._host, is_mark))

    def count_unseen(self, name: str) -> None:
        """Count work whose accesses nobody knows."""
        self._unseen[name] = self._unseen.get(name, 0) + 1

    def take(self, note: Note) -> None:
        """Take the next note."""
        if isinstance(note, Work):
            self._work(note)
        elif isinstance(note, Record):
            self._events[note.event] = self._enter(note.queue)
        elif isinstance(note, Wait):
            moment = self._enter(note.queue)
            recorded = self._events.get(note.event)
            if recorded is not None:
                self._moments[note.queue] = moment.joined(recorded)
        elif isinstance(note, HostWait):
            moment = self._awaited(note)
            if note.call is None:
                self._host = self._host.joined(moment)
            else:
                self._waits[note.call] = moment
        elif isinstance(note, Returned):
            self._host = self._host.joined(self._waits.pop(note.call, START))
        elif isinstance(note, HostAccess):
            self._accesses += 1
            piece = Piece(self._host, note.name, note.span)
            self._keep(piece, note.accesses)
            self._check(piece, note.accesses)
        elif isinstance(note, HostMark):
            self._kept = [] if self._kept is None else self._kept
            self._keep(Piece(self._host, note.name, None), (), is_mark=True)
        else:
            self._change_hands(note)

    # -- order ------------------------------------------------------------------------
    def _enter(self, queue: Queue) -> Moment:
        """Let the next piece of a queue follow what it must; returns its moment."""
        moment = (self._moments.get(queue) or Moment({}, queue)).joined(self._host)
        for other, its in self._moments.items() if queue.kind != "non-blocking" else ():
            blocks = other.kind != "non-blocking" and "legacy default" in (queue.kind, other.kind)
            if blocks and other.device == queue.device and other != queue:
                moment = moment.joined(its)
        self._moments[queue] = moment = moment._replace(number=moment.number + 1)
        return moment

    def _awaited(self, wait: HostWait) -> Moment:
        if wait.event is not None:
            return self._events.get(wait.event, START)
        if wait.graph is not None:
            return self._graphs.get(wait.graph, START)
        awaited, device, moment = wait.queue, wait.device, START
        if awaited is not None:
            moment = self._moments.get(awaited, START)
            if awaited.kind != "legacy default" or wait.call is None:
                return moment
            device = awaited.device  # whose blocking streams a wait for it waits for, too
        for queue, its in self._moments.items():
            if queue.device == device and (awaited is None or queue.kind != "non-blocking"):
                moment = moment.joined(its)
        return moment

    # -- accesses ---------------------------------------------------------------------
    def _work(self, work: Work) -> None:
        moment = self._enter(work.queue)
        if work.graph is not None:
            last = self._graphs.get(work.graph)
            if last is not None:
                moment = self._moments[work.queue] = moment.joined(last)
            self._graphs[work.graph] = moment
        alone = (Node(work.name, work.accesses, (), work.is_copy),)
        queue = work.stream or f"stream {work.queue.handle:#x}"
        launched_on = queue if work.graph is not None else ""
        befores: list[int] = []
        for number, node in enumerate(work.nodes if work.graph is not None else alone):
            before = 0
            for other in node.after:
                before |= befores[other] | 1 << other
            befores.append(before)
            span = work.spans[number] if number < len(work.spans) else None
            where = node.stream or queue, node.is_copy, launched_on
            piece = Piece(moment, node.name, span, *where, number, before)
            self._keep(piece, node.accesses or ())
            if node.accesses is None:
                self.count_unseen(node.name)
                continue
            self._accesses += 1
            self._check(piece, node.accesses)

    def _check(self, piece: Piece, accesses: Iterable[Access]) -> None:
        """Compare a piece's accesses with those that memory remembers, and remember them."""
        pairs: dict[int, list[tuple[_Entry, Access, int, int]]] = {}
        is_host = piece.moment.queue is None
        memory = self._memory
        for access in accesses:
            start, stop = access.start, access.stop
            if start >= stop:
                continue
            cells = memory.touched(start, stop) if is_host else memory.cover(start, stop)
            cell_entries = []
            for cell in cells:
                low, high = max(start, memory.starts[cell]), min(stop, memory.stops[cell])
                rest = []
                for entry in memory.entries[cell]:
                    other, before = entry.access, entry.piece
                    if before is piece:
                        rest.append(entry)
                        continue
                    follows = piece.follows(before)
                    covers = follows and not is_host and (access.writes or not other.writes)
                    if not covers or (access.step and not _same_rows(access, other)):
                        rest.append(entry)
                    conflict = not follows and (access.writes or other.writes)
                    if conflict and common(access, other, low, high):
                        pairs.setdefault(id(before), []).append((entry, access, low, high))
                if not is_host:
                    rest.append(_Entry(piece, access))
                cell_entries.append(tuple(rest))
            if not is_host:
                memory.keep(cells, cell_entries)
        for shared in pairs.values():
            entry, access, *_ = max(shared, key=_weight)
            kind = _kind(entry, piece, access)
            parts = [(entry.access, access, low, high) for entry, access, low, high in shared]
            self._add(kind, entry.piece, piece, parts)
        if len(memory.starts) > self._most_cells:
            self._forget()

    def _change_hands(self, note: FreedMemory) -> None:
        """Mark who used memory that was freed, but for those whom its owner waits for."""
        memory, cell_entries = self._memory, []
        cells = memory.touched(note.start, note.stop)
        if not cells:
            return
        cells = memory.cover(note.start, note.stop)
        # It is no work: it stands in nobody's barrier.
        moment = (
            START if note.queue is None else self._moments.get(note.queue, Moment({}, note.queue))
        )
        waited = START
        for other in note.awaited_queues:
            waited = waited.joined(self._moments.get(other, START))
        done = Piece(waited, "", None)
        for cell in cells:
            entries = memory.entries[cell]
            if note.queue is None:
                entries = ()
            elif note.is_given:
                entries = tuple(entry for entry in entries if entry.freed is not None)
                for entry in entries:
                    moment = moment.joined(entry.freed or START)
            else:
                entries = tuple(
                    entry._replace(freed=moment)
                    for entry in entries
                    if not done.follows(entry.piece)
                )
            cell_entries.append(entries)
        if note.queue is not None:
            self._moments[note.queue] = moment
        memory.keep(cells, cell_entries)

    def _forget(self) -> None:
        """Forget what the host knows to be done: all that comes follows it."""
        memory, now = self._memory, Piece(self._host, "", None)
        cell_entries = [
            tuple(entry for entry in entries if not now.follows(entry.piece))
            for entries in memory.entries
        ]
        memory.keep(range(len(cell_entries)), cell_entries)
        self._most_cells = max(_FEW_CELLS, 2 * len(memory.starts))

    def _add(self, kind: HazardKind, first: Piece, second: Piece, shared: list[Shared]) -> None:
        """Count a hazard."""
        missing = missing_between(first, second)
        group = (kind, first.name, second.name, first.stream, second.stream, missing)
        hazard = self._found.get(group)
        if hazard is None:
            if len(self._found) >= _GROUPS:
                self._left_out += 1
                return
            address, nbytes = shared_bytes(shared)
            hazard = HazardFact(
                kind=kind,
                first=first.span,
                second=second.span,
                first_name=first.name,
                second_name=second.name,
                first_stream=first.stream,
                second_stream=second.stream,
                address=address,
                nbytes=nbytes,
                **missing._asdict(),
                mend=mend_of(missing, first.name, second.name),
                count=0,
            )
        self._found[group] = replace(hazard, count=hazard.count + 1)


def _same_rows(one: Access, other: Access) -> bool:
    return one._replace(reads=other.reads, writes=other.writes) == other


def _weight(pair: tuple[_Entry, Access, int, int]) -> int:
    """Return which of a pair's accesses name it: what reads what was written, before all."""
    entry, access, *_ = pair
    return 2 * (access.reads and entry.access.writes) + entry.access.writes


def _kind(entry: _Entry, second: Piece, access: Access) -> HazardKind:
    if second.moment.queue is None:
        return "host access too early"
    if entry.freed is not None:
        return "reuse of freed memory"
    if entry.piece.is_copy:
        return "use before a copy ended"
    if access.reads and entry.access.writes:
        return "read after write"
    return "write after write" if entry.access.writes else "write after read"
