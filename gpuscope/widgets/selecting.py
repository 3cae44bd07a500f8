"""What is selected in a timeline: what a search found, one span, two points in time."""

from __future__ import annotations

from collections.abc import Callable

from gpuscope._checks import door
from gpuscope.timeline.canvas.state import TextSearch
from gpuscope.timeline.canvas.window import around, clamped, widened
from gpuscope.widgets.details import describe, links, of_stretch, told_of_span, told_of_stretch
from gpuscope.widgets.view import TimelineView


class SelectingView(TimelineView):
    """A timeline in which spans are searched, selected and measured."""

    def _come_near(self) -> None:
        """Have all rows here: what is asked for needs them."""
        raise NotImplementedError

    # -- search -----------------------------------------------------------------------
    @door(text=str)
    def find(self, text: str) -> int:
        """Search the names of spans and of workloads, without regard to case.

        Returns
        -------
        int
            How many spans match; :meth:`next` goes to the first in view or after it.
        """
        if text:
            self._come_near()
        with self._lock:
            self._search = TextSearch(text)
            self.set_trait("search", text)
            self._look()
        self.scheduler.ask()
        return int(self.matches)

    def next(self) -> int | None:
        """Select the next match and show it; returns its id."""
        return self._go(1)

    def previous(self) -> int | None:
        """Select the match before and show it; returns its id."""
        return self._go(-1)

    def _look(self) -> None:
        self._search.look(self.state)
        self.set_trait("matches", len(self._search.rows))

    def _go(self, step: int) -> int | None:
        def match() -> int | None:
            if self._is_live:
                self._look()
            return self._search.go(step, self.state, self.window_ns)

        return self._show(match)

    def _show(self, find: Callable[[], int | None]) -> int | None:
        """Select the row that is found once all of them are here, and show it; return its id."""
        self._come_near()
        with self._lock:
            row = find()
            return None if row is None else self._choose(row)

    # -- one span ---------------------------------------------------------------------
    @door(span=(int, None))
    def select(self, span: int | None) -> None:
        """Select a span by its id, bring it into view, and show what is known of it.

        Raises
        ------
        MissingEvidence
            There is no such span in what is shown.
        """
        if span is not None:
            self._come_near()
        with self._lock:
            self._choose(None if span is None else self.state.row(span))

    @door(along=int, across=int)
    def step(self, along: int = 0, across: int = 0) -> int | None:
        """Select the next span ``along`` the track or ``across`` the tracks; returns its id.

        Where none is selected, the first in view.
        """
        return self._show(lambda: self.state.neighbour(self.window_ns, along, across))

    def next_escape(self) -> int | None:
        """Select the next work that escaped, after the selected span or in view; returns its id."""
        return self._show(lambda: self.state.next_escape(self.window_ns[0]))

    def longest_wait(self) -> int | None:
        """Select the call whose work waited longest, then the next longest; returns its id."""
        return self._show(self.state.waited_longest)

    def zoom_to_selection(self) -> None:
        """Show the selected span, or the range, and a little around it."""
        with self._lock:
            chosen = self.range_ns
            if self.state.selected is not None:
                chosen = self.state.span_ns(self.state.selected)
            if chosen is not None:
                low, high = chosen
                self.follow = False
                self.window_ns = clamped(
                    widened((low, max(high, low + 1)), 0.3), self.state.extent_ns
                )

    def _choose(self, row: int | None, *, move: bool = True) -> int | None:
        """Select a row, or none; return its id."""
        state, span = self.state, None
        if row is None:
            state.select(None)
            self.details.clear()
        else:
            trace, span = self._whole(), int(state.tracks.ids[row])
            state.select(row, links(trace, span))
            tracks, colours = state.tracks, state.colours
            self.details.show(
                describe(trace, row), lambda: told_of_span(trace, span, tracks, colours)
            )
            self.set_trait("range_ns", None)
        self.set_trait("selected", span)
        if row is not None and move:
            self.follow = False
            self.window_ns = around(self.window_ns, state.span_ns(row), state.extent_ns)
        self.scheduler.ask()
        return span

    # -- measuring --------------------------------------------------------------------
    def measure(self, *at_ns: int) -> int | None:
        """Measure between two points in time; without them, between the next two clicks.

        Returns
        -------
        int or None
            The time between them in ns.
        """
        self._come_near()
        with self._lock:
            self._is_measuring = len(at_ns) < 2
            self._mark(list(at_ns))
            return self.measured_ns

    def _mark(self, marks: list[int]) -> None:
        done = len(marks) == 2
        self._is_measuring = self._is_measuring and not done
        self.set_trait("measured_ns", abs(marks[1] - marks[0]) if done else None)
        self.state.marks = tuple(marks)
        self.scheduler.ask()

    # -- a stretch of time ------------------------------------------------------------
    @door(low_ns=(int, None), high_ns=(int, None))
    def select_range(self, low_ns: int | None = None, high_ns: int | None = None) -> None:
        """Select a stretch of time, and show what it consists of; by default what is in view."""
        self._come_near()
        with self._lock:
            view, state = self.window_ns, self.state
            window = clamped(
                (
                    view[0] if low_ns is None else low_ns,
                    max(view[1] if high_ns is None else high_ns, (low_ns or 0) + 1),
                ),
                state.extent_ns,
            )
            self._choose(None)
            self.set_trait("range_ns", window)
            tracks, rows, colours = state.tracks, state.rows, state.colours
            self.details.show(
                of_stretch(window, state.zero_ns),
                lambda: told_of_stretch(window, tracks, rows, colours),
            )
            self.scheduler.ask()

    def clear(self) -> None:
        """Clear selection and measurement."""
        with self._lock:
            self.set_trait("range_ns", None)
            self._is_measuring = False
            self._mark([])
            self._choose(None)
