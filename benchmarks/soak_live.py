"""Record live while threads launch without ever waiting: is every launch a kernel of the trace?

    python benchmarks/soak_live.py [--device cuda:0] [--seconds 60] [--threads 4] [--raises]

Half of each thread's launches are a handle's, half are kernels of its own. One reader reads as a
live timeline does, another as fast as it can. With --raises the fast one is stopped by an exception
at a random line of each second reading. Exits with 1 if a launch is missing that the trace does not
count.
"""

from __future__ import annotations

import argparse
import linecache
import random
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from facts import row, write

import gpuscope as gs
from gpuscope.device.device import Device
from gpuscope.record.recorder import Recording
from gpuscope.widgets.live import Pump

AT_ONCE = 50
ERRORS = (KeyboardInterrupt, MemoryError, RuntimeError)
ROOMS = tuple(str(Path(gs.__file__).parent / room) for room in ("record", "trace"))


class Launcher(threading.Thread):
    """Launches on a stream of its own until it is told to stop, and counts."""

    def __init__(self, gpu: Device, number: int, over: threading.Event) -> None:
        super().__init__(name=f"launcher {number}")
        self.label = f"w{number}"
        self.stream = gpu.create_stream(name=f"s{number}")
        self.handle = gs.Gemm(gpu, m=64, n=64, k=64, name=self.label)
        self.kernel = gs.workloads.spin_kernel(gpu)
        self.handle.execute(stream=self.stream)
        self.stream.launch(self.kernel, 1_000, grid=1, block=32)
        self.stream.synchronize()
        self.over = over
        self.executed = self.launched = 0

    def run(self) -> None:
        while not self.over.is_set():
            for _ in range(AT_ONCE):
                self.handle.execute(stream=self.stream)
                self.executed += 1
                self.stream.launch(self.kernel, 1_000, grid=1, block=32)
                self.launched += 1


def raise_soon(error: BaseException) -> None:
    """Raise at one of the next lines of the recorder that this thread runs.

    Not at a bare ``try:`` and not at a ``with``: Python handles no signal there, and an exception
    that a trace function raises there leaves locks locked.
    """
    left = [random.randrange(1, 2_000)]  # noqa: S311 - no secret

    def line(frame: FrameType, event: str, _: object) -> Any:
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        left[0] -= event == "line" and not text.startswith(("try:", "with "))
        if left[0] <= 0:
            sys.settrace(None)
            raise error
        return line

    def call(frame: FrameType, _event: str, _: object) -> Any:
        return line if frame.f_code.co_filename.startswith(ROOMS) else None

    sys.settrace(call)


class Reader(threading.Thread):
    """Reads as fast as it can."""

    def __init__(self, recording: Recording, over: threading.Event, *, raises: bool) -> None:
        super().__init__(name="reader")
        self.recording, self.over, self.raises = recording, over, raises
        self.readings = self.failures = 0
        self.unexpected: list[str] = []

    def run(self) -> None:
        while not self.over.is_set():
            self.readings += 1
            error = ERRORS[self.readings % 3]()
            try:
                if self.raises and self.readings % 2:
                    raise_soon(error)
                self.recording.batches()
                self.recording.known()
            except BaseException as caught:  # noqa: BLE001 - a reader goes on
                self.failures += 1
                if caught is not error:
                    self.unexpected.append(repr(caught))
            finally:
                sys.settrace(None)
            time.sleep(0.01)


def main() -> int:
    """Run it; returns 1 if a launch is lost."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--device", default="sim:h200")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--raises", action="store_true", help="stop one reader by exceptions")
    parser.add_argument("--out", type=Path, help="keep the figures there")
    asked = parser.parse_args()
    gpu = gs.open_device(asked.device, quiet=True)
    over = threading.Event()
    launchers = [Launcher(gpu, number, over) for number in range(asked.threads)]
    shown: list[int] = []
    failed: list[str] = []
    with gs.profile(gpu) as recording:
        pump = Pump(
            recording,
            grew=lambda trace: shown.append(len(trace)),
            ended=lambda: None,
            failed=lambda error: failed.append(repr(error)),
        )
        reader = Reader(recording, over, raises=asked.raises)
        for thread in (*launchers, reader):
            thread.start()
        time.sleep(asked.seconds)
        over.set()
        for thread in (*launchers, reader):
            thread.join()
        pump.close()
    trace = recording.trace
    kernels = trace.where(kind="kernel")
    lost = 0
    print(f"{gpu.name}, {asked.seconds:g} s, live, exceptions {'on' if asked.raises else 'off'}")
    print(f"{'thread':<10}{'launched':>12}{'recorded':>12}{'lost':>8}")
    for one in launchers:
        count = one.executed + one.launched
        stream = one.stream.id
        found = len(kernels.where(stream=stream))
        lost += abs(count - found)
        print(f"{one.label:<10}{count:>12,}{found:>12,}{count - found:>8,}")
    facts = trace.metadata
    print(f"rows {len(trace):,}, shown live {sum(shown):,}, readings {reader.readings:,}, "
          f"stopped by an exception {reader.failures:,}")  # fmt: skip
    print(f"complete {facts.complete}, counts {dict(facts.counts)}, notes {list(facts.notes)}")
    print(f"unexpected errors of readers: {[*reader.unexpected, *failed][:5]}")
    bad = bool(lost or reader.unexpected or failed)
    if asked.out is not None:
        launched = sum(one.executed + one.launched for one in launchers)
        how = ", one reader stopped by exceptions" if asked.raises else ""
        what = f"{asked.threads} threads launch for {asked.seconds:g} s, recorded live{how}: lost"
        found = row(what, "0", lost, f"of {launched:,} launches", met=not bad,
                    readings=reader.readings, stopped=reader.failures)  # fmt: skip
        command = f"python benchmarks/soak_live.py --device {asked.device}"
        write(asked.out, command + (" --raises" if asked.raises else ""), gpu.name, [found],
              driver=gpu.info.driver)  # fmt: skip
    for one in launchers:
        one.stream.close()
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
