"""``no_default_stream``: warn of work that every blocking stream waits for."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType

from gpuscope._types import Untyped
from gpuscope.device.api import Activity
from gpuscope.device.calls import QUEUES_WORK, Call
from gpuscope.device.select import observing
from gpuscope.races import operators

_LEGACY = (0, 1)
"""CUDA's handles of the legacy default stream."""


@contextlib.contextmanager
def no_default_stream() -> Iterator[None]:
    """Warn of work that is queued on the legacy default stream inside the ``with`` block.

    Work there runs after all that was queued before on any blocking stream, and before all that
    is queued on one afterwards; with a non-blocking stream, as PyTorch's and gpuscope's are, it
    has no order at all. Each line of the program is told of once, by a ``RuntimeWarning``. Seen are
    gpuscope's launches and copies, of all threads, and PyTorch's operators of this thread. It can
    decorate a function, too.

    Examples
    --------
    >>> import warnings
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> legacy, kernel = gpu.wrap_stream(0), gs.workloads.spin_kernel(gpu)
    >>> with warnings.catch_warnings(record=True) as told, gs.no_default_stream():
    ...     legacy.launch(kernel, 5_000, grid=1, block=32)
    >>> str(told[0].message)[:48]
    "'spin' is queued on the legacy default stream: e"
    """
    watcher = _Watcher()
    with observing(watcher), contextlib.ExitStack() as undo:
        torch = operators.pytorch()
        if torch is not None:
            undo.enter_context(operators.watching(torch, partial(watcher.dispatch, torch)))
        yield


class _Watcher:
    """Is told of calls, and warns."""

    def call_begins(self, call: Call) -> None:
        """Warn of work in the legacy default stream."""
        kind = call.stream and call.stream.kind
        if kind == "legacy default" and call.kind in QUEUES_WORK:
            self._warn(call.name)

    def call_ends(self, call: Call) -> None:
        """Ignore it: it was looked at when it began."""

    def activity(self, activity: Activity) -> None:
        """Ignore it: the call was looked at."""

    def dispatch(
        self,
        torch: Untyped,
        function: Untyped,
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> object:
        """Run an operator of PyTorch's, and warn of one in its default stream."""
        result = function(*args, **kwargs)
        operator = operators.operator_of(function)
        if operator is not None:
            uses = operator.uses(args, kwargs, result)
            gpus = {operators.gpu_of(use.tensor) for use in uses} - {None}
            if any(operators.current_stream(torch, gpu or 0) in _LEGACY for gpu in gpus):
                self._warn(operator.name)
        return result

    def _warn(self, name: str) -> None:
        """Warn of a piece of work, at the line of the user's program that queued it."""
        message = (
            f"{name!r} is queued on the legacy default stream: every blocking stream waits for "
            "it, and no other does. Create a stream and select it, as with "
            "gs.CallerStreamGuard(stream) or torch.cuda.stream(stream)"
        )
        frame = _place()
        module = frame.f_globals
        warnings.warn_explicit(
            message,
            RuntimeWarning,
            frame.f_code.co_filename,
            frame.f_lineno,
            module.get("__name__"),
            module.setdefault("__warningregistry__", {}),
        )


def _place() -> FrameType:
    """Return where the program called a library."""
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    libraries = [str(Path(__file__).parents[1]), contextlib.__file__, "<frozen"]
    if torch:
        libraries.append(str(Path(torch).parent))
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((*libraries,)):
        frame = frame.f_back
    return frame
