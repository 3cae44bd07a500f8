"""Perfetto's typed traces: odd input, hazards, sequences of packets, and without the package."""

from __future__ import annotations

import math
import sys

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos
from perfetto_packets import decoded

import gpuscope as gs
from gpuscope.formats.perfetto import interned, write
from gpuscope.trace import Trace
from gpuscope.trace.metadata import TraceMetadata


def exported(tmp_path, rows, edges=(), **metadata):
    """Return what a trace of these rows becomes; edges are (from, to, kind)."""
    plain = {"source": "cupti", "start_ns": 5}
    rows = [{"id": number, **plain, **row} for number, row in enumerate(rows)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = zip(*edges, strict=True) if edges else ((), (), ())
    trace = Trace.from_columns(
        {name: [row.get(name) for row in rows] for name in names},
        dict(zip(("from", "to", "kind"), map(list, columns), strict=True)),
        TraceMetadata(**metadata),
    )
    return decoded(gs.export(trace, tmp_path / "run.pftrace", keep_private=True).read_bytes())


def test_without_the_package_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "perfetto", None)
    for name in list(sys.modules):
        if name.startswith("perfetto."):
            monkeypatch.delitem(sys.modules, name)
    trace = Trace.from_columns({"id": [], "kind": [], "name": [], "start_ns": [], "source": []})
    for suffix in (".pftrace", ".pftrace.zip"):
        with pytest.raises(gs.errors.MissingDependency, match=r"perfetto.*'gpuscope\[perfetto\]'"):
            gs.export(trace, tmp_path / f"run{suffix}")
    assert not list(tmp_path.iterdir())


def test_no_rows(tmp_path):
    trace = Trace.from_columns({"id": [], "kind": [], "name": [], "start_ns": [], "source": []})
    said = decoded(gs.export(trace, tmp_path / "run.pftrace").read_bytes())
    assert not said.stages | said.slices | said.instants
    assert said.attributes["gpuscope.writer"].startswith("gpuscope ")


NAMES = ("", "\0", "a\0b", "übung 🚀", "\x07bell", "x" * 100_000, "\ud800")


def test_any_text_is_a_name(tmp_path):
    kernel = {"kind": "kernel", "end_ns": 9, "device": 0, "partition": "p\0", "stream": 1}
    ranges = {"kind": "range", "end_ns": 9, "thread": 1, "payload": "\0"}
    rows = [{**kind, "name": name} for name in NAMES for kind in (kernel, ranges)]
    said = exported(tmp_path, rows)
    expected = [name.encode("utf-8", "replace").decode() for name in NAMES]
    assert [one["name"] for one in said.stages.values()] == expected
    assert [one["kernel"].name for one in said.stages.values()] == expected
    assert {one["extra"]["partition"] for one in said.stages.values()} == {"p\0"}
    assert [one[2] for one in said.slices.values()] == expected
    assert {one[5]["payload"] for one in said.slices.values()} == {"\0"}


def test_long_texts_are_written_in_small_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("gpuscope.formats.perfetto.write._BYTES", 1 << 12)
    rows = [{"kind": "kernel", "name": "k", "stream": 1, "start_ns": number, "end_ns": number + 1,
             "category": "c" * 500, "status": "s" * 500} for number in range(50)]  # fmt: skip
    sizes = []
    blocks = write._Packets.blocks

    def measured(packets):
        for block, count in blocks(packets):
            sizes.append(block.ByteSize())
            yield block, count

    monkeypatch.setattr(write._Packets, "blocks", measured)
    said = exported(tmp_path, rows)
    assert {one["extra"]["status"] for one in said.stages.values()} == {"s" * 500}
    assert max(sizes) < 1 << 13


def test_numbers_keep_their_sign(tmp_path):
    rows = [{"kind": "mark", "name": "m", "thread": 1, "value": value} for value in (0.0, -0.0)]
    notes = [one[-1]["value"] for one in exported(tmp_path, rows).instants.values()]
    assert [math.copysign(1, value) for value in notes] == [1, -1]


def test_mangled_names_are_not_demangled(tmp_path):
    rows = [{"kind": "kernel", "name": name, "stream": 1} for name in ("_Z3addPf", "add(float*)")]
    kernels = [one["kernel"] for one in exported(tmp_path, rows).stages.values()]
    assert [one.demangled_name for one in kernels] == ["", "add(float*)"]


@pytest.mark.parametrize("base", ["unix", "relative", "virtual"])
def test_times_are_the_trace_s_own_on_its_clock(tmp_path, base):
    latest = (1000 << 52) - 1
    rows = [{"kind": "kernel", "name": "k", "start_ns": start, "end_ns": latest, "stream": 1}
            for start in (0, 1, latest)]  # fmt: skip
    said = exported(tmp_path, rows, time_base=base)
    assert [(one["start"], one["end"]) for one in said.stages.values()] == [
        (0, latest), (1, latest), (latest, latest)
    ]  # fmt: skip
    packets = protos.Trace.FromString((tmp_path / "run.pftrace").read_bytes()).packet
    clocks = [one.clock_snapshot.primary_trace_clock for one in packets
              if one.HasField("clock_snapshot")]  # fmt: skip
    assert clocks == ([protos.BUILTIN_CLOCK_REALTIME] if base == "unix" else [])


def test_negative_times_are_refused_before():
    with pytest.raises(gs.errors.TraceFormatError):
        Trace.from_columns({"id": [1], "kind": ["kernel"], "name": ["k"], "start_ns": [-5],
                            "source": ["cupti"]})  # fmt: skip


