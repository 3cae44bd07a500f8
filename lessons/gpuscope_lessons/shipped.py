"""What comes with the lessons beside their code: notebooks, examples, pages they link to."""

from __future__ import annotations

from pathlib import Path

FOLDER = "shipped_files"
"""Of the package, in a wheel; in a checkout the files are where they are written."""
_PATTERNS = (
    "notebooks/*.ipynb",
    "examples/*",
    "docs/*.md",
    "docs/howto/*.md",
    "docs/images/*",
)


def files(root: Path) -> list[Path]:
    """Return what comes with the lessons, below a checkout or what a wheel holds of it."""
    return sorted(path for pattern in _PATTERNS for path in root.glob(pattern) if path.is_file())


def root() -> Path:
    """Return the folder that has the files: the wheel's, or the checkout."""
    packed = Path(__file__).parent / FOLDER
    return packed if packed.is_dir() else packed.parents[2]
