"""The part of PyTorch that exercises get on the simulated GPU, and what a GPU needs for them."""

from __future__ import annotations

import gc
import sys
import threading
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import gpuscope as gs
import gpuscope_lessons as learn
from gpuscope.errors import CapabilityError, InvalidArgument, StreamError

MS = 1_000_000


@pytest.fixture
def gpu():
    device = gs.open_device("sim:h200", quiet=True)
    yield device
    device.close()


@pytest.fixture
def torch(gpu):
    return learn.pytorch(gpu)


@pytest.fixture
def step(gpu, torch):
    """Return a function: name → a function that runs a kernel of 2 ms in the current stream."""

    def made(name, *after):
        kernel = gs.workloads.Step(gpu, 2 * MS, name=name, after=after)
        return kernel, lambda: kernel.execute(stream=torch.cuda.current_stream().cuda_stream)

    return made


def recorded(gpu, program):
    with gs.profile(gpu, hazards=True) as recording:
        program()
        gpu.synchronize()
    return recording.trace


def spans(trace):
    """Return name → first and last moment on the GPU."""
    rows = trace.where(kind="kernel").spans.to_pylist()
    return {row["category"] or row["name"]: (row["start_ns"], row["end_ns"]) for row in rows}


# -- streams and events ---------------------------------------------------------------


def test_the_current_stream_is_that_of_the_innermost_block(torch):
    s, t = torch.cuda.Stream(), torch.cuda.Stream()
    default = torch.cuda.default_stream()
    current = [torch.cuda.current_stream()]
    with torch.cuda.stream(s):
        current.append(torch.cuda.current_stream())
        with pytest.raises(ZeroDivisionError), torch.cuda.stream(t):
            current.append(torch.cuda.current_stream())
            raise ZeroDivisionError
        current.append(torch.cuda.current_stream())
    assert [*current, torch.cuda.current_stream()] == [default, s, t, s, default]
    assert len({s, t, default, *current}) == 3


def test_a_stream_is_a_block_of_its_own_and_none_changes_nothing(torch):
    s, t = torch.cuda.Stream(), torch.cuda.Stream()
    default = torch.cuda.default_stream()
    with s as entered:
        current = [torch.cuda.current_stream()]
        with pytest.raises(ZeroDivisionError), t, s, torch.cuda.stream(t):
            current.append(torch.cuda.current_stream())
            raise ZeroDivisionError
        with torch.cuda.stream(None):
            current.append(torch.cuda.current_stream())
        with default:
            current.append(torch.cuda.current_stream())
            with torch.cuda.stream(None):
                current.append(torch.cuda.current_stream())
        current.append(torch.cuda.current_stream())
    assert entered is s
    assert current == [s, t, s, default, default, s]
    with torch.cuda.stream(None):
        assert torch.cuda.current_stream() == default


def test_a_stream_has_the_priority_that_it_is_given(gpu, torch):
    usual, urgent = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
    assert [gpu.wrap_stream(each.cuda_stream).priority for each in (usual, urgent)] == [0, -1]
    with pytest.raises(InvalidArgument, match="priority"):
        torch.cuda.Stream(priority="high")


def test_an_event_takes_what_pytorchs_takes(gpu, torch, step):
    _, run = step("a")
    begin = torch.cuda.Event(enable_timing=True, blocking=True)
    end = torch.cuda.Event(blocking=True)
    begin.record()
    run()
    end.record()
    end.synchronize()
    assert begin.query()
    assert [each._event.timing for each in (begin, end)] == [True, False]


def test_each_thread_has_a_current_stream_of_its_own(torch):
    s, t = torch.cuda.Stream(), torch.cuda.Stream()
    seen = []

    def look():
        seen.append(torch.cuda.current_stream())
        with torch.cuda.stream(t):
            seen.append(torch.cuda.current_stream())
        with s:
            entered.wait(60)

    entered = threading.Event()
    with torch.cuda.stream(s):
        thread = threading.Thread(target=look)
        thread.start()
        with t:
            entered.set()
            thread.join()
        seen.append(torch.cuda.current_stream())
    assert seen == [torch.cuda.default_stream(), t, s]


def test_streams_are_non_blocking_and_the_default_stream_is_the_legacy_one(gpu, torch):
    kinds = [
        gpu.wrap_stream(stream.cuda_stream).kind
        for stream in (torch.cuda.Stream(), torch.cuda.default_stream())
    ]
    assert kinds == ["non-blocking", "legacy default"]


