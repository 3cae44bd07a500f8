"""How far a prediction is from what was measured: of each workload and of the makespan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from gpuscope._checks import MappingOf, door
from gpuscope._types import Array
from gpuscope.analysis.intervals import Groups, by_workload, kernels, makespan_ns
from gpuscope.analysis.latency_analysis import launch_calls
from gpuscope.analysis.result import Result, Row, row_of, sentences
from gpuscope.errors import InvalidArgument, MissingEvidence, NotFound
from gpuscope.trace.columns import combined, is_open, rows_of
from gpuscope.trace.joins import DEEPEST, match
from gpuscope.trace.model import Trace
from gpuscope.trace.run import incomplete

MAKESPAN = "makespan"
"""What a row is about that is about no workload."""

_FREE = ("name", "alone_repeats", "detail", "hazards", "colors")
"""Fields of an experiment that may differ: they change nothing that is compared."""


@dataclass(frozen=True)
class PredictedTime:
    """One time of one setting, predicted and measured, ns.

    Attributes
    ----------
    setting
        Empty where single traces were given.
    of
        A workload: the time of a call's kernels; or ``"makespan"``: first kernel start to last
        kernel end, summed over the recording windows.
    predicted_n, measured_n
        How many calls; 1 for the makespan.
    predicted_ns, measured_ns
        Medians.
    predicted_range_ns, measured_range_ns
        The 10th and the 90th percentile.
    """

    setting: Annotated[str, "setting"]
    of: Annotated[str, "of"]
    predicted_n: Annotated[int, "n predicted"]
    measured_n: Annotated[int, "n measured"]
    predicted_ns: Annotated[float, "predicted (µs)"]
    measured_ns: Annotated[float, "measured (µs)"]
    predicted_range_ns: tuple[float, float]
    measured_range_ns: tuple[float, float]

    @property
    def error(self) -> float:
        """Predicted over measured, minus 1."""
        return self.predicted_ns / self.measured_ns - 1


@dataclass(frozen=True)
class PredictionResult(Result):
    """A prediction beside a measurement.

    Attributes
    ----------
    times
        For each setting its workloads, then its makespan.
    left_out
        What is not compared, and why.
    predicted, measured
        Provenance of each.
    """

    times: tuple[PredictedTime, ...]
    left_out: tuple[str, ...]
    predicted: str
    measured: str

    def __getitem__(self, key: tuple[str, str]) -> PredictedTime:
        for time in self.times:
            if (time.setting, time.of) == key:
                return time
        raise NotFound(f"no {key}; there are {[(time.setting, time.of) for time in self.times]}")

    @property
    def median_error(self) -> float:
        """The median over workloads and settings of the error without its sign."""
        return float(np.median([abs(time.error) for time in self.times if time.of != MAKESPAN]))

    def _rows(self) -> list[Row]:
        """One row per setting and workload, and one for each setting's makespan."""
        return [{**row_of(time), "error": time.error} for time in self.times]

    def readable(self) -> tuple[list[Row], str]:
        """Return the rows with the error as per cent."""
        rows, left_out = super().readable()
        for row in rows:
            row["error (%)"] = 100 * row.pop("error")
        return rows, left_out

    @property
    def definition(self) -> str:
        """What times and errors are, what is left out, and the provenance of both."""
        return sentences(
            "kernel time of a call, median; error: predicted / measured − 1, median without sign "
            f"{self.median_error:.1%}",
            f"Not compared: {'; '.join(self.left_out)}" if self.left_out else "",
            f"Predicted: {self.predicted}",
            f"Measured: {self.measured}",
        )


