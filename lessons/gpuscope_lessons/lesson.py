"""A lesson: what was asked in it, what was answered, and what came of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from html import escape
from pathlib import Path

from gpuscope import figures
from gpuscope.device import Device
from gpuscope.errors import CapabilityError, InvalidArgument, NotFound
from gpuscope.extending import SeveralOf, door, given, write_csv
from gpuscope.races import watch
from gpuscope.telling import explain, find
from gpuscope.trace import Trace
from gpuscope_lessons.answers import Answer, Interval, Kind
from gpuscope_lessons.attempt import RETURNED, Attempt, noting_durations, tested
from gpuscope_lessons.outcome import (
    RESULTS,
    Feedback,
    Outcome,
    Result,
    note_try,
    of_interest,
    picture,
    window_of,
)
from gpuscope_lessons.question import Question

_UNTRIED = "Change the cell above first. If you did: does your code return or launch anything?"
_UNITS_NS = {"s": 10**9, "ms": 10**6, "µs": 10**3, "ns": 1}
_SEEDS = 3
"""Different durations and values with which a check runs a program."""


class Lesson:
    """The predictions and exercises of one notebook.

    Parameters
    ----------
    number, title
        Of the lesson.
    device
        What it runs on; results say its name.

    Attributes
    ----------
    questions
        Name → the question asked last under that name.
    patience_s
        How long a program that is checked may run, on the host's clock.

    Examples
    --------
    >>> import gpuscope as gs
    >>> import gpuscope_lessons as learn
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> lesson = learn.Lesson(0, "An example", gpu)
    >>> question = lesson.predict("sum", "What is 1 + 1?", learn.Value())
    >>> question.give(3)
    >>> lesson.reveal("sum", 1 + 1, rule="Numbers add up.").result.verdict
    'wrong'
    """

    @door(number=int, title=str, device=Device)
    def __init__(self, number: int, title: str, device: Device) -> None:
        self.number = number
        self.title = title
        self.device = device
        self.questions: dict[str, Question] = {}
        self.patience_s = 10.0
        self._attempts: list[Attempt] = []
        self._answers: dict[str, Answer] = {}
        self._results: dict[str, Result] = {}

    @property
    def results(self) -> tuple[Result, ...]:
        """What came of every prediction and exercise so far, in the order in which it was asked."""
        return tuple(self._results.values())

    # -- predict, then run ------------------------------------------------------------
    @door(name=str, question=str, kind=Kind)
    def predict(self, name: str, question: str, kind: Kind) -> Question:
        """Ask for a prediction: the form to show.

        Asking again under the same name starts anew; attempts are counted on. Once the outcome
        was seen, the results keep the first answer.

        Parameters
        ----------
        name
            What :meth:`reveal` calls it.
        question
            Its text.
        kind
            A :class:`Choice`, :class:`Order`, :class:`Value` or :class:`Interval`.
        """
        self._answers.pop(name, None)
        self._keep(name, "prediction", question, "not predicted")
        answers = self._answers  # a widget lives for ever: it must not hold the device

        def commit(answer: Answer) -> None:
            answers[name] = answer
            form.tell(f"You predict: {kind.show(answer)}. Now run the next cell.", locked=True)

        form = Question(question, kind, button="Commit to this prediction", on_answer=commit)
        self.questions[name] = form
        return form

    @door("name", "trace", "why", "rule", "since_ns", "window_ns", "then")
    def reveal(
        self,
        name: str,
        measured: Answer,
        *,
        trace: Trace | None = None,
        why: str | int | None = None,
        rule: str = "",
        since_ns: int | None = None,
        window_ns: tuple[int, int] | None = None,
        then: str = "",
    ) -> Outcome:
        """Hold a prediction against what was measured; where nobody predicted, only show it.

        Parameters
        ----------
        measured
            In the form of an answer: the option; the items in order; a number.
        trace
            What was recorded, for the picture.
        why
            Which row to explain: its id, or the name of the workload whose last work it is.
        rule
            The rule that explains it.
        since_ns
            On the trace's clock, what a predicted range of time counts from: it is drawn then.
        window_ns
            On the trace's clock, the part to draw; all of it, if not given.
        then
            What to tell below the picture, as Markdown. Text that tells the outcome belongs here:
            in a cell of its own, it could be read before the answer.

        Raises
        ------
        NotFound
            Nothing was asked under that name.
        InvalidArgument
            ``measured`` is in no form of an answer.
        """
        if name not in self.questions:
            raise NotFound(f"no prediction {name!r} was asked for: run the cell that does first")
        form, first = self.questions[name], self._results[name]
        kind = form.kind
        shown = _shown(kind, "measured", measured)
        result = replace(first, measured=shown, answer=None, verdict="not predicted")
        answer = self._answers.get(name)
        if answer is not None:
            right, attempts = kind.is_right(answer, measured), result.attempts + (not form.tone)
            verdict, text = ("right", "Right.") if right else ("wrong", "Not this time.")
            result = replace(result, answer=kind.show(answer), verdict=verdict, attempts=attempts)
            form.tell(text, verdict, locked=True)
        elif not form.locked:
            form.tell("It was run before you predicted.", locked=True)
        saved_result = replace(first, attempts=result.attempts) if first.measured else result
        self._results[name] = saved_result
        explanation = figure = None
        if trace is not None:
            if isinstance(why, str):
                why = find(trace, why, -1)
            explanation = None if why is None else explain(trace, why)
            guess = None
            if since_ns is not None and answer is not None and isinstance(kind, Interval):
                low, high = (since_ns + round(end * _UNITS_NS[kind.unit]) for end in answer)
                guess = low, high
            window = window_ns or window_of(trace, explanation, guess)
            figure = picture(trace, result, explanation, window, guess)
        return Outcome(result, saved_result, rule, explanation, figure, then)

    # -- exercises --------------------------------------------------------------------
    @door(program=Callable, device=(Device, None))
    def watch(
        self, program: Callable[..., object], *arguments: object, device: Device | None = None
    ) -> Attempt:
        """Run a learner's program inside a check and record it: conditions on its trace follow.

        It is stopped after :attr:`patience_s`. The last one that a check watched is drawn.

        Parameters
        ----------
        device
            What it runs on and is recorded there; by default the lesson's.
        """
        device = device or self.device
        with noting_durations() as changed, watch(device, self.patience_s) as watched:
            attempt = Attempt(watched.recording, watched.measured_ns, changed)
            self._attempts.append(attempt)
            attempt.value = program(*arguments)
            attempt.returned_ns = watched.mark(RETURNED)
        return attempt

    @door(name=str, task=str, test=Callable, hints=SeveralOf(str), rule=str, needs=(Callable, None))
    def check(
        self,
        name: str,
        task: str,
        test: Callable[[random.Random], bool | str | None],
        hints: Sequence[str] = (),
        *,
        rule: str = "",
        needs: Callable[[Device], object] | None = None,
    ) -> Feedback:
        """Check an exercise that is solved by code, with other durations and values each time.

        What was solved once stays so in the results, whatever is tried later.

        Parameters
        ----------
        task
            What was to be done, in short.
        test
            Called with a source of durations and values, several times: runs the program with
            :meth:`watch`, and returns true where it is solved, what it found instead, or ``None``
            where nobody tried yet. An unmet condition, or an error, is not solved, and is told.
        hints
            Given one after the other, one at each attempt that fails. The last one is a solution;
            what follows its first line is shown as code.
        rule
            What the exercise is about: told when it is solved, or with the last hint.
        needs
            Called with the device first: raises where the exercise is not available.
        """
        self._keep(name, "exercise", task, "not tried")
        try:
            if needs is not None:
                needs(self.device)
        except CapabilityError as error:
            earlier = self._results[name]
            result = replace(earlier, verdict="not available")
            self._results[name] = result if earlier.verdict == "not tried" else earlier
            return Feedback(result, str(error), "")
        outcome: bool | str | None = True
        try:
            for seed in range(_SEEDS):
                if outcome is True:
                    outcome = tested(test, seed, self._attempts, self.device)
        except Exception as error:  # noqa: BLE001 - the learner's code may raise anything
            outcome = f"It raised {type(error).__name__}: {error}"
        if outcome is None:
            return Feedback(replace(self._results[name], verdict="not tried"), _UNTRIED, "")
        result = note_try(self._results, name, None, solved=outcome is True)
        last, figure = self._attempts[-1] if self._attempts else None, None
        if last is not None and len(trace := of_interest(last.trace)):
            window = window_of(trace, None, None)
            figure = figures.timeline(trace, window_ns=window, title="Your program", host=True)
        if outcome is not True:
            text = outcome or "It is not what was asked for."
            shown_rule = rule if result.attempts >= len(hints) else ""  # it is often the answer
            return Feedback(result, text, _hint(hints, result.attempts), shown_rule, figure)
        shown = "; ".join(dict.fromkeys(last.shown)) if last is not None else ""
        text = f"{shown or 'it returned what was asked for'}, with each of {_SEEDS} sets of values."
        return Feedback(result, text[0].upper() + text[1:], "", rule, figure)

    @door(name=str, question=str, kind=Kind, hints=SeveralOf(str), rule=str)
    def quiz(
        self,
        name: str,
        question: str,
        kind: Kind,
        answer: Answer,
        hints: Sequence[str] = (),
        *,
        rule: str = "",
    ) -> Question:
        """Ask a question that is checked when it is answered; it may be answered again.

        Parameters
        ----------
        answer
            The right one: measured, where it can be.
        hints
            Given one after the other, one at each answer that is wrong; then comes the answer.
        rule
            The rule that explains it, told once the answer is right.
        """
        _shown(kind, "answer", answer)
        self._keep(name, "exercise", question, "not tried")
        results = self._results  # a widget lives for ever: it must not hold the device

        def judge(tried: Answer) -> None:
            solved = kind.is_right(tried, answer)
            result = note_try(results, name, kind.show(tried), solved=solved)
            if solved:
                form.tell(f"Right: {kind.show(tried)}. {rule}".rstrip(), "right", locked=True)
                return
            ending = f"The answer is {kind.show(answer)}. {rule}".rstrip()
            hint = [*(f"Hint: {hint}" for hint in hints), ending]
            form.tell(f"Not {kind.show(tried)}. {_hint(hint, result.attempts)}", "wrong")

        form = Question(question, kind, button="Check", on_answer=judge)
        self.questions[name] = form
        return form

    # -- results ----------------------------------------------------------------------
    @door(path=(str, Path), learner=str)
    def to_csv(self, path: str | Path, *, learner: str = "") -> Path:
        """Write the results, one row each, for a class; returns the path.

        Parameters
        ----------
        learner
            Goes into every row.

        Raises
        ------
        GpuscopeError
            The file could not be written.
        """
        columns = ["learner", *(field.name for field in fields(Result))]
        rows = [[learner, *asdict(result).values()] for result in self.results]
        return write_csv(Path(path), columns, rows)

    def _repr_mimebundle_(self, **_: object) -> dict[str, object]:
        return {
            "text/plain": repr(self),
            "text/html": self._repr_html_(),
            RESULTS: [asdict(result) for result in self.results],
        }

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td style='text-align:left'>{escape(result.question)}</td>"
            f"<td>{escape(result.answer or '–')}</td><td>{escape(result.measured or '–')}</td>"
            f"<td>{escape(result.verdict)}</td><td>{result.attempts}</td></tr>"
            for result in self.results
        )
        return (
            f"<p class='gpuscope-results'><b>Lesson {self.number}: {escape(self.title)}</b>, on "
            f"{escape(self.device.name)}</p><table><thead><tr><th>asked</th><th>your answer</th>"
            "<th>measured</th><th>verdict</th><th>attempts</th></tr></thead>"
            f"<tbody>{rows}</tbody></table>"
        )

    def __repr__(self) -> str:
        counts = Counter(result.verdict for result in self.results)
        counted = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        return f"Lesson({self.number}, {self.title!r}: {counted or 'nothing asked yet'})"

    def _keep(self, name: str, kind: str, question: str, verdict: str) -> None:
        """Have a result for a name; an exercise that is checked again keeps what it has."""
        had = self._results.get(name)
        if had is not None and had.kind != kind:
            raise InvalidArgument(
                f"another {had.kind} is called {name!r} already: choose another name"
            )
        if had is None or (kind == "prediction" and not had.measured):
            attempts = 0 if had is None else had.attempts
            self._results[name] = Result(
                self.number, name, kind, question, None, "", verdict, attempts, self.device.name
            )


def _shown(kind: Kind, name: str, value: Answer) -> str:
    """Return what was measured as text.

    Raises
    ------
    InvalidArgument
        It is in no form of an answer of this kind.
    """
    with suppress(TypeError, ValueError, OverflowError):
        shown = kind.show(value)
        if isinstance(shown, str):
            return shown
    raise InvalidArgument(
        f"{name} is {given(value)}, which is no answer of kind {type(kind).__name__}"
    )


def _hint(hints: Sequence[str], attempts: int) -> str:
    return hints[min(attempts, len(hints)) - 1] if hints else ""
