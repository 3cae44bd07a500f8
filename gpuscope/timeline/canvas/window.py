"""Arithmetic on the window of time in view, in whole ns."""

from __future__ import annotations

Window = tuple[int, int]

LEAST_NS = 20
"""The narrowest view."""


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
