"""Raising an exception at a line of the package that runs: at each one, in turn."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path

import gpuscope

_PACKAGE = Path(gpuscope.__file__).parent


class RaiseAt:
    """Raise ``error`` before the n-th line that this thread reaches in some rooms of the package.

    A line counts when it is reached for the first time. A bare ``try:`` does not: it calls nothing,
    so that Python handles no signal there, and an exception that a trace function raises there
    would leave the locks around it locked. So would one where a ``with`` block is left.

    Parameters
    ----------
    rooms
        Paths under the package, such as ``"record"``.
    """

    def __init__(self, number, error, *rooms):
        self.error = error
        self.left = number
        self._reached = set()
        self._paths = tuple(str(_PACKAGE / room) for room in rooms)

    @property
    def raised(self):
        return self.left <= 0

    def __enter__(self):
        sys.settrace(self._call)
        return self

    def __exit__(self, kind, error, traceback):
        sys.settrace(None)
        return error is self.error

    def _call(self, frame, event, arg):
        if self.left > 0 and frame.f_code.co_filename.startswith(self._paths):
            return self._line
        return None

    def _line(self, frame, event, arg):
        place = frame.f_code, frame.f_lineno
        if event == "line" and self.left > 0 and place not in self._reached:
            self._reached.add(place)
            text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            self.left -= text.strip() != "try:"
            if not self.left:
                sys.settrace(None)
                raise self.error
        return self._line
