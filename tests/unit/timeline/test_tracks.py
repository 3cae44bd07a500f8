"""Tracks of a trace that grows: as those of the whole, whatever came in which batch."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.timeline import style
from gpuscope.timeline.labels import LAYOUT, Places
from gpuscope.timeline.look import look
from gpuscope.timeline.picture import Panel, Picture
from gpuscope.timeline.plotly_parts import arrow_lines, bars, traces_of
from gpuscope.timeline.scene import Scene
from gpuscope.timeline.tracks import Tracks, is_by_stream
from gpuscope.timeline.waits import WaitColumns
from gpuscope.trace import schema
from gpuscope.trace.joins import union
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import named
from gpuscope.trace.tracks import Group

KINDS = (
    "kernel", "memcpy", "api", "handle", "range", "mark", "event", "sync", "block", "counter"
)  # fmt: skip


@st.composite
def rows(draw):
    """Rows of all kinds, in any order of time, some open."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.integers(1, 80))
    found = []
    for number, kind in enumerate(rng.choice(KINDS, count).tolist()):
        start = int(rng.integers(0, 10_000))
        on_gpu = kind in ("kernel", "memcpy")
        open_ended = kind in ("mark", "event") or rng.random() < 0.1
        found.append(
            {
                "id": number * 7 % 401,
                "kind": kind,
                "name": f"n{rng.integers(5)}",
                "start_ns": start,
                "end_ns": None if open_ended else start + int(rng.integers(0, 3000)),
                "source": "cupti" if on_gpu else "host",
                "stream": int(rng.integers(3)) if on_gpu else None,
                "partition": str(rng.choice(["a", "b"])) if on_gpu and start % 3 else None,
                "intended_partition": "b" if start % 5 == 0 else None,
                "category": str(rng.choice(["x", "y"])) if kind == "handle" else None,
                "process": None if on_gpu else 7,
                "thread": None if on_gpu else int(rng.integers(2)),
                "start_uncertainty_ns": int(rng.integers(0, 9)) if on_gpu else None,
            }
        )
    return found


def table(found):
    return schema.table(
        {name: [row[name] for row in found] for name in found[0]}, schema.SPAN_TYPES
    )


def edges_of(found):
    ids = [row["id"] for row in found]
    pairs = list(itertools.pairwise(ids))[::3]
    return schema.table(
        {
            "from": [one for one, _ in pairs],
            "to": [other for _, other in pairs],
            "kind": ["event wait" if one % 2 else "launch" for one, _ in pairs],
        },
        schema.EDGE_TYPES,
    )


def drawn(tracks, trace):
    scene = Scene.of(tracks, (0, 12_000), max_spans=30)
    colours = style.partition_colours([trace], tracks.partitions())
    panel = Panel(scene, Places.of(scene.shown, scene.depth), 0)
    by_class = {
        bar_class: {name: list(values) for name, values in properties.items()}
        for bar_class, properties in bars(panel).items()
    }
    columns = [
        [drawn.get("name"), drawn["y"].tolist()]
        for drawn in traces_of(Picture((panel,), colours, "µs", {}))
        if drawn.get("mode") == "lines"
    ]
    lines = arrow_lines(panel, scene.waits)
    arrows = sorted(zip(lines["x"][::3], lines["y"][1::3], strict=True))
    labels = [(track.label, track.partition, track.process) for track in scene.shown]
    return labels, by_class, columns, arrows, scene.waits.left_out


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_batches_one_by_one_are_drawn_as_the_trace(data):
    found = data.draw(rows())
    metadata = TraceMetadata(partitions={"b": {}, "a": {}}, streams={"1": {"name": "one"}})
    spans, edges = table(found), edges_of(found)
    whole = Trace(spans, edges, metadata)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(found)), max_size=4)))
    with_edges = data.draw(st.integers(0, len(cuts)))
    tracks = Tracks.of(Trace.from_columns({}, metadata=TraceMetadata()))
    for number, (low, high) in enumerate(itertools.pairwise([0, *cuts, len(found)])):
        share = edges if number == with_edges else edges.slice(0, 0)
        tracks = tracks.extended(spans.slice(low, high - low), share, named(whole).metadata)
    at_once = Tracks.of(whole)
    assert len(tracks) == len(whole) == len(at_once)
    assert tracks.elsewhere() == at_once.elsewhere()
    assert set(tracks.classes.items()) == set(at_once.classes.items())
    assert drawn(tracks, whole) == drawn(at_once, whole)


