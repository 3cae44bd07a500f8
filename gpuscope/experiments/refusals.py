"""What is wrong with an experiment's description, field by field, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gpuscope._checks import given
from gpuscope._text import clean
from gpuscope.errors import InvalidExperiment

Place = tuple[str, ...]
"""The path of a field in a description."""


def refuse(path: Place, words: str) -> NoReturn:
    """Refuse a description for what stands at a place.

    Raises
    ------
    InvalidExperiment
        Always.
    """
    where = ".".join(path) or "the experiment"
    raise InvalidExperiment(clean(f"{where}: {words}"), {path: words})


_DEEPEST = 20
_LARGEST = (1 << 63) - 1
_LARGEST_ARG = 10**300
"""Of an argument of a function of the user's."""


def check_plain(fields: Mapping[str, object]) -> None:
    """Refuse texts and numbers that no file and no column can hold, wherever they stand.

    Before anything else looks at them: libraries fail in ways of their own.
    """
    todo: list[tuple[Place, object]] = [((), fields)]
    while todo:
        path, value = todo.pop()
        if len(path) > _DEEPEST:
            refuse(path[:3], f"is nested more than {_DEEPEST} deep, as no experiment is")
        if isinstance(value, str):
            if value != value.encode("utf-8", "replace").decode():
                refuse(path, f"{value!r} is not valid Unicode")
        elif isinstance(value, int):
            largest = _LARGEST_ARG if "args" in path else _LARGEST
            if not -largest <= value <= largest:
                refuse(path, f"should be {largest:.0e} at most, without its sign")
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                todo.append((path, key))
                todo.append(((*path, key if isinstance(key, str) else "?"), inner))
        elif isinstance(value, list | tuple):
            todo += [((*path, str(index)), inner) for index, inner in enumerate(value)]


def listed(names: Iterable[str], none: str = "none") -> str:
    """List names for a message."""
    return ", ".join(map(repr, names)) or none


def problems(
    error: ValidationError, fields: object, model_at: Callable[[Place], type[BaseModel]]
) -> dict[Place, str]:
    """Return for each wrong field what is allowed and what was found.

    Parameters
    ----------
    fields
        The description.
    model_at
        Returns the model that has the field at a place, for the names of its others.
    """
    texts: dict[Place, list[str]] = {}
    inputs: dict[Place, str] = {}
    for details in error.errors():
        value = details.get("input")
        path, allowed = _problem(details, fields, model_at)
        words = texts.setdefault(path, [])
        if allowed not in words:
            words.append(allowed)
        simple = details["type"] not in _WITHOUT_INPUT and not isinstance(
            value, Mapping | list | tuple
        )
        inputs[path] = f", but found {given(value)}" if simple else ""
    return {
        path: " or ".join(words).replace(" or should be ", " or ") + inputs[path]
        for path, words in texts.items()
    }


def explain(problems: Mapping[Place, str]) -> str:
    """Return the text of a refusal."""
    return "the experiment does not validate:\n" + "\n".join(
        clean(f"  {'.'.join(path)}: {words}") for path, words in problems.items()
    )


_TABLE, _WHOLE, _BOOL = ("should be " + w for w in ("a table", "a whole number", "true or false"))
_NEEDS = {
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), _TABLE),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), _WHOLE),
    **dict.fromkeys(("bool_type", "bool_parsing"), _BOOL),
    "string_type": "should be a text",
    "string_pattern_mismatch": "should be '#RRGGBB'",
    "missing": "missing; this field is required",
    "string_too_short": "'' is no name: it takes at least one character",
    "too_short": "at least one is needed",
    "list_type": "should be a list of names",
    "arg_type": "should be a text, a finite number, true or false",
}
_WITHOUT_INPUT = (
    "extra_forbidden",
    "missing",
    "kind",
    "value_error",
    "too_short",
    "string_too_short",
)


def _place(error: ErrorDetails, fields: object) -> Place:
    """Return the path of the field that is wrong.

    Pydantic adds which of several types it tried: that leads nowhere in the description.
    """
    path: list[str] = []
    for part in error["loc"]:
        try:
            fields = fields[part]  # type: ignore[index] # or it has no parts
        except (LookupError, TypeError):
            if error["type"] != "missing" and error["loc"][-1] != "[key]":
                break
        path.append(str(part))
    if error["type"] in ("string_too_short", "value_error") and path[-1:] == ["[key]"]:
        path = path[:-2]
    return (*path, "kind") if error["type"] == "kind" else tuple(path)


def _problem(
    error: ErrorDetails, fields: object, model_at: Callable[[Place], type[BaseModel]]
) -> tuple[Place, str]:
    """Return the path of the field that is wrong, and what it should be."""
    path = _place(error, fields)
    kind = error["type"]
    if path[:1] == ("workloads",) and path[2:3] == ("args",) and len(path) > 3:
        kind = "arg_type"
    if kind == "extra_forbidden":
        return path, f"unknown key; allowed: {listed(model_at(path).model_fields)}"
    if kind == "value_error":
        words = error["msg"].removeprefix("Value error, ")
        return path, words.removeprefix(f"{path[-1]} " if path else "")
    return path, _NEEDS.get(kind) or error["msg"].removeprefix("Input ")
