"""cuBLAS through NVIDIA's own bindings: one handle a thread, a workspace a stream."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable

import numpy as np

from gpuscope._optional import require
from gpuscope.device.cuda import captures
from gpuscope.device.cuda.arrays import cupy
from gpuscope.device.cuda.driver import CudaObject
from gpuscope.device.dtypes import DTYPES
from gpuscope.device.graph import Graph
from gpuscope.device.memory import Tag
from gpuscope.device.raw import Mark, MatmulPlan, RawStream
from gpuscope.device.stream import Stream
from gpuscope.errors import GpuscopeError, StreamError

cublas = require("nvmath.bindings.cublas", package="nvmath-python", feature="mm_out on a GPU")

_set_stream = cublas.set_stream
_set_workspace = cublas.set_workspace
_set_sm_count_target = cublas.set_sm_count_target
_gemm_ex = cublas.gemm_ex

WORKSPACE_BYTES = 32 << 20
"""What cuBLAS's documentation recommends for Hopper; less elsewhere is enough too."""

_PER_THREAD = 2
"""cudaStreamPerThread."""

_DEFAULT_ALGORITHM = -1
_SCALARS = {name: np.array([1, 0], dtype.accumulator) for name, dtype in DTYPES.items()}
_CODES = {
    name: (
        dtype.cublas_data,
        dtype.cublas_compute,
        _SCALARS[name].ctypes.data,
        _SCALARS[name].ctypes.data + _SCALARS[name].itemsize,
    )
    for name, dtype in DTYPES.items()
}
"""Name → what cuBLAS calls it and its products, and where a one and a zero of its sums are."""


class _Handle:
    """A thread's cuBLAS handle; goes to the next thread that needs one.

    Destroying it with its thread would wait for the device and spoil other threads' captures.
    """

    __slots__ = ("_idle", "raw")

    def __init__(self, idle: list[int]) -> None:
        self._idle = idle
        try:
            self.raw = idle.pop()
        except IndexError:
            with captures.none_open("making this thread's cuBLAS handle"):
                self.raw = cublas.create()
            cublas.set_math_mode(self.raw, int(cublas.Math.DISALLOW_REDUCED_PRECISION_REDUCTION))

    def __del__(self) -> None:
        if hasattr(self, "raw"):
            self._idle.append(self.raw)


def _destroy(handles: list[int]) -> None:
    with contextlib.suppress(Exception):  # at interpreter exit there is nobody to tell
        while handles:
            cublas.destroy(handles.pop())


class _Workspace:
    """What the GEMMs of one stream compute in, one after the other.

    Attributes
    ----------
    lock
        Held while a GEMM is queued. It may be two kernels, the second of which reads what the
        first left here: another thread's must not come between them on the stream.
    """

    __slots__ = ("lock", "memory", "ptr")

    def __init__(self, memory: CudaObject) -> None:
        self.lock = threading.RLock()
        self.memory = memory
        self.ptr = memory.ptr


