"""Tuning: what is forecast, measured, kept and concluded, and what goes out of the lab."""

from __future__ import annotations

import ast
import json
import threading
import warnings
from dataclasses import replace

import pytest
from kept_points import kept_points

import gpuscope as gs
from gpuscope.comparing.effects import effect
from gpuscope.comparing.tunings import left, recommended
from gpuscope.search import candidates, series
from gpuscope.search.point_table import POINTS
from gpuscope.simulator.forecast import stand_ins

GEMM = {"kind": "gemm", "m": 2048, "n": 2048, "k": 2048}


def described(**facts):
    """Describe a prefill beside a decode, on partitions and without."""
    return {
        "name": "two",
        "streams": {"p": {}, "d": {}},
        "workloads": {
            "prefill": {
                **GEMM,
                "m": 4096,
                "n": 4096,
                "stream": "p",
                "background": True,
                "max_queued": 3,
            },
            "decode": {**GEMM, "m": 256, "n": 256, "stream": "d", "repeats": 80},
        },
        "settings": {
            "shared": {},
            "split": {
                "partitions": {"prefill": 64, "decode": "rest"},
                "streams": {"p": {"partition": "prefill"}, "d": {"partition": "decode"}},
            },
        },
        **facts,
    }


VARY = {"partitions.prefill": "all"}
RATE = "prefill.tflop_per_s"
LIMIT = {"decode.latency_p50_us": "<= 65"}


@pytest.fixture
def gpu():
    return gs.open_device("sim:h200", quiet=True)


@pytest.fixture
def runs(monkeypatch):
    """Count the runs."""
    made = []
    run = gs.run  # which keeps the name from being looked up while it is another
    monkeypatch.setattr(
        series, "run", lambda *args, **how: made.append(args[0]) or run(*args, **how)
    )
    return made


@pytest.fixture(scope="module")
def tuned():
    device = gs.open_device("sim:h200", quiet=True)
    return gs.tune(described(), VARY, RATE, LIMIT, device, repeats=5)


def test_the_best_split_within_the_slo_is_found_with_a_third_of_the_measurements(tuned):
    every = gs.search.sweep(described(), VARY, gs.open_device("sim:h200", quiet=True)).rows()
    by_split = {}
    for row in every:
        if row["setting"] == "split":
            by_split.setdefault(row["partitions.prefill"], {})[row["workload"]] = row
    assert len(by_split) == 15
    rates = {
        split: rows["prefill"]["tflop_per_s"]
        for split, rows in by_split.items()
        if rows["decode"]["latency_p50_us"] <= 65
    }
    chosen = tuned.best or tuned.equals[0]
    assert rates[chosen.point["partitions.prefill"]] >= 0.97 * max(rates.values())
    assert tuned.measurements <= 16 * 5 / 3
    assert not tuned.stopped


def test_what_is_gained_has_the_confidence_that_was_asked_for(tuned):
    chosen = tuned.equals[0]
    by_confidence = [replace(tuned, confidence=share).effects(chosen) for share in (0.5, 0.95)]
    for name, wide in by_confidence[1].items():
        assert wide.low < by_confidence[0][name].low
        assert by_confidence[0][name].high < wide.high


def test_what_nothing_varies_takes_part_as_the_reference(tuned):
    assert tuned.reference == "shared"
    assert len(tuned["shared"].values[RATE]) >= 3
    assert tuned["shared"].sizes == {}
    chosen = tuned.equals[0]
    effects = tuned.effects(chosen)
    assert list(effects) == [RATE, "decode.latency_p50_us"]
    for name, found in effects.items():
        workload, _, column = name.rpartition(".")
        values = tuned["shared"].values[name], chosen.values[name]
        by_round = effect(workload, column, *values, judged=2, are_pairs=False)
        assert (found.low, found.high, found.verdict) == (
            by_round.low,
            by_round.high,
            by_round.verdict,
        )
    assert tuned.effects(tuned["shared"]) == {}
    assert [one.label for one in tuned.settings][:2] == ["shared", "prefill = 8"]


