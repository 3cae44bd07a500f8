"""CUPTI's records as columns: joins against plain ones, and what each value of a record says."""

from __future__ import annotations

import json

import fake_cupti
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuscope.record.cupti import layout, library, tables
from gpuscope.record.cupti.library import (
    AWAITS,
    BLOCKING,
    ENDS,
    LAUNCH,
    MEMORY,
    OF_CONTEXT,
    OF_EVENT,
    OF_STREAM,
    OTHER,
    RECORDS,
    demangled,
    role_of,
    text_at,
)
from gpuscope.record.cupti.tables import NONE
from gpuscope.trace import arrow, joins, schema

VERSION = 130401


def read(records):
    """Return records as they are read from a buffer."""
    raw = fake_cupti.buffer(records, VERSION)
    return layout.read_records(raw, layout.find_records(raw, layout.record_sizes(VERSION)))


def ints(*values):
    return np.array(values, np.int64)


# -- joins by number -------------------------------------------------------------------------
numbers = st.lists(st.integers(0, 12), max_size=20)


@given(numbers, numbers, st.booleans(), st.sampled_from([np.uint32, np.int64]))
@settings(deadline=None)
def test_match_gives_the_last_place_of_each_key(wanted, keys, ascending, dtype):
    keys = sorted(keys) if ascending else keys
    found = joins.match(np.array(wanted, np.uint32), np.array(keys, dtype))
    last = {key: place for place, key in enumerate(keys)}
    assert found.tolist() == [last.get(one, NONE) for one in wanted]


def test_match_of_nothing_and_in_nothing():
    assert joins.match(ints(), ints(1, 2)).tolist() == []
    assert joins.match(ints(1, 2), ints()).tolist() == [NONE, NONE]


# -- joins by thread and time ----------------------------------------------------------------
@st.composite
def nests(draw, depth=0, first=0, last=400):
    """Draw intervals that nest or lie apart; they may begin or end together."""
    found = []
    at = first
    while at <= last and draw(st.integers(0, 3)):
        start = draw(st.integers(at, last))
        end = draw(st.integers(start, last))
        found.append((start, end))
        if depth < 3:
            found += draw(nests(depth + 1, start, end))
        at = end + 1
    return found


def innermost(intervals, time):
    """The one that begins last; of those the one that ends first; of those the last in order."""
    around = [
        (start, -end, place) for place, (start, end) in enumerate(intervals) if start <= time <= end
    ]
    return max(around)[2] if around else NONE


@given(st.lists(nests(), min_size=1, max_size=3), st.randoms(use_true_random=False))
@example([[(0, 10), (0, 10), (0, 0)]], __import__("random").Random(1))
@settings(deadline=None)
def test_innermost_finds_what_looking_at_every_interval_finds(threads, random):
    flat = [(thread, one) for thread, mine in enumerate(threads) for one in mine]
    random.shuffle(flat)
    moments = [
        (thread, time + shift)
        for thread, mine in enumerate(threads)
        for one in mine
        for time in one
        for shift in (-1, 0, 1)
    ] + [(thread, random.randint(-5, 405)) for thread in range(len(threads) + 1) for _ in range(5)]
    found = joins.innermost(
        ints(*(thread for thread, _ in moments)),
        ints(*(time for _, time in moments)),
        ints(*(thread for thread, _ in flat)),
        ints(*(one[0] for _, one in flat)),
        ints(*(one[1] for _, one in flat)),
    )
    for (thread, time), place in zip(moments, found.tolist(), strict=True):
        mine = [one for owner, one in flat if owner == thread]
        where = [place for place, (owner, _) in enumerate(flat) if owner == thread]
        expected = innermost(mine, time)
        assert (place == NONE) == (expected == NONE)
        if expected != NONE:
            # Of intervals that are the same either will do.
            assert flat[place] == flat[where[expected]]


def test_innermost_reads_open_intervals_and_unsigned_times():
    end = np.iinfo(np.int64).max
    found = joins.innermost(
        np.array([7, 7, 8], np.uint32), ints(50, 5, 50), ints(7), ints(10), ints(end)
    )
    assert found.tolist() == [0, NONE, NONE]


def test_innermost_without_intervals_or_moments():
    assert joins.innermost(ints(1), ints(1), ints(), ints(), ints()).tolist() == [NONE]
    assert joins.innermost(ints(), ints(), ints(1), ints(1), ints(1)).tolist() == []


# -- columns ---------------------------------------------------------------------------------
def test_text_columns_are_null_where_there_is_no_number_or_no_text():
    column = arrow.text_column(ints(1, NONE, 0, 2, 1), ["a", "b", None])
    assert column.to_pylist() == ["b", None, "a", None, "b"]
    assert column.type == schema.SPAN_TYPES["name"]
    assert arrow.text_column(ints(), []).to_pylist() == []
    assert arrow.text_column(ints(NONE), []).to_pylist() == [None]


