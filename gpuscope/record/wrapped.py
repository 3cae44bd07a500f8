"""Methods of other libraries' classes that tell of their calls while somebody listens."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from gpuscope.device.handles import Library

FAILED = object()
"""The result of a call that raised an error."""

After = Callable[[Library, object, int], object]
"""Is told of a call's object, its result and when it began, ns; returns another result or None."""


@contextlib.contextmanager
def wrapped(
    owner: Library, name: str, after: After, before: Callable[[Library], object] = id
) -> Iterator[None]:
    """Have a method of a class tell of each call's beginning, and of its result or failure."""
    method = getattr(owner, name)
    own = vars(owner).get(name)
    is_on = True

    def told(self: Library, *args: object, **kwargs: object) -> object:
        start_ns, result = time.time_ns(), FAILED
        if is_on:
            before(self)
        try:
            result = method(self, *args, **kwargs)
        finally:
            other = after(self, result, start_ns) if is_on else None
        return result if other is None else other

    try:
        setattr(owner, name, told)
        yield
    finally:
        is_on = False
        if vars(owner).get(name) is told:  # else others wrapped it since: it stays, and is off
            delattr(owner, name) if own is None else setattr(owner, name, own)
