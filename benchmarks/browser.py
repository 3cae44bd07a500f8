"""The timeline in JupyterLab, in a headless browser: first paint, panning, bytes, live.

    python benchmarks/browser.py --out benchmarks/results/browser.json

Needs Chromium or Chrome (scripts/chromium.sh) and no GPU. Painted means: the animation frame
in which the browser drew what the kernel sent is over.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import facts
import nbformat
import numpy as np
import pyarrow as pa
from facts import row

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "ui"), str(ROOT / "tests")]

from jupyter_lab import BUSY as RUNNING  # noqa: E402
from jupyter_lab import IDLE, ask, open_browser, running_lab  # noqa: E402

from gpuscope.trace import (  # noqa: E402
    Trace,
    arrow,
    schema,
)
from gpuscope.trace.metadata import (  # noqa: E402
    DeviceFacts,
    PartitionFacts,
    StreamFacts,
    TraceMetadata,
)

SPANS, STREAMS = 1_000_000, 64
GESTURES = 50
LIVE_S = 60
PACKAGES = ("jupyterlab", "ipykernel", "ipywidgets", "anywidget", "plotly", "numpy", "pyarrow")
RUN_CELL = """() => {
    window.pressed = performance.now();
    window.jupyterapp.commands.execute('notebook:run-cell-and-select-next');
}"""
# Frames that were painted: [number, when], also of widgets that come later.
LISTEN = """() => {
    window.painted = [];
    window.addEventListener('gpuscope-painted', event =>
        window.painted.push([event.detail.frame, performance.now()]), true);
    const tiled = () => document.querySelector('.gpuscope-tiles');
    for (const name of ['pointerup', 'pointermove']) // with tiles every move is painted at once
        window.addEventListener(name, () => {
            if ((name === 'pointermove') === Boolean(tiled())) window.lifted = performance.now();
        }, true);
    window.addEventListener('keydown', () => { window.lifted = performance.now(); }, true);
}"""
PLOT = ".gpuscope-timeline .js-plotly-plot"


def spread(values: list[float]) -> dict[str, float]:
    return {**facts.spread(values), "n": len(values)}


def make_trace(count: int = SPANS) -> Trace:
    """Kernels with log-normal durations on 64 streams in 4 partitions, one after the other."""
    rng = np.random.default_rng(1)
    each = count // STREAMS
    lasts = rng.lognormal(9, 1, (STREAMS, each)).astype(np.int64) + 500
    gaps = rng.lognormal(8, 1.5, (STREAMS, each)).astype(np.int64)
    starts = (np.cumsum(lasts + gaps, axis=1) - lasts).ravel()
    stream = np.repeat(np.arange(1, STREAMS + 1), each)
    total = len(starts)
    names = [
        f"void cutlass::Kernel2<cutlass_80_tensorop_{n}x128_32x3_nn_align8>" for n in range(40)
    ]
    partitions = ["decode", "prefill", "rest", "small"]
    order = np.argsort(starts, kind="stable")
    columns = {
        "id": np.arange(total, dtype=np.int64) * 4 + 1,
        "kind": arrow.constant("kernel", total),
        "name": arrow.text_column(rng.integers(0, len(names), total), list(names)),
        "start_ns": starts[order],
        "end_ns": (starts + lasts.ravel())[order],
        "process": np.full(total, 4242),
        "device": np.zeros(total, np.int16),
        "partition": arrow.text_column((stream[order] - 1) // 16, list(partitions)),
        "stream": stream[order],
        "source": arrow.constant("simulated", total),
    }
    metadata = TraceMetadata(
        time_base="virtual", simulated=True,
        devices={"sim:h200": DeviceFacts(0, name="NVIDIA H200", sm_count=132)},
        partitions={name: PartitionFacts(sm_count=32) for name in partitions},
        streams={str(n): StreamFacts(f"s{n}") for n in range(1, STREAMS + 1)},
        windows_ns=((0, int((starts + lasts.ravel()).max())),),
    )  # fmt: skip
    spans = arrow.table({name: pa.array(column) for name, column in columns.items()}, total)
    return Trace(spans, schema.table({}, schema.EDGE_TYPES), metadata)


# -- a notebook in a browser ----------------------------------------------------------------
@contextlib.contextmanager
def notebook(*cells: str) -> Iterator[Any]:
    """Open a notebook of these cells in JupyterLab; yields the page, its kernel idle."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "notebooks"
        root.mkdir()
        book = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        )
        nbformat.write(book, root / "book.ipynb")
        with running_lab(Path(folder), root) as lab, open_browser() as context:
            page = context.new_page()
            page.set_default_timeout(60_000)
            received: list[tuple[float, int]] = []
            page.on("websocket", lambda socket: socket.on(
                "framereceived", lambda data: received.append((time.time(), len(data)))
            ))  # fmt: skip
            page.goto(lab.page("book.ipynb"))
            page.wait_for_function(IDLE)
            page.evaluate(LISTEN)
            page.evaluate(
                "() => window.jupyterapp.commands.execute('application:toggle-left-area')"
            )
            page.received = received
            yield page


