"""The work of a graph, as its capture tells it: nodes, what they access, and what they follow."""

from __future__ import annotations

from typing import NamedTuple

from gpuscope.device.accesses import Access


class Node(NamedTuple):
    """Work in a graph.

    Attributes
    ----------
    accesses
        ``None``: not seen.
    after
        Numbers of the nodes that it follows, which come before it.
    stream
        Name of the stream that it was captured on.
    """

    name: str
    accesses: tuple[Access, ...] | None
    after: tuple[int, ...] = ()
    is_copy: bool = False
    stream: str = ""


class Captured:
    """The work of a graph, as its capture tells it.

    Attributes
    ----------
    nodes
        Each comes after those that it follows.
    is_open
        Whether the capture goes on.
    events
        Those recorded in it, and after which nodes.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.is_open = True
        self._tails: dict[int, tuple[int, ...]] = {}
        """Handle of a stream → the nodes that its next one follows."""
        self.events: dict[object, tuple[int, ...]] = {}

    def add(self, stream: int, node: Node) -> None:
        """Note work in a stream, by its handle; what it follows is found here."""
        after, self._tails[stream] = self._tails.get(stream, ()), (len(self.nodes),)
        self.nodes.append(node._replace(after=after))

    def record(self, stream: int, event: object) -> None:
        """Note that an event was recorded."""
        self.events[event] = self._tails.get(stream, ())

    def wait(self, stream: int, event: object) -> None:
        """Note that a stream, which may join the capture by this, waits for an event."""
        after = self._tails.get(stream, ()) + self.events.get(event, ())
        self._tails[stream] = tuple(dict.fromkeys(after))

    def end(self) -> None:
        """End the capture; forget what was needed during it."""
        self.is_open = False
        self._tails.clear()
        self.events.clear()
