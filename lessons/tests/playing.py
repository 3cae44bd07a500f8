"""Running the lessons' code without a kernel, with answers given and exercises solved by code."""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import gpuscope as gs
from gpuscope.device.select import open_device
from gpuscope.workloads.handle import Handle

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
COMPILES = any(map(shutil.which, ("g++", "clang++")))
"""Whether exercises in CUDA C++ can be tried here."""
REAL = re.compile(r"```(cpp|python)\n(.*?)```", re.DOTALL)
LESSONS = sorted(path.name for path in NOTEBOOKS.glob("[01]*.ipynb") if path.name[:2] != "00")


def cells(name: str) -> list[dict[str, Any]]:
    """Return a notebook's cells, each with its source as one text."""
    book = json.loads((NOTEBOOKS / name).read_text("utf-8"))
    return [{**cell, "source": "".join(cell["source"])} for cell in book["cells"]]


def real_text(name: str) -> str:
    """Return how a lesson is done for real: what all its cells say of that."""
    return "\n\n".join(cell["source"] for cell in cells(name) if cell["id"].startswith("real"))


def real_code(name: str, language: str) -> list[str]:
    """Return the pieces of code in a language that this text has."""
    return [code for lang, code in REAL.findall(real_text(name)) if lang == language]


def mended(code: str) -> str:
    """Return code with its lines marked ``+`` and without those marked ``-``."""
    lines = [line for line in code.splitlines() if not line.startswith("-")]
    return "\n".join(re.sub(r"^\+(?=  )", " ", line).removeprefix("+ ") for line in lines)


@dataclass
class Played:
    """What a lesson's code left behind."""

    names: dict[str, Any]
    values: dict[str, Any] = field(default_factory=dict)
    """Cell id → value of its last expression."""

    @property
    def results(self) -> dict[str, Any]:
        return {result.name: result for result in self.names["lesson"].results}


def play(
    name: str,
    *,
    device: str = "sim:h200",
    answers: dict[str, tuple[Any, ...]] | None = None,
    changed: dict[str, str] | None = None,
) -> Played:
    """Run a notebook's code cells, one after the other, in one namespace.

    Parameters
    ----------
    device
        What ``gs.open_device()`` opens.
    answers
        Name of a prediction or quiz → what is given, as soon as it is asked.
    changed
        Cell id → source instead of what is there.
    """
    answers = dict(answers or {})
    changed = dict(changed or {})
    played = Played({"__name__": "__main__"})
    opening = _opening(device)
    try:
        opening.start()
        for cell in cells(name):
            if cell["cell_type"] != "code":
                continue
            source = changed.pop(cell["id"], cell["source"])
            if source.startswith("%"):
                source = _without_magics(source, played.names)
            played.values[cell["id"]] = _run(source, f"{name}:{cell['id']}", played.names)
            lesson = played.names.get("lesson")
            for asked in set(answers) & set(lesson.questions if lesson else ()):
                lesson.questions[asked].give(*answers.pop(asked))
    finally:
        opening.stop()
        for value in played.names.values():
            for one in value if isinstance(value, list | tuple) else (value,):
                if isinstance(one, Handle):
                    one.close()
        if "gpu" in played.names:
            played.names["gpu"].close()
    assert not answers, f"{name} never asked for {sorted(answers)}"
    assert not changed, f"{name} has no cells {sorted(changed)}"
    return played


def _opening(device: str) -> Any:
    """Have ``gs.open_device()`` open this device."""
    return mock.patch.object(
        gs, "open_device", lambda spec=device, **options: open_device(spec, **options)
    )


def _without_magics(source: str, names: dict[str, Any]) -> str:
    """Return a cell with its magics as calls, of a shell that shares the namespace."""
    from IPython.core.inputtransformer2 import TransformerManager
    from IPython.core.interactiveshell import InteractiveShell

    if "get_ipython" not in names:
        shell = InteractiveShell(user_ns=names, history_length=0)
        names["get_ipython"] = lambda: shell
    return TransformerManager().transform_cell(source)


def _run(source: str, where: str, names: dict[str, Any]) -> Any:
    """Run one cell as a kernel does: the value of a last expression is its result."""
    tree = ast.parse(source, where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, where, "exec"), names)  # noqa: S102 - our own notebooks
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), where, "eval"), names)  # noqa: S307


@contextmanager
def prepared(device: str = "sim:h200") -> Iterator[Callable[[str], dict[str, Any]]]:
    """Yield a function: a lesson's name → its names when all its code has run on a device."""
    opened = []

    def prepare(name: str) -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": "__main__"}
        with _opening(device):
            for cell in cells(name):
                is_code = cell["cell_type"] == "code" and not cell["source"].startswith("%")
                if is_code and cell["id"] != "facts-magic":
                    _run(cell["source"], f"{name}:{cell['id']}", names)
        opened.append(names["gpu"])
        return names

    try:
        yield prepare
    finally:
        for one in opened:
            one.close()


def program(name: str, exercise: str, changes: list[str]) -> str:
    """Return a program: the only text, or the solution with each text in the place of another."""
    if len(changes) == 1:
        return changes[0]
    source = solutions(name)[f"task-{exercise}"]
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert old in source, (old, source)
        source = source.replace(old, new)
    return source


def judge(name: str, names: dict[str, Any], exercise: str, source: str) -> Any:
    """Return what a lesson's check says of a program, given the names that the lesson left."""
    names = dict(names)
    exec(source, names)  # noqa: S102 - a test's own
    check = next(one["source"] for one in cells(name) if one["id"] == f"check-{exercise}")
    return _run(check, f"{name}:check-{exercise}", names)


def asked_in(name: str) -> dict[str, str]:
    """Return name → ``"predict"``, ``"check"`` or ``"quiz"`` of all that a lesson asks."""
    sources = [cell["source"] for cell in cells(name) if cell["cell_type"] == "code"]
    pattern = r"lesson\.(predict|check|quiz)\(\s*\"(\w+)\""
    return {asked: what for source in sources for what, asked in re.findall(pattern, source)}


def hints(name: str) -> dict[str, list[str]]:
    """Return check cell → hints of ``lesson.check``."""
    return {
        cell["id"]: [hint.value for hint in call.args[3].elts]
        for cell in cells(name)
        if "lesson.check(" in cell["source"]
        for call in ast.walk(ast.parse(cell["source"]))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "lesson.check"
    }


def solutions(name: str) -> dict[str, str]:
    """Return exercise → the solution that its last hint gives."""
    return {
        check.replace("check-", "task-"): given[-1].partition("\n")[2] + "\n"
        for check, given in hints(name).items()
    }
