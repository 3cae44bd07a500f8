"""Hazards on the simulated GPU: who is accused, of what, and who is not."""

import contextlib
import dataclasses
import weakref

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.device.accesses import (
    Access,
    accesses_of,
    of_arrays,
    operand_of,
    pointers_of,
)
from gpuscope.device.api import KernelCost, KernelModel
from gpuscope.device.arena import allocate, give_back
from gpuscope.errors import MissingEvidence
from gpuscope.races import hazard_log
from gpuscope.races.hazard_notes import (
    FreedMemory,
    HostAccess,
    HostWait,
    Queue,
    Record,
    Wait,
    Work,
)
from gpuscope.races.hazards import Detector
from gpuscope.races.mends import Missing, mend_of
from gpuscope.record import recorder


def facts_of(program, *args):
    """Return what is found in a program on two streams."""
    gpu = gs.open_device("sim:h200", quiet=True)
    with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:  # noqa: SIM117
        with gs.profile(gpu, hazards=True) as recording:
            program(gpu, a, b, *args)
    return gs.analysis.hazards(recording.trace).found


def found(program, *args):
    """Return the kinds of what is found."""
    return [fact.kind for fact in facts_of(program, *args)]


def touch(gpu):
    """Return a kernel that writes its first argument and reads the others."""
    model = KernelModel(
        lambda _profile, grid, _args, _sms: KernelCost(grid, 5_000),
        reads=lambda args: args[1:],
        writes=lambda args: args[0],
        compute=lambda *values: values[0] if values else np.zeros(100, "float32"),
    )
    return gpu.compile("", "touch", model=model)


def launch(stream, *args):
    stream.launch(touch(stream.device), *args, grid=1, block=32)


def pair(gpu, a, b, second, order):
    x, y, z = (gpu.empty(100) for _ in range(3))
    launch(a, x, y)
    order(gpu, a, b)
    launch(b, *{"read": (z, x), "write": (x, z), "read only": (z, y), "overwrite": (y, z)}[second])


