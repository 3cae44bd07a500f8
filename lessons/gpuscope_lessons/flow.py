"""What happened before what in a program, and by which work values came to where they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gpuscope.device import byte_ranges
from gpuscope.extending import Untyped
from gpuscope.races import Happened

Span = tuple[int, int]
"""Addresses of the first byte and of the one after the last."""


class _Named(NamedTuple):
    name: str
    is_work: bool
    did: Happened


class Flow:
    """The pieces of a program in the order of its calls: their order, and what they read.

    Parameters
    ----------
    happened
        As :meth:`RecordingObserver.happened` gives them.
    names
        Row of the trace → what the GPU's work there is called.
    """

    def __init__(self, happened: Sequence[Happened], names: Mapping[int, str]) -> None:
        self._pieces = [
            _Named(names.get(did.row or 0, did.name), did.row in names, did) for did in happened
        ]

    def named(self, name: str) -> list[int]:
        """Return the pieces of work that are called so."""
        return [at for at, piece in enumerate(self._pieces) if piece.is_work and piece.name == name]

    def in_order(self, first: str, second: str) -> bool:
        """Whether an order is established between each two pieces of these names."""
        before = set(self.named(first))
        return all(before <= self._pieces[at].did.after for at in self.named(second))

    def known(self, mark: str) -> set[int]:
        """Return the work that the host knew to be done at the last mark of a name."""
        marks = [piece.did for piece in self._pieces if piece.did.is_mark and piece.name == mark]
        return self._work_of(marks[-1].known) if marks else set()

    def known_before(self, at: int) -> set[int]:
        """Return the work that the host knew to be done when it queued a piece."""
        return self._work_of(self._pieces[at].did.known)

    def behind(self, at: int) -> set[int]:
        """Return the work that a piece follows, and itself."""
        return self._work_of(self._pieces[at].did.after) | {at}

    def _work_of(self, pieces: Iterable[int]) -> set[int]:
        return {at for at in pieces if self._pieces[at].is_work}

    def awaited(self) -> set[str]:
        """Return the names of the work that the host ever knew to be done."""
        done = set().union(*(piece.did.known for piece in self._pieces))
        return {self._pieces[at].name for at in self._work_of(done)}

    def row(self, at: int) -> int | None:
        """Return the row of a piece in the trace."""
        return self._pieces[at].did.row

    def stays_in(self, at: int, arrays: Iterable[Untyped], *, writes: bool) -> bool:
        """Whether a piece writes, or else reads, nothing but bytes of some arrays."""
        rest = self._spans(at, writes=writes)
        for low, high in _bytes_of(arrays):
            rest = [part for span in rest for part in _without(span, low, high)]
        return not rest

    def kept(self, at: int) -> bool:
        """Whether all that a piece wrote is there in the end."""
        until = len(self._pieces)
        return all(self._writers(s, until) == ({at}, []) for s in self._spans(at, writes=True))

    def sources(self, at: int) -> set[int]:
        """Return who wrote last what a piece reads."""
        spans = self._spans(at, writes=False)
        return set().union(*(self._writers(span, at)[0] for span in spans))

    def touches(self, at: int, array: Untyped, *, writes: bool) -> bool:
        """Whether a piece writes, or else reads, any of an array."""
        spans = self._spans(at, writes=writes)
        return any(
            low < stop and start < high for low, high in _bytes_of([array]) for start, stop in spans
        )

    def came(self, path: Sequence[str | Untyped]) -> bool:
        """Whether values came along a path: all of the array at its end, or what its work read.

        Parameters
        ----------
        path
            Arrays, and names of the work that reads what is before it, or what copies made of
            that, and writes what is behind it; several names, where each is right, as "a, b".
        """
        if isinstance(path[-1], str):
            pieces = [at for name in path[-1].split(", ") for at in self.named(name)]
            return bool(pieces) and all(self._made(at, path) for at in pieces)
        return all(self._came(span, len(self._pieces), path[:-1]) for span in _bytes_of(path[-1:]))

    def _came(self, span: Span, until: int, path: Sequence[str | Untyped]) -> bool:
        """Whether bytes, as they are before a piece, came along a path, which ends with work."""
        writers, rest = self._writers(span, until)
        return bool(writers) and not rest and all(self._made(at, path) for at in writers)

    def _made(self, at: int, path: Sequence[str | Untyped]) -> bool:
        """Whether a piece is the end of a path, or copied on what is."""
        *before, names = path
        piece, reads = self._pieces[at], self._spans(at, writes=False)
        if not (piece.is_work and isinstance(names, str)):
            return False
        is_end = piece.name in names.split(", ") and self._read(at, reads, before)
        return is_end or (
            piece.name == "copy" and any(self._came(span, at, path) for span in reads)
        )

    def _read(self, at: int, reads: Sequence[Span], path: Sequence[str | Untyped]) -> bool:
        """Whether a piece read what came along a path."""
        if not path:
            return True
        if isinstance(path[-1], str):
            return any(self._came(span, at, path) for span in reads)
        within = [
            (max(low, start), min(high, stop))
            for low, high in _bytes_of(path[-1:])
            for start, stop in reads
            if max(low, start) < min(high, stop)
        ]
        if len(path) == 1:  # it is as it was given
            return any(not self._writers(span, at)[0] for span in within)
        return any(self._came(span, at, path[:-1]) for span in within)

    def _writers(self, span: Span, until: int) -> tuple[set[int], list[Span]]:
        """Return who wrote bytes last before a piece, and those that nobody wrote."""
        writers, rest = set[int](), [span]
        for at in range(until - 1, -1, -1):
            for low, high in self._spans(at, writes=True):
                left = [part for bytes_ in rest for part in _without(bytes_, low, high)]
                if left != rest:
                    writers.add(at)
                rest = left
        return writers, rest

    def _spans(self, at: int, *, writes: bool) -> list[Span]:
        accesses = self._pieces[at].did.accesses
        return [
            (access.start, access.stop)
            for access in accesses
            if (access.writes if writes else access.reads)
        ]


def _bytes_of(arrays: Iterable[Untyped]) -> list[Span]:
    spans = [span for array in arrays for span in byte_ranges(array)]
    return [span for span in spans if span[0] < span[1]]


def _without(span: Span, low: int, high: int) -> list[Span]:
    """Return a range of bytes without those between two addresses."""
    parts = (span[0], min(span[1], low)), (max(span[0], high), span[1])
    return [part for part in parts if part[0] < part[1]]
