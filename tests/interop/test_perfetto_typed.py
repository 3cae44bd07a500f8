"""Perfetto's protos decode our typed traces to what we hold; its trace processor reads them."""

from __future__ import annotations

import json
import math
import os
import threading
import zipfile
from collections import Counter
from pathlib import Path

import made
import numpy as np
import pytest
from msgspec.structs import replace
from perfetto_packets import decoded
from test_merged_ranks import rank_of

import gpuscope as gs
from gpuscope.formats.nsight.values import NOTHING, config
from gpuscope.formats.perfetto.archive import MANIFEST
from gpuscope.trace import Trace
from gpuscope.trace.counters import BUSY, READ, WRITTEN
from gpuscope.trace.facts import RankFacts
from gpuscope.trace.gpu_states import POWER, SM_CLOCK
from gpuscope.trace.metadata import TraceMetadata

COUNTED = Path(__file__).parents[1] / "data" / "counters_h200.parquet"
ON_HOST = ("api", "sync", "range", "mark", "handle", "block", "counter", "stack")


def is_sample(row):
    return row["kind"] == "counter" and row["value"] is not None and math.isfinite(row["value"])


def is_stage(row):
    return row["kind"] not in ON_HOST and not (row["kind"] == "event" and row["thread"] is not None)


def is_instant(row):
    return row["kind"] in ("mark", "event", "counter") and row["end_ns"] is None


def sorted_edges(trace):
    """Return edges between rows that are no samples, by what Perfetto has for them."""
    rows = {row["id"]: row for row in trace.spans.to_pylist() if not is_sample(row)}
    sorts = {"waits": [], "submitted": [], "waited": [], "flows": []}
    for edge in trace.edges.to_pylist():
        begin, end = edge["from"], edge["to"]
        if begin not in rows or end not in rows:
            continue
        stages = is_stage(rows[begin]), is_stage(rows[end])
        name = {(True, True): "waits", (False, True): "submitted", (True, False): "waited"}
        pair = (end, begin) if stages == (True, False) else (begin, end)
        if stages == (False, False):
            pair = frozenset(pair)
        sorts[name.get(stages, "flows")].append(pair)
    return {name: Counter(pairs) for name, pairs in sorts.items()}


def check(trace, path):
    """Compare what a file says with a trace: all rows, their times, names and arrows."""
    said = decoded(path.read_bytes())
    rows = {row["id"]: row for row in trace.spans.to_pylist()}
    stages = {number: row for number, row in rows.items() if is_stage(row)}
    assert said.stages.keys() == stages.keys()
    for number, row in stages.items():
        stage = said.stages[number]
        assert [stage["start"], stage["end"], stage["name"]] == [
            row[name] for name in ("start_ns", "end_ns", "name")
        ]
        assert stage["gpu"] == row["device"]
        assert stage["stage"].name.startswith(row["kind"])
        assert (stage["kernel"] is None) == (row["kind"] != "kernel")
        if stage["kernel"]:
            assert stage["kernel"].name == row["name"]
        numbers = config(row["launch_config"])
        if numbers[0] != NOTHING:
            assert stage["launch"]["grid"] + stage["launch"]["block"] == numbers[:6]
            assert stage["launch"]["registers_per_thread"] == numbers[6]
            assert stage["launch"]["shared_mem_dynamic"] == numbers[8]
        else:
            assert stage["launch"] is None
        for name in ("partition", "stream", "correlation", "green_context", "queued_ns", "nbytes"):
            assert stage["extra"].get(name) == (None if row[name] is None else str(row[name])), name
    # A partition's work has a context of its own, and a queue of its own.
    for what in ("context", "queue"):
        owners = {}
        for number, row in stages.items():
            at = said.stages[number][what]
            key = at[0] if what == "context" else at.iid
            owner = (row["partition"], row["green_context" if what == "context" else "stream"])
            assert owners.setdefault(key, owner) == owner
    events = {
        number: row for number, row in rows.items() if not is_stage(row) and not is_sample(row)
    }
    assert said.slices.keys() | said.instants.keys() == events.keys()
    for number, row in events.items():
        if is_instant(row):
            start, name, category, _, notes = said.instants[number]
        else:
            start, end, name, category, _, notes = said.slices[number]
            assert end == row["end_ns"]
        assert [start, name, category] == [row["start_ns"], row["name"], row["kind"]]
        for column in ("correlation", "payload", "domain", "parent", "color", "stream"):
            assert notes.get(column) == row[column], column
    samples = [row for row in rows.values() if is_sample(row)]
    assert Counter(one[:4] for one in said.samples) == Counter(
        (row["start_ns"], row["value"], row["name"], row["device"]) for row in samples
    )
    edges = sorted_edges(trace)
    assert Counter(said.waits) == edges["waits"]
    assert Counter(said.submitted) == edges["submitted"]
    assert Counter(said.waited) == edges["waited"]
    assert Counter(map(frozenset, said.flows.values())) == edges["flows"]
    starts = {number: row["start_ns"] for number, row in rows.items()}
    assert all(starts[begin] <= starts[end] for begin, end in said.flows.values())
    known = sum(map(sum, (pairs.values() for pairs in edges.values())))
    assert said.attributes["gpuscope.edges_left_out"] == trace.edges.num_rows - known
    assert json.loads(said.attributes["gpuscope.metadata"]) == json.loads(trace.metadata.to_json())
    return said


