"""The settings of an experiment as a table, those of a sweep, and what workloads reach alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuscope._checks import MappingOf, SeveralOf, door, given
from gpuscope._columns import COMPARED, readable
from gpuscope._text import clean
from gpuscope.analysis.busy_analysis import overlap
from gpuscope.analysis.certainty import certainty, certainty_of, ends_of
from gpuscope.analysis.clocks_analysis import of_recording
from gpuscope.analysis.counters_analysis import partition_use
from gpuscope.analysis.intervals import by_workload, ended_kernels
from gpuscope.analysis.latency_analysis import durations_ns, latency
from gpuscope.analysis.rates import Done, done
from gpuscope.analysis.requests_analysis import requests
from gpuscope.analysis.result import Result, Row, sentences
from gpuscope.errors import InvalidArgument, MissingEvidence, NotFound
from gpuscope.trace.columns import codes, once
from gpuscope.trace.facts import SoloFacts
from gpuscope.trace.metadata import Description
from gpuscope.trace.model import Trace

_Told = TypeVar("_Told", bound=Mapping[str, Any])

_TYPES = {"text": pa.string(), "count": pa.int64(), "number": pa.float64()}
COLUMNS = {key: _TYPES[column.kind] for key, column in COMPARED.items()}
"""Column → type of a comparison; :data:`gpuscope._columns.COMPARED` says what each means."""
HIDDEN = {
    "number": pa.int64(),
    "provenance": pa.string(),
    "unit": pa.string(),
    "samples": pa.map_(pa.string(), pa.list_(pa.float64())),
}
"""Column → type of what the points of a sweep have besides, and its table does not show.

``samples``: column of the workload → what each round, or part of its calls (``unit``), gave, as a
share of the row's number."""


def of_slowest_rank(rows: Sequence[_Told]) -> list[_Told]:
    """Return of each setting and workload the row of the rank with the longest latency.

    Where no latency tells, that of the rank that keeps the least of its rate alone. ``rows`` are
    those of a comparison, or of one point of a sweep.
    """
    slowest: dict[tuple[str, str, str | None], _Told] = {}
    for row in rows:
        key = (row["setting"], row["workload"], row["partition"])
        if key not in slowest or _slowness(row) > _slowness(slowest[key]):
            slowest[key] = row
    return [*slowest.values()]


def _slowness(row: Mapping[str, Any]) -> tuple[float, float]:
    latency_us = row["latency_p99_us"] or row["latency_p50_us"] or 0.0
    return latency_us, -(row["share_of_alone_on_whole_gpu"] or 0.0)


@door(traces=MappingOf(Trace))
def settings_table(traces: Mapping[str, Trace]) -> pa.Table:
    """Return one row per setting and workload; see :data:`COLUMNS`.

    Parameters
    ----------
    traces
        Setting → trace, such as a run. A trace without a finished kernel or call has no rows.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2}},
    ... }
    >>> table = gs.analysis.settings_table(gs.run(one, gpu))
    >>> table.select(["setting", "workload", "kernels"]).to_pylist()
    [{'setting': 'default', 'workload': 'w', 'kernels': 2}]
    """
    rows = [
        {"setting": setting, **row} for setting, trace in traces.items() for row in _rows_of(trace)
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema(list(COLUMNS.items())))


