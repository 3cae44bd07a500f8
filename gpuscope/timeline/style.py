"""How figures look: Okabe–Ito colours by partition, a pattern by kind, one layout."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gpuscope.timeline.counter_lanes import Layer
from gpuscope.timeline.readings import CLOCK, DOWNLOAD, STACK, STATES, THROTTLED, UPLOAD
from gpuscope.trace.model import Trace

Properties: TypeAlias = dict[str, Any]
"""Properties of a part of a Plotly figure, by name; Plotly has no types."""

OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#F0E442")
"""Okabe and Ito's palette without black, which text and arrows have, and without vermilion."""
ESCAPED = "#D55E00"
"""Their vermilion: what ran outside its partition, and nothing else."""
WHOLE_GPU_COLOUR = "#6E7781"
HOST_COLOUR = "#A8B0B9"
SLOWED_COLOUR = "#8C5A2B"
FOCUS = "#3D7BE0"
"""What is chosen, on either page."""
INK = "#1B1F24"
MUTED = "#57606A"
WHITE = "#FFFFFF"
STRIPE, HEADING = "#F4F6F8", "#E3E9EF"
"""Behind every second track, and behind the heading of a setting."""
GRID = "#E4E8EC"
DARK = {
    INK: "#E6EAEE",
    MUTED: "#A9B3BD",
    WHITE: "#111111",
    STRIPE: "#1B1D20",
    HEADING: "#262B31",
    GRID: "#2B3036",
}
"""Neutral colours → the same on a dark page. Other colours mean something, and stay."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"


_SEED = 13_417
"""With it a and b, small and load, decode and prefill begin with the palette, rest comes third."""
_MODEBAR = 14
"""Px above a title, so that Plotly's buttons do not cover it."""


@dataclass(frozen=True)
class KindStyle:
    """How spans of one kind look, whatever their partition's colour."""

    label: str
    pattern: str = ""
    strength: float = 1.0


_STACKS = dict(
    zip(
        STATES,
        (
            KindStyle("holds Python's lock, sampled"),
            KindStyle("waits for Python's lock, sampled", "/"),
            KindStyle("runs without Python's lock, sampled", "|", strength=0.65),
            KindStyle("without Python's lock, sampled", "+", strength=0.45),
            KindStyle("in a system call, sampled", "o", strength=0.25),
        ),
        strict=True,
    )
)
"""Of different strengths, as columns have no pattern."""
KIND_STYLES = {
    "kernel": KindStyle("kernel"),
    UPLOAD: KindStyle("upload, host to GPU", "/"),
    DOWNLOAD: KindStyle("download, GPU to host", "\\", strength=0.5),
    "memcpy": KindStyle("memcpy", "/", strength=0.75),
    "memset": KindStyle("memset", "|", strength=0.75),
    "graph": KindStyle("graph, as a whole", "|"),
    "scope": KindStyle("scope, inside a thread block", strength=0.75),
    "host function": KindStyle("host function", "+", strength=0.5),
    "event": KindStyle("event record"),
    "handle": KindStyle("handle, execute() to done", strength=0.5),
    "api": KindStyle("API call", "."),
    "sync": KindStyle("synchronisation", "x"),
    "range": KindStyle("range"),
    "mark": KindStyle("mark"),
    **_STACKS,
    STACK: KindStyle("stack, sampled", "\\", strength=0.35),
    CLOCK: KindStyle("SM clock, power", strength=0.25),
    THROTTLED: KindStyle("throttled, SM clock and power"),
}
"""The kinds that a timeline draws."""


