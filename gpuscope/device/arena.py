"""Where scratch comes from: the device, in a stream's order, or what a handle has kept."""

from __future__ import annotations

import logging
import threading
from typing import SupportsIndex
from weakref import WeakKeyDictionary

from gpuscope._checks import count
from gpuscope._fork import free_in_children
from gpuscope.device.accesses import of_arrays
from gpuscope.device.graph import when_allowed
from gpuscope.device.owner import Owner
from gpuscope.device.raw import Memory
from gpuscope.device.views import GraphView, StreamView
from gpuscope.errors import InvalidOperand

_log = logging.getLogger("gpuscope")
_MOST = 2**63 - 1


def checked_size(device: Owner, nbytes: SupportsIndex) -> int:
    """Return a number of bytes that the device could have, or raise."""

    def error(words: str) -> InvalidOperand:
        return InvalidOperand(f"{words}: that is what {device.info.key} has")

    most = min(device.info.memory_bytes, _MOST)
    return count("nbytes", nbytes, most=most, error=error)


def allocate(device: Owner, nbytes: int, stream: StreamView[object] | None) -> Memory:
    """Take memory in the order of ``stream``; for ``None`` wait for the device."""
    if not device.capabilities.stream_ordered_memory:
        stream = None
    memory = device.backend.allocate(nbytes, stream)
    if device.calls.watchers:
        if stream is None:
            device.calls.tell("seen", "scratch")
        device.calls.tell("given", "scratch", stream, accesses=of_arrays((memory.array,), ()))
    return memory


def give_back(device: Owner, memory: Memory, stream: StreamView[object] | None) -> None:
    """Give memory back in the order of ``stream``; for ``None`` wait for the device.

    A stream of ours was waited for when it was closed. While this thread captures, it is put off:
    CUDA refuses to free on any stream then.
    """
    if stream is not None and stream.graph is not None:
        # Freeing on it would become part of the graph, and waiting would break the capture.
        stream.graph.keep(_Keeper(device, [memory], stream))
        return
    when_allowed(device, lambda: _free(device, memory, stream))


def note_freed(device: Owner, memory: Memory, stream: StreamView[object]) -> None:
    """Tell that memory is free in the order of a stream."""
    if device.calls.watchers and not stream.capturing:
        device.calls.tell("freed", "scratch", stream, accesses=of_arrays((memory.array,), ()))


def _free(device: Owner, memory: Memory, stream: StreamView[object] | None) -> None:
    if stream is not None and not stream.closed and device.capabilities.stream_ordered_memory:
        note_freed(device, memory, stream)
        device.backend.free(memory, stream)
        return
    idle = stream is not None and stream.tag is not None and stream.tag.is_done
    device.backend.free(memory, None, idle=idle)
    if not idle:
        device.calls.tell("seen", "scratch")


class Arena:
    """What a handle's latest call took on its stream, kept for its next call there.

    So a repeated call takes no memory from anybody, and a call that is captured into a
    graph finds memory that was taken before the capture began. That memory then belongs
    to the graph, since every replay writes to it; calls of one capture share it.
    """

    def __init__(self, device: Owner) -> None:
        self._device = device
        self._lock = free_in_children(threading.Lock())
        self._kept: list[Memory] = []
        self._stream: StreamView[object] | None = None
        self._captured: WeakKeyDictionary[GraphView, list[Memory]] = WeakKeyDictionary()
        self._closed = False

    def begin(self, stream: StreamView[object]) -> list[Memory]:
        """Hand out what a call on ``stream`` may use."""
        with self._lock:
            of_graph = []
            if stream.graph is not None:
                of_graph += self._captured.get(stream.graph, [])
                if stream is not self._stream:
                    return of_graph
            home, memories = self._stream, self._kept
            self._kept, self._stream = [], None
        if stream is home:
            return of_graph + memories
        for memory in memories:
            give_back(self._device, memory, home)
        return of_graph

    def end(
        self, stream: StreamView[object], used: list[Memory], unused: list[Memory]
    ) -> list[Memory]:
        """Take memory back from a call; returns what is not kept."""
        with self._lock:
            if stream.graph is not None:
                of_graph = self._captured.get(stream.graph)
                if of_graph is None:
                    of_graph = self._captured[stream.graph] = []
                    stream.graph.keep(_Keeper(self._device, of_graph, stream))
                of_graph += [memory for memory in used if memory not in of_graph]
                used, unused = [memory for memory in unused if memory not in of_graph], []
            # A stream that is not ours may be gone before its memory is given back.
            if self._closed or not stream.owned or stream.closed or self._stream is not None:
                return used + unused
            self._kept, self._stream = used, stream
        return unused

    def close(self) -> None:
        """Give back what is kept. Idempotent. Never raises: failures are logged."""
        with self._lock:
            self._closed = True
            home, memories = self._stream, self._kept
            self._kept, self._stream = [], None
        for memory in memories:
            try:
                give_back(self._device, memory, home)
            except Exception:  # noqa: BLE001 - who closes cannot help it
                _log.exception("giving scratch back failed")


class _Keeper:
    """Memory that a graph holds: goes back when the graph is closed, which waits for it.

    Calls that were not captured may have used it before, on the stream that was captured.
    """

    def __init__(self, device: Owner, memories: list[Memory], stream: StreamView[object]) -> None:
        self._device = device
        self._memories = memories
        self._stream = stream

    def close(self) -> None:
        while self._memories:
            give_back(self._device, self._memories.pop(), self._stream)
