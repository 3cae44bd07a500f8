"""What comes with gpuscope beside its code: examples."""

from __future__ import annotations

from pathlib import Path

FOLDER = "_shipped_files"
"""Of the package, in a wheel; in a checkout the files are where they are written."""


def files(root: Path) -> list[Path]:
    """Return what comes with gpuscope, below a checkout or what a wheel holds of it."""
    return sorted(path for path in root.glob("examples/*") if path.is_file())


def root() -> Path:
    """Return the folder that has the files: the wheel's, or the checkout."""
    packed = Path(__file__).parent / FOLDER
    return packed if packed.is_dir() else packed.parents[1]
