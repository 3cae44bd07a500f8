"""Building blocks of the lessons: predictions, outcomes and checks.

A :class:`Lesson` asks for a prediction. Once the code has run, it shows the prediction and the
measurement, a timeline, and the rule that explains the outcome. Exercises are checked, with
hints. Results stay in the notebook and can be written as CSV for a class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuscope.extending import public

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from gpuscope_lessons.answers import Choice as Choice
    from gpuscope_lessons.answers import Interval as Interval
    from gpuscope_lessons.answers import Order as Order
    from gpuscope_lessons.answers import Value as Value
    from gpuscope_lessons.assignment import GivenOut as GivenOut
    from gpuscope_lessons.assignment import give_out as give_out
    from gpuscope_lessons.attempt import Attempt as Attempt
    from gpuscope_lessons.cases import CAUSES as CAUSES
    from gpuscope_lessons.cases import Case as Case
    from gpuscope_lessons.cases import case as case
    from gpuscope_lessons.cuda.program import CudaProgram as CudaProgram
    from gpuscope_lessons.grades import Grade as Grade
    from gpuscope_lessons.grades import Grades as Grades
    from gpuscope_lessons.grades import Mark as Mark
    from gpuscope_lessons.grades import Marks as Marks
    from gpuscope_lessons.grading import Limits as Limits
    from gpuscope_lessons.grading import grade as grade
    from gpuscope_lessons.in_pytorch import pytorch as pytorch
    from gpuscope_lessons.lesson import Lesson as Lesson
    from gpuscope_lessons.outcome import Feedback as Feedback
    from gpuscope_lessons.outcome import Outcome as Outcome
    from gpuscope_lessons.outcome import Result as Result
    from gpuscope_lessons.points import Points as Points
    from gpuscope_lessons.question import Question as Question
    from gpuscope_lessons.recorded import label as label
    from gpuscope_lessons.recorded import observe as observe
    from gpuscope_lessons.recorded import recording_of as recording_of

__getattr__, __dir__, __all__ = public(__name__)
