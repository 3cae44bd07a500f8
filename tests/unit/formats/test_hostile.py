"""Files that mean harm: limits, nothing run, nothing written, only errors of ours, no hang.

``make fuzz`` tries 20,000 mutated inputs of each format instead of 500.
"""

# ruff: noqa: S608 - the tables' names are ours
from __future__ import annotations

import ast
import contextlib
import gzip
import hashlib
import json
import os
import resource
import sqlite3
import struct
import subprocess
import sys
import time
import zlib
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import mutants
import nsight_files as nsight
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trace_chain
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import gpuscope as gs
from gpuscope import analysis
from gpuscope.errors import GpuscopeError, InvalidExperiment, MissingEvidence, TraceFormatError
from gpuscope.formats import Limits, reading
from gpuscope.formats.database import opened
from gpuscope.trace import Trace, schema, store

MUTATIONS = int(os.environ.get("GPUSCOPE_MUTATIONS", "500"))
CHAINED = 25
"""Of so many files that load, all is done with one: analyse, draw, export, load again."""
SECONDS = 5
MEGABYTES = 512
KERNEL, API, NVTX = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
MISTAKES = (KeyError, IndexError, AttributeError, NameError, ZeroDivisionError, AssertionError,
            MemoryError)  # fmt: skip
"""What a reader that thought of everything does not stumble over."""

PATIENT = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large,
           HealthCheck.large_base_example)  # fmt: skip
