"""The timeline in JupyterLab, driven by a real browser with mouse and keys."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import nbformat
import pytest
import rule
from jupyter_lab import (
    BUSY,
    IDLE,
    ask,
    check_accessibility,
    choose_theme,
    eventually,
    open_in_tab,
    sizes_of_messages,
    walk,
)
from PIL import Image

expect = pytest.importorskip("playwright.sync_api").expect

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "test-results"
IMAGES = ROOT / "docs" / "images"
ROOM = ".gpuscope-timeline"
PLOT = f"{ROOM} .js-plotly-plot"

LISTEN = """() => {
    window.frames_painted = [];
    window.unanswered = new Set();  // messages that the kernel has not handled yet
    window.listens ??= (window.addEventListener('gpuscope-painted',
        event => window.frames_painted.push(event.detail.frame), true), true);
    const { kernel } = window.jupyterapp.shell.currentWidget.sessionContext.session;
    kernel.anyMessage.connect((_, { msg, direction }) => {
        if (direction === 'send' && msg.channel === 'shell') unanswered.add(msg.header.msg_id);
        if (msg.content.execution_state === 'idle') unanswered.delete(msg.parent_header.msg_id);
    });
}"""
# The page has had a frame of its own to say what there is to say, and the kernel has heard it.
ANSWERED = """() => new Promise(done => requestAnimationFrame(
    () => setTimeout(() => done(window.unanswered.size === 0))))"""
RECORD = """
import gpuscope as gs
gpu = gs.open_device("sim:h200", quiet=True)
with gpu.carve({"small": 16, "load": "rest"}) as parts:
    s = parts["small"].create_stream(name="s")
    t = parts["load"].create_stream(name="t")
    small = gs.Gemm(gpu, m=512, n=512, k=512, name="<b>small</b>")
    load = gs.Gemm(gpu, m=2048, n=2048, k=2048, name="load")
    with gs.profile(gpu) as recording:
        for step in range(40):
            with gs.annotate(f"step {step}"):
                small.execute(stream=s)
                if step % 8 == 0:
                    t.wait(s.record())
                load.execute(stream=t)
                small.wait()
        load.wait()
"""
SHOW = """
timeline = gs.Timeline(recording.trace)
timeline
"""
MANY = """
import gpuscope as gs
from gpuscope.trace import Trace
count = 3000
trace = Trace.from_columns({
    "id": list(range(count)), "kind": ["kernel"] * count,
    "name": [f"<i>kernel {n}</i>" for n in range(count)],
    "start_ns": [n * 1000 for n in range(count)], "end_ns": [n * 1000 + 700 for n in range(count)],
    "source": ["cupti"] * count, "stream": [n % 3 for n in range(count)],
    "partition": ["decode"] * count,
})
"""
LIVE = """
from pathlib import Path
from gpuscope.workloads.spin import Spin
gpu = gs.open_device("sim:h200", pace="real", quiet=True)
work = Spin(gpu, duration_ns=2_000_000, name="work")
with gpu.create_stream(name="s") as stream, gs.profile(gpu, live=True) as recording:
    number = 0
    while not Path("enough").exists():  # keeps Python busy
        with gs.annotate(f"round {number}"):
            work.execute(stream=stream)
            work.wait()
        number += 1
