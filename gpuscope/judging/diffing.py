"""``diff``: did it get slower, by how much, how sure is that, and why."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from gpuscope._checks import SeveralOf, count, door, given
from gpuscope.comparing.diff_result import DiffResult, judged, of_traces
from gpuscope.device.device import Device
from gpuscope.errors import InvalidArgument
from gpuscope.experiments.experiment import Experiment, as_experiment
from gpuscope.judging import sides
from gpuscope.judging.programs import Command, ProgramSide, checked_out
from gpuscope.judging.sides import Side
from gpuscope.judging.targets import Given, target_of
from gpuscope.judging.turns import Tell, in_turns
from gpuscope.trace.model import Trace

ROUNDS, CONTROL = (8, 20), 0.6
"""Pairs of rounds of A and B, at least and at most; and of A and A, as a share of these."""
PROCESSES = 6
"""Pairs where each round is a process."""
_SIMULATED = 4, 20
_LONG_S, _SIMULATED_ROWS = 60.0, 60_000
"""How long A and B take together, about; and rows of one side on a simulated GPU."""
_ROUND_NS, _LONGEST = 300_000_000, 100
"""A round is at least so long: a shorter experiment repeats its calls, up to so often."""


@door(
    "device",
    setting=(str, SeveralOf(str, 2), None),
    at=(str, None),
    rounds=(int, None),
    within=(float, None),
    progress=(Callable, None),
    stop=(threading.Event, None),
)
def diff(
    first: Given,
    second: Given | None = None,
    *,
    setting: str | tuple[str, str] | None = None,
    at: str | None = None,
    device: Device | str | None = None,
    rounds: int | None = None,
    within: float | None = None,
    progress: Tell | None = None,
    stop: threading.Event | None = None,
) -> DiffResult:
    """Say whether the second is slower than the first, by how much, how sure that is, and why.

    Two experiments, or two settings of one, run in turns in this process, in blocks ABBA, after
    the first has run against itself, which widens the intervals where it differs by more than
    noise. Of programs, and of experiments on several GPUs, each round is a process. Pairs of rounds
    whose clocks or throttling differ are left out. Of two saved runs of a GPU the intervals cover
    the rounds, not how far processes differ.

    Parameters
    ----------
    first, second
        Each an experiment (as :func:`gpuscope.run` takes it); a program's command line as a list,
        ``["python", "train.py"]``; or a run, the folder that ``gpuscope run --out`` wrote, a trace
        or its file, compared as :func:`gpuscope.compare` does. One capture of a program tells no
        noise, so two are never called different.
    setting
        Of an experiment or run with several; two names: one of either side. With two, and
        without ``second``: two settings of ``first``.
    at
        A revision of git: without ``second``, the program or experiment file as it was then is
        the first, and as it is now the second.
    device
        For experiments: an open device or a name for :func:`gpuscope.open_device`.
    rounds
        Pairs of rounds; at least 3.
    within
        Numbers that differ by less than this share are equal. Not given: 0.05, unless a difference
        is seen.
    progress
        Called with what is measured, and how many rounds are done of how many.
    stop
        Ends it early when set, as Ctrl-C does; what was measured counts.

    Raises
    ------
    InvalidArgument
        The two are not of one kind, or something is missing.
    MissingEvidence
        They have no number in common.
    GpuscopeError
        A program failed, or a revision or file is not there.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> gemm = {"kind": "gemm", "m": 2048, "n": 2048, "k": 2048, "stream": "s"}
    >>> one = {"name": "one", "streams": {"s": {}}, "workloads": {"w": gemm},
    ...        "partitions": {"a": 16},
    ...        "settings": {"all": {"partitions": {}},
    ...                     "carved": {"streams": {"s": {"partition": "a"}}}}}
    >>> gs.diff(one, setting=("all", "carved"), device=gpu).verdict
    'slower'
    """
    rounds = None if rounds is None else count("rounds", rounds, least=3)
    if within is not None and not 0 < within < 1:
        raise InvalidArgument(f"within is {given(within)}; a share in (0, 1) is needed")
    named = (setting, setting) if setting is None or isinstance(setting, str) else setting
    if second is not None and at is not None:
        raise InvalidArgument("at compares one program or experiment with what it was: give one")
    if second is None and at is None and named[0] == named[1]:
        raise InvalidArgument(
            "one side is given: give a second, two different settings of it, or a revision (at)"
        )
    with contextlib.ExitStack() as stack:
        latter = first if second is None else second
        right = _known("first" if second is None else "second", latter, named[1])
        left = _known("first", first, named[0]) if at is None else _at(at, first, right, stack)
        names = _names(named, at, left, right)
        match left, right:
            case (Trace(), Trace()):
                return of_traces(left, right, names, within)
            case (Command(), Command()) if device is None:
                usual, control = PROCESSES, 0
                before: Side = ProgramSide(names[0], left)
                after: Side = ProgramSide(names[1], right)
            case (Experiment(), Experiment()):
                for experiment, name in zip((left, right), named, strict=True):
                    sides.setting_of(experiment, name)
                target = sides.device_of(device)
                before, after = (
                    sides.side_of_experiment(*side, target)
                    for side in zip(names, (left, right), named, strict=True)
                )
                usual, control = PROCESSES, 0
                if not before.is_process:
                    usual = _settled((before, after), simulated=target.is_simulated)
                    control = 1 if target.is_simulated else math.ceil(CONTROL * (rounds or usual))
            case (Command(), Command()):
                raise InvalidArgument("device is for experiments: a program opens its own")
            case _:
                raise InvalidArgument(
                    f"{_SORTS[type(left)]} and {_SORTS[type(right)]} cannot be compared: "
                    "give two of one kind"
                )
        turns = in_turns(
            before,
            after,
            rounds or usual,
            control,
            progress or (lambda *_: None),
            stop or threading.Event(),
        )
    return judged(turns, names, within)


def _settled(both: Sequence[Side], *, simulated: bool) -> int:
    """Make rounds long enough, by one round of the first; returns how many pairs to measure.

    A round of a few ms would be mostly noise of the host, and of beginning to record.
    """
    began_s = time.monotonic()
    trace = both[0].measure(0).trace
    low, high = trace.metadata.windows_ns[0]
    if simulated:  # as many on every machine
        return max(_SIMULATED[0], min(_SIMULATED[1], _SIMULATED_ROWS // max(len(trace), 1)))
    took_s = time.monotonic() - began_s
    factor = min(_LONGEST, math.ceil(_ROUND_NS / max(high - low, 1)))
    if factor > 1:
        took_s += (factor - 1) * (high - low) / 1e9
        for side in both:
            if isinstance(side, sides.ExperimentSide):
                side.lengthen(factor)
    return max(ROUNDS[0], min(ROUNDS[1], int(_LONG_S / (2 * took_s))))


# -- what is compared ---------------------------------------------------------------------
_Known: TypeAlias = Experiment | Command | Trace
_SORTS: dict[type, str] = {
    Experiment: "an experiment",
    Command: "a program",
    Trace: "a trace",
}


def _known(which: str, target: Given, setting: str | None) -> _Known:
    """Return what a side is; of a saved run one setting."""
    side = target_of(which, target)
    if isinstance(side, Experiment | Command | Trace):
        return side
    return sides.saved_trace(which, side, setting)


def _names(
    named: tuple[str | None, str | None], at: str | None, one: _Known, now: _Known
) -> tuple[str, str]:
    """Return what to call the sides: by revision, or by their settings where these differ."""
    if at is not None:
        return at, "working tree"
    saved = [
        side.metadata.setting if isinstance(side, Trace) else name
        for side, name in zip((one, now), named, strict=True)
    ]
    first, second = (str(called or "") for called in saved)
    return (first, second) if first and second and first != second else ("A", "B")


def _at(revision: str, found: Given, now: _Known, held: contextlib.ExitStack) -> _Known:
    """Return what something was at a revision."""
    if isinstance(now, Command):
        folder = held.enter_context(checked_out(revision, now.folder))
        return replace(now, folder=folder)
    if isinstance(found, str | Path):
        path = Path(found)
        folder = held.enter_context(checked_out(revision, path.resolve().parent))
        kinds = [spec.kind for spec in as_experiment(path).workloads.values()]
        if any(str(kind).startswith("python:") for kind in kinds):
            raise InvalidArgument(
                "an experiment with python: workloads runs the code that is there now: compare "
                "programs, gpuscope diff --a 'python …' --at REVISION"
            )
        return as_experiment(folder / path.name)
    raise InvalidArgument("at takes a program, or the file of an experiment")
