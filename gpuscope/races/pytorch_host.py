"""What the host reads and writes of PyTorch's page-locked memory where no operator tells.

``Tensor.numpy`` returns arrays that tell what NumPy does with them: to make one is no access.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np

from gpuscope._types import Untyped
from gpuscope.device.accesses import Accessing, accesses_of, accesses_of_tensor
from gpuscope.device.pinned import PinnedArray
from gpuscope.races.hazard_log import HazardLog
from gpuscope.races.hazard_notes import HostAccess
from gpuscope.races.wrapped import FAILED, After, wrapped

_READING = ("tolist", "__repr__")
_SHARING = ("__array__", "__dlpack__")
"""What gives the memory to who tells nobody."""


class _Views:
    """Passes on what NumPy does with views of PyTorch's memory, whenever they were made."""

    def __init__(self) -> None:
        self.watchers: tuple[HazardLog, ...] = ()

    def tell(self, _kind: str, name: str, *, accesses: tuple[Accessing, ...] = ()) -> None:
        """Tell of an access of the host's."""
        for log in self.watchers:
            log.note(HostAccess(name, accesses_of(accesses)))


_views = _Views()


@contextlib.contextmanager
def watching(
    torch: Untyped, log: HazardLog, is_page_locked: Callable[[Untyped], bool]
) -> Iterator[None]:
    """Tell of all threads' accesses."""

    def of_page_locked(tell: Callable[[Untyped, object], object]) -> After:
        return lambda tensor, result, _start_ns: (
            tell(tensor, result) if result is not FAILED and is_page_locked(tensor) else None
        )

    def viewed(_tensor: Untyped, array: object) -> object:
        return PinnedArray.over(array, _views) if isinstance(array, np.ndarray) else None

    def reading(name: str) -> Callable[[Untyped, object], None]:
        return lambda tensor, _result: log.note(
            HostAccess(f"Tensor.{name}", accesses_of_tensor(tensor, reads=True, writes=False))
        )

    def sharing(name: str) -> Callable[[Untyped, object], object]:
        def shared(_tensor: Untyped, result: object) -> object:
            log.note(f"Tensor.{name}")
            return result.view(np.ndarray) if isinstance(result, PinnedArray) else None

        return shared

    with contextlib.ExitStack() as undo:
        undo.callback(_leave, log)
        _views.watchers += (log,)
        tensor = torch.Tensor
        undo.enter_context(wrapped(tensor, "numpy", of_page_locked(viewed)))
        for tells, names in ((reading, _READING), (sharing, _SHARING)):
            for name in names:
                undo.enter_context(wrapped(tensor, name, of_page_locked(tells(name))))
        yield


def _leave(log: HazardLog) -> None:
    _views.watchers = tuple(watcher for watcher in _views.watchers if watcher is not log)
