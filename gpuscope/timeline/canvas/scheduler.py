"""Redraws in a background thread: the latest state wins, frames are never queued."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gpuscope._threads import start

PATIENCE_S = 1.0
"""How long to wait for the browser to paint a frame before the next one is sent."""
_LINGER_S = 1.0
"""How long the thread waits for more to draw: to start one takes Python's lock several times."""


class RedrawScheduler:
    """Redraws the latest state in a thread that lives as long as there is something to draw.

    A slow browser must not get a backlog: at most two frames are on their way. The next one is
    drawn from the current state when the first of them has been painted. If no browser shows
    the widget, frames do not wait.

    Parameters
    ----------
    draw
        Draws the current state and returns the frame's number, or ``None`` where nothing was
        sent to the browser.
    failed
        Called with exceptions of ``draw``; drawing continues with the next frame.
    period_s
        Seconds from the end of one drawing to the next, at least.

    Attributes
    ----------
    is_seen
        Whether a browser paints the frames.

    Examples
    --------
    >>> scheduler = RedrawScheduler(lambda: print("drawn"), failed=print)
    >>> scheduler.ask()
    >>> scheduler.wait(10)
    drawn
    True
    """

    def __init__(
        self,
        draw: Callable[[], int | None],
        *,
        failed: Callable[[Exception], None],
        period_s: float = 0.0,
    ) -> None:
        self._draw, self._failed, self._period_s = draw, failed, period_s
        self._lock = threading.Condition()
        self._thread: threading.Thread | None = None
        self._asked = self._is_drawing = False
        self._closed = False
        self.is_seen = False
        self._sent = self._painted = 0

    def ask(self) -> None:
        """Request a redraw; returns at once. Where no thread can start, draws now."""
        with self._lock:
            self._asked = True
            if self._closed or self._thread is not None:
                self._lock.notify_all()
                return
            self._thread = threading.Thread(target=self._work, name="gpuscope-paint", daemon=True)
            if start(self._thread):
                return
            self._thread = None
            self._asked = False
        try:
            self._draw()
        except Exception as error:  # noqa: BLE001 - as in the thread
            self._failed(error)

    def painted(self, frame: int) -> None:
        """Note that a browser has painted a frame."""
        with self._lock:
            self.is_seen = True
            self._painted = frame
            self._lock.notify_all()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all requests are drawn; return whether they are."""
        with self._lock:
            return self._thread is threading.current_thread() or self._lock.wait_for(
                lambda: self._thread is None or not (self._asked or self._is_drawing), timeout_s
            )

    def close(self) -> None:
        """Stop drawing; returns when a frame in progress is done."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _work(self) -> None:
        while self._take():
            try:
                self._send()
            except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to
                self._failed(error)
            with self._lock:
                self._lock.wait_for(lambda: self._closed, self._period_s)

    def _take(self) -> bool:
        """Return whether to draw; if not, this thread is over."""
        with self._lock:
            self._is_drawing = False
            self._lock.notify_all()
            self._lock.wait_for(lambda: self._asked or self._closed, _LINGER_S)
            if self._asked and not self._closed:
                self._asked, self._is_drawing = False, True
                return True
            self._thread = None
            self._lock.notify_all()
            return False

    def _send(self) -> None:
        frame = self._draw()
        if frame is None:
            return
        with self._lock:
            before, self._sent = self._sent, frame
            if self.is_seen:
                self.is_seen = self._lock.wait_for(
                    lambda: self._painted >= before or self._closed, PATIENCE_S
                )
