"""The dashboard without a browser: what it offers, what it runs, what it shows."""

from __future__ import annotations

import gc
import queue
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import gpuscope as gs
from gpuscope import session
from gpuscope.device.select import open_devices
from gpuscope.errors import DeviceUnavailable, GpuscopeError, InvalidExperiment, InvalidPartition
from gpuscope.session import Progress
from gpuscope.widgets.dashboard import PERIOD_S, Dashboard
from gpuscope.widgets.form import WHOLE_GPU, parse_partitions
from gpuscope.widgets.throttle import LatestWins

QUICKSTART = Path(__file__).resolve().parents[2] / "examples" / "quickstart.toml"
PATIENCE_S = 60


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def dashboard():
    shown = Dashboard("sim:h200")
    yield shown
    shown.close()


def finish(dashboard: Dashboard) -> None:
    assert dashboard.wait(PATIENCE_S), "the run did not end"


def until_status(dashboard: Dashboard, words: str) -> threading.Event:
    """An event that is set when the status line says `words`."""
    seen = threading.Event()

    def look(change: dict[str, str]) -> None:
        if words in change["new"]:
            seen.set()

    dashboard.status.observe(look, names="value")
    return seen


def fake_run(monkeypatch, act) -> None:
    def run(experiment, device, *, viewer, stop):
        return act(viewer, stop)

    monkeypatch.setattr(session, "run", run)


# -- what it offers ---------------------------------------------------------------------


def test_a_cell_displays_it(dashboard):
    bundle = dashboard._repr_mimebundle_()
    if isinstance(bundle, tuple):
        bundle = bundle[0]
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"]


def test_every_control_has_a_description_and_can_be_reached(dashboard):
    controls = [dashboard.device, dashboard.run_button, dashboard.stop_button]
    for control in [*controls, dashboard.progress, *dashboard.form.inputs]:
        assert control.description
        assert getattr(control, "tabbable", None) is not False


def test_only_devices_that_are_here_are_offered():
    shown = Dashboard()
    try:
        assert "sim:h200" in shown.device.options
        for key in shown.device.options:
            assert gs.open_device(key, quiet=True).info.key == key
        if gs.open_device(shown.device.value, quiet=True).is_simulated:
            assert "SIMULATED" in shown._about.value
            assert "Why:" in shown._about.value
    finally:
        shown.close()


def test_it_starts_with_the_given_device_and_says_in_words_that_it_is_simulated():
    gpu = gs.open_device("sim:h200", quiet=True)
    shown = Dashboard(gpu)
    assert shown.device.value == "sim:h200"
    assert "SIMULATED, not measured" in shown._about.value
    shown.close()


def test_an_unknown_device_is_an_error_at_once():
    with pytest.raises(DeviceUnavailable, match="tpu"):
        Dashboard("sim:tpu")


def test_the_plan_shows_what_was_asked_and_what_would_be_granted(dashboard):
    dashboard.form.partitions.value = "a: 20, b: rest"
    assert "<b>a</b>: 20 asked, 20 granted" in dashboard.form.plan.value
    assert "<b>b</b>: rest asked, 112 granted" in dashboard.form.plan.value
    dashboard.form.partitions.value = "a: 17, b: 32"
    dashboard.form.rounding.value = "up"
    assert "<b>a</b>: 17 asked, 20 granted" in dashboard.form.plan.value
    assert "80 in no partition" in dashboard.form.plan.value


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("small: 17, load: rest", "16 below and 20 above"),
        ("small: 0", "0 SMs asked for"),
        ("small: -8", "-8 SMs asked for"),
        ("small: 200", "has only 132 SMs, not 200"),
        ("a: rest, b: rest", "only one partition can have"),
        ("a: 16, a: 24", "two partitions are called"),
        ("a: many", "whole number or"),
        ("16", "is not &#x27;name: count&#x27;"),
        ("a: 16,", "is not &#x27;name: count&#x27;"),
        (": 16", "is not &#x27;name: count&#x27;"),
        ("whole GPU: 16", "choose another name"),
        ("a: 120, b: 24", "144 SMs asked for"),
        ("a: " + "9" * 5000, "whole number or"),
    ],
)
def test_what_cannot_be_granted_is_said_in_place_and_cannot_be_run(dashboard, words, said):
    dashboard.form.partitions.value = words
    assert "gpuscope-error" in dashboard.form.plan.value
    assert said in dashboard.form.plan.value
    assert dashboard.run_button.disabled
    dashboard.start()  # as a program may
    finish(dashboard)
    assert "gpuscope-error" in dashboard.status.value
    assert dashboard.run is None
    dashboard.form.partitions.value = "small: 16, load: rest"
    assert "gpuscope-error" not in dashboard.form.plan.value
    assert not dashboard.run_button.disabled


