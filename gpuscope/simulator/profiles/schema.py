"""What a GPU profile file holds, field by field; ``docs/gpu_profile.md`` is made from this."""

from __future__ import annotations

import json
from typing import Annotated, Literal, Self

from pydantic import AliasChoices, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails

from gpuscope import _foreign
from gpuscope._text import clean
from gpuscope.device.carve import SmLayout
from gpuscope.device.dtypes import DTYPES, Dtype
from gpuscope.errors import InvalidProfile
from gpuscope.simulator.profiles.carried import upgraded
from gpuscope.simulator.profiles.fields import (
    MOST_SMS,
    Exponent,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ProfilePart,
    Quantiles,
    Range,
    Share,
    SmCount,
    Tile,
    Times,
)


class DeviceLayout(ProfilePart):
    """The GPU."""

    name: Annotated[str, Field(min_length=1)]
    """the device's name"""
    quantum_sm_count: SmCount
    """SMs of the smallest group that the driver splits off"""
    quanta: SmCount
    """number of such groups"""
    remainder_sm_count: Annotated[int, Field(ge=0, le=4096)]
    """SMs of the remainder; they hold no cluster of four blocks"""
    compute_capability: tuple[
        Annotated[int, Field(ge=1, le=999)], Annotated[int, Field(ge=0, le=999)]
    ]
    """major, minor"""
    memory_bytes: PositiveInt
    """bytes of device memory"""

    @property
    def layout(self) -> SmLayout:
        """The parts into which the driver splits the SMs."""
        return SmLayout(self.quantum_sm_count, self.quanta, self.remainder_sm_count)


class Measured(ProfilePart):
    """The origin of the figures."""

    driver: str
    """driver that the measurements ran on"""
    software: str
    """libraries, with versions"""
    source: str
    """how durations were measured, on what"""
    shapes: PositiveInt
    """GEMM shapes in the fit"""
    rows: PositiveInt
    """measured GEMM times in the fit"""


class HostCosts(ProfilePart):
    """Costs of calls and overheads around kernels."""

    launch_call_ns: PositiveInt
    """host cost of launching a kernel, up to the launch"""
    gemm_call_ns: PositiveInt
    """host cost of one GEMM through the library, up to the launch"""
    launch_return_ns: Annotated[int, Field(ge=0, le=10**15)]
    """host cost of launching a kernel after the launch, without the event's record"""
    gemm_return_ns: Annotated[int, Field(ge=0, le=10**15)]
    """the same of a GEMM"""
    event_record_call_ns: PositiveInt
    """host cost of one event record"""
    stream_wait_call_ns: PositiveInt
    """host cost of one stream wait"""
    query_call_ns: PositiveInt
    """host cost of an event query, with the loop around it"""
    synchronize_return_ns: PositiveInt
    """time from completion to the host's return from a wait"""
    launch_latency_ns: PositiveInt
    """time from the launch call's end to the first block, in an idle stream"""
    kernel_gap_ns: PositiveInt
    """time between two queued kernels of one stream"""
    create_stream_call_ns: PositiveInt
    """host cost of creating a stream in a green context"""
    create_partition_call_ns: PositiveInt
    """host cost of creating a green context"""
    device_copy_bytes_per_us: PositiveInt
    """rate of copies on the device, counting reads and writes"""


class HostSpeed(ProfilePart):
    """How fast the host goes from a launch until the next one."""

    since_us: Annotated[
        NonNegativeFloat, Field(validation_alias=AliasChoices("since_us", "slept_us"))
    ]
    """time since the launch before of its kind; files of earlier versions have ``slept_us``"""
    quantiles: Quantiles
    """shares of all launches, from 0 to 1, and the time that so many do not exceed, over the
    median of those that follow each other at once"""

    @field_validator("quantiles")
    @classmethod
    def _shares_rise(cls, quantiles: list[tuple[float, float]]) -> list[tuple[float, float]]:
        shares = [share for share, _ in quantiles]
        whole = shares[:1] == [0] and shares[-1:] == [1]
        if not (whole and shares == sorted(set(shares))):
            raise ValueError(f"shares should rise from 0 to 1, but are {shares}")
        return quantiles


