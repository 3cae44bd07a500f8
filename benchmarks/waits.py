"""What noting waits adds to a launch, to a wait, and to what Python's threads hand over.

    python benchmarks/waits.py [--device cuda:0] [--out benchmarks/results/waits.json]

Bare, recorded without waits (as ``profile`` did before it told of them), and recorded take turns in
one process; the least of some loops is told, µs a call. Without a GPU, only the hand-over is
measured.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from facts import BESIDE, row, spread, write

import gpuscope as gs
from gpuscope.device import Device
from gpuscope.record.cupti import library, order

TURNS, LOOPS = 5, 5
LAUNCH_GOAL_US, WAIT_GOAL_US = 0.1, 2.0
FOUR = "there and back between two threads: two waits, and what wakes them"
"""Four calls that are noted."""
Call = Callable[[], object]


def calls_of_torch() -> dict[str, tuple[Call, int]]:
    """Return what is measured on a GPU: name → one call, and how often in a loop."""
    import torch

    a, b = (torch.randn(64, 64, device="cuda") for _ in range(2))
    out, one = torch.empty(64, 64, device="cuda"), torch.ones((), device="cuda")
    event, stream, side = torch.cuda.Event(), torch.cuda.current_stream(), torch.cuda.Stream()
    event.record()
    torch.cuda.synchronize()
    return {
        "launch (torch.mm 64³)": (lambda: torch.mm(a, b, out=out), 4000),
        "stream.synchronize() of an idle stream": (stream.synchronize, 4000),
        "torch.cuda.synchronize() of an idle GPU": (torch.cuda.synchronize, 4000),
        "event.record()": (event.record, 4000),
        "event.query() that sees it done": (event.query, 4000),
        "stream.wait_event()": (lambda: side.wait_event(event), 4000),
        "item()": (one.item, 2000),
    }


def calls_of_threads() -> dict[str, tuple[Call, int]]:
    """Return what is measured everywhere."""
    items: queue.Queue[int] = queue.Queue()
    there, back = threading.Semaphore(0), threading.Semaphore(0)
    condition = threading.Condition()

    def put_and_get() -> None:
        items.put(1)
        items.get()

    def answer() -> None:
        while True:
            there.acquire()
            back.release()

    def there_and_back() -> None:  # each waits for the other
        there.release()
        back.acquire()

    def notify() -> None:
        with condition:
            condition.notify()

    threading.Thread(target=answer, daemon=True).start()
    return {
        "put and get of a queue that has it": (put_and_get, 4000),
        "notify that nobody waits for": (notify, 4000),
        FOUR: (there_and_back, 500),
    }


def least_us(call: Call, count: int) -> float:
    """Return the least time of a call, of some loops."""
    loops = []
    for _ in range(LOOPS):
        gc.disable()
        begin = time.perf_counter_ns()
        for _ in range(count):
            call()
        loops.append((time.perf_counter_ns() - begin) / count / 1e3)
        gc.enable()
    return min(loops)


def _launches_alone(name: str) -> bool:
    return library.role_of(name) in (library.LAUNCH, library.BLOCKING)


@contextlib.contextmanager
def without_waits() -> Iterator[None]:
    """Note launches alone, as recordings did."""
    with (
        mock.patch.object(library, "_is_noted", _launches_alone),
        mock.patch.object(order, "KINDS", ()),
        mock.patch("gpuscope.record.handover.watch"),
    ):
        yield


def measure(gpu: Device, calls: dict[str, tuple[Call, int]]) -> dict[str, dict[str, list[float]]]:
    """Return call → mode → µs a call of each turn."""
    times: dict[str, dict[str, list[float]]] = {name: {} for name in calls}
    modes: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
        "bare": contextlib.nullcontext,
        "without waits": without_waits,
        "recorded": contextlib.nullcontext,
    }
    for turn in range(TURNS + 1):
        for mode, how in modes.items():
            with how():
                recorded = contextlib.nullcontext() if mode == "bare" else gs.profile(gpu)
                with recorded:
                    for name, (call, count) in calls.items():
                        least = least_us(call, count)
                        if turn:  # the first warms up
                            times[name].setdefault(mode, []).append(least)
    return times


def rows_of(times: dict[str, dict[str, list[float]]]) -> list[dict[str, Any]]:
    """Return the rows of a file of results."""
    rows = []
    for name, of_mode in times.items():
        bare, before, now = (min(of_mode[mode]) for mode in ("bare", "without waits", "recorded"))
        waits_us = now - before
        goal_us = LAUNCH_GOAL_US if name.startswith("launch") else WAIT_GOAL_US
        goal_us *= 4 if name == FOUR else 1
        rows += [
            row(f"{name}: bare", BESIDE, bare, "µs", met=True, spread=spread(of_mode["bare"])),
            row(f"{name}: recorded before, over bare", BESIDE, before - bare, "µs", met=True),
            row(
                f"{name}: what noting waits adds", f"≤ {goal_us} µs", waits_us, "µs",
                met=waits_us <= goal_us, spread=spread(of_mode["recorded"]),
            ),
        ]  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/waits.json"))
    options = parser.parse_args()
    gpu = gs.open_device(options.device, quiet=True)
    calls = calls_of_threads()
    if gpu.info.kind == "cuda":
        calls = calls_of_torch() | calls
    rows = rows_of(measure(gpu, calls))
    command = f"python benchmarks/waits.py --device {options.device}"
    write(options.out, command, gpu.info.name, rows)
    for found in rows:
        met = "" if found["met"] else "  (not met)"
        print(f"{found['value']:8.2f} {found['unit']}  {found['goal']:>12}  {found['what']}{met}")


if __name__ == "__main__":
    main()
