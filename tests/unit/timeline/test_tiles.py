"""What the browser paints of timelines with too many spans for Plotly: tiles."""

from __future__ import annotations

import re

import numpy as np
import pytest
from counted_traces import random_trace
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_S

import gpuscope as gs
from gpuscope import figures
from gpuscope.timeline.canvas import tiles
from gpuscope.timeline.canvas.plot import Plot
from gpuscope.timeline.canvas.snapshot import STRIPE
from gpuscope.timeline.columns import edges_of
from gpuscope.timeline.scene import LANES, Scene, lanes_of
from gpuscope.timeline.tracks import Tracks
from gpuscope.trace import Trace

SPANS = (("start", np.float64), ("end", np.float64), ("row", np.int32), ("name", np.int32),
         ("later", np.float32), ("earlier", np.float32))  # fmt: skip
INSTANTS = (("group", np.uint32), ("column", np.uint32))
MORE = (("kind", np.uint16), ("tail", np.uint16), ("place", np.uint8), ("line", np.uint8))


def kernels(count: int, *, every_ns: int = 1000, lasts_ns: int = 700, **more) -> Trace:
    return Trace.from_columns(
        {
            "id": list(range(count)),
            "kind": ["kernel"] * count,
            "name": [f"k{number % 7}" for number in range(count)],
            "start_ns": [5_000 + number * every_ns for number in range(count)],
            "end_ns": [5_000 + number * every_ns + lasts_ns for number in range(count)],
            "source": ["cupti"] * count,
            "stream": [1 + number % 3 for number in range(count)],
            "partition": ["p"] * count,
            **more,
        }
    )


@pytest.fixture
def shown():
    opened = []

    def show(trace):
        opened.append(gs.Timeline(trace))
        assert opened[-1].wait(PATIENCE_S)
        return opened[-1]

    yield show
    for timeline in opened:
        timeline.close()


def read(tile) -> dict[str, np.ndarray]:
    """As the browser does."""
    at, found = 0, {}
    groups, columns = len(tile["groups"]), tile["columns"]
    for names, count in (
        (SPANS, tile["count"]), (INSTANTS, tile["instants"]),
        ((("counters", np.float32),), tile["counters"] * columns),
        ((("busy", np.dtype(f"u{tile['bits'] // 8}")),), groups * columns),
        (MORE, tile["count"]),
    ):  # fmt: skip
        for name, kind in names:
            found[name] = np.frombuffer(tile["data"], kind, count, at)
            at += found[name].nbytes
    assert at + -at % 8 == tile["calls"]["at"]
    found["busy"] = found["busy"].reshape(groups, columns)
    return found


def snapshot_of(timeline):
    return timeline.state.snapshot(timeline.window_ns, following=False)


# -- lines inside a track -----------------------------------------------------------------
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), min_size=1, max_size=60))
def test_lines_do_not_depend_on_what_is_seen(spans):
    starts, lasts = zip(*spans, strict=True)
    trace = kernels(
        len(spans),
        start_ns=list(starts),
        end_ns=[start + last for start, last in spans],
        stream=[1] * len(spans),
    )
    tracks = Tracks.of(trace)
    lanes = lanes_of(tracks)
    scene = Scene.of(tracks, (-1, 100), max_spans=1000)
    drawn = dict(zip(scene.rows.tolist(), scene.lanes, strict=True))
    assert all(lanes[row] == lane for row, lane in drawn.items())
    ends = np.array(starts) + lasts
    for lane in range(LANES - 1):
        mine = np.flatnonzero(lanes == lane)
        order = mine[np.lexsort((-ends[mine], np.array(starts)[mine]))]
        assert (np.array(starts)[order][1:] >= ends[order][:-1]).all(), "two overlap on a line"


# -- tiles --------------------------------------------------------------------------------
def test_a_tile_has_columns_and_the_spans_where_they_are_wide(shown):
    timeline = shown(kernels(5000, lasts_ns=300))
    snapshot = snapshot_of(timeline)
    root = timeline.bar.scene["root"]
    assert (root["low"], root["high"]) == (0, tiles.COLUMNS << timeline.bar.scene["top"])
    assert root["high"] >= snapshot.extent_ns[1] - snapshot.zero_ns
    assert (root["count"], root["spans"]) == (0, [None] * 3)
    assert root["groups"] == [[0, 0], [1, 0], [2, 0]]
    assert read(root)["busy"].sum() * root["unit"] == 5000 * 300

    level = 6
    window = tiles.window_of(snapshot, level, 3)
    assert window == (5_000 + 3 * (1024 << 6), 5_000 + 4 * (1024 << 6))
    fine = tiles.tile(snapshot, window)
    columns = read(fine)
    tracks = snapshot.tracks
    inside = np.flatnonzero((tracks.start_ns < window[1]) & (tracks.end_ns > window[0]))
    assert fine["spans"] == [3 / 300] * 3, "once their 300 ns are 3 px"
    assert sorted(columns["row"]) == inside.tolist()
    assert (columns["start"] == tracks.start_ns[columns["row"]] - snapshot.zero_ns).all()
    assert (columns["end"] - columns["start"] == 300).all()
    names = [fine["names"][code] for code in columns["name"]]
    assert names == [f"k{row % 7}" for row in columns["row"]]
    assert (columns["place"] == columns["row"] % 3).all()
    assert fine["tails"][columns["tail"][0]] == [(f"stream {1 + columns['row'][0] % 3}", False)]


