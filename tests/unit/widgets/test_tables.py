"""StreamTable and WorkloadTable without a browser, through their traits and messages."""

from __future__ import annotations

import threading

import pytest
from front_end import pages  # noqa: F401 - a fixture
from hypothesis import given
from hypothesis import strategies as st

import gpuscope as gs
from gpuscope.errors import InvalidExperiment
from gpuscope.experiments.experiment import Experiment
from gpuscope.experiments.setting import StreamSpec
from gpuscope.widgets.tables import StreamTable, WorkloadTable
from gpuscope.workloads.builtin import GemmSpec
from gpuscope.workloads.registry import kinds
from gpuscope.workloads.spec import WorkloadSpec

KINDS = kinds()
EVERY_KIND = {
    "gemm": {"kind": "gemm", "m": 3, "n": 4, "k": 5, "dtype": "float32", "stream": "s",
             "repeats": 7, "warmup": 0, "max_queued": 2, "arrival": "poisson", "rate_hz": 12.5,
             "sm_count_target": 20, "guard": False},
    "copy": {"kind": "copy", "nbytes": 4096, "stream": "s", "background": True},
    "spin": {"kind": "spin", "duration_us": 2.5, "blocks": 3, "stream": "t"},
    "traced": {"kind": "traced_gemm", "m": 64, "n": 64, "k": 64, "stream": "t"},
    "traced copy": {"kind": "traced_copy", "nbytes": 64, "stream": "t", "waits_on": ["gemm"]},
    "mine": {"kind": "python:pkg.mod:Holder.f", "args": {"x": 1, "y": "z"}, "stream": "t"},
}  # fmt: skip


@pytest.fixture
def streams(pages):  # noqa: F811 - the fixture
    table = StreamTable({"s": {"partition": "a"}, "t": {}}, partitions=["a", "b"])
    yield pages(table)
    table.close()


@pytest.fixture
def workloads(pages):  # noqa: F811 - the fixture
    table = WorkloadTable(EVERY_KIND, streams=["s", "t"])
    yield pages(table)
    table.close()


def row(page, name):
    return next(row for row in page.state["rows"] if row["values"]["name"] == name)


def edit(page, row_name, /, **values):
    number = row(page, row_name)["id"]
    for field, value in values.items():
        page.act("edit", id=number, field=field, value=value)


def shown(page, name):
    """The fields that the page shows of a row, by its rule."""
    values = row(page, name)["values"]
    return {
        field["name"]
        for field in page.state["fields"]
        if all(values[other] in allowed for other, allowed in field["when"].items())
    }


# -- both ---------------------------------------------------------------------------------
@pytest.mark.parametrize("table", [StreamTable, WorkloadTable])
def test_every_trait_says_what_it_is(table):
    traits = table.class_traits()
    assert {"noun", "fields", "rows", "error", "disabled"} <= set(traits)
    assert all(traits[name].help for name in ("noun", "fields", "rows", "error", "disabled"))


def test_rows_are_added_named_and_removed(streams):
    streams.act("add")
    assert [one["values"]["name"] for one in streams.state["rows"]] == ["s", "t", "stream 3"]
    edit(streams, "stream 3", name="u", partition="b")
    assert streams.widget.streams["u"] == StreamSpec(partition="b")
    streams.act("remove", id=row(streams, "s")["id"])
    assert list(streams.widget.streams) == ["t", "u"]


def test_without_rows_there_is_an_error(streams):
    streams.widget.remove("s")
    streams.widget.remove("t")
    assert streams.state["error"] == "at least one is needed"
    with pytest.raises(InvalidExperiment, match="at least one"):
        _ = streams.widget.streams


def test_two_rows_of_one_name_and_rows_without_one_are_said(streams):
    edit(streams, "t", name="s")
    first, second = streams.state["rows"]
    assert first["problems"] == {}
    assert second["problems"] == {"name": "two rows are called 's'"}
    with pytest.raises(InvalidExperiment, match="two rows"):
        _ = streams.widget.streams
    streams.act("edit", id=second["id"], field="name", value=" ")
    assert streams.state["rows"][1]["problems"] == {"name": "it needs a name"}
    streams.act("edit", id=second["id"], field="name", value="t")
    assert streams.widget.is_valid


def test_messages_that_mean_nothing_change_nothing(streams):
    before = streams.state
    streams.act("edit", id=99, field="name", value="x")
    streams.act("edit", id=before["rows"][0]["id"], field="nonsense", value="x")
    streams.act("nonsense")
    assert streams.state["rows"] == before["rows"]


def test_foreign_names_are_data(streams):
    name = "<img src=x onerror=alert(1)>"
    edit(streams, "s", name=name)
    assert list(streams.widget.streams) == [name, "t"]


