"""How well the clocks of several processes' recordings agree: by flags that kernels pass.

    python benchmarks/clocks.py [--ranks N] [--rounds N] [--mps] [--out FILE]

Each rank is a process that records a GPU of its own with CUPTI; where there are fewer GPUs, several
ranks share one. In each round and for each two ranks, a kernel of one writes a flag into host
memory that both have mapped, for which a kernel of the other waits. So the first has begun before
the second ends, on any clock: how far the merged trace denies that is the violation, and how far it
grants more in both directions bounds how the two clocks stand.

On one GPU the contexts of two processes take turns, which makes that bound wide: there the kernels'
readings of the GPU's timer tell more. Each lies inside its kernel, so that each recording's times
are bounded against one and the same timer. GPUs have timers of their own: between two, flags tell.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, nullcontext
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import numpy as np
from facts import BESIDE, row, write
from mps import mps

import gpuscope as gs
from gpuscope.trace import Trace

_SOURCE = r"""
__device__ unsigned long long timer() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
extern "C" __global__ void write_flag(volatile unsigned long long* words) {
  unsigned long long begun = timer();
  words[0] = 1;
  __threadfence_system();
  words[1] = begun;
  words[2] = timer();
}
extern "C" __global__ void read_flag(volatile unsigned long long* words, long long limit_ns) {
  unsigned long long begun = timer();
  while (!words[0]) {
    if ((long long)(timer() - begun) > limit_ns) { words[5] = 1; break; }
  }
  words[3] = begun;
  words[4] = timer();
}
"""
_WORDS = 8
"""Of one flag: the flag, when the writer and the reader began and ended by the GPU's timer, and
whether the reader gave up."""
_WRITER, _READER, _GAVE_UP = slice(1, 3), slice(3, 5), 5
_LIMIT_NS = 30_000_000_000
_WARM = 3
_BIN_NS = 1_000_000_000
_TICK_NS = 64
"""Two readings of the GPU's timer, of 32 ns."""
_WAYS = ("host memory that all map", "device memory of rank 0, by CUDA IPC", "nothing in common")
"""Where the flags are: the first way that works for all ranks."""


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between rounds")
    parser.add_argument("--mps", action="store_true", help="start CUDA's MPS around it")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/clocks.json"))
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.folder is not None:
        Rank(asked.folder, asked.ranks, asked.rounds).take_part(asked.pause)
        return 0
    shared = Path("/dev/shm")  # noqa: S108 - files on a disk cannot be page-locked
    place = tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None)
    with place as name, ExitStack() as stack:
        folder = Path(name)
        flags = plan(asked.ranks, asked.rounds)
        for file, count in (("words", _WORDS * len(flags)), ("ready", asked.ranks + len(flags))):
            (folder / file).write_bytes(bytes(-(-8 * count // 4096) * 4096))
        stack.enter_context(mps() if asked.mps else nullcontext())
        began = [
            subprocess.Popen(
                [sys.executable, __file__, *sys.argv[1:], "--folder", name],
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(asked.ranks),
                     "LOCAL_RANK": str(rank)},
            )
            for rank in range(asked.ranks)
        ]  # fmt: skip
        while any(process.poll() is None for process in began):
            time.sleep(0.1)
            if any(process.poll() for process in began):
                for process in began:
                    process.kill()
        if any(process.wait() for process in began):
            return 1
        words = [np.load(folder / f"{rank}.npy") for rank in range(asked.ranks)]
        traces = [gs.load_trace(folder / f"{rank}.parquet") for rank in range(asked.ranks)]
        facts = json.loads((folder / "0.json").read_text("utf-8"))
    rows = judged(gs.merge(traces), flags, words, shared=facts["way"] != _WAYS[-1])
    write(
        asked.out,
        f"python benchmarks/clocks.py --ranks {asked.ranks} --rounds {asked.rounds}"
        + " --mps" * asked.mps,
        facts.pop("name"), rows, **facts,
    )  # fmt: skip
    print(f"flags in {facts['way']}")
    for one in rows:
        print(f"{one['what']:58} {one['value']:>12,.3f} {one['unit']} ({one['goal']})")
    return 0 if all(one["met"] for one in rows) else 1


def plan(ranks: int, rounds: int) -> list[tuple[int, int]]:
    """Return the writer and the reader of each flag, warm-up rounds first."""
    return [*permutations(range(ranks), 2)] * (_WARM + rounds)


class Rank:
    """One of the ranks, in its own process.

    Attributes
    ----------
    ready
        In memory that the hosts share: each rank's step, and of each flag whether its reader was
        launched.
    """

    def __init__(self, folder: Path, ranks: int, rounds: int) -> None:
        from cuda.bindings import driver

        self.driver, self.folder = driver, folder
        self.rank, self.ranks = int(os.environ["RANK"]), ranks
        self.flags = plan(ranks, rounds)
        self.ready = np.memmap(folder / "ready", np.int64, "r+")
        self.called("cuInit", 0)
        count = self.called("cuDeviceGetCount")
        self.gpus = min(ranks, count)
        self.gpu = gs.open_device(f"cuda:{self.rank % count}", quiet=True)
        self.called("cuCtxSetCurrent", self.called("cuDevicePrimaryCtxRetain", self.rank % count))
        self.own = self.gpu.empty_pinned(len(self.flags) * _WORDS, "uint64")
        self.own[...] = 0

    def called(self, name: str, *arguments: object) -> Any:
        """Call the driver, and return what it does; an error names the call."""
        status, *found = getattr(self.driver, name)(*arguments)
        if int(status) != 0:
            raise OSError(f"{name}: {status!r}")
        return found[0] if found else None

    def meet(self, step: int) -> None:
        """Wait until all have come to a step, which they number from 1."""
        self.ready[self.rank] = step
        while (self.ready[: self.ranks] < step).any():
            time.sleep(0.001)

    def place(self) -> tuple[int, str]:
        """Return the address of the flags, and which way it is."""
        address = 0
        for step, make in enumerate((self._in_host_memory, self._in_device_memory), 1):
            failed = self.folder / f"failed-{step}"
            try:
                address = make()
            except Exception as error:  # noqa: BLE001 - then there is another way
                print(f"rank {self.rank}: no {_WAYS[step - 1]}: {error!r}", file=sys.stderr)
                failed.touch()
            self.meet(step)
            if not failed.exists():
                return address, _WAYS[step - 1]
        return int(self.own.ctypes.data), _WAYS[-1]

    def _in_host_memory(self) -> int:
        self.words = np.memmap(self.folder / "words", np.uint64, "r+")
        address = int(self.words.ctypes.data)
        self.called("cuMemHostRegister", address, self.words.nbytes, 3)  # portable, mapped
        return int(self.called("cuMemHostGetDevicePointer", address, 0))

    def _in_device_memory(self) -> int:
        file = self.folder / "handle"
        if self.rank == 0:
            address = self.called("cuMemAlloc", self.own.nbytes)
            self.called("cuMemsetD8", address, 0, self.own.nbytes)
            handle = self.called("cuIpcGetMemHandle", address)
            partial = file.with_suffix(".partial")
            partial.write_bytes(bytes(handle.reserved))
            partial.rename(file)
            return int(address)
        until = time.monotonic() + 10
        while not file.exists():
            if time.monotonic() > until:
                raise OSError("rank 0 gave no handle")
            time.sleep(0.01)
        handle = self.driver.CUipcMemHandle()
        handle.reserved = file.read_bytes()
        return int(self.called("cuIpcOpenMemHandle", handle, 1))  # lazily enables peer access

    def take_part(self, pause_s: float) -> None:
        """Pass flags, and save the trace and what the kernels read of the GPU's timer."""
        address, way = self.place()
        limit_ns = _LIMIT_NS if way != _WAYS[-1] else 0
        kernels = [self.gpu.compile(_SOURCE, name) for name in ("write_flag", "read_flag")]
        stream = self.gpu.create_stream(name="flags")
        a_round = self.ranks * (self.ranks - 1)
        warm = _WARM * a_round

        def passed(numbers: range) -> None:
            for number in numbers:
                writer, reader = self.flags[number]
                at, there = address + number * _WORDS * 8, self.ranks + number
                if self.rank == reader:
                    stream.launch(kernels[1], at, limit_ns, grid=1, block=1)
                    self.ready[there] = 1
                elif self.rank == writer:
                    while not self.ready[there]:
                        time.sleep(0)
                    time.sleep(0.001)  # by then it waits for the flag
                    stream.launch(kernels[0], at, grid=1, block=1)
                else:
                    continue
                stream.synchronize()
                if number >= warm and number % a_round == 0:
                    time.sleep(pause_s)

        passed(range(warm))
        with gs.profile(self.gpu, source="cupti") as recording:
            self.meet(10)
            passed(range(warm, len(self.flags)))
        if way == _WAYS[0]:
            self.own[...] = self.words[: len(self.own)]
        elif way == _WAYS[1]:
            self.called("cuMemcpyDtoH", self.own.ctypes.data, address, self.own.nbytes)
        words = np.array(self.own).astype(np.int64).reshape(-1, _WORDS)
        if limit_ns and words[:, _GAVE_UP].any():
            raise SystemExit(f"a flag did not arrive within {_LIMIT_NS / 1e9:g} s")
        np.save(self.folder / f"{self.rank}.npy", words)
        gs.export(recording.trace, self.folder / f"{self.rank}.parquet")
        info = self.gpu.info
        facts = {"name": info.name, "driver": info.driver, "gpus": self.gpus, "way": way}
        (self.folder / f"{self.rank}.json").write_text(json.dumps(facts), "utf-8")
        self.meet(11)  # memory of rank 0 stays until all have read it


def judged(
    merged: Trace, flags: list[tuple[int, int]], words: list[np.ndarray], *, shared: bool
) -> list[dict]:
    """Return what the flags and the GPU's timer say of the clocks of each two ranks.

    Parameters
    ----------
    words
        Rank → flags as it saw them.
    shared
        Whether the flags were the same to all ranks.
    """
    ranks = merged.metadata.ranks
    warm = _WARM * len(ranks) * (len(ranks) - 1)
    numbers = np.arange(warm, len(flags))
    role = np.array(flags)[numbers]
    times = {}
    for place, name in enumerate(("write_flag", "read_flag")):
        for rank in ranks:
            own = merged.where(process=rank.process, kind="kernel", name=name)
            order = np.argsort(own.array("start_ns"))
            mine = numbers[role[:, place] == rank.rank]
            starts, ends = own.array("start_ns")[order], own.array("end_ns")[order]
            if len(starts) != len(mine):
                raise SystemExit(f"rank {rank.rank} has {len(starts)} kernels, not {len(mine)}")
            times[name, rank.rank] = dict(
                zip(mine.tolist(), zip(starts.tolist(), ends.tolist(), strict=True), strict=True)
            )
    slack: dict[tuple[int, int], int] = {}
    for number, (writer, reader) in zip(numbers.tolist(), role.tolist(), strict=True):
        begun = times["write_flag", writer][number][0]
        ended = times["read_flag", reader][number][1]
        least = slack.get((writer, reader), ended - begun)
        slack[writer, reader] = min(least, ended - begun)
    stated = max(rank.error_ns or 0 for rank in ranks) / 1e3
    worst = max(0, -min(slack.values())) / 1e3
    rows = [row("stated error of the merged trace", "≤ 5 µs", stated, "µs", met=stated <= 5)]
    if shared:
        least_us = {f"{one}→{other}": ns / 1e3 for (one, other), ns in slack.items()}
        rows.append(
            row("largest violation of causality by a flag", "≤ the stated error", worst, "µs",
                met=worst <= stated, flags=len(numbers), least_slack_us=least_us)
        )  # fmt: skip
    for one, other in combinations(range(len(ranks)), 2):
        ahead, behind = slack[one, other] / 1e3, slack[other, one] / 1e3
        if shared:
            rows.append(
                row(f"rank {other} against rank {one}, by flags: middle", BESIDE,
                    (ahead - behind) / 2, "µs", met=True, half_width_us=(ahead + behind) / 2)
            )  # fmt: skip
        same = ranks[one].device == ranks[other].device
        if same:
            rows.append(by_timer(times, words, one, other, stated))
    return rows


def by_timer(times: dict, words: list[np.ndarray], one: int, other: int, stated: float) -> dict:
    """Return how far two ranks' times on one GPU are apart, by its timer, second by second.

    The timer drifts against Unix time (some 12 µs a second on an H200), to both ranks alike: what
    a line through one rank's kernels says of that is taken from both. Bounds of a second that leave
    no offset show that the line does not hold there: then this says nothing, and is not met.
    """
    known = [_bounds(times, words[rank], rank) for rank in (one, other)]
    base = known[0][0, :2].copy()  # whole ns, as floats do not hold Unix time
    known = [bounds - base[[0, 1, 1]] for bounds in known]
    line = np.polyfit(known[0][:, 0], known[0][:, 1:].mean(axis=1), 1)
    seconds: list[dict[int, tuple[float, float]]] = []
    for bounds in known:
        gained = np.polyval(line, bounds[:, 0])
        low, high = bounds[:, 1] - gained, bounds[:, 2] - gained
        number = bounds[:, 0] // _BIN_NS
        seconds.append({
            second: (low[number == second].max(), high[number == second].min())
            for second in np.unique(number).tolist()
        })  # fmt: skip
    both = sorted(set(seconds[0]) & set(seconds[1]))
    widths = [found[second][1] - found[second][0] for found in seconds for second in both]
    low = [(seconds[1][second][0] - seconds[0][second][1]) / 1e3 for second in both]
    high = [(seconds[1][second][1] - seconds[0][second][0]) / 1e3 for second in both]
    sure = max(0.0, *low, *(-b for b in high))  # no less than this in some second
    farthest = max(((a + b) / 2 for a, b in zip(low, high, strict=True)), key=abs)
    consistent = min(widths) >= -_TICK_NS
    return row(
        f"rank {other} against rank {one}, by the GPU's timer: farthest", "≤ the stated error",
        farthest, "µs", met=bool(consistent and sure <= stated), consistent=bool(consistent),
        at_least_us=sure, half_width_us=max(b - a for a, b in zip(low, high, strict=True)) / 2,
        seconds=len(both), timer_gains_us_per_s=-line[0] * 1e6,
    )  # fmt: skip


def _bounds(times: dict, words: np.ndarray, rank: int) -> np.ndarray:
    """Return rows of time, least and most that a rank's times are ahead of the timer, ns."""
    found = []
    for name, place in (("write_flag", _WRITER), ("read_flag", _READER)):
        for number, (start, end) in times[name, rank].items():
            began, ended = words[number, place].tolist()
            found.append((start, start - began, end - ended))
    return np.array(found, np.int64)


if __name__ == "__main__":
    sys.exit(main())
