"""Buffers that wait in a file: the trace of the recording, and what another process makes of it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import time
import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_cupti import BUFFER_BYTES, LAUNCH, STREAM_SYNC, STREAM_WAIT, World, recorded
from interrupting import Interrupt
from patience import PATIENCE_S

import gpuscope as gs
from gpuscope import _stacks
from gpuscope.errors import TraceFormatError
from gpuscope.experiments import processes
from gpuscope.experiments.recorded import RecordingOrder
from gpuscope.record import recorder
from gpuscope.record.calls import Ended
from gpuscope.record.cupti import journal as journals
from gpuscope.record.cupti import layout, source
from gpuscope.record.cupti.afar import BufferFacts, RecordTexts, RemoteReader
from gpuscope.record.cupti.journal import JournalReader
from gpuscope.record.cupti.library import LAST_CALLBACK
from gpuscope.record.cupti.places import Known
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace

OF_WORK = (
    "kind",
    "name",
    "start_ns",
    "end_ns",
    "device",
    "device_uuid",
    "stream",
    "partition",
    "context",
    "green_context",
    "thread",
    "correlation",
    "launch_config",
    "nbytes",
)


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def begun(world, path, **options):
    recording = world.recording(**options)
    recording.start()
    return recording, recording.journal(path)


events = itertools.count(1000)
OF_STACKS = ("start_ns", "name", "site", "payload", "status", "thread", "process")


def theirs(world, count=200, *, waits=False):
    """Work of other libraries: several kernels, copies and waits, in ranges now and then."""
    for number in range(count):
        with gs.annotate(f"step {number % 3}"):
            world.gpu.foreign(f"k{number % 7}")
        if number % 20 == 0:
            world.gpu.foreign_copy(100 + number)
        if waits and number % 9 == 0:
            event = next(events)
            world.gpu.record(event)
            world.gpu.wait(STREAM_WAIT, stream=21, sync=event)
            world.gpu.kernel("waits", world.gpu.call(LAUNCH), stream=21)
            world.gpu.wait(STREAM_SYNC, stream=21)


def as_rows(trace, columns=None):
    """Return row → how often, whatever the rows' numbers and order."""
    spans = trace.spans.drop_columns(["id", "parent"]) if columns is None else trace.spans
    return sorted(spans.select(columns or spans.column_names).to_pylist(), key=repr)


def named_edges(trace):
    """Return kind of edge, and name and start of both its ends."""
    of = {row["id"]: (row["name"], row["start_ns"]) for row in trace.spans.to_pylist()}
    return sorted(
        (edge["kind"], of[edge["from"]], of[edge["to"]]) for edge in trace.edges.to_pylist()
    )


@pytest.mark.parametrize("detail", ["launches", "full"])
@pytest.mark.parametrize("notes", [True, False], ids=["noted launches", "CUPTI's"])
def test_another_process_makes_the_same_rows_of_a_program_of_other_libraries(
    monkeypatch, tmp_path, notes, detail
):
    world = World(monkeypatch, notes=notes)
    recording, _ = begun(world, tmp_path / "a", devices=(), detail=detail)
    reader, so_far = JournalReader(tmp_path / "a"), []
    for _ in range(3):
        theirs(world, waits=True)
        recording.advance()
        so_far.append(len(reader.read(over=False)))
    far = reader.read(over=True)
    again = JournalReader(tmp_path / "a").read(over=True)
    near = recording.stop()
    assert so_far[0] < so_far[1] < so_far[2]
    assert as_rows(far) == as_rows(near) == as_rows(again)
    assert named_edges(far) == named_edges(near)
    kinds = near.edges.column("kind").to_pylist()
    assert kinds.count("event wait") == kinds.count("host wait") == 69
    assert len(near.where(kind="kernel")) == 669
    assert near.metadata.complete
    assert far.metadata.complete
    assert far.metadata.counts == near.metadata.counts
    assert (far.metadata.streams, far.metadata.devices) == (
        near.metadata.streams,
        near.metadata.devices,
    )