def test_edits_of_several_threads_take_turns(workloads):
    start = threading.Barrier(4)

    def change(name, field):
        start.wait()
        for value in range(1, 40):
            workloads.widget.edit(name, **{field: value})

    jobs = [("gemm", "m"), ("gemm", "repeats"), ("spin", "blocks"), ("copy", "nbytes")]
    threads = [threading.Thread(target=change, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, field in jobs:
        assert row(workloads, name)["values"][field] == 39


# -- streams ------------------------------------------------------------------------------
def test_a_stream_blocks_or_not_only_without_a_partition(streams):
    assert shown(streams, "s") == {"name", "partition", "priority"}
    assert shown(streams, "t") == {"name", "partition", "priority", "blocking"}
    edit(streams, "t", blocking=True, priority=-5)
    assert streams.widget.streams["t"] == StreamSpec(priority=-5, blocking=True)
    edit(streams, "t", partition="b")
    assert streams.widget.streams["t"] == StreamSpec(partition="b", priority=-5)


def test_a_partition_that_is_gone_is_said_beside_the_choice(streams):
    streams.widget.partitions = ["b"]
    assert "'a' is no partition" in row(streams, "s")["problems"]["partition"]
    assert not streams.widget.is_valid
    edit(streams, "s", partition="b")
    assert streams.widget.is_valid
    choices = next(f for f in streams.state["fields"] if f["name"] == "partition")["options"]
    assert choices == [["b", "b"], ["", "whole GPU"]]


@pytest.mark.parametrize(
    ("value", "said"), [(1, "less than"), (-9, "greater than"), ("x", "whole")]
)
def test_a_priority_that_none_has_is_said(streams, value, said):
    edit(streams, "s", priority=value)
    assert said in row(streams, "s")["problems"]["priority"]


def test_streams_start_from_the_partitions():
    table = StreamTable(partitions=["a", "b"])
    assert table.streams == {"a": StreamSpec(partition="a"), "b": StreamSpec(partition="b")}
    assert StreamTable().streams == {"stream 1": StreamSpec()}
    assert StreamTable({"s": StreamSpec(blocking=True)}).streams["s"].blocking
    with pytest.raises(InvalidExperiment, match="'colour' is no field"):
        StreamTable({"s": {"colour": 1}})


# -- workloads ----------------------------------------------------------------------------
def test_what_goes_in_comes_out(workloads):
    expected = Experiment.from_dict(
        {"name": "x", "streams": {"s": {}, "t": {}}, "workloads": EVERY_KIND}
    ).workloads
    assert workloads.widget.is_valid, workloads.widget.said
    assert workloads.widget.workloads == expected
    again = WorkloadTable(workloads.widget.workloads, streams=["s", "t"])
    assert again.workloads == expected


def test_every_kind_that_an_experiment_knows_is_offered_with_its_fields(workloads):
    kinds = next(f for f in workloads.state["fields"] if f["name"] == "kind")["options"]
    assert [kind for kind, _ in kinds] == list(KINDS)
    for name, described in EVERY_KIND.items():
        kind = described["kind"].partition(":")[0]
        own = set(KINDS[kind].model_fields) - set(WorkloadSpec.model_fields)
        own = own - {"kind"} | ({"function"} if kind == "python" else set())
        others = (
            {field for model in KINDS.values() for field in model.model_fields}
            - set(WorkloadSpec.model_fields)
            - own
        )
        assert own <= shown(workloads, name)
        assert not (others - {"kind"}) & shown(workloads, name)


def test_a_new_row_of_every_kind_can_be_run_as_it_stands():
    for kind in KINDS:
        table = WorkloadTable(streams=["s"])
        table.edit("workload 1", kind=kind)
        if kind == "requests":
            assert "say when requests arrive" in table.said  # and they need two others
            continue
        if kind == "python":
            assert "package.module:function" in table.rows[0]["problems"]["function"]
            table.edit("workload 1", function="a.b:c")
        assert table.is_valid, table.said
        table.close()


@pytest.mark.parametrize(
    ("name", "field", "value", "said"),
    [
        ("gemm", "m", 0, "greater than 0"),
        ("gemm", "n", "many", "whole number, but found 'many'"),
        ("gemm", "k", 1.5, "whole number"),
        ("gemm", "dtype", "int8", "'float16'"),
        ("gemm", "sm_count_target", "some", "'auto' or 'off'"),
        ("gemm", "rate_hz", "", "number"),
        ("gemm", "rate_hz", -1, "greater than 0"),
        ("gemm", "max_queued", 65, "less than or equal to 64"),
        ("gemm", "stream", "gone", "is no stream"),
        ("gemm", "repeats", 0, "greater than 0"),
        ("gemm", "warmup", -1, "greater than or equal to 0"),
        ("copy", "nbytes", "", "whole number"),
        ("spin", "duration_us", 1e9, "less than or equal"),
        ("spin", "blocks", None, "whole number"),
        ("traced copy", "waits_on", ["gone"], "no other workload"),
        ("traced copy", "waits_on", ["traced copy"], "no other workload"),
        ("mine", "function", "nothing", "package.module:function"),
        ("mine", "args", "{", "table"),
        ("mine", "args", '{"x": [1]}', "text, a finite number"),
    ],
)
def test_what_an_experiment_refuses_is_said_beside_the_field(workloads, name, field, value, said):
    edit(workloads, name, **{field: value})
    problems = {one["values"]["name"]: one["problems"] for one in workloads.state["rows"]}
    assert said in problems.pop(name)[field]
    assert not any(problems.values())
    with pytest.raises(InvalidExperiment, match=field):
        _ = workloads.widget.workloads


def test_what_a_page_does_not_show_is_not_told(workloads):
    edit(workloads, "gemm", background=True)
    spec = workloads.widget.workloads["gemm"]
    assert (spec.background, spec.arrival, spec.rate_hz) == (True, "back_to_back", None)
    assert not {"repeats", "arrival", "rate_hz"} & shown(workloads, "gemm")
    edit(workloads, "gemm", background=False)
    assert workloads.widget.workloads["gemm"].rate_hz == 12.5
    edit(workloads, "gemm", kind="spin")
    assert workloads.widget.workloads["gemm"].duration_us == 100
    edit(workloads, "gemm", kind="gemm")
    assert workloads.widget.workloads["gemm"].m == 3


def test_who_waits_follows_a_new_name_and_may_choose_any_other(workloads):
    options = row(workloads, "traced copy")["options"]["waits_on"]
    assert [name for name, _ in options] == [name for name in EVERY_KIND if name != "traced copy"]
    edit(workloads, "gemm", name="first")
    assert workloads.widget.workloads["traced copy"].waits_on == ["first"]
    edit(workloads, "first", name="copy")  # taken: nothing follows
    assert row(workloads, "traced copy")["values"]["waits_on"] == ["first"]


def test_a_table_of_background_work_alone_is_valid():
    table = WorkloadTable({"timed": {**EVERY_KIND["copy"]}}, streams=["s"])
    assert table.is_valid
    assert table.workloads["timed"].background


def test_a_new_row_is_at_home_where_none_is_yet():
    streams = StreamTable({"s": {"partition": "a"}}, partitions=["a", "b"])
    streams.add()
    assert streams.streams["stream 2"].partition == "b"
    streams.add()
    assert streams.streams["stream 3"].partition == "a"
    workloads = WorkloadTable({"w": {**EVERY_KIND["copy"]}}, streams=["s", "t"])
    workloads.add()
    assert workloads.workloads["workload 2"].stream == "t"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "gemm",
            "gemm 3×4×5 float32 on s, 7 calls, poisson 12.5 Hz, up to 2 queued, guard off: it escapes",
        ),
        ("copy", "copy 4 KiB on s, in the background"),
        ("spin", "spin 2.5 µs blocks 3 on t, 100 calls back to back"),
        ("traced", "traced gemm 64³ on t, 100 calls back to back"),
        ("traced copy", "traced copy 64 bytes on t, 100 calls back to back, waits on gemm"),
        ("mine", "pkg.mod:Holder.f(x=1, y='z') on t, 100 calls back to back"),
    ],
)
def test_a_row_folds_into_one_line(workloads, name, line):
    assert row(workloads, name)["line"] == line


