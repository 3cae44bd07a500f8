"""Measure what calls cost on the host at hand, for a GPU that was measured elsewhere."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from gpuscope._checks import door
from gpuscope._libcupti import library_path
from gpuscope.device.device import Device
from gpuscope.search.scale_out import locked
from gpuscope.simulator.calibration import host
from gpuscope.simulator.calibration.calibrator import Progress, real_gpu
from gpuscope.simulator.calibration.written import check_target, write_profile
from gpuscope.simulator.engine.jitter import Speeds
from gpuscope.simulator.profiles.profile import GpuProfile
from gpuscope.trace.metadata import TraceMetadata

_SAMPLES = 8
"""Of launches: a host is slower for seconds."""


@door(path=(str, Path), profile=str)
def calibrate_host(
    device: Device | str | None = None,
    path: str | Path = "host.json",
    *,
    profile: str = "h200",
    progress: Progress | None = None,
) -> Path:
    """Measure what calls cost on this host, in some 20 s, and write a profile with these figures.

    Two hosts of one GPU differ by more than two GPUs of one model: most of a short call's latency,
    and all of its tail, are the host's.

    Parameters
    ----------
    device, progress
        As in :func:`calibrate`.
    path
        The file to write, ending in ``.json``.
    profile
        What follows ``sim:``: the profile of whose GPU the rest is.

    Returns
    -------
    Path
        The file: open it with ``open_device(f"sim:{path}")``.

    Raises
    ------
    DeviceUnavailable
        There is no such GPU or profile, or the device is simulated.
    GpuscopeError
        The file cannot be written.

    Examples
    --------
    >>> from gpuscope.simulator import calibrate_host
    >>> calibrate_host("sim:h200", "mine.json")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gpuscope.errors.DeviceUnavailable: calibrate measures a real GPU, and sim:h200 is simulated: ...
    """
    target = Path(path)
    check_target(target)
    file = GpuProfile.load(profile).file
    gpu = real_gpu(device)
    library_path()
    tell = progress or (lambda _share, _what: None)
    with locked([gpu.info]):
        constants, jitter, metadata = measure_host(gpu, "cupti", progress=tell)
    document = file.model_dump(mode="json", by_alias=True)
    today = dt.datetime.now(dt.UTC).date().isoformat()
    driver = next(str(facts.driver) for facts in metadata.devices.values())
    document |= {
        "name": target.stem,
        "constants": document["constants"] | constants,
        "jitter": [{"since_us": us, "quantiles": list(shares)} for us, shares in jitter],
    }
    document["measured"]["source"] += f"; the host's figures on {today} (UTC) with driver {driver}"
    write_profile(document, target)
    return target


def measure_host(
    device: Device, source: host.Source, *, progress: Progress
) -> tuple[dict[str, int], Speeds, TraceMetadata]:
    """Return what calls cost, how that varies, and what a recording says of itself."""
    progress(0, "calls")  # before anything records: calls cost more from then on
    constants = host.call_costs(device)
    if device.capabilities.partitions:
        constants |= host.partition_costs(device)
    overheads, metadata = host.overheads(device, source)
    constants |= overheads
    samples = []
    for number in range(_SAMPLES):
        progress((1 + number) / (1 + _SAMPLES), "launches")
        samples.append(host.launches(device))
    costs, jitter = host.experiment_costs(samples, constants)
    progress(1, "done")
    return constants | costs, jitter, metadata
