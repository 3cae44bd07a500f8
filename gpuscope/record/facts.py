"""Facts of devices, partitions, streams and packages for a trace's metadata."""

from __future__ import annotations

import importlib.metadata
import platform
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

import msgspec

from gpuscope._threads import number_of
from gpuscope.device.api import DeviceInfo
from gpuscope.device.device import Device
from gpuscope.device.partition import Partition
from gpuscope.device.stream import Stream
from gpuscope.errors import GpuscopeError
from gpuscope.trace.metadata import DeviceFacts, PartitionFacts, StreamFacts

_PACKAGES = ("gpuscope", "numpy", "pyarrow", "cupy-cuda12x", "cupy-cuda13x", "cuda-core",
             "cuda-bindings", "nvmath-python", "nvtx", "cupti-python")  # fmt: skip


def one_clock(devices: Sequence[Device]) -> str:
    """Return the time base of devices; refuse those that share none: a simulated one is alone."""
    simulated = sum(device.is_simulated for device in devices)
    if simulated > 1 or (simulated and simulated < len(devices)):
        keys = Counter(device.info.key for device in devices)
        several = ", ".join(f"{count} × {key}" for key, count in keys.most_common(8))
        raise GpuscopeError(
            f"one recording cannot mix the clocks of the open devices ({several}): say which "
            "with profile(device)"
        )
    return "virtual" if simulated else "unix"


def device_facts(device: Device, *, health: bool) -> DeviceFacts:
    """Return the facts of a device.

    Parameters
    ----------
    health
        Also ask the driver for clocks, power and throttling, which takes a while.
    """
    facts = info_facts(device.info)
    return msgspec.structs.replace(facts, **(device.backend.health() if health else {}))


def info_facts(info: DeviceInfo) -> DeviceFacts:
    """Return the facts of a device that may not be open."""
    return msgspec.convert(info, DeviceFacts, from_attributes=True)


def stream_facts(stream: Stream) -> StreamFacts:
    """Return the facts of a stream."""
    partition = stream.partition
    return StreamFacts(
        name=stream.name,
        partition=partition.name if partition is not None else None,
        priority=stream.priority,
        device=stream.device.info.key,
        legacy_default=stream.kind == "legacy default",
        blocking=bool(stream.blocking),
        per_thread=stream.kind == "per-thread default",
    )


def partition_facts(partition: Partition) -> PartitionFacts:
    """Return the facts of a partition."""
    facts = msgspec.convert(partition, PartitionFacts, from_attributes=True)
    return msgspec.structs.replace(facts, color=facts.color or None)


@cache
def versions() -> Mapping[str, str]:
    """Return package → version, of Python and of what matters to a recording."""
    installed = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def thread_names(known: Mapping[int, str], *, alive: bool) -> dict[str, str]:
    """Return the names of threads: known ones, and Python's that are ``alive`` if they count."""
    of_python = threading.enumerate() if alive else []
    names = {str(number_of(thread)): thread.name for thread in of_python}
    return {**names, **{str(number): name for number, name in known.items()}}
