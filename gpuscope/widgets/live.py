"""Threads that read a recording in progress for its live picture."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gpuscope._threads import start
from gpuscope.record.recorder import Recording
from gpuscope.timeline.canvas.snapshot import Painted, WantedFrame
from gpuscope.trace import schema, valid
from gpuscope.trace.model import Trace
from gpuscope.widgets.painter import Painter, PainterGone, get_painter, give_back

SWITCH_S = 0.0002
"""Python's switch interval meanwhile: every NumPy call of ours gives the lock away, and a busy
cell keeps it for that long. With the usual 5 ms a frame takes ten times its own time."""
PERIOD_S = 0.045
"""Time from one reading to the next, at least: with 0.05 there would be fewer than 20 frames a
second."""
SHARE = 0.5
"""Which part of a core's time reading may take: what is slow is read less often. Waiting for
Python's lock does not count, or a busy cell would slow reading down twice."""

_quick = 0
_before_s = 0.0
_quick_lock = threading.Lock()


def _switch_quickly(*, on: bool) -> None:
    """Shorten Python's switch interval as long as anything is live."""
    global _quick, _before_s  # noqa: PLW0603 - one interval a process
    with _quick_lock:
        _quick += 1 if on else -1
        if on and _quick == 1:
            _before_s = sys.getswitchinterval()
            sys.setswitchinterval(min(SWITCH_S, _before_s))
        elif _quick == 0:
            sys.setswitchinterval(_before_s)


class Pump:
    """Delivers new rows of a recording, at most 22 times a second.

    Parameters
    ----------
    grew
        Called with the new rows, under the metadata as known then.
    ended
        Called when the recording has ended; reading stops.
    failed
        Called with exceptions of reading or of ``grew``; reading continues.
    """

    is_far = False
    """Whether another process reads and draws."""

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
        self._reading = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="gpuscope-live", daemon=True)
        start(self._thread)

    def close(self) -> None:
        """Stop reading; returns when a reading in progress is done."""
        self._stop.set()
        if self._thread.ident and self._thread is not threading.current_thread():
            self._thread.join()

    def read(self) -> None:
        """Deliver new rows, if there are any."""
        with self._reading:
            batches = self._recording.batches(self._seen)
            self._seen = batches[-1].number + 1 if batches else self._seen
        if batches:
            spans = schema.concat([batch.spans for batch in batches], schema.SPAN_TYPES)
            edges = schema.concat([batch.edges for batch in batches], schema.EDGE_TYPES)
            spans, edges, _ = valid.sifted(spans, edges)
            self._grew(Trace(spans, edges, self._recording.known()))

    def _loop(self) -> None:
        _switch_quickly(on=True)
        try:
            self._read_on()
        finally:
            _switch_quickly(on=False)

    def _read_on(self) -> None:
        nap_s = PERIOD_S
        while not self._stop.wait(max(0.0, nap_s)):
            began_s, used_s = time.monotonic(), time.thread_time()
            over = self._recording.is_over
            try:
                if over:
                    self._ended()
                    return
                self.read()
            except PainterGone:
                raise
            except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to
                if over or not self._recording.is_over:  # else it ended meanwhile
                    self._failed(error)
                if over:
                    return
            used_s = time.thread_time() - used_s
            nap_s = max(PERIOD_S, used_s / SHARE) - (time.monotonic() - began_s)


class FarPump(Pump):
    """Has the rows of a recording read and drawn by another process, as often.

    Parameters
    ----------
    journal
        Of the recording.
    wanted
        Says what is to be seen.
    painted
        Called with each frame.
    ended
        Called when the recording has ended.
    lost
        Called with the reason when the other process cannot do it; reading stops.
    """

    is_far = True

    def __init__(
        self,
        recording: Recording,
        journal: Path,
        *,
        wanted: Callable[[], WantedFrame],
        painted: Callable[[Painted], None],
        ended: Callable[[], None],
        lost: Callable[[Exception], None],
    ) -> None:
        self._journal = journal
        self._wanted, self._painted, self._lost = wanted, painted, lost
        self._painter: Painter | None = None
        super().__init__(recording, grew=lambda _: None, ended=ended, failed=lost)

    def read(self) -> None:
        """Let the journal take in what is new, and take a frame."""
        assert self._painter is not None  # noqa: S101 - the thread has begun with it
        self._recording.advance()
        painted = self._painter.paint(self._wanted(), self._stop.is_set)
        if painted is not None:
            self._painted(painted)

    def _loop(self) -> None:
        painter = None
        try:
            self._painter = get_painter()  # at once: it takes a second
            self._painter.begin(self._journal)
            self._read_on()
            painter, self._painter = self._painter, None
        except (PainterGone, OSError) as error:  # or it could not begin
            if not self._stop.is_set():
                self._lost(error)
        finally:
            if painter is not None:
                give_back(painter)
            elif self._painter is not None:
                self._painter.end()
