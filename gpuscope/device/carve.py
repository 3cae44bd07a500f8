"""Which SM counts a GPU can grant, and from which of its parts: pure arithmetic.

A driver splits an SM resource into *quanta*, equal groups of SMs, and a remainder that
is kept apart. A partition is made of whole quanta and possibly the remainder, so its
count is exact if some set of them has that many SMs. On the H200: 15 quanta of 8 and a
remainder of 12, hence 8, 12, 16, 20, 24, …, 132.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias, get_args

from gpuscope._checks import IN_ANY_ORDER, MappingOf, SeveralOf, door, given
from gpuscope._text import clean
from gpuscope.device.sizes import Rounding, Size, Sizes, named_sizes, shown
from gpuscope.errors import InvalidPartition

_Counts: TypeAlias = Mapping[str, Fraction]
"""Name → SMs asked for; a percentage may ask for no whole number."""
_Held: TypeAlias = Mapping[str, tuple[int, ...]]
"""Name → parts of the partitions that are live already."""
_Split: TypeAlias = dict[str, tuple[bool, int]]
"""Name → whether it gets the remainder, and how many quanta."""
REMAINDER = -1
"""Index that stands for the remainder in lists of quanta."""

_TELL_FROM = 0.8
"""Share of a partition's SMs that hold clusters, from which on libraries are told of them."""


@dataclass(frozen=True)
class SmLayout:
    """The parts into which a driver splits a GPU's SMs.

    Attributes
    ----------
    quantum_sm_count
        SMs in one quantum.
    quanta
        How many quanta there are.
    remainder_sm_count
        SMs in the remainder; 0 if the quanta cover the GPU.
    """

    quantum_sm_count: int
    quanta: int
    remainder_sm_count: int

    @property
    def sm_count(self) -> int:
        """SMs of the whole GPU."""
        return self.quantum_sm_count * self.quanta + self.remainder_sm_count

    @property
    def parts(self) -> frozenset[int]:
        """Its quanta, and :data:`REMAINDER` where there is one."""
        return frozenset(range(-1 if self.remainder_sm_count else 0, self.quanta))

    def grantable(self) -> list[int]:
        """Every SM count that one partition could have on an otherwise free GPU."""
        quanta = [number * self.quantum_sm_count for number in range(self.quanta + 1)]
        return sorted({*quanta, *(self.remainder_sm_count + count for count in quanta)} - {0})

    def sm_mask(self, parts: Iterable[int]) -> int:
        """Bit mask of the SMs in a set of parts: the quanta in their order, then the remainder."""
        mask = 0
        for part in parts:
            first = (self.quanta if part == REMAINDER else part) * self.quantum_sm_count
            mask |= ((1 << self.sm_count_of([part])) - 1) << first
        return mask

    def sm_count_of(self, parts: Iterable[int]) -> int:
        """SMs in a set of quanta, :data:`REMAINDER` among them or not."""
        counts = {REMAINDER: self.remainder_sm_count}
        return sum(counts.get(part, self.quantum_sm_count) for part in parts)


@dataclass(frozen=True)
class PlannedPartition:
    """One partition of a :class:`CarvePlan`: size requested and count to be granted."""

    name: str
    asked: int | str
    sm_count: int
    parts: tuple[int, ...]
    shares_with: tuple[str, ...] = ()


@dataclass(frozen=True)
class CarvePlan:
    """The sizes that ``carve`` would grant. Making a plan touches no device.

    Attributes
    ----------
    partitions
        In the order asked.
    remainder_sm_count
        SMs that no partition gets.
    remainder_parts
        The quanta they are in.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> plan = gpu.plan_carve({"a": 13, "b": 64}, rounding="up")
    >>> plan.granted(), plan.remainder_sm_count
    ({'a': 16, 'b': 64}, 52)
    """

    layout: SmLayout
    partitions: tuple[PlannedPartition, ...]
    remainder_sm_count: int
    remainder_parts: tuple[int, ...] = ()

    def granted(self) -> dict[str, int]:
        """Partition name → SM count."""
        return {part.name: part.sm_count for part in self.partitions}


