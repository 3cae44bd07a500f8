"""Hardware counters: the process that samples them, as Python starts and reads it; simulated ones."""

from __future__ import annotations

import math
import os
import stat
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.errors import GpuscopeError
from gpuscope.record import counters
from gpuscope.record.counters import CounterSampler
from gpuscope.record.rows import Rows
from gpuscope.trace.counters import BUSY, LOST, MOVED, READ, TENSOR, WRITTEN, samples_of

FAKE = """#!{python}
import os, signal, struct, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
libraries, every_ns, path = sys.argv[1:]
assert "CUDA_INJECTION64_PATH" not in os.environ
file = open(path, "wb", buffering=0)
file.write(b"GSPMSMP1" + struct.pack("<II", 48, 0))
{said}
"""
RECORD = struct.Struct("<QQdddd")
RUNS = """
print("ready 132 GH100 busy tensor dram", flush=True)
for number in range({count}):
    file.write(struct.pack("<QQdddd", 1000 + 100 * number, 1100 + 100 * number, number, 1, 200, 400))
sys.stdin.read()
file.write(struct.pack("<QQdddd", 9000, 9100, 7, 1, 200, 400))
print("ended {count} 0 1", flush=True)
"""


@pytest.fixture
def program(monkeypatch, tmp_path):
    """Make a program that stands for the one that samples, and says this."""

    def make(said):
        path = tmp_path / "sampler"
        path.write_text(FAKE.format(python=sys.executable, said=said))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(counters, "program", lambda _: path)
        monkeypatch.setattr(counters, "library_path", lambda: Path("/lib/libcupti.so.13"))
        return path

    return make


def sampled(gpus=None, begin_ns=0):
    """Sample until it has begun, end it, and return the rows and the notes."""
    sampler = CounterSampler(100_000)
    sampler.begin(gpus or {0: "GPU-a"}, wait=True)
    sampler.close()
    rows = Rows()
    sampler.begin_reading()
    sampler.drain(rows, begin_ns)
    return [row for batch in rows.batches for row in batch.spans.to_pylist()], sampler.notes


def values(rows, name):
    return [row["value"] for row in rows if row["name"] == name]


def test_what_the_process_wrote_until_its_end_becomes_rows(program):
    program(RUNS.format(count=3))
    rows, notes = sampled()
    assert notes == []
    assert values(rows, BUSY) == [0, 1, 2, 7]
    assert values(rows, TENSOR) == [1] * 4
    assert values(rows, READ) == [2.0] * 4  # 200 bytes in 100 ns
    assert values(rows, WRITTEN) == [4.0] * 4
    assert {(row["kind"], row["device"], row["device_uuid"], row["source"]) for row in rows} == {
        ("counter", 0, "GPU-a", "cupti")
    }
    assert len({row["id"] for row in rows}) == len(rows)


def test_samples_from_before_the_recording_are_left_out(program):
    program(RUNS.format(count=3))
    rows, _ = sampled(begin_ns=1150)
    assert values(rows, BUSY) == [2, 7]


def test_each_gpu_has_a_process_and_sees_no_other(program):
    said = (
        'file.write(struct.pack("<QQdddd", 1, 2, len(os.environ["CUDA_VISIBLE_DEVICES"]), 0, 0, 0))'
    )
    program(f'print("ready 132 GH100 busy", flush=True)\n{said}\nsys.stdin.read()')
    rows, _ = sampled({0: "GPU-a", 1: "GPU-long"})
    assert [(row["device"], row["value"]) for row in rows if row["name"] == BUSY] == [
        (0, 5),
        (1, 8),
    ]


