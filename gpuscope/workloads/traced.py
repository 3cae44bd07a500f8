"""Kernels that tell when and where each of their thread blocks ran.

Thread 0 of a block reads the GPU's ``%globaltimer`` when the block begins and when all of
its threads are at the end, and its ``%smid``. While a device is observed, each launch
writes these to an array of its own, which goes with the launch's
:class:`~gpuscope.device.api.Call` as ``blocks``: shape (blocks, 3), uint64, row i for
block i: start and end in ns on the GPU's clock, SM id. Whoever keeps the call keeps the array;
it is read when the launch is done. The end is when all threads got there; what they stored may
still be on its way to memory. While nobody observes, a launch writes nothing and takes no memory.

A launch that becomes part of a graph writes nothing either: every replay would overwrite
what the one before wrote. Devices that run no source, the simulated one among them, have
no block records: there ``blocks`` is ``None``.
"""

from __future__ import annotations

import functools
from typing import cast

import numpy as np

from gpuscope._types import Array
from gpuscope.device import handles
from gpuscope.device.api import Kernel, KernelModel, NativeArray
from gpuscope.device.device import Device
from gpuscope.device.event import Event
from gpuscope.device.matmul import MatmulPlan
from gpuscope.device.partition import Partition
from gpuscope.device.raw import AnyBackend
from gpuscope.device.stream import Stream
from gpuscope.errors import CapabilityError, InvalidOperand
from gpuscope.workloads.context import Passed
from gpuscope.workloads.copy import BLOCK, Copy, source
from gpuscope.workloads.gemm import Checked, Gemm
from gpuscope.workloads.product import PlacedOperands

_COMMON = "traced_common.cu"
_TILE = 128
_THREADS = 256
_TENSOR_CORES_SINCE = (8, 0)
_NOWHERE = 0


def _records(device: Device, stream: Stream, blocks: int) -> NativeArray | None:
    """Return an array for one launch's block records; ``None`` if it shall write none."""
    if not (device.calls.observers and device.capabilities.compile_source) or stream.capturing:
        return None
    with device.backend.current():
        # CuPy's pool takes memory from, and gives it back to, its current stream's share: as
        # this is the stream of the launch, nobody who lets go too early does any harm.
        bound = handles.bind(stream)
        try:
            return device.empty((blocks, 3), "uint64")
        finally:
            handles.unbind(bound)


class TracedGemm(Gemm):
    """A matrix product ``out[m, n] = a[m, k] @ b[k, n]`` that tells of its thread blocks.

    A kernel of ours on the tensor cores: float16 in and out, summed in float32. It is there
    to be looked into, not to be fast: each thread block computes 128 × 128 of ``out``.

    Parameters
    ----------
    owner
        The device, or a partition that closes the handle with itself.
    m, n, k
        Sizes in elements. Multiples of 8 for n and k make it more than twice as fast.
    name
        For people, timelines and analyses; it says the sizes if not given.
    seed
        Of its own operands: uniform values in [-0.5, 0.5), made at first use.
    max_in_flight
        How many calls may overlap; each has operands of its own.

    Raises
    ------
    InvalidOperand
        A size is not positive.
    CapabilityError
        The GPU's tensor cores are older than compute capability 8.0.

    Notes
    -----
    ``execute()`` is :meth:`Gemm.execute <gpuscope.workloads.gemm.Gemm.execute>`, but arrays
    given to it are in C order: others are refused with InvalidOperand.

    While the device is observed, each call's launch has an array of
    ``ceil(m / 128) * ceil(n / 128)`` block records: see :mod:`gpuscope.workloads.traced`. A
    launch that becomes part of a graph has none, so neither has a call that replays one.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> from gpuscope.workloads.traced import TracedGemm
    >>> with gpu.create_stream() as stream, gs.profile(gpu) as recording:
    ...     _ = TracedGemm(gpu, m=256, n=256, k=64).execute(stream=stream)
    >>> recording.trace.kind_counts().get("block", 0)  # on a CUDA GPU 4: 2 × 2 tiles
    0
    """

    _usual_name = "traced gemm {m}x{n}x{k}"

    def __init__(
        self,
        owner: Device | Partition,
        *,
        m: int,
        n: int,
        k: int,
        name: str | None = None,
        seed: int = 0,
        max_in_flight: int = 1,
    ) -> None:
        super().__init__(
            owner, m=m, n=n, k=k, dtype="float16", sm_count_target=None, name=name, seed=seed,
            max_in_flight=max_in_flight,
        )  # fmt: skip
        device = self.device
        capability = device.info.compute_capability
        if device.capabilities.compile_source and capability < _TENSOR_CORES_SINCE:
            raise CapabilityError(
                "a TracedGemm is not possible here: compute capability 8.0 or newer is required, "
                f"{capability[0]}.{capability[1]} was found. A Gemm is possible, without block "
                "records"
            )
        model = KernelModel(
            lambda profile, _grid, args, sm_count: profile.gemm_cost(
                args[3], args[4], args[5], "float16", sm_count, 0
            ),
            reads=lambda args: args[1:3],
            writes=lambda args: args[0],
            compute=_product,
        )
        text = source(_COMMON, "traced_gemm.cu")
        self._kernel = device.compile(text, "traced_gemm", model=model)
        # What Gemm calls where nobody observes; it must not refer to this handle.
        self._matmul = functools.partial(_launch_unseen, device.backend, self._kernel)

    def _fits(self, plan: MatmulPlan) -> bool:
        if not super()._fits(plan):
            return False
        for name, layout, row in (("a", plan.a, plan.k), ("b", plan.b, plan.n)):
            if layout.is_copied or layout.is_transposed or layout.row != row:
                raise InvalidOperand(
                    f"{name} is not C-contiguous, and a TracedGemm takes nothing else: give a "
                    "whole array, or use a Gemm"
                )
        return True

    def _launch(self, stream: Stream, operands: Passed) -> None:
        plan, _, out, a, b = cast("Checked", operands)
        grid = _grid(plan)
        records = _records(self.device, stream, grid)
        stream.launch(
            self._kernel, out, a, b, plan.m, plan.n, plan.k,
            _NOWHERE if records is None else records,
            grid=grid, block=_THREADS, flop_count=plan.flop_count,
            nbytes=plan.nbytes, blocks=records,
        )  # fmt: skip


