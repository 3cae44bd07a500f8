"""What came of an answer: a verdict, what was measured, why, and a picture of it."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from html import escape

import numpy as np
import pyarrow as pa

from gpuscope import figures
from gpuscope.extending import Untyped, clean
from gpuscope.telling import Explanation
from gpuscope.trace import Trace
from gpuscope_lessons.recorded import label

RESULTS = "application/vnd.gpuscope.results+json"
"""Results in a saved notebook, beside what shows them."""
_MARGIN = 0.03
_TITLE = 50
"""Characters that a prediction, what was measured, and the origin of a recording may take."""
_NARROW = 0.04
"""Of the window: what a wait's label needs."""
_INK, _GUESS = "#1B1F24", "#E69F00"
_COLOURS = {"right": "#009e73", "wrong": "#d55e00", "solved": "#009e73", "not solved": "#d55e00"}


@dataclass(frozen=True)
class Result:
    """One prediction or exercise, as it stands.

    Attributes
    ----------
    lesson, name, question
        Where it was asked, and what.
    kind
        ``"prediction"`` or ``"exercise"``.
    answer
        The learner's, as text; ``None`` where there is none.
    measured
        What it was held against, as text; empty for exercises.
    verdict
        ``"right"``, ``"wrong"`` or ``"not predicted"``; ``"solved"``, ``"not solved"``,
        ``"not tried"`` or, where it cannot be tried, ``"not available"``.
    attempts
        How often it was answered.
    device
        On what it was measured.
    """

    lesson: int
    name: str
    kind: str
    question: str
    answer: str | None
    measured: str
    verdict: str
    attempts: int
    device: str


def note_try(results: dict[str, Result], name: str, answer: str | None, *, solved: bool) -> Result:
    """Note a try of an exercise; what was solved once stays so."""
    had, verdict = results[name], "solved" if solved else "not solved"
    now = replace(had, answer=answer, verdict=verdict, attempts=had.attempts + 1)
    if had.verdict != "solved":
        results[name] = now
    return now


@dataclass(frozen=True)
class Outcome:
    """A prediction beside what was measured; the last thing in a cell, it shows itself.

    Attributes
    ----------
    result
        The verdict, and both as text.
    kept
        What the lesson's results keep: the first answer.
    rule
        The rule that explains it.
    explanation
        What the time of the span in question consists of.
    figure
        The timeline, or ``None`` where there is no trace to draw.
    then
        What is told below them, as Markdown.
    """

    result: Result
    kept: Result
    rule: str
    explanation: Explanation | None
    figure: Untyped
    then: str = ""

    def html(self) -> str:
        """Return the verdict and its reasons as HTML."""
        result = self.result
        measured = f"Outcome: <b>{escape(result.measured)}</b>."
        if result.verdict == "not predicted":
            text = f"<b>You made no prediction.</b> {measured}"
        else:
            verdict = "Right." if result.verdict == "right" else "Not this time."
            answer = escape(str(result.answer))
            text = f"<b>{verdict}</b> You predicted: <b>{answer}</b>. {measured}"
        lines = [text]
        if (self.kept.answer, self.kept.verdict) != (result.answer, result.verdict):
            first = escape(self.kept.answer or "none")
            lines.append(f"Your first prediction stays in the results: <b>{first}</b>.")
        if self.explanation is not None:
            why = escape(_without_templates(str(self.explanation)))
            lines.append(f"Why: {why.replace(chr(10), '<br>')}")
        if self.rule:
            lines.append(f"The rule: {escape(self.rule)}")
        return _box(lines, result.verdict)

    def _ipython_display_(self) -> None:
        _display(self.html(), self.figure, self.kept, self.then)


@dataclass(frozen=True)
class Feedback:
    """What a check of an exercise found.

    Attributes
    ----------
    result
        The verdict.
    found
        What the trace of the learner's program shows, in words.
    hint
        What to think about next, in the end a solution; empty where it is solved or was not tried.
    rule
        The rule that the exercise is about; empty until it is solved or the last hint was given.
    figure
        The timeline of the learner's program, or ``None`` where nothing was recorded.
    """

    result: Result
    found: str
    hint: str
    rule: str = ""
    figure: Untyped = None

    def html(self) -> str:
        """Return the verdict, its reasons and a hint as HTML."""
        verdict = self.result.verdict
        lines = [f"<b>{verdict[0].upper()}{verdict[1:]}.</b> {escape(self.found)}"]
        if self.rule:
            lines.append(f"The rule: {escape(self.rule)}")
        if self.hint:
            hint, _, code = self.hint.partition("\n")
            lines.append(f"Hint: {escape(hint)}")
            if code:
                lines.append(f"<pre style='margin:0'>{escape(code)}</pre>")
        return _box(lines, verdict)

    def _ipython_display_(self) -> None:
        _display(self.html(), self.figure, self.result)


