"""Several traces: what an experiment gave, and what of it is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from gpuscope._tables import Printer, html_table, text_table
from gpuscope._text import shown
from gpuscope.trace.metadata import Description
from gpuscope.trace.model import Trace

_SHOWN = {
    "setting": "setting",
    "rank": "rank",
    "workload": "workload",
    "partition": "on",
    "kernel_median_us": "median kernel (µs)",
    "latency_p50_us": "p50 (µs)",
    "latency_p99_us": "p99 (µs)",
    "collective_us": "collective (µs)",
    "bus_gb_per_s": "bus GB/s",
    "ttft_p50_ms": "TTFT p50 (ms)",
    "ttft_p90_ms": "TTFT p90 (ms)",
    "tbt_p50_ms": "TBT p50 (ms)",
    "tbt_p99_ms": "TBT p99 (ms)",
    "requests_per_s": "requests/s",
    "goodput_per_s": "goodput/s",
    "calls_per_s": "calls/s",
    "tflop_per_s": "TFLOP/s",
    "gb_per_s": "GB/s",
    "share_of_alone_on_whole_gpu": "of alone (%)",
    "overlap": "overlap",
    "gain": "gain",
    "error": "error",
    "incomplete": "incomplete",
}
"""Column of a comparison → what people see of it."""
_TOGETHER = ("overlap", "gain")
OF_ALONE = "of alone: the rate over the rate alone on the whole GPU"
_TRACES = 3
"""Incomplete traces that are told one by one."""


def incomplete(traces: Mapping[str, Trace]) -> str:
    """Return how many rows of which traces are missing and why; empty if none is.

    Parameters
    ----------
    traces
        Label → trace; a label stands where traces differ.
    """
    lines = {label: trace.metadata.incomplete for label, trace in traces.items()}
    if len(set(lines.values())) <= 1:
        return next(iter(lines.values()), "")
    prefix = "incomplete: "
    told = [f"{label}: {line.removeprefix(prefix)}" for label, line in lines.items() if line]
    more = [f"and {len(told) - _TRACES} more traces"] if len(told) > _TRACES else []
    return prefix + "; ".join([*told[:_TRACES], *more])


def readable(
    rows: Sequence[Mapping[str, object]], besides: Sequence[str] = ()
) -> list[dict[str, object]]:
    """Return rows of a comparison as people read them: few columns, none of them empty.

    Parameters
    ----------
    rows
        As in :attr:`Run.comparison`, or of a sweep.
    besides
        Further columns, which come first, instead of what running together gave.
    """
    without = list(_TOGETHER if besides else ())
    if besides or any(row.get("latency_p50_us") is not None for row in rows):
        without.append("kernel_median_us")
    if not besides and len({row.get("incomplete") for row in rows}) <= 1:
        without.append("incomplete")  # it stands below the table
    told = [
        name for name in (*besides, *(name for name in _SHOWN if name not in without))
        if any(row.get(name) is not None for row in rows)
        or (name == "partition" and not all(map(is_of_requests, rows)))
    ]  # fmt: skip
    table = []
    for row in rows:
        values = {name: row.get(name) for name in told}
        if row.get("workload") is not None and values.get("partition", "") is None:
            values["partition"] = None if is_of_requests(row) else "whole GPU"
        share = values.get("share_of_alone_on_whole_gpu")
        if isinstance(share, float):
            values["share_of_alone_on_whole_gpu"] = 100 * share
        table.append({heading(name): value for name, value in values.items()})
    return table


def is_of_requests(row: Mapping[str, object]) -> bool:
    """Whether a row of a comparison is of requests, which run on the partitions of two others."""
    return row.get("requests_n") is not None


def heading(column: str) -> str:
    """Return what a column is called: of a parameter's path what tells it from others."""
    return _SHOWN.get(column) or column.removeprefix("partitions.").removeprefix("workloads.")


@dataclass(frozen=True)
class Run(Mapping[str, Trace]):
    """The result of an experiment: setting → trace, and a comparison of the settings.

    Attributes
    ----------
    traces
        Setting → trace.
    comparison
        One row per setting and workload: kernels, latency, throughput, shares.
    experiment
        The experiment that was run.
    stopped
        Whether the run was stopped early; it then holds what was recorded until then.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2}},
    ... }
    >>> run = gs.run({**one, "settings": {"first": {}, "second": {}}}, gpu)
    >>> list(run), run.stopped
    (['first', 'second'], False)
    >>> run.comparison.column("kernels").to_pylist()
    [2, 2]
    """

    traces: Mapping[str, Trace]
    comparison: pa.Table = field(repr=False)
    experiment: Description
    stopped: bool = False

    def __getitem__(self, setting: str) -> Trace:
        return self.traces[setting]

    def __iter__(self) -> Iterator[str]:
        return iter(self.traces)

    def __len__(self) -> int:
        return len(self.traces)

    def _notes(self) -> list[str]:
        """Return what stands below the table, and above all if something is missing."""
        origins = dict.fromkeys(trace.origin for trace in self.traces.values())
        stopped = "stopped early: what was recorded until then is here" if self.stopped else ""
        notes = [stopped, incomplete(self.traces), OF_ALONE, *origins]
        return list(filter(None, notes))

    def _tables(self) -> list[list[dict[str, object]]]:
        """Return the rows of workloads, and those of requests, which have other columns."""
        rows = self.comparison.to_pylist()
        requests = [row for row in rows if is_of_requests(row)]
        own = [row for row in rows if not is_of_requests(row)]
        return [readable(part) for part in (own, requests) if part or part is own]

    def __str__(self) -> str:
        *first, last = self._tables()
        tables = [text_table(list(rows[0]), rows) for rows in first]
        tables.append(text_table(list(last[0]) if last else (), last, self._notes()))
        return "\n\n".join(tables)

    def _repr_pretty_(self, printer: Printer, _cycle: object) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        tables = "".join(html_table(list(rows[0]), rows) for rows in self._tables() if rows)
        return tables + "".join(f"<p>{shown(note)}</p>" for note in self._notes())
