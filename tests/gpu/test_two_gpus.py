"""Contract B8 and B10 on two GPUs: what is current, and streams of the other one."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import gpuscope as gs

pytestmark = pytest.mark.gpu

A = np.arange(32, dtype=np.float32).reshape(4, 8) % 5 + 1
B = np.arange(48, dtype=np.float32).reshape(8, 6) % 3 + 1


@pytest.fixture(scope="module")
def runtime():
    runtime = pytest.importorskip("cupy").cuda.runtime
    if runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    return runtime


@pytest.fixture(params=[0, 1], ids=["current 0", "current 1"])
def current(request, runtime):
    """The device that is current before, and has to be after."""
    before = runtime.getDevice()
    runtime.setDevice(request.param)
    yield request.param
    assert runtime.getDevice() == request.param
    runtime.setDevice(before)


@pytest.fixture
def gpus(runtime):
    opened = [gs.open_device(f"cuda:{index}", quiet=True) for index in (0, 1)]
    yield opened
    for device in opened:
        device.close()


def product(device, **kwargs):
    return gs.Gemm(device, m=4, n=6, k=8, dtype="float32", **kwargs)


def test_handle_08_one_thread_runs_on_both(runtime, current, gpus):
    for device in gpus:
        a, b, out = device.asarray(A), device.asarray(B), device.empty((4, 6))
        assert out.data.device_id == device.info.index
        with product(device) as handle, device.create_stream() as stream:
            for _ in range(3):
                assert handle.execute(a, b, out, stream=stream) is out
                assert runtime.getDevice() == current
            with gs.CallerStreamGuard(stream):
                gs.mm_out(out, a, b)
                assert runtime.getDevice() == current
            handle.wait()
            assert np.array_equal(device.to_host(out), A @ B)
            host = np.zeros((4, 6), np.float32)
            assert np.array_equal(handle.execute(A, B, host, stream=stream), A @ B)
            assert np.array_equal(handle.execute(A, B, host), A @ B)
            assert runtime.getDevice() == current
        assert runtime.getDevice() == current
        handle = product(device)
        with device.create_stream() as stream:
            handle.execute(stream=stream)
            del handle
            gc.collect()
            assert runtime.getDevice() == current
        assert runtime.getDevice() == current
        with device.carve({"part": 16}) as parts:
            assert runtime.getDevice() == current
            with product(parts["part"]) as handle:
                handle.execute(a, b, out, stream=parts["part"].create_stream())
            assert runtime.getDevice() == current
        assert runtime.getDevice() == current


def test_handle_08_restored_after_errors(runtime, current, gpus, monkeypatch):
    for device in gpus:
        handle = product(device)
        with device.create_stream() as stream:
            for name in ("matmul", "record", "copy"):

                def fail(*args, name=name):
                    raise gs.errors.GpuscopeError(name)

                with monkeypatch.context() as patch:
                    patch.setattr(device.backend, name, fail)
                    faulty = product(device)
                    with pytest.raises(gs.errors.GpuscopeError, match=name):
                        faulty.execute(A, stream=stream)
                    assert runtime.getDevice() == current
                    faulty.close()
            with pytest.raises(gs.errors.InvalidOperand):
                handle.execute(device.empty((3, 3)), stream=stream)
            with pytest.raises(gs.errors.GpuscopeError):
                device.compile("this is no CUDA", "nothing")
            assert runtime.getDevice() == current
        handle.close()


def test_handle_08_operands_of_the_other_device_are_refused(current, gpus):
    here, there = gpus
    with here.create_stream() as stream, product(here) as handle:
        with pytest.raises(gs.errors.InvalidOperand, match="another device than out"):
            handle.execute(there.asarray(A), stream=stream)
        handle.execute(here.asarray(A), stream=stream)


def test_handle_08_both_at_once_from_two_threads(runtime, current, gpus):
    wrong = []

    def work(device):
        try:
            with product(device) as handle, device.create_stream() as stream:
                out = device.empty((4, 6))
                a, b = device.asarray(A), device.asarray(B)
                for _ in range(200):
                    handle.execute(a, b, out, stream=stream)
                stream.synchronize()
                assert np.array_equal(device.to_host(out), A @ B)
        except BaseException as error:  # noqa: BLE001 - told below
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(device,)) for device in gpus]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert wrong == []


def test_handle_10_a_stream_of_the_other_device_is_refused(runtime, current, gpus):
    for here, there in (gpus, gpus[::-1]):
        with product(here) as handle, there.create_stream(name="theirs") as theirs:
            refused = pytest.raises(
                gs.errors.StreamError,
                match=rf"'theirs' belongs to {there.info.key}, not to {here.info.key}.*"
                r"create_stream\(\)",
            )
            with refused:
                handle.execute(stream=theirs)
            with gs.CallerStreamGuard(theirs), refused:
                handle.execute()
            out = here.empty((4, 6))
            with refused:
                gs.mm_out(out, here.asarray(A), here.asarray(B), stream=theirs)
            assert handle.completion is None
            assert runtime.getDevice() == current
            with here.create_stream() as ours:
                handle.execute(stream=ours)
