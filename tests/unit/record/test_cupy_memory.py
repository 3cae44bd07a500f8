"""Memory that CuPy's pool gives out again: reuse without order, on a faked CuPy."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest

from gpuscope.device.accesses import Access
from gpuscope.record.hazard_log import HazardLog
from gpuscope.record.hazard_notes import Queue, Record, Wait, Work
from gpuscope.record.libraries import watching_libraries

HOME, OTHER = Queue("cuda:0", 0x10), Queue("cuda:0", 0x20)


class Hook:
    """As ``cupy.cuda.MemoryHook``: hooks of a thread, by name."""

    name = "MemoryHook"
    on: ClassVar[dict] = {}

    def __enter__(self):
        self.on[self.name] = self

    def __exit__(self, *_):
        del self.on[self.name]


@pytest.fixture
def cupy(monkeypatch):
    cupy = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(
        MemoryHook=Hook, get_current_stream=lambda: SimpleNamespace(ptr=HOME.handle)
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return cupy


@pytest.mark.parametrize("waits", [True, False])
def test_memory_goes_back_in_the_order_of_its_stream(cupy, waits):
    log, event = HazardLog(), Record(OTHER, lambda: None)
    with watching_libraries(log):
        (hook,) = Hook.on.values()
        hook.malloc_postprocess(device_id=0, size=100, mem_size=512, mem_ptr=4096, pmem_id=1)
        log.note(Work(OTHER, "reader", (Access(4096, 4196),)))
        if waits:
            log.note(event)
            log.note(Wait(HOME, event.event))
        hook.free_preprocess(device_id=0, mem_size=512, mem_ptr=4096, pmem_id=1)
        log.note(Work(HOME, "writer", (Access(4096, 4196, reads=False, writes=True),)))
        hook.free_preprocess(device_id=0, mem_size=512, mem_ptr=8192, pmem_id=2)  # made before
    assert not Hook.on
    log.read()
    kinds = [fact.kind for fact in log.facts().found]
    assert kinds == ([] if waits else ["reuse of freed memory"])
