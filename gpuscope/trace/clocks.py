"""Several clocks put on one, by collectives: none ends on any rank before it has begun on all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple

import numpy as np

from gpuscope._text import duration
from gpuscope._types import Array, Ints
from gpuscope.errors import AlignmentError

RATE = 500e-6
"""By how much one clock may gain on another: a system's clock is disciplined by at most this."""
_PASSES = 6
"""Each pass puts the times on the lines of the one before, and finds what these still lack: less
than 1 ns after two to six."""
_STEPS = 20_000
"""Projections at most. A few are enough, unless bounds contradict each other in a ring."""
_OVER_RELAXED = 1.2
"""How far beyond a constraint's border a step goes, over the way to it: 1 to 2 converge."""
_DONE_NS = 0.25
"""By how much constraints may be violated in the end: times are whole ns."""
_CONTRADICTS_NS = 1.0
"""Bounds of two clocks contradict each other only where they do by more than times are rounded."""
_ROUNDED_NS = 2
"""Lines add whole ns to each of two times, and begin with whole ns."""


@dataclass(frozen=True)
class Line:
    """What to add to the times of a clock: so much at one time, and ``rate`` more each ns."""

    since_ns: int = 0
    offset_ns: int = 0
    rate: float = 0.0

    def at(self, times: Ints) -> Ints:
        """Return what to add to times of the clock, ns."""
        more = np.rint(self.rate * (times - self.since_ns)).astype(np.int64)
        return np.asarray(self.offset_ns + more)

    def then(self, offset_ns: float, rate: float, since_ns: int) -> Line:
        """Return this line, and then another one on the times that it gives."""
        grown = offset_ns + rate * (self.since_ns + self.offset_ns - since_ns)
        return Line(
            self.since_ns, self.offset_ns + round(grown), self.rate + rate * (1 + self.rate)
        )


class Bound(NamedTuple):
    """A collective between clocks.

    Attributes
    ----------
    begin_ns, end_ns
        Clock → when by it the last of its ranks had begun, and the first had ended, as far as
        that is sure.
    """

    begin_ns: Mapping[int, int]
    end_ns: Mapping[int, int]


def aligned(
    bounds: Sequence[Bound], reach: Sequence[tuple[int, int]], names: Sequence[str]
) -> tuple[list[Line], Array]:
    """Return what puts each clock on the first one's time, and how far that can be off.

    A collective bounds how two clocks stand to each other from both sides: ``begin`` by one is not
    after ``end`` by the other. Of all lines that obey every bound and :data:`RATE`, the middle of
    the extremes at the first and last time is taken if it obeys them, else one near it that does.

    Parameters
    ----------
    reach
        Clock → its first and last time.
    names
        Clock → what it is called.

    Returns
    -------
    lines
        One a clock.
    errors
        Two clocks → how far the difference of their times can be off over all of ``reach``, ns.

    Raises
    ------
    AlignmentError
        No lines obey all bounds, or nothing bounds a clock.
    """
    lines = _roughly(bounds, len(reach), names)
    errors: Array = np.zeros((len(reach), len(reach)))
    for _ in range(_PASSES if len(reach) > 1 else 0):
        ends = np.array(
            [line.at(np.array(pair)) + pair for line, pair in zip(lines, reach, strict=True)]
        )
        low, length = int(ends.min()), max(int(ends.max() - ends.min()), 1)
        rows = _constraints(bounds, lines, low, length)
        gained = np.array([line.rate * length for line in lines])
        moves, errors = _solve(rows, gained, RATE * length, names)
        lines = [
            line.then(first, (last - first) / length, low)
            for line, (first, last) in zip(lines, moves, strict=True)
        ]
        if np.abs(moves).max() < 1:
            break
    return lines, errors + _ROUNDED_NS * (1 - np.eye(len(reach)))