def test_a_stream_stays_when_nobody_holds_it_and_goes_with_its_torch(gpu):
    torch = learn.pytorch(gpu)
    handle = torch.cuda.Stream().cuda_stream
    assert gpu.find_stream(handle) is not None
    del torch
    gc.collect()
    assert gpu.find_stream(handle) is None


def test_an_external_stream_is_the_one_that_has_the_handle(gpu, torch):
    with gpu.create_stream(name="s") as ours:
        s = torch.cuda.ExternalStream(ours.handle)
        assert gpu.wrap_stream(s.cuda_stream) is ours
        assert s == torch.cuda.ExternalStream(ours.handle)
        assert isinstance(s, torch.cuda.Stream)
        assert isinstance(torch.cuda.current_stream(), torch.cuda.Stream)
        assert s != ours


@pytest.mark.parametrize(
    "wait",
    [
        lambda _torch, s, t: t.wait_stream(s),
        lambda _torch, s, t: t.wait_event(s.record_event()),
        lambda torch, s, t: recorded_in(torch, s).wait(t),
        lambda torch, s, t: in_block(torch, t, recorded_in(torch, s).wait),
    ],
    ids=["wait_stream", "wait_event", "Event.wait", "in the current stream"],
)
def test_a_wait_covers_what_was_queued_until_then(gpu, torch, step, wait):
    s, t = torch.cuda.Stream(), torch.cuda.Stream()
    first, run_first = step("first")
    _, run_second = step("second", first)
    _, run_later = step("later")

    def program():
        in_block(torch, s, run_first)
        wait(torch, s, t)
        in_block(torch, s, run_later)
        in_block(torch, t, run_second)

    trace = recorded(gpu, program)
    at = spans(trace)
    assert at["second"][0] >= at["first"][1]
    assert at["second"][0] < at["later"][1]
    assert not gs.analysis.hazards(trace).found


def in_block(torch, stream, function):
    with torch.cuda.stream(stream):
        return function()


def recorded_in(torch, stream):
    """Return an event that was recorded in the current stream."""
    event = torch.cuda.Event()
    in_block(torch, stream, event.record)
    return event


def test_waits_of_the_host_and_queries(gpu, torch, step):
    _, run = step("a")
    s = torch.cuda.Stream()
    in_block(torch, s, run)
    event = s.record_event(torch.cuda.Event(enable_timing=True))
    never = torch.cuda.Event()
    assert (event.query(), s.query(), never.query()) == (False, False, True)
    before = gpu.now_ns()
    event.synchronize()
    assert gpu.now_ns() - before > MS
    assert (event.query(), s.query()) == (True, True)
    in_block(torch, s, run)
    torch.cuda.synchronize()
    assert s.query()
    in_block(torch, s, run)
    s.synchronize()
    assert s.query()


# -- copies ---------------------------------------------------------------------------


@pytest.fixture
def memory(gpu, torch):
    """Arrays, and their tensors: of the GPU, page-locked, pageable."""
    arrays = {
        "gpu": gpu.asarray(np.full(1 << 20, 7, "float32")),
        "other": gpu.asarray(np.zeros(1 << 20, "float32")),
        "pinned": gpu.empty_pinned(1 << 20),
        "plain": np.zeros(1 << 20, "float32"),
    }
    arrays["pinned"][:] = 3
    return arrays, {name: torch.from_dlpack(array) for name, array in arrays.items()}


@pytest.mark.parametrize(
    ("target", "source", "non_blocking", "waits"),
    [
        ("gpu", "pinned", True, False),
        ("gpu", "pinned", False, True),
        ("pinned", "gpu", True, False),
        ("pinned", "gpu", False, True),
        ("plain", "gpu", True, True),
        ("plain", "gpu", False, True),
        ("other", "gpu", False, False),
    ],
)
def test_a_copy_waits_unless_it_is_told_not_to(
    gpu, torch, memory, step, target, source, non_blocking, waits
):
    arrays, tensors = memory
    _, run = step("before")
    s = torch.cuda.Stream()
    with torch.cuda.stream(s):
        run()
        assert tensors[target].copy_(tensors[source], non_blocking=non_blocking) is tensors[target]
        assert s.query() is waits
    gpu.synchronize()
    values = [
        each if isinstance(each, np.ndarray) else gpu.to_host(each)
        for each in (arrays[target], arrays[source])
    ]
    assert np.array_equal(*values)
    assert values[0][0] == (3 if source == "pinned" else 7)


