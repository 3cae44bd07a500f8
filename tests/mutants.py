"""Damaged trace files, each told by a format, a seed and a number."""

# ruff: noqa: S608 - the tables' names are ours
from __future__ import annotations

import copy
import gzip
import io
import json
import random
import sqlite3
from contextlib import closing

import nsight_files as nsight
import proton_files as proton
import pyarrow as pa
import pyarrow.parquet as pq

import gpuscope as gs
from gpuscope.trace import Trace, schema
from gpuscope.trace.metadata import TraceMetadata

FORMATS = ("parquet", "json", "gzip", "sqlite")
INTERESTING = (b"\x00", b"\xff", b"\x7f\xff\xff\xff", b"\xff" * 8, b"{", b"[" * 50, b'"', b"-1",
               b"1e999", b"null", b"9" * 40, b"\\u0000", b"\xc3\x28", b",", b"NaN")  # fmt: skip
EDITS = ("set", "insert", "drop", "copy", "cut")
CELLS = (None, 0, 1, -1, 2, 3, 7, 31, 33, 59, 75, 458, 1 << 15, 1 << 31, 1 << 32, 1 << 61,
         (1 << 62) - 1, (1 << 63) - 1, -(1 << 63), 1.5, -0.0, 1e300, float("inf"), "", "x", "k",
         "9" * 30, "\0", "k" * 300, "<b>&", "\x1b[2J", "é\u202e", "counter", "block", "handle",
         "graph", "mark", "wait", "range", "kernel", '{"a": 1}', b"\xff\xfe", b"")  # fmt: skip
VALUES = (*(one for one in CELLS if not isinstance(one, bytes)), True, False, [], {}, [1], [[1]],
          {"a": 1}, {"name": "n"}, {"0": {}}, {"7": {"name": None}}, [None, "x"])  # fmt: skip


# -- whole files -------------------------------------------------------------------------------
def small_report(path):
    """Write some rows of every table of a genuine capture, with its own schema."""
    source = nsight.capture("graph_nodes", path.parent)
    with closing(sqlite3.connect(source)) as file, closing(sqlite3.connect(path)) as target:
        target.execute("PRAGMA page_size = 512")
        for name, sql in file.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"):
            target.execute(sql)
            most = 400 if name == "StringIds" else 8
            found = file.execute(f'SELECT * FROM "{name}" ORDER BY rowid DESC LIMIT {most}')
            places = ", ".join("?" * len(found.description))
            target.executemany(f'INSERT INTO "{name}" VALUES ({places})', found.fetchall())
        target.commit()
        target.execute("VACUUM")
    return path.read_bytes()


def small_json():
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4, "tid": 5,
            "ts": 10.5, "dur": 2, "args": {"correlation": 3, "External id": 1}}  # fmt: skip
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 14.25, "dur": 3,
              "args": {"device": 0, "stream": 7, "correlation": 3, "grid": [1, 2, 3],
                       "block": [4, 5, 6], "registers per thread": 8, "shared memory": 9,
                       "graph id": 2, "graph node id": 8589934592}}  # fmt: skip
    rest = [
        {"ph": "M", "name": "process_name", "pid": 4, "args": {"name": "python"}},
        {"ph": "B", "name": "b", "pid": 4, "tid": 5, "ts": 1},
        {"ph": "E", "pid": 4, "tid": 5, "ts": 20},
        {"ph": "b", "cat": "a", "id": 1, "name": "n", "pid": 4, "tid": 5, "ts": 2},
        {"ph": "e", "cat": "a", "id": 1, "pid": 4, "tid": 5, "ts": 3},
        {"ph": "i", "name": "m", "pid": 4, "tid": 5, "ts": 4, "args": {"x": [1]}},
        {"ph": "C", "name": "c", "pid": 4, "ts": 5, "args": {"value": 2.5}},
        {"ph": "s", "cat": "event wait", "id": 9, "pid": 4, "tid": 5, "ts": 2},
        {"ph": "f", "cat": "event wait", "id": 9, "pid": 0, "tid": 7, "ts": 15, "bp": "e"},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "pid": 0,
         "tid": 7, "ts": 30, "dur": 1, "args": {"bytes": 5, "stream": 7}},
        {"ph": "X", "cat": "cuda_sync", "name": "Event Sync", "pid": 0, "tid": 7, "ts": 40,
         "dur": 1, "args": {"stream": -1, "correlation": 9, "wait_on_stream": 7, "device": 0,
                            "wait_on_cuda_event_record_corr_id": 8}},
    ]  # fmt: skip
    return {
        "baseTimeNanoseconds": 1_795_257_927_753_519_961,
        "deviceProperties": [{"id": 0, "name": "GPU", "numSms": 132}],
        "traceEvents": [call, kernel, *rest],
    }


