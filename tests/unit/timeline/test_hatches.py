"""Patterns and marks are data: every part has one, and all who draw can draw it."""

from __future__ import annotations

import json
import shutil
import subprocess

import numpy as np
import pytest

from gpuscope.timeline.canvas import tiles
from gpuscope.timeline.hatches import CELL, ESCAPED, HATCHES, MARKS, TINT, Hatch
from gpuscope.timeline.look import PATTERNS
from gpuscope.timeline.style import KIND_STYLES


def test_whatever_is_hatched_has_a_pattern_that_is_known():
    kinds = {how.pattern for how in KIND_STYLES.values()}
    assert kinds | set(PATTERNS.values()) <= {"", *HATCHES}


def test_patterns_differ_and_show_what_is_behind_them():
    masks = [hatch.mask(TINT) for hatch in (*HATCHES.values(), ESCAPED)]
    for number, mask in enumerate(masks):
        assert mask.shape == (CELL, CELL)
        assert mask.min() == TINT < mask.max() <= 1
        assert all(np.abs(mask - other).max() > 0.1 for other in masks[:number])


def test_a_stroke_covers_the_pixels_on_it():
    mask = Hatch((((0.0, 3.0), (6.0, 3.0)),), 2, "-").mask(0)
    assert mask.tolist() == [[row in (2, 3)] * CELL for row in range(CELL)]


DRAWN = """
globalThis.Path2D = class { constructor(path) { this.path = path; } };
const pen = { fillRect() {}, stroke({ path }) { this.paths.push([path, this.lineWidth, this.strokeStyle]); } };
globalThis.document = { createElement: () => ({ append() {}, getAttribute: () => null, setAttribute() {}, getContext: () => pen, style: {} }) };
const drawn = {};
for (const pattern of [...Object.keys(LOOKS.hatches), "escaped"]) {
  pen.paths = drawn[pattern] = [];
  patternCell({ fill: "#123456", pattern, escaped: pattern === "escaped" });
}
console.log(JSON.stringify([drawn, LOOKS.marks]));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_canvas_draws_the_same_strokes_and_marks():
    node = subprocess.run(
        ["node", "-e", tiles.DOM + DRAWN], capture_output=True, text=True, check=False
    )
    assert node.returncode == 0, node.stderr
    drawn, marks = json.loads(node.stdout)
    for name, hatch in {**HATCHES, "escaped": ESCAPED}.items():
        colour = "#1B1F24" if name == "escaped" else "#123456"
        strokes = [
            tuple(tuple(map(float, point.split(","))) for point in path[1:].split("L"))
            for path, *_ in drawn[name]
        ]
        assert tuple(strokes) == hatch.strokes
        assert all(how == [hatch.width, colour] for _, *how in drawn[name])
    for name, mark in MARKS.items():
        assert [tuple(corner) for corner in marks[name]] == list(mark.corners)
