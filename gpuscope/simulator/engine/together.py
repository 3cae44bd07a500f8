"""A collective on the simulated GPU of one rank: when it ends, and what it leaves in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import numpy as np

from gpuscope._types import Array
from gpuscope.device.arrays import fitted
from gpuscope.device.ranks import Begun, Brought, Joint, Place
from gpuscope.simulator.engine.memory import CollectiveResult, SimArray, UniformValues, Version

Latest = dict[str, tuple[int, list[Version]]]
"""Group → number of its latest collective, and what each rank brought to it."""


@dataclass(eq=False)
class Together:
    """One launch of a collective: what its kernel does when it starts and when it ends.

    Attributes
    ----------
    compute
        Number of a rank, and the values that the ranks brought → what is left on that rank.
    work_ns
        How long it takes alone, once all ranks are there.
    latest
        Of this GPU; a rank that brings what the collective before left there names that.
    """

    joint: Joint
    meeting: Place
    destination: SimArray
    source: SimArray
    compute: Callable[..., Array]
    work_ns: int
    latest: Latest
    took_ns: int | None = field(default=None, init=False)

    def begin(self, now_ns: int) -> Callable[[], None]:
        """Tell the other ranks; returns what writes the result at the end."""
        joint, source = self.joint, self.source
        version = source.buffer.version
        recipe = version.recipe if source.is_whole else None
        group, sequence = joint.key
        if isinstance(recipe, CollectiveResult) and recipe[:2] != (group, sequence - 1):
            recipe = None  # others may have forgotten it
        value: Brought = recipe or np.array(source.view_of(version.value())).reshape(-1)
        begun = Begun(now_ns, joint.what, self.work_ns, value)
        self.meeting.begin(joint.key, joint.ranks.rank, begun)
        return self._commit

    def end_ns(self, start_ns: int, now_ns: int) -> int:
        """Return until when it lasts at least, on all ranks: its end if that is ``now_ns``."""
        if self.took_ns is None:
            self.took_ns = now_ns - start_ns
        joint = self.joint
        return self.meeting.end_ns(joint.key, joint.ranks.rank, self.took_ns, now_ns)

    def _commit(self) -> None:
        group, sequence = self.joint.key
        inputs = [self._version(value) for value in self.meeting.brought(self.joint.key)]
        self.latest[group] = sequence, inputs
        result = CollectiveResult(group, sequence, self.joint.ranks.rank)
        out, buffer = self.destination, self.destination.buffer

        def whole(*values: Array) -> Array:
            return out.flat(fitted(self.compute(result.rank, *values), out.shape, out.dtype))

        buffer.version = Version(whole, inputs, result)

    def _version(self, value: Brought) -> Version:
        """Return what a rank brought as a version of this process."""
        if isinstance(value, UniformValues):
            return Version(value.values, recipe=value)
        if isinstance(value, CollectiveResult):
            _, inputs = self.latest[value.group]
            return Version(partial(self.compute, value.rank), inputs)
        array = cast("Array", value)
        return Version(lambda: array)
