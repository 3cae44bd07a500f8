"""Results as tables: they fit the terminal, no number is broken, and the notebook's are narrow."""

from __future__ import annotations

import re

import pytest

import gpuscope as gs
from gpuscope import analysis
from gpuscope._tables import html_table, text_table
from gpuscope._text import format_value

PLAN = {
    "name": "two", "alone_repeats": 2,
    "streams": {"s": {}, "l": {}},
    "workloads": {
        "small": {"kind": "gemm", "m": 64, "n": 64, "k": 64, "stream": "s", "repeats": 5},
        "load": {"kind": "gemm", "m": 512, "n": 512, "k": 512, "stream": "l",
                 "background": True, "max_queued": 4},
    },
    "settings": {
        "shared by both": {},
        "16 | rest": {
            "partitions": {"a": 16, "b": "rest"},
            "streams": {"s": {"partition": "a"}, "l": {"partition": "b"}},
        },
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def run():
    return gs.run(PLAN, gs.open_device("sim:h200", quiet=True))


ROWS = [
    {"name": "a kernel of a name that is long enough to wrap", "n": 1234567, "time (µs)": 12.34567},
    {"name": "b", "n": None, "time (µs)": 98765.4},
]


@pytest.mark.parametrize("width", [30, 40, 80, 120])
def test_a_table_fits_the_terminal_and_keeps_numbers_whole(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    text = text_table(list(ROWS[0]), ROWS)
    assert max(map(len, text.splitlines())) <= width
    for number in ("1,234,567", "12.35", "98,765", "–"):
        assert number in text
    assert " ".join(re.sub("[^a-z ]", " ", text).split()).count("kernel") == 1


def test_where_a_line_each_does_not_fit_each_row_is_a_block(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    rows = [{f"column {number}": 10**6 + number for number in range(9)}]
    lines = text_table(list(rows[0]), rows).splitlines()
    assert [line.split("  ")[0] for line in lines] == list(rows[0])
    assert lines[3].endswith("1,000,003")


@pytest.mark.parametrize("width", [1, 5, 20])
def test_a_terminal_may_be_absurdly_narrow(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    text = text_table([*ROWS[0], ""], [{**row, "": ""} for row in ROWS], ["a note"])
    assert "1,234,567" in text
    assert text.endswith("a note")


def test_foreign_text_does_not_reach_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    rows = [{"na\x1b[31mme": "\x1b[2Jevil\u202e[bold]x[/bold]", "n": 1}]
    text = text_table(list(rows[0]), rows, ["\x07note"])
    assert not re.search("[\x00-\x08\x1b\u202e]", text)
    assert "[bold]x[/bold]" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.5, "0.5"), (1045.03, "1,045"), (123456.7, "123,457"), (12345, "12,345"),
     (True, "True"), (1e-7, "1e-07"), ("x", "x"), (float("inf"), "inf")],
)  # fmt: skip
def test_values_are_written_for_people(value, text):
    assert format_value(value) == text


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    "name", ["summary", "overlap", "latency", "gaps", "confinement", "concurrency"]
)
def test_print_of_a_result_is_a_table(run, monkeypatch, name, width):
    monkeypatch.setenv("COLUMNS", str(width))
    result = getattr(analysis, name)(run["16 | rest"])
    text = str(result)
    assert max(map(len, text.splitlines())) <= width
    assert "Result(" not in text
    assert all(str(column).split()[0] in text for column in result.rows()[0])
    assert "SIMULATED" in text


def test_print_of_a_run_says_what_each_workload_got(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    text = str(run)
    head, *lines = text.splitlines()
    columns = [
        "setting",
        "workload",
        "runs on",
        "latency p50 (µs)",
        "calls/s",
        "TFLOP/s",
        "of alone (%)",
        "overlap",
        "gain",
    ]
    assert re.split(r"\s{2,}", head.strip()) == columns
    assert sum(line.startswith(("shared by both", "16 | rest")) for line in lines) == 4
    assert "SIMULATED" in text
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, str(run).splitlines())) <= 80


def test_a_notebook_sees_the_share_the_overlap_and_the_gain_under_plain_names(run):
    html = run._repr_html_()
    heads = re.findall(r"<th[^>]*>(.*?)</th>", html)
    assert heads[-3:] == ["of alone (%)", "overlap", "gain"]
    assert len(heads) == 9
    assert "share_of_alone_on_whole_gpu" not in html
    assert "whole GPU" in html


def test_text_stands_left_and_numbers_right_in_a_notebook():
    html = html_table([{"name": "x", "n": 1}])
    assert html.count("text-align:left") == 2


def test_ipythons_terminal_shows_the_table_too(run):
    from IPython.lib.pretty import pretty

    assert pretty(run) == str(run)
    result = analysis.summary(run["16 | rest"])
    assert pretty(result) == str(result)


def test_a_sweep_prints_its_parameters_first(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    gpu = gs.open_device("sim:h200", quiet=True)
    text = str(gs.search.sweep(PLAN, {"partitions.a": [8, 16]}, gpu))
    assert max(map(len, text.splitlines())) <= 80
    lines = text.splitlines()
    assert lines[lines.index("") - 1].split()[0] == "16"


def test_interference_prints_a_matrix(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    gpu = gs.open_device("sim:h200", quiet=True)
    spin = {"kind": "spin", "duration_us": 10}
    result = gs.search.measure_interference(
        gpu, {"a": 16, "b": "rest"},
        {"x": {**spin, "partition": "a"}, "y": {**spin, "partition": "b"}}, repeats=3, rounds=1,
    )  # fmt: skip
    head, _, first, second, *_ = str(result).splitlines()
    assert re.split(r"\s{2,}", head.strip()) == ["a", "on", "alone (µs)", "given x", "given y"]
    assert first.startswith("x  a (16 SMs)")
    assert second.startswith("y  b (116 SMs)")
    assert len(result.rows()) == 2, "rows() still has one for each ordered pair"
