"""Green contexts: how a driver's SM resource becomes partitions."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuscope._types import Untyped
from gpuscope.device.api import Capabilities
from gpuscope.device.carve import REMAINDER, CarvePlan, PlannedPartition, SmLayout, sm_count_to_tell
from gpuscope.device.raw import GrantedPartition
from gpuscope.errors import InvalidPartition

if TYPE_CHECKING:  # which loads CUDA's libraries
    from gpuscope.device.cuda.probe import SmProbe

_contexts = itertools.count(2)


class ComposedQuanta:
    """Drivers 12.4 to 13.0: split once into equal quanta, make each context of several.

    These drivers refuse groups of different sizes and refuse to split a group again, but
    one green context may be made of several groups and the remainder. Newer drivers that
    refuse groups of different sizes are split so, too.

    Parameters
    ----------
    core
        The module ``cuda.core``.
    resource
        The device's SM resource (``cuda.core.SMResource``).
    """

    def __init__(self, core: Untyped, resource: Untyped) -> None:
        size = int(resource.min_partition_size)
        self._groups, self._rest = _most_groups(core, resource, size)
        size = int(self._groups[0].sm_count)
        rest = int(self._rest.sm_count) if self._rest is not None else 0
        self.layout = SmLayout(size, len(self._groups), rest)

    def check(self, plan: CarvePlan) -> None:
        """Grant every plan: its parts are there."""

    def resources(self, planned: Sequence[PlannedPartition]) -> list[list[Untyped]]:
        """Return the resources of each partition."""
        return [
            [self._rest if part == REMAINDER else self._groups[part] for part in partition.parts]
            for partition in planned
        ]


class HeterogeneousSplit:
    """Drivers 13.1 and newer: one split into groups of different sizes, with backfill.

    Not verified on hardware: no such driver was at hand. Tested against a fake resource.
    A split always starts from the whole GPU, so a second carving beside a live one would
    be given the same SMs: it is refused. Only what a carving left over can be had later.

    Raises
    ------
    InvalidPartition
        The driver refuses groups of different sizes.
    """

    def __init__(self, core: Untyped, resource: Untyped) -> None:
        self._core = core
        self._resource = resource
        step = max(1, int(resource.coscheduled_alignment), int(resource.min_partition_size))
        total = int(resource.sm_count)
        self.layout = SmLayout(step, total // step, total % step)
        self._left: tuple[frozenset[int], Untyped] | None = None
        sizes = [2 * step, step] if 3 * step <= total else [step]
        self._groups(sizes, f"groups of {' and '.join(map(str, sizes))} SMs")

    def _left_over(self, planned: Sequence[PlannedPartition]) -> frozenset[int]:
        return self.layout.parts.difference(*(partition.parts for partition in planned))

    def check(self, plan: CarvePlan) -> None:
        """Have the driver split; creates nothing, as only contexts are made of what it returns.

        No dry run: for that, cuda.core gives ``cuDevSmResourceSplit`` no place for the
        result, which the driver refuses together with counts.

        Raises
        ------
        InvalidPartition
            The driver refuses, or would grant other counts.
        """
        if self._is_left(plan.partitions):
            return
        if self._left_over(plan.partitions) != set(plan.remainder_parts):
            raise InvalidPartition(
                "this driver splits the whole GPU at once, so nothing can be carved beside live "
                "partitions: close them and carve everything together"
            )
        if any(partition.shares_with for partition in plan.partitions):
            raise InvalidPartition(
                "allow_shared: this driver splits the whole GPU at once and cannot be told which "
                "SMs to share: close the live partitions first"
            )
        self._split(plan.partitions)

    def _split(self, planned: Sequence[PlannedPartition]) -> tuple[list[Untyped], Untyped]:
        """Return a group for each partition, and what is left over."""
        counted = list(planned)
        taker = None
        if not self._left_over(planned):
            # Its count need not be a multiple of the alignment, which a group's must be.
            taker = next((partition for partition in planned if REMAINDER in partition.parts), None)
            counted = [partition for partition in planned if partition is not taker]
        groups: list[Untyped] = []
        rest = self._resource
        if counted:
            asked = ", ".join(f"{part.name}: {part.sm_count}" for part in counted)
            groups, rest = self._groups([partition.sm_count for partition in counted], asked)
        if taker is not None:
            groups.insert(planned.index(taker), rest)
        _check_granted(planned, [int(group.sm_count) for group in groups])
        return groups, rest

    def _groups(self, counts: list[int], asked: str) -> tuple[list[Untyped], Untyped]:
        """Return groups of these sizes, and what is left over; ``asked`` says what for."""
        options = self._core.SMResourceOptions(count=counts, backfill=True)
        try:
            groups, rest = self._resource.split(options)
        except Exception as error:
            raise InvalidPartition(f"the driver refuses to split into {asked} ({error})") from error
        return list(groups), rest

    def _is_left(self, planned: Sequence[PlannedPartition]) -> bool:
        """Whether exactly what the latest split left over is asked for."""
        wanted = [set(partition.parts) for partition in planned]
        return self._left is not None and wanted == [self._left[0]]

    def resources(self, planned: Sequence[PlannedPartition]) -> list[list[Untyped]]:
        """Split, and return the resource of each partition."""
        if self._left is not None and self._is_left(planned):
            _check_granted(planned, [int(self._left[1].sm_count)])
            return [[self._left[1]]]
        groups, rest = self._split(planned)
        self._left = (self._left_over(planned), rest)
        return [[group] for group in groups]


Splitter = ComposedQuanta | HeterogeneousSplit


def splitter_of(
    core: Untyped, resource: Untyped, can: Capabilities
) -> tuple[Splitter | None, Capabilities]:
    """Find out how a driver splits SMs.

    Returns
    -------
    tuple
        What splits them, ``None`` if nothing does; and ``can`` with what was found, and why what
        drivers of this version should do is not possible.
    """
    reasons = dict(can.reasons)
    if can.arbitrary_split:
        try:
            return HeterogeneousSplit(core, resource), can
        except InvalidPartition as error:
            reasons["arbitrary_split"] = str(error)
            can = replace(
                can, arbitrary_split=False, partition_path="composed quanta", reasons=reasons
            )
    try:
        return ComposedQuanta(core, resource), can
    except InvalidPartition as error:
        reasons["partitions"] = str(error)
        return None, replace(can, partitions=False, partition_path=None, reasons=reasons)


def _most_groups(core: Untyped, resource: Untyped, size: int) -> tuple[list[Untyped], Untyped]:
    """Split into as many groups of ``size`` as the driver gives; it keeps some SMs apart."""
    refusal: object = "it grants none"
    for count in range(int(resource.sm_count) // size, 0, -1):
        try:
            groups, rest = resource.split(core.SMResourceOptions(count=[size] * count))
        except Exception as error:  # noqa: BLE001 - every refusal means: ask for fewer
            refusal = error
            continue
        if len(groups) == count:
            return list(groups), rest
    raise InvalidPartition(f"the driver refuses to split its SMs into groups of {size} ({refusal})")


def _check_granted(planned: Sequence[PlannedPartition], granted: Sequence[int]) -> None:
    if len(granted) != len(planned):
        raise InvalidPartition(
            f"{len(planned)} partitions were planned, but the driver grants {len(granted)}: ask "
            "for fewer"
        )
    for partition, count in zip(planned, granted, strict=True):
        if partition.sm_count != count:
            raise InvalidPartition(
                f"partition {partition.name!r}: {partition.sm_count} SMs were planned, but the "
                f"driver grants {count}: ask for {count}, or pass rounding='up'"
            )


@dataclass(frozen=True, eq=False)
class GreenContext:
    """A green context and the parts it was made of."""

    context: Untyped
    parts: tuple[int, ...]


class GreenContexts:
    """Makes green contexts, and keeps closed ones to use them again.

    Drivers up to 13.0 do not give back what a destroyed green context held (with
    bare driver calls on driver 580, 4 MiB of device and 1.7 MB of host memory each:
    `benchmarks/findings.py`). Their
    parts are the same SMs every time, so a context closed for some parts serves the next
    carving of these parts. Where the driver splits anew for each carving, parts do not
    name SMs, and contexts are destroyed.

    Parameters
    ----------
    core
        The module ``cuda.core``.
    device
        The device (``cuda.core.Device``).
    """

    def __init__(self, core: Untyped, device: Untyped, splitter: Splitter) -> None:
        self._core = core
        self._device = device
        self._splitter = splitter
        self._reuses = isinstance(splitter, ComposedQuanta)
        self._spare: dict[tuple[int, ...], list[Untyped]] = {}

    def make(self, planned: Sequence[PlannedPartition], probe: SmProbe) -> list[GrantedPartition]:
        """Make one green context for each planned partition and find its SM ids.

        Nothing is left behind if one fails.

        Raises
        ------
        InvalidPartition
            The driver refuses, or what it grants is not what was planned.
        """
        made: list[GreenContext] = []
        with contextlib.ExitStack() as undo:
            resources = self._splitter.resources(planned)
            for partition, of_partition in zip(planned, resources, strict=True):
                made.append(GreenContext(self._take(partition, of_partition), partition.parts))
                undo.callback(made[-1].context.close)
            contexts = [partition.context for partition in made]
            _check_granted(planned, [int(context.resources.sm.sm_count) for context in contexts])
            counts = [partition.sm_count for partition in planned]
            with contextlib.ExitStack() as probed:
                streams = []
                for context in contexts:
                    streams.append(context.create_stream())
                    probed.callback(streams[-1].close)
                ids = probe.sm_ids(streams, counts)
                pairs = zip(streams, counts, strict=True)
                holding = [probe.cluster_sm_count(stream, count) for stream, count in pairs]
            undo.pop_all()
        targets = map(sm_count_to_tell, counts, holding)
        return [
            GrantedPartition(green, count, sms, next(_contexts), target)
            for green, count, sms, target in zip(made, counts, ids, targets, strict=True)
        ]

    def _take(self, planned: PlannedPartition, resources: list[Untyped]) -> Untyped:
        if spare := self._spare.get(planned.parts):
            return spare.pop()
        try:
            return self._device.create_context(self._core.ContextOptions(resources=resources))
        except Exception as error:
            raise InvalidPartition(
                f"partition {planned.name!r}: the driver refuses a green context of "
                f"{planned.sm_count} SMs ({error})"
            ) from error

    def close(self, green: GreenContext) -> None:
        """Keep a context for the next carving of its parts, or destroy it."""
        if self._reuses:
            self._spare.setdefault(green.parts, []).append(green.context)
        else:
            green.context.close()

    def clear(self) -> None:
        """Destroy the contexts that are kept."""
        for contexts in self._spare.values():
            for context in contexts:
                context.close()
        self._spare.clear()
