"""Pins: which runs of a dashboard are kept, compared and shown again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import pyarrow as pa
import traitlets

from gpuscope.timeline.text import clean
from gpuscope.trace.run import Run
from gpuscope.widgets.base import Control, script
from gpuscope.widgets.results import Summary
from gpuscope.widgets.table import Values

_LATEST = 3
"""So many runs are kept that nobody pinned."""


class Pins(Control):
    """The runs of a dashboard: those that are pinned are compared with the one that is shown.

    Parameters
    ----------
    changed
        Called when a run was pinned or unpinned.
    show
        Called with the number of a run to show again.
    lock
        Lock for the widget's state; several widgets may share one.
    """

    _esm = script("pins.js")

    runs = traitlets.List(
        traitlets.Dict(),
        help="A dict a run, in their order: number, words, pinned, and whether it is kept.",
    )
    shown = traitlets.Int(help="The number of the run that is shown; 0 if there is none.")

    def __init__(
        self, changed: Callable[[], None], show: Callable[[int], None], *, lock: threading.RLock
    ) -> None:
        super().__init__(lock=lock)
        self._changed = changed
        self._do_show = show
        self._summaries: dict[int, Summary] = {}
        self._traced_runs: dict[int, Run] = {}
        """The runs whose traces are here: those that are pinned, and the latest."""

    def add(self, summary: Summary, run: Run) -> int:
        """Take in a run; return its number, from 1."""
        with self.lock:
            number = len(self._summaries) + 1
            self._summaries[number], self._traced_runs[number] = summary, run
            words = f"Run {number}: {clean(summary.setting, 40)}"
            self._tell([*self.runs, {"number": number, "words": words, "pinned": False}])
            return number

    def _tell(self, runs: list[Values]) -> None:
        """Tell the page of the runs; let traces go that are neither pinned nor of the latest."""
        needed = {self.shown, *(run["number"] for run in runs[-_LATEST:] if not run["pinned"])}
        needed |= {run["number"] for run in runs if run["pinned"]}
        self._traced_runs = {
            number: run for number, run in self._traced_runs.items() if number in needed
        }
        self.runs = [{**run, "kept": run["number"] in self._traced_runs} for run in runs]

    def kept(self, number: int) -> tuple[Run, Summary] | None:
        """Return a run and what it said, if its trace is here."""
        with self.lock:
            run = self._traced_runs.get(number)
            return (run, self._summaries[number]) if run is not None else None

    def pin(self, number: int, *, pinned: bool = True) -> None:
        """Pin a run, or take its pin away."""
        with self.lock:
            self._tell(
                [{**run, "pinned": pinned} if run["number"] == number else run for run in self.runs]
            )
            self._changed()

    @property
    def compared(self) -> Mapping[str, Run | None]:
        """Words → run, if its trace is here: the pinned ones or the one before, and the shown."""
        with self.lock:
            return {words: self._traced_runs.get(number) for words, number in self._compared()}

    def reported(self) -> Run:
        """Return the run that is shown, beside the pinned ones that ran the same workloads.

        Raises
        ------
        KeyError
            No run is shown.
        """
        with self.lock:
            shown = self._traced_runs[self.shown]
            workloads = shown.experiment["workloads"]
            pinned = {run["number"] for run in self.runs if run["pinned"]}
            runs = {
                words: self._traced_runs[number]
                for words, number in self._compared()
                if number in pinned | {self.shown}
                and number in self._traced_runs
                and self._traced_runs[number].experiment["workloads"] == workloads
            }
        return beside(runs) if len(runs) > 1 else shown

    def _compared(self) -> list[tuple[str, int]]:
        other_runs = [run for run in self.runs if run["number"] != self.shown]
        baselines = [run for run in other_runs if run["pinned"]] or other_runs[-1:]
        shown = [run for run in self.runs if run["number"] == self.shown]
        return [(run["words"], run["number"]) for run in [*baselines, *shown]]

    def _do_pin(self, number: int) -> None:
        pinned = any(run["pinned"] for run in self.runs if run["number"] == number)
        self.pin(number, pinned=not pinned)


def beside(runs: Mapping[str, Run]) -> Run:
    """Return runs of the same workloads as the settings of one run.

    Parameters
    ----------
    runs
        What to call each → it; of each counts its last setting.
    """
    traces, rows, settings = {}, [], {}
    for label, run in runs.items():
        setting, traces[label] = list(run.traces.items())[-1]
        compared = run.comparison.to_pylist()
        rows += [{**row, "setting": label} for row in compared if row["setting"] == setting]
        settings[label] = {name: run.experiment[name] for name in ("partitions", "streams")}
    *_, last = runs.values()
    experiment = {**last.experiment, "settings": settings}
    stopped = any(run.stopped for run in runs.values())
    return Run(traces, pa.Table.from_pylist(rows), experiment, stopped)
