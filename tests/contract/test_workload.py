"""``@gs.workloads.workload``: a user's function as a handle, with everything that a Gemm has."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.device import caller
from gpuscope.device.api import KernelCost, KernelModel
from gpuscope.device.device import Device
from gpuscope.device.registry import borrowing
from gpuscope.device.scratch import WorkloadContext
from gpuscope.workloads import function as function_module
from gpuscope.workloads.spin import Spin

HOLD_NS = 30_000_000
SOURCE = 'extern "C" __global__ void fill(float* out) { out[threadIdx.x] = 2.0f; }'
MODEL = KernelModel(
    lambda *_: KernelCost(1, 1000),
    writes=lambda args: args[0],
    compute=lambda: np.full(32, 2, np.float32),
)
ANY_DEVICE = ["sim:h200", "cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)]


@pytest.fixture(params=ANY_DEVICE)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """Any device, the CPU too."""
    found = gs.open_device(request.param, quiet=True)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = dict(caller.current_streams())
    yield
    assert borrowing.open == ()
    assert gs.get_caller_stream() is None
    assert caller.current_streams() == before


@gs.workloads.workload
def look(ctx):
    """Say what is selected inside the call."""
    return ctx.stream, gs.get_caller_stream(), caller.peek_current_stream(ctx.device.identity)


@gs.workloads.workload
def fill(ctx, out, *, on=None):
    """Launch a kernel of our own."""
    kernel = ctx.device.compile(SOURCE, "fill", model=MODEL)
    (on or ctx.stream).launch(kernel, out, grid=1, block=32)
    return out


def kernels(trace):
    return trace.where(kind="kernel").spans.to_pylist()


def held(gpu, stream):
    """Hold a stream; keep what is returned, since a collected handle waits."""
    spin = Spin(gpu, duration_ns=HOLD_NS)
    spin.execute(stream=stream)
    return spin


# -- the decorator ------------------------------------------------------------------------


def test_workload_keeps_the_functions_name_and_text():
    assert look.__name__ == "look"
    assert look.__doc__ == "Say what is selected inside the call."
    assert look.__wrapped__ is look.function
    assert repr(look) == "workload(look)"


async def _asynchronous(ctx):
    pass


def _generator(ctx):
    yield


async def _asynchronous_generator(ctx):
    yield


class _Asynchronous:
    async def __call__(self, ctx):
        pass

    def later(self, ctx):
        yield


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (3, "takes a function, not 3"),
        (int, "takes a function"),
        (_asynchronous, "asynchronous or a generator"),
        (_generator, "asynchronous or a generator"),
        (_asynchronous_generator, "asynchronous or a generator"),
        (_Asynchronous(), "asynchronous or a generator"),
        (_Asynchronous().later, "asynchronous or a generator"),
        (functools.partial(_Asynchronous()), "asynchronous or a generator"),
        (functools.partial(_asynchronous_generator), "asynchronous or a generator"),
        (dict.update, "tells its parameters"),
        (lambda: None, "takes no context"),
        (lambda *, ctx: None, "takes no context"),
        (lambda ctx, stream: None, "parameter called stream"),
    ],
)
def test_workload_refuses_what_cannot_be_one(given, text):
    with pytest.raises(TypeError, match=text):
        gs.workloads.workload(given)


def test_workload_takes_anything_that_is_called_like_a_function(device):
    class Echo:
        def __call__(self, ctx, value):
            return value

    for one in (Echo(), functools.partial(lambda ctx, value: value), lambda *args: args[1]):
        handle = gs.workloads.workload(one)(device)
        assert handle.execute(7) == 7
        assert handle.name
        handle.close()


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"max_in_flight": 0}, "max_in_flight is 0"),
        ({"flop_count": -1}, "flop_count is -1"),
        ({"flop_count": 1.5}, "flop_count is 1.5"),
        ({"arguments": {"unknown": 1}}, "arguments of fill: .*unknown"),
    ],
)
def test_workload_checks_what_a_handle_is_made_with(device, kwargs, text):
    with pytest.raises(gs.errors.InvalidOperand, match=text):
        fill(device, **kwargs)


def test_workload_called_like_its_function_says_how_to_call_it():
    with pytest.raises(
        gs.errors.InvalidOperand, match=r"fill\(gpu\) makes the handle, handle\.execute"
    ):
        fill(np.zeros(4))


# -- the call -----------------------------------------------------------------------------


def test_workload_returns_what_the_function_returns(device):
    @gs.workloads.workload
    def echo(ctx, *args, **kwargs):
        return args, kwargs

    handle = echo(device, arguments={"a": 1, "b": 2})
    assert handle.execute(1, 2, b=3, c=4) == ((1, 2), {"a": 1, "b": 3, "c": 4})
    assert handle.execute() == ((), {"a": 1, "b": 2})
    assert handle.name == "echo"
    assert echo(device, name="other").name == "other"
    handle.close()


def test_workload_launches_on_the_stream_the_caller_chose(gpu):
    handle = look(gpu)
    key = gpu.identity
    with gpu.create_stream() as one, gpu.create_stream() as two, gpu.create_stream() as three:
        default = gpu.default_stream()
        assert handle.execute() == (default,) * 3
        caller.set_current_stream(key, three)
        try:
            assert handle.execute() == (three,) * 3
            with gs.CallerStreamGuard(two):
                assert handle.execute() == (two,) * 3
                assert handle.execute(stream=one) == (one,) * 3
                assert handle.execute(stream=one.handle) == (one,) * 3
                assert gs.get_caller_stream() is two
            assert caller.peek_current_stream(key) is three
        finally:
            caller.clear_current_stream(key)
        handle.close()


@pytest.mark.parametrize("current", [False, True])
def test_workload_restores_what_was_selected_also_after_an_error(device, current):
    @gs.workloads.workload
    def fails(ctx):
        kept.append(ctx)
        ctx.scratch(64)
        raise ZeroDivisionError

    kept = []
    key = device.identity
    handle = fails(device)
    with device.create_stream() as one, device.create_stream() as two:
        if current:
            caller.set_current_stream(key, two)
        try:
            with gs.CallerStreamGuard(two):
                for _ in range(2):
                    with pytest.raises(ZeroDivisionError):
                        handle.execute(stream=one)
                    assert gs.get_caller_stream() is two
                    assert caller.peek_current_stream(key) is (two if current else None)
                    assert borrowing.open == ()
        finally:
            caller.clear_current_stream(key)
        for ctx in kept:
            with pytest.raises(gs.errors.ClosedError, match="outside its call"):
                ctx.stream  # noqa: B018
        handle.close()


def test_workload_that_fails_leaves_a_handle_that_works(gpu):
    out = gpu.empty(32)

    @gs.workloads.workload
    def sometimes(ctx, good):
        ctx.scratch(4096)
        fill.function(ctx, out)
        if not good:
            raise ZeroDivisionError

    handle = sometimes(gpu)
    with gpu.create_stream() as one, gpu.create_stream() as two:
        handle.execute(good=True, stream=one)
        with pytest.raises(ZeroDivisionError):
            handle.execute(good=False, stream=two)
        assert two.is_done, "what it had launched is drained"
        handle.execute(good=True, stream=one)
        handle.wait()
        assert np.array_equal(gpu.to_host(out), np.full(32, 2, np.float32))
        handle.close()


def test_workload_binds_libraries_and_restores_them_whatever_happens(gpu, monkeypatch):
    log = []

    def bind(stream):
        log.append(("bind", stream))
        return [stream]

    monkeypatch.setattr(function_module.handles, "bind", bind)
    monkeypatch.setattr(
        function_module.handles, "unbind", lambda bound: log.append(("unbind", *bound))
    )
    with gpu.create_stream() as stream:
        handle = gs.workloads.workload(lambda ctx, d: 1 / d)(gpu)
        handle.execute(1, stream=stream)
        with pytest.raises(ZeroDivisionError):
            handle.execute(0, stream=stream)
        assert log == [("bind", stream), ("unbind", stream)] * 2
        handle.close()


@pytest.mark.gpu
def test_workload_is_current_in_cupy_and_leaves_no_trace():
    import cupy

    gpu = gs.open_device("cuda:0", quiet=True)

    @gs.workloads.workload
    def uses_cupy(ctx, a):
        assert cupy.cuda.get_current_stream().ptr == ctx.stream.handle
        b = a + 1
        cupy.cuda.Stream(non_blocking=True).use()  # and does not clean up
        return b

    before = cupy.cuda.get_current_stream().ptr
    handle = uses_cupy(gpu)
    with gpu.create_stream() as stream:
        a = gpu.asarray(np.arange(8, dtype=np.float32))
        for _ in range(2):
            b = handle.execute(a, stream=stream)
            assert cupy.cuda.get_current_stream().ptr == before
        stream.synchronize()
        assert np.array_equal(gpu.to_host(b), np.arange(8, dtype=np.float32) + 1)
    handle.close()
    gpu.close()


@pytest.mark.gpu
def test_workload_is_current_in_pytorch():
    torch = pytest.importorskip("torch")
    gpu = gs.open_device("cuda:0", quiet=True)

    @gs.workloads.workload
    def uses_torch(ctx, a, b):
        assert torch.cuda.current_stream().cuda_stream == ctx.stream.handle
        return torch.mm(a, b)

    a, b = torch.ones(8, 8, device="cuda"), torch.ones(8, 8, device="cuda")
    torch.cuda.synchronize()
    before = torch.cuda.current_stream().cuda_stream
    handle = uses_torch(gpu)
    with gpu.create_stream() as stream:
        out = handle.execute(a, b, stream=stream)
        stream.synchronize()
        assert torch.cuda.current_stream().cuda_stream == before
        assert bool((out == 8).all())
    handle.close()
    gpu.close()


OWN = {
    "execute": lambda handle: handle.execute(None),
    "close": lambda handle: handle.close(),
    "wait": lambda handle: handle.wait(),
    "completion": lambda handle: handle.completion,
    "use_graph": lambda handle: handle.use_graph(),
    "drop_graph": lambda handle: handle.drop_graph(),
}


@pytest.mark.timeout(60)  # what is not refused waits for ever
@pytest.mark.parametrize("how", OWN)
def test_workload_cannot_use_its_own_handle(device, how):
    @gs.workloads.workload
    def again(ctx, use):
        return use(handle) if use is not None else "ran"

    handle = again(device)
    with pytest.raises(gs.errors.StreamError, match=r"its own handle.*one call at a time"):
        handle.execute(OWN[how])
    assert handle.execute(None) == "ran"
    handle.wait()
    handle.close()


@pytest.mark.parametrize("how", [*OWN, "operands"])
def test_an_observer_cannot_use_the_handle_whose_call_it_is_told_of(gpu, watcher, how):
    handle = gs.Gemm(gpu, m=8, n=8, k=8, dtype="float32")
    refused = []

    def use(call):
        if call.kind in ("handle", "launch"):
            with pytest.raises(gs.errors.StreamError, match="its own handle"):
                handle.operands() if how == "operands" else OWN[how](handle)
            refused.append(call.kind)

    with gpu.create_stream() as stream:
        watcher.on_begin = use
        handle.execute(stream=stream)
        watcher.on_begin = None
        assert refused == ["handle", "launch"]
        handle.execute(stream=stream)
        handle.wait()
        assert handle.completion.is_done
        handle.close()


def test_workload_may_call_other_handles(gpu):
    out, inner = gpu.empty(32), fill(gpu)

    @gs.workloads.workload
    def outer(ctx):
        inner.execute(out)
        return ctx.scratch(64).stream, gs.get_caller_stream()

    handle = outer(gpu)
    with gpu.create_stream() as stream, gs.profile(gpu) as recording:
        assert handle.execute(stream=stream) == (stream, stream)
    handles = {row["name"]: row for row in recording.trace.where(kind="handle").spans.to_pylist()}
    assert handles["fill"]["parent"] == handles["outer"]["id"]
    assert handles["outer"]["parent"] is None
    (kernel,) = kernels(recording.trace)
    assert kernel["category"] == "fill"
    for one in (handle, inner):
        one.close()


# -- in flight ----------------------------------------------------------------------------


def test_workload_returns_at_once_and_is_in_flight(gpu):
    handle, out = fill(gpu), gpu.empty(32)
    with gpu.create_stream() as stream:
        handle.execute(out, stream=stream)
        handle.wait()
        spin = held(gpu, stream)
        assert handle.execute(out, stream=stream) is out
        assert handle.in_flight
        handle.wait()
        assert not handle.in_flight
        assert handle.completion.is_done
        spin.close()
        handle.close()


def test_workload_without_a_selection_has_finished(gpu):
    handle, out = fill(gpu), gpu.empty(32)
    handle.execute(out)
    assert handle.completion.is_done
    handle.close()


def test_workload_on_another_stream_waits_for_the_call_before(gpu):
    handle, out = fill(gpu), gpu.empty(32)
    with gpu.create_stream() as one, gpu.create_stream() as two:
        handle.execute(out, stream=one)
        handle.execute(out, stream=two)
        handle.wait()
        spin = held(gpu, one)
        handle.execute(out, stream=one)
        first = handle.completion
        handle.execute(out, stream=two)
        second = handle.completion
        assert not first.is_done, "the host did not wait"
        second.wait()
        assert first.is_done
        spin.close()
        handle.close()


@pytest.mark.gpu_alone("30 ms must outlast a wait")
def test_workload_with_max_in_flight_calls_overlap(gpu):
    handle, out, other = fill(gpu, max_in_flight=2), gpu.empty(32), gpu.empty(32)
    assert handle.max_in_flight == 2
    with gpu.create_stream() as one, gpu.create_stream() as two:
        for stream in (one, two):
            handle.execute(out, stream=stream)
        handle.wait()
        spin = held(gpu, one)
        handle.execute(out, stream=one)
        first = handle.completion
        handle.execute(other, stream=two)
        second = handle.completion
        second.wait()
        assert not first.is_done
        handle.wait()
        spin.close()
        handle.close()


def test_workload_close_waits_and_a_closed_handle_refuses(gpu):
    handle, out = fill(gpu), gpu.empty(32)
    with gpu.create_stream() as stream:
        spin = held(gpu, stream)
        handle.execute(out, stream=stream)
        completion = handle.completion
        handle.close()
        assert completion.is_done
        with pytest.raises(gs.errors.ClosedError, match="make a new one"):
            handle.execute(out, stream=stream)
        spin.close()
    handle.close()


def test_workload_close_gives_its_scratch_back_also_when_its_stream_is_gone():
    gpu = gs.open_device("sim:h200", quiet=True)
    for close_first in (True, False):
        handle = gs.workloads.workload(lambda ctx: ctx.scratch(4096).nbytes)(gpu)
        with gpu.create_stream() as stream:
            handle.execute(stream=stream)
            assert gpu.backend.reserved_bytes() == 4096
            if close_first:
                handle.close()
        handle.close()
        assert gpu.backend.reserved_bytes() == 0


def test_workload_made_for_a_partition_is_closed_with_it(gpu):
    with gpu.carve({"a": 16, "b": "rest"}) as parts:
        handle = fill(parts["a"])
        with gs.CallerStreamGuard(parts["a"].create_stream()):
            handle.execute(gpu.empty(32))
    with pytest.raises(gs.errors.ClosedError):
        handle.execute(gpu.empty(32))


def test_workload_threads_on_two_streams_share_no_scratch(gpu):
    """Rule D8: never argument or workspace memory of two threads that launch one workload."""
    barrier = threading.Barrier(2)

    @gs.workloads.workload
    def meet(ctx):
        array = ctx.scratch(4096).array
        where = array.buffer.address if hasattr(array, "buffer") else array.data.ptr
        barrier.wait()
        return where

    handles = [meet(gpu), meet(gpu)]
    for shared in (False, True):
        found = []

        def work(handle, stream):
            found.append(handle.execute(stream=stream))  # noqa: B023 - joined in the loop

        with gpu.create_stream() as one, gpu.create_stream() as two:
            threads = [
                threading.Thread(target=work, args=(handle, one if shared else stream))
                for handle, stream in zip(handles, (one, two), strict=True)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            gpu.synchronize()
        assert len(set(found)) == 2
    for handle in handles:
        handle.close()


# -- graphs -------------------------------------------------------------------------------


def with_graphs(gpu, monkeypatch):
    """Give a simulated GPU graphs that hold nothing; returns what was done with them."""
    log = []
    monkeypatch.setattr(gpu, "capabilities", replace(gpu.capabilities, graphs=True))
    backend = gpu.backend
    monkeypatch.setattr(backend, "begin_capture", lambda stream: log.append("begin"))
    monkeypatch.setattr(backend, "end_capture", lambda stream: len(log))
    monkeypatch.setattr(backend, "graph_is_empty", lambda graph: False)
    monkeypatch.setattr(backend, "launch_graph", lambda *args: log.append("launch"))
    monkeypatch.setattr(backend, "close_graph", lambda graph: log.append("close"))
    return log


def test_workload_that_replays_a_graph_returns_what_it_returned(monkeypatch):
    gpu = gs.open_device("sim:h200", quiet=True)
    log, runs = with_graphs(gpu, monkeypatch), []

    @gs.workloads.workload
    def made(ctx, a, *, b=None):
        runs.append(ctx.scratch(64).stream)
        return a, len(runs)

    a, b = gpu.empty(4), gpu.empty(4)
    handle = made(gpu)
    handle.use_graph()
    with gpu.create_stream() as stream, gpu.create_stream() as other:
        assert handle.execute(a, stream=stream) == (a, 1)
        assert (log, len(runs)) == (["begin"], 2), "run once, then captured"
        for one in (stream, other):
            assert handle.execute(a, stream=one) == (a, 2)
        assert (log[1:], len(runs)) == (["launch", "launch"], 2)
        assert handle.execute(b, stream=stream) == (b, 3), "another argument: captured again"
        assert handle.execute(b, b=a, stream=stream) == (b, 5)
        handle.drop_graph()
        assert handle.execute(b, stream=stream) == (b, 7)
        handle.close()
        assert gpu.backend.reserved_bytes() <= 3 * 64, "on the stream's list, none in graphs"
    assert log.count("close") == log.count("begin") == 3
    assert gpu.backend.reserved_bytes() == 0


@pytest.mark.gpu
def test_workload_replays_a_graph_of_itself():
    gpu = gs.open_device("cuda:0", quiet=True)
    runs = []

    @gs.workloads.workload
    def double(ctx, out, a):
        runs.append(1)
        middle = ctx.scratch(a.nbytes).view(a.shape, a.dtype)
        ctx.stream.copy(middle, a)
        middle += middle
        ctx.stream.copy(out, middle)
        return out

    a, out = gpu.asarray(np.arange(64, dtype=np.float32)), gpu.empty(64)
    handle = double(gpu)
    handle.use_graph()
    with gpu.create_stream() as stream:
        for turn in range(4):
            assert handle.execute(out, a, stream=stream) is out
            handle.wait()
            assert np.array_equal(gpu.to_host(out), 2 * (np.arange(64, dtype=np.float32) + turn))
            a += 1
            gpu.synchronize()
        assert len(runs) == 2
        handle.close()
    gpu.close()


# -- rows ---------------------------------------------------------------------------------


def test_workload_has_a_row_for_each_call_and_its_kernels(gpu):
    handle, out = fill(gpu, name="filler"), gpu.empty(32)
    with gpu.create_stream() as stream, gs.profile(gpu) as recording:
        for _ in range(3):
            handle.execute(out, stream=stream)
            handle.wait()
    trace = recording.trace
    calls = trace.where(kind="handle").spans.to_pylist()
    assert [row["name"] for row in calls] == ["filler"] * 3
    assert all(row["end_ns"] is not None for row in calls)
    rows = kernels(trace)
    assert [row["name"] for row in rows] == ["fill"] * 3, "one row a launch, none around it"
    assert {row["category"] for row in rows} == {"filler"}
    assert [row["parent"] for row in trace.where(kind="api", name="fill").spans.to_pylist()] == [
        row["id"] for row in calls
    ]
    handle.close()


def test_workload_on_the_cpu_without_launches_is_one_row():
    cpu = gs.open_device("cpu", quiet=True)

    @gs.workloads.workload
    def doubles(ctx, a):
        np.multiply(a, 2, out=a)
        return a

    a = cpu.asarray(np.ones(32, np.float32))
    plain, launching = doubles(cpu, flop_count=32), fill(cpu)
    with gs.profile(cpu) as recording:
        plain.execute(a)
        launching.execute(a)
    assert [source.unfinished for source in recording.sources] == [[]]
    assert cpu.calls.launch_around(None) is None
    rows = kernels(recording.trace)
    assert [row["name"] for row in rows] == ["doubles", "fill"]
    assert rows[0]["flop_count"] == 32
    assert rows[0]["category"] == "doubles"
    assert rows[0]["end_ns"] >= rows[0]["start_ns"]
    names = [row["name"] for row in recording.trace.where(kind="api").spans.to_pylist()]
    assert names == ["doubles", "fill"]
    for handle in (plain, launching):
        handle.close()


def test_workload_around_others_shows_what_they_show():
    cpu = gs.open_device("cpu", quiet=True)
    inner = gs.workloads.workload(lambda ctx: None)(cpu, name="inner")
    inner._function_name = "inner"
    out = cpu.empty(32)

    @gs.workloads.workload
    def only_others(ctx):
        inner.execute()

    @gs.workloads.workload
    def launches_after_others(ctx):
        inner.execute()
        fill.function(ctx, out)

    handles = only_others(cpu), launches_after_others(cpu)
    with gs.profile(cpu) as recording:
        for handle in handles:
            handle.execute()
        fill.function(Outside(cpu), out)
    names = [row["name"] for row in kernels(recording.trace)]
    assert names == ["inner", "inner", "fill", "fill"]
    for handle in (*handles, inner):
        handle.close()


class Outside:
    """Stands for a context where no workload runs."""

    def __init__(self, device):
        self.device, self.stream = device, device.default_stream()


def test_workload_on_the_simulated_gpu_shows_only_what_was_launched():
    gpu = gs.open_device("sim:h200", quiet=True)
    handle = look(gpu)
    with gs.profile(gpu) as recording:
        handle.execute()
    assert kernels(recording.trace) == []
    assert len(recording.trace.where(kind="handle").spans) == 1
    handle.close()


@pytest.mark.gpu
@pytest.mark.parametrize("source", ["events", "cupti"])
def test_workload_of_cupy_shows_as_work_of_its_name(source):
    gpu = gs.open_device("cuda:0", quiet=True)

    @gs.workloads.workload
    def adds(ctx, a):
        return a + a

    @gs.workloads.workload
    def mixed(ctx, a):
        ctx.stream.copy(a, a + a)
        gs.mm_out(a, a + a, a + a)

    a = gpu.random((256, 256))
    handles = adds(gpu, flop_count=256 * 256), mixed(gpu)
    with gpu.create_stream() as stream:
        for handle in handles:
            handle.execute(a, stream=stream)
        stream.synchronize()
        with gs.profile(gpu, source=source) as recording:
            for handle in handles:
                handle.execute(a, stream=stream)
    rows = kernels(recording.trace)
    if source == "events":
        assert [row["name"] for row in rows] == ["adds", "gemm_float32_256x256x256"]
    else:  # CUPTI sees the kernels that CuPy and cuBLAS launched
        assert [row["category"] for row in rows[:1]] == ["adds"]
        assert "mixed" in {row["category"] for row in rows[1:]}
        assert any("gemm" in row["name"] or "cublas" in row["name"] for row in rows)
    assert [row["flop_count"] for row in rows if row["category"] == "adds"] == [256 * 256]
    assert {row["stream"] for row in rows} == {stream.id}
    assert len(recording.trace.where(kind="memcpy").spans) == 1
    for handle in handles:
        handle.close()
    gpu.close()


def test_workload_that_escapes_is_seen(gpu):
    """A private stream inside a guard: what was intended, and where it really ran."""
    handle, out = fill(gpu), gpu.empty(32)
    with gpu.carve({"a": 16, "b": "rest"}) as parts:
        inside, elsewhere = parts["a"].create_stream(), parts["b"].create_stream()
        private = gpu.create_stream(name="private")
        handle.execute(out, stream=inside)
        gpu.synchronize()
        with gs.profile(gpu) as recording:
            handle.execute(out, stream=inside)
            handle.execute(out, on=private, stream=inside)
            with gs.CallerStreamGuard(inside):
                handle.execute(out, on=elsewhere)
        rows = kernels(recording.trace)
        found = {(row["intended_partition"], row["partition"], row["stream"]) for row in rows}
        assert found == {
            ("a", "a", inside.id), ("a", None, private.id), ("a", "b", elsewhere.id),
        }  # fmt: skip
        calls = recording.trace.where(kind="handle").spans.to_pylist()
        assert {(row["partition"], row["stream"]) for row in calls} == {("a", inside.id)}
        private.close()
    handle.close()


# -- what it loads ------------------------------------------------------------------------


def test_workload_imports_no_gpu_library():
    child = (
        "import sys, gpuscope as gs\n"
        "gpu = gs.open_device('sim:h200', quiet=True)\n"
        "handle = gs.workloads.workload(lambda ctx: ctx.scratch(8).nbytes)(gpu)\n"
        "assert handle.execute() == 8\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"cupy", "torch", "cuda", "nvmath"}


def test_workload_can_be_called_inside_a_context_of_ones_own(gpu):
    with gpu.create_stream() as stream, WorkloadContext(gpu, stream) as ctx:
        out = gpu.empty(32)
        fill.function(ctx, out)
        stream.synchronize()
        assert np.array_equal(gpu.to_host(out), np.full(32, 2, np.float32))
