"""Timeline: what ran when, of a trace or of a recording that goes on, to zoom, search and ask."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets as ipw
import numpy as np
import traitlets

from gpuscope.figures.text import clean, duration
from gpuscope.record.recorder import Recording
from gpuscope.trace.model import Trace
from gpuscope.widgets import camera, details
from gpuscope.widgets.bar import Bar
from gpuscope.widgets.canvas import Canvas
from gpuscope.widgets.details import Details
from gpuscope.widgets.live import Pump
from gpuscope.widgets.painter import Painter
from gpuscope.widgets.scene import MARGIN, Scene
from gpuscope.widgets.shot import Drawn, compose, first_layout

LIVE_HEIGHT = 420
"""Of the plotting area in px, where no trace says how much it needs."""
FOLLOWED_NS = 200_000_000
"""How much of a recording is in view while the timeline follows it, at first."""


class Timeline(ipw.VBox):  # type: ignore[misc]
    """A timeline of any size: what a browser gets depends on its pixels, not on the trace.

    Display it as the last line of a notebook cell. With the mouse: drag to pan, Ctrl and the
    wheel to zoom, click a span for all that is known of it. With the keyboard, once the plot
    has the focus: W and S zoom, A and D pan, F shows everything, / searches names, N and
    Shift+N go to the next and previous match, the arrow keys go from span to span, M measures
    between two clicks, Escape clears.

    Parameters
    ----------
    source
        A trace; or a recording, which is followed while it goes on; or nothing yet.
    height
        Of the plot in px, for ever: Plotly stops following the width of its place once a
        height is changed. Default: what the tracks need, of a recording 480.
    followed_ns
        How much is in view at first while a recording is followed.

    Attributes
    ----------
    figure
        The Plotly FigureWidget, the same for ever.

    Raises
    ------
    TraitError
        ``window_ns`` is set to a window that is empty.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
    ...     _ = gs.Gemm(gpu, m=64, n=64, k=64).execute(stream=stream)
    >>> timeline = gs.Timeline(recording.trace)
    >>> timeline.find("gemm")
    1
    >>> timeline.close()
    """

    window_ns = traitlets.Tuple(traitlets.Int(), traitlets.Int(), default_value=(0, 1))
    """Start and end of what is in view, on the trace's clock. May be set."""
    follow = traitlets.Bool(default_value=False)
    """Whether the view moves with the newest spans of a recording; panning back ends it."""
    selected = traitlets.Int(None, allow_none=True, read_only=True)
    """The ``id`` of the selected span; :meth:`select` sets it."""
    search = traitlets.Unicode("", read_only=True)
    """What names are searched for; :meth:`find` sets it."""
    matches = traitlets.Int(0, read_only=True)
    """How many spans match the search, by their name or their workload's."""
    hidden = traitlets.Tuple(default_value=())
    """Labels of the tracks that are not shown. May be set."""
    sms = traitlets.Bool(default_value=False)
    """Whether the SMs are shown below the tracks, where the trace has thread blocks. May be
    set."""
    measured_ns = traitlets.Int(None, allow_none=True, read_only=True)
    """Time between the two points that were measured last."""

    def __init__(
        self,
        source: Trace | Recording | None = None,
        *,
        height: int | None = None,
        followed_ns: int = FOLLOWED_NS,
        **options: Any,
    ) -> None:
        self._lock = threading.RLock()
        self._painter = Painter(self._draw, failed=self._failed)
        self._followed_ns = followed_ns
        self._pump: Pump | None = None
        self._recording: Recording | None = None
        self._trace: Trace | None = None
        self._measuring = False
        self._found = np.zeros(0, np.int64)
        self._at = -1
        self._is_held = self._is_stale = False
        trace = source if isinstance(source, Trace) else Trace.from_columns({})
        if height is None and not isinstance(source, Trace):
            height = LIVE_HEIGHT
        self._scene = Scene(trace, height)
        self._drawn: Drawn | None = None
        self.figure = Canvas(
            first_layout(self._scene.shot((0, 1), following=False), self._scene.height),
            self._ranged,
        )
        self._bar = Bar(self._told, height=self.figure.layout.height)
        self._details = Details()
        self._details.on_msg(lambda _widget, content, _buffers: self._told(content))
        super().__init__([self._bar, self.figure, self._details], **options)
        self.add_class("gpuscope-timeline")
        self.observe(self._changed, ["window_ns", "hidden", "sms"])
        self.observe(self._followed, "follow")
        if isinstance(source, Recording):
            self.watch(source)
        else:
            self._begin(trace)

    # -- what is shown ----------------------------------------------------------------
    def show(self, trace: Trace) -> None:
        """Show another trace, all of it."""
        self._stop_reading()
        with self._lock:
            self._scene.show(trace)
        self._begin(trace)

    def _begin(self, trace: Trace) -> None:
        """Turn to a trace that the scene has already, and wait for the first frame."""
        with self._lock:
            self._trace, self._recording = trace, None
            self._forget()
            self.follow = False
            self.window_ns = self._scene.first_view(trace)
        self._painter.ask()
        self._painter.wait()

    def watch(self, recording: Recording) -> None:
        """Show a recording while it goes on; returns at once.

        Rows are read and drawn by threads, also while a cell keeps Python busy.
        """
        self._stop_reading()
        with self._lock:
            self._trace, self._recording = None, recording
            self._scene.show(Trace.from_columns({}, metadata=recording.known()))
            self._forget()
            low, _ = self._scene.extent_ns
            self.window_ns = (low, low + self._followed_ns)
            self.follow = True
        self._painter.ask()
        self._pump = Pump(
            recording, grew=self._grew, ended=self._ended, failed=self._failed
        )  # fmt: skip

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
            self._painter.ask()

    def close(self) -> None:
        """End its threads and take it away."""
        self._stop_reading()
        self._painter.close()
        for child in self.children:
            child.close()
        super().close()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until what was asked for is drawn; returns whether it is."""
        return self._painter.wait(timeout_s)

    # -- the view ---------------------------------------------------------------------
    def zoom(self, by: float, at: float | None = None) -> None:
        """Show ``by`` times as much time.

        Parameters
        ----------
        at
            Which point stays where it is, from 0 at the left to 1 at the right; default: the
            middle, or the newest spans while they are followed.
        """
        with self._lock:
            point = 1.0 if self.follow else 0.5 if at is None else at
            self.window_ns = camera.zoomed(self.window_ns, by, point, self._scene.extent_ns)

    def pan(self, by: float) -> None:
        """Move by ``by`` times what is in view; back in time ends following."""
        with self._lock:
            if by < 0:
                self.follow = False
            self.window_ns = camera.panned(self.window_ns, by, self._scene.extent_ns)

    def fit(self) -> None:
        """Show everything."""
        with self._lock:
            self.follow = False
            self.window_ns = self._scene.extent_ns

    # -- search -----------------------------------------------------------------------
    def find(self, text: str) -> int:
        """Search the names of spans and of workloads, without regard to case.

        Returns
        -------
        int
            How many spans match; :meth:`next` goes to the first in view or after it.
        """
        with self._lock:
            self.set_trait("search", text)
            self._found = self._scene.named(text)
            self._at = -1
            self.set_trait("matches", len(self._found))
            self._painter.ask()
            return len(self._found)

    def next(self) -> int | None:
        """Select the next match and show it; returns its id."""
        return self._go(1)

    def previous(self) -> int | None:
        """Select the match before and show it; returns its id."""
        return self._go(-1)

    def _go(self, step: int) -> int | None:
        with self._lock:
            if self.search and self._recording is not None:
                here = self._found[self._at] if self._at >= 0 else None
                self._found = self._scene.named(self.search)  # more may have come
                self._at = -1 if here is None else int(np.flatnonzero(self._found == here)[0])
                self.set_trait("matches", len(self._found))
            if not len(self._found):
                return None
            if self._at < 0:
                starts = self._scene.tracks.start_ns[self._found]
                first = int(np.searchsorted(starts, self.window_ns[0]))
                self._at = first - (step < 0)
            else:
                self._at += step
            self._at %= len(self._found)
            return self._choose(int(self._found[self._at]))

    # -- one span ---------------------------------------------------------------------
    def select(self, span: int | None) -> None:
        """Select a span by its id, bring it into view, and show what is known of it.

        Raises
        ------
        MissingEvidence
            There is no such span in what is shown.
        """
        with self._lock:
            if span is None:
                self._unselect()
            else:
                self._choose(self._scene.row(span))

    def _choose(self, row: int, *, move: bool = True) -> int:
        """Select a row."""
        scene, trace = self._scene, self._whole()
        span = int(scene.tracks.ids[row])
        facts = details.describe(trace, row)
        scene.select(row, self._linked(trace, span))
        self.set_trait("selected", span)
        self._details.set_trait("facts", facts)
        if move:
            self.follow = False
            self.window_ns = camera.around(self.window_ns, scene.span_ns(row), scene.extent_ns)
        self._painter.ask()
        threading.Thread(
            target=self._explain, args=(trace, span, facts), name="gpuscope-explain", daemon=True
        ).start()
        return span

    def _explain(self, trace: Trace, span: int, facts: dict[str, Any]) -> None:
        why = details.why(trace, span)
        with self._lock:
            if self.selected == span:
                self._details.set_trait("facts", {**facts, "why": why})

    @staticmethod
    def _linked(trace: Trace, span: int) -> list[tuple[int, int]]:
        """Return which rows had to come before which, of a span and those that it depends on."""
        edges = details.neighbours(trace, span)
        rows = details.rows_of_ids(trace, [one for pair in edges for one in pair[:2]])
        return [(rows[a], rows[b]) for a, b, _ in edges if a in rows and b in rows]

    def _unselect(self) -> None:
        self._scene.select(None)
        self.set_trait("selected", None)
        self._details.set_trait("facts", None)
        self._painter.ask()

    def step(self, along: int = 0, across: int = 0) -> int | None:
        """Select the next span ``along`` the track or ``across`` the tracks; returns its id.

        Where none is selected, the first in view.
        """
        with self._lock:
            row = self._scene.neighbour(self.window_ns, along, across)
            return None if row is None else self._choose(row)

    def _whole(self) -> Trace:
        if self._trace is None and self._recording is not None:
            return self._recording.snapshot()
        return self._trace if self._trace is not None else Trace.from_columns({})

    # -- measuring --------------------------------------------------------------------
    def measure(self, *at_ns: int) -> int | None:
        """Measure between two points in time; without them, between the next two clicks.

        Returns
        -------
        int or None
            The time between them in ns.
        """
        with self._lock:
            self._measuring = len(at_ns) < 2
            self._mark(list(at_ns))
            return self.measured_ns

    def _mark(self, marks: list[int]) -> None:
        done = len(marks) == 2
        self._measuring = self._measuring and not done
        self.set_trait("measured_ns", abs(marks[1] - marks[0]) if done else None)
        self._scene.marks = tuple(marks)
        self._painter.ask()

    def clear(self) -> None:
        """Take back selection and measurement."""
        with self._lock:
            self._measuring = False
            self._mark([])
            self._unselect()

    # -- what the browser tells -------------------------------------------------------
    def _told(self, message: Mapping[str, Any]) -> None:
        acts: dict[str, Callable[[], object]] = {
            "zoom": lambda: self.zoom(float(message["by"]), message.get("at")),
            "pan": lambda: self.pan(float(message["by"])),
            "fit": self.fit,
            "find": lambda: self.find(str(message["text"])),
            "next": self.next,
            "previous": self.previous,
            "select": lambda: self.select(int(message["span"])),
            "step": lambda: self.step(int(message["along"]), int(message["across"])),
            "click": lambda: self._clicked(float(message["x"]), float(message["y"])),
            "measure": self.measure,
            "clear": self.clear,
            "hide": lambda: self._hide(str(message["track"]), hidden=bool(message["hidden"])),
            "follow": lambda: self.set_trait("follow", bool(message["on"])),
            "sms": lambda: self.set_trait("sms", bool(message["on"])),
            "size": lambda: self._sized(int(message["pixels"])),
            "theme": lambda: self._themed(dark=bool(message["dark"])),
            "range": lambda: self._ranged(float(message["low"]), float(message["high"])),
            "hold": lambda: self._hold(on=bool(message["on"])),
            "painted": lambda: self._painter.painted(int(message["frame"])),
        }
        try:
            acts[message["do"]]()
        except Exception as error:  # noqa: BLE001 - nobody stands behind a message from a browser
            self._failed(error)

    def _clicked(self, x: float, y: float) -> None:
        """Take a click in the plot; 0 and 1 are its left and right, its top and bottom edge."""
        with self._lock:
            if self._drawn is None:
                return
            if self._measuring:
                self._mark([*self._scene.marks[:1], self._drawn.snapped(x)])
                return
            row = self._drawn.at(x, y)
            if row is None:
                self._unselect()
            else:
                self._choose(row, move=False)

    def _hide(self, track: str, *, hidden: bool) -> None:
        with self._lock:
            rest = [label for label in self.hidden if label != track]
            self.hidden = (*rest, track) if hidden else tuple(rest)

    def _hold(self, *, on: bool) -> None:
        """Stand still while the plot is being dragged: a frame would take it out of the hand."""
        self._is_held = on

    def _sized(self, pixels: int) -> None:
        if self._scene.resize(pixels):
            self._painter.ask()

    def _themed(self, *, dark: bool) -> None:
        if self._scene.repaint(dark=dark):
            self._painter.ask()

    def _ranged(self, low_us: float, high_us: float) -> None:
        """Take a range of the plot's own, to which it was dragged or zoomed."""
        with self._lock:
            window = self._scene.window_at(low_us, high_us)
            inside = camera.clamped(window, self._scene.extent_ns)
            if inside[1] < self.window_ns[1]:
                self.follow = False
            self._is_stale |= inside != window  # the plot shows what is not to be seen
            self.window_ns = inside
        if inside != window:
            self._painter.ask()

    # -- while a recording goes on ----------------------------------------------------
    def _grew(self, more: Trace) -> None:
        with self._lock:
            low, high = self._scene.extend(more)
            if self._is_held:
                return
            view = camera.widened(self.window_ns, MARGIN)
            if self.follow:
                self._to_head()
            elif high < view[0] or low > view[1]:
                self._show_state()
                return
        self._painter.ask()

    def _to_head(self) -> None:
        low, high = self.window_ns
        head = self._scene.extent_ns[1]
        self.window_ns = (head - (high - low), head)

    def _ended(self) -> None:
        recording = self._recording
        assert recording is not None  # noqa: S101 - one is watched
        with self._lock:
            self._trace, self._recording = recording.trace, None
            self._scene.show(recording.trace)
            self.follow = False
            if self.selected is not None:
                self._choose(self._scene.row(self.selected), move=False)
        self._painter.ask()

    def _stop_reading(self) -> None:
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.close()

    # -- drawing ----------------------------------------------------------------------
    @traitlets.validate("window_ns")
    def _window_is_there(self, proposal: Any) -> Any:
        low, high = proposal["value"]
        if low >= high:
            raise traitlets.TraitError(
                f"the window ends at {high} ns, not after its start at {low} ns"
            )
        return proposal["value"]

    def _changed(self, change: Any) -> None:
        if change["name"] == "hidden":
            with self._lock:
                self._scene.hide(change["new"])
        self._painter.ask()

    def _followed(self, change: Any) -> None:
        if change["new"]:
            with self._lock:
                self._to_head()
        self._painter.ask()

    def _forget(self) -> None:
        """Take back what was searched, selected and measured in what was shown before."""
        self._found, self._at = np.zeros(0, np.int64), -1
        self.set_trait("search", "")
        self.set_trait("matches", 0)
        self.figure.forget()
        self._drawn = None
        self.clear()

    def _failed(self, error: Exception) -> None:
        self._show_state(problem=f"{type(error).__name__}: {error}")

    def _draw(self) -> int | None:
        with self._lock:
            shot = self._scene.shot(self.window_ns, following=self.follow)
            before, is_stale = self._drawn, self._is_stale
            self._is_stale = False
        if before is not None and not is_stale and shot.is_like(before.shot):
            self._show_state()
            return None
        drawn = compose(shot, before)
        with self._lock:
            self._drawn = drawn
        self.figure.draw(drawn.bars, drawn.overlays, drawn.layout)
        self._show_state()
        self._bar.frame += 1
        return self._bar.frame

    def _show_state(self, problem: str = "") -> None:
        with self._lock:
            self._bar.state = {
                "live": self._recording is not None,
                "follow": self.follow,
                "measuring": self._measuring,
                "sms": None,
                "tracks": self._scene.labels,
                "search": self.search,
                "matches": self.matches,
                "match": self._at + 1,
                "status": problem or self._status(),
                "problem": bool(problem),
                "dark": self._scene.is_dark,
            }

    def _status(self) -> str:
        """Say what is in view, for eyes and for screen readers."""
        said = []
        if self._measuring:
            said.append(f"click the {'second' if self._scene.marks else 'first'} point to measure")
        if self.measured_ns is not None:
            said.append(f"{duration(self.measured_ns)} between the two points")
        facts = self._details.facts
        if facts is not None:
            said.append(f"selected: {clean(facts['title'], 60)}, {facts['subtitle']}")
        if self._drawn is not None:
            said.append(self._drawn.words())
        return "; ".join(said)
