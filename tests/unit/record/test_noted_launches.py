"""Launches that C notes in CUPTI's place: called as CUPTI calls it, from many threads."""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import os
import shutil
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from gpuscope import _compiled
from gpuscope.record.cupti import layout
from gpuscope.record.cupti.library import DRIVER_API, RUNTIME_API

pytestmark = pytest.mark.skipif(_compiled.fastpath is None, reason=_compiled.why_not or "-")

ENTER, EXIT = 0, 1
PAGE = 1600
"""Launches of one thread that lie together."""
RECORD, EVENT_POLL, STREAM_POLL, DEVICE_SYNC, STREAM_WAIT = 135, 138, 440, 165, 147
ROLES = {
    (RUNTIME_API, RECORD): 2 | 1,
    (RUNTIME_API, EVENT_POLL): 8 | 1,
    (DRIVER_API, STREAM_POLL): 8 | 2 | 4,
    (RUNTIME_API, DEVICE_SYNC): 16,
    (RUNTIME_API, STREAM_WAIT): 32 | 2 | 1,
}
"""What is noted besides: of an event's record, of polls of an event and of a stream of a thread,
of a wait for the device, and of a stream's for an event."""
CONTEXT, NOT_READY = 6, 600


class Data(ctypes.Structure):
    """CUpti_CallbackData."""

    _fields_ = (
        ("site", ctypes.c_int), ("function", ctypes.c_char_p), ("arguments", ctypes.c_void_p),
        ("returned", ctypes.POINTER(ctypes.c_uint32)), ("symbol", ctypes.c_char_p),
        ("context", ctypes.c_void_p), ("context_id", ctypes.c_uint32),
        ("kept", ctypes.POINTER(ctypes.c_uint64)), ("correlation", ctypes.c_uint32),
    )  # fmt: skip


class Noting:
    """The compiled module once more, and CUPTI's clock, which goes on by 1 at each reading."""

    def __init__(self, module):
        clock = itertools.count(100).__next__

        def now(into):
            into[0] = clock()
            return 0

        self._now = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint64))(now)
        self.asked = []

        def stream_id(context, stream, per_thread, into):
            self.asked.append((context, stream, per_thread))
            into[0] = 17
            return 5 if stream == 0xBAD else 0

        pointer = ctypes.POINTER(ctypes.c_uint32)
        types = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint8, pointer)
        self._stream_id = ctypes.CFUNCTYPE(*types)(stream_id)
        self.captured = []

        def is_capturing(stream, into):
            into[0] = int(stream in self.captured)
            return 0

        types = (ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
        self._is_capturing = ctypes.CFUNCTYPE(*types)(is_capturing)
        self._module, self._next = module, itertools.count(1).__next__
        address = self.serve(self._is_capturing)
        types = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(Data))
        self._note = ctypes.CFUNCTYPE(None, *types)(address)
        self.limit(1 << 30)

    def serve(self, is_capturing):
        """Hand over what it calls; ``None``: it cannot ask whether a stream is captured."""
        served = (self._now, self._stream_id, is_capturing)
        at = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in served]
        domains = (DRIVER_API, RUNTIME_API)
        roles = bytes(ROLES.get((domain, call), 0) for domain in domains for call in range(2048))
        return self._module.serve_launches(*at, roles)

    def limit(self, nbytes):
        self._module.limit_launches(nbytes)

    def time_of_noting(self):
        return self._module.time_of_noting()

    def __call__(
        self,
        site,
        correlation,
        domain=RUNTIME_API,
        callback=211,
        returned=0,
        argument=None,
        second=0,
    ):
        status = ctypes.c_uint32(returned)
        data = Data(site=site, returned=ctypes.pointer(status), correlation=correlation)
        if argument is not None:
            arguments = (ctypes.c_uint64 * 2)(argument, second)
            data.arguments = ctypes.addressof(arguments)
        data.context, data.context_id = 0xC0, CONTEXT
        self._note(None, domain, callback, ctypes.byref(data))

    def launch(self, correlation, **facts):
        self(ENTER, correlation, **facts)
        self(EXIT, correlation, **facts)

    def take(self):
        """Return how many were dropped, and the records by kind."""
        taken = []
        dropped = self._module.take_launches(taken, self._next)
        raw = np.concatenate([np.frombuffer(data, np.uint8) for _, data in taken] or [[]])
        raw = raw.astype(np.uint8)
        found = layout.find_records(raw, layout.record_sizes(layout.OLDEST))
        assert not found.unread
        return dropped, layout.read_records(raw, found)

    def subjects(self):
        """Return stream and event by correlation."""
        _, records = self.take()
        names = ("correlation", "handle", "event")
        return {
            number: (handle, event)
            for columns in records.values()
            for number, handle, event in zip(*(columns[name] for name in names), strict=True)
        }

    def correlations(self):
        _, records = self.take()
        return [
            number
            for kind in (layout.NOTED_RUNTIME, layout.NOTED_DRIVER)
            if kind in records
            for number in records[kind]["correlation"].tolist()
        ]


