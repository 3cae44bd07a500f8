"""Named ranges: an NVTX range for any tool, and a row in the running recording."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

from gpuscope._checks import require_kind
from gpuscope.record import nvtx, recorder

_P = ParamSpec("_P")
_R = TypeVar("_R")


@lru_cache(maxsize=4096)
def _ranges_of(name: str) -> tuple[str, Any, Callable[[Any], Any], Callable[[], Any]]:
    """Return a name as NVTX can take it, its NVTX attributes, and what pushes and pops."""
    # NVTX takes UTF-8; a lone surrogate must not stop the program that names something.
    text = name if name.isascii() else name.encode("utf-8", "replace").decode()
    domain = nvtx.domain()
    return text, domain.get_event_attributes(message=text), domain.push_range, domain.pop_range


class annotate:  # noqa: N801 - used like a function, as nvtx.annotate is
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

    __slots__ = ("_open", "_pushed", "_range")

    def __init__(self, name: str) -> None:
        if type(name) is not str:  # asked here, as this is on the launch path
            require_kind("name", name, str)
        self._range = _ranges_of(name)
        self._open: Any = None
        self._pushed = 0

    def __enter__(self) -> annotate:
        if nvtx.heard:
            self._range[2](self._range[1])
            self._pushed += 1
        if recorder.running:
            name = self._range[0]
            opened = [(log, log.begin(name)) for log in recorder.running]
            self._open = [*(self._open or ()), opened]
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            for log, number in self._open.pop():
                log.end(number)
        if self._pushed:
            self._pushed -= 1
            self._range[3]()

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """Name every call of ``function``."""
        name = self._range[0]

        @wraps(function)
        def named(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with annotate(name):
                return function(*args, **kwargs)

        return named