def run_next(page: Any) -> None:
    """Run the selected cell and wait for its end."""
    page.evaluate(RUN_CELL)
    page.wait_for_timeout(200)  # until it is on its way: the kernel is idle before, too
    page.wait_for_function(f"() => !({RUNNING})() && ({IDLE})()")
    page.wait_for_timeout(500)


LOAD = """import gpuscope as gs
from gpuscope.trace import Trace
trace = gs.load_trace({path!r})
{more}
trace"""
SHOW = """timeline = gs.Timeline(trace)
timeline"""


def first_paint(page: Any) -> float:
    """Run the cell that shows the timeline; ms until it is painted."""
    page.evaluate("() => { window.painted.length = 0; }")
    page.evaluate(RUN_CELL)
    page.wait_for_function("() => window.painted.length > 0")
    page.wait_for_function(IDLE)
    return float(page.evaluate("() => window.painted[0][1] - window.pressed"))


# Frames that ended: [when, whether every tile was there].
WATCH_FRAMES = """() => {
    window.frames = [];
    const ended = whole => requestAnimationFrame(() => setTimeout(
        () => window.frames.push([performance.now(), whole])));
    window.addEventListener('gpuscope-canvas', event => ended(!event.detail.missing), true);
    window.addEventListener('gpuscope-painted', () => {
        if (!document.querySelector('.gpuscope-tiles'))
            window.frames.push([performance.now(), true]);
    }, true);
}"""
TOOK = """() => {
    const since = window.frames.filter(([when]) => when > window.lifted);
    const whole = since.find(([, whole]) => whole);
    return window.lifted && whole &&
        [since[0][0] - window.lifted, whole[0] - window.lifted];
}"""


def moves(page: Any) -> dict[str, list[float]]:
    """Pan with the mouse and zoom with keys; ms from the last input event to painted frames.

    Returns
    -------
    dict
        ``pan`` and ``zoom``: to the first frame that shows the new view; ``whole``: to the first
        of these in which nothing is painted from coarser tiles; ``bytes`` from the kernel.
    """
    found: dict[str, list[float]] = {"pan": [], "zoom": [], "whole": [], "bytes": []}
    page.locator(PLOT).scroll_into_view_if_needed()
    area = page.locator(f"{PLOT} .nsewdrag").first.bounding_box()
    middle = area["x"] + area["width"] / 2, area["y"] + area["height"] / 2
    page.mouse.move(*middle)
    page.locator(PLOT).first.focus()
    page.evaluate(WATCH_FRAMES)
    for _ in range(3):
        painted_after(page, lambda: page.keyboard.press("w"))
    for turn in range(GESTURES):
        first, whole = painted_after(page, lambda turn=turn: drag(page, middle, turn, area))
        found["pan"].append(first)
        found["whole"].append(whole)
    for turn in range(GESTURES):
        before = len(page.received)
        key = "wwss"[turn % 4]
        first, whole = painted_after(page, lambda key=key: page.keyboard.press(key))
        found["zoom"].append(first)
        found["whole"].append(whole)
        found["bytes"].append(sum(size for _, size in page.received[before:]))
    return found


