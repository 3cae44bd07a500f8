"""Facts of devices, partitions, streams and packages for a trace's metadata."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import multiprocessing
import os
import platform
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec
from msgspec.structs import replace

from gpuscope._threads import number_of
from gpuscope.device.api import DeviceInfo
from gpuscope.device.device import Device
from gpuscope.device.families import memory_rate
from gpuscope.device.foreign import NamedPartition
from gpuscope.device.ranks import ranks_of_process
from gpuscope.device.views import PartitionView, StreamView
from gpuscope.errors import GpuscopeError
from gpuscope.trace.facts import DeviceFacts, PartitionFacts, RankFacts, StreamFacts

_PACKAGES = """
    gpuscope numpy pyarrow cupy-cuda12x cupy-cuda13x cuda-core cuda-bindings nvmath-python nvtx
    cupti-python
"""


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


def info_facts(info: DeviceInfo) -> DeviceFacts:
    """Return the facts of a device that may not be open."""
    return msgspec.convert(info, DeviceFacts, from_attributes=True)


def with_memory_rate(facts: DeviceFacts) -> DeviceFacts:
    """Return them with what was measured of GPUs of that name."""
    if facts.memory_bytes_per_us is not None or facts.name is None:
        return facts
    return replace(facts, memory_bytes_per_us=memory_rate(facts.name))


def stream_facts(stream: StreamView[object]) -> StreamFacts:
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


def partition_facts(partition: PartitionView | NamedPartition) -> PartitionFacts:
    """Return the facts of a partition, ours or another library's that has a name."""
    facts = msgspec.convert(partition, PartitionFacts, from_attributes=True)
    return msgspec.structs.replace(facts, color=facts.color or None)


@cache
def versions() -> Mapping[str, str]:
    """Return package → version, of Python and of what matters to a recording."""
    installed = {"python": platform.python_version()}
    for package in _PACKAGES.split():
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def system_threads(before: Mapping[str, str]) -> dict[str, str]:
    """Return the system's names of this process's threads by their numbers.

    Parameters
    ----------
    before
        What this returned before: these are not asked again, as a file is read for each, which of
        a hundred threads takes ms.
    """
    names: dict[str, str] = {}
    for path in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # it has ended
            names[path.name] = (
                before.get(path.name) or (path / "comm").read_text("utf-8", "replace").strip()
            )
    return names


def thread_names(
    known: Mapping[int, str], system: Mapping[str, str], *, alive: bool
) -> dict[str, str]:
    """Return the names of threads: known ones, and Python's that are ``alive`` if they count.

    Of threads that are none of Python's, such as PyTorch's ``pt_autograd_0``, the system's names,
    unless they are the process's own.
    """
    of_process = system.get(str(os.getpid()))
    names = {number: name for number, name in system.items() if name != of_process}
    of_python = threading.enumerate() if alive else []
    python = {str(number_of(thread)): thread.name for thread in of_python}
    python |= {str(number): name for number, name in known.items()}
    for number, name in python.items():
        if not (name.startswith("Dummy-") and number in names):  # Python made that name up
            names[number] = "pin-memory thread" if "_pin_memory_loop" in name else name
    return names


def process_name() -> str:
    """Return what this process is called: DataLoader's worker, or as multiprocessing has it."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    if info := getattr(worker, "_worker_info", None):
        return f"DataLoader worker {info.id}"
    name = multiprocessing.current_process().name
    return "python" if name == "MainProcess" else name


def rank_facts(process: int, devices: Sequence[str]) -> RankFacts | None:
    """Return the rank of this process, if it has one.

    Parameters
    ----------
    process
        The number by which rows name it.
    devices
        Keys of those that it uses.
    """
    ranks = ranks_of_process()
    if ranks is None:
        return None
    distributed = sys.modules.get("torch.distributed")
    ready = distributed is not None and distributed.is_available() and distributed.is_initialized()
    local = f"cuda:{os.environ.get('LOCAL_RANK', '')}"
    return RankFacts(
        rank=ranks.rank,
        world_size=ranks.world_size,
        host=platform.node(),
        process=process,
        device=devices[0] if len(devices) == 1 else local if local in devices else None,
        backend=str(distributed.get_backend()) if distributed is not None and ready else "",
    )


@cache
def clock_name(*, simulated: bool) -> str:
    """Return what names the clock of a recording: the same in each container of a machine."""
    if simulated:
        return ""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return hashlib.sha256(platform.node().encode()).hexdigest()[:32]
