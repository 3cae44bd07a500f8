"""What the page works out by itself, as it has no kernel to ask while it moves: run by Node."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from counted_traces import random_trace

from gpuscope.timeline.canvas import tiles
from gpuscope.timeline.columns import FREE_PX, LEAST_PX, heights, step_of
from gpuscope.timeline.counter_lanes import counter_lanes
from gpuscope.trace.facts import DeviceFacts

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="nothing runs JavaScript here")


def run(expression: str, cases: list) -> list:
    """Return what an expression of ``one`` gives for each case."""
    program = f"{tiles.SCRIPT}\nconst cases = {json.dumps(cases)};\n"
    program += f"console.log(JSON.stringify(cases.map((one) => {expression})));"
    done = subprocess.run(["node", "-"], input=program, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_columns_are_as_high_as_in_every_other_picture():
    rng = np.random.default_rng(3)
    cases, expected = [], []
    for _ in range(2000):
        busy = rng.integers(0, 129, (int(rng.integers(1, 5)), 1)) * rng.integers(0, 2)
        px = int(rng.integers(12, 60))
        cases.append([(busy[:, 0] / 128).tolist(), (busy[:, 0] > 0).tolist(), px])
        expected.append(heights(busy, busy > 0, np.full(1, 128), px)[:, 0])
    sums = "const total = shares.reduce((a, b) => a + b, 0)"
    found = run(
        "{ const [shares, there, px] = one; " + sums + "; fit(shares, there, total, px, "
        f"{LEAST_PX}, {FREE_PX}); return shares; }}",
        cases,
    )
    for (shares, *_), tall, wanted in zip(cases, found, expected, strict=True):
        assert np.abs(np.array(tall) - wanted).max() <= (sum(shares) > 1), "but for halves"


def test_lanes_reach_as_high_as_in_every_other_picture():
    cases = [1, 2, 3, 5, 6, 9, 10, 11, 99, 100, 101, 12_345, 499_999, 500_000, 500_001]
    assert run("stepOf(one)", cases) == [step_of(case, 1) for case in cases]


def ticks(low: int, high: int, most: int) -> tuple[list, list, str]:
    """Return times in µs, labels and title of the ticks of a window."""
    (found,) = run("ticksIn(one[0], one[1], one[1] - one[0], one[2])", [[low, high, most]])
    return found["tickvals"], found["ticktext"], found["title"]


def test_ticks_are_even_and_cover_the_window():
    rng = np.random.default_rng(4)
    lows, lengths = (10 ** rng.uniform(least, 12, 500) for least in (0, 1.4))
    cases = np.stack([lows, lows + lengths, rng.integers(2, 10, 500)], axis=1).astype(int).tolist()
    found = run("ticksIn(one[0], one[1], one[1] - one[0], one[2])", cases)
    for (low, high, most), made in zip(cases, found, strict=True):
        at, labels = np.rint(np.array(made["tickvals"]) * 1e3), made["ticktext"]
        assert len(at) == len(labels) <= most + 1
        assert (np.diff(at) == np.diff(at)[:1]).all()
        if len(at) > 1:
            step = at[1] - at[0]
            assert at[0] - low < step
            assert high - at[-1] < step
        assert len(set(labels)) == len(at)  # no two of them look the same
        assert all(len(label) <= 12 for label in labels)


def test_ticks_of_neighbours_are_on_one_grid_and_count_from_the_same_time():
    for level, index in ((0, 5), (10, 3000), (20, 1024 * 7 + 1)):
        size = 1024 << level
        first, second = (ticks(n * size, (n + 1) * size, 3) for n in (index, index + 1))
        assert first[2] == second[2]
        apart, step = second[0][0] - first[0][-1], first[0][1] - first[0][0]
        assert apart == 0 or apart == pytest.approx(step)


def test_ticks_far_from_zero_count_from_a_round_time():
    _, labels, title = ticks(5_000_000_000, 5_000_003_000, 8)
    assert title == "time since 4.995 s after the start (µs)"
    assert labels[0] == "5,000.0"


def test_labels_count_from_the_start_where_a_window_begins_before_it():
    at, labels, title = ticks(-5_000_000_000, 10_000_000_000, 24)
    assert title == "time since the start (s)"
    assert labels[at.index(0)] in ("0", "0.0")
    assert ticks(-1, 9, 5)[1][0] == "0"


def with_peak(trace):
    facts = DeviceFacts(index=0, sm_count=132, memory_bytes_per_us=4_200_000)
    return trace.with_metadata(devices={"cuda:0": facts})


def test_the_words_beside_lanes_of_counters_are_those_of_other_pictures():
    cases, wanted = [], []
    for seed in range(4):
        trace = random_trace(seed)
        for lane in counter_lanes(with_peak(trace) if seed % 2 else trace):
            facts = lane.facts
            described = {
                "isMemory": facts.is_memory,
                "reach": facts.reach,
                "isToPeak": facts.is_to_peak,
            }
            for low in range(0, len(lane.starts) - 30, 30):
                columns = lane.columns(lane.starts[low : low + 30])
                cases.append([described, columns.sums[1:].sum(axis=1).tolist()])
                wanted.append(columns.used)
    assert {text[:1] for text in wanted} >= {"", "≈", "t", "1"}
    assert any("–" in text for text in wanted)
    assert run("usedWords(one[0], one[1])", cases) == wanted


def test_lanes_of_counters_say_what_other_pictures_say():
    lanes = [*counter_lanes(random_trace(2)), *counter_lanes(with_peak(random_trace(3)))]
    cases, wanted = [], []
    for lane in lanes:
        facts = replace(lane.facts, by_model=bool(len(cases) % 2))
        columns = replace(lane.columns(lane.starts), facts=facts)
        columns.sums[1] *= 1 + 2 * (len(cases) % 3)  # more than granted, some of it
        layers = [{"what": layer} for layer in facts.layers]
        described = {
            "isMemory": facts.is_memory, "byModel": facts.by_model, "layers": layers,
            "reach": facts.reach, "unit": facts.unit, "isToPeak": facts.is_to_peak,
        }  # fmt: skip
        cases += [[described, means] for means in np.round(columns.means, 9).T.tolist()]
        wanted += [text.partition("<br>")[0] for text in columns.words()]
    assert {text[:2] for text in wanted} >= {"re", "≈ ", "be", "0 "}
    written = run("counterWords(one[0], one[1])", cases)
    same = [text == word for text, word in zip(written, wanted, strict=True) if word]
    assert np.mean(same) > 0.99, "but for halves, which are rounded up or down"
