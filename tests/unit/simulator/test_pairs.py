"""Two workloads at a time, simulated, against what an H200 took for them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def pairs():
    spec = importlib.util.spec_from_file_location("pairs", BENCHMARKS / "pairs.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["pairs"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["pairs"]


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("figures", "median"), [("pair_figures", 0.025), ("thirteen_figures", 0.04)]
)
def test_pairs_take_about_as_long_as_on_an_h200(pairs, figures, median):
    found = getattr(pairs, figures)()
    assert found["median"] <= median
    assert found["worst"] <= 0.14