class Transfers(ProfilePart):
    """Times of copies and memsets by size, as measured: pairs of bytes and µs.

    Between two sizes the time is interpolated by bytes, and beyond the largest its rate holds.
    The driver stages pageable memory; the times include this as far as the GPU waits.
    """

    pinned_host_to_device: Times
    """from page-locked memory"""
    pinned_device_to_host: Times
    """to page-locked memory"""
    pageable_host_to_device: Times
    """from other host memory"""
    pageable_device_to_host: Times
    """to other host memory"""
    device_to_device: Times
    """inside device memory"""
    memset: Times
    """clearing device memory"""

    @field_validator("*")
    @classmethod
    def _sizes_rise(cls, times: list[tuple[int, float]]) -> list[tuple[int, float]]:
        sizes = [nbytes for nbytes, _ in times]
        if sizes != sorted(set(sizes)):
            raise ValueError(f"sizes should rise from each pair to the next, but are {sizes}")
        return times


class CopyTimes(ProfilePart):
    """An element-wise copy kernel: launch + bytes / rate, counting reads and writes."""

    launch_us: PositiveFloat
    """time of an empty copy"""
    sm_bytes_per_us: PositiveFloat
    """rate of one SM"""
    bytes_per_us: PositiveFloat
    """highest rate of this kernel"""
    cached_bytes_per_us: PositiveFloat
    """the same where the cache holds all that it touches"""
    sharpness: Exponent
    """sharpness of the transition from the first bound to the second"""


class RowTimes(ProfilePart):
    """A softmax in float32, one thread block of 256 threads for each row; an SM holds eight.

    launch + soft maximum of latency, an SM's work, and the data from its load units, the cache and
    memory. Rows that the level-1 cache does not hold are read again.
    """

    launch_us: PositiveFloat
    """time of an empty kernel"""
    block_us: PositiveFloat
    """latency of a block"""
    column_us: PositiveFloat
    """the same for each column"""
    sm_block_us: PositiveFloat
    """an SM's time for each block"""
    sm_column_us: PositiveFloat
    """the same for each column"""
    sm_bytes_per_us: PositiveFloat
    """rate at which one SM gets data; cache and memory deliver it at a copy's rates"""
    sm_cached_bytes: Range
    """bytes of rows in work on an SM up to which it reads them once, and from which on again"""
    reread_bytes: Range
    """the same of rows in work on all SMs, of which the cache holds all, or none"""
    sharpness: Exponent
    """exponent of the soft maximum"""


class Exposure(ProfilePart):
    """By how much of its time on an idle memory a kernel grows for each multiple of the latency."""

    copies: NonNegativeFloat
    """element-wise copies"""
    rows: NonNegativeFloat
    """softmax, of the part that grows with the columns"""
    vector: NonNegativeFloat
    """products as far as moving their operands bounds them"""
    products: dict[Dtype, NonNegativeFloat]
    """other products, by dtype"""


class VectorTimes(ProfilePart):
    """A matrix × vector whose matrix the cache does not hold: launch + bytes / rate."""

    sm_bytes_per_us: PositiveFloat
    """rate of one SM"""
    bytes_per_us: PositiveFloat
    """highest rate: the kernel only reads, faster than a device copy"""
    sharpness: Exponent
    """sharpness of the transition from the first bound to the second"""


