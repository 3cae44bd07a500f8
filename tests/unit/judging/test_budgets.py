"""Budgets: what they take, what holds and what does not, baselines, and the fixture for pytest."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from escaping import escaped
from hypothesis import given
from hypothesis import strategies as st
from judging_programs import ONE, PROGRAM, changed

import gpuscope as gs
from gpuscope.comparing.rounds import MeasuredTrace
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.judging import Budget, check
from gpuscope.judging.machine import Machine
from gpuscope.judging.measured import Seen
from gpuscope.judging.told import check_markdown, of_check, of_limit
from gpuscope.judging.verdict import EXIT, LIMIT, Verdict

CARVED = {
    **ONE,
    "partitions": {"a": 16, "b": "rest"},
    "streams": {"s": {"partition": "a"}, "t": {"partition": "b"}},
}


def verdicts(result):
    return {kept.limit.name: kept.verdict for kept in result.limits}


# -- budgets ------------------------------------------------------------------------------
def test_a_budget_is_read_with_its_limits_and_its_baseline():
    budget = Budget.parse(
        """
        escapes = 0
        idle_share = "<= 20 %"
        [limits]
        "w.latency_p50_us" = "<= 1.5e2"
        overlap = ">= 0.9"
        [settings.split]
        "w.calls_per_s" = ">= 100"
        [baseline]
        file = "base.json"
        "w.latency_p50_us" = "5 %"
        """,
        Path("there"),
    )
    assert [
        (each.name, each.setting, each.sign, each.value, each.worse) for each in budget.limits
    ] == [
        ("escapes", None, "<=", 0, None),
        ("idle_share", None, "<=", 0.2, None),
        ("w.latency_p50_us", None, "<=", 150.0, None),
        ("overlap", None, ">=", 0.9, None),
        ("w.calls_per_s", "split", ">=", 100.0, None),
        ("w.latency_p50_us", None, "<=", 0.0, 0.05),
    ]
    assert (budget.baseline, budget.is_relative) == (Path("there/base.json"), True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no limits"),
        ("escapes = -1", "escapes is -1; a count"),
        ("escapes = true", "escapes is True"),
        ("escape = 0", r"escape is no limit.*did you mean 'escapes'"),
        ("limits = 3", "limits is 3; a table"),
        ('[limits]\n"w.latency_p50" = "<= 3"', "no column.*did you mean 'latency_p50_us'"),
        ('[limits]\n"w.latency_p50_us" = 3', "'<= 120' is needed"),
        ("overlap = 3", "'<= 0.8' or '>= 0.8' is needed"),
        ('[limits]\n"w.latency_p50_us" = ">= 3"', "less is better"),
        ('[limits]\n"w.calls_per_s" = "<= 3"', "more is better"),
        ('[limits]\n"w.sms" = "<= 3"', "no column"),
        ("[settings]\nx = 1", "settings.x is 1"),
        ('[baseline]\n"w.latency_p50_us" = "5 %"', "baseline needs a file"),
        ('[baseline]\nfile = 3\n"w.latency_p50_us" = "5 %"', "baseline.file is 3"),
        ('[baseline]\nfile = "b"\n"w.latency_p50_us" = "5"', "a share such as '5 %'"),
        ('[baseline]\nfile = "b"\noverlap = "5 %"', "neither better nor worse"),
        ("escapes = ", "not TOML"),
        ('[limits]\n"w.latency_p50_us" = "<= 120 %"', "is in µs, not in per cent"),
        ('[limits]\n"w.calls_per_s" = ">= 80 %"', "is in /s, not in per cent"),
        ('step_ms = "<= 5 %"', "is in ms, not in per cent"),
        ('step_ms = "<= 0"', "it never holds"),
        ('[limits]\n"w.latency_p50_us" = "<= 1e-400"', "it never holds"),
        ('idle_share = "<= 100 %"', "it always holds"),
        ('idle_share = "<= 1e999"', "a finite number"),
        ('[limits]\n"w.latency_p50_us" = "<= inf"', "'<= 120' is needed"),
        ('[limits]\n"w.latency_p50_us" = "<= nan"', "'<= 120' is needed"),
        ('[limits]\n"w.latency_p50_us" = "<= -3"', "'<= 120' is needed"),
        ('[limits]\n"w.latency_p50_us" = "<= 120 ms"', "'<= 120' is needed"),
        ('[limits]\n"w.latency_p50_us" = inf', "'<= 120' is needed"),
        ('idle_share = "<= 20"', "always holds.*'<= 20 %' is meant"),
        ('overlap = ">= 90"', "never holds.*'>= 90 %' is meant"),
        ('[limits]\n"w.calls_per_s" = ">= 0"', "always holds: nothing is less than 0"),
        ('[limits]\n"w.calls_per_s" = ">= 1e-999"', "always holds"),
        ('[limits]\noverlap = ">= 0.9"\n[settings.x]\noverlap = "<= 0.5"', "never holds"),
        (f'[baseline]\nfile = "b"\n"w.latency_p50_us" = "{"9" * 400} %"', "a share such as '5 %'"),
        ('[baseline]\nfile = "b"\n"w.calls_per_s" = "100 %"', "less than 100 %"),
    ],
)
def test_what_is_no_budget_says_why(text, told):
    with pytest.raises(InvalidArgument, match=re.compile(told, re.DOTALL)):
        Budget.parse(text)


def test_limits_in_per_cent_are_shares():
    budget = Budget.parse(
        '[limits]\noverlap = ">= 90 %"\n"w.share_of_alone_on_whole_gpu" = ">= 101 %"\n'
        '[settings.x]\noverlap = "<= 0.95"'
    )
    assert [(each.sign, each.value) for each in budget.limits] == [
        (">=", 0.9), (">=", 1.01), ("<=", 0.95),
    ]  # fmt: skip


@given(st.text(max_size=60))
def test_any_text_is_a_budget_or_is_refused(text):
    with contextlib.suppress(InvalidArgument):
        assert Budget.parse(text).limits


def test_a_budget_that_is_not_there_says_so(tmp_path):
    with pytest.raises(GpuscopeError, match=r"cannot read budget 'gone\.toml'"):
        Budget.read(tmp_path / "gone.toml")


def test_limits_on_what_is_not_there_are_refused_before_anything_runs(gpu):
    for text, told in (
        ('[limits]\n"x.latency_p50_us" = "<= 1"', "no workload 'x'"),
        ("[settings.other]\nescapes = 0", "no setting 'other'"),
    ):
        with pytest.raises(InvalidArgument, match=told):
            check(ONE, Budget.parse(text), device=gpu)


# -- limits -------------------------------------------------------------------------------
def test_limits_hold_or_are_violated(gpu):
    value = gs.run(ONE, gpu).comparison.to_pylist()[0]["latency_p50_us"]
    new = gs.open_device("sim:h200", quiet=True)
    for limit, verdict in ((value * 1.2, "holds"), (value / 1.2, "violated")):
        text = f'escapes = 0\ndefault_stream = 0\n[limits]\n"w.latency_p50_us" = "<= {limit:.3f}"'
        result = check(ONE, Budget.parse(text), device=new)
        assert verdicts(result) == {
            "escapes": "holds", "default_stream": "holds", "w.latency_p50_us": verdict,
        }  # fmt: skip
        assert result.verdict == verdict
        assert of_check(result).exit_code == EXIT.get(verdict, 0)


def test_every_column_can_be_limited(gpu):
    served = {"w": "latency_p50_us", "load": "share_of_alone_on_whole_gpu", "": "overlap"}
    text = "\n".join(
        f'"{name}.{column}" = "{sign} 0.0001"' if name else f'{column} = "{sign} 0.0001"'
        for (name, column), sign in zip(served.items(), (("<="), ">=", ">="), strict=True)
    )
    result = check(ONE, Budget.parse(f"idle_share = '<= 0.9'\n[limits]\n{text}"), device=gpu)
    assert verdicts(result) == {
        "idle_share": "holds", "w.latency_p50_us": "violated",
        "load.share_of_alone_on_whole_gpu": "holds", "overlap": "holds",
    }  # fmt: skip


def test_escapes_are_counted_and_shown():
    trace = escaped()
    result = check(trace, Budget.parse("escapes = 0"))
    kept = result.limits[0]
    assert (kept.verdict, kept.value > 0, len(kept.spans) > 0) == ("violated", True, True)
    assert set(trace.where(np.isin(trace.array("id"), kept.spans)).texts("kind")) == {"kernel"}
    facts = of_limit(result, kept).to_json()
    assert facts["evidence"][0]["spans"] == [*kept.spans]
    assert check(trace, Budget.parse(f"escapes = {int(kept.value)}")).verdict == "holds"


def test_hazards_are_looked_for_only_where_a_limit_asks(gpu):
    raced = {
        **ONE,
        "workloads": {"w": {**ONE["workloads"]["w"], "repeats": 3}},
    }
    result = check(raced, Budget.parse("hazards = 0"), device=gpu)
    assert verdicts(result) == {"hazards": "holds"}
    trace = gs.run(raced, gpu)["default"]
    kept = check(trace, Budget.parse("hazards = 0")).limits[0]
    assert (kept.verdict, "were not looked for" in kept.reason) == ("cannot tell", True)


def test_hazards_that_a_recording_found_violate_it(gpu):
    x, y = gpu.empty(1000), gpu.empty(1000)
    with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
        with gs.profile(gpu, hazards=True) as recording:
            a.copy(x, y)
            b.copy(y, x)
        a.synchronize()
        b.synchronize()
    kept = check(recording.trace, Budget.parse("hazards = 0")).limits[0]
    assert (kept.verdict, kept.value) == ("violated", 1)


def test_work_on_the_default_stream_is_counted():
    gpu = gs.open_device("sim:h200", quiet=True)
    kernel, legacy = gs.workloads.spin_kernel(gpu), gpu.wrap_stream(0)
    with gs.profile(gpu) as recording:
        for _ in range(3):
            legacy.launch(kernel, 5_000, grid=1, block=32)
    kept = check(recording.trace, Budget.parse("default_stream = 0")).limits[0]
    assert (kept.verdict, kept.value, len(kept.spans)) == ("violated", 3, 3)


def test_rows_that_are_missing_leave_a_count_open():
    trace = escaped().with_metadata(complete=False, partitions={})
    kept = check(trace, Budget.parse("escapes = 0")).limits[0]
    assert (kept.verdict, "missing" in kept.reason) == ("cannot tell", True)


def test_what_is_not_known_is_open(gpu):
    text = '[limits]\n"w.latency_p99_us" = "<= 1000"\n"load.gb_per_s" = ">= 1"'
    result = check(ONE, Budget.parse(text), device=gpu)
    assert {kept.verdict for kept in result.limits} == {"cannot tell"}
    assert "1,000 calls" in result.limits[0].reason
    assert of_check(result).exit_code == 3


def test_a_limit_within_the_interval_is_open(gpu, monkeypatch):
    run = gs.run({**changed(repeats=300), "rounds": 6, "alone_repeats": 0}, gpu)
    rows = {row["workload"]: row for row in run.comparison.to_pylist()}
    monkeypatch.setattr("gpuscope.trace.model.Trace.is_simulated", property(lambda _: False))
    p50, rate = rows["w"]["latency_p50_us"], rows["load"]["calls_per_s"]
    for factor, verdict in ((1.0, "cannot tell"), (1.3, "holds"), (0.7, "violated")):
        limits = (
            f'"w.latency_p50_us" = "<= {p50 * factor}"\n"load.calls_per_s" = ">= {rate / factor}"'
        )
        result = check(run, Budget.parse(f"[limits]\n{limits}"))
        assert {kept.verdict for kept in result.limits} == {verdict}
        for kept in result.limits:
            assert kept.low < kept.value < kept.high


def test_settings_have_limits_of_their_own(gpu):
    experiment = {**ONE, "settings": {"one": {}, "two": {}}}
    budget = Budget.parse('[settings.two]\n"w.latency_p50_us" = "<= 1"')
    result = check(experiment, budget, device=gpu)
    assert [(kept.setting, kept.verdict) for kept in result.limits] == [("two", "violated")]
    both = check(experiment, Budget.parse('[limits]\n"w.latency_p50_us" = "<= 1"'), device=gpu)
    assert [kept.setting for kept in both.limits] == ["one", "two"]


def test_programs_are_checked_by_their_steps(tmp_path):
    script = tmp_path / "prog.py"
    script.write_text(PROGRAM, "utf-8")
    budget = Budget.parse('step_ms = "<= 0.3"\nidle_share = "<= 50 %"\ndefault_stream = 0')
    result = check([str(script)], budget, rounds=3)
    assert result.verdict == "holds"
    slower = check([str(script), "100000"], budget, rounds=3)
    assert verdicts(slower)["step_ms"] == "violated"


# -- baselines ----------------------------------------------------------------------------
RELATIVE = '[baseline]\nfile = "base.json"\n"w.latency_p50_us" = "5 %"\n"load.calls_per_s" = "5 %"'


def test_a_baseline_is_saved_and_compared_with(gpu, tmp_path):
    (tmp_path / "b.toml").write_text(RELATIVE, "utf-8")
    fresh = [gs.open_device("sim:h200", quiet=True) for _ in range(3)]
    made = check(ONE, tmp_path / "b.toml", device=fresh[0], save_baseline=tmp_path / "base.json")
    assert made.limits == ()
    stored = json.loads((tmp_path / "base.json").read_text("utf-8"))
    assert stored["schema"] == "gpuscope.baseline/1"
    assert set(stored["values"]["default"]) == {"w.latency_p50_us", "load.calls_per_s"}
    assert (stored["of"], stored["machine"]["sms"]) == ("one", 132)
    same = check(ONE, tmp_path / "b.toml", device=fresh[1])
    assert (same.verdict, {kept.value for kept in same.limits}) == ("holds", {0.0})
    slower = check(changed(duration_us=150), tmp_path / "b.toml", device=fresh[2])
    kept = slower.limits[0]
    assert (kept.limit.name, kept.verdict) == ("w.latency_p50_us", "violated")
    assert kept.value > 0.05
    assert of_limit(slower, kept).to_json()["limit"] == 0.05


def test_a_rate_is_worse_where_it_is_less(gpu, tmp_path):
    (tmp_path / "b.toml").write_text(RELATIVE, "utf-8")
    base = {"load.calls_per_s": [1e9] * 5, "w.latency_p50_us": [1.0] * 5}
    first = check(ONE, tmp_path / "b.toml", device=gpu, save_baseline=tmp_path / "base.json")
    stored = json.loads((tmp_path / "base.json").read_text("utf-8"))
    stored["values"]["default"] = base
    del stored["whole"]  # as a baseline of a former version has none
    (tmp_path / "base.json").write_text(json.dumps(stored), "utf-8")
    result = check(ONE, tmp_path / "b.toml", device=gpu)
    worse = {kept.limit.name: kept.value for kept in result.limits}
    assert worse["load.calls_per_s"] > 0.05
    assert worse["w.latency_p50_us"] > 0.05
    assert first.verdict == "holds"


def test_a_saved_trace_of_one_round_is_judged_by_a_baseline_of_several(gpu, tmp_path):
    text = '[baseline]\nfile = "base.json"\n"w.kernel_median_us" = "5 %"'
    (tmp_path / "b.toml").write_text(text, "utf-8")
    check(ONE, tmp_path / "b.toml", device=gpu, save_baseline=tmp_path / "base.json")
    trace = gs.run({**ONE, "rounds": 1}, gpu)["default"]
    gs.export(trace, tmp_path / "one.parquet")
    (judged,) = check(tmp_path / "one.parquet", tmp_path / "b.toml").limits
    assert judged.verdict == "cannot tell"
    assert judged.value == pytest.approx(0, abs=0.01)


def test_another_machines_baseline_is_refused_unless_told(gpu, tmp_path):
    (tmp_path / "b.toml").write_text(RELATIVE, "utf-8")
    check(ONE, tmp_path / "b.toml", device=gpu, save_baseline=tmp_path / "base.json")
    stored = json.loads((tmp_path / "base.json").read_text("utf-8"))
    stored["machine"] |= {"gpu": "NVIDIA A100", "sms": 108}
    (tmp_path / "base.json").write_text(json.dumps(stored), "utf-8")
    with pytest.raises(GpuscopeError, match=r"NVIDIA A100.*--other-machine"):
        check(ONE, tmp_path / "b.toml", device=gpu)
    result = check(ONE, tmp_path / "b.toml", device=gpu, other_machine=True)
    assert any("another machine" in note for note in result.notes)


def test_a_machine_is_another_by_gpu_driver_cpu_and_clock_not_by_versions():
    one = Machine("H100", 132, "580", 1980.0, "Xeon", 16, {"torch": "2.11"})
    assert one.differs(one) == []
    assert one.differs(msgspec.structs.replace(one, versions={"torch": "2.12"})) == []
    assert one.other_versions(msgspec.structs.replace(one, versions={"torch": "2.12"})) == [
        "torch 2.11, there 2.12"
    ]
    for name, value in (("gpu", "H200"), ("driver", "590"), ("cpu", "EPYC"), ("cores", 8)):
        assert len(one.differs(msgspec.structs.replace(one, **{name: value}))) == 1
    assert one.differs(msgspec.structs.replace(one, clock_mhz=1700.0))
    assert not one.differs(msgspec.structs.replace(one, clock_mhz=1975.0))


@pytest.mark.parametrize(
    ("text", "told"),
    [(None, "--save-baseline makes one"), ("{}", "is no baseline"), ("nonsense", "is no baseline")],
)
def test_what_is_no_baseline_says_so(gpu, tmp_path, text, told):
    (tmp_path / "b.toml").write_text(RELATIVE, "utf-8")
    if text is not None:
        (tmp_path / "base.json").write_text(text, "utf-8")
    with pytest.raises(GpuscopeError, match=told):
        check(ONE, tmp_path / "b.toml", device=gpu)


def test_processes_are_compared_with_a_baseline_by_their_spread(gpu, monkeypatch, tmp_path):
    (tmp_path / "b.toml").write_text(RELATIVE, "utf-8")
    run = gs.run({**ONE, "rounds": 3, "alone_repeats": 0}, gpu)
    samples = {("w", "latency_p50_us"): [99.0, 100.0, 101.0, 100.5, 99.5],
               ("load", "calls_per_s"): [990.0, 1000.0, 1010.0, 1005.0, 995.0]}  # fmt: skip
    whole = {("w", "latency_p50_us"): 100.0, ("load", "calls_per_s"): 1000.0}
    gave = MeasuredTrace(whole, samples, "process")
    seen = Seen(dict(run), {"default": gave}, {}, "process", 5, Machine("H100", 132))
    monkeypatch.setattr("gpuscope.trace.model.Trace.is_simulated", property(lambda _: False))
    monkeypatch.setattr(Seen, "of", classmethod(lambda cls, *_: seen))
    check(ONE, tmp_path / "b.toml", save_baseline=tmp_path / "base.json")
    assert check(ONE, tmp_path / "b.toml").verdict == "holds"
    whole["w", "latency_p50_us"] = 120.0
    samples["w", "latency_p50_us"] = [1.2 * value for value in samples["w", "latency_p50_us"]]
    assert check(ONE, tmp_path / "b.toml").limits[0].verdict == "violated"
    whole["w", "latency_p50_us"] = 105.0
    samples["w", "latency_p50_us"] = [95.0, 105.0, 110.0, 100.0, 115.0]
    kept = next(k for k in check(ONE, tmp_path / "b.toml").limits if k.limit.workload == "w")
    assert (kept.verdict, kept.low < 0.05 < kept.high) == ("cannot tell", True)


# -- for machines and for pytest ----------------------------------------------------------
def test_a_verdict_is_of_its_schema(gpu):
    text = 'escapes = 0\n[limits]\n"w.latency_p50_us" = "<= 1"'
    result = check(CARVED, Budget.parse(text), device=gpu)
    for facts in (
        of_check(result).to_json(),
        *(of_limit(result, k).to_json() for k in result.limits),
    ):
        assert msgspec.convert(facts, Verdict).schema == "gpuscope.verdict/1"
        assert len(json.dumps(facts)) <= LIMIT
    first = of_check(result).to_json()
    assert (first["verdict"], first["what"], first["limit"]) == (
        "violated",
        "w.latency_p50_us",
        1.0,
    )
    assert first["value"] > 1


def test_markdown_names_what_does_not_hold_first(gpu):
    text = check_markdown(
        check(ONE, Budget.parse('escapes = 0\n[limits]\n"w.latency_p50_us" = "<= 1"'), device=gpu)
    )
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert "violated" in rows[1]
    assert "holds" in rows[2]


def test_the_fixture_fails_skips_or_passes_a_test(tmp_path):
    plugin = 'pytest_plugins = ["gpuscope.judging.pytest_plugin"]'
    (tmp_path / "conftest.py").write_text(plugin, "utf-8")
    (tmp_path / "test_it.py").write_text(
        f"ONE = {ONE!r}\n"
        "from gpuscope.judging import Budget\n"
        "def hold(fixture, text):\n"
        "    return fixture(ONE, Budget.parse(text), device='sim:h200')\n"
        "def test_holds(gpuscope_budget):\n"
        "    assert hold(gpuscope_budget, 'escapes = 0').verdict == 'holds'\n"
        "def test_violated(gpuscope_budget):\n"
        '    hold(gpuscope_budget, \'[limits]\\n"w.latency_p50_us" = "<= 1"\')\n'
        "def test_open(gpuscope_budget):\n"
        '    hold(gpuscope_budget, \'[limits]\\n"w.latency_p99_us" = "<= 1"\')\n',
        "utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs",
         str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert "1 failed, 1 passed, 1 skipped" in done.stdout, done.stdout
    assert "w.latency\\_p50\\_us" in done.stdout
