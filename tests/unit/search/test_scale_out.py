"""Jobs on executors: lost, slow and differing workers; locks of GPUs; sweeps on workers."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from kept_points import kept_points

import gpuscope as gs
from gpuscope.device.cuda import driver
from gpuscope.errors import GpuscopeError, InvalidArgument, MissingDependency, WorkerLost
from gpuscope.experiments.pool import Processes
from gpuscope.search import scale_out, series
from gpuscope.search.scale_out import Team, locked
from gpuscope.search.series import Plan, Series
from gpuscope.search.sweeps import load_sweep

ONE = {
    "name": "one", "alone_repeats": 0, "partitions": {"a": 8}, "streams": {"s": {"partition": "a"}},
    "workloads": {
        "w": {"kind": "gemm", "m": 256, "n": 256, "k": 256, "stream": "s", "repeats": 5},
    },
}  # fmt: skip
GRID = {"partitions.a": [8, 7, *range(16, 121, 8)], "seed": [1, 2]}
NEVER = threading.Event()


def swept(grid=GRID, **options):
    return gs.search.sweep(ONE, grid, "sim:h200", **options)


@pytest.fixture(scope="module")
def serial():
    return swept()


def same(result, expected):
    assert result.table.equals(expected.table)
    assert (result.parameters, result.provenance) == (expected.parameters, expected.provenance)
    assert result.stopped == expected.stopped


# -- jobs, which a worker imports ----------------------------------------------------------
def number_of(number, device):
    print("a job may print")  # noqa: T201
    return number, device.info.key, sys.stdin.read(1)


def named(number, device):
    return number, device.info.key


def die(device):
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(path, device):
    with contextlib.suppress(FileExistsError):
        path.touch(exist_ok=False)
        die(device)
    return "done"


def fail(kind, device):
    raise kind("x", "y")


class Local(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one}, {two}")  # which does not unpickle


# -- workers ------------------------------------------------------------------------------
@pytest.fixture
def pool():
    with Processes(2, attempts=3) as own:
        yield own
        started = own._all
    assert all(process.poll() is not None for process in started)


def test_each_job_is_done_once_on_the_device_that_was_named(pool):
    team = Team(pool, "sim:h100")
    jobs = {n: partial(number_of, n) for n in range(5)}
    found = sorted(team.done(jobs, NEVER))
    assert found == [(n, (n, "sim:h100", "")) for n in range(5)]
    assert team.layout == gs.open_device("sim:h100", quiet=True).layout


def test_a_lost_workers_job_is_done_again(pool, tmp_path):
    team = Team(pool, "sim:h200")
    jobs = {"dies": partial(die_once, tmp_path / "dies"), "lives": partial(number_of, 1)}
    found = dict(team.done(jobs, NEVER))
    assert found == {"dies": "done", "lives": (1, "sim:h200", "")}


def test_a_job_that_always_ends_its_worker_is_given_up_and_no_other_is(pool):
    jobs = {0: die, **{n: partial(number_of, n) for n in range(1, 6)}}
    found = dict(Team(pool, "sim:h200").done(jobs, NEVER))
    assert isinstance(found.pop(0), WorkerLost)
    assert {key: number for key, (number, *_) in found.items()} == {n: n for n in range(1, 6)}
    assert len(pool._all) >= 3, "one for each time that it was tried"


@pytest.mark.parametrize("error", [GpuscopeError, Local])
def test_a_jobs_error_comes_back_and_is_not_tried_again(pool, error):
    ((_, found),) = Team(pool, "sim:h200").done({0: partial(fail, error)}, NEVER)
    assert type(found) is GpuscopeError
    assert "x" in str(found)
    assert len(pool._all) == 1


def test_gpus_that_differ_are_refused():
    class Mixed(ThreadPoolExecutor):
        def submit(self, fn, job, name, attempt):
            return super().submit(fn, job, "sim:h100" if job.args[0] else name, attempt)

    with Mixed(1) as mixed, pytest.raises(GpuscopeError, match=r"differ.*H200.*H100"):
        list(Team(mixed, "sim:h200").done({n: partial(number_of, n) for n in range(2)}, NEVER))


class Alternating(ThreadPoolExecutor):
    """Workers of two kinds, which take turns."""

    def __init__(self):
        super().__init__(1)
        self.names = itertools.cycle(["sim:h200", "sim:h100"])

    def submit(self, fn, job, name, attempt):
        return super().submit(fn, job, next(self.names), attempt)


def test_gpus_that_differ_are_normalised_by_a_reference(tmp_path):
    grid = {"partitions.a": [16, 7, 32, 64, 96], "seed": [1, 2]}
    with Alternating() as mixed:
        result = swept(grid, executor=mixed, reference="gemm", path=tmp_path)
    speeds = {one.gpu: one for one in result.speeds}
    assert {*speeds} == {"SIM-h100", "SIM-h200"}
    assert speeds["SIM-h100"].relative == 1
    assert speeds["SIM-h200"].relative != 1
    assert all(one.n == 2 for one in result.speeds), "before and after"
    assert all(one.drift < 0.05 for one in result.speeds)
    assert "times × and rates ÷ the speed of a reference on each GPU" in result.note
    alone = {name: {"partitions.a": [16, 32, 64, 96], "seed": [1, 2]} for name in ("h200", "h100")}
    raw = {
        (f"SIM-{name}", row["partitions.a"], row["seed"]): row
        for name, points in alone.items()
        for row in gs.search.sweep(ONE, points, f"sim:{name}").rows()
    }
    checked = Counter()
    for row in result.rows():
        if row["partitions.a"] == 7:
            assert row["speed"] is row["gpu"] is row["kernel_median_us"] is None
            continue
        checked[row["gpu"]] += 1
        before, speed = raw[row["gpu"], row["partitions.a"], row["seed"]], speeds[row["gpu"]]
        assert row["speed"] == speed.relative
        for name in ("kernel_median_us", "latency_p50_us"):
            assert row[name] == pytest.approx(before[name] * speed.relative)
        for name in ("calls_per_s", "tflop_per_s"):
            assert row[name] == pytest.approx(before[name] / speed.relative)
        assert row["kernels"] == before["kernels"]
    assert min(checked[gpu] for gpu in speeds) >= 2
    read = load_sweep(tmp_path)
    same(read, result)
    assert read.speeds == result.speeds
    columns = ["speed", "tflop_per_s"]
    assert read.select(columns).equals(result.table.select(columns))
    told = []
    swept(grid, reference="gemm", path=tmp_path, viewer=told.append)
    assert told == [], "what is there is not measured again"
    with pytest.raises(GpuscopeError, match="device is None there"):
        swept(grid, path=tmp_path)


def test_rates_that_arrivals_set_are_not_normalised():
    timed = {**ONE["workloads"]["w"], "rate_hz": 2000, "arrival": "fixed"}
    plan = {**ONE, "workloads": {"w": timed}}
    with Alternating() as mixed:
        result = gs.search.sweep(plan, {"seed": [1, 2, 3]}, executor=mixed, reference=ONE)
    assert {row["gpu"] for row in result.rows()} == {"SIM-h100", "SIM-h200"}
    for row in result.rows():
        device = row["gpu"].replace("SIM-", "sim:")
        (raw,) = gs.search.sweep(plan, {"seed": [row["seed"]]}, device).rows()
        assert row["calls_per_s"] == raw["calls_per_s"]
        assert row["kernel_median_us"] == pytest.approx(raw["kernel_median_us"] * row["speed"])


def test_one_gpu_has_a_reference_too():
    result = swept({"seed": [1]}, reference="gemm")
    (speed,) = result.speeds
    assert (speed.relative, speed.n) == (1, 2)
    assert result.table["speed"].to_pylist() == [1.0]
    plain = swept({"seed": [1]})
    assert plain.speeds == ()
    assert result.table.drop_columns(["speed"]).equals(plain.table)


def test_an_executor_that_is_shut_down_is_named():
    own = ThreadPoolExecutor(1)
    own.shutdown()
    with pytest.raises(WorkerLost, match="takes no more jobs"):
        swept(executor=own)


class Refuses(Executor):
    """Ends each job as one that was cancelled, or with an error."""

    def __init__(self, error=None):
        self.error = error
        self.begun = Counter()

    def submit(self, _perform, job, _name, _token):
        self.begun[job] += 1
        future = Future()
        if self.error is None:
            future.cancel()
            future.set_running_or_notify_cancel()
        else:
            future.set_exception(self.error)
        return future


def test_jobs_that_are_always_cancelled_are_given_up():
    executor = Refuses()
    found = dict(Team(executor, "sim:h200").done({"a": "one", "b": "two"}, NEVER))
    assert all(isinstance(error, WorkerLost) for error in found.values())
    assert executor.begun == {"one": 3, "two": 3}


def test_a_job_that_cannot_be_sent_is_no_lost_worker():
    executor = Refuses(TypeError("cannot pickle '_thread.lock' object"))
    with pytest.raises(GpuscopeError, match="cannot be sent to a worker: cannot pickle") as raised:
        dict(Team(executor, "sim:h200").done({"a": "one"}, NEVER))
    assert not isinstance(raised.value, WorkerLost)


def test_what_has_not_begun_is_cancelled():
    futures = []

    class Idle(Executor):
        def submit(self, *_):
            futures.append(Future())
            return futures[-1]

    stop = threading.Event()
    stop.set()
    assert list(Team(Idle(), "cpu").done({0: die, 1: die}, stop)) == []
    assert [one.cancelled() for one in futures] == [True, True]


@pytest.mark.parametrize(
    ("executor", "device", "error", "words"),
    [
        ("threads:2", None, InvalidArgument, "executor is 'threads:2'.*processes:N"),
        ("processes:0", None, InvalidArgument, "processes:N"),
        ("processes:", None, InvalidArgument, "processes:N"),
        ("dask://", None, InvalidArgument, "dask://HOST:PORT"),
        (2, None, InvalidArgument, "executor"),
    ],
)
def test_executors_that_are_none(executor, device, error, words):
    with pytest.raises(error, match=words):
        swept(executor=executor)


def test_workers_open_their_own_device():
    gpu = gs.open_device("sim:h200", quiet=True)
    with pytest.raises(InvalidArgument, match=r"device is sim:h200, open here.*give its name"):
        gs.search.sweep(ONE, GRID, gpu, executor="processes:1")


def test_without_dask_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingDependency, match=r"\[dask\]"):
        swept(executor="dask://127.0.0.1:1")


# -- locks --------------------------------------------------------------------------------
@pytest.fixture
def gpus(tmp_path, monkeypatch):
    monkeypatch.setattr(scale_out, "_LOCKS", tmp_path)
    info = gs.open_device("sim:h200", quiet=True).info
    return [replace(info, kind="cuda", key=f"cuda:{n}", uuid=f"GPU-{n}") for n in range(2)]


HOLD = """
import fcntl, sys, time
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(3600)
"""


@contextlib.contextmanager
def held_by_another(path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_gpu_that_is_held_is_passed_over(gpus, tmp_path):
    with locked(gpus) as first, locked(gpus) as second:
        assert [first.key, second.key] == ["cuda:0", "cuda:1"]
    with held_by_another(tmp_path / "gpuscope-GPU-0.lock"), locked(gpus) as found:
        assert found.key == "cuda:1"
    with locked(gpus) as found:
        assert found.key == "cuda:0", "it is free again"


def test_a_lock_is_waited_for_and_a_killed_process_frees_it(gpus, tmp_path, monkeypatch):
    with locked(gpus[:1]):
        pass
    with held_by_another(tmp_path / "gpuscope-GPU-0.lock") as process:
        monkeypatch.setattr(scale_out.time, "sleep", lambda _: (process.kill(), process.wait()))
        with pytest.warns(UserWarning, match="waiting for cuda:0"), locked(gpus[:1]) as found:
            assert found is gpus[0]


def test_a_simulated_gpu_needs_no_lock(gpus, tmp_path):
    info = gs.open_device("sim:h200", quiet=True).info
    with locked([info]) as one, locked([info]) as two:
        assert one is two is info
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_cannot_be_is_an_error(gpus, tmp_path):
    (tmp_path / "gpuscope-GPU-0.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(GpuscopeError, match="cannot open the lock of GPU GPU-0"), locked(gpus):
        pass


def test_a_pipe_in_the_locks_place_is_an_error_at_once(gpus, tmp_path):
    os.mkfifo(tmp_path / "gpuscope-GPU-0.lock")
    with pytest.raises(GpuscopeError, match="it is no file"), locked(gpus):
        pass


def test_any_gpu_means_one_that_is_free(gpus, monkeypatch):
    opened = {gpu.key: type("Opened", (), {"info": gpu}) for gpu in gpus}
    monkeypatch.setattr(driver, "gpus", lambda: gpus)
    monkeypatch.setattr(scale_out, "_opened", opened.__getitem__)
    with ThreadPoolExecutor(1) as own, locked(gpus[:1]):
        jobs = {0: lambda device: device.info.uuid}
        assert dict(Team(own, "auto").done(jobs, NEVER)) == {0: "GPU-1"}


def test_a_worker_keeps_its_gpu_where_it_can(gpus, monkeypatch):
    opened = {gpu.key: type("Opened", (), {"info": gpu}) for gpu in gpus}
    monkeypatch.setattr(driver, "gpus", lambda: [*gpus])
    monkeypatch.setattr(scale_out, "_opened", opened.__getitem__)

    def used():
        with ThreadPoolExecutor(1) as own:
            return dict(Team(own, "cuda").done({0: lambda device: device.info.key}, NEVER))[0]

    with locked(gpus[:1]):
        assert used() == "cuda:1"
    assert used() == "cuda:1"
    with locked(gpus[1:]):
        assert used() == "cuda:0"


def test_a_sweep_without_workers_locks_its_gpu_too(gpus, monkeypatch):
    def run(*_, **__):
        with locked(gpus) as other:
            return SimpleNamespace(stopped=False, ran_beside=other.key)

    kept = {}
    device = gs.open_device("sim:h200", quiet=True)
    monkeypatch.setattr(device, "info", gpus[0])
    monkeypatch.setattr(series, "run", run)
    plan = Plan(
        gs.experiments.Experiment.from_dict(ONE), "one", lambda made, gpu: (made.ran_beside, gpu)
    )
    Series(device, kept.__setitem__, 1, None, NEVER).run([("one", {0: plan})])
    assert kept == {0: ("cuda:1", "GPU-0")}


def test_an_experiment_of_several_gpus_locks_them_all(gpus, tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "gpus", lambda: gpus)
    device = SimpleNamespace(info=gpus[1])
    with scale_out.all_locked(device, ["cuda:0", "cuda:1"]):
        for gpu in gpus:
            lock = tmp_path / f"gpuscope-{gpu.uuid}.lock"
            with lock.open() as file, pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with scale_out.all_locked(device, []), locked(gpus) as free:
        assert free is gpus[0]


@pytest.mark.parametrize("devices", [["cuda:1"], ["cuda:0", "cuda:1"]])
def test_an_experiment_that_names_gpus_is_refused_on_workers(devices):
    described = gs.experiments.Experiment.from_dict({**ONE, "devices": devices})
    jobs = [("two", {0: Plan(described, "two", lambda _, gpu: gpu)})]
    with ThreadPoolExecutor(1) as own:
        of_workers = Series(Team(own, "cuda"), {}.__setitem__, 1, None, NEVER)
        with pytest.raises(InvalidArgument, match=f"runs on {', '.join(devices)}, but a worker"):
            of_workers.run(jobs)


# -- sweeps on workers ---------------------------------------------------------------------
def test_a_sweep_on_processes_is_the_serial_one(serial, tmp_path):
    seen = []
    result = swept(executor="processes:2", viewer=seen.append, path=tmp_path)
    same(result, serial)
    assert {one["error"] for one in result.rows() if one["partitions.a"] != 7} == {None}
    assert [one.done for one in seen] == list(range(1, 33))
    assert {one.total for one in seen} == {32}
    assert "partitions.a = 16, seed = 2" in {one.setting for one in seen}
    same(load_sweep(tmp_path), serial)


def test_workers_that_are_killed_at_random_lose_nothing(serial):
    rng, kills = random.Random(0), []  # noqa: S311

    def kill(_):
        alive = [process for process in pool._all if process.poll() is None]
        if alive and rng.random() < 0.3:
            kills.append(rng.choice(alive))
            kills[-1].kill()

    with Processes(2, attempts=100) as pool:  # chance may strike one point every time
        same(swept(executor=pool, viewer=kill), serial)
    assert kills


@pytest.mark.parametrize("how", ["stop", "ctrl-c"])
def test_ending_a_sweep_on_workers_keeps_what_is_there_and_it_goes_on(serial, tmp_path, how):
    stop, seen = threading.Event(), []

    def end(progress):
        seen.append(progress)
        if len(seen) == 5:
            if how == "ctrl-c":
                raise KeyboardInterrupt
            stop.set()

    result = swept(executor="processes:2", path=tmp_path, viewer=end, stop=stop)
    assert result.stopped
    kept = len(kept_points(tmp_path))
    assert 4 <= kept < 32
    again = []
    same(swept(executor="processes:1", path=tmp_path, viewer=again.append), serial)
    refused = {"partitions.a = 7, seed = 1", "partitions.a = 7, seed = 2"}
    measured = [one.setting for one in again if one.setting not in refused]
    assert len(measured) == 30 - len([one for one in seen[:kept] if one.setting not in refused])


def test_a_point_that_kills_its_worker_is_a_row_with_its_error():
    class Fatal(Processes):
        def submit(self, fn, job, *rest):
            is_second = 1 in getattr(job, "args", [()])[0]
            return super().submit(fn, die if is_second else job, *rest)

    with Fatal(1) as fatal:
        result = swept({"seed": [1, 2, 3]}, executor=fatal)
    errors = dict(
        zip(*(result.table.column(name).to_pylist() for name in ("seed", "error")), strict=True)
    )
    assert errors[1] is errors[3] is None
    assert "worker was lost" in errors[2]
    assert (result.stopped, result.unmeasured) == (True, 1)
    assert result.why_unmeasured == errors[2]


def test_an_error_of_a_point_is_that_of_the_sweep(tmp_path):
    plan = {**ONE, "workloads": {"w": {**ONE["workloads"]["w"], "kind": "trace", "path": "none"}}}
    plan["workloads"]["w"] = {
        "kind": "trace", "path": str(tmp_path / "none.parquet"), "stream": "s", "repeats": 1,
    }  # fmt: skip
    with pytest.raises(GpuscopeError) as one:
        gs.search.sweep(plan, {"seed": [1]}, "sim:h200")
    with pytest.raises(GpuscopeError) as two:
        gs.search.sweep(plan, {"seed": [1]}, "sim:h200", executor="processes:1")
    assert str(one.value) == str(two.value)


# -- shards -------------------------------------------------------------------------------
def test_shards_meet_in_a_folder(serial, tmp_path):
    first = swept(path=tmp_path, shard="1/3")
    assert not first.stopped
    assert kept_points(tmp_path) == list(range(0, 32, 3))
    swept(path=tmp_path, shard="3/3", executor="processes:1")
    same(swept(path=tmp_path, shard="2/3"), serial)
    same(load_sweep(tmp_path), serial)


@pytest.mark.parametrize("shard", ["", "0/3", "4/3", "1", "a/b", "1/", "-1/3"])
def test_shards_that_are_none(shard, tmp_path):
    with pytest.raises(InvalidArgument, match=r"shard is .* 'i/n'"):
        swept(path=tmp_path, shard=shard)


def test_shards_need_a_folder():
    with pytest.raises(InvalidArgument, match="shard needs path"):
        swept(shard="1/2")


# -- other measurements on workers ---------------------------------------------------------
TWO = {
    "small": {"kind": "gemm", "m": 512, "n": 512, "k": 512, "partition": "a"},
    "large": {"kind": "gemm", "m": 1024, "n": 1024, "k": 1024, "partition": "b"},
    "spin": {"kind": "spin", "duration_us": 20, "partition": "b"},
}


def interference(**options):
    sizes = {"a": 16, "b": "rest"}
    return gs.search.measure_interference("sim:h200", sizes, TWO, repeats=5, rounds=2, **options)


def test_interference_on_workers_is_the_serial_one():
    seen = []
    result = interference(executor="processes:2", viewer=seen.append)
    assert result == interference()
    assert [one.done for one in seen] == list(range(1, 7)), "two rounds of three workloads"


def test_a_workload_and_its_pairs_are_one_job_so_that_one_gpu_runs_them():
    jobs = []

    class Told(ThreadPoolExecutor):
        def submit(self, fn, job, *rest):
            jobs.append([*job.args[0]])
            return super().submit(fn, job, *rest)

    with Told(1) as told:
        interference(executor=told)
    assert [(0, ("small",)), (0, ("small", "large")), (0, ("small", "spin"))] in jobs
    assert all(len({(number, names[0]) for number, names in turns}) == 1 for turns in jobs)


def test_interference_that_is_stopped_keeps_what_there_is():
    stop = threading.Event()
    result = interference(executor="processes:1", viewer=lambda _: stop.set(), stop=stop)
    assert result.stopped


def tuned(**options):
    gemm = {"kind": "gemm", "m": 1024, "n": 1024, "k": 1024, "repeats": 5}
    both = {
        "name": "both", "partitions": {"a": 16, "b": "rest"},
        "streams": {"s": {"partition": "a"}, "t": {"partition": "b"}},
        "workloads": {
            "small": {**gemm, "stream": "s"},
            "load": {**gemm, "m": 4096, "stream": "t", "background": True, "max_queued": 4},
        },
    }  # fmt: skip
    sizes, limit = [8, 7, 32, 64, 96], {"small.kernel_median_us": "<= 15"}
    return gs.tune(both, {"partitions.a": sizes}, "load.tflop_per_s", limit, "sim:h200", **options)


def test_a_tuning_on_workers_measures_whole_turns_and_finds_the_same(tmp_path):
    seen = []
    result = tuned(executor="processes:2", viewer=seen.append, path=tmp_path)
    serial = tuned()
    assert result.best.label == serial.best.label
    kept = [
        {one.label for one in each.settings if one.verdict in {"best", "equal"}}
        for each in (result, serial)
    ]  # of the others, whole turns tell more than single runs
    assert kept[0] == kept[1]
    assert {"turn 0", "turn 1", "turn 2"} <= {one.setting for one in seen}
    counts = [len(one.values.get("load.tflop_per_s", ())) for one in result.settings]
    assert max(counts) <= 7
    again = []
    assert tuned(path=tmp_path, viewer=again.append) == result
    assert again == [], "nothing was measured again"


def test_a_setting_that_fails_on_a_worker_is_out(monkeypatch):
    class Failing(ThreadPoolExecutor):
        def submit(self, fn, job, *rest):
            return super().submit(fn, partial(spoiled, job), *rest)

    with Failing(1) as failing:
        result = tuned(executor=failing)
    errors = {one.label: one.error for one in result.settings}
    assert errors.pop("a = 64") == "it fails here"
    assert not any(error for label, error in errors.items() if label != "a = 7")


def spoiled(job, device):
    points = job(device)
    for number, point in points.items():
        if point.rows[0].get("partitions.a") == 64:
            points[number] = GpuscopeError("it fails here")
    return points


def test_workers_of_a_tuning_have_the_gpu_that_was_opened_here():
    class Other(ThreadPoolExecutor):
        def submit(self, fn, job, name, attempt):
            return super().submit(fn, job, "sim:h100", attempt)

    with Other(1) as other, pytest.raises(GpuscopeError, match="GPUs that differ"):
        tuned(executor=other)


# -- Dask ---------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed")
    dask = pytest.importorskip("dask")
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        made = distributed.LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=None)
        yield made
        with contextlib.suppress(TimeoutError):  # old versions wait for workers that start again
            made.close(timeout=30)


@pytest.mark.no_cover
def test_many_points_on_dask_whose_workers_are_killed_at_random(cluster, tmp_path, monkeypatch):
    # Chance may strike one point every time.
    monkeypatch.setattr(cluster.scheduler, "allowed_failures", 100)
    rng, killed = random.Random(1), []  # noqa: S311
    spin = {"kind": "spin", "duration_us": 1, "stream": "s", "repeats": 2, "warmup": 0}
    short = {**ONE, "workloads": {"w": spin}}
    grid = {"seed": [*range(20)], "partitions.a": [*range(8, 81, 8)]}
    serial = gs.search.sweep(short, grid, "sim:h200")
    assert len(serial.table) == 200

    def kill(progress):
        if progress.done % 25 == 15:
            alive = [nanny.pid for nanny in cluster.workers.values() if nanny.pid]
            with contextlib.suppress(ProcessLookupError, IndexError):  # those that start again
                os.kill(rng.choice(alive), signal.SIGKILL)
                killed.append(progress.done)

    with cluster.get_client() as client:
        result = gs.search.sweep(
            short, grid, "sim:h200", executor=client.get_executor(), viewer=kill, path=tmp_path
        )
    same(result, serial)
    assert len(killed) > 5
    same(load_sweep(tmp_path), serial)


def test_an_address_of_dask_is_an_executor(cluster, serial):
    address = cluster.scheduler_address.removeprefix("tcp://")
    same(swept(executor=f"dask://{address}"), serial)


def test_where_no_scheduler_answers_the_address_is_named():
    pytest.importorskip("distributed")  # sets its own configuration, which has to outlast the block
    dask = pytest.importorskip("dask")
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "100ms"}),
        pytest.raises(GpuscopeError, match=r"no scheduler of Dask answers at '127.0.0.1:1'"),
    ):
        swept(executor="dask://127.0.0.1:1")


SCHEDULER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    cluster = LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=None
    )
    print(cluster.scheduler_address, flush=True)
    sys.stdin.read()
"""


