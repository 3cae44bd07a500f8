"""Exports: which format, what is in it, what may leave the machine, progress, cancel, failure."""

from __future__ import annotations

import getpass
import gzip
import json
import math
import re
import socket
import sqlite3
import sys
import threading
import zipfile
from collections import defaultdict
from decimal import Decimal
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from report_pages import without_plotly

import gpuscope as gs
from gpuscope import report
from gpuscope.formats.chrome import write as chrome
from gpuscope.formats.nsight import values as nsys_values
from gpuscope.formats.nsight import write as nsys_sqlite
from gpuscope.formats.own import simple
from gpuscope.formats.private import public
from gpuscope.formats.tracks import OPEN, nested
from gpuscope.trace import Trace
from gpuscope.trace.metadata import TraceMetadata

SECRETS = ("secret-host-17", "/home/somebody/bin")
H200 = Path(gs.__file__).parent / "simulator" / "profiles" / "h200.json"
SUFFIXES = (
    ".json", ".json.gz", ".sqlite", ".pftrace", ".perfetto-trace", ".pftrace.zip", ".parquet", ".csv",
    ".html",
)  # fmt: skip


def a_trace(rows=None, edges=None, **metadata):
    rows = rows or [
        {"kind": "range", "name": "step", "start_ns": 1000, "end_ns": 9000, "thread": 12,
         "domain": "d", "range_style": "push/pop"},
        {"kind": "api", "name": "cudaLaunchKernel", "start_ns": 1500, "end_ns": 2500,
         "thread": 12, "correlation": 5, "parent": 0, "stream": 7},
        {"kind": "kernel", "name": "gemm", "start_ns": 3001, "end_ns": 6002, "device": 0,
         "context": 1, "green_context": 3, "partition": "decode", "stream": 7, "correlation": 5,
         "queued_ns": 2500},
        {"kind": "handle", "name": "w", "start_ns": 1400, "end_ns": None, "thread": 12},
    ]  # fmt: skip
    plain = {"source": "cupti", "host": SECRETS[0], "process": 11}
    rows = [{"id": number, **plain, **row} for number, row in enumerate(rows)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    facts = {
        "devices": {"cuda:0": {"index": 0, "name": "GPU", "sm_count": 132}},
        "process_names": {"11": f"{SECRETS[1]}/python3 -m thing"},
        "thread_names": {"12": "MainThread"},
        **metadata,
    }
    return Trace.from_columns(
        {name: [row.get(name) for row in rows] for name in names},
        edges or {"from": [1], "to": [2], "kind": ["launch"]},
        TraceMetadata(**facts),
    )


def a_run(*names):
    gpu = gs.open_device("sim:h200", quiet=True)
    work = {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 3}
    return gs.run(
        {"name": "r", "alone_repeats": 0, "streams": {"s": {}}, "workloads": {"w": work},
         "settings": {name: {} for name in names}},
        gpu,
    )  # fmt: skip


def events(path):
    """Return the events of a Chrome trace, with numbers as they are written."""
    opened = gzip.open if path.name.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as file:
        return json.load(file, parse_float=Decimal)


# -- the entry ------------------------------------------------------------------------------
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format(tmp_path, suffix):
    path = gs.export(a_trace(), tmp_path / f"run{suffix}")
    assert path == tmp_path / f"run{suffix}"
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    other = tmp_path / "other"
    other.touch()
    assert path.stat().st_mode == other.stat().st_mode, "as the umask leaves it"


def test_suffixes_in_any_case_and_texts_as_paths(tmp_path):
    assert gs.export(a_trace(), str(tmp_path / "RUN.JSON")).exists()


@pytest.mark.parametrize("name", ["run", "run.txt", ".json", "run.json.zip"])
def test_an_unknown_suffix_names_the_known(tmp_path, name):
    with pytest.raises(
        gs.errors.ExportError, match=r"end its name in \.json, \.json\.gz, \.sqlite"
    ):
        gs.export(a_trace(), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_no_such_folder(tmp_path):
    for suffix in SUFFIXES:
        with pytest.raises(gs.errors.GpuscopeError, match="Choose a folder that exists"):
            gs.export(a_trace(), tmp_path / "none" / f"run{suffix}")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_progress_goes_up_to_all(tmp_path, suffix):
    told = []
    trace = a_trace()
    gs.export(trace, tmp_path / f"run{suffix}", progress=lambda *step: told.append(step))
    assert told[0] == (0, len(trace))
    assert told[-1] == (len(trace), len(trace))
    assert told == sorted(told)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_cancel_leaves_the_older_file(tmp_path, suffix):
    cancel = threading.Event()
    path = tmp_path / f"run{suffix}"
    path.write_text("older")

    def progress(done, total):
        cancel.set()

    with pytest.raises(gs.errors.Cancelled, match="cancelled"):
        gs.export(a_trace(), path, progress=progress, cancel=cancel)
    assert path.read_text() == "older"
    assert len(list(tmp_path.iterdir())) == 1


def test_runs(tmp_path):
    several, single = a_run("a", "b"), a_run("only")
    page = gs.export(several, tmp_path / "run.html").read_text("utf-8")
    assert page.rstrip().endswith("</html>")
    with pytest.raises(gs.errors.ExportError, match=r"2 settings, 'a', 'b'.*export\(run\['a'\]"):
        gs.export(several, tmp_path / "run.json")
    path = gs.export(single, tmp_path / "run.json")
    kernels = [one for one in events(path)["traceEvents"] if one.get("cat") == "kernel"]
    assert len(kernels) == 3
    with pytest.raises(gs.errors.ExportError, match="not int"):
        gs.export(3, tmp_path / "run.json")


# -- private ----------------------------------------------------------------------------------
def contents(path):
    """Return everything in a file as text."""
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes()).decode()
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        return f"{table.to_pylist()} {table.schema.metadata}"
    if path.suffix == ".sqlite":
        with sqlite3.connect(path) as database:
            return "\n".join(database.iterdump())
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            return "\n".join(archive.read(name).decode("latin-1") for name in archive.namelist())
    if path.suffix in (".pftrace", ".perfetto-trace"):
        return path.read_bytes().decode("latin-1")
    return path.read_text("utf-8")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_nothing_private_unless_asked(tmp_path, suffix, monkeypatch):
    monkeypatch.setenv("GPUSCOPE_TEST_TOKEN", "hunter2hunter2")
    path = gs.export(a_trace(), tmp_path / f"run{suffix}")
    text = contents(path)
    here = str(Path.cwd())
    for secret in (*SECRETS, "hunter2hunter2", str(tmp_path), here, str(Path.home()) + "/"):
        assert secret not in text, secret
    if len(socket.gethostname()) > 5:
        assert socket.gethostname() not in text
    if len(getpass.getuser()) > 5:
        assert getpass.getuser() not in text
    if suffix not in (".html", ".csv"):
        assert "python3" in text  # a process keeps its name
    if suffix == ".parquet":
        kept = contents(gs.export(a_trace(), tmp_path / f"kept{suffix}", keep_private=True))
        assert SECRETS[0] in kept
    if suffix not in (".html", ".csv"):
        kept = contents(gs.export(a_trace(), tmp_path / f"kept{suffix}", keep_private=True))
        assert SECRETS[1] in kept


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_export_holds_a_path(tmp_path, suffix):
    """Wherever one may stand: a simulated GPU's profile, arguments, texts of libraries."""
    profile = tmp_path / "somebody" / "gpu.json"
    profile.parent.mkdir()
    profile.write_text(H200.read_text())
    gpu = gs.open_device(f"sim:{profile}", quiet=True)
    (tmp_path / "somebodys_work.py").write_text(
        "import gpuscope as gs\n@gs.workloads.workload\ndef work(ctx, path):\n    return None\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        run = gs.run({
            "name": "r", "alone_repeats": 0, "streams": {"s": {}},
            "workloads": {"w": {"kind": "python:somebodys_work:work", "stream": "s", "repeats": 1,
                                "args": {"path": f"{SECRETS[1]}/model.pt"}}},
        }, gpu)  # fmt: skip
    finally:
        sys.path.remove(str(tmp_path))
    (trace,) = run.values()
    text = f"load {SECRETS[1]}/x.py with --token hunter2hunter2"
    more = a_trace([
        {"kind": "range", "name": text, "start_ns": 1, "end_ns": 9, "thread": 12, "domain": text,
         "payload": json.dumps({"args": text}), "status": text},
    ], {"from": [], "to": [], "kind": []}, thread_names={"12": text}, notes=(text,))  # fmt: skip
    made = [gs.export(trace, tmp_path / f"run{suffix}"), gs.export(more, tmp_path / f"t{suffix}")]
    if suffix == ".html":
        made.append(gs.export(run, tmp_path / "whole.html"))
    for path in made:
        written = contents(path)
        for secret in ("somebody/", str(tmp_path), "hunter2"):
            assert secret not in written, (path.name, secret)
    key = trace.metadata.streams[next(iter(trace.metadata.streams))].device
    assert re.fullmatch(r"sim:h200-[0-9a-f]{12}", key)
    assert gs.open_device(key, quiet=True).info == gpu.info


