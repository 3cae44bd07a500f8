"""Reading CUPTI's buffers in another process, for a picture of a recording that goes on.

To decode, link and index records takes Python's lock for longer than to launch the work does. So a
live view is made by another process, and the recording's own buffers are read when it has ended:
what becomes of the picture changes nothing of the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from gpuscope.record.cupti.links import Links
from gpuscope.record.cupti.places import Known
from gpuscope.record.cupti.records import Records
from gpuscope.record.guards import SelectionLog
from gpuscope.record.rows import Batch, Rows, freeze
from gpuscope.record.source import Completeness, Ended
from gpuscope.trace import schema

if TYPE_CHECKING:
    from gpuscope._types import Array

Ask = Callable[[str, int, int], str]
"""Takes ``"call"``, ``"site"`` or ``"text"``, and two numbers that say which; gives the text."""


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
        Gives the texts that the buffers name.
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
