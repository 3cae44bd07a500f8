"""Sampled stacks on a timeline: a lane a thread, bars by function, looks by state."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from patience import PATIENCE_S
from PIL import Image, ImageColor

import gpuscope as gs
from gpuscope import figures
from gpuscope.errors import MissingEvidence
from gpuscope.timeline.canvas import tiles
from gpuscope.timeline.extent import default_window_ns
from gpuscope.timeline.labels import folded
from gpuscope.timeline.look import look
from gpuscope.timeline.raster import png
from gpuscope.timeline.readings import STACK, STATES, SYSTEM_CALL, state_of
from gpuscope.timeline.scene import Scene
from gpuscope.timeline.style import HOST_COLOUR, SLOWED_COLOUR, darker
from gpuscope.timeline.tracks import Tracks
from gpuscope.timeline.words import hovers, statement
from gpuscope.trace import Trace
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.schema import HOLDS_LOCK, IN_CALL, RUNS, WAITS_FOR_LOCK, WITHOUT_LOCK
from gpuscope.trace.tracks import Group
from gpuscope.widgets.details import describe

MAIN, LOADER = 11, 12
SEEN = [
    (MAIN, 0, 400, "step", HOLDS_LOCK, 4, None),
    (MAIN, 400, 500, "step", WAITS_FOR_LOCK, 1, "torn"),
    (MAIN, 500, 1000, "sort", RUNS, 5, "torn, cut"),
    (LOADER, 0, 300, "read", f"{IN_CALL}read", 3, None),
    (LOADER, 300, 600, "read", WITHOUT_LOCK, 3, None),
    (LOADER, 600, 1000, "read", None, 4, None),
]
LINES = [["train.py", 7 + depth, f"f{depth}"] for depth in range(6)]


def built(seen=SEEN, *, kernel=True, value=None):
    rows = [
        {"kind": "stack", "thread": thread, "process": 1, "start_ns": start, "end_ns": end,
         "name": name, "status": status, "value": float(samples) if value is None else value,
         "category": mark, "site": json.dumps(LINES), "payload": json.dumps(LINES), "source": "host"}
        for thread, start, end, name, status, samples, mark in seen
    ]  # fmt: skip
    if kernel:
        rows.append({"kind": "kernel", "name": "k", "start_ns": 450, "end_ns": 480, "device": 0,
                     "process": 1, "stream": 7, "source": "cupti"})  # fmt: skip
    rows = [{"id": number, **row} for number, row in enumerate(rows)]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    threads = {str(MAIN): "main thread", str(LOADER): "loader"}
    return Trace.from_columns(columns, None, TraceMetadata(thread_names=threads))


def of_stacks(scene):
    return [at for at, track in enumerate(scene.shown) if track.group == Group.STACKS]


def test_each_thread_has_a_lane_with_bars_by_function_and_state():
    tracks = Tracks.of(built())
    scene = Scene.of(tracks, (0, 1000), host=True)
    lanes = of_stacks(scene)
    assert [scene.shown[at].label for at in lanes] == [
        "sampled stacks · main thread",
        "sampled stacks · loader",
    ]
    classes, number = scene.classed
    names = tracks.coded["name"]
    bars = sorted(
        (scene.shown[place].label.split(" · ")[1], start, names.values[names.codes[row]], kind)
        for place, start, row, kind in zip(
            scene.place.tolist(), scene.start_ns.tolist(), scene.rows.tolist(),
            [classes[at].kind for at in number], strict=True,
        ) if place in lanes
    )  # fmt: skip
    assert bars == [
        ("loader", 0, "read", SYSTEM_CALL),
        ("loader", 300, "read", WITHOUT_LOCK),
        ("loader", 600, "read", STACK),
        ("main thread", 0, "step", HOLDS_LOCK),
        ("main thread", 400, "step", WAITS_FOR_LOCK),
        ("main thread", 500, "sort", RUNS),
    ]
    assert "other kinds" not in statement(scene)


def test_of_one_thread_the_lane_needs_no_name():
    scene = Scene.of(Tracks.of(built(SEEN[:3], kernel=False)), (0, 1000), host=True)
    assert [track.label for track in scene.shown] == ["sampled stacks"]


def test_the_lanes_are_folded_with_the_host():
    labels = [track.label for track in folded(Tracks.of(built()).tracks)]
    assert labels == ["whole GPU · stream 7", "▸ host, 2 rows"]


@pytest.mark.parametrize("pixels", [1, 4, 7])
def test_columns_have_the_share_of_each_state(pixels):
    tracks = Tracks.of(built())
    (lane,) = (track for track in tracks.tracks if "main" in track.label)
    columns = Scene.among(tracks, [lane], (0, 1000), pixels=pixels).columns
    classes = [bar_class.kind for _, bar_class in tracks.groups]
    busy = dict(
        zip((classes[group] for group in columns.rows[0].groups), columns.busy_ns, strict=True)
    )
    for kind, start, end in ((HOLDS_LOCK, 0, 400), (WAITS_FOR_LOCK, 400, 500), (RUNS, 500, 1000)):
        edges = columns.edges
        expected = np.minimum(edges[1:], end) - np.maximum(edges[:-1], start)
        assert busy[kind].tolist() == np.maximum(expected, 0).tolist()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (0, ["4 samples", "holds Python's lock"]),
        (1, ["1 sample<", "torn: frames moved", "waits for Python's lock"]),
        (2, ["5 samples", "torn: frames moved", "cut: frames are left out", "runs without"]),
        (3, ["3 samples", "in system call read", "in a system call"]),
        (4, ["without Python's lock"]),
    ],
)
def test_a_tooltip_tells_state_samples_lines_and_marks(row, words):
    plot = Scene.of(Tracks.of(built()), (0, 1000), host=True)
    hover = dict(zip(plot.rows.tolist(), hovers(plot), strict=True))[row]
    bar_class = plot.classed[0][plot.classed[1][plot.rows.tolist().index(row)]]
    told = "<br>".join([hover, *look(plot.tracks, bar_class, {}).lines])
    assert all(word in told for word in words), told
    assert [f"train.py:{7 + depth} in f{depth}" in told for depth in range(6)] == [True] * 4 + [
        False
    ] * 2
    assert "2 lines more" in told


def test_a_foreign_value_is_no_number_of_samples():
    for value in (float("nan"), float("inf"), -3.0, 1e300):
        tracks = Tracks.of(built(value=value))
        assert 0 <= tracks.samples(np.arange(3)).min() <= tracks.samples(np.arange(3)).max() < 1e10


def test_who_waits_for_the_lock_stands_out():
    tracks = Tracks.of(built())
    edges = {kind.kind: look(tracks, kind, {}).edge for kind in tracks.classes if not kind.owner}
    assert edges[WAITS_FOR_LOCK] == darker(SLOWED_COLOUR)
    assert {edges[kind] for kind in STATES if kind != WAITS_FOR_LOCK} == {darker(HOST_COLOUR)}
    looks = [look(tracks, kind, {}) for kind in tracks.classes if kind.kind in (*STATES, STACK)]
    assert len({how.fill for how in looks}) == len(looks), "columns have no pattern"
    assert len({how.name for how in looks}) == len(looks)


def test_every_status_has_a_state():
    statuses = [HOLDS_LOCK, WAITS_FOR_LOCK, RUNS, WITHOUT_LOCK, f"{IN_CALL}futex", "asleep", None]
    assert [*map(state_of, statuses)] == [*STATES, STACK, STACK]


def test_more_rows_of_a_recording_go_on_their_lane():
    whole = built()
    tracks = Tracks.of(Trace.from_columns({}, metadata=whole.metadata))
    for low in range(0, len(whole), 2):
        part = whole.spans.slice(low, 2)
        tracks = tracks.extended(part, whole.edges, whole.metadata)
    at_once = Tracks.of(whole)
    assert tracks.samples(np.arange(6)).tolist() == [4, 1, 5, 3, 3, 4]
    assert {track.label for track in tracks.tracks} == {track.label for track in at_once.tracks}
    assert {*tracks.classes} == {*at_once.classes}


def test_the_first_view_is_of_what_the_program_did():
    assert default_window_ns(built()) == (450, 480)
    assert default_window_ns(built(kernel=False)) == (0, 1000)


def test_all_painters_draw_the_lanes():
    trace = built()
    figure = figures.timeline(trace, window_ns=(0, 1000), host=True)
    assert {"holds Python's lock", "in a system call"} <= {bars.name for bars in figure.data}
    image = Image.open(io.BytesIO(png(figure))).convert("RGB")
    colours = {colour for _, colour in image.getcolors(1 << 20)}
    wanted = np.array(ImageColor.getrgb(SLOWED_COLOUR))
    assert min(np.abs(np.array(colour) - wanted).max() for colour in colours) < 12


def test_the_canvas_gets_their_bars_and_tails():
    timeline = gs.Timeline(built())
    assert timeline.wait(PATIENCE_S)
    timeline.host = True
    snapshot = timeline.state.snapshot((0, 1000), following=False)
    tile = tiles.tile(snapshot, (0, 1000))
    timeline.close()
    names = {how["name"] for how in timeline.bar.scene["classes"]}
    assert {"waits for Python's lock", "in a system call"} <= names
    assert ["1 sample", "torn: frames moved while they were read"] in [
        [text for text, _ in lines[:2]] for lines in tile["tails"]
    ]


def test_the_dock_has_the_whole_stack():
    facts = describe(built(), 3)
    assert "in system call read · 3 samples" in facts["subtitle"]
    assert not {"site", "payload"} & {name for name, _ in facts["columns"]}
    at, (title, lines) = facts["tables"]
    assert at[0] == "At train.py:7 in f0"
    assert title.startswith("Stack")
    assert lines == [(f"f{depth}", f"train.py:{7 + depth}") for depth in range(6)]


def test_why_says_where_the_state_is():
    with pytest.raises(MissingEvidence, match="status"):
        gs.telling.explain(built(), 0)


def test_steps_do_not_begin_with_the_first_sample():
    launched = {
        "id": [0, 1, 2],
        "kind": ["api", "kernel", "stack"],
        "name": ["launch", "k", "step"],
        "start_ns": [440, 450, 0],
        "end_ns": [445, 480, 400],
        "thread": [MAIN, None, MAIN],
        "device": [None, 0, None],
        "source": ["cupti", "cupti", "host"],
    }
    trace = Trace.from_columns(launched, {"from": [0], "to": [1], "kind": ["launch"]})
    found = [gs.analysis.steps(some) for some in (trace, trace.where(kind=("api", "kernel")))]
    assert found[0].start_up_ns == found[1].start_up_ns
