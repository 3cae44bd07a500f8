"""Recordings that keep the latest rows: the window, what is said of it, and what memory they take."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from types import FunctionType, ModuleType

import numpy as np
import pyarrow as pa
import pytest
from fake_cupti import COPY, World
from interrupting import Interrupt
from patience import PATIENCE_S

import gpuscope as gs
from gpuscope._checks import length_ns
from gpuscope.device.device import Device
from gpuscope.record import events, recorder, rows, sources, window
from gpuscope.record.blocks import BlockSource
from gpuscope.record.cupti import links
from gpuscope.record.cupti import ranges as cupti_ranges
from gpuscope.record.cupti import waits as cupti_waits
from gpuscope.record.recorder import Recording
from gpuscope.record.rows import Batch
from gpuscope.record.source import Options
from gpuscope.record.window import KeptBatches
from gpuscope.trace import schema
from gpuscope.trace.metadata import TraceMetadata

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
ERRORS = (KeyboardInterrupt, MemoryError, RuntimeError)
KEEP_S = 0.05
OWN = "cuStreamSynchronize"
"""What a recording of all API calls may see of itself, and of recordings inside it."""


@pytest.fixture
def gpu():
    device = gs.open_device("sim:h200", quiet=True)
    yield device
    device.close()


class TimedByEvents(events.EventSource):
    """Times a simulated device by events; what the device tells by itself is not needed."""


@pytest.fixture
def by_events(gpu, monkeypatch):
    """A simulated device that is timed by events."""
    kernel = gs.workloads.spin_kernel(gpu)
    compile_any, launch = gpu.backend.compile, gpu.backend.launch
    monkeypatch.setattr(
        gpu.backend, "compile",
        lambda source, name, model: compile_any(source, name, model or kernel.model),
    )  # fmt: skip
    monkeypatch.setattr(
        gpu.backend, "launch",
        lambda stream, kernel, grid, block, args, number: launch(
            stream, kernel, grid, block, args or (1_000,), number
        ),
    )  # fmt: skip
    monkeypatch.setattr(sources, "ActivitySource", TimedByEvents)
    return gpu


def held(recording):
    """Return how many objects a recording holds, rows of arrays and tables counted."""
    seen, count, todo = set(), 0, [recording]
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, Device | type | ModuleType | FunctionType):
            continue
        seen.add(id(one))
        count += 1
        if isinstance(one, np.ndarray):
            count += one.size
        elif isinstance(one, pa.Table):
            count += one.num_rows
        else:
            todo += gc.get_referents(one)
    return count


def columns(trace, *, since_ns=0):
    """Return what the rows that ended since tell, without the ids."""
    spans = trace.spans.drop_columns(["id", "parent"]).to_pylist()
    kept = [row for row in spans if _ending(row, since_ns) >= since_ns and row["name"] != OWN]
    return sorted(repr(sorted(row.items(), key=str)) for row in kept)


def _ending(row, since_ns):
    """Return when a row ended; of a handle that nobody looked for, when it began."""
    if row["end_ns"] is not None:
        return row["end_ns"]
    return row["start_ns"] if row["kind"] == "handle" else since_ns


def matches(kept, full, *, exact=True):
    """See that one trace has what another has of its window, and says what it lacks."""
    facts = kept.metadata.kept
    mine, theirs = columns(kept), columns(full, since_ns=facts.since_ns)
    assert set(mine) ^ set(theirs) == set()
    assert len(mine) == len(theirs)
    if exact:
        assert len(mine) + facts.rows_left_out == len(full)
    assert facts.rows_left_out > 0
    if exact:  # else some edges lead nowhere anyway
        assert len(kept.edges) + facts.edges_left_out == len(full.edges)
    ids = set(kept.array("id").tolist())
    for edge in kept.edges.to_pylist():
        assert {edge["from"], edge["to"]} <= ids
    assert {parent for parent in kept.spans.column("parent").to_pylist() if parent} <= ids
    assert kept.metadata.windows_ns[0][0] == facts.since_ns
    assert [note for note in kept.metadata.notes if f"{facts.rows_left_out:,} rows" in note]
    assert kept.metadata.complete


# -- what can be asked for -------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "ns"),
    [("60 s", 60 * 10**9), ("500ms", 5 * 10**8), (" 1.5 min ", 90 * 10**9), ("2 h", 7200 * 10**9),
     (2, 2 * 10**9), (0.25, 250_000_000), ("10 us", 10_000), ("7 µs", 7_000), ("3 ns", 3)],
)  # fmt: skip
def test_lengths_are_seconds_or_have_a_unit(value, ns):
    assert length_ns("keep", value) == ns


@pytest.mark.parametrize("value", ["60", "", "60 parsecs", "-1 s", "0 s", 0, -3, 1e300, "1e3 s"])
def test_what_is_no_length_is_refused_with_what_is_needed(gpu, value):
    with (
        pytest.raises(gs.errors.InvalidArgument, match=r"keep is .*'60 s' or '10 min', is needed"),
        gs.profile(gpu, keep=value),
    ):
        pass


# -- a simulated device ----------------------------------------------------------------------
def program(gpu, stream, other):
    """Launch for some 4 ms of simulated time: kernels, handles, ranges, waits."""
    kernel, handle = gs.workloads.spin_kernel(gpu), gs.Gemm(gpu, m=64, n=64, k=64)
    for number in range(200):
        with gs.annotate(f"range {number}"):
            stream.launch(kernel, 10_000, grid=1, block=32)
            other.wait(stream.record())
            handle.execute(stream=other)
            if number % 3 == 0:
                handle.wait()
    stream.synchronize()
    other.synchronize()
    handle.wait()


@pytest.mark.parametrize("full", [8, 1 << 14])
def test_the_window_has_the_rows_of_a_recording_of_everything(gpu, monkeypatch, full):
    monkeypatch.setattr(recorder, "FULL", full)
    with (
        gpu.create_stream() as stream,
        gpu.create_stream() as other,
        gs.profile(gpu) as every,
        gs.profile(gpu, keep="1 ms") as latest,
    ):
        program(gpu, stream, other)
    facts = latest.trace.metadata.kept
    assert facts.keep_ns == 1_000_000
    assert facts.since_ns == latest.trace.metadata.windows_ns[0][1] - 1_000_000
    matches(latest.trace, every.trace)
    assert every.trace.metadata.kept is None
    left_out = f"the last 0.001 s only, {facts.rows_left_out:,} rows left out"
    assert left_out in gs.analysis.summary(latest.trace).note
    assert "rows left out" not in gs.analysis.summary(every.trace).note
    assert TraceMetadata.from_json(latest.trace.metadata.to_json()) == latest.trace.metadata


def test_a_window_longer_than_the_recording_keeps_everything(gpu):
    with (
        gpu.create_stream() as stream,
        gpu.create_stream() as other,
        gs.profile(gpu) as every,
        gs.profile(gpu, keep="1 h") as latest,
    ):
        program(gpu, stream, other)
    facts = latest.trace.metadata.kept
    assert (facts.rows_left_out, facts.edges_left_out) == (0, 0)
    assert facts.since_ns == latest.trace.metadata.windows_ns[0][0]
    assert not any("left out" in note for note in latest.trace.metadata.notes)
    assert "left out" not in latest.trace.provenance
    assert columns(latest.trace) == columns(every.trace)
    assert len(latest.trace.edges) == len(every.trace.edges)


def test_a_kernel_that_began_before_the_window_and_ends_in_it_has_its_call_s_facts(gpu):
    kernel = gs.workloads.spin_kernel(gpu)
    with (
        gpu.create_stream() as stream,
        gpu.create_stream() as other,
        gs.profile(gpu, keep="1 ms") as recording,
    ):
        stream.launch(kernel, 60_000_000, grid=1, block=32)
        for _ in range(400):
            other.launch(kernel, 10_000, grid=1, block=32)
            other.synchronize()
            recording.batches()
        stream.synchronize()
    trace = recording.trace
    (long,) = trace.where(kind="kernel", stream=stream.id).spans.to_pylist()
    since_ns = trace.metadata.kept.since_ns
    assert long["start_ns"] < long["queued_ns"] + 100_000 < since_ns <= long["end_ns"]
    assert long["launch_config"] is not None
    assert long["correlation"] is not None
    assert trace.metadata.complete


def test_memory_of_a_long_simulated_recording_is_bounded(gpu, monkeypatch):
    monkeypatch.setattr(recorder, "FULL", 64)
    kernel, handle = gs.workloads.spin_kernel(gpu), gs.Gemm(gpu, m=64, n=64, k=64)
    sizes, done = [], []
    with (
        gpu.create_stream() as stream,
        gpu.create_stream() as other,
        gs.profile(gpu, keep="200 us") as recording,
    ):
        for part in (100, 100, 1000):
            for _ in range(part):
                with gs.annotate("range"):
                    stream.launch(kernel, 2_000, grid=1, block=32)
                    other.wait(stream.record())
                    handle.execute(stream=other)
                other.synchronize()
                done.append(1)
            recording.batches()
            sizes.append(held(recording))
    assert sizes[2] < 1.3 * sizes[1]
    facts = recording.trace.metadata.kept
    assert len(recording.trace) + facts.rows_left_out > 5 * len(done)


def test_handles_whose_completion_nobody_looks_for_are_forgotten_and_counted(gpu, monkeypatch):
    monkeypatch.setattr(recorder, "FULL", 64)
    handle, kernel = gs.Gemm(gpu, m=64, n=64, k=64), gs.workloads.spin_kernel(gpu)
    late = gs.Gemm(gpu, m=64, n=64, k=64, name="late")
    with (
        gpu.create_stream() as stream,
        gpu.create_stream() as other,
        gs.profile(gpu) as every,
        gs.profile(gpu, keep="100 us") as recording,
    ):
        late.execute(stream=other)
        for _ in range(300):
            handle.execute(stream=stream)
            stream.launch(kernel, 2_000, grid=1, block=32)
            stream.synchronize()
        open_handles = len(recording._calls._open_handles)
        late.wait()  # seen to end now, when its beginning is forgotten
    assert open_handles < 200
    trace = recording.trace
    assert len(trace) + trace.metadata.kept.rows_left_out == len(every.trace)
    (row,) = trace.where(kind="handle", name="late").spans.to_pylist()
    assert row["end_ns"] >= trace.metadata.kept.since_ns
    assert trace.metadata.complete


def test_a_simulated_device_is_read_without_a_thread(gpu):
    recording = Recording((gpu,), Options(keep_ns=1000))
    recording.start()
    assert recording._reader is None
    recording.stop()


def test_an_exception_at_any_line_of_reading_loses_nothing_of_the_window(gpu):
    kernel, handle = gs.workloads.spin_kernel(gpu), gs.Gemm(gpu, m=64, n=64, k=64)
    with (
        gpu.create_stream() as stream,
        gpu.create_stream() as other,
        gs.profile(gpu) as every,
        gs.profile(gpu, keep="50 us") as recording,
    ):
        for number, error in zip(itertools.count(1), itertools.cycle(ERRORS), strict=False):
            with gs.annotate("range"):
                stream.launch(kernel, 1_000, grid=1, block=32)
                other.wait(stream.record())
                handle.execute(stream=other)
                handle.wait()
            with Interrupt("record", "trace", at=number, error=error()) as interrupt:
                recording.batches()
            if not interrupt.raised:
                break
            recording.batches()
    assert number > 100
    matches(recording.trace, every.trace)


# -- readers ---------------------------------------------------------------------------------
def test_numbers_of_batches_stay_and_tell_who_comes_too_late(gpu):
    kernel = gs.workloads.spin_kernel(gpu)
    with gpu.create_stream() as stream, gs.profile(gpu, keep="100 us") as recording:
        numbers = []
        for _ in range(50):
            stream.launch(kernel, 10_000, grid=1, block=32)
            stream.synchronize()
            numbers += [
                batch.number for batch in recording.batches(numbers[-1] + 1 if numbers else 0)
            ]
        late = recording.batches()
        assert numbers == list(range(numbers[-1] + 1))
        assert late[0].number > 0
        assert [batch.number for batch in late] == numbers[late[0].number :]
        assert recording.batches(numbers[-1] + 1) == []


def test_a_row_that_ended_at_the_beginning_of_the_window_is_kept():
    def batch(*ends):
        count = len(ends)
        return Batch(schema.table(
            {"id": list(range(count)), "kind": ["api"] * count, "name": ["x"] * count,
             "start_ns": [1] * count, "end_ns": list(ends), "source": ["host"] * count},
            schema.SPAN_TYPES,
        ))  # fmt: skip

    kept = KeptBatches().with_more([batch(5, 9), batch(10), batch(None), batch(7)])
    assert [one.number for one in kept.batches] == [0, 1, 2, 3]
    assert kept.since(10).batches == kept.batches[1:]
    assert kept.since(10).rows_left_out == 2
    assert kept.since(11).batches == ()
    assert kept.since(11).with_more([batch(12)]).batches[0].number == 4
    assert kept.since(11).since(3).since_ns == 11


# -- events ----------------------------------------------------------------------------------
def test_by_events_the_window_has_what_a_recording_of_everything_has(by_events, monkeypatch):
    monkeypatch.setattr(recorder, "FULL", 32)
    kernel, sizes = gs.workloads.spin_kernel(by_events), []
    with (
        by_events.create_stream() as stream,
        by_events.create_stream() as other,
        gs.profile(by_events, keep="200 us") as recording,
    ):
        other.launch(kernel, 90_000_000, grid=1, block=32)
        for part in (100, 100, 700):
            for _ in range(part):
                stream.launch(kernel, 1_000, grid=1, block=32)
                stream.synchronize()
            recording.batches()
            sizes.append(held(recording))
    trace = recording.trace
    facts = trace.metadata.kept
    assert sizes[2] < 1.3 * sizes[1]
    assert len(trace.where(kind="kernel", stream=other.id)) == 1
    ends = [row["end_ns"] for row in trace.spans.to_pylist() if row["end_ns"] is not None]
    assert min(ends) >= facts.since_ns
    assert len(trace) + facts.rows_left_out == 2 * 901 + 900
    assert trace.metadata.complete


# -- CUPTI -----------------------------------------------------------------------------------
@pytest.mark.parametrize("detail", ["launches", "full"])
@pytest.mark.parametrize("launch_ids", [True, False, "runtime"])
def test_of_cupti_s_records_the_window_has_what_a_recording_of_everything_has(
    monkeypatch, detail, launch_ids
):
    world = World(monkeypatch)
    asked = {"detail": detail, "launch_ids": launch_ids}
    keep_ns = round(KEEP_S * 1e9)
    with (
        world.device.create_stream() as stream,
        world.profile(**asked) as every,
        world.profile(**asked, keep_ns=keep_ns) as latest,
    ):
        began_s = time.monotonic()
        while time.monotonic() < began_s + 4 * KEEP_S:
            with gs.annotate("range"):
                world.launch(stream)
                with gs.CallerStreamGuard(stream):
                    world.gpu.foreign("theirs", on=stream)
            world.gpu.foreign_copy(100)
            stream.synchronize()
    matches(latest.trace, every.trace, exact=launch_ids is True and detail == "launches")
    counts = latest.trace.metadata.counts
    assert counts["dropped"] == counts["unmatched"] == 0


def test_work_that_began_before_the_window_has_the_facts_of_its_call(monkeypatch):
    world = World(monkeypatch)
    monkeypatch.setattr(links, "LATE", 16)
    with world.device.create_stream() as stream, world.profile(keep_ns=2 * 10**8) as recording:
        world.gpu.hold()
        world.launch(stream, "ours")
        with gs.CallerStreamGuard(stream):
            number = world.gpu.foreign("theirs", on=stream)["correlation"]
        held_back, world.gpu._late = world.gpu._late, None
        for _ in range(200):
            world.launch(stream, "short")
        time.sleep(0.25)
        for _ in range(200):
            world.launch(stream, "short")
        recording.batches()
        for kind, fields in held_back:  # they end now
            world.cupti.write(kind, **{**fields, "end": world.cupti.now_ns()})
    kernels = {row["name"]: row for row in recording.trace.where(kind="kernel").spans.to_pylist()}
    assert kernels["ours"]["external_correlation"] is not None
    assert kernels["ours"]["queued_ns"] < recording.trace.metadata.kept.since_ns
    assert kernels["theirs"]["correlation"] == number
    assert kernels["theirs"]["thread"] is not None
    assert recording.trace.metadata.complete


@pytest.mark.parametrize("launch_ids", [True, False, "runtime"])
def test_memory_of_a_long_recording_with_cupti_is_bounded(monkeypatch, launch_ids):
    world = World(monkeypatch)
    monkeypatch.setattr(links, "LATE", 32)
    monkeypatch.setattr(links, "_RECENT", 32)
    monkeypatch.setattr(cupti_ranges, "_LATE", 32)
    monkeypatch.setattr(cupti_waits, "LATE", 32)
    world_of = {"detail": "full", "launch_ids": launch_ids}
    sizes = []
    with world.device.create_stream() as stream:
        recording = world.recording(**world_of, keep_ns=1_000_000)
        recording.start()
        for part in (150, 150, 1500):
            for number in range(part):
                with gs.annotate("range"), gs.CallerStreamGuard(stream):
                    world.launch(stream)
                    world.gpu.foreign("theirs", on=stream)
                world.gpu.call(COPY)  # without work
                stream.synchronize()
                if number % 20 == 0:
                    recording.batches()
            recording.batches()  # all records have come: nothing that is waited for is forgotten
            time.sleep(0.01)
            with monkeypatch.context() as patch:
                patch.setattr(rows, "GRACE_NS", 0)  # what is left is older than what is kept
                recording.batches()
            sizes.append(held(recording))
        recording.stop()
    assert sizes[2] < 1.5 * sizes[1]
    assert recording.trace.metadata.complete


@pytest.mark.no_cover
def test_an_exception_at_any_line_of_reading_cupti_loses_nothing_of_the_window(monkeypatch):
    world = World(monkeypatch)
    monkeypatch.setattr(links, "LATE", 4)
    monkeypatch.setattr(links, "_RECENT", 4)
    monkeypatch.setattr(cupti_ranges, "_LATE", 4)
    with (
        world.device.create_stream() as stream,
        world.profile(detail="full", keep_ns=3600 * 10**9) as recording,
    ):
        for number, error in zip(itertools.count(1), itertools.cycle(ERRORS), strict=False):
            with gs.annotate("range"):
                world.launch(stream)
                with gs.CallerStreamGuard(stream):
                    world.gpu.foreign("theirs", on=stream)
            with Interrupt("record", "trace", at=number, error=error()) as interrupt:
                recording.batches()
            if not interrupt.raised:
                break
            recording.batches()
        assert len(recording.sources[0]._links._linked) < number
    trace = recording.trace
    assert number > 100
    assert trace.kind_counts()["kernel"] == 2 * number
    assert trace.kind_counts()["range"] == number
    edges = [edge["kind"] for edge in trace.edges.to_pylist()]
    assert edges.count("launch") == 2 * number
    ours = trace.where(kind="kernel", name="ours").spans.to_pylist()
    assert len({row["external_correlation"] for row in ours} - {None}) == number
    assert trace.metadata.complete
    assert trace.metadata.kept.rows_left_out == 0


def test_what_a_thread_reads_meanwhile_is_read_later_where_that_fails(monkeypatch):
    monkeypatch.setattr(window, "_LONGEST_S", 0.001)  # between two readings of the thread
    world = World(monkeypatch)
    with world.device.create_stream() as stream:
        recording = world.recording(keep_ns=3_600 * 10**9)
        read, failed = recording._reading._collect, threading.Event()

        def fail(*, over):
            if not over:
                failed.set()
                raise MemoryError
            return read(over=over)

        monkeypatch.setattr(recording._reading, "_collect", fail)
        recording.start()
        world.launch(stream)
        assert failed.wait(PATIENCE_S)
        world.launch(stream, "last")
        recording.stop()
    assert len(recording.trace.where(kind="kernel", name="last")) == 1
    assert any("MemoryError" in note for note in recording.trace.metadata.notes)


def test_blocks_of_kernels_that_are_left_out_are_forgotten_and_counted():
    class Launch:
        def __init__(self, number):
            self.correlation, self.device_key = number, "cuda:0"
            self.blocks = np.zeros((4, 3), np.uint64)

    blocks = BlockSource()
    for number in (1, 2, 3):
        blocks.take(Launch(number))
    undo = blocks.begin_reading()
    ids = [gs.record.rows.work_row(number) for number in (1, 3)]
    spans = schema.table(
        {"id": ids, "kind": ["kernel"] * 2, "name": ["k"] * 2, "start_ns": [1] * 2,
         "source": ["cupti"] * 2},
        schema.SPAN_TYPES,
    )  # fmt: skip
    blocks.forget([Batch(spans)])
    assert (len(blocks._launches), blocks.left_out) == (1, 8)
    undo()
    assert (len(blocks._launches), blocks.left_out) == (3, 0)
