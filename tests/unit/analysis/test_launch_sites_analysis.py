"""What lines, functions and files had the GPU do: sums over rows of known sites."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

import gpuscope as gs
from gpuscope.errors import InvalidArgument, MissingEvidence
from gpuscope.telling.explanation import explain
from gpuscope.trace.facts import HazardFact, HazardFacts
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace
from gpuscope.widgets.details import describe

STEP = json.dumps([["train.py", 4, "step"], ["main.py", 9, "main"]])
LOAD = json.dumps([["train.py", 8, "load"], ["main.py", 9, "main"]])
#          id kind      start   end   site   nbytes
ROWS = [
    (1, "api", 0, 10, STEP, None),
    (2, "kernel", 20, 120, STEP, None),
    (3, "api", 130, 140, LOAD, None),
    (4, "memcpy", 150, 250, LOAD, 1000),
    (5, "sync", 140, 260, LOAD, None),
    (6, "api", 270, 280, None, None),
    (7, "kernel", 300, 310, None, None),
    (8, "api", 310, 330, STEP, None),
    (9, "kernel", 340, 440, STEP, None),
    (10, "sync", 440, 450, None, None),  # as CUPTI tells it once more
]


def trace_of(hazards=None, rows=ROWS):
    names = ("id", "kind", "start_ns", "end_ns", "site", "nbytes")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    count = len(rows)
    columns |= {"name": [f"row {row[0]}" for row in rows], "source": ["cupti"] * count}
    columns |= {"device": [0] * count, "stream": [7] * count}
    called = {kernel: ends for (_, _, _, ends, *_), (kernel, *_) in pairwise(rows)}
    columns["queued_ns"] = [
        called[row[0]] if row[1] in ("kernel", "memcpy") else None for row in rows
    ]
    pairs = [
        (call[0], work[0])
        for call, work in pairwise(rows)
        if call[1] == "api" and work[1] in ("kernel", "memcpy")
    ]
    calls, works = zip(*pairs, strict=True)
    edges = {"from": [*calls], "to": [*works], "kind": ["launch"] * len(calls)}
    return Trace.from_columns(columns, edges, metadata=TraceMetadata(hazards=hazards))


def test_each_line_has_its_launches_work_calls_and_idle_time():
    sites = gs.analysis.launch_sites(trace_of()).sites
    told = {
        site.name: (
            site.launches,
            site.kernels,
            site.copies,
            site.gpu_ns,
            site.copied_bytes,
            site.calls_ns,
            site.idle_ns,
            site.hazards,
        )
        for site in sites
    }
    assert told == {
        "train.py:4 in step": (2, 2, 0, 200, 0, 30, 30, None),
        "train.py:8 in load": (1, 0, 1, 100, 1000, 130, 30, None),
        "no line of Python": (1, 1, 0, 10, 0, 10, 50, None),
    }
    assert [site.name for site in sites] == list(told)  # most GPU time first


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("function", {"step in train.py", "load in train.py", "no line of Python"}),
        ("file", {"train.py", "no line of Python"}),
    ],
)
def test_functions_and_files_add_up_to_what_lines_do(by, names):
    trace = trace_of()
    result, lines = gs.analysis.launch_sites(trace, by=by), gs.analysis.launch_sites(trace)
    assert {site.name for site in result.sites} == names
    for field in ("launches", "kernels", "copies", "gpu_ns", "calls_ns", "idle_ns"):
        total = sum(getattr(site, field) for site in result.sites)
        assert total == sum(getattr(site, field) for site in lines.sites)
    gaps = gs.analysis.gaps(trace, by="device").tracks
    assert sum(site.idle_ns for site in result.sites) == sum(track.total_ns for track in gaps)


def test_records_of_events_are_calls():
    gpu = gs.open_device("sim:h200", quiet=True, jitter=False)
    with gpu.create_stream() as stream, gs.profile(gpu) as recording:
        stream.record().synchronize()
        stream.record()
    (site,) = gs.analysis.launch_sites(recording.trace, by="function").sites
    calls = recording.trace.where(kind=("event", "sync"))
    assert calls.texts("name") == ["event.record", "event.synchronize", "event.record"]
    assert site.calls_ns == (calls.array("end_ns") - calls.array("start_ns")).sum() > 0


def test_hazards_belong_to_the_line_of_the_second_access():
    fact = HazardFact("write after write", first=2, second=4, count=3)
    sites = gs.analysis.launch_sites(trace_of(HazardFacts(found=(fact,)))).sites
    assert {site.name: site.hazards for site in sites} == {
        "train.py:4 in step": 0,
        "train.py:8 in load": 3,
        "no line of Python": 0,
    }


def test_a_trace_without_sites_says_so():
    with pytest.raises(MissingEvidence, match="launch sites"):
        gs.analysis.launch_sites(trace_of(rows=[(*row[:4], None, None) for row in ROWS]))
    with pytest.raises(InvalidArgument, match="module"):
        gs.analysis.launch_sites(trace_of(), by="module")


LATE = [
    (1, "api", 0, 10, LOAD, None),
    (2, "kernel", 20, 120, LOAD, None),
    (3, "api", 9_000, 9_010, STEP, None),
    (4, "kernel", 9_020, 9_120, STEP, None),
    (5, "api", 9_130, 9_140, LOAD, None),
    (6, "kernel", 9_150, 9_250, LOAD, None),
]


def test_the_finding_of_an_idle_gpu_names_the_line_that_was_late():
    (idle,) = (
        each for each in gs.findings(trace_of(rows=LATE)).findings if each.rule == "program.idle"
    )
    assert idle.subject["line"] == "train.py:4 in step"
    (share,) = (value.value for value in idle.values if value.name == "of_it")
    assert 0.9 < share < 1
    assert "train.py:4 in step" in idle.text


def test_an_explanation_names_the_lines():
    assert explain(trace_of(), 2).site == "train.py:4 in step, from main.py:9 in main"
    assert explain(trace_of(), 7).site == ""


def test_the_dock_shows_the_source_around_a_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("".join(f"line {number}\n" for number in range(1, 7)))
    step, main = describe(trace_of(), 1)["tables"]
    assert step == (
        "Called at train.py:4 in step",
        [("2", "line 2"), ("3", "line 3"), ("4 →", "line 4"), ("5", "line 5"), ("6", "line 6")],
    )
    assert main == ("Called at main.py:9 in main", [])  # there is no such file


def test_sites_survive_export_and_import(tmp_path):
    trace = trace_of()
    for suffix in (".parquet", ".json"):
        gs.export(trace, tmp_path / f"t{suffix}")
    assert gs.load_trace(tmp_path / "t.parquet").texts("site") == trace.texts("site")
    assert "train.py" in (tmp_path / "t.json").read_text()
