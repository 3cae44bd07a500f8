"""Mechanisms that make a program slow: a closed list, to which other packages add changes.

Each is one declaration: a function that yields its evidence in a recording as changed edges, with
what is slow and how to mend it, in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np

from gpuscope._plugins import Plugins
from gpuscope._text import clean
from gpuscope._types import Bools, Floats, Ints
from gpuscope.analysis.help_view import HelpView
from gpuscope.analysis.standstill import ProgramView

Basis: TypeAlias = Literal["bound", "recording"]
Evidence: TypeAlias = Callable[[ProgramView], "Iterable[HelpCase]"]
_Evidence = TypeVar("_Evidence", bound=Evidence)


@dataclass(frozen=True)
class Mechanism:
    """Why a program is slow, and what to change.

    Attributes
    ----------
    change
        What to change.
    fault
        What is slow: a clause, whose braces stand for what it is about; empty where what the GPU
        waited for says it (:func:`idle_causes`).
    how
        How to try it; the braces stand for what code calls that.
    cases
        Yields the evidence for it, in its order of importance.
    is_mend
        Whether somebody can make it: no what-if, and no order of work that goes without another in
        its place.
    weight
        What its gain counts in ranks: less where its evidence is found in most programs.
    """

    change: str
    fault: str
    how: str
    cases: Evidence
    is_mend: bool = True
    weight: float = 1.0


MECHANISMS: dict[str, Mechanism] = {}
"""Change → its mechanism."""


def mechanism(
    change: str,
    fault: str,
    how: str,
    *,
    is_mend: bool = True,
    weight: float = 1.0,
) -> Callable[[_Evidence], _Evidence]:
    """Declare a mechanism, whose evidence the decorated function yields."""

    def declare(cases: _Evidence) -> _Evidence:
        MECHANISMS[change] = Mechanism(change, fault, how, cases, is_mend, weight)
        return cases

    return declare


@dataclass(frozen=True)
class HelpCase:
    """A change: edges that last no longer than ``lag``, and edges that are gone.

    Attributes
    ----------
    is_exact
        Whether edges last ``lag`` even where that is longer.
    rows
        Calls or work that show how often it comes and how long it takes; if not given, its edges.
    times
        How often it comes, where neither its edges nor rows tell.
    beside
        Edges that a mend may shorten besides, which only bounds its gain.
    name
        What code calls that which it is about, where people call it otherwise.
    instead
        Edges, gone or not, and nodes that come before their targets as well.
    change, how, slow
        What to change, how to try it, and what is slow, a clause: of a change that another package
        adds. Of ours the declaration says it.
    """

    about: str
    shorter: Bools | bool = False
    lag: Ints | Floats | int = 0
    gone: Bools | bool = False
    basis: Basis = "bound"
    beside: Bools | bool = False
    name: str = ""
    instead: tuple[Ints, Ints] | None = None
    change: str = ""
    how: str = ""
    slow: str = ""
    is_exact: bool = False
    rows: Ints | None = None
    times: int = 0

    @property
    def mechanism(self) -> Mechanism | None:
        """What it is a case of; ``None``: another package's."""
        return MECHANISMS.get(self.change)

    def with_beside(self) -> HelpCase:
        """Return the change as if nothing were left of what it may shorten besides."""
        changed = np.logical_or(self.shorter, self.gone)
        only_beside = np.logical_and(self.beside, np.logical_not(changed))
        lag = np.where(only_beside, 0, self.lag)
        shorter = np.logical_or(self.shorter, self.beside)
        return replace(self, shorter=shorter, lag=lag)

    @property
    def code(self) -> str:
        """How to try it."""
        how = self.mechanism.how if self.mechanism else ""
        return self.how or how.format(self.name or self.about)

    @property
    def fault(self) -> str:
        """What is slow, a clause."""
        return self.mechanism.fault.format(self.about) if self.mechanism else self.slow


def saved_ns(case: HelpCase, view: HelpView, edges: Ints | None = None) -> Ints:
    """Return how much less long some edges, or all, would last; gone ones more than they did."""

    def of(values: Any) -> Any:
        is_scalar = edges is None or np.ndim(values) == 0
        return values if is_scalar else values[edges]

    gone = of(case.gone)
    changed = np.flatnonzero(np.logical_or(of(case.shorter), gone) & of(view.kept))
    every = changed if edges is None else edges[changed]
    lag = case.lag if np.ndim(case.lag) == 0 else np.asarray(case.lag)[every]
    left_ns = view.causes.lag[every] - lag
    if not case.is_exact:
        left_ns = np.maximum(left_ns, 0)
    if np.any(gone):
        is_gone = np.broadcast_to(gone, of(view.kept).shape)[changed]
        left_ns = np.where(is_gone, view.lasts[every] + 1, left_ns)
    saved = np.zeros(len(of(view.kept)), np.int64)
    saved[changed] = left_ns
    return saved


CHANGES: Plugins[Callable[[HelpView], Iterable[HelpCase]]] = Plugins("gpuscope.changes", "change")
"""Functions of other packages, which return changes of a program by the edges of its causes."""


def cases_of_others(view: HelpView) -> tuple[list[HelpCase], list[str]]:
    """Return what other packages say might help, and what is wrong with some of these."""
    added: list[HelpCase] = []
    failed = []
    for name, make in CHANGES.usable().items():
        try:
            added += make(view)
        except Exception as error:  # noqa: BLE001 - it is somebody else's code
            package = CHANGES.package(name)
            failed.append(
                f"the change {name!r} of the package {package!r} failed: "
                f"{type(error).__name__}: {error}. Mend or uninstall the package"
            )
    return added, [*CHANGES.problems(), *map(clean, failed)]