def test_a_copy_on_the_host_is_the_host_s(gpu, torch, memory):
    arrays, tensors = memory
    trace = recorded(gpu, lambda: tensors["plain"].copy_(tensors["pinned"]))
    assert arrays["plain"][0] == 3
    assert not len(trace.where(kind="memcpy"))


@pytest.mark.parametrize(("waits", "kinds"), [(True, 0), (False, 1)])
def test_a_host_that_reads_too_early_is_seen(gpu, torch, memory, waits, kinds):
    arrays, tensors = memory
    s = torch.cuda.Stream()

    def program():
        with torch.cuda.stream(s):
            tensors["pinned"].copy_(tensors["gpu"], non_blocking=True)
        if waits:
            s.synchronize()
        float(arrays["pinned"][0])

    assert len(gs.analysis.hazards(recorded(gpu, program)).found) == kinds


# -- graphs ---------------------------------------------------------------------------


@pytest.mark.parametrize("names_stream", [True, False])
def test_a_captured_fork_is_replayed_in_the_current_stream(gpu, torch, step, names_stream):
    s, t, u = (torch.cuda.Stream() for _ in range(3))
    one, run_one = step("one")
    two, run_two = step("two")
    _, run_after = step("after", one, two)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **({"stream": s} if names_stream else {})):
        captured = torch.cuda.current_stream()
        assert (captured == s) is names_stream
        t.wait_stream(captured)
        run_one()
        in_block(torch, t, run_two)
        captured.wait_stream(t)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()

    def program():
        with torch.cuda.stream(u):
            graph.replay()
            run_after()

    trace = recorded(gpu, program)
    at = spans(trace)
    assert at["one"][0] < at["two"][1]
    assert at["two"][0] < at["one"][1]
    assert at["after"][0] >= max(at["one"][1], at["two"][1])
    assert not gs.analysis.hazards(trace).found


def test_a_capture_that_fails_leaves_no_graph_and_the_stream_before(torch, step):
    s, t = torch.cuda.Stream(), torch.cuda.Stream()
    _, run = step("one")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(StreamError, match="Unjoined"), torch.cuda.graph(graph, stream=s):
        t.wait_stream(s)
        in_block(torch, t, run)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    with pytest.raises(StreamError, match="captured nothing"):
        graph.replay()
    with torch.cuda.graph(graph, stream=s):
        run()
    in_block(torch, t, graph.replay)


@pytest.mark.parametrize("mode", ["global", "thread_local"])
def test_a_capture_takes_the_modes_that_there_are(gpu, torch, step, mode):
    one, run = step("one")
    graph, s = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=s, capture_error_mode=mode):
        run()
    assert spans(recorded(gpu, graph.replay)).keys() == {one.name}


@pytest.mark.parametrize("mode", ["relaxed", None, 3])
def test_a_mode_of_capture_that_there_is_not_is_told(torch, mode):
    graph, s = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with (
        pytest.raises(CapabilityError, match=f"{mode}.*'thread_local'"),
        torch.cuda.graph(graph, stream=s, capture_error_mode=mode),
    ):
        pass
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    with torch.cuda.graph(graph, stream=s):
        s.record_event()


# -- what there is not ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "lacks", "has"),
    [
        (lambda torch: torch.zeros, "zeros", "cuda"),
        (lambda torch: torch.cuda.set_stream, "set_stream", "current_stream"),
        (lambda torch: torch.cuda.Stream().priority, "priority", "wait_stream"),
        (lambda torch: torch.cuda.Event().elapsed_time, "elapsed_time", "record"),
        (lambda torch: torch.cuda.CUDAGraph().reset, "reset", "replay"),
        (lambda torch: torch.from_dlpack(np.zeros(4)).shape, "shape", "copy_"),
    ],
)
def test_what_it_lacks_is_said_with_what_there_is(torch, ask, lacks, has):
    with pytest.raises(AttributeError) as told:
        ask(torch)
    assert repr(lacks) in str(told.value)
    assert has in str(told.value).rpartition("here ")[2].split(", ")


@pytest.mark.parametrize(
    "call",
    [
        lambda torch: torch.cuda.stream(3).__enter__(),
        lambda torch: torch.cuda.Stream().wait_stream(torch.cuda.Event()),
        lambda torch: torch.cuda.Stream().wait_event(torch.cuda.Stream()),
        lambda torch: torch.cuda.Event().record("s"),
        lambda torch: torch.cuda.graph(torch.cuda.Stream()).__enter__(),
        lambda torch: torch.from_dlpack(np.zeros(4)).copy_(np.zeros(4)),
    ],
)
def test_what_is_of_another_kind_is_refused(torch, call):
    with pytest.raises(InvalidArgument, match="is needed"):
        call(torch)


