"""A throttle that never queues: the latest item wins."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class LatestWins(Generic[Item]):
    """Draws the newest of many items in a thread of its own, at most once a period.

    A slow browser must not delay drawing, and drawing must not block the caller: an item not
    drawn in time is dropped.

    Parameters
    ----------
    draw
        Called with one item at a time.
    failed
        Called with exceptions of ``draw``; drawing continues with the next item.
    period_s
        Seconds from one start of ``draw`` to the next, at least.
    clock
        Monotonic, in seconds.

    Examples
    --------
    >>> drawn = []
    >>> with LatestWins(drawn.append, failed=print, period_s=0.5) as live:
    ...     live.offer(1)
    """

    def __init__(
        self,
        draw: Callable[[Item], None],
        *,
        failed: Callable[[Exception], None],
        period_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._draw = draw
        self._failed = failed
        self._period_s = period_s
        self._clock = clock
        self._lock = threading.Lock()
        self._latest: list[Item] = []
        self._next_s = clock()
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="gpuscope-live", daemon=True)

    def __enter__(self) -> LatestWins[Item]:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End after the item being drawn, if there is one."""
        self._closed = True
        self._wake.set()
        self._thread.join()
        self._latest.clear()

    def offer(self, item: Item) -> None:
        """Offer an item to be drawn; returns at once."""
        with self._lock:
            is_first = not self._latest
            self._latest[:] = [item]
        if is_first or self._clock() >= self._next_s:
            self._wake.set()

    def draw_latest(self) -> bool:
        """Draw the latest item, if there is one and the period is over."""
        with self._lock:
            now_s = self._clock()
            if now_s < self._next_s or not self._latest:
                return False
            self._next_s = now_s + self._period_s
            item = self._latest.pop()
        try:
            self._draw(item)
        except Exception as error:  # noqa: BLE001 - a picture must not end the run
            self._failed(error)
        return True

    def _left_s(self) -> float | None:
        """Seconds until what was offered may be drawn; ``None`` if there is nothing."""
        with self._lock:
            return max(0.0, self._next_s - self._clock()) if self._latest else None

    def _loop(self) -> None:
        while not self._closed:
            self._wake.wait(self._left_s())
            self._wake.clear()
            if not self._closed:
                self.draw_latest()
