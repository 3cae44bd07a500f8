"""The dashboard without a browser: what it offers, what it runs, what it shows and keeps."""

from __future__ import annotations

import copy
import gc
import queue
import re
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace

import ipywidgets as ipw
import pytest
from front_end import pages  # noqa: F401 - a fixture
from patience import PATIENCE_S

import gpuscope as gs
from gpuscope.device.api import DeviceInfo
from gpuscope.device.select import open_devices
from gpuscope.errors import (
    Cancelled,
    DeviceUnavailable,
    GpuscopeError,
    InvalidExperiment,
    InvalidPartition,
    MissingDependency,
)
from gpuscope.experiments import execution
from gpuscope.experiments.experiment import Experiment
from gpuscope.experiments.nsight import Profile
from gpuscope.experiments.runner import Progress
from gpuscope.telling.rules import RULES
from gpuscope.timeline.style import colours_of
from gpuscope.trace import Trace
from gpuscope.trace.counters import BUSY, samples_of
from gpuscope.widgets import dashboard as module
from gpuscope.widgets import results
from gpuscope.widgets.carver import PartitionCarver
from gpuscope.widgets.dashboard import Dashboard
from gpuscope.widgets.devices import DevicePicker
from gpuscope.widgets.presets import PRESETS, TEMPLATE
from gpuscope.widgets.runbar import EndEstimate, RunBar, in_words
from gpuscope.widgets.timeline import Timeline

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def dashboard(pages):  # noqa: F811 - the fixture
    shown = Dashboard("sim:h200")
    yield shown
    shown.close()


def short(dashboard: Dashboard, repeats: int = 20) -> None:
    dashboard.form.workloads.edit("small", repeats=repeats)


def short_data() -> dict[str, object]:
    spin = {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 3}
    return {"name": "short", "streams": {"s": {}}, "workloads": {"spin": spin}}


def finish(dashboard: Dashboard) -> None:
    assert dashboard.wait(PATIENCE_S), "the run did not end"


def run(dashboard: Dashboard) -> None:
    dashboard.start()
    finish(dashboard)
    assert dashboard.bar.alarm == ""


def until_status(dashboard: Dashboard, words: str) -> threading.Event:
    """An event that is set when the status or the alarm says `words`."""
    seen = threading.Event()

    def look(change: dict[str, str]) -> None:
        if words in change["new"]:
            seen.set()

    dashboard.bar.observe(look, names=["status", "alarm"])
    return seen


def fake_run(monkeypatch, act) -> None:
    def run(experiment, device, *, viewer, stop):
        return act(viewer, stop)

    monkeypatch.setattr(execution, "run", run)


# -- what it offers ---------------------------------------------------------------------
def test_a_cell_displays_it(dashboard):
    bundle = dashboard._repr_mimebundle_()
    if isinstance(bundle, tuple):
        bundle = bundle[0]
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"]


@pytest.mark.parametrize("widget", [RunBar, DevicePicker])
def test_every_trait_says_what_it_is(widget):
    base = set(widget.mro()[2].class_traits())
    assert all(widget.class_traits()[name].help for name in set(widget.class_traits()) - base)


def test_only_devices_that_are_here_are_offered():
    shown = Dashboard()
    try:
        assert "sim:h200" in shown.devices.options
        for key in shown.devices.options:
            assert gs.open_device(key, quiet=True).info.key == key
        if gs.open_device(shown.devices.device, quiet=True).is_simulated:
            assert shown.devices.simulated
            assert "Why:" in shown.devices.words
        first = shown.devices.device
        shown.devices.device = "sim:tpu"  # a page may say anything
        assert shown.devices.device == first
    finally:
        shown.close()


def test_it_starts_with_the_given_device_and_says_that_it_is_simulated(dashboard):
    gpu = gs.open_device("sim:h200", quiet=True)
    shown = Dashboard(gpu)
    assert shown.devices.device == "sim:h200"
    assert shown.devices.simulated
    assert "every time comes from a model and none from a GPU" in shown.devices.words
    shown.close()


def test_a_measured_device_is_told_from_a_simulated_one(monkeypatch, dashboard):
    info = DeviceInfo("cuda:0", "cuda", 0, "NVIDIA H200", "GPU-1", 132, (9, 0), 1, "driver 580")
    monkeypatch.setattr(
        "gpuscope.widgets.devices.open_device", lambda *_, **_options: SimpleNamespace(info=info)
    )
    dashboard.devices._describe()
    assert not dashboard.devices.simulated
    assert dashboard.devices.words == "NVIDIA H200, 132 SMs (driver 580)"


def test_an_unknown_device_is_an_error_at_once():
    with pytest.raises(DeviceUnavailable, match="tpu"):
        Dashboard("sim:tpu")


# -- the experiment ---------------------------------------------------------------------
def test_the_controls_describe_an_experiment(dashboard):
    form = dashboard.form
    form.carver.propose({"small": 24})
    form.carver.apply()
    form.streams.edit("small", priority=-2)
    form.streams.edit("load", partition="")
    form.streams.edit("load", blocking=True)
    form.workloads.edit("small", m=1024, dtype="bfloat16", repeats=1500, waits_on=["load"])
    form.workloads.edit("load", m=8192, guard=False)
    found = dashboard.experiment
    assert found.partitions == {"small": 24, "load": "rest"}
    small, load = found.workloads["small"], found.workloads["load"]
    assert (small.m, small.n, small.dtype, small.repeats) == (1024, 512, "bfloat16", 1500)
    assert (small.waits_on, load.guard, load.m, load.background) == (["load"], False, 8192, True)
    assert (found.streams["small"].priority, found.streams["load"].blocking) == (-2, True)
    assert list(found.settings) == ["small 24 | load rest"]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_any_experiment_fills_the_controls_and_comes_out_as_it_was(path, dashboard):
    given = Experiment.from_file(path)
    dashboard.open(path)
    found = dashboard.experiment
    settings = given.resolve()
    setting = next((one for one in settings if one.partitions), settings[-1])
    assert found.partitions == setting.partitions
    assert found.streams == setting.streams
    assert found.workloads == setting.workloads
    assert (found.rounds, found.seed, found.name) == (given.rounds, given.seed, given.name)
    assert dashboard.bar.ready
    assert f"Opened {given.name}" in dashboard.bar.status


