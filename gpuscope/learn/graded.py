"""What runs one notebook for :mod:`gpuscope.learn.grading`, in its process."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NoReturn

import msgspec
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from gpuscope.learn.attempt import Attempt
from gpuscope.learn.handed_in import Code
from gpuscope.learn.lesson import Lesson
from gpuscope.learn.outcome import Feedback, Result

_JUDGES = {
    judge: {name: method for name, method in vars(judge).items() if callable(method)}
    for judge in (Lesson, Attempt, Feedback, Result)
}
"""Class → its methods, as they are before a notebook runs."""
_MOST = 2_000
"""Characters of a reason."""


@dataclass(frozen=True)
class Checked:
    """What a check of an exercise said."""

    name: str
    verdict: str
    reason: str


@dataclass(frozen=True)
class Told:
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

    Only the lesson's own cells tell of checks, each of those that it asks. Before each of them, the
    names that such cells defined, and the classes that judge, are as these left them.

    Parameters
    ----------
    exercises
        Names that a learner is to define: the only ones of the lesson's that are not restored.
    failed
        Index of a cell that is left out → why.
    descriptor
        Of an open file: takes a line as each cell begins, and one for each check.
    """

    def too_long(_signal: int, _frame: object) -> NoReturn:
        raise TimeoutError(f"it took longer than {cell_seconds:g} s")

    signal.signal(signal.SIGALRM, too_long)
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    raised: list[str] = []
    kept: dict[str, object] = {}
    with os.fdopen(descriptor, "wb", buffering=0) as out:

        def tell(cell: int, check: Checked | None = None) -> None:
            out.write(msgspec.json.encode(Told(cell, check)) + b"\n")

        for number, code in enumerate(cells):
            tell(number)
            if number in failed:
                for name in code.asks or ():
                    reason = _text("; ".join([*raised, failed[number]]))
                    tell(number, Checked(name, "not solved", reason))
                raised.append(f"cell {code.id}: {failed[number]}")
                continue
            if code.asks is not None:
                _restore(shell.user_ns, kept)
                before = dict(shell.user_ns)
            signal.setitimer(signal.ITIMER_REAL, cell_seconds)
            ran = shell.run_cell(code.source)  # type: ignore[no-untyped-call]  # IPython's
            signal.setitimer(signal.ITIMER_REAL, 0)
            error = ran.error_before_exec or ran.error_in_exec
            if error is not None:
                raised.append(f"cell {code.id} raised {_told(error)}")
            if code.asks is None:
                continue
            for name, value in shell.user_ns.items():
                is_set = not name.startswith("_") and value is not before.get(name, before)
                if is_set and name not in exercises and name not in ("In", "Out"):
                    kept[name] = value
            if type(ran.result) is Feedback and ran.result.result.name in code.asks:
                result = ran.result.result
                reason = _text("; ".join([*raised, ran.result.found]))
                tell(number, Checked(result.name, result.verdict, reason))
                raised.clear()
            elif error is not None:
                for name in code.asks:
                    tell(number, Checked(name, "not finished", _text("; ".join(raised))))
        tell(len(cells))


def _text(reason: str) -> str:
    """Shorten what may be a learner's text; lone surrogates cannot be written as UTF-8."""
    if len(reason) > _MOST:
        reason = f"{reason[: _MOST // 2]} … {reason[-_MOST // 2 :]}"
    return reason.encode(errors="backslashreplace").decode()


def _restore(names: dict[str, object], kept: dict[str, object]) -> None:
    """Give the lesson's names their values back, and the classes that judge their methods."""
    names.update(kept)
    for judge, methods in _JUDGES.items():
        for name, method in methods.items():
            if vars(judge).get(name) is not method:
                setattr(judge, name, method)
    for value in kept.values():
        for name in _JUDGES[Lesson] if isinstance(value, Lesson) else ():
            vars(value).pop(name, None)


def _told(error: BaseException) -> str:
    """Name an error; its own text, which may be a learner's code, may fail."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - it may raise anything
        return type(error).__name__