def test_work_on_our_streams_and_partitions_is_found_there_too(world, tmp_path):
    with world.device.carve({"small": 16, "rest": "rest"}) as parts:
        recording, _ = begun(world, tmp_path / "a")
        stream = parts["small"].create_stream(name="s")
        for _ in range(3):
            world.launch(stream)
            world.gpu.foreign("theirs", on=stream)
        recording.advance()
        far = JournalReader(tmp_path / "a").read(over=True)
        near = recording.stop()
    work = [trace.where(kind="kernel") for trace in (far, near)]
    assert as_rows(work[0], OF_WORK) == as_rows(work[1], OF_WORK)
    assert set(work[0].texts("partition")) == {"small"}
    assert far.metadata.partitions.keys() == near.metadata.partitions.keys()


def test_nothing_waits_in_memory(world, tmp_path):
    recording, _ = begun(world, tmp_path / "a")
    theirs(world, 500)
    recording.advance()
    (only,) = recording.sources
    assert {type(waiting) for waiting in only._raw.values()} == {journals.Stored}
    assert sum(waiting.nbytes for waiting in only._raw.values()) < (tmp_path / "a").stat().st_size
    assert len(world.collector._arrays) <= 1, "the one that CUPTI fills"
    (tmp_path / "a").unlink()  # as a program may do
    assert len(recording.stop().where(kind="kernel")) == 500
    assert recording.trace.metadata.complete


