"""Sampled stacks as speedscope and flamegraph.pl read them: weights, frames, threads, names."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_stacks import INNER, LOADER, MAIN, OUTER, READ, SEEN, built

import gpuscope as gs
from gpuscope.errors import ExportError
from gpuscope.formats import registry
from gpuscope.trace import Trace
from gpuscope.trace.facts import RankFacts
from gpuscope.trace.schema import RUNS


def speedscope(trace, folder):
    return json.loads(gs.export(trace, folder / "run.speedscope.json").read_text("utf-8"))


def folded(trace, folder):
    lines = gs.export(trace, folder / "run.folded").read_text("utf-8").splitlines()
    return {stack: int(count) for stack, _, count in (line.rpartition(" ") for line in lines)}


def test_speedscope_has_a_profile_a_thread_with_shared_frames(tmp_path):
    data = speedscope(built(SEEN, kernel=True), tmp_path)
    assert data["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = [
        (frame["name"], frame.get("file"), frame.get("line")) for frame in data["shared"]["frames"]
    ]
    assert len({*frames}) == len(frames)
    profiles = {profile["name"]: profile for profile in data["profiles"]}
    assert {*profiles} == {"main; thread", "thread 12"}
    assert {(one["type"], one["unit"]) for one in data["profiles"]} == {("sampled", "nanoseconds")}
    main = profiles["main; thread"]
    outer, inner = ("main", "train.py", 80), ("step", "train.py", 7)
    stacks = [[frames[number] for number in stack] for stack in main["samples"]]
    assert [*zip(stacks, main["weights"], strict=True)] == [
        ([outer, inner], 200),
        ([outer], 100),
        ([], 200),
        ([("no Python", None, None)], 100),
    ]
    assert (main["startValue"], main["endValue"]) == (0, 600)
    assert outer in [frames[number] for number in profiles["thread 12"]["samples"][0]]


def test_folded_stacks_have_a_line_each_with_its_samples(tmp_path):
    assert folded(built(SEEN, kernel=True), tmp_path) == {
        "main: thread;main (train.py:80);step (train.py:7)": 3,
        "main: thread;main (train.py:80)": 1,
        "main: thread;no Python": 1,
        "thread 12;main (train.py:80);read (load.py:3)": 4,
    }


def test_threads_of_several_ranks_are_told_apart(tmp_path):
    rank = dict(backend="nccl", world_size=2)  # noqa: C408 - of RankFacts
    ranks = [RankFacts(rank=at, process=process, **rank) for at, process in ((0, 5), (1, 6))]
    trace = built(SEEN[:2], ranks=tuple(ranks))
    columns = trace.spans.to_pylist()
    columns[1]["process"], columns[1]["thread"] = 6, LOADER
    both = Trace.from_columns(
        {name: [row[name] for row in columns] for name in columns[0]}, None, trace.metadata
    )
    names = {profile["name"] for profile in speedscope(both, tmp_path)["profiles"]}
    assert names == {"rank 0 · thread 12", "rank 1 · thread 12"}


@pytest.mark.parametrize("name", ["run.speedscope.json", "a.b.SPEEDSCOPE.json", "run.folded"])
def test_the_suffix_selects_them(name):
    assert registry.of_suffix(name).name in ("Speedscope JSON", "Folded stacks")
    assert registry.of_suffix("speedscope.json").name == "Chrome trace JSON"


@pytest.mark.parametrize("suffix", [".speedscope.json", ".folded"])
def test_without_stacks_the_error_says_how_to_record_them(tmp_path, suffix):
    with pytest.raises(ExportError, match=re.escape("profile(sample=")):
        gs.export(built([], kernel=True), tmp_path / f"run{suffix}")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("suffix", [".speedscope.json", ".folded"])
def test_progress_reaches_all_rows(tmp_path, suffix):
    told = []
    gs.export(
        built(SEEN, kernel=True), tmp_path / f"r{suffix}", progress=lambda *at: told.append(at)
    )
    assert told[-1] == (6, 6)


@pytest.mark.parametrize("suffix", [".speedscope.json", ".folded"])
def test_what_leaves_the_machine_has_no_folders(tmp_path, suffix):
    lines = [["/home/somebody/secret/a.py", 3, "f"], ["/home/somebody/secret/a.py", 9, "main"]]
    trace = built([(MAIN, 0, 100, lines, 1.0, RUNS)])
    assert "somebody" not in gs.export(trace, tmp_path / f"run{suffix}").read_text()
    kept = gs.export(trace, tmp_path / f"kept{suffix}", keep_private=True).read_text()
    assert "somebody" in kept


def test_foreign_rows_make_valid_files(tmp_path):
    odd = [
        (MAIN, 0, 300, [["a;b\n.py", 1, "f\r\ng;h"]], float("nan"), None),
        (MAIN, 100, 200, [["a.py", 2, "inside"]], None, None),
        (MAIN, 250, None, [["a.py", 2, "open"]], -3.0, None),
        (None, 0, 50, [["a.py", 4, "x"]], 1e300, None),
    ]
    trace = built(odd)
    main = next(one for one in speedscope(trace, tmp_path)["profiles"] if one["endValue"] == 300)
    assert main["weights"] == [300]
    assert sum(folded(trace, tmp_path).values()) == 1 + 1 + 0 + (1 << 53)
    text = (tmp_path / "run.folded").read_text("utf-8")
    assert "f g:h (a:b .py:1)" in text
    assert len(text.splitlines()) == text.count("\n") == 4


STACKS = st.lists(
    st.tuples(st.sampled_from((MAIN, LOADER)), st.integers(0, 5), st.integers(1, 9),
              st.lists(st.sampled_from((OUTER, INNER, READ)), max_size=3), st.integers(1, 5)),
    min_size=1, max_size=20,
)  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(STACKS)
def test_times_and_samples_add_up(tmp_path_factory, drawn):
    folder, at, rows = tmp_path_factory.mktemp("stacks"), Counter(), []
    for thread, gap, lasts, lines, samples in drawn:
        start = at[thread] + gap
        rows.append((thread, start, start + lasts, lines, float(samples), RUNS))
        at[thread] = start + lasts
    trace = built(rows)
    data = speedscope(trace, folder)
    busy = sum(
        weight
        for profile in data["profiles"]
        for stack, weight in zip(profile["samples"], profile["weights"], strict=True)
        if stack
    )
    assert busy == sum(end - start for _, start, end, *_ in rows)
    for profile in data["profiles"]:
        assert sum(profile["weights"]) == profile["endValue"] - profile["startValue"]
        samples = profile["samples"]
        assert all(one != other for one, other in itertools.pairwise(samples))
    assert sum(folded(trace, folder).values()) == sum(samples for *_, samples in drawn)


def test_without_code_what_threads_did_stays(tmp_path):
    trace = built([(MAIN, 0, 10, [INNER, OUTER], 3, RUNS)], kernel=True)
    columns = {name: trace.spans.column(name).to_pylist() for name in trace.spans.column_names}
    columns["site"] = [json.dumps([INNER])] * len(trace)
    trace = Trace.from_columns(columns, metadata=trace.metadata)
    file = gs.export(trace, tmp_path / "a.parquet", keep_code=False)
    stack, kernel = gs.load_trace(file).spans.to_pylist()
    assert (stack["name"], stack["status"], stack["value"]) == ("stack", RUNS, 3)
    assert stack["site"] is stack["payload"] is kernel["site"] is None
    assert kernel["name"] == "k"
    text = gs.export(trace, tmp_path / "a.json", keep_code=False).read_text("utf-8")
    assert not any(word in text for word in ("train.py", "step", 'main"'))
    kept = gs.load_trace(gs.export(trace, tmp_path / "b.parquet")).spans
    assert kept.column("site").to_pylist() == columns["site"]
