"""The exercises in PyTorch, with PyTorch itself, on a GPU: as given, solved, wrong and otherwise right."""

from __future__ import annotations

import pytest
from lesson_programs import RIGHT, WRONG
from playing import LESSONS, cells, judge, prepared, program, solutions

import gpuscope as gs
import gpuscope_lessons as learn
from gpuscope.errors import CapabilityError

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
NAMES = [name for name in LESSONS if "pytorch" in WRONG.get(name[:2], {})]


@pytest.fixture
def gpu():
    device = gs.open_device("cuda:0", quiet=True)
    yield device
    device.close()


def test_a_gpu_gets_pytorch_itself(gpu):
    assert learn.pytorch(gpu) is torch
    assert torch.cuda.current_device() == gpu.info.index


def test_without_cuda_it_is_not_available(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(CapabilityError):
        learn.pytorch(gpu)


@pytest.mark.gpu_alone("exercises are judged by what ran together, and how long")
@pytest.mark.parametrize("name", NAMES)
def test_an_exercise_in_pytorch_is_judged_on_a_gpu_as_on_the_simulated_one(name):
    mistaken, number = [], name[:2]
    as_given = next(cell["source"] for cell in cells(name) if cell["id"] == "task-pytorch")
    tried = [("the solution", solutions(name)["task-pytorch"], True), ("as given", as_given, False)]
    for answers, is_right in ((RIGHT, True), (WRONG, False)):
        tried += [
            (why, program(name, "pytorch", changes), is_right)
            for why, *changes in answers[number]["pytorch"]
        ]
    with prepared("cuda:0") as prepare:
        names = prepare(name)
        for why, source, is_right in tried:
            names["lesson"].patience_s = 100.0 if is_right else 5.0
            told = judge(name, names, "pytorch", source)
            if told.result.verdict != ("solved" if is_right else "not solved"):
                mistaken.append((why, told.result.verdict, told.found))
    assert not mistaken, "\n".join(map(str, mistaken))