@pytest.fixture
def noting(tmp_path, monkeypatch):
    # Loading it puts it there, whatever asked for it.
    monkeypatch.setitem(sys.modules, "gpuscope._fastpath", _compiled.fastpath)
    path = shutil.copy(_compiled.fastpath.__file__, tmp_path)
    spec = importlib.util.spec_from_file_location("gpuscope._fastpath", path)
    own = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(own)
    noting = Noting(own)
    yield noting
    noting.take()


def test_a_launch_is_noted_as_cupti_records_it(noting):
    noting.launch(7, returned=3)
    noting.launch(8, domain=DRIVER_API, callback=307)
    dropped, records = noting.take()
    assert dropped == 0
    thread = threading.get_native_id()
    common = {"process": [os.getpid()], "thread": [thread], "site": [0]}
    common |= {"handle": [0], "event": [0]}
    told = {
        kind: {name: values.tolist() for name, values in columns.items()}
        for kind, columns in records.items()
    }
    assert told == {
        layout.NOTED_RUNTIME: common
        | {"callback": [211], "start": [100], "end": [101], "correlation": [7], "returned": [3]},
        layout.NOTED_DRIVER: common
        | {"callback": [307], "start": [102], "end": [103], "correlation": [8], "returned": [0]},
    }
    assert noting.take() == (0, {})


def test_how_the_runtime_launches_is_not_another_launch(noting):
    noting(ENTER, 5)
    noting.launch(5, domain=DRIVER_API)
    noting.launch(6, domain=DRIVER_API)  # as a library's own inside it
    noting(EXIT, 5)
    assert noting.correlations() == [5, 6]


def test_what_was_not_seen_to_begin_or_to_end_is_no_launch(noting):
    noting(EXIT, 1)
    noting(ENTER, 2)
    noting.launch(3)
    noting(EXIT, 2)
    noting.launch(4, domain=3)
    noting.launch(0)
    assert noting.correlations() == [3]


def test_of_every_seventeenth_call_it_is_told_how_long_noting_took(noting):
    noting.time_of_noting()
    for correlation in range(1, 101):
        noting.launch(correlation)
    noting(ENTER, 102)
    ns, squares, calls = noting.time_of_noting()
    assert calls == 5
    assert 0 < ns <= 5 * 20_000  # what took longer was interrupted
    assert ns * ns / 5 <= squares <= ns * ns
    noting(EXIT, 102)
    assert noting.time_of_noting()[2] == 1
    assert noting.time_of_noting() == (0, 0, 0)


def test_launches_of_many_threads_are_all_noted_while_others_take_them(noting):
    threads, each = 4, 2 * PAGE + 7
    found, over = [], threading.Event()

    def launch(first):
        for correlation in range(first, first + each):
            noting.launch(correlation)

    def take():
        while not over.is_set():
            found.extend(noting.correlations())

    reader = threading.Thread(target=take)
    writers = [
        threading.Thread(target=launch, args=(1 + number * each,)) for number in range(threads)
    ]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join(60)
    over.set()
    reader.join(60)
    found += noting.correlations()
    assert sorted(found) == list(range(1, 1 + threads * each))
    for first in range(1, 1 + threads * each, each):
        own = [number for number in found if first <= number < first + each]
        assert own == sorted(own)


def test_what_has_no_room_is_counted_and_room_comes_back(noting):
    noting.limit(110_000)  # one page
    for correlation in range(1, PAGE + 4):
        noting.launch(correlation)
    dropped, records = noting.take()
    assert dropped == 3
    assert len(records[layout.NOTED_RUNTIME]["start"]) == PAGE
    noting.limit(220_000)
    noting.launch(9000)
    noting.limit(110_000)
    assert noting.correlations() == [9000]
    for correlation in range(1, PAGE):
        noting.launch(correlation)
    assert noting.take()[0] == 0


