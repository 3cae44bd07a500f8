"""Errors of CUDA libraries, as ones of ours that say what failed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from gpuscope.errors import GpuscopeError


class Status(Protocol):
    """What a call of cuda.bindings returns first."""

    @property
    def name(self) -> str:
        """Its name in CUDA."""

    def __int__(self) -> int:
        """Return its number; 0 is success."""


def check(result: tuple[Status, ...], what: str) -> None:
    """Raise unless a call of cuda.bindings succeeded."""
    status = result[0]
    if int(status) != 0:
        raise GpuscopeError(f"the driver refuses to {what} ({status.name})")


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn an error of a CUDA library into one of ours that says what failed."""
    try:
        yield
    except GpuscopeError:
        raise
    except Exception as error:
        raise GpuscopeError(f"{what}: {error}") from error