def test_text_columns_take_any_name():
    assert arrow.text_column(ints(0), ["k\ud800ü"]).to_pylist() == ["k?ü"]


def test_nullable_columns_cost_nothing_where_all_is_null():
    assert arrow.nullable(ints(1, 2), np.array([True, True])).type == pa.null()
    assert arrow.nullable(ints(1, 2), np.array([False, True])).to_pylist() == [1, None]
    assert arrow.nullable(np.array([1 << 40], np.uint64), np.array([False])).to_pylist() == [
        1 << 40
    ]


@given(st.lists(st.lists(st.integers(0, 9), min_size=12, max_size=12), max_size=20))
@settings(deadline=None)
def test_launch_configurations_are_told_as_json_for_kernels_only(configs):
    work = np.array([place % 3 for place in range(len(configs))], np.int64)
    column = tables.config_column(np.array(configs, np.uint32).reshape(-1, 12), work)
    for (*sizes, registers, static, dynamic), kind, text in zip(
        configs, work.tolist(), column.to_pylist(), strict=True
    ):
        if kind != tables.KERNEL:
            assert text is None
            continue
        expected = {"grid": sizes[:3], "block": sizes[3:6], "registers": registers,
                    "shared_memory": static + dynamic}  # fmt: skip
        if sizes[6]:
            expected["cluster"] = sizes[6:]
        assert json.loads(text) == expected
    distinct = {tuple(one) for one in configs}
    assert len(column.dictionary) <= len(distinct), "each once"


def test_a_table_has_all_columns_of_a_trace_in_their_types():
    columns = {
        "id": ints(1, 2), "kind": arrow.constant("api", 2), "end_ns": pa.nulls(2),
        "device": np.array([0, 1], np.int32), "sm": pa.array([1, None], pa.int32()),
    }  # fmt: skip
    table = arrow.table(columns, 2)
    assert table.column_names == list(schema.SPAN_TYPES)
    for name in ("id", "kind", "device", "sm"):
        assert table.column(name).type == schema.SPAN_TYPES[name]
    assert table.column("sm").to_pylist() == [1, None]
    assert pa.types.is_null(table.column("end_ns").type)
    assert pa.types.is_null(table.column("parent").type)


# -- work ------------------------------------------------------------------------------------
NAMES = {0: "", 1: "first", 2: "second"}


def work(records):
    """Return the columns of work from records, as lists, in the order of their kinds."""
    found = tables.work_of(read(records))
    columns = tables.work_columns(found, NAMES.__getitem__)
    table = arrow.table({**columns, "start_ns": found["start"]}, len(found["start"]))
    return table.to_pylist()


def kernel(number=1, **fields):
    return (layout.KERNEL, {"name": number, "start": 10, "end": 20, **fields})


def test_kernels_tell_name_place_and_configuration():
    one, two, three = work([
        kernel(2, device=3, context=4, correlation=6, grid_x=7, grid_y=8, grid_z=9, block_x=128,
               block_y=2, block_z=1, registers=40, static_shared=100, dynamic_shared=11),
        kernel(1, cluster_x=2, cluster_y=1, cluster_z=1),
        kernel(2),
    ])  # fmt: skip
    assert [row["name"] for row in (one, two, three)] == ["second", "first", "second"]
    assert (one["kind"], one["source"]) == ("kernel", "cupti")
    assert (one["start_ns"], one["end_ns"], one["device"], one["context"]) == (10, 20, 3, 4)
    assert one["correlation"] == 6
    assert json.loads(one["launch_config"]) == {
        "grid": [7, 8, 9], "block": [128, 2, 1], "registers": 40, "shared_memory": 111,
    }  # fmt: skip
    assert json.loads(two["launch_config"])["cluster"] == [2, 1, 1]
    empty = ("nbytes", "copy_kind", "src_kind", "dst_kind", "graph", "graph_node", "status")
    assert all(row[name] is None for row in (one, two, three) for name in empty)


def test_nodes_of_graphs_are_told_from_launches_alone():
    alone, node = work([kernel(), kernel(graph=3, graph_node=(2 << 32) + 1)])
    assert (alone["graph"], alone["graph_node"]) == (None, None)
    assert (node["graph"], node["graph_node"]) == (3, (2 << 32) + 1)


