"""The time of a recording, and which of its batches are kept: all, or those of the latest time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from gpuscope._threads import start
from gpuscope.record.clock import step_notes
from gpuscope.record.rows import Batch
from gpuscope.trace import schema, valid
from gpuscope.trace.facts import KeptFacts

_LONGEST_S = 1.0
_PARTS = 4
"""A window is read this often while it passes, so that little more than it waits to be read."""
FULL = 1 << 14
"""So many ended calls of a device that is not on a GPU are read by who made the last one."""
OVERFULL = 1 << 18
"""On a GPU a thread reads; what launches faster than that reads has to read itself."""
PATIENCE_S = 0.01
"""How long who launches waits for a reading of somebody else's."""


@dataclass(frozen=True)
class KeptBatches:
    """The batches that a recording has, and what it had; immutable.

    Attributes
    ----------
    batches
        In the order of their numbers, none of which is missing between the first and the last.
    next
        The number that the next batch gets.
    since_ns
        What ended before is left out; 0 where everything is kept.
    rows_left_out, edges_left_out
        How many were in batches that were dropped.
    """

    batches: tuple[Batch, ...] = ()
    next: int = 0
    since_ns: int = 0
    rows_left_out: int = 0
    edges_left_out: int = 0

    def with_more(self, batches: Sequence[Batch]) -> KeptBatches:
        """Return these and more, which are numbered."""
        numbered = enumerate(batches, self.next)
        more = [Batch(batch.spans, batch.edges, number) for number, batch in numbered]
        return replace(self, batches=(*self.batches, *more), next=self.next + len(more))

    def since(self, since_ns: int) -> KeptBatches:
        """Return what is left where batches go all of whose rows ended before a moment."""
        since_ns = max(since_ns, self.since_ns)
        gone = 0
        while gone < len(self.batches) and self.batches[gone].last_ns < since_ns:
            gone += 1
        old = self.batches[:gone]
        return replace(
            self,
            batches=self.batches[gone:],
            since_ns=since_ns,
            rows_left_out=self.rows_left_out + sum(batch.spans.num_rows for batch in old),
            edges_left_out=self.edges_left_out + sum(batch.edges.num_rows for batch in old),
        )

    def facts(self, keep_ns: int, begin_ns: int, more: int) -> KeptFacts:
        """Return what a trace says of them.

        Parameters
        ----------
        begin_ns
            When the recording began.
        more
            Rows that are left out and were in no batch.
        """
        since_ns, rows_left_out = max(self.since_ns, begin_ns), self.rows_left_out + more
        return KeptFacts(keep_ns, since_ns, rows_left_out, self.edges_left_out)

    def from_number(self, number: int) -> list[Batch]:
        """Return the batches from a number on, as far as they are there."""
        first = self.next - len(self.batches)
        return list(self.batches[max(0, number - first) :])


def inside(
    spans: pa.Table, edges: pa.Table, kept_batches: KeptBatches
) -> tuple[pa.Table, pa.Table, KeptBatches]:
    """Return the rows that ended in time or have no end, the edges among them, and the counts.

    A row whose parent is left out has none.
    """
    ends = spans.column("end_ns").cast(pa.int64())
    in_time = pc.or_kleene(pc.is_null(ends), pc.greater_equal(ends, kept_batches.since_ns))
    kept_spans = spans.filter(in_time)
    rows_left_out = kept_batches.rows_left_out + spans.num_rows - kept_spans.num_rows
    if not rows_left_out:
        return spans, edges, kept_batches
    ids, parents = kept_spans.column("id"), kept_spans.column("parent")
    if parents.null_count < len(parents):
        parents = pc.if_else(pc.is_in(parents, value_set=ids), parents, None)
        kept_spans = schema.with_column(kept_spans, "parent", parents)
    among = valid.between(edges, ids)
    edges_left_out = kept_batches.edges_left_out + edges.num_rows - among.num_rows
    kept_batches = replace(kept_batches, rows_left_out=rows_left_out, edges_left_out=edges_left_out)
    return kept_spans, among, kept_batches


def note_of(facts: KeptFacts) -> str:
    """Say since when rows are kept, and how many are left out."""
    return (
        f"only what ended in the last {facts.keep_ns / 1e9:g} s is kept, since "
        f"{facts.since_ns / 1e9:.6f} s: {facts.rows_left_out:,} rows before are left out"
    )


class Span:
    """When a recording began and ended, on its clock.

    Parameters
    ----------
    clock
        Reads it, ns.
    steady
        Reads a clock that nobody sets, ns; ``None`` where nobody sets the recording's.
    """

    def __init__(self, clock: Callable[[], int], steady: Callable[[], int] | None) -> None:
        self.clock, self._steady = clock, steady
        self._began: tuple[int, int] | None = None
        self._end_ns: int | None = None

    def begin(self) -> None:
        """Begin now."""
        self._began = self._both()

    def end(self) -> None:
        """End now."""
        self._end_ns = self.end_ns

    @property
    def has_begun(self) -> bool:
        """Whether it began."""
        return self._began is not None

    @property
    def is_over(self) -> bool:
        """Whether it ended."""
        return self._end_ns is not None

    @property
    def begin_ns(self) -> int:
        """When it began; 0 before."""
        return self._began[0] if self._began is not None else 0

    @property
    def end_ns(self) -> int:
        """When it ended, or would now: its beginning and the time that passed."""
        if self._end_ns is not None or self._began is None:
            return self._end_ns or 0
        begun_ns, steady_ns = self._began
        return begun_ns + self._both()[1] - steady_ns

    def since_ns(self, keep_ns: int | None) -> int:
        """Return since when what ended is kept as of now; 0 where everything is."""
        if keep_ns is None:
            return 0
        return max(0, min(self.end_ns, self.clock()) - keep_ns)  # a set clock drops nothing early

    def step_notes(self) -> list[str]:
        """Return notes on the clock if it was set meanwhile."""
        return step_notes([self._began, self._both()]) if self._began is not None else []

    def _both(self) -> tuple[int, int]:
        now_ns = self.clock()
        return now_ns, now_ns if self._steady is None else self._steady()


class WindowReader:
    """Reads a recording on a thread of its own, so that what is kept moves on.

    Where no thread can start, all is read at the end.

    Parameters
    ----------
    read
        Reads.
    keep_ns
        How long rows are kept.
    notes
        Gets a note where reading failed; it goes on.
    """

    def __init__(self, read: Callable[[], object], keep_ns: int, notes: list[str]) -> None:
        self._read, self._notes = read, notes
        self._period_s = min(_LONGEST_S, keep_ns / 1e9 / _PARTS)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="gpuscope reader", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        start(self._thread)

    def _loop(self) -> None:
        while not self._over.wait(self._period_s):
            try:
                self._read()
            except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to
                name = type(error).__name__
                note = f"reading while it recorded failed ({name}); it was read later"
                if note not in self._notes:
                    self._notes.append(note)

    def close(self) -> None:
        """Read no more; returns when a reading in progress is done."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
