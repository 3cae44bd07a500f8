"""Run every benchmark that needs a GPU, each in a process of its own, and say how long each took.

    python benchmarks/all_gpu.py [--out FOLDER] [--only NAME ... | --two] [--resume] [--seconds N]

With two GPUs it runs those that need two as well, and alone with ``--two`` (a sweep on two workers,
clocks, NCCL's order, all-reduces).

Each result is written as its benchmark ends, so that an interrupted run keeps what it has. With
--resume, what an earlier run into the same folder has done is left out. Nothing begins after
--seconds: run again with --resume until the exit status is 0.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
GROUPS = ("carving", "host cost", "observer", "throughput", "quickstart", "contracts",
          "recording", "events", "latency", "shapes")  # fmt: skip
"""What h200.py measures."""
BESIDE: dict[str, tuple[str, ...]] = {
    "tune": ("tune.py",),
    "rightsize": ("rightsize.py", "--device", "cuda:0", "--seconds", "330"),
    "rightsize_joules": ("rightsize.py", "--device", "cuda:0", "--joules"),
    "recorders": ("recorders.py",),
    "counters": ("counters.py",),
    "recording_programs": ("recording_programs.py",),
    "stacks_gpu_host": ("stacks.py", "--only", "cost"),
    "record_end": ("record_end.py",),
    "programs_of_others": ("programs_of_others.py",),
    "graph_records": ("graph_records.py",),
    "waits": ("waits.py",),
    "softmax": ("softmax.py",),
    "traced": ("traced.py",),
    "transfers": ("transfers.py",),
    "findings": ("findings.py",),
    "remainder": ("remainder.py",),
    "interference_pairs": ("interference_pairs.py", "--device", "cuda:0"),
    "latencies": ("latencies.py",),
    "what_if": ("what_if.py", "--planted"),
    "soak_live": ("soak_live.py", "--device", "cuda:0"),
    "soak_live_raises": ("soak_live.py", "--device", "cuda:0", "--seconds", "15", "--raises"),
    "long_recording": ("long_recording.py", "--device", "cuda:0", "--seconds", "90", "--keep",
                       "20 s"),
    "memory_soak": ("memory_soak.py",),
    "interrupts": ("interrupts.py",),
    "models": ("models.py",),
    "diff": ("diff.py", "--turns", "2"),
    "hazards_cost": ("hazards_cost.py", "--device", "cuda:0"),
    "hazards_torch": ("hazards_torch.py",),
    "hazards_confirm": ("hazards_confirm.py", "--device", "cuda:0"),
    "scale_out_gpu": ("scale_out_gpu.py",),
    "clocks": ("clocks.py",),
    "clocks_mps": ("clocks.py", "--mps"),
}  # fmt: skip
"""Result → its own script and arguments."""
ON_TWO: dict[str, tuple[str, ...]] = {
    "two_gpus_sweep": ("scale_out_gpu.py",),
    "two_gpus_clocks": ("clocks.py",),
    "two_gpus_nccl_order": ("nccl_order.py",),
    "all_reduce": ("all_reduce.py",),
    "held_out": ("held_out.py",),
}
"""The same of those that need two GPUs."""
NAMES = (*GROUPS, *BESIDE)


def command(name: str, out: Path) -> list[str]:
    """Return what measures one name into a folder."""
    if name in BESIDE or name in ON_TWO:
        script, *arguments = {**BESIDE, **ON_TWO}[name]
        return [sys.executable, str(HERE / script), *arguments, "--out", str(out / f"{name}.json")]
    target = out / "h200.json"
    if not target.exists():  # whose other groups stay as they are
        shutil.copy(RESULTS / target.name, target)
    return [sys.executable, str(HERE / "h200.py"), "--only", name, "--keep", str(target), "--out",
            str(target)]  # fmt: skip


def _on_two() -> tuple[str, ...]:
    """Return what needs two GPUs, where there are two."""
    from gpuscope.device.cuda import driver

    return tuple(ON_TWO) if len(driver.gpus()) > 1 else ()


def main() -> int:
    """Run them; returns 1 if one failed or is left."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--only", choices=(*NAMES, *ON_TWO), action="append", help="in this order")
    parser.add_argument("--two", action="store_true", help="only those that need two GPUs")
    parser.add_argument("--resume", action="store_true", help="leave out what was done before")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="then begin no more")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    log = asked.out / ".all_gpu.json"
    ended = json.loads(log.read_text("utf-8")) if asked.resume and log.exists() else {}
    began = time.monotonic()
    names = dict.fromkeys(asked.only or (*(() if asked.two else NAMES), *_on_two()))
    for name in names:
        if ended.get(name, {}).get("status") == 0 or time.monotonic() - began > asked.seconds:
            continue
        print(f"== {name}", flush=True)
        start = time.monotonic()
        status = subprocess.run(command(name, asked.out.resolve()), check=False).returncode
        if name == "shapes" and asked.out.resolve() != RESULTS:
            shutil.copy(RESULTS / "shapes.json", asked.out)  # h200.py keeps it there
        ended[name] = {"seconds": round(time.monotonic() - start, 1), "status": status}
        log.write_text(json.dumps(ended, indent=1) + "\n", "utf-8")
    print(f"\n{'benchmark':18} {'seconds':>8} {'status':>7}")
    for name in names:
        took = ended.get(name, {"seconds": "-", "status": "left"})
        print(f"{name:18} {took['seconds']:>8} {took['status']:>7}")
    return int(any(ended.get(name, {}).get("status") != 0 for name in names))


if __name__ == "__main__":
    sys.exit(main())
