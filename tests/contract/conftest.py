"""One suite, two devices: what holds on the simulated GPU holds on a real one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import gpuscope as gs
from gpuscope.device.device import Device


@pytest.fixture(params=["sim:h200", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest) -> Iterator[Device]:
    device = gs.open_device(request.param, quiet=True)
    yield device
    device.close()
    assert not device.calls.observers, "a test left an observer behind"


class Watcher:
    """An observer that keeps what it is told of work, not of memory being filled."""

    def __init__(self) -> None:
        self.begun = []
        self.ended = []
        self.on_begin = None

    def call_begins(self, call) -> None:
        if call.kind == "setup":
            return
        self.begun.append(call)
        if self.on_begin is not None:
            self.on_begin(call)

    def call_ends(self, call) -> None:
        if call.kind == "setup":
            return
        self.ended.append(call)

    def activity(self, activity) -> None:
        pass


@pytest.fixture
def watcher(gpu: Device) -> Iterator[Watcher]:
    found = Watcher()
    gpu.calls.observe(found)
    yield found
    gpu.calls.unobserve(found)
