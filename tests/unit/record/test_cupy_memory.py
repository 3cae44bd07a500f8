"""Memory that CuPy's pool gives out again: reuse without order, on a faked CuPy."""

from __future__ import annotations

import sys
import threading

import pytest
import stand_in_cupy
from stand_in_cupy import Stream, of_thread

from gpuscope.device.accesses import Access
from gpuscope.races.hazard_log import HazardLog
from gpuscope.races.hazard_notes import Queue, Record, Wait, Work
from gpuscope.races.observer import watching_libraries

HOME, OTHER = Queue("cuda:0", 0x10), Queue("cuda:0", 0x20)


@pytest.fixture
def cupy(monkeypatch):
    cupy = stand_in_cupy.module()
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: Stream(HOME.handle))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return cupy


@pytest.mark.parametrize("waits", [True, False])
def test_memory_goes_back_in_the_order_of_its_stream(cupy, waits):
    log, event = HazardLog(), Record(OTHER, lambda: None)
    with watching_libraries(log):
        (hook,) = of_thread.hooks.values()
        hook.malloc_postprocess(device_id=0, size=100, mem_size=512, mem_ptr=4096, pmem_id=1)
        log.note(Work(OTHER, "reader", (Access(4096, 4196),)))
        if waits:
            log.note(event)
            log.note(Wait(HOME, event.event))
        hook.free_preprocess(device_id=0, mem_size=512, mem_ptr=4096, pmem_id=1)
        log.note(Work(HOME, "writer", (Access(4096, 4196, reads=False, writes=True),)))
        hook.free_preprocess(device_id=0, mem_size=512, mem_ptr=8192, pmem_id=2)  # made before
    assert not of_thread.hooks
    log.read()
    kinds = [fact.kind for fact in log.facts().found]
    assert kinds == ([] if waits else ["reuse of freed memory"])


def test_a_recording_that_another_thread_ends_hears_no_more(cupy):
    log = HazardLog()
    watching = watching_libraries(log)
    watching.__enter__()
    (hook,) = of_thread.hooks.values()
    hook.malloc_postprocess(device_id=0, size=100, mem_size=512, mem_ptr=4096, pmem_id=1)
    thread = threading.Thread(target=watching.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    log.note(Work(OTHER, "reader", (Access(4096, 4196),)))
    hook.free_preprocess(device_id=0, mem_size=512, mem_ptr=4096, pmem_id=1)
    hook.malloc_postprocess(device_id=0, size=100, mem_size=512, mem_ptr=4096, pmem_id=1)
    log.note(Work(HOME, "writer", (Access(4096, 4196, reads=False, writes=True),)))
    log.read()
    assert [fact.kind for fact in log.facts().found] == ["write after read"]
    of_thread.hooks.clear()
