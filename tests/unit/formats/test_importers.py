"""Traces that others made: Nsight Systems' exports and Chrome traces, as a trace of ours."""

from __future__ import annotations

import gzip
import json
import sqlite3
import statistics
import sys

import nsight_files as nsight
import pytest
from report_pages import without_plotly

import gpuscope as gs
from gpuscope import analysis, figures, telling
from gpuscope.errors import GpuscopeError, MissingDependency, MissingEvidence, TraceFormatError
from gpuscope.formats import Limits
from gpuscope.formats.private import public_text
from gpuscope.report.trace import trace_report
from gpuscope.trace.facts import DeviceFacts

KERNEL, API, NVTX = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
CAPTURES = ("two_partitions", "graph_nodes")


@pytest.fixture(scope="module")
def captures(tmp_path_factory):
    """Name → trace of a genuine capture, and its file."""
    folder = tmp_path_factory.mktemp("nsight")
    files = {name: nsight.capture(name, folder) for name in CAPTURES}
    return {name: (gs.load_trace(path), path) for name, path in files.items()}


def rows(trace, **equal):
    return trace.where(**equal).spans.to_pylist()


def lengths(found):
    return [row["end_ns"] - row["start_ns"] for row in found]


# -- genuine captures of Nsight Systems -------------------------------------------------------
@pytest.mark.parametrize("name", CAPTURES)
def test_kernels_are_those_of_nsys_stats(captures, name):
    trace, _ = captures[name]
    expected = nsight.table(name, "cuda_gpu_kern_sum")
    kernels = rows(trace, kind="kernel")
    assert len(kernels) == sum(int(row["Instances"]) for row in expected)
    assert {row["name"] for row in kernels} == {row["Name"] for row in expected}
    for row in expected:
        found = lengths([one for one in kernels if one["name"] == row["Name"]])
        assert len(found) == int(row["Instances"])
        assert sum(found) == int(row["Total Time (ns)"])
        assert (min(found), max(found)) == (int(row["Min (ns)"]), int(row["Max (ns)"]))
        assert statistics.median(found) == float(row["Med (ns)"])


@pytest.mark.parametrize("name", CAPTURES)
def test_ranges_are_those_of_nsys_stats(captures, name):
    trace, _ = captures[name]
    ranges = rows(trace, kind="range")
    for row in nsight.table(name, "nvtx_sum"):
        domain, _, label = row["Range"].rpartition(":")
        found = lengths(
            [one for one in ranges if one["name"] == label and one["domain"] == (domain or None)]
        )
        assert len(found) == int(row["Instances"])
        assert sum(found) == int(row["Total Time (ns)"])
        assert statistics.median(found) == float(row["Med (ns)"])


@pytest.mark.parametrize("name", CAPTURES)
def test_projection_is_that_of_nsys_stats(captures, name):
    trace, _ = captures[name]
    result = analysis.range_projection(trace, whole_graphs=False)
    for row in nsight.table(name, "nvtx_gpu_proj_sum"):
        domain, _, label = row["Range"].rpartition(":")
        (one,) = [one for one in result.names if (one.domain, one.name) == (domain or None, label)]
        assert one.launched == int(row["Range Instances"])
        assert one.projected_ns == int(row["Total Proj Time (ns)"])
        assert one.projected_median_ns == float(row["Proj Med (ns)"])
        # nsys counts the launch of a graph once; ten in each of these, of three nodes.
        nodes = 20 if name == "graph_nodes" and label in ("step", "prefill") else 0
        assert one.kernels + one.copies == int(row["Total GPU Ops"]) + nodes
        projected = [
            found
            for found in result.ranges.to_pylist()
            if (found["domain"], found["name"]) == (domain or None, label)
            and found["projected_ns"] is not None
        ]
        assert sum(found["host_ns"] for found in projected) == int(row["Total Range Time (ns)"])


def test_graphs_recorded_as_a_whole_are_work_unless_nsys_is_to_be_matched(captures):
    trace, _ = captures["two_partitions"]
    graphs = rows(trace, kind="graph")
    assert len(graphs) == 10
    assert {(row["stream"], row["green_context"], row["graph"]) for row in graphs} == {(18, 3, 2)}
    ours = analysis.range_projection(trace)
    nsys = analysis.range_projection(trace, whole_graphs=False)
    # Ten of the forty prefill ranges launch the graph: nsys says that they launched nothing.
    assert (ours["prefill"].launched, ours["prefill"].graphs) == (40, 10)
    assert (nsys["prefill"].launched, nsys["prefill"].graphs) == (30, 0)
    assert ours["prefill"].projected_ns - nsys["prefill"].projected_ns == sum(lengths(graphs))
    assert "10 launches of graphs recorded as a whole are left out, as nsys does" in nsys.note
    assert "as nsys does" not in ours.note
    assert not trace.metadata.complete
    assert any("10 launches of graphs were recorded as a whole" in one
               for one in trace.metadata.notes)  # fmt: skip


def test_nodes_of_graphs_are_kernels_with_their_graph(captures):
    trace, _ = captures["graph_nodes"]
    nodes = [row for row in rows(trace, kind="kernel") if row["graph_node"] is not None]
    assert len(nodes) == 30
    assert {row["graph"] for row in nodes} == {2}
    assert {row["graph_node"] for row in nodes} == {(2 << 32) + number for number in range(3)}
    assert trace.metadata.complete


