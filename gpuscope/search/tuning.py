"""Tuning: forecast a grid of settings, and measure the promising ones in a race."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import nullcontext
from pathlib import Path

from gpuscope._checks import door, given
from gpuscope._columns import JOULES
from gpuscope.comparing.effects import FEWEST
from gpuscope.comparing.race import FEWEST_SMS, Goal
from gpuscope.device.device import Device
from gpuscope.errors import InvalidArgument
from gpuscope.experiments.execution import opened
from gpuscope.experiments.experiment import Description, Experiment, as_experiment
from gpuscope.experiments.runner import Viewer
from gpuscope.search.grid import Varied, checked
from gpuscope.search.scale_out import team_of
from gpuscope.search.searching import Search
from gpuscope.search.series import as_far_as_measured
from gpuscope.search.tune_result import TuneResult


@door(
    *("objective", "slo", "device", "confidence", "repeats", "gpu_profile", "path", "executor"),
    *("viewer", "stop"),
)
def tune(
    experiment: Description,
    vary: Varied,
    objective: str,
    slo: Mapping[str, str] | None = None,
    device: Device | str | None = None,
    *,
    confidence: float = 0.95,
    repeats: int = 7,
    gpu_profile: str | Path = "h200",
    path: str | Path | None = None,
    executor: Executor | str | None = None,
    viewer: Viewer | None = None,
    stop: threading.Event | None = None,
) -> TuneResult:
    """Find the best setting of a grid: forecast all, measure the promising ones in turns, stop.

    The simulated GPU forecasts every setting. The most promising are measured in turns, with the
    ends of the grid and those beside the best one, until all others are ruled out, by measurements
    or by forecasts whose error is known from measurements around them; until each was measured
    ``repeats`` times; or until a third of what measuring all that often takes is spent, or what
    three settings take. Of equals, which noise does not tell apart or which differ by less than
    1 %, the one with the fewest SMs for the workloads of ``slo`` (without it, of ``objective``) is
    taken. A measurement is one round, in which all of a workload's ``repeats`` are run.

    Parameters
    ----------
    experiment
        The experiment: an ``Experiment``, the path of a TOML or JSON file, or a dict. A setting
        that nothing of ``vary`` touches takes part, too, and is the reference.
    vary
        As in :func:`gpuscope.search.sweep`: ``{"partitions.decode": "all"}`` is every split that
        the GPU can make while another partition is ``"rest"``.
    objective
        ``"workload.column"`` of the comparison, as ``"decode.calls_per_s"``: a rate is to be as
        great as possible, a time as small. Or ``"fewest SMs"``: the smallest partitions of the
        workloads of ``slo`` that are surely enough; what has more SMs is not measured. Or
        ``"joules"``: the least ``joules_per_call`` of the workload of ``slo`` or, without it, of
        the one in the foreground. All that the GPU draws counts, whoever it is for. On a GPU each
        measurement then takes at least 2 s, at rest before it 0.3 s; on a simulated one the power
        is a model's (``docs/simulator.md``).
    slo
        ``"workload.column"`` → limit: ``{"small.latency_p99_us": "<= 100"}``.
    device
        An open device or a name for :func:`gpuscope.open_device`; ``"auto"`` if not given.
    confidence
        Of all comparisons of settings together, and of each limit by itself.
    repeats
        Measurements of one setting, at most; at least 3.
    gpu_profile
        Of the simulated GPU that forecasts for a real one: the part after ``sim:``.
    path
        A folder in which each measurement is saved. The same call goes on from there.
    executor
        Measures three turns at a time on several GPUs, as in :func:`gpuscope.search.sweep`: each
        turn on one, so that settings are compared on the same GPU. ``device`` is opened here, too.
    viewer, stop
        As in :func:`gpuscope.run`.

    Returns
    -------
    TuneResult
        After Ctrl-C or ``stop``, it holds what was measured until then. A setting that cannot
        run is out, and says why.

    Raises
    ------
    InvalidExperiment, InvalidArgument
        One of the points is invalid, or an argument.
    MissingEvidence
        A measurement does not give the column asked for, such as a p99 of fewer than 1,000 calls.
    GpuscopeError
        The folder holds something else, or it was stopped before anything was recorded.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> gemm = {"kind": "gemm", "m": 1024, "n": 1024, "k": 1024, "repeats": 20}
    >>> both = {
    ...     "name": "both", "partitions": {"a": 16, "b": "rest"},
    ...     "streams": {"s": {"partition": "a"}, "t": {"partition": "b"}},
    ...     "workloads": {"small": {**gemm, "stream": "s"},
    ...                   "load": {**gemm, "m": 4096, "n": 4096, "stream": "t",
    ...                            "background": True, "max_queued": 4}},
    ... }
    >>> limit = {"small.kernel_median_us": "<= 15"}
    >>> result = gs.tune(both, {"partitions.a": [8, 32, 64, 96]}, "load.tflop_per_s", limit, gpu)
    >>> result.best.label
    'a = 32'
    """
    if not 0 < confidence < 1:
        raise InvalidArgument(f"confidence is {given(confidence)}; a share in (0, 1) is needed")
    if repeats < FEWEST:
        raise InvalidArgument(f"repeats is {given(repeats)}; at least {FEWEST} are needed")
    described = as_experiment(experiment)
    names = described.workloads
    goal = Goal.parse(_spelled(objective, described, slo or {}), names)
    limits = tuple(Goal.parse(name, names, limit) for name, limit in (slo or {}).items())
    if goal.is_of_sms and not limits:
        raise InvalidArgument(
            f"objective is {FEWEST_SMS!r}, but there is no slo: say what they have to be enough "
            f"for, as {{'{next(iter(names))}.latency_p50_us': '<= 100'}}"
        )
    serving = described.driven | {goal.workload}  # which have no rate that a setting could cost
    serving |= {limit.workload for limit in limits} if goal.is_of_sms else set()
    not_serving = [key for key in names if names[key].launches and key not in serving]
    rates = tuple(Goal(key, "calls_per_s") for key in not_serving)
    target = opened(device)
    with nullcontext() if executor is None else team_of(executor, device, target.info) as team:
        search = Search(
            described,
            checked(vary, target.layout),
            target,
            goal,
            limits,
            costs=_costs(goal, limits, rates),
            confidence=confidence,
            repeats=repeats,
            gpu_profile=str(gpu_profile),
            path=path,
            team=team,
            viewer=viewer,
            stop=stop or threading.Event(),
        )
        return as_far_as_measured(search.measure, search.result)


def _spelled(objective: str, described: Experiment, slo: Mapping[str, str]) -> str:
    """Return ``"joules"`` as the column that it stands for; anything else as it is."""
    if objective != "joules":
        return objective
    foreground = [
        name
        for name, spec in described.workloads.items()
        if not spec.background and name not in described.driven
    ]
    workloads = {name.rpartition(".")[0] for name in slo} or {*foreground}
    if len(workloads) > 1:
        one_of = " or ".join(repr(f"{name}.{JOULES}") for name in sorted(workloads))
        raise InvalidArgument(
            f"objective is 'joules', but not of which of {len(workloads)} workloads: give {one_of}"
        )
    return f"{workloads.pop()}.{JOULES}"


def _costs(goal: Goal, limits: tuple[Goal, ...], rates: tuple[Goal, ...]) -> tuple[Goal, ...]:
    """Return the columns that an improvement is paid with."""
    if goal.is_of_sms:
        return (*limits, *rates)
    if goal.column == JOULES:
        return (*(limits or rates), Goal(goal.workload, "dynamic_joules_per_call"))
    return limits or rates
