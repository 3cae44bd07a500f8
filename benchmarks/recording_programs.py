"""What does recording a launch-bound program cost, by `gs.profile()` and by `gpuscope record`?

    python benchmarks/recording_programs.py [--rounds 5] [--seconds 2] [--device cuda:0]

Each round runs a process of each kind, in turns. A process runs two programs for so many seconds: a
small PyTorch model, module by module, and torch.mm in a stream. "CUPTI's kernels" is `gs.profile()`
without the launches' ids. Ratios are of the same round; the last rows are the goals. With --device
sim:h200 the programs launch on the simulated GPU, which shows that this runs and nothing else.
Exits with 1 if a goal is missed or a launch has no row.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from facts import BESIDE, row, spread, write

HERE = Path(__file__).resolve()
KINDS = {
    "bare": "bare",
    "kernels": "CUPTI's kernels",
    "profile": "gs.profile()",
    "record": "gpuscope record",
}
PROGRAMS = ("modules", "mm")
GOALS = (("record", "bare", 1.10), ("record", "profile", 1.02))
"""Kind, against which, and how many times as long it may take at most."""
AT_ONCE = 200


# -- a process -------------------------------------------------------------------------------
def programs(device: str) -> dict[str, tuple[Callable[[], object], int, Callable[[], object]]]:
    """Return name → what launches, how often it does, and what waits for it."""
    if device.startswith("sim"):
        import gpuscope as gs

        gpu = gs.open_device(device, quiet=True)
        stream, kernel = gpu.create_stream(), gs.workloads.spin_kernel(gpu)
        handle = gs.Gemm(gpu, m=64, n=64, k=64)
        return {
            "modules": (
                lambda: stream.launch(kernel, 1_000, grid=1, block=32),
                1,
                stream.synchronize,
            ),
            "mm": (lambda: handle.execute(stream=stream), 1, stream.synchronize),
        }
    import torch
    from torch import nn

    torch.set_grad_enabled(mode=False)
    layers = [part for _ in range(4) for part in (nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))]
    model = nn.Sequential(*layers).cuda().eval()
    x, out = torch.randn(64, 64, device="cuda"), torch.empty(64, 64, device="cuda")
    stream = torch.cuda.Stream()

    def mm() -> None:
        with torch.cuda.stream(stream):
            torch.mm(x, x, out=out)

    wait = torch.cuda.synchronize
    return {"modules": (lambda: model(x), len(layers), wait), "mm": (mm, 1, wait)}


def child(kind: str, device: str, seconds: float) -> None:
    """Run the programs, and print name → µs a launch, and launches."""
    found = {}
    for name, (launch, count, wait) in programs(device).items():
        for _ in range(300):
            launch()
        wait()
        with block(kind):
            launches, began_ns = 0, time.perf_counter_ns()
            while time.perf_counter_ns() - began_ns < seconds * 1e9:
                for _ in range(AT_ONCE):
                    launch()
                launches += count * AT_ONCE
            wait()
            took_ns = time.perf_counter_ns() - began_ns
        found[name] = {"us": took_ns / launches / 1e3, "launches": launches}
    print(json.dumps(found))


def block(kind: str) -> contextlib.AbstractContextManager[object]:
    if kind in ("bare", "record"):
        return contextlib.nullcontext()
    import gpuscope as gs

    return gs.profile(launch_ids=kind == "profile")


# -- the rounds ------------------------------------------------------------------------------
def run(kind: str, device: str, seconds: float, folder: Path) -> dict:
    """Run a process; returns what it printed and how long it took."""
    out = folder / f"{time.monotonic_ns()}.parquet"
    before = ["-m", "gpuscope.cli", "record", "--no-report", "--out", str(out)]
    command = [str(HERE), "child", kind, device, str(seconds)]
    root = str(HERE.parents[1])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, *(before if kind == "record" else []), *command],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    took_s = time.monotonic() - began_s
    if done.returncode:
        raise RuntimeError(f"{kind}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    found = {"of": json.loads(done.stdout.splitlines()[-1]), "process_s": took_s}
    if kind == "record":
        import gpuscope as gs

        trace = gs.load_trace(out)
        found["kernels"] = trace.kind_counts().get("kernel", 0)
        found["complete"] = trace.metadata.complete
        out.unlink()
    return found


def rows_of(rounds: list[dict]) -> list[dict]:
    """Return the rows of the result; those with goals last."""
    rows, goals = [], []
    for name in PROGRAMS:
        us = {kind: [one[kind]["of"][name]["us"] for one in rounds] for kind in KINDS}
        for kind, called in KINDS.items():
            rows.append(
                row(
                    f"{name}, {called}: a launch",
                    BESIDE,
                    round(statistics.median(us[kind]), 3),
                    "µs",
                    met=True,
                    spread=spread(us[kind]),
                    launches=[one[kind]["of"][name]["launches"] for one in rounds],
                )
            )
        for kind in ("kernels", "profile"):
            ratios = [one / other for one, other in zip(us[kind], us["bare"], strict=True)]
            rows.append(
                row(
                    f"{name}: {KINDS[kind]} / bare",
                    BESIDE,
                    round(statistics.median(ratios), 3),
                    "×",
                    met=True,
                    spread=spread(ratios),
                )
            )
        for kind, against, most in GOALS:
            ratios = [one / other for one, other in zip(us[kind], us[against], strict=True)]
            median = statistics.median(ratios)
            goals.append(
                row(
                    f"{name}: {KINDS[kind]} / {KINDS[against]}",
                    f"≤ {most:.2f} ×",
                    round(median, 3),
                    "×",
                    met=median <= most,
                    spread=spread(ratios),
                )
            )
    for kind, called in KINDS.items():
        took = [one[kind]["process_s"] for one in rounds]
        rows.append(
            row(
                f"{called}: the whole process, start and end included",
                BESIDE,
                round(statistics.median(took), 2),
                "s",
                met=True,
                spread=spread(took),
            )
        )
    launched = [sum(of["launches"] for of in one["record"]["of"].values()) for one in rounds]
    missing = [
        max(0, count - one["record"]["kernels"])
        for count, one in zip(launched, rounds, strict=True)
    ]
    complete = all(one["record"]["complete"] for one in rounds)
    goals.append(
        row(
            "gpuscope record: launches without a row",
            "0",
            max(missing),
            f"of {max(launched):,}",
            met=complete and not any(missing),
        )
    )
    return [*rows, *goals]


def main() -> int:
    """Run the rounds; returns 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each program in a process")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, help="keep the figures there")
    asked = parser.parse_args()
    out = asked.out
    machine = asked.device
    if out is None and not asked.device.startswith("sim"):
        out = HERE.parent / "results" / "recording_programs.json"
    if not asked.device.startswith("sim"):
        from gpuscope.device.cuda import driver

        machine = driver.gpus()[0].name
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(asked.rounds):
            turn = [*KINDS][number % len(KINDS) :] + [*KINDS][: number % len(KINDS)]
            rounds.append(
                {kind: run(kind, asked.device, asked.seconds, Path(folder)) for kind in turn}
            )
            said = {kind: one["of"]["modules"]["us"] for kind, one in rounds[-1].items()}
            print(f"round {number + 1}: {said}", flush=True)
    rows = rows_of(rounds)
    if out is not None:
        write(out, "python benchmarks/recording_programs.py", machine, rows)
    print(f"\n{machine}, {asked.rounds} rounds, median (least to most)")
    for one in rows:
        between = one.get("spread")
        told = f" ({between['min']:.3f} to {between['max']:.3f})" if between else ""
        goal = (
            "" if one["goal"] == BESIDE else f"  {one['goal']} {'met' if one['met'] else 'MISSED'}"
        )
        print(f"{one['what']:58} {one['value']:>8} {one['unit']}{told}{goal}")
    return int(not all(one["met"] for one in rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2], sys.argv[3], float(sys.argv[4]))
    else:
        sys.exit(main())
