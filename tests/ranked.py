"""Ranks as threads of one process, each with a simulated GPU of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

import gpuscope as gs
from gpuscope.device.device import Device
from gpuscope.device.ranks import Meeting, NoMeeting, Ranks

T = TypeVar("T")
PATIENCE_S = 60


def as_ranks(count: int, act: Callable[[Device, Ranks], T]) -> list[T | Exception]:
    """Do something as each of ``count`` ranks; returns what each returned or raised."""
    meeting = Meeting(count)
    found: dict[int, T | Exception] = {}

    def be(rank: int) -> None:
        try:
            gpu = gs.open_device("sim:h200", jitter=False, quiet=True)
            found[rank] = act(gpu, Ranks(rank, count, meeting))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            found[rank] = error
        with contextlib.suppress(NoMeeting):
            meeting.leave(rank, "has ended")

    threads = [threading.Thread(target=be, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(found) == list(range(count)), f"only {sorted(found)} ended"
    return [found[rank] for rank in range(count)]
