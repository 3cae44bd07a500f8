"""The timeline's index against a scan of all spans."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.trace import levels, query
from gpuscope.trace.query import OPEN_NS, Index

EPOCH = 1_700_000_000_000_000_000


@st.composite
def spans(draw):
    """Starts, ends and tracks: tiny and huge, nested, at once, instants, open ones, other rows."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.integers(1, 300))
    extent = draw(st.sampled_from([100, 10_000, 1_000_000, 30_000_000]))
    start = rng.integers(-extent // 2, extent // 2, count)
    if draw(st.booleans()):  # not at once: one after the other
        start = np.sort(start)
        gap = np.diff(np.r_[start, extent])
        width = (gap * rng.random(count)).astype(np.int64)
        track = np.zeros(count, np.int64)
    else:
        width = rng.integers(0, 4 ** rng.integers(0, 13, count))
        width[rng.random(count) < 0.1] = 0
        track = rng.integers(-1, 4, count) * 3
    end = start + width
    if draw(st.booleans()):
        end[rng.random(count) < 0.05] = OPEN_NS
    offset = draw(st.sampled_from([0, EPOCH]))
    return start + offset, np.where(end == OPEN_NS, end, end + offset), track


@st.composite
def windows(draw, start, end):
    """A window somewhere around the spans."""
    low = draw(st.integers(int(start.min()) - 1000, int(start.max()) + 1000))
    finite = end[end != OPEN_NS]
    reach = max(int(finite.max(initial=low)), low) - low + 1000
    return low, low + draw(st.integers(1, reach))


def union_ns(start, end, low, high):
    """How much of [low, high) the spans cover, walking over them."""
    covered, reach = 0, low
    for one, other in sorted(zip(start.tolist(), end.tolist(), strict=True)):
        begin, until = max(one, reach), min(other, high)
        if until > begin:
            covered += until - begin
            reach = until
    return covered


def check(found, start, end, track, pixels, k):
    """Compare what an index says with a scan."""
    low, high = found.window_ns
    inside = (start < high) & ((end > low) | ((start == end) & (start >= low)))
    wanted = np.isin(track, found.tracks) & (track >= 0)
    seen = np.flatnonzero(inside & wanted)
    assert found.total == len(seen)
    width = [(min(int(end[row]), high) - max(int(start[row]), low)) for row in seen]
    order = sorted(range(len(seen)), key=lambda at: (-width[at], start[seen[at]], seen[at]))
    ordered = [int(seen[at]) for at in order]
    long = [row for row in ordered if int(end[row]) - int(start[row]) > found.floor_ns]
    assert found.rows.tolist() == long[:k]
    assert found.floor_ns < 0 or (
        len(seen) > query.ROOM and found.floor_ns <= (high - low) / pixels
    )
    assert found.merged == len(seen) - len(found.rows)
    assert found.coverage.shape == found.begins.shape
    assert found.coverage.dtype == np.float32
    assert found.coverage.min(initial=0) >= 0
    assert found.coverage.max(initial=0) <= 1
    pixel = (high - low) / pixels
    assert found.column_ns == 1 or 0.66 * pixel <= found.column_ns <= 1.34 * pixel
    assert found.origin_ns <= low
    assert found.origin_ns + found.coverage.shape[1] * found.column_ns >= high
    if not found.merged:
        assert not found.coverage.any()
        assert not found.begins.any()
        return
    rest = np.setdiff1d(np.arange(len(start)), found.rows)
    for place, number in enumerate(found.tracks):
        mine = rest[track[rest] == number]
        for column in range(1, found.coverage.shape[1] - 1):
            begin = found.origin_ns + column * found.column_ns
            until = begin + found.column_ns
            share = union_ns(start[mine], end[mine], begin, until) / found.column_ns
            said = found.coverage[place, column]
            assert said >= share - 1e-5
            if found.exact[place]:
                assert said == pytest.approx(share, abs=1e-5)
            begun = np.count_nonzero((start[mine] >= begin) & (start[mine] < until))
            assert found.begins[place, column] == begun


@settings(deadline=None, max_examples=300)
@given(
    st.data(), st.sampled_from([1, 3, 10, 50]), st.integers(1, 300), st.sampled_from([1, 5, 10**5])
)
def test_a_query_says_what_a_scan_says(data, pixels, k, room):
    start, end, track = data.draw(spans())
    window = data.draw(windows(start, end))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query, "ROOM", room)
        patch.setattr(levels, "_FEWEST_CELLS", 1)
        found = Index(start, end, track).query(window, pixels=pixels, k=k)
        assert found.tracks.tolist() == sorted(set(track[track >= 0].tolist()))
        patch.setattr(query, "ROOM", max(room, k))
        check(found, start, end, track, pixels, k)


