"""What the lessons' texts tell, and when; their code in CUDA C++ and PyTorch."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess

import pytest
from lessons import LESSONS, cells

REAL = re.compile(r"```(cpp|python)\n(.*?)```", re.DOTALL)
KERNELS = (
    "a", "b", "c", "first", "left", "right", "last", "late", "job", "small_work", "large_work",
)  # fmt: skip
"""Of the lessons' C++, without arguments."""


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


def real_text(name: str) -> str:
    """Return how a lesson is done for real: what all its cells say of that."""
    return "\n\n".join(cell["source"] for cell in cells(name) if cell["id"].startswith("real"))


def real_code(name: str, language: str) -> list[str]:
    return [code for lang, code in REAL.findall(real_text(name)) if lang == language]


@pytest.mark.parametrize("name", LESSONS[:5])
def test_each_exercise_is_shown_in_cuda_and_pytorch(name):
    real = real_text(name)
    numbers = {
        number
        for cell in cells(name)
        for number in re.findall(r"^\*\*Exercise (\d)", cell["source"], re.MULTILINE)
    }
    assert set(re.findall(r"<summary>Exercise (\d)", real)) == numbers
    assert real.count("<details>") == real.count("</details>") == len(numbers)
    assert "### What the simulator leaves out" in real
    assert len(real_code(name, "python")) >= len(numbers)
    for code in real_code(name, "python"):
        compile(code, name, "exec")


def mended(code: str) -> str:
    """Return code with its lines marked ``+`` and without those marked ``-``."""
    lines = [line for line in code.splitlines() if not line.startswith("-")]
    return "\n".join(re.sub(r"^\+(?=  )", " ", line).removeprefix("+ ") for line in lines)


@pytest.mark.parametrize("name", LESSONS[5:])
def test_a_lesson_ends_with_the_same_in_cuda_and_pytorch(name):
    real = real_text(name)
    tasks = [cell for cell in cells(name) if cell["id"].startswith("task-")]
    assert real.count("<details>") == real.count("</details>") >= len(tasks)
    assert "### What the simulator leaves out" in real
    assert real_code(name, "cpp")
    in_pytorch = real_code(name, "python")
    assert len(in_pytorch) == real.count("In PyTorch:\n\n```python") >= len(tasks)
    for code in in_pytorch:
        compile(mended(code), name, "exec")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no CUDA compiler here")
def test_the_cuda_code_of_the_lessons_compiles(tmp_path):
    kernels = "".join(f"__global__ void {one}() {{}}\n" for one in KERNELS)
    spaces = "".join(
        f"namespace lesson_{name[:2]} {{\n{''.join(real_code(name, 'cpp'))}}}\n"
        for name in LESSONS[:5]
    )
    source = tmp_path / "lessons.cu"
    source.write_text(
        "#include <cuda.h>\n#include <cuda_runtime.h>\n#include <thread>\n"
        f"{kernels}__global__ void work(long long) {{}}\n{spaces}"
    )
    command = ["nvcc", "-std=c++17", "-c", str(source), "-o", str(tmp_path / "lessons.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
