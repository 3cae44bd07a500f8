"""How long does `gpuscope record` go on after a program that left many rows?

    python benchmarks/record_end.py [--rows 600000] [--rounds 3] [--device cuda:0]

The program launches one short kernel after the other, a kernel and the call that launched it a
row each, and says when its last statement is done. From then on it is timed, on this process's
clock: until the program's own process is gone, bare and recorded, in turns; until the trace's file
is whole; until the command ends, when it has said what it found. A program with PyTorch takes
some time to be gone by itself: the goal is for what recording adds to that. With --device
sim:h200 the program launches on the simulated GPU, which shows that this runs and nothing else.
Exits with 1 if the goal is missed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from facts import BESIDE, row, spread, write

HERE = Path(__file__).resolve()
GOAL_S = 2.0
AT_ONCE = 1000


def child(device: str, launches: int) -> None:
    """Launch so often, and print when the last of it has ended."""
    if device.startswith("sim"):
        import gpuscope as gs

        gpu = gs.open_device(device, quiet=True)
        stream, kernel = gpu.create_stream(), gs.workloads.spin_kernel(gpu)
        for number in range(launches):
            stream.launch(kernel, 1_000, grid=1, block=32)
            if number % AT_ONCE == 0:
                stream.synchronize()
        stream.synchronize()
    else:
        import torch

        x = torch.ones(64, 64, device="cuda")
        out = torch.empty_like(x)
        for number in range(launches):
            torch.mm(x, x, out=out)
            if number % AT_ONCE == 0:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
    print(f"ended {time.monotonic()} {os.getpid()}", flush=True)


def is_running(pid: int) -> bool:
    """Whether a process is there, and not only its exit status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ended(device: str, launches: int, out: Path, *options: str) -> dict[str, float]:
    """Run the program; returns seconds after its end, until ``out`` is there among them."""
    root = str(HERE.parents[1])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    began_s = time.monotonic()
    with subprocess.Popen(
        [sys.executable, *options, str(HERE), "child", device, str(launches)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        output, complaints = process.stdout, process.stderr
        if output is None or complaints is None:
            raise AssertionError
        _, last, pid = next(line for line in output if line.startswith("ended ")).split()
        while is_running(int(pid)):
            time.sleep(0.01)
        gone_s = time.monotonic()
        while options and process.poll() is None and not (out.exists() and out.stat().st_size):
            time.sleep(0.01)  # its name is taken first; then it comes as a whole
        wrote_s = time.monotonic()
        said = complaints.read()
    done_s = time.monotonic()
    if process.returncode:
        raise RuntimeError(said[-2000:])
    last_s = float(last)
    return {
        "program_s": last_s - began_s,
        "gone_s": gone_s - last_s,
        "wrote_s": wrote_s - last_s,
        "done_s": done_s - last_s,
    }


def run(device: str, launches: int, folder: Path) -> dict[str, float]:
    """Run the program bare and record it; returns seconds after its end, and rows."""
    import gpuscope as gs

    out = folder / "trace.parquet"
    record = ("-m", "gpuscope.cli", "record", "--no-report", "--out", str(out))
    bare = ended(device, launches, out)
    found = ended(device, launches, out, *record)
    found["bare_s"] = bare["gone_s"]
    found["added_s"] = found["wrote_s"] - bare["gone_s"]
    found["rows"] = len(gs.load_trace(out))
    out.unlink()
    return found


def main() -> int:
    """Run the rounds; returns 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda:0")
    asked = parser.parse_args()
    is_simulated = asked.device.startswith("sim")
    import gpuscope as gs

    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(asked.rounds):
            rounds.append(run(asked.device, asked.rows // 2, Path(folder)))
            print({name: round(value, 2) for name, value in rounds[-1].items()}, flush=True)
    told = {
        "bare_s": ("its process is gone, bare", BESIDE),
        "gone_s": ("its process is gone, recorded", BESIDE),
        "wrote_s": ("its trace is written", BESIDE),
        "done_s": ("what was found is said", BESIDE),
        "added_s": ("its trace is written, beyond the bare process", f"≤ {GOAL_S:.0f} s"),
    }
    rows = []
    for name, (what, goal) in told.items():
        seconds = spread([found[name] for found in rounds])
        rows.append(
            row(
                f"after the program's end, until {what}",
                goal,
                round(seconds["median"], 2),
                "s",
                met=goal == BESIDE or seconds["median"] <= GOAL_S,
                spread=seconds,
                rows=[found["rows"] for found in rounds],
                program_s=[round(found["program_s"], 2) for found in rounds],
            )
        )
    if not is_simulated:
        out = HERE.parent / "results" / "record_end.json"
        command = f"python benchmarks/record_end.py --rounds {asked.rounds}"
        info = gs.open_device(asked.device, quiet=True).info
        write(out, command, info.name, rows, driver=info.driver)
    for found in rows:
        verdict = "" if found["goal"] == BESIDE else f"  {found['goal']}, met: {found['met']}"
        print(f"{found['what']:58} {found['value']:>8} {found['unit']}{verdict}")
    return int(not all(found["met"] for found in rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(main())
