"""A hazard is tried: the first work delayed, results compared."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from interrupting import Interrupt
from races import SLOW_NS, TRIED, launch, load, pause
from stand_in_torch import SCHEMAS, Schema

import gpuscope as gs
from gpuscope.device.accesses import accesses_of, of_arrays
from gpuscope.device.captured import Captured, Node
from gpuscope.races import confirming, operators
from gpuscope.races.hazard_log import Streams, queue_of
from gpuscope.races.hazard_notes import Work
from gpuscope.races.outside import row_of_node
from gpuscope.trace.facts import HazardFact

SIZE = 1000


@pytest.fixture
def gpu():
    return gs.open_device("sim:h200", quiet=True)


def found(gpu: gs.Device, program: Callable[[], object]) -> tuple[HazardFact, ...]:
    with gs.profile(gpu, hazards=True) as recording:
        program()
    return gs.analysis.hazards(recording.trace).found


def filled(gpu: gs.Device, value: float) -> object:
    return gpu.asarray(np.full(SIZE, value, "float32"))


def read_after_write(gpu: gs.Device, *, ordered: bool) -> object:
    data, new, seen = filled(gpu, 0), filled(gpu, 1), filled(gpu, 0)
    with gpu.create_stream(name="producer") as a, gpu.create_stream(name="consumer") as b:
        a.copy(data, new)
        if ordered:
            b.wait(a.record())
        b.copy(seen, data)
    return seen


def write_after_read(gpu: gs.Device, *, ordered: bool) -> object:
    data, new, seen = filled(gpu, 0), filled(gpu, 1), filled(gpu, 0)
    with gpu.create_stream(name="reader") as a, gpu.create_stream(name="writer") as b:
        a.copy(seen, data)
        if ordered:
            b.wait(a.record())
        b.copy(data, new)
    return seen


def write_after_write(gpu: gs.Device, *, ordered: bool) -> object:
    data, one, two = filled(gpu, 0), filled(gpu, 1), filled(gpu, 2)
    with gpu.create_stream(name="first") as a, gpu.create_stream(name="second") as b:
        a.copy(data, one)
        if ordered:
            b.wait(a.record())
        b.copy(data, two)
    return data


def host_too_early(gpu: gs.Device, *, ordered: bool) -> object:
    page, new = gpu.empty_pinned(SIZE), filled(gpu, 1)
    page[:] = 0
    with gpu.create_stream(name="down") as stream:
        stream.copy(page, new)
        if ordered:
            stream.synchronize()
        return float(page[0])


def lost_every_time(gpu: gs.Device, *, ordered: bool) -> object:
    data, new, seen = filled(gpu, 0), filled(gpu, 1), filled(gpu, 0)
    with gpu.create_stream(name="producer") as a, gpu.create_stream(name="consumer") as b:
        a.launch(gs.workloads.spin_kernel(gpu), 5_000_000, grid=1, block=32)
        a.copy(data, new)
        if ordered:
            b.wait(a.record())
        b.copy(seen, data)
    return seen


RACES = [read_after_write, write_after_read, write_after_write, host_too_early, lost_every_time]


@pytest.mark.parametrize("race", RACES)
def test_a_race_is_confirmed(gpu, race):
    (hazard,) = found(gpu, lambda: race(gpu, ordered=False))
    assert hazard.status == ""
    tried = gs.confirm(hazard, lambda: race(gpu, ordered=False), gpu)
    assert tried.status == "confirmed"
    assert (tried.kind, tried.mend) == (hazard.kind, hazard.mend)


@pytest.mark.parametrize("race", RACES)
def test_its_mended_twin_has_none_to_try(gpu, race):
    assert found(gpu, lambda: race(gpu, ordered=True)) == ()
    (hazard,) = found(gpu, lambda: race(gpu, ordered=False))
    tried = gs.confirm(hazard, lambda: race(gpu, ordered=True), gpu)
    assert tried.status.startswith("could not be tried: the program shows no")


def test_a_race_that_changes_nothing_is_not_reproduced(gpu):
    def same_values():
        data, new, seen = filled(gpu, 7), filled(gpu, 7), filled(gpu, 0)
        with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
            a.copy(data, new)
            b.copy(seen, data)
        return {"seen": seen}

    (hazard,) = found(gpu, same_values)
    assert gs.confirm(hazard, same_values, gpu).status == "not reproduced"


def test_what_differs_by_itself_is_not_tried(gpu):
    numbers = itertools.count()

    def program():
        read_after_write(gpu, ordered=False)
        return next(numbers)

    (hazard,) = found(gpu, program)
    status = gs.confirm(hazard, program, gpu).status
    assert status.startswith("could not be tried: not deterministic: results differ")


@pytest.mark.parametrize(
    ("returned", "why"),
    [(None, "returns nothing"), (object(), "no array or number")],
)
def test_what_cannot_be_compared_is_not_tried(gpu, returned, why):
    def program():
        read_after_write(gpu, ordered=False)
        return returned

    (hazard,) = found(gpu, program)
    assert why in gs.confirm(hazard, program, gpu).status


def test_the_second_of_many_is_the_one_that_is_delayed(gpu):
    def program():
        data, new, seen = filled(gpu, 0), filled(gpu, 1), filled(gpu, 0)
        with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
            a.copy(new, filled(gpu, 3))
            b.wait(a.record())
            a.copy(data, new)
            b.copy(seen, data)
        return seen

    (hazard,) = found(gpu, program)
    assert gs.confirm(hazard, program, gpu).status == "confirmed"


def test_an_error_of_the_program_is_the_programs(gpu):
    (hazard,) = found(gpu, lambda: read_after_write(gpu, ordered=False))

    def fails():
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        gs.confirm(hazard, fails, gpu)
    assert gpu.calls.observers == ()


@pytest.mark.parametrize("race", TRIED, ids=str)
def test_twenty_races_are_confirmed_and_none_of_their_twins(gpu, race):
    facts = found(gpu, lambda: race.program(gpu, mended=False))
    hazard = next(filter(race.is_found, facts))
    assert gs.confirm(hazard, lambda: race.program(gpu, mended=False), gpu).status == "confirmed"
    twin = gs.confirm(hazard, lambda: race.program(gpu, mended=True), gpu)
    assert twin.status.startswith("could not be tried: the program shows no")


def test_there_are_twenty():
    assert len(TRIED) == 20


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("anew", [False, True])
def test_branches_of_one_graph_are_delayed_where_they_are_captured(gpu, anew, lost):
    """Which of two reads what another one wrote: by default, or if it is delayed."""
    made = []

    def program():
        if anew or not made:
            data, other, seen = (filled(gpu, 0) for _ in range(3))
            load(gpu, "write", "rewrite", "read")
            with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
                with a.capture() as graph:
                    b.wait(a.record())
                    launch(a, "write", data, ns=SLOW_NS if lost else 2_000)
                    launch(b, "rewrite", other, ns=1_000_000)
                    launch(b, "read", seen, data)
                    a.wait(b.record())
                made[:] = [graph, data, seen]
        graph, data, seen = made
        with gpu.create_stream(name="c") as c:
            launch(c, "rewrite", data)
            graph.launch(stream=c)
            c.synchronize()
        return seen

    hazard = next(fact for fact in found(gpu, program) if fact.first_name == "write")
    status = gs.confirm(hazard, program, gpu).status
    if anew:
        assert status == "confirmed"
    else:
        assert status.startswith("could not be tried: both are in one graph")


@pytest.mark.parametrize("place", ["before", "behind", "beside"])
def test_a_program_that_waits_itself(gpu, place):
    """Where it waits between the two there is no hazard; elsewhere it changes nothing."""

    def program():
        data, seen = filled(gpu, 0), filled(gpu, 0)
        with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
            launch(a, "rewrite", seen)
            if place == "before":
                gpu.synchronize()
            else:
                b.wait(a.record())
            launch(a, "write", data)
            event = a.record()
            if place == "beside":
                b.synchronize()
            launch(b, "read", seen, data)
            while place == "behind" and not event.is_done:
                pass
        return seen

    (hazard,) = found(gpu, program)
    assert gs.confirm(hazard, program, gpu).status == "confirmed"


def test_a_delay_ends_by_itself(gpu):
    """Also where the program waits for what is delayed: nobody waits for longer."""
    race = next(race for race in TRIED if race.name == "read after write")
    took_ns = []

    def program():
        begun_ns = gpu.now_ns()
        result = race.program(gpu, mended=False)
        gpu.synchronize()
        took_ns.append(gpu.now_ns() - begun_ns)
        return result

    (hazard,) = found(gpu, program)
    assert gs.confirm(hazard, program, gpu).status == "confirmed"
    assert 20_000_000 < took_ns[-1] < 100_000_000


class Tensor:
    """As PyTorch's tensors, of a type that NumPy lacks."""

    def __init__(self, device, array):
        self.device, self.array = device, array

    def untyped_storage(self):
        raise NotImplementedError

    def detach(self):
        return self

    def cpu(self):
        return Tensor(self.device, self.device.to_host(self.array))

    def reshape(self, *shape):
        return Tensor(self.device, self.array.reshape(*shape))

    def view(self, dtype):
        return Tensor(self.device, self.array.view(dtype))

    def numpy(self):
        return self.array

    def __array__(self, *_args, **_options):
        raise TypeError("Got unsupported ScalarType BFloat16")