def test_public_leaves_the_trace_as_it_is():
    trace = a_trace()
    public(trace)
    assert set(trace.texts("host")) == {SECRETS[0]}


# -- failure ----------------------------------------------------------------------------------
def test_what_is_read_back_must_be_what_was_written(tmp_path, monkeypatch):
    trace = a_trace()
    monkeypatch.setattr(chrome, "_count", lambda file: 3)
    with pytest.raises(gs.errors.ExportError, match="holds 3 events where"):
        gs.export(trace, tmp_path / "run.json")
    monkeypatch.setattr(simple.pq, "read_metadata", lambda path: type("M", (), {"num_rows": 1}))
    with pytest.raises(gs.errors.ExportError, match="holds 1 rows where 4"):
        gs.export(trace, tmp_path / "run.parquet")
    monkeypatch.setattr(report, "trace_report", lambda trace, path: path.write_text("x" * 99))
    with pytest.raises(gs.errors.ExportError, match="cut off"):
        gs.export(trace, tmp_path / "run.html")
    fill = nsys_sqlite._fill

    def lossy(database, *rest):
        counts = fill(database, *rest)
        database.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL")
        return counts

    monkeypatch.setattr(nsys_sqlite, "_fill", lossy)
    with pytest.raises(gs.errors.ExportError, match="0 rows of CUPTI_ACTIVITY_KIND_KERNEL where 1"):
        gs.export(trace, tmp_path / "run.sqlite")
    assert not list(tmp_path.iterdir())


