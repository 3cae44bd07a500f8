"""Facts of devices, partitions, streams and packages for a trace's metadata."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping
from functools import cache

from gpuscope.device.device import Device
from gpuscope.device.partition import Partition
from gpuscope.device.stream import Stream
from gpuscope.trace.metadata import DeviceFacts, PartitionFacts, StreamFacts

_PACKAGES = ("gpuscope", "numpy", "pyarrow", "cupy-cuda12x", "cupy-cuda13x", "cuda-core",
             "cuda-bindings", "nvmath-python", "nvtx", "cupti-python")  # fmt: skip


def device_facts(device: Device, *, health: bool) -> DeviceFacts:
    """Return the facts of a device.

    Parameters
    ----------
    health
        Also ask the driver for clocks, power and throttling, which takes a while.
    """
    info = device.info
    return DeviceFacts(
        index=info.index,
        uuid=info.uuid,
        name=info.name,
        sm_count=info.sm_count,
        driver=info.driver,
        launch_latency_ns=info.launch_latency_ns,
        kernel_gap_ns=info.kernel_gap_ns,
        **(device.backend.health() if health else {}),
    )


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
    return PartitionFacts(
        asked=partition.asked,
        sm_count=partition.sm_count,
        sm_ids=tuple(partition.sm_ids),
        sm_count_target=partition.sm_count_target,
        context=partition.context,
        shares_with=tuple(partition.shares_with),
        color=partition.color or None,
    )


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
