"""The outcome of a run in words: what was won and what it cost; its workloads and settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuscope._checks import door
from gpuscope._text import clean, duration
from gpuscope.analysis.result import Row
from gpuscope.analysis.settings import of_slowest_rank
from gpuscope.trace.metadata import Description
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run, incomplete, is_of_requests

WON = 1.2
"""A gain from here on is throughput won by running together."""
BETTER = 0.9
"""A latency of at most this share of another is called better."""
_SAME = 1.1
"""Latencies by less than this factor apart are equal, as p99 of an H200's repeated runs differ by
up to 17 %: then the setting that costs less counts."""
_NAMED = 3
"""Settings that a sentence names."""
_COMMON = frozenset(
    {"kind", "stream", "repeats", "warmup", "background", "max_queued", "rate_hz", "arrival",
     "waits_on", "guard", "dtype", "sm_count_target"}
)  # fmt: skip


@door(run=Run)
def outcome(run: Run) -> str:
    """Say in one sentence what was won and what it cost.

    The setting with the lowest latency of a workload that is not in the background is compared
    with the first one that carves nothing, by p99 where every setting has one, else by p50. Where
    requests are served, the one with the highest goodput is. Of several ranks the slowest counts.

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
    rows = of_slowest_rank(run.comparison.to_pylist())
    background = background_of(run.experiment)
    served = [row for row in rows if is_of_requests(row)]
    timed = [row for row in rows if row["latency_n"] and row["workload"] not in background]
    found = [
        _Comparison.of(run, [row for row in timed if row["workload"] == name], rows, background)
        for name in dict.fromkeys(row["workload"] for row in timed)
    ]
    words = max(found, key=lambda one: one.factor).words if found else _together(rows)
    if served:
        words = _of_requests(
            run, [row for row in served if row["workload"] == served[0]["workload"]]
        )
    if missing := incomplete(run.traces):
        words = f"{words.removesuffix('.')}; {missing}."
    if forecast := next(filter(None, (one.metadata.forecast for one in run.values())), ""):
        return clean(forecast)
    simulated = any(trace.is_simulated for trace in run.traces.values())
    return clean(f"Simulated: {words}" if simulated else words)


def _of_requests(run: Run, mine: list[Row]) -> str:
    """Say which setting serves requests best, or without an SLO how each token came."""
    plain = (row for row in mine if not run[row["setting"]].metadata.partitions)
    base = next(plain, mine[0])
    name = base["workload"]
    slo = run.experiment.get("workloads", {}).get(name, {}).get("slo") or {}
    if any(row["goodput_per_s"] is None for row in mine):
        return "; ".join(
            f"{name} in “{row['setting']}”: p50 of TTFT {duration(1e6 * row['ttft_p50_ms'])}, "
            f"{row['requests_per_s']:.3g} requests/s"
            for row in mine[:_NAMED]
        ) + ". State an slo to compare goodput."  # fmt: skip
    limits = " and ".join(f"{what[:4].strip('_').upper()} ≤ {slo[what]:g} ms" for what in slo)
    best = max(mine, key=lambda row: row["goodput_per_s"])
    before, after = (row["goodput_per_s"] for row in (base, best))
    goodput = f"goodput of {name} ({limits})"
    met = "{:.0f} %".format
    shares = [met(100 * row["goodput_per_s"] / row["requests_per_s"]) for row in (base, best)]
    if len(mine) == 1:
        return f"{goodput} is {after:.3g} requests/s: {shares[1]} of the requests meet it."
    if after < _SAME * before:
        return (
            f"no setting raises the {goodput} by a tenth: {before:.3g} → {after:.3g} requests/s "
            "at best."
        )
    return (
        f"{goodput} {before:.3g} → {after:.3g} requests/s (“{best['setting']}” against "
        f"“{base['setting']}”): {shares[1]} of the requests meet it, not {shares[0]}."
    )


