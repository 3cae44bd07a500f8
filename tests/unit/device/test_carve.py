"""Which counts a GPU can grant, against a brute-force search."""

from __future__ import annotations

import contextlib
import itertools
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuscope as gs
from gpuscope.device.carve import REMAINDER, SmLayout, plan_carve
from gpuscope.device.sizes import Size, check_name, named_sizes
from gpuscope.errors import InvalidArgument, InvalidPartition

H200 = SmLayout(quantum_sm_count=8, quanta=15, remainder_sm_count=12)

layouts = st.builds(
    SmLayout,
    quantum_sm_count=st.integers(1, 9),
    quanta=st.integers(1, 5),
    remainder_sm_count=st.integers(0, 14),
)


def parts_of(layout: SmLayout) -> set[int]:
    return set(range(layout.quanta)) | ({REMAINDER} if layout.remainder_sm_count else set())


def ways(layout: SmLayout, quanta: int, *, remainder: bool, count: int):
    """Every way to share out quanta (and the remainder) over ``count`` partitions: their SMs."""
    holders = [None, *(range(count) if remainder else ())]
    for holder in holders:
        for numbers in itertools.product(range(quanta + 1), repeat=count):
            if sum(numbers) > quanta:
                continue
            granted = [
                number * layout.quantum_sm_count
                + (layout.remainder_sm_count if index == holder else 0)
                for index, number in enumerate(numbers)
            ]
            if all(granted):
                yield granted


def least_distance(layout, asked, rounding, *, quanta, remainder) -> int | None:
    """Smallest total distance of an assignment that ``rounding`` allows; None: there is none.

    Rounding down never takes a quantum or more, but for counts beyond the whole GPU.
    """
    best = None
    for granted in ways(layout, quanta, remainder=remainder, count=len(asked)):
        pairs = list(zip(asked, granted, strict=True))
        if rounding == "exact":
            allowed = all(want == got for want, got in pairs)
        elif rounding == "up":
            allowed = all(got >= want for want, got in pairs)
        else:
            allowed = all(
                min(want, layout.sm_count) - layout.quantum_sm_count < got <= want
                for want, got in pairs
            )
        if allowed:
            distance = sum(abs(got - want) for want, got in pairs)
            best = distance if best is None else min(best, distance)
    return best


@st.composite
def requests(draw):
    """A layout, what live partitions hold, counts (likely ones too), rounding, and a rest."""
    layout = draw(layouts)
    taken = draw(st.lists(st.sampled_from(sorted(parts_of(layout))), unique=True, max_size=3))
    held = {f"live{index}": (part,) for index, part in enumerate(taken)}
    likely = st.sampled_from(layout.grantable())
    counts = draw(
        st.lists(st.one_of(likely, st.integers(1, layout.sm_count + 9)), min_size=1, max_size=3)
    )
    rounding = draw(st.sampled_from(["exact", "up", "down"]))
    return layout, held, counts, rounding, draw(st.booleans())


