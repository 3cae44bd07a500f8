"""Grading: run the notebooks that a class handed in, and table what was answered and solved."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_all
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path

import msgspec

from gpuscope._checks import count, door, given, require_kind
from gpuscope._files import write_csv
from gpuscope.analysis.result import Result as Table
from gpuscope.analysis.result import Row
from gpuscope.errors import InvalidArgument, NotFound, TraceFormatError
from gpuscope.learn.graded import Checked, Order
from gpuscope.learn.handed_in import (
    ASKS,
    Code,
    answers,
    asked,
    asked_of,
    merged,
    read_cells,
    shared,
)
from gpuscope.search.scale_out import executor_of

_MOST_BYTES = 10_000_000
"""Of what the checks of a notebook say."""
_AT_ONCE = 2
_MOST_S = 10**6
_STOPPED = "grading was stopped"
_POLL_S = 0.2


@dataclass(frozen=True)
class Grade:
    """What a learner answered to one question, or did in one exercise.

    Attributes
    ----------
    learner
        The folder that the notebook lies in, or else the notebook's name.
    notebook, lesson
        File names of what was handed in, and of the lesson.
    name, kind
        As in :class:`Result`.
    answer
        The first one to a prediction, the last one to a quiz; ``None``: there is none.
    verdict
        As in :class:`Result`; ``"not finished"``: the notebook was stopped before.
    attempts
        How often the learner answered.
    reason
        What the check found instead, or why nothing was graded.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gs.learn.Grade("ada", "ada/one.ipynb", "", reason="it is no notebook of Jupyter").verdict
    'not graded'
    """

    learner: str
    notebook: str
    lesson: str
    name: str = ""
    kind: str = ""
    answer: str | None = None
    verdict: str = "not graded"
    attempts: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Grades(Table):
    """What a class answered and solved.

    Attributes
    ----------
    grades
        In the order of the notebooks and of what they ask.
    stopped
        Whether grading was stopped early: what was not graded says so.

    Examples
    --------
    >>> import gpuscope as gs
    >>> solved = gs.learn.Grade("ada", "one.ipynb", "01.ipynb", "timer", "exercise", None, "solved")
    >>> gs.learn.Grades(grades=(solved,)).rows()[0]["solved"]
    '1 of 1'
    """

    grades: tuple[Grade, ...] = ()
    stopped: bool = False

    def _rows(self) -> list[Row]:
        rows: list[Row] = []
        for notebook in dict.fromkeys(grade.notebook for grade in self.grades):
            of_notebook = [grade for grade in self.grades if grade.notebook == notebook]
            right, solved = (
                [
                    grade.verdict == verdict
                    for grade in of_notebook
                    if grade.kind == kind and grade.verdict != "not available"
                ]
                for kind, verdict in (("prediction", "right"), ("exercise", "solved"))
            )
            exercises = [grade for grade in of_notebook if grade.kind == "exercise"]
            passed = ("solved", "not available")
            failed = [grade.name for grade in exercises if grade.verdict not in passed]
            reasons = {grade.reason for grade in of_notebook if not grade.name}
            rows.append(
                {
                    "learner": of_notebook[0].learner,
                    "lesson": of_notebook[0].lesson,
                    "right": f"{sum(right)} of {len(right)}",
                    "solved": f"{sum(solved)} of {len(solved)}",
                    "not solved": ", ".join(failed + sorted(reasons)),
                }
            )
        return rows

    @property
    def note(self) -> str:
        """Where verdicts come from."""
        return (
            "predictions and quizzes as the saved notebook has them, unverified: count them "
            "as participation; the code of exercises was run again"
        )

    @door(path=(str, Path))
    def to_csv(self, path: str | Path) -> Path:
        """Write all grades, one row each; returns the path.

        Raises
        ------
        GpuscopeError
            The file could not be written.
        """
        columns = [field.name for field in fields(Grade)]
        return write_csv(Path(path), columns, [[*asdict(grade).values()] for grade in self.grades])


@dataclass(frozen=True)
class Limits:
    """What running one notebook may take.

    Attributes
    ----------
    seconds
        In all.
    cell_seconds
        For a cell, which is interrupted by an error then.
    memory_bytes
        Of its process, and of each that it starts.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gs.learn.Limits(seconds=120).cell_seconds
    60.0
    """

    seconds: float = 300.0
    cell_seconds: float = 60.0
    memory_bytes: int = 4_000_000_000

    def __post_init__(self) -> None:
        count("memory_bytes", self.memory_bytes, least=1, most=2**62)
        for name, seconds in (("seconds", self.seconds), ("cell_seconds", self.cell_seconds)):
            require_kind(name, seconds, float)
            if not 0 < seconds <= _MOST_S:
                raise InvalidArgument(f"{name} is {given(seconds)}; up to {_MOST_S:,} are needed")


@door("folder", "lessons", "gpu", "limits", "executor")
def grade(
    folder: str | Path,
    lessons: str | Path = "notebooks",
    *,
    gpu: bool = False,
    limits: Limits = Limits(),
    executor: Executor | str | None = None,
) -> Grades:
    """Run the notebooks that learners handed in, and return what was answered and solved.

    Each runs in a process of its own, bounded in time and memory, but with your rights: it is
    no sandbox for code that you do not trust. What runs is the lesson as it was given out, with
    the learner's exercises and the cells that the learner added in their places: only checks in
    the lesson's own cells count, and its names are restored before each of them. Predictions and
    quizzes are read from the saved outputs. Whatever a notebook holds, the others are graded;
    after Ctrl-C the result has what was graded until then.

    Parameters
    ----------
    folder
        Searched with the folders in it for ``.ipynb`` files.
    lessons
        The lessons as they were given out.
    limits
        For each notebook.
    gpu
        Whether ``gs.open_device()`` finds the GPU, where there is one; the simulated H200, if not.
    executor
        Grades a notebook each, as in :func:`gpuscope.search.sweep`; two notebooks at a time on this
        machine, if not given. Its workers need the same folders.

    Raises
    ------
    NotFound
        There are no notebooks in one of the folders.
    TraceFormatError
        A lesson is no notebook.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gs.learn.grade("handed_in", "notebooks")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gpuscope.errors.NotFound: there are no notebooks in 'handed_in': name the folder of what ...
    """
    submitted, given_out = (_notebooks(Path(path)) for path in (folder, lessons))
    for book in given_out:
        try:
            read_cells(book)
        except TraceFormatError as error:
            raise TraceFormatError(f"the lesson {book.name!r} cannot be graded: {error}") from error
    run = partial(grade_notebook, folder=Path(folder), lessons=given_out, gpu=gpu, limits=limits)
    stop, graded = threading.Event(), dict[Path, Future[list[Grade]]]()
    with executor_of(executor or f"processes:{_AT_ONCE}", ThreadPoolExecutor) as pool:
        here = isinstance(pool, ThreadPoolExecutor)  # an event goes to no other process
        try:
            for path in submitted:
                graded[path] = pool.submit(partial(run, stop=stop) if here else run, path)
            wait_for_all(graded.values())
        except KeyboardInterrupt:
            stop.set()
            for future in graded.values():
                future.cancel()
            if here:
                with suppress(KeyboardInterrupt):  # who is impatient gets the table, too
                    wait_for_all(graded.values())
        finally:
            stop.set()
        every = [_grades_of(graded.get(path), _blank(path, Path(folder))) for path in submitted]
    stopped = any(grade.reason == _STOPPED for grades in every for grade in grades)
    return Grades(grades=tuple(grade for grades in every for grade in grades), stopped=stopped)


def _blank(path: Path, folder: Path) -> Grade:
    inside = path.relative_to(folder)
    return Grade(inside.parent.name or inside.stem, str(inside), "")


def _grades_of(future: Future[list[Grade]] | None, blank: Grade) -> list[Grade]:
    """Return what grading one notebook gave, or one grade that says why it gave nothing."""
    if future is None or future.cancelled() or not future.done():
        return [replace(blank, reason=_STOPPED)]
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, KeyboardInterrupt):  # of a process that Ctrl-C met, too
        return [replace(blank, reason=_STOPPED)]
    return [replace(blank, reason=f"it could not be graded: {type(error).__name__}: {error}")]


def grade_notebook(
    path: Path,
    *,
    folder: Path,
    lessons: Sequence[Path],
    gpu: bool,
    limits: Limits,
    stop: threading.Event | None = None,
) -> list[Grade]:
    """Run one notebook; returns its grades, or one without a name that says why there are none.

    Parameters
    ----------
    folder
        Names of learners and notebooks count from here.
    stop
        Once it is set, the notebook is stopped.
    """
    blank = _blank(path, folder)
    try:
        cells = read_cells(path)
    except TraceFormatError as error:
        return [replace(blank, reason=str(error))]
    books = {book.name: read_cells(book) for book in lessons}
    counts = {name: shared(book, cells) for name, book in books.items()}
    lesson = max(counts, key=counts.__getitem__)
    if not counts[lesson]:
        return [replace(blank, reason="it has no cell of any lesson's exercises")]
    given = answers(cells)
    code = merged(books[lesson], cells)
    checked, ending = _run(code, asked_of(books[lesson]), limits, stop, gpu=gpu)
    grades = []
    for method, name in asked(books[lesson]):
        result, check = given.get(name), checked.get(name)
        attempts = result.attempts if result is not None else 0
        grade = Grade(blank.learner, blank.notebook, lesson, name, ASKS[method], attempts=attempts)
        if method == "check" and check is None:
            grade = replace(grade, verdict="not finished", reason=ending)
        elif method == "check" and check is not None:
            reason = "" if check.verdict == "solved" else check.reason
            grade = replace(grade, verdict=check.verdict, reason=reason)
        elif result is None:
            reason = "no output of the notebook tells an answer"
            grade = replace(grade, verdict="not answered", reason=reason)
        else:
            grade = replace(grade, answer=result.answer, verdict=result.verdict)
        grades.append(grade)
    return grades


def _notebooks(folder: Path) -> list[Path]:
    """Return the notebooks in a folder, without Jupyter's own copies."""
    try:
        paths = sorted(folder.rglob("*.ipynb")) if folder.is_dir() else []
    except (OSError, ValueError) as error:
        raise NotFound(f"cannot read the folder {folder.name!r}: {error}") from error
    paths = [path for path in paths if ".ipynb_checkpoints" not in path.parts]
    if not paths:
        raise NotFound(
            f"there are no notebooks in {folder.name!r}: name the folder of what was handed in, "
            "and that of the lessons"
        )
    return paths


