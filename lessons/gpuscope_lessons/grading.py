"""Grading: run the notebooks that a class handed in, and table what was answered and solved."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_all
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gpuscope.errors import InvalidArgument, NotFound, TraceFormatError
from gpuscope.extending import count, door, given, require_kind
from gpuscope.search import executor_of
from gpuscope_lessons import __version__
from gpuscope_lessons.grades import Grade, Grades
from gpuscope_lessons.handed_in import (
    ASKS,
    answers,
    asked,
    asked_of,
    merged,
    read_cells,
    shared,
)
from gpuscope_lessons.holding import HoldingOrder
from gpuscope_lessons.journal import GradeJournal
from gpuscope_lessons.points import ALIKE, Points, check_names
from gpuscope_lessons.sandbox import SYSTEM
from gpuscope_lessons.warden import STOPPED, Warden

_MOST_S = 10**6
_FAILED = "it could not be graded"
ENDED_EARLY = STOPPED, _FAILED
"""How reasons begin that are not of the notebook: no journal keeps these."""


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
    >>> import gpuscope_lessons as learn
    >>> learn.Limits(seconds=120).cell_seconds
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


@dataclass(frozen=True)
class Graded:
    """What came of one notebook; see :class:`gpuscope_lessons.journal.Entry`."""

    grades: list[Grade]
    cpu_s: float = 0.0
    not_held: tuple[str, ...] = ()


@door("folder", "lessons", "gpu", "limits", "executor", "journal", "points")
def grade(
    folder: str | Path,
    lessons: str | Path = "notebooks",
    *,
    gpu: bool = False,
    limits: Limits = Limits(),
    executor: Executor | str | None = None,
    journal: str | Path | None = None,
    points: Points = ALIKE,
) -> Grades:
    """Run the notebooks that learners handed in, and return what was answered and solved.

    Each runs in processes of its own, in a sandbox as far as the system allows one to this user:
    bounded in time, memory and files, without a network, all files of others read-only. What runs
    is the lesson as it was given out, with the learner's exercises and the cells that the learner
    added in their places: only checks in the lesson's own cells count, and its names are restored
    before each of them. Predictions and quizzes are read from the saved outputs. Whatever a
    notebook holds, the others are graded; after Ctrl-C the result has what was graded until then.

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
        Grades a notebook each, as in :func:`gpuscope.search.sweep`; as many notebooks at a time on
        this machine as it has processors, but one on a GPU, if not given. Its workers need the same
        folders.
    journal
        A file that takes what came of each notebook at once. What it has already of the same
        notebook, lesson, limits and version of gpuscope is not graded again.
    points
        What :meth:`Grades.marks` will be asked for: checked before anything runs.

    Raises
    ------
    InvalidArgument
        The points name what no lesson has.
    NotFound
        There are no notebooks in one of the folders.
    TraceFormatError
        A lesson is no notebook.
    GpuscopeError
        The journal cannot be written, or another run has it.

    Examples
    --------
    >>> import gpuscope_lessons as learn
    >>> learn.grade("handed_in", "notebooks")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gpuscope.errors.NotFound: there are no notebooks in 'handed_in': name the folder of what ...
    """
    submitted, given_out = (_notebooks(Path(path)) for path in (folder, lessons))
    kinds: dict[str, dict[str, str]] = {}
    for book in given_out:
        try:
            kinds[book.name] = {name: ASKS[method] for method, name in asked(read_cells(book))}
        except TraceFormatError as error:
            raise TraceFormatError(f"the lesson {book.name!r} cannot be graded: {error}") from error
    check_names(points, kinds)
    run = partial(grade_notebook, folder=Path(folder), lessons=given_out, gpu=gpu, limits=limits)
    stop, graded = threading.Event(), dict[Path, Future[Graded]]()
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    executor = executor or f"processes:{1 if gpu else len(cores)}"
    with ExitStack() as stack:
        log = None
        if journal is not None:
            log = stack.enter_context(
                GradeJournal(Path(journal), given_out, [__version__, gpu, limits])
            )
        pool = stack.enter_context(executor_of(executor, ThreadPoolExecutor))
        here = isinstance(pool, ThreadPoolExecutor)  # an event goes to no other process
        if here:
            wardens = _Wardens(_shares(executor, cores), gpu=gpu)
            run = partial(run, stop=stop, wardens=stack.enter_context(wardens))
        try:
            for path in submitted:
                blank = _blank(path, Path(folder))
                entry = log and log.known(blank.notebook, path)
                if entry:
                    graded[path] = Future()
                    graded[path].set_result(Graded([*entry.grades], entry.cpu_s, entry.not_held))
                else:
                    graded[path] = pool.submit(run, path)
                    if log is not None:
                        graded[path].add_done_callback(partial(_keep, log, blank, path))
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
        every = [_graded(graded.get(path), _blank(path, Path(folder))) for path in submitted]
    every += _empty_handed(Path(folder), submitted)
    grades = tuple(grade for notebook in every for grade in notebook.grades)
    not_held = {name for notebook in every for name in notebook.not_held}
    return Grades(
        grades=grades,
        stopped=any(grade.reason.startswith(ENDED_EARLY) for grade in grades),
        asked=kinds,
        not_held=tuple(name for name in SYSTEM if name in not_held),
    )


def _keep(log: GradeJournal, blank: Grade, path: Path, future: Future[Graded]) -> None:
    """Have a journal keep what came of a notebook that was graded to its end."""
    if future.cancelled() or future.exception() is not None:
        return
    graded = future.result()
    if all(grade.reason != STOPPED for grade in graded.grades):
        log.add(blank.notebook, path, graded.grades, graded.cpu_s, graded.not_held)


def _shares(executor: Executor | str, cores: Sequence[int]) -> list[Sequence[int]]:
    """Deal processors out to as many notebooks as are graded at a time."""
    if not isinstance(executor, str):
        return [cores]
    jobs = int(executor.rpartition(":")[2])
    return [cores[job % len(cores) :: jobs] for job in range(jobs)]


class _Wardens:
    """A process for each thread that asks, which starts the notebooks of this thread.

    Parameters
    ----------
    shares
        The processors of each: what its notebooks start takes no time from those of others.
    """

    def __init__(self, shares: Sequence[Sequence[int]], *, gpu: bool) -> None:
        self._gpu, self._shares = gpu, itertools.cycle(shares)
        self._of_thread = threading.local()
        self._all: list[Warden] = []

    def __enter__(self) -> _Wardens:
        return self

    def __exit__(self, *_: object) -> None:
        for warden in self._all:
            warden.close()

    def get(self) -> Warden:
        """Return that of this thread, which is started if it is none or ended."""
        warden: Warden | None = getattr(self._of_thread, "warden", None)
        if warden is None or not warden.lives:
            cores = next(self._shares) if warden is None else warden.cores
            self._of_thread.warden = warden = Warden(gpu=self._gpu, cores=cores)
            self._all.append(warden)
        return warden


def _blank(path: Path, folder: Path) -> Grade:
    inside = path.relative_to(folder)
    learner = inside.parts[0] if len(inside.parts) > 1 else inside.stem
    return Grade(learner, str(inside), "")


def _empty_handed(folder: Path, submitted: Sequence[Path]) -> list[Graded]:
    """Return a grade that says so for each learner's folder without a notebook."""
    inside = [path.relative_to(folder) for path in submitted]
    learners = {path.parts[0] for path in inside if len(path.parts) > 1}
    if not learners:  # their notebooks lie side by side: what folders are there is not known
        return []
    reason = "there is no notebook in this folder"
    return [
        Graded([Grade(path.name, path.name, "", reason=reason)])
        for path in sorted(folder.iterdir())
        if path.is_dir() and path.name not in learners and not path.name.startswith(".")
    ]


