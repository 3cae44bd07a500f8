"""Optional packages: imported where they are used, refused with a clear error."""

from __future__ import annotations

import importlib
from types import ModuleType

from gpuscope.errors import MissingDependency


def how_to_install(*extras: str) -> str:
    """Return the command that brings one of ``extras``: gpuscope is installed from its folder."""
    commands = " or ".join(f"pip install '.[{extra}]'" for extra in extras)
    return f"{commands} in gpuscope's folder"


_CUDA_EXTRAS = f"{how_to_install('cuda13')} (with a driver older than 580: '.[cuda12]')"


def require(module: str, *, package: str, feature: str, install: str | None = None) -> ModuleType:
    """Import ``module`` or say which feature, package and extra are missing.

    Parameters
    ----------
    module
        Dotted name of the module to import.
    package
        The distribution that holds it; the CUDA extras install it.
    feature
        What the caller was about to do, in words.
    install
        The command that brings it; without it, that of the CUDA extras.

    Raises
    ------
    MissingDependency
        The package is absent, or its own import failed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependency(
            f"{feature} needs the package {package}, which cannot be imported ({error}). "
            f"Run: {install or _CUDA_EXTRAS}"
        ) from error
