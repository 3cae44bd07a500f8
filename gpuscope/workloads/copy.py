"""An element-wise copy kernel: work that memory bandwidth bounds."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import cast

from gpuscope._checks import count, require_kind
from gpuscope.device.api import KernelModel, NativeArray
from gpuscope.device.device import Device
from gpuscope.device.partition import Partition
from gpuscope.device.stream import Stream
from gpuscope.errors import InvalidOperand
from gpuscope.workloads.context import CallWork, Context, Passed
from gpuscope.workloads.handle import Handle

BLOCK = 512
"""Threads of a block."""
_BLOCKS_PER_SM = 4


@functools.cache
def source(*files: str) -> str:
    """Return the text of files beside this one, joined."""
    return "".join(Path(__file__).with_name(name).read_text("utf-8") for name in files)


class MemoryKernel(Handle):
    """A kernel that reads an array of its own, ``x``, and writes another.

    A subclass says where the kernel is, and what it costs the simulated GPU.
    """

    _files: tuple[str, ...]
    _function: str

    def __init__(
        self,
        owner: Device | Partition,
        shape: int | tuple[int, ...],
        model: KernelModel,
        *,
        name: str,
        seed: int,
        max_in_flight: int,
    ) -> None:
        super().__init__(owner, name=name, max_in_flight=max_in_flight)
        self.x = self.device.random(shape, "float32", seed=seed)
        """The array that it reads, on the device."""
        for context in self._contexts:
            context.arrays = self.device.empty(shape, "float32")
        self._moved = 2 * self.x.nbytes
        model = replace(model, reads=lambda args: [args[1]], writes=lambda args: args[0])
        self._kernel = self.device.compile(source(*self._files), self._function, model=model)

    def _prepare(self, context: Context, operands: Passed) -> CallWork:
        del operands
        array = cast("NativeArray", context.arrays)
        return CallWork(array, array, (array,))


class Copy(MemoryKernel):
    """Copy ``nbytes`` from one device array of its own to another, with a kernel.

    ``execute()`` returns the array written.

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

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> from gpuscope.workloads.copy import Copy
    >>> with Copy(gpu, nbytes=1000) as copy, gpu.create_stream() as stream:
    ...     written = copy.execute(stream=stream)
    ...     written.nbytes
    1008
    """

    _files: tuple[str, ...] = ("copy.cu",)
    _function = "copy_kernel"
    _what = "copy"

    def __init__(
        self,
        owner: Device | Partition,
        *,
        nbytes: int,
        name: str | None = None,
        seed: int = 0,
        max_in_flight: int = 1,
    ) -> None:
        nbytes = count("nbytes", nbytes, least=1, most=2**62, error=InvalidOperand)
        require_kind("name", name, str, None)
        self._vectors = -(-nbytes // 16)
        moved = self.nbytes = self._vectors * 16
        model = KernelModel(
            lambda profile, _grid, _args, sm_count: profile.copy_cost(moved, sm_count),
            compute=lambda values: values,
        )
        super().__init__(
            owner, self._vectors * 4, model,
            name=name or f"{self._what} {nbytes} B", seed=seed, max_in_flight=max_in_flight,
        )  # fmt: skip

    def _grid(self, stream: Stream) -> int:
        partition = stream.partition
        sm_count = partition.sm_count if partition is not None else self.device.sm_count
        return max(1, sm_count) * _BLOCKS_PER_SM  # a CPU has no SMs

    def _launch(self, stream: Stream, operands: Passed) -> None:
        stream.launch(
            self._kernel, operands, self.x, self._vectors,
            grid=self._grid(stream), block=BLOCK, nbytes=self._moved,
        )  # fmt: skip
