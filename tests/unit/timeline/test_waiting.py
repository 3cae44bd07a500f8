"""Lanes of waits against the parts of each call, one by one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.errors import MissingEvidence
from gpuscope.telling.explanation import explain
from gpuscope.timeline.columns import edges_of, step_of
from gpuscope.timeline.extent import default_window_ns
from gpuscope.timeline.labels import WAITS_PX, Places
from gpuscope.timeline.scene import Scene
from gpuscope.timeline.tracks import Tracks
from gpuscope.timeline.waiting import boxes_of

DATA = Path(__file__).resolve().parents[2] / "data"
TRACES = [
    "recordings/waits_h100", "recordings/pytorch_h100", "recordings/requests_h100",
    "what_if/16_116", "what_if/64_68_waits", "what_if/whole", "before/run/trace-split",
    "before/merged",
]  # fmt: skip
NO_WAIT = ("launch call", "running", "not looking")


@pytest.fixture(scope="module", params=TRACES)
def trace(request):
    return gs.load_trace(DATA / f"{request.param}.parquet")


@pytest.fixture(scope="module")
def tracks(trace):
    return Tracks.of(trace)


def brute_force_calls(trace, tracks):
    """Track → id → start and end, of finished calls of handles, and of work outside of them."""
    rows = trace.spans.to_pylist()
    place = {row["id"]: at for at, row in enumerate(rows)}
    launched = {}
    for edge in trace.edges.to_pylist():
        if edge["kind"] == "launch" and {edge["from"], edge["to"]} <= place.keys():
            launched.setdefault(edge["to"], []).append(edge["from"])
    work_of = {}
    calls = {}
    for row in rows:
        if row["kind"] not in ("kernel", "memcpy", "memset", "host function", "graph"):
            continue
        handles = set()
        for call in launched.get(row["id"], []):
            around, handle = call, None
            while around in place:
                above = rows[place[around]]
                if above["kind"] == "handle" and above["end_ns"] is not None:
                    handle = around
                around = above["parent"]
            handles |= {handle} - {None}
        for handle in handles:
            work_of.setdefault(handle, []).append(row)
        if not handles and row["queued_ns"] is not None and row["end_ns"] is not None:
            begins = [rows[place[call]]["start_ns"] for call in launched.get(row["id"], [])]
            begin = min(row["start_ns"], max(begins, default=row["queued_ns"]))
            number = int(tracks.track[place[row["id"]]])
            calls.setdefault(number, {})[row["id"]] = begin, row["end_ns"]
    for handle, works in work_of.items():
        last = max(works, key=lambda row: (row["end_ns"], -place[row["id"]]))
        row, number = rows[place[handle]], int(tracks.track[place[last["id"]]])
        calls.setdefault(number, {})[handle] = row["start_ns"], row["end_ns"]
    return calls


def test_calls_and_their_parts_are_what_explain_says(trace, tracks):
    found, expected = tracks.calls, brute_force_calls(trace, tracks)
    assert found.tracks == expected.keys() - {-1}
    for number in found.tracks:
        at = np.arange(len(found.row))[found.of(number)]
        times = zip(found.start_ns[at].tolist(), found.end_ns[at].tolist(), strict=True)
        assert dict(zip(tracks.ids[found.row[at]].tolist(), times, strict=True)) == expected[number]
        seen = found.seen([at])
        for call, low, high in zip(at.tolist(), seen.first, seen.first[1:], strict=False):
            said = explain(trace, int(tracks.ids[found.row[call]]))
            kinds = [part.kind for part in said.parts]
            assert seen.kind[low:high] == kinds
            assert seen.length_ns[low:high].tolist() == [part.duration_ns for part in said.parts]
            assert seen.length_ns[low:high].sum() == found.end_ns[call] - found.start_ns[call]


def test_lanes_in_columns_have_the_longest_call_of_each(trace, tracks):
    window = default_window_ns(trace)
    for pixels in (7, 100, 1000):
        scene = Scene.of(tracks, window)
        edges = edges_of(window, pixels)
        waiting = Scene.among(tracks, scene.shown, window, pixels=pixels).waiting
        boxes, tops = boxes_of(waiting, window, edges)
        for place, track in enumerate(scene.shown):
            if np.isfinite(waiting.spans_from[place]) or track.number not in tracks.calls.tracks:
                continue
            calls = tracks.calls.of(track.number)
            start, end = tracks.calls.start_ns[calls], tracks.calls.end_ns[calls]
            inside = (start >= window[0]) & (start < window[1])
            assert tops[place] == step_of(int((end - start)[inside].max()), 1)
            high = np.zeros(pixels)
            column = np.searchsorted(edges, boxes.from_ns[boxes.at_row == place], "right") - 1
            np.maximum.at(high, column, boxes.high[boxes.at_row == place] * tops[place])
            expected = np.zeros(pixels)
            np.maximum.at(
                expected,
                np.searchsorted(edges, start[inside], "right") - 1,
                (end - start)[inside],
            )
            assert high == pytest.approx(expected)


def test_lanes_in_spans_have_every_part_that_did_not_run(trace, tracks):
    calls = tracks.calls
    longest = int(np.argmax(calls.end_ns - calls.start_ns))
    start, end = int(calls.start_ns[longest]), int(calls.end_ns[longest])
    window = (start - 1, end + 1)
    scene = Scene.of(tracks, window)
    waiting = scene.waiting
    boxes, _ = boxes_of(waiting, window, scene.columns.edges)
    (at,) = np.flatnonzero(waiting.row == calls.row[longest])
    place = waiting.at_row[at]
    if not np.isfinite(waiting.spans_from[place]):
        assert (calls.line[calls.inside(int(calls.track[longest]), window)] < 0).any()
        return
    parts = np.arange(waiting.first[at], waiting.first[at + 1])
    drawn = {part: boxes.to_ns[n] - boxes.from_ns[n] for n, part in enumerate(boxes.part)}
    ran = [waiting.classes[look].kind == "running" for look in waiting.look[parts]]
    assert [part in drawn for part in parts] == [not runs for runs in ran]
    assert all(drawn[part] == waiting.length_ns[part] for part in parts if part in drawn)


def test_calls_on_one_line_of_a_lane_do_not_overlap(tracks):
    calls = tracks.calls
    for number in calls.tracks:
        for line in range(calls.lines[number]):
            at = np.flatnonzero((calls.track == number) & (calls.line == line))
            assert (calls.start_ns[at][1:] >= calls.end_ns[at][:-1]).all()


def test_colour_says_who_and_pattern_says_what():
    trace = gs.load_trace(DATA / "recordings/waits_h100.parquet")
    tracks = Tracks.of(trace)
    waiting = Scene.of(tracks, default_window_ns(trace)).waiting
    partition = {row["id"]: row["partition"] for row in trace.spans.to_pylist()}
    held = [part for part in waiting.classes if part.kind == "SMs held"]
    assert {part.partition for part in held} <= {*partition.values(), ""} - {None}
    for call, low, high in zip(waiting.row, waiting.first, waiting.first[1:], strict=False):
        parts = gs.analysis.parts(trace, int(tracks.ids[call]))
        for part, look in zip(parts, waiting.look[low:high].tolist(), strict=True):
            if part.kind in ("SMs held", "event wait", "copy engine"):
                assert waiting.classes[look].partition == (partition[part.span] or "")
            elif part.kind in ("launch call", "on the way", "not looking"):
                assert waiting.classes[look].partition is None


def test_a_call_whose_end_was_not_seen_is_none():
    trace = gs.load_trace(DATA / "recordings/waits_h100.parquet")
    with pytest.raises(MissingEvidence):
        for row in trace.where(kind="handle").spans.to_pylist():
            gs.analysis.parts(trace, row["id"])
    ends = np.asarray(trace.spans.column("end_ns").is_null())
    assert not ends[Tracks.of(trace).calls.row].any()


# -- what stands where --------------------------------------------------------------------
def test_rows_of_the_gpu_stand_first_and_the_host_takes_a_tenth(trace, tracks):
    scene = Scene.of(tracks, default_window_ns(trace))
    places = tracks.placed(scene.shown, scene.depth)
    folded = [at for at, track in enumerate(scene.shown) if track.folded]
    assert folded or not any(track.is_host for track in scene.shown)
    assert sum(places.heights[at] for at in folded) <= 0.1 * places.bottom
    for process in {track.process for track in scene.shown}:
        order = [track.is_host for track in scene.shown if track.process == process]
        assert order == sorted(order)
    for at, track in enumerate(scene.shown):
        assert track.is_host or places.heights[at] >= (20 if track.number in tracks.narrow else 30)


def test_the_page_gets_the_host_as_one_row_until_it_is_unfolded():
    trace = gs.load_trace(DATA / "recordings/waits_h100.parquet")
    timeline = gs.Timeline(trace)
    timeline.wait()
    heights = timeline.bar.scene["heights"]
    assert heights[-1] <= 0.1 * timeline.bar.scene["height"]
    version = timeline.bar.scene["version"]
    timeline.host = True
    timeline.wait()
    assert timeline.bar.scene["version"] != version
    hosts = sum(track.is_host for track in timeline.state.tracks.tracks)
    assert len(timeline.bar.scene["heights"]) == len(heights) - 1 + hosts
    timeline.close()


def test_without_rows_of_the_gpu_the_host_is_not_folded():
    trace = gs.load_trace(DATA / "recordings/waits_h100.parquet").where(kind=("range", "api"))
    scene = Scene.of(Tracks.of(trace), default_window_ns(trace))
    assert [track.label for track in scene.shown] == ["ranges", "API calls"]


def test_the_share_of_a_row_is_exact(trace, tracks):
    rows = trace.spans.to_pylist()
    low, high = default_window_ns(trace)
    for window in ((low, high), (low + (high - low) // 3, low + (high - low) // 2)):
        for track in tracks.tracks:
            if track.is_host:
                continue
            busy = sorted(
                (max(row["start_ns"], window[0]), min(row["end_ns"] or window[1], window[1]))
                for row, number in zip(rows, tracks.track.tolist(), strict=True)
                if number == track.number and row["kind"] != "event"
            )
            total, reach = 0, window[0]
            for start, end in busy:
                total += max(0, end - max(start, reach))
                reach = max(reach, end)
            assert tracks.busy_in([track.number], window) == total


def test_keys_go_to_escapes_and_to_the_longest_waits():
    gpu = gs.open_device("sim:h200", quiet=True)
    workload = {"kind": "gemm", "m": 512, "n": 512, "k": 512, "repeats": 12, "stream": "small"}
    run = gs.run(
        {
            "name": "escape", "alone_repeats": 0, "streams": {"small": {"partition": "small"}},
            "settings": {"split": {"partitions": {"small": 16, "load": "rest"}}},
            "workloads": {"small": workload, "check": {**workload, "repeats": 3, "guard": False}},
        },
        gpu,
    )  # fmt: skip
    trace = run.traces["split"]
    timeline = gs.Timeline(trace)
    rows = {row["id"]: row for row in trace.spans.to_pylist()}
    escaped = sorted(
        (row["start_ns"], span)
        for span, row in rows.items()
        if row["kind"] == "kernel" and row["partition"] != row["intended_partition"]
    )
    assert len(escaped) == 3
    found = [timeline.next_escape() for _ in range(4)]
    assert found == [span for _, span in [*escaped, escaped[0]]]
    timeline.clear()
    waits = []
    for span, row in rows.items():
        if row["kind"] == "handle":
            parts = gs.analysis.parts(trace, span)
            waits.append(sum(part.duration_ns for part in parts if part.kind not in NO_WAIT))
    found = [timeline.longest_wait() for _ in range(3)]
    lengths = [
        sum(p.duration_ns for p in gs.analysis.parts(trace, span) if p.kind not in NO_WAIT)
        for span in found
    ]
    assert lengths == sorted(waits)[::-1][:3]
    timeline.zoom_to_selection()
    low, high = timeline.window_ns
    row = rows[found[-1]]
    assert low <= row["start_ns"] < row["end_ns"] <= high
    assert high - low <= 2 * (row["end_ns"] - row["start_ns"])
    timeline.close()


def test_places_have_room_for_lanes():
    trace = gs.load_trace(DATA / "recordings/waits_h100.parquet")
    tracks = Tracks.of(trace)
    scene = Scene.of(tracks, default_window_ns(trace))
    places = tracks.placed(scene.shown, scene.depth)
    assert isinstance(places, Places)
    ends = [top + height for top, height in zip(places.tops, places.heights, strict=True)]
    for at, lane in enumerate(places.lanes):
        has_calls = scene.shown[at].number in tracks.calls.tracks
        assert bool(lane) == has_calls
        below = [*places.tops, places.bottom][at + 1]
        assert not lane or (lane == ends[at] and lane + WAITS_PX <= below)


def test_tiles_carry_the_calls():
    trace = gs.load_trace(DATA / "recordings/waits_h100.parquet")
    timeline = gs.Timeline(trace)
    timeline.wait()
    root = timeline.bar.scene["root"]
    calls = root["calls"]
    found = timeline.state.tracks.calls
    times = np.frombuffer(root["data"], np.float64, 2 * calls["count"], calls["at"])
    start, end = times.reshape(2, -1)
    longest = {
        number: int((found.end_ns - found.start_ns)[found.of(number)].max())
        for number in found.tracks
    }
    assert sorted(longest.values())[-1] == (end - start).max()
    assert json.dumps(calls["looks"])
    timeline.close()
