"""Contract C: scratch tagged by the stream that a call runs on; names carry the rule's number."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.device import caller
from gpuscope.device.api import KernelCost, KernelModel
from gpuscope.device.arena import Arena
from gpuscope.device.cuda import driver
from gpuscope.device.device import Device
from gpuscope.device.graph import Graph
from gpuscope.device.registry import borrowing
from gpuscope.device.scratch import WorkloadContext
from gpuscope.workloads.spin import Spin

HOLD_NS = 30_000_000
UNKNOWN = 0xDEAD0
MIB = 1 << 20
ANY_DEVICE = ["sim:h200", "cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)]


@pytest.fixture(params=ANY_DEVICE)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """Any device, the CPU too."""
    found = gs.open_device(request.param, quiet=True)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def every_call_is_over() -> Iterator[None]:
    yield
    spins.clear()
    assert borrowing.open == ()


def address(scratch):
    array = scratch.array
    return array.buffer.address if hasattr(array, "buffer") else array.data.ptr


spins = []


def hold(gpu, stream):
    spins.append(Spin(gpu, duration_ns=HOLD_NS))  # one that is collected waits for its end
    spins[-1].execute(stream=stream)


class Foreign:
    """Somebody else's stream object."""

    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return (0, self.handle)


# -- 1: a context, and what is borrowed ---------------------------------------------------


def test_scratch_01_a_context_gives_stream_and_scratch(device):
    with device.create_stream() as stream:
        with WorkloadContext(device, stream) as ctx:
            assert ctx.stream is stream
            assert ctx.device is device
            scratch = ctx.scratch(24)
            assert scratch.nbytes == 24
            assert scratch.array.shape == (24,)
            assert scratch.array.dtype == np.uint8
            assert type(scratch.array) is device.backend.array_type
        assert not stream.closed


def test_scratch_01_what_is_borrowed_ends_with_the_call(device):
    with device.create_stream() as stream:
        with WorkloadContext(device, stream) as ctx:
            scratch = ctx.scratch(8)
        with pytest.raises(gs.errors.ClosedError, match="outside its call"):
            ctx.stream  # noqa: B018
        with pytest.raises(gs.errors.ClosedError, match="outside its call"):
            ctx.scratch(8)
        assert scratch.closed
        with pytest.raises(gs.errors.ClosedError, match="given back when its call ended"):
            scratch.array  # noqa: B018
        with pytest.raises(gs.errors.ClosedError):
            scratch.view(2, "float32")
        with pytest.raises(gs.errors.StreamError, match="one call"), ctx:
            pass


