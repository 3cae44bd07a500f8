"""A plot with toolbar and panel, redrawn from its state by a background thread."""

from __future__ import annotations

import base64
import threading
from collections.abc import Mapping, Sequence

import ipywidgets as ipw
import traitlets

from gpuscope._checks import door
from gpuscope.timeline.canvas import tiles
from gpuscope.timeline.canvas.compose import compose_frame, first_layout
from gpuscope.timeline.canvas.plot import Plot
from gpuscope.timeline.canvas.scheduler import RedrawScheduler
from gpuscope.timeline.canvas.snapshot import DrawnFrame, Painted, WantedFrame
from gpuscope.timeline.canvas.state import TextSearch, TimelineState
from gpuscope.timeline.canvas.window import Window, clamped, panned, zoomed
from gpuscope.timeline.picture import Panel, Picture
from gpuscope.timeline.plotly_parts import traces_of
from gpuscope.timeline.scene import Scene
from gpuscope.timeline.style import Properties
from gpuscope.timeline.text import clean, duration
from gpuscope.timeline.timeline_figure import still
from gpuscope.trace.model import Trace
from gpuscope.widgets.bar import Bar, Message
from gpuscope.widgets.base import close_look, hear_beside_cells
from gpuscope.widgets.details import Details
from gpuscope.widgets.saved import Bundle, SavedWidget, facts_of


