"""The page that says which cells teach which rule, and what asks it; docs_pages.py writes it."""

from __future__ import annotations

import functools
import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RULE = re.compile(r"^\| ([A-Z]+\d+) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
MET = re.compile(r"\[lesson (\d+)\]\(\S+?\): ((?:`\w+`(?:, )?)+)")
ANSWERED = re.compile(r"lesson\.(?:reveal|quiz|check)\(\s*\"(\w+)\"")

HEAD = """# Where each rule is taught

Of each of the [rules of stream order](rules.md): the parts of lessons that state it, with the ids
of the cells, and the predictions, quizzes and exercises that decide whether a learner knows it.
{counted}

Generated from `docs/rules.md`, `docs/coverage.toml` and the notebooks by `make docs`; do not edit.
Rules that stand in no lesson are [at the end of the rules](rules.md#rules-that-no-lesson-covers).
"""


@functools.cache
def lesson(number: int) -> tuple[str, dict[str, str], dict[str, str]]:
    """A lesson's file, the headings that its cells stand under, and question → answering cell."""
    (path,) = (ROOT / "notebooks").glob(f"{number:02}_*.ipynb")
    headings, answers, heading = {}, {}, ""
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            heading = [heading, *re.findall(r"^#{1,3} (.*)", source, re.MULTILINE)][-1]
        headings[cell["id"]] = heading
        answers.update(dict.fromkeys(ANSWERED.findall(source), cell["id"]))
    return path.name, headings, answers


def places(number: int, cells: list[str]) -> str:
    """Links to the parts of a lesson that hold these cells, with the ids."""
    name, headings, _ = lesson(number)
    parts: dict[str, list[str]] = {}
    for cell in dict.fromkeys(cells):
        parts.setdefault(headings[cell], []).append(f"`{cell}`")
    links = []
    for heading, ids in parts.items():
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        links.append(f"[{heading}](../notebooks/{name}#{anchor}) ({', '.join(ids)})")
    return f"{number}: " + ", ".join(links)


def coverage_page(rules: str, notes: str) -> str:
    """The page, from docs/rules.md and docs/coverage.toml.

    Raises
    ------
    SystemExit
        A rule names a question or a cell that is not there; a note is on no rule; nothing states
        or asks a rule, and no note says why.
    """
    noted = tomllib.loads(notes)
    rows: list[str] = []
    without = {**noted["not_asked"], **noted["not_taught"]}
    numbers = [number for number, *_ in RULE.findall(rules)]
    for number in {*noted["stated"], *without} - set(numbers):
        raise SystemExit(f"docs/coverage.toml: docs/rules.md has no rule {number}")
    for number, rule, _, met in RULE.findall(rules):
        asked = {int(at): re.findall(r"`(\w+)`", names) for at, names in MET.findall(met)}
        cells: dict[int, list[str]] = {}
        for at, names in asked.items():
            answers = lesson(at)[2]
            for name in names:
                if name not in answers:
                    raise SystemExit(f"docs/rules.md: {number}: lesson {at} does not ask {name}")
            cells[at] = [answers[name] for name in names]
        for place in noted["stated"].get(number, ()):
            at, cell = int(place.split()[0]), place.split()[1]
            if cell not in lesson(at)[1]:
                raise SystemExit(f"docs/coverage.toml: {number}: lesson {at} has no cell {cell}")
            cells[at] = [cell, *cells.get(at, ())]
        if not asked and number not in without:
            raise SystemExit(f"docs/rules.md: {number}: name what asks it")
        stated = "<br>".join(places(at, cells[at]) for at in sorted(cells))
        tested = "<br>".join(
            f"{at}: {', '.join(f'`{name}`' for name in asked[at])}" for at in asked
        )
        if number in noted["not_taught"]:
            stated = "–"
        if number in without:
            tested = f"nothing. {without[number]}"
        rows.append(f"| {number} | {rule} | {stated} | {tested} |")
    counted = (
        f"Of {len(rows)} rules, {len(rows) - len(noted['not_taught'])} are stated in a lesson and "
        f"{len(rows) - len(without)} are asked;\nthe last column says why the others are not."
    )
    table = ["| | rule | lesson: part (cells) | lesson: asked by |", "| --- " * 4 + "|"]
    return "\n".join([HEAD.format(counted=counted), *table, *rows]) + "\n"
