"""Running experiments on the simulated GPU: what is launched, recorded, kept and left behind."""

from __future__ import annotations

import gc
import json
import threading
import warnings
import weakref

import msgspec
import numpy as np
import pytest

import gpuscope as gs
from gpuscope.device import select
from gpuscope.record import ranges
from gpuscope.record.recorder import Recording
from gpuscope.timeline.style import OKABE_ITO, partition_colours


@pytest.fixture
def sim():
    """Open simulated GPUs; at the end nothing may be left on any of them."""
    opened = []

    def open_one():
        opened.append(gs.open_device("sim:h200", quiet=True))
        return opened[-1]

    yield open_one
    for gpu in opened:
        assert_clean(gpu)


@pytest.fixture
def gpu(sim):
    return sim()


def assert_clean(gpu):
    assert gpu.registry.held_parts() == {}
    assert gpu.calls.observers == ()
    assert not gpu.registry.streams
    assert ranges.running == ()
    assert gc.isenabled()


def gemm(size, stream, **facts):
    return {"kind": "gemm", "m": size, "n": size, "k": size, "stream": stream, **facts}


def one_gemm(**facts):
    return {
        "name": "one",
        "alone_repeats": 0,
        "streams": {"s": {}},
        "workloads": {"small": gemm(64, "s", **facts)},
    }


def loaded(**facts):
    """Describe a small quickstart: a timed GEMM against a background, shared and partitioned."""
    return {
        "name": "loaded",
        "rounds": 2,
        "alone_repeats": 3,
        "streams": {"s": {}, "l": {}},
        "workloads": {
            "small": gemm(512, "s", repeats=25, warmup=2, arrival="poisson", rate_hz=1000),
            "load": gemm(4096, "l", background=True, max_queued=6, warmup=1),
        },
        "settings": {
            "shared": {},
            "16 | rest": {
                "partitions": {"a": 16, "b": "rest"},
                "streams": {"s": {"partition": "a"}, "l": {"partition": "b"}},
            },
        },
        **facts,
    }


def rows(trace, kind, **equal):
    return trace.where(kind=kind, **equal).spans.to_pylist()


def kernel_ns(trace, **equal):
    found = trace.where(kind="kernel", **equal)
    return found.array("end_ns") - found.array("start_ns")


def unfinished_at_most(trace, workload):
    """Return the largest number of calls of a workload that were unfinished at one moment."""
    calls = rows(trace, "handle", category=workload)
    # at equal times the end comes first: that call was seen done before the next one began
    changes = sorted([(c["end_ns"], -1) for c in calls] + [(c["start_ns"], 1) for c in calls])
    return int(np.cumsum([change for _, change in changes]).max())


# -- what a run holds ---------------------------------------------------------------------


def test_a_run_holds_a_trace_for_each_setting_and_their_comparison(gpu):
    run = gs.run(loaded(), gpu)
    assert list(run) == ["shared", "16 | rest"]
    assert not run.stopped
    assert run.experiment == gs.experiments.Experiment.from_dict(loaded()).to_dict()
    compared = {(row["setting"], row["workload"]): row for row in run.comparison.to_pylist()}
    assert len(compared) == 4
    for setting, trace in run.items():
        assert trace.metadata.setting == setting
        assert trace.metadata.experiment == run.experiment
        assert trace.is_simulated
        for workload in ("small", "load"):
            row = compared[setting, workload]
            times = kernel_ns(trace, category=workload)
            assert row["kernels"] == len(times)
            # how long a background waits in its own queue is no latency of interest
            assert row["latency_n"] == (None if workload == "load" else len(times))
            assert row["kernel_median_us"] == pytest.approx(np.median(times) / 1e3)
        assert compared[setting, "small"]["kernels"] == 25
        assert compared[setting, "small"]["tflop_per_s"] is None, "arrivals set its rate"
        assert compared[setting, "load"]["tflop_per_s"] > 0
        assert 0 < compared[setting, "load"]["share_of_alone_on_whole_gpu"] <= 1.1
        assert compared[setting, "load"]["gain"] == compared[setting, "small"]["gain"] > 0.5
    assert compared["16 | rest", "small"]["partition"] == "a"
    assert compared["shared", "small"]["partition"] is None
    fast, slow = (compared[name, "small"]["latency_p50_us"] for name in ("16 | rest", "shared"))
    assert fast < slow, "a partition keeps the load away from the small GEMM"


