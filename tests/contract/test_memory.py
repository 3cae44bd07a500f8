"""Memory is given out again only when the work it was handed to is done, on both devices.

A held stream has not begun its work when its operands are dropped and their memory is asked for
again: with others' values in it, that work would compute something else.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from latches import Latch

import gpuscope as gs

SIDE = 48
A = np.arange(SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE) % 5 + 1
B = np.arange(SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE) % 3 + 1
WIDE = np.repeat(A, 2, axis=1)  # every other column of it is A
OTHER = np.full((SIDE, SIDE), 99, np.float32)


def load_kernels(gpu, stream):
    """Launch everything once: what is loaded behind a latch would wait for it."""
    warm = gpu.asarray(A)
    gs.mm_out(gpu.empty((SIDE, SIDE)), gpu.asarray(WIDE)[:, ::2], warm, stream=stream)
    stream.copy(warm, gpu.asarray(B))
    stream.synchronize()


@pytest.fixture
def latch(gpu):
    with gpu.create_stream() as stream:
        load_kernels(gpu, stream)
    with Latch(gpu) as found:
        yield found


@pytest.fixture(params=["created", "partition", "per-thread default"])
def stream(gpu, request):
    """One of ours on the whole GPU or a part, or one that is not ours."""
    with contextlib.ExitStack() as entered:
        if request.param == "created":
            made = entered.enter_context(gpu.create_stream())
        elif request.param == "partition":
            made = entered.enter_context(gpu.carve([16]))[0].create_stream()
        else:
            made = gpu.default_stream()
        load_kernels(gpu, made)  # a partition's may be others
        yield made


def address(array):
    return array.buffer.address if hasattr(array, "buffer") else array.data.ptr


def overwrite(gpu, like=OTHER):
    """Ask for memory as dropped arrays had it, and write to it."""
    return [gpu.asarray(like) for _ in range(8)]


def values(gpu, array):
    return gpu.to_host(array)


# -- operands -----------------------------------------------------------------------------
def test_operands_dropped_behind_a_held_stream_keep_their_values(gpu, latch, stream):
    out = gpu.empty((SIDE, SIDE))
    latch.hold(stream)
    gs.mm_out(out, gpu.asarray(A), gpu.asarray(B), stream=stream)
    others = overwrite(gpu)
    latch.open()
    stream.synchronize()
    assert np.array_equal(values(gpu, out), A @ B)
    assert all(np.array_equal(values(gpu, other), OTHER) for other in others)


def test_an_output_dropped_behind_a_held_stream_is_nobody_elses_yet(gpu, latch, stream):
    a, b = gpu.asarray(A), gpu.asarray(B)
    latch.hold(stream)
    gs.mm_out(gpu.empty((SIDE, SIDE)), a, b, stream=stream)
    others = overwrite(gpu)
    latch.open()
    stream.synchronize()
    assert all(np.array_equal(values(gpu, other), OTHER) for other in others)


def test_a_view_keeps_the_memory_and_is_tagged_like_it(gpu, latch, stream):
    out = gpu.empty((SIDE, SIDE))
    latch.hold(stream)
    a = gpu.asarray(np.vstack([OTHER, A]))[SIDE:]
    gs.mm_out(out, a, gpu.asarray(B).T.T, stream=stream)
    del a
    others = overwrite(gpu) + overwrite(gpu, np.vstack([OTHER, OTHER]))
    latch.open()
    stream.synchronize()
    assert np.array_equal(values(gpu, out), A @ B)
    del others


def test_a_strided_operand_and_its_copy_keep_their_values(gpu, latch, stream):
    out = gpu.empty((SIDE, SIDE))
    latch.hold(stream)
    gs.mm_out(out, gpu.asarray(WIDE)[:, ::2], gpu.asarray(B), stream=stream)
    others = overwrite(gpu) + overwrite(gpu, np.full_like(WIDE, 99))
    latch.open()
    stream.synchronize()
    assert np.array_equal(values(gpu, out), A @ B)
    del others


def test_copies_of_strided_operands_on_two_streams_share_no_memory(gpu, latch):
    wides = [gpu.asarray(np.repeat(host, 2, axis=1))[:, ::2] for host in (A, B)]
    outs = [gpu.empty((SIDE, SIDE)) for _ in range(2)]
    b = gpu.asarray(B)
    with gpu.create_stream() as one, gpu.create_stream() as two:
        latch.hold(one)
        gs.mm_out(outs[0], wides[0], b, stream=one)
        gs.mm_out(outs[1], wides[1], b, stream=two)
        two.synchronize()
        latch.open()
        one.synchronize()
    for out, host in zip(outs, (A, B), strict=True):
        assert np.array_equal(values(gpu, out), host @ B)


def test_copies_of_strided_operands_reuse_memory_of_their_stream_at_once(gpu, latch):
    wide, b, out = gpu.asarray(WIDE)[:, ::2], gpu.asarray(B), gpu.empty((SIDE, SIDE))
    with gpu.create_stream() as stream:
        latch.hold(stream)
        gs.mm_out(out, wide, b, stream=stream)
        reserved = gpu.backend.reserved_bytes()
        for _ in range(10):
            gs.mm_out(out, wide, b, stream=stream)
        assert gpu.backend.reserved_bytes() == reserved
        latch.open()
        stream.synchronize()
    assert np.array_equal(values(gpu, out), A @ B)


def test_a_handles_operands_dropped_on_every_path_keep_their_values(gpu, latch):
    """The first call, other operands of the same like, and the same on another stream."""
    outs = [gpu.empty((SIDE, SIDE)) for _ in range(6)]
    others = []
    with (
        gpu.create_stream() as one, gpu.create_stream() as two,
        gs.Gemm(gpu, m=SIDE, n=SIDE, k=SIDE, dtype="float32") as gemm,
    ):  # fmt: skip
        gemm.execute(gpu.asarray(A), gpu.asarray(B), outs[0], stream=one)
        gpu.synchronize()
        latch.hold(one)
        latch.hold(two)
        for out, stream in zip(outs, (one, one, two, two, one, two), strict=True):
            gemm.execute(gpu.asarray(A), gpu.asarray(B), out, stream=stream)
            others += overwrite(gpu)
        latch.open()
        gpu.synchronize()
        for out in outs:
            assert np.array_equal(values(gpu, out), A @ B)


def test_arrays_dropped_behind_a_copy_keep_their_values(gpu, latch, stream):
    target = gpu.empty((SIDE, SIDE))
    latch.hold(stream)
    stream.copy(target, gpu.asarray(A))
    others = overwrite(gpu)
    latch.open()
    stream.synchronize()
    assert np.array_equal(values(gpu, target), A)
    del others


def test_pinned_memory_dropped_behind_a_copy_from_it_keeps_its_values(gpu, latch, stream):
    target = gpu.empty((SIDE, SIDE))
    host = gpu.empty_pinned((SIDE, SIDE))
    host[...] = A
    latch.hold(stream)
    stream.copy(target, host[:])  # a view of it is held too
    del host
    others = [gpu.empty_pinned((SIDE, SIDE)) for _ in range(8)]
    for other in others:
        other[...] = 99
    latch.open()
    stream.synchronize()
    assert np.array_equal(values(gpu, target), A)


def test_pinned_memory_dropped_behind_a_copy_to_it_is_nobody_elses_yet(gpu, latch, stream):
    source = gpu.asarray(A)
    latch.hold(stream)
    stream.copy(gpu.empty_pinned((SIDE, SIDE)), source)
    others = [gpu.empty_pinned((SIDE, SIDE)) for _ in range(8)]
    for other in others:
        other[...] = 99
    latch.open()
    stream.synchronize()
    assert all((other == 99).all() for other in others)


def test_what_a_workload_is_given_and_makes_may_be_dropped(gpu, latch, stream):
    @gs.workloads.workload
    def cube(ctx, matrices, *, last):
        square = gs.mm_out(ctx.device.empty((SIDE, SIDE)), matrices[0], matrices[0])
        return gs.mm_out(ctx.device.empty((SIDE, SIDE)), square, last)

    with cube(gpu) as handle:
        latch.hold(stream)
        out = handle.execute([gpu.asarray(A)], last=gpu.asarray(B), stream=stream)
        others = overwrite(gpu)
        latch.open()
        stream.synchronize()
        assert np.array_equal(values(gpu, out), A @ A @ B)
    del others


def test_what_a_workload_makes_for_another_librarys_launches_may_be_dropped(gpu, latch, stream):
    out = gpu.empty((SIDE, SIDE))

    @gs.workloads.workload
    def unseen(ctx):
        made = ctx.device.asarray(A)
        ctx.device.backend.copy(ctx.stream.raw, out, made, 0)

    with unseen(gpu) as handle:
        latch.hold(stream)
        handle.execute(stream=stream)
        others = overwrite(gpu)
        latch.open()
        stream.synchronize()
        assert np.array_equal(values(gpu, out), A)
    del others


def test_a_stream_can_be_told_of_work_that_it_does_not_see(gpu, latch, stream):
    """As a library's launch: the backend is asked behind gpuscope's back."""
    out, a, b = gpu.empty((SIDE, SIDE)), gpu.asarray(A), gpu.asarray(B)
    latch.hold(stream)
    gpu.backend.copy(stream.raw, out, a, 0)
    stream.hold(a, b, None, 3, "text")
    del a, b
    others = overwrite(gpu)
    latch.open()
    stream.synchronize()
    assert np.array_equal(values(gpu, out), A)
    del others


# -- reuse --------------------------------------------------------------------------------
def test_memory_that_no_work_uses_is_given_out_again_at_once(gpu):
    seen = set()
    for _ in range(10):
        seen.add(address(gpu.asarray(A)))
    assert len(seen) <= 2


def test_memory_is_given_out_again_when_its_work_is_done(gpu, stream):
    a, b = gpu.asarray(A), gpu.asarray(B)
    seen = set()
    for _ in range(10):
        out = gs.mm_out(gpu.empty((SIDE, SIDE)), a, b, stream=stream)
        seen.add(address(out))
        del out
        stream.synchronize()
    assert len(seen) <= 3


def test_memory_made_for_a_stream_that_never_ran_is_given_out_again(gpu):
    with gpu.create_stream() as stream, gs.CallerStreamGuard(stream):
        assert len({address(gpu.empty((SIDE, SIDE))) for _ in range(10)}) <= 4


def test_memory_used_on_many_streams_is_given_out_again_when_they_are_closed(gpu):
    """And what an array remembers of streams that are gone does not pile up."""
    a = gpu.asarray(A)
    for _ in range(40):
        with gpu.create_stream() as stream:
            gs.mm_out(gpu.empty((SIDE, SIDE)), a, a, stream=stream)
    where = address(a)
    del a
    assert where in {address(array) for array in [gpu.empty((SIDE, SIDE)) for _ in range(8)]}


def test_the_launch_path_records_no_events_on_our_streams(gpu, monkeypatch):
    marks = []
    mark = gpu.backend.mark
    monkeypatch.setattr(gpu.backend, "mark", lambda stream: marks.append(stream) or mark(stream))
    a, b, out = gpu.asarray(A), gpu.asarray(B), gpu.empty((SIDE, SIDE))
    with gpu.create_stream() as stream:
        for _ in range(5):
            gs.mm_out(out, a, b, stream=stream)
        stream.copy(out, a)
    assert marks == []


def test_memory_dropped_while_its_stream_is_captured_waits_for_the_end(gpu, latch):
    with gpu.create_stream() as stream:
        a, b, out = gpu.asarray(A), gpu.asarray(B), gpu.empty((SIDE, SIDE))
        latch.hold(stream)
        gs.mm_out(out, a, b, stream=stream)
        with stream.capture() as graph:
            del a, b
            others = overwrite(gpu)
        others += overwrite(gpu)
        latch.open()
        stream.synchronize()
        assert np.array_equal(values(gpu, out), A @ B)
        graph.close()


# -- graphs -------------------------------------------------------------------------------
def test_a_graph_holds_the_operands_of_its_work(gpu):
    out, first = gpu.empty((SIDE, SIDE)), gpu.empty((SIDE, SIDE))
    with gpu.create_stream() as stream:
        gs.mm_out(out, gpu.asarray(WIDE)[:, ::2], first, stream=stream)
        a, wide, middle = gpu.asarray(A), gpu.asarray(WIDE), gpu.empty((SIDE, SIDE))
        last = gpu.asarray(B)
        with stream.capture() as graph:
            stream.copy(first, a)
            gs.mm_out(middle, first, wide[:, ::2], stream=stream)
            gs.mm_out(out, middle, last, stream=stream)
        del a, wide, middle, last, first
        others = overwrite(gpu) + overwrite(gpu, np.full_like(WIDE, 99))
        for _ in range(2):
            graph.launch(stream=stream)
            stream.synchronize()
            assert np.array_equal(values(gpu, out), A @ A @ B)
            assert all((values(gpu, other) == 99).all() for other in others)
        graph.close()


def test_what_a_graph_held_is_given_out_again_when_it_is_closed(gpu):
    a, out = gpu.asarray(A), gpu.empty((SIDE, SIDE))
    with gpu.create_stream() as stream:
        gs.mm_out(out, a, a, stream=stream)
        with stream.capture() as graph:
            gs.mm_out(out, a, a, stream=stream)
        where = address(a)
        del a
        graph.launch(stream=stream)
        graph.close()
        stream.synchronize()
        assert where in {address(array) for array in [gpu.empty((SIDE, SIDE)) for _ in range(8)]}


def test_a_product_on_a_stream_that_joined_a_capture_outlives_the_stream(gpu):
    """Its workspace is the graph's, not the stream's, which goes with it."""
    big = np.ones((512, 512), np.float32)
    a, outs = gpu.asarray(big), [gpu.empty((512, 512)) for _ in range(2)]
    with gpu.create_stream() as stream:
        joined = gpu.create_stream()
        for out, where in zip(outs, (stream, joined), strict=True):
            gs.mm_out(out, a, a, stream=where)
        gpu.synchronize()
        with stream.capture() as graph:
            joined.wait(stream.record())
            gs.mm_out(outs[0], a, a, stream=stream)
            gs.mm_out(outs[1], a, a, stream=joined)
            stream.wait(joined.record())
        if not gpu.is_simulated:
            assert len(graph.workspaces) == 2
        joined.close()
        others = [gpu.asarray(np.full(8 << 20, 7, np.float32)) for _ in range(3)]
        for _ in range(3):
            graph.launch(stream=stream)
        stream.synchronize()
        for out in outs:
            assert (values(gpu, out) == 512).all()
        assert all((values(gpu, other) == 7).all() for other in others)
        graph.close()


def test_a_handle_replays_a_product_of_strided_operands(gpu):
    wide, b, out = gpu.asarray(WIDE)[:, ::2], gpu.asarray(B), gpu.empty((SIDE, SIDE))
    with (
        gpu.create_stream() as stream,
        gs.Gemm(gpu, m=SIDE, n=SIDE, k=SIDE, dtype="float32") as gemm,
    ):
        gemm.use_graph()
        for _ in range(3):
            stream.copy(out, gpu.asarray(OTHER))
            gemm.execute(wide, b, out, stream=stream)
            others = overwrite(gpu)
            stream.synchronize()
            assert np.array_equal(values(gpu, out), A @ B)
    del others


# -- threads ------------------------------------------------------------------------------
def test_many_threads_that_drop_their_operands_disturb_nobody(gpu):
    rng = np.random.default_rng(14)
    hosts = [rng.integers(-4, 5, (SIDE, SIDE)).astype(np.float32) for _ in range(16)]
    streams = [gpu.create_stream() for _ in range(4)]

    def work(index):
        mine = np.random.default_rng(index)
        outs = []
        for turn in range(24):
            left, right = hosts[mine.integers(16)], hosts[mine.integers(16)]
            out = gpu.empty((SIDE, SIDE))
            a = gpu.asarray(np.repeat(left, 2, axis=1))[:, ::2] if turn % 3 else gpu.asarray(left)
            gs.mm_out(out, a, gpu.asarray(right), stream=streams[mine.integers(4)])
            outs.append((out, left @ right))
        return outs

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(work, range(6)))
    gpu.synchronize()
    for out, expected in [pair for outs in found for pair in outs]:
        assert np.array_equal(values(gpu, out), expected)
    for stream in streams:
        stream.close()


# -- captures -----------------------------------------------------------------------------
@gs.workloads.workload
def scratching(ctx, a):
    square = ctx.scratch(a.nbytes).view(a.shape, a.dtype)
    gs.mm_out(square, a, a)


def a_handle_with_a_graph(gpu, stream):
    handle = gs.Gemm(gpu, m=SIDE, n=SIDE, k=SIDE, dtype="float32")
    handle.use_graph()
    handle.execute(stream=stream)
    handle.execute(stream=stream)
    return handle


def a_handle_in_flight(gpu, stream):
    handle = gs.Gemm(gpu, m=SIDE, n=SIDE, k=SIDE, dtype="float32")
    handle.execute(stream=stream)
    return handle


def a_functions_scratch(gpu, stream):
    handle = scratching(gpu)
    handle.execute(gpu.asarray(A), stream=stream)
    return handle


def a_graph(gpu, stream):
    with stream.capture() as graph:
        gs.mm_out(gpu.empty((SIDE, SIDE)), gpu.asarray(A), gpu.asarray(B), stream=stream)
    graph.launch(stream=stream)
    return graph


THINGS = {
    "handle with a graph": a_handle_with_a_graph,
    "handle in flight": a_handle_in_flight,
    "function's scratch": a_functions_scratch,
    "untagged scratch": lambda gpu, stream: gpu.scratch(4096),
    "graph": a_graph,
    "stream": lambda gpu, stream: gpu.create_stream(),
    "stream in use": lambda gpu, stream: used(gpu.create_stream()),
    "partitions": lambda gpu, stream: gpu.carve([16]),
    "array": lambda gpu, stream: gpu.asarray(A),
    "pinned": lambda gpu, stream: gpu.empty_pinned(4096),
}


def used(stream):
    gpu = stream.device
    gs.mm_out(gpu.empty((SIDE, SIDE)), gpu.asarray(A), gpu.asarray(B), stream=stream)
    return stream


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("how", ["collected", "closed"])
@pytest.mark.parametrize("name", THINGS)
def test_what_is_collected_or_closed_spoils_no_capture(gpu, name, how):
    out, a, b = gpu.empty((SIDE, SIDE)), gpu.asarray(A), gpu.asarray(B)
    with gpu.create_stream() as stream, gpu.create_stream() as other:
        gs.mm_out(out, a, b, stream=stream)
        gs.mm_out(out, a, b, stream=other)
        gpu.synchronize()
        thing = THINGS[name](gpu, other)
        with stream.capture() as graph:
            gs.mm_out(out, a, b, stream=stream)
            if how == "closed" and hasattr(thing, "close"):
                thing.close()
                assert getattr(thing, "closed", True), "nobody can use it any more"
            del thing
            gc.collect()
            gs.mm_out(out, a, b, stream=stream)
        graph.launch(stream=stream)
        stream.synchronize()
        assert np.array_equal(values(gpu, out), A @ B)
        graph.close()


def test_what_a_capture_put_off_is_done_when_it_ends(gpu):
    with gpu.create_stream() as stream:
        partitions = gpu.carve([16, 24])
        held = partitions[0].create_stream()
        with stream.capture() as outer:
            with gpu.create_stream() as inside, inside.capture() as inner:
                partitions.close()
                assert partitions.closed
                assert held.closed is False, "it waits for the end of both"
            assert held.closed is False
        assert held.closed
        assert gpu.partitions == ()
        outer.close()
        inner.close()


def test_a_stream_that_is_being_captured_is_not_closed(gpu):
    with gpu.create_stream() as stream:
        with stream.capture() as graph:
            with pytest.raises(gs.errors.StreamError, match="leave the capture"):
                stream.close()
            assert not stream.closed
        graph.close()


def test_a_capture_inside_another_gives_two_graphs(gpu):
    a, b = gpu.asarray(A), gpu.asarray(B)
    outs = [gpu.empty((SIDE, SIDE)) for _ in range(2)]
    with gpu.create_stream() as one, gpu.create_stream() as two:
        for stream in (one, two):
            gs.mm_out(outs[0], a, b, stream=stream)
        gpu.synchronize()
        with one.capture() as outer:
            gs.mm_out(outs[0], a, b, stream=one)
            with two.capture() as inner:
                gs.mm_out(outs[1], b, a, stream=two)
            gs.mm_out(outs[0], b, b, stream=one)
        outer.launch(stream=one)
        inner.launch(stream=two)
        gpu.synchronize()
        assert np.array_equal(values(gpu, outs[0]), B @ B)
        assert np.array_equal(values(gpu, outs[1]), B @ A)
        outer.close()
        inner.close()


def test_another_threads_capture_is_left_alone(gpu):
    """What is closed and collected there is done at once: a capture looks at its own thread."""
    out, a, b = gpu.empty((SIDE, SIDE)), gpu.asarray(A), gpu.asarray(B)
    begun, go_on = threading.Event(), threading.Event()
    with gpu.create_stream() as stream, gpu.create_stream() as other:
        for where in (stream, other):
            gs.mm_out(out, a, b, stream=where)
        things = [make(gpu, other) for name, make in THINGS.items() if name != "untagged scratch"]

        def capture():
            with stream.capture() as graph:
                gs.mm_out(out, a, b, stream=stream)
                begun.set()
                assert go_on.wait()
            return graph

        with ThreadPoolExecutor(1) as pool:
            graph = pool.submit(capture)
            try:
                assert begun.wait()
                for thing in things:
                    if hasattr(thing, "close"):
                        thing.close()
                things.clear()
                del thing
                overwrite(gpu)
            finally:
                go_on.set()
            graph = graph.result(60)
        graph.launch(stream=stream)
        stream.synchronize()
        assert np.array_equal(values(gpu, out), A @ B)
        graph.close()


# -- handles ------------------------------------------------------------------------------
def test_handle_05_closing_one_with_a_graph_waits_for_its_own_work_only(gpu, latch):
    out, a, b = gpu.empty((SIDE, SIDE)), gpu.asarray(A), gpu.asarray(B)
    with gpu.carve([16, 24]) as parts, gpu.create_stream() as held:
        stream = parts[0].create_stream()
        gemm = gs.Gemm(gpu, m=SIDE, n=SIDE, k=SIDE, dtype="float32")
        gemm.use_graph()
        for _ in range(3):
            gemm.execute(a, b, out, stream=stream)
        latch.hold(held)
        gemm.close()
        assert not held.is_done
        assert stream.is_done
        latch.open()
        gpu.synchronize()
        assert np.array_equal(values(gpu, out), A @ B)


def test_handle_04_other_operands_of_a_graph_wait_for_its_own_work_only(gpu, latch):
    out, a, b = gpu.empty((SIDE, SIDE)), gpu.asarray(A), gpu.asarray(B)
    with (
        gpu.create_stream() as stream, gpu.create_stream() as held,
        gs.Gemm(gpu, m=SIDE, n=SIDE, k=SIDE, dtype="float32") as gemm,
    ):  # fmt: skip
        gemm.use_graph()
        gemm.execute(a, b, out, stream=stream)
        gemm.execute(a, b, out, stream=stream)
        latch.hold(held)
        gemm.execute(b, a, out, stream=stream)
        gemm.execute(b, a, out, stream=stream)
        gemm.wait()
        assert not held.is_done
        latch.open()
        gpu.synchronize()
        assert np.array_equal(values(gpu, out), B @ A)


def test_a_scratch_that_a_graph_used_goes_back_without_waiting_for_the_device(gpu, latch):
    a = gpu.asarray(A)
    with gpu.create_stream() as stream, gpu.create_stream() as held:
        handle = scratching(gpu)
        handle.execute(a, stream=stream)
        handle.use_graph()
        for _ in range(3):
            handle.execute(a, stream=stream)
        latch.hold(held)
        handle.close()
        assert not held.is_done
        latch.open()


def test_a_partition_lets_go_of_what_is_closed_before_it(gpu):
    with gpu.carve([16]) as parts:
        seen, left = set(), []
        for _ in range(10):
            stream = parts[0].create_stream()
            with gs.Gemm(parts[0], m=SIDE, n=SIDE, k=SIDE, dtype="float32") as gemm:
                gemm.execute(stream=stream)
                seen |= {address(array) for array in gemm.operands()}
            with stream.capture() as graph:
                pass
            graph.close()
            stream.close()
            left += [weakref.ref(gemm), weakref.ref(graph), weakref.ref(stream)]
        assert len(seen) <= 6, "the operands of one are there for the next"
        del gemm, graph, stream
        gc.collect()
        assert [ref for ref in left if ref() is not None] == []