ORDERS = {
    "event": lambda gpu, a, b: b.wait(a.record()),
    "stream": lambda gpu, a, b: a.synchronize(),
    "device": lambda gpu, a, b: gpu.synchronize(),
    "host": lambda gpu, a, b: a.record().synchronize(),
    "query": lambda gpu, a, b: (gpu.backend.sync_stream(a.raw), a.is_done),
    "event query": lambda gpu, a, b: [
        event := a.record(), gpu.backend.sync_stream(a.raw), event.is_done
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("second", "kind"),
    [
        ("read", ["read after write"]),
        ("write", ["write after write"]),
        ("overwrite", ["write after read"]),
        ("read only", []),
    ],
)
def test_kinds(second, kind):
    assert found(pair, second, lambda *_: None) == kind


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("second", ["read", "write", "overwrite"])
def test_order_is_seen(order, second):
    assert found(pair, second, ORDERS[order]) == []


def test_an_event_recorded_too_early_orders_nothing():
    def program(gpu, a, b):
        x, y = gpu.empty(100), gpu.empty(100)
        event = a.record()
        launch(a, x, y)
        b.wait(event)
        launch(b, gpu.empty(100), x)

    assert found(program) == ["read after write"]


def test_order_passes_on_over_a_third_stream():
    def program(gpu, a, b):
        x, y = gpu.empty(100), gpu.empty(100)
        with gpu.create_stream() as c:
            launch(a, x)
            c.wait(a.record())
            b.wait(c.record())
            launch(b, y, x)
            b.synchronize()

    assert found(program) == []


def test_a_copy_that_has_not_ended():
    def program(gpu, a, b):
        x, y, z = (gpu.empty(100) for _ in range(3))
        a.copy(x, y)
        launch(b, z, x)

    assert found(program) == ["use before a copy ended"]


def test_memory_given_out_again_is_in_order():
    def program(gpu, a, b):
        z = gpu.empty(100)
        for stream in (a, b) * 3:
            launch(stream, gpu.empty(100))
            gpu.backend.sync_stream(a.raw)
            gpu.backend.sync_stream(b.raw)
        launch(a, z)

    assert found(program) == []


def test_the_mend_names_the_missing_call_and_groups_have_a_count():
    gpu = gs.open_device("sim:h200", quiet=True)
    x, y = gpu.empty(100), gpu.empty(100)
    with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:  # noqa: SIM117
        with gs.profile(gpu, hazards=True) as recording:
            for _ in range(3):
                launch(a, x)
                launch(b, y, x)
                gpu.synchronize()
    result = gs.analysis.hazards(recording.trace)
    (fact,) = result.found
    assert (fact.count, fact.nbytes, fact.address) == (3, 400, x.address)
    assert fact.mend == "b.wait(a.record())  # before 'touch'"
    names = dict(zip(recording.trace.array("id"), recording.trace.texts("name"), strict=True))
    assert names[fact.first] == names[fact.second] == "touch"
    assert (result.facts.accesses, result.facts.unseen) == (6, 0)


def test_the_facts_survive_their_file(tmp_path):
    gpu = gs.open_device("sim:h200", quiet=True)
    x, y = gpu.empty(100), gpu.empty(100)
    with gpu.create_stream() as a, gpu.create_stream() as b:  # noqa: SIM117
        with gs.profile(gpu, hazards=True) as recording:
            launch(a, x)
            launch(b, y, x)
    gs.export(recording.trace, tmp_path / "t.parquet")
    again = gs.load_trace(tmp_path / "t.parquet")
    assert again.metadata.hazards == recording.trace.metadata.hazards
    assert len(again.metadata.hazards.found) == 1


def test_a_trace_without_facts_says_how_to_get_them():
    gpu = gs.open_device("sim:h200", quiet=True)
    with gs.profile(gpu) as recording:
        pass
    with pytest.raises(MissingEvidence, match="profile\\(hazards=True\\)"):
        gs.analysis.hazards(recording.trace)


def test_prepared_products_are_seen_and_ordered_by_their_wait():
    def program(gpu, a, b, *, wait):
        one, two = (gs.Gemm(gpu, m=64, n=64, k=64) for _ in range(2))
        x, y, z = (gpu.random((64, 64), "float16") for _ in range(3))
        for _ in range(3):
            one.execute(x, x, y, stream=a)
            if wait:
                one.wait()
            two.execute(y, x, z, stream=b)
            two.wait()
            a.synchronize()

    assert found(lambda *args: program(*args, wait=True)) == []
    assert found(lambda *args: program(*args, wait=False)) == ["read after write"]


# -- ranges --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("one", "other", "nbytes", "first"),
    [
        (np.s_[:, 0:8], np.s_[:, 7:15], 256, 28),
        (np.s_[::2, 0], np.s_[::3, 0], 11 * 4, 0),
        (np.s_[1::4, 3], np.s_[3::6, 3:5], 5 * 4, (9 * 64 + 3) * 4),
    ],
)
def test_bytes_in_common_are_counted_row_by_row(one, other, nbytes, first):
    bases = []

    def program(gpu, a, b):
        x, y, z = (gpu.empty((64, 64)) for _ in range(3))
        bases.append(x.address)
        a.copy(x[one], y[one])
        b.copy(z[other], x[other])

    (fact,) = facts_of(program)
    assert (fact.nbytes, fact.address) == (nbytes, bases[0] + first)


def test_const_pointers_of_a_kernels_source_are_read():
    source = 'extern "C" __global__ void f(const float* a, float *b, int n, float const *c) {}'
    assert pointers_of(source, "f") == (True, False, None, True)
    assert pointers_of("", "f") == ()


