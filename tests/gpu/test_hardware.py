"""What only a real GPU can show: where blocks ran, whose memory it was, what the driver says."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.experiments.carving_code import carving_code
from gpuscope.experiments.execution import run
from gpuscope.experiments.setting import StreamSpec
from gpuscope.workloads.spin import Spin

pytestmark = pytest.mark.gpu

SMID = r"""
extern "C" __global__ void where(unsigned* seen) {
  unsigned sm; asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  if (!threadIdx.x) atomicAdd(seen + sm, 1u);
}
"""


@pytest.fixture
def gpu():
    device = gs.open_device("cuda:0", quiet=True)
    yield device
    device.close()


def blocks_by_sm(gpu, stream, blocks=20_000):
    kernel = gpu.compile(SMID, "where")
    seen = gpu.asarray(np.zeros(1024, np.uint32))
    stream.launch(kernel, seen, grid=blocks, block=64)
    stream.synchronize()
    counts = gpu.to_host(seen)
    assert counts.sum() == blocks
    return {int(sm) for sm in np.nonzero(counts)[0]}


def test_blocks_stay_on_the_sms_of_their_partition(gpu):
    with gpu.carve({"a": 64, "b": 32, "c": 16, "d": 8, "e": "rest"}) as parts:
        for part in parts.values():
            with part.create_stream() as stream:
                assert blocks_by_sm(gpu, stream) == set(part.sm_ids)
        with gpu.create_stream() as whole:
            assert len(blocks_by_sm(gpu, whole)) == gpu.sm_count


NAP = r"""
extern "C" __global__ void nap(unsigned* seen, long long duration_ns) {
  unsigned sm; asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  if (!threadIdx.x) atomicAdd(seen + sm, 1u);
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  while ((long long)(now - start) < duration_ns);
}
"""


def beside(gpu, workloads):
    """Let each workload run on a stream of its own at the same time; returns the kernel spans."""
    streams = [gpu.create_stream() for _ in workloads]
    for work, stream in zip(workloads, streams, strict=True):
        work(stream)
        stream.synchronize()
    with gs.profile(gpu) as recording:
        for work, stream in zip(workloads, streams, strict=True):
            work(stream)
        gpu.synchronize()
    for stream in streams:
        stream.close()
    kernels = recording.trace.where(kind="kernel")
    return sorted(zip(kernels.array("start_ns"), kernels.array("end_ns"), strict=True))


@pytest.mark.gpu_alone("needs blocks of two kernels on the SMs at a time")
@pytest.mark.parametrize("key", ["cuda:0", "sim:h200"])
def test_a_spin_of_a_block_an_sm_leaves_no_room_beside_it(key):
    with contextlib.closing(gs.open_device(key, quiet=True)) as device:
        spins = [Spin(device, duration_ns=2_000_000, blocks=device.sm_count) for _ in range(2)]
        (_, end), (start, _) = beside(
            device, [lambda s, spin=spin: spin.execute(stream=s) for spin in spins]
        )
        assert start >= end - 1000
        half = Spin(device, duration_ns=2_000_000, blocks=device.sm_count // 2)
        other = Spin(device, duration_ns=2_000_000, blocks=device.sm_count // 2)
        (_, end), (start, _) = beside(
            device, [lambda s: half.execute(stream=s), lambda s: other.execute(stream=s)]
        )
        assert start < end - 1_000_000


@pytest.mark.gpu_alone("needs blocks of two kernels on the SMs at a time")
def test_blocks_that_leave_room_spread_over_free_sms_and_then_share_them(gpu):
    kernel, count = gpu.compile(NAP, "nap"), 50
    arrays = [gpu.asarray(np.zeros(1024, np.uint32)) for _ in range(6)]

    def work(arrays):  # the first call of each warms up
        return lambda stream: stream.launch(kernel, next(arrays), 2_000_000, grid=count, block=32)

    spans = beside(gpu, [work(iter(arrays[number::3])) for number in range(3)])
    assert max(start for start, _ in spans) < min(end for _, end in spans), "all run at a time"
    held = [set(np.nonzero(gpu.to_host(array))[0]) for array in arrays[3:]]
    assert all(len(sms) == count for sms in held), "one block an SM, while there are so many"
    # Two kernels of 50 blocks and the 32 SMs that are left for the third: the others it shares.
    free = gpu.sm_count - 2 * count
    assert not held[0] & held[1]
    assert len(held[2] - held[0] - held[1]) == free
    assert len(held[2] & (held[0] | held[1])) == count - free


def test_the_same_quanta_are_the_same_sms_every_time(gpu):
    seen = []
    for _ in range(3):
        with gpu.carve({"a": 24, "b": 12, "c": "rest"}) as parts:
            seen.append([part.sm_ids for part in parts.values()])
    assert seen[0] == seen[1] == seen[2]


def test_capabilities_name_what_is_required_and_found(gpu):
    can = gpu.capabilities
    assert can.partitions
    assert can.partition_path in ("composed quanta", "heterogeneous split")
    if not can.arbitrary_split:
        with pytest.raises(gs.errors.CapabilityError, match=r"13\.1 or newer.*was found"):
            can.require("arbitrary_split", feature="groups of different sizes")


def test_a_device_that_is_not_there():
    with pytest.raises(gs.errors.DeviceUnavailable, match="there is no device cuda:63"):
        gs.open_device("cuda:63")


def test_auto_opens_the_gpu(capsys):
    device = gs.open_device()
    assert not device.is_simulated
    assert device is gs.open_device("cuda:0", quiet=True)
    assert device.info.name in capsys.readouterr().out


def test_a_failed_carving_leaves_nothing_behind(gpu, monkeypatch):
    gpu.carve([8]).close()  # the probe is compiled now
    probe = gpu.backend._probe

    def refuse(*_):
        raise gs.errors.InvalidPartition("the probe failed")

    monkeypatch.setattr(probe, "sm_ids", refuse)
    for _ in range(3):
        with pytest.raises(gs.errors.InvalidPartition, match="the probe failed"):
            gpu.carve({"a": 64, "b": "rest"})
    monkeypatch.undo()
    with gpu.carve({"a": 64, "b": "rest"}) as parts:
        assert parts["a"].sm_count == 64


def test_the_sm_count_target_leaves_out_sms_that_hold_no_cluster(gpu):
    with gpu.carve({"quanta": 64, "mixed": "rest"}) as parts:
        assert parts["quanta"].sm_count_target == 64
        assert parts["mixed"].sm_count == 68
        assert parts["mixed"].sm_count_target == 56
        assert parts["quanta"].create_stream().sm_count_target == 64
    with gpu.create_stream() as whole:
        assert whole.sm_count_target == 0


@pytest.mark.parametrize("sm_count", [12, 20])
def test_a_product_runs_where_few_sms_or_none_hold_clusters(gpu, sm_count):
    ones = gpu.asarray(np.ones((1024, 1024), np.float16))
    out = gpu.empty((1024, 1024), "float16")
    with gpu.carve([sm_count]) as parts, parts[0].create_stream() as stream:
        assert parts[0].sm_count_target == 0
        gs.mm_out(out, ones, ones, stream=stream)
        stream.synchronize()
    assert (gpu.to_host(out) == 1024).all()


def test_a_thread_that_never_used_cuda_can_use_everything(gpu):
    errors = []

    def work():
        try:
            with gpu.create_stream() as stream:
                gs.Gemm(gpu, m=64, n=64, k=64).execute(stream=stream)
                event = stream.record()
                event.synchronize()
        except BaseException as error:  # noqa: BLE001 - told to the test
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert errors == []


def test_pytorch_tensors_are_operands_without_a_copy(gpu):
    torch = pytest.importorskip("torch")
    a = torch.randn(64, 32, device="cuda", dtype=torch.float16)
    b = torch.randn(32, 48, device="cuda", dtype=torch.float16)
    out = torch.full((64, 48), float("nan"), device="cuda", dtype=torch.float16)
    torch.cuda.synchronize()
    with gpu.create_stream() as stream, gs.CallerStreamGuard(stream):
        assert gs.mm_out(out, a, b) is out
    expected = a.double() @ b.double()
    assert torch.linalg.norm(out.double() - expected) / torch.linalg.norm(expected) < 1e-3


def test_a_stream_of_pytorch_is_a_selection(gpu):
    torch = pytest.importorskip("torch")
    stream = torch.cuda.Stream()
    a, out = gpu.random((64, 64)), gpu.empty((64, 64))
    with gs.CallerStreamGuard(stream.cuda_stream):
        gs.mm_out(out, a, a)
    stream.synchronize()
    host = gpu.to_host(a).astype(np.float64)
    assert np.allclose(gpu.to_host(out), host @ host, atol=1e-4)


@pytest.mark.gpu_alone("holds clocks to 100 µs")
def test_event_brackets_state_one_sided_bounds(gpu):
    with gpu.create_stream() as stream:
        handle = gs.Gemm(gpu, m=1024, n=1024, k=1024)
        handle.execute(stream=stream)
        handle.wait()
        with gs.profile(gpu, source="events") as recording:
            for _ in range(50):
                handle.execute(stream=stream)
    trace = recording.trace.where(kind="kernel")
    starts, ends = trace.array("start_ns"), trace.array("end_ns")
    late, early = trace.array("start_uncertainty_ns"), trace.array("end_uncertainty_ns")
    assert (late >= 0).all()
    assert (early >= 0).all()
    assert (starts + late <= ends).all()
    assert (np.diff(np.sort(starts)) > 0).all()
    clock = recording.trace.metadata.clocks["cuda:0"]
    assert 0 < clock.empty_bracket_ns <= clock.empty_kernel_bracket_ns
    assert clock.residual_ns < 100_000
    low, high = recording.trace.metadata.windows_ns[0]
    slack = clock.residual_ns
    assert starts.min() >= low - slack
    assert ends.max() <= high + slack
    assert recording.trace.metadata.gpu_states[0].sm_clock_mhz > 0


@pytest.mark.gpu_alone("measures overlap and queue depth")
def test_a_quickstart_like_experiment_keeps_the_gpu_busy(gpu):
    square = {"kind": "gemm", "dtype": "float16"}
    result = run(
        {
            "name": "small quickstart",
            "rounds": 2,
            "streams": {"decode": {}, "load": {}},
            "workloads": {
                "small": {**square, "m": 512, "n": 512, "k": 512, "stream": "decode",
                          "repeats": 60, "arrival": "poisson", "rate_hz": 1000},
                "load": {**square, "m": 4096, "n": 4096, "k": 4096, "stream": "load",
                         "background": True, "max_queued": 6},
            },
            "settings": {
                "no partition": {},
                "16 | rest": {
                    "partitions": {"small": 16, "load": "rest"},
                    "streams": {"decode": {"partition": "small"}, "load": {"partition": "load"}},
                },
            },
        },
        gpu,
    )  # fmt: skip
    for trace in result.values():
        depth = gs.analysis.queue_depth(trace, of="load", at="small")
        assert len(depth.depths) == 60
        assert depth.minimum >= 2
        assert gs.analysis.latency(trace)["small"].n == 60
        assert gs.analysis.overlap(trace, by="stream").gain > 0
    assert gpu.registry.held_parts() == {}


def test_handle_10_the_default_stream_under_a_green_context_is_refused(gpu):
    handle = gs.Gemm(gpu, m=64, n=64, k=64)
    handle.execute()
    device = gpu.backend._device
    with gpu.carve({"part": 16}) as parts:
        stream = parts["part"].create_stream()
        device.set_current(parts["part"].raw.context)
        try:
            with pytest.raises(
                gs.errors.StreamError, match=r"green context is current.*CallerStreamGuard"
            ):
                handle.execute()
            assert not handle.in_flight
            handle.execute(stream=stream)
            handle.wait()
        finally:
            device.set_current()
        handle.execute()
        handle.close()


def test_streams_that_others_made_know_whether_the_barrier_holds_them(gpu):
    import cupy

    theirs = [cupy.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)]
    with (
        gpu.carve({"a": 16}) as parts,
        gpu.create_stream(blocking=True) as blocking,
        gpu.create_stream() as plain,
    ):
        inside = parts["a"].create_stream()
        streams = [
            *map(gpu.wrap_stream, theirs), blocking, plain, inside,
            *map(gpu.wrap_stream, (0, 1, 2)), gpu.default_stream(),
        ]  # fmt: skip
        kinds = [stream.kind for stream in streams]
    assert kinds == [
        "blocking", "non-blocking", "blocking", "non-blocking", "non-blocking", "legacy default",
        "legacy default", "per-thread default", "per-thread default",
    ]  # fmt: skip


@pytest.mark.gpu_alone("5 ms must outlast three calls")
@pytest.mark.parametrize("source", ["cupti", "events"])
def test_a_blocking_stream_is_explained_by_the_legacy_default_streams_barrier(gpu, source):
    first = Spin(gpu, duration_ns=5_000_000, name="first")
    second = Spin(gpu, duration_ns=10_000, name="second")
    with (
        gpu.create_stream(blocking=True) as one,
        gpu.create_stream(blocking=True) as two,
        gs.profile(gpu, source=source) as recording,
    ):
        first.execute(stream=one)
        gpu.wrap_stream(0).record()
        second.execute(stream=two)
        two.synchronize()
    trace = recording.trace
    rows = {row["category"]: row for row in trace.where(kind="kernel").spans.to_pylist()}
    parts = gs.analysis.parts(trace, rows["second"]["id"])
    assert ("legacy default stream", rows["first"]["id"]) in [
        (part.kind, part.span) for part in parts
    ]


HEADERS = [
    *Path("/usr/local").glob("cuda*/include"),
    *Path(sys.prefix).glob("lib/python*/*-packages/nvidia/*/include"),
]


@pytest.mark.parametrize("language", ["cuda.core", "C++"])
def test_code_to_copy_makes_partitions_and_streams(gpu, tmp_path, language):
    plan = gpu.plan_carve({"a": 64, "b": 12, "c": "rest"})
    streams = {
        "x": StreamSpec(partition="a", priority=-1), "y": StreamSpec(partition="c"), "z": StreamSpec(),
    }  # fmt: skip
    layout = plan.layout
    code = carving_code(
        language, ["a test"], plan.granted(), streams,
        sm_count=layout.sm_count, quantum=layout.quantum_sm_count,
    )  # fmt: skip
    command = [sys.executable, tmp_path / "carve.py"]
    (tmp_path / "carve.py").write_text(code)
    if language == "C++":
        include = next((path for path in HEADERS if (path / "cuda.h").exists()), None)
        if include is None or shutil.which("g++") is None:
            pytest.skip("needs g++ and cuda.h")
        source, program = tmp_path / "carve.cpp", tmp_path / "carve"
        source.write_text(code)
        stubs = [f"-L{path.parent / 'lib64' / 'stubs'}" for path in HEADERS]
        subprocess.run(
            ["g++", source, f"-I{include}", *stubs, "-l:libcuda.so.1", "-o", program], check=True
        )
        command = [program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    counts = dict(line.removesuffix(" SMs").split() for line in done.stdout.splitlines())
    assert {name: int(count) for name, count in counts.items()} == plan.granted()
