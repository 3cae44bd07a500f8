"""What a device knows of its streams, partitions and spare events; which streams are borrowed.

Streams and partitions are known weakly: who made them holds them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

from gpuscope._fork import free_in_children
from gpuscope.device.api import NativeArray
from gpuscope.device.views import EventView, PartitionView, StreamView
from gpuscope.errors import StreamError

_T = TypeVar("_T")
_numbers = itertools.count(1)


def alive(registry: WeakValueDictionary[int, _T]) -> list[_T]:
    """Return what a registry holds now, whatever other threads and the collector do to it."""
    return [item for reference in registry.valuerefs() if (item := reference()) is not None]


class Borrower(Protocol):
    """A workload's call that has borrowed a stream."""

    @property
    def stream(self) -> StreamView[object]:
        """The stream."""


class _Borrowing(threading.local):
    """The contexts of the workloads' calls that run on a thread, outermost first.

    Each has borrowed a stream. Entering and leaving are one store each: who saved ``open`` before
    can leave by another.
    """

    open: tuple[Borrower, ...] = ()


borrowing = _Borrowing()


def require_not_borrowed(streams: Collection[StreamView[object]]) -> None:
    """Refuse to close streams of which a workload's call on this thread has borrowed one."""
    for context in borrowing.open:
        if context.stream in streams:
            raise StreamError(
                f"stream {context.stream.name!r} is borrowed by a workload's call that runs on "
                "this thread, and cannot be closed inside it: close it when execute() has "
                "returned. Nothing was changed"
            )


class _OfThread(threading.local):
    """What a thread keeps of a device: its default stream, and the arrays it makes for a while."""

    default: StreamView[object] | None = None
    made: list[NativeArray] | None = None


class Registry:
    """A device's streams, partitions and spare events.

    Attributes
    ----------
    number
        Of the device in this process.
    lock
        Held while something is made of which there is to be one.
    carving
        Held while SMs are planned and carved, which is one step for other threads.
    next_stream_id
        Returns the next stream's number in traces.
    spare_events
        Events without timing that nobody uses: see :func:`~gpuscope.device.event.take_event`.
    of_thread
        What the calling thread keeps.
    """

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.lock = free_in_children(threading.RLock())
        self.carving = free_in_children(threading.RLock())
        self.next_stream_id = itertools.count(1).__next__
        self.spare_events: list[EventView[object]] = []
        self.of_thread = _OfThread()
        self._streams: WeakValueDictionary[int, StreamView[object]] = WeakValueDictionary()
        self._partitions: WeakValueDictionary[int, PartitionView] = WeakValueDictionary()

    # -- streams ----------------------------------------------------------------------
    @property
    def streams(self) -> list[StreamView[object]]:
        """Those that are known, open or not, in no order."""
        return alive(self._streams)

    def add_stream(
        self, stream: StreamView[object], handle: int, *, is_default: bool = False
    ) -> None:
        """Find a stream by its handle from now on, a default stream also by 0.

        Where every handle is 0 no other is found by it, but each is still closed with the device.
        """
        self._streams[handle if handle or is_default else -id(stream)] = stream

    def find_stream(self, handle: int) -> StreamView[object] | None:
        """Return the open stream with this raw handle, if it is known."""
        return self._streams.get(handle)

    def forget_stream(self, stream: StreamView[object], handle: int) -> None:
        """Stop finding a closed stream by its handle."""
        for key in (handle, -id(stream)):
            if self._streams.get(key) is stream:
                self._streams.pop(key, None)

    def give_event(self, event: EventView[object]) -> None:
        """Take back an event from :func:`~gpuscope.device.event.take_event`."""
        self.spare_events.append(event)

    # -- partitions -------------------------------------------------------------------
    @property
    def partitions(self) -> list[PartitionView]:
        """The live partitions, of all carvings, in the order in which they were made."""
        live = [part for part in alive(self._partitions) if not part.closed]
        return sorted(live, key=lambda part: part.context)

    def add_partitions(self, partitions: Collection[PartitionView]) -> None:
        """Count the SMs of new partitions as held."""
        self._partitions.update({partition.context: partition for partition in partitions})

    def forget_partition(self, partition: PartitionView) -> None:
        """Stop counting a closed partition's SMs as held."""
        self._partitions.pop(partition.context, None)

    def held_parts(self, *, without: Collection[PartitionView] = ()) -> dict[str, tuple[int, ...]]:
        """Name → parts of the live partitions, but for those in ``without``."""
        parts_of_name: dict[str, tuple[int, ...]] = {}
        for part in self.partitions:
            if part not in without:
                again = f" (context {part.context})" if part.name in parts_of_name else ""
                parts_of_name[part.name + again] = part.parts
        return parts_of_name
