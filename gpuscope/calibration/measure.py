"""Measuring a device for a profile: what to measure, in which order, and what stands in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from gpuscope.calibration import gemms, host
from gpuscope.calibration.design import MOST, shapes
from gpuscope.calibration.kernels import Row
from gpuscope.device.device import Device
from gpuscope.device.sim.gemm_model import ITEM_BYTES
from gpuscope.device.sim.profile import Profile
from gpuscope.trace.metadata import TraceMetadata

_BFLOAT16_SINCE = (8, 0)

Progress = Callable[[float, str], None]
"""Takes the share that is done, from 0 to 1, and what is being done."""


class DeviceTable(TypedDict):
    """The profile's table ``device``."""

    name: str
    quantum_sm_count: int
    quanta: int
    remainder_sm_count: int
    compute_capability: list[int]
    memory_bytes: int


@dataclass(frozen=True)
class Measurements:
    """What a calibration measured, ready for the fit.

    Attributes
    ----------
    device, constants
        Tables of the profile.
    gemm, told
        Rows of GEMMs, not told the SM count and told; the second are in no fit.
    copy
        Rows of the copy kernel.
    metadata
        Of a recording: devices and versions.
    skipped
        GEMM timings left out because one call would have taken too long.
    notes
        What was not measured, and the values used instead.
    """

    device: DeviceTable
    constants: Mapping[str, int]
    gemm: Sequence[Row]
    told: Sequence[Row]
    copy: Sequence[Mapping[str, float]]
    transfers: Mapping[str, Sequence[tuple[int, float]]]
    metadata: TraceMetadata
    skipped: int
    notes: tuple[str, ...]


def measure(
    device: Device,
    source: host.Source,
    *,
    budget_s: float,
    progress: Progress,
    shape_count: int | None = None,
) -> Measurements:
    """Measure a device; simulated ones too, which tests compare with what they are made from.

    Parameters
    ----------
    source
        Of kernel times.
    budget_s
        On the device's clock.
    shape_count
        GEMM shapes, if fewer than the design has.
    """
    until_ns = device.now_ns() + round(budget_s * 1e9)
    info, layout, notes = device.info, device.backend.layout, []
    progress(0, "calls")  # before anything records: calls cost more from then on
    constants = host.call_costs(device) | host.partition_costs(device)
    progress(0.02, "launches")
    overheads, metadata = host.overheads(device, source)
    constants |= overheads
    if not device.capabilities.partitions:
        stand_in = Profile.load("h200").constants["create_partition_call_ns"]
        constants["create_partition_call_ns"] = stand_in
        notes.append(
            "measured on all SMs only: "
            + device.capabilities.reasons.get("partitions", "the device cannot be carved")
            + ". The simulated GPU cannot be carved either; the cost of a partition is an H200's"
        )
    progress(0.04, "copies")
    constants |= host.copy_rate(device, source)
    transfers = host.transfers(device, source)
    copies = host.copy_kernels(device, source)
    dtypes = [name for name in ITEM_BYTES if _has(device, name)]
    most = min(MOST**2, info.memory_bytes // (4 * 2 * sum(ITEM_BYTES.values())))
    chosen = shapes(most_elements=most)[:shape_count]
    measured = gemms.measure(
        device, chosen, dtypes, source, until_ns=until_ns,
        step=lambda done: progress(0.06 + 0.8 * done / len(chosen), "matrix products"),
    )  # fmt: skip
    rows = list(measured.rows)
    if "bfloat16" not in dtypes:
        rows += [{**row, "dtype": "bfloat16"} for row in rows if row["dtype"] == "float16"]
        notes.append("this GPU has no bfloat16: the times of float16 stand in")
    return Measurements(
        device={
            "name": info.name,
            "quantum_sm_count": layout.quantum_sm_count,
            "quanta": layout.quanta,
            "remainder_sm_count": layout.remainder_sm_count,
            "compute_capability": list(info.compute_capability),
            "memory_bytes": info.memory_bytes,
        },
        constants=constants, gemm=rows, told=measured.told, copy=copies, transfers=transfers,
        metadata=metadata, skipped=measured.skipped, notes=tuple(notes),
    )  # fmt: skip


def _has(device: Device, dtype: str) -> bool:
    return dtype != "bfloat16" or device.info.compute_capability >= _BFLOAT16_SINCE
