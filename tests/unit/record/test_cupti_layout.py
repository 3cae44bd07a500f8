"""CUPTI's records in raw buffers: found exactly, in every version, and what is not read is told."""

from __future__ import annotations

from collections import Counter

import fake_cupti
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuscope.errors import TraceFormatError
from gpuscope.record.cupti import layout
from gpuscope.record.cupti.layout import (
    CONTEXT,
    CUDA_EVENT,
    DRIVER,
    EXTERNAL,
    FIELDS,
    GRAPH,
    KERNEL,
    MARKER,
    MARKER_DATA,
    MEMCPY,
    MEMSET,
    NOTED_DRIVER,
    NOTED_RUNTIME,
    OVERHEAD,
    PEER_COPY,
    RUNTIME,
    STREAM,
    SYNCHRONIZATION,
    find_records,
    read_records,
    record_sizes,
)

VERSIONS = (28, 130001, 130101, 130202, 130301, 130401, 130500)
SIZES = {  # in the order of VERSIONS, as cupti_activity.h of each has them
    KERNEL: (208, 216, 224, 224, 232, 248, 248),
    MEMCPY: (96, 96, 96, 96, 96, 112, 112),
    MEMSET: (88, 88, 88, 88, 88, 104, 104),
    PEER_COPY: (96,) * 7,
    DRIVER: (40,) * 7,
    RUNTIME: (40,) * 7,
    CONTEXT: (32, 32, 40, 40, 40, 40, 40),
    MARKER: (56,) * 7,
    MARKER_DATA: (32, 40, 40, 40, 40, 40, 40),
    OVERHEAD: (56,) * 7,
    CUDA_EVENT: (56,) * 7,
    STREAM: (24,) * 7,
    SYNCHRONIZATION: (56,) * 7,
    EXTERNAL: (24,) * 7,
    GRAPH: (56,) * 7,
}
OFFSETS = {  # field, offset and bytes, as a C compiler places them (12.9 and 13.4 alike)
    KERNEL: """
        registers:6:2 start:16:8 end:24:8 device:40:4 context:44:4 stream:48:4 grid_x:52:4
        grid_y:56:4 grid_z:60:4 block_x:64:4 block_y:68:4 block_z:72:4 static_shared:76:4
        dynamic_shared:80:4 local_memory:84:4 correlation:92:4 name:104:8 queued:120:8
        submitted:128:8 graph_node:144:8 graph:156:4 channel:168:4 cluster_x:176:4
        cluster_y:180:4 cluster_z:184:4
    """,
    MEMCPY: """
        copy_kind:4:1 src_kind:5:1 dst_kind:6:1 bytes:8:8 start:16:8 end:24:8 device:32:4
        context:36:4 stream:40:4 correlation:44:4 graph_node:64:8 graph:72:4 channel:76:4
    """,
    MEMSET: """
        value:4:4 bytes:8:8 start:16:8 end:24:8 device:32:4 context:36:4 stream:40:4
        correlation:44:4 dst_kind:50:2 graph_node:64:8 graph:72:4 channel:76:4
    """,
    PEER_COPY: """
        copy_kind:4:1 src_kind:5:1 dst_kind:6:1 bytes:8:8 start:16:8 end:24:8 device:32:4
        context:36:4 stream:40:4 correlation:60:4 graph_node:72:8 graph:80:4 channel:84:4
    """,
    RUNTIME: """
        callback:4:4 start:8:8 end:16:8 process:24:4 thread:28:4 correlation:32:4 returned:36:4
    """,
    CONTEXT: """
        context:4:4 device:8:4 parent:16:4 is_green:20:1 sm_count:22:2
    """,
    STREAM: """
        context:4:4 stream:8:4 priority:12:4 flag:16:4
    """,
    MARKER: """
        flags:4:4 time:8:8 marker:16:4 process:24:4 thread:28:4 name:40:8 domain:48:8
    """,
    MARKER_DATA: """
        flags:4:4 marker:8:4 payload_kind:12:4 payload:16:8 color:24:4 category:28:4
    """,
    SYNCHRONIZATION: """
        type:4:4 start:8:8 end:16:8 correlation:24:4 context:28:4 stream:32:4 sync:40:8
    """,
    CUDA_EVENT: """
        correlation:4:4 context:8:4 stream:12:4 sync:48:8
    """,
    GRAPH: """
        correlation:4:4 start:8:8 end:16:8 device:24:4 graph:28:4 context:32:4 stream:36:4
    """,
}
OFFSETS[DRIVER] = OFFSETS[RUNTIME]
OFFSETS[NOTED_DRIVER] = OFFSETS[NOTED_RUNTIME] = (
    f"{OFFSETS[RUNTIME]} site:40:4 handle:48:8 event:56:8"
)
SIZES[NOTED_DRIVER] = SIZES[NOTED_RUNTIME] = (64,) * 7
ALL_KINDS = tuple(SIZES)


