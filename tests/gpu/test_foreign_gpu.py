"""Arrays of other libraries: read-only ones, byte order, and whose stream is followed."""

from __future__ import annotations

import numpy as np
import pytest
from latches import Latch

import gpuscope as gs
from gpuscope.workloads.spin import Spin

pytestmark = pytest.mark.gpu
HOLD_NS = 50_000_000


class Interface:
    """A CuPy array behind the CUDA array interface alone."""

    def __init__(self, array, *, stream=None, read_only=False, typestr=None):
        self.array = array
        self.__cuda_array_interface__ = {
            **array.__cuda_array_interface__,
            "data": (array.data.ptr, read_only),
            "stream": stream,
            "version": 3,
        }
        if typestr is not None:
            self.__cuda_array_interface__["typestr"] = typestr


@pytest.fixture(scope="module")
def gpu():
    device = gs.open_device("cuda:0", quiet=True)
    yield device
    device.close()


def test_mm_out_06_the_stream_of_an_interface_is_followed_by_an_event(gpu):
    ones, out = gpu.asarray(np.ones((4, 4)), "float32"), gpu.empty((4, 4))
    a = gpu.asarray(np.zeros((4, 4)), "float32")
    with gpu.create_stream() as producer, gpu.create_stream() as stream, Latch(gpu) as latch:
        gs.mm_out(out, a, ones, stream=stream)  # a kernel that is loaded waits for what runs
        stream.synchronize()
        latch.hold(producer)
        producer.copy(a, ones)
        gs.mm_out(out, Interface(a, stream=producer.handle), ones, stream=stream)
        assert not producer.is_done, "the host did not wait"
        latch.open()
        stream.synchronize()
        assert producer.is_done
    assert (gpu.to_host(out) == 4).all()


@pytest.mark.gpu_alone("50 ms must outlast what takes memory")
@pytest.mark.parametrize("default", [1, 2])
def test_mm_out_06_default_streams_are_followed_too(gpu, default):
    ones, out = gpu.asarray(np.ones((4, 4)), "float32"), gpu.empty((4, 4))
    a = gpu.asarray(np.zeros((4, 4)), "float32")
    producer = gpu.wrap_stream(default)
    with (
        gpu.create_stream() as stream,
        gs.Gemm(gpu, m=4, n=4, k=4, dtype="float32") as gemm,
        Spin(gpu, duration_ns=HOLD_NS) as hold,
    ):
        gemm.execute(a, ones, out, stream=stream)  # a kernel that is loaded waits for what runs
        gemm.wait()
        hold.execute(stream=producer)
        producer.copy(a, ones)
        gemm.execute(Interface(a, stream=default), ones, out, stream=stream)
        assert not producer.is_done, "the host did not wait"
        gemm.wait()
    assert (gpu.to_host(out) == 4).all()


def test_mm_out_01_what_is_shared_as_read_only_is_not_written(gpu):
    a, out = gpu.random((4, 4)), gpu.empty((4, 4))
    gs.mm_out(out, Interface(a, read_only=True), a)
    with pytest.raises(gs.errors.InvalidOperand, match=r"out: .*read-only"):
        gs.mm_out(Interface(out, read_only=True), a, a)
    with gpu.create_stream() as stream, pytest.raises(gs.errors.InvalidOperand, match="read-only"):
        stream.copy(Interface(out, read_only=True), a)


def test_mm_out_01_byte_order_is_seen_through_an_interface(gpu):
    a, out = gpu.random((4, 4)), gpu.empty((4, 4))
    with pytest.raises(gs.errors.InvalidOperand, match="dtypes differ"):
        gs.mm_out(out, Interface(a, typestr=">f4"), a)
