"""The lessons' pictures show what the texts say of them, and the texts explain what they show."""

from __future__ import annotations

import io
import re
from collections import defaultdict
from contextlib import redirect_stdout
from html import unescape
from itertools import pairwise

import numpy as np
import pytest
from lesson_answers import KEYS
from playing import LESSONS, cells, play, solutions

from gpuscope.timeline.plotly_parts import ticks_of
from gpuscope.timeline.raster import StaticFigure
from gpuscope_lessons.lesson import Lesson
from gpuscope_lessons.outcome import Feedback, Outcome
from gpuscope_lessons.question import Question


class Drawn:
    """What is to be seen in a timeline."""

    def __init__(self, figure):
        self.picture = figure._picture
        (panel,) = self.picture.panels
        self.scene = scene = panel.scene
        self.height = figure.layout.height
        self.rows = [label for _, label in sorted(ticks_of(panel.places))]
        self.words = [note.text for note in figure.layout.annotations]
        self.lines = [
            panel.zero_ns + shape.x0 * panel.unit_ns
            for shape in figure.layout.shapes
            if shape.type == "line" and shape.x0 == shape.x1
        ]
        self.legend = {how.name for how in (*self.picture.looks.values(), *self.picture.part_looks.values())}  # fmt: skip
        names = scene.tracks.coded["name"]
        self._names = [names.values[names.codes[row]] for row in scene.rows]
        tracks = [panel.places.tracks[place].label for place in scene.place]
        starts, ends = scene.start_ns.tolist(), scene.end_ns.tolist()
        self.bars = defaultdict(list)
        for bar in sorted(zip(tracks, starts, ends, self._names, strict=True), key=lambda bar: bar[1]):  # fmt: skip
            self.bars[bar[0]].append(bar[1:])

    def bar(self, row, name):
        """Return start and end of the first bar of this name in a row."""
        return next((start, end) for start, end, its in self.bars[row] if its == name)

    def names(self, row):
        """Return what bars of a row are called, from left to right."""
        return [name for _, _, name in self.bars[row]]

    def arrows(self, which):
        """Return the names of the work that ``waits`` or ``hazards`` lead from and to."""
        arrows = getattr(self.scene, which)
        return [
            (self._names[cause], self._names[effect])
            for cause, effect in zip(arrows.cause, arrows.effect, strict=True)
        ]

    @property
    def causes(self):
        """Names of the waits that are shaded, and of a prediction."""
        return {text for text in self.words if re.fullmatch("[A-Za-z ]+", text)}


EXPLAINED = {
    "a row of a stream": (lambda it: "whole GPU" in it.rows[0], "`whole GPU · queue`: "),
    "a row of what calls waited for": (
        lambda it: "calls, by cause" in it.rows,
        "`calls, by cause`: what each launch waited for",
    ),
    "a row of calls": (lambda it: any("API calls" in row for row in it.rows), "`API calls`"),
    "a row of waits": (
        lambda it: any("synchronisation" in row for row in it.rows),
        "`synchronisation`: where the host waits",
    ),
    "a row of ranges": (lambda it: "ranges" in it.rows, "The row `ranges` has"),
    "a row of calls of a handle": (
        lambda it: any(row.startswith("handle ") for row in it.rows),
        "The rows `handle job` and `handle later` have",
    ),
    "shares": (lambda it: any("%" in text for text in it.words), "At the right: "),
    "tops of columns": (
        lambda it: any("▔" in text for text in it.words),
        "`▔ 100 µs` at the right says how high the row reaches",
    ),
    "the start": (lambda it: bool(it.lines), "the vertical line is the kernel's start"),
    "shaded waits": (lambda it: bool(it.causes - {"your prediction"}), "The grey area is what"),
    "who held it": (
        lambda it: any(name.startswith("waiting for SMs") for name in it.legend),
        "the pattern says what a launch waited for, and the colour who ",
    ),
    "arrows": (lambda it: bool(it.arrows("waits")), "The arrow in the timeline is the wait"),
    "hazards": (
        lambda it: bool(it.arrows("hazards")),
        "Diamonds and a dotted arrow mark two pieces of work",
    ),
    "escapes": (lambda it: it.scene.columns.escapes.sum() > 0, "A triangle marks work that"),
}
"""What a picture may show → whether it does, and how the texts explain it."""