def export(trace, path):
    return gs.export(trace, path, keep_private=True)


def test_program(tmp_path):
    trace = made.program()
    said = check(trace, export(trace, tmp_path / "run.pftrace"))
    assert said.attributes["gpuscope.edges_left_out"] == 0
    assert said.waits
    assert said.submitted
    assert said.waited
    kinds = {
        one["extra"].get("event_wait_kinds", "").split(", ")[0] for one in said.stages.values()
    }
    assert kinds >= {"event wait", "graph"}
    queues = {one["queue"].name for one in said.stages.values()}
    assert "decode (16 SMs) · d0" in queues
    assert len({one["context"][0] for one in said.stages.values()}) == 2
    (gpu,) = said.gpus
    assert gpu.name == "GPU 0 NVIDIA H200 (simulated)"


def test_launches_as_cupti_tells_them(tmp_path):
    trace = made.steps()
    said = check(trace, export(trace, tmp_path / "run.pftrace"))
    assert {one["context"][1].pid for one in said.stages.values()} == {4711}
    assert {one["stage"].category for one in said.stages.values()} == {2}
    threads = [one.thread for one in said.tracks.values() if one.HasField("thread")]
    assert [(one.pid, one.tid, one.thread_name) for one in threads] == [(4711, 4712, "MainThread")]


@pytest.mark.parametrize("seed", range(6))
def test_random_programs(tmp_path, seed):
    trace = made.random_program(seed)
    said = check(trace, export(trace, tmp_path / "run.pftrace"))
    assert said.attributes["gpuscope.edges_left_out"] == 0
    hazards = trace.metadata.hazards
    assert len(said.hazards) == len(hazards.found if hazards else ())


@pytest.mark.parametrize("seed", range(8))
def test_anything(tmp_path, seed):
    trace = made.whole(seed, rows=1500)
    check(trace, export(trace, tmp_path / "any.perfetto-trace"))


def test_sampled_stacks(tmp_path):
    trace = made.stacks()
    said = check(trace, gs.export(trace, tmp_path / "run.pftrace", keep_private=True))
    ids = {row["id"] for row in trace.where(kind="stack").spans.to_pylist()}
    assert ids < said.slices.keys()


def test_in_small_chunks(tmp_path, monkeypatch):
    trace = made.whole(3)
    path = export(trace, tmp_path / "one.pftrace")
    monkeypatch.setattr("gpuscope.formats.perfetto.write._ROWS", 7)
    steps = []
    again = gs.export(trace, tmp_path / "many.pftrace", keep_private=True,
                      progress=lambda *step: steps.append(step))  # fmt: skip
    assert again.read_bytes() == path.read_bytes()
    assert len(steps) > len(trace) / 7
    assert steps[-1] == (len(trace), len(trace))
    cancel = threading.Event()
    with pytest.raises(gs.errors.Cancelled):
        gs.export(trace, tmp_path / "none.pftrace", cancel=cancel,
                  progress=lambda done, _: done and cancel.set())  # fmt: skip
    assert not (tmp_path / "none.pftrace").exists()