def test_foreign_names_do_no_harm(dashboard):
    name = "<img src=x onerror=alert(1)>"
    dashboard.form.partitions.value = f"{name}: 16, load: rest"
    assert "<img" not in dashboard.form.plan.value
    assert "&lt;img" in dashboard.form.plan.value
    dashboard.form.partitions.value = f"{name}: 17"
    assert "<img" not in dashboard.form.plan.value


def test_partitions_are_read_from_text():
    assert parse_partitions("small: 16, load: rest") == {"small": 16, "load": "rest"}
    assert parse_partitions(" a:b : 8 ") == {"a:b": 8}
    assert parse_partitions("none") == parse_partitions("  ") == parse_partitions("None") == {}
    with pytest.raises(InvalidPartition):
        parse_partitions("a")


def test_streams_follow_the_partitions_and_keep_a_choice_that_is_still_there(dashboard):
    small, load = dashboard.form.small.place, dashboard.form.load.place
    assert (small.value, load.value) == ("small", "load")
    load.value = WHOLE_GPU
    dashboard.form.partitions.value = "tiny: 8, load: rest"
    assert (small.value, load.value) == ("tiny", WHOLE_GPU)
    dashboard.form.partitions.value = "none"
    assert (small.value, load.value) == (WHOLE_GPU, WHOLE_GPU)
    dashboard.form.partitions.value = "a: 8, b: 8, c: rest"
    assert (small.value, load.value) == ("a", "c")
    dashboard.form.partitions.value = "a: 8, b: 8, c: oops"  # nothing changes meanwhile
    assert (small.value, load.value) == ("a", "c")


# -- the experiment ---------------------------------------------------------------------


def test_the_controls_describe_an_experiment(dashboard):
    form = dashboard.form
    form.partitions.value = "fast: 24, slow: rest"
    form.small.size.value, form.small.dtype.value = 1024, "bfloat16"
    form.load.size.value, form.load.dtype.value = 8192, "float32"
    form.load.place.value = WHOLE_GPU
    form.repeats.value = 1500
    found = dashboard.experiment
    assert found.partitions == {"fast": 24, "slow": "rest"}
    small, load = found.workloads["small"], found.workloads["load"]
    assert (small.m, small.n, small.k, small.dtype, small.repeats) == (
        1024, 1024, 1024, "bfloat16", 1500
    )  # fmt: skip
    assert (load.m, load.dtype, load.background) == (8192, "float32", True)
    assert found.streams[small.stream].partition == "fast"
    assert found.streams[load.stream].partition is None
    assert list(found.settings) == ["fast 24 | slow rest"]


def test_an_experiment_fills_the_controls_and_keeps_what_has_none():
    given = gs.Experiment.from_file(QUICKSTART)
    shown = Dashboard("sim:h200", QUICKSTART)
    assert shown.form.partitions.value == "small: 16, load: rest"
    assert (shown.form.small.place.value, shown.form.load.place.value) == ("small", "load")
    found = shown.experiment
    assert found.workloads == given.workloads
    assert (found.rounds, found.seed) == (given.rounds, given.seed)
    shown.close()


