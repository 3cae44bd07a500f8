"""A fitted profile as its file holds it."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuscope._files import write_text
from gpuscope.errors import GpuscopeError
from gpuscope.simulator.calibration.kernels import Key, MeasuredShape
from gpuscope.simulator.engine.jitter import Speeds
from gpuscope.simulator.models.gemm_model import ITEM_BYTES
from gpuscope.simulator.profiles.schema import DeviceLayout, GemmKernels, ProfileFile


def profile_of(
    kinds: Mapping[Key, GemmKernels],
    rows: Sequence[MeasuredShape],
    *,
    name: str,
    device: DeviceLayout,
    measured: Mapping[str, str],
    constants: Mapping[str, int],
    transfers: Mapping[str, Sequence[tuple[int, float]]],
    jitter: Speeds,
    power: Mapping[str, float],
) -> dict[str, object]:
    """Return a profile without its tables of copies, rows and memory, as its file holds it.

    Parameters
    ----------
    kinds, rows
        What :func:`~gpuscope.simulator.calibration.fit.fit_gemm` made of which measured rows.
    device, measured, constants, transfers, jitter
        The tables of these names; counts of shapes and rows are added to ``measured``.
    power
        What the large GEMMs of each dtype draw.
    """
    keys = sorted(kinds, reverse=True)
    gemm = {
        dtype: [kinds[key].model_dump(mode="json") for key in keys if key[0] == dtype]
        for dtype in ITEM_BYTES
    }
    for dtype, kernels in gemm.items():
        for kernel in kernels:
            kernel["times"]["power"] = power[dtype]
    counts = {
        "shapes": len({tuple(row["shape"]) for row in rows}),
        "rows": sum(len(row["us"]) for row in rows),
    }
    return {
        "schema": 6,
        "name": name,
        "device": device.model_dump(mode="json"),
        "measured": {**measured, **counts},
        "constants": dict(constants),
        "jitter": [{"since_us": us, "quantiles": list(shares)} for us, shares in jitter],
        "transfers": dict(transfers),
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
    write_text(target, text + "\n")


def check_target(target: Path) -> None:
    """Refuse a file that is no profile's, or that cannot be written."""
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
