"""Matrix products: ``mm_out`` and the reusable ``Gemm``."""

from __future__ import annotations

from typing import Any, Literal

from gpuscope.device.api import MatmulPlan
from gpuscope.device.device import Device, as_dtype
from gpuscope.device.partition import Partition
from gpuscope.device.select import device_of
from gpuscope.device.stream import Stream
from gpuscope.errors import InvalidOperand
from gpuscope.workloads.handle import Handle

SUPPORTED = ("float16", "bfloat16", "float32", "float64")
_LIMIT = 2**31 - 1
_PLANS_KEPT = 4096

SmCountTarget = Literal["auto"] | int | None

_plans: dict[Any, MatmulPlan] = {}


def mm_out(out: Any, a: Any, b: Any, *, stream: Any = None) -> Any:
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
        Explicit stream; without it the caller stream, else the thread's current stream,
        and then the call returns without waiting. With none of them it runs on the
        per-thread default stream and waits.

    Returns
    -------
    array
        ``out``.

    Raises
    ------
    InvalidOperand
        An argument cannot be used; names it, what was found and what is needed.

    Notes
    -----
    Origin: contract E, ExecuTorch #19360. The library is told how many SMs the stream's
    partition has, TF32 and reduced-precision split-K are off.
    """
    device = device_of(out, "out")
    target = out
    key = _key(out, a, b)
    plan = _plans.get(key) if key is not None else None
    if plan is None:
        target, a, b, plan = _check(device, out, a, b, key)
    operands = _place(device, plan, target, a, b)
    chosen, selected = device.choose_stream(stream)
    if plan.copies:
        operands = _copied(device, chosen, plan, target, a, b)
    _matmul(device, chosen, plan, operands, chosen.sm_count_target)
    if not selected:
        chosen.synchronize()
    return out


def _matmul(device: Device, stream: Stream, plan: MatmulPlan, operands: Any, sm_count: int) -> None:
    if not device.observers:
        device.backend.matmul(stream, plan, operands, sm_count, device.next_correlation())
        return
    call = device.begin_call(
        "launch", plan.name, stream, stream, flop_count=plan.flop_count,
        nbytes=plan.bytes_out + plan.bytes_a + plan.bytes_b,
    )  # fmt: skip
    try:
        device.backend.matmul(stream, plan, operands, sm_count, call.correlation)
    finally:
        device.end_call(call)


def _copied(device: Device, stream: Stream, plan: MatmulPlan, out: Any, a: Any, b: Any) -> Any:
    """Copy inputs of other strides into C order, on the stream; returns what matmul takes."""
    if plan.copy_a:
        a = device.backend.contiguous(stream, a)
    if plan.copy_b:
        b = device.backend.contiguous(stream, b)
    return device.backend.place(out, a, b)[2]


def _key(out: Any, a: Any, b: Any) -> Any:
    """Everything that the checks look at but addresses; ``None`` if that cannot be read."""
    try:
        return (
            type(out), type(a), type(b), out.shape, a.shape, b.shape, out.strides, a.strides,
            b.strides, out.dtype.num, a.dtype.num, b.dtype.num,
        )  # fmt: skip
    except AttributeError:
        return None


def _check(  # noqa: PLR0912 - one branch for each check, in the contract's order
    device: Device, out: Any, a: Any, b: Any, key: Any
) -> tuple[Any, Any, Any, MatmulPlan]:
    """Check operands in the contract's order; keep the plan if they were ours already."""
    given = (out, a, b)
    arrays = []
    for name, value in zip(("out", "a", "b"), given, strict=True):
        array = device.backend.adopt(value)
        if array is None:
            raise InvalidOperand(
                f"{name} is {type(value).__name__}, not an array on {device.info.key}: make one "
                "with the device's asarray() or empty()"
            )
        arrays.append(array)
    out, a, b = arrays
    for name, array in zip(("out", "a", "b"), arrays, strict=True):
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
    if out.dtype.name not in SUPPORTED:
        raise InvalidOperand(
            f"dtype {out.dtype} of out, a and b is not supported; use one of {', '.join(SUPPORTED)}"
        )
    homes = device.backend.place(out, a, b)[0]
    for name, home in zip(("a", "b"), homes[1:], strict=True):
        if home != homes[0]:
            raise InvalidOperand(
                f"{name} is on another device than out: copy it to {device.info.key} first"
            )
    if max(m, n, k) > _LIMIT:
        raise InvalidOperand(f"a dimension of {max(m, n, k)} is more than cuBLAS takes ({_LIMIT})")
    item = out.dtype.itemsize
    if m and n and ((n > 1 and out.strides[1] != item) or (m > 1 and out.strides[0] != n * item)):
        raise InvalidOperand(
            f"out is not C-contiguous (strides {out.strides} for shape {out.shape}): give a whole "
            "array, or mm_out into one and copy"
        )
    transpose_a, row_a, copy_a, span_a = _layout(a.shape, a.strides, item)
    transpose_b, row_b, copy_b, span_b = _layout(b.shape, b.strides, item)
    below_a, below_b = _below(a.shape, a.strides), _below(b.shape, b.strides)
    plan = MatmulPlan(
        m=m, n=n, k=k, dtype=out.dtype.name,
        transpose_a=transpose_a, row_a=row_a, copy_a=copy_a,
        transpose_b=transpose_b, row_b=row_b, copy_b=copy_b,
        bytes_out=m * n * item, bytes_a=span_a, bytes_b=span_b, below_a=below_a, below_b=below_b,
        copies=copy_a or copy_b,
    )  # fmt: skip
    if key is not None and out is given[0] and a is given[1] and b is given[2]:
        if len(_plans) >= _PLANS_KEPT:
            _plans.clear()
        _plans[key] = plan
    return out, a, b, plan