LAYER_STYLES: dict[Layer, KindStyle] = {
    "told": KindStyle("SMs busy, told"),
    "estimated": KindStyle("SMs busy, estimated, or at least", strength=0.5),
    "between": KindStyle("SMs busy at most", strength=0.25),
    "unused": KindStyle("SMs granted, not used while it ran"),
    "read": KindStyle("DRAM read"),
    "written": KindStyle("DRAM written", strength=0.5),
    "read and written": KindStyle("DRAM read and written"),
}
"""The layers of lanes of counters."""


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """Give each name a colour that follows the name, wherever it stands among the others.

    Of names that would have the same colour the later in the alphabet gets the next free one. Of
    more than the palette has, the next are darker, those after them lighter.
    """
    chosen: dict[str, str] = {}
    for at, name in enumerate(sorted(set(names))):
        first = zlib.crc32(name.encode("utf-8", "replace")) * _SEED >> 16
        shade = _SHADES[at // len(OKABE_ITO) % len(_SHADES)]
        tried = [
            shade(OKABE_ITO[(first + step) % len(OKABE_ITO)]) for step in range(len(OKABE_ITO))
        ]
        taken = list(chosen.values())[at - at % len(OKABE_ITO) :]
        chosen[name] = next(colour for colour in tried if colour not in taken)
    return chosen


_SHADES: tuple[Callable[[str], str], ...] = (
    lambda colour: colour,
    lambda colour: darker(darker(colour)),
    lambda colour: tinted(colour, 0.45),
)
"""What names have in turn whose number exceeds the palette's: eighteen colours in all."""


def partition_colours(traces: Iterable[Trace], partitions: Iterable[str]) -> dict[str, str]:
    """Give each partition a colour: by its name, as :func:`colours_of`, where no trace says which.

    Those that the traces describe come first, in their order. Text that is no colour says nothing.
    Partitions of one name on several ranks look the same.
    """
    facts_of_partition = {
        name: facts for trace in traces for name, facts in trace.metadata.partitions.items()
    }
    names = list(dict.fromkeys([*facts_of_partition, *sorted(partitions)]))
    chosen = {name: facts.color or "" for name, facts in facts_of_partition.items()}
    plain = {name: without_rank(name) for name in names}
    by_name = colours_of(list(dict.fromkeys(plain.values())))
    return {
        name: colour
        if re.fullmatch("#[0-9A-Fa-f]{6}", colour := chosen.get(name, ""))
        else by_name[plain[name]]
        for name in names
    }


def without_rank(partition: str) -> str:
    """Return a partition's name as its own rank had it: merged ones may be told apart by rank."""
    return re.sub(r" · rank [0-9]+$", "", partition)


def rgb(colour: str) -> tuple[int, ...]:
    """Return the parts of a colour such as ``#0072B2``."""
    return tuple(bytes.fromhex(colour[1:]))


def darker(colour: str) -> str:
    """Return a darker shade, for the outline that keeps a narrow bar visible on white paper."""
    return "#" + "".join(f"{round(part * 0.72):02X}" for part in rgb(colour))


def lighter(colour: str) -> str:
    """Return a lighter shade, for the outlines on a dark page."""
    return tinted(colour, 0.6)


def on(colour: str) -> str:
    """Return the colour of text that is readable on a colour."""
    red, green, blue = (part / 255 for part in rgb(colour))
    return INK if 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 > 0.2 else WHITE


def tinted(colour: str, strength: float) -> str:
    """Return a colour mixed with white; unlike an opacity, it shows in legends too."""
    return "#" + "".join(f"{round(255 - (255 - part) * strength):02X}" for part in rgb(colour))


def base_layout(
    title: str, subtitle: Sequence[str], height: float, *, legend_rows: int, **more: object
) -> Properties:
    """Return what all figures share; ``title`` and ``subtitle`` are safe for Plotly already.

    Parameters
    ----------
    height
        Of the plotting area, px.
    """
    top = _MODEBAR + 52 + 18 * len(subtitle) + 22 * title.count("<br>")
    bottom = 66 + 20 * legend_rows
    return {
        "template": "none",
        "font": {"family": FONT, "size": 13, "color": INK},
        "title": {
            "text": f"<b>{title}</b>",
            "font": {"size": 18},
            "x": 0,
            "xref": "container",
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": _MODEBAR + 14, "l": 14},
            "subtitle": {"text": "<br>".join(subtitle), "font": {"size": 13, "color": MUTED}},
        },
        "paper_bgcolor": WHITE,
        "plot_bgcolor": WHITE,
        "hovermode": "closest",
        "hoverlabel": {
            "align": "left",
            "font": {"family": FONT, "size": 13, "color": INK},
            "bgcolor": WHITE,
            "namelength": -1,
        },
        "margin": {"l": 60, "r": 24, "t": top, "b": bottom},
        "height": int(height + top + bottom),
        "legend": {
            "orientation": "h",
            "x": 0,
            "xref": "container",
            "y": 0.004,
            "yref": "container",
            "yanchor": "bottom",
            "font": {"size": 12},
            "tracegroupgap": 0,
            # In a narrow page it scrolls: it would push the plot up, into the title of its axis.
            "maxheight": 20 * legend_rows + 14,
        },
        # "Share chart…" would send what a trace holds to a server.
        "modebar": {
            "remove": ["sendChartToCloud", "select2d", "lasso2d"],
            "bgcolor": "rgba(0,0,0,0)",
            "color": WHOLE_GPU_COLOUR,
            "activecolor": OKABE_ITO[0],
        },
        **more,
    }


def titled(text: str) -> Properties:
    """Return the title of an axis."""
    return {"text": text, "standoff": 10, "font": {"size": 13}}


def label_axis(places: Sequence[float], labels: Sequence[str], **more: object) -> Properties:
    """Return an axis with labels at places."""
    return {
        "tickmode": "array",
        "tickvals": places,
        "ticktext": labels,
        "tickfont": {"size": 13},
        "showgrid": False,
        "zeroline": False,
        "ticklabelstandoff": 6,
        "automargin": True,
        "fixedrange": True,
        **more,
    }


def y_axis(title: str, **more: object) -> Properties:
    """Return a vertical axis of numbers."""
    return {
        "title": titled(title),
        "gridcolor": GRID,
        "zeroline": False,
        "automargin": True,
        **more,
    }


def x_axis(title: str, **more: object) -> Properties:
    """Return a horizontal axis."""
    return {
        "title": titled(title),
        "showgrid": True,
        "gridcolor": GRID,
        "zeroline": False,
        "showline": True,
        "linecolor": MUTED,
        "ticks": "outside",
        "tickcolor": MUTED,
        "tickformat": ",",
        **more,
    }


def heading(text: str, y: float, **more: object) -> Properties:
    """Return a text at the left, safe for Plotly already."""
    return {
        "text": text,
        "x": 0,
        "xref": "paper",
        "xanchor": "left",
        "y": y,
        "yref": "y",
        "yanchor": "middle",
        "showarrow": False,
        "font": {"size": 13},
        "align": "left",
        **more,
    }


def stripe(top: float, bottom: float, colour: str, **more: object) -> Properties:
    """Return a band of colour behind what is drawn."""
    corners = {"xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": top, "y1": bottom}
    look = {"type": "rect", "fillcolor": colour, "line": {"width": 0}, "layer": "below"}
    return {**corners, **look, **more}