@settings(deadline=None, max_examples=150)
@given(st.data(), st.integers(1, 7), st.sampled_from([1, 10**5]))
def test_an_extended_index_answers_as_one_made_at_once(data, pieces, room):
    start, end, track = data.draw(spans())
    window = data.draw(windows(start, end))
    cuts = np.sort(
        data.draw(st.lists(st.integers(0, len(start)), min_size=pieces, max_size=pieces))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query, "ROOM", room)
        patch.setattr(levels, "_FEWEST_CELLS", 1)
        patch.setattr(query, "_SMALL", data.draw(st.sampled_from([0, 50])))
        patch.setattr(query, "_FROZEN", data.draw(st.sampled_from([20, 10**5])))
        index = Index(start[:0], end[:0], track[:0])
        for low, high in zip([0, *cuts], [*cuts, len(start)], strict=True):
            before, count = index, len(index)
            index = index.extended(start[low:high], end[low:high], track[low:high])
            assert len(before) == count
        assert len(index) == len(start)
        found = index.query(window, pixels=20, k=10)
        patch.setattr(query, "ROOM", max(room, 10))
        check(found, start, end, track, 20, 10)


@settings(deadline=None, max_examples=50)
@given(spans(), st.permutations([0, 3, 5, 9]), st.integers(1, 4))
def test_only_the_tracks_asked_for_count(columns, tracks, count):
    start, end, track = columns
    tracks = np.array(tracks[:count])
    window = int(start.min()), int(start.max()) + 1
    found = Index(start, end, track).query(window, pixels=20, k=7, tracks=tracks)
    assert found.tracks.tolist() == tracks.tolist()
    assert len(found.coverage) == count
    check(found, start, end, track, 20, 7)
    counts = Index(start, end, track).counts(window, tracks)
    for number, said in zip(tracks, counts, strict=True):
        only = Index(start, end, np.where(track == number, track, -1))
        assert said == only.query(window, pixels=20, k=7).total


@given(spans())
def test_depth_is_how_many_are_there_at_once(columns):
    start, end, track = columns
    for number, depth in enumerate(Index(*columns).depths(np.arange(12))):
        mine = np.flatnonzero(track == number)
        until = np.maximum(end[mine], start[mine] + 1)
        at_once = [np.count_nonzero((start[mine] <= at) & (until > at)) for at in start[mine]]
        assert depth == max(at_once, default=1)


def test_a_million_spans_in_a_window_are_a_few_bars_and_a_picture():
    start = np.arange(1_000_000) * 1000
    width = np.where(np.arange(1_000_000) % 100_000 == 7, 900, 500)
    index = Index(start, start + width, np.arange(1_000_000) % 8)
    found = index.query((0, 10**9), pixels=1000, k=800)
    assert found.total == 1_000_000
    assert found.rows.size == 0
    assert found.merged == 1_000_000
    assert found.floor_ns <= 10**6
    assert found.exact.all()
    assert found.coverage[:, 1:-1].sum(axis=0) == pytest.approx(0.5, abs=0.01)
    assert found.begins.sum() == 1_000_000


@pytest.mark.parametrize("few", [0, 1000])
def test_many_tracks_are_merged_each_by_itself(few, monkeypatch):
    """Few tracks are looked at one by one, many at once: the picture is the same."""
    rng = np.random.default_rng(0)
    start = rng.integers(0, 10**6, 2000)
    end, track = start + rng.integers(0, 3000, 2000), np.arange(2000) % 4
    monkeypatch.setattr(levels, "_FEW", few)
    monkeypatch.setattr(query, "ROOM", 5)
    found = Index(start, end, track).query((0, 10**6), pixels=20, k=3)
    check(found, start, end, track, 20, 3)
    assert found.coverage[:, 1:-1].mean() > 0.4


def test_no_span_is_no_picture():
    nothing = np.zeros(0, np.int64)
    index = Index(nothing, nothing, nothing)
    found = index.query((0, 10), pixels=5, k=5)
    assert (found.total, len(found.rows), found.coverage.shape[0]) == (0, 0, 0)
    asked = index.query((0, 10), pixels=5, k=5, tracks=np.array([3, 1]))
    assert asked.coverage.shape == (2, 5)
    assert asked.exact.all()
    assert index.extended(nothing, nothing, nothing).tracks.size == 0


def test_a_span_that_ends_before_it_starts_is_an_instant():
    found = Index(np.array([50]), np.array([20]), np.array([0])).query((0, 100), pixels=10, k=1)
    assert found.rows.tolist() == [0]
    assert (
        Index(np.array([50]), np.array([20]), np.array([0])).query((0, 40), pixels=10, k=1).total
        == 0
    )


def test_bad_arguments_are_refused():
    index = Index(np.array([0]), np.array([9]), np.array([0]))
    with pytest.raises(ValueError, match="window ends at 5 ns"):
        index.query((5, 5), pixels=10, k=1)
    with pytest.raises(ValueError, match="not 0 and 1"):
        index.query((0, 5), pixels=0, k=1)
    with pytest.raises(ValueError, match="one of each is needed"):
        Index(np.array([0]), np.array([9, 10]), np.array([0]))
