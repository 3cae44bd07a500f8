"""Frames of a recording that goes on, made in a process of their own.

It reads the journal of the process that records, which gets frames back: neither reading nor
drawing takes Python's lock from those who launch.
"""

from __future__ import annotations

import atexit
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path

from gpuscope import _child
from gpuscope._fork import free_in_children
from gpuscope._libcupti import NVTX_INJECTION
from gpuscope.record.cupti.journal import JournalReader
from gpuscope.timeline.canvas.compose import compose_frame
from gpuscope.timeline.canvas.snapshot import MARGIN, Painted, WantedFrame
from gpuscope.timeline.canvas.state import TimelineState
from gpuscope.timeline.canvas.window import widened

PATIENCE_S = 20.0
"""How long the process may take for a frame, its beginning included; then it is given up."""
_NAP_S = 0.05
_NICENESS = 5
"""Who launches goes first."""
_IDLE_S = 300.0
"""After which a process that nobody needs ends."""

STOPPED = object()
"""In place of an answer: nobody waits for it any more."""


class PainterGone(Exception):
    """The process that paints cannot be reached, or takes too long."""


# -- in the process that records -------------------------------------------------------------
class Painter:
    """A process that paints one recording at a time; raises :class:`PainterGone`."""

    def __init__(self) -> None:
        parent_end, child_end = socket.socketpair()
        with child_end, ExitStack() as undo:
            undo.callback(parent_end.close)
            environment = {
                name: value for name, value in os.environ.items() if name != NVTX_INJECTION
            }
            self._process = subprocess.Popen(  # noqa: S603 - this Python, and a function of ours
                _child.python_command(f"{__name__}:serve", str(child_end.fileno())),
                pass_fds=[child_end.fileno()],
                env=environment,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            undo.pop_all()
        self._wire = Connection(parent_end.detach())
        self._ready = select.poll()
        self._ready.register(self._wire, select.POLLIN)
        self._owes = False
        """Whether an answer is on its way that nobody waits for."""

    @property
    def is_there(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def begin(self, journal: Path) -> None:
        """Turn to a recording; what is still on its way is of the one before."""
        if self._owes:
            self._receive(lambda: False)
            self._owes = False
        self._send(journal)

    def paint(self, wanted: WantedFrame, stopped: Callable[[], bool]) -> Painted | None:
        """Return a frame of what is in the journal if one is wanted and shows something new.

        Parameters
        ----------
        stopped
            Whether nobody waits for the frame any more.
        """
        self._owes = True
        self._send(wanted)
        answer = self._receive(stopped)
        if answer is STOPPED:
            return None
        self._owes = False
        if isinstance(answer, str):
            raise PainterGone(answer)
        return answer if isinstance(answer, Painted) else None

    def _send(self, message: object) -> None:
        try:
            self._wire.send(message)
        except OSError as error:
            raise PainterGone(str(error)) from error

    def _receive(self, stopped: Callable[[], bool]) -> object:
        try:
            for _ in range(round(PATIENCE_S / _NAP_S)):
                if self._ready.poll(_NAP_S * 1e3):
                    return self._wire.recv()
                if stopped():
                    return STOPPED
        except (OSError, EOFError) as error:
            raise PainterGone(str(error)) from error
        raise PainterGone(f"no frame in {PATIENCE_S:.0f} s")

    def end(self) -> None:
        """End the process."""
        self._wire.close()
        self._process.kill()
        self._process.wait()


_spare: list[Painter] = []
"""A process that waits for the next recording: to start one takes a second."""
_spare_lock = free_in_children(threading.Lock())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_spare.clear)  # it is the parent's, who ends it


def get_painter() -> Painter:
    """Return the process that waits, or a new one."""
    with _spare_lock:
        while _spare:
            painter = _spare.pop()
            if painter.is_there:
                return painter
            painter.end()
    return Painter()


def give_back(painter: Painter) -> None:
    """Keep a process for the next recording; all answers of it were taken."""
    with _spare_lock:
        if not _spare:
            _spare.append(painter)
            return
    painter.end()


@atexit.register
def _end_spare() -> None:
    while _spare:
        _spare.pop().end()


# -- in the process that paints --------------------------------------------------------------
def serve() -> None:
    """Paint until nobody is there; the argument is the number of the socket."""
    os.nice(_NICENESS)
    with suppress(OSError, EOFError), Connection(int(sys.argv[1])) as wire:
        easel: Easel | None = None
        while wire.poll(_IDLE_S):
            message = wire.recv()
            if isinstance(message, Path):
                if easel is not None:
                    easel.close()
                easel = Easel(message)
                continue
            assert easel is not None  # noqa: S101 - a recording comes first
            try:
                answer: object = easel.paint(message)
            except Exception as error:  # noqa: BLE001 - it is told to who waits
                answer = f"{type(error).__name__}: {error}"
            wire.send(answer)


class Easel:
    """What there is of a recording, and frames of it."""

    def __init__(self, journal: Path) -> None:
        self._file = journal.open("rb")  # it may be gone when the recording ends
        self._reader = JournalReader(Path(f"/proc/self/fd/{self._file.fileno()}"))
        self._state: TimelineState | None = None
        self._before: WantedFrame | None = None

    def paint(self, wanted: WantedFrame) -> Painted | None:
        """Take what is new, and return a frame if one is wanted and shows something new."""
        trace = self._reader.read_new()
        low, high = 0, 0
        if self._state is None:
            self._state = TimelineState(trace, wanted.height)
            low, high = self._state.extent_ns
        elif len(trace):
            low, high = self._state.extend(trace)
        state = self._state
        if not wanted.paint:
            self._before = None
            return None
        view = widened(wanted.window_ns, MARGIN)
        same, self._before = self._before == wanted, wanted
        if same and (low == high or not (wanted.following or (high >= view[0] and low <= view[1]))):
            return None
        return self._frame(state, wanted)

    def close(self) -> None:
        """Let go of the journal."""
        self._file.close()

    def _frame(self, state: TimelineState, wanted: WantedFrame) -> Painted:
        state.hide(wanted.hidden)
        state.resize(wanted.pixels)
        state.repaint(dark=wanted.dark)
        low, high = wanted.window_ns
        if wanted.following:
            low, high = state.extent_ns[1] - (high - low), state.extent_ns[1]
        snapshot = state.snapshot((low, high), following=wanted.following)
        return Painted(
            frame=compose_frame(snapshot, None).frame,
            window_ns=(low, high),
            following=wanted.following,
            extent_ns=state.extent_ns,
            labels=state.labels,
            left_out=state.left_out,
            rows=len(state.tracks),
        )
