"""The points of a grid of parameters: which there are, and the experiment at each."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from gpuscope._checks import given
from gpuscope._text import clean
from gpuscope.device.carve import SmLayout
from gpuscope.errors import InvalidExperiment
from gpuscope.experiments.experiment import Experiment
from gpuscope.experiments.refusals import listed

Value = bool | int | float | str
"""What a parameter takes."""
Point = Mapping[str, Value]
"""Path into the description → the value there."""
ALL = "all"
Varied: TypeAlias = Mapping[str, Sequence[Value] | Literal["all"]]
"""Path → values to try; of a partition ``"all"``: every number of whole quanta."""
_Table: TypeAlias = dict[str, Any]
"""A table of a description, as JSON holds it."""


def points_of(parameters: Mapping[str, Sequence[Value]]) -> list[dict[str, Value]]:
    """Return the points of a grid; the last parameter varies fastest."""
    chosen = itertools.product(*parameters.values())
    return [dict(zip(parameters, values, strict=True)) for values in chosen]


def labelled(point: Point) -> str:
    """Return a point in words."""
    return ", ".join(f"{name} = {value}" for name, value in point.items())


# -- parameters ---------------------------------------------------------------------------
def checked(
    parameters: Mapping[str, Sequence[object] | str], layout: SmLayout
) -> dict[str, tuple[Value, ...]]:
    """Return path → plain values.

    Parameters
    ----------
    layout
        That of the GPU whose quanta ``"all"`` means.

    Raises
    ------
    InvalidExperiment
        They are no paths with values.
    """
    if not isinstance(parameters, Mapping) or not parameters:
        raise InvalidExperiment(
            "parameters: name at least one, as a dict of path → values, such as "
            "{'partitions.small': [8, 16]}"
        )
    values_of = {}
    for path, sought in parameters.items():
        values: object = sought
        if not isinstance(path, str):
            raise InvalidExperiment(f"parameters: {given(path)} is no path of a field")
        if isinstance(sought, str) and sought == ALL and path.startswith("partitions."):
            values = [n * layout.quantum_sm_count for n in range(1, layout.quanta + 1)]
            if not layout.remainder_sm_count:
                values.pop()  # nothing would be left
        is_single = isinstance(values, np.ndarray) and not values.ndim
        if is_single or isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise InvalidExperiment(
                f"{clean(path)}: its values are a list, not {given(sought)}; of a partition, also "
                "'all'"
            )
        plain = [value.item() if isinstance(value, np.generic) else value for value in values]
        odd = [given(value) for value in plain if not isinstance(value, Value)]
        if odd or not plain:
            raise InvalidExperiment(
                f"{clean(path)}: its values are numbers or texts, but found {[*odd, 'none'][0]}"
            )
        values_of[path] = tuple(plain)
    return values_of


def at(experiment: Experiment, point: Point) -> Experiment:
    """Return the experiment with a point's values in it."""
    data = experiment.to_dict()
    for path, value in point.items():
        for table, key in _places(data, path):
            table[key] = value
    try:
        return Experiment.from_dict(data)
    except InvalidExperiment as error:
        where = ", ".join(f"{clean(path)} = {given(value)}" for path, value in point.items())
        raise InvalidExperiment(f"at {where}: {error}") from error


def _places(data: _Table, path: str) -> list[tuple[_Table, str]]:
    """Return every table that the path means, with the key in it."""
    top, _, name = path.partition(".")
    if top != "partitions":
        return [_place(data, path, path)]
    carved = [data["partitions"], *(setting["partitions"] for setting in data["settings"].values())]
    places = [(sizes, name) for sizes in carved if sizes and name in sizes]
    if not places:
        names = dict.fromkeys(key for sizes in carved for key in sizes or ())
        raise InvalidExperiment(
            f"{clean(path)}: no setting carves a partition {name!r}; there are: {listed(names)}"
        )
    return places


def _place(table: _Table, rest: str, path: str) -> tuple[_Table, str]:
    """Follow a path; names may have dots in them."""
    for key in sorted(table, key=len, reverse=True):
        inside = table[key]
        if rest == key and not isinstance(inside, dict):
            return table, key
        if rest == key:
            raise InvalidExperiment(
                f"{clean(path)}: this is a table; name a field in it: {listed(inside)}"
            )
        if rest.startswith(f"{key}.") and isinstance(inside, dict):
            return _place(inside, rest[len(key) + 1 :], path)
    where = path.removesuffix(rest).rstrip(".") or "the experiment"
    raise InvalidExperiment(f"{clean(path)}: {where} has no {rest!r}; there are: {listed(table)}")