def _grid(plan: MatmulPlan) -> int:
    return -(-plan.m // _TILE) * -(-plan.n // _TILE)


def _launch_unseen(
    backend: AnyBackend,
    kernel: Kernel,
    stream: Stream,
    plan: MatmulPlan,
    placed: PlacedOperands,
    sm_count: int,
    correlation: int,
    event: Event | None = None,
) -> None:
    """Launch the product without records; takes, after two of its own, what matmul takes."""
    del sm_count
    args = (*cast("tuple[object, object, object]", placed), plan.m, plan.n, plan.k, _NOWHERE)
    backend.launch(stream.raw, kernel, _grid(plan), _THREADS, args, correlation)
    if event is not None:
        backend.record(event.raw, stream.raw, 0)


def _product(a: Array, b: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):  # a GPU says nothing either
        product: Array = (a.astype(np.float32) @ b.astype(np.float32)).astype(a.dtype)
        return product


class TracedCopy(Copy):
    """A :class:`~gpuscope.workloads.copy.Copy` that tells of its thread blocks.

    Parameters
    ----------
    owner
        The device, or a partition that closes the handle with itself.
    nbytes
        Bytes read, and bytes written; rounded up to a multiple of 16.
    name
        For people, timelines and analyses; it says the size if not given.
    seed
        Of the array that is read: uniform values in [-0.5, 0.5).
    max_in_flight
        How many calls may overlap; each writes an array of its own.

    Raises
    ------
    InvalidOperand
        ``nbytes`` is not positive.

    Notes
    -----
    While the device is observed, each call's launch has an array of block records, four for
    each SM that it may run on: see :mod:`gpuscope.workloads.traced`. A launch that becomes
    part of a graph has none, so neither has a call that replays one.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> from gpuscope.workloads.traced import TracedCopy
    >>> with gpu.create_stream() as stream, gs.profile(gpu) as recording:
    ...     _ = TracedCopy(gpu, nbytes=1 << 20).execute(stream=stream)
    >>> recording.trace.kind_counts().get("block", 0)  # on a CUDA GPU 4 for each SM
    0
    """

    _files = (_COMMON, "traced_copy.cu")
    _function = "traced_copy"
    _what = "traced copy"

    def _launch(self, stream: Stream, operands: Passed) -> None:
        grid = self._grid(stream)
        records = _records(self.device, stream, grid)
        stream.launch(
            self._kernel, operands, self.x, self._vectors,
            _NOWHERE if records is None else records,
            grid=grid, block=BLOCK, nbytes=self._moved, blocks=records,
        )  # fmt: skip
