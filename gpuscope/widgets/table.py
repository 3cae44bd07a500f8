"""The base of StreamTable and WorkloadTable: rows of fields with errors beside them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

import traitlets
from pydantic import BaseModel

from gpuscope._checks import given, require_kind
from gpuscope.errors import InvalidArgument, InvalidExperiment
from gpuscope.experiments.experiment import Experiment
from gpuscope.timeline.text import clean
from gpuscope.widgets.base import Control, script

Values: TypeAlias = dict[str, Any]
"""A row's values by field, as an experiment has them; pydantic checks their types."""
Field: TypeAlias = dict[str, object]
"""A field of a row, as :func:`field` describes it to the page."""
Described: TypeAlias = Mapping[str, Mapping[str, object] | BaseModel]
"""Name → fields, as in an experiment."""
Problems: TypeAlias = Mapping[tuple[str, ...], str]
"""Path in an experiment → what is wrong there."""


def field(
    name: str,
    label: str,
    type: str = "number",  # noqa: A002 - HTML's word
    *,
    options: Iterable[tuple[object, str]] = (),
    when: Mapping[str, Iterable[object]] | None = None,
    hint: str = "",
) -> Field:
    """Describe one field of a row to the page.

    Parameters
    ----------
    type
        ``"text"``, ``"number"``, ``"choice"``, ``"flag"`` or ``"several"``.
    options
        Value and label of each choice.
    when
        Other field → the values with which this one is shown; all of them have to fit.
    """
    return {
        "name": name,
        "label": label,
        "type": type,
        "options": [list(option) for option in options],
        "when": {other: list(values) for other, values in (when or {}).items()},
        "hint": hint,
    }


def names_of(what: str, names: Iterable[str]) -> list[str]:
    """Return names to choose from as a list.

    Raises
    ------
    InvalidArgument
        They are no texts.
    """
    listed: list[Any] = [None]
    with suppress(TypeError):  # a NumPy array without dimensions calls itself iterable, too
        listed = list(names)
    if isinstance(names, str) or not all(isinstance(name, str) for name in listed):
        raise InvalidArgument(f"{what} is {given(names)}; a list of names is needed")
    return listed


