"""Record on this GPU what the parts of spans' time are checked on, into tests/data/recordings/.

    python scripts/make_part_recordings.py [--device cuda:0] [--out FOLDER]

`tests/parts_program.py` has the programs; each becomes NAME_GPU.parquet. The parts of every span
are checked here too: nothing is written where one is wrong.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import gpuscope as gs

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from parts_program import programs  # noqa: E402
from span_parts import check_every_span  # noqa: E402

MOST_BYTES = 300_000


def main() -> int:
    """Record, check and write; returns 1 if a file is too large for the repository."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "data" / "recordings")
    given = parser.parse_args()
    gpu = gs.open_device(given.device, quiet=True)
    model = re.search(r"[A-Z]+\d+", gpu.info.name)
    suffix = gpu.info.name.split()[-1] if model is None else model[0]
    suffix = ("sim_" if gpu.is_simulated else "") + suffix.lower()
    given.out.mkdir(parents=True, exist_ok=True)
    lines, too_large = [], False
    for name, record in programs(gpu).items():
        trace = record(gpu)
        told = check_every_span(trace)
        path = gs.export(trace, given.out / f"{name}_{suffix}.parquet")
        size = path.stat().st_size
        too_large |= size > MOST_BYTES
        parts = [part for one in told.values() for part in one]
        total_ns = sum(part.duration_ns for part in parts)
        lost_ns = sum(part.duration_ns for part in parts if part.kind == "unexplained")
        share = lost_ns / max(1, total_ns)
        lines.append(f"{path.name:26} {len(told):6} {len(parts):6} {share:9.2%} {size / 1e3:8.0f}")
    print(f"{'file':26} {'spans':>6} {'parts':>6} {'unexpl.':>9} {'kB':>8}")
    print("\n".join(lines))
    return int(too_large)


if __name__ == "__main__":
    sys.exit(main())
