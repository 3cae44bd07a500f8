"""Record the latest rows of a program that launches without waiting: what memory does it take?

    python benchmarks/long_recording.py [--device cuda:0] [--seconds 120] [--keep "10 s"]

Half of the launches are torch.mm's where PyTorch is, else a handle's, the others a kernel's. The
program waits only where the GPU's queue is full, and after each AT_ONCE launches on the simulated
GPU, whose queue never is. Memory is read after a third and two thirds of the time and at its end;
a third of it should be longer than what is kept. Exits with 1 if a row of the kept time is missing,
or memory is not bounded: more at the end than after a third, by a tenth of that.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

from facts import BESIDE, row, write

import gpuscope as gs
from gpuscope._checks import length_ns
from gpuscope.device.device import Device
from gpuscope.device.stream import Stream

AT_ONCE = 200
MIB = 1 << 20
GROWTH = 1.1


def resident() -> int:
    """Return the bytes of memory that the process has."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * resource.getpagesize()


def launcher(gpu: Device, stream: Stream) -> Callable[[], int]:
    """Return what launches AT_ONCE times, and says how often it did."""
    kernel = gs.workloads.spin_kernel(gpu)

    def launch_own() -> None:
        stream.launch(kernel, 1_000, grid=1, block=32)

    if gpu.info.kind != "cuda":
        handle = gs.Gemm(gpu, m=64, n=64, k=64)

        def simulated() -> int:
            for _ in range(AT_ONCE // 2):
                handle.execute(stream=stream)
                launch_own()
            stream.synchronize()
            return AT_ONCE

        return simulated
    import torch

    x = torch.ones(64, 64, device="cuda")
    out = torch.empty_like(x)
    theirs = torch.cuda.ExternalStream(stream.handle)

    def real() -> int:
        with torch.cuda.stream(theirs):
            for _ in range(AT_ONCE // 2):
                torch.mm(x, x, out=out)
        for _ in range(AT_ONCE // 2):
            launch_own()
        return AT_ONCE

    return real


def main() -> int:
    """Run it; returns 1 if rows are missing or memory grows."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--device", default="sim:h200")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--keep", default="5 s", help="of simulated time on a simulated GPU")
    parser.add_argument("--out", type=Path, help="keep the figures there")
    asked = parser.parse_args()
    gpu = gs.open_device(asked.device, quiet=True)
    keep_s = length_ns("keep", asked.keep) / 1e9
    launches, memory = 0, []
    with gpu.create_stream() as stream:
        launch = launcher(gpu, stream)
        launch()
        stream.synchronize()
        with gs.profile(gpu, keep=asked.keep) as recording:
            began_s, began_ns = time.monotonic(), gpu.now_ns()
            for third in (1, 2, 3):
                while time.monotonic() - began_s < asked.seconds * third / 3:
                    launches += launch()
                memory.append(resident())
            launch_s = time.monotonic() - began_s
            recorded_s = (gpu.now_ns() - began_ns) / 1e9
    trace = recording.trace
    facts, counts = trace.metadata.kept, trace.metadata.counts
    assert facts is not None  # noqa: S101 - it was asked for
    lost = counts["dropped"] + counts["unmatched"]
    complete = trace.metadata.complete and not lost
    growth = memory[-1] / memory[0]
    mib = [round(size / MIB) for size in memory]
    print(f"{gpu.name}: {launches:,} launches in {launch_s:.1f} s ({launches / launch_s:,.0f}/s)")
    print(f"on its clock: {recorded_s:.3f} s, kept {keep_s:g} s")
    print(f"rows seen      {len(trace) + facts.rows_left_out:12,}")
    print(f"rows kept      {len(trace):12,}")
    print(f"rows left out  {facts.rows_left_out:12,}")
    print(f"lost           {lost:12,}  complete: {trace.metadata.complete}")
    print("memory, MiB    {:12,} after a third, {:,} after two, {:,} at the end".format(*mib))
    for note in trace.metadata.notes:
        print(f"note: {note}")
    if asked.out is not None:
        what = f"recording {launch_s:.0f} s of launches that nobody waits for, {asked.keep} kept"
        rows = [
            row(f"{what}: launches a second", BESIDE, round(launches / launch_s), "", met=True),
            row(f"{what}: rows of the kept time lost", "0", lost, f"of {len(trace):,}",
                met=complete, rows_left_out=facts.rows_left_out, notes=trace.metadata.notes),
            row(f"{what}: memory at the end / after a third of the time", f"≤ {GROWTH} ×",
                round(growth, 3), "× ({:,}, {:,} and {:,} MiB after each third)".format(*mib),
                met=growth <= GROWTH, memory_mib=mib),
        ]  # fmt: skip
        command = f"python benchmarks/long_recording.py --device {asked.device}"
        command += f' --seconds {asked.seconds:g} --keep "{asked.keep}"'
        write(asked.out, command, gpu.name, rows, driver=gpu.info.driver)
    gpu.close()
    return 0 if complete and growth <= GROWTH else 1


if __name__ == "__main__":
    sys.exit(main())
