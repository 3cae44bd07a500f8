"""NumPy on the host: no streams, so every stream operation works and does nothing.

Work is done when its call returns. Handles are 0. Nothing can be carved.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from gpuscope import _interrupts
from gpuscope._types import Array, DType
from gpuscope.device.api import Activity, Capabilities, DeviceInfo, Kernel, KernelModel, Shape
from gpuscope.device.arrays import fitted
from gpuscope.device.carve import SmLayout
from gpuscope.device.dtypes import DTYPES
from gpuscope.device.matmul import MatmulPlan
from gpuscope.device.memory import no_host_memory
from gpuscope.device.raw import Backend, Memory, Places
from gpuscope.device.views import EventView, GraphView, StreamView
from gpuscope.errors import CapabilityError, InvalidOperand

_NO_STREAMS = "a CPU device has no streams: open a CUDA or simulated device"


class CpuArray(np.ndarray[Any, Any]):
    """An array of the CPU device: NumPy's, under a name of its own."""


@dataclass(slots=True, eq=False)
class CpuEvent:
    """When it was recorded last, by the host's clock."""

    time_ns: int | None = None


class CpuBackend(Backend[None, CpuEvent, CpuArray]):
    """The host as a device."""

    array_type: type = CpuArray
    home: object = "cpu"

    def __init__(self) -> None:
        self.layout = SmLayout(1, 1, 0)
        self.info = DeviceInfo(
            key="cpu",
            kind="cpu",
            index=0,
            name=f"CPU ({platform.machine()})",
            uuid="CPU",
            sm_count=0,
            compute_capability=(0, 0),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            driver=f"NumPy {np.__version__}",
        )
        lacking = ("streams", "arbitrary_split", "stream_ordered_memory", "graphs")
        self.capabilities = Capabilities(
            reasons={
                **dict.fromkeys(lacking, _NO_STREAMS),
                "partitions": "a CPU has no SMs: open a CUDA device with a driver of CUDA 12.4 or "
                "newer, or sim:h200",
                "compile_source": "a CPU device runs no CUDA source: give the kernel a model, or "
                "open a CUDA device",
            }
        )
        self._reserved = 0
        self._sink: Callable[[Activity], None] | None = None

    # -- clock ------------------------------------------------------------------------
    def wait_until_ns(self, time_ns: int) -> None:
        """Sleep."""
        while (left := time_ns - time.time_ns()) > 0:
            _interrupts.sleep(left / 1e9)

    def set_activity_sink(self, sink: Callable[[Activity], None] | None) -> None:
        """Report finished work to ``sink``."""
        self._sink = sink

    def _did(self, kind: str, name: str, correlation: int, start_ns: int) -> None:
        if self._sink is not None:
            end_ns = time.time_ns()
            self._sink(Activity(kind, name, correlation, start_ns, start_ns, end_ns))

    # -- streams and events: all work, most as in the base class ----------------------
    def make_stream(
        self, partition: object, priority: int, *, blocking: bool = False
    ) -> tuple[None, int]:
        """Return nothing to hold."""
        return None, 0

    def default_stream(self) -> tuple[None, int]:
        """Return nothing to hold."""
        return None, 0

    def borrow_stream(self, handle: int) -> None:
        """Return nothing to hold."""

    def synchronize(self) -> None:
        """Do nothing: all work is done."""

    def make_event(self, *, timing: bool) -> CpuEvent:
        """Make an event: when it was recorded last."""
        return CpuEvent()

    def record(self, event: CpuEvent, stream: None, correlation: int) -> None:
        """Note the time."""
        event.time_ns = time.time_ns()

    def elapsed_ns(self, start: CpuEvent, end: CpuEvent) -> int:
        """Return ns between two records, by the host's clock; 0 for one never recorded."""
        if start.time_ns is None or end.time_ns is None:
            return 0
        return int(end.time_ns - start.time_ns)

    # -- memory -----------------------------------------------------------------------
    def empty(self, shape: Shape, dtype: DType) -> CpuArray:
        """Return an array of unspecified values."""
        return self._memory(shape, dtype).view(CpuArray)

    def _memory(self, shape: Shape, dtype: DType) -> Array:
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes > self.info.memory_bytes:  # the system might promise it all the same
            raise no_host_memory(nbytes, f"there are {self.info.memory_bytes}")
        try:
            return np.empty(shape, dtype)
        except (MemoryError, ValueError) as error:
            raise no_host_memory(nbytes, error) from error

    def empty_pinned(self, shape: Shape, dtype: DType) -> Array:
        """Return plain memory: no device reads it behind the host's back."""
        return self._memory(shape, dtype)

    def asarray(self, values: Array) -> CpuArray:
        """Copy values."""
        return values.copy().view(CpuArray)

    def fill_random(self, array: CpuArray, seed: int) -> None:
        """Fill with uniform values in [-0.5, 0.5)."""
        values = np.random.default_rng(seed).random(array.shape, dtype=np.float32)
        array[...] = (values - np.float32(0.5)).astype(array.dtype)

    def to_host(self, array: CpuArray) -> Array:
        """Return a plain copy."""
        return np.array(array)

    def allocate(self, nbytes: int, stream: StreamView[None] | None) -> Memory:
        """Return bytes."""
        self._reserved += nbytes
        return Memory(np.empty(nbytes, np.uint8).view(CpuArray), None, nbytes)

    def free(self, memory: Memory, stream: StreamView[None] | None, *, idle: bool = False) -> None:
        """Forget bytes."""
        self._reserved -= memory.nbytes

    def mark(self, stream: None) -> object:
        """Return nothing: all work is done."""

    def reserved_bytes(self) -> int:
        """Return what is taken."""
        return self._reserved

    def copy(self, stream: None, destination: CpuArray, source: CpuArray, correlation: int) -> None:
        """Copy now."""
        start_ns = time.time_ns()
        destination[...] = source
        self._did("memcpy", "copy", correlation, start_ns)

    def host_call(
        self, stream: None, function: Callable[[], None], correlation: int, graph: GraphView | None
    ) -> None:
        """Call it now."""
        function()

    # -- kernels ----------------------------------------------------------------------
    def compile(self, source: str, name: str, model: KernelModel | None) -> Kernel:
        """Take the kernel's model; its source is not looked at."""
        if model is None:
            raise CapabilityError(
                f"kernel {name!r} cannot run here: {self.capabilities.reasons['compile_source']}"
            )
        return Kernel(name, None, model)

    def launch(
        self,
        stream: None,
        kernel: Kernel,
        grid: int,
        block: int,
        args: Sequence[object],
        correlation: int,
    ) -> None:
        """Compute what the kernel's model computes, now."""
        start_ns = time.time_ns()
        model = kernel.model
        target = cast("CpuArray | None", model.writes(args)) if model is not None else None
        if model is not None and target is not None and model.compute is not None:
            target[...] = fitted(model.compute(*model.reads(args)), target.shape, target.dtype)
        self._did("kernel", kernel.name, correlation, start_ns)

    def matmul(
        self,
        stream: StreamView[None],
        plan: MatmulPlan,
        operands: object,
        sm_count: int,
        correlation: int,
        event: EventView[CpuEvent] | None = None,
    ) -> None:
        """Multiply now, in float32 (float64 for float64)."""
        start_ns = time.time_ns()
        out, a, b = cast("tuple[CpuArray, CpuArray, CpuArray]", operands)
        work = DTYPES[plan.dtype].accumulator
        with np.errstate(over="ignore", invalid="ignore"):  # a BLAS says nothing either
            out[...] = (a.astype(work) @ b.astype(work)).astype(out.dtype)
        self._did("kernel", plan.name, correlation, start_ns)
        if event is not None:
            self.record(event.raw, stream.raw, 0)

    def home_of(self, array: CpuArray) -> object:
        """Return the host: there is one."""
        return self.home

    def adopt(self, value: object, *, write: bool = False) -> CpuArray | None:
        """Take the device's arrays as they are."""
        if not isinstance(value, CpuArray):
            return None
        if write and not value.flags.writeable:
            raise InvalidOperand("it is read-only: give an array that can be written")
        return value

    def place(self, out: CpuArray, a: CpuArray, b: CpuArray) -> Places:
        """Return addresses, and the arrays.

        Raises
        ------
        InvalidOperand
            ``out`` is read-only, which shape and dtype do not tell.
        """
        if not out.flags.writeable:
            raise InvalidOperand("out is read-only: give an array that can be written")
        at = (out.ctypes.data, a.ctypes.data, b.ctypes.data)
        return (self.home,) * 3, at, (out, a, b)

    def rearrange(
        self, stream: StreamView[None], into: CpuArray, array: CpuArray, correlation: int
    ) -> None:
        """Copy into C order."""
        start_ns = time.time_ns()
        into[...] = array
        self._did("kernel", "rearrange", correlation, start_ns)
