"""A class of 20 that is graded: half honest, a quarter broken, a quarter hostile or endless.

python benchmarks/grading.py [--out FILE] [--learners 20] [--jobs 2] [--gpu]

Each learner hands in all lessons. Cells may take 20 s, notebooks 60 s. Processor time is what
processes used, whatever else the machine does. With --gpu the honest half alone is graded, on the
GPU, with five times as long.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import facts

from gpuscope_lessons.handed_in import asked, read_cells

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "lessons" / "tests"), str(ROOT / "tests")]

from lesson_answers import KEYS  # noqa: E402 - the tests' solutions
from playing import LESSONS, NOTEBOOKS, cells, solutions  # noqa: E402

CELL_S, NOTEBOOK_S, GOAL_MINUTES = 20, 60, 2.0
BLOCK = "while True:\n    try:\n        time.sleep(9)\n    except BaseException: pass"
HOSTILE = {
    "endless": "while True: pass",
    "endless, deaf": f"import signal, time\nsignal.signal(15, signal.SIG_IGN)\n{BLOCK}",
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "double fork": "import os, time\nif not os.fork():\n    os.setsid()\n    os.fork()\n"
    "    time.sleep(9999)",
    "fills memory": "held = bytearray(10**11)",
    "memory of many": "import os, time\nfor _ in range(4): os.fork()\nheld = b'x' * 10**9\n"
    "time.sleep(99)",
    "fills the disk": "n = 0\nwhile True:\n    n += 1\n    with open(f'f{n}', 'wb') as out:\n"
    "        out.write(bytes(10**7))",
    "prints without end": "while True: print('x' * 10**6)",
    "kills its parent": "import os\nos.kill(os.getppid(), 9)",
    "kills all": "import os\nos.kill(-1, 9)",
    "crashes": "import ctypes\nctypes.string_at(0)",
    "leaves": "import os\nos._exit(0)",
    "forges": "lesson.check = lambda name, *a, **k: type(lesson).check(\n"
    "    lesson, name, '', lambda _: True)",
}
BROKEN = {
    "no JSON": lambda text: text[: len(text) // 2],
    "empty": lambda _: "",
    "another thing": lambda _: '{"cells": 7}',
    "odd fields": lambda text: text.replace('"metadata": {}', '"metadata": null'),
    "no ids": lambda text: text.replace('"id":', '"was":'),
    "syntax errors": lambda text: text.replace("def ", "def def "),
    "imports what is not there": lambda text: text.replace("import gpuscope", "import gpusc0pe"),
}


def answered(name: str, changed: dict[str, str]) -> str:
    """Return a lesson with other sources of some cells, as text."""
    mine = [{**cell, "source": changed.get(cell["id"], cell["source"])} for cell in cells(name)]
    return json.dumps({"cells": mine, "nbformat": 4, "nbformat_minor": 5, "metadata": {}})


def hand_in(folder: Path, learners: int) -> tuple[dict[str, str], set[tuple[str, str, str]]]:
    """Write a class's notebooks; returns learner → kind, and which exercises are hostile code."""
    kinds, hostile = {}, set()
    for number in range(learners):
        part = 4 * number // learners
        kind = "honest" if part < 2 else "broken" if part == 2 else "hostile"
        learner = f"{kind}_{number:02}"
        kinds[learner] = kind
        (folder / learner).mkdir()
        for place, name in enumerate(LESSONS):
            right = {**solutions(name), **KEYS[name].solved}
            chosen = number + place
            if kind == "honest":  # the last of them is wrong in all that can be
                changed = right if number < learners // 2 - 1 else {**right, **KEYS[name].failed}
                text = answered(name, changed)
            elif kind == "broken":
                text = list(BROKEN.values())[chosen % len(BROKEN)](answered(name, right))
            else:
                code = list(HOSTILE.values())[chosen % len(HOSTILE)]
                tasks = list(right) if number == learners - 1 else list(right)[:1]
                text = answered(name, {**right, **dict.fromkeys(tasks, code)})
                checks = {task.replace("task-", "check-") for task in tasks}
                for cell in read_cells(NOTEBOOKS / name):
                    if cell.id in checks:
                        hostile |= {(learner, name, check) for _, check in asked([cell])}
            (folder / learner / name).write_text(text, "utf-8")
    return kinds, hostile


