"""Warnings of work in the legacy default stream."""

from __future__ import annotations

import threading
import warnings

import pytest
import stand_in_torch

import gpuscope as gs
from gpuscope.races import default_stream, operators


@pytest.fixture
def gpu():
    return gs.open_device("sim:h200", quiet=True)


@pytest.fixture
def told():
    with warnings.catch_warnings(record=True) as told:
        yield told


def _spin(stream):
    stream.launch(gs.workloads.spin_kernel(stream.device), 5_000, grid=1, block=32)


def test_each_line_is_told_of_once(gpu, told):
    legacy = gpu.wrap_stream(0)
    kernel = gs.workloads.spin_kernel(gpu)
    with gs.no_default_stream():
        for _ in range(3):
            legacy.launch(kernel, 5_000, grid=1, block=32)
        legacy.launch(kernel, 5_000, grid=1, block=32)
    assert [str(warning.message)[:6] for warning in told] == ["'spin'"] * 2
    assert {warning.filename for warning in told} == {__file__}
    assert told[1].lineno == told[0].lineno + 1


def test_other_streams_and_other_times_are_none_of_its_business(gpu, told):
    legacy = gpu.wrap_stream(0)
    with gs.no_default_stream(), gpu.create_stream() as stream:
        _spin(stream)
        _spin(gpu.default_stream())
        stream.wait(legacy.record())
    _spin(legacy)
    assert not told
    assert not gpu.calls.observers


def test_copies_other_threads_and_devices_opened_later_are_seen(told):
    with gs.no_default_stream():
        gpu = gs.open_device("sim:h200", quiet=True)
        a, b = gpu.empty(4), gpu.empty(4)
        legacy = gpu.wrap_stream(0)
        thread = threading.Thread(target=lambda: legacy.copy(a, b))
        thread.start()
        thread.join()
    assert len(told) == 1
    assert not gpu.calls.observers


def test_it_decorates_and_ends_with_an_error(gpu, told):
    @gs.no_default_stream()
    def fails():
        _spin(gpu.wrap_stream(0))
        raise KeyError

    for _ in range(2):
        with pytest.raises(KeyError):
            fails()
    assert len(told) == 1
    assert not gpu.calls.observers


def test_an_error_may_be_made_of_it(gpu):
    with warnings.catch_warnings(), gs.no_default_stream():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="legacy default stream"):
            _spin(gpu.wrap_stream(0))


@pytest.mark.parametrize("handle", [0, 0x5000])
def test_pytorch_operators_are_seen(monkeypatch, told, handle):
    torch = stand_in_torch.install(monkeypatch)
    monkeypatch.setattr(operators, "gpu_of", lambda _tensor: 0)
    monkeypatch.setattr(operators, "pytorch", lambda: torch)
    monkeypatch.setattr(operators, "current_stream", lambda _torch, _index: handle)
    with gs.no_default_stream():
        a = torch.empty(4)
        a.view(2, 2)
        a.add_(1)
    a.add_(1)
    assert [str(warning.message).split()[0] for warning in told] == (
        ["'aten::add_'"] if handle == 0 else []
    )
    assert default_stream.__file__ not in {warning.filename for warning in told}