def test_counts_are_rounded_as_the_experiment_says(dashboard):
    given = dashboard.experiment.to_dict()
    del given["settings"]
    for rounding, granted in (("up", 16), ("down", 12), ("nearest", 12)):
        dashboard.open({**given, "partitions": {"small": 13, "load": "rest"}, "rounding": rounding})
        assert dashboard.experiment.partitions == {"small": granted, "load": "rest"}


def test_what_cannot_be_opened_changes_nothing(dashboard, tmp_path):
    before = dashboard.experiment
    with pytest.raises(InvalidExperiment, match="streams: missing"):
        dashboard.open({"name": "x"})
    with pytest.raises(GpuscopeError, match="cannot read"):
        dashboard.open(tmp_path / "none.toml")
    assert dashboard.experiment == before


def test_a_carving_that_is_not_applied_is_neither_run_nor_applied_unseen(dashboard, pages):  # noqa: F811
    page, carver = pages(dashboard.bar), dashboard.form.carver
    short(dashboard)
    carver.propose({"small": 61})
    for start in (dashboard.start, lambda: page.act("run", carving=""),
                  lambda: page.act("run", carving="small 68, load 64")):  # fmt: skip
        start()
        assert not dashboard.is_running
        assert "not applied: it would grant small 60, load 72" in page.state["alarm"]
        assert carver.sizes == {"small": 16, "load": "rest"}
        with pytest.raises(InvalidPartition, match="small 60, load 72"):
            _ = dashboard.experiment
    assert page.state["carving"] == "small 60, load 72"
    page.act("run", carving="small 60, load 72")  # the page showed what it does
    finish(dashboard)
    assert dashboard.run.experiment["partitions"] == {"small": 60, "load": "rest"}
    assert page.state["carving"] == ""
    assert not carver.pending


def test_streams_follow_partitions_and_workloads_follow_streams(dashboard):
    form = dashboard.form
    form.carver._do_rename(form.carver.rows[0]["id"], "tiny")
    form.carver.apply()
    assert form.streams.streams["small"].partition == "tiny"
    form.streams.edit("small", name="quick")
    assert form.workloads.workloads["small"].stream == "quick"
    form.workloads.edit("load", name="big")
    assert dashboard.experiment.streams["quick"].partition == "tiny"
    assert set(dashboard.experiment.workloads) == {"small", "big"}


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda form: form.carver.propose({"small": "many"}), "should be a whole number of SMs"),
        (lambda form: form.streams.edit("small", partition="gone"), "'gone' is no partition"),
        (lambda form: form.streams.remove("small"), "'small' is no stream"),
        (lambda form: form.streams.edit("small", name="load"), "two rows are called 'load'"),
        (lambda form: form.workloads.edit("small", m=0), "greater than 0"),
        (lambda form: form.workloads.remove("small"), "every one is in the background"),
        (lambda form: [form.workloads.remove(n) for n in ("small", "load")], "at least one"),
    ],
)
def test_what_cannot_be_run_is_said_in_place_and_cannot_be_run(dashboard, spoil, said):
    spoil(dashboard.form)
    form = dashboard.form
    shown = [form.streams.said, form.workloads.said, *form.carver._problems()]
    assert any(said in words for words in shown)
    assert not dashboard.bar.ready
    dashboard.start()  # as a program may
    finish(dashboard)
    assert said in dashboard.bar.alarm
    assert dashboard.run is None
    with pytest.raises(GpuscopeError):
        _ = dashboard.experiment


def test_foreign_names_do_no_harm(dashboard):
    name = "<img src=x onerror=alert(1)>"
    form = dashboard.form
    form.carver._do_rename(form.carver.rows[0]["id"], name)
    form.carver.apply()
    form.workloads.edit("small", name=name, repeats=5)
    form.streams.edit("small", name=name)
    run(dashboard)
    for shown in (dashboard._shown.page, dashboard._static()):
        assert "<img src=x" not in shown
        assert "&lt;img" in shown


def test_bytes_are_given_as_they_are_written(dashboard):
    workloads = dashboard.form.workloads
    workloads.edit("load", kind="copy", nbytes="256 MiB")
    assert dashboard.experiment.workloads["load"].nbytes == 1 << 28
    assert "copy 256 MiB" in workloads.rows[1]["line"]
    workloads.edit("load", nbytes="many")
    assert "whole number" in workloads.rows[1]["problems"]["nbytes"]


def test_an_alarm_is_over_once_its_cause_is_edited(dashboard):
    dashboard.form.workloads.edit("small", m=0)
    dashboard.start()
    assert "greater than 0" in dashboard.bar.alarm
    dashboard.form.workloads.edit("small", m=64)
    assert dashboard.bar.alarm == ""


def test_a_preset_stays_chosen_until_something_is_changed(dashboard, pages):  # noqa: F811
    page = pages(dashboard.bar)
    for name in PRESETS:
        page.act("preset", name=name)
        assert page.state["preset"] == name
    for _ in range(2):
        short(dashboard)
        assert page.state["preset"] == f"edited: {name}"
    dashboard.open(TEMPLATE)
    assert page.state["preset"] == ""


