"""What looking for hazards costs PyTorch on a GPU, beside PyTorch's own sanitizer in one run.

    python benchmarks/hazards_torch.py [--out benchmarks/results/hazards_torch.json]

Host time of one operator, and of a small layer's forward and backward pass: bare, recorded without
and with hazards, and under torch.cuda._sanitizer (CSAN), in turns. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from facts import BESIDE, row, spread, write

import gpuscope as gs

ROUNDS, CALLS = 7, 300


@contextlib.contextmanager
def csan() -> Iterator[None]:
    """Run under PyTorch's sanitizer, from a fresh start."""
    from torch.cuda import _gpu_trace, _sanitizer

    mode = _sanitizer.CUDASanitizerDispatchMode()
    try:
        with mode:
            yield
    finally:
        for callbacks in vars(_gpu_trace).values():
            if hasattr(callbacks, "callback_list"):
                callbacks.callback_list.clear()


def programs() -> dict[str, Callable[[], object]]:
    a, b, out = (torch.randn(64, 64, device="cuda") for _ in range(3))
    layer = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).cuda()
    side, event = torch.cuda.Stream(), torch.cuda.Event()

    def step() -> None:
        layer(a).sum().backward()

    def two_streams() -> None:
        torch.mm(a, b, out=out)
        event.record()
        side.wait_event(event)
        with torch.cuda.stream(side):
            out.add_(1)
        torch.cuda.current_stream().wait_stream(side)

    return {
        "torch.mm(out=)": lambda: torch.mm(a, b, out=out),
        "forward and backward of a layer": step,
        "two streams with an event": two_streams,
    }


def took_us(program: Callable[[], object]) -> float:
    """Return the host time of a call, of ``CALLS``."""
    for _ in range(20):
        program()
    torch.cuda.synchronize()
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        program()
    end = time.perf_counter_ns()
    torch.cuda.synchronize()
    return (end - start) / CALLS / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    gpu = gs.open_device("cuda:0", quiet=True)
    ways: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "bare": contextlib.nullcontext,
        "recorded": lambda: gs.profile(gpu),
        "hazards": lambda: gs.profile(gpu, hazards=True),
        "csan": csan,
    }
    rows = []
    for name, program in programs().items():
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for way, recorded in ways.items():
                with recorded() as recording:
                    times[way].append(took_us(program))
                if way == "hazards":
                    hazard_count = len(gs.analysis.hazards(recording.trace).found)
        middle = {way: statistics.median(values) for way, values in times.items()}
        ours, theirs = middle["hazards"] - middle["bare"], middle["csan"] - middle["bare"]
        print(f"{name}: {hazard_count} hazards")
        rows += [
            row(f"{name}, what hazards=True adds", f"≤ {theirs:.1f} µs, CSAN's", round(ours, 2),
                "µs", met=ours <= theirs, **spread(times["hazards"])),
            row(f"{name}, bare", BESIDE, round(middle["bare"], 2), "µs", met=True),
            row(f"{name}, what recording adds", BESIDE,
                round(middle["recorded"] - middle["bare"], 2), "µs", met=True),
        ]  # fmt: skip
    for found in rows:
        print(f"{found['what']:60} {found['value']:9.2f} µs  goal {found['goal']}")
    if out:
        machine = f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}"
        write(out, "python benchmarks/hazards_torch.py", machine, rows)


if __name__ == "__main__":
    main()