def _roughly(bounds: Sequence[Bound], count: int, names: Sequence[str]) -> list[Line]:
    """Let one collective of each two clocks end on both at the same time."""
    lines: dict[int, Line] = {0: Line()}
    left = list(bounds)
    while left and len(lines) < count:
        anchored = [bound for bound in left if any(clock in lines for clock in bound.end_ns)]
        left = [bound for bound in left if not all(clock in lines for clock in bound.end_ns)]
        if not anchored:
            break
        for bound in anchored:
            base = next(clock for clock in bound.end_ns if clock in lines)
            end = bound.end_ns[base] + lines[base].offset_ns
            for clock, own_end in bound.end_ns.items():
                lines.setdefault(clock, Line(own_end, end - own_end))
    if len(lines) < count:
        lacking = next(clock for clock in range(count) if clock not in lines)
        raise AlignmentError(
            f"nothing tells how the clock of {names[lacking]} stands to that of {names[0]}: their "
            "times are not of one clock, and no collective that both took part in was matched. Let "
            "both take part in one while they are recorded, or record them on one machine"
        )
    first = lines[0]
    return [Line(first.since_ns) if clock == 0 else lines[clock] for clock in range(count)]


def _constraints(
    bounds: Sequence[Bound], lines: Sequence[Line], low: int, length: int
) -> dict[tuple[int, int], Array]:
    """Return two clocks → the constraints that bind, as rows of (at, most)."""
    times: dict[int, tuple[list[int], list[int], list[int]]] = {}
    for number, bound in enumerate(bounds):
        for clock, begin in bound.begin_ns.items():
            columns = times.setdefault(clock, ([], [], []))
            for values, value in zip(columns, (number, begin, bound.end_ns[clock]), strict=True):
                values.append(value)
    arrays_of_clock = {}
    for clock, columns in times.items():
        numbers, begins, ends = map(np.array, columns)
        begins, ends = begins + lines[clock].at(begins) - low, ends + lines[clock].at(ends) - low
        arrays_of_clock[clock] = numbers, begins.astype(float), ends.astype(float)
    rows = {}
    for (clock, (numbers, _, ends)), (other, (other_numbers, begins, _)) in permutations(
        arrays_of_clock.items(), 2
    ):
        _, positions, other_positions = np.intersect1d(numbers, other_numbers, return_indices=True)
        if len(positions):
            most = ends[positions] - begins[other_positions]
            # Meanwhile one may have gained on the other; times are whole ns.
            most += RATE * np.abs(most) + 1
            rows[clock, other] = _lower_hull(
                (ends[positions] + begins[other_positions]) / 2 / length, most
            )
    return rows


def _lower_hull(at: Array, most: Array) -> Array:
    """Return the points that no line may be above, without those that others imply.

    The lower convex hull, by Andrew's monotone chain.
    """
    points = np.column_stack([at, most])[np.lexsort((most, at))]
    hull: list[tuple[float, float]] = []
    for x, y in points.tolist():
        if hull and hull[-1][0] == x:
            continue
        while len(hull) > 1 and (
            (hull[-1][0] - hull[-2][0]) * (y - hull[-2][1])
            <= (hull[-1][1] - hull[-2][1]) * (x - hull[-2][0])
        ):
            hull.pop()
        hull.append((x, y))
    return np.array(hull)


def _solve(
    rows: Mapping[tuple[int, int], Array], gained: Array, drift: float, names: Sequence[str]
) -> tuple[Array, Array]:
    """Return each clock's offset at the beginning and the end, and the errors of each two.

    The bounds of two clocks also follow from those of each with a third: shortest paths, by Floyd
    and Warshall.

    Parameters
    ----------
    gained
        Clock → how much its line gives it already, from the beginning to the end.
    drift
        How much one may gain on another in all.
    """
    count = len(gained)
    most = np.full((2, count, count), np.inf)
    """At the beginning and the end: how far the second clock may be ahead of the first."""
    most[:, range(count), range(count)] = 0
    for clock, other in rows:
        if clock < other:
            more = gained[other] - gained[clock]
            corners = _feasible(rows[clock, other], rows[other, clock], -drift - more, drift - more)
            if not len(corners):
                raise _contradiction(rows, clock, other, names)
            most[:, clock, other] = corners.max(axis=0)
            most[:, other, clock] = -corners.min(axis=0)
    for via in range(count):
        most = np.minimum(most, most[:, :, via, None] + most[:, None, via, :])
    clash = np.argwhere(np.diagonal(most, axis1=1, axis2=2) < -_CONTRADICTS_NS)
    if len(clash):
        end, clock = clash[0].tolist()  # and another clock, on a cycle of negative length
        around = most[end, clock] + most[end, :, clock]
        around[clock] = np.inf
        raise _contradiction(rows, clock, int(np.argmin(around)), names)
    offsets = ((most[:, 0, :] - most[:, :, 0]) / 2).T
    offsets = _obeying(rows, offsets, gained, drift, names)
    ahead = offsets.T[:, None, :] - offsets.T[:, :, None]
    return offsets, np.maximum(most - ahead, most.swapaxes(1, 2) + ahead).max(axis=0)