def test_a_tensor_is_compared_by_its_bytes(gpu, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(uint8=np.uint8))

    def program():
        return {"result": Tensor(gpu, read_after_write(gpu, ordered=False))}

    (hazard,) = found(gpu, program)
    assert gs.confirm(hazard, program, gpu).status == "confirmed"


# -- work of PyTorch's -----------------------------------------------------------------------
class Library:
    """Operators and graphs as PyTorch's, of which only the log of hazards is told."""

    def __init__(self, gpu):
        self.gpu, self.modes, self.logs = gpu, [], []
        self.stream = None
        self.is_capturing = False
        library = self

        class CUDAGraph:
            def replay(self):
                library.launch_graph(self)

        def copy_(target, source):
            library.run_copy(target, source)

        copy_._schema = next(Schema(text) for text in SCHEMAS if text.startswith("aten::copy_("))
        self.graphs, self.operator = CUDAGraph, copy_

    def run_copy(self, target, source):
        stream = self.stream
        self.gpu.backend.copy(stream.raw, target, source, 0)
        stream.hold(target, source)
        accesses = accesses_of(of_arrays([source], [target]))
        for log in self.logs:
            queue = queue_of(stream, 0)
            captured = log.captured(queue)
            if captured is not None:
                captured.add(stream.handle, Node("aten::copy_", accesses, is_copy=True))
            else:
                row = log.outside.add(0, 0)
                log.note(Work(queue, "aten::copy_", accesses, (row,), is_copy=True))

    def launch_graph(self, graph):
        self.gpu.backend.launch_graph(graph.raw, self.stream.raw, 0)
        for log in self.logs:
            captured, row = log.graphs[graph], log.outside.add(0, 0)
            nodes = tuple(captured.nodes)
            rows = tuple(row_of_node(row, node) for node in range(len(nodes)))
            queue = queue_of(self.stream, 0)
            log.note(Work(queue, "CUDAGraph", None, rows, graph=captured, nodes=nodes))

    def copy(self, stream, target, source):
        self.stream = stream
        if self.modes:
            self.modes[-1](self.operator, (target, source), {})
        else:
            self.operator(target, source)

    def replay(self, graph, stream):
        self.stream = stream
        graph.replay()

    @contextlib.contextmanager
    def capture(self, *streams):
        """Capture streams, which nobody but the library knows."""
        first, *others = streams
        graph = self.graphs()
        for log in self.logs:
            log.graphs[graph] = captured = Captured()
            log.captures.update(dict.fromkeys([queue_of(one, 0) for one in streams], captured))
        self.gpu.backend.begin_capture(first)
        self.is_capturing = True
        for one in others:
            self._follow(one, first)
        yield graph
        for one in others:
            self._follow(first, one)
        self.is_capturing = False
        graph.raw = self.gpu.backend.end_capture(first)
        for log in self.logs:
            log.graphs[graph].end()
            log.captures.clear()

    def _follow(self, stream, other):
        event = self.gpu.backend.make_event(timing=False)
        self.gpu.backend.record(event, other.raw, 0)
        self.gpu.backend.wait(stream.raw, event)

    @contextlib.contextmanager
    def watching(self, _torch, dispatch):
        self.modes.append(dispatch)
        yield
        self.modes.remove(dispatch)

    @contextlib.contextmanager
    def profile(self, *args, **options):
        with gs.profile(*args, **options) as recording:
            self.logs.append(recording.observers[0])
            yield recording
            self.logs.remove(recording.observers[0])


