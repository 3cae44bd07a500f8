"""A softmax over the rows of a matrix: reductions and exponentials."""

from __future__ import annotations

import numpy as np

from gpuscope._checks import count, require_kind
from gpuscope._types import Array
from gpuscope.device.api import KernelModel
from gpuscope.device.device import Device
from gpuscope.device.partition import Partition
from gpuscope.device.stream import Stream
from gpuscope.errors import InvalidOperand
from gpuscope.workloads.context import Passed
from gpuscope.workloads.copy import MemoryKernel

_BLOCK = 256
_LIMIT = 2**31 - 1


class Softmax(MemoryKernel):
    """``out[i, j] = exp(x[i, j]) / Σⱼ exp(x[i, j])`` in float32, one thread block for each row.

    ``execute()`` returns the array written.

    Parameters
    ----------
    owner
        The device, or a partition that closes the handle with itself.
    rows, columns
        Sizes in elements.
    name
        For people, timelines and analyses; it says the sizes if not given.
    seed
        Of ``x``: uniform values in [-0.5, 0.5).
    max_in_flight
        How many calls may overlap; each writes an array of its own.

    Raises
    ------
    InvalidOperand
        A size is not positive.

    Notes
    -----
    The simulated GPU takes as long as an H100 was seen to take alone, interpolated between measured
    sizes and SM counts; ``docs/simulator.md`` states the error.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> from gpuscope.workloads import Softmax
    >>> with Softmax(gpu, rows=4, columns=100) as softmax, gpu.create_stream() as stream:
    ...     out = softmax.execute(stream=stream)
    >>> gpu.to_host(out).sum(axis=1).round(5).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """

    _files = ("softmax.cu",)
    _function = "softmax_kernel"

    def __init__(
        self,
        owner: Device | Partition,
        *,
        rows: int,
        columns: int,
        name: str | None = None,
        seed: int = 0,
        max_in_flight: int = 1,
    ) -> None:
        rows = count("rows", rows, least=1, most=_LIMIT, error=InvalidOperand)
        columns = count("columns", columns, least=1, most=_LIMIT, error=InvalidOperand)
        require_kind("name", name, str, None)
        self.rows, self.columns = rows, columns
        model = KernelModel(
            lambda profile, _grid, _args, sm_count: profile.softmax_cost(rows, columns, sm_count),
            compute=_softmax,
        )
        super().__init__(
            owner, (rows, columns), model,
            name=name or f"softmax {rows}x{columns}", seed=seed, max_in_flight=max_in_flight,
        )  # fmt: skip

    def _launch(self, stream: Stream, operands: Passed) -> None:
        stream.launch(
            self._kernel, operands, self.x, self.columns,
            grid=self.rows, block=_BLOCK, nbytes=self._moved,
        )  # fmt: skip


def _softmax(x: Array) -> Array:
    raised = np.exp(x - x.max(axis=1, keepdims=True))
    result: Array = raised / raised.sum(axis=1, keepdims=True)
    return result
