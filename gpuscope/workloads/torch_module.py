"""PyTorch modules as workloads."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TypeVar, cast

from gpuscope import _optional
from gpuscope._checks import door, given
from gpuscope.device.accesses import inside
from gpuscope.device.caller import get_caller_stream
from gpuscope.device.device import Device, device_for
from gpuscope.device.handles import AnyStream
from gpuscope.device.partition import Partition
from gpuscope.device.select import device_of
from gpuscope.device.stream import Stream
from gpuscope.errors import CapabilityError, InvalidOperand, MissingDependency, StreamError
from gpuscope.workloads.context import CallWork, Context, Passed
from gpuscope.workloads.function import FunctionHandle

_R = TypeVar("_R")
INSTALL = "pip install torch (https://pytorch.org/get-started has other builds)"


class TorchModule(FunctionHandle[_R]):
    """A PyTorch module with inputs of its own as a reusable handle.

    Parameters
    ----------
    module
        A ``torch.nn.Module`` on the GPU, or any function of PyTorch's tensors. It runs without
        gradients, unless it asks for them by ``torch.enable_grad()``.
    inputs
        What each call passes to it: a tuple or list of positional arguments, a mapping of keyword
        arguments, or one argument. The handle keeps these very tensors: to change what the module
        reads, write into them, in the order of the handle's stream.
    graph
        Capture the module's work into a CUDA graph, and replay that. The first call, and the
        first on another partition, runs the module eagerly, to warm it up, and then captures it
        on its stream; what it allocates meanwhile is in a memory pool of its own. False: each
        call runs the module's Python.
    owner
        The device, or a partition that closes the handle with itself; without it, the GPU that
        holds the inputs, or else the module's parameters.
    name
        For people, timelines and analyses; the module's class, if not given.
    flop_count, nbytes
        Floating-point operations of one call, and bytes that it reads and writes.

    Raises
    ------
    MissingDependency
        PyTorch is missing, or older than 2.8.
    CapabilityError
        The device is simulated, and runs no PyTorch; or it has no graphs.
    InvalidOperand
        ``module`` cannot be called, or no device is known.

    Notes
    -----
    A graph's outputs are static, too: the next call overwrites what ``execute()`` returned. State
    that the module changes in place, such as a KV cache, is the module's: give each handle a
    module of its own. Random numbers cannot be captured: ``eval()`` turns dropout off. Closing the
    handle frees its pool.

    On a simulated or CPU device, ``module`` may be any function; one that launches by gpuscope
    behaves there as on a GPU.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> a, out = gpu.random((64, 64)), gpu.empty((64, 64))
    >>> with gs.TorchModule(lambda x: gs.mm_out(out, x, x), a) as square:
    ...     with gpu.carve({"small": 8}) as parts, parts["small"].create_stream() as stream:
    ...         for _ in range(3):  # the first captures, the others replay
    ...             result = square.execute(stream=stream)
    >>> result is out
    True
    """

    @door("graph", "owner")
    def __init__(
        self,
        module: Callable[..., _R],
        inputs: object = (),
        *,
        graph: bool = True,
        owner: Device | Partition | None = None,
        name: str | None = None,
        flop_count: int | None = None,
        nbytes: int | None = None,
    ) -> None:
        if not callable(module):
            raise InvalidOperand(f"module is {given(module)}; a torch.nn.Module is needed")
        if owner is None:
            owner = _home(module, inputs)
        device = device_for(owner)
        self._torch = _torch_for(device, module)
        if graph and not device.capabilities.graphs:
            raise CapabilityError(
                f"{device.info.key} has no graphs: give graph=False, and each call runs the "
                "module's Python"
            )
        self.inputs = inputs
        self._pool: object = None
        args, keywords = _as_arguments(inputs)
        no_gradients = contextlib.nullcontext if self._torch is None else self._torch.no_grad

        def call(_context: object) -> _R:
            with no_gradients():
                return module(*args, **keywords)

        call.__name__ = getattr(module, "__name__", None) or type(module).__name__
        super().__init__(owner, call, name=name, flop_count=flop_count, nbytes=nbytes)
        if graph:
            self.use_graph()

    def execute(self, *, stream: AnyStream = None) -> _R:  # type: ignore[override]
        """Run the module on the chosen stream; returns what it returns.

        Unlike other handles, one that replays a graph takes its stream from a guard, too: in
        another partition it captures anew.

        Raises
        ------
        StreamError
            The module's work cannot be captured.
        """
        return super().execute(stream=get_caller_stream() if stream is None else stream)

    def _capture(self, context: Context, work: CallWork, stream: Stream) -> None:
        if context.graph is not None:
            context.graph.close()  # before the memory that its work uses goes
        context.arrays = self._pool = None
        try:
            with self._own_memory():
                super()._capture(context, work, stream)
        except Exception as error:
            first = next(iter(str(error).splitlines()), "")
            raise StreamError(
                f"the work of {self.name!r} cannot be captured ({type(error).__name__}: {first}): "
                "let the module neither wait for the GPU nor draw random numbers, or make the "
                "handle with graph=False"
            ) from error

    def _own_memory(self) -> AbstractContextManager[object]:
        """Let what PyTorch allocates on this thread come from a new pool of the handle's."""
        if self._torch is None or self.device.info.kind != "cuda":
            return contextlib.nullcontext()
        cuda = self._torch.cuda
        self._pool = cuda.MemPool()
        manager: AbstractContextManager[object] = cuda.use_mem_pool(
            self._pool, device=self.device.info.index
        )
        return manager

    def _finish_closing(self) -> None:
        super()._finish_closing()
        self._function = cast("Callable[..., _R]", _closed)
        self.inputs = ()
        had_memory, self._pool = self._pool is not None, None
        if had_memory and self._torch is not None:
            self._torch.cuda.empty_cache()


