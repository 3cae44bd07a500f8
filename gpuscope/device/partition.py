"""Partitions: sets of SMs with streams of their own."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from gpuscope import _interrupts
from gpuscope._checks import given
from gpuscope._tables import html_table
from gpuscope._text import clean
from gpuscope.device.carve import CarvePlan, PlannedPartition
from gpuscope.device.graph import when_allowed
from gpuscope.device.owner import Owner
from gpuscope.device.raw import GrantedPartition
from gpuscope.device.registry import require_not_borrowed
from gpuscope.device.stream import Stream, make_stream
from gpuscope.device.unique import Closable, Closing, Unique, close_all, warn_unclosed
from gpuscope.errors import ClosedError, InvalidPartition, NotFound


class Partition(Unique):
    """A set of SMs. Work on its streams runs on these SMs and no others.

    Attributes
    ----------
    name
        For people and timelines.
    asked
        The size asked for: a count, a percentage or ``"rest"``.
    sm_count
        What was granted.
    sm_ids
        The ids of its SMs, as a probe kernel saw them.
    sm_count_target
        SM count that libraries are told to tune for: the SMs that hold clusters of thread blocks;
        0 if these are too few, and libraries are told nothing.
    shares_with
        Names of partitions that share SMs with it, or did while it was open.
    context
        Number of its green context.
    color
        Colour in figures, as ``"#RRGGBB"``; if empty, figures choose one.
    closed
        Whether it was closed.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> with gpu.carve({"small": 16, "load": "rest"}) as parts:
    ...     small = parts["small"]
    ...     stream = small.create_stream(name="s")
    ...     small.sm_count, stream.partition is small
    (16, True)
    >>> small.closed, stream.closed
    (True, True)
    """

    def __init__(self, device: Owner, planned: PlannedPartition, granted: GrantedPartition) -> None:
        self.device = device
        self.name = planned.name
        self.asked: int | str = planned.asked
        self.sm_count = granted.sm_count
        self.sm_ids = granted.sm_ids
        self.sm_count_target = granted.sm_count_target
        self.shares_with = planned.shares_with
        self.parts = planned.parts
        self.context = granted.context
        self.raw = granted.raw
        self.color = ""
        self._streams: dict[Stream, None] = {}
        self._owned: dict[Closable, None] = {}
        self.closed = False

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Its streams that are open."""
        return tuple(stream for stream in list(self._streams) if not stream.closed)

    def create_stream(self, *, name: str | None = None, priority: int = 0) -> Stream:
        """Create a stream whose work runs on this partition's SMs.

        It is non-blocking. The partition owns it and closes it when it is closed.

        Raises
        ------
        ClosedError
            The partition is closed.
        """
        self.require_open()
        stream = make_stream(self.device, self, name=name, priority=priority)
        self._streams[stream] = None
        if self.closed:  # another thread closed it, perhaps before it knew of this stream
            stream.close()
            self.require_open()
        return stream

    def require_open(self) -> None:
        """Raise :class:`ClosedError` if it was closed."""
        if self.closed:
            raise ClosedError(f"partition {self.name!r} is closed: carve again")

    def adopt(self, item: Closable) -> None:
        """Close ``item`` with this partition, before its streams."""
        self._owned[item] = None

    def release(self, item: Closable) -> None:
        """Let go of a handle, graph or stream that was closed by itself."""
        self._owned.pop(item, None)
        if isinstance(item, Stream):
            self._streams.pop(item, None)

    def close(self) -> None:
        """Close handles, then streams, then the context. Idempotent.

        While this thread captures a stream, this is deferred until the capture has ended.

        Raises
        ------
        StreamError
            A workload's call that runs on this thread has borrowed a stream of it; nothing is
            changed.
        """
        if self.closed:
            return
        require_not_borrowed(self._streams)
        with self.device.registry.lock:
            if self.closed:  # of threads that close it at once the first does
                return
            self.closed = True
        when_allowed(self.device, self._close_all)

    def _close_all(self) -> None:
        try:
            close_all([*self._owned, *self._streams])
        finally:
            self._owned.clear()
            self._streams.clear()
            try:
                self.device.backend.close_partition(self.raw)
            finally:
                self.device.registry.forget_partition(self)

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"Partition({self.name!r}, {self.sm_count} SMs, asked={self.asked!r}{state})"


