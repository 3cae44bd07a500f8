"""Streams, events, graphs and partitions as those below them know them: backends and observers."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal, Protocol, TypeVar

from gpuscope.device.api import DeviceInfo
from gpuscope.device.captured import Captured
from gpuscope.device.handles import AnyStream, HasCudaStream
from gpuscope.device.memory import Tag
from gpuscope.device.unique import Closable

_Raw_co = TypeVar("_Raw_co", covariant=True)

StreamKind = Literal["legacy default", "per-thread default", "blocking", "non-blocking"]
"""How a stream stands to the legacy default stream: what is queued in that one follows all work of
blocking streams, and theirs follows its. ``"per-thread default"`` is CUDA's handle 2, which is
another stream, a blocking one, on each thread."""


class DeviceView(Protocol):
    """A device, as far as rows name it."""

    @property
    def info(self) -> DeviceInfo:
        """What it is."""


class PartitionView(Protocol):
    """A partition."""

    name: str
    asked: int | str
    sm_count: int
    sm_ids: tuple[int, ...]
    sm_count_target: int
    shares_with: tuple[str, ...]
    parts: tuple[int, ...]
    context: int
    color: str
    closed: bool
    raw: object

    @property
    def device(self) -> DeviceView:
        """Its device."""

    def adopt(self, item: Closable) -> None:
        """Close ``item`` with this partition, before its streams."""

    def release(self, item: Closable) -> None:
        """Let go of what was closed by itself."""


class EventView(Protocol[_Raw_co]):
    """An event."""

    handle: int
    correlation: int | None

    @property
    def raw(self) -> _Raw_co:
        """The backend's event."""

    @property
    def is_done(self) -> bool:
        """Whether its latest record is done."""

    def usable(self) -> _Raw_co:
        """Return the backend's event; refuses if it is closed."""

    def synchronize(self) -> None:
        """Wait on the host until the latest record is done."""


class GraphView(Protocol):
    """A graph."""

    id: int
    name: str
    is_empty: bool
    workspaces: dict[int, object]
    captured: Captured

    @property
    def partition(self) -> PartitionView | None:
        """The partition in which its work runs."""

    def hold(self, *values: object) -> None:
        """Hold what its work uses until it is closed."""

    def keep(self, closable: Closable) -> None:
        """Close what its work uses when it is closed itself."""


class StreamView(HasCudaStream, Protocol[_Raw_co]):
    """A stream."""

    id: int
    name: str
    priority: int
    owned: bool
    closed: bool
    capturing: bool
    sm_count_target: int
    tag: Tag | None
    lane: object
    current_of: dict[Hashable, AnyStream] | None

    @property
    def raw(self) -> _Raw_co:
        """The backend's stream."""

    @property
    def device(self) -> DeviceView:
        """Its device."""

    @property
    def handle(self) -> int:
        """Its integer handle; refuses if it is closed."""

    @property
    def queue_number(self) -> int:
        """Its handle, also once it is closed; 0 for CUDA's legacy default stream."""

    @property
    def kind(self) -> StreamKind:
        """How it stands to the legacy default stream."""

    @property
    def blocking(self) -> bool:
        """Whether it stands in the legacy default stream's barrier."""

    @property
    def partition(self) -> PartitionView | None:
        """The partition it belongs to."""

    @property
    def graph(self) -> GraphView | None:
        """The graph that it is being captured into."""

    def require_open(self) -> None:
        """Raise :class:`ClosedError` if it was closed."""

    def synchronize(self) -> None:
        """Wait on the host until everything queued here is done."""

    def close(self) -> None:
        """Wait for its work, then destroy it."""
