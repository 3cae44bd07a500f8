"""Reusable handles: prepared once, executed on whatever stream the caller chose."""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Any, Self

from gpuscope.device.api import Call
from gpuscope.device.device import Device
from gpuscope.device.partition import Partition
from gpuscope.device.stream import Event, Stream
from gpuscope.errors import ClosedError, GpuscopeError

_log = logging.getLogger("gpuscope")


class Completion:
    """The end of one ``execute()``: ask for it, or wait for it.

    The moment at which the host first sees it done is the end of the call's latency.
    """

    __slots__ = ("_call", "_device", "_event", "_seen")

    def __init__(self, device: Device, event: Event, call: Call | None) -> None:
        self._device = device
        self._event = event
        self._call = call
        self._seen = False

    @property
    def event(self) -> Event:
        """The event recorded behind the work."""
        return self._event

    @property
    def is_done(self) -> bool:
        """Whether the work is done."""
        if not self._seen and self._event.is_done:
            self._see()
        return self._seen

    def wait(self) -> None:
        """Wait on the host until the work is done."""
        if not self._seen:
            self._event.synchronize()
            self._see()

    def _see(self) -> None:
        self._seen = True
        if self._call is not None:
            self._device.end_call(self._call)

    def __del__(self) -> None:
        self._device.give_event(self._event)


class Handle:
    """Base of reusable workloads.

    Parameters
    ----------
    owner
        The device to run on; or a partition, which then closes the handle with itself.
    name
        For people, timelines and analyses.

    Notes
    -----
    A handle owns no stream. ``execute(stream=…)`` uses the explicit stream, else the
    caller stream, else the thread's current stream, and returns at once with a completion
    event recorded behind the work; with none of them it runs on the per-thread default
    stream and has finished when it returns. Using it again needs no wait: on the same
    stream, stream order is enough; another stream waits for the completion event. A lock
    serialises ``execute()``. Origin: contract B, Torch-TensorRT #4314.
    """

    def __init__(self, owner: Device | Partition, *, name: str) -> None:
        self.device = owner.device if isinstance(owner, Partition) else owner
        self.name = name
        self._lock = threading.Lock()
        self._completion: Completion | None = None
        self._stream: Stream | None = None
        self._closed = False
        if isinstance(owner, Partition):
            owner.adopt(self)

    @property
    def completion(self) -> Completion | None:
        """The latest call's completion, or ``None`` before the first."""
        return self._completion

    @property
    def in_flight(self) -> bool:
        """Whether the latest call is still running, as far as the host has seen."""
        completion = self._completion
        return completion is not None and not completion.is_done

    def wait(self) -> None:
        """Wait on the host for the latest call."""
        if self._completion is not None:
            self._completion.wait()

    def _launch(self, stream: Stream, operands: Any) -> None:
        """Queue the work on ``stream``; subclasses say how."""
        raise NotImplementedError

    def _execute(self, stream: Any, operands: Any = None) -> None:
        device = self.device
        with self._lock:
            if self._closed:
                raise ClosedError(f"handle {self.name!r} is closed: make a new one")
            chosen, selected = device.choose_stream(stream)
            if device.observers:
                call = device.begin_call("handle", self.name, chosen, chosen)
                device.enter_handle(call)
                try:
                    completion = self._queue(chosen, operands, call)
                finally:
                    device.enter_handle(None)
            else:
                completion = self._queue(chosen, operands, None)
        if not selected:
            completion.wait()

    def _queue(self, stream: Stream, operands: Any, call: Call | None) -> Completion:
        """Queue one call behind what it must follow, and its completion event behind it."""
        device = self.device
        previous = self._completion
        if previous is not None and stream is not self._stream:
            stream.wait(previous.event)
        self._launch(stream, operands)
        event = device.take_event()
        if call is None:
            device.backend.record(event.raw, stream.raw, 0)
        else:
            stream.record(event)
        self._completion = completion = Completion(device, event, call)
        self._stream = stream
        return completion

    def close(self) -> None:
        """Wait for the latest call; again does nothing. Never raises: a failed wait is logged."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._completion is not None and not self._completion.is_done:
                self._completion.wait()
        except GpuscopeError:
            _log.exception("waiting for handle %r failed while it was closed", self.name)
        self._completion = self._stream = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, device={self.device.info.key!r})"