@pytest.fixture
def library(gpu, monkeypatch):
    library = Library(gpu)
    torch = SimpleNamespace(
        _C=SimpleNamespace(
            _cuda_getDevice=lambda: 0,
            _cuda_isCurrentStreamCapturing=lambda: library.is_capturing,
        ),
        cuda=SimpleNamespace(CUDAGraph=library.graphs),
    )
    monkeypatch.setattr(operators, "pytorch", lambda: torch)
    monkeypatch.setattr(operators, "watching", library.watching)
    monkeypatch.setattr(operators, "current_stream", lambda _torch, _gpu: library.stream.handle)
    monkeypatch.setattr(Streams, "stream", lambda _self, _gpu, handle: gpu.find_stream(handle))
    monkeypatch.setattr(confirming, "profile", library.profile)
    replay = library.graphs.replay
    yield library
    assert not library.modes
    assert library.graphs.replay is replay


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
def test_an_operator_of_pytorch_is_delayed(gpu, library, lost, ordered):
    """The third of four copies, of which the others are in order."""

    def program(*, ordered):
        data, seen = filled(gpu, 0), [filled(gpu, 0) for _ in range(4)]
        with gpu.create_stream() as a, gpu.create_stream(name="b") as b:
            for step, one in enumerate(seen):
                a.wait(b.record())
                if lost:
                    launch(a, "write", filled(gpu, 0), ns=SLOW_NS)
                library.copy(a, data, filled(gpu, step + 1))
                if ordered or step != 2:
                    b.wait(a.record())
                if not lost:
                    pause(gpu)
                b.copy(one, data)
        return seen

    with library.profile(gpu, hazards=True) as recording:
        program(ordered=False)
    (hazard,) = gs.analysis.hazards(recording.trace).found
    assert (hazard.first_name, hazard.kind) == ("aten::copy_", "use before a copy ended")
    status = gs.confirm(hazard, lambda: program(ordered=ordered), gpu).status
    assert status.startswith("could not be tried: the program shows" if ordered else "confirmed")


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("graph_is", ["first", "second"])
def test_a_graph_of_pytorch_is_delayed(gpu, library, graph_is, lost, ordered):
    """The second of three launches, or what it follows: the others are in order."""

    def program(*, ordered):
        data, seen = filled(gpu, 0), [filled(gpu, 0) for _ in range(3)]
        inputs, result = filled(gpu, 0), filled(gpu, 0)
        with gpu.create_stream() as a, gpu.create_stream(name="b") as b:
            with library.capture(a) as graph:
                if graph_is == "first":
                    library.copy(a, data, inputs)
                else:
                    library.copy(a, result, data)
            for step, one in enumerate(seen):
                first, second = (a, b) if graph_is == "first" else (b, a)
                first.wait(second.record())
                if graph_is == "first":
                    library.copy(a, inputs, filled(gpu, step + 1))
                if lost:
                    launch(first, "write", filled(gpu, 0), ns=SLOW_NS)
                if graph_is == "first":
                    library.replay(graph, a)
                else:
                    library.copy(b, data, filled(gpu, step + 1))
                if ordered or step != 1:
                    second.wait(first.record())
                if not lost:
                    pause(gpu)
                if graph_is == "first":
                    library.copy(b, one, data)
                else:
                    library.replay(graph, a)
                    library.copy(a, one, result)
            gpu.synchronize()
        return seen

    with library.profile(gpu, hazards=True) as recording:
        program(ordered=False)
    hazards = gs.analysis.hazards(recording.trace).found
    hazard = next(one for one in hazards if one.kind == "use before a copy ended")
    status = gs.confirm(hazard, lambda: program(ordered=ordered), gpu).status
    assert status.startswith("could not be tried: the program shows" if ordered else "confirmed")


