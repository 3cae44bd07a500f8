"""Collectives: work that the GPUs of all ranks do together."""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import ClassVar, NoReturn, TypeAlias, cast

import numpy as np

from gpuscope._checks import count, door, given
from gpuscope._optional import require
from gpuscope._types import Array, Untyped
from gpuscope.device.api import Kernel, KernelModel, NativeArray
from gpuscope.device.calls import CallFacts
from gpuscope.device.device import Device, device_for
from gpuscope.device.dtypes import ElementType, element_type
from gpuscope.device.handles import AnyStream
from gpuscope.device.partition import Partition
from gpuscope.device.ranks import Joint, Ranks, ranks_of_process
from gpuscope.device.scratch import WorkloadContext
from gpuscope.device.stream import Stream
from gpuscope.errors import CapabilityError, InvalidOperand, MissingDependency
from gpuscope.trace.facts import CollectiveFacts, CollectiveKind
from gpuscope.workloads.context import Context, Passed
from gpuscope.workloads.declared import Declared
from gpuscope.workloads.function import FunctionHandle
from gpuscope.workloads.torch_module import INSTALL, require_torch

_NCCL_TYPES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}
_NCCL_NAMES: dict[CollectiveKind, str] = {
    "all_reduce": "AllReduce_Sum_{}_RING_LL",
    "all_gather": "AllGather_RING_LL",
    "reduce_scatter": "ReduceScatter_Sum_{}_RING_LL",
    "all_to_all": "SendRecv",
}
_Launch: TypeAlias = Callable[[WorkloadContext, NativeArray, NativeArray], NativeArray]


