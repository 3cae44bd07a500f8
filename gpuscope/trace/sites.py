"""Launch sites as traces hold them: the lines of Python that made a call."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import msgspec


class Line(NamedTuple):
    """One line of a site."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


_decode = msgspec.json.Decoder(tuple[Line, ...]).decode


@cache
def lines_of(site: str | None) -> tuple[Line, ...]:
    """Return a site's lines, innermost first; none of what is no site."""
    try:
        return _decode(site) if site else ()
    except msgspec.MsgspecError:  # a foreign file may hold anything
        return ()


def site_words(site: str | None) -> str:
    """Return a site in words, ``"train.py:42 in step, from train.py:80 in main"``, or nothing."""
    return ", from ".join(map(str, lines_of(site)))
