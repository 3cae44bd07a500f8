"""As much of PyTorch as gpuscope's hazards ask for, over NumPy: ``torch`` where it is not installed.

Operators have PyTorch's own schemas, as it prints them, and go through dispatch modes as its own
do. Streams and events run nothing: all work is done at once. No address is given out twice.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import threading
import weakref
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import numpy as np

SCHEMAS = """
aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)
aten::mul.Tensor(Tensor self, Tensor other) -> Tensor
aten::sum(Tensor self, *, ScalarType? dtype=None) -> Tensor
aten::mm(Tensor self, Tensor mat2) -> Tensor
aten::mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)
aten::cat(Tensor[] tensors, int dim=0) -> Tensor
aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor
aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)
aten::_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False, MemoryFormat? memory_format=None) -> Tensor
aten::_foreach_add_.Scalar(Tensor(a!)[] self, Scalar scalar) -> ()
aten::fill_.Scalar(Tensor(a!) self, Scalar value) -> Tensor(a!)
aten::record_stream(Tensor(a!) self, Stream s) -> ()
aten::_local_scalar_dense(Tensor self) -> Scalar
aten::is_set_to(Tensor self, Tensor tensor) -> bool
aten::empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
aten::zeros(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
aten::rand(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
aten::empty_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
aten::zeros_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
aten::new_empty(Tensor self, SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)
aten::_unsafe_view(Tensor self, SymInt[] size) -> Tensor
aten::t(Tensor(a) self) -> Tensor(a)
aten::detach(Tensor(a) self) -> Tensor(a)
aten::expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)
aten::slice.Tensor(Tensor(a) self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor(a)
aten::select.int(Tensor(a) self, int dim, SymInt index) -> Tensor(a)
aten::split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]
""".strip().split("\n")


# -- schemas -----------------------------------------------------------------------------
class Alias(NamedTuple):
    is_write: bool


class Argument(NamedTuple):
    """An argument or a result, as ``torch.Argument``."""

    name: str
    type: str
    alias_info: Alias | None
    kwarg_only: bool = False

    @property
    def is_out(self) -> bool:
        return self.kwarg_only and self.alias_info is not None and self.alias_info.is_write


_ARGUMENT = re.compile(r"(\w+)(?:\((.*?)\))?((?:\?|\[\d*\])*)(?: (\w+)(?:=.*)?)?")
_NAMED = {
    "Scalar": "number", "SymInt": "int", "ScalarType": "int", "Layout": "int", "MemoryFormat": "int",
}  # fmt: skip


def _argument(text: str, *, kwarg_only: bool = False) -> Argument:
    base, alias, around, name = _ARGUMENT.fullmatch(text).groups()
    kind = _NAMED.get(base, base)
    for mark in re.findall(r"\?|\[", around):
        kind = f"Optional[{kind}]" if mark == "?" else f"List[{kind}]"
    return Argument(name or "", kind, Alias("!" in alias) if alias else None, kwarg_only)


class Schema:
    """What an operator says of itself, read from the text that PyTorch prints for it."""

    def __init__(self, text: str) -> None:
        self.text = text
        name, arguments, returns = re.fullmatch(r"([\w:.]+)\((.*)\) -> (.*)", text).groups()
        self.name, _, self.overload_name = name.partition(".")
        texts = arguments.split(", ") if arguments else []
        names = texts.index("*") if "*" in texts else len(texts)
        self.arguments = [_argument(part) for part in texts[:names]]
        self.arguments += [_argument(part, kwarg_only=True) for part in texts[names + 1 :]]
        self.returns = [] if returns == "()" else [_argument(returns)]

    def __str__(self) -> str:
        return self.text


# -- dispatch ----------------------------------------------------------------------------
class _OfThread(threading.local):
    def __init__(self) -> None:
        self.modes = []
        self.streams = [DEFAULT]


class Operator:
    """As ``torch._ops.OpOverload``."""

    def __init__(self, text: str) -> None:
        self._schema = schema = Schema(text)
        self.namespace, _, name = schema.name.rpartition("::")
        self.__name__ = f"{name}.{schema.overload_name or 'default'}"

    def __str__(self) -> str:
        return f"{self.namespace}.{self.__name__}"

    def __call__(self, *args, **kwargs):
        args = list(args)
        positional = [each.name for each in self._schema.arguments if not each.kwarg_only]
        for name in positional[len(args) :]:
            if name not in kwargs:
                break
            args.append(kwargs.pop(name))
        modes = _of_thread.modes
        if not modes:
            try:
                return _WORK[self.__name__](*args, **kwargs)
            except ValueError as error:  # NumPy's
                raise RuntimeError(str(error)) from error
        mode = modes.pop()
        try:
            return mode.__torch_dispatch__(self, (), tuple(args), kwargs)
        finally:
            modes.append(mode)


class TorchDispatchMode:
    """As PyTorch's: whichever is left, the one entered last goes."""

    def __enter__(self):
        _of_thread.modes.append(self)
        return self

    def __exit__(self, *_):
        _of_thread.modes.pop()


# -- memory ------------------------------------------------------------------------------
class Device(NamedTuple):
    type: str
    index: int | None = None


_HOST = Device("cpu")
_given_out = []


class Storage:
    """Memory, never used for another."""

    def __init__(self, nbytes: int, device: Device, *, pinned: bool) -> None:
        self.bytes = np.zeros(nbytes, np.uint8)
        _given_out.append(self.bytes)
        self._pinned = pinned
        if device.type == "cuda" and nbytes:
            address = self.data_ptr()
            _tell("MemoryAllocation", address)
            weakref.finalize(self, _tell, "MemoryDeallocation", address).atexit = False

    def data_ptr(self) -> int:
        return self.bytes.__array_interface__["data"][0] if len(self.bytes) else 0

    def nbytes(self) -> int:
        return len(self.bytes)

    def is_pinned(self) -> bool:
        return self._pinned


class StorageWeakRef:
    """As PyTorch's."""

    def __init__(self, storage: Storage) -> None:
        self._storage = weakref.ref(storage)

    def expired(self) -> bool:
        return self._storage() is None


class Tensor:
    """A view of a storage."""

    def __init__(self, array: np.ndarray, storage: Storage, device: Device) -> None:
        self.array, self.storage, self.device = array, storage, device

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def element_size(self) -> int:
        return self.array.itemsize

    def numel(self) -> int:
        return self.array.size

    def is_contiguous(self) -> bool:
        return self.array.flags.c_contiguous

    def data_ptr(self) -> int:
        return self.array.__array_interface__["data"][0] if self.array.size else 0

    def untyped_storage(self) -> Storage:
        return self.storage

    def requires_grad_(self) -> Tensor:
        return self

    def item(self):
        return OPERATORS["_local_scalar_dense.default"](self)

    def numpy(self):
        return OPERATORS["detach.default"](self).array

    def __array__(self, dtype=None, copy=None):
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, **_):
        return self.array.__dlpack__()

    def tolist(self):
        return self.array.tolist()

    def __repr__(self):
        return f"tensor({self.array})"

    def cpu(self):
        return self if self.device.type == "cpu" else self.to(device="cpu")

    def new_empty(self, *size):
        return OPERATORS["new_empty.default"](self, list(size))

    def view(self, *size):
        return OPERATORS["view.default"](self, list(size))

    def expand(self, *size):
        return OPERATORS["expand.default"](self, list(size))

    def to(self, dtype=None, *, device=None, non_blocking=False):
        return OPERATORS["_to_copy.default"](
            self, dtype=dtype, device=device, non_blocking=non_blocking
        )

    def __getitem__(self, keys):
        tensor, dim = self, 0
        for key in keys if isinstance(keys, tuple) else (keys,):
            if isinstance(key, slice):
                tensor = OPERATORS["slice.Tensor"](tensor, dim, key.start, key.stop, key.step or 1)
                dim += 1
            else:
                tensor = OPERATORS["select.int"](tensor, dim, key)
        return tensor


