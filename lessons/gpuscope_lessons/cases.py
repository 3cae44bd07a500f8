"""Prepared traces in which something is wrong (lesson 9), and what lessons take to pieces."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from gpuscope import CallerStreamGuard, get_caller_stream, open_device, profile
from gpuscope.device import Device
from gpuscope.errors import NotFound
from gpuscope.extending import door
from gpuscope.trace import Trace
from gpuscope.workloads import Spin, spin_kernel
from gpuscope_lessons.outcome import of_interest

CAUSES = (
    "a wait is missing: something is read before it is written",
    "the legacy default stream puts everything in order",
    "the host waits after every launch",
    "work runs outside the partition that it was given to",
    "two workloads share one stream",
)
"""What may be wrong in a case; one of them is in none."""
_MISSING, _LEGACY, _WAITING, _ESCAPE, _ = CAUSES
_PER_THREAD, _DEFAULT = 2, 1


@dataclass(frozen=True)
class Case:
    """A trace, what its program was meant to do, and what is wrong.

    Attributes
    ----------
    story
        What the program does, as those who wrote it tell it.
    trace
        What was recorded, on the simulated GPU.
    cause
        One of :data:`CAUSES`.
    culprit
        The name of the kernel to look at.
    """

    story: str
    trace: Trace
    cause: str
    culprit: str


@door(name=str)
def case(name: str) -> Case:
    """Make one of the cases.

    Parameters
    ----------
    name
        ``"A"`` to ``"D"``.

    Raises
    ------
    NotFound
        There is no such case.

    Examples
    --------
    >>> import gpuscope_lessons as learn
    >>> case = learn.case("D")
    >>> case.culprit, case.cause
    ('statistics', 'the legacy default stream puts everything in order')
    """
    if name not in _CASES:
        raise NotFound(f"there is no case {name!r}; there are {sorted(_CASES)}")
    device = open_device("sim:h200", jitter=False, quiet=True)
    try:
        chance = random.Random(f"case {name}")  # noqa: S311 - durations
        return _CASES[name](device, _Spins(device, chance))
    finally:
        device.close()


@dataclass
class _Spins:
    """Kernels that take about as long as they are said to; kept, so that nobody waits for them."""

    device: Device
    chance: random.Random
    spins: list[Spin] = field(default_factory=list)

    def ns(self, about_us: int) -> int:
        return round(about_us * 1_000 * self.chance.uniform(0.8, 1.25))

    def __call__(self, name: str, about_us: int) -> Spin:
        self.spins.append(Spin(self.device, duration_ns=self.ns(about_us), name=name))
        return self.spins[-1]


def _case(story: str, trace: Trace, cause: str, culprit: str) -> Case:
    return Case(textwrap.fill(story, 88), of_interest(trace), cause, culprit)


def _without_a_wait(device: Device, spin: _Spins) -> Case:
    """Load and compute in rounds, and wait in all of them but one."""
    load, compute = (device.create_stream(name=name) for name in ("load", "compute"))
    with load, compute, profile(device) as recording:
        for number in range(1, 7):
            spin(f"load {number}", 300).execute(stream=load)
            if number != 4:
                compute.wait(load.record())
            spin(f"compute {number}", 200).execute(stream=compute)
    return _case(
        "Six rounds. In each, a kernel in the stream load fetches data, and a kernel in the stream "
        "compute works on it. Now and then the result is wrong, and nobody knows why.",
        recording.trace,
        _MISSING,
        "compute 4",
    )


def _legacy_between(device: Device, spin: _Spins) -> Case:
    """Let two threads use their default streams, and a library the legacy one."""
    legacy = device.wrap_stream(_DEFAULT, name="statistics library")
    threads = {number: ThreadPoolExecutor(1, f"thread {number}") for number in (1, 2)}
    streams = {}
    for number, thread in threads.items():
        name = f"default of thread {number}"
        streams[number] = thread.submit(device.wrap_stream, _PER_THREAD, name=name).result()

    with profile(device) as recording:
        for number in (1, 2) * 5:
            model = spin(f"model {number}", 250)
            threads[number].submit(model.execute, stream=streams[number]).result()
            spin("statistics", 30).execute(stream=legacy)
    for thread in threads.values():
        thread.shutdown()
    return _case(
        "Two threads, each with a model of its own in its own default stream; they have nothing to "
        "do with each other. A library counts something between the launches. The GPU is nearly "
        "empty, and yet the two models never run at the same time.",
        recording.trace,
        _LEGACY,
        "statistics",
    )


def _waiting(device: Device, spin: _Spins) -> Case:
    """Wait after every launch in one stream."""
    decode, log = (device.create_stream(name=name) for name in ("decode", "log"))
    layers = [spin(f"layer {number}", 40) for number in range(1, 6)]
    with decode, log, profile(device) as recording:
        spin("background", 500).execute(stream=log)
        for _ in range(5):
            for layer in layers:
                layer.execute(stream=decode)
                decode.synchronize()
    return _case(
        "A model of five layers answers five questions, layer by layer, in the stream decode. The "
        "layers are short, nobody is in their way, and still decode is idle for more than a third "
        "of the time.",
        recording.trace,
        _WAITING,
        "layer 1",
    )


def _escaping(device: Device, spin: _Spins) -> Case:
    """Call a library with a private stream under a guard."""
    attention, norm = (spin_kernel(device, name) for name in ("attention", "norm"))
    private = device.create_stream(name="library")
    with device.carve({"decode": 16, "prefill": "rest"}) as parts, private:
        decode_stream = parts["decode"].create_stream(name="d0")
        prefill_stream = parts["prefill"].create_stream(name="p0")
        with profile(device) as recording:
            for _ in range(6):
                spin("prefill", 400).execute(stream=prefill_stream)
                with CallerStreamGuard(decode_stream):
                    selected = device.wrap_stream(get_caller_stream())
                    selected.launch(attention, spin.ns(90), grid=16, block=32)
                    private.launch(norm, spin.ns(90), grid=16, block=32)
    return _case(
        "The GPU is carved: decode has 16 SMs, prefill the rest. All that decode does is called "
        "under a guard for its stream. Still, prefill says that somebody is on its SMs.",
        recording.trace,
        _ESCAPE,
        "norm",
    )


_CASES: dict[str, Callable[[Device, _Spins], Case]] = {
    "A": _escaping,
    "B": _waiting,
    "C": _without_a_wait,
    "D": _legacy_between,
}
