"""What a class answered and solved, as tables: by notebook, by learner, for Canvas and Moodle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from gpuscope.analysis import Result as Table
from gpuscope.extending import clean, door, write_csv
from gpuscope_lessons.points import ALIKE, Points, check_names

_HELD = {
    "network": "the system refuses namespaces: notebooks had the network, and could see other "
    "processes",
    "files": "the system mounts nothing: notebooks could write files of yours",
}
"""What did not hold → what follows."""


@dataclass(frozen=True)
class Grade:
    """What a learner answered to one question, or did in one exercise.

    Attributes
    ----------
    learner
        The topmost folder that the notebook lies in, or else the notebook's name.
    notebook, lesson
        File names of what was handed in, and of the lesson.
    name
        As in :class:`Result`.
    kind
        ``"exercise"``: its code was run again; ``"prediction"``, ``"quiz"``: as the saved notebook
        tells.
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
    >>> import gpuscope_lessons as learn
    >>> learn.Grade("ada", "ada/one.ipynb", "", reason="it is no notebook of Jupyter").verdict
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

    @property
    def is_achieved(self) -> bool:
        """Whether an exercise is solved, or a prediction or quiz was answered."""
        return self.verdict == "solved" if self.kind == "exercise" else self.answer is not None


@dataclass(frozen=True)
class Mark:
    """What a learner reached in one lesson: of how many points, and answers of how many.

    Examples
    --------
    >>> import gpuscope_lessons as learn
    >>> solved = learn.Grade("ada", "one.ipynb", "01.ipynb", "timer", "exercise", None, "solved")
    >>> grades = learn.Grades(grades=(solved,), asked={"01.ipynb": {"timer": "exercise"}})
    >>> (mark,) = grades.marks().marks
    >>> mark.points, mark.most_points
    (1, 1)
    """

    learner: str
    lesson: str
    points: float
    most_points: float
    answers: int
    most_answers: int


@dataclass(frozen=True)
class Marks(Table):
    """The points of a class, by learner.

    Attributes
    ----------
    marks
        Of each learner in each lesson that anybody handed in, in this order.
    not_graded
        Learner → why notebooks of theirs were not graded.

    Examples
    --------
    >>> import gpuscope_lessons as learn
    >>> bad = learn.Grade("ada", "ada/one.ipynb", "", reason="it is no notebook of Jupyter")
    >>> learn.Grades(grades=(bad,)).marks().not_graded
    {'ada': ('one.ipynb: it is no notebook of Jupyter',)}
    """

    marks: tuple[Mark, ...] = ()
    not_graded: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def _of(self, learner: str) -> list[Mark]:
        return [mark for mark in self.marks if mark.learner == learner]

    def _learners(self) -> list[str]:
        return list(dict.fromkeys([mark.learner for mark in self.marks] + [*self.not_graded]))

    def _lessons(self) -> list[Mark]:
        """Return a mark of each lesson: all have the same of what can be reached."""
        return list({mark.lesson: mark for mark in self.marks}.values())

    def _rows(self) -> list[dict[str, object]]:
        return [
            {
                "learner": learner,
                "points": sum(mark.points for mark in self._of(learner)),
                "of": sum(mark.most_points for mark in self._of(learner)),
                "answered": sum(mark.answers for mark in self._of(learner)),
                "of questions": sum(mark.most_answers for mark in self._of(learner)),
                "not graded": "; ".join(self.not_graded.get(learner, ())),
            }
            for learner in self._learners()
        ]

    @property
    def note(self) -> str:
        """What points are of."""
        return (
            "points: code that was run again; answers to predictions and quizzes are as the saved "
            "notebooks have them, unverified: participation"
        )

    @door(path=(str, Path))
    def to_canvas(self, path: str | Path) -> Path:
        """Write what Canvas imports into its gradebook; a learner's name is the login there.

        Raises
        ------
        GpuscopeError
            The file could not be written.
        """
        lessons = self._lessons()
        columns = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
        most = [*(mark.most_points for mark in lessons), sum(mark.most_answers for mark in lessons)]
        rows: list[list[object]] = [["    Points Possible", "", "", "", "", *most]]
        for learner in self._learners():
            marks = self._of(learner)
            reached = [*(mark.points for mark in marks), sum(mark.answers for mark in marks)]
            rows.append([learner, "", "", learner, "", *reached])
        return write_csv(Path(path), [*columns, *_titles(lessons)], rows)

    @door(path=(str, Path))
    def to_moodle(self, path: str | Path) -> Path:
        """Write what Moodle imports, in percent; a learner's name is the username there.

        Raises
        ------
        GpuscopeError
            The file could not be written.
        """
        rows: list[list[object]] = []
        for learner in self._learners():
            marks = self._of(learner)
            parts = [(mark.points, mark.most_points) for mark in marks]
            parts.append((sum(m.answers for m in marks), sum(m.most_answers for m in marks)))
            rows.append([learner, *(round(100 * part / (most or 1), 2) for part, most in parts)])
        return write_csv(Path(path), ["username", *_titles(self._lessons())], rows)