def test_every_column_of_nsys_gpu_trace(captures):
    trace, path = captures["two_partitions"]
    with sqlite3.connect(path) as file:
        (base,) = file.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
    work = sorted(rows(trace, kind=("kernel", "memcpy", "memset")), key=lambda one: one["start_ns"])
    expected = nsight.table("two_partitions", "cuda_gpu_trace")
    named = [row for row in expected if row["GrdX"] or "CUDA mem" in row["Name"]]
    named.sort(key=lambda row: int(row["Start (ns)"]))
    assert len(named) == len(work)
    memory = {"Pinned": "pinned", "Device": "device", "Pageable": "pageable"}
    for row, one in zip(named, work, strict=True):
        assert one["start_ns"] - base == int(row["Start (ns)"])
        assert one["end_ns"] - one["start_ns"] == int(row["Duration (ns)"])
        assert one["correlation"] == int(row["CorrId"])
        assert one["context"] == int(row["Ctx"])
        assert one["stream"] == int(row["Strm"])
        assert one["green_context"] == (int(row["GreenCtx"]) if row["GreenCtx"] else None)
        assert one["device"] == 0
        if one["kind"] == "kernel":
            assert one["name"] == row["Name"]
            config = json.loads(one["launch_config"])
            assert config["grid"] == [int(row[f"Grd{axis}"]) for axis in "XYZ"]
            assert config["block"] == [int(row[f"Blk{axis}"]) for axis in "XYZ"]
            assert config["registers"] == int(row["Reg/Trd"])
            shared = float(row["StcSMem (MB)"]) + float(row["DymSMem (MB)"])
            assert config["shared_memory"] / 1e6 == pytest.approx(shared, abs=1e-3)
        elif one["kind"] == "memcpy":
            assert one["nbytes"] / 1e6 == pytest.approx(float(row["Bytes (MB)"]), abs=1e-3)
            assert (one["copy_kind"], one["name"]) == ("HtoD", "HtoD copy")
            assert one["src_kind"] == memory[row["SrcMemKd"]]
            assert one["dst_kind"] == memory[row["DstMemKd"]]


def test_contexts_streams_devices_and_versions(captures):
    facts = captures["two_partitions"][0].metadata
    assert facts.time_base == "unix"
    assert facts.devices["cuda:0"].name == "NVIDIA H200"
    assert facts.devices["cuda:0"].sm_count == 132
    assert {name: (one.context, one.parent_context) for name, one in
            facts.partitions.items()} == {
        "green context 2": (2, 1), "green context 3": (3, 1),
    }  # fmt: skip
    assert facts.streams["15"].partition == "green context 2"
    assert facts.streams["7"].legacy_default is True
    assert facts.streams["19"].partition is None
    assert facts.versions == {"nsys": "2025.3.2.0", "nsys schema": "3.20.3"}
    assert facts.driver == "580.159.04"
    # Of 39 processes of the machine only the one that was traced.
    assert facts.process_names == {"458": "python3"}


def test_ranges_keep_domain_category_colour_payload_and_nesting(captures):
    trace, _ = captures["two_partitions"]
    (step, decode, copy, *_) = rows(trace, kind="range")
    assert (step["name"], step["domain"], step["category"]) == ("step", "gpuscope", "iteration")
    assert (step["payload"], step["color"], step["range_style"]) == ("0", 0xFF0000FF, "push/pop")
    assert (decode["parent"], decode["payload"]) == (step["id"], None)
    assert (copy["name"], copy["domain"]) == ("copy", None)
    calls = {row["id"]: row for row in rows(trace, kind="api")}
    launched = [calls[edge["from"]] for edge in trace.edges.to_pylist() if edge["kind"] == "launch"]
    assert {row["name"] for row in launched} >= {"cuLaunchKernelEx", "cudaMemcpyAsync_v3020"}
    by_id = {row["id"]: row for row in rows(trace, kind="range")}
    assert {by_id[row["parent"]]["name"] for row in launched if row["parent"]} == {
        "decode", "prefill", "copy",
    }  # fmt: skip


def test_event_waits_become_edges(captures):
    trace, path = captures["two_partitions"]
    by_id = {row["id"]: row for row in trace.spans.to_pylist()}
    waits = [
        (by_id[edge["from"]], by_id[edge["to"]])
        for edge in trace.edges.to_pylist()
        if edge["kind"] == "event wait"
    ]
    # Every step: stream 19 waits for an event recorded on stream 15, and copies.
    assert len(waits) == 40
    assert {(one["stream"], other["stream"], other["kind"]) for one, other in waits} == {
        (15, 19, "memcpy")
    }
    assert all(one["end_ns"] <= other["start_ns"] for one, other in waits)
    with sqlite3.connect(path) as file:
        recorded = [
            correlation
            for (correlation,) in file.execute(
                "SELECT correlationId FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT ORDER BY correlationId"
            )
        ]
    before = sorted(one["correlation"] for one, _ in waits)
    on_stream = sorted(row["correlation"] for row in rows(trace, kind="kernel", stream=15))
    assert before == [max(n for n in on_stream if n < record) for record in recorded]


def test_confinement_is_allocated_and_needs_the_callers_word(captures):
    trace, _ = captures["two_partitions"]
    with pytest.raises(MissingEvidence, match="say what was given to whom with intended="):
        analysis.confinement(trace)
    result = analysis.confinement(trace, intended={"decode": 2, "prefill": "green context 3"})
    assert [(one.partition, one.fraction) for one in result.partitions] == [
        ("green context 2", 1.0), ("green context 3", 1.0),
    ]  # fmt: skip
    one = result["green context 2"]
    assert (one.weakest, one.observations, one.sm_ids_known) == ("allocated", 120, False)
    assert any("SM ids were not seen" in note for note in one.notes)
    # What ran in another context than it was meant for has escaped, by name.
    wrong = analysis.confinement(trace, intended={"decode": 3})["green context 3"]
    assert wrong.fraction == 0
    assert wrong.escapes[0].where == "green context 2"
    assert analysis.confinement(trace, intended={15: 2})["green context 2"].fraction == 1