def test_a_line_of_a_stream(streams):
    edit(streams, "s", priority=-2)
    assert row(streams, "s")["line"] == "in a, priority -2"
    edit(streams, "t", blocking=True)
    assert row(streams, "t")["line"] == "on the whole GPU, blocking"


def test_specs_and_unknown_fields():
    spec = GemmSpec(kind="gemm", m=1, n=2, k=3, stream="s")
    assert WorkloadTable({"w": spec}, streams=["s"]).workloads == {"w": spec}
    with pytest.raises(InvalidExperiment, match="'size' is no field of a workload"):
        WorkloadTable({"w": {"kind": "gemm", "size": 3}})
    table = WorkloadTable({"w": {"kind": "conv"}}, streams=["stream 1"])
    assert "'conv' is no kind of workload" in table.rows[0]["problems"]["kind"]


FIELDS = ["name", "kind", "m", "dtype", "nbytes", "repeats", "arrival", "rate_hz", "stream",
          "waits_on", "guard", "background", "function", "args", "max_queued"]  # fmt: skip
anything = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 70), st.floats(allow_nan=False), st.text(max_size=5),
    st.lists(st.text(max_size=3), max_size=2), st.sampled_from([*KINDS, "a", "b", "fixed", "s"]),
)  # fmt: skip


@pytest.mark.no_cover
@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.sampled_from(FIELDS), anything), max_size=8))
def test_whatever_a_page_sends_is_an_experiment_or_a_problem(edits):
    table = WorkloadTable({"a": {}, "b": {}}, streams=["s"])
    for id_, field, value in edits:
        table._do_edit(id_, field, value)
    if table.is_valid:
        assert set(table.workloads) == set(table.names)
    else:
        assert table.said
        with pytest.raises(InvalidExperiment):
            _ = table.workloads


def test_the_public_names():
    assert gs.widgets.StreamTable is StreamTable
    assert gs.widgets.WorkloadTable is WorkloadTable
