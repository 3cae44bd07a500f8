"""The calls that a handle has in flight: asked about and waited for."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence

from gpuscope._fork import free_in_children
from gpuscope.device.device import Device
from gpuscope.device.unique import call_all
from gpuscope.errors import StreamError
from gpuscope.workloads.context import Completion, Context, of_thread


class InFlight:
    """What a handle knows of its calls, which take turns in its contexts."""

    def __init__(self, device: Device, name: str, contexts: Sequence[Context]) -> None:
        self.device = device
        self.name = name
        self._lock = free_in_children(threading.Lock())
        self._inside: object = None  # the token of the thread whose call may run others' code
        self._contexts = contexts
        for before, context in zip([*contexts[-1:], *contexts[:-1]], contexts, strict=True):
            before.next = context
        self._latest = contexts[-1]

    @property
    def max_in_flight(self) -> int:
        """How many calls may overlap."""
        return len(self._contexts)

    @property
    def completion(self) -> Completion | None:
        """The latest call's completion, or ``None`` before the first."""
        self._refuse_inside("asks for its own handle's completion")
        with self._lock:
            return self._latest.hand_out()

    @property
    def in_flight(self) -> bool:
        """Whether any call is still running, as far as the host can see now."""
        return any(context.runs() for context in self._contexts)

    def wait(self) -> None:
        """Wait on the host for every call in flight, then raise the first error.

        Raises
        ------
        StreamError
            A call of this handle waits for it, or an observer of one.
        """
        if self._inside:
            self._refuse_inside("waits for its own handle")
        call_all(functools.partial(self._settle, context) for context in self._contexts)

    def _settle(self, context: Context) -> None:
        """Wait for a context's call, without the lock; its mark clears even if that fails."""
        with self._lock:
            number, event, completion = context.in_flight, context.event, context.completion
            if not number or event is None:
                return
            call, alone = context.call, not context.waits
            context.waits += 1
        failed = True
        try:
            if completion is None:
                self.device.calls.wait_for(call, event, alone=alone)
            else:
                completion.wait()
            failed = False
        finally:
            with self._lock:
                if failed and context.in_flight == number:
                    context.hand_out()  # which has not seen it done
                if context.event is event:
                    context.waits -= 1
                if context.in_flight == number:
                    context.in_flight = 0

    def _refuse_inside(self, what: str) -> None:
        """Refuse what would wait for the lock that this thread holds."""
        if self._inside is of_thread.token:
            raise StreamError(
                f"a call of {self.name!r}, or its observer, {what}: a handle runs one call at a "
                "time. Do it after the call, or make another handle"
            )

    @contextlib.contextmanager
    def _inside_call(self) -> Iterator[None]:
        """Note that this thread, which holds the lock, may run a user's function or observers."""
        self._inside = of_thread.token
        try:
            yield
        finally:
            self._inside = None
