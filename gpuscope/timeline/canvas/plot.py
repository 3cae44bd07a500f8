"""The FigureWidget of a timeline: opening one sends 5 MB, so it is kept and updated.

Plotly has no public way to change a figure without validating every value, which takes longer
than the rest of a frame, nor to send data without echoing it. Its private members (``_data``,
``_layout_obj._props``, ``_send_update_msg``) are used by :class:`Plot` only.
"""

from __future__ import annotations

import copy
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import plotly.graph_objects as go
import traitlets
from plotly.basedatatypes import Undefined

from gpuscope.timeline.canvas.snapshot import Legend
from gpuscope.timeline.labels import Class
from gpuscope.timeline.sm_map_figure import ON_SM_AXIS
from gpuscope.timeline.style import Properties

OVERLAYS = {
    "waits": "lines+markers",
    "links": "lines+markers",
    "selected": "lines",
    "measure": "lines+text",
    "hazards": "lines+markers",
}
"""Traces that lie over the bars."""
_KEY: Properties = {"base": [0], "x": [1], "y": [-100], "width": [1], "orientation": "h"}
"""A bar out of sight, which puts a class into the legend."""
_SETTLED = ("type", "orientation")
_WHOLE = {"_widget_data", "_widget_layout"}
"""What a page that opens needs; a frame is sent by another property."""
_MOVES = 600
"""Of the ranges that the page was told to show, how many it may not have told of yet: some 10 s."""
_CONFIG = {"responsive": True, "scrollZoom": True, "doubleClick": False, "displaylogo": False}


_LATER = """((plotly, kinds) => {
  const idle = window.requestIdleCallback ?? ((act) => setTimeout(act, 50));
  const next = () => kinds.length && (plotly.register(kinds.shift()()), idle(next));
  setTimeout(next, 3000);
})"""


def _bars_first(script: str) -> str:
    """Have Plotly set up what draws bars at once, and its other 46 kinds of traces when idle.

    To set up all takes the page as long as to read the whole script. A script that is put together
    in another way stays as it is.
    """
    head, marker, tail = script.rpartition('"lib/index.js"')
    call = re.search(r"([\w$]+)\.register\(\[([\w$]+)\(\),((?:[\w$]+\(\),?)+)\]\)", tail)
    if call is None or not re.search(rf'{re.escape(call[2])}=\w+\({{"lib/bar\.js"', head):
        return script
    other_kinds = call[3].replace("()", "")
    instead = f"{call[1]}.register([{call[2]}()]),{_LATER}({call[1]},[{other_kinds}])"
    return head + marker + tail[: call.start()] + instead + tail[call.end() :]


PLOTLY_SCRIPT = _bars_first(f"{go.FigureWidget._esm}\n")
"""What draws the plot in the page: 5 MB."""


