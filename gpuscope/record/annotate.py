"""Named ranges: an NVTX range for any tool, and a row in the running recording."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import nvtx

from gpuscope.record import recorder

_P = ParamSpec("_P")
_R = TypeVar("_R")
_domain = nvtx.get_domain("gpuscope")


@lru_cache(maxsize=4096)
def _attributes(name: str) -> Any:
    return _domain.get_event_attributes(message=name)


class annotate:  # noqa: N801 - used like a function, as nvtx.annotate is
    """Name what happens inside: a context manager, or a decorator.

    Parameters
    ----------
    name
        Any text.

    Notes
    -----
    Pushes an NVTX range in the domain ``gpuscope``, so that Nsight shows it, and adds a
    row to every recording that is on, on that recording's clock.

    Examples
    --------
    >>> import gpuscope as gs
    >>> with gs.annotate("step 0"):
    ...     pass
    """

    __slots__ = ("_name", "_open")

    def __init__(self, name: str) -> None:
        # NVTX takes UTF-8; a lone surrogate must not stop the program that names something.
        self._name = name if name.isascii() else name.encode("utf-8", "replace").decode()
        self._open: list[tuple[recorder.Recording, int]] = []

    def __enter__(self) -> annotate:
        _domain.push_range(_attributes(self._name))
        running = recorder.running
        if running:
            self._open += [(one, one.range_begins(self._name)) for one in running]
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        while self._open:
            one, number = self._open.pop()
            one.range_ends(number)
        _domain.pop_range()

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """Name every call of ``function``."""

        @wraps(function)
        def named(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with annotate(self._name):
                return function(*args, **kwargs)

        return named
