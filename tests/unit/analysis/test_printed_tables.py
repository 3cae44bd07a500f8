"""Results as tables: they fit the terminal, no number is broken, and the notebook's are narrow."""

from __future__ import annotations

import re

import pytest

import gpuscope as gs
from gpuscope import analysis
from gpuscope._tables import html_table, table_lines, text_table
from gpuscope._text import format_value, shortened

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


@pytest.mark.parametrize("width", [30, 80, 120, 400])
def test_columns_that_do_not_fit_are_named_the_last_first(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    columns = ["row", *(f"column{number}" for number in range(20))]
    rows = [dict(zip(columns, ["a", *range(10**6, 10**6 + 20)], strict=True))]
    lines, shown = table_lines(columns, rows)
    assert shown == lines[0].split() == columns[: len(shown)]
    assert len(shown) == {30: 3, 80: 8, 120: 11, 400: 21}[width]
    *_, noted = text_table(columns, rows).partition("left out")
    assert re.findall(r"column\d+", noted) == columns[len(shown) :]
    every, shown = table_lines(columns, rows, every=True)
    assert shown == columns
    assert all(f"{number:,}" in "\n".join(every) for number in range(10**6, 10**6 + 20))
    assert max(map(len, every)) <= width
    assert all(line.startswith(("row", "a", "─")) for line in every if line), "named in each part"


def test_no_column_goes_that_tells_rows_apart(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    rows = [{"first": "a" * 30, "second": "b" * 30 + mark, "n": 1, "m": 10**9} for mark in "xy"]
    lines, shown = table_lines(list(rows[0]), rows)
    assert shown == ["first", "second", "n"]
    assert max(map(len, lines)) <= 40
    assert [line.split()[-2][-1] for line in lines[2:]] == ["x", "y"]


def test_a_column_without_a_value_is_left_out():
    assert table_lines(["a", "b"], [{"a": 1, "b": None}, {"a": 2, "b": ""}])[1] == ["a"]
    assert table_lines(["a"], [{"a": None}]) == table_lines(["a"], []) == ([], [])


KERNEL = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<c10::Half, at::native::"
    "sum_functor<c10::Half>::operator()(at::TensorIterator&)::{lambda(float, float)#1}> >"
    "(at::native::ReduceOp<c10::Half, float>)"
)


@pytest.mark.parametrize(
    ("text", "limit", "short"),
    [
        (KERNEL, 60, "void at::native::reduce_kernel<…>(…)"),
        (KERNEL, 20, "void at::n…nel<…>(…)"),
        ("n" * 90, 60, "n" * 30 + "…" + "n" * 29),
        ("[red]g<b>", 60, "[red]g<b>"),
        ("x" * 10**7, 5, "xx…xx"),
        ("<" * 10**6, 5, "<<…<<"),
        ("<a>" * 10**6, 5, "<…….>"),
    ],
)
def test_long_names_lose_template_arguments_and_then_their_middle(text, limit, short):
    found = shortened(text, limit)
    assert len(found) <= limit
    assert found == short or text.startswith("<a>")


@pytest.mark.parametrize("width", [80, 120])
def test_a_kernel_s_name_does_not_burst_a_table(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    rows = [{"kernel": KERNEL, "n": 1, "what ran": "n" * 300}]
    lines, shown = table_lines(list(rows[0]), rows)
    assert shown == list(rows[0])
    assert max(map(len, lines)) <= width
    assert len(lines) <= 4


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
    rows = result.rows()
    filled = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)]
    assert all(word in text for column in filled for word in column.split())
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
        "of alone (%)",
        "overlap",
        "gain",
        "TFLOP/s",
    ]
    assert re.split(r"\s{2,}", head.strip()) == columns
    assert sum(line.startswith(("shared by both", "16 | rest")) for line in lines) == 4
    assert "SIMULATED" in text
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, str(run).splitlines())) <= 80


def test_a_notebook_sees_the_share_the_overlap_and_the_gain_under_plain_names(run):
    html = run._repr_html_()
    heads = re.findall(r"<th[^>]*>(.*?)</th>", html)
    assert heads[-3:] == ["overlap", "gain", "TFLOP/s"]
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
