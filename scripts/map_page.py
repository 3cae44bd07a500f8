"""Write docs/map.md: each room and module of both packages, by its own first sentence.

    python scripts/map_page.py [--check]

A room's line is the docstring of its ``__init__.py``, a module's that of the module, and that of
a file in another language the first sentence of its first comment. It draws the picture of the
rooms, too: see rooms_picture.py. With --check nothing is written; exit 1 says that the page is out
of date or a file says nothing of itself.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import rooms_picture

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (ROOT / "gpuscope", ROOT / "lessons" / "gpuscope_lessons")
PAGE = ROOT / "docs" / "map.md"
HEAD = """# Map

Every module by the first sentence of its docstring, written by `python scripts/map_page.py`.
[Design](design.md) says why the rooms are as they are.
"""
_COMMENT = re.compile(r"\s*(?:/\*+(.+?)\*/|((?://[^\n]*\n)+))", re.DOTALL)


def line(path: Path) -> str:
    """Return what a file says of itself in one sentence; empty where it says nothing."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        comment = _COMMENT.match(text)
        words = "".join(filter(None, comment.groups())) if comment else ""
        words = re.sub(r"\n\s*(?:\*|//)?", " ", words)
        return " ".join(words.removeprefix("//").split()).partition(". ")[0].removesuffix(".")
    paragraph = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0]
    return " ".join(paragraph.split()).removesuffix(".")


def files(folder: Path) -> list[Path]:
    """Return the source files directly in a folder, but ``__init__.py``."""
    kinds = {".py", ".c", ".js"}
    return sorted(
        path for path in folder.iterdir() if path.suffix in kinds and path.name != "__init__.py"
    )


def page() -> str:
    """Return the page."""
    text = HEAD
    folders = [path.parent for package in PACKAGES for path in sorted(package.rglob("__init__.py"))]
    for folder in folders:
        name = f"{folder.relative_to(ROOT).as_posix()}/"
        sources = files(folder)
        if (folder / "static").is_dir():
            sources += files(folder / "static")
        text += f"\n## `{name}`\n\n{line(folder / '__init__.py')}\n"
        text += "\n" * bool(sources) + "".join(
            f"- `{path.relative_to(folder).as_posix()}`: {line(path)}\n" for path in sources
        )
    return text


def silent() -> list[str]:
    """Return the files that say nothing of themselves."""
    named = {".py", ".c", ".js"}
    return [
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in sorted(package.rglob("*"))
        if path.suffix in named and not line(path)
    ]


def main() -> int:
    """Write the page and the picture of the rooms, or check the page."""
    text = page()
    if "--check" not in sys.argv:
        PAGE.write_text(text, "utf-8")
        return rooms_picture.main()
    stale = not PAGE.exists() or PAGE.read_text("utf-8") != text
    if stale:
        print("docs/map.md is out of date: run python scripts/map_page.py")
    for path in silent():
        print(f"{path} says nothing of itself")
    return int(stale or bool(silent()))


if __name__ == "__main__":
    sys.exit(main())
