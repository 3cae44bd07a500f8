"""The timeline widget without a browser: the view, search, details, live rows, drawing."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.widgets import camera
from gpuscope.widgets.painter import Painter

PATIENCE_S = 20
TIMES = st.integers(0, 10**12)


# -- arithmetic of the view -------------------------------------------------------------


@st.composite
def windows(draw):
    low = draw(TIMES)
    return low, low + draw(st.integers(camera.LEAST_NS, 10**12))


@given(windows(), windows(), st.floats(1e-3, 1e3), st.floats(0, 1))
def test_zooming_stays_inside_and_keeps_the_point(window, extent, by, at):
    window = camera.clamped(window, extent)
    low, high = camera.zoomed(window, by, at, extent)
    assert extent[0] <= low < high <= extent[1]
    assert high - low >= min(camera.LEAST_NS, extent[1] - extent[0])
    if by <= 1:  # nothing is clamped: the point stays to a ns
        point = window[0] + (window[1] - window[0]) * at
        assert low + (high - low) * at == pytest.approx(point, abs=2)


@given(windows(), windows(), st.floats(-5, 5))
def test_panning_keeps_the_width_and_stays_inside(window, extent, by):
    window = camera.clamped(window, extent)
    low, high = camera.panned(window, by, extent)
    assert high - low == window[1] - window[0]
    assert extent[0] <= low < high <= extent[1]


@given(windows(), windows(), windows())
def test_a_span_is_brought_into_view(window, span, extent):
    span = camera.clamped(span, extent)
    window = camera.clamped(window, extent)
    low, high = camera.around(window, span, extent)
    assert low <= span[0] <= span[1] <= high
    assert 1 <= (high - low) / (span[1] - span[0]) <= 200 or (low, high) == extent


@given(windows(), TIMES)
def test_ticks_are_even_and_cover_the_view(window, zero):
    over = camera.widened(window, 0.5)
    ticks = camera.ticks(window, over, zero)
    at = [round(one * 1e3) for one in ticks["tickvals"]]
    assert 5 <= len(at) <= 40
    assert len(set(ticks["ticktext"])) == len(at)  # no two of them look the same
    assert at[0] + zero - over[0] <= at[1] - at[0]
    assert over[1] - at[-1] - zero <= at[1] - at[0]
    assert all(len(one) <= 12 for one in ticks["ticktext"])


def test_ticks_far_from_zero_count_from_a_round_time():
    ticks = camera.ticks((5_000_000_000, 5_000_003_000), (5_000_000_000, 5_000_003_000), 0)
    assert ticks["title.text"] == "time since 5 s after the start (µs)"
    assert ticks["ticktext"][:3] == ["0.0", "0.5", "1.0"]


# -- one drawing at a time --------------------------------------------------------------


class Drawn:
    """Frames that wait to be let go, as drawing takes time."""

    def __init__(self) -> None:
        self.frames = 0
        self.go = threading.Semaphore(0)
        self.began = threading.Semaphore(0)

    def __call__(self) -> int:
        self.began.release()
        assert self.go.acquire(timeout=PATIENCE_S)
        self.frames += 1
        return self.frames


@pytest.fixture
def drawn():
    return Drawn()


@pytest.fixture
def painter(drawn):
    made = Painter(drawn, failed=pytest.fail)
    yield made
    drawn.go.release(1000)
    made.close()


def test_what_is_asked_for_while_a_frame_is_drawn_becomes_one_frame(painter, drawn):
    painter.ask()
    assert drawn.began.acquire(timeout=PATIENCE_S)
    for _ in range(100):
        painter.ask()
    drawn.go.release(1000)
    assert painter.wait(PATIENCE_S)
    assert drawn.frames == 2


def test_once_a_browser_answers_the_next_frame_waits_for_the_one_before(painter, drawn):
    drawn.go.release(2)
    painter.ask()
    assert painter.wait(PATIENCE_S)
    painter.painted(1)
    painter.ask()
    assert drawn.began.acquire(timeout=PATIENCE_S)
    assert drawn.began.acquire(timeout=PATIENCE_S)
    drawn.go.release(10)
    for _ in range(5):
        painter.ask()
    assert not drawn.began.acquire(timeout=0.05), "a frame was drawn before the last was painted"
    painter.painted(2)
    assert drawn.began.acquire(timeout=PATIENCE_S)


def test_a_browser_that_went_away_holds_up_one_frame_only(drawn, monkeypatch):
    monkeypatch.setattr("gpuscope.widgets.painter.PATIENCE_S", 0.01)
    painter = Painter(drawn, failed=pytest.fail)
    drawn.go.release(10)
    painter.painted(0)
    for _ in range(3):
        painter.ask()
        assert painter.wait(PATIENCE_S)
    assert drawn.frames == 3
    painter.close()


def test_what_cannot_be_drawn_is_told_and_drawing_goes_on():
    said: list[Exception] = []

    def draw() -> int:
        if not said:
            raise ValueError("no")
        return 1

    painter = Painter(draw, failed=said.append)
    painter.ask()
    assert painter.wait(PATIENCE_S)
    painter.ask()
    assert painter.wait(PATIENCE_S)
    assert [str(one) for one in said] == ["no"]
    painter.close()


def test_a_closed_painter_draws_no_more_and_leaves_no_thread(painter, drawn):
    drawn.go.release(10)
    painter.ask()
    painter.close()
    frames = drawn.frames
    painter.ask()
    assert drawn.frames == frames
    assert "gpuscope-paint" not in {thread.name for thread in threading.enumerate()}
