"""Order by waits that only CUPTI tells of."""

from __future__ import annotations

import numpy as np
import pytest

from gpuscope.record.cupti import layout
from gpuscope.record.cupti.order import EventOrder

A, B, C = 1, 2, 3
RECORD, EVENT_SYNC, WAIT, STREAM_SYNC, CONTEXT_SYNC = range(5)
NO_STREAM = 0xFFFFFFFF


def ordered(first, second, *calls):
    """Ask of two pieces of work, (correlation, stream), with (what, correlation, stream, event)."""
    order = EventOrder()
    for what, correlation, stream, event in calls[::-1]:  # buffers come in no order
        columns = {
            "correlation": np.array([correlation], np.uint32),
            "context": np.array([7], np.uint32),
            "stream": np.array([stream], np.uint32),
            "sync": np.array([event], np.uint64),
        }
        if what == RECORD:
            order.take({layout.CUDA_EVENT: columns})
        else:
            order.take({layout.SYNCHRONIZATION: {**columns, "type": np.array([what], np.uint32)}})
    return order.between(lambda columns: columns["stream"].astype(np.int64))(first, second)


def test_nothing_orders():
    assert ordered((10, A), (20, B)) is False


def test_a_wait_for_a_record_behind_the_work():
    assert ordered((10, A), (20, B), (RECORD, 12, A, 100), (WAIT, 15, B, 100)) is True


@pytest.mark.parametrize(
    "calls",
    [
        [(RECORD, 9, A, 100), (WAIT, 15, B, 100)],  # recorded before the work
        [(RECORD, 12, A, 100), (WAIT, 25, B, 100)],  # waited for after the other
        [(RECORD, 12, C, 100), (WAIT, 15, B, 100)],  # of another stream
        [(RECORD, 12, A, 100), (WAIT, 15, C, 100)],  # by another stream
        [(RECORD, 12, A, 100), (RECORD, 13, A, 101), (WAIT, 11, B, 101)],
        [(STREAM_SYNC, 15, C, 0)],
        [(CONTEXT_SYNC, 9, NO_STREAM, 0)],
        [(RECORD, 9, A, 100), (EVENT_SYNC, 15, NO_STREAM, 100)],
    ],
)
def test_what_does_not(calls):
    assert ordered((10, A), (20, B), *calls) is False


def test_over_a_third_stream():
    calls = [
        (RECORD, 11, A, 100), (WAIT, 12, C, 100), (RECORD, 13, C, 101), (WAIT, 14, B, 101),
    ]  # fmt: skip
    assert ordered((10, A), (20, B), *calls) is True
    assert ordered((10, A), (20, B), *calls[:2], calls[3], (RECORD, 15, C, 101)) is False


@pytest.mark.parametrize("call", [(STREAM_SYNC, 15, A, 0), (CONTEXT_SYNC, 15, NO_STREAM, 0)])
def test_the_host_waits(call):
    assert ordered((10, A), (20, B), call) is True


def test_the_host_waits_for_an_event():
    calls = (RECORD, 12, A, 100), (EVENT_SYNC, 15, NO_STREAM, 100)
    assert ordered((10, A), (20, B), *calls) is True


def test_a_record_that_nobody_told_of_decides_nothing():
    assert ordered((10, A), (20, B), (WAIT, 15, B, 99)) is None
    assert ordered((10, A), (20, B), (EVENT_SYNC, 15, NO_STREAM, 99)) is None
    chain = (WAIT, 13, C, 99), (RECORD, 14, C, 100), (WAIT, 15, B, 100)
    assert ordered((10, A), (20, B), *chain) is None
    assert ordered((10, A), (20, B), (WAIT, 15, C, 99)) is False
    assert ordered((10, A), (20, B), (WAIT, 15, C, 99), (STREAM_SYNC, 16, A, 0)) is True


@pytest.mark.parametrize("what", [WAIT, EVENT_SYNC])
def test_a_wait_for_an_event_that_was_never_recorded_orders_nothing(what):
    assert ordered((10, A), (20, B), (what, 15, B, 0)) is False
