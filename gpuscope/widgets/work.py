"""What a dashboard does beside its cell: one thing at a time, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpuscope._threads import start
from gpuscope.errors import GpuscopeError
from gpuscope.widgets.runbar import RunBar, said_of


class BackgroundTask:
    """One thing at a time, in a thread; what goes wrong is shown in the bar and not raised.

    Parameters
    ----------
    bar
        Says what is going on.
    changed
        Called with the lock held when something began or ended.
    lock
        Guards the dashboard.
    """

    def __init__(self, bar: RunBar, changed: Callable[[], None], lock: threading.RLock) -> None:
        self._bar, self._changed, self._lock = bar, changed, lock
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self.is_closed = False

    @property
    def is_on(self) -> bool:
        """Whether something is going on."""
        with self._lock:
            return self._thread is not None

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stop.is_set()

    def begin(self, act: Callable[[threading.Event], None], words: str) -> None:
        """Do something that calls :meth:`end`, unless something is going on.

        Parameters
        ----------
        act
            Called with the event that tells it to stop.
        """
        with self._lock:
            if self._thread is not None or self.is_closed:
                return
            self._stop = threading.Event()
            self._thread = threading.Thread(
                target=act, args=(self._stop,), name="gpuscope-dashboard", daemon=True
            )
            self._bar.stopping = False
            self._bar.progress, self._bar.left = 0.0, ""
            self._changed()
            self._bar.say(words)
            if not start(self._thread):
                self._thread.run()

    def do(self, act: Callable[[threading.Event], str], words: str) -> None:
        """Do something, and say what it returns."""

        def said(stop: threading.Event) -> None:
            try:
                show, result = self._bar.say, act(stop)
            except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to
                show, result = self._bar.warn, said_of(error)
            with self._lock:
                show(result)
                self.end()

        self.begin(said, words)

    def end(self) -> None:
        """Note that it is over."""
        with self._lock:
            self._thread = None
            self._bar.stopping, self._bar.left = False, ""
            self._changed()

    def stop(self) -> None:
        """Tell it to stop."""
        with self._lock:
            if self._thread is not None:
                self._stop.set()
                self._bar.stopping = True
                self._bar.say("Stopping: waiting for what is queued on the GPU …")

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is over; returns false after a timeout."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
            return not thread.is_alive()
        return True

    @contextmanager
    def refusals(self, of: str = "") -> Iterator[None]:
        """Show what is refused instead of raising it."""
        try:
            yield
        except GpuscopeError as error:
            self._bar.warn(f"{of}{error}")
