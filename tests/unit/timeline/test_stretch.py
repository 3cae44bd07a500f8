"""What a stretch of time consists of, against the rows of the trace one by one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import gpuscope as gs
from gpuscope.timeline import stretch
from gpuscope.timeline.extent import default_window_ns
from gpuscope.timeline.stretch import stretch_of
from gpuscope.timeline.tracks import Tracks
from gpuscope.trace import Trace
from gpuscope.trace.naming import kernel_name
from gpuscope.widgets.details import told_of_stretch

DATA = Path(__file__).resolve().parents[2] / "data"


@pytest.fixture(
    scope="module",
    params=["recordings/waits_h100", "recordings/requests_h100", "before/run/trace-split"],
)
def trace(request):
    return gs.load_trace(DATA / f"{request.param}.parquet")


def union_ns(pairs, window):
    total, reach = 0, window[0]
    for start, end in sorted(pairs):
        start, end = max(start, window[0], reach), min(end, window[1])  # noqa: PLW2901
        total += max(0, end - start)
        reach = max(reach, end)
    return total


@pytest.mark.parametrize(("begin", "end"), [(0, 1), (0.2, 0.7)])
def test_a_range_tells_what_its_rows_say(trace, begin, end):
    low, high = default_window_ns(trace)
    window = (low + int(begin * (high - low)), low + int(end * (high - low)))
    tracks = Tracks.of(trace)
    found = stretch_of(tracks, tracks.tracks, window)
    rows = trace.spans.to_pylist()
    label_of = {track.number: track.label for track in tracks.tracks if not track.is_host}
    pairs = {label: [] for label in label_of.values()}
    for row, number in zip(rows, tracks.track.tolist(), strict=True):
        if number in label_of and row["kind"] != "event":
            pairs[label_of[number]].append((row["start_ns"], row["end_ns"] or window[1]))
    assert found.busy_ns == {label: union_ns(spans, window) for label, spans in pairs.items()}
    for (a, b), overlap in found.overlap_ns.items():
        both = union_ns(pairs[a] + pairs[b], window)
        assert overlap == found.busy_ns[a] + found.busy_ns[b] - both

    kept = {}
    for row in rows:
        if row["kind"] == "kernel" and window[0] <= row["start_ns"] < window[1]:
            intended = row["intended_partition"]
            if intended is not None:
                count, out = kept.get(intended, (0, 0))
                kept[intended] = count + 1, out + (intended != row["partition"])
    assert found.escapes == kept

    calls = tracks.calls
    inside = [
        call
        for call in range(len(calls.row))
        if window[0] <= calls.start_ns[call] and calls.end_ns[call] <= window[1]
    ]
    latency, sums = {}, Counter()
    for call in inside:
        row = rows[calls.row[call]]
        name = row["category"] or kernel_name(row["name"])
        latency.setdefault(name, []).append(int(calls.end_ns[call] - calls.start_ns[call]))
        for part in gs.analysis.parts(trace, row["id"]):
            sums[part.kind] += part.duration_ns
    assert {name: sorted(of.tolist()) for name, of in found.latency_ns.items()} == {
        name: sorted(lengths) for name, lengths in latency.items()
    }
    told = Counter()
    for part, length in found.parts.items():
        told[part.kind] += length
    assert told == sums
    assert found.sampled is None


def test_of_very_many_calls_the_parts_are_of_some(monkeypatch):
    trace = gs.load_trace(DATA / "before/run/trace-split.parquet")
    tracks = Tracks.of(trace)
    monkeypatch.setattr(stretch, "MOST_CALLS", 10)
    found = stretch_of(tracks, tracks.tracks, default_window_ns(trace))
    assert found.sampled == 10
    count = sum(map(len, found.latency_ns.values()))
    assert count > 10
    facts = told_of_stretch(default_window_ns(trace), tracks, tracks.tracks, {})
    assert facts["of"].startswith(f"10 of {count:,} calls")
    monkeypatch.undo()
    assert not told_of_stretch(default_window_ns(trace), tracks, tracks.tracks, {})["of"]


def test_pairs_that_are_not_told_are_stated(monkeypatch):
    rows = range(8)
    trace = Trace.from_columns(
        {"id": rows, "kind": ["kernel"] * 8, "name": ["k"] * 8, "source": ["cupti"] * 8,
         "start_ns": rows, "end_ns": [100 + row for row in rows], "stream": rows}
    )  # fmt: skip
    tracks = Tracks.of(trace)
    heading_of = {
        count: told_of_stretch((0, 200), tracks, tracks.tracks[:count], {})["tables"][1][0]
        for count in (3, 6, 8)
    }
    assert heading_of == {
        3: "Busy together",
        6: "Busy together: the 6 longest",
        8: "Busy together: the 6 longest of the 6 busiest rows",
    }


def test_the_dock_tells_a_range_and_its_parts_add_up():
    trace = gs.load_trace(DATA / "before/run/trace-split.parquet")
    timeline = gs.Timeline(trace)
    timeline.select_range()
    assert timeline.range_ns == timeline.window_ns
    while not timeline.details.facts["tables"]:
        pass
    facts = timeline.details.facts
    assert [heading for heading, _ in facts["tables"]][:2] == ["Busy", "Busy together"]
    parts = [round(1000 * float(text.replace(",", ""))) for _, text, *_ in facts["parts"]]
    assert sum(parts) == round(1000 * float(facts["total"].replace(",", "")))
    timeline.select(int(timeline.state.tracks.ids[timeline.state.tracks.calls.row[0]]))
    assert timeline.range_ns is None
    timeline.close()