def test_work_runs_where_its_stream_is(gpu):
    trace = gs.run(loaded(), gpu)["16 | rest"]
    for workload, partition in (("small", "a"), ("load", "b")):
        for row in rows(trace, "kernel", category=workload):
            assert row["partition"] == row["intended_partition"] == partition
    granted = {name: facts.sm_count for name, facts in trace.metadata.partitions.items()}
    assert granted == {"a": 16, "b": 116}
    names = sorted(facts.name for facts in trace.metadata.streams.values())
    assert names == ["l", "s"], "the same two streams in every round"


@pytest.mark.parametrize(
    ("repeats", "rounds", "split"),
    [(6, 3, [2, 2, 2]), (7, 3, [2, 2, 3]), (2, 5, [0, 0, 1, 0, 1]), (1, 1, [1])],
)
def test_repeats_are_honoured_over_rounds(gpu, repeats, rounds, split):
    experiment = {**one_gemm(repeats=repeats, warmup=4), "rounds": rounds}
    trace = gs.run(experiment, gpu)["default"]
    starts = trace.where(kind="kernel").array("start_ns")
    windows = trace.metadata.windows_ns
    counted = [int(((starts >= low) & (starts < high)).sum()) for low, high in windows]
    assert sum(counted) == len(starts) == repeats, "and no warm-up among them"
    assert counted == split


def test_settings_take_turns_forwards_and_backwards(gpu):
    run = gs.run({**loaded(), "rounds": 3}, gpu)
    windows = sorted(
        (window[0], setting) for setting, t in run.items() for window in t.metadata.windows_ns
    )
    there = ["shared", "16 | rest"]
    assert [setting for _, setting in windows] == [*there, *reversed(there), *there]


def test_alone_is_recorded_apart(gpu):
    run = gs.run(loaded(), gpu)
    solo = run["16 | rest"].metadata.solo
    assert set(solo) == {"small", "load"}
    assert solo["small"].n >= 6
    assert solo["load"].kernel_ns > solo["load"].whole_gpu_kernel_ns, "116 SMs against 132"
    assert solo["load"].whole_gpu_tflop_per_s > 0
    assert solo["small"].whole_gpu_tflop_per_s is None, "it came at a rate of its own"
    without = gs.run(loaded(alone_repeats=0), gpu)
    assert without["shared"].metadata.solo == {}
    assert {row["gain"] for row in without.comparison.to_pylist()} == {None}


@pytest.mark.parametrize("max_queued", [1, 4, 64])
def test_a_background_runs_alone_as_long_as_with_the_others_however_slow_a_recording_begins(
    gpu, monkeypatch, max_queued
):
    """Its rates are compared: a GPU under a power cap slows down the longer it is busy."""

    class Slow(Recording):
        def start(self):
            super().start()
            gpu.backend.wait_until_ns(gpu.now_ns() + 50_000_000)

        def stop(self):
            gpu.backend.wait_until_ns(gpu.now_ns() + 50_000_000)
            super().stop()

    monkeypatch.setattr("gpuscope.experiments.runner.Recording", Slow)
    described = {
        "name": "short", "alone_repeats": 1, "streams": {"s": {}, "b": {}},
        "workloads": {
            "short": {"kind": "spin", "duration_us": 4000, "stream": "s", "repeats": 5},
            "load": {
                "kind": "spin", "duration_us": 1000, "stream": "b", "background": True,
                "max_queued": max_queued,
            },
        },
    }  # fmt: skip
    trace = gs.run(described, gpu)["default"]
    durations = np.subtract(*map(trace.where(kind="kernel").array, ("end_ns", "start_ns")))
    together = int(np.sum(durations < 2_000_000))
    assert 20 <= together <= 30 + max_queued
    assert trace.metadata.solo["load"].n == pytest.approx(together, abs=3)


