"""Drawing beside whoever asks for it: the latest state wins, and no frame is queued."""

from __future__ import annotations

import threading
from collections.abc import Callable

PATIENCE_S = 1.0
"""How long the browser may take to paint a frame before the next one is sent all the same."""


class RedrawScheduler:
    """Draws what was asked for last, in a thread that lives while there is something to draw.

    A browser that cannot keep up must not get a backlog: it has one frame to paint and one
    more on the way; the next is drawn when the first of them was painted, from the state of
    that moment. Where nobody ever says so, because no browser shows the widget, frames do not
    wait.

    Parameters
    ----------
    draw
        Draws the current state and returns the frame's number, or ``None`` where nothing was
        sent to the browser.
    failed
        Called with what ``draw`` raised; drawing goes on with the next frame.

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
        self, draw: Callable[[], int | None], *, failed: Callable[[Exception], None]
    ) -> None:
        self._draw = draw
        self._failed = failed
        self._lock = threading.Condition()
        self._thread: threading.Thread | None = None
        self._asked = False
        self._closed = False
        self.is_seen = False
        self._sent = self._painted = 0

    def ask(self) -> None:
        """Have the current state drawn soon; returns at once."""
        with self._lock:
            self._asked = True
            if self._closed or self._thread is not None:
                return
            self._thread = threading.Thread(target=self._work, name="gpuscope-paint", daemon=True)
            self._thread.start()

    def painted(self, frame: int) -> None:
        """Take note that a browser painted a frame."""
        with self._lock:
            self.is_seen = True
            self._painted = frame
            self._lock.notify_all()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all that was asked for is drawn; returns whether it is."""
        with self._lock:
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def close(self) -> None:
        """Draw no more; returns when the frame that is being drawn, if any, is done."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        self.wait()

    def _work(self) -> None:
        while self._take():
            try:
                self._send()
            except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to
                self._failed(error)

    def _take(self) -> bool:
        """Return whether to draw; if not, this thread is over."""
        with self._lock:
            if self._asked and not self._closed:
                self._asked = False
                return True
            self._thread = None
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
