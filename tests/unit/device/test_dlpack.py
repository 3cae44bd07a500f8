"""Contract E, rule 6: arrays of other libraries, read without a copy and without a wait."""

from __future__ import annotations

import ctypes
import gc
import importlib
import sys
import types
import weakref

import ml_dtypes
import numpy as np
import pytest

import gpuscope.device.cuda as cuda_package
from gpuscope.device import select
from gpuscope.device.cuda import dlpack, driver
from gpuscope.errors import InvalidOperand


class OnCuda:
    """A NumPy array that says it were on a CUDA device."""

    def __init__(self, array, kind=dlpack.CUDA, index=0):
        self.array, self.kind, self.index = array, kind, index
        self.streams = []
        self.error = None

    def __dlpack_device__(self):
        return self.kind, self.index

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        if self.error:
            raise self.error
        return self.array.__dlpack__()


class Bfloat16(OnCuda):
    """NumPy exports no bfloat16: its bits are, and the type is put right afterwards."""

    def __dlpack__(self, *, stream=None):
        capsule = self.array.view(np.int16).__dlpack__()
        pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
        pointer_of.restype, pointer_of.argtypes = (
            ctypes.c_void_p,
            [ctypes.py_object, ctypes.c_char_p],
        )
        dlpack._Tensor.from_address(pointer_of(capsule, b"dltensor")).code = 4
        return capsule


class Versioned(OnCuda):
    """One that says which version of DLPack it speaks."""

    def __dlpack__(self, *, stream=None, max_version=None):
        self.streams.append(stream)
        return self.array.__dlpack__(max_version=max_version)


class Interface:
    """An array of a library that offers the CUDA array interface."""

    def __init__(self, offer):
        self.__cuda_array_interface__ = offer


LAYOUTS = {
    "row-major": lambda array: array,
    "transposed": lambda array: array.T,
    "part": lambda array: array[1:3, 2:5],
    "strided": lambda array: array[::2, ::3],
    "backward": lambda array: array[::-1],
    "empty": lambda array: array[:0],
    "vector": lambda array: array[0],
    "one": lambda array: array[1:2, 1:2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "uint8", "bool"])
def test_mm_out_06_dlpack_is_read_as_it_is(layout, dtype):
    array = LAYOUTS[layout](np.arange(24).reshape(4, 6).astype(dtype))
    found = dlpack.export(OnCuda(array))
    assert found.shape == array.shape
    assert found.dtype == array.dtype
    if array.size > 1:
        assert found.strides == array.strides
    if array.size:
        assert found.pointer == array.ctypes.data, "the same memory"
        low, high = np.lib.array_utils.byte_bounds(array)
        assert found.nbytes == high - low
    else:
        assert found.nbytes == 0


def test_mm_out_06_bfloat16_too():
    array = np.arange(24).reshape(4, 6).astype(ml_dtypes.bfloat16).T
    found = dlpack.export(Bfloat16(array))
    assert found.dtype == np.dtype(ml_dtypes.bfloat16)
    assert (found.shape, found.strides) == (array.shape, array.strides)


def test_mm_out_06_the_exporter_is_asked_for_no_waits():
    value = OnCuda(np.zeros((2, 2)))
    dlpack.export(value)
    assert value.streams == [-1]


def test_mm_out_06_memory_lives_as_long_as_what_was_exported():
    class Owner(np.ndarray):
        pass

    array = np.zeros((4, 4)).view(Owner)
    alive = weakref.ref(array)
    found = dlpack.export(OnCuda(array))
    del array
    gc.collect()
    assert alive() is not None
    del found
    gc.collect()
    assert alive() is None, "nothing leaks either"


def test_mm_out_06_element_types_that_no_array_has():
    for code, bits, lanes in ((2, 32, 4), (3, 32, 1), (2, 8, 1), (4, 32, 1), (0, 4, 1)):
        with pytest.raises(TypeError, match=r"no array has elements|not understood"):
            dlpack._dtype(code, bits, lanes)


@pytest.mark.parametrize("kind", [1, 3, 7, 10])
def test_mm_out_06_other_kinds_of_memory_are_not_taken(kind):
    value = OnCuda(np.zeros((2, 2)), kind=kind)
    assert not select._is_on_cuda(value)
    with pytest.raises(InvalidOperand, match="a is OnCuda, not an array on a device"):
        select.device_of(value, "a")


def test_mm_out_06_devices_are_told_by_index():
    assert dlpack.device_of(OnCuda(None, dlpack.CUDA, 3)) == (2, 3)
    assert dlpack.device_of(object()) == (0, 0)
    assert select._is_on_cuda(OnCuda(None))
    assert select._is_on_cuda(OnCuda(None, dlpack.CUDA_MANAGED))
    assert select._is_on_cuda(types.SimpleNamespace(__cuda_array_interface__={}))
    assert not select._is_on_cuda(np.zeros(2))


