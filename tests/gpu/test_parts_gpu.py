"""The parts of every span's time add up to it, to the ns, in recordings of this GPU."""

from __future__ import annotations

import pytest
from parts_program import CHUNKS, TOKENS, pytorch, serving, waits
from span_parts import calls_of_requests, check_every_span, kinds_told

import gpuscope as gs
from gpuscope.trace.columns import is_open

pytestmark = pytest.mark.gpu


@pytest.fixture
def gpu():
    return gs.open_device("cuda:0", quiet=True)


def checked(trace):
    """Check every span of a trace; returns the parts by span."""
    told = check_every_span(trace)
    spans, _ = kinds_told(trace, told)
    ended = trace.where(~is_open(trace)).kind_counts()
    for kind in ("handle", "kernel", "memcpy", "sync"):
        assert spans[kind] == ended.get(kind, 0), "every span that ended has parts"
    return told


def test_parts_of_a_program_that_waits_in_every_way(gpu):
    trace = waits(gpu)
    _, parts = kinds_told(trace, checked(trace))
    missing = {"launch call", "on the way", "stream order", "event wait", "running", "not looking",
               "host"} - parts.keys()  # fmt: skip
    assert not missing


def test_parts_of_requests(gpu):
    trace = serving(gpu)
    told = checked(trace)
    for number, calls in enumerate(calls_of_requests(trace, told)):
        assert calls["prefill"] == CHUNKS[number % len(CHUNKS)]
        assert calls["decode"] == TOKENS[number % len(TOKENS)] - 1


def test_parts_of_pytorchs_work(gpu):
    pytest.importorskip("torch")
    trace = pytorch(gpu)
    _, parts = kinds_told(trace, checked(trace))
    assert parts["running"] > 0
