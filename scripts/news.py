"""Put what is new into CHANGELOG.md: one fragment a change, in news/.

    python scripts/news.py [--check]

A fragment is a file ``news/NAME.KIND.md`` with the change as one or more list items (``- …``);
KIND is added, changed, deprecated, removed, fixed or security. They go to the end of that section
of "[Unreleased]" and are deleted. With --check nothing is written; exit 1 says which fragments are
not of that form.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHANGELOG, NEWS = ROOT / "CHANGELOG.md", ROOT / "news"
KINDS = ("added", "changed", "deprecated", "removed", "fixed", "security")
HEAD = "## [Unreleased]\n"


def fragments(folder: Path) -> list[Path]:
    """Return the fragments by name."""
    return sorted(path for path in folder.glob("*.md") if path.name != "README.md")


def kind(path: Path) -> str:
    """Return the kind in a fragment's name, which may be none."""
    return Path(path.stem).suffix.removeprefix(".")


def wrong(folder: Path) -> list[str]:
    """Return what is wrong with fragments."""
    problems = []
    for path in fragments(folder):
        text = path.read_text("utf-8")
        if kind(path) not in KINDS:
            problems.append(f"news/{path.name}: name it NAME.KIND.md, KIND of {', '.join(KINDS)}")
        elif not text.startswith("- ") or not text.endswith("\n"):
            problems.append(f"news/{path.name}: write list items, as '- What changed.'")
    return problems


def added(changelog: str, entries: str, section: str) -> str:
    """Return the change log with entries at the end of a section of what is unreleased."""
    before, head, rest = changelog.partition(HEAD)
    unreleased, mark, released = rest.partition("\n## ")
    title = f"### {section.capitalize()}\n"
    if title not in unreleased:
        unreleased = f"{unreleased.rstrip()}\n\n{title}\n"
    start, _, rest = unreleased.partition(title)
    own, following, others = rest.partition("\n### ")
    own = f"{own.rstrip()}\n{entries}" if own.strip() else f"\n{entries}"
    return f"{before}{head}{start}{title}{own}{following}{others}{mark}{released}"


def main() -> int:
    """Check the fragments, or put them into the change log."""
    problems = wrong(NEWS)
    if problems or "--check" in sys.argv:
        print("\n".join(problems), end="\n" if problems else "")
        return bool(problems)
    text = CHANGELOG.read_text("utf-8")
    for path in fragments(NEWS):
        text = added(text, path.read_text("utf-8"), kind(path))
    CHANGELOG.write_text(text, "utf-8")
    for path in fragments(NEWS):
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
