"""How blocks spread over SMs that hold several at a time."""

from __future__ import annotations


def packed(blocks: int, per_sm: int, sm_count: int) -> tuple[int, float]:
    """Return on how many SMs' worth of room blocks run alone, and the share that each SM gives.

    Blocks go to the emptiest SM, so that each holds as many as the others, ``per_sm`` at most.
    """
    each = min(per_sm, -(-blocks // sm_count))
    return -(-blocks // each), each / per_sm
