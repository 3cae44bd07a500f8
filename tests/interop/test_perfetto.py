"""Perfetto's own trace processor reads our Chrome JSON: everything, to the ns, without an error."""

from __future__ import annotations

import gzip
import json
import math
import shutil
from collections import Counter

import made
import pytest

import gpuscope as gs
from gpuscope.formats.chrome import write as chrome

SLICES = """
    select extract_arg(s.arg_set_id, 'args.id'), s.ts, s.dur, s.name, s.category, t.utid
    from slice s join thread_track t on s.track_id = t.id
"""
FLOWS = """
    select extract_arg(a.arg_set_id, 'args.id'), extract_arg(b.arg_set_id, 'args.id')
    from flow f join slice a on f.slice_out = a.id join slice b on f.slice_in = b.id
"""
COUNTERS = "select c.ts, c.value, t.name from counter c join counter_track t on c.track_id = t.id"
NAMES = """
    select p.name, t.name from thread t join process p using (upid)
    where t.utid in (select utid from thread_track) and t.name is not null
"""


def is_sample(row):
    return row["kind"] == "counter" and row["value"] is not None and math.isfinite(row["value"])


def shown(name):
    """Return a name as Perfetto shows it: control characters as JSON escapes them."""
    return "".join(json.dumps(one)[1:-1] if one < " " else one for one in name)


def expected(trace):
    """Return the rows that must arrive as slices: id → ts, dur, name, category."""
    base = int(trace.array("start_ns").min())
    found = {}
    for row in trace.spans.to_pylist():
        if is_sample(row):
            continue
        instant = row["kind"] in ("mark", "event", "counter")
        length = 0 if instant else -1
        if row["end_ns"] is not None:
            length = row["end_ns"] - row["start_ns"]
        category = chrome.CATEGORIES.get(row["kind"], row["kind"])
        found[row["id"]] = [row["start_ns"] - base, length, shown(row["name"]), category]
    return found


def arrows(trace):
    """Return the edges between slices; Perfetto's arrows begin at the one that starts first."""
    rows = {row["id"]: row for row in trace.spans.to_pylist() if not is_sample(row)}
    for edge in trace.edges.to_pylist():
        if edge["from"] in rows and edge["to"] in rows:
            yield frozenset((edge["from"], edge["to"]))


def check(trace, path, perfetto):
    slices, flows, counters, names = perfetto(path, SLICES, FLOWS, COUNTERS, NAMES)
    assert {row[0]: row[1:5] for row in slices} == expected(trace)
    assert len(slices) == len(expected(trace))
    assert Counter(map(frozenset, flows)) == Counter(arrows(trace))
    begin = {row[0]: row[1] for row in slices}
    assert all(begin[one] <= begin[other] for one, other in flows)
    samples = [row for row in trace.spans.to_pylist() if is_sample(row)]
    assert sorted(row[1:] for row in counters) == sorted(
        [row["value"], f"{shown(row['name'])} value"] for row in samples
    )
    return slices, flows, names


def test_program(tmp_path, perfetto):
    trace = made.program()
    path = gs.export(trace, tmp_path / "run.json", keep_private=True)
    slices, flows, names = check(trace, path, perfetto)
    assert len(slices) == len(trace)
    assert len(flows) == trace.edges.num_rows  # none was left out
    assert set(trace.kind_counts()) >= {"kernel", "memcpy", "api", "range", "handle"}
    processes = {process for process, _ in names}
    assert any("decode (16 SMs)" in name for name in processes)
    assert ["GPU 0 NVIDIA H200 (simulated) · decode (16 SMs)", "d0"] in names


def test_sampled_stacks_stand_on_tracks_of_their_own(tmp_path, perfetto):
    trace = made.stacks()
    path = gs.export(trace, tmp_path / "run.json", keep_private=True)
    slices, _, names = check(trace, path, perfetto)
    tracks = {row[5] for row in slices if row[4] == "stack"}
    assert len(tracks) == 2
    assert tracks.isdisjoint(row[5] for row in slices if row[4] != "stack")
    assert {name for _, name in names} >= {
        "MainThread · sampled stacks",
        "thread 4713 · sampled stacks",
    }


@pytest.mark.parametrize("seed", range(8))
def test_anything(tmp_path, perfetto, seed):
    trace = made.whole(seed, rows=1500)
    check(trace, gs.export(trace, tmp_path / "any.json", keep_private=True), perfetto)


def test_compressed(tmp_path, perfetto):
    trace = made.program()
    plain = gs.export(trace, tmp_path / "run.json", keep_private=True)
    packed = gs.export(trace, tmp_path / "run.json.gz", keep_private=True)
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    check(trace, shutil.copy(packed, tmp_path / "opened.json.gz"), perfetto)


def test_nothing(tmp_path, perfetto):
    path = gs.export(
        made.program().where(kind="no such kind"), tmp_path / "none.json", keep_private=True
    )
    assert perfetto(path, "select count(*) from slice") == [[[0]]]
