"""Graphs: captured once, launched again and again, on both devices."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.workloads.spin import Spin

A = np.arange(64 * 16, dtype=np.float32).reshape(64, 16) % 5 + 1
B = np.arange(16 * 32, dtype=np.float32).reshape(16, 32) % 3 + 1


def refused(reason):
    """Expect CUDA's refusal, whichever of its libraries words it."""
    return pytest.raises(gs.errors.GpuscopeError, match=rf"(?i){'_?'.join(reason.split())}")


@pytest.fixture
def operands(gpu):
    return gpu.asarray(A), gpu.asarray(B), gpu.empty((64, 32))


@pytest.fixture
def spin(gpu):
    """A launch that takes 2 ms, its kernel loaded: a capture forbids that."""
    handle = Spin(gpu, duration_ns=2_000_000)
    handle.execute()

    def launch(stream):
        stream.launch(handle._kernel, 2_000_000, grid=1, block=32)

    return launch


def test_capturing_runs_nothing_and_each_launch_runs_it(gpu, operands):
    a, b, out = operands
    with gpu.create_stream() as stream, gpu.create_stream() as other:
        gs.mm_out(out, a, b, stream=stream)
        stream.synchronize()
        with stream.capture(name="step") as graph:
            gs.mm_out(out, a, b, stream=stream)
        for where in (stream, other, stream):
            out[...] = 0
            gpu.synchronize()
            assert not gpu.to_host(out).any()
            graph.launch(stream=where)
            where.synchronize()
            assert np.array_equal(gpu.to_host(out), A @ B)
        graph.close()


def test_a_graph_reads_what_is_there_when_it_is_launched(gpu, operands):
    a, b, out = operands
    with gpu.create_stream() as stream:
        gs.mm_out(out, a, b, stream=stream)
        with stream.capture() as graph:
            gs.mm_out(out, a, b, stream=stream)
        stream.copy(a, 2 * A)
        graph.launch(stream=stream)
        stream.synchronize()
        assert np.array_equal(gpu.to_host(out), 2 * A @ B)
        graph.close()


@pytest.mark.gpu_alone("looks whether work is done at once")
def test_without_a_selected_stream_a_launch_waits(gpu, operands, spin):
    with gpu.create_stream() as stream:
        with stream.capture() as graph:
            spin(stream)
        event = gpu.create_event()

        def waited():
            graph.launch()
            event.record(stream)
            return event.is_done  # a little later where the GPU is busy

        assert any(waited() for _ in range(20)) or gpu.is_simulated
        graph.close()


def timed(gpu, graph, stream):
    """How long a launch takes."""
    gpu.synchronize()
    before = stream.record()
    graph.launch(stream=stream)
    after = stream.record()
    stream.synchronize()
    return after.elapsed_ns(since=before)


def test_one_stream_captured_keeps_its_order(gpu, spin):
    with gpu.create_stream() as stream:
        with stream.capture() as graph:
            spin(stream)
            spin(stream)
        assert timed(gpu, graph, stream) >= 4_000_000
        graph.close()


def test_fork_and_join_through_events(gpu, spin):
    """Two branches run side by side, and what joins them follows both."""
    with gpu.create_stream() as one, gpu.create_stream() as two:
        with one.capture() as graph:
            fork = one.record()
            two.wait(fork)
            assert two.capturing
            spin(one)
            spin(two)
            one.wait(two.record())
            spin(one)
        assert not two.capturing
        assert 4_000_000 <= timed(gpu, graph, one) < 5_800_000
        spin(two)  # runs at once again
        two.synchronize()
        graph.close()


def test_a_graph_keeps_the_partition_it_was_captured_in(gpu, operands):
    a, b, out = operands
    with gpu.carve({"part": 16, "rest": "rest"}) as parts, gpu.create_stream() as whole:
        stream = parts["part"].create_stream()
        gs.mm_out(out, a, b, stream=stream)
        stream.synchronize()
        with stream.capture() as graph:
            gs.mm_out(out, a, b, stream=stream)
        assert graph.partition is parts["part"]
        with gs.profile(gpu) as recording:
            graph.launch(stream=whole)
            whole.synchronize()
        rows = recording.trace.where(kind="kernel").spans.to_pylist()
        assert {row["partition"] for row in rows} == {"part"}
        (number,) = {row["graph"] for row in rows}
        assert number == graph.id if gpu.is_simulated else number > 0
    assert graph.closed
    with pytest.raises(gs.errors.ClosedError):
        graph.launch()