class Table(Control):
    """Rows of fields that describe one part of an experiment.

    Parameters
    ----------
    choices
        Names to choose from.
    lock
        Lock for the widget's state; several widgets may share one.
    """

    _esm = script("table.js")

    part = ""
    """The part of an experiment that it describes."""
    chosen = ""
    """The part of an experiment whose names are chosen from."""
    home = ""
    """The field in which one of these names is chosen."""

    noun = traitlets.Unicode(help="What a row is.")
    fields = traitlets.List(
        traitlets.Dict(), help="The fields of a row, as table.field() describes them."
    )
    rows = traitlets.List(
        traitlets.Dict(),
        help="A dict a row: id, values by field, problems by field ('' for the row as a whole), "
        "options by field where they differ from row to row, and line: the row in one line.",
    )
    error = traitlets.Unicode(help="What is wrong with the table as a whole; or empty.")

    def __init__(self, choices: Iterable[str], lock: threading.RLock | None) -> None:
        self._choices = names_of(self.chosen, choices)
        super().__init__(lock=lock, noun=self.part.removesuffix("s"), fields=self._fields())
        self._ids = itertools.count(1)
        self._changed: Callable[[dict[str, str]], None] = lambda _renamed: self.check()

    # -- for programs -------------------------------------------------------------------
    @property
    def is_valid(self) -> bool:
        """Whether nothing is wrong."""
        return not self.said

    @property
    def said(self) -> str:
        """What is wrong, in one text; empty if nothing is."""
        lines = [
            f"{self.noun} {clean(row['values']['name'], 40)!r}, {where or 'as a whole'}: {words}"
            for row in self.rows
            for where, words in row["problems"].items()
        ]
        return "\n".join([self.error, *lines] if self.error else lines)

    @property
    def names(self) -> list[str]:
        """The rows' names, in their order."""
        return [row["values"]["name"] for row in self.rows]

    @property
    def choices(self) -> list[str]:
        """Names to choose from."""
        return list(self._choices)

    @choices.setter
    def choices(self, names: Iterable[str]) -> None:
        with self.lock:
            self._choices = names_of(self.chosen, names)
            self.fields = self._fields()
            self._changed({})

    @property
    def described(self) -> dict[str, Values]:
        """Name → fields, as an experiment takes them; of two rows with one name, the first."""
        with self.lock:
            described: dict[str, Values] = {}
            for row in self.rows:
                described.setdefault(row["values"]["name"], self._fields_of(row["values"]))
            return described

    def describe(self, described: Described) -> None:
        """Start anew from name → fields.

        Raises
        ------
        InvalidExperiment
            It is no such mapping.
        """
        if not isinstance(described, Mapping) or not all(
            isinstance(name, str) and isinstance(fields, Mapping | BaseModel)
            for name, fields in described.items()
        ):
            raise InvalidExperiment(
                f"{self.part}: a mapping of name → fields is needed, as in an experiment, not "
                f"{given(described)}"
            )
        with self.lock:
            self.rows = [
                self._row({"name": name, **self._values_of(_plain(fields))})
                for name, fields in described.items()
            ]
            self._changed({})

    def follow(self, changed: Callable[[dict[str, str]], None]) -> None:
        """Call ``changed`` after each change, with former → new names, instead of checking."""
        self._changed = changed

    def edit(self, row: str, /, **values: object) -> None:
        """Change fields of the row of that name, as the page does."""
        with self.lock:
            number = self._id_of(row)
            for field, value in values.items():
                self._do_edit(number, field, value)

    def add(self) -> None:
        """Add a row, at home where none is yet, else where a first one would be."""
        with self.lock:
            number = len(set(self.names)) + 1
            while (name := f"{self.noun} {number}") in self.names:
                number += 1
            used = {row["values"][self.home] for row in self.rows}
            homes = [*(home for home in self._choices if home not in used), *self._choices]
            at_home = {self.home: homes[0]} if homes else {}
            self.rows = [*self.rows, self._row({"name": name, **self._values_of(at_home)})]
            self._changed({})

    def remove(self, name: str) -> None:
        """Take a row away."""
        with self.lock:
            self._do_remove(self._id_of(name))

    def _id_of(self, name: str) -> int:
        require_kind("name", name, str)
        if name not in self.names:
            names = ", ".join(map(repr, self.names))
            raise InvalidExperiment(f"{self.part}: there is no {name!r}; there are {names}")
        return int(self.rows[self.names.index(name)]["id"])

    def rename(self, field: str, renamed: Mapping[str, str]) -> None:
        """Let ``field`` of every row follow names that changed elsewhere."""
        with self.lock:
            self.rows = [
                {**row, "values": row["values"] | {field: _followed(row["values"][field], renamed)}}
                for row in self.rows
            ]

    # -- what is wrong ------------------------------------------------------------------
    def check(self) -> None:
        """Judge the table by itself, as an experiment would."""
        with self.lock:
            problems: Problems = {}
            try:
                Experiment.from_dict(self._alone())
            except InvalidExperiment as error:
                problems = error.problems
            self.show(problems)

    def show(self, problems: Problems) -> None:
        """Put problems of an experiment beside the fields that they are about."""
        with self.lock:
            rows, seen = [], set()
            for row in self.rows:
                name = row["values"]["name"]
                wrong: dict[str, str] = {}
                if name in seen:
                    wrong["name"] = f"two rows are called {clean(name, 40)!r}"
                else:
                    for path, words in problems.items():
                        if path[:2] == (self.part, name):
                            wrong[self._field_at(path)] = words
                seen.add(name)
                if not isinstance(name, str) or not name.strip():
                    wrong["name"] = "it needs a name"
                values = row["values"]
                shown = {"options": self._options(values), "line": self._line(values)}
                rows.append({**row, "problems": wrong, **shown})
            with self.hold_sync():
                self.error = problems.get((self.part,), "") if rows else "at least one is needed"
                self.rows = rows

    def _field_at(self, path: tuple[str, ...]) -> str:
        """Return the field that a path is about; empty where it is the row as a whole."""
        shown = {described["name"] for described in self.fields}
        return path[2] if len(path) > 2 and path[2] in shown else ""

    def _require_valid(self) -> None:
        if not self.is_valid:
            raise InvalidExperiment(self.said)

    def _require_known(self, names: Iterable[str], field_names: Iterable[str]) -> None:
        unknown = [name for name in names if name not in field_names]
        if unknown:
            raise InvalidExperiment(
                f"{self.part}: {given(unknown[0])} is no field of a {self.noun}; there are "
                + ", ".join(map(repr, field_names))
            )

    # -- what subclasses say -------------------------------------------------------------
    def _fields(self) -> list[Field]:
        """Describe the fields of a row."""
        raise NotImplementedError

    def _values_of(self, fields: Values) -> Values:
        """Return what the fields of a row show."""
        raise NotImplementedError

    def _fields_of(self, values: Values) -> Values:
        """Return what an experiment is told of a row."""
        raise NotImplementedError

    def _alone(self) -> Values:
        """Return an experiment in which nothing can be wrong but this table."""
        raise NotImplementedError

    def _line(self, values: Values) -> str:
        """Say in one line what a row is, whatever its values are."""
        raise NotImplementedError

    def _options(self, values: Values) -> Values:
        """Return the options of fields that have their own in each row."""
        del values
        return {}

    def _follow_names(self, renamed: Mapping[str, str]) -> None:
        """Let rows follow others that were renamed."""

    # -- what the page sends ------------------------------------------------------------
    def _row(self, values: Values) -> Values:
        return {"id": next(self._ids), "values": values, "problems": {}, "options": {}, "line": ""}

    def _do_edit(self, id: int, field: str, value: object) -> None:  # noqa: A002 - the page's word
        names = self.names
        renamed: dict[str, str] = {}
        kind = {described["name"]: described["type"] for described in self.fields}.get(field)
        if kind == "several":
            value = [str(item) for item in value] if isinstance(value, list) else []
        elif kind == "text" or isinstance(value, list | dict):
            value = str(value)
        rows = []
        for row in self.rows:
            values = row["values"]
            if row["id"] == id and field in values:
                is_unique = names.count(values["name"]) == 1
                if field == "name" and is_unique and value not in names:
                    renamed = {values["name"]: str(value)}
                values = {**values, field: value}
            rows.append({**row, "values": values})
        self.rows = rows
        self._follow_names(renamed)
        self._changed(renamed)

    _do_add = add

    def _do_remove(self, id: int) -> None:  # noqa: A002 - the page's word
        self.rows = [row for row in self.rows if row["id"] != id]
        self._changed({})


def _plain(fields: Mapping[str, object] | BaseModel) -> Values:
    return fields.model_dump() if isinstance(fields, BaseModel) else dict(fields)


def _followed(value: object, renamed: Mapping[str, str]) -> object:
    if isinstance(value, list):
        return [renamed.get(name, name) for name in value]
    return renamed.get(value, value) if isinstance(value, str) else value