@pytest.mark.parametrize("as_what", ["dict", "experiment", "toml", "json"])
def test_an_experiment_can_be_given_in_any_form(gpu, tmp_path, as_what):
    given = one_gemm(repeats=2)
    if as_what == "experiment":
        given = gs.experiments.Experiment.from_dict(given)
    elif as_what == "json":
        path = tmp_path / "one.json"
        path.write_text(json.dumps(given))
        given = path
    elif as_what == "toml":
        path = tmp_path / "one.toml"
        path.write_text(
            'name = "one"\nalone_repeats = 0\nstreams = { s = {} }\n[workloads.small]\n'
            'kind = "gemm"\nm = 64\nn = 64\nk = 64\nstream = "s"\nrepeats = 2\n'
        )
        given = str(path)
    assert len(kernel_ns(gs.run(given, gpu)["default"])) == 2


def test_a_device_can_be_given_by_name(capsys):
    run = gs.run(one_gemm(repeats=1), "sim:h200")
    assert run["default"].is_simulated
    assert "NVIDIA H200 (simulated)" in capsys.readouterr().out


def test_the_viewer_is_told_how_far_it_is(gpu):
    seen, recorded, collecting = [], [], []

    phases = []

    def viewer(progress):
        phases.append(progress.phase)
        if progress.phase != "together":
            assert progress.recording is None
            return
        seen.append((progress.setting, progress.round, progress.done, progress.total))
        recorded.append(sum(len(batch.spans) for batch in progress.recording.batches()))
        collecting.append(gc.isenabled())

    gs.run(loaded(), gpu, viewer=viewer)
    done = [one[2] for one in seen]
    assert done == sorted(set(done))
    assert done[-1] == 50
    assert {one[3] for one in seen} == {50}
    assert list(dict.fromkeys(one[:2] for one in seen)) == [
        ("shared", 0), ("16 | rest", 0), ("16 | rest", 1), ("shared", 1),
    ]  # fmt: skip
    assert {"small alone", "load alone"} < set(phases)
    assert min(recorded) > 0, "what is recorded can be seen while it runs"
    assert not any(collecting), "no garbage is collected while times are taken"


# -- pace: queues and arrivals ------------------------------------------------------------


@pytest.mark.parametrize("max_queued", [1, 2, 5])
def test_no_more_calls_are_unfinished_than_max_queued(gpu, max_queued):
    experiment = one_gemm(repeats=40, max_queued=max_queued)
    experiment["workloads"]["small"] |= {"m": 4096, "n": 4096, "k": 4096}
    trace = gs.run(experiment, gpu)["default"]
    assert unfinished_at_most(trace, "small") == max_queued


def test_a_background_keeps_its_queue_and_no_more(gpu):
    trace = gs.run(loaded(), gpu)["shared"]
    assert unfinished_at_most(trace, "load") == 6
    assert unfinished_at_most(trace, "small") == 1
    depth = gs.analysis.queue_depth(trace, of="load", at="small")
    assert len(depth.depths) == 25
    assert depth.minimum >= 2


def test_long_background_kernels_are_not_queued_far_ahead(gpu):
    experiment = one_gemm(repeats=30, arrival="fixed", rate_hz=20)
    experiment["streams"]["l"] = {}
    experiment["workloads"]["load"] = {
        "kind": "spin", "duration_us": 40_000, "stream": "l", "background": True, "max_queued": 8,
    }  # fmt: skip
    trace = gs.run(experiment, gpu)["default"]
    late = rows(trace, "handle", category="load")[10:]
    longest = max(row["end_ns"] - row["start_ns"] for row in late)
    assert longest < 200_000_000, "about 100 ms of work is queued, not 8 × 40 ms"


def test_the_background_runs_as_long_as_the_foreground(gpu):
    trace = gs.run(loaded(), gpu)["shared"]
    for low, high in trace.metadata.windows_ns:
        small, load = (
            [r for r in rows(trace, "kernel", category=name) if low <= r["start_ns"] < high]
            for name in ("small", "load")
        )
        assert min(r["start_ns"] for r in load) < min(r["start_ns"] for r in small)
        assert max(r["end_ns"] for r in load) > max(r["end_ns"] for r in small)
        busy = sum(r["end_ns"] - r["start_ns"] for r in load)
        assert busy > 0.9 * (small[-1]["end_ns"] - small[0]["start_ns"])


