"""What exercises count: points and weights from a file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuscope.errors import InvalidArgument, NotFound
from gpuscope.extending import closest, door, given, load

_WEIGHT = "weight"


@dataclass(frozen=True)
class Points:
    """What exercises count.

    Attributes
    ----------
    exercise
        Points of an exercise that is not named.
    lessons
        Lesson, without ``.ipynb`` → exercise → its points; ``"weight"`` → what the points of the
        lesson are multiplied by: 0 leaves it out.

    Examples
    --------
    >>> import gpuscope_lessons as learn
    >>> points = learn.Points(lessons={"02_streams": {"weight": 2, "spread": 3}})
    >>> points.of("02_streams.ipynb", "spread"), points.of("02_streams.ipynb", "wait_late")
    (6, 2)
    """

    exercise: float = 1
    lessons: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    @door(path=(str, Path))
    def read(cls, path: str | Path) -> Points:
        """Read points from a TOML file: ``exercise = …``, and a table for each lesson.

        Raises
        ------
        NotFound
            The file cannot be read.
        InvalidArgument
            It is no TOML, or has what is no number from 0.
        """
        name = Path(path).name
        try:
            raw = load(Path(path), "TOML", 1 << 20)
        except OSError as error:
            raise NotFound(f"cannot read the points {name!r}: {error.strerror}") from error
        except ValueError as error:
            raise InvalidArgument(f"the points {name!r} are no TOML: {error}") from error
        lessons = {key: value for key, value in raw.items() if isinstance(value, dict)}
        single = {key: value for key, value in raw.items() if key not in lessons}
        for where, values in (("at the top", single), *lessons.items()):
            for key, value in values.items():
                if where == "at the top" and key != "exercise":
                    raise InvalidArgument(
                        f"the points {name!r} have {key!r} at the top; 'exercise' and tables of "
                        "lessons are known"
                    )
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                if not is_number or not 0 <= value < math.inf:
                    raise InvalidArgument(
                        f"the points {name!r} have {key} = {given(value)} ({where}); a number "
                        "from 0 is needed"
                    )
        return cls(single.get("exercise", 1), lessons)

    @door(lesson=str, exercise=str)
    def of(self, lesson: str, exercise: str) -> float:
        """Return the points of an exercise, its lesson's weight included."""
        values = self.lessons.get(lesson.removesuffix(".ipynb"), {})
        return values.get(exercise, self.exercise) * values.get(_WEIGHT, 1)


ALIKE = Points()
"""A point for each exercise."""


def check_names(points: Points, asked: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse points of names that no lesson has.

    Parameters
    ----------
    asked
        As in :class:`gpuscope_lessons.Grades`.

    Raises
    ------
    InvalidArgument
        There is no lesson or exercise of a name.
    """
    exercises = {
        lesson.removesuffix(".ipynb"): [name for name in names if names[name] == "exercise"]
        for lesson, names in asked.items()
    }
    for lesson, values in points.lessons.items():
        if lesson not in exercises:
            raise InvalidArgument(
                f"the points name a lesson {lesson!r}, which is not among those given out"
                f"{closest(lesson, exercises)}"
            )
        for exercise in values:
            if exercise not in (_WEIGHT, *exercises[lesson]):
                raise InvalidArgument(
                    f"the points name an exercise {exercise!r} of {lesson}; it has "
                    f"{exercises[lesson]}, and 'weight'"
                )