@given(requests())
def test_plan_agrees_with_brute_force(request_):
    layout, held, counts, rounding, with_rest = request_
    taken = {part for parts in held.values() for part in parts}
    free = parts_of(layout) - taken
    best = least_distance(
        layout, counts, rounding, quanta=len(free - {REMAINDER}), remainder=REMAINDER in free
    )
    sizes: dict[str, int | str] = {f"p{index}": count for index, count in enumerate(counts)}
    if with_rest:
        sizes["others"] = "rest"
    if best is None or sum(counts) > layout.sm_count_of(free):
        with pytest.raises(InvalidPartition):
            plan_carve(layout, sizes, rounding=rounding, held=held)
        return
    try:
        plan = plan_carve(layout, sizes, rounding=rounding, held=held)
    except InvalidPartition:
        # An assignment exists, so only the rest may be what is missing.
        assert with_rest
        nearest = [
            granted
            for granted in ways(
                layout,
                len(free - {REMAINDER}),
                remainder=REMAINDER in free,
                count=len(counts),
            )
            if sum(abs(got - want) for want, got in zip(counts, granted, strict=True)) == best
        ]
        assert any(sum(granted) == layout.sm_count_of(free) for granted in nearest)
        return
    given_out = [part for partition in plan.partitions for part in partition.parts]
    assert len(given_out) == len(set(given_out)), "partitions share parts"
    assert set(given_out) | set(plan.remainder_parts) == free
    assert not set(given_out) & set(plan.remainder_parts)
    granted = plan.granted()
    assert sum(granted.values()) + plan.remainder_sm_count == layout.sm_count_of(free)
    assert list(granted) == list(sizes)
    for partition in plan.partitions:
        assert partition.sm_count == layout.sm_count_of(partition.parts) > 0
        assert partition.asked == sizes[partition.name]
        assert partition.shares_with == ()
    pairs = [(count, granted[f"p{index}"]) for index, count in enumerate(counts)]
    if rounding == "exact":
        assert all(want == got for want, got in pairs)
    elif rounding == "up":
        assert all(got >= want for want, got in pairs)
    else:
        assert all(got <= want for want, got in pairs)
    assert sum(abs(got - want) for want, got in pairs) == best
    assert with_rest == (plan.partitions[-1].asked == "rest")


@given(layouts)
def test_grantable_is_every_sum_of_parts(layout):
    sums = {
        layout.sm_count_of(parts)
        for size in range(1, layout.quanta + 2)
        for parts in itertools.combinations(sorted(parts_of(layout)), size)
    }
    assert layout.grantable() == sorted(sums)
    for count in range(1, layout.sm_count + 5):
        if count in sums:
            assert plan_carve(layout, [count]).granted() == {"p0": count}
        else:
            with pytest.raises(InvalidPartition):
                plan_carve(layout, [count])


def test_h200_counts():
    assert H200.sm_count == 132
    assert H200.grantable() == [8, *range(12, 121, 4), 124, 132]


@pytest.mark.parametrize(
    ("asked", "rounding", "granted"),
    [
        (1, "up", 8),
        (7, "up", 8),
        (9, "up", 12),
        (9, "down", 8),
        (13, "up", 16),
        (15, "down", 12),
        (121, "up", 124),
        (123, "down", 120),
        (125, "up", 132),
        (131, "down", 124),
        (132, "exact", 132),
    ],
)
def test_h200_rounding(asked, rounding, granted):
    plan = plan_carve(H200, {"a": asked}, rounding=rounding)
    assert plan.granted() == {"a": granted}
    assert plan.partitions[0].asked == asked
    assert plan.remainder_sm_count == 132 - granted


def test_issue_carving_covers_the_gpu():
    plan = plan_carve(H200, {"a": 64, "b": 32, "c": 16, "d": 8, "e": "rest"})
    assert plan.granted() == {"a": 64, "b": 32, "c": 16, "d": 8, "e": 12}
    assert plan.partitions[-1].parts == (REMAINDER,)
    assert (plan.remainder_sm_count, plan.remainder_parts) == (0, ())


def test_nobody_asked_for_the_remainder():
    plan = plan_carve(H200, [16, 24])
    assert plan.granted() == {"p0": 16, "p1": 24}
    assert plan.remainder_sm_count == 92
    assert REMAINDER in plan.remainder_parts


def test_only_one_partition_rounds_with_the_remainder():
    # 20 = 12 + 8 takes the remainder; the second 20 has to become 16 or 24.
    assert sorted(plan_carve(H200, [20, 20], rounding="down").granted().values()) == [16, 20]
    assert sorted(plan_carve(H200, [20, 20], rounding="up").granted().values()) == [20, 24]
    with pytest.raises(InvalidPartition, match="only one partition can hold the remainder"):
        plan_carve(H200, [20, 20])


def test_rounding_down_may_make_a_request_fit():
    # 66 is none that can be had, and 68 can be had once.
    assert sorted(plan_carve(H200, [66, 66], rounding="down").granted().values()) == [60, 64]


