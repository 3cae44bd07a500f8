"""What one setting of a run came to: its latencies, loads, requests, and where its work ran."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpuscope._columns import COMPARED, Column, is_of_requests
from gpuscope.analysis.confinement_analysis import PartitionConfinement
from gpuscope.analysis.rates import RATES
from gpuscope.analysis.result import Row
from gpuscope.telling.finding import Finding, Quantity, Shown

WON = 1.2
"""A gain from here on is throughput won by running together."""
_MARKS = ("p50", "p90", "p99")


def quantities(row: Row, **keys: str) -> tuple[Quantity, ...]:
    """Return values of a row of a comparison, where it has them: name → column."""
    values = []
    for name, key in keys.items():
        if row.get(key) is not None:
            values.append(Quantity(name, row[key], unit_of(COMPARED[key])))
    return tuple(values)


def unit_of(column: Column) -> str:
    """Return the unit of a column in a sentence: of a rate what there is so much of a second."""
    if column.key == "goodput_per_s":
        return "requests/s"
    return column.title if column.is_rate else column.unit


def of_latencies(rows: Iterable[Row]) -> Iterator[Finding]:
    """Yield the latencies of workloads that were timed, each shown by its longest call."""
    for row in rows:
        if row["latency_n"]:
            marks = {mark: f"latency_{mark}_us" for mark in _MARKS}
            values = quantities(row, n="latency_n", **marks)
            spans: tuple[Shown, ...] = ()
            if "longest" in row:
                values += (Quantity("longest", row["longest_ns"], "ns"),)
                spans = (Shown(row["setting"], row["longest"]),)
            rule = "timed.few" if row["latency_p99_us"] is None else "timed"
            yield Finding(rule, "note", {"workload": row["workload"]}, values, spans)


def of_loads(rows: Iterable[Row], background: Sequence[str]) -> Iterator[Finding]:
    """Yield how fast workloads in the background ran; without any, those with a rate alone."""
    for row in rows:
        if row["workload"] in background or not (background or row[RATES[0]] is None):
            keys = {"kernels": "kernels", "share": RATES[0], "calls": RATES[1]}
            values = quantities(row, **keys, tflop=RATES[2], gb=RATES[3])
            yield Finding("load", "note", {"workload": row["workload"]}, values)


def of_requests(rows: Iterable[Row], slo: str = "") -> Iterator[Finding]:
    """Yield how requests were served, then the times of their tokens."""
    for row in filter(is_of_requests, rows):
        values = quantities(row, rate="requests_per_s", goodput="goodput_per_s")
        if row["goodput_per_s"] is not None:
            values += (met(row),)
        yield Finding("served", "note", {"workload": row["workload"], "slo": slo}, values)
        for times, count in (("ttft", "requests_n"), ("tbt", "tbt_n")):
            marks = {mark: f"{times}_{mark}_ms" for mark in _MARKS}
            subject = {"workload": row["workload"], "times": times.upper()}
            yield Finding("tokens", "note", subject, quantities(row, n=count, **marks))


def met(row: Row, name: str = "met") -> Quantity:
    """Return which share of the requests meets the SLO."""
    return Quantity(name, row["goodput_per_s"] / row["requests_per_s"], "%")


def together(rows: Iterable[Row], *, is_carved: bool) -> Finding:
    """Return what running together won, at best, from rows of a comparison.

    Parameters
    ----------
    is_carved
        Whether there were partitions: else they may still win latency.
    """
    several = list(rows)
    known = [row for row in several if row["gain"] is not None]
    overlaps = [row for row in known or several if row["overlap"] is not None]
    if not overlaps:
        return Finding("together.alone", "note")
    best = max(overlaps, key=lambda row: row["gain" if known else "overlap"])
    values = [Quantity("overlap", best["overlap"], low=best["overlap_tight"])]
    if not known:
        return Finding("together.unknown", "note", {}, tuple(values))
    values.append(Quantity("gain", best["gain"]))
    rule = "won" if best["gain"] >= WON else "lost" if is_carved else "latency"
    is_one = len({row["setting"] for row in known}) == 1
    subject = {"setting": "" if is_one else best["setting"]}
    return Finding(f"together.{rule}", "note", subject, tuple(values))


def of_partition(part: PartitionConfinement, missing: str) -> Finding:
    """Return where the work given to one partition ran, and by what evidence."""
    subject: dict[str, str | list[str]]
    subject = {"partition": part.partition, "notes": ". ".join(part.notes)}
    if part.fraction is None:
        return Finding("unused", "note", subject)
    subject["evidence"] = [
        f"{each.kind} ({each.observations:,} {each.judged_by})" for each in part.evidence
    ]
    values = [
        Quantity("kernels", part.kernels),
        Quantity("time", part.time_ns, "ns"),
        Quantity("inside", part.fraction, "%"),
    ]
    if part.sm_count is None:
        subject["it"] = "it"
    else:
        values.append(Quantity("sms", part.sm_count))
    if part.escapes:
        return Finding(
            "outside", "error", subject, (*values, Quantity("share", 1 - part.fraction, "%"))
        )
    return Finding("inside.recorded" if missing else "inside", "note", subject, tuple(values))