def test_a_cut_file_is_noticed(tmp_path):
    path = gs.export(a_trace(), tmp_path / "run.json")
    whole = path.read_bytes()
    for size in (len(whole) - 1, len(whole) // 2, 0):
        path.write_bytes(whole[:size])
        with path.open("rb") as file:
            assert chrome._count(file) == -1


# -- lanes ------------------------------------------------------------------------------------
spans = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12) | st.just(OPEN)),
    max_size=40,
)


def nests(rows):
    """Whether spans, by start and the longer first, are apart or inside each other."""
    ends = []
    for start, end in rows:
        while ends and ends[-1] <= start:
            ends.pop()
        if ends and end > ends[-1]:
            return False
        ends.append(end)
    return True


@given(spans)
@settings(max_examples=300)
def test_lanes_nest_and_are_few(rows):
    track = np.array([row[0] for row in rows], np.int64)
    starts = np.array([row[1] for row in rows], np.int64)
    ends = np.array([OPEN if row[2] == OPEN else row[1] + row[2] for row in rows], np.int64)
    order, lane = nested(track, starts, ends)
    assert sorted(order.tolist()) == list(range(len(rows)))
    by_lane, by_track = defaultdict(list), defaultdict(list)
    for row in order.tolist():
        by_lane[track[row], lane[row]].append((starts[row], ends[row]))
        by_track[track[row]].append((starts[row], ends[row]))
    times = [(starts[row], -ends[row]) for row in order]
    assert times == sorted(times)
    assert all(map(nests, by_lane.values()))
    for one, inside in by_track.items():
        opened = [start for start, end in inside if end == OPEN]
        if nests(inside) and not any([start for start, _ in inside].count(at) > 1 for at in opened):
            assert not lane[track == one].any()


def test_where_arrows_end_nothing_else_begins():
    starts, ends = np.array([0, 0, 0, 5, 5]), np.array([9, 8, 7, 6, 6])
    track, arrows = np.zeros(5, np.int64), np.array([False, True, False, True, False])
    _, lane = nested(track, starts, ends, arrows)
    assert lane.tolist() == [0, 0, 1, 0, 1]


