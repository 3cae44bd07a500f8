"""What the settings of a run come to: the largest true difference, and what it costs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from gpuscope._checks import door
from gpuscope._columns import COMPARED, is_of_requests
from gpuscope._text import clean
from gpuscope.analysis.headline import RATES, Change, changes, headline
from gpuscope.analysis.result import Row
from gpuscope.analysis.settings import background_of, of_slowest_rank
from gpuscope.telling.described import limits_of
from gpuscope.telling.finding import Finding, Mend, Quantity, Severity, Shown
from gpuscope.telling.of_setting import met, of_requests, quantities, together, unit_of
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run, missing


@door(run=Run)
def outcome(run: Run) -> str:
    """Say in one sentence by how much the settings of a run differ, and what that cost.

    It is about the largest difference that is not within noise, for the better or the worse, as
    compared with the first setting that carves nothing. Which setting counts is decided by the
    latencies of workloads that are timed (p99 where every setting has one, else p50) and by the
    goodput of requests; where these do not differ, by rates. Of several ranks the slowest counts.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "spin", "duration_us": 100, "stream": "s", "repeats": 2}},
    ... }
    >>> gs.telling.outcome(gs.run(one, gpu))  # doctest: +ELLIPSIS
    'Simulated: p50 of w is 1... µs on the whole GPU.'
    """
    several = compared(run)
    is_simulated = any(trace.is_simulated for trace in run.traces.values())
    is_forecast = several[0].rule == "forecast"
    return f"{'Simulated: ' if is_simulated and not is_forecast else ''}{sentence(several)}"


@door(run=Run)
def compared(run: Run) -> tuple[Finding, ...]:
    """Return how the settings of a run differ: what counts most first, then what it costs.

    Of a single setting: what it gave. The spans of a comparison are calls near the quantile, one
    in either trace.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "streams": {"s": {}},
    ...     "settings": {"first": {}, "second": {}},
    ...     "workloads": {"w": {"kind": "spin", "duration_us": 100, "stream": "s", "repeats": 9}},
    ... }
    >>> first, *_ = gs.telling.compared(gs.run(one, gpu))
    >>> first.rule, [shown.trace for shown in first.spans]
    ('same.number', ['first', 'second'])
    """
    if forecast := next(filter(None, (each.metadata.forecast for each in run.values())), ""):
        return (Finding("forecast", "note", {"forecast": forecast}),)
    rows = {
        (row["workload"], row["setting"]): row
        for row in of_slowest_rank(run.comparison.to_pylist())
    }
    lacking = missing(run.traces)
    incomplete = [Finding("incomplete", "warning", {"missing": lacking})] if lacking else []
    about = headline(run)
    if about is None:
        return (*_of_setting(run, [*rows.values()]), *incomplete)
    changes = [about.change, *about.beside, *([about.best] if about.best else [])]
    several = [_changed(run, rows, change) for change in changes]
    shares = [change for change in changes if change.column == RATES[0]]
    several += _above_alone(share for each in shares for share in (each.before, each.after))
    if about.change.column.startswith(("ttft", "tbt")):
        several.append(_unstated(about.change.workload))
    return (*several, *incomplete)


def sentence(several: Iterable[Finding]) -> str:
    """Return findings of a comparison as one sentence; only the first names both settings."""
    first, *others = several
    words = [first, *(_beside(finding, first) for finding in others)]
    return clean(f"{'; '.join(finding.clause for finding in words)}.")


def _beside(finding: Finding, first: Finding) -> Finding:
    verdict, _, measure = finding.rule.partition(".")
    if "base" not in finding.subject:
        return finding
    if finding.subject["setting"] != first.subject["setting"]:
        verdict = "best"
    else:
        differs = any(quantity.name == "by" for quantity in finding.values)
        verdict = "near" if verdict in ("same", "unsure") and differs else "beside"
    return replace(finding, rule=f"{verdict}.{measure}")


# -- differences -----------------------------------------------------------------------------
_Rows = Mapping[tuple[str, str], Row]


def _changed(run: Run, rows: _Rows, change: Change) -> Finding:
    column, row = COMPARED[change.column], rows[change.workload, change.setting]
    measure = "number"
    if change.column in RATES:
        measure = "share" if change.column == RATES[0] else "rate"
    verdict, severity = _verdict(change)
    unit = unit_of(column)
    values = [
        Quantity(name, value, unit)
        for name, value in (("before", change.before), ("after", change.after))
    ]
    if change.before and change.before != change.after:
        ratio, spread = change.after / change.before, 1 + change.noise
        values.append(Quantity("by", ratio - 1, "±%", ratio / spread - 1, ratio * spread - 1))
    if measure == "rate":
        values.append(Quantity("ratio", change.after / change.before if change.before else 1, "%"))
    if change.within_noise and math.isfinite(change.noise):
        values.append(Quantity("noise", change.noise, "%"))
    subject = {
        "workload": change.workload,
        "column": change.column,
        "quantity": column.title.removeprefix("latency ").removesuffix("/s"),
        "setting": change.setting,
        "base": change.base,
        "where": _where(run, row),
    }
    if change.column == "goodput_per_s":
        subject["slo"] = _slo(run, change.workload)
        for name, setting in (("met_before", change.base), ("met", change.setting)):
            values.append(met(rows[change.workload, setting], name))
    pair = ((change.base, change.before), (change.setting, change.after))
    spans = [span for setting, value in pair for span in _near(run, change, setting, value)]
    return Finding(f"{verdict}.{measure}", severity, subject, tuple(values), tuple(spans))


def _verdict(change: Change) -> tuple[str, Severity]:
    if math.isinf(change.noise):
        return "unsure", "note"
    if change.within_noise:
        return "same", "note"
    return ("faster", "note") if change.is_better else ("slower", "warning")


def _near(run: Run, change: Change, setting: str, value: float) -> Iterator[Shown]:
    """Yield the call of a setting whose latency is nearest to a number of it."""
    if change.column.startswith("latency_"):
        calls: Trace = run[setting].where(kind="handle", category=change.workload)
        if len(calls):
            took_us = (calls.array("end_ns", fill=0) - calls.array("start_ns")) / 1e3
            nearest = int(np.abs(took_us - value).argmin())
            yield Shown(setting, int(calls.array("id")[nearest]))


def _where(run: Run, row: Row) -> str:
    """Say where a workload ran in a setting; nothing of requests, which two others serve."""
    if is_of_requests(row):
        return ""
    if row["partition"] is None:
        return "on the whole GPU"
    count = run[row["setting"]].metadata.partition(row["partition"]).sm_count
    return f"on {count} SMs" if count else f"in {row['partition']}"


def _slo(run: Run, workload: str) -> str:
    limits = run.experiment.get("workloads", {}).get(workload, {}).get("slo") or {}
    return " and ".join(limits_of(limits))


def _above_alone(shares: Iterable[float]) -> list[Finding]:
    """Return why a rate is above that alone, if one is.

    Before both run together a GPU has idled, and has some 50 ms until its power cap slows it.
    """
    most = max(shares, default=0.0)
    return [Finding("above-alone", "note")] if round(100 * most) > 100 else []


def _unstated(workload: str) -> Finding:
    mend = Mend(f"workloads.{workload}.slo = {{ ttft_ms = …, tbt_ms = … }}", "experiment")
    return Finding("no-slo", "note", {"workload": workload}, mend=mend)


# -- what single changes did ------------------------------------------------------------------
def variants(run: Run) -> Iterator[Finding]:
    """Yield what stream priority and the SM-count target did, by settings that differ in one."""
    described = run.experiment.get("settings") or {}
    plain = {name: _plainly(facts) for name, facts in described.items() if name in run.traces}
    for base, setting in itertools.permutations(plain, 2):
        (used, priorities, target), (used_2, priorities_2, target_2) = plain[base], plain[setting]
        if used != used_2:
            continue
        if target == target_2 and not priorities and priorities_2:
            rule = "priority"
        elif priorities == priorities_2 and target != "off" and target_2 == "off":
            rule = "target"
        else:
            continue
        pair = (base, setting)  # a change is from the first to the second
        rows = [row for row in run.comparison.to_pylist() if row["setting"] in pair]
        rows.sort(key=lambda row: pair.index(row["setting"]))
        by_both = {(row["workload"], row["setting"]): row for row in of_slowest_rank(rows)}
        both = {name: run[name] for name in pair}
        for change in changes(Run(both, pa.Table.from_pylist(rows), run.experiment)):
            if change.column.startswith("latency_") == (rule == "priority"):
                finding = _changed(run, by_both, change)
                subject = {**finding.subject, "difference": finding.clause}
                yield replace(finding, rule=rule, subject=subject)


def _plainly(facts: Row) -> tuple[object, dict[str, int], object]:
    """Split a setting into what is carved and used, its streams' priorities, and the target."""
    streams = {name: dict(spec) for name, spec in (facts.get("streams") or {}).items()}
    priorities = {
        name: priority for name, spec in streams.items() if (priority := spec.pop("priority", 0))
    }
    used = {name: spec for name, spec in streams.items() if any(spec.values())}
    return (facts.get("partitions"), used), priorities, facts.get("sm_count_target")


# -- what a setting gave ---------------------------------------------------------------------
def _of_setting(run: Run, rows: list[Row]) -> Iterator[Finding]:
    """Yield what a single setting gave."""
    background = background_of(run.experiment)
    served = [row for row in rows if is_of_requests(row)]
    timed = [row for row in rows if row["latency_n"] and row["workload"] not in background]
    if served:
        yield next(of_requests(served, _slo(run, served[0]["workload"])))
        if served[0]["goodput_per_s"] is None:
            yield _unstated(served[0]["workload"])
        return
    if not timed:
        yield together(rows, is_carved=True)
        return
    row = timed[0]
    mark = "p99" if row["latency_p99_us"] is not None else "p50"
    subject = {"workload": row["workload"], "quantity": mark, "where": _where(run, row)}
    yield Finding("latency", "note", subject, quantities(row, latency=f"latency_{mark}_us"))
    kept = [row for row in rows if row["workload"] in background and row[RATES[0]] is not None]
    for row in kept:
        subject = {"workload": row["workload"]}
        yield Finding("load.share", "note", subject, quantities(row, share=RATES[0]))
    yield from _above_alone(row[RATES[0]] for row in kept)
