"""The interface that every device implements, and what crosses it.

:class:`Backend` is the seam: CUDA, the simulator and the CPU implement it. Device, Stream and
Partition hold, once for all, the rules of who may use what and when. What a backend hands out is
opaque to everything else.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from gpuscope._threads import thread_number
from gpuscope._types import Array, DType
from gpuscope.device.api import (
    Activity,
    Capabilities,
    DeviceInfo,
    Kernel,
    KernelArgs,
    KernelModel,
    NativeArray,
    Shape,
)
from gpuscope.device.carve import CarvePlan, PlannedPartition, SmLayout
from gpuscope.device.matmul import MatmulPlan
from gpuscope.device.views import EventView, GraphView, StreamKind, StreamView

Places = tuple[tuple[object, object, object], tuple[int, int, int], object]
"""Of out, a and b: the device that holds each, the address of each first element, and
whatever the backend's ``matmul`` takes of them."""


_Stream = TypeVar("_Stream")
_Event = TypeVar("_Event")
_Array = TypeVar("_Array", bound=NativeArray)


@dataclass(frozen=True, eq=False)
class Memory:
    """Scratch memory.

    Attributes
    ----------
    array
        Its bytes as an array of the device, shape (nbytes,), uint8.
    raw
        What the backend frees.
    """

    array: NativeArray
    raw: object
    nbytes: int


@dataclass(frozen=True)
class GrantedPartition:
    """What a backend made of one planned partition.

    Attributes
    ----------
    sm_count_target
        SMs that libraries are told to tune for; 0 if they are told nothing. See
        :func:`~gpuscope.device.carve.sm_count_to_tell`.
    """

    raw: object
    sm_count: int
    sm_ids: tuple[int, ...]
    context: int
    sm_count_target: int


