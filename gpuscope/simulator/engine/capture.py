"""Stream capture on the simulated GPU: what CUDA's rules allow, and its reasons where not."""

from __future__ import annotations

from gpuscope.errors import StreamError
from gpuscope.simulator.engine.ops import Op, SimEvent, SimGraph, SimStream

# CUDA's names and texts, as its driver gives them.
_REASONS = {
    "StreamCaptureUnsupported": "operation not permitted when stream is capturing",
    "StreamCaptureInvalidated": "operation failed due to a previous error during capture",
    "StreamCaptureMerge": "operation would result in a merge of separate capture sequences",
    "StreamCaptureUnmatched": "capture was not ended in the same stream as it began",
    "StreamCaptureUnjoined": "capturing stream has unjoined work",
    "StreamCaptureIsolation": "dependency created on uncaptured work in another stream",
    "StreamCaptureImplicit": "operation would make the legacy stream depend on a capturing "
    "blocking stream",
    "IllegalState": "the stream is not being captured",
    "CapturedEvent": "operation not permitted on an event last recorded in a capturing stream",
}


def refusal(what: str, reason: str) -> StreamError:
    """Return the error for something that CUDA refuses for ``reason``."""
    return StreamError(f"{what}: cudaError{reason}: {_REASONS[reason]}")


class Capture:
    """What is being captured: it began on one stream, and others joined by waiting.

    Attributes
    ----------
    thread
        Who began it: calls of this thread that would wait for the device are refused.

    It begins when it is its origin's ``capture``.
    """

    def __init__(self, origin: SimStream, thread: int) -> None:
        self.thread = thread
        self._origin = origin
        self._valid = True
        self._nodes: list[tuple[Op, tuple[int, ...]]] = []
        self._tails: dict[SimStream, frozenset[int]] = {origin: frozenset()}

    @property
    def is_on(self) -> bool:
        """Whether it has begun and not ended."""
        return self._origin.capture is self

    def invalidate(self) -> None:
        """Let its end fail: something in it was refused."""
        self._valid = False

    def refuse(self, what: str, reason: str = "StreamCaptureUnsupported") -> StreamError:
        """Return the error of a call that a capture forbids, and that spoils it."""
        self.invalidate()
        return refusal(what, reason)

    def _require_valid(self, what: str) -> None:
        if not self._valid:
            raise refusal(what, "StreamCaptureInvalidated")

    def add(self, op: Op) -> None:
        """Take work that was queued on one of its streams."""
        self._require_valid(f"{op.name!r} cannot be captured")
        self._nodes.append((op, tuple(sorted(self._tails[op.stream]))))
        self._tails[op.stream] = frozenset([len(self._nodes) - 1])

    def record(self, event: SimEvent, stream: SimStream) -> None:
        """Record an event at a stream's place in the graph."""
        self._require_valid("an event cannot be recorded")
        event.captured = (self, self._tails[stream])
        event.record = None

    def join(self, stream: SimStream, tail: frozenset[int]) -> None:
        """Let what a stream queues next follow an event at a place in the graph."""
        what = "the stream cannot wait"
        self._require_valid(what)
        if not self.is_on:
            raise refusal(what, "CapturedEvent")
        if stream.capture is not None and stream.capture is not self:
            stream.capture.invalidate()
            raise self.refuse(what, "StreamCaptureMerge")
        self._tails[stream] = self._tails.get(stream, frozenset()) | tail
        stream.capture = self

    def end(self, stream: SimStream) -> SimGraph:
        """End it where it began, all that joined being joined again; returns its graph."""
        what = "the capture failed"
        if stream is not self._origin:
            raise self.refuse(what, "StreamCaptureUnmatched")
        for joined in self._tails:
            joined.capture = None
        self._require_valid(what)
        pending, reached = list(self._tails[stream]), set[int]()
        while pending:  # go back over all that the stream's last work follows
            node = pending.pop()
            if node not in reached:
                reached.add(node)
                pending.extend(self._nodes[node][1])
        if not all(map(reached.issuperset, self._tails.values())):
            raise refusal(what, "StreamCaptureUnjoined")
        return SimGraph(self._nodes)