# -- taking it elsewhere ------------------------------------------------------------------
def test_toml_is_saved_and_opened_by_the_page(dashboard, pages):  # noqa: F811 - the fixture
    page = pages(dashboard.bar)
    dashboard.form.workloads.edit("small", repeats=77)
    page.act("save")
    file = page.state["file"]
    assert file["name"] == "dashboard.toml"
    assert Experiment.from_toml(file["text"]) == dashboard.experiment
    dashboard.form.workloads.edit("small", repeats=5)
    page.act("open", name="dashboard.toml", text=file["text"])
    assert dashboard.experiment.workloads["small"].repeats == 77
    page.act("open", name="other.toml", text="name = 3")
    assert "other.toml: " in page.state["alarm"]
    assert "streams: missing" in page.state["alarm"]
    assert dashboard.experiment.workloads["small"].repeats == 77
    dashboard.form.workloads.edit("small", repeats=0)
    page.act("save")
    assert "greater than 0" in page.state["alarm"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("gpuscope", "gs.experiments.Experiment("),
        ("cuda.core", "create_context"),
        ("C++", "cuGreenCtxCreate"),
    ],
)
def test_code_is_shown_to_be_copied(dashboard, pages, kind, words):  # noqa: F811 - the fixture
    page = pages(dashboard.bar)
    assert kind in page.state["codes"]
    page.act("code", kind=kind)
    assert page.state["code"]["kind"] == kind
    assert page.state["code"]["text"] == dashboard.code(kind)
    assert words in dashboard.code(kind)
    dashboard.form.workloads.edit("small", repeats=0)
    page.act("code", kind=kind)
    assert "greater than 0" in page.state["alarm"]


def test_nsight_says_why_it_cannot(dashboard, pages):  # noqa: F811 - the fixture
    pages(dashboard.bar).act("nsight")
    assert "sim:h200 is none: choose a CUDA device" in dashboard.bar.alarm
    assert not dashboard.is_running


@pytest.fixture
def on_a_gpu(dashboard, monkeypatch):
    """The dashboard as if a CUDA device were chosen."""
    info = SimpleNamespace(kind="cuda", key="cuda:0")
    monkeypatch.setattr(dashboard.devices, "opened", lambda: SimpleNamespace(info=info))
    monkeypatch.setattr(dashboard.form, "experiment", lambda found=dashboard.experiment: found)
    return dashboard


def test_nsight_runs_the_experiment_and_shows_what_it_wrote(on_a_gpu, monkeypatch):
    seen = []
    trace = gs.experiments.predict({**short_data(), "alone_repeats": 0})["default"]

    def profile(experiment, *, device, cancel):
        seen.append((experiment, device, cancel.is_set()))
        return Profile(Path("dashboard.nsys-rep"), trace, ("nsys",))

    monkeypatch.setattr(module.nsight, "profile", profile)
    on_a_gpu.open_in_nsight()
    finish(on_a_gpu)
    assert seen == [(on_a_gpu.experiment, "sim:h200", False)]
    assert "wrote dashboard.nsys-rep" in on_a_gpu.bar.status
    assert len(on_a_gpu.timeline._whole()) == len(trace)


def test_nsight_that_fails_or_is_stopped_says_so(on_a_gpu, monkeypatch):
    def fail(_experiment, *, device, cancel):
        raise MissingDependency("nsys is not on PATH")

    monkeypatch.setattr(module.nsight, "profile", fail)
    on_a_gpu.open_in_nsight()
    finish(on_a_gpu)
    assert "nsys is not on PATH" in on_a_gpu.bar.alarm

    def hang(_experiment, *, device, cancel):
        assert cancel.wait(PATIENCE_S)
        raise Cancelled("stopped: nothing was kept")

    monkeypatch.setattr(module.nsight, "profile", hang)
    on_a_gpu.open_in_nsight()
    assert on_a_gpu.bar.running
    on_a_gpu.open_in_nsight()  # one at a time
    on_a_gpu.stop()
    finish(on_a_gpu)
    assert "stopped: nothing was kept" in on_a_gpu.bar.alarm
    assert not on_a_gpu.is_running


# -- runs -------------------------------------------------------------------------------
def bars(dashboard: Dashboard) -> dict[str, str]:
    """Legend's name → colour of what is drawn."""
    data = dashboard.timeline.figure.to_dict()["data"]
    return {
        one["name"]: one.get("fillcolor") or one["marker"]["color"]
        for one in data
        if one["type"] == "bar" or "fill" in one
    }


def test_a_run_ends_with_verdicts_in_the_same_timeline(dashboard):
    figure = dashboard.timeline.figure
    assert dashboard.run is None
    short(dashboard, 1000)
    dashboard.start()
    assert dashboard.is_running
    controls = [dashboard.devices, *dashboard.form.controls]
    assert dashboard.bar.running
    assert all(one.disabled for one in controls)
    shown = dashboard._shown
    assert "gpuscope-before" in shown.results._dom_classes
    assert "first verdict comes with the first calls" in shown.verdict.value
    dashboard.start()  # a second click changes nothing
    finish(dashboard)
    assert not dashboard.is_running
    assert not dashboard.bar.running
    assert not any(one.disabled for one in controls)
    assert "gpuscope-before" not in shown.results._dom_classes
    assert "Done: 1,000 timed calls" in dashboard.bar.status
    assert (dashboard.bar.progress, dashboard.bar.left) == (1.0, "")
    assert not dashboard.run.stopped
    assert dashboard.timeline.figure is figure
    assert bars(dashboard)
    assert "SIMULATED" in figure.layout.title.text
    assert dashboard.timeline.window_ns == dashboard.timeline.state.extent_ns
    assert len(dashboard.timeline._whole()) == len(dashboard.run["small 16 | load rest"])
    for words in ("Kept apart", "Its p99, ", "of its rate alone"):
        assert words in dashboard.verdict.value, words
    told = re.sub("<[^>]*>", "", shown.answers.value)
    for words in ("% overlap", "Gain", "0 of 1,000 calls waited", "p50", "p99", "Yes: all",
                  "by construction, no evidence"):  # fmt: skip
        assert words in told, words
    for words in ("Confined: all work", "✓", "ran inside its <b>16</b> SMs", "Evidence: simulated",
                  "given to small and load ran inside", "TFLOP/s"):  # fmt: skip
        assert words in dashboard.results.value, words
    for words in ("TFLOP/s", "SIMULATED", "1,000", "small", "load"):
        assert words in dashboard.results.value, words
    assert "Side by side" not in dashboard.results.value