def sm_count_to_tell(sm_count: int, holding: int) -> int:
    """Return the SM count that a GEMM library should tune for; 0 to tell it none.

    Parameters
    ----------
    sm_count
        SMs of the partition.
    holding
        Those of them on which clusters of four thread blocks fit at the same time. The H200's
        remainder of 12 SMs holds none.

    Notes
    -----
    cuBLAS, told an SM count, launches clusters of four or eight blocks, which leave the other
    SMs idle; told none, clusters of two, which run on every SM. Measured on an H200 with float16
    squares of 1024 to 8192 (``benchmarks/remainder.py``): where 57 to 73 % of the SMs hold
    clusters, a told product takes up to 1.7 times as long, and where 40 % do, 2.6 times; from
    80 % on it takes 0.6 to 1.17 times as long. On the remainder alone a told cuBLAS fails.
    """
    return holding if holding >= _TELL_FROM * sm_count else 0


@door(
    "layout",
    "allow_shared",
    held=(MappingOf(SeveralOf(int)), None),
    keep=(SeveralOf(str, of=IN_ANY_ORDER), MappingOf(object), None),
)
def plan_carve(
    layout: SmLayout,
    sizes: Sizes,
    *,
    rounding: Rounding = "exact",
    held: _Held | None = None,
    allow_shared: bool = False,
    keep: Collection[str] | None = None,
) -> CarvePlan:
    """Decide which quanta each partition gets.

    Parameters
    ----------
    layout
        The GPU's parts.
    sizes
        Name → SM count, a percentage of the GPU's SMs as ``"25%"``, or ``"rest"`` (at most one);
        or a list of these.
    rounding
        ``"exact"`` refuses a count or percentage that the GPU cannot grant; ``"up"`` and
        ``"down"`` take the nearest count in that direction. ``"nearest"`` takes the counts that
        can be granted together with the smallest sum of differences. More SMs than are free are
        refused with any rounding.
    held
        Name → parts of the partitions that are already open.
    allow_shared
        Whether parts held by open partitions may be granted again.
    keep
        Partitions whose counts ``"nearest"`` leaves unchanged if possible. If given, even empty,
        requests for too many SMs are reduced to those available, as for a proposal that is
        still being edited.

    Raises
    ------
    InvalidPartition
        Names the nearest counts below and above, or the partitions that hold the SMs.
    """
    named = named_sizes(sizes)
    if not isinstance(rounding, str) or rounding not in get_args(Rounding):
        raise InvalidPartition(
            f"rounding is {', '.join(map(repr, get_args(Rounding)))}, not {given(rounding)}"
        )
    held = held or {}
    taken = {part for parts in held.values() for part in parts}
    # Parts that nobody holds come first, also where sharing is allowed.
    pool = sorted(layout.parts - taken) + (sorted(taken & layout.parts) if allow_shared else [])
    quanta = [part for part in pool if part != REMAINDER]
    request = _Request(layout, named, pool, held)
    available = layout.sm_count_of(pool)
    may_be_less = rounding == "nearest" and keep is not None
    if sum(request.counts.values()) > available and not may_be_less:
        raise InvalidPartition(request.too_many(available))
    for name, count in request.counts.items() if rounding == "exact" else ():
        if count not in layout.grantable():
            words = _nearest(layout, name, named[name]) + request.together()
            raise InvalidPartition(words, may_round=True)
    split = request.split(rounding, keep or ())
    if split is None:
        raise request.no_set(rounding)
    parts: dict[str, tuple[int, ...]] = {}
    for name, (with_remainder, number) in split.items():
        parts[name] = (*quanta[:number], *([REMAINDER] if with_remainder else ()))
        quanta = quanta[number:]
    used = {part for granted in parts.values() for part in granted}
    left = tuple(part for part in pool if part not in used)
    partitions = []
    for name, size in named.items():
        if size.is_rest:
            if not left:
                raise InvalidPartition(
                    f"partition {name!r} asks for the rest, but nothing is left: the others take "
                    f"{available} of {available} SMs"
                    + (f" not held by {', '.join(held)}" if held and not allow_shared else "")
                )
            parts[name], left = left, ()
        granted = parts[name]
        shared = tuple(other for other, theirs in held.items() if set(theirs) & set(granted))
        partitions.append(
            PlannedPartition(name, size.plain, layout.sm_count_of(granted), granted, shared)
        )
    return CarvePlan(layout, tuple(partitions), layout.sm_count_of(left), left)