# -- Chrome -----------------------------------------------------------------------------------
def test_chrome_events(tmp_path):
    told = events(gs.export(a_trace(), tmp_path / "run.json"))
    assert told["baseTimeNanoseconds"] == 1000
    assert told["otherData"]["metadata"]["thread_names"] == {"12": "MainThread"}
    spans = {one["args"]["id"]: one for one in told["traceEvents"] if one["ph"] in "XBi"}
    assert len(spans) == 4
    kernel = spans[2]
    assert (kernel["cat"], kernel["name"]) == ("kernel", "gemm")
    assert (kernel["ts"], kernel["dur"]) == (Decimal("2.001"), Decimal("3.001"))
    expected = {
        "id": 2, "device": 0, "context": 1, "green_context": 3, "partition": "decode",
        "stream": 7, "correlation": 5, "queued_ns": 1500, "process": 11,
        "source": "cupti",
    }  # fmt: skip
    assert kernel["args"] == expected
    told_of_call = {"id": 1, "parent": 0, "correlation": 5, "target_stream": 7, "source": "cupti"}
    assert spans[1]["args"] == told_of_call
    assert (spans[1]["pid"], spans[1]["tid"], spans[1]["cat"]) == (11, 12, "cuda_runtime")
    assert spans[3]["ph"] == "B"
    assert "dur" not in spans[3]
    (begin,) = [one for one in told["traceEvents"] if one["ph"] == "s"]
    (end,) = [one for one in told["traceEvents"] if one["ph"] == "f"]
    assert begin["args"] == {"from": 1, "to": 2}
    assert (begin["id"], begin["ts"], end["ts"]) == (end["id"], Decimal("0.5"), Decimal("2.001"))
    names = {one["args"]["name"] for one in told["traceEvents"] if one["name"] == "process_name"}
    assert names == {"GPU 0 GPU · decode", "python3"}


HAZARD = {
    "kind": "read after write", "first": 1, "second": 2, "first_name": "made", "second_name": "read",
    "first_stream": "a", "second_stream": "b", "address": 4096, "nbytes": 64, "buffer": "x",
    "count": 3, "waits": "b", "awaits": "a", "where": "work", "behind": "",
    "mend": "b.wait(a.record())", "status": "confirmed",
}  # fmt: skip


def racy(**facts):
    """A trace with three hazards: one between rows, one with the host, one of rows not there."""
    rows = [
        {"id": number, "kind": "kernel", "name": name, "start_ns": start, "end_ns": start + 1000,
         "device": 0, "stream": number}
        for number, (name, start) in enumerate([("other", 500), ("made", 2000), ("read", 4500)])
    ]  # fmt: skip
    found = [HAZARD, {**HAZARD, "second": None}, {**HAZARD, "first": 88, "second": 99}]
    return a_trace(rows, hazards={"accesses": 3, "found": found}, **facts)


def test_hazards_are_instants_and_arrows_in_chrome_json(tmp_path):
    trace = racy()
    path = gs.export(trace, tmp_path / "a.json")
    events = [one for one in json.loads(path.read_text())["traceEvents"] if one.get("cat") == "hazard"]  # fmt: skip
    instants = [one for one in events if one["ph"] == "i"]
    assert [(one["ts"], one["args"]["first"]) for one in instants] == [(4.0, 1), (1.5, 1)]
    assert instants[0]["name"] == "read after write: made → read"
    assert instants[0]["args"] == HAZARD
    kernels = {
        one["name"]: (one["pid"], one["tid"])
        for one in json.loads(path.read_text())["traceEvents"] if one.get("cat") == "kernel"
    }  # fmt: skip
    assert (instants[0]["pid"], instants[0]["tid"]) == kernels["read"]
    start, end = (one for one in events if one["ph"] in "sf")
    assert ((start["pid"], start["tid"]), (end["pid"], end["tid"])) == (kernels["made"], kernels["read"])  # fmt: skip
    assert (start["ts"], end["ts"], start["id"]) == (1.5, 4.0, end["id"])


