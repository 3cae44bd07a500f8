"""The map of SMs over time: what a cell holds, what the figure weighs, what it says."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope import figures
from gpuscope.errors import MissingEvidence
from gpuscope.timeline.sms import Blocks, HeldIndex
from gpuscope.timeline.style import ESCAPED
from gpuscope.trace import Trace
from gpuscope.trace.metadata import TraceMetadata

EVIL = "<script>alert(1)</script> \u202e$x$"
OWNED = {"decode": {"sm_ids": [0, 2]}, "prefill": {"sm_ids": [1, 3]}}


def block(sm, start, end, partition="decode", **more):
    return {
        "kind": "block", "sm": sm, "start_ns": start, "end_ns": end, "partition": partition,
        "device": 0, **more,
    }  # fmt: skip


def build(rows, **metadata):
    rows = [{"id": index, "source": "blocks", "name": "k", **row} for index, row in enumerate(rows)]
    names = {name for row in rows for name in row}
    metadata.setdefault("devices", {"cuda:0": {"name": "NVIDIA H200", "index": 0, "sm_count": 6}})
    metadata.setdefault("partitions", OWNED)
    return Trace.from_columns(
        {name: [row.get(name) for row in rows] for name in names}, None, TraceMetadata(**metadata)
    )


def maps(figure):
    """Legend name → SM → its cells."""
    found = {}
    for one in figure.data:
        if one.xaxis == "x2" or one.type != "heatmap":
            continue
        edges, z = np.asarray(one.y), np.asarray(one.z)
        assert len(edges) == len(z) + 1
        middles = (edges[:-1] + edges[1:]) / 2
        found[one.name] = {
            int(middle): row.tolist()
            for middle, row in zip(middles, z, strict=True)
            if not np.isnan(row).all()
        }
    return found


def words(figure):
    title = figure.layout.title
    return f"{title.text} {title.subtitle.text}"


def cells(values):
    return [pytest.approx(value) if value else pytest.approx(np.nan, nan_ok=True)
            for value in values]  # fmt: skip


def test_a_cell_is_the_share_of_its_bin_in_which_the_sm_was_held():
    # Bins 0–10, 10–20, 20–30, 30–40. SM 0: 0–10 and 5–15 overlap: 1, then a half; SM 3: 30–40.
    trace = build([block(0, 0, 10), block(0, 5, 15), block(3, 30, 40, "prefill")])
    found = maps(figures.sm_map(trace, bins=4))
    assert found["decode"] == {0: cells([1, 0.5, None, None])}
    assert found["prefill"] == {3: cells([None, None, None, 1])}


def test_the_colour_of_a_cell_is_the_partition_that_held_it_longest():
    # In 0–10 prefill held SM 0 for 6 ns and decode for 3: together 9 of 10.
    trace = build([block(0, 0, 3), block(0, 3, 9, "prefill"), block(0, 10, 20)])
    found = maps(figures.sm_map(trace, bins=2))
    assert found["prefill"] == {0: cells([0.9, None])}
    assert found["decode"] == {0: cells([None, 1])}


def test_idle_sms_have_rows_and_sms_between_are_one_empty_row():
    figure = figures.sm_map(build([block(0, 0, 10), block(5, 0, 10)]))
    assert list(figure.layout.yaxis.range) == [5.5, -0.5]
    (one,) = [one for one in figure.data if one.xaxis != "x2"]
    assert list(one.y) == [-0.5, 0.5, 4.5, 5.5]


def test_what_ran_outside_partitions_is_the_whole_gpu():
    figure = figures.sm_map(build([block(0, 0, 10, None)]))
    assert set(maps(figure)) == {"whole GPU"}


def test_escaped_blocks_are_marked_wherever_they_held_an_sm_at_all():
    told = {"intended_partition": "decode"}
    trace = build([
        block(0, 0, 190, **told), block(0, 190, 200, None, **told), block(1, 0, 200, None),
        block(2, 150, 160, "prefill", **told),
    ])  # fmt: skip
    figure = figures.sm_map(trace, bins=2)
    found = maps(figure)
    assert found["<b>ESCAPED</b> to whole GPU"] == {0: cells([None, 1])}
    assert found["whole GPU"] == {1: cells([1, 1])}, "nobody intended it for a partition"
    assert [name for name in found if name.startswith("<b>ESCAPED</b> to prefill")]
    assert (figure.data[-1].marker.color, figure.data[-1].x.tolist()) == (
        ESCAPED,
        [pytest.approx(0.15)],
    )
    assert "ESCAPED: any block outside its partition" in words(figure)
    blocks = Blocks(trace, None)
    beside = HeldIndex(blocks).cells((0, 200), 2)  # as below the tracks of a timeline
    last = beside.owner[0, np.flatnonzero(beside.share[0])[-1]]
    assert blocks.colours({"decode": "#000000", "prefill": "#000000"})[last] == ESCAPED


def test_a_strip_says_whose_each_sm_is():
    figure = figures.sm_map(
        build([block(0, 0, 10)], partitions={**OWNED, "both": {"sm_ids": [0, 99]}})
    )
    (strip,) = [one for one in figure.data if one.xaxis == "x2"]
    assert strip.hovertext[0][0] == "SM 0 belongs to decode and both"
    assert strip.hovertext[3][0] == "SM 3 belongs to prefill"
    assert strip.z[5][0] is None
    assert len(strip.z) == 6
    bare = figures.sm_map(build([block(0, 0, 10)], partitions={}))
    assert not [one for one in bare.data if one.xaxis == "x2"]


def test_the_hover_names_partition_and_workloads():
    rows = [block(0, 0, 10, category="small"), block(0, 10, 15, name="spin"),
            *(block(0, 20, 21, name=f"more {index}") for index in range(3))]  # fmt: skip
    (one,) = [one for one in figures.sm_map(build(rows)).data if one.xaxis != "x2"]
    assert one.meta.startswith("decode<br>its blocks: small, spin, more ")
    assert one.meta.endswith("and 2 more")
    assert "SM %{y}" in one.hovertemplate
    assert "%{meta}" in one.hovertemplate


def test_a_window_shows_its_part_and_says_what_is_left_out():
    rows = [block(0, 0, 10), block(0, 50, 60), block(1, 0, None, "prefill"), block(None, 0, 5),
            block(1, 55, 56, "prefill", device=1)]  # fmt: skip
    figure = figures.sm_map(build(rows), bins=2, window_ns=(50, 70))
    assert maps(figure)["decode"] == {0: cells([1, None])}
    text = words(figure).replace("<br>", " ")
    assert "1 blocks in 2 bins of 10 ns" in text
    assert "2 blocks without an end or an SM not drawn" in text
    assert "1 blocks on other devices not drawn" in text
    assert "1 blocks outside the window not drawn" in text
    other = figures.sm_map(build(rows), device=1)
    assert set(maps(other)) == {"prefill"}


def test_what_it_weighs_does_not_grow_with_the_blocks():
    random = np.random.default_rng(0)

    def weight(count):
        starts = random.integers(0, 10**7, count)
        rows = [
            block(int(sm), int(start), int(start) + 5000, "decode" if sm % 2 else "prefill")
            for sm, start in zip(random.integers(0, 6, count), starts, strict=True)
        ]
        return len(figures.sm_map(build(rows), bins=100).to_json())

    assert weight(20_000) < 1.1 * weight(2000) + 2000
    # Six SMs: at most 2 rows of 100 float32 cells a partition's SM, in base64.
    assert weight(20_000) < 12_000 + 2 * 6 * 100 * 4 * 1.4


def test_provenance_is_said():
    assert "measured on NVIDIA H200" in words(figures.sm_map(build([block(0, 0, 10)])))
    simulated = figures.sm_map(build([block(0, 0, 10)], simulated=True))
    assert "(SIMULATED)" in simulated.layout.title.text
    assert "<b>SIMULATED, not measured,</b>" in simulated.layout.title.subtitle.text


def test_foreign_names_are_harmless():
    trace = build(
        [block(0, 0, 10, EVIL, name=EVIL), block(1, 0, 10, EVIL, category=EVIL)],
        partitions={EVIL: {"sm_ids": [0]}},
        devices={"cuda:0": {"name": EVIL, "index": 0}},
    )
    figure = figures.sm_map(trace)
    text = json.dumps(figure.to_plotly_json(), default=lambda value: value.tolist())
    for raw in ("<script", "\u202e", "\\u202e", "$"):
        assert raw not in text
    assert "&lt;script" in text


def test_it_needs_blocks():
    kernel = {"kind": "kernel", "start_ns": 0, "end_ns": 10}
    for rows in ([], [kernel], [block(None, 0, 10)], [block(0, 0, None)]):
        with pytest.raises(MissingEvidence, match="TracedGemm"):
            figures.sm_map(build(rows))
    with pytest.raises(MissingEvidence, match="device 3"):
        figures.sm_map(build([block(0, 0, 10)]), device=3)


def test_bad_arguments_are_refused():
    trace = build([block(0, 0, 10)])
    with pytest.raises(ValueError, match="bins"):
        figures.sm_map(trace, bins=0)
    with pytest.raises(ValueError, match="window"):
        figures.sm_map(trace, window_ns=(5, 5))


def test_blocks_without_length_leave_nothing_to_draw_but_a_figure():
    assert words(figures.sm_map(build([block(0, 5, 5)]))).count("1 blocks") == 1


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(0, 20), st.booleans()),
        min_size=1,
        max_size=15,
    ),
    st.integers(1, 12),
)
def test_cells_are_what_counting_every_ns_finds(blocks, bins):
    rows = [
        block(sm, start, start + length, "decode" if mine else "prefill")
        for sm, start, length, mine in blocks
    ]
    low = min(start for _, start, _, _ in blocks)
    high = max(low + 1, *(start + length for _, start, length, _ in blocks))
    found = maps(figures.sm_map(build(rows), bins=bins))
    bins = min(bins, high - low)
    edges = [low + (high - low) * index // bins for index in range(bins + 1)]
    for sm in range(4):
        for index, (first, last) in enumerate(itertools.pairwise(edges)):
            held = {
                mine: {
                    ns
                    for other, start, length, own in blocks
                    if other == sm and own == mine
                    for ns in range(max(start, first), min(start + length, last))
                }
                for mine in (True, False)
            }
            shown = {
                name: sms[sm][index]
                for name, sms in found.items()
                if sm in sms and not np.isnan(sms[sm][index])
            }
            share = len(held[True] | held[False]) / (last - first)
            assert sum(shown.values()) == pytest.approx(share)
            if len(held[True]) != len(held[False]):
                longest = "decode" if len(held[True]) > len(held[False]) else "prefill"
                assert set(shown) == {longest}
