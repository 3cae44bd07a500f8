"""Measuring how long GEMMs take: each alone, on each SM count, not told of it and told."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import numpy as np

from gpuscope._types import Untyped
from gpuscope.device.api import NativeArray
from gpuscope.device.device import Device
from gpuscope.device.stream import Stream
from gpuscope.experiments.profiling import profile
from gpuscope.search.scale_out import Team
from gpuscope.simulator.calibration.design import Shape, streams_by_count
from gpuscope.simulator.calibration.host import Source, complete
from gpuscope.simulator.calibration.kernels import Launched, MeasuredShape
from gpuscope.trace.model import Trace
from gpuscope.workloads.gemm import Gemm, SmCountTarget

AT_ONCE = 8
"""Shapes of one recording; after each the time is looked at."""

_LONGEST_NS = 60_000_000
"""A call that would take longer is left out."""

_LONG_NS = 20_000_000
"""Of a call up to this long the repeats take, of a longer one there is one."""

_REPEATS = 5
_NAME_CHARS = 120


Operands = tuple[NativeArray, NativeArray]


@dataclass
class Gemms:
    """Measured GEMMs.

    Attributes
    ----------
    rows
        Each shape and dtype, the library not told how many SMs there are.
    told
        The same on fewer SMs than all, told what a partition's streams tell; ``told`` in a row
        is SM count → what that was, and ``ran`` the kernels.
    skipped
        Calls left out because one would have taken too long.
    """

    rows: list[MeasuredShape] = field(default_factory=list)
    told: list[MeasuredShape] = field(default_factory=list)
    skipped: int = 0


def measure(
    device: Device,
    shapes: Sequence[Shape],
    dtypes: Sequence[str],
    source: Source,
    *,
    until_ns: int,
    team: Team | None = None,
    step: Callable[[int], None] = lambda _done: None,
) -> Gemms:
    """Measure shapes by and by, until the device's clock shows ``until_ns``.

    Parameters
    ----------
    team
        Measures in place of the device, for the time that is left.
    step
        Told after some shapes how many are done.
    """
    if team is not None:
        left_s = (until_ns - device.now_ns()) / 1e9
        return _measure_on(team, shapes, dtypes, source, budget_s=left_s, step=step)
    gemms = Gemms()
    largest = max(max(m * n, m * k, k * n) for m, n, k in shapes)
    operands = {
        dtype: (device.random(largest, dtype, seed=0), device.random(largest, dtype, seed=1))
        for dtype in dtypes
    }
    flop_per_ns: dict[str, float] = {}
    longest_ns = 0
    for first in range(0, len(shapes), AT_ONCE):
        start_ns = device.now_ns()
        if start_ns + longest_ns > until_ns:
            break
        cases = [
            _Case(shape, dtype) for shape in shapes[first : first + AT_ONCE] for dtype in dtypes
        ]
        _measure_some(device, cases, operands, flop_per_ns, source)
        for case in cases:
            gemms.rows += case.row(case.us)
            gemms.told += [
                {**row, "told": case.targets, "ran": case.ran} for row in case.row(case.told_us)
            ]
            gemms.skipped += case.skipped
        longest_ns = max(longest_ns, device.now_ns() - start_ns)
        step(min(first + AT_ONCE, len(shapes)))
    return gemms


def _measure_on(
    team: Team,
    shapes: Sequence[Shape],
    dtypes: Sequence[str],
    source: Source,
    *,
    budget_s: float,
    step: Callable[[int], None],
) -> Gemms:
    """Measure shapes on several GPUs of one model, until so much time has passed."""
    part_of = partial(measure, dtypes=dtypes, source=source, until_ns=sys.maxsize)
    firsts = range(0, len(shapes), AT_ONCE)
    jobs = {at: partial(part_of, shapes=shapes[at : at + AT_ONCE]) for at in firsts}
    parts: dict[int, Gemms] = {}
    stop, until_s = threading.Event(), time.monotonic() + budget_s
    for at, part in team.results(jobs, stop):
        parts[at] = part
        step(min(AT_ONCE * len(parts), len(shapes)))
        if time.monotonic() > until_s:
            stop.set()
    gemms = Gemms()
    for at in sorted(parts):
        gemms.rows += parts[at].rows
        gemms.told += parts[at].told
        gemms.skipped += parts[at].skipped
    return gemms


@dataclass
class _Case:
    """One shape and dtype, as far as it was measured."""

    shape: Shape
    dtype: str
    whole_ns: float = 0
    us: dict[str, float] = field(default_factory=dict)
    told_us: dict[str, float] = field(default_factory=dict)
    targets: dict[str, int] = field(default_factory=dict)
    kernels: list[Launched] = field(default_factory=list)
    ran: dict[str, list[Launched]] = field(default_factory=dict)
    skipped: int = 0

    def row(self, us: dict[str, float]) -> list[MeasuredShape]:
        if not us or not self.kernels:  # what ran is read on the whole GPU
            return []
        shape = list(self.shape)
        return [{"dtype": self.dtype, "shape": shape, "kernels": self.kernels, "us": us}]


def _measure_some(
    device: Device,
    cases: Sequence[_Case],
    operands: dict[str, Operands],
    flop_per_ns: dict[str, float],
    source: Source,
) -> None:
    """Measure cases on every SM count, in one recording; begins with the whole GPU."""
    ran: list[tuple[_Case, int, bool]] = []
    with profile(device, source=source) as recording:
        for sms, stream in streams_by_count(device):
            whole = sms == device.sm_count
            for case in cases:
                flop_count = 2 * math.prod(case.shape)
                expected_ns = case.whole_ns * device.sm_count / sms
                if whole:
                    expected_ns = flop_count / flop_per_ns.get(case.dtype, math.inf)
                if expected_ns > _LONGEST_NS or not (whole or case.whole_ns):
                    case.skipped += 1
                    continue
                for targeted in (False,) if whole else (False, True):
                    arrays, name = operands[case.dtype], f"{len(ran)}"
                    once_ns = _run(case, arrays, stream, name, expected_ns, tuned=targeted)
                    ran.append((case, sms, targeted))
                if whole:
                    case.whole_ns = once_ns
                    rate = flop_count / once_ns
                    flop_per_ns[case.dtype] = max(rate, flop_per_ns.get(case.dtype, 0))
                else:
                    case.targets[str(sms)] = stream.sm_count_target
    for number, calls in _calls(complete(recording.trace)).items():
        case, sms, targeted = ran[number]
        if len(calls) < 2:  # of some kernels it is not known which call launched them
            continue
        us = float(np.median([sum(ns for ns, _ in call) for call in calls[1:]])) / 1e3
        (case.told_us if targeted else case.us)[str(sms)] = round(us, 3)
        ran_kernels = [kernel for _, kernel in calls[-1]]
        if targeted:
            case.ran[str(sms)] = ran_kernels
        elif sms == device.sm_count:
            case.kernels = ran_kernels


def _run(
    case: _Case, operands: Operands, stream: Stream, name: str, expected_ns: float, *, tuned: bool
) -> int:
    """Call once to load what is needed, once to time it on the host, then the repeats."""
    device, (m, n, k) = cast("Device", stream.device), case.shape
    target: SmCountTarget = "auto" if tuned else None
    flat_a: Untyped
    flat_b: Untyped
    flat_a, flat_b, *_ = operands
    a, b = flat_a[: m * k].reshape((m, k)), flat_b[: k * n].reshape((k, n))
    out = device.empty((m, n), case.dtype)
    with Gemm(device, m=m, n=n, k=k, dtype=case.dtype, name=name, sm_count_target=target) as handle:
        handle.execute(a, b, out, stream=stream)
        handle.wait()
        start_ns = device.now_ns()
        handle.execute(a, b, out, stream=stream)
        handle.wait()
        took_ns = device.now_ns() - start_ns
        if max(took_ns, expected_ns) <= _LONG_NS:
            for _ in range(min(_REPEATS, int(_LONG_NS // max(1, took_ns)) + 1) - 1):
                handle.execute(a, b, out, stream=stream)
            handle.wait()
    return max(1, took_ns)


def _calls(trace: Trace) -> dict[int, list[list[tuple[int, Launched]]]]:
    """Return a recording's calls by the number that their handle was named by.

    Each call is its kernels, in order: ns, and name, blocks and threads a block.
    """
    kernels = trace.where(kind="kernel")
    ours, theirs = (
        kernels.array(name, fill=-1) for name in ("external_correlation", "correlation")
    )
    rows: list[tuple[int, int, int, int, Launched]] = []
    for category, call, start_ns, end_ns, name, config in zip(
        kernels.texts("category"),
        np.where(ours >= 0, ours, theirs).tolist(),
        kernels.array("start_ns").tolist(),
        kernels.array("end_ns").tolist(),
        kernels.texts("name"),
        kernels.texts("launch_config"),
        strict=True,
    ):
        facts = json.loads(config or '{"grid": [0], "block": [0]}')
        ran = str(name)[:_NAME_CHARS], math.prod(facts["grid"]), math.prod(facts["block"])
        if category is not None:
            rows.append((int(category), call, start_ns, end_ns - start_ns, ran))
    calls: dict[int, dict[int, list[tuple[int, Launched]]]] = {}
    for number, call, _, took_ns, launched in sorted(rows):
        calls.setdefault(number, {}).setdefault(call, []).append((took_ns, launched))
    return {number: [*of_handle.values()] for number, of_handle in calls.items()}
