"""A tuned split for others: SGLang, cuda.core, the CUDA driver API, JSON, and a report."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from gpuscope._checks import given, require_kind
from gpuscope._files import write_text
from gpuscope._text import clean
from gpuscope.comparing.tunings import TunedSetting, Tuning, ties, tuned_words
from gpuscope.errors import InvalidArgument
from gpuscope.experiments.carving_code import carving_code
from gpuscope.experiments.setting import StreamSpec
from gpuscope.report.series import tune_report

PREFILL, DECODE = "prefill", "decode"
"""Partitions that SGLang knows."""


def write_tuning(result: Tuning, path: str | Path, label: str | None) -> Path:
    """Write a tuning; the suffix says as what.

    Parameters
    ----------
    label
        Of the setting whose partitions are written; ``recommended`` if not given.

    Raises
    ------
    InvalidArgument
        Of another suffix, or it is not clear of which setting.
    GpuscopeError
        The file cannot be written.
    """
    target = Path(path)
    if target.suffix == ".html":
        return tune_report(result, target)
    if target.suffix == ".json":
        text = json.dumps(tuning_facts(result), indent=1) + "\n"
    elif target.suffix in _CODE:
        text = _CODE[target.suffix](result, _chosen(result, label))
    else:
        raise InvalidArgument(
            f"path ends in {given(target.suffix)}; a tuning is written as {', '.join(SUFFIXES)}"
        )
    return write_text(target, text)


def _chosen(result: Tuning, label: str | None) -> TunedSetting:
    """Return the setting that is written."""
    if label is not None:
        try:
            chosen = result[label]
        except KeyError as error:
            raise InvalidArgument(f"setting is {given(label)}: {error.args[0]}") from None
    elif result.recommended is not None:
        chosen = result.recommended
    else:
        raise InvalidArgument(
            "setting: it is not known which to take, so name one of "
            f"{[setting.label for setting in result.settings]}"
        )
    if not chosen.sizes:
        raise InvalidArgument(f"setting {chosen.label!r} has no partitions: there is none to make")
    return chosen


_PLAIN = (
    *("reachable", "confidence", "forecasts", "stopped", "command", "experiment", "device"),
    *("versions", "provenance", "incomplete"),
)
"""Facts of a tuning that JSON holds as they are."""


def tuning_facts(result: Tuning) -> dict[str, object]:
    """Return all that a tuning found, as JSON holds it."""
    words = tuned_words(result)
    chosen = {
        "best": result.best,
        "choice": result.choice,
        "recommended": result.recommended,
        "nearest": result.nearest,
    }
    return {
        **{name: getattr(result, name) for name in _PLAIN},
        **{name: setting and setting.label for name, setting in chosen.items()},
        "equals": [setting.label for setting in result.equals],
        "take": words.take,
        "left": words.left,
        "free_sms": None if result.choice is None else result.free_sms(result.choice),
        "outcome": words.outcome,
        "method": words.method,
        "ties": ties(result),
        "objective": str(result.objective),
        "slo": [str(goal) for goal in result.slo],
        "forecast_errors": words.errors,
        "settings": [_setting_facts(setting) for setting in result.settings],
    }


def _setting_facts(setting: TunedSetting) -> dict[str, object]:
    facts = {**vars(setting), "sms": setting.sizes}
    return {name: value for name, value in facts.items() if name != "sizes"}


def manual_divisions(results: Mapping[int, Tuning], labels: Mapping[int, str] | None = None) -> str:
    """Return SGLang's table of SM splits as the YAML that ``--pdmux-config-path`` takes.

    A row is ``[prefill_sm, decode_sm, decode_bs_threshold]``: it holds from that decode batch on.

    Parameters
    ----------
    results
        Decode batch → the tuning at that batch; its partitions are called ``prefill`` and
        ``decode``. Batches that have the same split give one row.
    labels
        Decode batch → label of the setting to write; ``recommended`` if not given.

    Raises
    ------
    InvalidArgument
        There is no result, partitions have other names, or it is not known which setting to take.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "partitions": {"prefill": 64, "decode": "rest"},
    ...     "streams": {"s": {"partition": "prefill"}},
    ...     "workloads": {"w": {"kind": "gemm", "m": 4096, "n": 4096, "k": 4096, "stream": "s",
    ...                         "repeats": 3}},
    ... }
    >>> result = gs.tune(one, {"partitions.prefill": [64, 112]}, "w.tflop_per_s", device=gpu)
    >>> print(gs.search.manual_divisions({1: result}).splitlines()[5])
      - [112, 20, 1]
    """
    is_right = isinstance(results, Mapping) and all(
        isinstance(batch, int) and isinstance(result, Tuning) for batch, result in results.items()
    )
    if not is_right or not results:
        raise InvalidArgument(f"results is {given(results)}; a dict of batch → tuning is needed")
    require_kind("labels", labels, Mapping, None)
    rows: list[tuple[int, int, int]] = []
    for batch, result in sorted(results.items()):
        chosen = _chosen(result, (labels or {}).get(batch))
        if not {PREFILL, DECODE} <= chosen.sizes.keys():
            raise InvalidArgument(
                f"SGLang's table needs partitions called {PREFILL!r} and {DECODE!r}, but there are "
                f"{', '.join(map(repr, chosen.sizes))}: name them so in the experiment"
            )
        split = chosen.sizes[PREFILL], chosen.sizes[DECODE]
        if not rows or rows[-1][:2] != split:
            rows.append((*split, batch))
    first = next(iter(results.values()))
    lines = [
        *(f"# {line}" for line in _head(first)),
        f"sm_group_num: {len(rows) + 2}  # the rows, and prefill and decode alone",
        "manual_divisions:  # [prefill_sm, decode_sm, decode_bs_threshold]",
        *(f"  - [{prefill}, {decode}, {batch}]" for prefill, decode, batch in rows),
        "split_forward_token_budget: 65536",
        "decode_bs_divisor: 36",
    ]
    return "\n".join(lines) + "\n"


def _head(result: Tuning) -> list[str]:
    """Return lines for comments that say where numbers come from."""
    device = result.device
    lines = [
        f"gpuscope: {tuned_words(result).outcome}",
        f"{device['name']}, {device['sm_count']} SMs, {device['driver']}",
        result.provenance,
    ]
    return [clean(line) for line in lines]


def _carving(language: str, result: Tuning, setting: TunedSetting) -> str:
    """Return code that makes the partitions of a setting, and a stream in each."""
    streams = {name: StreamSpec(partition=name) for name in setting.sizes}
    sm_count, quantum = result.device["sm_count"], result.device["quantum"]
    return carving_code(
        language, _head(result), setting.sizes, streams, sm_count=sm_count, quantum=quantum
    )


_CODE: dict[str, Callable[[Tuning, TunedSetting], str]] = {
    ".yaml": lambda result, setting: manual_divisions({1: result}, {1: setting.label}),
    ".py": partial(_carving, "cuda.core"),
    ".cpp": partial(_carving, "C++"),
}
SUFFIXES = (*_CODE, ".json", ".html")
