"""Reports: one file, no network, foreign names harmless, nothing half written."""

from __future__ import annotations

import errno
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_pages import figures_of, without_plotly

from gpuscope._columns import COMPARED
from gpuscope.analysis import settings_table
from gpuscope.comparing.of_run import variants
from gpuscope.errors import GpuscopeError
from gpuscope.report import html_report, trace_report
from gpuscope.timeline import style
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run

EVIL = "<script>alert(1)</script><a href='javascript:alert(2)'>x</a>\u202e\u2066\x07"


def make_trace(
    *, names=("small", "load"), simulated=False, calls=40, queued=True, device="H200",
    latency_ns=30_000, partitioned=True, intended=None,
):  # fmt: skip
    """Build a small run of one setting: a load that is always busy, and a timed workload."""
    small, load = names
    rows = []
    for index in range(calls):
        start = 400_000 + index * 200_000
        rows += [
            ("kernel", load, start, start + 190_000, 2, load, load, start - 400_000, 10**11),
            ("handle", small, start + 5000, start + 5000 + latency_ns, 1, small, small, None, None),
            ("kernel", small, start + 9000, start + 24_000, 1, small, small, start + 6000, 10**8),
        ]
    kinds, labels, starts, ends, streams, partitions, categories, launches, flops = zip(
        *rows, strict=True
    )
    return Trace.from_columns(
        {
            "id": list(range(len(rows))),
            "kind": list(kinds),
            "name": list(labels),
            "start_ns": list(starts),
            "end_ns": list(ends),
            "stream": list(streams),
            "partition": list(partitions) if partitioned else [None] * len(rows),
            "intended_partition": [
                intended or (one if partitioned else None) for one in partitions
            ],
            "category": list(categories),
            "queued_ns": list(launches) if queued else [None] * len(rows),
            "flop_count": list(flops),
            "source": ["simulated" if simulated else "cupti"] * len(rows),
        },
        {"from": [0], "to": [5], "kind": ["event wait"]},
        TraceMetadata(
            simulated=simulated,
            devices={"cuda:0": {"name": device}},
            gpu_states=[
                {
                    "device": "cuda:0",
                    "sm_clock_mhz": 1980,
                    "power_w": 412.5,
                    "reasons": ["sw_power_cap"],
                }
            ],
            partitions={small: {"granted": 16}, load: {"granted": 116}},
            streams={"1": {"name": small}, "2": {"name": load}},
            windows_ns=[[0, calls * 200_000]],
            solo={
                small: {"kernel_ns": 12_000.0},
                load: {"kernel_ns": 180_000.0, "whole_gpu_tflop_per_s": 700.0},
            },
            versions={"gpuscope": "0.1"},
            counts={"received": len(rows), "dropped": 3, "unmatched": 0},
            notes=["a note"],
        ),
    )


def make_run(traces, names=("small", "load"), *, stopped=False):
    workloads = {
        names[0]: {"background": False, "stream": "s"},
        names[1]: {"background": True, "stream": "l"},
    }
    experiment = {"name": "trial", "workloads": workloads}
    traces = {name: trace.with_metadata(experiment=experiment) for name, trace in traces.items()}
    return Run(traces, settings_table(traces), experiment, stopped)


class Loads(HTMLParser):
    """Collects every attribute by which a page loads something."""

    def __init__(self):
        super().__init__()
        self.found = []
        self.tags = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.found += [
            (tag, name, value)
            for name, value in attrs
            if name in ("src", "href", "action", "data", "srcset", "poster")
            or name.startswith("on")
        ]


@pytest.fixture
def run():
    return make_run({"shared": make_trace(), "16 | rest": make_trace(calls=1000)})


def test_a_run_is_one_file_with_everything_in_it(run, tmp_path):
    path = html_report(run, tmp_path / "run.html")
    page = path.read_text(encoding="utf-8")
    body = without_plotly(page)
    assert list(tmp_path.iterdir()) == [path]
    assert "<h1>trial</h1>" in body
    for words in (
        "median kernel (µs)", "latency p99 (µs)", "of alone (%)",
        "measured on H200", "16 | rest", "n = 1,000", "overlap", "gain", "calls timed",
        "TFLOP/s", "load: of alone (longer is better)", "3 dropped", "a note",
        "SM clock 1,980 MHz, 412.5 W, throttled: power cap",
        "with nothing queued", "The sum of the kernel times alone, on the same partitions",
    ):  # fmt: skip
        assert words in body, words
    assert list(figures_of(page)) == ["compared", "latency-0", "confinement-0", "confinement-1"]
    assert body.count('<div class="timeline" data-timeline>') == len(run)
    assert "SIMULATED" not in body


