"""What the widgets with scripts of their own share: script, style, lock, messages of the page."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import anywidget
import traitlets
from ipywidgets import Widget

from gpuscope.timeline.canvas.tiles import DOM


def static(name: str) -> str:
    """Return a script or a style."""
    return (Path(__file__).parent / "static" / name).read_text("utf-8")


def script(name: str) -> str:
    """Return a control's script with what all of them share: each has to be whole by itself."""
    return f"{DOM}\n{static(name)}"


def close_look(widget: Widget) -> None:
    """Close the layout and the style of a closed widget: they are widgets, too."""
    for look in (getattr(widget, "layout", None), getattr(widget, "style", None)):
        if isinstance(look, Widget):
            look.close()


def hear_beside_cells(widget: Widget) -> None:
    """Have what the browser tells a widget handled while a cell runs, where the page asks for it.

    JupyterLab sends it to a thread of its own in the kernel (a subshell). ipykernel from 7.3 on
    sends it to the thread instead from which the widget was last written to: that is the
    cell's, for a widget that was just made, and for one that other threads draw on. Then
    nothing is heard before the cell ends.
    """
    comm = widget.comm
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda _data, subshell: subshell


class Control(anywidget.AnyWidget):
    """A widget whose page sends actions, and shows what its traits say.

    A message ``{"action": "add", …}`` from the page calls the method ``_do_add`` with the
    other fields, with the lock held: messages may be handled beside the main thread.

    Parameters
    ----------
    lock
        Lock for the widget's state; several widgets may share one.
    """

    _css = static("controls.css") + static("verdict.css")

    heading = traitlets.Unicode(help="A heading above it; empty for none.").tag(sync=True)
    disabled = traitlets.Bool(help="Whether nothing can be changed: a run is on.").tag(sync=True)

    def __init__(self, *, lock: threading.RLock | None = None, **traits: object) -> None:
        self.lock = threading.RLock() if lock is None else lock
        super().__init__(**traits)
        hear_beside_cells(self)
        self.on_msg(self._take)

    def __init_subclass__(cls) -> None:
        """Let the page see all traits: that is what they are for."""
        for trait in vars(cls).values():
            if isinstance(trait, traitlets.TraitType):
                trait.tag(sync=True)
        super().__init_subclass__()

    def close(self) -> None:
        """Remove it from the page."""
        super().close()
        close_look(self)

    def action(self, name: str) -> Callable[..., None] | None:
        """Return what an action of the page calls; ``None`` if there is none of that name."""
        act: Callable[..., None] | None = getattr(self, f"_do_{name}", None)
        return act

    def _take(self, _widget: object, content: object, _buffers: object) -> None:
        if not isinstance(content, Mapping):
            return
        fields = {str(name): value for name, value in content.items()}
        act = self.action(str(fields.pop("action", "")))
        if act is not None and not self.disabled:
            with self.lock:
                act(**fields)
