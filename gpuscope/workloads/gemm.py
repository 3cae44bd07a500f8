"""The reusable matrix product ``Gemm``: prepared once, and launched again by a quick way."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeGuard, cast

import numpy as np
from numpy.typing import DTypeLike

from gpuscope import _interrupts
from gpuscope._checks import count, require_kind
from gpuscope._types import Array, Untyped
from gpuscope.device.accesses import Accessing
from gpuscope.device.api import NativeArray
from gpuscope.device.arrays import as_dtype
from gpuscope.device.caller import get_caller_stream
from gpuscope.device.device import Device
from gpuscope.device.dtypes import element_type
from gpuscope.device.event import take_event
from gpuscope.device.handles import AnyStream
from gpuscope.device.matmul import MatmulPlan
from gpuscope.device.partition import Partition
from gpuscope.device.stream import Stream
from gpuscope.errors import InvalidOperand, StreamError
from gpuscope.workloads.context import NOTHING, CallWork, Context, Passed
from gpuscope.workloads.handle import Handle
from gpuscope.workloads.product import (
    LARGEST,
    PLANS,
    Addresses,
    Operands,
    Placed,
    PlacedOperands,
    check,
    key_of,
    of_product,
    place,
    queue_product,
)

SmCountTarget = Literal["auto"] | int | None


@dataclass(slots=True, eq=False)
class _GemmContext(Context):
    """A context that remembers the latest operands, as they were given, and what they mean.

    It keeps them alive until its next call; only arrays of the device's own type, whose
    memory never moves, are remembered.
    """

    a: object = NOTHING
    b: object = NOTHING
    out: object = NOTHING
    plan: MatmulPlan | None = None
    placed: PlacedOperands = None
    addresses: Addresses = (0, 0, 0)
    result: object = None
    sm_count: int = 0
    launch: tuple[str, int, int] = ("", 0, 0)
    """Name, floating-point operations and bytes of the plan's launch."""
    accesses: tuple[Accessing, ...] | None = None
    """What that reads and writes, once a watcher asked."""

    def take_plan(self, plan: MatmulPlan, placed: Placed) -> None:
        """Launch ``plan`` with these operands from now on."""
        self.plan, self.accesses = plan, None
        self.addresses, self.placed = placed
        self.launch = plan.name, plan.flop_count, plan.nbytes

    def forget(self) -> None:
        """Let go of the operands too."""
        Context.forget(self)  # dataclass made this class anew: no bare super()
        self.a = self.b = self.out = NOTHING
        self.plan = self.placed = self.result = self.accesses = None


_Given: TypeAlias = tuple[NativeArray | None, NativeArray | None, NativeArray | None]
"""What is given as a, b and out; ``None``: the handle's own."""
Checked: TypeAlias = tuple[MatmulPlan, Placed, NativeArray, NativeArray, NativeArray]
"""A product's plan, its placed operands, and the arrays out, a and b."""


