"""The columns of a comparison of settings: what each is called, its unit, which way is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from gpuscope._text import UNITS_NS, duration, format_value


@dataclass(frozen=True)
class Column:
    """One column: of a comparison, a sweep, a tuning, a report, the dashboard, and exports.

    Attributes
    ----------
    key
        Its name in tables and files; objectives and SLOs name it, too.
    title
        What people see; a heading adds the unit.
    unit
        Of its values; ``"%"``: the values are shares, shown as per cent.
    better
        1: more is better; −1: less is; 0: neither.
    digits
        Significant ones; of per cent, decimals.
    meaning
        What it says, in a sentence that glossaries show.
    kind
        What its values are.
    is_brief
        Whether a table with few columns has it.
    """

    key: str
    title: str
    unit: str = ""
    better: Literal[-1, 0, 1] = 0
    digits: int = 4
    meaning: str = ""
    kind: Literal["number", "count", "text"] = "number"
    is_brief: bool = True

    @property
    def heading(self) -> str:
        """Its title and, where that does not say it, the unit."""
        return self.title if self.unit in self.title else f"{self.title} ({self.unit})"

    @property
    def quantity(self) -> str:
        """What a sentence calls it: ``"p99"``, ``"goodput"``."""
        return self.title.removeprefix("latency ").removesuffix("/s")

    @property
    def is_time(self) -> bool:
        """Whether its values are times."""
        return self.unit in ("µs", "ms")

    @property
    def is_rate(self) -> bool:
        """Whether its values are so many a second."""
        return self.unit.endswith("/s")

    def scaled(self, value: object) -> object:
        """Return a value in the unit of the heading."""
        return 100 * value if self.unit == "%" and isinstance(value, int | float) else value

    def text(self, value: float | None) -> str:
        """Write a value with its unit, for a sentence."""
        if value is None:
            return "–"
        if self.is_time:
            return duration(value * UNITS_NS[self.unit])
        if self.unit == "%":
            return f"{100 * value:.{self.digits}f} %"
        unit = self.title if self.is_rate else self.unit
        return f"{format_value(value, self.digits)} {unit}".rstrip()


def _quantiles(what: str, unit: str, meaning: str, brief: Sequence[str]) -> list[Column]:
    title = what if what == "latency" else what.upper()
    return [
        Column(key, f"{title} {mark}", unit, -1, meaning=meaning, is_brief=mark in brief)
        for mark in ("p50", "p90", "p99")
        for key in (f"{what}_{mark}_{unit.replace('µ', 'u')}",)
    ]


_SHARE = "share_of_alone_on_whole_gpu"
_TOLD = "the column of the interval: the first of goodput, p50 and rate that there is"
_ENDS = "95 % interval of what tells most, over it, minus 1"
JOULES = "joules_per_call"
_DRAWN = "what the GPU drew, by whatever, over its calls or requests"
_detail = partial(Column, is_brief=False)
_count = partial(_detail, kind="count")


COMPARED: dict[str, Column] = {
    column.key: column
    for column in (
        Column("setting", "setting", kind="text"),
        Column("rank", "rank", meaning="the process, where there are several", kind="count"),
        Column("workload", "workload", kind="text"),
        Column("partition", "runs on", meaning="the partition of its kernels", kind="text"),
        _count("sms", "SMs", meaning="of that partition; of requests their decode's"),
        _count("kernels", "kernels", meaning="that finished"),
        Column("kernel_median_us", "median kernel", "µs", -1, meaning="median kernel time"),
        _count("latency_n", "calls timed", meaning="none of a background"),
        *_quantiles("latency", "µs", "execute() until completion was seen", ("p50", "p99")),
        Column("collective_us", "collective", "µs", -1, meaning="a collective, on all ranks"),
        _detail("collective_skew_us", "collective skew", "µs", -1, meaning="of its ranks' starts"),
        Column("bus_gb_per_s", "bus GB/s", "GB/s", 1, meaning="bus bandwidth of a collective"),
        _count("requests_n", "requests", meaning="that were served"),
        *_quantiles("ttft", "ms", "arrival to first token", ("p50", "p90")),
        _count("tbt_n", "TBT n", meaning="successive tokens that were timed"),
        *_quantiles("tbt", "ms", "between successive tokens of a request", ("p50", "p99")),
        Column("requests_per_s", "requests/s", "/s", 1, meaning="finished requests a second"),
        Column("goodput_per_s", "goodput/s", "/s", 1, meaning="those that meet the SLO"),
        Column("calls_per_s", "calls/s", "/s", 1, meaning="from the first kernel to the last"),
        Column("tflop_per_s", "TFLOP/s", "TFLOP/s", 1, meaning="stated operations over that time"),
        Column("gb_per_s", "GB/s", "GB/s", 1, meaning="stated bytes over that time"),
        Column(_SHARE, "of alone", "%", 1, 1, "the rate over the rate alone on the whole GPU"),
        Column(JOULES, "energy a call", "J", -1, meaning=_DRAWN),
        Column("dynamic_joules_per_call", "above idle", "J", -1, meaning="without idle power"),
        _detail("idle_w", "idle power", "W", meaning="of the GPU at rest, before each round"),
        Column("overlap", "overlap", meaning="shared over the shorter busy time, of one pair"),
        _detail("overlap_tight", "overlap (tight)", meaning="without what is uncertain of spans"),
        Column("gain", "gain", better=1, meaning="time alone over time together"),
        _detail("low", "low", "%", digits=1, meaning=f"{_ENDS}, its low end"),
        _detail("high", "high", "%", digits=1, meaning=f"{_ENDS}, its high end"),
        Column("interval_of", "interval of", meaning=_TOLD, kind="text", is_brief=False),
        _detail("busy_sms", "busy SMs", meaning="of its partition while it ran, by counters"),
        _detail("busy_sms_p95", "busy SMs p95", meaning="likewise"),
        _detail("tensor_share", "tensor pipes", "%", digits=1, meaning="of the busy SMs' cycles"),
        _detail("dram_gb_per_s", "DRAM GB/s", "GB/s", meaning="where its partition alone ran"),
        _detail("dram_share", "of DRAM's peak", "%", digits=1, meaning="as calibrate measured it"),
        _detail("sm_clock_mhz", "SM clock", "MHz", meaning="median while it was recorded"),
        _detail("power_w", "power", "W", meaning="of the GPU, median as well"),
        Column("throttled", "throttled", meaning="for what, and in how many rounds", kind="text"),
        Column("incomplete", "incomplete", meaning="what of the trace is missing", kind="text"),
    )
}
"""Key → column of a comparison. Null are: latencies of a background; rates and the share of alone
of a workload that arrives at a given rate or as requests need it; the tight overlap where no
uncertainty is stated; clock, power and throttling where the driver does not tell. ``ttft``,
``tbt``, ``requests`` and ``goodput`` are of requests, which have no kernels of their own. Overlap
and gain are the setting's, clock and power those of its GPUs."""
OF_ENERGY = (JOULES, "dynamic_joules_per_call", "idle_w")
"""Columns for which the energy of each round is measured."""
PROGRAM = {
    column.key: column
    for column in (
        Column("step_ms", "step", "ms", -1, meaning="mean time of a GPU's step, steady"),
        Column("steady_ms", "steady time", "ms", -1, meaning="of a GPU, where nothing repeats"),
        Column("idle_share", "idle", "%", -1, 1, "the share of that in which nothing ran"),
    )
}
"""The same of a program, which has no workloads."""
MEANINGS = {
    "of alone": COMPARED[_SHARE].meaning,
    "overlap": COMPARED["overlap"].meaning,
    "gain": COMPARED["gain"].meaning,
    "handle": "a prepared, reusable workload; its span is a call, until the host saw it done",
    "guard": "selects the stream for everything that is launched below it",
}
"""Words of ours → what they mean, for a hover where each stands first."""
_LEAST = ("tflop_per_s", "gb_per_s")
"""Columns that come last, for people: calls a second say the same of one workload."""
TOGETHER = ("overlap", "overlap_tight", "gain")
"""Columns that are the setting's, not a workload's."""
_ERROR = Column("error", "error", kind="text")


