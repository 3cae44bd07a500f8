"""Random programs on the simulated GPU: are the hazards reported those that the engine shows, and
does the order that is told to be missing leave none?

    python benchmarks/hazards.py [--programs 10000] [--seed N] [--processes N] [--out FILE]

`tests/hazard_programs.py` makes the programs, says why the engine knows which pairs race, and adds
the missing orders to others, with many graphs. Program n has the seed N + n. Each that is
judged wrongly is printed, with what was wrong, and what a mend leaves.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from pathlib import Path

from facts import BESIDE, row, write

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from hazard_programs import Verdict, judge, what_mends_leave  # noqa: E402

_ALONE = 3
"""So many mends of a program are tried alone, too."""


def judged(seed: int) -> tuple[Verdict, int, list[str]]:
    """Judge a program, and the mends of another one: how many, and what they leave."""
    return judge(seed), *what_mends_leave(seed, _ALONE)


def main() -> int:
    """Judge programs; returns 1 if one is judged wrongly, or a mend leaves a hazard."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1_000_000, help="of the first program")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/hazards.json")
    given = parser.parse_args()
    accesses = racy = missed = false = wrong = mends = left = 0
    start = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
        seeds = range(given.seed, given.seed + given.programs)
        for verdict, told, leaves in pool.imap_unordered(judged, seeds, chunksize=10):
            mends += told
            left += len(leaves)
            for hazard in leaves:
                print(f"program {verdict.seed}, mended: {hazard}", flush=True)
            accesses += verdict.accesses
            racy += verdict.racy
            missed += len(verdict.missed)
            false += len(verdict.false)
            wrong += len(verdict.wrong)
            if not verdict.is_right:
                print(verdict, flush=True)
    seconds = round(time.perf_counter() - start, 1)
    rows = [
        row("programs", BESIDE, given.programs, "", met=True),
        row("pieces of work and accesses by the host", BESIDE, accesses, "", met=True),
        row("racy pairs", BESIDE, racy, "", met=True),
        row("missed", "0", missed, "", met=missed == 0),
        row("false alarms", "0", false, "", met=false == 0),
        row("wrong kind, count or bytes", "0", wrong, "", met=wrong == 0),
        row("mends, all of a program and some alone", BESIDE, mends, "", met=True),
        row("hazards and races that they leave", "0", left, "", met=left == 0),
        row("time", BESIDE, seconds, "s", met=True),
    ]
    for what in rows:
        print(f"{what['what']:46} {what['value']:>12,} {what['unit']}")
    command = f"python benchmarks/hazards.py --programs {given.programs} --seed {given.seed}"
    write(given.out, command, f"{given.processes} processes, sim:h200", rows)
    return 0 if missed == false == wrong == left == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
