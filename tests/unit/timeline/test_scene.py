"""A scene against the rows, and what each painter makes of it: canvas, Plotly's figure, PNG."""

from __future__ import annotations

import io
import itertools
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_S
from PIL import Image

import gpuscope as gs
from gpuscope._text import percent
from gpuscope.timeline.canvas import tiles
from gpuscope.timeline.columns import (
    Row,
    breaks_of,
    columns_of,
    edges_of,
    heights,
    marks,
    missing_in,
    resampled,
    seen_in,
)
from gpuscope.timeline.index import Index
from gpuscope.timeline.raster import WIDTH, png
from gpuscope.timeline.scene import Scene
from gpuscope.timeline.style import ESCAPED, OKABE_ITO
from gpuscope.timeline.tracks import Tracks
from gpuscope.timeline.words import shares_of
from gpuscope.trace import schema
from gpuscope.trace.facts import HazardFacts
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace
from gpuscope.widgets.details import told_of_stretch

KINDS = ("uniform", "alternating", "rare", "all escaped")
EPOCH_NS = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class Rows:
    """Spans on a stream in partition a, and on one of the whole GPU."""

    start: np.ndarray
    end: np.ndarray
    stream: np.ndarray
    escaped: np.ndarray

    def trace(self) -> Trace:
        count = len(self.start)
        columns = {name: pa.nulls(count) for name in schema.SPAN_TYPES}
        a = np.where(self.stream == 1, "a", None)
        columns.update(
            id=pa.array(np.arange(count)),
            kind=pa.array(["kernel"] * count).dictionary_encode(),
            name=pa.array(["k"] * count).dictionary_encode(),
            source=pa.array(["cupti"] * count).dictionary_encode(),
            start_ns=pa.array(self.start), end_ns=pa.array(self.end),
            stream=pa.array(self.stream),
            partition=pa.array(a.tolist(), pa.string()).dictionary_encode(),
            intended_partition=pa.array(
                np.where(self.escaped, "a", a).tolist(), pa.string()
            ).dictionary_encode(),
        )  # fmt: skip
        metadata = TraceMetadata(partitions={"a": {"color": OKABE_ITO[0]}})
        edges = schema.table({}, schema.EDGE_TYPES)
        return Trace(pa.table(columns), edges, metadata)

    def groups(self):
        """The classes that there are: stream, and whether they escaped."""
        for stream, escaped in itertools.product((1, 2), (False, True)):
            mine = (self.stream == stream) & (self.escaped == escaped)
            if mine.any():
                yield (stream, escaped), self.start[mine], self.end[mine]


def rows_of(kind: str, count: int) -> Rows:
    rng = np.random.default_rng(count)
    at = np.arange(count, dtype=np.int64)
    start, lasts = EPOCH_NS + 1000 * at, np.full(count, 700, np.int64)
    stream, escaped = np.ones(count, np.int64), np.zeros(count, bool)
    if kind == "alternating":
        stream, lasts = 1 + at % 2, 400 + 200 * (at % 2)
        escaped = at % 4 == 3
    elif kind == "rare":
        start = EPOCH_NS + np.sort(rng.integers(0, 10**6 * count, count))
        lasts = np.minimum(rng.integers(1, 40, count), np.r_[np.diff(start), 40])
        escaped = rng.random(count) < 3 / count
        stream = 1 + escaped
    elif kind == "all escaped":
        stream, escaped = stream + 1, ~escaped
    return Rows(start, start + lasts, stream, escaped)


def busy_ns(start, end, edges):
    """How long disjoint spans were there between edges: each is added to the columns it is in."""
    first = np.clip(np.searchsorted(edges, start, "right") - 1, 0, len(edges) - 2)
    last = np.clip(np.searchsorted(edges, end, "left") - 1, 0, len(edges) - 2)
    found = np.zeros(len(edges) - 1, np.int64)
    for column in range(int((last - first).max(initial=0)) + 1):
        inside = first + column <= last
        at = (first + column)[inside]
        length = np.minimum(end[inside], edges[at + 1]) - np.maximum(start[inside], edges[at])
        np.add.at(found, at, np.maximum(length, 0))
    return found


def begun(start, edges):
    return np.histogram(start[start < edges[-1]], edges)[0]


@pytest.fixture(scope="module", params=[(kind, count) for kind in KINDS
                                        for count in (10**3, 10**5, 10**6)],
                ids=lambda one: f"{one[0]}-{one[1]}")  # fmt: skip
def case(request):
    rows = rows_of(*request.param)
    return rows, rows.trace()


def window_of(rows):
    return int(rows.start.min()), int(rows.end.max())