class Backend(Protocol[_Stream, _Event, _Array]):
    """What a device must be able to do. Raw handles are the backend's own business.

    Methods with a body are those of a device without a driver, streams, partitions or graphs.
    """

    info: DeviceInfo
    capabilities: Capabilities
    layout: SmLayout
    array_type: type
    """Type of the arrays it makes."""
    home: object
    """Where its arrays are: what :meth:`home_of` returns of each."""
    energy_step_ns: int = 0
    """How often the counter behind :meth:`energy_j` advances; 0 where it is always of now."""

    def now_ns(self) -> int:
        """Return the host clock: Unix ns, or the virtual time of a simulated device."""
        return time.time_ns()

    def wait_until_ns(self, time_ns: int) -> None:
        """Let the host wait until its clock shows ``time_ns``."""

    def is_inside(self) -> bool:
        """Whether this thread is inside a call that no other may interrupt."""
        return False

    def seed(self, seed: int) -> None:
        """Let what the device draws at random begin anew: the jitter of a simulated host."""
        return

    def process_and_thread(self) -> tuple[int, int]:
        """Return the ids of this process and thread: the system's, or logical ones."""
        return os.getpid(), thread_number()

    def energy_j(self) -> float | None:
        """Return the energy in J that the device has drawn, since any time; if that can be told."""
        return None

    def set_activity_sink(self, sink: Callable[[Activity], None] | None) -> None:
        """Report finished work to ``sink``, on devices that know it themselves."""
        return

    def check_plan(self, plan: CarvePlan) -> None:
        """Ask the driver whether it would grant ``plan``; creates nothing."""
        self.capabilities.require("partitions", feature="carving")

    def make_partitions(self, planned: Sequence[PlannedPartition]) -> list[GrantedPartition]:
        """Make partitions and find their SM ids; rolls back if any fails."""
        self.capabilities.require("partitions", feature="carving")
        return []

    def close_partition(self, raw: object) -> None:
        """Destroy a partition whose streams are closed."""
        return

    def context_handle(self, partition: object) -> int:
        """Return the driver's handle of a partition's context or the device's; 0 if none."""
        return 0

    def make_stream(
        self, partition: object, priority: int, *, blocking: bool = False
    ) -> tuple[_Stream, int]:
        """Make a stream; returns it and its integer handle.

        A ``blocking`` one, which no partition has, knows the legacy default stream's barrier.
        """

    def borrow_stream(self, handle: int) -> _Stream:
        """Wrap a stream that somebody else owns."""

    def stream_kind(self, raw: _Stream) -> StreamKind | None:
        """Return how a stream stands to the legacy default stream.

        ``None`` while a capture of somebody else's keeps it from being asked.
        """
        return "non-blocking"

    def default_stream(self) -> tuple[_Stream, int]:
        """Return the per-thread default stream."""

    def close_stream(self, raw: _Stream, handle: int) -> None:
        """Destroy an idle stream."""
        return

    def sync_stream(self, raw: _Stream) -> None:
        """Wait on the host until everything queued on a stream is done."""
        return

    def stream_done(self, raw: _Stream) -> bool:
        """Whether everything queued on a stream is done."""
        return True

    def make_event(self, *, timing: bool) -> _Event:
        """Make an event."""

    def record(self, event: _Event, stream: _Stream, correlation: int) -> None:
        """Record an event on a stream."""

    def wait(self, stream: _Stream, event: _Event) -> None:
        """Make a stream wait for an event's latest record."""
        return

    def sync_event(self, event: _Event) -> None:
        """Wait on the host for an event."""
        return

    def event_done(self, event: _Event) -> bool:
        """Whether an event's latest record is done."""
        return True

    def elapsed_ns(self, start: _Event, end: _Event) -> int:
        """Nanoseconds between two recorded events."""

    def close_event(self, raw: _Event) -> None:
        """Destroy an event."""
        return

    def empty(self, shape: Shape, dtype: DType) -> _Array:
        """Return an uninitialised array on the device."""

    def empty_pinned(self, shape: Shape, dtype: DType) -> Array:
        """Return an uninitialised array in page-locked host memory."""

    def asarray(self, values: Array) -> _Array:
        """Copy host values to the device and wait for it."""

    def to_host(self, array: _Array) -> Array:
        """Return an array's values; the device must be idle with respect to it."""

    def home_of(self, array: _Array) -> object:
        """Return which device holds an array of this kind of device."""

    def allocate(self, nbytes: int, stream: StreamView[_Stream] | None) -> Memory:
        """Take scratch memory, nbytes > 0: in the order of ``stream``, or, for ``None``, now.

        For ``None`` it is handed out after the device has finished everything.
        """

    def free(
        self, memory: Memory, stream: StreamView[_Stream] | None, *, idle: bool = False
    ) -> None:
        """Free memory in stream order; without a stream wait first, unless nothing uses it."""

    def use(self, stream: StreamView[_Stream], values: Sequence[object]) -> None:
        """Keep the memory of this backend's arrays among ``values`` for what is queued now.

        It is given out again when the work on ``stream`` is done, also if nobody holds them.
        """
        return

    def mark(self, stream: _Stream) -> object:
        """Return a mark behind what is queued on a stream, for its memory's pool."""

    def reserved_bytes(self) -> int:
        """Return how much device memory scratch holds, given back or not."""

    def begin_capture(self, stream: StreamView[_Stream]) -> None:
        """Let what is queued on ``stream`` from now on become a graph instead of running."""
        self.capabilities.require("graphs", feature="capturing a stream")

    def end_capture(self, stream: StreamView[_Stream]) -> object:
        """End it and return the graph, ready to launch."""
        self.capabilities.require("graphs", feature="capturing a stream")
        return None

    def launch_graph(self, graph: object, stream: _Stream, correlation: int) -> None:
        """Queue all of a graph's work."""
        self.capabilities.require("graphs", feature="launching a graph")

    def graph_is_empty(self, graph: object) -> bool:
        """Whether a graph is known to have no work."""
        return False

    def close_graph(self, graph: object) -> None:
        """Wait for a graph's latest launch, then destroy it."""
        return

    def fill_random(self, array: _Array, seed: int) -> None:
        """Fill an array with uniform values in [-0.5, 0.5) and wait for it."""

    def copy(self, stream: _Stream, destination: _Array, source: _Array, correlation: int) -> None:
        """Queue a copy between arrays of one size, on the device or from or to host memory."""

    def host_call(
        self,
        stream: _Stream,
        function: Callable[[], None],
        correlation: int,
        graph: GraphView | None,
    ) -> None:
        """Queue a host function on a stream, or in the graph that it is captured into."""

    def compile(self, source: str, name: str, model: KernelModel | None) -> Kernel:
        """Compile CUDA C++ source, or take its model."""

    def launch(
        self,
        stream: _Stream,
        kernel: Kernel,
        grid: int,
        block: int,
        args: KernelArgs,
        correlation: int,
    ) -> None:
        """Launch a kernel."""

    def matmul(
        self,
        stream: StreamView[_Stream],
        plan: MatmulPlan,
        operands: object,
        sm_count: int,
        correlation: int,
        event: EventView[_Event] | None = None,
    ) -> None:
        """Queue a planned GEMM on placed operands, tuned for ``sm_count`` SMs (0: not told).

        Record ``event`` behind it, if one is given: nobody is told of that.
        """

    def expect(self, plan: MatmulPlan, out: _Array, a: _Array, b: _Array) -> None:
        """Take note of operands that a plan fits, so that a call with their like costs less."""
        return

    def adopt(self, value: object, *, write: bool = False) -> _Array | None:
        """Return ``value`` as an array of this kind of device, without a copy, or ``None``.

        It has ``shape``, ``dtype``, ``ndim`` and ``strides``; to ``write``, it is not read-only.
        """

    def follow(self, stream: _Stream, value: object) -> None:
        """Let ``stream`` wait for the stream that an array of another library names, if any."""
        return

    def place(self, out: _Array, a: _Array, b: _Array) -> Places:
        """Say where adopted arrays are, and what :meth:`matmul` takes of them."""

    def rearrange(
        self, stream: StreamView[_Stream], into: _Array, array: _Array, correlation: int
    ) -> None:
        """Queue a copy of an array into one in C order."""

    def synchronize(self) -> None:
        """Wait on the host for the whole device."""

    def wait_for_all(self, handles: Collection[int]) -> None:
        """Wait for the whole device, and for each of these streams by an event of its own.

        A driver's wait for the device may miss work in a partition: see `docs/device.md`. So the
        contexts of the partitions that the streams lie in are waited for, too.
        """
        self.synchronize()

    def close(self) -> None:
        """Release what is kept for the next use."""
        return

    def among_captures(self) -> contextlib.AbstractContextManager[None]:
        """Let this thread ask and wait for events in the block, whoever captures a stream."""
        return contextlib.nullcontext()

    def current(self) -> contextlib.AbstractContextManager[None]:
        """Make the device current for libraries that ask which one is; restored on leaving."""
        return contextlib.nullcontext()


AnyBackend: TypeAlias = Backend[object, object, NativeArray]
"""A backend as everything above the seam knows it: what it hands out is opaque there."""