def test_threads_that_ended_leave_no_memory_taken(noting):
    noting.limit(300_000)  # 4 pages
    for correlation in range(1, 50):
        thread = threading.Thread(target=noting.launch, args=(correlation,))
        thread.start()
        thread.join()
        while Path(f"/proc/self/task/{thread.native_id}").exists():
            time.sleep(0.001)  # Python's part of it has ended
        dropped, records = noting.take()
        assert dropped == 0
        assert records[layout.NOTED_RUNTIME]["correlation"].tolist() == [correlation]


def test_nothing_is_taken_where_it_cannot_be_kept(noting):
    noting.launch(5)

    def fails():
        raise KeyboardInterrupt

    for into, number in (([], fails), ((), lambda: 1), (None, lambda: 1)):
        with pytest.raises((KeyboardInterrupt, TypeError)):
            noting._module.take_launches(into, number)
    assert noting.correlations() == [5]


def test_of_events_and_streams_their_handles_are_noted_and_of_polls_those_that_saw_it_done(noting):
    noting.launch(2, callback=EVENT_POLL, argument=0xE0, returned=NOT_READY)
    noting.launch(3, callback=EVENT_POLL, argument=0xE0)
    noting.launch(4, argument=0xE0)
    noting.launch(5, callback=EVENT_POLL)
    noting.launch(6, domain=DRIVER_API, callback=STREAM_POLL, argument=0xA0, returned=NOT_READY)
    noting.launch(7, domain=DRIVER_API, callback=STREAM_POLL, argument=0xA0)
    noting.launch(8, domain=DRIVER_API, callback=STREAM_POLL, argument=0xBAD)
    noting.launch(9, domain=DRIVER_API, callback=STREAM_POLL, argument=0)
    noting.launch(10, callback=DEVICE_SYNC)
    created, default = 1 << 62 | CONTEXT << 32 | 17, CONTEXT << 32 | 17
    assert noting.subjects() == {
        3: (0, 0xE0), 4: (0, 0), 5: (0, 0), 7: (created, 0), 8: (0, 0), 9: (default, 0),
        10: (CONTEXT << 32 | 0xFFFFFFFF, 0),
    }  # fmt: skip
    assert noting.asked == [(None, 0xA0, 1), (None, 0xBAD, 1), (0xC0, None, 1)]


def test_of_records_and_waits_of_streams_both_are_noted_but_where_they_are_captured(noting):
    noting.captured = [0xA1]
    for number, callback, *arguments in (
        (1, RECORD, 0xE0, 0xA0),
        (2, STREAM_WAIT, 0xA0, 0xE0),
        (3, STREAM_WAIT, 0xA1, 0xE0),
        (4, RECORD, 0xE0, 0xA1),
        (5, RECORD, 0xE0, 0),
    ):
        noting.launch(number, callback=callback, argument=arguments[0], second=arguments[1])
    noting.launch(6, callback=STREAM_WAIT)
    created, default = 1 << 62 | CONTEXT << 32 | 17, CONTEXT << 32 | 17
    both, nothing = (created, 0xE0), (0, 0)
    assert noting.subjects() == {
        1: both, 2: both, 3: nothing, 4: nothing, 5: (default, 0xE0), 6: nothing,
    }  # fmt: skip


def test_where_the_driver_cannot_be_asked_nothing_counts_as_captured(noting):
    noting.serve(None)
    noting.launch(1, callback=RECORD, argument=0xE0, second=0xA0)
    assert noting.subjects() == {1: (1 << 62 | CONTEXT << 32 | 17, 0xE0)}


INSTANTIATE, GRAPH_LAUNCH, UPLOAD = 390, 311, 392
ROLES |= {
    (RUNTIME_API, INSTANTIATE): 64,
    (RUNTIME_API, GRAPH_LAUNCH): 128,
    (DRIVER_API, GRAPH_LAUNCH): 128,
    (RUNTIME_API, UPLOAD): 192,
}
GRAPH_TRACE = 51
ALWAYS_WHOLE, BY_NODE = 0, -1


