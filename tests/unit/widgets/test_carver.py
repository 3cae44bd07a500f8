"""PartitionCarver without a browser, through its traits and the messages of its page."""

from __future__ import annotations

import itertools
import threading

import pytest
from front_end import pages  # noqa: F401 - a fixture
from hypothesis import given
from hypothesis import strategies as st

import gpuscope as gs
from gpuscope.errors import DeviceUnavailable, InvalidPartition
from gpuscope.widgets.carver import PartitionCarver


@pytest.fixture
def gpu():
    return gs.open_device("sim:h200", quiet=True)


@pytest.fixture
def page(pages, gpu):  # noqa: F811 - the fixture
    carver = PartitionCarver(gpu, {"small": 16, "load": "rest"})
    yield pages(carver)
    carver.close()


def ask(page, counts, *, settle=False) -> None:
    """Ask by name, as dragging and typing do."""
    ids = {row["name"]: row["id"] for row in page.state["rows"]}
    serial = page.state["asking"].get("serial", 0) + 1
    counts = {str(ids[name]): count for name, count in counts.items()}
    page.set(asking={"counts": counts, "settle": settle, "serial": serial})


def granted(page) -> dict[str, int]:
    return {row["name"]: row["granted"] for row in page.state["rows"]}


def asked(page) -> dict[str, int | str]:
    return {row["name"]: row["asked"] for row in page.state["rows"]}


# -- what it shows ------------------------------------------------------------------------
def test_the_sms_are_grouped_as_the_driver_splits_them(page):
    strip = page.state["strip"]
    assert (strip["total"], strip["quantum"], strip["remainder"]) == (132, 8, 12)
    assert [group["sm_count"] for group in strip["groups"]] == [8] * 15 + [12]
    assert strip["groups"][-1]["kind"] == "remainder"
    small, load = (row["id"] for row in page.state["rows"])
    assert [group["owner"] for group in strip["groups"]] == [small] * 2 + [load] * 14


def test_every_trait_says_what_it_is():
    own = set(PartitionCarver.class_traits()) - set(PartitionCarver.mro()[2].class_traits())
    assert {"sizes", "rows", "strip", "error", "pending", "asking", "disabled"} <= own
    assert all(PartitionCarver.class_traits()[name].help for name in own)


def test_what_live_partitions_hold_is_shown_and_not_given_out(pages, gpu):  # noqa: F811
    with gpu.carve({"other": 64}):
        carver = PartitionCarver(gpu, {"a": "rest"})
        page = pages(carver)
        assert granted(page) == {"a": 68}
        held = [group for group in page.state["strip"]["groups"] if group["owner"] == -1]
        assert sum(group["sm_count"] for group in held) == 64
    carver.refresh()
    assert granted(page) == {"a": 132}
    carver.close()


# -- snapping -----------------------------------------------------------------------------
def test_every_count_snaps_to_what_plan_carve_grants(page, gpu):
    for count in range(1, 141):
        ask(page, {"small": count})
        assert asked(page)["small"] == count
        got = granted(page)
        able = [n for n in gpu.layout.grantable() if n < 132]
        assert abs(got["small"] - count) == min(abs(n - count) for n in able)
        plan = gpu.plan_carve({"small": got["small"], "load": "rest"})
        assert plan.granted() == got
        assert page.state["error"] == ""


def test_every_boundary_between_two_snaps_to_what_plan_carve_grants_together(pages, gpu):  # noqa: F811
    carver = PartitionCarver(gpu, [64, 64])
    page = pages(carver)
    for both in (132, 128, 100):
        for left in range(1, both):
            ask(page, {"p0": left, "p1": both - left})
            got = granted(page)
            assert gpu.plan_carve(got).granted() == got
            nearest = gpu.plan_carve({"p0": left, "p1": both - left}, rounding="nearest")
            assert nearest.granted() == got
    ask(page, {"p0": 64, "p1": 64}, settle=True)  # either alone can be had, both cannot
    assert granted(page) == asked(page) == {"p0": 64, "p1": 68}
    carver.close()


@given(st.lists(st.integers(1, 140), min_size=1, max_size=6), st.booleans(), st.data())
def test_whatever_is_asked_is_granted_as_shown_or_an_error_is(counts, rest, data):
    device = gs.open_device("sim:h200", quiet=True)
    names = [f"p{n}" for n in range(len(counts))]
    carver = PartitionCarver(device, dict.fromkeys(names, 8) | ({"r": "rest"} if rest else {}))
    for name, count in zip(names, counts, strict=True):
        carver.propose({name: count})
        assert carver.is_valid
        got = carver.proposal
        wanted = {**got, "r": "rest"} if rest else got
        assert device.plan_carve(wanted).granted() == got
    name = data.draw(st.sampled_from(names))
    others = {key: n for key, n in carver.proposal.items() if key not in (name, "r")}
    carver.propose({name: data.draw(st.integers(1, 140))})
    stayed = {key: n for key, n in carver.proposal.items() if key in others}
    assert stayed == others, "what nobody moved stays"
    carver.close()