def walk(raw, sizes):
    """Find records in the plainest way: offsets by kind, and where reading stops."""
    found, at = {}, 0
    while at + 4 <= len(raw):
        kind = int(raw[at : at + 4].view("u4")[0])
        if kind not in sizes or at + sizes[kind] > len(raw):
            break
        found.setdefault(kind, []).append(at)
        at += sizes[kind]
    return found, at


def offsets(found):
    return {kind: where.tolist() for kind, where in found.offsets.items()}


# -- what a real libcupti wrote --------------------------------------------------------------
@pytest.fixture(scope="module")
def real():
    """The records of a recording on an H200 (libcupti 13.0), and what their texts say."""
    kept = fake_cupti.recorded()
    (raw,) = kept.raw
    found = find_records(raw, record_sizes(kept.version))
    records = read_records(raw, found)
    records["found"], records["text"], records["raw"] = found, kept.texts, raw
    return records


def kernels_named(real, part):
    names = np.array([real["text"][int(one)] for one in real[KERNEL]["name"]])
    return np.flatnonzero(np.char.find(names, part) >= 0)


def test_recorded_bytes_hold_the_kinds_and_counts_that_were_made(real):
    found, sizes = real["found"], record_sizes(fake_cupti.recorded().version)
    counts = {kind: len(where) for kind, where in found.offsets.items()}
    assert counts == {KERNEL: 128, RUNTIME: 123, DRIVER: 5, MEMCPY: 1, MARKER: 2, MARKER_DATA: 1}
    assert (found.unread, found.unread_kind) == (0, None)
    assert sum(sizes[kind] * count for kind, count in counts.items()) == len(real["raw"])
    assert offsets(found) == walk(real["raw"], sizes)[0]


def test_recorded_kernels_have_their_names(real):
    names = Counter(real["text"][int(one)] for one in real[KERNEL]["name"])
    gemms = {name: count for name, count in names.items() if name.startswith("sm80_xmma_gemm")}
    assert sorted(gemms.values()) == [60, 60]
    assert names["nvjet_sm90_hsh_64x8_64x16_1x4_h_bz_NNT"] == 5
    assert sum(count for name, count in names.items() if name.startswith("_ZN2at6native")) == 3
    assert sum(names.values()) == 128


def test_recorded_kernels_ran_one_after_the_other_in_plausible_time(real):
    kernels = real[KERNEL]
    took = kernels["end"].astype(np.int64) - kernels["start"].astype(np.int64)
    assert ((took > 500) & (took < 100_000)).all()
    on_default = kernels["stream"] == fake_cupti.DEFAULT_STREAM
    starts, ends = kernels["start"][on_default], kernels["end"][on_default]
    assert (starts[1:] >= ends[:-1]).all()
    assert set(kernels["device"].tolist()) == {0}


def test_recorded_launch_configurations_are_read_from_their_places(real):
    first, split = kernels_named(real, "_execute_kernel__"), kernels_named(real, "_split_k_")
    kernels = real[KERNEL]
    for rows, grid_z, registers, shared in ((first, 4, 80, 6528), (split, 1, 72, 4608)):
        assert {tuple(int(kernels[f"grid_{axis}"][row]) for axis in "xyz") for row in rows} == {
            (8, 8, grid_z)
        }
        assert set(kernels["block_x"][rows].tolist()) == {64}
        assert set(kernels["registers"][rows].tolist()) == {registers}
        assert set(kernels["dynamic_shared"][rows].tolist()) == {shared}
    nvjet = kernels_named(real, "nvjet_sm90_hsh_64x8_64x16_1x4_")
    clusters = {tuple(int(kernels[f"cluster_{axis}"][row]) for axis in "xyz") for row in nvjet}
    assert clusters == {(4, 1, 1)}


