"""Bases of what stands for something outside Python: it has no copies, and it is closed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import NoReturn, Protocol, Self


class Closable(Protocol):
    """Anything that is closed together with others."""

    def close(self) -> None:
        """Release it."""


class Unique:
    """Base of what cannot be copied or pickled: a copy would destroy the same thing again."""

    __slots__ = ()

    def _refuse_copy(self, *_: object) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled: it stands for one thing of "
            "this process. Pass it on itself, or make another"
        )

    __copy__ = __deepcopy__ = __reduce__ = _refuse_copy
    __reduce_ex__ = _refuse_copy


class Closing(Unique):
    """Base of what is held in ``with``: leaving the block closes it, also on an exception."""

    __slots__ = ()

    def require_open(self) -> None:
        """Raise :class:`ClosedError` if it cannot be entered any more."""

    def close(self) -> None:
        """Release it. Idempotent."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.require_open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def call_all(acts: Iterable[Callable[[], object]]) -> None:
    """Call each, also when one fails; then raise the first error, an interrupt before others."""
    first: BaseException | None = None
    for act in acts:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - the others must still be called
            first = error if first is None or not isinstance(error, Exception) else first
    if first is not None:
        raise first


def close_all(items: Iterable[Closable]) -> None:
    """Close every item, also when one fails; then raise the first error."""
    call_all(item.close for item in items)


def warn_unclosed(item: object, what: str) -> None:
    """Warn of something that a destructor had to close; ``what`` ends in "hold it"."""
    warnings.warn(
        f"{what} in a with block, or call close()", ResourceWarning, stacklevel=3, source=item
    )
