"""A device as its own parts know it: streams, events, graphs, partitions and scratch."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

import numpy.typing as npt

from gpuscope.device.api import Capabilities, DeviceInfo, NativeArray
from gpuscope.device.call_log import CallLog
from gpuscope.device.handles import AnyStream
from gpuscope.device.raw import AnyBackend
from gpuscope.device.registry import Registry
from gpuscope.device.views import StreamView


class Owner(Protocol):
    """The device: see :class:`~gpuscope.device.device.Device`."""

    backend: AnyBackend
    info: DeviceInfo
    capabilities: Capabilities
    calls: CallLog
    registry: Registry
    identity: Hashable

    def told_from(self, other: Owner) -> str:
        """Return its key, with its number where ``other`` has the same key."""

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = ...) -> NativeArray:
        """Return an uninitialised array."""

    def find_stream(self, handle: int) -> StreamView[object] | None:
        """Return the open stream with this raw handle."""

    def create_stream(self, *, name: str | None = ...) -> StreamView[object]:
        """Create a stream on the whole GPU."""

    def wrap_stream(self, stream: AnyStream) -> StreamView[object]:
        """Wrap a foreign stream."""

    def choose_stream(self, stream: AnyStream = None) -> tuple[StreamView[object], bool]:
        """Pick the stream that work should run on, and whether one was selected."""