def test_recorded_nvtx_range_has_its_name_payload_category_and_colour(real):
    marker, data = real[MARKER], real[MARKER_DATA]
    begin, end = (marker["flags"] == 2).nonzero()[0], (marker["flags"] == 4).nonzero()[0]
    assert (len(begin), len(end)) == (1, 1)
    assert marker["marker"][begin] == marker["marker"][end] == data["marker"][0]
    assert real["text"][int(marker["name"][begin[0]])] == "step"
    assert real["text"][int(marker["domain"][begin[0]])] == "dom"
    assert (data["payload_kind"][0], data["payload"][0]) == (4, 7)
    assert data["color"][0] == 0xFF0000
    assert data["category"][0] == 1
    kernels = real[KERNEL]["start"][kernels_named(real, "_execute_kernel__")]
    assert marker["time"][begin[0]] < kernels.min()
    assert set(marker["process"].tolist()) == set(real[RUNTIME]["process"].tolist())
    assert set(marker["thread"].tolist()) == set(real[RUNTIME]["thread"].tolist())


def test_recorded_graph_is_told_node_by_node_with_one_launch(real):
    kernels = real[KERNEL]
    nodes = kernels["graph"] != 0
    assert nodes.sum() == 2
    assert len(set(kernels["graph"][nodes].tolist())) == 1
    assert len(set(kernels["graph_node"][nodes].tolist())) == 2
    assert (kernels["graph_node"] != 0).tolist() == nodes.tolist()
    (correlation,) = set(kernels["correlation"][nodes].tolist())
    assert (real[RUNTIME]["correlation"] == correlation).sum() == 1


def test_recorded_kernels_in_a_green_context_have_a_context_of_their_own(real):
    kernels, nvjet = real[KERNEL], kernels_named(real, "nvjet")
    others = np.setdiff1d(np.arange(len(kernels["start"])), nvjet)
    assert set(kernels["context"][others].tolist()) == {1}
    (green,) = set(kernels["context"][nvjet].tolist())
    assert green != 1
    assert set(kernels["stream"][nvjet].tolist()).isdisjoint(kernels["stream"][others].tolist())


def test_recorded_work_and_api_calls_are_joined_by_correlation(real):
    calls = {}
    for kind in (RUNTIME, DRIVER):
        for number, start, end in zip(
            *(real[kind][name].tolist() for name in ("correlation", "start", "end")), strict=True
        ):
            assert number not in calls
            assert start < end
            calls[number] = (kind, start)
    for kind in (KERNEL, MEMCPY):
        for number, start in zip(
            real[kind]["correlation"].tolist(), real[kind]["start"].tolist(), strict=True
        ):
            assert calls[number][1] < start
    nvjet = real[KERNEL]["correlation"][kernels_named(real, "nvjet")].tolist()
    assert {calls[number][0] for number in nvjet} == {DRIVER}
    assert set(real[RUNTIME]["returned"].tolist()) == {0}


def test_recorded_copy_tells_bytes_and_direction(real):
    copy = {name: values[0] for name, values in real[MEMCPY].items()}
    assert copy["bytes"] == 256 * 256 * 4
    assert (copy["copy_kind"], copy["src_kind"], copy["dst_kind"]) == (2, 3, 1)
    assert copy["start"] < copy["end"]


@pytest.mark.parametrize("cut", [0, 4, 8, 40, 55, 56, 57, 102, 103, 5001, 33015, 33016])
def test_recorded_bytes_cut_short_give_whole_records_and_count_the_rest(real, cut):
    raw, sizes = real["raw"][:cut], record_sizes(fake_cupti.recorded().version)
    found = find_records(raw, sizes)
    whole, stop = walk(raw, sizes)
    assert offsets(found) == whole
    assert found.unread == cut - stop
    full = {kind: real[kind] for kind in whole}
    for kind, columns in read_records(raw, found).items():
        for name, values in columns.items():
            assert values.tolist() == full[kind][name][: len(whole[kind])].tolist(), (kind, name)


# -- every version ---------------------------------------------------------------------------
@pytest.mark.parametrize(("place", "version"), list(enumerate(VERSIONS)))
def test_record_sizes_of_every_version(place, version):
    assert record_sizes(version) == {kind: sizes[place] for kind, sizes in SIZES.items()}


@pytest.mark.parametrize("version", [0, 18, 27])
def test_versions_before_cuda_12_9_are_refused(version):
    with pytest.raises(TraceFormatError, match=rf"{version}.*12\.9.*install a newer"):
        record_sizes(version)


