"""``mm_out``, a matrix product of arrays: its operands checked, planned and queued."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from types import SimpleNamespace
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from gpuscope._compiled import fastpath
from gpuscope._types import Array, Untyped
from gpuscope.device.accesses import Access, Accessing, of_arrays, ranges
from gpuscope.device.api import NativeArray
from gpuscope.device.arena import allocate, give_back
from gpuscope.device.arrays import adopted
from gpuscope.device.calls import CallFacts
from gpuscope.device.device import Device
from gpuscope.device.dtypes import DTYPES
from gpuscope.device.handles import AnyStream
from gpuscope.device.matmul import Layout, MatmulPlan
from gpuscope.device.raw import Memory
from gpuscope.device.select import device_of
from gpuscope.device.stream import Stream
from gpuscope.errors import InvalidOperand

LARGEST = 2**31 - 1
"""The largest dimension that cuBLAS takes."""
_PLANS_KEPT = 4096

Operands: TypeAlias = tuple[NativeArray, NativeArray, NativeArray]
"""``out``, ``a`` and ``b``."""
Addresses: TypeAlias = tuple[int, int, int]
PlacedOperands: TypeAlias = object
"""What a backend's ``place()`` returns of them for its ``matmul()``."""
Placed: TypeAlias = tuple[Addresses, PlacedOperands]

queued: Callable[[NativeArray, NativeArray, NativeArray, AnyStream], bool] = (
    fastpath.mm_out if fastpath is not None else lambda *_: False
)
"""Queues a product of operands like some that were checked, on a stream that had one; or not."""

PLANS: dict[Hashable, MatmulPlan] = {}
"""By :func:`key_of` their operands."""


def key_of(out: NativeArray, a: NativeArray, b: NativeArray) -> Hashable:
    """Return what the checks look at, without addresses; ``None`` if that cannot be read."""
    try:
        return (
            type(out), type(a), type(b), out.shape, a.shape, b.shape, out.strides, a.strides,
            b.strides, out.dtype, a.dtype, b.dtype,
        )  # fmt: skip
    except AttributeError:
        return None


def check(
    device: Device, out: NativeArray, a: NativeArray, b: NativeArray, key: Hashable
) -> tuple[Operands, MatmulPlan]:
    """Check operands in the contract's order; keep the plan if they were ours already."""
    given = (out, a, b)
    named = zip(("out", "a", "b"), given, strict=True)
    out, a, b = (adopted(device, value, name, write=name == "out") for name, value in named)
    for name, array in (("out", out), ("a", a), ("b", b)):
        if array.ndim != 2:
            raise InvalidOperand(
                f"{name} has {array.ndim} dimensions (shape {array.shape}); a matrix is needed"
            )
    (m, k), (k_b, n) = a.shape, b.shape
    if k != k_b:
        raise InvalidOperand(
            f"a is {a.shape} and b is {b.shape}: a's columns ({k}) and b's rows ({k_b}) must agree"
        )
    if out.shape != (m, n):
        raise InvalidOperand(f"out is {out.shape}, but a @ b is ({m}, {n})")
    if not out.dtype == a.dtype == b.dtype:
        raise InvalidOperand(
            f"dtypes differ: out {out.dtype}, a {a.dtype}, b {b.dtype}; one for all is needed"
        )
    if out.dtype.name not in DTYPES or not out.dtype.isnative:
        raise InvalidOperand(
            f"dtype {out.dtype} of out, a and b is not supported; use one of {', '.join(DTYPES)}"
        )
    if max(m, n, k) > LARGEST:
        raise InvalidOperand(f"a dimension of {max(m, n, k)} is more than cuBLAS takes ({LARGEST})")
    item = out.dtype.itemsize
    if m and n and ((n > 1 and out.strides[1] != item) or (m > 1 and out.strides[0] != n * item)):
        raise InvalidOperand(
            f"out is not C-contiguous (strides {out.strides} for shape {out.shape}): give a whole "
            "array, or mm_out into one and copy"
        )
    of_a, of_b = _layout(a.shape, a.strides, item), _layout(b.shape, b.strides, item)
    plan = MatmulPlan(m, n, k, out.dtype.name, m * n * item, of_a, of_b)
    if key is not None and out is given[0] and a is given[1] and b is given[2]:
        if len(PLANS) >= _PLANS_KEPT:
            PLANS.clear()
        PLANS[key] = plan
        device.backend.expect(plan, out, a, b)
    return (out, a, b), plan


