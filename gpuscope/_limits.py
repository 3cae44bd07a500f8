"""Limits on columns as budgets and tunings write them: ``"<= 120"``, ``">= 80 %"``."""

from __future__ import annotations

import math
import re
from typing import Literal, TypeAlias

from gpuscope._checks import given
from gpuscope._columns import Column
from gpuscope.errors import InvalidArgument

Sign: TypeAlias = Literal["<=", ">="]
_LIMIT = re.compile(r"\s*(<=|>=)\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*(%?)\s*")
_SHARE = re.compile(r"\s*(\d+(?:\.\d*)?)\s*%\s*")
_SIGNS: dict[int, tuple[Sign, ...]] = {1: (">=",), -1: ("<=",), 0: ("<=", ">=")}
"""Which way is better → how its limits begin."""
_AT_MOST_ALL = ("idle_share", "overlap", "overlap_tight")
"""Shares of a whole: none is more than 1."""
_TIMES = ("ns", "µs", "ms", "s")


def limit_of(where: str, column: Column, text: object) -> tuple[Sign, float]:
    """Read a limit on a column: its sign, and its value in the column's unit.

    Parameters
    ----------
    where
        What the limit stands at, for errors.

    Raises
    ------
    InvalidArgument
        It is no limit, is in another unit, or always or never holds.
    """
    match = _LIMIT.fullmatch(text) if isinstance(text, str) else None
    signs = _SIGNS[column.better]
    if match is None:
        examples = " or ".join(f"'{sign} {_example(column)}'" for sign in signs)
        raise InvalidArgument(f"{where} is {given(text)}; a text such as {examples} is needed")
    sign: Sign = ">=" if match[1] == ">=" else "<="
    if sign not in signs:
        way = "more" if column.better > 0 else "less"
        raise InvalidArgument(
            f"{where} is {given(text)}: of {column.key} {way} is better: its limit begins with "
            f"{signs[0]}"
        )
    if match[3] and column.unit not in ("", "%"):
        raise InvalidArgument(
            f"{where} is {given(text)}: {column.key} is in {column.unit}, not in per cent: give a "
            f"number of {column.unit}"
        )
    value = float(match[2]) / (100 if match[3] else 1)
    if not math.isfinite(value):
        raise InvalidArgument(f"{where} is {given(text)}; a finite number is needed")
    if never := _never_tells(column, sign, value):
        raise InvalidArgument(f"{where} is {given(text)}: {never}")
    return sign, value


def worse_of(where: str, column: Column, text: object) -> float:
    """Read by which share a column may be worse than before.

    Raises
    ------
    InvalidArgument
        It is no share, or the column is neither better nor worse.
    """
    if not column.better:
        raise InvalidArgument(f"{where}: {column.key} is neither better nor worse")
    match = _SHARE.fullmatch(text) if isinstance(text, str) else None
    if match is None or not math.isfinite(float(match[1])):
        raise InvalidArgument(f"{where} is {given(text)}; a share such as '5 %' is needed")
    share = float(match[1]) / 100
    if column.better > 0 and share >= 1:
        raise InvalidArgument(
            f"{where} is {given(text)}: nothing is worse by more than all of it: less than 100 % "
            "is needed"
        )
    return share


def _never_tells(column: Column, sign: Sign, value: float) -> str:
    """Say why a limit always or never holds; nothing if it can do either."""
    if sign == ">=" and value == 0 and column.key not in ("low", "high"):
        return "it always holds: nothing is less than 0"
    if sign == "<=" and value == 0 and column.unit in _TIMES:
        return "it never holds: everything takes longer than 0"
    if column.key in _AT_MOST_ALL and sign == "<=" and value == 1:
        return f"it always holds: {column.key} is a share"
    if column.key in _AT_MOST_ALL and value > 1:
        held = "always" if sign == "<=" else "never"
        return f"it {held} holds, as {column.key} is a share: '{sign} {value:g} %' is meant?"
    return ""


def _example(column: Column) -> str:
    return "80 %" if column.unit == "%" else "0.8" if not column.unit else "120"