class Blas:
    """GEMMs of one device.

    A handle belongs to a thread, a workspace to a stream: two threads never share a
    handle, and stream order keeps two GEMMs from using a workspace at the same time.

    Parameters
    ----------
    take
        Bytes → device memory that no queued work uses, with ``ptr`` and ``block``.
    mark
        Stream of the backend → a mark behind what is queued there.
    is_green
        Whether a green context is current on this thread.
    """

    def __init__(
        self,
        take: Callable[[int], CudaObject],
        mark: Callable[[RawStream], Mark],
        is_green: Callable[[], bool],
    ) -> None:
        self._take = take
        self._mark = mark
        self._is_green = is_green
        self._local = threading.local()
        self._idle: list[int] = []
        weakref.finalize(self, _destroy, self._idle)
        self._workspaces: dict[int, _Workspace] = {}
        self._epoch = 0

    def forget_stream(self, handle: int) -> None:
        """Free the workspace of a stream that is idle and about to be destroyed."""
        self._workspaces.pop(handle, None)
        self._epoch += 1  # another stream may get the same handle

    def _workspace(self, handle: int) -> _Workspace:
        if handle == _PER_THREAD:  # one handle, but a stream of its own in each thread
            try:
                workspace: _Workspace = self._local.workspace
            except AttributeError:
                workspace = self._local.workspace = _Workspace(self._take(WORKSPACE_BYTES))
            return workspace
        return self._workspaces.setdefault(handle, _Workspace(self._take(WORKSPACE_BYTES)))

    def _captured_workspace(self, graph: Graph, handle: int) -> _Workspace:
        """Return a stream's workspace in a graph, which keeps it: it may run beside the stream."""
        workspace: _Workspace | None = graph.workspaces.get(handle)
        if workspace is None:
            new = _Workspace(self._take(WORKSPACE_BYTES))
            workspace = graph.workspaces.setdefault(handle, new)
        return workspace

    def _raw_handle(self, graph: Graph | None = None) -> int:
        """Return this thread's cuBLAS handle, made at first use.

        Raises
        ------
        StreamError
            It cannot be made now: another thread captures the stream into ``graph``.
        """
        try:
            raw: int = self._local.raw
        except AttributeError:
            if graph is not None and not self._idle:
                raise StreamError(
                    "this thread has no cuBLAS handle yet, and making one would spoil the capture "
                    f"of {graph.name!r}: call mm_out once on this thread before"
                ) from None
            self._local.owner = _Handle(self._idle)
            raw = self._local.raw = self._local.owner.raw
            self._local.set = None
        return raw

    def prepare(self) -> None:
        """Make this thread's handle before a capture begins: that waits for the device."""
        self._raw_handle()

    def matmul(
        self, stream: Stream, plan: MatmulPlan, operands: tuple[int, int, int], sm_count: int
    ) -> None:
        """Queue ``out = a @ b`` on addresses of out, a and b; the device is current.

        cuBLAS is column-major, so it is asked for the transposed product: outᵀ = bᵀ · aᵀ.
        """
        try:
            handle = self._local.raw
        except AttributeError:
            handle = self._raw_handle(stream.graph)
        stream_handle = stream.handle
        if stream.graph is not None:
            workspace = self._captured_workspace(stream.graph, stream_handle)
        else:
            try:
                workspace = self._workspaces[stream_handle]
            except KeyError:
                workspace = self._workspace(stream_handle)
        data, compute, one, zero = _CODES[plan.dtype]
        out, a, b = operands
        local = self._local
        # Each call into cuBLAS gives up the GIL and has to win it back: with many threads
        # that costs more than the call, so what is set already is not set again.
        wanted = (stream_handle, workspace.ptr, sm_count, self._epoch)
        try:
            if not plan.k:  # the sum of nothing; cuBLAS leaves out as it was
                cupy.cuda.runtime.memsetAsync(out, 0, plan.bytes_out, stream_handle)
                return
            if local.set != wanted:
                local.set = None
                # Setting the stream resets the workspace, so the workspace comes after it.
                _set_stream(handle, stream_handle)
                _set_workspace(handle, workspace.ptr, WORKSPACE_BYTES)
                _set_sm_count_target(handle, sm_count)
                local.set = wanted
            with workspace.lock:
                _gemm_ex(
                    handle, plan.transpose_b, plan.transpose_a, plan.n, plan.m, plan.k, one,
                    b, data, plan.row_b, a, data, plan.row_a, zero, out, data, plan.n,
                    compute, _DEFAULT_ALGORITHM,
                )  # fmt: skip
        except cublas.cuBLASError as error:
            raise GpuscopeError(
                f"cuBLAS refused {plan.name} ({error}){self._hint(stream)}"
            ) from error

        if stream_handle == _PER_THREAD and stream.graph is None:  # it may end with its thread
            workspace.memory.block.use(Tag(None, self._mark(stream.raw)))

    def _hint(self, stream: Stream) -> str:
        """Say what is known to make cuBLAS refuse a product that is right in itself."""
        if self._is_green():
            return (
                ": a green context is current on this thread, but the library's handle belongs to "
                "the primary one. Make that current again with cuda.core.Device().set_current(): "
                "a partition's streams need no context of theirs to be current"
            )
        if stream.partition is None:
            return ""
        return (
            f": clusters of thread blocks of the kernel that it chose may not fit the "
            f"{stream.partition.sm_count} SMs of partition {stream.partition.name!r}. Carve whole "
            "quanta, or more of them"
        )