@pytest.mark.parametrize("rounding", ["exact", "up", "down", "nearest"])
@pytest.mark.parametrize("sizes", [["25%", "80%"], [68, 68], [200], [13, 120, "rest"]])
def test_more_than_there_is_is_refused_whatever_the_rounding(sizes, rounding):
    with pytest.raises(InvalidPartition, match=r"SMs asked for .*, but the GPU has 132: ask for"):
        plan_carve(H200, sizes, rounding=rounding)
    with pytest.raises(InvalidPartition, match=r"105 SMs asked for .*, but 104 of 132 are free"):
        plan_carve(H200, [105], rounding=rounding, held=LIVE)


def test_a_proposal_becomes_as_many_as_there_are():
    plan = plan_carve(H200, ["25%", "80%"], rounding="nearest", keep=[])
    assert list(plan.granted().values()) == [32, 100]
    with pytest.raises(InvalidPartition, match="ask for fewer"):
        plan_carve(H200, ["25%", "80%"], rounding="down", keep=[])


def test_one_partition_is_told_nothing_of_others():
    with pytest.raises(InvalidPartition, match=r"13 quanta of 8 SMs .* gives a: 12; the nearest"):
        plan_carve(H200, {"a": 12}, held=LIVE)


LIVE = {"decode": (0, 1), "spare": (REMAINDER,)}


@pytest.mark.parametrize(
    ("sizes", "held", "facts"),
    [
        ({"a": 0}, {}, ["'a'", "SMs from 1", "found 0"]),
        ({"a": -8}, {}, ["'a'", "SMs from 1", "found -8"]),
        ({"a": 7}, {}, ["'a'", "7 of its 132", "8 above", "'up'"]),
        (
            {"a": 22},
            {},
            ["20 below", "24 above", "quanta of 8", "remainder of 12", "'up', 'down' or 'nearest'"],
        ),
        ({"a": 200}, {}, ["200 SMs asked", "has 132", "a: 200", "ask for fewer"]),
        ({"a": "140%"}, {}, ["'140%'", "above 0%, at most 100%"]),
        ({"a": "0%"}, {}, ["'0%'", "above 0%, at most 100%"]),
        ({"a": 64, "b": 64, "c": 8}, {}, ["136 SMs asked", "has 132", "a: 64, b: 64, c: 8"]),
        ({"a": "rest", "b": "rest"}, {}, ["only one", "'a', 'b'"]),
        ({"a": 132, "b": "rest"}, {}, ["'b'", "nothing is left", "132 of 132"]),
        ({}, {}, ["empty"]),
        ([], {}, ["empty"]),
        ({"a": 120}, LIVE, ["120 SMs", "104 of 132", "'decode', 'spare'", "allow_shared=True"]),
        ({"a": 12}, LIVE, ["13 quanta of 8", "'decode', 'spare'", "go together are a: 16"]),
        ({"a": 104, "b": "rest"}, LIVE, ["nothing is left", "104 of 104", "decode, spare"]),
        ({"a": 8.0}, {}, ["'a'", "8.0", "whole number"]),
        ({"a": True}, {}, ["'a'", "True", "whole number"]),
        ({"a": "all"}, {}, ["'a'", "'all'", "'rest'"]),
        ({"": 8}, {}, ["name", "''"]),
        ({3: 8}, {}, ["name", "3"]),
        (64, {}, ["dict", "int (64)"]),
        ("rest", {}, ["dict", "str ('rest')"]),
    ],
)
def test_bad_input_names_the_facts(sizes, held, facts):
    with pytest.raises(InvalidPartition) as caught:
        plan_carve(H200, sizes, held=held)
    for fact in facts:
        assert fact in str(caught.value)


@pytest.mark.parametrize(("rounding", "granted"), [("down", 32), ("up", 36), ("nearest", 32)])
def test_a_quarter_of_an_h200(rounding, granted):
    """33 of 132 SMs, which quanta of 8 and a remainder of 12 do not give."""
    plan = plan_carve(H200, {"a": "25%", "b": "rest"}, rounding=rounding)
    assert plan.granted() == {"a": granted, "b": 132 - granted}
    assert plan.partitions[0].asked == "25%"
    with pytest.raises(InvalidPartition, match=r"give 25% \(33\) of its 132 SMs.*32 below and 36"):
        plan_carve(H200, {"a": "25%", "b": "rest"})


