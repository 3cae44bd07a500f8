"""What a dashboard shows of its runs: timeline, verdicts, numbers, and which are compared."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import ipywidgets as ipw

from gpuscope import figures
from gpuscope.record.recorder import Recording
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run
from gpuscope.widgets import html, layout, results
from gpuscope.widgets.compared import side_by_side
from gpuscope.widgets.pins import Pins
from gpuscope.widgets.timeline import Timeline

PLOT_PX = 172
"""So that carver, timeline and verdicts have room on a screen of 1280 × 720."""
FOLLOWED_NS = 40_000_000
"""What of a run is in view while it goes on: little enough to tell kernels apart."""
_BEFORE = "gpuscope-before"
"""Marks what is of the run before the one that is on: dimmed by ``controls.css``."""
_NO_RUN = html.note("No run yet: press Run, or Ctrl+Enter anywhere here. Esc stops a run.")


class Shown:
    """The part of a dashboard that is about runs.

    Parameters
    ----------
    reopen
        Called with the number of a run to show again.
    colours
        Returns name → colour of the partitions.
    changed
        Called when what is shown is another.
    lock
        Guards the dashboard.
    """

    def __init__(
        self,
        reopen: Callable[[int], None],
        colours: Callable[[], Mapping[str, str]],
        changed: Callable[[], None],
        lock: threading.RLock,
    ) -> None:
        self._colours, self._changed, self._lock = colours, changed, lock
        self._watched: Recording | None = None
        self._picture = self._cards = self._table = ""
        self.has_spans = False
        """Whether the timeline shows a run: ids are the run's."""
        self.timeline = layout.compact(Timeline(height=PLOT_PX, followed_ns=FOLLOWED_NS))
        self.verdicts, self.results = ipw.HTML(_NO_RUN), ipw.HTML()
        self.pins = Pins(self._numbers, reopen, lock=lock)

    @property
    def page(self) -> str:
        """What a page without scripts shows of the run."""
        return str(self.verdicts.value + self._picture + self.results.value)

    def dim(self, *, on: bool) -> None:
        """Dim what is of the run before, while another is on."""
        for widget in (self.verdicts, self.results):
            (widget.add_class if on else widget.remove_class)(_BEFORE)

    def follow(self, recording: Recording, *, together: bool, live: bool) -> None:
        """Let the timeline follow what runs together, as long as that is wanted."""
        if live:
            if together and recording is not self._watched:
                self._watched = recording
                self.timeline.watch(recording)
            return
        if self._watched is not None:
            self._watched = None
            self.timeline.finish()
        recording.batches()  # what is turned into columns now need not be at Stop

    def finish(self, run: Run | None) -> str:
        """Show a run that has ended, if it came to one; return how it did, in words."""
        self._watched = None
        if run is None:
            self.timeline.finish()
            return ""
        summary = results.summarise(run)
        self.show(self.pins.add(summary, run))
        return results.ended(summary)

    def show(self, number: int) -> str:
        """Show a run that is kept; return that it is, in words."""
        kept = self.pins.kept(number)
        assert kept is not None  # noqa: S101 - whoever calls knows that it is there
        run, summary = kept
        trace = list(run.traces.values())[-1]
        window = results.close_up(trace, summary)
        self.timeline.show(trace)  # it waits for the frame: nobody else waits for us meanwhile
        self.timeline.sms = summary.blocks
        self.timeline.fit()
        picture = html.picture(figures.timeline(trace, window_ns=window)) if window else ""
        with self._lock:
            self._picture = picture
            self._cards = results.verdicts(summary, dict(self._colours()))
            self._table = results.numbers(summary)
            self.has_spans = True
            self.pins.shown = number
            self._numbers()
        return f"Run {number} is shown."

    def show_trace(self, trace: Trace) -> None:
        """Show a trace that is no run's."""
        self.has_spans = False
        self.timeline.show(trace)

    def _numbers(self) -> None:
        """Show the numbers of the run that is shown, and the runs that are compared."""
        compared = self.pins.compared
        self.verdicts.value = self._cards
        self.results.value = self._table + (side_by_side(compared) if len(compared) > 1 else "")
        self._changed()