def clocks():
    """Return the samples of two GPUs' clocks and power, and one of a process."""
    rows = [
        {"id": number, "kind": "counter", "name": name, "start_ns": 1000 + 10 * number,
         "device": device, "process": None if device is not None else 7, "value": 100.5 + number,
         "source": "nvml"}
        for number, (name, device) in enumerate(
            [(SM_CLOCK, 0), (POWER, 0), (SM_CLOCK, 1), (SM_CLOCK, 0), ("requests", None)])
    ]  # fmt: skip
    devices = {f"cuda:{index}": {"index": index, "name": "GPU",
                                 "uuid": f"GPU-0123456{index}-89ab-cdef-0123-456789abcdef"}
               for index in range(2)}  # fmt: skip
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return Trace.from_columns(columns, None, TraceMetadata(devices=devices))


def test_clocks_and_power(tmp_path):
    said = check(clocks(), export(clocks(), tmp_path / "run.pftrace"))
    units = {(name, gpu): one for _, _, name, gpu, one in said.samples}
    assert units == {(SM_CLOCK, 0): ["MEGAHERTZ"], (SM_CLOCK, 1): ["MEGAHERTZ"],
                     (POWER, 0): ["WATT"], ("requests", None): []}  # fmt: skip
    assert [one.uuid.hex()[7] for one in said.gpus] == ["0", "1"]


def test_sampled_hardware_counters(tmp_path):
    """Recorded on an H200: every sample of every quantity comes back."""
    trace = gs.load_trace(COUNTED)
    said = check(trace, export(trace, tmp_path / "run.pftrace"))
    names = Counter(name for _, _, name, _, _ in said.samples)
    rows = trace.where(kind="counter").spans.column("name").to_pylist()
    assert names == Counter(rows)
    assert {BUSY, READ, WRITTEN} <= names.keys()


# -- ranks ------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def merged():
    return gs.merge([rank_of(0), rank_of(1)])


def test_simulated_ranks(tmp_path):
    ranks = []
    for rank in range(2):
        trace = made.random_program(2 * rank)
        facts = RankFacts(rank, 2, process=1, device="sim:h200")
        metadata = replace(trace.metadata, clock="one", ranks=(facts,))
        ranks.append(Trace(trace.spans, trace.edges, metadata))
    joined = gs.merge(ranks)
    said = check(joined, export(joined, tmp_path / "ranks.pftrace"))
    with zipfile.ZipFile(export(joined, tmp_path / "ranks.pftrace.zip")) as archive:
        parts = [decoded(archive.read(f"rank-{rank}.pftrace")) for rank in range(2)]
    for name in ("stages", "slices", "instants"):
        times = [{number: (one["start"], one["end"]) if name == "stages" else one[:2]
                  for number, one in getattr(half, name).items()} for half in (said, *parts)]  # fmt: skip
        assert times[0] == times[1] | times[2]
        assert len(times[0]) == len(times[1]) + len(times[2])
    assert sorted(said.waits) == sorted(parts[0].waits + parts[1].waits)
    assert not parts[0].tracks.keys() & parts[1].tracks.keys()
    assert not parts[0].flows.keys() & parts[1].flows.keys()


def test_ranks_in_one_trace(merged, tmp_path):
    said = check(merged, export(merged, tmp_path / "ranks.pftrace"))
    assert {one["gpu"] for one in said.stages.values()} == {0, 1}
    assert {one["queue"].name for one in said.stages.values()} == {
        f"rank {rank} · {stream}" for rank in range(2) for stream in ("s", "comm")
    }
    between = [pair for pair in said.waits
               if said.stages[pair[0]]["gpu"] != said.stages[pair[1]]["gpu"]]  # fmt: skip
    collectives = np.sum([edge["kind"] == "collective" for edge in merged.edges.to_pylist()])
    assert len(between) == collectives > 0


def test_ranks_in_an_archive(merged, tmp_path):
    path = export(merged, tmp_path / "ranks.pftrace.zip")
    assert path.read_bytes() == export(merged, tmp_path / "again.pftrace.zip").read_bytes()
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read(MANIFEST))["perfetto_manifest"]
        assert archive.read(MANIFEST).startswith(b'{"perfetto_manifest"')
        files = {name: archive.read(name) for name in archive.namelist() if name != MANIFEST}
    assert manifest["version"] == 1
    assert manifest["trace_time"] == {"clock": "REALTIME", "file": "rank-0.pftrace"}
    assert [one["machine"]["name"] for one in manifest["files"]] == ["rank 0", "rank 1"]
    assert [one["path"] for one in manifest["files"]] == [*files]
    same = {"clock": "REALTIME", "offset_ns": 0,
            "sync_to": {"file": "rank-0.pftrace", "clock": "REALTIME"}}  # fmt: skip
    assert [one.get("clocks") for one in manifest["files"]] == [None, same]
    numbers = set()
    for (name, data), rank in zip(files.items(), merged.metadata.ranks, strict=True):
        single = tmp_path / name
        single.write_bytes(data)
        part = merged.where(process=rank.process)
        said = decoded(data)
        times = {number: (one["start"], one["end"]) for number, one in said.stages.items()}
        work = part.where(kind="kernel")
        assert times == dict(
            zip(
                work.array("id").tolist(),
                zip(work.array("start_ns").tolist(), work.array("end_ns").tolist(), strict=True),
                strict=True,
            )
        )
        assert not numbers & said.tracks.keys()
        numbers |= said.tracks.keys()


