"""Draw docs/images/rooms.svg: the rooms of the package, and which way their imports go.

    python scripts/rooms_picture.py [--check]

Rooms say what they are by their own docstrings. An import goes along arrows, downwards; this
fails where one does not. Rooms that register themselves (dashed) may import all others.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "gpuscope"
PICTURE = ROOT / "docs" / "images" / "rooms.svg"

PLACES = {  # room → column, row
    "cli": (1, 0), "judging": (0, 1), "widgets": (1, 1), "search": (1, 2), "experiments": (1, 3),
    "workloads": (1, 4), "record": (2, 4), "device": (1, 6),
    "formats": (0, 5), "report": (0, 6), "analyses": (0, 7), "comparing": (0, 8),
    "figures": (0, 9), "timeline": (0, 10), "telling": (0, 11), "analysis": (0, 12),
    "trace": (0, 13),
    "races": (2, 1), "simulator": (2, 2),
}  # fmt: skip
ARROWS = {
    "cli": ["judging", "widgets"], "judging": ["search"], "widgets": ["search"],
    "search": ["experiments"],
    "experiments": ["workloads", "record"], "workloads": ["formats", "device"],
    "record": ["device", "trace"], "formats": ["report"], "report": ["analyses"],
    "analyses": ["comparing"], "comparing": ["figures"], "figures": ["timeline"],
    "timeline": ["telling"], "telling": ["analysis"], "analysis": ["trace"],
}  # fmt: skip
REGISTERED = ("races", "simulator")
WIDE, HIGH, ACROSS, DOWN, MARGIN = 260, 72, 290, 92, 12
LETTERS, LINES = 38, 3
"""Of a line in a box, and how many there are."""


def rooms() -> dict[str, str]:
    """Return each room and what it is: its docstring's first sentence."""
    found = {}
    for path in sorted(PACKAGE.glob("*/__init__.py")):
        text = " ".join((ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split())
        found[path.parent.name] = text.partition(". ")[0].rstrip(".")
    return found


def imports() -> Iterator[tuple[str, str, str]]:
    """Yield the room, the room that it imports, and the file, of each import between rooms.

    Without those by which an ``__init__`` tells type checkers its lazy names.
    """
    known = rooms()
    for path in sorted(PACKAGE.glob("*/**/*.py")):
        room = path.relative_to(PACKAGE).parts[0]
        tree = ast.parse(path.read_text("utf-8"))
        if path.name == "__init__.py":
            tree.body = [node for node in tree.body if not isinstance(node, ast.If)]
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                package, _, rest = name.partition(".")
                target = rest.partition(".")[0]
                if package == "gpuscope" and target in known and target != room:
                    yield room, target, path.relative_to(PACKAGE).as_posix()


def below(room: str) -> set[str]:
    """Return the rooms to which arrows lead from one."""
    reached: set[str] = set()
    left = [room]
    while left:
        for target in ARROWS.get(left.pop(), ()):
            if target not in reached:
                reached.add(target)
                left.append(target)
    return reached


def wrong() -> list[str]:
    """Return what the picture does not say of the package as it is."""
    said = [f"{room} has no place" for room in rooms() if room not in PLACES]
    said += [
        f"the docstring of {room} is longer than its box"
        for room, text in rooms().items()
        if len(wrap(text, LETTERS)) > LINES
    ]
    said += [
        f"{path} imports {target}, which no arrow leads to from {room}"
        for room, target, path in sorted(set(imports()))
        if room not in REGISTERED and target not in REGISTERED and target not in below(room)
    ]
    return said


def arrows(known: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the arrows between rooms that there are; past one that is not, they lead on."""
    for room, targets in ARROWS.items():
        for target in targets if room in known else ():
            yield room, target if target in known else ARROWS[target][0]


def box(room: str, text: str) -> str:
    """Return a room as SVG."""
    x, y = (place * step + MARGIN for place, step in zip(PLACES[room], (ACROSS, DOWN), strict=True))
    dashed = ' stroke-dasharray="5 4"' if room in REGISTERED else ""
    lines = "".join(
        f'<text x="{x + 10}" y="{y + 34 + 14 * number}">{escape(words)}</text>\n'
        for number, words in enumerate(wrap(text, LETTERS))
    )
    return (
        f'<rect x="{x}" y="{y}" width="{WIDE}" height="{HIGH}" rx="6"{dashed}/>\n'
        f'<text x="{x + 10}" y="{y + 18}" class="name">{room}</text>\n{lines}'
    )


def line(room: str, target: str) -> str:
    """Return an arrow from the bottom of a room to the top of another, or to its side."""
    (column, row), (other, end) = PLACES[room], PLACES[target]
    x = column * ACROSS + MARGIN + WIDE // 2
    y, to_y = row * DOWN + MARGIN + HIGH, end * DOWN + MARGIN
    if column == other:
        return f'<path d="M{x} {y} V{to_y - 2}"/>\n'
    to_x = other * ACROSS + MARGIN + WIDE // 2
    if end - row > 3:  # along the room's own column, then into the other's side
        side = other * ACROSS + MARGIN + WIDE
        x -= 60
        return f'<path d="M{x} {y} V{to_y + HIGH // 2} H{side + 2}"/>\n'
    x += 40 if other > column else -40
    middle = to_y - 10
    return f'<path d="M{x} {y} V{middle} H{to_x} V{to_y - 2}"/>\n'


def picture() -> str:
    """Return the picture."""
    known = rooms()
    width = 2 * ACROSS + WIDE + 2 * MARGIN
    height = max(row for _, row in PLACES.values()) * DOWN + HIGH + 2 * MARGIN
    x, y = 2 * ACROSS + MARGIN, 2 * DOWN + HIGH + MARGIN + 18
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">\n'
        "<title>The rooms of gpuscope: imports go along the arrows</title>\n"
        "<style>rect{fill:#f6f8fa;stroke:#57606a}text{font:12px sans-serif;fill:#24292f}"
        ".name{font-weight:bold;font-size:14px}path{fill:none;stroke:#57606a;"
        "marker-end:url(#end)}</style>\n"
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><polygon points="0,0 8,4 0,8" fill="#57606a"/>'
        "</marker></defs>\n"
        f'<rect width="{width}" height="{height}" style="fill:#fff;stroke:none"/>\n'
        + "".join(line(*arrow) for arrow in arrows(known))
        + "".join(box(room, text) for room, text in known.items())
        + f'<text x="{x}" y="{y}">dashed: register themselves,</text>\n'
        f'<text x="{x}" y="{y + 16}">may import all others</text>\n'
        "</svg>\n"
    )


def main() -> int:
    """Draw or check the picture."""
    problems = wrong()
    if "--check" in sys.argv:
        if not PICTURE.exists() or PICTURE.read_text("utf-8") != picture():
            problems.append("docs/images/rooms.svg is out of date: run scripts/rooms_picture.py")
    elif not problems:
        PICTURE.write_text(picture(), "utf-8")
    print("\n".join(problems), end="\n" if problems else "")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
