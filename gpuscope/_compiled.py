"""The compiled launch path, where it was built: see ``_fastpath.c`` and ``hatch_build.py``.

``GPUSCOPE_PURE=1`` leaves it out, so that both ways can be compared.
"""

from __future__ import annotations

import importlib
import os
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
    sources = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("_*.[ch]"))]
    if sources and zlib.crc32(b"".join(sources)) != module.source_crc:
        return None, "it was compiled from other sources"
    return module, ""


fastpath, why_not = _load()
"""The module ``_fastpath``, or ``None``: then the same is done in Python, and why."""
