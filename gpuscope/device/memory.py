"""Memory that goes to somebody else only when the work it was handed to is done.

Whoever launches work tags the memory that it uses with the stream, which costs no call. When
nobody holds a block of memory any more, it waits in its pool behind a mark on each stream that
it is tagged with, and is given out again when those are passed. So no launch records an event,
and nobody waits. Memory that a graph uses belongs to the graph until that is closed.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar, cast

import numpy as np

from gpuscope._fork import free_in_children
from gpuscope._types import Array, DType
from gpuscope.errors import GpuscopeError

_Need = TypeVar("_Need")
_Memory = TypeVar("_Memory")
_Memory_contra = TypeVar("_Memory_contra", contravariant=True)
_Stream = TypeVar("_Stream")
_Mark = TypeVar("_Mark")
_FEW = 16  # tags of a block that are kept without asking which are passed

_lock = free_in_children(threading.RLock())
"""Held while streams are marked: none begins to be captured, or is destroyed, meanwhile."""


def no_host_memory(nbytes: int, why: object) -> GpuscopeError:
    """Return what to raise where the host has no memory for so many bytes."""
    return GpuscopeError(f"host memory cannot be taken: {nbytes} bytes are asked for ({why})")


@dataclass(slots=True, eq=False)
class Tag:
    """What memory knows of a stream that uses it.

    Attributes
    ----------
    raw
        The backend's stream, to be marked once the memory is dropped; ``None`` once the stream
        is closed, which waits for its work.
    mark
        For a stream that is not ours, which may be gone by then: a mark behind this use.
    capturing
        Whether the stream is being captured, so that it cannot be marked now.
    """

    raw: object | None
    mark: object = None
    capturing: bool = False

    @property
    def is_done(self) -> bool:
        """Whether it is of a stream of ours that was waited for and closed."""
        return self.raw is None and self.mark is None

    def note_capture(self, *, capturing: bool) -> None:
        """Note whether the stream is being captured from now on."""
        with _lock:
            self.capturing = capturing

    def close(self, mark: object = None) -> None:
        """Note that the stream is about to be destroyed, its work done, or else marked."""
        with _lock:
            self.mark = mark
            self.raw = None


class _Home(Protocol[_Memory_contra]):
    """Where a block goes back to."""

    def drop(self, raw: _Memory_contra, tags: set[Tag]) -> None:
        """Take memory back that nobody holds any more."""

    def passed(self, tag: Tag) -> bool:
        """Whether the work that a tag stands for is known to be done."""


class Block(Generic[_Memory]):
    """A piece of memory that was given out; goes back to its pool when nobody holds it.

    Attributes
    ----------
    raw
        The memory, as its backend knows it.
    tags
        Of the streams that use it; :meth:`use` adds to them.
    """

    __slots__ = ("__weakref__", "_most", "_pool", "raw", "tags")

    def __init__(self, raw: _Memory, pool: _Home[_Memory]) -> None:
        self.raw = raw
        self._pool = pool
        self.tags: set[Tag] = set()
        self._most = _FEW

    def use(self, tag: Tag) -> None:
        """Note that a stream uses it; launches ask ``tags`` first, which is quicker."""
        tags = self.tags
        tags.add(tag)
        if len(tags) > self._most:
            for other in list(tags):  # in place: another thread may be adding to it
                if self._pool.passed(other):
                    tags.discard(other)
            self._most = max(_FEW, 2 * len(tags))

    def __del__(self) -> None:
        # Nothing is asked of the device here: a destructor runs at any place.
        self._pool.drop(self.raw, self.tags)


@dataclass(slots=True, eq=False)
class _Dropped(Generic[_Memory]):
    """Memory that nobody holds.

    Attributes
    ----------
    tags
        Of streams that are not marked yet.
    left
        How many marks are not passed yet.
    """

    raw: _Memory
    tags: set[Tag]
    left: int = 0


@dataclass(eq=False)
class Pool(Generic[_Need, _Memory, _Stream, _Mark]):
    """Gives out memory, and takes it back when the work that uses it is done.

    Parameters
    ----------
    take
        What is needed, bytes or whatever the backend says → memory that nobody uses.
    give
        Takes such memory back.
    mark
        Stream of the backend → a mark behind what is queued there.
    passed
        Whether the work in front of a mark is done.
    wait
        Waits for it.
    """

    _take: Callable[[_Need], _Memory]
    _give: Callable[[_Memory], object]
    _mark: Callable[[_Stream], _Mark]
    _passed: Callable[[_Mark], bool]
    _wait: Callable[[_Mark], object]
    _new: deque[_Dropped[_Memory]] = field(init=False, default_factory=deque)
    _waiting: dict[Tag, deque[tuple[_Mark | None, _Dropped[_Memory]]]] = field(
        init=False, default_factory=dict
    )

    def take(self, need: _Need) -> Block[_Memory]:
        """Return memory that no queued work uses; waits for some only where none is left."""
        self.reclaim()
        try:
            raw = self._take(need)
        except Exception:
            if not self._wait_for_dropped():
                raise
            raw = self._take(need)
        return Block(raw, self)

    def drop(self, raw: _Memory, tags: set[Tag]) -> None:
        """Take memory back that nobody holds any more, though work may still use it."""
        self._new.append(_Dropped(raw, tags))

    def passed(self, tag: Tag) -> bool:
        """Whether the work that a tag stands for is known to be done."""
        return self._is_over(tag, cast("_Mark | None", tag.mark))

    def reclaim(self) -> None:
        """Object the streams of what was dropped, and take back what is passed."""
        with _lock:
            marks: dict[Tag, _Mark | None] = {}
            for _ in range(len(self._new)):
                memory = self._new.popleft()
                if not self._mark_streams(memory, marks):
                    self._new.append(memory)
                elif not memory.left:
                    self._give(memory.raw)
            for tag in list(self._waiting):
                queue = self._waiting[tag]
                while queue and self._is_over(tag, queue[0][0]):
                    memory = queue.popleft()[1]
                    memory.left -= 1
                    if not memory.left:
                        self._give(memory.raw)
                if not queue:
                    del self._waiting[tag]

    def _mark_streams(self, memory: _Dropped[_Memory], marks: dict[Tag, _Mark | None]) -> bool:
        """Let memory wait for its streams, unless one is captured; whether it does."""
        left = [tag for tag in list(memory.tags) if not tag.is_done]
        if any(tag.capturing for tag in left):  # a mark would become part of the graph
            return False
        for tag in left:
            if tag not in marks:
                mark = cast("_Mark | None", tag.mark)
                if mark is None:
                    with contextlib.suppress(GpuscopeError):  # kept until the stream is closed
                        mark = self._mark(cast("_Stream", tag.raw))
                marks[tag] = mark
            memory.left += 1
            self._waiting.setdefault(tag, deque()).append((marks[tag], memory))
            memory.tags.discard(tag)
        return True

    def _is_over(self, tag: Tag, mark: _Mark | None) -> bool:
        if tag.is_done:
            return True
        with contextlib.suppress(GpuscopeError):  # who cannot tell says no
            return mark is not None and self._passed(mark)
        return False

    def _wait_for_dropped(self) -> bool:
        """Wait for what uses memory that nobody holds; whether there was any."""
        with _lock:
            marks = [queue[-1][0] for queue in self._waiting.values()]
        for mark in marks:
            if mark is not None:
                self._wait(mark)
        self.reclaim()
        return bool(marks)


class Pinned:
    """Page-locked host memory under a NumPy array, which keeps it as its base."""

    def __init__(self, block: Block[_Memory], address: int, nbytes: int) -> None:
        self.block: object = block
        of_bytes = {"shape": (nbytes,), "typestr": "|u1", "version": 3}
        self.__array_interface__ = {"data": (address, False), **of_bytes}

    def array(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Return it as an array, uninitialised."""
        count = math.prod(shape)
        return np.asarray(self)[: count * dtype.itemsize].view(dtype).reshape(shape)


class Lent:
    """Where a block goes back to that is the caller's own memory: it stays there."""

    def drop(self, raw: Array, tags: set[Tag]) -> None:
        """Take memory back."""

    def passed(self, tag: Tag) -> bool:
        """Whether a stream is known to be done with it."""
        return tag.is_done


def pinned_block(array: object) -> Block[object] | None:
    """Return the page-locked memory under a NumPy array or a view of one, if it is a pool's."""
    while isinstance(array, np.ndarray):
        array = array.base
    return cast("Block[object]", array.block) if isinstance(array, Pinned) else None


def is_pageable(array: object) -> bool:
    """Whether an array is in host memory that is not page-locked memory of a pool."""
    return isinstance(array, np.ndarray) and pinned_block(array) is None
