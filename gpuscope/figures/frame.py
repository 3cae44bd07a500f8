"""One view of a timeline as plain data: what the static figure and the widget both draw."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gpuscope.figures.bars import arrows, bar_properties
from gpuscope.figures.coverage import coverage_image
from gpuscope.figures.labels import Class
from gpuscope.figures.places import Places
from gpuscope.figures.style import Properties
from gpuscope.figures.text import clean
from gpuscope.figures.view import LANES, View


@dataclass(frozen=True)
class Frame:
    """What is drawn of one window.

    Attributes
    ----------
    bars
        Class → base, x, y, width, hovertext, customdata (rows) of its bar trace; ranges have
        text too. Only classes that have spans in the window.
    arrows
        x, y and marker.size of the event waits' trace; ``left_out`` waits have none.
    image
        Layout image of what has no bar; ``None`` where every span has one.
    """

    bars: dict[Class, Properties]
    arrows: Properties
    left_out: int
    image: Properties | None


def frame_of(
    view: View,
    places: Places,
    colours: dict[str, str],
    *,
    zero_ns: int,
    unit_ns: float = 1e3,
) -> Frame:
    """Return what is drawn of a view.

    Parameters
    ----------
    places
        Where the tracks of the view stand.
    colours
        Partition → colour, as of ``style.partition_colours``.
    zero_ns
        Where the time axis starts to count.
    unit_ns
        Its unit, µs by default.
    """
    waits, left_out = arrows(view, places, zero_ns, unit_ns)
    return Frame(
        bar_properties(view, places, zero_ns, unit_ns),
        waits,
        left_out,
        coverage_image(view.found, places, colours, zero_ns, unit_ns),
    )


def statement(view: View, *, besides: Collection[str] = ()) -> str:
    """Say in plain text what is drawn and what is not.

    Parameters
    ----------
    besides
        Kinds that are drawn elsewhere in the figure.
    """
    total, drawn = view.total, len(view.found.rows)
    if total > drawn:
        merged = view.found.merged
        said = [f"{drawn:,} of {total:,} spans drawn, widest first"]
        if merged:
            which = "narrower ones" if drawn else "spans"
            said.append(f"{merged:,} {which} merged into the shading of their track")
        if view.hidden_tracks:
            hidden = total - view.found.total
            said.append(f"{view.hidden_tracks:,} less busy tracks not shown, with {hidden:,} spans")
    elif total:
        said = [f"all {total:,} spans of the window drawn"]
    else:
        said = ["no spans in the window"]
    opened = sum(view.is_open)
    if opened:
        said.append(f"{opened:,} open, drawn to the window's end")
    if view.crowded:
        names = ", ".join(clean(name, 30) for name in view.crowded[:3])
        said.append(f"more than {LANES} at once share a line in {names}")
    unseen = [
        f"{count:,} {clean(kind)}"
        for kind, count in view.tracks.elsewhere().items()
        if kind not in besides
    ]
    if unseen:
        said.append(f"rows of other kinds not shown: {', '.join(unseen)}")
    return "; ".join(said)