@pytest.mark.parametrize(
    ("number", "direction"),
    [(0, "unknown"), (1, "HtoD"), (2, "DtoH"), (8, "DtoD"), (9, "HtoH"), (10, "PtoP")],
)
def test_copies_tell_direction_memory_and_bytes(number, direction):
    (row,) = work([(layout.MEMCPY, {"copy_kind": number, "src_kind": 1, "dst_kind": 3,
                                    "bytes": 1 << 40, "start": 1, "end": 2})])  # fmt: skip
    assert (row["kind"], row["copy_kind"]) == ("memcpy", direction)
    assert row["name"] == f"{direction} copy"
    assert (row["src_kind"], row["dst_kind"], row["nbytes"]) == ("pageable", "device", 1 << 40)
    assert row["launch_config"] is None


def test_copies_between_gpus_have_fields_at_other_places():
    (row,) = work([(layout.PEER_COPY, {
        "copy_kind": 10, "src_kind": 3, "dst_kind": 3, "bytes": 64, "start": 1, "end": 2,
        "correlation": 9, "graph": 5,
    })])  # fmt: skip
    assert (row["kind"], row["copy_kind"], row["nbytes"]) == ("memcpy", "PtoP", 64)
    assert (row["correlation"], row["graph"]) == (9, 5)


def test_memsets_tell_bytes_and_where():
    (row,) = work([(layout.MEMSET, {"bytes": 12, "dst_kind": 2, "value": 7, "start": 1, "end": 2})])
    assert (row["kind"], row["name"], row["nbytes"]) == ("memset", "memset", 12)
    assert (row["dst_kind"], row["src_kind"], row["copy_kind"]) == ("pinned", None, None)


def test_kinds_that_are_newer_than_this_are_unknown():
    (row,) = work([(layout.MEMCPY, {"copy_kind": 200, "src_kind": 99, "dst_kind": 99})])
    assert (row["copy_kind"], row["name"]) == ("unknown", "unknown copy")
    assert (row["src_kind"], row["dst_kind"]) == ("unknown", "unknown")


def test_work_that_has_not_finished_is_open_and_says_so():
    rows = work([
        kernel(end=0), kernel(), (layout.MEMCPY, {"start": 5}), (layout.MEMSET, {"end": 3}),
    ])  # fmt: skip
    assert [row["end_ns"] for row in rows] == [None, 20, None, 3]
    assert [row["status"] for row in rows] == ["not finished", None, "not finished", None]


def test_kernels_copies_and_memsets_of_a_buffer_keep_apart():
    rows = work([
        (layout.MEMSET, {"bytes": 1, "end": 1}), kernel(1), (layout.MEMCPY, {"bytes": 2, "end": 1}),
        kernel(2), (layout.PEER_COPY, {"bytes": 3, "end": 1}), (layout.RUNTIME, {}),
    ])  # fmt: skip
    assert [(row["kind"], row["nbytes"]) for row in rows] == [
        ("kernel", None), ("kernel", None), ("memcpy", 2), ("memcpy", 3), ("memset", 1),
    ]  # fmt: skip
    assert [row["name"] for row in rows[:2]] == ["first", "second"]


def test_a_buffer_without_work_or_api_calls_gives_none():
    assert tables.work_of(read([(layout.RUNTIME, {})])) is None
    assert tables.apis_of(read([kernel()]), noted=False) is None


def test_api_calls_of_runtime_and_driver_are_told_apart():
    records = read([
        (layout.DRIVER, {"callback": 1}), (layout.RUNTIME, {"callback": 2}),
        (layout.DRIVER, {"callback": 3}), (layout.NOTED_DRIVER, {"callback": 4}),
        (layout.NOTED_RUNTIME, {"callback": 5}),
    ])  # fmt: skip
    for noted, calls in (
        (False, [(1, False), (2, True), (3, False)]), (True, [(4, False), (5, True)]),
    ):  # fmt: skip
        apis = tables.apis_of(records, noted=noted)
        found = zip(apis["callback"].tolist(), apis["runtime"].tolist(), strict=True)
        assert sorted(found) == calls


# -- names -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("_Z4spinIfEvPT_i", "void spin<float>(float*, int)"), ("gpuscope_canary",) * 2,
        ("_Znot mangled",) * 2, ("", ""),
    ],
)  # fmt: skip
def test_names_of_kernels_are_as_in_the_source(raw, name):
    assert demangled(text_at(fake_cupti.address(raw))) == name