@pytest.mark.parametrize(
    "change",
    [
        {"load": {"kind": "copy", "nbytes": 1024, "stream": "s", "background": True}},
        {"load": {"kind": "gemm", "m": 8, "n": 8, "k": 16, "stream": "s", "background": True}},
        {"load": {"kind": "gemm", "m": 8, "n": 8, "k": 8, "stream": "s"}},
        {},
    ],
)
def test_an_experiment_of_another_form_is_refused(change):
    small = {"kind": "gemm", "m": 64, "n": 64, "k": 64, "stream": "s"}
    data = {"name": "other", "streams": {"s": {}}, "workloads": {"small": small, **change}}
    with pytest.raises(InvalidExperiment, match=r"gpuscope\.run"):
        Dashboard("sim:h200", data)


# -- runs -------------------------------------------------------------------------------


def test_a_run_ends_with_results_in_the_same_figure(dashboard):
    figure = dashboard.figure
    assert dashboard.run is None
    dashboard.form.repeats.value = 1000
    dashboard.start()
    assert dashboard.is_running
    assert dashboard.run_button.disabled
    assert not dashboard.stop_button.disabled
    assert dashboard.form.partitions.disabled
    dashboard.start()  # a second click changes nothing
    finish(dashboard)
    assert not dashboard.is_running
    assert "Done: 1,000 timed calls" in dashboard.status.value
    assert dashboard.progress.value == 1.0
    assert not dashboard.run.stopped
    assert dashboard.figure is figure
    assert figure in dashboard.widget.children
    assert [one for one in figure.data if one.type == "bar"]
    assert "SIMULATED" in figure.layout.title.text
    said = dashboard.results.value
    for words in ("overlap <b>", "gain <b>", "p50", "p90", "p99", "TFLOP/s", "SIMULATED", "1000"):
        assert words in said
    assert not dashboard.run_button.disabled
    assert dashboard.stop_button.disabled
    assert not dashboard.form.partitions.disabled


def test_without_partitions_it_runs_too_and_says_why_there_is_no_p99(dashboard):
    dashboard.form.partitions.value = "none"
    dashboard.form.repeats.value = 20
    dashboard.start()
    finish(dashboard)
    assert list(dashboard.run) == ["no partition"]
    assert "No p99: it needs 1,000 samples" in dashboard.results.value
    assert "whole GPU" in dashboard.results.value


def test_stop_ends_it_early_and_keeps_what_was_recorded(dashboard):
    running = until_status(dashboard, "Running")
    dashboard.form.repeats.value = 1_000_000
    dashboard.start()
    assert running.wait(PATIENCE_S)
    dashboard.stop()
    assert "Stopping" in dashboard.status.value
    finish(dashboard)
    assert dashboard.run.stopped
    (trace,) = dashboard.run.values()
    kept = trace.kind_counts()["handle"]
    assert 0 < kept < 1_000_000
    assert "Stopped early" in dashboard.status.value
    assert "overlap" in dashboard.results.value
    assert [one for one in dashboard.figure.data if one.type == "bar"]


def test_close_stops_the_run():
    shown = Dashboard("sim:h200")
    running = until_status(shown, "Running")
    shown.form.repeats.value = 1_000_000
    shown.start()
    assert running.wait(PATIENCE_S)
    shown.close()
    assert not shown.is_running
    assert shown.run.stopped
    shown.start()
    assert not shown.is_running


def test_partitions_have_the_colours_of_the_plan_in_every_picture(dashboard):
    dashboard.form.repeats.value = 20
    dashboard.start()
    finish(dashboard)
    colours = {one.name: one.marker.color for one in dashboard.figure.data}
    blue, orange = colours["small: kernel"], colours["load: kernel"]
    plan = dashboard.form.plan.value
    assert plan.index(blue) < plan.index(orange)


def test_it_keeps_no_simulated_device_which_would_be_a_second_clock(dashboard):
    gc.collect()
    before = set(open_devices())
    dashboard.form.repeats.value = 20
    dashboard.start()
    finish(dashboard)
    dashboard.form.partitions.value = "a: 8, b: rest"
    gc.collect()
    assert not set(open_devices()) - before


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (GpuscopeError("no <SMs> left"), "no &lt;SMs&gt; left"),
        (RuntimeError("the driver fell over"), "RuntimeError: the driver fell over"),
    ],
)
def test_an_error_of_the_run_is_shown(dashboard, monkeypatch, error, said):
    def fail(viewer, stop):
        raise error

    fake_run(monkeypatch, fail)
    dashboard.start()
    finish(dashboard)
    assert "gpuscope-error" in dashboard.status.value
    assert said in dashboard.status.value
    assert not dashboard.run_button.disabled
    assert dashboard.run is None