@once
def _rows_of(trace: Trace) -> list[Row]:
    """Return a row per workload, without its setting."""
    rows: list[Row] = []
    kernels, did = ended_kernels(trace), done(trace, by_workload)
    if not did:
        return []
    together = overlap(trace, by="workload") if len(kernels) else None
    pairs = together.pairs if together else ()
    most = max(pairs, key=attrgetter("fraction"), default=None)
    try:
        seen = {handle.name: handle for handle in latency(trace).handles}
    except MissingEvidence:
        seen = {}
    calls, took_ns, _ = durations_ns(trace)
    starts, ends = kernels.array("start_ns"), kernels.array("end_ns")
    partition, partitions = codes(kernels.spans.column("partition"))
    groups = by_workload(kernels)
    number = {label: index for index, label in enumerate(groups.labels)}
    medians = groups.quantiles(ends - starts, (0.5,))[:, 0].tolist()
    planned = (trace.metadata.experiment or {}).get("workloads", {})
    driven = driven_by_requests(planned)
    for workload in dict.fromkeys([*(name for name in planned if name in did), *number, *did]):
        index = number.get(workload)
        alone = trace.metadata.solo.get(workload, SoloFacts())
        plan = planned.get(workload, {})
        # A background's latency is its queue's length, and arrivals at given times set
        # their own rate: neither says anything about the GPU.
        times = None if plan.get("background") else seen.get(workload)
        paced = plan.get("rate_hz") is not None or workload in driven
        rates = did[workload]
        home = (
            home_of(trace, workload)
            if index is None
            else partitions[partition[groups.rows(index)[0]]]
        )
        rows.append(
            {
                "workload": workload,
                "partition": home,
                "sms": trace.metadata.partition(home).sm_count,
                "kernels": 0 if index is None else int(groups.counts[index]),
                "kernel_median_us": None if index is None else medians[index] / 1e3,
                "latency_n": times.n if times else None,
                "latency_p50_us": times.p50_ns / 1e3 if times else None,
                "latency_p90_us": times.p90_ns / 1e3 if times else None,
                "latency_p99_us": times.p99_ns / 1e3 if times and times.p99_ns else None,
                "calls_per_s": rates.calls_per_s,
                "tflop_per_s": None if paced else rates.tflop_per_s,
                "gb_per_s": None if paced else rates.gb_per_s,
                "share_of_alone_on_whole_gpu": None if paced else _share(rates, alone),
                **_energy(trace, rates.calls),
                "overlap": most.fraction if most else None,
                "overlap_tight": most.tight_fraction if most else None,
                "gain": together.gain if together else None,
                **_used(trace, home),
                **of_recording(trace),
            }
        )
        ended = ends_of(trace, workload) if index is None else ends[groups.rows(index)]
        took = took_ns[calls.rows_of(workload)]
        rows[-1] |= certainty(trace, rows[-1], took, ended)
    rows += _requests(trace)
    return rows


def _used(trace: Trace, partition: str | None) -> Row:
    """Return what a partition used by sampled counters; nothing where none were sampled."""
    try:
        partitions = partition_use(trace).partitions
    except MissingEvidence:
        return {}
    use = next((use for use in partitions if use.partition == partition), None)
    if use is None:
        return {}
    return {
        "busy_sms": use.busy,
        "busy_sms_p95": use.busy_p95,
        "tensor_share": use.tensor,
        "dram_gb_per_s": use.rate,
        "dram_share": use.of_peak,
    }


def home_of(trace: Trace, workload: str) -> str | None:
    """Return the partition of the stream that a workload's first call went to, if any did."""
    calls = trace.where(kind="handle")
    calls = calls.where(by_workload(calls).of_label(workload))
    home: str | None = calls.spans.column("partition")[0].as_py() if len(calls) else None
    return home


def has_own_sms(trace: Trace, workload: str) -> bool:
    """Whether kernels of a workload ran, all in partitions, and no others on the SMs of these."""
    kernels = trace.where(kind="kernel")
    partition, names = codes(kernels.spans.column("partition"))
    is_own = np.zeros(len(kernels), bool)
    is_own[by_workload(kernels).of_label(workload)] = True
    homes, other_homes = (
        {names[code] for code in np.unique(partition[rows]).tolist()} for rows in (is_own, ~is_own)
    )
    if not homes or None in homes | other_homes:
        return False
    return not any(_meet(trace, str(home), str(other)) for home in homes for other in other_homes)


def _meet(trace: Trace, partition: str, other: str) -> bool:
    """Whether two partitions have SMs in common, as far as the trace knows."""
    first, second = trace.metadata.partition(partition), trace.metadata.partition(other)
    is_one_device = first.device_key == second.device_key
    return (
        partition == other
        or other in first.shares_with
        or partition in second.shares_with
        or (is_one_device and not {*first.sm_ids}.isdisjoint(second.sm_ids))
    )


def _share(now: Done, alone: SoloFacts) -> float | None:
    """Return a rate over that alone; older traces have it of operations only."""
    if now.calls_per_s and alone.whole_gpu_calls_per_s:
        return now.calls_per_s / alone.whole_gpu_calls_per_s
    if now.tflop_per_s and alone.whole_gpu_tflop_per_s:
        return now.tflop_per_s / alone.whole_gpu_tflop_per_s
    return None


