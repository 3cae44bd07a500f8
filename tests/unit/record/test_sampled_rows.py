"""Sampled stacks as rows: whose they are, from when to when, and what the thread did."""

from __future__ import annotations

import itertools
import json
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE_S

import gpuscope as gs
from gpuscope import _stacks
from gpuscope.errors import GpuscopeError
from gpuscope.record.rows import Rows
from gpuscope.record.source import Options, StackTexts
from gpuscope.record.stacks import StackRows, StackSampler
from gpuscope.trace.combining import ONE_CLOCK, RANKS, combined
from gpuscope.trace.facts import SamplingFacts
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.schema import HOLDS_LOCK, WAITS_FOR_LOCK

PERIOD = 1000
needs_samples = pytest.mark.skipif(bool(_stacks.missing()), reason=_stacks.missing() or "-")


def texts_of(stack):
    return StackTexts(f"f{stack}", f'[["a.py", {stack}, "f{stack}"]]' if stack % 2 else "", "[]")


def rows_of(runs, cuts=()):
    """Return the rows of runs that are taken in these parts."""
    made, parts = StackRows(PERIOD, 9, texts_of), []
    bounds = [0, *cuts, len(runs)]
    for low, high in itertools.pairwise(bounds):
        taken = np.array(runs[low:high], _stacks.RUN).tobytes()
        batch = made.batch(taken, over=high == len(runs))
        parts += [] if batch is None else batch.spans.to_pylist()
    return parts


def run(thread, first, last, stack=1, samples=1, call=-1, state=_stacks.HOLDS):
    return first, last, thread, stack, samples, call, state


def test_a_sample_stands_for_the_time_to_its_neighbours():
    runs = [run(1, 10_000, 12_000, 1, 3), run(1, 13_000, 13_000, 2), run(2, 10_500, 20_500, 3, 11),
            run(1, 18_000, 19_000, 4, 2)]  # fmt: skip
    rows = {(row["thread"], row["name"]): row for row in rows_of(runs)}
    times = {key: (row["start_ns"], row["end_ns"]) for key, row in rows.items()}
    assert times == {
        (1, "f1"): (10_000, 12_500),
        (1, "f2"): (12_500, 13_500),  # the next came five periods later: it may have been gone
        (1, "f4"): (17_500, 19_000),
        (2, "f3"): (10_500, 20_500),
    }
    first = rows[1, "f1"]
    assert first["start_uncertainty_ns"] is first["end_uncertainty_ns"] is None
    assert (first["value"], first["process"], first["kind"], first["source"]) == (
        3,
        9,
        "stack",
        "host",
    )
    assert first["site"] == '[["a.py", 1, "f1"]]'
    assert rows[1, "f2"]["site"] is None  # no line of the program
    assert len({row["id"] for row in rows.values()}) == 4


@pytest.mark.parametrize(
    ("state", "call", "status", "category"),
    [
        (_stacks.HOLDS, -1, HOLDS_LOCK, None),
        (_stacks.HOLDS | _stacks.TORN, -1, HOLDS_LOCK, "torn"),
        (_stacks.WAITS, 202, WAITS_FOR_LOCK, None),
        (_stacks.ON_CPU, -1, "runs without Python's lock", None),
        (_stacks.CUT | _stacks.TORN, 9999, "in system call 9999", "torn, cut"),
    ],
)
def test_what_the_thread_did(state, call, status, category):
    (row,) = rows_of([run(1, 0, 0, call=call, state=state)])
    assert (row["status"], row["category"]) == (status, category)


RUNS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 9000), st.integers(0, 5000), st.integers(1, 4)),
    max_size=12,
)


