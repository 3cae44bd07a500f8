"""The report of a run in a browser: its first screen, its widths, both themes."""

from __future__ import annotations

import pytest

import gpuscope as gs
from gpuscope.report import html_report

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
    sizes = browser_page.evaluate(SIZES)
    assert sizes["headline"] < sizes["facts"] < sizes["picture"] <= height
    for wide, room in (sizes["page"], *sizes["tables"], *sizes["figures"]):
        assert wide <= room
    seen = browser_page.evaluate(LIGHT_ON_DARK)
    is_dark = theme == "dark"
    assert seen["texts"]
    assert seen["papers"]
    assert all((one < 150) == is_dark for one in (seen["page"], *seen["papers"]))
    assert all((one > 400) == is_dark for one in seen["texts"])
    assert set(seen["names"]) <= {"rgb(27, 31, 36)", "rgb(255, 255, 255)"}, "as the bars need"


def test_a_change_of_theme_redraws_the_figures(report, browser_page):
    browser_page.emulate_media(color_scheme="light")
    browser_page.goto(report.as_uri())
    browser_page.wait_for_function(DRAWN)
    browser_page.emulate_media(color_scheme="dark")
    browser_page.wait_for_function(
        "() => getComputedStyle(document.querySelector('.xtick text')).fill === 'rgb(230, 234, 238)'"
    )