class Gemm(Handle):
    """A prepared matrix product: ``out[m, n] = a[m, k] @ b[k, n]``.

    Parameters
    ----------
    owner
        The device, or a partition that closes the handle with itself.
    m, n, k
        Sizes in elements.
    dtype
        ``"float16"``, ``"bfloat16"``, ``"float32"`` or ``"float64"``, or that type of NumPy's,
        CuPy's, PyTorch's or of ml_dtypes.
    name
        For people, timelines and analyses; it says the sizes if not given.
    sm_count_target
        SMs that the library tunes for: ``"auto"``, those of the stream's partition;
        a number; or ``None``, not told. Traces hold it in the payload of a call's row, but for
        ``"auto"``.
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
    _usual_name = "gemm {m}x{n}x{k} {dtype}"

    def __init__(
        self,
        owner: Device | Partition,
        *,
        m: int,
        n: int,
        k: int,
        dtype: DTypeLike = "float16",
        sm_count_target: SmCountTarget = "auto",
        name: str | None = None,
        seed: int = 0,
        max_in_flight: int = 1,
    ) -> None:
        for size_name, size in (("m", m), ("n", n), ("k", k)):
            count(size_name, size, least=1, most=LARGEST, error=InvalidOperand)
        if sm_count_target is not None and not (
            isinstance(sm_count_target, str) and sm_count_target == "auto"
        ):
            what = "sm_count_target, if not 'auto' or None,"
            sm_count_target = count(
                what, sm_count_target, least=1, most=LARGEST, error=InvalidOperand
            )
        self._seed = count("seed", seed, most=LARGEST, error=InvalidOperand)
        require_kind("name", name, str, None)
        self.dtype = element_type(dtype).name
        name = name or self._usual_name.format(m=m, n=n, k=k, dtype=self.dtype)
        super().__init__(owner, name=name, max_in_flight=max_in_flight)
        self.m, self.n, self.k = m, n, k
        self._sm_count_target: SmCountTarget = sm_count_target
        backend = self.device.backend
        self._matmul, self._record = backend.matmul, backend.record
        self._calls = self.device.calls
        self._next_correlation = self.device.calls.next_correlation
        self._noted_at_once = type(self)._launch is Gemm._launch  # others may tell more
        self._told_usually = sm_count_target == "auto"
        if not self._told_usually:
            self.stated["payload"] = json.dumps({"sm_count_target": sm_count_target})

    @property
    def sm_count_target(self) -> SmCountTarget:
        """SMs that the library tunes for."""
        return self._sm_count_target

    @property
    def flop_count(self) -> int:
        """Floating-point operations of one call: 2 · m · n · k."""
        return 2 * self.m * self.n * self.k

    def operands(self) -> Operands:
        """Return the handle's own ``(a, b, out)`` for the next call, created at first use."""
        self._refuse_inside("asks for its own handle's operands")
        with self._lock:
            return self._own(self._latest.next)

    def _own(self, context: Context) -> Operands:
        if context.arrays is None:
            device, seed = self.device, self._seed
            context.arrays = (
                device.random((self.m, self.k), self.dtype, seed=seed),
                device.random((self.k, self.n), self.dtype, seed=seed + 1),
                device.empty((self.m, self.n), as_dtype(self.dtype)),
            )
        return cast("Operands", context.arrays)

    def execute(
        self,
        a: NativeArray | None = None,
        b: NativeArray | None = None,
        out: NativeArray | None = None,
        *,
        stream: AnyStream = None,
    ) -> NativeArray:
        """Queue one product; returns ``out``, at once if a stream is selected.

        Parameters
        ----------
        a, b, out
            Arrays of shape (m, k), (k, n) and (m, n). Default: the handle's own. Any may be a
            NumPy array: it is copied to or from the device, and the call returns when ``out`` is
            complete. Do not change an array's shape in place between calls.

        Raises
        ------
        InvalidOperand
            An array's shape or dtype is not that of the handle.
        StreamError
            The stream belongs to another device; or a guard selected a stream, and this handle
            replays a graph.
        ClosedError
            The handle or the stream is closed.
        """
        if _interrupts.pending:
            _interrupts.deliver()
        selected: Untyped = get_caller_stream() if stream is None else stream
        if self._inside:
            self._refuse_inside("calls its own handle")
        with self._lock:
            # Where its ``ready`` says so, its event and its plan are there.
            context: Untyped = self._latest.next
            calls = self._calls
            recorders = calls.recorders if self._noted_at_once and self._told_usually else ()
            if (
                (recorders or not calls.observers)
                and (selected is context.ready or self._moves(context, selected))
                and not selected.closed
                and not selected.capturing
                and (
                    (a is context.a and b is context.b and out is context.out)
                    or self._knows(context, selected, a, b, out)
                )
            ):
                event = context.event if context.completion is None else take_event(self.device)
                call, behind = None, event
                if recorders:
                    behind = None  # what is told of is recorded by itself
                    accesses = context.accesses
                    if calls.watchers and accesses is None:
                        accesses = context.accesses = of_product(context.plan, context.addresses)
                    call = calls.begin_execution(
                        self.name, context.launch, selected, event, accesses
                    )
                number = self._next_correlation() if call is None else call.correlation
                try:
                    self._matmul(
                        selected, context.plan, context.placed, context.sm_count, number, behind
                    )
                    if call is not None:
                        calls.end(call)
                        event.correlation = self._next_correlation()
                        self._record(event.raw, selected.raw, event.correlation)
                except BaseException as error:
                    if call is not None and call.end_ns is None:
                        call.event = None  # nothing was recorded in it
                        calls.end(call)
                    self._fail(context, event, selected, error)
                    raise
                if event is not context.event:
                    context.event, context.completion, context.waits = event, None, 0
                context.call, context.in_flight = call, number
                self._latest = context
                result: NativeArray = context.result
                return result
        return cast("NativeArray", self._execute(stream, (a, b, out)))

    def _moves(self, context: _GemmContext, stream: object) -> bool:
        """Take a context that is ready to another stream, which waits for its latest call."""
        if context.ready is NOTHING or type(stream) is not Stream:
            return False
        chosen, _ = self.device.choose_stream(stream)
        if chosen is not stream or not stream.owned or stream.capturing:
            return False
        if context.in_flight:
            context.let_follow(stream)
        context.sm_count = self._sm_count(stream)
        context.ready = context.stream = stream
        stream.hold(context.out, context.a, context.b, *cast("Operands", context.arrays or ()))
        return True

    def _knows(
        self,
        context: _GemmContext,
        stream: Stream,
        a: NativeArray | None,
        b: NativeArray | None,
        out: NativeArray | None,
    ) -> bool:
        """Remember other operands in place of the latest, if their like was checked before."""
        if not type(out) is type(a) is type(b) is self.device.backend.array_type:
            return False
        assert out is not None and a is not None and b is not None  # noqa: S101, PT018 - arrays
        plan = PLANS.get(key_of(out, a, b))
        if plan is None or plan.copies or not self._fits(plan):
            return False
        context.take_plan(plan, place(self.device, plan, out, a, b))
        context.a, context.b, context.out, context.result = a, b, out, out
        stream.hold(out, a, b)
        return True

    def _fits(self, plan: MatmulPlan) -> bool:
        return (plan.m, plan.n, plan.k, plan.dtype) == (self.m, self.n, self.k, self.dtype)

    def _prepare(self, context: Context, operands: Passed) -> CallWork:
        passed = cast("_Given", operands)
        a, b, out = passed
        if a is None or b is None or out is None:
            a, b, out = (
                usual if value is None else value
                for value, usual in zip(passed, self._own(context), strict=True)
            )
        kind = self.device.backend.array_type
        plan = PLANS.get(key_of(out, a, b)) if isinstance(out, kind) else None  # of all devices
        work = CallWork(
            None, out, follows=[operand for operand in (out, a, b) if type(operand) is not kind]
        )
        if plan is None:
            named = (("a", a), ("b", b), ("out", out))
            a, b, out = (self._staged(context, name, value, work) for name, value in named)
            (out, a, b), plan = check(self.device, out, a, b, key_of(out, a, b))
        if not self._fits(plan):
            raise InvalidOperand(
                f"this Gemm is {self.m}x{self.n}x{self.k} {self.dtype}, but out, a and b are "
                f"{plan.m}x{plan.n}x{plan.k} {plan.dtype}: make a Gemm for these sizes"
            )
        work.operands = (plan, place(self.device, plan, out, a, b), out, a, b)
        work.keep = (out, a, b)
        return work

    def _check_capture(self, context: Context, operands: Passed) -> None:
        passed = cast("_Given", operands)
        if any(self._is_on_host(value) for value in passed):
            raise StreamError(
                f"an operand of {self.name!r} is in host memory, which a call waits for, and its "
                "stream is being captured: give arrays of the device"
            )
        if context.arrays is None and any(value is None for value in passed):
            raise StreamError(
                f"{self.name!r} has no operands of its own yet, and a capture cannot make any: "
                "call operands() before it, or give arrays"
            )

    def _is_on_host(self, value: object) -> TypeGuard[Array]:
        kind = self.device.backend.array_type
        return isinstance(value, np.ndarray) and not isinstance(value, kind)

    def _staged(
        self, context: Context, name: str, value: NativeArray, work: CallWork
    ) -> NativeArray:
        """Return the context's array on the device for a NumPy operand, and note its copy."""
        if not self._is_on_host(value):
            return value
        shape = {"a": (self.m, self.k), "b": (self.k, self.n), "out": (self.m, self.n)}[name]
        dtype = as_dtype(self.dtype)
        if value.shape != shape or value.dtype != dtype:
            raise InvalidOperand(
                f"{name} is {value.shape} {value.dtype} in host memory, but this Gemm is "
                f"{self.m}x{self.n}x{self.k} {self.dtype}: {shape} {dtype} is needed"
            )
        if name not in context.staging:
            context.staging[name] = self.device.empty(shape, dtype)
        array = context.staging[name]
        if name != "out":
            work.uploads.append((array, np.ascontiguousarray(value)))
            return array
        if not value.flags.writeable:
            raise InvalidOperand("out is a read-only NumPy array: give one that can be written")
        buffer = value if value.flags.c_contiguous else np.empty(shape, dtype)
        work.downloads.append((value, buffer, array))
        return array

    def _sm_count(self, stream: Stream) -> int:
        target = self._sm_count_target
        return stream.sm_count_target if target == "auto" else target or 0

    def _launch(self, stream: Stream, operands: Passed) -> None:
        plan, placed, out, a, b = cast("Checked", operands)
        queue_product(stream, plan, placed, (out, a, b), self._sm_count(stream))

    def _remember(self, context: Context, given: Passed, work: CallWork, stream: Stream) -> None:
        plan, placed, out, a, b = cast("Checked", work.operands)
        backend = self.device.backend
        if plan.copies or not type(out) is type(a) is type(b) is backend.array_type:
            return
        if not self._noted_at_once and self._matmul == backend.matmul:
            return  # only its own _launch knows what to launch
        assert isinstance(context, _GemmContext)  # noqa: S101 - it was made as one
        context.a, context.b, context.out = cast("_Given", given)
        context.result = work.result
        context.take_plan(plan, placed)
        context.sm_count = self._sm_count(stream)
        context.ready = stream