@pytest.mark.parametrize(
    ("sizes", "rounding", "granted"),
    [
        (["100%"], "exact", [132]),
        (["50 %"], "down", [64]),
        (["50%", "50%"], "nearest", [64, 68]),
        (["50%", "50%"], "down", [60, 64]),
        (["30%"], "down", [36]),  # 39.6
        (["30%"], "up", [40]),
        (["30%"], "nearest", [40]),
        (["28.7%"], "nearest", [36]),  # 37.88: 38 would be as near to 40
        (["28.8%"], "nearest", [40]),  # 38.016
        (["1%"], "up", [8]),
        (["25%", 16, "rest"], "up", [36, 16, 80]),
    ],
)
def test_percentages(sizes, rounding, granted):
    assert list(plan_carve(H200, sizes, rounding=rounding).granted().values()) == granted


def test_percentages_that_do_not_fit():
    with pytest.raises(InvalidPartition, match=r"158.4 SMs asked for \(p0: 60% \(79.2\), p1: 60%"):
        plan_carve(H200, ["60%", "60%"], rounding="up")
    with pytest.raises(InvalidPartition, match=r"p0: 1% \(1.32\)"):
        plan_carve(H200, ["1%"], rounding="down")


@given(st.integers(1, 10000).map(lambda n: Decimal(n) / 100), st.sampled_from(["up", "down"]))
def test_a_percentage_is_rounded_from_its_exact_value(percent, rounding):
    exact = Fraction(percent) * 132 / 100
    side = [n for n in H200.grantable() if (n >= exact if rounding == "up" else n <= exact)]
    if not side:
        return
    (granted,) = plan_carve(H200, [f"{percent}%"], rounding=rounding).granted().values()
    assert granted == (min(side) if rounding == "up" else max(side))


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (16, 16), (np.int32(16), 16), ("rest", "rest"), ("25%", "25%"), ("25 %", "25%"),
        ("12.50%", "12.5%"), ("100%", "100%"), ("007%", "7%"), (Size("25%"), "25%"),
    ],
)  # fmt: skip
def test_sizes(value, plain):
    assert Size.parse(value).plain == plain
    assert type(Size.parse(value).plain) is type(plain)


@pytest.mark.parametrize(
    "value",
    [0, -1, 1.0, True, None, "", "16", "all", "0%", "0.0%", "101%", "100.1%", "-5%", "1e1%", "%",
     "25%%", " 25%", "٢٥%", "25\n%", "nan%", [16], b"rest", "9" * 5000 + "%", 1 << 10_000],
)  # fmt: skip
def test_what_is_no_size_is_refused_in_one_wording(value):
    with pytest.raises(InvalidPartition, match="should be a whole number of SMs from 1, a perc"):
        Size.parse(value)
    with pytest.raises(InvalidPartition, match="partition 'a': its size should be a whole number"):
        plan_carve(H200, {"a": value})


def test_a_device_carves_percentages():
    gpu = gs.open_device("sim:h200", quiet=True)
    with gpu.carve({"a": "25%", "b": "rest"}, rounding="down") as parts:
        assert (parts["a"].sm_count, parts["b"].sm_count) == (32, 100)
        assert parts["a"].asked == "25%"
        with gs.profile(gpu) as recording, parts["a"].create_stream() as stream:
            gs.Gemm(parts["a"], m=64, n=64, k=64).execute(stream=stream)
    (facts,) = [one for name, one in recording.trace.metadata.partitions.items() if name == "a"]
    assert "25%" in str(facts)


def test_the_hint_names_only_a_rounding_that_helps():
    with pytest.raises(InvalidPartition) as low:
        plan_carve(H200, [7])
    assert "'down'" not in str(low.value)
    with pytest.raises(InvalidPartition, match="'up', 'down' or 'nearest'"):
        plan_carve(H200, [9])