def test_without_a_guard_the_verdict_is_an_escape_with_its_name(dashboard):
    short(dashboard)
    dashboard.form.workloads.edit("small", guard=False)
    run(dashboard)
    said = dashboard.results.value
    assert "ESCAPED: " in said
    assert "✗" in said
    assert "<b>100 %</b> of the time of its work" in said
    assert "kernels gemm_float16_512x512x512, given to small, ran outside any partition" in said
    assert 'data-span="' in said


def test_the_button_beside_an_escape_mends_it_and_runs_again(dashboard, pages):  # noqa: F811
    page = pages(dashboard.bar)
    page.act("mend")  # nothing is there yet
    assert not dashboard.is_running
    short(dashboard)
    dashboard.form.workloads.edit("small", guard=False)
    run(dashboard)
    assert "data-mend" in dashboard.verdict.value
    page.act("mend")
    finish(dashboard)
    assert dashboard.experiment.workloads["small"].guard
    assert "data-mend" not in dashboard.verdict.value
    assert [kept["number"] for kept in dashboard.pins.runs] == [1, 2]
    page.act("mend")
    assert not dashboard.is_running


def test_a_verdict_is_told_while_it_runs_and_is_provisional(dashboard, monkeypatch):
    seen: queue.Queue[str] = queue.Queue()
    dashboard.verdict.observe(lambda change: seen.put(change["new"]), names="value")
    short(dashboard, 1_000_000)
    dashboard.start()
    while "So far, " not in (said := seen.get(timeout=PATIENCE_S)):
        pass
    assert "of 1,000,000 calls" in said
    assert "Live drawing costs host time" in said
    assert "gs-lane" in dashboard._shown.answers.value
    dashboard.bar.live = False
    while "Live is off" not in seen.get(timeout=PATIENCE_S):
        pass
    dashboard.stop()
    finish(dashboard)
    assert "Kept apart" in dashboard.verdict.value


def test_the_plan_is_told_until_something_ran(dashboard, monkeypatch):
    dashboard.form.workloads.edit("small", repeats=500)
    assert "press Run (about 1.5 s)" in dashboard.verdict.value  # 0.5 s, and the load alone, twice
    assert "500 calls" in dashboard.verdict.value
    dashboard.form.workloads.edit("small", arrival="back_to_back")
    assert "press Run." in dashboard.verdict.value
    fake_run(monkeypatch, lambda _viewer, _stop: 1 / 0)
    dashboard.start()
    finish(dashboard)
    assert "Nothing has run yet" in dashboard.verdict.value


def test_the_next_run_says_what_changed_and_what_that_did(dashboard):
    short(dashboard)
    run(dashboard)
    run(dashboard)
    assert "the same experiment" in dashboard.results.value
    dashboard.form.carver.propose({"small": 64})
    dashboard.form.carver.apply()
    dashboard.form.workloads.edit("small", guard=False)
    run(dashboard)
    said = dashboard.results.value
    assert "partitions.small: 16 → 64" in said
    assert "workloads.small.guard: true → false" in said
    assert "A: Confined" in said
    assert "B: ESCAPED" in said


def pairs_of(dashboard: Dashboard) -> list[tuple[str, str]]:
    """Which runs are compared, each with which."""
    beside = dashboard.results.value.partition("Side by side")[2]
    return re.findall("A: (Run [^;]*); B: (Run [^.]*)[.]", beside)


def test_any_runs_are_pinned_and_compared(dashboard, pages):  # noqa: F811 - the fixture
    page = pages(dashboard.pins)
    short(dashboard)
    for size in (16, 32, 64):
        dashboard.form.carver.propose({"small": size})
        dashboard.form.carver.apply()
        run(dashboard)
    names = [f"Run {n + 1}: small {size} | load rest" for n, size in enumerate((16, 32, 64))]
    assert [one["words"] for one in page.state["runs"]] == names
    assert pairs_of(dashboard) == [(names[1], names[2])]  # without pins the last two
    page.act("pin", number=1)
    assert pairs_of(dashboard) == [(names[0], names[2])]
    page.act("pin", number=2)
    assert pairs_of(dashboard) == [(names[0], names[2]), (names[1], names[2])]
    assert "partitions.small: 16 → 64" in dashboard.results.value
    assert "partitions.small: 32 → 64" in dashboard.results.value
    page.act("pin", number=1)
    assert pairs_of(dashboard) == [(names[1], names[2])]


def shown(dashboard: Dashboard) -> Trace:
    """The trace that is shown."""
    run, _summary = dashboard.pins.kept(dashboard.pins.shown)
    (trace,) = run.values()
    return trace


