"""What a user's function has to be for a workload, and which of its arrays it says it accesses."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpuscope._checks import given
from gpuscope.device.accesses import Operand, inside, of_arrays
from gpuscope.errors import InvalidOperand

_RUN_LATER = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
"""Whether a call of a function runs nothing yet."""


class Declared(NamedTuple):
    """Names of the parameters whose arrays a function's work reads, and those that it writes."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]

    def of(
        self,
        function: Callable[..., object],
        arguments: tuple[object, ...],
        keywords: Mapping[str, object],
    ) -> tuple[Operand, ...]:
        """Return what one call accesses."""
        bound = inspect.signature(function).bind(None, *arguments, **keywords)
        bound.apply_defaults()
        reads, writes = (
            inside([bound.arguments[name] for name in names]) for names in (self.reads, self.writes)
        )
        return of_arrays(reads, writes)


def check_declared(declared: Declared | None, function: Callable[..., object]) -> None:
    """Refuse names that a function has no parameters of."""
    _, *names = inspect.signature(function).parameters
    for name in (*declared.reads, *declared.writes) if declared is not None else ():
        if name not in names:
            raise InvalidOperand(
                f"reads or writes names {name!r}, which is no parameter of {name_of(function)}: "
                f"it has {', '.join(names) or 'none'}"
            )


def check_function(function: Callable[..., object]) -> None:
    """Refuse what cannot be a workload's function."""
    if not callable(function) or isinstance(function, type):
        raise TypeError(f"workload takes a function, not {given(function)}")
    called: object = function
    while isinstance(called, functools.partial):
        called = called.func
    bodies = (called, getattr(called, "__call__", None))  # noqa: B004
    if any(runs_later(body) for runs_later in _RUN_LATER for body in bodies):
        raise TypeError(
            f"workload takes a function that has launched everything when it returns; "
            f"{name_of(function)} is asynchronous or a generator"
        )
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError as error:
        raise TypeError(
            f"workload takes a function that tells its parameters; {name_of(function)} does "
            "not: wrap it in def f(ctx, …)"
        ) from error
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    ):
        raise TypeError(
            f"{name_of(function)} takes no context: its first parameter is one, as in "
            "def f(ctx, a, b)"
        )
    if any(parameter.name == "stream" for parameter in parameters):
        raise TypeError(
            f"{name_of(function)} has a parameter called stream, which execute(stream=…) "
            "takes for itself: use ctx.stream, or give it another name"
        )


def name_of(function: object) -> str:
    """Return what a function is called."""
    return str(getattr(function, "__name__", None) or type(function).__name__)