def _nearest(layout: SmLayout, name: str, size: Size) -> str:
    count, total = size.sm_count(layout.sm_count), layout.sm_count
    below = [f"{number} below" for number in layout.grantable() if number < count]
    above = [f"{number} above" for number in layout.grantable() if number > count]
    makeup = f"quanta of {layout.quantum_sm_count} SMs" + (
        f" and one remainder of {layout.remainder_sm_count}" if layout.remainder_sm_count else ""
    )
    nearest = " and ".join([*below[-1:], *above[:1]])
    ways = "'up', 'down' or 'nearest'" if below else "'up' or 'nearest'"
    return (
        f"partition {name!r}: this GPU cannot give {size.describe(total)} of its {total} SMs; the "
        f"nearest counts are {nearest} ({makeup}). Ask for one of these, or pass rounding={ways}"
    )


class _Request:
    """Sizes that are asked of some parts.

    Attributes
    ----------
    pool
        The parts, those that nobody holds first.
    counts
        Name → SMs asked for, but for the rest; a percentage may ask for no whole number.
    """

    def __init__(
        self, layout: SmLayout, named: Mapping[str, Size], pool: Sequence[int], held: _Held
    ) -> None:
        self.layout, self.pool, self._held = layout, pool, held
        total = layout.sm_count
        wanted = {name: size for name, size in named.items() if not size.is_rest}
        self.counts = {name: size.sm_count(total) for name, size in wanted.items()}
        self._takes_rest = len(wanted) < len(named)
        sizes = ((clean(name), size.describe(total)) for name, size in wanted.items())
        self._asked = ", ".join(f"{name}: {size}" for name, size in sizes)

    def split(self, rounding: Rounding, keep: Collection[str] = ()) -> _Split | None:
        """Return the split that differs least in sum from what is asked, or None if none fits.

        At most one partition can hold the remainder, so each is tried as its holder. Of equally
        near splits ``"nearest"`` takes the one with more SMs, and leaves something for a partition
        that takes the rest; where what ``keep`` names cannot stay, it is not kept.
        """
        layout, counts = self.layout, self.counts
        remainder = REMAINDER in self.pool
        quanta = len(self.pool) - remainder
        holders = [None, *(counts if remainder else ())]
        if rounding == "nearest":
            holders.reverse()
        best: tuple[Fraction, int, _Split] | None = None
        for holder in holders:
            rests = {name: layout.remainder_sm_count if name == holder else 0 for name in counts}
            if rounding == "nearest":
                owed = self._takes_rest and (holder is not None or not remainder)
                numbers = _nearest_quanta(layout, counts, rests, quanta - owed, keep)
            else:
                numbers = _rounded_quanta(layout, counts, rests, rounding)
            if numbers is None or sum(numbers.values()) > quanta:
                continue
            size = layout.quantum_sm_count
            granted = {name: rests[name] + numbers[name] * size for name in counts}
            distance = sum((abs(granted[name] - counts[name]) for name in counts), Fraction(0))
            fewer = -sum(granted.values()) if rounding == "nearest" else 0
            if best is None or (distance, fewer) < best[:2]:
                split = {name: (name == holder, number) for name, number in numbers.items()}
                best = (distance, fewer, split)
        if best is None:
            return self.split(rounding) if keep else None
        return best[2]

    def too_many(self, available: int) -> str:
        """Say that more SMs are asked for than are available."""
        asked = f"{shown(sum(self.counts.values(), Fraction(0)))} SMs asked for ({self._asked})"
        total = self.layout.sm_count
        if available == total:
            return f"{asked}, but the GPU has {total}: ask for fewer"
        return (
            f"{asked}, but {available} of {total} are free: live "
            f"partitions {', '.join(map(repr, self._held))} hold the others. Close them first, or "
            "pass allow_shared=True to share SMs knowingly"
        )

    def _nearest(self) -> str:
        """Name → count of the nearest split; empty if there is none."""
        size, rest = self.layout.quantum_sm_count, self.layout.remainder_sm_count
        return ", ".join(
            f"{name}: {number * size + with_rest * rest}"
            for name, (with_rest, number) in (self.split("nearest") or {}).items()
        )

    def together(self) -> str:
        """Say which counts go together where several are asked for."""
        nearest = self._nearest() if len(self.counts) > 1 else ""
        return nearest and f". The nearest that go together are {nearest}"

    def no_set(self, rounding: Rounding) -> InvalidPartition:
        """Return that no set of parts gives what is asked, and what would fit."""
        size, rest = self.layout.quantum_sm_count, self.layout.remainder_sm_count
        free = f"{sum(part != REMAINDER for part in self.pool)} quanta of {size} SMs"
        if REMAINDER in self.pool:
            free += f" and the remainder of {rest}"
        if self._held:
            free += f" (live partitions {', '.join(map(repr, self._held))} hold the others)"
        hint = "it has fewer parts than partitions are asked for"
        if nearest := self._nearest():
            hint = f"the nearest counts that go together are {nearest}"
        may_round = bool(nearest) and rounding == "exact"
        if may_round:
            hint += ". Ask for these, or pass rounding='nearest'"
        if self._held:
            hint += (
                ". Closing live partitions frees their SMs; allow_shared=True shares them knowingly"
            )
        at_once = " at the same time: only one partition can hold the remainder"
        asked = f"{self._asked}{at_once if len(self.counts) > 1 else ''}"
        return InvalidPartition(f"no set of {free} gives {asked}; {hint}", may_round=may_round)


