"""Optional packages: imported where they are used, refused with a clear error."""

from __future__ import annotations

import importlib
from types import ModuleType

from gpuscope.errors import MissingDependency


def require(module: str, *, extra: str, feature: str) -> ModuleType:
    """Import ``module`` or say which feature, package and extra are missing.

    Parameters
    ----------
    module
        Dotted name of the module to import.
    extra
        Extra of gpuscope that installs it, such as ``"cuda13"``.
    feature
        What the caller was about to do, in words.

    Raises
    ------
    MissingDependency
        The package is absent, or its own import failed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingDependency(
            f"{feature} needs the package {package!r}, which could not be imported ({error}). "
            f"Install it with: pip install 'gpuscope[{extra}]'"
        ) from error