def rows_of(
    out: Path, kinds: dict[str, str], hostile: set[tuple[str, str, str]], wall_s: float
) -> list[dict[str, Any]]:
    """Return what the table and the journal beside it tell."""
    with out.open(encoding="utf-8") as lines:
        graded = list(csv.DictReader(lines))
    entries = [json.loads(line) for line in Path(f"{out}.journal").read_text().splitlines()]
    minutes: dict[str, float] = dict.fromkeys(kinds, 0.0)
    for entry in entries:
        minutes[entry["notebook"].partition("/")[0]] += entry["cpu_s"] / 60
    honest = [minutes[learner] for learner, kind in kinds.items() if kind == "honest"]
    notebooks = {row["notebook"] for row in graded}
    verdicts = Counter(
        (kinds[row["learner"]], row["verdict"]) for row in graded if row["kind"] == "exercise"
    )
    solved = {
        (row["learner"], row["lesson"], row["name"]) for row in graded
        if row["verdict"] == "solved"
    }  # fmt: skip
    forged = hostile & solved
    unsolved = [
        f"{row['learner']} {row['lesson']} {row['name']}: {row['reason']}"
        for row in graded
        if kinds[row["learner"]] == "honest" and row["kind"] == "exercise"
        and row["verdict"] != "solved" and row["learner"] != max(
            learner for learner, kind in kinds.items() if kind == "honest")
    ]  # fmt: skip
    all_of_them = len(kinds) * len(LESSONS)
    return [
        facts.row(
            "core-minutes of an honest learner", f"≤ {GOAL_MINUTES:g}",
            round(max(honest), 3), "min", met=max(honest) <= GOAL_MINUTES,
            **{name: round(value, 3) for name, value in facts.spread(honest).items()},
        ),
        facts.row("notebooks in the table", f"{all_of_them}", len(notebooks), "",
                  met=len(notebooks) == all_of_them),
        facts.row("honest right exercises that are not solved", "0", len(unsolved), "",
                  met=not unsolved, which=unsolved),
        facts.row("hostile code that counts as solved", "0", len(forged), "",
                  met=not forged, of=len(hostile)),
        facts.row("wall time of the class", facts.BESIDE, round(wall_s / 60, 1), "min", met=True,
                  cpu_of_all_min=round(sum(minutes.values()), 1)),
        facts.row("exercises by kind and verdict", facts.BESIDE, sum(verdicts.values()), "",
                  met=True, **{" ".join(key): count for key, count in sorted(verdicts.items())}),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learners", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, out = Path(name) / "handed_in", Path(name) / "grades.csv"
        folder.mkdir()
        kinds, hostile = hand_in(folder, arguments.learners)
        if arguments.gpu:
            for learner in [learner for learner, kind in kinds.items() if kind != "honest"]:
                shutil.rmtree(folder / learner)
                del kinds[learner]
            hostile = set()
        longer = 5 if arguments.gpu else 1
        start_s = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "gpuscope.cli", "grade", folder, "--lessons", NOTEBOOKS,
             "--out", out, "--seconds", str(longer * NOTEBOOK_S),
             "--cell-seconds", str(longer * CELL_S), "--jobs", str(arguments.jobs),
             *["--gpu"] * arguments.gpu],
            check=True,
        )  # fmt: skip
        rows = rows_of(out, kinds, hostile, time.monotonic() - start_s)
    for row in rows:
        print(row)
    if arguments.out:
        machine = f"{arguments.jobs} notebooks at a time"
        command = f"python benchmarks/grading.py{' --gpu' * arguments.gpu}"
        facts.write(arguments.out, command, machine, rows, lessons=len(LESSONS))


if __name__ == "__main__":
    main()