def test_settling_makes_what_is_granted_what_is_asked(page):
    ask(page, {"small": 37})
    assert (asked(page)["small"], granted(page)["small"]) == (37, 36)
    ask(page, {"small": 37}, settle=True)
    assert (asked(page)["small"], granted(page)["small"]) == (36, 36)


@pytest.mark.parametrize(
    ("typed", "said"),
    [("many", "found 'many'"), ("", "whole number"), (0, "found 0"), (-8, "found -8"),
     (1.5, "found 1.5"), ("101%", "found '101%'"),
     ("<b>", "found '<b>'"), (True, "found True"), (None, "found None")],
)  # fmt: skip
def test_what_is_no_count_is_said_beside_it(page, typed, said):
    ask(page, {"small": typed})
    row, other = page.state["rows"]
    assert said in row["count_error"]
    assert other["count_error"] == ""
    assert not page.widget.is_valid
    with pytest.raises(InvalidPartition, match="partition 'small'"):
        page.widget.apply()
    ask(page, {"small": 24})
    assert page.state["rows"][0]["count_error"] == ""
    assert granted(page)["small"] == 24


def test_what_is_asked_and_not_granted_is_warned_of_beside_it(page):
    ask(page, {"small": 200})
    assert "200 asked, 124 granted" in page.state["rows"][0]["count_warning"]
    ask(page, {"small": "abc"})
    row = page.state["rows"][0]
    assert row["count_warning"] == ""
    assert "found 'abc'" in row["count_error"]
    ask(page, {"small": 24})
    assert page.state["rows"][0]["count_warning"] == ""


def test_a_huge_count_takes_what_there_is(page):
    ask(page, {"small": 10**15})
    assert granted(page) == {"small": 124, "load": 8}


def test_more_partitions_than_parts_are_refused_in_place(page):
    for _ in range(15):
        page.act("add")
    assert "fewer parts than partitions" in page.state["error"]
    assert not page.widget.is_valid
    page.act("remove", id=page.state["rows"][-1]["id"])
    assert page.state["error"] == ""


# -- adding, removing, naming, colouring, the rest ------------------------------------------
def test_add_takes_a_quantum_from_the_rest_then_from_the_largest(page):
    page.act("add")
    assert granted(page) == {"small": 16, "load": 108, "p1": 8}
    ask(page, {"load": 108}, settle=True)  # no rest any more
    page.act("add")
    assert granted(page) == {"small": 16, "load": 100, "p1": 8, "p2": 8}
    colors = [row["color"] for row in page.state["rows"]]
    assert len(set(colors)) == 4


def test_add_takes_what_is_free_first(pages, gpu):  # noqa: F811
    carver = PartitionCarver(gpu, {"a": 64})
    carver.add("b")
    assert carver.proposal == {"a": 64, "b": 8}
    carver.close()


def test_remove_gives_back(page):
    page.widget.remove("load")
    assert granted(page) == {"small": 16}
    free = [group for group in page.state["strip"]["groups"] if group["owner"] == 0]
    assert sum(group["sm_count"] for group in free) == 116
    with pytest.raises(InvalidPartition, match="no partition 'load'"):
        page.widget.remove("load")
    page.widget.remove("small")
    assert page.widget.is_valid
    page.act("apply")
    assert page.state["sizes"] == {}
    assert page.widget.partitions is None


@pytest.mark.parametrize(("name", "said"), [("", "non-empty text"), ("load", "two partitions")])
def test_a_name_that_is_none_is_said_beside_it(page, name, said):
    first = page.state["rows"][0]
    page.act("rename", id=first["id"], name=name)
    errors = [row["name_error"] for row in page.state["rows"]]
    assert any(said in error for error in errors)
    assert not page.widget.is_valid
    page.act("rename", id=first["id"], name="tiny")
    assert page.widget.is_valid
    page.act("apply")
    assert page.widget.sizes == {"tiny": 16, "load": "rest"}
    assert page.widget.renamed == {"small": "tiny"}