def test_an_open_span_ends_at_infinity_and_knows_it(shown):
    ends = [5_700 + 1000 * number for number in range(99)] + [None]
    timeline = shown(kernels(100, end_ns=ends))
    columns = read(timeline.bar.scene["root"])
    (is_open,) = np.flatnonzero(np.isinf(columns["end"]))
    lines = timeline.bar.scene["classes"][columns["kind"][is_open]]
    assert columns["row"][is_open] == 99
    assert lines["pattern"] == "-"


def test_the_page_knows_where_nothing_was_recorded_and_where_rows_are_lost(shown):
    trace = kernels(100).with_metadata(
        windows_ns=[(10_000, 40_000), (60_000, 110_000)],
        kept={"keep_ns": 100_000, "since_ns": 12_000, "rows_left_out": 3},
    )
    timeline = shown(trace)
    assert timeline.bar.scene["breaks"] == [
        [35_000, 55_000, ["not recorded", "20 µs"]], [0, 7_000, ["rows lost", "7 µs"]],
    ]  # fmt: skip


def test_tiles_of_what_was_shown_before_are_not_sent(shown, monkeypatch):
    timeline = shown(kernels(1000))
    sent = []
    monkeypatch.setattr(timeline.bar, "send", lambda content, buffers: sent.append(content))
    version = timeline.bar.scene["version"]
    ask = {"do": "tiles", "version": version, "want": [[4, 0], [4, 1]]}
    timeline.bar._handle_custom_msg(ask, [])
    assert [one["key"] for one in sent[0]["tiles"]] == [[4, 0], [4, 1]]
    timeline.show(kernels(2000))
    assert timeline.bar.scene["version"] != version
    timeline.bar._handle_custom_msg(ask, [])
    assert len(sent) == 1


def test_plotly_has_bars_for_its_legend_alone(shown):
    few = shown(kernels(3))
    (legend,) = [one for one in few.figure.data if one.type == "bar"]
    assert (legend.name, legend.meta, legend.y) == ("p: kernel", 0, (-100,))


def test_the_stripes_of_a_page_are_one_shape_where_those_of_a_picture_are(shown):
    timeline = shown(kernels(9))
    drawn = [shape for shape in timeline.figure.layout.shapes if shape.type == "path"]
    picture = [shape for shape in figures.timeline(kernels(9)).layout.shapes if shape.x1 == 1]
    (path,) = [shape.path for shape in drawn]
    edges = [tuple(map(float, edges)) for edges in re.findall(r"M0,([\d.]+)H1V([\d.]+)H0Z", path)]
    assert edges == timeline.state.snapshot((0, 1), following=False).places.stripes
    assert len(edges) == len(picture) == 2
    assert {(shape.xref, shape.yref, shape.layer, shape.fillcolor) for shape in drawn} == {
        (shape.xref, shape.yref, shape.layer, STRIPE) for shape in picture
    }


def test_an_export_has_the_bars_that_the_browser_paints(shown):
    timeline = shown(kernels(1000))
    timeline.window_ns = (100_000, 200_000)
    (bars,) = [one for one in timeline.figure.to_dict()["data"] if one["type"] == "bar"]
    assert 100 <= len(bars["x"]) <= 101
    assert "k3" in bars["hovertext"][0] or len(set(bars["hovertext"])) > 1
    assert timeline.figure.to_dict()["layout"]["xaxis"]["range"] == [95.0, 195.0]


