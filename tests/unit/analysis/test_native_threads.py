"""Threads that run no Python, such as JAX's that copy: what they do follows the program's."""

from __future__ import annotations

import numpy as np
import pytest
from test_critical_path import kernel, launch, rows, wait
from test_help import LINE, SITE, gains

import gpuscope as gs
from gpuscope.analysis.native_threads import followed_calls, latest_followed

MAIN, COPIES, OTHER = 1, 2, 3
COPIED = kernel(9, "copied", 200, 300, 120, stream=9)


def steps(*also, lines=True):
    """Return ten steps: Python of 300 µs hands a copy over before its end, and launches then."""
    spans, edges, at = [], [], 0
    for number in range(10):
        base = 10 * number
        site = SITE.format(3) if lines else None
        spans += [
            launch(base + 1, MAIN, at + 300_000, at + 310_000, site),
            kernel(base + 2, "k", at + 315_000, at + 325_000, at + 310_000),
            launch(base + 3, COPIES, at + 280_000, at + 285_000),
            launch(base + 4, COPIES, at + 285_000, at + 290_000),
            kernel(base + 5, "copied", at + 295_000, at + 299_000, at + 290_000, stream=9),
        ]
        edges += [(base + 1, base + 2, "launch"), (base + 4, base + 5, "launch")]
        at += 310_000
    return rows(*spans, *also, edges=edges)


def followed(trace):
    """Return id of a call → id of the call that it follows, and of the one whose line tells."""
    ids = trace.array("id")
    last, nearer = followed_calls(trace)
    which = np.flatnonzero(last >= 0)
    return {int(ids[row]): (int(ids[last[row]]), int(ids[nearer[row]])) for row in which}


def test_the_first_call_of_a_burst_follows_the_python_that_ran_then():
    trace = steps()
    assert followed(trace) == {base + 3: (base - 9, base + 1) for base in range(10, 100, 10)}, (
        "nearer to the next call; the very first follows none"
    )
    ids = trace.array("id").tolist()
    latest = latest_followed(trace)
    assert ids[latest[ids.index(24)]] == ids[latest[ids.index(23)]] == 23
    assert latest[ids.index(21)] == -1


def test_a_call_right_behind_another_has_the_line_before_it():
    spans = [launch(1, MAIN, 0, 10, SITE.format(3)), launch(2, COPIES, 15, 20),
             launch(3, MAIN, 500, 510, SITE.format(4)), COPIED]  # fmt: skip
    assert followed(rows(*spans, edges=[(2, 9, "launch")])) == {2: (1, 1)}
    assert followed(rows(*spans)) == {}, "one that launches nothing, as who only looks"


@pytest.mark.parametrize(
    "also",
    [
        [launch(7, OTHER, 20, 30, SITE.format(9))],  # who of two?
        [wait(7, "cudaStreamSynchronize", 20, 400, stream=7)],  # no Python ran
    ],
    ids=["two threads of Python", "in a call"],
)
def test_what_cannot_be_told_is_not(also):
    spans = [launch(1, MAIN, 0, 10, SITE.format(3)), launch(2, COPIES, 100, 120), COPIED]
    edges = [(2, 9, "launch")]
    assert followed(rows(*spans, edges=edges)) == {2: (1, 1)}
    assert followed(rows(*spans, *also, edges=edges)) == {}


def test_without_lines_no_thread_is_native():
    assert followed(steps(lines=False)) == {}


def test_idle_time_before_it_belongs_to_the_python():
    idle = gs.analysis.idle_causes(steps(), (325_000, 3_100_000))
    by_thread = {}
    for cause in idle.causes:
        key = cause.thread, cause.line
        by_thread[key] = by_thread.get(key, 0) + cause.idle_ns
    main, copies = sorted({thread for thread, _ in by_thread})
    assert by_thread[main, LINE.format(3)] > 9 * 255_000
    assert sum(ns for (thread, _), ns in by_thread.items() if thread == copies) <= 9 * 15_000
    assert sum(by_thread.values()) == idle.idle_ns


def test_shorter_python_lets_it_come_sooner():
    found = gains(steps())
    assert found["shorten the Python before", LINE.format(3)] > 9 * 200_000