def test_colours_follow_the_partition(page):
    first = page.state["rows"][0]
    page.act("color", id=first["id"], color="#123456")
    assert page.widget.colors["small"] == "#123456"
    page.act("rename", id=first["id"], name="tiny")
    page.act("apply")
    assert page.widget.colors["tiny"] == "#123456"
    assert not page.state["pending"]


def test_the_rest_can_be_given_to_another(page):
    ask(page, {"small": "rest"})
    assert asked(page) == {"small": "rest", "load": 116}
    assert granted(page) == {"small": 16, "load": 116}
    page.act("apply")
    assert page.widget.sizes == {"small": "rest", "load": 116}


# -- apply --------------------------------------------------------------------------------
def test_nothing_is_touched_until_apply(page, gpu):
    ask(page, {"small": 64}, settle=True)
    assert page.state["pending"]
    assert gpu.partitions == ()
    page.act("apply")
    assert not page.state["pending"]
    assert page.widget.sizes == {"small": 64, "load": "rest"}
    live = page.widget.partitions
    assert {part.name: part.sm_count for part in gpu.partitions} == {"small": 64, "load": 68}
    assert page.state["rows"][0]["sm_ids"] == "0–63"
    ask(page, {"small": 24}, settle=True)  # what it holds itself can be given out again
    assert (granted(page), page.state["rows"][0]["sm_ids"]) == ({"small": 24, "load": 108}, "")
    assert not live.closed
    page.act("apply")
    assert live.closed
    assert {part.name: part.sm_count for part in gpu.partitions} == {"small": 24, "load": 108}
    page.widget.close()
    assert gpu.partitions == ()


def test_revert_goes_back_to_what_was_applied(page):
    ask(page, {"small": 64})
    page.act("rename", id=page.state["rows"][0]["id"], name="other")
    page.act("revert")
    assert granted(page) == {"small": 16, "load": 116}
    assert not page.state["pending"]


def test_an_apply_that_is_refused_says_so_in_place(page, gpu):
    with gpu.carve({"other": 8}):  # since it planned
        page.act("apply")
        assert "since this was proposed" in page.state["refused"]
        assert page.widget.partitions is None
        assert granted(page) == {"small": 16, "load": 108}
        page.act("apply")
        assert page.state["refused"] == ""
        assert page.widget.partitions["load"].sm_count == 108


def test_start_counts_that_cannot_be_had_show_as_such(pages, gpu):  # noqa: F811
    carver = PartitionCarver(gpu, {"a": 17})
    page = pages(carver)
    assert (asked(page), granted(page)) == ({"a": 17}, {"a": 16})
    assert page.state["pending"]
    carver.close()
    with pytest.raises(InvalidPartition, match="whole number"):
        PartitionCarver(gpu, {"a": "some"})
    with pytest.raises(DeviceUnavailable, match="tpu"):
        PartitionCarver("sim:tpu")


def test_a_device_that_cannot_carve_says_why(pages):  # noqa: F811
    carver = PartitionCarver("cpu", {"a": 8})
    assert "not possible here" in pages(carver).state["error"]
    carver.close()


# -- foreign messages, other threads --------------------------------------------------------
@pytest.mark.parametrize("content", [None, 3, {}, {"action": "nonsense"}, {"action": ""}])
def test_messages_that_mean_nothing_change_nothing(page, content):
    before = page.state
    page.widget._handle_custom_msg(content, [])
    assert page.state == before


def test_callbacks_of_several_threads_take_turns(page, gpu):
    rows = page.state["rows"]
    start = threading.Barrier(4)

    def drag(first: int) -> None:
        start.wait()
        for count, serial in zip(range(8, 128, 4), itertools.count(first), strict=False):
            counts = {str(rows[0]["id"]): count}
            page.set(asking={"counts": counts, "settle": count % 8 == 0, "serial": serial})

    threads = [threading.Thread(target=drag, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got = page.widget.proposal
    assert gpu.plan_carve({"small": got["small"], "load": "rest"}).granted() == got


# -- percentages ---------------------------------------------------------------------------
def test_a_percentage_becomes_the_nearest_count(page, gpu):
    ask(page, {"small": "25%"})
    assert asked(page)["small"] == "25%"
    assert granted(page) == {"small": 32, "load": 100}
    ask(page, {"small": "25%"}, settle=True)
    assert asked(page)["small"] == 32


def test_it_starts_from_percentages(gpu):
    carver = PartitionCarver(gpu, {"a": "50%", "b": "rest"})
    assert carver.proposal == {"a": 68, "b": 64}
    carver.apply()
    assert carver.sizes == {"a": 68, "b": "rest"}
    assert carver.partitions["a"].sm_count == 68
    carver.close()