def test_fixed_arrivals_come_at_their_rate(gpu):
    trace = gs.run(one_gemm(repeats=200, arrival="fixed", rate_hz=4000), gpu)["default"]
    gaps = np.diff(np.sort(trace.where(kind="handle").array("start_ns")))
    assert gaps.tolist() == [250_000] * 199


def test_fixed_arrivals_under_load_lose_nothing(gpu):
    experiment = loaded(settings={})
    experiment["workloads"]["small"] |= {"arrival": "fixed", "repeats": 100, "max_queued": 8}
    trace = gs.run(experiment, gpu)["default"]
    for low, high in trace.metadata.windows_ns:
        starts = trace.where(kind="handle", category="small").array("start_ns")
        mine = np.sort(starts[(starts >= low) & (starts < high)])
        late = mine - mine[0] - np.arange(len(mine)) * 1_000_000
        assert np.abs(late).max() < 500_000, "the queue of arrivals does not drift"


def test_poisson_arrivals_have_the_rate_and_the_spread(gpu):
    experiment = one_gemm(repeats=4000, arrival="poisson", rate_hz=2000, max_queued=64)
    trace = gs.run(experiment, gpu)["default"]
    gaps = np.diff(np.sort(trace.where(kind="handle").array("start_ns")))
    assert gaps.mean() == pytest.approx(500_000, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.08), "exponential, not regular"


def test_the_same_seed_gives_the_same_trace_byte_for_byte(sim, tmp_path):
    runs = [gs.run(loaded(seed=5), sim()) for _ in range(2)]
    other = gs.run(loaded(seed=6), sim())
    for setting in runs[0]:
        one, two = (run[setting] for run in runs)
        assert one.spans.equals(two.spans)
        assert one.edges.equals(two.edges)
        assert one.metadata == two.metadata
        files = [
            gs.export(trace, tmp_path / f"{number}.parquet")
            for number, trace in enumerate((one, two))
        ]
        assert files[0].read_bytes() == files[1].read_bytes()
        assert not one.spans.equals(other[setting].spans), "another seed, other arrivals"
    assert runs[0].comparison.equals(runs[1].comparison)


# -- settings -----------------------------------------------------------------------------


def test_priorities_reach_the_streams(gpu):
    experiment = loaded(settings={"plain": {}, "urgent": {"streams": {"s": {"priority": -3}}}})
    run = gs.run(experiment, gpu)
    found = {
        setting: {facts.name: facts.priority for facts in trace.metadata.streams.values()}
        for setting, trace in run.items()
    }
    assert found == {"plain": {"s": 0, "l": 0}, "urgent": {"s": -3, "l": 0}}


def test_telling_the_library_its_sm_count_shortens_a_gemm_on_120_sms(gpu):
    experiment = {
        "name": "told",
        "alone_repeats": 0,
        "partitions": {"most": 120},
        "streams": {"s": {"partition": "most"}},
        "workloads": {"big": gemm(4096, "s", repeats=4)},
        "settings": {"told": {"sm_count_target": "auto"}, "not": {"sm_count_target": "off"}},
    }
    run = gs.run(experiment, gpu)
    told, untold = (kernel_ns(run[name]) for name in ("told", "not"))
    assert len(told) == len(untold) == 4
    assert np.median(untold) / np.median(told) == pytest.approx(250 / 182, rel=0.1), "as measured"


def test_rounding_is_the_experiments(gpu):
    experiment = one_gemm(repeats=1) | {"partitions": {"p": 15}, "rounding": "up"}
    experiment["streams"] = {"s": {"partition": "p"}}
    (facts,) = gs.run(experiment, gpu)["default"].metadata.partitions.values()
    assert (facts.asked, facts.sm_count) == (15, 16)