# -- the scene ----------------------------------------------------------------------------
def test_columns_are_what_the_rows_say_to_the_ns(case):
    rows, trace = case
    tracks = Tracks.of(trace)
    low, high = window_of(rows)
    for window in ((low, high), (low + (high - low) // 3 + 17, low + (high - low) // 2 + 5)):
        scene = Scene.of(tracks, window)
        columns = scene.columns
        assert columns.edges.tolist() == [
            window[0] + at * (window[1] - window[0]) // 1000 for at in range(1001)
        ]
        names = {number: key for key, number in tracks.groups.items()}
        found = {}
        for row, track in zip(columns.rows, scene.shown, strict=True):
            mine = columns.of_row(columns.rows.index(row))
            for group, busy, begins in zip(
                row.groups, columns.busy_ns[mine], columns.begins[mine], strict=True
            ):
                found[2 if track.partition is None else 1, names[group][1].escaped] = busy, begins
        for key, start, end in rows.groups():
            if key not in found:
                assert not is_in(start, end, window).any()
                continue
            busy, begins = found[key]
            assert busy.tolist() == busy_ns(start, end, columns.edges).tolist()
            inside = np.minimum(end, window[1]) - np.maximum(start, window[0])
            assert busy.sum() == inside[inside > 0].sum()
            assert begins.tolist() == begun(start, columns.edges).tolist()
        escapes = rows.start[rows.escaped]
        assert columns.escapes.sum() == ((escapes >= window[0]) & (escapes < window[1])).sum()


def is_in(start, end, window):
    return (start < window[1]) & (end > window[0])


def test_a_track_that_draws_its_spans_draws_all_of_them(case):
    rows, trace = case
    tracks = Tracks.of(trace)
    low, high = window_of(rows)
    seen = set()
    for parts in (1, 10, 100, 1000, 10_000):
        window = low + (high - low) // 3, low + (high - low) // 3 + max(1, (high - low) // parts)
        scene = Scene.of(tracks, window)
        for track, has_spans in zip(scene.shown, scene.with_spans, strict=True):
            mine = is_in(rows.start, rows.end, window)
            mine &= rows.stream == (2 if track.partition is None else 1)
            lasts = np.minimum(rows.end, window[1]) - np.maximum(rows.start, window[0])
            wide = lasts[mine] * 1000 >= 3 * (window[1] - window[0])
            if mine.sum() <= 2000:
                assert has_spans == (2 * wide.sum() >= mine.sum())
            drawn = scene.rows[tracks.track[scene.rows] == track.number]
            assert sorted(drawn) == (np.flatnonzero(mine).tolist() if has_spans else [])
            seen.add(bool(has_spans))
    assert False in seen


# -- the painters -------------------------------------------------------------------------
def expected_heights(rows, edges, px):
    """Stream → colour → its height in each column, from the rows."""
    found = {}
    for (stream, escaped), start, end in rows.groups():
        share = busy_ns(start, end, edges) / np.diff(edges)
        found.setdefault(stream, {})[escaped] = share * px
    return found


def test_plotlys_figure_has_the_columns(case):
    rows, trace = case
    low, high = window_of(rows)
    figure = gs.figures.timeline(trace)
    edges = edges_of((low, high), 1000)
    fills = [one for one in figure.data if getattr(one, "fill", None) == "tonexty"]
    lines = [figure.data[figure.data.index(one) - 1] for one in fills]
    found = {}
    for line, fill in zip(lines, fills, strict=True):
        stream = 1 if fill.name.startswith("a:") else 2
        found[stream, "ESCAPED" in fill.name] = np.array(line.y) - np.array(fill.y), fill
    groups = list(rows.groups())
    assert len(found) == len(groups)
    for key, start, end in groups:
        height, fill = found[key]
        busy = busy_ns(start, end, edges)
        share = np.array(fill.customdata)[:-1]
        assert share == pytest.approx(busy / np.diff(edges), abs=1e-6)
        assert (height[:-1][busy > 0] >= 2).all(), "a column is blank where something ran"
        assert not height[:-1][(busy == 0) & (begun(start, edges) == 0)].any()
        if len(list(rows.groups())) == 1:
            assert (
                np.abs(height[:-1] - np.maximum(px_of(rows, key[0]) * share, 2))[busy > 0].max()
                <= 1
            )
    counts = [one.customdata for one in figure.data if one.name == "escapes"]
    assert sum(map(sum, counts)) == rows.escaped.sum()


def test_the_png_has_them(case):
    rows, trace = case
    low, high = window_of(rows)
    figure = gs.figures.timeline(trace)
    picture = np.asarray(Image.open(io.BytesIO(png(figure))).convert("RGB")).astype(int)
    left = WIDTH - figure.layout.margin.r - plot_width(picture, figure)
    wide = WIDTH - figure.layout.margin.r - left
    edges = np.linspace(low, high, wide + 1)
    scale = figure.layout.yaxis.range[0] / (
        figure.layout.height - figure.layout.margin.t - figure.layout.margin.b
    )
    assert scale == pytest.approx(1, abs=0.02)
    for stream, classes in expected_heights(rows, edges.astype(np.int64), 1).items():
        place = ["whole" in label for label in figure.layout.yaxis.ticktext].index(stream == 2)
        px = px_of(rows, stream)
        centre = figure.layout.margin.t + figure.layout.yaxis.tickvals[place]
        area = picture[round(centre) - px // 2 : round(centre) + px // 2, left : left + wide]
        for escaped, height in classes.items():
            colour = ESCAPED if escaped else OKABE_ITO[0] if stream == 1 else "#6E7781"
            seen = (np.abs(area - rgb(colour)).max(axis=2) <= 12).sum(axis=0)
            ran, height = height[1:-1] > 0, px * height  # noqa: PLW2901
            near = np.maximum(np.maximum(seen[:-2], seen[2:]), seen[1:-1])  # the plot's own edges
            assert (near[ran] >= 1).all(), "a column is blank where something ran"
            typical = np.clip(height[1:-1][ran], 2, None)
            assert abs(seen[1:-1][ran].mean() - typical.mean()) <= 1


def px_of(rows, stream):
    """Height of the columns of a stream: lower where all that ran on it escaped."""
    groups = [escaped for (of, escaped), *_ in rows.groups() if of == stream]
    return 22 if groups == [True] else 30


def rgb(colour):
    return np.array(list(bytes.fromhex(colour[1:])))


def plot_width(picture, figure):
    """The axis' line: the longest dark run of the row at the bottom of the plot."""
    row = picture[round(figure.layout.height - figure.layout.margin.b)].sum(axis=1) < 400
    return int(row.sum()) - 1


def test_the_canvas_gets_them(case):
    rows, trace = case
    timeline = gs.Timeline(trace)
    assert timeline.wait(PATIENCE_S)
    root, classes = timeline.bar.scene["root"], timeline.bar.scene["classes"]
    check_tile(root, classes, rows, timeline)
    snapshot = timeline.state.snapshot(timeline.window_ns, following=False)
    level = timeline.bar.scene["top"] // 2
    window = tiles.window_of(snapshot, level, 1)
    check_tile(tiles.tile(snapshot, window), classes, rows, timeline)
    timeline.close()


def check_tile(tile, classes, rows, timeline):
    zero = int(rows.start.min())
    edges = zero + np.linspace(tile["low"], tile["high"], tile["columns"] + 1).astype(np.int64)
    at = tile["count"] * (8 + 8 + 4 + 4 + 4 + 4)
    shape = len(tile["groups"]), tile["columns"]
    group, column = np.frombuffer(tile["data"], np.uint32, 2 * tile["instants"], at).reshape(2, -1)
    at += 8 * tile["instants"]
    kind = np.dtype(f"u{tile['bits'] // 8}")
    busy = np.frombuffer(tile["data"], kind, shape[0] * shape[1], at).reshape(shape)
    assert tile["unit"] == 1
    found, marked = {}, {}
    tracks = timeline.state.snapshot(timeline.window_ns, following=False).places.tracks
    for number, (place, kind) in enumerate(tile["groups"]):
        stream = 2 if tracks[place].partition is None else 1
        found[stream, classes[kind]["escaped"]] = busy[number], column[group == number]
        marked[stream] = [at for track, at, what, _ in tile["marks"] if track == place]
    for key, start, end in rows.groups():
        expected = busy_ns(start, end, edges)
        if key not in found:
            assert not expected.any()
            continue
        assert found[key][0].tolist() == expected.tolist()
        began = begun(start[start >= edges[0]], edges)
        assert found[key][1].tolist() == np.flatnonzero(began * (expected == 0)).tolist()
        if key[1]:
            first_of_block = {}
            for at in np.flatnonzero(began).tolist():
                first_of_block.setdefault(at // (12 * tiles.FINER), at)
            assert marked[key[0]] == list(first_of_block.values())


# -- what painters decide -----------------------------------------------------------------
@given(st.lists(st.lists(st.integers(0, 100), min_size=2, max_size=2), min_size=1, max_size=4),
       st.integers(12, 60))  # fmt: skip
def test_heights_are_shares_that_are_seen_and_leave_room(busy, px):
    busy = np.array(busy)
    tall = heights(busy, busy > 0, np.full(2, 100), px)
    total = busy.sum(axis=0)
    assert ((tall >= 2) == (busy > 0)).all()
    assert (tall.sum(axis=0)[total >= 100] == px).all()
    assert (tall.sum(axis=0)[total < 100] <= px - 1).all()
    share = busy / np.maximum(total, 100)
    few = (busy > 0).sum(axis=0) == 1
    assert (np.abs(tall - np.clip(share * px, 2 * (busy > 0), px))[:, few] <= 1).all()


@given(st.lists(st.integers(0, 10), min_size=1, max_size=50), st.integers(1, 50))
def test_columns_resample_by_the_mean_weighted_by_time(values, count):
    share = np.array([values]) / 10
    fine = np.repeat(share, count, axis=1).reshape(1, count, len(values)).mean(axis=2)
    assert resampled(share, count)[0] == pytest.approx(fine[0], abs=1e-8)


@given(st.lists(st.integers(0, 5), max_size=60), st.integers(1, 20))
def test_marks_merge_and_keep_their_counts(counts, columns):
    counts = np.array([counts, counts[::-1]], np.int64)
    row, at, number = marks(counts, columns)
    for track in (0, 1):
        assert number[row == track].sum() == counts[track].sum()
        assert len(set(at[row == track] // columns)) == (row == track).sum()
    assert (counts[row, at] > 0).all()


def test_long_windows_have_whole_edges():
    low, high = 0, 2**62 + 12_345
    edges = edges_of((low, high), 1000)
    assert edges.tolist() == [low + at * (high - low) // 1000 for at in range(1001)]
    assert edges_of((5, 8), 1000).tolist() == [5, 6, 7, 8]


def test_breaks_hazards_and_lost_rows_are_in_the_scene():
    assert breaks_of([(50, 60), (0, 10), (5, 20)]) == [(20, 50)]
    index = Index(np.array([10, 70]), np.array([20, 80]), np.array([0, 1]))
    rows = [Row((0,), (False,)), Row((1,), (True,))]
    columns = columns_of(
        index, (0, 100), 10, rows, hazards=[np.array([10, 12]), np.array([70, 300])],
        missing=missing_in((0, 100), [(0, 30), (60, 200)], 25),
    )  # fmt: skip
    assert columns.hazards.tolist() == [[0, 2, *[0] * 8], [*[0] * 7, 1, 0, 0]]
    assert columns.escapes.tolist() == [[0] * 10, [*[0] * 7, 1, 0, 0]]
    assert columns.missing == ((30, 60, "not recorded"), (0, 25, "rows lost"))
    assert seen_in((0, 100), columns.missing) == [(25, 30), (60, 100)]
    assert seen_in((26, 29), missing_in((26, 29), [(0, 30), (60, 200)], 25)) == [(26, 29)]
    assert not seen_in((0, 20), missing_in((0, 20), [], 25))


def test_busy_shares_are_of_what_no_rows_are_missing_of():
    trace = Trace.from_columns(
        {"id": [0, 1, 2], "kind": ["kernel"] * 3, "name": ["k"] * 3, "source": ["cupti"] * 3,
         "start_ns": [0, 30, 80], "end_ns": [25, 40, 90], "stream": [0] * 3},
        metadata=TraceMetadata(
            windows_ns=[(0, 50), (70, 100)],
            kept={"keep_ns": 80, "since_ns": 20, "rows_left_out": 3},
        ),
    )  # fmt: skip
    tracks = Tracks.of(trace)
    assert tracks.seen_ns((0, 100)) == 60, "20 to 50 and 70 to 100"
    assert tracks.busy_in([0], (0, 100)) == 5 + 10 + 10
    assert shares_of(tracks, tracks.tracks, (0, 100)) == [[percent(25 / 60), "of 60 ns"]]
    assert shares_of(tracks, tracks.tracks, (25, 45)) == [["50 %", "10 ns"]]
    assert shares_of(tracks, tracks.tracks, (55, 65)) == [["–"]]
    busy = dict(told_of_stretch((0, 100), tracks, tracks.tracks, {})["tables"])["Busy"]
    assert busy[0][1].startswith(f"{percent(25 / 60)} of the 60 ns")


def test_every_hazard_has_its_mark():
    count = 3000
    found = [
        {"kind": "read after write", "first": 2 * at, "second": 2 * at + 1}
        for at in range(count // 2)
    ]
    trace = Trace.from_columns(
        {"id": list(range(count)), "kind": ["kernel"] * count, "name": ["k"] * count,
         "start_ns": [1000 * at for at in range(count)], "source": ["cupti"] * count,
         "end_ns": [1000 * at + 500 for at in range(count)], "stream": [0, 1] * (count // 2)},
        metadata=TraceMetadata(hazards=HazardFacts(found=found)),
    )  # fmt: skip
    figure = gs.figures.timeline(trace)
    (drawn,) = [one for one in figure.data if one.name == "hazards"]
    assert sum(drawn.customdata) == count
    timeline = gs.Timeline(trace)
    assert timeline.wait(PATIENCE_S)
    scene = Scene.of(timeline.state.tracks, timeline.state.extent_ns)
    assert scene.marks(1)["hazard"].number.sum() == count
    root = timeline.bar.scene["root"]
    assert {what for _, _, what, _ in root["marks"]} == {"hazard"}
    timeline.close()
