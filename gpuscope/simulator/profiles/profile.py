"""A GPU profile: constants fitted to a real GPU, and the times that follow from them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from gpuscope import _foreign
from gpuscope.device.api import KernelCost
from gpuscope.device.carve import SmLayout
from gpuscope.device.dtypes import Dtype
from gpuscope.errors import DeviceUnavailable
from gpuscope.simulator.models import collective_model
from gpuscope.simulator.models.gemm_model import ITEM_BYTES, GemmLibrary, alignment, grid
from gpuscope.simulator.models.launch import packed
from gpuscope.simulator.models.memory_model import LoadedMemory, share_cached
from gpuscope.simulator.models.row_model import BLOCKS_HELD, row_time
from gpuscope.simulator.profiles.schema import MemoryTimes, ProfileFile

_GemmKey = tuple[int, int, int, str, int, int]

_read: dict[str, GpuProfile] = {}
"""Profiles that were read from files, by their keys."""
_LAUNCH_SHARE = 0.6
"""Most that the launch, which loaded memory does not lengthen, is of a kernel's time."""


_SERVED_ALIKE, _SERVED_SOONER, _EARLY = 2.2, 4.5, 0.36
"""Of a kernel that would be so many times as fast on an idle memory, all blocks end at the same
time; of one that would be so much faster, the first end by this share of its time before the last:
element-wise copies on 64 and on 132 SMs of an H100 (``benchmarks/contention.py --blocks``)."""


class _Product(NamedTuple):
    """A product alone: blocks, tiles, times in µs, and bytes that it touches and its tiles load."""

    blocks: int
    tiles: int
    us: float
    idle_us: float
    moving: float
    touched: int
    loaded: int
    power: float
    share: float


def shipped() -> list[str]:
    """Return the names of the profiles that ship with the package."""
    folder = resources.files("gpuscope.simulator.profiles")
    return sorted(
        file.name.removesuffix(".json") for file in folder.iterdir() if file.name.endswith(".json")
    )


def measured() -> list[GpuProfile]:
    """Return the profiles that ship, and behind them those that this process read from files."""
    return [*map(GpuProfile.load, shipped()), *_read.copy().values()]


