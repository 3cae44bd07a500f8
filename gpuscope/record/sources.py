"""Which sources a recording has."""

from __future__ import annotations

from gpuscope._optional import is_installed
from gpuscope.device.device import Device
from gpuscope.errors import CapabilityError, MissingDependency
from gpuscope.record.activity import ActivitySource
from gpuscope.record.counter_rows import ModelledCounters
from gpuscope.record.cupti.source import CuptiSource
from gpuscope.record.events import EventSource
from gpuscope.record.source import Options, Source


def start_sources(
    devices: tuple[Device, ...],
    options: Options,
    sources: list[Source],
    of_device: dict[str, Source],
) -> list[str]:
    """Begin to record; returns notes on what could not be used.

    Parameters
    ----------
    sources
        Gets each source before it starts: whatever interrupts this, finishing them ends it.
    of_device
        Gets device key → the source that times that device's work.
    """
    notes = []
    cuda = [device.info.key for device in devices if device.info.kind == "cuda"]

    def start(source: Source, keys: list[str]) -> None:
        sources.insert(0, source)  # CUPTI, which starts first, is drained last
        of_device.update(dict.fromkeys(keys, source))
        source.start()

    try:
        is_there = options.source == "cupti" or is_installed("cupti")
        if (cuda or not devices) and options.source != "events" and is_there:
            start(CuptiSource(devices, options), cuda)
    except (MissingDependency, CapabilityError) as error:
        if options.source == "cupti":
            raise
        sources.clear()
        of_device.clear()
        notes.append(f"CUPTI is not used: {error}")
    for device in devices:
        key = device.info.key
        if key not in of_device:
            source = EventSource(device) if key in cuda else ActivitySource(device)
            source.detail = options.detail
            if isinstance(source, ActivitySource) and options.counters_ns and device.is_simulated:
                source.counters = ModelledCounters()
            start(source, [key])
    return notes
