"""What the settings of a run come to: the clearest difference, and what it costs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gpuscope._checks import door
from gpuscope._columns import is_of_requests
from gpuscope._text import clean
from gpuscope.analysis.rates import RATES
from gpuscope.analysis.result import Row
from gpuscope.analysis.settings import background_of, of_slowest_rank
from gpuscope.comparing.effects import Effect, leading
from gpuscope.comparing.forecasts import FORECAST, RECORDED, forecasts_in, with_bands
from gpuscope.comparing.pair import CompareResult, compared_traces, headline, of_pair
from gpuscope.errors import MissingEvidence
from gpuscope.telling.described import limits_of
from gpuscope.telling.finding import Finding, Mend
from gpuscope.telling.of_setting import of_requests, quantities, together
from gpuscope.trace.run import Run, missing


@door(run=Run)
def outcome(run: Run) -> str:
    """Say what the settings of a run come to: what differs most, why, and who pays.

    It is about the setting with the clearest difference from the first one that carves nothing:
    the one whose interval stays farthest from 0 (:func:`gpuscope.compare`). Latencies of workloads
    that are timed and the goodput of requests decide; where these do not differ, rates.

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

    Of a single setting: what it gave. The spans of a comparison are a slow call, in both traces.

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
    >>> first.rule, first.subject["base"], first.subject["setting"]
    ('change.open', 'first', 'second')
    """
    if text := next(filter(None, (trace.metadata.forecast for trace in run.values())), ""):
        return (Finding("forecast", "note", {"forecast": text}), *_of_forecast(run))
    lacking = missing(run.traces)
    incomplete = [Finding("incomplete", "warning", {"missing": lacking})] if lacking else []
    plain = (name for name, trace in run.items() if not trace.metadata.partitions)
    base = next(plain, next(iter(run), ""))
    results = [result for name in run if name != base for result in _pair(run, base, name)]
    if not results:
        rows = of_slowest_rank(run.comparison.to_pylist())
        return (*_of_setting(run, rows), *incomplete)
    several = [*_told_most(results)]
    of = str(several[0].subject["workload"])
    if str(several[0].subject["column"]).startswith(("ttft", "tbt")) and not _slo(run, of):
        several.append(_unstated(of))
    return (*several, *incomplete)


def sentence(several: Iterable[Finding]) -> str:
    """Return findings of a comparison as sentences."""
    return clean(" ".join(finding.text for finding in several))


# -- differences -----------------------------------------------------------------------------
def _pair(run: Run, base: str, setting: str) -> Iterator[CompareResult]:
    """Yield the comparison of two settings, if they have a workload in common."""
    with contextlib.suppress(MissingEvidence):
        yield compared_traces((run[base], run[setting]), (base, setting))


def _of_forecast(run: Run) -> Iterator[Finding]:
    """Yield the clearest change of a forecast, with its band, where the run has all of them."""
    if forecasts := forecasts_in(run):
        for result in _pair(run, RECORDED, FORECAST):
            yield of_pair(with_bands(result, forecasts))[0]


def _told_most(results: Sequence[CompareResult]) -> Iterator[Finding]:
    """Yield what the setting with the clearest difference comes to.

    Of several that are better, and among themselves alike, the one in which others lose least.
    Where it is worse, the best one follows.
    """
    seen = [(result, effect) for result in results for effect in result.seen]
    timed = [(result, effect) for result, effect in seen if effect.workload in result.pairs] or seen
    if not timed:
        largest = max(results, key=lambda result: max(abs(d.change) for d in result.differences))
        yield from _named(of_pair(largest), results)
        return
    chosen, first = _leading(timed)
    number = first.workload, first.column
    better = [
        (result, effect)
        for result, effect in timed
        if effect.is_better and (effect.workload, effect.column) == number
    ]
    if first.is_better:
        alike = [
            result
            for result, effect in better
            if effect.low <= first.high and first.low <= effect.high
        ]
        chosen = max(alike, key=_least_kept)
    yield from _named(of_pair(chosen), results)
    if better and not first.is_better:
        yield from _named([headline(*_leading(better))], results)


def _leading(seen: Sequence[tuple[CompareResult, Effect]]) -> tuple[CompareResult, Effect]:
    """Return which difference a headline is about, with its comparison."""
    first = leading([effect for _, effect in seen])
    return next(pair for pair in seen if pair[1] is first)


def _named(findings: Iterable[Finding], results: Sequence[CompareResult]) -> Iterator[Finding]:
    """Yield findings that say which settings they are of, where there are more than two."""
    for finding in findings:
        if len(results) > 1 and "base" in finding.subject:
            against = "“{setting}” against “{base}”".format(**finding.subject)
            yield replace(finding, subject={**finding.subject, "against": against})
        elif finding.rule != "change.calls":
            yield finding


def _least_kept(result: CompareResult) -> float:
    """Return the least factor by which a rate differs."""
    rates = [effect for effect in result.differences if effect.column in RATES and effect.before]
    return min((effect.after / effect.before for effect in rates), default=1.0)


def _where(run: Run, row: Row) -> str:
    """Say where a workload ran in a setting; nothing of requests, which two others serve.

    Nor of one whose kernels ran in places of different sizes.
    """
    if is_of_requests(row):
        return ""
    trace = run[row["setting"]]
    kernels = trace.where(kind="kernel", category=row["workload"])
    homes = kernels.spans.column("partition").unique().to_pylist()
    if len({trace.metadata.partition(home).sm_count for home in homes}) > 1:
        return ""
    if row["partition"] is None:
        return "on the whole GPU"
    count = trace.metadata.partition(row["partition"]).sm_count
    return f"on {count} SMs" if count else f"in {row['partition']}"


def _slo(run: Run, workload: str) -> str:
    limits = run.experiment.get("workloads", {}).get(workload, {}).get("slo") or {}
    return " and ".join(limits_of(limits))


def _unstated(workload: str) -> Finding:
    mend = Mend(f"workloads.{workload}.slo = {{ ttft_ms = …, tbt_ms = … }}", "experiment")
    return Finding("no-slo", "note", {"workload": workload}, mend=mend)


# -- what single changes did ------------------------------------------------------------------
def variants(run: Run) -> Iterator[Finding]:
    """Yield what stream priority and the SM-count target did, by settings that differ in one."""
    plain = {name: _plainly(_as_run(run, name)) for name in run}
    for base, setting in itertools.permutations(plain, 2):
        (used, priorities, target), (used_2, priorities_2, target_2) = plain[base], plain[setting]
        if used != used_2:
            continue
        if target == target_2 and not priorities and priorities_2:
            rule = "priority"
        elif priorities == priorities_2 and target != "off" and target_2 == "off":
            if not run[setting].metadata.partitions:
                continue
            rule = "target"
        else:
            continue
        for result in _pair(run, base, setting):
            of = [
                effect
                for effect in result.differences
                if (effect.column in RATES) == (rule != "priority")
            ]
            if of:
                finding = of_pair(replace(result, differences=tuple(of)))[0]
                subject = {**finding.subject, "difference": finding.clause}
                yield replace(finding, rule=rule, subject=subject)


def _as_run(run: Run, setting: str) -> Row:
    """Return what a setting has in common with others and what it has of its own."""
    experiment = run.experiment
    overrides = (experiment.get("settings") or {}).get(setting) or {}
    common = {name: experiment.get(name) for name in ("partitions", "sm_count_target", "rounding")}
    streams = {**(experiment.get("streams") or {}), **(overrides.get("streams") or {})}
    return (
        common
        | {name: value for name, value in overrides.items() if value is not None}
        | {"streams": streams}
    )


def _plainly(facts: Row) -> tuple[object, dict[str, int], object]:
    """Split a setting into what is carved and used, its streams' priorities, and the target."""
    streams = {name: dict(spec) for name, spec in (facts.get("streams") or {}).items()}
    priorities = {
        name: priority for name, spec in streams.items() if (priority := spec.pop("priority", 0))
    }
    used = {name: spec for name, spec in streams.items() if any(spec.values())}
    carved = facts.get("partitions"), facts.get("rounding")
    return (*carved, used), priorities, facts.get("sm_count_target")


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
        yield together(rows, is_carved=any(trace.metadata.partitions for trace in run.values()))
        return
    row = timed[0]
    mark = "p99" if row["latency_p99_us"] is not None else "p50"
    subject = {"workload": row["workload"], "quantity": mark, "where": _where(run, row)}
    yield Finding("latency", "note", subject, quantities(row, latency=f"latency_{mark}_us"))
    background_rows = [
        row for row in rows if row["workload"] in background and row[RATES[0]] is not None
    ]
    for row in background_rows:
        subject = {"workload": row["workload"]}
        yield Finding("load.share", "note", subject, quantities(row, share=RATES[0]))
    if any(round(100 * row[RATES[0]]) > 100 for row in background_rows):
        yield Finding("above-alone", "note")
