"""As much of CuPy as gpuscope's hazards ask for: kernels that run nothing, streams, events, hooks."""

from __future__ import annotations

import itertools
import threading
from types import ModuleType, SimpleNamespace

import numpy as np

PROTOCOL = "__cupy_override_elementwise_kernel__"


class _OfThread(threading.local):
    def __init__(self):
        self.hooks = {}
        self.streams = [Stream(0)]


class Hook:
    """As ``cupy.cuda.MemoryHook``: hooks of a thread, by name."""

    name = "MemoryHook"

    def __enter__(self):
        of_thread.hooks[self.name] = self

    def __exit__(self, *_):
        del of_thread.hooks[self.name]


class _Base:
    def __init__(self, ptr):
        self.ptr = ptr
        self.capturing = False

    def record(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event):
        pass

    def synchronize(self):
        pass

    def is_capturing(self):
        return self.capturing

    def __enter__(self):
        of_thread.streams.append(self)

    def __exit__(self, *_):
        of_thread.streams.pop()


class Stream(_Base):
    """As ``cupy.cuda.Stream``."""


class Event:
    """As ``cupy.cuda.Event``."""

    def record(self, stream=None):
        pass

    def synchronize(self):
        pass


class Device:
    """As ``cupy.cuda.Device``."""

    id = 0

    def synchronize(self):
        pass


of_thread = _OfThread()
_addresses = itertools.count(1 << 20, 1 << 12)


class _NdarrayBase:
    """Memory with an address; values are nobody's concern."""

    def __init__(self, shape=(100,), dtype="float32", *, strides=None, ptr=None):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.strides = strides or np.empty(shape, dtype).strides
        self.data = SimpleNamespace(ptr=next(_addresses) if ptr is None else ptr)

    def __getitem__(self, part):
        (old,), (size,) = self.strides, self.shape
        start, stop, step = part.indices(size)
        return type(self)(
            (len(range(start, stop, step)),), self.dtype,
            strides=(old * step,), ptr=self.data.ptr + start * old,
        )  # fmt: skip

    def sum(self, axis=None, dtype=None, out=None):
        return out if out is not None else type(self)(())

    def get(self, stream=None, order="C", out=None, blocking=True):  # noqa: FBT002 - as CuPy has it
        return np.zeros(self.shape, self.dtype)


for _name in ("prod", "max", "min", "all", "any", "argmax", "argmin", "mean", "var", "std", "ptp",
              "cumsum", "cumprod"):  # fmt: skip
    setattr(_NdarrayBase, _name, _NdarrayBase.sum)


class _Kernel:
    """With parameters for input and output: makes what is not given."""

    def __init__(self, name, nin=1, nout=1):
        self.name, self.nin, self.nout = name, nin, nout
        self.calls = 0

    def launch(self, args, kwargs):
        self.calls += 1
        out = kwargs.get("out")
        outs = args[self.nin :] or (out if isinstance(out, tuple) else (out,) * (out is not None))
        made = outs or tuple(cupy_ndarray() for _ in range(self.nout))
        return made[0] if self.nout == 1 else made


class ElementwiseKernel(_Kernel):
    """Also in place of ``cupy.ufunc``."""

    def __call__(self, *args, **kwargs):
        for arg in args:
            if hasattr(arg, PROTOCOL):
                return getattr(arg, PROTOCOL)(self, *args, **kwargs)
        return self.launch(args, kwargs)


class ReductionKernel(_Kernel):
    def __call__(self, *args, **kwargs):
        return self.launch(args, kwargs)


class RawKernel:
    def __init__(self, code, name):
        self.code, self.name = code, name

    def __call__(self, grid, block, args, **kwargs):
        pass


cupy_ndarray = type("ndarray", (_NdarrayBase,), {"__module__": "cupy"})


def module() -> ModuleType:
    """Return the module."""
    cupy = ModuleType("cupy")
    cupy.ndarray = cupy_ndarray
    cupy.ElementwiseKernel, cupy.ReductionKernel = ElementwiseKernel, ReductionKernel
    cupy.RawKernel = RawKernel
    cupy.cuda = SimpleNamespace(
        MemoryHook=Hook, Stream=Stream, Event=Event, Device=Device,
        get_current_stream=lambda: of_thread.streams[-1],
        runtime=SimpleNamespace(getDevice=lambda: 0),
    )  # fmt: skip
    return cupy
