"""Record the latest rows of a program that launches without waiting: what memory does it take?

    python benchmarks/long_recording.py [--device cuda:0] [--seconds 120] [--keep "10 s"]

Half of the launches are torch.mm's where PyTorch is, else a handle's, the others a kernel's. The
program waits only where the GPU's queue is full, and after each AT_ONCE launches on the simulated
GPU, whose queue never is. Memory is read after a warm-up of the kept time and a fifth, and at the
end. Exits with 1 if a row of the kept time is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

from facts import row, write

import gpuscope as gs
from gpuscope._checks import length_ns
from gpuscope.device.device import Device
from gpuscope.device.stream import Stream

AT_ONCE = 200
MIB = 1 << 20


def resident() -> int:
    """Return the bytes of memory that the process has."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * 4096


def peak() -> int:
    """Return the most that it had since the last :func:`forget_peak`."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def forget_peak() -> None:
    """Begin to look for the most anew, where the system lets us."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", "ascii")


def launcher(gpu: Device, stream: Stream) -> Callable[[], int]:
    """Return what launches AT_ONCE times, and says how often it did."""
    kernel = gs.learn.spin_kernel(gpu)

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
    """Run it; returns 1 if rows are missing."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--device", default="sim:h200")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--keep", default="5 s", help="of simulated time on a simulated GPU")
    parser.add_argument("--out", type=Path, help="keep the figures there")
    asked = parser.parse_args()
    gpu = gs.open_device(asked.device, quiet=True)
    keep_s = length_ns("keep", asked.keep) / 1e9
    warm_s = min(asked.seconds / 2, 1.2 * keep_s) if gpu.info.kind == "cuda" else asked.seconds / 5
    warm = at_end = launches = 0
    with gpu.create_stream() as stream:
        launch = launcher(gpu, stream)
        launch()
        stream.synchronize()
        with gs.profile(gpu, keep=asked.keep) as recording:
            began_s = time.monotonic()
            began_ns = gpu.now_ns()
            while (passed_s := time.monotonic() - began_s) < asked.seconds:
                if not warm and passed_s >= warm_s:
                    warm, warm_at_s = resident(), passed_s
                    forget_peak()
                launches += launch()
            launch_s = time.monotonic() - began_s
            at_end, most = resident(), peak()
            recorded_s = (gpu.now_ns() - began_ns) / 1e9
    trace = recording.trace
    facts, counts = trace.metadata.kept, trace.metadata.counts
    assert facts is not None  # noqa: S101 - it was asked for
    lost = counts["dropped"] + counts["unmatched"]
    hours = (launch_s - warm_at_s) / 3600
    per_hour = (at_end - warm) / MIB / hours
    print(f"{gpu.name}: {launches:,} launches in {launch_s:.1f} s ({launches / launch_s:,.0f}/s)")
    print(f"on its clock: {recorded_s:.3f} s, kept {keep_s:g} s")
    print(f"rows seen      {len(trace) + facts.rows_left_out:12,}")
    print(f"rows kept      {len(trace):12,}")
    print(f"rows left out  {facts.rows_left_out:12,}")
    print(f"lost           {lost:12,}  complete: {trace.metadata.complete}")
    print(
        f"memory, MiB {warm / MIB:15,.0f} after {warm_at_s:.0f} s, {at_end / MIB:,.0f} at the end"
    )
    print(f"               {most / MIB:12,.0f} at most since, {per_hour:+,.0f} an hour")
    for note in trace.metadata.notes:
        print(f"note: {note}")
    if asked.out is not None:
        rows = [
            row("launches recorded a second", "(beside it)", launches / launch_s, "1/s", met=True),
            row("rows lost in the kept time", "0", lost, "", met=not lost),
            row("memory that an hour adds", "(beside it)", per_hour, "MiB", met=True),
        ]
        write(asked.out, " ".join(["python", *sys.argv]), gpu.name, rows, keep=asked.keep)
    gpu.close()
    return 0 if trace.metadata.complete and not lost else 1


if __name__ == "__main__":
    sys.exit(main())