def test_hazards_are_a_table_in_sqlite(tmp_path):
    path = gs.export(racy(), tmp_path / "a.sqlite")
    found = pd.read_sql("SELECT * FROM GPUSCOPE_HAZARDS", sqlite3.connect(path))
    assert found.to_dict("records")[0] == HAZARD
    assert len(found) == 3


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".sqlite", ".parquet"])
def test_hazards_and_forecasts_come_back(tmp_path, suffix):
    trace = racy(forecast="forecast from one recording", simulated=True)
    back = gs.load_trace(gs.export(trace, tmp_path / f"a{suffix}"))
    assert back.metadata.hazards == trace.metadata.hazards
    assert back.metadata.forecast == trace.metadata.forecast
    assert (len(back), back.edges.num_rows) == (len(trace), trace.edges.num_rows)
    assert gs.analysis.hazards(back).found == gs.analysis.hazards(trace).found


def test_processes_are_marked_as_forecast(tmp_path):
    path = gs.export(racy(forecast="forecast from one recording"), tmp_path / "a.json")
    labels = [
        one["args"]["labels"] for one in json.loads(path.read_text())["traceEvents"]
        if one["name"] == "process_labels"
    ]  # fmt: skip
    assert labels
    assert set(labels) == {"forecast from one recording"}


def test_an_arrow_to_nowhere_is_counted(tmp_path):
    trace = a_trace(edges={"from": [1, 1], "to": [2, 99], "kind": ["launch", "launch"]})
    told = events(gs.export(trace, tmp_path / "run.json"))
    assert told["otherData"]["edges_left_out"] == 1
    assert sum(one["ph"] == "s" for one in told["traceEvents"]) == 1


def test_the_same_trace_gives_the_same_bytes(tmp_path):
    first, second = (gs.export(a_trace(), tmp_path / f"{name}.json.gz") for name in "ab")
    assert first.read_bytes() == second.read_bytes()


@given(st.lists(st.text(max_size=30), min_size=1, max_size=20))
@example(["/dev/0"])  # a folder, which is private elsewhere
@settings(max_examples=60, deadline=None)
def test_any_name_comes_through(tmp_path_factory, names):
    rows = [
        {"kind": "mark", "name": name, "start_ns": number, "thread": 1, "category": name,
         "payload": json.dumps({"a": name})}
        for number, name in enumerate(names)
    ]  # fmt: skip
    trace = a_trace(rows, {"from": [], "to": [], "kind": []})
    folder = tmp_path_factory.mktemp("names")
    path = gs.export(trace, folder / "run.json", keep_private=True)
    marks = [one for one in events(path)["traceEvents"] if one["ph"] == "i"]
    shown = trace.texts("name")
    assert [one["name"] for one in marks] == shown
    assert [one["args"]["category"] for one in marks] == shown
    assert [one["args"]["payload"] for one in marks] == [{"a": name} for name in names]
    written = gs.export(trace, folder / "run.sqlite", keep_private=True)
    with sqlite3.connect(written) as database:
        found = database.execute(
            "SELECT value FROM NVTX_EVENTS JOIN StringIds ON textId = StringIds.id "
            "WHERE eventType = 34 ORDER BY start"
        ).fetchall()
    assert [name for (name,) in found] == shown


def test_large_numbers_keep_their_ns(tmp_path):
    """Unix times, days apart: µs as doubles would be off by a quarter of a µs."""
    start, day = 1_795_000_000_123_456_789, 86_400 * 10**9
    rows = [
        {"kind": "kernel", "name": "k", "start_ns": start + number * day + number,
         "end_ns": start + number * day + 2 * number + 1, "device": 0, "stream": 7}
        for number in range(40)
    ]  # fmt: skip
    trace = a_trace(rows, {"from": [], "to": [], "kind": []})
    told = events(gs.export(trace, tmp_path / "run.json"))
    base = told["baseTimeNanoseconds"]
    found = [
        (int(one["ts"] * 1000) + base, int((one["ts"] + one["dur"]) * 1000) + base)
        for one in told["traceEvents"] if one["ph"] == "X"
    ]  # fmt: skip
    assert found == [(row["start_ns"], row["end_ns"]) for row in rows]
    # A double of µs, as most readers hold it, still names the ns.
    floats = [round(float(one["ts"]) * 1000) + base for one in told["traceEvents"]
              if one["ph"] == "X"]  # fmt: skip
    assert floats == [row["start_ns"] for row in rows]


