"""Choose the extra of gpuscope that fits this machine's NVIDIA driver.

python scripts/cuda_extra.py      # prints the extra (or "none") and why
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess

OLDEST = 12040  # green contexts came with CUDA 12.4


def driver_version() -> int | None:
    """Return the newest CUDA that the driver runs, such as 13000 for 13.0, or None."""
    return _from_library() or _from_nvidia_smi()


def _from_library() -> int | None:
    try:
        library = ctypes.CDLL("libcuda.so.1")
        version = ctypes.c_int(0)
        failed = library.cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    # the toolkit's stub library loads and fails here
    return version.value if not failed and version.value else None


def _from_nvidia_smi() -> int | None:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        done = subprocess.run(
            [tool], capture_output=True, text=True, errors="replace", timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_nvidia_smi(done.stdout)


def parse_nvidia_smi(text: str) -> int | None:
    """Return the CUDA version in the heading of nvidia-smi's table, as 1000·major + 10·minor."""
    match = re.search(r"CUDA (?:\w+ )?Version\s*:\s*(\d+)\.(\d+)", text)
    return int(match[1]) * 1000 + int(match[2]) * 10 if match else None


def choose(version: int | None) -> tuple[str, str]:
    """Return the extra, or "", and the reason in words."""
    if version is None:
        return "", "no NVIDIA driver found"
    found = f"the driver runs CUDA {version // 1000}.{version % 1000 // 10}"
    if version >= 13000:
        return "cuda13", found
    if version >= OLDEST:
        return "cuda12", found
    return "", f"{found}, and green contexts need 12.4"


if __name__ == "__main__":
    extra, why = choose(driver_version())
    print(f"{extra or 'none'} ({why})")
