"""Two sides compared: in turns, by process, by revision, as saved; verdicts, parts and pictures."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from judging_programs import ONE, PROGRAM, changed

import gpuscope as gs
from gpuscope.cli.experiments import write_run
from gpuscope.comparing import pair
from gpuscope.comparing.diff_result import judged
from gpuscope.comparing.rounds import MeasuredTrace, values_of
from gpuscope.comparing.turns import Conditions, Round, conditions_of, differ, usual_spread
from gpuscope.errors import GpuscopeError, InvalidArgument, MissingEvidence, NothingRecorded
from gpuscope.judging import sides
from gpuscope.judging.programs import Command
from gpuscope.judging.told import diff_markdown, of_diff
from gpuscope.judging.turns import in_turns
from gpuscope.judging.verdict import LIMIT
from gpuscope.trace import Trace
from gpuscope.trace.metadata import TraceMetadata


def sums(split):
    """Return by how much the parts of a split miss the whole, ns."""
    before = sum(part.before_ns for part in split.parts) - split.before_ns
    after = sum(part.after_ns for part in split.parts) - split.after_ns
    return abs(before) + abs(after)


# -- experiments --------------------------------------------------------------------------
def test_equal_experiments_are_equal_to_the_ns_where_they_are_simulated(gpu):
    result = gs.diff(ONE, ONE, device=gpu, rounds=3)
    assert result.verdict == "equal"
    assert {(each.low, each.high) for each in result.effects} == {(0.0, 0.0)}
    assert {(e.workload, e.column) for e in result.effects} == {
        ("w", "latency_p50_us"),
        ("w", "latency_p90_us"),
        ("load", "calls_per_s"),
    }


def test_a_longer_kernel_is_slower_and_is_the_cause(gpu):
    result = gs.diff(ONE, changed(duration_us=120), device=gpu, rounds=6)
    assert result.verdict == "slower"
    about = result.decisive
    assert (about.workload, about.verdict, about.change > 0) == ("w", "slower", True)
    first = result.findings[0]
    assert (first.rule, first.subject["workload"]) == ("change.worse", "w")
    split = result.split("w")
    kernels = [part for part in split.parts if part.cause == "kernels"]
    assert [(part.change, round(part.change_ns)) for part in kernels] == [("slower", 20_000)]
    assert sums(split) < 1e-3
    assert split.by_cause()["kernels"] == pytest.approx(20_000)
    assert sum(split.by_cause().values()) == pytest.approx(split.after_ns - split.before_ns)


def test_the_other_way_round_it_is_faster(gpu):
    result = gs.diff(changed(duration_us=120), ONE, device=gpu, rounds=6)
    assert (result.verdict, result.findings[0].rule) == ("faster", "change.better")


def test_parts_show_the_spans_of_either_trace(gpu):
    result = gs.diff(ONE, changed(duration_us=120), device=gpu, rounds=3)
    part = next(p for p in result.split("w").parts if p.cause == "kernels")
    for trace, ids, length_ns in zip(
        result.traces, (part.first, part.second), (100_000, 120_000), strict=True
    ):
        rows = trace.where([span in ids for span in trace.array("id").tolist()])
        assert set(rows.texts("kind")) == {"kernel"}
        assert set((rows.array("end_ns") - rows.array("start_ns")).tolist()) == {length_ns}


def test_two_settings_of_one_experiment_are_compared_by_name(gpu):
    carved = {
        **ONE,
        "settings": {
            "shared": {},
            "split": {
                "partitions": {"a": 16, "b": "rest"},
                "streams": {"s": {"partition": "a"}, "t": {"partition": "b"}},
            },
        },
    }
    result = gs.diff(carved, setting=("shared", "split"), device=gpu, rounds=3)
    assert result.names == ("shared", "split")
    assert "partitions.a: – → 16" in result.changes
    with pytest.raises(InvalidArgument, match="say which"):
        gs.diff(carved, carved, device=gpu)
    with pytest.raises(InvalidArgument, match="no setting 'other'"):
        gs.diff(carved, carved, setting="other", device=gpu)


def test_the_background_is_split_by_what_ran_and_what_it_waited_for(gpu):
    result = gs.diff(ONE, changed(duration_us=120), device=gpu, rounds=3)
    split = result.split("load")
    assert sums(split) < 1e-3
    assert {part.cause for part in split.parts} <= {"kernels", "launch", "waits", "SMs", "host"}
    rate = next(each for each in result.effects if each.workload == "load")
    assert split.before_ns == pytest.approx(1e9 / rate.before, rel=0.05)


def test_a_stop_ends_it_early_and_what_was_measured_counts(gpu):
    stop = threading.Event()
    told = []

    def tell(what, done, total):
        told.append((what, done, total))
        if done == 6:
            stop.set()

    result = gs.diff(ONE, ONE, device=gpu, rounds=10, progress=tell, stop=stop)
    assert len(result.turns.pairs) == 3
    assert [done for _, done, _ in told] == list(range(8))
    stop.set()
    with pytest.raises(NothingRecorded):
        gs.diff(ONE, ONE, device=gpu, stop=stop)


def test_what_cannot_be_compared_is_refused(gpu, tmp_path):
    with pytest.raises(InvalidArgument, match="give a second"):
        gs.diff(ONE, device=gpu)
    with pytest.raises(InvalidArgument, match="an experiment and a program"):
        gs.diff(ONE, ["python", "x.py"])
    with pytest.raises(InvalidArgument, match="device is for experiments"):
        gs.diff(["x.py"], ["y.py"], device="sim:h200")
    with pytest.raises(InvalidArgument, match="within is 2"):
        gs.diff(ONE, ONE, device=gpu, within=2.0)
    with pytest.raises(InvalidArgument, match="rounds is 2"):
        gs.diff(ONE, ONE, device=gpu, rounds=2)
    with pytest.raises(InvalidArgument, match="first is 3"):
        gs.diff(3, ONE, device=gpu)
    other = {**ONE, "workloads": {"v": ONE["workloads"]["w"]}}
    renamed = {**ONE, "workloads": {"v": ONE["workloads"]["w"], "load": ONE["workloads"]["load"]}}
    partly = gs.diff(ONE, renamed, device=gpu, rounds=3)
    assert (partly.verdict, partly.uncompared) == (
        "cannot tell",
        ("Only in A, and not compared: w", "Only in B, and not compared: v"),
    )
    assert of_diff(partly).exit_code == 3
    with pytest.raises(MissingEvidence, match="no workload in common"):
        gs.diff(ONE, other, device=gpu, rounds=3)


# -- turns and conditions -----------------------------------------------------------------
class Fixed:
    """A side whose rounds give what they are told to."""

    is_process = False

    def __init__(self, name, trace, conditions=(), told=None):
        self.name, self._trace, self._conditions, self._told = name, trace, conditions, told

    def measure(self, number):
        if self._told is not None:
            self._told.append(f"{self.name}{number}")
        conditions = self._conditions[number] if self._conditions else Conditions()
        return Round({("w", "latency_p50_us"): 100.0}, self._trace, conditions)


def test_rounds_take_turns_in_blocks_abba(gpu):
    trace, told = gs.run(ONE, gpu)["default"], []
    a, b = (Fixed(name, trace, told=told) for name in "ab")
    turns = in_turns(a, b, 4, 2, lambda *_: None, threading.Event())
    assert told == ["a0", "a0", "a1", "a1", "a0", "b0", "b1", "a1", "a2", "b2", "b3", "a3"]
    assert (len(turns.pairs), len(turns.control), turns.left_out) == (4, 2, ())


def test_rounds_whose_clocks_differ_are_left_out_and_counted(gpu):
    trace = gs.run(ONE, gpu)["default"]
    slow, fast = Conditions(1500, 300), Conditions(1980, 300)
    a = Fixed("a", trace, [fast] * 5)
    b = Fixed("b", trace, [fast, slow, fast, Conditions(1980, 300, ("HW_THERMAL_SLOWDOWN",)), fast])
    turns = in_turns(a, b, 5, 1, lambda *_: None, threading.Event())
    assert len(turns.pairs) == 3
    assert len(turns.left_out) == 2
    assert "1980 and 1500 MHz" in turns.left_out[0]
    assert "THERMAL" in turns.left_out[1]


def test_where_most_rounds_differ_in_their_clocks_nothing_is_told(gpu):
    trace = gs.run(ONE, gpu)["default"]
    kinds = [[Conditions(1980)] * 6, [Conditions(1500)] * 4 + [Conditions(1980)] * 2]
    a, b = (Fixed(name, trace, kind) for name, kind in zip("ab", kinds, strict=True))
    result = judged(in_turns(a, b, 6, 1, lambda *_: None, threading.Event()), ("a", "b"), None)
    assert (result.verdict, len(result.turns.left_out)) == ("cannot tell", 4)
    assert "4 of 6 pairs" in result.caution
    every = [Fixed(name, trace, [Conditions(mhz)] * 4) for name, mhz in (("a", 1980), ("b", 1500))]
    none = judged(in_turns(*every, 4, 1, lambda *_: None, threading.Event()), ("a", "b"), None)
    assert (none.verdict, none.findings[0].rule) == ("cannot tell", "change.few")
    assert of_diff(none).exit_code == 3


def test_a_gpu_that_others_use_is_said(gpu, monkeypatch):
    monkeypatch.setattr(sides, "processes_by_uuid", lambda: {gpu.info.uuid: 3})
    assert "2 others use this GPU" in gs.diff(ONE, ONE, device=gpu, rounds=3).caution


def test_clocks_may_differ_as_far_as_those_of_a_do():
    fast, less = Conditions(1980), Conditions(1900)
    assert differ(fast, less, usual_spread([]))
    assert not differ(fast, less, usual_spread([(fast, Conditions(1880))]))
    assert not differ(Conditions(), less, 0.01)


def test_conditions_are_those_of_the_recording():
    uuid = "e6f79b85"
    states = [
        {"device": "cuda:0", "sm_clock_mhz": clock, "power_w": 70.0, "reasons": reasons}
        for clock, reasons in ((1900, ["sw_power_cap", "gpu_idle"]), (1960, ["hw_slowdown"]))
    ]
    metadata = TraceMetadata(devices={"cuda:0": {"uuid": uuid}}, gpu_states=states)
    trace = Trace.from_columns({}, metadata=metadata)
    seen = conditions_of(trace, [{uuid: 1, "other": 9}, {uuid: 2}], is_here=True)
    assert seen == Conditions(1930, 70.0, ("hardware slowdown",), 1)
    assert conditions_of(trace, [{uuid: 2}]).other_processes == 2
    assert conditions_of(trace.with_metadata(gpu_states=()), [{}]) == Conditions()


# -- programs and revisions ---------------------------------------------------------------
def test_programs_are_compared_by_process_and_split_by_range_and_line(tmp_path):
    script = tmp_path / "prog.py"
    script.write_text(PROGRAM, "utf-8")
    line = ["python", str(script)]
    result = gs.diff(line, [*line, "30000"], rounds=3)
    assert (result.verdict, result.turns.unit) == ("slower", "process")
    assert result.effects[0].column == "step_ms"
    split = result.splits[0]
    assert (split.unit, sums(split) < 1e-3) == ("a step", True)
    part = split.changed[0]
    assert (part.cause, part.change, part.range) == ("kernels", "slower", "head")
    assert part.change_ns == pytest.approx(30_000)
    assert part.configuration == "grid 2, block 32"
    assert part.line.startswith("prog.py:13")
    assert result.findings[0].spans
    names = {bar.name for bar in result.figure().data}
    assert "running" in names
    assert "change" in names


def test_a_program_is_compared_with_what_it_was_at_a_revision(repository, monkeypatch):
    monkeypatch.chdir(repository)
    result = gs.diff(["prog.py"], at="HEAD", rounds=3)
    assert (result.names, result.verdict) == (("HEAD", "working tree"), "slower")
    assert result.splits[0].changed[0].change_ns == pytest.approx(30_000)
    assert not (repository / ".git" / "worktrees").exists() or not any(
        (repository / ".git" / "worktrees").iterdir()
    )
    with pytest.raises(GpuscopeError, match="git rev-parse"):
        gs.diff(["prog.py"], at="nowhere", rounds=3)
    with pytest.raises(InvalidArgument, match="give one"):
        gs.diff(["prog.py"], ["prog.py"], at="HEAD")


def test_an_experiment_file_is_compared_with_what_it_was(repository, gpu, monkeypatch):
    monkeypatch.chdir(repository)
    file = repository / "run.json"
    file.write_text(json.dumps(ONE), "utf-8")
    sides_of = ["-C", str(repository)]
    import subprocess

    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", *sides_of, "add", "run.json"], check=True)
    subprocess.run(["git", *sides_of, *who, "commit", "-q", "-m", "run"], check=True)
    file.write_text(json.dumps(changed(duration_us=150)), "utf-8")
    result = gs.diff("run.json", at="HEAD", device=gpu, rounds=3)
    assert result.verdict == "slower"
    assert result.changes == ("workloads.w.duration_us: 100.0 → 150.0",)


def test_a_program_without_steps_is_compared_by_its_steady_time(tmp_path):
    (tmp_path / "a.py").write_text(PROGRAM, "utf-8")
    (tmp_path / "b.py").write_text(PROGRAM.replace("range(10)", "range(1)"), "utf-8")
    result = gs.diff([str(tmp_path / "a.py")], [str(tmp_path / "b.py")], rounds=3)
    assert (result.effects[0].column, result.verdict) == ("steady_ms", "faster")
    split = result.splits[0]
    assert sums(split) < 1e-3
    assert split.before_ns == pytest.approx(1e6 * result.effects[0].before, rel=1e-6)


def test_lines_that_an_edit_moved_are_the_same(tmp_path):
    (tmp_path / "a.py").write_text(PROGRAM, "utf-8")
    (tmp_path / "b.py").write_text("# a line more\n" + PROGRAM.replace("50_000", "60_000"), "utf-8")
    split = gs.diff([str(tmp_path / "a.py")], [str(tmp_path / "b.py")], rounds=3).splits[0]
    assert [(part.cause, part.change, round(part.change_ns)) for part in split.changed] == [
        ("kernels", "slower", 10_000)
    ]
    assert split.changed[0].line.startswith("b.py:14")


def test_what_decided_is_what_the_verdict_is_about(gpu):
    gemm = {"kind": "gemm", "dtype": "float16"}
    small = {**gemm, "m": 512, "n": 512, "k": 512, "stream": "s", "repeats": 100, "max_queued": 1}
    load = {**gemm, "m": 4096, "n": 4096, "k": 4096, "stream": "t", "background": True}
    shared = {
        "name": "both",
        "streams": {"s": {}, "t": {}},
        "workloads": {"small": {**small, "arrival": "poisson", "rate_hz": 1000}, "load": load},
    }
    on = {"s": {"partition": "a"}, "t": {"partition": "b"}}
    carved = {**shared, "partitions": {"a": 16, "b": "rest"}, "streams": on}
    result = gs.diff(shared, carved, device=gpu, rounds=8)
    verdicts = {each.workload: each.verdict for each in result.effects}
    assert verdicts == {"small": "faster", "load": "slower"}
    facts = of_diff(result).to_json()
    assert (facts["verdict"], facts["what"]) == ("slower", "load.calls_per_s")
    assert facts["effect"] == pytest.approx(result.decisive.change, rel=1e-4)
    assert facts["interval"][1] < 0
    assert facts["parts"][0]["part"] == "kernels"
    assert result.headline.startswith("Slower by load's calls/s -")


@pytest.mark.parametrize("words", ["", "-m", "ls -l 'x", "python -c 'print(1)'", "/no/python x.py"])
def test_what_runs_no_program_of_python_is_refused(words):
    with pytest.raises(InvalidArgument):
        Command.parse(words)


def test_a_command_is_a_script_or_a_module_with_its_arguments():
    assert Command.parse("python3 train.py --n '1 2'").program == ("train.py", "--n", "1 2")
    assert Command.parse(["-m", "serve", "-p", "1"]).program == ("-m", "serve", "-p", "1")


def test_a_program_that_fails_says_what_it_said(tmp_path):
    (tmp_path / "bad.py").write_text("raise SystemExit('no such thing')", "utf-8")
    with pytest.raises(GpuscopeError, match="no such thing"):
        gs.diff([str(tmp_path / "bad.py")], [str(tmp_path / "bad.py")], rounds=3)
    (tmp_path / "idle.py").write_text("print(1)", "utf-8")
    with pytest.raises(GpuscopeError, match="nothing was recorded"):
        gs.diff([str(tmp_path / "idle.py")], [str(tmp_path / "idle.py")], rounds=3)


# -- what was saved -----------------------------------------------------------------------
def test_saved_runs_are_compared_by_their_rounds(gpu, tmp_path):
    several = changed(repeats=200), changed(repeats=200, duration_us=130)
    for name, experiment in zip("ab", several, strict=True):
        run = gs.run({**experiment, "rounds": 8, "alone_repeats": 0}, gpu)
        write_run(run, tmp_path / name)
    result = gs.diff(tmp_path / "a", tmp_path / "b")
    assert (result.turns.unit, len(result.turns.pairs), result.verdict) == (
        "saved round",
        8,
        "slower",
    )
    again = gs.diff(tmp_path / "a", tmp_path / "a")
    assert not any(each.is_seen for each in again.effects)


def test_saved_runs_of_a_gpu_say_that_processes_differ(gpu, monkeypatch):
    run = gs.run({**ONE, "rounds": 4, "alone_repeats": 0}, gpu)
    monkeypatch.setattr("gpuscope.trace.model.Trace.is_simulated", property(lambda _: False))
    assert "a process apart" in gs.diff(run, run).caution


def measured(gpu, monkeypatch, *rounds):
    """Return the diff of two saved runs on a GPU whose rounds gave these times."""
    run = gs.run({**ONE, "rounds": len(rounds[0]), "alone_repeats": 0}, gpu)
    key = "w", "latency_p50_us"
    gave = [MeasuredTrace({key: np.median(each)}, {key: [*each]}, "round") for each in rounds]
    kept = iter(gave)
    monkeypatch.setattr("gpuscope.trace.model.Trace.is_simulated", property(lambda _: False))
    monkeypatch.setattr(pair, "measured", lambda _: next(kept))
    return gs.diff(run, run)


def test_saved_runs_of_a_gpu_show_three_times_their_noise(gpu, monkeypatch):
    random = np.random.default_rng(1)
    before, after = 100 * np.exp(random.normal(0, 0.01, (2, 5)))
    result = measured(gpu, monkeypatch, before, 1.05 * after)
    about = result.decisive
    assert (result.verdict, about.pairs, len(result.turns.control)) == ("slower", 5, 0)
    assert about.low <= 0.05 <= about.high
    assert 0.01 < about.smallest < 0.05
    assert "hang together" not in result.caution


def test_rounds_of_a_run_that_hang_together_are_said(gpu, monkeypatch):
    rising = np.linspace(100, 104, 5)
    result = measured(gpu, monkeypatch, rising, rising[::-1])
    assert "neighbouring rounds hang together (w's p50: correlation 0.4" in result.caution


def test_a_p99_that_no_round_has_is_compared_all_the_same(gpu, monkeypatch):
    plan = {**changed(duration_us=5, repeats=1000), "rounds": 3, "alone_repeats": 0}
    plan["workloads"] = {"w": plan["workloads"]["w"]}
    run = gs.run(plan, gpu)
    monkeypatch.setattr("gpuscope.trace.model.Trace.is_simulated", property(lambda _: False))
    effects = {effect.column: effect for effect in gs.diff(run, run).effects}
    assert effects["latency_p50_us"].pairs == 3
    assert (effects["latency_p99_us"].pairs, effects["latency_p99_us"].verdict) == (
        0,
        "cannot tell",
    )


def test_one_round_is_told_beyond_what_repeated_measurements_differ_by(gpu):
    one = gs.run(ONE, gpu)["default"]
    for duration_us, verdict in ((300, "slower"), (102, "cannot tell")):
        result = gs.diff(one, gs.run(changed(duration_us=duration_us), gpu)["default"])
        about = next(each for each in result.effects if each.column == "latency_p50_us")
        assert (about.verdict, result.turns) == (verdict, None)
        assert "fewer than three rounds" in result.caution
        assert sums(result.split("w")) < 1e-3


def test_traces_of_programs_are_split_too(tmp_path):
    gpu = gs.open_device("sim:h200", quiet=True)
    kernel = gs.workloads.spin_kernel(gpu)
    traces = []
    for extra in (0, 40_000):
        with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
            for number in range(6):
                with gs.annotate(f"step {number}"):
                    stream.launch(kernel, 100_000 + extra, grid=1, block=32)
                    stream.synchronize()
        traces.append(recording.trace)
    result = gs.diff(*traces)
    assert result.verdict == "cannot tell"
    assert result.splits[0].changed[0].change_ns == pytest.approx(40_000)


def test_an_operators_shapes_tell_kernels_of_one_name_apart(tmp_path):
    traces = []
    for number, rows in enumerate((64, 128)):
        events = []
        for step in range(6):
            for at, size in enumerate((32, rows)):
                ts, correlation = 1000 * step + 100 * at, 10 * step + at + 1
                events += [
                    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": ts,
                     "dur": 50, "args": {"External id": correlation,
                                         "Input Dims": [[size, 64], [64, 64], []]}},
                    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1,
                     "tid": 1, "ts": ts + 5, "dur": 10, "args": {"correlation": correlation}},
                    {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": ts + 30,
                     "dur": size / 4, "args": {
                         "correlation": correlation, "device": 0, "stream": 7,
                         "grid": [1, 1, 1], "block": [128, 1, 1]}},
                ]  # fmt: skip
        file = tmp_path / f"{number}.json"
        facts = {"deviceProperties": [{"id": 0, "name": "a GPU"}], "traceEvents": events}
        file.write_text(json.dumps({"schemaVersion": 1, **facts}), "utf-8")
        traces.append(gs.load_trace(file))
    split = gs.diff(*traces).splits[0]
    assert sums(split) < 1
    kernels = {part.configuration: part.change for part in split.changed if part.cause == "kernels"}
    assert kernels == {
        "grid 1, block 128; 64×64, 64×64": "gone",
        "grid 1, block 128; 128×64, 64×64": "new",
    }


# -- for machines -------------------------------------------------------------------------
def test_a_verdict_has_all_that_it_rests_on(gpu):
    result = gs.diff(ONE, changed(duration_us=120), device=gpu, rounds=6)
    facts = of_diff(result, "gpuscope diff a.toml b.toml").to_json()
    assert facts["schema"] == "gpuscope.verdict/1"
    assert (facts["verdict"], facts["what"]) == ("slower", f"w.{result.decisive.column}")
    low, high = facts["interval"]
    assert low <= facts["effect"] <= high
    assert facts["rounds"] == {"unit": "round", "pairs": 6, "control": 1}
    assert sum(part["change_us"] for part in facts["parts"]) == pytest.approx(
        (result.split("w").after_ns - result.split("w").before_ns) / 1e3, rel=1e-4
    )
    assert facts["evidence"]
    assert facts["next"] == ["gpuscope diff a.toml b.toml --out out/diff"]
    assert len(json.dumps(facts)) <= LIMIT


def test_a_verdict_of_long_names_stays_small(gpu):
    name = "w" * 60
    plan = {**ONE["workloads"]["w"]}
    long = {**ONE, "workloads": {name: plan, "load": ONE["workloads"]["load"]}}
    result = gs.diff(long, long, device=gpu, rounds=3)
    facts = of_diff(result, "gpuscope diff " + "x" * 3000).to_json()
    assert len(json.dumps(facts)) <= LIMIT
    assert facts["verdict"] == "equal"


def test_markdown_takes_foreign_names_for_text(gpu):
    plan = {**ONE["workloads"]["w"]}
    hostile = {**ONE, "workloads": {"<b>|x|`": plan, "load": ONE["workloads"]["load"]}}
    text = diff_markdown(gs.diff(hostile, hostile, device=gpu, rounds=3))
    assert "<b>" not in text
    row = next(line for line in text.splitlines() if line.startswith("| \\<b"))
    assert row.count("|") - row.count("\\|") == text.splitlines()[2].count("|")


def test_what_tells_most_is_what_a_round_gives(gpu):
    trace = gs.run({**ONE, "alone_repeats": 0}, gpu)["default"]
    assert [*values_of(trace)] == [
        ("w", "latency_p50_us"),
        ("w", "latency_p90_us"),
        ("load", "calls_per_s"),
    ]
