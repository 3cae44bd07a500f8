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

from jupyter_lab import IDLE, ask, open_browser, running_lab  # noqa: E402

import gpuscope as gs  # noqa: E402
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
PANS, ZOOMS = 15, 15
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
    window.addEventListener('pointerup', () => { window.lifted = performance.now(); }, true);
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
    page.wait_for_function(IDLE)


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


def moves(page: Any) -> dict[str, list[float]]:
    """Pan with the mouse and zoom with keys; ms from mouse up or key down to painted."""
    found: dict[str, list[float]] = {"pan": [], "zoom": [], "bytes": []}
    page.locator(PLOT).scroll_into_view_if_needed()
    area = page.locator(f"{PLOT} .nsewdrag").first.bounding_box()
    middle = area["x"] + area["width"] / 2, area["y"] + area["height"] / 2
    page.mouse.move(*middle)
    page.mouse.click(*middle)
    time.sleep(3)  # its details, and the explanation in a thread of its own
    for _ in range(3):
        painted_after(page, lambda: page.keyboard.press("w"))
    for turn in range(PANS):
        found["pan"].append(painted_after(page, lambda turn=turn: drag(page, middle, turn, area)))
    for turn in range(ZOOMS):
        before = len(page.received)
        key = "wwss"[turn % 4]
        found["zoom"].append(painted_after(page, lambda key=key: page.keyboard.press(key)))
        found["bytes"].append(sum(size for _, size in page.received[before:]))
    return found


def drag(page: Any, middle: tuple[float, float], turn: int, area: dict[str, float]) -> None:
    step = area["width"] * (0.3 if turn % 2 else -0.3)
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(middle[0] + step / 2, middle[1], steps=4)
    page.mouse.move(middle[0] + step, middle[1], steps=4)
    page.mouse.up()


def painted_after(page: Any, act: Any) -> float:
    """Return ms from the last key or button to the next frame that is painted."""
    page.evaluate("() => { window.painted.length = 0; window.lifted = null; }")
    act()
    page.wait_for_function(
        "() => window.lifted && window.painted.some(([, when]) => when > window.lifted)"
    )
    took = page.evaluate(
        "() => window.painted.find(([, when]) => when > window.lifted)[1] - window.lifted"
    )
    time.sleep(0.4)
    return float(took)


def a_million(rounds: int) -> list[dict]:
    """Measure with 10⁶ spans; what is read by PyArrow loads pandas, where it is, beforehand."""
    first: dict[str, list[float]] = {"": [], "gs.Timeline": []}
    moved: dict[str, list[float]] = {"pan": [], "zoom": [], "bytes": []}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "million.parquet")
        gs.export(make_trace(), path)
        for number in range(rounds):
            for imported, times in first.items():
                with notebook(LOAD.format(path=path, more=imported), SHOW) as page:
                    run_next(page)
                    times.append(first_paint(page))
                    if number == 0:
                        for name, values in moves(page).items():
                            moved[name] += values
    cold, warm = (spread(times) for times in first.values())
    pan, zoom, nbytes = (spread(values) for values in moved.values())
    return [
        row("first paint of a 10⁶-span timeline, cell run → painted", "≤ 3.5 s",
            cold["median"] / 1e3, "s", met=cold["median"] <= 3500, ms=cold,
            imported_before_ms=warm),
        row("pan at 10⁶ spans, mouse up → painted", "≤ 150 ms median", pan["median"], "ms",
            met=pan["median"] <= 150, spread=pan),
        row("zoom by a key at 10⁶ spans, key down → painted", "≤ 150 ms median",
            zoom["median"], "ms", met=zoom["median"] <= 150, spread=zoom),
        row("bytes to the browser a frame at 10⁶ spans, all messages", "≤ 250 kB",
            nbytes["median"] / 1e3, "kB", met=nbytes["max"] <= 250_000, spread=nbytes),
    ]  # fmt: skip


# -- live -----------------------------------------------------------------------------------
WATCH = """
import json, time
import gpuscope as gs
from gpuscope.widgets.scheduler import RedrawScheduler
from gpuscope.widgets.view import TimelineView
from gpuscope.workloads.spin import Spin
begun, ended, seen = {}, {}, {}
draw, painted = TimelineView._draw, RedrawScheduler.painted
def timed_draw(self):
    start = time.perf_counter()
    frame = draw(self)
    if frame is not None and self.follow:
        begun[frame] = start
        seen[frame] = len(self.drawn.view.found.rows), self.drawn.view.found.total
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
        page.locator(f"{PLOT} .barlayer .point").first.wait_for()
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


def loop_ms() -> float:
    """Return how long a loop in Python takes: others on a shared machine slow it."""
    start, total = time.perf_counter(), 0
    for number in range(3_000_000):
        total += number * number
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/browser.json"))
    parser.add_argument("--only", choices=("million", "live"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=LIVE_S)
    arguments = parser.parse_args()
    rows: list[dict] = []
    before = loop_ms()
    if arguments.only != "live":
        rows += a_million(arguments.rounds)
    if arguments.only != "million":
        rows += live(arguments.seconds)
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
