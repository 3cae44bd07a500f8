"""Kernels with block records: values, errors and names; records only where they belong."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.device.api import KernelModel
from gpuscope.device.device import Device
from gpuscope.simulator.engine.backend import SimBackend
from gpuscope.workloads import traced
from gpuscope.workloads.copy import Copy
from gpuscope.workloads.traced import TracedCopy, TracedGemm

SHAPES = [(1, 1, 1), (17, 33, 65), (127, 129, 63), (128, 128, 32), (256, 136, 264)]


class Watcher:
    """An observer that keeps the calls that it is told of."""

    def __init__(self):
        self.calls = []

    def call_begins(self, call):
        self.calls.append(call)

    def call_ends(self, call):
        pass

    def activity(self, activity):
        pass

    def launches(self):
        return [call for call in self.calls if call.kind == "launch"]


@pytest.fixture(params=["sim:h200", "cpu"])
def gpu(request):
    device = gs.open_device(request.param, quiet=True)
    yield device
    device.close()


@pytest.fixture
def sim():
    device = gs.open_device("sim:h200", quiet=True)
    yield device
    device.close()


@pytest.fixture
def runs_source():
    """A device that says that it runs source, and keeps what it is asked to launch."""

    class Backend(SimBackend):
        def launch(self, stream, kernel, grid, block, args, correlation):
            self.launched.append((kernel.name, grid, block, tuple(args)))
            super().launch(stream, kernel, grid, block, args, correlation)

    backend = Backend()
    backend.launched = []
    backend.capabilities = replace(backend.capabilities, compile_source=True)
    device = Device(backend)
    yield device
    device.close()


def observed(device, work):
    """Run ``work`` with an observer; returns the launches that it was told of."""
    watcher = Watcher()
    device.calls.observe(watcher)
    try:
        work()
    finally:
        device.calls.unobserve(watcher)
    return watcher.launches()


# -- the product ----------------------------------------------------------------------------
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_the_product_is_float32s_rounded_once(gpu, m, n, k):
    with TracedGemm(gpu, m=m, n=n, k=k, seed=3) as handle, gpu.create_stream() as stream:
        a, b, out = handle.operands()
        expected = (
            gpu.to_host(a).astype(np.float32) @ gpu.to_host(b).astype(np.float32)
        ).astype(np.float16)  # fmt: skip
        assert handle.execute(stream=stream) is out
        handle.wait()
        assert gpu.to_host(out).dtype == np.float16
        assert np.array_equal(gpu.to_host(out), expected)


def test_the_product_of_given_arrays_watched_and_not(sim):
    left = sim.asarray(np.arange(24).reshape(4, 6) % 5, "float16")
    right = sim.asarray(np.arange(48).reshape(6, 8) % 3, "float16")
    expected = (sim.to_host(left).astype(int) @ sim.to_host(right).astype(int)).tolist()
    out = sim.empty((4, 8), "float16")
    with TracedGemm(sim, m=4, n=8, k=6) as handle, sim.create_stream() as stream:

        def run():
            for _ in range(3):
                sim.backend.fill_random(out, 1)
                assert handle.execute(left, right, out, stream=stream) is out
                stream.synchronize()
                assert sim.to_host(out).astype(int).tolist() == expected

        run()
        assert len(observed(sim, run)) == 3
        run()


def test_the_same_as_mm_out_and_as_gemm(gpu):
    sizes = {"m": 65, "n": 40, "k": 129}
    with TracedGemm(gpu, **sizes, seed=5) as ours, gs.Gemm(gpu, **sizes, seed=5) as theirs:
        ours.execute()
        theirs.execute()
        a, b, out = ours.operands()
        library = gpu.empty((65, 40), "float16")
        gs.mm_out(library, a, b)
        for other in (theirs.operands()[2], library):
            assert np.array_equal(gpu.to_host(out), gpu.to_host(other))


def test_several_in_flight_have_operands_of_their_own(sim):
    with TracedGemm(sim, m=8, n=8, k=8, max_in_flight=2) as handle:
        with sim.create_stream() as one, sim.create_stream() as two:
            outs = [handle.execute(stream=stream) for stream in (one, two, one)]
        assert outs[0] is outs[2]
        assert outs[0] is not outs[1]


def test_values_beyond_float16_are_infinite(gpu):
    with TracedGemm(gpu, m=1, n=1, k=2) as handle:
        a, b, out = handle.operands()
        gpu.default_stream().copy(a, np.full((1, 2), 300, np.float16))
        gpu.default_stream().copy(b, np.full((2, 1), 300, np.float16))
        handle.execute()
        assert np.isinf(gpu.to_host(out)).all()


@pytest.mark.parametrize("size", [{"m": 0}, {"n": -1}, {"k": 2**31}, {"m": 1.5}, {"k": True}])
def test_sizes_that_are_none_are_named(sim, size):
    (name,) = size
    with pytest.raises(gs.errors.InvalidOperand, match=f"^{name} is"):
        TracedGemm(sim, **{"m": 8, "n": 8, "k": 8, **size})


def test_operands_that_do_not_fit_are_refused_before_anything_is_queued(sim):
    f = "float16"
    a, b, out = sim.random((4, 6), f), sim.random((6, 8), f), sim.empty((4, 8), f)
    whole = sim.random((8, 8), f)
    wrong = [
        ("this Gemm is 4x8x6 float16", (sim.random((4, 7), f), sim.random((7, 8), f), out)),
        ("dtypes differ", (a, b, sim.empty((4, 8), "float32"))),
        ("a is not C-contiguous.*use a Gemm", (sim.random((6, 4), f).T, b, out)),
        ("a is not C-contiguous", (sim.random((4, 12), f)[:, :6], b, out)),
        ("a is not C-contiguous", (sim.random((8, 12), f)[::2, ::2], b, out)),
        ("b is not C-contiguous", (a, sim.random((8, 6), f).T, out)),
        ("b is not C-contiguous", (a, sim.random((12, 8), f)[::2], out)),
        ("out overlaps an input", (a, whole[2:], whole[:4])),
    ]
    expected = (sim.to_host(a).astype(np.float32) @ sim.to_host(b)).astype(f)
    with TracedGemm(sim, m=4, n=8, k=6) as handle, sim.create_stream() as stream:

        def refused(text, operands):
            with pytest.raises(gs.errors.InvalidOperand, match=text):
                handle.execute(*operands, stream=stream)

        for _ in range(2):  # the second time the shapes are known
            for text, operands in wrong:
                refused(text, operands)
                assert observed(sim, lambda: refused(text, operands)) == []  # noqa: B023
            handle.execute(a, b, out, stream=stream)
        assert np.array_equal(sim.to_host(out), expected)


def test_host_arrays_are_copied_as_for_a_gemm(gpu):
    a = (np.arange(12).reshape(3, 4) % 5).astype(np.float16)
    b = (np.arange(20).reshape(4, 5) % 3).astype(np.float16)
    out = np.zeros((3, 5), np.float16)
    with TracedGemm(gpu, m=3, n=5, k=4) as handle:
        handle.execute(a, b, out)
    assert np.array_equal(out, a @ b)


def test_tensor_cores_before_8_0_are_refused(runs_source):
    runs_source.info = replace(runs_source.info, compute_capability=(7, 5))
    with pytest.raises(
        gs.errors.CapabilityError, match=r"8\.0 or newer is required, 7\.5 was found"
    ):
        TracedGemm(runs_source, m=8, n=8, k=8)


def test_a_product_is_closed_with_its_partition_and_collected_without_the_collector(sim):
    with sim.carve({"a": 16}) as parts:
        handle = TracedGemm(parts["a"], m=8, n=8, k=8)
        with parts["a"].create_stream() as stream:
            handle.execute(stream=stream)
    with pytest.raises(gs.errors.ClosedError):
        handle.execute()
    gc.disable()
    try:
        free = TracedGemm(sim, m=8, n=8, k=8)
        seen = weakref.ref(free)
        del free
        assert seen() is None
    finally:
        gc.enable()


# -- the copy -------------------------------------------------------------------------------
def test_the_copy_is_equal(gpu):
    with TracedCopy(gpu, nbytes=1000, seed=4) as handle, gpu.create_stream() as stream:
        assert handle.nbytes == 1008
        out = handle.execute(stream=stream)
        stream.synchronize()
        assert np.array_equal(gpu.to_host(out), gpu.to_host(handle.x))


@pytest.mark.parametrize("nbytes", [0, -1, 1.5, True, None])
def test_bytes_that_are_none_are_refused(sim, nbytes):
    with pytest.raises(gs.errors.InvalidOperand, match="nbytes is"):
        TracedCopy(sim, nbytes=nbytes)


# -- rows and records -----------------------------------------------------------------------
def test_names(sim):
    for handle, name in (
        (TracedGemm(sim, m=1, n=2, k=3), "traced gemm 1x2x3"),
        (TracedGemm(sim, m=1, n=2, k=3, name="mine"), "mine"),
        (TracedCopy(sim, nbytes=64), "traced copy 64 B"),
        (TracedCopy(sim, nbytes=64, name="mine"), "mine"),
    ):
        assert handle.name == name
        handle.close()


def test_rows_are_those_of_gemm_and_copy(sim):
    sizes = {"m": 300, "n": 200, "k": 100}
    with sim.carve({"part": 32}) as parts:
        stream = parts["part"].create_stream()
        for ours, theirs in (
            (TracedGemm(sim, **sizes), gs.Gemm(sim, **sizes)),
            (TracedCopy(sim, nbytes=4096), Copy(sim, nbytes=4096)),
        ):
            (mine,) = observed(sim, lambda: ours.execute(stream=stream))  # noqa: B023
            (other,) = observed(sim, lambda: theirs.execute(stream=stream))  # noqa: B023
            assert (mine.flop_count, mine.nbytes) == (other.flop_count, other.nbytes)
            assert mine.workload == ours.name
            assert mine.blocks is None
            assert other.blocks is None
        assert mine.launch_config == other.launch_config
    assert gs.Gemm(sim, **sizes).flop_count == TracedGemm(sim, **sizes).flop_count == 12_000_000


def test_each_recorded_call_asks_for_records_of_its_thread_blocks(sim, monkeypatch):
    """Also one that is like the call before it, which Gemm launches without asking anything."""
    asked = []
    monkeypatch.setattr(traced, "_records", lambda *launch: asked.append(launch[2]))
    handle = TracedGemm(sim, m=256, n=256, k=64)
    with sim.create_stream() as stream:
        handle.execute(stream=stream)
        with gs.profile(sim):
            for _ in range(3):
                handle.execute(stream=stream)
        assert asked == [4] * 4
        handle.execute(stream=stream)
        assert asked == [4] * 4, "nobody observes"


def test_a_recording_shows_the_kernels_by_name(sim):
    product, copy = TracedGemm(sim, m=300, n=200, k=100), TracedCopy(sim, nbytes=64)
    with gs.profile(sim) as recording, sim.create_stream() as stream:
        product.execute(stream=stream)
        copy.execute(stream=stream)
    rows = recording.trace.where(kind="kernel").spans.to_pylist()
    assert [row["name"] for row in rows] == ["traced_gemm", "traced_copy"]
    assert rows[0]["launch_config"] == '{"grid":[6,1,1],"block":[256,1,1]}'
    assert rows[0]["flop_count"] == 12_000_000
    assert all(row["end_ns"] > row["start_ns"] for row in rows)


def test_records_go_with_a_launch_iff_somebody_observes(runs_source):
    gpu = runs_source
    with gpu.carve({"part": 32}) as parts:
        stream = parts["part"].create_stream()
        for handle, grid in (
            (TracedGemm(gpu, m=300, n=200, k=100), 6),
            (TracedCopy(gpu, nbytes=4096), 128),
        ):
            handle.execute(stream=stream)  # its operands and kernel are there now
            for _ in range(2):
                gpu.backend.launched.clear()
                handle.execute(stream=stream)
                assert [call[3][-1] for call in gpu.backend.launched] == [0]
                assert gpu.backend.launched[0][1] == grid
                launches = observed(
                    gpu,
                    lambda: [handle.execute(stream=stream) for _ in range(3)],  # noqa: B023
                )
                arrays = [call.blocks for call in launches]
                assert [array.shape for array in arrays] == [(grid, 3)] * 3
                assert {array.dtype.name for array in arrays} == {"uint64"}
                assert len({array.buffer.address for array in arrays}) == 3
                told = [call[3][-1] for call in gpu.backend.launched[1:]]
                assert all(one is other for one, other in zip(told, arrays, strict=True))
                assert gpu.backend.launched[0][:3] == gpu.backend.launched[1][:3]
            handle.close()


def test_what_is_captured_writes_no_records(runs_source):
    gpu = runs_source
    with TracedGemm(gpu, m=8, n=8, k=8) as product, TracedCopy(gpu, nbytes=64) as copy:
        product.operands()
        with gpu.create_stream() as stream:
            stream.capturing = True
            try:
                launches = observed(
                    gpu, lambda: (product.execute(stream=stream), copy.execute(stream=stream))
                )
            finally:
                stream.capturing = False
        assert launches == []
        assert [call[3][-1] for call in gpu.backend.launched] == [0, 0]


def test_memory_for_records_is_taken_with_the_launchs_stream_current(runs_source, monkeypatch):
    gpu, log = runs_source, []
    empty = gpu.empty
    monkeypatch.setattr(traced.handles, "bind", lambda stream: log.append(stream) or [])
    monkeypatch.setattr(traced.handles, "unbind", lambda bound: log.append("unbound"))
    with TracedCopy(gpu, nbytes=64) as handle, gpu.create_stream() as stream:
        monkeypatch.setattr(gpu, "empty", lambda *a: log.append(a) or empty(*a))
        handle.execute(stream=stream)
        assert log == []
        observed(gpu, lambda: handle.execute(stream=stream))
        assert log == [stream, ((528, 3), "uint64"), "unbound"]
        monkeypatch.setattr(gpu, "empty", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            observed(gpu, lambda: handle.execute(stream=stream))
        assert log[-1] == "unbound"
        assert not handle.in_flight


def test_a_launch_of_the_users_may_name_its_records(sim):
    kernel = sim.compile("", "mine", model=KernelModel(lambda p, g, a, s: p.copy_cost(64, s)))
    array = sim.empty((7, 3), "uint64")
    with sim.create_stream() as stream:
        with_blocks, without = observed(
            sim,
            lambda: (
                stream.launch(kernel, array, grid=7, block=32, blocks=array),
                stream.launch(kernel, array, grid=7, block=32),
            ),
        )
    assert with_blocks.blocks is array
    assert without.blocks is None
