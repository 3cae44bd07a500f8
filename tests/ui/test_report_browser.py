"""The report of a run in a browser: its first screen, its widths, both themes."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import rule
from counted_traces import random_trace
from jupyter_lab import check_accessibility, eventually, walk

import gpuscope as gs
from gpuscope import report as reports
from gpuscope._text import percent
from gpuscope.report import html_report
from gpuscope.timeline.canvas.state import TimelineState
from gpuscope.timeline.counter_lanes import counter_lanes
from gpuscope.timeline.extent import whole_ns
from gpuscope.timeline.tracks import Tracks
from gpuscope.timeline.words import shares_of

pytestmark = pytest.mark.ui

PLAN = {
    "name": "quick", "rounds": 2, "alone_repeats": 3,
    "streams": {"decode": {}, "load": {}},
    "workloads": {
        "small": {"kind": "gemm", "m": 512, "n": 512, "k": 512, "stream": "decode",
                  "repeats": 1000},
        "load": {"kind": "gemm", "m": 4096, "n": 4096, "k": 4096, "stream": "load",
                 "background": True, "max_queued": 6},
    },
    "settings": {
        "no partition": {},
        "priority": {"streams": {"decode": {"priority": -1}}},
        "16 | rest": {
            "partitions": {"small": 16, "load": "rest"},
            "streams": {"decode": {"partition": "small"}, "load": {"partition": "load"}},
        },
        "16 | rest, no target": {
            "partitions": {"small": 16, "load": "rest"},
            "streams": {"decode": {"partition": "small"}, "load": {"partition": "load"}},
            "sm_count_target": "off",
        },
    },
}  # fmt: skip
DRAWN = """() => [...document.querySelectorAll('[data-figure]')]
    .every(one => one.querySelector('.main-svg'))"""
SIZES = """() => {
    const bottom = name => document.querySelector(name).getBoundingClientRect().bottom;
    const root = document.documentElement;
    return {
        picture: bottom('.picture'), headline: bottom('.headline'), facts: bottom('.facts'),
        page: [root.scrollWidth, root.clientWidth],
        tables: [...document.querySelectorAll('.scroll')].map(
            one => [one.scrollWidth, one.clientWidth]),
        figures: [...document.querySelectorAll('.figure')].map(
            one => [one.scrollWidth, one.clientWidth]),
    };
}"""
WATCHED = """() => {
    globalThis.written = [];
    addEventListener('gpuscope-canvas', (event) => (globalThis.last = event.detail), true);
    const { fillText } = CanvasRenderingContext2D.prototype;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
        written.push(text);
        return fillText.call(this, text, ...rest);
    };
}"""
WIDTHS = """() => [document.documentElement, ...document.querySelectorAll('.scroll, .figure')]
    .map(one => [one.scrollWidth, one.clientWidth])"""
LIGHT_ON_DARK = """() => {
    const sum = colour => colour.match(/[0-9.]+/g).slice(0, 3).map(Number)
        .reduce((left, right) => left + right);
    const page = sum(getComputedStyle(document.body).backgroundColor);
    const papers = [...document.querySelectorAll('.main-svg')].map(
        one => getComputedStyle(one).backgroundColor)
        .filter(one => !one.startsWith('rgba(0, 0, 0, 0')).map(sum);
    const texts = [...document.querySelectorAll('.xtick text, .gtitle')].map(
        one => sum(getComputedStyle(one).fill));
    const names = [...document.querySelectorAll('.bartext')].map(
        one => getComputedStyle(one).fill);
    return { page, papers, texts, names };
}"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    run = gs.run(PLAN, gs.open_device("sim:h200", quiet=True))
    return html_report(run, tmp_path_factory.mktemp("report") / "report.html")


