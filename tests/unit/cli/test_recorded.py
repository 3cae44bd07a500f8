"""What ``gpuscope record`` says of processes that ended, were killed, or go on, and its status."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict

import pytest

import gpuscope as gs
from gpuscope.cli import recorded
from gpuscope.cli.recorded import Wanted, publish
from gpuscope.experiments.recorded import VARIABLE, ProcessFacts
from gpuscope.trace.facts import RecordingCost
from gpuscope.trace.store import save_trace

GONE = 2**22 + 1
"""The number of no process: Linux has none so high."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The file of a recording."""
    gpu = gs.open_device("sim:h200", quiet=True)
    with gs.profile(gpu) as recording, gpu.create_stream() as stream:
        gs.Gemm(gpu, m=8, n=8, k=8).execute(stream=stream)
    return save_trace(recording.trace, tmp_path_factory.mktemp("saved") / "one.parquet")


@pytest.fixture
def published(saved, tmp_path, capsys, monkeypatch):
    """Publish what processes said; returns whether all is there, and what is told."""
    monkeypatch.setattr(recorded, "_OTHERS_S", 0.0)

    def call(*every, order="{}", traces=(), costs=()):
        work = tmp_path / "out.unfinished"
        work.mkdir()
        for number, facts in enumerate(every):
            (work / f"1-{number}.json").write_text(json.dumps(asdict(facts)))
        for name in traces:
            shutil.copy(saved, work / name)
        for name, cost in zip(traces, costs, strict=False):
            save_trace(gs.load_trace(saved).with_metadata(recording_cost=cost), work / name)
        wanted = Wanted(work, tmp_path / "out", ".parquet", GONE, order, report=False)
        return publish(wanted), " ".join(capsys.readouterr().err.split()), work

    return call


def test_a_process_that_was_killed_early_is_lost_and_said_to_be(published):
    is_complete, told, work = published(ProcessFacts(GONE, "early", at_ns=1))
    assert not is_complete
    assert f"process {GONE} (early) was killed or crashed before anything" in told
    assert "nothing was recorded" not in told, "it used a device"
    assert not work.exists() or [*work.iterdir()]


def test_a_trace_that_could_not_be_written_is_no_crash(published, tmp_path):
    lost = ProcessFacts(
        GONE, "full", ended=True, at_ns=1, notes=["no room"], lost=["1-0-1.parquet"]
    )
    is_complete, told, _ = published(lost, traces=["1-0-1.parquet"])
    assert not is_complete
    assert "(full): no room" in told
    assert "but for what had been written before: 1-0-1.parquet" in told
    assert "killed" not in told
    (path,) = (tmp_path / "out").glob("*.parquet")
    missing = gs.load_trace(path).metadata.incomplete
    assert "could not be written" in missing
    assert "killed" not in missing


def test_a_whole_trace_is_all_and_one_beside_a_killed_process_is_not(published):
    whole = ProcessFacts(GONE, "whole", ended=True, at_ns=1)
    is_complete, told, work = published(whole, traces=["1-0-1.parquet"])
    assert is_complete
    assert "not all" not in told
    assert not work.exists()
    killed = ProcessFacts(GONE, "killed", at_ns=1)
    is_complete, told, _ = published(whole, killed, traces=["1-0-1.parquet"])
    assert not is_complete
    assert "not all is recorded of 1 process" in told


def test_what_there_was_so_far_of_a_process_without_a_gpu_goes(published):
    """Such as torchrun, which removes its own journal as it ends."""
    whole = ProcessFacts(GONE, "whole", ended=True, at_ns=1)
    is_complete, told, work = published(
        whole, traces=["1-0-1.parquet", "1-7-1.so-far.parquet", "1-0-1.so-far.parquet"]
    )
    assert is_complete
    assert "stays" not in told
    assert not work.exists()


@pytest.mark.parametrize("count", [3, 8])
def test_the_last_line_says_what_recording_cost_the_process_that_it_cost_most(published, count):
    every = [ProcessFacts(GONE, str(number), ended=True, at_ns=1) for number in range(count)]
    costs = [RecordingCost(500, 20, 0.01, 0.001)] * (count - 2)
    costs += [RecordingCost(1230, 40, 0.061, 0.019), None]
    names = [f"1-{number}-1.parquet" for number in range(count)]
    _, told, _ = published(*every, traces=names, costs=costs)
    assert told.endswith(
        "6.1 % ± 1.9 of the thread that launched most: 1.23 µs ± 0.04 a call of CUDA's"
    )
    _, told, _ = published(every[0], traces=["1-0-1.parquet"])
    assert "recording cost" not in told


def test_ctrl_c_while_looking_for_what_happened_loses_nothing(published, tmp_path, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(recorded, "findings_alone", interrupted)
    both = [ProcessFacts(GONE, name, ended=True, at_ns=1) for name in ("a", "b")]
    is_complete, told, work = published(*both, traces=["1-0-1.parquet", "1-1-1.parquet"])
    assert is_complete
    assert not work.exists()
    assert len([*(tmp_path / "out").glob("*.parquet")]) == 2
    assert told.count("gpuscope: wrote ") == 2
    assert told.count("what was found is not shown") == 1, "one Ctrl-C ends all of it"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists processes")
def test_a_process_that_goes_on_and_has_recorded_nothing_yet_is_named(published):
    order = json.dumps({"folder": "of this test"})
    with subprocess.Popen(
        [sys.executable, "-ISc", "print(flush=True); input()"], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, env={**os.environ, VARIABLE: order},
    ) as process:  # fmt: skip
        process.stdout.readline()
        is_complete, told, work = published(order=order)
        process.stdin.close()
    assert not is_complete
    assert f"process {process.pid} " in told
    assert "still runs" in told
    assert "nothing was recorded" not in told
    assert work.exists(), "its trace goes there"


def test_where_nothing_could_be_written_no_process_is_said_to_have_used_no_gpu(
    published, monkeypatch
):
    def full(path, _):
        raise gs.errors.GpuscopeError(f"could not write {path.name!r}: No space left on device")

    monkeypatch.setattr(recorded, "write_text", full)
    is_complete, told, _ = published()
    assert not is_complete
    assert "nothing was recorded: could not write" in told
    assert "no process" not in told