@pytest.mark.parametrize("config", [
    "no json", "[]", '{"grid": [1, 2], "block": [1, 1, 1]}', '{"grid": [-1, 1, 1]}',
    '{"grid": [4294967296, 1, 1], "block": [1, 1, 1]}',
])  # fmt: skip
def test_a_launch_configuration_that_is_none_has_no_grid(tmp_path, config):
    row = {"kind": "kernel", "name": "k", "stream": 1, "launch_config": config}
    (stage,) = exported(tmp_path, [row]).stages.values()
    assert stage["launch"] is None
    assert stage["extra"]["launch_config"] == config


def test_a_launch_without_registers_has_what_is_known(tmp_path):
    row = {"kind": "kernel", "name": "k", "stream": 1,
           "launch_config": '{"grid": [7, 1, 1], "block": [32, 2, 1]}'}  # fmt: skip
    (stage,) = exported(tmp_path, [row]).stages.values()
    assert stage["launch"] == {"grid": [7, 1, 1], "block": [32, 2, 1]}


def test_numbers_that_no_process_has_get_tracks_without_one(tmp_path):
    rows = [{"kind": "api", "name": "a", "end_ns": 9, "process": process, "thread": thread}
            for process, thread in ((0, 1), (1 << 40, 1), (7, 1 << 40), (7, 8), (None, None))]  # fmt: skip
    said = exported(tmp_path, rows)
    tracks = [said.tracks[one[4]] for one in said.slices.values()]
    assert [one.HasField("thread") for one in tracks] == [False, False, False, True, False]
    assert len({one.uuid for one in tracks}) == 5
    processes = [one.process.pid for one in said.tracks.values() if one.HasField("process")]
    assert processes == [7]


def test_edges_that_no_packet_can_have_are_counted(tmp_path):
    rows = [{"kind": "kernel", "name": "k", "stream": 1}] * 2 + [
        {"kind": "counter", "name": "c", "value": 1.0}
    ]
    edges = [(0, 1, "event wait"), (0, 99, "event wait"), (0, 2, "event wait"), (0, 1, "SMs")]
    said = exported(tmp_path, rows, edges)
    assert said.attributes["gpuscope.edges_left_out"] == 2
    assert said.waits == [(0, 1), (0, 1)]
    assert said.stages[1]["extra"]["event_wait_kinds"] == "event wait, SMs"


def test_hazards_are_instants(tmp_path):
    rows = [{"kind": "kernel", "name": name, "start_ns": start, "stream": stream}
            for name, start, stream in (("a", 10, 1), ("b", 20, 2))]  # fmt: skip
    hazard = {"kind": "read after write", "first": 0, "second": 1, "first_name": "a",
              "second_name": "b", "address": 4096, "mend": "s2.wait(s1.record())"}  # fmt: skip
    lost = {**hazard, "second": 77}
    said = exported(tmp_path, rows, hazards={"accesses": 2, "found": [hazard, lost]})
    ((at, name, notes, track),) = said.hazards
    assert (at, name, track) == (20, "read after write: a → b", "hazards")
    assert {key: notes[key] for key in hazard} == hazard


def test_processes_say_what_is_missing(tmp_path):
    row = {"kind": "api", "name": "a", "end_ns": 9, "process": 3, "thread": 4}
    said = exported(tmp_path, [row], complete=False, notes=["lost some"], forecast="from one")
    (process,) = (one.process for one in said.tracks.values() if one.HasField("process"))
    assert [*process.process_labels] == ["from one", "incomplete: lost some"]
    assert said.attributes["gpuscope.incomplete"] == "incomplete: lost some"


def test_many_names_stand_in_several_packets(tmp_path, monkeypatch):
    monkeypatch.setattr("gpuscope.formats.perfetto.interned._AT_ONCE", 100)
    rows = [{"kind": "kernel", "name": f"kernel {number}", "stream": 1, "start_ns": number}
            for number in range(50)]  # fmt: skip
    said = exported(tmp_path, rows)
    assert [one["name"] for one in said.stages.values()] == [row["name"] for row in rows]
    packets = protos.Trace.FromString((tmp_path / "run.pftrace").read_bytes()).packet
    assert sum(one.HasField("interned_data") for one in packets) > 10


def test_a_file_that_was_cut_is_refused(tmp_path, monkeypatch):
    class Cutting:
        """A file that loses the last byte that is written."""

        def __init__(self, file):
            self.file = file

        def write(self, data):
            self.file.write(data[:-1])
            return len(data)

    packets = write.write_packets
    monkeypatch.setattr(
        write, "write_packets", lambda trace, file, step: packets(trace, Cutting(file), step)
    )
    with pytest.raises(
        gs.errors.ExportError, match=r"holds [\d,]+ bytes where [\d,]+ were written"
    ):
        exported(tmp_path, [{"kind": "kernel", "name": "k", "stream": 1}])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [0, 1, 127, 128, 16_383, 16_384, 1 << 32, (1 << 63) - 1])
def test_fields_that_the_package_lacks_are_encoded_as_its_own(number):
    event = protos.GpuRenderStageEvent(event_wait_ids=[number])
    begin = protos.GpuRenderStageEvent.EVENT_WAIT_IDS_FIELD_NUMBER << 3
    line = interned.varint(begin) + interned.varint(number)
    assert line == event.SerializeToString()
    kind = protos.TracePacket.GPU_RENDER_STAGE_EVENT_FIELD_NUMBER
    assert (
        interned.field(kind, line * 100)
        == protos.TracePacket(
            gpu_render_stage_event={"event_wait_ids": [number] * 100}
        ).SerializeToString()
    )