def background_of(experiment: Description) -> list[str]:
    """Return the workloads of an experiment that run in the background."""
    described = experiment.get("workloads") or {}
    return [name for name, facts in described.items() if facts.get("background")]


@dataclass(frozen=True)
class _Comparison:
    """A workload's best setting beside its first one: by which factor, and in words."""

    factor: float
    words: str

    @classmethod
    def of(
        cls, run: Run, mine: list[Row], rows: list[Row], background: Sequence[str]
    ) -> _Comparison:
        mark = "p99" if all(row["latency_p99_us"] is not None for row in mine) else "p50"
        column = f"latency_{mark}_us"
        plain = (row for row in mine if not run[row["setting"]].metadata.partitions)
        base = next(plain, mine[0])
        least = min(row[column] for row in mine)
        costs = {
            row["setting"]: dict(_kept(rows, row["setting"], background))
            or dict(_kept_of(run, rows, row["setting"], base["setting"], background))
            for row in mine
        }
        near = (row for row in mine if row[column] <= _SAME * least)
        best = max(near, key=lambda row: min(costs[row["setting"]].values(), default=1.0))
        what = f"{mark} of {base['workload']}"
        cost = _cost(costs[best["setting"]], costs[base["setting"]], base["setting"])
        where = _place(run, best)
        factor = base[column] / best[column] if best[column] else 1.0
        if len({row["setting"] for row in mine}) == 1:
            return cls(1.0, f"{what} is {duration(1e3 * base[column])} {where}{cost}.")
        before, after = duration(1e3 * base[column]), duration(1e3 * best[column])
        if before.split(" ")[1] == after.split(" ")[1]:
            before = before.split(" ")[0]
        if best[column] > BETTER * base[column]:
            return cls(
                factor,
                f"no setting shortens the {what} by a tenth: {before} → {after} {where} at "
                f"best{cost}.",
            )
        named = f"“{best['setting']}” against “{base['setting']}”"
        return cls(factor, f"{what} {before} → {after} {where} ({named}){cost}.")


def _place(run: Run, row: Row) -> str:
    """Say where a workload ran in a setting."""
    if row["partition"] is None:
        return "on the whole GPU"
    count = run[row["setting"]].metadata.partition(row["partition"]).sm_count
    return f"on {count} SMs" if count else f"in {row['partition']}"


def _kept(rows: list[Row], setting: str, background: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yield background workloads, and the share that each kept of its rate alone."""
    for row in rows:
        share = row["share_of_alone_on_whole_gpu"]
        if row["setting"] == setting and row["workload"] in background and share is not None:
            yield row["workload"], share


def _kept_of(
    run: Run, rows: list[Row], setting: str, base: str, background: Sequence[str]
) -> Iterator[tuple[str, float]]:
    """Yield the same as a share of the rate in ``base``, with kernels for operations."""
    counts = {(row["setting"], row["workload"]): row["kernels"] for row in rows}
    for name in background:
        before = _per_ns(run[base], counts.get((base, name), 0))
        if before and setting != base:
            yield name, _per_ns(run[setting], counts.get((setting, name), 0)) / before


def _per_ns(trace: Trace, kernels: int) -> float:
    """Return kernels / time recorded."""
    length = sum(high - low for low, high in trace.metadata.windows_ns)
    return kernels / length if length else 0.0


def _cost(kept: Mapping[str, float], before: Mapping[str, float], base: str) -> str:
    """Say what each background keeps; ``before`` is known where that is of its rate alone."""
    if not kept:
        return ""
    shares = " and ".join(f"{name} keeps {100 * share:.0f} %" for name, share in kept.items())
    rate = "its rate" if len(kept) == 1 else "their rates"
    if not before:
        return f"; {shares} of {rate} in “{base}”"
    then = " and ".join(f"{100 * before[name]:.0f} %" for name in kept if name in before)
    return f"; {shares} of {rate} alone" + (f" ({then} in “{base}”)" if kept != before else "")


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