def is_of_requests(row: Mapping[str, object]) -> bool:
    """Whether a row of a comparison is of requests, which run on the partitions of two others."""
    return row.get("requests_n") is not None


def heading(key: str) -> str:
    """Return what a column is called: of a parameter's path what tells it from others."""
    if key in COMPARED:
        return COMPARED[key].heading
    return key.removeprefix("partitions.").removeprefix("workloads.")


def readable(
    rows: Sequence[Mapping[str, object]],
    besides: Sequence[str] = (),
    *,
    full: bool = False,
    without: Sequence[str] = (),
) -> list[dict[str, object]]:
    """Return rows of a comparison as people read them: no column is empty, units in the headings.

    Parameters
    ----------
    rows
        As in :attr:`gpuscope.trace.run.Run.comparison`, or of a sweep.
    besides
        Further columns, which come first, instead of what running together gave.
    full
        Whether to have all columns, not only those that tell most.
    without
        Columns to leave out.
    """
    hidden = {*without, *(TOGETHER if besides else ())}
    if not full and (besides or any(row.get("latency_p50_us") is not None for row in rows)):
        hidden.add("kernel_median_us")
    if not besides and len({row.get("incomplete") for row in rows}) <= 1:
        hidden.add("incomplete")  # it stands beside the table
    compared = sorted(COMPARED.values(), key=lambda column: column.key in _LEAST)
    columns = [
        column
        for column in (*(Column(key, heading(key)) for key in besides), *compared, _ERROR)
        if (full or column.is_brief) and column.key not in hidden
    ]
    table: list[dict[str, object]] = [{} for _ in rows]
    for column in columns:
        values = [_cell(row, column) for row in rows]
        if any(value is not None for value in values):
            for cells, value in zip(table, values, strict=True):
                cells[column.heading] = value
    return table


def tables(
    rows: Sequence[Mapping[str, object]], besides: Sequence[str] = ()
) -> dict[str, list[dict[str, object]]]:
    """Return title → rows as people read them: of requests apart, which have other columns."""
    parts = {
        "settings": [row for row in rows if not is_of_requests(row)],
        "requests": [row for row in rows if is_of_requests(row)],
    }
    return {title: readable(part, besides) for title, part in parts.items() if part}


def _cell(row: Mapping[str, object], column: Column) -> object:
    has_kernels = row.get("workload") is not None and not is_of_requests(row)
    if column.key == "partition" and has_kernels and row.get("partition") is None:
        return "whole GPU"
    return column.scaled(row.get(column.key))