def test_a_pointer_given_as_a_number_is_unseen():
    gpu = gs.open_device("sim:h200", quiet=True)
    source = 'extern "C" __global__ void f(float* a, long long n) {}'
    model = KernelModel(lambda _profile, grid, _args, _sms: KernelCost(grid, 5_000))
    kernel, x = gpu.compile(source, "f", model=model), gpu.empty(100)
    verdicts = []
    for pointer in (x, x.address, 0):
        with gpu.create_stream() as a, gs.profile(gpu, hazards=True) as recording:
            a.launch(kernel, pointer, 100, grid=1, block=32)
        verdicts.append(gs.analysis.hazards(recording.trace).facts)
    assert [(facts.accesses, facts.unseen) for facts in verdicts] == [(1, 0), (0, 1), (1, 0)]


@pytest.mark.parametrize("declared", [False, True])
def test_what_a_kernel_updates_is_read_and_written(declared):
    def program(gpu, a, b):
        source = 'extern "C" __global__ void f(float* x) {}'
        model = KernelModel(lambda _profile, grid, _args, _sms: KernelCost(grid, 5_000))
        if declared:
            model = dataclasses.replace(model, reads=lambda args: args, writes=lambda args: args[0])
        kernel, x = gpu.compile(source, "f", model=model), gpu.empty(100)
        for stream in (a, b):
            stream.launch(kernel, x, grid=1, block=32)

    (fact,) = facts_of(program)
    assert (fact.kind, fact.nbytes) == ("read after write", 400)


# -- the detector alone --------------------------------------------------------------------
def test_notes_need_no_device():
    class Event:
        pass

    detector, event = Detector(), Event()
    one, two = Queue("gpu", 1), Queue("gpu", 2)
    write, read = (Access(0, 100, reads=False, writes=True),), (Access(50, 60),)
    for note in (
        Work(one, "w", write),
        Record(one, event),
        Work(two, "too early", read),
        Wait(two, event),
        Work(two, "in order", read),
        HostWait(queue=two),
        Work(one, "again", write),
    ):
        detector.take(note)
    facts = detector.facts()
    assert [(fact.first_name, fact.second_name, fact.nbytes) for fact in facts.found] == [
        ("w", "too early", 10)
    ]
    assert facts.accesses == 4


def test_a_wait_for_one_gpu_does_not_wait_for_another():
    """As two programs of CuSan's for several GPUs have it, which need two to run."""
    write, read = (Access(0, 100, reads=False, writes=True),), (Access(0, 100),)
    kinds = []
    for waits_for in ("cuda:0", "cuda:1"):
        detector, both = Detector(), [Queue("cuda:0", 1), Queue("cuda:1", 2)]
        detector.take(Work(both[0], "w", write))
        detector.take(Work(both[1], "elsewhere", (Access(200, 300, reads=False, writes=True),)))
        detector.take(HostWait(device=waits_for))
        detector.take(HostAccess("read", read))
        kinds.append([fact.kind for fact in detector.facts().found])
    assert kinds == [[], ["host access too early"]]


# -- graphs --------------------------------------------------------------------------------
def branches(gpu, a, b, *, joined):
    """Capture two branches that write and read one array."""
    x, y = gpu.empty(100), gpu.empty(100)
    with a.capture() as graph:
        b.wait(a.record())
        launch(a, x)
        if joined:
            b.wait(a.record())
        launch(b, y, x)
        a.wait(b.record())
    return graph, x, y


def graph_first(gpu, a, b, cap, x, host):
    with cap.capture() as graph:
        launch(cap, x)
    graph.launch(stream=a)
    b.copy(gpu.empty(100), x)


def graph_first_on_the_other_side(gpu, a, b, cap, x, host):
    with cap.capture() as graph:
        launch(cap, x)
    graph.launch(stream=a)
    cap.copy(gpu.empty(100), x)


def host_after_a_graph(gpu, a, b, cap, x, host):
    with cap.capture() as graph:
        cap.copy(host, x)
    graph.launch(stream=a)
    host.sum()


def graph_second(gpu, a, b, cap, x, host):
    with cap.capture() as graph:
        launch(cap, gpu.empty(100), x)
    launch(b, x)
    graph.launch(stream=a)


