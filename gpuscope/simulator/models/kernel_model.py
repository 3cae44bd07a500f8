"""How long a recorded kernel takes on another number of SMs: from its launch and its times.

A time is a floor, and a body that three things bound: the *roof* of the memory, which does not
depend on the SMs; the *waves* of blocks, which do; and the latency of one block. One recording
says how long the body took, not what bound it: that comes from the kind of kernel
(:class:`Scaling`, fitted by ``benchmarks/what_if.py``). A second recording on few SMs says it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from gpuscope.device.api import KernelCost
from gpuscope.simulator.models.known import Known
from gpuscope.simulator.models.launch import WARP, Launch, packed
from gpuscope.simulator.profiles.profile import GpuProfile

_TILE = re.compile(r"_(\d+)x(\d+)_\d+x\d+")
_REACHED = 0.86
"""Of a device copy's rate, what kernels reach."""
_ATTENTION = ("sdpa", "flash", "fmha", "attention")
_SKINNY = 64
"""A tile with a side up to this reads matrices that nothing else reads: memory bounds it."""
_ENGINE_WAVES = 64
"""More waves than these are simulated as so many: one more or less does not matter then."""


@dataclass(frozen=True)
class Scaling:
    """Constants of the model.

    Attributes
    ----------
    floor_ns
        What a kernel takes however small it is.
    sharpness
        Of the soft maximum (a p-norm) of roof and waves.
    waves
        Kind of kernel → what the waves take of the body on all SMs; the roof takes the rest.
    saturating_warps
        Warps that keep an SM's units busy.
    block_loads, flop_rate
        Bytes and floating-point operations a ns that one SM loads and does for a tile.
    usual_k
        A product of ``k`` as long as this has as many tiles a block as one of ``k`` twice as
        long has with two: guesses the tiles of a persistent kernel.
    cool
        Time of a tile when part of the GPU is idle, of that when all of it works.
    """

    floor_ns: float = 1500.0
    sharpness: float = 4.0
    waves: Mapping[str, float] = field(
        default_factory=lambda: {
            "tiles": 1.0,
            "persistent": 0.82,
            "attention": 0.55,
            "vectorized": 0.5,
            "few": 1.0,
            "many": 0.9,
        }
    )
    saturating_warps: int = 48
    block_loads: float = 115.0
    flop_rate: float = 5700.0
    usual_k: int = 1024
    cool: float = 0.93


SCALING = Scaling()
_BUSY = {"tiles": 0.2, "persistent": 0.3}
"""Kind → its share of the memory's bandwidth on all SMs, where the roof does not say it."""
_EXPOSURE = {"tiles": 1.5, "persistent": 2.1, "tile": 2.4, "attention": 3.0}
_USUAL_EXPOSURE = 5.0
"""How kernels wait for memory (:class:`~gpuscope.device.api.KernelCost`): those that fetch ahead
wait less. Chosen for the pairs of ``benchmarks/what_if.py``."""
_SPREAD = {
    "tiles": (0.25, 0.28),
    "tile": (0.21, 0.1),
    "persistent": (0.35, 0.32),
    "attention": (0.2, 0.12),
    "many": (0.24, 0.08),
    "few": (0.34, 0.17),
    "vectorized": (0.62, 0.1),
    "product": (0.24, 0.15),
    "softmax": (0.2, 0.15),
    "copy": (0.05, 0.05),
}
"""How far off nine of ten times are, per kind, from one recording and from two, where the SMs are
e times as many or as few: of the models of ``benchmarks/data/models.json``, and of products and
copies of ``benchmarks/data/h200.json`` and ``h200_host.json``, each from every SM count on others.
"""


