"""Kernels with block records on a real GPU: right products, and blocks where they really ran."""

from __future__ import annotations

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.workloads.spin import Spin
from gpuscope.workloads.traced import TracedCopy, TracedGemm

pytestmark = pytest.mark.gpu

SHAPES = [
    (1, 1, 1), (17, 33, 65), (127, 129, 63), (128, 128, 32), (1, 300, 33), (300, 1, 7),
    (8, 16, 8), (1200, 136, 40), (512, 512, 512), (1000, 1024, 1032), (2048, 2048, 2048),
]  # fmt: skip
BIG = (2048, 2048, 2048)


@pytest.fixture
def gpu():
    device = gs.open_device("cuda:0", quiet=True)
    yield device
    device.close()


class Watcher:
    """Keeps the launches that it is told of."""

    def __init__(self):
        self.launches = []

    def call_begins(self, call):
        if call.kind == "launch":
            self.launches.append(call)

    def call_ends(self, call):
        pass

    def activity(self, activity):
        pass


@pytest.fixture
def observe(gpu):
    """Run something with an observer; returns the launches that it was told of."""

    def run(work):
        watcher = Watcher()
        gpu.calls.observe(watcher)
        try:
            work()
        finally:
            gpu.calls.unobserve(watcher)
        return watcher.launches

    return run


def blocks_of(gpu, call):
    """Return the starts, ends and SM ids of a launch's blocks."""
    records = gpu.to_host(call.blocks)
    grid = int(call.launch_config.split("[")[1].split(",")[0])
    assert records.shape == (grid, 3)
    assert records.dtype == np.uint64
    start, end, sm = records.astype(np.int64).T
    assert (start > 10**9).all()
    assert (end > start).all()
    assert (end - start < 10**9).all()
    return start, end, sm


def inside(gpu, values, lead):
    """Return values as a C-ordered view inside a larger array of NaNs, and that array."""
    around = np.full(values.size + 2 * 64, np.nan, np.float16)
    around[lead : lead + values.size] = values.reshape(-1)
    array = gpu.asarray(around)
    return array[lead : lead + values.size].reshape(values.shape), array


# -- products -------------------------------------------------------------------------------
@pytest.mark.parametrize("lead", [64, 33], ids=["aligned", "odd address"])
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_products_of_small_integers_are_exact_and_stay_in_out(gpu, m, n, k, lead):
    """Every sum is exact in float32, so all that is left is one rounding: cuBLAS's too."""
    rng = np.random.default_rng(m * n + k)
    left, right = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((m, k), (k, n)))
    a, b = inside(gpu, left, lead)[0], inside(gpu, right, lead)[0]
    out, around = inside(gpu, np.full((m, n), np.nan, np.float16), lead)
    library = gpu.empty((m, n), "float16")
    with TracedGemm(gpu, m=m, n=n, k=k) as handle, gpu.create_stream() as stream:
        handle.execute(a, b, out, stream=stream)
        gs.mm_out(library, a, b, stream=stream)
        stream.synchronize()
    found = gpu.to_host(out)
    assert np.array_equal(found, gpu.to_host(library))
    expected = (left.astype(np.float32) @ right.astype(np.float32)).astype(np.float16)
    assert np.array_equal(found, expected)
    assert np.isnan(gpu.to_host(around)).sum() == 2 * 64, "only out was written"


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_products_are_as_good_as_float16_can_say(gpu, m, n, k):
    with TracedGemm(gpu, m=m, n=n, k=k, seed=k) as handle, gpu.create_stream() as stream:
        a, b, out = handle.operands()
        handle.execute(stream=stream)
        library = gpu.empty((m, n), "float16")
        gs.mm_out(library, a, b, stream=stream)
        stream.synchronize()
        left, right = (gpu.to_host(one).astype(np.float64) for one in (a, b))
        ours, theirs = (gpu.to_host(one).astype(np.float64) for one in (out, library))
    exact = left @ right
    # Half a unit in the last place for the rounding to float16, and for each 16 of k one
    # truncated float32 addition to partial sums that the sum of all magnitudes bounds.
    allowed = (
        np.abs(exact) * 2.0**-11
        + 2.0**-25
        + (k / 16 + 1) * 2.0**-22 * (np.abs(left) @ np.abs(right))
    )
    assert (np.abs(ours - exact) <= allowed).all()
    assert (np.abs(ours - theirs) <= 2 * allowed).all()


