"""docs/map.md is of this tree, and docs/design.md sends readers to files that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from gpuscope._plugins import ROOMS

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ROOT / "gpuscope", ROOT / "lessons" / "gpuscope_lessons"
PAGE = (ROOT / "docs" / "design.md").read_text("utf-8")
NAMED = re.compile(r"`((?:\w+/)*\w+\.(?:py|js|css|c))`")


def test_the_map_is_of_this_tree_and_every_file_says_what_it_is():
    check = subprocess.run(
        [sys.executable, ROOT / "scripts" / "map_page.py", "--check"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert check.returncode == 0, check.stdout


def test_whoever_looks_for_a_feature_is_sent_to_files_that_exist():
    section = PAGE.partition("\n## Where to look\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^- (.+?): (.*`.*)$", section, re.MULTILINE)
    assert len(rows) > 50
    for feature, where in rows:
        names = NAMED.findall(where)
        assert names, feature
        for name in names:
            assert any((package / name).exists() for package in PACKAGES), f"{feature}: {name}"


def test_the_table_of_registries_has_all_of_them_and_what_our_rooms_add():
    rows = re.findall(r"^\| `(gpuscope\.\w+)` \|.*\|([^|]*)\|$", PAGE, re.MULTILINE)
    ours = {group: set(re.findall(r"`(\w+)`", names)) for group, names in rows}
    sources = [path.read_text("utf-8") for path in PACKAGES[0].rglob("*.py")]
    asked = {group for text in sources for group in re.findall(r'Plugins\("(gpuscope\.\w+)"', text)}
    assert set(ours) == asked
    assert {group: names for group, names in ours.items() if names} == {
        group: set(names) for group, names in ROOMS.items()
    }


def test_the_picture_of_the_rooms_is_of_this_tree_and_imports_follow_its_arrows():
    check = subprocess.run(
        [sys.executable, ROOT / "scripts" / "rooms_picture.py", "--check"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert check.returncode == 0, check.stdout


def test_a_newcomer_can_read_it_in_one_go():
    assert len(PAGE.split()) <= 1_500
    assert PAGE.count("![") == 1
