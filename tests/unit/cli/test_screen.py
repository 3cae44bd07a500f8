"""What commands print: one screen, findings first; the rest with --all."""

from __future__ import annotations

import json
import lzma
import re
import sys
from pathlib import Path

import pytest

import gpuscope as gs
from gpuscope import cli
from gpuscope.analyses import findings, known_analyses
from gpuscope.analysis.result import Result
from gpuscope.cli.screen import LINES, Screen
from gpuscope.comparing.choice import swept
from gpuscope.formats.reading import load_trace
from gpuscope.telling import Finding, to_text

ROOT = Path(gs.__file__).parents[1]
DATA = ROOT / "tests" / "data"
TRACES = [
    *sorted((DATA / "recordings").glob("*.parquet")),
    *sorted((DATA / "what_if").glob("*.parquet")),
    *sorted((DATA / "before").glob("*.parquet")),
    *sorted((DATA / "before" / "run").glob("*.parquet")),
    *sorted((DATA / "nsight").glob("*.xz")),
]


@pytest.fixture
def command(monkeypatch, capsys):
    """Call main() at a width; returns the lines that it printed."""

    def call(width, *arguments):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys, "argv", ["gpuscope", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed, complained = capsys.readouterr()
        assert not ended.value.code, complained
        return printed.splitlines()

    return call


@pytest.fixture
def trial(tmp_path, monkeypatch):
    """Return an experiment's path, as a user writes it in the folder of that."""
    monkeypatch.chdir(ROOT)

    def find(name):
        return Path("examples") / f"{name}.toml", tmp_path / "out"

    return find


def check(lines, width, *, simulated):
    assert len(lines) <= LINES
    paths = [line for line in lines if line.startswith("wrote ")]
    assert max(len(line) for line in lines if line not in paths) <= width
    assert " ".join(lines).count("SIMULATED") == simulated


def unpacked(path, folder):
    if path.suffix != ".xz":
        return path
    file = folder / path.stem
    file.write_bytes(lzma.decompress(path.read_bytes()))
    return file


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("path", TRACES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_first_page_is_one_screen_and_names_what_it_leaves_out(command, tmp_path, path, width):
    path = unpacked(path, tmp_path)
    trace = load_trace(path)
    lines = command(width, "why", path)
    check(lines, width, simulated=trace.is_simulated)
    result = findings(trace)
    assert lines[0].split()[:3] == to_text(result.findings[0]).split()[:3], "findings come first"
    said = " ".join(" ".join(lines).split())
    words = re.sub(r"\W+", " ", said).split()
    titles = dict(result.sections)
    for known in known_analyses():
        if result.is_of_program and known.title not in titles:
            assert "more about other analyses" in said
            continue
        answer = known.ask(trace)
        rows = answer.readable()[0] if isinstance(answer, Result) else []
        whole = f"the table {known.title}", f"more about {known.title}"
        dropped = any(words in said for words in whole)
        zeros = f"{known.title}: " in said
        for column in {} if dropped or zeros or not rows else rows[0]:
            if any(row[column] not in (None, "") for row in rows):
                title = re.sub(r"\W+", " ", column.partition(" (")[0]).split()
                assert set(title) <= set(words), (known.name, column)


@pytest.mark.parametrize("path", TRACES[:3], ids=lambda path: path.stem)
def test_all_of_a_first_page_has_every_row(command, path):
    printed = "\n".join(command(80, "why", path, "--all"))
    trace = load_trace(path)
    assert all(f"── {known.title} " in printed for known in known_analyses() if known.ask(trace))
    assert "--all" not in printed
    numbers = set(re.findall(r"[\d,.]+", printed))
    for known in known_analyses():
        answer = known.ask(trace)
        for row in answer.readable()[0] if isinstance(answer, Result) else ():
            for value in row.values():
                if isinstance(value, int) and not isinstance(value, bool):
                    assert f"{value:,}" in numbers, (known.name, row)


@pytest.mark.parametrize("name", ["quickstart", "confinement", "all_reduce_sms", "split"])
def test_a_run_is_one_screen(command, trial, tmp_path, name):
    example, out = trial(name)
    text = example.read_text("utf-8")
    fewer = re.sub(r"(?<=^repeats = )\d+", lambda found: str(int(found[0]) // 5), text, flags=re.M)
    assert fewer != text
    file = tmp_path / example.name
    file.write_text(fewer, "utf-8")
    lines = command(80, "predict", file, "--out", out)
    check(lines, 80, simulated=1)
    settings = gs.experiments.Experiment.from_file(file).settings or {}
    assert all(word in " ".join(lines) for each in settings for word in each.split())
    check(command(80, "predict", file, "--against", out, "--out", out, "--force"), 80, simulated=1)


SERIES = {
    "sweep": ("choose_a_partition", "--vary", "partitions.small=8,16,24,32,40,48"),
    "interference": ("interference", "--repeats", 3, "--rounds", 1),
    "tune": (
        *("choose_a_partition", "--vary", "partitions.small=8,64,120", "--repeats", 3),
        *("--objective", "load.tflop_per_s", "--slo", "small.latency_p50_us<=60"),
    ),
}


@pytest.mark.parametrize("name", SERIES)
def test_series_are_one_screen(command, trial, name):
    example, *options = SERIES[name]
    file, out = trial(example)
    arguments = (name, file, *options, "--device", "sim:h200", "--out", out)
    lines = command(80, *arguments)
    check(lines, 80, simulated=1)
    assert not lines[0].startswith("──"), "a finding comes first"
    again = command(120, *arguments, *(["--force"] if name == "interference" else []))
    check(again, 120, simulated=1)


def test_a_sweep_is_told_by_its_best_and_its_worst_point():
    result = gs.search.load_sweep(DATA / "before" / "sweep")
    unfinished, finding = swept(result)
    assert (unfinished.rule, unfinished["unmeasured"].value) == (
        "swept.unmeasured",
        result.unmeasured,
    )
    rows = result.table.to_pylist()
    name = finding.subject["workload"]
    times_us = [row["latency_p50_us"] for row in rows if row["workload"] == name]
    assert len(times_us) > 1
    assert (finding["good"].value, finding["bad"].value) == (min(times_us), max(times_us))


def test_an_interference_is_told_by_its_greatest(command, trial):
    file, out = trial("interference")
    options = ("--repeats", 3, "--rounds", 1, "--inside", 0.5, "--device", "sim:h200")
    said = " ".join(command(80, "interference", file, *options, "--out", out)).split(".  ")[0]
    rows = json.loads((out / "interference.json").read_text("utf-8"))
    told = {row["interference"]: row for row in rows if row["interference"] is not None}
    most = told[max(told)]
    assert f"{100 * max(told):.3g} %" in said
    assert f"of {most['a']} take" in said
    assert f"while {most['given b']} runs" in said
    assert f"most of {len(told)} pairs" in said


# -- the screen itself -----------------------------------------------------------------------
ROWS = [{"name": f"row{n}", "n": n, "text": "words " * 9} for n in range(100)]


def shown(capsys, screen, origin="measured"):
    screen.show(origin)
    return capsys.readouterr().out.splitlines()


@pytest.fixture(params=[80, 120])
def width(request, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(request.param))
    return request.param


def test_rows_without_room_are_counted_and_those_of_weight_stay(capsys, width):
    screen = Screen(every=False)
    screen.table("many", ROWS, "n")
    lines = shown(capsys, screen)
    check(lines, width, simulated=0)
    named = [int(line.split()[0][3:]) for line in lines if line.startswith("row")]
    assert named == [*range(100 - len(named), 100)]
    assert len(named) >= 5
    assert f"--all adds {100 - len(named)} rows of many" in lines
    screen = Screen(every=True)
    screen.table("many", ROWS, "n")
    assert [line.split()[0] for line in shown(capsys, screen) if "row" in line] == [
        row["name"] for row in ROWS
    ]


def test_there_is_no_row_and_no_table_of_zeros(capsys):
    zero = {"name": "none", "busy": 0.0, "n": 0, "or not": None}
    screen = Screen(every=False)
    screen.table("some", [zero, {**zero, "name": "one", "n": 1}])
    screen.table("nothing", [zero, zero])
    screen.table("weighed", [{**zero, "busy": 3}], "n")
    printed = "\n".join(shown(capsys, screen))
    assert re.findall("── (\\w+) ", printed) == ["some"]
    assert not re.search("^none", printed, re.M)
    assert "nothing: every number is 0 in each of 2 rows" in printed
    assert "weighed: n is 0 in its one row" in printed
    assert "--all adds 1 row of some" in printed
    screen = Screen(every=True)
    screen.table("nothing", [zero, zero])
    assert sum(line.startswith("none") for line in shown(capsys, screen)) == 2


def test_a_screen_holds_whatever_was_found(capsys, width):
    name = "k<" + "very::long " * 2000 + ">"
    many = [
        Finding("confined", "note", {"partitions": [f"{name}{n}"] * 50, "evidence": []})
        for n in range(50)
    ]
    screen = Screen(every=False)
    screen.findings([("", finding) for finding in many])
    for number in range(12):
        screen.table(f"table{number}", ROWS)
        screen.note(f"note {number}: " + "word " * 500)
    lines = shown(capsys, screen)
    check(lines, width, simulated=0)
    assert lines[0].startswith("Confined")
    told = re.sub(" +", " ", " ".join(lines)).partition("--all adds ")[2]
    assert re.search(r"\d+ findings", told)
    assert {f"the table table{n}" for n in range(12)} <= set(re.split("; *", told))
    assert "note 11" in told
