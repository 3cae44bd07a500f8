"""What a learner's program did, as its own trace shows it: the conditions that checks ask for."""

from __future__ import annotations

import contextlib
import decimal
import fractions
import functools
import itertools
import math
import operator
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from gpuscope.analysis import hazards
from gpuscope.device import Device, Graph, NativeArray, Stream
from gpuscope.extending import Untyped, given
from gpuscope.races import Misbehaved
from gpuscope.record.recorder import Recording
from gpuscope.trace import Trace
from gpuscope.workloads import Step
from gpuscope_lessons.flow import Flow

_OF_NUMPY = [np.dtype(code).type for code in np.typecodes["AllInteger"] + np.typecodes["Float"]]
_NUMBERS = (int, float, fractions.Fraction, decimal.Decimal, *_OF_NUMPY)
"""Types of numbers: their subclasses could compare as they like."""
RETURNED = "returned"
"""The mark of the moment when a program returned."""
_WHOLE, _TICK_NS = 0.99, 1_000
"""Of the time that a step takes, and a tick of a GPU's clock: what took less was cut short."""
_MOST, _LATE_NS = 1.1, 50_000
"""Of the time that a step takes, and beside it: what took more is another kernel."""
_CONFIG = '{{"grid":[{},1,1],"block":[{},1,1]'
"""How a launch configuration begins in a trace, of so many blocks and threads."""
_TRIES = 3
"""How often a test is made that does not pass where that may be by chance: a recording lost rows,
or a GPU's host came late. No order of its work is there by chance."""


class Unmet(Misbehaved):
    """A condition that a program does not meet; its text is for the learner."""


class Lasting(Protocol):
    """What has a name in the trace, and takes a known time."""

    name: str
    duration_ns: int