def _energy(trace: Trace, calls: int) -> Row:
    """Return the GPU's energy over so many calls, and its idle power, if they were measured."""
    rounds = trace.metadata.energy
    if not rounds or not calls:
        return {}
    took_ns = [energy.duration_ns for energy in rounds]
    return {
        "joules_per_call": sum(energy.joules for energy in rounds) / calls,
        "dynamic_joules_per_call": sum(energy.dynamic_joules for energy in rounds) / calls,
        "idle_w": float(np.average([energy.idle_w for energy in rounds], weights=took_ns)),
    }


def driven_by_requests(workloads: Mapping[str, Description]) -> set[str]:
    """Return the names of described workloads that run only as requests need them."""
    return {
        str(plan.get(part))
        for plan in workloads.values()
        if plan.get("kind") == "requests"
        for part in ("prefill", "decode")
    }


def background_of(experiment: Description) -> list[str]:
    """Return the workloads of an experiment that run in the background."""
    described = experiment.get("workloads") or {}
    return [name for name, facts in described.items() if facts.get("background")]


def _requests(trace: Trace) -> list[Row]:
    """Return a row per workload of requests; what it does not have is null."""
    try:
        served = requests(trace).workloads
    except MissingEvidence:
        return []
    planned = (trace.metadata.experiment or {}).get("workloads", {})
    return [
        {
            "workload": workload.workload,
            "requests_n": workload.n,
            **{
                f"{what}_{mark}_ms": None if took_ns is None else took_ns / 1e6
                for what in ("ttft", "tbt")
                for mark in ("p50", "p90", "p99")
                for took_ns in [getattr(workload, f"{what}_{mark}_ns")]
            },
            "tbt_n": workload.tbt_n,
            "requests_per_s": workload.requests_per_s,
            "goodput_per_s": workload.goodput_per_s,
            **_energy(trace, workload.n),
            **certainty_of(workload),
            "sms": trace.metadata.partition(home_of(trace, decode)).sm_count,
            **of_recording(trace),
        }
        for workload in served
        for decode in [str(planned.get(workload.workload, {}).get("decode"))]
    ]


@dataclass(frozen=True)
class Speed:
    """How fast a GPU ran the reference.

    Attributes
    ----------
    calls_per_s
        The median of its measurements.
    relative
        That over the same of the first GPU.
    drift
        The spread of its measurements over their median; 0 where there is but one.
    n
        Measurements.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gs.analysis.Speed("GPU-1", 5_000.0, relative=1.0, drift=0.01, n=2).relative
    1.0
    """

    gpu: str
    calls_per_s: float
    relative: float
    drift: float
    n: int

    @classmethod
    def of(cls, measured: Mapping[str, Sequence[float]]) -> tuple[Speed, ...]:
        """Return the speeds of GPUs, by their UUIDs, from the calls a second that each made."""
        medians = {gpu: float(np.median(measured[gpu])) for gpu in sorted(measured)}
        first = next(iter(medians.values()), 1.0)
        return tuple(
            cls(gpu, rate, rate / first, float(np.ptp(measured[gpu])) / rate, len(measured[gpu]))
            for gpu, rate in medians.items()
        )