def graph_after_a_graph(gpu, a, b, cap, x, host):
    with cap.capture() as first:
        launch(cap, x)
    with cap.capture() as second:
        launch(cap, gpu.empty(100), x)
    first.launch(stream=a)
    second.launch(stream=b)


def in_one_capture(gpu, a, b, cap, x, host):
    with cap.capture() as graph:
        b.wait(cap.record())
        launch(cap, x)
        launch(b, gpu.empty(100), x)
        cap.wait(b.record())
    graph.launch(stream=a)


def two_of_one_name(gpu, a, b, cap, x, host):
    with gpu.create_stream(name="a") as other:
        launch(a, x)
        launch(other, gpu.empty(100), x)


def after_the_default_stream(gpu, a, b, cap, x, host):
    launch(gpu.default_stream(), x)
    launch(b, gpu.empty(100), x)


@pytest.mark.parametrize(
    ("act", "missing"),
    [
        (graph_first, ("b", "a", "work", "")),
        (graph_first_on_the_other_side, ("cap", "a", "work", "")),
        (host_after_a_graph, ("host", "a", "host", "")),
        (graph_second, ("a", "b", "graph", "")),
        (graph_after_a_graph, ("b", "a", "graph", "")),
        (in_one_capture, ("b", "cap", "capture", "")),
        (two_of_one_name, ("a", "a", "work", "touch")),
        (after_the_default_stream, ("b", "per-thread default", "work", "touch")),
    ],
)
def test_the_missing_order_is_of_the_streams_that_launch(act, missing):
    def program(gpu, a, b):
        with gpu.create_stream(name="cap") as cap:
            act(gpu, a, b, cap, gpu.empty(100), gpu.empty_pinned(100))
            gpu.synchronize()

    (fact,) = facts_of(program)
    assert (fact.waits, fact.awaits, fact.where, fact.behind) == missing


@pytest.mark.parametrize("joined", [False, True])
def test_branches_of_a_graph(joined):
    def program(gpu, a, b):
        graph, _, y = branches(gpu, a, b, joined=joined)
        graph.launch(stream=a)
        launch(a, gpu.empty(100), y)
        graph.launch(stream=a)

    assert found(program) == ([] if joined else ["read after write"])


def test_a_graph_captured_before_the_recording_counts_by_its_nodes():
    gpu = gs.open_device("sim:h200", quiet=True)
    with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
        graph, _, y = branches(gpu, a, b, joined=True)
        assert not gpu.calls.observers
        with gs.profile(gpu, hazards=True) as recording:
            graph.launch(stream=a)
            graph.launch(stream=b)  # launches of one graph follow each other
            launch(a, y)
    result = gs.analysis.hazards(recording.trace)
    (fact,) = result.found
    assert (fact.kind, fact.first_stream, result.facts.accesses) == ("write after write", "b", 5)
    assert fact.first in recording.trace.array("id")


@pytest.mark.parametrize("closed", [False, True])
def test_closing_a_graph_waits_for_its_launches(closed):
    def program(gpu, a, b):
        x, y = gpu.empty(100), gpu.empty(100)
        with a.capture() as graph:
            launch(a, x)
        graph.launch(stream=a)
        if closed:
            graph.close()
        launch(b, y, x)

    assert found(program) == ([] if closed else ["read after write"])


# -- host functions --------------------------------------------------------------------------
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("captured", [False, True])
def test_what_a_host_function_reads_of_page_locked_memory(ordered, captured):
    def program(gpu, a, b):
        x, host = gpu.empty(100), gpu.empty_pinned(100)

        def check():
            host.sum()

        def run():
            b.wait(a.record())
            a.copy(host, x)
            if ordered:
                b.wait(a.record())
            b.host_call(check)

        if captured:
            with a.capture() as graph:
                run()
                a.wait(b.record())
            for _ in range(2):
                graph.launch(stream=a)
        else:
            run()

    assert found(program) == ([] if ordered else ["use before a copy ended"])


