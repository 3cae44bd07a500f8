"""What NVML tells of a GPU: clocks, power, throttling, and how many processes use it."""

from __future__ import annotations

import contextlib
import importlib

from gpuscope._types import Untyped
from gpuscope.device.raw import Health


def health_of(system: Untyped) -> Health:
    """Return what is known of a GPU, as cuda.core's system device tells it.

    NVML may be absent or forbidden: what it does not tell is left out.
    """
    health: Health = {}
    with contextlib.suppress(Exception):
        health["sm_clock_mhz"] = int(system.get_clock("sm").get_current_mhz())
        health["memory_clock_mhz"] = int(system.get_clock("memory").get_current_mhz())
        reasons = system.current_clock_event_reasons
        health["throttle_reasons"] = tuple(str(reason) for reason in reasons)
    with contextlib.suppress(Exception):
        nvml = importlib.import_module("cuda.bindings.nvml")
        handle = nvml.device_get_handle_by_uuid(str(system.uuid))
        health["power_w"] = nvml.device_get_power_usage(handle) / 1000
        health["processes"] = len(nvml.device_get_compute_running_processes_v3(handle))
    return health


ENERGY_STEP_NS = 100_000_000
"""How often the driver adds to the counter of energy: seen on an H100 with driver 580."""


def energy_j_of(system: Untyped) -> float | None:
    """Return the energy in J that a GPU has drawn since its driver was loaded, if NVML tells it."""
    with contextlib.suppress(Exception):
        nvml = importlib.import_module("cuda.bindings.nvml")
        handle = nvml.device_get_handle_by_uuid(str(system.uuid))
        return float(nvml.device_get_total_energy_consumption(handle)) / 1e3
    return None


def health_of_all() -> dict[str, Health]:
    """Return what is known of each GPU of this machine by its UUID; takes no context on it."""
    health_by_uuid: dict[str, Health] = {}
    with contextlib.suppress(Exception):
        system = importlib.import_module("cuda.core.system")
        for device in system.Device.get_all_devices():
            health_by_uuid[str(device.uuid)] = health_of(device)
    return health_by_uuid