def test_all_is_every_number_of_quanta(tuned):
    splits = [dict(one.sizes) for one in tuned.settings if one.sizes]
    assert splits == [{"prefill": n, "decode": 132 - n} for n in range(8, 128, 8)]


def test_forecasts_and_measurements_say_that_they_are_simulated(tuned):
    assert "SIMULATED" in tuned.note
    assert "SIMULATED" in tuned.forecasts
    assert all(one.forecast[RATE] > 0 for one in tuned.settings)
    assert "forecast" in str(tuned)
    assert "<table" in tuned._repr_html_()


def test_what_was_not_measured_is_ruled_out_by_its_corrected_forecast(tuned):
    unseen = [one for one in tuned.settings if not one.values]
    assert unseen
    assert {one.verdict for one in unseen} == {"unlikely"}
    best, rate, limit = tuned.best or tuned.choice, tuned.objective, tuned.slo[0]
    for one in unseen:
        least_us, most_rate = one.bounds[limit.name][0], one.bounds[rate.name][1]
        assert least_us > 65 or most_rate < 1.01 * best.mean(rate)


def test_forecasts_of_the_limits_columns_are_shown(tuned, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    column = "forecast decode.latency_p50_us"
    told = {row["setting"]: row[column] for row in tuned.rows()}
    assert all(told.values())
    assert told["prefill = 8"] == tuned["prefill = 8"].forecast["decode.latency_p50_us"]
    assert column in str(tuned)
    assert column in tuned._repr_html_()
    assert "decode.latency_p50_us" in tuned.words.errors


@pytest.mark.no_cover
def test_no_setting_is_measured_more_often_than_repeats(gpu):
    for repeats in (3, 4):
        found = gs.tune(described(), VARY, RATE, {"decode.latency_p50_us": "<= 60"}, gpu,
                        repeats=repeats)  # fmt: skip
        assert max(len(one.values.get(RATE, ())) for one in found.settings) <= repeats


def test_an_slo_that_nothing_meets_is_said_after_few_measurements(gpu):
    found = gs.tune(described(), VARY, RATE, {"decode.latency_p50_us": "<= 15"}, gpu)
    assert found.is_hopeless
    assert found.choice is None
    assert found.measurements <= 15
    assert {one.verdict for one in found.settings} == {"misses SLO", "unlikely"}
    medians = {one.label: one.mean(found.slo[0]) for one in found.settings if one.values}
    assert found.nearest.label == min(medians, key=medians.get)
    limit_us = float(found.reachable["decode.latency_p50_us"].removeprefix("<= "))
    assert medians[found.nearest.label] < limit_us < 1.5 * medians[found.nearest.label]
    finding = gs.telling.tuned(found)
    assert (finding.rule, finding.subject["nearest"]) == ("tuned.hopeless", found.nearest.label)
    assert found.reachable["decode.latency_p50_us"] in found.outcome
    again = gs.tune(described(), VARY, RATE, found.reachable, gpu)
    assert again.equals or not again.is_decided


@pytest.mark.no_cover
def test_of_equals_the_fewest_sms_for_the_workload_of_the_limit_are_taken(gpu):
    idle = described()
    idle["workloads"]["prefill"] |= {"m": 256, "n": 256}  # as fast on any split
    found = gs.tune(idle, {"partitions.prefill": [32, 64, 96]}, "prefill.calls_per_s",
                    {"decode.latency_p50_us": "<= 500"}, gpu)  # fmt: skip
    assert [found[f"prefill = {n}"].sms for n in (32, 64, 96)] == [100, 68, 36]
    assert found["shared"].sms == 132
    rates = {one.label: one.mean(found.objective) for one in found.settings if one.values}
    assert rates["prefill = 96"] >= 0.97 * max(rates.values())
    assert found.choice.label == "prefill = 96"
    alone = gs.tune(idle, {"partitions.prefill": [32, 64, 96]}, "prefill.calls_per_s", None, gpu)
    assert [alone[f"prefill = {n}"].sms for n in (32, 64, 96)] == [32, 64, 96]


def test_requests_have_the_sms_of_their_decode(gpu):
    experiment = gs.experiments.Experiment.from_file("examples/split.toml")
    made, _ = candidates.candidates_of(experiment, {"partitions.decode": (48, 64)}, gpu)
    sms = {one.label: one.sms_for(["chat"], 132) for one in made}
    assert sms == {"shared": 132, "decode = 48": 48, "decode = 64": 64}


def test_repeats_differ_and_settings_of_a_turn_have_the_same_seed(gpu, runs):
    gs.tune(described(), {"partitions.prefill": [32, 64, 96]}, RATE, None, gpu, repeats=3)
    seeds = [plan.seed for plan in runs]
    assert sorted(set(seeds)) == [0, 1, 2]
    assert all(plan.rounds == 1 and plan.alone_repeats == 0 for plan in runs)


@pytest.mark.no_cover
def test_it_goes_on_where_it_was_stopped(gpu, runs, tmp_path):
    whole = gs.tune(described(), VARY, RATE, LIMIT, gpu, repeats=4)
    needed = len(runs)
    runs.clear()
    stop = threading.Event()

    def view(progress):
        if len(runs) == 22:
            stop.set()

    part = gs.tune(
        described(), VARY, RATE, LIMIT, gpu, repeats=4, path=tmp_path, viewer=view, stop=stop
    )
    assert part.stopped
    assert part.best is None or part.measurements < whole.measurements
    done = len(kept_points(tmp_path, "forecast") + kept_points(tmp_path, "turn"))
    assert done == 21
    runs.clear()
    again = gs.tune(described(), VARY, RATE, LIMIT, gpu, repeats=4, path=tmp_path)
    assert len(runs) <= needed - done + 4  # the device's noise went on meanwhile
    assert not again.stopped
    runs.clear()
    assert str(gs.tune(described(), VARY, RATE, LIMIT, gpu, repeats=4, path=tmp_path)) == str(again)
    assert not runs


def test_ctrl_c_keeps_what_there_is(gpu, runs):
    def view(progress):
        if len(runs) == 20:
            raise KeyboardInterrupt

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        part = gs.tune(described(), VARY, RATE, LIMIT, gpu, viewer=view)
    assert part.stopped
    assert part.measurements == 3
    assert "stopped early" in part.note


def test_stopped_before_anything_it_says_so(gpu):
    stop = threading.Event()
    stop.set()
    with pytest.raises(gs.errors.NothingRecorded, match="tune again"):
        gs.tune(described(), VARY, RATE, None, gpu, stop=stop)


def test_the_folder_of_another_tuning_stays_as_it_is(gpu, tmp_path):
    few = {"partitions.prefill": [32, 64]}
    gs.tune(described(), few, RATE, None, gpu, repeats=3, path=tmp_path)
    with pytest.raises(gs.errors.GpuscopeError, match="seed is 0 there, 5 now"):
        gs.tune(described(seed=5), few, RATE, None, gpu, repeats=3, path=tmp_path)


def test_the_folder_is_read_once_for_each_of_its_tables(gpu, tmp_path):
    few = {"partitions.prefill": [32, 64]}
    gs.tune(described(), few, RATE, None, gpu, repeats=3, path=tmp_path)
    with (tmp_path / POINTS).open("a") as file:
        file.write("damaged\n")
    with pytest.warns(UserWarning, match="1 of .* lines") as warned:  # each reading warns
        gs.tune(described(), few, RATE, None, gpu, repeats=3, path=tmp_path)
    assert len(warned) == 2


def test_a_size_that_cannot_be_granted_is_refused_alone(gpu):
    found = gs.tune(described(), {"partitions.prefill": [64, 7, 96]}, RATE, None, gpu, repeats=3)
    assert found["prefill = 7"].verdict == "refused"
    assert "8 above" in found["prefill = 7"].error
    only = described(settings={"split": described()["settings"]["split"]})
    with pytest.raises(gs.errors.InvalidPartition, match="8 above"):
        gs.tune(only, {"partitions.prefill": [7]}, RATE, None, gpu)


def test_any_field_is_varied(gpu):
    found = gs.tune(described(), {"workloads.decode.k": [512, 4096]}, RATE, None, gpu, repeats=3)
    labels = [one.label for one in found.settings]
    assert labels[:2] == ["decode.k = 512, shared", "decode.k = 512, split"]


def test_settings_that_are_alike_count_once(gpu):
    split = described()["settings"]["split"]
    alike = {name: {**split, "partitions": {"prefill": size, "decode": "rest"}}
             for name, size in (("a", 32), ("b", 64))}  # fmt: skip
    found = gs.tune(
        described(settings=alike), {"partitions.prefill": [64, 96]}, RATE, None, gpu, repeats=3
    )
    assert [one.label for one in found.settings] == ["prefill = 64", "prefill = 96"]
    assert found.reference == "prefill = 64"


def test_a_setting_that_cannot_run_is_out_and_says_why(gpu, monkeypatch):
    run = gs.run
    clusters = RuntimeError("no cluster fits")

    def failing(plan, *args, **how):
        if args[0] is gpu:
            size = plan.settings["split"].partitions["prefill"] if "split" in plan.settings else 0
            if size in broken:
                raise clusters
        return run(plan, *args, **how)

    monkeypatch.setattr(series, "run", failing)
    broken = {96}
    arguments = ({"partitions.prefill": [32, 64, 96]}, RATE, None, gpu)
    found = gs.tune(described(), *arguments, repeats=3)
    assert found["prefill = 96"].verdict == "refused"
    assert found["prefill = 96"].error == "RuntimeError: no cluster fits"
    assert len(found.choice.values[RATE]) >= 3
    assert found["prefill = 32"].values
    assert found["prefill = 64"].values
    broken = {0, 32, 64, 96}
    with pytest.raises(gs.errors.GpuscopeError, match="no cluster fits"):
        gs.tune(described(), *arguments, repeats=3)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"objective": "prefill.rate"}, "no column that can be better"),
        ({"objective": "nobody.tflop_per_s"}, "the workloads are 'prefill', 'decode'"),
        ({"slo": {"decode.latency_p50_us": "< 3"}}, "'<= 120' is needed"),
        ({"slo": {"decode.latency_p50_us": "<= 120 %"}}, "is in µs, not in per cent"),
        ({"slo": {"decode.latency_p50_us": "<= 1e999"}}, "a finite number"),
        ({"slo": {"prefill.calls_per_s": ">= 0"}}, "always holds"),
        ({"slo": "decode"}, "a mapping of"),
        ({"vary": {}}, "name at least one"),
        ({"vary": {"partitions.other": "all"}}, "no setting carves"),
        ({"vary": {"workloads.decode.k": "all"}}, "a list"),
        ({"repeats": 2}, "at least 3"),
        ({"confidence": 1.0}, "a share"),
        ({"objective": "decode.latency_p99_us"}, "needs 1,000 calls"),
    ],
)
def test_what_cannot_be_tuned_is_refused(gpu, changes, error):
    arguments = {"vary": {"partitions.prefill": [64]}, "objective": RATE, **changes}
    with pytest.raises(gs.errors.GpuscopeError, match=error):
        gs.tune(described(), device=gpu, **arguments)


