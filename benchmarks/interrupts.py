"""Whether a GPU is usable after Ctrl-C at random moments of runs.

    python benchmarks/interrupts.py [--device cuda:0] [--count 200] [--seed 0]

Each run is interrupted once, at a moment that is drawn over the time it takes undisturbed. After
each, a small product has to be right, nothing carved or recording may be left, and what the run
returns has to hold kernels. The table comes last; the exit status is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from facts import row, write

import gpuscope as gs
from gpuscope.errors import NothingRecorded

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from interrupting import experiment, gemm, kernels_of, left_behind, wrong_product

EXPERIMENT = experiment(gemm(2048), gemm(256, repeats=100), alone_repeats=3)


def wrong_after(gpu: Any) -> str | None:
    """Say what an interrupt left wrong, if anything."""
    return left_behind(gpu) or wrong_product(gpu)


def interrupted_run(gpu: Any, after_s: float) -> str:
    """Run, with Ctrl-C after some time; returns how that ended."""
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        run = gs.run(EXPERIMENT, gpu)
    except NothingRecorded:
        return "nothing was recorded yet"
    except KeyboardInterrupt:
        return "interrupted outside the run"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if not kernels_of(run):
        return "wrong: the run kept no kernels"
    return "stopped, its data kept" if run.stopped else "over before the interrupt"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="keep the figures there")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    gpu = gs.open_device(args.device)
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    gs.run(EXPERIMENT, gpu)
    began = time.monotonic()
    gs.run(EXPERIMENT, gpu)
    took_s = time.monotonic() - began
    rng = random.Random(args.seed)  # noqa: S311 - moments, not secrets
    ended: Counter[str] = Counter()
    for number in range(args.count):
        try:
            how = interrupted_run(gpu, rng.uniform(0.001, took_s))
            bad = wrong_after(gpu)
        except KeyboardInterrupt:
            how, bad = "interrupted outside the run", wrong_after(gpu)
        except Exception as error:  # noqa: BLE001 - all are tried
            how, bad = f"wrong: {type(error).__name__}: {error}"[:150], None
        ended[how if bad is None else f"wrong: {bad}"] += 1
        if number % 20 == 19:
            print(f"{number + 1} of {args.count}", flush=True)
    print(f"\n{args.count} interrupts of runs of {took_s * 1e3:.0f} ms on {gpu.name}")
    for how, count in ended.most_common():
        print(f"{count:6}  {how}")
    wrong = sum(count for how, count in ended.items() if how.startswith("wrong"))
    if args.out is not None:
        what = "random interrupts of runs after which the device or the data was wrong"
        found = row(what, "0", wrong, f"of {args.count}", met=not wrong, ended=dict(ended))
        write(args.out, "python benchmarks/interrupts.py", gpu.name, [found],
              driver=gpu.info.driver)  # fmt: skip
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
