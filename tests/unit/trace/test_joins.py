"""Joining rows by time, against looking at every interval."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.trace import arrow, columns, joins, schema
from gpuscope.trace.arrow import NONE


def nested(shape, low=0, high=64):
    """Turn choices into intervals that nest or are apart, some of them touching."""
    found = []
    while shape and high - low > 1:
        first = low + shape.pop() % (high - low)
        last = first + 1 + shape.pop() % (high - first) if shape else high
        found += [(first, last), *nested(shape[: len(shape) // 2], first, last)]
        del shape[: len(shape) // 2]
        low = last
    return found


@given(st.lists(st.integers(-(1 << 62), 1 << 62) | st.integers(-1, 3), max_size=30))
def test_values_are_numbered_in_their_order(values):
    given_values = np.array(values, np.int64)
    found, true = joins.numbered(given_values), np.unique(given_values, return_inverse=True)
    assert [part.tolist() for part in found] == [part.tolist() for part in true]


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 1000), max_size=24), min_size=1, max_size=3), st.randoms())
def test_enclosing_finds_what_looking_at_every_interval_finds(shapes, random):
    rows = [(owner, *one) for owner, shape in enumerate(shapes) for one in set(nested(list(shape)))]
    random.shuffle(rows)
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    found = joins.enclosing(*columns)
    for place, (owner, start, end) in enumerate(rows):
        around = [
            (last - first, other)
            for other, (owns, first, last) in enumerate(rows)
            if owns == owner and other != place and first <= start and end <= last
        ]
        expected = min(around)[1] if around else NONE
        assert found[place] == expected


def test_an_interval_that_begins_where_another_ends_is_not_in_it():
    owner, starts, ends = (np.array(one) for one in ([1, 1, 1], [0, 10, 12], [10, 20, 12]))
    assert joins.enclosing(owner, starts, ends).tolist() == [NONE, NONE, 1]


def test_intervals_that_only_overlap_hold_nothing():
    owner, starts, ends = (np.array(one) for one in ([1, 1], [0, 5], [10, 15]))
    assert joins.enclosing(owner, starts, ends).tolist() == [NONE, NONE]


def test_many_owners_and_deep_nests_take_no_time():
    count = 50_000
    number = np.arange(count)
    started = time.monotonic()
    same = np.zeros(count, np.int64)
    found = joins.innermost(same, 10 * count - number, same, number, 10 * count - number)
    assert found[-joins.DEEPEST :].tolist() == number[-joins.DEEPEST :].tolist()
    assert found[0] == NONE  # it would have to climb further than that
    assert (joins.innermost(number, number, number, number, number) == number).all()
    assert time.monotonic() - started < 5


@given(st.lists(st.sampled_from([None, "a", "b", "c"]), max_size=9), st.integers(0, 9))
def test_codes_number_the_values_of_texts_and_of_numbers(texts, cut):
    numbers = [None if text is None else ord(text) for text in texts]
    kinds = {"texts": pa.string(), "numbers": pa.int64(), "coded": schema.SPAN_TYPES["name"]}
    for name, kind in kinds.items():
        values = numbers if name == "numbers" else texts
        column = pa.chunked_array([pa.array(part, kind) for part in (values[:cut], values[cut:])])
        code, distinct = columns.codes(column)
        narrow, same = columns.narrow_codes(column)
        assert (code.dtype, narrow.dtype) == (np.int64, np.int32)
        assert distinct == same
        assert (
            [distinct[at] for at in code.tolist()] == [same[at] for at in narrow.tolist()] == values
        )
        assert distinct[0] is None
        assert len(set(distinct)) == len(distinct)


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=20))
def test_rows_of_one_combination_have_one_number_in_its_order(rows):
    parts = np.array(rows).T
    first, number = columns.combined(*parts)
    distinct = sorted(set(rows))
    assert [distinct[at] for at in number.tolist()] == rows
    assert first.tolist() == [rows.index(row) for row in distinct]
    assert parts.T.tolist() == [list(row) for row in rows], "what was given stays"


def test_nothing_wanted_matches_nothing():
    nothing = np.zeros(0, np.int64)
    assert joins.match(nothing, np.array([1, 2])).tolist() == []
    assert joins.match(np.array([2, 3]), nothing).tolist() == [NONE, NONE]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-(1 << 62), 1 << 62)), max_size=20))
def test_coded_rows_number_each_distinct_row(rows):
    pairs = np.array(rows, np.int64).reshape(-1, 2).T
    codes, distinct = arrow.coded_rows(*pairs)
    assert [distinct[code] for code in codes] == rows
    assert len(set(distinct)) == len(distinct)
