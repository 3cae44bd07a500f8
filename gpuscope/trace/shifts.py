"""How two ranks' sequences of collectives stand to each other, by kernels and their times.

A recording may begin and end in the middle of a run: the n-th kernel of one rank then is another
collective than the n-th of another rank. A shift is taken only if all others are ruled out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpuscope._types import Array, Ints
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
_STEPS = 80
"""Of a search for the drift at which bounds leave the most room: each keeps two thirds."""


class KernelSequence(NamedTuple):
    """Kernels of one stream in order: what each is, as a text, and its first and last ns."""

    what: Sequence[str]
    starts: Ints
    ends: Ints


def shift_between(
    one: KernelSequence, other: KernelSequence, apart_ns: int | None
) -> tuple[int | None, int]:
    """Return at which shift kernel i of ``other`` is kernel i + shift of ``one``.

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
        for sequence in (one, other)
    )
    shorter = min(len(kernels), len(other_kernels))
    least = 1 if apart_ns is not None else max(1, int(np.ceil(_SHARE * shorter)))
    possible: dict[int, float] = {}
    telling: set[int] = set()
    for shift in range(least - len(other_kernels), len(kernels) - least + 1):
        first, last = max(0, -shift), min(len(other_kernels), len(kernels) - shift)
        for end in (min(first + _FEW, last), last):
            here, there = slice(first + shift, end + shift), slice(first, end)
            pairs = one.starts[here], one.ends[here], other.starts[there], other.ends[there]
            if (kernels[here] != other_kernels[there]).any() or not _meet(*pairs, apart_ns):
                break
        else:
            possible[shift] = _spread_ns(*pairs, apart_ns)
            kinds = len({*kernels[here].tolist()})
            if apart_ns is not None or last - first >= _TELLING or kinds >= _KINDS:
                telling.add(shift)
    if not possible:
        return None, 0
    best, *others = sorted(possible, key=lambda shift: (possible[shift], abs(shift)))
    is_whole = best == 0 and len(kernels) == len(other_kernels) and not others
    is_clear = all(
        possible[shift] >= _CLEARER * max(possible[best], _RESOLVED_NS) for shift in others
    )
    return (best if is_whole or (is_clear and best in telling) else None), len(possible)


def _meet(
    begun: Ints, ended: Ints, others_begun: Ints, others_ended: Ints, apart_ns: int | None
) -> bool:
    """Whether each pair may have been of one collective."""
    low, high = begun - others_ended, ended - others_begun
    if apart_ns is not None:
        return bool((low <= apart_ns).all() and (high >= -apart_ns).all())
    elapsed = others_begun - others_begun[0]
    base_ns = low[0]  # clocks may be days apart
    low, high = low - base_ns, high - base_ns

    def lacks_ns(rate: float) -> float:
        """By how much no offset obeys all bounds at this drift: convex."""
        moved = rate * elapsed
        return float((low - moved).max() - (high - moved).min())

    least, most = -RATE, RATE
    for _ in range(_STEPS):
        third = (most - least) / 3
        if lacks_ns(least + third) <= _ROUNDED_NS:
            return True
        if lacks_ns(least + third) < lacks_ns(most - third):
            most -= third
        else:
            least += third
    return lacks_ns((least + most) / 2) <= _ROUNDED_NS


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
