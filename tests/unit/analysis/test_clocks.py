"""At which clocks rounds ran, and for what they were throttled: in tables, findings and figures."""

from __future__ import annotations

import pytest

import gpuscope as gs
from gpuscope.comparing.rounds import windows_of
from gpuscope.errors import MissingEvidence
from gpuscope.timeline.text import stated
from gpuscope.trace import Trace
from gpuscope.trace.gpu_states import state_words, throttled_rounds, throttling

STATES = [
    {"device": "cuda:0", "round": number, "sm_clock_mhz": clock, "power_w": power,
     "lowest_mhz": clock - 30, "highest_mhz": 1980, "reasons": reasons, "readings": 7}
    for number, (clock, power, reasons) in enumerate([
        (1980, 400, ["gpu_idle"]), (1755, 690, ["sw_power_cap"]), (1500, 300, ["sw_power_cap"]),
    ])
]  # fmt: skip
ONE = {
    "name": "one", "alone_repeats": 0, "streams": {"s": {}},
    "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 3}},
    "settings": {"first": {}, "second": {}}, "rounds": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def run():
    """A run of which the first setting was throttled."""
    made = gs.run(ONE, gs.open_device("sim:h200", quiet=True))
    traces = {**made.traces, "first": made["first"].with_metadata(gpu_states=STATES)}
    return gs.trace.Run(traces, gs.analysis.settings_table(traces), made.experiment)


def test_each_round_has_its_clock_power_and_reasons(run):
    result = gs.analysis.clocks(run["first"])
    assert [state.round for state in result.states] == [0, 1, 2]
    rows = result.rows()
    assert [row["SM clock (MHz)"] for row in rows] == [1980, 1755, 1500]
    assert [row["throttled"] for row in rows] == [None, "power cap", "power cap"]
    with pytest.raises(MissingEvidence):
        gs.analysis.clocks(run["second"])


def test_a_comparison_tells_of_each_setting(run):
    columns = ["setting", "sm_clock_mhz", "power_w", "throttled"]
    first, second = run.comparison.select(columns).to_pylist()
    assert first == {"setting": "first", "sm_clock_mhz": 1755.0, "power_w": 400.0,
                     "throttled": throttled_rounds(run["first"].metadata.gpu_states)}  # fmt: skip
    assert [second[name] for name in columns[1:]] == [None] * 3
    assert "power cap" in str(run)


def test_a_finding_says_in_how_many_rounds_and_at_which_clock(run):
    (found,) = (each for each in gs.findings(run["first"]).findings if each.rule == "throttled")
    values = {quantity.name: quantity.value for quantity in found.values}
    assert values == {"slowed": 2, "rounds": 3, "clock": 1627.5}
    assert (found.severity, found.subject["why"]) == ("note", ["power cap"])
    assert all(each.rule != "throttled" for each in gs.findings(run["second"]).findings)


@pytest.mark.parametrize(("clock", "is_told"), [(1980, False), (1755, True)])
def test_a_limit_that_slows_nothing_down_is_no_finding(run, clock, is_told):
    states = [STATES[0], {**STATES[1], "sm_clock_mhz": clock}]
    found = gs.findings(run["first"].with_metadata(gpu_states=states)).findings
    assert any(finding.rule == "throttled" for finding in found) == is_told


def test_every_figure_says_it_and_of_which_setting(run):
    _, lines = stated(run.traces)
    words = state_words(run["first"].metadata.gpu_states)
    assert "power cap" in words
    assert any("power cap" in line for line in lines)
    figures = (gs.figures.latency(run, "w"), gs.figures.timeline(run["first"]))
    for figure in figures:
        assert "power cap" in figure.layout.title.subtitle.text
    assert "power cap" not in gs.figures.timeline(run["second"]).layout.title.subtitle.text


def test_parts_of_a_trace_keep_the_clocks_of_their_rounds(run):
    parts = windows_of(run["first"])
    assert [part.metadata.gpu_states[0].sm_clock_mhz for part in parts] == [1980, 1755, 1500]
    kernels = run["first"].where(kind="kernel")
    assert kernels.provenance == run["first"].provenance


def test_rounds_are_numbered_on_where_traces_are_joined(run):
    states = Trace.concat([run["first"], run["second"], run["first"]]).metadata.gpu_states
    assert [state.round for state in states] == [0, 1, 2, 4, 5, 6]


def test_what_is_forecast_has_no_clock(run):
    made = gs.what_if(run["first"], partitions={"p": 64}, streams={"s": {"partition": "p"}})
    assert all(not trace.metadata.gpu_states for name, trace in made.items() if name != "recorded")


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        (["gpu_idle", "applications_clocks_setting", "display_clock_setting"], ()),
        (["sw_power_cap"], ("power cap",)),
        (["hw_thermal_slowdown", "sw_thermal_slowdown", "gpu_idle"], ("temperature",)),
        (["hw_slowdown", "hw_power_brake_slowdown"], ("hardware slowdown", "power brake")),
        (["what tomorrow's driver tells"], ()),
    ],
)
def test_what_throttles(reasons, words):
    assert throttling(reasons) == words
