"""The simulated GPUs as a family of devices, which ``open_device`` finds by its name."""

from __future__ import annotations

import contextlib
import weakref
from contextlib import AbstractContextManager

from gpuscope.device.accesses import of_arrays
from gpuscope.device.api import NativeArray
from gpuscope.device.calls import Call
from gpuscope.device.device import Device
from gpuscope.device.families import DeviceFamily
from gpuscope.simulator.engine.backend import SimBackend
from gpuscope.simulator.profiles.profile import measured, shipped


def _tell_of_writes(device: Device) -> None:
    """Let assignments to the device's arrays count as work where hazards are looked for."""
    device_reference = weakref.ref(device)  # its backend does not keep it

    def assigning(
        target: NativeArray, sources: tuple[NativeArray, ...]
    ) -> AbstractContextManager[Call | None]:
        device = device_reference()
        if device is None or not device.calls.watchers:
            return contextlib.nullcontext()
        legacy, accesses = device.wrap_stream(0), of_arrays(sources, (target,))
        return device.calls.observed("launch", "assign", legacy, legacy, accesses=accesses)

    assert isinstance(device.backend, SimBackend)  # noqa: S101 - of this family
    device.backend.assigning = assigning


def _memory_rates() -> dict[str, int]:
    return {
        profile.file.device.name: profile.file.constants.device_copy_bytes_per_us
        for profile in measured()
    }


SIMULATED = DeviceFamily(
    SimBackend, names=shipped, opened=_tell_of_writes, memory_rates=_memory_rates
)