def test_what_comes_behind_a_host_function_waits_for_it_to_run():
    """A recording that is read while it goes on."""
    gpu = gs.open_device("sim:h200", quiet=True)
    host, spin = gpu.empty_pinned(100), gs.workloads.spin_kernel(gpu)
    with (
        gpu.create_stream() as a,
        gpu.create_stream() as b,
        gs.profile(gpu, hazards=True) as recording,
    ):
        log = recording.observers[0]
        a.launch(spin, 50_000_000, grid=1, block=32)
        a.host_call(lambda: host.fill(1))
        b.copy(gpu.empty(100), host)
        log.read(over=False)
        assert log.facts().accesses == 1
        gpu.synchronize()
        log.read(over=False)
        assert [fact.kind for fact in log.facts().found] == ["read after write"]


def test_a_drained_stream_is_done():
    def program(gpu, a, b):
        x, y = gpu.empty(100), gpu.empty(100)

        def work(ctx):
            launch(ctx.stream, x)
            raise ValueError

        with gs.workloads.workload(work)(gpu) as handle, contextlib.suppress(ValueError):
            handle.execute(stream=a)
        launch(b, y, x)

    assert found(program) == []


# -- copies and writes of the host's -----------------------------------------------------------
@pytest.mark.parametrize(("pageable", "kinds"), [(False, ["host access too early"]), (True, [])])
def test_a_copy_from_pageable_to_page_locked_memory_waits(pageable, kinds):
    def program(gpu, a, _b):
        host = gpu.empty_pinned(100)
        source = np.zeros(100, "float32") if pageable else gpu.empty(100)
        a.copy(host, source)
        host.sum()

    assert found(program) == kinds


def test_a_write_by_python_is_work_on_the_legacy_stream():
    def program(gpu, a, _b):
        x, y = gpu.empty(100), gpu.empty(100)
        launch(a, x)
        y[:50] = x[50:]
        launch(a, x, y)

    assert found(program) == ["read after write"] * 2


# -- the legacy default stream ---------------------------------------------------------------
@pytest.mark.parametrize("blocking", [False, True])
def test_the_legacy_default_stream_orders_blocking_streams_alone(blocking):
    gpu = gs.open_device("sim:h200", quiet=True)
    x, y = gpu.empty(100), gpu.empty(100)
    legacy = gpu.wrap_stream(0)
    with gpu.create_stream(blocking=blocking) as a, gs.profile(gpu, hazards=True) as recording:
        launch(a, x)
        launch(legacy, y, x)
        launch(a, x)
    kinds = [fact.kind for fact in gs.analysis.hazards(recording.trace).found]
    assert kinds == ([] if blocking else ["read after write", "write after read"])


# -- scratch -----------------------------------------------------------------------------------
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("misused", ["before", "after"])
def test_scratch_used_outside_its_stream(misused, ordered):
    """By who had it before, or by who has it now; its stream orders the other's use."""

    def program(gpu, a, b):
        for stream in (b, a) if misused == "before" else (a, b):
            memory = allocate(gpu, 400, a)
            if ordered and misused == "after":
                b.wait(a.record())
            launch(stream, memory.array.view(np.dtype("float32")))
            if ordered and stream is b:
                a.wait(b.record())
            give_back(gpu, memory, a)

    assert found(program) == ([] if ordered else ["reuse of freed memory"])


def test_scratch_that_a_handle_keeps_is_reused():
    def program(gpu, a, b):
        def work(ctx):
            scratch = ctx.scratch(400).view(100)
            launch(ctx.stream, scratch)
            launch(b, gpu.empty(100), scratch)  # in no order

        with gs.workloads.workload(work)(gpu) as handle:
            for _ in range(2):
                handle.execute(stream=a)

    assert sorted(found(program)) == ["read after write", "reuse of freed memory"]