def _layout(
    shape: tuple[int, int], strides: tuple[int, int], item: int
) -> tuple[bool, int, bool, int]:
    """Transposed or not, leading dimension, whether a copy is needed, bytes from first to last."""
    (rows, columns), (down, across) = shape, strides
    if rows == 0 or columns == 0:
        return False, max(columns, 1), False, 0
    span = (rows - 1) * abs(down) + (columns - 1) * abs(across) + item
    if (columns == 1 or across == item) and (
        rows == 1 or (down >= columns * item and down % item == 0)
    ):
        return False, columns if rows == 1 else down // item, False, span
    if (rows == 1 or down == item) and (
        columns == 1 or (across >= rows * item and across % item == 0)
    ):
        return True, rows if columns == 1 else across // item, False, span
    return False, columns, True, span


def _below(shape: tuple[int, int], strides: tuple[int, int]) -> int:
    """Bytes of an array below its first element."""
    if 0 in shape:
        return 0
    return sum((size - 1) * -step for size, step in zip(shape, strides, strict=True) if step < 0)


def _place(device: Device, plan: MatmulPlan, out: Any, a: Any, b: Any) -> Any:
    """Check what a plan cannot remember, devices and overlap; returns what matmul takes."""
    (home, home_a, home_b), (first, at_a, at_b), operands = device.backend.place(out, a, b)
    if home_a != home or home_b != home:
        name = "a" if home_a != home else "b"
        raise InvalidOperand(f"{name} is on another device than out: copy it there first")
    last = first + plan.bytes_out
    at_a -= plan.below_a
    at_b -= plan.below_b
    if (at_a < last and first < at_a + plan.bytes_a) or (
        at_b < last and first < at_b + plan.bytes_b
    ):
        raise InvalidOperand(
            "out overlaps an input in memory: the product would read what it overwrites. Give out "
            "memory of its own"
        )
    return operands


