"""Scenes one under the other on one time axis: what a figure and its PNG are painted from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpuscope._types import Array
from gpuscope.timeline import style
from gpuscope.timeline.counter_lanes import LaneColumns
from gpuscope.timeline.labels import LANE_MARGIN, WAITS_PX, Class, LanePlace, Places, in_order
from gpuscope.timeline.look import Look, PartLook, layer_looks, look, part_look
from gpuscope.timeline.scene import Scene
from gpuscope.timeline.style import Properties
from gpuscope.timeline.waiting import Boxes, PartClass, boxes_of

HAZARD = "hazard: in no order"
"""What the legend calls arrows between work that nothing orders."""


@dataclass(frozen=True)
class Panel:
    """A scene in its place.

    Attributes
    ----------
    zero_ns, unit_ns
        Where the time axis starts to count, and its unit.
    """

    scene: Scene
    places: Places
    zero_ns: int
    unit_ns: float = 1e3

    def x(self, time_ns: Array | int) -> Array:
        """Return times on the axis."""
        return (np.asarray(time_ns) - self.zero_ns) / self.unit_ns

    def counters(self) -> Iterator[tuple[LanePlace, LaneColumns]]:
        """Yield the lanes of counters in their places."""
        for spot in self.places.counters:
            yield spot, self.scene.counters[spot.number]

    def boxes(self, edges: Array) -> tuple[Boxes, Array, Array]:
        """Return what lanes draw in columns between edges, and the px of tops and bottoms."""
        lanes = np.array([*self.places.lanes, 0])
        boxes, _ = boxes_of(self.scene.waiting, self.scene.window_ns, edges)
        boxes = Boxes(*(side[lanes[boxes.at_row] > 0] for side in boxes))
        bottom = lanes[boxes.at_row] + WAITS_PX - LANE_MARGIN
        tall = WAITS_PX - 2 * LANE_MARGIN
        return boxes, bottom - tall * boxes.high, bottom - tall * boxes.low


@dataclass(frozen=True)
class Picture:
    """Panels, and the layout that Plotly has around them, SMs below them included.

    Attributes
    ----------
    colours
        Of partitions.
    unit
        Of the time axis.
    """

    panels: tuple[Panel, ...]
    colours: dict[str, str]
    unit: str
    layout: Properties

    @cached_property
    def looks(self) -> dict[Class, Look]:
        """How classes look, in the order of drawing."""
        return looks_of([panel.scene for panel in self.panels], self.colours)

    @cached_property
    def layer_looks(self) -> list[PartLook]:
        """How the layers look that lanes of counters draw: the first of each name."""
        looks: dict[str, PartLook] = {}
        for panel in self.panels:
            for _, lane in panel.counters():
                for how, is_drawn in zip(
                    layer_looks(lane.facts, self.colours), lane.is_drawn, strict=True
                ):
                    if is_drawn:
                        looks.setdefault(how.name, how)
        return [*looks.values()]

    @cached_property
    def part_looks(self) -> dict[PartClass, PartLook]:
        """How parts of calls look."""
        return {
            part: part_look(panel.scene.tracks, part, self.colours)
            for panel in self.panels
            for part in panel.scene.waiting.classes
        }


def looks_of(scenes: Iterable[Scene], colours: dict[str, str]) -> dict[Class, Look]:
    """Return how the classes that scenes show look, in the order of drawing."""
    tracks = {
        bar_class: scene.tracks for scene in reversed([*scenes]) for bar_class in scene.classes
    }
    return {kind: look(tracks[kind], kind, colours) for kind in in_order(tracks, colours)}


def arrow_colours(scenes: Iterable[Scene]) -> dict[str, str]:
    """Return what a legend calls the arrows that scenes have, and their colours."""
    drawn = [*scenes]
    names = {}
    if any(len(scene.waits.cause) for scene in drawn):
        joint = np.concatenate([scene.waits.joint for scene in drawn])
        name = "event wait, collective" if joint.any() else "event wait"
        names["collective: last to begin → end" if joint.all() else name] = style.INK
    if any(len(scene.hazards.cause) for scene in drawn):
        names[HAZARD] = style.ESCAPED
    return names
