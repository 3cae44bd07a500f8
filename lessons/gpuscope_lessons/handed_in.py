"""A notebook that was handed in, or a lesson: its cells, what they ask, and what was answered."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpuscope.errors import TraceFormatError
from gpuscope.extending import Untyped, load
from gpuscope_lessons.outcome import RESULTS, Result

ASKS = {"predict": "prediction", "check": "exercise", "quiz": "quiz"}
"""Method of a lesson → kind of what it asks."""
_MOST_BYTES = 100_000_000
"""Of a notebook; one with all its figures has some 5 MB."""


@dataclass(frozen=True)
class Cell:
    """A cell of a notebook (nbformat 4), as far as grading reads it.

    Attributes
    ----------
    id
        ``None`` where it is no text.
    tags
        Those of its metadata.
    results
        What its saved outputs tell.
    """

    id: str | None
    source: str
    is_code: bool
    tags: tuple[str, ...]
    results: tuple[Result, ...]

    @property
    def is_exercise(self) -> bool:
        """Whether a learner is to write it."""
        return "exercise" in self.tags


def read_cells(path: Path) -> list[Cell]:
    """Read the cells of a notebook.

    Raises
    ------
    TraceFormatError
        It is no notebook.
    """
    try:
        is_file, size = path.is_file(), path.stat().st_size
    except OSError as error:
        raise TraceFormatError(f"it cannot be read ({type(error).__name__})") from error
    if not is_file:  # a pipe or a device has no end
        raise TraceFormatError("it is no file")
    if size > _MOST_BYTES:
        raise TraceFormatError(f"it has more than {_MOST_BYTES:,} bytes: clear its outputs")
    try:
        return list(map(_cell, load(path, most_bytes=_MOST_BYTES)["cells"]))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise TraceFormatError(f"it is no notebook of Jupyter ({type(error).__name__})") from error


def _cell(raw: Untyped) -> Cell:
    """Read a cell: without its source it is none; whatever else is malformed is left out."""
    source = raw["source"]
    if not isinstance(source, str | list):
        raise TypeError(source)
    tags, outputs = _mapping(raw.get("metadata")).get("tags"), raw.get("outputs")
    name = raw.get("id")
    return Cell(
        id=name if isinstance(name, str) else None,
        source="".join(source),
        is_code=raw.get("cell_type") == "code",
        tags=tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else (),
        results=tuple(
            result
            for output in (outputs if isinstance(outputs, list) else ())
            for result in _results(_mapping(_mapping(output).get("data")).get(RESULTS, ()))
        ),
    )


def _mapping(raw: object) -> Mapping[str, Untyped]:
    return raw if isinstance(raw, dict) else {}


def _results(plain: object) -> list[Result]:
    try:
        return msgspec.convert(plain, list[Result])
    except msgspec.ValidationError:
        return []


def exercises(cells: Sequence[Cell]) -> set[str]:
    """Return the ids of the cells that a learner is to write."""
    return {cell.id for cell in cells if cell.is_exercise and cell.id is not None}


def shared(lesson: Sequence[Cell], cells: Sequence[Cell]) -> int:
    """Return how many of a lesson's exercises a notebook has, by id or by function."""
    ids = exercises(cells)
    return sum(cell.id in ids or _written(cell, cells) is not None for cell in _tasks(lesson))


def _tasks(lesson: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in lesson if cell.is_exercise]


def _written(task: Cell, cells: Sequence[Cell]) -> Cell | None:
    """Return the last cell that defines an exercise's function or text, where its id is gone."""
    names = re.findall(r'^(?:def (\w+)|(\w+) = r""")', task.source, re.MULTILINE)
    name = "".join(names[-1]) if names else "(?!)"
    pattern = re.compile(rf"^(?:def {name}\b|{name} = )", re.MULTILINE)
    return next((cell for cell in reversed(cells) if pattern.search(cell.source)), None)


@dataclass(frozen=True)
class Code:
    """A cell to run.

    Attributes
    ----------
    id
        As in the lesson; ``"added"`` for what a learner added.
    asks
        Names of the checks in a cell of the lesson's own; ``None``: a learner wrote it.
    """

    id: str
    source: str
    asks: tuple[str, ...] | None = None


def merged(lesson: Sequence[Cell], cells: Sequence[Cell]) -> list[Code]:
    """Return a lesson's code, with the exercises and cells of a learner."""
    written = {cell.id: cell for cell in cells if cell.id is not None}
    tasks = {
        id(task): written.get(task.id or "") or _written(task, cells) for task in _tasks(lesson)
    }
    used, given_out = set(map(id, tasks.values())), {cell.source for cell in lesson}
    lesson_ids = {cell.id for cell in lesson if cell.id is not None}
    added: dict[str | None, list[Code]] = {}
    before: str | None = None
    for cell in cells:
        if cell.id in lesson_ids:
            before = cell.id
        elif cell.is_code and id(cell) not in used and cell.source not in given_out:
            added.setdefault(before, []).append(Code("added", cell.source))
    every = added.get(None, [])
    for cell in lesson:
        if cell.is_code and cell.is_exercise:
            every.append(Code(cell.id or "", (tasks[id(cell)] or cell).source))
        elif cell.is_code:
            checks = tuple(name for method, name in asked([cell]) if method == "check")
            every.append(Code(cell.id or "", cell.source, checks))
        every += added.get(cell.id, []) if cell.id is not None else []
    return every


def asked_of(lesson: Sequence[Cell]) -> set[str]:
    """Return the names that a lesson's exercises ask for: of functions, texts and others."""
    names: set[str] = set()
    for cell in _tasks(lesson):
        for node in ast.parse(cell.source).body:
            match node:
                case ast.FunctionDef(name=name):
                    names.add(name)
                case ast.Assign(targets=[ast.Name(id=name)]):
                    names.add(name)
    return names


def asked(lesson: Sequence[Cell]) -> Iterator[tuple[str, str]]:
    """Yield method and name of all that a lesson asks: predict, check and quiz."""
    for cell in lesson:
        if not cell.is_code or cell.source.startswith("%"):
            continue
        for node in ast.walk(ast.parse(cell.source)):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name("lesson"), attr=method),
                    args=[ast.Constant(str(name)), *_],
                ) if method in ASKS:
                    yield method, name


def answers(cells: Sequence[Cell]) -> dict[str, Result]:
    """Return the results that a notebook's saved outputs tell, by name; the last of each."""
    return {result.name: result for cell in cells for result in cell.results}