def test_scratch_01_a_context_that_was_not_entered_lends_nothing(device):
    ctx = WorkloadContext(device, device.default_stream())
    with pytest.raises(gs.errors.ClosedError):
        ctx.scratch(1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32"])
def test_scratch_01_views_are_arrays_of_that_memory(device, dtype):
    with device.create_stream() as stream, WorkloadContext(device, stream) as ctx:
        scratch = ctx.scratch(4 * 6 * 8 + 5)
        view = scratch.view((4, 6), dtype)
        assert view.shape == (4, 6)
        assert view.dtype.name == dtype
        values = np.arange(24).reshape(4, 6).astype(view.dtype)
        stream.copy(view, values)
        stream.synchronize()
        assert np.array_equal(device.to_host(view), values)
        flat = device.to_host(scratch.array)
        assert flat[: values.nbytes].tobytes() == values.tobytes()
        assert scratch.view(0, dtype).shape == (0,)
        with pytest.raises(
            gs.errors.InvalidOperand, match=r"needs .* bytes, but this scratch has 197"
        ):
            scratch.view((200, 2), dtype)
        with pytest.raises(gs.errors.InvalidOperand, match="negative"):
            scratch.view((-1,), dtype)


def test_scratch_01_a_gemm_runs_on_scratch(device):
    a = (np.arange(32) % 5 + 1).reshape(4, 8).astype(np.float32)
    b = (np.arange(48) % 3 + 1).reshape(8, 6).astype(np.float32)
    with device.create_stream() as stream, WorkloadContext(device, stream) as ctx:
        out = ctx.scratch(4 * 6 * 4).view((4, 6))
        gs.mm_out(out, device.asarray(a), device.asarray(b), stream=stream)
        stream.synchronize()
        assert np.array_equal(device.to_host(out), a @ b)


# -- 2: tags ------------------------------------------------------------------------------


def test_scratch_02_the_calls_stream_is_the_tag(gpu):
    with gpu.create_stream() as stream, WorkloadContext(gpu, stream) as ctx:
        for named in (None, stream, stream.handle, Foreign(stream.handle)):
            assert ctx.scratch(8, stream=named).stream is stream
            assert ctx.scratch(8, named).stream is stream


def test_scratch_02_another_known_handle_gives_its_own_stream(gpu):
    with gpu.create_stream() as stream, gpu.create_stream() as other:
        for named in (other, other.handle, Foreign(other.handle)):
            with WorkloadContext(gpu, stream) as ctx:
                assert ctx.scratch(8, named).stream is other


def test_scratch_02_nobody_waits_for_tagged_memory(gpu):
    with gpu.create_stream() as stream, gpu.create_stream() as other:
        with WorkloadContext(gpu, stream) as ctx:  # whatever is loaded or set up once
            ctx.scratch(64)
            ctx.scratch(64, other)
        hold(gpu, stream)
        with WorkloadContext(gpu, stream) as ctx:
            ctx.scratch(64)
            ctx.scratch(64, other)
        assert not stream.is_done


@pytest.mark.parametrize("unknown", [UNKNOWN, Foreign(UNKNOWN)])
def test_scratch_02_an_unknown_handle_waits_for_the_device_both_times(gpu, unknown):
    with gpu.create_stream() as stream:
        hold(gpu, stream)
        with WorkloadContext(gpu, stream) as ctx:
            scratch = ctx.scratch(64, unknown)
            assert stream.is_done, "handed out after the device finished"
            assert scratch.stream is None
            hold(gpu, stream)
            assert not stream.is_done
        assert stream.is_done, "taken back after the device finished"


def test_scratch_02_a_closed_streams_handle_is_unknown(gpu):
    with gpu.create_stream() as stream, WorkloadContext(gpu, stream) as ctx:
        gone = gpu.create_stream()
        handle = gone.handle
        assert ctx.scratch(8, handle).stream is gone
        gone.close()
        assert ctx.scratch(8, handle).stream is None
        with pytest.raises(gs.errors.ClosedError):
            ctx.scratch(8, gone)


def test_scratch_02_a_tag_that_is_closed_meanwhile_loses_nothing(gpu):
    with gpu.create_stream() as stream:
        with WorkloadContext(gpu, stream) as ctx:
            other = gpu.create_stream()
            ctx.scratch(MIB, other)
            other.close()
        with WorkloadContext(gpu, stream) as ctx:
            assert ctx.scratch(64).stream is stream


@pytest.mark.parametrize("wrong", [True, 1.5, "s", object()])
def test_scratch_02_what_is_no_stream_is_refused(device, wrong):
    refused = pytest.raises(gs.errors.InvalidOperand, match="raw handle is needed")
    with WorkloadContext(device, device.default_stream()) as ctx, refused:
        ctx.scratch(8, wrong)


def test_scratch_02_a_stream_of_another_device_is_refused():
    one, two = (gs.open_device("sim:h200", quiet=True) for _ in range(2))
    foreign = two.create_stream()
    refused = pytest.raises(gs.errors.StreamError, match="belongs to")
    with WorkloadContext(one, one.default_stream()) as ctx, refused:
        ctx.scratch(8, foreign)
    foreign.close()


# -- 3: the map ---------------------------------------------------------------------------


def test_scratch_03_the_map_holds_other_handles_of_this_call_only(gpu):
    with gpu.create_stream() as stream, gpu.create_stream() as other:
        with WorkloadContext(gpu, stream) as ctx:
            assert ctx._known == {}
            for named in (None, stream, stream.handle, UNKNOWN, other):
                ctx.scratch(8, named)
            assert ctx._known == {}, "never itself, never None, nothing unknown"
            for _ in range(3):
                ctx.scratch(8, other.handle)
            assert ctx._known == {other.handle: other}
            with WorkloadContext(gpu, other) as inner:
                assert inner._known == {}
        assert ctx._known == {}
        assert inner._known == {}


def test_scratch_03_the_map_is_empty_after_an_error(gpu):
    with gpu.create_stream() as stream, gpu.create_stream() as other:
        ctx = WorkloadContext(gpu, stream)
        with pytest.raises(ZeroDivisionError), ctx:
            ctx.scratch(8, other.handle)
            raise ZeroDivisionError
        assert ctx._known == {}


# -- 4: nesting, and outside any call -------------------------------------------------------


def test_scratch_04_contexts_nest_and_restore_on_exceptions(gpu):
    with gpu.create_stream() as one, gpu.create_stream() as two:
        with WorkloadContext(gpu, one) as outer:
            assert gpu.scratch(8).stream is one
            with pytest.raises(ZeroDivisionError), WorkloadContext(gpu, two) as inner:
                assert borrowing.open == (outer, inner)
                assert gpu.scratch(8).stream is two
                raise ZeroDivisionError
            assert borrowing.open == (outer,)
            assert gpu.scratch(8).stream is one
            assert outer.scratch(8).stream is one
        with gpu.scratch(8) as scratch:
            assert scratch.stream is None


def test_scratch_04_outside_any_call_it_is_untagged_and_waits(gpu):
    with gpu.create_stream() as stream:
        hold(gpu, stream)
        scratch = gpu.scratch(64)
        assert scratch.stream is None
        assert stream.is_done
        hold(gpu, stream)
        scratch.close()
        assert stream.is_done
        assert scratch.closed
        scratch.close()


def test_scratch_04_it_goes_back_when_its_block_ends(device):
    before = device.backend.reserved_bytes()
    with pytest.raises(ZeroDivisionError), device.scratch(MIB) as scratch:
        assert scratch.array.shape == (MIB,)
        raise ZeroDivisionError
    assert scratch.closed
    assert device.backend.reserved_bytes() == before
    with pytest.raises(gs.errors.ClosedError), scratch:
        pass


def test_scratch_04_what_is_never_given_back_warns_once(device):
    before = device.backend.reserved_bytes()
    with pytest.warns(ResourceWarning, match="64 bytes of scratch were never given back"):
        device.scratch(64)
        gc.collect()
    assert device.backend.reserved_bytes() == before
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        device.scratch(64).close()
        gc.collect()


def test_scratch_04_it_may_go_back_before_the_call_ends(gpu):
    with gpu.create_stream() as stream, WorkloadContext(gpu, stream) as ctx:
        with ctx.scratch(4096) as first:
            before = address(first)
        assert address(ctx.scratch(4096)) == before


def test_scratch_04_a_call_on_another_device_is_not_this_ones(gpu):
    other = gs.open_device("sim:h200", quiet=True)
    with gpu.create_stream() as stream, WorkloadContext(gpu, stream):
        with other.create_stream() as inner, WorkloadContext(other, inner):
            assert other.scratch(8).stream is inner
            assert gpu.scratch(8).stream is stream
        with other.scratch(8) as outside:
            assert outside.stream is None


def test_scratch_04_a_call_belongs_to_its_thread(gpu):
    seen = []

    def elsewhere():
        with gpu.scratch(8) as scratch:
            seen.append(scratch.stream)
        with pytest.raises(gs.errors.StreamError, match="on the thread that entered it"):
            ctx.__exit__(None, None, None)

    with gpu.create_stream() as stream, WorkloadContext(gpu, stream) as ctx:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert ctx.scratch(8).stream is stream
    assert seen == [None]


def test_scratch_04_contexts_are_left_innermost_first(device):
    outer = WorkloadContext(device, device.default_stream())
    inner = WorkloadContext(device, device.default_stream())
    with outer, inner:
        with pytest.raises(gs.errors.StreamError, match="innermost"):
            outer.__exit__(None, None, None)
        assert borrowing.open == (outer, inner)


# -- 5: reuse -----------------------------------------------------------------------------


@pytest.mark.gpu_alone("30 ms must outlast what takes memory")
def test_scratch_05_reused_on_its_stream_at_once_and_on_another_not(gpu):
    with gpu.create_stream() as one, gpu.create_stream() as two:
        for stream in (one, two):
            with WorkloadContext(gpu, stream) as ctx:
                ctx.scratch(MIB)
        hold(gpu, one)
        with WorkloadContext(gpu, one) as ctx:
            first = address(ctx.scratch(MIB))
        with WorkloadContext(gpu, two) as ctx:
            assert address(ctx.scratch(MIB)) != first
            assert address(ctx.scratch(MIB)) != first, "however much it takes"
        with WorkloadContext(gpu, one) as ctx:
            assert address(ctx.scratch(MIB)) == first
        assert not one.is_done, "nobody waited"


@pytest.mark.gpu_alone("30 ms must outlast what takes memory")
@pytest.mark.gpu
def test_scratch_05_reused_on_another_stream_that_waited():
    gpu = gs.open_device("cuda:0", quiet=True)
    size = 64 * MIB  # of its own, so that no other free memory fits
    with gpu.create_stream() as one, gpu.create_stream() as two:
        with WorkloadContext(gpu, one) as ctx:
            ctx.scratch(size)
        hold(gpu, one)
        with WorkloadContext(gpu, one) as ctx:
            first = address(ctx.scratch(size))
        early = one.record()
        with WorkloadContext(gpu, two) as ctx:
            assert address(ctx.scratch(size)) != first
            taken = gpu.backend.reserved_bytes()
            two.wait(early)
            assert address(ctx.scratch(size)) == first
            assert gpu.backend.reserved_bytes() == taken
        assert not one.is_done, "no dependency was inserted on the host"
    gpu.close()


@pytest.mark.gpu_alone("30 ms must outlast what takes memory")
@pytest.mark.gpu
def test_scratch_05_a_wait_for_an_earlier_point_is_not_enough():
    gpu = gs.open_device("cuda:0", quiet=True)
    size = 48 * MIB
    with gpu.create_stream() as one, gpu.create_stream() as two:
        hold(gpu, one)
        early = one.record()
        with WorkloadContext(gpu, one) as ctx:
            first = address(ctx.scratch(size))
        two.wait(early)
        with WorkloadContext(gpu, two) as ctx:
            assert address(ctx.scratch(size)) != first
    gpu.close()


# -- 6: sizes -----------------------------------------------------------------------------


def test_scratch_06_zero_bytes_allocate_nothing_and_wait_for_nothing(device):
    before = device.backend.reserved_bytes()
    allocated = []
    allocate = device.backend.allocate
    device.backend.allocate = lambda *args: allocated.append(args) or allocate(*args)
    try:
        with device.create_stream() as stream:
            if device.capabilities.partitions:
                hold(device, stream)
            with WorkloadContext(device, stream) as ctx:
                for named in (None, UNKNOWN):
                    scratch = ctx.scratch(0, named)
                    assert scratch.nbytes == 0
                    assert scratch.array.shape == (0,)
                    assert scratch.view((0, 4), "float16").shape == (0, 4)
            with device.scratch(0) as outside:
                assert outside.array.shape == (0,)
            if device.capabilities.partitions:
                assert not stream.is_done
    finally:
        del device.backend.allocate
    assert allocated == []
    assert device.backend.reserved_bytes() == before


@pytest.mark.parametrize(
    "size", [-1, -(2**70), 2**63, 2**64, 2**200, 2**63 - 1, 2**50, True, 1.0, "8", None]
)
def test_scratch_06_sizes_that_cannot_be_are_refused(device, size):
    before = device.backend.reserved_bytes()
    with WorkloadContext(device, device.default_stream()) as ctx:
        with pytest.raises(gs.errors.InvalidOperand, match="nbytes is"):
            ctx.scratch(size)
        with pytest.raises(gs.errors.InvalidOperand, match="nbytes is"):
            device.scratch(size)
    assert device.backend.reserved_bytes() == before


def test_scratch_06_numpys_integers_are_sizes(device):
    with device.scratch(np.int64(16)) as scratch:
        assert scratch.nbytes == 16


# -- 7: no new memory, and graphs ---------------------------------------------------------


@gs.workloads.workload
def takes(ctx, *sizes):
    return [address(ctx.scratch(size)) for size in sizes]


def test_scratch_07_a_repeated_workload_takes_no_new_memory(gpu):
    handles = [takes(gpu, max_in_flight=2), takes(gpu)]
    with gpu.create_stream() as one, gpu.create_stream() as two:
        reserved = []
        for _ in range(12):
            for stream in (one, two):
                for handle in handles:
                    handle.execute(4096, MIB, 4096, stream=stream)
            handles[0].execute(4096)
            reserved.append(gpu.backend.reserved_bytes())
        assert reserved[2:] == reserved[2:3] * 10
        for handle in handles:
            handle.close()


def test_scratch_07_its_addresses_stay_the_same(gpu):
    handle = takes(gpu)
    with gpu.create_stream() as stream:
        first = handle.execute(4096, MIB, 4096, stream=stream)
        assert len(set(first)) == 3
        for _ in range(3):
            assert handle.execute(4096, MIB, 4096, stream=stream) == first
        handle.close()


def test_scratch_07_a_smaller_call_gives_back_what_it_does_not_use(gpu):
    handle = takes(gpu)
    with gpu.create_stream() as stream:
        big, _ = handle.execute(MIB, 4096, stream=stream)
        handle.execute(4096, stream=stream)
        with WorkloadContext(gpu, stream) as ctx:
            assert address(ctx.scratch(MIB)) == big
        handle.close()


def test_scratch_07_on_the_cpu_everything_goes_back():
    cpu = gs.open_device("cpu", quiet=True)
    before = cpu.backend.reserved_bytes()
    handle = gs.workloads.workload(lambda ctx: ctx.scratch(MIB).nbytes)(cpu)
    with cpu.create_stream() as stream:
        for _ in range(3):
            assert handle.execute(stream=stream) == MIB
        assert cpu.backend.reserved_bytes() == before + MIB
        handle.close()
    assert cpu.backend.reserved_bytes() == before


def spare(gpu, stream, size=64):
    """Take memory that went back on ``stream``: its address."""
    with WorkloadContext(gpu, stream) as ctx:
        return address(ctx.scratch(size))


def call_with(gpu, stream, arena, size=64):
    with WorkloadContext(gpu, stream, arena) as ctx:
        return address(ctx.scratch(size))


def test_scratch_07_what_a_handle_keeps_nobody_else_gets():
    gpu = gs.open_device("sim:h200", quiet=True)
    arena = Arena(gpu)
    with gpu.create_stream() as stream, gpu.create_stream() as other:
        kept = call_with(gpu, stream, arena)
        assert spare(gpu, stream) != kept
        with pytest.raises(ZeroDivisionError), WorkloadContext(gpu, stream, arena) as ctx:
            assert address(ctx.scratch(64)) == kept
            raise ZeroDivisionError
        assert spare(gpu, stream) == kept, "a call that failed keeps nothing"
        kept = call_with(gpu, stream, arena)
        call_with(gpu, other, arena)
        assert spare(gpu, stream) == kept, "given back where it was used, on another stream's call"
        arena.close()
        kept = call_with(gpu, stream, arena)
        assert spare(gpu, stream) == kept, "a closed arena keeps nothing"


def test_scratch_07_two_calls_at_once_share_nothing():
    gpu = gs.open_device("sim:h200", quiet=True)
    arena = Arena(gpu)
    with gpu.create_stream() as one, gpu.create_stream() as two:
        with WorkloadContext(gpu, one, arena) as outer:
            first = address(outer.scratch(64))
            with WorkloadContext(gpu, two, arena) as inner:
                assert address(inner.scratch(64)) != first
        arena.close()
    assert gpu.backend.reserved_bytes() == 0, "nothing was forgotten"


def test_scratch_07_nothing_is_kept_for_a_stream_of_somebody_elses():
    gpu = gs.open_device("sim:h200", quiet=True)
    arena = Arena(gpu)
    kept = call_with(gpu, gpu.default_stream(), arena)
    assert spare(gpu, gpu.default_stream()) == kept


def test_scratch_07_a_capture_on_another_stream_leaves_what_is_kept():
    gpu = gs.open_device("sim:h200", quiet=True)
    arena = Arena(gpu)
    with gpu.create_stream() as one, gpu.create_stream() as two:
        kept = call_with(gpu, one, arena)
        refused = pytest.raises(gs.errors.StreamError, match="once on this stream")
        with Captured(two) as graph, refused:
            call_with(gpu, two, arena)
        graph.close()
        with Captured(one) as graph:
            assert call_with(gpu, one, arena) == kept
        graph.close()
        arena.close()


class Captured:
    """A stream as it is while CUDA captures it, where there are no graphs."""

    def __init__(self, stream):
        self.stream = stream

    def __enter__(self):
        self.graph = Graph(self.stream, "captured")
        self.stream.graph, self.stream.capturing = self.graph, True
        return self.graph

    def __exit__(self, *_):
        self.stream.graph, self.stream.capturing = None, False


def test_scratch_07_under_capture_it_was_taken_before(monkeypatch):
    gpu = gs.open_device("sim:h200", quiet=True)
    arena, sizes = Arena(gpu), (4096, 64)

    def call():
        with WorkloadContext(gpu, stream, arena) as ctx:
            return [address(ctx.scratch(size)) for size in sizes]

    def refuse(*args):
        raise AssertionError("the device was asked for memory, or to take it, under capture")

    with gpu.create_stream() as stream:
        warm = call()
        before = gpu.backend.reserved_bytes()
        with monkeypatch.context() as patch, Captured(stream) as graph:
            patch.setattr(gpu.backend, "allocate", refuse)
            patch.setattr(gpu.backend, "free", refuse)
            assert call() == warm
            assert call() == warm, "calls of one capture share it: its stream orders them"
        other = call()
        assert not set(other) & set(warm), "the graph's memory is its own"
        with Captured(stream) as second:
            assert call() == other
        assert gpu.backend.reserved_bytes() == 2 * before
        graph.close()
        second.close()
        arena.close()
        assert gpu.backend.reserved_bytes() == 2 * before, "it is back on its stream's list"
    assert gpu.backend.reserved_bytes() == 0


def test_scratch_07_under_capture_nothing_new_is_taken():
    gpu = gs.open_device("sim:h200", quiet=True)
    arena = Arena(gpu)
    with gpu.create_stream() as stream, gpu.create_stream() as other:
        with WorkloadContext(gpu, stream, arena) as ctx:
            ctx.scratch(64)
        with Captured(stream) as graph:
            with WorkloadContext(gpu, stream, arena) as ctx:
                ctx.scratch(64)
                with pytest.raises(
                    gs.errors.StreamError, match="run the workload once on this stream"
                ):
                    ctx.scratch(64)
                with pytest.raises(gs.errors.StreamError, match="4096 bytes"):
                    ctx.scratch(4096)
                for elsewhere in (other, UNKNOWN):
                    with pytest.raises(gs.errors.StreamError, match="before the capture begins"):
                        ctx.scratch(64, elsewhere)
                assert ctx.scratch(0).nbytes == 0
            refused = pytest.raises(gs.errors.StreamError, match="run the workload once")
            with WorkloadContext(gpu, stream) as bare, refused:
                bare.scratch(64)
        graph.close()
        arena.close()


def test_scratch_07_memory_never_goes_back_into_a_capture():
    """An arena that is closed while its stream is captured leaves its memory to the graph."""
    gpu = gs.open_device("sim:h200", quiet=True)
    arena = Arena(gpu)
    with gpu.create_stream() as stream:
        with WorkloadContext(gpu, stream, arena) as ctx:
            ctx.scratch(64)
        freed = []
        free = gpu.backend.free
        gpu.backend.free = lambda *args: freed.append(args) or free(*args)
        with Captured(stream) as graph:
            arena.close()
            assert freed == []
        graph.close()
        assert [stream for _, stream in freed] == [stream]
    assert gpu.backend.reserved_bytes() == 0


@pytest.mark.gpu
def test_scratch_07_a_captured_workload_replays_on_memory_of_its_own():
    gpu = gs.open_device("cuda:0", quiet=True)

    @gs.workloads.workload
    def double(ctx, out, a):
        middle = ctx.scratch(a.nbytes).view(a.shape, a.dtype)
        ctx.stream.copy(middle, a)
        middle += middle
        ctx.stream.copy(out, middle)

    a, out = gpu.asarray(np.arange(1024, dtype=np.float32)), gpu.empty(1024)
    handle = double(gpu)
    with gpu.carve({"part": 16, "rest": "rest"}) as parts, gpu.create_stream() as whole:
        stream = parts["part"].create_stream()
        with pytest.raises(gs.errors.StreamError, match="run the workload once"), stream.capture():
            handle.execute(out, a, stream=stream)
        handle.execute(out, a, stream=stream)
        stream.synchronize()
        with stream.capture() as graph:
            handle.execute(out, a, stream=stream)
        taken = gpu.backend.reserved_bytes()
        for _ in range(5):
            graph.launch(stream=whole)
            handle.execute(gpu.empty(1024), a, stream=stream)
        gpu.synchronize()
        out[...] = 0
        a += 1
        gpu.synchronize()
        graph.launch(stream=whole)
        whole.synchronize()
        assert np.array_equal(gpu.to_host(out), 2 * (np.arange(1024, dtype=np.float32) + 1))
        assert gpu.backend.reserved_bytes() == taken
    handle.close()
    gpu.close()


# -- 8: capability, tiers, one unified stream -----------------------------------------------

TIERS = [
    pytest.param(11010, True, False, "CUDA 11.2 or newer; driver CUDA 11.1 was found", id="11.1"),
    pytest.param(11020, False, False, "no memory pools", id="11.2 without pools"),
    pytest.param(11020, True, True, None, id="11.2"),
    pytest.param(12020, True, True, None, id="12.2"),
    pytest.param(12040, False, False, "no memory pools", id="12.4 without pools"),
    pytest.param(13000, True, True, None, id="13.0"),
    pytest.param(13010, False, False, "no memory pools", id="13.1 without pools"),
    pytest.param(13010, True, True, None, id="13.1"),
]


@pytest.mark.parametrize(("version", "pools", "ordered", "reason"), TIERS)
def test_scratch_08_each_tier_says_what_it_has_and_works(version, pools, ordered, reason):
    tier = driver.capabilities(version, pools)
    assert tier.stream_ordered_memory is ordered
    if reason is None:
        assert "stream_ordered_memory" not in tier.reasons
    else:
        assert reason in tier.reasons["stream_ordered_memory"]
    gpu = gs.open_device("sim:h200", quiet=True)
    gpu.capabilities = replace(tier, graphs=False, compile_source=False)
    with gpu.create_stream() as stream, gpu.create_stream() as other:
        hold(gpu, stream)
        with WorkloadContext(gpu, stream) as ctx:
            for named in (None, stream.handle, other):
                scratch = ctx.scratch(64, named)
                assert (scratch.stream is not None) is ordered
            assert stream.is_done is not ordered
            hold(gpu, stream)
        assert stream.is_done is not ordered
        handle = takes(gpu)
        first = handle.execute(64, 64, stream=stream)
        reserved = gpu.backend.reserved_bytes()
        assert handle.execute(64, 64, stream=stream) == first
        handle.execute(64, 64, stream=other)
        handle.execute(64, 64, stream=stream)
        assert gpu.backend.reserved_bytes() <= reserved + 128
        handle.close()


@pytest.mark.parametrize("spec", ["sim:h200", "cpu"])
def test_scratch_08_unified_mode_gives_one_stream(spec, monkeypatch):
    from gpuscope.device import select

    monkeypatch.setattr(select, "_cpu", {})
    gpu = gs.open_device(spec, quiet=True, unified_stream=True)
    assert not gpu.capabilities.stream_ordered_memory
    if spec != "cpu":
        assert "unified_stream=True" in gpu.capabilities.reasons["stream_ordered_memory"]
    one, two = gpu.create_stream(), gpu.create_stream()
    unified, selected = gpu.choose_stream()
    assert not selected
    with gs.CallerStreamGuard(one):
        assert gpu.choose_stream() == (unified, True)
    for named in (one, two, two.handle):
        assert gpu.choose_stream(named) == (unified, True)
    caller.set_current_stream(gpu.identity, two)
    try:
        assert gpu.choose_stream() == (unified, True)
    finally:
        caller.clear_current_stream(gpu.identity)
    seen = []

    @gs.workloads.workload
    def look(ctx):
        seen.append((ctx.stream, ctx.scratch(64).stream))

    look(gpu).execute(stream=one)
    assert seen == [(unified, None)]
    for stream in (one, two, unified):
        stream.close()
    with pytest.raises(gs.errors.ClosedError):
        gpu.choose_stream(one)
    assert gpu.choose_stream()[0] is not unified, "made anew"
    gpu.close()


def test_scratch_08_unified_mode_is_chosen_where_a_device_is_opened_first(monkeypatch, capsys):
    from gpuscope.device import select

    monkeypatch.setattr(select, "_cpu", {})
    gs.open_device("cpu", quiet=True)
    with pytest.raises(gs.errors.DeviceUnavailable, match="open already"):
        gs.open_device("cpu", unified_stream=True)
    gs.open_device("sim:h200", unified_stream=True)
    assert "every choice of stream gives one" in capsys.readouterr().out


def test_scratch_08_on_the_cpu_there_is_no_order_and_no_exception():
    cpu = gs.open_device("cpu", quiet=True)
    assert not cpu.capabilities.stream_ordered_memory
    assert cpu.capabilities.reasons["stream_ordered_memory"]
    with cpu.create_stream() as stream, WorkloadContext(cpu, stream) as ctx:
        assert ctx.scratch(8).stream is None
        assert ctx.scratch(8, 0).stream is None
        assert ctx.scratch(8, UNKNOWN).stream is None


def test_scratch_08_the_simulated_gpu_has_it():
    gpu = gs.open_device("sim:h200", quiet=True)
    assert gpu.capabilities.stream_ordered_memory
    assert "stream_ordered_memory" not in gpu.capabilities.reasons


# -- views of simulated memory --------------------------------------------------------------


def test_simulated_views_share_bytes_in_stream_order():
    gpu = gs.open_device("sim:h200", quiet=True)
    fill = gpu.compile("", "fill", model=KernelModel(
        lambda *_: KernelCost(1, 1000), writes=lambda args: args[0],
        compute=lambda: np.full((2, 2), 1.5, np.float32),
    ))  # fmt: skip
    with gpu.create_stream() as stream, WorkloadContext(gpu, stream) as ctx:
        scratch = ctx.scratch(32)
        view = scratch.view((2, 2), "float32")
        stream.launch(fill, view, grid=1, block=32)
        expected = np.full(4, 1.5, np.float32)
        assert np.array_equal(gpu.to_host(view).reshape(-1), expected)
        assert np.array_equal(gpu.to_host(view.T), np.full((2, 2), 1.5, np.float32))
        assert gpu.to_host(scratch.array[:16]).tobytes() == expected.tobytes()
        assert np.array_equal(gpu.to_host(scratch.view(8)[4:]), np.zeros(4, np.float32))
        again = scratch.array[16:].view(np.dtype("float64"))
        assert again.shape == (2,)
        with pytest.raises(gs.errors.InvalidOperand, match="begins at byte 4"):
            scratch.array[4:28].view(np.dtype("float64"))
        with pytest.raises(gs.errors.InvalidOperand, match="do not fit"):
            scratch.array[:7].view(np.dtype("float32"))
        with pytest.raises(gs.errors.InvalidOperand, match="shape"):
            view.reshape((3,))
