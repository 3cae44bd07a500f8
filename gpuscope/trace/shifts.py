"""How two ranks' sequences of collectives stand to each other, by kernels and their times.

A recording may begin and end in the middle of a run: the n-th kernel of one rank then is another
collective than the n-th of another rank. A shift is taken only if all others are ruled out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gpuscope._types import Array, Bools, Ints
from gpuscope.trace.clocks import RATE

_FEW = 64
"""Kernels that are compared first, as most shifts do not pass these."""
_SHARE = 0.5
"""On clocks that differ, the least share of the shorter sequence that both have to have."""
_TELLING = 8
_KINDS = 3
"""On clocks that differ, how many kernels, or how many kinds of them, it takes to believe that the
sequences are shifted."""
_CLEARER = 4
"""How much more the ends of every other shift have to vary."""
_RESOLVED_NS = 1_000
"""What ends vary by at least: NCCL's kernels do not end at the same time on all ranks."""
_ROUNDED_NS = 2
_STEPS = 64
"""Of a search for a drift that obeys all bounds: each keeps half of the drifts at most."""
_AT_ONCE = 2048
"""Shifts that are compared at once."""


class KernelSequence(NamedTuple):
    """Kernels of one stream in order: what each is, as a text, and its first and last ns."""

    what: Sequence[str]
    starts: Ints
    ends: Ints


def shift_between(
    base: KernelSequence, other: KernelSequence, apart_ns: int | None
) -> tuple[int | None, int]:
    """Return at which shift kernel i of ``other`` is kernel i + shift of ``base``.

    No collective ends on any rank before it has begun on all. Where that leaves several shifts, the
    right one is that at which kernels end on both ranks at the same time, if all others vary by
    far more.

    Parameters
    ----------
    apart_ns
        How far the two clocks can be off; ``None`` where nothing is known of that.

    Returns
    -------
    shift
        ``None`` where none is possible, or several are.
    possible
        How many are.
    """
    codes: dict[str, int] = {}
    kernels, other_kernels = (
        np.array([codes.setdefault(what, len(codes)) for what in sequence.what], np.int64)
        for sequence in (base, other)
    )
    shorter = min(len(kernels), len(other_kernels))
    least = 1 if apart_ns is not None else max(1, int(np.ceil(_SHARE * shorter)))
    possible: dict[int, float] = {}
    telling: set[int] = set()
    few = min(_FEW, least)
    for shift in _plausible(
        (kernels, base.starts, base.ends),
        (other_kernels, other.starts, other.ends),
        range(least - len(other_kernels), len(kernels) - least + 1),
        few,
        apart_ns,
    ):
        first, last = max(0, -shift), min(len(other_kernels), len(kernels) - shift)
        rows, other_rows = slice(first + shift, last + shift), slice(first, last)
        pairs = base.starts[rows], base.ends[rows], other.starts[other_rows], other.ends[other_rows]
        is_alike = (kernels[rows] == other_kernels[other_rows]).all()
        if not is_alike or not _meet(np.stack(pairs)[:, None], apart_ns).all():
            continue
        possible[shift] = _spread_ns(*pairs, apart_ns)
        kinds = len({*kernels[rows].tolist()})
        if apart_ns is not None or last - first >= _TELLING or kinds >= _KINDS:
            telling.add(shift)
    if not possible:
        return None, 0
    best, *alternatives = sorted(possible, key=lambda shift: (possible[shift], abs(shift)))
    is_whole = best == 0 and len(kernels) == len(other_kernels) and not alternatives
    is_clear = all(
        possible[shift] >= _CLEARER * max(possible[best], _RESOLVED_NS) for shift in alternatives
    )
    return (best if is_whole or (is_clear and best in telling) else None), len(possible)


def _plausible(
    base: tuple[Ints, Ints, Ints],
    other: tuple[Ints, Ints, Ints],
    shifts: range,
    few: int,
    apart_ns: int | None,
) -> Iterator[int]:
    """Return the shifts at which the first few pairs are alike and may meet.

    Parameters
    ----------
    base, other
        What each kernel is, its begin and its end.
    few
        At most as many pairs as each shift leaves.
    """
    for begin in range(0, len(shifts), _AT_ONCE):
        some = np.array(shifts[begin : begin + _AT_ONCE])[:, None]
        other_rows = np.maximum(0, -some) + np.arange(few)
        rows = other_rows + some
        is_alike = (base[0][rows] == other[0][other_rows]).all(axis=1)
        some, rows, other_rows = some[is_alike], rows[is_alike], other_rows[is_alike]
        pairs = base[1][rows], base[2][rows], other[1][other_rows], other[2][other_rows]
        yield from some[_meet(np.stack(pairs), apart_ns), 0].tolist()


def _meet(times: Ints, apart_ns: int | None) -> Bools:
    """Return for each row whether its pairs may have been of one collective each.

    On clocks that differ, offset and drift obey a bound for each pair. By how much no offset obeys
    all of them is a convex function of the drift, so that its tangent at one drift rules out all
    on one side of where that reaches zero.

    Parameters
    ----------
    times
        When each kernel began and ended, and when the others' did: 4 × rows × pairs.
    """
    begun, ended, others_begun, others_ended = times
    low, high = begun - others_ended, ended - others_begun
    if apart_ns is not None:
        return np.asarray(((low <= apart_ns) & (high >= -apart_ns)).all(axis=1))
    elapsed = (others_begun - others_begun[:, :1]).astype(float)
    base_ns = low[:, :1]  # clocks may be days apart
    low, high = low - base_ns, high - base_ns
    do_meet = np.zeros(len(low), bool)
    rows: Ints = np.arange(len(low))
    drift, least, most = (np.full(len(low), rate) for rate in (0.0, -RATE, RATE))
    for _ in range(_STEPS):
        since = elapsed[rows]
        moved = drift[:, None] * since
        above, below = low[rows] - moved, high[rows] - moved
        at, every = (above.argmax(axis=1), below.argmin(axis=1)), np.arange(len(rows))
        lacks_ns = above[every, at[0]] - below[every, at[1]] - _ROUNDED_NS
        slope = since[every, at[1]] - since[every, at[0]]
        do_meet[rows[lacks_ns <= 0]] = True
        reached = drift - lacks_ns / np.where(slope, slope, 1)
        most = np.where(slope > 0, np.minimum(most, reached), most)
        least = np.where(slope < 0, np.maximum(least, reached), least)
        is_open = (lacks_ns > 0) & (slope != 0) & (least <= most)
        rows, least, most = rows[is_open], least[is_open], most[is_open]
        if not len(rows):
            break
        drift = (least + most) / 2
    return do_meet


def _spread_ns(
    begun: Ints, ended: Ints, others_begun: Ints, others_ended: Ints, apart_ns: int | None
) -> float:
    """Return by how much ends differ on the two ranks, beyond what their clocks do: nine in ten."""
    del begun
    apart: Array = (ended - others_ended).astype(float)
    if apart_ns is None:  # without the least squares' line
        elapsed: Array = (others_begun - others_begun[0]).astype(float)
        elapsed -= elapsed.mean()
        apart -= apart.mean()
        apart -= elapsed * (elapsed @ apart) / max(1.0, float(elapsed @ elapsed))
    return float(np.quantile(np.abs(apart), 0.9))
