"""What a release promised is kept: names, commands, experiments, kinds and columns."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("stable", ROOT / "scripts" / "stable.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_nothing_of_the_latest_release_has_gone(script):
    before, now = json.loads(script.FILE.read_text("utf-8")), script.stable()
    del before["version"], now["version"]
    assert not list(script.gone(before, now)), "deprecate it for a release first: docs/stable.md"


def test_what_is_kept_is_what_the_project_offers(script):
    now = script.stable()
    assert {"run", "Gemm", "analysis.overlap", "errors.GpuscopeError"} <= now["names"].keys()
    assert {"dtype", "m", "n", "k"} <= set(now["names"]["Gemm"])
    assert "--device" in now["commands"]["quickstart"]
    assert {"rounds", "settings.*.streams.*.priority"} <= set(now["experiment"])
    assert now["columns"]["start_ns"] == "int64"
    assert now["kinds"]["spin"] == ["blocks", "duration_us"]


def test_what_has_gone_or_changed_is_named_and_what_came_is_not(script):
    before = {"names": {"f": ["a", "b"], "g": []}, "columns": {"id": "int64"}}
    now = {"names": {"f": ["b", "c"], "h": []}, "columns": {"id": "int32", "new": "int8"}}
    assert list(script.gone(before, now)) == [
        "names: f: a",
        "names: g",
        "columns: id: int64 is now int32",
    ]
    assert list(script.gone(before, before)) == []
