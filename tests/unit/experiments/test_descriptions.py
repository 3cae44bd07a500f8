"""Experiments, profiles and points of sweeps with any value anywhere: errors of ours alone."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpuscope as gs
from gpuscope.comparing.choice import choices
from gpuscope.errors import GpuscopeError, InvalidExperiment, InvalidProfile
from gpuscope.search.point_table import POINTS
from gpuscope.search.sweeps import load_sweep
from gpuscope.simulator.profiles.schema import ProfileFile

EXPERIMENT = {
    "name": "e", "seed": 3, "rounds": 1, "alone_repeats": 1, "partitions": {"a": 8, "b": "rest"},
    "streams": {"s": {"partition": "a", "priority": -1}, "t": {}},
    "workloads": {
        "g": {"kind": "gemm", "m": 8, "n": 8, "k": 8, "stream": "s", "repeats": 2},
        "p": {"kind": "python:a.b:c", "stream": "t", "args": {"x": 1, "y": "z"}, "rate_hz": 2.0,
              "arrival": "fixed", "waits_on": ["g"]},
    },
    "settings": {"one": {"streams": {"s": {}}, "sm_count_target": 8}},
    "colors": {"a": "#000000"},
}  # fmt: skip
PROFILE = json.loads(
    (Path(gs.__file__).parent / "simulator" / "profiles" / "h200.json").read_text()
)
odd = st.one_of(
    st.none(), st.booleans(), st.floats(), st.text(max_size=5), st.binary(max_size=3),
    st.integers(), st.sampled_from(["\ud800", "\0", 10**18, 10**400, 10**4000, -(10**4000), 2**63,
                                    1e300, 5e-324, -0.0, [], {}, [[]], {"\ud800": 1}, {"": 1},
                                    {1: 2}, {10**4000: 1}, (), 1e12, 1e-12, 4096, 65536]),
)  # fmt: skip
PATIENT = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


def tables(value, found):
    """Return every dict and list inside a value."""
    if isinstance(value, dict | list):
        found.append(value)
        for inner in value.values() if isinstance(value, dict) else value:
            tables(inner, found)
    return found


@st.composite
def changed(draw, whole, values=odd):
    """A description in which some values are others, some are gone, and some are new."""
    one = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        table = draw(st.sampled_from(tables(one, [])))
        keys = list(table) if isinstance(table, dict) else list(range(len(table)))
        how = draw(st.sampled_from(["set", "set", "set", "drop", "add"]))
        if how == "add" and isinstance(table, dict):
            table[draw(st.sampled_from(["x", "", "\ud800", "kind", "args", "s", 1]))] = (
                copy.deepcopy(draw(values))
            )
        elif keys and how == "drop":
            del table[draw(st.sampled_from(keys))]
        elif keys:
            table[draw(st.sampled_from(keys))] = copy.deepcopy(draw(values))
    return one


@given(changed(EXPERIMENT))
@settings(suppress_health_check=PATIENT)
def test_any_description_is_an_experiment_or_an_error_of_ours(data):
    try:
        one = gs.experiments.Experiment.from_dict(data)
    except InvalidExperiment:
        return
    assert one.resolve()
    assert gs.experiments.Experiment.from_dict(one.to_dict()) == one
    assert gs.experiments.Experiment.from_toml(one.to_toml()) == one
    json.dumps(one.to_dict())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"\ud800": 1}, r"the experiment: '\\ud800' is not valid Unicode"),
        ({"streams": {"s": {"\ud800": 1}}}, r"streams.s: '\\ud800' is not valid Unicode"),
        ({"seed": 10**5000}, "seed: should be 9e"), ({"seed": {10**5000: 1}}, "seed: should be"),
    ],
)  # fmt: skip
def test_what_no_file_can_hold_is_refused_by_its_place(more, words):
    with pytest.raises(InvalidExperiment, match=words):
        gs.experiments.Experiment.from_dict({**EXPERIMENT, **more})


@pytest.mark.parametrize("name", ["a\0.toml", "a\ud800.toml", "x" * 300])
def test_impossible_names_of_files_are_errors_of_ours(name, tmp_path):
    with pytest.raises(GpuscopeError, match="cannot read experiment"):
        gs.experiments.Experiment.from_file(tmp_path / name)


def test_a_file_that_cannot_be_read_says_what_to_do(tmp_path):
    with pytest.raises(GpuscopeError, match="Check the path") as missing:
        gs.experiments.Experiment.from_file(tmp_path / "nothing.toml")
    assert "UTF-8" not in str(missing.value)
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(GpuscopeError, match="Save it as UTF-8") as latin:
        gs.experiments.Experiment.from_file(tmp_path / "latin.toml")
    assert "Check the path" not in str(latin.value)


# -- profiles ---------------------------------------------------------------------------------
numbers = st.sampled_from([
    0, 1, -1, 3, 2**31, 2**62, 10**15, 10**30, 10**400, 1e-12, 1e12, 1e300, 5e-324, 0.5, 1000.0,
    4096, 65536, "x", None, [], {}, True,
])  # fmt: skip


@given(changed(PROFILE, numbers))
@settings(max_examples=40, suppress_health_check=PATIENT)
def test_a_profile_with_any_number_is_refused_or_can_be_used(tmp_path, data):
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps(data))
    try:
        gpu = gs.open_device(f"sim:{path}", quiet=True)
    except InvalidProfile:
        return
    try:
        with gpu.carve({"a": 8, "b": "rest"}, rounding="nearest") as parts:
            stream = parts["a"].create_stream()
            for dtype in ("float16", "float64"):
                gs.Gemm(parts["a"], m=64, n=48, k=32, dtype=dtype).execute(stream=stream)
            gpu.to_host(gpu.asarray(np.ones(8)))
            stream.synchronize()
    except GpuscopeError:
        pass
    finally:
        gpu.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quanta": 10**9}, "device.quanta"), ({"quanta": 4096}, "more than any GPU has"),
        ({"quantum_sm_count": 10**30}, "device.quantum_sm_count"),
        ({"remainder_sm_count": 10**200}, "device.remainder_sm_count"),
        ({"remainder_sm_count": 10**400}, "more than 300 digits"),
        ({"memory_bytes": 10**30}, "device.memory_bytes"),
    ],
)  # fmt: skip
def test_a_gpu_of_no_size_that_there_is_is_refused(changes, words):
    data = {**PROFILE, "device": {**PROFILE["device"], **changes}}
    with pytest.raises(InvalidProfile, match=words):
        ProfileFile.parse(json.dumps(data), "it")


# -- points of sweeps -------------------------------------------------------------------------
FORMER = Path(__file__).resolve().parents[2] / "data" / "before" / "sweep"


@pytest.fixture(scope="module")
def former():
    """Points as a former version kept them."""
    with pa.OSFile(str(next(FORMER.glob("point-*.arrows")))) as file:
        reader = pa.ipc.open_stream(file)
        return pa.Table.from_batches([reader.read_next_batch()], reader.schema)


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """Lines of points: what was asked for, then a point each."""
    folder = tmp_path_factory.mktemp("swept")
    spin = {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2}
    gs.search.sweep(
        {"name": "one", "alone_repeats": 0, "partitions": {"a": 8}, "streams": {"s": {}},
         "workloads": {"w": spin}},
        {"partitions.a": [8, 16]}, gs.open_device("sim:h200", quiet=True), path=folder,
    )  # fmt: skip
    return [json.loads(line) for line in (folder / POINTS).read_text("utf-8").splitlines()]


def loads(folder):
    try:
        with warnings.catch_warnings(action="ignore"):  # of lines that cannot be read
            result = load_sweep(folder)
        assert result.rows()
        choices(result)
    except GpuscopeError:
        return
    assert repr(result)
    assert result.note


def write(folder, lines):
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / POINTS).write_text(text, "utf-8")


plain = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.just([]), st.just({}),
                  st.just(2**70), st.just([2**70]), st.just([1, "x"]), st.just(-1))  # fmt: skip


@given(data=st.data())
@settings(max_examples=300, suppress_health_check=PATIENT)
def test_any_values_in_lines_of_points_are_read_or_an_error_of_ours(lines, tmp_path, data):
    write(tmp_path, data.draw(changed(lines, plain)))
    loads(tmp_path)


@given(data=st.data())
@settings(max_examples=150, suppress_health_check=PATIENT)
def test_any_facts_in_former_points_are_read_or_an_error_of_ours(former, tmp_path, data):
    (key,) = former.schema.metadata
    said = json.loads(former.schema.metadata[key])
    facts = json.dumps(data.draw(changed(said, plain))).encode()
    pq.write_table(former.replace_schema_metadata({key: facts}), tmp_path / "point-0000.parquet")
    loads(tmp_path)


def test_points_without_a_number_are_not_left_out_in_silence(former, lines, tmp_path):
    at = former.schema.get_field_index("number")
    numbers = pa.nulls(len(former), pa.int64())
    pq.write_table(former.set_column(at, "number", numbers), tmp_path / "point-0.parquet")
    with pytest.raises(GpuscopeError, match="rows have no number"):
        load_sweep(tmp_path)
    (tmp_path / "point-0.parquet").unlink()
    asked, first, second = copy.deepcopy(lines)
    del second["point"]["number"]
    write(tmp_path, [asked, first, second])
    with pytest.warns(UserWarning, match="1 of 3 lines .* cannot be read"):
        assert load_sweep(tmp_path).unmeasured == 1


@given(name=st.integers(0, 200), how=st.sampled_from(["drop", "text", "list", "twice", "null"]))
@settings(max_examples=100, suppress_health_check=PATIENT)
def test_any_columns_in_former_points_are_read_or_an_error_of_ours(former, tmp_path, name, how):
    at = name % former.num_columns
    column = former.field(at).name
    rows = len(former)
    if how == "drop":
        table = former.drop_columns([column])
    elif how == "twice":
        table = former.append_column(column, pa.nulls(rows))
    else:
        value = {"text": pa.array(["x"] * rows), "list": pa.array([[1]] * rows),
                 "null": pa.nulls(rows)}[how]  # fmt: skip
        table = former.set_column(at, column, value)
    pq.write_table(table, tmp_path / "point-0000.parquet")
    loads(tmp_path)


def test_points_of_two_sweeps_in_one_folder_are_said(former, lines, tmp_path):
    other = copy.deepcopy(lines)
    other[0]["asked"]["experiment"] = {"name": "other"}
    write(tmp_path, [*lines, *other])
    with pytest.raises(GpuscopeError, match="points of several sweeps"):
        load_sweep(tmp_path)
    write(tmp_path, lines)
    pq.write_table(former, tmp_path / "point-0.parquet")
    with pytest.raises(GpuscopeError, match="points of several sweeps"):
        load_sweep(tmp_path)
