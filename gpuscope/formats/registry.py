"""Every trace format there is: the built-in ones, then those of plugins."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from gpuscope._checks import SeveralOf, door
from gpuscope._plugins import Plugins
from gpuscope.errors import ExportError, GpuscopeError
from gpuscope.formats.builtin import BUILT_IN
from gpuscope.formats.format import Format

_F = TypeVar("_F", bound=Callable[..., object])


def _wrong(_name: str, value: object) -> str:
    """Return why an object is no format of another package; empty if it is."""
    if not isinstance(value, Format):
        return f"it is a {type(value).__name__}, not a gpuscope.formats.Format"
    for built_in in BUILT_IN:
        if taken := set(built_in.suffixes) & set(value.suffixes):
            return f"{min(taken)} is a suffix of {built_in.name}"
    return ""


_PLUGINS: Plugins[Format] = Plugins("gpuscope.formats", "format", _wrong)


@functools.cache
def _plugged() -> tuple[tuple[Format, ...], tuple[str, ...]]:
    """Return the formats of plugins, in the order of their names, and why others are not there."""
    formats: list[Format] = []
    problems = _PLUGINS.problems()
    owners: dict[str, str] = {}
    for name, value in _PLUGINS.usable().items():
        origin = f"plugin {name!r} of package {_PLUGINS.package(name)!r}"
        taken = [suffix for suffix in value.suffixes if suffix in owners]
        if taken:
            problems.append(f"{origin} claims {taken[0]}, a suffix of {owners[taken[0]]}")
            continue
        formats.append(replace(value, origin=origin))
        owners |= dict.fromkeys(value.suffixes, formats[-1].label)
    return tuple(formats), tuple(problems)


def known_formats() -> tuple[Format, ...]:
    """Return every format, the built-in ones first.

    Examples
    --------
    >>> from gpuscope.formats import known_formats
    >>> [known.name for known in known_formats()][:2]
    ['Chrome trace JSON', 'Nsight Systems SQLite']
    """
    return BUILT_IN + _plugged()[0]


def problems() -> tuple[str, ...]:
    """Return, by name, why plugins could not be loaded.

    Examples
    --------
    >>> from gpuscope.formats import problems
    >>> problems()
    ()
    """
    return _plugged()[1]


def forget_plugins() -> None:
    """Search for plugins again at the next use, for example after an installation in a notebook.

    Examples
    --------
    >>> from gpuscope.formats import forget_plugins
    >>> forget_plugins()
    """
    _PLUGINS.forget()
    _plugged.cache_clear()


def suffixes(way: str = "write") -> str:
    """Return the suffixes of all formats that have ``write`` or another way, for messages."""
    able = (
        trace_format for trace_format in known_formats() if getattr(trace_format, way) is not None
    )
    return ", ".join(suffix for trace_format in able for suffix in trace_format.suffixes)


def of_suffix(name: str) -> Format | None:
    """Return the format that the end of a file's name says: the longest suffix wins.

    Plugins are imported only if one may have a longer suffix than the built-in formats.
    """
    name = name.lower()
    end = name[name.find(".", 1) :]
    for built_in in BUILT_IN:
        if end in built_in.suffixes:
            return built_in
    owners = {
        suffix: trace_format for trace_format in known_formats() for suffix in trace_format.suffixes
    }
    ends = [suffix for suffix in owners if name.endswith(suffix) and name != suffix]
    return owners[max(ends, key=len)] if ends else None


def with_problems(text: str) -> str:
    """Return a message with what is wrong with plugins at its end: the format may be theirs."""
    return "; ".join([text, *problems()])


@contextmanager
def naming(used: Format) -> Iterator[None]:
    """Name the plugin in errors that its code raises; those of built-in formats stay.

    Raises
    ------
    ExportError
        A plugin raised something that is no error of ours.
    """
    try:
        yield
    except GpuscopeError:
        raise
    except Exception as error:
        if not used.origin:
            raise
        raise ExportError(
            f"{used.label} failed ({type(error).__name__}: {error}): nothing was left under that "
            "name that was not there before. Tell its authors, or export to another format"
        ) from error


def with_table(function: _F) -> _F:
    """Put a list of the built-in formats where a docstring has ``{table:write}`` or ``read``."""
    for way in ("read", "write"):
        items = (
            f"- ``{'``, ``'.join(built_in.suffixes)}``: {built_in.name}. {built_in.description}"
            for built_in in BUILT_IN
            if way in built_in.ways
        )
        placeholder = f"{{table:{way}}}"
        function.__doc__ = (function.__doc__ or "").replace(placeholder, "\n    ".join(items))
    return function


@door(known=SeveralOf(Format))
def table(known: Iterable[Format] = BUILT_IN) -> str:
    """Return a Markdown table of formats.

    Parameters
    ----------
    known
        The formats; the built-in ones if none are given.

    Examples
    --------
    >>> from gpuscope.formats import table
    >>> print(table().splitlines()[8])
    | `.csv` | CSV | write | The spans as a table, times as whole ns; without edges and metadata. |
    """
    rows = []
    for shown in known:
        ends = ", ".join(f"`{suffix}`" for suffix in shown.suffixes)
        rows.append(f"| {ends} | {shown.label} | {shown.ways} | {shown.description} |")
    return "\n".join(["| Suffix | Format | gpuscope can | |", "| --- | --- | --- | --- |", *rows])
