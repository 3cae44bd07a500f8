"""Dashboard: carve, assign, launch, watch and judge, by hand."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import ipywidgets as ipw

from gpuscope import figures
from gpuscope._checks import door
from gpuscope.device.device import Device
from gpuscope.errors import CapabilityError, GpuscopeError
from gpuscope.record.recorder import Recording
from gpuscope.runs import execution, nsight
from gpuscope.runs.experiment import Experiment
from gpuscope.runs.runner import Progress
from gpuscope.trace.run import Run
from gpuscope.widgets import html, results
from gpuscope.widgets.as_code import CARVINGS, gpuscope_code
from gpuscope.widgets.devices import DevicePicker
from gpuscope.widgets.form import TEMPLATE, Form
from gpuscope.widgets.live import LatestWins
from gpuscope.widgets.runbar import Estimate, RunBar, in_words
from gpuscope.widgets.saved import DisplayHandle, display, page_of, saved_page
from gpuscope.widgets.timeline import Timeline

PERIOD_S = 0.2
"""How far a run is, is told at most this often."""
PLOT_PX = 340
FOLLOWED_NS = 40_000_000
"""What of a run is in view while it goes on: little enough to tell kernels apart."""
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
    devices, form, bar
        The controls.
    run
        The last :class:`~gpuscope.runs.Run`, even if it was stopped; ``None`` before the first.

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
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._closed = False
        self._watched: Recording | None = None
        self._picture = ""
        self._kept: DisplayHandle | None = None  # its place in the notebook
        self._kept_page = ""
        self._last: results.Summary | None = None
        self.run: Run | None = None
        self.timeline = Timeline(height=PLOT_PX, followed_ns=FOLLOWED_NS)
        self.verdicts, self.results = ipw.HTML(), ipw.HTML()
        self.devices = DevicePicker(device, lock=self._lock)
        self.bar = RunBar(
            {
                "run": self.start, "stop": self.stop, "code": self._show_code,
                "save": self._save_file, "open": self._open_file, "nsight": self.open_in_nsight,
            },
            [_GPUSCOPE, *CARVINGS],
            lock=self._lock,
        )  # fmt: skip
        self.form = Form(_experiment(experiment), self.devices.opened, self._changed, self._lock)
        self.devices.observe(lambda _change: self.form.carver.refresh(), names="device")
        controls = [self.devices, *self.form.controls, self.bar]
        self.widget = ipw.VBox([*controls, self.verdicts, self.timeline, self.results])
        self.widget.add_class("gpuscope-dashboard")
        if self.widget.comm is not None:  # the page may close it
            self.widget.comm.on_close(lambda _message: self.close())
        self.bar.heading = "4 Run and watch"
        self.bar.say("Ready.")
        self._changed()

    def _ipython_display_(self) -> None:
        display(self.widget)
        self._kept_page = self._static()
        self._kept = display(page_of(self._kept_page), f"gpuscope-{self.bar.uid}")

    def _repr_mimebundle_(self, **options: object) -> object:
        return self.widget._repr_mimebundle_(**options)

    # -- for programs -----------------------------------------------------------------
    @property
    def experiment(self) -> Experiment:
        """The experiment that the controls describe, for ``gpuscope.run``.

        Raises
        ------
        InvalidPartition, InvalidExperiment
            The controls do not describe a valid experiment.
        """
        return self.form.experiment()

    @property
    def is_running(self) -> bool:
        """Whether a run is on."""
        with self._lock:
            return self._thread is not None

    def open(self, experiment: Experiment | Mapping[str, object] | str | Path) -> None:
        """Show another experiment: an object, a dict, or a TOML or JSON file.

        Raises
        ------
        InvalidExperiment, GpuscopeError
            It is invalid or cannot be read. Nothing is changed.
        """
        opened = _experiment(experiment)
        with self._lock:
            self.form.load(opened)
            self.bar.say(f"Opened {opened.name}.")

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
        with self._lock:
            experiment = self.form.experiment()
            if kind == _GPUSCOPE:
                return gpuscope_code(experiment, self.devices.device)
            index = self.devices.opened().info.index
            return CARVINGS[kind](experiment, self.form.plan(), index)

    def start(self) -> None:
        """Start a run, as the Run button does; returns at once.

        Errors are shown in the dashboard. Does nothing while a run is on.
        """
        self._begin(self._work, "Preparing: carving, warming up …")

    def stop(self) -> None:
        """End the run early, as the Stop button does; what was recorded is kept and shown."""
        with self._lock:
            if self._thread is not None:
                self._stop.set()
                self.bar.stopping = True
                self.bar.say("Stopping: waiting for what is queued on the GPU …")

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until no run is in progress; returns false after a timeout."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
            return not thread.is_alive()
        return True

    def open_in_nsight(self) -> None:
        """Run what the controls describe under Nsight Systems; returns at once.

        Why that is not possible, and what it wrote into the working folder, is shown in the
        dashboard. Stop ends it, and leaves nothing.
        """
        work = partial(self._profile, self.devices.device)
        self._begin(work, "Running under Nsight Systems …", _require_gpu)

    def close(self) -> None:
        """Stop the run, wait for its end, and remove the widgets."""
        with self._lock:
            self._closed = True
        self.stop()
        self.wait()
        for child in (*self.widget.children, self.widget):
            child.close()

    # -- the run's own thread ---------------------------------------------------------
    def _begin(
        self,
        work: Callable[[Experiment, threading.Event], None],
        words: str,
        require: Callable[[Device], None] | None = None,
    ) -> None:
        """Do something with the experiment in a thread, unless one is on or it is refused."""
        with self._lock, self._refusals():
            if self._thread is not None or self._closed:
                return
            experiment = self.form.experiment()
            if require is not None:
                require(self.devices.opened())
            self._stop = threading.Event()
            self._thread = threading.Thread(
                target=work, args=(experiment, self._stop), name="gpuscope-dashboard", daemon=True
            )
            self.bar.stopping = False
            self.bar.progress, self.bar.left = 0.0, ""
            self._enable()
            self._thread.start()
            self.bar.say(words)

    @contextmanager
    def _refusals(self, of: str = "") -> Iterator[None]:
        """Show what is refused instead of raising it."""
        try:
            yield
        except GpuscopeError as error:
            self.bar.warn(f"{of}{error}")

    def _work(self, experiment: Experiment, stop: threading.Event) -> None:
        said, done = "", None
        self._estimate = Estimate(experiment, time.monotonic)
        try:
            with LatestWins(self._tell_live, failed=self._live_failed, period_s=PERIOD_S) as live:
                device = self.devices.opened()
                done = execution.run(experiment, device, viewer=live.offer, stop=stop)
        except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to
            said = _in_words(error)
        self._finish(done, said)

    def _tell_live(self, progress: Progress) -> None:
        share, left_s = self._estimate.at(progress)
        words = f"Running: {progress.done:,} of {progress.total:,} timed calls."
        if progress.phase != "together":
            words = f"Timing {progress.phase}, for comparison …"
        with self._lock:
            if not self._stop.is_set():
                self.bar.progress, self.bar.left = share, in_words(left_s)
                self.bar.say(words)
        if progress.recording is not None:
            self._follow(progress.recording, together=progress.phase == "together")

    def _follow(self, recording: Recording, *, together: bool) -> None:
        """Let the timeline follow what runs together, as long as that is wanted."""
        if self.bar.live:
            if together and recording is not self._watched:
                self._watched = recording
                self.timeline.watch(recording)
            return
        if self._watched is not None:
            self._watched = None
            self.timeline.finish()
        recording.batches()  # what is turned into columns now need not be at Stop

    def _live_failed(self, error: Exception) -> None:
        self.bar.warn(f"The live picture failed, the run goes on: {error}")

    def _finish(self, done: Run | None, said: str) -> None:
        self._watched = None
        self.run = done if done is not None else self.run
        try:
            if done is not None:
                self._show(done)
            else:
                self.timeline.finish()
        except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to
            said = f"The results cannot be shown: {type(error).__name__}: {error}"
        with self._lock:
            if said:
                self.bar.warn(said)
            self._end()

    def _end(self) -> None:
        self._thread = None
        self.bar.stopping, self.bar.left = False, ""
        self._enable()

    def _show(self, run: Run) -> None:
        trace = list(run.traces.values())[-1]
        summary = results.summarise(run)
        window = results.close_up(trace, summary)
        self.timeline.show(trace)  # it waits for the frame: nobody else waits for us meanwhile
        if window is not None:
            self.timeline.sms = "block" in trace.kind_counts()
            self.timeline.window_ns = window
        picture = html.picture(figures.timeline(trace, window_ns=window)) if window else ""
        with self._lock:
            self._picture = picture
            self.verdicts.value = results.verdicts(summary, self.form.carver.colors)
            self.results.value = results.numbers(summary, self._last)
            self._last = summary
            self._say_end(run, summary)
            self._keep()

    def _say_end(self, run: Run, summary: results.Summary) -> None:
        calls = sum(row["latency_n"] or 0 for row in summary.rows
                    if row["workload"] not in summary.background)  # fmt: skip
        if run.stopped:
            self.bar.say(f"Stopped early: {calls:,} timed calls were recorded and are kept.")
        else:
            self.bar.progress = 1.0
            missing = f" {summary.incomplete}." if summary.incomplete else ""
            self.bar.say(f"Done: {calls:,} timed calls.{missing}")

    def _profile(self, key: str, experiment: Experiment, stop: threading.Event) -> None:
        try:
            profiled = nsight.profile(experiment, device=key, cancel=stop)
            if profiled.trace is not None:
                self.timeline.show(profiled.trace)
            show, words = self.bar.say, (
                f"Nsight Systems wrote {profiled.report}: open it with nsys-ui. The timeline "
                "shows it."
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to
            show, words = self.bar.warn, _in_words(error)
        with self._lock:
            show(words)
            self._end()

    # -- what the controls tell -------------------------------------------------------
    def _changed(self) -> None:
        with self._lock:
            if hasattr(self, "form"):  # it tells while it is made, too
                self._enable()
                self._keep()

    def _enable(self) -> None:
        running = self._thread is not None
        with self.bar.hold_sync():
            self.bar.running = running
            self.bar.ready = self.form.is_valid
            self.bar.alarm = self.form.problem or self.bar.alarm
        for control in (self.devices, *self.form.controls):
            control.disabled = running

    def _show_code(self, kind: str) -> None:
        with self._refusals():
            self.bar.code = {"kind": kind, "text": self.code(kind)}

    def _save_file(self) -> None:
        with self._refusals():
            experiment = self.experiment
            slug = re.sub(r"[^A-Za-z0-9]+", "-", experiment.name).strip("-") or "experiment"
            self.bar.offer_file(f"{slug[:60]}.toml", experiment.to_toml())

    def _open_file(self, name: str, text: str) -> None:
        with self._refusals(f"{name}: "):
            self.open(Experiment.from_toml(str(text)))

    # -- what stays in the notebook ------------------------------------------------------
    def _static(self) -> str:
        try:
            experiment = Experiment.from_dict(self.form.described()).to_toml()
        except GpuscopeError as error:
            experiment = f"# {error}"
        shown = self.verdicts.value + self._picture + self.results.value
        shown = shown or html.note("Nothing was run.")
        return saved_page(
            self.bar.uid, experiment, self.devices.words, shown, simulated=self.devices.simulated
        )

    def _keep(self) -> None:
        """Update what the notebook shows without a kernel, where it is displayed."""
        if self._kept is None or self._closed:
            return
        page = self._static()
        if page != self._kept_page:
            self._kept_page = page
            self._kept.update(page_of(page))


def _in_words(error: Exception) -> str:
    """Say what went wrong; of errors that are not ours the type, too."""
    return str(error) if isinstance(error, GpuscopeError) else f"{type(error).__name__}: {error}"


def _require_gpu(device: Device) -> None:
    """Refuse what Nsight Systems cannot see."""
    if device.info.kind != "cuda":
        raise CapabilityError(
            f"Nsight Systems records what a GPU does, and {device.info.key} is none: choose a "
            "CUDA device"
        )


def _experiment(given: Experiment | Mapping[str, object] | str | Path | None) -> Experiment:
    if isinstance(given, Experiment):
        return given
    if isinstance(given, str | Path):
        return Experiment.from_file(given)
    return Experiment.from_dict(TEMPLATE if given is None else given)
