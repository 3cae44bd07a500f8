"""Diffs, budgets and baselines on a GPU: what was changed is seen, and its conditions are known."""

from __future__ import annotations

import json

import pytest
from judging_programs import ONE, changed

import gpuscope as gs
from gpuscope.device.cuda.health import processes_by_uuid
from gpuscope.errors import GpuscopeError
from gpuscope.judging import Budget, check

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.gpu_alone("compares times, and counts who else is there"),
]


@pytest.fixture(scope="module")
def gpu():
    device = gs.open_device("cuda:0", quiet=True)
    yield device
    device.close()


def test_a_kernel_that_takes_twice_as_long_is_slower_and_is_the_cause(gpu):
    result = gs.diff(
        changed(repeats=200), changed(repeats=200, duration_us=200), device=gpu, rounds=8
    )
    assert result.verdict == "slower"
    split = result.split("w")
    off_ns = sum(part.change_ns for part in split.parts) - (split.after_ns - split.before_ns)
    assert abs(off_ns) < 1e-3
    kernels = sum(part.change_ns for part in split.parts if part.cause == "kernels")
    assert kernels == pytest.approx(100_000, rel=0.1)
    assert {part.configuration for part in split.parts if part.cause == "kernels"} != {None}


def test_the_clock_of_rounds_is_known_and_nobody_else_is_there(gpu):
    result = gs.diff(changed(repeats=100), changed(repeats=100), device=gpu, rounds=4)
    clocks = result.turns.clocks_mhz()
    assert all(clock and clock > 300 for clock in clocks)
    assert result.turns.others == 0
    assert len(result.turns.control) >= 2


def test_processes_are_counted_by_the_uuid_that_traces_have(gpu):
    trace = gs.run({**ONE, "alone_repeats": 0}, gpu)["default"]
    assert processes_by_uuid()[trace.metadata.devices["cuda:0"].uuid] >= 1


def test_limits_on_a_gpu_have_intervals(gpu):
    text = 'escapes = 0\n[limits]\n"w.latency_p50_us" = "<= 100000"\n"load.calls_per_s" = ">= 1"'
    result = check(changed(repeats=200), Budget.parse(text), device=gpu)
    assert result.verdict == "holds", str(result)
    p50 = next(kept for kept in result.limits if kept.limit.column == "latency_p50_us")
    assert p50.low < p50.value < p50.high
    tight = f'[limits]\n"w.latency_p50_us" = "<= {p50.value / 3}"'
    assert check(changed(repeats=200), Budget.parse(tight), device=gpu).verdict == "violated"


def test_a_baseline_of_processes_is_compared_with(gpu, tmp_path):
    (tmp_path / "b.toml").write_text('[baseline]\nfile = "base.json"\n"w.latency_p50_us" = "60 %"')
    options = {"device": "cuda:0", "rounds": 3}
    check(ONE, tmp_path / "b.toml", save_baseline=tmp_path / "base.json", **options)
    stored = json.loads((tmp_path / "base.json").read_text("utf-8"))
    assert len(stored["values"]["default"]["w.latency_p50_us"]) == 3
    assert stored["machine"]["driver"]
    assert stored["machine"]["clock_mhz"] > 100
    slow = check(changed(duration_us=1000), tmp_path / "b.toml", **options)
    assert slow.verdict == "violated", str(slow)
    stored["machine"]["gpu"] = "another"
    (tmp_path / "base.json").write_text(json.dumps(stored), "utf-8")
    with pytest.raises(GpuscopeError, match="another machine"):
        check(ONE, tmp_path / "b.toml", **options)


ON_A_GPU = """
import sys
import gpuscope as gs
from gpuscope.device.cuda.health import processes_by_uuid
from gpuscope.workloads import Spin

gpu = gs.open_device("cuda:0", quiet=True)
longer = int(sys.argv[1]) if len(sys.argv) > 1 else 0
body, head = Spin(gpu, duration_ns=200_000), Spin(gpu, duration_ns=50_000 + longer)
with gpu.create_stream(name="s") as stream:
    for number in range(200):
        with gs.annotate(f"step {number}"):
            body.execute(stream=stream)
            with gs.annotate("head"):
                head.execute(stream=stream)
            stream.synchronize()
"""


def test_programs_are_split_by_range_and_line_on_a_gpu(tmp_path):
    script = tmp_path / "prog.py"
    script.write_text(ON_A_GPU, "utf-8")
    result = gs.diff([str(script)], [str(script), "1000000"], rounds=3)
    assert result.verdict == "slower", str(result)
    part = result.splits[0].changed[0]
    assert (part.cause, part.range, "prog.py:15" in part.line) == ("kernels", "head", True), part
    assert part.change_ns == pytest.approx(1_000_000, rel=0.2)
    assert result.turns.clocks_mhz()[0] > 100
