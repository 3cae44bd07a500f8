"""The compiled launch path, where it was built: see ``_fastpath.c`` and ``hatch_build.py``.

``GPUSCOPE_PURE=1`` leaves it out, so that both ways can be compared.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess
import zlib
from pathlib import Path
from types import ModuleType


def _load() -> tuple[ModuleType | None, str]:
    """Return the module, or ``None`` and why it is not used."""
    if os.environ.get("GPUSCOPE_PURE") == "1":
        return None, "GPUSCOPE_PURE is set"
    try:
        module = importlib.import_module("gpuscope._fastpath")
    except ImportError as error:
        return None, f"it is not compiled ({error})"
    if not _is_of_these_sources(module.source_crc):
        return None, "it was compiled from other sources"
    return module, ""


def _is_of_these_sources(crc: int) -> bool:
    sources = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("_*.[ch]"))]
    return not sources or zlib.crc32(b"".join(sources)) == crc


def library(name: str) -> ctypes.CDLL | None:
    """Return ``_name.so`` beside this, whose calls hold no lock of Python's, if it is there."""
    made = Path(__file__).with_name(f"_{name}.so")
    if os.environ.get("GPUSCOPE_PURE") == "1" or not made.exists():
        return None
    try:
        library = ctypes.CDLL(str(made))
    except OSError:  # of another machine
        return None
    crc = ctypes.c_uint32.in_dll(library, "source_crc").value
    return library if _is_of_these_sources(crc) else None


def program(name: str) -> Path | None:
    """Return the program ``_name`` beside this, if it was compiled from these sources."""
    made = Path(__file__).with_name(f"_{name}")
    if os.environ.get("GPUSCOPE_PURE") == "1" or not made.exists():
        return None
    try:
        answer = subprocess.run([made, "--crc"], capture_output=True, check=True)  # noqa: S603 - ours
    except (OSError, subprocess.CalledProcessError):  # of another machine
        return None
    return made if _is_of_these_sources(int(answer.stdout)) else None


fastpath, why_not = _load()
"""The module ``_fastpath``, or ``None``: then the same is done in Python, and why."""