class MemoryTimes(ProfilePart):
    """The cache, and how loaded memory slows kernels: see `simulator/models/memory_model.py`."""

    cached_bytes: Range
    """footprints of which repeated work finds all in the cache, and from which on nothing"""
    cache_bytes: PositiveInt
    """bytes of others that replace all that work left in the cache"""
    sm_bytes_per_us: PositiveFloat
    """rate at which one SM gets data for a matrix × vector that the cache holds"""
    vector: VectorTimes | None = None
    """a matrix × vector that it does not hold; if not measured, as one that it holds"""
    vector_told: VectorTimes | None = None
    """the same where the library was told the SM count and takes another kernel"""
    smallest_share: Share
    """share of an added latency that kernels on hardly any SMs meet"""
    tail_us: NonNegativeFloat
    """how much longer any kernel takes for each multiple of the latency"""
    exposure: Exposure
    """how kernels wait for memory, by kind"""
    misses: dict[Dtype, Share]
    """share of the operands that the tiles of products load which counts as moved, by dtype"""
    cold_rows: NonNegativeFloat
    """how much longer a softmax waits for data that the cache lost"""
    cold_products: NonNegativeFloat
    """the same of products"""
    rereads: NonNegativeFloat
    """bytes that memory moves for each byte of rows that the cache lost before it is read again"""


class KernelTimes(ProfilePart):
    """Constants for the time of one kind of GEMM kernel; 1 for those that do not apply."""

    persistent: bool
    """the grid has at most one block per SM that the library assumes; blocks loop"""
    vector: bool
    """if m or n is 1, another kernel runs that only moves memory"""
    tflop_per_s: PositiveFloat
    """best rate measured for the whole GPU, under its power cap: no GEMM is simulated faster"""
    sm_tflop_per_s: PositiveFloat
    """the same per SM, on any SM count"""
    launch_us: PositiveFloat
    """time of an empty kernel"""
    block_us: PositiveFloat
    """start and end of one block"""
    latency_us: PositiveFloat
    """latency of one block alone, per step of one along k"""
    multiply_us: PositiveFloat
    """one SM's time per element of the tile and step along k"""
    load_us: PositiveFloat
    """one SM's time per row and column of the tile and step along k"""
    store_us: PositiveFloat
    """one SM's time per element of the tile, once"""
    misaligned: Exponent
    """factor on multiplying and loading where rows are not aligned to 16 bytes"""
    sharpness: Exponent
    """exponent of the soft maximum; with 1, latency, work and memory are added"""
    sm_bytes_per_us: PositiveFloat
    """rate at which one SM gets data from L2 and memory"""
    bytes_per_us: PositiveFloat
    """rate at which L2 and memory deliver data to all SMs"""
    wave_rounding: Share
    """how much of the last wave's length counts in full"""
    held_rounding: Share
    """the same for the latency of kernels of which one SM holds several blocks"""
    late_rounds: NonNegativeFloat
    """tiles that a persistent kernel's last blocks process after all others, if it found fewer
    SMs than it has blocks"""
    reduce_us: PositiveFloat
    """time of the second kernel of split-K, without memory traffic"""
    power: NonNegativeFloat
    """what a GEMM at the best rate draws, beside what an idle GPU draws, of what the GPU may draw
    for long"""


class KernelChoice(ProfilePart):
    """Exceptions to the rule that the library chooses the fastest kernel."""

    split_k_at_least: PositiveInt
    """least length of each part of k"""
    split_side_at_least: PositiveInt
    """least side of a split kernel's tile, unless the result's side is shorter"""
    split_below_blocks: Annotated[int, Field(ge=0, le=10**15)]
    """a product whose smallest tile makes fewer blocks always gets a split kernel, unless the
    library was told an SM count"""
    blocks_at_most: PositiveInt
    """most blocks of a split kernel"""
    crowding: NonNegativeFloat
    """penalty for a grid that nearly fills the GPU: a factor per share above `crowded_from`"""
    crowded_from: Share
    """share of the SMs above which the penalty applies"""
    preferences: list[Annotated[list[float], Field(min_length=7, max_length=7)]] = Field(default=[])
    """for each tile, by how much the library prefers it to what the model thinks fastest: the
    logarithm of a factor is their product with `gemm_model.traits` of it; empty: by nothing"""