print("rounds", number)
"""

pytestmark = pytest.mark.ui


def write_notebook(lab, *cells) -> None:
    book = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell.strip()) for cell in cells],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    nbformat.write(book, lab.folder / "timeline.ipynb")


def open_alone(page, lab, *cells) -> None:
    """Open a notebook of these cells in a page of its own."""
    write_notebook(lab, *cells)
    page.goto(lab.page("timeline.ipynb"))
    page.wait_for_function(IDLE)
    page.evaluate(LISTEN)


@pytest.fixture
def open_notebook(lab, lab_page):
    """Open a notebook of these cells; returns the page."""

    def open_(*cells, dark=False):
        choose_theme(lab_page, "Dark" if dark else "Light")
        write_notebook(lab, *cells)
        open_in_tab(lab_page, lab, "timeline.ipynb")
        lab_page.evaluate(LISTEN)
        return lab_page

    yield open_
    choose_theme(lab_page, "Light")


@pytest.fixture
def console(lab_page):
    """Errors that the page logs or that nobody caught."""
    said: list[str] = []
    listeners = {
        "console": lambda message: said.append(message.text) if message.type == "error" else None,
        "pageerror": lambda error: said.append(str(error)),
    }
    for event, listener in listeners.items():
        lab_page.on(event, listener)
    yield said
    for event, listener in listeners.items():  # the page is the session's
        lab_page.remove_listener(event, listener)
    assert not said, "\n".join(said)


@pytest.fixture
def shot(lab_page):
    """Save screenshots to test-results/, the last one also when the test fails."""
    RESULTS.mkdir(exist_ok=True)
    yield lambda name: lab_page.screenshot(path=RESULTS / f"timeline-{name}.png")
    lab_page.screenshot(path=RESULTS / "timeline-last.png")


# After what the toolbar shows, the page tells that the frame it came with is painted.
TOLD_PAINTED = "() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))"


def run_all(page) -> None:
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")


def painted(page) -> None:
    """Wait until all that the page asked for is painted, and it asks for nothing more."""
    page.wait_for_function("() => window.frames_painted.length > 0")
    before, sent = "", "none"
    while sent != before:
        page.wait_for_function(ANSWERED)
        before, sent = sent, ask(page, "timeline.wait(); print(timeline.bar.frame)")


def window_of(page) -> tuple[int, int]:
    low, high = json.loads(ask(page, "print(list(timeline.window_ns))"))
    return low, high


def show(page):
    run_all(page)
    page.locator(f"{PLOT} .gpuscope-tiles").wait_for()
    page.locator(ROOM).scroll_into_view_if_needed()
    painted(page)
    return page.locator(f"{PLOT} .nsewdrag").first.bounding_box()


def ticks(page) -> str:
    return " ".join(page.locator(f"{PLOT} .xaxislayer-above text").all_text_contents())


def stands_still(page) -> bool:
    """Whether the axis stays, as soon as frames that were under way are painted."""
    before = ""
    for _ in range(40):
        before, now = ticks(page), before
        if before == now:
            return True
        time.sleep(0.5)
    return False


def bar_of(page, area, label: str) -> tuple[float, float]:
    """Where a kernel of a stream is on the page, as the kernel knows it."""
    x, y = json.loads(
        ask(
            page,
            f"""
drawn = timeline.drawn
rows = [int(row) for row in drawn.scene.rows if {label!r} in
        next(one.label for one in drawn.snapshot.places.tracks
             if drawn.snapshot.tracks.track[row] in one.numbers)]
low, high = timeline.window_ns
inside = sorted(row for row in rows if low < drawn.snapshot.tracks.start_ns[row]
                and drawn.snapshot.tracks.end_ns[row] < high)
