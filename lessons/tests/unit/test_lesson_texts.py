"""What the lessons' texts tell, and when; their code in CUDA C++ and PyTorch."""

from __future__ import annotations

import itertools
import re

import pytest
from playing import LESSONS, cells, mended, real_code, real_text

WRITTEN = "task-pytorch"
"""Where learners write a lesson's first exercise in PyTorch: it needs no fold."""


@pytest.mark.parametrize("name", LESSONS)
def test_no_text_tells_an_outcome_before_it_is_revealed(name):
    """What follows an outcome begins a section: what is to be said of it is its ``then``."""
    book = cells(name)
    telling = [
        after["id"]
        for before, after in itertools.pairwise(book)
        if "outcome" in before["metadata"].get("tags", ()) and after["cell_type"] == "markdown"
        if not after["source"].startswith(("## ", "**Exercise", "**Case"))
    ]
    assert not telling


@pytest.mark.parametrize("name", LESSONS[:5])
def test_each_exercise_is_shown_in_cuda_and_pytorch(name):
    real = real_text(name)
    numbers = {
        number
        for cell in cells(name)
        for number in re.findall(r"^\*\*Exercise (\d)", cell["source"], re.MULTILINE)
    }
    folded = numbers - ({"1"} if WRITTEN in {cell["id"] for cell in cells(name)} else set())
    assert set(re.findall(r"<summary>Exercise (\d)", real)) == folded
    assert real.count("<details>") == real.count("</details>") == len(folded)
    assert "### What the simulator leaves out" in real
    assert len(real_code(name, "python")) >= len(folded)
    for code in real_code(name, "python"):
        compile(code, name, "exec")


@pytest.mark.parametrize("name", LESSONS[5:])
def test_a_lesson_ends_with_the_same_in_cuda_and_pytorch(name):
    real = real_text(name)
    tasks = {cell["id"] for cell in cells(name) if re.match("task-(?!cuda)", cell["id"])}
    folded = len(tasks) - 2 * (WRITTEN in tasks)  # this one, and the first one
    assert real.count("<details>") == real.count("</details>") >= folded
    assert "### What the simulator leaves out" in real
    assert real_code(name, "cpp")
    in_pytorch = real_code(name, "python")
    assert len(in_pytorch) == real.count("In PyTorch:\n\n```python") >= folded
    for code in in_pytorch:
        compile(mended(code), name, "exec")