def test_counters_that_json_cannot_hold(tmp_path):
    rows = [
        {"kind": "counter", "name": "c", "start_ns": number, "value": value}
        for number, value in enumerate([1.5, math.nan, math.inf, None])
    ]
    trace = a_trace(rows, {"from": [], "to": [], "kind": []})
    told = events(gs.export(trace, tmp_path / "run.json"))["traceEvents"]
    assert [one["args"] for one in told if one["ph"] == "C"] == [{"value": Decimal("1.5")}]
    assert sum(one["ph"] == "i" for one in told) == 3


# -- Nsight's SQLite -----------------------------------------------------------------------------
def query(path, text):
    database = sqlite3.connect(path)
    try:
        return database.execute(text).fetchall()
    finally:
        database.close()


def test_numbers_of_more_than_24_bits(tmp_path):
    """Foreign traces have threads of 64 bits; Nsight's ids have 24."""
    rows = [
        {"kind": "api", "name": "cudaLaunchKernel", "start_ns": 1, "end_ns": 2, "process": 5,
         "thread": thread, "correlation": number}
        for number, thread in enumerate([140_000_000_000_000, (1 << 24) - 1, 7, (1 << 63) - 3])
    ]  # fmt: skip
    trace = a_trace(rows, {"from": [], "to": [], "kind": []}, thread_names={"7": "seven"})
    path = gs.export(trace, tmp_path / "run.sqlite")
    found = query(path, "SELECT globalTid, thread FROM CUPTI_ACTIVITY_KIND_RUNTIME ORDER BY start, "
                        "correlationId")  # fmt: skip
    short = [number & 0xFFFFFF for number, _ in found]
    assert len(set(short)) == 4
    assert short[1:3] == [(1 << 24) - 1, 7]
    assert [thread for _, thread in found] == [row["thread"] for row in rows]
    assert {number >> 24 for number, _ in found} == {(1 << 24) | 5}


def test_ranges_of_every_kind(tmp_path):
    rows = [
        {"kind": "range", "name": "open", "start_ns": 10, "thread": 1},
        {"kind": "range", "name": "crossing", "start_ns": 11, "end_ns": 20, "thread": 1,
         "end_thread": 2, "range_style": "start/end", "domain": "d", "color": 0xFF00FF00},
        {"kind": "mark", "name": "mark", "start_ns": 12, "thread": 1, "category": "c",
         "payload": "7"},
        {"kind": "range", "name": "paid", "start_ns": 13, "end_ns": 14, "thread": 1,
         "payload": "2.5"},
        {"kind": "range", "name": "paid", "start_ns": 14, "end_ns": 15, "thread": 1,
         "payload": '{"a": 1}'},
        {"kind": "range", "name": "paid", "start_ns": 15, "end_ns": 16, "thread": 1,
         "payload": str(1 << 64)},
    ]  # fmt: skip
    trace = a_trace(rows, {"from": [], "to": [], "kind": []})
    path = gs.export(trace, tmp_path / "run.sqlite")
    whole = (1 << 48) | (11 << 24)
    found = query(path, "SELECT start, end, eventType, globalTid, endGlobalTid, domainId, "
                        "int64Value, doubleValue, jsonText, color FROM NVTX_EVENTS "
                        "WHERE eventType IN (34, 59, 60) ORDER BY start")  # fmt: skip
    assert found == [
        (0, None, 59, whole | 1, None, 0, None, None, None, None),
        (1, 10, 60, whole | 1, whole | 2, 1, None, None, None, 0xFF00FF00),
        (2, None, 34, whole | 1, None, 0, 7, None, None, None),
        (3, 4, 59, whole | 1, None, 0, None, 2.5, None, None),
        (4, 5, 59, whole | 1, None, 0, None, None, '{"a": 1}', None),
        (5, 6, 59, whole | 1, None, 0, None, None, str(1 << 64), None),
    ]
    named = query(path, "SELECT eventType, text, domainId FROM NVTX_EVENTS "
                        "WHERE eventType IN (33, 75) ORDER BY eventType")  # fmt: skip
    assert named == [(33, "c", 0), (75, "d", 1)]


