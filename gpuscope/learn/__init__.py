"""Building blocks of the lessons: predictions, outcomes and checks.

A :class:`Lesson` asks for a prediction. Once the code has run, it shows the prediction and the
measurement, a timeline, and the rule that explains the outcome. Exercises are checked, with
hints. Results stay in the notebook and can be written as CSV for a class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuscope._lazy import public

if TYPE_CHECKING:
    from gpuscope.learn.answers import Choice as Choice
    from gpuscope.learn.answers import Interval as Interval
    from gpuscope.learn.answers import Order as Order
    from gpuscope.learn.answers import Value as Value
    from gpuscope.learn.assignment import GivenOut as GivenOut
    from gpuscope.learn.assignment import give_out as give_out
    from gpuscope.learn.attempt import Attempt as Attempt
    from gpuscope.learn.cases import CAUSES as CAUSES
    from gpuscope.learn.cases import Case as Case
    from gpuscope.learn.cases import address as address
    from gpuscope.learn.cases import case as case
    from gpuscope.learn.cases import spin_kernel as spin_kernel
    from gpuscope.learn.cuda.program import CudaProgram as CudaProgram
    from gpuscope.learn.grades import Grade as Grade
    from gpuscope.learn.grades import Grades as Grades
    from gpuscope.learn.grades import Mark as Mark
    from gpuscope.learn.grades import Marks as Marks
    from gpuscope.learn.grading import Limits as Limits
    from gpuscope.learn.grading import grade as grade
    from gpuscope.learn.in_pytorch import pytorch as pytorch
    from gpuscope.learn.lesson import Lesson as Lesson
    from gpuscope.learn.outcome import Feedback as Feedback
    from gpuscope.learn.outcome import Outcome as Outcome
    from gpuscope.learn.outcome import Result as Result
    from gpuscope.learn.outcome import find as find
    from gpuscope.learn.points import Points as Points
    from gpuscope.learn.question import Question as Question
    from gpuscope.learn.recorded import label as label
    from gpuscope.learn.recorded import observe as observe
    from gpuscope.learn.recorded import recording_of as recording_of
    from gpuscope.learn.step import Step as Step

__getattr__, __dir__, __all__ = public(__name__)
