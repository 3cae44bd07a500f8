"""Contract B: reusable handles, and rule A14, which is about them."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.device import caller
from gpuscope.device.stream import Stream
from gpuscope.workloads.copy import Copy
from gpuscope.workloads.handle import Handle
from gpuscope.workloads.spin import Spin

HOLD_NS = 30_000_000
LONG_NS = 300_000_000


def gemm(gpu, **kwargs):
    return gs.Gemm(gpu, m=64, n=32, k=16, **kwargs)


@pytest.fixture
def hold(gpu):
    """Keep a stream busy; a handle that nobody keeps would wait when it is collected."""
    kept = []

    def keep(stream, duration_ns=HOLD_NS):
        kept.append(Spin(gpu, duration_ns=duration_ns))
        kept[-1].execute(stream=stream)
        return kept[-1]

    yield keep
    for one in kept:
        one.close()


def streams_of(watcher, kind="launch"):
    return [call.stream for call in watcher.begun if call.kind == kind]


def test_handle_01_stream_choice(gpu, watcher):
    handle = gemm(gpu)
    handle.operands()
    key = gpu.identity
    with gpu.create_stream() as one, gpu.create_stream() as two, gpu.create_stream() as three:
        handle.execute()
        assert streams_of(watcher)[-1] is gpu.default_stream()
        caller.set_current_stream(key, three)
        try:
            handle.execute()
            assert streams_of(watcher)[-1] is three
            with gs.CallerStreamGuard(two):
                handle.execute()
                assert streams_of(watcher)[-1] is two
                handle.execute(stream=one)
                assert streams_of(watcher)[-1] is one
            handle.execute()
            assert streams_of(watcher)[-1] is three
        finally:
            caller.clear_current_stream(key)


def test_handle_01_without_a_selection_it_has_finished(gpu):
    handle = gemm(gpu)
    handle.execute()
    assert handle.completion.is_done
    assert not handle.in_flight


def test_handle_01_owns_no_stream(gpu):
    handle = gemm(gpu)
    with gpu.create_stream() as stream:
        handle.execute(stream=stream)
    assert stream.closed
    handle.wait()
    handle.close()


def test_handle_02_returns_at_once_and_is_in_flight(gpu):
    handle = gemm(gpu)
    handle.operands()
    with gpu.create_stream() as stream:
        handle.execute(stream=stream)
        handle.wait()
        hold = Spin(gpu, duration_ns=HOLD_NS)
        hold.execute(stream=stream)
        out = handle.execute(stream=stream)
        assert out is handle.operands()[2]
        assert handle.in_flight
        handle.wait()
        assert not handle.in_flight


@pytest.mark.parametrize("make", [gemm, lambda gpu: Copy(gpu, nbytes=4096)], ids=["gemm", "copy"])
def test_handle_02_no_wait_of_the_host_on_the_common_path(gpu, hold, make, watcher):
    """Calls in a row, under a guard, while the GPU is held: every one returns at once."""
    handle = make(gpu)
    with gpu.create_stream() as stream, gs.CallerStreamGuard(stream):
        handle.execute()
        handle.wait()
        hold(stream)
        watcher.begun.clear()
        for _ in range(5):
            handle.execute()
        kinds = {call.kind for call in watcher.begun}
        assert kinds == {"handle", "launch", "record"}
        assert handle.in_flight


def test_handle_02_unwatched_calls_do_the_same(gpu):
    """What the common path leaves out is only the telling."""
    handle = gs.Gemm(gpu, m=64, n=32, k=16, dtype="float32")
    a, b, out = handle.operands()
    other = gpu.random((16, 32), seed=9)
    expected = gpu.to_host(a) @ gpu.to_host(b)
    changed = gpu.to_host(a) @ gpu.to_host(other)
    with gpu.create_stream() as one, gpu.create_stream() as two:
        for stream in (one, one, two, one):
            with gs.CallerStreamGuard(stream):
                assert handle.execute() is out
                assert handle.execute(a, b, out) is out
                assert np.allclose(gpu.to_host(out), expected, atol=1e-5)
                assert handle.execute(a, other, out) is out
                assert np.allclose(gpu.to_host(out), changed, atol=1e-5)
        last = handle.completion
        handle.execute(stream=one)
        assert handle.completion is not last


def test_handle_01_a_device_with_one_stream_for_all_keeps_to_it():
    gpu = gs.open_device("sim:h200", unified_stream=True, quiet=True)
    handle = gemm(gpu)
    handle.operands()
    with gpu.create_stream() as given:
        chosen, _ = gpu.choose_stream(given)
    used = []
    real = gpu.backend.matmul
    handle._matmul = gpu.backend.matmul = lambda stream, *rest: (
        used.append(stream) or real(stream, *rest)
    )
    with gpu.create_stream() as one, gpu.create_stream() as two:
        for stream in (one, one, two, one, chosen, two):
            handle.execute(stream=stream)
    handle.close()
    assert used == [chosen] * 6
    gpu.close()


def test_handle_02_a_completion_stays_its_calls(gpu, hold):
    handle = gemm(gpu)
    handle.operands()
    with gpu.create_stream() as stream:
        handle.execute(stream=stream)
        first = handle.completion
        assert handle.completion is first
        first.wait()
        hold(stream)
        handle.execute(stream=stream)
        second = handle.completion
        handle.execute(stream=stream)
        third = handle.completion
        assert len({id(one.event) for one in (first, second, third)}) == 3
        assert first.is_done
        assert first.event.is_done
        assert not second.is_done
        third.wait()
        assert second.is_done


HOST = [("a",), ("b",), ("out",), ("a", "b"), ("a", "b", "out")]


def operands_of(gpu, host, dtype="float32", m=6, n=5, k=4):
    values = {
        "a": (np.arange(m * k).reshape(m, k) % 5 + 1).astype(dtype),
        "b": (np.arange(k * n).reshape(k, n) % 3 + 1).astype(dtype),
        "out": np.zeros((m, n), dtype),
    }
    given = {
        name: one if name in host else gpu.asarray(one) for name, one in values.items()
    }  # fmt: skip
    return given, values["a"] @ values["b"]


@pytest.mark.parametrize("host", HOST, ids="+".join)
def test_handle_03_operands_in_host_memory_are_staged_and_it_waits(gpu, hold, watcher, host):
    handle = gs.Gemm(gpu, m=6, n=5, k=4, dtype="float32")
    given, expected = operands_of(gpu, host)
    with gpu.create_stream() as stream:
        hold(stream, 1_000_000)
        with gs.CallerStreamGuard(stream):
            out = handle.execute(**given)
        assert not handle.in_flight
        assert stream.is_done
        assert out is given["out"]
        assert np.array_equal(out if "out" in host else gpu.to_host(out), expected)
        assert streams_of(watcher, "copy") == [stream] * len(host)


def test_handle_03_staging_is_made_once(gpu, monkeypatch):
    made = []
    empty = gpu.empty
    monkeypatch.setattr(gpu, "empty", lambda *a, **k: made.append(a) or empty(*a, **k))
    handle = gs.Gemm(gpu, m=6, n=5, k=4, dtype="float32")
    for factor in (1, 2, 3):
        given, expected = operands_of(gpu, ("a", "b", "out"))
        handle.execute(given["a"] * np.float32(factor), given["b"], given["out"])
        assert np.array_equal(given["out"], expected * factor)
    assert len(made) == 3


def test_handle_03_host_arrays_of_any_strides(gpu):
    handle = gs.Gemm(gpu, m=6, n=5, k=4, dtype="float32")
    given, expected = operands_of(gpu, ("a", "b", "out"))
    wide = np.full((6, 10), -1, np.float32)
    a, b, out = np.asfortranarray(given["a"]), given["b"][:, ::-1], wide[:, ::2]
    with gpu.create_stream() as stream:
        assert handle.execute(a, b, out, stream=stream) is out
    assert np.array_equal(out, expected[:, ::-1])
    assert (wide[:, 1::2] == -1).all()


def test_handle_03_its_own_operands_and_a_host_array_mix(gpu):
    handle = gs.Gemm(gpu, m=6, n=5, k=4, dtype="float32")
    out = np.empty((6, 5), np.float32)
    handle.execute(out=out)
    a, b, _ = handle.operands()
    assert np.allclose(out, gpu.to_host(a) @ gpu.to_host(b), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("a", np.zeros((4, 6), np.float32), r"a is \(4, 6\) float32 in host memory"),
        ("b", np.zeros((4, 5), np.float64), r"b is \(4, 5\) float64 in host memory"),
        ("out", np.zeros((6, 5), ">f4"), "out is"),
        ("out", np.broadcast_to(np.float32(0), (6, 5)), "read-only"),
        ("a", [[1.0]], "a is list, not an array"),
    ],
)
def test_handle_03_host_arrays_that_do_not_fit_are_named(gpu, watcher, name, value, text):
    handle = gs.Gemm(gpu, m=6, n=5, k=4, dtype="float32")
    given, _ = operands_of(gpu, ("a", "b", "out"))
    with gpu.create_stream() as stream, pytest.raises(gs.errors.InvalidOperand, match=text):
        handle.execute(**{**given, name: value}, stream=stream)
    assert not watcher.begun[:-1], "nothing was queued before the stream was closed"
    assert not handle.in_flight


def test_handle_04_reuse_on_one_stream_needs_no_wait(gpu, watcher):
    handle = gemm(gpu)
    handle.operands()
    with gpu.create_stream() as stream:
        handle.execute(stream=stream)
        handle.execute(stream=stream)
        kinds = [call.kind for call in watcher.begun]
        assert "wait" not in kinds
        assert "sync" not in kinds
    handle.close()


def test_handle_04_another_stream_waits_for_the_completion_event(gpu):
    handle = gemm(gpu)
    handle.operands()
    with gpu.create_stream() as one, gpu.create_stream() as two:
        handle.execute(stream=one)
        handle.execute(stream=two)
        handle.wait()
        hold = Spin(gpu, duration_ns=HOLD_NS)
        hold.execute(stream=one)
        handle.execute(stream=one)
        first = handle.completion
        handle.execute(stream=two)
        second = handle.completion
        assert not first.is_done  # the host did not wait
        second.wait()
        assert first.is_done


def test_handle_04_a_later_thread_is_not_taken_for_one_that_ended(gpu, watcher):
    handle = gemm(gpu)
    handle.operands()
    stream = gpu.wrap_stream(2)  # the default stream of whichever thread launches on it

    def launch():
        handle.execute(stream=stream)
        stream.synchronize()

    for _ in range(8):  # some get the number that the system gave one before
        thread = threading.Thread(target=launch)
        thread.start()
        thread.join()
    handle.close()
    assert [call.kind for call in watcher.begun].count("wait") == 7


def test_handle_04_the_host_waits_before_it_overwrites_staging(gpu, hold, watcher):
    handle = gs.Gemm(gpu, m=6, n=5, k=4, dtype="float32")
    given, expected = operands_of(gpu, ("a", "b", "out"))
    with gpu.create_stream() as one, gpu.create_stream() as two:
        hold(one)
        handle.execute(stream=one)
        first = handle.completion
        watcher.begun.clear()
        handle.execute(**given, stream=two)
        kinds = [call.kind for call in watcher.begun]
        assert kinds.index("sync") < kinds.index("copy")
        assert first.is_done
        assert np.array_equal(given["out"], expected)


def test_handle_04_a_wait_that_was_seen_to_end_is_not_repeated(gpu, watcher):
    handle = gemm(gpu)
    with gpu.create_stream() as one, gpu.create_stream() as two:
        handle.execute(stream=one)
        handle.wait()
        handle.execute(stream=two)
        assert "wait" not in [call.kind for call in watcher.begun]


def test_handle_04_a_borrowed_stream_may_be_another_on_another_thread(gpu, watcher):
    """The per-thread default stream has one handle, and is one stream a thread."""
    handle = gemm(gpu)
    with gpu.create_stream() as owner:
        borrowed = Stream(gpu, owner.raw, owner.handle, name="borrowed", owned=False)
        handle.execute(stream=borrowed)
        handle.execute(stream=borrowed)
        assert "wait" not in [call.kind for call in watcher.begun]
        thread = threading.Thread(target=handle.execute, kwargs={"stream": borrowed})
        thread.start()
        thread.join(60)
        assert "wait" in [call.kind for call in watcher.begun]
        handle.close()


def test_handle_05_close_waits_and_a_closed_handle_refuses(gpu):
    handle = gemm(gpu)
    with gpu.create_stream() as stream:
        hold = Spin(gpu, duration_ns=1_000_000)
        hold.execute(stream=stream)
        handle.execute(stream=stream)
        completion = handle.completion
        handle.close()
        assert completion.is_done
        handle.close()
        with pytest.raises(gs.errors.ClosedError, match="make a new one"):
            handle.execute(stream=stream)


def test_handle_05_waits_for_its_event_and_not_for_the_stream(gpu):
    later = Spin(gpu, duration_ns=LONG_NS)
    with gpu.create_stream() as stream:
        for leave in (
            lambda handle: handle.close(),
            lambda handle: handle.__exit__(None, None, None),
        ):
            handle = gemm(gpu)
            handle.execute(stream=stream)
            completion = handle.completion
            later.execute(stream=stream)
            leave(handle)
            assert completion.is_done
            assert not stream.is_done
            later.wait()


def test_handle_05_correct_when_the_stream_is_destroyed_already(gpu):
    raw, number = gpu.backend.make_stream(None, 0)
    stream = gpu.wrap_stream(number)
    hold, handle = Spin(gpu, duration_ns=HOLD_NS), gemm(gpu)
    handle.operands()
    hold.execute(stream=stream)
    handle.execute(stream=stream)
    completion = handle.completion
    gpu.backend.close_stream(raw, number)
    assert not completion.is_done, "destroying a stream waits for nothing"
    handle.close()
    assert completion.is_done
    hold.close()


def test_handle_05_a_collected_handle_has_waited(gpu, hold):
    with gpu.create_stream() as stream:
        hold(stream, 1_000_000)
        handle = gemm(gpu)
        handle.execute(stream=stream)
        event = handle.completion.event
        hold(stream)
        del handle
        gc.collect()
        assert event.is_done


def test_handle_05_a_handle_collected_together_with_its_event_has_waited(gpu, hold, caplog):
    """The collector ends what is older first: here an event that the handle took."""
    with gpu.create_stream() as stream:
        gpu.registry.give_event(gpu.create_event(timing=False))
        handle = gemm(gpu)
        hold(stream, 1_000_000)
        handle.execute(stream=stream)
        event = stream.record()
        hold(stream)
        cycle = [handle]
        cycle.append(cycle)
        del handle, cycle
        gc.collect()
        assert event.is_done
    assert not caplog.records


def test_handle_05_leaving_with_waits_also_on_an_exception(gpu, hold):
    with gpu.create_stream() as stream:
        with pytest.raises(ZeroDivisionError), gemm(gpu) as handle:
            hold(stream, 1_000_000)
            handle.execute(stream=stream)
            completion = handle.completion
            raise ZeroDivisionError
        assert completion.is_done
        with pytest.raises(gs.errors.ClosedError, match="make a new one"):
            handle.execute(stream=stream)


class DriverFault(gs.errors.GpuscopeError):
    """What a driver call raises here."""


def failing_once(monkeypatch, backend, name):
    """Let one call of ``backend.name`` raise, and the next ones through."""
    real = getattr(backend, name)
    left = [1]

    def call(*args, **kwargs):
        if left:
            left.pop()
            raise DriverFault(name)
        return real(*args, **kwargs)

    monkeypatch.setattr(backend, name, call)


def test_handle_06_a_record_that_fails_synchronises_the_stream_instead(gpu, hold, monkeypatch):
    with gpu.create_stream() as stream:
        hold(stream, 1_000_000)
        failing_once(monkeypatch, gpu.backend, "record")
        handle = gemm(gpu)
        with pytest.raises(DriverFault, match="record"):
            handle.execute(stream=stream)
        assert stream.is_done
        assert not handle.in_flight
        handle.execute(stream=stream)
        assert handle.completion is not None
        handle.close()


@pytest.mark.parametrize("which", ["first", "last"])
def test_handle_07_a_copy_that_fails_drains_the_stream(gpu, hold, monkeypatch, which):
    handle = gs.Gemm(gpu, m=6, n=5, k=4, dtype="float32")
    given, expected = operands_of(gpu, ("out",) if which == "last" else ("a",))
    with gpu.create_stream() as stream:
        hold(stream, 1_000_000)
        failing_once(monkeypatch, gpu.backend, "copy")
        with pytest.raises(DriverFault, match="copy"):
            handle.execute(**given, stream=stream)
        assert stream.is_done
        assert not handle.in_flight
        out = handle.execute(**given, stream=stream)
        assert np.array_equal(out if which == "last" else gpu.to_host(out), expected)


def test_handle_09_a_lock_serialises_execute(gpu, monkeypatch):
    inside, most, real = [], [], gpu.backend.matmul

    def matmul(*args):
        inside.append(1)
        most.append(len(inside))
        real(*args)
        inside.pop()

    monkeypatch.setattr(gpu.backend, "matmul", matmul)
    handle = gs.Gemm(gpu, m=64, n=32, k=16, dtype="float32")
    _, _, out = handle.operands()
    expected = gpu.to_host(handle.execute())
    streams = [gpu.create_stream() for _ in range(4)]
    errors = []

    def work(stream):
        try:
            with gs.CallerStreamGuard(stream):
                for _ in range(100):
                    assert handle.execute() is out
        except BaseException as error:  # noqa: BLE001 - told below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert errors == []
    assert set(most) == {1}
    handle.wait()
    assert np.array_equal(gpu.to_host(out), expected)
    for stream in streams:
        stream.close()


def ring(gpu):
    return {
        "gemm": lambda n: gemm(gpu, max_in_flight=n),
        "copy": lambda n: Copy(gpu, nbytes=4096, max_in_flight=n),
        "spin": lambda n: Spin(gpu, duration_ns=1000, max_in_flight=n),
    }


@pytest.mark.gpu_alone("30 ms must outlast a wait")
@pytest.mark.parametrize("kind", ["gemm", "copy", "spin"])
def test_handle_09_calls_in_a_ring_overlap(gpu, hold, watcher, kind):
    """Call i waits for the call that had its context before, and for no other."""
    handle = ring(gpu)[kind](2)
    assert handle.max_in_flight == 2
    with gpu.create_stream() as one, gpu.create_stream() as two:
        for stream in (one, two):  # first uses load code
            handle.execute(stream=stream)
        handle.wait()
        assert not handle.in_flight
        hold(one)
        watcher.begun.clear()
        outs = [handle.execute(stream=one)]
        first = handle.completion
        outs.append(handle.execute(stream=two))
        second = handle.completion
        assert "wait" not in [call.kind for call in watcher.begun]
        second.wait()
        assert not first.is_done, "the second ran while the first was held"
        assert handle.in_flight
        outs.append(handle.execute(stream=two))  # the first one's context
        third = handle.completion
        assert "wait" in [call.kind for call in watcher.begun]
        assert not third.is_done
        handle.wait()
        assert first.is_done
        assert third.is_done
        assert not handle.in_flight
        if kind != "spin":
            assert outs[0] is not outs[1]
            assert outs[0] is outs[2]


def test_handle_09_each_context_has_operands_and_staging_of_its_own(gpu):
    handle = gs.Gemm(gpu, m=6, n=5, k=4, dtype="float32", max_in_flight=2)
    first = handle.operands()
    assert handle.execute() is first[2]
    second = handle.operands()
    assert not set(map(id, first)) & set(map(id, second))
    assert handle.execute() is second[2]
    assert handle.operands() is first
    assert np.array_equal(gpu.to_host(first[2]), gpu.to_host(second[2])), "made from one seed"
    given, expected = operands_of(gpu, ("a", "b", "out"))
    outs = [np.zeros((6, 5), np.float32) for _ in range(8)]
    with gpu.create_stream() as one, gpu.create_stream() as two:

        def work(stream, mine):
            for out in mine:
                handle.execute(given["a"], given["b"], out, stream=stream)

        threads = [
            threading.Thread(target=work, args=pair) for pair in ((one, outs[:4]), (two, outs[4:]))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert all(np.array_equal(out, expected) for out in outs)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, None])
def test_handle_09_max_in_flight_is_a_positive_count(gpu, wrong):
    for make in ring(gpu).values():
        with pytest.raises(gs.errors.InvalidOperand, match=f"max_in_flight is {wrong}"):
            make(wrong)


def test_handle_10_a_stream_of_another_device_names_cause_and_fix(gpu, hold, watcher):
    other = gs.open_device("sim:h200", quiet=True)
    handle = gemm(gpu)
    handle.operands()
    with other.create_stream(name="theirs") as theirs, gpu.create_stream() as ours:
        handle.execute(stream=ours)
        watcher.begun.clear()
        refused = pytest.raises(
            gs.errors.StreamError,
            match=rf"'theirs' belongs to sim:h200.*, not to {gpu.info.key}.*create_stream\(\)",
        )
        with refused:
            handle.execute(stream=theirs)
        with refused:
            hold(theirs)
        with gs.CallerStreamGuard(theirs), refused:
            handle.execute()
        assert watcher.begun == []
        handle.execute(stream=ours)
        handle.close()


class Scribble(Handle):
    """Work whose launch queues a host call, which counts."""

    def __init__(self, gpu):
        super().__init__(gpu, name="scribble")
        self.launches = 0

    def execute(self, *, stream=None):
        return self._execute(stream)

    def _launch(self, stream, operands):
        self.launches += 1


def test_guard_14_a_selected_stream_and_graph_replay_are_refused_before_anything(
    gpu, hold, watcher
):
    handle = gemm(gpu)
    with gpu.create_stream() as stream, gs.CallerStreamGuard(stream):
        hold(stream)
        handle.execute()
        handle.use_graph()
        before = handle.completion
        watcher.begun.clear()
        with pytest.raises(gs.errors.StreamError, match=r"keeps the SMs.*drop_graph\(\)"):
            handle.execute()
        assert watcher.begun == []
        assert handle.completion is before
        assert handle.in_flight
        handle.drop_graph()
        assert not handle.in_flight
        assert handle.execute() is handle.operands()[2]
        handle.close()


def test_guard_14_one_without_any_call_yet_is_refused_too(gpu, watcher):
    handle = Scribble(gpu)
    handle.use_graph()
    with gpu.create_stream() as stream, gs.CallerStreamGuard(stream):
        with pytest.raises(gs.errors.StreamError):
            handle.execute()
        assert watcher.begun == []
        assert handle.launches == 0
        assert handle.completion is None
        assert not handle.in_flight


def test_guard_14_replays_its_own_graph_elsewhere(gpu, watcher):
    handle = gs.Gemm(gpu, m=64, n=32, k=16, dtype="float32", max_in_flight=2)
    handle.use_graph()
    if not gpu.capabilities.graphs:
        with gpu.create_stream() as stream:
            with pytest.raises(gs.errors.CapabilityError, match="a graph of 'gemm 64x32x16"):
                handle.execute(stream=stream)
            assert watcher.begun == []
            handle.drop_graph()
            handle.execute(stream=stream)
        return
    a, b, own = handle.operands()
    expected = gpu.to_host(a) @ gpu.to_host(b)
    out = gpu.empty((64, 32))
    with gpu.create_stream() as stream, gpu.carve({"part": 16}) as parts:
        inside = parts["part"].create_stream()
        for target in (stream, stream, stream, stream, inside, inside, None, None):
            watcher.begun.clear()
            result = handle.execute(stream=target)
            handle.wait()
            assert np.allclose(gpu.to_host(result), expected, atol=1e-5)
            result[...] = 0
            assert np.allclose(gpu.to_host(handle.execute(a, b, out, stream=stream)), expected,
                               atol=1e-5)  # fmt: skip
        handle.drop_graph()
        handle.use_graph()
        names = []
        for _ in range(4):
            watcher.begun.clear()
            handle.execute(a, b, own, stream=inside)
            names.append([call.graph for call in watcher.begun if call.kind == "launch"])
        assert [len(one) for one in names] == [1, 1, 1, 1]
        assert names[:2] == [[None], [None]], "each context runs the work once, and captures it"
        assert [graph.partition for (graph,) in names[2:]] == [parts["part"]] * 2
        handle.close()


def test_handle_becomes_part_of_a_graph_that_somebody_captures(gpu):
    if not gpu.capabilities.graphs:
        pytest.skip("this device has no graphs")
    handle = gs.Gemm(gpu, m=64, n=32, k=16, dtype="float32")
    with gpu.create_stream() as stream:
        handle.execute(stream=stream)
        handle.wait()
        before = handle.completion
        with stream.capture() as graph:
            out = handle.execute(stream=stream)
            with pytest.raises(gs.errors.StreamError, match=r"call operands\(\) before"):
                gemm(gpu).execute(stream=stream)
            with pytest.raises(gs.errors.StreamError, match="host memory"):
                handle.execute(out=np.zeros((64, 32), np.float32), stream=stream)
        assert handle.completion is before
        expected = gpu.to_host(out)
        out[...] = 0
        gpu.synchronize()
        graph.launch(stream=stream)
        assert np.array_equal(gpu.to_host(out), expected)
        graph.close()


def test_handle_made_in_a_closed_partition_is_refused(gpu):
    with gpu.carve({"a": 16}) as parts:
        part = parts["a"]
    with pytest.raises(gs.errors.ClosedError, match="carve again"):
        gemm(part)


def test_handle_made_in_a_partition_is_closed_with_it(gpu):
    with gpu.carve({"a": 16, "b": "rest"}) as parts:
        handle = gemm(parts["a"])
        with gs.CallerStreamGuard(parts["a"].create_stream()):
            handle.execute()
    with pytest.raises(gs.errors.ClosedError):
        handle.execute()


def test_handle_11_the_partition_is_told_as_granted(gpu):
    with gpu.carve({"a": 10, "b": "rest"}, rounding="up") as parts:
        assert parts["a"].asked == 10
        assert parts["a"].sm_count == 12


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"m": 0, "n": 1, "k": 1}, "m is 0"),
        ({"m": 1, "n": -2, "k": 1}, "n is -2"),
        ({"m": 1, "n": 1, "k": 1.5}, "k is 1.5"),
        ({"m": 1, "n": 1, "k": 1, "dtype": "int8"}, "int8"),
        ({"m": 1, "n": 1, "k": 1, "sm_count_target": 0}, "sm_count_target"),
    ],
)
def test_gemm_refuses_what_it_cannot_be(gpu, kwargs, text):
    with pytest.raises(gs.errors.InvalidOperand, match=text):
        gs.Gemm(gpu, **kwargs)


def test_a_gemm_that_launches_in_its_own_way_does_so_at_every_call(gpu):
    launched = []

    class Counted(gs.Gemm):
        def _launch(self, stream, operands):
            launched.append(stream)
            super()._launch(stream, operands)

    with gpu.create_stream() as stream, Counted(gpu, m=8, n=8, k=8) as counted:
        a, b, out = counted.operands()
        for _ in range(3):
            counted.execute(a, b, out, stream=stream)
        counted.wait()
        assert launched == [stream] * 3


def test_gemm_refuses_operands_of_other_sizes(gpu):
    with pytest.raises(gs.errors.InvalidOperand, match="64x32x16"):
        gemm(gpu).execute(gpu.empty((8, 8), "float16"), gpu.empty((8, 8), "float16"),
                          gpu.empty((8, 8), "float16"))  # fmt: skip


def test_handle_05_events_go_back_while_nobody_can_ask_for_them(gpu, monkeypatch):
    handle = gemm(gpu)
    with gpu.create_stream() as stream:
        handle.execute(stream=stream)
        give, locked = gpu.registry.give_event, []
        monkeypatch.setattr(
            gpu.registry,
            "give_event",
            lambda event: (locked.append(handle._lock.locked()), give(event)),
        )
        handle._latest.completion = None
        handle.close()
    assert locked
    assert all(locked)
