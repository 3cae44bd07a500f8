"""The compiled launch path, where it was built: see ``_fastpath.c`` and ``hatch_build.py``.

``GPUSCOPE_PURE=1`` leaves it out, so that both ways can be compared.
"""

from __future__ import annotations

import os
from types import ModuleType

fastpath: ModuleType | None = None
"""The module ``_fastpath``, or ``None``: then the same is done in Python."""
why_not = ""
"""Why it is not used."""
if os.environ.get("GPUSCOPE_PURE"):
    why_not = "GPUSCOPE_PURE is set"
else:
    try:
        from gpuscope import _fastpath

        fastpath = _fastpath
    except ImportError as error:
        why_not = str(error)