def explained_by(name, cell):
    """Return what learners have read when they have run a cell: it, and all that is before."""
    read = [one["source"] for before in LESSONS[: LESSONS.index(name)] for one in cells(before)]
    book = cells(name)
    at = [one["id"] for one in book].index(cell)
    return "\n".join(read + [one["source"] for one in book[: at + 1]])


# -- what texts say of pictures -----------------------------------------------------------


def lesson_1(drawn, said):
    launch = drawn["show-launch"]
    assert re.findall(r"- `([^`]+)`", said["show-launch"]) == launch.rows
    host = [(bar[0], row, bar[2]) for row in launch.rows[2:] for bar in launch.bars[row]]
    assert min(host)[1:] == ("API calls", "work"), "the launch is the first bar of the host"
    (start, _), (_, returned) = (launch.bar(row, "work") for row in (launch.rows[0], "API calls"))
    assert start < returned, "the kernel may start while that call still runs"
    assert abs(launch.lines[0] - start) < 1
    assert {"in the launch call", "on the way to the GPU"} <= launch.legend
    assert any("%" in text for text in launch.words)
    order = drawn["show-order"]
    assert "stream order" in order.causes
    assert "queued behind its stream" in order.legend
    assert order.names(order.rows[0]) == ["work"] * 3


def lesson_2(drawn, said):
    two, big = drawn["show-two"], drawn["show-big"]
    assert [row for row in two.rows if "GPU" in row] == ["whole GPU · s", "whole GPU · t"]
    fills = [how.fill for kind, how in two.picture.looks.items() if kind.kind == "kernel"]
    assert len(set(fills)) == 2, "a colour of its own"
    assert "waiting for SMs (stream s)" in big.legend
    assert "two" in big.names("whole GPU · t")


def lesson_3(drawn, said):
    assert len(drawn["show-mended"].arrows("waits")) == 1, "the arrow is the wait"
    assert not drawn["show-missing"].arrows("waits")
    assert drawn["check-diamond"].arrows("hazards")


def lesson_4(drawn, said):
    library, nested = drawn["show-library"], drawn["show-nested"]
    assert library.scene.columns.escapes.sum() == 1
    assert library.names("mine (16 SMs) · m") == ["polite_kernel"]
    assert library.names("whole GPU · private") == ["stubborn_kernel"]
    jobs = sorted(nested.bars["whole GPU · s"] + nested.bars["whole GPU · t"])
    assert len(jobs) == 3
    assert all(one[1] <= later[0] for one, later in pairwise(jobs))


def lesson_6(drawn, said):
    none = drawn["show-none"]
    ((start, end, name),) = none.bars["ranges"]
    low, high = none.scene.window_ns
    assert name.startswith("round")
    assert (start < low, high < end) == (True, True), "longer than what the picture shows"


def lesson_7(drawn, said):
    completion = drawn["show-completion"]
    assert {"handle job", "handle later"} <= set(completion.rows)
    ends = {name: completion.bars[f"handle {name}"][0][1] for name in ("job", "later")}
    assert ends["job"] < completion.scene.window_ns[1] <= ends["later"], "its bar is open"


def lesson_8(drawn, said):
    capture, cost = drawn["show-capture"], drawn["show-cost"]
    assert capture.names("ranges") == ["capture", "launch"]
    assert capture.rows.index("whole GPU · s") < capture.rows.index("ranges")
    assert "nothing runs above the range capture" in said["show-capture"]
    _, captured = capture.bar("ranges", "capture")
    assert min(bar[0] for bar in capture.bars["whole GPU · s"]) >= captured
    work = cost.bars["whole GPU · s"]
    assert len(work) == 40, "the kernels run twice"
    gaps = np.array([later[0] - one[1] for one, later in pairwise(work)])
    assert gaps[:19].min() > gaps[20:].max(), "at first each waits for its launch"


