"""Does `gpuscope diff` cry wolf, what can it see, and does it name what was changed?

    python benchmarks/diff.py [--device cuda:0] [--turns 4] [--only same,changed,programs] [--out …]

**Same**: experiments that are equal are compared again and again; each verdict but "equal" and
"cannot tell" is a false alarm. Beside it the control: one capture of each side and a floor of 2 %,
as other tools have it, on the same rounds. **Changed**: kernels that spin longer by a known share;
told are how often that was seen, and whether the interval holds it. **Programs**, with PyTorch: a
culprit beside its mended twin, and one beside itself, a process each.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from facts import BESIDE, command, row, write

import gpuscope as gs
from gpuscope.device.cuda.health import clocks_of
from gpuscope.judging.diffing import DiffResult

CULPRITS = Path(__file__).resolve().parent / "culprits"
FLOOR = 0.02
"""Of tools that compare one capture of each side."""
CHANGES = (0.005, 0.01, 0.02, 0.05)
ALARM = ("slower", "faster")


def experiments() -> dict[str, dict]:
    """Return what is compared with itself."""
    gemm = {"kind": "gemm", "dtype": "float16", "stream": "s"}

    def one(name: str, **fields: object) -> dict:
        return {"name": name, "streams": {"s": {}}, "workloads": {"w": {**gemm, **fields}}}

    load = {**gemm, "m": 4096, "n": 4096, "k": 4096, "stream": "load", "background": True}
    small = {**gemm, "m": 512, "n": 512, "k": 512, "max_queued": 1, "repeats": 100}
    beside = {"small": {**small, "arrival": "poisson", "rate_hz": 1000}, "load": load}
    return {
        "host-bound (512³, waited for)": {
            **one("host", m=512, n=512, k=512, repeats=200, max_queued=1)
        },
        "GPU-bound (4096³, queued)": one("gpu", m=4096, n=4096, k=4096, repeats=100),
        "beside a load, no partition": {
            "name": "beside",
            "streams": {"s": {}, "load": {}},
            "workloads": beside,
        },
        "spinning (100 µs)": spinning(100.0),
    }


def spinning(duration_us: float) -> dict:
    spin = {"kind": "spin", "duration_us": duration_us, "stream": "s", "repeats": 100}
    return {"name": "spin", "streams": {"s": {}}, "workloads": {"w": {**spin, "max_queued": 1}}}


def alarms_of_captures(result: DiffResult) -> tuple[int, int]:
    """Return how many pairs of single captures differ by more than the floor, and how many are."""
    keys = [(each.workload, each.column) for each in result.effects]
    apart = [
        any(abs(after.values[key] / before.values[key] - 1) > FLOOR for key in keys)
        for before, after in (result.turns.pairs if result.turns else ())
        if all(before.values[key] for key in keys)
    ]
    return sum(apart), len(apart)


def same(device: gs.device.Device, turns: int) -> Iterator[dict]:
    for name, experiment in experiments().items():
        began_s = time.monotonic()
        results = []
        for _ in range(turns):
            results.append(gs.diff(experiment, experiment, device=device))
            print(f"  {name}: {results[-1].headline}", flush=True)
        took_s = (time.monotonic() - began_s) / turns
        false = sum(result.verdict in ALARM for result in results)
        told = sum(result.verdict == "equal" for result in results)
        single = [alarms_of_captures(result) for result in results]
        alarms, captures = (sum(each[at] for each in single) for at in (0, 1))
        left = sum(len(result.turns.left_out) for result in results if result.turns)
        smallest = [max(each.smallest for each in result.effects) for result in results]
        largest = [max(abs(each.change) for each in result.effects) for result in results]
        detail: dict[str, Any] = {
            "verdicts": [result.verdict for result in results],
            "smallest_seen": smallest,
            "largest_change": largest,
            "left_out": left,
            "seconds_each": took_s,
            "numbers": [
                [f"{e.workload}.{e.column}", e.change, e.low, e.high, e.verdict]
                for result in results
                for e in result.effects
            ],
        }
        limit = max(1, round(0.05 * turns))
        rows = [
            row(f"same: {name}: false alarms", f"≤ {limit} of {turns}", false, f"of {turns}",
                met=false <= limit, **detail),
            row(f"same: {name}: told equal within 5 %", BESIDE, told, f"of {turns}", met=True),
            row(f"same: {name}: one capture of each, floor 2 %", BESIDE, alarms,
                f"of {captures}", met=True),
        ]  # fmt: skip
        for each in rows:
            print(f"{each['what']}: {each['value']} {each['unit']}", flush=True)
        for number in detail["numbers"]:
            if number[-1] in ALARM:
                print(f"  {number[0]}: {number[1]:+.3%} ({number[2]:+.3%} to {number[3]:+.3%})")
        print(f"  smallest seen {min(smallest):.2%} to {max(smallest):.2%}, {left} left out, "
              f"{took_s:.1f} s each", flush=True)  # fmt: skip
        yield from rows


def changed(device: gs.device.Device, turns: int) -> Iterator[dict]:
    for change in CHANGES:
        seen = held = 0
        shares = []
        for _ in range(turns):
            result = gs.diff(spinning(100.0), spinning(100.0 * (1 + change)), device=device)
            about = next(each for each in result.effects if each.column == "latency_p50_us")
            truth = 100.0 * change / about.before
            seen += about.verdict == "slower"
            held += about.low <= truth <= about.high
            split = result.split("w")
            kernels = sum(part.change_ns for part in split.parts if part.cause == "kernels")
            shares.append(kernels / (1000 * 100 * change))
        yield row(f"changed by {change:.1%} of a kernel: seen", BESIDE, seen, f"of {turns}",
                  met=True, kernels_of_truth=shares)  # fmt: skip
        yield row(f"changed by {change:.1%} of a kernel: interval holds it", f"≥ {turns - 1}", held,
                  f"of {turns}", met=held >= turns - 1)  # fmt: skip
        print(f"changed by {change:.1%}: seen {seen} of {turns}, held {held}; kernels' part of it "
              f"{min(shares):.2f} to {max(shares):.2f}", flush=True)  # fmt: skip


def programs() -> Iterator[dict]:
    for name, mended, rounds in (("slow_kernel", True, 4), ("python_overhead", True, 4),
                                 ("slow_kernel", False, 6)):  # fmt: skip
        script = [sys.executable, str(CULPRITS / f"{name}.py")]
        began_s = time.monotonic()
        result = gs.diff(script, [*script, *(["--mended"] if mended else [])], rounds=rounds)
        took_s = time.monotonic() - began_s
        wanted = ("faster",) if mended else ("equal", "cannot tell")
        split = result.splits[0]
        off = sum(part.change_ns for part in split.parts) - (split.after_ns - split.before_ns)
        print(f"{name}{' → mended' * mended}: {result.verdict}: {result.headline}")
        for part in split.parts[:4]:
            print(f"  {part.cause:8} {part.name[:40]:40} {part.change_ns / 1e3:12.1f} µs "
                  f"{part.change:7} {part.line}")  # fmt: skip
        yield (
            row(f"{name} and {'its mended twin' if mended else 'itself'}", " or ".join(wanted),
                result.verdict, "", met=result.verdict in wanted, headline=result.headline,
                change=result.effects[0].change, low=result.effects[0].low,
                high=result.effects[0].high, smallest=result.effects[0].smallest,
                parts_off_ns=off, seconds=took_s, parts=[
                    [part.cause, part.name, part.change_ns / 1e3, part.line]
                    for part in split.parts[:4]
                ])
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--only", default="same,changed,programs")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    device = gs.open_device(options.device, quiet=True)
    print(f"{device.name}: {clocks_of(device.info.uuid)}", flush=True)
    of = {
        "same": lambda: same(device, options.turns),
        "changed": lambda: changed(device, max(2, options.turns // 2)),
        "programs": programs,
    }
    rows: list[dict] = []
    for name in options.only.split(","):
        for each in of[name]():
            rows.append(each)
            if options.out is not None:
                write(options.out, command(), device.name, rows)
    missed = [each["what"] for each in rows if not each["met"]]
    print(f"missed: {missed or 'none'}")


if __name__ == "__main__":
    main()