def test_it_is_small(report):
    assert report.stat().st_size < 3_000_000


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1280, 720), (900, 900)])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_first_screen_tells_it_all_and_nothing_is_cut_off(
    report, browser_page, width, height, theme
):
    problems = []
    browser_page.on("pageerror", lambda error: problems.append(str(error)))
    browser_page.on("console", lambda said: problems.append(said.text))
    browser_page.set_viewport_size({"width": width, "height": height})
    browser_page.emulate_media(color_scheme=theme)
    browser_page.goto(report.as_uri())
    browser_page.wait_for_function(DRAWN)
    assert not problems

    def fits() -> None:
        sizes = browser_page.evaluate(SIZES)
        assert sizes["headline"] < sizes["facts"] < sizes["picture"] <= height
        for wide, room in (sizes["page"], *sizes["tables"], *sizes["figures"]):
            assert wide <= room

    def is_in_its_colours() -> None:
        seen = browser_page.evaluate(LIGHT_ON_DARK)
        is_dark = theme == "dark"
        assert seen["texts"]
        assert seen["papers"]
        assert all((one < 150) == is_dark for one in (seen["page"], *seen["papers"]))
        assert all((one > 400) == is_dark for one in seen["texts"])
        assert set(seen["names"]) <= {"rgb(27, 31, 36)", "rgb(255, 255, 255)"}, "as the bars need"

    eventually(fits)
    eventually(is_in_its_colours)
    check_accessibility(browser_page, "body")


CARVED = {
    **{key: PLAN[key] for key in ("name", "alone_repeats")},
    "partitions": {"small": 16, "load": "rest"},
    "streams": {"decode": {"partition": "small"}, "load": {"partition": "load"}},
    "workloads": {**PLAN["workloads"], "small": {**PLAN["workloads"]["small"], "repeats": 100}},
}
REQUESTS = {
    "name": "chat",
    "streams": {"prefill": {}, "decode": {}},
    "workloads": {
        "prefill": {"kind": "gemm", "m": 1024, "n": 1024, "k": 1024, "stream": "prefill"},
        "decode": {"kind": "gemm", "m": 16, "n": 1024, "k": 1024, "stream": "decode"},
        "chat": {"kind": "requests", "prefill": "prefill", "decode": "decode", "repeats": 50,
                 "arrival": "poisson", "rate_hz": 400, "output_tokens": "geometric 16",
                 "slo": {"ttft_ms": 8, "tbt_ms": 0.4}},
    },
}  # fmt: skip


PAINTED = """() => {
    const canvas = document.querySelector('.gpuscope-tiles');
    if (!canvas) return 0;
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    return data.filter((value, n) => n % 4 === 3 && value).length;
}"""