def test_a_gap_is_a_row_and_what_was_not_had_is_none(program):
    nan = 'float("nan")'
    program(
        'print("ready 132 GH100 busy dram", flush=True)\n'
        f'file.write(struct.pack("<QQdddd", 0, 100, 4, {nan}, 0, 0))\n'
        f'file.write(struct.pack("<QQdddd", 100, 900, {nan}, {nan}, {nan}, {nan}))\n'
        'sys.stdin.read()\nprint("ended 1 1 1", flush=True)'
    )
    rows, notes = sampled()
    assert values(rows, BUSY) == [4]
    assert values(rows, TENSOR) == []
    assert [(row["start_ns"], row["end_ns"]) for row in rows if row["name"] == LOST] == [(100, 900)]
    assert notes == ["counters of cuda:0 without tensor pipes"]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("refused administrators", "RmProfilingAdminOnly = 1"),
        ("refused taken", "samples this GPU"),
        ("refused unsupported cuptiPmSamplingEnable", "cuptiPmSamplingEnable"),
        ("refused failed no room", "no room"),
        ("nothing that is known", "ended"),
    ],
)
def test_a_refusal_is_a_note_and_nothing_else_is_lost(program, said, told):
    program(f"print({said!r}, flush=True)\nsys.exit(1)")
    rows, (note,) = sampled()
    assert rows == []
    assert told in note


def test_a_process_that_cannot_start_is_a_note(monkeypatch, program):
    program("").unlink()
    assert len(sampled()[1]) == 1
    monkeypatch.setattr(counters, "program", lambda _: None)
    assert "not compiled" in sampled()[1][0]


def test_a_process_that_does_not_end_is_ended(monkeypatch, program):
    program('print("ready 132 GH100 busy", flush=True)\nwhile True: sys.stdin.read()')
    monkeypatch.setattr(counters, "_ENDS_S", 0.2)
    sampler = CounterSampler(100_000)
    sampler.begin({0: "GPU-a"}, wait=True)
    (process,) = sampler._processes.values()
    number = process._process.pid
    sampler.close()
    assert not Path(f"/proc/{number}").exists()
    assert process.cut_short


def test_a_forked_child_holds_nothing_up(program):
    program(
        'signal.signal(signal.SIGTERM, signal.SIG_DFL)\nprint("ready 132 GH100 busy", flush=True)\n'
        "while True: sys.stdin.read()"
    )
    sampler = CounterSampler(100_000)
    sampler.begin({0: "GPU-a"}, wait=True)
    (process,) = sampler._processes.values()
    input_of_child = os.dup(process._process.stdin.fileno())
    sampler.close()
    os.close(input_of_child)
    assert "was ended" not in process.cut_short


def test_our_own_sampler_is_not_who_holds_the_counters(program, monkeypatch):
    path = program('print("refused taken busy", flush=True)\nsys.exit(1)')
    ours = path.rename(path.with_name(f"ours_{os.getpid()}"))
    monkeypatch.setattr(counters, "program", lambda _: ours)
    monkeypatch.setattr(counters, "_OTHERS", (ours.name,))  # as other tests start real ones
    assert sampled()[1] == ["no counters of cuda:0: another process samples this GPU"]


def test_what_cannot_start_leaves_no_file(program, monkeypatch, tmp_path):
    program("").unlink()
    monkeypatch.setattr(counters.tempfile, "tempdir", str(tmp_path))
    assert len(sampled()[1]) == 1
    assert [*tmp_path.glob("gpuscope-counters-*")] == []


def test_a_process_that_is_killed_leaves_what_it_wrote(program):
    program(RUNS.format(count=2) + "\nimport signal")
    sampler = CounterSampler(100_000)
    sampler.begin({0: "GPU-a"}, wait=True)
    (process,) = sampler._processes.values()
    file = process._file
    while os.fstat(file).st_size < 16 + 2 * RECORD.size:
        process.listen(0.01)
    process._process.kill()
    sampler.close()
    rows = Rows()
    sampler.begin_reading()
    sampler.drain(rows, 0)
    (batch,) = rows.batches
    assert values(batch.spans.to_pylist(), BUSY) == [0, 1]
    assert process.cut_short


