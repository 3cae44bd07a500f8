"""Check style, types, arrows, and the unit tests of the rooms that changed.

    python scripts/check.py [--since REF] [--list]

What changed is what git says: commits since the branch left ``main`` (or ``REF``), what is not
committed yet, and new files. A file of ``gpuscope/ROOM`` selects ``tests/unit/ROOM``, one of the
lessons or of ``notebooks/`` theirs; a page
selects the tests of the docs; a file that all rooms share selects all unit tests. The checks
run side by side. `make test` runs everything.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
UNIT = "tests/unit"
PROJECT = f"{UNIT}/project"
DOCS = tuple(f"{PROJECT}/test_{name}.py" for name in ("docs", "map", "recipes", "contracts_page"))
ALWAYS = (f"{PROJECT}/test_code.py", f"{PROJECT}/test_map.py")
"""Limits and the map, which every change of the package can break."""
LESSONS = "lessons/tests/unit"
SELECTED = (
    (r"gpuscope/(\w+)/", (f"{UNIT}/{{}}", *ALWAYS)),
    (r"(tests/unit/project/\w+\.py)", ("{}",)),
    (r"tests/unit/(\w+)/", (f"{UNIT}/{{}}",)),
    (r"(gpuscope|tests)/[^/]+$|(pyproject\.toml|conftest\.py)$", (UNIT, LESSONS)),
    (r"lessons/", (LESSONS, *ALWAYS)),
    (r"notebooks/", (LESSONS, *DOCS, *ALWAYS)),
    (r"(docs|benchmarks|scripts)/|[^/]+\.md$", (*DOCS, *ALWAYS)),
    (r"examples/", (*DOCS, f"{UNIT}/experiments", f"{UNIT}/cli")),
)
"""Pattern of a changed path → the tests that it selects; the first that matches counts."""


def git(*words: str) -> str:
    """Return what git prints, or "" where it refuses."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def changed(since: str) -> list[str]:
    """Return the paths that differ from a commit, new files included."""
    new = git("ls-files", "--others", "--exclude-standard")
    return sorted({*git("diff", "--name-only", since).splitlines(), *new.splitlines()})


def tests_of(path: str) -> list[str]:
    """Return the test paths that a changed file selects."""
    for pattern, tests in SELECTED:
        if match := re.match(pattern, path):
            return [test.format(*match.groups()) for test in tests]
    return []


def selected(paths: Iterable[str]) -> list[str]:
    """Return the test paths that changed files select, none inside another."""
    tests = {test for path in paths for test in tests_of(path) if (ROOT / test).exists()}
    return sorted(
        test for test in tests if not any(f"{test}/".startswith(f"{o}/") for o in tests - {test})
    )


def main() -> int:
    """Run the checks; return 1 if one fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--since", help="commit to compare with (default: where main was left)")
    parser.add_argument("--list", action="store_true", help="only print the tests selected")
    given = parser.parse_args()
    base = (
        given.since or git("merge-base", "HEAD", "main") or git("merge-base", "HEAD", "origin/main")
    )
    tests = selected(changed(base or "HEAD"))
    if given.list:
        print(*tests, sep="\n")
        return 0
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    checks = {
        "ruff": [BIN / "ruff", "check", "."],
        "format": [BIN / "ruff", "format", "--check", "."],
        "arrows": [BIN / "lint-imports"],
        "mypy": [BIN / "mypy", "--python-version", python],
    }
    if tests:
        checks["tests"] = [
            sys.executable, "-m", "pytest", "-q", "-m", "not gpu and not ui",
            "-n", "auto", "--dist", "worksteal", *tests,
        ]  # fmt: skip
    print(f"unit tests: {' '.join(tests) or 'none, since nothing of a room changed'}", flush=True)
    with ThreadPoolExecutor(len(checks)) as pool:
        results = list(pool.map(run, checks, checks.values()))
    return int(not all(results))


def run(name: str, command: list[str | Path]) -> bool:
    """Run one check, and print its output if it fails."""
    started = time.monotonic()
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    ok = done.returncode == 0
    outcome = "passed" if ok else "FAILED"
    print(f"{name}: {outcome} in {time.monotonic() - started:.0f} s", flush=True)
    if not ok:
        print(done.stdout, flush=True)
    return ok


if __name__ == "__main__":
    sys.exit(main())