def small_proton():
    links = [((0, 150), (1, 160), "handed"), ((0, 120), (0, 130), "copied")]
    block = proton.Block(3, 1, 2_000, 2_900, [(0, "s", 100, 900), (1, "t", 120, 800)], links=links)
    return proton.chrome_trace(
        [proton.persistent(sms=[0, 1], tiles=2), ("k", [block])], version="3.9"
    )


def own_json():
    """Return a trace as gpuscope writes it."""
    facts = json.loads(TraceMetadata(notes=("n",)).to_json())
    events = [
        {"ph": "M", "name": "process_name", "pid": 4, "tid": 0, "args": {"name": "python"}},
        {"ph": "X", "cat": "cuda_runtime", "pid": 4, "tid": 5, "name": "launch", "ts": 1.001,
         "dur": 2.0, "args": {"id": 1, "target_stream": 7, "source": "host"}},
        {"ph": "s", "cat": "ac2g", "name": "launch", "pid": 4, "tid": 5, "ts": 1.001, "id": 0,
         "args": {"from": 1, "to": 2}},
        {"ph": "X", "cat": "kernel", "pid": 1, "tid": 7, "name": "k", "ts": 4.0, "dur": 1.5,
         "args": {"id": 2, "stream": 7, "device": 0, "queued_ns": 5, "bytes": 3,
                  "launch_config": {"grid": [1, 1, 1]}, "payload": [1]}},
        {"ph": "C", "cat": "counter", "pid": 1, "tid": 1, "name": "c", "ts": 2, "args":
         {"value": 1.5}},
        {"ph": "i", "s": "t", "cat": "mark", "pid": 4, "tid": 5, "name": "m", "ts": 3, "args":
         {"id": 4}},
    ]  # fmt: skip
    other = {"writer": "gpuscope 0.1.0", "schema_version": 1, "metadata": facts}
    return {"baseTimeNanoseconds": 1000, "otherData": other, "traceEvents": events}


def small_parquet(path):
    trace = Trace.from_columns(
        {"id": [1, 2, 3], "kind": ["kernel", "api", "range"], "name": ["k", "c", "r"],
         "start_ns": [1, 2, 3], "end_ns": [5, 6, None], "source": ["cupti"] * 3,
         "stream": [7, None, None], "partition": ["p", None, None]},
        {"from": [2], "to": [1], "kind": ["launch"]},
        TraceMetadata(partitions={"p": {"sm_ids": [0, 1]}}, streams={"7": {"name": "s"}}),
    )  # fmt: skip
    gs.export(trace, path)
    return path.read_bytes()


def recorded():
    """Return a trace of two partitions, with guards, waits and ranges, as the simulator has it."""
    gpu = gs.open_device("sim:h200", quiet=True)
    experiment = {
        "name": "e", "alone_repeats": 0, "partitions": {"small": 16, "load": "rest"},
        "streams": {"a": {"partition": "small"}, "b": {"partition": "load"}},
        "workloads": {
            "small": {"kind": "gemm", "m": 64, "n": 64, "k": 64, "stream": "a", "repeats": 3},
            "load": {"kind": "spin", "duration_us": 5, "stream": "b", "repeats": 2},
        },
    }  # fmt: skip
    (trace,) = gs.run(experiment, gpu).values()
    return trace


def whole(folder):
    """Return format → whole files: others' and ours."""
    trace = recorded()
    own = {}
    for suffix in (".parquet", ".json", ".sqlite"):
        path = gs.export(trace, folder / f"recorded{suffix}")
        if suffix == ".sqlite":
            with closing(sqlite3.connect(path)) as file:
                file.executescript("PRAGMA page_size = 512; VACUUM")
        own[suffix] = path.read_bytes()
    texts = [
        json.dumps(one, indent=1).encode() for one in (small_json(), own_json(), small_proton())
    ]
    return {
        "sqlite": [small_report(folder / "small.sqlite"), own[".sqlite"]],
        "json": [*texts, own[".json"]],
        "gzip": [gzip.compress(one, mtime=0) for one in (*texts, own[".json"])],
        "parquet": [small_parquet(folder / "t.parquet"), own[".parquet"]],
    }