def test_a_record_that_is_not_whole_waits(program, tmp_path):
    program('print("ready 132 GH100 busy", flush=True)\nsys.stdin.read()')
    sampler = CounterSampler(100_000)
    sampler.begin({0: "GPU-a"}, wait=True)
    (process,) = sampler._processes.values()
    record = RECORD.pack(0, 10, 1.0, 0.0, 0.0, 0.0)
    os.pwrite(process._file, record[:20], 16)
    assert len(process.new()) == 0
    undo = sampler.begin_reading()
    os.pwrite(process._file, record, 16)
    undo()
    assert process.new()["sms"].tolist() == [1.0]
    sampler.close()


def test_nothing_is_started_unless_asked(program):
    program("raise AssertionError")
    sampler = CounterSampler(0)
    sampler.begin({0: "GPU-a"}, wait=True)
    assert sampler._processes == {}


@pytest.mark.parametrize("length", ["1 us", "1 s", 0.5])
def test_samples_have_a_length_that_can_be_had(length):
    with pytest.raises(GpuscopeError, match="10 µs to 10 ms"), gs.profile(counters=length):
        pass


# -- a simulated GPU ---------------------------------------------------------------------------
def simulated(work, **options):
    gpu = gs.open_device("sim:h200", quiet=True)
    with gpu.carve({"a": 16, "b": 32}) as parts:
        streams = [parts[name].create_stream() for name in "ab"]
        with gs.profile(gpu, counters=True, **options) as recording:
            work(gpu, *streams)
            gpu.synchronize()
    return recording.trace


def test_simulated_busy_sms_are_those_that_blocks_held():
    def work(gpu, a, b):
        few, many = (gs.workloads.spin_kernel(gpu, name) for name in ("few", "many"))
        gpu.synchronize()
        a.launch(few, 400_000, grid=3, block=32)
        b.launch(many, 900_000, grid=20, block=32)

    trace = simulated(work)
    (samples,) = samples_of(trace)
    for name, count in (("few", 3), ("many", 20)):
        kernels = trace.where(kind="kernel", name=name)
        start, end = kernels.array("start_ns")[-1], kernels.array("end_ns")[-1]
        inside = (samples.starts >= start) & (samples.ends <= end)
        assert samples.lengths[inside].sum() == end - start
        assert samples.values[BUSY][inside].min() >= count
    sm_ns = float((samples.values[BUSY] * samples.lengths).sum())
    assert math.isclose(sm_ns, 3 * 400_000 + 20 * 900_000, rel_tol=0.02)
    assert samples.values[BUSY].max() == 23


def test_simulated_bytes_are_those_that_copies_move():
    nbytes = 1 << 27

    def work(gpu, a, _b):
        a.copy(gpu.empty((nbytes,), np.uint8), gpu.empty((nbytes,), np.uint8))

    trace = simulated(work)
    (samples,) = samples_of(trace)
    moved = float((samples.values[MOVED] * samples.lengths).sum())
    assert math.isclose(moved, 2 * nbytes, rel_tol=1e-3)  # read, and written


def test_without_being_asked_nothing_counts():
    gpu = gs.open_device("sim:h200", quiet=True)
    with gpu.create_stream() as stream, gs.profile(gpu) as recording:
        stream.launch(gs.workloads.spin_kernel(gpu), 5_000, grid=1, block=32)
        stream.synchronize()
    assert samples_of(recording.trace) == ()


def test_a_recording_that_keeps_the_latest_keeps_their_counters():
    def work(gpu, a, _b):
        kernel = gs.workloads.spin_kernel(gpu)
        for _ in range(50):
            a.launch(kernel, 1_000_000, grid=3, block=32)
            a.synchronize()

    trace = simulated(work, keep="10 ms")
    (samples,) = samples_of(trace)
    assert samples.ends[-1] - samples.starts[0] < 20_000_000
    assert samples.values[BUSY].max() == 3