class GemmKernels(ProfilePart):
    """Kernels for operands of one alignment."""

    alignment: Literal[16, 8, 4, 2]
    """bytes to which rows must be aligned; the first matching entry is used"""
    tiles: Annotated[list[Tile], Field(min_length=1, max_length=1000)]
    """rows, columns, step along k, blocks that one SM holds"""
    times: KernelTimes
    """constants of the time"""
    choice: KernelChoice
    """exceptions in the choice of the kernel"""


class ProfileFile(ProfilePart):
    """A whole GPU profile."""

    schema_version: Literal[6] = Field(alias="schema")
    """version of this schema"""
    name: Annotated[str, Field(min_length=1)]
    """the part after `sim:`"""
    device: DeviceLayout
    """the GPU"""
    measured: Measured
    """origin of the figures"""
    constants: HostCosts
    """host costs and overheads"""
    jitter: list[HostSpeed]
    """how host times vary by the time since the last launch; empty: every call takes its median"""
    transfers: Transfers
    """copies and memsets"""
    copy_kernel: CopyTimes = Field(alias="copy")
    """the element-wise copy kernel"""
    rows: RowTimes
    """the softmax kernel"""
    memory: MemoryTimes
    """the cache, and what loaded memory does to kernels"""
    gemm: dict[Dtype, Annotated[list[GemmKernels], Field(min_length=1)]]
    """kinds of GEMM kernels by dtype, from the strictest alignment to the loosest"""

    @field_validator("device")
    @classmethod
    def _sms_can_be_counted(cls, device: DeviceLayout) -> DeviceLayout:
        count = device.layout.sm_count
        if count > MOST_SMS:
            raise ValueError(f"{count:,} SMs, where {MOST_SMS:,} are more than any GPU has")
        return device

    @field_validator("jitter")
    @classmethod
    def _times_rise(cls, jitter: list[HostSpeed]) -> list[HostSpeed]:
        since = [speed.since_us for speed in jitter]
        if jitter and not (since[0] == 0 and since == sorted(set(since))):
            raise ValueError(f"since_us should rise from 0, but is {since}")
        return jitter

    @field_validator("gemm")
    @classmethod
    def _every_gemm_has_a_kernel(
        cls, gemm: dict[Dtype, list[GemmKernels]]
    ) -> dict[Dtype, list[GemmKernels]]:
        for element in DTYPES.values():
            dtype, item = element.name, element.itemsize
            if dtype not in gemm:
                if not element.calibrated:
                    continue
                raise ValueError(f"{dtype} is missing")
            widths = [kernels.alignment for kernels in gemm[dtype]]
            if widths != sorted(set(widths), reverse=True) or widths[-1] > item:
                raise ValueError(
                    f"{dtype}: alignments should fall from one kind to the next, "
                    f"down to {item} or less, but are {widths}"
                )
        return gemm

    @classmethod
    def parse(cls, text: str | bytes, where: str) -> Self:
        """Read a profile, also one of schema 5.

        Raises
        ------
        InvalidProfile
            It is not one; a line for each field that is wrong, by its path.
        """
        try:
            return cls.model_validate_json(json.dumps(upgraded(_foreign.loads(text))))
        except _foreign.Malformed as error:
            lines = [f"  the file: {error}"]
        except ValidationError as error:
            lines = [f"  {_explain(details)}" for details in error.errors(include_url=False)]
        raise InvalidProfile(
            f"{where} is not a GPU profile of schema 6 (docs/gpu_profile.md):\n" + "\n".join(lines)
        )


def _explain(error: ErrorDetails) -> str:
    path = clean(".".join(str(part) for part in error["loc"] if part != "[key]")) or "the file"
    if error["type"] == "missing":
        return f"{path}: missing; this field is required"
    if error["type"] == "extra_forbidden":
        return f"{path}: unknown field"
    text = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    value = error["input"]
    shown = "" if isinstance(value, dict | list | bytes) or len(repr(value)) > 60 else repr(value)
    return f"{path}: {text}" + (f", but found {shown}" if shown else "")
