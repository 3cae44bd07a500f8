"""Optional packages: imported where they are used; a missing one is named with its extra."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType

from gpuscope.errors import MissingDependency

_EXTRAS = {
    **dict.fromkeys(("IPython", "anywidget", "ipywidgets", "traitlets"), "notebook"),
    **dict.fromkeys(("rich", "tomli_w", "typer"), "cli"),
    "distributed": "dask",
    "duckdb": "sql",
    "gpuscope_lessons": "lessons",
    "jupyterlab": "lab",
    "nvtx": "nvtx",
    "perfetto": "perfetto",
}
"""Top-level module → the extra that brings its package, which is named as it is."""


def how_to_install(*extras: str) -> str:
    """Return the command that brings one of ``extras`` to the gpuscope that is installed."""
    return " or ".join(f"pip install 'gpuscope[{extra}]'" for extra in extras)


_CUDA_EXTRAS = f"{how_to_install('cuda13')} (with a driver older than 580: 'gpuscope[cuda12]')"


def is_installed(module: str) -> bool:
    """Whether a module can be imported, by what finds it."""
    if module in sys.modules:
        return sys.modules[module] is not None
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of its package, or nothing but a file of a recorded program's
        return False


def require(
    module: str, *, feature: str, package: str | None = None, install: str | None = None
) -> ModuleType:
    """Import ``module`` or say which feature, package and extra are missing.

    Parameters
    ----------
    module
        Dotted name of the module to import.
    package
        The distribution that holds it, if no extra for a notebook, the command line or NVTX
        does.
    feature
        What the caller was about to do, in words.
    install
        The command that brings it; without it, that of the module's extra, or of the CUDA
        extras.

    Raises
    ------
    MissingDependency
        The package is absent, or its own import failed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _missing(module, error, feature, package, install) from error


@contextlib.contextmanager
def needed_for(feature: str) -> Iterator[None]:
    """Name the extra where an import in the block fails for want of an optional package.

    Raises
    ------
    MissingDependency
        A package of one of the extras is absent, or a part of gpuscope itself.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = error.name or ""
        if module.startswith("gpuscope."):
            raise MissingDependency(
                f"{feature} needs {module}, a part of gpuscope that is missing here: install "
                "all of gpuscope anew, from its wheel or its checkout"
            ) from error
        if module.partition(".")[0] not in _EXTRAS:
            raise
        raise _missing(module, error, feature) from error


def _missing(
    module: str,
    error: ImportError,
    feature: str,
    package: str | None = None,
    install: str | None = None,
) -> MissingDependency:
    top = module.partition(".")[0]
    extra = _EXTRAS.get(top)
    command = install or (how_to_install(extra) if extra else _CUDA_EXTRAS)
    package = package or (top.lower().replace("_", "-") if extra else module)
    return MissingDependency(
        f"{feature} needs the package {package}, which cannot be imported ({error}). Run: {command}"
    )