class Collective(FunctionHandle[NativeArray]):
    """An all-reduce, all-gather, reduce-scatter or all-to-all, on the streams that it is given.

    Every rank of the program makes the same handles in the same order, and calls them equally
    often. The handle makes a communicator of its own, and calls it once, before it returns.

    On a GPU it is done by ``torch.distributed`` with NCCL, in whose default process group this
    process is, or which torchrun's variables describe. On a simulated GPU, ranks are processes
    that an experiment with several ``devices`` starts.

    ``execute()`` returns the array that it writes, on the device. An all-reduce sums ``x`` in
    place, so that its values grow from call to call; the time it takes does not depend on them.

    Parameters
    ----------
    owner
        The device, or a partition that closes the handle with itself.
    kind
        Which collective.
    nbytes
        The size as nccl-tests states it: bytes of ``x`` of an all-reduce and an all-to-all, and of
        what all ranks' parts fill of an all-gather and a reduce-scatter. Rounded up to elements
        for every rank.
    dtype
        ``"float32"``, ``"float16"``, ``"bfloat16"`` or ``"float64"``.
    name
        For people, timelines and analyses, and of the communicator.
    seed
        Of ``x``; each rank adds its number.
    ranks
        The ranks to be done with, if not those of this process.

    Attributes
    ----------
    x
        The array that it reads, on the device.

    Raises
    ------
    CapabilityError
        This process is the only rank, or has none; or the device has no ranks.
    MissingDependency
        PyTorch is missing, has no NCCL, or is older than 2.8.
    InvalidOperand
        The kind is unknown, or ``nbytes`` is not positive.

    Examples
    --------
    >>> import gpuscope as gs
    >>> run = gs.run({
    ...     "name": "two ranks", "devices": ["sim:h200", "sim:h200"], "alone_repeats": 0,
    ...     "partitions": {"comm": 16}, "streams": {"comm": {"partition": "comm"}},
    ...     "workloads": {
    ...         "reduce": {"kind": "all_reduce", "nbytes": "1 MiB", "stream": "comm", "repeats": 2},
    ...     },
    ... })
    >>> [(one.group, one.n) for one in gs.analysis.collectives(run["default"]).groups]
    [('reduce', 2)]
    """

    @door("owner", "name", "seed", "ranks")
    def __init__(
        self,
        owner: Device | Partition,
        kind: CollectiveKind = "all_reduce",
        *,
        nbytes: int,
        dtype: object = "float32",
        name: str | None = None,
        seed: int = 0,
        ranks: Ranks | None = None,
    ) -> None:
        if not isinstance(kind, str) or kind not in _NCCL_NAMES:
            kinds = ", ".join(map(repr, _NCCL_NAMES))
            raise InvalidOperand(f"kind is {given(kind)}; {kinds} are known")
        nbytes = count("nbytes", nbytes, least=1, most=2**40, error=InvalidOperand)
        device = device_for(owner)
        ranks = ranks or ranks_of_process()
        if ranks is None or ranks.world_size < 2:
            lacking = "this program has no ranks" if ranks is None else "it has one"
            raise CapabilityError(
                f"{kind} needs two ranks or more, each with a GPU, and {lacking}: name the GPUs in "
                "the experiment, as in devices = ['cuda:0', 'cuda:1'] (or ['sim:h200', 'sim:h200']"
                "), or start the program with torchrun"
            )
        self.ranks = ranks
        self.kind: CollectiveKind = kind
        element, world_size = element_type(dtype), ranks.world_size
        part = -(-nbytes // (element.itemsize * world_size))
        self.nbytes = part * world_size * element.itemsize
        self.sequence = 0
        self.group = ranks.new_group(name or kind)
        """Name of the communicator."""
        brought = part if kind == "all_gather" else part * world_size
        left = part if kind == "reduce_scatter" else part * world_size
        self.x = device.random(brought, element.name, seed=seed + ranks.rank)
        out = self.x if kind == "all_reduce" else device.empty(left, element.name)
        self._kernel: Kernel | None = None
        self._communicator: _Communicator | None = None
        if device.is_simulated:
            launch = self._simulated(device, element)
        elif device.info.kind == "cuda":
            self._communicator = _Communicator(device, kind, out, self.x, element)
            launch = self._communicator.launch
        else:
            raise CapabilityError(f"{device.info.key} has no ranks: use GPUs, or simulated ones")
        super().__init__(
            owner, launch, name=name or kind, arguments={"out": out, "x": self.x},
            accesses=Declared(("x",), ("out",)),
        )  # fmt: skip
        if self._communicator is not None:
            self._communicator.make()

    @property
    def facts(self) -> CollectiveFacts:
        """Which collective the next call is."""
        return CollectiveFacts(
            self.kind, self.sequence, self.group, self.ranks.world_size, self.nbytes
        )

    def _facts(self) -> CallFacts:
        return {"payload": self.facts.to_json(), "nbytes": self.nbytes}

    def _launch(self, stream: Stream, operands: Passed) -> None:
        super()._launch(stream, operands)
        self.sequence += 1

    # -- a simulated GPU --------------------------------------------------------------
    def _simulated(self, device: Device, element: ElementType) -> _Launch:
        """Return what launches it on a simulated GPU; puts the ranks' clocks on one time."""
        kind, nbytes, ranks, group = self.kind, self.nbytes, self.ranks, self.group
        if ranks.meeting is None:
            raise CapabilityError(
                "simulated GPUs of several processes meet only where gpuscope started these: name "
                "them in an experiment, as in devices = ['sim:h200', 'sim:h200']"
            )
        world_size = ranks.world_size
        bus_bytes = self.facts.bus_bytes
        words = f"{kind} of {nbytes:,} bytes of {element.name}"
        name = _NCCL_NAMES[kind].format(_NCCL_TYPES[element.name])
        model = KernelModel(
            lambda profile, _grid, _args, sm_count: profile.collective_cost(
                kind, bus_bytes, world_size, sm_count
            ),
            reads=lambda args: [args[1]],
            writes=lambda args: args[0],
            compute=functools.partial(_left, kind, world_size, element),
            joint=lambda args: Joint(ranks, (group, args[2]), words),
        )
        self._kernel = device.compile("", f"ncclDevKernel_{name}", model=model)
        times_ns = ranks.meeting.gather(f"group {group!r}", ranks.rank, device.now_ns())
        device.backend.wait_until_ns(max(cast("list[int]", times_ns)))
        return self._launch_simulated

    def _launch_simulated(
        self, ctx: WorkloadContext, out: NativeArray, x: NativeArray
    ) -> NativeArray:
        assert self._kernel is not None  # noqa: S101 - made before this is called
        ctx.stream.launch(self._kernel, out, x, self.sequence, grid=1, block=512)
        return out

    # -- what cannot be ---------------------------------------------------------------
    def use_graph(self) -> None:
        """Refuse: a graph's launches would not be numbered.

        Raises
        ------
        CapabilityError
            Always.
        """
        _refuse_graph(self.name)

    def _check_capture(self, context: Context, operands: Passed) -> None:
        del context, operands
        _refuse_graph(self.name)

    def execute(self, *, stream: AnyStream = None) -> NativeArray:  # type: ignore[override]
        """Queue the collective on the chosen stream; returns the array that it writes."""
        return super().execute(stream=stream)

    def _finish_collected(self) -> None:
        self._communicator = None  # ranks collect at different times: it stays until they end
        super()._finish_collected()

    def _finish_closing(self) -> None:
        super()._finish_closing()
        if self._communicator is not None:
            self._communicator.close()


def _refuse_graph(name: str) -> NoReturn:
    raise CapabilityError(
        f"{name!r} is a collective, which no graph takes: its calls are numbered, so that those of "
        "all ranks can be told to be one. Launch it beside the graph"
    )


def _left(
    kind: CollectiveKind, world_size: int, element: ElementType, rank: int, *values: Array
) -> Array:
    """Return what a collective leaves on a rank of what all ranks brought."""
    if kind == "all_gather":
        return np.concatenate(values)
    part = values[0].size // world_size
    parts = [value[rank * part : (rank + 1) * part] for value in values]
    if kind == "all_to_all":
        return np.concatenate(parts)
    operands = parts if kind == "reduce_scatter" else values
    summed = [value.astype(element.accumulator) for value in operands]
    total: Array = functools.reduce(np.add, summed)
    return total.astype(element.numpy)


class _Communicator:
    """A communicator of NCCL, by ``torch.distributed``, and one collective in it."""

    has_failed: ClassVar[bool] = False
    """Whether an exception left some undestroyed: then all are."""

    def __init__(
        self,
        device: Device,
        kind: CollectiveKind,
        out: NativeArray,
        x: NativeArray,
        element: ElementType,
    ) -> None:
        self._torch = _torch()
        self._gpu = device.info.index
        with self._torch.cuda.device(self._gpu):
            self._out, self._x = (self._tensor(array, element) for array in (out, x))
        self._kind = kind
        self._group: Untyped = None

    def _tensor(self, array: NativeArray, element: ElementType) -> Untyped:
        """Return an array as PyTorch's; by its bytes, as DLPack does not know all types."""
        as_bytes = self._torch.from_dlpack(cast("Untyped", array).view(np.uint8))
        return as_bytes.view(getattr(self._torch, element.name))

    def make(self) -> None:
        """Make the communicator, by a first call: NCCL connects the ranks then."""
        torch, distributed = self._torch, self._torch.distributed
        with torch.cuda.device(self._gpu):
            if not distributed.is_initialized():
                os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
                distributed.init_process_group("nccl")
                atexit.register(_leave, distributed)
            self._group = distributed.new_group(backend="nccl")
            self._collective(self._out.clone(), self._x.clone())
            torch.cuda.synchronize()

    def launch(self, ctx: WorkloadContext, out: NativeArray, x: NativeArray) -> NativeArray:
        """Queue the collective on PyTorch's current stream."""
        del ctx, x
        self._collective(self._out, self._x)
        return out

    def _collective(self, out: Untyped, x: Untyped) -> None:
        distributed, group = self._torch.distributed, self._group
        match self._kind:
            case "all_reduce":
                distributed.all_reduce(out, group=group)
            case "all_gather":
                distributed.all_gather_into_tensor(out, x, group=group)
            case "reduce_scatter":
                distributed.reduce_scatter_tensor(out, x, group=group)
            case "all_to_all":
                distributed.all_to_all_single(out, x, group=group)

    def close(self) -> None:
        """Destroy the communicator, which waits for the other ranks to do so.

        Where an exception ends this rank, the others do not come: it stays until the process ends.
        """
        group, self._group, distributed = self._group, None, self._torch.distributed
        if group is not None and distributed.is_initialized() and not self.rank_failed():
            distributed.destroy_process_group(group)

    @classmethod
    def rank_failed(cls) -> bool:
        """Whether an exception ends this rank now, has ended the program, or did at a close."""
        cls.has_failed |= (sys.exc_info()[1] or getattr(sys, "last_value", None)) is not None
        return cls.has_failed


def _leave(distributed: Untyped) -> None:
    """Destroy all communicators at the interpreter's end, unless this rank failed."""
    if distributed.is_initialized() and not _Communicator.rank_failed():
        distributed.destroy_process_group()


def _torch() -> ModuleType:
    feature = "a collective on GPUs"
    torch = require_torch(feature)
    require("torch.distributed", feature=feature, package="torch", install=INSTALL)
    if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        raise MissingDependency(f"{feature} needs PyTorch with NCCL: run {INSTALL}")
    return torch
