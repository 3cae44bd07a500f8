"""Print the ten questions to a lesson that stand in no lesson, for a test after it.

    python scripts/questions.py 3 [--answers]

They are in tests/questions.toml.
"""

from __future__ import annotations

import argparse
import tomllib

from coverage_page import ROOT, lesson

FOUND = tomllib.loads((ROOT / "tests" / "questions.toml").read_text("utf-8"))


def page(number: int, *, answers: bool) -> str:
    """The questions to a lesson as Markdown, with answers and the parts that they stand in."""
    name, headings, _ = lesson(number)
    lines = [f"# Questions to lesson {number}", ""]
    for place, asked in enumerate(FOUND[f"{number:02}"], 1):
        lines.append(f"{place}. {asked['question']}")
        if answers:
            parts = ", ".join(dict.fromkeys(headings[cell] for cell in asked["cells"]))
            lines += ["", f"   **{asked['answer']}** ({name}: {parts})"]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("lesson", type=int, choices=sorted(map(int, FOUND)))
    parser.add_argument("--answers", action="store_true")
    given = parser.parse_args()
    print(page(given.lesson, answers=given.answers))
