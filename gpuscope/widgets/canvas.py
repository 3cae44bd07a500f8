"""The one FigureWidget of a timeline: opening one sends 5 MB, so it is kept and updated."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from typing import Any

import plotly.graph_objects as go

OVERLAYS = {
    "waits": "lines+markers", "links": "lines+markers", "selected": "lines",
    "measure": "lines+text",
}  # fmt: skip
"""Traces that lie over the bars. They come first in the figure, as bars are added behind."""
_EMPTY: dict[str, Any] = {"base": [], "x": [], "y": [], "width": [], "hovertext": []}
_CONFIG = {"responsive": True, "scrollZoom": True, "doubleClick": False, "displaylogo": False}

Bars = Mapping[Any, tuple[Mapping[str, Any], Mapping[str, Any]]]


class Canvas(go.FigureWidget):  # type: ignore[misc]
    """A FigureWidget whose traces stay, so that a frame is one message.

    What a browser tells comes on another thread than what is drawn: both hold one lock.

    Parameters
    ----------
    ranged
        Called with the range of the time axis when the plot was dragged or zoomed by itself.
    """

    def __init__(self, layout: Mapping[str, Any], ranged: Callable[[float, float], None]) -> None:
        self._lock = threading.RLock()
        self._ranged = ranged
        self._is_made = False
        self._slots: dict[Any, int] = {}
        self._looks: list[Mapping[str, Any] | None] = []
        super().__init__(
            data=[{"type": "scatter", "x": [], "y": [], "name": name, "hoverinfo": "skip",
                   "mode": mode, "showlegend": False, "textposition": "top center"}
                  for name, mode in OVERLAYS.items()],
            layout=dict(layout),
        )  # fmt: skip
        self._config: dict[str, Any] = {**self._config, **_CONFIG}
        self._is_made = True

    def set_state(self, sync_data: Any) -> None:
        """Take what a browser tells: where the plot was dragged to, and what its legend hides.

        The rest, such as what Plotly filled in after each frame, is of no use here; to take
        it in, and to echo it, costs as much as the frame.
        """
        moved = (sync_data.get("_js2py_relayout") or {}).get("relayout_data", {})
        if "_js2py_restyle" in sync_data:
            with self._lock:
                super().set_state({"_js2py_restyle": sync_data["_js2py_restyle"]})
        ends = [moved.get(f"xaxis.range[{end}]") for end in (0, 1)]
        low, high = moved.get("xaxis.range", ends)
        if low is not None and high is not None:
            with self._lock:
                self.layout.xaxis._props["range"] = [low, high]  # as the plot has it already
            self._ranged(low, high)

    def get_state(self, *args: Any, **options: Any) -> Any:
        """Return the state for a page that opens, with all that was drawn so far."""
        if self._is_made:
            with self._lock:
                self._trait_values["_widget_layout"] = copy.deepcopy(self._layout_obj._props)
                self._trait_values["_widget_data"] = copy.deepcopy(self._data)
        return super().get_state(*args, **options)

    def draw(
        self, bars: Bars, overlays: Mapping[str, Mapping[str, Any]], layout: Mapping[str, Any]
    ) -> None:
        """Show a frame; only what changed is sent.

        Parameters
        ----------
        bars
            Class → how its bars look, and which there are. A class keeps its trace.
        overlays
            Properties of overlays, by name.
        layout
            Properties of the layout, dots in the names.
        """
        with self._lock:
            for one in bars:
                self._slots.setdefault(one, len(self._slots))
            missing = len(self._slots) - len(self._looks)
            if missing > 0:
                self.add_traces([go.Bar(**_EMPTY) for _ in range(missing)])
                self._looks += [None] * missing
            with self.batch_update():
                for slot in range(len(self._slots), len(self._looks)):
                    self._fill(slot, None, _EMPTY)
                for one, slot in self._slots.items():
                    self._fill(slot, *bars.get(one, (None, _EMPTY)))
                for name, trace in zip(OVERLAYS, self.data, strict=False):
                    _assign(trace, overlays.get(name, {}))
                _assign(self.layout, layout)

    def _fill(self, slot: int, look: Mapping[str, Any] | None, bars: Mapping[str, Any]) -> None:
        trace = self.data[len(OVERLAYS) + slot]
        if look is not None and look != self._looks[slot]:
            _assign(trace, {name: value for name, value in look.items() if name != "type"})
            self._looks[slot] = look
        if bars is not _EMPTY or trace.x is None or len(trace.x):
            _assign(trace, bars)

    def forget(self) -> None:
        """Let other classes have the traces: what is shown next has nothing to do with this."""
        with self._lock:
            self._slots.clear()


def _assign(target: Any, wanted: Mapping[str, Any]) -> None:
    for name, value in wanted.items():
        target[name] = value
