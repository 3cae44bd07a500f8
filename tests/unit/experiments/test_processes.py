"""What the processes of a recorded program do, in this one: the driver's call, interrupts."""

from __future__ import annotations

import atexit
import ctypes
import itertools
import sys

import pytest
from interrupting import Interrupt

import gpuscope as gs
from gpuscope import _stacks
from gpuscope._resource_limits import raised_limits
from gpuscope.experiments import processes
from gpuscope.experiments.recorded import RecordingOrder
from gpuscope.experiments.so_far import read_facts


@pytest.mark.skipif(not processes.INJECTION.exists(), reason="it is not compiled")
def test_the_driver_s_first_call_reaches_the_recorder(monkeypatch):
    called = []
    monkeypatch.setattr(processes, "begin_cuda", lambda: called.append(processes))
    load = ctypes.CDLL(str(processes.INJECTION)).InitializeInjection
    assert (load(), called) == (1, [processes])
    monkeypatch.delitem(
        sys.modules, "gpuscope.experiments.processes"
    )  # a Python that is not recorded
    assert (load(), called) == (1, [processes])


def test_interrupts_of_the_end_take_no_trace_away(tmp_path):
    for place in itertools.count(1):
        folder = tmp_path / str(place)
        folder.mkdir()
        recorder = processes._Recorder(RecordingOrder(str(folder)))
        gpu = gs.open_device("sim:h200", quiet=True)
        recorder.opened(gpu)
        with gpu.create_stream() as stream, gs.Gemm(gpu, m=8, n=8, k=8) as gemm:
            gemm.execute(stream=stream)
        with Interrupt("experiments/processes.py", at=place) as interrupt:
            recorder.finish()
        recorder.finish()  # what struck before it began
        atexit.unregister(recorder.finish)
        (facts,) = read_facts(folder)[0].values()
        (file,) = facts.traces
        assert facts.ended, place
        assert gs.load_trace(folder / file).kind_counts()["kernel"] == 1, place
        if not interrupt.raised:
            break
    assert place > 30


def test_a_trace_that_cannot_be_written_is_lost_and_its_process_has_ended(tmp_path, monkeypatch):
    recorder = processes._Recorder(RecordingOrder(str(tmp_path)))
    gpu = gs.open_device("sim:h200", quiet=True)
    recorder.opened(gpu)
    with gpu.create_stream() as stream, gs.Gemm(gpu, m=8, n=8, k=8) as gemm:
        gemm.execute(stream=stream)

    def full(*_):
        raise gs.errors.GpuscopeError("No space left on device")

    monkeypatch.setattr("gpuscope.trace.store.save_trace", full)
    recorder.finish()
    atexit.unregister(recorder.finish)
    (facts,) = read_facts(tmp_path)[0].values()
    assert (facts.ended, len(facts.lost)) == (True, 1)
    assert "No space left" in facts.notes[0]


def test_limits_that_a_program_lowered_do_not_keep_its_trace_from_being_written():
    resource = pytest.importorskip("resource")
    which = resource.RLIMIT_FSIZE
    before = resource.getrlimit(which)
    hard = before[1]
    lowered = 2**40, hard
    try:
        resource.setrlimit(which, lowered)
        with raised_limits():
            assert resource.getrlimit(which) == (hard, hard)
        assert resource.getrlimit(which) == lowered
    finally:
        resource.setrlimit(which, before)


@pytest.mark.skipif(bool(_stacks.missing()), reason=_stacks.missing() or "-")
@pytest.mark.parametrize(
    ("kinds", "sampled"),
    [
        (("cpu", "sim:h200"), (True, False)),
        (("cpu", "cpu"), (True, False)),  # one recording has all threads
        (("sim:h200", "cpu"), (False, True)),
    ],
)
def test_stacks_are_sampled_by_one_recording_whose_time_is_the_threads(tmp_path, kinds, sampled):
    recorder = processes._Recorder(RecordingOrder(str(tmp_path), sample=1000))
    gpus = [gs.open_device(kind, quiet=True) for kind in kinds]
    for gpu in gpus:
        recorder.opened(gpu)
        with gpu.create_stream() as stream, gs.Gemm(gpu, m=8, n=8, k=8) as gemm:
            gemm.execute(stream=stream)
    recordings = [*recorder._recordings.values()]
    recorder.finish()
    atexit.unregister(recorder.finish)
    every = [recording.trace.metadata for recording in recordings]
    assert [bool(metadata.sampling) for metadata in every] == [*sampled]
    assert not any("stacks" in note for metadata in every for note in metadata.notes)
