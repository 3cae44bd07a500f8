"""The handle of the workload kind ``fill``."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuscope.device.api import KernelModel
from gpuscope.device.device import Device
from gpuscope.device.partition import Partition
from gpuscope.device.stream import Stream
from gpuscope.workloads import Handle

_SOURCE = r"""
extern "C" __global__ void fill_kernel(float* out, float value, long long n) {
  long long step = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
    out[i] = value;
}
"""


class Fill(Handle):
    """Fill an array of its own."""

    def __init__(
        self, owner: Device | Partition, *, elements: int, value: float, name: str = "fill"
    ) -> None:
        super().__init__(owner, name=name)
        self.out = self.device.empty(elements, "float32")
        self._value = np.float32(value)
        self._kernel = self.device.compile(
            _SOURCE,
            "fill_kernel",
            model=KernelModel(
                lambda profile, _grid, _args, sm_count: profile.copy_cost(4 * elements, sm_count),
                writes=lambda args: args[0],
                compute=lambda: np.full(elements, value, np.float32),
            ),
        )

    def _launch(self, stream: Stream, operands: Any) -> None:
        stream.launch(
            self._kernel, self.out, self._value, self.out.size, grid=64, block=256
        )  # fmt: skip