@door(predicted=(Trace, MappingOf(Trace)), measured=(Trace, MappingOf(Trace)))
def prediction(
    predicted: Mapping[str, Trace] | Trace, measured: Mapping[str, Trace] | Trace
) -> PredictionResult:
    """Compare a prediction with a measurement: errors of kernel times and makespans.

    Parameters
    ----------
    predicted, measured
        Two runs of one experiment, or two traces, matched by setting and workload. The first is
        simulated.

    Raises
    ------
    MissingEvidence
        The experiments differ, have no setting or no workload in common, or a trace holds no
        finished kernel.
    ValueError
        One argument is a run and the other a trace, or the first one is not simulated.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2}},
    ... }
    >>> gs.analysis.prediction(gs.experiments.predict(one), gs.run(one, gpu)).median_error
    0.0
    """
    if isinstance(predicted, Trace) != isinstance(measured, Trace):
        raise InvalidArgument(
            "give two runs or two traces, not one of each: run[setting] is a trace"
        )
    first = {"": predicted} if isinstance(predicted, Trace) else dict(predicted)
    other = {"": measured} if isinstance(measured, Trace) else dict(measured)
    if not all(trace.is_simulated for trace in first.values()):
        raise InvalidArgument(
            "the first is no prediction: it was measured. Give predict()'s run first, then the "
            "measured one"
        )
    common = [setting for setting in first if setting in other]
    if not common:
        raise MissingEvidence(
            f"no setting in common: predicted are {list(first)}, measured are {list(other)}. "
            "Predict the experiment that was measured"
        )
    left_out = [f"setting {name!r} was not measured" for name in first if name not in other]
    left_out += [f"setting {name!r} was not predicted" for name in other if name not in first]
    times: list[PredictedTime] = []
    for setting in common:
        pair = first[setting], other[setting]
        _check_same(setting, *pair)
        runs = {"predicted": predicted, "measured": measured}
        cut = [name for name, run in runs.items() if getattr(run, "stopped", False)]
        for trace in pair:
            kernels(trace)  # raises where there is none
        compared, more = _times(setting, *pair, with_makespan=not cut)
        times += compared
        left_out += more
        left_out += [f"the makespan of {setting!r}: the {name} run was stopped" for name in cut]
    if not any(time.of != MAKESPAN for time in times):
        raise MissingEvidence(f"no workload in common: {'; '.join(left_out)}")
    provenances = [
        "; ".join(dict.fromkeys(traces[setting].provenance for setting in common))
        for traces in (first, other)
    ]
    simulated = any(other[setting].is_simulated for setting in common)
    missing = incomplete(_labelled(first, other))
    return PredictionResult(
        tuple(times), tuple(left_out), *provenances, incomplete=missing, is_simulated=simulated
    )


def _labelled(predicted: Mapping[str, Trace], measured: Mapping[str, Trace]) -> dict[str, Trace]:
    """Label → trace, for people."""
    return {
        f"{name}, {what}" if name else what: trace
        for what, traces in (("predicted", predicted), ("measured", measured))
        for name, trace in traces.items()
    }


def _check_same(setting: str, predicted: Trace, measured: Trace) -> None:
    """Refuse to compare different experiments."""
    plans = predicted.metadata.experiment, measured.metadata.experiment
    if plans[0] is None or plans[1] is None:
        return
    names = predicted.metadata.setting, measured.metadata.setting
    if names[0] != names[1]:
        raise MissingEvidence(
            f"the prediction is of setting {names[0]!r}, the measurement of {names[1]!r}: compare "
            "the same setting of both"
        )
    fields = [_flat(plan) for plan in plans]
    differ = [
        f"{path}: {fields[0].get(path)!r} was predicted, {fields[1].get(path)!r} measured"
        for path in dict.fromkeys([*fields[0], *fields[1]])
        if fields[0].get(path) != fields[1].get(path)
    ]
    if differ:
        more = f", and {len(differ) - 3} more" if len(differ) > 3 else ""
        raise MissingEvidence(
            f"different experiments{f' in setting {setting!r}' if setting else ''}: "
            f"{'; '.join(differ[:3])}{more}. Predict the experiment that was measured: "
            "predict(measured.experiment)"
        )


