"""A profile's file: fitted from measurements, written whole or not at all."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuscope._files import replacing
from gpuscope.calibration.fit import Fitted, fit_copy
from gpuscope.calibration.kernels import Key, Row
from gpuscope.calibration.measure import DeviceTable
from gpuscope.device.carve import SmLayout
from gpuscope.device.sim.gemm_model import ITEM_BYTES
from gpuscope.device.sim.schema import ProfileFile


def layout_of(device: DeviceTable) -> SmLayout:
    """Return the SM layout that a profile's ``device`` table states."""
    return SmLayout(device["quantum_sm_count"], device["quanta"], device["remainder_sm_count"])


def profile_of(
    kinds: Mapping[Key, Fitted],
    rows: Sequence[Row],
    copies: Sequence[Mapping[str, float]],
    *,
    name: str,
    device: DeviceTable,
    measured: Mapping[str, str],
    constants: Mapping[str, int],
    transfers: Mapping[str, Sequence[tuple[int, float]]],
) -> dict[str, object]:
    """Return a whole profile, as its file holds it.

    Parameters
    ----------
    kinds, rows
        What :func:`~gpuscope.calibration.fit.fit_gemm` made of which measured rows.
    copies
        Measurements of the copy kernel, which are fitted here.
    device, measured, constants, transfers
        The tables of these names; counts of shapes and rows are added to ``measured``.
    """
    gemm = {
        dtype: [
            {
                "alignment": width,
                "tiles": kinds[dtype, width].tiles,
                "times": kinds[dtype, width].times.model_dump(),
                "choice": kinds[dtype, width].choice.model_dump(),
            }
            for width in sorted((width for name, width in kinds if name == dtype), reverse=True)
        ]
        for dtype in ITEM_BYTES
    }
    counts = {
        "shapes": len({tuple(row["shape"]) for row in rows}),
        "rows": sum(len(row["us"]) for row in rows),
    }
    return {
        "schema": 3,
        "name": name,
        "device": dict(device),
        "measured": {**measured, **counts},
        "constants": dict(constants),
        "transfers": {way: [list(pair) for pair in times] for way, times in transfers.items()},
        "copy": fit_copy(copies),
        "gemm": gemm,
    }


def write_profile(profile: Mapping[str, object], target: Path) -> None:
    """Write a profile, checked, its tiles on one line each kind; all of it or nothing.

    Raises
    ------
    InvalidProfile
        It does not validate.
    GpuscopeError
        The file cannot be written.
    """
    text = json.dumps(profile, indent=1, ensure_ascii=False)
    text = re.sub(r"\[[\s\d.,\[\]]+\]", lambda match: re.sub(r"\s+", "", match[0]), text)
    ProfileFile.parse(text, str(target))
    with replacing(target) as temporary:
        temporary.write_text(text + "\n", "utf-8")