# -- with a stand-in for CuPy ---------------------------------------------------------------
@pytest.fixture
def arrays(monkeypatch):
    """The module that makes CuPy's arrays, over a fake CuPy."""

    class Ndarray:
        def __init__(self, shape, dtype, memptr=None, strides=None):
            self.shape, self.dtype, self.strides = shape, dtype, strides
            self.data = memptr

    class Memory:
        def __init__(self, pointer, nbytes, owner, device_id):
            self.ptr, self.nbytes, self.owner, self.device_id = pointer, nbytes, owner, device_id

    def attributes(pointer):
        return types.SimpleNamespace(device=pointer % 4)

    runtime = types.SimpleNamespace(getDevice=lambda: 5, pointerGetAttributes=attributes)
    cuda = types.SimpleNamespace(
        UnownedMemory=Memory, MemoryPointer=lambda memory, offset: memory, runtime=runtime
    )

    def asarray(value):
        raise TypeError("unknown typestr")

    fake = types.SimpleNamespace(ndarray=Ndarray, cuda=cuda, asarray=asarray)
    monkeypatch.setattr(driver, "import_cupy", lambda: fake)
    name = "gpuscope.device.cuda.arrays"
    real = sys.modules.pop(name, None)
    yield importlib.import_module(name)
    del sys.modules[name]
    if real is None:
        del cuda_package.arrays
    else:
        sys.modules[name] = cuda_package.arrays = real


def test_mm_out_06_an_exported_array_becomes_cupys_over_the_same_memory(arrays):
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    value = OnCuda(values.T, index=2)
    assert arrays.device_index_of(value) == 2
    found = arrays.adopt(value)
    assert found.data.ptr == values.ctypes.data
    assert found.data.device_id == 2
    assert (found.shape, found.strides, found.dtype) == ((4, 3), values.T.strides, values.dtype)
    assert arrays.adopt(found) is found


def test_mm_out_06_managed_memory_is_where_the_driver_says(arrays):
    values = np.zeros((2, 2))
    value = OnCuda(values, kind=dlpack.CUDA_MANAGED, index=0)
    assert arrays.device_index_of(value) == values.ctypes.data % 4


@pytest.mark.parametrize("error", [BufferError, RuntimeError, TypeError, ValueError])
def test_mm_out_06_an_exporter_that_refuses_is_told_with_its_reason(arrays, error):
    value = OnCuda(np.zeros((2, 2)))
    value.error = error("it requires a gradient")
    with pytest.raises(InvalidOperand, match=r"OnCuda .*it requires a gradient.*detach"):
        arrays.adopt(value)


def test_mm_out_06_an_interface_that_cupy_cannot_read(arrays):
    whole = {"data": (6, False), "shape": (2, 3), "typestr": "<f4", "version": 3}
    for wrong in (
        {"typestr": "<x4"}, {"typestr": "O"}, {"typestr": None}, {"shape": (2, -3)},
        {"shape": "ab"}, {"data": None}, {"strides": (4,)}, {"mask": object()},
    ):  # fmt: skip
        value = Interface({**whole, **wrong})
        with pytest.raises(InvalidOperand, match="Interface offers a CUDA array interface that"):
            arrays.adopt(value)
    for name in ("data", "shape", "typestr"):
        value = Interface({key: part for key, part in whole.items() if key != name})
        with pytest.raises(InvalidOperand, match=f"KeyError: '{name}'"):
            arrays.device_index_of(value)


def test_mm_out_06_an_interface_becomes_cupys_without_cupy(arrays):
    value = Interface({"data": (6, False), "shape": (2, 3), "typestr": "<f4", "version": 3})
    found = arrays.adopt(value, write=True)
    assert (found.shape, found.strides, found.dtype) == ((2, 3), (12, 4), np.dtype("float32"))
    assert (found.data.ptr, found.data.device_id, found.data.nbytes) == (6, 2, 24)
    strided = Interface({**value.__cuda_array_interface__, "strides": (4, 8)})
    assert arrays.adopt(strided).strides == (4, 8)
    empty = Interface({**value.__cuda_array_interface__, "data": (0, False), "shape": (0, 3)})
    assert arrays.device_index_of(empty) == 5


def test_mm_out_06_what_is_shared_as_read_only_is_not_written(arrays):
    shared = Interface({"data": (6, True), "shape": (2, 3), "typestr": "<f4", "version": 3})
    values = np.zeros((2, 3), np.float32)
    values.flags.writeable = False
    for value in (shared, Versioned(values)):
        assert arrays.adopt(value).shape == (2, 3)
        with pytest.raises(InvalidOperand, match="read-only"):
            arrays.adopt(value, write=True)
    values.flags.writeable = True
    assert arrays.adopt(Versioned(values), write=True).data.ptr == values.ctypes.data


@pytest.mark.parametrize("stream", [1, 2, 0x50, None])
def test_mm_out_06_the_stream_of_an_interface_is_told(arrays, stream):
    value = Interface({"data": (6, True), "shape": (2, 3), "typestr": "<f4", "stream": stream})
    assert arrays.stream_of(value) == stream
    assert arrays.stream_of(OnCuda(np.zeros((2, 2)))) is None
    assert arrays.stream_of(arrays.adopt(value)) is None


@pytest.mark.parametrize("stream", [0, -1, True, "1", 1.0])
def test_mm_out_06_a_stream_that_the_interface_forbids_is_refused(arrays, stream):
    value = Interface({"data": (6, True), "shape": (2, 3), "typestr": "<f4", "stream": stream})
    with pytest.raises(InvalidOperand, match="whose stream is"):
        arrays.stream_of(value)


def test_mm_out_06_what_is_no_device_array_is_left_to_the_checks(arrays):
    for value in (np.zeros((2, 2)), 3, "a", None):
        assert arrays.adopt(value) is None


def test_what_refuses_one_protocol_is_asked_by_the_other():
    class NeedsGradient(OnCuda):
        @property
        def __cuda_array_interface__(self):
            raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad")

    assert select._is_on_cuda(NeedsGradient(np.ones(3)))
