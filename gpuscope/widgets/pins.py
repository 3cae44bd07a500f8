"""Pins: which runs of a dashboard are compared."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import traitlets

from gpuscope.figures.text import clean
from gpuscope.widgets.base import Control, script
from gpuscope.widgets.results import Summary


class Pins(Control):
    """The runs of a dashboard, of which those that are pinned are compared with the last one.

    Parameters
    ----------
    changed
        Called when a run was pinned or unpinned.
    lock
        Lock for the widget's state; several widgets may share one.
    """

    _esm = script("pins.js")

    runs = traitlets.List(
        traitlets.Dict(), help="A dict a run, in their order: number, words, and pinned."
    )

    def __init__(self, changed: Callable[[], None], *, lock: threading.RLock) -> None:
        super().__init__(lock=lock)
        self._changed = changed
        self._summaries: dict[int, Summary] = {}

    def add(self, summary: Summary) -> int:
        """Take in a run; return its number, from 1."""
        with self.lock:
            number = len(self._summaries) + 1
            self._summaries[number] = summary
            words = f"Run {number}: {clean(summary.setting, 40)}"
            self.runs = [*self.runs, {"number": number, "words": words, "pinned": False}]
            return number

    def pin(self, number: int, *, pinned: bool = True) -> None:
        """Pin a run, or take its pin away."""
        with self.lock:
            self.runs = [
                {**run, "pinned": pinned} if run["number"] == number else run for run in self.runs
            ]
            self._changed()

    @property
    def compared(self) -> Mapping[str, Summary]:
        """Words → summary of the pinned runs and the last one; without pins, of the last two."""
        with self.lock:
            runs = self.runs[:-1]
            kept = [run for run in runs if run["pinned"]] or runs[-1:]
            return {
                run["words"]: self._summaries[run["number"]] for run in [*kept, *self.runs[-1:]]
            }

    def _do_pin(self, number: int) -> None:
        pinned = any(run["pinned"] for run in self.runs if run["number"] == number)
        self.pin(number, pinned=not pinned)
