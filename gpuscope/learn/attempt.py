"""What a learner's program did, as its own trace shows it: the conditions that checks ask for."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NamedTuple, Protocol

import numpy as np

from gpuscope._checks import given, require_kind
from gpuscope._interrupts import is_deferred
from gpuscope.analysis.hazards_analysis import hazards
from gpuscope.device.api import KernelCost, KernelModel
from gpuscope.device.device import Device
from gpuscope.device.partition import Partition
from gpuscope.device.stream import Stream
from gpuscope.errors import InvalidArgument
from gpuscope.record.recorder import Recording
from gpuscope.trace.model import Trace
from gpuscope.workloads.context import Passed
from gpuscope.workloads.handle import Handle

_SOURCE = r"""
extern "C" __global__ void NAME(float* out, const float* a, const float* b, long long ns) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  while ((long long)(now - begin) < ns);
  if (threadIdx.x == 0) out[0] = a[0] + b[0];
}"""
_MODEL = KernelModel(
    lambda _profile, grid, args, _sm_count: KernelCost(grid, int(args[3])),
    reads=lambda args: args[1:3],
    writes=lambda args: args[0],
    compute=lambda a, b: a + b,
)
_NUMBERS = tuple(np.dtype(code).type for code in np.typecodes["AllInteger"] + np.typecodes["Float"])
"""NumPy's types of numbers: their subclasses could compare as they like."""
_WHOLE = 0.95
"""Of the time that a step takes: one that took less was cut short."""
_LATER_S, _MOST_LATE_S = 0.005, 1.0
"""Until a program is stopped that is inside of gpuscope when its time is over; at most."""


class Unmet(BaseException):
    """A condition that a program does not meet; its text is for the learner.

    No ``Exception``: no ``except`` of a learner's takes it for an error of the program.
    """


class Step(Handle):
    """A kernel that takes its time and writes an array, from those of the steps it needs.

    Parameters
    ----------
    owner
        The device, or a partition that closes the handle with itself.
    duration_ns
        How long its one block runs.
    name
        Of handle and kernel; an identifier of C.
    after
        Steps whose arrays it reads: at most two. Without an order behind these it races.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> load = gs.learn.Step(gpu, 50_000, name="load")
    >>> compute = gs.learn.Step(gpu, 50_000, name="compute", after=[load])
    >>> with gpu.create_stream() as a, gpu.create_stream() as b:
    ...     with gs.profile(gpu, hazards=True) as recording:
    ...         load.execute(stream=a)
    ...         compute.execute(stream=b)
    >>> [one.kind for one in gs.analysis.hazards(recording.trace).found]
    ['read after write']
    """

    def __init__(
        self,
        owner: Device | Partition,
        duration_ns: int,
        *,
        name: str,
        after: Sequence[Step] = (),
    ) -> None:
        super().__init__(owner, name=name)
        require_kind("after", after, list, tuple)
        for step in after:
            if not hasattr(step, "array"):
                raise InvalidArgument(
                    f"after has {given(step)}; steps are needed, or what has an array as they do"
                )
        self.duration_ns = duration_ns
        self.array = self.device.asarray(np.ones(4, "float32"))
        arrays = [step.array for step in after] or [self.device.asarray(np.ones(4, "float32"))]
        self._reads = arrays[0], arrays[-1]
        self._kernel = self.device.compile(
            _SOURCE.replace("NAME", name), name, model=_MODEL, holds_sms=True
        )
        with self.device.create_stream() as stream:
            self._launch_for(1, stream)  # so that nobody waits for it to be loaded

    def _launch(self, stream: Stream, operands: Passed) -> None:
        del operands
        self._launch_for(self.duration_ns, stream)

    def _launch_for(self, time_ns: int, stream: Stream) -> None:
        arrays = self.array, *self._reads
        stream.launch(self._kernel, *arrays, np.int64(time_ns), grid=1, block=32)


class Lasting(Protocol):
    """What has a name in the trace, and takes a known time."""

    name: str
    duration_ns: int


class _Work(NamedTuple):
    name: str
    stream: int | None
    partition: str | None
    start_ns: int
    end_ns: int


