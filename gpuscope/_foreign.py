"""Foreign TOML and JSON: the one reader of it, within limits of size, depth and digits.

What people, other programs and earlier runs wrote is read here. Not here: traces
(:mod:`gpuscope.formats` reads those of gigabytes, within limits of its own) and texts in their
columns, which are decoded one by one where they are looked at.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias

Form: TypeAlias = Literal["TOML", "JSON"]
WRITTEN_BYTES = 1 << 20
"""Of what people write."""
MADE_BYTES = 100_000_000
"""Of what programs write; a notebook with all its figures has some 5 MB."""
_DEEPEST = 100
"""Levels of lists and tables. Python's stack holds some 1000 calls, and what comes after the
reader may recurse, too."""
_MOST_DIGITS = 300
"""Of a whole number: floats hold as many."""
_LARGEST = 10**_MOST_DIGITS
_MOST_PARTS = 30
"""Of a key of TOML: tomllib looks at all of them once for each, which is minutes for thousands."""
_STRING = re.compile(r"""\"(?:\\.|[^"\\])*+\"|'[^']*+'""")
_PART = r"""(?:[\w-]++|"")[ \t]*+\.[ \t]*+"""
_LONG_KEY = re.compile(rf"(?<![\w-])(?:{_PART}){{{_MOST_PARTS}}}")


class Malformed(ValueError):
    """It is not TOML or not JSON, or exceeds a limit; says why, in a clause about "it".

    Examples
    --------
    >>> from gpuscope.extending import Malformed, loads
    >>> try:
    ...     loads("1" * 400)
    ... except Malformed as error:
    ...     print(error)
    it holds a whole number of more than 300 digits
    """


def load(path: Path, form: Form = "JSON", most_bytes: int = MADE_BYTES) -> Any:
    """Read a file.

    Parameters
    ----------
    path
        Of the file.
    form, most_bytes
        As of :func:`loads`.

    Raises
    ------
    OSError, ValueError
        It cannot be opened.
    Malformed
        As of :func:`loads`.

    Examples
    --------
    >>> from pathlib import Path
    >>> from gpuscope.extending import load, write_text
    >>> load(write_text(Path("facts.toml"), "a = 1"), "TOML")
    {'a': 1}
    """
    return loads(read_bytes(path, most_bytes), form, most_bytes)


def loads(text: str | bytes, form: Form = "JSON", most_bytes: int = MADE_BYTES) -> Any:
    """Read a text. A byte order mark in front is left out.

    Parameters
    ----------
    text
        As a text, or its bytes in UTF-8.
    form
        ``"JSON"`` or ``"TOML"``.
    most_bytes
        How long it may be.

    Raises
    ------
    Malformed
        It is not valid, or has too many characters, levels or digits.

    Examples
    --------
    >>> from gpuscope.extending import loads
    >>> loads('{"a": [1, 2]}')
    {'a': [1, 2]}
    """
    words = decoded(text) if isinstance(text, bytes) else text.removeprefix("\ufeff")
    if len(words) > most_bytes:
        raise Malformed(f"it has more than {most_bytes:,} characters")
    try:
        value = _toml(words) if form == "TOML" else json.loads(words, parse_constant=_refuse)
    except Malformed:
        raise
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        raise Malformed(str(error)) from error
    except ValueError:  # Python's own limit, of which it speaks in functions of sys
        raise Malformed(_TOO_MANY_DIGITS) from None
    except RecursionError:
        raise Malformed(_TOO_DEEP) from None
    _check(value)
    return value


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """Read a file that may have no end.

    Raises
    ------
    OSError, ValueError
        It cannot be opened.
    Malformed
        It is too long.
    """
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise Malformed(f"it has more than {most_bytes:,} bytes")
    return data


def decoded(data: bytes) -> str:
    """Return UTF-8 as a text, without a byte order mark.

    Raises
    ------
    Malformed
        It is not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Malformed(f"it is not UTF-8 text ({error}). Save it as UTF-8") from error


_TOO_MANY_DIGITS = f"it holds a whole number of more than {_MOST_DIGITS} digits"
_TOO_DEEP = f"it is nested more than {_DEEPEST} deep"


def _toml(text: str) -> dict[str, Any]:
    for line in text.split("\n"):
        bare = _STRING.sub('""', line).partition("#")[0]  # neither strings nor comments are keys
        if _LONG_KEY.search(bare):
            raise Malformed(f"it has a key of more than {_MOST_PARTS} parts")
    return tomllib.loads(text)


def _refuse(name: str) -> NoReturn:
    raise Malformed(f"{name} is no number of JSON")


def _check(value: object) -> None:
    """Refuse what readers fail on in ways of their own, level by level."""
    level: list[object] = [value]
    for _ in range(_DEEPEST + 1):
        below: list[object] = []
        for inner in level:
            if isinstance(inner, dict):
                below += inner
                below += inner.values()
            elif isinstance(inner, list):
                below += inner
            elif isinstance(inner, int) and not -_LARGEST < inner < _LARGEST:
                raise Malformed(_TOO_MANY_DIGITS)
            elif isinstance(inner, str) and not inner.isascii():
                _check_unicode(inner)
        if not below:
            return
        level = below
    raise Malformed(_TOO_DEEP)


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Malformed("it holds a text that is not valid Unicode") from None