def test_an_archive_of_no_ranks_holds_one_trace(tmp_path):
    path = export(made.program(), tmp_path / "run.pftrace.zip")
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == [MANIFEST, "trace.pftrace"]
        facts = json.loads(archive.read(MANIFEST))["perfetto_manifest"]
        assert facts == {
            "version": 1,
            "files": [{"path": "trace.pftrace", "machine": {"name": "trace"}}],
        }
        (tmp_path / "one.pftrace").write_bytes(archive.read("trace.pftrace"))
    check(made.program(), tmp_path / "one.pftrace")


# -- Perfetto's trace processor ---------------------------------------------------------------
EVENTS = """
    select extract_arg(s.arg_set_id, 'debug.id'), s.ts, s.dur, s.name, s.category
    from slice s where extract_arg(s.arg_set_id, 'debug.id') is not null
"""
STAGES = """
    select extract_arg(s.arg_set_id, 'id'), s.ts, s.dur, s.name, t.name
    from gpu_slice s join gpu_track t on s.track_id = t.id
"""
FLOWS = """
    select extract_arg(a.arg_set_id, 'debug.id'), extract_arg(b.arg_set_id, 'debug.id')
    from flow f join slice a on f.slice_out = a.id join slice b on f.slice_in = b.id
"""


def asked(perfetto, trace, path):
    """Ask the trace processor, a version that does not know gpu_correlation and counts it."""
    edges = sorted_edges(trace)
    linked = {number for name in ("submitted", "waited") for number, _ in edges[name]}
    mistakes = [["unknown_extension_fields", len(linked)]] if linked else []
    events, stages, flows = perfetto(path, EVENTS, STAGES, FLOWS, mistakes=mistakes)
    rows = [row for row in trace.spans.to_pylist() if not is_sample(row)]
    expected = {}
    for row in rows:
        length = 0 if is_instant(row) else -1
        length = length if row["end_ns"] is None else row["end_ns"] - row["start_ns"]
        expected[row["id"]] = [row["start_ns"], length, row["name"], row["kind"]]
    seen = {one[0]: [int(one[1]), *one[2:]] for one in events}
    assert len(seen) == len(events)
    assert seen == {row["id"]: expected[row["id"]] for row in rows if not is_stage(row)}
    seen = {int(one[0]): [int(one[1]), one[2]] for one in stages}
    assert len(seen) == len(stages)
    work = {row["id"]: expected[row["id"]][:2] for row in rows if is_stage(row)}
    assert seen == {number: [start, max(length, 0)] for number, (start, length) in work.items()}
    assert Counter(map(frozenset, flows)) == edges["flows"]
    return stages


def test_trace_processor_opens_a_program(tmp_path, perfetto):
    trace = made.program()
    stages = asked(perfetto, trace, export(trace, tmp_path / "run.pftrace"))
    assert {name for *_, name, _ in stages} == {"kernel", "memcpy DtoD", "host function"}
    assert "decode (16 SMs) · d0" in {queue for *_, queue in stages}


@pytest.mark.parametrize("seed", range(6))
def test_trace_processor_opens_anything(tmp_path, perfetto, seed):
    trace = made.whole(seed, rows=1500) if seed < 4 else made.random_program(seed)
    asked(perfetto, trace, export(trace, tmp_path / "any.pftrace"))


def test_trace_processor_opens_ranks(merged, tmp_path, perfetto):
    asked(perfetto, merged, export(merged, tmp_path / "ranks.pftrace"))