@dataclass(frozen=True)
class RecordedKernel:
    """A kernel that was recorded, and its time on any number of SMs.

    Attributes
    ----------
    name
        As it was recorded.
    launch
        Its configuration; ``None`` where the recording has none.
    times_ns
        SM count → duration: of one recording or two.
    profile
        The GPU.
    known
        What it computes, where that is known.
    scale
        How many times the work: blocks, or tiles of persistent blocks.
    """

    name: str
    launch: Launch | None
    times_ns: Mapping[int, float]
    profile: GpuProfile = field(repr=False)
    known: Known | None = None
    scaling: Scaling = SCALING
    scale: float = 1.0

    @cached_property
    def sm_count(self) -> int:
        """The largest SM count it was recorded on."""
        return max(self.times_ns)

    @cached_property
    def kind(self) -> str:
        """What bounds it: a key of :attr:`Scaling.waves`, ``"tile"``, or what is known."""
        if self.known is not None:
            return self.known.kind
        launch, name = self.launch, self.name
        if launch is None:
            return "many"
        total = self.profile.layout.sm_count
        fills = launch.occupancy == 1 and launch.blocks in (
            total // launch.cluster * launch.cluster,
            self.sm_count // launch.cluster * launch.cluster,
        )
        tiled = "nvjet" in name and _TILE.search(name) is not None
        kinds = {
            "tiles": tiled and fills,
            "tile": tiled,
            "persistent": fills,
            "attention": any(word in name for word in _ATTENTION),
            "vectorized": "vectorized_elementwise" in name,
            "few": launch.blocks <= launch.occupancy * total,
        }
        return next((kind for kind, fits in kinds.items() if fits), "many")

    # -- its time ---------------------------------------------------------------------
    def duration_ns(self, sm_count: int) -> float:
        """Return its time alone on so many SMs."""
        if self.scale == 1.0 and sm_count in self.times_ns:
            return self.times_ns[sm_count]
        if self.known is not None:
            return self._as_known(sm_count)
        if len(self.times_ns) > 1:
            return self._floor_ns + self._by_two(sm_count)
        return self._floor_ns + self._body_ns * self._bounded(sm_count, self.scale)

    def range_ns(self, sm_count: int) -> tuple[float, float]:
        """Return what nine of ten such times lie in."""
        duration_ns = self.duration_ns(sm_count)
        if self.scale == 1.0 and sm_count in self.times_ns:
            return duration_ns, duration_ns
        spread = _SPREAD[self.kind][len(self.times_ns) > 1]
        nearest = min(abs(math.log(sm_count / recorded_sms)) for recorded_sms in self.times_ns)
        spread *= min(1.0, 0.3 + nearest)
        return duration_ns / (1 + spread), duration_ns * (1 + spread)

    @property
    def _floor_ns(self) -> float:
        return min(self.scaling.floor_ns, 0.8 * self.times_ns[self.sm_count])

    @cached_property
    def _body_ns(self) -> float:
        """Its body on all SMs of the GPU, where it may not have been recorded."""
        return (self.times_ns[self.sm_count] - self._floor_ns) / self._bounded(self.sm_count, 1.0)

    def _bounded(self, sm_count: int, scale: float) -> float:
        """Return the body on so many SMs, of that on all."""
        p, share = self.scaling.sharpness, self._share
        relative = self._waves(sm_count, scale) / self._waves(self.profile.layout.sm_count, 1.0)
        roof = (1 - share**p) * max(1.0, scale) ** p
        return float((roof + (share * relative) ** p) ** (1 / p))

    @cached_property
    def _share(self) -> float:
        """What the waves take of the body."""
        if self.kind != "tile":
            return self.scaling.waves[self.kind]
        # A tile's operands are loaded by its SM, its longer one from memory if it is skinny.
        assert self.launch is not None  # noqa: S101 - or it would have no kind
        wide, narrow = max(self._tile), min(self._tile)
        p, loads = self.scaling.sharpness, (wide + narrow) / self.scaling.block_loads
        work = 2 * max(loads, wide * narrow / self.scaling.flop_rate)
        rate = _REACHED * self.profile.constants["device_copy_bytes_per_us"] / 1000
        roof = 2 * self.launch.blocks * wide / rate if narrow <= _SKINNY else 0.0
        return float(work / (work**p + roof**p) ** (1 / p))

    @cached_property
    def _tile(self) -> tuple[int, int]:
        match = _TILE.search(self.name)
        assert match is not None  # noqa: S101 - or it would be of another kind
        return int(match[1]), int(match[2])

    def _waves(self, sm_count: int, scale: float) -> float:
        """Return what the waves take on so many SMs, in any unit."""
        launch = self.launch
        if launch is None:
            return scale / sm_count
        blocks = launch.blocks * scale
        if self.kind == "tiles":
            return self._tiled(sm_count, scale)
        if self.kind == "tile":
            return float(-(-blocks // sm_count))
        if self.kind == "persistent":
            return blocks / sm_count
        if launch.occupancy <= 2:
            waves = blocks / (launch.occupancy * sm_count)
            return max(1.0, math.ceil(waves) if waves < 4 else waves + 0.5)
        blocks_per_sm = blocks / sm_count
        if blocks_per_sm < 8:
            blocks_per_sm = math.ceil(blocks_per_sm)
        warps = -(-launch.threads // WARP)
        holds = min(launch.occupancy, max(1.0, self.scaling.saturating_warps / warps))
        return max(1.0, blocks_per_sm / holds)

    def _tiled(self, sm_count: int, scale: float) -> float:
        """Return how many tiles' time persistent blocks take that fetch their next tile.

        The tiles of a block are not recorded: what is plausible for the time counts equally.
        """
        assert self.launch is not None  # noqa: S101 - or it would have no kind
        grid = self.launch.blocks
        wide, narrow = self._tile
        body_ns = self.times_ns[self.sm_count] - self._floor_ns
        deep = body_ns * self.scaling.flop_rate / (2 * wide * narrow * self.scaling.usual_k)
        likely = math.sqrt(max(1.0, deep))
        rounds = [max(1, round(likely * factor)) for factor in (0.5, 1.0, 2.0)]
        cool = self.scaling.cool if sm_count < 0.9 * grid else 1.0
        times = [
            _rounds(round_count * scale, grid, sm_count) / round_count * cool
            for round_count in rounds
        ]
        return math.exp(sum(map(math.log, times)) / len(times))

    def _by_two(self, sm_count: int) -> float:
        """Return the body from two recordings."""
        p, few = self.scaling.sharpness, min(self.times_ns)
        body_ns = self.times_ns[self.sm_count] - self._floor_ns
        few_ns = max(self.times_ns[few] - self._floor_ns, 1.0)
        relative = self._waves(sm_count, self.scale) / self._waves(self.sm_count, 1.0)
        relative_at_few = self._waves(few, 1.0) / self._waves(self.sm_count, 1.0)
        if self.kind == "tiles":
            off = few_ns / (body_ns * relative_at_few)  # its waves are all that bounds it
            reached = min(1.0, math.log(self.sm_count / sm_count) / math.log(2))
            return float(body_ns * relative * off ** max(0.0, reached))
        waves = (few_ns**p - body_ns**p) / (relative_at_few**p - 1) if relative_at_few > 1 else 0.0
        if waves <= 0:  # its waves do not say how much slower it was there
            between = body_ns * (few_ns / body_ns) ** self._reached(sm_count)
            beyond = relative / relative_at_few if sm_count < few else 1.0
            return float(between) * max(1.0, self.scale, beyond)
        roof = body_ns**p - waves
        if roof >= 0:
            roof *= max(1.0, self.scale) ** p
            return float((roof + waves * relative**p) ** (1 / p))
        if relative >= relative_at_few:
            return few_ns * relative / relative_at_few
        return float(body_ns * relative ** (math.log(few_ns / body_ns) / math.log(relative_at_few)))

    def _as_known(self, sm_count: int) -> float:
        """Return its time as the model of its kind scales it, bent to a second recording."""
        few, most = min(self.times_ns), self.sm_count
        ratio = self.times_ns[most] / self._modelled(most, 1.0).alone_ns(most)
        if few < most:
            ratio_at_few = self.times_ns[few] / self._modelled(few, 1.0).alone_ns(few)
            ratio *= (ratio_at_few / ratio) ** self._reached(sm_count)
        return ratio * self._modelled(sm_count, self.scale).alone_ns(sm_count)

    def _reached(self, sm_count: int) -> float:
        """Return how far it is from the larger SM count that was recorded to the smaller."""
        reached = math.log(self.sm_count / sm_count) / math.log(self.sm_count / min(self.times_ns))
        return min(1.0, max(0.0, reached))

    def _modelled(self, sm_count: int, scale: float) -> KernelCost:
        """Return the cost of so many times what is known to be computed."""
        assert self.known is not None  # noqa: S101 - or it would be of another kind
        return self.known.cost(self.profile, sm_count, scale)

    # -- for the engine ---------------------------------------------------------------
    def cost(self, sm_count: int, *, gap_ns: int | None = None) -> KernelCost:
        """Return what the simulated GPU runs: blocks that occupy an SM each, and their bytes."""
        duration_ns = max(1.0, self.duration_ns(sm_count))
        rate = self.profile.constants["device_copy_bytes_per_us"] / 1000
        if self.known is not None:
            modelled = self._modelled(sm_count, self.scale)
            tile_ns = modelled.block_ns * duration_ns / modelled.alone_ns(sm_count)
            return replace(
                modelled,
                block_ns=max(1, round(tile_ns)),
                nbytes=min(modelled.nbytes, int(rate * duration_ns)),
                gap_ns=gap_ns,
            )
        occupied, share_of_sm, computing, blocks = sm_count, 1.0, 0.0, 0
        if self.launch is not None:  # as often as one of its SMs is taken: some blocks' room
            blocks, per_sm = max(1, round(self.launch.blocks * self.scale)), self.launch.occupancy
            occupied, share_of_sm = packed(blocks, per_sm, sm_count)
            computing = self._computing(share_of_sm * per_sm)
        p, share = self.scaling.sharpness, _BUSY.get(self.kind)
        if share is None:
            share = (1 - min(1.0, self._share) ** p) ** (1 / p)
        busy = min(1.0, share * self._body_ns * self.scale / duration_ns)
        waves = -(-occupied // sm_count)
        if waves > _ENGINE_WAVES:
            occupied, waves = _ENGINE_WAVES * sm_count, _ENGINE_WAVES
        return KernelCost(
            occupied,
            max(1, round(duration_ns / waves)),
            round(busy * rate * duration_ns),
            exposure=self._exposure,
            gap_ns=gap_ns,
            share=share_of_sm,
            computing=computing,
            launched=blocks,
        )

    def _computing(self, blocks: float) -> float:
        """Return what so many blocks keep busy of the units of their SM, alone."""
        assert self.launch is not None  # noqa: S101 - or nobody knows how many
        warps = blocks * -(-self.launch.threads // WARP)
        return min(1.0, warps / self.scaling.saturating_warps) * min(1.0, self._share)

    @property
    def _exposure(self) -> float:
        return _EXPOSURE.get(self.kind, _USUAL_EXPOSURE)

    def taking(self, factor: float, sm_count: int) -> RecordedKernel:
        """Return it with another time on so many SMs, on which it was recorded."""
        times_ns = {**self.times_ns, sm_count: self.times_ns[sm_count] * factor}
        return replace(self, times_ns=times_ns)

    def scaled(self, factor: float) -> RecordedKernel:
        """Return it with so many times the work."""
        return replace(self, scale=self.scale * factor)


def _rounds(tiles_per_block: float, grid: int, sm_count: int) -> float:
    """Return how many tiles one after the other a persistent grid takes.

    Its blocks start with a tile of their own and fetch the others. Blocks that find no SM start
    when the others have fetched all tiles, and do their own.
    """
    if sm_count >= grid:
        return tiles_per_block
    late, tiles = grid - sm_count, 0.98 * tiles_per_block * grid
    fetched = max(tiles - late, float(sm_count))
    return math.ceil(fetched / sm_count - 0.02) + math.ceil(late / sm_count - 0.02)
