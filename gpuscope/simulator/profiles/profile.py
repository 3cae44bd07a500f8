"""A GPU profile: constants fitted to a real GPU, and the times that follow from them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import resources
from pathlib import Path

import numpy as np

from gpuscope.device.api import KernelCost
from gpuscope.device.carve import SmLayout
from gpuscope.errors import DeviceUnavailable
from gpuscope.simulator.models import collective_model, softmax_model
from gpuscope.simulator.models.assumed import GEMM_MISSES, GEMM_STALLS
from gpuscope.simulator.models.gemm_model import ITEM_BYTES, Library, alignment, grid
from gpuscope.simulator.profiles.schema import ProfileFile

_GemmKey = tuple[int, int, int, str, int, int]

_read: dict[str, Profile] = {}
"""Profiles that were read from files, by their keys."""
_LARGE = 1 << 30
"""Bytes of a copy whose launch does not count."""


def shipped() -> list[str]:
    """Return the names of the profiles that ship with the package."""
    folder = resources.files("gpuscope.simulator.profiles")
    return sorted(
        file.name.removesuffix(".json") for file in folder.iterdir() if file.name.endswith(".json")
    )


@dataclass(frozen=True)
class Profile:
    """A simulated GPU's layout, host costs and kernel times.

    Attributes
    ----------
    file
        The profile as it was read; ``docs/gpu_profile.md`` describes it.
    key
        What follows ``sim:``: the name, for a file with a hash of what stood in it. Recordings
        hold it, so there is no path in it.
    """

    file: ProfileFile = field(repr=False)
    key: str
    _costs: dict[_GemmKey, KernelCost] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def load(cls, name: str) -> Profile:
        """Load a profile that ships with the package, or the file of a path ending in .json.

        The key of a file's profile gives it again, as it was read, in this process.

        Raises
        ------
        DeviceUnavailable
            There is none of that name; names those there are.
        InvalidProfile
            The file does not validate; names each field that is wrong.
        """
        if name.endswith(".json"):
            return cls.read(Path(name))
        if name in _read:
            return _read[name]
        if name not in shipped():
            raise DeviceUnavailable(
                f"there is no simulated GPU {name!r}; there is: "
                + ", ".join(f"sim:{profile}" for profile in shipped())
                + ", or sim:PATH.json for a profile of your own"
            )
        file = resources.files("gpuscope.simulator.profiles") / f"{name}.json"
        return cls(_parsed(file.read_bytes(), file.name), name)

    @classmethod
    def read(cls, path: Path) -> Profile:
        """Read a profile from a file.

        Raises
        ------
        DeviceUnavailable
            There is no such file.
        InvalidProfile
            It does not validate; names each field that is wrong.
        """
        try:
            text = path.read_bytes()
        except (OSError, ValueError) as error:
            message = f"no GPU profile can be read from {str(path)!r}: {error}"
            raise DeviceUnavailable(message) from error
        file = ProfileFile.parse(text, repr(str(path)))
        key = f"{file.name}-{hashlib.sha256(text).hexdigest()[:12]}"
        return _read.setdefault(key, cls(file, key))

    @cached_property
    def layout(self) -> SmLayout:
        """The parts into which the driver splits the SMs."""
        return self.file.device.layout

    @cached_property
    def constants(self) -> dict[str, int]:
        """Host costs and overheads: ns where the name ends in ``_ns``."""
        return self.file.constants.model_dump()

    # -- GEMM -------------------------------------------------------------------------
    def gemm_cost(self, m: int, n: int, k: int, dtype: str, sm_count: int, told: int) -> KernelCost:
        """Cost of an m × n × k GEMM.

        Parameters
        ----------
        sm_count
            SMs of the stream it runs on.
        told
            SMs that the library was told to tune for; 0 for all.

        Notes
        -----
        Modelled: see :mod:`gpuscope.simulator.models.gemm_model`; ``docs/simulator.md`` states the
        error. Being told changes which kernel is chosen and, of persistent ones, the grid.
        """
        key = (m, n, k, dtype, sm_count, told)
        cost = self._costs.get(key)
        if cost is None:
            cost = self._costs[key] = self._modelled(*key)
        return cost

    def library(self, m: int, n: int, k: int, dtype: str) -> Library:
        """Return the kind of kernels that operands of these sizes are aligned for."""
        width = alignment(m, n, k, dtype)
        return next(kind for kind in self._libraries[dtype] if kind.kernels.alignment <= width)

    @cached_property
    def _libraries(self) -> dict[str, list[Library]]:
        return {
            dtype: [Library(kind, ITEM_BYTES[dtype], self.layout) for kind in kinds]
            for dtype, kinds in self.file.gemm.items()
        }

    def _modelled(self, m: int, n: int, k: int, dtype: str, sm_count: int, told: int) -> KernelCost:
        library, layout = self.library(m, n, k, dtype), self.layout
        times, item = library.kernels.times, library.item
        believed = min(told, layout.sm_count) if told else layout.sm_count
        chosen = library.choose((m, n, k), believed)
        (us,) = library.durations(chosen, (m, n, k), sm_count, believed)
        tiles = max(1, int(chosen.blocks(m, n)[0]))
        launched = int(grid(chosen, m, n, believed, layout)[0][0]) if times.persistent else tiles
        blocks = min(launched, tiles)  # those that complete a cluster have no tile
        at_once = min(blocks, sm_count)
        block_ns = max(1, round(float(us) * 1000 / -(-tiles // at_once)))
        # Each operand moves once; yet no more than there is bandwidth for: what was measured
        # alone must take as long alone, and small operands stay in the cache.
        moved = item * (m * k + k * n + m * n)
        bandwidth = self.constants["device_copy_bytes_per_us"]
        most = bandwidth * tiles * block_ns // (1000 * at_once)
        few, more = GEMM_STALLS
        rate = 2 * m * n * k / max(1.0, float(us)) / 1e6
        loaded = tiles * int(chosen.rows[0] + chosen.columns[0]) * -(-k // int(chosen.splits[0]))
        return KernelCost(
            blocks,
            block_ns,
            min(moved, most),
            tiles,
            stall=few + more / -(-tiles // at_once),
            traffic=max(0, int(GEMM_MISSES * loaded * item) - moved),
            power=times.power * min(1.0, rate / times.tflop_per_s),
        )

    # -- copies and other kernels -----------------------------------------------------
    def transfer_ns(self, way: str, nbytes: int) -> int:
        """Time of a copy or memset of ``nbytes``; ``way`` is a field of the schema's Transfers."""
        sizes, times_us = self._transfers[way]
        us = float(np.interp(nbytes, sizes, times_us)) * max(1.0, nbytes / sizes[-1])
        return max(1, round(us * 1000))

    @cached_property
    def _transfers(self) -> dict[str, tuple[list[int], list[float]]]:
        return {
            way: ([nbytes for nbytes, _ in times], [us for _, us in times])
            for way, times in self.file.transfers
        }

    def copy_cost(self, nbytes: int, sm_count: int) -> KernelCost:
        """Cost of an element-wise copy kernel over ``nbytes``, read and written.

        On all SMs it saturates the memory, at less than a device copy's rate; two of them side
        by side reach no more. So its bytes count by what they keep the memory busy for.
        """
        block_ns = self._copy_ns(nbytes, sm_count)
        return KernelCost(sm_count, block_ns, self._kept_busy(nbytes, block_ns))

    def softmax_cost(self, rows: int, columns: int, sm_count: int) -> KernelCost:
        """Cost of a softmax over rows of float32: see ``simulator/models/softmax_model.py``."""
        block_ns = max(1, round(softmax_model.duration_us(rows, columns, sm_count) * 1000))
        moved = self._kept_busy(rows * columns * 4, block_ns)
        return KernelCost(min(rows, sm_count), block_ns, moved)

    def collective_cost(self, bus_bytes: float, world_size: int, sm_count: int) -> KernelCost:
        """Cost of one rank's kernel: see ``simulator/models/collective_model.py``."""
        bandwidth = self.constants["device_copy_bytes_per_us"]
        return collective_model.collective_cost(bandwidth, bus_bytes, world_size, sm_count)

    def _kept_busy(self, nbytes: int, block_ns: int) -> int:
        """Return the bytes that count of a kernel over ``nbytes``, read and written."""
        busy_ns = self._copy_ns(_LARGE, self.layout.sm_count) * nbytes // _LARGE
        return self.constants["device_copy_bytes_per_us"] * min(busy_ns, block_ns) // 1000

    def _copy_ns(self, nbytes: int, sm_count: int) -> int:
        copy = self.file.copy_kernel
        p = copy.sharpness
        us_per_byte = ((sm_count * copy.sm_bytes_per_us) ** -p + copy.bytes_per_us**-p) ** (1 / p)
        return max(1, round(float(copy.launch_us + 2 * nbytes * us_per_byte) * 1000))


@cache
def _parsed(text: bytes, where: str) -> ProfileFile:
    return ProfileFile.parse(text, where)