class Gemm(Handle):
    """A prepared matrix product: ``out[m, n] = a[m, k] @ b[k, n]``.

    Parameters
    ----------
    owner
        The device, or a partition that closes the handle with itself.
    m, n, k
        Sizes in elements.
    dtype
        ``"float16"``, ``"bfloat16"``, ``"float32"`` or ``"float64"``.
    sm_count_target
        SMs that the library tunes for: ``"auto"``, those of the stream's partition;
        a number; or ``None``, not told.
    seed
        Of its own operands: uniform values in [-0.5, 0.5), made at first use.

    Raises
    ------
    InvalidOperand
        A size is not positive, or the dtype is not supported.
    """

    def __init__(
        self,
        owner: Device | Partition,
        *,
        m: int,
        n: int,
        k: int,
        dtype: str = "float16",
        sm_count_target: SmCountTarget = "auto",
        name: str | None = None,
        seed: int = 0,
    ) -> None:
        for size_name, size in (("m", m), ("n", n), ("k", k)):
            if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= _LIMIT:
                raise InvalidOperand(
                    f"{size_name} is {size!r}; a whole number from 1 to {_LIMIT} is needed"
                )
        if dtype not in SUPPORTED:
            raise InvalidOperand(f"dtype {dtype!r} is not supported; use one of {SUPPORTED}")
        if not (
            sm_count_target is None
            or sm_count_target == "auto"
            or (isinstance(sm_count_target, int) and sm_count_target > 0)
        ):
            raise InvalidOperand(
                f"sm_count_target is 'auto', None or a positive count, not {sm_count_target!r}"
            )
        super().__init__(owner, name=name or f"gemm {m}x{n}x{k} {dtype}")
        self.m, self.n, self.k = m, n, k
        self.dtype = dtype
        self.sm_count_target: SmCountTarget = sm_count_target
        self._seed = seed
        self._own: tuple[Any, Any, Any] | None = None

    @property
    def flop_count(self) -> int:
        """Floating-point operations of one call: 2 · m · n · k."""
        return 2 * self.m * self.n * self.k

    def operands(self) -> tuple[Any, Any, Any]:
        """Return its own ``(a, b, out)``, made at first use."""
        if self._own is None:
            device, seed = self.device, self._seed
            self._own = (
                device.random((self.m, self.k), self.dtype, seed=seed),
                device.random((self.k, self.n), self.dtype, seed=seed + 1),
                device.empty((self.m, self.n), as_dtype(self.dtype)),
            )
        return self._own

    def execute(self, a: Any = None, b: Any = None, out: Any = None, *, stream: Any = None) -> Any:
        """Queue one product; returns ``out`` at once if a stream is selected.

        Parameters
        ----------
        a, b, out
            Arrays of shape (m, k), (k, n) and (m, n); its own where none is given.

        Raises
        ------
        InvalidOperand
            An array has another shape or dtype than the handle was made for.
        """
        if a is None or b is None or out is None:
            own = self.operands()
            a = own[0] if a is None else a
            b = own[1] if b is None else b
            out = own[2] if out is None else out
        target = out
        key = _key(out, a, b)
        plan = _plans.get(key) if key is not None else None
        if plan is None:
            target, a, b, plan = _check(self.device, out, a, b, key)
        if plan.m != self.m or plan.n != self.n or plan.k != self.k or plan.dtype != self.dtype:
            raise InvalidOperand(
                f"this Gemm is {self.m}x{self.n}x{self.k} {self.dtype}, but out, a and b are "
                f"{plan.m}x{plan.n}x{plan.k} {plan.dtype}: make a Gemm for these sizes"
            )
        operands = _place(self.device, plan, target, a, b)
        self._execute(stream, (plan, operands, target, a, b))
        return out

    def _launch(self, stream: Stream, operands: Any) -> None:
        plan, placed, out, a, b = operands
        if plan.copies:
            placed = _copied(self.device, stream, plan, out, a, b)
        target = self.sm_count_target
        sm_count = stream.sm_count_target if target == "auto" else target or 0
        _matmul(self.device, stream, plan, placed, sm_count)
