"""A recorded trace as a program.

The program is what the recording shows: each thread's launches and waits with the host's own
time between them, each stream's order, the waits between streams, and for each piece of work the
gap before it. How long a wait would have lasted otherwise, a replay says.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from gpuscope.simulator.models.kernel_model import RecordedKernel
from gpuscope.simulator.profiles.profile import GpuProfile
from gpuscope.simulator.recorded import Row

Host: TypeAlias = tuple[int, int]
"""Process and thread."""
Chain: TypeAlias = tuple[int, int, str]
"""Process, thread, and the handle whose calls follow each other, if any."""


_RECORDED = ("id", "start_ns", "end_ns")


@dataclass(frozen=True)
class StreamPlace:
    """Where a stream's work goes: a mask of SMs, and a priority."""

    sms: int
    priority: int = 0


@dataclass(eq=False)
class ReplayedWork:
    """A piece of GPU work of the recording, and where it goes in the replay.

    Attributes
    ----------
    row
        Its row in the trace.
    lane
        Stream and number: what of a stream ran beside each other is in several lanes.
    call
        Place of the call that launched it; ``None`` where the trace has none.
    latency_ns, gap_ns
        From its call's start, and from the end of what it follows, to its start at the earliest.
    late_ns, by_stream
        How much later it started, and whether what it follows held it rather than its call.
    after
        What it must follow besides its lane.
    waited_for_sms
        Whether work of other streams held its SMs while it was ready.
    beside
        Whether it ran beside other work on its SMs.
    sm_count
        SMs that it was recorded on.
    kernel
        Its time on other SM counts, where it is a kernel.
    alone_ns
        Its time when nothing else held its SMs.
    """

    row: Row
    lane: tuple[int, int] = (0, 0)
    call: int | None = None
    latency_ns: int = 0
    gap_ns: int = 0
    late_ns: int = 0
    by_stream: bool = True
    after: list[ReplayedWork] = field(default_factory=list)
    waited_for_sms: bool = False
    beside: bool = False
    sm_count: int = 0
    kernel: RecordedKernel | None = None
    alone_ns: float = 0.0

    def __post_init__(self) -> None:
        self.id, self.start_ns, self.end_ns = (int(self.row[name]) for name in _RECORDED)

    @property
    def took_ns(self) -> int:
        """Recorded."""
        return self.end_ns - self.start_ns


@dataclass(eq=False)
class HostCall:
    """A launch or a wait of a host thread.

    Attributes
    ----------
    own_ns
        Host time of its own: of a launch its duration, of a wait from the end of the work to its
        return.
    launches, waits_for
        Work.
    row, handle
        Ids of its row, and of the handle's call that it is part of.
    paced
        Whether it begins a call that arrives at a given time.
    lags_ns
        How long the host takes to begin it, or to see that its work is done, from when it can:
        one more for each launch of other calls' on its thread that came first.
    round
        Number of its recording window.
    """

    thread: Chain
    start_ns: int
    end_ns: int
    own_ns: int
    launches: list[ReplayedWork] = field(default_factory=list)
    waits_for: list[ReplayedWork] = field(default_factory=list)
    row: int | None = None
    handle: int | None = None
    paced: bool = False
    lags_ns: tuple[int, ...] = (0,)
    round: int = 0

    @property
    def looks(self) -> bool:
        """Whether the host does not wait, but looks again and again whether work is done."""
        return bool(self.thread[2]) and not self.launches

    @property
    def host(self) -> Host:
        """The thread that makes it."""
        return self.thread[:2]


@dataclass(eq=False)
class Program:
    """What a recording did.

    Attributes
    ----------
    works
        In the order in which they started.
    calls
        In the order in which they started.
    copies
        Works of calls that are made more often than they were recorded.
    handles
        Id of a handle's call → what it launched.
    gap_ns
        The usual gap between two kernels of a stream.
    latency_ns
        The least time from a launch to its start.
    unexplained
        Works whose launch is unknown.
    is_measured
        Whether a GPU ran it.
    launches_ns
        Start and end of the launches of each thread.
    host_spread
        Thread of calls → how much longer or shorter the host takes in nine of ten other runs.
    """

    works: list[ReplayedWork]
    calls: list[HostCall]
    profile: GpuProfile
    copies: list[ReplayedWork] = field(default_factory=list)
    handles: dict[int, list[ReplayedWork]] = field(default_factory=dict)
    gap_ns: int = 0
    latency_ns: int = 0
    unexplained: int = 0
    is_measured: bool = False
    launches_ns: Mapping[Host, list[tuple[int, int]]] = field(default_factory=dict)
    host_spread: Mapping[Chain, float] = field(default_factory=dict)

    def lags_ns(self, host: Host, ready_ns: int, begins_ns: int) -> tuple[int, ...]:
        """Return a call's lags: see :class:`HostCall`."""
        launches = self.launches_ns[host]
        number = bisect_left(launches, (ready_ns,))
        free_ns = max(ready_ns, launches[number - 1][1] if number else 0)
        lags: list[int] = []
        while number < len(launches) and launches[number][0] < begins_ns:
            lags.append(max(0, launches[number][0] - free_ns) + 1)  # that one went first
            free_ns = max(free_ns, launches[number][1])
            number += 1
        return (*lags, max(0, begins_ns - free_ns))


def waits(works: Iterable[ReplayedWork]) -> dict[ReplayedWork, list[ReplayedWork]]:
    """Return what each piece of work waits for; a call's first in its lane, for all of the call.

    A product may clear its output first: a wait that the trace notes at the kernel holds that.
    """
    first: dict[tuple[int | None, tuple[int, int]], ReplayedWork] = {}
    awaited: dict[ReplayedWork, list[ReplayedWork]] = defaultdict(list)
    for work in works:
        begins = work if work.call is None else first.setdefault((work.call, work.lane), work)
        for other in work.after:
            holder = work if begins.start_ns < other.end_ns <= work.start_ns else begins
            awaited[holder].append(other)
    return awaited
