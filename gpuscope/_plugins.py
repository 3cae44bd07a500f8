"""Plugins: what rooms of gpuscope that the core does without, and other packages, add by name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from importlib import metadata
from importlib.metadata import EntryPoint
from typing import Generic, TypeVar

from gpuscope._checks import given
from gpuscope._optional import needed_for
from gpuscope._text import clean
from gpuscope.errors import MissingDependency

_T = TypeVar("_T")

ROOMS = {
    "gpuscope.backends": {"sim": "gpuscope.simulator.registered:SIMULATED"},
    "gpuscope.commands": {"calibrate": "gpuscope.simulator.calibration.command:calibrate_command"},
    "gpuscope.forecasters": {"simulator": "gpuscope.simulator.forecast.stand_ins:Simulated"},
    "gpuscope.observers": {"hazards": "gpuscope.races.observer:observe"},
    "gpuscope.queries": {"sql": "gpuscope.analyses.sql:query"},
}
"""Group → name → what our own rooms register there, spelled as entry points are."""


def _is_no_function(_name: str, value: object) -> str:
    return "" if callable(value) else f"it is {given(value)}, not a function"


class Plugins(Generic[_T]):
    """What is registered for one group of entry points. Nothing is imported before its use.

    Parameters
    ----------
    group
        The group's name: ``"gpuscope.backends"``.
    noun
        What it registers, for messages: ``"backend"``.
    wrong
        Name and value that another package declares → why that cannot be used; empty if it can.
        Functions can, if not given.
    """

    def __init__(
        self, group: str, noun: str, wrong: Callable[[str, object], str] = _is_no_function
    ) -> None:
        self.group = group
        self._noun = noun
        self._wrong = wrong
        self._rooms = {
            name: EntryPoint(name, value, group) for name, value in ROOMS.get(group, {}).items()
        }
        self._known: tuple[dict[str, EntryPoint], list[str]] | None = None
        self._loaded: dict[str, _T | MissingDependency] = {}

    def _entries(self) -> tuple[dict[str, EntryPoint], list[str]]:
        """Return what is declared, by name, and why some of it is left out."""
        if self._known is None:
            entries, problems = _declared(self.group)
            entries.sort(key=lambda entry: entry.name)
            taken = f"gpuscope has a {self._noun} of that name"
            problems += [
                self._refusal(entry, taken) for entry in entries if entry.name in self._rooms
            ]
            others = {entry.name: entry for entry in entries if entry.name not in self._rooms}
            self._known = {**self._rooms, **others}, problems
        return self._known

    def _refusal(self, entry: EntryPoint, why: str) -> str:
        package = entry.dist.name if entry.dist is not None else entry.value
        return (
            f"the {self._noun} {entry.name!r} of the package {package!r} ({entry.value}) "
            f"cannot be used: {why}. Mend or uninstall the package"
        )

    def names(self) -> list[str]:
        """Return every name that is declared: those of our rooms, then those of other packages."""
        return [*self._entries()[0]]

    def find(self, name: str) -> _T | None:
        """Return what is registered under a name, ``None`` if nothing is; loads no other.

        Raises
        ------
        MissingDependency
            A room of ours is not installed, or needs a package that is not; or what another
            package declares cannot be used. Says which, and why.
        """
        entry = self._rooms.get(name) or self._entries()[0].get(name)
        if entry is None:
            return None
        if name not in self._loaded:
            self._loaded[name] = self._load(entry)
        value = self._loaded[name]
        if isinstance(value, MissingDependency):
            raise value
        return value

    def _load(self, entry: EntryPoint) -> _T | MissingDependency:
        if entry.name in self._rooms:
            try:
                with needed_for(f"the {self._noun} {entry.name!r}"):
                    room: _T = entry.load()
            except MissingDependency as error:
                return error
            return room
        try:
            value: _T = entry.load()
            wrong = self._wrong(entry.name, value)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is somebody else's code
            wrong = f"{type(error).__name__}: {error}"
        return MissingDependency(clean(self._refusal(entry, wrong))) if wrong else value

    def usable(self) -> dict[str, _T]:
        """Return what can be used, by name."""
        values = {}
        for name in self.names():
            try:
                value = self.find(name)
            except MissingDependency:
                continue
            if value is not None:
                values[name] = value
        return values

    def problems(self) -> list[str]:
        """Return what is wrong with other packages: each that cannot be read, or used."""
        self.usable()
        broken = [
            str(value)
            for name, value in self._loaded.items()
            if isinstance(value, MissingDependency) and name not in self._rooms
        ]
        return [*broken, *map(clean, self._entries()[1])]

    def package(self, name: str) -> str | None:
        """Return the name of the other package that declares ``name``."""
        entry = self._entries()[0].get(name)
        return entry.dist.name if entry is not None and entry.dist is not None else None

    def forget(self) -> None:
        """Look for other packages anew: something was installed since."""
        self._known = None
        self._loaded.clear()


def _declared(group: str) -> tuple[list[EntryPoint], list[str]]:
    """Return the entry points of a group, and which packages' cannot be read."""
    with contextlib.suppress(Exception):  # a malformed file of one package raises for all
        return list(metadata.entry_points(group=group)), []
    entries: dict[str, list[EntryPoint]] = {}
    problems = []
    for package in metadata.distributions():
        name = str(package.name)
        try:
            of_group = [entry for entry in package.entry_points if entry.group == group]
        except Exception as error:  # noqa: BLE001 - it is somebody else's file
            problems.append(
                f"the entry points of the package {name!r} cannot be read "
                f"({type(error).__name__}: {error}). Mend or uninstall the package"
            )
        else:
            entries.setdefault(name, of_group)  # the first on the path is the one that is imported
    return [entry for of_package in entries.values() for entry in of_package], problems