class TimelineView(ipw.VBox):  # type: ignore[misc]
    """Holds a timeline's view state and redraws it. Thread-safe.

    Parameters
    ----------
    trace
        What to show.
    height
        Of the plotting area in px; ``None``: what the tracks of ``trace`` need.

    Attributes
    ----------
    figure, bar, details
        The widgets: plot, toolbar, and panel of the selected span.
    state
        What frames are made of; guarded by a lock.
    scheduler
        The thread that draws.
    drawn
        The last frame, made here or by another process; ``None`` before the first.
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
    host = traitlets.Bool(default_value=False)
    """Whether each row of the host is shown; else all of them are one. May be set."""
    sms = traitlets.Bool(default_value=False)
    """Whether the SMs are shown below the tracks, where the trace has thread blocks. May be
    set."""
    range_ns = traitlets.Tuple(None, allow_none=True, read_only=True)
    """Start and end of the selected stretch of time; :meth:`select_range` sets it."""
    measured_ns = traitlets.Int(None, allow_none=True, read_only=True)
    """Time between the two points that were measured last."""

    def __init__(self, trace: Trace, height: int | None, **options: object) -> None:
        self._lock = threading.RLock()
        self.scheduler = RedrawScheduler(self._draw, failed=self._failed)
        self._search = TextSearch()
        self.drawn: DrawnFrame | Painted | None = None
        self._painted: Painted | None = None
        self._is_live = self._is_measuring = self._is_held = self._is_stale = False
        self._browser_window: Window | None = None
        self._settled = 0
        self._saved_widget: SavedWidget | None = None  # its place in the notebook
        self.bar = Bar(self._told)
        self.details = Details()
        # The browser reads Plotly while the trace is being indexed; scripts behind it have to wait.
        self.figure = Plot(
            lambda low_us, high_us: self._told({"do": "range", "low": low_us, "high": high_us}),
            self._exported,
        )
        self.state = TimelineState(trace, height)
        layout = first_layout(self.state.snapshot((0, 1), following=False), self.state.height)
        self.figure.draw({}, {}, layout)
        self.bar.height = layout["height"]
        self.details.on_msg(lambda _widget, content, _buffers: self._told(content))
        for heard in (self.bar, self.figure, self.details):
            hear_beside_cells(heard)
        super().__init__([self.bar, self.figure, self.details], **options)
        self.add_class("gpuscope-timeline")
        self.observe(self._changed, ["window_ns", "hidden", "host", "sms"])
        self.observe(self._followed, "follow")

    def _repr_mimebundle_(self, **options: object) -> Bundle:
        self.figure.settle()
        self._settled = self.bar.frame
        bundle: Bundle = super()._repr_mimebundle_(**options)
        if facts := facts_of(bundle):
            # For pages that run no JavaScript, such as a notebook made into HTML.
            facts["image/png"] = base64.b64encode(self._still()).decode()
        return bundle

    def _ipython_display_(self) -> None:
        self._saved_widget = SavedWidget(self._repr_mimebundle_())

    def keep(self) -> None:
        """Have the notebook keep what is in view now, where it is displayed."""
        if self._saved_widget is not None:
            self._saved_widget.update(self._repr_mimebundle_(), is_seen=self.is_seen)

    def _still(self) -> bytes:
        """Return what is in view as a PNG."""
        with self._lock:
            tracks, window, trace = self.state.tracks, self.window_ns, self._whole()
        return still(Scene.of(tracks, window), trace)

    def _exported(self) -> tuple[list[Properties], Properties]:
        """Return what is in view as Plotly draws it, and its layout."""
        with self._lock:
            snapshot = self.state.snapshot(self.window_ns, following=self.follow)
        scene = Scene.among(
            snapshot.tracks, snapshot.places.tracks, snapshot.window_ns, row_lanes=snapshot.lanes
        )
        panel = Panel(scene, snapshot.places, snapshot.zero_ns)
        layout = compose_frame(snapshot, None).frame.layout
        return traces_of(Picture((panel,), snapshot.colours, "µs", layout)), layout

    def open_page(self) -> None:
        """Draw anew for a page that opened: what was sent while it was opening is lost there."""
        if self.bar.frame != self._settled:
            with self._lock:
                self._settled, self._is_stale = self.bar.frame, True
            self.figure.send_all_again()
            self.scheduler.ask()

    def send_tiles(self, version: int, wanted: Sequence[tuple[int, int]]) -> None:
        """Send tiles; those of another version are of no use to the page any more."""
        with self._lock:
            snapshot = self.state.snapshot(self.window_ns, following=False)
        if snapshot.version != version or snapshot.lanes is None:
            return
        tile_properties = []
        for level, index in wanted:
            window = tiles.window_of(snapshot, int(level), int(index))
            tile_properties.append({**tiles.tile(snapshot, window), "key": [level, index]})
        data = [tile.pop("data") for tile in tile_properties]
        self.bar.send({"version": version, "tiles": tile_properties}, data)

    def _whole(self) -> Trace:
        """Return all that is shown as a trace."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop its threads and remove the widget."""
        scheduler = getattr(self, "scheduler", None)
        if scheduler is not None:  # else it could not be made
            scheduler.close()
        for child in self.children:
            child.close()
            close_look(child)
        super().close()
        close_look(self)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until what was asked for is drawn; returns whether it is."""
        return self.scheduler.wait(timeout_s)

    @property
    def is_seen(self) -> bool:
        """Whether a browser shows it."""
        return self.scheduler.is_seen

    # -- the view ---------------------------------------------------------------------
    @door(by=float, at=(float, None))
    def zoom(self, by: float, at: float | None = None) -> None:
        """Show ``by`` times as much time.

        Parameters
        ----------
        at
            The point that stays in place, from 0 at the left to 1 at the right. Default: the
            middle, or the newest spans while following.
        """
        with self._lock:
            point = 1.0 if self.follow else 0.5 if at is None else at
            self.window_ns = zoomed(self.window_ns, by, point, self.state.extent_ns)

    @door(by=float)
    def pan(self, by: float) -> None:
        """Move by ``by`` times what is in view; back in time ends following."""
        with self._lock:
            self.follow = self.follow and by >= 0
            self.window_ns = panned(self.window_ns, by, self.state.extent_ns)

    def fit(self) -> None:
        """Show everything."""
        with self._lock:
            self.follow = False
            self.window_ns = self.state.extent_ns

    # -- what the browser tells -------------------------------------------------------
    def _told(self, message: Message) -> None:
        try:
            self._act(message)
        except Exception as error:  # noqa: BLE001 - nobody stands behind a message
            self._failed(error)

    def _act(self, message: Message) -> None:
        """Do what the browser told.

        Raises
        ------
        KeyError, TypeError, ValueError
            The message is none of ours.
        """
        raise NotImplementedError

    def _redraw(self, changed: bool) -> None:  # noqa: FBT001 - that is all it is told
        if changed:
            self.scheduler.ask()

    def _ranged(self, low_us: float, high_us: float) -> None:
        """Take a range of the plot's own, to which it was dragged or zoomed."""
        with self._lock:
            window = self.state.window_at(low_us, high_us)
            inside = clamped(window, self.state.extent_ns)
            if inside[1] < self.window_ns[1]:
                self.follow = False
            self._is_stale |= inside != window  # the plot shows what is not to be seen
            self._browser_window = inside
            self.window_ns = inside
        if inside != window:
            self.scheduler.ask()

    def _hide(self, track: str, *, hidden: bool) -> None:
        with self._lock:
            rest = [label for label in self.hidden if label != track]
            self.hidden = (*rest, track) if hidden else tuple(rest)

    # -- drawing ----------------------------------------------------------------------
    @traitlets.validate("window_ns")
    def _window_is_there(self, proposal: Mapping[str, Window]) -> Window:
        low, high = proposal["value"]
        if low >= high:
            raise traitlets.TraitError(
                f"the window ends at {high} ns, not after its start at {low} ns"
            )
        return proposal["value"]

    def _changed(self, change: Properties) -> None:
        with self._lock:
            if change["name"] == "hidden":
                self.state.hide(change["new"])
            elif change["name"] == "host":
                self.state.fold(folds=not change["new"])
            elif change["name"] == "sms":
                self.state.show_sms(shown=change["new"])
        self.scheduler.ask()

    def _followed(self, change: Properties) -> None:
        if change["new"]:
            with self._lock:
                self._to_head()
        self.scheduler.ask()

    def _to_head(self) -> None:
        """Move the view to the newest spans."""
        low, high = self.window_ns
        head = self.state.extent_ns[1]
        self.window_ns = (head - (high - low), head)

    def _failed(self, error: Exception) -> None:
        self._show_state(problem=f"{type(error).__name__}: {error}")

    def _draw(self) -> int | None:
        with self._lock:
            snapshot = self.state.snapshot(self.window_ns, following=self.follow)
            before, is_stale, painted = self.drawn, self._is_stale, self._painted
            self._is_stale = False
            knows_range = not is_stale and self._browser_window == snapshot.window_ns
            if not knows_range:
                self._browser_window = None
        if not isinstance(before, DrawnFrame):
            is_same, before = painted is not None and painted is before, None
        else:
            is_same = painted is None and snapshot.is_like(before.snapshot)
        if is_same and not is_stale:
            self._show_state()
            return None
        drawn = painted or compose_frame(snapshot, None if is_stale else before)
        frame = drawn.frame
        moves = not is_stale and self.drawn is not None and bool(frame.page["view"])
        if knows_range or moves:
            self.figure.know({"xaxis.range": frame.layout["xaxis.range"]}, moves=moves)
        self.figure.draw(frame.legend, frame.overlays, frame.layout)
        with self._lock:
            self.drawn = drawn
        with self._lock, self.bar.hold_sync():  # one message
            self.bar.scene = frame.page
            self._show_state()
            self.bar.frame += 1
        return self.bar.frame

    def _wanted(self) -> WantedFrame:
        """Say what another process is to paint."""
        with self._lock:
            return WantedFrame(
                self.window_ns,
                self.follow,
                self.hidden,
                self.state.pixels,
                self.state.height,
                self.state.is_dark,
                paint=not self._is_held,
            )

    def _took(self, painted: Painted) -> None:
        """Take a frame of another process."""
        with self._lock:
            self._painted = painted
            self.state.extent_ns = painted.extent_ns
            self.state.labels, self.state.left_out = painted.labels, painted.left_out
            before = self.window_ns
            if self.follow:
                self._to_head()
            moved = self.window_ns != before
        if not moved:  # else it was asked for
            self.scheduler.ask()

    def _show_state(self, problem: str = "") -> None:
        with self._lock:
            shown = self.drawn
            self.bar.state = {
                "live": self._is_live,
                # What is seen, not what was asked for: a frame may still be on its way.
                "follow": self.follow if shown is None else shown.following,
                "measuring": self._is_measuring,
                "sms": self.sms if self.state.has_blocks else None,
                "tracks": self.state.labels,
                "search": self.search,
                "matches": self.matches,
                "match": self._search.at + 1,
                "range": self.range_ns and [edge - self.state.zero_ns for edge in self.range_ns],
                "row": self.state.selected,
                "host": self.host,
                "escapes": len(self.state.tracks.escaped),
                "calls": bool(self.state.tracks.waiting),
                "shares": [] if self.drawn is None else self.drawn.frame.shares,
                "status": problem or self._status(),
                "problem": bool(problem),
                "dark": self.state.is_dark,
            }

    def _status(self) -> str:
        """Say what is in view, for eyes and for screen readers."""
        parts = []
        if self._is_measuring:
            parts.append(f"click the {'second' if self.state.marks else 'first'} point to measure")
        if self.measured_ns is not None:
            parts.append(f"{duration(self.measured_ns)} between the two points")
        facts = self.details.facts
        if facts is not None:
            parts.append(f"selected: {clean(facts['title'], 60)}, {facts['subtitle']}")
        if self.drawn is not None:
            parts.append(self.drawn.frame.words)
        if self.state.left_out:
            parts.append(f"{self.state.left_out:,} less busy tracks not shown")
        return "; ".join(parts)