def _graded(future: Future[Graded] | None, blank: Grade) -> Graded:
    """Return what grading one notebook gave, or one grade that says why it gave nothing."""
    if future is None or future.cancelled() or not future.done():
        return Graded([replace(blank, reason=STOPPED)])
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, KeyboardInterrupt):  # of a process that Ctrl-C met, too
        return Graded([replace(blank, reason=STOPPED)])
    reason = f"{_FAILED}: {type(error).__name__}: {error}"
    return Graded([replace(blank, reason=reason)])


def grade_notebook(
    path: Path,
    *,
    folder: Path,
    lessons: Sequence[Path],
    gpu: bool,
    limits: Limits,
    stop: threading.Event | None = None,
    wardens: _Wardens | None = None,
) -> Graded:
    """Run one notebook; returns its grades, or one without a name that says why there are none.

    Parameters
    ----------
    folder
        Names of learners and notebooks count from here.
    stop
        Once it is set, the notebook is stopped.
    wardens
        Who may start it; a process of this call's own, if not given.
    """
    blank = _blank(path, folder)
    if path.is_symlink():
        return Graded([replace(blank, reason="it is a link: hand in the notebook itself")])
    try:
        cells = read_cells(path)
    except TraceFormatError as error:
        return Graded([replace(blank, reason=str(error))])
    books = {book.name: read_cells(book) for book in lessons}
    counts = {name: shared(book, cells) for name, book in books.items()}
    lesson = max(counts, key=counts.__getitem__)
    if not counts[lesson]:
        return Graded([replace(blank, reason="it has no cell of any lesson's exercises")])
    order = HoldingOrder(
        merged(books[lesson], cells),
        asked_of(books[lesson]),
        limits.seconds,
        limits.cell_seconds,
        limits.memory_bytes,
        os.path.realpath(folder),
    )
    with nullcontext(wardens.get()) if wardens is not None else Warden(gpu=gpu) as warden:
        report = warden.ask(order, stop)
    given, checked = answers(cells), {check.name: check for check in report.checks}
    grades = []
    for method, name in asked(books[lesson]):
        result, check = given.get(name), checked.get(name)
        attempts = result.attempts if result is not None else 0
        grade = Grade(blank.learner, blank.notebook, lesson, name, ASKS[method], attempts=attempts)
        if method == "check" and check is None:
            grade = replace(grade, verdict="not finished", reason=report.ending)
        elif method == "check" and check is not None:
            reason = "" if check.verdict == "solved" else check.reason
            grade = replace(grade, verdict=check.verdict, reason=reason)
        elif result is None:
            reason = "no output of the notebook tells an answer"
            grade = replace(grade, verdict="not answered", reason=reason)
        else:
            grade = replace(grade, answer=result.answer, verdict=result.verdict)
        grades.append(grade)
    held_limits = SYSTEM if report.isolation is None else report.isolation
    not_held = tuple(name for name in SYSTEM if name not in held_limits)
    return Graded(grades, report.cpu_s, not_held)


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
