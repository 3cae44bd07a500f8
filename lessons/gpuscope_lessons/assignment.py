"""The instructor's build: lessons as learners get them, without what solves them."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from gpuscope.errors import NotFound, TraceFormatError
from gpuscope.extending import door, load, make_empty_folder, write_text
from gpuscope_lessons.handed_in import read_cells

HELD = "held"
"""Tag of cells that learners do not get."""
_FOLD = re.compile(r"<details>.*?</details>\s*", re.DOTALL)
_FOLDS = re.compile(rf"(?:{_FOLD.pattern})+", re.DOTALL)
_LEFT_OUT = "*Not given out: it solves the exercises.*\n\n"
"""Stands where folds were, so that what announces them does not lead to nothing."""
_CODE_OR_LINK = re.compile(r"```.*?```|`[^`]*`|!?\[([^\]]*)\]\(([^)\s]+)\)", re.DOTALL)


@dataclass(frozen=True)
class GivenOut:
    """What was made of lessons.

    Attributes
    ----------
    notebooks
        The copies.
    solutions, folds, held
        How many of each were taken out of them: last hints, folded texts, cells.

    Examples
    --------
    >>> import gpuscope_lessons as learn
    >>> learn.GivenOut(notebooks=(), solutions=2, folds=3, held=1).solutions
    2
    """

    notebooks: tuple[Path, ...]
    solutions: int
    folds: int
    held: int


@door("lessons", "out")
def give_out(lessons: str | Path, out: str | Path) -> GivenOut:
    """Copy lessons without solutions, cells tagged ``held``, and outputs.

    Solutions are last hints of several lines, and folds (``<details>``) of texts, in whose place
    a line says so. Links to files that are not given out become text that names the file. Cells
    keep their ids, so that what is handed in is graded by the lessons themselves.

    Parameters
    ----------
    lessons
        The folder of the lessons.
    out
        A new folder, or an empty one.

    Raises
    ------
    NotFound
        There are no notebooks in the folder of the lessons.
    TraceFormatError
        A lesson is no notebook.
    GpuscopeError
        There is something in ``out`` already, or it could not be written.

    Examples
    --------
    >>> import gpuscope_lessons as learn
    >>> learn.give_out("nowhere", "to_give_out")
    Traceback (most recent call last):
        ...
    gpuscope.errors.NotFound: there are no lessons in 'nowhere': name the folder of their notebooks
    """
    folder, target = Path(lessons), Path(out)
    try:
        books = sorted(folder.glob("*.ipynb"))
    except (OSError, ValueError) as error:
        raise NotFound(f"cannot read the folder {folder.name!r}: {error}") from error
    if not books:
        raise NotFound(
            f"there are no lessons in {folder.name!r}: name the folder of their notebooks"
        )
    make_empty_folder(target)
    counts: Counter[str] = Counter()
    names = {book.name for book in books}
    texts = {book.name: _copy(book, names, counts) for book in books}
    copies = tuple(write_text(target / name, text) for name, text in texts.items())
    return GivenOut(copies, counts["solutions"], counts["folds"], counts["held"])


def _copy(book: Path, names: Container[str], counts: Counter[str]) -> str:
    """Return the text of a learner's copy, and count what was taken out.

    Parameters
    ----------
    names
        Of all notebooks that are given out: links to them stay.
    """
    try:
        cells = read_cells(book)
    except TraceFormatError as error:
        raise TraceFormatError(f"the lesson {book.name!r} cannot be given out: {error}") from error
    notebook = load(book)
    copied_cells = []
    for raw, cell in zip(notebook["cells"], cells, strict=True):
        if HELD in cell.tags:
            counts["held"] += 1
            continue
        if cell.is_code:
            source = cell.source if cell.source.startswith("%") else _unsolved(cell.source)
            counts["solutions"] += source != cell.source
            raw.update(outputs=[], execution_count=None)
        else:
            counts["folds"] += len(_FOLD.findall(cell.source))
            source = _unlinked(_FOLDS.sub(_LEFT_OUT, cell.source).rstrip(), names)
        copied_cells.append({**raw, "source": source.splitlines(keepends=True)})
    return json.dumps({**notebook, "cells": copied_cells}, indent=1, ensure_ascii=False) + "\n"


def _unlinked(text: str, names: Container[str]) -> str:
    """Return Markdown whose links lead to the web, to notebooks of these names, or into itself."""

    def kept(match: re.Match[str]) -> str:
        label, target = match.groups()
        is_code = target is None
        if is_code or re.match(r"\w+:|#", target) or target.partition("#")[0] in names:
            return match[0]
        return f"{label} (`{target}`)"

    return _CODE_OR_LINK.sub(kept, text)


def _unsolved(source: str) -> str:
    """Return code whose checks have no solution as their last hint."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name("lesson"), attr="check"),
                args=[_, _, _, ast.List(elts=[*hints, ast.Constant(str(last))]) as listed, *_],
            ) if "\n" in last:
                whole, *parts = (
                    ast.get_source_segment(source, expression) for expression in (listed, *hints)
                )
                source = source.replace(whole or "", f"[{', '.join(map(str, parts))}]", 1)
    return source
