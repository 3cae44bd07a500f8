"""What one setting of a run came to: its latencies, loads, requests, and where its work ran."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuscope._columns import COMPARED, Column, is_of_requests
from gpuscope.analysis.confinement_analysis import PartitionConfinement
from gpuscope.analysis.result import Row
from gpuscope.telling.finding import Finding, Quantity, counts

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
    with_gain = [row for row in several if row["gain"] is not None]
    overlaps = [row for row in with_gain or several if row["overlap"] is not None]
    if not overlaps:
        return Finding("together.alone", "note")
    best = max(overlaps, key=lambda row: row["gain" if with_gain else "overlap"])
    values = [Quantity("overlap", best["overlap"], low=best["overlap_tight"])]
    if not with_gain:
        return Finding("together.unknown", "note", {}, tuple(values))
    values.append(Quantity("gain", best["gain"]))
    rule = "won" if best["gain"] >= WON else "lost" if is_carved else "latency"
    is_one = len({row["setting"] for row in with_gain}) == 1
    subject = {"setting": "" if is_one else best["setting"]}
    return Finding(f"together.{rule}", "note", subject, tuple(values))


def of_partition(part: PartitionConfinement, missing: str) -> Finding:
    """Return where the work given to one partition ran, and by what evidence."""
    subject: dict[str, str | list[str]]
    subject = {"partition": part.partition, "notes": ". ".join(part.notes)}
    if part.fraction is None and part.unfinished:
        return Finding("unjudged", "note", subject, counts(unfinished=part.unfinished))
    if part.fraction is None:
        return Finding("unused", "note", subject)
    subject["evidence"] = [
        f"{piece.kind} ({piece.observations:,} {piece.judged_by})" for piece in part.evidence
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
