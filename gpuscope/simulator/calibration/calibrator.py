"""Measure the GPU at hand and write the profile that it is simulated by."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from pathlib import Path

from gpuscope._checks import door
from gpuscope._libcupti import library_path
from gpuscope.device.device import Device
from gpuscope.device.select import UnifiedDevice, open_device
from gpuscope.errors import CapabilityError, DeviceUnavailable, GpuscopeError
from gpuscope.search.scale_out import Team, locked, team_of
from gpuscope.simulator.calibration import contention, gemms, host
from gpuscope.simulator.calibration import errors as judge
from gpuscope.simulator.calibration.design import MOST, shapes
from gpuscope.simulator.calibration.fit import fit_gemm
from gpuscope.simulator.calibration.kernels import KINDS, MeasuredShape, kind, unreadable
from gpuscope.simulator.calibration.memory import Pair, fitted
from gpuscope.simulator.calibration.written import check_target, profile_of, write_profile
from gpuscope.simulator.engine.jitter import Speeds
from gpuscope.simulator.models.gemm_model import ITEM_BYTES
from gpuscope.simulator.profiles.profile import GpuProfile
from gpuscope.simulator.profiles.schema import DeviceLayout, ProfileFile
from gpuscope.trace.metadata import TraceMetadata

BUDGET_S = 172.0

_BFLOAT16_SINCE = (8, 0)

Progress = Callable[[float, str], None]
"""Takes the share that is done, from 0 to 1, and what is being done."""

_FIT_S = 85.0
"""Kept back for the fits."""

_LEAST_SHAPES = 40
"""Fewer say too little of each kind of kernels."""


@dataclass(frozen=True)
class Measurements:
    """What a calibration measured, ready for the fit.

    Attributes
    ----------
    device, constants
        Tables of the profile.
    gemm, told
        Rows of GEMMs, not told the SM count and told; the second say what the library prefers.
    copy, softmax, vector, pairs
        Rows of the copy and the softmax kernel, of products of a vector, and of kernels beside
        others.
    jitter, power
        How host times vary, and what a large GEMM draws, by dtype: see
        :mod:`gpuscope.simulator.calibration.host`.
    metadata
        Of a recording: devices and versions.
    skipped
        GEMM timings left out because one call would have taken too long.
    notes
        What was not measured, and the values used instead.
    """

    device: DeviceLayout
    constants: Mapping[str, int]
    gemm: Sequence[MeasuredShape]
    told: Sequence[MeasuredShape]
    copy: Sequence[Mapping[str, float]]
    softmax: Sequence[Mapping[str, float]]
    vector: Sequence[Mapping[str, float]]
    pairs: Sequence[Pair]
    transfers: Mapping[str, Sequence[tuple[int, float]]]
    jitter: Speeds
    power: Mapping[str, float]
    metadata: TraceMetadata
    skipped: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Calibration:
    """A fitted profile and its errors.

    Attributes
    ----------
    path
        The file: open it with ``open_device(f"sim:{path}")``.
    profile
        What is in it.
    errors
        Errors of GEMM times in the fit, by dtype: rows, median and p90 of the relative error;
        and, for comparison, those of the time on all SMs scaled by the share of SMs
        (share_median, share_p90).
    held_out
        The same for a fifth of the shapes, predicted by a fit to the others.
    told_errors
        Rows, median and p90 of the error of GEMMs of these shapes whose library was told the SM
        count. Empty if none was measured.
    unreadable
        Names of kernels whose tile could not be determined; they are not used in the fit.
    skipped
        Timings left out because one call would have taken too long.
    notes
        What was not measured, and the values used instead.
    measured_s, fitted_s
        Wall time of the measurement and of the fits.
    """

    path: Path
    profile: ProfileFile
    errors: judge.Table
    held_out: judge.Table
    told_errors: Mapping[str, float]
    unreadable: tuple[str, ...]
    skipped: int
    notes: tuple[str, ...]
    measured_s: float
    fitted_s: float


@door(path=(str, Path), budget_s=float, executor=(Executor, str, None))
def calibrate(
    device: Device | str | None = None,
    path: str | Path = "gpu.json",
    *,
    progress: Progress | None = None,
    budget_s: float = BUDGET_S,
    executor: Executor | str | None = None,
) -> Calibration:
    """Measure a GPU and write a profile to simulate it.

    Parameters
    ----------
    device
        An open CUDA device, or its name; ``"cuda:0"`` if not given. Nothing else should run on
        it, and none of its partitions may be open.
    path
        The file to write, ending in ``.json``. It is replaced only by a complete profile.
    progress
        Called from this thread with the share done, from 0 to 1, and a text.
    budget_s
        Time limit in seconds. With less time, fewer shapes are measured.
    executor
        As in :func:`gpuscope.search.sweep`: GPUs of one model measure more GEMMs in the same time.

    Returns
    -------
    Calibration
        The profile, and its errors: in the fit, and on shapes left out of it.

    Raises
    ------
    DeviceUnavailable
        There is no such GPU, or the device is simulated and cannot be measured.
    MissingDependency, CapabilityError
        CUPTI is missing, which measures the kernel durations. The message says how to install it.
    RecorderBusy
        Another profiler records in this process.
    MissingEvidence
        A recording is incomplete.
    InvalidPartition
        Open partitions hold SMs.
    GpuscopeError
        The file cannot be written, or too little could be measured in the time.

    Notes
    -----
    Calibration measures the host costs of gpuscope's calls, Python included; copies; and GEMMs of
    random and a few fixed shapes in four dtypes on up to eight SM counts. Host costs are higher
    in a process that has recorded with CUPTI: calibrate in a new process. Without green contexts
    in the driver, everything is measured on all SMs, and the simulated GPU cannot be carved
    either. ``sim:h200`` was fitted by the same code.

    Examples
    --------
    >>> import gpuscope as gs
    >>> from gpuscope.simulator import calibrate
    >>> calibrate("sim:h200", "mine.json")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gpuscope.errors.DeviceUnavailable: calibrate measures a real GPU, and sim:h200 is simulated: ...
    """
    target = Path(path)
    check_target(target)
    if not budget_s > _FIT_S:
        raise GpuscopeError(
            f"budget_s is {budget_s}; more than {_FIT_S:.0f} s is needed for the fit alone"
        )
    tell = progress or (lambda _share, _what: None)
    gpu = real_gpu(device)
    library_path()  # says what is missing before anything is measured
    start_s, left_s = time.monotonic(), budget_s - _FIT_S
    if executor is None:
        with locked([gpu.info]):
            measured = measure(gpu, "cupti", budget_s=left_s, progress=tell)
    else:
        with team_of(executor, device if device is not None else "cuda", gpu.info) as team:
            measured = measure(gpu, "cupti", budget_s=left_s, progress=tell, team=team)
    measured_s = time.monotonic() - start_s
    return fit(measured, target, measured_s=measured_s, progress=tell)


def real_gpu(device: Device | str | None) -> Device:
    """Open a GPU that can be measured."""
    asked = "cuda:0" if device is None else device
    gpu = asked if isinstance(asked, Device) else open_device(asked, quiet=True)
    if gpu.info.kind != "cuda":
        what = "simulated" if gpu.is_simulated else "no GPU"
        raise DeviceUnavailable(
            f"calibrate measures a real GPU, and {gpu.info.key} is {what}: name a CUDA device, "
            "such as cuda:0"
        )
    if isinstance(gpu, UnifiedDevice):
        raise CapabilityError(
            f"{gpu.info.key} was opened with unified_stream=True, where work leaves its "
            "partition: calibrate in a process that opens it without"
        )
    return gpu


def measure(
    device: Device,
    source: host.Source,
    *,
    budget_s: float,
    progress: Progress,
    shape_count: int | None = None,
    team: Team | None = None,
) -> Measurements:
    """Measure a device; simulated ones too, which tests compare with what they are made from.

    Parameters
    ----------
    source
        Of kernel times.
    budget_s
        On the device's clock.
    shape_count, team
        GEMM shapes, if fewer than the design has; and what measures them in place of the device.
    """
    until_ns = device.now_ns() + round(budget_s * 1e9)
    info, notes = device.info, []
    progress(0, "calls")  # before anything records: calls cost more from then on
    constants = host.call_costs(device) | host.partition_costs(device)
    progress(0.02, "launches")
    overheads, metadata = host.overheads(device, source)
    constants |= overheads
    host_samples = [host.launches(device)]
    if not device.capabilities.partitions:
        stand_in = GpuProfile.load("h200").constants["create_partition_call_ns"]
        constants["create_partition_call_ns"] = stand_in
        notes.append(
            "measured on all SMs only: "
            + device.capabilities.reasons.get("partitions", "the device cannot be carved")
            + ". The simulated GPU cannot be carved either; the cost of a partition is an H200's"
        )
    progress(0.04, "copies")
    constants |= host.copy_rate(device, source)
    host_samples.append(host.launches(device))
    transfers = host.transfers(device, source)
    copies = contention.copy_kernels(device, source)
    softmaxes = contention.row_kernels(device, source)
    vectors = contention.vector_kernels(device, source)
    host_samples.append(host.launches(device))
    lacking = {"bfloat16"} if info.compute_capability < _BFLOAT16_SINCE else set()
    dtypes = [name for name in ITEM_BYTES if name not in lacking]
    drawn = host.power(device, source, dtypes)
    host_samples.append(host.launches(device))
    most = min(MOST**2, info.memory_bytes // (4 * 2 * sum(ITEM_BYTES.values())))
    chosen = shapes(most_elements=most)[:shape_count]
    measured = gemms.measure(
        device,
        chosen,
        dtypes,
        source,
        until_ns=until_ns,
        team=team,
        step=lambda done: progress(0.06 + 0.8 * done / len(chosen), "matrix products"),
    )
    progress(0.87, "kernels beside others")
    beside = contention.pairs(device)
    host_samples.append(host.launches(device))
    costs, jitter = host.experiment_costs(host_samples, constants)
    constants |= costs
    rows = list(measured.rows)
    if lacking:
        rows += [{**row, "dtype": "bfloat16"} for row in rows if row["dtype"] == "float16"]
        drawn["bfloat16"] = drawn["float16"]
        notes.append("this GPU has no bfloat16: the times of float16 stand in")
    return Measurements(
        device=DeviceLayout(
            name=info.name,
            compute_capability=info.compute_capability,
            memory_bytes=info.memory_bytes,
            **asdict(device.backend.layout),
        ),
        constants=constants,
        gemm=rows,
        told=measured.told,
        copy=copies,
        softmax=softmaxes,
        vector=vectors,
        pairs=beside,
        transfers=transfers,
        jitter=jitter,
        power=drawn,
        metadata=metadata,
        skipped=measured.skipped,
        notes=tuple(notes),
    )


def fit(
    measured: Measurements,
    target: Path,
    *,
    measured_s: float,
    progress: Progress = lambda _share, _what: None,
) -> Calibration:
    """Fit a profile to measurements, judge it, and write it.

    Raises
    ------
    GpuscopeError
        There are too few measurements.
    """
    start_s = time.monotonic()
    rows = measured.gemm
    layout = measured.device.layout
    _check_enough(rows)
    progress(0.88, "the fit")
    kinds = fit_gemm(rows, layout, measured.told)
    tables = profile_of(
        kinds,
        rows,
        name=target.stem,
        device=measured.device,
        measured=_provenance(measured),
        constants=measured.constants,
        transfers=measured.transfers,
        jitter=measured.jitter,
        power=measured.power,
    )
    fitted_tables = fitted(tables, measured.copy, measured.softmax, measured.vector, measured.pairs)
    progress(0.94, "the fit without a fifth of the shapes")
    kinds_without, out, out_told = judge.without_fold(rows, 0, measured.told, layout=layout)
    targeted = judge.errors_told(kinds_without, out_told, layout=layout)
    write_profile(fitted_tables, target)
    profile = GpuProfile.read(target)
    progress(1, "done")
    return Calibration(
        path=target,
        profile=profile.file,
        errors=judge.judged(kinds, rows, layout=layout),
        held_out=judge.judged(kinds_without, out, layout=layout),
        told_errors=judge.spread(targeted) if targeted else {},
        unreadable=tuple(unreadable(rows)),
        skipped=measured.skipped,
        notes=measured.notes,
        measured_s=measured_s,
        fitted_s=time.monotonic() - start_s,
    )


def _check_enough(rows: Sequence[MeasuredShape]) -> None:
    measured_kinds = {kind(row) for row in rows}
    missing = [
        f"{dtype} aligned to {width} bytes"
        for dtype, width in KINDS
        if (dtype, width) not in measured_kinds
    ]
    count = len({tuple(row["shape"]) for row in rows})
    if missing or count < _LEAST_SHAPES:
        raise GpuscopeError(
            f"only {count} shapes could be measured in the time, and at least {_LEAST_SHAPES} are "
            "needed"
            + (f"; none was {' or '.join(missing)}" if missing else "")
            + ": raise budget_s, and let nothing else run on the GPU"
        )


def _provenance(measured: Measurements) -> dict[str, str]:
    """Return where the figures come from, as the profile says it."""
    facts, name = measured.metadata, measured.device.name
    how = "virtual times" if facts.simulated else "kernel durations by CUPTI"
    today = dt.datetime.now(dt.UTC).date().isoformat()
    software = ", ".join(f"{package} {version}" for package, version in facts.versions.items())
    return {
        "driver": next(str(device.driver) for device in facts.devices.values()),
        "software": software or "unknown",
        "source": "; ".join([f"{how}, one {name}, on {today} (UTC)", *measured.notes]),
    }
