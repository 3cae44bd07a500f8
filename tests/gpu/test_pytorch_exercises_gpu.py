"""The exercises in PyTorch, with PyTorch itself, on a GPU: as given, solved, wrong and otherwise right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from lesson_programs import FAILS_A_CAPTURE, RIGHT, WRONG
from lessons import LESSONS, cells, program, solutions

import gpuscope as gs
from gpuscope.errors import CapabilityError

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
NAMES = [name for name in LESSONS if "pytorch" in WRONG.get(name[:2], {})]
JUDGE = """
import json, sys
from lessons import judge, prepared

name, tried = json.load(sys.stdin)
mistaken = []
with prepared("cuda:0") as prepare:
    names = prepare(name)
    for why, source, verdict in tried:
        names["lesson"].patience_s = 100.0 if verdict == "solved" else 5.0
        feedback = judge(name, names, "pytorch", source)
        if feedback.result.verdict != verdict:
            mistaken.append([why, feedback.result.verdict, feedback.found])
print(json.dumps(mistaken))
"""


@pytest.fixture
def gpu():
    device = gs.open_device("cuda:0", quiet=True)
    yield device
    device.close()


def test_a_gpu_gets_pytorch_itself(gpu):
    assert gs.learn.pytorch(gpu) is torch
    assert torch.cuda.current_device() == gpu.info.index


def test_without_cuda_it_is_not_available(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(CapabilityError):
        gs.learn.pytorch(gpu)


@pytest.mark.parametrize("name", NAMES)
def test_an_exercise_in_pytorch_is_judged_on_a_gpu_as_on_the_simulated_one(name):
    """In a process of its own: a capture that fails spoils the allocator for others."""
    number = name[:2]
    as_given = next(cell["source"] for cell in cells(name) if cell["id"] == "task-pytorch")
    solution = solutions(name)["task-pytorch"]
    tried = [("the solution", solution, "solved"), ("as given", as_given, "not solved")]
    for answers, verdict in ((RIGHT, "solved"), (WRONG, "not solved")):
        tried += [
            (why, program(name, "pytorch", changes), verdict)
            for why, *changes in answers[number]["pytorch"]
            if why not in FAILS_A_CAPTURE
        ]
    failing = [answer for answer in WRONG[number]["pytorch"] if answer[0] in FAILS_A_CAPTURE]
    tried += [
        (why, program(name, "pytorch", changes), "not solved") for why, *changes in failing[:1]
    ]
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {tests!r})\n{JUDGE}"],
        input=json.dumps([name, tried]), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    mistaken = json.loads(done.stdout.splitlines()[-1])
    assert not mistaken, "\n".join(map(str, mistaken))
