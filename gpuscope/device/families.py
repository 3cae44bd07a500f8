"""Families of devices that are registered: what opens those of a name such as ``sim:h200``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from gpuscope._plugins import Plugins
from gpuscope.device.device import Device
from gpuscope.device.raw import Backend

Pace = Literal["none", "real"]


class MakeBackend(Protocol):
    """What makes the backend of a device."""

    def __call__(self, name: str, /, *, pace: Pace, jitter: bool) -> Backend[Any, Any, Any]:
        """Return the backend of the device ``FAMILY:name``, as :func:`open_device` was asked."""


@dataclass(frozen=True)
class DeviceFamily:
    """Devices of one backend. An entry point of the group ``gpuscope.backends`` names one.

    The entry point's name is what stands before the colon in :func:`gpuscope.open_device`.

    Attributes
    ----------
    make
        Makes the backend of a device by what stands behind the colon.
    names
        Returns which of them ``gpuscope devices`` lists, by what stands behind the colon.
    opened
        Told of each device when it is open.
    memory_rates
        Returns what the family knows of other GPUs, by their full names: the rate of copies on the
        device, counting reads and writes, bytes/µs.

    Examples
    --------
    >>> from gpuscope.device import DeviceFamily
    >>> from gpuscope.device.cpu import CpuBackend
    >>> family = DeviceFamily(lambda name, *, pace, jitter: CpuBackend(), names=lambda: ["mine"])
    >>> family.names()
    ['mine']
    """

    make: MakeBackend
    names: Callable[[], Iterable[str]] = tuple
    opened: Callable[[Device], object] | None = None
    memory_rates: Callable[[], Mapping[str, int]] = dict


def _wrong(name: str, value: object) -> str:
    if name in ("auto", "cpu", "cuda"):
        return "gpuscope has a device of that name"
    if isinstance(value, DeviceFamily):
        return ""
    return f"it is a {type(value).__name__}, not a gpuscope.device.DeviceFamily"


FAMILIES: Plugins[DeviceFamily] = Plugins("gpuscope.backends", "backend", _wrong)


def memory_rate(name: str) -> int | None:
    """Return the rate of copies on GPUs of a name, bytes/µs; ``None`` where none was measured."""
    every = (family.memory_rates() for family in FAMILIES.usable().values())
    return next((rates[name] for rates in every if name in rates), None)
