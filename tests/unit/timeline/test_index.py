"""The timeline's index against a scan of all spans."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.timeline import index as indexing
from gpuscope.timeline.index import OPEN_NS, Index

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


GROUPS = 24


def grouped(track, rng):
    """Two groups a track, numbered apart from the tracks."""
    return np.where(track < 0, 0, 2 * track + rng.integers(0, 2, len(track)))


def is_in(start, end, low, high):
    return (start < high) & ((end > low) | (start >= low))


def check(index, columns, group, window, pixels):
    """Compare what an index says with a scan."""
    start, end, track = columns
    low, high = window
    edges = np.unique(np.linspace(low, high, pixels + 1).astype(np.int64))
    busy, begins = index.columns(edges, range(GROUPS))
    counts = index.counts(window, range(GROUPS))
    for number in range(GROUPS):
        mine = np.flatnonzero((group == number) & (track >= 0))
        seen = mine[is_in(start[mine], end[mine], low, high)]
        assert counts[number] == len(seen)
        assert sorted(index.rows(window, [number])) == seen.tolist()
        assert sorted(index.times(window, [number])[0]) == sorted(start[seen])
        for column, (begin, until) in enumerate(itertools.pairwise(edges.tolist())):
            assert busy[number, column] == union_ns(start[mine], end[mine], begin, until)
            began = np.count_nonzero((start[mine] >= begin) & (start[mine] < until))
            assert begins[number, column] == began


@settings(deadline=None, max_examples=150)
@given(st.data(), st.integers(1, 30), st.integers(0, 9))
def test_it_says_what_a_scan_says(data, pixels, seed):
    columns = data.draw(spans())
    group = grouped(columns[2], np.random.default_rng(seed))
    index = Index(*columns, group)
    assert len(index) == len(columns[0])
    check(index, columns, group, data.draw(windows(*columns[:2])), pixels)


@settings(deadline=None, max_examples=150)
@given(st.data(), st.integers(1, 7), st.integers(0, 9))
def test_an_extended_index_answers_as_one_made_at_once(data, pieces, seed):
    columns = data.draw(spans())
    group = grouped(columns[2], np.random.default_rng(seed))
    window = data.draw(windows(*columns[:2]))
    count = len(group)
    cuts = np.sort(data.draw(st.lists(st.integers(0, count), min_size=pieces, max_size=pieces)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexing, "_SMALL", data.draw(st.sampled_from([0, 50])))
        patch.setattr(indexing, "_FROZEN", data.draw(st.sampled_from([20, 10**5])))
        index = Index(*(column[:0] for column in columns))
        for low, high in zip([0, *cuts], [*cuts, count], strict=True):
            before, known = index, len(index)
            index = index.extended(*(column[low:high] for column in (*columns, group)))
            assert len(before) == known
    assert len(index) == count
    check(index, columns, group, window, 20)


@given(spans(), st.integers(0, 2**32))
def test_depth_is_how_many_are_there_at_once_in_whatever_groups(columns, seed):
    start, end, track = columns
    index = Index(*columns, grouped(track, np.random.default_rng(seed)))
    for number, depth in enumerate(index.depths(np.arange(12))):
        mine = np.flatnonzero(track == number)
        until = np.maximum(end[mine], start[mine] + 1)
        at_once = [np.count_nonzero((start[mine] <= at) & (until > at)) for at in start[mine]]
        assert depth == max(at_once, default=1)


def test_no_span_is_nothing():
    nothing = np.zeros(0, np.int64)
    index = Index(nothing, nothing, nothing)
    busy, begins = index.columns(np.array([0, 5, 10]), [3, 1])
    assert busy.tolist() == begins.tolist() == [[0, 0], [0, 0]]
    assert index.rows((0, 10), [3, 1]).tolist() == index.counts((0, 10), []).tolist() == []
    assert index.extended(nothing, nothing, nothing, nothing).depths(np.array([4])).tolist() == [1]


def test_a_span_that_ends_before_it_starts_is_an_instant():
    index = Index(np.array([50]), np.array([20]), np.array([0]))
    assert index.rows((0, 100), [0]).tolist() == [0]
    assert index.counts((0, 40), [0]).tolist() == [0]


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="one of each is needed"):
        Index(np.array([0]), np.array([9, 10]), np.array([0]))
