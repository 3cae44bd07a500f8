"""The outcome of a run in words: what was won and what it cost; its workloads and settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

from gpuscope._checks import door
from gpuscope._columns import is_of_requests
from gpuscope._text import clean, duration
from gpuscope.analysis.headline import RATES, Change, Headline, headline
from gpuscope.analysis.result import Row
from gpuscope.analysis.settings import of_slowest_rank
from gpuscope.trace.metadata import Description
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run, incomplete

WON = 1.2
"""A gain from here on is throughput won by running together."""
_COMMON = frozenset(
    {"kind", "stream", "repeats", "warmup", "background", "max_queued", "rate_hz", "arrival",
     "waits_on", "guard", "dtype", "sm_count_target"}
)  # fmt: skip


@door(run=Run)
def outcome(run: Run) -> str:
    """Say in one sentence by how much the settings of a run differ, and what that cost.

    It is about the largest difference that is not within noise, for the better or the worse, as
    compared with the first setting that carves nothing. Which setting is told is decided by the
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
    >>> gs.analysis.outcome(gs.run(one, gpu))  # doctest: +ELLIPSIS
    'Simulated: p50 of w is 1... µs on the whole GPU.'
    """
    if forecast := next(filter(None, (one.metadata.forecast for one in run.values())), ""):
        return clean(forecast)
    rows = {
        (row["workload"], row["setting"]): row
        for row in of_slowest_rank(run.comparison.to_pylist())
    }
    about = headline(run)
    words = _compared(run, rows, about) if about is not None else _alone(run, [*rows.values()])
    if missing := incomplete(run.traces):
        words = f"{words.removesuffix('.')}; {missing}."
    simulated = any(trace.is_simulated for trace in run.traces.values())
    return clean(f"Simulated: {words}" if simulated else words)


def background_of(experiment: Description) -> list[str]:
    """Return the workloads of an experiment that run in the background."""
    described = experiment.get("workloads") or {}
    return [name for name, facts in described.items() if facts.get("background")]


_Rows: TypeAlias = Mapping[tuple[str, str], Row]
"""Workload and setting → row of a comparison."""


def _compared(run: Run, rows: _Rows, about: Headline) -> str:
    """Say what a headline says."""
    change, best = about.change, about.best
    named = f"(“{change.setting}” against “{change.base}”)"
    by = _by(change) if change.column in RATES else ""
    parts = [f"{_told(run, rows, change)}{by} {named}{_met(rows, change)}"]
    if math.isinf(change.noise):
        parts = [f"too few calls to tell a difference from noise: {parts[0]}"]
    elif change.within_noise:
        parts = [f"no difference beyond noise ({100 * change.noise:.0f} %): {parts[0]}"]
    for one in about.beside:
        note = " (within noise)" if one.size and one.within_noise else ""
        parts.append(f"{_told(run, rows, one)}{note}")
    if best is not None:
        parts.append(f"best in “{best.setting}”: {_told(run, rows, best)}")
    shares = [one for one in (change, *about.beside) if one.column == RATES[0]]
    greatest = max((max(one.before, one.after) for one in shares), default=0.0)
    return f"{'; '.join(parts)}{_above_one(greatest)}.{_no_slo(change)}"


def _told(run: Run, rows: _Rows, change: Change) -> str:
    """Say one change: of what, from what to what, by how much, and where."""
    name, column = change.workload, change.column
    if column == RATES[0]:
        kept = f"{name} keeps {100 * change.after:.0f} % of its rate alone"
        return f"{kept} ({100 * change.before:.0f} % in “{change.base}”)"
    if column in RATES:
        share = change.after / change.before if change.before else math.inf
        return f"{name} keeps {100 * share:.0f} % of its rate in “{change.base}”"
    what, before, after = _quantity(run, change)
    if before.split(" ")[1] == after.split(" ")[1]:
        before = before.split(" ")[0]
    where = _place(run, rows[name, change.setting])
    return f"{what} {before} → {after}{_by(change)}{f', {where}' if where else ''}"


def _by(change: Change) -> str:
    """Say by how much a number differs, and in which direction; nothing where that is no share."""
    if not change.before or change.before == change.after:
        return ""
    ratio = change.after / change.before
    is_time = change.column.endswith(("_us", "_ms"))
    words = ("longer", "shorter") if is_time else ("higher", "lower")
    return f", {100 * abs(ratio - 1):.3g} % {words[ratio < 1]}"


def _quantity(run: Run, change: Change) -> tuple[str, str, str]:
    """Return what a latency or a goodput is called, and its values in words."""
    name, column, values = change.workload, change.column, (change.before, change.after)
    if column == "goodput_per_s":
        before, after = (f"{value:.3g} requests/s" for value in values)
        return _goodput(run, name), before, after
    what, mark, unit = column.split("_")
    before, after = (duration(value * {"us": 1e3, "ms": 1e6}[unit]) for value in values)
    return f"{mark} of {'' if what == 'latency' else f'{what.upper()} of '}{name}", before, after


def _goodput(run: Run, name: str) -> str:
    slo = run.experiment.get("workloads", {}).get(name, {}).get("slo") or {}
    limits = " and ".join(f"{what[:4].strip('_').upper()} ≤ {slo[what]:g} ms" for what in slo)
    return f"goodput of {name} ({limits})"


def _met(rows: _Rows, change: Change) -> str:
    """Say of a goodput which share of the requests meets the SLO."""
    if change.column != "goodput_per_s":
        return ""
    before, after = (_share_met(rows[change.workload, at]) for at in (change.base, change.setting))
    return f": {after} of the requests meet it, not {before}" if after != before else ""


def _share_met(row: Row) -> str:
    return f"{100 * row['goodput_per_s'] / row['requests_per_s']:.0f} %"


def _no_slo(change: Change) -> str:
    return " State an slo to compare goodput." if change.column.startswith(("ttft", "tbt")) else ""


def _above_one(share: float) -> str:
    """Say why a rate is above that alone, if one is.

    Before both run together a GPU has idled, and has some 50 ms until its power cap slows it.
    """
    if round(100 * share) <= 100:
        return ""
    return "; above 100 %: alone it is measured afterwards, when the power cap may slow a GPU more"


def _place(run: Run, row: Row) -> str:
    """Say where a workload ran in a setting; nothing of requests, which two others serve."""
    if is_of_requests(row):
        return ""
    if row["partition"] is None:
        return "on the whole GPU"
    count = run[row["setting"]].metadata.partition(row["partition"]).sm_count
    return f"on {count} SMs" if count else f"in {row['partition']}"


def _alone(run: Run, rows: list[Row]) -> str:
    """Say what a single setting gave."""
    served = [row for row in rows if is_of_requests(row)]
    background = background_of(run.experiment)
    timed = [row for row in rows if row["latency_n"] and row["workload"] not in background]
    if served:
        row = served[0]
        if row["goodput_per_s"] is None:
            return (
                f"{row['workload']} in “{row['setting']}”: p50 of TTFT "
                f"{duration(1e6 * row['ttft_p50_ms'])}, {row['requests_per_s']:.3g} requests/s. "
                "State an slo to compare goodput."
            )
        goodput = f"{_goodput(run, row['workload'])} is {row['goodput_per_s']:.3g} requests/s"
        return f"{goodput}: {_share_met(row)} of the requests meet it."
    if not timed:
        return _together(rows)
    row = timed[0]
    mark = "p99" if row["latency_p99_us"] is not None else "p50"
    words = f"{mark} of {row['workload']} is {duration(1e3 * row[f'latency_{mark}_us'])}"
    loads = (row for row in rows if row["workload"] in background)
    kept = {row["workload"]: row[RATES[0]] for row in loads if row[RATES[0]] is not None}
    shares = " and ".join(f"{name} keeps {100 * share:.0f} %" for name, share in kept.items())
    rate = "its rate" if len(kept) == 1 else "their rates"
    cost = f"; {shares} of {rate} alone{_above_one(max(kept.values()))}" if kept else ""
    return f"{words} {_place(run, row)}{cost}."


def _together(rows: list[Row]) -> str:
    """Say what running together won where no latency counts."""
    gains = {row["setting"]: row["gain"] for row in rows if row["gain"] is not None}
    if not gains:
        return "neither a latency nor a gain was measured."
    best = max(gains, key=gains.__getitem__)
    won = "won throughput" if gains[best] >= WON else "won no throughput"
    return f"running together {won}: the gain is {gains[best]:.3g} at best, in “{best}”."


# -- what was run -------------------------------------------------------------------------
def describe_workload(facts: Description, *, driven: bool = False) -> str:
    """Say in one line what a workload of an experiment is.

    Parameters
    ----------
    facts
        Its fields, as in an experiment file.
    driven
        Whether it runs only as requests need it.

    Examples
    --------
    >>> from gpuscope.analysis.outcome_analysis import describe_workload
    >>> describe_workload({"kind": "gemm", "m": 512, "n": 512, "k": 512, "dtype": "float16",
    ...                    "stream": "s", "repeats": 1000, "rate_hz": 1000, "arrival": "poisson"})
    'gemm 512 × 512 × 512 float16 on s, 1,000 calls at random moments, 1,000 a second'
    """
    if facts.get("kind") == "requests":
        return _describe_requests(facts)
    own = {name: value for name, value in facts.items() if name not in _COMMON}
    sides = [own.pop(name) for name in ("m", "n", "k") if {"m", "n", "k"} <= facts.keys()]
    kind = str(facts.get("kind"))
    if kind.startswith("python:"):
        given = (f"{name}={value!r}" for name, value in (own.pop("args", None) or {}).items())
        kind = f"{kind.removeprefix('python:')}({', '.join(given)})"
    else:
        kind = kind.replace("_", " ")
    words = [kind, " × ".join(map(str, sides))]
    if "nbytes" in own:
        words.append(_bytes(own.pop("nbytes")))
    if "duration_us" in own:
        words.append(f"{own.pop('duration_us'):g} µs")
    words += [str(facts.get("dtype", "")), *(f"{name} {value}" for name, value in own.items())]
    queued = int(facts.get("max_queued", 1))
    calls = f"{facts.get('repeats', 100):,} calls"
    if driven:
        calls = "as requests need it"
    elif facts.get("background"):
        calls = "in the background, back to back"
    elif facts.get("rate_hz"):
        calls += _arriving(facts)
    else:
        calls += " back to back"
    calls += f", up to {queued} queued" if queued > 1 else ""
    stream = f" on {facts['stream']}" if facts.get("stream") else ""
    unguarded = ", without a guard" if facts.get("guard") is False else ""
    return f"{' '.join(filter(None, words))}{stream}, {calls}{unguarded}"


def _arriving(facts: Description) -> str:
    when = {"poisson": "at random moments", "fixed": "at regular intervals"}
    return f" {when.get(facts['arrival'], facts['arrival'])}, {facts['rate_hz']:,g} a second"


def _describe_requests(facts: Description) -> str:
    arriving = _arriving(facts) if facts.get("rate_hz") else " at recorded times"
    tokens, slo = facts.get("output_tokens", 64), facts.get("slo") or {}
    if isinstance(tokens, list):
        tokens = f"{min(tokens):,} to {max(tokens):,}"
    elif isinstance(tokens, str):
        name, *values = tokens.split()
        tokens = " to ".join(values) if name == "uniform" else f"on average {values[0]}"
    return (
        f"{facts.get('repeats', 100):,} requests{arriving}, prefilled by {facts.get('prefill')}, "
        f"{tokens} tokens each by {facts.get('decode')}, up to {facts.get('batch', 16)} at a time"
        + "".join(f", {name[:4].strip('_').upper()} ≤ {most:g} ms" for name, most in slo.items())
    )


def _bytes(number: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= size:
            return f"{number / size:.4g} {unit}"
    return f"{number} bytes"


def describe_settings(run: Run) -> dict[str, str]:
    """Say in one line what each setting of a run is: who ran on which SMs, and what else differs.

    Returns
    -------
    dict
        Setting → words.
    """
    described = run.experiment.get("settings") or {}
    said: dict[str, str] = {}
    places: dict[str, str] = {}
    for setting, trace in run.traces.items():
        facts = described.get(setting) or {}
        place, others = _placed(run.experiment, facts, trace), _otherwise(run.experiment, facts)
        same = next((name for name, words in places.items() if words == place), None)
        if same is not None and others:
            said[setting] = f"as “{same}”, but {'; '.join(others)}"
        else:
            said[setting] = "; ".join([place, *others])
        places[setting] = place
    return said


def _streams(experiment: Description, facts: Description) -> dict[str, Description]:
    """Return the streams of a setting: those of the experiment, as the setting changes them."""
    streams: dict[str, Description] = {**(experiment.get("streams") or {})}
    return streams | (facts.get("streams") or {})


def _placed(experiment: Description, facts: Description, trace: Trace) -> str:
    """Say which workloads had which SMs."""
    streams = _streams(experiment, facts)
    homes: dict[str | None, list[str]] = {}
    for name, workload in (experiment.get("workloads") or {}).items():
        if workload.get("kind") == "requests":
            continue  # they run where their prefill and decode do
        home = (streams.get(workload.get("stream")) or {}).get("partition")
        of_ranks = trace.metadata.partition(home).sm_count is not None
        is_there = home in trace.metadata.partitions or of_ranks
        homes.setdefault(home if is_there else None, []).append(name)
    parts = []
    for home, names in homes.items():
        who = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        share = "shares" if len(names) == 1 else "share"
        if home is None:
            alone = len(names) == 1 and len(homes) == 1
            parts.append(f"{who} {'has' if alone else share} the whole GPU")
            continue
        partition = trace.metadata.partition(home)
        rest = "the remaining " if partition.asked == "rest" else ""
        size = f"{partition.sm_count} SMs" if partition.sm_count else f"partition {home}"
        parts.append(f"{who} {'has' if len(names) == 1 else share} {rest}{size}")
    return ", ".join(parts)


def _otherwise(experiment: Description, facts: Description) -> list[str]:
    """Say what else a setting does: priorities, and the SM count that libraries are not told."""
    others = []
    for name, stream in _streams(experiment, facts).items():
        if priority := stream.get("priority"):
            rank = "before" if priority < 0 else "after"
            others.append(
                f"blocks on stream {name} start {rank} those of others that wait (priority "
                f"{priority})"
            )
    if facts.get("sm_count_target") == "off":
        others.append("cuBLAS is not told how many SMs it has, so it plans for the whole GPU")
    return others
