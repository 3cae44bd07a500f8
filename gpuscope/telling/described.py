"""What was run in words: workloads and settings of an experiment."""

from __future__ import annotations

from collections.abc import Mapping

from gpuscope._checks import door
from gpuscope._text import clean, format_value
from gpuscope.telling.rules import names_listed
from gpuscope.trace.metadata import Description
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run

_COMMON = frozenset(
    {
        *("kind", "stream", "repeats", "warmup", "background", "max_queued", "rate_hz", "arrival"),
        *("waits_on", "guard", "sm_count_target"),
    }
)
_LONGEST = 40
"""Characters of a foreign text."""


def describe_workload(facts: Description, *, driven: bool = False) -> str:
    """Say in one line what a workload of an experiment is, whatever its values are.

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
    'gemm 512³ float16 on s, 1,000 calls, poisson 1 kHz'
    """
    if facts.get("kind") == "requests":
        return _describe_requests(facts)
    if driven:
        calls = "as requests need it"
    elif facts.get("background") is True:
        calls = "in the background"
    else:
        calls = f"{_text(facts.get('repeats', 100))} calls{_arriving(facts)}"
    queued, waits_on = facts.get("max_queued", 1), facts.get("waits_on") or ()
    waits_on = waits_on if isinstance(waits_on, list | tuple) else [waits_on]
    notes = [
        calls,
        "" if queued == 1 else f"up to {_text(queued)} queued",
        f"waits on {', '.join(map(_text, waits_on))}" if waits_on else "",
        "guard off: it escapes" if facts.get("guard") is False else "",
    ]
    stream = f" on {_text(facts['stream'])}" if facts.get("stream") else ""
    return f"{_what(facts)}{stream}, {', '.join(filter(None, notes))}"


def _what(facts: Description) -> str:
    """Say what a workload computes: "gemm 512³ float16"."""
    fields = {name: value for name, value in facts.items() if name not in _COMMON}
    kind, _, function = str(facts.get("kind")).partition(":")
    words = [_text(kind.replace("_", " "))]
    if kind == "python":
        given = fields.pop("args", None) or {}
        pairs = given.items() if isinstance(given, Mapping) else ()
        named = [f"{name}={value!r}" for name, value in pairs]
        words = [f"{_text(function or 'a Python function')}({', '.join(named)})"]
    if {"m", "n", "k"} <= fields.keys():
        sides = [_text(fields.pop(side)) for side in "mnk"]
        words.append(f"{sides[0]}³" if len({*sides}) == 1 else "×".join(sides))
    for name, value in fields.items():
        if name == "nbytes":
            words.append(_bytes(value) if isinstance(value, int) else _text(value))
        elif name == "duration_us":
            words.append(f"{_text(value)} µs")
        else:
            words.append(_text(value) if name == "dtype" else f"{name} {_text(value)}")
    return " ".join(words)


def _arriving(facts: Description) -> str:
    arrival, rate = facts.get("arrival", "back_to_back"), facts.get("rate_hz")
    if arrival == "back_to_back" or rate is None:
        return f" {_text(arrival).replace('_', ' ')}"
    if isinstance(rate, int | float):
        rate = f"{rate / 1000:g} kHz" if rate >= 1000 else f"{rate:g} Hz"
    return f", {_text(arrival)} {_text(rate)}"


def _describe_requests(facts: Description) -> str:
    tokens, slo = facts.get("output_tokens", 64), facts.get("slo") or {}
    words = _text(tokens)
    if isinstance(tokens, list) and tokens and all(isinstance(n, int) for n in tokens):
        words = f"{_text(min(tokens))} to {_text(max(tokens))}"
    elif isinstance(tokens, str):
        name, *values = tokens.split() or [""]
        forms = {"uniform": " to ".join(values), "geometric": f"on average {' '.join(values)}"}
        words = _text(forms.get(name, tokens))
    notes = [
        f"{_text(facts.get('repeats', 100))} requests"
        + (" at recorded times" if facts.get("times_ms") else _arriving(facts)),
        f"prefilled by {_text(facts.get('prefill'))}",
        f"{words} tokens each by {_text(facts.get('decode'))}",
        f"up to {_text(facts.get('batch', 16))} at a time",
        *(limits_of(slo) if isinstance(slo, Mapping) else ()),
    ]
    return ", ".join(notes)


def limits_of(slo: Mapping[str, object]) -> list[str]:
    """Return the limits of an SLO in words."""
    return [f"{name[:4].strip('_').upper()} ≤ {_text(most)} ms" for name, most in slo.items()]


def _text(value: object) -> str:
    return clean(format_value(value), _LONGEST)


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
        homes = _placed(run.experiment, facts, trace)
        differences = _otherwise(run.experiment, facts)
        same = next((name for name, earlier in places.items() if earlier == homes), None)
        if same is not None and differences:
            words_of[setting] = f"as “{same}”, but {'; '.join(differences)}"
        else:
            words_of[setting] = "; ".join([homes, *differences])
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
    differences = []
    for name, stream in _streams(experiment, facts).items():
        if priority := stream.get("priority"):
            rank = "before" if priority < 0 else "after"
            differences.append(
                f"blocks on stream {name} start {rank} those of others that wait (priority "
                f"{priority})"
            )
    if facts.get("sm_count_target") == "off":
        differences.append("cuBLAS is not told how many SMs it has, so it plans for the whole GPU")
    return differences
