"""Experiments: three ways to write one, settings resolved, and errors that say where."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuscope as gs
from gpuscope.device.sizes import EXPECTED
from gpuscope.errors import GpuscopeError, InvalidExperiment
from gpuscope.experiments.experiment import Experiment

TOML = """
name = "pair"
seed = 3
rounds = 2
alone_repeats = 5
rounding = "up"
partitions = { small = 16, load = "rest" }

[streams.decode]
partition = "small"
priority = -1
[streams.load]

[workloads.small]
kind = "gemm"
m = 64
n = 32
k = 16
dtype = "bfloat16"
stream = "decode"
repeats = 7
warmup = 0
max_queued = 2
arrival = "poisson"
rate_hz = 1000

[workloads.copy]
kind = "copy"
nbytes = 4096
stream = "load"
background = true

[workloads.spin]
kind = "spin"
duration_us = 2.5
blocks = 3
stream = "load"

[settings.first]
[settings."120 | rest"]
partitions = { small = 120, load = "rest" }
streams = { load = { partition = "load" } }
sm_count_target = "off"
"""
DATA = {
    "name": "pair",
    "seed": 3,
    "rounds": 2,
    "alone_repeats": 5,
    "rounding": "up",
    "partitions": {"small": 16, "load": "rest"},
    "streams": {"decode": {"partition": "small", "priority": -1}, "load": {}},
    "workloads": {
        "small": {
            "kind": "gemm", "m": 64, "n": 32, "k": 16, "dtype": "bfloat16", "stream": "decode",
            "repeats": 7, "warmup": 0, "max_queued": 2, "arrival": "poisson", "rate_hz": 1000,
        },
        "copy": {"kind": "copy", "nbytes": 4096, "stream": "load", "background": True},
        "spin": {"kind": "spin", "duration_us": 2.5, "blocks": 3, "stream": "load"},
    },
    "settings": {
        "first": {},
        "120 | rest": {
            "partitions": {"small": 120, "load": "rest"},
            "streams": {"load": {"partition": "load"}},
            "sm_count_target": "off",
        },
    },
}  # fmt: skip

ABSENT = object()


def changed(*changes):
    """Return the description with ``(path, value)`` changes; ``ABSENT`` takes a field out."""
    data = copy.deepcopy(DATA)
    for path, value in changes:
        *parents, last = path.split("/")
        place = data
        for name in parents:
            place = place[name]
        if value is ABSENT:
            del place[last]
        else:
            place[last] = value
    return data


# -- reading ------------------------------------------------------------------------------


def test_toml_json_and_dict_give_the_same_experiment(tmp_path):
    (tmp_path / "one.toml").write_text(TOML, "utf-8")
    (tmp_path / "one.json").write_text(json.dumps(DATA), "utf-8")
    from_dict = Experiment.from_dict(DATA)
    assert Experiment.from_file(tmp_path / "one.toml") == from_dict
    assert Experiment.from_file(str(tmp_path / "one.json")) == from_dict
    assert Experiment(**DATA) == from_dict
    assert from_dict.workloads["small"].rate_hz == 1000
    assert from_dict.streams["decode"].priority == -1
    assert from_dict.partitions == {"small": 16, "load": "rest"}


def test_to_dict_goes_through_json_and_back():
    experiment = Experiment.from_dict(DATA)
    described = experiment.to_dict()
    assert Experiment.from_dict(described) == experiment
    assert Experiment.from_dict(json.loads(json.dumps(described))) == experiment
    assert described["workloads"]["spin"]["repeats"] == 100, "defaults are written out"


def test_the_problems_are_there_field_by_field():
    with pytest.raises(InvalidExperiment) as caught:
        Experiment.from_dict(changed(("workloads/small/m", "x"), ("streams/load/priority", 9)))
    assert set(caught.value.problems) == {
        ("workloads", "small", "m"),
        ("streams", "load", "priority"),
    }
    assert caught.value.problems["workloads", "small", "m"].startswith("should be a whole number")
    with pytest.raises(InvalidExperiment) as caught:
        Experiment.from_dict(changed(("workloads/small/stream", "gone")))
    assert "'gone' is no stream" in caught.value.problems["workloads", "small", "stream"]


def test_fields_that_came_later_are_told_only_where_they_say_something():
    described = Experiment.from_dict(DATA).to_dict()
    assert set(described["streams"]["load"]) == {"partition", "priority"}
    assert not {"guard", "waits_on"} & set(described["workloads"]["copy"])
    later = changed(
        ("streams/load/blocking", True),
        ("workloads/copy/guard", False),
        ("workloads/copy/waits_on", ["spin"]),
        ("settings/120 | rest/streams", {}),
    )
    experiment = Experiment.from_dict(later)
    described = experiment.to_dict()
    assert "colors" not in described
    assert described["streams"]["load"]["blocking"] is True
    assert described["workloads"]["copy"]["guard"] is False
    assert described["workloads"]["copy"]["waits_on"] == ["spin"]
    assert Experiment.from_dict(described) == experiment


names = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8)


@given(
    st.lists(names, min_size=3, max_size=3, unique=True),
    st.sampled_from([{}, {"a": 16}, {"a": "rest"}]),
    st.booleans(),
    st.floats(0.001, 1e6),
)
def test_what_is_written_as_toml_is_read_back(named, partitions, flag, rate):
    first, second, stream = named
    experiment = Experiment(
        name=first,
        partitions={**partitions, second: 8},
        streams={stream: {"partition": second}, "plain": {"blocking": flag}},
        workloads={
            first: {"kind": "gemm", "m": 1, "n": 2, "k": 3, "stream": "plain", "guard": flag,
                    "arrival": "fixed", "rate_hz": rate, "repeats": 5},
            second: {"kind": "python:a.b:c", "args": {"x": second}, "stream": stream,
                     "waits_on": [first]},
        },
        settings={first: {}, second: {"partitions": {}, "streams": {stream: {}}}},
        colors={second: "#00fF00"},
    )  # fmt: skip
    assert Experiment.from_toml(experiment.to_toml()) == experiment


def test_examples_and_their_toml_say_the_same():
    for path in (Path(__file__).parents[3] / "examples").glob("*.toml"):
        experiment = Experiment.from_file(path)
        assert Experiment.from_toml(experiment.to_toml()) == experiment
    with pytest.raises(InvalidExperiment, match="this is not TOML"):
        Experiment.from_toml("name = ")


def test_reading_changes_nothing_in_what_was_given():
    before = copy.deepcopy(DATA)
    Experiment.from_dict(DATA).resolve()
    assert before == DATA


def test_an_experiment_cannot_be_changed():
    experiment = Experiment.from_dict(DATA)
    with pytest.raises(ValueError, match="frozen"):
        experiment.name = "other"


def test_the_quickstart_is_valid():
    from pathlib import Path

    path = Path(__file__).parents[3] / "examples" / "quickstart.toml"
    experiment = Experiment.from_file(path)
    assert list(experiment.settings) == [
        "no partition",
        "priority",
        "16 | rest",
        "16 | rest, no target",
    ]
    assert experiment.workloads["small"].repeats >= 1000


def test_describing_an_experiment_loads_nothing_heavy():
    child = (
        "import sys, gpuscope.experiments.experiment as e\n"
        f"e.Experiment.from_dict({DATA!r})\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "pydantic" in loaded
    assert not loaded & {"cupy", "cuda", "nvmath", "torch", "pyarrow", "plotly", "numpy", "IPython"}


# -- settings -----------------------------------------------------------------------------


def test_settings_replace_partitions_and_merge_streams():
    first, second = Experiment.from_dict(DATA).resolve()
    assert (first.name, second.name) == ("first", "120 | rest")
    assert first.partitions == {"small": 16, "load": "rest"}
    assert second.partitions == {"small": 120, "load": "rest"}
    assert first.streams["load"].partition is None
    assert second.streams["load"].partition == "load"
    assert second.streams["decode"] == first.streams["decode"]
    assert second.streams["decode"].priority == -1


def test_a_stream_that_a_setting_names_is_replaced_whole():
    data = changed(("settings/first", {"streams": {"decode": {"partition": "load"}}}))
    (first, _) = Experiment.from_dict(data).resolve()
    assert first.streams["decode"].partition == "load"
    assert first.streams["decode"].priority == 0, "not the base's -1"


def test_sm_count_target_of_a_setting_is_for_its_gemms_only():
    first, second = Experiment.from_dict(DATA).resolve()
    assert first.workloads["small"].sm_count_target == "auto"
    assert second.workloads["small"].sm_count_target == "off"
    assert second.workloads["copy"] == first.workloads["copy"]
    data = changed(
        ("settings/first/sm_count_target", 12), ("workloads/small/sm_count_target", "off")
    )
    first, _ = Experiment.from_dict(data).resolve()
    assert first.workloads["small"].sm_count_target == 12


def test_a_setting_can_carve_nothing():
    data = changed(
        ("settings/first", {"partitions": {}, "streams": {"decode": {"partition": None}}})
    )
    first, _ = Experiment.from_dict(data).resolve()
    assert first.partitions == {}
    assert first.streams["decode"].partition is None


def test_without_settings_there_is_a_default_one():
    (only,) = Experiment.from_dict(changed(("settings", ABSENT))).resolve()
    assert only.name == "default"
    assert only.partitions == {"small": 16, "load": "rest"}


# -- bad input: the message has the field's path, what is allowed and what was found ----------

STREAM_KEYS = "allowed: 'partition', 'priority'"
SETTING_KEYS = "allowed: 'partitions', 'streams', 'sm_count_target', 'rounding'"
KINDS = "allowed: 'gemm', 'copy', 'spin'"

BAD = [
    # unknown keys, at every level
    (("bogus", 1), "bogus: unknown key; allowed: 'name', 'seed', 'rounds'"),
    (("streams/load/bogus", 1), f"streams.load.bogus: unknown key; {STREAM_KEYS}"),
    (("workloads/small/bogus", 1), "workloads.small.bogus: unknown key; allowed: 'stream',"),
    (("workloads/copy/m", 1), "workloads.copy.m: unknown key; allowed: 'stream',"),
    (("settings/first/bogus", 1), f"settings.first.bogus: unknown key; {SETTING_KEYS}"),
    (
        ("settings/first/streams", {"load": {"bogus": 1}}),
        f"settings.first.streams.load.bogus: unknown key; {STREAM_KEYS}",
    ),
    # names that trick whoever looks at the path only
    (("settings/streams", {"bogus": 1}), f"settings.streams.bogus: unknown key; {SETTING_KEYS}"),
    (("settings/gemm", {"bogus": 1}), f"settings.gemm.bogus: unknown key; {SETTING_KEYS}"),
    (
        ("settings/partitions", {"partitions": {"a": 0}}),
        f"settings.partitions.partitions.a: {EXPECTED}, but found 0",
    ),
    (
        ("workloads/sm_count_target", {"kind": "spin", "stream": "load", "duration_us": 0}),
        "workloads.sm_count_target.duration_us: should be greater than 0, but found 0",
    ),
    # sizes
    *(
        (("partitions/small", size), f"partitions.small: {EXPECTED}, but found {size!r}")
        for size in (0, -8, "most", "101%", 1.5, None)
    ),
    (
        ("settings/first/partitions", {"small": -1}),
        f"settings.first.partitions.small: {EXPECTED}, but found -1",
    ),
    (("workloads/small/m", 0), "workloads.small.m: should be greater than 0, but found 0"),
    (("workloads/small/k", -1), "workloads.small.k: should be greater than 0, but found -1"),
    (("workloads/small/n", "x"), "workloads.small.n: should be a whole number, but found 'x'"),
    (("workloads/small/n", 1.5), "workloads.small.n: should be a whole number, but found 1.5"),
    (("workloads/copy/nbytes", 0), "workloads.copy.nbytes: should be greater than 0"),
    (("workloads/spin/duration_us", -1), "workloads.spin.duration_us: should be greater than 0"),
    (("workloads/spin/duration_us", 1e9), "workloads.spin.duration_us: should be less than or eq"),
    (("workloads/spin/duration_us", float("nan")), "duration_us: should be a finite number"),
    (("workloads/spin/blocks", 0), "workloads.spin.blocks: should be greater than 0"),
    (("workloads/small/repeats", 0), "workloads.small.repeats: should be greater than 0"),
    (("workloads/small/warmup", -1), "workloads.small.warmup: should be greater than or equal"),
    (("workloads/small/max_queued", 0), "max_queued: should be greater than or equal to 1"),
    (("workloads/small/max_queued", 65), "max_queued: should be less than or equal to 64"),
    (("rounds", 0), "rounds: should be greater than or equal to 1, but found 0"),
    (("seed", -1), "seed: should be greater than or equal to 0, but found -1"),
    (("streams/load/priority", 1), "streams.load.priority: should be less than or equal to 0"),
    (("streams/load/priority", -9), "streams.load.priority: should be greater than or equal to -5"),
    # choices
    (
        ("workloads/small/dtype", "int8"),
        "workloads.small.dtype: should be 'float16', 'bfloat16', 'float32' or 'float64'",
    ),
    (
        ("workloads/small/arrival", "sometimes"),
        "workloads.small.arrival: should be 'back_to_back', 'fixed' or 'poisson', but found",
    ),
    (
        ("rounding", "off"),
        "rounding: should be 'exact', 'up', 'down' or 'nearest', but found 'off'",
    ),
    (
        ("streams/decode/blocking", True),
        "streams.decode: a partition's stream never blocks: leave out blocking",
    ),
    (("workloads/copy/guard", "maybe"), "copy.guard: should be true or false, but found 'maybe'"),
    (("workloads/copy/waits_on", "spin"), "workloads.copy.waits_on: should be a list of names"),
    (
        ("workloads/copy/waits_on", ["copy"]),
        "workloads.copy.waits_on: 'copy' is no other workload; allowed: 'small', 'spin'",
    ),
    (("workloads/copy/waits_on", ["gone"]), "workloads.copy.waits_on: 'gone' is no other workload"),
    (
        ("workloads/small/sm_count_target", "on"),
        "workloads.small.sm_count_target: should be 'auto' or 'off' or a whole number, but",
    ),
    (
        ("settings/first/sm_count_target", 0),
        "settings.first.sm_count_target: should be 'auto' or 'off' or greater than 0, but found 0",
    ),
    (("workloads/small/background", "maybe"), "background: should be true or false, but found"),
    (("colors", {"small": "red"}), "colors.small: should be '#RRGGBB', but found 'red'"),
    (("colors", {"gone": "#123456"}), "colors.gone: no setting carves a partition 'gone'"),
    # kinds
    (
        ("workloads/small/kind", "conv"),
        f"workloads.small.kind: 'conv' is no kind of workload; {KINDS}",
    ),
    (
        ("workloads/small/kind", "sofmax"),
        "workloads.small.kind: 'sofmax' is no kind of workload (did you mean 'softmax'?); allowed",
    ),
    (("workloads/small/kind", 3), f"workloads.small.kind: '3' is no kind of workload; {KINDS}"),
    (("workloads/small/kind", ABSENT), f"workloads.small.kind: missing; {KINDS}"),
    (("workloads/small/kind", "conv"), "'trace', 'requests', 'python:package.module:function'"),
    *(
        (
            ("workloads/spin", {"kind": kind, "stream": "load"}),
            f"workloads.spin.kind: should be 'python:package.module:function', but found {kind!r}",
        )
        for kind in (
            "python",
            "python:",
            "python:os",
            "python:a:b:c",
            "python:a b:c",
            "python:.a:b",
            "python:a.:b",
            "python:a:",
            "python:a:1",
        )
    ),
    (
        ("workloads/spin", {"kind": "python:a:b", "stream": "load", "duration_us": 1}),
        "workloads.spin.duration_us: unknown key; allowed: 'stream',",
    ),
    (("workloads/spin", {"kind": "python:a:b"}), "workloads.spin.stream: missing"),
    *(
        (
            ("workloads/spin", {"kind": "python:a:b", "stream": "load", "args": {"x": value}}),
            "workloads.spin.args.x: should be a text, a finite number, true or false",
        )
        for value in (None, [1], {"y": 1}, float("nan"), float("inf"))
    ),
    (
        ("workloads/spin", {"kind": "python:a:b", "stream": "load", "args": 3}),
        "workloads.spin.args: should be a table, but found 3",
    ),
    *(
        (
            ("workloads/spin", {"kind": "python:a:b", "stream": "load", "args": {name: 1}}),
            f"workloads.spin.args: {name!r} is no argument's name",
        )
        for name in ("", "a b", "1", "stream")
    ),
    (
        ("workloads/spin", {"kind": "python:a:b", "stream": "load", "args": {"x": "\ud800"}}),
        "workloads.spin.args.x: '\\ud800' is not valid Unicode",
    ),
    # missing and empty
    (("workloads/small/m", ABSENT), "workloads.small.m: missing"),
    (("workloads/small/stream", ABSENT), "workloads.small.stream: missing"),
    (("name", ABSENT), "name: missing"),
    (("streams", ABSENT), "streams: missing"),
    (("workloads", ABSENT), "workloads: missing"),
    (("streams", {}), "streams: at least one is needed"),
    (("workloads", {}), "workloads: at least one is needed"),
    # of the wrong shape
    (("streams", 5), "streams: should be a table, but found 5"),
    (("streams/load", 5), "streams.load: should be a table, but found 5"),
    (("workloads/small", 5), "workloads.small: should be a table, but found 5"),
    (("settings/first", 5), "settings.first: should be a table, but found 5"),
    (("settings", []), "settings: should be a table"),
    (("name", 3), "name: should be a text, but found 3"),
    (("streams/load/partition", 3), "streams.load.partition: should be a text, but found 3"),
    # names that are not there, or that no file could hold
    (
        ("streams/load/partition", "gone"),
        "streams.load.partition: 'gone' is no partition of setting 'first'; allowed: 'small'",
    ),
    (
        ("settings/first/streams", {"load": {"partition": "gone"}}),
        "settings.first.streams.load.partition: 'gone' is no partition of setting",
    ),
    (
        ("settings/first/partitions", {}),
        "streams.decode.partition: 'small' is no partition of setting 'first'; allowed: none",
    ),
    (
        ("settings/first/streams", {"other": {}}),
        "settings.first.streams.other: no such stream; allowed: 'decode', 'load'",
    ),
    (
        ("workloads/small/stream", "gone"),
        "workloads.small.stream: 'gone' is no stream; allowed: 'decode', 'load'",
    ),
    (("name", "\ud800"), "name: '\\ud800' is not valid Unicode"),
    (("settings/\ud800", {}), "settings: '\\ud800' is not valid Unicode"),
    (("partitions/", 8), "partitions: a partition's name is a non-empty text, not ''"),
    (("streams/", {}), "streams: '' is no name"),
    # arrivals
    (("workloads/small/arrival", ABSENT), "workloads.small: rate_hz goes with arrival = 'fixed'"),
    (("workloads/small/rate_hz", ABSENT), "workloads.small: rate_hz goes with arrival = 'fixed'"),
    (("workloads/small/rate_hz", 0), "workloads.small.rate_hz: should be greater than 0"),
    (("workloads/small/rate_hz", float("inf")), "rate_hz: should be a finite number, but found"),
    (("workloads/small/background", True), "workloads.small: a background workload runs back to"),
]


@pytest.mark.parametrize(("change", "text"), BAD, ids=[text[:60] for _, text in BAD])
def test_bad_input_names_the_field_and_what_is_allowed(change, text):
    with pytest.raises(InvalidExperiment) as caught:
        Experiment.from_dict(changed(change))
    message = str(caught.value)
    assert text in message
    for jargon in ("Input ", "literal[", "constrained", "discriminator", "StreamSpec", "pydantic"):
        assert jargon not in message


def test_the_constructor_checks_as_from_dict_does():
    with pytest.raises(InvalidExperiment, match=r"streams\.load\.partition: 'gone' is no"):
        Experiment(**changed(("streams/load/partition", "gone")))
    with pytest.raises(InvalidExperiment, match=r"workloads\.small\.m: should be greater"):
        Experiment(**changed(("workloads/small/m", -1)))


def test_every_wrong_field_is_named_once():
    with pytest.raises(InvalidExperiment) as caught:
        Experiment.from_dict(
            changed(("partitions/small", -8), ("bogus", 1), ("workloads/small/m", 0))
        )
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "partitions.small", "workloads.small.m", "bogus",
    ]  # fmt: skip


def test_nothing_but_background_work_would_never_end():
    data = changed(
        ("workloads/small", {**DATA["workloads"]["copy"]}), ("workloads/spin/background", True)
    )
    with pytest.raises(InvalidExperiment, match="workloads: every one is in the background"):
        Experiment.from_dict(data)


def test_two_rests_are_refused_when_it_is_run():
    data = changed(("settings", {}), ("partitions", {"small": "rest", "load": "rest"}))
    gpu = gs.open_device("sim:h200", quiet=True)
    with pytest.raises(gs.errors.InvalidPartition, match="only one partition can have 'rest'"):
        gs.run(data, gpu)


@pytest.mark.parametrize("given", [None, 5, [1], "pair"])
def test_what_is_no_table_is_refused(given):
    with pytest.raises(InvalidExperiment, match=f"not {type(given).__name__}"):
        Experiment.from_dict(given)


def test_keys_that_are_no_text_are_refused():
    with pytest.raises(InvalidExperiment, match="1: unknown key"):
        Experiment.from_dict({**DATA, 1: 2})
    with pytest.raises(InvalidExperiment, match=r"streams\.1.*: should be a text"):
        Experiment.from_dict(changed(("streams", {1: {}})))


@pytest.mark.parametrize(
    ("name", "content", "error", "text"),
    [
        ("bad.toml", b"name = \n", InvalidExperiment, r"'bad\.toml' is not TOML: .*line 1"),
        ("bad.json", b'{"name": ', InvalidExperiment, r"'bad\.json' is not JSON: .*line 1"),
        ("list.json", b"[1, 2]", InvalidExperiment, r"'list\.json' holds no table"),
        ("latin.toml", b'name = "\xe9"', GpuscopeError, r"'latin\.toml'.*not UTF-8"),
    ],
)
def test_files_that_hold_no_experiment(tmp_path, name, content, error, text):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=text):
        Experiment.from_file(tmp_path / name)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(GpuscopeError, match=r"'gone\.toml': No such file"):
        Experiment.from_file(tmp_path / "gone.toml")
    with pytest.raises(GpuscopeError, match="Is a directory"):
        Experiment.from_file(tmp_path)


# -- functions of the user's -----------------------------------------------------------------

ARGS = {"text": "1", "yes": True, "whole": 1, "real": 1.0, "big": 2**70}
MODULE = """
import numpy as np
import gpuscope as gs
from gpuscope.device.api import KernelCost, KernelModel

