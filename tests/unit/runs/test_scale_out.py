"""Jobs on executors: lost, slow and differing workers; locks of GPUs; sweeps on workers."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

import gpuscope as gs
from gpuscope.device.cuda import driver
from gpuscope.errors import GpuscopeError, InvalidArgument, MissingDependency, WorkerLost
from gpuscope.runs import execution, scale_out
from gpuscope.runs.execution import Series
from gpuscope.runs.pool import Processes
from gpuscope.runs.scale_out import Team, locked
from gpuscope.runs.sweeps import load_sweep

ONE = {
    "name": "one", "alone_repeats": 0, "partitions": {"a": 8}, "streams": {"s": {"partition": "a"}},
    "workloads": {
        "w": {"kind": "gemm", "m": 256, "n": 256, "k": 256, "stream": "s", "repeats": 5},
    },
}  # fmt: skip
GRID = {"partitions.a": [8, 7, *range(16, 121, 8)], "seed": [1, 2]}
NEVER = threading.Event()


def swept(grid=GRID, **options):
    return gs.runs.sweep(ONE, grid, "sim:h200", **options)


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


def die(device):
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(path, device):
    with contextlib.suppress(FileExistsError):
        path.touch(exist_ok=False)
        die(device)
    return "done"


def hang_once(path, device):
    with contextlib.suppress(FileExistsError):
        path.touch(exist_ok=False)
        time.sleep(3600)
    return "done"


def fail(kind, device):
    raise kind("x", "y")


class Local(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one}, {two}")  # which does not unpickle


# -- workers ------------------------------------------------------------------------------
@pytest.fixture
def pool():
    with Processes(2) as own:
        yield own
        started = own._all
    assert all(process.poll() is not None for process in started)


def test_each_job_is_done_once_on_the_device_that_was_named(pool):
    team = Team(pool, "sim:h100")
    jobs = {n: partial(number_of, n) for n in range(5)}
    found = sorted(team.done(jobs, NEVER))
    assert found == [(n, (n, "sim:h100", "")) for n in range(5)]
    assert team.kind().layout == gs.open_device("sim:h100", quiet=True).layout


def test_a_lost_workers_job_is_done_again(pool, tmp_path):
    team = Team(pool, "sim:h200")
    jobs = {"dies": partial(die_once, tmp_path / "dies"), "lives": partial(number_of, 1)}
    found = dict(team.done(jobs, NEVER))
    assert found == {"dies": "done", "lives": (1, "sim:h200", "")}


def test_a_job_that_always_ends_its_worker_is_given_up_and_no_other_is(pool):
    jobs = {0: die, **{n: partial(number_of, n) for n in range(1, 6)}}
    found = dict(Team(pool, "sim:h200").done(jobs, NEVER))
    assert isinstance(found.pop(0), WorkerLost)
    assert [number for number, *_ in found.values()] == sorted(found)
    assert len(pool._all) >= 3, "one for each time that it was tried"


def test_a_slow_workers_job_is_begun_again_elsewhere(pool, tmp_path, monkeypatch):
    monkeypatch.setattr(scale_out, "_PATIENCE_S", 0.0)
    jobs = {"quick": partial(number_of, 1), "slow": partial(hang_once, tmp_path / "slow")}
    found = [*Team(pool, "sim:h200").done(jobs, NEVER)]
    assert sorted(found) == [("quick", (1, "sim:h200", "")), ("slow", "done")]


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


def test_an_executor_that_is_shut_down_is_named():
    own = ThreadPoolExecutor(1)
    own.shutdown()
    with pytest.raises(WorkerLost, match="takes no more jobs"):
        swept(executor=own)


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
        gs.runs.sweep(ONE, GRID, gpu, executor="processes:1")


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


def test_any_gpu_means_one_that_is_free(gpus, monkeypatch):
    opened = {gpu.key: type("Opened", (), {"info": gpu}) for gpu in gpus}
    monkeypatch.setattr(driver, "gpus", lambda: gpus)
    monkeypatch.setattr(scale_out, "_opened", opened.__getitem__)
    with ThreadPoolExecutor(1) as own, locked(gpus[:1]):
        jobs = {0: lambda device: device.info.uuid}
        assert dict(Team(own, "auto").done(jobs, NEVER)) == {0: "GPU-1"}


def test_a_sweep_without_workers_locks_its_gpu_too(gpus, monkeypatch):
    def run(*_, **__):
        with locked(gpus) as other:
            return SimpleNamespace(stopped=False, ran_beside=other.key)

    monkeypatch.setattr(execution, "run", run)
    series = Series([], SimpleNamespace(info=gpus[0]), None, None)
    series.run(gs.runs.Experiment.from_dict(ONE), "one", 0)
    assert series.runs[0].ran_beside == "cuda:1"


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


def test_workers_that_are_killed_at_random_lose_nothing(serial, pool, monkeypatch):
    monkeypatch.setattr(scale_out, "_ATTEMPTS", 100)  # chance may strike one point every time
    rng, kills = random.Random(0), []  # noqa: S311

    def kill(_):
        alive = [process for process in pool._all if process.poll() is None]
        if alive and rng.random() < 0.3:
            kills.append(rng.choice(alive))
            kills[-1].kill()

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
    kept = len(list(tmp_path.iterdir()))
    assert 4 <= kept < 32
    again = []
    same(swept(executor="processes:1", path=tmp_path, viewer=again.append), serial)
    refused = {"partitions.a = 7, seed = 1", "partitions.a = 7, seed = 2"}
    measured = [one.setting for one in again if one.setting not in refused]
    assert len(measured) == 30 - len([one for one in seen[:kept] if one.setting not in refused])


def test_a_point_that_kills_its_worker_is_a_row_with_its_error():
    class Fatal(Processes):
        def submit(self, fn, job, *rest):
            point = getattr(job, "args", ())
            return super().submit(fn, die if point[:1] == (1,) else job, *rest)

    with Fatal(1) as fatal:
        result = swept({"seed": [1, 2, 3]}, executor=fatal)
    errors = dict(
        zip(*(result.table.column(name).to_pylist() for name in ("seed", "error")), strict=True)
    )
    assert errors[1] is errors[3] is None
    assert "worker was lost" in errors[2]


def test_an_error_of_a_point_is_that_of_the_sweep(tmp_path):
    plan = {**ONE, "workloads": {"w": {**ONE["workloads"]["w"], "kind": "trace", "path": "none"}}}
    plan["workloads"]["w"] = {
        "kind": "trace", "path": str(tmp_path / "none.parquet"), "stream": "s", "repeats": 1,
    }  # fmt: skip
    with pytest.raises(GpuscopeError) as one:
        gs.runs.sweep(plan, {"seed": [1]}, "sim:h200")
    with pytest.raises(GpuscopeError) as two:
        gs.runs.sweep(plan, {"seed": [1]}, "sim:h200", executor="processes:1")
    assert str(one.value) == str(two.value)


# -- shards -------------------------------------------------------------------------------
def test_shards_meet_in_a_folder(serial, tmp_path):
    first = swept(path=tmp_path, shard="1/3")
    assert not first.stopped
    assert len(list(tmp_path.iterdir())) == 11
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
