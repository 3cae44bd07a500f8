"""Traces: building, filtering, joining, and files."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gpuscope import load_trace
from gpuscope._checks import closest
from gpuscope.errors import GpuscopeError, MissingEvidence, TraceFormatError
from gpuscope.formats.tracks import layout, names
from gpuscope.timeline.labels import partition_label
from gpuscope.trace import Trace, save_trace, schema
from gpuscope.trace.facts import DeviceFacts
from gpuscope.trace.metadata import TraceMetadata


def spans(count: int = 3, **columns: list[Any]) -> dict[str, list[Any]]:
    return {
        "id": list(range(1, count + 1)),
        "kind": ["kernel"] * count,
        "name": [f"k{index}" for index in range(count)],
        "start_ns": [10 * index for index in range(count)],
        "source": ["simulated"] * count,
        **columns,
    }


def edges(*rows: tuple[int, int, str]) -> dict[str, list[Any]]:
    return {
        "from": [row[0] for row in rows],
        "to": [row[1] for row in rows],
        "kind": [row[2] for row in rows],
    }


def same(one: Trace, other: Trace) -> None:
    """Same rows, types and metadata, whatever the chunks and dictionaries."""
    assert one.spans.schema.names == other.spans.schema.names
    assert one.spans.to_pydict() == other.spans.to_pydict()
    assert one.edges.to_pydict() == other.edges.to_pydict()
    assert one.metadata.to_json() == other.metadata.to_json()


# -- from_columns -------------------------------------------------------------------------
def test_every_column_is_there_and_absent_ones_cost_nothing():
    trace = Trace.from_columns(spans(stream=[None, None, None], end_ns=[11, None, 33]))
    assert trace.spans.column_names == list(schema.SPAN_TYPES)
    for name in ("parent", "sm", "launch_config", "stream"):
        assert trace.spans.column(name).type == pa.null()
        assert trace.spans.column(name).nbytes == 0
        assert trace.spans.column(name).null_count == 3
    for name in ("id", "kind", "start_ns", "end_ns"):
        assert trace.spans.column(name).type == schema.SPAN_TYPES[name]
    assert trace.edges.num_rows == 0
    assert trace.edges.column_names == ["from", "to", "kind"]


def test_no_columns_give_an_empty_trace():
    trace = Trace.from_columns({})
    assert len(trace) == 0
    assert trace.spans.column_names == list(schema.SPAN_TYPES)
    assert trace.kind_counts() == {}
    assert len(trace.array("start_ns")) == 0
    assert trace.texts("kind") == []
    assert len(trace.where(kind="kernel", stream=(1, None), end_ns=None)) == 0
    assert "nothing" in repr(trace)


@pytest.mark.parametrize(
    ("columns", "edge_columns", "fact"),
    [
        (spans(colour=[1, 2, 3]), None, "unknown span columns.*colour"),
        ({"id": [1], "kind": ["kernel"]}, None, "missing span columns.*name.*source.*start_ns"),
        (spans(end_ns=[1, 2]), None, "span columns have different lengths"),
        (spans(), {"frm": [1], "to": [2], "kind": ["launch"]}, "unknown edge columns.*frm"),
        (spans(), {"from": [1], "to": [2]}, "missing edge columns.*kind"),
        (spans(), {"from": [1], "to": [2, 3], "kind": ["launch"]}, "edge columns have different"),
    ],
)
def test_bad_columns(columns, edge_columns, fact):
    with pytest.raises(ValueError, match=fact):
        Trace.from_columns(columns, edge_columns)


# -- array and texts ----------------------------------------------------------------------
def test_array_is_a_view():
    trace = Trace.from_columns(spans(end_ns=[11, 22, 33]))
    array = trace.array("end_ns")
    assert array.tolist() == [11, 22, 33]
    assert array.dtype == np.int64
    (address,) = {chunk.buffers()[1].address for chunk in trace.spans.column("end_ns").chunks}
    assert array.__array_interface__["data"][0] == address
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 7


def test_array_with_nulls_needs_a_fill():
    trace = Trace.from_columns(spans(end_ns=[11, None, 33]))
    with pytest.raises(MissingEvidence, match="'end_ns' has 1 of 3"):
        trace.array("end_ns")
    assert trace.array("end_ns", fill=-1).tolist() == [11, -1, 33]
    assert trace.array("stream", fill=0).tolist() == [0, 0, 0]
    assert trace.array("start_ns", fill=99).tolist() == [0, 10, 20]


def test_array_of_big_times_is_exact():
    start = 1_700_000_000_123_456_789
    trace = Trace.from_columns(spans(1, start_ns=[start], end_ns=[start + 1]))
    assert trace.array("start_ns")[0] == start
    assert (trace.array("end_ns", fill=0) - trace.array("start_ns")).tolist() == [1]


def test_array_of_a_joined_trace():
    joined = Trace.concat([Trace.from_columns(spans(2)), Trace.from_columns(spans(2))])
    assert joined.where(id=(2, 5)).array("start_ns").tolist() == [10, 10]


def test_texts():
    trace = Trace.from_columns(spans(partition=["a", None, "a"]))
    assert trace.texts("partition") == ["a", None, "a"]
    assert trace.texts("category") == [None] * 3


# -- where --------------------------------------------------------------------------------
@pytest.fixture
def mixed() -> Trace:
    return Trace.from_columns(
        {
            "id": [1, 2, 3, 4, 5],
            "kind": ["kernel", "kernel", "memcpy", "handle", "kernel"],
            "name": ["a", "b", "c", "d", "e"],
            "start_ns": [0, 10, 20, 30, 40],
            "source": ["simulated"] * 5,
            "stream": [1, 2, 1, None, None],
            "partition": ["p", None, "q", None, "q"],
        },
        edges((1, 2, "event wait"), (2, 3, "launch"), (3, 5, "launch"), (4, 5, "host wait")),
    )


@pytest.mark.parametrize(
    ("equal", "ids"),
    [
        ({}, [1, 2, 3, 4, 5]),
        ({"kind": "kernel"}, [1, 2, 5]),
        ({"kind": "no such"}, []),
        ({"kind": ("kernel", "handle")}, [1, 2, 4, 5]),
        ({"kind": ()}, []),
        ({"stream": 1}, [1, 3]),
        ({"stream": (1, 2)}, [1, 2, 3]),
        ({"stream": None}, [4, 5]),
        ({"stream": (2, None)}, [2, 4, 5]),
        ({"partition": None}, [2, 4]),
        ({"partition": ("q", None)}, [2, 3, 4, 5]),
        ({"partition": "q", "kind": "kernel"}, [5]),
        ({"partition": "p", "stream": 2}, []),
        ({"stream": None, "partition": None}, [4]),
        ({"category": None}, [1, 2, 3, 4, 5]),
        ({"category": "x"}, []),
        ({"category": ("x", None)}, [1, 2, 3, 4, 5]),
        ({"category": None, "kind": "kernel"}, [1, 2, 5]),
    ],
)
def test_where(mixed, equal, ids):
    assert mixed.where(**equal).array("id").tolist() == ids


def test_where_composes_with_masks(mixed):
    late = mixed.array("start_ns") >= 10
    assert mixed.where(late).array("id").tolist() == [2, 3, 4, 5]
    assert mixed.where(late, kind="kernel").array("id").tolist() == [2, 5]
    assert mixed.where(late.tolist(), kind="kernel", stream=None).array("id").tolist() == [5]
    chained = mixed.where(kind="kernel").where(stream=None)
    assert chained.array("id").tolist() == [5]
    assert mixed.where(np.zeros(5, bool)).array("id").tolist() == []


def test_where_changes_nothing_in_place(mixed):
    mixed.where(kind="kernel")
    assert len(mixed) == 5
    assert mixed.edges.num_rows == 4


def test_edges_follow_the_rows(mixed):
    kernels = mixed.where(kind="kernel")
    assert kernels.edges.to_pydict() == {"from": [1], "to": [2], "kind": ["event wait"]}
    assert mixed.where(stream=1).edges.num_rows == 0
    assert mixed.where(kind="no such").edges.num_rows == 0
    assert mixed.where(id=(3, 4, 5)).edges.to_pydict() == {
        "from": [3, 4],
        "to": [5, 5],
        "kind": ["launch", "host wait"],
    }


# -- concat -------------------------------------------------------------------------------
def test_concat_renumbers_ids_parents_and_edges():
    one = Trace.from_columns(spans(2, id=[1, 5], parent=[None, 1]), edges((1, 5, "launch")))
    two = Trace.from_columns(
        spans(2, id=[0, 3], parent=[3, None], stream=[7, 8]), edges((3, 0, "event wait"))
    )
    joined = Trace.concat([one, two, one])
    ids = joined.array("id").tolist()
    assert len(set(ids)) == 6
    # What pointed to what still does: compare by position.
    position = {row: index for index, row in enumerate(ids)}
    parents = [None if row is None else position[row] for row in joined.texts("parent")]
    assert parents == [None, 0, 3, None, None, 4]
    found = joined.edges.to_pydict()
    assert [position[row] for row in found["from"]] == [0, 3, 4]
    assert [position[row] for row in found["to"]] == [1, 2, 5]
    assert found["kind"] == ["launch", "event wait", "launch"]
    assert joined.texts("stream") == [None, None, 7, 8, None, None]
    assert joined.texts("name") == ["k0", "k1"] * 3
    assert joined.spans.column("color").type == pa.null()


def test_concat_of_one_and_of_empty_ones():
    trace = Trace.from_columns(spans(), edges((1, 2, "launch")))
    same(Trace.concat([trace]), trace)
    empty = Trace.from_columns({})
    assert Trace.concat([empty, trace, empty]).texts("name") == ["k0", "k1", "k2"]
    assert Trace.concat([empty, trace, empty]).edges.num_rows == 1
    assert len(Trace.concat([empty, empty])) == 0
    gone = trace.where(kind="no such")
    assert len(Trace.concat([gone, trace])) == 3


def test_concat_merges_metadata():
    one = TraceMetadata(
        time_base="virtual",
        devices={"sim:h200": {"name": "H200"}},
        partitions={"a": {"asked": 16, "granted": 16}},
        streams={"1": {"name": "s"}},
        windows_ns=[[0, 5]],
        counts={"received": 3, "dropped": 1},
        notes=("same", "one"),
        setting="no partition",
    )
    two = TraceMetadata(
        time_base="virtual",
        simulated=True,
        devices={"cuda:0": {"name": "real"}},
        partitions={"b": {"asked": "rest", "granted": 116}},
        streams={"2": {"name": "t"}},
        windows_ns=[[7, 9]],
        counts={"received": 4, "unmatched": 2},
        notes=("same", "two"),
        setting="16 | rest",
    )
    merged = Trace.concat(
        [Trace.from_columns(spans(), None, one), Trace.from_columns(spans(), None, two)]
    ).metadata
    assert set(merged.devices) == {"sim:h200", "cuda:0"}
    assert set(merged.partitions) == {"a", "b"}
    assert set(merged.streams) == {"1", "2"}
    assert merged.windows_ns == ((0, 5), (7, 9))
    assert merged.counts == {"received": 7, "dropped": 1, "unmatched": 2}
    assert merged.notes == ("same", "one", "two")
    assert merged.simulated
    assert merged.setting == "no partition"


def test_concat_refuses_nothing_and_mixed_clocks():
    with pytest.raises(ValueError, match="no trace"):
        Trace.concat([])
    with pytest.raises(ValueError, match="different time bases"):
        Trace.concat(
            [
                Trace.from_columns(spans(), None, TraceMetadata(time_base="unix")),
                Trace.from_columns(spans(), None, TraceMetadata(time_base="virtual")),
            ]
        )


def test_with_metadata_leaves_the_rows():
    trace = Trace.from_columns(spans())
    changed = trace.with_metadata(setting="x")
    assert changed.metadata.setting == "x"
    assert trace.metadata.setting is None
    assert changed.spans is trace.spans


# -- words --------------------------------------------------------------------------------
def test_provenance_says_simulated_or_measured():
    device = {"cuda:0": {"name": "NVIDIA H200"}}
    trace = Trace.from_columns(
        spans(source=["events", "nvtx", "events"]), None, TraceMetadata(devices=device)
    )
    assert trace.provenance == "measured on NVIDIA H200; kernel times from: events"
    assert "SIMULATED" in trace.with_metadata(simulated=True).provenance


def test_html_escapes_names():
    trace = Trace.from_columns(
        spans(kind=["<script>"] * 3),
        None,
        TraceMetadata(devices={"x": {"name": "<img src=x>"}}),
    )
    html = trace._repr_html_()
    assert "<script>" not in html
    assert "<img" not in html
    assert "&lt;script&gt;" in html


# -- files --------------------------------------------------------------------------------
def test_round_trip(tmp_path, mixed):
    trace = mixed.with_metadata(
        simulated=True, streams={"1": {"name": "s<é>"}}, windows_ns=[[0, 50]], setting="x"
    )
    target = tmp_path / "run.parquet"
    assert save_trace(trace, target) == target
    back = load_trace(str(target))
    same(trace, back)
    assert back.spans.column("kind").type == schema.SPAN_TYPES["kind"]
    assert back.spans.column("graph").type == pa.null()
    assert [file.name for file in tmp_path.iterdir()] == ["run.parquet"]


@pytest.mark.parametrize("count", [0, 1, 4])
@pytest.mark.parametrize("links", [0, 1, 9])
def test_round_trip_with_more_or_fewer_edges_than_spans(tmp_path, count, links):
    trace = Trace.from_columns(spans(count), edges(*[(1, 1, "launch")] * links))
    back = load_trace(save_trace(trace, tmp_path / "t.parquet"))
    same(trace, back)
    assert (len(back), back.edges.num_rows) == (count, links)


def test_round_trip_of_the_empty_trace(tmp_path):
    trace = Trace.from_columns({})
    same(load_trace(save_trace(trace, tmp_path / "t.parquet")), trace)


def test_round_trip_of_filtered_and_joined_traces(tmp_path, mixed):
    for trace in (mixed.where(kind="kernel"), Trace.concat([mixed, mixed.where(stream=1), mixed])):
        back = load_trace(save_trace(trace, tmp_path / "t.parquet"))
        same(trace, back)
        same(back.where(kind="kernel"), trace.where(kind="kernel"))
        same(Trace.concat([back, back]), Trace.concat([trace, trace]))


def test_saving_again_replaces(tmp_path, mixed):
    target = tmp_path / "t.parquet"
    save_trace(mixed, target)
    save_trace(mixed.where(kind="handle"), target)
    assert len(load_trace(target)) == 1


def test_a_folder_name_adds_no_column(tmp_path, mixed):
    folder = tmp_path / "stream=9" / "zebra=1"
    folder.mkdir(parents=True)
    same(load_trace(save_trace(mixed, folder / "t.parquet")), mixed)


int64 = st.integers(0, 2**63 - 1)
times = st.integers(0, schema.LATEST_NS - 1)
VALUES = {
    pa.int64(): int64,
    pa.int16(): st.integers(0, 2**15 - 1),
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.float64(): st.floats(allow_nan=False),
}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@st.composite
def traces(draw) -> Trace:
    count = draw(st.integers(0, 6))
    columns: dict[str, list[Any]] = {
        "id": list(range(count)),
        "start_ns": draw(st.lists(times, min_size=count, max_size=count)),
    }
    for name in ("kind", "name", "source"):
        columns[name] = draw(st.lists(texts, min_size=count, max_size=count))
    optional = sorted(set(schema.SPAN_TYPES) - set(columns))
    for name in draw(st.lists(st.sampled_from(optional), unique=True, max_size=8)):
        value = VALUES.get(schema.SPAN_TYPES[name], texts)
        if name.endswith("_ns"):
            value = times
        columns[name] = draw(st.lists(st.none() | value, min_size=count, max_size=count))
    if "end_ns" in columns:
        both = zip(columns["start_ns"], columns["end_ns"], strict=True)
        columns["end_ns"] = [end if end is None else max(start, end) for start, end in both]
    rows = draw(st.lists(st.tuples(int64, int64, texts), max_size=9))
    metadata = TraceMetadata(
        time_base=draw(st.sampled_from(["unix", "virtual", "relative"])),
        notes=tuple(draw(st.lists(texts, max_size=2))),
        windows_ns=draw(st.lists(st.tuples(times, times).map(list), max_size=2)),
        streams=draw(
            st.dictionaries(
                int64.map(str),
                st.fixed_dictionaries(
                    {"name": texts}, optional={"partition": texts, "mine": texts}
                ),
                max_size=2,
            )
        ),
    )
    return Trace.from_columns(columns, edges(*rows), metadata)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(trace=traces())
def test_round_trip_of_any_trace(tmp_path, trace):
    back = load_trace(save_trace(trace, tmp_path / "t.parquet"))
    same(trace, back)
    assert back.spans.schema.equals(trace.spans.schema)


@settings(deadline=None)
@given(
    trace=traces(),
    kinds=st.lists(st.none() | texts, max_size=3).map(tuple),
    data=st.data(),
)
def test_where_agrees_with_a_plain_filter(trace, kinds, data):
    column = data.draw(st.sampled_from(["kind", "name", "partition", "status"]))
    values = trace.texts(column)
    present = st.lists(st.sampled_from(values), max_size=2) if values else st.just([])
    wanted = (*kinds, *data.draw(present))
    expected = [
        row for row, value in zip(trace.texts("id"), values, strict=True) if value in wanted
    ]
    if column == "kind" and any(
        closest(kind, (*schema.KINDS, *filter(None, values))) for kind in kinds
    ):
        assume(set(kinds) <= {*schema.KINDS, *values})  # else it is refused as a slip of the pen
    assert trace.where(**{column: wanted}).texts("id") == expected


# -- files that are wrong -----------------------------------------------------------------
@pytest.fixture
def saved(tmp_path, mixed) -> Path:
    return save_trace(mixed, tmp_path / "good.parquet")


def rewritten(saved: Path, **facts: bytes | None) -> Path:
    """The same file with other key-value metadata."""
    table = pq.read_table(saved)
    kept = dict(table.schema.metadata)
    for name, value in facts.items():
        key = f"gpuscope.{name}".encode()
        if value is None:
            del kept[key]
        else:
            kept[key] = value
    target = saved.with_name("other.parquet")
    pq.write_table(table.replace_schema_metadata(kept), target)
    return target


@pytest.mark.parametrize("version", [b"3", b"0", b"1.5", b"one", b"\xff"])
def test_another_schema_version(saved, version):
    with pytest.raises(TraceFormatError, match=r"'other\.parquet' has schema version .* version 2"):
        load_trace(rewritten(saved, schema_version=version))


def test_a_file_of_this_version_rewritten_still_loads(saved, mixed):
    same(load_trace(rewritten(saved)), mixed)


@pytest.mark.parametrize(
    "facts",
    [
        {"metadata": None},
        {"metadata": b"{"},
        {"metadata": b"[1]"},
        {"metadata": b'{"no_such_field": 1}'},
        {"edges": b"many"},
        {"edges": b"bWFueQ=="},
        {"schema_version": b"1"},
        {"schema_version": b"1", "spans": b"many"},
    ],
)
def test_a_trace_without_its_facts(saved, facts):
    with pytest.raises(TraceFormatError, match="does not hold one"):
        load_trace(rewritten(saved, **facts))


@pytest.mark.parametrize("change", ["drop", "retype"])
def test_a_trace_without_its_columns(saved, change):
    table = pq.read_table(saved)
    facts = table.schema.metadata
    if change == "drop":
        table = table.drop_columns(["start_ns"])
    else:
        words = pa.array(["soon"] * table.num_rows)
        table = table.set_column(table.schema.get_field_index("start_ns"), "start_ns", words)
    pq.write_table(table.replace_schema_metadata(facts), saved)
    with pytest.raises(TraceFormatError, match="does not hold one"):
        load_trace(saved)


def test_foreign_parquet(tmp_path):
    target = tmp_path / "people.parquet"
    pq.write_table(pa.table({"id": [1], "name": ["x"]}), target)
    with pytest.raises(TraceFormatError, match="not a gpuscope trace"):
        load_trace(target)


@pytest.mark.parametrize("kept", [0, 1, 3, 4, 100, 0.5, 0.9, -1])
def test_truncated(saved, kept):
    whole = saved.read_bytes()
    size = int(kept * len(whole)) if isinstance(kept, float) else kept % len(whole)
    assert size < len(whole)
    saved.write_bytes(whole[:size])
    with pytest.raises(TraceFormatError, match="truncated"):
        load_trace(saved)


@pytest.mark.parametrize("content", [b"hello", b"id,name\n1,x\n" * 99, b"PAR1" * 9, b"\0" * 64])
def test_not_parquet(tmp_path, content):
    target = tmp_path / "notes.txt"
    target.write_bytes(content)
    with pytest.raises(TraceFormatError, match=r"'notes\.txt' is no readable trace"):
        load_trace(target)


def test_missing_file(tmp_path):
    with pytest.raises(GpuscopeError, match=r"no file 'gone\.parquet'") as caught:
        load_trace(tmp_path / "gone.parquet")
    assert not isinstance(caught.value, TraceFormatError)


@pytest.mark.parametrize("traces_inside", [0, 1, 2])
def test_a_folder_is_never_joined(tmp_path, mixed, traces_inside):
    for number in range(traces_inside):
        save_trace(mixed, tmp_path / f"{number}.parquet")
    with pytest.raises(GpuscopeError, match="is a folder") as caught:
        load_trace(tmp_path)
    assert not isinstance(caught.value, TraceFormatError)


def test_no_permission(saved, monkeypatch):
    def refuse(path: bytes) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(pa, "OSFile", refuse)
    with pytest.raises(GpuscopeError, match="cannot be read: Permission denied") as caught:
        load_trace(saved)
    assert not isinstance(caught.value, TraceFormatError)


def test_threads_of_arrows_are_handed_nothing_of_pythons(saved, monkeypatch):
    opened: list[Any] = []
    file = pq.ParquetFile
    monkeypatch.setattr(
        pq, "ParquetFile", lambda where, **options: opened.append(where) or file(where, **options)
    )
    load_trace(saved)
    assert [type(each) for each in opened] == [pa.OSFile, pa.BufferReader]


# -- writing that fails -------------------------------------------------------------------
def full_disk(table: Any, where: Path, **options: Any) -> None:
    Path(where).write_bytes(b"PAR1 and half of the r")
    raise OSError(errno.ENOSPC, "No space left on device")


def interrupted(table: Any, where: Path, **options: Any) -> None:
    Path(where).write_bytes(b"PAR1 and half of the r")
    raise KeyboardInterrupt


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize(
    ("writer", "error"), [(full_disk, GpuscopeError), (interrupted, KeyboardInterrupt)]
)
def test_a_failed_write_leaves_what_was_there(
    tmp_path, mixed, monkeypatch, existing, writer, error
):
    target = tmp_path / "t.parquet"
    if existing:
        save_trace(mixed, target)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    monkeypatch.setattr(pq, "write_table", writer)
    with pytest.raises(error) as caught:
        save_trace(mixed.where(stream=1), target)
    if error is GpuscopeError:
        assert "'t.parquet'" in str(caught.value)
        assert "No space left on device" in str(caught.value)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_disk_too_full_even_for_the_last_bytes(tmp_path, mixed, monkeypatch):
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gpuscope._files.os.fsync", fail)
    with pytest.raises(GpuscopeError, match="No space left"):
        save_trace(mixed, tmp_path / "t.parquet")
    assert list(tmp_path.iterdir()) == []


def test_saving_into_no_folder(tmp_path, mixed):
    with pytest.raises(GpuscopeError, match=r"cannot write 't\.parquet'.*No such file"):
        save_trace(mixed, tmp_path / "gone" / "t.parquet")
    assert list(tmp_path.iterdir()) == []


def test_saving_over_a_folder(tmp_path, mixed):
    target = tmp_path / "t.parquet"
    target.mkdir()
    with pytest.raises(GpuscopeError, match=r"cannot write .*Is a directory"):
        save_trace(mixed, target)
    assert list(tmp_path.iterdir()) == [target]


# -- the door -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("columns", "fact"),
    [
        ({"start_ns": [0, -1, 2]}, "start_ns holds -1"),
        ({"start_ns": [0, 1, 2**63 - 1]}, f"start_ns holds {2**63 - 1}"),
        ({"end_ns": [5, 15, 19]}, "1 spans end before they begin"),
        ({"end_ns": [5, None, -(2**63)]}, "end_ns holds -9223372036854775808"),
        ({"queued_ns": [None, -1, 2]}, "queued_ns holds -1"),
        ({"stream": [-1, 1, None]}, "stream holds -1"),
        ({"sm": [-2, 1, None]}, "sm holds -2"),
        ({"id": [1, 1, 2]}, "two spans have the same id"),
        ({"id": [1, 2, 2**63 - 1]}, "id holds"),
        ({"name": ["a", None, "b"]}, "spans without name"),
        ({"kind": [None] * 3}, "spans without kind"),
    ],
)
def test_what_no_trace_holds_is_refused(columns, fact):
    with pytest.raises(TraceFormatError, match=fact):
        Trace.from_columns(spans(**columns))


@pytest.mark.parametrize("row", [(-1, 2, "launch"), (1, None, "launch"), (1, 2, None)])
def test_edges_from_and_to_nothing_are_refused(row):
    with pytest.raises(TraceFormatError, match="edge"):
        Trace.from_columns(spans(), edges(row))


@pytest.mark.parametrize(
    ("facts", "fact"),
    [
        ({"streams": {"7": {"partition": "p"}}}, "missing required field `name`"),
        ({"streams": {"seven": {"name": "s"}}}, "no stream has the number 'seven'"),
        ({"windows_ns": [[0, 2**63]]}, "windows_ns"),
        ({"partitions": {"p": {"sm_ids": [-1]}}}, "sm_ids"),
        ({"devices": {"cuda:0": {"sm_count": 10**9}}}, "sm_count"),
    ],
)
def test_metadata_that_no_trace_has_is_refused(facts, fact):
    with pytest.raises(TraceFormatError, match=fact):
        Trace.from_columns(spans(), None, TraceMetadata(**facts))


def test_a_lone_surrogate_in_the_metadata_is_replaced(tmp_path):
    trace = Trace.from_columns(spans(), None, TraceMetadata(streams={"7": {"name": "a\ud800b"}}))
    assert trace.stream_name(7) == "a\ufffdb"
    assert TraceMetadata.from_json('{"setting": "\\ud800 \\\\ud800 \\ud83d\\ude00"}').setting == (
        "\ufffd \\ud800 😀"
    )
    same(load_trace(save_trace(trace, tmp_path / "t.parquet")), trace)


# -- other readers ------------------------------------------------------------------------
def test_pandas_reads_whole_ns_from_a_saved_trace(tmp_path):
    pandas = pytest.importorskip("pandas")
    start = 1_700_000_000_123_456_789
    trace = Trace.from_columns(
        spans(start_ns=[start, start + 1, start + 2], end_ns=[start + 3, None, start + 5],
              queued_ns=[None, None, start - 1], sm=[None, 7, 131]),
        edges((1, 2, "launch"), (2, 3, "launch")),
    )  # fmt: skip
    frame = pandas.read_parquet(save_trace(trace, tmp_path / "t.parquet"))
    assert len(frame) == 3, "edges are no rows"
    assert frame["start_ns"].dtype == np.int64
    assert frame["start_ns"].tolist() == [start, start + 1, start + 2]
    assert frame["end_ns"].dropna().tolist() == [start + 3, start + 5]
    assert frame["queued_ns"].dropna().tolist() == [start - 1]
    assert frame["end_ns"].isna().tolist() == [False, True, False]
    assert frame["sm"].dropna().tolist() == [7, 131]
    assert pq.read_table(tmp_path / "t.parquet").column("start_ns").to_pylist()[0] == start


def of_the_layout_before(path, mixed, said=None):
    """Write a trace whose edges are rows of their own behind the spans."""
    count, links = len(mixed), mixed.edges.num_rows
    columns = {}
    for name, kind in schema.SPAN_TYPES.items():
        columns[name] = pa.chunked_array([
            *mixed.spans.column(name).cast(kind).chunks, pa.nulls(links, kind)
        ])  # fmt: skip
    for name, kind in schema.EDGE_TYPES.items():
        columns[f"edge_{name}"] = pa.chunked_array([
            pa.nulls(count, kind), *mixed.edges.column(name).cast(kind).chunks
        ])  # fmt: skip
    facts = {
        b"gpuscope.schema_version": b"1",
        b"gpuscope.metadata": mixed.metadata.to_json().encode(),
        b"gpuscope.spans": str(count if said is None else said).encode(),
    }
    pq.write_table(pa.table(columns).replace_schema_metadata(facts), path)
    return path


def test_a_file_of_the_layout_before_still_loads(tmp_path, mixed):
    same(load_trace(of_the_layout_before(tmp_path / "old.parquet", mixed)), mixed)


@pytest.mark.parametrize(
    ("said", "refusal"),
    [(-1, "-1 of its"), (1_000_000, "1,000,000 of its"), ("", "does not hold one"),
     ("1e3", "does not hold one")],
)  # fmt: skip
def test_a_count_of_spans_that_cannot_be_is_refused(said, refusal, tmp_path, mixed):
    path = of_the_layout_before(tmp_path / "old.parquet", mixed, said)
    with pytest.raises(TraceFormatError, match=refusal):
        load_trace(path)


# -- typed facts --------------------------------------------------------------------------
def test_every_reader_gives_a_partition_the_same_number_of_sms():
    facts = {"sm_count": 16, "granted": 8}
    metadata = TraceMetadata.from_facts({"partitions": {"p": facts}})
    trace = Trace.from_columns(
        spans(kind=["kernel"] * 3, stream=[1, 1, 1], partition=["p"] * 3), None, metadata
    )
    assert partition_label(trace, "p") == "p (16 SMs)"
    (track,) = layout(trace).of(trace)[0]
    assert names(track, trace)[0] == "GPU 0 · p (16 SMs)"


def test_the_former_name_of_the_number_of_sms_is_read():
    metadata = TraceMetadata(partitions={"p": {"granted": 8}})
    assert metadata.partition("p").sm_count == 8


def test_facts_are_checked_where_metadata_is_made():
    with pytest.raises(TraceFormatError, match="sm_count"):
        TraceMetadata(devices={"cuda:0": DeviceFacts(sm_count=-1)})
    with pytest.raises(TraceFormatError, match="unknown field 'sundial'"):
        TraceMetadata.from_facts({"sundial": 1})


def test_facts_are_written_as_they_are_read():
    plain = {"index": 0, "name": "H200", "sm_count": 132}
    metadata = TraceMetadata(devices={"cuda:0": {**plain, "uuid": None, "more": 1}})
    assert json.loads(metadata.to_json())["devices"] == {"cuda:0": plain}
    assert TraceMetadata.from_json(metadata.to_json()) == metadata
    assert metadata.device(0).sm_count == 132
    assert metadata.device(1) == DeviceFacts()


def test_the_description_of_an_experiment_is_kept_whole():
    described = {"name": "x", "workloads": {"w": {"kind": "spin"}}}
    assert TraceMetadata(experiment=described).experiment == described
