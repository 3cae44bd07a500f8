"""Questions in SQL: tables and views say what the trace does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from escaping import escaped

import gpuscope as gs
from gpuscope.analyses import sql
from gpuscope.analysis.counters_analysis import partition_use
from gpuscope.analysis.sm_shares import shares
from gpuscope.analysis.trace_parts import trace_parts
from gpuscope.cli import main
from gpuscope.errors import InvalidArgument, MissingDependency
from gpuscope.trace import schema
from gpuscope.trace.counters import BUSY, READ
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import named as shown
from gpuscope.trace.store import save_trace
from gpuscope.workloads.spin import Spin

pytest.importorskip("duckdb")
COUNTED = Path(__file__).parents[2] / "data" / "counters_h200.parquet"
PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "sql.md").read_text("utf-8")
RECIPES = re.findall(
    r"([^\n]+)\n\n```sql\n(.*?)```", PAGE.partition("## Ten recipes")[2], re.DOTALL
)


@pytest.fixture(scope="module")
def trace():
    """Two partitions, an event between streams, host waits, escapes, a copy."""
    gpu = gs.open_device("sim:h200", quiet=True)
    with gpu.carve({"small": 16, "large": "rest"}) as parts:
        s, t = (parts[name].create_stream(name=name[0]) for name in ("small", "large"))
        big = gs.Gemm(gpu, m=1024, n=1024, k=1024, name="big")
        fills = [Spin(gpu, duration_ns=50_000, blocks=500, name=name) for name in ("one", "two")]
        tiny = gs.Gemm(gpu, m=128, n=128, k=128, name="tiny")
        page = gpu.empty_pinned(4)
        with gs.profile(gpu) as recording, parts["large"].create_stream(name="other") as other:
            for _ in range(3):
                big.execute(stream=t)
                s.wait(t.record())
                tiny.execute(stream=s)
                tiny.wait()
                t.copy(page, gpu.asarray(page))
            for fill, stream in zip(fills, (t, other), strict=True):
                fill.execute(stream=stream)
            gpu.synchronize()
    return recording.trace


def test_spans_and_edges_are_the_trace(trace):
    rows = trace.sql("SELECT * EXCLUDE (stream_name, duration_ns) FROM spans").to_arrow_table()
    assert rows.column_names == list(schema.SPAN_TYPES)
    assert rows.to_pylist() == trace.spans.to_pylist()
    assert trace.sql("FROM edges").to_arrow_table().to_pylist() == trace.edges.to_pylist()
    named = trace.sql("SELECT DISTINCT stream, stream_name FROM spans").fetchall()
    assert len(named) > 3
    streams = shown(trace)
    assert all(name == streams.stream_name(stream) for stream, name in named if stream is not None)
    lasted = trace.sql("SELECT end_ns - start_ns, duration_ns FROM spans").fetchall()
    assert all(one == two for one, two in lasted)


def test_launches_are_work_with_its_call(trace):
    work = trace.where(kind=("kernel", "memcpy", "memset", "graph", "host function"))
    rows = trace.sql("SELECT id, call, queued_ns, waited_ns, start_ns FROM launches").fetchall()
    assert sorted(row[0] for row in rows) == sorted(work.array("id").tolist())
    calls = {
        edge["to"]: edge["from"] for edge in trace.edges.to_pylist() if edge["kind"] == "launch"
    }
    spans = {row["id"]: row for row in trace.spans.to_pylist()}
    for span, call, queued_ns, waited_ns, start_ns in rows:
        assert call == calls.get(span)
        assert queued_ns == spans[span]["queued_ns"]
        assert waited_ns == start_ns - queued_ns


def test_waits_are_the_edges_that_are_no_launch(trace):
    rows = trace.sql("SELECT kind, for_id, id FROM waits").fetchall()
    edges = [
        (edge["kind"], edge["from"], edge["to"])
        for edge in trace.edges.to_pylist()
        if edge["kind"] not in ("launch", "range")
    ]
    assert sorted(rows) == sorted(edges)
    assert {"event wait", "host wait"} <= {kind for kind, *_ in rows}


def test_parts_are_those_that_explain_a_span(trace):
    known = trace_parts(trace)
    rows = trace.sql("SELECT id, part, start_ns, end_ns, cause FROM parts").fetchall()
    of_row = {}
    for span, *part in rows:
        of_row.setdefault(span, []).append(tuple(part))
    kernels = trace.where(kind="kernel").array("id").tolist()
    assert set(kernels) <= set(of_row)
    for span, parts in of_row.items():
        told = known.parts(known.rows.position(span))
        assert parts == [(each.kind, each.start_ns, each.end_ns, each.span) for each in told]


def test_findings_are_those_of_the_trace(trace):
    rows = trace.sql("SELECT rule, severity, text FROM findings").fetchall()
    findings = gs.findings(trace).findings
    assert rows == [(each.rule, each.severity, each.text) for each in findings]


@pytest.mark.parametrize(
    "query", [query for _, query in RECIPES], ids=[name for name, _ in RECIPES]
)
def test_a_recipe_answers(trace, query):
    assert [*trace.sql(query).fetchall(), *escaped().sql(query).fetchall()]


def test_there_are_ten_recipes():
    assert len(RECIPES) == 10


@pytest.mark.parametrize("view", ["launches", "waits", "samples", "parts", "findings", "shares"])
def test_the_page_lists_the_columns_of_a_view(trace, view):
    section = re.search(rf"### {view}\n(.*?)(?:\n##|\Z)", PAGE, re.DOTALL)[1]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    listed = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(listed) == sorted(trace.sql(f"FROM {view}").columns)


def test_every_view_is_tried():
    assert {*sql.VIEWS, *sql.MADE} == {
        "launches", "waits", "samples", "parts", "findings", "shares"
    }  # fmt: skip


@pytest.mark.parametrize(
    "query", ["selec", "FROM nothing", "SELECT nope FROM parts", "FROM parts, no"]
)
def test_what_is_no_query_is_refused_and_says_what_there_is(trace, query):
    tables = "spans, edges, launches, waits, samples, findings, parts, shares"
    with pytest.raises(InvalidArgument, match=tables):
        trace.sql(query)


def test_a_trace_without_rows_answers():
    empty = Trace.from_columns({})
    for table in ("spans", "edges", *sql.VIEWS, *sql.MADE):
        assert empty.sql(f"FROM {table}").columns


def test_a_view_is_made_only_where_it_is_named(trace, monkeypatch):
    made = []

    def make(of):
        made.append(of)
        return pa.table({"n": [1]})

    monkeypatch.setitem(sql.MADE, "made", make)
    trace.sql("SELECT 1").fetchall()
    assert not made
    assert trace.sql("FROM made JOIN made AS again USING (n)").fetchall() == [(1,)]
    assert made == [trace]


def test_without_duckdb_the_extra_is_named(trace, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingDependency, match=r"gpuscope\[sql\]"):
        trace.sql("FROM spans")


# What a query does


def test_a_query_that_names_a_made_view_runs_once(trace):
    """Its statements, too: the table has one row."""
    [(count,)] = trace.sql(
        "CREATE TABLE IF NOT EXISTS x (n INT); INSERT INTO x VALUES (1);"
        "SELECT count(*) FROM x WHERE (SELECT count(*) FROM findings) >= 0"
    ).fetchall()
    assert count == 1


def test_rows_are_worked_out_once(trace):
    """Asked twice, a random number is the same."""
    answer = trace.sql("SELECT random() AS x FROM spans")
    assert answer.fetchall() == answer.fetchall()


@pytest.mark.parametrize(
    "query", ["SELECT name::INT FROM spans", "SELECT id + 9223372036854775807 FROM spans"]
)
def test_what_fails_on_a_row_is_refused(trace, query):
    with pytest.raises(InvalidArgument):
        trace.sql(query)


def test_columns_of_one_name_are_told_apart(trace):
    query = "SELECT one.id, two.id, 3 AS id_1, 4 AS ID FROM spans AS one, spans AS two LIMIT 1"
    answer = trace.sql(query)
    assert answer.columns == ["id", "id_1", "id_1_1", "ID_2"]
    (row,) = sql.rows(answer)
    assert list(row.values())[2:] == [3, 4]


@pytest.mark.parametrize(
    ("query", "row"),
    [
        ("WITH findings AS (SELECT 5 AS n) FROM findings", (5,)),
        ('WITH "Spans" AS (SELECT 5 AS n) FROM spans', (5,)),
        ("SELECT 'findings' AS n", ("findings",)),
        ("SELECT 1 AS n -- FROM parts", (1,)),
        ('SELECT count(*) >= 0 AS n FROM "FINDINGS"', (True,)),
        ("SELECT count(*) >= 0 AS n FROM query_table('findings')", (True,)),
        ("SELECT 1 AS n; /* ; */ SELECT 2 AS n;", (2,)),
    ],
)
def test_names_of_views_mean_what_sql_means(trace, query, row):
    assert trace.sql(query).fetchall() == [row]


def test_show_tables_lists_those_of_the_trace(trace):
    listed = [name for (name,) in trace.sql("SHOW TABLES").fetchall()]
    assert sorted(listed) == ["edges", "launches", "samples", "spans", "waits"]


@pytest.mark.parametrize("name", ["spans", "edges", *sql.VIEWS, *sql.MADE])
def test_no_table_takes_the_place_of_one(trace, name):
    for what in ("TABLE", "OR REPLACE TABLE"):
        with pytest.raises(InvalidArgument):
            trace.sql(f"CREATE {what} {name} (n INT)")


@pytest.mark.parametrize("query", ["", "  ;; ", "-- nothing", "/* nothing */"])
def test_an_empty_query_is_refused(trace, query):
    with pytest.raises(InvalidArgument, match="empty"):
        trace.sql(query)


@pytest.mark.parametrize("query", ["SELECT '\ud800'", "SELECT 1 \0 2", "(" * 100_000, "SELECT ?"])
def test_no_text_ends_in_another_error(trace, query):
    with pytest.raises(InvalidArgument):
        trace.sql(query)


# What it may do

REFUSED = [
    "COPY (SELECT 2 AS n) TO 'there.csv'",
    "COPY (SELECT 2 AS n) TO 'new.csv'",
    "EXPLAIN ANALYZE COPY (SELECT 2 AS n) TO 'new.csv'",
    "EXPORT DATABASE 'new'",
    "IMPORT DATABASE 'old'",
    "ATTACH 'new.db'",
    "CALL enable_logging('QueryLog', storage = 'file', storage_config = {'path': 'new'})",
    "FROM read_csv('there.csv')",
    "FROM 'there.csv'",
    "FROM read_text('there.csv')",
    "FROM read_blob('there.csv')",
    "FROM sniff_csv('there.csv')",
    "FROM glob('*')",
    "CREATE MACRO look() AS TABLE FROM read_text('there.csv'); FROM look()",
    "FROM read_csv('https://127.0.0.1:1/a.csv')",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET threads = 1",
    "RESET threads",
    "SET enable_external_access = true",
    "SET lock_configuration = false",
    "SET allowed_paths = ['there.csv']",
    "SET temp_directory = 'new'",
    "PRAGMA threads = 1",
    "CREATE PERSISTENT SECRET s (TYPE s3)",
]


@pytest.mark.parametrize("query", REFUSED)
def test_a_query_has_no_files_and_no_settings(trace, tmp_path, monkeypatch, query):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.csv").write_text("n\n1\n")
    with pytest.raises(InvalidArgument, match=r"--write.*write=True"):
        trace.sql(query)
    assert [path.name for path in tmp_path.iterdir()] == ["there.csv"]
    assert (tmp_path / "there.csv").read_text() == "n\n1\n"


def test_our_variables_are_no_tables(trace):
    for name in ("tables", "trace", "connection", "text"):
        with pytest.raises(InvalidArgument, match="spans, edges"):
            trace.sql(f"FROM {name}")


def test_a_query_that_may_write_reads_and_writes(trace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trace.sql("COPY (SELECT count(*) AS n FROM findings) TO 'new.csv'", write=True)
    [(count,)] = trace.sql("FROM 'new.csv'", write=True).fetchall()
    assert count == len(gs.findings(trace).findings)
    trace.sql("SET threads = 1", write=True)


def test_memory_has_a_limit_and_nothing_spills(trace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sql._OWN, "memory_limit", "50MB")
    with pytest.raises(InvalidArgument, match="memory"):
        trace.sql("SELECT range AS n, hash(range) AS h FROM range(1000000000)")
    assert not list(tmp_path.iterdir())


def test_an_interrupt_ends_a_query_without_end(trace, tmp_path):
    """Of a process of its own, whose main thread takes the signal."""
    program = """if True:
        import os, signal, sys, threading
        import gpuscope as gs
        from gpuscope.analyses import sql
        # Who starts a program in the background may have it ignore Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run = sql._interruptibly
        def begun(run_query, interrupt):
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            return run(run_query, interrupt)
        sql._interruptibly = begun
        trace = gs.load_trace(sys.argv[1])
        endless = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) FROM t"
        try:
            trace.sql(f"SELECT count(*) FROM ({endless})")
        except KeyboardInterrupt:
            print("interrupted")
    """
    ended = subprocess.run(
        [sys.executable, "-c", program, gs.export(trace, tmp_path / "a.parquet")],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert ended.stdout.strip() == "interrupted"


# The command


@pytest.fixture
def run(trace, tmp_path, monkeypatch, capsys):
    path = tmp_path / "a.parquet"
    save_trace(trace, path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["gpuscope", "sql", str(path), *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capsys.readouterr()

    return run


def strictly(text):
    """Read JSON, in which NaN is none."""

    def refuse(name):
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse)


def test_the_command_prints_rows_and_json(run):
    query = "SELECT name, count(*)::DECIMAL AS n FROM launches WHERE kind = 'kernel' GROUP BY ALL"
    status, written = run(query)
    assert not status
    assert "spin" in written.out
    status, written = run(query, "--json")
    assert '"n": "3.000"' in written.out


def test_json_has_what_json_holds(run):
    status, written = run(
        "SELECT 'nan'::DOUBLE AS a, ['inf'::FLOAT, 1] AS b, {'c': '-inf'::DOUBLE} AS d, "
        "DATE '2020-01-02' AS e, MAP {DATE '2020-01-02': 1} AS f, 2::HUGEINT AS g, "
        "1.50::DECIMAL(4, 2) AS h, 1 AS a, 'infinity'::DATE AS i, DATE '5877642-06-25 (BC)' AS j",
        "--json",
    )
    assert not status
    assert strictly(written.out) == [
        {
            "a": None,
            "b": [None, 1],
            "d": {"c": None},
            "e": "2020-01-02",
            "f": {"2020-01-02": 1},
            "g": 2,
            "h": "1.50",
            "a_1": 1,
            "i": "9999-12-31",
            "j": "5877642-06-25 (BC)",
        }
    ]


def test_what_python_lacks_is_refused(run):
    status, written = run("SELECT INTERVAL '100000000 years'", "--json")
    assert status
    assert "VARCHAR" in written.err
    assert "Traceback" not in written.err


def test_a_screen_takes_as_many_rows_as_it_says(run, monkeypatch):
    """An answer of 10 trillion rows is not worked out for it."""
    asked = []
    rows = sql.rows

    def count(answer):
        asked.append(answer.shape[0])
        return rows(answer)

    monkeypatch.setattr(sql, "rows", count)
    status, written = run("SELECT range + 1 AS n FROM range(10000000000000)")
    assert not status
    assert asked == [10_001]
    assert "more than 10,000 rows" in written.out


def test_only_with_write_the_command_reads_files(run, tmp_path):
    (tmp_path / "b.csv").write_text("n\n17\n")
    query = f"FROM read_csv('{tmp_path / 'b.csv'}')"
    status, written = run(query)
    assert status
    assert "--write" in written.err
    status, written = run(query, "--write", "--json")
    assert strictly(written.out) == [{"n": 17}]


def test_samples_and_shares_are_those_of_the_analysis():
    trace = gs.load_trace(COUNTED)
    (divided,) = shares(trace)
    samples = divided.samples
    rows = trace.sql("SELECT start_ns, busy_sms, read_gb_per_s, moved_gb_per_s FROM samples")
    first, *others = rows.fetchall()
    assert 1 + len(others) == len(samples)
    assert first == (samples.starts[0], samples.values[BUSY][0], samples.values[READ][0], None)
    query = """
        SELECT partition, any_value(granted), sum(ran * (end_ns - start_ns)),
            sum(busy_sms * (end_ns - start_ns)) / sum(ran * (end_ns - start_ns))
                FILTER (busy_sms IS NOT NULL)
        FROM shares GROUP BY partition"""
    told = {name: values for name, *values in trace.sql(query).fetchall()}
    for use in partition_use(trace).partitions:
        granted, ran_ns, busy = told.pop(use.partition)
        assert (granted, ran_ns) == (use.granted, pytest.approx(use.ran_ns))
        assert busy == pytest.approx(use.busy)
    assert told == {}


def test_without_samples_there_are_no_shares(trace):
    assert trace.sql("SELECT count(*) FROM shares").fetchall() == [(0,)]
    assert trace.sql("SELECT count(*) FROM samples").fetchall() == [(0,)]