def drag(page: Any, middle: tuple[float, float], turn: int, area: dict[str, float]) -> None:
    step = area["width"] * (0.3 if turn // 5 % 2 else -0.3)  # five times to the same side
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(middle[0] + step / 2, middle[1], steps=4)
    page.mouse.move(middle[0] + step, middle[1], steps=4)
    page.mouse.up()


def painted_after(page: Any, act: Any) -> tuple[float, float]:
    """Return ms from the last key or button to the first frame, and to the first whole one."""
    page.evaluate("() => { window.frames.length = 0; window.lifted = null; }")
    act()
    page.wait_for_function(TOOK)
    first, whole = page.evaluate(TOOK)
    time.sleep(0.4)
    return float(first), float(whole)


@contextlib.contextmanager
def package_of(tree: Path) -> Iterator[None]:
    """Let kernels import gpuscope from a source tree."""
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = str(tree)
    try:
        yield
    finally:
        os.environ["PYTHONPATH"] = before


def measured(count: int, rounds: int, tree: Path) -> dict[str, list[float]]:
    """Return what opening and moving a timeline of so many spans takes with a tree's package."""
    found: dict[str, list[float]] = {"first": [], "warm": []}
    with tempfile.TemporaryDirectory() as folder, package_of(tree):
        path = str(Path(folder) / "trace.parquet")
        made = (
            "import sys; sys.path.insert(0, '.')\nimport browser\nimport gpuscope as gs\n"
            f"gs.export(browser.make_trace({count}), {path!r})"
        )
        # By the tree's own package: an older one reads no newer trace.
        subprocess.run([sys.executable, "-c", made], cwd=tree / "benchmarks", check=True)
        for number in range(rounds):
            for name, imported in (("first", ""), ("warm", "gs.Timeline")):
                with notebook(LOAD.format(path=path, more=imported), SHOW) as page:
                    run_next(page)
                    found[name].append(first_paint(page))
                    if number == 0 and name == "first":
                        found.update(moves(page))
    return found


def large(rounds: int, before: Path | None) -> list[dict]:
    """Measure with 10⁶ and 10⁷ spans, beside the package of another tree if one is given."""
    rows: list[dict] = []
    for power, count, times in ((6, SPANS, rounds), (7, 10 * SPANS, 1)):
        now = measured(count, times, ROOT)
        old = measured(count, times, before) if before else None
        spans = f"10{'⁶' if power == 6 else '⁷'} spans"
        beside = {
            name: {"before": statistics.median(old[name])} if old else {}
            for name in ("first", "pan", "zoom", "whole")
        }
        if power == 6:
            middle = statistics.median(now["first"])
            rows.append(row(
                f"first paint of a timeline of {spans}, cell run → painted", "≤ 2 s", middle / 1e3,
                "s", met=middle <= 2000, ms=spread(now["first"]),
                imported_before_ms=spread(now["warm"]),
                **{name: value / 1e3 for name, value in beside["first"].items()},
            ))  # fmt: skip
        for name, what in (
            ("pan", "pan, last move of the mouse"),
            ("zoom", "zoom, key down"),
        ):
            middle = statistics.median(now[name])
            rows.append(row(
                f"{what} → painted frame, {spans}", "≤ 33 ms median", middle, "ms",
                met=middle <= 33, spread=spread(now[name]), **beside[name],
            ))  # fmt: skip
        rows.append(row(
            f"the same → no coarser tile is left, {spans}", "–", statistics.median(now["whole"]),
            "ms", met=True, spread=spread(now["whole"]), **beside["whole"],
        ))  # fmt: skip
        nbytes = spread(now["bytes"])
        rows.append(row(
            f"bytes to the browser a zoom, all messages, {spans}", "–", nbytes["median"] / 1e3,
            "kB", met=True, spread=nbytes,
        ))  # fmt: skip
    return rows


def own_javascript() -> dict:
    """Return how much JavaScript of our own there is."""
    size = sum(path.stat().st_size for path in (ROOT / "gpuscope").rglob("static/*.js")) / 1e3
    return row("own JavaScript", "≤ 150 kB", size, "kB", met=size <= 150)


# -- live -----------------------------------------------------------------------------------
WATCH = """
import json, time
import gpuscope as gs
from gpuscope.timeline.canvas.scheduler import RedrawScheduler
from gpuscope.widgets.view import TimelineView
from gpuscope.workloads.spin import Spin
begun, ended, seen = {}, {}, {}
draw, painted = TimelineView._draw, RedrawScheduler.painted
def timed_draw(self):
    start = time.perf_counter()
    frame = draw(self)
    if frame is not None and self.follow:
        begun[frame] = start
        seen[frame] = len(self.drawn.view.rows), self.drawn.view.total
    return frame
def timed_painted(self, frame):
    ended.setdefault(frame, time.perf_counter())
    painted(self, frame)
TimelineView._draw, RedrawScheduler.painted = timed_draw, timed_painted
gpu = gs.open_device("sim:h200", pace="real", quiet=True)
"""
BUSY = """
with gpu.carve({{"small": 16, "load": "rest"}}) as parts:
    streams = [part.create_stream() for part in parts.values()]
    works = [Spin(gpu, duration_ns=375_000, name=name) for name in parts]
    with gs.profile(gpu, live=True):
        until, number = time.monotonic() + {seconds}, 0
        while time.monotonic() < until:
            with gs.annotate(f"round {{number}}"):
                for work, stream in zip(works * 8, streams * 8):
                    work.execute(stream=stream)
                    work.wait()
            number += 1
"""
TELL = """
print(json.dumps([sorted((n, begun[n], ended.get(n), *seen[n]) for n in begun)]))
"""


def live(seconds: int) -> list[dict]:
    """Watch a cell that keeps Python busy; as the kernel sees it: taken up → told that painted."""
    with notebook(WATCH, BUSY.format(seconds=seconds)) as page:
        run_next(page)
        page.evaluate(RUN_CELL)
        page.locator(f"{PLOT} .nsewdrag").first.wait_for()
        page.locator(PLOT).scroll_into_view_if_needed()
        page.wait_for_function(
            "() => ![...document.querySelectorAll('.jp-InputPrompt')]"
            ".some(one => one.innerText.includes('*'))",
            timeout=(seconds + 60) * 1000,
        )
        time.sleep(2)
        (frames,) = json.loads(ask(page, TELL))
        nbytes = sum(size for _, size in page.received) / max(1, len(frames))
    start = frames[0][1]
    steady = [one for one in frames if one[1] - start > 3 and one[2] is not None]
    latencies = [(one[2] - one[1]) * 1e3 for one in steady]
    rate = (len(steady) - 1) / (steady[-1][1] - steady[0][1])
    fifth = max(1, len(latencies) // 5)
    late = statistics.median(latencies[-fifth:]) / statistics.median(latencies[:fifth])
    spans = statistics.median(one[4] for one in steady)
    detail = {
        "seconds": seconds, "spans_in_view": spans, "bars": statistics.median(
            one[3] for one in steady), "frames": len(frames), "never_painted": sum(
            one[2] is None for one in frames), "bytes_a_frame": nbytes,
    }  # fmt: skip
    return [
        row("live at 2,000 visible spans, cell busy: frames a second", "10", rate, "Hz",
            met=rate >= 9.5 and spans >= 2000, **detail),
        row("live, rows taken up → painted", "≤ 150 ms median", statistics.median(latencies),
            "ms", met=statistics.median(latencies) <= 150, spread=spread(latencies)),
        row(f"live, backlog after {seconds} s: latency of the last fifth / of the first", "1 ×",
            late, "×", met=late <= 1.3),
    ]  # fmt: skip


# -- the dashboard --------------------------------------------------------------------------
DASHBOARD = """import gpuscope as gs
(dashboard := gs.Dashboard('sim:h200'))"""
RUN_AND_SEE = """() => new Promise(seen => {
    const told = () => document.querySelector('.gpuscope-dashboard .gs-headline').innerText;
    const begun = performance.now();
    document.querySelector('.gpuscope-bar .gs-primary').click();
    const look = () => told().startsWith('So far, ')
        ? seen([performance.now() - begun, told()]) : requestAnimationFrame(look);
    look();
})"""


def first_verdict(rounds: int) -> list[dict]:
    """Run the dashboard's first preset; s from the click on Run to the first verdict so far."""
    took_s, told = [], ""
    with notebook(DASHBOARD) as page:
        run_next(page)
        for _ in range(rounds):
            took_ms, told = page.evaluate(RUN_AND_SEE)
            took_s.append(took_ms / 1e3)
            ask(page, "dashboard.wait()")
    return [row("dashboard, simulated GPU: Run → first verdict", "≤ 3 s", max(took_s), "s",
                met=max(took_s) <= 3, spread=spread(took_s), told=told)]  # fmt: skip


def loop_ms() -> float:
    """Return how long a loop in Python takes: others on a shared machine slow it."""
    start, total = time.perf_counter(), 0
    for number in range(3_000_000):
        total += number * number
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/browser.json"))
    parser.add_argument("--only", choices=("large", "live", "verdict"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", type=Path, help="a source tree to compare with")
    parser.add_argument("--seconds", type=int, default=LIVE_S)
    arguments = parser.parse_args()
    rows: list[dict] = []
    before = loop_ms()
    if arguments.only in (None, "verdict"):
        rows += first_verdict(arguments.rounds)
    if arguments.only in (None, "large"):
        rows += [*large(arguments.rounds, arguments.before), own_javascript()]
    if arguments.only in (None, "live"):
        with package_of(ROOT):
            rows += live(arguments.seconds)
        if arguments.before:
            with package_of(arguments.before):
                for one, other in zip(rows[-3:], live(arguments.seconds), strict=True):
                    one["before"] = other["value"]
    for one in rows:
        print(f"{'ok  ' if one['met'] else 'MISS'} {one['what']}: {one['value']:.4g} "
              f"{one['unit']} ({one['goal']})")  # fmt: skip
    facts.write(
        arguments.out, "python benchmarks/browser.py", f"{os.cpu_count()} cores, headless Chromium",
        rows, loop_ms=[before, loop_ms()],
        versions={name: importlib.metadata.version(name) for name in PACKAGES},
    )  # fmt: skip


if __name__ == "__main__":
    main()
