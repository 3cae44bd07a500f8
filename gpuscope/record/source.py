"""What every source can be asked for; a recording knows no class of source."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from gpuscope.device.api import Activity
from gpuscope.device.calls import Call
from gpuscope.device.device import Device
from gpuscope.device.foreign import NamedPartition
from gpuscope.device.views import PartitionView, StreamView
from gpuscope.errors import GpuscopeError
from gpuscope.record.blocks import globaltimer_fit
from gpuscope.record.clock import ClockFit
from gpuscope.record.rows import ROWS_AT_ONCE, Edge, Row, Rows, call_row, together, work_row
from gpuscope.trace.facts import DeviceFacts, StreamFacts
from gpuscope.trace.metadata import TraceMetadata

Calibration = Mapping[str, float]
"""How a clock stands: fields of :class:`~gpuscope.trace.metadata.ClockFacts`."""


SHORTEST_NS, LONGEST_NS = 10_000, 10_000_000
"""Of a sample of counters: while shorter ones are decoded, samples are lost."""
MOST_SAMPLES = 10_000
"""Looks a second at the stacks of all threads."""
MEMORY_LIMIT = 2 << 30
"""Bytes of buffers that CUPTI may fill between two readings, unless asked otherwise."""


class Ended(NamedTuple):
    """Calls that ended, as short as can be: they go to another process, for a picture.

    Attributes
    ----------
    executions
        Name of the handle, start, end, thread; when a wait for it began and on which thread;
        stream.
    host_calls
        Kind of the row, name, start, end, thread, stream, name of the handle.
    """

    process: int
    executions: list[tuple[str | None, int, int | None, int, int | None, int, int | None]]
    host_calls: list[tuple[str, str, int, int | None, int, int | None, str | None]]

    def rows(self, first: int, partitions: Mapping[int, str | None]) -> list[Row]:
        """Return rows, numbered from ``first``."""
        rows = list(self.host_calls)
        for name, start, end, thread, waited, waiter, stream in self.executions:
            rows.append(("handle", name or "", start, end, thread, stream, name))
            if waited is not None:
                rows.append(("sync", "event.synchronize", waited, end, waiter, None, None))
        return [
            {
                "id": call_row(number),
                "kind": kind,
                "name": name,
                "start_ns": start,
                "end_ns": end,
                "process": self.process,
                "thread": thread,
                "stream": stream,
                "partition": partitions.get(stream) if stream is not None else None,
                "category": category,
                "source": "host",
            }
            for number, (kind, name, start, end, thread, stream, category) in enumerate(rows, first)
        ]


class StackTexts(NamedTuple):
    """A stack as rows have it.

    Attributes
    ----------
    function
        The innermost function.
    site
        The program's own lines, as in the column ``site``.
    lines
        All lines, in the same form.
    """

    function: str
    site: str
    lines: str


class NewStacks(NamedTuple):
    """What a journal gets: runs as C tells them, and the texts of stacks that are new to it."""

    period_ns: int
    process: int
    runs: bytes
    texts: dict[int, StackTexts]


@dataclass(frozen=True)
class Options:
    """What a recording was asked for.

    Attributes
    ----------
    source
        ``"cupti"``, ``"events"``, or ``"auto"``: CUPTI if it is installed, else events.
    detail
        ``"launches"``, or ``"full"``: all API calls and synchronisations, too.
    launch_ids
        Whether CUPTI records the API calls that launch work.
    memory_limit
        Bytes of buffers that CUPTI may fill between two readings.
    keep_ns
        How long what ended is kept; ``None``: all the time.
    hazards
        Whether hazards are looked for.
    stacks
        Whether each call is told with the lines of Python that made it.
    graphs
        ``"nodes"``: each node of a graph is recorded; ``"launch"``: each launch of one;
        ``"sampled"``: each launch, but of each graph the nodes of the first in a second.
    sample
        How often a second the stacks of Python's threads are sampled; 0: not at all.
    counters_ns
        How long a sample of the GPUs' hardware counters is; 0: they are not sampled.

    Raises
    ------
    GpuscopeError
        A value is none that it can have.
    """

    source: Literal["auto", "cupti", "events"] = "auto"
    detail: Literal["launches", "full"] = "launches"
    launch_ids: bool | Literal["runtime"] = True
    memory_limit: int = MEMORY_LIMIT
    keep_ns: int | None = None
    hazards: bool = False
    stacks: bool = True
    graphs: Literal["nodes", "launch", "sampled"] = "nodes"
    sample: int = 0
    counters_ns: int = 0

    def __post_init__(self) -> None:
        choices: dict[str, tuple[str | bool, ...]] = {
            "source": ("auto", "cupti", "events"),
            "detail": ("launches", "full"),
            "launch_ids": (True, False, "runtime"),
            "graphs": ("nodes", "launch", "sampled"),
        }
        for name, allowed in choices.items():
            if (value := getattr(self, name)) not in allowed:
                choice = " or ".join(map(str, allowed))
                raise GpuscopeError(f"{name} is {value!r}; it can be {choice}")
        if not 0 <= self.sample <= MOST_SAMPLES:
            raise GpuscopeError(
                f"sample is {self.sample}: it can be 1 to {MOST_SAMPLES:,} looks a second, or 0"
            )
        if self.counters_ns and not SHORTEST_NS <= self.counters_ns <= LONGEST_NS:
            raise GpuscopeError(
                f"samples of counters are {self.counters_ns / 1e3:g} µs: they can be "
                f"{SHORTEST_NS / 1e3:g} µs to {LONGEST_NS / 1e6:g} ms"
            )
        if self.graphs != "nodes" and (self.detail == "full" or self.launch_ids is not True):
            raise GpuscopeError(
                f"graphs={self.graphs!r} needs the calls that launch graphs to be noted: leave "
                "detail and launch_ids as they are, or take graphs='nodes'"
            )


@dataclass
class Completeness:
    """What a source counted, its notes, and whether everything is there."""

    counts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    complete: bool = True

    def add(self, name: str, count: int) -> None:
        """Add to a count."""
        self.counts[name] = self.counts.get(name, 0) + count

    def lost(self, note: str) -> None:
        """Note that something is missing, or may be."""
        self.complete = False
        self.notes.append(note)

    def keep(self) -> Callable[[], None]:
        """Return what undoes all changes from now on."""
        attributes = copy.deepcopy(vars(self))
        return lambda: vars(self).update(attributes)


@dataclass(frozen=True)
class SourceFacts:
    """What a source adds to a recording's metadata.

    Attributes
    ----------
    devices
        Key → what is known of a device that nobody opened.
    streams
        Stream of the trace → facts.
    partitions
        Name → the first partition of that name that was seen.
    contexts
        Name of a partition → the source's number of its context.
    """

    streams: Mapping[int, StreamFacts] = field(default_factory=dict)
    partitions: Mapping[str, PartitionView | NamedPartition] = field(default_factory=dict)
    contexts: Mapping[str, int] = field(default_factory=dict)
    completeness: Completeness = field(default_factory=Completeness)
    devices: Mapping[str, DeviceFacts] = field(default_factory=dict)


class NoteJournal(Protocol):
    """Holds what a source is told in a file, until it is read, and for who looks before."""

    @property
    def path(self) -> Path:
        """Where other processes can read it."""

    def advance(self, metadata: TraceMetadata, /) -> None:
        """Put into it what is new, and what is known of the recording by now."""

    def note(self, calls: Ended, /) -> None:
        """Put calls into it."""

    def note_stacks(self, stacks: NewStacks, /) -> None:
        """Put sampled stacks into it."""

    def close(self, *, remove: bool) -> None:
        """Let go of it, and of the file if nobody needs that."""


Ordered = Callable[[tuple[int, int], tuple[int, int]], bool | None]
"""Whether the second of two pieces of work, by call and stream, waits for the first; ``None``:
perhaps."""


class Source:
    """Finds out when the work of some devices ran. What a source has no use for does nothing.

    Attributes
    ----------
    name
        Name in the column ``source``.
    timed_kinds
        Kinds of calls whose work it times: :meth:`before` and :meth:`after` get these calls.
    rows_at_once
        How many of the recording's rows may become a batch before :meth:`drain`.
    compares_clocks
        Whether it notes by itself that the system's clock was set.
    numbers_calls
        Whether the column ``correlation`` holds its numbers instead of ours.
    may_lack_work
        Whether work of ours may leave no record, so that edges may lead nowhere.
    edges
        The kinds of edges of which none is missing between the rows that it makes.
    """

    name: str
    timed_kinds = frozenset({"launch", "copy"})
    rows_at_once = ROWS_AT_ONCE
    compares_clocks = numbers_calls = may_lack_work = False
    edges: tuple[str, ...] = ("launch", "event wait", "graph", "legacy default stream")

    @property
    def sees_ranges(self) -> bool:
        """Whether it records NVTX ranges itself."""
        return False

    @property
    def unfinished(self) -> Sequence[Call]:
        """Calls that returned and whose work has no row; empty where it counts them itself."""
        return ()

    @property
    def foreign_streams(self) -> Sequence[int]:
        """Handles of other libraries' streams to wait for at the end."""
        return ()

    @property
    def parts_waiting(self) -> int:
        """How many more readings what has come takes."""
        return 0

    def start(self) -> None:
        """Begin to record; what fails here is undone."""

    def add(self, device: Device) -> None:
        """Watch a device too that was opened since."""

    def meet(self, call: Call, stream: StreamView[object]) -> None:
        """Look at a stream of a call, while it is alive, when a thread first uses it."""

    def before(self, call: Call) -> None:
        """Take note that a timed call is about to reach the device. On the launch path."""

    def after(self, call: Call) -> None:
        """Take note that a timed call returned. On the launch path."""

    def activity(self, activity: Activity) -> None:
        """Take work that a device says it did."""

    def order(self) -> Ordered | None:
        """Return what says which waits order two pieces of work, if it sees other libraries'."""
        return None

    def hold(self, call: Call, row: Row, rows: Rows, /) -> None:
        """Add the row of a timed call to ``rows``, now or when more is known of the call."""
        number = call.correlation
        if call.stream is not None:
            rows.edges.append((call_row(number), work_row(number), "launch"))
        rows.spans.append(row)

    def hold_edges(self, edges: list[Edge], rows: Rows, /) -> None:
        """Add edges from launches of graphs, now or when it is known which node ended last."""
        rows.edges += edges

    def journal(self, path: Path | None) -> NoteJournal | None:
        """Let what was not read wait in a new file, or in one of memory that has no name.

        Returns
        -------
        NoteJournal or None
            ``None`` where nothing needs that.
        """
        del path
        return None

    def begin_reading(self) -> Callable[[], None]:
        """Take in what has come; returns what undoes all that reading does next."""
        return together()

    def drain(self, rows: Rows) -> None:
        """Add what is complete to ``rows``, which hold the host's rows of this reading."""

    def settle(self) -> None:
        """Forget what was handed out. Idempotent."""

    def finish(self, *, wait: bool) -> None:
        """Record no more. Idempotent; what was recorded can still be read.

        Parameters
        ----------
        wait
            Whether everything that was launched has ended.
        """

    def globaltimer(self, device: Device) -> ClockFit:
        """Return how a device's %globaltimer stands to the recording's clock."""
        return globaltimer_fit(device)

    def close(self) -> Mapping[str, Calibration]:
        """Release everything; returns clock → calibration."""
        return {}

    def facts(self) -> SourceFacts:
        """Return what is known by now beside what the calls tell."""
        return SourceFacts()


class DeviceSource(Source):
    """A source that times one device's calls, each by itself.

    Parameters
    ----------
    device
        The device whose calls it gets.

    Attributes
    ----------
    detail
        As of :class:`Options`.
    """

    detail = "launches"

    def __init__(self, device: Device) -> None:
        self._device = device