class Graphs:
    """A program that uses graphs, and which of its launches CUPTI would record whole."""

    def __init__(self, noting):
        self._noting, self._module = noting, noting._module
        self._number = itertools.count(1).__next__
        self.is_whole = False
        self.refuses = False
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint32)
        self._switches = [kind(lambda kind, on=on: self._switch(kind, on=on)) for on in (1, 0)]
        self._module.serve_graphs(
            *(ctypes.cast(switch, ctypes.c_void_p).value for switch in self._switches)
        )

    def _switch(self, kind, *, on):
        assert kind == GRAPH_TRACE
        if not self.refuses:
            self.is_whole = bool(on)
        return int(self.refuses)

    def record(self, period):
        self._module.record_graphs(period)

    def instantiate(self, handle, during=lambda: None, **facts):
        number, into = self._number(), ctypes.c_uint64(handle)
        facts |= {"callback": INSTANTIATE, "argument": ctypes.addressof(into)}
        self._noting(ENTER, number, **facts)
        during()
        self._noting(EXIT, number, **facts)

    def launch(self, handle, during=lambda: None, **facts):
        """Return whether the launch is recorded whole, before ``during`` and behind."""
        number, facts = self._number(), {"callback": GRAPH_LAUNCH, "argument": handle} | facts
        self._noting(ENTER, number, **facts)
        is_whole = self.is_whole
        during()
        assert self.is_whole == is_whole, "CUPTI's records changed inside a launch"
        self._noting(EXIT, number, **facts)
        return is_whole

    @property
    def met_unknown(self):
        return self._module.met_unknown_graph()


@pytest.fixture
def graphs(noting):
    return Graphs(noting)


def test_graphs_are_recorded_by_node_unless_asked_otherwise(graphs):
    graphs.instantiate(0xA0)
    assert not graphs.launch(0xA0)
    graphs.record(BY_NODE)
    assert not graphs.launch(0xA0)
    assert not graphs.met_unknown


def test_what_was_instantiated_in_the_recording_is_recorded_whole(graphs, noting):
    graphs.record(ALWAYS_WHOLE)
    for handle in range(0xA0, 0xA0 + 8 * 300, 8):  # more than the first table holds
        graphs.instantiate(handle)
    assert all(graphs.launch(handle) for handle in range(0xA0, 0xA0 + 8 * 300, 8))
    assert graphs.launch(0xA0, domain=DRIVER_API)
    graphs.record(BY_NODE)
    assert not graphs.launch(0xA0)
    assert len(noting.correlations()) == 302  # an instantiation is no work


@pytest.mark.parametrize("callback", [GRAPH_LAUNCH, UPLOAD])
def test_a_graph_from_before_switches_whole_graphs_off_before_its_launch(graphs, callback):
    graphs.instantiate(0xB0)
    graphs.record(ALWAYS_WHOLE)
    graphs.instantiate(0xA0)
    assert graphs.launch(0xA0)
    assert not graphs.launch(0xB0, callback=callback)
    assert graphs.met_unknown
    assert not graphs.launch(0xA0)
    graphs.instantiate(0xC0)
    assert not graphs.launch(0xC0)


def test_what_was_known_in_a_former_recording_is_unknown_in_the_next(graphs):
    graphs.record(ALWAYS_WHOLE)
    graphs.instantiate(0xA0)
    graphs.record(BY_NODE)  # meanwhile another graph may have got the handle
    graphs.record(ALWAYS_WHOLE)
    assert not graphs.launch(0xA0)
    assert graphs.met_unknown


def test_an_instantiation_that_failed_or_saw_whole_graphs_go_leaves_its_handle_unknown(graphs):
    graphs.record(ALWAYS_WHOLE)
    graphs.instantiate(0xA0, returned=1)

    def restart():
        graphs.record(BY_NODE)
        graphs.record(ALWAYS_WHOLE)

    graphs.instantiate(0xB0, during=restart)
    graphs.instantiate(0xC0)
    assert graphs.launch(0xC0)
    assert not graphs.launch(0xB0)
    graphs.record(BY_NODE)
    graphs.record(ALWAYS_WHOLE)
    graphs.instantiate(0xA0, returned=1)
    assert not graphs.launch(0xA0)


def test_once_in_a_while_the_nodes_of_each_graph_are_timed(graphs):
    graphs.record(40)  # of the clock, which goes on by 1 at each reading
    for handle in (0xA0, 0xB0):
        graphs.instantiate(handle)
    launches = [graphs.launch(0xA0) for _ in range(60)]
    assert graphs.is_whole
    by_node = [number for number, is_whole in enumerate(launches) if not is_whole]
    assert by_node == [0, 20, 40]  # two readings a launch
    assert not graphs.launch(0xB0)
    assert graphs.launch(0xB0)


