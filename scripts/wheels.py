"""Build what is released, and try each file as a user would, away from the checkout.

    python scripts/wheels.py build FOLDER [VERSION …]    such as dist 3.11 3.12
    python scripts/wheels.py test [--extra full] FILE …

``build`` makes source distributions of gpuscope and of the lessons and, of gpuscope's, a compiled
wheel for each of these Pythons that is installed, and one pure wheel, as of the lessons'; without a
version, the wheels that installing gives here. ``test`` takes files of both. It installs each into
empty environments: gpuscope's alone for tests/base_install.py, and then with one of the lessons'
for the quickstart and the lessons. A compiled wheel needs its Python.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
THIS = f"{sys.version_info[0]}.{sys.version_info[1]}"
LESSONS = "gpuscope_lessons"
"""How files of the lessons' distribution begin."""
GOAL_S = 60
"""From installing to the first report."""
INSTALL = ("-m", "pip", "install", "-qq", "--disable-pip-version-check")
WHERE = (
    "import gpuscope as g; from gpuscope._compiled import fastpath as f; print(g.__file__, bool(f))"
)


def main() -> int:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    building, testing = (commands.add_parser(name) for name in ("build", "test"))
    building.add_argument("folder", type=Path)
    building.add_argument("versions", nargs="*")
    testing.add_argument("--extra", default="full")
    testing.add_argument("files", nargs="+", type=Path)
    asked = parser.parse_args()
    if asked.command == "build":
        build(asked.folder.resolve(), asked.versions)
        return 0
    heads = ("install s", "report s", "in all s", "CPU s")
    print("  MB" + "".join(f"{head:>10}" for head in heads), flush=True)
    lessons = [file for file in asked.files if file.name.startswith(f"{LESSONS}-")]
    ours = [file for file in asked.files if file not in lessons]
    if not (lessons and ours):
        raise SystemExit(f"files of gpuscope and of {LESSONS} are needed")
    for at in range(max(len(lessons), len(ours))):
        file, book = ours[at % len(ours)], lessons[at % len(lessons)]
        try_out(file.resolve(), book.resolve(), asked.extra)
    return 0


def build(folder: Path, versions: list[str]) -> None:
    """Fill a folder with distributions; what was there of gpuscope and the lessons goes."""
    for path in folder.glob("gpuscope*-*"):
        path.unlink()
    wheel = ("-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation", "-w", folder)
    with environment(THIS) as python:
        run(python, *INSTALL, "hatchling")
        for project in (ROOT, ROOT / "lessons"):
            run(python, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=project)
        (source,) = folder.glob("gpuscope-*.tar.gz")
        (lessons,) = folder.glob(f"{LESSONS}-*.tar.gz")
        run(python, *wheel, source, **({"GPUSCOPE_PURE": "1"} if versions else {}))
        run(python, *wheel, lessons)
    for version in versions:
        before = {*folder.iterdir()}
        if interpreter(version) is None:
            print(f"python{version} is not installed: no wheel for it", flush=True)
            continue
        with environment(version) as python:
            run(python, *INSTALL, "hatchling")
            run(python, *wheel, source)
        if before == {*folder.iterdir()}:
            print(f"no C compiler for python{version}: the pure wheel is for it", flush=True)
    for path in sorted(folder.glob("gpuscope*-*")):
        print(path.name)


def try_out(file: Path, lessons: Path, extra: str) -> None:
    """Install a file and use it, alone and with one of the lessons.

    Prints its size and how long it takes to the first report.
    """
    tag = re.search(r"-cp3(\d+)-", file.name)
    version = f"3.{tag[1]}" if tag else THIS
    if interpreter(version) is None:
        raise SystemExit(f"{file.name} needs python{version}, which is not installed")
    with environment(version) as python:
        folder = python.parents[2]
        run(python, *INSTALL, file)
        path, compiled = run(python, "-c", WHERE, cwd=folder).split()
        if not Path(path).is_relative_to(folder):
            raise SystemExit(f"gpuscope was taken from {path}, not from {file.name}")
        if file.suffix == ".whl" and (compiled == "True") != bool(tag):
            raise SystemExit(f"{file.name}: the compiled launch path is there: {compiled}")
        shutil.copy(ROOT / "tests" / "base_install.py", folder)
        run(python, "base_install.py", cwd=folder)
    with environment(version) as python:
        folder, command = python.parents[2], python.with_name("gpuscope")
        spent = [timed(python, *INSTALL, f"{file}[{extra},lessons]", lessons)]
        spent.append(timed(command, "quickstart", cwd=folder))
        run(command, "lessons", "lessons", cwd=folder)
        copied = {path.name for path in (folder / "lessons" / "notebooks").iterdir()}
        if lacking := {path.name for path in (ROOT / "notebooks").glob("*.ipynb")} - copied:
            raise SystemExit(f"{lessons.name} lacks the lessons {sorted(lacking)}")
        if not (folder / "out" / "quickstart" / "report.html").stat().st_size:
            raise SystemExit(f"the quickstart of {file.name} wrote an empty report")
    elapsed, busy = zip(*spent, strict=True)
    figures = "".join(f"{step_s:>10.1f}" for step_s in (*elapsed, sum(elapsed), sum(busy)))
    late = "" if sum(elapsed) <= GOAL_S else f", more than {GOAL_S} s in all"
    print(f"{file.stat().st_size / 1e6:4.1f}{figures}  {file.name}{late}", flush=True)


@contextmanager
def environment(version: str) -> Iterator[Path]:
    """Yield the Python of a new environment, in a folder that goes."""
    with tempfile.TemporaryDirectory() as folder:
        run(Path(interpreter(version) or ""), "-m", "venv", Path(folder).resolve() / "env")
        python = Path(folder).resolve() / "env" / "bin" / "python"
        yield python


def interpreter(version: str) -> str | None:
    """Return the Python of a version, if it is installed: a shim on PATH may stand for nothing."""
    name = sys.executable if version == THIS else shutil.which(f"python{version}")
    if name is None:
        return None
    check = [name, "-c", "import ensurepip, venv"]
    works = subprocess.run(check, capture_output=True, check=False).returncode == 0
    return name if works else None


def timed(program: Path, *words: object, cwd: Path | None = None) -> tuple[float, float]:
    """Run a program; returns the seconds that passed, and those of processors that it took."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    run(program, *words, cwd=cwd)
    elapsed, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return elapsed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(program: Path, *words: object, cwd: Path | None = None, **variables: str) -> str:
    """Run a program, in the folder for temporary files if in no other; returns what it printed."""
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [program, *map(str, words)], cwd=cwd or tempfile.gettempdir(), check=False, text=True,
        env={**surroundings, **variables}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{done.stdout}\n{program.name} {' '.join(map(str, words))} failed")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