def test_waiting_for_the_device_waits_for_graphs_in_partitions(gpu, spin):
    with gpu.carve([16, 24]) as parts, gpu.create_stream() as whole:
        one, two = (part.create_stream() for part in parts.values())
        for captured in (whole, one):
            with captured.capture() as graph:
                spin(captured)
            for where in (one, two):
                graph.launch(stream=where)
            gpu.synchronize()
            assert one.is_done
            assert two.is_done
            graph.close()


def test_a_graph_that_nobody_holds_any_more_does_not_spoil_a_capture(gpu, spin):
    with gpu.create_stream() as stream:
        for _ in range(3):  # each lets go of the one before
            with stream.capture() as graph:
                gc.collect()
                spin(stream)
            graph.launch(stream=stream)
        stream.synchronize()
        graph.close()


def test_launches_of_one_graph_never_run_beside_each_other(gpu, spin):
    with gpu.create_stream() as one, gpu.create_stream() as two:
        with one.capture() as graph:
            spin(one)
        gpu.synchronize()
        before = one.record()
        graph.launch(stream=one)
        graph.launch(stream=two)
        after = two.record()
        gpu.synchronize()
        assert after.elapsed_ns(since=before) >= 4_000_000
        graph.close()


def test_host_functions_run_at_every_launch(gpu):
    seen = []
    with gpu.create_stream() as stream:
        with stream.capture() as graph:
            stream.host_call(lambda: seen.append("first"))
            stream.host_call(lambda: seen.append("second"))
        gc.collect()
        assert not seen
        for _ in range(3):
            graph.launch(stream=stream)
        stream.synchronize()
        assert seen == ["first", "second"] * 3
        graph.close()


def test_an_empty_graph_is_one(gpu):
    with gpu.create_stream() as stream:
        with stream.capture() as graph:
            pass
        graph.launch(stream=stream)
        stream.synchronize()
        graph.close()


def test_a_capture_inside_itself_is_refused(gpu):
    again = pytest.raises(gs.errors.StreamError, match="captured already")
    with gpu.create_stream() as stream, stream.capture() as graph, again, stream.capture():
        pass
    graph.close()


def test_work_that_was_not_joined_is_refused(gpu, spin):
    with gpu.create_stream() as one, gpu.create_stream() as two:
        with refused("stream capture unjoined"), one.capture() as graph:
            two.wait(one.record())
            spin(two)
        with pytest.raises(gs.errors.ClosedError, match="never captured"):
            graph.launch(stream=one)
        graph.close()
        assert not one.capturing
        assert not two.capturing
        for stream in (one, two):  # nothing is left behind
            spin(stream)
            stream.synchronize()


def test_waiting_for_the_stream_is_refused_and_ends_the_capture_badly(gpu, spin):
    with gpu.create_stream() as stream:
        with refused("stream capture invalidated"), stream.capture() as graph:
            spin(stream)
            with refused("stream capture unsupported"):
                stream.synchronize()
        graph.close()
        spin(stream)
        stream.synchronize()


def test_launching_a_graph_is_refused(gpu, spin):
    with gpu.create_stream() as stream:
        with stream.capture() as inner:
            spin(stream)
        with refused("stream capture invalidated"), stream.capture() as outer:
            spin(stream)
            with refused("stream capture unsupported"):
                inner.launch(stream=stream)
        outer.close()
        inner.launch(stream=stream)
        stream.synchronize()
        inner.close()


def test_asking_the_stream_is_refused(gpu):
    with gpu.create_stream() as stream:
        with refused("stream capture invalidated"), stream.capture() as graph:
            stream.record()
            with refused("stream capture unsupported"):
                stream.is_done  # noqa: B018 - asking is the point
        graph.close()
        assert stream.is_done


def test_a_captured_event_is_refused_to_the_host_and_so_is_the_next_record(gpu):
    with gpu.create_stream() as stream:
        with refused("stream capture invalidated"), stream.capture() as graph:
            event = stream.record()
            with refused("captured event"):
                event.is_done  # noqa: B018 - asking is the point
            with refused("stream capture invalidated"):
                stream.record(event)
        graph.close()


def test_waiting_for_the_device_is_refused(gpu):
    with gpu.create_stream() as stream, refused("stream capture"), stream.capture() as graph:
        gpu.synchronize()
    graph.close()


def test_waiting_for_work_that_is_not_captured_is_refused(gpu, spin):
    with gpu.create_stream() as one, gpu.create_stream() as two:
        spin(two)
        outside = two.record()
        with refused("stream capture isolation"), one.capture() as graph:
            one.wait(outside)
        graph.close()


def test_joining_two_captures_is_refused(gpu):
    with gpu.create_stream() as one, gpu.create_stream() as two:
        with refused("stream capture invalidated"), one.capture() as first:
            with refused("stream capture merge"), two.capture() as second:
                two.wait(one.record())
            second.close()
        first.close()
