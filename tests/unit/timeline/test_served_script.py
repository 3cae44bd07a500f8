"""Tiles that a page makes by itself, of the spans that a file holds: those of the kernel, by Node."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import counted_traces
import numpy as np
import pytest

import gpuscope as gs
from gpuscope.report.trace import trace_report
from gpuscope.timeline.canvas import file, tiles
from gpuscope.timeline.canvas.state import TimelineState
from gpuscope.trace import Trace

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="nothing runs JavaScript here")

DATA = Path(__file__).parents[2] / "data"
SERVED = Path(file.__file__).with_name("served.js").read_text("utf-8")
PROGRAM = """
const { spans, windows } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const packed = [spans.data, spans.calls.data, spans.rest?.data ?? spans.data, spans.counters.data];
Promise.all(packed.map(unpacked)).then(([bytes, ofCalls, later, ofCounters]) => {
  const groups = readGroups(spans, bytes), waits = readCalls(spans.calls, ofCalls);
  if (spans.rest) readRest(spans.rest, later).slice(0, groups.length).forEach((rest, n) => (groups[n].busy[3] = rest));
  for (const thing of [...groups, ...waits.lanes]) thing.place = spans.rows[thing.home];
  const make = tileServer(spans, groups, waits, readCounters(spans.counters, ofCounters), () => Math.max(...spans.rows) + 1);
  process.stdout.write(JSON.stringify(windows.map(([low, high]) => {
    const tile = make(low, high, 1024), read = readTile({ classes: spans.escaped }, tile);
    const bars = [...read.start.keys()].map((n) => [
      read.start[n], Number.isFinite(read.end[n]) ? read.end[n] : -1, spans.names[read.name[n]],
      spans.tails[read.tail[n]], read.later[n], read.earlier[n], read.kind[n], read.place[n], read.line[n]]);
    const { start, end, length, first, last, look, place, line, looks } = read.calls;
    const calls = [...start.keys()].map((n) => [start[n], end[n], place[n], line[n] & 255,
      [...length.slice(first[n], last[n])].map((ns, at) => [ns, looks[look[first[n] + at]]])]);
    return { ...tile, calls, spansOf: read.calls.spans, bars, busy: read.busy.map((busy) => [...busy]), at: read.instants,
      ofCounters: read.ofCounters.map((sums) => [...sums]) };
  })));
});
"""


def random_trace(seed: int, spans: int = 3000) -> Trace:
    """Kernels of all lengths on two partitions: some escaped, some open, some at one instant."""
    rng = np.random.default_rng(seed)
    start = np.sort(rng.integers(0, 50_000_000, spans)) + 10**15
    end = start + np.where(
        rng.random(spans) < 0.1, 0, rng.integers(1, 10 ** rng.integers(2, 6), spans)
    )
    stream = rng.integers(1, 4, spans)
    home = np.where(stream == 1, "left", "right")
    return Trace.from_columns({
        "id": list(range(spans)),
        "kind": ["kernel"] * spans,
        "name": [f"kernel {number}" for number in rng.integers(0, 5, spans)],
        "stream": stream.tolist(),
        "start_ns": start.tolist(),
        "end_ns": [None if last else int(time) for time, last in zip(end, rng.random(spans) < 0.001, strict=True)],
        "partition": home.tolist(),
        "intended_partition": np.where(rng.random(spans) < 0.02, "left", home).tolist(),
        "start_uncertainty_ns": rng.integers(0, 3, spans).tolist(),
        "source": ["cupti"] * spans,
    })  # fmt: skip


TRACES = {
    **{path.stem: path for path in sorted((DATA / "recordings").glob("*.parquet"))},
    "a run": DATA / "before" / "run" / "trace-split.parquet",
    "several ranks": DATA / "before" / "merged.parquet",
    **{f"random {seed}": seed for seed in range(4)},
    "counters": counted_traces.random_trace(5),
}


@pytest.mark.parametrize("name", TRACES)
def test_a_page_makes_the_tiles_that_the_kernel_makes(name):
    of = TRACES[name]
    if isinstance(of, Trace):
        trace = of
    else:
        trace = random_trace(of) if isinstance(of, int) else gs.load_trace(of)
    state = TimelineState(trace, None)
    snapshot = state.snapshot(state.extent_ns, following=False)
    top = tiles.top_level(snapshot.extent_ns[1] - snapshot.zero_ns)
    rng = np.random.default_rng(1)
    levels = [top, *rng.integers(0, top + 1, 30).tolist()]
    extent = snapshot.extent_ns[1] - snapshot.zero_ns
    keys = [
        (level, int(rng.integers(0, extent // (tiles.COLUMNS << level) + 1))) for level in levels
    ]
    windows = [tiles.window_of(snapshot, *key) for key in keys]
    state.fold(folds=False)
    unfolded = state.snapshot(state.extent_ns, following=False)
    asked = {
        "spans": file.packed(unfolded)[0] | {"rows": file.layout(snapshot, unfolded)["rows"]},
        "windows": [[edge - snapshot.zero_ns for edge in window] for window in windows],
    }
    done = subprocess.run(
        ["node", "-e", tiles.SCRIPT + SERVED + PROGRAM],
        input=json.dumps(asked), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not done.returncode, done.stderr[-600:]
    for window, made in zip(windows, json.loads(done.stdout), strict=True):
        tile = tiles.tile(snapshot, window)
        for key in ("low", "high", "columns", "count", "groups", "spans"):
            assert made[key] == tile[key], key
        assert made["marks"] == [list(item) for item in tile["marks"]]
        bars, busy, at, counters = read(tile)
        assert_same_counters(snapshot, tile, counters, made["ofCounters"])
        assert sorted(map(str, made["bars"])) == sorted(map(str, bars))
        assert [[ns // tile["unit"] for ns in of_group] for of_group in made["busy"]] == busy
        assert made["at"] == at
        assert made["spansOf"] == tile["calls"]["spans"]
        assert sorted(map(str, made["calls"])) == sorted(map(str, read_calls(tile)))


def assert_same_counters(snapshot, tile: dict, counters: np.ndarray, made: list) -> None:
    """Lanes of counters are as high as the kernel's within a pixel, and blank where these are."""
    assert len(counters) in (0, len(made))
    made = np.array([[column or 0 for column in sums] for sums in made]).reshape(
        -1, tile["columns"]
    )
    first = 0
    for lane in snapshot.tracks.counters if len(counters) else ():
        rows = slice(first, first := first + len(lane.values))
        (there, *sums), (is_there, *of_page) = tile["unit"] * counters[rows], made[rows]
        assert np.array_equal(there > 0, is_there > 0)
        some = there > 0
        for of_kernel, page in zip(sums, of_page, strict=True):
            means = of_kernel[some] / there[some], page[some] / is_there[some]
            assert np.abs(means[0] - means[1]).max(initial=0) * lane.facts.px < lane.facts.reach


