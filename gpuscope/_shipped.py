"""What comes with gpuscope beside its code: examples."""

from __future__ import annotations

from pathlib import Path

from gpuscope.errors import GpuscopeError

FOLDER = "_shipped_files"
"""Of the package, in a wheel; in a checkout the files are where they are written."""


def files(root: Path) -> list[Path]:
    """Return what comes with gpuscope, below a checkout or what a wheel holds of it."""
    return sorted(path for path in root.glob("examples/*") if path.is_file())


def root() -> Path:
    """Return the folder that has the files: the wheel's, or the checkout.

    Raises
    ------
    GpuscopeError
        Only the package is here.
    """
    package = Path(__file__).parent
    for folder in (package / FOLDER, package.parent):
        if (folder / "examples" / "quickstart.toml").is_file():
            return folder
    raise GpuscopeError(
        f"the examples are missing beside {str(package)!r}: install gpuscope from its wheel, or "
        "from a checkout"
    )