def _method(operator):
    def call(self, *args, **kwargs):
        return OPERATORS[operator](self, *args, **kwargs)

    return call


for _name, _operator in {
    "add": "add.Tensor", "add_": "add_.Tensor", "__mul__": "mul.Tensor", "sum": "sum.default",
    "clone": "clone.default", "copy_": "copy_.default", "fill_": "fill_.Scalar", "t": "t.default",
    "record_stream": "record_stream.default", "split": "split.Tensor", "detach": "detach.default",
    "is_set_to": "is_set_to.default",
}.items():  # fmt: skip
    setattr(Tensor, _name, _method(_operator))


# -- what operators do -------------------------------------------------------------------
def _array(value):
    return value.array if isinstance(value, Tensor) else value


def _empty(size, *, dtype=None, device=None, pin_memory=False):
    if not isinstance(device, Device):
        device = Device(device, 0 if device == "cuda" else None) if device else _HOST
    dtype, size = np.dtype(dtype or np.float32), tuple(size)
    storage = Storage(int(np.prod(size)) * dtype.itemsize, device, pinned=bool(pin_memory))
    return Tensor(storage.bytes.view(dtype).reshape(size), storage, device)


def _filled(array, device=None, **more):
    array = np.asarray(array)
    result = _empty(array.shape, dtype=array.dtype, device=device, **more)
    result.array[...] = array
    return result


