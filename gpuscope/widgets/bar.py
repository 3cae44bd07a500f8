"""The toolbar of a timeline, and the ears and eyes that it has in the browser."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anywidget
import traitlets

_STATIC = Path(__file__).parent / "static"

Message = Mapping[str, Any]


class Bar(anywidget.AnyWidget):
    """Buttons, search and status line; in the browser it attends to the plot beside it, too.

    It tells of keys, clicks, the plot's width, the page's theme, and of frames that were
    painted, each as a message ``{"do": what, …}`` for :func:`act`.

    Parameters
    ----------
    told
        Called with each message; may be called on any thread.
    """

    _esm = (_STATIC / "timeline.js").read_text("utf-8")
    _css = (_STATIC / "timeline.css").read_text("utf-8")

    state = traitlets.Dict().tag(sync=True)
    """What the toolbar shows: ``live``, ``follow``, ``measuring``, ``sms`` (``None``: there is
    nothing to show), ``tracks`` (label and whether it is shown), ``search``, ``matches``,
    ``match`` (from 1), ``status``, ``problem`` (the status is an error), ``dark``."""
    frame = traitlets.Int(0).tag(sync=True)
    """Number of the frame that was sent last; the browser answers when it is painted."""
    height = traitlets.Int(400).tag(sync=True)
    """Of the plot with all that is around it, px."""

    def __init__(self, told: Callable[[Message], None], **options: Any) -> None:
        super().__init__(**options)
        self.on_msg(lambda _widget, content, _buffers: told(content))


def act(timeline: Any, message: Message) -> None:
    """Do what a browser told a timeline.

    Raises
    ------
    KeyError, TypeError, ValueError
        The message is none of ours.
    """
    if message.get("released"):
        timeline._hold(on=False)
    _ACTS[message["do"]](timeline, message)


_ACTS: dict[str, Callable[[Any, Message], object]] = {
    "zoom": lambda it, told: it.zoom(float(told["by"]), told.get("at")),
    "pan": lambda it, told: it.pan(float(told["by"])),
    "fit": lambda it, _: it.fit(),
    "find": lambda it, told: it.find(str(told["text"])),
    "next": lambda it, _: it.next(),
    "previous": lambda it, _: it.previous(),
    "select": lambda it, told: it.select(int(told["span"])),
    "step": lambda it, told: it.step(int(told["along"]), int(told["across"])),
    "click": lambda it, told: it._clicked(float(told["x"]), float(told["y"])),
    "measure": lambda it, _: it.measure(),
    "clear": lambda it, _: it.clear(),
    "hide": lambda it, told: it._hide(str(told["track"]), hidden=bool(told["hidden"])),
    "follow": lambda it, told: it.set_trait("follow", bool(told["on"])),
    "sms": lambda it, told: it.set_trait("sms", bool(told["on"])),
    "range": lambda it, told: it._ranged(float(told["low"]), float(told["high"])),
    "size": lambda it, told: it._sized(int(told["pixels"])),
    "theme": lambda it, told: it._themed(dark=bool(told["dark"])),
    "hold": lambda it, told: it._hold(on=bool(told["on"])),
    "painted": lambda it, told: it._scheduler.painted(int(told["frame"])),
}
