"""Notes on work, order and memory, in which the detector of hazards looks for them."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from gpuscope.device.accesses import Access
from gpuscope.device.captured import Node
from gpuscope.device.views import StreamKind


class Queue(NamedTuple):
    """What runs work in order: a stream, of a thread where each thread has its own."""

    device: str
    handle: int
    thread: int = 0
    kind: StreamKind = "non-blocking"


class Work(NamedTuple):
    """A kernel, a copy, a host function, or a graph, queued.

    Attributes
    ----------
    accesses
        ``None``: not seen.
    spans
        The id of its row in the trace, or of its nodes' rows.
    is_copy
        Whether it is an asynchronous copy.
    graph, nodes
        Of a graph's launch: which graph, as an object that can be referenced weakly, whose
        launches follow each other; and its work.
    stream
        The queue's name.
    """

    queue: Queue
    name: str
    accesses: tuple[Access, ...] | None
    spans: tuple[int, ...] = ()
    is_copy: bool = False
    graph: object = None
    nodes: tuple[Node, ...] = ()
    stream: str = ""


class Record(NamedTuple):
    """An event recorded behind a queue's work: any object that can be referenced weakly."""

    queue: Queue
    event: object


class Wait(NamedTuple):
    """A queue's wait for the latest record of an event."""

    queue: Queue
    event: object


class HostWait(NamedTuple):
    """The host's wait for an event, a queue, a graph's latest launch, or else a device.

    Or that it saw it done.

    Attributes
    ----------
    call
        Where :class:`Returned` tells that the wait has ended: the call's number. Without one it
        has ended.
    """

    event: object = None
    queue: Queue | None = None
    device: str = ""
    call: int | None = None
    graph: object = None


class Returned(NamedTuple):
    """The end of a host's wait."""

    call: int


class HostAccess(NamedTuple):
    """The host reads or writes memory that the device can access, too."""

    name: str
    accesses: tuple[Access, ...]
    span: int | None = None


class FreedMemory(NamedTuple):
    """Memory that was freed in the order of a queue, or given out again: of none, all is done.

    Attributes
    ----------
    awaited_queues
        Queues whose work by now its owner waits for before it gives it out.
    is_given
        Whether it was given out: what comes behind in the queue follows the place where it was
        freed.
    """

    start: int
    stop: int
    queue: Queue | None = None
    awaited_queues: tuple[Queue, ...] = ()
    is_given: bool = False


class HostMark(NamedTuple):
    """A moment of the host's: what happens from the first one on is remembered."""

    name: str


Note: TypeAlias = Work | Record | Wait | HostWait | Returned | HostAccess | FreedMemory | HostMark