@dataclass(frozen=True)
class GpuProfile:
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
    _products: dict[_GemmKey, _Product] = field(default_factory=dict, compare=False, repr=False)
    _costs: dict[_GemmKey, KernelCost] = field(default_factory=dict, compare=False, repr=False)

    def with_memory(self, memory: MemoryTimes) -> GpuProfile:
        """Return it with another cache and memory."""
        file = self.file.model_copy(update={"memory": memory})
        return GpuProfile(file, self.key, self._products)

    @classmethod
    def load(cls, name: str) -> GpuProfile:
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
    def read(cls, path: Path) -> GpuProfile:
        """Read a profile from a file.

        Raises
        ------
        DeviceUnavailable
            There is no such file.
        InvalidProfile
            It does not validate; names each field that is wrong.
        """
        try:
            text = _foreign.read_bytes(path, _foreign.MADE_BYTES)
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

    @cached_property
    def memory(self) -> LoadedMemory:
        """Device memory and the cache, as all that runs shares them."""
        memory = self.file.memory
        bandwidth = self.constants["device_copy_bytes_per_us"]
        return LoadedMemory(bandwidth, memory.smallest_share, memory.cache_bytes)

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
            product = self._products.get(key)
            if product is None:
                product = self._products[key] = self._timed(*key)
            cost = self._costs[key] = self._product_cost(product, cast("Dtype", dtype), sm_count)
        return cost

    def library(self, m: int, n: int, k: int, dtype: str) -> GemmLibrary:
        """Return the kind of kernels that operands of these sizes are aligned for."""
        width = alignment(m, n, k, dtype)
        return next(kind for kind in self._libraries[dtype] if kind.kernels.alignment <= width)

    @cached_property
    def _libraries(self) -> dict[str, list[GemmLibrary]]:
        return {
            dtype: [GemmLibrary(kind, ITEM_BYTES[dtype], self.layout) for kind in kinds]
            for dtype, kinds in self.file.gemm.items()
        }

    def _timed(self, m: int, n: int, k: int, dtype: str, sm_count: int, told: int) -> _Product:
        library, layout = self.library(m, n, k, dtype), self.layout
        times, item = library.kernels.times, library.item
        believed = min(told, layout.sm_count) if told else layout.sm_count
        chosen = library.choose((m, n, k), believed)
        us, idle_us, moving = library.timed(chosen, (m, n, k), sm_count, believed)
        touched = item * (m * k + k * n + m * n)
        missed = touched * (1 - share_cached(touched, self.file.memory.cached_bytes))
        least_us = missed / self.constants["device_copy_bytes_per_us"]
        if min(m, n) == 1:  # it only moves data, faster than products do
            memory = self.file.memory
            held_us = (touched - missed) / (sm_count * memory.sm_bytes_per_us)
            vector = memory.vector_told if told else memory.vector
            if vector is None:
                idle_us = held_us + missed / (sm_count * memory.sm_bytes_per_us)
                us = max(idle_us, touched / times.bytes_per_us)
            else:
                idle_us = held_us + missed / (sm_count * vector.sm_bytes_per_us)
                least_us = (touched - missed) / times.bytes_per_us + missed / vector.bytes_per_us
                p = vector.sharpness
                us = (idle_us**p + least_us**p) ** (1 / p)
            idle_us, us = idle_us + times.launch_us, us + times.launch_us
        us = max(us, least_us)
        tiles, share = max(1, int(chosen.blocks(m, n)[0])), 1.0
        side = int(chosen.rows[0] + chosen.columns[0])
        loaded = item * tiles * side * -(-k // int(chosen.splits[0]))
        if times.persistent:
            launched = int(grid(chosen, m, n, believed, layout)[0][0])
            blocks = min(launched, tiles)  # those that complete a cluster have no tile
        else:
            tiles, share = packed(tiles, int(chosen.resident[0]), sm_count)
            blocks = tiles
        rate = 2 * m * n * k / max(1.0, us) / 1e6
        return _Product(
            blocks,
            tiles,
            us,
            idle_us,
            moving,
            touched=touched,
            loaded=loaded,
            power=times.power * min(1.0, rate / times.tflop_per_s),
            share=share,
        )

    def _product_cost(self, product: _Product, dtype: Dtype, sm_count: int) -> KernelCost:
        memory = self.file.memory
        computing, moving = memory.exposure.products[dtype], product.moving
        rounds = -(-product.tiles // min(product.blocks, sm_count))
        cost = KernelCost(
            product.blocks,
            max(1, round(product.us * 1000 / rounds)),
            tiles=product.tiles,
            traffic=max(0, int(memory.misses[dtype] * (product.loaded - product.touched))),
            power=product.power,
            share=product.share,
            computing=1 - moving,
            exposure=computing + (memory.exposure.vector - computing) * moving,
            cold=memory.cold_products * (1 - moving),
        )
        return self._waiting(cost, product.touched, product.us, product.idle_us, sm_count)

    def _waiting(
        self,
        cost: KernelCost,
        touched: float,
        us: float,
        idle_us: float,
        sm_count: int,
        read_again: float = 0.0,
    ) -> KernelCost:
        """Return a cost with what a kernel moves and how it waits for memory.

        Parameters
        ----------
        cost
            Its exposure is that of the time after the launch.
        touched
            Bytes that it touches, and finds in the cache as far as that holds so many.
        us, idle_us
            Its time, and that on an idle memory.
        read_again
            Bytes that the cache holds for it while nothing else fills that.

        Notes
        -----
        It moves no more than there is bandwidth for: what was measured alone must take as long
        alone.
        """
        memory = self.file.memory
        cached = share_cached(touched, memory.cached_bytes)
        wave_us = cost.busy_ns / min(cost.blocks, sm_count) / 1000  # if all waves were full
        most = self.constants["device_copy_bytes_per_us"] * wave_us
        overload = (us / idle_us - _SERVED_ALIKE) / (_SERVED_SOONER - _SERVED_ALIKE)
        early = _EARLY * min(1.0, max(0.0, overload))
        launch_us = min(self.file.copy_kernel.launch_us, _LAUNCH_SHARE * us)
        return replace(
            cost,
            nbytes=int(min(touched * (1 - cached), most)),
            cold_nbytes=int(touched + memory.rereads * read_again),
            exposure=(cost.exposure * (idle_us - launch_us) + memory.tail_us) / idle_us,
            idle=idle_us / us,
            cold=cost.cold * cached,
            early=early,
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
        copy, touched = self.file.copy_kernel, 2 * nbytes
        cached = share_cached(touched, self.file.memory.cached_bytes)
        p, idle_us = copy.sharpness, touched / (sm_count * copy.sm_bytes_per_us)
        rates = cached / copy.cached_bytes_per_us + (1 - cached) / copy.bytes_per_us
        us = copy.launch_us + (idle_us**p + (touched * rates) ** p) ** (1 / p)
        busy = self.constants["device_copy_bytes_per_us"] / copy.bytes_per_us
        cost = KernelCost(
            sm_count, max(1, round(us * 1000)), exposure=self.file.memory.exposure.copies
        )
        return self._waiting(cost, touched * max(1.0, busy), us, copy.launch_us + idle_us, sm_count)

    def softmax_cost(self, rows: int, columns: int, sm_count: int) -> KernelCost:
        """Cost of a softmax over rows of float32: see ``simulator/models/row_model.py``."""
        memory = self.file.memory
        time = row_time(
            self.file.rows,
            rows,
            columns,
            sm_count,
            cached_bytes=memory.cached_bytes,
            copy=self.file.copy_kernel,
        )
        blocks, share = packed(min(rows, BLOCKS_HELD * sm_count), BLOCKS_HELD, sm_count)
        cost = KernelCost(
            blocks,
            max(1, round(time.us * 1000)),
            exposure=memory.exposure.rows * time.waiting,
            share=share,
            cold=memory.cold_rows,
        )
        touched = 8.0 * rows * columns
        return self._waiting(cost, touched, time.us, time.idle_us, sm_count, time.read_again)

    def collective_cost(
        self, kind: str, bus_bytes: float, world_size: int, sm_count: int
    ) -> KernelCost:
        """Cost of one rank's kernel: see ``simulator/models/collective_model.py``."""
        bandwidth = self.constants["device_copy_bytes_per_us"]
        return collective_model.collective_cost(bandwidth, kind, bus_bytes, world_size, sm_count)


@cache
def _parsed(text: bytes, where: str) -> ProfileFile:
    return ProfileFile.parse(text, where)