def in_another_thread(call):
    seen = []
    thread = threading.Thread(target=lambda: seen.append(call()))
    thread.start()
    thread.join()
    return seen[0]


def test_what_is_recorded_of_graphs_does_not_change_inside_a_launch(graphs):
    graphs.record(1)  # each is due
    for handle in (0xA0, 0xB0):
        graphs.instantiate(handle)
    seen = []

    def meanwhile():
        seen.append(in_another_thread(lambda: graphs.launch(0xB0)))
        in_another_thread(lambda: graphs.instantiate(0xC0))

    assert not graphs.launch(0xA0, during=meanwhile)
    assert seen == [False]  # of which there are nodes, too
    assert graphs.is_whole
    assert not graphs.launch(0xC0)  # it came while none was recorded whole
    assert graphs.met_unknown


def test_a_sample_waits_until_no_other_launch_is_under_way(graphs):
    graphs.record(60)
    graphs.instantiate(0xA0)
    assert not graphs.launch(0xA0)
    graphs.instantiate(0xB0)
    seen = []

    def meanwhile():  # it is due, as it never was
        seen.append(in_another_thread(lambda: graphs.launch(0xB0)))

    assert graphs.launch(0xA0, during=meanwhile)
    assert seen == [True]
    assert not graphs.launch(0xB0)


def test_a_launch_whose_end_nobody_saw_hinders_no_later_recording(graphs, noting):
    graphs.record(1)
    graphs.instantiate(0xA0)
    noting(ENTER, 1000, callback=GRAPH_LAUNCH, argument=0xA0)
    graphs.record(BY_NODE)
    graphs.record(1)
    graphs.instantiate(0xA0)
    assert graphs.is_whole
    assert not graphs.launch(0xA0)  # its nodes are timed


def test_no_nodes_are_timed_while_a_graph_is_instantiated(graphs):
    graphs.record(1)
    graphs.instantiate(0xA0)
    seen = []

    def launch_in_another_thread():
        thread = threading.Thread(target=lambda: seen.append(graphs.launch(0xA0)))
        thread.start()
        thread.join()

    graphs.instantiate(0xB0, during=launch_in_another_thread)
    assert seen == [True]
    assert not graphs.launch(0xA0)


def test_whole_graphs_are_on_from_the_first_instantiation_on(graphs):
    graphs.record(ALWAYS_WHOLE)
    assert not graphs.is_whole  # other threads may be inside launches of graphs from before
    graphs.instantiate(0xA0)
    assert graphs.is_whole


def test_an_unknown_graph_counts_until_graphs_are_by_node_again(graphs):
    graphs.record(ALWAYS_WHOLE)
    graphs.launch(0xB0)
    graphs.record(40)  # as another recording wants
    graphs.instantiate(0xA0)
    assert graphs.met_unknown
    assert not graphs.is_whole
    graphs.record(BY_NODE)
    graphs.record(ALWAYS_WHOLE)
    graphs.instantiate(0xA0)
    assert graphs.launch(0xA0)
    assert not graphs.met_unknown


def test_a_launch_that_cannot_be_noted_is_not_recorded_whole(graphs, noting):
    graphs.record(ALWAYS_WHOLE)
    graphs.instantiate(0xA0)
    noting.limit(0)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(graphs.launch(0xB0)))  # its first call
    thread.start()
    thread.join()
    noting.limit(1 << 30)
    assert seen == [False]
    assert graphs.met_unknown
    noting.take()


def test_an_instantiation_whose_end_nobody_saw_hinders_no_later_recording(graphs, noting):
    graphs.record(1)
    number, into = 1000, ctypes.c_uint64(0xA0)
    noting(ENTER, number, callback=INSTANTIATE, argument=ctypes.addressof(into))
    graphs.record(BY_NODE)
    graphs.record(1)
    graphs.instantiate(0xB0)
    assert not graphs.launch(0xB0)  # its nodes are timed


def test_where_cupti_refuses_graphs_stay_recorded_by_node(graphs):
    graphs.refuses = True
    graphs.record(ALWAYS_WHOLE)
    graphs.instantiate(0xA0)
    assert not graphs.launch(0xA0)
    assert graphs.met_unknown