def test_recording_changes_no_result(gpu, observe):
    m, n, k = 1000, 1024, 1032
    with (
        TracedGemm(gpu, m=m, n=n, k=k) as product,
        TracedCopy(gpu, nbytes=10_000_000) as copy,
        gpu.create_stream() as stream,
    ):
        for handle in (product, copy):
            plain = gpu.to_host(handle.execute(stream=stream))
            results = []
            launches = observe(lambda: results.append(handle.execute(stream=stream)))  # noqa: B023
            assert np.array_equal(gpu.to_host(results[0]), plain)
            assert launches[0].blocks is not None
        assert np.array_equal(plain, gpu.to_host(copy.x))


# -- block records --------------------------------------------------------------------------
@pytest.mark.gpu_alone("compares times to 5 µs")
def test_every_block_of_a_product_is_recorded_once(gpu, observe):
    m, n, k = BIG
    with TracedGemm(gpu, m=m, n=n, k=k) as handle, gpu.create_stream() as stream:
        handle.execute(stream=stream)
        hold = Spin(gpu, duration_ns=20_000_000)  # what follows is queued when it ends
        hold.execute(stream=stream)
        events = [stream.record()]

        def run():
            for _ in range(3):
                handle.execute(stream=stream)
                events.append(stream.record())

        launches = observe(run)
        stream.synchronize()
        hold.close()
        last_end = 0
        for call, before, after in zip(launches, events, events[1:], strict=False):
            start, end, sm = blocks_of(gpu, call)
            assert len(start) == 256
            assert set(sm.tolist()) <= set(range(gpu.sm_count))
            assert len(set(sm.tolist())) > gpu.sm_count // 2
            assert start.min() >= last_end, "launches of one stream follow each other"
            last_end = end.max()
            took = after.elapsed_ns(since=before)
            assert 0.5 * took < end.max() - start.min() < took + 5_000


