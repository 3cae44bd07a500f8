"""Functions that declare what they read and write."""

from __future__ import annotations

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.device.accesses import accesses_of
from gpuscope.errors import InvalidOperand


@pytest.fixture
def cpu():
    return gs.open_device("cpu", quiet=True)


class Watcher:
    def __init__(self):
        self.calls = []

    def call_begins(self, call):
        if call.kind == "launch":
            self.calls.append(call)

    def call_ends(self, call):
        pass

    def activity(self, activity):
        pass

    def take_note(self, note):
        pass


def told(cpu, function, *args, **kwargs):
    watcher = Watcher()
    with function(cpu) as handle, cpu.create_stream() as stream:
        cpu.calls.observe(watcher)
        try:
            handle.execute(*args, stream=stream, **kwargs)
        finally:
            cpu.calls.unobserve(watcher)
    (call,) = watcher.calls
    return call.accesses and accesses_of(call.accesses)


def span(array):
    start = array.__array_interface__["data"][0]
    return start, start + array.nbytes


def test_arrays_are_found_by_the_parameters_names(cpu):
    @gs.workloads.workload(reads=("a", "rest"), writes=("out",), flop_count=3)
    def product(ctx, out, a, rest=None):
        np.multiply(a, a, out=out)

    out, a, b, c = (np.zeros(8) for _ in range(4))
    accesses = told(cpu, product, out, a, rest=[b, {"c": c}])
    assert [(access.start, access.stop, access.writes) for access in accesses] == [
        (*span(a), False),
        (*span(b), False),
        (*span(c), False),
        (*span(out), True),
    ]
    assert told(cpu, product, out, a)[-1].writes  # the default is no array


def test_what_declares_nothing_is_not_seen(cpu):
    assert told(cpu, gs.workloads.workload(lambda ctx, a: None), np.zeros(3)) is None
    assert told(cpu, gs.workloads.workload(reads=())(lambda ctx, a: None), np.zeros(3)) == ()


def test_names_are_those_of_parameters():
    with pytest.raises(InvalidOperand, match="'b', which is no parameter of f: it has a"):

        @gs.workloads.workload(writes=("b",))
        def f(ctx, a):
            pass
