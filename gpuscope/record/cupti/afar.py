"""Reading CUPTI's buffers in another process, for a picture of a recording that goes on.

To decode, link and index records takes Python's lock for longer than to launch the work does. So a
live view is made by another process, and the recording's own buffers are read when it has ended:
what becomes of the picture changes nothing of the trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass
class RecordTexts:
    """The texts that records name: in a process without them it stands in for libcupti.

    Attributes
    ----------
    version
        ``CUPTI_API_VERSION`` of what wrote the records.
    calls
        Domain of an API call → its number → its name.
    at_address
        Address in the recorded process → what stands there.
    sites
        Number of a launch site → its text.
    """

    version: int
    calls: Mapping[int, Mapping[int, str]]
    at_address: dict[int, str] = field(default_factory=dict)
    sites: dict[int, str] = field(default_factory=dict)

    def callback_name(self, domain: int, number: int) -> str:
        """Return the name of an API call; ``""`` if it has none."""
        return self.calls.get(domain, {}).get(number, "")


class RemoteReader:
    """Makes rows of a recording's buffers in another process.

    Parameters
    ----------
    texts
        What the buffers name; more may come into it.
    """

    def __init__(self, facts: BufferFacts, texts: RecordTexts) -> None:
        self.places = Known()
        self.found = completeness = Completeness()
        self._records = Records(
            texts, facts.which, completeness, lambda address: texts.at_address.get(address, "")
        )
        self._records.first, self._records.noted = facts.first, facts.noted
        self._records.ranges.arrive = True
        self._records.site_text = lambda number: texts.sites.get(number, "")
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
            self.places.take(self._records.read(raw))
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