def test_what_works_on_our_traces_works_on_these(captures, tmp_path):
    for trace, _ in captures.values():
        pairs = analysis.overlap(trace, by="partition")
        assert 0.8 < pairs["green context 2", "green context 3"] < 1
        assert analysis.overlap(trace).pairs
        assert analysis.gaps(trace).tracks
        assert analysis.launch_latency(trace).unmatched == 0
        assert analysis.concurrency(trace)
        figure = figures.timeline(trace)
        assert "green context 2" in figure.to_json()
        page = without_plotly(trace_report(trace, tmp_path / "t.html").read_text())
        assert "NVIDIA H200" in page
        kernel = rows(trace, kind="kernel")[20]
        assert "in the launch call" in str(telling.explain(trace, kernel["id"]))
        gs.export(trace, tmp_path / "t.parquet")
        again = gs.load_trace(tmp_path / "t.parquet")
        assert again.spans.to_pylist() == trace.spans.to_pylist()


@pytest.mark.parametrize("name", CAPTURES)
def test_what_is_not_taken_is_counted_and_named(captures, name):
    trace, path = captures[name]
    counts = trace.metadata.counts
    assert counts["received"] == len(trace)
    with sqlite3.connect(path) as file:
        for table in ("PROFILER_OVERHEAD", "DIAGNOSTIC_EVENT", "META_DATA_CAPTURE"):
            (there,) = file.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608
            assert counts[f"rows of {table} not taken"] == there
        everything = {
            table: file.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608
            for (table,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
    told = {what.split()[2] for what in counts if what.startswith("rows of ")}
    taken = {
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", KERNEL, API, NVTX,
        "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET",
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "PROCESSES", "StringIds", "TARGET_INFO_CUDA_DEVICE",
        "TARGET_INFO_CUDA_CONTEXT_INFO", "TARGET_INFO_CUDA_STREAM", "TARGET_INFO_GPU",
        "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV", "ThreadNames",
        "META_DATA_EXPORT",
    }  # fmt: skip
    # Every table that has rows is taken or told, but for those that explain numbers.
    left = {table for table, count in everything.items() if count} - taken - told
    assert all(table.startswith("ENUM_") for table in left)
    assert any("columns not taken" in one and "localMemoryTotal" in one
               for one in trace.metadata.notes)  # fmt: skip


def test_a_report_tells_nothing_of_the_machine_it_was_made_on(captures, tmp_path):
    _, genuine = captures["two_partitions"]
    path = tmp_path / "t.sqlite"
    path.write_bytes(genuine.read_bytes())
    with sqlite3.connect(path) as file:
        change = "UPDATE TARGET_INFO_SYSTEM_ENV SET name = ?, value = ? WHERE name = ?"
        file.execute(change, ("Hostname", "bobs", "KernelVersion"))
        file.execute(change, ("Environment", "TOKEN=s3cr3t", "SystemUID"))
        file.execute("UPDATE META_DATA_EXPORT SET value = 'bobs' WHERE name = 'EXPORT_HOST'")
        file.execute("UPDATE META_DATA_EXPORT SET value = 'bob' WHERE name = 'EXPORT_USER'")
        file.execute("UPDATE PROCESSES SET name = '/home/bob/run.py' WHERE pid = 458")
        file.execute("UPDATE StringIds SET value = '/home/bob/x/model.py:12' WHERE value = 'step'")
    trace = gs.load_trace(path)
    gs.export(trace, tmp_path / "t.parquet")
    page = without_plotly(trace_report(trace, tmp_path / "t.html").read_text())
    said = json.dumps(trace.spans.to_pylist()) + trace.metadata.to_json() + page
    for secret in ("bob", "s3cr3t", "TOKEN", str(tmp_path)):
        assert secret not in said
    assert trace.metadata.process_names == {"458": "run.py"}
    assert rows(trace, kind="range")[0]["name"] == "model.py:12"
    kept = gs.load_trace(path, keep_private=True)
    assert rows(kept, kind="range")[0]["name"] == "/home/bob/x/model.py:12"
    assert {row["host"] for row in kept.spans.to_pylist()} == {"bobs"}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("f (/home/me/proj/x.py:12)", "f (x.py:12)"),
        ("/usr/bin/python3 /root/train.py --n=1", "python3 train.py --n=1"),
        ("C:\\Users\\me\\a.py(3): forward", "a.py(3): forward"),
        ('{"file": "C:\\\\Users\\\\me\\\\a.py"}', '{"file": "a.py"}'),
        ('{"f": "\\/home\\/me\\/x.py"}', '{"f": "x.py"}'),
        ("~/x.py", "x.py"), ("/home/me", "~"), ("//server/share/x.txt", "x.txt"),
        ("/strange/root/file.cu:3", "file.cu:3"),
        ("/attention/qk", "/attention/qk"), ("gpu/step", "gpu/step"), ("/data", "/data"),
        ("torch/nn/module.py(3)", "torch/nn/module.py(3)"), ("a / b", "a / b"),
        ("void f<int>(a/b*, c)", "void f<int>(a/b*, c)"), ('{"a": "\\u00e9"}', '{"a": "\\u00e9"}'),
        ("https://example.org/a/b.py", "https://example.org/a/b.py"),
        ("/data/U/x", "x"), ("read /lustre/U/run 7/f", "read run 7/f"), ("/gpfs/U", "U"),
        ("http://U:pw@h/x", "http://h/x"), ("s3://key@bucket/x?sig=abc#d", "s3://bucket/x"),
        ("file:///home/U/x.py", "file:x.py"), ("a --token X b", "a --token … b"),
        ("--hf_token=X", "--hf_token=…"), ("--api-key 'X Y' b", "--api-key '…' b"),
        ('["--password", "X"]', '["--password", "…"]'), ("NGC_API_KEY=X run", "NGC_API_KEY=… run"),
        ("MAX_TOKENS=512 tokens=3", "MAX_TOKENS=512 tokens=3"), ("--keys 3", "--keys 3"),
        ('{"a": "~\\u001f"}', '{"a": "~\\u001f"}'),
        ('{"a": "\\u4e2d\\u6587.py"}', '{"a": "\\u4e2d\\u6587.py"}'),
        ('{"a": "b\\n/home/me"}', '{"a": "b\\n~"}'), ('"\\n/home/me/x"', '"\\nx"'),
        ("/layer1/layer1.0/conv1/Conv", "/layer1/layer1.0/conv1/Conv"),
    ],
)  # fmt: skip
def test_texts_lose_folders_passwords_and_tokens(text, kept):
    assert public_text(text) == kept