def lesson_9(drawn, said):
    gaps, overlap = drawn["show-gaps"], drawn["show-overlap"]
    low, high = gaps.scene.window_ns
    kernels = [bar for bar in gaps.bars["whole GPU · s"] if low <= bar[0] and bar[1] <= high]
    assert len(kernels) >= 2
    for start, end, _ in kernels:
        waits = [bar for bar in gaps.bars["synchronisation"] if bar[0] < end and bar[1] > start]
        assert waits, "a wait of the host below each kernel"
    assert gaps.rows.index("whole GPU · s") < gaps.rows.index("synchronisation")
    assert [effect for _, effect in overlap.arrows("waits")] == ["b"]
    assert len(drawn["run-case-c"].arrows("waits")) == 5, "of six rounds, one has no arrow"
    assert "synchronisation" in drawn["run-case-b"].rows


def lesson_10(drawn, said):
    for cell in ("show-cupy", "show-range"):
        assert drawn[cell].names("ranges") == ["prepare", "products", "back to the host"]
    lengths = {name: end - start for start, end, name in drawn["show-cupy"].bars["ranges"]}
    assert max(lengths, key=lengths.get) == "back to the host"


def lesson_11(drawn, said):
    offload = drawn["show-offload"]
    ((first, second),) = offload.arrows("hazards")
    start, end = offload.bar("whole GPU · compute", first)
    begins, _ = offload.bar("whole GPU · store", second)
    assert start < begins < end, "the bars overlap"


def lesson_13(drawn, said):
    assert "scale" in drawn["show-late"].names("whole GPU · s")
    assert {"(2)", "(4)"} <= set(drawn["show-host"].names("ranges"))


def lesson_14(drawn, said):
    for cell in ("server", "run-after"):
        assert {name.split()[0] for name in drawn[cell].names("ranges")} <= {"token", "admit"}
        assert "synchronisation" in drawn[cell].rows
    assert drawn["check-slo"].height < 1000, "the library's stream has one row"


SAID = {
    "01": lesson_1, "02": lesson_2, "03": lesson_3, "04": lesson_4, "06": lesson_6,
    "07": lesson_7, "08": lesson_8, "09": lesson_9, "10": lesson_10, "11": lesson_11,
    "13": lesson_13, "14": lesson_14,
}  # fmt: skip
"""Lesson → what its texts say of its pictures; lessons 5 and 12 say nothing of them."""


@pytest.fixture(scope="module", params=LESSONS)
def shown(request):
    """A lesson's name, what its cells left when nobody changed a program, and what they printed."""
    with redirect_stdout(io.StringIO()) as printed:
        played = play(request.param, answers=KEYS[request.param].right)
    return request.param, played, printed.getvalue()


def test_pictures_are_as_the_texts_say_and_explained(shown):
    name, played, _ = shown
    drawn = {}
    for cell, value in played.values.items():
        figure = value if isinstance(value, StaticFigure) else getattr(value, "figure", None)
        if isinstance(figure, StaticFigure):
            drawn[cell] = Drawn(figure)
    assert drawn
    for cell, picture in drawn.items():
        assert not any(row.startswith("▸") for row in picture.rows), "the host is not folded"
        read = explained_by(name, cell)
        for what, (is_shown, text) in EXPLAINED.items():
            assert not is_shown(picture) or text in read, (cell, what)
    if name[:2] in SAID:
        SAID[name[:2]](drawn, {one["id"]: one["source"] for one in cells(name)})


DONE_TOGETHER = {"task-offload"}
"""Exercises whose solution the lesson shows itself, and says so."""


def test_no_output_tells_a_solution(shown):
    name, played, printed = shown
    book = {one["id"]: one for one in cells(name)}
    outputs = "\n".join(
        [printed]
        + [
            unescape(re.sub("<[^>]*>", "", getattr(value, "_repr_html_", lambda: "")() or ""))
            + repr(value)
            for cell, value in played.values.items()
            if not isinstance(value, Lesson | Question | Outcome | Feedback)  # which teach
        ]
    )
    for task, solution in solutions(name).items():
        given = {line.strip() for line in book[task]["source"].splitlines()}
        added = {line.strip() for line in solution.splitlines()} - given
        told = [line for line in added if len(line) > 10 and line in outputs]
        assert not told or task in DONE_TOGETHER, (task, told)
