"""Reading a recording that is on, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gpuscope.record.recorder import Recording
from gpuscope.trace import schema
from gpuscope.trace.model import Trace

PERIOD_S = 0.1
"""Time from one reading to the next, at least."""
SHARE = 0.5
"""Which part of the time reading may take: what is slow is read less often."""


class Pump:
    """Hands on what a recording has seen since the last reading, ten times a second at most.

    Parameters
    ----------
    grew
        Called with the new rows, under the metadata as known then.
    ended
        Called when the recording has ended; it is not read any more.
    failed
        Called with what reading or ``grew`` raised; reading goes on.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        grew: Callable[[Trace], None],
        ended: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._recording = recording
        self._grew, self._ended, self._failed = grew, ended, failed
        self._seen = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="gpuscope-live", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Read no more; returns when the reading that goes on, if any, is done."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def read(self) -> None:
        """Hand on what is new, if anything is."""
        batches = self._recording.batches(self._seen)
        self._seen += len(batches)
        if batches:
            spans = schema.concat([one.spans for one in batches], schema.SPAN_TYPES)
            edges = schema.concat([one.edges for one in batches], schema.EDGE_TYPES)
            self._grew(Trace(spans, edges, self._recording.known()))

    def _loop(self) -> None:
        nap_s = PERIOD_S
        while not self._stop.wait(nap_s):
            began_s = time.monotonic()
            over = self._recording.is_over
            try:
                if over:
                    self._ended()
                    return
                self.read()
            except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to
                self._failed(error)
                if over:
                    return
            took_s = time.monotonic() - began_s
            nap_s = max(PERIOD_S - took_s, took_s / SHARE - took_s)
