"""Questions in SQL: tables and views say what the trace does."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import gpuscope as gs
from gpuscope.analyses import sql
from gpuscope.analysis.trace_parts import trace_parts
from gpuscope.cli import main
from gpuscope.errors import InvalidArgument, MissingDependency
from gpuscope.trace import schema
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import named as shown
from gpuscope.trace.store import save_trace
from gpuscope.workloads.spin import Spin

pytest.importorskip("duckdb")
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
    escaped = gs.learn.case("A").trace
    assert [*trace.sql(query).fetchall(), *escaped.sql(query).fetchall()]


def test_there_are_ten_recipes():
    assert len(RECIPES) == 10


@pytest.mark.parametrize("view", ["launches", "waits", "parts", "findings"])
def test_the_page_lists_the_columns_of_a_view(trace, view):
    section = re.search(rf"### {view}\n(.*?)(?:\n##|\Z)", PAGE, re.DOTALL)[1]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    listed = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(listed) == sorted(trace.sql(f"FROM {view}").columns)


def test_every_view_is_tried():
    assert {*sql.VIEWS, *sql.MADE} == {"launches", "waits", "parts", "findings"}


@pytest.mark.parametrize(
    "query", ["selec", "FROM nothing", "SELECT nope FROM parts", "FROM parts, no"]
)
def test_what_is_no_query_is_refused_and_says_what_there_is(trace, query):
    with pytest.raises(InvalidArgument, match="spans, edges, launches, waits, findings, parts"):
        trace.sql(query)


def test_a_trace_without_rows_answers():
    empty = Trace.from_columns({})
    for table in ("spans", "edges", "launches", "waits", "parts", "findings"):
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


def test_the_command_prints_rows_and_json(trace, tmp_path, monkeypatch, capsys):
    path = tmp_path / "a.parquet"
    save_trace(trace, path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["gpuscope", "sql", str(path), *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capsys.readouterr()

    query = "SELECT name, count(*)::DECIMAL AS n FROM launches WHERE kind = 'kernel' GROUP BY ALL"
    status, written = run(query)
    assert not status
    assert "spin" in written.out
    status, written = run(query, "--json")
    assert '"n": "3.000"' in written.out
