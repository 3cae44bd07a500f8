"""The page of where each rule is taught: every rule is, or says why not."""

from __future__ import annotations

import re
import sys

import pytest
from playing import NOTEBOOKS, cells

DOCS = NOTEBOOKS.parent / "docs"
sys.path.insert(0, str(NOTEBOOKS.parent / "scripts"))

import coverage_page  # noqa: E402

RULES, NOTES = ((DOCS / name).read_text("utf-8") for name in ("rules.md", "coverage.toml"))


def page(rules=RULES, notes=NOTES):
    return coverage_page.coverage_page(rules, notes)


def test_every_rule_is_stated_and_asked_or_says_why_not():
    rows = re.findall(r"^\| ([A-Z]\d+) \| .+ \| (.+) \| (.+) \|$", page(), re.MULTILINE)
    assert [number for number, *_ in rows] == re.findall(r"^\| ([A-Z]\d+) ", RULES, re.MULTILINE)
    for number, stated, asked in rows:
        assert stated == "–" or re.search(r"\d+: \[.+\]\(\.\./notebooks/.+\) \(`", stated), number
        assert re.search(r"\d+: `\w+`", asked) or re.fullmatch(r"nothing\. \w.+\.", asked), number


def test_a_rule_links_to_the_heading_above_the_cell_that_answers():
    here = "02_streams.ipynb"
    heading = next(
        one["source"].splitlines()[0] for one in cells(here) if one["id"] == "q-big"
    ).removeprefix("## ")
    assert f"[{heading}](../notebooks/{here}#" in coverage_page.places(2, ["q-big", "show-big"])
    assert coverage_page.places(2, ["q-big", "show-big"]).endswith("(`q-big`, `show-big`)")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("`two_big`", "`two_bigger`", "A6: lesson 2 does not ask two_bigger"),
        ("[lesson 2](../notebooks/02_streams.ipynb): `two_big`", "–", "A6: name what asks it"),
    ],
)
def test_a_rule_that_nothing_asks_is_refused(old, new, said):
    assert RULES.count(old) == 1
    with pytest.raises(SystemExit, match=said):
        page(rules=RULES.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"02 q-copies"', '"02 q-copy"', "A9: lesson 2 has no cell q-copy"),
        ("\nA9 =", "\nA99 =", "no rule A99"),
    ],
)
def test_a_note_on_what_is_not_there_is_refused(old, new, said):
    assert NOTES.count(old) == 1
    with pytest.raises(SystemExit, match=said):
        page(notes=NOTES.replace(old, new))
