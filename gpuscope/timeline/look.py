"""How the bars and columns of a class look: colour says where it ran, pattern says what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuscope._text import stream_label
from gpuscope.analysis.part import PartKind
from gpuscope.telling.explanation import in_words
from gpuscope.timeline import style
from gpuscope.timeline.counter_lanes import LaneFacts
from gpuscope.timeline.labels import Class, partition_label
from gpuscope.timeline.readings import THROTTLED
from gpuscope.timeline.text import clean
from gpuscope.timeline.tracks import Tracks
from gpuscope.timeline.waiting import PartClass
from gpuscope.timeline.words import OUTSIDE, shared_lines
from gpuscope.trace.schema import WAITS_FOR_LOCK


@dataclass(frozen=True)
class Look:
    """The look of a class.

    Attributes
    ----------
    name
        In a legend, plain text.
    fill, edge, text
        Colours of bars, their outlines, and names in them.
    pattern
        What the fill consists of, as ``HATCHES`` calls it; empty: it is plain.
    lines
        What its tooltips end with, plain text.
    """

    name: str
    fill: str
    edge: str
    text: str
    pattern: str
    escaped: bool
    lines: tuple[str, ...]


def look(
    tracks: Tracks,
    bar_class: Class,
    colours: dict[str, str],
    outlined: Callable[[str], str] = style.darker,
) -> Look:
    """Return how a class looks; ``outlined`` colours its outline."""
    kind, partition, is_open, escaped, stream = bar_class
    how = style.KIND_STYLES[kind]
    name = how.label.partition(",")[0] + (", open" if is_open else "")
    if partition is None:
        is_slowed = kind in (THROTTLED, WAITS_FOR_LOCK)
        colour = style.SLOWED_COLOUR if is_slowed else style.HOST_COLOUR
    elif stream:
        colour, name = colours[stream], f"{stream_label(stream, 24)}: {name}"
    elif not partition:
        colour, name = style.WHOLE_GPU_COLOUR, f"whole GPU: {name}"
    else:
        colour, name = colours[partition], f"{clean(partition, 24)}: {name}"
    if escaped:
        colour, name = style.ESCAPED, f"{OUTSIDE} to {name}"
    fill = style.tinted(colour, 0.7 * how.strength if is_open else how.strength)
    return Look(
        name=name,
        fill=fill,
        edge=colour if escaped else outlined(colour),
        text=style.on(fill),
        pattern="x" if escaped else how.pattern or ("-" if is_open else ""),
        escaped=escaped,
        lines=tuple(shared_lines(tracks, bar_class)),
    )


PATTERNS: dict[PartKind, str] = {
    "launch call": "-",
    "on the way": ".",
    "stream order": "\\",
    "event wait": "x",
    "graph order": "x",
    "legacy default stream": "x",
    "collective": "x",
    "SMs held": "/",
    "priority": "/",
    "copy engine": "o",
    "request queue": "o",
    "running": "",
    "not looking": "|",
    "host": "-",
    "unexplained": "+",
}
"""Kind of a part → its pattern: a name in :data:`HATCHES <gpuscope.timeline.hatches.HATCHES>`."""


@dataclass(frozen=True)
class PartLook:
    """The look of parts of calls.

    Attributes
    ----------
    name
        Plain text: what it was, and in brackets for whom it waited.
    who
        For whom it waited.
    """

    name: str
    fill: str
    pattern: str
    who: str = ""


def part_look(tracks: Tracks, part: PartClass, colours: dict[str, str]) -> PartLook:
    """Return how parts look: colour says who, pattern says what."""
    words, pattern = in_words(part.kind), PATTERNS[part.kind]
    if part.partition is None:
        return PartLook(words, style.HOST_COLOUR, pattern)
    colour = colours.get(part.partition or part.stream, style.WHOLE_GPU_COLOUR)
    if part.kind in ("running", "stream order"):
        return PartLook(words, colour, pattern)
    who = stream_label(part.stream, 24) if part.stream else ""
    who = who or partition_label(tracks.names, part.partition or None)
    return PartLook(f"{words} ({who})", colour, pattern, who)


def layer_looks(lane: LaneFacts, colours: dict[str, str]) -> list[PartLook]:
    """Return how the layers of a lane of counters look, from the bottom."""
    colour = style.WHOLE_GPU_COLOUR
    if lane.partition is not None:
        colour = colours.get(lane.partition, colour)
    looks = []
    for layer in lane.layers:
        how = style.LAYER_STYLES[layer]
        name = how.label
        if lane.by_model:
            name = name.removesuffix(", told") + ", by model"
        fill = style.HOST_COLOUR if layer == "unused" else style.tinted(colour, how.strength)
        looks.append(PartLook(name, fill, ""))
    return looks
