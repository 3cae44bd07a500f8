"""``try_delay``: whether a program's end depends on a place in it, by delays planted there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeAlias

import numpy as np

from gpuscope import _interrupts
from gpuscope._checks import SeveralOf, count, door, given
from gpuscope.analysis.certainty import TAIL, interval
from gpuscope.analysis.result import Result, Row
from gpuscope.comparing.effects import FEWEST
from gpuscope.device.device import Device
from gpuscope.device.handles import AnyStream
from gpuscope.errors import InvalidArgument
from gpuscope.workloads.delay import Delay

_Verdict: TypeAlias = Literal["none", "all", "part", "undecided"]
_SHARES = 0.02, 0.05
"""Of a step: how long delays are, unless said."""
_LONGEST_NS = 10_000_000_000
_CLOSE = 0.1
"""A share is known if it is as closely. One that is then not told from 0, or is surely less than
this, is none."""


@dataclass(frozen=True)
class DelayResult(Result):
    """By which share of a planted delay the end of a step moved.

    Attributes
    ----------
    share, low, high
        The slope of the step's time over the delay, and its 95 % interval.
    verdict
        ``"none"``: the end does not depend on that place, and nothing faster there would help.
        ``"all"``: it moves as much as the delay. ``"part"``: by less. ``"undecided"``: noise hides
        it.
    delays_ns, steps_ns
        The delays of each step, 0 for the launch of an empty kernel or no wait, and how long steps
        with each took in the turns.
    """

    share: float
    low: float
    high: float
    verdict: _Verdict
    delays_ns: tuple[int, ...]
    steps_ns: tuple[tuple[int, ...], ...]

    def _rows(self) -> list[Row]:
        """One row per delay."""
        first, *_ = medians = [median(took) / 1e3 for took in self.steps_ns]
        return [
            {"delay (µs)": ns / 1e3, "step (µs)": took, "moved (µs)": took - first}
            for ns, took in zip(self.delays_ns, medians, strict=True)
        ]

    @property
    def definition(self) -> str:
        """What was found."""
        return (
            f"{self.verdict} of a delay moves the end: {self.share:.0%} of it "
            f"({self.low:.0%} to {self.high:.0%}), in {len(self.steps_ns[0])} turns"
        )


@door(run=Callable, device=Device, delays_us=(SeveralOf(float), None))
def try_delay(
    run: Callable[[Callable[[], None]], object],
    device: Device,
    *,
    behind: AnyStream = None,
    delays_us: Sequence[float] | None = None,
    turns: int = 40,
) -> DelayResult:
    """Plant delays in a program, and tell by how much its end moves.

    What a delay does not move, no speed-up at that place can move either. Steps with each delay
    and without take turns, until the 95 % interval of the slope is decided.

    Parameters
    ----------
    run
        Makes one step. It is given a function, and calls it once behind the kernel, the range or
        the host section in question.
    device
        What the program runs on.
    behind
        The stream in which a kernel spins on one SM, behind what was queued: gpuscope's, or that of
        another library. Without one, the host waits.
    delays_us
        Delays in µs; 2 % and 5 % of a step unless said.
    turns
        Steps with each delay, at most; at least 3.

    Raises
    ------
    InvalidArgument
        A delay is not above 0, or ``run`` did not call its function.
    TypeError
        ``run`` takes no argument.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> kernel = gs.workloads.spin_kernel(gpu)
    >>> with gpu.create_stream() as one, gpu.create_stream() as two:
    ...     def step(plant):
    ...         one.launch(kernel, 400_000, grid=1, block=32)
    ...         two.launch(kernel, 2_000_000, grid=1, block=32)
    ...         plant()
    ...     beside = gs.try_delay(step, gpu, behind=one, delays_us=[100, 300])
    ...     critical = gs.try_delay(step, gpu, behind=two, delays_us=[100, 300])
    >>> beside.verdict, critical.verdict
    ('none', 'all')
    """
    turns = count("turns", turns, least=FEWEST)
    stream = None if behind is None else device.wrap_stream(behind)
    planted: list[Delay] = []

    def step_ns(delay: Delay) -> int:
        def plant() -> None:
            planted.append(delay)
            if stream is None:
                delay.of_host()
            else:
                delay.in_stream(stream)

        _interrupts.deliver()
        device.synchronize()
        begun_ns = device.now_ns()
        run(plant)
        device.synchronize()
        return device.now_ns() - begun_ns

    usual_ns = [step_ns(Delay(device, 0)) for _ in range(FEWEST)][-1]
    if len(planted) < FEWEST:
        raise InvalidArgument("run made a step without calling the function that it was given")
    chosen = [share * usual_ns / 1e3 for share in _SHARES] if delays_us is None else delays_us
    delays = (0, *(round(float(us) * 1e3) for us in chosen))
    if not chosen or not 1 <= min(delays[1:]) <= max(delays) < _LONGEST_NS:
        raise InvalidArgument(f"delays_us is {given(delays_us)}: 0.001 to below 10 s is needed")
    to_plant = [Delay(device, ns) for ns in delays]
    steps: list[list[int]] = [[] for _ in delays]
    centred = np.array(delays) - np.mean(delays)
    for delay in to_plant:
        step_ns(delay)  # the first of each is slower
    for turn in range(turns):
        for at in np.roll(np.arange(len(delays)), turn).tolist():
            steps[at].append(step_ns(to_plant[at]))
        slopes = (centred @ np.array(steps)) / (centred @ centred)
        if turn + 1 < FEWEST:
            continue
        low, high = interval(slopes.tolist(), TAIL)
        if high - low < 2 * _CLOSE or high < _CLOSE:
            break
    share = float(np.mean(slopes))
    is_known = high - low < 2 * _CLOSE
    verdict: _Verdict = "part" if is_known else "undecided"
    if high < _CLOSE or (is_known and low <= 0):
        verdict = "none"
    elif is_known and high > 1 - _CLOSE:
        verdict = "all"
    took, source = tuple(map(tuple, steps)), device.name
    simulated = device.is_simulated
    return DelayResult(
        share, low, high, verdict, delays, took, is_simulated=simulated, provenance=source
    )
