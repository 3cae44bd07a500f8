"""Run the tests that need a GPU: those that can share it on several workers, then the others alone.

    python scripts/gpu_tests.py [--workers N] [pytest's options and paths …]

A test that others on the GPU could make fail is marked ``gpu_alone``. What is given by ``-m``
selects among the tests of both passes: ``-m gpu_alone`` runs only the second one,
``-m "not gpu_alone"`` the first.

Exit status: 0 if all tests passed, 5 if there were none, else that of the first pass that failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("tests/gpu", "tests/contract", "lessons/tests/gpu")
MOST_WORKERS = 6
"""So many shared an H200. A second GPU takes no more: nearly all tests open the first one."""
NO_TESTS = 5
"""What pytest exits with where nothing was selected."""


def workers(cores: int) -> int:
    """Return how many workers share a GPU: each has a core, and one for the programs it starts."""
    return max(1, min(MOST_WORKERS, cores // 2))


def passes(count: int, markers: str, options: Sequence[str]) -> list[list[str]]:
    """Return pytest's arguments of both passes."""
    has_paths = any(
        option.startswith(("tests/", "lessons/")) or ".py" in option for option in options
    )
    chosen = [*options, *(() if has_paths else FOLDERS)]
    also = f" and ({markers})" if markers else ""
    return [
        ["-m", f"gpu and not gpu_alone{also}", "-n", str(count), "--dist", "worksteal", *chosen],
        ["-m", f"gpu and gpu_alone{also}", *chosen],
    ]


def status(statuses: Sequence[int]) -> int:
    """Return what to exit with, from what the passes exited with."""
    ran = [each for each in statuses if each != NO_TESTS]
    return next((each for each in ran if each), 0) if ran else NO_TESTS


def main() -> int:
    """Run both passes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--workers", type=int, default=workers(len(os.sched_getaffinity(0))))
    parser.add_argument("-m", dest="markers", default="")
    given, options = parser.parse_known_args()
    return status(
        [
            subprocess.call([sys.executable, "-m", "pytest", *arguments], cwd=ROOT)
            for arguments in passes(given.workers, given.markers, options)
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