def read(tile: dict) -> tuple[list, list, list, np.ndarray]:
    """Return bars, busy columns, times of instants, and quantities of counters of a tile."""
    data, count, columns, instants = (tile[key] for key in ("data", "count", "columns", "instants"))
    offset = 0

    def take(kind: type, number: int) -> np.ndarray:
        nonlocal offset
        values = np.frombuffer(data, kind, number, offset)
        offset += values.nbytes
        return values

    start, end = take(np.float64, count), take(np.float64, count)
    take(np.int32, count)
    name, later, earlier = take(np.int32, count), take(np.float32, count), take(np.float32, count)
    group, column = take(np.uint32, instants), take(np.uint32, instants)
    counters = take(np.float32, tile["counters"] * columns).reshape(-1, columns).astype(float)
    width = np.uint16 if tile["bits"] == 16 else np.uint32
    busy = [take(width, columns).tolist() for _ in tile["groups"]]
    kind, tail = take(np.uint16, count), take(np.uint16, count)
    place, line = take(np.uint8, count), take(np.uint8, count)
    bars = [
        [
            int(start[n]), int(end[n]) if np.isfinite(end[n]) else -1,
            tile["names"][name[n]], [list(line) for line in tile["tails"][tail[n]]],
            int(later[n]), int(earlier[n]), int(kind[n]), int(place[n]), int(line[n]),
        ]
        for n in range(count)
    ]  # fmt: skip
    step = (tile["high"] - tile["low"]) // columns
    at = [(tile["low"] + column[group == number] * step).tolist() for number in range(len(busy))]
    return bars, busy, at, counters


def read_calls(tile: dict) -> list:
    """Return start, end, track, line and parts of the calls of a tile."""
    facts, offset = tile["calls"], tile["calls"]["at"]
    sizes = {
        "start": (np.float64, facts["count"]), "end": (np.float64, facts["count"]),
        "length": (np.float64, facts["parts"]), "row": (np.int32, facts["count"]),
        "first": (np.int32, facts["count"] + 1), "look": (np.uint16, facts["parts"]),
        "place": (np.uint8, facts["count"]), "line": (np.uint8, facts["count"]),
    }  # fmt: skip
    held = {}
    for name, (kind, number) in sizes.items():
        held[name] = np.frombuffer(tile["data"], kind, number, offset).tolist()
        offset += np.dtype(kind).itemsize * number
    return [
        [
            int(held["start"][n]), int(held["end"][n]), held["place"][n], held["line"][n],
            [
                [int(held["length"][part]), dict(facts["looks"][held["look"][part]])]
                for part in range(held["first"][n], held["first"][n + 1])
            ],
        ]
        for n in range(facts["count"])
    ]  # fmt: skip


