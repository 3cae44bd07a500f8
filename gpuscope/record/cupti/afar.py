"""Reading CUPTI's buffers in another process, for a picture of a recording that goes on.

To decode, link and index records takes Python's lock for longer than to launch the work does. So a
live view hands copies of the buffers to another process, and the recording's own are read when it
has ended: what becomes of the picture changes nothing of the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from gpuscope._sites import site_text
from gpuscope.record.cupti.library import text_at
from gpuscope.record.cupti.links import Links
from gpuscope.record.cupti.places import Known, PlaceNumbers
from gpuscope.record.cupti.records import Records
from gpuscope.record.guards import SelectionLog
from gpuscope.record.rows import Batch, Rows, freeze
from gpuscope.record.source import Completeness, Ended
from gpuscope.trace import schema

if TYPE_CHECKING:
    from gpuscope._types import Array
    from gpuscope.record.cupti.collector import Collector

Ask = Callable[[str, int, int], str]
"""Takes what is asked for, and two numbers that say which; gives the text."""


@dataclass(frozen=True)
class BufferFacts:
    """What another process must know to read the buffers of a recording.

    Attributes
    ----------
    version
        ``CUPTI_API_VERSION`` of what wrote them.
    which
        Which API calls are recorded.
    first
        Correlation of the last call before the recording.
    noted
        Whether API calls are those that were noted in CUPTI's place.
    """

    version: int
    which: str
    first: int
    noted: bool


class BufferTap:
    """Gets the buffers of a recording beside the recording itself.

    Parameters
    ----------
    end
        Called at the end: it shall get no more.
    """

    def __init__(
        self,
        collector: Collector,
        facts: BufferFacts,
        places: PlaceNumbers,
        end: Callable[[], None],
    ) -> None:
        self._collector = collector
        self.facts = facts
        self._places = places
        self._end = end
        self._numbers: set[int] = set()
        self._fresh: list[Array] = []
        self._learned = -1

    def receive(self, number: int, records: Array) -> None:
        """Take a buffer; one with a number that was there is the same."""
        if number not in self._numbers:
            self._numbers.add(number)
            self._fresh.append(records)

    def take(self) -> list[Array]:
        """Return the buffers that came since the last call."""
        self._places.learn_all()
        self._collector.collect(forced=False)
        taken, self._fresh = self._fresh, []
        return taken

    def places(self) -> Known | None:
        """Return what is known of streams and partitions, if that is more than the last time."""
        if self._learned == self._places.learned:
            return None
        self._learned = self._places.learned
        return self._places.copy()

    def text(self, what: str, first: int, second: int) -> str:
        """Answer what :class:`RemoteReader` asks."""
        if what == "call":
            return self._collector.library.callback_name(first, second)
        return site_text(first) if what == "site" else text_at(first)

    def close(self) -> None:
        """Get no more."""
        self._end()
        self._fresh = []


class _Asking:
    """Stands in for libcupti in a process that has none of the records' texts."""

    def __init__(self, version: int, ask: Ask) -> None:
        self.version = version
        self.callback_name = cache(partial(ask, "call"))


class RemoteReader:
    """Makes rows of a recording's buffers in another process.

    Parameters
    ----------
    ask
        Asks the process that records for a text.
    """

    def __init__(self, facts: BufferFacts, ask: Ask) -> None:
        self.places = Known()
        self.found = completeness = Completeness()
        library, text = _Asking(facts.version, ask), partial(ask, "text")
        self._records = Records(library, facts.which, completeness, lambda at: text(at, 0))
        self._records.first, self._records.noted = facts.first, facts.noted
        self._records.ranges.arrive = True
        self._records.site_text = cache(lambda number: ask("site", number, 0))
        self._next = 1
        self._links = Links(
            self._records, self.places, SelectionLog(), completeness, all_calls=False
        )

    def learn(self, places: Known) -> None:
        """Take what is known of streams and partitions by now."""
        self.places.update(places)

    def rows(
        self,
        buffers: list[Array],
        calls: Ended,
        partitions: Mapping[int, str | None],
        *,
        over: bool = False,
    ) -> Batch:
        """Return the rows of the buffers and of our own calls.

        Parameters
        ----------
        partitions
            Number of a stream of ours → its partition.
        over
            Nothing more comes: also what waits for more becomes rows.
        """
        for raw in buffers:
            self.places.green |= self._records.read(raw)
        rows = Rows(over=over, open_since_ns=schema.LATEST_NS)
        self._links.drain(rows)
        ended = calls.rows(self._next, partitions)
        if ended:
            self._next += len(ended)
            rows.batches.append(freeze(ended, []))
        return Batch(
            schema.concat([batch.spans for batch in rows.batches], schema.SPAN_TYPES),
            schema.concat([batch.edges for batch in rows.batches], schema.EDGE_TYPES),
        )
