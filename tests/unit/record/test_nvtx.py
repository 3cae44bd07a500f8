"""NVTX and annotate: who hears ranges, and that each push has its pop."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_cupti import World, rows

import gpuscope as gs
from gpuscope import _libcupti
from gpuscope._libcupti import NVTX_INJECTION, arrange_nvtx, arranged
from gpuscope.errors import CapabilityError
from gpuscope.record import annotate as annotate_module
from gpuscope.record import nvtx, ranges


@pytest.fixture
def world(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    world = World(monkeypatch)
    yield world
    assert world.nvtx.depth == 0, "a range was left open"
    assert nvtx.heard == 0


@pytest.fixture
def deaf(monkeypatch):
    """A world in which NVTX was used too early: ranges do not reach CUPTI."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    world = World(monkeypatch, ranges=False)
    yield world
    assert world.nvtx.depth == 0, "a range was left open"
    assert ranges.running == ()


def named(trace):
    return [row["name"] for row in rows(trace, "range")]


CANARY = nvtx.CANARY


# -- who hears -------------------------------------------------------------------------------
def test_ranges_are_made_only_while_somebody_hears_them(world):
    with gs.annotate("before"):
        pass
    with world.profile() as outer:
        assert nvtx.heard == 1
        with gs.annotate("one"):
            pass
        with world.profile() as inner:
            assert nvtx.heard == 2
            with gs.annotate("two"):
                pass
        assert nvtx.heard == 1
    assert nvtx.heard == 0
    with gs.annotate("after"):
        pass
    assert [name for name in world.nvtx.pushed if name != CANARY] == ["one", "two"]
    assert named(outer.trace) == ["one", "two"]
    assert named(inner.trace) == ["two"]
    assert ranges.running == (), "its rows come from NVTX"


def test_a_tool_that_was_there_before_hears_everything(world, monkeypatch):
    monkeypatch.setattr(nvtx, "heard", 1)
    with gs.annotate("theirs"):
        pass
    with world.profile() as recording, gs.annotate("both"):
        pass
    assert nvtx.heard == 1
    assert [name for name in world.nvtx.pushed if name != CANARY] == ["theirs", "both"]
    assert named(recording.trace) == ["both"]
    nvtx.heard = 0


def test_where_ranges_do_not_reach_cupti_the_recording_makes_its_own(deaf):
    with deaf.profile() as recording:
        assert nvtx.heard == 0
        with gs.annotate("outer"), gs.annotate("inner"):
            deaf.gpu.foreign("k")
    trace = recording.trace
    ranges = {row["name"]: row for row in rows(trace, "range")}
    assert set(ranges) == {"outer", "inner"}
    assert ranges["inner"]["parent"] == ranges["outer"]["id"]
    assert [name for name in deaf.nvtx.pushed if name != CANARY] == []
    assert any(NVTX_INJECTION in note for note in trace.metadata.notes)
    assert trace.metadata.complete


