"""How two ranks' sequences of collectives may stand to each other, against a search one by one."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpuscope.trace import shifts
from gpuscope.trace.clocks import RATE
from gpuscope.trace.shifts import KernelSequence, shift_between

_CLOSE_NS = 0.01
"""So near to the bound that rounding decides."""


@pytest.fixture(autouse=True)
def _few_at_once(monkeypatch):
    """Let also short sequences take several rounds."""
    monkeypatch.setattr(shifts, "_AT_ONCE", 3)
    monkeypatch.setattr(shifts, "_FEW", 4)


def _lacks_ns(pairs, apart_ns):
    """Return by how much pairs of one shift miss having met, at the best offset and drift."""
    lows = [begun - other_ended for begun, _, _, other_ended in pairs]
    highs = [ended - other_begun for _, ended, other_begun, _ in pairs]
    if apart_ns is not None:
        return max(max(lows) - apart_ns, -apart_ns - min(highs))
    since = [other_begun - pairs[0][2] for _, _, other_begun, _ in pairs]
    drifts = [-RATE, RATE]
    for bounds in (lows, highs):
        for (a, at_a), (b, at_b) in itertools.combinations(zip(bounds, since, strict=True), 2):
            if at_a != at_b and abs(drift := (b - a) / (at_b - at_a)) <= RATE:
                drifts.append(drift)
    return min(
        max(low - drift * at for low, at in zip(lows, since, strict=True))
        - min(high - drift * at for high, at in zip(highs, since, strict=True))
        for drift in drifts
    ) - shifts._ROUNDED_NS  # fmt: skip


def _possible(one, other, apart_ns):
    """Return the shifts at which all pairs are alike and may have met, and whether some are close."""
    rows, other_rows = (
        list(zip(each.what, each.starts.tolist(), each.ends.tolist(), strict=True))
        for each in (one, other)
    )
    shorter = min(len(rows), len(other_rows))
    least = 1 if apart_ns is not None else max(1, math.ceil(shorter / 2))
    possible, is_close = [], False
    for shift in range(-len(other_rows), len(rows) + 1):
        both = [
            (rows[at + shift], row)
            for at, row in enumerate(other_rows)
            if 0 <= at + shift < len(rows)
        ]
        if len(both) < least or any(here[0] != there[0] for here, there in both):
            continue
        lacks_ns = _lacks_ns([(*here[1:], *there[1:]) for here, there in both], apart_ns)
        is_close |= abs(lacks_ns) < _CLOSE_NS
        if lacks_ns <= 0:
            possible.append(shift)
    return possible, is_close


@st.composite
def _sequences(draw):
    """Return parts of one sequence on two clocks, of which the other may hold another kernel."""
    count = draw(st.integers(1, 14))
    kinds = draw(st.lists(st.sampled_from("ab"), min_size=count, max_size=count))
    least_ns = draw(st.sampled_from([50_000, 50_000_000]))  # the drift matters on the second
    gaps = draw(st.lists(st.integers(1, 4), min_size=count, max_size=count))
    late = draw(st.lists(st.integers(0, 40_000), min_size=2 * count, max_size=2 * count))
    begun = np.cumsum(gaps) * least_ns
    arrived = begun + np.reshape(late, (2, count))
    ended = arrived.max(axis=0) + 3_000
    offset, drift = draw(st.integers(-(10**12), 10**12)), draw(st.floats(-RATE / 2, RATE / 2))
    knows = draw(st.booleans())
    parts = []
    for number in range(2):
        first = draw(st.integers(0, count - 1))
        last = draw(st.integers(first + 1, count))
        moved = (offset, drift) if number and not knows else (0, 0.0)
        times = [
            each + moved[0] + np.round(each * moved[1]).astype(np.int64)
            for each in (arrived[number], ended)
        ]
        what = [*kinds[first:last]]
        if number and draw(st.integers(0, 3)) == 0:
            what[draw(st.integers(0, len(what) - 1))] = "c"
        parts.append(KernelSequence(what, *(each[first:last] for each in times)))
    return *parts, draw(st.integers(0, 60_000)) if knows else None


@settings(max_examples=200, deadline=None)
@given(_sequences())
def test_the_search_finds_the_shifts_that_one_by_one_are_possible(sequences):
    one, other, apart_ns = sequences
    possible, is_close = _possible(one, other, apart_ns)
    assume(apart_ns is not None or not is_close)
    shift, count = shift_between(one, other, apart_ns)
    assert count == len(possible)
    assert shift is None or shift in possible
    if len(possible) == 1 and apart_ns is not None:
        assert shift == possible[0]
