"""Metadata of several traces as that of one: what becomes of each field."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import chain
from operator import or_
from typing import Any, TypeAlias, TypeVar

from msgspec.structs import asdict, replace

from gpuscope.trace.facts import RecordingCost, SamplingFacts
from gpuscope.trace.gpu_states import numbered
from gpuscope.trace.metadata import TraceMetadata

_V = TypeVar("_V")
Rules: TypeAlias = Mapping[str, Callable[[Sequence[Any]], object]]
"""Field → what makes of its values in all traces the one in the whole."""


def combined(every: Sequence[TraceMetadata], rules: Rules) -> TraceMetadata:
    """Return the first trace's metadata, with the fields that have rules combined of all."""
    fields = {
        name: rule([getattr(metadata, name) for metadata in every]) for name, rule in rules.items()
    }
    return replace(every[0], **fields)


def united(mappings: Sequence[Mapping[str, _V]]) -> dict[str, _V]:
    """Return all of them; of what several have, the first."""
    return reduce(lambda first, other: first | {**other} | first, mappings, dict[str, _V]())


def common(values: Sequence[_V]) -> _V | None:
    """Return what all are, if they are the same."""
    return values[0] if all(value == values[0] for value in values) else None


def joined(texts: Sequence[str | None]) -> str:
    """Return the different texts that are not empty."""
    return ", ".join(dict.fromkeys(filter(None, texts)))


def agreed(mappings: Sequence[Mapping[str, _V]]) -> dict[str, _V]:
    """Return that in which all agree that have it."""
    every = united(mappings).items()
    return {
        name: value for name, value in every if all(m.get(name, value) == value for m in mappings)
    }


def dearest(costs: Sequence[RecordingCost | None]) -> RecordingCost | None:
    """Return the cost that is the largest share of its program's time."""
    return max(filter(None, costs), key=lambda cost: cost.share, default=None)


def all_samples(every: Sequence[SamplingFacts | None]) -> SamplingFacts | None:
    """Return what all samples come to, of the longest period."""
    sampled = [*filter(None, every)]
    if not sampled:
        return None
    counts = summed([asdict(facts) for facts in sampled])
    return SamplingFacts(**counts | {"period_ns": max(facts.period_ns for facts in sampled)})


def summed(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums of counts."""
    total: Counter[str] = Counter()
    for mapping in counts:
        total.update(mapping)
    return dict(total)


def in_all(kinds: Sequence[Sequence[_V]]) -> tuple[_V, ...]:
    """Return what all have, in the order of the first."""
    return tuple(
        kind for kind in next(iter(kinds), ()) if all(kind in sequence for sequence in kinds)
    )


def _later(mappings: Sequence[Mapping[str, _V]]) -> dict[str, _V]:
    """Return all of them; of what several have, the last."""
    return reduce(or_, map(dict, mappings))


ONE_CLOCK: Rules = {
    **dict.fromkeys(("devices", "partitions", "streams", "process_names", "thread_names"), _later),
    "windows_ns": lambda windows: tuple(chain.from_iterable(windows)),
    "recording_cost": dearest,
    "sampling": all_samples,
    "gpu_states": numbered,
    "energy": lambda rounds: tuple(chain.from_iterable(rounds)) if all(rounds) else (),
    "kept": lambda _: None,  # the notes say it of each
    "counts": summed,
    "simulated": any,
    "edges": in_all,
    "complete": all,
    "notes": lambda notes: tuple(dict.fromkeys(chain.from_iterable(notes))),
}
"""Of traces that share a clock, such as batches of a recording."""
RANKS: Rules = {
    **dict.fromkeys(("devices", "partitions", "streams", "process_names", "thread_names"), united),
    **dict.fromkeys(("device_max_connections", "experiment", "setting"), common),
    "clock": lambda clocks: common(clocks) or "",
    "simulated": any,
    "edges": in_all,
    "complete": all,
    "forecast": joined,
    "driver": lambda drivers: joined(drivers) or None,
    "recording_cost": dearest,
    "sampling": all_samples,
    "gpu_states": lambda states: tuple(chain.from_iterable(states)),
    "kept": lambda _: None,
    "solo": agreed,
    "energy": lambda _: (),  # a GPU's, which may be that of several
    "versions": lambda versions: {
        name: joined([packages.get(name) for packages in versions]) for name in united(versions)
    },
    "counts": summed,
}
"""Of the traces of ranks."""