def carved(trace):
    """The trace of a setting that gave its workloads partitions, as :func:`make_trace` does."""
    return trace.with_metadata(
        partitions={
            "small": {"asked": 16, "sm_count": 16},
            "load": {"asked": "rest", "sm_count": 116},
        }
    )


def test_the_first_screen_says_what_was_won_what_it_cost_and_what_was_run(tmp_path):
    def at(latency_ns, *, partitions=False):
        trace = make_trace(calls=1000, latency_ns=latency_ns, partitioned=partitions)
        return carved(trace) if partitions else trace.with_metadata(partitions={})

    run = make_run({"shared": at(35_000), "16 | rest": at(9_000, partitions=True)})
    run.experiment["streams"] = {"s": {}, "l": {}}
    on = {"s": {"partition": "small"}, "l": {"partition": "load"}}
    run.experiment["settings"] = {"shared": {}, "16 | rest": {"streams": on}}
    body = without_plotly(html_report(run, tmp_path / "r.html").read_text("utf-8"))
    first = body.partition("<h2>")[0]
    headline = re.search('<p class="headline">(.*?)</p>', first)[1].replace("\xa0", " ")
    assert headline.startswith("On 16 SMs of its own, small&#x27;s p50 is 9 µs instead of 35 µs")
    assert "<dt>small</dt>" in first
    assert "small and load share the whole GPU" in first
    assert "small has 16 SMs, load has the remaining 116 SMs" in first
    assert "Confined: all work given to small and load ran inside" in first
    assert first.index("headline") < first.index('class="picture"') < first.index("Confined")
    heads = re.findall("<th>(.*?)</th>", first.partition('class="picture"')[2])
    assert heads[1].startswith("small: latency p50"), "as in the headline, though there is a p99"


def test_a_report_shows_the_pair_that_its_headline_is_about(tmp_path):
    took_ns = {"plain": 40_000, "worse": 41_000, "best": 9_000}
    run = make_run({name: make_trace(calls=30, latency_ns=took) for name, took in took_ns.items()})
    page = html_report(run, tmp_path / "r.html").read_text("utf-8")
    section = page.partition("<h2>Call by call</h2>")[2].partition("<h2>")[0]
    assert re.findall(r"<th[^>]*>([^<]*)</th>", section)[2:4] == ["plain", "best"]
    one = make_run({"plain": make_trace(calls=30)})
    assert "Call by call" not in html_report(one, tmp_path / "one.html").read_text("utf-8")


def test_the_picture_has_a_bar_for_each_number_in_the_colour_of_where_it_ran(tmp_path):
    run = make_run({"16 | rest": carved(make_trace(calls=1000))})
    page = html_report(run, tmp_path / "r.html").read_text("utf-8")
    picture = page.partition('class="picture"')[2].partition("</table>")[0]
    bars = re.findall(r'<i style="width:([\d.]+)%;background:(#\w+)"></i><b>(.*?)</b>', picture)
    colours = style.partition_colours(run.traces.values(), ())
    assert [(width, colour) for width, colour, _ in bars] == [
        ("60.0", colours["small"]), ("60.0", colours["load"]),
    ]  # fmt: skip
    assert bars[0][2] == "30 µs"
    lines = [
        trace["line"]["color"]
        for trace in figures_of(page)["latency-0"]["data"]
        if trace["mode"] == "lines"
    ]
    assert lines == [colours["small"]]


def test_an_escape_stands_above_the_picture_with_what_to_do(tmp_path):
    trace = carved(make_trace(intended="small"))
    body = html_report(make_run({"16 | rest": trace}), tmp_path / "r.html").read_text("utf-8")
    assert '<li class="escape error">' in body
    assert body.index("ESCAPED") < body.index('class="picture"')
    assert "give it a stream of small" in body
    page = trace_report(trace, tmp_path / "t.html").read_text("utf-8")
    assert page.index("ESCAPED") < page.index("<h2>")