def test_a_version_newer_than_all_known_is_read_as_the_newest():
    assert record_sizes(140000) == record_sizes(VERSIONS[-1])


def test_fields_lie_where_the_compiler_places_them():
    for kind, fields in FIELDS.items():
        placed = [text.split(":") for text in OFFSETS[kind].split()]
        assert {name: (at, int(code[1])) for name, (at, code) in fields.items()} == {
            name: (int(at), int(width)) for name, at, width in placed
        }


@pytest.mark.parametrize("version", VERSIONS)
def test_every_field_of_every_kind_is_read_in_every_version(version):
    """All bits of a field are its own: no other field changes when it is set."""
    sizes = record_sizes(version)
    for kind, fields in FIELDS.items():
        for name, (_, code) in fields.items():
            full = (1 << 8 * int(code[1])) - 1
            raw = np.concatenate([
                fake_cupti.record(EXTERNAL, sizes), fake_cupti.record(kind, sizes, **{name: full}),
                fake_cupti.record(kind, sizes),
            ])  # fmt: skip
            records = read_records(raw, find_records(raw, sizes))
            assert list(records) == [kind]
            for other, values in records[kind].items():
                assert values.tolist() == [full if other == name else 0, 0], (kind, name, other)


@pytest.mark.parametrize("version", VERSIONS)
def test_records_of_all_kinds_lie_one_behind_the_other_in_every_version(version):
    sizes = record_sizes(version)
    raw = fake_cupti.buffer([(kind, {}) for kind in ALL_KINDS * 20], version)
    found = find_records(raw, sizes)
    assert offsets(found) == walk(raw, sizes)[0]
    assert {len(where) for where in found.offsets.values()} == {20}


@pytest.mark.parametrize(("place", "version"), list(enumerate(VERSIONS)))
def test_bytes_of_another_version_s_layout_do_not_pass_for_its_own(place, version):
    """Where layouts differ, what follows a record is not found: it is counted."""
    raw = fake_cupti.buffer([(KERNEL, {}), (KERNEL, {})], version)
    for other in VERSIONS:
        found = find_records(raw, record_sizes(other))
        same = SIZES[KERNEL][VERSIONS.index(other)] == SIZES[KERNEL][place]
        assert (found.unread == 0) == same


# -- what cannot be read ---------------------------------------------------------------------
def test_an_empty_buffer_has_no_records():
    found = find_records(np.zeros(0, np.uint8), record_sizes(28))
    assert (dict(found.offsets), found.unread, found.unread_kind) == ({}, 0, None)
    assert read_records(np.zeros(0, np.uint8), found) == {}


@pytest.mark.parametrize("before", [0, 1, 50, 95, 96, 97, 300, 9000])
@pytest.mark.parametrize("period", [1, 3, 40])
def test_behind_a_record_of_an_unknown_kind_nothing_is_read_and_its_bytes_are_counted(
    before, period
):
    kinds = [ALL_KINDS[number % period % len(ALL_KINDS)] for number in range(before)]
    sizes = record_sizes(130001)
    parts = [fake_cupti.record(kind, sizes) for kind in kinds]
    unknown = np.zeros(48, np.uint8)
    unknown[:4].view("u4")[0] = 99
    tail = [fake_cupti.record(KERNEL, sizes)] * 5
    raw = np.concatenate([*parts, unknown, *tail])
    found = find_records(raw, sizes)
    assert found.unread_kind == 99
    assert found.unread == 48 + 5 * sizes[KERNEL]
    assert sum(len(where) for where in found.offsets.values()) == before


def test_kinds_without_known_fields_are_stepped_over():
    sizes = record_sizes(130001)
    raw = fake_cupti.buffer([(OVERHEAD, {}), (RUNTIME, {"correlation": 5}), (GRAPH, {})])
    found = find_records(raw, sizes)
    assert {kind: len(where) for kind, where in found.offsets.items()} == {
        OVERHEAD: 1, RUNTIME: 1, GRAPH: 1,
    }  # fmt: skip
    assert read_records(raw, found)[RUNTIME]["correlation"].tolist() == [5]


# -- any sequence ----------------------------------------------------------------------------
one_kind = st.sampled_from(ALL_KINDS)
patterns = st.lists(
    st.tuples(st.lists(one_kind, min_size=1, max_size=40), st.integers(1, 60)), max_size=5
)


