"""Random programs whose kernels and pauses can be made longer or shorter, run on the simulated GPU.

Program n of a family is drawn from the seed n. Run again with a change, it tells what that moves.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import gpuscope as gs
from gpuscope.simulator.engine.jitter import Jitter
from gpuscope.trace import Trace
from gpuscope.workloads.spin import Spin

FAMILIES = ("streams", "graphs", "threads", "copies", "fills", "polls")
CONTENDED = ("fills", "polls")
"""Families whose kernels compete for SMs, or whose hosts look whether work is done."""
NAMES = ("ka", "kb", "kc", "kd")
COPIES = ("up", "down")
"""Copies to the GPU, and to the host."""
SMS = 132
POLL_NS = 2_000
Step = tuple[Any, ...]
"""What the host does: ``("kernel", stream, name, ns, blocks)``, ``("wait", stream, for stream)``,
``("pause", ns)``, ``("sync", stream or None)``, ``("graph", stream, steps)``, ``("poll", number)``,
``("up" or "down", stream, bytes, memory)``."""


@dataclass(frozen=True)
class Program:
    """What the host does, and how long it takes: of each step that takes ns, by its place."""

    family: str
    streams: int
    steps: tuple[Step, ...]
    more_ns: Mapping[int, int] = field(default_factory=dict)
    """Place of a kernel or a pause → by how much longer it is."""
    faster: Mapping[str, float] = field(default_factory=dict)
    """Name of a kernel → how many times as fast it is."""

    def delay_ns(self, place: int, ns: int) -> int:
        """Return by how much a step is longer whose blocks are: a kernel runs in waves."""
        step = self.steps[place]
        return ns if step[0] == "pause" else -(-step[4] // SMS) * ns

    def delayed(self, place: int, ns: int) -> Program:
        """Return it with a kernel or a pause that lasts longer."""
        return replace(self, more_ns={place: ns})

    def with_faster(self, name: str, factor: float) -> Program:
        """Return it with a kernel that is faster."""
        return replace(self, faster={name: factor})


def draw(family: str, seed: int) -> Program:
    """Draw a program."""
    rng = random.Random(f"{family} {seed}")  # noqa: S311 - to repeat, not to hide
    streams, steps = rng.randint(1, 4), []
    for _ in range(rng.randint(8, 40)):
        kind = rng.choices(
            ("kernel", "wait", "pause", "sync", "graph", "poll", "up", "down"),
            (
                *(10, 2 * (streams > 1), 3, 1, 2 * (family == "graphs"), 3 * (family == "polls")),
                *(3 * (family == "copies"), 3 * (family == "copies")),
            ),
        )[0]
        stream = rng.randrange(streams)
        if kind == "kernel":
            steps.append(_kernel(rng, family, stream))
        elif kind == "wait":
            steps.append((kind, stream, rng.choice([at for at in range(streams) if at != stream])))
        elif kind == "pause":
            steps.append((kind, rng.choice([3_000, 20_000, 120_000, 400_000])))
        elif kind == "sync":
            steps.append((kind, rng.choice([stream, None])))
        elif kind == "graph":
            nodes = tuple(_kernel(rng, family, stream) for _ in range(rng.randint(1, 4)))
            steps.append((kind, stream, nodes))
        elif kind in COPIES:
            # Those of a direction in one stream: elsewhere a change may let them compete.
            stream = 0 if kind == "up" else streams - 1
            nbytes = rng.choice([4_000, 65_536, 400_000, 4_000_000])
            steps.append((kind, stream, nbytes, rng.choice(["pageable", "pageable", "pinned"])))
        else:
            steps.append((kind, stream, rng.choice([5_000, 60_000, 200_000])))
    return Program(family, streams, tuple(steps))


def _kernel(rng: random.Random, family: str, stream: int) -> Step:
    blocks = rng.choice([1, 40, 132, 200]) if family == "fills" else 1
    return (
        "kernel",
        stream,
        rng.choice(NAMES),
        rng.choice([4_000, 30_000, 150_000, 500_000]),
        blocks,
    )


def places(program: Program, kind: str) -> list[int]:
    """Return the places of kernels or pauses of a program; a graph's nodes have none."""
    return [at for at, step in enumerate(program.steps) if step[0] == kind]


@dataclass(frozen=True)
class Ran:
    """A program that was run.

    Attributes
    ----------
    rows
        Place of a kernel, or of a pause → id of its row, or of the call before it.
    """

    trace: Trace
    rows: Mapping[int, int]

    def length_ns(self) -> int:
        """Return how long it took, to the end of its last call."""
        windows = self.trace.metadata.windows_ns
        ends = self.trace.where(kind=("sync",)).array("end_ns")
        return int(ends.max()) - windows[0][0]