# -- damage ------------------------------------------------------------------------------------
def changed(content, wanted):
    """Apply edits at places that are fractions of the whole."""
    found = bytearray(content)
    for place, how, some in wanted:
        at = place * max(len(found), 1) >> 20
        if how == "set":
            found[at : at + len(some)] = some
        elif how == "insert":
            found[at:at] = some
        elif how == "drop":
            del found[at : at + some[0]]
        elif how == "copy":
            found[at:at] = found[at // 2 : at // 2 + 4 * some[0]]
        else:
            del found[at:]
    return bytes(found)


def mutant(form, files, seed, number):
    """Return the content of a damaged file; the same for the same numbers."""
    chance = random.Random(f"{form} {seed} {number}")  # noqa: S311 - no secret
    content = chance.choice(files)
    if form == "gzip" and chance.random() < 0.9:  # else its checksum refuses nearly all
        return gzip.compress(mutant("json", [gzip.decompress(content)], seed, number), 1)
    if chance.random() < 0.4:
        return changed(content, [_edit(chance) for _ in range(chance.randint(1, 4))])
    damage = {"sqlite": _report, "parquet": _table, "json": _text}.get(form)
    return content if damage is None else damage(chance, content)


def _edit(chance):
    some = chance.choice(INTERESTING) if chance.random() < 0.5 else chance.randbytes(
        chance.randint(1, 8))  # fmt: skip
    return chance.randrange(1 << 20), chance.choices(EDITS, (8, 4, 4, 4, 1))[0], some


def _text(chance, content):
    facts = json.loads(content)
    for _ in range(chance.randint(1, 4)):
        _damage(chance, facts)
    return json.dumps(facts).encode()


def _damage(chance, facts):
    """Change, remove or add one value somewhere in what JSON holds."""
    inside = facts
    while True:
        keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        if not keys:
            return
        key = chance.choice(keys)
        if not isinstance(inside[key], dict | list) or not inside[key] or chance.random() < 0.05:
            break
        inside = inside[key]
    how = chance.random()
    if how < 0.15:
        del inside[key]
    elif how < 0.3:
        if isinstance(inside, list):
            inside.append(copy.deepcopy(inside[key]))
        else:
            inside[chance.choice(keys)] = copy.deepcopy(inside[key])
    else:
        inside[key] = copy.deepcopy(chance.choice(VALUES))


def _report(chance, content):
    """Change cells, or drop rows or a table, of a database."""
    with closing(sqlite3.connect(":memory:")) as file:
        file.deserialize(content)
        file.execute("PRAGMA ignore_check_constraints = ON")
        tables = [name for (name,) in file.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
        ) if not name.startswith(("ENUM_NSYS", "sqlite_"))]  # fmt: skip
        for _ in range(chance.randint(1, 4)):
            table = chance.choice(tables)
            columns = [row[1] for row in file.execute(f'PRAGMA table_info("{table}")')]
            if not columns:
                continue
            column, how = chance.choice(columns), chance.random()
            one = f'rowid = (SELECT rowid FROM "{table}" LIMIT 1 OFFSET {chance.randrange(8)})'
            where = "" if how < 0.3 else f" WHERE {one}"
            try:
                if how > 0.95:
                    file.execute(f'DELETE FROM "{table}"{where}')
                else:
                    cell = chance.choice(CELLS)
                    sql = f'UPDATE OR REPLACE "{table}" SET "{column}" = ?{where}'
                    file.execute(sql, (cell,))
            except sqlite3.Error:  # a constraint of the table's own, or no row numbers
                continue
        file.commit()
        return file.serialize()


def _table(chance, content):
    """Change cells or metadata of a Parquet file."""
    table = pq.read_table(io.BytesIO(content), use_pandas_metadata=False)
    facts = dict(table.schema.metadata)
    for _ in range(chance.randint(1, 4)):
        if chance.random() < 0.25:
            told = json.loads(facts[b"gpuscope.metadata"])
            _damage(chance, told)
            facts[b"gpuscope.metadata"] = json.dumps(told).encode()
            continue
        name = chance.choice(table.column_names)
        values = table.column(name).to_pylist()
        places = range(len(values)) if chance.random() < 0.3 else [chance.randrange(len(values))]
        cell = chance.choice(CELLS)
        for place in places:
            values[place] = cell
        try:
            column = pa.array(values, schema.SPAN_TYPES[name])
        except (pa.ArrowException, OverflowError, UnicodeError, TypeError):
            continue
        table = table.set_column(table.schema.get_field_index(name), name, column)
    packed = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(facts), packed)
    return packed.getvalue()