def test_a_green_context_has_a_parent(tmp_path):
    """A partition's work may name the green context as its context, as CUPTI does."""
    rows = [
        {"kind": "kernel", "name": "k", "start_ns": 1, "end_ns": 2, "device": 0, "stream": 7,
         "context": context, "green_context": green}
        for context, green in ((3, 3), (4, 4), (None, None), (1, 5))
    ]  # fmt: skip
    path = gs.export(a_trace(rows, {"from": [], "to": [], "kind": []}), tmp_path / "run.sqlite")
    kernels = query(path, "SELECT contextId, greenContextId, context FROM "
                          "CUPTI_ACTIVITY_KIND_KERNEL ORDER BY rowid")  # fmt: skip
    assert kernels == [(1, 3, 3), (1, 4, 4), (1, None, None), (1, 5, 1)]
    contexts = query(path, "SELECT contextId, parentContextId, isGreenContext "
                           "FROM TARGET_INFO_CUDA_CONTEXT_INFO ORDER BY 1")  # fmt: skip
    assert contexts == [(1, 0, 0), (3, 1, 1), (4, 1, 1), (5, 1, 1)]


def test_what_nsight_has_no_table_for_is_kept(tmp_path):
    path = gs.export(a_trace(), tmp_path / "run.sqlite")
    assert query(path, "SELECT kind, name, start_ns, end_ns FROM GPUSCOPE_SPANS") == [
        ("handle", "w", 400, None)
    ]
    assert query(path, 'SELECT "from", "to", kind FROM GPUSCOPE_EDGES') == [(1, 2, "launch")]
    facts = dict(query(path, "SELECT name, value FROM GPUSCOPE_METADATA"))
    assert json.loads(facts["metadata"])["thread_names"] == {"12": "MainThread"}


# -- Parquet, pandas, HTML ------------------------------------------------------------------------
def test_parquet_is_ours(tmp_path):
    trace = public(a_trace())
    again = gs.load_trace(gs.export(trace, tmp_path / "run.parquet"))
    assert again.spans.to_pylist() == trace.spans.to_pylist()
    assert again.edges.to_pylist() == trace.edges.to_pylist()
    assert again.metadata.to_json() == trace.metadata.to_json()


def test_pandas():
    trace = a_trace()
    frame = trace.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert list(frame["start_ns"]) == trace.array("start_ns").tolist()
    assert frame["start_ns"].dtype == "int64"
    assert frame["end_ns"].dtype == "Int64"
    assert frame["end_ns"].isna().tolist() == [False, False, False, True]
    assert frame["device"].dtype == "Int16"
    assert frame["kind"].dtype == "category"
    assert "sm" not in frame  # no row has one
    assert json.loads(frame.attrs["gpuscope"])["devices"] == msgspec.to_builtins(
        trace.metadata.devices
    )
    kernels = frame[frame["kind"] == "kernel"]
    assert (kernels["end_ns"] - kernels["start_ns"]).tolist() == [3001]


def test_without_pandas_the_error_says_what_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        gs.errors.MissingDependency, match=r"Trace\.to_pandas\(\).*pip install pandas"
    ):
        a_trace().to_pandas()


def test_html_asks_no_network(tmp_path):
    rows = [{"kind": "kernel", "name": "</script><img src=http://x onerror=alert(1)>",
             "start_ns": 1, "end_ns": 5, "device": 0, "stream": 7}]  # fmt: skip
    page = gs.export(
        a_trace(rows, {"from": [], "to": [], "kind": []}), tmp_path / "run.html"
    ).read_text("utf-8")
    assert "</script><img" not in without_plotly(page)
    assert "default-src 'none'" in page
    assert '<script src="' not in page
    assert '<link rel="stylesheet"' not in page


def test_an_empty_trace_in_every_format(tmp_path):
    empty = a_trace().where(kind="none such")
    for suffix in (".json", ".json.gz", ".sqlite", ".parquet"):
        assert gs.export(empty, tmp_path / f"run{suffix}").exists()
    assert [one for one in events(tmp_path / "run.json")["traceEvents"] if one["ph"] != "M"] == []
    assert query(tmp_path / "run.sqlite", "SELECT count(*) FROM NVTX_EVENTS") == [(0,)]


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1e400", '"x"', "null", "1e30"])
def test_a_launch_configuration_with_a_number_that_none_is_counts_as_unknown(number):
    told = f'{{"grid": [{number}, 1, 1], "block": [32, 1, 1]}}'
    assert nsys_values.config(told) == nsys_values.config(None)
