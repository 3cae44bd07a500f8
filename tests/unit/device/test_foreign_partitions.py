"""Names for partitions of PyTorch's and cuda.core's: what is taken, and what the driver is asked."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

import gpuscope as gs
from gpuscope.device import foreign
from gpuscope.errors import GpuscopeError, InvalidArgument

GREEN = {0x70: 0x9000, 0x71: 0x9000, 0x80: 0xA000}
"""Stream → the green context that a driver says it is in."""
SMS = {0x9000: 16, 0xA000: 24}


class Status(int):
    name = "CUDA_ERROR_INVALID_HANDLE"


@pytest.fixture(autouse=True)
def named(monkeypatch):
    """Play the driver; return what has a name."""
    driver = ModuleType("cuda.bindings.driver")

    def green_of(stream):
        return (Status(1), 0) if stream == 0xBAD else (Status(0), GREEN.get(stream, 0))

    driver.cuStreamGetGreenCtx = green_of
    driver.cuCtxFromGreenCtx = lambda green: (Status(0), green + 1)
    resource = lambda sms: (Status(0), SimpleNamespace(sm=SimpleNamespace(smCount=sms)))  # noqa: E731
    driver.cuGreenCtxGetDevResource = lambda green, _kind: resource(SMS[green])
    driver.cuCtxGetDevResource = lambda context, _kind: resource(SMS[context - 1])
    driver.CUcontext = int
    driver.CUdevResourceType = SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM=1)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver)
    monkeypatch.setattr(foreign, "NAMED", {})
    return foreign.NAMED


class TorchStream:
    """A stream of a PyTorch that does not have the protocol yet."""

    def __init__(self, handle):
        self.cuda_stream = handle


class Stream:
    def __init__(self, handle):
        self._handle = handle

    def __cuda_stream__(self):
        return (0, self._handle)


class TorchContext:
    def Stream(self):  # noqa: N802 - as PyTorch has it
        return TorchStream(0x70)


class CoreContext:
    def __init__(self, handle, *, is_green=True):
        self.handle, self.is_green = handle, is_green

    def create_stream(self):
        return Stream(0x70)


@pytest.mark.parametrize(
    ("given", "context", "sms", "stream"),
    [
        (TorchContext(), 0x9001, 16, 0),
        (TorchStream(0x71), 0x9001, 16, 0x71),
        (Stream(0x80), 0xA001, 24, 0x80),
        (0x80, 0xA001, 24, 0x80),
        (CoreContext(0xA001), 0xA001, 24, 0),
    ],
)
def test_contexts_and_streams_of_any_owner_are_named(named, given, context, sms, stream):
    gs.device.name_partition(given, "decode")
    assert named == {context: foreign.NamedPartition("decode", sms, context, stream)}


def test_the_latest_name_counts(named):
    gs.device.name_partition(TorchContext(), "decode")
    gs.device.name_partition(Stream(0x71), "prefill")
    assert [each.name for each in named.values()] == ["prefill"]


@pytest.mark.parametrize(
    ("given", "name", "why"),
    [
        (Stream(0x99), "a", "no green context"),
        (CoreContext(0xA001, is_green=False), "a", "own context"),
        (object(), "a", "partition is object"),
        (None, "a", "partition is None"),
        (True, "a", "partition is True"),
        ("decode", "a", "partition is 'decode'"),
        (Stream(0x70), "", "name is a non-empty text, not ''"),
        (Stream(0x70), 5, "name is a non-empty text, not 5"),
    ],
)
def test_what_is_no_partition_or_no_name_is_refused(named, given, name, why):
    with pytest.raises(InvalidArgument, match=why):
        gs.device.name_partition(given, name)
    assert not named


def test_a_stream_that_is_gone_is_the_drivers_refusal():
    with pytest.raises(GpuscopeError, match="CUDA_ERROR_INVALID_HANDLE"):
        gs.device.name_partition(Stream(0xBAD), "a")


def test_partitions_of_ours_have_their_names():
    gpu = gs.open_device("sim:h200", quiet=True)
    with gpu.carve({"a": 16}) as parts, parts["a"].create_stream() as stream:
        for ours in (parts["a"], stream):
            with pytest.raises(InvalidArgument, match="own"):
                gs.device.name_partition(ours, "b")