@dataclass(frozen=True)
class SweepResult(Result):
    """An experiment run at every point of a grid of parameters.

    Attributes
    ----------
    points
        All rows as they were measured, with the columns of :data:`HIDDEN`.
    experiment
        The description that was varied.
    parameters
        Path → values.
    stopped
        Whether it ended before every point was finished.
    unmeasured, why_unmeasured
        How many points were not finished, and what the first of them says, if anything: its run was
        stopped, or its worker lost.
    refused, why_refused
        How many points this GPU cannot run, as they ask for a split that it does not grant, and
        what the first of them says.
    speeds
        Of a reference on each GPU. With them ``table`` has times × and rates ÷ the GPU's relative
        speed, which stands in its column ``speed``: as if the first GPU had run all points. Rates
        of workloads whose calls arrive at given times or as requests need them stay as they are.
    """

    points: pa.Table = field(repr=False)
    experiment: Description
    parameters: Mapping[str, tuple[Any, ...]]
    stopped: bool
    speeds: tuple[Speed, ...] = ()
    unmeasured: int = 0
    why_unmeasured: str = ""
    refused: int = 0
    why_refused: str = ""

    @property
    def columns(self) -> list[str]:
        """The names of the columns of ``table``."""
        shown = [name for name in self.points.column_names if name not in HIDDEN]
        return [*shown, *(["speed"] if self.speeds else [])]

    @cached_property
    def table(self) -> pa.Table:
        """All rows: one per point, setting and workload.

        A column for each parameter, named by its path, then the columns of :data:`COLUMNS`, then
        ``gpu`` and ``error``. A point that could not be run, or only in part, says why there; of
        one that could not be run, only that row is left.
        """
        return self.select(self.columns)

    @door(columns=SeveralOf(str), where=(MappingOf(object), None))
    def select(self, columns: Sequence[str], where: Mapping[str, Any] | None = None) -> pa.Table:
        """Return some columns of ``table`` only.

        Parameters
        ----------
        where
            Parameter → value or list of values: only points that have them.

        Raises
        ------
        NotFound
            There is no such column or parameter.
        """
        table_columns = self.columns
        if unknown := [name for name in columns if name not in table_columns]:
            raise NotFound(
                f"there is no column {unknown[0]!r}; there are: {', '.join(table_columns)}"
            )
        if unknown := [name for name in where or () if name not in self.parameters]:
            varied = ", ".join(self.parameters)
            raise NotFound(f"{unknown[0]!r} was not varied; there are: {varied}")
        chosen = pc.scalar(True)  # noqa: FBT003 - holds of every row
        for name, values in (where or {}).items():
            column = self.points.schema.field(name).type
            try:
                several = [values] if isinstance(values, bool | int | float | str) else [*values]
                texts = map(str, several) if column == pa.string() else several
                chosen &= pc.field(name).isin(pa.array(texts, column))
            except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
                raise InvalidArgument(
                    f"where[{name!r}] is {given(values)}; a value of it, or a list of them, is "
                    f"needed ({clean(error, 200)})"
                ) from error
        rows = self.points.filter(chosen)
        return (self._normalised(rows) if self.speeds else rows).select(columns)

    def _normalised(self, table: pa.Table) -> pa.Table:
        """Return times × and rates ÷ the relative speed of each row's GPU; adds that."""
        speeds = {speed.gpu: speed.relative for speed in self.speeds}
        relative = pa.array(map(speeds.get, table["gpu"].to_pylist()), pa.float64())
        plans = self.experiment.get("workloads", {})
        not_paced = driven_by_requests(plans) | {
            name for name, plan in plans.items()
            if plan.get("rate_hz") is not None or plan.get("kind") == "requests"
            or f"workloads.{name}.rate_hz" in self.parameters
        }  # fmt: skip
        workloads = table["workload"].to_pylist()
        of_gpu = pa.array([name not in not_paced for name in workloads], pa.bool_())
        for at, name in enumerate(table.column_names):
            column = COMPARED.get(name)
            if column is not None and column.is_time:
                table = table.set_column(at, name, pc.multiply(table[name], relative))
            elif column is not None and column.is_rate:
                rates = pc.if_else(of_gpu, pc.divide(table[name], relative), table[name])
                table = table.set_column(at, name, rates)
        return table.append_column("speed", relative)

    def _rows(self) -> list[Row]:
        """One row per point, setting and workload."""
        return list(self.table.to_pylist())

    def readable(self) -> tuple[list[Row], str]:
        """Return fewer columns: the parameters, and what each workload got."""
        rows, left_out = self._most(self._rows())
        return readable(rows, list(self.parameters)), left_out

    @property
    def definition(self) -> str:
        """What was varied, and by what it was normalised."""
        varied = ", ".join(f"{path} = {list(values)}" for path, values in self.parameters.items())
        gpus = ", ".join(
            f"{speed.relative:.3f} on {speed.gpu} (n = {speed.n}, drift {speed.drift:.1%})"
            for speed in self.speeds
        )
        return sentences(
            "stopped early" if self.stopped else "",
            clean(f"{self.experiment.get('name')} at {varied}"),
            gpus and f"times × and rates ÷ the speed of a reference on each GPU: {gpus}",
        )