def three_runs(dashboard: Dashboard) -> list[str]:
    """Run a carving in three sizes; what the runs are called."""
    short(dashboard)
    for size in (16, 32, 64):
        dashboard.form.carver.propose({"small": size})
        dashboard.form.carver.apply()
        run(dashboard)
    return [f"Run {n + 1}: small {size} | load rest" for n, size in enumerate((16, 32, 64))]


def test_an_earlier_run_is_shown_and_compared_again(dashboard, pages):  # noqa: F811 - the fixture
    page = pages(dashboard.pins)
    page.act("show", number=1)  # nothing is there yet
    names = three_runs(dashboard)
    last = shown(dashboard)
    assert page.state["shown"] == 3
    page.act("show", number=1)
    finish(dashboard)
    assert page.state["shown"] == dashboard.bar.saves == 1
    assert dashboard.bar.status == "Run 1 is shown."
    assert shown(dashboard).metadata.partitions["small"].sm_count == 16
    start, end = shown(dashboard).metadata.windows_ns[0]
    assert start <= dashboard.timeline.window_ns[0] < end
    assert "<b>16</b> SMs" in dashboard.results.value
    assert pairs_of(dashboard) == [(names[2], names[0])]
    assert list(dashboard.run.values())[-1] is last  # what ran last is still what ran last


def test_traces_of_runs_that_nobody_pinned_are_let_go(dashboard, pages):  # noqa: F811
    page = pages(dashboard.pins)
    three_runs(dashboard)
    page.act("pin", number=1)
    three_runs(dashboard)
    kept = [one["number"] for one in page.state["runs"] if one["kept"]]
    assert kept == [1, 4, 5, 6]
    page.act("show", number=2)
    assert page.state["shown"] == 6
    page.act("pin", number=1)
    page.act("pin", number=2)
    assert "no longer kept" in dashboard.results.value  # its calls are not