def _run(
    cells: list[Code], names: set[str], limits: Limits, stop: threading.Event | None, *, gpu: bool
) -> tuple[dict[str, Checked], str]:
    """Run cells in a process; returns the checks that were reached, and how it ended."""
    with (
        # What a notebook leaves there may be what nobody can remove, or still grow.
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as checks,
    ):
        order = Path(folder, "order.json")
        asked = Order(cells, names, limits.cell_seconds, limits.memory_bytes, checks.fileno())
        order.write_bytes(msgspec.json.encode(asked))
        environment = {**os.environ, "PLOTLY_RENDERER": "plotly_mimetype"}
        if not gpu:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        process = subprocess.Popen(  # noqa: S603 - Python itself
            [sys.executable, "-m", "gpuscope.learn.graded", str(order)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            start_new_session=True,
            env=environment,
            pass_fds=(checks.fileno(),),
        )
        try:
            ending = _wait(process, limits.seconds, stop)
        finally:
            with suppress(ProcessLookupError):  # whatever it started, too
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        lines = os.pread(checks.fileno(), _MOST_BYTES, 0).splitlines()
    reached: dict[str, Checked] = {}
    for line in lines:
        with suppress(ValueError, RecursionError):  # stopped in its midst, or written by a notebook
            check = msgspec.json.decode(line, type=Checked)
            reached[check.name] = check
    return reached, ending


def _wait(process: subprocess.Popen[bytes], seconds: float, stop: threading.Event | None) -> str:
    """Wait for the end of a process; returns how it ended, in words."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if stop is not None and stop.is_set():
            return _STOPPED
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(_POLL_S)
            return f"its process ended with exit status {code}" if code else "it was not reached"
    return f"the notebook was stopped after {seconds:g} s"
