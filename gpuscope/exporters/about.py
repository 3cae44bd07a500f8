"""Who wrote a file."""

from __future__ import annotations

import importlib.metadata


def version() -> str:
    """Return gpuscope's version, as installed."""
    try:
        return importlib.metadata.version("gpuscope")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        return "unknown"
