"""What a stretch of time consists of: busy shares, overlap, confinement, and the calls inside."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuscope._types import Array
from gpuscope.timeline.calls import TrackedCalls
from gpuscope.timeline.labels import Track
from gpuscope.timeline.tracks import Tracks
from gpuscope.timeline.waiting import PartClass, classed

MOST_CALLS = 20_000
"""Calls whose parts are summed; of more, so many that are evenly spaced."""
PAIRED = 6
"""The busiest rows, whose pairs are looked at; and the pairs that are told."""


@dataclass(frozen=True)
class Stretch:
    """Facts of a stretch of time.

    Attributes
    ----------
    busy_ns
        Row of the GPU → for how long it was busy.
    overlap_ns
        Pair of rows → for how long both were; of the pairs that overlap most.
    escapes
        Partition → kernels that start in it and were intended for it, and how many escaped.
    latency_ns
        Workload → lengths of its calls that are wholly inside.
    parts
        Class → sum of these parts of these calls, in the order of their first.
    sampled
        Of how many calls the parts are summed, if not of all.
    """

    busy_ns: dict[str, int]
    overlap_ns: dict[tuple[str, str], int]
    escapes: dict[str, tuple[int, int]]
    latency_ns: dict[str, Array]
    parts: dict[PartClass, int]
    sampled: int | None


def stretch_of(tracks: Tracks, shown: Sequence[Track], window_ns: tuple[int, int]) -> Stretch:
    """Return what a stretch of time consists of."""
    rows = [track for track in shown if track.is_work]
    busy = {track.label: tracks.busy_in([track.number], window_ns) for track in rows}
    busiest = sorted(rows, key=lambda track: -busy[track.label])[:PAIRED]
    overlap = {}
    for a, b in itertools.combinations(busiest, 2):
        either = tracks.busy_in([a.number, b.number], window_ns)
        overlap[a.label, b.label] = busy[a.label] + busy[b.label] - either
    most = sorted(overlap, key=lambda pair: -overlap[pair])[:PAIRED]
    latency, parts, sampled = _calls(tracks, window_ns)
    escapes = _escapes(tracks, window_ns)
    return Stretch(busy, {pair: overlap[pair] for pair in most}, escapes, latency, parts, sampled)


def _escapes(tracks: Tracks, window_ns: tuple[int, int]) -> dict[str, tuple[int, int]]:
    start, intended = tracks.start_ns, tracks.coded["intended_partition"]
    kinds = tracks.coded["kind"]
    is_kernel = np.array([kind == "kernel" for kind in kinds.values])[kinds.codes]
    inside = is_kernel & (start >= window_ns[0]) & (start < window_ns[1])
    escaped = np.zeros(len(tracks), bool)
    escaped[tracks.escaped] = True
    count, out = (
        np.bincount(intended.codes[chosen], minlength=len(intended.values)).tolist()
        for chosen in (inside, inside & escaped)
    )
    return {
        str(name): (count[at], out[at])
        for at, name in enumerate(intended.values)
        if name is not None and count[at]
    }


def _calls(
    tracks: Tracks, window_ns: tuple[int, int]
) -> tuple[dict[str, Array], dict[PartClass, int], int | None]:
    calls = tracks.calls or TrackedCalls.none()
    inside = np.flatnonzero((calls.start_ns >= window_ns[0]) & (calls.end_ns <= window_ns[1]))
    latency: dict[str, Array] = {}
    workload = [tracks.coded[name] for name in ("category", "name")]
    codes = np.stack([column.codes[calls.row[inside]] for column in workload])
    codes[1, codes[0] > 0] = 0
    for category, name in np.unique(codes, axis=1).T.tolist():
        called = workload[0].values[category] or workload[1].values[name]
        at = inside[(codes == [[category], [name]]).all(axis=0)]
        latency[str(called)] = calls.end_ns[at] - calls.start_ns[at]
    is_sampled = len(inside) > MOST_CALLS
    if is_sampled:
        inside = inside[np.linspace(0, len(inside) - 1, MOST_CALLS).astype(np.int64)]
    seen = calls.seen([inside], keep=False)
    work = np.repeat(calls.work[seen.call], np.diff(seen.first))
    classes, look = classed(tracks, seen.kind, seen.cause, work)
    sums = np.bincount(look, seen.length_ns, len(classes)).astype(np.int64).tolist()
    return latency, dict(zip(classes, sums, strict=True)), len(inside) if is_sampled else None