mutated = settings(max_examples=MUTATIONS, deadline=None, suppress_health_check=PATIENT)
composed = settings(mutated, max_examples=max(200, MUTATIONS // 5))
"""Inputs that take longer to make than to read."""


# -- the seeds ---------------------------------------------------------------------------------
class Seeds(dict):
    """Whole files by format, which a failing example need not show."""

    def __repr__(self):
        return f"<{', '.join(self)}>"


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """Format → whole files."""
    folder = tmp_path_factory.mktemp("seeds")
    return Seeds(
        sqlite=[mutants.small_report(folder / "small.sqlite")],
        json=[
            json.dumps(one, indent=1).encode()
            for one in (mutants.small_json(), mutants.own_json(), mutants.small_proton())
        ],
        gzip=[gzip.compress(json.dumps(mutants.small_json()).encode())],
        parquet=[mutants.small_parquet(folder / "t.parquet")],
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mutated")


# -- mutated inputs ----------------------------------------------------------------------------
edits = st.lists(
    st.tuples(
        st.integers(0, (1 << 20) - 1),
        st.sampled_from(mutants.EDITS),
        st.one_of(st.sampled_from(mutants.INTERESTING), st.binary(min_size=1, max_size=8)),
    ),
    min_size=1,
    max_size=6,
)


def harmless(path):
    """Load a file: a trace that can be looked at or an error of ours, soon, in little memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    trace, refused = None, None
    try:
        trace = gs.load_trace(path)
    except GpuscopeError as error:
        refused = error
    if trace is None:
        assert str(refused)
        assert not isinstance(refused.__cause__, MISTAKES), repr(refused.__cause__)
        assert str(path.parent) not in str(refused)
    else:
        repr(trace)
        trace.metadata.to_json()
        for judge in (analysis.overlap, analysis.gaps, analysis.summary):
            with contextlib.suppress(MissingEvidence):
                repr(judge(trace).rows())
    assert time.process_time() - started < SECONDS
    if trace is not None and zlib.crc32(path.read_bytes()) % CHAINED == 0:
        trace_chain.through(trace, path.parent)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < MEGABYTES * 1024, f"{grown / 1024:.0f} MB more"
    return trace


@pytest.mark.parametrize("form", ["sqlite", "json", "gzip", "parquet"])
@mutated
@given(st.data())
def test_mutated_files_give_a_trace_or_an_error_of_ours(form, seeds, folder, monkeypatch, data):
    monkeypatch.setenv("PATH", "")  # no nsys
    content = data.draw(st.sampled_from(seeds[form])) if len(seeds[form]) > 1 else seeds[form][0]
    path = folder / f"file.{form}"
    path.write_bytes(mutants.changed(content, data.draw(edits)))
    harmless(path)


def test_a_footer_that_would_end_the_process_is_refused():
    # Found by mutation: PyArrow aborts when asked for a column whose size statistics do not fit.
    path = Path(__file__).resolve().parents[2] / "data/hostile/histogram.parquet"
    with pytest.raises(TraceFormatError, match="histogram size mismatch"):
        gs.load_trace(path)


def test_a_record_of_damaged_size_is_no_lack_of_memory(seeds, folder):
    # Found by mutation: SQLite 3.40 answers "out of memory" for it, on a machine with any memory.
    (content,) = seeds["sqlite"]
    path = folder / "record.sqlite"
    path.write_bytes(mutants.changed(content, [(881880, "set", b"\xff" * 8)]))
    assert harmless(path) is None


def test_a_place_beyond_a_dictionarys_end_is_found():
    # Found by mutation, where a page came without a checksum.
    wrong = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), ["k"], safe=False)
    table = pa.table({"name": wrong})
    parquet = SimpleNamespace(
        schema_arrow=table.schema, read=lambda columns, use_threads: table.select(columns)
    )
    with pytest.raises(pa.ArrowInvalid, match="out of bounds"):
        store._columns(parquet, {"name": wrong.type})


CELLS = st.one_of(
    st.sampled_from([None, 0, 1, -1, 1 << 31, 1 << 32, (1 << 63) - 1, -(1 << 63), 1.5, 1e300,
                     float("inf"), "", "x", "9" * 30, "\0", b"\xff\xfe", b"", 7, 458]),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.text(max_size=5),
)  # fmt: skip


@pytest.mark.no_cover
@composed
@given(st.data())
def test_reports_with_any_value_anywhere(seeds, folder, data):
    path = folder / "cells.sqlite"
    path.write_bytes(seeds["sqlite"][0])
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA journal_mode = OFF")
        file.execute("PRAGMA synchronous = OFF")
        file.execute("PRAGMA ignore_check_constraints = ON")
        tables = sorted(
            name
            for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if not name.startswith("ENUM_NSYS")
        )
        for _ in range(data.draw(st.integers(1, 4))):
            table = data.draw(st.sampled_from(tables))
            columns = [row[1] for row in file.execute(f'PRAGMA table_info("{table}")')]
            column = data.draw(st.sampled_from(columns))
            value = data.draw(CELLS)
            try:
                file.execute(f'UPDATE OR REPLACE "{table}" SET "{column}" = ?', (value,))
            except sqlite3.IntegrityError:
                file.execute(f'DELETE FROM "{table}"')
        file.commit()
    harmless(path)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False,
              allow_infinity=False), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6),
                                                                        inner, max_size=3)),
    max_leaves=6,
)  # fmt: skip
KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "id2", "args", "bp", "s", "cname")
ARGUMENTS = ("device", "stream", "correlation", "grid", "block", "bytes", "graph id", "name",
             "registers per thread", "shared memory", "External id", "from", "to", "id",
             "launch_config", "payload", "value", "queued_ns", "target_stream",
             "wait_on_stream", "wait_on_cuda_event_record_corr_id")  # fmt: skip


@pytest.mark.no_cover
@composed
@given(st.data())
def test_chrome_traces_with_any_value_anywhere(folder, data):
    content = mutants.small_json() if data.draw(st.booleans()) else mutants.own_json()
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.sampled_from(["event", "arguments", "top", "more", "metadata"]))
        event = data.draw(st.sampled_from(content["traceEvents"]))
        if where == "event":
            event[data.draw(st.sampled_from(KEYS))] = data.draw(JSON)
        elif where == "arguments" and isinstance(event.get("args"), dict):
            event["args"][data.draw(st.sampled_from(ARGUMENTS))] = data.draw(JSON)
        elif where == "top":
            key = data.draw(st.sampled_from(["baseTimeNanoseconds", "deviceProperties", "other"]))
            content[key] = data.draw(JSON)
        elif where == "more":
            content["traceEvents"].append(
                data.draw(st.fixed_dictionaries({"ph": st.sampled_from("XBEbenistfCMNO")},
                          optional=dict.fromkeys(KEYS[1:], JSON)))
            )  # fmt: skip
        elif "otherData" in content:
            name = data.draw(st.sampled_from(["streams", "partitions", "devices", "counts",
                                              "windows_ns", "notes", "clocks"]))  # fmt: skip
            content["otherData"]["metadata"][name] = data.draw(JSON)
    path = folder / "values.json"
    path.write_text(json.dumps(content))
    harmless(path)


VALUES = st.one_of(
    st.sampled_from([None, 0, 1, -1, 7, 1 << 15, 1 << 32, (1 << 63) - 1, -(1 << 63), 1000 << 52,
                     "", "x", "\0", "k" * 300, "counter", "block", "handle", "{}"]),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.text(max_size=5),
)  # fmt: skip


@pytest.mark.no_cover
@composed
@given(st.data())
def test_parquet_with_any_value_anywhere(folder, data):
    path = folder / "values.parquet"
    mutants.small_parquet(path)
    table = pq.read_table(path)
    facts = dict(table.schema.metadata)
    for _ in range(data.draw(st.integers(1, 4))):
        name = data.draw(st.sampled_from(table.column_names))
        values = table.column(name).to_pylist()
        values[data.draw(st.integers(0, len(values) - 1))] = data.draw(VALUES)
        with contextlib.suppress(pa.ArrowException, OverflowError, UnicodeError):
            column = pa.array(values, schema.SPAN_TYPES[name])
            table = table.set_column(table.schema.get_field_index(name), name, column)
    if data.draw(st.booleans()):
        told = json.loads(facts[b"gpuscope.metadata"])
        told[data.draw(st.sampled_from(sorted(told)))] = data.draw(JSON)
        facts[b"gpuscope.metadata"] = json.dumps(told).encode()
    pq.write_table(table.replace_schema_metadata(facts), path)
    harmless(path)


@pytest.mark.parametrize("kind", ["gpu_memcpy", "user_annotation", "<b>", "event wait"])
@pytest.mark.parametrize("suffix", trace_chain.SUFFIXES)
def test_a_kind_that_nobody_knows_is_kept(kind, suffix, tmp_path):
    trace = Trace.from_columns(
        {"id": [1, 2], "kind": [kind, "kernel"], "name": ["a", "b"], "start_ns": [1, 2],
         "end_ns": [3, 4], "source": ["cupti"] * 2}
    )  # fmt: skip
    again = gs.load_trace(gs.export(trace, tmp_path / f"t{suffix}"))
    assert sorted(again.texts("kind")) == sorted([kind, "kernel"])


def test_edges_without_spans_go_the_whole_way(tmp_path):
    trace = Trace.from_columns({}, {"from": [1], "to": [2], "kind": ["launch"]})
    trace_chain.through(trace, tmp_path)


def test_a_trace_of_ours_without_events_goes_the_whole_way(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps({**mutants.own_json(), "traceEvents": []}))
    trace = gs.load_trace(path)
    assert len(trace) == 0
    trace_chain.through(trace, tmp_path)


@pytest.mark.parametrize("number", ["1e999", "NaN", "-Infinity"])
def test_numbers_that_json_has_not_go_the_whole_way(number, tmp_path):
    facts = {"experiment": {"name": "N"}, "clocks": {"c": {"residual_ns": 1.5}}}
    path = rewritten(
        tmp_path / "t.parquet",
        lambda _: json.dumps(facts).replace("1.5", number).replace('"N"', number).encode(),
    )
    trace = gs.load_trace(path)
    assert json.loads(trace.metadata.to_json())["clocks"] == {"c": {}}
    marked = Trace.from_columns(
        {"id": [1], "kind": ["mark"], "name": ["m"], "start_ns": [1], "end_ns": [1],
         "source": ["nvtx"], "payload": [f'{{"a": {number}}}']}, metadata=trace.metadata
    )  # fmt: skip
    trace_chain.through(marked, tmp_path)


def test_times_after_2043_go_the_whole_way(tmp_path):
    for first, last in ((1 << 61, (1 << 61) + 5), (0, schema.LATEST_NS - 2)):
        trace = Trace.from_columns(
            {"id": [1, 2], "kind": ["kernel"] * 2, "name": ["a", "b"], "start_ns": [first, last],
             "end_ns": [first + 1, last + 1], "source": ["cupti"] * 2}
        )  # fmt: skip
        trace_chain.through(trace, tmp_path)


def test_an_event_without_a_name_goes_the_whole_way(tmp_path):
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [{"ph": "X", "ts": 1, "dur": 2}, {"ph": "X", "ts": 1, '
                    '"dur": 2, "name": "a"}]}')  # fmt: skip
    trace = gs.load_trace(path)
    assert trace.texts("name") == ["(unnamed)", "a"]
    trace_chain.through(trace, tmp_path)


def test_times_beyond_any_are_left_out_and_counted(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(
        '{"baseTimeNanoseconds": 3999999999999999999, "traceEvents": ['
        '{"ph": "X", "name": "late", "ts": 4500000000000000, "dur": 1},'
        '{"ph": "X", "name": "long", "ts": 0, "dur": 4500000000000000},'
        '{"ph": "X", "name": "before 1970", "ts": -4499999999999999, "dur": 1},'
        '{"ph": "X", "name": "backwards", "ts": 5, "dur": -1},'
        '{"ph": "X", "name": "good", "ts": 5, "dur": 1}]}'
    )
    trace = gs.load_trace(path)
    rows = zip(trace.texts("name"), trace.spans.column("end_ns").to_pylist(), strict=True)
    assert dict(rows) == {"long": None, "backwards": None, "good": 4000000000000005999}
    counts = trace.metadata.counts
    assert counts["spans with an impossible start_ns not taken"] == 2
    assert counts["ends later than any time not taken"] == 2
    assert counts["ends before their begin not taken"] == 1


def test_a_lone_surrogate_does_not_refuse_a_file(tmp_path):
    path = tmp_path / "t.json"
    path.write_text('[{"ph": "X", "name": "a\\ud800b \\ud83d\\ude00", "ts": 1, "dur": 1}]')
    assert gs.load_trace(path).texts("name") == ["a\ufffdb 😀"]


@pytest.mark.parametrize("form", ["json", "gzip"])
def test_a_file_that_goes_away_while_it_is_read(form, seeds, tmp_path, monkeypatch):
    path = tmp_path / "t"
    path.write_bytes(seeds[form][0])
    head = reading._head

    def gone(source, limits):
        found = head(source, limits)
        source.unlink()
        return found

    monkeypatch.setattr(reading, "_head", gone)
    with pytest.raises(GpuscopeError, match="could not be read to its end: No such file"):
        gs.load_trace(path)


# -- memory ------------------------------------------------------------------------------------
MOST_ROWS = 50_000
LOADED = """
import resource, sys
import gpuscope as gs
from gpuscope.formats import Limits
from gpuscope.trace import Trace

def of(what):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(what))

def load():
    try:
        return str(len(gs.load_trace(sys.argv[1], limits=Limits(rows=int(sys.argv[2])))))
    except gs.errors.GpuscopeError as error:
        return str(error)

trace = Trace.from_columns({"id": [1], "kind": ["kernel"], "name": ["k"], "start_ns": [1],
                               "end_ns": [2], "source": ["cupti"]})
gs.load_trace(gs.export(trace, sys.argv[3]))
before = of("VmHWM")
if len(sys.argv) > 4:
    room = (of("VmSize") << 10) + int(sys.argv[4])
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
said = load()
print(of("VmHWM") - before, said)
"""


def loaded(path, *more):
    """Load a file in a process of its own; return how many kB that took, and what it said."""
    small = path.with_name("small" + "".join(path.suffixes))
    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(path), str(MOST_ROWS), str(small), *more],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr[-500:])
    kb, _, said = done.stdout.partition(" ")
    return int(kb), said.strip()


def own_parquet(path, count, **columns):
    told = {name: pa.nulls(count, kind) for name, kind in schema.SPAN_TYPES.items()}
    numbers = pa.array(np.arange(count, dtype=np.int64))
    word = pa.array(["kernel"] * count)
    told |= {"id": numbers, "start_ns": numbers, "kind": word, "name": word, "source": word}
    table = pa.table({**told, **columns})
    facts = {b"gpuscope.schema_version": b"2", b"gpuscope.metadata": b"{}"}
    pq.write_table(table.replace_schema_metadata(facts), path, compression="zstd")


def bombs(folder):
    """Yield what a file of some kind holds, and the file."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 30_000, pa.int32()), ["x" * 100_000])
    own_parquet(folder / "text.parquet", 30_000, name=text)
    yield "a text of 100 kB in each of 30,000 rows", folder / "text.parquet"
    (folder / "events.json").write_text(
        '{"traceEvents": [' + '{"ph":"X"},' * (4 * MOST_ROWS - 1) + '{"ph":"X"}]}'
    )
    yield "four times the rows without arguments", folder / "events.json"
    with gzip.open(folder / "events.json.gz", "wb") as file:
        file.write(b'{"traceEvents": [' + b'{"ph":"X"},' * 3_000_000 + b"{}]}")
    yield "three million events", folder / "events.json.gz"
    keys = ",".join(f'"k{number}":1' for number in range(800_000))
    (folder / "keys.json").write_text('{"traceEvents": [], ' + keys + "}")
    yield "800,000 names beside the events", folder / "keys.json"
    lists = ",".join(["[]"] * 60)
    event = '{"ph":"X","cat":"kernel","ts":1,"args":{"stream":[' + lists + "]}}"
    (folder / "lists.json").write_text("[" + ",".join([event] * MOST_ROWS) + "]")
    yield "lists where numbers are due", folder / "lists.json"
    strings = [{"id": number, "value": "x" * 900_000} for number in range(8)]
    rows = [{"start": n, "end": n + 1, "eventType": 59, "textId": n % 8, "globalTid": 1}
            for n in range(20_000)]  # fmt: skip
    tables = {"StringIds": strings, NVTX: rows}
    yield "a text of 900 kB in each of 20,000 rows", nsight.build(folder / "t.sqlite", tables)
    for places in (MOST_ROWS, 12_000):  # more than are let in, and nearly as many as are
        rows = [{"start": n, "end": n + 1, "deviceId": 0, "contextId": n % places,
                 "greenContextId": n % places + 2, "streamId": n % places, "globalPid": 1 << 24,
                 **dict.fromkeys(("gridY", "gridZ", "blockX", "blockY", "blockZ"), 1),
                 "gridX": n} for n in range(MOST_ROWS)]  # fmt: skip
        path = nsight.build(folder / f"{places}.sqlite", {KERNEL: rows})
        yield f"{places} streams, partitions and contexts, a grid for each kernel", path
        event = '{"ph":"X","cat":"kernel","ts":1,"tid":%d,"name":"k","args":{"device":%d}}'
        path = folder / f"{places}.json"
        path.write_text("[" + ",".join(event % (n % places, n % 9) for n in range(MOST_ROWS)) + "]")
        yield f"{places} streams of 9 devices", path
    event = '{"ph":"X","cat":"kernel","ts":1,"name":"k","args":{%s}}'
    names = (",".join(f'"argument {n} {m}":1' for m in range(5)) for n in range(MOST_ROWS))
    (folder / "names.json").write_text("[" + ",".join(event % one for one in names) + "]")
    yield "five new names of arguments in each event", folder / "names.json"
    event = (
        '{"ph":"X","cat":"kernel","ts":%d,"dur":1,"pid":0,"tid":7,"name":"kernel %d","args":'
        '{"device":0,"stream":7,"correlation":%d,"grid":[%d,1,1],"block":[128,1,1],'
        '"registers per thread":32,"shared memory":0,"External id":%d}}'
    )
    events = (event % (n, n, n, n, n) for n in range(MOST_ROWS))
    (folder / "kineto.json").write_text("[" + ",".join(events) + "]")
    yield "a name and a grid of its own in each event", folder / "kineto.json"


@pytest.mark.no_cover
def test_memory_while_loading_is_bounded_by_the_limits(tmp_path):
    over = {}
    for what, path in bombs(tmp_path):
        kb, said = loaded(path)
        if kb * 1024 > 8 * 200 * MOST_ROWS:
            over[what] = kb, said
    assert not over


def test_too_little_address_space_is_an_error_of_ours(tmp_path):
    path = tmp_path / "t.json"
    path.write_text("[" + ",".join(['{"ph":"X","ts":1,"dur":1,"name":"a"}'] * MOST_ROWS) + "]")
    _, said = loaded(path, str(20 << 20))
    assert "does not fit in memory" in said


# -- SQLite ------------------------------------------------------------------------------------
def written(path, *statements):
    with closing(sqlite3.connect(path)) as file:
        for statement in statements:
            file.execute(statement)
        file.commit()
    return path


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"


def test_a_view_is_never_read(tmp_path):
    path = written(tmp_path / "t.sqlite", f"CREATE VIEW {KERNEL} (start) AS {ENDLESS}",
                   f"CREATE VIEW {NVTX} AS SELECT load_extension('evil') AS start")  # fmt: skip
    started = time.process_time()
    with pytest.raises(TraceFormatError, match="no export of Nsight Systems"):
        gs.load_trace(path)
    assert time.process_time() - started < SECONDS


def test_a_column_that_is_computed_is_never_read(tmp_path):
    path = written(
        tmp_path / "t.sqlite",
        f"CREATE TABLE {KERNEL} (start INTEGER, end INTEGER, "
        "streamId AS (length(zeroblob(1000000000))) VIRTUAL, deviceId AS (abs(start)) STORED)",
        f"INSERT INTO {KERNEL} (start, end) VALUES (1, 2)",
    )
    (row,) = gs.load_trace(path).spans.to_pylist()
    assert (row["start_ns"], row["end_ns"], row["stream"]) == (1, 2, None)


def test_a_virtual_table_is_never_read(tmp_path):
    path = written(
        tmp_path / "t.sqlite", f"CREATE VIRTUAL TABLE {KERNEL} USING fts5(start, end)",
        f"CREATE TABLE {API} (start, end)",
    )  # fmt: skip
    assert len(gs.load_trace(path)) == 0


def test_the_database_can_do_nothing_but_read_plain_tables(tmp_path):
    path = written(tmp_path / "t.sqlite", f"CREATE TABLE {KERNEL} (start, end)",
                   "CREATE VIEW v AS SELECT 1")  # fmt: skip
    other = written(tmp_path / "other.sqlite", "CREATE TABLE secret (x)")
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    with opened(path, Limits()) as database:
        for statement in (
            f"ATTACH '{other}' AS other", "SELECT load_extension('evil')", "SELECT * FROM v",
            f"INSERT INTO {KERNEL} VALUES (1, 2)", f"DROP TABLE {KERNEL}", ENDLESS,
            "PRAGMA writable_schema = ON", "PRAGMA journal_mode = WAL", "VACUUM",
            f"VACUUM INTO '{tmp_path}/copy'", "CREATE TEMP TABLE t (x)", "SELECT randomblob(9)",
            "SELECT * FROM pragma_table_info('v')", "SELECT readfile('/etc/passwd')",
        ):  # fmt: skip
            with pytest.raises(sqlite3.Error):
                database._execute(statement).fetchall()
        assert database.integers(KERNEL, ("start",))["start"].tolist() == []
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert {one.name for one in tmp_path.iterdir()} == {"t.sqlite", "other.sqlite"}


def test_a_path_that_looks_like_a_uri_is_a_path(tmp_path):
    path = tmp_path / "t.sqlite?mode=rw&x=%20#y"
    written(tmp_path / "plain.sqlite", f"CREATE TABLE {KERNEL} (start, end)")
    (tmp_path / "plain.sqlite").rename(path)
    assert len(gs.load_trace(path)) == 0


def test_pages_that_are_used_over_and_over_are_noticed(tmp_path):
    """Of a tree of three levels, let every branch lead to the same leaf: rows without end."""
    path = written(
        tmp_path / "t.sqlite", "PRAGMA page_size = 512",
        f"CREATE TABLE {KERNEL} (start INTEGER, end INTEGER)",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 40000) "
        f"INSERT INTO {KERNEL} SELECT x, x FROM n",
    )  # fmt: skip
    with closing(sqlite3.connect(path)) as file:
        (root,) = file.execute("SELECT rootpage FROM sqlite_master").fetchone()
    content = bytearray(path.read_bytes())
    pages = [content[at : at + 512] for at in range(0, len(content), 512)]
    interior = [n for n, page in enumerate(pages, 1) if page[0] == 5 and n != root]
    leaf = next(n for n, page in enumerate(pages, 1) if page[0] == 13 and n > root)

    def lead(number, child):
        page = pages[number - 1]
        cells = struct.unpack(">H", page[3:5])[0]
        page[8:12] = struct.pack(">I", child)
        for cell in range(cells):
            (at,) = struct.unpack(">H", page[12 + 2 * cell : 14 + 2 * cell])
            page[at : at + 4] = struct.pack(">I", child)
        return cells + 1

    branches = lead(root, interior[0]) * lead(interior[0], leaf)
    kept = max(root, interior[0], leaf)
    pages[0][28:32] = struct.pack(">I", kept)
    path.write_bytes(b"".join(pages[:kept]))
    assert branches * 20 > path.stat().st_size / 4  # rows, more than such a file can hold
    with pytest.raises(TraceFormatError, match="more rows than a file of this size can hold"):
        gs.load_trace(path)


def test_a_query_that_takes_too_long_is_stopped(tmp_path, monkeypatch):
    path = written(
        tmp_path / "t.sqlite", f"CREATE TABLE {KERNEL} (start INTEGER, end INTEGER)",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 100000) "
        f"INSERT INTO {KERNEL} SELECT x, x FROM n",
    )  # fmt: skip
    clock = iter(range(0, 1_000_000, 1000))
    monkeypatch.setattr("gpuscope.formats.database.time.monotonic", lambda: float(next(clock)))
    with pytest.raises(TraceFormatError, match="interrupted"):
        gs.load_trace(path)


