"""Matrix products: ``mm_out`` and the reusable ``Gemm``."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from gpuscope._checks import count, given, require_kind
from gpuscope.device.api import MatmulPlan, Memory
from gpuscope.device.arena import allocate, give_back
from gpuscope.device.arrays import as_dtype
from gpuscope.device.caller import get_caller_stream
from gpuscope.device.device import Device
from gpuscope.device.dtypes import DTYPES
from gpuscope.device.event import take_event
from gpuscope.device.partition import Partition
from gpuscope.device.select import device_of
from gpuscope.device.stream import Stream
from gpuscope.errors import InvalidOperand, StreamError
from gpuscope.workloads.context import NOTHING, Context, Work
from gpuscope.workloads.handle import Handle

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
    device = device_of(out, "out")
    target, operands_given = out, (out, a, b)
    key = _key(out, a, b)
    plan = _plans.get(key) if key is not None else None
    is_new = plan is None
    if plan is None:
        target, a, b, plan = _check(device, out, a, b, key)
    operands = _place(device, plan, target, a, b)
    chosen, selected = device.choose_stream(stream)
    if is_new:  # arrays of other libraries are checked each time
        for value in operands_given:
            device.backend.follow(chosen.raw, value)
    _product(device, chosen, plan, operands, (target, a, b), chosen.sm_count_target)
    if not selected:
        chosen.synchronize()
    return out


def _matmul(device: Device, stream: Stream, plan: MatmulPlan, operands: Any, sm_count: int) -> None:
    if not device.calls.observers:
        device.backend.matmul(stream, plan, operands, sm_count, device.calls.next_correlation())
        return
    call = device.calls.begin(
        "launch", plan.name, stream, stream, flop_count=plan.flop_count,
        nbytes=plan.bytes_out + plan.bytes_a + plan.bytes_b,
    )  # fmt: skip
    try:
        device.backend.matmul(stream, plan, operands, sm_count, call.correlation)
    finally:
        device.calls.end(call)


def _product(
    device: Device, stream: Stream, plan: MatmulPlan, placed: Any, arrays: Any, sm_count: int
) -> None:
    """Queue a product, behind copies of inputs with other strides; holds ``arrays`` for it."""
    if not (plan.m and plan.n):
        return  # no launch: nothing would run
    try:
        if plan.copies:
            _product_of_copies(device, stream, plan, arrays, sm_count)
        else:
            _matmul(device, stream, plan, placed, sm_count)
    finally:
        stream.hold(*arrays)


def _product_of_copies(
    device: Device, stream: Stream, plan: MatmulPlan, arrays: Any, sm_count: int
) -> None:
    """Copy into scratch of the stream, which is free again behind the product.

    What the stream cannot order, a graph or a stream that is not ours, gets arrays instead.
    """
    out, a, b = arrays
    ordered = (
        device.capabilities.stream_ordered_memory and stream.tag is not None and not stream.graph
    )
    taken: list[Memory] = []
    try:
        if plan.copy_a:
            a = _copied(device, stream, a, taken if ordered else None)
        if plan.copy_b:
            b = _copied(device, stream, b, taken if ordered else None)
        _matmul(device, stream, plan, device.backend.place(out, a, b)[2], sm_count)
    finally:
        stream.hold(a, b)
        for memory in taken:
            give_back(device, memory, stream)


def _copied(device: Device, stream: Stream, array: Any, taken: list[Memory] | None) -> Any:
    """Queue a copy in C order; its memory is added to ``taken``, or else it is an array's."""
    if taken is None:
        copy = device.backend.empty(array.shape, array.dtype)
    else:
        memory = allocate(device, array.nbytes, stream)
        taken.append(memory)
        copy = memory.array.view(array.dtype).reshape(array.shape)
    call = device.calls.begin("launch", "rearrange", stream, stream, nbytes=2 * array.nbytes)
    try:
        device.backend.rearrange(stream, copy, array, call.correlation)
    finally:
        device.calls.end(call)
    return copy