TAKEN = {
    "a stream's device": lambda torch: torch.cuda.Stream(device=0),
    "a stream's device and priority": lambda torch: torch.cuda.Stream("cuda:0", -1),
    "a stream of this device": lambda torch: torch.cuda.Stream(device="cuda"),
    "an event's last arguments": lambda torch: torch.cuda.Event(*4 * [False]),
    "a graph that is not kept": lambda torch: torch.cuda.CUDAGraph(keep_graph=False),
    "a stream of others": lambda torch: torch.cuda.ExternalStream(
        torch.cuda.Stream().cuda_stream, device=None
    ),
    "the device's current stream": lambda torch: torch.cuda.current_stream(0),
    "the device's default stream": lambda torch: torch.cuda.default_stream(device="cuda:0"),
    "the device": lambda torch: torch.cuda.synchronize(0),
    "an array": lambda torch: torch.from_dlpack(np.zeros(4), device=None, copy=None),
}
"""What PyTorch 2.11 takes, too, by its documentation."""
LACKING = {
    "another device": lambda torch: torch.cuda.Stream(device=1),
    "another device by name": lambda torch: torch.cuda.current_stream("cuda:1"),
    "the host": lambda torch: torch.cuda.synchronize("cpu"),
    "events between processes": lambda torch: torch.cuda.Event(interprocess=True),
    "external events": lambda torch: torch.cuda.Event(external=True),
    "graphs that are kept": lambda torch: torch.cuda.CUDAGraph(keep_graph=True),
    "streams by their parts": lambda torch: torch.cuda.Stream(stream_id=3),
    "copies": lambda torch: torch.from_dlpack(np.zeros(4), copy=True),
}
"""What PyTorch takes, and its part on a simulated GPU does not."""


@pytest.mark.parametrize("call", TAKEN.values(), ids=TAKEN)
def test_arguments_of_pytorch_s_are_taken(torch, call):
    call(torch)


@pytest.mark.parametrize("call", LACKING.values(), ids=LACKING)
def test_arguments_that_the_part_lacks_are_refused_with_what_to_do(torch, call):
    with pytest.raises(CapabilityError, match="leave it out"):
        call(torch)


def test_graphs_take_a_pool_by_place_and_by_name(torch, step):
    _, launch = step("a")
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.graph(first, torch.cuda.graph_pool_handle(), stream):
        launch()
    with torch.cuda.graph(second, pool=first.pool()):
        launch()
    first.replay()
    second.replay()


def test_what_another_device_made_is_refused(torch):
    other = gs.open_device("sim:h200", quiet=True)
    elsewhere = learn.pytorch(other)
    with pytest.raises(StreamError):
        torch.cuda.Stream().wait_event(elsewhere.cuda.Event())
    other.close()


# -- which PyTorch --------------------------------------------------------------------


def stand_in(*, has_gpu):
    """Return what stands for PyTorch's module, and notes which device is chosen."""
    torch = ModuleType("torch")
    chosen = []
    torch.cuda = SimpleNamespace(
        is_available=lambda: has_gpu, set_device=chosen.append, Stream=lambda: chosen.append("pool")
    )
    return torch, chosen


@pytest.fixture
def real(gpu, monkeypatch):
    """A device that passes for the second GPU."""
    monkeypatch.setattr(type(gpu), "is_simulated", False)
    gpu.info = gs.open_device("sim:h200", quiet=True).info
    changed = {"kind": "cuda", "index": 1, "key": "cuda:1"}
    info = SimpleNamespace(**{name: getattr(gpu.info, name) for name in gpu.info.__annotations__})
    vars(info).update(changed)
    gpu.info = info
    return gpu


def test_a_gpu_gets_pytorch_itself_on_its_device(real, monkeypatch):
    torch, chosen = stand_in(has_gpu=True)
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert learn.pytorch(real) is torch
    assert chosen == [1, "pool"], "the pool of streams is made before a program is watched"


@pytest.mark.parametrize("torch", [None, stand_in(has_gpu=False)[0]], ids=["none", "without CUDA"])
def test_on_a_gpu_without_pytorch_an_exercise_is_not_available(real, monkeypatch, torch):
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(CapabilityError, match="pip install torch"):
        learn.pytorch(real)


def test_the_host_as_a_device_has_none():
    with pytest.raises(CapabilityError, match="cpu"):
        learn.pytorch(gs.open_device("cpu", quiet=True))