def test_provenance_stands_once(run, tmp_path):
    page = without_plotly(html_report(run, tmp_path / "r.html").read_text("utf-8"))
    assert page.count("measured on H200") == 1
    table = page.partition("Where the times come from")[2]
    assert table.count("<tr>") == 1 + len({"seen", "times", "records", "end", "versions", "notes"})
    assert "shared: 120 received, 3 dropped" in table
    assert "16 | rest: 3,000 received" in table


def test_nothing_is_loaded_from_a_network(run, tmp_path):
    for path in (
        html_report(run, tmp_path / "r.html"),
        trace_report(run["shared"], tmp_path / "t.html"),
    ):
        page = path.read_text(encoding="utf-8")
        loads = Loads()
        loads.feed(page)
        assert loads.found == []
        assert "link" not in loads.tags
        assert "default-src 'none'" in page
        assert "@import" not in without_plotly(page)
        assert not re.search(r"https?://", without_plotly(page))


def test_plotly_is_in_the_page_once(run, tmp_path):
    page = html_report(run, tmp_path / "r.html").read_text(encoding="utf-8")
    assert 1_000_000 < len(page) < 3_000_000
    assert page.count('id="plotly"') == 1


def test_simulated_is_announced_loudly(tmp_path):
    real, sim = make_trace(), make_trace(simulated=True)
    page = without_plotly(html_report(make_run({"a": sim}), tmp_path / "a.html").read_text("utf-8"))
    assert '<div class="banner" role="note"><p><strong>SIMULATED, not measured.' in page
    assert "have the host costs and the tail of the machine" in page
    assert "one host&#x27;s from hour to hour" in page
    page = without_plotly(
        html_report(make_run({"a": sim, "b": real}), tmp_path / "b.html").read_text("utf-8")
    )
    assert "SIMULATED, not measured (a)." in page
    assert "SIMULATED, not measured." in trace_report(sim, tmp_path / "c.html").read_text("utf-8")


def test_foreign_names_are_harmless(tmp_path):
    names = (EVIL + "1", EVIL + "2")
    trace = make_trace(names=names, device=EVIL + "\ud800")
    run = make_run({EVIL: trace}, names)
    pages = [
        html_report(run, tmp_path / "r.html", title=EVIL + "\ud800"),
        html_report(run, tmp_path / "r.html"),
        trace_report(trace, tmp_path / "t.html", title=EVIL + "\ud800"),
        trace_report(trace.with_metadata(setting=EVIL), tmp_path / "t.html"),
    ]
    for path in pages:
        body = without_plotly(path.read_text(encoding="utf-8"))
        for raw in ("<script>alert", "<a ", "\u202e", "\u2066", "\\u202e", "\\u2066", "\\ud800"):
            assert raw not in body
        assert "&lt;script&gt;alert" in body
        loads = Loads()
        loads.feed(body)
        assert "a" not in loads.tags
        assert loads.found == []


def test_calls_without_load_are_not_passed_over(tmp_path):
    trace = make_trace(calls=4)
    late = {
        "id": [1000], "kind": ["handle"], "name": ["small"], "start_ns": [1_190_000 + 3_000],
        "end_ns": [1_199_000], "category": ["small"], "source": ["cupti"],
    }  # fmt: skip
    idle = Trace.concat([trace, Trace.from_columns(late)])
    body = html_report(make_run({"a": idle}), tmp_path / "r.html").read_text(encoding="utf-8")
    assert '<li class="dry-queue warning">' in body


def test_missing_evidence_is_told_and_not_an_error(tmp_path):
    unknown = make_trace(queued=False)
    empty = Trace.from_columns({})
    body = html_report(
        make_run({"a": unknown, "nothing": empty}, ("small", "load"), stopped=True),
        tmp_path / "r.html",
    ).read_text(encoding="utf-8")
    assert "queued_ns" in body
    assert "No kernel was recorded, so there is no confinement to judge." in body
    assert "Stopped early." in body
    page = without_plotly(trace_report(empty, tmp_path / "t.html").read_text(encoding="utf-8"))
    assert "holds no finished kernel" in page
    assert "no spans" in page


def test_a_run_of_nothing_known_still_gives_a_report(tmp_path):
    assert html_report(Run({}, settings_table({}), {}), tmp_path / "r.html").exists()


