"""Named ranges: an NVTX range for any tool, and a row in the running recording."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Self, TypeAlias, TypeVar

from gpuscope._checks import require_kind
from gpuscope._compiled import fastpath as _fastpath
from gpuscope.record import nvtx, ranges
from gpuscope.record.ranges import RangeLog

_P = ParamSpec("_P")
_R = TypeVar("_R")

_Opened: TypeAlias = list[tuple[RangeLog, int]]
"""Rows that one entering opened: whose, and their ids."""


class _Range(NamedTuple):
    """What a name needs to become an NVTX range."""

    text: str
    attributes: Any
    push: Callable[[Any], object]
    pop: Callable[[], object]


@lru_cache(maxsize=4096)
def range_of(name: str) -> _Range:
    """Return what makes a name an NVTX range, and the text as NVTX takes it."""
    # NVTX takes UTF-8; a lone surrogate must not stop the program that names something.
    text = name if name.isascii() else name.encode("utf-8", "replace").decode()
    domain = nvtx.domain()
    attributes = domain.get_event_attributes(message=text)
    return _Range(text, attributes, domain.push_range, domain.pop_range)


class _PythonRange:
    """What ``Range`` of ``_ranges.c`` does, where that is not compiled."""

    __slots__ = ("_open", "_pushed", "_range")

    def __init__(self, name: str) -> None:
        self._range = range_of(name) if type(name) is str else self._check(name)
        self._open: list[_Opened] | None = None
        self._pushed = 0

    def __enter__(self) -> Self:
        if nvtx.heard:
            self._range.push(self._range.attributes)
            self._pushed += 1
        if ranges.running:
            self._begin_rows()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._open:
            self._end_rows()
        if self._pushed:
            self._pushed -= 1
            self._range.pop()

    def _check(self, name: object) -> _Range:
        raise NotImplementedError

    def _begin_rows(self) -> None:
        raise NotImplementedError

    def _end_rows(self) -> None:
        raise NotImplementedError


_Base = _PythonRange
if not TYPE_CHECKING and _fastpath is not None:
    _fastpath.serve_ranges(vars(nvtx), vars(ranges), globals())
    _Base = _fastpath.Range


class annotate(_Base):  # noqa: N801 - used like a function, as nvtx.annotate is
    """Name a range of the program; a context manager or a decorator.

    Parameters
    ----------
    name
        Any text.

    Notes
    -----
    Pushes an NVTX range in the domain ``gpuscope``, which Nsight shows, and adds a row to every
    running recording, on that recording's clock. A recording with CUPTI takes this row from NVTX.

    Examples
    --------
    >>> import gpuscope as gs
    >>> with gs.annotate("step 0"):
    ...     pass
    """

    __slots__ = ()

    def _check(self, name: object) -> _Range:
        require_kind("name", name, str)
        return range_of(str(name))

    def _begin_rows(self) -> None:
        """Open a row in each recording that is on."""
        opened = [(log, log.begin(self._range.text)) for log in ranges.running]
        self._open = [*(self._open or ()), opened]

    def _end_rows(self) -> None:
        """Close the rows that were opened last."""
        for log, number in self._open.pop() if self._open else ():
            log.end(number)

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """Name every call of ``function``."""
        name = self._range.text

        @wraps(function)
        def named(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with annotate(name):
                return function(*args, **kwargs)

        return named
