"""A hazard is tried: the first work delayed, results compared."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.trace.metadata import HazardFact

SIZE = 1000


@pytest.fixture
def gpu():
    return gs.open_device("sim:h200", quiet=True)


def found(gpu: gs.Device, program: Callable[[], object]) -> tuple[HazardFact, ...]:
    with gs.profile(gpu, hazards=True) as recording:
        program()
    return gs.analysis.hazards(recording.trace).found


def filled(gpu: gs.Device, value: float) -> object:
    return gpu.asarray(np.full(SIZE, value, "float32"))


def read_after_write(gpu: gs.Device, *, ordered: bool) -> object:
    data, new, seen = filled(gpu, 0), filled(gpu, 1), filled(gpu, 0)
    with gpu.create_stream(name="producer") as a, gpu.create_stream(name="consumer") as b:
        a.copy(data, new)
        if ordered:
            b.wait(a.record())
        b.copy(seen, data)
    return seen


def write_after_read(gpu: gs.Device, *, ordered: bool) -> object:
    data, new, seen = filled(gpu, 0), filled(gpu, 1), filled(gpu, 0)
    with gpu.create_stream(name="reader") as a, gpu.create_stream(name="writer") as b:
        a.copy(seen, data)
        if ordered:
            b.wait(a.record())
        b.copy(data, new)
    return seen


def write_after_write(gpu: gs.Device, *, ordered: bool) -> object:
    data, one, two = filled(gpu, 0), filled(gpu, 1), filled(gpu, 2)
    with gpu.create_stream(name="first") as a, gpu.create_stream(name="second") as b:
        a.copy(data, one)
        if ordered:
            b.wait(a.record())
        b.copy(data, two)
    return data


def host_too_early(gpu: gs.Device, *, ordered: bool) -> object:
    page, new = gpu.empty_pinned(SIZE), filled(gpu, 1)
    page[:] = 0
    with gpu.create_stream(name="down") as stream:
        stream.copy(page, new)
        if ordered:
            stream.synchronize()
        return float(page[0])


def lost_every_time(gpu: gs.Device, *, ordered: bool) -> object:
    data, new, seen = filled(gpu, 0), filled(gpu, 1), filled(gpu, 0)
    with gpu.create_stream(name="producer") as a, gpu.create_stream(name="consumer") as b:
        a.launch(gs.learn.spin_kernel(gpu), 5_000_000, grid=1, block=32)
        a.copy(data, new)
        if ordered:
            b.wait(a.record())
        b.copy(seen, data)
    return seen


RACES = [read_after_write, write_after_read, write_after_write, host_too_early, lost_every_time]


@pytest.mark.parametrize("race", RACES)
def test_a_race_is_confirmed(gpu, race):
    (hazard,) = found(gpu, lambda: race(gpu, ordered=False))
    assert hazard.status == ""
    tried = gs.confirm(hazard, lambda: race(gpu, ordered=False), gpu)
    assert tried.status == "confirmed"
    assert (tried.kind, tried.mend) == (hazard.kind, hazard.mend)


@pytest.mark.parametrize("race", RACES)
def test_its_mended_twin_has_none_to_try(gpu, race):
    assert found(gpu, lambda: race(gpu, ordered=True)) == ()
    (hazard,) = found(gpu, lambda: race(gpu, ordered=False))
    tried = gs.confirm(hazard, lambda: race(gpu, ordered=True), gpu)
    assert tried.status.startswith("could not be tried: the program shows no")


def test_a_race_that_changes_nothing_is_not_reproduced(gpu):
    def same_values():
        data, new, seen = filled(gpu, 7), filled(gpu, 7), filled(gpu, 0)
        with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
            a.copy(data, new)
            b.copy(seen, data)
        return {"seen": seen}

    (hazard,) = found(gpu, same_values)
    assert gs.confirm(hazard, same_values, gpu).status == "not reproduced"


def test_what_differs_by_itself_is_not_tried(gpu):
    numbers = itertools.count()

    def program():
        read_after_write(gpu, ordered=False)
        return next(numbers)

    (hazard,) = found(gpu, program)
    assert "differ from run to run" in gs.confirm(hazard, program, gpu).status


@pytest.mark.parametrize(
    ("returned", "why"),
    [(None, "returns nothing"), (object(), "no array or number")],
)
def test_what_cannot_be_compared_is_not_tried(gpu, returned, why):
    def program():
        read_after_write(gpu, ordered=False)
        return returned

    (hazard,) = found(gpu, program)
    assert why in gs.confirm(hazard, program, gpu).status


def test_the_second_of_many_is_the_one_that_is_delayed(gpu):
    def program():
        data, new, seen = filled(gpu, 0), filled(gpu, 1), filled(gpu, 0)
        with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
            a.copy(new, filled(gpu, 3))
            b.wait(a.record())
            a.copy(data, new)
            b.copy(seen, data)
        return seen

    (hazard,) = found(gpu, program)
    assert gs.confirm(hazard, program, gpu).status == "confirmed"


def test_an_error_of_the_program_is_the_programs(gpu):
    (hazard,) = found(gpu, lambda: read_after_write(gpu, ordered=False))

    def fails():
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        gs.confirm(hazard, fails, gpu)
    assert gpu.calls.observers == ()
