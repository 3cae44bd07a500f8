"""Arithmetic on the window of time in view, in whole ns, and the ticks of its axis."""

from __future__ import annotations

from gpuscope.timeline.style import Properties

Window = tuple[int, int]

LEAST_NS = 20
"""The narrowest view."""
_TICKS = (2, 8)
"""Of a view: least and most."""
_TICK_PX = 90
"""For a label, at least."""
_UNITS = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))


def clamped(window: Window, extent: Window) -> Window:
    """Return the window of the same width that lies inside ``extent``, or all of that."""
    low, high = window
    width = max(high - low, LEAST_NS)
    if width >= extent[1] - extent[0]:
        return extent[0], max(extent[1], extent[0] + LEAST_NS)
    low = min(max(low, extent[0]), extent[1] - width)
    return low, low + width


def zoomed(window: Window, by: float, at: float, extent: Window) -> Window:
    """Return a window ``by`` times as wide, in which the point ``at`` stays where it is.

    Parameters
    ----------
    at
        0 is the left edge, 1 the right one.
    """
    low, high = window
    width = max(LEAST_NS, round((high - low) * by))
    low += round((high - low - width) * at)
    return clamped((low, low + width), extent)


def panned(window: Window, by: float, extent: Window) -> Window:
    """Return the window moved by ``by`` times its width."""
    shift = round((window[1] - window[0]) * by)
    return clamped((window[0] + shift, window[1] + shift), extent)


def widened(window: Window, by: float) -> Window:
    """Return the window with ``by`` times its width more on either side."""
    more = round((window[1] - window[0]) * by)
    return window[0] - more, window[1] + more


def around(window: Window, span: Window, extent: Window) -> Window:
    """Return a window in which a span is in the middle and can be seen.

    The window stays where it holds the whole span already, wide enough to be seen.
    """
    width, lasts = window[1] - window[0], span[1] - span[0]
    is_wide = 200 * lasts >= width or not lasts
    if is_wide and window[0] <= span[0] and span[1] <= window[1]:
        return window
    if lasts > width:
        width = 2 * lasts
    elif not is_wide:
        width = 40 * lasts
    middle = (span[0] + span[1]) // 2
    return clamped((middle - width // 2, middle - width // 2 + width), extent)


def axis_ticks(window: Window, over: Window, zero_ns: int, pixels: int) -> Properties:
    """Return the ticks of a time axis in µs since ``zero_ns``.

    Far from zero the labels count from a round time, which the axis' title states.

    Parameters
    ----------
    over
        Where ticks are made: more than the window, so that they are there while it is dragged.
    pixels
        Width of the window in px.
    """
    width = window[1] - window[0]
    unit, unit_ns = next(pair for pair in _UNITS if width >= 2 * pair[1] or pair[1] == 1)
    least, most = _TICKS
    step = _nice_step(width / min(max(pixels // _TICK_PX, least), most))
    base = 0
    low = window[0] - zero_ns
    if abs(low) > 1000 * width:
        coarse = _nice_step(20 * width)
        base = low // coarse * coarse
    first = -((base + zero_ns - over[0]) // step) * step + base
    places = range(first, over[1] - zero_ns + 1, step)
    digits = max(0, len(str(int(unit_ns))) - 1 - _zeros(step))
    since = "the start" if not base else f"{_exactly(base)} after the start"
    return {
        "tickmode": "array",
        "tickvals": [place / 1e3 for place in places],
        "ticktext": [f"{(place - base) / unit_ns:,.{digits}f}" for place in places],
        "title.text": f"time since {since} ({unit})",
    }


def _nice_step(at_least: float) -> int:
    """Return 1, 2 or 5 times a power of ten, in whole ns."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power >= at_least:
                return factor * power
        power *= 10


def _zeros(number: int) -> int:
    text = str(number)
    return len(text) - len(text.rstrip("0"))


def _exactly(ns: int) -> str:
    for unit, unit_ns in _UNITS:
        if ns % (unit_ns / 1000) == 0 and abs(ns) >= unit_ns:
            return f"{ns / unit_ns:,.3f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{ns:,} ns"