def test_spin_and_copy_run(gpu):
    experiment = {
        "name": "others",
        "alone_repeats": 2,
        "streams": {"s": {}, "c": {}},
        "workloads": {
            "spin": {"kind": "spin", "duration_us": 50, "blocks": 4, "stream": "s", "repeats": 6},
            "copy": {"kind": "copy", "nbytes": 1 << 20, "stream": "c", "repeats": 9},
        },
    }
    trace = gs.run(experiment, gpu)["default"]
    assert kernel_ns(trace, category="spin").tolist() == [50_000] * 6
    copies = rows(trace, "kernel", category="copy")
    assert [row["nbytes"] for row in copies] == [2 << 20] * 9
    assert {row["flop_count"] for row in copies} == {None}


# -- refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"a": 7}, "8 above"),
        ({"a": 200}, "200 SMs asked for"),
        ({"a": "rest", "b": "rest"}, "only one"),
        ({"a": 128, "b": 8}, "128"),
    ],
)
def test_a_carving_that_cannot_be_is_refused_before_anything_is_launched(gpu, sizes, text):
    calls = []

    class Watcher:
        def call_begins(self, call):
            calls.append(call)

        def call_ends(self, call):
            calls.append(call)

        def activity(self, activity):
            calls.append(activity)

    watcher = Watcher()
    gpu.calls.observe(watcher)
    before_ns = gpu.now_ns()
    with pytest.raises(gs.errors.InvalidPartition, match=text):
        gs.run({**loaded(), "settings": {"good": {}, "bad": {"partitions": sizes}}}, gpu)
    gpu.calls.unobserve(watcher)
    assert calls == []
    assert gpu.now_ns() == before_ns, "the device was not touched"


def test_a_bad_description_is_refused_without_a_device(monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("a device was opened")

    monkeypatch.setattr("gpuscope.experiments.execution.open_device", fail)
    with pytest.raises(gs.errors.InvalidExperiment, match="unknown key"):
        gs.run({**one_gemm(), "bogus": 1})


def test_live_partitions_in_the_way_are_named(gpu):
    with gpu.carve({"mine": 64}):
        with pytest.raises(gs.errors.InvalidPartition, match="mine"):
            gs.run(loaded(settings={"x": {"partitions": {"a": 104}}}), gpu)
        assert list(gpu.registry.held_parts()) == ["mine"]


# -- ending early -------------------------------------------------------------------------


def test_stop_ends_early_and_keeps_what_was_recorded(gpu):
    stop = threading.Event()

    def viewer(progress):
        if progress.done == 30:  # in the second round of what was second in the first
            stop.set()

    run = gs.run(loaded(), gpu, viewer=viewer, stop=stop)
    assert run.stopped
    assert list(run) == ["shared", "16 | rest"]
    kernels = {name: len(kernel_ns(trace, category="small")) for name, trace in run.items()}
    assert kernels["16 | rest"] == 12 + 30 - 24, "the first round and a part of the second"
    assert kernels["shared"] == 12, "the first round"
    assert all(row["end_ns"] is not None for t in run.values() for row in rows(t, "handle"))


def test_ctrl_c_keeps_what_was_recorded(gpu):
    def viewer(progress):
        if progress.setting == "16 | rest":
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="interrupted") as caught:
        run = gs.run(loaded(), gpu, viewer=viewer)
    assert caught[0].filename == __file__, "the warning points at the caller"
    assert run.stopped
    assert len(kernel_ns(run["shared"], category="small")) == 12
    assert len(kernel_ns(run["16 | rest"], category="small")) >= 1
    assert set(run.comparison.column("setting").to_pylist()) == {"shared", "16 | rest"}


def test_stopped_before_anything_was_recorded_is_an_error(gpu):
    stop = threading.Event()
    stop.set()
    with pytest.raises(gs.errors.GpuscopeError, match="before anything was recorded"):
        gs.run(loaded(), gpu, stop=stop)


class StopAt(threading.Event):
    """An event that is set at the n-th look."""

    def __init__(self, looks):
        super().__init__()
        self.looks = looks

    def is_set(self):
        self.looks -= 1
        if self.looks <= 0:
            self.set()
        return super().is_set()