# -- Nsight Systems of other versions and shapes ----------------------------------------------
@pytest.mark.parametrize("column", ["demangledName", "shortName", "mangledName", None])
def test_kernels_are_named_by_the_first_column_that_is_there(tmp_path, column):
    kernel = {"start": 1, "end": 2, "deviceId": 0, **({column: 0} if column else {})}
    path = nsight.build(tmp_path / "names.sqlite", {KERNEL: [kernel]}, ("k",))
    (found,) = rows(gs.load_trace(path), kind="kernel")
    assert found["name"] == ("k" if column else "(unnamed kernel)")


def test_an_old_schema_is_read_as_far_as_it_goes(tmp_path):
    path = nsight.build(
        tmp_path / "old.sqlite",
        {
            KERNEL: [{"start": 100, "end": 200, "correlationId": 1, "demangledName": 0,
                      "globalPid": nsight.tid(0), "deviceId": 0, "streamId": 7, "contextId": 1}],
            NVTX: [
                {"start": 10, "end": 50, "eventType": 59, "text": "old", "globalTid":
                 nsight.tid(458)},
                {"start": 20, "end": None, "eventType": 60, "text": "open", "globalTid":
                 nsight.tid(458)},
                {"start": 30, "eventType": 34, "text": "here", "globalTid": nsight.tid(458)},
            ],
            "EXPORT_META_DATA": [{"name": "EXPORT_SCHEMA_VERSION", "value": "3.0.0"}],
        },
        ("k",),
    )  # fmt: skip
    trace = gs.load_trace(path)
    assert trace.metadata.time_base == "relative"
    assert trace.metadata.versions == {"nsys schema": "3.0.0"}
    (kernel,) = rows(trace, kind="kernel")
    assert (kernel["name"], kernel["start_ns"], kernel["end_ns"]) == ("k", 100, 200)
    assert (kernel["process"], kernel["thread"], kernel["green_context"]) == (458, None, None)
    old, still = rows(trace, kind="range")
    assert (old["name"], old["end_ns"], old["range_style"]) == ("old", 50, "push/pop")
    assert (still["name"], still["end_ns"], still["range_style"]) == ("open", None, "start/end")
    (mark,) = rows(trace, kind="mark")
    assert (mark["name"], mark["start_ns"], mark["end_ns"]) == ("here", 30, 30)
    assert mark["parent"] == old["id"]


def test_names_of_domains_belong_to_their_process_and_texts_come_either_way(tmp_path):
    rows_of_nvtx = []
    for pid, domain in ((1, "one"), (2, "two")):
        thread = nsight.tid(pid * 10, pid)
        rows_of_nvtx += [
            {"start": 0, "eventType": 75, "text": domain, "domainId": 4, "globalTid": thread},
            {"start": 0, "eventType": 33, "text": f"{domain}!", "domainId": 4, "category": 9,
             "globalTid": thread},
            {"start": 5, "end": 9, "eventType": 59, "textId": 0, "domainId": 4, "category": 9,
             "globalTid": thread, "endGlobalTid": nsight.tid(77, pid)},
            {"start": 6, "end": 7, "eventType": 59, "domainId": 5, "globalTid": thread},
        ]  # fmt: skip
    rows_of_nvtx.append({"start": 1, "eventType": 99, "text": "stream", "globalTid": thread})
    path = nsight.build(tmp_path / "t.sqlite", {NVTX: rows_of_nvtx}, ("registered",))
    trace = gs.load_trace(path)
    first, inner, second, _ = rows(trace, kind="range")
    assert (first["name"], first["domain"], first["category"]) == ("registered", "one", "one!")
    assert (second["domain"], second["process"]) == ("two", 2)
    assert (first["thread"], first["end_thread"]) == (10, 77)
    assert (inner["name"], inner["domain"], inner["parent"]) == (
        "(no message)", "domain 5", first["id"],
    )  # fmt: skip
    assert trace.metadata.counts["rows of NVTX_EVENTS of type 99 not taken"] == 1


