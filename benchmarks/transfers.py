"""How long copies and memsets of every size take on the GPU, by direction and kind of memory.

    python benchmarks/transfers.py [--out benchmarks/results/transfers.json]

``scripts/fit_profile.py`` fits a profile to such ``rows``, kept in benchmarks/data/h200_host.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from facts import write

import gpuscope as gs
from gpuscope.simulator.calibration.host import transfers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/transfers.json"))
    args = parser.parse_args()
    gpu = gs.open_device("cuda", quiet=True)
    times = transfers(gpu, "cupti")
    write(args.out, "python benchmarks/transfers.py", gpu.info.name, times, driver=gpu.info.driver)
    print("median µs of 11 on the GPU")
    print(f"{'bytes':>10}" + "".join(f"{way:>25}" for way in times))
    for row in zip(*times.values(), strict=True):
        print(f"{row[0][0]:>10}" + "".join(f"{us:25.2f}" for _, us in row))


if __name__ == "__main__":
    main()
