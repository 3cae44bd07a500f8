"""Pieces of work, and what happens before them: vector clocks of queues and of the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from gpuscope.races.hazard_notes import Queue

_Clock: TypeAlias = Mapping[Queue, int]
"""Queue → how many of its pieces have ended."""


class Moment(NamedTuple):
    """A moment in a queue's work, or in the host's: what happens before it."""

    clock: _Clock
    queue: Queue | None = None
    number: int = 0

    def joined(self, other: Moment) -> Moment:
        """Return it with what happens before another moment, too."""
        clock, theirs = self.clock, other.clock
        new = (
            {}
            if theirs is clock
            else {
                queue: number
                for queue, number in theirs.items()
                if queue != self.queue and clock.get(queue, 0) < number
            }
        )
        queue = other.queue
        if queue is not None and queue != self.queue and clock.get(queue, 0) < other.number:
            new[queue] = other.number
        return self._replace(clock={**clock, **new}) if new else self


START = Moment({})


@dataclass(slots=True, eq=False)
class Piece:
    """A piece of work, or a moment of the host's.

    Attributes
    ----------
    launched_on
        Name of the stream that launched its graph; empty where it is no node.
    node, before
        Of a graph's node: which, and a bit mask of the nodes that it follows.
    """

    moment: Moment
    name: str
    span: int | None
    stream: str = "host"
    is_copy: bool = False
    launched_on: str = ""
    node: int = 0
    before: int = 0

    def follows(self, first: Piece) -> bool:
        """Whether an earlier piece happens before it."""
        moment, earlier = self.moment, first.moment
        if moment.queue == earlier.queue:
            return earlier.number < moment.number or bool(self.before >> first.node & 1)
        return earlier.queue is None or moment.clock.get(earlier.queue, 0) >= earlier.number