def facts_of(page: str) -> dict:
    return json.loads(page[page.index('json">') + 6 : page.index("</script>")])


def test_what_a_file_leaves_out_is_in_columns_of_busy_time(monkeypatch):
    trace = random_trace(1)
    monkeypatch.setattr(file, "MOST_SPANS", 800)
    state = TimelineState(trace, None)
    state.fold(folds=False)
    snapshot = state.snapshot(state.extent_ns, following=False)
    spans, rows = file.packed(snapshot)
    spans["rows"] = file.layout(snapshot, snapshot)["rows"]
    rest = spans["rest"]
    assert len(rows) <= 800
    assert len(rows) + rest["spans"] == len(trace)
    assert set(snapshot.tracks.escaped) <= set(rows.tolist()), "groups of few spans are whole"
    low, wide = rest["from"], rest["column"]
    whole = (0, snapshot.extent_ns[1] - snapshot.zero_ns)
    done = subprocess.run(
        ["node", "-e", tiles.SCRIPT + SERVED + PROGRAM],
        input=json.dumps({"spans": spans, "windows": [whole, (low, low + 1024 * wide)]}),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not done.returncode, done.stderr[-600:]
    everything, later = json.loads(done.stdout)
    kernel = tiles.tile(snapshot, tuple(edge + snapshot.zero_ns for edge in whole))
    busy_of = dict(zip(map(tuple, kernel["groups"]), read(kernel)[1], strict=True))
    for group, busy in zip(everything["groups"], everything["busy"], strict=True):
        told = sum(busy_of[tuple(group)]) * kernel["unit"]
        assert sum(busy) == pytest.approx(told, abs=kernel["columns"] * kernel["unit"]), group
    edges = low + snapshot.zero_ns + wide * np.arange(1025)
    numbers = [group for track in snapshot.places.tracks
               for group in snapshot.tracks.row_of(track).groups]  # fmt: skip
    exact = snapshot.tracks.index.columns(edges, numbers)[0].tolist()
    assert later["busy"] == [busy for busy in exact if any(busy)]
    cut = {place for place, _, _, is_cut in spans["groups"] if is_cut}
    for tile in (everything, later):
        assert all(tile["spans"][spans["rows"][place]] is None for place in cut)


def test_the_critical_path_does_not_take_the_place_of_the_spans(monkeypatch, tmp_path):
    gpu = gs.open_device("sim:h200", quiet=True)
    kernel = gs.workloads.spin_kernel(gpu)
    with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
        for _ in range(40):
            stream.launch(kernel, 20_000, grid=1, block=32)
            stream.synchronize()
    trace = recording.trace
    for most, count in ((10**6, None), (len(trace), len(trace))):
        monkeypatch.setattr("gpuscope.report.trace.MOST_SPANS", most)
        monkeypatch.setattr(file, "MOST_SPANS", most)
        page = trace_report(trace, tmp_path / "t.html").read_text("utf-8")
        facts = facts_of(page[page.index("data-timeline") :])
        drawn = sum(group[2] for group in facts["groups"])
        assert facts["rest"] is None
        assert drawn == count if count else drawn > len(trace)
        assert ("without the critical path" in page) is (count is not None)


def test_a_row_that_is_left_out_cannot_be_selected(monkeypatch):
    monkeypatch.setattr(file, "MOST_SPANS", 100)
    page = file.timeline_html(random_trace(1))
    facts = facts_of(page)
    assert facts["rest"]["spans"] == 3000 - sum(group[2] for group in facts["groups"])
    low, high = facts["first"]
    assert [low, high] == facts["layouts"][0]["scene"]["extent"]
    with pytest.raises(gs.errors.MissingEvidence, match="2900"):
        file.timeline_html(random_trace(1), selected=2900)


def test_of_too_many_calls_the_longest_keep_their_parts(monkeypatch):
    trace = gs.load_trace(DATA / "before" / "run" / "trace-split.parquet")
    monkeypatch.setattr(file, "MOST_CALLS", 10)
    page = file.timeline_html(trace)
    facts = facts_of(page)["calls"]
    kept = sum(count for _, count, _ in facts["tracks"])
    assert 0 < kept <= 10
    calls = TimelineState(trace, None).tracks.calls
    totals = sorted(len(calls.row[calls.of(number)]) for number in calls.tracks)
    told = [
        re.fullmatch("the longest (.*) of (.*) calls", words).groups() for words in facts["words"]
    ]
    assert [int(drawn) for drawn, _ in told] == [count for _, count, _ in facts["tracks"]]
    assert sorted(int(count.replace(",", "")) for _, count in told) == totals
    assert facts["column"] > 0