@settings(deadline=None)
@given(RUNS, st.lists(st.integers(0, 12), max_size=3))
def test_parts_make_the_rows_of_the_whole_which_are_apart(gaps, cuts):
    clocks, runs = dict.fromkeys((1, 2, 3), 100_000), []
    for thread, apart, lasts, stack in gaps:
        first = clocks[thread] + apart
        clocks[thread] = first + lasts
        runs.append(run(thread, first, clocks[thread], stack, lasts // PERIOD + 1))
    cuts = sorted(cut for cut in cuts if cut < len(runs))
    whole, parts = rows_of(runs), rows_of(runs, cuts)
    without = [[{**row, "id": 0} for row in rows] for rows in (whole, parts)]
    keys = [sorted(map(repr, rows)) for rows in without]
    assert keys[0] == keys[1]
    assert sum(row["value"] for row in whole) == sum(run[4] for run in runs)
    for thread in (1, 2, 3):
        times = sorted((row["start_ns"], row["end_ns"]) for row in whole if row["thread"] == thread)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(times))


def test_reading_that_fails_is_undone():
    sampler = StackSampler(1_000_000, 9)
    sampler._rows = StackRows(PERIOD, 9, texts_of)
    sampler._new.append(np.array([run(1, 0, 0), run(1, 1000, 1000, 2)], _stacks.RUN).tobytes())
    undo, rows = sampler.begin_reading(), Rows()
    sampler.drain(rows)
    first = rows.batches[0].spans
    undo()
    sampler.drain(again := Rows())
    assert again.batches[0].spans.equals(first)


@needs_samples
def test_a_recording_has_rows_of_all_threads_but_its_own():
    gpu, over = gs.open_device("cpu", quiet=True), threading.Event()

    def computing():
        while not over.is_set():
            sum(range(1000))

    def seen(recording):
        return {row["name"] for row in recording.snapshot().where(kind="stack").spans.to_pylist()}

    with gs.profile(gpu, sample=1000) as recording:
        threads = [
            threading.Thread(target=target, daemon=True) for target in (computing, over.wait)
        ]
        for thread in threads:
            thread.start()
        end = time.monotonic() + PATIENCE_S
        while (
            not {"Condition.wait", computing.__qualname__} <= seen(recording)
            and time.monotonic() < end
        ):
            time.sleep(0.01)
        numbers = [thread.native_id for thread in threads]
        of_gpuscope = {
            thread.native_id
            for thread in threading.enumerate()
            if thread.name.startswith("gpuscope ")
        }
        assert of_gpuscope
        with gs.profile(gpu, sample=100) as another:
            pass
        over.set()
        for thread in threads:
            thread.join()
    trace = recording.trace
    rows = trace.where(kind="stack").spans.to_pylist()
    names = {row["thread"]: set() for row in rows}
    for row in rows:
        names[row["thread"]].add(row["name"])
    assert {*numbers, threading.get_native_id()} <= {*names}  # there may be more, of other tests
    assert not {*names} & of_gpuscope
    functions = [
        line[2].rpartition(".")[2] for row in rows for line in json.loads(row["site"] or "[]")
    ]
    assert "computing" in functions
    assert "Condition.wait" in names[numbers[1]]
    facts = trace.metadata.sampling
    assert (facts.period_ns, facts.lost) == (1_000_000, 0)
    assert 0 < sum(row["value"] for row in rows) <= facts.samples
    assert another.trace.metadata.sampling is None
    assert sum("stacks are not sampled" in note for note in another.trace.metadata.notes) == 1
    assert "stack" not in another.trace.kind_counts()


def test_a_simulated_device_is_recorded_without():
    gpu = gs.open_device("sim:h200", quiet=True)
    with gs.profile(gpu, sample=100) as recording:
        pass
    assert recording.trace.metadata.sampling is None
    assert any("stacks are not sampled" in note for note in recording.trace.metadata.notes)


@pytest.mark.parametrize("sample", [-1, 10_001])
def test_how_often_is_bounded(sample):
    with pytest.raises(GpuscopeError, match="sample"):
        Options(sample=sample)


@pytest.mark.parametrize("rules", [ONE_CLOCK, RANKS])
def test_traces_that_become_one_add_their_samples(rules):
    facts = [None, SamplingFacts(1000, 5, 10, torn=1), SamplingFacts(5000, 2, 4, lost=3)]
    every = [TraceMetadata(sampling=part) for part in facts]
    assert combined(every, rules).sampling == SamplingFacts(5000, 7, 14, torn=1, lost=3)
    assert combined(every[:1], rules).sampling is None