@pytest.mark.parametrize("width", [1280, 390])
def test_a_colleague_finds_what_the_sender_chose_and_zooms_without_a_network(
    browser_page, tmp_path, width
):
    (trace,) = gs.run(CARVED, gs.open_device("sim:h200", quiet=True)).traces.values()
    calls = trace.where(kind="handle", category="small")
    call, start = int(calls.array("id")[50]), int(calls.array("start_ns")[50])
    path = reports.trace_report(
        trace, tmp_path / "t.html", note="Look at this call.", selected=call,
        window_ns=(start - 100_000, start + 400_000),
    )  # fmt: skip
    problems = []
    browser_page.on("pageerror", lambda error: problems.append(str(error)))
    browser_page.context.set_offline(True)
    browser_page.set_viewport_size({"width": width, "height": 800})
    browser_page.goto(path.as_uri())
    browser_page.wait_for_function(f"() => ({PAINTED})() > 1000")
    assert "Look at this call." in browser_page.inner_text("body")
    check_accessibility(browser_page, "body")
    reached = walk(browser_page, ".timeline")
    for action in (
        "Zoom in W",
        "Earlier A",
        "All F",
        "To selection Z",
        "Longest in view L",
        "Clear Esc",
    ):
        assert action in reached
    assert str(gs.telling.explain(trace, call)) in browser_page.inner_text(".dock")
    root = browser_page.locator(".timeline .svg-container")

    def view() -> tuple[int, int]:
        fragment = browser_page.evaluate("() => location.hash")  # the page's url is told later
        low, high = fragment.removeprefix("#t=").split("&")[0].split("-")
        return int(low), int(high)

    before = view()
    assert before[1] - before[0] == 500_000
    root.focus()
    plot = root.bounding_box()
    browser_page.keyboard.press("w")
    assert view()[1] - view()[0] == 250_000
    browser_page.keyboard.press("d")
    assert view()[0] > before[0]
    browser_page.keyboard.press("f")
    assert view()[0] == 0
    assert view()[1] > 5_000_000
    browser_page.keyboard.press("z")
    assert view()[0] < view()[1]
    selected = browser_page.url.split("&s=")[1]
    browser_page.keyboard.press("ArrowRight")
    browser_page.wait_for_url(lambda url: url.endswith(f"&s={int(selected) + 1}"))
    assert root.bounding_box() == plot
    browser_page.reload()
    assert browser_page.url.split("&s=")[1] == str(int(selected) + 1)
    browser_page.wait_for_function(f"() => ({PAINTED})() > 1000")
    wide, room = browser_page.evaluate(
        "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert wide <= room
    assert not problems


def write_trace(path, gpu):
    (trace,) = gs.run(REQUESTS, gpu).traces.values()
    reports.trace_report(trace, path)


def write_prediction(path, gpu):
    reports.prediction_report(
        gs.experiments.predict(CARVED).traces, gs.run(CARVED, gpu).traces, path
    )


def write_sweep(path, gpu):
    varied = {"partitions.small": [8, 16], "workloads.load.m": [4096, 8192]}
    reports.sweep_report(gs.search.sweep(CARVED, varied, gpu), path)


def write_tuning(path, gpu):
    limit = {"small.latency_p90_us": "<= 100"}
    varied = {"partitions.small": [8, 16]}
    reports.tune_report(gs.tune(CARVED, varied, "small.calls_per_s", limit, gpu, repeats=3), path)


def write_interference(path, gpu):
    shapes = {"small": 512, "load": 4096}
    workloads = {
        name: {"kind": "gemm", "m": size, "n": size, "k": size, "partition": name}
        for name, size in shapes.items()
    }
    result = gs.search.measure_interference(
        gpu, CARVED["partitions"], workloads, repeats=20, rounds=1
    )
    reports.interference_report(result, path)


def test_the_first_view_is_drawn_whole_and_shares_are_of_what_was_recorded(browser_page, tmp_path):
    experiment = CARVED | {"rounds": 3}
    (trace,) = gs.run(experiment, gs.open_device("sim:h200", quiet=True)).traces.values()
    path = reports.trace_report(trace, tmp_path / "t.html")
    browser_page.add_init_script(f"({WATCHED})()")
    browser_page.goto(path.as_uri())
    browser_page.wait_for_function("() => globalThis.last?.missing === 0")  # nobody did anything
    assert browser_page.locator(".timeline .axis span").count() >= 3
    browser_page.locator(".timeline .svg-container").focus()
    browser_page.keyboard.press("f")
    windows = trace.metadata.windows_ns
    browser_page.wait_for_function(f"() => last.high > {windows[-1][0] - windows[0][0]}")
    high = windows[0][0] + browser_page.evaluate("() => last.high")
    tracks = Tracks.of(trace)
    (load,) = [track for track in tracks.tracks if "load" in track.label and not track.is_host]
    recorded_ns = sum(min(until, high) - since for since, until in windows)
    share = tracks.busy_in([load.number], (windows[0][0], high)) / recorded_ns
    assert 0.5 < share <= 1
    assert shares_of(tracks, [load], (windows[0][0], high))[0][0] == percent(share)
    assert percent(share) in browser_page.evaluate("() => written")


def test_shares_are_of_all_spans_though_a_file_has_not_all(browser_page, tmp_path, monkeypatch):
    (trace,) = gs.run(CARVED, gs.open_device("sim:h200", quiet=True)).traces.values()
    monkeypatch.setattr("gpuscope.timeline.canvas.file.MOST_SPANS", len(trace) // 4)
    path = reports.trace_report(trace, tmp_path / "t.html")
    browser_page.add_init_script(f"({WATCHED})()")
    browser_page.goto(path.as_uri())
    browser_page.wait_for_function("() => globalThis.last?.missing === 0")
    tracks, whole = Tracks.of(trace), whole_ns(trace)
    (load,) = [track for track in tracks.tracks if "load" in track.label and not track.is_host]
    ((share, _),) = shares_of(tracks, [load], whole)
    written = browser_page.evaluate("() => written")
    assert share in written
    assert any(text.startswith("spans in columns of") for text in written)
    assert "are in columns of busy time" in browser_page.locator("body").inner_text()


@pytest.mark.parametrize(
    "write", [write_trace, write_prediction, write_sweep, write_tuning, write_interference]
)
def test_nothing_of_any_other_report_is_cut_off_at_900_px(write, browser_page, tmp_path):
    path = tmp_path / "report.html"
    write(path, gs.open_device("sim:h200", quiet=True))
    browser_page.set_viewport_size({"width": 900, "height": 900})
    for theme in ("light", "dark"):
        browser_page.emulate_media(color_scheme=theme)
        browser_page.goto(path.as_uri())
        browser_page.wait_for_function(DRAWN)

        def fits() -> None:
            pairs = browser_page.evaluate(WIDTHS)
            assert len(pairs) > 1, "no table"
            assert not [pair for pair in pairs if pair[0] > pair[1]]

        eventually(fits)


def test_a_change_of_theme_redraws_the_figures(report, browser_page):
    browser_page.emulate_media(color_scheme="light")
    browser_page.goto(report.as_uri())
    browser_page.wait_for_function(DRAWN)
    browser_page.emulate_media(color_scheme="dark")
    browser_page.wait_for_function(
        "() => { const tick = document.querySelector('.xtick text');"
        " return tick && getComputedStyle(tick).fill === 'rgb(230, 234, 238)'; }"
    )


@pytest.mark.parametrize("keys", ["f", "www", "wwwwwddd"])
def test_lanes_of_counters_are_as_high_as_the_means_of_samples(browser_page, tmp_path, keys):
    trace = random_trace(1)
    path = reports.trace_report(trace, tmp_path / "t.html")
    data = re.search('<script type="application/json">(.*?)</script>', path.read_text("utf-8"))
    layout = json.loads(data[1])["layouts"][0]
    zero_ns = TimelineState(trace, None).zero_ns
    browser_page.set_viewport_size({"width": 1280, "height": 1000})
    browser_page.goto(path.as_uri())
    browser_page.evaluate(rule.WATCH)
    browser_page.wait_for_function(f"() => ({PAINTED})() > 1000")
    for key in keys:
        browser_page.locator(".timeline .svg-container").press(key)
    browser_page.wait_for_function("() => window.canvas_frames.at(-1)?.missing === 0")
    low, high, wide = browser_page.evaluate("""() => {
        const { low, high } = window.canvas_frames.at(-1);
        return [low, high, document.querySelector('.gpuscope-tiles').width - SHARES_PX];
    }""")
    edges = zero_ns + np.rint(np.linspace(low, high, wide + 1)).astype(np.int64)
    scale = layout["height"] / layout["scene"]["height"]
    facts, lanes = layout["scene"]["counters"], counter_lanes(trace)
    assert len(facts) == len(lanes)
    places = [[round(lane["top"] * scale), round(lane["tall"] * scale), wide] for lane in facts]
    colours = [[layer["fill"] for layer in lane["layers"]] for lane in facts]
    drawn = browser_page.evaluate(
        rule.DRAWN, [[*place, *fills] for place, fills in zip(places, colours, strict=True)]
    )
    by_top = {lane.facts.partition: lane for lane in lanes}
    for fact, (_, px, _), painted in zip(facts, places, drawn, strict=True):
        partition = None if fact["isMemory"] else {16: "a", 32: "b", 84: "c"}[fact["reach"]]
        lane = by_top[partition]
        columns = lane.columns(edges)
        tops = columns.tops * px / lane.facts.px
        heights = np.cumsum(np.array(painted), axis=0)
        near = np.stack([tops[:, :-2], tops[:, 1:-1], tops[:, 2:]])  # a step may fall in a column
        assert (heights[:, 1:-1] >= near.min(axis=0) - 1).all()
        assert (heights[:, 1:-1] <= near.max(axis=0) + 1).all()
        assert np.abs(heights.mean(axis=1) - tops.mean(axis=1)).max() < 1
        is_blank = ~columns.is_there
        inside = is_blank[:-2] & is_blank[1:-1] & is_blank[2:]
        assert heights[-1, 1:-1][inside].max(initial=0) == 0