def test_wherever_a_run_is_stopped_something_sound_comes_back(sim):
    """While each workload is measured alone, too. Of no kernel at all there is nothing to judge."""
    experiment = short()
    kinds, early = set(), []
    for looks in [*range(2, 30), *range(30, 150, 3), 10_000]:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            try:
                run = gs.run(experiment, sim(), stop=StopAt(looks))
            except gs.errors.NothingRecorded:  # while it was warming up, or before a first kernel
                early.append(looks)
                continue
        kinds.add((len(run), all("kernel" in trace.kind_counts() for trace in run.values())))
        assert run.stopped == (looks < 10_000)
    assert {(1, True), (2, True)} <= kinds
    assert (1, False) not in kinds
    assert early == [2, 3, 4, 5]


def test_a_run_that_is_stopped_before_its_first_kernel_recorded_nothing(sim):
    """Its recording began and holds ranges, but nothing that a comparison could be of."""
    with pytest.raises(gs.errors.NothingRecorded):
        gs.run(short(), sim(), stop=StopAt(5))


class StopWhen(threading.Event):
    """An event that is set from a moment of a simulated GPU's time on."""

    def __init__(self, gpu, at_ns):
        super().__init__()
        self.gpu, self.at_ns = gpu, at_ns
        self.seen_ns = None

    def is_set(self):
        return self.gpu.now_ns() >= self.at_ns


@pytest.mark.parametrize("at_ms", [1, 40, 90, 130, 260, 333, 500, 777, 1500, 2900, 5000, 9000])
@pytest.mark.parametrize("warmup", [0, 2])
def test_stop_ends_a_run_within_half_a_second_and_the_longest_kernel(gpu, at_ms, warmup):
    """Whatever it was doing: warming up, waiting for an arrival, measuring alone."""

    def spin(stream, us, **more):
        return {"kind": "spin", "duration_us": us, "blocks": 132, "stream": stream,
                "warmup": warmup, **more}  # fmt: skip

    experiment = {
        "name": "long",
        "alone_repeats": 5,
        "streams": {"a": {}, "b": {}, "c": {}},
        "workloads": {
            "long": spin("a", 300_000, background=True, max_queued=8),
            "short": spin("b", 30_000, background=True, max_queued=64),
            "rare": spin("c", 10, repeats=2, arrival="fixed", rate_hz=0.5),
        },
    }
    at_ns = gpu.now_ns() + at_ms * 1_000_000
    try:
        run = gs.run(experiment, gpu, stop=StopWhen(gpu, at_ns))
        assert run.stopped
    except gs.errors.NothingRecorded:
        assert warmup
    assert gpu.now_ns() - at_ns <= 500_000_000 + 300_000_000


def short():
    experiment = loaded(alone_repeats=2)
    experiment["workloads"]["small"] |= {"repeats": 3, "warmup": 1}
    experiment["workloads"]["load"] |= {"max_queued": 2}
    return experiment


def failing(gpu, method, at, error):
    """Let the ``at``-th call of a backend's method fail; returns how often it was called."""
    real = getattr(gpu.backend, method)
    calls = [0]

    def maybe(*args, **kwargs):
        calls[0] += 1
        if calls[0] == at:
            raise error("injected")
        return real(*args, **kwargs)

    setattr(gpu.backend, method, maybe)
    return calls