def test_an_error_of_the_live_picture_is_shown_and_the_run_goes_on(dashboard, monkeypatch):
    show_end = dashboard._picture.show_end

    def fail(trace, *, live, **more):
        if live:
            raise ValueError("nothing to <draw>")
        show_end(trace, live=live, **more)

    monkeypatch.setattr(dashboard._picture, "show_end", fail)
    failed = until_status(dashboard, "the live picture failed, the run goes on")
    dashboard.form.repeats.value = 300
    dashboard.start()
    finish(dashboard)
    assert failed.is_set()
    assert "Done: 300 timed calls" in dashboard.status.value
    assert dashboard.run is not None


# -- how often it draws -----------------------------------------------------------------


def test_the_live_picture_is_drawn_at_most_twice_a_second(monkeypatch):
    clock = Clock()
    shown = Dashboard("sim:h200", clock=clock)
    drawn: queue.Queue[tuple[float, int]] = queue.Queue()
    monkeypatch.setattr(
        shown._picture, "show_end", lambda trace, **_more: drawn.put((clock(), trace))
    )
    seen: list[tuple[float, int]] = []

    def act(viewer, stop):
        for number in range(160):  # 16 calls a second for 10 s
            recording = SimpleNamespace(snapshot=lambda number=number: number)
            viewer(Progress("default", 0, number, 160, recording))
            if number % 8 == 0:  # half a second after the last
                seen.append(drawn.get(timeout=PATIENCE_S))
            clock.now_s += 1 / 16
        raise GpuscopeError("enough")

    fake_run(monkeypatch, act)
    shown.start()
    finish(shown)
    assert PERIOD_S == 0.5
    assert [time_s for time_s, _ in seen] == [100.0 + half / 2 for half in range(20)]
    assert all(8 * half - number in (0, 1) for half, (_, number) in enumerate(seen))
    assert drawn.empty()
    assert shown.live_draws == 20
    shown.close()


def test_the_latest_wins_and_nothing_queues():
    clock = Clock()
    drawn: list[int] = []
    live = LatestWins(drawn.append, failed=pytest.fail, period_s=0.5, clock=clock)
    assert not live.draw_latest()
    live.offer(1)
    live.offer(2)
    assert live.draw_latest()
    assert drawn == [2]
    for number in range(3, 10):
        clock.now_s += 0.07
        live.offer(number)
        assert not live.draw_latest()
    clock.now_s += 0.02
    assert live.draw_latest()
    assert not live.draw_latest()
    assert drawn == [2, 9]


def test_drawing_goes_on_after_a_failure():
    clock = Clock()
    failures: list[Exception] = []

    def draw(item: int) -> None:
        raise ValueError(item)

    live = LatestWins(draw, failed=failures.append, period_s=0.5, clock=clock)
    for number in (1, 2):
        live.offer(number)
        assert live.draw_latest()
        clock.now_s += 0.5
    assert [str(one) for one in failures] == ["1", "2"]


def test_the_last_item_is_drawn_without_a_further_offer():
    drawn: queue.Queue[int] = queue.Queue()
    with LatestWins(drawn.put, failed=pytest.fail, period_s=0.02) as live:
        for number in (1, 2, 3):
            live.offer(number)
        last = 0
        while last != 3:
            last = drawn.get(timeout=PATIENCE_S)


def test_leaving_waits_for_what_is_being_drawn_and_draws_no_more():
    begun, go_on, drawn = threading.Event(), threading.Event(), []

    def draw(item: int) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        drawn.append(item)

    with LatestWins(draw, failed=pytest.fail, period_s=0.0, clock=Clock()) as live:
        live.offer(1)
        assert begun.wait(PATIENCE_S)
        live.offer(2)
        threading.Timer(0, go_on.set).start()
    assert drawn[0] == 1
    live.offer(3)
    assert 3 not in drawn
