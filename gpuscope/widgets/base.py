"""The base of the widgets with scripts of their own: script, style, lock, actions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import anywidget
import traitlets

from gpuscope.widgets.comms import hear_beside_cells

_STATIC = Path(__file__).parent / "static"


def script(name: str) -> str:
    """Return a widget's script with what all of them share: each has to be whole by itself."""
    return "\n".join((_STATIC / file).read_text("utf-8") for file in ("dom.js", name))


class Control(anywidget.AnyWidget):
    """A widget whose page sends actions, and shows what its traits say.

    A message ``{"action": "add", …}`` from the page calls the method ``_do_add`` with the
    other fields, with the lock held: messages may be handled beside the main thread.

    Parameters
    ----------
    lock
        Guards the state; several widgets may share one.
    """

    _css = (_STATIC / "controls.css").read_text("utf-8")

    heading = traitlets.Unicode(help="A heading above it; empty for none.").tag(sync=True)
    disabled = traitlets.Bool(
        False,  # noqa: FBT003 - a trait's default
        help="Whether nothing can be changed: a run is on.",
    ).tag(sync=True)

    def __init__(self, *, lock: threading.RLock | None = None, **traits: object) -> None:
        self.lock = threading.RLock() if lock is None else lock
        super().__init__(**traits)
        hear_beside_cells(self)
        self.on_msg(self._take)

    def action(self, name: str) -> Callable[..., None] | None:
        """Return what an action of the page calls; ``None`` if there is none of that name."""
        act: Callable[..., None] | None = getattr(self, f"_do_{name}", None)
        return act

    def _take(self, _widget: object, content: object, _buffers: object) -> None:
        if not isinstance(content, Mapping):
            return
        fields = {str(name): value for name, value in content.items()}
        act = self.action(str(fields.pop("action", "")))
        if act is not None:
            with self.lock:
                act(**fields)
