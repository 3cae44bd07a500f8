"""Timeline: an interactive timeline of a trace or of a recording in progress."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuscope._checks import count, door
from gpuscope.timeline.canvas.compose import compose_frame
from gpuscope.timeline.canvas.snapshot import MARGIN, DrawnFrame
from gpuscope.timeline.canvas.window import widened
from gpuscope.trace.model import Trace
from gpuscope.widgets.bar import Message
from gpuscope.widgets.selecting import SelectingView

if TYPE_CHECKING:  # what records takes a while to import, and a trace needs none of it
    from gpuscope.record.recorder import Recording
    from gpuscope.widgets.live import Pump

LIVE_HEIGHT = 420
"""Of the plotting area in px, where no trace says how much it needs."""
_TALLEST = 100_000
FOLLOWED_NS = 200_000_000
"""How much of a recording is in view while the timeline follows it, at first."""
_RECORDING = "gpuscope.record.recorder.Recording"


class Timeline(SelectingView):
    """An interactive timeline. What the browser receives depends on its pixels, not on the trace.

    Display it as the last line of a notebook cell. With the mouse: drag to pan, Ctrl and the
    wheel to zoom, click a span for its details, double-click to show everything.
    With the keyboard, once the plot has the focus: W and S zoom, A and D pan, F shows
    everything and Z the selection, / searches names, N and Shift+N go to the next and previous
    match, X goes to the next escape, L to the longest wait, the arrow keys from call to call, H
    shows the rows of the host, M measures between two clicks, R selects the range in view, Escape
    clears. Dragging with Shift selects a range, too.

    Parameters
    ----------
    source
        A trace; a recording, which the timeline follows while it runs; or nothing at first.
    height
        Height of the plot in px, fixed: Plotly no longer adapts to its container's width once the
        height changes. Default: the height of the tracks; 420 for a recording.
    followed_ns
        The time range initially in view while a recording is followed.

    Attributes
    ----------
    figure
        The Plotly FigureWidget, which is never replaced.

    Raises
    ------
    TraitError
        ``window_ns`` is set to an empty window.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
    ...     _ = gs.Gemm(gpu, m=64, n=64, k=64).execute(stream=stream)
    >>> timeline = gs.Timeline(recording.trace)
    >>> timeline.find("gemm")  # the launch call, the kernel, the handle's row
    3
    >>> timeline.close()
    """

    _pump: Pump | None = None  # also of one that could not be made: it is closed all the same

    @door(source=(Trace, _RECORDING, None), height=(int, None), followed_ns=int)
    def __init__(
        self,
        source: Trace | Recording | None = None,
        *,
        height: int | None = None,
        followed_ns: int = FOLLOWED_NS,
        **options: object,
    ) -> None:
        trace = source if isinstance(source, Trace) else Trace.from_columns({})
        self._trace = trace
        self._recording: Recording | None = None
        self._followed_ns = count("followed_ns", followed_ns, least=1)
        if height is not None:
            height = count("height", height, least=1, most=_TALLEST)
        if height is None and not isinstance(source, Trace):
            height = LIVE_HEIGHT
        super().__init__(trace, height, **options)
        if source is None or isinstance(source, Trace):
            self._begin(trace)
        else:
            self.watch(source)

    def __repr__(self) -> str:
        """Say what it shows; not, as widgets do, all that its plot holds."""
        painted = self._painted
        return f"<Timeline, {painted.rows if painted else len(self.state.tracks):,} rows>"

    # -- what is shown ----------------------------------------------------------------
    @door(trace=Trace)
    def show(self, trace: Trace) -> None:
        """Show another trace, all of it."""
        self._stop_reading()
        with self._lock:
            self.state.show(trace)
        self._begin(trace)

    def _begin(self, trace: Trace) -> None:
        """Turn to a trace that the state has already, and wait for the first frame."""
        with self._lock:
            self._trace, self._recording = trace, None
            self._is_live = False
            self._forget()
            self.follow = False
            self.window_ns = self.state.first_view(trace)
        self.scheduler.ask()
        self.scheduler.wait()

    @door(recording=_RECORDING)
    def watch(self, recording: Recording) -> None:
        """Show a recording while it runs; returns at once.

        Background threads read and draw the rows, even while a cell is running.
        """
        from gpuscope.widgets.live import FarPump  # noqa: PLC0415 - see above

        self._stop_reading()
        with self._lock:
            self._recording = recording
            self._is_live = True
            self.state.show(Trace.from_columns({}, metadata=recording.known()))
            self._forget()
            low, _ = self.state.extent_ns
            self.window_ns = (low, low + self._followed_ns)
            self.follow = True
        self.scheduler.ask()
        journal = None
        with contextlib.suppress(OSError):  # there may be no memory for it
            journal = recording.journal() if recording.sees_ranges else None
        if journal is None:
            self._read_here(recording)
            return
        with self._lock:  # what it may call at once waits until it is known
            self._pump = FarPump(
                recording,
                journal.path,
                wanted=self._wanted,
                painted=self._took,
                ended=self._ended,
                lost=lambda _: self._come_near(),
            )

    def finish(self) -> None:
        """Show the whole of the recording that is watched, if it has ended, and read it no more."""
        self._stop_reading()
        recording = self._recording
        if recording is None:
            return
        if recording.is_over:
            self._ended()
        else:
            with self._lock:
                self.follow = False
            self.scheduler.ask()

    def close(self) -> None:
        """Stop its threads and remove the widget."""
        self._stop_reading()
        super().close()

    def _forget(self) -> None:
        """Take back what was searched, selected and measured in what was shown before."""
        self.find("")
        self.figure.forget()
        self.drawn = self._painted = None
        self.clear()

    def _whole(self) -> Trace:
        """Return all that is shown as a trace."""
        return self._trace if self._recording is None else self._recording.snapshot()

    # -- what the browser tells -------------------------------------------------------
    def _act(self, message: Message) -> None:
        if message.get("released"):
            self._is_held = False
        _ACTS[message["do"]](self, message)

    def _clicked(self, x: float, y: float, row: int | None = None) -> None:
        """Take a click in the plot; 0 and 1 are its left and right, its top and bottom edge.

        ``row`` is that of the bar that the browser painted there.
        """
        self._come_near()
        with self._lock:
            if not isinstance(self.drawn, DrawnFrame):
                return
            if self._is_measuring:
                self._mark([*self.state.marks[:1], self.drawn.snapped(x)])
                return
            if row is None or not 0 <= row < len(self.state.tracks):
                row = self.drawn.at(x, y)
            self._choose(row, move=False)

    # -- while a recording goes on ----------------------------------------------------
    def _come_near(self) -> None:
        """Read and draw here from now on: what is asked for needs the rows."""
        with self._lock:
            pump, recording = self._pump, self._recording
        if pump is None or not pump.is_far or recording is None:
            return
        pump.close()
        with self._lock:
            if self._recording is not recording:  # it ended meanwhile
                return
            pump = self._read_here(recording)
        pump.read()
        with self._lock:
            painted, self._painted, self._is_stale = self._painted, None, True
            if painted is not None:  # what was clicked at
                seen = self.state.snapshot(painted.window_ns, following=painted.following)
                self.drawn = compose_frame(seen, None)
        self.scheduler.ask()

    def _read_here(self, recording: Recording) -> Pump:
        """Read and draw in this process."""
        from gpuscope.widgets.live import Pump  # noqa: PLC0415 - see above

        self._pump = Pump(recording, grew=self._grew, ended=self._ended, failed=self._failed)
        return self._pump

    def _grew(self, more: Trace) -> None:
        with self._lock:
            if self._recording is None:  # all of it is shown meanwhile
                return
            low, high = self.state.extend(more)
            if self._is_held:
                return
            view = widened(self.window_ns, MARGIN)
            if self.follow:
                self._to_head()
            elif high < view[0] or low > view[1]:
                self._show_state()
                return
        self.scheduler.ask()

    def _ended(self) -> None:
        recording = self._recording
        assert recording is not None  # noqa: S101 - one is watched
        with self._lock:
            marks = self.state.marks
            self._trace, self._recording = recording.trace, None
            self._is_live = self.follow = False
            if self._painted is not None:
                self.drawn = self._painted = None
            self.state.show(recording.trace)
            self.state.marks = marks
            self.window_ns = self.state.extent_ns
            self._look()
            if self.selected is not None:
                self._choose(self.state.row(self.selected), move=False)
        self.scheduler.ask()

    def _stop_reading(self) -> None:
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.close()


_ACTS: dict[str, Callable[[Timeline, Message], object]] = {
    "zoom": lambda self, message: self.zoom(float(message["by"]), message.get("at")),
    "pan": lambda self, message: self.pan(float(message["by"])),
    "fit": lambda self, _: self.fit(),
    "find": lambda self, message: self.find(str(message["text"])),
    "next": lambda self, _: self.next(),
    "previous": lambda self, _: self.previous(),
    "select": lambda self, message: self.select(int(message["span"])),
    "step": lambda self, message: self.step(int(message["along"]), int(message["across"])),
    "click": lambda self, message: self._clicked(
        float(message["x"]), float(message["y"]), message.get("row")
    ),
    "measure": lambda self, _: self.measure(),
    "clear": lambda self, _: self.clear(),
    "hide": lambda self, message: self._hide(str(message["track"]), hidden=bool(message["hidden"])),
    "follow": lambda self, message: self.set_trait("follow", bool(message["on"])),
    "sms": lambda self, message: self.set_trait("sms", bool(message["on"])),
    "host": lambda self, _: self.set_trait("host", not self.host),
    "escape": lambda self, _: self.next_escape(),
    "wait": lambda self, _: self.longest_wait(),
    "stretch": lambda self, message: self.select_range(
        *(int(edge) + self.state.zero_ns for edge in message.get("range", ()))
    ),
    "closer": lambda self, _: self.zoom_to_selection(),
    "tiles": lambda self, message: self.send_tiles(int(message["version"]), message["want"]),
    "range": lambda self, message: self._ranged(float(message["low"]), float(message["high"])),
    "size": lambda self, message: self._redraw(self.state.resize(int(message["pixels"]))),
    "theme": lambda self, message: self._redraw(self.state.repaint(dark=bool(message["dark"]))),
    # While the plot is being dragged, a frame would take it out of the hand.
    "hold": lambda self, message: setattr(self, "_is_held", bool(message["on"])),
    "opened": lambda self, _: self.open_page(),
    "painted": lambda self, message: self.scheduler.painted(int(message["frame"])),
}
"""What a message does, by its ``do``."""