class Attempt:
    """One run of a learner's program, made by :meth:`Lesson.watch`.

    Its conditions raise what the learner is told where they are not met. Names are those of
    workloads or kernels, and ``"copy"``.

    Attributes
    ----------
    value
        What the program returned.
    returned_ns
        When it returned, on the trace's clock.
    shown
        The conditions that were met, in words.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> lesson = gs.learn.Lesson(0, "An example", gpu)
    >>> step = gs.learn.Step(gpu, 50_000, name="step")
    >>> attempt = lesson.watch(step.execute)
    >>> attempt.ran(step)
    >>> attempt.returned_after("step")
    >>> attempt.shown
    ['it ran step', 'the host waited for step']
    """

    value: object
    returned_ns: int

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.shown: list[str] = []

    @property
    def trace(self) -> Trace:
        """What was recorded."""
        return self._recording.trace

    @functools.cached_property
    def _work(self) -> list[_Work]:
        """What the GPU did, in the order of its launches; host functions are the host's."""
        work = self.trace.where(kind=("kernel", "memcpy", "memset"))
        rows = sorted(work.spans.to_pylist(), key=operator.itemgetter("id"))
        return [
            _Work(
                "copy" if row["kind"] == "memcpy" else row["category"] or row["name"],
                *(row[column] for column in _Work._fields[1:]),
            )
            for row in rows
        ]

    def ran(self, *steps: Lasting, copies: int = 0) -> None:
        """Require these steps, each as often as it is named and whole, and nothing else."""
        wanted = Counter([*(step.name for step in steps), *["copy"] * copies])
        ran = Counter(work.name for work in self._work)
        if ran != wanted:
            listed, instead = _listed(wanted), _listed(ran)
            raise Unmet(f"It shall run {listed or 'nothing'}; it ran {instead or 'nothing'}.")
        whole_ns = {step.name: step.duration_ns for step in steps}
        for work in self._work:
            took_ns, whole = work.end_ns - work.start_ns, whole_ns.get(work.name, 0)
            if took_ns < _WHOLE * whole:
                raise Unmet(
                    f"{work.name} took {took_ns / 1e3:,.0f} µs instead of {whole / 1e3:,.0f}: it "
                    "was cut short, or is another kernel."
                )
        self.shown.append(f"it ran {_listed(wanted) or 'nothing'}")

    def number(self) -> float:
        """Return the number that the program returned: of Python or NumPy, and finite."""
        value = self.value
        if type(value) not in (int, float) and type(value) not in _NUMBERS:
            raise Unmet(f"It shall return a number; it returned {given(value)}.")
        if not math.isfinite(value):  # type: ignore[arg-type]  # it is a number
            raise Unmet(f"It shall return a finite number; it returned {value}.")
        return float(value)  # type: ignore[arg-type]

    def order(self, *names: str) -> None:
        """Require that each begins when those before it have ended."""
        for first, second in itertools.pairwise(names):
            if self.span(second)[0] < self.span(first)[1]:
                raise Unmet(f"{second} began before {first} had ended.")
        self.shown.append(" → ".join(names))

    def together(self, one: str, other: str) -> None:
        """Require that two ran at the same time, for half of the shorter one's time at least."""
        (low, high), (begin, end) = self.span(one), self.span(other)
        if min(high, end) - max(low, begin) < 0.5 * min(high - low, end - begin):
            raise Unmet(f"{one} and {other} did not run at the same time.")
        self.shown.append(f"{one} and {other} ran at the same time")

    def in_stream(self, name: str, *streams: str) -> None:
        """Require the streams in which something ran, in the order of its launches."""
        streams_used = [self.trace.stream_name(work.stream) for work in self._named(name)]
        self._placed(name, streams_used, streams)

    def in_partition(self, name: str, partition: str) -> None:
        """Require that something ran in a partition."""
        partitions = {work.partition or "no partition" for work in self._named(name)}
        self._placed(name, sorted(partitions), [partition])

    def _placed(self, name: str, found: Sequence[str], wanted: Sequence[str]) -> None:
        if list(found) != list(wanted):
            raise Unmet(f"{name} ran in {', '.join(found)}, not in {', '.join(wanted)}.")
        self.shown.append(f"{name} ran in {', '.join(found)}")

    def returned_before(self, name: str) -> None:
        """Require that the program returned while something still ran: it did not wait for it."""
        if self.returned_ns >= self.span(name)[1]:
            raise Unmet(f"The host waited: the program returned only after {name} had ended.")
        self.shown.append(f"the host did not wait for {name}")

    def returned_after(self, name: str) -> None:
        """Require that something had ended when the program returned."""
        if self.returned_ns < self.span(name)[1]:
            raise Unmet(f"The program returned before {name} had ended.")
        self.shown.append(f"the host waited for {name}")

    def nothing_races(self) -> None:
        """Require that an order is established for all work that shares memory, the host's too."""
        facts = hazards(self.trace).facts
        for hazard in facts.found:
            raise Unmet(
                f"It races ({hazard.kind}): nothing orders {hazard.first_name} (in "
                f"{hazard.first_stream}) before {hazard.second_name} (in {hazard.second_stream})."
            )
        if facts.unseen or facts.undecided:
            raise Unmet(
                "It cannot be told whether it races: what "
                f"{', '.join(facts.unseen_names) or 'some work'} reads and writes is unknown."
            )
        self.shown.append(f"nothing races among {facts.accesses} accesses")

    def _named(self, name: str) -> list[_Work]:
        work = [each for each in self._work if each.name == name]
        if not work:
            raise Unmet(f"{name} did not run.")
        return work

    def span(self, name: str) -> tuple[int, int]:
        """Return first start and last end of what has a name."""
        work = self._named(name)
        return min(each.start_ns for each in work), max(each.end_ns for each in work)


def _listed(counts: Counter[str]) -> str:
    named = (name if count == 1 else f"{count} times {name}" for name, count in counts.items())
    return ", ".join(named)


def too_long(seconds: float) -> Unmet:
    """Return what a learner is told whose program was stopped."""
    return Unmet(
        f"It did not end within {seconds:g} s, so it was stopped. Is there a loop, or a wait, that "
        "nothing ends?"
    )


@contextlib.contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Stop the block after some time, where signals can: in a main thread, not on Windows."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "setitimer"
    ):
        yield
        return

    def stop(_signal: int, frame: FrameType | None) -> None:
        late_s = time.monotonic() - began - seconds
        if late_s < _MOST_LATE_S and is_deferred(frame):  # it would leave something half done
            signal.setitimer(signal.ITIMER_REAL, _LATER_S)
            return
        raise too_long(seconds)

    before, began = signal.signal(signal.SIGALRM, stop), time.monotonic()
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left_s:  # somebody else's, set before
            rest_s = left_s - (time.monotonic() - began)
            signal.setitimer(signal.ITIMER_REAL, max(rest_s, 0.001))