def _flat(plan: object, path: str = "") -> dict[str, object]:
    """Return dotted path → value of every field that matters."""
    if not isinstance(plan, Mapping):
        return {path: list(plan) if isinstance(plan, tuple) else plan}
    fields: dict[str, object] = {}
    for name, value in plan.items():
        if path or name not in _FREE:
            fields.update(_flat(value, f"{path}.{name}" if path else str(name)))
    return fields


def _times(
    setting: str, predicted: Trace, measured: Trace, *, with_makespan: bool
) -> tuple[list[PredictedTime], list[str]]:
    calls, other_calls = _call_times(predicted), _call_times(measured)
    where = f" in {setting!r}" if setting else ""
    left_out = [f"{name!r}{where} was not measured" for name in calls if name not in other_calls]
    left_out += [f"{name!r}{where} was not predicted" for name in other_calls if name not in calls]
    both = [name for name in calls if name in other_calls]
    times = [_compared(setting, name, calls[name], other_calls[name]) for name in both]
    if with_makespan and not left_out:
        times.append(_compared(setting, MAKESPAN, _makespan(predicted), _makespan(measured)))
    elif left_out:
        left_out.append(f"the makespan{where}: not of the same work")
    return times, left_out


def _makespan(trace: Trace) -> Array:
    finished = kernels(trace)
    return np.array([makespan_ns(finished, finished.array("start_ns"), finished.array("end_ns"))])


def _call_times(trace: Trace) -> dict[str, Array]:
    """Return for each workload the kernel times of its calls: one may launch several kernels.

    A call is the handle's that launched a kernel, else the launch, which a graph's kernels share.
    One of which a kernel has not ended is left out.
    """
    rows = rows_of(trace, "kernel")
    workloads = by_workload(trace.where(kind="kernel"))
    first, call = combined(workloads.code, _calls(trace)[rows])
    calls = Groups(call, list(range(len(first))))
    unfinished = is_open(trace)[rows]
    took = trace.array("end_ns", fill=0)[rows] - trace.array("start_ns")[rows]
    total = calls.sums(np.where(unfinished, 0, took))
    whole = calls.sums(unfinished.astype(np.int64)) == 0
    of = Groups.of(workloads.code[first][whole], workloads.labels)
    times = total[whole]
    return {label: times[of.rows(index)] for index, label in enumerate(of.labels)}


def _calls(trace: Trace) -> Array:
    """Row → number of what called for it: a handle, else a launch, else the row alone."""
    size = len(trace)
    ours, theirs = (trace.array(name, fill=-1) for name in ("external_correlation", "correlation"))
    number = np.where(ours >= 0, 2 * ours, 2 * theirs + 1)
    launches = rows_of(trace, "api")
    same = match(number, number[launches])
    call = launch_calls(trace)
    joined = (call < 0) & (number >= 0) & (same >= 0)
    call[joined] = launches[same[joined]]
    # Kernels of one launch share its number, also where the launch has no row.
    shared = size + np.unique(number, return_inverse=True)[1]
    launch = np.where(call >= 0, call, np.where(number >= 0, shared, np.arange(size)))
    is_handle = np.zeros(size, bool)
    is_handle[rows_of(trace, "handle")] = True
    parent = match(trace.array("parent", fill=-1), trace.array("id"))
    at = np.where(call >= 0, call, np.arange(size))
    for _ in range(DEEPEST):
        above = np.where(is_handle[at], -1, parent[at])
        if not (above >= 0).any():
            break
        at = np.where(above >= 0, above, at)
    return np.asarray(np.where(is_handle[at], at, launch))


def _compared(setting: str, of: str, predicted: Array, measured: Array) -> PredictedTime:
    (low, middle, high), (least, median, most) = (
        (float(value) for value in np.quantile(times, [0.1, 0.5, 0.9]))
        for times in (predicted, measured)
    )
    counts, medians = (len(predicted), len(measured)), (middle, max(median, 1.0))
    return PredictedTime(setting, of, *counts, *medians, (low, high), (least, most))
