"""What NVML tells of a GPU: clocks, power, throttling, and how many processes use it."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import uuid
from functools import cache
from typing import TypedDict

from gpuscope._types import Untyped

_PREFIXES = ("GPU-", "MIG-")
"""What NVML writes in front of the UUIDs that CUDA tells."""


class Health(TypedDict, total=False):
    """How a GPU stands, as far as NVML tells: also NVML's names of what holds the clock down."""

    sm_clock_mhz: int
    throttle_reasons: tuple[str, ...]
    power_w: float


@cache
def _nvml(process: int) -> Untyped:
    """Return NVML, initialised once in a process, as that takes a while."""
    del process
    nvml = importlib.import_module("cuda.bindings.nvml")
    nvml.init_v2()
    return nvml


@cache
def _handle(process: int, gpu: str) -> int:
    """Return NVML's handle of a GPU."""
    nvml = _nvml(process)
    with contextlib.suppress(nvml.NvmlError):
        return int(nvml.device_get_handle_by_uuid(_PREFIXES[0] + gpu))
    return int(nvml.device_get_handle_by_uuid(_PREFIXES[1] + gpu))


def clocks_of(gpu: str) -> Health:
    """Return SM clock, power and throttle reasons of a GPU: what a sampler reads again and again.

    NVML may be absent or forbidden: what it does not tell is left out.

    Parameters
    ----------
    gpu
        Its UUID as CUDA tells it, without NVML's prefix.
    """
    health: Health = {}
    with contextlib.suppress(Exception):
        nvml, handle = _nvml(os.getpid()), _handle(os.getpid(), gpu)
        with contextlib.suppress(nvml.NvmlError):
            health["sm_clock_mhz"] = nvml.device_get_clock_info(handle, nvml.ClockType.CLOCK_SM)
        with contextlib.suppress(nvml.NvmlError):
            mask = nvml.device_get_current_clocks_event_reasons(handle)
            health["throttle_reasons"] = tuple(
                reason.name.partition("REASON_")[2].lower()
                for reason in nvml.ClocksEventReasons
                if mask & reason
            )
        with contextlib.suppress(nvml.NvmlError):
            health["power_w"] = nvml.device_get_power_usage(handle) / 1000
    return health


ENERGY_STEP_NS = 100_000_000
"""How often the driver adds to the counter of energy: seen on an H100 with driver 580."""


def energy_j_of(gpu: str) -> float | None:
    """Return the energy in J that a GPU has drawn since its driver was loaded, if NVML tells it.

    Parameters
    ----------
    gpu
        As in :func:`clocks_of`.
    """
    with contextlib.suppress(Exception):
        nvml, handle = _nvml(os.getpid()), _handle(os.getpid(), gpu)
        return float(nvml.device_get_total_energy_consumption(handle)) / 1e3
    return None


def processes_by_uuid() -> dict[str, int]:
    """Return how many processes have a context on each GPU of this machine; makes none."""
    counts: dict[str, int] = {}
    with contextlib.suppress(Exception):
        nvml = _nvml(os.getpid())
        for index in range(nvml.device_get_count_v2()):
            handle = nvml.device_get_handle_by_index_v2(index)
            gpu = str(nvml.device_get_uuid(handle)).removeprefix(_PREFIXES[0])
            counts[gpu] = len(nvml.device_get_compute_running_processes_v3(handle))
    return counts


def gpus_in_use() -> dict[int, str]:
    """Return CUDA's index → UUID of the GPUs on which this process has a context.

    It initialises nothing: where the driver is not in use, there are none.
    """
    gpus: dict[int, str] = {}
    with contextlib.suppress(OSError, AttributeError):  # no driver, or one of long ago
        library, by = ctypes.CDLL("libcuda.so.1"), ctypes.byref
        count, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
        library.cuDeviceGetCount(by(count))
        for index in range(count.value):
            number = ctypes.create_string_buffer(16)
            if (
                not library.cuDevicePrimaryCtxGetState(index, by(flags), by(active))
                and active.value
                and not library.cuDeviceGetUuid_v2(number, index)
            ):
                gpus[index] = str(uuid.UUID(bytes=number.raw))
    return gpus