@pytest.mark.parametrize(("asked", "rounding"), [(3, "down"), (133, "up"), (200, "up")])
def test_rounding_that_has_nothing_to_offer(asked, rounding):
    with pytest.raises(InvalidPartition):
        plan_carve(H200, [asked], rounding=rounding)


def test_unknown_rounding():
    with pytest.raises(InvalidPartition, match="'exact', 'up', 'down', 'nearest', not 'closest'"):
        plan_carve(H200, [8], rounding="closest")  # type: ignore[arg-type]


def test_a_refused_size_names_counts_that_go_together():
    with pytest.raises(InvalidPartition, match=r"nearest that go together are a: 64, b: 68") as no:
        plan_carve(H200, {"a": "50%", "b": "50%"})
    assert "64 below and 68 above" in str(no.value)
    plan_carve(H200, {"a": 64, "b": 68})
    with pytest.raises(InvalidPartition) as alone:
        plan_carve(H200, {"a": "50%"})
    assert "together" not in str(alone.value)


# -- the nearest counts that can be had together --------------------------------------------
def grantable_together(layout: SmLayout, count: int) -> np.ndarray:
    """Every tuple of counts that `plan_carve` grants exactly, shape (ways, count)."""
    granted = []
    for counts in itertools.product(layout.grantable(), repeat=count):
        with contextlib.suppress(InvalidPartition):
            granted.append(list(plan_carve(layout, counts).granted().values()))
    return np.array(granted)


def check_nearest(layout: SmLayout, asked: tuple[int, ...], ways: np.ndarray) -> None:
    """Nothing that can be had together is nearer, and it can be had."""
    plan = plan_carve(layout, asked, rounding="nearest", keep=())
    granted = list(plan.granted().values())
    assert list(plan_carve(layout, granted).granted().values()) == granted
    assert [one.asked for one in plan.partitions] == list(asked)
    distance = np.abs(np.array(granted) - asked).sum()
    assert distance == np.abs(ways - asked).sum(axis=1).min(), (asked, granted)


@pytest.mark.no_cover
def test_every_pair_of_counts_snaps_to_the_nearest_that_go_together():
    ways = grantable_together(H200, 2)
    for asked in itertools.combinations_with_replacement(range(1, 141), 2):
        check_nearest(H200, asked, ways)
        check_nearest(H200, asked[::-1], ways)


def test_every_count_snaps_beside_the_rest():
    able = [n for n in H200.grantable() if n < 132]
    for asked in range(1, 200):
        sizes = {"a": asked, "b": "rest"}
        granted = plan_carve(H200, sizes, rounding="nearest", keep=()).granted()
        assert sum(granted.values()) == 132
        assert abs(granted["a"] - asked) == min(abs(n - asked) for n in able)
        assert plan_carve(H200, {"a": granted["a"], "b": "rest"}).granted() == granted


@given(layouts, st.lists(st.integers(1, 60), min_size=3, max_size=3))
def test_three_counts_snap_to_the_nearest_of_any_layout(layout, asked):
    ways = grantable_together(layout, 3)
    if len(ways):
        check_nearest(layout, tuple(asked), ways)
    else:
        with pytest.raises(InvalidPartition):
            plan_carve(layout, asked, rounding="nearest", keep=())


def test_of_equally_near_counts_the_higher_is_taken():
    assert plan_carve(H200, [14], rounding="nearest").granted() == {"p0": 16}
    assert plan_carve(H200, [64, 64], rounding="nearest").granted() == {"p0": 64, "p1": 68}


def test_what_is_kept_stays_while_the_others_snap():
    # 12 is the remainder: without `keep`, 20 would take it, and 12 become 8 or 16.
    sizes = {"a": 12, "b": 20, "c": "rest"}
    kept = plan_carve(H200, sizes, rounding="nearest", keep=["a"])
    assert kept.granted() == {"a": 12, "b": 24, "c": 96}
    # What cannot stay is not kept.
    assert plan_carve(H200, [13, 8], rounding="nearest", keep=["p0"]).granted()["p0"] == 12


