"""Where libcupti is, and letting NVTX ranges reach it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from gpuscope._optional import is_installed, require
from gpuscope.errors import CapabilityError, GpuscopeError, MissingDependency

NVTX_INJECTION = "NVTX_INJECTION64_PATH"
"""Names the library that each library with NVTX calls loads at its first one."""

HOW_TO_INSTALL = {
    12: "pip install nvidia-cuda-cupti-cu12==12.9.79 && pip install --no-deps cupti-python==12.8.0",
    13: "pip install cupti-python==13.4.0",
}
"""CUDA's major version → what brings CUPTI. cupti-python 12.8.0 pins older bindings than
CuPy wants, so it comes without its dependencies."""


def library_path() -> Path:
    """Return the libcupti that cupti-python loads, as the process's map has it.

    Raises
    ------
    MissingDependency
        cupti-python is absent.
    CapabilityError
        libcupti is absent, or its file is not found.
    """
    try:
        cupti = require("cupti.cupti", package="cupti-python", feature="recording with CUPTI")
    except MissingDependency as error:
        raise MissingDependency(
            "recording with CUPTI needs the package cupti-python, which cannot be imported "
            f"({error.__cause__}). Run: {HOW_TO_INSTALL[13]} (with CUDA 12: {HOW_TO_INSTALL[12]})"
        ) from error
    try:
        cupti.get_timestamp()  # loads the library
    except Exception as error:
        raise CapabilityError(
            f"libcupti cannot be loaded ({error}): install the nvidia-cuda-cupti of this CUDA, or "
            "record with profile(source='events')"
        ) from error
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rpartition(" ")[2]
        if "/libcupti.so" in path:
            return Path(path)
    raise CapabilityError("libcupti was loaded, but its file is not in the process's map")


def arrange_nvtx() -> None:
    """Let NVTX hand its ranges to CUPTI; must come before a library's first NVTX call.

    Does nothing where the variable is set already (Nsight Systems sets it) or where CUPTI is
    not installed. Loads libcupti, and records nothing.
    """
    if NVTX_INJECTION in os.environ or not is_installed("cupti"):
        return
    with contextlib.suppress(GpuscopeError):  # profile() says what is missing
        os.environ[NVTX_INJECTION] = str(library_path())


def arranged() -> bool:
    """Whether NVTX ranges go to CUPTI, as here or in a parent process, and to no tool."""
    return Path(os.environ.get(NVTX_INJECTION, "")).name.startswith("libcupti")
