"""RunBar: run, stop, watch how far it is, and take experiment and results elsewhere."""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Callable

import traitlets

from gpuscope.errors import GpuscopeError
from gpuscope.experiments.experiment import Experiment
from gpuscope.experiments.runner import Progress
from gpuscope.widgets.base import Control, script
from gpuscope.widgets.saving import EXPORTS


class RunBar(Control):
    """The buttons of a dashboard, and its status.

    Parameters
    ----------
    acts
        What a button does, by its name: ``run`` (carving first what the page shows as
        ``carving``), ``stop``, ``preset`` (of a ``name``), ``export`` (to a file with a
        ``suffix``), ``code`` (of a ``kind``), ``save``, ``open`` (a ``text`` called ``name``),
        ``nsight``, and what is no button of the bar: ``mend`` and ``span`` (the id of one to show).
    codes
        What code can be had in.
    presets
        Names of what can be started from.
    lock
        Lock for the widget's state; several widgets may share one.
    """

    _esm = script("runbar.js")

    running = traitlets.Bool(help="Whether a run is on.")
    stopping = traitlets.Bool(help="Whether it was told to stop.")
    ready = traitlets.Bool(help="Whether there is something that can be run.")
    carving = traitlets.Unicode(help="The carving that is shown and not applied; or empty.")
    saves = traitlets.Int(help="The number of the run that is saved; 0 if there is none.")
    live = traitlets.Bool(default_value=True, help="Whether the picture is drawn during a run.")
    sms = traitlets.Bool(help="Whether a run records which SM ran what.")
    hazards = traitlets.Bool(help="Whether a run looks for work that nothing orders.")
    counters = traitlets.Bool(help="Whether a run samples hardware counters.")
    folded = traitlets.Bool(help="Whether the editor is folded to a rail.")
    progress = traitlets.Float(help="Share of the run's time that has passed, 0 to 1.")
    left = traitlets.Unicode(help="How much time is left, in words.")
    status = traitlets.Unicode(help="What is going on, in words.")
    alarm = traitlets.Unicode(help="What went wrong, in words; empty if nothing did.")
    codes = traitlets.List(traitlets.Unicode(), help="What code can be had in.")
    presets = traitlets.List(traitlets.Unicode(), help="What can be started from.")
    preset = traitlets.Unicode(help="What was started from, or “edited: ” and that; or empty.")
    exports = traitlets.List(
        traitlets.Dict(), help="What a run can be saved as: words, suffix and hint of each."
    )
    code = traitlets.Dict(help="The code that is shown: kind and text; empty for none.")
    file = traitlets.Dict(help="The file that was saved last: name, text, serial.")
    uid = traitlets.Unicode(help="Names what is saved of this dashboard in its notebook.")

    def __init__(
        self,
        acts: dict[str, Callable[..., None]],
        codes: list[str],
        presets: list[str],
        *,
        lock: threading.RLock | None = None,
    ) -> None:
        super().__init__(
            lock=lock,
            codes=codes,
            presets=presets,
            exports=EXPORTS,
            uid=secrets.token_hex(6),
        )
        self._acts = acts
        self._serials = itertools.count(1)

    def say(self, words: str) -> None:
        """Show what is going on; what went wrong before is over."""
        with self.hold_sync():
            self.status, self.alarm = words, ""

    def warn(self, words: str) -> None:
        """Show what went wrong."""
        with self.hold_sync():
            self.status, self.alarm = "", words

    def offer_file(self, name: str, text: str) -> None:
        """Let the page save a file."""
        self.file = {"name": name, "text": text, "serial": next(self._serials)}

    def action(self, name: str) -> Callable[..., None] | None:
        """Return what the button of that name does."""
        return self._acts.get(name)


class EndEstimate:
    """Estimates when a run of one setting and round ends.

    Timed calls come at the rate of those before. Then each background workload runs alone,
    twice, for as long as it ran with the others; timed workloads alone take next to nothing.

    Parameters
    ----------
    clock
        Monotonic, in seconds.
    """

    def __init__(self, experiment: Experiment, clock: Callable[[], float]) -> None:
        queued = sum(workload.background for workload in experiment.workloads.values())
        self._factor = 1 + (2 * queued if experiment.alone_repeats else 0)
        timed = (spec for spec in experiment.workloads.values() if not spec.background)
        paced_s = [spec.repeats / spec.rate_hz for spec in timed if spec.rate_hz]
        self.planned_s = self._factor * max(paced_s) if paced_s else None
        """How long it lasts where its arrivals tell; else ``None``."""
        self._clock = clock
        self._began_s: float | None = None
        self._together_s = 0.0

    def at(self, progress: Progress) -> tuple[float, float | None]:
        """Return the share of the time that has passed, and the seconds left if they are known."""
        now_s = self._clock()
        if self._began_s is None:
            self._began_s = now_s
        passed_s = now_s - self._began_s
        if progress.phase == "together" and progress.done:
            self._together_s = passed_s * progress.total / progress.done
        if not self._together_s:
            return 0.0, None
        whole_s = self._factor * self._together_s
        return min(0.99, passed_s / whole_s), max(0.0, whole_s - passed_s)


def in_words(left_s: float | None) -> str:
    """Write how much time is left."""
    if left_s is None:
        return ""
    if left_s < 90:
        return f"about {max(1, round(left_s))} s left"
    return f"about {round(left_s / 60)} min left"


def said_of(error: Exception) -> str:
    """Say what went wrong; of errors that are not ours the type, too."""
    return str(error) if isinstance(error, GpuscopeError) else f"{type(error).__name__}: {error}"