# Of work of ours in its graph no simulated GPU tells the end.
@pytest.mark.filterwarnings("ignore:the recording is incomplete")
@pytest.mark.parametrize("lost", [False, True])
def test_branches_of_a_graph_of_pytorch_are_delayed(gpu, library, lost):
    """Where they are captured, which the program does anew."""
    load(gpu, "write", "rewrite")

    def program():
        data, other, seen, new = (filled(gpu, value) for value in (0, 0, 0, 1))
        with gpu.create_stream() as a, gpu.create_stream() as b:
            with library.capture(a, b) as graph:
                launch(a if lost else b, "rewrite", other, ns=SLOW_NS)
                library.copy(a, data, new)
                library.copy(b, seen, data)
            launch(a, "rewrite", data)
            library.replay(graph, a)
        return seen

    with library.profile(gpu, hazards=True) as recording:
        program()
    (hazard,) = gs.analysis.hazards(recording.trace).found
    assert (hazard.first_name, hazard.where) == ("aten::copy_", "capture")
    assert gs.confirm(hazard, program, gpu).status == "confirmed"


# -- what stops it ---------------------------------------------------------------------------
def usable(gpu):
    """Whether a device is as it was, and what runs on it is right."""
    gpu.synchronize()
    right = read_after_write(gpu, ordered=True)
    other = gs.open_device("sim:h200", quiet=True)
    watched = gpu.calls.observers or other.calls.observers
    return not watched and not gpu.streams and gpu.to_host(right)[0] == 1


@pytest.mark.parametrize("run", range(5))
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_exception_in_any_run_leaves_all_usable(gpu, run, error):
    (hazard,) = found(gpu, lambda: lost_every_time(gpu, ordered=False))
    runs = itertools.count()

    def program():
        result = lost_every_time(gpu, ordered=False)
        if next(runs) == run:
            raise error
        return result

    with pytest.raises(error):
        gs.confirm(hazard, program, gpu)
    assert usable(gpu)
    assert gs.confirm(hazard, program, gpu).status == "confirmed"


def test_an_interrupt_at_any_line_leaves_all_usable(gpu):
    (hazard,) = found(gpu, lambda: lost_every_time(gpu, ordered=False))

    def program():
        return lost_every_time(gpu, ordered=False)

    rooms = "races/confirming", "device/select", "device/call", "workloads/delay"
    for number in itertools.count(1):
        with Interrupt(*rooms, at=number) as interrupt:
            assert gs.confirm(hazard, program, gpu).status == "confirmed"
        assert usable(gpu), number
        if not interrupt.raised:
            break
    assert number > 50
    assert gs.confirm(hazard, program, gpu).status == "confirmed"
