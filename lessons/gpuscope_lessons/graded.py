"""The process of one notebook: runs its cells, and tells what the checks in them say."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial

import msgspec
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from traitlets.config import Config

from gpuscope_lessons.apart import Apart, error_of, told
from gpuscope_lessons.handed_in import Code
from gpuscope_lessons.outcome import Feedback

_MOST = 2_000
"""Characters of a reason."""


@dataclass(frozen=True)
class Checked:
    """What the check of an exercise said."""

    name: str
    verdict: str
    reason: str


@dataclass(frozen=True)
class ToldLine:
    """A line of what a notebook's process tells: it begins a cell, or a check in it was judged."""

    cell: int
    check: Checked | None = None


def run(
    cells: Sequence[Code],
    exercises: AbstractSet[str],
    cell_seconds: float,
    failed: Mapping[int, str],
    descriptor: int,
) -> None:
    """Run the cells of a notebook as Jupyter does, and write what its checks say.

    Only the lesson's own cells tell of checks, each of those that it asks. They share no names with
    the learner's cells but those of the exercises, and each is judged in a process of its own.

    Parameters
    ----------
    exercises
        Names that a learner is to define.
    failed
        Index of a cell that is left out → why.
    descriptor
        Of an open file: takes a line as each cell begins, and one for each check.
    """
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    raised: list[str] = []
    with os.fdopen(descriptor, "wb", buffering=0) as out:
        cell = 0

        def tell(at: int = -1, check: Checked | None = None) -> None:
            out.write(msgspec.json.encode(ToldLine(cell if at < 0 else at, check)) + b"\n")

        def judge(names: Sequence[str], verdict: str, *reasons: str) -> None:
            reason = _text("; ".join([*raised, *reasons]))
            for name in names:
                tell(check=Checked(name, verdict, reason))

        apart = Apart(shell, exercises, cell_seconds, tell)
        for cell, code in enumerate(cells):
            asks = code.asks
            tell()
            if cell in failed:
                judge(asks or (), "not solved", failed[cell])
                raised.append(f"cell {code.id}: {failed[cell]}")
            elif asks is None:
                apart.written[cell] = code
            elif not asks:
                if (error := error_of(apart.run(code.source))) is not None:
                    raised.append(f"cell {code.id} raised {told(error)}")
            elif ending := apart.check(code, partial(_judged, judge, asks)):
                judge(asks, "not finished", ending)
        cell = len(cells)
        tell()


def _judged(
    judge: Callable[..., None], asks: Sequence[str], ran: ExecutionResult, errors: Sequence[str]
) -> None:
    """Tell what a check said, or why it said nothing."""
    feedback: object = ran.result
    if type(feedback) is Feedback and feedback.result.name in asks:
        result = feedback.result
        judge([result.name], result.verdict, *errors, feedback.found)
    elif (error := error_of(ran)) is not None:
        judge(asks, "not finished", *errors, told(error))


def _text(reason: str) -> str:
    """Shorten what may be a learner's text; lone surrogates cannot be written as UTF-8."""
    if len(reason) > _MOST:
        reason = f"{reason[: _MOST // 2]} … {reason[-_MOST // 2 :]}"
    return reason.encode(errors="backslashreplace").decode()