def run(program: Program) -> Ran:
    """Run a program on a simulated GPU whose calls take as long, whatever the host slept."""
    gpu = gs.open_device("sim:h200", jitter=False, quiet=True)
    gpu.backend._jitter = Jitter(())
    kernels = {name: gs.workloads.spin_kernel(gpu, name) for name in NAMES}
    streams = [gpu.create_stream(name=f"s{number}") for number in range(program.streams)]
    spins = [
        Spin(gpu, duration_ns=step[2], name=f"poll{at}") if step[0] == "poll" else None
        for at, step in enumerate(program.steps)
    ]
    for spin in filter(None, spins):
        spin.execute(stream=streams[0])
    runner = _Runner(program, gpu, kernels, streams, spins)
    runner.capture()
    gpu.synchronize()
    with gs.profile(gpu) as recording:
        for at in range(len(program.steps)):
            if program.family == "threads" and at % 3 == 2:
                thread = threading.Thread(target=runner.step, args=(at,))
                thread.start()
                thread.join()
            else:
                runner.step(at)
        gpu.synchronize()
    trace = recording.trace
    return Ran(trace, {**_kernels(program, trace), **_pauses(trace, runner.paused)})


def _kernels(program: Program, trace: Trace) -> dict[int, int]:
    """Return place → id of its kernel, of those outside graphs, which are launched in order."""
    kernels = trace.where(kind="kernel").spans.select(["queued_ns", "id", "graph"]).to_pylist()
    alone = sorted((row["queued_ns"], row["id"]) for row in kernels if row["graph"] is None)
    launching = [at for at, step in enumerate(program.steps) if step[0] in ("kernel", "poll")]
    return {at: span for at, (_, span) in zip(launching, alone, strict=True)}


def _pauses(trace: Trace, paused: Mapping[int, int]) -> dict[int, int]:
    """Return place of a pause → id of the call before it."""
    calls = trace.where(kind=("api", "sync", "event")).spans.select(["end_ns", "id"]).to_pylist()
    ended = sorted((row["end_ns"], row["id"]) for row in calls)
    before = {at: [span for end, span in ended if end <= ns] for at, ns in paused.items()}
    return {at: spans[-1] for at, spans in before.items() if spans}


@dataclass
class _Runner:
    program: Program
    gpu: Any
    kernels: Mapping[str, Any]
    streams: list[Any]
    spins: list[Any]
    graphs: dict[int, Any] = field(default_factory=dict)
    paused: dict[int, int] = field(default_factory=dict)
    """Place of a pause → when it began."""

    def capture(self) -> None:
        for at, step in enumerate(self.program.steps):
            if step[0] == "graph":
                with self.streams[step[1]].capture() as graph:
                    for node in step[2]:
                        self.launch(at, node)
                self.graphs[at] = graph

    def launch(self, at: int, step: Step) -> None:
        _, stream, name, ns, blocks = step
        ns = round(ns / self.program.faster.get(name, 1.0)) + self.program.more_ns.get(at, 0)
        self.streams[stream].launch(self.kernels[name], ns, grid=blocks, block=32)

    def copy(self, way: str, stream: int, nbytes: int, memory: str) -> None:
        count = nbytes // 4
        on_gpu = self.gpu.empty(count)
        pinned = memory == "pinned"
        on_host = self.gpu.empty_pinned(count) if pinned else np.zeros(count, np.float32)
        pair = (on_gpu, on_host) if way == "up" else (on_host, on_gpu)
        self.streams[stream].copy(*pair)

    def wait(self, ns: int) -> None:
        self.gpu.backend.wait_until_ns(self.gpu.now_ns() + ns)

    def step(self, at: int) -> None:
        step = self.program.steps[at]
        if step[0] == "kernel":
            self.launch(at, step)
        elif step[0] == "wait":
            self.streams[step[1]].wait(self.streams[step[2]].record())
        elif step[0] == "pause":
            self.paused[at] = self.gpu.now_ns()
            self.wait(step[1] + self.program.more_ns.get(at, 0))
        elif step[0] == "sync":
            (self.gpu if step[1] is None else self.streams[step[1]]).synchronize()
        elif step[0] == "graph":
            self.graphs[at].launch(stream=self.streams[step[1]])
        elif step[0] in COPIES:
            self.copy(*step)
        else:
            self.spins[at].execute(stream=self.streams[step[1]])
            while self.spins[at].in_flight:
                self.wait(POLL_NS)
