"""cuBLAS through NVIDIA's own bindings: one handle a thread, a workspace a stream."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import threading
import weakref
from collections.abc import Callable

import numpy as np

from gpuscope._compiled import fastpath
from gpuscope._optional import require
from gpuscope._types import Untyped
from gpuscope.device.cuda import captures
from gpuscope.device.cuda.arrays import DeviceMemory, cupy
from gpuscope.device.cuda.driver import address_of
from gpuscope.device.dtypes import DTYPES
from gpuscope.device.matmul import MatmulPlan
from gpuscope.device.memory import Tag
from gpuscope.device.stream import Stream
from gpuscope.device.views import GraphView
from gpuscope.errors import GpuscopeError, StreamError

cublas = require("nvmath.bindings.cublas", package="nvmath-python", feature="mm_out on a GPU")

WORKSPACE_BYTES = 32 << 20
"""What cuBLAS's documentation recommends for Hopper; less elsewhere is enough too."""

_PER_THREAD = 2
"""cudaStreamPerThread."""

_DEFAULT_ALGORITHM = -1
_SCALARS = {name: np.array([1, 0], dtype.accumulator) for name, dtype in DTYPES.items()}
_CODES = {
    name: (DTYPES[name].cublas_data, DTYPES[name].cublas_compute, at, at + scalars.itemsize)
    for name, scalars in _SCALARS.items()
    for at in [scalars.ctypes.data]
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


class _Gemms:
    """What ``_products.c`` does of GEMMs, where that is not compiled."""

    class Workspace:
        """What the GEMMs of one stream compute in, one after the other.

        Attributes
        ----------
        lock
            Held while a GEMM is queued. It may be two kernels, the second of which reads what the
            first left here: another thread's must not come between them on the stream.
        number
            Of no other workspace: addresses and streams come again.
        """

        __slots__ = ("lock", "memory", "nbytes", "number", "ptr", "stream")
        _numbers = itertools.count(1)

        def __init__(self, memory: Untyped, ptr: int, nbytes: int, stream: int) -> None:
            self.lock = threading.RLock()
            self.number = next(self._numbers)
            self.memory, self.ptr, self.nbytes, self.stream = memory, ptr, nbytes, stream

    class BlasHandle:
        """A thread's cuBLAS handle, and what it was told last."""

        __slots__ = ("raw", "told")

        def __init__(self, raw: int) -> None:
            self.raw = raw
            self.told: object = None

    @staticmethod
    def Product(*parts: tuple[int, ...]) -> Untyped:  # noqa: N802 - a type there
        """Keep what cuBLAS is told of a product."""
        return parts

    @staticmethod
    def multiply(
        handle: BlasHandle,
        workspace: Workspace,
        sm_count: int,
        product: Untyped,
        operands: tuple[int, int, int],
    ) -> int:
        """Queue a product; returns cuBLAS's status.

        cuBLAS is column-major, so it is asked for the transposed product: outᵀ = bᵀ · aᵀ. Each
        call gives up the GIL and has to win it back: with many threads that costs more than the
        call, so what is set already is not set again.
        """
        (transpose_a, transpose_b, m, n, k, row_a, row_b), codes, _ = product
        data, compute, unit, zero = codes
        out, a, b = operands
        wanted = (workspace.number, sm_count)
        try:
            if handle.told != wanted:
                handle.told = None
                # Setting the stream resets the workspace, so the workspace comes after it.
                cublas.set_stream(handle.raw, workspace.stream)
                cublas.set_workspace(handle.raw, workspace.ptr, workspace.nbytes)
                cublas.set_sm_count_target(handle.raw, sm_count)
                handle.told = wanted
            inputs = (b, data, row_b, a, data, row_a)
            result = (out, data, n, compute, _DEFAULT_ALGORITHM)
            with workspace.lock:
                cublas.gemm_ex(
                    handle.raw, transpose_b, transpose_a, n, m, k, unit, *inputs, zero, *result
                )
        except cublas.cuBLASError as error:
            return int(error.status)
        return 0


def _serve() -> Untyped:
    """Tell the compiled launch path what to call; returns it, or ``None`` for Python alone."""
    if fastpath is None:
        return None
    names = ("SetStream_v2", "SetWorkspace_v2", "SetSmCountTarget", "GemmEx")  # in C's order
    try:
        inner = importlib.import_module("nvmath.bindings._internal.cublas")
        addresses = [inner._inspect_function_pointer(f"__cublas{name}") for name in names]
        addresses.append(address_of("cuCtxGetCurrent"))
    except Exception:  # noqa: BLE001 - another nvmath-python; Python's calls say what is missing
        return None
    if not all(addresses):
        return None
    types = (cupy.ndarray, cupy.cuda.MemoryPointer, DeviceMemory, Stream)
    fastpath.serve_products(types, tuple(addresses))
    return fastpath


_compiled = _serve()
_gemms = _compiled or _Gemms
_multiply = _gemms.multiply


class Blas:
    """GEMMs of one device.

    A handle belongs to a thread, a workspace to a stream: two threads never share a
    handle, and stream order keeps two GEMMs from using a workspace at the same time.

    Parameters
    ----------
    index
        The device's ordinal.
    take
        Bytes → device memory that no queued work uses, with ``ptr`` and ``block``.
    mark
        Stream of the backend → a mark behind what is queued there.
    is_green
        Whether a green context is current on this thread.
    """

    def __init__(
        self,
        index: int,
        take: Callable[[int], Untyped],
        mark: Callable[[Untyped], Untyped],
        is_green: Callable[[], bool],
    ) -> None:
        self._index = index
        self._take = take
        self._mark = mark
        self._is_green = is_green
        self._local = threading.local()
        self._idle: list[int] = []
        weakref.finalize(self, _destroy, self._idle)
        self._workspaces: dict[int, Untyped] = {}
        self.queued: Callable[[Untyped, MatmulPlan, Untyped, int, int], int] = (
            _compiled.multiply_on if _compiled is not None else lambda *_: 0
        )
        """Queues a product on a stream that had one, if nothing has to be asked in Python.

        Takes the handle of an event to record behind it, or 0. Returns 0: nothing was done;
        1: the product was queued; 2: and the event recorded.
        """

    def forget_stream(self, handle: int) -> None:
        """Free the workspace of a stream that is idle and about to be destroyed."""
        self._workspaces.pop(handle, None)

    def _workspace(self, graph: GraphView | None, handle: int) -> Untyped:
        """Return a stream's workspace; of a graph its own, as it may run beside the stream."""
        workspaces: Untyped = self._workspaces if graph is None else graph.workspaces
        key: object = handle
        if graph is None and handle == _PER_THREAD:  # one handle, but each thread has its stream
            workspaces, key = vars(self._local), "workspace"
        workspace: Untyped = workspaces.get(key)
        if workspace is None:
            memory = self._take(WORKSPACE_BYTES)
            made = _gemms.Workspace(memory, memory.ptr, WORKSPACE_BYTES, handle)
            workspace = workspaces.setdefault(key, made)
        return workspace

    def _handle(self, graph: GraphView | None = None) -> Untyped:
        """Return this thread's cuBLAS handle, made at first use.

        Raises
        ------
        StreamError
            It cannot be made now: another thread captures the stream into ``graph``.
        """
        try:
            handle: Untyped = self._local.native
        except AttributeError:
            if graph is not None and not self._idle:
                raise StreamError(
                    "this thread has no cuBLAS handle yet, and making one would spoil the capture "
                    f"of {graph.name!r}: call mm_out once on this thread before"
                ) from None
            self._local.owner = _Handle(self._idle)
            self._local.raw = self._local.owner.raw
            handle = self._local.native = _gemms.BlasHandle(self._local.raw)
        return handle

    def prepare(self) -> None:
        """Make this thread's handle before a capture begins: that waits for the device."""
        self._handle()

    def expect(self, plan: MatmulPlan, out: Untyped, a: Untyped, b: Untyped) -> None:
        """Let products of operands like these be queued without a look at them in Python."""
        if _compiled is not None and plan.m and plan.n and plan.k and not plan.copies:
            _compiled.know(out, a, b, self._product(plan))

    def _product(self, plan: MatmulPlan) -> Untyped:
        """Return what cuBLAS is told of a product, made at its first use."""
        if plan.quick is None:
            a, b = plan.a, plan.b
            transposed, rows = (a.is_transposed, b.is_transposed), (a.row, b.row)
            sizes = (*transposed, plan.m, plan.n, plan.k, *rows)
            extent = (plan.bytes_out, a.nbytes, b.nbytes, a.below, b.below)
            product = _gemms.Product(sizes, _CODES[plan.dtype], extent)
            object.__setattr__(plan, "quick", product)  # frozen for everybody else
        return plan.quick

    def matmul(
        self, stream: Untyped, plan: MatmulPlan, operands: tuple[int, int, int], sm_count: int
    ) -> None:
        """Queue ``out = a @ b`` on addresses of out, a and b; the device is current."""
        handle = self._handle(stream.graph)
        stream_handle = stream.handle
        workspace = self._workspace(stream.graph, stream_handle)
        if not plan.k:  # the sum of nothing; cuBLAS leaves out as it was
            cupy.cuda.runtime.memsetAsync(operands[0], 0, plan.bytes_out, stream_handle)
            return
        if status := _multiply(handle, workspace, sm_count, self._product(plan), operands):
            error = cublas.cuBLASError(status)
            words = f"cuBLAS refused {plan.name} ({error}){self._hint(stream)}"
            raise GpuscopeError(words) from error
        if stream.graph is not None:
            return
        if stream_handle == _PER_THREAD:  # it may end with its thread
            workspace.memory.block.use(Tag(None, self._mark(stream.raw)))
        elif _compiled is not None and stream.tag is not None and not stream.closed:
            where = (stream.tag, self._index, stream.sm_count_target)
            stream.lane = _compiled.Lane(workspace, stream.device.calls, self._local, *where)

    def _hint(self, stream: Untyped) -> str:
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
