"""The process that runs one notebook for :mod:`gpuscope.learn.grading`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from traitlets.config import Config

from gpuscope.learn.apart import Apart, error_of, told
from gpuscope.learn.handed_in import Code
from gpuscope.learn.outcome import Feedback


@dataclass(frozen=True)
class Order:
    """What to run, and within which limits.

    Attributes
    ----------
    cells
        In their order.
    exercises
        Names that a learner is to define: the only ones of the lesson's that are not restored.
    descriptor
        Of an open file, which has no name that a notebook could reach: takes a line for each
        check, as soon as it is known.
    """

    cells: list[Code]
    exercises: set[str]
    cell_seconds: float
    memory_bytes: int
    descriptor: int


@dataclass(frozen=True)
class Checked:
    """What a check of an exercise said."""

    name: str
    verdict: str
    reason: str


def run(order: Order) -> None:
    """Run the cells of a notebook as Jupyter does, and write what its checks say.

    Only the lesson's own cells tell of checks, each of those that it asks. They share no names with
    the learner's cells but those of the exercises, and each is judged in a process of its own.
    """
    import resource  # noqa: PLC0415 - Python in a browser has none, and grades nothing

    resource.setrlimit(resource.RLIMIT_DATA, (order.memory_bytes, order.memory_bytes))
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    apart = Apart(shell, order.exercises, order.cell_seconds)
    raised: list[str] = []
    with os.fdopen(order.descriptor, "wb", buffering=0) as out:

        def write(name: str, verdict: str, reasons: list[str]) -> None:
            # Lone surrogates cannot be written as UTF-8.
            reason = "; ".join(reasons).encode(errors="backslashreplace").decode()
            out.write(msgspec.json.encode(Checked(name, verdict, reason)) + b"\n")

        for code in order.cells:
            if code.asks is None:
                apart.written.append(code)
            elif not code.asks:
                if (error := error_of(apart.run(code.source))) is not None:
                    raised.append(f"cell {code.id} raised {told(error)}")
            else:
                asks = code.asks

                def tell(ran: ExecutionResult, errors: list[str], asks: tuple[str, ...]) -> None:
                    feedback: object = ran.result
                    if type(feedback) is Feedback and feedback.result.name in asks:
                        result = feedback.result
                        write(result.name, result.verdict, [*raised, *errors, feedback.found])

                ending = apart.check(code, partial(tell, asks=asks))
                for name in asks if ending else ():
                    write(name, "not finished", [*raised, ending])


if __name__ == "__main__":
    run(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Order))