@pytest.mark.parametrize(
    ("column", "value", "payload"),
    [
        ("int64Value", -3, "-3"), ("uint64Value", -1, "18446744073709551615"),
        ("doubleValue", 2.5, "2.5"), ("jsonText", '{"a": [1]}', '{"a": [1]}'),
        ("binaryData", b"\x00\xff", '{"base64": "AP8="}'), ("jsonTextId", 0, '{"x": 1}'),
    ],
)  # fmt: skip
def test_payloads_of_every_kind_are_kept(tmp_path, column, value, payload):
    event = {"start": 5, "end": 9, "eventType": 59, "text": "r", "globalTid": nsight.tid(1)}
    path = nsight.build(tmp_path / "t.sqlite", {NVTX: [{**event, column: value}]}, ('{"x": 1}',))
    assert rows(gs.load_trace(path))[0]["payload"] == payload


def test_two_processes_with_the_same_numbers_are_told_apart(tmp_path):
    tables = {KERNEL: [], API: []}
    for pid in (1, 2):
        tables[API].append({"start": 10 * pid, "end": 10 * pid + 1, "correlationId": 5,
                            "globalTid": nsight.tid(pid, pid), "nameId": 1})  # fmt: skip
        tables[KERNEL].append({
            "start": 100 * pid, "end": 100 * pid + 50, "correlationId": 5, "demangledName": 0,
            "globalPid": nsight.tid(0, pid), "deviceId": 0, "contextId": 1, "greenContextId": 2,
            "streamId": 7,
        })  # fmt: skip
    trace = gs.load_trace(nsight.build(tmp_path / "t.sqlite", tables, ("k", "cudaLaunchKernel")))
    one, two = rows(trace, kind="kernel")
    assert (one["process"], two["process"]) == (1, 2)
    assert one["stream"] == 7 != two["stream"]
    assert trace.metadata.streams[str(two["stream"])].name == ("stream 7 of context 1 of process 2")
    assert (one["partition"], two["partition"]) == (
        "green context 2", "green context 2 of process 2",
    )  # fmt: skip
    calls = {row["id"]: row["process"] for row in rows(trace, kind="api")}
    by_id = {row["id"]: row["process"] for row in (one, two)}
    assert [(calls[edge["from"]], by_id[edge["to"]]) for edge in trace.edges.to_pylist()] == [
        (1, 1), (2, 2),
    ]  # fmt: skip


def test_failed_calls_unknown_kinds_and_unfinished_kernels_say_so(tmp_path):
    path = nsight.build(
        tmp_path / "t.sqlite",
        {
            API: [{"start": 1, "end": 2, "correlationId": 1, "globalTid": nsight.tid(1),
                   "nameId": 0, "returnValue": 700}],
            KERNEL: [{"start": 5, "end": None, "deviceId": 0, "demangledName": 0}],
            "CUPTI_ACTIVITY_KIND_MEMCPY": [{"start": 5, "end": 6, "copyKind": 77, "bytes": 8}],
        },
        ("name",),
    )  # fmt: skip
    trace = gs.load_trace(path)
    assert rows(trace, kind="api")[0]["status"] == "returned 700"
    assert rows(trace, kind="kernel")[0]["end_ns"] is None
    assert rows(trace, kind="memcpy")[0]["copy_kind"] == "kind 77"


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"notes": [{"id": 1}]}, r"no export of Nsight Systems.*'notes'.*nsys profile"),
        ({KERNEL: [{"start": "soon", "end": 1}]}, "holds no number where one is due"),
        ({KERNEL: [{"start": 1 << 62, "end": 1 << 62}]}, "more than a century"),
        ({KERNEL: [{"start": 1, "end": 2, "deviceId": 1 << 40}]}, "no readable Nsight Systems"),
    ],
)  # fmt: skip
def test_sqlite_that_is_no_report_says_why(tmp_path, tables, said):
    with pytest.raises(TraceFormatError, match=said):
        gs.load_trace(nsight.build(tmp_path / "t.sqlite", tables))


# -- .nsys-rep ---------------------------------------------------------------------------------
REPORT = (
    b"NVIDIA Tegra Profiler Report 2026@4@1@191-264138605071v0.\n\x0bLocal (CLI)\x12\n" + bytes(64)
)


def fake_nsys(folder, monkeypatch, body):
    script = folder / "bin" / "nsys"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\nimport sys, shutil\n{body}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent))


def test_a_report_is_exported_by_nsys(captures, tmp_path, monkeypatch):
    trace, genuine = captures["two_partitions"]
    fake_nsys(
        tmp_path, monkeypatch,
        "assert sys.argv[1:4] == ['export', '--type=sqlite', '--force-overwrite=true'], sys.argv\n"
        f"shutil.copy({str(genuine)!r}, sys.argv[4].removeprefix('--output='))",
    )  # fmt: skip
    report = tmp_path / "anything"
    report.write_bytes(REPORT)
    assert gs.load_trace(report).spans.to_pylist() == trace.spans.to_pylist()


def test_the_export_of_a_report_is_held_against_the_limits(captures, tmp_path, monkeypatch):
    _, genuine = captures["two_partitions"]
    fake_nsys(tmp_path, monkeypatch,
              f"shutil.copy({str(genuine)!r}, sys.argv[4].removeprefix('--output='))")  # fmt: skip
    report = tmp_path / "r.nsys-rep"
    report.write_bytes(REPORT)
    size = genuine.stat().st_size
    assert len(gs.load_trace(report, limits=Limits(file_bytes=size)))
    refusal = rf"bytes of 'r.nsys-rep' as SQLite: {size:,} .*Limits\(file_bytes=…\)"
    with pytest.raises(TraceFormatError, match=refusal):
        gs.load_trace(report, limits=Limits(file_bytes=size - 1))