def test_who_hears_is_counted_right_by_many_threads(monkeypatch):
    monkeypatch.setattr(nvtx, "heard", 0)

    def work():
        for _ in range(2000):
            nvtx.listen(1)
            nvtx.listen(-1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert nvtx.heard == 0


def test_a_recording_that_cannot_start_hears_nothing(world):
    world.gpu.canaries_arrive = False
    with pytest.raises(gs.errors.RecorderBusy):
        world.recording().start()
    assert nvtx.heard == 0


# -- each push has its pop -------------------------------------------------------------------
def test_a_recording_that_starts_inside_a_range_leaves_it_unpushed(world):
    with gs.annotate("around"):
        recording = world.recording()
        recording.start()
        with gs.annotate("inside"):
            assert world.nvtx.depth == 1
        assert world.nvtx.depth == 0
    recording.stop()
    assert named(recording.trace) == ["inside"]


def test_a_recording_that_stops_inside_a_range_has_it_popped(world):
    recording = world.recording()
    recording.start()
    with gs.annotate("around"):
        with gs.annotate("inside"):
            recording.stop()
        assert world.nvtx.depth == 1
    assert world.nvtx.depth == 0
    assert named(recording.trace) == ["around", "inside"]
    assert [row["end_ns"] for row in rows(recording.trace, "range")] == [None, None]


def test_ranges_of_two_recordings_that_overlap_stay_balanced(world):
    one, two = world.recording(), world.recording()
    with gs.annotate("a"):
        one.start()
        with gs.annotate("b"):
            two.start()
            with gs.annotate("c"):
                one.stop()
            with gs.annotate("d"):
                pass
        two.stop()
    assert world.nvtx.depth == 0
    assert named(one.trace) == ["b", "c"]
    assert named(two.trace) == ["c", "d"]


def test_recordings_of_their_own_ranges_stay_balanced_too(deaf):
    one, two = deaf.recording(), deaf.recording()
    with gs.annotate("a"):
        one.start()
        with gs.annotate("b"):
            two.start()
            with gs.annotate("c"):
                one.stop()
            with gs.annotate("d"):
                pass
        two.stop()
    assert sorted(named(one.trace)) == ["b", "c"]
    assert sorted(named(two.trace)) == ["c", "d"]
    assert {row["end_ns"] for row in rows(one.trace, "range")} == {None}
    assert None not in {row["end_ns"] for row in rows(two.trace, "range")}


@pytest.mark.parametrize("reaches", [True, False])
def test_a_range_ends_when_its_body_raises(monkeypatch, reaches):
    world = World(monkeypatch, ranges=reaches)
    with world.profile() as recording:
        for _ in range(3):
            with pytest.raises(ZeroDivisionError), gs.annotate("fails"):
                raise ZeroDivisionError
    assert world.nvtx.depth == 0
    found = rows(recording.trace, "range")
    assert [row["name"] for row in found] == ["fails"] * 3
    assert all(row["end_ns"] is not None for row in found)


@pytest.mark.parametrize("reaches", [True, False])
def test_one_annotation_can_be_entered_again_and_inside_itself(monkeypatch, reaches):
    world = World(monkeypatch, ranges=reaches)
    again = gs.annotate("again")
    with world.profile() as recording:
        for _ in range(2):
            with again, again:
                pass
    assert world.nvtx.depth == 0
    found = rows(recording.trace, "range")
    assert len(found) == 4
    assert sum(row["parent"] is None for row in found) == 2


@pytest.mark.parametrize("reaches", [True, False])
def test_an_annotation_inside_itself_outlives_the_start_of_a_recording(monkeypatch, reaches):
    world = World(monkeypatch, ranges=reaches)
    again = gs.annotate("again")
    recording = world.recording()
    with again:
        recording.start()
        with again:
            pass
        assert world.nvtx.depth == 0
    recording.stop()
    assert [row["end_ns"] is None for row in rows(recording.trace, "range")] == [False]


@pytest.mark.parametrize("reaches", [True, False])
def test_a_decorator_names_every_call(monkeypatch, reaches):
    world = World(monkeypatch, ranges=reaches)

    @gs.annotate("step")
    def step(depth):
        """Do a step."""
        return step(depth - 1) + 1 if depth else 0

    with world.profile() as recording:
        assert step(3) == 3
    assert (step.__name__, step.__doc__) == ("step", "Do a step.")
    assert world.nvtx.depth == 0
    assert named(recording.trace) == ["step"] * 4


def test_any_text_is_a_name(world):
    with world.profile() as recording, gs.annotate("ü\ud800"), gs.annotate(""):
        pass
    assert set(named(recording.trace)) == {"ü?", "(no message)"}


def test_threads_have_ranges_of_their_own(world):
    def work(number):
        for _ in range(20):
            with gs.annotate(f"outer {number}"), gs.annotate(f"inner {number}"):
                pass

    with world.profile() as recording:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = rows(recording.trace, "range")
    by_id = {row["id"]: row for row in found}
    assert len(found) == 4 * 20 * 2
    for row in found:
        if row["name"].startswith("inner"):
            parent = by_id[row["parent"]]
            assert parent["name"] == row["name"].replace("inner", "outer")
            assert parent["thread"] == row["thread"]
        else:
            assert row["parent"] is None


# -- our domain ------------------------------------------------------------------------------
class Domain:
    categories = {"loading": 3, "computing": 4}  # noqa: RUF012


@pytest.mark.parametrize(
    ("made", "ours", "heard"),
    [(Domain(), False, 1), (Domain(), True, 0), (object(), False, 0), (object(), True, 0)],
    ids=["a tool is attached", "CUPTI alone", "nothing is", "CUPTI that did not attach"],
)
def test_without_a_tool_nobody_hears_until_a_recording_does(monkeypatch, made, ours, heard):
    monkeypatch.setattr(nvtx, "heard", 1)
    monkeypatch.setattr(nvtx, "arrange_nvtx", lambda: None)
    monkeypatch.setattr(nvtx, "arranged", lambda: ours)
    fake = SimpleNamespace(get_domain=lambda name: made, Domain=Domain)
    monkeypatch.setitem(sys.modules, "nvtx", fake)
    assert nvtx.domain.__wrapped__() is made
    assert nvtx.heard == heard


def test_nvtx_is_arranged_before_it_is_imported(monkeypatch):
    order = []

    class Module(SimpleNamespace):
        def __getattr__(self, name):
            order.append(name)
            return {"get_domain": lambda name: object(), "Domain": Domain}[name]

    monkeypatch.setattr(nvtx, "heard", 1)
    monkeypatch.setattr(nvtx, "arrange_nvtx", lambda: order.append("arranged"))
    monkeypatch.setitem(sys.modules, "nvtx", Module())
    nvtx.domain.__wrapped__()
    assert order[0] == "arranged"


def test_categories_have_names_as_far_as_python_registered_them(monkeypatch):
    asked = []
    fake = SimpleNamespace(get_domain=lambda name: asked.append(name) or Domain())
    monkeypatch.setitem(sys.modules, "nvtx", fake)
    assert nvtx.category_name("dom", 4) == "computing"
    assert nvtx.category_name("dom", 9) == "9"
    assert nvtx.category_name("", 3) == "loading"
    assert asked == ["dom", "dom", None]
    fake.get_domain = lambda name: object()
    assert nvtx.category_name("dom", 4) == "4"


def test_the_real_nvtx_takes_what_we_give_it():
    annotate_module.range_of.cache_clear()
    with gs.annotate("ordinary"), gs.annotate("ü\ud800"):
        pass


# -- letting ranges reach CUPTI --------------------------------------------------------------
@pytest.fixture
def bare(monkeypatch):
    """No variable, CUPTI installed."""
    monkeypatch.setenv(NVTX_INJECTION, "")  # so that what is set here goes with the test
    monkeypatch.delenv(NVTX_INJECTION)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr(_libcupti, "library_path", lambda: Path("/somewhere/libcupti.so.13"))


def test_the_variable_is_set_to_the_libcupti_that_is_used(bare):
    arrange_nvtx()
    assert os.environ[NVTX_INJECTION] == "/somewhere/libcupti.so.13"
    assert arranged()
    arrange_nvtx()
    assert os.environ[NVTX_INJECTION] == "/somewhere/libcupti.so.13"


@pytest.mark.parametrize("value", ["/opt/nsys/libToolsInjection64.so", ""])
def test_a_variable_that_is_set_is_left_alone(bare, monkeypatch, value):
    monkeypatch.setenv(NVTX_INJECTION, value)
    monkeypatch.setattr(_libcupti, "library_path", lambda: pytest.fail("libcupti was loaded"))
    arrange_nvtx()
    assert os.environ[NVTX_INJECTION] == value
    assert not arranged()


def test_a_variable_that_somebody_set_since_is_theirs(bare, monkeypatch):
    arrange_nvtx()
    monkeypatch.setenv(NVTX_INJECTION, "/opt/other.so")
    assert not arranged()


def test_without_cupti_nothing_is_set(bare, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(_libcupti, "library_path", lambda: pytest.fail("libcupti was looked for"))
    arrange_nvtx()
    assert NVTX_INJECTION not in os.environ
    assert not arranged()


def test_a_libcupti_that_cannot_be_loaded_is_left_alone(bare, monkeypatch):
    def fails():
        raise CapabilityError("libcupti cannot be loaded")

    monkeypatch.setattr(_libcupti, "library_path", fails)
    arrange_nvtx()
    assert NVTX_INJECTION not in os.environ
    assert not arranged()
