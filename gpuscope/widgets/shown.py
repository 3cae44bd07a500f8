"""What a dashboard shows of its runs: verdict, timeline, answers, numbers, and what is compared."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping

import ipywidgets as ipw

from gpuscope import figures
from gpuscope.analysis.settings import settings_table
from gpuscope.experiments.experiment import Experiment
from gpuscope.experiments.runner import Progress
from gpuscope.record.recorder import Recording
from gpuscope.telling.finding import Finding, Quantity, counts
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run
from gpuscope.widgets import answers, html, layout, results
from gpuscope.widgets.compared import side_by_side
from gpuscope.widgets.pins import Pins
from gpuscope.widgets.timeline import Timeline

PLOT_PX = 172
"""So that verdict, timeline and answers have room on a screen of 1280 × 720, file browser open."""
FOLLOWED_NS = 40_000_000
"""What of a run is in view while it goes on: little enough to tell kernels apart."""
LOOK_S, SHARE = 0.5, 0.2
"""How often a run is judged while it is on, at most; and which part of the time that may take."""
_BEFORE = "gpuscope-before"
"""Marks what is of the run before the one that is on: dimmed by ``controls.css``."""
_EMPTY = "gpuscope-empty"
"""Marks a timeline that shows nothing yet: ``controls.css`` says what it will."""


class ShownRuns:
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
        self._together: list[Recording] = []
        self._judged_calls, self._judge_again_s = 0, 0.0
        self._is_on = self._is_other = False
        self._picture = self._sections = ""
        self.mend = ""
        """What the button beside the verdict changes, as TOML."""
        self.has_spans = False
        """Whether the timeline shows a run: ids are the run's."""
        self.timeline = layout.compact(Timeline(height=PLOT_PX, followed_ns=FOLLOWED_NS))
        self.timeline.add_class(_EMPTY)
        self.verdict, self.answers, self.results = ipw.HTML(), ipw.HTML(), ipw.HTML()
        self.pins = Pins(self._numbers, reopen, lock=lock)

    @property
    def page(self) -> str:
        """What a page without scripts shows of the run."""
        parts = (self.verdict.value, self._picture, self.answers.value, self.results.value)
        return str("".join(parts))

    # -- before and while it runs ---------------------------------------------------------
    def plan(
        self, described: Mapping[str, str], lasts_s: float | None, experiment: Experiment | None
    ) -> None:
        """Say what would be run; of what is shown, that it was something else, if it was.

        Parameters
        ----------
        described
            Workload → what it is, in words.
        experiment
            ``None`` where that is nothing that can be run.
        """
        if (run_and_summary := self.pins.kept(self.pins.shown)) is not None and not self._is_on:
            is_other = experiment is None or experiment.to_dict() != run_and_summary[1].experiment
            if is_other != self._is_other:
                self._is_other = is_other
                self._numbers()
        elif not self.pins.runs:
            values = () if lasts_s is None else (Quantity("time", lasts_s * 1e9, "ns"),)
            notes = [
                Finding("planned", "note", {"workload": name, "plan": words})
                for name, words in described.items()
            ]
            self._tell(Finding("verdict.before", "note", {}, values), notes, "none")

    def begin(self) -> None:
        """Take back the verdict: a run begins. What else is of the one before is dimmed."""
        self._together, self._judged_calls, self._is_on = [], 0, True
        self._judge_again_s = time.monotonic() + LOOK_S  # the first calls tell little
        self.results.add_class(_BEFORE)
        self._tell(Finding("verdict.started", "note"), (), "live")

    def _tell(
        self, verdict: Finding, notes: Iterable[Finding], look: str = "", page: str = ""
    ) -> None:
        several = [*notes]
        mends = (note.mend for note in several if note.mend and note.mend.of == "experiment")
        self.mend = next((mend.code for mend in mends), "")
        self.answers.value = page or answers.nothing()
        self.verdict.value = answers.headline(verdict, several, look)

    def follow(self, progress: Progress, experiment: Experiment, *, live: bool) -> None:
        """Let timeline and verdict follow what runs together, as long as that is wanted."""
        recording = progress.recording
        if recording is not None and progress.phase == "together":
            if recording not in self._together:
                self._together.append(recording)
            if live and recording is not self._watched:
                self._watched = recording
                self.timeline.remove_class(_EMPTY)
                self.timeline.watch(recording)
        if live:
            self._judge(progress, experiment)
            return
        if self._watched is not None:
            self._watched = None
            self.timeline.finish()
        if recording is not None:
            recording.batches()  # what is turned into columns now need not be at Stop
        done = counts(done=progress.done, total=progress.total)
        self._tell(
            Finding("so-far.unseen", "note", {}, done), [Finding("not-live", "note")], "live"
        )

    def _judge(self, progress: Progress, experiment: Experiment) -> None:
        """Tell the verdict so far, unless it is the same or was told just now."""
        began_s = time.monotonic()
        too_soon = began_s < self._judge_again_s or not self._together
        if too_soon or progress.done == self._judged_calls:
            return
        self._judged_calls = progress.done
        trace = Trace.concat([recording.snapshot() for recording in self._together])
        trace = trace.with_metadata(experiment=experiment.to_dict(), setting=progress.setting)
        rows = settings_table({progress.setting: trace}).to_pylist()
        judged = results.judge(trace, rows, (progress.done, progress.total))
        verdict = judged.verdict
        with self._lock:
            page = answers.answers(judged, self._colours())
            self._tell(verdict.headline, verdict.notes, "live", page)
        ended_s = time.monotonic()
        self._judge_again_s = ended_s + max(LOOK_S, (ended_s - began_s) / SHARE)

    # -- when it has ended ------------------------------------------------------------------
    def finish(self, run: Run | None) -> str:
        """Show a run that has ended, if it came to one; return how it did, in words."""
        self._watched, self._together, self._is_on = None, [], False
        if run is None:
            self.timeline.finish()
            if self.pins.shown:
                self._numbers()
            return ""
        summary = results.summarise(run)
        self.show(self.pins.add(summary, run))
        return results.ended(summary)

    def show(self, number: int) -> str:
        """Show a run that is kept; return that it is, in words."""
        run_and_summary = self.pins.kept(number)
        assert run_and_summary is not None  # noqa: S101 - whoever calls knows that it is there
        run, summary = run_and_summary
        trace = list(run.traces.values())[-1]
        self.timeline.remove_class(_EMPTY)
        self.timeline.show(trace)  # it waits for the frame: nobody else waits for us meanwhile
        self.timeline.sms = summary.blocks
        self.timeline.fit()
        picture = html.picture(figures.timeline(trace)) if summary.rows else ""
        with self._lock:
            self._picture = picture
            self._sections = results.sections(summary, self._colours()) + results.numbers(summary)
            self.has_spans = True
            self.pins.shown = number
            self._numbers()
        return f"Run {number} is shown."

    def show_trace(self, trace: Trace) -> None:
        """Show a trace that is no run's."""
        self.has_spans = False
        self.timeline.remove_class(_EMPTY)
        self.timeline.show(trace)

    def _numbers(self) -> None:
        """Show the verdict and the numbers of a run, and the runs that are compared."""
        compared = self.pins.compared
        run_and_summary = self.pins.kept(self.pins.shown)
        assert run_and_summary is not None  # noqa: S101 - what is shown is kept
        verdict = run_and_summary[1].judged.verdict
        page = answers.answers(run_and_summary[1].judged, self._colours())
        if not self._is_on:  # else the verdict is of the run that is
            before = [Finding("of-before", "note")] if self._is_other else verdict.notes
            self._tell(verdict.headline, before, "none" if self._is_other else "", page)
            self.results.remove_class(_BEFORE)
        self.results.value = self._sections + (side_by_side(compared) if len(compared) > 1 else "")
        self._changed()