def _titles(lessons: Iterable[Mark]) -> list[str]:
    return [*(mark.lesson.removesuffix(".ipynb") for mark in lessons), "participation"]


@dataclass(frozen=True)
class Grades(Table):
    """What a class answered and solved.

    Attributes
    ----------
    grades
        In the order of the notebooks and of what they ask.
    stopped
        Whether grading ended early, or failed, of some notebooks: they say so.
    asked
        Lesson → name of what it asks → its kind, as in :class:`Grade`.
    not_held
        What the system did not allow to hold notebooks by: ``"network"`` and ``"files"``.

    Examples
    --------
    >>> import gpuscope_lessons as learn
    >>> solved = learn.Grade("ada", "one.ipynb", "01.ipynb", "timer", "exercise", None, "solved")
    >>> learn.Grades(grades=(solved,)).rows()[0]["solved"]
    '1 of 1'
    """

    grades: tuple[Grade, ...] = ()
    stopped: bool = False
    asked: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    not_held: tuple[str, ...] = ()

    def _rows(self) -> list[dict[str, object]]:
        by_notebook: dict[str, list[Grade]] = {}
        for grade in self.grades:
            by_notebook.setdefault(grade.notebook, []).append(grade)
        rows: list[dict[str, object]] = []
        for grades in by_notebook.values():
            exercises = [
                grade
                for grade in grades
                if grade.kind == "exercise" and grade.verdict != "not available"
            ]
            questions = [grade for grade in grades if grade.kind in ("prediction", "quiz")]
            failed = [grade.name for grade in exercises if not grade.is_achieved]
            reasons = {grade.reason for grade in grades if not grade.name}
            rows.append(
                {
                    "learner": grades[0].learner,
                    "lesson": grades[0].lesson,
                    "solved": f"{len(exercises) - len(failed)} of {len(exercises)}",
                    "answered": f"{sum(q.is_achieved for q in questions)} of {len(questions)}",
                    "not solved": ", ".join(failed + sorted(reasons)),
                }
            )
        return rows

    @property
    def warnings(self) -> list[str]:
        """What notebooks could do, since the system did not allow to hold them."""
        return [_HELD[name] for name in self.not_held]

    @property
    def note(self) -> str:
        """Where verdicts come from, and what did not hold notebooks."""
        first = (
            "predictions and quizzes as the saved notebook has them, unverified: count them "
            "as participation; the code of exercises was run again"
        )
        return "; ".join([first, *self.warnings])

    @door(points=Points)
    def marks(self, points: Points = ALIKE) -> Marks:
        """Return the points of each learner; of several notebooks of a lesson the best count.

        Lessons that nobody handed in do not count.

        Raises
        ------
        InvalidArgument
            The points name a lesson or an exercise that is not among those asked.
        """
        check_names(points, self.asked)
        achieved = {
            (grade.learner, grade.lesson, grade.name) for grade in self.grades if grade.is_achieved
        }
        handed_in = {grade.lesson for grade in self.grades}
        left_out = {(g.lesson, g.name) for g in self.grades if g.verdict == "not available"}
        marks = []
        for learner in dict.fromkeys(grade.learner for grade in self.grades):
            for lesson, asked in self.asked.items():
                names = {n: kind for n, kind in asked.items() if (lesson, n) not in left_out}
                if lesson not in handed_in or not names:
                    continue
                exercises = [name for name, kind in names.items() if kind == "exercise"]
                reached = {name for name in names if (learner, lesson, name) in achieved}
                marks.append(
                    Mark(
                        learner,
                        lesson,
                        sum(points.of(lesson, name) for name in exercises if name in reached),
                        sum(points.of(lesson, name) for name in exercises),
                        len(reached.difference(exercises)),
                        len(names) - len(exercises),
                    )
                )
        not_graded: dict[str, tuple[str, ...]] = {}
        for grade in self.grades:
            if not grade.name:
                reason = f"{Path(grade.notebook).name}: {grade.reason}"
                not_graded[grade.learner] = (*not_graded.get(grade.learner, ()), reason)
        return Marks(marks=tuple(marks), not_graded=not_graded)

    @door(path=(str, Path))
    def to_csv(self, path: str | Path) -> Path:
        """Write all grades, one row each; returns the path.

        Raises
        ------
        GpuscopeError
            The file could not be written.
        """
        columns = [field.name for field in fields(Grade)]
        rows = (
            [clean(value) if isinstance(value, str) else value for value in asdict(grade).values()]
            for grade in self.grades
        )
        return write_csv(Path(path), columns, rows)