def test_trace_processor_opens_counters_of_processes(tmp_path, perfetto):
    query = "select c.ts, c.value, t.name from counter c join track t on c.track_id = t.id"
    (samples,) = perfetto(export(clocks(), tmp_path / "run.pftrace"), query)
    assert samples == [[1040, 104.5, "requests"]]


def test_trace_processor_opens_nothing(tmp_path, perfetto):
    path = export(made.program().where(kind="no such kind"), tmp_path / "none.pftrace")
    assert perfetto(path, "select count(*) from slice") == [[[0]]]


# -- the trace processor of the package perfetto, which downloads it ----------------------------
@pytest.fixture(scope="module")
def current():
    """Return a function: file, query → rows; the trace processor finds no mistake in the file."""
    if not os.environ.get("GPUSCOPE_TRACE_PROCESSOR"):
        pytest.skip("make test-perfetto downloads the trace processor")
    from perfetto.trace_processor import TraceProcessor

    def ask(path, *queries):
        with TraceProcessor(trace=str(path)) as processor:
            errors = "select name, value from stats where severity = 'error' and value > 0"
            found, *answers = (
                [[*vars(row).values()] for row in processor.query(query)]
                for query in (errors, *queries)
            )
        assert found == []
        return answers

    return ask


ROWS = """
    select coalesce(extract_arg(arg_set_id, 'debug.id'), cast(extract_arg(arg_set_id, 'id') as int))
        as id, ts, dur, name
    from slice
"""
LINKS = """
    select
        coalesce(extract_arg(a.arg_set_id, 'debug.id'), cast(extract_arg(a.arg_set_id, 'id') as int))
            as source,
        coalesce(extract_arg(b.arg_set_id, 'debug.id'), cast(extract_arg(b.arg_set_id, 'id') as int))
            as target
    from flow f join slice a on f.slice_out = a.id join slice b on f.slice_in = b.id
"""
LAUNCHES = """
    select cast(extract_arg(arg_set_id, 'id') as int) as id,
        extract_arg(arg_set_id, 'launch.grid_size.x') as x,
        extract_arg(arg_set_id, 'launch.workgroup_size.x') as block,
        extract_arg(arg_set_id, 'registers_per_thread') as registers,
        extract_arg(arg_set_id, 'kernel_name') as kernel
    from gpu_slice
"""


@pytest.mark.parametrize("made_by", ["program", "steps", "ranks", "clocks"])
def test_current_trace_processor_agrees(made_by, merged, tmp_path, current):
    trace = {
        "program": made.program,
        "steps": made.steps,
        "clocks": clocks,
        "ranks": lambda: merged,
    }[made_by]()
    counted = (
        "select c.value as value, t.name as name from counter c join track t on c.track_id = t.id"
    )
    rows, links, launches, values = current(
        export(trace, tmp_path / "run.pftrace"), ROWS, LINKS, LAUNCHES, counted
    )
    expected = []
    for row in trace.spans.to_pylist():
        if not is_sample(row):
            unknown = 0 if is_instant(row) or is_stage(row) else -1
            length = unknown if row["end_ns"] is None else row["end_ns"] - row["start_ns"]
            expected.append([row["id"], row["start_ns"], length, row["name"]])
    assert sorted(rows) == sorted(expected)
    edges = sorted_edges(trace)
    assert Counter(map(frozenset, links)) == sum(
        (Counter(map(frozenset, pairs.elements())) for pairs in edges.values()), Counter()
    )
    kernels = {row["id"]: row for row in trace.spans.to_pylist() if row["kind"] == "kernel"}
    for number, grid, block, registers, kernel in launches:
        if number in kernels:
            numbers = config(kernels[number]["launch_config"])
            known = [
                None if one == NOTHING else one for one in (numbers[0], numbers[3], numbers[6])
            ]
            assert [grid, block, registers, kernel] == [*known, kernels[number]["name"]]
    samples = [[row["value"], row["name"]] for row in trace.spans.to_pylist() if is_sample(row)]
    assert sorted(values) == sorted(samples)


def test_current_trace_processor_joins_ranks(merged, tmp_path, current):
    machines = "select name from machine where name like 'rank %' order by name"
    rows, names = current(export(merged, tmp_path / "ranks.pftrace.zip"), ROWS, machines)
    expected = [
        [row["id"], row["start_ns"], row["end_ns"] - row["start_ns"], row["name"]]
        for row in merged.spans.to_pylist()
    ]
    assert sorted(rows) == sorted(expected)
    assert names == [["rank 0"], ["rank 1"]]
