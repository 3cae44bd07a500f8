"""The map in docs/design.md and the tree are in step, both ways."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "gpuscope"
PAGE = (ROOT / "docs" / "design.md").read_text("utf-8")
NAMED = re.compile(r"`((?:[\w*]+/)*[\w*]+\.(?:py|js|css))`")
FOLDERS = {"the root": PACKAGE} | {
    path.parent.name: path.parent for path in sorted(PACKAGE.glob("*/__init__.py"))
}


def section(title: str) -> str:
    """Return the text of a section of the page, without its title."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


ROOMS = {
    title.strip("`/ ").lower(): text
    for title, text in re.findall(
        r"^### (.+)\n((?:(?!### ).*\n)+)", section("Rooms") + "\n", re.MULTILINE
    )
}


def modules(room: str) -> set[str]:
    """Return the modules of a room, but ``__init__.py``, relative to it."""
    folder = FOLDERS[room]
    found = folder.glob("*.py") if room == "the root" else folder.rglob("*.py")
    return {path.relative_to(folder).as_posix() for path in found if path.name != "__init__.py"}


def test_every_room_is_on_the_map():
    assert sorted(ROOMS) == sorted(FOLDERS)


@pytest.mark.parametrize("room", ROOMS)
def test_every_module_on_the_map_exists(room):
    for name in NAMED.findall(ROOMS[room]):
        assert list(FOLDERS[room].glob(name)), f"{room}: {name} is on the map only"


@pytest.mark.parametrize("room", FOLDERS)
def test_every_module_is_on_the_map(room):
    named = {
        path.relative_to(FOLDERS[room]).as_posix()
        for name in NAMED.findall(ROOMS.get(room, ""))
        for path in FOLDERS[room].glob(name)
    }
    assert sorted(modules(room) - named) == [], "put these on the map in docs/design.md"


def test_whoever_looks_for_a_feature_is_sent_to_files_that_exist():
    rows = re.findall(r"^\| (.+) \| (.+) \|$", section("Where to look"), re.MULTILINE)[2:]
    assert len(rows) > 15
    for feature, where in rows:
        names = NAMED.findall(where)
        assert names, feature
        for name in names:
            assert (PACKAGE / name).exists(), f"{feature}: {name}"