def test_what_cannot_be_forecast_is_measured_all_over_the_grid():
    cpu = gs.open_device("cpu", quiet=True)
    one = {
        "name": "one", "streams": {"s": {}},
        "workloads": {"w": {"kind": "gemm", "m": 64, "n": 64, "k": 64, "stream": "s",
                            "dtype": "float32", "repeats": 2}},
    }  # fmt: skip
    found = gs.tune(
        one, {"workloads.w.m": list(range(16, 176, 16))}, "w.latency_p50_us", None, cpu, repeats=3
    )
    assert "no forecasts" in found.forecasts
    assert not any(one.forecast for one in found.settings)
    measured = [place for place, one in enumerate(found.settings) if one.values]
    assert measured[0] == 0
    assert measured[-1] >= 8


# -- out of the lab -----------------------------------------------------------------------
def label_of(tuned):
    return (tuned.best or tuned.equals[0]).label


def test_sglang_reads_its_table(tuned, tmp_path):
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load(tuned.export(tmp_path / "d.yaml", "prefill = 96").read_text())
    assert found == {
        "sm_group_num": 3, "manual_divisions": [[96, 36, 1]],
        "split_forward_token_budget": 65536, "decode_bs_divisor": 36,
    }  # fmt: skip
    text = gs.search.manual_divisions(
        {10: tuned, 1: tuned, 5: tuned},
        {1: "prefill = 112", 5: "prefill = 112", 10: "prefill = 80"},
    )
    found = yaml.safe_load(text)
    assert found["manual_divisions"] == [[112, 20, 1], [80, 52, 10]]
    assert found["sm_group_num"] == len(found["manual_divisions"]) + 2
    assert "SIMULATED" in text


