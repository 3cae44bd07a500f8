"""The virtual host in front of the engine: a clock that calls and waits move."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable
from typing import Literal

from gpuscope import _interrupts
from gpuscope._fork import free_in_children
from gpuscope.device.api import Activity, Capabilities, DeviceInfo, KernelCost
from gpuscope.device.raw import Backend
from gpuscope.errors import InvalidOperand, StreamError
from gpuscope.simulator.engine.capture import Capture, refusal
from gpuscope.simulator.engine.engine import Engine
from gpuscope.simulator.engine.jitter import Jitter
from gpuscope.simulator.engine.memory import SimArray
from gpuscope.simulator.engine.ops import Effect, KernelOp, Op, RecordOp, SimEvent, SimStream
from gpuscope.simulator.engine.together import Together
from gpuscope.simulator.models.assumed import PENDING_LAUNCHES
from gpuscope.simulator.profiles.profile import GpuProfile

EPOCH_NS = 1_600_000_000_000_000_000
"""Where every virtual clock starts: fixed, so that a trace is the same byte for byte."""

Pace = Literal["none", "real"]
_MOST_WAVES = 1 << 21
"""Of a kernel: each takes the simulator some microseconds."""
_PACE_SLACK_NS = 2_000_000


class SimHost(Backend[SimStream, SimEvent, SimArray]):
    """The virtual host: its clock, what calls cost it, and its waits for the engine.

    Parameters
    ----------
    profile
        Name of the GPU profile, or path of its file.
    pace
        ``"none"``: a wait ends at once. ``"real"``: the virtual clock never runs ahead of
        the wall clock, so that live views and Stop mean something.
    jitter
        Whether the times of host calls vary as they were measured.
    """

    def __init__(self, profile: str = "h200", *, pace: Pace = "none", jitter: bool = False) -> None:
        self.profile = GpuProfile.load(profile)
        speeds = [(speed.since_us, speed.quantiles) for speed in self.profile.file.jitter]
        self._jitter = Jitter(speeds, noise=jitter)
        self._seen_ns = 0  # what was done by then, a wait has seen
        self._launched_ns = {"gemm": 0, "launch": 0}  # the latest of a kind
        self.layout = self.profile.layout
        self._all_sms = (1 << self.layout.sm_count) - 1
        self._cost = constants = self.profile.constants
        self.engine = Engine(
            self._all_sms,
            launch_latency_ns=constants["launch_latency_ns"],
            kernel_gap_ns=constants["kernel_gap_ns"],
            memory=self.profile.memory,
        )
        self.engine.now_ns = self._host_ns = EPOCH_NS
        self._pace = pace
        self._started_wall_ns = time.monotonic_ns()
        self._lock = free_in_children(threading.RLock())
        self._streams: dict[int, SimStream] = {}
        self._contexts = itertools.count(2)
        self._threads = itertools.count(1)
        self._of_thread = threading.local()  # its number, and its default stream
        self._defaults: weakref.WeakValueDictionary[int, SimStream] = weakref.WeakValueDictionary()
        self._captures: list[Capture] = []
        gpu = self.profile.file.device
        self.info = DeviceInfo(
            key=f"sim:{self.profile.key}",
            kind="sim",
            index=0,
            name=f"{gpu.name} (simulated)",
            uuid=f"SIM-{self.profile.key}",
            sm_count=self.layout.sm_count,
            compute_capability=gpu.compute_capability,
            memory_bytes=gpu.memory_bytes,
            driver=f"simulated from measurements with {self.profile.file.measured.driver}",
            launch_latency_ns=constants["launch_latency_ns"],
            kernel_gap_ns=constants["kernel_gap_ns"],
            memory_bytes_per_us=constants["device_copy_bytes_per_us"],
        )
        self.capabilities = Capabilities(
            streams=True,
            partitions=True,
            partition_path="simulated",
            stream_ordered_memory=True,
            graphs=True,
            reasons={
                "arbitrary_split": "the simulated driver splits as 12.4 to 13.0 do; 13.1 or newer "
                "would be required",
                "compile_source": "a simulated GPU runs no CUDA source: give the kernel a model",
            },
        )

    def now_ns(self) -> int:
        """Return the virtual host clock; in a host function, which runs beside it, its own."""
        function_ns = self.engine.function_ns
        return self._host_ns if function_ns is None or not self.is_inside() else function_ns

    def energy_j(self) -> float:
        """Return the energy drawn until now, by a model: see ``docs/simulator.md``."""
        with self._lock:
            return self.engine.joules(self._host_ns)

    def is_inside(self) -> bool:
        """Whether this thread lets time pass, or queues something."""
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]  # as Condition asks

    def wait_until_ns(self, time_ns: int) -> None:
        """Let the virtual host sleep; in a host function, that, which holds its stream as long."""
        with self._lock:
            function_ns = self.engine.function_ns
            if function_ns is None:
                self._advance(max(self._host_ns, time_ns))
            else:
                self.engine.function_ns = max(function_ns, time_ns)

    def _advance(self, time_ns: int) -> None:
        # Who was interrupted while it waited for the engine has waited until then.
        time_ns = self._host_ns = max(time_ns, self.engine.now_ns)
        self.engine.run_until(time_ns)
        if self._pace == "real":
            ahead = (time_ns - EPOCH_NS) - (time.monotonic_ns() - self._started_wall_ns)
            if ahead > _PACE_SLACK_NS:
                _interrupts.sleep(ahead / 1e9)
            elif ahead < -_PACE_SLACK_NS:  # it idled: what comes now is paced again
                self._started_wall_ns -= ahead

    def seed(self, seed: int) -> None:
        """Let the jitter begin anew."""
        with self._lock:
            self._jitter.seed(seed)

    def _pay(self, cost_ns: int) -> None:
        """Let the host make a call that takes so long at the median."""
        self._advance(self._host_ns + self._jitter(cost_ns))

    def _queue(self, op: Op, cost_ns: int) -> None:
        """Pay for a call and queue its work; a full queue holds the host until it has room."""
        stream, engine = op.stream, self.engine
        if stream is engine.legacy:
            self._require_no_blocking_capture()
        self._pay(cost_ns)
        if stream.capture is not None:
            stream.capture.add(op)
            return
        if stream.depth >= PENDING_LAUNCHES:
            self._advance(max(self._host_ns, engine.run_until_room(stream, PENDING_LAUNCHES)))
        op.queued_ns = self._host_ns
        engine.submit(op)

    def _queue_kernel(
        self,
        stream: SimStream,
        correlation: int,
        name: str,
        effect: Effect | None,
        cost: KernelCost,
        call: Literal["launch", "gemm", ""],
        together: Together | None = None,
        config: str | None = None,
    ) -> None:
        sm_count = stream.sms.bit_count()
        if (pieces := max(cost.blocks, cost.tiles)) > _MOST_WAVES * sm_count:
            raise InvalidOperand(
                f"kernel {name!r} has {pieces:,} thread blocks, more than {_MOST_WAVES:,} for "
                f"each of its {sm_count} SMs, which would be simulated for minutes: give it less "
                "to do"
            )
        op = KernelOp(
            stream, 0, correlation, name, effect, cost, together=together, launch_config=config
        )
        kind = call or "launch"
        self._jitter.draw((self._host_ns - self._launched_ns[kind]) / 1e3)
        self._queue(op, self._cost[f"{call}_call_ns"] if call else 0)
        self._launched_ns[kind] = self._host_ns
        self._pay(self._cost[f"{call or 'launch'}_return_ns"])

    def _require_no_blocking_capture(self) -> None:
        for stream in self.engine.blocking:
            if stream.capture is not None:
                stream.capture.invalidate()
                raise refusal("the legacy default stream cannot be used", "StreamCaptureImplicit")

    def _require_no_capture(self, what: str) -> None:
        """Refuse a wait for the device on a thread that captures."""
        thread = self.process_and_thread()[1]
        on = [capture for capture in self._captures if capture.is_on and capture.thread == thread]
        if refused := [capture.refuse(what) for capture in on]:
            raise refused[0]

    def _returned(self, done_ns: int) -> None:
        """Let the host return from a wait for something that was done at ``done_ns``."""
        self._seen_ns = max(self._seen_ns, done_ns)
        visible = done_ns + self._cost["synchronize_return_ns"]
        self._advance(max(self._host_ns + self._cost["query_call_ns"], visible))

    def _sees(self, op: Op | None) -> bool:
        """Whether the host that asks sees work done: as late as it returns from a wait.

        An event's record is queued with the work before it, whose end counts.
        """
        if op is None or op.done_ns is None:
            return op is None
        done_ns = op.free_ns if isinstance(op, RecordOp) else op.done_ns
        seen_ns = self._host_ns - self._cost["synchronize_return_ns"]
        return done_ns <= max(seen_ns, self._seen_ns)

    def _sees_unfailed(self, op: Op | None) -> bool:
        """Whether the host sees work done; what that raised, or what it follows did, is raised."""
        is_seen = self._sees(op)
        if is_seen:
            _tell_failure(op)
        return is_seen

    def step(self) -> bool:
        """Let the next thing happen on the GPU, though the host be not as far; says if one did."""
        with self._lock:
            return self.engine.step(None)

    def awaited(self, stream: SimStream | None) -> list[Op | None]:
        """Return what a wait for a stream, or for all, waits for.

        The legacy default stream counts with every stream that knows its barrier.
        """
        legacy = self.engine.legacy
        if stream is None:
            return [sim_stream.last for sim_stream in self._every_stream()]
        return [
            *(sim_stream.last for sim_stream in self.engine.blocking if stream is legacy),
            stream.last,
        ]

    def _every_stream(self) -> list[SimStream]:
        return [*self._streams.values(), *self._defaults.values(), self.engine.legacy]

    def _wait_for(self, op: Op | None) -> None:
        """Let the host wait for work; what that raised, or what it follows did, is raised here."""
        self._returned(self.engine.run_until_done(op))
        _tell_failure(op)

    def _wait_for_all(self) -> None:
        """Wait for all work; what some of it raised is left for who asks about that work."""
        self._require_no_capture("waiting for the device failed")
        self._returned(self.engine.run_all())
        stuck = [stream for stream in self._every_stream() if stream.depth]
        if stuck:
            raise StreamError(
                f"{len(stuck)} streams wait for work that is not queued: they can never finish"
            )

    def mark(self, stream: SimStream) -> tuple[Op | None]:
        """Return what was queued last, if anything; takes no virtual time."""
        return (stream.last,)

    def _passed(self, mark: tuple[Op | None]) -> bool:
        return mark[0] is None or mark[0].done_ns is not None

    def _wait_for_mark(self, mark: tuple[Op | None]) -> None:
        with self._lock:
            self._returned(self.engine.run_until_done(mark[0]))

    def process_and_thread(self) -> tuple[int, int]:
        """Return logical ids: process 1, threads in order of their first call."""
        if not hasattr(self._of_thread, "number"):
            self._of_thread.number = next(self._threads)
        return 1, self._of_thread.number

    def set_activity_sink(self, sink: Callable[[Activity], None] | None) -> None:
        """Report finished work to ``sink``."""
        self.engine.sink = sink


def _tell_failure(op: Op | None) -> None:
    """Raise what work raised, or what it follows did, unless somebody was told."""
    failure = None if op is None or op.failure is None else op.failure.first()
    if failure is not None:
        failure.tell()