row = inside[len(inside) // 2]
middle = (int(drawn.snapshot.tracks.start_ns[row]) + int(drawn.snapshot.tracks.end_ns[row])) / 2
print([(middle - low) / (high - low), drawn.place(row)[0] / drawn.snapshot.height])
""",
        )
    )
    return area["x"] + x * area["width"], area["y"] + y * area["height"]


def drag(page, start: tuple[float, float], by: float) -> None:
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(start[0] + by / 2, start[1], steps=5)
    page.mouse.move(start[0] + by, start[1], steps=5)
    page.mouse.up()


def test_a_click_tells_all_of_a_span_and_keys_move_the_view(open_notebook, console, shot):
    page = open_notebook(RECORD, SHOW)
    area = show(page)
    shot("whole")
    expect(page.locator(f"{PLOT} .gtitle").first).to_contain_text("SIMULATED")

    def fills_its_place() -> None:
        around = page.locator(ROOM).bounding_box()
        svg = page.locator(f"{PLOT} .main-svg").first.bounding_box()
        assert svg["width"] > 0.95 * around["width"], "the plot does not fill its place"

    eventually(fills_its_place)

    # A click: all that is known of the span, and what it depends on.
    page.mouse.click(*bar_of(page, area, "· t"))
    details = page.get_by_role("region", name="Details of the selected span")
    details.get_by_text("from its launch call to its end").wait_for()
    expect(details).to_contain_text("gemm_float16_2048x2048x2048")
    expect(details).to_contain_text("partition load")
    details.get_by_role("button", name=re.compile("range step")).wait_for()
    painted(page)
    lines = page.locator(f"{PLOT} .scatterlayer .js-line")
    lines.nth(1).wait_for(state="attached")  # an outline, an arrow

    # Keys, now that the plot has the focus.
    whole = window_of(page)
    before = ticks(page)
    page.keyboard.press("w")
    page.keyboard.press("w")

    def is_near() -> None:
        low, high = window_of(page)
        assert high - low == pytest.approx((whole[1] - whole[0]) / 4, rel=0.01)
        assert ticks(page) != before

    eventually(is_near)
    near = window_of(page)
    page.keyboard.press("d")

    def is_later() -> None:
        assert window_of(page)[0] > near[0]

    eventually(is_later)
    selected = ask(page, "print(timeline.selected)")
    page.keyboard.press("ArrowRight")

    def is_next() -> None:
        assert ask(page, "print(timeline.selected)") != selected

    eventually(is_next)
    page.get_by_text(re.compile("selected: gemm_float16_2048")).wait_for()
    assert page.locator(".jp-Notebook .jp-Cell").count() == 2, "a key reached the notebook"


def test_dragging_searching_measuring_hiding_and_resizing(open_notebook, console, shot):
    page = open_notebook(RECORD, SHOW)
    area = show(page)
    height = page.locator(f"{PLOT} .main-svg").first.bounding_box()["height"]
    whole = window_of(page)
    for _ in range(3):
        page.get_by_role("button", name="Zoom in").click()

    def is_near() -> None:
        low, high = window_of(page)
        assert high - low == pytest.approx((whole[1] - whole[0]) / 8, rel=0.01)

    eventually(is_near)
    painted(page)

    # A drag to the right goes back in time.
    at = window_of(page)
    drag(page, (area["x"] + 300, area["y"] + 30), 200)
    expected = at[0] - (at[1] - at[0]) * 200 / area["width"]

    def is_earlier() -> None:
        assert window_of(page)[0] == pytest.approx(expected, abs=(at[1] - at[0]) * 0.02)

    eventually(is_earlier)

    # Search, next and previous; names are shown as they are.
    page.keyboard.press("/")
    page.keyboard.type("step 1")
    page.keyboard.press("Enter")
    page.get_by_text(re.compile("selected: step 1")).wait_for()
    page.locator(f"{ROOM} .found", has_text=re.compile("of 11$")).wait_for()
    page.get_by_role("button", name="Next match").click()
    page.get_by_role("searchbox").fill("<b>small")
    page.keyboard.press("Enter")
    details = page.get_by_role("region", name="Details of the selected span")
    details.get_by_text("All columns").click()
    details.get_by_role("cell", name="<b>small</b>").first.wait_for()
    shot("search")
    page.get_by_role("searchbox").focus()
    page.keyboard.press("Escape")
    page.keyboard.press("f")

    def is_whole() -> None:
        assert window_of(page) == whole

    eventually(is_whole)

    # Measure, then hide a track; the plot never changes its height.
    page.locator(f"{ROOM} .gpuscope-timeline-bar").scroll_into_view_if_needed()
    area = page.locator(f"{PLOT} .nsewdrag").first.bounding_box()
    page.keyboard.press("m")
    page.mouse.click(area["x"] + 200, area["y"] + 40)
    page.mouse.click(area["x"] + 400, area["y"] + 40)
    page.wait_for_function(
        f"() => document.querySelector('{ROOM} .status').innerText.includes('between the two')"
    )
    page.locator(f"{ROOM} summary", has_text="Tracks").click()
    page.get_by_label("API calls").uncheck()
    page.wait_for_function(
        f"() => !document.querySelector('{PLOT} .yaxislayer-above').textContent.includes('API')"
    )
    assert page.locator(f"{PLOT} .main-svg").first.bounding_box()["height"] == height
    page.set_viewport_size({"width": 1000, "height": 1000})  # asks again when resized
    page.wait_for_function(
        f"""() => {{
            const room = document.querySelector('{ROOM}').clientWidth;
            const svg = document.querySelector('{PLOT} .main-svg').clientWidth;
            return room < 900 && Math.abs(svg - room) < 40;
        }}"""
    )


INK = """() => {
    const canvas = document.querySelector('.gpuscope-tiles');
    const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    let painted = 0;
    for (let at = 3; at < pixels.length; at += 4) painted += pixels[at] > 0;
    return painted / (pixels.length / 4);
}"""
"""Which part of the canvas is painted."""
LAST = """() => {
    const { low, high } = window.canvas_frames.at(-1) ?? { low: 0, high: 0 };
    return [low, high, window.canvas_frames.length];
}"""
"""What the canvas shows, and how many frames it has painted."""


def show_many(page):
    run_all(page)
    page.locator(f"{PLOT} .gpuscope-tiles").wait_for()
    page.locator(ROOM).scroll_into_view_if_needed()
    painted(page)
    return page.locator(f"{PLOT} .nsewdrag").first.bounding_box()


def test_many_spans_are_painted_and_moved_by_the_page_alone(open_notebook, console, shot):
    page = open_notebook(MANY, SHOW.replace("recording.trace", "trace"))
    area = show_many(page)
    page.evaluate(rule.WATCH)
    assert page.locator(f"{PLOT} .barlayer .point path").count() <= 1, "these are Plotly's"
    page.wait_for_function(f"() => ({INK})() > 0.1")
    kernel = int(ask(page, "import os; print(os.getpid())"))

    # The kernel stands still: the page moves on its own.
    whole = ticks(page)
    os.kill(kernel, signal.SIGSTOP)
    try:
        page.locator(PLOT).focus()
        for _ in range(4):
            page.keyboard.press("w")

        def is_near() -> None:
            low, high, count = page.evaluate(LAST)
            assert high - low == pytest.approx(3_000_000 / 16, rel=0.01)
            assert count >= 4
            assert page.evaluate(INK) > 0.1
            assert ticks(page) != whole

        eventually(is_near)
        last, _, _ = page.evaluate(LAST)
        drag(page, (area["x"] + 300, area["y"] + 30), 200)
        page.wait_for_function(f"() => window.canvas_frames.at(-1).low < {last} - 30000")
        page.mouse.move(area["x"] + 5, area["y"] + 5)
    finally:
        os.kill(kernel, signal.SIGCONT)

    def is_known() -> None:
        low, high = window_of(page)
        moved, _, _ = page.evaluate(LAST)
        assert moved < last - 30000
        assert low == pytest.approx(moved, abs=100)
        assert high - low == pytest.approx(3_000_000 / 16, rel=0.01)

    eventually(is_known)
    page.wait_for_function("() => window.canvas_frames.at(-1).missing === 0")


def test_what_the_page_paints_can_be_pointed_at_hidden_and_saved(open_notebook, console, shot):
    page = open_notebook(MANY, SHOW.replace("recording.trace", "trace"))
    area = show_many(page)
    page.locator(PLOT).focus()
    for _ in range(4):
        page.keyboard.press("w")
    painted(page)

    # What is under the pointer; a click tells all of it, below the plot.
    x, y = json.loads(ask(page, """
drawn, (low, high) = timeline.drawn, timeline.window_ns
row = int(((low + high) / 2) // 1000)
print([(row * 1000 + 400 - low) / (high - low), drawn.place(row)[0] / drawn.snapshot.height])
"""))  # fmt: skip
    at = area["x"] + x * area["width"], area["y"] + y * area["height"]
    page.mouse.move(*at)
    tip = page.locator(f"{PLOT} .gpuscope-tip")
    tip.wait_for()
    said = tip.inner_text()
    assert re.search(
        r"^<i>kernel \d+</i>\n700 ns\nstream \d\nstarts at [\d,.]+ µs\nkernel", said
    ), said
    box = page.locator(PLOT).bounding_box()
    page.mouse.click(*at)
    details = page.get_by_role("region", name="Details of the selected span")
    details.get_by_text("All columns").click()
    details.get_by_text("start_ns").wait_for()
    expect(details).to_contain_text(said.split("\n")[0])

    def is_below() -> None:
        dock, plot = details.bounding_box(), page.locator(PLOT).bounding_box()
        assert plot == box, "the plot's box changes"
        assert dock["y"] >= plot["y"] + plot["height"] - 1

    eventually(is_below)
    shot("many")

    # The legend hides a class here, too, and a picture that is saved has the bars.
    with page.expect_download() as saved:
        page.locator(f"{PLOT} .modebar-btn[data-title*=PNG]").click()
    picture = Image.open(saved.value.path()).convert("RGB")
    colours = {colour for _, colour in picture.getcolors(1 << 24)}
    assert any(abs(red - green) > 60 or abs(green - blue) > 60 for red, green, blue in colours)
    page.locator(f"{PLOT} .legendtoggle").first.click()
    page.wait_for_function(f"() => ({INK})() < 0.01")


def test_it_can_be_used_without_a_mouse(lab, browser_page):
    page, said = browser_page, []  # a page that had no mouse either: outlines depend on that
    page.on(
        "console", lambda message: said.append(message.text) if message.type == "error" else None
    )
    page.on("pageerror", lambda error: said.append(str(error)))
    open_alone(page, lab, RECORD, SHOW)
    show(page)
    reached = walk(page, ROOM)
    assert [one for one in reached if one.startswith("Timeline. Pan left (A)")], reached
    labels = ("Pan left", "Zoom in", "All: show everything", "Next call", "Search names of spans")
    assert not {*labels, "Each row of the host", "Tracks"} - {*reached}
    keys = page.locator(f"{ROOM} [aria-keyshortcuts]").evaluate_all(
        "all => all.map(one => one.getAttribute('aria-keyshortcuts'))"
    )
    assert sorted(keys) == sorted(
        [*"WSADFZXLHMNR/", "Shift+N", "ArrowLeft", "ArrowRight", "Escape"]
    )
    plot = page.locator(PLOT)
    expect(plot).to_have_attribute("role", "application")
    plot.focus()
    page.keyboard.press("ArrowRight")
    page.get_by_role("region", name="Details of the selected span").wait_for()
    expect(page.locator(f"{ROOM} [role=status]")).to_have_count(1)
    assert not said, "\n".join(said)


def test_frames_arrive_while_a_cell_is_busy_and_keys_are_answered(
    open_notebook, lab, console, shot
):
    page = open_notebook("import gpuscope as gs", LIVE, "timeline = None")
    run_all(page)
    page.locator(f"{PLOT} .gpuscope-tiles").wait_for()
    page.locator(ROOM).scroll_into_view_if_needed()
    assert page.evaluate(BUSY)
    first = page.evaluate("() => window.frames_painted.length")
    page.wait_for_function(f"() => window.frames_painted.length >= {first} + 20")
    assert page.evaluate(BUSY), "the frames came after the cell"
    expect(page.locator(f"{PLOT} .gtitle").first).to_contain_text("live (SIMULATED)")
    page.wait_for_function(
        f"() => document.querySelector('{PLOT} .yaxislayer-above').textContent.includes('host')"
    )
    shot("live")
    follow = page.get_by_role("button", name="Follow the newest spans")
    expect(follow).to_have_attribute("aria-pressed", "true")
    page.locator(PLOT).focus()
    page.keyboard.press("a")  # answered while the cell runs
    page.locator(f"{ROOM} button[aria-pressed=false]", has_text="Follow").wait_for()
    page.evaluate(TOLD_PAINTED)
    assert stands_still(page), "it moves though nobody asks it to"
    assert page.evaluate(BUSY), "it was answered after the cell"
    follow.click()
    page.locator(f"{ROOM} button[aria-pressed=true]", has_text="Follow").wait_for()
    (lab.folder / "enough").touch()
    page.wait_for_function(f"() => !({BUSY})()")
    follow.wait_for(state="hidden")
    page.wait_for_function(
        f"() => !document.querySelector('{PLOT} .gtitle').textContent.includes('live')"
    )
    shot("ended")


DRAWN_ELSEWHERE = f"""() => {{
    const old = document.querySelector('{PLOT}'), drawn = document.createElement('div');
    const {{ _fullData, _fullLayout }} = old;
    Object.assign(drawn, {{ className: 'js-plotly-plot', on: () => {{}}, _fullData, _fullLayout }});
    window.frames_painted = [];
    old.replaceWith(drawn);
}}"""


def test_a_plot_that_was_drawn_before_it_was_put_there_is_told_painted(open_notebook):
    page = open_notebook(RECORD, SHOW)
    show(page)
    ask(page, "timeline.keep(); print()")  # the kernel owes a page that opens now no frame
    page.evaluate(DRAWN_ELSEWHERE)
    page.wait_for_function("() => window.frames_painted.length > 0", timeout=60_000)


READS_LATER = """() => {
    const addressOf = URL.createObjectURL;
    const wait = 'await new Promise(done => (window.readOn = done));\\n';
    URL.createObjectURL = blob => addressOf(
        blob.size > 1e6 ? new Blob([wait, blob], { type: blob.type }) : blob);
}"""
"""Have the page read Plotly when it is told to; anywidget waits 2 s for the script of a widget."""


def test_a_page_that_reads_plotly_slowly_shows_what_it_was_told_meanwhile(lab, browser_page):
    page = browser_page
    open_alone(page, lab, MANY, SHOW.replace("recording.trace", "trace"))
    page.evaluate(READS_LATER)
    run_all(page)
    page.get_by_role("button", name="Zoom in").wait_for()
    ask(page, "timeline.zoom(0.5); timeline.wait(); print()")
    page.wait_for_function("() => window.readOn")
    page.wait_for_timeout(2_500)  # more than anywidget gives a script
    page.evaluate("() => window.readOn()")
    page.locator(f"{PLOT} .gpuscope-tiles").wait_for()
    painted(page)
    page.wait_for_function(
        f"() => document.querySelector('{PLOT}')._fullData.some("
        "({ type, showlegend }) => type === 'bar' && showlegend)"
    )
    shown = page.evaluate(f"() => document.querySelector('{PLOT}')._fullLayout.xaxis.range")
    assert shown == pytest.approx([750, 2250], rel=0.01)
    ask(page, "timeline.zoom(0.5); timeline.wait(); print()")
    page.wait_for_function(
        f"() => document.querySelector('{PLOT}')._fullLayout.xaxis.range[0] > 1000"
    )


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_is_readable_in_either_theme(open_notebook, console, shot, dark):
    page = open_notebook(RECORD, SHOW, dark=dark)
    area = show(page)
    page.mouse.click(*bar_of(page, area, "· t"))
    page.get_by_text("from its launch call to its end").wait_for()
    page.keyboard.press("w")
    painted(page)
    page.set_viewport_size({"width": 1280, "height": 1500})
    page.locator(ROOM).scroll_into_view_if_needed()
    page.mouse.move(5, 5)
    painted(page)
    ink = page.locator(f"{PLOT} .gtitle").first.evaluate("one => getComputedStyle(one).fill")
    paper = page.evaluate(
        "() => getComputedStyle(document.querySelector('.jp-Notebook')).background"
    )
    shades = [sum(map(int, re.findall(r"\d+", text)[:3])) for text in (ink, paper)]
    assert abs(shades[0] - shades[1]) > 400, f"{ink} on {paper}"
    check_accessibility(page, ROOM)
    name = f"timeline-{'dark' if dark else 'light'}.png"
    page.locator(ROOM).screenshot(path=RESULTS / name)
    if os.environ.get("GPUSCOPE_UPDATE_IMAGES") == "1":
        IMAGES.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(RESULTS / name, IMAGES / name)


FOUR = """
import numpy as np
import gpuscope as gs
from gpuscope.trace import Trace
from gpuscope.trace.metadata import TraceMetadata

def trace_of(kind, count=20_000):
    at = np.arange(count)
    start, lasts = 1000 * at, np.full(count, 700)
    partition, intended = ["a"] * count, ["a"] * count
    if kind == "alternating":
        lasts = 300 + 400 * (at % 2)
        partition = [None if one % 2 else "a" for one in at]
        intended = [None if one % 4 == 1 else "a" for one in at]
    if kind == "rare":
        start, lasts = 1000 * 500 * at, lasts // 10
    if kind == "escaped":
        partition = [None] * count
    kinds, stream, thread = ["kernel"] * count, [1] * count, [None] * count
    if kind == "mixed":  # copies over kernels, and handles of two names that overlap
        kinds = [("kernel", "memcpy", "handle", "handle")[one % 4] for one in at]
        lasts = np.choose(at % 4, [1700, 2100, 2000, 1000])
        stream = [1 if one % 4 < 2 else None for one in at]
        thread = [None if one % 4 < 2 else 7 for one in at]
    return Trace.from_columns(
        {"id": at.tolist(), "kind": kinds, "name": [f"k{one % 4}" for one in at],
         "start_ns": start.tolist(), "end_ns": (start + lasts).tolist(),
         "source": ["cupti"] * count, "stream": stream, "thread": thread, "partition": partition,
         "intended_partition": intended},
        metadata=TraceMetadata(partitions={"a": {"color": "#0072B2"}}))
"""
NS_ON_AXIS = """
zero_ns = timeline.state.snapshot((0, 1), following=False).zero_ns
print([edge - zero_ns for edge in timeline.window_ns])
"""
IN_VIEW = """([low, high]) => {
    const last = window.canvas_frames.at(-1);
    return last && last.missing === 0 && Math.abs(last.low - low) < 1
        && Math.abs(last.high - high) < 1;
}"""


@pytest.mark.parametrize("kind", ["uniform", "alternating", "rare", "escaped", "mixed"])
def test_every_row_and_column_is_as_high_as_the_rule_says_and_no_escape_is_lost(
    open_notebook, lab_page, console, shot, kind
):
    sizes = sizes_of_messages(lab_page)
    page = open_notebook(FOUR, f"timeline = gs.Timeline(trace_of({kind!r}))\ntimeline")
    page.evaluate(rule.WATCH)
    show_many(page)
    for by, at in ((1.0, 0.5), (0.3, 0.4), (0.2, 0.9)):
        ask(page, f"timeline.zoom({by}, {at})")
        painted(page)
        whole = json.loads(ask(page, NS_ON_AXIS))
        page.wait_for_function(IN_VIEW, arg=whole)
        shot(f"{kind}-{by}")
        found = rule.compare(page)
        assert found["columns"] > 500
        assert found["off_px"] <= 1, found
        assert found["blank"] == found["lost"] == 0, found
        assert (found["escapes"] > 0) == (kind in ("alternating", "escaped"))
    assert 1000 < max(sizes) <= 4_000_000


ESCAPES = """
import gpuscope as gs
gpu = gs.open_device("sim:h200", quiet=True)
gemm = {"kind": "gemm", "m": 512, "n": 512, "k": 512, "stream": "small"}
run = gs.run({
    "name": "lanes", "alone_repeats": 0, "streams": {"small": {}, "load": {}},
    "settings": {"split": {
        "partitions": {"small": 16, "load": "rest"},
        "streams": {"small": {"partition": "small"}, "load": {"partition": "load"}},
    }},
    "workloads": {
        "small": {**gemm, "repeats": 400}, "check": {**gemm, "repeats": 9, "guard": False},
        "load": {"kind": "gemm", "m": 4096, "n": 4096, "k": 4096, "stream": "load", "repeats": 60},
    },
}, gpu)
timeline = gs.Timeline(run.traces["split"])
timeline
"""


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 1440)])
def test_the_parts_of_a_call_add_up_in_the_dock(open_notebook, console, shot, dark, width):
    page = open_notebook(ESCAPES, dark=dark)
    page.set_viewport_size({"width": width, "height": 900})
    show(page)
    theme = "dark" if dark else "light"
    shot(f"lanes-{theme}-{width}")
    box = page.locator(PLOT).bounding_box()
    dock = page.get_by_role("region", name="Details of the selected span")

    # A key and a button for each: the next escape, the longest wait.
    page.locator(PLOT).focus()
    page.keyboard.press("x")
    dock.get_by_text("intended for small").wait_for()
    first = ask(page, "print(timeline.selected)")
    page.get_by_role("button", name="Next escape").click()
    eventually(lambda: _is_not(ask(page, "print(timeline.selected)"), first))
    page.get_by_role("button", name="Longest wait").click()
    dock.get_by_text("sum, in µs").wait_for()
    page.keyboard.press("z")
    painted(page)
    shot(f"wait-{theme}-{width}")
    assert page.locator(PLOT).bounding_box() == box, "the dock changes the plot's box"
    assert dock.bounding_box()["y"] >= box["y"] + box["height"] - 1
    times = dock.locator(".sum td").all_text_contents()
    parts = [round(1000 * float(text.replace(",", ""))) for text in times]
    row = "timeline.state.selected"
    tracks = "timeline.state.tracks"
    length = int(ask(page, f"print({tracks}.end_ns[{row}] - {tracks}.start_ns[{row}])"))
    assert sum(parts[:-1]) == parts[-1] == length

    # A click on a part selects its call.
    call = ask(page, "print(timeline.selected)")
    page.keyboard.press("Escape")
    dock.wait_for(state="hidden")
    at_y = json.loads(ask(page, """
calls, state = timeline.state.tracks.calls, timeline.state
places, track = state._places, int(calls.track[calls.by_wait[0]])
(at,) = [n for n, one in enumerate(places.tracks) if one.number == track]
height = timeline.bar.scene["height"]
print([(places.lanes[at] + 18) / height])
"""))  # fmt: skip
    area = page.locator(f"{PLOT} .nsewdrag").first.bounding_box()
    page.mouse.click(area["x"] + area["width"] / 2, area["y"] + at_y[0] * area["height"])
    eventually(lambda: _is(ask(page, "print(timeline.selected)"), call))


def test_all_time_has_a_brush_and_a_range_is_dragged_with_shift(open_notebook, console, shot):
    page = open_notebook(ESCAPES)
    area = show(page)
    box = page.locator(PLOT).bounding_box()
    dock = page.get_by_role("region", name="Details of the selected span")
    strip = page.locator(f"{ROOM} .gpuscope-overview").bounding_box()
    page.mouse.move(strip["x"] + strip["width"] * 0.2, strip["y"] + 10)
    page.mouse.down()
    page.mouse.move(strip["x"] + strip["width"] * 0.4, strip["y"] + 10, steps=4)
    page.mouse.up()
    painted(page)
    low, high = json.loads(ask(page, "print(list(timeline.state.extent_ns))"))
    seen = [(edge - low) / (high - low) for edge in window_of(page)]
    assert seen == pytest.approx([0.2, 0.4], abs=0.01)
    page.keyboard.down("Shift")
    page.mouse.move(area["x"] + area["width"] * 0.25, area["y"] + 40)
    page.mouse.down()
    page.mouse.move(area["x"] + area["width"] * 0.75, area["y"] + 40, steps=4)
    page.mouse.up()
    page.keyboard.up("Shift")
    dock.get_by_text("Calls wholly inside").wait_for()
    dock.get_by_text("Busy together").wait_for()
    window = window_of(page)
    chosen = json.loads(ask(page, "print(list(timeline.range_ns))"))
    width_ns = window[1] - window[0]
    assert [(edge - window[0]) / width_ns for edge in chosen] == pytest.approx(
        [0.25, 0.75], abs=0.01
    )
    shot("range")
    assert page.locator(PLOT).bounding_box() == box


def _is(found, wanted) -> None:
    assert found == wanted


def _is_not(found, unwanted) -> None:
    assert found not in (unwanted, "None")
