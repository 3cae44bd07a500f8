"""The settings of one experiment side by side, as a table."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from gpuscope._checks import MappingOf, door
from gpuscope.analysis.intervals import grouped, kernels, makespans_ns
from gpuscope.analysis.latency_analysis import latency
from gpuscope.analysis.overlap_analysis import overlap
from gpuscope.analysis.result import Row
from gpuscope.errors import MissingEvidence
from gpuscope.trace.columns import codes
from gpuscope.trace.metadata import SoloFacts
from gpuscope.trace.model import Trace

COLUMNS = {
    "setting": pa.string(),
    "workload": pa.string(),
    "partition": pa.string(),
    "kernels": pa.int64(),
    "kernel_median_us": pa.float64(),
    "latency_n": pa.int64(),
    "latency_p50_us": pa.float64(),
    "latency_p90_us": pa.float64(),
    "latency_p99_us": pa.float64(),
    "tflop_per_s": pa.float64(),
    "share_of_alone_on_whole_gpu": pa.float64(),
    "overlap": pa.float64(),
    "overlap_tight": pa.float64(),
    "gain": pa.float64(),
    "incomplete": pa.string(),
}
"""Column → type of a comparison; units in the names. ``tflop_per_s`` is operations over
first start to last end, null where its kernels do not state them;
``share_of_alone_on_whole_gpu`` that rate over the workload's rate alone on the
unpartitioned GPU; both are null for a workload that arrives at a given rate, and latency
is null for a background. ``overlap`` and ``gain`` are the setting's; ``overlap_tight`` is the
overlap with every span shrunk by its stated uncertainty, null where none is stated.
``incomplete`` says what of the setting's trace is missing, null where nothing is."""


@door(traces=MappingOf(Trace))
def settings_table(traces: Mapping[str, Trace]) -> pa.Table:
    """Return one row per setting and workload; see :data:`COLUMNS`.

    Parameters
    ----------
    traces
        Setting → trace, such as a run. One without a finished kernel has no rows.

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
    rows: list[Row] = []
    for setting, trace in traces.items():
        try:
            found = kernels(trace)
        except MissingEvidence:
            continue
        together = overlap(trace, by="workload")
        most = max(together.pairs, key=lambda one: one.fraction, default=None)
        try:
            seen = {handle.name: handle for handle in latency(trace).handles}
        except MissingEvidence:
            seen = {}
        starts, ends = found.array("start_ns"), found.array("end_ns")
        flops = found.array("flop_count", fill=-1)
        partition, partitions = codes(found.spans.column("partition"))
        groups = grouped(found, "workload")
        number = {label: index for index, label in enumerate(groups.labels)}
        medians = groups.quantiles(ends - starts, (0.5,))[:, 0].tolist()
        spans_ns = makespans_ns(found, groups, starts, ends).tolist()
        unknown, total = groups.sums(flops < 0).tolist(), groups.sums(flops).tolist()
        planned = (trace.metadata.experiment or {}).get("workloads", {})
        for workload in dict.fromkeys([*(one for one in planned if one in number), *number]):
            index = number[workload]
            known = not unknown[index] and spans_ns[index] > 0
            rate = float(total[index]) / spans_ns[index] / 1e3 if known else None
            alone = trace.metadata.solo.get(workload, SoloFacts()).whole_gpu_tflop_per_s
            plan = planned.get(workload, {})
            # A background's latency is its queue's length, and arrivals at given times set
            # their own rate: neither says anything about the GPU.
            times = None if plan.get("background") else seen.get(workload)
            if plan.get("rate_hz") is not None:
                rate = None
            rows.append(
                {
                    "setting": setting,
                    "workload": workload,
                    "partition": partitions[partition[groups.mine(index)[0]]],
                    "kernels": int(groups.counts[index]),
                    "kernel_median_us": medians[index] / 1e3,
                    "latency_n": times.n if times else None,
                    "latency_p50_us": times.p50_ns / 1e3 if times else None,
                    "latency_p90_us": times.p90_ns / 1e3 if times else None,
                    "latency_p99_us": times.p99_ns / 1e3 if times and times.p99_ns else None,
                    "tflop_per_s": rate,
                    "share_of_alone_on_whole_gpu": rate / alone if rate and alone else None,
                    "overlap": most.fraction if most else None,
                    "overlap_tight": most.tight_fraction if most else None,
                    "gain": together.gain,
                    "incomplete": trace.metadata.incomplete or None,
                }
            )
    return pa.Table.from_pylist(rows, schema=pa.schema(list(COLUMNS.items())))