def _rounded_quanta(
    layout: SmLayout, counts: _Counts, rests: Mapping[str, int], rounding: Rounding
) -> dict[str, int] | None:
    """Name → number of quanta beside ``rests``, each rounded by itself; None where one cannot."""
    numbers = {}
    for name, count in counts.items():
        number, excess = divmod(count - rests[name], layout.quantum_sm_count)
        if excess and rounding == "exact":
            return None
        if rounding == "up":  # the remainder alone may exceed what was asked
            number = max(0, number + bool(excess))
        if number < 0 or not number + rests[name]:
            return None
        numbers[name] = number
    return numbers


def _nearest_quanta(
    layout: SmLayout, counts: _Counts, rests: Mapping[str, int], most: int, keep: Collection[str]
) -> dict[str, int] | None:
    """Name → number of quanta beside ``rests``, nearest to what is asked.

    The distance is convex in each number, so taking away one quantum after the other where it
    costs least gives the best set of at most ``most`` quanta.
    """
    size = layout.quantum_sm_count
    least = {name: 0 if rests[name] else 1 for name in counts}
    nearest = {
        name: int((2 * (count - rests[name]) + size) // (2 * size))
        for name, count in counts.items()
    }
    numbers = {name: max(least[name], min(most, nearest[name])) for name in counts}
    for name in keep:
        if name in counts and rests[name] + size * numbers[name] != counts[name]:
            return None

    def cost(name: str) -> Fraction:
        excess = rests[name] + size * numbers[name] - counts[name]
        return abs(excess - size) - abs(excess)

    while sum(numbers.values()) > most:
        able = [name for name in counts if numbers[name] > least[name] and name not in keep]
        if not able:
            return None
        numbers[min(reversed(able), key=cost)] -= 1
    return numbers