class _Work(NamedTuple):
    name: str
    id: int
    stream: int | None
    partition: str | None
    start_ns: int
    end_ns: int
    launch_config: str | None


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
    measured
        What events said of the time between them, in ns.
    shown
        The conditions that were met, in words.

    Examples
    --------
    >>> import gpuscope as gs
    >>> import gpuscope_lessons as learn
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> lesson = learn.Lesson(0, "An example", gpu)
    >>> step = gs.workloads.Step(gpu, 50_000, name="step")
    >>> attempt = lesson.watch(step.execute)
    >>> attempt.ran(step)
    >>> attempt.returned_after("step")
    >>> attempt.shown
    ['it ran step', 'the host waited for step']
    """

    value: object
    returned_ns: int

    def __init__(
        self, recording: Recording, measured: list[int], changed: Sequence[Lasting] = ()
    ) -> None:
        self._recording = recording
        self._changed = changed
        self.measured = measured
        self.shown: list[str] = []

    @property
    def trace(self) -> Trace:
        """What was recorded."""
        return self._recording.trace

    @functools.cached_property
    def flow(self) -> Flow:
        """What happened before what, and who wrote what."""
        return Flow(self._recording.happened(), {work.id: work.name for work in self._work})

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

    def ran(self, *steps: Lasting, copies: int | None = 0) -> None:
        """Require these steps, each as often as it is named and whole, and nothing else.

        Parameters
        ----------
        copies
            How many; ``None`` takes any number.
        """
        ran = Counter(work.name for work in self._work)
        copies = ran["copy"] if copies is None else copies
        wanted = Counter([*(step.name for step in steps), *["copy"] * copies])
        if ran != wanted:
            listed, instead = _listed(wanted), _listed(ran)
            raise Unmet(f"It shall run {listed or 'nothing'}; it ran {instead or 'nothing'}.")
        self.whole(*steps)
        for step in steps:
            if any(changed is step for changed in self._changed):
                raise Unmet(f"It changed how long {step.name} takes: run it as it was given.")
            array = getattr(step, "array", None)
            if array is not None and not self.work(step.name, writes=array):
                raise Unmet(f"{step.name} ran, but another kernel of that name: not the one given.")
        self.shown.append(f"it ran {_listed(wanted) or 'nothing'}")

    def whole(self, *steps: Lasting) -> None:
        """Require that work of these names was as long as they are, and as wide.

        Of a step with a ``shape``, its kernel has that grid and that many threads a block.
        """
        for name, step in {step.name: step for step in steps}.items():
            shape = getattr(step, "shape", None)
            low_ns = _WHOLE * step.duration_ns - _TICK_NS
            is_wide = shape and shape[0] > 1  # it may get some of its SMs late
            high_ns = math.inf if is_wide else _MOST * step.duration_ns + _LATE_NS
            for work in self._named(name):
                took_ns = work.end_ns - work.start_ns
                if not low_ns <= took_ns <= high_ns:
                    took = f"{took_ns / 1e3:,.0f} µs instead of {step.duration_ns / 1e3:,.0f}"
                    raise Unmet(f"{name} took {took}: it was cut short, or is another kernel.")
                config = (work.launch_config or "").replace(" ", "")
                if shape and not config.startswith(_CONFIG.format(*shape)):
                    raise Unmet(f"{name} ran on another grid than the one that is given.")

    def work(self, name: str, *, reads: Untyped = None, writes: Untyped = None) -> list[_Work]:
        """Return the work of a name, or that of it which reads or writes any of an array."""
        flow = self.flow
        pieces = flow.named(name)
        for array, into in ((reads, False), (writes, True)):
            if array is not None:
                pieces = [at for at in pieces if flow.touches(at, array, writes=into)]
        rows = {flow.row(at) for at in pieces}
        return [work for work in self._work if work.id in rows]

    def graph(self) -> Graph:
        """Return the graph that the program returned."""
        if type(self.value) is not Graph or "launch" in vars(self.value):
            raise Unmet(
                f"It shall return the graph that it captured; it returned {given(self.value)}."
            )
        return self.value

    def numbers(self) -> list[float]:
        """Return the numbers that the program returned, in a container of any kind."""
        if not isinstance(self.value, Iterable):
            raise Unmet(f"It shall return a list of numbers; it returned {given(self.value)}.")
        return [self.number(returned) for returned in self.value]

    def number(self, value: object = RETURNED) -> float:
        """Return the number that the program returned, or another one, if it is finite.

        It is one of Python or NumPy: what only compares as a number does is none.
        """
        value = self.value if value is RETURNED else value
        if type(value) is np.ndarray and not value.ndim:
            value = value[()]
        if type(value) not in _NUMBERS:
            raise Unmet(f"It shall return a number; it returned {given(value)}.")
        if not math.isfinite(value):  # type: ignore[arg-type]  # it is a number
            raise Unmet(f"It shall return a finite number; it returned {value}.")
        return float(value)  # type: ignore[arg-type]

    def order(self, *names: str) -> None:
        """Require that each begins when those before it have ended."""
        for first, second in itertools.pairwise(names):
            if self.span(second)[0] < self.span(first)[1]:
                raise Unmet(f"{second} began before {first} had ended.")
            if not self.flow.in_order(first, second):
                raise Unmet(
                    f"{second} began when {first} had ended, but only by chance: nothing orders "
                    "them, no stream, no event and no wait of the host's."
                )
        self.shown.append(" → ".join(names))

    def together(self, one: str, other: str) -> None:
        """Require that two ran at the same time, for half of the shorter one's time at least."""
        (low, high), (begin, end) = self.span(one), self.span(other)
        if min(high, end) - max(low, begin) < 0.5 * min(high - low, end - begin):
            raise Unmet(f"{one} and {other} did not run at the same time.")
        self.shown.append(f"{one} and {other} ran at the same time")

    def in_stream(self, name: str, *streams: Stream) -> None:
        """Require the streams in which something ran, in the order of its launches."""
        used = [work.stream for work in self._named(name)]
        places = [self.trace.stream_name(number) for number in used]
        if [stream.id for stream in streams] != used:
            wanted = [stream.name for stream in streams]
            of = " that it made itself" if wanted == places else ""
            raise Unmet(f"{name} ran in {', '.join(places)}{of}, not in {', '.join(wanted)}.")
        self.shown.append(f"{name} ran in {', '.join(places)}")

    def in_partition(self, name: str, partition: str) -> None:
        """Require that something ran in a partition."""
        partitions = {work.partition or "no partition" for work in self._named(name)}
        if partitions != {partition}:
            raise Unmet(f"{name} ran in {', '.join(sorted(partitions))}, not in {partition}.")
        self.shown.append(f"{name} ran in {partition}")

    def returned_before(self, name: str) -> None:
        """Require that the program returned while something still ran: it did not wait for it."""
        if self.returned_ns >= self.span(name)[1]:
            raise Unmet(f"The host waited: the program returned only after {name} had ended.")
        self.shown.append(f"the host did not wait for {name}")

    def returned_after(self, name: str) -> None:
        """Require that the host knew that something had ended when the program returned.

        It knows by what waits, or asks and is told so: of an event, a stream, the device; or by
        what a host function left for it.
        """
        if self.returned_ns < self.span(name)[1]:
            raise Unmet(f"The program returned before {name} had ended.")
        if not self.flow.known(RETURNED).issuperset(self.flow.named(name)):
            raise Unmet(
                f"{name} had ended when the program returned, but only by chance: the host waited "
                f"for nothing that comes behind {name}."
            )
        self.shown.append(f"the host waited for {name}")

    def not_held_up(self, name: str, *, by: str) -> None:
        """Require that something was queued while the host did not know that another had ended."""
        ended = set(self.flow.named(by))
        if any(self.flow.known_before(at) & ended for at in self.flow.named(name)):
            raise Unmet(f"The host waited for {by} before it launched {name}.")
        self.shown.append(f"{name} was launched without a wait for {by}")

    def never_waited(self) -> None:
        """Require that the host never waited for the GPU, not even for what was done."""
        awaited = sorted(self.flow.awaited())
        waits = self.trace.where(kind="sync")
        # Those for other threads are no calls of CUDA.
        if awaited or len(waits) > len(waits.where(correlation=None, external_correlation=None)):
            raise Unmet(f"The host waited for {', '.join(awaited) or 'what was done already'}.")
        self.shown.append("the host waited for nothing")

    def came(self, path: str, **arrays: NativeArray) -> None:
        """Require that values came along a path, from who wrote them to who read them.

        Parameters
        ----------
        path
            As ``"x → copy → page"``: names of arrays, and of the work that reads what is before
            it and writes what is behind it; copies in between are passed over. The array at the
            end must be written whole; one at the start as it was given.
        arrays
            Name → array.
        """
        if not self.flow.came([arrays.get(name, name) for name in path.split(" → ")]):
            raise Unmet(f"The values did not go this way: {path}.")
        self.shown.append(f"the values went {path}")

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
        work = [piece for piece in self._work if piece.name == name]
        if not work:
            raise Unmet(f"{name} did not run.")
        return work

    def span(self, name: str) -> tuple[int, int]:
        """Return first start and last end of what has a name."""
        work = self._named(name)
        return min(piece.start_ns for piece in work), max(piece.end_ns for piece in work)