def _in_place(tensor, value):
    tensor.array[...] = _array(value)
    return tensor


def _view(tensor, array):
    return Tensor(array, tensor.storage, tensor.device)


def _viewed(tensor, size):
    array = tensor.array.reshape(size)
    assert np.shares_memory(array, tensor.array)
    return _view(tensor, array)


def _sliced(tensor, dim, start, end, step):
    return _view(tensor, tensor.array[(slice(None),) * dim + (slice(start, end, step),)])


def _split(tensor, size, dim=0):
    parts = range(0, tensor.shape[dim], size)
    return [_sliced(tensor, dim, part, part + size, 1) for part in parts]


_WORK = {
    "add.Tensor": lambda a, b: _filled(a.array + _array(b), a.device),
    "add_.Tensor": lambda a, b: _in_place(a, a.array + _array(b)),
    "mul.Tensor": lambda a, b: _filled(a.array * _array(b), a.device),
    "sum.default": lambda a: _filled(a.array.sum(), a.device),
    "mm.default": lambda a, b: _filled(a.array @ b.array, a.device),
    "mm.out": lambda a, b, out: _in_place(out, a.array @ b.array),
    "cat.default": lambda all_, dim=0: _filled(
        np.concatenate([tensor.array for tensor in all_], dim), all_[0].device
    ),
    "clone.default": lambda a: _filled(a.array, a.device),
    "copy_.default": lambda a, b, _non_blocking=False: _in_place(a, b),
    "_to_copy.default": lambda a, dtype, device, **_: _filled(
        a.array.astype(dtype or a.array.dtype), device or a.device
    ),
    "_foreach_add_.Scalar": lambda all_, by: [_in_place(a, a.array + by) for a in all_][:0],
    "fill_.Scalar": _in_place,
    "record_stream.default": lambda _a, _stream: None,
    "_local_scalar_dense.default": lambda a: a.array.item(),
    "is_set_to.default": lambda a, b: a.data_ptr() == b.data_ptr(),
    "empty.memory_format": _empty,
    "zeros.default": _empty,
    "rand.default": lambda size, **more: _filled(
        np.random.default_rng(1).random(size, np.float32), **more
    ),
    "empty_like.default": lambda a: _empty(a.shape, dtype=a.array.dtype, device=a.device),
    "zeros_like.default": lambda a: _empty(a.shape, dtype=a.array.dtype, device=a.device),
    "new_empty.default": lambda a, size: _empty(size, dtype=a.array.dtype, device=a.device),
    "view.default": _viewed,
    "_unsafe_view.default": _viewed,
    "t.default": lambda a: _view(a, a.array.T),
    "detach.default": lambda a: _view(a, a.array),
    "expand.default": lambda a, size: _view(a, np.broadcast_to(a.array, size)),
    "slice.Tensor": _sliced,
    "select.int": lambda a, dim, index: _view(a, a.array[(slice(None),) * dim + (index, ...)]),
    "split.Tensor": _split,
}


# -- CUDA --------------------------------------------------------------------------------
class Callbacks:
    """As ``torch._utils.CallbackRegistry``, but an error in a callback fails the test."""

    def __init__(self) -> None:
        self.callback_list = []

    def fire_callbacks(self, *args) -> None:
        for callback in self.callback_list:
            callback(*args)


_TRACED = (
    "EventCreation", "EventDeletion", "EventRecord", "EventWait", "MemoryAllocation",
    "MemoryDeallocation", "StreamCreation", "DeviceSynchronization", "StreamSynchronization",
    "EventSynchronization",
)  # fmt: skip
_registries = {name: Callbacks() for name in _TRACED}
_handles = itertools.count(0x1000, 0x10)


def _tell(name, *args):
    _registries[name].fire_callbacks(*args)