MODEL = KernelModel(lambda _profile, grid, args, _sms: KernelCost(grid, args[0]))
seen = []

@gs.workloads.workload
def spins(ctx, block_ns, blocks=1):
    seen.append(ctx.scratch(4096).stream.name)
    ctx.stream.launch(ctx.device.compile("", "mine", model=MODEL), block_ns, grid=blocks, block=32)

@gs.workloads.workload
def multiplies(ctx, n):
    a, b, out = (ctx.scratch(4 * n * n).view((n, n)) for _ in range(3))
    gs.mm_out(out, a, b)

class Holder:
    spins = spins

def plain(ctx):
    pass

def fails(device):
    1 / 0
"""


def python_data(kind, **args):
    return {
        "name": "mine", "alone_repeats": 4, "partitions": {"part": 16, "other": "rest"},
        "streams": {"s": {"partition": "part"}},
        "workloads": {"w": {"kind": kind, "stream": "s", "repeats": 5, "args": args}},
    }  # fmt: skip


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module that nobody has imported; returns its name."""

    def write(name, text):
        path = tmp_path / (name.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        written.add(name.partition(".")[0])
        return name

    written = set()
    monkeypatch.syspath_prepend(tmp_path)
    yield write
    for name in [one for one in sys.modules if one.partition(".")[0] in written]:
        del sys.modules[name]


def test_a_function_is_described_in_three_ways_and_back(tmp_path):
    data = python_data("python:pkg.mod:Holder.f", **ARGS)
    toml = """
name = "mine"
alone_repeats = 4
partitions = { part = 16, other = "rest" }
streams.s.partition = "part"
[workloads.w]
kind = "python:pkg.mod:Holder.f"
stream = "s"
repeats = 5
args = { text = "1", yes = true, whole = 1, real = 1.0 }
"""
    (tmp_path / "one.json").write_text(json.dumps(data), "utf-8")
    (tmp_path / "one.toml").write_text(toml, "utf-8")
    experiment = Experiment.from_dict(data)
    assert Experiment.from_file(tmp_path / "one.json") == experiment
    assert Experiment.from_dict(json.loads(json.dumps(experiment.to_dict()))) == experiment
    spec = experiment.workloads["w"]
    assert (spec.module, spec.function) == ("pkg.mod", "Holder.f")
    assert {name: type(value) for name, value in spec.args.items()} == {
        name: type(value) for name, value in ARGS.items()
    }
    from_toml = Experiment.from_file(tmp_path / "one.toml").workloads["w"]
    assert from_toml.args == {name: ARGS[name] for name in ("text", "yes", "whole", "real")}


def test_a_function_is_not_imported_when_it_is_loaded_or_shown(module, tmp_path):
    name = module("booby.trap", "raise SystemExit('imported')")
    data = python_data(f"python:{name}:f", x=1)
    (tmp_path / "one.json").write_text(json.dumps(data), "utf-8")
    experiment = Experiment.from_file(tmp_path / "one.json")
    assert Experiment.from_dict(experiment.to_dict()) == experiment
    for shown in (repr(experiment), str(experiment), experiment.model_dump_json()):
        assert name in shown
    (setting,) = experiment.resolve()
    assert setting.workloads["w"].kind == f"python:{name}:f"
    copy.deepcopy(experiment)
    assert not {"booby", "booby.trap"} & set(sys.modules)
    with pytest.raises(SystemExit, match="imported"):
        gs.run(experiment, gs.open_device("sim:h200", quiet=True))


@pytest.mark.parametrize("reference", ["spins", "Holder.spins"])
def test_a_function_is_imported_and_run(module, reference):
    name = module("mine_spins", MODULE)
    data = python_data(f"python:{name}:{reference}", block_ns=2000, blocks=3)
    run = gs.run(data, gs.open_device("sim:h200", quiet=True))
    trace = run["default"]
    rows = trace.where(kind="kernel").spans.to_pylist()
    assert [row["name"] for row in rows] == ["mine"] * 5
    assert {row["category"] for row in rows} == {"w"}
    assert {row["partition"] for row in rows} == {"part"}
    assert {row["end_ns"] - row["start_ns"] for row in rows} == {2000}
    assert len(trace.where(kind="handle").spans) == 5
    assert run.experiment["workloads"]["w"]["args"] == {"block_ns": 2000, "blocks": 3}
    assert trace.metadata.solo["w"].n == 4
    assert set(sys.modules[name].seen) == {"s", "alone"}


def test_a_function_may_multiply_on_scratch(module):
    name = module("mine_multiplies", MODULE)
    gpu = gs.open_device("sim:h200", quiet=True)
    trace = gs.run(python_data(f"python:{name}:multiplies", n=64), gpu)["default"]
    rows = trace.where(kind="kernel").spans.to_pylist()
    assert {row["name"] for row in rows} == {"gemm_float32_64x64x64"}
    assert gpu.backend.reserved_bytes() == 0, "the handle gave it back"


@pytest.mark.parametrize(
    ("reference", "args", "error", "text"),
    [
        ("no_such_package.mod:f", {}, InvalidExperiment,
         r"workloads\.w\.kind: there is no module 'no_such_package'.*PYTHONPATH"),
        ("mine_errors.no_such:f", {}, InvalidExperiment,
         r"workloads\.w\.kind: there is no module 'mine_errors\.no_such'"),
        ("mine_errors:nothing", {}, InvalidExperiment,
         r"workloads\.w\.kind: module 'mine_errors' has no 'nothing'"),
        ("mine_errors:Holder.nothing", {}, InvalidExperiment, r"has no 'Holder\.nothing'"),
        ("mine_errors:plain", {}, InvalidExperiment,
         r"workloads\.w\.kind: 'plain' of module 'mine_errors' returns NoneType, not a handle"),
        ("mine_errors:Holder", {}, InvalidExperiment, "'Holder'.* is type, not a workload"),
        ("mine_errors:fails", {}, GpuscopeError, r"workloads\.w: 'fails' fails: ZeroDivisionError"),
        ("mine_errors:seen", {}, InvalidExperiment, "is list, not a workload"),
        ("mine_errors:spins", {}, InvalidExperiment,
         r"workloads\.w\.args: .*missing a required argument: 'block_ns'"),
        ("mine_errors:spins", {"block_ns": 1, "other": 2}, InvalidExperiment,
         r"workloads\.w\.args: .*unexpected keyword argument 'other'"),
        ("mine_broken:f", {}, GpuscopeError,
         r"workloads\.w\.kind: importing 'mine_broken' fails: ZeroDivisionError"),
        ("mine_needs:f", {}, GpuscopeError,
         r"workloads\.w\.kind: importing 'mine_needs' fails: ModuleNotFoundError: No module named 'not_installed'"),
    ],
)  # fmt: skip
def test_a_function_that_cannot_be_run_is_named_with_its_path(module, reference, args, error, text):
    module("mine_errors", MODULE)
    module("mine_broken", "1 / 0")
    module("mine_needs", "import not_installed")
    gpu = gs.open_device("sim:h200", quiet=True)
    with pytest.raises(error, match=text) as caught:
        gs.run(python_data(f"python:{reference}", **args), gpu)
    assert (type(caught.value) is InvalidExperiment) is (error is InvalidExperiment)
    assert gpu.registry.held_parts() == {}
    assert gpu.backend.reserved_bytes() == 0


# -- percentages ---------------------------------------------------------------------------
SHARES = """
name = "shares"
alone_repeats = 0
rounding = "down"
partitions = { small = "25 %", load = "rest" }
streams.s = { partition = "small" }
workloads.w = { kind = "spin", duration_us = 10, stream = "s", repeats = 2 }
[settings.down]
[settings.up]
rounding = "up"
[settings.half]
partitions = { small = "50%", load = 8 }
rounding = "nearest"
"""


def test_a_partition_may_be_a_percentage():
    experiment = Experiment.from_toml(SHARES)
    assert experiment.partitions == {"small": "25%", "load": "rest"}
    assert [one.rounding for one in experiment.resolve()] == ["down", "up", "nearest"]
    assert Experiment.from_toml(experiment.to_toml()) == experiment
    assert Experiment.from_dict(json.loads(json.dumps(experiment.to_dict()))) == experiment
    run = gs.run(experiment, gs.open_device("sim:h200", quiet=True))
    granted = {
        name: {part: facts["sm_count"] for part, facts in json.loads(trace.metadata.to_json())["partitions"].items()}
        for name, trace in run.items()
    }  # fmt: skip
    assert granted["down"] == {"small": 32, "load": 100}
    assert granted["up"] == {"small": 36, "load": 96}
    assert granted["half"] == {"small": 68, "load": 8}


def test_a_percentage_that_is_not_exact_says_where_to_give_a_rounding():
    text = SHARES.replace('rounding = "down"', "")
    with pytest.raises(gs.errors.InvalidPartition, match=r"'down'.*25% \(33\).*or in the setting"):
        gs.run(Experiment.from_toml(text), gs.open_device("sim:h200", quiet=True))


def test_a_setting_that_names_no_rounding_is_described_as_before():
    assert "rounding" not in Experiment.from_toml(SHARES).to_dict()["settings"]["down"]


def test_percentages_are_swept(tmp_path):
    gpu = gs.open_device("sim:h200", quiet=True)
    plan = {**Experiment.from_toml(SHARES).to_dict(), "settings": {}}
    table = gs.search.sweep(plan, {"partitions.small": ["25%", "50%"]}, gpu).table
    assert table.column("partitions.small").to_pylist() == ["25%", "50%"]
    assert table.column("error").null_count == 2