class Plot(go.FigureWidget):  # type: ignore[misc]
    """A FigureWidget whose traces stay, so that a frame is one message.

    Messages of the browser and frames come from different threads: both hold one lock.

    Parameters
    ----------
    ranged
        Called with the range of the time axis when the user dragged or zoomed the plot.
    still
        Returns the traces of what is in view, which the browser paints instead, and its layout.
        Exports have them.
    """

    # As text: anywidget keeps every widget whose script is a file for ever, to tell of its changes.
    _esm = Path(__file__).with_name("plot.js").read_text("utf-8")
    _plotly_script = traitlets.Unicode(PLOTLY_SCRIPT).tag(sync=True)

    def __init__(
        self,
        ranged: Callable[[float, float], None],
        still: Callable[[], tuple[list[Properties], Properties]],
    ) -> None:
        self._lock = threading.RLock()
        self._ranged, self._still = ranged, still
        self._is_made = False
        self._overlays = {name: number for number, name in enumerate(OVERLAYS)}
        self._bars: list[int] = []
        self._slots: dict[Class, int] = {}
        self._sent: dict[int | str, Properties] = {}
        self._edits = 0
        self._moves: deque[list[float]] = deque(maxlen=_MOVES)
        super().__init__(
            data=[
                {
                    "type": "scatter",
                    "x": [],
                    "y": [],
                    "name": name,
                    "hoverinfo": "skip",
                    "mode": mode,
                    "showlegend": False,
                    "textposition": "bottom center",
                }
                for name, mode in OVERLAYS.items()
            ],
            layout={"template": "none"},  # Plotly's own takes longer to check than all the rest
        )
        self._config: Properties = {**self._config, **_CONFIG}
        self._is_made = True

    def set_state(self, sync_data: Properties) -> None:
        """Take messages of the browser: where the plot was dragged to, what its legend hides.

        The rest, such as what Plotly filled in after each frame, is of no use here; to take
        it in, and to echo it, costs as much as the frame.
        """
        moved = (sync_data.get("_js2py_relayout") or {}).get("relayout_data", {})
        if "_js2py_restyle" in sync_data:
            with self._lock:
                super().set_state({"_js2py_restyle": sync_data["_js2py_restyle"]})
        ends = [moved.get(f"xaxis.range[{end}]") for end in (0, 1)]
        low, high = moved.get("xaxis.range", ends)
        if low is not None and high is not None and [low, high] not in self._moves:
            with self._lock:
                self._sent.get("layout", {}).pop("xaxis.range", None)  # the plot has another now
            self._ranged(low, high)

    def get_state(self, key: str | Iterable[str] | None = None, **options: object) -> Properties:
        """Return the state; for a page that opens, with all that was drawn so far."""
        wanted = {key} if isinstance(key, str) else key
        if self._is_made and (wanted is None or _WHOLE & set(wanted)):
            with self._lock:
                self._trait_values["_widget_layout"] = copy.deepcopy(self._layout_obj._props)
                self._trait_values["_widget_data"] = copy.deepcopy(self._data)
        state: Properties = super().get_state(key, **options)
        return state

    def to_dict(self) -> Properties:
        """Return the figure as exports have it."""
        whole: Properties = super().to_dict()
        data, layout = self._still()
        whole["data"] = [*data, *(trace for trace in whole["data"] if trace["type"] != "bar")]
        _put(whole["layout"], layout)
        return whole

    def know(self, layout: Properties, *, moves: bool = False) -> None:
        """Take properties of the layout that the browser has by itself.

        Parameters
        ----------
        moves
            Whether it moves there because it was told to: that it did so is no news.
        """
        with self._lock:
            if moves:
                self._moves.append(layout["xaxis.range"])
            self._sent.setdefault("layout", {}).update(layout)
            _put(self._layout_obj._props, layout)

    def settle(self) -> None:
        """Send the whole state again: notebooks that save widgets save what was sent as a whole."""
        self.send_state(sorted(_WHOLE))

    def draw(self, legend: Legend, overlays: Mapping[str, Properties], layout: Properties) -> None:
        """Show a frame; only what changed is sent.

        Parameters
        ----------
        legend
            Class → how its bars look. A class keeps its trace.
        overlays
            Properties of overlays, by name; whole ones, such as ``marker``.
        layout
            Properties of the layout, dots in the names.
        """
        with self._lock:
            traces: dict[int, Properties] = {}
            if "sms" in overlays and "sms" not in self._overlays:
                self._overlays["sms"] = len(self.data)
                self.add_traces([ON_SM_AXIS])
            for name, number in self._overlays.items():
                traces[number] = dict(overlays.get(name, {}))
            missing = [bar_class for bar_class in legend if bar_class not in self._slots]
            free = [number for number in self._bars if number not in self._slots.values()]
            more = range(len(self.data), len(self.data) + max(0, len(missing) - len(free)))
            if more:
                self.add_traces([go.Bar(**_KEY) for _ in more])
                self._bars += more
            self._slots.update(zip(missing, [*free, *more], strict=False))
            for number in self._bars:
                traces[number] = {"showlegend": False}
            for bar_class, look in legend.items():
                # To be told of its orientation, Plotly would choose the axes' ranges by itself.
                how = {key: value for key, value in look.items() if key not in _SETTLED}
                traces[self._slots[bar_class]] = {**how, "showlegend": True}
            news = self._news("layout", layout)
            # The page tells of a range that it shows when it puts ticks there.
            self._moves += [list(news[name]) for name in news if name == "xaxis.range"]
            self._change(
                {number: self._news(number, wanted) for number, wanted in traces.items()}, news
            )

    def _news(self, of: int | str, wanted: Properties) -> Properties:
        """Return what differs from what was sent before."""
        before = self._sent.setdefault(of, {})
        news = {
            name: value for name, value in wanted.items() if before.get(name, Undefined) != value
        }
        before.update(news)
        return news

    def _change(self, traces: Mapping[int, Properties], layout: Properties) -> None:
        """Change the figure and send the changes, without Plotly's validation."""
        changed = [number for number, news in traces.items() if news]
        names = dict.fromkeys(name for news in traces.values() for name in news)
        for number in changed:
            self._data[number].update(traces[number])
        _put(self._layout_obj._props, layout)
        if changed or layout:
            self._send_update_msg(
                {
                    name: [traces[number].get(name, Undefined) for number in changed]
                    for name in names
                },
                dict(layout),
                changed,
            )

    def _send_update_msg(
        self,
        restyle_data: Properties,
        relayout_data: Properties,
        trace_indexes: list[int] | None = None,
        source_view_id: str | None = None,
    ) -> None:
        """Send a frame as one message, walked over once: Plotly walks twice, and sends four.

        A short second message sees to it that nobody saves the frame with the notebook.
        """
        self._edits += 1
        frame = {
            "style_data": restyle_data,
            "layout_data": relayout_data,
            "style_traces": trace_indexes,
            "trace_edit_id": self._edits,
            "layout_edit_id": self._edits,
            "source_view_id": source_view_id,
        }
        for message in (frame, None):
            self._trait_values["_py2js_update"] = message
            self.send_state("_py2js_update")

    def send_all_again(self) -> None:
        """Send with the next frame what was sent already, too."""
        with self._lock:
            self._sent.clear()

    def forget(self) -> None:
        """Free the traces for other classes: something unrelated is shown next."""
        with self._lock:
            self._slots.clear()


def _put(properties: Properties, layout: Properties) -> None:
    """Set properties of a layout, dots in the names."""
    for path, value in layout.items():
        *parents, name = path.split(".")
        inner = properties
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[name] = value
