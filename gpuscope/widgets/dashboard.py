"""Dashboard: carve, choose, run, watch and judge, by hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ipywidgets as ipw

from gpuscope import session
from gpuscope.device.device import Device
from gpuscope.errors import GpuscopeError
from gpuscope.experiment import Experiment
from gpuscope.session import Progress
from gpuscope.trace.model import Run
from gpuscope.widgets import html
from gpuscope.widgets.devices import find_devices, open_anew
from gpuscope.widgets.form import TEMPLATE, Form, row
from gpuscope.widgets.picture import Picture
from gpuscope.widgets.throttle import LatestWins

PERIOD_S = 0.5
"""The picture is drawn at most this often while a run goes on."""


class Dashboard:
    """A small GEMM beside a large one: carve the SMs, run both, see what it cost.

    Display it as the last line of a notebook cell.

    Parameters
    ----------
    device
        What to offer first: an open device, or a name for
        :func:`~gpuscope.open_device`; ``"auto"`` if not given. A simulated device is
        opened anew for every run, paced in real time, so that live views and Stop mean
        something.
    experiment
        What the controls start from, as :func:`~gpuscope.run` takes it: one GEMM in the
        foreground and one in the background, each with m = n = k. Of several settings,
        the last.
    clock
        Monotonic, in seconds; for tests.

    Attributes
    ----------
    widget
        The ipywidgets box, to put it into a layout of one's own.
    figure
        The one Plotly FigureWidget, which is updated and never replaced.
    form
        The controls.
    run
        The last :class:`~gpuscope.Run`, also one that was stopped; ``None`` before.
    live_draws
        How often the picture was drawn while the last run went on.

    Raises
    ------
    DeviceUnavailable
        The device asked for is not here.
    InvalidExperiment
        ``experiment`` does not validate, or is not of that form.

    Notes
    -----
    While it runs, drawing takes turns with the host code that is measured: at most twice
    a second, but for figures to quote use :func:`~gpuscope.run`.

    Examples
    --------
    >>> import gpuscope as gs
    >>> dashboard = gs.Dashboard("sim:h200")
    >>> dashboard.experiment.partitions
    {'small': 16, 'load': 'rest'}
    >>> dashboard.close()
    """

    def __init__(
        self,
        device: Device | str | None = None,
        experiment: Experiment | Mapping[str, Any] | str | Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._lock = threading.RLock()  # callbacks may run beside the main thread
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._closed = False
        self._partitions: tuple[str, ...] = ()
        self.run: Run | None = None
        self.live_draws = 0
        self._picture = Picture()
        self.figure = self._picture.figure
        self._devices = find_devices(device)
        self.device = ipw.Dropdown(
            options=self._devices.keys, value=self._devices.first, description="Device",
            style={"description_width": "initial"}, layout=ipw.Layout(width="230px"),
        )  # fmt: skip
        self._about = ipw.HTML()
        self.run_button = ipw.Button(
            description="Run", icon="play", button_style="primary", tooltip="Run both GEMMs"
        )
        self.stop_button = ipw.Button(
            description="Stop", icon="stop", disabled=True, tooltip="End early, keep what is there"
        )
        self.progress = ipw.FloatProgress(
            value=0.0, min=0.0, max=1.0, description="Progress", layout=ipw.Layout(width="260px")
        )
        self.status = ipw.HTML()
        self.status.add_class("gpuscope-status")
        self.results = ipw.HTML()
        self.form = Form(_experiment(experiment), self._planner, self._enable, self._lock)
        self._describe_device()
        self.device.observe(self._device_changed, names="value")
        self.run_button.on_click(lambda _button: self.start())
        self.stop_button.on_click(lambda _button: self.stop())
        self.widget = ipw.VBox(
            [
                ipw.HBox([self.device, self._about], layout=row()),
                self.form.box,
                ipw.HBox(
                    [self.form.repeats, self.run_button, self.stop_button, self.progress],
                    layout=row(),
                ),
                self.status,
                self.figure,
                self.results,
            ]
        )
        self.widget.add_class("gpuscope-dashboard")
        self._say(html.note("Ready."))
        self.form.check()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.widget._repr_mimebundle_(**options)

    # -- for programs -----------------------------------------------------------------
    @property
    def experiment(self) -> Experiment:
        """What the controls describe; ``gpuscope.run`` takes it.

        Raises
        ------
        InvalidPartition, InvalidExperiment
            They describe nothing that can be run.
        """
        return self.form.experiment()

    @property
    def is_running(self) -> bool:
        """Whether a run is on."""
        with self._lock:
            return self._thread is not None

    def start(self) -> None:
        """Run what the controls describe, as the Run button does; returns at once.

        Errors are shown in the dashboard. Does nothing while a run is on.
        """
        with self._lock:
            if self._thread is not None or self._closed:
                return
            try:
                experiment = self.form.experiment()
            except GpuscopeError as error:
                self._say(html.problem(str(error)))
                return
            self._stop = threading.Event()
            self._partitions = tuple(experiment.partitions)
            self.live_draws = 0
            self._thread = threading.Thread(
                target=self._work, args=(experiment, self.device.value, self._stop),
                name="gpuscope-dashboard", daemon=True,
            )  # fmt: skip
            self._enable()
            self.progress.bar_style = ""
            self.progress.value = 0.0
            self.results.value = ""
            self._say(html.note("Preparing: carving, warming up …"))
            self._thread.start()

    def stop(self) -> None:
        """End the run early, as the Stop button does; what was recorded is kept and shown."""
        with self._lock:
            if self._thread is not None:
                self._stop.set()
                self.stop_button.disabled = True
                self._say(html.note("Stopping: waiting for what is queued on the GPU …"))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until no run is on; returns whether that is so."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
            return not thread.is_alive()
        return True

    def close(self) -> None:
        """Stop the run, wait for its end, and take the widgets away."""
        with self._lock:
            self._closed = True
        self.stop()
        self.wait()
        _close(self.widget)

    # -- the run's own thread ---------------------------------------------------------
    def _work(self, experiment: Experiment, key: str, stop: threading.Event) -> None:
        said, done = "", None
        try:
            live = LatestWins(
                self._draw_live, failed=self._draw_failed, period_s=PERIOD_S, clock=self._clock
            )
            with live:
                done = session.run(experiment, open_anew(key), viewer=live.offer, stop=stop)
        except GpuscopeError as error:
            said = str(error)
        except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to
            said = f"{type(error).__name__}: {error}"
        self._finish(done, said)

    def _draw_live(self, progress: Progress) -> None:
        self.progress.value = progress.done / progress.total
        words = f"Running: {progress.done:,} of {progress.total:,} timed calls."
        if progress.done == progress.total:
            words = "Timing each GEMM alone, for comparison …"
        with self._lock:
            if not self._stop.is_set():
                self._say(html.note(words))
        if progress.recording is not None:
            seen = progress.recording.snapshot()
            self._picture.show_end(seen, live=True, partitions=self._partitions)
            self.live_draws += 1

    def _draw_failed(self, error: Exception) -> None:
        self._say(html.problem(f"the live picture failed, the run goes on: {error}"))

    def _finish(self, done: Run | None, said: str) -> None:
        with self._lock:
            self.run = done if done is not None else self.run
            try:
                if done is not None:
                    self._show(done)
            except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to
                said = f"the results cannot be shown: {type(error).__name__}: {error}"
            if said:
                self.progress.bar_style = "danger"
                self._say(html.problem(said))
            self._thread = None
            self._enable()

    def _show(self, run: Run) -> None:
        trace = list(run.traces.values())[-1]
        timed = self.form.small.name
        self._picture.show_end(trace, live=False, of=timed, partitions=self._partitions)
        self.results.value = html.results(run, [self.form.load.name])
        calls = sum(row["latency_n"] or 0 for row in run.comparison.to_pylist()
                    if row["workload"] == timed)  # fmt: skip
        if run.stopped:
            self.progress.bar_style = "warning"
            self._say(
                html.note(f"Stopped early: {calls:,} timed calls were recorded and are kept.")
            )
        else:
            self.progress.value = 1.0
            self.progress.bar_style = "success"
            self._say(html.note(f"Done: {calls:,} timed calls."))

    # -- what the controls tell -------------------------------------------------------
    def _planner(self) -> Device:
        return open_anew(self.device.value)

    def _device_changed(self, _change: object) -> None:
        self._describe_device()
        self.form.check()

    def _describe_device(self) -> None:
        try:
            self._about.value = html.device(self._planner().info, self._devices.why_no_gpu)
        except GpuscopeError as error:
            self._about.value = html.problem(str(error))

    def _enable(self) -> None:
        running = self._thread is not None
        self.run_button.disabled = running or not self.form.is_valid
        self.stop_button.disabled = not running
        for control in (self.device, *self.form.inputs):
            control.disabled = running

    def _say(self, words: str) -> None:
        self.status.value = words


def _close(widget: Any) -> None:
    for child in getattr(widget, "children", ()):
        _close(child)
    widget.close()


def _experiment(given: Experiment | Mapping[str, Any] | str | Path | None) -> Experiment:
    if isinstance(given, Experiment):
        return given
    if isinstance(given, str | Path):
        return Experiment.from_file(given)
    return Experiment.from_dict(TEMPLATE if given is None else given)