def test_other_names_than_sglangs_are_refused(gpu):
    one = {
        "name": "one", "partitions": {"a": 8}, "streams": {"s": {"partition": "a"}},
        "workloads": {"w": {**GEMM, "stream": "s", "repeats": 3}},
    }  # fmt: skip
    found = gs.tune(one, {"partitions.a": [8, 64]}, "w.tflop_per_s", None, gpu, repeats=3)
    with pytest.raises(gs.errors.InvalidArgument, match="partitions called 'prefill' and 'decode'"):
        gs.search.manual_divisions({1: found}, {1: "a = 64"})


def test_without_a_winner_it_says_which_to_take_and_what_that_costs_at_most(tuned, tmp_path):
    one, two = [setting for setting in tuned.settings if setting.sizes and setting.values][:2]
    hidden = replace(
        tuned,
        settings=(
            replace(one, verdict="equal", behind=4.0, sms=60),
            replace(two, verdict="equal", behind=2.0, sms=52),
        ),
        reference=None,
    )
    assert hidden.best is None
    assert hidden.choice.label == two.label
    finding = gs.telling.tuned(hidden)
    assert (finding.rule, finding.subject["choice"]) == ("tuned.equal", two.label)
    assert finding["behind"].value == 2
    (take,) = recommended(hidden)
    assert (take.rule, take.subject["choice"]) == ("take", two.label)
    assert [text.split(" with ")[0] for text in finding.subject["settings"]] == [
        one.label,
        two.label,
    ]
    assert take["mean"].value == two.mean(hidden.objective)
    assert (take["mean"].low, take["mean"].high) == (hidden.interval(two) or (None, None))
    assert f"no other of these is better than {two.label} by more than 2 (" in hidden.outcome
    assert two.label in hidden.export(tmp_path / "carve.py").read_text()
    no_better = replace(hidden, reference=one.label)
    assert (no_better.choice.label, no_better.recommended) == (two.label, None)
    (take,) = recommended(no_better)
    assert (take.rule, take.subject["choice"]) == ("take.hidden", two.label)
    _, *changes = take.values
    assert changes
    for finding in (take, replace(take, rule="take")):
        assert all(str(change) in finding.text for change in changes)
    assert not [*left(no_better)]
    open_still = replace(hidden, settings=(replace(one, verdict="undecided", behind=None),))
    assert open_still.choice is None
    finding = gs.telling.tuned(open_still)
    assert (finding.rule, "choice" in finding.subject) == ("tuned.open", False)
    assert not [*recommended(open_still)]


