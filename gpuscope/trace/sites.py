"""Launch sites as traces hold them: the lines of Python that made a call."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import msgspec

CELL = "cell In["
"""What the file of a line begins with where that is a cell of a notebook, ``"cell In[3]"``."""


class SiteLine(NamedTuple):
    """One line of a site."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        where = f"{self.file}, line {self.line}" if self.is_in_cell else f"{self.file}:{self.line}"
        is_outside = self.is_in_cell and self.function == "<module>"
        return where if is_outside else f"{where} in {self.function}"

    @property
    def is_in_cell(self) -> bool:
        """Whether a cell of a notebook has it, and no file."""
        return self.file.startswith(CELL)


_decode = msgspec.json.Decoder(tuple[SiteLine, ...]).decode


@cache
def lines_of(site: str | None) -> tuple[SiteLine, ...]:
    """Return a site's lines, innermost first; none of what is no site."""
    try:
        return _decode(site) if site else ()
    except msgspec.MsgspecError:  # a foreign file may hold anything
        return ()


def site_words(site: str | None) -> str:
    """Return a site in words, ``"train.py:42 in step, from train.py:80 in main"``, or nothing."""
    return ", from ".join(map(str, lines_of(site)))
