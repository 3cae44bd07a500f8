"""Analyses are declared once: of gpuscope itself and of plugins, which may be broken."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from report_pages import figures_of, without_plotly

import gpuscope as gs
from gpuscope import analyses, cli
from gpuscope.analyses import Analysis, builtin
from gpuscope.errors import InvalidArgument, MissingEvidence
from gpuscope.report import html_report, trace_report
from gpuscope.trace.model import Trace
from gpuscope.trace.store import read_parquet
from gpuscope.widgets import results

BROKEN = """
from gpuscope.analyses import Analysis
from gpuscope.analysis import summary
from gpuscope.errors import MissingEvidence
def fail(*_): raise RuntimeError("no luck")
def lacking(trace): raise MissingEvidence("no such rows")
def declare(**fields):
    return Analysis(**{"name": "odd", "title": "Odd", "judge": summary, **fields})
"""


@pytest.fixture
def odd(other_package):
    """Make a package visible that declares ``ODD`` by this expression; or names it otherwise."""

    def declare(expression: str, *, entry: str = 'odd = "odd_analysis:ODD"') -> None:
        text = f"{BROKEN}\nODD = {expression}"
        other_package("odd", "gpuscope.analyses", entry, "odd_analysis", text)

    return declare


@pytest.fixture(scope="module")
def run():
    """Two workloads, one of which has unequal kernels."""
    workloads = {
        "even": {"kind": "spin", "duration_us": 20, "stream": "a", "repeats": 4},
        "load": {"kind": "spin", "duration_us": 90, "stream": "b", "background": True},
    }
    plan = {"name": "two", "alone_repeats": 0, "streams": {"a": {}, "b": {}}}
    return gs.run(plan | {"workloads": workloads}, gs.open_device("sim:h200", quiet=True))


def unequal() -> Trace:
    return Trace.from_columns({
        "id": [1, 2], "kind": ["kernel", "kernel"], "name": ["k", "k"], "stream": [7, 7],
        "start_ns": [0, 200], "end_ns": [100, 600], "source": ["cupti", "cupti"],
    })  # fmt: skip


@pytest.fixture
def summary(monkeypatch, capsys, tmp_path):
    """Print the summary of a trace; returns stdout, stderr."""

    def call(trace, *options, status=0):
        path = gs.export(trace, tmp_path / "trace.parquet")
        monkeypatch.setattr(sys, "argv", ["gpuscope", "summary", str(path), *options])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert (ended.value.code or 0) == status
        return capsys.readouterr()

    return call


# -- the declarations ---------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "a b"}, "name"),
        ({"name": None}, "name"),
        ({"title": ""}, "title"),
        ({"judge": None}, "judge"),
        ({"figures": "latency"}, "figures"),
        ({"findings": 1}, "findings"),
        ({"card": "x"}, "card"),
    ],
)
def test_a_declaration_is_checked(fields, words):
    with pytest.raises(InvalidArgument, match=words):
        Analysis(**{"name": "x", "title": "X", "judge": gs.analysis.summary, **fields})


def test_each_section_of_a_report_and_each_table_of_the_summary_is_a_declaration(
    run, summary, tmp_path
):
    trace = run["default"]
    body = trace_report(trace, tmp_path / "t.html").read_text("utf-8")
    tables = json.loads(summary(trace, "--json").out)
    for known in builtin.BUILT_IN:
        has_result = not isinstance(known.ask(trace), str)
        assert (f"<h2>{known.title}</h2>" in body) == has_result, known.name
        assert (known.name in tables) == has_result, known.name
    assert {"streams", "overlap", "latency", "queues", "gaps"} <= tables.keys()


def test_who_only_asks_for_rows_loads_no_plotly():
    code = (
        "import sys; from gpuscope.analyses import findings, known_analyses;"
        "from gpuscope.trace import Trace; t = Trace.from_columns({});"
        "findings(t); [known.ask(t) for known in known_analyses()];"
        "sys.exit('plotly' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_most_traces_lack_is_passed_over_and_else_the_reason_is_said():
    def judge(trace):
        raise MissingEvidence("no such rows")

    assert Analysis("a", "A", judge).ask(unequal()) == "no such rows"
    assert Analysis("a", "A", judge, needs="rows").ask(unequal()) == ""


# -- an analysis of another package -------------------------------------------------------
def test_a_plugins_analysis_is_in_reports_the_summary_findings_and_cards(
    plugin, run, summary, tmp_path
):
    page = trace_report(unequal(), tmp_path / "t.html").read_text("utf-8")
    section = without_plotly(page).partition("<h2>How unequal kernels are</h2>")[2]
    assert "<td>4</td>" in section.partition("</table>")[0]
    assert figures_of(page)["spread-0"]["data"][0]["y"] == [4.0]
    rows = json.loads(summary(unequal(), "--json").out)["spread"]
    assert [(row["workload"], row["longest / shortest"]) for row in rows] == [("k", 4.0)]
    (finding,) = (f for f in gs.telling.findings(unequal()).findings if f.rule == "spread")
    assert (finding.subject, finding["ratio"].value) == ({"workload": "k"}, 4.0)
    whole = html_report(run, tmp_path / "r.html").read_text("utf-8")
    assert "<h2>How unequal kernels are</h2>" in whole
    title, shown = results.summarise(run).cards[-1]
    assert title == "How unequal kernels are"
    assert {finding.subject["workload"] for finding in shown} == {"even", "load"}
    assert title in results.sections(results.summarise(run), {})
    assert not analyses.problems()


def test_a_trace_recorded_with_the_plugin_opens_without_it(plugin, run, tmp_path):
    path = gs.export(run["default"], tmp_path / "t.parquet")
    sys.path[:] = [entry for entry in sys.path if "plugins" not in entry]
    analyses.forget_plugins()
    again = read_parquet(path)
    assert "spread" not in {known.name for known in analyses.known_analyses()}
    assert trace_report(again, tmp_path / "t.html").exists()


# -- broken ones --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("undefined", "NameError"),
        ("3", "not a gpuscope.analyses.Analysis"),
        ("declare(name='latency')", "it calls itself 'latency'"),
        ("declare(judge=3)", "InvalidArgument: judge"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_named_and_the_rest_goes_on(
    odd, summary, tmp_path, expression, words
):
    odd(expression)
    (problem,) = analyses.problems()
    assert "the analysis 'odd' of the package 'odd-package'" in problem
    assert words in problem
    printed = summary(unequal(), status=cli.FAILED)
    assert "odd-package" in printed.err
    assert "What the GPU waited for" in printed.out
    body = trace_report(unequal(), tmp_path / "t.html").read_text("utf-8")
    assert "odd-package" in body
    assert "<h2>Partitions and streams</h2>" in body


@pytest.mark.parametrize(
    "fields", ["judge=fail", "judge=lambda trace: 3", "figures=fail", "findings=fail", "card=fail"]
)
def test_a_plugin_that_fails_is_named_and_the_rest_goes_on(odd, run, tmp_path, fields):
    odd(f"declare({fields})")
    body = trace_report(unequal(), tmp_path / "t.html").read_text("utf-8")
    assert "<h2>Partitions and streams</h2>" in body
    if fields != "card=fail":
        assert "the analysis &#x27;odd&#x27; of the package &#x27;odd-package&#x27;" in body
    cards = dict(results.summarise(run).cards)
    assert fields != "card=fail" or [finding.rule for finding in cards["Odd"]] == ["plugin"]
    found = {finding.rule for finding in gs.telling.findings(unequal()).findings}
    assert "program.idle" in found
    assert ("plugin" in found) == (fields == "findings=fail")


def test_evidence_that_a_plugin_misses_is_no_failure(odd):
    odd("declare(judge=lacking)")
    assert analyses.known_analyses()[-1].ask(unequal()) == "no such rows"