def test_the_pinned_runs_are_in_what_is_saved(dashboard, pages, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    names = three_runs(dashboard)
    pages(dashboard.pins).act("pin", number=1)
    bar = pages(dashboard.bar)
    bar.act("export", suffix=".html")
    finish(dashboard)
    assert bar.state["status"].endswith(f"of 2 runs: {names[0]}, {names[2]}")
    bar.act("export", suffix=".parquet")
    finish(dashboard)
    assert len(gs.load_trace(tmp_path / "dashboard-run-3.parquet")) == len(shown(dashboard))
    report = (tmp_path / "dashboard-run-3.html").read_text()
    assert names[0] in report
    assert names[2] in report
    assert names[1] not in report
    dashboard.form.workloads.edit("small", m=64)  # other workloads do not compare
    run(dashboard)
    bar.act("export", suffix=".html")
    finish(dashboard)
    assert names[0] not in (tmp_path / "dashboard-run-4.html").read_text()


def test_the_sms_are_recorded_where_that_is_ticked(dashboard, pages):  # noqa: F811 - the fixture
    page = pages(dashboard.bar)
    short(dashboard)
    run(dashboard)
    assert "block" not in shown(dashboard).kind_counts()
    assert "No SM map" in dashboard.results.value
    page.set(sms=True)
    run(dashboard)
    assert shown(dashboard).kind_counts()["block"] > 0
    assert dashboard.timeline.sms
    assert "No SM map" not in dashboard.results.value


def test_counters_are_sampled_where_that_is_ticked(dashboard, pages):  # noqa: F811 - the fixture
    page = pages(dashboard.bar)
    short(dashboard)
    run(dashboard)
    assert samples_of(shown(dashboard)) == ()
    page.set(counters=True)
    run(dashboard)
    (samples,) = samples_of(shown(dashboard))
    assert samples.values[BUSY].max() > 0


def test_it_starts_from_the_first_preset_and_says_so(dashboard, pages):  # noqa: F811
    page = pages(dashboard.bar)
    assert page.state["preset"] == next(iter(PRESETS))


def test_the_call_at_the_p99_is_shown_in_the_timeline(dashboard, pages):  # noqa: F811
    page = pages(dashboard.bar)
    page.act("span", span=1)  # nothing is there yet
    short(dashboard)
    run(dashboard)
    (trace,) = dashboard.run.values()
    calls = trace.where(kind="handle", category="small")
    took = calls.array("end_ns") - calls.array("start_ns")
    (span,) = re.findall('data-span="([0-9]+)"', dashboard._shown.answers.value)
    row = took.argsort(kind="stable")[int(0.99 * (len(took) - 1))]
    assert int(span) == calls.array("id")[row]
    page.act("span", span=int(span))
    low, high = dashboard.timeline.window_ns
    start = calls.array("start_ns")[row]
    assert dashboard.timeline.selected == int(span)
    assert dashboard.timeline.details.facts["columns"]
    assert low <= start <= start + took[row] <= high
    page.act("span", span=-5)
    assert "-5" in dashboard.bar.alarm


def test_two_runs_say_what_the_change_came_to(dashboard):
    dashboard.open(PRESETS["small beside load, priority instead"])
    short(dashboard)
    run(dashboard)
    dashboard.open(PRESETS["small beside load, partitions"])
    short(dashboard)
    run(dashboard)
    said = dashboard.results.value
    assert "A: Run 1: no partition; B: Run 2: small 16 | load rest." in said
    assert "On 16 SMs of its own, small" in said
    assert ">faster<" in said


def test_a_copy_states_bytes_a_second_and_empty_rates_are_left_out(dashboard):
    dashboard.open(PRESETS["copy beside compute"])
    dashboard.form.workloads.edit("compute", repeats=20)
    run(dashboard)
    rates = {row["workload"]: row.get("gb_per_s") for row in results.summarise(dashboard.run).rows}
    assert rates["compute"] is None
    assert 100 < rates["copy"] < 5000
    heads = re.findall("<th[^>]*>([^<]*)</th>", dashboard.results.value)
    assert "GB/s" in heads
    assert "TFLOP/s" not in heads


def test_a_workload_that_came_or_went_is_said_to_have(dashboard):
    short(dashboard)
    run(dashboard)
    dashboard.form.workloads.add()
    dashboard.form.workloads.edit("workload 3", m=64, n=64, k=64, repeats=3)
    run(dashboard)
    assert "workloads.workload 3: added" in dashboard.results.value
    assert "– → –" not in dashboard.results.value
    dashboard.form.workloads.remove("workload 3")
    run(dashboard)
    assert "workloads.workload 3: removed" in dashboard.results.value


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_run_as_it_stands(dashboard, pages, name):  # noqa: F811 - the fixture
    page = pages(dashboard.bar)
    assert name in page.state["presets"]
    page.act("preset", name=name)
    assert dashboard.experiment == Experiment.from_dict(
        {**PRESETS[name], "settings": dashboard.experiment.settings}
    )
    for workload in dashboard.form.workloads.names:
        dashboard.form.workloads.edit(workload, repeats=20)
    run(dashboard)
    escapes = "ESCAPED" in dashboard.results.value
    assert escapes == name.startswith("escape")


def test_the_last_run_is_saved_in_the_working_folder(dashboard, pages, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    page = pages(dashboard.bar)
    page.act("export", suffix=".parquet")
    assert page.state["saves"] == 0
    short(dashboard)
    run(dashboard)
    assert page.state["saves"] == 1
    page.act("export", suffix=".exe")
    (trace,) = dashboard.run.values()
    for suffix in (".parquet", ".html", ".json.gz", ".sqlite", ".parquet"):
        page.act("export", suffix=suffix)
        finish(dashboard)
        assert page.state["alarm"] == ""
        assert page.state["status"].startswith(f"Wrote {tmp_path}")
    assert {path.name for path in tmp_path.iterdir()} == {
        "dashboard-run-1.parquet", "dashboard-run-1.html", "dashboard-run-1.json.gz",
        "dashboard-run-1.sqlite", "dashboard-run-1-2.parquet",
    }  # fmt: skip
    assert len(gs.load_trace(tmp_path / "dashboard-run-1.parquet")) == len(trace)

    def fail(*_):
        raise OSError("no room")

    monkeypatch.setattr(module, "save", fail)
    page.act("export", suffix=".html")
    finish(dashboard)
    assert "OSError: no room" in page.state["alarm"]


def test_a_running_dashboard_takes_no_edits(dashboard, pages):  # noqa: F811 - the fixture
    running = until_status(dashboard, "Running")
    short(dashboard, 1_000_000)
    dashboard.start()
    assert running.wait(PATIENCE_S)
    before = dashboard.form.described()
    carver, streams = dashboard.form.carver, dashboard.form.streams
    pages(streams).act("add")
    pages(carver).act("add")
    counts = {str(carver.rows[0]["id"]): 64}
    pages(carver).set(asking={"counts": counts, "settle": True, "serial": 9})
    dashboard.stop()
    finish(dashboard)
    assert dashboard.form.described() == before
    assert carver.proposal == {"small": 16, "load": 116}


def test_a_stream_may_go_into_a_partition_that_is_only_proposed(dashboard):
    form = dashboard.form
    form.carver.add("third")
    assert form.streams.partitions == ["small", "load", "third"]
    form.streams.edit("small", partition="third")
    short(dashboard)
    assert form.is_valid
    with pytest.raises(InvalidPartition, match="not applied"):
        _ = dashboard.experiment
    dashboard._run_as_shown(form.carving)
    finish(dashboard)
    assert dashboard.run.experiment["streams"]["small"]["partition"] == "third"


def test_a_proposal_that_is_reverted_leaves_no_stream_in_it(dashboard):
    form = dashboard.form
    form.carver.add("third")
    form.streams.edit("small", partition="third")
    form.carver.revert()
    assert "'third' is no partition" in form.streams.said
    assert not form.is_valid


def test_without_partitions_it_runs_too_and_says_why_there_is_no_verdict(dashboard):
    form = dashboard.form
    form.carver.remove("small")
    form.carver.remove("load")
    form.carver.apply()
    assert "their partitions are gone: streams small, load" in dashboard.bar.status
    assert [stream.partition for stream in form.streams.streams.values()] == [None, None]
    short(dashboard)
    run(dashboard)
    assert list(dashboard.run) == ["no partition"]
    assert "Nothing was carved" in dashboard._shown.answers.value
    assert (
        "its p50 is" in dashboard.verdict.value.lower()
        or "its p50," in dashboard.verdict.value.lower()
    )
    assert "whole GPU" in dashboard.results.value


def test_stop_ends_it_early_and_keeps_what_was_recorded(dashboard):
    running = until_status(dashboard, "Running")
    short(dashboard, 1_000_000)
    dashboard.start()
    assert running.wait(PATIENCE_S)
    dashboard.stop()
    assert "Stopping" in dashboard.bar.status
    assert dashboard.bar.stopping
    finish(dashboard)
    assert dashboard.run.stopped
    (trace,) = dashboard.run.values()
    kept = trace.kind_counts()["handle"]
    assert 0 < kept < 1_000_000
    assert "Stopped early" in dashboard.bar.status
    assert not dashboard.bar.stopping
    assert "overlap" in dashboard._shown.answers.value
    assert bars(dashboard)


def test_close_stops_the_run_and_leaves_nothing():
    gc.collect()
    before = set(open_devices())
    shown = Dashboard("sim:h200")
    running = until_status(shown, "Running")
    short(shown, 1_000_000)
    shown.start()
    assert running.wait(PATIENCE_S)
    shown.close()
    assert not shown.is_running
    assert shown.run.stopped
    shown.start()
    assert not shown.is_running
    gc.collect()
    left = set(open_devices()) - before
    assert not any(device.partitions or device.streams for device in left)


def test_closing_its_page_closes_it(dashboard, pages):  # noqa: F811 - the fixture
    running = until_status(dashboard, "Running")
    short(dashboard, 1_000_000)
    dashboard.start()
    assert running.wait(PATIENCE_S)
    dashboard.widget.comm.handle_close({})
    assert not dashboard.is_running
    assert dashboard.run.stopped


def test_partitions_have_the_colours_of_the_carver_in_every_picture(dashboard):
    short(dashboard)
    carver = dashboard.form.carver
    carver._do_color(carver.rows[0]["id"], "#123456")
    carver._do_color(carver.rows[0]["id"], "red;}")  # is none
    assert dashboard.experiment.colors == {"small": "#123456"}
    run(dashboard)
    drawn = bars(dashboard)
    assert drawn["small: kernel"] == "#123456"
    assert drawn["load: kernel"] == carver.colors["load"] == colours_of(["small", "load"])["load"]
    assert "background:#123456" in dashboard.results.value
    dashboard.open(dashboard.experiment)
    assert carver.colors["small"] == "#123456"


def test_it_keeps_no_simulated_device_which_would_be_a_second_clock(dashboard):
    gc.collect()
    before = set(open_devices())
    short(dashboard)
    run(dashboard)
    dashboard.form.carver.propose({"small": 8})
    gc.collect()
    assert not set(open_devices()) - before


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (GpuscopeError("no <SMs> left"), "no <SMs> left"),
        (RuntimeError("the driver fell over"), "RuntimeError: the driver fell over"),
    ],
)
def test_an_error_of_the_run_is_shown(dashboard, monkeypatch, error, said):
    def fail(viewer, stop):
        raise error

    fake_run(monkeypatch, fail)
    dashboard.start()
    finish(dashboard)
    assert dashboard.bar.alarm == said
    assert dashboard.bar.ready
    assert not dashboard.bar.running
    assert dashboard.run is None