def test_texts_that_are_used_over_and_over_have_a_limit(tmp_path):
    path = nsight.build(tmp_path / "t.sqlite", {NVTX: [
        {"start": 1, "end": 2, "eventType": 59, "text": "x" * 900_000, "globalTid": nsight.tid(1)}
    ]})  # fmt: skip
    assert len(gs.load_trace(path)) == 1
    long = nsight.build(tmp_path / "l.sqlite", {NVTX: [
        {"start": 1, "end": 2, "eventType": 59, "text": "x" * 1_100_000, "globalTid": 1}
    ]})  # fmt: skip
    with pytest.raises(TraceFormatError, match="too big"):
        gs.load_trace(long)


def test_deeply_nested_ranges_take_no_time(tmp_path):
    path = tmp_path / "t.sqlite"
    many = 30_000
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE StringIds (id, value)")
        file.execute(f"CREATE TABLE {NVTX} (start, end, eventType, text, globalTid)")
        file.execute(f"CREATE TABLE {API} (start, end, globalTid)")
        file.executemany(f"INSERT INTO {NVTX} VALUES (?, ?, 59, 'r', 1)",
                         [(n, 10 * many - n) for n in range(many)])  # fmt: skip
        file.executemany(f"INSERT INTO {API} VALUES (?, ?, 1)",
                         [(10 * many - n, 10 * many) for n in range(many)])  # fmt: skip
        file.commit()
    started = time.process_time()
    assert len(gs.load_trace(path)) == 2 * many
    assert time.process_time() - started < SECONDS