def test_where_it_is_not_known_which_to_take_a_setting_must_be_named(tuned, tmp_path, monkeypatch):
    monkeypatch.setattr(gs.search.TuneResult, "choice", None)
    with pytest.raises(gs.errors.InvalidArgument, match="not known which to take"):
        tuned.export(tmp_path / "carve.py")
    with pytest.raises(gs.errors.InvalidArgument, match="no setting 'x'"):
        tuned.export(tmp_path / "carve.py", "x")
    with pytest.raises(gs.errors.InvalidArgument, match="no partitions"):
        tuned.export(tmp_path / "carve.py", "shared")
    with pytest.raises(gs.errors.InvalidArgument, match=r"\.yaml, \.py, \.cpp, \.json, \.html"):
        tuned.export(tmp_path / "carve.txt")
    assert not list(tmp_path.iterdir())


def test_code_makes_the_partitions_that_were_tuned_and_a_stream_in_each(tuned, tmp_path):
    python = tuned.export(tmp_path / "c.py", "prefill = 96").read_text()
    values = {
        target.id: ast.literal_eval(statement.value)
        for statement in ast.parse(python).body
        if isinstance(statement, ast.Assign)
        and isinstance(target := statement.targets[0], ast.Name)
    }
    assert values["PARTITIONS"] == {"prefill": 96, "decode": 36}
    assert values["STREAMS"] == {"prefill": ("prefill", True, 0), "decode": ("decode", True, 0)}
    text = tuned.export(tmp_path / "c.cpp", "prefill = 96").read_text()
    assert "kSmCount = 132, kQuantum = 8" in text
    assert [line.strip() for line in text.splitlines() if line.startswith("    {")] == [
        '{"prefill", 96},',
        '{"decode", 36},',
        '{"prefill", "prefill", CU_STREAM_NON_BLOCKING, 0},',
        '{"decode", "decode", CU_STREAM_NON_BLOCKING, 0},',
    ]


