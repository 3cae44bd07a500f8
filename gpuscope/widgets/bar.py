"""The toolbar of a timeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import anywidget
import traitlets

from gpuscope.timeline.canvas import tiles
from gpuscope.widgets.base import script, static

Message: TypeAlias = Mapping[str, Any]
"""What the page sends, decoded from JSON."""


class Bar(anywidget.AnyWidget):
    """Buttons, search and status line; its script also handles events of the plot beside it.

    It sends keys, clicks, the plot's width, the page's theme and the numbers of painted frames,
    each as a message ``{"do": what, …}``.

    Parameters
    ----------
    told
        Called with each message, on any thread.
    """

    _esm = f"{tiles.SCRIPT}\n{script('timeline.js')}"
    _css = static("timeline.css")

    state = traitlets.Dict().tag(sync=True)
    """What the toolbar shows: ``live``, ``follow``, ``measuring``, ``sms`` (``None``: there is
    nothing to show), ``tracks`` (label and whether it is shown), ``search``, ``matches``,
    ``match`` (from 1), ``row`` (the selected one), ``range`` (ns on the time axis), ``shares`` (of
    the rows, in words), ``host`` (whether its rows are shown), ``escapes`` (how many), ``calls``
    (whether there are), ``status``, ``problem`` (the status is an error), ``dark``."""
    frame = traitlets.Int(0).tag(sync=True)
    """Number of the frame that was sent last; the browser answers when it is painted."""
    height = traitlets.Int(400).tag(sync=True)
    """Of the plot with all that is around it, px."""
    scene = traitlets.Dict().tag(sync=True)
    """What the page paints, as of :func:`~gpuscope.timeline.canvas.tiles.page`."""

    def __init__(self, on_message: Callable[[Message], None]) -> None:
        super().__init__()
        self.on_msg(lambda _widget, content, _buffers: on_message(content))
