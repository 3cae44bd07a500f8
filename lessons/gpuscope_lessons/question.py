"""A question with a form: keyboard reachable, labelled, and harmless where nobody answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import TypeAlias

import anywidget
import traitlets

from gpuscope.errors import InvalidArgument
from gpuscope.extending import Untyped
from gpuscope_lessons.answers import Answer, FormField, Kind

Shown: TypeAlias = object
"""What Jupyter passes on, and what it shows of a MIME type."""

_STATIC = Path(__file__).parent / "static"


class Question(anywidget.AnyWidget):
    """A question to a learner; made by :meth:`Lesson.predict` and :meth:`Lesson.quiz`.

    Parameters
    ----------
    text
        The question.
    kind
        What kind of answer it takes.
    button
        What the form's button says.
    on_answer
        Called with each answer that could be read.

    Examples
    --------
    >>> import gpuscope as gs
    >>> import gpuscope_lessons as learn
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> lesson = learn.Lesson(0, "An example", gpu)
    >>> question = lesson.predict("first", "Which ends first?", learn.Choice(["a", "b"]))
    >>> question.give("b")
    >>> question.given, question.locked
    (['b'], True)
    """

    _esm = (_STATIC / "question.js").read_text("utf-8")
    _css = (_STATIC / "question.css").read_text("utf-8")

    text = traitlets.Unicode(help="The question.").tag(sync=True)
    fields: traitlets.List[FormField] = traitlets.List(help="Of the form.").tag(sync=True)
    button = traitlets.Unicode(help="What the button says.").tag(sync=True)
    given: traitlets.List[object] = traitlets.List(help="Values of the fields, as last sent.").tag(
        sync=True
    )
    locked = traitlets.Bool(default_value=False, help="Whether it is answered.").tag(sync=True)
    said = traitlets.Unicode(help="What the learner is told.").tag(sync=True)
    tone = traitlets.Enum(
        ("", "right", "wrong", "error"), default_value="", help="Of what is said."
    ).tag(sync=True)

    def __init__(
        self, text: str, kind: Kind, *, button: str, on_answer: Callable[[Answer], None]
    ) -> None:
        self.kind = kind
        self._on_answer = on_answer
        super().__init__(text=text, fields=kind.fields(), button=button)
        self.on_msg(self._take)

    def give(self, *values: object) -> None:
        """Answer by code, as if the form had been filled in.

        Parameters
        ----------
        values
            One for each field, as arguments of their own: the option; each item in order; the
            number; both ends.

        Raises
        ------
        InvalidArgument
            They are no answer, or it is answered already.
        """
        if self.locked:
            raise InvalidArgument(
                "this question is answered already: run its cell again to start anew"
            )
        if len(values) != len(self.fields):
            raise InvalidArgument(
                f"{len(self.fields)} values are needed, one after the other, not {len(values)}"
            )
        answer = self.kind.read(values)
        self.given = list(values)
        self._on_answer(answer)

    def tell(self, said: str, tone: str = "", *, locked: bool = False) -> None:
        """Show the learner a text below the form, and lock it if it is answered."""
        with self.hold_trait_notifications():
            self.said, self.tone, self.locked = said, tone, locked

    def _take(self, _widget: object, content: object, _buffers: object) -> None:
        if not isinstance(content, Mapping) or self.locked:
            return
        try:
            self.give(*content.get("values", ()))
        except InvalidArgument as error:
            self.tell(str(error), "error")

    def __repr__(self) -> str:
        return f"Question({self.text!r})"

    def _repr_mimebundle_(
        self, **options: Untyped
    ) -> tuple[dict[str, Shown], dict[str, Shown]] | None:
        """Add what a page without scripts can show: the question, and what it offers."""
        shown = super()._repr_mimebundle_(**options)
        if shown is None:
            return None
        bundle, metadata = shown
        offered = dict.fromkeys(
            option for field in self.fields for option in field.get("options", ())
        )
        listed = "".join(f"<li>{escape(str(option))}</li>" for option in offered)
        html = f"<p><b>{escape(self.text)}</b></p><ul>{listed}</ul>"
        return {**bundle, "text/html": html}, metadata
