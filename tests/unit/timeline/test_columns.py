"""Ticks of the time axis beside the recording's begin, as live tiles ask for them."""

from gpuscope.timeline.columns import ticks_of


def test_labels_count_from_the_start_where_a_window_begins_before_it():
    ticks = ticks_of((-5_000_000_000, 10_000_000_000), 24)
    assert ticks.title == "time since the start (s)"
    assert ticks.labels[ticks.at_ns.tolist().index(0)] in ("0", "0.0")