def _display(html: str, figure: Untyped, result: Result, then: str = "") -> None:
    ipython = importlib.import_module("IPython.display")  # only where it is shown
    ipython.display({"text/html": html, RESULTS: [asdict(result)]}, raw=True)
    if figure is not None:
        ipython.display(figure)
    if then:
        ipython.display({"text/markdown": then}, raw=True)


def picture(
    trace: Trace,
    result: Result,
    explanation: Explanation | None,
    window: tuple[int, int],
    guessed_ns: tuple[int, int] | None = None,
) -> Untyped:
    """Draw the timeline, with what a span waited for and a predicted range of time.

    Parameters
    ----------
    window, guessed_ns
        On the trace's clock: the part to draw, and what was predicted.
    """
    trace = of_interest(trace, explanation)
    predicted = "nothing" if result.answer is None else result.answer
    origin = label(trace)
    room = (_TITLE - len(origin)) // 2
    title = f"Predicted: {clean(predicted, room)}. Outcome: {clean(result.measured, room)}{origin}"
    figure = figures.timeline(trace, window_ns=window, title=title, host=True)
    unit_ns = 1e6 if "(ms)" in figure.layout.xaxis.title.text else 1e3

    def place(ns: int) -> float:
        return (min(max(ns, window[0]), window[1]) - window[0]) / unit_ns

    def shade(start_ns: int, end_ns: int, text: str, **style: Untyped) -> None:
        ends = {"x0": place(start_ns), "x1": place(end_ns), "layer": "below"}
        figure.add_vrect(**ends, annotation=_label(text), **style)

    if guessed_ns is not None:
        line = {"color": _GUESS, "width": 2, "dash": "dot"}
        shade(*guessed_ns, "your prediction", fillcolor=_GUESS, opacity=0.25, line=line)
    for part in () if explanation is None else explanation.parts:
        narrow = part.duration_ns < _NARROW * (window[1] - window[0])
        if not (narrow or part.kind in ("launch call", "running")):
            shade(part.start_ns, part.end_ns, part.kind, fillcolor=_INK, opacity=0.1, line_width=0)
    if explanation is not None:
        line = {"color": _INK, "width": 1.5, "dash": "dash"}
        figure.add_vline(x=place(explanation.at_ns), line=line)
    return figure


def of_interest(trace: Trace, explanation: Explanation | None = None) -> Trace:
    """Leave out handles where calls say more; call a workload's kernels and calls by its name."""
    names = zip(trace.texts("category"), trace.texts("name"), strict=True)
    named = pa.array([category or name for category, name in names], pa.string())
    column = trace.spans.schema.get_field_index("name")
    spans = trace.spans.set_column(column, "name", named.dictionary_encode())
    trace = Trace(spans, trace.edges, trace.metadata)
    if explanation is not None and explanation.kind == "handle":
        return trace
    return trace.where([kind != "handle" for kind in trace.texts("kind")])


def window_of(
    trace: Trace, explanation: Explanation | None, guessed_ns: tuple[int, int] | None
) -> tuple[int, int]:
    """Return the part of a trace to draw: all of it, and what was predicted, with a margin."""
    trace = of_interest(trace, explanation)
    starts = trace.array("start_ns")
    ends = np.maximum(trace.array("end_ns", fill=-1), starts)
    low, high = int(starts.min()), int(ends.max())
    if guessed_ns is not None:
        low, high = min(low, guessed_ns[0]), max(high, guessed_ns[1])
    margin = math.ceil(_MARGIN * (high - low)) + 1
    return low - margin, high + margin


def _without_templates(text: str) -> str:
    """Return a text with the names of C++ functions in short: they can be hundreds of letters."""
    # Arguments of a template follow its name: Python's own <module> and <locals> stay.
    while (shorter := re.sub(r"(?<=\w)<[^<>]*>", "", text)) != text:
        text = shorter
    text = re.sub(r"(?<=\w)\([^()]*\)", "", text)
    return re.sub(r"\b(?:void )?(?:\w+::)+", "", text)


def _label(text: str) -> dict[str, object]:
    above = {"yref": "paper", "y": 1, "yanchor": "bottom"}
    return {"text": text, "font": {"size": 12, "color": _INK}, "showarrow": False, **above}


def _box(lines: Sequence[str], verdict: str) -> str:
    colour = _COLOURS.get(verdict, "#57606a")
    body = "".join(f"<div style='margin:4px 0'>{line}</div>" for line in lines)
    return (
        f"<div class='gpuscope-outcome' role='status' style='border-left:4px solid {colour};"
        f"padding:2px 12px;max-width:760px;line-height:1.5'>{body}</div>"
    )