class Stream:
    def __init__(self, *, stream_id=None, device_index=0, device_type=1) -> None:
        self.stream_id = self.cuda_stream = next(_handles) if stream_id is None else stream_id
        self.device_index, self.device_type = device_index, device_type

    def wait_event(self, event):
        event.wait(self)

    def wait_stream(self, stream):
        event = Event()
        event.record(stream)
        event.wait(self)

    def query(self):
        return True

    def synchronize(self):
        _tell("StreamSynchronization", self.cuda_stream)


class Event:
    def __init__(self) -> None:
        self.cuda_event = next(_handles)
        weakref.finalize(self, _tell, "EventDeletion", self.cuda_event).atexit = False

    def record(self, stream=None):
        _tell("EventRecord", self.cuda_event, (stream or _of_thread.streams[-1]).cuda_stream)

    def wait(self, stream=None):
        _tell("EventWait", self.cuda_event, (stream or _of_thread.streams[-1]).cuda_stream)

    def query(self):
        return True

    def synchronize(self):
        _tell("EventSynchronization", self.cuda_event)


class CUDAGraph:
    def capture_begin(self):
        pass

    def capture_end(self):
        pass

    def replay(self):
        pass


DEFAULT = Stream(stream_id=0)
_of_thread = _OfThread()


@contextlib.contextmanager
def _stream(stream):
    _of_thread.streams.append(stream)
    try:
        yield
    finally:
        _of_thread.streams.pop()


# -- modules -----------------------------------------------------------------------------
OPERATORS = {operator.__name__: operator for operator in map(Operator, SCHEMAS)}


def _factory(operator):
    def make(*size, **more):
        return OPERATORS[operator](list(size), **more)

    return make


def _modules() -> dict[str, ModuleType]:
    torch, cuda, trace = map(ModuleType, ("torch", "torch.cuda", "torch.cuda._gpu_trace"))
    # What begins so counts as PyTorch's: this file does.
    torch.__file__ = str(Path(__file__).with_suffix("") / "__init__.py")
    torch.cuda, cuda._gpu_trace = cuda, trace
    for name, callbacks in _registries.items():
        setattr(trace, f"{name}Callbacks", callbacks)
    cuda.is_available = lambda: True
    cuda.synchronize = lambda: _tell("DeviceSynchronization")
    cuda.Stream, cuda.Event, cuda.CUDAGraph, cuda.stream = Stream, Event, CUDAGraph, _stream
    torch._C = SimpleNamespace(
        _activate_gpu_trace=lambda: None,
        _cuda_getDevice=lambda: 0,
        _cuda_getCurrentRawStream=lambda _gpu: _of_thread.streams[-1].cuda_stream,
    )
    torch.utils = SimpleNamespace(
        _python_dispatch=SimpleNamespace(
            TorchDispatchMode=TorchDispatchMode,
            _get_current_dispatch_mode=lambda: (_of_thread.modes or [None])[-1],
        )
    )
    torch.multiprocessing = SimpleNamespace(
        reductions=SimpleNamespace(StorageWeakRef=StorageWeakRef)
    )
    aten = SimpleNamespace(_unsafe_view=OPERATORS["_unsafe_view.default"])
    torch.ops = SimpleNamespace(aten=aten)
    torch.Tensor, torch.float64 = Tensor, np.float64
    torch.add, torch.cat = OPERATORS["add.Tensor"], OPERATORS["cat.default"]
    torch.mm = lambda a, b, out: OPERATORS["mm.out"](a, b, out=out)
    torch._foreach_add_ = OPERATORS["_foreach_add_.Scalar"]
    torch.empty_like = OPERATORS["empty_like.default"]
    torch.zeros_like = OPERATORS["zeros_like.default"]
    torch.empty = _factory("empty.memory_format")
    torch.zeros, torch.rand = _factory("zeros.default"), _factory("rand.default")
    return {"torch": torch, "torch.cuda": cuda, "torch.cuda._gpu_trace": trace}


MODULES = _modules()

try:
    import torch
except ImportError:
    torch = MODULES["torch"]

IS_REAL = torch is not MODULES["torch"]


def install(monkeypatch) -> ModuleType:
    """Let the test find PyTorch among the imported modules; returns it."""
    for name, module in MODULES.items() if not IS_REAL else ():
        monkeypatch.setitem(sys.modules, name, module)
    return torch
