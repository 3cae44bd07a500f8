"""A kernel's launch configuration, and how its blocks spread over SMs that hold several."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property

WARP = 32
_MOST_BLOCKS, _MOST_WARPS, _REGISTERS = 32, 64, 65536
_SHARED_BYTES, _SHARED_PER_BLOCK = 233_472, 1024
"""Of an SM of compute capability 9.0, and what the driver takes for each block."""


@dataclass(frozen=True)
class Launch:
    """A kernel's launch configuration.

    Attributes
    ----------
    blocks, threads
        Thread blocks of the grid; threads of a block.
    registers
        Of a thread.
    shared_bytes
        Of a block, static and dynamic.
    cluster
        Blocks of a cluster.
    """

    blocks: int
    threads: int
    registers: int = 32
    shared_bytes: int = 0
    cluster: int = 1

    @classmethod
    def parse(cls, text: str | None) -> Launch | None:
        """Read a trace's ``launch_config``; ``None`` where it says no grid and no block."""
        try:
            facts = json.loads(text or "null")
            return cls(
                max(1, math.prod(map(int, facts["grid"]))),
                max(1, math.prod(map(int, facts["block"]))),
                int(facts.get("registers") or 32),
                int(facts.get("shared_memory") or 0),
                max(1, math.prod(map(int, facts.get("cluster") or [1]))),
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    @cached_property
    def occupancy(self) -> int:
        """Blocks that an SM holds at a time."""
        warps = -(-self.threads // WARP)
        registers = -(-self.registers // 8) * 8 * WARP * warps
        room = _SHARED_BYTES // (self.shared_bytes + _SHARED_PER_BLOCK)
        return max(1, min(_MOST_BLOCKS, _MOST_WARPS // warps, _REGISTERS // registers, room))


def packed(blocks: int, per_sm: int, sm_count: int) -> tuple[int, float]:
    """Return on how many SMs' worth of room blocks run alone, and the share that each SM gives.

    Blocks go to the emptiest SM, so that each holds as many as the others, ``per_sm`` at most.
    """
    resident = min(per_sm, -(-blocks // sm_count))
    return -(-blocks // resident), resident / per_sm
