"""Measure the GPU at hand and write the profile that it is simulated by."""

from __future__ import annotations

import datetime as dt
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpuscope._checks import door
from gpuscope._libcupti import library_path
from gpuscope.calibration.fit import fit_gemm
from gpuscope.calibration.judge import Table, cross_validate, errors_of, share_errors, table
from gpuscope.calibration.kernels import KINDS, Row, kind, unreadable
from gpuscope.calibration.measure import Measurements, Progress, measure
from gpuscope.calibration.profile_file import layout_of, profile_of, write_profile
from gpuscope.device.device import Device, UnifiedDevice
from gpuscope.device.select import open_device
from gpuscope.device.sim.profile import Profile
from gpuscope.device.sim.schema import ProfileFile
from gpuscope.errors import CapabilityError, DeviceUnavailable, GpuscopeError

BUDGET_S = 170.0

_FIT_S = 45.0
"""Kept back for the fits."""

_LEAST_SHAPES = 40
"""Fewer say too little of each kind of kernels."""


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
        Rows, median and p90 of the error of GEMMs whose library was told the SM count; not used
        in the fit. Empty if none was measured.
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
    errors: Table
    held_out: Table
    told_errors: Mapping[str, float]
    unreadable: tuple[str, ...]
    skipped: int
    notes: tuple[str, ...]
    measured_s: float
    fitted_s: float


@door(path=(str, Path), budget_s=float)
def calibrate(
    device: Device | str | None = None,
    path: str | Path = "gpu.json",
    *,
    progress: Progress | None = None,
    budget_s: float = BUDGET_S,
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
    >>> from gpuscope.calibration import calibrate
    >>> calibrate("sim:h200", "mine.json")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gpuscope.errors.DeviceUnavailable: calibrate measures a real GPU, and sim:h200 is simulated: ...
    """
    target = Path(path)
    _check_target(target)
    if not budget_s > _FIT_S:
        raise GpuscopeError(
            f"budget_s is {budget_s}; more than {_FIT_S:.0f} s is needed for the fit alone"
        )
    tell = progress or (lambda _share, _what: None)
    gpu = _real_gpu(device)
    library_path()  # says what is missing before anything is measured
    start_s = time.monotonic()
    measured = measure(gpu, "cupti", budget_s=budget_s - _FIT_S, progress=tell)
    measured_s = time.monotonic() - start_s
    return fit(measured, target, measured_s=measured_s, progress=tell)


def _check_target(target: Path) -> None:
    if target.suffix != ".json":
        raise GpuscopeError(
            f"a profile's file ends in .json, which {target.name!r} does not: "
            "open_device('sim:PATH.json') would not take it"
        )
    try:
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise GpuscopeError(
            f"cannot write {target.name!r}: {error.strerror}. Choose a folder that exists and "
            "can be written"
        ) from error


def _real_gpu(device: Device | str | None) -> Device:
    asked = device or "cuda:0"
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
    layout = layout_of(measured.device)
    _check_enough(rows)
    progress(0.88, "the fit")
    kinds = fit_gemm(rows, layout)
    made = profile_of(
        kinds, rows, measured.copy, name=target.stem, device=measured.device,
        measured=_provenance(measured), constants=measured.constants, transfers=measured.transfers,
    )  # fmt: skip
    progress(0.94, "the fit without a fifth of the shapes")
    held_out = cross_validate(rows, range(1), layout=layout)
    write_profile(made, target)
    profile = Profile.read(target)
    progress(1, "done")
    return Calibration(
        path=target, profile=profile.file,
        errors=table(errors_of(kinds, rows, layout=layout), share_errors(rows, layout=layout)),
        held_out=held_out, told_errors=_told_errors(measured.told, profile),
        unreadable=tuple(unreadable(rows)), skipped=measured.skipped, notes=measured.notes,
        measured_s=measured_s, fitted_s=time.monotonic() - start_s,
    )  # fmt: skip


def _check_enough(rows: Sequence[Row]) -> None:
    there = {kind(row) for row in rows}
    missing = [
        f"{dtype} aligned to {width} bytes" for dtype, width in KINDS if (dtype, width) not in there
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
    facts, name = measured.metadata, measured.device["name"]
    how = "virtual times" if facts.simulated else "kernel durations by CUPTI"
    today = dt.datetime.now(dt.UTC).date().isoformat()
    software = ", ".join(f"{package} {version}" for package, version in facts.versions.items())
    return {
        "driver": next(str(device.driver) for device in facts.devices.values()),
        "software": software or "unknown",
        "source": "; ".join([f"{how}, one {name}, on {today} (UTC)", *measured.notes]),
    }


def _told_errors(rows: Sequence[Row], profile: Profile) -> dict[str, float]:
    errors = []
    for row in rows:
        m, n, k = row["shape"]
        for sms, us in row["us"].items():
            cost = profile.gemm_cost(m, n, k, row["dtype"], int(sms), row["told"][sms])
            errors.append(abs(-(-cost.blocks // int(sms)) * cost.block_ns / 1e3 / us - 1))
    if not errors:
        return {}
    return {
        "rows": len(errors), "median": float(np.median(errors)),
        "p90": float(np.quantile(errors, 0.9)),
    }  # fmt: skip