# -- limits ------------------------------------------------------------------------------------
@pytest.mark.parametrize("form", ["sqlite", "json", "gzip", "parquet"])
def test_limits_hold_for_every_format(form, seeds, tmp_path):
    path = tmp_path / "t"
    path.write_bytes(seeds[form][0])
    assert len(gs.load_trace(path))
    with pytest.raises(TraceFormatError, match=r"1 is the limit.*Limits\(rows=…\)"):
        gs.load_trace(path, limits=Limits(rows=1))
    with pytest.raises(TraceFormatError, match=r"bytes of 't'.*Limits\(file_bytes=…\)"):
        gs.load_trace(path, limits=Limits(file_bytes=100))
    if form in ("json", "gzip"):
        with pytest.raises(TraceFormatError, match=r"Limits\(text_bytes=…\)"):
            gs.load_trace(path, limits=Limits(text_bytes=100))


def test_limits_are_positive():
    with pytest.raises(ValueError, match="rows is 0; a whole number from 1"):
        Limits(rows=0)


def test_a_gzip_bomb_is_stopped(tmp_path):
    path = tmp_path / "t.json.gz"
    with gzip.open(path, "wb", 6) as file:
        file.write(b'{"traceEvents": [')
        for _ in range(200):
            file.write(b" " * (1 << 20))
        file.write(b"]}")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TraceFormatError, match="unpacks to more than 200 times its size"):
        gs.load_trace(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES * 1024


@pytest.mark.parametrize(
    "text",
    [
        b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "args": ' + b"[" * 200_000,
        b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "args": ' + b'{"a":' * 200_000,
        b"[" * 200_000,
        b'{"otherData": ' + b"[" * 200_000 + b"]" * 200_000 + b', "traceEvents": []}',
        b'{"traceEvents": [{"ph": "X", "name": ' + b'["a",' * 200_000,
        b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "a", "ts": 1, "args": {"grid": '
        + b"[" * 200_000 + b"]" * 200_000 + b"}}]}",
    ],
)  # fmt: skip
def test_nesting_has_a_limit(text, tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(text)
    with pytest.raises(TraceFormatError):
        gs.load_trace(path)
    assert harmless(path) is None


@pytest.mark.parametrize(
    "number", [b"1e999999999", b"-1e99999", b"9" * 100_000, b"1e-99999", b'"1e999999999"', b"NaN",
               b"Infinity", b"0x10", b'"nan"', b"true", b"[1]"],
)  # fmt: skip
def test_numbers_of_any_size(number, tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(
        b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "a", "ts": %s, "dur": %s, "args": '
        b'{"stream": %s, "correlation": %s, "bytes": %s}}, {"ph": "C", "name": "c", "ts": 1, '
        b'"args": {"value": %s}}]}' % ((number,) * 6)
    )
    harmless(path)


def test_what_is_no_file_is_not_waited_for(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), tmp_path / ("x" * 300), "\0"):
        with pytest.raises(GpuscopeError):
            gs.load_trace(path)


# -- Parquet -----------------------------------------------------------------------------------
def rewritten(path, change):
    """Write a trace of ours with other metadata."""
    mutants.small_parquet(path)
    table = pq.read_table(path)
    facts = dict(table.schema.metadata)
    facts[b"gpuscope.metadata"] = change(facts[b"gpuscope.metadata"])
    pq.write_table(table.replace_schema_metadata(facts), path)
    return path


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("streams", {"7": "no facts"}), ("partitions", {"p": {"sm_ids": "many"}}),
        ("partitions", [1]), ("windows_ns", [[1, "x"]]), ("windows_ns", [[1]]),
        ("devices", {"cuda:0": {"index": "zero"}}), ("counts", {"a": "b"}), ("notes", "text"),
        ("time_base", "sundial"), ("simulated", "no"), ("unknown", 1), ("process_names", {"1": 2}),
        ("clocks", {"c": {"residual_ns": "x"}}), ("experiment", {"workloads": 33}),
        ("experiment", {"workloads": {"w": 1}}), ("experiment", [1]),
    ],
)  # fmt: skip
def test_metadata_of_other_types_is_refused(name, value, tmp_path):
    path = rewritten(
        tmp_path / "t.parquet", lambda text: json.dumps({**json.loads(text), name: value}).encode()
    )
    with pytest.raises(TraceFormatError, match="metadata"):
        gs.load_trace(path)


@pytest.mark.parametrize("text", [b"[" * 200_000, b'{"a":' * 100_000, b"5", b"null", b"\xff"])
def test_metadata_that_is_no_object_is_refused(text, tmp_path):
    with pytest.raises(TraceFormatError):
        gs.load_trace(rewritten(tmp_path / "t.parquet", lambda _: text))


def test_a_column_that_is_missing_is_named(tmp_path):
    path = tmp_path / "t.parquet"
    mutants.small_parquet(path)
    table = pq.read_table(path)
    for changed_table in (table.drop_columns(["host"]), table.append_column("host", table["host"])):
        pq.write_table(changed_table, path)
        with pytest.raises(TraceFormatError, match="lacks host, or has it twice"):
            gs.load_trace(path)


def test_a_column_that_unpacks_without_end_is_refused(tmp_path):
    path = tmp_path / "t.parquet"
    mutants.small_parquet(path)
    facts = pq.read_schema(path).metadata
    zeros = pa.array(np.zeros(30_000_000, np.int64))
    table = pa.table({"id": zeros}).replace_schema_metadata(facts)
    pq.write_table(table, path, compression="zstd", use_dictionary=False)
    with pytest.raises(TraceFormatError, match=r"30,000,000 rows, where 10,000,000 is the limit"):
        gs.load_trace(path)
    with pytest.raises(TraceFormatError, match="lacks parent"):
        gs.load_trace(path, limits=Limits(*[1 << 40] * 3))


# -- nothing is run ----------------------------------------------------------------------------
def test_no_reader_of_files_can_run_what_it_reads():
    package = Path(gs.__file__).parent
    writers = {"write", "rep", "values", "schema", "simple"}
    families = [path for path in package.glob("formats/*/*.py") if path.stem not in writers]
    shared = [package / "formats" / f"{name}.py" for name in ("database", "limits", "private")]
    readers = [*families, *shared, *package.glob("trace/*.py")]
    readers.append(package / "experiments" / "experiment.py")
    assert len(readers) > 10
    dangerous = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "runpy", "importlib",
                 "ctypes", "joblib", "yaml"}  # fmt: skip
    for source in readers:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", None) or "", *(one.name for one in node.names)]
                assert not {name.partition(".")[0] for name in names} & dangerous, source
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec", "compile", "__import__"}, source


def test_an_experiment_imports_nothing_by_being_opened(tmp_path, monkeypatch):
    (tmp_path / "evil_workload.py").write_text(
        f"open({str(tmp_path / 'was_here')!r}, 'w').close()\ndef work(context): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    workload = {"kind": "python:evil_workload:work", "stream": "s"}
    content = {"name": "e", "streams": {"s": {}}, "workloads": {"w": workload}}
    path = tmp_path / "e.json"
    path.write_text(json.dumps(content))
    found = gs.experiments.Experiment.from_file(path)
    repr(found)
    found.resolve()
    gs.experiments.Experiment.from_dict(found.to_dict())
    assert not (tmp_path / "was_here").exists()
    assert "evil_workload" not in sys.modules


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("e.json", '{"a":' * 100_000), ("e.json", "[" * 100_000), ("e.toml", "a=" + "[" * 100_000),
        ("e.toml", "a" + ".a" * 100_000 + "=1"), ("e.json", '{"name": ' + "9" * 100_000 + "}"),
        ("e.toml", "a=" + "9" * 100_000), ("e.toml", "a=" + "{b=" * 50_000),
        ("e.toml", "# " + "x" * 2_000_000),
    ],
)  # fmt: skip
def test_an_experiment_that_means_harm_is_refused_soon(name, text, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    started = time.process_time()
    with pytest.raises(InvalidExperiment):
        gs.experiments.Experiment.from_file(path)
    assert time.process_time() - started < SECONDS


@example(text='{"name": "e"}')
@composed
@given(text=st.one_of(st.text(max_size=60), JSON.map(json.dumps)))
def test_any_text_is_an_experiment_or_an_error_of_ours(folder, text):
    for name in ("e.json", "e.toml"):
        path = folder / name
        path.write_text(text, "utf-8", errors="replace")
        with contextlib.suppress(InvalidExperiment):
            gs.experiments.Experiment.from_file(path)