def test_json_has_everything(tuned, tmp_path):
    facts = json.loads(tuned.export(tmp_path / "t.json").read_text())
    assert facts["best"] == (tuned.best and tuned.best.label)
    assert facts["device"]["sm_count"] == 132
    assert facts["versions"]["gpuscope"]
    assert len(facts["settings"]) == 16
    again = gs.experiments.Experiment.from_dict(facts["experiment"])
    assert again.workloads["decode"].repeats == 80
    assert facts["command"].startswith("gs.tune(experiment, {'partitions.prefill': [8, 16,")


def test_the_report_says_what_won_and_on_what_it_rests(tuned, tmp_path):
    page = tuned.export(tmp_path / "t.html").read_text()
    for text in ("SIMULATED", label_of(tuned), "NVIDIA H200", "gs.tune(experiment", "Bonferroni"):
        assert text in page


def test_the_figure_shows_measured_and_forecast_settings(tuned):
    figure = tuned.figure()
    names = [trace.name for trace in figure.data]
    assert set(names) == {"forecast", "not told from the best", "worse"}
    for goal in (tuned.objective, *tuned.slo):
        axis = next(
            f"y{at}" if at > 1 else "y"
            for at, each in enumerate(figure.layout.annotations, 1)
            if each.text == f"<b>{goal.name}</b>"
        )
        for mark in (one for one in figure.data if one.yaxis == axis):
            of = {(str(s.point.get("partitions.prefill", "shared"))): s for s in tuned.settings}
            for x, y in zip(mark.x, mark.y, strict=True):
                told = of[x].forecast[goal.name] if mark.name == "forecast" else of[x].mean(goal)
                assert y == told
    band, limit = figure.layout.shapes
    order = list(figure.layout.xaxis.categoryarray)
    chosen = order[round((band.x0 + band.x1) / 2)]
    assert chosen == str(tuned.choice.point["partitions.prefill"])
    assert (limit.y0, limit.y1) == (65, 65)
    assert "SIMULATED" in figure.layout.title.text