def test_a_report_without_nsys_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    report = tmp_path / "r.nsys-rep"
    report.write_bytes(REPORT)
    with pytest.raises(MissingDependency, match=r"written by 2026\.4\.1\.191.*install Nsight"):
        gs.load_trace(report)


def test_a_report_that_nsys_refuses_says_what_nsys_said(tmp_path, monkeypatch):
    fake_nsys(tmp_path, monkeypatch, "sys.exit('newer than this nsys')")
    report = tmp_path / "r.nsys-rep"
    report.write_bytes(REPORT)
    with pytest.raises(TraceFormatError, match="newer than this nsys"):
        gs.load_trace(report)


# -- Chrome traces -----------------------------------------------------------------------------
BASE = 1_795_257_927_753_519_961


def kineto(*events, **top):
    """Return a trace as PyTorch's profiler writes it."""
    return {
        "schemaVersion": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": BASE,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}],
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 458, "tid": 0, "ts": 0,
             "args": {"name": "python"}},
            {"ph": "M", "name": "process_labels", "pid": 458, "tid": 0, "ts": 0,
             "args": {"labels": "CPU"}},
            {"ph": "M", "name": "thread_name", "pid": 458, "tid": 460, "ts": 0,
             "args": {"name": "thread 460 (python)"}},
            *events,
        ],
        "traceName": "/home/bob/trace.json", **top,
    }  # fmt: skip


def step(number, stream=7, device=0, **more):
    """Return an annotation, an operator, a launch and its kernel."""
    at = 1000.125 + 100 * number
    return [
        {"ph": "X", "cat": "user_annotation", "name": "step", "pid": 458, "tid": 460, "ts": at,
         "dur": 50.5, "args": {"External id": number}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 458, "tid": 460, "ts": at,
         "dur": 20, "args": {"External id": number, "Input Dims": [[64, 64], [64, 64]]}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 458, "tid": 460,
         "ts": at + 5, "dur": 3.001, "args": {"External id": number, "cbid": 211,
                                              "correlation": 900 + number}},
        {"ph": "s", "id": number, "pid": 458, "tid": 460, "ts": at + 5, "cat": "ac2g",
         "name": "ac2g"},
        {"ph": "f", "id": number, "pid": device, "tid": stream, "ts": at + 30, "cat": "ac2g",
         "name": "ac2g", "bp": "e"},
        {"ph": "X", "cat": "kernel", "name": "sgemm", "pid": device, "tid": stream, "ts": at + 30,
         "dur": 12.007, "args": {
             "External id": number, "queued": 0, "device": device, "context": 1, "stream": stream,
             "correlation": 900 + number, "registers per thread": 40, "shared memory": 1024,
             "blocks per SM": 0.5, "grid": [8, 4, 1], "block": [128, 1, 1], "graph id": 0,
             "graph node id": 0, **more}},
        {"ph": "X", "cat": "gpu_user_annotation", "name": "step", "pid": device, "tid": stream,
         "ts": at + 30, "dur": 12.007, "args": {"External id": number}},
    ]  # fmt: skip


def load(tmp_path, content):
    path = tmp_path / "trace.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return gs.load_trace(path)


def test_kineto_work_calls_and_ranges(tmp_path):
    copy = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "pid": 0,
            "tid": 7, "ts": 1500, "dur": 2, "args": {"bytes": 4096, "stream": 7, "device": 0,
                                                     "correlation": 901}}  # fmt: skip
    sync = {"ph": "X", "cat": "cuda_sync", "name": "Stream Sync", "pid": 0, "tid": 7, "ts": 1600,
            "dur": 9, "args": {"stream": 7, "device": 0, "correlation": 901}}  # fmt: skip
    note = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 458,
            "tid": 460, "ts": 1300.5, "args": {"Bytes": -512}}  # fmt: skip
    graph = step(2, **{"graph id": 8, "graph node id": 99})
    trace = load(tmp_path, kineto(*step(0), *step(1), *graph, copy, sync, note))
    assert trace.kind_counts() == {
        "range": 6, "api": 3, "kernel": 3, "memcpy": 1, "sync": 1, "mark": 1,
    }  # fmt: skip
    kernel, _, node = rows(trace, kind="kernel")
    assert kernel["start_ns"] == BASE + 1_030_125
    assert kernel["end_ns"] - kernel["start_ns"] == 12_007
    assert (kernel["process"], kernel["thread"], kernel["device"]) == (458, 460, 0)
    assert (kernel["stream"], kernel["context"], kernel["correlation"]) == (7, 1, 900)
    assert kernel["external_correlation"] == 0
    assert json.loads(kernel["launch_config"]) == {
        "grid": [8, 4, 1], "block": [128, 1, 1], "registers": 40, "shared_memory": 1024,
    }  # fmt: skip
    assert (kernel["graph"], kernel["graph_node"]) == (None, None)
    assert (node["graph"], node["graph_node"]) == (8, 99)
    (copied,) = rows(trace, kind="memcpy")
    assert (copied["nbytes"], copied["copy_kind"], copied["src_kind"], copied["dst_kind"]) == (
        4096, "HtoD", "pinned", "device",
    )  # fmt: skip
    call = rows(trace, kind="api")[0]
    assert kernel["queued_ns"] == call["end_ns"]
    annotation, operator = rows(trace, kind="range")[:2]
    assert (annotation["category"], operator["category"]) == ("user_annotation", "cpu_op")
    assert operator["parent"] == annotation["id"]
    assert call["parent"] == operator["id"]
    assert json.loads(operator["payload"])["Input Dims"] == [[64, 64], [64, 64]]
    (mark,) = rows(trace, kind="mark")
    assert (mark["start_ns"], mark["end_ns"]) == (BASE + 1_300_500,) * 2
    assert json.loads(mark["payload"]) == {"Bytes": -512}
    edges = trace.edges.to_pylist()
    assert {"from": call["id"], "to": kernel["id"], "kind": "launch"} in edges
    assert len(edges) == 5  # three kernels and the copy, each once, arrows or not, and a wait
    (wait,) = rows(trace, kind="sync")
    assert {"from": kernel["id"], "to": wait["id"], "kind": "host wait"} in edges
    assert trace.metadata.edges == ("launch", "event wait")
    facts = trace.metadata
    assert facts.devices == {"cuda:0": DeviceFacts(0, name="NVIDIA H200", sm_count=132)}
    assert facts.process_names == {"458": "python"}
    assert facts.thread_names == {"460": "thread 460 (python)"}
    assert facts.time_base == "unix"
    assert facts.counts["events of category gpu_user_annotation not taken"] == 3
    assert facts.counts["arguments 'blocks per SM' of GPU work and API calls not taken"] == 3
    assert facts.counts["'traceName' beside the events not taken"] == 1
    assert "bob" not in facts.to_json()
    projected = analysis.range_projection(trace, name="step")["step"]
    assert (projected.launched, projected.kernels) == (3, 3)
    assert figures.timeline(trace).data
    assert analysis.overlap(trace).pairs == ()