def test_every_block_of_a_copy_is_recorded_once(gpu, observe):
    with TracedCopy(gpu, nbytes=64 << 20) as handle, gpu.create_stream() as stream:
        (call,) = observe(lambda: handle.execute(stream=stream))
        _, _, sm = blocks_of(gpu, call)
        assert len(sm) == 4 * gpu.sm_count
        assert set(sm.tolist()) == set(range(gpu.sm_count))
        assert call.nbytes == 2 * (64 << 20)


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_small_and_odd_grids_are_recorded_too(gpu, observe, m, n, k):
    with TracedGemm(gpu, m=m, n=n, k=k) as handle, gpu.create_stream() as stream:
        (call,) = observe(lambda: handle.execute(stream=stream))
        start, _, sm = blocks_of(gpu, call)
        assert len(start) == -(-m // 128) * -(-n // 128)
        assert set(sm.tolist()) <= set(range(gpu.sm_count))
        assert call.flop_count == 2 * m * n * k


def test_blocks_stay_in_their_partition(gpu, observe):
    m, n, k = BIG
    with gpu.carve({"a": 32, "b": "rest"}) as parts:
        for part in parts.values():
            stream = part.create_stream()
            product = TracedGemm(part, m=m, n=n, k=k)
            copy = TracedCopy(part, nbytes=16 << 20)
            launches = observe(
                lambda: (product.execute(stream=stream), copy.execute(stream=stream))  # noqa: B023
            )
            assert [call.name for call in launches] == ["traced_gemm", "traced_copy"]
            for call in launches:
                _, _, sm = blocks_of(gpu, call)
                assert set(sm.tolist()) <= set(part.sm_ids)
            assert len(sm) == 4 * part.sm_count


def test_streams_side_by_side_have_records_of_their_own(gpu, observe):
    m, n, k = 512, 512, 512
    streams = [gpu.create_stream() for _ in range(4)]
    with (
        TracedGemm(gpu, m=m, n=n, k=k, max_in_flight=4) as product,
        TracedCopy(gpu, nbytes=4 << 20, max_in_flight=4) as copy,
    ):
        outs = []

        def run():
            for _ in range(5):
                for stream in streams:
                    outs.append(product.execute(stream=stream))
                    copy.execute(stream=stream)

        launches = observe(run)
        gpu.synchronize()
        assert len(launches) == 40
        assert len({call.blocks.data.ptr for call in launches}) == 40
        ends = {}
        for call in launches:
            start, end, _ = blocks_of(gpu, call)
            assert start.min() >= ends.get(call.stream.id, 0)
            ends[call.stream.id] = end.max()
        first = gpu.to_host(outs[0])
        assert all(np.array_equal(gpu.to_host(out), first) for out in outs[1:4])
    for stream in streams:
        stream.close()


def test_unobserved_launches_take_no_memory_for_records(gpu, monkeypatch):
    with (
        TracedGemm(gpu, m=512, n=512, k=512) as product,
        TracedCopy(gpu, nbytes=4096) as copy,
        gpu.create_stream() as stream,
    ):
        product.operands()
        monkeypatch.setattr(gpu, "empty", lambda *_: 1 / 0)
        for _ in range(3):
            product.execute(stream=stream)
            copy.execute(stream=stream)
        stream.synchronize()


@pytest.mark.gpu_alone("60 ms must outlast forty uploads")
def test_records_that_nobody_keeps_overwrite_nobodys_memory(gpu):
    """The launch writes to memory that was let go of; only its own stream may have it again."""

    class Careless:
        def call_begins(self, call):
            pass

        def call_ends(self, call):
            pass

        def activity(self, activity):
            pass

    careless = Careless()
    hold = Spin(gpu, duration_ns=60_000_000)
    pattern = np.arange(4 * gpu.sm_count * 3, dtype=np.uint64).reshape(-1, 3)
    with TracedCopy(gpu, nbytes=4096) as handle, gpu.create_stream() as stream:
        handle.execute(stream=stream)
        stream.synchronize()
        gpu.calls.observe(careless)
        try:
            hold.execute(stream=stream)
            for _ in range(20):
                handle.execute(stream=stream)
            kept = [gpu.asarray(pattern) for _ in range(40)]
            assert not stream.is_done
        finally:
            gpu.calls.unobserve(careless)
        stream.synchronize()
        for array in kept:
            assert np.array_equal(gpu.to_host(array), pattern)
    hold.close()


def test_a_graph_of_them_records_nothing_and_computes_the_same(gpu, observe):
    with TracedGemm(gpu, m=512, n=512, k=512) as handle, gpu.create_stream() as stream:
        a, b, out = handle.operands()
        handle.execute(stream=stream)
        expected = gpu.to_host(out)

        def poison():
            stream.copy(out, np.full((512, 512), np.nan, np.float16))

        with stream.capture() as graph:
            handle.execute(a, b, out, stream=stream)
        for replay in (lambda: graph.launch(stream=stream), lambda: handle.execute(stream=stream)):
            poison()
            launches = observe(lambda: (replay(), replay()))  # noqa: B023
            stream.synchronize()
            assert np.array_equal(gpu.to_host(out), expected)
            if not handle._replays:
                assert [call.blocks for call in launches] == [None, None]
                handle.use_graph()
        # The first call of the handle runs the work, and then captures it.
        assert [call.blocks is None for call in launches] == [False, True]
        blocks_of(gpu, launches[0])
        graph.close()


def test_a_recording_of_them_ends_well(gpu):
    with (
        TracedGemm(gpu, m=512, n=512, k=512) as product,
        TracedCopy(gpu, nbytes=4 << 20) as copy,
        gpu.create_stream() as stream,
    ):
        with gs.profile(gpu) as recording:
            for _ in range(10):
                product.execute(stream=stream)
                copy.execute(stream=stream)
        names = [row["name"] for row in recording.trace.where(kind="kernel").spans.to_pylist()]
    assert sum("traced_gemm" in name for name in names) == 10
    assert sum("traced_copy" in name for name in names) == 10
