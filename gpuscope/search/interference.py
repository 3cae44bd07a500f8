"""Measuring interference: each workload alone and each pair together, by turns."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Executor
from typing import TypeAlias

from pydantic import BaseModel

from gpuscope._checks import count, door, given
from gpuscope.analysis.interference_analysis import InterferenceResult, interference
from gpuscope.analysis.interference_forecast import forecast_cells
from gpuscope.device.device import Device
from gpuscope.device.sizes import Rounding, Sizes, named_sizes
from gpuscope.errors import GpuscopeError, InvalidArgument, InvalidExperiment, NothingRecorded
from gpuscope.experiments.experiment import Experiment
from gpuscope.experiments.refusals import listed
from gpuscope.experiments.runner import Viewer
from gpuscope.search.series import Plan, Series, as_far_as_measured, place_of
from gpuscope.timeline.labels import partition_label
from gpuscope.timeline.text import uncertainty
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run
from gpuscope.workloads.requests import RequestsSpec
from gpuscope.workloads.spec import WorkloadSpec

_Turn: TypeAlias = tuple[int, tuple[str, ...]]
"""The round, and who is measured: a workload, or one and that behind it."""
_Pair: TypeAlias = frozenset[str]

BACKGROUND_QUEUED = 4
"""Calls that the one in the background keeps queued at least, so that the GPU never waits."""


@door("device", "inside", "executor", "viewer", "stop")
def measure_interference(
    device: Device | str | None,
    partitions: Sizes | None,
    workloads: Mapping[str, WorkloadSpec | Mapping[str, object]],
    *,
    repeats: int = 50,
    rounds: int = 5,
    pairs: int | None = None,
    seed: int = 0,
    rounding: Rounding = "exact",
    inside: float = 1.0,
    executor: Executor | str | None = None,
    viewer: Viewer | None = None,
    stop: threading.Event | None = None,
) -> InterferenceResult:
    """Measure how much longer each workload's kernels take while each other one runs.

    interference(A | B) = (median duration of A's kernels that lie wholly inside busy(B) / their
    median duration alone on the same partition) − 1, over all rounds. busy(B) is the time in
    which kernels of B run. A runs as described; B runs in the background, back to back, with at
    least four calls queued. In each round every workload runs alone and then with each of the
    others, so that drift affects all of them equally.

    Parameters
    ----------
    device
        An open device or a name for :func:`gpuscope.open_device`.
    partitions
        Sizes as for ``device.carve``, the same in all runs; ``None`` uses the whole GPU.
    rounding
        As ``device.carve`` takes it.
    workloads
        Name → fields as in an experiment file, with ``partition`` = the name of one of the
        partitions. Each workload has its own stream there, even if two share a partition. Without
        ``partition``, ``stream`` names the partition, as in a spec taken from an experiment.
        ``background``, ``repeats`` and ``waits_on`` are ignored.
    repeats
        Calls of the measured workload in each round, alone and in each pair.
    rounds
        Number of rounds, over which the spread is taken.
    pairs
        Number of unordered pairs to measure, each in both orders; ``None`` measures all. ``seed``
        chooses them so that each workload is in about as many. At least as many as there are
        workloads are needed. Cells of the other pairs have a ``forecast`` instead of a value:
        sensitivity × pressure, with an 80 % interval.
    seed
        Random seed of operands and arrivals, and of which pairs are measured.
    inside
        Share of its duration, in (0, 1], for which a kernel of A must lie inside busy(B). 1 is
        the definition. Use a smaller value if A's kernels are longer than B's busy times without
        a gap.
    executor
        Measures on several GPUs, as in :func:`gpuscope.search.sweep`. A workload alone and its
        pairs are measured on one GPU in each round, so that only times of one GPU are compared.
    viewer
        Called repeatedly from this thread with the progress of the whole measurement.
    stop
        Set it to end early.

    Returns
    -------
    InterferenceResult
        ``result["a", "b"]`` is interference(a | b). ``result.cell("a", "b")`` has its spread, n
        and, if there is no value, the reason. After Ctrl-C or ``stop``, it holds what was
        measured until then.

    Raises
    ------
    InvalidExperiment
        A workload is invalid or names no partition, or there are fewer than two workloads.
    InvalidArgument
        ``pairs`` is less than the number of workloads, or more than there are pairs.
    InvalidPartition
        The GPU cannot grant the sizes.
    GpuscopeError
        The measurement was stopped before anything was recorded.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> small = {"kind": "gemm", "m": 512, "n": 512, "k": 512, "partition": "a"}
    >>> large = {"kind": "gemm", "m": 4096, "n": 4096, "k": 4096, "partition": "b"}
    >>> result = gs.search.measure_interference(
    ...     gpu, {"a": 16, "b": "rest"}, {"small": small, "large": large}, repeats=5, rounds=2)
    >>> 0 <= result["small", "large"] < 0.5
    True
    """
    if not 0 < inside <= 1:
        raise InvalidArgument(f"inside is {given(inside)}; a share in (0, 1] is needed")
    named = {} if partitions is None else named_sizes(partitions)
    sizes = {name: size.plain for name, size in named.items()}
    plan = _plan(sizes, workloads, repeats, rounds=rounds, seed=seed, rounding=rounding)
    stop = stop or threading.Event()
    chosen = chosen_pairs([*plan.workloads], pairs, seed)
    jobs: list[tuple[str, dict[_Turn, Plan[Trace]]]] = []
    for number, name in itertools.product(range(rounds), plan.workloads):
        partners = [other for other in plan.workloads if frozenset((name, other)) in chosen]
        planned: dict[_Turn, Plan[Trace]] = {}
        for names in ((name,), *((name, other) for other in partners)):
            label = " with ".join(names) if names[1:] else f"{name} alone"
            planned[number, names] = Plan(_part(plan, number, names), label, _trace, number)
        jobs.append((f"{name}, round {number}", planned))
    plans = [planned for _, plans in jobs for planned in plans.values()]
    traces: dict[_Turn, Trace] = {}

    def keep(turn: _Turn, made: Trace | GpuscopeError) -> None:
        if isinstance(made, GpuscopeError):
            raise made
        traces[turn] = made

    with place_of(executor, device) as runs_on:
        calls = sum(planned.calls for planned in plans)
        series = Series(runs_on, keep, calls, viewer, stop)

        def result() -> InterferenceResult:
            series.settle()
            recorded: dict[tuple[str, ...], list[Trace]] = {}
            for turn in sorted(traces):
                recorded.setdefault(turn[1], []).append(traces[turn])
            stopped = series.stopped or len(traces) < len(plans)
            return _result(plan, recorded, chosen, inside=inside, stopped=stopped)

        return as_far_as_measured(lambda: series.run(jobs), result)


def _trace(made: Run, _: str) -> Trace:
    return made["default"]


def _result(
    plan: Experiment,
    recorded: Mapping[tuple[str, ...], list[Trace]],
    chosen: Collection[_Pair],
    *,
    inside: float,
    stopped: bool,
) -> InterferenceResult:
    every = [trace for traces in recorded.values() for trace in traces]
    if not every:
        raise NothingRecorded("it was stopped before anything was recorded: measure again")
    whole = Trace.concat(every)
    ordered = [*itertools.permutations(plan.workloads, 2)]
    cells = [
        interference(recorded.get((a, b), ()), recorded.get((a,), ()), of=a, given=b, inside=inside)
        for a, b in ordered
    ]
    return InterferenceResult(
        cells=forecast_cells(cells, [pair for pair in ordered if frozenset(pair) not in chosen]),
        partitions={
            name: partition_label(whole, plan.streams[name].partition) for name in plan.workloads
        },
        stopped=stopped,
        provenance=f"{whole.provenance}; {uncertainty(whole)}",
        is_simulated=whole.is_simulated,
        incomplete=whole.metadata.incomplete,
    )


def chosen_pairs(names: Sequence[str], pairs: int | None, seed: int) -> list[_Pair]:
    """Return the pairs to measure: a ring of an odd number of workloads, then chords.

    Within a ring of an even number every second workload slows down only the ones between, so
    that nothing relates what both halves bear: there the last workload is tied to one of the ring
    instead.
    """
    every = [frozenset(pair) for pair in itertools.combinations(names, 2)]
    if pairs is None:
        return every
    needed = min(len(names), len(every))
    why = f"{len(names)} workloads have {len(every)} pairs, and forecasts take {needed} at least"
    pairs = count(
        "pairs",
        pairs,
        least=needed,
        most=len(every),
        error=lambda text: InvalidArgument(f"{text}: {why}"),
    )
    shuffled = random.Random(seed).sample(names, len(names))  # noqa: S311 - no secret
    ring = shuffled[: len(names) - (len(names) + 1) % 2]
    chosen = [frozenset(pair) for pair in zip(ring, ring[1:] + ring[:1], strict=True)]
    if len(ring) < len(names):
        chosen.append(frozenset((shuffled[-1], ring[0])))
    chosen = [pair for pair in chosen if len(pair) > 1]
    met = Counter(itertools.chain(*chosen))
    chords = [frozenset(pair) for pair in itertools.combinations(shuffled, 2)]
    chords = [pair for pair in chords if pair not in chosen]
    while len(chosen) < pairs:
        fewest = min(chords, key=lambda pair: sorted((met[name] for name in pair), reverse=True))
        chords.remove(fewest)
        chosen.append(fewest)
        met.update(fewest)
    return chosen


def _plan(
    sizes: Mapping[str, int | str],
    workloads: Mapping[str, WorkloadSpec | Mapping[str, object]],
    repeats: int,
    **fields: object,
) -> Experiment:
    """Return an experiment of all the workloads, each in the foreground on its own stream."""
    if not isinstance(workloads, Mapping) or len(workloads) < 2:
        raise InvalidExperiment(
            "workloads: interference takes at least two, as a dict of name → fields"
        )
    streams, specs = {}, {}
    for name, spec in workloads.items():
        stated = spec.model_dump() if isinstance(spec, BaseModel) else spec
        described = dict(stated) if isinstance(stated, Mapping) else {}
        kind = described.get("kind")
        if isinstance(kind, str) and kind == RequestsSpec.kind_name():
            raise InvalidExperiment(
                f"workloads.{name}: requests launch nothing themselves: leave {name!r} out, and "
                "give their prefill and decode"
            )
        home = described.pop("partition", described.get("stream")) if sizes else None
        if sizes and not (isinstance(home, str) and home in sizes):
            raise InvalidExperiment(
                f"workloads.{name}.partition: {given(home)} is no partition; allowed: "
                + listed(sizes)
            )
        described.pop("partition", None)
        streams[name] = {"partition": home}
        described |= {"stream": name, "background": False, "repeats": repeats, "waits_on": []}
        specs[name] = described
    carved = {"partitions": dict(sizes), "streams": streams, "workloads": specs}
    return Experiment(name="interference", alone_repeats=0, **carved, **fields)


def _part(plan: Experiment, number: int, names: tuple[str, ...]) -> Experiment:
    """Return the experiment of one turn: the first name alone, or with the second behind it."""
    workloads = {name: plan.workloads[name] for name in names}
    for name in names[1:]:
        queued = max(BACKGROUND_QUEUED, workloads[name].max_queued)
        changes = {"background": True, "arrival": "back_to_back", "rate_hz": None}
        workloads[name] = workloads[name].model_copy(update={**changes, "max_queued": queued})
    update = {
        "name": " | ".join(names),
        "seed": plan.seed + number,
        "rounds": 1,
        "workloads": workloads,
        "streams": {name: plan.streams[name] for name in names},
    }
    return plan.model_copy(update=update)