def test_arguments_of_any_name_are_counted(tmp_path):
    odd = {'quoted "name"': 1, "back\\slash": 2, "new\nline": 3, "": 4, "x" * 90: 5, "plain": 6}
    trace = load(tmp_path, kineto(*step(0, **odd), *step(1, **odd), *step(2)))
    assert len(rows(trace, kind="kernel")) == 3
    counts = trace.metadata.counts
    for name in odd:
        assert counts[f"arguments {name[:40]!r} of GPU work and API calls not taken"] == 2
    no_object = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "args": [1]}
    trace = load(tmp_path, kineto(no_object))
    assert rows(trace, kind="kernel")[0]["stream"] == 7


def test_streams_of_two_gpus_are_two(tmp_path):
    trace = load(tmp_path, kineto(*step(0), *step(1, device=1)))
    one, two = rows(trace, kind="kernel")
    assert (one["device"], two["device"]) == (0, 1)
    assert one["stream"] == 7 != two["stream"]
    assert trace.metadata.streams[str(two["stream"])].name == "stream 7 of GPU 1"
    assert trace.metadata.devices["cuda:1"] == DeviceFacts(1, name="GPU 1")


def test_times_are_exact_to_the_ns(tmp_path):
    # Unix time in µs, as Kineto wrote it once: a double would be off by up to 125 ns.
    for text, ns in (
        ("1795257927753519.961", 1_795_257_927_753_519_961),
        ("1795257927753519961e-3", 1_795_257_927_753_519_961),
        ('"1795257927753519.9614"', 1_795_257_927_753_519_961),
        ("1795257927753520", 1_795_257_927_753_520_000),
    ):
        content = f'{{"traceEvents": [{{"ph": "X", "name": "a", "ts": {text}, "dur": 0.5}}]}}'
        trace = load(tmp_path, content.encode())
        assert trace.array("start_ns").tolist() == [ns]
        assert trace.array("end_ns").tolist() == [ns + 500]
        assert trace.metadata.time_base == "unix"


def test_begins_and_ends_nest_by_thread_and_async_spans_by_id(tmp_path):
    events = [
        {"ph": "B", "name": "outer", "pid": 1, "tid": 1, "ts": 0},
        {"ph": "B", "name": "inner", "pid": 1, "tid": 1, "ts": 1},
        {"ph": "B", "name": "other", "pid": 1, "tid": 2, "ts": 1},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 2},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 5},
        {"ph": "b", "cat": "io", "id": 1, "name": "read", "pid": 1, "tid": 1, "ts": 3},
        {"ph": "b", "cat": "io", "id": "0x2", "name": "write", "pid": 1, "tid": 1, "ts": 4},
        {"ph": "e", "cat": "io", "id": 1, "name": "read", "pid": 1, "tid": 3, "ts": 9},
        {"ph": "E", "pid": 1, "tid": 9, "ts": 5},
        {"ph": "X", "name": "unfinished", "pid": 1, "tid": 4, "ts": 5},
        {"ph": "N", "name": "object", "pid": 1, "tid": 4, "ts": 5},
        {"ph": "X", "name": "never", "pid": 1, "tid": 4},
    ]
    trace = load(tmp_path, events)
    spans = {row["name"]: row for row in trace.spans.to_pylist()}
    assert {name: (row["start_ns"], row["end_ns"]) for name, row in spans.items()} == {
        "outer": (0, 5000), "inner": (1000, 2000), "other": (1000, None), "read": (3000, 9000),
        "write": (4000, None), "unfinished": (5000, None),
    }  # fmt: skip
    assert spans["inner"]["parent"] == spans["outer"]["id"]
    assert (spans["read"]["range_style"], spans["inner"]["range_style"]) == (
        "start/end", "push/pop",
    )  # fmt: skip
    counts = trace.metadata.counts
    assert counts["ends of spans without a begin not taken"] == 1
    assert counts["events of phase 'N' not taken"] == 1
    assert counts["events without a readable time not taken"] == 1
    assert trace.metadata.time_base == "relative"


