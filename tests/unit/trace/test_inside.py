"""Thread blocks and scopes of Proton put into the kernels of a recording."""

from __future__ import annotations

import numpy as np
import proton_files as proton
import pytest

import gpuscope as gs
from gpuscope.errors import AlignmentError, InvalidArgument, MissingEvidence
from gpuscope.trace import Trace, put_inside
from gpuscope.trace.facts import ClockFacts
from gpuscope.trace.metadata import TraceMetadata

UNIX_NS = proton.BEGAN_NS - 1_174_098
"""When the first block began, by the recording's clock: the GPU's timer was ahead."""
GAPS = (0, 40_000, 95_000, 130_000)
AROUND_NS = 1_500, 700
"""How much earlier a kernel begins than its first block, and later it ends than its last."""


def launched(gaps=GAPS, **options):
    return [proton.persistent(at_ns=at, **options) for at in gaps]


def recording(launches, *, drift=0.0, clocks=True, extra=(), partition="decode"):
    """Return the recording of these launches, and of kernels called as the first at other times."""
    begin, end, names = [], [], []
    for kernel, blocks in launches:
        for times, since, shift in (
            (begin, min(block.init_ns for block in blocks), -AROUND_NS[0]),
            (end, max(block.final_ns + block.writing_ns for block in blocks), AROUND_NS[1]),
        ):
            elapsed = since - proton.BEGAN_NS
            times.append(UNIX_NS + round(elapsed / (1 + drift)) + shift)
        names.append(kernel)
    begin += [UNIX_NS + at for at, _ in extra]
    end += [UNIX_NS + at + lasting for at, lasting in extra]
    names += [launches[0][0]] * len(extra)
    count = len(names)
    facts = ClockFacts(
        offset_ns=1_174_098 + 200, drift_ns=drift * 1e9, over_ns=1e9, residual_ns=460
    )
    return Trace.from_columns(
        {
            "id": list(range(10, 10 + count)), "kind": ["kernel"] * count, "name": names,
            "start_ns": begin, "end_ns": end, "device": [0] * count, "stream": [7] * count,
            "partition": [partition] * count, "intended_partition": [partition] * count,
            "source": ["cupti"] * count,
        },
        metadata=TraceMetadata(
            partitions={partition: {"sm_ids": [*range(8)], "sm_count": 8}},
            windows_ns=((UNIX_NS, UNIX_NS + 10**9),),
            clocks={"globaltimer cuda:0": facts} if clocks else {},
        ),
    )  # fmt: skip


def loaded(tmp_path, launches, version):
    return gs.load_trace(proton.written(tmp_path / "p.chrome_trace", launches, version=version))


def outside_ns(trace):
    """Return by how much any block or scope is outside its kernel."""
    rows = {row["id"]: row for row in trace.spans.to_pylist()}
    furthest = 0
    for row in rows.values():
        kernel = row
        while kernel["kind"] != "kernel":
            kernel = rows[kernel["parent"]]
        furthest = max(
            furthest, kernel["start_ns"] - row["start_ns"], row["end_ns"] - kernel["end_ns"]
        )
    return furthest


def error_ns(trace, launches):
    """Return how far the first blocks are from when they began by the recording's clock."""
    starts = np.sort(trace.where(kind="block").array("start_ns"))
    true = np.sort([block.init_ns for _, blocks in launches for block in blocks])
    return np.abs(starts - true + proton.BEGAN_NS - UNIX_NS).max()


@pytest.mark.parametrize("version", ["3.6", "3.9"])
@pytest.mark.parametrize("clocks", [True, False])
def test_scopes_are_inside_their_kernels_and_in_their_partition(tmp_path, version, clocks):
    launches = launched()
    trace = put_inside(recording(launches, clocks=clocks), loaded(tmp_path, launches, version))
    assert trace.kind_counts() == {"kernel": 4, "block": 16, "scope": 16 + 4 * (3 + 2 + 1 + 1)}
    assert outside_ns(trace) <= 1_000
    placed = trace.where(kind=("block", "scope"))
    assert {*placed.texts("partition")} == {"decode"}
    assert {*placed.array("device").tolist()} == {0}
    assert {*placed.array("stream").tolist()} == {7}
    assert {*placed.array("sm").tolist()} == {0, 1, 2, 3}
    facts = trace.metadata.clocks["proton"]
    assert error_ns(trace, launches) <= facts.residual_ns
    if clocks and version == "3.9":
        assert facts.residual_ns == 460
        assert error_ns(trace, launches) == 200  # what the recording's comparison is off