def test_the_device_waits_where_scratch_of_no_stream_goes_back():
    def program(gpu, a, b):
        x, y = gpu.empty(100), gpu.empty(100)
        with gpu.scratch(400):
            launch(a, x)
        launch(b, y, x)

    assert found(program) == []


def test_memory_given_to_another_stream_follows_its_free():
    """As CUDA's stream-ordered memory does, and for nobody else."""
    one, two, three = (Queue("gpu", number) for number in (1, 2, 3))
    write, detector = (Access(0, 100, reads=False, writes=True),), Detector()
    for note in (
        Work(one, "before", write),
        FreedMemory(0, 100, one),
        FreedMemory(0, 100, two, is_given=True),
        Work(two, "after", write),
        Work(three, "beside", write),
    ):
        detector.take(note)
    assert {(fact.first_name, fact.second_name) for fact in detector.facts().found} == {
        ("after", "beside")
    }


def test_what_python_writes_keeps_its_memory_from_being_given_out():
    gpu = gs.open_device("sim:h200", quiet=True)
    x = gpu.empty(100)
    gpu.wrap_stream(0).launch(gs.workloads.spin_kernel(gpu), 50_000_000, grid=1, block=32)
    x[...] = 1
    address = x.address
    del x
    other = gpu.empty(100)
    assert other.address != address
    gpu.synchronize()
    assert gpu.empty(100).address == address


# -- notes that wait to be read -----------------------------------------------------------------
def test_notes_that_nobody_reads_are_bounded(monkeypatch):
    """A recording of nothing else: who makes notes reads them, in order, and none is lost."""
    monkeypatch.setattr(hazard_log, "OVERFULL", 50)
    monkeypatch.setattr(hazard_log, "_AT_ONCE", 10)
    gpu = gs.open_device("sim:h200", quiet=True)
    host, most = gpu.empty_pinned(100), 0
    with gpu.create_stream() as a, gs.profile(gpu, hazards=True) as recording:
        waiting = recording.observers[0]._noted
        a.copy(gpu.empty(100), host)
        for _ in range(500):
            host[0] = 1
            most = max(most, len(waiting))
    assert most <= 50
    result = gs.analysis.hazards(recording.trace)
    assert sum(fact.count for fact in result.found) + result.facts.left_out == 500
    assert (result.facts.accesses, result.facts.unseen) == (501, 0)


def test_notes_are_read_with_the_rows_where_only_the_latest_are_kept(monkeypatch):
    monkeypatch.setattr(recorder, "FULL", 50)
    gpu = gs.open_device("sim:h200", quiet=True)
    host, most = gpu.empty_pinned(100), 0
    with gs.profile(gpu, hazards=True, keep="1 h") as recording:
        for _ in range(500):
            host[0] = 1
            most = max(most, len(recording.observers[0]._noted))
    assert most <= 50
    assert recording.trace.metadata.hazards.accesses == 500


def test_what_an_operand_is_keeps_no_memory_and_tells_the_same_later():
    gpu = gs.open_device("sim:h200", quiet=True)
    array = gpu.empty((8, 8))[::-1, 2:4]
    operand, expected = operand_of(array, writes=True), accesses_of(of_arrays((), (), [array]))
    seen = weakref.ref(array.block)
    del array
    assert seen() is None
    assert operand.accesses() == expected
    assert accesses_of(of_arrays((object(), 3), ())) == ()


@pytest.mark.parametrize(
    ("awaits", "waits", "code"),
    [
        ("s", "t", "t.wait(s.record())"),
        ("stream 0x2a", "t", "t.wait(gpu.wrap_stream(0x2a).record())"),
        ("s", "stream 0x2a", "gpu.wrap_stream(0x2a).wait(s.record())"),
    ],
)
def test_a_mend_calls_streams_of_others_by_their_handle(awaits, waits, code):
    assert mend_of(Missing(waits, awaits, "work"), "first", "second").startswith(f"{code}  #")