@pytest.mark.parametrize("step", ["write_text", "replace"])
@pytest.mark.parametrize("before", [None, "what stood here"])
def test_a_full_disk_leaves_nothing_new(run, tmp_path, monkeypatch, step, before):
    target = tmp_path / "run.html"
    if before is not None:
        target.write_text(before)

    def fail(self, *args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, step, fail)
        for write in (
            lambda: html_report(run, target),
            lambda: trace_report(run["shared"], target),
        ):
            with pytest.raises(GpuscopeError, match="No space left"):
                write()
    assert [path.name for path in tmp_path.iterdir()] == ([] if before is None else ["run.html"])
    assert before is None or target.read_text() == before


def test_a_folder_that_is_not_there_is_named(run, tmp_path):
    with pytest.raises(GpuscopeError, match=r"run\.html"):
        html_report(run, tmp_path / "absent" / "run.html")
    with pytest.raises(GpuscopeError, match="name a file"):
        html_report(run, "")


def test_the_same_run_gives_the_same_file(run, tmp_path):
    one, two = html_report(run, tmp_path / "1.html"), html_report(run, tmp_path / "2.html")
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize(
    ("plain_us", "raised_us", "within_noise"), [(40, 9, False), (9, 40, False), (40, 40, True)]
)
@pytest.mark.parametrize("order", [("plain", "raised"), ("raised", "plain")])
def test_what_priority_alone_did_is_compared_with_the_setting_without_it(
    tmp_path, plain_us, raised_us, within_noise, order
):
    took_us = {"plain": plain_us, "raised": raised_us}
    run = make_run(
        {name: make_trace(calls=1000, latency_ns=took_us[name] * 1000) for name in order}
    )
    run.experiment["settings"] = {"plain": {}, "raised": {"streams": {"s": {"priority": -1}}}}
    (finding,) = variants(run)
    assert finding.rule == "priority"
    assert (finding.subject["base"], finding.subject["setting"]) == ("plain", "raised")
    by = finding["by"]
    assert by.value == pytest.approx(raised_us / plain_us - 1)
    assert (by.low <= 0 <= by.high) == within_noise
    page = html_report(run, tmp_path / "r.html").read_text("utf-8")
    assert '<li class="priority ' in page


def test_what_the_sm_count_target_did_is_told_of_rates():
    run = make_run({"told": carved(make_trace()), "untold": carved(make_trace(calls=30))})
    run.experiment["settings"] = {"told": {}, "untold": {"sm_count_target": "off"}}
    (finding,) = variants(run)
    assert (finding.rule, finding.subject["workload"]) == ("target", "load")
    assert (finding.subject["base"], finding.subject["setting"]) == ("told", "untold")


@pytest.mark.parametrize(
    ("experiment", "first", "second", "is_carved"),
    [
        ({}, {}, {"rounding": "up", "streams": {"s": {"priority": -1}}}, True),
        ({"streams": {"s": {"priority": -1}}}, {}, {"streams": {"s": {"priority": -1}}}, True),
        ({"sm_count_target": "off"}, {}, {"sm_count_target": "off"}, True),
        ({}, {}, {"sm_count_target": "off"}, False),
    ],
)
def test_what_something_alone_did_is_told_if_it_alone_differs(experiment, first, second, is_carved):
    traces = {"one": make_trace(), "two": make_trace(calls=30)}
    if not is_carved:
        traces = {name: trace.with_metadata(partitions={}) for name, trace in traces.items()}
    run = make_run(traces)
    run.experiment.update(experiment)
    run.experiment["settings"] = {"one": first, "two": second}
    assert not [*variants(run)]


def test_what_colours_mean_is_said_where_it_is_so(tmp_path):
    plain = make_trace(partitioned=False).with_metadata(partitions={})
    apart = carved(make_trace())
    for traces, words in (
        ({"one": apart, "two": apart}, None),
        ({"one": plain, "two": apart}, "In the timeline of “one”, it is the stream."),
        ({"one": plain, "two": plain}, "In the timelines, it is the stream."),
    ):
        page = html_report(make_run(traces), tmp_path / "r.html").read_text("utf-8")
        assert ("it is the stream" in page) is (words is not None)
        assert (words or "where work ran") in page


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [("latency_p99_us", 12_000, "12 ms"), ("latency_p50_us", 83.25, "83.25 µs"),
     ("ttft_p50_ms", 0.08325, "83.25 µs"), ("tbt_p50_ms", None, "–")],
)  # fmt: skip
def test_times_have_the_unit_that_suits_them(key, value, words):
    assert COMPARED[key].text(value) == words