@pytest.mark.parametrize("error", [RuntimeError, gs.errors.GpuscopeError, KeyboardInterrupt])
@pytest.mark.parametrize(
    "method",
    ["matmul", "record", "sync_event", "make_stream", "make_partitions", "sync_stream",
     "close_stream", "synchronize"],
)  # fmt: skip
def test_whatever_fails_nothing_is_left_behind(sim, method, error):
    counting = sim()
    calls = failing(counting, method, -1, error)
    gs.run(short(), counting)
    for at in sorted({1, 2, calls[0] // 2, calls[0] - 1, calls[0]}):
        gpu = sim()
        failing(gpu, method, at, error)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                run = gs.run(short(), gpu)
            except (RuntimeError, gs.errors.GpuscopeError) as caught:
                if error is KeyboardInterrupt:
                    assert "before anything was recorded" in str(caught)  # noqa: PT017
                else:
                    assert "injected" in str(caught), "not hidden by a second error"  # noqa: PT017
            else:  # destroying is silent: there is nothing left to do about its failure
                assert error is KeyboardInterrupt or method == "close_stream"
                assert run.stopped == (error is KeyboardInterrupt)
        assert_clean(gpu)


def test_an_error_of_the_viewer_is_the_callers(gpu):
    def viewer(progress):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        gs.run(loaded(), gpu, viewer=viewer)
    assert_clean(gpu)
    assert len(kernel_ns(gs.run(one_gemm(repeats=2), gpu)["default"])) == 2, "and all is well after"


def test_running_again_on_the_same_device_works(gpu):
    first, second = (gs.run(loaded(), gpu) for _ in range(2))
    assert len(kernel_ns(first["shared"])) > 0
    counted = [len(kernel_ns(run["shared"], category="small")) for run in (first, second)]
    assert counted == [25, 25]


# -- profile() ----------------------------------------------------------------------------


@pytest.fixture
def nothing_open(monkeypatch):
    monkeypatch.setattr(select, "_open", weakref.WeakValueDictionary())


@pytest.mark.usefixtures("nothing_open")
def test_profile_without_a_device_records_ranges():
    with gs.profile() as recording, gs.annotate("step"):
        pass
    trace = recording.trace
    assert trace.kind_counts() == {"range": 1}
    assert trace.metadata.time_base == "unix"
    assert not trace.is_simulated


@pytest.mark.usefixtures("nothing_open")
def test_profile_picks_the_one_open_device():
    gpu = gs.open_device("sim:h200", quiet=True)
    handle = gs.Gemm(gpu, m=64, n=64, k=64)
    with gpu.create_stream() as stream, gs.profile() as recording:
        handle.execute(stream=stream)
        handle.wait()
    assert recording.devices == (gpu,)
    assert recording.trace.kind_counts()["kernel"] == 1
    assert gpu.calls.observers == ()


@pytest.mark.usefixtures("nothing_open")
def test_profile_asks_which_of_two_clocks():
    one, two = (gs.open_device("sim:h200", quiet=True) for _ in range(2))
    with pytest.raises(gs.errors.GpuscopeError, match=r"profile\(device\)"), gs.profile():
        pass
    assert one.calls.observers == two.calls.observers == ranges.running == ()
    with gs.profile(two) as recording:
        pass
    assert recording.devices == (two,)


@pytest.mark.usefixtures("nothing_open")
def test_a_device_that_nobody_holds_does_not_count():
    gc.disable()  # it would find it by chance
    try:
        dropped = gs.open_device("sim:h200", quiet=True)
        dropped.myself = dropped  # only the garbage collector finds it
        del dropped
        kept = gs.open_device("sim:h200", quiet=True)
        with gs.profile() as recording:
            pass
    finally:
        gc.enable()
    assert recording.devices == (kept,)


# -- guards left out, waits, blocking streams -----------------------------------------------
def carved(**facts):
    """Describe two workloads in partitions of their own."""
    return {
        "name": "carved",
        "alone_repeats": 0,
        "partitions": {"a": 16, "b": "rest"},
        "streams": {"s": {"partition": "a"}, "l": {"partition": "b"}},
        "workloads": {
            "small": gemm(512, "s", repeats=20),
            "load": gemm(2048, "l", background=True, max_queued=3),
        },
        **facts,
    }


def test_without_its_guard_a_workload_escapes_and_confinement_shows_it(gpu):
    experiment = carved()
    run = gs.run(experiment, gpu)
    assert gs.analysis.confinement(run["default"])["a"].fraction == 1.0
    experiment["workloads"]["small"]["guard"] = False
    run = gs.run(experiment, gpu)
    seen = gs.analysis.confinement(run["default"])
    assert seen["a"].fraction == 0.0
    assert seen["b"].fraction == 1.0
    (escape,) = seen["a"].escapes
    assert escape.kernels == 20
    assert "legacy default" in escape.where
    for row in rows(run["default"], "kernel", category="small"):
        assert (row["intended_partition"], row["partition"]) == ("a", None)
    facts = run["default"].metadata.streams
    assert [one.name for one in facts.values() if one.legacy_default] == ["legacy default"]
    assert run.experiment["workloads"]["small"]["guard"] is False


def test_a_call_waits_for_the_latest_call_of_what_it_waits_on(gpu):
    experiment = carved()
    load = gemm(4096, "l", repeats=10, max_queued=1)
    experiment["workloads"] = {"load": load, "small": gemm(64, "s", repeats=10, max_queued=10)}
    free = gs.run(experiment, gpu)["default"]
    assert min(r["start_ns"] for r in rows(free, "kernel", category="small")) < min(
        r["end_ns"] for r in rows(free, "kernel", category="load")
    )
    experiment["workloads"]["small"]["waits_on"] = ["load"]
    trace = gs.run(experiment, gpu)["default"]
    calls = {
        name: sorted(rows(trace, "kernel", category=name), key=lambda row: row["start_ns"])
        for name in ("small", "load")
    }
    for one in calls["small"]:
        launched = one["queued_ns"] if one["queued_ns"] is not None else one["start_ns"]
        before = [other for other in calls["load"] if (other["queued_ns"] or 0) <= launched]
        assert before, "the first call of the load comes first"
        assert one["start_ns"] >= before[-1]["end_ns"]
    waits = [edge for edge in trace.edges.to_pylist() if edge["kind"] == "event wait"]
    assert len(waits) >= 10


def test_a_stream_may_block_and_the_trace_says_so(gpu):
    experiment = carved(
        partitions={},
        streams={"s": {}, "l": {"blocking": True}},
    )
    experiment["workloads"]["small"]["guard"] = False  # in the legacy default stream
    trace = gs.run(experiment, gpu)["default"]
    names = {one.name: one for one in trace.metadata.streams.values()}
    assert names["l"].blocking is True
    assert "s" not in names or not names["s"].blocking
    legacy = rows(trace, "kernel", category="small")
    others = rows(trace, "kernel", category="load")
    assert legacy
    assert others
    for one in legacy:  # the barrier: none of them overlap
        for other in others:
            assert one["end_ns"] <= other["start_ns"] or other["end_ns"] <= one["start_ns"]
    experiment["streams"]["l"] = {}
    experiment["workloads"]["load"] = gemm(4096, "l", background=True, max_queued=3)
    trace = gs.run(experiment, gpu)["default"]
    assert gs.analysis.overlap(trace, by="workload").pairs[0].fraction > 0


def test_partitions_have_the_colours_of_the_experiment(gpu):
    trace = gs.run(carved(colors={"b": "#12AB34"}), gpu)["default"]
    facts = trace.metadata.partitions
    assert (facts["b"].color, facts["a"].color) == ("#12AB34", None)
    assert partition_colours([trace], []) == {"a": OKABE_ITO[0], "b": "#12AB34"}
    wrong = msgspec.structs.replace(facts["a"], color="red;x:y")
    foreign = trace.with_metadata(partitions={**facts, "a": wrong})
    assert partition_colours([foreign], [])["a"] == OKABE_ITO[0]


def test_interference_leaves_waits_out(gpu):
    fields = {"kind": "spin", "duration_us": 10}
    result = gs.search.measure_interference(
        gpu,
        {"a": 16, "b": "rest"},
        {
            "x": {**fields, "partition": "a", "waits_on": ["y"]},
            "y": {**fields, "partition": "b"},
        },
        repeats=3,
        rounds=1,
    )
    assert result.cell("x", "y").alone_n == 3


@pytest.mark.parametrize(
    "workload",
    [
        {"kind": "spin", "duration_us": 1, "blocks": 2**31 - 1},
        {"kind": "gemm", "m": 2**31 - 1, "n": 2**31 - 1, "k": 8},
        {"kind": "gemm", "m": 2**31 - 1, "n": 2**31 - 1, "k": 2**31 - 1},
        {"kind": "traced_gemm", "m": 2**31 - 1, "n": 64, "k": 64},
    ],
)
def test_an_experiment_beyond_the_simulated_gpu_is_refused(workload):
    described = {
        "name": "huge", "streams": {"s": {"partition": "p"}}, "partitions": {"p": 16},
        "workloads": {"w": {**workload, "stream": "s"}},
    }  # fmt: skip
    with pytest.raises(gs.errors.GpuscopeError, match=r"cannot be taken|simulated for minutes"):
        gs.run(described, gs.open_device("sim:h200", quiet=True))