def test_counters_arrows_and_names_instead_of_numbers(tmp_path):
    events = [
        {"ph": "C", "name": "power", "pid": 1, "ts": 1, "args": {"W": 650.5}},
        {"ph": "C", "name": "memory", "pid": 1, "ts": 2, "args": {"used": 1, "free": 3}},
        {"ph": "X", "name": "one", "pid": "Python", "tid": "main", "ts": 0, "dur": 4},
        {"ph": "X", "name": "two", "pid": "Python", "tid": "worker", "ts": 6, "dur": 4},
        {"ph": "s", "cat": "event wait", "id": 5, "pid": "Python", "tid": "main", "ts": 3},
        {"ph": "f", "cat": "event wait", "id": 5, "pid": "Python", "tid": "worker", "ts": 5},
        {"ph": "s", "cat": "fwdbwd", "id": 6, "pid": "Python", "tid": "main", "ts": 3},
        {"ph": "f", "cat": "fwdbwd", "id": 6, "pid": "Python", "tid": "worker", "ts": 6, "bp": "e"},
    ]
    trace = load(tmp_path, events)
    assert [(row["name"], row["value"]) for row in rows(trace, kind="counter")] == [
        ("power", 650.5), ("memory used", 1.0), ("memory free", 3.0),
    ]  # fmt: skip
    one, two = rows(trace, kind="range")
    assert trace.metadata.process_names == {str(one["process"]): "Python"}
    assert trace.metadata.thread_names == {
        str(one["thread"]): "main", str(two["thread"]): "worker",
    }  # fmt: skip
    # Without bp: "e" an arrow ends at the slice that begins next.
    assert trace.edges.to_pylist() == [{"from": one["id"], "to": two["id"], "kind": "event wait"}]
    assert trace.metadata.counts["arrows of category 'fwdbwd' not taken"] == 1


def test_viztracer_functions_are_ranges_without_folders(tmp_path):
    content = {
        "traceEvents": [
            {"ph": "M", "pid": 5, "tid": 5, "name": "process_name", "args": {"name": "Main"}},
            {"pid": 5, "tid": 5, "ts": 1192831156.787, "ph": "X", "cat": "fee", "dur": 0.13,
             "name": "f (/home/bob/vt.py:1)"},
            {"pid": 5, "tid": 5, "ts": 1192831155.0, "ph": "X", "cat": "fee", "dur": 9.3,
             "name": "<module> (/home/bob/vt.py:1)"},
            {"pid": 5, "tid": 5, "ts": 1192831156.9, "ph": "C", "name": "v", "args": {"value": 3}},
        ],
        "viztracer_metadata": {"overflow": False, "version": "1.1.1"},
        "file_info": {"files": {"/home/bob/vt.py": ["secret", 1]}, "functions": {}},
    }  # fmt: skip
    trace = load(tmp_path, content)
    inner, outer = rows(trace, kind="range")
    assert (inner["name"], outer["name"]) == ("f (vt.py:1)", "<module> (vt.py:1)")
    assert inner["parent"] == outer["id"]
    assert inner["start_ns"] == 1_192_831_156_787
    assert rows(trace, kind="counter")[0]["name"] == "v"
    assert "'file_info' beside the events not taken" in trace.metadata.counts
    assert "bob" not in trace.metadata.to_json() + json.dumps(trace.spans.to_pylist())


def test_gzip_a_list_and_a_list_without_its_end(tmp_path):
    event = b'{"ph": "X", "name": "a", "ts": 1, "dur": 2, "pid": 1, "tid": 1}'
    for content in (
        gzip.compress(b'{"traceEvents": [' + event + b"]}"),
        b"\xef\xbb\xbf [" + event + b"]",
        b"[" + event + b",\n" + event + b",\n",
    ):
        trace = load(tmp_path, content)
        assert set(trace.texts("name")) == {"a"}
    assert len(trace) == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"some": "json", "of": "mine"}', "no traceEvents, only 'some', 'of'"),
        (b'{"traceEvents": [{"ph": "X"', "no readable Chrome trace"),
        (b'{"traceEvents": [1, 2]}', r"Expected `object`, got `int` - at `\$\[0\]`"),
        (b'{"traceEvents": 5, "more": [1, 2]}', "Expected `array`, got `int`"),
        (gzip.compress(b"plain text, and more of it"), "gzip, but not of JSON"),
        (gzip.compress(b'{"traceEvents": []}')[:-9], "cut off inside its gzip stream"),
        (
            b"plain text, and more of it",
            "none of Chrome trace JSON, Nsight Systems SQLite, Nsight Systems report, Parquet",
        ),
    ],
    ids=["other", "cut", "numbers", "number", "gzip of text", "gzip cut", "text"],
)
def test_what_is_no_chrome_trace_says_why(tmp_path, content, said):
    with pytest.raises(TraceFormatError, match=said):
        load(tmp_path, content)


def test_the_content_says_the_format_not_the_name(captures, tmp_path):
    trace, path = captures["graph_nodes"]
    wrong = tmp_path / "trace.json"
    wrong.write_bytes(path.read_bytes())
    assert len(gs.load_trace(wrong)) == len(trace)
    gs.export(trace, tmp_path / "t.sqlite")
    assert len(gs.load_trace(str(tmp_path / "t.sqlite"))) == len(trace)


def test_a_path_that_cannot_be_read_says_so(tmp_path):
    with pytest.raises(GpuscopeError, match=r"there is no file 'none\.json'"):
        gs.load_trace(tmp_path / "none.json")
    with pytest.raises(GpuscopeError, match="is a folder"):
        gs.load_trace(tmp_path)
