"""How many of twenty racy programs `gs.confirm` confirms, and how many of their mended twins.

    python benchmarks/hazards_confirm.py --device cuda:0 [--out benchmarks/results/…json]

The programs are those of `tests/races.py`, with one for each of CuPy and PyTorch that is installed.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from facts import BESIDE, row, write

import gpuscope as gs

LEAST = 16


def found(gpu: Any, race: Any, *, mended: bool) -> Any:
    """Return the hazard that a program has, if it is found; of a twin, any."""
    with gs.profile(gpu, hazards=True) as recording:
        race.program(gpu, mended=mended)
    facts = gs.analysis.hazards(recording.trace).found
    return next((fact for fact in facts if mended or race.is_found(fact)), None)


def tried(gpu: Any, race: Any) -> dict[str, Any]:
    """Return what becomes of a program and of its twin."""
    begun = time.monotonic()
    hazard, other = (found(gpu, race, mended=mended) for mended in (False, True))
    racy, twin = (
        gs.confirm(hazard, partial(race.program, gpu, mended=mended), gpu).status if hazard else ""
        for mended in (False, True)
    )
    return {
        "program": race.name, "found": hazard is not None, "status": racy,
        "twin found": other is not None, "twin status": twin,
        "seconds": round(time.monotonic() - begun, 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from races import BORROWED, TRIED

    gpu = gs.open_device(asked.device)
    races = [*TRIED, *(BORROWED if asked.device.startswith("cuda") else [])]
    print(f"{'program':40} {'found':5}  {'confirmed':13}  {'twin found':10}  twin confirmed")
    lines = []
    for race in races:
        line = tried(gpu, race)
        lines.append(line)
        print(
            f"{line['program']:40} {'yes' if line['found'] else 'NO':5}  "
            f"{'yes' if line['status'] == 'confirmed' else 'NO':13}  "
            f"{'YES' if line['twin found'] else 'no':10}  "
            f"{'YES' if line['twin status'] == 'confirmed' else 'no'}"
            f"{'' if line['status'] == 'confirmed' else '   ' + line['status']}",
            flush=True,
        )
    own = lines[: len(TRIED)]
    confirmed = sum(line["status"] == "confirmed" for line in own)
    accused = sum(line["twin found"] or line["twin status"] == "confirmed" for line in lines)
    missed = sum(not line["found"] for line in lines)
    rows = [
        row("racy programs confirmed by delay", f">= {LEAST} of {len(own)}", confirmed, "programs",
            met=confirmed >= LEAST, programs=lines),
        row("mended twins found or confirmed", "0", accused, "programs", met=not accused),
        row("racy programs not found", "0", missed, "programs", met=not missed),
        row("longest program, with its twin", BESIDE, max(line["seconds"] for line in lines), "s",
            met=True),
    ]  # fmt: skip
    for line in rows[:3]:
        print(f"{line['what']}: {line['value']} (goal: {line['goal']})")
    if asked.out is not None:
        write(asked.out, "python benchmarks/hazards_confirm.py", gpu.name, rows)
    sys.exit(not all(line["met"] for line in rows))


if __name__ == "__main__":
    main()