def bytes_of(kinds, sizes, seed):
    """Records whose other words look like kinds, too."""
    total = sum(sizes[kind] for kind in kinds)
    raw = np.random.default_rng(seed).integers(0, 52, total // 4).astype(np.uint32).view(np.uint8)
    at = 0
    for kind in kinds:
        raw[at : at + 4].view("u4")[0] = kind
        at += sizes[kind]
    return raw


@given(patterns, st.sampled_from(VERSIONS), st.integers(0, 9), st.integers(0, 400))
@example([([RUNTIME, KERNEL], 60), ([RUNTIME], 1), ([RUNTIME, KERNEL], 60)], 28, 0, 0)
@example([([KERNEL], 97), ([MARKER], 1)], 130401, 0, 8)
@example([([STREAM] * 31 + [EXTERNAL], 40)], 130001, 1, 0)
@example([([STREAM] * 32 + [EXTERNAL], 40)], 130001, 1, 4)
@settings(deadline=None)
def test_any_sequence_of_kinds_is_found_as_by_a_plain_walk(repeats, version, seed, cut):
    sizes = record_sizes(version)
    kinds = [kind for pattern, times in repeats for kind in pattern * times]
    raw = bytes_of(kinds, sizes, seed)
    raw = raw[: max(0, len(raw) - cut // 4 * 4)]
    found = find_records(raw, sizes)
    whole, stop = walk(raw, sizes)
    assert offsets(found) == whole
    assert found.unread == len(raw) - stop
    assert (found.unread_kind is None) == (stop == len(raw))


@pytest.mark.parametrize("at", [0, 95, 96, 1119, 1120, 1121, 5000, 9999])
def test_one_record_out_of_step_in_a_long_repetition_is_found(at):
    sizes = record_sizes(130001)
    kinds = [RUNTIME, KERNEL] * 5000
    kinds.insert(at, DRIVER)
    raw = bytes_of(kinds, sizes, 3)
    assert offsets(find_records(raw, sizes)) == walk(raw, sizes)[0]


@pytest.mark.parametrize("at", [0, 95, 96, 2046, 2047, 2048, 2049, 2050, 2051, 9999])
@pytest.mark.parametrize("other", [STREAM, DRIVER], ids=["of another length", "as long"])
def test_one_record_of_another_kind_in_a_long_repetition_is_found(at, other):
    """Also where the comparison goes on from one stretch to the next."""
    sizes = record_sizes(130001)
    kinds = [RUNTIME, RUNTIME] * 5000
    kinds[at] = other
    raw = bytes_of(kinds, sizes, 4)
    assert offsets(find_records(raw, sizes)) == walk(raw, sizes)[0]
    kinds = [RUNTIME, KERNEL] * 5000
    kinds[at // 2 * 2] = other
    raw = bytes_of(kinds, sizes, 4)
    assert offsets(find_records(raw, sizes)) == walk(raw, sizes)[0]


@given(st.lists(st.sampled_from(tuple(FIELDS)), max_size=60), st.integers(1, 200), st.integers(0))
@settings(deadline=None, max_examples=40)
def test_fields_are_read_wherever_their_records_lie(kinds, times, seed):
    sizes = record_sizes(130301)
    kinds = kinds * min(times, 6000 // max(1, len(kinds)))
    raw = bytes_of(kinds, sizes, seed)
    found = find_records(raw, sizes)
    for kind, columns in read_records(raw, found).items():
        where = found.offsets[kind]
        for name, (at, code) in FIELDS[kind].items():
            picked = raw[(where + at)[:, None] + np.arange(int(code[1]))]
            assert np.array_equal(columns[name], np.ascontiguousarray(picked).view(code)[:, 0])


def test_many_records_are_read_across_chunks_evenly_spaced_or_not():
    sizes = record_sizes(130500)
    even = [(KERNEL, {"correlation": number, "end": 1 << 60}) for number in range(5000)]
    uneven = [
        item
        for number in range(4500)
        for item in [(RUNTIME, {"correlation": number})] * (1 + number % 2) + [(MARKER, {})]
    ]
    for records, kind in ((even, KERNEL), (uneven, RUNTIME)):
        raw = fake_cupti.buffer(records, 130500)
        read = read_records(raw, find_records(raw, sizes))[kind]
        expected = [fields["correlation"] for one, fields in records if one == kind]
        assert read["correlation"].tolist() == expected
    assert layout._CHUNK < 4500, "so that there is more than one"