def test_a_record_without_a_name_has_an_empty_one():
    assert demangled(text_at(0)) == ""


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("cudaLaunchKernel_v7000", LAUNCH), ("cudaLaunchKernelExC_v11060", LAUNCH),
        ("cuLaunchKernelEx_ptsz", LAUNCH), ("cudaGraphLaunch_v10000", LAUNCH),
        ("cudaMemcpyAsync_v3020", LAUNCH), ("cuMemcpyHtoDAsync_v2", LAUNCH),
        ("cudaMemcpyPeer_v4000", LAUNCH), ("cudaMemcpyBatchAsync_v12080", LAUNCH),
        ("cudaMemset_v3020", LAUNCH), ("__cudaLaunch_v3020", LAUNCH), ("cuMemsetD8_v2", LAUNCH),
        ("cudaMemcpy_v3020", BLOCKING), ("cuMemcpyDtoH_v2_ptds", BLOCKING),
        ("cudaMemcpy2DToArray_v3020", BLOCKING), ("cudaMemcpyToSymbolAsync_v3020", LAUNCH),
        ("cudaStreamSynchronize_ptsz_v7000", OF_STREAM), ("cuCtxSynchronize_v2", OF_CONTEXT),
        ("cudaDeviceSynchronize_v3020", OF_CONTEXT), ("cuEventSynchronize", OF_EVENT),
        ("cudaEventQuery_v3020", OF_EVENT), ("cuStreamQuery_ptsz", OF_STREAM),
        ("cudaEventRecordWithFlags_ptsz_v11010", RECORDS), ("cuEventRecord", RECORDS),
        ("cuStreamWaitEvent_ptsz", AWAITS),
        ("cudaGetDevice_v3020", OTHER), ("cudaGraphAddEventRecordNode_v11010", OTHER),
        ("cudaGraphInstantiate_v10000", OTHER), ("", OTHER), ("cudaMallocAsync_v11020", OTHER),
        ("cudaMalloc_v3020", MEMORY), ("cuMemFree_v2", MEMORY), ("cudaHostAlloc_v3020", MEMORY),
        ("cudaFreeHost_v3020", MEMORY), ("cuMemHostRegister_v2", MEMORY), ("cuMemMap", MEMORY),
        ("cuGraphAddMemcpyNode", OTHER), ("cuEventCreate", OTHER), ("cuEventDestroy_v2", ENDS),
    ],
)  # fmt: skip
def test_what_calls_do_is_told_by_their_names(name, role):
    assert role_of(name) == role


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("cudaEventQuery_v3020", 8 | 1), ("cuStreamQuery_ptsz", 8 | 4 | 2),
        ("cudaStreamSynchronize_v3020", 2), ("cudaDeviceSynchronize_v3020", 16),
        ("cudaEventRecordWithFlags_v11010", 2 | 1), ("cuEventSynchronize", 1),
        ("cudaEventDestroy_v3020", 1), ("cudaStreamWaitEvent_v3020", 32 | 2 | 1),
        ("cuStreamWaitEvent_ptsz", 32 | 4 | 2 | 1),
        ("cudaLaunchKernel_v7000", 0), ("cudaFree_v3020", 0),
        ("cuGraphAddEventRecordNode", 0), ("cudaLaunchKernel_ptsz_v7000", 0),
    ],
)  # fmt: skip
def test_what_is_noted_of_a_call_follows_from_its_name(name, subject):
    assert library._subject(name) == subject


# -- NVTX and synchronisations ---------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (4, np.int64(7), "7"), (4, np.int64(-7), "-7"), (4, np.int64(0), "0"),
        (1, np.uint64(2**64 - 1), "18446744073709551615"), (1, np.uint64(0), None),
        (0, np.float64(0.25), "0.25"), (0, np.float64(-1e300), "-1e+300"), (3, np.int64(7), None),
    ],
)  # fmt: skip
def test_payloads_are_told_as_json_by_their_kind(kind, value, text):
    raw = int(np.array([value]).view(np.uint64)[0])
    assert tables.payload_text(kind, raw) == text
    if text is not None:
        assert json.loads(text) == value


def test_the_real_recording_as_work():
    kept = fake_cupti.recorded()
    raw = kept.raw[0]
    records = layout.read_records(raw, layout.find_records(raw, layout.record_sizes(kept.version)))
    found = tables.work_of(records)
    columns = tables.work_columns(found, kept.texts.__getitem__)
    table = arrow.table({**columns, "start_ns": found["start"]}, len(found["start"]))
    rows = table.to_pylist()
    assert [row["kind"] for row in rows].count("kernel") == 128
    (copy,) = [row for row in rows if row["kind"] == "memcpy"]
    assert (copy["nbytes"], copy["copy_kind"], copy["dst_kind"]) == (262144, "DtoH", "pageable")
    nvjet = [row for row in rows if row["name"].startswith("nvjet")]
    assert {json.loads(row["launch_config"])["cluster"][0] for row in nvjet} == {4}
    data = records[layout.MARKER_DATA]
    assert tables.payload_text(int(data["payload_kind"][0]), int(data["payload"][0])) == "7"
