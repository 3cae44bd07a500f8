"""Print the ten questions to a lesson that stand in no lesson, for a test after it.

    python scripts/questions.py 3 [--answers]
    python scripts/questions.py transfer [--answers]

They are in lessons/tests/questions.toml; twenty on all lessons, each on several of their statements
together, in lessons/tests/transfer.toml.
"""

from __future__ import annotations

import argparse
import tomllib

from coverage_page import ROOT, lesson

TESTS = ROOT / "lessons" / "tests"
ASKED = {
    name: asked
    for file in ("questions.toml", "transfer.toml")
    for name, asked in tomllib.loads((TESTS / file).read_text("utf-8")).items()
}


def page(name: str, *, answers: bool) -> str:
    """The questions to a lesson or on all as Markdown, with answers and where these stand."""
    lines = [f"# Questions: {name if name == 'transfer' else f'lesson {int(name)}'}", ""]
    for place, asked in enumerate(ASKED[name], 1):
        lines.append(f"{place}. {asked['question']}")
        if answers:
            lines += ["", f"   **{asked['answer']}** ({stands(name, asked['cells'])})"]
        lines.append("")
    return "\n".join(lines)


def stands(name: str, cells: list[str]) -> str:
    """Where cells stand: file and headings. Those of a lesson's questions are all in it."""
    parts: dict[str, list[str]] = {}
    for cell in cells:
        number, _, cell_id = cell.rpartition(" ")
        file, headings, _ = lesson(int(number or name))
        parts.setdefault(file, []).append(headings[cell_id])
    return "; ".join(f"{file}: {', '.join(dict.fromkeys(of))}" for file, of in parts.items())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("lesson", type=lambda text: text.zfill(2), choices=sorted(ASKED))
    parser.add_argument("--answers", action="store_true")
    given = parser.parse_args()
    print(page(given.lesson, answers=given.answers))
