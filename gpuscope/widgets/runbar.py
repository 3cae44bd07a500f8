"""RunBar: run, stop, watch how far it is, and take the experiment elsewhere."""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Callable

import traitlets

from gpuscope.widgets.base import Control, script


class RunBar(Control):
    """The buttons of a dashboard, and its status.

    Parameters
    ----------
    acts
        What a button does, by its name: ``run``, ``stop``, ``code`` (of a ``kind``), ``save``,
        ``open`` (a ``text`` called ``name``) and ``nsight``.
    codes
        What code can be had in.
    lock
        Guards the state; several widgets may share one.
    """

    _esm = script("runbar.js")

    running = traitlets.Bool(help="Whether a run is on.").tag(sync=True)
    stopping = traitlets.Bool(help="Whether it was told to stop.").tag(sync=True)
    ready = traitlets.Bool(help="Whether there is something that can be run.").tag(sync=True)
    live = traitlets.Bool(
        True,  # noqa: FBT003 - a trait's default
        help="Whether the picture is drawn while a run is on.",
    ).tag(sync=True)
    progress = traitlets.Float(help="Share of the run's time that has passed, 0 to 1.").tag(
        sync=True
    )
    left = traitlets.Unicode(help="How much time is left, in words.").tag(sync=True)
    status = traitlets.Unicode(help="What is going on, in words.").tag(sync=True)
    alarm = traitlets.Unicode(help="What went wrong, in words; empty if nothing did.").tag(
        sync=True
    )
    codes = traitlets.List(traitlets.Unicode(), help="What code can be had in.").tag(sync=True)
    code = traitlets.Dict(help="The code that is shown: kind and text; empty for none.").tag(
        sync=True
    )
    file = traitlets.Dict(help="The file that was saved last: name, text, serial.").tag(sync=True)
    uid = traitlets.Unicode(help="Names what is saved of this dashboard in its notebook.").tag(
        sync=True
    )

    def __init__(
        self,
        acts: dict[str, Callable[..., None]],
        codes: list[str],
        *,
        lock: threading.RLock | None = None,
    ) -> None:
        super().__init__(lock=lock, codes=codes, uid=secrets.token_hex(6))
        self._acts = acts
        self._serials = itertools.count(1)

    def say(self, words: str) -> None:
        """Show what is going on; what went wrong before is over."""
        with self.hold_sync():
            self.status, self.alarm = words, ""

    def warn(self, words: str) -> None:
        """Show what went wrong."""
        with self.hold_sync():
            self.status, self.alarm = "", words

    def offer_file(self, name: str, text: str) -> None:
        """Let the page save a file."""
        self.file = {"name": name, "text": text, "serial": next(self._serials)}

    def action(self, name: str) -> Callable[..., None] | None:
        """Return what the button of that name does."""
        return self._acts.get(name)