def test_a_scheduler_that_dies_ends_a_sweep_with_what_there_is(serial, tmp_path, caplog):
    distributed = pytest.importorskip("distributed")
    dask = pytest.importorskip("dask")
    (tmp_path / "cluster.py").write_text(SCHEDULER)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "cluster.py")], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    done = []

    def kill(progress):
        done.append(progress)
        process.kill()

    with process, dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        address = process.stdout.readline().strip()
        with distributed.Client(address) as client:
            result = swept(executor=client.get_executor(), viewer=kill, path=tmp_path / "points")
        process.kill()
    errors = [error for error in result.table.column("error").to_pylist() if error]
    assert len(done) < len(serial.table) == len(result.table)
    assert len(errors) >= len(result.table) - len(done) > 0
    assert result.stopped
    assert result.unmeasured == len(errors), "points without numbers are not finished"
    assert [record for record in caplog.records if record.exc_info] == [], "no tracebacks"
    same(swept(path=tmp_path / "points"), serial)


def test_a_point_that_kills_its_worker_of_dask_is_a_row_with_its_error(cluster):
    with cluster.get_client() as client:
        own = client.get_executor()

        class Fatal(Executor):
            def submit(self, fn, job, *rest):
                point = getattr(job, "args", ())
                return own.submit(fn, die if [*point[:1]] == [1] else job, *rest)

        jobs = {number: partial(named, number) for number in range(3)}
        found = dict(Team(Fatal(), "sim:h200").done(jobs, NEVER))
    assert isinstance(found[1], WorkerLost)
    assert found[0] == (0, "sim:h200")
    assert found[2] == (2, "sim:h200")
