"""Dashboard: carve, assign, launch, watch and judge, by hand."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from gpuscope._checks import door, given
from gpuscope.device.device import Device
from gpuscope.errors import InvalidArgument
from gpuscope.experiments import execution, nsight
from gpuscope.experiments.carving_code import LANGUAGES
from gpuscope.experiments.experiment import Experiment
from gpuscope.experiments.runner import Progress
from gpuscope.timeline.canvas.scheduler import RedrawScheduler
from gpuscope.trace.run import Run
from gpuscope.widgets import layout
from gpuscope.widgets.as_code import carving, gpuscope_code
from gpuscope.widgets.devices import DevicePicker
from gpuscope.widgets.form import Form, experiment_of
from gpuscope.widgets.presets import PRESETS
from gpuscope.widgets.runbar import EndEstimate, RunBar, in_words, said_of
from gpuscope.widgets.saved import DisplayHandle, display, page_of, saved_page
from gpuscope.widgets.saving import EXPORTS, REPORT, save, slug
from gpuscope.widgets.shown import ShownRuns
from gpuscope.widgets.work import BackgroundTask

PERIOD_S = 0.2
"""How far a run is, is told at most this often."""
_GPUSCOPE = "gpuscope"


class Dashboard:
    """A dashboard to carve a GPU, launch workloads on streams, and see the results.

    Display it as the last line of a notebook cell. Its last output remains in the notebook after
    the kernel has ended.

    Parameters
    ----------
    device
        The device selected at first: an open device, or a name for :func:`~gpuscope.open_device`;
        ``"auto"`` if not given. A simulated device is opened again for every run and paced in
        real time, so that live views and Stop work as on a GPU.
    experiment
        The initial state of the controls, in any form that :func:`~gpuscope.run` takes; a small
        GEMM beside a large one if not given. Of several settings, the first with partitions is
        used, else the last.

    Attributes
    ----------
    widget
        The ipywidgets box, for use in other layouts.
    timeline
        The :class:`~gpuscope.Timeline`, which is updated and never replaced.
    devices, form, bar, pins
        The controls.
    run
        The last :class:`~gpuscope.experiments.Run`, even if it was stopped; ``None`` before the
        first.

    Raises
    ------
    DeviceUnavailable
        The device is not available.
    InvalidExperiment
        ``experiment`` does not validate.

    Notes
    -----
    During a run, drawing competes with the host code being measured, unless Live is off. For
    figures to quote, use :func:`~gpuscope.run`.

    Examples
    --------
    >>> import gpuscope as gs
    >>> dashboard = gs.Dashboard("sim:h200")
    >>> dashboard.experiment.partitions
    {'small': 16, 'load': 'rest'}
    >>> dashboard.close()
    """

    @door(device=(Device, str, None))
    def __init__(
        self,
        device: Device | str | None = None,
        experiment: Experiment | Mapping[str, object] | str | Path | None = None,
    ) -> None:
        self._lock = threading.RLock()  # callbacks may run beside the main thread
        self._display_handle: DisplayHandle | None = None  # its place in the notebook
        self._kept_page = ""
        self.run: Run | None = None
        self._shown = ShownRuns(
            self._reopen, lambda: self.form.carver.colors, self._keep, self._lock
        )
        self.timeline, self.pins = self._shown.timeline, self._shown.pins
        self.verdict, self.results = self._shown.verdict, self._shown.results
        self.devices = DevicePicker(device, lock=self._lock)
        self.bar = RunBar(
            {
                "run": self._run_as_shown,
                "stop": self.stop,
                "preset": self._start_from,
                "export": self._export,
                "code": self._show_code,
                "save": self._save_file,
                "open": self._open_file,
                "nsight": self.open_in_nsight,
                "mend": self._mend,
                "span": self._go_to,
            },
            [_GPUSCOPE, *LANGUAGES],
            [*PRESETS],
            lock=self._lock,
        )
        self._work = BackgroundTask(self.bar, self._enable, self._lock)
        self.form = Form(
            experiment_of(experiment), self.devices.opened, self._changed, self.bar.say, self._lock
        )
        self.devices.observe(self._moved, names="device")
        watch = (self.verdict, self.timeline, self._shown.answers, self.pins, self.results)
        self.widget = layout.box(
            "gpuscope-dashboard",
            layout.box("gpuscope-top", self.bar, self.devices),
            layout.box("gpuscope-controls", *self.form.controls),
            layout.box("gpuscope-watch", *watch),
        )
        if self.widget.comm is not None:  # the page may close it
            self.widget.comm.on_close(lambda _message: self.close())
        self.bar.say("Ready.")
        self._changed()
        if experiment is None:
            self.bar.preset = next(iter(PRESETS))

    def _ipython_display_(self) -> None:
        display(self.widget)
        self._kept_page = self._static()
        self._display_handle = display(page_of(self._kept_page), f"gpuscope-{self.bar.uid}")

    def _repr_mimebundle_(self, **options: object) -> object:
        return self.widget._repr_mimebundle_(**options)

    # -- for programs -----------------------------------------------------------------
    @property
    def experiment(self) -> Experiment:
        """The experiment that the controls describe, for ``gpuscope.run``.

        Raises
        ------
        InvalidPartition, InvalidExperiment
            The controls do not describe a valid experiment, or a carving was not applied.
        """
        return self.form.experiment()

    @property
    def is_running(self) -> bool:
        """Whether a run is on."""
        return self._work.is_on

    def open(self, experiment: Experiment | Mapping[str, object] | str | Path) -> None:
        """Show another experiment: an object, a dict, or a TOML or JSON file.

        Raises
        ------
        InvalidExperiment, GpuscopeError
            It is invalid or cannot be read. Nothing is changed.
        """
        opened = experiment_of(experiment)
        with self._lock:
            self.form.load(opened)
            self.bar.preset = ""
            self.bar.say(f"Opened {opened.name}.")

    @door(kind=str)
    def code(self, kind: str = _GPUSCOPE) -> str:
        """Return what the controls describe as code.

        Parameters
        ----------
        kind
            ``"gpuscope"``: Python that runs it. ``"cuda.core"`` and ``"C++"``: its partitions
            and streams by CUDA's own calls.

        Raises
        ------
        InvalidPartition, InvalidExperiment
            The controls do not describe a valid experiment.
        """
        if kind not in (kinds := [_GPUSCOPE, *LANGUAGES]):
            raise InvalidArgument(f"kind is {given(kind)}; known: {', '.join(kinds)}")
        with self._lock:
            experiment = self.form.experiment()
            if kind == _GPUSCOPE:
                return gpuscope_code(experiment, self.devices.device)
            index = self.devices.opened().info.index
            return carving(kind, experiment, self.form.plan(), index)

    def start(self) -> None:
        """Start a run, as the Run button does; returns at once.

        Errors are shown in the dashboard, also that a carving was not applied. Does nothing while
        a run is on.
        """
        with self._lock, self._work.refusals():
            experiment = self.form.experiment()
            if self.bar.sms:
                experiment = experiment.model_copy(update={"detail": "full"})
            if self.bar.hazards:
                experiment = experiment.model_copy(update={"hazards": True})
            if self.bar.counters:
                experiment = experiment.model_copy(update={"counters": True})
            if not self.is_running:
                self._shown.begin()
            self._work.begin(partial(self._run, experiment), "Preparing: carving, warming up …")

    def stop(self) -> None:
        """End the run early, as the Stop button does; what was recorded is kept and shown."""
        self._work.stop()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until no run is in progress; returns false after a timeout."""
        return self._work.wait(timeout_s)

    def open_in_nsight(self) -> None:
        """Run what the controls describe under Nsight Systems; returns at once.

        Why that is not possible, and what it wrote into the working folder, is shown in the
        dashboard. Stop ends it, and leaves nothing.
        """
        with self._lock, self._work.refusals():
            experiment = self.form.experiment()
            self.devices.require_gpu()
            act = partial(self._profile, self.devices.device, experiment)
            self._work.do(act, "Running under Nsight Systems …")

    def close(self) -> None:
        """Stop the run, wait for its end, and remove the widgets."""
        self._work.is_closed = True
        self.stop()
        self.wait()
        layout.close(self.widget)

    # -- the run's own thread ---------------------------------------------------------
    def _run(self, experiment: Experiment, stop: threading.Event) -> None:
        problem, done = "", None
        estimate, newest = EndEstimate(experiment, time.monotonic), deque[Progress](maxlen=1)
        live = RedrawScheduler(
            lambda: self._tell_live(experiment, estimate, newest[0]),
            failed=self._live_failed,
            period_s=PERIOD_S,
        )

        def view(progress: Progress) -> None:
            newest.append(progress)
            live.ask()

        try:
            device = self.devices.opened()
            done = execution.run(experiment, device, viewer=view, stop=stop)
        except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to
            problem = said_of(error)
        finally:
            live.close()
        self._finish(done, problem)

    def _tell_live(self, experiment: Experiment, estimate: EndEstimate, progress: Progress) -> None:
        share, left_s = estimate.at(progress)
        words = f"Running: {progress.done:,} of {progress.total:,} timed calls."
        if progress.phase != "together":
            words = f"Timing {progress.phase}, for comparison …"
        with self._lock:
            if not self._work.is_stopping:
                self.bar.progress, self.bar.left = share, in_words(left_s)
                self.bar.say(words)
        self._shown.follow(progress, experiment, live=self.bar.live)

    def _live_failed(self, error: Exception) -> None:
        self.bar.warn(f"The live picture failed, the run goes on: {error}")

    def _finish(self, done: Run | None, problem: str) -> None:
        self.run = done if done is not None else self.run
        try:
            words = self._shown.finish(done)
            if done is not None:
                with self._lock:
                    self.bar.progress = self.bar.progress if done.stopped else 1.0
                    self.bar.say(words)
        except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to
            problem = f"The results cannot be shown: {type(error).__name__}: {error}"
        with self._lock:
            if problem:
                self.bar.warn(problem)
            self._work.end()

    def _reopen(self, number: int) -> None:
        """Show an earlier run again."""
        with self._lock:
            if not self.is_running and self.pins.kept(number) is not None:
                self._work.do(lambda _: self._shown.show(number), "Opening …")

    def _export(self, suffix: str) -> None:
        """Write the run that is shown to a file in the working folder."""
        shown = self.pins.kept(self.pins.shown)
        if shown is not None and suffix in {export["suffix"] for export in EXPORTS}:
            run = self.pins.reported() if suffix == REPORT else shown[0]
            act = partial(self._write, run, suffix)
            self._work.do(act, f"Writing a {suffix} file …")

    def _write(self, run: Run, suffix: str, stop: threading.Event) -> str:
        which = f", of {len(run)} runs: {', '.join(run)}" if len(run) > 1 else ""
        return f"Wrote {save(run, self.pins.shown, suffix, stop)}{which}"

    def _profile(self, key: str, experiment: Experiment, stop: threading.Event) -> str:
        profiled = nsight.profile(experiment, device=key, cancel=stop)
        if profiled.trace is not None:
            self._shown.show_trace(profiled.trace)
        return (
            f"Nsight Systems wrote {profiled.report}: open it with nsys-ui. The timeline shows it."
        )

    # -- what the controls tell -------------------------------------------------------
    def _run_as_shown(self, carving: str = "") -> None:
        """Run; first apply a carving, if it is still what the page showed at the click."""
        with self._work.refusals():
            if not self.is_running and carving and carving == self.form.carving:
                self.form.carver.apply()
            self.start()

    def _start_from(self, name: str) -> None:
        if name in PRESETS:
            self.open(PRESETS[name])
            self.bar.preset = name
            self.bar.say(f"Started from “{name}”.")

    def _go_to(self, span: int) -> None:
        """Show a call of the last run in the timeline."""
        with self._work.refusals():
            if self._shown.has_spans and not self.is_running:
                self.timeline.select(span)

    def _mend(self) -> None:
        """Change what the verdict says is wrong, and run again."""
        with self._work.refusals():
            if self._shown.mend and not self.is_running:
                self.form.mend(self._shown.mend)
                self.start()

    def _moved(self, _change: object) -> None:
        """Plan on another device."""
        self.form.carver.refresh()
        self.bar.say("Ready.")

    def _changed(self) -> None:
        with self._lock:
            if hasattr(self, "form"):  # it tells while it is made, too
                if self.bar.preset in PRESETS:
                    self.bar.preset = f"edited: {self.bar.preset}"
                if not self.is_running:  # what was refused may be right by now
                    self.bar.alarm = ""
                self._enable()
                self._keep()

    def _enable(self) -> None:
        running = self.is_running
        if not running:
            self._shown.plan(*self.form.plans)
        with self.bar.hold_sync():
            self.bar.running = running
            self.bar.ready = self.form.is_valid
            self.bar.carving, self.bar.saves = self.form.carving, self.pins.shown
            self.bar.alarm = self.form.problem or self.bar.alarm
        for control in (self.devices, *self.form.controls):
            control.disabled = running

    def _show_code(self, kind: str) -> None:
        with self._work.refusals():
            self.bar.code = {"kind": kind, "text": self.code(kind)}

    def _save_file(self) -> None:
        with self._work.refusals():
            experiment = self.experiment
            self.bar.offer_file(f"{slug(experiment.name)}.toml", experiment.to_toml())

    def _open_file(self, name: str, text: str) -> None:
        with self._work.refusals(f"{name}: "):
            self.open(Experiment.from_toml(str(text)))

    # -- what stays in the notebook ------------------------------------------------------
    def _static(self) -> str:
        parts = self.bar.uid, self.form.toml, self.devices.words, self._shown.page
        return saved_page(*parts, simulated=self.devices.simulated)

    def _keep(self) -> None:
        """Update what the notebook shows without a kernel, where it is displayed."""
        if self._display_handle is None or self._work.is_closed:
            return
        page = self._static()
        if page != self._kept_page:
            self._kept_page = page
            self._display_handle.update(page_of(page))