def test_the_error_names_counts_that_go_together():
    with pytest.raises(InvalidPartition, match="p0: 64, p1: 60") as caught:
        plan_carve(H200, {"p0": 60, "p1": 60, "p2": 8})
    nearest = re.search(r"are (.*)\. Ask", str(caught.value)).group(1)
    sizes = {name: int(n) for name, n in (one.split(": ") for one in nearest.split(", "))}
    assert plan_carve(H200, sizes).granted() == sizes


def test_more_partitions_than_parts_cannot_be_had():
    with pytest.raises(InvalidPartition, match="fewer parts than partitions"):
        plan_carve(H200, [1] * 17, rounding="nearest")
    plan = plan_carve(H200, {**{f"p{n}": 1 for n in range(15)}, "last": "rest"}, rounding="nearest")
    assert plan.granted()["last"] == 12
    with pytest.raises(InvalidPartition, match="fewer parts than partitions"):
        plan_carve(H200, {**{f"p{n}": 1 for n in range(16)}, "r": "rest"}, rounding="nearest")


def test_a_huge_count_snaps_at_once():
    granted = plan_carve(H200, {"a": 16, "b": 10**30}, rounding="nearest", keep=["a"]).granted()
    assert granted == {"a": 16, "b": 116}


def test_rest_after_rounding_up_states_what_the_others_really_take():
    # 125 becomes 132: nothing is left, and 125 SMs would not have said why.
    with pytest.raises(InvalidPartition, match="132 of 132 SMs"):
        plan_carve(H200, {"a": 125, "b": "rest"}, rounding="up")


def test_sharing_prefers_free_parts_and_names_who_shares():
    plan = plan_carve(H200, {"a": 104, "b": 16}, held=LIVE, allow_shared=True)
    by_name = {partition.name: partition for partition in plan.partitions}
    assert by_name["a"].shares_with == ()
    assert by_name["b"].shares_with == ("decode",)
    assert by_name["b"].parts == (0, 1)
    plan = plan_carve(H200, {"all": 132}, held=LIVE, allow_shared=True)
    assert plan.partitions[0].shares_with == ("decode", "spare")


def test_held_parts_are_not_given_out():
    plan = plan_carve(H200, {"a": "rest"}, held=LIVE)
    assert plan.granted() == {"a": 104}
    assert plan.partitions[0].parts == tuple(range(2, 15))


@pytest.mark.parametrize("name", ["", 5, None])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(InvalidPartition) as refused:
        check_name(name)
    assert str(refused.value).endswith(f"not {name!r}")
    with pytest.raises(InvalidPartition) as of_a_request:
        named_sizes({"a": 8, name: 16})
    assert str(of_a_request.value) == str(refused.value)


def test_numpys_whole_numbers_are_counts():
    assert named_sizes({"a": np.int64(16), "b": "rest"}) == {"a": Size(16), "b": Size("rest")}
    assert named_sizes([np.uint8(8), 16]) == {"p0": Size(8), "p1": Size(16)}
    with pytest.raises(InvalidPartition, match="whole number"):
        named_sizes({"a": np.bool_(1)})


@pytest.mark.parametrize(
    "wrong", [{"instead_of": {"a"}}, {"instead_of": {"a": 1}}, {"keep": {1}}, {"keep": [1]}]
)
def test_what_stays_and_what_goes_is_named_as_it_has_to_be(wrong):
    gpu = gs.open_device("sim:h200", quiet=True)
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        gpu.plan_carve([8], rounding="nearest", **wrong)


def test_who_stays_may_be_named_in_any_order():
    gpu = gs.open_device("sim:h200", quiet=True)
    with gpu.carve({"a": 16, "b": 8}) as parts:
        plan = gpu.plan_carve({"c": "rest"}, keep={"c"}, instead_of={parts["a"], parts["b"]})
    assert plan.granted() == {"c": 132}
