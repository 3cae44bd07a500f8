"""Interrupts at every moment of a launch and of a workload: a process for each, its own profiler.

python tests/moments.py "a launch"|"a workload"
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

from interrupting import at_every_moment

import gpuscope as gs
from gpuscope.device import caller, registry


def launch() -> None:
    """Interrupt a launch: no stream stays current."""
    gpu = gs.open_device("sim:h200", quiet=True)
    kernel = gs.workloads.spin_kernel(gpu)
    with gpu.create_stream() as stream:
        for _ in at_every_moment(lambda: stream.launch(kernel, 1_000, grid=1, block=32)):
            assert caller.peek_current_stream(gpu.identity) is None
            gpu.synchronize()


def workload() -> None:
    """Interrupt a workload of the user's: its stream can be closed."""

    @gs.workloads.workload
    def nothing(context: Any) -> None:
        del context

    gpu = gs.open_device("sim:h200", quiet=True)
    streams: list[Any] = []
    with nothing(gpu) as handle, warnings.catch_warnings():
        warnings.simplefilter("ignore")

        def act() -> None:
            with gpu.create_stream() as stream:
                streams.append(stream)
                handle.execute(stream=stream)

        for _ in at_every_moment(act):
            assert caller.innermost_guard() is None
            assert caller.peek_current_stream(gpu.identity) is None
            while streams:
                streams.pop().close()
            assert registry.borrowing.open == ()
            assert not [s for s in gpu.streams if s.name != "per-thread default"]


if __name__ == "__main__":
    {"a launch": launch, "a workload": workload}[sys.argv[1]]()
