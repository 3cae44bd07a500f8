"""What the page works out by itself, as it has no kernel to ask while it moves: run by Node."""

from __future__ import annotations

import json
import shutil
import subprocess

import numpy as np
import pytest

from gpuscope.timeline.canvas import tiles
from gpuscope.timeline.columns import FREE_PX, LEAST_PX, heights, step_of

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="nothing runs JavaScript here")


def run(expression: str, cases: list) -> list:
    """Return what an expression of ``one`` gives for each case."""
    program = f"{tiles.SCRIPT}\nconst cases = {json.dumps(cases)};\n"
    program += f"console.log(JSON.stringify(cases.map((one) => {expression})));"
    done = subprocess.run(["node", "-"], input=program, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_columns_are_as_high_as_in_every_other_picture():
    rng = np.random.default_rng(3)
    cases, expected = [], []
    for _ in range(2000):
        busy = rng.integers(0, 129, (int(rng.integers(1, 5)), 1)) * rng.integers(0, 2)
        px = int(rng.integers(12, 60))
        cases.append([(busy[:, 0] / 128).tolist(), (busy[:, 0] > 0).tolist(), px])
        expected.append(heights(busy, busy > 0, np.full(1, 128), px)[:, 0])
    sums = "const total = shares.reduce((a, b) => a + b, 0)"
    found = run(
        "{ const [shares, there, px] = one; " + sums + "; fit(shares, there, total, px, "
        f"{LEAST_PX}, {FREE_PX}); return shares; }}",
        cases,
    )
    for (shares, *_), tall, wanted in zip(cases, found, expected, strict=True):
        assert np.abs(np.array(tall) - wanted).max() <= (sum(shares) > 1), "but for halves"


def test_lanes_reach_as_high_as_in_every_other_picture():
    cases = [1, 2, 3, 5, 6, 9, 10, 11, 99, 100, 101, 12_345, 499_999, 500_000, 500_001]
    assert run("stepOf(one)", cases) == [step_of(case, 1) for case in cases]