# -- code that only a GPU runs -------------------------------------------------------------
def model(device, rows=1024, name="model"):
    """Return a handle, as a function of somebody's does."""
    return gs.Gemm(device, m=rows, n=1024, k=1024, name=name)


MODELS = {
    "name": "models",
    "partitions": {"prefill": 64, "decode": "rest"},
    "streams": {"p": {"partition": "prefill"}, "d": {"partition": "decode"}},
    "workloads": {
        "prefill": {"kind": f"python:{__name__}:model", "args": {"rows": 65536}, "stream": "p",
                    "background": True, "max_queued": 3},
        "decode": {"kind": f"python:{__name__}:model", "args": {"rows": 1024}, "stream": "d",
                   "repeats": 30},
    },
}  # fmt: skip


def test_recordings_stand_in_for_code_that_only_a_gpu_runs(gpu, tmp_path, runs, monkeypatch):
    monkeypatch.setattr(stand_ins, "is_real", lambda device: True)
    described = gs.experiments.Experiment.from_dict(MODELS)
    stop = threading.Event()
    forecaster = stand_ins.Simulated(described, gpu, VARY, "h200")
    found = forecaster.prepare(tmp_path, stop)
    assert list(found) == ["prefill", "decode"]
    assert found["prefill"].background
    assert found["decode"].repeats == 30
    assert {path.name for path in tmp_path.iterdir()} == {
        f"recorded-{number}{few}.parquet" for number in (0, 1) for few in ("", "-few")
    }
    medians = [
        {
            row["workload"]: row["kernel_median_us"]
            for row in gs.run(plan, gpu).comparison.to_pylist()
        }
        for plan in (described, described.model_copy(update={"workloads": found}))
    ]
    for name, median in medians[0].items():
        assert medians[1][name] == pytest.approx(median, rel=0.1)
    runs.clear()
    forecaster.prepare(tmp_path, stop)
    assert not runs, "they are there"