def test_an_error_of_the_live_picture_is_shown_and_the_run_goes_on(dashboard, monkeypatch):
    def fail(_recording):
        raise ValueError("nothing to <draw>")

    monkeypatch.setattr(dashboard.timeline, "watch", fail)
    failed = until_status(dashboard, "The live picture failed, the run goes on")
    short(dashboard, 300)
    dashboard.start()
    finish(dashboard)
    assert failed.is_set()
    assert "Done: 300 timed calls" in dashboard.bar.status
    assert dashboard.run is not None


def test_results_that_cannot_be_shown_are_said_and_the_run_is_kept(dashboard, monkeypatch):
    monkeypatch.setattr(results, "summarise", lambda _run: 1 / 0)
    short(dashboard)
    dashboard.start()
    finish(dashboard)
    assert "The results cannot be shown: ZeroDivisionError" in dashboard.bar.alarm
    assert dashboard.run is not None


def test_controls_may_be_used_from_many_threads_while_it_runs(dashboard):
    """Callbacks come beside the main thread: nothing is lost, and nothing waits for ever."""
    short(dashboard, 200)
    dashboard.start()
    start = threading.Barrier(4)

    def push(act) -> None:
        start.wait()
        for number in range(20):
            act(number)

    bar, form = dashboard.bar, dashboard.form
    threads = [
        threading.Thread(target=push, args=(act,), daemon=True)
        for act in (
            lambda n: bar._take(bar, {"action": "code", "kind": "gpuscope"}, []),
            lambda n: form.workloads.edit("small", repeats=200 + n),
            lambda n: form.carver.propose({"small": 8 + 8 * (n % 8)}),
            lambda n: bar._take(bar, {"action": "run"}, []),
        )
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    finish(dashboard)
    assert dashboard.form.workloads.workloads["small"].repeats == 219


# -- what stays in the notebook -------------------------------------------------------------
class Display:
    """What a cell shows, and how it is updated."""

    def __init__(self) -> None:
        self.shown: list[object] = []
        self.saved = ""

    def display(self, what, display_id=None):
        self.shown.append(what)
        if display_id is None:
            return None
        self.saved = what.data
        return self

    def update(self, what) -> None:
        self.saved = what.data


def test_a_notebook_keeps_what_was_there_last(dashboard, monkeypatch):
    page = Display()
    monkeypatch.setattr("IPython.display.display", page.display)
    dashboard._ipython_display_()
    assert page.shown[0] is dashboard.widget
    assert f"gpuscope-saved-{dashboard.bar.uid}" in page.saved
    assert "Nothing has run yet" in page.saved
    assert "SIMULATED, not measured" in page.saved
    dashboard.form.workloads.edit("small", repeats=23)
    assert "repeats = 23" in page.saved
    run(dashboard)
    for words in ("Confined: all work", "p50", "TFLOP/s", "Gain", "repeats = 23",
                  'alt="Timeline (SIMULATED)"', "data:image/png;base64,"):  # fmt: skip
        assert words in page.saved
    assert len(page.saved) < 200_000
    dashboard.form.workloads.edit("small", repeats=0)
    assert "greater than 0" in page.saved


# -- time left ----------------------------------------------------------------------------
def test_time_left_follows_the_pace_and_what_is_to_come(dashboard):
    clock = Clock()
    estimate = EndEstimate(dashboard.experiment, clock)
    assert estimate.at(Progress("one", 0, 0, 100, None)) == (0.0, None)
    clock.now_s += 1
    # 10 of 100 in 1 s: 10 s together, then the load alone, here and on the whole GPU.
    assert estimate.at(Progress("one", 0, 10, 100, None)) == (1 / 30, 29)
    clock.now_s += 9
    assert estimate.at(Progress("one", 0, 100, 100, None)) == (1 / 3, 20)
    clock.now_s += 15
    assert estimate.at(Progress("one", 0, 100, 100, None, "load alone")) == (25 / 30, 5)
    clock.now_s += 60
    assert estimate.at(Progress("one", 0, 100, 100, None, "load alone")) == (0.99, 0)
    assert [in_words(left) for left in (None, 0, 29.6, 89, 91, 600)] == [
        "", "about 1 s left", "about 30 s left", "about 89 s left", "about 2 min left",
        "about 10 min left",
    ]  # fmt: skip


def test_progress_and_time_left_are_shown_while_it_runs(dashboard):
    seen = []
    dashboard.bar.observe(lambda change: seen.append(change["new"]), names="left")
    short(dashboard, 1500)
    run(dashboard)
    assert any(words.startswith("about ") for words in seen)
    assert seen[-1] == ""


# -- live ---------------------------------------------------------------------------------
def test_the_timeline_follows_what_runs_together(dashboard, monkeypatch):
    watched = []
    watch = dashboard.timeline.watch
    monkeypatch.setattr(
        dashboard.timeline, "watch", lambda recording: (watched.append(recording), watch(recording))
    )
    grown = threading.Event()
    dashboard.timeline.observe(lambda _change: grown.set(), names="window_ns")
    short(dashboard, 1500)
    dashboard.start()
    assert grown.wait(PATIENCE_S)
    finish(dashboard)
    (recording,) = watched
    assert recording.is_over
    assert not dashboard.timeline.follow
    shown = dashboard.run["small 16 | load rest"]
    assert len(dashboard.timeline._whole()) == len(shown)


def test_nothing_is_drawn_while_it_runs_with_live_switched_off(dashboard, pages, monkeypatch):  # noqa: F811
    monkeypatch.setattr(dashboard.timeline, "watch", lambda _recording: pytest.fail("drawn live"))
    pages(dashboard.bar).set(live=False)
    short(dashboard, 1000)
    run(dashboard)
    assert bars(dashboard)


def test_live_can_be_switched_off_and_on_while_it_runs(dashboard, monkeypatch):
    seen: queue.Queue[str] = queue.Queue()
    timeline = dashboard.timeline
    watch, finish_ = timeline.watch, timeline.finish
    monkeypatch.setattr(timeline, "watch", lambda recording: (watch(recording), seen.put("watch")))
    monkeypatch.setattr(timeline, "finish", lambda: (finish_(), seen.put("finish")))
    short(dashboard, 1_000_000)
    dashboard.start()
    for live, said in ((False, "watch"), (True, "finish"), (False, "watch")):
        assert seen.get(timeout=PATIENCE_S) == said
        dashboard.bar.live = live
    assert seen.get(timeout=PATIENCE_S) == "finish"
    dashboard.stop()
    finish(dashboard)
    assert dashboard.run.stopped


def test_a_closed_dashboard_is_forgotten_with_its_trace():
    dashboard = Dashboard("sim:h200")
    short(dashboard)
    run(dashboard)
    parts = (dashboard, dashboard.bar, dashboard.form, dashboard.timeline,
             dashboard.timeline._trace)  # fmt: skip
    kept = [weakref.ref(one) for one in parts]
    dashboard.close()
    del dashboard, parts
    gc.collect()
    assert [one() for one in kept] == [None] * len(kept)


def all_open():
    return set(ipw.Widget.get_manager_state()["state"])


def test_a_closed_dashboard_leaves_no_widget_open():
    before = all_open()
    dashboard = Dashboard("sim:h200")
    short(dashboard)
    run(dashboard)
    assert all_open() > before
    dashboard.close()
    assert all_open() <= before


@pytest.mark.parametrize("make", [Timeline, lambda: PartitionCarver("sim:h200")])
def test_a_closed_widget_leaves_none_open(make):
    before = all_open()
    widget = make()
    assert all_open() > before
    widget.close()
    assert all_open() <= before


def test_busy_shares_are_of_the_time_recorded_not_of_what_lies_between_rounds():
    shares = {}
    for rounds in (1, 3):
        plan = copy.deepcopy(TEMPLATE) | {"rounds": rounds}
        plan["workloads"]["small"]["repeats"] = 150
        run = gs.run(plan, gs.open_device("sim:h200", jitter=False, quiet=True))
        summary = results.summarise(run)
        shares[rounds] = max(summary.judged.busy.values())
    assert shares[3] == pytest.approx(shares[1], rel=0.1)
    assert shares[1] > 0.5


def test_a_verdict_says_that_the_controls_have_changed_since(dashboard):
    plan = copy.deepcopy(TEMPLATE)
    plan["workloads"]["small"]["repeats"] = 20
    dashboard.open(plan)
    dashboard.start()
    dashboard.wait()
    of_before = RULES["of-before"].text

    def is_of_before():
        return of_before in dashboard._shown.verdict.value

    assert not is_of_before()
    headline = dashboard._shown.verdict.value
    plan["workloads"]["small"]["repeats"] = 30
    dashboard.open(plan)
    assert is_of_before()
    plan["workloads"]["small"]["repeats"] = 20
    dashboard.open(plan)
    assert not is_of_before()
    assert dashboard._shown.verdict.value == headline