def _layout(shape: tuple[int, ...], strides: tuple[int, ...], item: int) -> Layout:
    (rows, columns), (down, across) = shape, strides
    if rows == 0 or columns == 0:
        return Layout(max(columns, 1), 0, 0)
    nbytes = (rows - 1) * abs(down) + (columns - 1) * abs(across) + item
    below = (rows - 1) * max(0, -down) + (columns - 1) * max(0, -across)
    if (columns == 1 or across == item) and (
        rows == 1 or (down >= columns * item and down % item == 0)
    ):
        return Layout(columns if rows == 1 else down // item, nbytes, below)
    if (rows == 1 or down == item) and (
        columns == 1 or (across >= rows * item and across % item == 0)
    ):
        row = rows if columns == 1 else across // item
        return Layout(row, nbytes, below, is_transposed=True)
    return Layout(columns, nbytes, below, is_copied=True)


def place(
    device: Device, plan: MatmulPlan, out: NativeArray, a: NativeArray, b: NativeArray
) -> Placed:
    """Check what a plan cannot remember, devices and overlap; returns what matmul takes, too."""
    backend = device.backend
    (home, home_a, home_b), addresses, operands = backend.place(out, a, b)
    first, at_a, at_b = addresses
    if home_a != home or home_b != home:
        name = "a" if home_a != home else "b"
        raise InvalidOperand(f"{name} is on another device than out: copy it there first")
    if home != backend.home:
        raise InvalidOperand(
            f"out, a and b are on another device than {device.info.key}, which was to multiply "
            "them: make a handle there, or copy them first"
        )
    last = first + plan.bytes_out
    low_a, low_b = at_a - plan.a.below, at_b - plan.b.below
    if (low_a < last and first < low_a + plan.a.nbytes) or (
        low_b < last and first < low_b + plan.b.nbytes
    ):  # their outer bounds do
        for name, array, at in (("a", a, at_a), ("b", b, at_b)):
            if np.shares_memory(_extent(out, first), _extent(array, at)):
                raise InvalidOperand(
                    f"out overlaps an input, {name}, in memory: the product would read what it "
                    "overwrites. Give out memory of its own"
                )
    return addresses, operands


def _extent(array: NativeArray, address: int) -> Array:
    """Describe to NumPy where an array lies. Nobody reads that memory."""
    facts = {"version": 3, "data": (address, True), "typestr": f"|V{array.dtype.itemsize}"}
    facts |= {"shape": array.shape, "strides": array.strides}
    return np.asarray(SimpleNamespace(__array_interface__=facts))


class _Accessed(Struct, gc=False):
    """What a product reads and writes, by its plan and the addresses of its operands."""

    plan: MatmulPlan
    out: int
    a: int
    b: int

    def accesses(self) -> tuple[Access, ...]:
        """Return the bytes that it reads and writes."""
        plan = self.plan
        item = plan.bytes_out // (plan.m * plan.n)
        return (
            *_of_input(self.a, (plan.m, plan.k), plan.a, item),
            *_of_input(self.b, (plan.k, plan.n), plan.b, item),
            Access(self.out, self.out + plan.bytes_out, reads=False, writes=True),
        )


def _of_input(
    address: int, shape: tuple[int, int], layout: Layout, item: int
) -> tuple[Access, ...]:
    steps = (item, layout.row * item) if layout.is_transposed else (layout.row * item, item)
    return ranges(address, shape, steps, item)


def of_product(plan: MatmulPlan, addresses: Addresses) -> tuple[Accessing, ...]:
    """Return what a product reads and writes."""
    return (_Accessed(plan, *addresses),)


# -- queueing ------------------------------------------------------------------------------
def _matmul(stream: Stream, plan: MatmulPlan, placed: Placed, sm_count: int) -> None:
    (addresses, operands), calls, call = placed, stream.device.calls, None
    if calls.observers:
        accesses = of_product(plan, addresses) if calls.watchers else None
        call = calls.begin(
            "launch",
            plan.name,
            stream,
            stream,
            flop_count=plan.flop_count,
            nbytes=plan.nbytes,
            accesses=accesses,
        )
    number = calls.next_correlation() if call is None else call.correlation
    try:
        stream.device.backend.matmul(stream, plan, operands, sm_count, number)
    finally:
        if call is not None:
            calls.end(call)


def queue_product(
    stream: Stream, plan: MatmulPlan, placed: Placed, arrays: Operands, sm_count: int
) -> None:
    """Queue a product, behind copies of inputs with other strides; holds ``arrays`` for it."""
    if not (plan.m and plan.n):
        return  # no launch: nothing would run
    try:
        if plan.copies:
            _product_of_copies(stream, plan, arrays, sm_count)
        else:
            _matmul(stream, plan, placed, sm_count)
    finally:
        stream.hold(*arrays)


def _product_of_copies(stream: Stream, plan: MatmulPlan, arrays: Operands, sm_count: int) -> None:
    """Copy into scratch of the stream, which is free again behind the product.

    What the stream cannot order, a graph or a stream that is not ours, gets arrays instead.
    """
    device, (out, a, b) = stream.device, arrays
    is_ours = stream.tag is not None and stream.graph is None
    ordered = device.capabilities.stream_ordered_memory and is_ours
    taken: list[Memory] = []
    try:
        if plan.a.is_copied:
            a = _copied(stream, a, taken if ordered else None)
        if plan.b.is_copied:
            b = _copied(stream, b, taken if ordered else None)
        _, addresses, operands = device.backend.place(out, a, b)
        _matmul(stream, plan, (addresses, operands), sm_count)
    finally:
        stream.hold(a, b)
        for memory in taken:
            give_back(device, memory, stream)


def _copied(stream: Stream, array: NativeArray, taken: list[Memory] | None) -> NativeArray:
    """Queue a copy in C order; its memory is added to ``taken``, or else it is an array's."""
    device = stream.device
    if taken is None:
        copy = device.backend.empty(array.shape, array.dtype)
    else:
        memory = allocate(device, array.nbytes, stream)
        taken.append(memory)
        bytes_taken: Untyped = memory.array
        copy = bytes_taken.view(array.dtype).reshape(array.shape)
    facts: CallFacts = {"nbytes": 2 * array.nbytes}
    facts["accesses"] = of_arrays([array], [copy]) if device.calls.watchers else None
    with device.calls.observed("launch", "rearrange", stream, stream, **facts) as call:
        device.backend.rearrange(stream, copy, array, call.correlation)
    return copy


def mm_out(
    out: NativeArray, a: NativeArray, b: NativeArray, *, stream: AnyStream = None
) -> NativeArray:
    """Compute ``out = a @ b`` through the device's BLAS, on the stream that the caller chose.

    Parameters
    ----------
    out
        Array of shape (m, n), C-contiguous; overwritten.
    a, b
        Arrays of shape (m, k) and (k, n), same dtype and device: float16, bfloat16 or
        float32 with float32 accumulation, or float64. Row-major, column-major and
        transposed views are taken without a copy; other strides are copied on the stream.
    stream
        The stream to use. Default: the caller stream, else the thread's current stream. With any
        of these the call returns without waiting. Without them it runs on the per-thread default
        stream and waits.

    Returns
    -------
    array
        ``out``.

    Raises
    ------
    InvalidOperand
        An argument cannot be used. The message names the argument, what was found and what is
        required.

    Notes
    -----
    The library is told the SM count of the stream's partition. TF32 and reduced-precision split-K
    are off. Origin: contract E, ExecuTorch #19360.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> a = gpu.asarray([[1, 2], [3, 4]], "float32")
    >>> with gpu.create_stream() as stream:
    ...     out = gs.mm_out(gpu.empty((2, 2)), a, a, stream=stream)
    >>> gpu.to_host(out).tolist()
    [[7.0, 10.0], [15.0, 22.0]]
    """
    if queued(out, a, b, stream):
        return out
    device = device_of(out, "out")
    operands, key = (out, a, b), key_of(out, a, b)
    follows: tuple[NativeArray, ...] = ()
    plan = PLANS.get(key) if key is not None else None
    if plan is None:  # arrays of other libraries are checked each time
        follows = operands
        operands, plan = check(device, out, a, b, key)
    placed = place(device, plan, *operands)
    chosen, selected = device.choose_stream(stream)
    for value in follows:
        device.backend.follow(chosen.raw, value)
    queue_product(chosen, plan, placed, operands, chosen.sm_count_target)
    if not selected:
        chosen.synchronize()
    return out