@pytest.mark.parametrize("version", ["3.6", "3.9"])
def test_scopes_last_as_long_as_their_cycles_take(tmp_path, version):
    launches = launched(tiles=6, tile_ns=20_000, gap_ns=1_000)
    trace = put_inside(recording(launches), loaded(tmp_path, launches, version))
    tiles = trace.where(kind="scope", name="tile")
    took = tiles.array("end_ns") - tiles.array("start_ns")
    # As the longest block fits into its kernel, which is by 2 µs and more longer.
    assert took == pytest.approx(20_000, rel=0.03)
    slower = put_inside(recording(launches), loaded(tmp_path, launches, version), clock_mhz=2500)
    tiles = slower.where(kind="scope", name="tile")
    assert tiles.array("end_ns") - tiles.array("start_ns") == pytest.approx(16_000, abs=10)


def test_drift_between_the_clocks_is_taken_out(tmp_path):
    launches = launched(gaps=[0, 300_000_000, 600_000_000])
    drift = -19e-6
    trace = put_inside(
        recording(launches, drift=drift), loaded(tmp_path, launches, "3.9")
    )  # 11 µs after 600 ms
    assert outside_ns(trace) <= 1_000
    with pytest.raises(AlignmentError, match="no offset"):
        put_inside(
            recording(launches, drift=drift, clocks=False), loaded(tmp_path, launches, "3.9")
        )


def test_launches_that_proton_did_not_see_are_left_alone(tmp_path):
    launches = launched()
    extra = [(-90_000, 5_300), (-60_000, 5_300)]
    recorded = recording(launches, extra=extra)
    trace = put_inside(recorded, loaded(tmp_path, launches, "3.9"))
    parents = {*trace.where(kind="block").array("parent").tolist()}
    assert parents == {10, 11, 12, 13}
    assert error_ns(trace, launches) == 200
    # Irregular launches fit in one way only, even without a common clock.
    relative = put_inside(recorded, loaded(tmp_path, launches, "3.6"))
    assert {*relative.where(kind="block").array("parent").tolist()} == parents


def test_launches_that_fit_in_two_ways_are_not_guessed(tmp_path):
    launches = launched(gaps=[0, 40_000])
    recorded = recording(launched(gaps=[0, 40_000, 80_000]))
    with pytest.raises(AlignmentError, match="2 ways"):
        put_inside(recorded, loaded(tmp_path, launches, "3.6"))
    trace = put_inside(recorded, loaded(tmp_path, launches, "3.9"))
    assert {*trace.where(kind="block").array("parent").tolist()} == {10, 11}


def test_kernels_of_other_names_are_counted(tmp_path):
    launches = [*launched(), proton.persistent("other", at_ns=200_000)]
    trace = put_inside(recording(launched()), loaded(tmp_path, launches, "3.9"))
    assert trace.kind_counts()["block"] == 16
    assert trace.metadata.counts["launches that Proton saw alone"] == 1


def test_what_cannot_be_joined_is_refused(tmp_path):
    launches = launched()
    inside = loaded(tmp_path, launches, "3.9")
    with pytest.raises(MissingEvidence, match="'persistent'"):
        put_inside(recording([proton.persistent("other")]), inside)
    with pytest.raises(InvalidArgument, match="no thread blocks"):
        put_inside(recording(launches), recording(launches))
    with pytest.raises(InvalidArgument, match="clock_mhz"):
        put_inside(recording(launches), inside, clock_mhz=0)
    short = recording([proton.persistent(tiles=1)])
    with pytest.raises(AlignmentError, match="no offset"):
        put_inside(short, loaded(tmp_path, [proton.persistent(tiles=9)], "3.9"))


def test_confinement_is_judged_by_its_blocks(tmp_path):
    launches = launched()
    inside = loaded(tmp_path, launches, "3.6")
    assert gs.analysis.confinement(put_inside(recording(launches), inside))["decode"].fraction == 1
    strayed = launched(sms=[0, 1, 2, 9])
    trace = put_inside(recording(strayed), loaded(tmp_path, strayed, "3.6"))
    result = gs.analysis.confinement(trace)["decode"]
    assert result.escaping_sm_ids == (9,)
    assert result.fraction < 1