def _listed(counts: Counter[str]) -> str:
    named = (name if count == 1 else f"{count} times {name}" for name, count in counts.items())
    return ", ".join(named)


def tested(
    test: Callable[[random.Random], bool | str | None],
    seed: int,
    attempts: list[Attempt],
    device: Device,
) -> bool | str | None:
    """Return what a test found; it is made again where the program may not be to blame.

    Parameters
    ----------
    attempts
        Those that the test makes; cleared before each try.
    device
        What it runs on.
    """
    outcome: bool | str | None = None
    for _ in range(_TRIES):
        attempts.clear()
        try:
            outcome = test(random.Random(seed))  # noqa: S311 - durations
        except Misbehaved as unmet:
            outcome = str(unmet)
        if outcome is not None and not isinstance(outcome, str):
            outcome = bool(outcome)  # what NumPy compares is no bool of Python
        has_lost = any(attempt.trace.metadata.incomplete for attempt in attempts)
        if outcome is True or outcome is None or (device.is_simulated and not has_lost):
            break
    return outcome


@contextlib.contextmanager
def noting_durations() -> Iterator[list[Step]]:
    """Note the steps whose duration is changed in the block."""
    changed, usual = list[Step](), Step.__setattr__

    def note(self: Step, name: str, value: object) -> None:
        if name == "duration_ns" and hasattr(self, "array"):
            changed.append(self)
        usual(self, name, value)

    Step.__setattr__ = note  # type: ignore[assignment,method-assign]
    try:
        yield changed
    finally:
        Step.__setattr__ = usual  # type: ignore[method-assign]
