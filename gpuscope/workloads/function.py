"""User functions as handles: ``@gs.workloads.workload``."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, cast, overload

from gpuscope import _interrupts
from gpuscope._checks import MappingOf, SeveralOf, door, require_kind
from gpuscope.device import caller, handles
from gpuscope.device.accesses import inside
from gpuscope.device.api import Activity, NativeArray
from gpuscope.device.arena import Arena
from gpuscope.device.caller import CallerStreamGuard
from gpuscope.device.calls import CallFacts
from gpuscope.device.device import Device, device_for
from gpuscope.device.handles import AnyStream
from gpuscope.device.partition import Partition
from gpuscope.device.registry import borrowing
from gpuscope.device.scratch import WorkloadContext
from gpuscope.device.stream import Stream, holding_arrays
from gpuscope.errors import InvalidOperand
from gpuscope.workloads.context import CallWork, Context, Passed, stated_facts
from gpuscope.workloads.declared import Declared, check_declared, check_function, name_of
from gpuscope.workloads.handle import Handle

_R = TypeVar("_R")


class Workload(Generic[_R]):
    """A function as a workload, made by :func:`workload`: calling it makes a handle.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gs.workloads.workload(flop_count=64)(lambda ctx: ctx.stream.name)
    workload(<lambda>)
    """

    def __init__(
        self, function: Callable[..., _R], stated: CallFacts, accesses: Declared | None = None
    ) -> None:
        check_function(function)
        self.function = function
        self.stated = stated
        check_declared(accesses, function)
        self.accesses = accesses
        functools.update_wrapper(self, function)

    def __call__(
        self,
        owner: Device | Partition,
        *,
        name: str | None = None,
        max_in_flight: int = 1,
        flop_count: int | None = None,
        nbytes: int | None = None,
        arguments: Mapping[str, object] | None = None,
    ) -> FunctionHandle[_R]:
        """Make a handle.

        Parameters
        ----------
        owner
            The device to run on; or a partition, which closes the handle with itself.
        name
            For people, timelines and analyses; the function's, if not given.
        max_in_flight
            How many calls may overlap.
        flop_count, nbytes
            Floating-point operations of one call, and bytes that it reads and writes, where the
            decorator's do not fit.
        arguments
            Keyword arguments of every call, unless ``execute()`` names them.

        Raises
        ------
        InvalidOperand
            ``owner`` is neither a device nor a partition, or the function does not take
            such arguments.
        """
        handle = FunctionHandle(
            owner, self.function, name=name, max_in_flight=max_in_flight,
            flop_count=flop_count, nbytes=nbytes, arguments=arguments, accesses=self.accesses,
        )  # fmt: skip
        handle.stated = {**self.stated, **handle.stated}
        return handle

    def __repr__(self) -> str:
        return f"workload({name_of(self.function)})"


@overload
def workload(function: Callable[..., _R], /) -> Workload[_R]: ...


@overload
def workload(
    *,
    flop_count: int | None = None,
    nbytes: int | None = None,
    reads: Sequence[str] | None = None,
    writes: Sequence[str] | None = None,
) -> Callable[[Callable[..., _R]], Workload[_R]]: ...


def workload(
    function: Callable[..., _R] | None = None,
    /,
    *,
    flop_count: int | None = None,
    nbytes: int | None = None,
    reads: Sequence[str] | None = None,
    writes: Sequence[str] | None = None,
) -> Workload[_R] | Callable[[Callable[..., _R]], Workload[_R]]:
    """Turn a function into a workload: calling the result with a device returns a handle.

    Parameters
    ----------
    function
        ``function(ctx, *args, **kwargs)``, where ``ctx`` is a
        :class:`~gpuscope.device.scratch.WorkloadContext`: it launches on ``ctx.stream`` and
        allocates with ``ctx.scratch(nbytes)``. It may use CuPy, PyTorch, its own kernels or other
        handles. If it waits for the GPU, so does the handle.
    flop_count, nbytes
        Floating-point operations of one call, and bytes that it reads and writes: then its rate
        is known in TFLOP/s and GB/s, too. Used as ``@workload(flop_count=…)``.
    reads, writes
        Names of the parameters whose arrays its work reads and writes, for
        ``profile(hazards=True)``. Without either, what it launches by CuPy or its own kernels
        counts as unseen. A simulated GPU uses neither: there the models of the kernels tell.

    Raises
    ------
    TypeError
        It is not a function, is asynchronous or a generator, takes no context, or has an argument
        called ``stream``, which belongs to ``execute()``.
    InvalidOperand
        ``reads`` or ``writes`` names what is no parameter.

    Notes
    -----
    During the call, ``ctx.stream`` is the caller stream, the thread's current stream, and the
    current stream of CuPy and PyTorch if they are imported. Afterwards the previous streams are
    restored, also after an error.

    Examples
    --------
    >>> import gpuscope as gs
    >>> @gs.workloads.workload
    ... def product(ctx, a, b):
    ...     out = ctx.device.empty((a.shape[0], b.shape[1]), a.dtype)
    ...     return gs.mm_out(out, a, b)
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> a, b = gpu.random((4, 8)), gpu.random((8, 2))
    >>> with product(gpu) as handle, gpu.create_stream() as stream:
    ...     handle.execute(a, b, stream=stream).shape
    (4, 2)
    """
    stated = stated_facts(flop_count, nbytes)
    declared = None
    if reads is not None or writes is not None:
        require_kind("reads", reads, SeveralOf(str), None)
        require_kind("writes", writes, SeveralOf(str), None)
        declared = Declared(tuple(reads or ()), tuple(writes or ()))
    if function is None:
        return lambda decorated: Workload(decorated, stated, declared)
    return Workload(function, stated, declared)


@dataclass(slots=True)
class _Invocation:
    """One ``execute()``: what the function is given, and what it returned."""

    arguments: tuple[object, ...]
    keywords: dict[str, object]
    result: object = None


class FunctionHandle(Handle, Generic[_R]):
    """A user's function as a reusable handle, created by calling what :func:`workload` returns.

    Notes
    -----
    The handle keeps the scratch of a call for the next call on the same stream, so a repeated
    call allocates no new memory. Before a call on a stream under capture, run it once there with
    the same sizes. A graph keeps the scratch captured in it: launch it on the same stream, or
    once the run before the capture is done.
    """

    @door("function", "accesses", "name", arguments=(MappingOf(object), None))
    def __init__(
        self,
        owner: Device | Partition,
        function: Callable[..., _R],
        *,
        name: str | None = None,
        max_in_flight: int = 1,
        flop_count: int | None = None,
        nbytes: int | None = None,
        arguments: Mapping[str, object] | None = None,
        accesses: Declared | None = None,
    ) -> None:
        if not isinstance(owner, Device | Partition):
            raise InvalidOperand(
                f"a workload is made for a device or a partition, not {type(owner).__name__}: "
                f"{name_of(function)}(gpu) makes the handle, handle.execute(…) calls it"
            )
        stated = stated_facts(flop_count, nbytes)
        self._function = function
        self._function_name = name_of(function)
        self._accesses = accesses
        self._arguments = dict(arguments or {})
        try:
            inspect.signature(function).bind_partial(None, **self._arguments)
        except (TypeError, ValueError) as error:  # of a class, it may tell no parameters
            raise InvalidOperand(f"arguments of {self._function_name}: {error}") from error
        device = device_for(owner)
        self._arena = Arena(device)
        super().__init__(owner, name=name or self._function_name, max_in_flight=max_in_flight)
        self.stated = stated

    @property
    def flop_count(self) -> int | None:
        """Floating-point operations of one call, where they are stated."""
        return self.stated.get("flop_count")

    def execute(self, *args: object, stream: AnyStream = None, **kwargs: object) -> _R:
        """Call the function on the chosen stream; returns what it returns.

        Raises
        ------
        StreamError
            The function calls its own handle.
        """
        call = _Invocation(args, {**self._arguments, **kwargs})
        self._execute(stream, call)
        return cast("_R", call.result)

    def _prepare(self, context: Context, operands: Passed) -> CallWork:
        del context
        call = cast("_Invocation", operands)
        keep = (*call.arguments, *call.keywords.values())
        return CallWork(call, keep=cast("tuple[NativeArray, ...]", keep))

    def _launch(self, stream: Stream, operands: Passed) -> None:
        call = cast("_Invocation", operands)
        device = self.device
        with device.backend.current():
            bound = handles.bind(stream)
            contexts = borrowing.open
            currents = caller.current_streams()
            current = currents.get(device.identity)
            # A bound guard refuses to be left when the function left another stream current
            # in CuPy or PyTorch; here theirs are restored whatever it did.
            try:
                currents[device.identity] = stream
                with (
                    CallerStreamGuard(stream),
                    WorkloadContext(device, stream, self._arena) as context,
                    self._seen(stream, call),
                    holding_arrays(stream),
                ):
                    call.result = _interrupts.let_in(
                        self._function, context, *call.arguments, **call.keywords
                    )
            finally:
                borrowing.open = contexts
                if current is None:
                    currents.pop(device.identity, None)
                else:
                    currents[device.identity] = current
                handles.unbind(bound)
                stream.hold(*inside((call.arguments, call.keywords)))

    @contextlib.contextmanager
    def _seen(self, stream: Stream, operands: _Invocation) -> Iterator[None]:
        """Show work that no launch of ours tells of as one launch, named after the function.

        On a GPU, CuPy or PyTorch may have done it, on the CPU NumPy; a simulated GPU runs
        nothing that we do not launch.
        """
        device = self.device
        if not device.calls.observers or device.is_simulated or stream.capturing:
            yield
            return
        facts: CallFacts = {**self.stated}
        if self._accesses is not None and device.calls.watchers:
            inputs = operands.arguments, operands.keywords
            facts["accesses"] = self._accesses.of(self._function, *inputs)
        call = device.calls.begin("launch", self._function_name, stream, stream, **facts)
        before = device.calls.launch_around(call)
        try:
            yield
        finally:
            device.calls.launch_around(before)
            if device.info.kind == "cpu" and not call.superseded:
                start_ns, end_ns = call.start_ns, device.now_ns()
                device.calls.report(
                    Activity("kernel", call.name, call.correlation, start_ns, start_ns, end_ns)
                )
            device.calls.end(call)

    def _replay(self, context: Context, work: CallWork, stream: Stream) -> bool:
        replayed = super()._replay(context, work, stream)
        if replayed:
            cast("_Invocation", work.operands).result = context.arrays
        return replayed

    def _capture(self, context: Context, work: CallWork, stream: Stream) -> None:
        call = cast("_Invocation", work.operands)
        ran = call.result
        super()._capture(context, work, stream)
        # What the captured call returned is what a replay computes; this call's is not.
        context.arrays, call.result = call.result, ran

    def close(self) -> None:
        """Wait for what is in flight and give scratch back. Idempotent."""
        super().close()
        self._arena.close()