def test_a_real_gpu_is_forecast_from_recordings(gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(stand_ins, "is_real", lambda device: True)
    found = gs.tune(MODELS, VARY, "prefill.calls_per_s", None, gpu, repeats=3, path=tmp_path)
    assert "from recordings" in found.forecasts
    assert len(list(tmp_path.glob("recorded-*.parquet"))) == 4
    for one in found.settings:
        if one.values:
            assert one.forecast["prefill.calls_per_s"] == pytest.approx(
                one.mean(found.objective), rel=0.1
            )
    varied = gs.tune(
        MODELS, {"workloads.decode.args.rows": [512, 1024]}, "prefill.calls_per_s", None, gpu,
        repeats=3,
    )  # fmt: skip
    assert "no forecasts: decode, whose code only a GPU runs, is varied itself" in varied.forecasts


# -- the fewest SMs -------------------------------------------------------------------------
ENOUGH = {"decode.kernel_median_us": "<= 15"}


@pytest.fixture(scope="module")
def smallest():
    device = gs.open_device("sim:h200", quiet=True)
    split = {
        **described()["settings"]["split"],
        "partitions": {"decode": 64, "prefill": "rest"},
    }
    plan = described(settings={"split": split}, alone_repeats=0)
    plan["workloads"]["decode"] = {**GEMM, "m": 1024, "n": 1024, "k": 1024, "stream": "d",
                                   "repeats": 20}  # fmt: skip
    return plan, gs.tune(plan, {"partitions.decode": "all"}, "fewest SMs", ENOUGH, device)


def test_the_fewest_sms_are_those_of_the_full_grid(smallest):
    plan, result = smallest
    vary = {"partitions.decode": "all"}
    every = gs.search.sweep(plan, vary, gs.open_device("sim:h200", quiet=True)).rows()
    enough = [
        row["partitions.decode"]
        for row in every
        if row["workload"] == "decode" and row["kernel_median_us"] <= 15
    ]
    assert result.best.sizes["decode"] == result.best.sms == min(enough)
    beside = result[f"decode = {min(enough) - 8}"]
    assert (beside.verdict, bool(beside.values)) == ("misses SLO", True)
    more = [setting for setting in result.settings if setting.sms > result.best.sms]
    assert {setting.verdict for setting in more} == {"worse"}
    assert result.measurements < len(result.settings)
    assert result.interval(result.best) is None


def test_it_says_what_is_left_for_others_and_what_they_keep(smallest, tmp_path):
    _, result = smallest
    (finding,) = left(result)
    assert finding["left"].value == 132 - result.best.sms
    assert finding["free"].value == 0
    assert "prefill.calls_per_s is" in finding.subject["kept"]
    facts = json.loads(result.export(tmp_path / "a.json").read_text("utf-8"))
    assert (facts["objective"], facts["free_sms"]) == ("fewest SMs", 0)
    assert facts["left"] == result.words.left
    assert finding.subject["where"] in result.export(tmp_path / "a.html").read_text("utf-8")
    assert ast.parse(result.command).body[0].value.args[2].value == "fewest SMs"


@pytest.mark.parametrize(("sms", "free"), [(8, 124), (120, 12), (124, 8), (128, 0), (None, 0)])
def test_what_is_free_is_what_one_more_partition_may_have(smallest, sms, free):
    _, result = smallest
    setting = replace(result.best, sizes={} if sms is None else {"a": sms})
    assert result.free_sms(setting) == free


def test_fewest_sms_need_something_that_they_are_enough_for(gpu):
    with pytest.raises(gs.errors.InvalidArgument, match="there is no slo"):
        gs.tune(described(), VARY, "fewest SMs", device=gpu)


# -- energy ---------------------------------------------------------------------------------
def test_the_least_energy_a_call_is_found_and_forecast(gpu):
    one = {
        "name": "one", "alone_repeats": 0, "partitions": {"a": 8},
        "streams": {"s": {"partition": "a"}},
        "workloads": {"w": {**GEMM, "stream": "s", "repeats": 20}},
    }  # fmt: skip
    result = gs.tune(one, {"partitions.a": [8, 64, 120]}, "joules", None, gpu)
    drawn, dynamic = "w.joules_per_call", "w.dynamic_joules_per_call"
    assert (result.objective.name, [goal.name for goal in result.costs]) == (drawn, [dynamic])
    assert result.best.label == "a = 120", "the idle power is paid for the shortest"
    for setting in result.settings:
        assert setting.forecast[drawn] > 0
        if setting.values:
            assert all(map(float.__gt__, setting.values[drawn], setting.values[dynamic]))


def test_of_which_workload_joules_are_sought_is_known_or_asked(gpu):
    plan = described(alone_repeats=0)
    plan["workloads"]["other"] = {**GEMM, "stream": "d", "repeats": 3}
    with pytest.raises(gs.errors.InvalidArgument, match=r"'decode\.joules_per_call' or 'other"):
        gs.tune(plan, {"partitions.prefill": [8]}, "joules", device=gpu)
    result = gs.tune(plan, {"partitions.prefill": [8]}, "joules",
                     {"other.latency_p50_us": "<= 1e6"}, gpu, repeats=3)  # fmt: skip
    assert result.objective.workload == "other"


def test_where_it_is_not_decided_it_says_which_limit_is_open(smallest):
    _, result = smallest
    (limit,) = result.slo
    doubtful = replace(result.best, verdict="undecided", bounds={limit.name: (14.0, 16.0)})
    finding = gs.telling.tuned(replace(result, settings=(doubtful,)))
    assert finding.rule == "tuned.open"
    assert f"{limit.name} is" in finding.subject["settings"][0]
    assert "(14 to 16)" in finding.subject["settings"][0]
