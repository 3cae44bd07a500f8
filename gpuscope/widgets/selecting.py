"""What is selected in a timeline: what a search found, one span, two points in time."""

from __future__ import annotations

from gpuscope._checks import door
from gpuscope.timeline.canvas.state import Search
from gpuscope.timeline.canvas.window import around, clamped, widened
from gpuscope.widgets.details import links
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
            self._search = Search(text)
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
        self._come_near()
        with self._lock:
            if self._is_live:
                self._look()
            row = self._search.go(step, self.state, self.window_ns)
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
        self._come_near()
        with self._lock:
            row = self.state.neighbour(self.window_ns, along, across)
            return None if row is None else self._choose(row)

    def next_escape(self) -> int | None:
        """Select the next work that escaped, after the selected span or in view; returns its id."""
        self._come_near()
        with self._lock:
            selected = self.state.selected
            after = self.window_ns[0]
            if selected is not None:
                after = int(self.state.tracks.start_ns[selected]) + 1
            row = self.state.escape_after(after)
            return None if row is None else self._choose(row)

    def longest_wait(self) -> int | None:
        """Select the call whose work did not run for longest, then the next; returns its id."""
        self._come_near()
        with self._lock:
            row = self.state.waited_longest()
            return None if row is None else self._choose(row)

    def zoom_to_selection(self) -> None:
        """Show the selected span, or the range, and a little around it."""
        with self._lock:
            selected = self.state.selected
            if selected is not None:
                low, high = self.state.span_ns(selected)
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
            self.details.show(trace, row)
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

    def clear(self) -> None:
        """Clear selection and measurement."""
        with self._lock:
            self._is_measuring = False
            self._mark([])
            self._choose(None)
