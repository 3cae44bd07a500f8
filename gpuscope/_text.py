"""Foreign text made harmless: names in traces may come from anywhere."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Mapping

_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_UNSAFE_CATEGORIES = ("Cc", "Cs", "Zl", "Zp")
_ARGUMENTS, _PARAMETERS = (
    re.compile(words) for words in (r"<(?!…>)(?:[^<>]|<…>)*>", r"(?<=>) ?\([^()]+\)")
)
_FOREIGN = 2000
"""Characters of a text that is looked at; longer ones lose their middle first."""
UNITS_NS = {"s": 10**9, "ms": 10**6, "µs": 10**3, "ns": 1}
"""Unit of time → ns in it, the longest first."""


def clean(text: object, limit: int | None = None) -> str:
    r"""Return foreign text on one line, without characters that reorder or break it.

    Bidirectional controls, control characters and lone surrogates become U+FFFD, so that
    it shows that something stood there.

    Parameters
    ----------
    text
        What is shown as text.
    limit
        Longer text loses its middle, visibly.

    Examples
    --------
    >>> from gpuscope.extending import clean
    >>> clean("two\nlines"), clean("a very long name", 9)
    ('two lines', 'a ve…name')
    """
    line = str(text)
    if limit is not None and len(line) > limit:  # before it is looked at: it may be very long
        head = limit // 2
        line = f"{line[:head]}…{line[len(line) - (limit - head - 1) :]}"
    if line.isprintable():
        return line
    return "".join(
        " " if char in "\t\n\r" else "\ufffd" if _is_unsafe(char) else char for char in line
    )


def shortened(text: object, limit: int, most: int | None = None) -> str:
    """Return foreign text like :func:`clean`: above the limit without C++ template arguments.

    If it is longer than ``most`` even so, it loses its middle; ``most`` is the limit if not given.
    """
    line, before = clean(text, max(limit, _FOREIGN)), ""
    if len(line) > limit:
        while line != before:
            before, line = line, _ARGUMENTS.sub("<…>", line)
        line = _PARAMETERS.sub("(…)", line)
    return clean(line, most or limit)


def clean_lines(text: object) -> str:
    """Return text of several lines, each of them clean."""
    return "\n".join(map(clean, str(text).split("\n")))


def _is_unsafe(char: str) -> bool:
    return char in _BIDI or unicodedata.category(char) in _UNSAFE_CATEGORIES


def safe(text: object, limit: int | None = None) -> str:
    """Return foreign text for HTML: clean, and no markup."""
    return html.escape(clean(text, limit))


def shown(text: object, limit: int | None = None) -> str:
    """Return foreign text for HTML in a notebook, which typesets TeX: between tags only.

    A dollar or a backslash in an element of its own begins no formula, links in which could
    run scripts.
    """
    return _untypeset(safe(text, limit))


def shown_lines(text: str) -> str:
    """Return text of several lines for HTML in a notebook, for a ``<pre>``."""
    return _untypeset("\n".join(safe(line) for line in text.splitlines()))


def format_value(value: object, digits: int = 4) -> str:
    """Write one value for people: a dash for nothing, few digits, thousands apart."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.{digits}g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def counted(counts: Mapping[str, int]) -> str:
    """Write how many there are of each kind: ``"3 kernel, 1 memcpy"``."""
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items())


def stream_label(name: object, limit: int | None = None) -> str:
    """Return a stream's name so that it says what it is."""
    known = clean(name, limit)
    return known if "stream" in known else f"stream {known}"


def percent(share: float) -> str:
    """Write a share to three digits: almost all never as all."""
    if 0 < share < 1e-4:
        return "below 0.01 %"
    text = f"{100 * share:.3g} %"
    return "just under 100 %" if text == "100 %" and share < 1 else text


def duration(ns: float) -> str:
    """Write a duration with a unit that suits it, to four digits."""
    for unit, unit_ns in UNITS_NS.items():
        if abs(ns) >= unit_ns:
            return f"{ns / unit_ns:.4g} {unit}"
    return f"{ns:.4g} ns"


def _untypeset(found: str) -> str:
    return found.replace("\\", "<span>\\</span>").replace("$", "<span>$</span>")