def make_partitions(device: Owner, planned: Sequence[PlannedPartition]) -> list[Partition]:
    """Make planned partitions: the step of :meth:`Device.carve` that touches the device.

    The registry's ``carving`` is held from the plan on.
    """
    live = device.registry.partitions
    with device.calls.during("setup", "carve"):  # which finds out by a kernel what it got
        granted = device.backend.make_partitions(planned)
    partitions = [Partition(device, *pair) for pair in zip(planned, granted, strict=True)]
    for new in partitions:
        seen = [other.name for other in live if set(other.sm_ids) & set(new.sm_ids)]
        if set(seen) - set(new.shares_with):
            close_all(partitions)
            raise InvalidPartition(
                f"partition {new.name!r} was planned apart from {', '.join(seen)}, but the "
                "driver gave it SMs of theirs: close them first"
            )
        for other in live:
            if other.name in seen:
                other.shares_with += (new.name,)
    device.registry.add_partitions(partitions)
    return partitions


class Partitions(Closing, Mapping[str, Partition]):
    """The partitions created by one ``carve``, by name or position; ``with`` closes them.

    Attributes
    ----------
    plan
        The plan, with the granted counts.
    closed
        Whether it was closed.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> with gpu.carve({"small": 16, "load": "rest"}) as parts:
    ...     parts
    ...     parts["small"] is parts[0]
    Partitions(small: 16 SMs, load: 116 SMs)
    True
    """

    def __init__(self, device: Owner, plan: CarvePlan, partitions: list[Partition]) -> None:
        self.device = device
        self.plan = plan
        self._partitions = {partition.name: partition for partition in partitions}
        self._remainder: Partition | None = None
        self.closed = False

    def __getitem__(self, key: str | int) -> Partition:
        if isinstance(key, int):
            return list(self._partitions.values())[key]
        try:
            return self._partitions[key]
        except KeyError:
            raise NotFound(f"no partition {given(key)}; there are {', '.join(self)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._partitions)

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def remainder(self) -> Partition | None:
        """The SMs left over, as a partition created at first use; ``None`` if there are none.

        Raises
        ------
        InvalidPartition
            A later ``carve`` has taken these SMs.
        """
        with self.device.registry.carving:
            if self._remainder is None and self.plan.remainder_parts and not self.closed:
                held_parts = self.device.registry.held_parts()
                left = self.plan.remainder_parts
                takers = [name for name, parts in held_parts.items() if set(parts) & set(left)]
                if takers:
                    raise InvalidPartition(
                        f"the SMs that this carving left over are now in {', '.join(takers)}: "
                        "close that first"
                    )
                planned = PlannedPartition("remainder", "rest", self.plan.remainder_sm_count, left)
                (self._remainder,) = make_partitions(self.device, [planned])
                if self.closed:  # another thread closed it, perhaps without knowing of this
                    self._remainder.close()
            return self._remainder

    def close(self) -> None:
        """Close every partition. Idempotent.

        Raises
        ------
        StreamError
            A workload's call that runs on this thread has borrowed a stream of one; nothing
            is changed.
        """
        require_not_borrowed([stream for part in self.values() for stream in part.streams])
        self.closed = True
        close_all([*self._partitions.values(), *([self._remainder] if self._remainder else [])])

    def require_open(self) -> None:
        """Raise :class:`ClosedError` if it was closed."""
        if self.closed:
            raise ClosedError("this carving is closed: carve again")

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "closed", True) or _is_finalizing():
            return  # at the interpreter's end what is left goes with the process
        with _interrupts.no_interrupt(), contextlib.suppress(Exception):  # there is nobody to tell
            self.close()
        names = ", ".join(map(repr, self))
        warn_unclosed(self, f"the carving {names} was never closed: hold it")

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}: {part.sm_count} SMs" for name, part in self.items())
        return clean(f"Partitions({inside}{', closed' if self.closed else ''})")

    def _repr_html_(self) -> str:
        columns = ["partition", "asked", "granted SMs", "SM ids seen"]
        cells = [
            (name, part.asked, part.sm_count, sm_ranges(part.sm_ids)) for name, part in self.items()
        ]
        return html_table([dict(zip(columns, row, strict=True)) for row in cells])


def sm_ranges(ids: tuple[int, ...]) -> str:
    """Write sorted ids as ranges: 0–7, 12."""
    words = []
    for _, group in itertools.groupby(enumerate(ids), key=lambda pair: pair[1] - pair[0]):
        first, *following = [sm for _, sm in group]
        words.append(f"{first}–{following[-1]}" if following else str(first))
    return ", ".join(words)