def test_what_waits_is_read_part_by_part(world, tmp_path, monkeypatch):
    monkeypatch.setattr(source, "_PART", 3)
    recording, _ = begun(world, tmp_path / "a")
    theirs(world, 1000)
    recording.advance()
    seen, most = 0, world.collector.sizes[layout.KERNEL]
    while batches := recording.batches(seen):
        seen = batches[-1].number + 1
        rows = sum(batch.spans.num_rows for batch in batches)
        assert 0 < rows <= 3 * max(BUFFER_BYTES // most, 1020), "3 buffers, one of noted launches"
    assert seen > 3
    assert len(recording.stop().where(kind="kernel")) == 1000
    assert recording.trace.metadata.complete


def test_before_the_end_all_parts_are_read_also_behind_one_without_rows(
    world, tmp_path, monkeypatch
):
    monkeypatch.setattr(source, "_PART", 1)
    recording, _ = begun(world, tmp_path / "a", devices=())
    with contextlib.ExitStack() as ranges:
        for name in ("epoch", "step", "layer"):  # buffers of a beginning alone make no rows
            ranges.enter_context(gs.annotate(name))
            recording.advance()
        for _ in range(300):
            world.gpu.foreign("k")
    recording.advance()
    recorder = processes._Recorder(RecordingOrder(str(tmp_path)))
    assert recorder._read_up(recording) == {0}
    kernels = sum(
        batch.spans.column("kind").to_pylist().count("kernel") for batch in recording.batches()
    )
    assert kernels == 300
    assert not recording.sources[0]._raw
    recording.stop()


def test_whole_graphs_are_read_in_another_process_as_in_this_one(world, tmp_path):
    recording, _ = begun(world, tmp_path / "a", graphs="launch")
    for graph in (17, 18, 17):
        world.gpu.foreign_graph(graph)
    recording.advance()
    far = JournalReader(tmp_path / "a").read(over=True)
    near = recording.stop()
    for trace in (far, near):
        graphs = trace.where(kind="graph")
        assert graphs.array("graph").tolist() == [17, 18, 17]
        assert graphs.texts("name") == ["graph 17", "graph 18", "graph 17"]


@pytest.mark.skipif(bool(_stacks.missing()), reason=_stacks.missing() or "-")
def test_sampled_stacks_are_read_in_another_process_as_in_this_one(world, tmp_path):
    recording, _ = begun(world, tmp_path / "a", sample=1000)
    world.gpu.foreign("k")
    so_far = [-1]
    reader = JournalReader(tmp_path / "a")
    for _ in range(3):
        before, end = so_far[-1], time.monotonic() + PATIENCE_S
        while so_far[-1] <= max(before, 0) and time.monotonic() < end:
            sum(range(100_000))
            recording.advance()
            so_far.append(len(reader.read(over=False).where(kind="stack")))
        assert so_far[-1] > max(before, 0)
    again = JournalReader(tmp_path / "a").read(over=True).where(kind="stack")
    near = recording.stop().where(kind="stack")
    assert 0 < len(again) <= len(near)
    far_rows, near_rows = (
        [tuple(row[name] for name in OF_STACKS) for row in trace.spans.to_pylist()]
        for trace in (again, near)
    )
    assert not Counter(far_rows) - Counter(near_rows)
    assert again.metadata.sampling is not None


def test_a_recorded_program_records_graphs_as_it_was_ordered(world, tmp_path):
    order = RecordingOrder(str(tmp_path), device="cuda", graphs="sampled")
    recorder = processes._Recorder(order)
    recorder.begin_cuda()
    assert world.cupti.graph_period_ns == 1_000_000_000
    recorder.finish()
    assert world.cupti.at_rest


def test_a_forked_child_holds_no_journal_open(world, tmp_path):
    recording, journal = begun(world, tmp_path / "a")
    recorder = processes._Recorder(RecordingOrder(str(tmp_path)))
    recorder._journals[1] = journal
    child = os.fork()
    if not child:
        recorder._forget()  # as every fork calls it there
        targets = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
        os._exit(str(tmp_path / "a") in targets)
    assert os.waitpid(child, 0)[1] == 0
    theirs(world, 20)
    recording.advance()
    assert len(recording.stop().where(kind="kernel")) == 20
    assert (tmp_path / "a").exists()


def test_where_there_is_no_room_it_waits_in_memory(world, tmp_path, monkeypatch):
    recording, _ = begun(world, tmp_path / "a")
    theirs(world, 100)
    recording.advance()
    reader = JournalReader(tmp_path / "a")
    before = reader.read(over=False)
    written, full = os.pwrite, []

    def write(file, data, at):
        if full and len(data) > 100:
            written(file, data[:100], at)
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(file, data, at)

    monkeypatch.setattr(os, "pwrite", write)
    full.append(True)
    theirs(world, 100)
    with pytest.raises(OSError, match="No space left"):
        recording.advance()
    full.clear()
    theirs(world, 100)
    recording.advance()
    far = JournalReader(tmp_path / "a").read(over=True)
    still = reader.read(over=False)
    assert len(recording.stop().where(kind="kernel")) == 300
    assert recording.trace.metadata.complete
    assert 200 <= len(far.where(kind="kernel")) < 300
    assert before.metadata.complete
    assert not far.metadata.complete, "what is missing there is told"
    assert not still.metadata.complete


def test_an_exception_at_any_line_of_it_loses_nothing(world, tmp_path):
    struck = 0
    for place in itertools.count(1):
        path = tmp_path / str(place)
        recording, journal = begun(world, path)
        theirs(world, 30)
        with Interrupt("record/cupti/journal.py", "record/cupti/source.py", at=place) as interrupt:
            recording.advance()
        theirs(world, 30)
        recording.advance()
        far = JournalReader(path).read(over=True)
        near = recording.stop()
        assert near.metadata.complete, (place, near.metadata.notes)
        assert len(near.where(kind="kernel")) == len(far.where(kind="kernel")) == 60, place
        journal.close(remove=True)
        if not interrupt.raised:
            break
        struck += 1
    assert struck > 30


def test_a_buffer_that_comes_again_is_read_once(world, tmp_path):
    recording, journal = begun(world, tmp_path / "a")
    theirs(world, 30)
    recording.advance()
    (only,) = recording.sources
    for number, stored in sorted(only._raw.items()):
        journal.store(number, journal.fetch(stored))
    assert only._raw
    assert len(JournalReader(tmp_path / "a").read(over=True).where(kind="kernel")) == 30
    recording.stop()


def test_what_is_known_is_written_once(world, tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "thread_names", lambda *_, alive: {})  # other tests' come and go
    recording, _ = begun(world, tmp_path / "a")
    theirs(world, 30)
    recording.advance()
    recording.advance()
    nbytes = (tmp_path / "a").stat().st_size
    recording.advance()
    assert (tmp_path / "a").stat().st_size == nbytes
    recording.stop()


def test_of_a_journal_that_was_cut_off_what_came_before_is_there(world, tmp_path):
    recording, _ = begun(world, tmp_path / "a")
    kernels = []
    for _ in range(4):
        theirs(world, 100)
        recording.advance()
    written = (tmp_path / "a").read_bytes()
    for nbytes in range(0, len(written), 997):
        (tmp_path / "cut").write_bytes(written[:nbytes])
        kernels.append(len(JournalReader(tmp_path / "cut").read(over=True).where(kind="kernel")))
    assert kernels == sorted(kernels)
    assert kernels[0] == 0
    assert kernels[-1] >= 300
    (tmp_path / "cut").write_bytes(written[:100] + bytes(range(256)) * 40 + written[100:])
    with pytest.raises(TraceFormatError, match="the journal 'cut' cannot be read"):
        JournalReader(tmp_path / "cut").read(over=True)
    recording.stop()


def test_damaged_journals_are_refused_or_read(world, tmp_path):
    recording, _ = begun(world, tmp_path / "a")
    theirs(world, 50)
    recording.advance()
    recording.stop()
    written = np.frombuffer((tmp_path / "a").read_bytes(), np.uint8)
    rng, refused = np.random.default_rng(1), 0
    for _ in range(60):
        damaged = written.copy()
        damaged[rng.integers(0, len(damaged), 3)] = rng.integers(0, 256, 3)
        (tmp_path / "b").write_bytes(damaged.tobytes())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                JournalReader(tmp_path / "b").read(over=True)
            except TraceFormatError:
                refused += 1
    assert refused < 60


def test_what_a_real_libcupti_wrote_is_read_as_without_a_file(monkeypatch, tmp_path):
    real = recorded()
    monkeypatch.setattr(journals, "text_at", lambda address: real.texts[address])
    library = SimpleNamespace(callback_name=lambda _, number: f"cudaLaunch{number}")
    collector = SimpleNamespace(library=library, sizes=layout.record_sizes(real.version))
    facts = BufferFacts(real.version, "launches", 0, noted=False)
    journal = journals.Journal(tmp_path / "a", collector, facts, Known())
    for number, raw in enumerate(real.raw):
        stored = journal.store(number, raw)
        assert (journal.fetch(stored) == raw).all()

    names = {number: library.callback_name(0, number) for number in range(LAST_CALLBACK)}
    texts = RecordTexts(real.version, dict.fromkeys(range(10), names), real.texts)
    reader = RemoteReader(facts, texts)
    near = reader.rows(real.raw, Ended(0, [], []), {}, over=True)
    far = JournalReader(tmp_path / "a").read(over=True)
    assert as_rows(far) == as_rows(Trace(near.spans, near.edges, TraceMetadata()))
    assert far.kind_counts()["kernel"] > 10


@pytest.mark.skipif(layout._finder is None, reason="it is not compiled")
def test_c_and_numpy_find_the_same_texts_and_devices(monkeypatch):
    sizes = layout.record_sizes(recorded().version)
    for raw in recorded().raw:
        for nbytes in (len(raw), len(raw) - 30, 4, 0):
            in_c = layout.texts_and_devices(raw[:nbytes], sizes)
            with monkeypatch.context() as pure:
                pure.setattr(layout, "_finder", None)
                assert layout.texts_and_devices(raw[:nbytes], sizes) == in_c
    assert in_c == (set(), set())
    assert any(layout.texts_and_devices(raw, sizes)[0] for raw in recorded().raw)