def test_the_browser_is_not_told_of_the_range_that_it_told(shown, monkeypatch):
    timeline = shown(kernels(1000))
    sent = []
    send = Plot._send_update_msg

    def note(self, restyle, relayout, *more):
        sent.append(relayout)
        send(self, restyle, relayout, *more)

    monkeypatch.setattr(Plot, "_send_update_msg", note)
    timeline.bar._handle_custom_msg({"do": "range", "low": 100, "high": 300.5}, [])
    assert timeline.wait(PATIENCE_S)
    assert timeline.window_ns == (105_000, 305_500)
    assert not any("xaxis.range" in one for one in sent), "it would be taken back to there"
    assert tuple(timeline.figure.layout.xaxis.range) == (100, 300.5)
    timeline.fit()
    assert timeline.wait(PATIENCE_S)
    timeline.window_ns = (105_000, 305_500)
    assert timeline.wait(PATIENCE_S)
    assert [one["xaxis.range"] for one in sent if "xaxis.range" in one][-1] == [100, 300.5]


def test_a_click_selects_the_row_that_the_browser_painted(shown):
    timeline = shown(kernels(1000))
    timeline.bar._handle_custom_msg({"do": "click", "x": 0.5, "y": 0.5, "row": 7}, [])
    assert timeline.selected == 7
    timeline.bar._handle_custom_msg({"do": "click", "x": 0.5, "y": 0.5, "row": 10**9}, [])
    assert timeline.selected != 10**9


# -- escapes ------------------------------------------------------------------------------
def test_every_escape_is_marked_in_the_column_of_its_start(shown):
    partitions = ["a"] * 5000
    partitions[1234] = partitions[1235] = None
    intended = ["a"] * 5000
    ends = [5_000 + number * 1000 + 700 for number in range(5000)]
    ends[1234] -= 690  # the narrowest of all
    timeline = shown(kernels(5000, partition=partitions, intended_partition=intended, end_ns=ends))
    scene = timeline.bar.scene
    root = scene["root"]
    column = (root["high"] - root["low"]) / root["columns"]
    assert [mark[:3] for mark in root["marks"]] == [
        [track, int(number * 1000 / column), "escape"] for track, number in ((3, 1234), (4, 1235))
    ]
    escaped = [number for number, kind in enumerate(scene["classes"]) if kind["escaped"]]
    assert escaped == [len(scene["classes"]) - 1], "others are painted over it"
    marked = {track for track, kind in root["groups"] if kind in escaped}
    assert marked == {3, 4}, "those of the whole GPU"
    near = tiles.tile(snapshot_of(timeline), (5_000 + 1_230_000, 5_000 + 1_240_000))
    spans = read(near)
    at = spans["row"].tolist().index(1235)
    assert near["tails"][spans["tail"][at]][1] == ("ESCAPED: intended for partition a", True)
    figure = gs.figures.timeline(timeline._trace)
    (escapes,) = [one for one in figure.data if one.name == "escapes"]
    assert sum(escapes.customdata) == 2


def test_a_page_that_moves_by_itself_is_not_heard_again():
    told = []
    plot = Plot(lambda *found: told.append(found), lambda: None)
    plot.know({"xaxis.range": [1.0, 2.0]}, moves=True)
    plot.know({"xaxis.range": [5.0, 6.0]})
    for window in ([1.0, 2.0], [5.0, 6.0]):
        moved = {"xaxis.range[0]": window[0], "xaxis.range[1]": window[1]}
        plot.set_state({"_js2py_relayout": {"relayout_data": moved}})
    assert told == [(5.0, 6.0)]
    plot.close()


# -- lanes of counters --------------------------------------------------------------------
def test_a_tile_has_the_columns_of_lanes_of_counters(shown):
    snapshot = snapshot_of(shown(random_trace()))
    lanes = snapshot.tracks.counters
    page = tiles.page(snapshot, snapshot.extent_ns, None, live=False)["counters"]
    for level in (tiles.top_level(snapshot.extent_ns[1] - snapshot.zero_ns), 8, 3):
        window = tiles.window_of(snapshot, level, 1 if level < 9 else 0)
        tile = tiles.tile(snapshot, window)
        sums = read(tile)["counters"].reshape(tile["counters"], tile["columns"]) * tile["unit"]
        for facts, spot in zip(page, snapshot.places.counters, strict=True):
            assert (facts["top"], facts["tall"]) == (spot.top, spot.facts.px)
            wanted = lanes[spot.number].columns(edges_of(window, tiles.COLUMNS)).sums
            part = sums[facts["at"] : facts["at"] + facts["quantities"]]
            assert np.allclose(part, wanted, rtol=1e-6)


def test_a_tile_where_nothing_was_sampled_has_no_columns_of_counters(shown):
    snapshot = snapshot_of(shown(random_trace()))
    before = snapshot.zero_ns - 10_000, snapshot.zero_ns - 1_000
    assert tiles.tile(snapshot, before)["counters"] == 0
    assert tiles.tile(snapshot_of(shown(kernels(5))), before)["counters"] == 0