def _feasible(above: Array, below: Array, least: float, most: float) -> Array:
    """Return the corners of all lines (first, last) that obey two clocks' constraints.

    Each constraint clips a polygon, as Sutherland and Hodgman (1974) do.

    Parameters
    ----------
    above, below
        Rows of (at, most) for how far the second clock is ahead, and for how far it is behind.
    least, most
        Last − first lies between.
    """
    far = max(np.abs(above[:, 1]).max(), np.abs(below[:, 1]).max()) + 2 * (most - least) + 1
    corners = np.array(
        [(-far, -far + least), (far, far + least), (far, far + most), (-far, -far + most)]
    )
    ahead = np.column_stack([1 - above[:, 0], above])
    limits = np.r_[ahead, np.column_stack([below[:, 0] - 1, -below[:, 0], below[:, 1]])]
    for first, last, limit in limits:
        beyond = corners @ (first, last) - limit
        clipped = []
        for number, corner in enumerate(corners):
            after = (number + 1) % len(corners)
            if beyond[number] <= 0:
                clipped.append(corner)
            if (beyond[number] < 0 < beyond[after]) or (beyond[after] < 0 < beyond[number]):
                share = beyond[number] / (beyond[number] - beyond[after])
                clipped.append(corner + share * (corners[after] - corner))
        corners = np.array(clipped)
        if not len(corners):
            break
    return corners


def _obeying(
    rows: Mapping[tuple[int, int], Array],
    offsets: Array,
    gained: Array,
    drift: float,
    names: Sequence[str],
) -> Array:
    """Return offsets that obey all constraints: those given, or projected on what they violate.

    The relaxation of Agmon and of Motzkin and Schoenberg (1954).
    """
    limits = [(*pair, 1 - at, at, most) for pair, some in rows.items() for at, most in some]
    limits += [(*pair, -1, 1, drift + gained[pair[0]] - gained[pair[1]]) for pair in rows]
    earlier, later = np.array([limit[:2] for limit in limits]).T
    weights, most = np.hsplit(np.array([limit[2:] for limit in limits]), [2])
    # The first clock does not move.
    sizes = (weights**2).sum(axis=1) * ((earlier > 0).astype(int) + (later > 0))
    for _ in range(_STEPS):
        beyond = ((offsets[later] - offsets[earlier]) * weights).sum(axis=1) - most[:, 0]
        worst = int(np.argmax(beyond / np.sqrt(sizes)))
        if beyond[worst] <= _DONE_NS:
            return offsets
        step = _OVER_RELAXED * beyond[worst] / sizes[worst] * weights[worst]
        offsets = offsets.copy()
        offsets[later[worst]] -= step
        offsets[earlier[worst]] += step
        offsets[0] = 0
    raise _contradiction(rows, int(earlier[worst]), int(later[worst]), names)


def _contradiction(
    rows: Mapping[tuple[int, int], Array], clock: int, other: int, names: Sequence[str]
) -> AlignmentError:
    """Say by how much two clocks cannot obey their constraints, were they even."""
    width = 0.0
    if (clock, other) in rows:
        width = float(rows[clock, other][:, 1].min() + rows[other, clock][:, 1].min())
    by_how_much = f" by {duration(-width)}" if width < 0 else ""
    return AlignmentError(
        f"the collectives of {names[clock]} and {names[other]} contradict each other"
        f"{by_how_much}: by no offset and steady drift up to {RATE * 1e6:g} ppm does each begin "
        "on all ranks before it ends on any. The traces are not of one run, or a clock was set "
        "meanwhile"
    )
