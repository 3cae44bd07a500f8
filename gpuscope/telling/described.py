"""What was run in words: workloads and settings of an experiment."""

from __future__ import annotations

from gpuscope._checks import door
from gpuscope.telling.rules import names_listed
from gpuscope.trace.metadata import Description
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run

_COMMON = frozenset(
    {
        *("kind", "stream", "repeats", "warmup", "background", "max_queued", "rate_hz", "arrival"),
        *("waits_on", "guard", "dtype", "sm_count_target"),
    }
)


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
    >>> from gpuscope.telling.described import describe_workload
    >>> describe_workload({"kind": "gemm", "m": 512, "n": 512, "k": 512, "dtype": "float16",
    ...                    "stream": "s", "repeats": 1000, "rate_hz": 1000, "arrival": "poisson"})
    'gemm 512 × 512 × 512 float16 on s, 1,000 calls at random moments, 1,000 a second'
    """
    if facts.get("kind") == "requests":
        return _describe_requests(facts)
    fields = {name: value for name, value in facts.items() if name not in _COMMON}
    sides = [fields.pop(name) for name in ("m", "n", "k") if {"m", "n", "k"} <= facts.keys()]
    kind = str(facts.get("kind"))
    if kind.startswith("python:"):
        given = (f"{name}={value!r}" for name, value in (fields.pop("args", None) or {}).items())
        kind = f"{kind.removeprefix('python:')}({', '.join(given)})"
    else:
        kind = kind.replace("_", " ")
    words = [kind, " × ".join(map(str, sides))]
    if "nbytes" in fields:
        words.append(_bytes(fields.pop("nbytes")))
    if "duration_us" in fields:
        words.append(f"{fields.pop('duration_us'):g} µs")
    words += [str(facts.get("dtype", "")), *(f"{name} {value}" for name, value in fields.items())]
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


@door(run=Run)
def describe_settings(run: Run) -> dict[str, str]:
    """Say in one line what each setting of a run is: who ran on which SMs, and what else differs.

    Returns
    -------
    dict
        Setting → words.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2}},
    ... }
    >>> gs.telling.describe_settings(gs.run(one, gpu))
    {'default': 'w has the whole GPU'}
    """
    described = run.experiment.get("settings") or {}
    words_of: dict[str, str] = {}
    places: dict[str, str] = {}
    for setting, trace in run.traces.items():
        facts = described.get(setting) or {}
        homes, others = _placed(run.experiment, facts, trace), _otherwise(run.experiment, facts)
        same = next((name for name, known in places.items() if known == homes), None)
        if same is not None and others:
            words_of[setting] = f"as “{same}”, but {'; '.join(others)}"
        else:
            words_of[setting] = "; ".join([homes, *others])
        places[setting] = homes
    return words_of


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
        who = names_listed("workload", names)
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
