"""Observers of recordings, which are registered: they follow the calls and add what they find."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from gpuscope._plugins import Plugins
from gpuscope.device.accesses import Access
from gpuscope.device.calls import Noted
from gpuscope.record.source import Options, Ordered
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace


class Happened(NamedTuple):
    """A piece of work, an access of the host's, or a mark, and what happens before it.

    Attributes
    ----------
    row
        Of the trace; ``None`` where it has none.
    accesses
        What it reads and writes.
    after
        Earlier pieces that it follows by the order of streams, events, graphs and waits, as
        positions in the list of all.
    known
        Earlier pieces that the host knew to be done when it made the call.
    is_mark
        Whether it is a mark, which is no access.
    """

    name: str
    row: int | None
    accesses: tuple[Access, ...]
    after: frozenset[int]
    known: frozenset[int]
    is_mark: bool = False


class RecordingObserver:
    """Follows the calls of one recording. What an observer has no use for does nothing.

    Examples
    --------
    >>> from gpuscope.record.observers import RecordingObserver
    >>> class CallCount(RecordingObserver):
    ...     count = 0
    ...
    ...     def note(self, noted):
    ...         self.count += 1
    """

    def note(self, noted: Noted) -> None:
        """Take note of what a device tells, in the order of the host's calls.

        What is launched waits for it: :meth:`read` is the place for what takes time.
        """

    def relieve_at(self, full: int, relieve: Callable[[], object]) -> None:
        """Call ``relieve``, which reads, when so many notes wait: only the latest rows are kept."""

    def watching(self) -> AbstractContextManager[object]:
        """Watch other libraries until the recording on a GPU ends, too."""
        return nullcontext()

    def read(self, *, over: bool) -> None:
        """Read the notes; ``over``: there will be no more."""

    def happened(self) -> list[Happened]:
        """Return all pieces from the first mark on, in the order of the host's calls."""
        return []

    def described(self, metadata: TraceMetadata) -> TraceMetadata:
        """Return the metadata of what is recorded by now with what was found in it."""
        return metadata

    def placed(self, trace: Trace, *orders: Ordered) -> Trace:  # noqa: ARG002 - for observers
        """Return a trace of a GPU, with what was found put where its rows show it.

        Parameters
        ----------
        orders
            Say which waits order two pieces of work.
        """
        return trace


MakeObserver = Callable[[Options], RecordingObserver | None]
"""What an entry point of the group ``gpuscope.observers`` names: options of a recording that
begins → its observer; ``None`` if it needs none."""


OBSERVERS: Plugins[MakeObserver] = Plugins("gpuscope.observers", "observer")


def observers_for(options: Options) -> tuple[tuple[RecordingObserver, ...], list[str]]:
    """Return the observers of a recording, and what is wrong with those that cannot be used.

    Raises
    ------
    MissingDependency
        Hazards are looked for, and what finds them is not installed.
    """
    if options.hazards:
        OBSERVERS.find("hazards")
    candidates = [make(options) for make in OBSERVERS.usable().values()]
    observers = tuple(observer for observer in candidates if observer is not None)
    return observers, OBSERVERS.problems()


def to_all(observers: tuple[RecordingObserver, ...]) -> Callable[[Noted], object] | None:
    """Return what notes for each of them; ``None`` without any, which costs nothing."""
    if len(observers) < 2:
        return observers[0].note if observers else None

    def note(noted: Noted) -> None:
        for observer in observers:
            observer.note(noted)

    return note