def _key(out: Any, a: Any, b: Any) -> Any:
    """Everything that the checks look at but addresses; ``None`` if that cannot be read."""
    try:
        return (
            type(out), type(a), type(b), out.shape, a.shape, b.shape, out.strides, a.strides,
            b.strides, out.dtype, a.dtype, b.dtype,
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
        try:
            array = device.backend.adopt(value, write=name == "out")
        except InvalidOperand as error:
            raise InvalidOperand(f"{name}: {error}") from error
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
    if out.dtype.name not in DTYPES or not out.dtype.isnative:
        raise InvalidOperand(
            f"dtype {out.dtype} of out, a and b is not supported; use one of {', '.join(DTYPES)}"
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
    backend = device.backend
    (home, home_a, home_b), (first, at_a, at_b), operands = backend.place(out, a, b)
    if home_a != home or home_b != home:
        name = "a" if home_a != home else "b"
        raise InvalidOperand(f"{name} is on another device than out: copy it there first")
    if home != backend.home:
        raise InvalidOperand(
            f"out, a and b are on another device than {device.info.key}, which was to multiply "
            "them: make a handle there, or copy them first"
        )
    last = first + plan.bytes_out
    low_a, low_b = at_a - plan.below_a, at_b - plan.below_b
    if (low_a < last and first < low_a + plan.bytes_a) or (
        low_b < last and first < low_b + plan.bytes_b
    ):  # their outer bounds do
        for name, array, at in (("a", a, at_a), ("b", b, at_b)):
            if _touches(first - at, last - at, array.shape, array.strides, array.dtype.itemsize):
                raise InvalidOperand(
                    f"out overlaps an input, {name}, in memory: the product would read what it "
                    "overwrites. Give out memory of its own"
                )
    return operands


def _touches(
    first: int, last: int, shape: tuple[int, int], strides: tuple[int, int], item: int
) -> bool:
    """Whether an element lies in bytes [first, last), counted from a matrix's first one.

    Exact: asks in how many rows a multiple of the columns' stride is in the row's window.
    """
    (rows, down), (columns, across) = sorted(zip(shape, strides, strict=True))
    if 0 in shape or first >= last:
        return False
    first, last = first - item + 1, last - 1  # where an element may begin, both included
    if down < 0:
        first, last, down = first - (rows - 1) * down, last - (rows - 1) * down, -down
    if across < 0:
        first, last, across = first - (columns - 1) * across, last - (columns - 1) * across, -across
    # Rows from which some column could be reached: a window that holds no column may still
    # lie between two, but none beyond either end of its row.
    width = (columns - 1) * across
    if down == 0:
        begin, end = (0, 1) if first <= width and last >= 0 else (0, 0)
    else:
        begin, end = max(0, -(-(first - width) // down)), min(rows, last // down + 1)
    if begin >= end:
        return False
    if across == 0:
        return True
    # Multiples of across in [first - row·down, last - row·down], over these rows reversed.
    top = end - 1
    count = end - begin
    return _floor_sum(count, across, down, last - top * down) > _floor_sum(
        count, across, down, first - 1 - top * down
    )


def _floor_sum(count: int, divisor: int, step: int, start: int) -> int:
    """Return Σ (start + i·step) // divisor for i in range(count), in logarithmic time."""
    total = 0
    while True:
        total += count * (count - 1) // 2 * (step // divisor) + count * (start // divisor)
        step, start = step % divisor, start % divisor
        end = step * count + start
        if end < divisor:
            return total
        # The same lattice points below the line, counted along the other axis.
        count, start = divmod(end, divisor)
        divisor, step = step, divisor


class _GemmContext(Context):
    """A context that remembers the latest operands, as they were given, and what they mean.

    It keeps them alive until its next call; only arrays of the device's own type, whose
    memory never moves, are remembered.
    """

    __slots__ = ("a", "b", "out", "placed", "plan", "result", "sm_count")

    def __init__(self) -> None:
        super().__init__()
        self.a: Any = NOTHING
        self.b: Any = NOTHING
        self.out: Any = NOTHING
        self.plan: Any = None
        self.placed: Any = None
        self.result: Any = None
        self.sm_count = 0

    def forget(self, device: Device) -> None:
        """Let go of the operands too."""
        super().forget(device)
        self.a = self.b = self.out = NOTHING
        self.plan = self.placed = self.result = None


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
    name
        For people, timelines and analyses; it says the sizes if not given.
    sm_count_target
        SMs that the library tunes for: ``"auto"``, those of the stream's partition;
        a number; or ``None``, not told.
    seed
        Of its own operands: uniform values in [-0.5, 0.5), made at first use.
    max_in_flight
        How many calls may overlap; each has operands of its own. Calls in flight together
        are not ordered: give each its own ``out``.

    Raises
    ------
    InvalidOperand
        A size is not positive, or the dtype is not supported.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> with gs.Gemm(gpu, m=64, n=32, k=16) as gemm, gpu.create_stream() as stream:
    ...     out = gemm.execute(stream=stream)
    ...     gemm.wait()
    ...     out.shape, gemm.flop_count
    ((64, 32), 65536)
    """

    _context_type = _GemmContext

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
        max_in_flight: int = 1,
    ) -> None:
        for size_name, size in (("m", m), ("n", n), ("k", k)):
            count(size_name, size, least=1, most=_LIMIT, error=InvalidOperand)
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise InvalidOperand(
                f"dtype {given(dtype)} is not supported; use one of {tuple(DTYPES)}"
            )
        if sm_count_target is not None and not (
            isinstance(sm_count_target, str) and sm_count_target == "auto"
        ):
            if isinstance(sm_count_target, bool) or not isinstance(sm_count_target, int):
                raise InvalidOperand(
                    "sm_count_target is 'auto', None or a positive count, not "
                    f"{given(sm_count_target)}"
                )
            count("sm_count_target", sm_count_target, least=1, most=_LIMIT, error=InvalidOperand)
        seed = count("seed", seed, most=_LIMIT, error=InvalidOperand)
        require_kind("name", name, str, None)
        super().__init__(
            owner, name=name or f"gemm {m}x{n}x{k} {dtype}", max_in_flight=max_in_flight
        )
        self.m, self.n, self.k = m, n, k
        self.dtype = dtype
        self._sm_count_target: SmCountTarget = sm_count_target
        self._seed = seed
        backend = self.device.backend
        self._matmul, self._record = backend.matmul, backend.record
        self._next_correlation = self.device.calls.next_correlation

    @property
    def sm_count_target(self) -> SmCountTarget:
        """SMs that the library tunes for."""
        return self._sm_count_target

    @property
    def flop_count(self) -> int:
        """Floating-point operations of one call: 2 · m · n · k."""
        return 2 * self.m * self.n * self.k

    def operands(self) -> tuple[Any, Any, Any]:
        """Return its own ``(a, b, out)`` of the next call, made at first use."""
        self._refuse_inside("asks for its own handle's operands")
        with self._lock:
            return self._own(self._latest.next)

    def _own(self, context: Context) -> tuple[Any, Any, Any]:
        if context.own is None:
            device, seed = self.device, self._seed
            context.own = (
                device.random((self.m, self.k), self.dtype, seed=seed),
                device.random((self.k, self.n), self.dtype, seed=seed + 1),
                device.empty((self.m, self.n), as_dtype(self.dtype)),
            )
        own: tuple[Any, Any, Any] = context.own
        return own

    def execute(self, a: Any = None, b: Any = None, out: Any = None, *, stream: Any = None) -> Any:
        """Queue one product; returns ``out``, at once if a stream is selected.

        Parameters
        ----------
        a, b, out
            Arrays of shape (m, k), (k, n) and (m, n); its own where none is given. Any may
            be a NumPy array: it is copied to or from the device, and the call returns when
            ``out`` is there. An array's shape is not changed in place between calls.

        Raises
        ------
        InvalidOperand
            An array has another shape or dtype than the handle was made for.
        StreamError
            The stream belongs to another device; or a guard selected one, and this handle
            replays a graph.
        ClosedError
            The handle or the stream is closed.
        """
        selected = get_caller_stream() if stream is None else stream
        if self._inside:
            self._refuse_inside("calls its own handle")
        with self._lock:
            context = self._latest.next
            if (
                not self.device.calls.observers
                and (selected is context.ready or self._moves(context, selected))
                and not selected.closed
                and not selected.capturing
                and (
                    (a is context.a and b is context.b and out is context.out)
                    or self._knows(context, a, b, out)
                )
            ):
                event = context.event
                if context.completion is not None:
                    event = take_event(self.device)
                try:
                    self._matmul(
                        selected, context.plan, context.placed, context.sm_count,
                        self._next_correlation(),
                    )  # fmt: skip
                    self._record(event.raw, selected.raw, 0)
                except BaseException as error:
                    self._fail(context, event, selected, error)
                    raise
                if event is not context.event:
                    context.event, context.completion = event, None
                context.in_flight = True
                self._latest = context
                return context.result
        return self._execute(stream, (a, b, out))

    def _moves(self, context: _GemmContext, stream: Any) -> bool:
        """Take a context that is ready to another stream, which waits for its latest call."""
        if context.ready is NOTHING or type(stream) is not Stream:
            return False
        chosen, _ = self.device.choose_stream(stream)
        if chosen is not stream or not stream.owned or stream.capturing:
            return False
        if context.in_flight:
            self._follow(context, stream)
        context.sm_count = self._sm_count(stream)
        context.ready = context.stream = stream
        stream.hold(context.out, context.a, context.b, *(context.own or ()))
        return True

    def _knows(self, context: _GemmContext, a: Any, b: Any, out: Any) -> bool:
        """Remember other operands in place of the latest, if their like was checked before."""
        kind = self.device.backend.array_type
        if type(out) is not kind or type(a) is not kind or type(b) is not kind:
            return False
        plan = _plans.get(_key(out, a, b))
        if plan is None or plan.copies or not self._fits(plan):
            return False
        context.placed = _place(self.device, plan, out, a, b)
        context.plan = plan
        context.a, context.b, context.out, context.result = a, b, out, out
        context.ready.hold(out, a, b)
        return True

    def _fits(self, plan: MatmulPlan) -> bool:
        return (
            plan.m == self.m and plan.n == self.n and plan.k == self.k and plan.dtype == self.dtype
        )

    def _prepare(self, context: Context, operands: Any) -> Work:
        a, b, out = operands
        if a is None or b is None or out is None:
            own = self._own(context)
            a = own[0] if a is None else a
            b = own[1] if b is None else b
            out = own[2] if out is None else out
        result, given = out, (out, a, b)
        is_ours = isinstance(out, self.device.backend.array_type)  # plans are of all devices
        plan = _plans.get(_key(out, a, b)) if is_ours else None
        uploads: list[tuple[Any, Any]] = []
        downloads: list[tuple[Any, Any, Any]] = []
        if plan is None:
            a = self._staged(context, "a", a, (self.m, self.k), uploads)
            b = self._staged(context, "b", b, (self.k, self.n), uploads)
            out = self._staged_out(context, out, downloads)
            out, a, b, plan = _check(self.device, out, a, b, _key(out, a, b))
        if not self._fits(plan):
            raise InvalidOperand(
                f"this Gemm is {self.m}x{self.n}x{self.k} {self.dtype}, but out, a and b are "
                f"{plan.m}x{plan.n}x{plan.k} {plan.dtype}: make a Gemm for these sizes"
            )
        placed = _place(self.device, plan, out, a, b)
        return Work(
            (plan, placed, out, a, b), result, (out, a, b), uploads, downloads,
            [value for value in given if type(value) is not self.device.backend.array_type],
        )  # fmt: skip

    def _check_capture(self, context: Context, operands: Any) -> None:
        if any(self._is_on_host(value) for value in operands):
            raise StreamError(
                f"an operand of {self.name!r} is in host memory, which a call waits for, and its "
                "stream is being captured: give arrays of the device"
            )
        if context.own is None and any(value is None for value in operands):
            raise StreamError(
                f"{self.name!r} has no operands of its own yet, and a capture cannot make any: "
                "call operands() before it, or give arrays"
            )

    def _is_on_host(self, value: Any) -> bool:
        return isinstance(value, np.ndarray) and not isinstance(
            value, self.device.backend.array_type
        )

    def _staging(self, context: Context, name: str, values: Any, shape: tuple[int, int]) -> Any:
        """Return the context's array on the device for a NumPy operand, after its checks."""
        dtype = as_dtype(self.dtype)
        if values.shape != shape or values.dtype != dtype:
            raise InvalidOperand(
                f"{name} is {values.shape} {values.dtype} in host memory, but this Gemm is "
                f"{self.m}x{self.n}x{self.k} {self.dtype}: {shape} {dtype} is needed"
            )
        if name not in context.staging:
            context.staging[name] = self.device.empty(shape, dtype)
        return context.staging[name]

    def _staged(
        self,
        context: Context,
        name: str,
        value: Any,
        shape: tuple[int, int],
        uploads: list[tuple[Any, Any]],
    ) -> Any:
        if not self._is_on_host(value):
            return value
        array = self._staging(context, name, value, shape)
        uploads.append((array, np.ascontiguousarray(value)))
        return array

    def _staged_out(self, context: Context, out: Any, downloads: list[tuple[Any, Any, Any]]) -> Any:
        if not self._is_on_host(out):
            return out
        array = self._staging(context, "out", out, (self.m, self.n))
        if not out.flags.writeable:
            raise InvalidOperand("out is a read-only NumPy array: give one that can be written")
        values = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
        downloads.append((out, values, array))
        return array

    def _sm_count(self, stream: Stream) -> int:
        target = self._sm_count_target
        return stream.sm_count_target if target == "auto" else target or 0

    def _launch(self, stream: Stream, operands: Any) -> None:
        plan, placed, *arrays = operands
        _product(self.device, stream, plan, placed, arrays, self._sm_count(stream))

    def _remember(self, context: Context, given: Any, work: Work, stream: Stream) -> None:
        plan, placed, out, a, b = work.operands
        kind = self.device.backend.array_type
        if plan.copies or type(out) is not kind or type(a) is not kind or type(b) is not kind:
            return
        assert isinstance(context, _GemmContext)  # noqa: S101 - it was made as one
        context.a, context.b, context.out = given
        context.plan, context.placed, context.result = plan, placed, work.result
        context.sm_count = self._sm_count(stream)
        context.ready = stream