@given(rows(), st.booleans())
def test_a_row_has_the_track_and_the_look_that_it_has_by_itself(found, with_partitions):
    if not with_partitions:  # colours tell streams apart then
        found = [{**row, "partition": None, "intended_partition": None} for row in found]
    trace = Trace(table(found), edges_of(found), TraceMetadata())
    tracks = Tracks.of(trace)
    keys, track = LAYOUT.of(trace)
    assert tracks.track.tolist() == track.tolist()
    assert len(tracks.tracks) == len(keys)
    groups = {number: key for key, number in tracks.groups.items()}
    drawn = np.flatnonzero(track >= 0).tolist()
    for at in drawn:
        row = found[at]
        number, look_of = groups[tracks.group[at]]
        on_stream = keys[track[at]].group == Group.STREAM
        assert number == track[at]
        assert look_of.kind == row["kind"]
        assert look_of.partition == (row["partition"] or ("" if on_stream else None))
        assert look_of.is_open == (row["end_ns"] is None and row["kind"] not in ("mark", "event"))
        outside = row["intended_partition"] not in (None, row["partition"])
        assert look_of.escaped == (row["kind"] == "kernel" and outside)
        assert bool(look_of.stream) == (is_by_stream(trace) and look_of.partition == "")
    escaped = [at for at in drawn if groups[tracks.group[at]][1].escaped]
    assert tracks.escaped.tolist() == escaped
    ends = trace.array("end_ns", fill=0) - trace.array("start_ns")
    for number, busy_ns in enumerate(tracks.busy_ns.tolist()):
        assert busy_ns == sum(max(int(ends[at]), 0) for at in drawn if track[at] == number)
    assert tracks.narrow == {
        number for number in range(len(keys))
        if all(at in escaped for at in drawn if track[at] == number)
    }  # fmt: skip


@given(rows(), st.integers(0, 9000), st.integers(1, 4000))
def test_a_track_is_busy_for_as_long_as_any_of_its_groups(found, low, length):
    tracks = Tracks.of(Trace(table(found), edges_of(found), TraceMetadata()))
    for number in tracks.rows:
        at = np.flatnonzero(tracks.track == number)
        start = np.clip(tracks.start_ns[at], low, low + length)
        end = np.clip(tracks.end_ns[at], low, low + length)
        spans = union(start, np.maximum(start, end))
        assert tracks.busy_in([number], (low, low + length)) == int(np.diff(spans).sum())


def test_what_was_read_stays_when_more_comes():
    found = [
        {"id": at, "kind": "kernel", "name": "k", "start_ns": at, "end_ns": at + 1,
         "source": "cupti"} for at in range(100)
    ]  # fmt: skip
    edges = schema.table({}, schema.EDGE_TYPES)
    tracks = Tracks.of(Trace(table(found[:50]), edges, TraceMetadata()))
    before = tracks.start_ns
    longer = tracks.extended(table(found[50:]), edges, TraceMetadata())
    assert len(tracks) == 50
    assert before.tolist() == list(range(50))
    assert longer.start_ns.tolist() == list(range(100))
    assert len(tracks.index) == 50


def test_waits_find_rows_that_come_later():
    kinds = {"from": [3, 5, 9], "to": [8, 4, 3], "kind": ["event wait", "launch", "event wait"]}
    edges, none = schema.table(kinds, schema.EDGE_TYPES), schema.table({}, schema.EDGE_TYPES)
    waits = WaitColumns.none().extended(np.array([3, 4]), edges)
    assert waits.cause.size == 0
    waits = waits.extended(np.array([3, 4, 8]), none)
    assert (waits.cause.tolist(), waits.effect.tolist()) == ([0], [2])
    waits = waits.extended(np.array([3, 4, 8, 9]), none)
    assert (waits.cause.tolist(), waits.effect.tolist()) == ([0, 3], [2, 0])


def test_what_overlaps_in_a_track_has_room_for_its_name():
    columns = {
        "id": [1, 2], "kind": ["kernel"] * 2, "name": ["one", "two"], "stream": [1, 1],
        "start_ns": [0, 100], "end_ns": [9_000, 9_000], "source": ["cupti"] * 2,
    }  # fmt: skip
    _, bars, *_ = drawn(Tracks.of(Trace.from_columns(columns)), Trace.from_columns(columns))
    (bar,) = bars.values()
    assert bar["text"] == ["one", "two"]
    (one, two), (height, _) = bar["y"], bar["width"]
    assert height > 14, "letters of 11 px and what is around them"
    assert two - one > height, "a gap tells them apart"


def test_uploads_and_downloads_are_told_apart_by_name_and_look():
    trace = Trace.from_columns(
        {
            "id": [1, 2, 3],
            "kind": ["memcpy"] * 3,
            "name": ["copy"] * 3,
            "copy_kind": ["HtoD", "DtoH", "DtoD"],
            "stream": [7, 7, 7],
            "start_ns": [0, 10, 20],
            "end_ns": [9, 19, 29],
            "source": ["cupti"] * 3,
        }
    )
    tracks = Tracks.of(trace)
    names = tracks.coded["name"]
    assert [names.values[code] for code in names.codes] == ["upload", "download", "copy"]
    looks = [look(tracks, kind, {"stream 7": "#0072B2"}) for kind in tracks.classes]
    assert len({(each.fill, each.pattern) for each in looks}) == 3
    assert len(tracks.tracks) == 1
