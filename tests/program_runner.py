"""Runs a random stream program through gpuscope's public interface, on any device.

:class:`Runner` runs it on the simulated GPU, which tells itself when work ran. On a GPU
something else must: ``tests/gpu/test_programs_gpu.py`` builds on it.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from programs import BUFFERS, WORK, Label, Order, Program, Step

from gpuscope.device.api import Activity, KernelCost, KernelModel
from gpuscope.device.calls import Call

BUFFER_ITEMS = 64
PRIME = 65_521

# The model's arithmetic, and a mark of when it ran. ``marks`` has a row for each launch of a
# piece of work: blocks begun, blocks ended (both in the first row only, for all launches),
# first begin and last end by %globaltimer in ns. Launches of a graph are told apart by the
# count of blocks, since none begins before the one before it ends; if one did, its blocks
# would be taken for the other's, and both would seem to run longer.
SOURCE = r"""
typedef unsigned long long u64;
__device__ u64 now() { u64 ns; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)); return ns; }

extern "C" __global__ void mix(long long block_ns, long long nbytes, u64* marks, long long row,
                               long long count, double* out, const double* a, const double* b) {
  u64 begun = now();
  u64* totals = marks + 4 * row;
  u64* mark = 0;
  double found = 17;
  if (blockIdx.x == 0) {
    if (count > 0) found = fmod(found * 31 + a[threadIdx.x], 65521.0);
    if (count > 1) found = fmod(found * 31 + b[threadIdx.x], 65521.0);
  }
  if (threadIdx.x == 0) {
    mark = totals + 4 * (atomicAdd(totals, 1ull) / gridDim.x);
    atomicMin(mark + 2, begun);
  }
  while ((long long)(now() - begun) < block_ns) {}
  if (blockIdx.x == 0) out[threadIdx.x] = found;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) { atomicAdd(totals + 1, 1ull); atomicMax(mark + 3, now()); }
}
"""


def mixed(*values: Any) -> Any:
    """Mix what a kernel reads, so that every order gives another value."""
    found = 17.0
    for value in values:
        found = (found * 31 + value) % PRIME
    return found


# Arguments are those of the source.
MODEL = KernelModel(
    cost=lambda _profile, grid, args, _sms: KernelCost(grid, args[0], args[1]),
    reads=lambda args: list(args[6 : 6 + args[4]]),
    writes=lambda args: args[5],
    compute=lambda *values: np.broadcast_to(mixed(*values), BUFFER_ITEMS),
)


class Runner:
    """Runs a program on a device.

    Attributes
    ----------
    spans
        Work → when it ran, by the device's clock.
    host_ns
        The host's clock before each call and after the last.
    values
        Of all arrays when everything is over: device, pinned and pageable buffers.
    told
        What the host functions told, in the order in which they ran.
    """

    def __init__(self, device: Any, program: Program) -> None:
        self.device = device
        self.program = program
        self.spans: dict[Label, tuple[int, int]] = {}
        self.host_ns: list[int] = []
        self.activities: list[Activity] = []
        self.values: list[list[float]] = []
        self.told: list[int] = []
        self.streams: list[Any] = []
        self._kernel = device.compile(SOURCE, "mix", model=MODEL)
        self._step = 0
        self._of: dict[int, int] = {}

    def run(self) -> Runner:
        """Run it to its end."""
        device, program = self.device, self.program
        self._buffers = [
            device.asarray(np.full(BUFFER_ITEMS, float(one))) for one in range(BUFFERS)
        ]
        self._pinned = [device.empty_pinned(BUFFER_ITEMS, "float64") for _ in range(BUFFERS)]
        self._pageable = [np.zeros(BUFFER_ITEMS) for _ in range(BUFFERS)]
        for one, array in enumerate([*self._pinned, *self._pageable]):
            array[...] = 100 + one
        self._events: dict[int, Any] = {}
        self._graphs: dict[int, Any] = {}
        self._captured: list[Any] = []
        with contextlib.ExitStack() as stack:
            parts = ()
            if program.partitions:
                parts = stack.enter_context(device.carve(list(program.partitions)))
            self.streams = [self._stream(place, parts) for place in program.places]
            device.calls.observe(self)
            stack.callback(device.calls.unobserve, self)
            self._begin()
            for index, step in enumerate(program.steps):
                self._step = index
                self.host_ns.append(device.now_ns())
                self._call(step)
            self._finish()
            self.host_ns.append(device.now_ns())
            for graph in self._captured:
                graph.close()
            for stream in self.streams:
                stream.close()
        arrays = [device.to_host(buffer) for buffer in self._buffers]
        self.values = [array.tolist() for array in (*arrays, *self._pinned, *self._pageable)]
        return self

    def broken(self, order: Order) -> list[tuple[Label, Label]]:
        """Return the required pairs in which the second started before the first ended."""
        return [
            (first, second) for first, second in sorted(order.pairs)
            if self.spans[first][1] > self.spans[second][0]
        ]  # fmt: skip

    def _begin(self) -> None:
        """Do what must be done when all streams are there."""

    def _finish(self) -> None:
        """Wait until all work is done."""
        self.device.synchronize()

    def _stream(self, place: Any, parts: Any) -> Any:
        device = self.device
        if place.kind == "default":
            return device.default_stream()
        if place.kind == "legacy":
            return device.wrap_stream(0)
        if place.kind == "blocking":
            return device.create_stream(priority=place.priority, blocking=True)
        owner = device if place.partition is None else parts[place.partition]
        return owner.create_stream(priority=place.priority)

    def _event(self, number: int) -> Any:
        if number not in self._events:
            self._events[number] = self.device.create_event()
        return self._events[number]

    def _call(self, step: Step) -> None:
        stream = self.streams[step.stream]
        if step.kind in WORK:
            self._work(stream, step)
        elif step.kind == "record":
            self._event(step.number).record(stream)
        elif step.kind == "wait":
            stream.wait(self._event(step.number))
        elif step.kind == "sync stream":
            stream.synchronize()
        elif step.kind == "sync event":
            self._event(step.number).synchronize()
        elif step.kind == "sync device":
            self.device.synchronize()
        elif step.kind == "query":
            stream.is_done  # noqa: B018 - asking is the point
        elif step.kind == "capture":
            with stream.capture() as graph:
                for inner in step.steps:
                    self._call(inner)
            self._graphs[step.number] = graph
            self._captured.append(graph)  # closing one waits for the device: not before the end
        elif step.kind == "graph":
            self._graphs[step.number].launch(stream=stream)

    def _work(self, stream: Any, step: Step) -> None:
        if step.kind == "kernel":
            self._launch(stream, step, 0, 0)
        elif step.kind == "host":
            stream.host_call(lambda: self.told.append(step.writes))
        else:
            self._copy(stream, step)

    def _launch(self, stream: Any, step: Step, marks: Any, row: int) -> None:
        out = self._buffers[step.writes]
        reads = [self._buffers[one] for one in step.reads]
        unused = [out] * (2 - len(reads))
        stream.launch(
            self._kernel, step.block_ns, step.nbytes, marks, row, len(reads), out, *reads, *unused,
            grid=step.blocks, block=BUFFER_ITEMS,
        )  # fmt: skip

    def _copy(self, stream: Any, step: Step) -> None:
        host = (self._pinned if step.pinned else self._pageable)[step.writes]
        buffer = self._buffers[step.reads[0]]
        if step.kind == "up":
            stream.copy(buffer, host)
        elif step.kind == "down":
            stream.copy(host, buffer)
        else:
            stream.copy(self._buffers[step.writes], buffer)

    # -- as an observer ---------------------------------------------------------------
    def call_begins(self, call: Call) -> None:
        """Note which step a call is."""
        self._of[call.correlation] = self._step

    def call_ends(self, call: Call) -> None:
        """Nothing: its begin told all."""

    def activity(self, activity: Activity) -> None:
        """Note when a step's work ran."""
        self.activities.append(activity)
        if activity.kind not in ("kernel", "memcpy", "host"):
            return
        step = self._of.get(activity.correlation)
        if step is None:
            return
        label = (step,) if activity.node is None else (step, activity.node)
        assert label not in self.spans, "it ran twice"
        self.spans[label] = (activity.start_ns, activity.end_ns)
