"""When SMs were held, and by whose blocks: against a scan of every block."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from gpuscope.timeline.columns import edges_of
from gpuscope.timeline.sms import Blocks, HeldIndex
from gpuscope.trace import Trace
from gpuscope.trace.metadata import TraceMetadata

PARTITIONS = ("decode", "prefill", None)
TIMES = st.integers(0, 5_000)
BLOCKS = st.lists(
    st.tuples(st.integers(0, 3), TIMES, st.integers(0, 900), st.sampled_from(PARTITIONS)),
    min_size=1, max_size=60,
)  # fmt: skip


def covered(spans, low: int, high: int) -> int:
    """Ns of a window that spans cover, counted one by one."""
    held = np.zeros(high - low, bool)
    for start, end in spans:
        held[max(start - low, 0) : max(end - low, 0)] = True
    return int(held.sum())


@given(BLOCKS, TIMES, st.integers(50, 5_000), st.integers(1, 60))
@example([(0, 0, 217, "decode")], 203, 799, 28)
def test_cells_are_what_a_scan_finds(blocks, low, length, pixels):
    sm, start, lasts, partition = zip(*blocks, strict=True)
    count = len(sm)
    trace = Trace.from_columns(
        {
            "id": list(range(count)), "kind": ["block"] * count, "name": ["k"] * count,
            "source": ["blocks"] * count, "device": [0] * count, "sm": list(sm),
            "start_ns": list(start), "partition": list(partition),
            "end_ns": [one + more for one, more in zip(start, lasts, strict=True)],
        },
        metadata=TraceMetadata(devices={"cuda:0": {"index": 0, "sm_count": 5}}),
    )  # fmt: skip
    held = HeldIndex(Blocks(trace, None))
    cells = held.cells((low, low + length), pixels)
    assert cells.share.shape[0] == 5
    edges = edges_of(cells.window_ns, pixels).tolist()
    assert (edges[0], edges[-1]) == (low, low + length)
    for column, (begin, end) in enumerate(itertools.pairwise(edges)):
        for one in range(5):
            spans = {
                name: [
                    (at, at + more) for number, at, more, owner in zip(
                        sm, start, lasts, partition, strict=True)
                    if number == one and owner == name
                ]
                for name in PARTITIONS
            }  # fmt: skip
            by_owner = {name: covered(mine, begin, end) for name, mine in spans.items()}
            whole = covered([span for mine in spans.values() for span in mine], begin, end)
            assert abs(cells.share[one, column] * (end - begin) - whole) <= 0.01
            owner = int(cells.owner[one, column])
            if whole == 0:
                assert owner == -1
            else:
                name = held.blocks.partitions[owner]
                assert by_owner[name] >= max(by_owner.values()) - 1
