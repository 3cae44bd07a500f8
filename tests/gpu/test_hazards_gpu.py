"""Racy programs on a GPU: each is found, its mended twin is right and is not accused."""

from __future__ import annotations

import functools
import itertools

import pytest
from races import BORROWED, CUSAN, SLOW_NS, TRIED, filled, launch, load, values

import gpuscope as gs

# CUPTI may not tell of a copy between host memory.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:the recording is incomplete")]
RACES = [*CUSAN, *TRIED, *BORROWED]


@pytest.fixture(scope="module")
def gpu():
    return gs.open_device("cuda:0", quiet=True)


def found(gpu, race, *, mended):
    with gs.profile(gpu, hazards=True) as recording:
        race.program(gpu, mended=mended)
    result = gs.analysis.hazards(recording.trace)
    assert not result.facts.unseen or race in BORROWED
    rows = set(recording.trace.array("id").tolist())
    for fact in result.found if recording.trace.metadata.complete else ():
        assert fact.first in rows
        assert fact.second in rows or fact.kind == "host access too early"
    return result.found


@pytest.mark.parametrize("race", RACES, ids=str)
def test_a_racy_program_is_found(gpu, race):
    facts = found(gpu, race, mended=False)
    assert facts
    assert all(map(race.is_found, facts)), facts


@pytest.mark.parametrize("race", RACES, ids=str)
def test_its_mended_twin_is_not_accused(gpu, race):
    assert found(gpu, race, mended=True) == ()


@pytest.mark.parametrize("race", [*CUSAN, *TRIED], ids=str)
def test_its_mended_twin_is_right(gpu, race):
    """As on the simulated GPU."""
    expected = gs.open_device("sim:h200", quiet=True)
    right = values(expected, race.program(expected, mended=True))
    for _ in range(3):
        assert values(gpu, race.program(gpu, mended=True)) == right


def test_nothing_of_our_own_is_unseen(gpu):
    with gs.profile(gpu, hazards=True) as recording, gpu.carve([16]) as parts:
        array = gpu.asarray([1.0, 2.0])
        with parts[0].create_stream() as stream:
            launch(stream, "write", filled(gpu, 0))
            assert gpu.to_host(array).tolist() == [1.0, 2.0]
    assert recording.trace.metadata.hazards.unseen == 0


def confirmed(gpu, race):
    """Return what becomes of a hazard in its program, and in the mended twin."""
    facts = found(gpu, race, mended=False)
    hazard = next(filter(race.is_found, facts))
    return [
        gs.confirm(hazard, functools.partial(race.program, gpu, mended=mended), gpu).status
        for mended in (False, True)
    ]


@pytest.mark.gpu_alone("delays of ms must show")
@pytest.mark.parametrize("race", [*TRIED, *BORROWED], ids=str)
def test_a_race_is_confirmed_and_its_twin_is_not(gpu, race):
    racy, twin = confirmed(gpu, race)
    assert racy == "confirmed"
    assert twin.startswith("could not be tried: the program shows no")


@pytest.mark.gpu_alone("delays of ms must show")
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16", "bool"])
def test_what_pytorch_returns_is_compared(gpu, kind):
    torch = pytest.importorskip("torch")
    race = next(race for race in TRIED if race.name == "read after write")

    def program():
        values = gpu.to_host(race.program(gpu, mended=False))
        tensor = torch.tensor(values, device="cuda").to(getattr(torch, kind))
        return {"on the GPU": tensor, "on the host": tensor.cpu(), "a view": tensor[::2]}

    (hazard,) = filter(race.is_found, found(gpu, race, mended=False))
    assert gs.confirm(hazard, program, gpu).status == "confirmed"


@pytest.mark.gpu_alone("delays of ms must show")
@pytest.mark.parametrize("run", range(5))
def test_an_interrupt_in_any_run_leaves_the_gpu_usable(gpu, run):
    race = next(race for race in TRIED if race.name == "read after a slow write")
    (hazard,) = filter(race.is_found, found(gpu, race, mended=False))
    runs, before = itertools.count(), gpu.streams

    def program():
        result = race.program(gpu, mended=False)
        if next(runs) == run:
            raise KeyboardInterrupt
        return result

    with pytest.raises(KeyboardInterrupt):
        gs.confirm(hazard, program, gpu)
    assert not gpu.calls.observers
    assert gpu.streams == before
    assert confirmed(gpu, race)[0] == "confirmed"


@pytest.mark.gpu_alone("delays of ms must show")
@pytest.mark.parametrize("lost", [False, True])
def test_branches_of_one_graph_are_confirmed(gpu, lost):
    def program():
        data, other, seen = (filled(gpu, 0) for _ in range(3))
        load(gpu, "write", "rewrite", "read")
        with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
            with a.capture() as graph:
                b.wait(a.record())
                launch(a, "write", data, ns=SLOW_NS if lost else 2_000)
                launch(b, "rewrite", other, ns=1_000_000)
                launch(b, "read", seen, data)
                a.wait(b.record())
            with graph:
                graph.launch(stream=a)
        return seen

    with gs.profile(gpu, hazards=True) as recording:
        program()
    (hazard,) = gs.analysis.hazards(recording.trace).found
    assert gs.confirm(hazard, program, gpu).status == "confirmed"