def require_torch(feature: str) -> ModuleType:
    """Return PyTorch, for a feature that is named.

    Raises
    ------
    MissingDependency
        It is missing, or too old: it launches on a stream of its own, and has no memory pools.
    """
    torch: ModuleType = _optional.require(
        "torch", feature=feature, package="torch", install=INSTALL
    )
    if not hasattr(torch.cuda, "use_mem_pool"):
        raise MissingDependency(
            f"{feature} needs PyTorch 2.8 or newer, and {torch.__version__} was found: run "
            f"{INSTALL}"
        )
    return torch


def _closed(_context: object) -> Passed:
    """Stand in for the module of a closed handle, which holds no tensors any more."""


def _as_arguments(inputs: object) -> tuple[tuple[object, ...], dict[str, object]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    return (inputs,), {}


def _home(module: Callable[..., object], inputs: object) -> Device:
    """Return the device that holds the inputs, or else the module's parameters."""
    parameters = getattr(module, "parameters", tuple)
    for value in (*inside(inputs), *parameters()):
        with contextlib.suppress(InvalidOperand):
            return device_of(value, "inputs")
    raise InvalidOperand(
        "neither the inputs nor the module's parameters are on a GPU: move them there, as in "
        "module.cuda(), or name the device with owner=…"
    )


def _torch_for(device: Device, module: object) -> ModuleType | None:
    """Return PyTorch where the module needs it.

    Raises
    ------
    MissingDependency
        It is missing or too old.
    CapabilityError
        The device cannot run it.
    """
    torch: ModuleType | None = sys.modules.get("torch")
    if device.info.kind == "cuda":
        torch = require_torch("TorchModule")
    elif device.is_simulated and torch is not None and isinstance(module, torch.nn.Module):
        raise CapabilityError(
            f"{device.info.key} is simulated and runs no PyTorch: record the module on a GPU, and "
            "run the recording here as a workload of kind 'trace'"
        )
    return torch
